/*
 * `kiln cache export`: entries as a pack (cache/packfile.h) into a file, a pipe or standard output (ir/base/os_output.h says what is written to
 * and what is refused), or as a copy laid out as a cache directory.
 */
#include "cache/cli/digest.h"
#include "cache/cli/entries.h"
#include "cache/packfile.h"
#include "ir/base/os.h"
#include "ir/base/os_output.h"
#include "ir/base/os_term.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct Export {
    Cli *cli;
    Store store;
    PackItem *items; /* those that were asked for and are whole */
    uint32_t n, damaged;
    uint64_t bytes;
    bool standard; /* the pack itself is on standard output */
    char sha256[DIGEST_HEX + 1];
} Export;

/* Is it one of the entries that were asked for, by key? */
static bool is_named(const Cli *cli, const DiskItem *item)
{
    for (uint32_t k = 1; k < cli->n_args; k++)
        if (strncmp(item->name, cli->args[k], strlen(cli->args[k])) == 0)
            return true;
    return cli->n_args == 1;
}

static Status choose_one(Export *export, const DiskItem *item, Arena *arena)
{
    Entry entry;
    TRY(entry_open(export->cli, &export->store, item, arena, &entry));
    if (entry.damage) {
        complain("%s is left out: %s", item->name, entry.damage);
        export->damaged++;
    } else if (entry_wanted(export->cli, &entry)) {
        PackItem *out = &export->items[export->n++];
        *out = (PackItem){.bytes = entry.view.n_bytes, .sum = hash128(entry.view.bytes, entry.view.n_bytes)};
        memcpy(out->name, item->name, sizeof out->name);
        export->bytes += out->bytes;
    }
    return ST_OK;
}

/* Reads every entry that was asked for and keeps those that are whole. */
static int choose(Export *export)
{
    Cli *cli = export->cli;
    export->items = ARENA_ARRAY(cli->arena, PackItem, export->store.n);
    for (uint32_t k = 1; k < cli->n_args; k++) { /* each key must name one */
        int status = END_FINE;
        if (!store_find(cli, &export->store, cli->args[k], &status))
            return status;
    }
    ProgressLine line = cli_progress();
    for (uint32_t i = 0; i < export->store.n; i++) {
        Arena arena;
        progress_line_step(&line, "export: read", i, export->store.n);
        if (!is_named(cli, &export->store.items[i]))
            continue;
        arena_init(&arena, cli->arena->oom);
        Status status = choose_one(export, &export->store.items[i], &arena);
        arena_free(&arena);
        if (status != ST_OK)
            return complain_last(status);
    }
    progress_line_clear();
    if (export->n)
        return -1;
    complain("nothing to export from %s", export->store.path);
    return END_FOUND;
}

/* One entry once more, as it was when it was chosen. */
static Status read_again(const Export *export, const PackItem *item, Arena *arena, const void **bytes)
{
    size_t n = 0;
    TRY(disk_read(export->store.disk, item->name, arena, bytes, &n));
    Hash128 now = *bytes ? hash128(*bytes, n) : (Hash128){0};
    if (!*bytes || n != item->bytes || now.lo != item->sum.lo || now.hi != item->sum.hi)
        return fail(ST_IO, "%s changed while it was exported; try again", item->name);
    return ST_OK;
}

/* ---- a pack ---- */

typedef struct Sink {
    OsOutput output;
    Digest *digest;
} Sink;

static Status put(Sink *sink, const void *bytes, size_t n)
{
    digest_add(sink->digest, bytes, n);
    return fwrite(bytes, 1, n, sink->output.file) == n ? ST_OK : fail(ST_IO, "cannot write the pack: %s", strerror(errno));
}

static Status put_all(Export *export, Sink *sink)
{
    static const char zeros[8];
    Bytes index = {0};
    Status status = packfile_index(export->items, export->n, &index);
    if (status == ST_OK)
        status = put(sink, index.at, index.n);
    os_free(index.at);
    ProgressLine line = cli_progress();
    for (uint32_t i = 0; i < export->n && status == ST_OK; i++) {
        const PackItem *item = &export->items[i];
        progress_line_step(&line, "export: write", i, export->n);
        const void *bytes = NULL;
        Arena arena;
        arena_init(&arena, export->cli->arena->oom);
        status = read_again(export, item, &arena, &bytes);
        if (status == ST_OK)
            status = put(sink, bytes, item->bytes);
        if (status == ST_OK)
            status = put(sink, zeros, packfile_gap(item->bytes));
        arena_free(&arena);
    }
    progress_line_clear();
    return status;
}

static Status write_pack(Export *export, const char *path)
{
    Sink sink = {.digest = NULL};
    TRY(digest_begin(&sink.digest));
    Status status = os_output_open(path, pack_magic, sizeof pack_magic, &sink.output);
    if (status == ST_OK) {
        export->standard = sink.output.standard;
        status = put_all(export, &sink);
        if (status == ST_OK) {
            status = os_output_close(&sink.output, true);
        } else { /* closing must not change what is said */
            const char *cause = arena_strdup(export->cli->arena, fail_message());
            (void)os_output_close(&sink.output, false);
            status = fail(status, "%s", cause);
        }
    }
    digest_end(sink.digest, export->sha256);
    return status;
}

/* ---- a directory ---- */

static Status copy_all(Export *export, const char *path)
{
    Disk *to = NULL;
    TRY(disk_open_to_fill(path, &to));
    Status status = ST_OK;
    ProgressLine line = cli_progress();
    for (uint32_t i = 0; i < export->n && status == ST_OK; i++) {
        const void *bytes = NULL;
        Arena arena;
        progress_line_step(&line, "export: write", i, export->n);
        arena_init(&arena, export->cli->arena->oom);
        status = read_again(export, &export->items[i], &arena, &bytes);
        if (status == ST_OK)
            status = disk_publish(to, export->items[i].name, bytes, export->items[i].bytes, true);
        arena_free(&arena);
    }
    progress_line_clear();
    disk_close(to);
    return status;
}

/* ---- the verb ---- */

static int print_export(Export *export, const char *path)
{
    Cli *cli = export->cli;
    int end = export->damaged ? END_FOUND : END_FINE;
    if (!flag_on(cli, FLAG_JSON)) {
        FILE *to = export->standard ? stderr : stdout;
        fprintf(to, "%u %s (%s) to %s\n", export->n, export->n == 1 ? "entry" : "entries", size_text(cli->arena, export->bytes), path);
        if (export->sha256[0])
            fprintf(to, "sha256 %s\n", export->sha256);
        return end;
    }
    json_t *root = json_object();
    js_set(cli, root, "path", js_text(path));
    js_set(cli, root, "entries", json_integer(export->n));
    js_set(cli, root, "bytes", json_integer((json_int_t) export->bytes));
    js_set(cli, root, "damaged", json_integer(export->damaged));
    js_set(cli, root, "sha256", js_text(export->sha256[0] ? export->sha256 : NULL));
    int printed = js_print(cli, root);
    return printed == END_FINE ? end : printed;
}

int cmd_EXPORT(Cli *cli)
{
    Export export = {.cli = cli};
    const char *path = cli->args[0];
    if (flag_on(cli, FLAG_JSON) && os_is_standard_output(path)) {
        complain("--json and the pack cannot both go to standard output: name a file or a pipe");
        return END_USAGE;
    }
    int end = store_open(cli, false, &export.store);
    if (end < 0)
        end = choose(&export);
    if (end < 0) {
        Status status = names_folder(path) ? copy_all(&export, path) : write_pack(&export, path);
        end = status == ST_OK ? -1 : complain_last(status);
    }
    store_close(&export.store);
    return end >= 0 ? end : print_export(&export, path);
}

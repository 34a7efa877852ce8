/*
 * `kiln cache import`: entries from a pack (cache/packfile.h) or another cache directory.
 *
 * What is in them is code, and nothing in a pack can prove who made it. So in this order: the whole file is read once; its SHA-256 must be
 * the one that was asked for; the person agrees; only then is a byte of it believed, and a cache directory made.
 *
 * Then each entry is parsed whole, must have the name that its content gives it, and must be one that this library on this machine would
 * find: entry format, version, LLVM, target, CPU and features as the command sees them; the build, and the GPUs for entries that are for
 * one, as the library last wrote them into the file `info`. Options are left alone: entries for another KILN_MATH are as good here as there.
 */
#include "cache/cli/compare.h"
#include "cache/cli/digest.h"
#include "cache/cli/entries.h"
#include "cache/maker.h"
#include "cache/packfile.h"
#include "ir/base/os.h"
#include "ir/base/os_term.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- where from ---- */

typedef struct Source {
    const char *path;
    uint32_t n;
    uint64_t bytes;
    Bytes file; /* a pack: all of it */
    Packfile pack;
    Disk *disk; /* a directory */
    DiskItem *items;
    char sha256[DIGEST_HEX + 1]; /* "": a directory */
} Source;

typedef struct SourceEntry {
    const char *name;
    const void *bytes; /* NULL: it is gone */
    size_t n;
    const char *damage; /* NULL: none was found so far */
} SourceEntry;

/* The file up to the length that its header claims and one byte more, so that what is longer is seen. Memory grows with what comes, not
 * with what is claimed. */
static Status read_pack(FILE *file, Bytes *out)
{
    char chunk[1 << 16];
    uint64_t size = PACK_HEADER_BYTES;
    bool sized = false;
    while (!out->failed) {
        uint64_t left = size - out->n + sized;
        size_t n = fread(chunk, 1, left < sizeof chunk ? (size_t)left : sizeof chunk, file);
        bytes_add(out, chunk, n);
        if (!sized && out->n == PACK_HEADER_BYTES) {
            TRY(packfile_begins(out->at, out->n, &size));
            if (size < PACK_HEADER_BYTES)
                return fail(ST_FORMAT, "its header is damaged");
            sized = true;
        }
        if (n == 0 || out->n > size)
            break;
    }
    if (out->failed)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    return ferror(file) ? fail(ST_IO, "%s", strerror(errno)) : sized ? ST_OK : packfile_begins(out->at, out->n, &size);
}

static Status check_digest(const Cli *cli, Source *source)
{
    Digest *digest;
    const char *wanted = cli->flag[FLAG_SHA256];
    TRY(digest_begin(&digest));
    digest_add(digest, source->file.at, source->file.n);
    digest_end(digest, source->sha256);
    for (int i = 0; wanted && i < DIGEST_HEX; i++)
        if (tolower((unsigned char)wanted[i]) != source->sha256[i])
            return fail(ST_INVALID, "its SHA-256 is %s, not %s: this is not the pack that you asked for", source->sha256, wanted);
    return ST_OK;
}

static Status open_pack(Cli *cli, Source *source)
{
    bool standard = strcmp(source->path, "-") == 0;
    FILE *file = standard ? stdin : fopen(source->path, "rb");
    Status status = file ? read_pack(file, &source->file) : fail(ST_IO, "%s", strerror(errno));
    if (file && !standard)
        fclose(file);
    if (status == ST_OK)
        status = check_digest(cli, source);
    if (status == ST_OK)
        status = packfile_parse(source->file.at, source->file.n, cli->arena, &source->pack);
    source->n = source->pack.n;
    for (uint32_t i = 0; status == ST_OK && i < source->n; i++)
        source->bytes += source->pack.items[i].bytes;
    return status;
}

static Status open_folder(Cli *cli, Source *source)
{
    TRY(disk_open(source->path, false, false, &source->disk));
    TRY(disk_list(source->disk, "", cli->arena, &source->items, &source->n));
    for (uint32_t i = 0; i < source->n; i++)
        source->bytes += source->items[i].bytes;
    return ST_OK;
}

static Status source_open(Cli *cli, const char *path, Source *source)
{
    *source = (Source){.path = path};
    Status status = names_folder(path) ? open_folder(cli, source) : open_pack(cli, source);
    if (status == ST_OK || names_folder(path))
        return status;
    const char *cause = arena_strdup(cli->arena, fail_message());
    return fail(status, status == ST_INVALID ? "%s: %s" : "cannot read %s: %s", path, cause);
}

static void source_close(Source *source)
{
    os_free(source->file.at);
    if (source->disk)
        disk_close(source->disk);
}

/* ST_IO; damage is no failure. */
static Status source_read(const Source *source, uint32_t i, Arena *arena, SourceEntry *out)
{
    *out = (SourceEntry){.name = source->disk ? source->items[i].name : source->pack.items[i].name};
    Status status;
    if (source->disk) {
        status = disk_read(source->disk, out->name, arena, &out->bytes, &out->n);
    } else {
        out->n = source->pack.items[i].bytes;
        status = packfile_entry(&source->pack, i, &out->bytes);
    }
    if (status != ST_FORMAT)
        return status;
    out->damage = arena_strdup(arena, fail_message());
    return ST_OK;
}

/* ---- what is taken ---- */

typedef struct Import {
    Cli *cli;
    Disk *disk;        /* to; NULL: dry run into a directory that is not there */
    const char *maker; /* what this machine and this library are, as key lines */
    size_t maker_bytes;
    const char *info;              /* what the library found of GPUs is in it */
    const char *sha256;            /* of the pack; NULL: a directory */
    bool build_known, gpu_unknown; /* gpu_unknown: an entry for a GPU was met, and nobody has used one here */
    uint32_t taken, present, refused;
    json_t *list;
} Import;

static bool is_option(const char *name)
{
    for (int id = 0; id < OPT_COUNT; id++)
        if (strcmp(option_name((OptionId)id), name) == 0)
            return true;
    return false;
}

/* Why no GPU here runs code for that one (maker_device); NULL: one does, or it is not known which
 * there are. */
static const char *gpu_refusal(Import *import, const char *made_for, Arena *arena)
{
    static const char ending[] = ".code";
    size_t room = sizeof ending - 1;
    const char *here = NULL;
    KeyLine line;
    for (const char *at = import->info; info_next(&at, &line);) {
        if (strncmp(line.name, "cuda:", 5) != 0 || line.name_bytes < room || memcmp(line.name + line.name_bytes - room, ending, room) != 0)
            continue;
        here = arena_printf(arena, "%.*s", (int)line.n, line.bytes);
        if (strcmp(here, made_for) == 0)
            return NULL;
    }
    if (here)
        return arena_printf(arena, "GPU: %s there, %s here", made_for, here);
    import->gpu_unknown = true;
    return NULL;
}

/* Why the library here would never use the entry; NULL: it would. */
static const char *refusal(Import *import, const Entry *entry, Arena *arena)
{
    LineDiff *lines;
    Str gpu;
    const KeyText *key = &entry->view.key;
    if (entry->damage)
        return entry->damage;
    if (flag_on(import->cli, FLAG_FOREIGN))
        return NULL;
    str_init(&gpu, arena);
    bool for_gpu = maker_device(key->maker, key->maker_bytes, &gpu);
    uint32_t n = diff_lines(key->maker, key->maker_bytes, import->maker, import->maker_bytes, arena, &lines);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = lines[i].name;
        if (is_option(name) || (strcmp(name, "build") == 0 && !import->build_known) || (for_gpu && maker_of_machine(name)))
            continue;
        return arena_printf(arena, "%s: %s", name, diff_text(&lines[i], "there", "here", arena));
    }
    return for_gpu ? gpu_refusal(import, gpu.text, arena) : NULL;
}

static void report(Import *import, const char *name, const char *what, const char *why, Arena *arena)
{
    Cli *cli = import->cli;
    if (flag_on(cli, FLAG_JSON)) {
        json_t *row = json_object();
        js_set(cli, row, "entry", js_text(name));
        js_set(cli, row, "result", js_text(what));
        js_set(cli, row, "reason", js_text(why));
        js_push(cli, import->list, row);
    } else if (why) {
        complain("%s %s: %s", what, name, arena_strdup(arena, why));
    }
}

/* Is an entry of this name there already? */
static Status is_present(Import *import, const char *name, Arena *arena, bool *present)
{
    DiskItem *items;
    uint32_t n = 0;
    if (import->disk)
        TRY(disk_list(import->disk, name, arena, &items, &n));
    *present = n > 0;
    return ST_OK;
}

/* One entry as bytes: checked, then published, or refused with the reason. A failure is one of the
 * directory. */
static Status import_one(Import *import, const SourceEntry *given, Arena *arena)
{
    DiskItem item = {.bytes = given->n};
    memcpy(item.name, given->name, sizeof item.name);
    Entry entry = {.item = &item, .key = item.name, .damage = given->damage};
    bool present = false;
    if (!entry.damage)
        entry_examine(given->bytes, given->n, arena, &entry);
    const char *why = refusal(import, &entry, arena);
    if (why) {
        import->refused++;
        report(import, item.name, "refused", why, arena);
        return ST_OK;
    }
    TRY(is_present(import, item.name, arena, &present));
    if (!present && !flag_on(import->cli, FLAG_DRY_RUN))
        TRY(disk_publish(import->disk, item.name, given->bytes, given->n, false));
    import->present += present;
    import->taken += !present;
    report(import, item.name, present ? "present" : "taken", NULL, arena);
    return ST_OK;
}

static Status import_all(Import *import, const Source *source)
{
    Status status = ST_OK;
    ProgressLine line = cli_progress();
    for (uint32_t i = 0; i < source->n && status == ST_OK; i++) {
        Arena arena;
        SourceEntry entry;
        progress_line_step(&line, "import", i, source->n);
        arena_init(&arena, import->cli->arena->oom);
        status = source_read(source, i, &arena, &entry);
        if (status == ST_OK && (entry.damage || entry.bytes))
            status = import_one(import, &entry, &arena);
        arena_free(&arena);
    }
    progress_line_clear();
    return status;
}

/* Who this is: the command's own view of CPU and LLVM, and the library's build where it left word
 * of it. */
static Status learn_maker(Import *import)
{
    Cli *cli = import->cli;
    JitOptions options = {.value = {0}};
    Str own, maker;
    const char *info = NULL, *build = NULL;
    size_t n = 0;
    options_snapshot(&options);
    str_init(&own, cli->arena);
    str_init(&maker, cli->arena);
    maker_text(&options, &own);
    if (import->disk)
        TRY(disk_text(import->disk, "info", cli->arena, &info));
    KeyLine line;
    import->info = info ? info : "";
    for (const char *at = import->info; info_next(&at, &line);)
        if (line.name_bytes == strlen("build") && memcmp(line.name, "build", line.name_bytes) == 0) {
            build = line.bytes;
            n = line.n;
        }
    import->build_known = build != NULL;
    for (const char *at = own.text; key_line_next(&at, own.text + own.len, &line);) {
        const char *name = arena_printf(cli->arena, "%.*s", (int)line.name_bytes, line.name);
        bool is_build = strcmp(name, "build") == 0;
        if (!is_build || build)
            key_line_add(&maker, name, is_build ? build : line.bytes, is_build ? n : line.n);
    }
    import->maker = maker.text;
    import->maker_bytes = maker.len;
    return ST_OK;
}

static int print_import(Import *import, const char *path)
{
    Cli *cli = import->cli;
    int end = import->refused ? END_FOUND : END_FINE;
    if (!flag_on(cli, FLAG_JSON)) {
        json_decref(import->list);
        printf("%s %u, present already %u, refused %u\n", flag_on(cli, FLAG_DRY_RUN) ? "would take" : "taken", import->taken,
               import->present, import->refused);
        if (!import->build_known && !flag_on(cli, FLAG_FOREIGN) && import->taken)
            complain("the library's build was not checked: no program has used this cache "
                     "directory yet");
        if (import->gpu_unknown && import->taken)
            complain("entries for a GPU were not checked against one: no program has used a GPU "
                     "with this cache directory yet");
        return end;
    }
    json_t *root = json_object();
    js_set(cli, root, "path", js_text(path));
    js_set(cli, root, "sha256", js_text(import->sha256));
    js_set(cli, root, "taken", json_integer(import->taken));
    js_set(cli, root, "present", json_integer(import->present));
    js_set(cli, root, "refused", json_integer(import->refused));
    js_set(cli, root, "build_checked", json_boolean(import->build_known));
    js_set(cli, root, "gpu_checked", json_boolean(!import->gpu_unknown));
    js_set(cli, root, "entries", import->list);
    int printed = js_print(cli, root);
    return printed == END_FINE ? end : printed;
}

/* ---- may it? ---- */

/* Is there somebody to ask, or was it said already? Before anything is read. */
static bool may_begin(const Cli *cli)
{
    bool from_input = strcmp(cli->args[0], "-") == 0;
    if (flag_on(cli, FLAG_YES) || flag_on(cli, FLAG_DRY_RUN) || (!from_input && os_is_terminal(stdin)))
        return true;
    complain(
        "a pack is code, which your programs will run as you, and there is no terminal to ask at: where you trust who made it say --yes "
        "(--sha256=HEX besides takes only the pack with that digest, which `kiln cache export` prints)");
    return false;
}

static bool agreed(Cli *cli, const Source *source, const char *dir)
{
    if (flag_on(cli, FLAG_YES) || flag_on(cli, FLAG_DRY_RUN) || !source->n)
        return true;
    complain("%s: %u %s (%s)%s%s", source->path, source->n, source->n == 1 ? "entry" : "entries", size_text(cli->arena, source->bytes),
             source->sha256[0] ? ", sha256 " : "", source->sha256);
    complain(
        "this is code: your programs will run it as you, from %s. Whoever made it could do anything that you can; its checksums do not "
        "say who that was",
        dir);
    return ask("import it?");
}

static int import_from(Cli *cli, const Source *source, const char *dir)
{
    bool dry_run = flag_on(cli, FLAG_DRY_RUN);
    Import import = {.cli = cli, .sha256 = source->sha256[0] ? source->sha256 : NULL};
    if (!agreed(cli, source, dir)) {
        complain("nothing was imported");
        return END_FOUND;
    }
    Status status = ST_OK;
    if (!dry_run)
        status = disk_open_to_fill(dir, &import.disk);
    else if (os_path_exists(dir))
        status = disk_open(dir, false, false, &import.disk);
    if (status == ST_OK)
        status = learn_maker(&import);
    import.list = json_array();
    if (status == ST_OK)
        status = import_all(&import, source);
    if (import.disk)
        disk_close(import.disk);
    if (status == ST_OK)
        return print_import(&import, source->path);
    json_decref(import.list);
    return complain_last(status);
}

int cmd_IMPORT(Cli *cli)
{
    Source source;
    const char *dir = store_path(cli);
    if (!dir)
        return END_TROUBLE;
    if (!may_begin(cli))
        return END_USAGE;
    if (flag_on(cli, FLAG_SHA256) && names_folder(cli->args[0])) {
        complain("--sha256 pins a pack, and %s is a directory", cli->args[0]);
        return END_USAGE;
    }
    Status status = source_open(cli, cli->args[0], &source);
    int end = status == ST_OK ? import_from(cli, &source, dir) : complain_last(status);
    source_close(&source);
    return status == ST_INVALID ? END_FOUND : end;
}

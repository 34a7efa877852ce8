/*
 * `kiln cache export` and `import`: entries to and from a bundle (bundle.h) or another cache
 * directory.
 *
 * An import believes nothing: each entry is parsed whole, must have the name that its content gives
 * it, and must be one that this library on this machine would find: entry format, version, LLVM,
 * target, CPU and features as the command sees them; the build, and the GPUs for entries that are
 * for one, as the library last wrote them into the file `info`. Options are left alone: entries for
 * another KILN_MATH are as good here as there.
 */
#include "cache/cli/bundle.h"
#include "cache/cli/compare.h"
#include "cache/maker.h"
#include "ir/base/os_term.h"

#include <stdio.h>
#include <string.h>

static bool is_folder_path(const char *path)
{
    size_t n = strlen(path);
    return (n && path[n - 1] == '/') || os_is_folder(path);
}

/* ---- export ---- */

typedef struct Chosen {
    const DiskItem **items;
    Hash128 *sums;
    uint32_t n, damaged;
    uint64_t bytes;
} Chosen;

/* Is it one of the entries that were asked for, by key? */
static bool is_named(const Cli *cli, const DiskItem *item)
{
    for (uint32_t k = 1; k < cli->n_args; k++)
        if (strncmp(item->name, cli->args[k], strlen(cli->args[k])) == 0)
            return true;
    return cli->n_args == 1;
}

/* Reads every entry that was asked for and keeps those that are whole. */
static int choose(Cli *cli, const Store *store, Chosen *out)
{
    *out = (Chosen){.items = ARENA_ARRAY(cli->arena, const DiskItem *, store->n), .sums = ARENA_ARRAY(cli->arena, Hash128, store->n)};
    for (uint32_t k = 1; k < cli->n_args; k++) { /* each key must name one */
        int status = END_FINE;
        if (!store_find(cli, store, cli->args[k], &status))
            return status;
    }
    for (uint32_t i = 0; i < store->n; i++) {
        Entry entry;
        Arena arena;
        if (!is_named(cli, &store->items[i]))
            continue;
        arena_init(&arena, cli->arena->oom);
        Status status = entry_open(cli, store, &store->items[i], &arena, &entry);
        if (status == ST_OK && entry.damage) {
            complain("%s is left out: %s", store->items[i].name, entry.damage);
            out->damaged++;
        } else if (status == ST_OK && entry_wanted(cli, &entry)) {
            out->sums[out->n] = hash128(entry.view.bytes, entry.view.n_bytes);
            out->bytes += entry.view.n_bytes;
            out->items[out->n++] = &store->items[i];
        }
        arena_free(&arena);
        if (status != ST_OK)
            return complain_last(status);
    }
    return -1;
}

/* Copies the entries to a cache directory, which is made. */
static Status copy_all(Cli *cli, const Store *store, const Chosen *chosen, const char *path)
{
    Disk *to = NULL;
    TRY(disk_open(path, true, true, &to));
    Status status = ST_OK;
    for (uint32_t i = 0; i < chosen->n && status == ST_OK; i++) {
        const void *bytes = NULL;
        size_t n = 0;
        Arena arena;
        arena_init(&arena, cli->arena->oom);
        status = disk_read(store->disk, chosen->items[i]->name, &arena, &bytes, &n);
        if (status == ST_OK && bytes)
            status = disk_publish(to, chosen->items[i]->name, bytes, n, true);
        arena_free(&arena);
    }
    disk_close(to);
    return status;
}

int cmd_EXPORT(Cli *cli)
{
    Store store;
    Chosen chosen;
    const char *path = cli->args[0];
    int end = store_open(cli, false, &store);
    if (end < 0)
        end = choose(cli, &store, &chosen);
    if (end < 0 && !chosen.n) {
        complain("nothing to export from %s", store.path);
        end = END_FOUND;
    }
    if (end < 0) {
        Status status = is_folder_path(path) ? copy_all(cli, &store, &chosen, path)
                                             : bundle_write(cli, &store, chosen.items, chosen.sums, chosen.n, path);
        end = status == ST_OK ? -1 : complain_last(status);
    }
    store_close(&store);
    if (end >= 0)
        return end;
    end = chosen.damaged ? END_FOUND : END_FINE;
    if (!flag_on(cli, FLAG_JSON)) {
        printf("%u %s (%s) to %s\n", chosen.n, chosen.n == 1 ? "entry" : "entries", size_text(cli->arena, chosen.bytes), path);
        return end;
    }
    json_t *root = json_object();
    js_set(cli, root, "path", js_text(path));
    js_set(cli, root, "entries", json_integer(chosen.n));
    js_set(cli, root, "bytes", json_integer((json_int_t)chosen.bytes));
    js_set(cli, root, "damaged", json_integer(chosen.damaged));
    int printed = js_print(cli, root);
    return printed == END_FINE ? end : printed;
}

/* ---- import ---- */

typedef struct Import {
    Cli *cli;
    Disk *disk;        /* to; NULL: dry run into a directory that is not there */
    const char *maker; /* what this machine and this library are, as key lines */
    size_t maker_bytes;
    const char *info;              /* what the library found of GPUs is in it */
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
static Status import_one(Import *import, const DiskItem *item, const void *bytes, size_t n, const char *damage, Arena *arena)
{
    Entry entry = {.item = item, .key = item->name, .damage = damage};
    bool present = false;
    if (!damage)
        entry_examine(bytes, n, arena, &entry);
    const char *why = refusal(import, &entry, arena);
    if (why) {
        import->refused++;
        report(import, item->name, "refused", why, arena);
        return ST_OK;
    }
    TRY(is_present(import, item->name, arena, &present));
    if (!present && !flag_on(import->cli, FLAG_DRY_RUN))
        TRY(disk_publish(import->disk, item->name, bytes, n, false));
    import->present += present;
    import->taken += !present;
    report(import, item->name, present ? "present" : "taken", NULL, arena);
    return ST_OK;
}

static Status import_bundle(Import *import, const char *path)
{
    Bundle bundle;
    TRY(bundle_open(import->cli, path, &bundle));
    Status status = ST_OK;
    for (uint32_t i = 0; i < bundle.n && status == ST_OK; i++) {
        Arena arena;
        const void *bytes = NULL;
        arena_init(&arena, import->cli->arena->oom);
        status = bundle_read(&bundle, i, &arena, &bytes);
        const char *damage = status == ST_FORMAT ? arena_strdup(&arena, fail_message()) : NULL;
        if (status == ST_OK || damage)
            status = import_one(import, &bundle.items[i].item, bytes, bundle.items[i].item.bytes, damage, &arena);
        arena_free(&arena);
    }
    bundle_close(&bundle);
    return status;
}

static Status import_folder(Import *import, const char *path)
{
    Disk *from = NULL;
    DiskItem *items = NULL;
    uint32_t n_items = 0;
    TRY(disk_open(path, false, false, &from));
    Status status = disk_list(from, "", import->cli->arena, &items, &n_items);
    for (uint32_t i = 0; i < n_items && status == ST_OK; i++) {
        Arena arena;
        const void *bytes = NULL;
        size_t n = 0;
        arena_init(&arena, import->cli->arena->oom);
        status = disk_read(from, items[i].name, &arena, &bytes, &n);
        const char *damage = status == ST_FORMAT ? arena_strdup(&arena, fail_message()) : NULL;
        if (damage || (status == ST_OK && bytes))
            status = import_one(import, &items[i], bytes, n, damage, &arena);
        arena_free(&arena);
    }
    disk_close(from);
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
    js_set(cli, root, "taken", json_integer(import->taken));
    js_set(cli, root, "present", json_integer(import->present));
    js_set(cli, root, "refused", json_integer(import->refused));
    js_set(cli, root, "build_checked", json_boolean(import->build_known));
    js_set(cli, root, "gpu_checked", json_boolean(!import->gpu_unknown));
    js_set(cli, root, "entries", import->list);
    int printed = js_print(cli, root);
    return printed == END_FINE ? end : printed;
}

int cmd_IMPORT(Cli *cli)
{
    char path[4096];
    Import import = {.cli = cli};
    const char *dir = cli->flag[FLAG_DIR];
    bool dry_run = flag_on(cli, FLAG_DRY_RUN);
    if (!dir && !disk_default_path(path, sizeof path)) {
        complain("there is no cache directory: neither KILN_CACHE_DIR nor XDG_CACHE_HOME nor HOME "
                 "is set");
        return END_TROUBLE;
    }
    dir = dir ? dir : path;
    Status status = ST_OK;
    if (!dry_run || os_path_exists(dir))
        status = disk_open(dir, !dry_run, !dry_run, &import.disk);
    if (status == ST_OK)
        status = learn_maker(&import);
    import.list = json_array();
    if (status == ST_OK)
        status = is_folder_path(cli->args[0]) ? import_folder(&import, cli->args[0]) : import_bundle(&import, cli->args[0]);
    if (import.disk)
        disk_close(import.disk);
    if (status == ST_OK)
        return print_import(&import, cli->args[0]);
    json_decref(import.list);
    return complain_last(status);
}

/* Keeping the directory in order: `path`, `verify`, `prune`, `clear`. */
#include "cache/cli/entries.h"
#include "ir/base/os_term.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int cmd_PATH(Cli *cli)
{
    const char *dir = store_path(cli);
    if (!dir)
        return END_TROUBLE;
    if (!flag_on(cli, FLAG_JSON)) {
        puts(dir);
        return END_FINE;
    }
    json_t *root = json_object();
    js_set(cli, root, "directory", js_text(dir));
    js_set(cli, root, "exists", json_boolean(os_path_exists(dir)));
    return js_print(cli, root);
}

/* ---- verify ---- */

typedef struct Damage {
    uint32_t good, damaged, removed, unreadable, other_format;
    DiskLeftovers left;
    json_t *list;
} Damage;

/* One entry: what is wrong is said and, with --delete, removed. */
static void verify_one(Cli *cli, const Store *store, const DiskItem *item, Damage *found)
{
    Arena arena;
    Entry entry;
    arena_init(&arena, cli->arena->oom);
    Status status = entry_open(cli, store, item, &arena, &entry);
    const char *what = status != ST_OK ? fail_message() : entry.damage;
    bool removed = false;
    if (!what || (status == ST_OK && entry.other_format)) {
        found->good += !what;
        found->other_format += what != NULL;
        arena_free(&arena);
        return;
    }
    found->damaged += status == ST_OK;
    found->unreadable += status != ST_OK;
    what = arena_strdup(&arena, what);
    if (status == ST_OK && flag_on(cli, FLAG_DELETE)) {
        removed = disk_remove(store->disk, item->name) == ST_OK;
        if (!removed)
            complain_last(ST_IO);
        found->unreadable += !removed;
        found->removed += removed;
    }
    progress_line_clear();
    if (flag_on(cli, FLAG_JSON)) {
        json_t *row = json_object();
        js_set(cli, row, "entry", js_text(item->name));
        js_set(cli, row, "damage", js_text(what));
        js_set(cli, row, "removed", json_boolean(removed));
        js_push(cli, found->list, row);
    } else {
        style_begin(cli, STYLE_BAD);
        fputs(status == ST_OK ? "damaged" : "unreadable", stdout);
        style_end(cli);
        printf("  %s  ", item->name);
        print_text(what, strlen(what));
        puts(removed ? "  (removed)" : "");
    }
    arena_free(&arena);
}

/* Files that were being written: a fresh one may be somebody's at work. */
static void print_leftovers(Cli *cli, const DiskLeftovers *left)
{
    if (!left->n)
        return;
    printf("%u temporar%s (%s)", left->n, left->n == 1 ? "y" : "ies", size_text(cli->arena, left->bytes));
    if (left->removed)
        printf(", %u left by a writer that failed, removed", left->removed);
    if (left->stale > left->removed)
        printf(", %u left by a writer that failed (--delete removes it)", left->stale - left->removed);
    putchar('\n');
}

int cmd_VERIFY(Cli *cli)
{
    Store store;
    int end = store_open(cli, flag_on(cli, FLAG_DELETE), &store);
    if (end >= 0)
        return end;
    Damage found = {.list = json_array()};
    ProgressLine line = cli_progress();
    for (uint32_t i = 0; i < store.n; i++) {
        progress_line_step(&line, "verify", i, store.n);
        verify_one(cli, &store, &store.items[i], &found);
    }
    progress_line_clear();
    if (store.disk)
        disk_leftovers(store.disk, flag_on(cli, FLAG_DELETE), &found.left);
    store_close(&store);
    end = found.unreadable ? END_TROUBLE : found.damaged ? END_FOUND : END_FINE;
    if (!flag_on(cli, FLAG_JSON)) {
        json_decref(found.list);
        printf("%u good, %u damaged", found.good, found.damaged);
        if (found.removed)
            printf(" and removed");
        if (found.other_format)
            printf(", %u of another format", found.other_format);
        if (found.unreadable)
            printf(", %u unreadable", found.unreadable);
        putchar('\n');
        print_leftovers(cli, &found.left);
        return end;
    }
    json_t *root = json_object();
    js_set(cli, root, "directory", js_text(store.path));
    js_set(cli, root, "good", json_integer(found.good));
    js_set(cli, root, "damaged", json_integer(found.damaged));
    js_set(cli, root, "removed", json_integer(found.removed));
    js_set(cli, root, "other_format", json_integer(found.other_format));
    js_set(cli, root, "unreadable", json_integer(found.unreadable));
    js_set(cli, root, "temporaries", json_integer(found.left.n));
    js_set(cli, root, "temporary_bytes", json_integer((json_int_t)found.left.bytes));
    js_set(cli, root, "temporaries_stale", json_integer(found.left.stale));
    js_set(cli, root, "temporaries_removed", json_integer(found.left.removed));
    js_set(cli, root, "entries", found.list);
    int printed = js_print(cli, root);
    return printed == END_FINE ? end : printed;
}

/* ---- prune and clear ---- */

static int print_prune(Cli *cli, const Store *store, const DiskPrune *done, bool dry_run)
{
    if (flag_on(cli, FLAG_JSON)) {
        json_t *root = json_object();
        js_set(cli, root, "directory", js_text(store->path));
        js_set(cli, root, "dry_run", json_boolean(dry_run));
        js_set(cli, root, "removed", json_integer(done->removed));
        js_set(cli, root, "removed_bytes", json_integer((json_int_t)done->removed_bytes));
        js_set(cli, root, "kept", json_integer(done->kept));
        js_set(cli, root, "kept_bytes", json_integer((json_int_t)done->kept_bytes));
        js_set(cli, root, "temporaries", json_integer(done->stale));
        return js_print(cli, root);
    }
    printf("%s %u of %u %s (%s)", dry_run ? "would remove" : "removed", done->removed, done->removed + done->kept,
           done->removed + done->kept == 1 ? "entry" : "entries", size_text(cli->arena, done->removed_bytes));
    if (done->stale)
        printf(" and %u temporar%s", done->stale, done->stale == 1 ? "y" : "ies");
    printf("; %s left\n", size_text(cli->arena, done->kept_bytes));
    return END_FINE;
}

/* Prunes to these limits, says what was done and closes the store. */
static int prune(Cli *cli, Store *store, uint64_t max_bytes, int64_t max_age, bool dry_run)
{
    DiskPrune done = {0};
    Status status = store->disk ? disk_prune(store->disk, max_bytes, max_age, dry_run, &done) : ST_OK;
    store_close(store);
    return status == ST_OK ? print_prune(cli, store, &done, dry_run) : complain_last(status);
}

int cmd_PRUNE(Cli *cli)
{
    uint64_t max_bytes = UINT64_MAX;
    int64_t max_age = 0;
    if (!flag_on(cli, FLAG_MAX_SIZE) && !flag_on(cli, FLAG_OLDER)) {
        complain("say what to keep: --max-size=SIZE, --older-than=AGE or both (`kiln cache clear` "
                 "removes everything)");
        return END_USAGE;
    }
    if (flag_on(cli, FLAG_MAX_SIZE))
        parse_size(cli->flag[FLAG_MAX_SIZE], &max_bytes);
    if (flag_on(cli, FLAG_OLDER)) {
        parse_age(cli->flag[FLAG_OLDER], &max_age);
        max_age = max_age > 0 ? max_age : 1; /* 0 means any age to disk_prune */
    }
    Store store;
    bool dry_run = flag_on(cli, FLAG_DRY_RUN);
    int end = store_open(cli, !dry_run, &store);
    return end >= 0 ? end : prune(cli, &store, max_bytes, max_age, dry_run);
}

/* Empties what the library wrote beside the entries, where there is any. */
static Status forget(Cli *cli, Disk *disk)
{
    static const char *const files[] = {"counters", "misses"};
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        const char *text = NULL;
        TRY(disk_text(disk, files[k], cli->arena, &text));
        if (text)
            TRY(disk_write_text(disk, files[k], ""));
    }
    return ST_OK;
}

int cmd_CLEAR(Cli *cli)
{
    Store store;
    bool dry_run = flag_on(cli, FLAG_DRY_RUN);
    int end = store_open(cli, !dry_run, &store);
    if (end >= 0)
        return end;
    bool asks = store.n && !dry_run && !flag_on(cli, FLAG_YES) && os_is_terminal(stdin);
    if (asks && !ask("remove %u %s from %s?", store.n, store.n == 1 ? "entry" : "entries", store.path)) {
        store_close(&store);
        complain("nothing was removed");
        return END_FOUND;
    }
    Status status = store.disk && !dry_run ? forget(cli, store.disk) : ST_OK;
    if (status == ST_OK)
        return prune(cli, &store, 0, 0, dry_run);
    store_close(&store);
    return complain_last(status);
}

/* `kiln cache stats`: what is on disk, and the sum of what processes left in the file `counters`.
 */
#include "cache/cli/entries.h"
#include "cache/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 128 };

/* Sums by name, in the order of the table, then of first use. */
typedef struct Sums {
    const char *name[MAX_NAMES];
    int64_t value[MAX_NAMES];
    uint32_t n, processes;
    int64_t first, last; /* times of the oldest and newest line */
} Sums;

static void add(Sums *sums, Arena *arena, const RecordWord *word, int64_t value)
{
    uint32_t i = 0;
    while (i < sums->n && !record_is(word, sums->name[i]))
        i++;
    if (i == MAX_NAMES)
        return;
    if (i == sums->n) {
        sums->name[sums->n++] = arena_printf(arena, "%.*s", (int)word->name_bytes, word->name);
        sums->value[i] = 0;
    }
    if (__builtin_add_overflow(sums->value[i], value, &sums->value[i]))
        sums->value[i] = INT64_MAX;
}

/* One line: a process's counters, or the hits of one entry, which belong to `kiln cache list`. */
static void add_line(Sums *sums, Arena *arena, const char *line, size_t n)
{
    const char *at = line, *end = line + n;
    RecordWord word;
    int64_t value;
    bool counted = false;
    while (record_next(&at, end, &word)) {
        if (record_is(&word, "entry"))
            return;
        if (!record_int(&word, &value))
            continue;
        counted = true;
        if (!record_is(&word, "time")) {
            add(sums, arena, &word, value);
            continue;
        }
        sums->first = sums->first && sums->first < value ? sums->first : value;
        sums->last = value > sums->last ? value : sums->last;
    }
    sums->processes += counted;
}

static Sums sum_all(const char *text, Arena *arena)
{
    Sums sums = {0};
    for (int id = 0; id < COUNTER_COUNT; id++)
        sums.name[sums.n++] = counter_name((CounterId)id);
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        add_line(&sums, arena, line, n);
        line += n + (line[n] == '\n');
    }
    return sums;
}

static const char *help_of(const char *name)
{
    static const struct {
        const char *prefix, *help;
    } groups[] = {{"miss.", "misses of this reason"}, {"refused.", "entries on disk not used for this reason"}};
    for (int id = 0; id < COUNTER_COUNT; id++)
        if (strcmp(counter_name((CounterId)id), name) == 0)
            return counter_help((CounterId)id);
    for (int reason = 0; reason < REASON_COUNT; reason++)
        if (strncmp(name, "miss.", 5) == 0 && strcmp(reason_name((Reason)reason), name + 5) == 0)
            return reason_text((Reason)reason);
    for (size_t k = 0; k < sizeof groups / sizeof *groups; k++)
        if (strncmp(name, groups[k].prefix, strlen(groups[k].prefix)) == 0)
            return groups[k].help;
    return "";
}

/* "compile_us" counts microseconds: shown as seconds. */
static bool is_time(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, "_us") == 0;
}

static void print_sums(Cli *cli, const Sums *sums)
{
    static const Column columns[] = {
        {.title = "COUNTER", .style = STYLE_KEY}, {.title = "SUM", .right = true}, {.title = "MEANING", .shrink = true}};
    Arena *arena = cli->arena;
    Table table;
    table_init(&table, arena, columns, 3);
    for (uint32_t i = 0; i < sums->n; i++) {
        const char **row = table_row(&table), *name = sums->name[i], *help = help_of(name);
        bool time = is_time(name);
        row[0] = time ? arena_printf(arena, "%.*s", (int)strlen(name) - 3, name) : name;
        row[1] = time ? seconds_text(arena, (double)sums->value[i] / 1e6) : arena_printf(arena, "%" PRId64, sums->value[i]);
        row[2] = time && strncmp(help, "microseconds", 12) == 0 ? arena_printf(arena, "time%s", help + 12) : help;
    }
    table_print(cli, &table);
}

/* All of a directory. */
typedef struct Stats {
    uint64_t bytes;
    DiskLeftovers left;
    Sums sums;
} Stats;

static Status gather(const Store *store, Arena *arena, Stats *out)
{
    const char *text = NULL;
    *out = (Stats){0};
    if (store->disk)
        disk_leftovers(store->disk, false, &out->left);
    if (store->disk)
        TRY(disk_text(store->disk, "counters", arena, &text));
    for (uint32_t i = 0; i < store->n; i++)
        out->bytes += store->items[i].bytes;
    out->sums = sum_all(text ? text : "", arena);
    return ST_OK;
}

static json_t *stats_json(Cli *cli, const Store *store, const Stats *stats)
{
    json_t *root = json_object(), *counters = json_object();
    const Sums *sums = &stats->sums;
    js_set(cli, root, "directory", js_text(store->path));
    js_set(cli, root, "entries", json_integer(store->n));
    js_set(cli, root, "bytes", json_integer((json_int_t)stats->bytes));
    js_set(cli, root, "temporaries", json_integer(stats->left.n));
    js_set(cli, root, "temporary_bytes", json_integer((json_int_t)stats->left.bytes));
    js_set(cli, root, "processes", json_integer(sums->processes));
    js_set(cli, root, "since", json_integer(sums->first));
    js_set(cli, root, "until", json_integer(sums->last));
    for (uint32_t i = 0; i < sums->n; i++)
        js_set(cli, counters, sums->name[i], json_integer(sums->value[i]));
    js_set(cli, root, "counters", counters);
    return root;
}

json_t *store_stats_json(Cli *cli, const Store *store)
{
    Stats *stats = ARENA_NEW(cli->arena, Stats);
    return gather(store, cli->arena, stats) == ST_OK ? stats_json(cli, store, stats) : NULL;
}

int cmd_STATS(Cli *cli)
{
    Store store;
    Stats *stats = ARENA_NEW(cli->arena, Stats);
    const Sums *sums = &stats->sums;
    int end = store_open(cli, false, &store);
    if (end >= 0)
        return end;
    Status status = gather(&store, cli->arena, stats);
    store_close(&store);
    if (status != ST_OK)
        return complain_last(status);
    if (flag_on(cli, FLAG_JSON))
        return js_print(cli, stats_json(cli, &store, stats));
    print_field(cli, "directory", store.path);
    print_field(cli, "entries", arena_printf(cli->arena, "%u, %s", store.n, size_text(cli->arena, stats->bytes)));
    if (stats->left.n)
        print_field(cli, "temporaries", arena_printf(cli->arena, "%u, %s", stats->left.n, size_text(cli->arena, stats->left.bytes)));
    if (sums->processes)
        print_field(cli, "processes",
                    arena_printf(cli->arena, "%u, from %s to %s", sums->processes, time_text(cli->arena, sums->first),
                                 time_text(cli->arena, sums->last)));
    else
        print_field(cli, "processes", "none has left its counters here");
    putchar('\n');
    print_sums(cli, sums);
    return END_FINE;
}

/* ---- hits of entries ---- */

static int by_name(const void *name, const void *item) { return strcmp(name, ((const DiskItem *)item)->name); }

Status store_hits(Cli *cli, const Store *store, uint64_t **hits)
{
    const char *text = NULL;
    *hits = ARENA_ARRAY(cli->arena, uint64_t, store->n);
    if (store->disk)
        TRY(disk_text(store->disk, "counters", cli->arena, &text));
    for (const char *line = text; line && *line;) {
        size_t n = strcspn(line, "\n");
        const char *at = line, *end = line + n;
        char name[ENTRY_NAME_BYTES] = "";
        int64_t value = 0, served = 0;
        RecordWord word;
        while (record_next(&at, end, &word)) {
            if (record_is(&word, "entry") && word.n < sizeof name)
                snprintf(name, sizeof name, "%.*s", (int)word.n, word.value);
            else if (record_is(&word, "hits") && record_int(&word, &value))
                served = value > 0 ? value : 0;
        }
        const DiskItem *item = store->n && *name ? bsearch(name, store->items, store->n, sizeof *store->items, by_name) : NULL;
        if (item)
            (*hits)[item - store->items] += (uint64_t)served;
        line += n + (line[n] == '\n');
    }
    return ST_OK;
}

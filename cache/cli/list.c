/* `kiln cache list`: a line per entry. */
#include "cache/cli/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a line shows; in the arena of the process, so that an entry's bytes can go at once. */
typedef struct Line {
    const DiskItem *item;
    const char *key, *name, *where, *place, *device, *cpu, *shapes, *sizes, *damage;
    uint32_t n_kernels;
    uint64_t hits;
    double compile_seconds;
    int64_t made;
    bool other_format;
} Line;

typedef int Compare(const void *a, const void *b);

#define COMPARE(field, greater)                                                                   \
    static int by_##field(const void *a_, const void *b_)                                         \
    {                                                                                             \
        const Line *a = a_, *b = b_;                                                              \
        return (greater(a, b)) ? -1 : (greater(b, a)) ? 1 : strcmp(a->item->name, b->item->name); \
    }
#define USED(a, b) (a)->item->used > (b)->item->used
#define MADE(a, b) (a)->made > (b)->made
#define KEY(a, b) strcmp((a)->item->name, (b)->item->name) < 0
#define NAME(a, b) strcmp((a)->name, (b)->name) < 0
#define DEVICE(a, b) strcmp((a)->device, (b)->device) < 0
#define KERNELS(a, b) (a)->n_kernels > (b)->n_kernels
#define SIZE(a, b) (a)->item->bytes > (b)->item->bytes
#define HITS(a, b) (a)->hits > (b)->hits
#define COMPILE(a, b) (a)->compile_seconds > (b)->compile_seconds
COMPARE(used, USED)
COMPARE(made, MADE)
COMPARE(key, KEY)
COMPARE(name, NAME)
COMPARE(device, DEVICE)
COMPARE(kernels, KERNELS)
COMPARE(size, SIZE)
COMPARE(hits, HITS)
COMPARE(compile, COMPILE)

static Compare *order(const char *name)
{
    static const struct {
        const char *name;
        Compare *compare;
    } orders[] = {{"used", by_used},       {"made", by_made}, {"key", by_key},   {"name", by_name},      {"device", by_device},
                  {"kernels", by_kernels}, {"size", by_size}, {"hits", by_hits}, {"compile", by_compile}};
    for (size_t k = 0; name && k < sizeof orders / sizeof *orders; k++)
        if (strcmp(orders[k].name, name) == 0)
            return orders[k].compare;
    return by_used;
}

/* Does an entry's file alone (size, age) let it pass? Asked before the file is read. */
static bool item_wanted(const Cli *cli, const DiskItem *item)
{
    uint64_t least = 0;
    int64_t age = 0;
    if (flag_on(cli, FLAG_MIN_BYTES))
        parse_size(cli->flag[FLAG_MIN_BYTES], &least);
    if (flag_on(cli, FLAG_OLDER))
        parse_age(cli->flag[FLAG_OLDER], &age);
    return item->bytes >= least && (!flag_on(cli, FLAG_OLDER) || cli->now - item->used >= age);
}

/* Must entries be read? Not for names alone, in an order that the files themselves tell. */
static bool needs_content(const Cli *cli)
{
    const char *sort = cli->flag[FLAG_SORT];
    bool by_file = !sort || strcmp(sort, "used") == 0 || strcmp(sort, "key") == 0 || strcmp(sort, "size") == 0;
    return !flag_on(cli, FLAG_KEYS) || flag_on(cli, FLAG_JSON) || flag_on(cli, FLAG_DEVICE) || flag_on(cli, FLAG_NAME) || !by_file;
}

static Status read_line(const Cli *cli, const Store *store, const DiskItem *item, Line *line, bool *wanted)
{
    Entry entry;
    Arena arena;
    arena_init(&arena, cli->arena->oom);
    Status status = entry_open(cli, store, item, &arena, &entry);
    *wanted = status == ST_OK && entry_wanted(cli, &entry);
    if (*wanted) {
        *line = (Line){.item = item, .key = entry.key, .name = "", .where = "", .place = "", .device = "", .cpu = "", .shapes = ""};
        if (entry.damage) {
            line->damage = arena_strdup(cli->arena, entry.damage);
            line->other_format = entry.other_format;
        } else {
            line->name = arena_strdup(cli->arena, entry.name);
            line->where = arena_strdup(cli->arena, entry.where);
            line->place = arena_strdup(cli->arena, entry.place);
            line->device = arena_strdup(cli->arena, entry.device);
            line->cpu = arena_strdup(cli->arena, entry.cpu);
            line->shapes = arena_strdup(cli->arena, entry.shapes);
            line->n_kernels = entry.view.n_kernels;
            line->compile_seconds = entry.compile_seconds;
            line->made = entry.made;
            line->sizes = entry.sizes; /* static text */
        }
    }
    arena_free(&arena);
    return status;
}

enum { LONG_NAME = 40 }; /* bytes; the place where it was needed says more than longer names of kernels */

/* "f32[8,16]" alone, "like f32[8,16]" where some size is an argument, "any" for the most general
 * program. */
static const char *shapes_text(const Line *line, Arena *arena)
{
    if (strcmp(line->sizes, "any") == 0)
        return "any";
    return strcmp(line->sizes, "vary") == 0 && *line->shapes ? arena_printf(arena, "like %s", line->shapes) : line->shapes;
}

static void print_lines(Cli *cli, const Line *lines, uint32_t n)
{
    static const Column columns[] = {
        {.title = "KEY", .style = STYLE_KEY}, {.title = "NAME", .shrink = true},   {.title = "DEVICE"},
        {.title = "SHAPES", .shrink = true},  {.title = "KERNELS", .right = true}, {.title = "SIZE", .right = true},
        {.title = "HITS", .right = true},     {.title = "USED", .right = true},    {.title = "COMPILE", .right = true},
    };
    Table table;
    Arena *arena = cli->arena;
    table_init(&table, arena, columns, sizeof columns / sizeof *columns);
    uint32_t damaged = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const Line *line = &lines[i];
        const char **row = table_row(&table);
        bytes += line->item->bytes;
        row[0] = line->key;
        row[5] = size_text(arena, line->item->bytes);
        row[7] = age_text(arena, cli->now - line->item->used);
        if (line->damage) {
            row[1] = line->other_format ? "(another format)" : "(damaged)";
            damaged += !line->other_format;
            continue;
        }
        row[1] = *line->place && strlen(line->name) > LONG_NAME ? line->place : line->name;
        row[2] = line->device;
        row[3] = shapes_text(line, arena);
        row[4] = arena_printf(arena, "%u", line->n_kernels);
        row[6] = arena_printf(arena, "%" PRIu64, line->hits);
        row[8] = seconds_text(arena, line->compile_seconds);
    }
    if (n)
        table_print(cli, &table);
    style_begin(cli, STYLE_DIM);
    printf("%u %s, %s\n", n, n == 1 ? "entry" : "entries", size_text(arena, bytes));
    style_end(cli);
    if (damaged)
        complain("%u of them damaged: `kiln cache verify` says more, with --delete it removes them", damaged);
}

static json_t *line_json(Cli *cli, const Line *line)
{
    json_t *row = json_object();
    js_set(cli, row, "key", js_text(line->key));
    js_set(cli, row, "entry", js_text(line->item->name));
    js_set(cli, row, "bytes", json_integer((json_int_t)line->item->bytes));
    js_set(cli, row, "used", json_integer(line->item->used));
    js_set(cli, row, "damage", js_text(line->damage));
    if (line->damage)
        return row;
    js_set(cli, row, "name", js_text(line->name));
    js_set(cli, row, "where", js_text(line->where));
    js_set(cli, row, "place", js_text(line->place));
    js_set(cli, row, "device", js_text(line->device));
    js_set(cli, row, "cpu", js_text(line->cpu));
    js_set(cli, row, "shapes", js_text(line->shapes));
    js_set(cli, row, "sizes", js_text(line->sizes));
    js_set(cli, row, "kernels", json_integer(line->n_kernels));
    js_set(cli, row, "hits", json_integer((json_int_t)line->hits));
    js_set(cli, row, "made", json_integer(line->made));
    js_set(cli, row, "compile_seconds", json_real(line->compile_seconds));
    return row;
}

static int print(Cli *cli, const Store *store, const Line *lines, uint32_t n)
{
    if (flag_on(cli, FLAG_JSON)) {
        json_t *root = json_object(), *rows = json_array();
        for (uint32_t i = 0; i < n; i++)
            js_push(cli, rows, line_json(cli, &lines[i]));
        js_set(cli, root, "directory", js_text(store->path));
        js_set(cli, root, "entries", rows);
        return js_print(cli, root);
    }
    for (uint32_t i = 0; flag_on(cli, FLAG_KEYS) && i < n; i++)
        puts(lines[i].item->name);
    if (!flag_on(cli, FLAG_KEYS))
        print_lines(cli, lines, n);
    return END_FINE;
}

int cmd_LIST(Cli *cli)
{
    Store store;
    int end = store_open(cli, false, &store);
    if (end >= 0)
        return end;
    Line *lines = ARENA_ARRAY(cli->arena, Line, store.n);
    uint64_t *hits = NULL;
    uint32_t n = 0;
    Status status = store_hits(cli, &store, &hits);
    bool read = needs_content(cli);
    for (uint32_t i = 0; i < store.n && status == ST_OK; i++) {
        bool wanted = item_wanted(cli, &store.items[i]);
        if (wanted && read)
            status = read_line(cli, &store, &store.items[i], &lines[n], &wanted);
        else if (wanted)
            lines[n] = (Line){.item = &store.items[i]};
        lines[n].hits = hits[i];
        n += wanted;
    }
    store_close(&store);
    if (status != ST_OK)
        return complain_last(status);
    if (n)
        qsort(lines, n, sizeof *lines, order(cli->flag[FLAG_SORT]));
    for (uint32_t i = 0; flag_on(cli, FLAG_REVERSE) && i < n / 2; i++) {
        Line other = lines[i];
        lines[i] = lines[n - 1 - i];
        lines[n - 1 - i] = other;
    }
    return print(cli, &store, lines, n);
}

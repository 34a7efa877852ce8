/* The cache directory and its entries: opening, finding by prefix, reading. Nothing here trusts a
 * byte of an entry. */
#include "cache/cli/entries.h"
#include "ir/base/os_term.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORTEST_KEY = 8, MAX_PATH = 4096, CANDIDATES = 10 };

/* ---- the directory ---- */

const char *store_path(Cli *cli)
{
    char path[MAX_PATH];
    if (cli->flag[FLAG_DIR])
        return cli->flag[FLAG_DIR];
    if (disk_default_path(path, sizeof path))
        return arena_strdup(cli->arena, path);
    complain("there is no cache directory: neither KILN_CACHE_DIR nor XDG_CACHE_HOME nor HOME is set");
    return NULL;
}

bool names_folder(const char *path)
{
    size_t n = strlen(path);
    return (n && path[n - 1] == '/') || os_is_folder(path);
}

int store_open(Cli *cli, bool writable, Store *out)
{
    *out = (Store){.path = store_path(cli)};
    if (!out->path)
        return END_TROUBLE;
    if (!cli->flag[FLAG_DIR] && !os_path_exists(out->path)) {
        if (!flag_on(cli, FLAG_JSON))
            complain("no cache yet: %s is not there", out->path);
        return -1;
    }
    Status status = disk_open(out->path, false, writable, &out->disk);
    if (status == ST_OK)
        status = disk_list(out->disk, "", cli->arena, &out->items, &out->n);
    if (status == ST_OK)
        return -1;
    store_close(out);
    return complain_last(status);
}

void store_close(Store *store)
{
    if (store->disk)
        disk_close(store->disk);
    store->disk = NULL;
}

/* A name has three parts with '-' between: graph, maker, guards. A key gives a prefix of each, or
 * leaves out the last ones. */
static bool key_fits(const char *key, const char *name)
{
    while (*key) {
        size_t n = strcspn(key, "-");
        if (strncmp(key, name, n) != 0 || strcspn(name, "-") < n)
            return false;
        key += n;
        name += strcspn(name, "-");
        if (*key && *key++ != *name++)
            return false;
    }
    return true;
}

const DiskItem *store_find(const Cli *cli, const Store *store, const char *key, int *status)
{
    uint32_t first = 0, n = 0;
    for (uint32_t i = 0; i < store->n; i++)
        if (key_fits(key, store->items[i].name)) {
            first = n ? first : i;
            n++;
        }
    *status = END_FOUND;
    if (n == 1 && *key)
        return &store->items[first];
    if (n == 0) {
        complain("there is no entry %s in %s", key, store->path);
        return NULL;
    }
    complain("%s fits %u entries:", *key ? key : "\"\"", n);
    for (uint32_t i = first, said = 0; i < store->n && said < CANDIDATES; i++)
        if (key_fits(key, store->items[i].name)) {
            fprintf(stderr, "  %s\n", store_short_key(cli, store, &store->items[i]));
            said++;
        }
    if (n > CANDIDATES)
        fprintf(stderr, "  and %u more\n", n - CANDIDATES);
    return NULL;
}

/* The place of each part in a name. */
enum { GRAPH_AT = 0, MAKER_AT = ENTRY_GRAPH_HEX + 1, GUARDS_AT = MAKER_AT + ENTRY_MAKER_HEX + 1 };

/* How many letters of the part at `from` it takes to tell an entry from its neighbours, which have
 * the same name up to there and another part; 0: no neighbour has. `to` is where the part ends. */
static size_t letters(const Store *store, size_t at, size_t from, size_t to)
{
    const char *name = store->items[at].name;
    size_t need = 0;
    for (int step = -1; step <= 1; step += 2) /* sorted: the nearest that differs is the most alike */
        for (size_t i = at + (size_t)step; i < store->n && strncmp(store->items[i].name, name, from) == 0; i += (size_t)step) {
            size_t n = 0;
            while (from + n < to && store->items[i].name[from + n] == name[from + n])
                n++;
            if (from + n == to)
                continue;
            need = n + 1 > need ? n + 1 : need;
            break;
        }
    return need;
}

/* Do other entries share its name up to `to`? */
static bool shared(const Store *store, size_t at, size_t to)
{
    const char *name = store->items[at].name;
    return (at > 0 && strncmp(store->items[at - 1].name, name, to) == 0) ||
           (at + 1 < store->n && strncmp(store->items[at + 1].name, name, to) == 0);
}

const char *store_short_key(const Cli *cli, const Store *store, const DiskItem *item)
{
    size_t at = (size_t)(item - store->items), least = 2;
    size_t graph = letters(store, at, GRAPH_AT, MAKER_AT - 1);
    graph = graph > SHORTEST_KEY ? graph : SHORTEST_KEY;
    if (!shared(store, at, MAKER_AT))
        return arena_printf(cli->arena, "%.*s", (int)graph, item->name);
    size_t maker = letters(store, at, MAKER_AT, GUARDS_AT - 1);
    maker = maker > least ? maker : least;
    if (!shared(store, at, GUARDS_AT))
        return arena_printf(cli->arena, "%.*s-%.*s", (int)graph, item->name, (int)maker, item->name + MAKER_AT);
    size_t guards = letters(store, at, GUARDS_AT, GUARDS_AT + ENTRY_GUARDS_HEX);
    guards = guards > least ? guards : least;
    return arena_printf(cli->arena, "%.*s-%.*s-%.*s", (int)graph, item->name, (int)maker, item->name + MAKER_AT, (int)guards,
                        item->name + GUARDS_AT);
}

bool info_next(const char **at, KeyLine *line)
{
    while (**at) {
        const char *from = *at, *equals = strchr(from, '=');
        size_t n = strcspn(from, "\n");
        *at = from + n + (from[n] == '\n');
        if (equals && equals < from + n) {
            *line = (KeyLine){from, equals + 1, (size_t)(equals - from), (size_t)(from + n - equals - 1)};
            return true;
        }
    }
    return false;
}

int read_text_file(Cli *cli, const char *path, size_t max, const char **text)
{
    FILE *file = fopen(path, "rb");
    size_t n = 0, cap = 1 << 16;
    char *buffer = arena_alloc(cli->arena, cap + 1);
    while (file && n < max) {
        size_t got = fread(buffer + n, 1, cap - n, file);
        n += got;
        if (!got)
            break;
        if (n == cap) {
            char *grown = arena_alloc(cli->arena, 2 * cap + 1);
            memcpy(grown, buffer, n);
            buffer = grown;
            cap *= 2;
        }
    }
    bool good = file && !ferror(file) && n < max;
    if (!good)
        complain("cannot read %s: %s", path, file && n >= max ? "it is too large" : strerror(errno));
    if (file)
        fclose(file);
    *text = buffer;
    return good ? -1 : END_TROUBLE;
}

/* ---- entries ---- */

static const char *or_else(const char *text, const char *otherwise) { return text ? text : otherwise; }

/* A line of the first part of the key as text in the arena; NULL: not there. */
static const char *entry_maker(const Entry *entry, const char *name, Arena *arena)
{
    size_t n = 0;
    const char *value = key_line_find(entry->view.key.maker, entry->view.key.maker_bytes, name, &n);
    return value ? arena_printf(arena, "%.*s", (int)n, value) : NULL;
}

/* A value of the meta lines, or `otherwise`. */
static const char *entry_meta_or(const Entry *entry, const char *name, Arena *arena, const char *otherwise)
{
    return or_else(entry_meta(&entry->view, name, arena), otherwise);
}

/* The kernels' names, each once, or what its steps do. */
static const char *kernel_names(const EntryView *view, Arena *arena)
{
    Str names;
    str_init(&names, arena);
    for (uint32_t i = 0; i < view->n_kernels; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i; k++)
            again |= strcmp(view->kernels[k].name, view->kernels[i].name) == 0;
        if (!again)
            str_printf(&names, "%s%s", names.len ? " " : "", view->kernels[i].name);
    }
    if (!names.len)
        str_printf(&names, view->plan->n_steps ? "%s" : "(nothing to compute)", view->plan->n_steps ? view->plan->steps[0].what : "");
    return names.text;
}

/* "%0: f32[8,16], %1: f32[8]" without the names. */
static const char *bare_shapes(const char *shapes, Arena *arena)
{
    Str out;
    str_init(&out, arena);
    for (const char *at = shapes; *at;) {
        size_t name = *at == '%' ? 1 + strspn(at + 1, "0123456789") : 0;
        if (name > 1 && at[name] == ':' && at[name + 1] == ' ')
            at += name + 2;
        size_t n = strcspn(at, "%");
        n += !n; /* a '%' that names nothing */
        str_add(&out, at, n);
        at += n;
    }
    return out.text;
}

/* Are all sizes that the program works with numbers that its guards fix? */
static bool sizes_fixed(const Program *plan, Arena *arena)
{
    const GuardSet *set = &plan->guards;
    bool *fixed = ARENA_ARRAY(arena, bool, set->sizes.n), all = true;
    for (uint32_t i = 0; i < set->n; i++)
        if (set->at[i].kind == GUARD_INT_EQ)
            fixed[set->at[i].a] = true;
    for (uint32_t i = 0; i < set->sizes.n; i++) {
        const SizeExpr *e = &set->sizes.at[i];
        fixed[i] |= e->kind == SIZE_CONST || (e->kind != SIZE_FACT && fixed[e->a] && fixed[e->b]);
    }
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        all &= fixed[plan->buffers[i].numel];
    for (uint32_t i = 0; i < plan->n_args; i++)
        all &= plan->args[i].kind != BIND_SIZE || fixed[plan->args[i].value];
    return all;
}

void entry_examine(const void *bytes, size_t n, Arena *arena, Entry *out)
{
    if (entry_parse(bytes, n, arena, &out->view) != ST_OK) {
        uint32_t format = entry_format(bytes, n);
        out->damage = arena_strdup(arena, fail_message());
        out->other_format = format && format != ENTRY_FORMAT;
        return;
    }
    char name[ENTRY_NAME_BYTES];
    entry_name(&out->view.key, &out->view.plan->guards, name);
    if (strcmp(name, out->item->name) != 0) {
        out->damage = arena_printf(arena, "misnamed: its content belongs to %s", name);
        return;
    }
    out->name = kernel_names(&out->view, arena);
    out->where = entry_meta_or(out, "where", arena, "");
    out->place = entry_meta_or(out, "place", arena, "");
    out->shapes = bare_shapes(entry_meta_or(out, "shapes", arena, ""), arena);
    out->sizes = out->view.plan->general ? "any" : sizes_fixed(out->view.plan, arena) ? "fixed" : "vary";
    out->made = strtoll(entry_meta_or(out, "made", arena, "0"), NULL, 10);
    out->compile_seconds = strtod(entry_meta_or(out, "compile_us", arena, "0"), NULL) / 1e6;
    const char *sm = entry_maker(out, "sm", arena), *cpu = entry_maker(out, "machine", arena);
    out->device = sm ? sm : "cpu";
    out->cpu = or_else(cpu, "");
}

Status entry_open(const Cli *cli, const Store *store, const DiskItem *item, Arena *arena, Entry *out)
{
    const void *bytes = NULL;
    size_t n = 0;
    *out = (Entry){.item = item, .key = store_short_key(cli, store, item)};
    Status status = disk_read(store->disk, item->name, arena, &bytes, &n);
    if (status == ST_FORMAT) {
        out->damage = arena_strdup(arena, fail_message());
        return ST_OK;
    }
    if (status != ST_OK)
        return status;
    if (bytes)
        entry_examine(bytes, n, arena, out);
    else
        out->damage = "it was removed meanwhile";
    return ST_OK;
}

int entry_open_key(Cli *cli, const char *key, Store *store, Entry *out)
{
    int status = store->path ? -1 : store_open(cli, false, store);
    if (status >= 0)
        return status;
    const DiskItem *item = store_find(cli, store, key, &status);
    if (!item)
        return status;
    Status read = entry_open(cli, store, item, cli->arena, out);
    if (read != ST_OK)
        return complain_last(read);
    if (!out->damage)
        return -1;
    complain("%s: %s", item->name, out->damage);
    return END_FOUND;
}

int entry_of_key(Cli *cli, const char *key, Entry *out)
{
    Store store = {0};
    int end = entry_open_key(cli, key, &store, out);
    store_close(&store);
    return end;
}

bool entry_wanted(const Cli *cli, const Entry *entry)
{
    const char *device = cli->flag[FLAG_DEVICE], *name = cli->flag[FLAG_NAME];
    if (entry->damage)
        return !device && !name;
    if (device && !strstr(entry->device, device) && !strstr(entry->cpu, device))
        return false;
    return !name || strstr(entry->name, name) || strstr(entry->where, name) || strstr(entry->place, name);
}

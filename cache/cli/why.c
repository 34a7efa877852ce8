/*
 * `kiln cache why`: why was something compiled? A call, recorded as a miss or taken from an entry,
 * is held against the guards of every entry of its graph; the closest is the one with the fewest
 * guards that fail.
 *
 *     entries of the graph by the same maker     a guard failed
 *     entries of the graph by another maker      the line of the key that differs
 *     none                                       never seen, or removed since
 *
 * What was made after the call was not there to serve it; it counts only as what would serve it
 * now.
 */
#include "cache/cli/compare.h"
#include "cache/records.h"
#include "ir/base/os_term.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILE = 64 << 20 };

/* What is known of a call that missed. */
typedef struct Cause {
    const Entry *closest;     /* NULL: no entry of the graph fits to be compared */
    Verdict verdict;          /* of the closest */
    const Entry *serves;      /* an entry that would serve the call now */
    const Entry *foreign;     /* an entry of the graph by another maker */
    const LineDiff *lines;    /* in what that maker differs, where the call's own maker is known */
    uint32_t n_lines, n_seen; /* n_seen: entries of the graph by the same maker */
} Cause;

/* The entries whose name begins with `prefix`, read and found whole. */
static Status read_all(Cli *cli, const Store *store, const char *prefix, size_t n, Entry **out, uint32_t *count)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < store->n; i++)
        most += strncmp(store->items[i].name, prefix, n) == 0;
    *out = ARENA_ARRAY(cli->arena, Entry, most);
    *count = 0;
    for (uint32_t i = 0; i < store->n; i++) {
        if (strncmp(store->items[i].name, prefix, n) != 0)
            continue;
        Status status = entry_open(cli, store, &store->items[i], cli->arena, &(*out)[*count]);
        if (status != ST_OK)
            return status;
        *count += !(*out)[*count].damage;
    }
    return ST_OK;
}

/* Looks among the entries of the graph. `self`: an entry that is the call's own, left out; its key
 * tells the maker. */
static Status find_cause(Cli *cli, const Store *store, const MissRecord *miss, const Entry *self, Cause *out)
{
    Entry *all;
    uint32_t n;
    size_t key_bytes = strlen(miss->key), graph_bytes = strcspn(miss->key, "-");
    *out = (Cause){0};
    TRY(read_all(cli, store, miss->key, graph_bytes, &all, &n));
    const Entry *own = self;
    for (uint32_t i = 0; i < n; i++) {
        const Entry *entry = &all[i];
        if (self && strcmp(entry->item->name, self->item->name) == 0)
            continue;
        bool was_there = entry->made <= miss->time;
        if (strncmp(entry->item->name, miss->key, key_bytes) != 0) {
            if (was_there && (!out->foreign || entry->made > out->foreign->made))
                out->foreign = entry;
            continue;
        }
        own = entry;
        Verdict verdict = judge(&entry->view, &miss->facts, cli->arena);
        if (!verdict.comparable)
            continue;
        out->n_seen++;
        if (!verdict.failing) {
            out->serves = entry;
        } else if (was_there && (!out->closest || verdict.failing < out->verdict.failing)) {
            out->closest = entry;
            out->verdict = verdict;
        }
    }
    if (out->foreign && own) {
        LineDiff *lines;
        out->n_lines = diff_lines(own->view.key.maker, own->view.key.maker_bytes, out->foreign->view.key.maker,
                                  out->foreign->view.key.maker_bytes, cli->arena, &lines);
        out->lines = lines;
    }
    return ST_OK;
}

/* ---- for people ---- */

static void print_cause(Cli *cli, const Cause *cause, bool recorded)
{
    Arena *arena = cli->arena;
    if (cause->closest) {
        print_field(cli, "closest", arena_printf(arena, "%s %s %s", cause->closest->key, cause->closest->name, cause->closest->shapes));
        print_field(cli, "failed",
                    arena_printf(arena, "%s: %s (asked by %s)%s", cause->verdict.guard, cause->verdict.failure, cause->verdict.who,
                                 cause->verdict.failing > 1 ? arena_printf(arena, ", and %u more", cause->verdict.failing - 1) : ""));
    }
    if (cause->serves && recorded)
        print_field(cli, "now", arena_printf(arena, "%s serves it, made %s", cause->serves->key, time_text(arena, cause->serves->made)));
    else if (cause->serves)
        print_field(cli, "also",
                    arena_printf(arena, "%s would serve it too, made %s", cause->serves->key, time_text(arena, cause->serves->made)));
    if (cause->foreign && !cause->closest) {
        print_field(cli, "elsewhere",
                    arena_printf(arena, "%s is of the same graph, but made by or for something else", cause->foreign->key));
        for (uint32_t i = 0; i < cause->n_lines; i++)
            print_field(cli, cause->lines[i].name, diff_text(&cause->lines[i], "in this one", "in that one", arena));
    }
    if (!cause->closest && !cause->foreign)
        print_field(cli, "closest",
                    cause->n_seen ? "none: it was the first of its graph"
                                  : "none: no other entry of this graph is there; it was never seen, or was removed");
}

static json_t *cause_json(Cli *cli, const Cause *cause)
{
    json_t *value = json_object(), *lines = json_array();
    js_set(cli, value, "closest", js_text(cause->closest ? cause->closest->item->name : NULL));
    js_set(cli, value, "guard", js_text(cause->closest ? cause->verdict.guard : NULL));
    js_set(cli, value, "failure", js_text(cause->closest ? cause->verdict.failure : NULL));
    js_set(cli, value, "asked_by", js_text(cause->closest ? cause->verdict.who : NULL));
    js_set(cli, value, "failing_guards", json_integer(cause->closest ? cause->verdict.failing : 0));
    js_set(cli, value, "entries_of_graph", json_integer(cause->n_seen));
    js_set(cli, value, "serves", js_text(cause->serves ? cause->serves->item->name : NULL));
    js_set(cli, value, "by_another_maker", js_text(cause->foreign ? cause->foreign->item->name : NULL));
    for (uint32_t i = 0; i < cause->n_lines; i++) {
        json_t *line = json_object();
        js_set(cli, line, "name", js_text(cause->lines[i].name));
        js_set(cli, line, "here", js_text(cause->lines[i].a));
        js_set(cli, line, "there", js_text(cause->lines[i].b));
        js_push(cli, lines, line);
    }
    js_set(cli, value, "maker_differs", lines);
    return value;
}

/* ---- an entry ---- */

static int why_entry(Cli *cli, Store *store, const char *key)
{
    Entry entry;
    Cause cause;
    int end = entry_open_key(cli, key, store, &entry);
    if (end >= 0)
        return end;
    size_t n = strlen(entry.item->name) - (ENTRY_GUARDS_HEX + strlen(".kiln") + 1);
    MissRecord call = {.time = entry.made, .key = arena_printf(cli->arena, "%.*s", (int)n, entry.item->name), .facts = entry.view.facts};
    Status status = find_cause(cli, store, &call, &entry, &cause);
    if (status != ST_OK)
        return complain_last(status);
    if (flag_on(cli, FLAG_JSON)) {
        json_t *value = cause_json(cli, &cause);
        js_set(cli, value, "entry", js_text(entry.item->name));
        return js_print(cli, value);
    }
    style_begin(cli, STYLE_KEY);
    fputs(entry.key, stdout);
    style_end(cli);
    printf(" %s %s, made %s\n", entry.name, entry.shapes, time_text(cli->arena, entry.made));
    print_cause(cli, &cause, false);
    return END_FINE;
}

/* ---- recorded misses ---- */

/* Into `all`, or printed where that is NULL. */
static Status why_miss(Cli *cli, const Store *store, const MissRecord *miss, json_t *all)
{
    Cause cause;
    TRY(find_cause(cli, store, miss, NULL, &cause));
    if (all) {
        json_t *value = cause_json(cli, &cause);
        js_set(cli, value, "time", json_integer(miss->time));
        js_set(cli, value, "where", js_text(miss->where));
        js_set(cli, value, "reason", js_text(miss->reason));
        js_set(cli, value, "key", js_text(miss->key));
        js_push(cli, all, value);
        return ST_OK;
    }
    style_begin(cli, STYLE_TITLE);
    printf("%s  %s", time_text(cli->arena, miss->time), miss->reason);
    style_end(cli);
    printf("  %s  %.8s\n", *miss->where ? miss->where : "?", miss->key);
    print_cause(cli, &cause, true);
    return ST_OK;
}

/* Each line of `text`; *n are records of misses, *odd are none. */
static Status why_lines(Cli *cli, const Store *store, const char *text, json_t *all, uint32_t *n, uint32_t *odd)
{
    Status status = ST_OK;
    Arena *process = cli->arena;
    for (const char *line = text; *line && status == ST_OK;) {
        Arena arena; /* what one miss takes is given back: there may be thousands */
        MissRecord miss;
        size_t length = strcspn(line, "\n");
        arena_init(&arena, process->oom);
        cli->arena = &arena;
        if (record_read_miss(line, length, cli->arena, &miss)) {
            status = why_miss(cli, store, &miss, all);
            ++*n;
        } else {
            *odd += length > 0;
        }
        cli->arena = process;
        arena_free(&arena);
        line += length + (line[length] == '\n');
    }
    return status;
}

json_t *store_misses_json(Cli *cli, const Store *store, uint32_t most)
{
    const char *text = NULL;
    uint32_t n = 0, odd = 0;
    if (store->disk && disk_text(store->disk, "misses", cli->arena, &text) != ST_OK)
        return NULL;
    const char *from = text ? text + strlen(text) : "";
    for (uint32_t lines = 0; text && from > text; from--)
        if (from[-1] == '\n' && lines++ == most)
            break;
    json_t *all = json_array();
    if (why_lines(cli, store, from, all, &n, &odd) == ST_OK)
        return all;
    json_decref(all);
    return NULL;
}

static int why_misses(Cli *cli, const Store *store, const char *text)
{
    json_t *all = flag_on(cli, FLAG_JSON) ? json_array() : NULL;
    uint32_t n = 0, odd = 0;
    Status status = why_lines(cli, store, text, all, &n, &odd);
    if (odd)
        complain("%u line%s no record of a miss", odd, odd == 1 ? " is" : "s are");
    if (status != ST_OK) {
        json_decref(all);
        return complain_last(status);
    }
    int end = END_FINE;
    if (all) {
        json_t *root = json_object();
        js_set(cli, root, "misses", all);
        end = js_print(cli, root);
    } else if (!n) {
        puts("no recorded misses");
    }
    return end == END_FINE && odd && !n ? END_FOUND : end;
}

int cmd_WHY(Cli *cli)
{
    Store store;
    const char *text = "", *what = cli->n_args ? cli->args[0] : NULL;
    int end = store_open(cli, false, &store);
    if (end >= 0)
        return end;
    bool is_file = what && (strchr(what, '/') || os_path_exists(what));
    if (what && !is_file) {
        end = why_entry(cli, &store, what);
    } else if (is_file && (end = read_text_file(cli, what, MAX_FILE, &text)) >= 0) {
        ; /* said */
    } else {
        Status status = what || !store.disk ? ST_OK : disk_text(store.disk, "misses", cli->arena, &text);
        end = status != ST_OK ? complain_last(status) : why_misses(cli, &store, text ? text : "");
    }
    store_close(&store);
    return end;
}

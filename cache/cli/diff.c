/*
 * `kiln cache diff`: why are these two entries and not one? From the outside in: who made them, the
 * graph, then, where the keys are equal, guards and sizes.
 */
#include "cache/cli/compare.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct Diff {
    const Entry *a, *b;
    LineDiff *maker, *graph;
    uint32_t n_maker, n_graph;
    const char **only_a, **only_b; /* guards */
    uint32_t n_only_a, n_only_b;
    Verdict a_on_b, b_on_a; /* the guards of one on the call that the other was made for */
    bool same_graph;        /* so that guards and facts can be compared */
} Diff;

static const char *guard_at(const Entry *entry, uint32_t i, Arena *arena)
{
    Str text;
    str_init(&text, arena);
    guard_print(&entry->view.plan->guards, &entry->view.plan->guards.at[i], &text);
    return text.text;
}

/* The guards of a that b has not, as text: equal guards read alike. */
static uint32_t guards_only_in(const Entry *a, const Entry *b, Arena *arena, const char ***out)
{
    uint32_t n = 0;
    *out = ARENA_ARRAY(arena, const char *, a->view.plan->guards.n);
    for (uint32_t i = 0; i < a->view.plan->guards.n; i++) {
        const char *text = guard_at(a, i, arena);
        bool there = false;
        for (uint32_t k = 0; k < b->view.plan->guards.n && !there; k++)
            there = strcmp(guard_at(b, k, arena), text) == 0;
        if (!there)
            (*out)[n++] = text;
    }
    return n;
}

static Diff compare(const Entry *a, const Entry *b, Arena *arena)
{
    Diff diff = {.a = a, .b = b};
    const KeyText *of_a = &a->view.key, *of_b = &b->view.key;
    diff.n_maker = diff_lines(of_a->maker, of_a->maker_bytes, of_b->maker, of_b->maker_bytes, arena, &diff.maker);
    diff.n_graph = diff_lines(of_a->graph, of_a->graph_bytes, of_b->graph, of_b->graph_bytes, arena, &diff.graph);
    diff.same_graph = !diff.n_graph && a->view.facts.n_ints == b->view.facts.n_ints && a->view.facts.n_scalars == b->view.facts.n_scalars;
    if (!diff.same_graph)
        return diff;
    diff.n_only_a = guards_only_in(a, b, arena, &diff.only_a);
    diff.n_only_b = guards_only_in(b, a, arena, &diff.only_b);
    diff.a_on_b = judge(&a->view, &b->view.facts, arena);
    diff.b_on_a = judge(&b->view, &a->view.facts, arena);
    return diff;
}

/* ---- for people ---- */

static void print_lines(Cli *cli, const char *title, const LineDiff *lines, uint32_t n)
{
    if (n)
        print_title(cli, title);
    for (uint32_t i = 0; i < n; i++)
        print_field(cli, lines[i].name, diff_text(&lines[i], "in the first", "in the second", cli->arena));
}

static void print_facts(Cli *cli, const Diff *diff)
{
    const Facts *a = &diff->a->view.facts, *b = &diff->b->view.facts;
    bool titled = false;
    for (uint32_t i = 0; i < a->n_ints; i++) {
        if (a->ints[i] == b->ints[i])
            continue;
        if (!titled)
            print_title(cli, "sizes of the calls that they were made for");
        titled = true;
        print_field(cli, arena_printf(cli->arena, "s%u", i),
                    arena_printf(cli->arena, "%" PRId64 " in the first, %" PRId64 " in the second", a->ints[i], b->ints[i]));
    }
}

static void print_verdict(Cli *cli, const char *which, const char *other, const Verdict *verdict)
{
    if (verdict->failing)
        print_field(cli, which,
                    arena_printf(cli->arena, "does not fit the %s's call: %s (%s, asked by %s)", other, verdict->failure, verdict->guard,
                                 verdict->who));
    else
        print_field(cli, which, arena_printf(cli->arena, "would serve the %s's call too", other));
}

static void print_guards(Cli *cli, const char *name, const char *const *guards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        print_field(cli, i ? "" : name, guards[i]);
}

static const char *conclusion(const Diff *diff)
{
    if (diff->n_graph)
        return diff->n_maker ? "two graphs, and made by or for something else" : "two graphs";
    if (diff->n_maker)
        return "one graph, made by or for something else";
    return diff->n_only_a || diff->n_only_b ? "one key, other guards" : "one key, equal guards";
}

static void print_diff(Cli *cli, const Diff *diff)
{
    printf("%s: %s\n%s: %s\n", diff->a->key, diff->a->name, diff->b->key, diff->b->name);
    printf("two entries because: %s\n", conclusion(diff));
    print_lines(cli, "made by and for", diff->maker, diff->n_maker);
    print_lines(cli, "graph", diff->graph, diff->n_graph);
    if (!diff->same_graph)
        return;
    if (diff->n_only_a || diff->n_only_b)
        print_title(cli, "guards that only one has");
    print_guards(cli, "the first", diff->only_a, diff->n_only_a);
    print_guards(cli, "the second", diff->only_b, diff->n_only_b);
    print_facts(cli, diff);
    if (!diff->n_maker) {
        print_title(cli, "each on the other's call");
        print_verdict(cli, "the first", "second", &diff->a_on_b);
        print_verdict(cli, "the second", "first", &diff->b_on_a);
    }
}

/* ---- for programs ---- */

static json_t *lines_json(Cli *cli, const LineDiff *lines, uint32_t n)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < n; i++) {
        json_t *line = json_object();
        js_set(cli, line, "name", js_text(lines[i].name));
        js_set(cli, line, "a", js_text(lines[i].a));
        js_set(cli, line, "b", js_text(lines[i].b));
        js_push(cli, all, line);
    }
    return all;
}

static json_t *texts_json(Cli *cli, const char *const *texts, uint32_t n)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < n; i++)
        js_push(cli, all, js_text(texts[i]));
    return all;
}

static json_t *verdict_json(Cli *cli, const Verdict *verdict)
{
    json_t *value = json_object();
    js_set(cli, value, "serves", json_boolean(verdict->comparable && !verdict->failing));
    js_set(cli, value, "guard", js_text(verdict->guard));
    js_set(cli, value, "failure", js_text(verdict->failure));
    js_set(cli, value, "asked_by", js_text(verdict->who));
    return value;
}

static json_t *facts_json(Cli *cli, const Diff *diff)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < diff->a->view.facts.n_ints; i++) {
        int64_t a = diff->a->view.facts.ints[i], b = diff->b->view.facts.ints[i];
        if (a == b)
            continue;
        json_t *fact = json_object();
        js_set(cli, fact, "fact", json_integer(i));
        js_set(cli, fact, "a", json_integer(a));
        js_set(cli, fact, "b", json_integer(b));
        js_push(cli, all, fact);
    }
    return all;
}

static int diff_json(Cli *cli, const Diff *diff, bool equal)
{
    json_t *root = json_object();
    js_set(cli, root, "a", js_text(diff->a->item->name));
    js_set(cli, root, "b", js_text(diff->b->item->name));
    js_set(cli, root, "same", json_boolean(equal));
    js_set(cli, root, "maker", lines_json(cli, diff->maker, diff->n_maker));
    js_set(cli, root, "graph", lines_json(cli, diff->graph, diff->n_graph));
    if (diff->same_graph) {
        js_set(cli, root, "guards_only_a", texts_json(cli, diff->only_a, diff->n_only_a));
        js_set(cli, root, "guards_only_b", texts_json(cli, diff->only_b, diff->n_only_b));
        js_set(cli, root, "facts", facts_json(cli, diff));
        js_set(cli, root, "a_on_call_of_b", verdict_json(cli, &diff->a_on_b));
        js_set(cli, root, "b_on_call_of_a", verdict_json(cli, &diff->b_on_a));
    }
    return js_print(cli, root);
}

int cmd_DIFF(Cli *cli)
{
    Store store = {0};
    Entry a, b;
    int end = entry_open_key(cli, cli->args[0], &store, &a);
    if (end < 0)
        end = entry_open_key(cli, cli->args[1], &store, &b);
    store_close(&store);
    if (end >= 0)
        return end;
    bool equal = a.item == b.item;
    Diff diff = compare(&a, &b, cli->arena);
    if (flag_on(cli, FLAG_JSON))
        end = diff_json(cli, &diff, equal);
    else if (equal)
        puts("the same entry");
    else
        print_diff(cli, &diff);
    return end > 0 ? end : equal ? END_FINE : END_FOUND;
}

/* One entry: `show`, `guards`, `code`, `key`. */
#include "cache/cli/entries.h"
#include "ir/base/os_term.h"
#include "ir/joint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- guards ---- */

static const char *guard_text(Arena *arena, const GuardSet *set, const Guard *guard)
{
    Str text;
    str_init(&text, arena);
    guard_print(set, guard, &text);
    return text.text;
}

static json_t *guards_json(Cli *cli, const Entry *entry)
{
    json_t *all = json_array();
    const GuardSet *set = &entry->view.plan->guards;
    for (uint32_t i = 0; i < set->n; i++) {
        json_t *guard = json_object();
        js_set(cli, guard, "guard", js_text(guard_text(cli->arena, set, &set->at[i])));
        js_set(cli, guard, "kind", js_text(reason_name(guard_reason(&set->at[i]))));
        js_set(cli, guard, "asked_by", js_text(set->at[i].who));
        js_push(cli, all, guard);
    }
    return all;
}

static void print_guards(Cli *cli, const Entry *entry)
{
    static const Column columns[] = {{.title = "GUARD"}, {.title = "KIND"}, {.title = "ASKED BY"}};
    const GuardSet *set = &entry->view.plan->guards;
    Table table;
    table_init(&table, cli->arena, columns, 3);
    for (uint32_t i = 0; i < set->n; i++) {
        const char **row = table_row(&table);
        row[0] = guard_text(cli->arena, set, &set->at[i]);
        row[1] = reason_name(guard_reason(&set->at[i]));
        row[2] = set->at[i].who;
    }
    if (set->n)
        table_print(cli, &table);
    else
        puts("no guards: it is right for every call with this key");
}

static json_t *numbers_json(Cli *cli, const Facts *facts)
{
    json_t *ints = json_array();
    for (uint32_t i = 0; i < facts->n_ints; i++)
        js_push(cli, ints, json_integer(facts->ints[i]));
    return ints;
}

int cmd_GUARDS(Cli *cli)
{
    Entry entry;
    int end = entry_of_key(cli, cli->args[0], &entry);
    if (end >= 0)
        return end;
    if (!flag_on(cli, FLAG_JSON)) {
        print_guards(cli, &entry);
        return END_FINE;
    }
    json_t *root = json_object();
    js_set(cli, root, "entry", js_text(entry.item->name));
    js_set(cli, root, "guards", guards_json(cli, &entry));
    js_set(cli, root, "facts", numbers_json(cli, &entry.view.facts));
    return js_print(cli, root);
}

/* ---- show ---- */

static const char *plan_text(Arena *arena, const Entry *entry)
{
    Str text;
    str_init(&text, arena);
    program_print(entry->view.plan, &text);
    return text.text;
}

/* What a program with a gradient reads of its forward pass and computes again, and its memory at the sizes it was made for; NULL: it has none. */
static const char *gradient_text(Arena *arena, const Entry *entry)
{
    EntryTexts texts;
    Graph *g;
    Str out;
    const Program *plan = entry->view.plan;
    str_init(&out, arena);
    if (entry_texts(&entry->view, arena, &texts) != ST_OK || !texts.optimised || graph_parse(texts.optimised, arena, &g) != ST_OK ||
        !joint_print(g, false, &out))
        return NULL;
    int64_t *sizes = ARENA_ARRAY(arena, int64_t, plan->guards.sizes.n + 1);
    sizes_eval(&plan->guards.sizes, entry->view.facts.ints, sizes);
    str_printf(&out, "; peak ");
    bytes_print(program_memory(plan, sizes), &out);
    return out.text;
}

/* The lines of the key's first part: who can make and run the code. */
static json_t *maker_json(Cli *cli, const Entry *entry)
{
    json_t *maker = json_object();
    const char *at = entry->view.key.maker, *end = at + entry->view.key.maker_bytes;
    KeyLine line;
    while (key_line_next(&at, end, &line))
        js_set(cli, maker, arena_printf(cli->arena, "%.*s", (int)line.name_bytes, line.name), js_bytes(line.bytes, line.n));
    return maker;
}

static json_t *kernels_json(Cli *cli, const Entry *entry)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < entry->view.n_kernels; i++) {
        const EntryKernel *k = &entry->view.kernels[i];
        json_t *kernel = json_object();
        js_set(cli, kernel, "name", js_text(k->name));
        js_set(cli, kernel, "code_bytes", json_integer((json_int_t)k->code_bytes));
        js_set(cli, kernel, "ns_per_point", json_real(k->cost));
        js_set(cli, kernel, "loops", js_bytes(k->key, k->key_bytes));
        js_push(cli, all, kernel);
    }
    return all;
}

json_t *entry_json(Cli *cli, const Entry *entry)
{
    json_t *root = json_object();
    js_set(cli, root, "key", js_text(entry->key));
    js_set(cli, root, "entry", js_text(entry->item->name));
    js_set(cli, root, "name", js_text(entry->name));
    js_set(cli, root, "where", js_text(entry->where));
    js_set(cli, root, "place", js_text(entry->place));
    js_set(cli, root, "device", js_text(entry->device));
    js_set(cli, root, "shapes", js_text(entry->shapes));
    js_set(cli, root, "sizes", js_text(entry->sizes));
    js_set(cli, root, "bytes", json_integer((json_int_t)entry->item->bytes));
    js_set(cli, root, "made", json_integer(entry->made));
    js_set(cli, root, "used", json_integer(entry->item->used));
    js_set(cli, root, "compile_seconds", json_real(entry->compile_seconds));
    js_set(cli, root, "maker", maker_json(cli, entry));
    js_set(cli, root, "facts", numbers_json(cli, &entry->view.facts));
    js_set(cli, root, "guards", guards_json(cli, entry));
    js_set(cli, root, "kernels", kernels_json(cli, entry));
    const char *gradient = gradient_text(cli->arena, entry);
    if (gradient)
        js_set(cli, root, "gradient", js_text(gradient));
    js_set(cli, root, "plan", js_text(plan_text(cli->arena, entry)));
    return root;
}

static void print_kernels(Cli *cli, const Entry *entry)
{
    static const Column columns[] = {
        {.title = "KERNEL", .style = STYLE_KEY, .shrink = true}, {.title = "CODE", .right = true}, {.title = "NS/POINT", .right = true}};
    Table table;
    table_init(&table, cli->arena, columns, 3);
    for (uint32_t i = 0; i < entry->view.n_kernels; i++) {
        const char **row = table_row(&table);
        row[0] = entry->view.kernels[i].name;
        row[1] = size_text(cli->arena, entry->view.kernels[i].code_bytes);
        row[2] = arena_printf(cli->arena, "%.2f", entry->view.kernels[i].cost);
    }
    table_print(cli, &table);
}

static const char *facts_text(Arena *arena, const Facts *facts)
{
    Str text;
    str_init(&text, arena);
    for (uint32_t i = 0; i < facts->n_ints; i++)
        str_printf(&text, "%ss%u=%" PRId64, i ? " " : "", i, facts->ints[i]);
    return text.len ? text.text : NULL;
}

static const char *accepts(const Entry *entry)
{
    if (strcmp(entry->sizes, "any") == 0)
        return "every shape of its graph";
    if (strcmp(entry->sizes, "vary") == 0)
        return "shapes like these, where its guards hold";
    return entry->view.plan->guards.n ? "these shapes, where its guards hold" : "every call with its key";
}

int cmd_SHOW(Cli *cli)
{
    Entry entry;
    int end = entry_of_key(cli, cli->args[0], &entry);
    if (end >= 0)
        return end;
    if (flag_on(cli, FLAG_JSON))
        return js_print(cli, entry_json(cli, &entry));

    Arena *arena = cli->arena;
    style_begin(cli, STYLE_KEY);
    printf("%s", entry.item->name);
    style_end(cli);
    putchar('\n');
    print_field(cli, "name", entry.name);
    print_field(cli, "needed by",
                *entry.place   ? arena_printf(arena, "%s at %s", entry.where, entry.place)
                : *entry.where ? entry.where
                               : NULL);
    print_field(cli, "shapes", *entry.shapes ? entry.shapes : NULL);
    print_field(cli, "accepts", accepts(&entry));
    print_field(cli, "bytes", arena_printf(arena, "%zu", entry.item->bytes));
    print_field(cli, "made", arena_printf(arena, "%s, in %s", time_text(arena, entry.made), seconds_text(arena, entry.compile_seconds)));
    print_field(cli, "last used", time_text(arena, entry.item->used));
    print_field(cli, "facts", facts_text(arena, &entry.view.facts));
    print_field(cli, "gradient", gradient_text(arena, &entry));

    putchar('\n');
    print_title(cli, "made by and for");
    const char *at = entry.view.key.maker, *key_end = at + entry.view.key.maker_bytes;
    KeyLine line;
    while (key_line_next(&at, key_end, &line))
        print_field(cli, arena_printf(arena, "%.*s", (int)line.name_bytes, line.name),
                    arena_printf(arena, "%.*s", (int)line.n, line.bytes));
    putchar('\n');
    print_kernels(cli, &entry);
    putchar('\n');
    const char *plan = plan_text(arena, &entry);
    print_text(plan, strlen(plan));
    return END_FINE;
}

/* ---- code ---- */

/* Is it the kernel of --kernel: by its name or its number? */
static bool kernel_wanted(const Cli *cli, const EntryKernel *kernel, uint32_t index)
{
    const char *which = cli->flag[FLAG_KERNEL];
    char *end;
    if (!which || strcmp(which, kernel->name) == 0)
        return true;
    unsigned long number = strtoul(which, &end, 10);
    return end != which && !*end && number == index;
}

/* The text of a kernel in the form that was asked for, or why there is none. */
static const char *code_text(const Cli *cli, const EntryTexts *texts, uint32_t i, bool ptx)
{
    if (flag_on(cli, FLAG_PTX) && !ptx)
        return NULL;
    return flag_on(cli, FLAG_IR) ? texts->kernel_ir[i] : texts->kernel_assembly[i];
}

int cmd_CODE(Cli *cli)
{
    Entry entry;
    EntryTexts texts;
    if (flag_on(cli, FLAG_IR) + flag_on(cli, FLAG_ASM) + flag_on(cli, FLAG_PTX) > 1) {
        complain("--ir, --asm and --ptx exclude each other");
        return END_USAGE;
    }
    int end = entry_of_key(cli, cli->args[0], &entry);
    if (end >= 0)
        return end;
    Status status = entry_texts(&entry.view, cli->arena, &texts);
    if (status != ST_OK)
        return complain_last(status);
    bool ptx = strcmp(entry.device, "cpu") != 0;
    const char *form = flag_on(cli, FLAG_IR) ? "ir" : ptx ? "ptx" : "assembly";
    json_t *all = json_array();
    uint32_t shown = 0, matched = 0;
    for (uint32_t i = 0; i < entry.view.n_kernels; i++) {
        const EntryKernel *kernel = &entry.view.kernels[i];
        if (!kernel_wanted(cli, kernel, i))
            continue;
        matched++;
        const char *text = code_text(cli, &texts, i, ptx);
        shown += text != NULL;
        if (flag_on(cli, FLAG_JSON)) {
            json_t *row = json_object();
            js_set(cli, row, "kernel", js_text(kernel->name));
            js_set(cli, row, form, js_text(text));
            js_push(cli, all, row);
        } else if (text) {
            print_title(cli, arena_printf(cli->arena, "%s kernel %u: %s", flag_on(cli, FLAG_IR) ? ";" : ptx ? "//" : "#", i, kernel->name));
            print_text(text, strlen(text));
        }
    }
    end = shown ? END_FINE : END_FOUND;
    if (!matched)
        complain("%s has no kernel %s", entry.key, cli->flag[FLAG_KERNEL] ? cli->flag[FLAG_KERNEL] : "at all");
    else if (!shown)
        complain(flag_on(cli, FLAG_PTX) ? "%s is for the CPU: it has no PTX, but --asm and --ir" : "%s holds no text of its code",
                 entry.key);
    if (!flag_on(cli, FLAG_JSON)) {
        json_decref(all);
        return end;
    }
    int printed = js_print(cli, all);
    return printed == END_FINE ? end : printed;
}

/* ---- key ---- */

static const char *hash_text(Arena *arena, const char *text, size_t n)
{
    Hash128 hash = hash128(text, n);
    return arena_printf(arena, "%016" PRIx64 "%016" PRIx64, hash.hi, hash.lo);
}

int cmd_KEY(Cli *cli)
{
    Entry entry;
    int end = entry_of_key(cli, cli->args[0], &entry);
    if (end >= 0)
        return end;
    const KeyText *key = &entry.view.key;
    const char *part = cli->flag[FLAG_PART];
    const char *maker = hash_text(cli->arena, key->maker, key->maker_bytes), *graph = hash_text(cli->arena, key->graph, key->graph_bytes);
    if (flag_on(cli, FLAG_JSON)) {
        json_t *root = json_object();
        js_set(cli, root, "entry", js_text(entry.item->name));
        js_set(cli, root, "maker_hash", js_text(maker));
        js_set(cli, root, "graph_hash", js_text(graph));
        js_set(cli, root, "maker", js_bytes(key->maker, key->maker_bytes));
        js_set(cli, root, "graph", js_bytes(key->graph, key->graph_bytes));
        return js_print(cli, root);
    }
    if (part && strcmp(part, "hashes") == 0) {
        print_field(cli, "graph", graph);
        print_field(cli, "maker", maker);
        return END_FINE;
    }
    void (*put)(const char *, size_t) = os_is_terminal(stdout) ? print_text : print_bytes;
    if (!part || strcmp(part, "maker") == 0)
        put(key->maker, key->maker_bytes);
    if (!part || strcmp(part, "graph") == 0)
        put(key->graph, key->graph_bytes);
    return END_FINE;
}

/* The library's tables, readable: options, ops, passes, rules. Read from the .def files, so that
 * nothing of them is linked. */
#include "cache/cli/cli.h"
#include "ir/op.h"
#include "jit/options.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Prints a table, or its rows as a JSON array of objects with the titles' names; `exact` are the
 * names in JSON. */
static int print(Cli *cli, const char *what, const Table *table, const char *const *exact)
{
    if (!flag_on(cli, FLAG_JSON)) {
        if (table->n_rows)
            table_print(cli, table);
        else
            complain("nothing contains \"%s\"", cli->n_args ? cli->args[0] : "");
        return table->n_rows ? END_FINE : END_FOUND;
    }
    json_t *root = json_object(), *rows = json_array();
    for (uint32_t r = 0; r < table->n_rows; r++) {
        json_t *row = json_object();
        for (uint32_t c = 0; c < table->n_columns; c++)
            js_set(cli, row, exact[c], js_text(table->cells[(size_t)r * table->n_columns + c]));
        js_push(cli, rows, row);
    }
    js_set(cli, root, what, rows);
    int status = js_print(cli, root);
    return status == END_FINE && !table->n_rows ? END_FOUND : status;
}

/* Does any of these texts contain what the user typed? */
static bool wanted(const Cli *cli, const char *const *texts, size_t n)
{
    if (!cli->n_args)
        return true;
    for (size_t k = 0; k < n; k++)
        if (strcasestr(texts[k], cli->args[0]))
            return true;
    return false;
}

int cmd_OPTIONS(Cli *cli)
{
    static const Column columns[] = {
        {.title = "VARIABLE", .style = STYLE_KEY}, {.title = "VALUES"}, {.title = "DEFAULT"}, {.title = "KEYED"},
        {.title = "MEANING", .shrink = true},
    };
    static const char *const exact[] = {"variable", "values", "default", "keyed", "help"};
    Table table;
    table_init(&table, cli->arena, columns, 5);
    for (int id = 0; id < OPT_SHOWN; id++) {
        char variable[64], values[256];
        OptionInfo option;
        option_describe((OptionId)id, &option);
        option_variable((OptionId)id, variable, sizeof variable);
        if (!wanted(cli, (const char *[]){variable, option.help}, 2))
            continue;
        const char **row = table_row(&table);
        row[0] = arena_strdup(cli->arena, variable);
        row[1] = arena_strdup(cli->arena, option_values((OptionId)id, values, sizeof values));
        row[2] = option.def;
        row[3] = option.keyed ? "yes" : "no";
        row[4] = option.help;
    }
    return print(cli, "options", &table, exact);
}

int cmd_OPS(Cli *cli)
{
    static const struct {
        const char *name, *cls, *flags;
        int arity;
        DRule rule;
    } ops[OP_COUNT] = {
#define ANY ARITY_ANY
#define OP(id, text, arity, cls, rule, flags) {text, #cls, #flags, arity, RULE_##rule},
#include "ir/ops.def"
#undef OP
#undef ANY
    };
    static const Column columns[] = {
        {.title = "OP", .style = STYLE_KEY}, {.title = "CLASS"}, {.title = "INPUTS", .right = true},
        {.title = "DTYPES", .shrink = true}, {.title = "FLAGS"},
    };
    static const char *const exact[] = {"op", "class", "inputs", "dtypes", "flags"};
    Table table;
    table_init(&table, cli->arena, columns, 5);
    for (int k = 0; k < OP_COUNT; k++) {
        const char *cls = lower_text(cli->arena, strcmp(ops[k].cls, "EW") == 0 ? "elementwise" : ops[k].cls);
        if (!wanted(cli, &ops[k].name, 1) && strcasecmp(cls, cli->args[0]) != 0)
            continue;
        const char **row = table_row(&table);
        row[0] = ops[k].name;
        row[1] = cls;
        row[2] = ops[k].arity < 0 ? "any" : arena_printf(cli->arena, "%d", ops[k].arity);
        row[3] = op_rule_text(ops[k].rule);
        row[4] = strcmp(ops[k].flags, "0") == 0 ? "" : lower_text(cli->arena, ops[k].flags);
    }
    return print(cli, "ops", &table, exact);
}

int cmd_PASSES(Cli *cli)
{
    static const struct {
        const char *name, *help;
        bool optional;
    } passes[] = {
#define PASS(id, name, function, optional, help) {name, help, optional},
#include "jit/passes.def"
#undef PASS
    };
    static const Column columns[] = {
        {.title = "PASS", .style = STYLE_KEY},
        {.title = "WHAT IT DOES", .shrink = true},
        {.title = "UNDER KILN_REWRITE=0"},
    };
    static const char *const exact[] = {"pass", "help", "without_rewrite"};
    Table table;
    table_init(&table, cli->arena, columns, 3);
    for (size_t k = 0; k < sizeof passes / sizeof *passes; k++) {
        const char **row = table_row(&table);
        row[0] = passes[k].name;
        row[1] = passes[k].help;
        row[2] = passes[k].optional ? "skipped" : "runs";
    }
    return print(cli, "passes", &table, exact);
}

int cmd_RULES(Cli *cli)
{
    static const struct {
        const char *name, *pattern, *replacement, *dtypes, *soundness;
    } rules[] = {
#define RULE(name, pattern, replacement, dtypes, soundness) {#name, pattern, replacement, #dtypes, #soundness},
#define REWRITE(name, function, cls, family, soundness) {#name, "(in C, on " #cls ")", #function, "", #soundness},
#include "ir/rules.def"
#undef RULE
#undef REWRITE
    };
    static const Column columns[] = {
        {.title = "RULE", .style = STYLE_KEY, .shrink = true},
        {.title = "PATTERN", .shrink = true},
        {.title = "BECOMES", .shrink = true},
        {.title = "DTYPES"},
        {.title = "SOUND"},
    };
    static const char *const exact[] = {"rule", "pattern", "becomes", "dtypes", "soundness"};
    Table table;
    table_init(&table, cli->arena, columns, 5);
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
        if (!wanted(cli, &rules[k].name, 5))
            continue;
        const char **row = table_row(&table);
        row[0] = rules[k].name;
        row[1] = rules[k].pattern;
        row[2] = rules[k].replacement;
        row[3] = lower_text(cli->arena, rules[k].dtypes);
        row[4] = lower_text(cli->arena, rules[k].soundness);
    }
    return print(cli, "rules", &table, exact);
}

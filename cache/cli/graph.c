/* `kiln cache graph`: the graph of an entry, as text or for Graphviz. */
#include "ir/body.h"
#include "ir/callee.h"
#include "cache/cli/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a node says in a drawing: "%3 sin" over "f32[64,512]". */
static const char *label(const Graph *g, Ref r, Arena *arena)
{
    const Node *node = graph_node(g, r);
    Str text;
    str_init(&text, arena);
    str_printf(&text, "%%%" PRIu32 " %s\\n%s[", r, node->callee ? node->callee->name : op_name((Op)node->op),
               dtype_name((DType)node->dtype));
    for (int i = 0; i < node->rank; i++)
        str_printf(&text, "%s%" PRId64, i ? "," : "", dim_hint(g, node->dim[i]));
    str_printf(&text, "]");
    return text.text;
}

static const char *shape_of(OpClass cls)
{
    switch (cls) {
    case CLS_LEAF: return "ellipse";
    case CLS_EW: return "box";
    case CLS_VIEW: return "parallelogram";
    case CLS_REDUCE:
    case CLS_SCAN: return "invtrapezium";
    case CLS_GATHER:
    case CLS_SCATTER:
    case CLS_SORT: return "hexagon";
    case CLS_CONTRACT: return "octagon";
    case CLS_BODY: return "box3d";
    case CLS_RESULT: return "cds";
    }
    return "box";
}

/* One graph: bodies are frames, which operands of their node lead into and their outputs out of. `name`: of its nodes, before the number. */
static void dot_nodes(const Graph *g, const char *name, int depth, Arena *arena, Str *out)
{
    const char *in = arena_printf(arena, "%*s", 4 * depth, "");
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Node *node = graph_node(g, r);
        str_printf(out, "%s%s%" PRIu32 " [shape=%s, label=\"%s\"];\n", in, name, r, shape_of(op_class((Op)node->op)), label(g, r, arena));
        for (uint32_t i = 0; i < node->n_in; i++)
            str_printf(out, "%s%s%" PRIu32 " -> %s%" PRIu32 "%s;\n", in, name, node->in[i], name, r,
                       node->n_in > 1 ? arena_printf(arena, " [label=\"%" PRIu32 "\"]", i) : "");
        for (uint32_t b = 0; b < node->n_bodies; b++) {
            const Graph *body = node->bodies[b];
            const char *of_body = arena_printf(arena, "%s%" PRIu32 "_%" PRIu32 "_", name, r, b);
            str_printf(out, "%ssubgraph cluster_%s {\n%s    label=\"%s of %%%" PRIu32 "\";\n", in, of_body, in, body_name((Op)node->op, b),
                       r);
            dot_nodes(body, of_body, depth + 1, arena, out);
            str_printf(out, "%s}\n", in);
            for (uint32_t k = 0; k < body->inputs.n; k++) {
                bool sliced;
                const Ref operand = body_operand(node, b, k, &sliced);
                if (operand != REF_NONE)
                    str_printf(out, "%s%s%" PRIu32 " -> %s%" PRIu32 " [style=dashed];\n", in, name, node->in[operand], of_body,
                               body->inputs.at[k]);
            }
            for (uint32_t k = 0; k < body->outputs.n; k++)
                str_printf(out, "%s%s%" PRIu32 " -> %s%" PRIu32 " [style=dashed, label=\"output %" PRIu32 "\"];\n", in, of_body,
                           body->outputs.at[k], name, r, k);
        }
    }
}

static void dot_text(const Graph *g, const char *name, Arena *arena, Str *out)
{
    str_printf(out, "digraph \"%s\" {\n    node [fontname=\"monospace\"];\n", name);
    dot_nodes(g, "n", 1, arena, out);
    for (uint32_t k = 0; k < g->outputs.n; k++)
        str_printf(out, "    out%" PRIu32 " [shape=ellipse, label=\"output %" PRIu32 "\"];\n    n%" PRIu32 " -> out%" PRIu32 ";\n", k, k,
                   g->outputs.at[k], k);
    str_printf(out, "}\n");
}

int cmd_GRAPH(Cli *cli)
{
    Entry entry;
    EntryTexts texts;
    int end = entry_of_key(cli, cli->args[0], &entry);
    if (end >= 0)
        return end;
    Status status = entry_texts(&entry.view, cli->arena, &texts);
    if (status != ST_OK)
        return complain_last(status);
    const char *text = flag_on(cli, FLAG_OPTIMISED) ? texts.optimised : texts.recorded;
    if (!text || !*text) {
        complain("%s holds no graph text", entry.key);
        return END_FOUND;
    }
    if (flag_on(cli, FLAG_DOT)) {
        Graph *g = NULL;
        Str dot;
        status = graph_parse(text, cli->arena, &g);
        if (status != ST_OK)
            return complain_last(status);
        str_init(&dot, cli->arena);
        dot_text(g, entry.key, cli->arena, &dot);
        text = dot.text;
    }
    if (!flag_on(cli, FLAG_JSON)) {
        print_text(text, strlen(text));
        return END_FINE;
    }
    json_t *root = json_object();
    js_set(cli, root, "entry", js_text(entry.item->name));
    js_set(cli, root, flag_on(cli, FLAG_DOT) ? "dot" : "graph", js_text(text));
    return js_print(cli, root);
}

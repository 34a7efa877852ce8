/*
 * Results of loops and branches that nobody reads are not computed.
 *
 *     step(%0: i, %1: a, %2: b) { ... return a' b' y z }      of which the program reads a' and z
 *
 *   outputs   those that are read, and carries that such need in the steps after, or the condition. Others leave the body, with what is
 *             made for them alone
 *   carries   leave with their operand and input
 *
 * A derivative's stacked carries are such: each loop that one may be asked for has them. All stays where something would leave that may
 * fail (an index out of bounds, a loop beyond its bound) or that is more than a value (a call): whether it fails must not depend on who
 * reads what.
 */
#include "jit/trim.h"
#include "ir/body.h"

#include <string.h>

/* ---- may it leave? ---- */

static bool harmless(const Node *n)
{
    bool all = true;
    switch (op_class((Op)n->op)) {
    case CLS_EW:
    case CLS_VIEW:
    case CLS_REDUCE:
    case CLS_SCAN:
    case CLS_SORT:
    case CLS_CONTRACT:
    case CLS_LEAF:
    case CLS_RESULT: return true;
    case CLS_GATHER:
    case CLS_SCATTER: return false;
    case CLS_BODY: break;
    }
    if (n->op == OP_CUSTOM || (n->op == OP_LOOP && n->n_bodies == 2))
        return false;
    for (uint32_t b = 0; b < n->n_bodies; b++)
        for (Ref r = 0; all && r < n->bodies[b]->nodes.n; r++)
            all = harmless(graph_node(n->bodies[b], r));
    return all;
}

/* ---- what is read ---- */

/* Marks what node r is made of, and it. */
static void mark(const Graph *g, Ref last, bool *live)
{
    for (Ref r = last + 1; r-- > 0;)
        for (uint32_t k = 0; live[r] && k < graph_node(g, r)->n_in; k++)
            live[graph_node(g, r)->in[k]] = true;
}

/* Of each node of a body: is it needed for the outputs that are? Of a loop's step these become more where they read a carry. */
static bool *needed(Arena *arena, const Node *node, uint32_t which, bool *output)
{
    const Graph *body = node->bodies[which];
    bool *live = ARENA_ARRAY(arena, bool, body->nodes.n + 1), more = true;
    const bool step = node->op == OP_LOOP && which == 0;
    while (more) {
        more = false;
        for (uint32_t k = 0; k < body->outputs.n; k++)
            live[body->outputs.at[k]] |= output[k];
        if (body->nodes.n)
            mark(body, body->nodes.n - 1, live);
        for (uint32_t k = 0; step && k < node->attr.loop.carries; k++) {
            const bool reads = live[body->inputs.at[k + 1]] && !output[k];
            output[k] |= reads;
            more |= reads;
        }
    }
    return live;
}

static bool may_leave(const Graph *body, const bool *live)
{
    bool all = true;
    for (Ref r = 0; r < body->nodes.n && all; r++)
        all = live[r] || harmless(graph_node(body, r));
    return all;
}

/* ---- leaving ---- */

/* The k-th output stays where keep[k] is. */
static void drop_outputs(Graph *body, const bool *keep)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < body->outputs.n; k++)
        if (keep[k])
            body->outputs.at[n++] = body->outputs.at[k];
    body->outputs.n = n;
}

/* Inputs first + k, for the carries that leave. */
static void drop_inputs(Graph *body, uint32_t first, uint32_t carries, const bool *keep)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < body->inputs.n; k++) {
        const bool carry = k >= first && k - first < carries;
        if (carry && !keep[k - first])
            continue;
        graph_node(body, body->inputs.at[k])->attr.n = n;
        body->inputs.at[n++] = body->inputs.at[k];
    }
    body->inputs.n = n;
}

/* Takes from node r what nobody reads; read[k]: result k is. Afterwards read[k] says which are still there. How many left. */
static uint32_t trim_node(Graph *g, Ref r, bool *read)
{
    Node *node = graph_node(g, r);
    const bool loop = node->op == OP_LOOP;
    const uint32_t n_results = body_n_results(node), carries = loop ? node->attr.loop.carries : 0;
    uint32_t left = 0, n = 0, n_carries = 0;
    bool all = true, *live[MAX_BODIES] = {NULL}, first = true;
    if (loop && node->n_bodies == 2) { /* what the condition reads */
        const Graph *condition = node->bodies[1];
        bool *reads = needed(g->arena, node, 1, &first);
        for (uint32_t k = 0; k < carries; k++)
            read[k] |= reads[condition->inputs.at[k]];
    }
    for (uint32_t b = 0; b < (loop ? 1 : node->n_bodies); b++) {
        live[b] = needed(g->arena, node, b, read);
        all &= may_leave(node->bodies[b], live[b]);
    }
    for (uint32_t k = 0; k < n_results; k++) {
        left += !read[k];
        n_carries += k < carries && read[k];
    }
    if (!all || left == n_results)
        memset(read, true, n_results);
    if (!all || left == 0 || left == n_results)
        return 0;
    for (uint32_t b = 0; b < node->n_bodies; b++) {
        const bool condition = loop && b == 1;
        if (!condition)
            drop_outputs(node->bodies[b], read);
        if (loop)
            drop_inputs(node->bodies[b], !condition, carries, read);
        graph_compact(node->bodies[b], NULL);
    }
    if (loop) {
        for (uint32_t k = 0; k < node->n_in; k++)
            if (k >= carries || read[k])
                node->in[n++] = node->in[k];
        node->n_in = n;
        node->attr.loop.ys = (uint16_t)(n_results - left - n_carries);
        node->attr.loop.carries = (uint16_t)n_carries;
    } else {
        node->attr.n = n_results - left;
    }
    return left;
}

uint32_t trim(Graph *g)
{
    bool any = false;
    for (Ref r = 0; r < g->nodes.n; r++)
        any |= graph_node(g, r)->op == OP_LOOP || graph_node(g, r)->op == OP_COND;
    if (!any)
        return 0;
    bool *live = ARENA_ARRAY(g->arena, bool, g->nodes.n);
    for (uint32_t k = 0; k < g->outputs.n; k++)
        live[g->outputs.at[k]] = true;
    mark(g, g->nodes.n - 1, live);
    bool **read = ARENA_ARRAY(g->arena, bool *, g->nodes.n);
    uint32_t left = 0;
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Node *n = graph_node(g, r);
        if (live[r] && n->op == OP_RESULT && read[n->in[0]])
            read[n->in[0]][n->attr.n] = true;
        if (live[r] && (n->op == OP_LOOP || n->op == OP_COND))
            read[r] = ARENA_ARRAY(g->arena, bool, body_n_results(n));
    }
    for (Ref r = 0; r < g->nodes.n; r++)
        left += read[r] ? trim_node(g, r, read[r]) : 0;
    for (Ref r = 0; r < g->nodes.n; r++) {
        Node *n = graph_node(g, r);
        uint32_t before = 0;
        for (uint32_t k = 0; live[r] && n->op == OP_RESULT && read[n->in[0]] && k < n->attr.n; k++)
            before += read[n->in[0]][k];
        if (live[r] && n->op == OP_RESULT && read[n->in[0]])
            n->attr.n = before;
    }
    if (left)
        graph_compact(g, NULL);
    for (Ref r = 0; r < g->nodes.n; r++)
        for (uint32_t b = 0; b < graph_node(g, r)->n_bodies; b++)
            left += trim(graph_node(g, r)->bodies[b]);
    return left;
}

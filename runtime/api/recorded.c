/*
 * The first line of KILN_LOG=passes: how the graph that the passes get came out of what was recorded.
 *
 *     recorded     11 -> 8 nodes: 1 not needed, 2 merged
 *
 * "Not needed": pending values that this thread holds handles of, and that nothing depends on that was asked for so far, with what they
 * alone are made of; a later sync point may still ask for them. "Merged": nodes that met an equal one when the graph was built
 * (ir/graph.c). As in all lines of that topic, a number and the views that repeat it to a shape are one node (ir/rules.h, graph_size).
 *
 * Leaves out: what was dropped before, because its scope ended.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "ir/rules.h"
#include "runtime/eval.h"
#include "runtime/record/record.h"

typedef struct Count {
    Arena *arena;
    VEC(const RtNode *) open; /* found and not looked into yet */
    VEC(const RtNode *) seen; /* found */
    HashTable table;          /* of those */
    uint32_t not_needed;
} Count;

static bool repeats_number(const RtNode *node)
{
    bool view = false;
    for (; node->rank > 0; node = node->in[0], view = true)
        if (!node_pending(node) || !op_repeats((Op)node->op))
            return false;
    return view && node->rank == 0;
}

/* Was the node not found before? Notes it. */
static bool first_time(Count *c, const RtNode *node)
{
    uint32_t hash = table_key(hash64(&node, sizeof node));
    for (uint32_t probe = 0, i; table_next(&c->table, hash, &probe, &i);)
        if (c->seen.at[i] == node)
            return false;
    table_add(c->arena, &c->table, hash, c->seen.n);
    VEC_PUSH(c->arena, c->seen, node);
    return true;
}

/* Numbers are left out: one that met a tensor was made anew in its dtype, and that one counts (runtime/record/record.c). */
static void find(Count *c, const RtNode *node)
{
    if (node_pending(node) && node->op != OP_SCALAR && node->mark == 0 && first_time(c, node))
        VEC_PUSH(c->arena, c->open, node);
}

static void count_handle(const kiln_tensor *x, void *user)
{
    Count *c = user;
    find(c, x->node);
    while (c->open.n) {
        const RtNode *node = c->open.at[--c->open.n];
        c->not_needed += !repeats_number(node);
        for (uint32_t k = 0; k < node->n_in; k++)
            find(c, node->in[k]);
    }
}

Recorded count_recorded(const Graph *g, const Call *call)
{
    if (!log_on(LOG_PASSES))
        return (Recorded){0};
    Count count = {.arena = g->arena};
    uint32_t needed = 0;
    if (!call->held) /* a replayed function: its nodes are in no walk */
        scopes_visit(count_handle, &count);
    for (size_t i = 0; i < call->nodes.n; i++)
        needed += !repeats_number(call->nodes.at[i]);
    return (Recorded){needed, count.not_needed, graph_size(g)};
}

void log_recorded(Recorded r)
{
    log_line(LOG_PASSES, "%-12s %u -> %u nodes: %u not needed, %u merged", "recorded", r.needed + r.not_needed, r.left, r.not_needed,
             r.needed - r.left);
}

/*
 * The walk that rewrites a graph, and the merging of nodes that carry facts.
 *
 * graph_rewrite takes all nodes out and puts the live ones back, oldest first, each through
 * rewrite_add with its inputs replaced by what those became. So the new list is in topological
 * order by construction, equal nodes without facts meet in the graph's intern table, and nodes that
 * nothing needs any more are dropped at the end.
 *
 * Merging: a table of the nodes that the intern table leaves out.
 *   - Nodes with integer facts (slices, expands...) are one when all facts are proven equal. With
 * FAMILY_MERGE also when they are equal now and spec_dim_same agrees to guard that.
 *   - With FAMILY_MERGE, elementwise nodes that differ only in *which* scalar fact is broadcast are
 * one when the values are equal now and spec_scalar agrees to pin each: only where the node is
 * large enough to pay for that. What is broadcast has its own shape: sizes that are not proven
 * equal are guarded too.
 */
#include "ir/base/hash.h"
#include "ir/body.h"
#include "ir/query.h"
#include "ir/rules.h"

#include <string.h>

enum { WORTH_PINNING = 4096 };

/* ---- merging ---- */

/* The scalar fact that operand r broadcasts; REF_NONE: none. */
static Ref scalar_fact(const Graph *g, Ref r)
{
    Ref s = scalar_source(g, r);
    return s != REF_NONE && graph_node(g, s)->op == OP_SCALAR && !graph_node(g, s)->attr.flag ? s : REF_NONE;
}

static uint64_t scalar_bits(const Graph *g, Ref s) { return g->shared->scalars.at[graph_node(g, s)->scalar].bits; }

static uint64_t mix(uint64_t hash, uint64_t value)
{
    uint64_t pair[2] = {hash, value};
    return hash64(pair, sizeof pair);
}

/* Equal for nodes that might be merged. */
static uint64_t merge_hash(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    uint64_t hash = mix((uint64_t)n->op << 8 | n->dtype, hash64(&n->attr, sizeof n->attr));
    for (uint32_t k = 0; k < n->n_in; k++) {
        Ref s = n->n_facts ? REF_NONE : scalar_fact(g, n->in[k]);
        hash = mix(hash, s == REF_NONE ? n->in[k] : ~scalar_bits(g, s));
    }
    for (uint32_t k = 0; k < n->n_facts; k++)
        hash = mix(hash, (uint64_t)dim_hint(g, n->fact[k]));
    return hash;
}

static bool same_facts(const Rewriter *w, const Node *x, const Node *y)
{
    const Graph *g = w->g;
    bool ask = false;
    for (uint32_t k = 0; k < x->n_facts; k++) {
        if (dim_hint(g, x->fact[k]) != dim_hint(g, y->fact[k]))
            return false;
        ask |= !dim_same(g, x->fact[k], y->fact[k]);
    }
    if (!ask)
        return true;
    if (!(w->families & FAMILY_MERGE))
        return false;
    uint32_t mark = query_mark(g);
    for (uint32_t k = 0; k < x->n_facts; k++) {
        if (!spec_dim_same(g, x->fact[k], y->fact[k], "cse")) {
            query_undo(g, mark);
            return false;
        }
    }
    return true;
}

/* Shapes alike; operands alike, or broadcasts of scalars that are equal now and may be pinned. */
static bool same_operands(const Rewriter *w, const Node *x, const Node *y)
{
    const Graph *g = w->g;
    for (uint32_t k = 0; k < x->n_in; k++) {
        Ref a = scalar_fact(g, x->in[k]), b = scalar_fact(g, y->in[k]);
        if (x->in[k] != y->in[k] && (a == REF_NONE || b == REF_NONE || scalar_bits(g, a) != scalar_bits(g, b) ||
                                     graph_node(g, a)->dtype != graph_node(g, b)->dtype))
            return false;
    }
    uint32_t mark = query_mark(g);
    for (int d = 0; d < x->rank; d++) {
        if (!spec_dim_same(g, x->dim[d], y->dim[d], "cse")) {
            query_undo(g, mark);
            return false;
        }
    }
    for (uint32_t k = 0; k < x->n_in; k++) {
        uint64_t ignored;
        if (x->in[k] != y->in[k] &&
            !(spec_scalar(g, scalar_fact(g, x->in[k]), "cse", &ignored) && spec_scalar(g, scalar_fact(g, y->in[k]), "cse", &ignored))) {
            query_undo(g, mark);
            return false;
        }
    }
    return true;
}

static bool mergeable(const Rewriter *w, Ref a, Ref b)
{
    const Node *x = graph_node(w->g, a), *y = graph_node(w->g, b);
    if (x->op != y->op || x->dtype != y->dtype || x->rank != y->rank || x->n_in != y->n_in || x->n_facts != y->n_facts ||
        memcmp(&x->attr, &y->attr, sizeof x->attr) != 0)
        return false;
    if (!x->n_facts)
        return same_operands(w, x, y);
    return (x->n_in == 0 || memcmp(x->in, y->in, sizeof *x->in * x->n_in) == 0) && same_facts(w, x, y);
}

/* Is r a node that this table is for? */
static bool wanted(const Rewriter *w, Ref r)
{
    const Node *n = graph_node(w->g, r);
    if (n->n_facts)
        return n->op != OP_INPUT;
    if (!(w->families & FAMILY_MERGE) || n->number || op_class((Op)n->op) != CLS_EW || node_hint_numel(w->g, r) < WORTH_PINNING)
        return false;
    for (uint32_t k = 0; k < n->n_in; k++)
        if (scalar_fact(w->g, n->in[k]) != REF_NONE)
            return true;
    return false;
}

Ref rewrite_merge(Rewriter *w, Ref r)
{
    if (!wanted(w, r))
        return r;
    uint32_t hash = table_key(merge_hash(w->g, r));
    for (uint32_t probe = 0, old; table_next(&w->facts_table, hash, &probe, &old);) {
        if (old == r)
            return r;
        if (mergeable(w, old, r)) {
            w->merged++;
            return old;
        }
    }
    table_add(w->g->arena, &w->facts_table, hash, r);
    return r;
}

/* ---- the walk ---- */

/* How often each node is read by nodes that some output needs, or is one; 0: it is not needed. Inputs are. */
static uint32_t *count_readers(const Graph *g)
{
    uint32_t *readers = ARENA_ARRAY(g->arena, uint32_t, g->nodes.n);
    for (uint32_t k = 0; k < g->inputs.n; k++)
        readers[g->inputs.at[k]]++;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        readers[g->outputs.at[k]]++;
    for (Ref r = g->nodes.n; r-- > 0;)
        for (uint32_t k = 0; readers[r] && k < graph_node(g, r)->n_in; k++)
            readers[graph_node(g, r)->in[k]]++;
    return readers;
}

static void add_readers(Rewriter *w, Ref r, uint32_t n)
{
    while (w->readers.n <= r)
        VEC_PUSH(w->g->arena, w->readers, 0);
    w->readers.at[r] += n;
}

/* Has `made` the type of the node it stands for? */
static bool same_type(const Graph *g, const Node *old, Ref made)
{
    const Node *n = graph_node(g, made);
    bool same = n->dtype == old->dtype && n->rank == old->rank;
    for (int d = 0; same && d < n->rank; d++)
        same = dim_hint(g, n->dim[d]) == dim_hint(g, old->dim[d]);
    return same;
}

Status graph_rewrite(Rewriter *w)
{
    Graph *g = w->g;
    uint32_t n_old, origin = g->origin;
    uint8_t phase = g->phase, checkpoint = g->checkpoint;
    const uint32_t *readers = count_readers(g);
    const Node *old = graph_take_nodes(g, &n_old);
    Ref *map = ARENA_ARRAY(g->arena, Ref, n_old + 1), in_small[8];
    for (Ref r = 0; r < n_old; r++) {
        const Node *n = &old[r];
        map[r] = REF_NONE;
        if (!readers[r])
            continue;
        g->origin = n->origin;
        g->phase = n->phase;
        g->checkpoint = n->checkpoint;
        if (n->op == OP_INPUT || n->op == OP_SCALAR) {
            map[r] = graph_put_leaf(g, n);
            continue;
        }
        Ref *in = n->n_in <= 8 ? in_small : ARENA_ARRAY(g->arena, Ref, n->n_in);
        for (uint32_t k = 0; k < n->n_in; k++)
            in[k] = map[n->in[k]];
        if (op_class((Op)n->op) == CLS_BODY) {
            map[r] = graph_put_body(g, n, in);
            continue;
        }
        map[r] = rewrite_add(w, (Op)n->op, (DType)n->dtype, in, n->n_in, &n->attr, n->fact, n->n_facts, n->loc);
        add_readers(w, map[r], readers[r]);
        Node *made = graph_node(g, map[r]);
        if (made->phase == n->phase && made->checkpoint > n->checkpoint) /* an older node, now a checkpoint's result as well */
            made->checkpoint = n->checkpoint;
        if (!same_type(g, n, map[r])) {
            Str text;
            str_init(&text, g->arena);
            node_print(g, map[r], &text);
            return fail(ST_INTERNAL, "a rewrite changed the type of node %u: `%s`", r, text.text);
        }
    }
    g->origin = origin;
    g->phase = phase;
    g->checkpoint = checkpoint;
    graph_remap(g, map, n_old);
    graph_compact(g, NULL);
    return ST_OK;
}

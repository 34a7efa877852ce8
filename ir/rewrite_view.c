/*
 * Views of views: compositions and identities. All exact; none asks about a fact, except that a
 * slice composed of two (a flip of a flip) asks whether it is the whole axis once the numbers at
 * hand say so.
 */
#include "ir/query.h"
#include "ir/rules.h"

#include <string.h>

static bool is_const(const Graph *g, Dim d, int64_t value)
{
    const DimInfo *info = &g->shared->dims.at[dim_find(g, d)];
    return info->kind == DIM_CONST && info->hint == value;
}

static Ref add_view(Rewriter *w, Op op, Ref x, const Attr *attr, const Dim *facts, uint32_t n_facts, Loc loc)
{
    return rewrite_add(w, op, (DType)graph_node(w->g, x)->dtype, &x, 1, attr, facts, n_facts, loc);
}

/* A view of a repeated scalar is that scalar repeated to the view's sizes. */
Ref rewrite_view_of_scalar(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.op == OP_PAD || n.op == OP_CONCAT)
        return REF_NONE;
    Ref s = scalar_source(w->g, n.in[0]);
    if (s == REF_NONE)
        return REF_NONE;
    bool canonical = n.op == OP_RESHAPE
                         ? s == n.in[0]
                         : n.op == OP_EXPAND && graph_node(w->g, n.in[0])->op == OP_RESHAPE && graph_node(w->g, n.in[0])->in[0] == s;
    if (canonical && n.op == OP_EXPAND) /* is every axis that is not 1 expanded here? */
        for (int d = 0; d < n.rank; d++)
            canonical &= (n.attr.mask >> d & 1) != is_const(w->g, n.dim[d], 1);
    return canonical && n.rank ? REF_NONE : rewrite_broadcast(w, s, n.rank, n.dim, n.loc);
}

Ref rewrite_permute(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.op != OP_PERMUTE)
        return REF_NONE;
    const Node x = *graph_node(w->g, n.in[0]);
    Attr attr = n.attr;
    bool identity = true;
    for (uint8_t d = 0; d < n.rank; d++) {
        attr.perm[d] = x.op == OP_PERMUTE ? x.attr.perm[n.attr.perm[d]] : n.attr.perm[d];
        identity &= attr.perm[d] == d;
    }
    Ref source = x.op == OP_PERMUTE ? x.in[0] : n.in[0];
    if (identity)
        return source;
    return x.op == OP_PERMUTE ? add_view(w, OP_PERMUTE, source, &attr, NULL, 0, n.loc) : REF_NONE;
}

/* ---- expand, slice ---- */

Ref rewrite_expand(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.op != OP_EXPAND)
        return REF_NONE;
    const Node x = *graph_node(w->g, n.in[0]);
    bool twice = x.op == OP_EXPAND;
    Ref source = twice ? x.in[0] : n.in[0];
    Attr attr = {.mask = (uint8_t)(n.attr.mask | (twice ? x.attr.mask : 0))};
    Dim facts[MAX_RANK];
    uint32_t n_facts = 0;
    for (int d = 0; d < n.rank; d++) {
        if (!(attr.mask >> d & 1))
            continue;
        if (is_const(w->g, n.dim[d], 1))
            attr.mask = (uint8_t)(attr.mask & ~(1u << d));
        else
            facts[n_facts++] = n.dim[d];
    }
    if (attr.mask == 0)
        return source;
    if (!twice && attr.mask == n.attr.mask)
        return REF_NONE;
    return add_view(w, OP_EXPAND, source, &attr, facts, n_facts, n.loc);
}

typedef struct Cut {
    Dim start, step, length;
} Cut;

/* The slice of each axis: as the node says, or the whole. */
static void cuts_of(Graph *g, const Node *n, Cut *cuts)
{
    const Dim *fact = n->fact;
    Dim zero = dim_const(g, 0), one = dim_const(g, 1);
    for (int d = 0; d < n->rank; d++) {
        cuts[d] = (Cut){zero, one, n->dim[d]};
        if (n->attr.mask >> d & 1) {
            cuts[d] = (Cut){fact[0], fact[1], fact[2]};
            fact += 3;
        }
    }
}

/* Is this cut the whole axis? `ask`: also when only the numbers at hand say so. */
static bool whole(const Graph *g, const Cut *cut, Dim size, bool ask)
{
    if (is_const(g, cut->start, 0) && is_const(g, cut->step, 1) && dim_same(g, cut->length, size))
        return true;
    if (!ask || dim_hint(g, cut->start) != 0 || dim_hint(g, cut->step) != 1 || dim_hint(g, cut->length) != dim_hint(g, size))
        return false;
    uint32_t mark = query_mark(g);
    if (spec_dim_eq(g, cut->start, 0, "slice") && spec_dim_eq(g, cut->step, 1, "slice") && spec_dim_same(g, cut->length, size, "slice"))
        return true;
    query_undo(g, mark);
    return false;
}

/* The slice of `source` by `cuts` without axes that stay whole. */
static Ref add_slice(Rewriter *w, Ref source, const Cut *cuts, bool ask, Loc loc)
{
    const Node x = *graph_node(w->g, source);
    Attr attr = {0};
    Dim facts[3 * MAX_RANK];
    uint32_t n = 0;
    for (int d = 0; d < x.rank; d++) {
        if (whole(w->g, &cuts[d], x.dim[d], ask))
            continue;
        attr.mask = (uint8_t)(attr.mask | 1u << d);
        facts[n++] = cuts[d].start;
        facts[n++] = cuts[d].step;
        facts[n++] = cuts[d].length;
    }
    return attr.mask ? add_view(w, OP_SLICE, source, &attr, facts, n, loc) : source;
}

/* A slice of repeated axes only changes how often they are repeated. */
static Ref slice_of_expand(Rewriter *w, const Node *n, const Node *x)
{
    Cut cuts[MAX_RANK];
    Dim facts[MAX_RANK];
    uint32_t n_facts = 0;
    cuts_of(w->g, n, cuts);
    for (int d = 0; d < n->rank; d++) {
        if (!(x->attr.mask >> d & 1))
            continue;
        cuts[d] = (Cut){dim_const(w->g, 0), dim_const(w->g, 1), dim_const(w->g, 1)};
        facts[n_facts++] = n->dim[d];
    }
    Ref source = add_slice(w, x->in[0], cuts, false, n->loc);
    return add_view(w, OP_EXPAND, source, &x->attr, facts, n_facts, n->loc);
}

/* index = s0 + t0 * (s1 + t1 * i) */
static Ref slice_of_slice(Rewriter *w, const Node *n, const Node *x)
{
    Cut outer[MAX_RANK], inner[MAX_RANK];
    cuts_of(w->g, n, outer);
    cuts_of(w->g, x, inner);
    for (int d = 0; d < n->rank; d++) {
        Dim start = dim_add(w->g, inner[d].start, dim_mul(w->g, inner[d].step, outer[d].start));
        outer[d] = (Cut){start, dim_mul(w->g, inner[d].step, outer[d].step), outer[d].length};
    }
    return add_slice(w, x->in[0], outer, true, n->loc);
}

Ref rewrite_slice(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.op != OP_SLICE)
        return REF_NONE;
    const Node x = *graph_node(w->g, n.in[0]);
    if (x.op == OP_SLICE)
        return slice_of_slice(w, &n, &x);
    if (x.op == OP_EXPAND && x.attr.mask & n.attr.mask)
        return slice_of_expand(w, &n, &x);
    Cut cuts[MAX_RANK];
    uint8_t changed = 0;
    cuts_of(w->g, &n, cuts);
    for (int d = 0; d < n.rank; d++)
        changed = (uint8_t)(changed | (!whole(w->g, &cuts[d], x.dim[d], false)) << d);
    return changed == n.attr.mask ? REF_NONE : add_slice(w, n.in[0], cuts, false, n.loc);
}

/* ---- pad, concat ---- */

Ref rewrite_pad_nothing(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    Attr attr = {0};
    Dim facts[2 * MAX_RANK];
    uint32_t n_facts = 0;
    if (n.op != OP_PAD)
        return REF_NONE;
    for (int d = 0, k = 0; d < n.rank; d++) {
        if (!(n.attr.mask >> d & 1))
            continue;
        Dim low = n.fact[k++], high = n.fact[k++];
        if (is_const(w->g, low, 0) && is_const(w->g, high, 0))
            continue;
        attr.mask = (uint8_t)(attr.mask | 1u << d);
        facts[n_facts++] = low;
        facts[n_facts++] = high;
    }
    if (attr.mask == 0)
        return n.in[0];
    if (attr.mask == n.attr.mask)
        return REF_NONE;
    return rewrite_add(w, OP_PAD, (DType)n.dtype, n.in, 2, &attr, facts, n_facts, n.loc);
}

Ref rewrite_concat_one(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.op != OP_CONCAT)
        return REF_NONE;
    /* Parts that are proven empty go too. */
    Ref *in = ARENA_ARRAY(w->g->arena, Ref, n.n_in);
    uint32_t kept = 0;
    for (uint32_t k = 0; k < n.n_in; k++)
        if (!is_const(w->g, graph_node(w->g, n.in[k])->dim[n.attr.axis], 0))
            in[kept++] = n.in[k];
    if (kept == 0)
        in[kept++] = n.in[0];
    if (kept == 1)
        return in[0];
    return kept == n.n_in ? REF_NONE : rewrite_add(w, OP_CONCAT, (DType)n.dtype, in, kept, &n.attr, NULL, 0, n.loc);
}

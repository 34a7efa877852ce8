/*
 * Rewrites of reductions: axes of size 1, repeated axes, reductions of reductions.
 *
 * A reduction of one element gives that element: sums start at -0.0, products at 1. The order in
 * which float sums are taken is a function of the number of elements (ir/orders.def), which dropping
 * axes of size 1 does not change.
 */
#include "ir/query.h"
#include "ir/rules.h"

static bool picks(Op op) { return op == OP_REDUCE_MAX || op == OP_REDUCE_MIN || op == OP_REDUCE_ANY || op == OP_REDUCE_ALL; }

static bool gives_index(Op op) { return op == OP_ARGMAX || op == OP_ARGMIN; }

static Ref add_reduce(Rewriter *w, const Node *n, Ref x, unsigned mask)
{
    Attr attr = {.mask = (uint8_t)mask};
    return rewrite_add(w, (Op)n->op, (DType)n->dtype, &x, 1, &attr, NULL, 0, n->loc);
}

Ref rewrite_reduce_nothing(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.attr.mask)
        return REF_NONE;
    return gives_index((Op)n.op) ? rewrite_const(w, DT_I64, 0, n.rank, n.dim, n.loc) : n.in[0];
}

/* A mask over the axes of x without those in `dropped`, counted anew. */
static unsigned squeeze_mask(unsigned mask, unsigned dropped, int rank)
{
    unsigned out = 0, at = 0;
    for (int d = 0; d < rank; d++)
        if (!(dropped >> d & 1))
            out |= (mask >> d & 1) << at++;
    return out;
}

/* x without the axes in `dropped`, each of size 1. */
static Ref drop_axes(Rewriter *w, Ref x, unsigned dropped, Loc loc)
{
    const Node n = *graph_node(w->g, x);
    Attr attr = {.n = n.rank};
    for (int d = 0; d < n.rank; d++) {
        attr.group.in[d] = 1;
        attr.group.out[d] = !(dropped >> d & 1);
    }
    return rewrite_add(w, OP_RESHAPE, (DType)n.dtype, &x, 1, &attr, NULL, 0, loc);
}

Ref rewrite_reduce_size_one(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    const Node x = *graph_node(w->g, n.in[0]);
    unsigned dropped = 0;
    for (int d = 0; d < x.rank; d++)
        if (n.attr.mask >> d & 1 && spec_dim_eq(w->g, x.dim[d], 1, "reduce_size_one"))
            dropped |= 1u << d;
    if (!dropped)
        return REF_NONE;
    return add_reduce(w, &n, drop_axes(w, n.in[0], dropped, n.loc), squeeze_mask(n.attr.mask, dropped, x.rank));
}

/* Is node n, a reduction, over axes that its input repeats? Those axes; *y is the input with size 1
 * there. */
static unsigned repeated_axes(const Graph *g, const Node *n)
{
    const Node *x = graph_node(g, n->in[0]);
    return x->op == OP_EXPAND ? x->attr.mask & n->attr.mask : 0u;
}

/* The expanded input without the expansion of `axes`. */
static Ref unrepeat(Rewriter *w, Ref expanded, unsigned axes)
{
    const Node x = *graph_node(w->g, expanded);
    Attr attr = {.mask = (uint8_t)(x.attr.mask & ~axes)};
    Dim facts[MAX_RANK];
    uint32_t n = 0;
    for (int d = 0; d < x.rank; d++)
        if (attr.mask >> d & 1)
            facts[n++] = x.dim[d];
    return n ? rewrite_add(w, OP_EXPAND, (DType)x.dtype, x.in, 1, &attr, facts, n, x.loc) : x.in[0];
}

Ref rewrite_max_of_broadcast(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    unsigned axes = picks((Op)n.op) ? repeated_axes(w->g, &n) : 0u;
    if (!axes)
        return REF_NONE;
    uint32_t mark = query_mark(w->g);
    for (int d = 0; d < MAX_RANK; d++) {
        if (axes >> d & 1 && /* of nothing they give where they start from */
            !spec_range(w->g, graph_node(w->g, n.in[0])->dim[d], 1, INT64_MAX, "max_of_broadcast")) {
            query_undo(w->g, mark);
            return REF_NONE;
        }
    }
    return add_reduce(w, &n, unrepeat(w, n.in[0], axes), n.attr.mask);
}

Ref rewrite_sum_of_broadcast(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    unsigned axes = n.op == OP_REDUCE_SUM ? repeated_axes(w->g, &n) : 0u;
    if (!axes)
        return REF_NONE;
    int64_t count = 1, size;
    uint32_t mark = query_mark(w->g);
    for (int d = 0; d < MAX_RANK; d++) {
        if (!(axes >> d & 1))
            continue;
        Dim dim = graph_node(w->g, n.in[0])->dim[d];
        if (dim_hint(w->g, dim) == 0 || !spec_dim(w->g, dim, "sum_of_broadcast", &size)) {
            query_undo(w->g, mark);
            return REF_NONE;
        }
        count *= size;
    }
    /* f16 and bf16 sums are taken in f32: so is this product. */
    DType dtype = (DType)n.dtype, wide = dtype_accumulator(dtype);
    Ref sum = rewrite_cast(w, add_reduce(w, &n, unrepeat(w, n.in[0], axes), n.attr.mask), wide, n.loc);
    Ref times = rewrite_const(w, wide, scalar_from_int(wide, count), n.rank, n.dim, n.loc);
    return rewrite_cast(w, rewrite_ew(w, OP_MUL, sum, times, REF_NONE, n.loc), dtype, n.loc);
}

/* The same reduction of a reduction is one over the axes of both. */
static Ref reduce_twice(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    const Node x = *graph_node(w->g, n.in[0]);
    if (x.op != n.op)
        return REF_NONE;
    int rank = graph_node(w->g, x.in[0])->rank, at = 0;
    unsigned mask = x.attr.mask;
    for (int d = 0; d < rank; d++)
        if (!(x.attr.mask >> d & 1))
            mask |= (n.attr.mask >> at++ & 1u) << d;
    return add_reduce(w, &n, x.in[0], mask);
}

Ref rewrite_max_of_max(Rewriter *w, Ref r) { return picks((Op)graph_node(w->g, r)->op) ? reduce_twice(w, r) : REF_NONE; }

Ref rewrite_sum_of_sum(Rewriter *w, Ref r)
{
    Op op = (Op)graph_node(w->g, r)->op;
    return op == OP_REDUCE_SUM || op == OP_REDUCE_PROD ? reduce_twice(w, r) : REF_NONE;
}

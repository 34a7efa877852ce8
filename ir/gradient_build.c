/* Adding nodes for derivatives: short names for what the rules of ir/gradient_*.c are made of. */
#include "ir/gradient_rules.h"

static const Loc nowhere;

Ref grad_node(Gradient *d, Op op, const Ref *in, uint32_t n_in, const Attr *attr, const Dim *facts, uint32_t n_facts)
{
    return rewrite_add(&d->w, op, dtype_of(d, in[0]), in, n_in, attr, facts, n_facts, nowhere);
}

Ref grad_ew1(Gradient *d, Op op, Ref a) { return rewrite_ew(&d->w, op, a, REF_NONE, REF_NONE, nowhere); }
Ref grad_ew2(Gradient *d, Op op, Ref a, Ref b) { return rewrite_ew(&d->w, op, a, b, REF_NONE, nowhere); }
Ref grad_where(Gradient *d, Ref c, Ref a, Ref b) { return rewrite_ew(&d->w, OP_WHERE, c, a, b, nowhere); }
Ref grad_cast(Gradient *d, Ref x, DType dtype) { return rewrite_cast(&d->w, x, dtype, nowhere); }
Ref grad_wide(Gradient *d, Ref x) { return grad_cast(d, x, dtype_accumulator(dtype_of(d, x))); }

Ref grad_number(Gradient *d, DType dtype, double value, Ref like)
{
    const Node n = node_of(d, like);
    return rewrite_const(&d->w, dtype, scalar_from_double(dtype, value), n.rank, n.dim, nowhere);
}

Ref grad_zero(Gradient *d, DType dtype, int rank, const Dim *dims)
{
    Dim sizes[MAX_RANK] = {0};
    for (int k = 0; k < rank; k++)
        sizes[k] = dims[k];
    return rewrite_const(&d->w, dtype, 0, rank, sizes, nowhere);
}

Dim grad_fact(Gradient *d, int64_t value, FactKind kind, uint8_t axis) { return dim_fact(d->g, value, kind, axis, d->g->nodes.n); }

Ref grad_insert(Gradient *d, Ref x, uint8_t mask)
{
    if (!mask)
        return x;
    Attr attr = {.n = (uint32_t)(graph_node(d->g, x)->rank + __builtin_popcount(mask))};
    for (uint32_t k = 0; k < attr.n; k++) {
        attr.group.in[k] = mask >> k & 1 ? 0 : 1;
        attr.group.out[k] = 1;
    }
    return grad_node(d, OP_RESHAPE, &x, 1, &attr, NULL, 0);
}

Ref grad_repeat(Gradient *d, Ref x, uint8_t mask, const Dim *dims)
{
    Attr attr = {.mask = mask};
    Dim facts[MAX_RANK];
    uint32_t n = 0;
    for (int k = 0; k < MAX_RANK; k++)
        if (mask >> k & 1)
            facts[n++] = dims[k];
    return mask ? grad_node(d, OP_EXPAND, &x, 1, &attr, facts, n) : x;
}

Ref grad_reduce(Gradient *d, Op op, Ref x, uint8_t mask)
{
    Attr attr = {.mask = mask};
    return mask ? grad_node(d, op, &x, 1, &attr, NULL, 0) : x;
}

Ref grad_spread(Gradient *d, Ref x, uint8_t mask, const Dim *dims) { return grad_repeat(d, grad_insert(d, x, mask), mask, dims); }

Ref grad_permute(Gradient *d, Ref x, const uint8_t *perm)
{
    Attr attr = {0};
    bool identity = true;
    for (uint8_t k = 0; k < graph_node(d->g, x)->rank; k++) {
        attr.perm[k] = perm[k];
        identity &= perm[k] == k;
    }
    return identity ? x : grad_node(d, OP_PERMUTE, &x, 1, &attr, NULL, 0);
}

Ref grad_transposed(Gradient *d, Ref x)
{
    uint8_t perm[MAX_RANK], rank = graph_node(d->g, x)->rank;
    for (uint8_t k = 0; k < rank && k < MAX_RANK; k++)
        perm[k] = (uint8_t)(k + 2 < rank ? k : 2 * rank - 3 - k); /* the last two change places */
    return grad_permute(d, x, perm);
}

Ref grad_product(Gradient *d, Ref a, Ref b) { return grad_node(d, OP_MATMUL, (const Ref[]){a, b}, 2, NULL, NULL, 0); }

Ref grad_positions(Gradient *d, uint8_t axis, int rank, const Dim *dims)
{
    Ref iota = rewrite_add(&d->w, OP_IOTA, DT_I64, NULL, 0, NULL, &dims[axis], 1, nowhere);
    return grad_along(d, iota, axis, rank, dims);
}

/* `in` axes from `axis` on become `out`, one of which is 1. */
static Ref regroup(Gradient *d, Ref x, int axis, int in, int out, const Dim *dims)
{
    if (in == out)
        return x;
    Attr attr = {.n = (uint32_t)(graph_node(d->g, x)->rank - in + 1)};
    for (uint32_t k = 0; k < attr.n; k++) {
        attr.group.in[k] = (uint8_t)((int)k == axis ? in : 1);
        attr.group.out[k] = (uint8_t)((int)k == axis ? out : 1);
    }
    return grad_node(d, OP_RESHAPE, &x, 1, &attr, dims, out > 1 ? (uint32_t)out : 0);
}

Ref grad_merge(Gradient *d, Ref x, int axis, int n) { return regroup(d, x, axis, n, 1, NULL); }
Ref grad_split(Gradient *d, Ref x, int axis, int n, const Dim *dims) { return regroup(d, x, axis, 1, n, dims); }

Ref grad_slice(Gradient *d, Ref x, int axis, Dim start, Dim step, Dim length)
{
    Attr attr = {.mask = (uint8_t)(1u << axis)};
    return grad_node(d, OP_SLICE, &x, 1, &attr, (const Dim[]){start, step, length}, 3);
}

Ref grad_pad(Gradient *d, Ref x, int axis, Dim low, Dim high)
{
    Attr attr = {.mask = (uint8_t)(1u << axis)};
    Ref in[2] = {x, graph_add_const(d->g, dtype_of(d, x), 0, nowhere)};
    return grad_node(d, OP_PAD, in, 2, &attr, (const Dim[]){low, high}, 2);
}

Ref grad_flip(Gradient *d, Ref x, int axis)
{
    Dim length = graph_node(d->g, x)->dim[axis];
    int64_t n = dim_hint(d->g, length);
    return grad_slice(d, x, axis, grad_fact(d, n ? n - 1 : 0, FACT_START, (uint8_t)axis), dim_const(d->g, -1), length);
}

Ref grad_along(Gradient *d, Ref x, int axis, int rank, const Dim *dims)
{
    return grad_spread(d, x, (uint8_t)(((1u << rank) - 1) & ~(1u << axis)), dims);
}

/*
 * Random small graphs, for the tests of fusion: every class of op, most dtypes, sizes 0 to 9 (and a
 * long row now and then), shapes that make reductions meet their broadcasts, several outputs. A
 * graph is a function of its seed alone.
 */
#ifndef TESTS_UNIT_FUSE_RANDOM_H
#define TESTS_UNIT_FUSE_RANDOM_H

#include "ir/graph.h"
#include "ir/infer.h"
#include "ir/scalar.h"
#include "tests/support/reshape_groups.h"

#include <stdlib.h>
#include <string.h>

enum { RANDOM_NODES = 64, RANDOM_NUMEL = 1500 };

typedef struct Random {
    Graph *g;
    uint64_t state;
    uint32_t flavour; /* what there is more of: 0 a mix, 1 rows, 2 views, 3 contractions, scatters,
                         sorts */
    Ref node[RANDOM_NODES];
    Shape shape[RANDOM_NODES];
    uint32_t n;
} Random;

static const Loc random_loc = {NULL, 0};

static uint32_t rnd(Random *r, uint32_t below)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return below ? (uint32_t)(r->state >> 33) % below : 0;
}

/* Adds a node unless the op refuses; UINT32_MAX then. Returns its place in the list. */
static uint32_t random_add(Random *r, Op op, const uint32_t *in, uint32_t n_in, const Attr *attr, const int64_t *facts, uint32_t n_facts,
                           DType own)
{
    static const Attr none;
    Shape shapes[RANDOM_NODES], out = {0};
    Ref refs[RANDOM_NODES];
    DType types[RANDOM_NODES];
    Dim dims[4 * MAX_RANK];
    int64_t numel;
    attr = attr ? attr : &none;
    for (uint32_t i = 0; i < n_in; i++) {
        shapes[i] = r->shape[in[i]];
        refs[i] = r->node[in[i]];
        types[i] = (DType)shapes[i].dtype;
    }
    DType type = infer_dtype(op, n_in, types, own);
    if (type == DT_COUNT || r->n == RANDOM_NODES || infer_shape(op, attr, n_in, shapes, facts, n_facts, own, &out) != ST_OK ||
        !shape_numel(out.rank, out.dim, &numel) || numel > RANDOM_NUMEL)
        return UINT32_MAX;
    for (uint32_t i = 0; i < n_facts; i++)
        dims[i] = dim_fact(r->g, facts[i], FACT_SIZE, (uint8_t)i, r->g->nodes.n);
    if (op == OP_SLICE)
        for (uint32_t i = 1; i < n_facts; i += 3)
            r->g->shared->ints.at[r->g->shared->dims.at[dims[i]].fact].kind = FACT_STEP;
    r->node[r->n] = graph_add(r->g, op, type, refs, n_in, attr, dims, n_facts, random_loc);
    r->shape[r->n] = out;
    r->shape[r->n].dtype = (uint8_t)type;
    return r->n++;
}

static uint32_t random_input(Random *r, DType type, int rank, const int64_t *dims)
{
    int64_t strides[MAX_RANK], step = 1;
    bool strided = rank && rnd(r, 4) == 0;
    for (int i = rank; i-- > 0;) { /* with a gap, or reversed order of axes */
        int at = r->state >> 40 & 1 ? i : rank - 1 - i;
        strides[at] = step;
        step *= dims[at] + 1;
    }
    r->node[r->n] = graph_add_input(r->g, type, rank, dims, strided ? strides : NULL, random_loc);
    r->shape[r->n] = (Shape){.dtype = (uint8_t)type, .rank = (uint8_t)rank};
    memcpy(r->shape[r->n].dim, dims, sizeof *dims * (size_t)rank);
    return r->n++;
}

static uint32_t random_scalar(Random *r, DType type)
{
    uint64_t bits = scalar_from_double(type, (double)rnd(r, 9) * 0.5 - 1);
    r->node[r->n] = rnd(r, 2) ? graph_add_scalar(r->g, type, bits, random_loc) : graph_add_const(r->g, type, bits, random_loc);
    r->shape[r->n] = (Shape){.dtype = (uint8_t)type};
    return r->n++;
}

static uint32_t random_cast(Random *r, uint32_t x, DType type)
{
    if (x == UINT32_MAX || r->shape[x].dtype == type)
        return x;
    return random_add(r, OP_CAST, &x, 1, NULL, NULL, 0, type);
}

/* x broadcast to the shape of `like`: along axes of size 1; of rank 0 along all. */
static uint32_t random_expand(Random *r, uint32_t x, const Shape *like)
{
    if (x == UINT32_MAX)
        return x;
    if (r->shape[x].rank == 0 && like->rank) {
        Attr a = {.n = like->rank};
        for (int i = 0; i < like->rank; i++)
            a.group.out[i] = 1;
        x = random_add(r, OP_RESHAPE, &x, 1, &a, NULL, 0, DT_COUNT);
        if (x == UINT32_MAX)
            return x;
    }
    if (r->shape[x].rank != like->rank)
        return UINT32_MAX;
    Attr e = {0};
    int64_t sizes[MAX_RANK];
    uint32_t n = 0;
    for (int i = 0; i < like->rank; i++) {
        if (r->shape[x].dim[i] == like->dim[i])
            continue;
        if (r->shape[x].dim[i] != 1)
            return UINT32_MAX;
        e.mask |= (uint8_t)(1u << i);
        sizes[n++] = like->dim[i];
    }
    return n ? random_add(r, OP_EXPAND, &x, 1, &e, sizes, n, DT_COUNT) : x;
}

/* A reduction with its axes kept, as size 1, or (drop) without them. */
static uint32_t random_reduce(Random *r, uint32_t x, uint8_t mask, bool drop)
{
    static const Op ops[] = {OP_REDUCE_SUM, OP_REDUCE_SUM, OP_REDUCE_MAX, OP_REDUCE_MIN, OP_REDUCE_PROD, OP_ARGMAX, OP_ARGMIN};
    Op op = ops[rnd(r, 7)];
    Attr a = {.mask = mask}, keep = {0};
    if (r->shape[x].dtype == DT_BOOL && op < OP_ARGMAX)
        op = rnd(r, 2) ? OP_REDUCE_ANY : OP_REDUCE_ALL;
    uint32_t y = random_add(r, op, &x, 1, &a, NULL, 0, DT_COUNT);
    if (y == UINT32_MAX || drop)
        return y;
    for (int i = 0; i < r->shape[x].rank; i++) {
        keep.group.in[keep.n] = !(mask >> i & 1);
        keep.group.out[keep.n++] = 1;
    }
    y = random_add(r, OP_RESHAPE, &y, 1, &keep, NULL, 0, DT_COUNT);
    return y == UINT32_MAX ? y : random_cast(r, y, (DType)r->shape[x].dtype);
}

/* Some value of this shape and dtype. */
static uint32_t random_like(Random *r, const Shape *like)
{
    for (uint32_t tries = 0; tries < 12; tries++) {
        uint32_t y = rnd(r, r->n);
        const Shape *s = &r->shape[y];
        if (s->rank == like->rank && !memcmp(s->dim, like->dim, sizeof s->dim[0] * s->rank))
            return random_cast(r, y, (DType)like->dtype);
        if (s->rank == like->rank && tries > 6) {
            y = random_expand(r, y, like);
            if (y != UINT32_MAX)
                return random_cast(r, y, (DType)like->dtype);
        }
    }
    if (r->n + 4 > RANDOM_NODES)
        return UINT32_MAX;
    return random_expand(r, random_scalar(r, (DType)like->dtype), like);
}

/* x with some number in place of NaN, whose sign is nobody's promise. */
static uint32_t random_hide_nan(Random *r, uint32_t x)
{
    if (!dtype_is_float((DType)r->shape[x].dtype))
        return x;
    uint32_t in[3] = {random_add(r, OP_ISNAN, &x, 1, NULL, NULL, 0, DT_COUNT), UINT32_MAX, x};
    if (in[0] == UINT32_MAX || r->n == RANDOM_NODES)
        return UINT32_MAX;
    in[1] = random_expand(r, random_scalar(r, (DType)r->shape[x].dtype), &r->shape[x]);
    return in[1] == UINT32_MAX ? in[1] : random_add(r, OP_WHERE, in, 3, NULL, NULL, 0, DT_COUNT);
}

static uint32_t random_elementwise(Random *r, uint32_t x)
{
    Op op = (Op)(OP_NEG + (int)rnd(r, OP_WHERE - OP_NEG + 1));
    Shape like = r->shape[x];
    uint32_t in[3] = {x, x, x};
    if (op == OP_CAST)
        return random_cast(r, x, (DType)rnd(r, DT_COUNT));
    if (op == OP_WHERE) {
        Shape cond = like;
        cond.dtype = DT_BOOL;
        in[0] = random_like(r, &cond);
        in[1] = x;
        in[2] = random_like(r, &like);
    } else
        for (int i = 1; i < op_info[op].arity; i++)
            in[i] = random_like(r, &like);
    for (int i = 0; i < op_info[op].arity; i++)
        if (in[i] == UINT32_MAX)
            return UINT32_MAX;
    uint32_t *signed_in = op == OP_COPYSIGN ? &in[1] : op == OP_SIGNBIT ? &in[0] : NULL;
    if (signed_in && (*signed_in = random_hide_nan(r, *signed_in)) == UINT32_MAX)
        return UINT32_MAX;
    return random_add(r, op, in, (uint32_t)op_info[op].arity, NULL, NULL, 0, DT_COUNT);
}

static uint32_t random_reshape(Random *r, uint32_t x)
{
    const Shape s = r->shape[x];
    int64_t to[MAX_RANK], facts[MAX_RANK];
    int rank = 0;
    uint32_t n_facts;
    Attr a = {0};
    for (int i = 0; i < s.rank && rank < 5; i++) {
        uint32_t kind = rnd(r, 4);
        if (kind == 0 && rank)
            to[rank - 1] *= s.dim[i];
        else if (kind == 1 && s.dim[i] % 2 == 0 && s.dim[i]) {
            to[rank++] = 2;
            to[rank++] = s.dim[i] / 2;
        } else if (kind == 2 && s.dim[i] % 3 == 0 && s.dim[i]) {
            to[rank++] = s.dim[i] / 3;
            to[rank++] = 3;
        } else
            to[rank++] = s.dim[i];
    }
    if (rnd(r, 3) == 0)
        to[rank++] = 1;
    if (!reshape_groups(s.rank, s.dim, rank, to, &a, facts, &n_facts))
        return UINT32_MAX;
    return random_add(r, OP_RESHAPE, &x, 1, &a, facts, n_facts, DT_COUNT);
}

static uint32_t random_view(Random *r, uint32_t x)
{
    const Shape s = r->shape[x];
    Attr a = {0};
    int64_t facts[3 * MAX_RANK];
    uint32_t n = 0, in[3] = {x, x, x};
    if (!s.rank)
        return UINT32_MAX;
    switch (rnd(r, 6)) {
    case 5: {
        a.axis = (uint8_t)rnd(r, s.rank);
        int64_t size = 1 + rnd(r, 3), stride = 1 + rnd(r, 2), dilation = 1 + rnd(r, 2), span = (size - 1) * dilation + 1,
                dim = s.dim[a.axis];
        if (dim < span)
            return UINT32_MAX;
        return random_add(r, OP_WINDOW, in, 1, &a, (const int64_t[]){stride, dilation, (dim - span) / stride + 1, size}, 4, DT_COUNT);
    }
    case 0:
        for (int i = 0; i < s.rank; i++)
            a.perm[i] = (uint8_t)i;
        for (int i = s.rank; i-- > 1;) {
            uint32_t j = rnd(r, (uint32_t)i + 1);
            uint8_t t = a.perm[i];
            a.perm[i] = a.perm[j];
            a.perm[j] = t;
        }
        return random_add(r, OP_PERMUTE, in, 1, &a, NULL, 0, DT_COUNT);
    case 1: return random_reshape(r, x);
    case 2:
        for (int i = 0; i < s.rank; i++) {
            if (rnd(r, 2) || !s.dim[i])
                continue;
            a.mask |= (uint8_t)(1u << i);
            int64_t start = rnd(r, (uint32_t)s.dim[i]), step = (int64_t)rnd(r, 5) - 2, length;
            length = step > 0 ? (s.dim[i] - 1 - start) / step + 1 : step < 0 ? start / -step + 1 : 3;
            facts[n++] = start;
            facts[n++] = step;
            facts[n++] = length - (length > 1 && rnd(r, 3) == 0);
        }
        return random_add(r, OP_SLICE, in, 1, &a, facts, n, DT_COUNT);
    case 3:
        for (int i = 0; i < s.rank; i++) {
            if (rnd(r, 2))
                continue;
            a.mask |= (uint8_t)(1u << i);
            facts[n++] = rnd(r, 3);
            facts[n++] = rnd(r, 3);
        }
        in[1] = random_scalar(r, (DType)s.dtype);
        return random_add(r, OP_PAD, in, 2, &a, facts, n, DT_COUNT);
    default:
        a.axis = (uint8_t)rnd(r, s.rank);
        in[1] = random_like(r, &s);
        return in[1] == UINT32_MAX ? in[1] : random_add(r, OP_CONCAT, in, 2 + rnd(r, 2), &a, NULL, 0, DT_COUNT);
    }
}

/* An index below the size of an axis: from a range, or from data and now and then out of bounds. */
static uint32_t random_index(Random *r, const Shape *like, int64_t size)
{
    Shape s = *like;
    s.dtype = DT_I64;
    uint32_t x = random_like(r, &s);
    if (x == UINT32_MAX || rnd(r, 16) == 0 || r->n + 6 > RANDOM_NODES)
        return x;
    uint32_t m = r->n;
    r->node[m] = graph_add_scalar(r->g, DT_I64, (uint64_t)(size ? size : 1), random_loc);
    r->shape[m] = (Shape){.dtype = DT_I64};
    r->n++;
    m = random_expand(r, m, &s);
    return m == UINT32_MAX ? m : random_add(r, OP_REM, (uint32_t[]){x, m}, 2, NULL, NULL, 0, DT_COUNT);
}

static uint32_t random_other(Random *r, uint32_t x)
{
    const Shape s = r->shape[x];
    Attr a = {0};
    if (!s.rank)
        return UINT32_MAX;
    a.axis = (uint8_t)rnd(r, s.rank);
    switch (rnd(r, 5)) {
    case 0: return random_add(r, OP_CUMSUM, &x, 1, &a, NULL, 0, DT_COUNT);
    case 1: a.flag = (uint8_t)rnd(r, 2); return random_add(r, OP_ARGSORT, &x, 1, &a, NULL, 0, DT_COUNT);
    case 2: {
        uint32_t index = random_index(r, &s, s.dim[a.axis]);
        return index == UINT32_MAX ? index : random_add(r, OP_GATHER, (uint32_t[]){x, index}, 2, &a, NULL, 0, DT_COUNT);
    }
    case 3: {
        uint32_t index = random_index(r, &s, s.dim[a.axis]), source = random_like(r, &s);
        a.mode = (uint8_t)rnd(r, 4);
        if (index == UINT32_MAX || source == UINT32_MAX)
            return UINT32_MAX;
        return random_add(r, OP_SCATTER, (uint32_t[]){x, index, source}, 3, &a, NULL, 0, DT_COUNT);
    }
    default: {
        if (s.rank < 2)
            return UINT32_MAX;
        Attr swap = {0};
        for (int i = 0; i < s.rank; i++)
            swap.perm[i] = (uint8_t)(i < s.rank - 2 ? i : 2 * s.rank - 3 - i);
        uint32_t y = random_like(r, &s);
        y = y == UINT32_MAX ? y : random_add(r, OP_PERMUTE, &y, 1, &swap, NULL, 0, DT_COUNT);
        return y == UINT32_MAX ? y : random_add(r, OP_MATMUL, (uint32_t[]){x, y}, 2, NULL, NULL, 0, DT_COUNT);
    }
    }
}

static void random_op(Random *r)
{
    uint32_t x = rnd(r, 3) ? r->n - 1 - rnd(r, r->n < 4 ? r->n : 4) : rnd(r, r->n), kind = rnd(r, 20);
    uint8_t mask = r->shape[x].rank ? (uint8_t)rnd(r, 1u << r->shape[x].rank) : 0;
    if (r->n + 8 > RANDOM_NODES)
        return;
    static const uint8_t more[4] = {0, 10, 16, 19};
    if (r->flavour && rnd(r, 3) == 0)
        kind = more[r->flavour];
    if (kind < 9)
        (void)random_elementwise(r, x);
    else if (kind < 12) { /* normalise: x op broadcast(reduce x) */
        uint32_t m = random_reduce(r, x, mask, false);
        m = random_expand(r, m, &r->shape[x]);
        static const Op by[] = {OP_SUB, OP_MUL, OP_MAXIMUM, OP_ADD};
        if (m != UINT32_MAX && r->shape[x].dtype != DT_BOOL)
            (void)random_add(r, by[rnd(r, 4)], (uint32_t[]){x, m}, 2, NULL, NULL, 0, DT_COUNT);
    } else if (kind < 14)
        (void)random_reduce(r, x, mask, rnd(r, 2));
    else if (kind < 18)
        (void)random_view(r, x);
    else
        (void)random_other(r, x);
}

/* Makes the graph; false: it has no output of any use. */
static bool random_graph(Graph *g, uint64_t seed)
{
    static const DType types[] = {DT_F32, DT_F32, DT_F32, DT_I64, DT_F64, DT_F16, DT_BF16, DT_I32, DT_BOOL, DT_U8};
    Random r = {.g = g, .state = seed * 0x9e3779b97f4a7c15u + 88172645463325252u};
    int64_t dims[MAX_RANK];
    r.flavour = (uint32_t)(seed % 4);
    int rank = (int)rnd(&r, 4) + (r.flavour == 3 && rnd(&r, 2));
    DType type = types[rnd(&r, 10)];
    for (int i = 0; i < rank; i++)
        dims[i] = rnd(&r, 9) == 0 ? (int64_t)rnd(&r, 2) : 2 + (int64_t)rnd(&r, 6);
    if (rank == 2 && rnd(&r, 6) == 0)
        dims[1] = 130 + (int64_t)rnd(&r, 100);
    for (uint32_t i = 0, n = 1 + rnd(&r, 3); i < n; i++)
        random_input(&r, rnd(&r, 3) ? type : types[rnd(&r, 10)], rank, dims);
    for (uint32_t i = 0, n = 2 + rnd(&r, seed % 5 ? 14 : 40); i < n; i++)
        random_op(&r);
    for (uint32_t i = 0, n = 1 + rnd(&r, seed % 7 ? 3 : 8); i < n; i++)
        graph_output(g, r.node[i == 0 ? r.n - 1 : rnd(&r, r.n)]);
    return true;
}

#endif

/* For tests of the graph layer: an arena each test owns, texts as graphs, and random graphs. */
#ifndef TESTS_UNIT_GRAPHS_H
#define TESTS_UNIT_GRAPHS_H

#include "ir/body.h"
#include "ir/graph.h"
#include "ir/infer.h"
#include "ir/scalar.h"
#include "tests/support/reshape_groups.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static Arena arena;
static jmp_buf no_memory;

static inline void open_arena(void)
{
    arena_init(&arena, &no_memory);
    if (setjmp(no_memory))
        abort();
}

static inline void close_arena(void) { arena_free(&arena); }

static inline Graph *parse(const char *text)
{
    Graph *g = NULL;
    cr_assert_eq(graph_parse(text, &arena, &g), ST_OK, "%s in\n%s", fail_message(), text);
    return g;
}

static inline const char *print(const Graph *g)
{
    Str out;
    str_init(&out, &arena);
    graph_print(g, "g", &out);
    return out.text;
}

/* --- random graphs ------------------------------------------------------------------------------- */

static inline uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static inline uint32_t pick(uint64_t *state, uint32_t below) { return (uint32_t)(next_random(state) % below); }

static inline Shape shape_of(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    Shape s = {.dtype = n->dtype, .rank = n->rank};
    for (int d = 0; d < n->rank; d++)
        s.dim[d] = dim_hint(g, n->dim[d]);
    return s;
}

/* A node that has a value. */
static inline Ref pick_value(const Graph *g, uint64_t *state)
{
    Ref r;
    do
        r = pick(state, g->nodes.n);
    while (op_class((Op)graph_node(g, r)->op) == CLS_BODY);
    return r;
}

/* A node of g whose dtype and shape are like r's, if luck finds one. */
static inline Ref alike(const Graph *g, uint64_t *state, Ref r, bool dtype_too)
{
    Shape want = shape_of(g, r);
    for (int tries = 0; tries < 8; tries++) {
        Ref s = pick_value(g, state);
        Shape have = shape_of(g, s);
        if (have.rank == want.rank && (!dtype_too || have.dtype == want.dtype) && memcmp(have.dim, want.dim, sizeof want.dim) == 0)
            return s;
    }
    return r;
}

static inline Ref rank0_like(Graph *g, uint64_t *state, DType dtype)
{
    static const double values[] = {0, 1, -1, 2, 0.5, -0.0};
    uint64_t bits = scalar_from_double(dtype, values[pick(state, 6)]);
    return pick(state, 2) ? graph_add_scalar(g, dtype, bits, (Loc){0}) : graph_add_const(g, dtype, bits, (Loc){0});
}

static inline Ref random_scalar_like(Graph *g, uint64_t *state, Ref r)
{
    const Node like = *graph_node(g, r);
    Ref s = rank0_like(g, state, (DType)like.dtype);
    Attr insert = {.n = like.rank}, all = {.mask = (uint8_t)((1u << like.rank) - 1)};
    memset(insert.group.out, 1, like.rank);
    Dim facts[MAX_RANK];
    for (int d = 0; d < like.rank; d++)
        facts[d] = pick(state, 2) ? like.dim[d] : dim_fact(g, dim_hint(g, like.dim[d]), FACT_SIZE, (uint8_t)d, g->nodes.n + 1);
    if (!like.rank)
        return s;
    s = graph_add(g, OP_RESHAPE, (DType)like.dtype, &s, 1, &insert, NULL, 0, (Loc){0});
    return graph_add(g, OP_EXPAND, (DType)like.dtype, &s, 1, &all, facts, like.rank, (Loc){0});
}

static inline void random_node(Graph *g, uint64_t *state);

/* A loop over an axis of x, or a branch, with a body of a few random nodes, and its results. Bodies are not nested deeper than 3. */
static inline void random_body(Graph *g, uint64_t *state, Op op)
{
    int depth = 0;
    for (const Graph *around = g->around; around; around = around->around)
        depth++;
    Ref in[5], x = pick_value(g, state);
    const Node *slices = graph_node(g, x);
    Graph *bodies[2];
    Node node = {.op = (uint8_t)op, .in = in, .bodies = bodies, .n_bodies = op == OP_COND ? 2 : 1};
    Dim count;
    if (depth == 3)
        return;
    if (op == OP_COND) {
        in[node.n_in++] =
            pick(state, 2) ? graph_add_scalar(g, DT_BOOL, pick(state, 2), (Loc){0}) : graph_add_const(g, DT_BOOL, 1, (Loc){0});
        node.attr.n = 1 + pick(state, 2);
    } else {
        bool sliced = slices->rank > 0;
        count = sliced ? slices->dim[0] : dim_fact(g, pick(state, 4), FACT_LENGTH, 0, g->nodes.n);
        if (pick(state, 2) && sliced) /* a fact of its own, which is unified */
            count = dim_fact(g, dim_hint(g, count), FACT_LENGTH, 0, g->nodes.n);
        node.fact = &count;
        node.n_facts = 1;
        node.attr.loop.carries = (uint16_t)pick(state, 3);
        node.attr.loop.xs = sliced;
        node.attr.loop.ys = (uint16_t)pick(state, 2);
        node.attr.loop.reverse = (uint8_t)pick(state, 2);
        if (node.attr.loop.carries + node.attr.loop.ys == 0)
            node.attr.loop.carries = 1;
        for (uint32_t k = 0; k < node.attr.loop.carries; k++)
            in[node.n_in++] = pick_value(g, state);
        if (sliced)
            in[node.n_in++] = x;
    }
    in[node.n_in++] = pick_value(g, state);
    for (uint32_t b = 0; b < node.n_bodies; b++) {
        bodies[b] = body_new(g, &node, b);
        for (uint32_t k = 2 + pick(state, 4); k > 0; k--)
            random_node(bodies[b], state);
        for (uint32_t k = 0; k < body_n_outputs(&node, b); k++) {
            Ref out = pick_value(bodies[b], state);
            if (op == OP_LOOP && k < node.attr.loop.carries) { /* of the carry's type: the carry itself if there is no other */
                out = alike(bodies[b], state, bodies[b]->inputs.at[1 + k], true);
            } else if (op == OP_COND) { /* the first operand and what luck finds like it, so that both agree */
                out = alike(bodies[b], state, bodies[b]->inputs.at[0], true);
            } else if (graph_node(bodies[b], out)->rank == MAX_RANK) {
                out = bodies[b]->inputs.at[0];
            }
            graph_output(bodies[b], out);
        }
    }
    if (body_verify(g, &node) != ST_OK)
        abort();
    Ref made = graph_add_body(g, &node);
    for (uint32_t k = 0; k < body_n_results(&node); k++)
        if (pick(state, 4))
            graph_add_result(g, made, k, (Loc){0});
}

/* One random node on top of g, if the draft happens to be valid. */
static inline void random_node(Graph *g, uint64_t *state)
{
    Op op = (Op)(OP_IOTA + pick(state, OP_CUSTOM - OP_IOTA));
    if (pick(state, 3) == 0) /* views and reductions more often than their number says */
        op = (Op)(OP_RESHAPE + pick(state, OP_CUSTOM - OP_RESHAPE));
    if (op_class(op) == CLS_BODY || op == OP_RESULT) {
        random_body(g, state, op == OP_RESULT ? OP_LOOP : op);
        return;
    }
    Ref x = pick_value(g, state), in[3] = {x, x, x};
    Shape sx = shape_of(g, x), shapes[3], out;
    Attr attr = {0};
    int64_t facts[3 * MAX_RANK];
    Dim fact_dims[3 * MAX_RANK];
    uint32_t n_in = op_info[op].arity == ARITY_ANY ? 1 + pick(state, 3) : (uint32_t)op_info[op].arity, n_facts = 0;
    DType types[3], own = (DType)pick(state, DT_COUNT);
    for (uint32_t k = 1; k < n_in; k++)
        in[k] = pick(state, 3) == 0 ? random_scalar_like(g, state, x) : alike(g, state, x, op != OP_GATHER && op != OP_SCATTER);
    if (op == OP_WHERE) { /* the condition: a comparison of the values */
        in[0] = graph_ew(g, OP_LE, in[1], in[2], REF_NONE, (Loc){0});
    } else if (op == OP_PAD) {
        in[1] = rank0_like(g, state, (DType)sx.dtype);
    } else if (op == OP_GATHER || op == OP_SCATTER) {
        /* Valid indices: 0, or row numbers. */
        Ref zero = graph_add_const(g, DT_I64, 0, (Loc){0});
        Attr insert = {.n = sx.rank}, all = {.mask = (uint8_t)((1u << sx.rank) - 1)};
        memset(insert.group.out, 1, sx.rank);
        if (sx.rank == 0)
            return;
        zero = graph_add(g, OP_RESHAPE, DT_I64, &zero, 1, &insert, NULL, 0, (Loc){0});
        in[1] = graph_add(g, OP_EXPAND, DT_I64, &zero, 1, &all, graph_node(g, x)->dim, sx.rank, (Loc){0});
        in[2] = alike(g, state, x, true);
        attr.axis = (uint8_t)pick(state, sx.rank);
        attr.mode = op == OP_SCATTER ? (uint8_t)pick(state, 4) : 0;
    } else if (op == OP_IOTA) {
        facts[n_facts++] = pick(state, 5);
    } else if (op == OP_RESHAPE) {
        int64_t target[MAX_RANK];
        int rank = 0;
        for (int d = sx.rank; d-- > 0;) /* the same sizes in another grouping */
            target[d] = sx.dim[d];
        rank = sx.rank;
        if (rank >= 2 && pick(state, 2)) {
            uint32_t at = pick(state, (uint32_t)rank - 1);
            target[at] *= target[at + 1];
            memmove(target + at + 1, target + at + 2, sizeof *target * (size_t)(rank - (int)at - 2));
            rank--;
        } else if (rank < 6) {
            uint32_t at = pick(state, (uint32_t)rank + 1);
            memmove(target + at + 1, target + at, sizeof *target * (size_t)(rank - (int)at));
            target[at] = 1;
            if ((int)at < rank && target[at + 1] % 2 == 0 && target[at + 1])
                target[at] = 2, target[at + 1] /= 2;
            rank++;
        }
        if (!reshape_groups(sx.rank, sx.dim, rank, target, &attr, facts, &n_facts))
            return;
    } else if (op == OP_PERMUTE) {
        for (uint8_t d = 0; d < sx.rank; d++)
            attr.perm[d] = d;
        for (uint8_t d = sx.rank; d > 1; d--) {
            uint32_t k = pick(state, d);
            uint8_t t = attr.perm[d - 1];
            attr.perm[d - 1] = attr.perm[k];
            attr.perm[k] = t;
        }
    } else if (op == OP_EXPAND || op == OP_SLICE || op == OP_PAD || op_class(op) == CLS_REDUCE) {
        attr.mask = (uint8_t)pick(state, 1u << sx.rank);
    } else if (op == OP_CONCAT || op == OP_CUMSUM || op == OP_ARGSORT) {
        attr.axis = (uint8_t)pick(state, sx.rank ? sx.rank : 1u);
        attr.flag = op == OP_ARGSORT && pick(state, 2);
    } else if (op == OP_WINDOW) {
        if (sx.rank == 0)
            return;
        attr.axis = (uint8_t)pick(state, sx.rank);
        int64_t stride = 1 + pick(state, 2), dilation = 1 + pick(state, 2), size = 1 + pick(state, 2), n = sx.dim[attr.axis];
        int64_t span = (size - 1) * dilation + 1;
        facts[n_facts++] = stride;
        facts[n_facts++] = dilation;
        facts[n_facts++] = n < span ? 0 : (n - span) / stride + 1;
        facts[n_facts++] = size;
    }
    if (op == OP_PAD)
        attr.mask = (uint8_t)pick(state, 1u << sx.rank);
    for (int d = 0; d < sx.rank; d++) {
        if (!(attr.mask >> d & 1))
            continue;
        if (op == OP_EXPAND) {
            facts[n_facts++] = pick(state, 4);
        } else if (op == OP_SLICE) {
            bool down = pick(state, 2) && sx.dim[d];
            facts[n_facts++] = down ? sx.dim[d] - 1 : 0;
            facts[n_facts++] = down ? -1 : (int64_t)(1 + pick(state, 2));
            int64_t step = down ? 1 : facts[n_facts - 1];
            facts[n_facts++] = pick(state, 4) ? (sx.dim[d] + step - 1) / step : 0;
        } else if (op == OP_PAD) {
            facts[n_facts++] = pick(state, 3);
            facts[n_facts++] = pick(state, 2);
        }
    }
    for (uint32_t k = 0; k < n_in; k++) {
        shapes[k] = shape_of(g, in[k]);
        types[k] = (DType)shapes[k].dtype;
    }
    if (op == OP_MATMUL && sx.rank >= 2) { /* x times its transpose */
        Attr swap = {0};
        for (uint8_t d = 0; d < sx.rank; d++)
            swap.perm[d] = d;
        swap.perm[sx.rank - 1] = (uint8_t)(sx.rank - 2);
        swap.perm[sx.rank - 2] = (uint8_t)(sx.rank - 1);
        in[1] = graph_add(g, OP_PERMUTE, types[0], &x, 1, &swap, NULL, 0, (Loc){0});
        shapes[1] = shape_of(g, in[1]);
    }
    DType dtype = infer_dtype(op, n_in, types, own);
    if (dtype == DT_COUNT || n_facts != infer_fact_count(op, &attr, 0) ||
        infer_shape(op, &attr, n_in, shapes, facts, n_facts, own, &out) != ST_OK)
        return;
    int64_t numel;
    if (!shape_numel(out.rank, out.dim, &numel) || numel > 4096)
        return;
    for (uint32_t k = 0; k < n_facts; k++) {
        FactKind kind = op == OP_SLICE ? (FactKind)(FACT_START + k % 3) : FACT_SIZE;
        uint32_t how = pick(state, 8);
        fact_dims[k] = how == 0 ? dim_const(g, facts[k]) : dim_fact(g, facts[k], kind, 0, g->nodes.n);
        if (how == 1)
            fact_dims[k] = dim_add(g, fact_dims[k], dim_const(g, 0));
        if (how == 2 && facts[k] > 1)
            fact_dims[k] = dim_add(g, dim_fact(g, facts[k] - 1, kind, 0, g->nodes.n), dim_const(g, 1));
    }
    graph_add(g, op, dtype, in, n_in, &attr, fact_dims, n_facts, (Loc){0});
}

/* A random valid graph: a few inputs of all dtypes and small shapes, about n nodes, several outputs. */
static inline Graph *random_graph(uint64_t seed, int n)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 4, 6};
    uint64_t state = seed;
    Graph *g = graph_new(&arena);
    for (int k = 0; k < 3; k++) {
        int64_t dims[3], strides[3];
        int rank = (int)pick(&state, 4);
        for (int d = 0; d < rank; d++)
            dims[d] = sizes[pick(&state, 7)];
        int64_t stride = 1;
        for (int d = rank; d-- > 0;) {
            strides[d] = stride;
            stride *= dims[d];
        }
        graph_add_input(g, (DType)pick(&state, DT_COUNT), rank, dims, pick(&state, 4) ? NULL : strides, (Loc){0});
    }
    for (int k = 0; k < n; k++)
        random_node(g, &state);
    for (int k = 0; k < 4; k++)
        graph_output(g, pick_value(g, &state));
    if (op_class((Op)graph_node(g, g->nodes.n - 1)->op) != CLS_BODY)
        graph_output(g, g->nodes.n - 1);
    return g;
}

#endif

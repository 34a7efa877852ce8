/*
 * The reference interpreter: the driver, leaves, and copying.
 *
 * Nodes run in order, each into a buffer of its own, which is freed after its last use. An output's buffer is copied out
 * at the end. There is no recursion, and one large allocation per node.
 *
 * In INTERP_F64 mode floating values are kept as doubles from the inputs to the outputs, so nothing is rounded to a
 * shorter format on the way; integers and bools are what they are in native mode.
 */
#include "ir/base/os.h"
#include "ir/interp_ops.h"

#include <string.h>

void *value_room(DType dtype, size_t n)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, dtype_bytes(dtype), &bytes))
        return NULL;
    return os_alloc(bytes ? bytes : 1);
}

void value_strides(const Value *v, int64_t stride[MAX_RANK])
{
    int64_t s = 1;
    for (int d = v->rank - 1; d >= 0; d--) {
        stride[d] = s;
        s *= v->dim[d];
    }
}

/* n elements along one axis, strides in bytes. */
static void copy_line(int64_t n, size_t bytes, char *to, int64_t to_step, const char *from, int64_t from_step)
{
    if (to_step == (int64_t)bytes && from_step == (int64_t)bytes) {
        memcpy(to, from, (size_t)n * bytes);
        return;
    }
    switch (bytes) {
#define LINE(b)                                                           \
    case b:                                                               \
        for (int64_t i = 0; i < n; i++, to += to_step, from += from_step) \
            memcpy(to, from, b);                                          \
        break;
        LINE(1)
        LINE(2)
        LINE(4)
        LINE(8)
#undef LINE
    }
}

void copy_box(int rank, const int64_t *dim, size_t bytes, void *to, const int64_t *to_stride, const void *from, const int64_t *from_stride)
{
    for (int d = 0; d < rank; d++)
        if (dim[d] == 0)
            return;
    int64_t at[MAX_RANK] = {0}, b = (int64_t)bytes;
    char *t = to;
    const char *f = from;
    int last = rank - 1;
    for (;;) {
        copy_line(rank ? dim[last] : 1, bytes, t, rank ? to_stride[last] * b : b, f, rank ? from_stride[last] * b : b);
        int d = last - 1;
        for (; d >= 0; d--) {
            t += to_stride[d] * b;
            f += from_stride[d] * b;
            if (++at[d] < dim[d])
                break;
            t -= to_stride[d] * b * dim[d];
            f -= from_stride[d] * b * dim[d];
            at[d] = 0;
        }
        if (d < 0)
            return;
    }
}

/* ---- leaves ---- */

static Status run_input(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    Value *v = &run->value[r];
    DType stored = (DType)node->dtype;
    int64_t to_stride[MAX_RANK], from_stride[MAX_RANK];
    value_strides(v, to_stride);
    memcpy(from_stride, to_stride, sizeof from_stride);
    if (node->attr.flag)
        for (int d = 0; d < v->rank; d++)
            from_stride[d] = run_fact(run, r, (uint32_t)(v->rank + d));
    const void *from = run->inputs[node->attr.n];
    if (v->dtype == stored || run->nested) {
        stored = v->dtype;
        copy_box(v->rank, v->dim, dtype_bytes(stored), v->data, to_stride, from, from_stride);
        return ST_OK;
    }
    void *packed = value_room(stored, v->n);
    if (!packed)
        return ST_OUT_OF_MEMORY;
    copy_box(v->rank, v->dim, dtype_bytes(stored), packed, to_stride, from, from_stride);
    bool ok = run_op(run, OP_CAST, &stored, DT_F64, v->n, (const void *const[]){packed}, v->data);
    os_free(packed);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

static Status run_leaf(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    Value *v = &run->value[r];
    if (node->op == OP_INPUT)
        return run_input(run, r);
    if (node->op == OP_IOTA) {
        for (size_t i = 0; i < v->n; i++)
            ((int64_t *)v->data)[i] = (int64_t)i;
        return ST_OK;
    }
    DType stored = (DType)node->dtype;
    uint64_t bits = run->g->shared->scalars.at[node->scalar].bits;
    if (v->dtype != stored)
        bits = scalar_from_double(v->dtype, scalar_to_double(stored, bits));
    scalar_store(v->dtype, bits, v->data);
    return ST_OK;
}

/* ---- the driver ---- */

static InterpFn *const step_of[] = {
    [CLS_LEAF] = run_leaf,          [CLS_EW] = interp_ew,         [CLS_VIEW] = interp_view,
    [CLS_REDUCE] = interp_reduce,   [CLS_SCAN] = interp_scan,     [CLS_GATHER] = interp_gather,
    [CLS_SCATTER] = interp_scatter, [CLS_SORT] = interp_sort,     [CLS_CONTRACT] = interp_contract,
    [CLS_BODY] = interp_body,       [CLS_RESULT] = interp_result,
};

static Status run_one(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    Value *v = &run->value[r];
    v->dtype = run_dtype(run, (DType)node->dtype);
    v->rank = node->rank;
    v->n = 1;
    for (int d = 0; d < v->rank; d++)
        v->dim[d] = dim_hint(run->g, node->dim[d]);
    for (int d = 0; d < v->rank; d++)
        if (__builtin_mul_overflow(v->n, (size_t)v->dim[d], &v->n))
            return ST_OUT_OF_MEMORY;
    v->data = value_room(v->dtype, v->n);
    return v->data ? step_of[op_class((Op)node->op)](run, r) : ST_OUT_OF_MEMORY;
}

/* last[k] = the last node that reads node k; the graph's size for outputs and for what nobody reads (never freed early). */
static void find_last_uses(const Graph *g, Ref *last)
{
    for (Ref r = 0; r < g->nodes.n; r++)
        last[r] = g->nodes.n;
    for (Ref r = 0; r < g->nodes.n; r++)
        for (uint32_t k = 0; k < g->nodes.at[r].n_in; k++)
            last[g->nodes.at[r].in[k]] = r;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        last[g->outputs.at[k]] = g->nodes.n;
}

static Status run_all(Run *run, const Ref *last)
{
    const Graph *g = run->g;
    for (Ref r = 0; r < g->nodes.n; r++) {
        TRY(run_one(run, r));
        for (uint32_t k = 0; k < g->nodes.at[r].n_in; k++) {
            Ref in = g->nodes.at[r].in[k];
            if (last[in] == r) {
                interp_free_results(run, in);
                os_free(run->value[in].data);
                run->value[in].data = NULL;
            }
        }
    }
    return ST_OK;
}

static Status run_graph(Run *run, void *const *outputs)
{
    const Graph *g = run->g;
    Ref *last = os_alloc((g->nodes.n + 1) * sizeof *last);
    run->value = os_calloc(g->nodes.n + 1, sizeof *run->value);
    Status status = ST_OUT_OF_MEMORY;
    if (last && run->value) {
        find_last_uses(g, last);
        status = run_all(run, last);
    }
    for (uint32_t k = 0; status == ST_OK && k < g->outputs.n; k++) {
        const Value *v = &run->value[g->outputs.at[k]];
        if (v->n)
            memcpy(outputs[k], v->data, v->n * dtype_bytes(v->dtype));
    }
    for (Ref r = 0; run->value && r < g->nodes.n; r++) {
        interp_free_results(run, r);
        os_free(run->value[r].data);
    }
    os_free(run->value);
    os_free(last);
    return status;
}

Status interp_nested(Run *around, const Graph *body, const void *const *inputs, void *const *outputs)
{
    Run run = *around;
    run.g = body;
    run.inputs = inputs;
    run.nested = true;
    Status status = run_graph(&run, outputs);
    around->bad = run.bad;
    return status;
}

Status interp_run(const Graph *g, InterpMode mode, MathMode math, OrderDevice device, const void *const *inputs, void *const *outputs,
                  const Node **bad_node)
{
    Run run = {.g = g, .mode = mode, .math = math, .device = device, .inputs = inputs};
    Status status = run_graph(&run, outputs);
    if (status == ST_OUT_OF_MEMORY)
        return fail(status, "out of memory in the interpreter");
    if (status == ST_OK && run.bad) {
        if (bad_node)
            *bad_node = run.bad;
        return fail(ST_INDEX, "%s: index out of bounds", op_name((Op)run.bad->op));
    }
    return status;
}

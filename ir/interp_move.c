/* Ops that move elements: views, gather, scatter. */
#include "ir/base/os.h"
#include "ir/interp_ops.h"

#include <string.h>

/* ---- views ---- */

/* Reads the input with strides and an offset of its own into the whole output. */
static void view_copy(Run *run, Ref r, int64_t offset, const int64_t *from_stride)
{
    Value *v = &run->value[r];
    int64_t to_stride[MAX_RANK];
    size_t bytes = dtype_bytes(v->dtype);
    value_strides(v, to_stride);
    if (v->n)
        copy_box(v->rank, v->dim, bytes, v->data, to_stride, (const char *)run_in(run, r, 0)->data + offset * (int64_t)bytes, from_stride);
}

static void view_permute(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    int64_t stride[MAX_RANK], from[MAX_RANK] = {0};
    value_strides(run_in(run, r, 0), stride);
    for (int d = 0; d < node->rank; d++)
        from[d] = stride[node->attr.perm[d]];
    view_copy(run, r, 0, from);
}

static void view_expand(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    int64_t stride[MAX_RANK];
    value_strides(run_in(run, r, 0), stride);
    for (int d = 0; d < node->rank; d++)
        if (node->attr.mask >> d & 1)
            stride[d] = 0;
    view_copy(run, r, 0, stride);
}

static void view_slice(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    int64_t stride[MAX_RANK], offset = 0;
    uint32_t fact = 0;
    value_strides(run_in(run, r, 0), stride);
    for (int d = 0; d < node->rank; d++)
        if (node->attr.mask >> d & 1) {
            offset += run_fact(run, r, fact) * stride[d];
            stride[d] *= run_fact(run, r, fact + 1);
            fact += 3;
        }
    view_copy(run, r, offset, stride);
}

static void view_window(Run *run, Ref r)
{
    int axis = run_node(run, r)->attr.axis;
    const Value *x = run_in(run, r, 0);
    int64_t stride[MAX_RANK], from[MAX_RANK];
    value_strides(x, stride);
    for (int d = 0; d < x->rank; d++)
        from[d + (d > axis)] = stride[d];
    from[axis] = stride[axis] * run_fact(run, r, 0);
    from[axis + 1] = stride[axis] * run_fact(run, r, 1);
    view_copy(run, r, 0, from);
}

static void view_pad(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    const Value *x = run_in(run, r, 0), *fill = run_in(run, r, 1);
    Value *v = &run->value[r];
    size_t bytes = dtype_bytes(v->dtype);
    for (size_t i = 0; i < v->n; i++)
        memcpy((char *)v->data + i * bytes, fill->data, bytes);
    int64_t to[MAX_RANK], from[MAX_RANK], offset = 0;
    uint32_t fact = 0;
    value_strides(v, to);
    value_strides(x, from);
    for (int d = 0; d < node->rank; d++)
        if (node->attr.mask >> d & 1) {
            offset += run_fact(run, r, fact) * to[d];
            fact += 2;
        }
    if (x->n)
        copy_box(x->rank, x->dim, bytes, (char *)v->data + offset * (int64_t)bytes, to, x->data, from);
}

static void view_concat(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    Value *v = &run->value[r];
    size_t bytes = dtype_bytes(v->dtype);
    int64_t to[MAX_RANK], from[MAX_RANK], offset = 0;
    value_strides(v, to);
    for (uint32_t k = 0; k < node->n_in; k++) {
        const Value *x = run_in(run, r, k);
        value_strides(x, from);
        if (x->n)
            copy_box(x->rank, x->dim, bytes, (char *)v->data + offset * (int64_t)bytes, to, x->data, from);
        offset += x->dim[node->attr.axis] * to[node->attr.axis];
    }
}

static void view_reshape(Run *run, Ref r)
{
    Value *v = &run->value[r];
    if (v->n)
        memcpy(v->data, run_in(run, r, 0)->data, v->n * dtype_bytes(v->dtype));
}

Status interp_view(Run *run, Ref r)
{
    static void (*const view_of[OP_COUNT])(Run *, Ref) = {
        [OP_RESHAPE] = view_reshape, [OP_PERMUTE] = view_permute, [OP_EXPAND] = view_expand, [OP_SLICE] = view_slice,
        [OP_PAD] = view_pad,         [OP_CONCAT] = view_concat,   [OP_WINDOW] = view_window,
    };
    view_of[run_node(run, r)->op](run, r);
    return ST_OK;
}

/* ---- gather and scatter ---- */

/* An index array as [outer, along the axis, inner], and the array that it points into. */
typedef struct Along {
    int64_t outer, n, inner; /* of the index */
    int64_t size;            /* of the axis pointed into */
} Along;

static Along along_axis(const Value *index, const Value *into, int axis)
{
    Along a = {1, index->dim[axis], 1, into->dim[axis]};
    for (int d = 0; d < index->rank; d++)
        if (d != axis)
            *(d < axis ? &a.outer : &a.inner) *= index->dim[d];
    return a;
}

/* The index as counted from the start; an invalid one is reported and replaced by the nearest valid one. */
static int64_t valid_index(Run *run, Ref r, int64_t i, int64_t size)
{
    int64_t from_start = i < 0 ? i + size : i;
    if (from_start >= 0 && from_start < size)
        return from_start;
    if (!run->bad)
        run->bad = run_node(run, r);
    return from_start < 0 ? 0 : size - 1;
}

Status interp_gather(Run *run, Ref r)
{
    const Value *x = run_in(run, r, 0), *index = run_in(run, r, 1);
    Value *v = &run->value[r];
    Along a = along_axis(index, x, run_node(run, r)->attr.axis);
    size_t bytes = dtype_bytes(v->dtype), at = 0;
    for (int64_t o = 0; o < a.outer; o++)
        for (int64_t j = 0; j < a.n; j++)
            for (int64_t i = 0; i < a.inner; i++, at++) {
                int64_t k = valid_index(run, r, ((const int64_t *)index->data)[at], a.size);
                size_t from = (size_t)((o * a.size + k) * a.inner + i);
                memcpy((char *)v->data + at * bytes, (const char *)x->data + from * bytes, bytes);
            }
    return ST_OK;
}

/* One after the other in the order of the index, so that equal indices have a defined result. */
Status interp_scatter(Run *run, Ref r)
{
    static const Op combine[] = {[SCATTER_ADD] = OP_ADD, [SCATTER_MAX] = OP_MAXIMUM, [SCATTER_MIN] = OP_MINIMUM};
    const Node *node = run_node(run, r);
    const Value *x = run_in(run, r, 0), *index = run_in(run, r, 1), *source = run_in(run, r, 2);
    Value *v = &run->value[r];
    DType types[2] = {v->dtype, v->dtype};
    size_t bytes = dtype_bytes(v->dtype), at = 0;
    if (v->n)
        memcpy(v->data, x->data, v->n * bytes);
    Along a = along_axis(index, x, node->attr.axis);
    for (int64_t o = 0; o < a.outer; o++)
        for (int64_t j = 0; j < a.n; j++)
            for (int64_t i = 0; i < a.inner; i++, at++) {
                int64_t k = valid_index(run, r, ((const int64_t *)index->data)[at], a.size);
                char *to = (char *)v->data + (size_t)((o * a.size + k) * a.inner + i) * bytes;
                const char *from = (const char *)source->data + at * bytes;
                if (node->attr.mode == SCATTER_SET)
                    memcpy(to, from, bytes);
                else if (!run_op(run, combine[node->attr.mode], types, v->dtype, 1, (const void *const[]){to, from}, to))
                    return ST_OUT_OF_MEMORY;
            }
    return ST_OK;
}

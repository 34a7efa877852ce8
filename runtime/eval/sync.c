/*
 * Sync points: evaluating, reading, and kiln_assign. Also what can be asked of a tensor without
 * computing it.
 *
 * Each takes the caller's place, tells a trace that it was reached, and reports its own failure
 * without keeping it. A node is held while its elements are read, so another thread may let go of
 * the tensor or assign to it meanwhile.
 */
#include "runtime/eval/sync.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/eval/async.h"
#include "runtime/gradient/body.h"
#include "runtime/gradient/group.h"
#include "runtime/gradient/param.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- asking ---- */

kiln_dtype kiln_dtype_of(const kiln_tensor *x) { return x ? (kiln_dtype)x->node->dtype : KILN_BOOL; }

int kiln_rank(const kiln_tensor *x) { return x ? x->node->rank : -1; }

int64_t kiln_dim(const kiln_tensor *x, int axis)
{
    int rank = kiln_rank(x);
    int at = axis < 0 ? axis + rank : axis;
    return x && at >= 0 && at < rank ? x->node->dim[at] : -1;
}

kiln_shape kiln_shape_of(const kiln_tensor *x)
{
    kiln_shape shape = {kiln_rank(x), {0}};
    for (int d = 0; d < shape.rank; d++)
        shape.dim[d] = x->node->dim[d];
    return shape;
}

int64_t kiln_numel(const kiln_tensor *x) { return x ? node_elements(x->node) : -1; }

bool kiln_is_evaluated(const kiln_tensor *x) { return x && !node_pending(x->node); }

bool kiln_is_weak(const kiln_tensor *x) { return x && x->node->weak; }

const char *kiln_dtype_name(kiln_dtype dtype) { return (unsigned)dtype < DT_COUNT ? dtype_name((DType)dtype) : "?"; }

size_t kiln_dtype_size(kiln_dtype dtype) { return (unsigned)dtype < DT_COUNT ? dtype_bytes((DType)dtype) : 0; }

/* ---- elements ---- */

/* The elements of a node with strides, of which the first is at `first` in host memory. */
static void gather_elements(const RtNode *node, const char *first, char *to)
{
    size_t size = dtype_bytes((DType)node->dtype);
    int64_t n = node_elements(node);
    int64_t at[MAX_RANK] = {0}, offset = 0; /* strided nodes have an axis */
    int last = node->rank - 1;
    for (int64_t done = 0; done < n; done += node->dim[last]) {
        const char *from = first + offset * (int64_t)size;
        for (int64_t i = 0; i < node->dim[last]; i++, to += size)
            memcpy(to, from + i * node->stride[last] * (int64_t)size, size);
        for (int d = last - 1; d >= 0; d--) {
            offset += node->stride[d];
            if (++at[d] < node->dim[d])
                break;
            offset -= at[d] * node->stride[d];
            at[d] = 0;
        }
    }
}

Status copy_elements(const RtNode *node, void *out)
{
    Storage *storage = atomic_load(&node->storage);
    int64_t n = node_elements(node);
    if (n == 0)
        return ST_OK;
    if (!node->strided)
        return device_read(storage, node->data, out, dtype_bytes((DType)node->dtype) * (size_t)n);
    if (!device_kind(storage->device)->apart) {
        gather_elements(node, node->data, out);
        return ST_OK;
    }
    char *all = os_alloc(storage->bytes); /* memory that came by DLPack */
    if (!all)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = device_read(storage, storage->data, all, storage->bytes);
    if (status == ST_OK)
        gather_elements(node, all + (node->data - (char *)storage->data), out);
    os_free(all);
    return status;
}

Status dense_elements(const RtNode *node, const void **elements, void **copy)
{
    *copy = NULL;
    *elements = node->data ? node->data : (const void *)"";
    if (!node->strided && !device_kind(node_device(node))->apart)
        return ST_OK;
    *elements = *copy = os_alloc(dtype_bytes((DType)node->dtype) * (size_t)node_elements(node));
    if (!*copy)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = copy_elements(node, *copy);
    if (status == ST_OK)
        return ST_OK;
    os_free(*copy);
    *elements = *copy = NULL;
    return status;
}

/* ---- evaluating ---- */

static Loc place(const char *file, int line) { return (Loc){file, line}; }

RtNode *sync_eval(kiln_tensor *x, const char *api, Loc loc, kiln_status *status)
{
    trace_sync(api, loc);
    if (body_refuses(api, loc)) {
        *status = KILN_INVALID;
        return NULL;
    }
    if (!x) {
        *status = error_null("x", api, loc);
        return NULL;
    }
    RtNode *node = node_retain(x->node);
    *status = error_sync(eval_nodes(&node, 1, api, loc), api, loc);
    if (*status == KILN_OK)
        return node;
    node_release(node);
    return NULL;
}

RtNode *sync_dense(kiln_tensor *x, const char *api, Loc loc, const void **elements, void **copy, kiln_status *status)
{
    RtNode *node = sync_eval(x, api, loc, status);
    *copy = NULL;
    if (!node || (*status = error_sync(dense_elements(node, elements, copy), api, loc)) == KILN_OK)
        return node;
    node_release(node);
    return NULL;
}

API1(kiln_status, kiln_eval, kiln_tensor *, x)
{
    kiln_status status;
    node_release(sync_eval(x, "kiln_eval", place(file, line), &status));
    return status;
}

typedef Status Evaluate(RtNode *const *nodes, uint32_t n, const char *api, Loc loc);

static kiln_status several(Evaluate *evaluate, kiln_tensor *const *tensors, int n, const char *api, Loc loc)
{
    trace_sync(api, loc);
    if (body_refuses(api, loc))
        return KILN_INVALID;
    if (n < 0 || (n && !tensors))
        return error_sync(fail(ST_INVALID, n < 0 ? "%d tensors" : "the list of %d tensors is NULL", n), api, loc);
    for (int k = 0; k < n; k++)
        if (!tensors[k]) {
            char name[32];
            snprintf(name, sizeof name, "tensor %d", k);
            return error_null(name, api, loc);
        }
    if (n == 0)
        return KILN_OK;
    RtNode **nodes = os_alloc(sizeof *nodes * (size_t)n);
    if (!nodes)
        return error_sync(fail(ST_OUT_OF_MEMORY, "out of memory"), api, loc);
    for (int k = 0; k < n; k++)
        nodes[k] = node_retain(tensors[k]->node);
    kiln_status status = error_sync(evaluate(nodes, (uint32_t)n, api, loc), api, loc);
    for (int k = 0; k < n; k++)
        node_release(nodes[k]);
    os_free(nodes);
    return status;
}

API2(kiln_status, kiln_eval_many, kiln_tensor *const *, tensors, int, n)
{
    return several(eval_nodes, tensors, n, "kiln_eval_many", place(file, line));
}

API2(kiln_status, kiln_eval_many_async, kiln_tensor *const *, tensors, int, n)
{
    return several(async_eval, tensors, n, "kiln_eval_many_async", place(file, line));
}

API1(kiln_status, kiln_eval_async, kiln_tensor *, x)
{
    static const char api[] = "kiln_eval_async";
    return x ? several(async_eval, &x, 1, api, place(file, line)) : error_null("x", api, place(file, line));
}

/* The elements of x, row-major, to `out`, which has the room. */
static kiln_status sync_copy(kiln_tensor *x, void *out, const char *api, Loc loc)
{
    kiln_status status;
    RtNode *node = sync_eval(x, api, loc, &status);
    if (!node)
        return status;
    status = error_sync(copy_elements(node, out), api, loc);
    breaks_read(node, api, loc);
    node_release(node);
    return status;
}

API4(kiln_status, kiln_read, kiln_tensor *, x, kiln_dtype, dtype, void *, data, size_t, bytes)
{
    static const char api[] = "kiln_read";
    Loc loc = place(file, line);
    if (x) {
        char text[SHAPE_TEXT];
        const RtNode *in = x->node;
        size_t size = dtype_bytes((DType)in->dtype), n = (size_t)node_elements(in);
        if ((unsigned)dtype != in->dtype)
            return error_sync(fail(ST_DTYPE, "dtype is %s: x is %s", kiln_dtype_name(dtype), node_text(in, text)), api, loc);
        if (n > SIZE_MAX / size || bytes != n * size)
            return error_sync(
                fail(ST_INVALID, "bytes is %zu, %zu elements of %zu bytes are read: x is %s", bytes, n, size, node_text(in, text)), api,
                loc);
        if (bytes && !data)
            return error_sync(fail(ST_INVALID, "data is NULL"), api, loc);
    }
    return sync_copy(x, data, api, loc);
}

/* The only element of x, as one or the other. */
static kiln_status item(kiln_tensor *x, double *number, int64_t *whole, const char *api, Loc loc)
{
    char text[SHAPE_TEXT];
    if (x && !number && !whole)
        return error_sync(fail(ST_INVALID, "value is NULL"), api, loc);
    if (x && node_elements(x->node) != 1)
        return error_sync(fail(ST_SHAPE, "one element is needed: x is %s", node_text(x->node, text)), api, loc);
    char element[8];
    DType dtype = (DType)(x ? x->node->dtype : DT_BOOL);
    kiln_status status = sync_copy(x, element, api, loc);
    if (status != KILN_OK)
        return status;
    uint64_t bits = scalar_load(dtype, element);
    FpMode caller = fp_enter(); /* DAZ would make 0 of a subnormal */
    if (number)
        *number = dtype == DT_U64 ? (double)bits : scalar_to_double(dtype, bits);
    else
        *whole = scalar_to_int(dtype, bits);
    fp_leave(caller);
    return KILN_OK;
}

API2(kiln_status, kiln_item, kiln_tensor *, x, double *, value) { return item(x, value, NULL, "kiln_item", place(file, line)); }
API2(kiln_status, kiln_item_int, kiln_tensor *, x, int64_t *, value) { return item(x, NULL, value, "kiln_item_int", place(file, line)); }

API2(kiln_status, kiln_data, kiln_tensor *, x, const void **, data)
{
    static const char api[] = "kiln_data";
    Loc loc = place(file, line);
    if (data)
        *data = NULL;
    else if (x)
        return error_sync(fail(ST_INVALID, "data is NULL"), api, loc);
    kiln_status status;
    RtNode *node = sync_eval(x, api, loc, &status);
    if (node)
        breaks_read(node, api, loc);
    if (node && device_kind(node_device(node))->apart) {
        char name[DEVICE_NAME];
        status = error_sync(fail(ST_DEVICE, "x lies on %s: read it with kiln_read, or move it with kiln_to(x, \"cpu\")",
                                 device_name(node_device(node), name)),
                            api, loc);
        node_release(node);
        node = NULL;
    }
    if (node && node->strided) { /* x means a dense copy from now on */
        size_t bytes = dtype_bytes((DType)node->dtype) * (size_t)node_elements(node);
        Storage *storage = storage_new(bytes);
        RtNode *dense = storage ? node_new(OP_INPUT, (DType)node->dtype, node->rank, node->dim, 0, 0) : NULL;
        if (dense) {
            (void)copy_elements(node, storage->data); /* on the host: cannot fail */
            dense->loc = node->loc;
            param_copy(dense, node);
            node_set_storage(dense, storage, storage->data);
            x->node = node_retain(dense);
            node_release(node); /* the handle's */
        } else {
            storage_release(storage);
            status = error_sync(ST_OUT_OF_MEMORY, api, loc);
        }
        node_release(node);
        node = dense;
    }
    if (node) {
        Storage *storage = atomic_load(&node->storage);
        atomic_store(&storage->borrowed, true); /* never overwritten from now on */
        *data = node->data;
    }
    node_release(node);
    return status;
}

/* ---- assigning ---- */

void rec_assign(Rec *r, size_t n, kiln_tensor *const *p, RtNode **value)
{
    for (size_t i = 0; i < n && r->status == ST_OK; i++)
        if (body_refuses_assign(p[i], r->api, r->loc))
            r->status = ST_INVALID;
    for (size_t i = 0; i < n && r->status == ST_OK; i++)
        if (p[i]->param)
            value[i] = param_value(r, value[i], p[i]->param, false);
    if (r->status == ST_OK && group_reserve(r->thread, n) != ST_OK)
        rec_failed(r, ST_OUT_OF_MEMORY);
    for (size_t i = 0; i < n && r->status == ST_OK; i++) {
        RtNode *before = p[i]->node;
        trace_assign(p[i]);
        p[i]->node = node_retain(value[i]);
        node_release(before);
        group_assigned(r->thread, p[i]);
    }
}

API2(kiln_status, kiln_assign, kiln_tensor *, p, kiln_tensor *, value)
{
    Rec r = REC(kiln_assign);
    RtNode *to = p ? p->node : NULL, *from = rec_in(&r, value, "value");
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!p)
        rec_fail(&r, ST_INVALID, "p is NULL");
    if (to && from && from->weak && !to->weak)
        from = rec_cast(&r, from, node_dtype(to));
    if (to && from) {
        bool same_dtype = to->dtype == from->dtype && to->weak == from->weak;
        bool same_shape = to->rank == from->rank && memcmp(to->dim, from->dim, sizeof *to->dim * to->rank) == 0;
        if (!same_dtype || !same_shape)
            from = rec_fail(&r, same_dtype ? ST_SHAPE : ST_DTYPE, "%s differ: p is %s, value is %s", same_dtype ? "shapes" : "dtypes",
                            node_text(to, left), node_text(from, right));
    }
    if (to && from)
        rec_assign(&r, 1, &p, &from);
    rec_end(&r, NULL);
    return (kiln_status)r.status;
}

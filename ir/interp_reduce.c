/*
 * Reductions, scans, sorting and matmul.
 *
 * Reductions, scans and matmuls are folds (ir/fold.h) in the order that ir/orders.def has for the device whose results are wanted. f16 and bf16
 * are folded in f32 and rounded at the end (of each element of a scan).
 */
#include "ir/base/os.h"
#include "ir/fold.h"
#include "ir/interp_ops.h"

#include <math.h>
#include <string.h>

/* ---- rows to fold ---- */

typedef struct Rows {
    void *data; /* [n_rows, n], row-major over the reduced axes; or [n, n_rows] */
    size_t n_rows, n;
    DType dtype;
} Rows;

/* The input with its masked axes moved to the end (to the front if `across`), cast to `dtype`. false: out of memory. */
static bool rows_make(Run *run, const Value *x, unsigned mask, bool across, DType dtype, Rows *rows)
{
    int64_t stride[MAX_RANK], dim[MAX_RANK], from[MAX_RANK], to[MAX_RANK];
    value_strides(x, stride);
    *rows = (Rows){.n_rows = 1, .n = 1, .dtype = dtype};
    int rank = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < x->rank; d++)
            if ((mask >> d & 1) == (unsigned)(pass ^ across)) {
                dim[rank] = x->dim[d];
                from[rank++] = stride[d];
                *(mask >> d & 1 ? &rows->n : &rows->n_rows) *= (size_t)x->dim[d];
            }
    int64_t s = 1;
    for (int d = rank - 1; d >= 0; d--) {
        to[d] = s;
        s *= dim[d];
    }
    void *packed = value_room(x->dtype, x->n);
    if (!packed)
        return false;
    copy_box(rank, dim, dtype_bytes(x->dtype), packed, to, x->data, from);
    if (x->dtype == dtype) {
        rows->data = packed;
        return true;
    }
    rows->data = value_room(dtype, x->n);
    bool ok = rows->data && run_op(run, OP_CAST, &x->dtype, dtype, x->n, (const void *const[]){packed}, rows->data);
    os_free(packed);
    if (!ok)
        os_free(rows->data);
    return ok;
}

/* ---- folds ---- */

static Order order_for(const Run *run, Fold fold, bool running, DType of) { return order_of(fold, running, of, run->device, run->math); }

Status interp_reduce(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    const Value *x = run_in(run, r, 0);
    Value *v = &run->value[r];
    Fold fold = fold_of((Op)node->op);
    DType state = fold_state(fold, x->dtype), result = fold_has_place(fold) ? DT_I64 : state;
    Rows rows;
    if (!rows_make(run, x, node->attr.mask, true, state, &rows))
        return ST_OUT_OF_MEMORY;
    void *out = result == v->dtype ? v->data : value_room(result, v->n);
    FoldInput in = {.at = rows.data, .step = rows.n_rows};
    bool ok = out && fold_run(fold, order_for(run, fold, false, state), false, state, rows.n, rows.n_rows, &in, out);
    if (ok && out != v->data)
        ok = run_op(run, OP_CAST, &result, v->dtype, v->n, (const void *const[]){out}, v->data);
    if (out != v->data)
        os_free(out);
    os_free(rows.data);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

/* Rows along the axis, which is the last one, or the first if `across`: back into the output. */
static void rows_put(const Rows *rows, Value *v, int axis, bool across)
{
    int64_t dim[MAX_RANK], to[MAX_RANK], from[MAX_RANK], stride[MAX_RANK];
    value_strides(v, stride);
    int rank = across;
    for (int d = 0; d < v->rank; d++) {
        int at = d != axis ? rank++ : across ? 0 : v->rank - 1;
        dim[at] = v->dim[d];
        to[at] = stride[d];
    }
    int64_t s = 1;
    for (int d = v->rank - 1; d >= 0; d--) {
        from[d] = s;
        s *= dim[d];
    }
    copy_box(v->rank, dim, dtype_bytes(v->dtype), v->data, to, rows->data, from);
}

Status interp_scan(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    const Value *x = run_in(run, r, 0);
    Value *v = &run->value[r];
    DType state = dtype_accumulator(x->dtype);
    Rows rows, sums = {0};
    if (!rows_make(run, x, 1U << node->attr.axis, true, state, &rows))
        return ST_OUT_OF_MEMORY;
    sums = rows;
    sums.data = value_room(state, v->n);
    FoldInput in = {.at = rows.data, .step = rows.n_rows};
    bool ok = sums.data && fold_run(FOLD_SUM, order_for(run, FOLD_SUM, true, state), true, state, rows.n, rows.n_rows, &in, sums.data);
    if (ok && state != v->dtype) {
        void *narrow = value_room(v->dtype, v->n);
        ok = narrow && run_op(run, OP_CAST, &state, v->dtype, v->n, (const void *const[]){sums.data}, narrow);
        os_free(sums.data);
        sums.data = narrow;
    }
    if (ok)
        rows_put(&sums, v, node->attr.axis, true);
    os_free(sums.data);
    os_free(rows.data);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

/* ---- sort ---- */

/* Integers that order like the elements: ascending keys; descending turns them round. Zeros are equal; NaN gets `nan_key`. */
static uint64_t order_key(DType t, const void *at, bool descending, uint64_t nan_key)
{
    uint64_t bits = scalar_load(t, at), key = bits, top = UINT64_C(1) << 63;
    if (dtype_is_float(t)) {
        double d = scalar_to_double(t, bits);
        if (isnan(d))
            return nan_key;
        d += 0.0; /* -0 becomes +0 */
        memcpy(&key, &d, sizeof key);
        key = key & top ? ~key : key | top;
    } else if (dtype_kind(t) == DK_INT) {
        key = (uint64_t)scalar_to_int(t, bits) ^ top;
    }
    return descending ? ~key : key;
}

typedef struct Keyed {
    uint64_t key;
    int64_t index;
} Keyed;

/* Stable, bottom up; `spare` has room for n. */
static void merge_sort(Keyed *a, Keyed *spare, size_t n)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t middle = start + width < n ? start + width : n;
            size_t end = middle + width < n ? middle + width : n;
            size_t left = start, right = middle;
            for (size_t k = start; k < end; k++) {
                bool take_left = left < middle && (right >= end || a[left].key <= a[right].key);
                spare[k] = a[take_left ? left++ : right++];
            }
        }
        memcpy(a, spare, n * sizeof *a);
    }
}

Status interp_sort(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    const Value *x = run_in(run, r, 0);
    Value *v = &run->value[r];
    Rows rows;
    if (!rows_make(run, x, 1U << node->attr.axis, false, x->dtype, &rows))
        return ST_OUT_OF_MEMORY;
    Rows order = {.n_rows = rows.n_rows, .n = rows.n, .dtype = DT_I64, .data = value_room(DT_I64, v->n)};
    Keyed *keyed = os_calloc(2 * rows.n + 1, sizeof *keyed);
    bool ok = order.data && keyed;
    for (size_t k = 0; ok && k < rows.n_rows; k++) {
        size_t bytes = dtype_bytes(rows.dtype);
        const char *row = (const char *)rows.data + k * rows.n * bytes;
        for (size_t i = 0; i < rows.n; i++)
            keyed[i] = (Keyed){order_key(rows.dtype, row + i * bytes, node->attr.flag, UINT64_MAX), (int64_t)i};
        merge_sort(keyed, keyed + rows.n, rows.n);
        for (size_t i = 0; i < rows.n; i++)
            ((int64_t *)order.data)[k * rows.n + i] = keyed[i].index;
    }
    if (ok)
        rows_put(&order, v, node->attr.axis, false);
    os_free(keyed);
    os_free(order.data);
    os_free(rows.data);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

/* ---- matmul ---- */

/* x as `t`: itself, or a copy that the caller frees. NULL: out of memory. */
static void *as_type(Run *run, const Value *x, DType t)
{
    if (x->dtype == t)
        return x->data;
    void *room = value_room(t, x->n);
    if (room && run_op(run, OP_CAST, &x->dtype, t, x->n, (const void *const[]){x->data}, room))
        return room;
    os_free(room);
    return NULL;
}

Status interp_contract(Run *run, Ref r)
{
    const Value *x = run_in(run, r, 0), *y = run_in(run, r, 1);
    Value *v = &run->value[r];
    DType t = dtype_accumulator(x->dtype);
    size_t bytes = dtype_bytes(t), m = (size_t)x->dim[x->rank - 2], k = (size_t)x->dim[x->rank - 1], n = (size_t)y->dim[y->rank - 1];
    void *a = as_type(run, x, t), *b = as_type(run, y, t);
    void *acc = v->dtype == t ? v->data : value_room(t, v->n);
    Order order = order_for(run, FOLD_DOT, false, x->dtype);
    bool ok = a && b && acc;
    for (size_t i = 0; ok && v->n && i < v->n / n; i++) {
        FoldInput in[2] = {{.at = (const char *)a + i * k * bytes, .step = 1, .same = true},
                           {.at = (const char *)b + i / m * k * n * bytes, .step = n}};
        ok = fold_run(FOLD_DOT, order, false, t, k, n, in, (char *)acc + i * n * bytes);
    }
    if (ok && v->dtype != t)
        ok = run_op(run, OP_CAST, &t, v->dtype, v->n, (const void *const[]){acc}, v->data);
    if (a != x->data)
        os_free(a);
    if (b != y->data)
        os_free(b);
    if (acc != v->data)
        os_free(acc);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

/*
 * Reductions, scans, sorting and matmul.
 *
 * Float sums and products follow the order that ir/scalar.h lays down; other reductions are exact in any order and are
 * done by halving. f16 and bf16 sums, products, scans and matmuls accumulate in f32 and are rounded at the end (of
 * each element of a scan).
 */
#include "ir/base/os.h"
#include "ir/interp_ops.h"
#include "ir/tape_run.h"

#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* ---- rows to reduce ---- */

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

/* ---- sums and products of floats, in order ---- */

/* How many lanes n elements need: lanes without one hold the start value, which changes nothing. */
static size_t lanes_of(size_t lanes, size_t n)
{
    while (lanes / 2 >= n && lanes > 1)
        lanes /= 2;
    return lanes;
}

#define ORDERED(NAME, T, OPERATOR, START)                                                                          \
    static T NAME##_block(const T *x, size_t n, size_t most)                                                       \
    {                                                                                                              \
        T lane[CUDA_REDUCE_LANES];                                                                                 \
        size_t lanes = lanes_of(most, n);                                                                          \
        for (size_t j = 0; j < lanes; j++)                                                                         \
            lane[j] = START;                                                                                       \
        for (size_t i = 0; i < n; i += lanes)                                                                      \
            for (size_t j = 0; j < lanes && i + j < n; j++)                                                        \
                lane[j] = lane[j] OPERATOR x[i + j];                                                               \
        for (size_t s = lanes / 2; s; s /= 2)                                                                      \
            for (size_t j = 0; j < s; j++)                                                                         \
                lane[j] = lane[j] OPERATOR lane[j + s];                                                            \
        return lane[0];                                                                                            \
    }                                                                                                              \
    static void NAME(const Rows *rows, ReduceOrder order, void *out)                                               \
    {                                                                                                              \
        size_t lanes = order == ORDER_CUDA ? CUDA_REDUCE_LANES : REDUCE_LANES;                                     \
        for (size_t r = 0; r < rows->n_rows; r++) {                                                                \
            T *x = (T *)rows->data + r * rows->n, total = (T)((START) + 0);                                        \
            size_t blocks = 0;                                                                                     \
            for (size_t i = 0; i < rows->n; i += REDUCE_BLOCK) /* their results over the elements */               \
                x[blocks++] = NAME##_block(x + i, rows->n - i < REDUCE_BLOCK ? rows->n - i : REDUCE_BLOCK, lanes); \
            if (blocks && order == ORDER_CUDA)                                                                     \
                total = NAME##_block(x, blocks, lanes);                                                            \
            for (size_t i = 0; i < blocks && order == ORDER_HOST; i++)                                             \
                total = i ? total OPERATOR x[i] : x[i];                                                            \
            ((T *)out)[r] = total;                                                                                 \
        }                                                                                                          \
    }
ORDERED(sum_f32, float, +, -0.0F)
ORDERED(sum_f64, double, +, -0.0)
ORDERED(product_f32, float, *, 1.0F)
ORDERED(product_f64, double, *, 1.0)

/* ---- everything else, by halving ---- */

/* out[r] = the step over the r-th column of [n, n_rows]: the later half onto the earlier, until one row is left. */
static bool reduce_exact(Run *run, Op op, Rows *rows, void *out)
{
    DType types[2] = {rows->dtype, rows->dtype};
    size_t bytes = dtype_bytes(rows->dtype), width = rows->n_rows;
    char *data = rows->data;
    for (size_t n = rows->n; n > 1;) {
        size_t half = n / 2, keep = n - half;
        if (!run_op(run, reduce_step(op), types, rows->dtype, half * width, (const void *const[]){data, data + keep * width * bytes}, data))
            return false;
        n = keep;
    }
    uint64_t start = reduce_start(op, rows->dtype);
    for (size_t r = 0; rows->n == 0 && r < width; r++)
        scalar_store(rows->dtype, start, (char *)out + r * bytes);
    if (rows->n && width)
        memcpy(out, data, width * bytes);
    return true;
}

typedef void OrderedFn(const Rows *rows, ReduceOrder order, void *out);

/* The function that keeps the order, for the sums and products that have one; NULL: any order is exact. */
static OrderedFn *ordered_of(Op op, DType t)
{
    if (op == OP_REDUCE_SUM)
        return t == DT_F32 ? sum_f32 : t == DT_F64 ? sum_f64 : NULL;
    if (op == OP_REDUCE_PROD)
        return t == DT_F32 ? product_f32 : t == DT_F64 ? product_f64 : NULL;
    return NULL;
}

static bool reduce_rows(Run *run, Op op, Rows *rows, void *out)
{
    OrderedFn *ordered = ordered_of(op, rows->dtype);
    if (!ordered)
        return reduce_exact(run, op, rows, out);
    ordered(rows, run->order, out);
    return true;
}

/* ---- argmax, argmin, argsort: integers that order like the elements ---- */

/* Ascending keys; descending turns them round. Zeros are equal; NaN gets `nan_key`. */
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

/* The first index of the least key; NaN's is 0, which no number has. */
static void find_extreme(const Rows *rows, bool max, int64_t *out)
{
    size_t bytes = dtype_bytes(rows->dtype);
    for (size_t r = 0; r < rows->n_rows; r++) {
        const char *row = (const char *)rows->data + r * rows->n * bytes;
        uint64_t least = UINT64_MAX;
        out[r] = 0;
        for (size_t i = 0; i < rows->n; i++) {
            uint64_t key = order_key(rows->dtype, row + i * bytes, max, 0);
            if (key < least) {
                least = key;
                out[r] = (int64_t)i;
            }
        }
    }
}

Status interp_reduce(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    const Value *x = run_in(run, r, 0);
    Value *v = &run->value[r];
    Op op = (Op)node->op;
    bool arg = op == OP_ARGMAX || op == OP_ARGMIN;
    bool sums = op == OP_REDUCE_SUM || op == OP_REDUCE_PROD;
    DType dtype = sums ? dtype_accumulator(x->dtype) : x->dtype;
    Rows rows;
    if (!rows_make(run, x, node->attr.mask, !arg && !ordered_of(op, dtype), dtype, &rows))
        return ST_OUT_OF_MEMORY;
    bool ok = true;
    if (arg) {
        find_extreme(&rows, op == OP_ARGMAX, v->data);
    } else if (rows.dtype == v->dtype) {
        ok = reduce_rows(run, op, &rows, v->data);
    } else {
        void *wide = value_room(rows.dtype, v->n);
        ok = wide && reduce_rows(run, op, &rows, wide) &&
             run_op(run, OP_CAST, &rows.dtype, v->dtype, v->n, (const void *const[]){wide}, v->data);
        os_free(wide);
    }
    os_free(rows.data);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

/* ---- scan and sort: along one axis ---- */

/* Rows along the axis (the axis last), and back into the output. */
static void rows_put(const Rows *rows, Value *v, int axis)
{
    int64_t dim[MAX_RANK], to[MAX_RANK], from[MAX_RANK], stride[MAX_RANK];
    value_strides(v, stride);
    int rank = 0;
    for (int d = 0; d < v->rank; d++)
        if (d != axis) {
            dim[rank] = v->dim[d];
            to[rank++] = stride[d];
        }
    dim[rank] = v->dim[axis];
    to[rank++] = stride[axis];
    int64_t s = 1;
    for (int d = rank - 1; d >= 0; d--) {
        from[d] = s;
        s *= dim[d];
    }
    copy_box(rank, dim, dtype_bytes(v->dtype), v->data, to, rows->data, from);
}

/* Running sums of a row by halving (ir/scalar.h), in place; `base` stands before it. The sum of the row. */
#define HALVES(NAME, T)                                    \
    static T NAME(T *x, size_t n, T base)                  \
    {                                                      \
        size_t half = 1;                                   \
        if (n == 1) {                                      \
            T own = x[0];                                  \
            x[0] = base + own;                             \
            return own;                                    \
        }                                                  \
        while (2 * half < n)                               \
            half *= 2;                                     \
        T low = NAME(x, half, base);                       \
        return low + NAME(x + half, n - half, base + low); \
    }
HALVES(halves_f32, float)
HALVES(halves_f64, double)

/* row[i] = row[0] + ... + row[i]: in order, or by halving. */
static void scan_row(DType t, bool halving, void *row, size_t n)
{
    if (t == DT_F32 && halving && n) {
        halves_f32(row, n, -0.0F);
    } else if (t == DT_F64 && halving && n) {
        halves_f64(row, n, -0.0);
    } else if (t == DT_F32) {
        float *x = row;
        for (size_t i = 1; i < n; i++)
            x[i] = x[i - 1] + x[i];
    } else if (t == DT_F64) {
        double *x = row;
        for (size_t i = 1; i < n; i++)
            x[i] = x[i - 1] + x[i];
    } else {
        size_t bytes = dtype_bytes(t);
        uint64_t total = 0;
        for (size_t i = 0; i < n; i++) {
            total += scalar_load(t, (char *)row + i * bytes); /* its low bits are the wrapped sum */
            scalar_store(t, total, (char *)row + i * bytes);
        }
    }
}

Status interp_scan(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    const Value *x = run_in(run, r, 0);
    Value *v = &run->value[r];
    Rows rows;
    if (!rows_make(run, x, 1U << node->attr.axis, false, dtype_accumulator(x->dtype), &rows))
        return ST_OUT_OF_MEMORY;
    for (size_t k = 0; k < rows.n_rows; k++)
        scan_row(rows.dtype, run->order == ORDER_CUDA && run->math == MATH_FAST, (char *)rows.data + k * rows.n * dtype_bytes(rows.dtype),
                 rows.n);
    bool ok = true;
    if (rows.dtype != v->dtype) {
        void *narrow = value_room(v->dtype, v->n);
        ok = narrow && run_op(run, OP_CAST, &rows.dtype, v->dtype, v->n, (const void *const[]){rows.data}, narrow);
        os_free(rows.data);
        rows.data = narrow;
    }
    if (ok)
        rows_put(&rows, v, node->attr.axis);
    os_free(rows.data);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
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
        rows_put(&order, v, node->attr.axis);
    os_free(keyed);
    os_free(order.data);
    os_free(rows.data);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

/* ---- matmul ---- */

/* acc[j] = sum over k, in order from +0, of a[k] b[k][j]; b has rows of n. */
static void matmul_block(DType t, size_t k, size_t n, const void *a, const void *b, void *acc)
{
    memset(acc, 0, n * dtype_bytes(t));
    size_t bytes = dtype_bytes(t);
    for (size_t p = 0; p < k; p++) {
        const char *row = (const char *)b + p * n * bytes;
        if (t == DT_F32) {
            tape_axpy_f32(n, acc, ((const float *)a)[p], (const float *)(const void *)row);
        } else if (t == DT_F64) {
            tape_axpy_f64(n, acc, ((const double *)a)[p], (const double *)(const void *)row);
        } else {
            uint64_t factor = scalar_load(t, (const char *)a + p * bytes);
            for (size_t j = 0; j < n; j++) {
                char *at = (char *)acc + j * bytes; /* low bits of products and sums: wrapping in any width */
                scalar_store(t, scalar_load(t, at) + factor * scalar_load(t, row + j * bytes), at);
            }
        }
    }
}

/* One output row, by blocks of `block`; `part` has room for a row. */
static void matmul_row(DType t, size_t block, size_t k, size_t n, const void *a, const void *b, void *acc, void *part)
{
    size_t bytes = dtype_bytes(t);
    matmul_block(t, k < block ? k : block, n, a, b, acc);
    for (size_t p = block; p < k; p += block) {
        matmul_block(t, k - p < block ? k - p : block, n, (const char *)a + p * bytes, (const char *)b + p * n * bytes, part);
        for (size_t j = 0; j < n; j++) {
            char *at = (char *)acc + j * bytes, *from = (char *)part + j * bytes;
            if (t == DT_F32)
                *(float *)(void *)at += *(const float *)(const void *)from;
            else if (t == DT_F64)
                *(double *)(void *)at += *(const double *)(const void *)from;
            else
                scalar_store(t, scalar_load(t, at) + scalar_load(t, from), at);
        }
    }
}

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
    void *acc = v->dtype == t ? v->data : value_room(t, v->n), *part = value_room(t, n);
    size_t block = run->order == ORDER_CUDA ? k + 1 : DOT_BLOCK;
    bool ok = a && b && acc && part;
    for (size_t i = 0; ok && v->n && i < v->n / n; i++)
        matmul_row(t, block, k, n, (const char *)a + i * k * bytes, (const char *)b + i / m * k * n * bytes, (char *)acc + i * n * bytes,
                   part);
    if (ok && v->dtype != t)
        ok = run_op(run, OP_CAST, &t, v->dtype, v->n, (const void *const[]){acc}, v->data);
    if (a != x->data)
        os_free(a);
    if (b != y->data)
        os_free(b);
    if (acc != v->data)
        os_free(acc);
    os_free(part);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

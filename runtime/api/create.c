/*
 * Tensors from nothing (filled, counted, diagonal) and from memory (copied, borrowed).
 *
 * A filled tensor is a scalar that is repeated, a range is arithmetic on an IOTA: nothing is stored
 * until somebody needs the array itself. Memory of the user enters as a node that is evaluated from
 * the start (an INPUT with storage).
 */
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/api/mark.h"
#include "runtime/eval/constants.h"
#include "runtime/gradient/param.h"
#include "runtime/record/record.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Is it a dtype? */
static bool good_dtype(Rec *r, kiln_dtype dtype)
{
    if ((unsigned)dtype < DT_COUNT)
        return true;
    rec_fail(r, ST_INVALID, "dtype %d does not exist", (int)dtype);
    return false;
}

/* ---- filled ---- */

/* A scalar repeated, along axes of size 1 too: the structure does not depend on sizes. */
static RtNode *filled(Rec *r, RtNode *scalar, kiln_shape shape)
{
    if (!scalar || !rec_shape(r, shape))
        return NULL;
    return rec_expand(r, scalar, shape.rank, shape.dim);
}

/* `value` in dtype; refused where an int dtype cannot hold it. */
RtNode *rec_number(Rec *r, kiln_dtype dtype, double value)
{
    if (!good_dtype(r, dtype))
        return NULL;
    DType t = (DType)dtype;
    uint64_t bits = scalar_from_double(t, value);
    if (dtype_is_int(t)) {
        if (isfinite(value) && value != trunc(value))
            return rec_fail(r, ST_INVALID, "%g is no whole number: the dtype is %s", value, dtype_name(t));
        double back = t == DT_U64 ? (double)bits : (double)scalar_to_int(t, bits);
        if (!(fabs(back - value) <= 0) && !(isfinite(value) && fabs(value) >= 0x1p53 && fabs(back / value - 1) < 1e-9))
            return rec_fail(r, ST_INVALID, "%g does not fit %s", value, dtype_name(t));
    }
    return rec_bits(r, t, bits);
}

API3(kiln_tensor *, kiln_full, kiln_dtype, dtype, kiln_shape, shape, double, value)
{
    Rec r = REC(kiln_full);
    return rec_end(&r, filled(&r, rec_number(&r, dtype, value), shape));
}

API3(kiln_tensor *, kiln_full_int, kiln_dtype, dtype, kiln_shape, shape, int64_t, value)
{
    Rec r = REC(kiln_full_int);
    if (!good_dtype(&r, dtype))
        return rec_end(&r, NULL);
    DType t = (DType)dtype;
    uint64_t bits = scalar_from_int(t, value);
    if (dtype_is_int(t) && (scalar_to_int(t, bits) != value || (value < 0 && !dtype_is_signed(t))))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%" PRId64 " does not fit %s", value, dtype_name(t)));
    return rec_end(&r, filled(&r, rec_bits(&r, t, bits), shape));
}

API2(kiln_tensor *, kiln_zeros, kiln_dtype, dtype, kiln_shape, shape)
{
    Rec r = REC(kiln_zeros);
    return rec_end(&r, filled(&r, rec_number(&r, dtype, 0), shape));
}

API2(kiln_tensor *, kiln_ones, kiln_dtype, dtype, kiln_shape, shape)
{
    Rec r = REC(kiln_ones);
    return rec_end(&r, filled(&r, rec_number(&r, dtype, 1), shape));
}

/* Filled with the dtype and shape of another tensor. */
static kiln_tensor *like(Rec r, kiln_tensor *x, double value)
{
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    if (!in)
        return rec_end(&r, NULL);
    kiln_shape shape = {in->rank, {0}};
    memcpy(shape.dim, in->dim, sizeof *in->dim * in->rank);
    return rec_end(&r, filled(&r, rec_number(&r, (kiln_dtype)in->dtype, value), shape));
}

API1(kiln_tensor *, kiln_zeros_like, kiln_tensor *, x) { return like(REC(kiln_zeros_like), x, 0); }

API1(kiln_tensor *, kiln_ones_like, kiln_tensor *, x) { return like(REC(kiln_ones_like), x, 1); }

API2(kiln_tensor *, kiln_full_like, kiln_tensor *, x, double, value) { return like(REC(kiln_full_like), x, value); }

/* ---- weak scalars ---- */

static kiln_tensor *weak(Rec r, DType dtype, uint64_t bits)
{
    RtNode *node = rec_bits(&r, dtype, bits);
    if (node)
        node->weak = true;
    return rec_end(&r, node);
}

API1(kiln_tensor *, kiln_scalar, double, value) { return weak(REC(kiln_scalar), DT_F64, scalar_from_double(DT_F64, value)); }

API1(kiln_tensor *, kiln_int, int64_t, value) { return weak(REC(kiln_int), DT_I64, (uint64_t)value); }

API1(kiln_tensor *, kiln_uint, uint64_t, value)
{
    Rec r = REC(kiln_uint);
    if (value > INT64_MAX)
        return rec_end(&r, rec_fail(&r, ST_OVERFLOW,
                                    "%" PRIu64 " is more than a scalar holds, 2^63 - 1; make it a tensor of u64 with kiln_from", value));
    return weak(r, DT_I64, value);
}

API1(kiln_tensor *, kiln_bool, bool, value) { return weak(REC(kiln_bool), DT_BOOL, value); }

/* ---- ranges ---- */

/* How many of start, start + step, ... lie before stop; -1 when that is too many. */
static int64_t range_length(double start, double stop, double step)
{
    double n = ceil((stop - start) / step);
    return !(n > 0) ? 0 : n > 0x1p62 ? -1 : (int64_t)n;
}

API4(kiln_tensor *, kiln_arange, kiln_dtype, dtype, double, start, double, stop, double, step)
{
    Rec r = REC(kiln_arange);
    if (!good_dtype(&r, dtype))
        return rec_end(&r, NULL);
    DType t = (DType)dtype;
    if (t == DT_BOOL)
        return rec_end(&r, rec_fail(&r, ST_DTYPE, "dtype is bool: a number is needed"));
    if (!isfinite(start) || !isfinite(stop) || !isfinite(step) || step == 0)
        return rec_end(&r, rec_fail(&r, ST_INVALID,
                                    "start %g, stop %g, step %g: finite numbers and a step other than 0 are "
                                    "needed",
                                    start, stop, step));
    int64_t n = range_length(start, stop, step);
    if (n < 0)
        return rec_end(&r, rec_fail(&r, ST_OVERFLOW, "more than 2^62 elements"));
    DType wide = dtype_is_float(t) ? DT_F64 : DT_I64;
    double last = start + (double)(n ? n - 1 : 0) * step;
    if (wide == DT_I64) {
        if (start != trunc(start) || step != trunc(step) || fabs(start) > 0x1p53 || fabs(step) > 0x1p53)
            return rec_end(&r, rec_fail(&r, ST_INVALID, "start %g and step %g are whole numbers for %s", start, step, dtype_name(t)));
        double ends[2] = {start, last};
        for (int k = 0; k < 2 && n; k++)
            if (!rec_number(&r, dtype, ends[k]))
                return rec_end(&r, NULL);
    }
    RtNode *i = rec_cast(&r, rec_iota(&r, n), wide);
    RtNode *x = rec_ew2(&r, OP_ADD, rec_ew2(&r, OP_MUL, i, rec_scalar(&r, wide, step)), rec_scalar(&r, wide, start));
    return rec_end(&r, rec_cast(&r, x, t));
}

API4(kiln_tensor *, kiln_linspace, kiln_dtype, dtype, double, start, double, stop, int64_t, n)
{
    Rec r = REC(kiln_linspace);
    if (!good_dtype(&r, dtype))
        return rec_end(&r, NULL);
    DType t = (DType)dtype;
    if (!dtype_is_float(t))
        return rec_end(&r, rec_fail(&r, ST_DTYPE, "dtype is %s: a float is needed", dtype_name(t)));
    if (!isfinite(start) || !isfinite(stop) || n < 0)
        return rec_end(&r,
                       rec_fail(&r, ST_INVALID, "start %g, stop %g, n %" PRId64 ": finite numbers and n >= 0 are needed", start, stop, n));
    double step = n > 1 ? (stop - start) / (double)(n - 1) : 0, last = n > 1 ? stop : start;
    RtNode *i = rec_iota(&r, n);
    RtNode *x = rec_ew2(&r, OP_MUL, rec_cast(&r, i, DT_F64), rec_scalar(&r, DT_F64, step));
    x = rec_ew2(&r, OP_ADD, x, rec_scalar(&r, DT_F64, start));
    RtNode *is_last = rec_ew2(&r, OP_EQ, i, rec_int(&r, DT_I64, n - 1)); /* that one exactly */
    x = rec_ew3(&r, OP_WHERE, is_last, rec_scalar(&r, DT_F64, last), x);
    return rec_end(&r, rec_cast(&r, x, t));
}

API4(kiln_tensor *, kiln_eye, kiln_dtype, dtype, int64_t, rows, int64_t, cols, int64_t, k)
{
    Rec r = REC(kiln_eye);
    if (!good_dtype(&r, dtype) || !rec_shape(&r, (kiln_shape){2, {rows, cols}}))
        return rec_end(&r, NULL);
    int64_t dims[2] = {rows, cols}, diagonal = k > cols ? cols : k < -rows ? -rows : k;
    RtNode *row = rec_insert(&r, rec_iota(&r, rows), 1), *col = rec_iota(&r, cols);
    RtNode *above = rec_ew2(&r, OP_SUB, rec_expand(&r, col, 2, dims), rec_repeat(&r, row, 2, dims));
    return rec_end(&r, rec_cast(&r, rec_ew2(&r, OP_EQ, above, rec_int(&r, DT_I64, diagonal)), (DType)dtype));
}

/* ---- memory ---- */

/* Bytes of a shape's elements; false (an error was kept) when they cannot exist in memory. */
static bool shape_bytes(Rec *r, kiln_dtype dtype, kiln_shape shape, size_t *bytes)
{
    int64_t n;
    if (!good_dtype(r, dtype) || !rec_shape(r, shape))
        return false;
    shape_numel(shape.rank, shape.dim, &n);
    if ((uint64_t)n > ((uint64_t)1 << 62) / dtype_bytes((DType)dtype)) {
        rec_fail(r, ST_OVERFLOW, "the shape has more than 2^62 bytes");
        return false;
    }
    *bytes = (size_t)n * dtype_bytes((DType)dtype);
    return true;
}

/* A handle for memory. */
static kiln_tensor *evaluated(Rec *r, kiln_dtype dtype, kiln_shape shape, Storage *storage, void *data, const int64_t *strides)
{
    return rec_end(r, rec_data(r, (DType)dtype, shape.rank, shape.dim, storage, data, strides));
}

API3(kiln_tensor *, kiln_from, kiln_dtype, dtype, kiln_shape, shape, const void *, data)
{
    Rec r = REC(kiln_from);
    size_t bytes;
    if (!shape_bytes(&r, dtype, shape, &bytes))
        return rec_end(&r, NULL);
    int device;
    Status status = device_current(&device);
    if (status != ST_OK)
        return rec_end(&r, rec_failed(&r, status));
    if (bytes && !data && device != DEVICE_META)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "data is NULL"));
    unsigned char *truth = NULL; /* bools are any bytes to the caller, 0 or 1 inside */
    if (dtype == KILN_BOOL && bytes && device != DEVICE_META) {
        if (!(truth = os_alloc(bytes)))
            return rec_end(&r, rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory"));
        for (size_t i = 0; i < bytes; i++)
            truth[i] = ((const unsigned char *)data)[i] != 0;
        data = truth;
    }
    Storage *storage = NULL;
    status = storage_copied_to(device, data, bytes, &storage);
    os_free(truth);
    if (status != ST_OK)
        return rec_end(&r, rec_failed(&r, status));
    return evaluated(&r, dtype, shape, storage, storage->data, NULL);
}

typedef void Deleter(void *data, void *user);

/* A handle for borrowed memory. The deleter comes last: on failure the memory stays the caller's. */
static kiln_tensor *borrowed(Rec *r, kiln_dtype dtype, kiln_shape shape, Storage *storage, void *data, const int64_t *strides,
                             Deleter *deleter)
{
    if (!storage)
        return rec_end(r, rec_failed(r, ST_OUT_OF_MEMORY));
    kiln_tensor *x = evaluated(r, dtype, shape, storage, data, strides);
    if (x)
        storage_lend(storage, deleter);
    return x;
}

/* Is the address aligned to the element? */
static bool aligned(Rec *r, kiln_dtype dtype, const void *data)
{
    if ((uintptr_t)data % dtype_bytes((DType)dtype) == 0)
        return true;
    rec_fail(r, ST_INVALID, "data is not aligned to %zu bytes", dtype_bytes((DType)dtype));
    return false;
}

API5(kiln_tensor *, kiln_wrap, kiln_dtype, dtype, kiln_shape, shape, void *, data, Deleter *, deleter, void *, user)
{
    Rec r = REC(kiln_wrap);
    size_t bytes;
    if (!shape_bytes(&r, dtype, shape, &bytes) || !aligned(&r, dtype, data))
        return rec_end(&r, NULL);
    if (bytes && !data)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "data is NULL"));
    return borrowed(&r, dtype, shape, storage_borrow(data, bytes, data, NULL, user), data, NULL, deleter);
}

Status strided_reach(DType dtype, kiln_shape shape, const int64_t *strides, StridedReach *reach)
{
    int64_t low = 0, high = 0, row = 1, n, limit = INT64_C(1) << 58, size = (int64_t)dtype_bytes(dtype);
    bool packed = true, fits = shape_numel(shape.rank, shape.dim, &n) && n <= (INT64_C(1) << 62) / size;
    if (!fits)
        return fail(ST_OVERFLOW, "the shape has more than 2^62 bytes");
    for (int d = shape.rank - 1; d >= 0; d--) {
        int64_t far, stride = strides ? strides[d] : row;
        packed = packed && (shape.dim[d] == 1 || stride == row);
        row *= shape.dim[d];
        if (n == 0 || shape.dim[d] == 1)
            continue;
        fits = fits && !__builtin_mul_overflow(shape.dim[d] - 1, stride, &far);
        fits = fits && !(far < 0 ? __builtin_add_overflow(low, far, &low) : __builtin_add_overflow(high, far, &high));
    }
    if (!fits || low < -limit || high > limit)
        return fail(ST_OVERFLOW, "the strides reach beyond the address space");
    *reach = (StridedReach){low * size, n ? (size_t)((high - low + 1) * size) : 0, packed || n == 0};
    return ST_OK;
}

API6(kiln_tensor *, kiln_wrap_strided, kiln_dtype, dtype, kiln_shape, shape, const int64_t *, strides, void *, data, Deleter *, deleter,
     void *, user)
{
    Rec r = REC(kiln_wrap_strided);
    size_t bytes;
    if (!shape_bytes(&r, dtype, shape, &bytes) || !aligned(&r, dtype, data))
        return rec_end(&r, NULL);
    if ((bytes && !data) || (shape.rank && !strides))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%s is NULL", bytes && !data ? "data" : "strides"));
    StridedReach reach;
    Status status = strided_reach((DType)dtype, shape, strides, &reach);
    if (status != ST_OK)
        return rec_end(&r, rec_failed(&r, status));
    Storage *storage = storage_borrow(data ? (char *)data + reach.low : NULL, reach.bytes, data, NULL, user);
    return borrowed(&r, dtype, shape, storage, data, reach.packed ? NULL : strides, deleter);
}

/* Lets go of the storage that another one stands for. */
static void release_inner(void *origin, void *user)
{
    (void)origin;
    storage_release(user);
}

void kiln_touch(kiln_tensor *x)
{
    if (!x)
        return;
    RtNode *old = x->node;
    Storage *storage = atomic_load_explicit(&old->storage, memory_order_acquire);
    if (!storage || !atomic_load(&storage->borrowed) || storage->device != DEVICE_CPU)
        return;
    /* A new version: a storage of its own over the same memory, in a new node, so whatever is
     * remembered by storage is not taken for the new contents. All versions stand for the first. */
    Rec r = rec_begin("kiln_touch", NULL, 0);
    Storage *first = storage->deleter == release_inner ? storage->user : storage;
    Storage *fresh = storage_borrow(storage->data, storage->bytes, NULL, NULL, first);
    RtNode *node = fresh ? rec_data(&r, (DType)old->dtype, old->rank, old->dim, fresh, old->data, old->stride) : NULL;
    if (node) {
        storage_retain(first);
        fresh->deleter = release_inner;
        fresh->read_only = first->read_only;
        node->loc = old->loc;
        param_copy(node, old);
        if (!marks_copy(node, old)) /* it has none then */
            rec_failed(&r, ST_OUT_OF_MEMORY);
        constants_forget(storage);
        x->node = node_retain(node);
        node_release(old);
    } else {
        rec_failed(&r, ST_OUT_OF_MEMORY);
    }
    rec_end(&r, NULL);
}

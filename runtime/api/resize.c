/*
 * Another number of places along spatial axes: adaptive pooling and interpolation, one axis after another.
 *
 * Places and weights are computed as vectors from 0, 1, 2... where they are read, so that a program holds for all sizes. Both are exact:
 * places in integers, or in f64 where weights need fractions.
 */
#include "runtime/api/images.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static RtNode *add(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_ADD, a, b); }
static RtNode *sub(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_SUB, a, b); }
static RtNode *mul(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_MUL, a, b); }
static RtNode *whole(Rec *r, int64_t value) { return rec_int(r, DT_I64, value); }
static RtNode *real(Rec *r, double value) { return rec_scalar(r, DT_F64, value); }

/* floor(i n / m), for i >= 0. m = 0: there is no i. */
static RtNode *quotient(Rec *r, RtNode *i, int64_t n, int64_t m)
{
    RtNode *product = mul(r, i, whole(r, n));
    return rec_ew2(r, OP_FLOORDIV, product, whole(r, m ? m : 1));
}

/* Within 0 to n - 1. */
static RtNode *clamped(Rec *r, RtNode *i, int64_t n)
{
    i = rec_ew2(r, OP_MAXIMUM, i, whole(r, 0));
    return rec_ew2(r, OP_MINIMUM, i, whole(r, n - 1));
}

/* Sizes asked for, of images that have elements along each spatial axis. */
static bool sizes_in(Rec *r, RtNode *x, kiln_shape size, int64_t least, bool channels_last, Images *in)
{
    char text[SHAPE_TEXT];
    int64_t numel;
    if (!x || !rec_shape(r, size))
        return false;
    if (size.rank < 1 || size.rank > KILN_MAX_SPATIAL) {
        rec_fail(r, ST_SHAPE, "sizes of 1 to %d axes, not %d", KILN_MAX_SPATIAL, size.rank);
        return false;
    }
    if (!images_in(r, x, size.rank, channels_last, in))
        return false;
    int64_t dims[MAX_RANK];
    memcpy(dims, in->x->dim, sizeof dims);
    for (int d = 0; d < size.rank; d++) {
        int64_t n = in->x->dim[2 + d], product;
        if (n == 0 || size.dim[d] < least) {
            rec_fail(r, ST_SHAPE, "spatial axis %d, from %" PRId64 " elements to %" PRId64 ": x is %s", d, n, size.dim[d],
                     node_text(x, text));
            return false;
        }
        dims[2 + d] = size.dim[d] > n ? size.dim[d] : n; /* what is between the axes */
        if (__builtin_mul_overflow(2 * n + 1, 2 * size.dim[d] + 1, &product)) {
            rec_fail(r, ST_OVERFLOW, "spatial axis %d, from %" PRId64 " elements to %" PRId64, d, n, size.dim[d]);
            return false;
        }
    }
    if (!shape_numel(in->x->rank, dims, &numel)) {
        rec_fail(r, ST_OVERFLOW, "the result has more than 2^62 elements: x is %s", node_text(x, text));
        return false;
    }
    return true;
}

/* ---- adaptive pooling ---- */

/*
 * Place i of m has the elements from floor(i n / m) up to ceil((i + 1) n / m). Where m divides n that cuts the axis evenly; else as many as the
 * longest has are taken, and those beyond an end count as `fill`. For a mean, *counts gets [m] of x's dtype; NULL: all have n / m.
 */
static RtNode *adapt(Rec *r, RtNode *x, int axis, int64_t m, Op op, RtNode *fill, RtNode **counts)
{
    int64_t n = x->dim[axis];
    *counts = NULL;
    if (m == 0)
        return rec_slice(r, x, axis, 0, 1, 0);
    uint8_t inside = (uint8_t)(1u << (axis + 1));
    if (n % m == 0)
        return rec_reduce(r, op, rec_split(r, x, axis, 2, (const int64_t[]){m, n / m}), inside, false);
    const int64_t dims[2] = {m, n / m + 2};
    RtNode *place = rec_iota(r, m);
    RtNode *begin = quotient(r, place, n, m);
    RtNode *past = add(r, place, whole(r, 1));
    RtNode *end = rec_ew1(r, OP_NEG, quotient(r, rec_ew1(r, OP_NEG, past), n, m)); /* rounded up */
    RtNode *count = sub(r, end, begin);
    RtNode *tap = rec_repeat(r, rec_insert(r, rec_iota(r, dims[1]), 0), 1, dims);
    RtNode *within = rec_ew2(r, OP_LT, tap, rec_repeat(r, rec_insert(r, count, 1), 2, dims));
    RtNode *index = clamped(r, add(r, rec_repeat(r, rec_insert(r, begin, 1), 2, dims), tap), n);
    x = rec_take(r, x, rec_merge(r, index, 0, 2), axis);
    if (!x)
        return NULL;
    within = rec_spread(r, rec_merge(r, within, 0, 2), x->rank, x->dim, axis);
    x = rec_ew3(r, OP_WHERE, within, x, fill);
    *counts = rec_cast(r, count, fill ? node_dtype(fill) : DT_F32);
    return rec_reduce(r, op, rec_split(r, x, axis, 2, dims), inside, false);
}

API3(kiln_tensor *, kiln_adaptive_max_pool, kiln_tensor *, x, kiln_shape, size, bool, channels_last)
{
    static const char *const name = "x";
    Rec r = REC(kiln_adaptive_max_pool);
    RtNode *in = rec_in(&r, x, "x"), *counts;
    Images images;
    if (!rec_promote(&r, PREP_NUM, 1, &in, &name) || !sizes_in(&r, in, size, 0, channels_last, &images))
        return rec_end(&r, NULL);
    RtNode *y = images.x, *least = reduce_least(&r, node_dtype(in));
    for (int d = 0; d < size.rank && y; d++)
        y = adapt(&r, y, 2 + d, size.dim[d], OP_REDUCE_MAX, least, &counts);
    return rec_end(&r, y ? images_out(&r, &images, y) : NULL);
}

API3(kiln_tensor *, kiln_adaptive_avg_pool, kiln_tensor *, x, kiln_shape, size, bool, channels_last)
{
    static const char *const name = "x";
    Rec r = REC(kiln_adaptive_avg_pool);
    RtNode *in = rec_in(&r, x, "x"), *counts;
    Images images;
    if (!rec_promote(&r, PREP_FLOAT, 1, &in, &name) || !sizes_in(&r, in, size, 0, channels_last, &images))
        return rec_end(&r, NULL);
    DType out = node_dtype(in), wide = compute_dtype(out);
    RtNode *y = rec_cast(&r, images.x, wide), *zero = rec_int(&r, wide, 0);
    for (int d = 0; d < size.rank && y; d++) {
        int axis = 2 + d;
        int64_t n = y->dim[axis];
        y = adapt(&r, y, axis, size.dim[d], OP_REDUCE_SUM, zero, &counts);
        if (counts && y)
            y = rec_ew2(&r, OP_DIV, y, rec_spread(&r, counts, y->rank, y->dim, axis));
        else if (size.dim[d])
            y = rec_ew2(&r, OP_DIV, y, rec_scalar(&r, wide, (double)(n / size.dim[d])));
    }
    return rec_end(&r, y ? images_out(&r, &images, rec_cast(&r, y, out)) : NULL);
}

/* ---- interpolation ---- */

enum { MOST_TAPS = 4 };

/* What each place along an axis takes: x[index[t]] * weight[t], summed. Vectors of as many elements as there are places, i64 and f64. */
typedef struct Taps {
    int n;
    RtNode *index[MOST_TAPS], *weight[MOST_TAPS];
} Taps;

static const kiln_interpolate_options interpolate_defaults;

/* Where place i of m is among n elements, as f64. */
static RtNode *position(Rec *r, const kiln_interpolate_options *o, int64_t n, int64_t m, double scale)
{
    RtNode *i = rec_cast(r, rec_iota(r, m), DT_F64);
    if (o->align_corners)
        return rec_ew2(r, OP_DIV, mul(r, i, real(r, (double)(n - 1))), real(r, m > 1 ? (double)(m - 1) : 1));
    i = add(r, i, real(r, 0.5));
    i = scale != 0 ? rec_ew2(r, OP_DIV, i, real(r, scale)) : rec_ew2(r, OP_DIV, mul(r, i, real(r, (double)n)), real(r, (double)m));
    return sub(r, i, real(r, 0.5));
}

/* Has each element as many places, or each place as many elements? Then the nearest are a view. A scale below 1 may be rounded, and its
 * places with it. */
static bool divides(int64_t n, int64_t m, double scale)
{
    return m % n == 0 ? scale == 0 || scale == (double)(m / n) : scale == 0 && n % m == 0;
}

/* Each element again and again, or every so many-th. */
static RtNode *nearest_view(Rec *r, const kiln_interpolate_options *o, RtNode *x, int axis, int64_t m)
{
    int64_t n = x->dim[axis], dims[MAX_RANK];
    if (m < n)
        return rec_slice(r, x, axis, o->mode == KILN_NEAREST_CENTER ? n / m / 2 : 0, n / m, m);
    if (m == n || !(x = rec_insert(r, x, axis + 1)))
        return x;
    memcpy(dims, x->dim, sizeof dims);
    dims[axis + 1] = m / n;
    return rec_merge(r, rec_repeat(r, x, (uint8_t)(1u << (axis + 1)), dims), axis, 2);
}

static Taps nearest(Rec *r, const kiln_interpolate_options *o, int64_t n, int64_t m, double scale)
{
    bool center = o->mode == KILN_NEAREST_CENTER;
    RtNode *i = rec_iota(r, m);
    if (scale != 0) {
        i = add(r, rec_cast(r, i, DT_F64), real(r, center ? 0.5 : 0));
        i = rec_cast(r, rec_ew1(r, OP_FLOOR, rec_ew2(r, OP_DIV, i, real(r, scale))), DT_I64);
    } else if (center) {
        i = quotient(r, add(r, mul(r, i, whole(r, 2)), whole(r, 1)), n, 2 * m);
    } else {
        i = quotient(r, i, n, m);
    }
    return (Taps){1, {clamped(r, i, n)}, {NULL}};
}

/* Keys 1981 with -0.75: a tap that is x away, x <= 1 and 1 <= x <= 2. */
static RtNode *cubic_near(Rec *r, RtNode *x)
{
    RtNode *y = sub(r, mul(r, x, real(r, 1.25)), real(r, 2.25));
    return add(r, mul(r, mul(r, y, x), x), real(r, 1));
}

static RtNode *cubic_far(Rec *r, RtNode *x)
{
    RtNode *y = add(r, mul(r, x, real(r, -0.75)), real(r, 3.75));
    y = sub(r, mul(r, y, x), real(r, 6));
    return add(r, mul(r, y, x), real(r, 3));
}

static Taps between(Rec *r, const kiln_interpolate_options *o, int64_t n, int64_t m, double scale)
{
    bool cubic = o->mode == KILN_CUBIC;
    Taps taps = {cubic ? 4 : 2, {NULL}, {NULL}};
    RtNode *at = position(r, o, n, m, scale);
    if (!cubic)
        at = rec_ew2(r, OP_MAXIMUM, at, real(r, 0));
    RtNode *below = rec_ew1(r, OP_FLOOR, at);
    RtNode *t = sub(r, at, below), *rest = sub(r, real(r, 1), t);
    below = rec_cast(r, below, DT_I64);
    for (int k = 0; k < taps.n; k++)
        taps.index[k] = clamped(r, add(r, below, whole(r, cubic ? k - 1 : k)), n);
    if (cubic) {
        taps.weight[0] = cubic_far(r, add(r, t, real(r, 1)));
        taps.weight[1] = cubic_near(r, t);
        taps.weight[2] = cubic_near(r, rest);
        taps.weight[3] = cubic_far(r, add(r, rest, real(r, 1)));
    } else {
        taps.weight[0] = rest;
        taps.weight[1] = t;
    }
    return taps;
}

static RtNode *apply(Rec *r, RtNode *x, int axis, const Taps *taps)
{
    RtNode *sum = NULL;
    for (int k = 0; k < taps->n; k++) {
        RtNode *part = taps->index[k] ? rec_take(r, x, taps->index[k], axis) : NULL;
        if (taps->weight[k] && part)
            part = mul(r, part, rec_spread(r, rec_cast(r, taps->weight[k], node_dtype(x)), part->rank, part->dim, axis));
        if (!part)
            return NULL;
        sum = k ? add(r, sum, part) : part;
    }
    return sum;
}

static bool interpolate_ok(Rec *r, const kiln_interpolate_options *o)
{
    bool is_nearest = o->mode == KILN_NEAREST || o->mode == KILN_NEAREST_CENTER;
    if (!rec_reserved(r, o->reserved))
        return false;
    if ((unsigned)o->mode > KILN_CUBIC) {
        rec_fail(r, ST_INVALID, "mode %d does not exist", (int)o->mode);
        return false;
    }
    if (o->align_corners && is_nearest) {
        rec_fail(r, ST_INVALID, "`align_corners` is for linear and cubic");
        return false;
    }
    for (int d = 0; d < KILN_MAX_SPATIAL; d++)
        if (!(o->scale[d] >= 0) || !isfinite(o->scale[d]) || (o->scale[d] != 0 && o->align_corners)) {
            rec_fail(r, ST_INVALID, "scale %g of spatial axis %d%s", o->scale[d], d,
                     o->align_corners ? " comes with `align_corners`" : ": a finite number, at least 0, is needed");
            return false;
        }
    return true;
}

API3(kiln_tensor *, kiln_interpolate, kiln_tensor *, x, kiln_shape, size, const kiln_interpolate_options *, options)
{
    static const char *const name = "x";
    Rec r = REC(kiln_interpolate);
    const kiln_interpolate_options *o = options ? options : &interpolate_defaults;
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    Images images;
    if (!in || !interpolate_ok(&r, o))
        return rec_end(&r, NULL);
    bool weighted = o->mode == KILN_LINEAR || o->mode == KILN_CUBIC;
    if ((weighted && !rec_promote(&r, PREP_FLOAT, 1, &in, &name)) || !sizes_in(&r, in, size, 1, o->channels_last, &images))
        return rec_end(&r, NULL);
    DType out = node_dtype(in);
    RtNode *y = weighted ? rec_cast(&r, images.x, compute_dtype(out)) : images.x;
    for (int d = 0; d < size.rank && y; d++) {
        int64_t n = y->dim[2 + d];
        if (!weighted && divides(n, size.dim[d], o->scale[d])) {
            y = nearest_view(&r, o, y, 2 + d, size.dim[d]);
            continue;
        }
        Taps taps = (weighted ? between : nearest)(&r, o, n, size.dim[d], o->scale[d]);
        y = apply(&r, y, 2 + d, &taps);
    }
    return rec_end(&r, y ? images_out(&r, &images, rec_cast(&r, y, out)) : NULL);
}

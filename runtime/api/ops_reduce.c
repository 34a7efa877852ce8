/*
 * Reductions: kiln_sum(x) and kiln_sum_axes(x, axes, keepdims) and their like.
 *
 * Each function has one body over a set of axes; the two public forms differ in where the set comes
 * from. bool and ints are cast to i64 or u64 before sums and products. Means, variances and
 * logsumexp of f16 and bf16 are computed in f32 and rounded once.
 */
#include "runtime/record/record.h"

#include <math.h>
#include <string.h>

static const char *const x_name[] = {"x"};

/* i64 or u64 for what sums and products of bools and ints are; floats as they are. */
static RtNode *widen(Rec *r, RtNode *x)
{
    if (!x || dtype_is_float(node_dtype(x)))
        return x;
    return rec_cast(r, x, dtype_kind(node_dtype(x)) == DK_UINT ? DT_U64 : DT_I64);
}

static RtNode *sum(Rec *r, RtNode *x, uint8_t mask, bool keepdims) { return rec_reduce(r, OP_REDUCE_SUM, widen(r, x), mask, keepdims); }

static RtNode *prod(Rec *r, RtNode *x, uint8_t mask, bool keepdims) { return rec_reduce(r, OP_REDUCE_PROD, widen(r, x), mask, keepdims); }

/* max and min, which of bools are any and all: refuse empty reductions in the function's own words. */
static RtNode *extreme(Rec *r, Op op, RtNode *x, uint8_t mask, bool keepdims)
{
    char text[SHAPE_TEXT];
    if (!x)
        return NULL;
    if (node_dtype(x) == DT_BOOL)
        op = op == OP_REDUCE_MAX ? OP_REDUCE_ANY : OP_REDUCE_ALL;
    if (rec_count(x, mask) == 0 && rec_count(x, (uint8_t)~mask) != 0)
        return rec_fail(r, ST_SHAPE, "there is no value of zero elements: x is %s", node_text(x, text));
    return rec_reduce(r, op, x, mask, keepdims);
}

static RtNode *max(Rec *r, RtNode *x, uint8_t mask, bool keepdims) { return extreme(r, OP_REDUCE_MAX, x, mask, keepdims); }

static RtNode *min(Rec *r, RtNode *x, uint8_t mask, bool keepdims) { return extreme(r, OP_REDUCE_MIN, x, mask, keepdims); }

static RtNode *any(Rec *r, RtNode *x, uint8_t mask, bool keepdims)
{
    return rec_reduce(r, OP_REDUCE_ANY, rec_cast(r, x, DT_BOOL), mask, keepdims);
}

static RtNode *all(Rec *r, RtNode *x, uint8_t mask, bool keepdims)
{
    return rec_reduce(r, OP_REDUCE_ALL, rec_cast(r, x, DT_BOOL), mask, keepdims);
}

/* sum(x) / divisor in x's dtype (f32 or f64). */
static RtNode *mean_by(Rec *r, RtNode *x, uint8_t mask, bool keepdims, double divisor)
{
    if (!x)
        return NULL;
    RtNode *total = rec_reduce(r, OP_REDUCE_SUM, x, mask, keepdims);
    return rec_ew2(r, OP_DIV, total, rec_scalar(r, node_dtype(x), divisor));
}

/* The dtype of a mean of x. */
static DType mean_dtype(const RtNode *x) { return dtype_is_float(node_dtype(x)) ? node_dtype(x) : DT_F32; }

static RtNode *mean(Rec *r, RtNode *x, uint8_t mask, bool keepdims)
{
    if (!x)
        return NULL;
    DType out = mean_dtype(x);
    x = rec_cast(r, x, compute_dtype(out));
    return x ? rec_cast(r, mean_by(r, x, mask, keepdims, (double)rec_count(x, mask)), out) : NULL;
}

/* The square root of a variance, whose derivative at 0 is 0 and not infinite. */
static RtNode *root_of(Rec *r, RtNode *x)
{
    if (!x)
        return NULL;
    RtNode *zero = rec_scalar(r, node_dtype(x), 0), *none = rec_ew2(r, OP_EQ, x, zero);
    return rec_ew3(r, OP_WHERE, none, zero, rec_ew1(r, OP_SQRT, rec_ew3(r, OP_WHERE, none, rec_scalar(r, node_dtype(x), 1), x)));
}

/* The variance, or its square root. */
static RtNode *spread(Rec *r, RtNode *x, uint8_t mask, double correction, bool keepdims, bool root)
{
    if (!x)
        return NULL;
    if (!isfinite(correction))
        return rec_fail(r, ST_INVALID, "correction is %g", correction);
    DType out = mean_dtype(x);
    x = rec_cast(r, x, compute_dtype(out));
    if (!x)
        return NULL;
    double n = (double)rec_count(x, mask);
    RtNode *middle = rec_repeat(r, mean_by(r, x, mask, true, n), mask, x->dim);
    RtNode *deviation = rec_ew2(r, OP_SUB, x, middle);
    double divisor = n > correction ? n - correction : 0;
    RtNode *y = mean_by(r, rec_ew1(r, OP_SQUARE, deviation), mask, keepdims, divisor);
    return rec_cast(r, root ? root_of(r, y) : y, out);
}

static RtNode *norm(Rec *r, RtNode *x, uint8_t mask, bool keepdims)
{
    if (!x)
        return NULL;
    DType out = mean_dtype(x);
    RtNode *square = rec_ew1(r, OP_SQUARE, rec_cast(r, x, compute_dtype(out)));
    return rec_cast(r, root_of(r, rec_reduce(r, OP_REDUCE_SUM, square, mask, keepdims)), out);
}

/* log(sum(exp(x - m))) + m, where m is the maximum, or 0 where that is not finite. */
static RtNode *logsumexp(Rec *r, RtNode *x, uint8_t mask, bool keepdims)
{
    if (!rec_promote(r, PREP_FLOAT, 1, &x, x_name))
        return NULL;
    DType out = node_dtype(x);
    x = rec_cast(r, x, compute_dtype(out));
    if (!x)
        return NULL;
    RtNode *m = rec_reduce(r, OP_REDUCE_MAX, x, mask, true);
    m = rec_stop(rec_ew3(r, OP_WHERE, rec_ew1(r, OP_ISFINITE, m), m, rec_scalar(r, node_dtype(x), 0)));
    RtNode *e = rec_ew1(r, OP_EXP, rec_ew2(r, OP_SUB, x, rec_repeat(r, m, mask, x->dim)));
    RtNode *total = rec_reduce(r, OP_REDUCE_SUM, e, mask, keepdims);
    if (m && !keepdims)
        m = rec_drop(r, m, mask);
    return rec_cast(r, rec_ew2(r, OP_ADD, rec_ew1(r, OP_LOG, total), m), out);
}

/* ---- the public forms ---- */

typedef RtNode *Reduction(Rec *r, RtNode *x, uint8_t mask, bool keepdims);

static kiln_tensor *reduce(Rec r, Reduction *reduction, kiln_tensor *x, kiln_axes axes, bool keepdims)
{
    uint8_t mask;
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    return rec_end(&r, rec_axes(&r, in, axes, &mask) ? reduction(&r, in, mask, keepdims) : NULL);
}

#define REDUCTION(name)                                                                                                    \
    API1(kiln_tensor *, kiln_##name, kiln_tensor *, x) { return reduce(REC(kiln_##name), name, x, KILN_ALL_AXES, false); } \
    API3(kiln_tensor *, kiln_##name##_axes, kiln_tensor *, x, kiln_axes, axes, bool, keepdims)                             \
    {                                                                                                                      \
        return reduce(REC(kiln_##name##_axes), name, x, axes, keepdims);                                                   \
    }
REDUCTION(sum)
REDUCTION(prod)
REDUCTION(max)
REDUCTION(min)
REDUCTION(any)
REDUCTION(all)
REDUCTION(mean)
REDUCTION(norm)
REDUCTION(logsumexp)

static kiln_tensor *spread_of(Rec r, kiln_tensor *x, kiln_axes axes, double correction, bool keepdims, bool root)
{
    uint8_t mask;
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    return rec_end(&r, rec_axes(&r, in, axes, &mask) ? spread(&r, in, mask, correction, keepdims, root) : NULL);
}

#define SPREAD(name, root)                                                                                         \
    API2(kiln_tensor *, kiln_##name, kiln_tensor *, x, double, correction)                                         \
    {                                                                                                              \
        return spread_of(REC(kiln_##name), x, KILN_ALL_AXES, correction, false, root);                             \
    }                                                                                                              \
    API4(kiln_tensor *, kiln_##name##_axes, kiln_tensor *, x, kiln_axes, axes, double, correction, bool, keepdims) \
    {                                                                                                              \
        return spread_of(REC(kiln_##name##_axes), x, axes, correction, keepdims, root);                            \
    }
SPREAD(var, false)
SPREAD(std, true)

static kiln_tensor *arg(Rec r, Op op, kiln_tensor *x, kiln_axes axes, bool keepdims)
{
    uint8_t mask;
    char text[SHAPE_TEXT];
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    if (!rec_axes(&r, in, axes, &mask))
        return rec_end(&r, NULL);
    if (rec_count(in, mask) == 0 && rec_count(in, (uint8_t)~mask) != 0)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "there is no value of zero elements: x is %s", node_text(in, text)));
    if (!mask) /* of rank 0 */
        return rec_end(&r, rec_int(&r, DT_I64, 0));
    return rec_end(&r, rec_reduce(&r, op, in, mask, keepdims));
}

#define ARG(name, op)                                                                                                 \
    API1(kiln_tensor *, kiln_##name, kiln_tensor *, x) { return arg(REC(kiln_##name), op, x, KILN_ALL_AXES, false); } \
    API3(kiln_tensor *, kiln_##name##_axis, kiln_tensor *, x, int, axis, bool, keepdims)                              \
    {                                                                                                                 \
        return arg(REC(kiln_##name##_axis), op, x, (kiln_axes){1, {axis}}, keepdims);                                 \
    }
ARG(argmax, OP_ARGMAX)
ARG(argmin, OP_ARGMIN)

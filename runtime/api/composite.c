/*
 * Functions over primitives: matmul's broadcasting, activations, softmax, normalisation, losses.
 *
 * Each is written as its formula; fusion makes one kernel of it, and would of the same formula
 * spelled out by the user. f16 and bf16 are computed in f32 inside and rounded once.
 */
#include "runtime/record/record.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- matrix product ---- */

/* NumPy's rules: 1-D operands get an axis that the result loses; batch axes broadcast. */
static RtNode *matmul(Rec *r, RtNode *a, RtNode *b)
{
    static const char *const names[] = {"a", "b"};
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!a || !b)
        return NULL;
    node_text(a, left);
    node_text(b, right);
    if (a->rank == 0 || b->rank == 0)
        return rec_fail(r, ST_SHAPE, "operands of rank 0: a is %s, b is %s", left, right);
    RtNode *in[2] = {a, b};
    if (!rec_promote(r, PREP_NUM, 2, in, names))
        return NULL;
    bool row = a->rank == 1, column = b->rank == 1;
    if (row)
        in[0] = rec_insert(r, in[0], 0);
    if (column)
        in[1] = rec_insert(r, in[1], 1);
    if (!in[0] || !in[1])
        return NULL;
    int ar = in[0]->rank, br = in[1]->rank, rank = ar > br ? ar : br;
    int64_t m = in[0]->dim[ar - 2], k = in[0]->dim[ar - 1], n = in[1]->dim[br - 1];
    if (in[1]->dim[br - 2] != k)
        return rec_fail(r, ST_SHAPE, "inner dims differ: a is %s, b is %s", left, right);
    int64_t a_dims[MAX_RANK], b_dims[MAX_RANK], out[MAX_RANK], numel;
    for (int d = 0; d < rank - 2; d++) {
        int64_t x = d < rank - ar ? 1 : in[0]->dim[d - (rank - ar)], y = d < rank - br ? 1 : in[1]->dim[d - (rank - br)];
        if (x != y && x != 1 && y != 1)
            return rec_fail(r, ST_SHAPE, "batch dims do not broadcast: a is %s, b is %s", left, right);
        out[d] = a_dims[d] = b_dims[d] = x == 1 ? y : x;
    }
    out[rank - 2] = a_dims[rank - 2] = m;
    a_dims[rank - 1] = b_dims[rank - 2] = k;
    out[rank - 1] = b_dims[rank - 1] = n;
    if (!shape_numel(rank, out, &numel) || !shape_numel(rank, a_dims, &numel) || !shape_numel(rank, b_dims, &numel))
        return rec_fail(r, ST_OVERFLOW, "the result has more than 2^62 elements: a is %s, b is %s", left, right);
    in[0] = rec_expand(r, in[0], rank, a_dims);
    in[1] = rec_expand(r, in[1], rank, b_dims);
    RtNode *y = rec_node(r, OP_MATMUL, DT_COUNT, NULL, 2, in, NULL, 0);
    uint8_t drop = (uint8_t)((row ? 1u << (rank - 2) : 0) | (column ? 1u << (rank - 1) : 0));
    return y ? rec_drop(r, y, drop) : NULL;
}

API2(kiln_tensor *, kiln_matmul, kiln_tensor *, a, kiln_tensor *, b)
{
    Rec r = REC(kiln_matmul);
    return rec_end(&r, matmul(&r, rec_in(&r, a, "a"), rec_in(&r, b, "b")));
}

/* x weight^T + bias, weight as PyTorch's files have it: [out, in]. */
API3(kiln_tensor *, kiln_linear, kiln_tensor *, x, kiln_tensor *, weight, kiln_tensor *, bias)
{
    Rec r = REC(kiln_linear);
    char text[3][SHAPE_TEXT];
    RtNode *in = rec_in(&r, x, "x"), *w = rec_in(&r, weight, "weight"), *b = rec_in(&r, bias, "bias");
    if (!in || !w || !b)
        return rec_end(&r, NULL);
    if (in->rank < 1 || w->rank != 2 || b->rank != 1 || in->dim[in->rank - 1] != w->dim[1] || b->dim[0] != w->dim[0])
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "x is [..., in], weight [out, in], bias [out]: x is %s, weight is %s, bias is %s",
                                    node_text(in, text[0]), node_text(w, text[1]), node_text(b, text[2])));
    static const char *const names[] = {"x weight^T", "bias"};
    RtNode *y[2] = {matmul(&r, in, rec_permute(&r, w, (const uint8_t[]){1, 0})), b};
    return rec_end(&r, y[0] && rec_promote(&r, PREP_NUM, 2, y, names) ? rec_ew2(&r, OP_ADD, y[0], y[1]) : NULL);
}

/* ---- shared beginnings ---- */

/* A float argument in the dtype it is computed in; *out gets the dtype of the result. */
static RtNode *float_in(Rec *r, kiln_tensor *x, const char *what, DType *out)
{
    RtNode *in = rec_strong(r, rec_in(r, x, what));
    if (!rec_promote(r, PREP_FLOAT, 1, &in, &what))
        return NULL;
    *out = node_dtype(in);
    return rec_cast(r, in, compute_dtype(*out));
}

/* c as a scalar beside x. */
static RtNode *number(Rec *r, const RtNode *x, double c) { return x ? rec_scalar(r, node_dtype(x), c) : NULL; }

static RtNode *add(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_ADD, a, b); }
static RtNode *sub(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_SUB, a, b); }
static RtNode *mul(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_MUL, a, b); }

/* ---- activations ---- */

API1(kiln_tensor *, kiln_gelu, kiln_tensor *, x)
{
    Rec r = REC(kiln_gelu);
    DType out = DT_F32;
    RtNode *in = float_in(&r, x, "x", &out);
    /* 1 + erf, but by erfc, which loses nothing where that is small */
    RtNode *erfc = rec_ew1(&r, OP_ERFC, mul(&r, in, number(&r, in, -0.70710678118654752440)));
    return rec_end(&r, rec_cast(&r, mul(&r, mul(&r, in, number(&r, in, 0.5)), erfc), out));
}

API1(kiln_tensor *, kiln_gelu_tanh, kiln_tensor *, x)
{
    Rec r = REC(kiln_gelu_tanh);
    DType out = DT_F32;
    RtNode *in = float_in(&r, x, "x", &out);
    RtNode *cube = mul(&r, rec_ew1(&r, OP_SQUARE, in), in);
    RtNode *inner = add(&r, in, mul(&r, cube, number(&r, in, 0.044715)));
    RtNode *tanh = rec_ew1(&r, OP_TANH, mul(&r, inner, number(&r, in, 0.79788456080286535588)));
    RtNode *half = mul(&r, in, number(&r, in, 0.5));
    return rec_end(&r, rec_cast(&r, mul(&r, half, add(&r, tanh, number(&r, in, 1))), out));
}

/* ---- softmax and losses ---- */

/* op over the axes of mask, repeated along them. */
static RtNode *reduced(Rec *r, Op op, RtNode *x, uint8_t mask)
{
    return x ? rec_repeat(r, rec_reduce(r, op, x, mask, true), mask, x->dim) : NULL;
}

/* x minus its maximum along an axis, which is a constant to gradients: what is made of it does not depend on which number that is. */
static RtNode *shifted(Rec *r, RtNode *x, int axis) { return sub(r, x, rec_stop(reduced(r, OP_REDUCE_MAX, x, (uint8_t)(1u << axis)))); }

API2(kiln_tensor *, kiln_softmax, kiln_tensor *, x, int, axis)
{
    Rec r = REC(kiln_softmax);
    DType out = DT_F32;
    RtNode *in = float_in(&r, x, "x", &out);
    if (!rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    RtNode *e = rec_ew1(&r, OP_EXP, shifted(&r, in, axis));
    uint8_t mask = (uint8_t)(1u << axis);
    RtNode *total = rec_reduce(&r, OP_REDUCE_SUM, e, mask, true);
    /* one quotient for a row instead of one for each element */
    RtNode *share = e ? rec_repeat(&r, rec_ew1(&r, OP_RECIPROCAL, total), mask, e->dim) : NULL;
    return rec_end(&r, rec_cast(&r, mul(&r, e, share), out));
}

/*
 * log(sum(exp(s))) over the axes of mask, kept, where the largest s is 0: log1p of the sum of all terms but the zeros', plus the
 * number of these (each is exp(0); written so, its derivative is there) less one. So what little the others add to the largest is not lost beside it.
 */
static RtNode *log_total(Rec *r, RtNode *s, uint8_t mask)
{
    RtNode *largest = rec_ew2(r, OP_EQ, s, number(r, s, 0)), *e = rec_ew1(r, OP_EXP, s);
    RtNode *rest = rec_reduce(r, OP_REDUCE_SUM, rec_ew3(r, OP_WHERE, largest, number(r, s, 0), e), mask, true);
    RtNode *count = rec_reduce(r, OP_REDUCE_SUM, rec_ew3(r, OP_WHERE, largest, e, number(r, s, 0)), mask, true);
    return rec_ew1(r, OP_LOG1P, add(r, rest, sub(r, count, number(r, count, 1))));
}

API2(kiln_tensor *, kiln_log_softmax, kiln_tensor *, x, int, axis)
{
    Rec r = REC(kiln_log_softmax);
    DType out = DT_F32;
    RtNode *in = float_in(&r, x, "x", &out);
    if (!rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    RtNode *s = shifted(&r, in, axis);
    RtNode *total = rec_repeat(&r, log_total(&r, s, (uint8_t)(1u << axis)), (uint8_t)(1u << axis), in->dim);
    return rec_end(&r, rec_cast(&r, sub(&r, s, total), out));
}

API2(kiln_tensor *, kiln_cross_entropy, kiln_tensor *, logits, kiln_tensor *, labels)
{
    Rec r = REC(kiln_cross_entropy);
    DType out = DT_F32;
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    RtNode *x = float_in(&r, logits, "logits", &out), *label = rec_in(&r, labels, "labels");
    if (!x || !label)
        return rec_end(&r, NULL);
    node_text(logits->node, left);
    node_text(label, right);
    int axis = x->rank - 1;
    bool fits = x->rank >= 1 && label->rank == axis;
    for (int d = 0; d < axis && fits; d++)
        fits = label->dim[d] == x->dim[d];
    if (!fits)
        return rec_end(&r, rec_fail(&r, ST_SHAPE,
                                    "labels do not have the shape of logits without its last axis: logits is "
                                    "%s, labels is %s",
                                    left, right));
    label = rec_index(&r, label, "labels");
    if (!label)
        return rec_end(&r, NULL);
    if (x->dim[axis] == 0 && node_elements(label) != 0)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "there are no classes: logits is %s", left));
    label = rec_insert(&r, label, axis);
    uint8_t mask = (uint8_t)(1u << axis);
    RtNode *m = rec_stop(rec_reduce(&r, OP_REDUCE_MAX, x, mask, true));
    RtNode *total = log_total(&r, sub(&r, x, rec_repeat(&r, m, mask, x->dim)), mask);
    RtNode *picked = /* from the logits, so that nothing need be stored */
        sub(&r, rec_gather(&r, x, label, axis), m);
    RtNode *loss = sub(&r, rec_drop(&r, total, mask), rec_drop(&r, picked, mask));
    return rec_end(&r, rec_cast(&r, loss, out));
}

/* Two float arguments of one shape, in the dtype they are computed in; *out gets the dtype of the result. */
static bool pair_in(Rec *r, kiln_tensor *a, kiln_tensor *b, const char *const *names, RtNode **in, DType *out)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    in[0] = rec_strong(r, rec_in(r, a, names[0]));
    in[1] = rec_strong(r, rec_in(r, b, names[1]));
    if (!in[0] || !in[1])
        return false;
    if (in[0]->rank != in[1]->rank || memcmp(in[0]->dim, in[1]->dim, sizeof *in[0]->dim * in[0]->rank) != 0) {
        rec_fail(r, ST_SHAPE, "shapes differ: %s is %s, %s is %s", names[0], node_text(in[0], left), names[1], node_text(in[1], right));
        return false;
    }
    if (!rec_promote(r, PREP_FLOAT, 2, in, names))
        return false;
    *out = node_dtype(in[0]);
    for (int k = 0; k < 2; k++)
        in[k] = rec_cast(r, in[k], compute_dtype(*out));
    return true;
}

/*
 * t softplus(-x) + (1 - t) softplus(x): no term is lost beside a larger one, as 1 is in softplus(x) - t x, and its derivative is right at 0, where
 * that of the form with |x| is not. What has no weight is not there, whatever it is: infinite logits that are right cost nothing.
 */
API2(kiln_tensor *, kiln_binary_cross_entropy, kiln_tensor *, logits, kiln_tensor *, targets)
{
    static const char *const names[] = {"logits", "targets"};
    Rec r = REC(kiln_binary_cross_entropy);
    DType out;
    RtNode *in[2];
    if (!pair_in(&r, logits, targets, names, in, &out))
        return rec_end(&r, NULL);
    RtNode *yes = rec_ew2(&r, OP_MUL_NO_NAN, in[1], rec_ew1(&r, OP_SOFTPLUS, rec_ew1(&r, OP_NEG, in[0])));
    RtNode *no = rec_ew2(&r, OP_MUL_NO_NAN, sub(&r, number(&r, in[1], 1), in[1]), rec_ew1(&r, OP_SOFTPLUS, in[0]));
    return rec_end(&r, rec_cast(&r, add(&r, yes, no), out));
}

/* ---- normalisation ---- */

/* The mean over the axes of mask, kept. */
static RtNode *mean(Rec *r, RtNode *x, uint8_t mask)
{
    if (!x)
        return NULL;
    return rec_ew2(r, OP_DIV, rec_reduce(r, OP_REDUCE_SUM, x, mask, true), number(r, x, (double)rec_count(x, mask)));
}

API2(kiln_tensor *, kiln_mse, kiln_tensor *, prediction, kiln_tensor *, target)
{
    static const char *const names[] = {"prediction", "target"};
    Rec r = REC(kiln_mse);
    DType out;
    RtNode *in[2];
    if (!pair_in(&r, prediction, target, names, in, &out))
        return rec_end(&r, NULL);
    uint8_t all = (uint8_t)((1u << in[0]->rank) - 1);
    RtNode *square = rec_ew1(&r, OP_SQUARE, sub(&r, in[0], in[1]));
    return rec_end(&r, rec_cast(&r, rec_drop(&r, mean(&r, square, all), all), out));
}

/* x / sqrt(mean(x^2) + eps) */
static RtNode *unit_scale(Rec *r, RtNode *x, uint8_t mask, double eps)
{
    RtNode *power = mean(r, rec_ew1(r, OP_SQUARE, x), mask);
    RtNode *scale = rec_ew1(r, OP_RSQRT, add(r, power, number(r, x, eps)));
    return mul(r, x, x ? rec_repeat(r, scale, mask, x->dim) : NULL);
}

/* (x - mean) / sqrt(variance + eps) */
static RtNode *normalize(Rec *r, RtNode *x, uint8_t mask, double eps)
{
    RtNode *middle = mean(r, x, mask);
    return unit_scale(r, sub(r, x, x ? rec_repeat(r, middle, mask, x->dim) : NULL), mask, eps);
}

static bool good_eps(Rec *r, double eps)
{
    if (eps >= 0 && isfinite(eps))
        return true;
    rec_fail(r, ST_INVALID, "eps is %g: a finite number, at least 0, is needed", eps);
    return false;
}

API3(kiln_tensor *, kiln_normalize, kiln_tensor *, x, kiln_axes, axes, double, eps)
{
    Rec r = REC(kiln_normalize);
    DType out = DT_F32;
    uint8_t mask;
    RtNode *in = float_in(&r, x, "x", &out);
    if (!rec_axes(&r, in, axes, &mask) || !good_eps(&r, eps))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_cast(&r, normalize(&r, in, mask, eps), out));
}

/* The last axis of x as a mask; false for rank 0. */
static bool last_axis(Rec *r, const RtNode *x, uint8_t *mask)
{
    char text[SHAPE_TEXT];
    if (!x)
        return false;
    if (x->rank == 0) {
        rec_fail(r, ST_SHAPE, "there is no last axis: x is %s", node_text(x, text));
        return false;
    }
    *mask = (uint8_t)(1u << (x->rank - 1));
    return true;
}

/* Does the parameter broadcast to x without changing its shape? */
static bool fits_in(Rec *r, const RtNode *x, const RtNode *p, const char *name)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    bool fits = p->rank <= x->rank;
    for (int d = 0; d < p->rank && fits; d++) {
        int64_t size = p->dim[p->rank - 1 - d];
        fits = size == 1 || size == x->dim[x->rank - 1 - d];
    }
    if (!fits)
        rec_fail(r, ST_SHAPE, "%s does not broadcast to x: x is %s, %s is %s", name, node_text(x, left), name, node_text(p, right));
    return fits;
}

API4(kiln_tensor *, kiln_layer_norm, kiln_tensor *, x, kiln_tensor *, weight, kiln_tensor *, bias, double, eps)
{
    static const char *const names[] = {"x", "weight", "bias"};
    Rec r = REC(kiln_layer_norm);
    uint8_t mask;
    RtNode *in[3] = {rec_strong(&r, rec_in(&r, x, names[0])), rec_in(&r, weight, names[1]), rec_in(&r, bias, names[2])};
    if (!in[0] || !in[1] || !in[2] || !last_axis(&r, in[0], &mask) || !good_eps(&r, eps) || !fits_in(&r, in[0], in[1], names[1]) ||
        !fits_in(&r, in[0], in[2], names[2]) || !rec_promote(&r, PREP_FLOAT, 3, in, names))
        return rec_end(&r, NULL);
    DType out = node_dtype(in[0]);
    for (int k = 0; k < 3; k++)
        in[k] = rec_cast(&r, in[k], compute_dtype(out));
    RtNode *y = add(&r, mul(&r, normalize(&r, in[0], mask, eps), in[1]), in[2]);
    return rec_end(&r, rec_cast(&r, y, out));
}

API3(kiln_tensor *, kiln_rms_norm, kiln_tensor *, x, kiln_tensor *, weight, double, eps)
{
    static const char *const names[] = {"x", "weight"};
    Rec r = REC(kiln_rms_norm);
    uint8_t mask;
    RtNode *in[2] = {rec_strong(&r, rec_in(&r, x, names[0])), rec_in(&r, weight, names[1])};
    if (!in[0] || !in[1] || !last_axis(&r, in[0], &mask) || !good_eps(&r, eps) || !fits_in(&r, in[0], in[1], names[1]) ||
        !rec_promote(&r, PREP_FLOAT, 2, in, names))
        return rec_end(&r, NULL);
    DType out = node_dtype(in[0]);
    for (int k = 0; k < 2; k++)
        in[k] = rec_cast(&r, in[k], compute_dtype(out));
    return rec_end(&r, rec_cast(&r, mul(&r, unit_scale(&r, in[0], mask, eps), in[1]), out));
}

/* ---- normalisation of channels ---- */

static const kiln_norm_options norm_defaults;

/* A float of one number for each channel, or NULL where it was left out. false: an error was kept. */
static bool channel_in(Rec *r, const RtNode *x, int axis, kiln_tensor *argument, const char *name, RtNode **out)
{
    char text[SHAPE_TEXT], other[SHAPE_TEXT];
    if (!rec_optional(r, argument, name, out))
        return false;
    if (!argument)
        return true;
    *out = rec_strong(r, *out);
    if (!*out)
        return false;
    if ((*out)->rank != 1 || (*out)->dim[0] != x->dim[axis]) {
        rec_fail(r, ST_SHAPE, "%s is not one number for each channel, axis %d: x is %s, %s is %s", name, axis, node_text(x, text), name,
                 node_text(*out, other));
        return false;
    }
    return true;
}

/* x, weight and bias (NULL: left out) in the dtype to compute in, *out is that of the result; *axis has the channels. */
static bool channels_in(Rec *r, kiln_tensor *x, const kiln_norm_options *o, RtNode **in, int *axis, DType *out)
{
    static const char *const names[] = {"x", "weight", "bias"};
    const char *given[3];
    char text[SHAPE_TEXT];
    RtNode *list[3];
    int n = 0;
    in[0] = rec_strong(r, rec_in(r, x, "x"));
    if (!in[0] || !rec_reserved(r, o->reserved))
        return false;
    if (in[0]->rank < 2 || in[0]->rank >= MAX_RANK) {
        rec_fail(r, ST_SHAPE, "x is [n, channels, ...] of rank 2 to %d: x is %s", MAX_RANK - 1, node_text(in[0], text));
        return false;
    }
    *axis = o->channels_last ? in[0]->rank - 1 : 1;
    if (!channel_in(r, in[0], *axis, o->weight, names[1], &in[1]) || !channel_in(r, in[0], *axis, o->bias, names[2], &in[2]) ||
        !good_eps(r, o->eps))
        return false;
    for (int i = 0; i < 3; i++)
        if (in[i]) {
            given[n] = names[i];
            list[n++] = in[i];
        }
    if (!rec_promote(r, PREP_FLOAT, n, list, given))
        return false;
    *out = node_dtype(list[0]);
    for (int i = 0, k = 0; i < 3; i++)
        if (in[i])
            in[i] = rec_cast(r, list[k++], compute_dtype(*out));
    return in[0] != NULL;
}

/* One number for each channel, repeated to x. */
static RtNode *spread(Rec *r, RtNode *p, const RtNode *x, int axis) { return p && x ? rec_spread(r, p, x->rank, x->dim, axis) : NULL; }

/* x times weight plus bias, where there are any. */
static RtNode *scaled(Rec *r, RtNode *x, RtNode *const *in, int axis)
{
    if (in[1])
        x = mul(r, x, spread(r, in[1], x, axis));
    return in[2] ? add(r, x, spread(r, in[2], x, axis)) : x;
}

static double default_eps(const kiln_norm_options *o) { return o->eps != 0 ? o->eps : 1e-5; }

/* old + momentum (new - old) as PyTorch writes it, a constant to gradients, in old's dtype; `now` has size 1 along all axes but the channels'. */
static RtNode *running(Rec *r, RtNode *old, RtNode *now, double momentum, uint8_t mask)
{
    if (!old || !now)
        return NULL;
    DType wide = compute_dtype(node_dtype(old));
    now = rec_cast(r, rec_drop(r, now, mask), wide);
    RtNode *kept = rec_cast(r, old, wide);
    kept = mul(r, kept, number(r, kept, 1 - momentum));
    RtNode *next = rec_cast(r, add(r, kept, mul(r, now, number(r, now, momentum))), node_dtype(old));
    return rec_stop(rec_same(r, next));
}

static RtNode *batch_norm(Rec *r, RtNode *const *in, int axis, kiln_tensor *const *handles, RtNode *const *stats,
                          const kiln_norm_options *o)
{
    char text[SHAPE_TEXT];
    RtNode *x = in[0];
    uint8_t mask = (uint8_t)(((1u << x->rank) - 1) & ~(1u << axis));
    if (!o->training) {
        RtNode *middle = rec_cast(r, stats[0], node_dtype(x)), *spread_out = rec_cast(r, stats[1], node_dtype(x));
        RtNode *scale = rec_ew1(r, OP_RSQRT, add(r, spread_out, number(r, x, default_eps(o))));
        if (in[1])
            scale = mul(r, scale, in[1]);
        RtNode *y = mul(r, sub(r, x, spread(r, middle, x, axis)), spread(r, scale, x, axis));
        return in[2] ? add(r, y, spread(r, in[2], x, axis)) : y;
    }
    int64_t count = rec_count(x, mask);
    if (count < 2)
        return rec_fail(r, ST_SHAPE, "training needs more than one element for each channel: x is %s", node_text(x, text));
    RtNode *middle = mean(r, x, mask);
    RtNode *centered = sub(r, x, middle ? rec_repeat(r, middle, mask, x->dim) : NULL);
    RtNode *variance = mean(r, rec_ew1(r, OP_SQUARE, centered), mask);
    RtNode *scale = rec_ew1(r, OP_RSQRT, add(r, variance, number(r, x, default_eps(o))));
    RtNode *y = mul(r, centered, scale ? rec_repeat(r, scale, mask, x->dim) : NULL);
    y = scaled(r, y, in, axis);
    if (!y || !stats[0])
        return y;
    double momentum = o->momentum != 0 ? o->momentum : 0.1;
    RtNode *unbiased = mul(r, variance, number(r, x, (double)count / (double)(count - 1))), *next[2];
    next[0] = running(r, stats[0], middle, momentum, mask);
    next[1] = running(r, stats[1], unbiased, momentum, mask);
    if (!next[0] || !next[1])
        return NULL;
    rec_assign(r, 2, handles, next);
    return r->status == ST_OK ? y : NULL;
}

API4(kiln_tensor *, kiln_batch_norm, kiln_tensor *, x, kiln_tensor *, running_mean, kiln_tensor *, running_var, const kiln_norm_options *,
     options)
{
    static const char *const names[] = {"running_mean", "running_var"};
    Rec r = REC(kiln_batch_norm);
    const kiln_norm_options *o = options ? options : &norm_defaults;
    kiln_tensor *handles[2] = {running_mean, running_var};
    RtNode *in[3], *stats[2] = {NULL, NULL};
    char text[SHAPE_TEXT];
    DType out;
    int axis;
    if (!channels_in(&r, x, o, in, &axis, &out))
        return rec_end(&r, NULL);
    if (!(o->momentum >= 0 && o->momentum <= 1))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "momentum is %g: a number from 0 to 1 is needed", o->momentum));
    for (int i = 0; i < 2; i++) {
        if (!channel_in(&r, in[0], axis, handles[i], names[i], &stats[i]))
            return rec_end(&r, NULL);
        if (!stats[i] && o->training && !running_mean && !running_var)
            continue;
        if (!stats[i])
            return rec_end(&r, rec_in(&r, NULL, names[i]));
        if (!dtype_is_float(node_dtype(stats[i])) || stats[i] != handles[i]->node)
            return rec_end(&r, rec_fail(&r, ST_DTYPE, "%s is %s: a float is needed", names[i], node_text(handles[i]->node, text)));
    }
    if (o->training && running_mean && running_mean == running_var)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "running_mean and running_var are one tensor"));
    return rec_end(&r, rec_cast(&r, batch_norm(&r, in, axis, handles, stats, o), out));
}

API3(kiln_tensor *, kiln_group_norm, kiln_tensor *, x, int64_t, groups, const kiln_norm_options *, options)
{
    Rec r = REC(kiln_group_norm);
    const kiln_norm_options *o = options ? options : &norm_defaults;
    RtNode *in[3];
    char text[SHAPE_TEXT];
    DType out;
    int axis;
    if (!channels_in(&r, x, o, in, &axis, &out))
        return rec_end(&r, NULL);
    if (o->training || o->momentum != 0)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "`training` and `momentum` are for kiln_batch_norm"));
    if (groups < 1 || in[0]->dim[axis] % groups != 0)
        return rec_end(&r, rec_fail(&r, groups < 1 ? ST_INVALID : ST_SHAPE,
                                    "channels, axis %d, are not cut evenly by %" PRId64 " groups: x is %s", axis, groups,
                                    node_text(in[0], text)));
    RtNode *y = rec_split(&r, in[0], axis, 2, (const int64_t[]){groups, in[0]->dim[axis] / groups});
    if (!y)
        return rec_end(&r, NULL);
    uint8_t mask = (uint8_t)(((1u << y->rank) - 1) & ~(1u | 1u << axis));
    y = rec_merge(&r, normalize(&r, y, mask, default_eps(o)), axis, 2);
    return rec_end(&r, rec_cast(&r, y ? scaled(&r, y, in, axis) : NULL, out));
}

/*
 * The exponential and its relatives.
 *
 * One reduction serves all: n = x / ln 2 rounded to nearest, r = x - n ln 2 in two fused steps, q = e^r - 1 by a
 * polynomial, so e^x = 2^n (1 + q). Rounding is done by adding 1.5 * 2^mantissa, which leaves n in the low bits of the sum;
 * the constant also carries a bias, so that one shift makes those bits the float 2^n.
 *
 * Subnormal results are right, NaN goes through, overflow gives infinity. Error bounds are rows of ir/accuracy.def.
 *
 * exp and sigmoid leave what happens far from 0 to a rare region, and ask for it with one instruction: all is done on
 * STEPS n instead of n, which no result shows (STEPS is a power of two), so that the number is 0 or at least STEPS; the bits
 * of its exponent then say whether |n| has reached 64.
 */
#include "ir/expand_float.h"

/* ln 2 and its inverse; the first part of ln 2 is rounded, the second is what it misses. */
static const double log2e[2] = {0x1.715476p+0, 0x1.71547652b82fep+0};
static const double ln2_high[2] = {0x1.62e43p-1, 0x1.62e42fefa39efp-1};
static const double ln2_low[2] = {-0x1.05c610p-29, 0x1.abc9e3b39803fp-56};

enum { STEPS = 8 };

typedef struct Steps {
    X q, i, n; /* q and i of ExpParts; STEPS n as a float */
} Steps;

/* `low`: an instruction to add to what is left of x, or NULL. */
static Steps reduce(E *e, X x, const X *low, int bias, const Poly *p)
{
    int w = x_is_f64(e, x);
    X magic = x_like(e, x, STEPS * ((w ? 0x1.8p52 : 0x1.8p23) + bias));
    X t = x_fma(e, x, x_like(e, x, STEPS * log2e[w]), magic);
    X n = x_sub(e, t, magic);
    X r = x_fma(e, n, x_like(e, x, -ln2_high[w] / STEPS), x);
    r = x_fma(e, n, x_like(e, x, -ln2_low[w] / STEPS), r);
    if (low)
        r = x_add(e, r, *low);
    X q = x_fma(e, x_mul(e, r, r), x_poly(e, r, p), r);
    return (Steps){.q = q, .i = x_as_int(e, t), .n = n};
}

/* |n| >= 64, or NaN: of the exponent's bits, the highest and the lowest three left aside, one is set. */
static X far_out(E *e, Steps s)
{
    bool w = x_is_f64(e, s.n);
    X high = x_and_bits(e, x_as_int(e, s.n), w ? UINT64_C(0x3f80000000000000) : 0x3c000000);
    return x_ine(e, high, x_like(e, high, 0));
}

ExpParts exp_parts(E *e, X x, int bias, const Poly *p)
{
    Steps s = reduce(e, x, NULL, bias, p);
    return (ExpParts){.q = s.q, .i = s.i};
}

X exp_scale(E *e, X i) { return x_as_float(e, x_shl_n(e, i, x_type(e, i) == SC_I64 ? 52 : 23)); }

/*
 * (1 + q) 2^n for any n from the least subnormal to overflow, `i` holding n + 2 bias: two factors with the exponents
 * floor((n + 2 bias) / 2) - bias and the rest. The first product is exact but for the one rounding of 1 + q.
 */
X exp_scale_any(E *e, X q, X i)
{
    const FloatForm *f = x_form(e, q);
    X both = x_shl_n(e, i, f->mantissa);
    X half = x_and_bits(e, x_shl_n(e, i, f->mantissa - 1), f->exponent);
    X first = x_as_float(e, half), second = x_as_float(e, x_sub(e, both, half));
    return x_mul(e, x_fma(e, q, first, first), second);
}

/* Keeps x where e^x and its scale factors make sense: below, 0 after rounding; above, infinity. */
static X clamp_exp(E *e, X x, double below32, double below64, double above32, double above64)
{
    x = x_at_most(e, x, x_pick(e, x, above32, above64));
    return x_at_least(e, x, x_pick(e, x, below32, below64));
}

/* For any x, without a rare region. */
X float_exp(E *e, X x)
{
    x = clamp_exp(e, x, -104, -746, 89, 710);
    ExpParts p = exp_parts(e, x, 2 * x_form(e, x)->bias, &poly_exp);
    return exp_scale_any(e, p.q, p.i);
}

X exp_of_pair(E *e, X x, X low)
{
    X v = clamp_exp(e, x, -104, -746, 89, 710);
    low = x_select(e, x_feq(e, v, x), low, x_like(e, x, 0));
    Steps p = reduce(e, v, &low, 2 * x_form(e, x)->bias, &poly_exp);
    return exp_scale_any(e, p.q, p.i);
}

/* The clamp from below stays outside, because masks are made of -inf: only the scaling is rare then, and overflow. */
EXPAND(EXP)
{
    int bias = x_form(e, x[0])->bias;
    X v = x_at_least(e, x[0], x_pick(e, x[0], -104, -746));
    Steps p = reduce(e, v, NULL, bias, &poly_exp);
    X s = exp_scale(e, p.i), far = far_out(e, p);
    x_rare_begin(e, far);
    X any = exp_scale_any(e, p.q, x_add(e, p.i, x_like(e, p.i, bias)));
    any = x_select(e, x_flt(e, x_pick(e, v, 89, 710), v), x_inf(e, v), any);
    x_rare_end(e);
    return x_select(e, far, any, x_fma(e, s, p.q, s));
}

EXPAND(EXP2)
{
    X v = clamp_exp(e, x[0], -151, -1076, 129, 1025);
    X magic = x_pick(e, v, 0x1.8p23 + 254, 0x1.8p52 + 2046);
    X t = x_add(e, v, magic);
    X r = x_sub(e, v, x_sub(e, t, magic));
    return exp_scale_any(e, x_mul(e, r, x_poly(e, r, &poly_exp2)), x_as_int(e, t));
}

/* e^x - 1 = 2^n q + (2^n - 1), halved so that n may be one above the range; tiny x are the result. */
EXPAND(EXPM1)
{
    X v = clamp_exp(e, x[0], -30, -60, 89, 710);
    ExpParts p = exp_parts(e, v, x_form(e, v)->bias - 1, &poly_expm1);
    X half = exp_scale(e, p.i);
    X r = x_fma(e, half, p.q, x_sub(e, half, x_like(e, v, 0.5)));
    r = x_add(e, r, r);
    X tiny = x_flt(e, x_fabs(e, x[0]), x_pick(e, v, 0x1p-25, 0x1p-54));
    return x_select(e, tiny, x[0], r);
}

/* 1 / (1 + e^-x); far from 0 it is e^x or 1. */
EXPAND(SIGMOID)
{
    X one = x_like(e, x[0], 1);
    Steps p = reduce(e, x_fneg(e, x[0]), NULL, x_form(e, x[0])->bias, &poly_exp);
    X s = exp_scale(e, p.i), far = far_out(e, p);
    X r = x_div(e, one, x_fma(e, s, p.q, x_add(e, s, one))); /* s + 1 is mostly exact */
    x_rare_begin(e, far);
    X tail = x_at_most(e, float_exp(e, x[0]), one);
    x_rare_end(e);
    return x_select(e, far, tail, r);
}

/* (e^2a - 1) / (e^2a + 1) with a = |x|, the numerator kept accurate near 0. */
EXPAND(TANH)
{
    X a = x_at_most(e, x_fabs(e, x[0]), x_pick(e, x[0], 10, 20));
    ExpParts p = exp_parts(e, x_add(e, a, a), x_form(e, a)->bias, &poly_expm1);
    X s = exp_scale(e, p.i);
    X m = x_fma(e, s, p.q, x_sub(e, s, x_like(e, a, 1)));
    X r = x_div(e, m, x_add(e, m, x_like(e, a, 2)));
    return x_with_sign(e, r, x[0]);
}

/* With h = (e^a - 1) / 2: sinh a = h + h / (2h + 1). h is computed halved, as e^a overflows before sinh does. */
EXPAND(SINH)
{
    X ax = x_fabs(e, x[0]);
    X a = x_at_most(e, ax, x_pick(e, ax, 89.5, 710.5));
    ExpParts p = exp_parts(e, a, x_form(e, a)->bias - 2, &poly_expm1);
    X s = exp_scale(e, p.i);
    X h = x_fma(e, s, p.q, x_sub(e, s, x_like(e, a, 0.25)));
    h = x_add(e, h, h);
    X r = x_add(e, h, x_div(e, h, x_add(e, x_add(e, h, h), x_like(e, a, 1))));
    r = x_select(e, x_feq(e, h, x_inf(e, h)), h, r);
    r = x_select(e, x_flt(e, ax, x_pick(e, ax, 0x1p-13, 0x1p-27)), ax, r);
    return x_with_sign(e, r, x[0]);
}

/* With h = e^a / 2: cosh a = h + 1 / (4h). */
EXPAND(COSH)
{
    X a = x_at_most(e, x_fabs(e, x[0]), x_pick(e, x[0], 89.5, 710.5));
    ExpParts p = exp_parts(e, a, x_form(e, a)->bias - 2, &poly_exp);
    X s = exp_scale(e, p.i);
    X h = x_fma(e, s, p.q, s);
    h = x_add(e, h, h);
    return x_add(e, h, x_div(e, x_like(e, a, 0.25), h));
}

/* max(x, 0) + log(1 + e^-|x|) */
EXPAND(SOFTPLUS)
{
    X tail = float_log1p_unit(e, float_exp(e, x_fneg(e, x_fabs(e, x[0]))));
    X zero = x_like(e, x[0], 0);
    return x_add(e, x_select(e, x_flt(e, zero, x[0]), x[0], zero), tail);
}

/* The larger + log(1 + e^-distance), the distance with its rounding error; equal operands (infinities too) have none. */
EXPAND(LOGADDEXP)
{
    X a = x[0], b = x[1], zero = x_like(e, a, 0);
    X second = x_flt(e, a, b), same = x_feq(e, a, b);
    X larger = x_select(e, second, b, a), smaller = x_select(e, second, a, b);
    X d = x_sub(e, smaller, larger);
    X back = x_sub(e, smaller, d);
    X lost = x_add(e, x_sub(e, smaller, x_add(e, d, back)), x_sub(e, back, larger));
    X tail = exp_of_pair(e, x_select(e, same, zero, d), x_select(e, same, zero, lost));
    return x_add(e, larger, float_log1p_unit(e, tail));
}

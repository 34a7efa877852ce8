/*
 * The exponential and its relatives.
 *
 * One reduction serves all: n = x / ln 2 rounded to nearest, r = x - n ln 2 in two fused steps, q = e^r - 1 by a
 * polynomial, so e^x = 2^n (1 + q). Rounding is done by adding 1.5 * 2^mantissa, which leaves n in the low bits of the sum;
 * the constant also carries a bias, so that one shift makes those bits the float 2^n.
 *
 * Subnormal results are right, NaN goes through, overflow gives infinity. A product that is subnormal, or rounded to 0, costs some CPUs as
 * much as twenty exponentials, and the masks of attention are made of such arguments; a sum that is normal does not. So the last product is
 * that of a fused multiply-add (settle). Error bounds are rows of ir/accuracy.def.
 *
 * exp, sigmoid and silu, of which most is made, clamp x to where one scale factor gives the rest by itself: above by overflow, below
 * because it is 0, or the denominator infinite. So masks of -inf and arguments far beyond the range cost nothing; what is left to a cold
 * region, and asked for by one comparison, are the few arguments with subnormal results. The others clamp x to what still has a scale
 * factor, and apply that in two steps where one float can't hold it.
 */
#include "ir/expand_float.h"

#include <math.h>

/* ln 2 and its inverse; the first part of ln 2 is rounded, the second is what it misses. */
static const double log2e[2] = {0x1.715476p+0, 0x1.71547652b82fep+0};
static const double ln2_high[2] = {0x1.62e43p-1, 0x1.62e42fefa39efp-1};
static const double ln2_low[2] = {-0x1.05c610p-29, 0x1.abc9e3b39803fp-56};

/* What is left of x + low (NULL: of x) in r. */
typedef struct Rest {
    X r, i, n; /* i, n as in ExpParts */
} Rest;

static Rest reduce(E *e, X x, const X *low, int bias)
{
    int w = x_is_f64(e, x);
    X magic = x_like(e, x, (w ? 0x1.8p52 : 0x1.8p23) + bias);
    X t = x_fma(e, x, x_like(e, x, log2e[w]), magic);
    X n = x_sub(e, t, magic);
    X r = x_fma(e, n, x_like(e, x, -ln2_high[w]), x);
    r = x_fma(e, n, x_like(e, x, -ln2_low[w]), r);
    return (Rest){.r = low ? x_add(e, r, *low) : r, .i = x_as_int(e, t), .n = n};
}

ExpParts exp_parts(E *e, X x, const X *low, int bias, const Poly *p)
{
    Rest v = reduce(e, x, low, bias);
    return (ExpParts){.q = x_fma(e, x_square(e, v.r), x_poly(e, v.r, p), v.r), .i = v.i, .n = v.n};
}

/* times e^r for what is left in r, `times` a power of two */
static X power(E *e, X r, double times)
{
    Poly p = poly_exp;
    X first = x_like(e, r, times);
    for (int i = 0, w = x_is_f64(e, r); i < p.of[w].n; i++)
        p.of[w].c[i] *= times;
    return x_fma(e, r, x_fma(e, r, x_poly(e, r, &p), first), first);
}

X exp_scale(E *e, X i) { return x_as_float(e, x_shl_n(e, i, x_type(e, i) == SC_I64 ? 52 : 23)); }

/*
 * a * b, which is normal or infinite where `low` is not set, and positive and no larger than the least normal where it is: there the
 * least normal is added to it, beside which a float has the places that a subnormal has, and taken away again in the sum's bits.
 */
static X settle(E *e, X a, X b, X low)
{
    const FloatForm *f = x_form(e, a);
    X added = x_select(e, low, x_like(e, a, f->min_normal), x_like(e, a, 0));
    return x_as_float(e, x_sub(e, x_as_int(e, x_fma(e, a, b, added)), x_as_int(e, added)));
}

/* 2^n for any n from the least subnormal to overflow, i holding n + 2 bias: two factors with the exponents floor((n + 2 bias) / 2) - bias and the rest. */
typedef struct Scale {
    X first, second;
} Scale;

static Scale scale_any(E *e, const FloatForm *f, X i)
{
    X both = x_shl_n(e, i, f->mantissa), half = x_and_bits(e, x_shl_n(e, i, f->mantissa - 1), f->exponent);
    return (Scale){.first = x_as_float(e, half), .second = x_as_float(e, x_sub(e, both, half))};
}

/* Where e^x and its scale factors make sense: below, 0 after rounding; above, infinity. */
#define EXP_IS_ZERO_32 (-104)
#define EXP_IS_ZERO_64 (-746)
static X exp_least(E *e, X x) { return x_at_least(e, x, x_pick(e, x, EXP_IS_ZERO_32, EXP_IS_ZERO_64)); }
static X exp_most(E *e, X x) { return x_at_most(e, x, x_pick(e, x, 89, 710)); }

/* Is e^x (x clamped) less than the least normal? */
static X is_low(E *e, X x) { return x_flt(e, x, x_pick(e, x, LOG_MIN_NORMAL_32, LOG_MIN_NORMAL_64)); }

X exp_of_pair(E *e, X x, X low)
{
    X v = exp_least(e, exp_most(e, x));
    low = x_select(e, x_feq(e, v, x), low, x_like(e, x, 0));
    ExpParts p = exp_parts(e, v, &low, 2 * x_form(e, x)->bias, &poly_exp);
    Scale s = scale_any(e, x_form(e, x), p.i);
    return settle(e, x_fma(e, p.q, s.first, s.first), s.second, is_low(e, v));
}

/* 2^k with k so large that a product with it of what is no less than the least subnormal is normal. */
static int lift(const E *e, X x) { return x_is_f64(e, x) ? 128 : 64; }

X exp_below(E *e, X x, const X *low, const X *w, X is_low)
{
    ExpParts p = exp_parts(e, x, low, x_form(e, x)->bias + lift(e, x), &poly_exp);
    X s = exp_scale(e, p.i);
    X product = w ? x_mul(e, x_fma(e, p.q, *w, *w), s) : x_fma(e, s, p.q, s);
    return settle(e, product, x_like(e, x, ldexp(1, -lift(e, x))), is_low);
}

/* Is -b <= x < -a? By one comparison, of bits. */
static X between(E *e, X x, X a, X b)
{
    uint64_t sign = x_form(e, x)->sign;
    X first = x_as_int(e, a), last = x_as_int(e, b);
    X at = x_sub(e, x_as_int(e, x), x_add_bits(e, last, 1)); /* what is asked for becomes the greatest ints */
    return x_slt(e, x_sub(e, x_add_bits(e, first, sign - 1), last), at);
}

/* e^x where x is such that this may be subnormal. */
static X exp_subnormal(E *e, X x)
{
    X v = exp_least(e, x_at_most(e, x, x_pick(e, x, -80, -700)));
    return exp_below(e, v, NULL, NULL, is_low(e, v));
}

/*
 * F64. The rest and its power are the same where e^x may be subnormal, so that of a vector with such a lane little is computed anew; for
 * that the usual scale factor, 0 from there on, is an instruction more.
 */
static X exp_f64(E *e, X x, X some)
{
    X v = exp_least(e, exp_most(e, x)), none = x_like(e, x, 0x1.8p52);
    Rest m = reduce(e, v, NULL, x_form(e, v)->bias - 1);
    X twice = power(e, m.r, 2), i = x_as_int(e, x_at_least(e, x_as_float(e, m.i), none));
    X usual = x_mul(e, twice, exp_scale(e, i));
    x_cold_begin(e, some);
    /* of other lanes none that wraps, and makes a subnormal */
    X low = x_as_int(e, x_at_most(e, x_as_float(e, m.i), x_like(e, x, 0x1.8p52 + 512)));
    X lifted = x_mul(e, twice, exp_scale(e, x_add_bits(e, low, (uint64_t)lift(e, v))));
    X least = settle(e, lifted, x_like(e, v, ldexp(1, -lift(e, v))), is_low(e, v));
    x_cold_end(e);
    return x_select(e, some, least, usual);
}

/* 2^(n - 1) is 0 for x at its least, which is where e^x is normal no more. */
EXPAND(EXP)
{
    X some = between(e, x[0], x_pick(e, x[0], 86.98, 708.04), x_pick(e, x[0], -EXP_IS_ZERO_32, -EXP_IS_ZERO_64));
    if (x_is_f64(e, x[0]))
        return exp_f64(e, x[0], some);
    X v = x_at_least(e, exp_most(e, x[0]), x_like(e, x[0], -87.3)); /* n = -126 */
    Rest m = reduce(e, v, NULL, x_form(e, v)->bias - 1);
    X usual = x_mul(e, power(e, m.r, 2), exp_scale(e, m.i));
    x_cold_begin(e, some);
    X least = exp_subnormal(e, x[0]);
    x_cold_end(e);
    return x_select(e, some, least, usual);
}

/* The first product is exact, so 1 + r P(r) is rounded once. */
X exp2_of_pair(E *e, X x, const X *low)
{
    X v = x_at_most(e, x_at_least(e, x, x_pick(e, x, -151, -1076)), x_pick(e, x, 129, 1025));
    X magic = x_pick(e, v, 0x1.8p23 + 254, 0x1.8p52 + 2046), t = x_add(e, v, magic), r = x_sub(e, v, x_sub(e, t, magic));
    if (low)
        r = x_add(e, r, x_select(e, x_feq(e, v, x), *low, x_like(e, x, 0)));
    Scale s = scale_any(e, x_form(e, v), x_as_int(e, t));
    X power = x_fma(e, x_product(e, r, s.first), x_poly(e, r, &poly_exp2), s.first);
    return settle(e, power, s.second, x_flt(e, v, x_pick(e, v, -126, -1022)));
}

EXPAND(EXP2) { return exp2_of_pair(e, x[0], NULL); }

/* e^x - 1 = 2^n q + (2^n - 1), halved so that n may be one above the range; tiny x are the result. */
EXPAND(EXPM1)
{
    X v = x_at_least(e, exp_most(e, x[0]), x_pick(e, x[0], -30, -60));
    ExpParts p = exp_parts(e, v, NULL, x_form(e, v)->bias - 1, &poly_expm1);
    X half = exp_scale(e, p.i);
    X r = x_fma(e, half, p.q, x_sub(e, half, x_like(e, v, 0.5)));
    r = x_add(e, r, r);
    X tiny = x_flt(e, x_fabs(e, x[0]), x_pick(e, v, 0x1p-25, 0x1p-54));
    return x_select(e, tiny, x[0], r);
}

/* c (1 + e^-v), a power of two c, infinite from where c e^-v is. */
static X one_and_exp_minus(E *e, X v, double c)
{
    Rest m = reduce(e, x_fneg(e, v), NULL, x_form(e, v)->bias - 1);
    return x_fma(e, exp_scale(e, m.i), power(e, m.r, 2 * c), x_like(e, v, c));
}

/* 1 / (1 + e^-v) for -89 <= v <= 40 (F64: -710), or 0 where that may be subnormal: with c = 4 the denominator is infinite there. */
static X sigmoid_or_zero(E *e, X v) { return x_div(e, x_like(e, v, 4), one_and_exp_minus(e, v, 4)); }

/* 1 / (1 + e^-x), which is e^x where it is subnormal and 1 beyond 40. */
EXPAND(SIGMOID)
{
    X v = x[0], usual = sigmoid_or_zero(e, x_at_least(e, x_at_most(e, v, x_like(e, v, 40)), x_pick(e, v, -89, -710)));
    X some = between(e, v, x_pick(e, v, 87.3, 708.39), x_pick(e, v, -EXP_IS_ZERO_32, -EXP_IS_ZERO_64));
    x_cold_begin(e, some);
    X least = exp_subnormal(e, v);
    x_cold_end(e);
    return x_select(e, some, least, usual);
}

/*
 * v kept from `least` < 0 to `most` > 0; NaN may become one of them. F32 by the integers that the bits are: of negative numbers the more
 * negative is the larger without sign. CPUs take the smaller of two integers in any unit, that of two floats where they multiply.
 */
static X clamp_number(E *e, X v, X least, X most)
{
    if (x_is_f64(e, v))
        return x_at_least(e, x_at_most(e, v, most), least);
    X i = x_as_int(e, v), m = x_as_int(e, most), l = x_as_int(e, least);
    i = x_select(e, x_slt(e, i, m), i, m);
    return x_as_float(e, x_select(e, x_ult(e, i, l), i, l));
}

/*
 * x sigmoid x, which is x e^x where that sigmoid may be subnormal. No x / (1 + e^-x): dividing a subnormal takes long, and AMD's Zen 5 begins
 * again behind it.
 */
EXPAND(SILU)
{
    X v = x[0], usual = x_product(e, v, sigmoid_or_zero(e, clamp_number(e, v, x_pick(e, v, -89, -710), x_like(e, v, 40))));
    X some = between(e, v, x_pick(e, v, 87.3, 708.39), x_pick(e, v, 109, 752));
    x_cold_begin(e, some);
    X w = x_at_least(e, x_at_most(e, v, x_pick(e, v, -80, -700)), x_pick(e, v, -109, -752));
    X a = x_fneg(e, w), least = x_fneg(e, exp_below(e, w, NULL, &a, x_flt(e, w, x_pick(e, w, -91.859, -714.970))));
    x_cold_end(e);
    return x_select(e, some, least, usual);
}

/* (e^2a - 1) / (e^2a + 1) with a = |x|, the numerator kept accurate near 0. Of tiny a it is more than a (x_square), which is the result then. */
EXPAND(TANH)
{
    X ax = x_fabs(e, x[0]), a = x_at_most(e, ax, x_pick(e, x[0], 10, 20));
    ExpParts p = exp_parts(e, x_add(e, a, a), NULL, x_form(e, a)->bias, &poly_expm1);
    X s = exp_scale(e, p.i);
    X m = x_fma(e, s, p.q, x_sub(e, s, x_like(e, a, 1)));
    X r = x_at_most(e, x_div(e, m, x_add(e, m, x_like(e, a, 2))), ax);
    return x_with_sign(e, r, x[0]);
}

/* With h = (e^a - 1) / 2: sinh a = h + h / (2h + 1). h is computed halved, as e^a overflows before sinh does. */
EXPAND(SINH)
{
    X ax = x_fabs(e, x[0]);
    X a = x_at_most(e, ax, x_pick(e, ax, 89.5, 710.5));
    ExpParts p = exp_parts(e, a, NULL, x_form(e, a)->bias - 2, &poly_expm1);
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
    ExpParts p = exp_parts(e, a, NULL, x_form(e, a)->bias - 2, &poly_exp);
    X s = exp_scale(e, p.i);
    X h = x_fma(e, s, p.q, s);
    h = x_add(e, h, h);
    return x_add(e, h, x_div(e, x_like(e, a, 0.25), h));
}

/* max(x, 0) + log(1 + e^-|x|) */
EXPAND(SOFTPLUS)
{
    X below = exp_least(e, x_fneg(e, x_fabs(e, x[0])));
    X t = exp_below(e, below, NULL, NULL, is_low(e, below)), least = x_pick(e, t, 0x1p-40, 0x1p-60);
    X tail = float_log1p_unit(e, x_at_least(e, t, least)); /* whose square is no underflow, see above */
    X low = x_select(e, x_flt(e, t, least), t, tail);
    return x_select(e, x_flt(e, x_like(e, t, 0), x[0]), x_add(e, x[0], tail), low);
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

/*
 * sin, cos, tan and their inverses.
 *
 * F32. sin takes away an even multiple of pi/2, cos an odd one, and both need one odd polynomial on [-pi/2, pi/2] and a
 * sign; tan takes away any multiple. The multiple is found by adding a constant so large that the sum rounds to it, which
 * also leaves its integer in the low bits; m pi/2 is subtracted with pi/2 in three parts by fused multiply-adds. That is
 * good up to SMALL_32. Beyond, in a cold region, F64 does it with those bits of 1/pi that matter for the argument's exponent, in two parts.
 *
 * What sin and cos cost decides whether a kernel waits for memory or for them, so: no clamp (the coefficients keep the
 * rounded polynomial within 1), no |x| for sin (every step is odd, zero included), and one instruction to ask for the cold path.
 *
 * F64. All reduce by multiples of pi/2 to a value in two parts. Beyond SMALL_64, in a cold region, 192 bits of 2/pi,
 * chosen by the exponent, are multiplied with the significand in integers (Payne and Hanek's method).
 *
 * Infinity gives NaN. Error bounds are rows of ir/accuracy.def.
 */
#include "ir/expand_float.h"

#include <math.h>

#define SMALL_32 0x1p17
#define SMALL_64 0x1p20

/* ---- F32 reduction ---- */

typedef struct Reduced {
    X r, low; /* the angle left, in two parts (low: F64 only) */
    X i;      /* an integer whose lowest bits count what was taken away */
} Reduced;

/* x - m pi/2. The parts of pi/2 all have its sign: with m = 0, -0 stays -0. */
static X minus_quarters(E *e, X x, X m)
{
    X r = x_fma(e, m, x_like(e, x, -0x1.921fb4p+0), x);
    r = x_fma(e, m, x_like(e, x, -0x1.4442d0p-24), r);
    return x_fma(e, m, x_like(e, x, -0x1.846988p-48), r);
}

/* v with its sign flipped where the bit of i is set; zeros_below: all lower bits are known to be 0. */
static X flip_by_bit(E *e, X v, X i, int bit, bool zeros_below)
{
    const FloatForm *f = x_form(e, v);
    X at_top = x_shl_n(e, i, f->width - 1 - bit);
    if (bit && !zeros_below)
        at_top = x_and_bits(e, at_top, f->sign);
    return x_as_float(e, x_xor(e, x_as_int(e, v), at_top));
}

static X flip_by_sign(E *e, X v, X of)
{
    X sign = x_and_bits(e, x_as_int(e, of), x_form(e, v)->sign);
    return x_as_float(e, x_xor(e, x_as_int(e, v), sign));
}

/* Which multiples of pi/2 are taken away. */
typedef enum Multiple { EVEN, ODD, ANY } Multiple;

/*
 * x, finite and beyond SMALL_32, less the nearest such multiple, in F64. 1/pi without those multiples of 2 that only give x a multiple of 2 is
 * the sum of two parts, which x's exponent chooses (ir/lookup.def). So the first product stays below 2^39, what its integer leaves is exact, and
 * the second is at most 2^-15.
 */
static Reduced wide_rest(E *e, X x, Multiple which)
{
    X d = x_fpext(e, x, SC_F64), binade = x_lshr_n(e, x_as_int(e, x), 23 + 4); /* its lowest bits: the exponent's 4 to 6 */
    X high = x_lookup(e, TABLE_INVERSE_PI_HIGH, binade), low = x_lookup(e, TABLE_INVERSE_PI_LOW, binade);
    X magic = x_like(e, d, which == ANY ? 0x1.8p51 : 0x1.8p52); /* neighbours are 1/2 or 1 apart */
    X t = x_fma(e, d, high, magic), m = x_sub(e, t, magic);
    X rest = x_fma(e, d, low, x_fma(e, d, high, x_fneg(e, m))), pi = x_like(e, d, 0x1.921fb54442d18p+1);
    if (which == ODD) /* cos of rest is sin of what it leaves of pi/2 */
        rest = x_fma(e, x_fneg(e, x_fabs(e, rest)), pi, x_like(e, d, 0x1.921fb54442d18p+0));
    else
        rest = x_mul(e, rest, pi);
    return (Reduced){.r = x_fptrunc(e, rest, SC_F32), .i = x_itrunc(e, x_as_int(e, t), SC_I32)};
}

/* `near`, or where x is far what wide_rest says. Bit `lowest` of i, below which there are zeros, is the lowest that counts. */
static Reduced unless_far(E *e, X x, X far, Reduced near, Multiple which, int lowest)
{
    x_cold_begin(e, far);
    Reduced wide = wide_rest(e, x, which);
    if (lowest)
        wide.i = x_shl_n(e, wide.i, lowest);
    x_cold_end(e);
    return (Reduced){.r = x_select(e, far, wide.r, near.r), .i = x_select(e, far, wide.i, near.i)};
}

/* x less the nearest even multiple of pi/2; bit 0 of i: is half of that multiple odd? */
static Reduced reduce_even(E *e, X x)
{
    X magic = x_like(e, x, 0x1.8p24); /* neighbours are 2 apart */
    X t = x_fma(e, x, x_like(e, x, 0x1.45f306p-1), magic), m = x_sub(e, t, magic);
    /* m is 0 or at least 2; from 2^17 on (of NaN too) one of these bits of the exponent is set */
    X high = x_and_bits(e, x_as_int(e, m), 0x38000000), far = x_ine(e, high, x_like(e, high, 0));
    Reduced near = {.r = minus_quarters(e, x, m), .i = x_as_int(e, t)};
    return unless_far(e, x, far, near, EVEN, 0);
}

/*
 * a = |x| less an odd multiple m of pi/2, the nearest but for 1/128 of it: 2a/pi is rounded to 1/64, of that the lowest 7 bits
 * are cut off, and one is added. Bit 7 of i: is (m + 1) / 2 odd? Below it zeros.
 */
static Reduced reduce_odd(E *e, X a)
{
    X t = x_fma(e, a, x_like(e, a, 0x1.45f306p-1), x_like(e, a, 0x1p17 + 2));
    X i = x_and_bits(e, x_as_int(e, t), ~UINT64_C(127));
    X m = x_sub(e, x_as_float(e, i), x_like(e, a, 0x1p17 + 1));
    X far = x_flt(e, x_like(e, a, SMALL_32), a);
    Reduced near = {.r = minus_quarters(e, a, m), .i = i};
    return unless_far(e, a, far, near, ODD, 7);
}

/* x less the nearest multiple of pi/2, which bit 0 of i says to be odd. */
static Reduced reduce_any(E *e, X x)
{
    X magic = x_like(e, x, 0x1.8p23);
    X t = x_fma(e, x, x_like(e, x, 0x1.45f306p-1), magic);
    X far = x_flt(e, x_like(e, x, SMALL_32), x_fabs(e, x));
    Reduced near = {.r = minus_quarters(e, x, x_sub(e, t, magic)), .i = x_as_int(e, t)};
    return unless_far(e, x, far, near, ANY, 0);
}

/* r + r (z P(z)) */
static X odd_poly(E *e, X r, const Poly *p)
{
    X z = x_mul(e, r, r);
    return x_fma(e, r, x_mul(e, z, x_poly(e, z, p)), r);
}

/*
 * sin r = r + r^3 P(r^2) for |r| <= 1.5833, F32. Never beyond 1: the coefficients were searched for that, trying every r.
 * P is negative, so the sum of zeros would be +0 for r = -0; adding +0 to r^3 first makes it -0.
 */
static X sin_half_pi(E *e, X r)
{
    X z = x_mul(e, r, r);
    return x_fma(e, x_fma(e, z, r, x_like(e, r, 0)), x_poly(e, z, &poly_sin_half_pi), r);
}

/* ---- F64 reduction ---- */

/* The upper half of the 128-bit product of two I64. */
static X mul_high(E *e, X a, X b)
{
    X mask = x_like(e, a, 0xffffffff);
    X al = x_and(e, a, mask), ah = x_lshr_n(e, a, 32), bl = x_and(e, b, mask), bh = x_lshr_n(e, b, 32);
    X low = x_mul(e, al, bl);
    X middle = x_add(e, x_mul(e, ah, bl), x_lshr_n(e, low, 32));
    X other = x_add(e, x_mul(e, al, bh), x_and(e, middle, mask));
    return x_add(e, x_mul(e, ah, bh), x_add(e, x_lshr_n(e, middle, 32), x_lshr_n(e, other, 32)));
}

/* 192 bits of 2/pi from the bit with weight 2^2 / 2^k on, where a = m 2^k with an integer m. */
static void choose_words(E *e, X biased_exponent, X out[3])
{
    /* a zero word, then 2/pi = 0.a2f983... */
    static const uint64_t two_over_pi[20] = {
        UINT64_C(0x0000000000000000), UINT64_C(0xa2f9836e4e441529), UINT64_C(0xfc2757d1f534ddc0), UINT64_C(0xdb6295993c439041),
        UINT64_C(0xfe5163abdebbc561), UINT64_C(0xb7246e3a424dd2e0), UINT64_C(0x06492eea09d1921c), UINT64_C(0xfe1deb1cb129a73e),
        UINT64_C(0xe88235f52ebb4484), UINT64_C(0xe99c7026b45f7e41), UINT64_C(0x3991d639835339f4), UINT64_C(0x9c845f8bbdf9283b),
        UINT64_C(0x1ff897ffde05980f), UINT64_C(0xef2f118b5a0a6d1f), UINT64_C(0x6d367ecf27cb09b7), UINT64_C(0x4f463f669e5fea2d),
        UINT64_C(0x7527bac7ebe5f17b), UINT64_C(0x3d0739f78a5292ea), UINT64_C(0x6bfb5fb11f8d5d08), UINT64_C(0x56033046fc7b6bab)};
    /* the first bit wanted is number k - 1 behind the point: offset k - 2 + 64; k = exponent - 1075 */
    X start = x_add_bits(e, biased_exponent, (uint64_t)(int64_t)(64 - 2 - 1075));
    X word[20];
    for (int i = 0; i < 20; i++)
        word[i] = x_bits(e, SC_I64, two_over_pi[i]);
    /* shift the array left by start / 64 words, one bit of that number after the other, keeping four words in the end */
    int count = 20;
    for (int step = 16; step >= 1; step /= 2) {
        X bit = x_and_bits(e, start, (uint64_t)step * 64);
        X is_set = x_ine(e, bit, x_like(e, bit, 0));
        int keep = step - 1 + 4;
        for (int i = 0; i < keep; i++)
            if (i + step < count)
                word[i] = x_select(e, is_set, word[i + step], word[i]);
        count = keep;
    }
    X shift = x_and_bits(e, start, 63), back = x_xor_bits(e, shift, 63); /* 63 - shift */
    for (int i = 0; i < 3; i++) {
        X next = x_lshr(e, x_lshr_n(e, word[i + 1], 1), back);
        out[i] = x_or(e, x_shl(e, word[i], shift), next);
    }
}

/* An unsigned number of 32 bits, held in an I64, times 2^exponent; less 2^(31 + exponent) if it is `biased`. */
static X piece(E *e, X bits, int exponent, bool biased)
{
    X two52 = x_as_int(e, x_like(e, x_bits(e, SC_F64, 0), 0x1p52));
    X number = x_as_float(e, x_or(e, bits, two52)), d = x_sub(e, number, x_like(e, number, biased ? 0x1p52 + 0x1p31 : 0x1p52));
    return x_mul(e, d, x_like(e, d, ldexp(1, exponent)));
}

/* a, finite and beyond SMALL_64, less the nearest multiple of pi/2. */
static Reduced wide64(E *e, X a)
{
    X bits = x_as_int(e, a);
    X m = x_or_bits(e, x_and_bits(e, bits, (UINT64_C(1) << 52) - 1), UINT64_C(1) << 52);
    X w[3];
    choose_words(e, x_lshr_n(e, bits, 52), w);
    /* a 2/pi modulo 4 as a fraction of 4: the top 128 bits of m * 0.w0 w1 w2, without its integer part */
    X mid = x_mul(e, m, w[1]);
    X low = x_add(e, mid, mul_high(e, m, w[2]));
    X carry = x_zext(e, x_ult(e, low, mid), SC_I64);
    X top = x_add(e, x_add(e, x_mul(e, m, w[0]), mul_high(e, m, w[1])), carry);
    /* quadrant: the two top bits, rounded; what is left has a sign, which only its highest piece shows */
    X n = x_lshr_n(e, x_add_bits(e, top, UINT64_C(1) << 61), 62);
    top = x_sub(e, top, x_shl_n(e, n, 62));
    /* as a sum of doubles: 2^126 is one quarter of a turn; each is no smaller than the sum of those after it, or 0 */
    X mask = x_like(e, top, 0xffffffff), first = x_lshr_n(e, x_xor_bits(e, top, UINT64_C(1) << 63), 32);
    Pair s = x_fast_two_sum(e, piece(e, first, -30, true), piece(e, x_and(e, top, mask), -62, false));
    Pair t = x_fast_two_sum(e, s.high, piece(e, x_lshr_n(e, low, 32), -94, false));
    X rest = x_add(e, x_add(e, s.low, t.low), piece(e, x_and(e, low, mask), -126, false));
    /* times pi/2 */
    X ph = x_like(e, a, 0x1.921fb54442d18p+0), pl = x_like(e, a, 0x1.1a62633145c07p-54);
    X r = x_mul(e, t.high, ph);
    X r_low = x_fma(e, t.high, ph, x_fneg(e, r));
    r_low = x_fma(e, rest, ph, x_fma(e, t.high, pl, r_low));
    return (Reduced){.r = r, .low = r_low, .i = n};
}

static Reduced reduce64(E *e, X a)
{
    X magic = x_like(e, a, 0x1.8p52);
    X t = x_fma(e, a, x_like(e, a, 0x1.45f306dc9c883p-1), magic);
    X n = x_sub(e, t, magic);
    X first = x_fma(e, n, x_like(e, a, -0x1.921fb54442d18p+0), a); /* exact */
    X second = x_like(e, a, -0x1.1a62633145c07p-54);
    X r = x_fma(e, n, second, first);
    X low = x_fma(e, n, second, x_sub(e, first, r));
    low = x_fma(e, n, x_like(e, a, 0x1.f1976b7ed8fbcp-110), low);
    X i = x_as_int(e, t);

    X far = x_flt(e, x_like(e, a, SMALL_64), a);
    x_cold_begin(e, far);
    X finite = x_flt(e, a, x_inf(e, a)); /* of infinity r is NaN already */
    x_cold_begin(e, finite);
    Reduced wide = wide64(e, a);
    x_cold_end(e);
    wide = (Reduced){.r = x_select(e, finite, wide.r, r), .low = x_select(e, finite, wide.low, low), .i = x_select(e, finite, wide.i, i)};
    x_cold_end(e);
    return (Reduced){.r = x_select(e, far, wide.r, r), .low = x_select(e, far, wide.low, low), .i = x_select(e, far, wide.i, i)};
}

/* sin and cos of r + low, |r| <= pi/4. */
static Pair sin_cos64(E *e, Reduced p)
{
    X r = p.r, z = x_mul(e, r, r), half_z = x_mul(e, z, x_like(e, z, 0.5)), one = x_like(e, z, 1);
    X w = x_sub(e, one, half_z);
    X s = x_fma(e, x_mul(e, r, z), x_poly(e, z, &poly_sin), x_mul(e, p.low, w));
    X c = x_fma(e, x_mul(e, z, z), x_poly(e, z, &poly_cos), x_fneg(e, x_mul(e, r, p.low)));
    c = x_add(e, x_sub(e, x_sub(e, one, w), half_z), c);
    return (Pair){.high = x_add(e, r, s), .low = x_add(e, w, c)};
}

static X bit_set(E *e, X i, int bit) { return x_ine(e, x_and_bits(e, i, UINT64_C(1) << bit), x_like(e, i, 0)); }

/* ---- sin, cos, tan ---- */

EXPAND(SIN)
{
    if (!x_is_f64(e, x[0])) {
        Reduced p = reduce_even(e, x[0]);
        return flip_by_bit(e, sin_half_pi(e, p.r), p.i, 0, true);
    }
    Reduced p = reduce64(e, x_fabs(e, x[0]));
    Pair sc = sin_cos64(e, p);
    X r = x_select(e, bit_set(e, p.i, 0), sc.low, sc.high);
    return flip_by_sign(e, flip_by_bit(e, r, p.i, 1, false), x[0]);
}

EXPAND(COS)
{
    X a = x_fabs(e, x[0]);
    if (!x_is_f64(e, a)) {
        Reduced p = reduce_odd(e, a);
        return flip_by_bit(e, sin_half_pi(e, p.r), p.i, 7, true);
    }
    Reduced p = reduce64(e, a);
    Pair sc = sin_cos64(e, p);
    X r = x_select(e, bit_set(e, p.i, 0), sc.high, sc.low);
    return flip_by_bit(e, r, x_add(e, p.i, x_like(e, p.i, 1)), 1, false); /* minus in quadrants 1 and 2 */
}

EXPAND(TAN)
{
    if (!x_is_f64(e, x[0])) {
        Reduced p = reduce_any(e, x[0]);
        X t = odd_poly(e, p.r, &poly_tan);
        return x_select(e, bit_set(e, p.i, 0), x_div(e, x_like(e, t, -1), t), t);
    }
    Reduced p = reduce64(e, x_fabs(e, x[0]));
    Pair sc = sin_cos64(e, p);
    X odd = bit_set(e, p.i, 0);
    X r = x_div(e, x_select(e, odd, x_fneg(e, sc.low), sc.high), x_select(e, odd, sc.high, sc.low));
    return flip_by_sign(e, r, x[0]);
}

/* ---- inverses ---- */

/* high + low - r for a constant in two parts */
static X minus_from(E *e, double high32, double low32, double high64, double low64, X r)
{
    return x_sub(e, x_pick(e, r, high32, high64), x_sub(e, r, x_pick(e, r, low32, low64)));
}

static X half_pi_minus(E *e, X r) { return minus_from(e, 0x1.921fb6p+0, -0x1.777a5cp-25, 0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, r); }

static X pi_minus(E *e, X r) { return minus_from(e, 0x1.921fb6p+1, -0x1.777a5cp-24, 0x1.921fb54442d18p+1, 0x1.1a62633145c07p-53, r); }

/* atan of t in [0, 1], or of its inverse where `inverted` is set. */
static X atan_of(E *e, X t, X inverted)
{
    X r = odd_poly(e, t, &poly_atan);
    return x_select(e, inverted, half_pi_minus(e, r), r);
}

EXPAND(ATAN)
{
    X a = x_fabs(e, x[0]), one = x_like(e, a, 1);
    X inverted = x_flt(e, one, a);
    X t = x_select(e, inverted, x_div(e, one, a), a);
    return x_with_sign(e, atan_of(e, t, inverted), x[0]);
}

/* By the octant of (x, y); zeros and infinities as C has them. */
EXPAND(ATAN2)
{
    X y = x[0], v = x[1], ay = x_fabs(e, y), av = x_fabs(e, v), zero = x_like(e, y, 0);
    X steep = x_flt(e, av, ay);
    X small = x_select(e, steep, av, ay), large = x_select(e, steep, ay, av);
    X t = x_div(e, small, large);
    t = x_select(e, x_feq(e, small, large), x_like(e, y, 1), t); /* both infinite */
    t = x_select(e, x_feq(e, small, zero), zero, t);             /* both zero */
    X r = atan_of(e, t, steep);
    X i = x_as_int(e, v);
    X left = x_slt(e, i, x_like(e, i, 0));
    r = x_select(e, left, pi_minus(e, r), r);
    r = x_with_sign(e, r, y);
    return x_select(e, x_or(e, x_isnan(e, y), x_isnan(e, v)), x_nan(e, y), r);
}

/* asin a for a <= 1/2 directly, beyond through asin a = pi/2 - 2 asin sqrt((1 - a) / 2): gives the inner asin. */
static X asin_inner(E *e, X a, X large)
{
    X half = x_like(e, a, 0.5);
    X z = x_select(e, large, x_fma(e, a, x_like(e, a, -0.5), half), x_mul(e, a, a));
    X t = x_select(e, large, x_sqrt(e, z), a);
    return x_fma(e, t, x_mul(e, z, x_poly(e, z, &poly_asin)), t);
}

EXPAND(ASIN)
{
    X a = x_fabs(e, x[0]);
    X large = x_flt(e, x_like(e, a, 0.5), a);
    X r = asin_inner(e, a, large);
    r = x_select(e, large, half_pi_minus(e, x_add(e, r, r)), r);
    return x_with_sign(e, r, x[0]);
}

EXPAND(ACOS)
{
    X a = x_fabs(e, x[0]), zero = x_like(e, a, 0);
    X large = x_flt(e, x_like(e, a, 0.5), a), negative = x_flt(e, x[0], zero);
    X r = asin_inner(e, a, large), twice = x_add(e, r, r);
    X near_one = x_select(e, negative, pi_minus(e, twice), twice);
    X middle = half_pi_minus(e, x_select(e, negative, x_fneg(e, r), r));
    return x_select(e, large, near_one, middle);
}

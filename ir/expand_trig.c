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
 * F64. All reduce by multiples of pi/2 to a value in two parts. Beyond SMALL_64, in a cold region, with those bits of 2/pi that matter for the
 * argument's exponent (Payne and Hanek's method), in four parts.
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
 * x, finite and beyond SMALL_32, less the nearest such multiple, in F64. 1/pi without those multiples of 2 that only give x a multiple
 * of 2 is the sum of two parts, which x's exponent chooses (ir/lookup.def). So the first product stays below 2^39, what its integer
 * leaves is exact, and the second is at most 2^-15. That is multiplied with pi for itself, so that nothing waits for it; but for odd
 * multiples, where it would be an instruction more.
 *
 * What it takes is F64, half as many lanes, more than the look-up: with constants in place of both parts sin and cos of 1e30 take 2.0 and 2.2
 * times the usual on AMD's Zen 5 at 512 bits, 2.4 and 2.6 at 256 bits; as it is 2.3 and 2.5, 2.9 and 3.3, on Zen 4 2.5 and 2.8, 3.4 and 3.5
 * (bench/arguments). Twice the usual, some 14 instructions for a register of F32, would leave 20 for the reduction where 8 of these still follow.
 * In F64 nine for each half are the least (to F64, the exponent, two look-ups, four of arithmetic, to F32), with parity and the way from and to
 * halves 24. In F32 alone four parts of 1/pi are needed (24 bits of x, 54 behind the point, 4 of the exponent), each product of them exact in
 * two: 28 or more. Four parts of pi/2 and a second rounding of the multiple, 12 instructions, would do up to 2^23, but as a region within this one, which
 * every sin would have to compile.
 */
static Reduced wide_rest(E *e, X x, Multiple which)
{
    X d = x_fpext(e, x, SC_F64), binade = x_lshr_n(e, x_as_int(e, x), 23 + 4); /* its lowest bits: the exponent's 4 to 6 */
    X high = x_lookup(e, TABLE_INVERSE_PI_HIGH, binade),
      magic = x_like(e, d, which == ANY ? 0x1.8p51 : 0x1.8p52); /* neighbours: 1/2 or 1 apart */
    X low = x_lookup(e, which == ODD ? TABLE_INVERSE_PI_LOW : TABLE_INVERSE_PI_LOW_PI, binade);
    X t = x_fma(e, d, high, magic), first = x_fma(e, d, high, x_fneg(e, x_sub(e, t, magic))), pi = x_like(e, d, 0x1.921fb54442d18p+1), rest;
    if (which == ODD) { /* cos of it is sin of what it leaves of pi/2 */
        rest = x_fma(e, d, low, first);
        rest = x_fma(e, x_fneg(e, x_fabs(e, rest)), pi, x_like(e, d, 0x1.921fb54442d18p+0));
    } else {
        rest = x_fma(e, first, pi, x_mul(e, d, low));
    }
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
    X z = x_square(e, r);
    return x_fma(e, r, x_mul(e, z, x_poly(e, z, p)), r);
}

/*
 * sin r = r + r z P(z), z = r^2, for |r| <= 1.5833, F32. Never beyond 1: the coefficients were searched for that, trying every r.
 * Of tiny r, z is NO_MORE_32; what that makes z P(z) is added to it, so that it is +0. So r = -0 stays -0, though P is negative.
 */
static X sin_half_pi(E *e, X r)
{
    X z = x_square(e, r), none = x_like(e, r, -NO_MORE_32 * poly_sin_half_pi.of[0].c[0]);
    return x_fma(e, r, x_fma(e, z, x_poly(e, z, &poly_sin_half_pi), none), r);
}

/* ---- F64 reduction ---- */

/*
 * a, finite and beyond SMALL_64, less the nearest multiple of pi/2. 2/pi without those multiples of 4 that only give a a multiple of 4 is the sum of
 * four parts, which a's exponent chooses (ir/two_over_pi.def); of the exponent four bits stay with a, which so is below 2^65 and a multiple of
 * 1/8. Of the products the first, below 2^69, leaves multiples of 2^-36 up to 2^17 when multiples of 2^18 are dropped; the second is below 2^31.
 * Each of those added up last is a multiple of the last place of the one after it, or no smaller.
 */
static Reduced wide64(E *e, X a)
{
    X bits = x_as_int(e, a), row = x_lshr_n(e, bits, 52 + 4);
    X v = x_as_float(e, x_or_bits(e, x_and_bits(e, bits, (UINT64_C(1) << 56) - 1), UINT64_C(67) << 56));
    X part[ROW_COLUMNS];
    for (int i = 0; i < ROW_COLUMNS; i++)
        part[i] = x_row(e, row, i);
    X magic = x_like(e, v, 0x1.8p70), dropped = x_sub(e, x_fma(e, v, part[0], magic), magic);
    X first = x_fma(e, v, part[0], x_fneg(e, dropped)), n = x_rint(e, first);
    X second = x_mul(e, v, part[1]), second_low = x_fma(e, v, part[1], x_fneg(e, second)), n2 = x_rint(e, second);
    X third = x_mul(e, v, part[2]), third_low = x_fma(e, v, part[3], x_fma(e, v, part[2], x_fneg(e, third)));
    Pair s = x_fast_two_sum(e, x_sub(e, first, n), x_sub(e, second, n2));
    X n3 = x_rint(e, s.high);
    Pair t = x_fast_two_sum(e, x_sub(e, s.high, n3), second_low), u = x_fast_two_sum(e, t.high, third);
    X rest = x_add(e, x_add(e, s.low, t.low), x_add(e, u.low, third_low));
    /* times pi/2 */
    X ph = x_like(e, a, 0x1.921fb54442d18p+0), pl = x_like(e, a, 0x1.1a62633145c07p-54);
    X r = x_mul(e, u.high, ph);
    X low = x_fma(e, rest, ph, x_fma(e, u.high, pl, x_fma(e, u.high, ph, x_fneg(e, r))));
    X all = x_add(e, x_add(e, x_add(e, n, n2), x_like(e, n, 0x1.8p52)), n3);
    return (Reduced){.r = r, .low = low, .i = x_as_int(e, all)};
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

    /* infinity and NaN, whose r is NaN, become negative here */
    const FloatForm *f = x_form(e, a);
    X far = x_slt(e, x_add_bits(e, x_as_int(e, x_like(e, a, SMALL_64)), f->sign - f->exponent),
                  x_add_bits(e, x_as_int(e, a), f->sign - f->exponent));
    x_cold_begin(e, far);
    Reduced wide = wide64(e, a);
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
        X t = odd_poly(e, p.r, &poly_tan), odd = bit_set(e, p.i, 0);
        X divisor =
            x_add(e, t, x_like(e, t, 0x1p-100)); /* t, but where that is no result of ours: CPUs take long to divide by subnormals */
        return x_select(e, odd, x_div(e, x_like(e, t, -1), divisor), t);
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

/*
 * pow and hypot.
 *
 * x^y is the power of the sum of two floats that y times the logarithm is, as its error is multiplied with the whole exponent: F32's log2 is good to
 * some 2^-35, F64's log to 2^-66. Of what is usual, a finite y and a positive finite x, that is all. Negative x are a cold region, and within it is
 * another one for what is 0, infinite or NaN.
 *
 * Special values are C's (Annex F): x^0 = 1^y = 1 even for NaN; (-1)^inf = 1; a negative x needs an integer y.
 */
#include "ir/expand_float.h"

/* s = f / (2 + f), its low part by what the division leaves, as 1 / (2 + f) = (1 - s) / 2. */
static Pair log_ratio(E *e, X f)
{
    X two = x_like(e, f, 2), d = x_add(e, f, two), d_low = x_sub(e, f, x_sub(e, d, two)), s = x_div(e, f, d), minus = x_fneg(e, s);
    X rest = x_fma(e, minus, d_low, x_fma(e, minus, d, f));
    return (Pair){s, x_mul(e, rest, x_fma(e, s, x_like(e, f, -0.5), x_like(e, f, 0.5)))};
}

/* log2(1 + f) + n, F32, as a sum. s, z = s^2 and both factors are sums of two, too; what is left of 2 / (3 ln 2) is too little to count. */
static Pair log2_pair(E *e, LogParts p)
{
    Pair s = log_ratio(e, p.f);
    X z = x_mul(e, s.high, s.high), z_low = x_fma(e, x_add(e, s.high, s.high), s.low, x_fma(e, s.high, s.high, x_fneg(e, z)));
    Pair c = x_fast_two_sum(e, x_like(e, z, 0x1.ec709ep-1), x_mul(e, z, x_poly(e, z, &poly_pow_log)));
    X v = x_mul(e, z, c.high), v_low = x_fma(e, z_low, c.high, x_fma(e, z, c.low, x_fma(e, z, c.high, x_fneg(e, v))));
    Pair q = x_fast_two_sum(e, x_like(e, z, 0x1.715476p+1), v);
    X q_low = x_add(e, q.low, x_add(e, v_low, x_like(e, z, 0x1.4ae0cp-25)));
    X u = x_mul(e, s.high, q.high), u_low = x_fma(e, s.low, q.high, x_fma(e, s.high, q_low, x_fma(e, s.high, q.high, x_fneg(e, u))));
    Pair sum = x_fast_two_sum(e, p.n, u);
    return (Pair){sum.high, x_add(e, sum.low, u_low)};
}

/* log(1 + f) + n ln 2, F64. 2 s carries the weight; s^3 2/3 is a sum likewise. */
static Pair log_pair(E *e, LogParts p)
{
    X f = p.f;
    Pair r = log_ratio(e, f);
    X s = r.high, s_low = r.low;
    X z = x_mul(e, s, s), s2 = x_add(e, s, s), s2_low = x_add(e, s_low, s_low);
    X z_low = x_fma(e, s2, s_low, x_fma(e, s, s, x_fneg(e, z)));
    X third = x_like(e, f, 0x1.5555555555555p-1);
    Pair c = x_fast_two_sum(e, third, x_mul(e, z, x_poly(e, z, &poly_pow_log)));
    X c_low = x_add(e, c.low, x_like(e, f, 0x1.5555555555555p-55));
    X u = x_mul(e, s, z);
    X u_low = x_fma(e, s_low, z, x_fma(e, s, z_low, x_fma(e, s, z, x_fneg(e, u))));
    X v = x_mul(e, u, c.high);
    X v_low = x_fma(e, u_low, c.high, x_fma(e, u, c_low, x_fma(e, u, c.high, x_fneg(e, v))));

    Pair small = x_fast_two_sum(e, s2, v);
    X low = x_add(e, small.low, x_add(e, s2_low, v_low));
    /* the first part of ln 2 has 42 bits, so that its product with n is exact */
    X whole = x_mul(e, p.n, x_like(e, f, 0x1.62e42fefa38p-1));
    Pair sum = x_fast_two_sum(e, whole, small.high);
    low = x_add(e, low, sum.low);
    low = x_fma(e, p.n, x_like(e, f, 0x1.ef35793c7673p-45), low);
    return x_fast_two_sum(e, sum.high, low);
}

/* x^y where x is positive and both are finite. */
static X usual_pow(E *e, X ax, X y)
{
    LogParts parts = log_parts(e, ax, true);
    Pair log = x_is_f64(e, ax) ? log_pair(e, parts) : log2_pair(e, parts);
    X t = x_mul(e, y, log.high), low = x_fma(e, y, log.low, x_fma(e, y, log.high, x_fneg(e, t)));
    return x_is_f64(e, ax) ? exp_of_pair(e, t, low) : exp2_of_pair(e, t, &low);
}

/* Is a below 0, 0, infinite or NaN, or y infinite or NaN? By integers: with its sign flipped what is asked of a is above all others, less one. */
static X is_unusual(E *e, X a, X y)
{
    const FloatForm *f = x_form(e, a);
    X most = x_like(e, x_as_int(e, a), 0), from_zero = x_add_bits(e, x_as_int(e, a), f->sign - 1);
    X a_beyond = x_slt(e, x_add_bits(e, most, f->exponent - 2 + f->sign), from_zero);
    X y_beyond = x_slt(e, x_add_bits(e, most, f->exponent - 1), x_as_int(e, x_fabs(e, y)));
    return x_or(e, a_beyond, y_beyond);
}

/* |a|^y where a is 0, infinite or 1, or y infinite, and what is NaN or in spite of one 1. */
static X special_pow(E *e, X a, X y, X is_negative, X usual)
{
    X one = x_like(e, a, 1), zero = x_like(e, a, 0), inf = x_inf(e, a), ax = x_fabs(e, a);
    X is_zero = x_feq(e, ax, zero), is_inf = x_feq(e, ax, inf), grows = x_xor(e, is_inf, x_flt(e, y, zero));
    X r = x_select(e, x_or(e, is_zero, is_inf), x_select(e, grows, inf, zero), usual);
    r = x_select(e, x_feq(e, ax, one), one, r);
    r = x_select(e, is_negative, x_fneg(e, r), r);
    r = x_select(e, x_or(e, x_isnan(e, a), x_isnan(e, y)), x_nan(e, a), r);
    return x_select(e, x_or(e, x_feq(e, a, one), x_feq(e, y, zero)), one, r);
}

X float_pow(E *e, X a, X y)
{
    X zero = x_like(e, a, 0), ax = x_fabs(e, a), usual = usual_pow(e, ax, y), some = is_unusual(e, a, y);
    x_cold_begin(e, some);
    X half = x_mul(e, y, x_like(e, y, 0.5)), i = x_as_int(e, a);
    X whole = x_feq(e, x_trunc(e, y), y), odd = x_and(e, whole, x_fne(e, x_trunc(e, half), half));
    X is_negative = x_and(e, odd, x_slt(e, i, x_like(e, i, 0))), undefined = x_and(e, x_flt(e, a, zero), x_not(e, whole));
    X r = x_select(e, undefined, x_nan(e, a), x_select(e, is_negative, x_fneg(e, usual), usual));
    X more = is_unusual(e, ax, y);
    x_cold_begin(e, more);
    X special = special_pow(e, a, y, is_negative, usual);
    x_cold_end(e);
    r = x_select(e, more, special, r);
    x_cold_end(e);
    return x_select(e, some, r, usual);
}

/* sqrt(x^2 + y^2) without overflow or underflow on the way: F32 in F64, F64 scaled by a power of two. An infinity wins
 * over NaN. */
EXPAND(HYPOT)
{
    X a = x_fabs(e, x[0]), b = x_fabs(e, x[1]), r;
    if (x_is_f64(e, a)) {
        X larger = x_select(e, x_flt(e, a, b), b, a);
        X one = x_like(e, a, 1);
        X big = x_flt(e, x_like(e, a, 0x1p500), larger), small = x_flt(e, larger, x_like(e, a, 0x1p-450));
        X down = x_select(e, big, x_like(e, a, 0x1p-600), x_select(e, small, x_like(e, a, 0x1p600), one));
        X up = x_select(e, big, x_like(e, a, 0x1p600), x_select(e, small, x_like(e, a, 0x1p-600), one));
        X sa = x_mul(e, a, down), sb = x_mul(e, b, down);
        r = x_mul(e, x_sqrt(e, x_fma(e, sa, sa, x_mul(e, sb, sb))), up);
    } else {
        X da = x_fpext(e, a, SC_F64), db = x_fpext(e, b, SC_F64);
        r = x_fptrunc(e, x_sqrt(e, x_fma(e, da, da, x_mul(e, db, db))), SC_F32);
    }
    X inf = x_inf(e, a);
    return x_select(e, x_or(e, x_feq(e, a, inf), x_feq(e, b, inf)), inf, r);
}

/*
 * pow and hypot.
 *
 * F32 computes in F64: there log2 |x| is good to 2^-38, which times the largest useful y still leaves the f32 result's
 * error near half an ULP. F64 keeps the logarithm as a sum of two doubles, about 2^-66, for the same reason.
 *
 * Special values are C's (Annex F): x^0 = 1^y = 1 even for NaN; (-1)^inf = 1; a negative x needs an integer y.
 */
#include "ir/expand_float.h"

/* |x|^y for F32 given in F64 (so no subnormals), in F64. */
static X pow_in_f64(E *e, X ax, X y)
{
    LogParts p = log_parts(e, ax, false);
    X inf = x_inf(e, ax), zero = x_like(e, ax, 0);
    X log = x_fma(e, x_mul(e, p.f, p.f), x_poly(e, p.f, &poly_log_mid), p.f);
    log = x_fma(e, log, x_like(e, ax, 0x1.71547652b82fep+0), p.n);
    log = x_select(e, x_feq(e, ax, zero), x_fneg(e, inf), log);
    log = x_select(e, x_flt(e, ax, inf), log, ax);
    X t = x_select(e, x_feq(e, log, zero), zero, x_mul(e, y, log));
    t = x_at_least(e, x_at_most(e, t, x_like(e, t, 300)), x_like(e, t, -300));
    X magic = x_like(e, t, 0x1.8p52 + 1023);
    X m = x_add(e, t, magic);
    X r = x_sub(e, t, x_sub(e, m, magic));
    X scale = x_as_float(e, x_shl_n(e, x_as_int(e, m), 52));
    return x_mul(e, x_fma(e, r, x_poly(e, r, &poly_exp2_mid), x_like(e, r, 1)), scale);
}

/* log(1 + f) + n ln 2 as a sum. 2 s carries the weight: it is divided out to two doubles, s^3 2/3 likewise. */
static Pair log_pair(E *e, LogParts p)
{
    X f = p.f, two = x_like(e, f, 2);
    X d = x_add(e, f, two), d_low = x_sub(e, f, x_sub(e, d, two));
    X s = x_div(e, f, d);
    X rest = x_fma(e, x_fneg(e, s), d, f);
    rest = x_fma(e, x_fneg(e, s), d_low, rest);
    X s_low = x_div(e, rest, d);

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

static X pow_f64(E *e, X ax, X y)
{
    X inf = x_inf(e, ax), zero = x_like(e, ax, 0);
    Pair log = log_pair(e, log_parts(e, ax, true));
    log.high = x_select(e, x_feq(e, ax, zero), x_fneg(e, inf), log.high);
    log.high = x_select(e, x_flt(e, ax, inf), log.high, ax);
    X is_one = x_feq(e, ax, x_like(e, ax, 1)); /* to the power of infinity, too */
    X t = x_mul(e, y, log.high);
    X low = x_fma(e, y, log.low, x_fma(e, y, log.high, x_fneg(e, t)));
    return exp_of_pair(e, x_select(e, is_one, zero, t), x_select(e, is_one, zero, low));
}

X float_pow(E *e, X a, X y)
{
    X one = x_like(e, a, 1), zero = x_like(e, a, 0), inf = x_inf(e, a), ax = x_fabs(e, a), r;
    if (x_is_f64(e, a))
        r = pow_f64(e, ax, y);
    else
        r = x_fptrunc(e, pow_in_f64(e, x_fpext(e, ax, SC_F64), x_fpext(e, y, SC_F64)), SC_F32);
    X whole = x_feq(e, x_trunc(e, y), y);
    X half_y = x_mul(e, y, x_like(e, y, 0.5));
    X odd = x_and(e, whole, x_fne(e, x_trunc(e, half_y), half_y));
    X i = x_as_int(e, a), sign_set = x_slt(e, i, x_like(e, i, 0));
    r = x_select(e, x_and(e, sign_set, odd), x_fneg(e, r), r);
    X finite_negative = x_and(e, x_flt(e, a, zero), x_flt(e, x_fneg(e, inf), a));
    X undefined = x_or(e, x_isnan(e, y), x_and(e, finite_negative, x_not(e, whole)));
    r = x_select(e, undefined, x_nan(e, a), r);
    return x_select(e, x_or(e, x_feq(e, a, one), x_feq(e, y, zero)), one, r);
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

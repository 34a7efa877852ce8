/*
 * Float remainders, exact: fmod, and Python's % and // made of it the way NumPy does.
 *
 * While the quotient has fewer bits than a significand, a - trunc(a / b) b is exact in one fused multiply-add, up to one b
 * (the division may round up to the next integer). Larger quotients are rare: F32 takes F64 and removes 52 bits of
 * quotient at a time; F64 computes (significand of a) 2^d mod (significand of b) in integers, by repeated squaring.
 */
#include "ir/expand_float.h"

/* One step: a mod b for a, b > 0 and a / b below 2^52 (F64) or 2^23 (F32). */
static X step(E *e, X a, X b)
{
    X q = x_trunc(e, x_div(e, a, b));
    X r = x_fma(e, x_fneg(e, q), b, a);
    return x_select(e, x_flt(e, r, x_like(e, r, 0)), x_add(e, r, b), r);
}

static X wide_f32(E *e, X a, X b)
{
    X r = x_fpext(e, a, SC_F64), d = x_fpext(e, b, SC_F64);
    static const double scale[6] = {0x1p260, 0x1p208, 0x1p156, 0x1p104, 0x1p52, 1};
    for (int i = 0; i < 6; i++)
        r = step(e, r, x_mul(e, d, x_like(e, d, scale[i])));
    return x_fptrunc(e, r, SC_F32);
}

typedef struct Modulus {
    X m, as_f64;
} Modulus;

/* a b mod m in I64, all below 2^53: the quotient from F64, good to 2, the rest from the low 64 bits. */
static X multiply_mod(E *e, X a, X b, Modulus mod)
{
    X product = x_mul(e, x_sitofp(e, a, SC_F64), x_sitofp(e, b, SC_F64));
    X q = x_fptosi(e, x_div(e, product, mod.as_f64), SC_I64);
    X r = x_sub(e, x_mul(e, a, b), x_mul(e, q, mod.m));
    X zero = x_like(e, r, 0);
    for (int i = 0; i < 2; i++)
        r = x_select(e, x_slt(e, r, zero), x_add(e, r, mod.m), r);
    for (int i = 0; i < 2; i++)
        r = x_select(e, x_sle(e, mod.m, r), x_sub(e, r, mod.m), r);
    return r;
}

typedef struct Split {
    X significand, exponent, up; /* significand 2^(exponent - 1075) 2^-54 where `up` */
} Split;

/* A positive F64, subnormals scaled up so that the significand has 53 bits. */
static Split split(E *e, X a)
{
    X small = x_flt(e, a, x_like(e, a, 0x1p-1022));
    X i = x_as_int(e, x_select(e, small, x_mul(e, a, x_like(e, a, 0x1p54)), a));
    X significand = x_or_bits(e, x_and_bits(e, i, (UINT64_C(1) << 52) - 1), UINT64_C(1) << 52);
    return (Split){significand, x_lshr_n(e, i, 52), small};
}

static X wide_f64(E *e, X a, X b)
{
    Split sa = split(e, a), sb = split(e, b);
    Modulus mod = {sb.significand, x_sitofp(e, sb.significand, SC_F64)};
    X fifty_four = x_like(e, sa.exponent, 54), zero = x_like(e, sa.exponent, 0), one = x_like(e, sa.exponent, 1);
    X d = x_sub(e, sa.exponent, sb.exponent); /* 52 to 2098 in lanes that count */
    d = x_add(e, d, x_select(e, sb.up, fifty_four, zero));
    d = x_sub(e, d, x_select(e, sa.up, fifty_four, zero));
    X top = x_lshr_n(e, d, 6), most = x_like(e, d, 33);
    X power = x_shl(e, one, x_select(e, x_ult(e, top, most), top, zero)); /* 2^(d / 64), below any modulus */
    for (int bit = 5; bit >= 0; bit--) {
        power = multiply_mod(e, power, power, mod);
        X twice = x_add(e, power, power);
        twice = x_select(e, x_sle(e, mod.m, twice), x_sub(e, twice, mod.m), twice);
        X is_set = x_ine(e, x_and_bits(e, d, UINT64_C(1) << bit), zero);
        power = x_select(e, is_set, twice, power);
    }
    X start = x_select(e, x_sle(e, mod.m, sa.significand), x_sub(e, sa.significand, mod.m), sa.significand);
    X r = x_sitofp(e, multiply_mod(e, start, power, mod), SC_F64);
    r = x_mul(e, r, x_select(e, sb.up, x_like(e, r, 0x1p-106), x_like(e, r, 0x1p-52)));
    return x_mul(e, r, x_as_float(e, x_shl_n(e, sb.exponent, 52)));
}

/* a - trunc(a / b) b with a's sign; NaN for b = 0 or infinite a; a for infinite b. */
X float_fmod(E *e, X a, X b)
{
    X aa = x_fabs(e, a), ab = x_fabs(e, b), zero = x_like(e, a, 0), inf = x_inf(e, a);
    X r = step(e, aa, ab);
    X limit = x_pick(e, a, 0x1p23, 0x1p52);
    X wide = x_fle(e, limit, x_div(e, aa, ab));
    x_cold_begin(e, wide);
    X w = x_is_f64(e, a) ? wide_f64(e, aa, ab) : wide_f32(e, aa, ab);
    x_cold_end(e);
    r = x_select(e, wide, w, r);
    r = x_select(e, x_flt(e, aa, ab), aa, r); /* infinite b, too */
    X undefined = x_or(e, x_feq(e, aa, inf), x_feq(e, ab, zero));
    undefined = x_or(e, undefined, x_or(e, x_isnan(e, a), x_isnan(e, b)));
    r = x_select(e, undefined, x_nan(e, a), r);
    return x_with_sign(e, r, a);
}

static X different_signs(E *e, X a, X b)
{
    X zero = x_like(e, a, 0);
    return x_xor(e, x_flt(e, a, zero), x_flt(e, b, zero));
}

/* fmod moved to b's sign; a zero takes b's sign as well. */
X float_rem(E *e, X a, X b)
{
    X r = float_fmod(e, a, b), zero = x_like(e, a, 0);
    X is_zero = x_feq(e, r, zero);
    X moved = x_select(e, different_signs(e, r, b), x_add(e, r, b), r);
    return x_select(e, is_zero, x_with_sign(e, zero, b), moved);
}

/* (a - a % b) / b rounded to the integer that it is up to rounding; b = 0 gives a / b. */
X float_floordiv(E *e, X a, X b)
{
    X m = float_fmod(e, a, b), zero = x_like(e, a, 0), one = x_like(e, a, 1);
    X quotient = x_div(e, a, b);
    X q = x_div(e, x_sub(e, a, m), b);
    X adjust = x_and(e, x_fne(e, m, zero), different_signs(e, m, b));
    q = x_select(e, adjust, x_sub(e, q, one), q);
    X down = x_floor(e, q);
    X r = x_select(e, x_flt(e, x_like(e, a, 0.5), x_sub(e, q, down)), x_add(e, down, one), down);
    r = x_select(e, x_feq(e, q, zero), x_with_sign(e, zero, quotient), r);
    return x_select(e, x_feq(e, b, zero), quotient, r);
}

/*
 * Arithmetic, comparison, selection and bit ops of all dtypes; what is long about integers (division, powers, shifts,
 * random bits) is in ir/expand_int.c, float division's relatives in ir/expand_fmod.c.
 *
 * Floats are F32 or F64 here. Everything is exact or rounded once, unless said.
 */
#include "ir/expand.h"

static bool is_float(const E *e) { return dtype_is_float(e->in[0]); }
static bool is_signed_int(const E *e) { return dtype_kind(e->in[0]) == DK_INT; }

/* ---- one input ---- */

/* NEG, ABS and RELU of halves: of their stored bits. */
EXPAND(NEG)
{
    if (dtype_is_half(e->in[0]))
        return x_xor_bits(e, x[0], 0x8000);
    return is_float(e) ? x_fneg(e, x[0]) : x_sub(e, x_like(e, x[0], 0), x[0]);
}

EXPAND(ABS)
{
    if (dtype_is_half(e->in[0]))
        return x_and_bits(e, x[0], 0x7fff);
    if (is_float(e))
        return x_fabs(e, x[0]);
    if (!is_signed_int(e))
        return x[0];
    X zero = x_like(e, x[0], 0);
    return x_select(e, x_slt(e, x[0], zero), x_sub(e, zero, x[0]), x[0]);
}

/* Zeros of both signs give +0. */
EXPAND(SIGN)
{
    X zero = x_like(e, x[0], 0), one = x_like(e, x[0], 1), minus = x_like(e, x[0], -1);
    if (!is_float(e)) {
        X r = x_select(e, x_ine(e, x[0], zero), one, zero);
        return is_signed_int(e) ? x_select(e, x_slt(e, x[0], zero), minus, r) : r;
    }
    X r = x_add(e, x[0], zero); /* 0 or NaN where it is kept */
    r = x_select(e, x_flt(e, x[0], zero), minus, r);
    return x_select(e, x_flt(e, zero, x[0]), one, r);
}

EXPAND(SQUARE) { return x_mul(e, x[0], x[0]); }
EXPAND(RECIPROCAL) { return x_div(e, x_like(e, x[0], 1), x[0]); }
EXPAND(SQRT) { return x_sqrt(e, x[0]); }
EXPAND(RSQRT) { return x_div(e, x_like(e, x[0], 1), x_sqrt(e, x[0])); }

/* As integers with a sign, halves above -inf are the natural ones and the negative NaNs: those that stay. */
EXPAND(RELU)
{
    X zero = x_like(e, x[0], 0);
    if (dtype_is_half(e->in[0]))
        return x_select(e, x_slt(e, x_bits(e, SC_I16, e->in[0] == DT_F16 ? 0xfc00 : 0xff80), x[0]), x[0], zero);
    if (is_float(e))
        return x_select(e, x_fle(e, x[0], zero), zero, x[0]);
    return is_signed_int(e) ? x_select(e, x_slt(e, x[0], zero), zero, x[0]) : x[0];
}

EXPAND(FLOOR) { return is_float(e) ? x_floor(e, x[0]) : x[0]; }
EXPAND(CEIL) { return is_float(e) ? x_ceil(e, x[0]) : x[0]; }
EXPAND(ROUND) { return is_float(e) ? x_rint(e, x[0]) : x[0]; }
EXPAND(TRUNC) { return is_float(e) ? x_trunc(e, x[0]) : x[0]; }

EXPAND(ISNAN) { return x_isnan(e, x[0]); }
EXPAND(ISINF) { return x_feq(e, x_fabs(e, x[0]), x_inf(e, x[0])); }
EXPAND(ISFINITE) { return x_flt(e, x_fabs(e, x[0]), x_inf(e, x[0])); }

/* Of the stored bits of any float dtype: a conversion may lose the sign of a NaN. */
EXPAND(SIGNBIT)
{
    X i = dtype_is_half(e->in[0]) ? x[0] : x_as_int(e, x[0]);
    return x_slt(e, i, x_like(e, i, 0));
}

EXPAND(NOT) { return x_xor_bits(e, x[0], UINT64_MAX); }

/* ---- two inputs ---- */

EXPAND(ADD) { return x_add(e, x[0], x[1]); }
EXPAND(SUB) { return x_sub(e, x[0], x[1]); }
EXPAND(MUL) { return x_mul(e, x[0], x[1]); }
EXPAND(MUL_NO_NAN) { return x_select(e, x_feq(e, x[0], x_like(e, x[0], 0)), x[0], x_mul(e, x[0], x[1])); }
EXPAND(DIV) { return x_div(e, x[0], x[1]); }
EXPAND(AND) { return x_and(e, x[0], x[1]); }
EXPAND(OR) { return x_or(e, x[0], x[1]); }
EXPAND(XOR) { return x_xor(e, x[0], x[1]); }

EXPAND(COPYSIGN)
{
    if (dtype_is_half(e->in[0]))
        return x_or(e, x_and_bits(e, x[0], 0x7fff), x_and_bits(e, x[1], 0x8000));
    const FloatForm *f = x_form(e, x[0]);
    X magnitude = x_and_bits(e, x_as_int(e, x[0]), ~f->sign);
    return x_as_float(e, x_or(e, magnitude, x_and_bits(e, x_as_int(e, x[1]), f->sign)));
}

/* The larger of two floats by FLT(b, a); on equality (zeros, or the same bits) the AND of the bits is the answer;
 * a NaN in b falls through the comparison, one in a needs a test. The smaller likewise with OR. */
static X float_extreme(E *e, X a, X b, bool max)
{
    X ia = x_as_int(e, a), ib = x_as_int(e, b);
    X equal = x_as_float(e, max ? x_and(e, ia, ib) : x_or(e, ia, ib));
    X r = x_select(e, max ? x_flt(e, b, a) : x_flt(e, a, b), a, b);
    r = x_select(e, x_feq(e, a, b), equal, r);
    return x_select(e, x_isnan(e, a), a, r);
}

static X less(E *e, X a, X b) { return is_signed_int(e) ? x_slt(e, a, b) : x_ult(e, a, b); }

EXPAND(MAXIMUM)
{
    if (is_float(e))
        return float_extreme(e, x[0], x[1], true);
    return x_select(e, less(e, x[1], x[0]), x[0], x[1]);
}

EXPAND(MINIMUM)
{
    if (is_float(e))
        return float_extreme(e, x[0], x[1], false);
    return x_select(e, less(e, x[0], x[1]), x[0], x[1]);
}

EXPAND(EQ) { return is_float(e) ? x_feq(e, x[0], x[1]) : x_ieq(e, x[0], x[1]); }
EXPAND(NE) { return is_float(e) ? x_fne(e, x[0], x[1]) : x_ine(e, x[0], x[1]); }

static X lt(E *e, X a, X b) { return is_float(e) ? x_flt(e, a, b) : less(e, a, b); }

static X le(E *e, X a, X b) { return is_float(e) ? x_fle(e, a, b) : is_signed_int(e) ? x_sle(e, a, b) : x_ule(e, a, b); }

EXPAND(LT) { return lt(e, x[0], x[1]); }
EXPAND(LE) { return le(e, x[0], x[1]); }
EXPAND(GT) { return lt(e, x[1], x[0]); }
EXPAND(GE) { return le(e, x[1], x[0]); }

EXPAND(WHERE) { return x_select(e, x[0], x[1], x[2]); }

/*
 * The neighbour of x in the direction of y, on the stored bits of any float dtype: as sign-magnitude integers,
 * neighbours differ by one. x == y gives y; from zero the least subnormal with y's sign; NaN if either is NaN.
 */
EXPAND(NEXTAFTER)
{
    SType bits = (SType)(e->in[0] == DT_F32 ? SC_I32 : e->in[0] == DT_F64 ? SC_I64 : SC_I16);
    bool half = bits == SC_I16;
    X a = half ? x[0] : x_as_int(e, x[0]), b = half ? x[1] : x_as_int(e, x[1]);
    X va = half ? x_widen(e, e->in[0], x[0]) : x[0], vb = half ? x_widen(e, e->in[0], x[1]) : x[1];
    uint64_t sign = UINT64_C(1) << (stype_bits[bits] - 1);
    X one = x_bits(e, bits, 1), zero = x_bits(e, bits, 0);
    /* away from zero when y lies beyond x on x's side: (x < y) == (x > 0) */
    X up = x_flt(e, va, vb), positive = x_sle(e, zero, a);
    X away = x_not(e, x_xor(e, up, positive));
    X r = x_select(e, away, x_add(e, a, one), x_sub(e, a, one));
    X is_zero = x_ieq(e, x_and_bits(e, a, ~sign), zero);
    r = x_select(e, is_zero, x_or(e, x_and_bits(e, b, sign), one), r);
    r = x_select(e, x_feq(e, va, vb), b, r);
    r = x_select(e, x_isnan(e, va), a, r);
    r = x_select(e, x_isnan(e, vb), b, r);
    return half ? r : x_as_float(e, r);
}

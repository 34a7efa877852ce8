/*
 * CAST between any two dtypes, and the stored forms of f16 and bf16.
 *
 * Every cast rounds at most once. Where the machine has no single instruction for that (f64 or a wide integer to f16
 * or bf16), the value is first rounded to odd: truncated, with the last bit set when anything was lost. As what is left has at least two bits
 * more than the goal, and f32 holds it, the second rounding then sees all that it needs.
 *
 * To integers: toward zero, saturating, NaN gives 0. What does not fit is left to a cold region, and what FPTOSI made of it to nobody; but
 * for unsigned goals, where a negative number may be usual: they are made to fit.
 */
#include "ir/expand.h"

#include <math.h>

/* ---- f16 and bf16 ---- */

X x_widen(E *e, DType dtype, X bits)
{
    if (dtype == DT_F16)
        return x_f16tof32(e, bits, SC_F32);
    return x_as_float(e, x_shl_n(e, x_zext(e, bits, SC_I32), 16));
}

/* The bits of an f32 rounded to nearest even at bit 16, by adding just under half of the last place, plus its parity. Not of NaN. */
static X round_16(E *e, X i)
{
    X parity = x_and_bits(e, x_lshr_n(e, i, 16), 1);
    return x_add(e, i, x_add_bits(e, parity, 0x7fff));
}

static X quiet(E *e, X i) { return x_or_bits(e, i, 0x400000); }

static X upper_half(E *e, X i) { return x_itrunc(e, x_lshr_n(e, i, 16), SC_I16); }

X x_narrow(E *e, DType dtype, X f32)
{
    if (dtype == DT_F16)
        return x_f32tof16(e, f32, SC_I16);
    X i = x_as_int(e, f32), rounded = round_16(e, i);
    return upper_half(e, x_select(e, x_isnan(e, f32), quiet(e, i), rounded));
}

/* Of an integer. */
static X narrow_integer(E *e, DType dtype, X f32) { return dtype == DT_F16 ? x_f32tof16(e, f32, SC_I16) : x_f32tobf16(e, f32, SC_I16); }

X x_narrow_exact(E *e, DType dtype, X f32) { return dtype == DT_F16 ? x_f32tof16(e, f32, SC_I16) : upper_half(e, x_as_int(e, f32)); }

/* v without its bits below `bit`, which that one stands for. */
static X odd_at(E *e, X v, int bit)
{
    uint64_t below = ((uint64_t)1 << bit) - 1, all = stype_bits[x_type(e, v)] == 64 ? UINT64_MAX : UINT32_MAX;
    X carry = x_add_bits(e, x_and_bits(e, v, below), below); /* `bit`: something is lost */
    return x_and_bits(e, x_or(e, v, carry), all & ~below);
}

/* F64 to F32 for f16, rounded to odd: 20 of the 52 bits and a sticky one are more than f16 has, and F32 holds them where f16 has any. */
static X odd_f32_for_f16(E *e, X d) { return x_fptrunc(e, x_as_float(e, x_sticky(e, x_as_int(e, d))), SC_F32); }

/*
 * F64 to F32 for bf16, rounded to odd two bits behind those of bf16. F32 holds that, or it is so small that it is 0 in bf16, which has a tie at
 * 2^-134: ten bits from 2^-140 on are all above 2^-150.
 */
static X odd_f32_for_bf16(E *e, X d)
{
    enum { F64_DIGITS = 52, DIGITS = 7, MORE = 2 };
    return x_fptrunc(e, x_as_float(e, odd_at(e, x_as_int(e, d), F64_DIGITS - DIGITS - MORE)), SC_F32);
}

/* I64 of either sign to F32, rounded to odd at 24 bits: the top bits, a sticky last one, and a power of two. */
static X odd_f32_of_int(E *e, X v, bool is_signed)
{
    X zero = x_like(e, v, 0);
    X negative = is_signed ? x_slt(e, v, zero) : x_bits(e, SC_I1, 0);
    X u = is_signed ? x_select(e, negative, x_sub(e, zero, v), v) : v;
    X zeros = x_ctlz(e, u), forty = x_like(e, v, 40);
    X drop = x_select(e, x_ult(e, zeros, forty), x_sub(e, forty, zeros), zero);
    X top = x_lshr(e, u, drop);
    X lost = x_ine(e, x_shl(e, top, drop), u);
    top = x_or(e, top, x_zext(e, lost, SC_I64));
    X f = x_sitofp(e, x_itrunc(e, top, SC_I32), SC_F32);
    X exponent = x_add_bits(e, x_itrunc(e, drop, SC_I32), 127);
    f = x_mul(e, f, x_as_float(e, x_shl_n(e, exponent, 23)));
    return is_signed ? x_select(e, negative, x_fneg(e, f), f) : f;
}

/* I32 of either sign to F32, rounded to odd at 16 bits or more: from 2^24 on without its low byte, which the lowest bit left stands for. */
static X odd_f32_of_int32(E *e, X v, bool is_signed)
{
    X offset = is_signed ? x_add_bits(e, v, 1 << 24) : v;
    X large = x_ine(e, x_and_bits(e, offset, is_signed ? 0xfe000000 : 0xff000000), x_like(e, v, 0));
    x_cold_begin(e, large);
    X odd = odd_at(e, v, 8);
    x_cold_end(e);
    X top = x_select(e, large, odd, v);
    return is_signed ? x_sitofp(e, top, SC_F32) : x_uitofp(e, top, SC_F32);
}

/* ---- the cases ---- */

static SType scalar_of(DType t) { return (SType)dtype_info[t].scalar; }

static X int_to_int(E *e, X v, DType from, DType to)
{
    SType have = scalar_of(from), want = scalar_of(to);
    if (stype_bits[have] == stype_bits[want])
        return v;
    if (stype_bits[have] > stype_bits[want])
        return x_itrunc(e, v, want);
    return dtype_kind(from) == DK_INT ? x_sext(e, v, want) : x_zext(e, v, want);
}

static X int_to_float(E *e, X v, DType from, DType to)
{
    bool is_signed = dtype_kind(from) == DK_INT;
    if (to == DT_F32 || to == DT_F64)
        return is_signed ? x_sitofp(e, v, scalar_of(to)) : x_uitofp(e, v, scalar_of(to));
    if (dtype_bytes(from) == 1) /* both hold it, or f16 does */
        return x_narrow_exact(e, to, is_signed ? x_sitofp(e, v, SC_F32) : x_uitofp(e, v, SC_F32));
    if (dtype_bytes(from) == 2) /* f32 holds it */
        return narrow_integer(e, to, is_signed ? x_sitofp(e, v, SC_F32) : x_uitofp(e, v, SC_F32));
    if (dtype_bytes(from) == 4)
        return narrow_integer(e, to, odd_f32_of_int32(e, v, is_signed));
    X low = x_itrunc(e, v, SC_I32), wide = x_ine(e, is_signed ? x_sext(e, low, SC_I64) : x_zext(e, low, SC_I64), v);
    x_cold_begin(e, wide);
    X any = odd_f32_of_int(e, v, is_signed);
    x_cold_end(e);
    return narrow_integer(e, to, x_select(e, wide, any, odd_f32_of_int32(e, low, is_signed)));
}

/* f is F32 or F64. 2^digits, exact, bounds the range; the largest float below it is in range. */
static X float_to_unsigned(E *e, X f, SType want)
{
    SType through = stype_bits[want] < 32 ? SC_I32 : want;
    X limit = x_like(e, f, ldexp(1, (int)stype_bits[want])), zero = x_like(e, f, 0);
    X in_range = x_select(e, x_and(e, x_fle(e, zero, f), x_flt(e, f, limit)), f, zero); /* NaN: 0 */
    X i = through == want ? x_fptoui(e, in_range, through) : x_itrunc(e, x_fptosi(e, in_range, through), want);
    return x_select(e, x_fle(e, limit, f), x_bits(e, want, UINT64_MAX >> (64 - stype_bits[want])), i);
}

static X float_to_signed(E *e, X f, SType want)
{
    SType through = stype_bits[want] < 32 ? SC_I32 : want;
    uint64_t most = UINT64_MAX >> (65 - stype_bits[want]);
    X limit = x_like(e, f, ldexp(1, (int)stype_bits[want] - 1));
    X beyond = x_not(e, x_flt(e, x_fabs(e, f), limit)); /* and NaN */
    X i = x_fptosi(e, f, through);
    if (through != want)
        i = x_itrunc(e, i, want);
    x_cold_begin(e, beyond);
    X end = x_select(e, x_flt(e, f, x_like(e, f, 0)), x_bits(e, want, most + 1), x_bits(e, want, most));
    end = x_select(e, x_isnan(e, f), x_bits(e, want, 0), end);
    x_cold_end(e);
    return x_select(e, beyond, end, i);
}

/*
 * Rounded to the nearest f32, then to the nearest bf16: wrong only where that f32 lies halfway between two bf16. There the value is rounded to
 * odd, and to even where it is halfway itself; everywhere else half is added. Few values are like that, but for odd integers from 257 on; where
 * all are, it takes 1.5 times as long on AMD's Zen 5, 1.9 times on Zen 4.
 */
static X f64_to_bf16(E *e, X d)
{
    X f = x_fptrunc(e, d, SC_F32), i = x_as_int(e, f);
    X half = x_bits(e, SC_I32, 0x8000), halfway = x_ieq(e, x_and_bits(e, i, 0xffff), half), nan = x_isnan(e, f),
      rare = x_or(e, halfway, nan);
    x_cold_begin(e, rare);
    X odd = x_select(e, nan, quiet(e, i), round_16(e, x_as_int(e, odd_f32_for_bf16(e, d))));
    x_cold_end(e);
    return upper_half(e, x_select(e, rare, odd, x_add(e, i, half)));
}

static X float_to_float(E *e, X f, DType to)
{
    SType have = x_type(e, f);
    if (have == SC_F64 && to == DT_BF16)
        return f64_to_bf16(e, f);
    if (dtype_is_half(to))
        return x_narrow(e, to, have == SC_F64 ? odd_f32_for_f16(e, f) : f);
    if (scalar_of(to) == have)
        return f;
    return have == SC_F64 ? x_fptrunc(e, f, SC_F32) : x_fpext(e, f, SC_F64);
}

static X from_bool(E *e, X b, DType to)
{
    if (dtype_is_int(to))
        return x_zext(e, b, scalar_of(to));
    uint64_t one = scalar_from_int(to, 1);
    return x_select(e, b, x_bits(e, scalar_of(to), one), x_bits(e, scalar_of(to), 0));
}

EXPAND(CAST)
{
    DType from = e->in[0], to = e->out;
    if (from == to)
        return x[0];
    if (from == DT_BOOL)
        return from_bool(e, x[0], to);
    if (dtype_is_int(from)) {
        if (to == DT_BOOL)
            return x_ine(e, x[0], x_like(e, x[0], 0));
        return dtype_is_int(to) ? int_to_int(e, x[0], from, to) : int_to_float(e, x[0], from, to);
    }
    X f = dtype_is_half(from) ? x_widen(e, from, x[0]) : x[0];
    if (to == DT_BOOL)
        return x_fne(e, f, x_like(e, f, 0));
    if (!dtype_is_int(to))
        return float_to_float(e, f, to);
    return dtype_kind(to) == DK_UINT ? float_to_unsigned(e, f, scalar_of(to)) : float_to_signed(e, f, scalar_of(to));
}

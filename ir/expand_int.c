/*
 * Integer ops that need care: division (by zero: 0; least / -1 wraps), powers, shifts by any amount, random bits.
 *
 * What must hold: SDIV, UDIV and shifts get operands for which they are defined, in every lane.
 */
#include "ir/expand.h"
#include "ir/expand_float.h"

static bool is_signed(const E *e) { return dtype_kind(e->in[0]) == DK_INT; }

typedef struct Division {
    X quotient, rest; /* toward zero; both 0 for a divisor of 0 */
} Division;

static Division divide(E *e, X a, X b)
{
    X zero = x_like(e, a, 0), one = x_like(e, a, 1);
    X by_zero = x_ieq(e, b, zero);
    X bad = by_zero;
    if (is_signed(e)) {
        X least = x_bits(e, x_type(e, a), UINT64_C(1) << (stype_bits[x_type(e, a)] - 1));
        X wraps = x_and(e, x_ieq(e, a, least), x_ieq(e, b, x_like(e, b, -1)));
        bad = x_or(e, by_zero, wraps); /* least / 1 is what least / -1 wraps to */
    }
    X d = x_select(e, bad, one, b);
    X q = is_signed(e) ? x_sdiv(e, a, d) : x_udiv(e, a, d);
    X r = x_sub(e, a, x_mul(e, q, d));
    return (Division){x_select(e, by_zero, zero, q), x_select(e, by_zero, zero, r)};
}

/* The rest is not 0 and its sign is not the divisor's: floor division is one less. */
static X floor_differs(E *e, X rest, X b)
{
    X zero = x_like(e, rest, 0);
    return x_and(e, x_ine(e, rest, zero), x_slt(e, x_xor(e, rest, b), zero));
}

EXPAND(FLOORDIV)
{
    if (dtype_is_float(e->in[0]))
        return float_floordiv(e, x[0], x[1]);
    Division d = divide(e, x[0], x[1]);
    if (!is_signed(e))
        return d.quotient;
    return x_select(e, floor_differs(e, d.rest, x[1]), x_sub(e, d.quotient, x_like(e, x[0], 1)), d.quotient);
}

EXPAND(REM)
{
    if (dtype_is_float(e->in[0]))
        return float_rem(e, x[0], x[1]);
    Division d = divide(e, x[0], x[1]);
    if (!is_signed(e))
        return d.rest;
    return x_select(e, floor_differs(e, d.rest, x[1]), x_add(e, d.rest, x[1]), d.rest);
}

EXPAND(FMOD) { return dtype_is_float(e->in[0]) ? float_fmod(e, x[0], x[1]) : divide(e, x[0], x[1]).rest; }

/* Multiplies r by base^(bits [from, to) of exponent), squaring base on the way. */
static void power_steps(E *e, X *r, X *base, X exponent, int from, int to)
{
    X zero = x_like(e, exponent, 0);
    for (int i = from; i < to; i++) {
        X bit = x_and_bits(e, exponent, UINT64_C(1) << i);
        *r = x_select(e, x_ine(e, bit, zero), x_mul(e, *r, *base), *r);
        if (i + 1 < to)
            *base = x_mul(e, *base, *base);
    }
}

/* By squaring, wrapping. Exponents of 256 and more are rare. Below 0: of 1 and -1 a power of theirs, else 0. */
static X int_pow(E *e, X a, X n)
{
    enum { COMMON = 8 };
    int width = stype_bits[x_type(e, a)];
    X one = x_like(e, a, 1), zero = x_like(e, a, 0);
    X r = one, base = a;
    power_steps(e, &r, &base, n, 0, COMMON < width ? COMMON : width);
    if (width > COMMON) {
        X large = x_ult(e, x_like(e, n, (1 << COMMON) - 1), n);
        x_cold_begin(e, large);
        X wide = r, square = x_mul(e, base, base);
        power_steps(e, &wide, &square, n, COMMON, width);
        x_cold_end(e);
        r = x_select(e, large, wide, r);
    }
    if (!is_signed(e))
        return r;
    X minus = x_like(e, a, -1);
    X odd = x_ine(e, x_and_bits(e, n, 1), zero);
    X inverse = x_select(e, x_ieq(e, a, one), one, zero);
    inverse = x_select(e, x_ieq(e, a, minus), x_select(e, odd, minus, one), inverse);
    return x_select(e, x_slt(e, n, zero), inverse, r);
}

EXPAND(POW) { return dtype_is_float(e->in[0]) ? float_pow(e, x[0], x[1]) : int_pow(e, x[0], x[1]); }

/* The amount is taken as unsigned, so a negative one is too wide as well. */
static X fits(E *e, X amount) { return x_ult(e, amount, x_like(e, amount, stype_bits[x_type(e, amount)])); }

EXPAND(SHL)
{
    X zero = x_like(e, x[0], 0), ok = fits(e, x[1]);
    return x_select(e, ok, x_shl(e, x[0], x_select(e, ok, x[1], zero)), zero);
}

EXPAND(SHR)
{
    X zero = x_like(e, x[0], 0), ok = fits(e, x[1]);
    if (is_signed(e)) {
        X widest = x_like(e, x[0], stype_bits[x_type(e, x[0])] - 1);
        return x_ashr(e, x[0], x_select(e, ok, x[1], widest));
    }
    return x_select(e, ok, x_lshr(e, x[0], x_select(e, ok, x[1], zero)), zero);
}

static X rotate_left(E *e, X a, int n) { return x_or(e, x_shl_n(e, a, n), x_lshr_n(e, a, 32 - n)); }

/*
 * Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).
 * Word 0 of counter, key and result is the low half.
 */
EXPAND(THREEFRY)
{
    static const uint8_t rotation[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    X key[3], word[2];
    for (int i = 0; i < 2; i++) {
        word[i] = x_itrunc(e, i ? x_lshr_n(e, x[0], 32) : x[0], SC_I32);
        key[i] = x_itrunc(e, i ? x_lshr_n(e, x[1], 32) : x[1], SC_I32);
    }
    key[2] = x_xor_bits(e, x_xor(e, key[0], key[1]), UINT64_C(0x1bd11bda));
    word[0] = x_add(e, word[0], key[0]);
    word[1] = x_add(e, word[1], key[1]);
    for (int group = 0; group < 5; group++) {
        for (int i = 0; i < 4; i++) {
            word[0] = x_add(e, word[0], word[1]);
            word[1] = x_xor(e, rotate_left(e, word[1], rotation[group % 2][i]), word[0]);
        }
        word[0] = x_add(e, word[0], key[(group + 1) % 3]);
        word[1] = x_add_bits(e, x_add(e, word[1], key[(group + 2) % 3]), (uint64_t)group + 1);
    }
    return x_or(e, x_zext(e, word[0], SC_I64), x_shl_n(e, x_zext(e, word[1], SC_I64), 32));
}

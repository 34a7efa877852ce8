/*
 * Tables of the scalar machine, and single elements of every dtype.
 *
 * The conversions here say in plain C what the CAST tapes say in scalar ops (a test compares the two); they exist
 * because making a scalar must not fail for lack of memory.
 */
#include "ir/scalar.h"
#include "ir/tape_run.h"

#include <math.h>
#include <string.h>

const ScalarOpInfo scalar_op_info[SOP_COUNT] = {
#define RESULT_SAME 0
#define RESULT_I1 1
#define RESULT_OWN 2
#define SCALAR_OP(id, text, arity, result) {text, arity, RESULT_##result},
#include "ir/scalar.def"
#undef SCALAR_OP
};

const double lookup_table[TABLE_COUNT][LOOKUP_ENTRIES] = {
#define LOOKUP(id, ...) {__VA_ARGS__},
#include "ir/lookup.def"
#undef LOOKUP
};

const double row_table[ROW_COUNT][ROW_COLUMNS] = {
#define ROW(...) {__VA_ARGS__},
#include "ir/two_over_pi.def"
#undef ROW
};

const uint8_t stype_bits[STYPE_COUNT] = {1, 8, 16, 32, 64, 32, 64};

/* ---- single elements ---- */

uint64_t scalar_least_int(DType t) { return t == DT_BOOL || dtype_kind(t) == DK_UINT ? 0 : UINT64_C(1) << (dtype_bytes(t) * 8 - 1); }

uint64_t scalar_greatest_int(DType t)
{
    if (t == DT_BOOL)
        return 1;
    uint64_t all = UINT64_MAX >> (64 - dtype_bytes(t) * 8);
    return dtype_kind(t) == DK_UINT ? all : all >> 1;
}

uint64_t scalar_load(DType dtype, const void *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, dtype_bytes(dtype)); /* little endian */
    return bits;
}

void scalar_store(DType dtype, uint64_t bits, void *at) { memcpy(at, &bits, dtype_bytes(dtype)); }

static uint64_t mask_to(DType t, uint64_t bits) { return bits & (UINT64_MAX >> (64 - dtype_bytes(t) * 8)); }

static uint64_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint64_t f64_bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

/* An f32 from which a shorter format rounds once: inexact values have the last bit set (round to odd). */
static float odd_float(double d)
{
    float f = (float)d;
    if (isnan(d) || (double)f == d)
        return f;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (fabs((double)f) > fabs(d))
        u--;
    u |= 1;
    memcpy(&f, &u, sizeof f);
    return f;
}

static double to_double(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

uint64_t scalar_from_double(DType dtype, double v)
{
    switch (dtype) {
    case DT_BOOL: return v != 0;
    case DT_F16: return half_from_float(odd_float(v));
    case DT_BF16: return bhalf_from_float(odd_float(v));
    case DT_F32: return f32_bits((float)v);
    case DT_F64: return f64_bits(v);
    default: break;
    }
    if (isnan(v))
        return 0;
    /* 2^bits, an exact double, bounds from above; what is below it and above the least value fits */
    bool is_unsigned = dtype_kind(dtype) == DK_UINT;
    double above = ldexp(1, (int)dtype_bytes(dtype) * 8 - !is_unsigned);
    if (v >= above)
        return scalar_greatest_int(dtype);
    if (is_unsigned)
        return v <= 0 ? 0 : (uint64_t)v;
    return v <= -above ? scalar_least_int(dtype) : mask_to(dtype, (uint64_t)(int64_t)v);
}

/* The nearest-even float of `digits` bits (its exponent range not minded) of an integer. */
static double round_int(bool negative, uint64_t u, int digits)
{
    int drop = u ? 64 - __builtin_clzll(u) - digits : 0;
    if (drop > 0) {
        uint64_t unit = UINT64_C(1) << drop, rest = u & (unit - 1), half = unit >> 1;
        u >>= drop;
        u += rest > half || (rest == half && (u & 1));
    } else {
        drop = 0;
    }
    double d = ldexp((double)u, drop);
    return negative ? -d : d;
}

uint64_t scalar_from_int(DType dtype, int64_t v)
{
    bool negative = v < 0;
    uint64_t u = negative ? UINT64_C(0) - (uint64_t)v : (uint64_t)v;
    switch (dtype) {
    case DT_BOOL: return v != 0;
    case DT_F16: return half_from_float((float)round_int(negative, u, 11));
    case DT_BF16: return bhalf_from_float((float)round_int(negative, u, 8));
    case DT_F32: return f32_bits((float)v);
    case DT_F64: return f64_bits((double)v);
    default: return mask_to(dtype, (uint64_t)v);
    }
}

double scalar_to_double(DType dtype, uint64_t bits)
{
    switch (dtype) {
    case DT_F16: return (double)half_to_float((uint16_t)bits);
    case DT_BF16: return (double)bhalf_to_float((uint16_t)bits);
    case DT_F32: {
        uint32_t u = (uint32_t)bits;
        float f;
        memcpy(&f, &u, sizeof f);
        return (double)f;
    }
    case DT_F64: return to_double(bits);
    case DT_U64: return (double)bits;
    default: return (double)scalar_to_int(dtype, bits);
    }
}

int64_t scalar_to_int(DType dtype, uint64_t bits)
{
    if (dtype_is_float(dtype))
        return (int64_t)scalar_from_double(DT_I64, scalar_to_double(dtype, bits));
    unsigned unused = 64 - (unsigned)dtype_bytes(dtype) * 8;
    if (dtype_kind(dtype) == DK_INT)
        return (int64_t)(bits << unused) >> unused;
    return (int64_t)bits;
}

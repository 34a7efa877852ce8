/* See compare.h. Leaves out: signalling NaN as such (random bits contain them; they count as NaN). */
#include "tests/support/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- numbers at random ---------------------------------------------------------------------------------------------- */

uint64_t rng_next(Rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t rng_below(Rng *rng, int64_t n) { return (int64_t)(rng_next(rng) % (uint64_t)n); }

int64_t rng_between(Rng *rng, int64_t low, int64_t high) { return low + rng_below(rng, high - low + 1); }

bool rng_chance(Rng *rng, int percent) { return rng_below(rng, 100) < percent; }

/* --- dtypes --------------------------------------------------------------------------------------------------------- */

bool dtype_is_float(kiln_dtype dtype) { return dtype >= KILN_F16; }

bool dtype_is_signed(kiln_dtype dtype) { return dtype >= KILN_I8 && dtype <= KILN_I64; }

static uint64_t load_bits(kiln_dtype dtype, const void *data, int64_t i)
{
    uint64_t bits = 0;
    size_t size = kiln_dtype_size(dtype);
    memcpy(&bits, (const char *)data + (size_t)i * size, size); /* little-endian */
    return bits;
}

static void store_bits(kiln_dtype dtype, uint64_t bits, void *data, int64_t i)
{
    size_t size = kiln_dtype_size(dtype);
    memcpy((char *)data + (size_t)i * size, &bits, size);
}

static double float_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static double half_to_double(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
    double magnitude;
    if (exponent == 31)
        magnitude = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent)
        magnitude = ldexp(1024 + mantissa, exponent - 25);
    else
        magnitude = ldexp(mantissa, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* Rounds to `mantissa` stored bits with the least exponent `least` (of the smallest normal number), to nearest even. */
static double round_to_format(double value, int mantissa, int least)
{
    if (value == 0 || !isfinite(value))
        return value;
    int exponent = ilogb(value);
    if (exponent < least)
        exponent = least;
    return ldexp(nearbyint(ldexp(value, mantissa - exponent)), exponent - mantissa);
}

static uint64_t half_from_double(double value)
{
    uint64_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return sign | 0x7e00;
    double magnitude = fabs(round_to_format(value, 10, -14));
    if (magnitude >= 65536)
        return sign | 0x7c00;
    if (magnitude < ldexp(1, -14))
        return sign | (uint64_t)ldexp(magnitude, 24);
    int exponent = ilogb(magnitude);
    return sign | (uint64_t)(exponent + 15) << 10 | ((uint64_t)ldexp(magnitude, 10 - exponent) & 1023);
}

static uint64_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

double value_as_double(kiln_dtype dtype, const void *data, int64_t i)
{
    uint64_t bits = load_bits(dtype, data, i);
    double d;
    switch (dtype) {
    case KILN_BOOL:
    case KILN_U8:
    case KILN_U16:
    case KILN_U32:
    case KILN_U64: return (double)bits;
    case KILN_I8: return (double)(int8_t)bits;
    case KILN_I16: return (double)(int16_t)bits;
    case KILN_I32: return (double)(int32_t)bits;
    case KILN_I64: return (double)(int64_t)bits;
    case KILN_F16: return half_to_double((uint32_t)bits);
    case KILN_BF16: return float_from_bits((uint32_t)bits << 16);
    case KILN_F32: return float_from_bits((uint32_t)bits);
    case KILN_F64: break;
    }
    memcpy(&d, &bits, sizeof d);
    return d;
}

void value_from_double(kiln_dtype dtype, double value, void *data, int64_t i)
{
    uint64_t bits = 0;
    if (dtype == KILN_F64)
        memcpy(&bits, &value, sizeof bits);
    else if (dtype == KILN_F32)
        bits = f32_bits((float)value);
    else if (dtype == KILN_BF16)
        bits = isnan(value) ? 0x7fc0 : f32_bits((float)round_to_format(value, 7, -126)) >> 16;
    else
        bits = half_from_double(value);
    store_bits(dtype, bits, data, i);
}

const char *value_text(kiln_dtype dtype, const void *data, int64_t i, char text[64])
{
    if (i < 0) {
        text[0] = 0;
        return text;
    }
    uint64_t bits = load_bits(dtype, data, i);
    int digits = 2 * (int)kiln_dtype_size(dtype);
    if (dtype_is_float(dtype))
        snprintf(text, 64, "%.17g (0x%0*" PRIx64 ")", value_as_double(dtype, data, i), digits, bits);
    else if (dtype_is_signed(dtype)) {
        int shift = 64 - 4 * digits;
        snprintf(text, 64, "%" PRId64, (int64_t)(bits << shift) >> shift);
    } else
        snprintf(text, 64, "%" PRIu64, bits);
    return text;
}

/* --- shapes --------------------------------------------------------------------------------------------------------- */

int64_t shape_elements(kiln_shape shape)
{
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++)
        n *= shape.dim[i];
    return n;
}

bool shape_equal(kiln_shape a, kiln_shape b)
{
    if (a.rank != b.rank)
        return false;
    for (int i = 0; i < a.rank; i++)
        if (a.dim[i] != b.dim[i])
            return false;
    return true;
}

const char *shape_text(kiln_dtype dtype, kiln_shape shape, char text[96])
{
    int n = snprintf(text, 96, "%s[", kiln_dtype_name(dtype));
    for (int i = 0; i < shape.rank && n < 80; i++)
        n += snprintf(text + n, 96 - (size_t)n, "%s%" PRId64, i ? "," : "", shape.dim[i]);
    snprintf(text + n, 96 - (size_t)n, "]");
    return text;
}

/* --- values --------------------------------------------------------------------------------------------------------- */

/* Values at which functions change their behaviour. What a dtype cannot hold is rounded. */
static const double float_specials[] = {0.0,
                                        -0.0,
                                        1.0,
                                        -1.0,
                                        0.5,
                                        -0.5,
                                        2.0,
                                        -2.0,
                                        3.0,
                                        1.5,
                                        -1.5,
                                        2.5,
                                        -2.5,
                                        INFINITY,
                                        -INFINITY,
                                        NAN,
                                        0.1,
                                        -0.1,
                                        1e-3,
                                        -1e-5,
                                        1e-10,
                                        1e-20,
                                        1e-38,
                                        1e-45,
                                        -1e-45,
                                        1e-300,
                                        1e10,
                                        -1e10,
                                        1e20,
                                        1e30,
                                        -3e38,
                                        1e300,
                                        -1e300,
                                        65504.0,
                                        65520.0,
                                        -70000.0,
                                        6e-8,
                                        -6e-8,
                                        6.1e-5,
                                        3.14159265358979,
                                        1.5707963267949,
                                        0.7853981633974,
                                        88.7,
                                        88.73,
                                        -87.4,
                                        -103.98,
                                        709.78,
                                        -745.2,
                                        127.0,
                                        128.0,
                                        -126.5,
                                        -149.0,
                                        1023.5,
                                        0.99999994,
                                        1.0000001,
                                        -0.99999994,
                                        2147483647.0,
                                        2147483648.0,
                                        -2147483648.0,
                                        -2147483904.0,
                                        4294967295.0,
                                        9223372036854775808.0,
                                        -9223372036854775808.0,
                                        18446744073709551616.0,
                                        255.0,
                                        256.0,
                                        32767.5,
                                        32768.0,
                                        -32769.0,
                                        16777216.0,
                                        16777217.0,
                                        8388607.5,
                                        4503599627370497.5,
                                        1e5,
                                        105615.0,
                                        2.7182818284590452,
                                        20.0,
                                        -20.0,
                                        9.0,
                                        -9.0,
                                        0.6931471805599453,
                                        4.9e-324,
                                        2.2250738585072014e-308,
                                        1.17549435e-38,
                                        1.17549421e-38,
                                        3.40282347e38,
                                        1.7976931348623157e308};
enum { FLOAT_SPECIALS = sizeof float_specials / sizeof *float_specials };

int64_t special_floats(const double **values)
{
    *values = float_specials;
    return FLOAT_SPECIALS;
}

static uint64_t special_bits(kiln_dtype dtype, Rng *rng)
{
    uint64_t bits = 0;
    int width = 8 * (int)kiln_dtype_size(dtype);
    if (dtype_is_float(dtype)) {
        value_from_double(dtype, float_specials[rng_below(rng, FLOAT_SPECIALS)], &bits, 0);
        return bits;
    }
    static const int64_t near_zero[] = {0, 1, -1, 2, -2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, -7, -8, -64, 100};
    uint64_t top = (uint64_t)1 << (width - 1);
    switch (rng_below(rng, 6)) {
    case 0: return top;     /* least signed */
    case 1: return top - 1; /* greatest signed */
    case 2: return top + 1;
    case 3: return UINT64_MAX - (uint64_t)rng_below(rng, 2); /* greatest unsigned */
    default: return (uint64_t)near_zero[rng_below(rng, sizeof near_zero / sizeof *near_zero)];
    }
}

static uint64_t plain_bits(kiln_dtype dtype, Rng *rng)
{
    uint64_t bits = 0;
    if (dtype_is_float(dtype))
        value_from_double(dtype, (double)rng_between(rng, -(1 << 22), (1 << 22) - 1) / (1 << 20), &bits, 0);
    else
        bits = (uint64_t)rng_between(rng, dtype_is_signed(dtype) ? -9 : 0, 9);
    return bits;
}

static uint64_t wide_bits(kiln_dtype dtype, Rng *rng)
{
    static const int exponents[] = {[KILN_F16] = 14, [KILN_BF16] = 120, [KILN_F32] = 120, [KILN_F64] = 1000};
    if (!dtype_is_float(dtype))
        return rng_next(rng) >> rng_below(rng, 64);
    uint64_t bits = 0;
    double mantissa = 1 + (double)(rng_next(rng) >> 12) / 4503599627370496.0;
    int exponent = (int)rng_between(rng, -exponents[dtype], exponents[dtype]);
    value_from_double(dtype, ldexp(rng_chance(rng, 50) ? mantissa : -mantissa, exponent), &bits, 0);
    return bits;
}

static uint64_t tie_bits(kiln_dtype dtype, Rng *rng)
{
    static const double few[] = {0.0, -0.0, 1.0, -1.0, 2.0, NAN, INFINITY, -INFINITY, 1.5, 3.0};
    uint64_t bits = 0;
    if (dtype_is_float(dtype))
        value_from_double(dtype, few[rng_below(rng, 10)], &bits, 0);
    else
        bits = (uint64_t)rng_below(rng, 4) << (rng_chance(rng, 20) ? 5 : 0);
    return bits;
}

static uint64_t some_bits(kiln_dtype dtype, Values values, Rng *rng)
{
    switch (values) {
    case VALUES_MIX:
        switch (rng_below(rng, 4)) {
        case 0: return special_bits(dtype, rng);
        case 1: return plain_bits(dtype, rng);
        case 2: return wide_bits(dtype, rng);
        }
        return rng_next(rng);
    case VALUES_PLAIN: return plain_bits(dtype, rng);
    case VALUES_WIDE: return wide_bits(dtype, rng);
    case VALUES_SPARSE: return rng_below(rng, 97) == 0 ? special_bits(dtype, rng) : plain_bits(dtype, rng);
    case VALUES_TIES: return tie_bits(dtype, rng);
    case VALUES_INDEX: break;
    }
    return 0;
}

void values_fill(kiln_dtype dtype, Values values, int64_t limit, uint64_t seed, int64_t n, void *data)
{
    Rng rng = {seed * 0x2545f4914f6cdd1du + 17};
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits;
        if (values == VALUES_INDEX)
            bits = limit < 1 ? 0 : (uint64_t)rng_between(&rng, dtype_is_signed(dtype) ? -limit : 0, limit - 1);
        else
            bits = some_bits(dtype, values, &rng);
        if (dtype == KILN_BOOL)
            bits &= 1;
        store_bits(dtype, bits, data, i);
    }
}

/* --- comparison ----------------------------------------------------------------------------------------------------- */

static bool element_equal(kiln_dtype dtype, const void *a, const void *b, int64_t i, Tolerance tolerance)
{
    if (load_bits(dtype, a, i) == load_bits(dtype, b, i))
        return true;
    if (!dtype_is_float(dtype))
        return false;
    double x = value_as_double(dtype, a, i), y = value_as_double(dtype, b, i);
    if (isnan(x) || isnan(y))
        return isnan(x) && isnan(y);
    if (tolerance.relative == 0 && tolerance.absolute == 0)
        return false;
    return x == y || fabs(x - y) <= tolerance.relative * fmax(fabs(x), fabs(y)) + tolerance.absolute;
}

int64_t values_differ(kiln_dtype dtype, int64_t n, const void *a, const void *b, Tolerance tolerance)
{
    if (n == 0 || memcmp(a, b, (size_t)n * kiln_dtype_size(dtype)) == 0)
        return -1;
    for (int64_t i = 0; i < n; i++)
        if (!element_equal(dtype, a, b, i, tolerance))
            return i;
    return -1;
}

uint64_t values_hash(kiln_dtype dtype, int64_t n, const void *data)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a, an element at a time */
    bool is_float = dtype_is_float(dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = is_float && isnan(value_as_double(dtype, data, i)) ? UINT64_MAX : load_bits(dtype, data, i);
        hash = (hash ^ bits) * 1099511628211u;
    }
    return hash;
}

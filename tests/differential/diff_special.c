/*
 * Special values against definitions written here with C's own arithmetic and the long double functions of libm, not against
 * kiln's interpreter, which shares its definitions with compiled code: NaN, infinities, signed zeros, subnormals, overflow,
 * domain edges; all pairs of 8-bit ints, special pairs of the wider ones; casts. In interp and in jit mode.
 *
 * NaN must be NaN, an infinity the same infinity, a zero the same zero; other floats agree within a few units in the last place.
 * What must be exact has a tolerance of 0.
 */
#include "tests/differential/engine.h"
#include "tests/support/elementwise.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const modes[] = {"interp", "jit"};

/* --- float functions ---------------------------------------------------------------------------------------------------- */

typedef kiln_tensor *Unary(kiln_tensor *);
typedef kiln_tensor *Binary(kiln_tensor *, kiln_tensor *);

typedef struct FloatRow {
    Unary *unary;
    Binary *binary;
    long double (*one)(long double);
    long double (*two)(long double, long double);
    double ulps; /* allowed, beyond the rounding of the reference */
} FloatRow;

static long double ref_neg(long double x) { return -x; }
static long double ref_sign(long double x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; } /* as NumPy: +0 of -0 */
static long double ref_relu(long double x) { return x > 0 || isnan(x) ? x : 0; }
static long double ref_rsqrt(long double x) { return 1 / sqrtl(x); }
static long double ref_sigmoid(long double x) { return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-x)); }
static long double ref_softplus(long double x) { return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x)); }
static long double ref_round(long double x) { return rintl(x); }

/* Correctly rounded: in double, which serves f32 too (53 >= 2 * 24 + 2 bits), whereas long double would round twice. */
static long double ref_square(long double x) { return (double)x * (double)x; }
static long double ref_reciprocal(long double x) { return 1 / (double)x; }
static long double ref_sqrt(long double x) { return sqrt((double)x); }
static long double ref_add(long double a, long double b) { return (double)a + (double)b; }
static long double ref_sub(long double a, long double b) { return (double)a - (double)b; }
static long double ref_mul(long double a, long double b) { return (double)a * (double)b; }
static long double ref_div(long double a, long double b) { return (double)a / (double)b; }
/* glibc 2.36's powl gives inf for (-inf) to a large negative even number. */
static long double ref_pow(long double a, long double b) { return isinf(a) ? pow((double)a, (double)b) : powl(a, b); }
static long double ref_remainder(long double a, long double b)
{
    long double m = fmodl(a, b);
    if (m == 0)
        return copysignl(0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}
static long double ref_maximum(long double a, long double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    return a > b || (a == b && !signbit(a)) ? a : b;
}
static long double ref_minimum(long double a, long double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    return a < b || (a == b && signbit(a)) ? a : b;
}
static long double ref_logaddexp(long double a, long double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    long double most = fmaxl(a, b), least = fminl(a, b);
    return most == least ? most + logl(2) : most + log1pl(expl(least - most));
}

#define ONE(name, ref, ulps)                                                         \
    {                                                                                \
#name, group_unary, &(const FloatRow) { kiln_##name, NULL, ref, NULL, ulps } \
    }
#define TWO(name, ref, ulps)                                                          \
    {                                                                                 \
#name, group_binary, &(const FloatRow) { NULL, kiln_##name, NULL, ref, ulps } \
    }

/* The reference rounded to the dtype. */
static double rounded(kiln_dtype dtype, long double value) { return dtype == KILN_F32 ? (double)(float)value : (double)value; }

static bool agrees(kiln_dtype dtype, double got, long double reference, double ulps)
{
    double wanted = rounded(dtype, reference);
    double unit = dtype == KILN_F32 ? 0x1p-23 : 0x1p-52, least = dtype == KILN_F32 ? 0x1p-149 : 0x1p-1074;
    if (isnan(wanted) || isnan(got))
        return isnan(wanted) && isnan(got);
    if (wanted == 0 && ulps == 0)
        return got == 0 && signbit(got) == signbit(wanted);
    if (got == wanted)
        return got != 0 || signbit(got) == signbit(wanted);
    double most = dtype == KILN_F32 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
    double a = fmin(fmax(got, -most), most), b = fmin(fmax(wanted, -most), most); /* infinity next to the greatest is one unit */
    return fabs(a - b) <= ulps * fmax(unit * fabs(b), least);
}

/* Runs the function on n elements in both modes and compares. */
static void check_floats(const Group *g, kiln_dtype dtype, int64_t n, const void *x, const void *y)
{
    const FloatRow *row = g->row;
    for (int m = 0; m < 2; m++) {
        set_option("mode", modes[m]);
        set_option("math", "strict");
        if (!case_due(NULL))
            continue;
        Case c = {.op = g->name, .n_in = row->one ? 1 : 2};
        c.in[0] = c.in[1] = (Spec){dtype, {1, {n}}, VALUES_MIX, 0};
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *a = kiln_from(dtype, KILN_SHAPE(n), x), *b = y ? kiln_from(dtype, KILN_SHAPE(n), y) : NULL;
        char *got = malloc((size_t)n * 8);
        if (kiln_read(b ? row->binary(a, b) : row->unary(a), dtype, got, (size_t)n * kiln_dtype_size(dtype)) != KILN_OK)
            report(&c, modes[m], "%s", kiln_error_message());
        else
            for (int64_t i = 0; i < n; i++) {
                double value = value_as_double(dtype, got, i), p = value_as_double(dtype, x, i);
                double q = y ? value_as_double(dtype, y, i) : 0;
                long double wanted = y ? row->two(p, q) : row->one(p);
                if (!agrees(dtype, value, wanted, row->ulps))
                    report(&c, modes[m], "of %.17g and %.17g is %.17g, expected %.17g", p, q, value, rounded(dtype, wanted));
            }
        free(got);
        kiln_scope_end(scope);
    }
}

static void group_unary(const Group *g)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64};
    const double *special;
    int64_t n = special_floats(&special);
    for (int d = 0; d < 2; d++) {
        double x[256];
        for (int64_t i = 0; i < n; i++)
            value_from_double(dtypes[d], special[i], x, i);
        check_floats(g, dtypes[d], n, x, NULL);
    }
}

static void group_binary(const Group *g)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64};
    const double *special;
    int64_t n = special_floats(&special);
    for (int d = 0; d < 2; d++) {
        char *x = malloc((size_t)(n * n) * 8), *y = malloc((size_t)(n * n) * 8);
        for (int64_t i = 0; i < n * n; i++) {
            value_from_double(dtypes[d], special[i / n], x, i);
            value_from_double(dtypes[d], special[i % n], y, i);
        }
        check_floats(g, dtypes[d], n * n, x, y);
        free(x);
        free(y);
    }
}

/* --- ints: computed in 128 bits, then wrapped ------------------------------------------------------------------------------ */

typedef __int128 Wide;

typedef struct IntRow {
    Binary *f;
    Wide (*ref)(Wide a, Wide b, int width);
} IntRow;

static Wide int_add(Wide a, Wide b, int width) { return (void)width, a + b; }
static Wide int_sub(Wide a, Wide b, int width) { return (void)width, a - b; }
static Wide int_mul(Wide a, Wide b, int width) { return (void)width, (Wide)((unsigned __int128)a * (unsigned __int128)b); }
static Wide int_floor_divide(Wide a, Wide b, int width)
{
    (void)width;
    if (b == 0)
        return 0;
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}
static Wide int_remainder(Wide a, Wide b, int width)
{
    (void)width;
    if (b == 0)
        return 0;
    Wide m = a % b;
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
static Wide int_fmod(Wide a, Wide b, int width) { return (void)width, b == 0 ? 0 : a % b; }
static Wide int_pow(Wide a, Wide b, int width)
{
    (void)width;
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    unsigned __int128 result = 1, base = (unsigned __int128)a;
    for (Wide e = b; e > 0; e >>= 1, base *= base)
        if (e & 1)
            result *= base;
    return (Wide)result;
}
static Wide int_maximum(Wide a, Wide b, int width) { return (void)width, a > b ? a : b; }
static Wide int_minimum(Wide a, Wide b, int width) { return (void)width, a < b ? a : b; }
static Wide int_shift_left(Wide a, Wide b, int width) { return b < 0 || b >= width ? 0 : (Wide)((unsigned __int128)a << b); }
static Wide int_shift_right(Wide a, Wide b, int width) { return b < 0 || b >= width ? (a < 0 ? -1 : 0) : a >> b; }

static Wide load_int(kiln_dtype dtype, const void *data, int64_t i)
{
    uint64_t bits = 0;
    size_t size = kiln_dtype_size(dtype);
    memcpy(&bits, (const char *)data + (size_t)i * size, size);
    int shift = 64 - 8 * (int)size;
    return dtype_is_signed(dtype) ? (Wide)((int64_t)(bits << shift) >> shift) : (Wide)bits;
}

static void store_int(kiln_dtype dtype, Wide value, void *data, int64_t i)
{
    uint64_t bits = (uint64_t)value;
    memcpy((char *)data + (size_t)i * kiln_dtype_size(dtype), &bits, kiln_dtype_size(dtype));
}

/* Values for an int dtype: all of 8 bits, else its edges and what is near 0 and near the width. */
static int64_t int_grid(kiln_dtype dtype, Wide *out)
{
    int width = 8 * (int)kiln_dtype_size(dtype);
    Wide low = dtype_is_signed(dtype) ? -((Wide)1 << (width - 1)) : 0;
    Wide high = low + ((Wide)1 << width) - 1;
    int64_t n = 0;
    if (width == 8) {
        for (Wide v = low; v <= high; v++)
            out[n++] = v;
        return n;
    }
    for (Wide k = 0; k < 4; k++) {
        out[n++] = low + k;
        out[n++] = high - k;
        out[n++] = k;
        out[n++] = k + width - 2;
    }
    for (Wide k = -3; dtype_is_signed(dtype) && k < 0; k++)
        out[n++] = k;
    out[n++] = high / 2, out[n++] = high / 3, out[n++] = low / 2, out[n++] = 10, out[n++] = 181, out[n++] = 46341 & high;
    return n;
}

static void group_int(const Group *g)
{
    const IntRow *row = g->row;
    for (int d = KILN_I8; d <= KILN_U64; d++) {
        kiln_dtype dtype = (kiln_dtype)d;
        static Wide grid[256];
        int64_t n = int_grid(dtype, grid), all = n * n;
        size_t size = kiln_dtype_size(dtype), bytes = (size_t)all * size;
        char *x = malloc(3 * bytes), *y = x + bytes, *got = y + bytes, *wanted = malloc(bytes);
        for (int64_t i = 0; i < all; i++) {
            store_int(dtype, grid[i / n], x, i);
            store_int(dtype, grid[i % n], y, i);
            store_int(dtype, row->ref(grid[i / n], grid[i % n], 8 * (int)size), wanted, i);
        }
        for (int m = 0; m < 2; m++) {
            set_option("mode", modes[m]);
            if (!case_due(NULL))
                continue;
            Case c = {.op = g->name, .n_in = 2};
            c.in[0] = c.in[1] = (Spec){dtype, {1, {all}}, VALUES_MIX, 0};
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = kiln_from(dtype, KILN_SHAPE(all), x), *b = kiln_from(dtype, KILN_SHAPE(all), y);
            if (kiln_read(row->f(a, b), dtype, got, bytes) != KILN_OK)
                report(&c, modes[m], "%s", kiln_error_message());
            else
                for (int64_t i = 0; i < all; i++) {
                    char p[64], q[64], r[64], w[64];
                    if (load_int(dtype, got, i) != load_int(dtype, wanted, i))
                        report(&c, modes[m], "of %s and %s is %s, expected %s", value_text(dtype, x, i, p), value_text(dtype, y, i, q),
                               value_text(dtype, got, i, r), value_text(dtype, wanted, i, w));
                }
            kiln_scope_end(scope);
        }
        free(x);
        free(wanted);
    }
}

/* --- casts ---------------------------------------------------------------------------------------------------------------- */

/* A float to an int dtype: toward zero, saturating, NaN to 0. */
static Wide float_to_int(double value, kiln_dtype to)
{
    int width = 8 * (int)kiln_dtype_size(to);
    Wide low = dtype_is_signed(to) ? -((Wide)1 << (width - 1)) : 0, high = low + ((Wide)1 << width) - 1;
    if (isnan(value))
        return 0;
    if (value <= (double)low)
        return low;
    if (value >= ldexp(1, dtype_is_signed(to) ? width - 1 : width))
        return high;
    return (Wide)value;
}

static void check_cast(const Group *g, kiln_dtype from, kiln_dtype to, int64_t n, const void *x, const void *wanted)
{
    for (int m = 0; m < 2; m++) {
        set_option("mode", modes[m]);
        if (!case_due(NULL))
            continue;
        Case c = {.op = g->name, .n_in = 1, .arg = {to}};
        c.in[0] = (Spec){from, {1, {n}}, VALUES_MIX, 0};
        char *got = malloc((size_t)n * 8), a[64], b[64], w[64];
        kiln_scope *scope = kiln_scope_begin();
        if (kiln_read(kiln_cast(kiln_from(from, KILN_SHAPE(n), x), to), to, got, (size_t)n * kiln_dtype_size(to)) != KILN_OK)
            report(&c, modes[m], "%s", kiln_error_message());
        else
            for (int64_t i = 0, size = (int64_t)kiln_dtype_size(to); i < n; i++)
                if (values_differ(to, 1, got + i * size, (const char *)wanted + i * size, (Tolerance){0, 0}) >= 0)
                    report(&c, modes[m], "of %s to %s is %s, expected %s", value_text(from, x, i, a), kiln_dtype_name(to),
                           value_text(to, got, i, b), value_text(to, wanted, i, w));
        kiln_scope_end(scope);
        free(got);
    }
}

static void group_cast_floats(const Group *g)
{
    const double *special;
    int64_t n = special_floats(&special);
    for (int from = KILN_F16; from <= KILN_F64; from++)
        for (int to = 0; to <= KILN_F64; to++) {
            char x[8 * 256] = {0}, wanted[8 * 256] = {0};
            for (int64_t i = 0; i < n; i++) {
                value_from_double((kiln_dtype)from, special[i], x, i);
                double value = value_as_double((kiln_dtype)from, x, i);
                if (to == KILN_BOOL)
                    wanted[i] = value != 0;
                else if (dtype_is_float((kiln_dtype)to))
                    value_from_double((kiln_dtype)to, value, wanted, i);
                else
                    store_int((kiln_dtype)to, float_to_int(value, (kiln_dtype)to), wanted, i);
            }
            check_cast(g, (kiln_dtype)from, (kiln_dtype)to, n, x, wanted);
        }
}

static void group_cast_ints(const Group *g)
{
    for (int from = KILN_I8; from <= KILN_U64; from++)
        for (int to = 0; to <= KILN_F64; to++) {
            static Wide grid[256];
            char x[8 * 256] = {0}, wanted[8 * 256] = {0};
            int64_t n = int_grid((kiln_dtype)from, grid);
            if (to == KILN_F16 || to == KILN_BF16) /* rounded once, which C cannot do from 64 bits: small values only */
                for (int64_t i = 0; i < n; i++)
                    grid[i] = grid[i] > 2048 ? 2048 : grid[i] < -2048 ? -2048 : grid[i];
            for (int64_t i = 0; i < n; i++) {
                store_int((kiln_dtype)from, grid[i], x, i);
                float single = (float)grid[i];
                if (to == KILN_BOOL)
                    wanted[i] = grid[i] != 0;
                else if (to == KILN_F32)
                    memcpy(wanted + 4 * i, &single, 4);
                else if (dtype_is_float((kiln_dtype)to))
                    value_from_double((kiln_dtype)to, (double)grid[i], wanted, i);
                else
                    store_int((kiln_dtype)to, grid[i], wanted, i);
            }
            check_cast(g, (kiln_dtype)from, (kiln_dtype)to, n, x, wanted);
        }
}

/* The finite numbers of f16 or bf16 by their bits, and where the next one would be past the greatest. */
static double half_of(kiln_dtype to, int bits)
{
    const int digits = to == KILN_F16 ? 10 : 7, bias = to == KILN_F16 ? 15 : 127;
    int exponent = bits >> digits, fraction = bits & ((1 << digits) - 1);
    return exponent ? ldexp((1 << digits) + fraction, exponent - bias - digits) : ldexp(fraction, 1 - bias - digits);
}

/*
 * Halfway between any two neighbours, and close to that: what is below gives the one, what is above the other, halfway the even one. A second
 * rounding, to f32, would bring them there. Of both signs.
 */
static void group_cast_halfway(const Group *g)
{
    enum { NEAR = 6, MOST = 0x7f80 * NEAR };
    static const kiln_dtype from[] = {KILN_F64, KILN_I32, KILN_U32, KILN_I64, KILN_U64};
    uint64_t *x = malloc(MOST * sizeof *x);
    uint16_t *wanted = malloc(MOST * sizeof *wanted);
    for (int goal = 0; goal < 2; goal++)
        for (size_t f = 0; f < sizeof from / sizeof *from; f++) {
            const kiln_dtype to = goal ? KILN_BF16 : KILN_F16;
            const bool is_signed = from[f] == KILN_I32 || from[f] == KILN_I64;
            const int width = from[f] == KILN_I32 || from[f] == KILN_U32 ? 32 : 64;
            int64_t n = 0;
            for (int bits = 0; bits < (goal ? 0x7f80 : 0x7c00); bits++) {
                double half = (half_of(to, bits) + half_of(to, bits + 1)) / 2, most = ldexp(1, width - is_signed);
                const double near[NEAR] = {half * (1 - 0x1p-20),      nextafter(half, 0),   half,
                                           nextafter(half, INFINITY), half * (1 + 0x1p-33), half * (1 + 0x1p-20)};
                const bool below_zero = (is_signed || from[f] == KILN_F64) && bits % 4 < 2;
                for (int i = 0; i < NEAR && from[f] == KILN_F64; i++, n++) {
                    wanted[n] = (uint16_t)(bits + (i > 2 || (i == 2 && bits % 2)) + (below_zero ? 0x8000 : 0));
                    value_from_double(KILN_F64, below_zero ? -near[i] : near[i], x, n);
                }
                for (int i = -1; i < 2 && from[f] != KILN_F64 && half == floor(half) && half + 1 < most; i++, n++) {
                    wanted[n] = (uint16_t)(bits + (i > 0 || (i == 0 && bits % 2)) + (below_zero ? 0x8000 : 0));
                    store_int(from[f], below_zero ? -((Wide)half + i) : (Wide)half + i, x, n);
                }
            }
            check_cast(g, from[f], to, n, x, wanted);
        }
    free(x);
    free(wanted);
}

#define INT(name)                                                            \
    {                                                                        \
        "int_" #name, group_int, &(const IntRow) { kiln_##name, int_##name } \
    }

static const Group groups[] = {
    ONE(neg, ref_neg, 0),
    ONE(abs, fabsl, 0),
    ONE(sign, ref_sign, 0),
    ONE(square, ref_square, 0),
    ONE(floor, floorl, 0),
    ONE(ceil, ceill, 0),
    ONE(round, ref_round, 0),
    ONE(trunc, truncl, 0),
    ONE(relu, ref_relu, 0),
    ONE(reciprocal, ref_reciprocal, 0),
    ONE(sqrt, ref_sqrt, 0),
    ONE(rsqrt, ref_rsqrt, 2),
    ONE(exp, expl, 2),
    ONE(exp2, exp2l, 2),
    ONE(expm1, expm1l, 3),
    ONE(log, logl, 2),
    ONE(log2, log2l, 3),
    ONE(log10, log10l, 3),
    ONE(log1p, log1pl, 3),
    ONE(sin, sinl, 3),
    ONE(cos, cosl, 3),
    ONE(tan, tanl, 4),
    ONE(asin, asinl, 4),
    ONE(acos, acosl, 4),
    ONE(atan, atanl, 4),
    ONE(sinh, sinhl, 4),
    ONE(cosh, coshl, 4),
    ONE(tanh, tanhl, 4),
    ONE(asinh, asinhl, 4),
    ONE(acosh, acoshl, 4),
    ONE(atanh, atanhl, 4),
    ONE(erf, erfl, 4),
    ONE(erfc, erfcl, 5),
    ONE(sigmoid, ref_sigmoid, 4),
    ONE(softplus, ref_softplus, 4),
    TWO(add, ref_add, 0),
    TWO(sub, ref_sub, 0),
    TWO(mul, ref_mul, 0),
    TWO(div, ref_div, 0),
    TWO(fmod, fmodl, 0),
    TWO(remainder, ref_remainder, 1),
    TWO(maximum, ref_maximum, 0),
    TWO(minimum, ref_minimum, 0),
    TWO(pow, ref_pow, 4),
    TWO(atan2, atan2l, 4),
    TWO(hypot, hypotl, 2),
    TWO(logaddexp, ref_logaddexp, 8),
    TWO(copysign, copysignl, 0),
    INT(add),
    INT(sub),
    INT(mul),
    INT(floor_divide),
    INT(remainder),
    INT(fmod),
    INT(pow),
    INT(maximum),
    INT(minimum),
    INT(shift_left),
    INT(shift_right),
    {"cast_floats", group_cast_floats, NULL},
    {"cast_ints", group_cast_ints, NULL},
    {"cast_halfway", group_cast_halfway, NULL},
};

static bool has_row(const char *name)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strcmp(groups[i].name, name) == 0 || (strncmp(groups[i].name, "int_", 4) == 0 && strcmp(groups[i].name + 4, name) == 0))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    /* Comparisons and logic, which unit/test_scalar.c and api/test_elementwise.c hold against C; composites, of which the same is true. */
    static const char *const others[] = {"isnan",       "isinf",       "isfinite",   "signbit",     "logical_not", "bitwise_not",
                                         "nextafter",   "eq",          "ne",         "lt",          "le",          "gt",
                                         "ge",          "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
                                         "bitwise_xor", "positive",    "silu",       "gelu",        "gelu_tanh",   NULL};
    const char *missing = elementwise_without_row(has_row, others);
    if (missing)
        return printf("FAIL kiln_%s of tests/support/elementwise.def needs a row here, with a reference, or a place among the others, not "
                      "both\n",
                      missing),
               1;
    return run_groups("diff_special", groups, sizeof groups / sizeof *groups, argc, argv);
}

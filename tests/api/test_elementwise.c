/* Elementwise functions against libm and C's operators, their edge cases, where, clamp and cast. */
#include "api.h"
#include "tests/support/elementwise.h"

#include <limits.h>

/* ---- one operand ---- */

typedef struct Unary {
    const char *name;
    kiln_tensor *(*f)(kiln_tensor *);
    double (*reference)(double);
    double in[4];
} Unary;

static double neg(double x) { return -x; }
static double same(double x) { return x; }
static double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static double square(double x) { return x * x; }
static double reciprocal(double x) { return 1 / x; }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double relu(double x) { return x > 0 ? x : 0; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return x > 30 ? x : log1p(exp(x)); }
static double silu(double x) { return x * sigmoid(x); }
static double gelu(double x) { return x / 2 * (1 + erf(x / sqrt(2))); }
static double gelu_tanh(double x) { return x / 2 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }

static const Unary unary[] = {
    {"positive", kiln_positive, same, {-1.5, 0, 2, 3}},
    {"neg", kiln_neg, neg, {-1.5, 1, 2, 3}},
    {"abs", kiln_abs, fabs, {-1.5, 0, 2, -3}},
    {"sign", kiln_sign, sign, {-1.5, 0, 2, -3}},
    {"square", kiln_square, square, {-1.5, 0, 2, -3}},
    {"floor", kiln_floor, floor, {-1.5, 0.5, 2, -3.25}},
    {"ceil", kiln_ceil, ceil, {-1.5, 0.5, 2, -3.25}},
    {"round", kiln_round, rint, {-1.5, 0.5, 2.5, -3.25}},
    {"trunc", kiln_trunc, trunc, {-1.5, 0.5, 2, -3.25}},
    {"relu", kiln_relu, relu, {-1.5, 0, 2, 3}},
    {"reciprocal", kiln_reciprocal, reciprocal, {-1.5, 0.5, 2, 3}},
    {"sqrt", kiln_sqrt, sqrt, {0, 0.5, 2, 3}},
    {"rsqrt", kiln_rsqrt, rsqrt, {0.25, 0.5, 2, 3}},
    {"exp", kiln_exp, exp, {-1.5, 0, 2, 10}},
    {"exp2", kiln_exp2, exp2, {-1.5, 0, 2, 10}},
    {"expm1", kiln_expm1, expm1, {-1.5, 1e-6, 2, 10}},
    {"log", kiln_log, log, {0.1, 1, 2, 1000}},
    {"log2", kiln_log2, log2, {0.1, 1, 2, 1000}},
    {"log10", kiln_log10, log10, {0.1, 1, 2, 1000}},
    {"log1p", kiln_log1p, log1p, {-0.5, 1e-6, 2, 1000}},
    {"sin", kiln_sin, sin, {-1.5, 0, 2, 100}},
    {"cos", kiln_cos, cos, {-1.5, 0, 2, 100}},
    {"tan", kiln_tan, tan, {-1.5, 0, 2, 1}},
    {"asin", kiln_asin, asin, {-1, 0, 0.5, 0.9}},
    {"acos", kiln_acos, acos, {-1, 0, 0.5, 0.9}},
    {"atan", kiln_atan, atan, {-1.5, 0, 2, 100}},
    {"sinh", kiln_sinh, sinh, {-1.5, 0, 2, 5}},
    {"cosh", kiln_cosh, cosh, {-1.5, 0, 2, 5}},
    {"tanh", kiln_tanh, tanh, {-1.5, 0, 2, 30}},
    {"asinh", kiln_asinh, asinh, {-1.5, 0, 2, 100}},
    {"acosh", kiln_acosh, acosh, {1, 1.5, 2, 100}},
    {"atanh", kiln_atanh, atanh, {-0.5, 0, 0.9, 0.1}},
    {"erf", kiln_erf, erf, {-1.5, 0, 0.3, 4}},
    {"erfc", kiln_erfc, erfc, {-1.5, 0, 0.3, 4}},
    {"sigmoid", kiln_sigmoid, sigmoid, {-1.5, 0, 2, 30}},
    {"softplus", kiln_softplus, softplus, {-1.5, 0, 2, 100}},
    {"silu", kiln_silu, silu, {-1.5, 0, 2, 30}},
    {"gelu", kiln_gelu, gelu, {-1.5, 0, 2, 10}},
    {"gelu_tanh", kiln_gelu_tanh, gelu_tanh, {-1.5, 0, 2, 10}},
};

API_TEST(elementwise, unary_floats)
{
    static const struct {
        kiln_dtype dtype;
        double tolerance;
    } types[] = {{KILN_F32, 1e-6}, {KILN_F64, 1e-14}, {KILN_F16, 1.5e-3}, {KILN_BF16, 1.2e-2}};
    for (size_t k = 0; k < sizeof unary / sizeof *unary; k++)
        for (size_t t = 0; t < 4; t++) {
            const Unary *u = &unary[k];
            kiln_tensor *x = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(4), u->in), types[t].dtype);
            double in[4], want[4];
            cr_assert(kiln_read(kiln_cast(x, KILN_F64), KILN_F64, in, sizeof in) == KILN_OK);
            for (int i = 0; i < 4; i++)
                want[i] = u->reference(in[i]);
            cr_log_info("%s", u->name);
            expect((int)(1000 * k + t), u->f(x), types[t].dtype, KILN_SHAPE(4), types[t].tolerance, want, 4);
        }
}

API_TEST(elementwise, unary_ints)
{
    kiln_tensor *x = I32(KILN_SHAPE(3), -3, 0, 5);
    EXPECT(kiln_neg(x), KILN_I32, KILN_SHAPE(3), 0, 3, 0, -5);
    EXPECT(kiln_abs(x), KILN_I32, KILN_SHAPE(3), 0, 3, 0, 5);
    EXPECT(kiln_sign(x), KILN_I32, KILN_SHAPE(3), 0, -1, 0, 1);
    EXPECT(kiln_square(x), KILN_I32, KILN_SHAPE(3), 0, 9, 0, 25);
    EXPECT(kiln_relu(x), KILN_I32, KILN_SHAPE(3), 0, 0, 0, 5);
    EXPECT(kiln_floor(x), KILN_I32, KILN_SHAPE(3), 0, -3, 0, 5);
    EXPECT(kiln_exp(x), KILN_F32, KILN_SHAPE(3), 1e-6, exp(-3), 1, exp(5));
    EXPECT(kiln_sqrt(BOOL(KILN_SHAPE(2), 0, 1)), KILN_F32, KILN_SHAPE(2), 0, 0, 1);
    EXPECT(kiln_neg(U8(KILN_SHAPE(2), 1, 0)), KILN_U8, KILN_SHAPE(2), 0, 255, 0);
    EXPECT(kiln_isnan(x), KILN_BOOL, KILN_SHAPE(3), 0, 0, 0, 0);
    EXPECT(kiln_isfinite(x), KILN_BOOL, KILN_SHAPE(3), 0, 1, 1, 1);
    EXPECT(kiln_bitwise_not(x), KILN_I32, KILN_SHAPE(3), 0, 2, -1, -6);
    EXPECT(kiln_bitwise_not(BOOL(KILN_SHAPE(2), 0, 1)), KILN_BOOL, KILN_SHAPE(2), 0, 1, 0);
    EXPECT(kiln_logical_not(x), KILN_BOOL, KILN_SHAPE(3), 0, 0, 1, 0);
}

API_TEST(elementwise, special_values)
{
    kiln_tensor *x = F32(KILN_SHAPE(5), NAN, INFINITY, -INFINITY, -0.0f, 1);
    EXPECT(kiln_isnan(x), KILN_BOOL, KILN_SHAPE(5), 0, 1, 0, 0, 0, 0);
    EXPECT(kiln_isinf(x), KILN_BOOL, KILN_SHAPE(5), 0, 0, 1, 1, 0, 0);
    EXPECT(kiln_isfinite(x), KILN_BOOL, KILN_SHAPE(5), 0, 0, 0, 0, 1, 1);
    EXPECT(kiln_signbit(F32(KILN_SHAPE(3), -0.0f, 0, -1)), KILN_BOOL, KILN_SHAPE(3), 0, 1, 0, 1);
    EXPECT(kiln_sign(x), KILN_F32, KILN_SHAPE(5), 1e-9, NAN, 1, -1, 0, 1);
    EXPECT(kiln_relu(x), KILN_F32, KILN_SHAPE(5), 1e-9, NAN, INFINITY, 0, 0, 1);
    EXPECT(kiln_exp(x), KILN_F32, KILN_SHAPE(5), 1e-6, NAN, INFINITY, 0, 1, exp(1));
    EXPECT(kiln_log(x), KILN_F32, KILN_SHAPE(5), 1e-6, NAN, INFINITY, NAN, -INFINITY, 0);
    EXPECT(kiln_sqrt(x), KILN_F32, KILN_SHAPE(5), 0, NAN, INFINITY, NAN, -0.0, 1);
    EXPECT(kiln_reciprocal(kiln_slice_axis(x, 0, 0, 4, 1)), KILN_F32, KILN_SHAPE(4), 0, NAN, 0, -0.0, -INFINITY);
    EXPECT(kiln_reciprocal(x), KILN_F32, KILN_SHAPE(5), 1e-6, NAN, 0, -0.0, -INFINITY, 1);
    EXPECT(kiln_softplus(x), KILN_F32, KILN_SHAPE(5), 1e-6, NAN, INFINITY, 0, log(2), log1p(exp(1)));
    EXPECT(kiln_neg(x), KILN_F32, KILN_SHAPE(5), 0, NAN, -INFINITY, INFINITY, 0, -1);
}

/* ---- two operands ---- */

typedef struct Binary {
    const char *name;
    kiln_tensor *(*f)(kiln_tensor *, kiln_tensor *);
    double (*reference)(double, double);
} Binary;

static double add(double a, double b) { return a + b; }
static double sub(double a, double b) { return a - b; }
static double mul(double a, double b) { return a * b; }
static double quotient(double a, double b) { return a / b; }
static double floor_divide(double a, double b) { return floor(a / b); }
static double remainder_(double a, double b) { return a - floor(a / b) * b; }
static double logaddexp(double a, double b) { return log(exp(a) + exp(b)); }

static const Binary binary[] = {
    {"add", kiln_add, add},
    {"sub", kiln_sub, sub},
    {"mul", kiln_mul, mul},
    {"div", kiln_div, quotient},
    {"floor_divide", kiln_floor_divide, floor_divide},
    {"remainder", kiln_remainder, remainder_},
    {"fmod", kiln_fmod, fmod},
    {"maximum", kiln_maximum, fmax},
    {"minimum", kiln_minimum, fmin},
    {"atan2", kiln_atan2, atan2},
    {"hypot", kiln_hypot, hypot},
    {"logaddexp", kiln_logaddexp, logaddexp},
    {"copysign", kiln_copysign, copysign},
};

API_TEST(elementwise, binary_floats)
{
    static const double a[4] = {-1.5, 2, 7.25, -3}, b[4] = {2, -0.75, 1.5, -4};
    for (size_t k = 0; k < sizeof binary / sizeof *binary; k++)
        for (int t = 0; t < 2; t++) {
            kiln_dtype dtype = t ? KILN_F64 : KILN_F32;
            double want[4];
            for (int i = 0; i < 4; i++)
                want[i] = binary[k].reference(a[i], b[i]);
            kiln_tensor *x = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(4), a), dtype);
            kiln_tensor *y = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(4), b), dtype);
            cr_log_info("%s", binary[k].name);
            expect((int)(1000 * k) + t, binary[k].f(x, y), dtype, KILN_SHAPE(4), t ? 1e-14 : 1e-6, want, 4);
        }
    kiln_tensor *base = F64(KILN_SHAPE(4), 2, 0.5, 10, 3), *power = F64(KILN_SHAPE(4), 3, -2, 0.5, 0);
    EXPECT(kiln_pow(base, power), KILN_F64, KILN_SHAPE(4), 1e-14, 8, 4, sqrt(10), 1);
    EXPECT(kiln_nextafter(F32(KILN_SHAPE(2), 1, 1), F32(KILN_SHAPE(2), 2, 0)), KILN_F32, KILN_SHAPE(2), 0, (double)nextafterf(1, 2),
           (double)nextafterf(1, 0));
}

static bool has_row(const char *name)
{
    for (size_t k = 0; k < sizeof unary / sizeof *unary; k++)
        if (strcmp(unary[k].name, name) == 0)
            return true;
    for (size_t k = 0; k < sizeof binary / sizeof *binary; k++)
        if (strcmp(binary[k].name, name) == 0)
            return true;
    return false;
}

Test(elementwise, every_function_has_a_reference)
{
    static const char *const others[] = {"isnan",      "isinf",       "isfinite",    "signbit",     "logical_not", "bitwise_not",
                                         "pow",        "nextafter",   "eq",          "ne",          "lt",          "le",
                                         "gt",         "ge",          "logical_and", "logical_or",  "logical_xor", "bitwise_and",
                                         "bitwise_or", "bitwise_xor", "shift_left",  "shift_right", NULL}; /* tests of their own below */
    const char *missing = elementwise_without_row(has_row, others);
    cr_assert(!missing, "kiln_%s of tests/support/elementwise.def needs a row here, or a test and a place among the others", missing);
}

API_TEST(elementwise, binary_ints)
{
    kiln_tensor *a = I32(KILN_SHAPE(5), 7, -7, 7, -7, 5), *b = I32(KILN_SHAPE(5), 2, 2, -2, -2, 0);
    EXPECT(kiln_floor_divide(a, b), KILN_I32, KILN_SHAPE(5), 0, 3, -4, -4, 3, 0);
    EXPECT(kiln_remainder(a, b), KILN_I32, KILN_SHAPE(5), 0, 1, 1, -1, -1, 0);
    EXPECT(kiln_fmod(a, b), KILN_I32, KILN_SHAPE(5), 0, 1, -1, 1, -1, 0);
    EXPECT(kiln_div(a, b), KILN_F32, KILN_SHAPE(5), 1e-7, 3.5, -3.5, -3.5, 3.5, INFINITY);
    EXPECT(kiln_pow(I32(KILN_SHAPE(4), 2, -3, 1, 7), I32(KILN_SHAPE(4), 10, 3, -5, -1)), KILN_I32, KILN_SHAPE(4), 0, 1024, -27, 1, 0);
    EXPECT(kiln_add(I32(KILN_SHAPE(1), INT_MAX), I32(KILN_SHAPE(1), 1)), KILN_I32, KILN_SHAPE(1), 0, INT_MIN);
    EXPECT(kiln_floor_divide(I32(KILN_SHAPE(1), INT_MIN), I32(KILN_SHAPE(1), -1)), KILN_I32, KILN_SHAPE(1), 0, INT_MIN);
    EXPECT(kiln_mul(U8(KILN_SHAPE(2), 16, 255), U8(KILN_SHAPE(2), 16, 2)), KILN_U8, KILN_SHAPE(2), 0, 0, 254);
    EXPECT(kiln_maximum(a, b), KILN_I32, KILN_SHAPE(5), 0, 7, 2, 7, -2, 5);
    EXPECT(kiln_bitwise_and(a, I32(KILN_SHAPE(5), 3, 3, 6, 6, 4)), KILN_I32, KILN_SHAPE(5), 0, 3, 1, 6, 0, 4);
    EXPECT(kiln_bitwise_or(a, I32(KILN_SHAPE(), 8)), KILN_I32, KILN_SHAPE(5), 0, 15, -7, 15, -7, 13);
    EXPECT(kiln_bitwise_xor(a, a), KILN_I32, KILN_SHAPE(5), 0, 0, 0, 0, 0, 0);
    EXPECT(kiln_shift_left(I32(KILN_SHAPE(3), 1, 1, -1), I32(KILN_SHAPE(3), 4, 32, 1)), KILN_I32, KILN_SHAPE(3), 0, 16, 0, -2);
    EXPECT(kiln_shift_right(I32(KILN_SHAPE(3), 16, -16, -1), I32(KILN_SHAPE(3), 2, 2, 40)), KILN_I32, KILN_SHAPE(3), 0, 4, -4, -1);
}

API_TEST(elementwise, comparisons_and_logic)
{
    kiln_tensor *a = F32(KILN_SHAPE(4), 1, 2, 3, NAN), *b = F32(KILN_SHAPE(4), 2, 2, 2, NAN);
    EXPECT(kiln_eq(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 0, 1, 0, 0);
    EXPECT(kiln_ne(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 1, 0, 1, 1);
    EXPECT(kiln_lt(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 1, 0, 0, 0);
    EXPECT(kiln_le(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 1, 1, 0, 0);
    EXPECT(kiln_gt(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 0, 0, 1, 0);
    EXPECT(kiln_ge(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 0, 1, 1, 0);
    EXPECT(kiln_lt(BOOL(KILN_SHAPE(2), 0, 1), BOOL(KILN_SHAPE(2), 1, 1)), KILN_BOOL, KILN_SHAPE(2), 0, 1, 0);
    EXPECT(kiln_gt(kiln_from(KILN_U64, KILN_SHAPE(1), (uint64_t[]){UINT64_MAX}), kiln_int(1)), KILN_BOOL, KILN_SHAPE(1), 0, 1);
    kiln_tensor *x = F32(KILN_SHAPE(4), 0, 0, 2, -1), *y = I32(KILN_SHAPE(4), 0, 5, 0, 5);
    EXPECT(kiln_logical_and(x, y), KILN_BOOL, KILN_SHAPE(4), 0, 0, 0, 0, 1);
    EXPECT(kiln_logical_or(x, y), KILN_BOOL, KILN_SHAPE(4), 0, 0, 1, 1, 1);
    EXPECT(kiln_logical_xor(x, y), KILN_BOOL, KILN_SHAPE(4), 0, 0, 1, 1, 0);
}

API_TEST(elementwise, nan_and_zero_in_maximum)
{
    kiln_tensor *a = F32(KILN_SHAPE(4), NAN, 1, 0, -0.0f), *b = F32(KILN_SHAPE(4), 1, NAN, -0.0f, 0);
    EXPECT(kiln_maximum(a, b), KILN_F32, KILN_SHAPE(4), 0, NAN, NAN, 0, 0);
    EXPECT(kiln_minimum(a, b), KILN_F32, KILN_SHAPE(4), 0, NAN, NAN, -0.0, -0.0);
}

API_TEST(elementwise, where_and_clamp)
{
    kiln_tensor *c = BOOL(KILN_SHAPE(3), 1, 0, 1), *x = F32(KILN_SHAPE(3), 1, 2, 3);
    EXPECT(kiln_where(c, x, kiln_neg(x)), KILN_F32, KILN_SHAPE(3), 0, 1, -2, 3);
    EXPECT(kiln_where(c, x, kiln_scalar(0)), KILN_F32, KILN_SHAPE(3), 0, 1, 0, 3);
    EXPECT(kiln_where(c, kiln_scalar(1.5), kiln_int(2)), KILN_F32, KILN_SHAPE(3), 0, 1.5, 2, 1.5);
    EXPECT(kiln_where(I32(KILN_SHAPE(2, 1), 0, 7), x, kiln_int(9)), KILN_F32, KILN_SHAPE(2, 3), 0, 9, 9, 9, 1, 2, 3);
    EXPECT(kiln_clamp(x, kiln_scalar(1.5), kiln_scalar(2.5)), KILN_F32, KILN_SHAPE(3), 0, 1.5, 2, 2.5);
    EXPECT(kiln_clamp(I32(KILN_SHAPE(3), -5, 0, 5), kiln_int(-1), kiln_int(2)), KILN_I32, KILN_SHAPE(3), 0, -1, 0, 2);
    EXPECT(kiln_clamp(F32(KILN_SHAPE(2), NAN, 9), x = F32(KILN_SHAPE(2), 0, 0), F32(KILN_SHAPE(2), 1, 2)), KILN_F32, KILN_SHAPE(2), 0, NAN,
           2);
    /* limits beyond the dtype bound nothing */
    kiln_tensor *u8 = kiln_cast(I32(KILN_SHAPE(3), 0, 100, 255), KILN_U8);
    EXPECT(kiln_clamp(u8, kiln_int(-5), kiln_int(300)), KILN_U8, KILN_SHAPE(3), 0, 0, 100, 255);
    EXPECT(kiln_clamp(u8, kiln_scalar(-1e30), kiln_scalar(100.9)), KILN_U8, KILN_SHAPE(3), 0, 0, 100, 100);
    EXPECT(kiln_clamp(u8, kiln_scalar(99.5), kiln_scalar(1e30)), KILN_U8, KILN_SHAPE(3), 0, 99, 100, 255);
}

API_TEST(elementwise, casts)
{
    kiln_tensor *x = F64(KILN_SHAPE(8), 1.9, -1.9, 300, -300, 1e30, -1e30, NAN, INFINITY);
    EXPECT(kiln_cast(x, KILN_I8), KILN_I8, KILN_SHAPE(8), 0, 1, -1, 127, -128, 127, -128, 0, 127);
    EXPECT(kiln_cast(x, KILN_U8), KILN_U8, KILN_SHAPE(8), 0, 1, 0, 255, 0, 255, 0, 0, 255);
    EXPECT(kiln_cast(x, KILN_BOOL), KILN_BOOL, KILN_SHAPE(8), 0, 1, 1, 1, 1, 1, 1, 1, 1);
    EXPECT(kiln_cast(I32(KILN_SHAPE(3), 300, -1, 5), KILN_U8), KILN_U8, KILN_SHAPE(3), 0, 44, 255, 5);
    EXPECT(kiln_cast(F32(KILN_SHAPE(3), 65504, 65520, 1e-8f), KILN_F16), KILN_F16, KILN_SHAPE(3), 0, 65504, INFINITY, 0);
    EXPECT(kiln_cast(F32(KILN_SHAPE(2), 1.00390625f, 3e38f), KILN_BF16), KILN_BF16, KILN_SHAPE(2), 1e-2, 1, 3e38);
    EXPECT(kiln_cast(BOOL(KILN_SHAPE(2), 0, 1), KILN_F32), KILN_F32, KILN_SHAPE(2), 0, 0, 1);
    for (int from = KILN_BOOL; from <= KILN_F64; from++)
        for (int to = KILN_BOOL; to <= KILN_F64; to++) {
            kiln_tensor *one = kiln_cast(kiln_cast(I32(KILN_SHAPE(2), 1, 0), (kiln_dtype)from), (kiln_dtype)to);
            expect(100 * from + to, one, (kiln_dtype)to, KILN_SHAPE(2), 0, (double[]){1, 0}, 2);
        }
}

API_TEST(elementwise, empty_and_rank_0)
{
    EXPECT_EMPTY(kiln_sin(kiln_zeros(KILN_F32, KILN_SHAPE(0))), KILN_F32, KILN_SHAPE(0));
    EXPECT_EMPTY(kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(3, 0)), kiln_ones(KILN_F32, KILN_SHAPE(1, 1))), KILN_F32, KILN_SHAPE(3, 0));
    EXPECT_EMPTY(kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), kiln_ones(KILN_F32, KILN_SHAPE(3))), KILN_F32, KILN_SHAPE(0, 3));
    EXPECT(kiln_add(F32(KILN_SHAPE(), 2), F32(KILN_SHAPE(), 3)), KILN_F32, KILN_SHAPE(), 0, 5);
    EXPECT(kiln_where(BOOL(KILN_SHAPE(), 1), F32(KILN_SHAPE(), 2), F32(KILN_SHAPE(), 3)), KILN_F32, KILN_SHAPE(), 0, 2);
}

/* Fast mode computes f16 and bf16 in f32; whoever looks at a value sees the rounded one, fused or not. */
API_TEST(elementwise, halves_are_looked_at_rounded)
{
    for (int k = 0; k < 2; k++) {
        kiln_dtype half = k ? KILN_BF16 : KILN_F16;
        kiln_tensor *large = kiln_cast(F32(KILN_SHAPE(2), k ? 3e38f : 60000, 1), half), *twice = kiln_mul(large, kiln_scalar(1.5));
        EXPECT(kiln_isinf(twice), KILN_BOOL, KILN_SHAPE(2), 0, 1, 0);
        EXPECT(kiln_isfinite(twice), KILN_BOOL, KILN_SHAPE(2), 0, 0, 1);

        float data[3 * 70];
        for (int i = 0; i < 3 * 70; i++)
            data[i] = (float)(i * 37 % 101) / 50;
        kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(3, 70), data), half), *e = kiln_exp(x);
        kiln_tensor *is_max = kiln_eq(e, kiln_max_axes(e, KILN_AXES(1), true)); /* one of the row is the largest */
        EXPECT(kiln_any_axes(is_max, KILN_AXES(1), false), KILN_BOOL, KILN_SHAPE(3), 0, 1, 1, 1);

        kiln_tensor *y = kiln_mul(x, kiln_scalar(1.1)), *same = kiln_eq(kiln_mul(x, kiln_scalar(1.1)), y);
        cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
        EXPECT(kiln_all(same), KILN_BOOL, KILN_SHAPE(), 0, 1);

        float near_0[2 * 70]; /* their exponentials are 1, rounded */
        for (int i = 0; i < 2 * 70; i++)
            near_0[i] = (i < 70 ? 1e-6f : -1e-6f) * (float)(i % 70 + 1);
        e = kiln_exp(kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(2, 70), near_0), half));
        EXPECT(kiln_argmax_axis(e, 1, false), KILN_I64, KILN_SHAPE(2), 0, 0, 0); /* the first of equals */
        EXPECT(kiln_argmin_axis(e, 1, false), KILN_I64, KILN_SHAPE(2), 0, 0, 0);
        kiln_tensor *below = kiln_exp(kiln_cast(F32(KILN_SHAPE(1), -1e-4f), half)),
                    *above = kiln_exp(kiln_cast(F32(KILN_SHAPE(1), 1e-4f), half));
        EXPECT(kiln_floor(below), half, KILN_SHAPE(1), 0, 1);
        EXPECT(kiln_trunc(below), half, KILN_SHAPE(1), 0, 1);
        EXPECT(kiln_ceil(above), half, KILN_SHAPE(1), 0, 1);
        EXPECT(kiln_round(kiln_mul(above, kiln_scalar(0.5))), half, KILN_SHAPE(1), 0, 0);
        EXPECT(kiln_floor_divide(below, kiln_scalar(1)), half, KILN_SHAPE(1), 0, 1);
        EXPECT(kiln_remainder(below, kiln_scalar(1)), half, KILN_SHAPE(1), 0, 0);
        EXPECT(kiln_fmod(below, kiln_scalar(1)), half, KILN_SHAPE(1), 0, 0);
        kiln_tensor *tiny = kiln_cast(F32(KILN_SHAPE(1), k ? 1e-21f : 1e-4f), half);
        EXPECT(kiln_sign(kiln_mul(tiny, tiny)), half, KILN_SHAPE(1), 0, 0);

        kiln_tensor *minus = kiln_mul(tiny, kiln_neg(tiny)), *three = kiln_cast(F32(KILN_SHAPE(1), -3), half); /* -0; up to the edge */
        EXPECT(kiln_acos(above), half, KILN_SHAPE(1), 0, 0);
        EXPECT(kiln_asin(above), half, KILN_SHAPE(1), 0.01, 1.5708);
        EXPECT(kiln_acosh(below), half, KILN_SHAPE(1), 0, 0);
        EXPECT(kiln_atanh(above), half, KILN_SHAPE(1), 0, INFINITY);
        EXPECT(kiln_pow(three, kiln_mul(above, kiln_scalar(2))), half, KILN_SHAPE(1), 0, 9);
        EXPECT(kiln_sqrt(minus), half, KILN_SHAPE(1), 0, -0.0);
        EXPECT(kiln_rsqrt(minus), half, KILN_SHAPE(1), 0, -INFINITY);
        EXPECT(kiln_log(minus), half, KILN_SHAPE(1), 0, -INFINITY);
        EXPECT(kiln_log2(minus), half, KILN_SHAPE(1), 0, -INFINITY);
        EXPECT(kiln_log10(minus), half, KILN_SHAPE(1), 0, -INFINITY);
        EXPECT(kiln_log1p(kiln_neg(above)), half, KILN_SHAPE(1), 0, -INFINITY);
    }
}

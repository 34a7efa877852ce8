/*
 * The math functions: special values as C's Annex F and NumPy have them, exact values, symmetries, and a sample against the
 * bounds of ir/accuracy.def. (tests/accuracy/accuracy.c does the exhaustive work.)
 */
#include "tests/unit/scalars.h"

/* Those of one operand. */
static const Op bounded_ops[] = {
#define ACCURACY(op, f32, f64) OP_##op,
#include "ir/accuracy.def"
#undef ACCURACY
};
enum { FUNCTIONS = sizeof bounded_ops / sizeof *bounded_ops };

typedef struct Case {
    Op op;
    double x, want; /* exactly, in every float dtype */
} Case;

#define INF ((double)INFINITY)
#define NOT ((double)NAN)
static const Case cases[] = {
    {OP_RSQRT, 0, INF},      {OP_RSQRT, -0.0, -INF}, {OP_RSQRT, INF, 0},
    {OP_RSQRT, -1, NOT},     {OP_RSQRT, 4, 0.5},     {OP_EXP, 0, 1},
    {OP_EXP, -0.0, 1},       {OP_EXP, INF, INF},     {OP_EXP, -INF, 0},
    {OP_EXP, 1000, INF},     {OP_EXP, -1000, 0},     {OP_EXP2, 0, 1},
    {OP_EXP2, 10, 1024},     {OP_EXP2, -3, 0.125},   {OP_EXP2, INF, INF},
    {OP_EXP2, -INF, 0},      {OP_EXPM1, 0, 0},       {OP_EXPM1, -0.0, -0.0},
    {OP_EXPM1, INF, INF},    {OP_EXPM1, -INF, -1},   {OP_EXPM1, -100, -1},
    {OP_LOG, 1, 0},          {OP_LOG, 0, -INF},      {OP_LOG, -0.0, -INF},
    {OP_LOG, INF, INF},      {OP_LOG, -1, NOT},      {OP_LOG, -INF, NOT},
    {OP_LOG2, 1, 0},         {OP_LOG2, 8, 3},        {OP_LOG2, 0.25, -2},
    {OP_LOG2, 0, -INF},      {OP_LOG2, INF, INF},    {OP_LOG2, -1, NOT},
    {OP_LOG10, 1, 0},        {OP_LOG10, 0, -INF},    {OP_LOG10, INF, INF},
    {OP_LOG10, -1, NOT},     {OP_LOG1P, 0, 0},       {OP_LOG1P, -0.0, -0.0},
    {OP_LOG1P, -1, -INF},    {OP_LOG1P, INF, INF},   {OP_LOG1P, -2, NOT},
    {OP_SIN, 0, 0},          {OP_SIN, -0.0, -0.0},   {OP_SIN, INF, NOT},
    {OP_SIN, -INF, NOT},     {OP_COS, 0, 1},         {OP_COS, -0.0, 1},
    {OP_COS, INF, NOT},      {OP_COS, -INF, NOT},    {OP_TAN, 0, 0},
    {OP_TAN, -0.0, -0.0},    {OP_TAN, INF, NOT},     {OP_ASIN, 0, 0},
    {OP_ASIN, -0.0, -0.0},   {OP_ASIN, 2, NOT},      {OP_ASIN, INF, NOT},
    {OP_ACOS, 1, 0},         {OP_ACOS, 2, NOT},      {OP_ACOS, -2, NOT},
    {OP_ACOS, INF, NOT},     {OP_ATAN, 0, 0},        {OP_ATAN, -0.0, -0.0},
    {OP_SINH, 0, 0},         {OP_SINH, -0.0, -0.0},  {OP_SINH, INF, INF},
    {OP_SINH, -INF, -INF},   {OP_SINH, 1000, INF},   {OP_COSH, 0, 1},
    {OP_COSH, INF, INF},     {OP_COSH, -INF, INF},   {OP_COSH, -1000, INF},
    {OP_TANH, 0, 0},         {OP_TANH, -0.0, -0.0},  {OP_TANH, INF, 1},
    {OP_TANH, -INF, -1},     {OP_TANH, 100, 1},      {OP_ASINH, 0, 0},
    {OP_ASINH, -0.0, -0.0},  {OP_ASINH, INF, INF},   {OP_ASINH, -INF, -INF},
    {OP_ACOSH, 1, 0},        {OP_ACOSH, 0.5, NOT},   {OP_ACOSH, -1, NOT},
    {OP_ACOSH, INF, INF},    {OP_ACOSH, -INF, NOT},  {OP_ATANH, 0, 0},
    {OP_ATANH, -0.0, -0.0},  {OP_ATANH, 1, INF},     {OP_ATANH, -1, -INF},
    {OP_ATANH, 2, NOT},      {OP_ATANH, INF, NOT},   {OP_ERF, 0, 0},
    {OP_ERF, -0.0, -0.0},    {OP_ERF, INF, 1},       {OP_ERF, -INF, -1},
    {OP_ERF, 10, 1},         {OP_ERFC, 0, 1},        {OP_ERFC, -0.0, 1},
    {OP_ERFC, INF, 0},       {OP_ERFC, -INF, 2},     {OP_ERFC, 30, 0},
    {OP_ERFC, -10, 2},       {OP_SIGMOID, 0, 0.5},   {OP_SIGMOID, INF, 1},
    {OP_SIGMOID, -INF, 0},   {OP_SIGMOID, 100, 1},   {OP_SIGMOID, -1000, 0},
    {OP_SOFTPLUS, INF, INF}, {OP_SOFTPLUS, -INF, 0}, {OP_SOFTPLUS, 1000, 1000},
    {OP_SOFTPLUS, -1000, 0}, {OP_SILU, 0, 0},        {OP_SILU, -0.0, -0.0},
    {OP_SILU, 1000, 1000},   {OP_SILU, -1000, -0.0}, {OP_SILU, INF, INF},
    {OP_SILU, -INF, NOT},
};

Test(math, special_values)
{
    for (size_t k = 0; k < 4; k++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            double got = run_float(cases[i].op, float_types[k], cases[i].x, 0);
            cr_assert(same_double(got, cases[i].want), "%s %s %g: %a, not %a", op_name(cases[i].op), dtype_name(float_types[k]), cases[i].x,
                      got, cases[i].want);
        }
}

Test(math, nan_goes_through_everything)
{
    static const Op binary[] = {OP_ATAN2,    OP_HYPOT,   OP_LOGADDEXP, OP_POW,       OP_FMOD, OP_REM,
                                OP_FLOORDIV, OP_MAXIMUM, OP_MINIMUM,   OP_NEXTAFTER, OP_ADD,  OP_DIV};
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < FUNCTIONS; i++) {
            if (op_info[bounded_ops[i]].arity != 1)
                continue;
            cr_assert(isnan(run_float(bounded_ops[i], float_types[k], NOT, 0)), "%s", op_name(bounded_ops[i]));
            cr_assert(isnan(run_float(bounded_ops[i], float_types[k], -NOT, 0)), "%s", op_name(bounded_ops[i]));
        }
        for (size_t i = 0; i < sizeof binary / sizeof *binary; i++)
            for (int swap = 0; swap < 2; swap++) {
                double got = run_float(binary[i], float_types[k], swap ? 2 : NOT, swap ? NOT : 2);
                cr_assert(isnan(got), "%s %s", op_name(binary[i]), dtype_name(float_types[k]));
            }
    }
}

static const double grid[] = {0.0,
                              -0.0,
                              1,
                              -1,
                              0.5,
                              -0.5,
                              2,
                              -2,
                              3,
                              -3,
                              4,
                              0.3,
                              -0.3,
                              1.5,
                              7,
                              1e-30,
                              1e30,
                              -1e30,
                              INF,
                              -INF,
                              NOT,
                              0x1p-149,
                              0x1.fffffep127,
                              0x1.fffffep-1,
                              0x1.000002p0};
enum { GRID = sizeof grid / sizeof *grid };

/* Special results must be the C library's; others close to it. */
static void check_binary(Op op, double (*want_of)(double, double), float ulps)
{
    for (size_t i = 0; i < GRID; i++)
        for (size_t j = 0; j < GRID; j++) {
            double want = want_of(grid[i], grid[j]), got = run_float(op, DT_F64, grid[i], grid[j]);
            bool near = isfinite(want) && want != 0 && fabs(got - want) <= (double)ulps * fmax(fabs(want) * 0x1p-52, 0x1p-1074);
            cr_assert(near || same_double(got, want), "%s f64 %a %a: %a, not %a", op_name(op), grid[i], grid[j], got, want);
            double got32 = run_float(op, DT_F32, grid[i], grid[j]);
            double want32 = (double)(float)want_of((double)(float)grid[i], (double)(float)grid[j]);
            near = isfinite(want32) && want32 != 0 && fabs(got32 - want32) <= (double)ulps * fmax(fabs(want32) * 0x1p-23, 0x1p-149);
            cr_assert(near || same_double(got32, want32), "%s f32 %a %a: %a, not %a", op_name(op), grid[i], grid[j], got32, want32);
        }
}

Test(math, pow_follows_annex_f) { check_binary(OP_POW, pow, 2); }
Test(math, atan2_knows_all_quadrants) { check_binary(OP_ATAN2, atan2, 3); }
Test(math, hypot_neither_overflows_nor_loses) { check_binary(OP_HYPOT, hypot, 2); }

Test(math, pow_of_whole_numbers_is_exact)
{
    for (int base = -9; base <= 9; base++)
        for (int n = 0; n <= 7; n++) {
            double want = 1;
            for (int i = 0; i < n; i++)
                want *= base;
            cr_assert_eq(run_float(OP_POW, DT_F32, base, n), want, "%d %d", base, n);
            cr_assert_eq(run_float(OP_POW, DT_F64, base, n), want, "%d %d", base, n);
        }
}

Test(math, logaddexp_of_infinities)
{
    for (size_t k = 0; k < 4; k++) {
        cr_assert_eq(run_float(OP_LOGADDEXP, float_types[k], -INF, -INF), -INF);
        cr_assert_eq(run_float(OP_LOGADDEXP, float_types[k], INF, -INF), INF);
        cr_assert_eq(run_float(OP_LOGADDEXP, float_types[k], INF, INF), INF);
        cr_assert_eq(run_float(OP_LOGADDEXP, float_types[k], -INF, 3), 3);
    }
}

/* Random arguments of all magnitudes: odd and even functions are that, ranges are kept. */
Test(math, symmetry_and_range)
{
    static const Op odd[] = {OP_SIN, OP_TAN, OP_ASIN, OP_ATAN, OP_SINH, OP_TANH, OP_ASINH, OP_ATANH, OP_ERF};
    static const Op even[] = {OP_COS, OP_COSH};
    static const Op bounded[] = {OP_SIN, OP_COS, OP_TANH, OP_ERF, OP_SIGMOID};
    uint64_t state = 3;
    for (int i = 0; i < 30000; i++) {
        DType t = i % 2 ? DT_F32 : DT_F64;
        uint64_t bits = random64(&state) >> (t == DT_F32 ? 32 : 0);
        double x = i % 3 ? scalar_to_double(t, bits) : (double)(int64_t)bits * 0x1p-61;
        x = scalar_to_double(t, scalar_from_double(t, x));
        if (isnan(x))
            continue;
        for (size_t k = 0; k < sizeof odd / sizeof *odd; k++)
            cr_assert(same_double(run_float(odd[k], t, -x, 0), -run_float(odd[k], t, x, 0)), "%s %a", op_name(odd[k]), x);
        for (size_t k = 0; k < sizeof even / sizeof *even; k++)
            cr_assert(same_double(run_float(even[k], t, -x, 0), run_float(even[k], t, x, 0)), "%s %a", op_name(even[k]), x);
        for (size_t k = 0; k < sizeof bounded / sizeof *bounded; k++) {
            double y = run_float(bounded[k], t, x, 0);
            cr_assert(isinf(x) || fabs(y) <= 1, "%s %a: %a", op_name(bounded[k]), x, y);
        }
    }
}

/* Every f32 around multiples of pi/2 where a sine rounds to 1, and some beyond: rounding never takes it above. */
Test(math, sines_stay_within_one)
{
    enum { N = 8192, MULTIPLES = 100 };
    static float x[N], y[N];
    for (int m = 1; m <= MULTIPLES; m++) {
        float middle = (float)(m * 1.57079632679489662);
        uint32_t first;
        memcpy(&first, &middle, sizeof first);
        first -= N / 2;
        for (uint32_t i = 0; i < N; i++) {
            uint32_t bits = first + i;
            memcpy(&x[i], &bits, sizeof bits);
        }
        for (int f = 0; f < 2; f++) {
            Op op = f ? OP_COS : OP_SIN;
            run_array(op, DT_F32, DT_F32, N, x, NULL, y);
            for (size_t i = 0; i < N; i++)
                cr_assert_leq(fabsf(y[i]), 1, "%s %a: %a", op_name(op), (double)x[i], (double)y[i]);
        }
    }
}

/* Near multiples of pi/2 and far out, where a poor reduction shows. */
Test(math, trigonometry_of_large_arguments)
{
    static const double at[] = {0x1.921fb6p+1,
                                0x1.921fb54442d18p+1,
                                0x1.2d97c7f3321d2p+2,
                                1e5,
                                131072,
                                131073,
                                0x1.47d0fep+34,
                                0x1.6ac5b262ca1ffp+849,
                                0x1.fffffep127,
                                0x1.fffffffffffffp1023,
                                0x1p20,
                                1048577,
                                0x1p64,
                                0x1.234567p90,
                                6381956970095103.0 * 0x1p797};
    static const struct {
        Op op;
        long double (*of)(long double);
    } functions[3] = {{OP_SIN, sinl}, {OP_COS, cosl}, {OP_TAN, tanl}};
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            if (LDBL_MANT_DIG >= 64) {
                long double want = functions[f].of((long double)at[i]);
                double got = run_float(functions[f].op, DT_F64, at[i], 0);
                cr_assert_leq(fabsl((long double)got - want), 3 * fabsl(want) * 0x1p-53L, "%s %a: %a, not %La", op_name(functions[f].op),
                              at[i], got, want);
            }
            float x = (float)at[i];
            if (isinf(x))
                continue;
            double want = (double)functions[f].of((long double)x), got = run_float(functions[f].op, DT_F32, (double)x, 0);
            cr_assert_leq(fabs(got - want), 3 * fabs(want) * 0x1p-24, "%s f32 %a: %a, not %a", op_name(functions[f].op), (double)x, got,
                          want);
        }
}

/* Subnormal results and arguments. */
/* F32 where another entry of the tables of 1/pi begins, around each power of two, and what comes closest to a multiple of pi/2 of all. */
Test(math, trigonometry_of_every_binade)
{
    static const struct {
        Op op;
        double (*of)(double), ulp;
    } functions[3] = {{OP_SIN, sin, 1.9}, {OP_COS, cos, 1.9}, {OP_TAN, tan, 3.5}};
    enum { FIRST = 16, LAST = 127, EACH = 5 };
    float x[(LAST - FIRST + 1) * EACH + 1], y[sizeof x / sizeof *x];
    size_t n = 0;
    for (int k = FIRST; k <= LAST; k++) {
        float least = ldexpf(1, k), among[EACH] = {least, nextafterf(least, 0), -nextafterf(least, INFINITY), 1.3f * least, -1.9f * least};
        memcpy(&x[n], among, sizeof among);
        n += EACH;
    }
    x[n++] = 16367173 * 0x1p72f;
    for (size_t f = 0; f < 3; f++) {
        run_array(functions[f].op, DT_F32, DT_F32, n, x, NULL, y);
        for (size_t i = 0; i < n; i++) {
            double want = functions[f].of((double)x[i]);
            cr_expect_leq(fabs((double)y[i] - want), functions[f].ulp * ldexp(1, ilogb(want) - 23), "%s %a: %a, not %a",
                          op_name(functions[f].op), (double)x[i], (double)y[i], want);
        }
    }
}

Test(math, subnormals_are_kept)
{
    cr_assert_eq(run_float(OP_EXP2, DT_F32, -149, 0), 0x1p-149);
    cr_assert_eq(run_float(OP_EXP2, DT_F32, -151, 0), 0);
    cr_assert_eq(run_float(OP_EXP2, DT_F64, -1074, 0), 0x1p-1074);
    cr_assert_eq(run_float(OP_EXP, DT_F32, -100, 0), (double)(float)exp(-100));
    cr_assert_eq(run_float(OP_SIGMOID, DT_F32, -100, 0), (double)(float)exp(-100));
    cr_assert_eq(run_float(OP_SILU, DT_F32, -100, 0), (double)(float)(-100 * exp(-100)));
    cr_assert_eq(run_float(OP_SILU, DT_F32, -104.5, 0), (double)(float)(-104.5 * exp(-104.5)), "more than 0, where sigmoid is 0");
    cr_assert_eq(run_float(OP_SILU, DT_F64, -748, 0), (double)(-748 * expl(-748)));
    cr_assert_eq(run_float(OP_LOG2, DT_F32, 0x1p-149, 0), -149);
    cr_assert_eq(run_float(OP_LOG2, DT_F64, 0x1p-1074, 0), -1074);
    cr_assert_eq(run_float(OP_SQRT, DT_F32, 0x1p-148, 0), 0x1p-74);
    static const Op identity[] = {OP_SIN, OP_TAN, OP_ASIN, OP_ATAN, OP_SINH, OP_TANH, OP_ASINH, OP_ATANH, OP_EXPM1, OP_LOG1P};
    for (size_t i = 0; i < sizeof identity / sizeof *identity; i++)
        for (int k = 0; k < 2; k++) {
            double tiny = k ? 0x1.8p-1073 : 0x1.8p-148;
            cr_assert_eq(run_float(identity[i], k ? DT_F64 : DT_F32, tiny, 0), tiny, "%s", op_name(identity[i]));
            cr_assert_eq(run_float(identity[i], k ? DT_F64 : DT_F32, -tiny, 0), -tiny, "%s", op_name(identity[i]));
        }
}

/* ---- the bounds, on a sample ---- */

static double reference(Op op, double x)
{
    switch (op) {
    case OP_RSQRT: return 1 / sqrt(x);
    case OP_EXP: return exp(x);
    case OP_EXP2: return exp2(x);
    case OP_EXPM1: return expm1(x);
    case OP_LOG: return log(x);
    case OP_LOG2: return log2(x);
    case OP_LOG10: return log10(x);
    case OP_LOG1P: return log1p(x);
    case OP_SIN: return sin(x);
    case OP_COS: return cos(x);
    case OP_TAN: return tan(x);
    case OP_ASIN: return asin(x);
    case OP_ACOS: return acos(x);
    case OP_ATAN: return atan(x);
    case OP_SINH: return sinh(x);
    case OP_COSH: return cosh(x);
    case OP_TANH: return tanh(x);
    case OP_ASINH: return asinh(x);
    case OP_ACOSH: return acosh(x);
    case OP_ATANH: return atanh(x);
    case OP_ERF: return erf(x);
    case OP_ERFC: return erfc(x);
    case OP_SIGMOID: return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
    case OP_SILU: return x < 0 ? x * exp(x) / (1 + exp(x)) : x / (1 + exp(-x));
    default: /* SOFTPLUS */ return fmax(x, 0) + log1p(exp(-fabs(x)));
    }
}

static double f32_bound(Op op)
{
    static const double bounds[OP_COUNT] = {
#define ACCURACY(op, f32, f64) [OP_##op] = f32,
#include "ir/accuracy.def"
#undef ACCURACY
    };
    return bounds[op];
}

Test(math, f32_errors_are_within_bounds)
{
    enum { N = 4096 };
    static uint32_t x[N];
    static float y[N];
    for (size_t f = 0; f < FUNCTIONS; f++) {
        if (op_info[bounded_ops[f]].arity != 1)
            continue;
        double bound = f32_bound(bounded_ops[f]);
        for (uint64_t start = 0; start <= UINT32_MAX; start += (uint64_t)N * 65521) {
            for (uint64_t i = 0; i < N; i++)
                x[i] = (uint32_t)(start + i * 65521);
            run_array(bounded_ops[f], DT_F32, DT_F32, N, x, NULL, y);
            for (size_t i = 0; i < N; i++) {
                float v;
                memcpy(&v, &x[i], sizeof v);
                double want = reference(bounded_ops[f], (double)v), got = (double)y[i];
                if (isnan(want) || isinf((float)want) || isinf(got)) {
                    cr_assert(same_double(got, (double)(float)want), "%s %a: %a, not %a", op_name(bounded_ops[f]), (double)v, got, want);
                    continue;
                }
                int exponent = want == 0 ? -149 : ilogb(want) - 23;
                double ulp = ldexp(1, exponent < -149 ? -149 : exponent);
                cr_assert_leq(fabs(got - want), bound * ulp, "%s %a: %a, not %a", op_name(bounded_ops[f]), (double)v, got, want);
            }
        }
    }
}

/*
 * The option subnormals: with `flush` and math=fast what compiled code reads and computes below the least normal is zero, at every width, and nothing
 * else is.
 */
#include "tests/api/api.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__x86_64__)

enum { MOST = 211 };

typedef struct Case {
    const char *subnormals, *math;
    bool zeros; /* is what is below the least normal? */
} Case;
static const Case cases[] = {
    {"keep", "fast", false}, {"flush", "fast", true}, {"flush", "strict", false}, {"keep", "strict", false}, {"flush", "fast", true}};
static const char *const widths[] = {"128", "256", "0"};

static void set_case(const Case *c, const char *bits)
{
    set_option("vector_bits", bits);
    set_option("subnormals", c->subnormals);
    set_option("math", c->math);
}

#define EACH_CASE(c)                                                               \
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)                    \
        for (const Case *c = cases; c < cases + sizeof cases / sizeof *cases; c++) \
            for (kiln_scope *scope = (set_case(c, widths[w]), kiln_scope_begin()); scope; kiln_scope_end(scope), scope = NULL)

/* A vector and its tail: what is read, and what is made. */
Test(subnormals, elementwise)
{
    const int64_t sizes[] = {1, 7, MOST};
    float x[MOST], y[MOST];
    for (int i = 0; i < MOST; i++)
        x[i] = i % 3 == 0 ? 1e-39F : i % 3 == 1 ? -2 * FLT_MIN : 3;
    EACH_CASE(c)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const kiln_shape shape = KILN_SHAPE(sizes[s]);
        kiln_tensor *read = kiln_mul(kiln_from(KILN_F32, shape, x), 1e10); /* 1e-29, were it not read as 0 */
        kiln_tensor *made = kiln_mul(kiln_from(KILN_F32, shape, x), 0.25);
        cr_assert(kiln_read(read, KILN_F32, y, sizeof(float) * (size_t)sizes[s]) == KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < sizes[s]; i++)
            cr_assert(y[i] == (c->zeros && i % 3 == 0 ? 0 : x[i] * 1e10F), "%s %s %s: element %d is %g", c->subnormals, c->math, widths[w],
                      i, (double)y[i]);
        cr_assert(kiln_read(made, KILN_F32, y, sizeof(float) * (size_t)sizes[s]) == KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < sizes[s]; i++)
            cr_assert(y[i] == (c->zeros && i % 3 < 2 ? 0 : x[i] * 0.25F) && !signbit(y[i]) == !signbit(x[i]), "%s %s %s: element %d is %g",
                      c->subnormals, c->math, widths[w], i, (double)y[i]);
    }
}

Test(subnormals, doubles_sums_and_halves)
{
    double x[MOST], total;
    float h[MOST], back[MOST];
    for (int i = 0; i < MOST; i++) {
        x[i] = 1e-310;
        h[i] = 0x1p-24F; /* the least f16 */
    }
    EACH_CASE(c)
    {
        kiln_tensor *sum = kiln_sum(kiln_mul(kiln_from(KILN_F64, KILN_SHAPE(MOST), x), 1e100));
        cr_assert(kiln_read(sum, KILN_F64, &total, sizeof total) == KILN_OK, "%s", kiln_error_message());
        cr_assert(c->zeros ? total == 0 : fabs(total - MOST * 1e-210) < 1e-218, "%s %s %s: %g", c->subnormals, c->math, widths[w], total);
        kiln_tensor *half = kiln_mul(kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(MOST), h), KILN_F16), 3);
        cr_assert(kiln_read(kiln_cast(half, KILN_F32), KILN_F32, back, sizeof back) == KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < MOST; i++)
            cr_assert_float_eq(back[i], 0x1.8p-23F, 0, "an f16 below the least normal one is a normal number of f32: %g", (double)back[i]);
    }
}

/* Each way that products are made. */
Test(subnormals, products)
{
    static const int sizes[][3] = {{1, 300, 40}, {3, 40, 500}, {20, 20, 20}, {130, 300, 90}};
    static float a[130 * 300], b[300 * 500], y[130 * 500];
    EACH_CASE(c)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int m = sizes[s][0], k = sizes[s][1], n = sizes[s][2];
        for (int i = 0; i < m * k; i++)
            a[i] = 1e-39F;
        for (int i = 0; i < k * n; i++)
            b[i] = 1e10F;
        kiln_tensor *product = kiln_matmul(kiln_from(KILN_F32, KILN_SHAPE(m, k), a), kiln_from(KILN_F32, KILN_SHAPE(k, n), b));
        cr_assert(kiln_read(product, KILN_F32, y, sizeof(float) * (size_t)(m * n)) == KILN_OK, "%s", kiln_error_message());
        const double exact = (double)a[0] * 1e10 * k;
        for (int i = 0; i < m * n; i++)
            cr_assert(c->zeros ? y[i] == 0 : fabs(y[i] - exact) < 1e-4 * exact, "%s %s %s, %d x %d x %d: element %d is %g", c->subnormals,
                      c->math, widths[w], m, k, n, i, (double)y[i]);
    }
}

typedef kiln_tensor *Function(kiln_tensor *x, kiln_tensor *y);
#define ONE(name) \
    static kiln_tensor *f_##name(kiln_tensor *x, kiln_tensor *y) { return (void)y, kiln_##name(x); }
#define TWO(name) \
    static kiln_tensor *f_##name(kiln_tensor *x, kiln_tensor *y) { return kiln_##name(x, y); }
/* clang-format off */
#define FUNCTIONS(F1, F2) \
    F1(exp) F1(exp2) F1(expm1) F1(log) F1(log2) F1(log10) F1(log1p) F1(sqrt) F1(rsqrt) F1(reciprocal) F1(sin) \
    F1(cos) F1(tan) F1(asin) F1(acos) F1(atan) F1(sinh) F1(cosh) F1(tanh) F1(asinh) F1(acosh) F1(atanh) F1(erf) \
    F1(erfc) F1(sigmoid) F1(silu) F1(gelu) F1(softplus) F1(floor) F1(ceil) F1(round) F1(trunc) F1(sign) \
    F1(square) F2(pow) F2(atan2) F2(div) F2(remainder) F2(mul)
/* clang-format on */
FUNCTIONS(ONE, TWO)
#define ROW(name) {#name, f_##name},
static const struct {
    const char *name;
    Function *make;
} functions[] = {FUNCTIONS(ROW, ROW)};

static bool near(double got, double want)
{
    if (isnan(want) || isinf(want) || isnan(got))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= 1e-5 * fabs(want) + FLT_MIN;
}

/* Each function of anything is what it is of that with zeros for what is below the least normal, zero where that is below it. */
Test(subnormals, functions)
{
    enum { N = 600 };
    static float x[2][N], y[2][N], r[2][N];
    for (int i = 0; i < N; i++) {
        const float magnitude = ldexpf(1 + (float)(i * 37 % 64) / 64, i / 2 - 149), other = ldexpf(1.25F, i * 53 % 299 - 149);
        x[0][i] = i % 2 ? -magnitude : magnitude;
        y[0][i] = i % 3 == 0 ? -0.5F : i % 3 == 1 ? 2 : i % 2 ? -other : other;
        x[1][i] = fabsf(x[0][i]) < FLT_MIN ? copysignf(0, x[0][i]) : x[0][i];
        y[1][i] = fabsf(y[0][i]) < FLT_MIN ? copysignf(0, y[0][i]) : y[0][i];
    }
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            for (int zeros = 0; zeros < 2; zeros++) {
                set_case(&cases[!zeros], widths[w]);
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *made =
                    functions[f].make(kiln_from(KILN_F32, KILN_SHAPE(N), x[zeros]), kiln_from(KILN_F32, KILN_SHAPE(N), y[zeros]));
                cr_assert(kiln_read(made, KILN_F32, r[zeros], sizeof r[zeros]) == KILN_OK, "%s: %s", functions[f].name,
                          kiln_error_message());
                kiln_scope_end(scope);
            }
            for (int i = 0; i < N; i++) {
                cr_assert(near((double)r[0][i], (double)r[1][i]), "%s(%g, %g), vector_bits=%s: %g, of zeros %g", functions[f].name,
                          (double)x[0][i], (double)y[0][i], widths[w], (double)r[0][i], (double)r[1][i]);
                cr_assert(r[0][i] == 0 || !(fabsf(r[0][i]) < FLT_MIN), "%s(%g, %g), vector_bits=%s: %g is none to be made",
                          functions[f].name, (double)x[0][i], (double)y[0][i], widths[w], (double)r[0][i]);
            }
        }
}

/* The caller's mode is its own, whatever kernels do. */
Test(subnormals, mode_of_the_caller)
{
    float x[MOST] = {1}, y[MOST];
    const unsigned before = __builtin_ia32_stmxcsr();
    set_option("subnormals", "flush");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *e = kiln_exp(kiln_from(KILN_F32, KILN_SHAPE(MOST), x));
    cr_assert(kiln_read(e, KILN_F32, y, sizeof y) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    cr_assert_eq(__builtin_ia32_stmxcsr() & ~0x3fu, before & ~0x3fu);
}

/* In fast mode weights of a softmax that lie near the least normal number are zeros; strictly, or where the exponentials are read elsewhere, they are kept. */
Test(subnormals, weights_of_softmax)
{
    enum { ROWS = 3 };
    const kiln_shape shape = KILN_SHAPE(ROWS, MOST);
    float x[ROWS * MOST], y[ROWS * MOST];
    double sum[ROWS] = {0};
    for (int i = 0; i < ROWS * MOST; i++) {
        x[i] = i == MOST + 5 ? -INFINITY : i == 2 * MOST + 7 ? NAN : 3 - 0.6F * (float)((i % MOST) * 97 % MOST);
        sum[i / MOST] += exp((double)x[i] - 3);
    }
    EACH_CASE(c)
    for (int stored = 0; stored < 2; stored++) {
        kiln_tensor *in = kiln_from(KILN_F32, shape, x);
        kiln_tensor *e = kiln_exp(kiln_sub(in, kiln_max_axes(in, KILN_AXES(1), true))), *two[] = {stored ? e : kiln_softmax(in, 1), NULL};
        if (stored)
            two[1] = kiln_div(e, kiln_sum_axes(e, KILN_AXES(1), true));
        cr_assert(kiln_eval_many(two, 1 + stored) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_read(two[0], KILN_F32, y, sizeof y) == KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < 2 * MOST; i++) {
            double want = exp((double)x[i] - 3) / (stored ? 1 : sum[i / MOST]), least = stored ? (double)FLT_MIN : 1.7e-38;
            bool zero = c->zeros || (!stored && !strcmp(c->math, "fast"));
            double off = fabs(y[i] - want);
            cr_assert(want >= least || !zero ? off <= 1e-5 * want + 3e-45 : y[i] == 0 || off <= 1e-5 * want,
                      "%s %s %s, stored %d: element %d, of %g, is %g, not %g", c->subnormals, c->math, widths[w], stored, i, (double)x[i],
                      (double)y[i], want);
            if (zero && want < (stored ? 1.1e-38 : 5e-39))
                cr_assert(y[i] == 0, "%s %s %s, stored %d: element %d is %g", c->subnormals, c->math, widths[w], stored, i, (double)y[i]);
        }
        for (int i = 0; i < MOST && !stored; i++)
            cr_assert(isnan(y[2 * MOST + i]));
    }
}

#endif

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

#endif

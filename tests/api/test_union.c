/*
 * Products of one operand as one kernel (jit/fuse/union.c): the bits of the interpreter and of products that are computed each for itself,
 * for every way in which products are made, dtype, width of vectors and number of threads, with sizes as constants and as arguments; how
 * many kernels.
 */
#include "api.h"

#include <string.h>

enum { MOST = 1 << 17, PRODUCTS = 3 };

typedef struct Sizes {
    int64_t m, n[PRODUCTS], k;
    bool turned; /* weights lie [n, k] */
    kiln_dtype dtype;
    int kernels; /* where sizes are constants */
} Sizes;

/* Direct; strips and dots, of a few rows; packed, of several blocks and of one; a wide one, packed, beside two that are not; few columns. */
static const Sizes sizes[] = {
    {40, {64, 64, 64}, 64, false, KILN_F32, 1},    {1, {300, 128, 130}, 301, false, KILN_F32, 1},
    {5, {200, 65, 65}, 290, true, KILN_F32, 1},    {70, {130, 140, 190}, 260, true, KILN_F32, 1},
    {90, {300, 290, 280}, 240, true, KILN_F32, 1}, {64, {256, 64, 64}, 520, false, KILN_F32, 2},
    {33, {90, 90, 3}, 70, false, KILN_F32, 2},     {70, {130, 70, 80}, 260, true, KILN_F64, 1},
    {70, {130, 70, 80}, 270, true, KILN_BF16, 1},  {64, {160, 170, 180}, 260, true, KILN_F16, 1},
    {64, {160, 90, 70}, 260, true, KILN_I8, 1},    {9, {160, 90, 70}, 260, true, KILN_I32, 1},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static char want[PRODUCTS][MOST * 8], got[PRODUCTS][MOST * 8];

/* x, weights, biases. */
static void inputs(const Sizes *s, kiln_tensor *in[1 + 2 * PRODUCTS])
{
    static float data[1 << 18];
    bool whole = s->dtype == KILN_I8 || s->dtype == KILN_I32;
    for (int t = 0; t < 1 + 2 * PRODUCTS; t++) {
        int64_t n = s->n[(t + PRODUCTS - 1) % PRODUCTS];
        kiln_shape shape = t == 0         ? KILN_SHAPE(s->m, s->k)
                           : t > PRODUCTS ? KILN_SHAPE(n)
                           : s->turned    ? KILN_SHAPE(n, s->k)
                                          : KILN_SHAPE(s->k, n);
        int64_t numel = t == 0 ? s->m * s->k : t > PRODUCTS ? n : n * s->k;
        cr_assert(numel <= 1 << 18);
        for (int64_t i = 0; i < numel; i++)
            data[i] = whole ? (float)((i * 7 + t) % 19 - 9) : (float)((i * 7919 + t) % 2003) / 512 - 2;
        in[t] = kiln_cast(kiln_from(KILN_F32, shape, data), s->dtype);
    }
    cr_assert_eq(kiln_eval_many(in, 1 + 2 * PRODUCTS), KILN_OK, "%s", kiln_error_message());
}

/* Each with its own epilogue: a bias; with relu; squared. */
static kiln_tensor *product(const Sizes *s, kiln_tensor *const *in, int which)
{
    kiln_tensor *w = in[1 + which], *y = kiln_matmul(in[0], s->turned ? kiln_transpose(w) : w);
    y = kiln_add(y, in[1 + PRODUCTS + which]);
    return which == 1 ? kiln_relu(y) : which == 2 ? kiln_mul(y, y) : y;
}

static int64_t all(const Sizes *s, kiln_tensor *const *in, bool together, char (*to)[MOST * 8])
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y[PRODUCTS];
    kiln_stats before = stats_now();
    for (int i = 0; i < PRODUCTS; i++) {
        y[i] = product(s, in, i);
        if (!together)
            cr_assert_eq(kiln_eval(y[i]), KILN_OK, "%s", kiln_error_message());
    }
    cr_assert_eq(kiln_eval_many(y, PRODUCTS), KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    for (int i = 0; i < PRODUCTS; i++) {
        cr_assert(kiln_numel(y[i]) == s->m * s->n[i] && kiln_numel(y[i]) <= MOST);
        size_t bytes = (size_t)kiln_numel(y[i]) * kiln_dtype_size(s->dtype);
        cr_assert_eq(kiln_read(y[i], s->dtype, to[i], bytes), KILN_OK, "%s", kiln_error_message());
    }
    kiln_scope_end(scope);
    return (int64_t)(after.kernels - before.kernels);
}

static void compare(const Sizes *s, const char *how, const char *with)
{
    for (int i = 0; i < PRODUCTS; i++)
        cr_assert_eq(memcmp(want[i], got[i], (size_t)(s->m * s->n[i]) * kiln_dtype_size(s->dtype)), 0,
                     "%s: product %d has other bits than %s: %d x %d,%d,%d x %d, dtype %d", how, i, with, (int)s->m, (int)s->n[0],
                     (int)s->n[1], (int)s->n[2], (int)s->k, (int)s->dtype);
}

static void check(const Sizes *s, const char *how, bool counted)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[1 + 2 * PRODUCTS];
    inputs(s, in);
    (void)all(s, in, false, want);
    int64_t kernels = all(s, in, true, got);
    compare(s, how, "by itself");
    if (counted)
        cr_assert_eq(kernels, s->kernels, "%s: %d kernels, not %d: %d rows, dtype %d", how, (int)kernels, s->kernels, (int)s->m,
                     (int)s->dtype);
    if (strcmp(how, "fast") != 0) {
        set_option("mode", "interp");
        (void)all(s, in, true, want);
        set_option("mode", "jit");
        compare(s, how, "the interpreter's");
    }
    kiln_scope_end(scope);
}

static void each_size(const char *how, bool counted)
{
    for (const Sizes *s = sizes; s < sizes + SIZES; s++)
        check(s, how, counted);
    end_mode();
}

static void strictly(void)
{
    set_option("math", "strict");
    set_option("dynamic", "never");
}

TestSuite(product_union, .init = strictly);

Test(product_union, one_kernel_with_the_bits_of_three) { each_size("strict", true); }

Test(product_union, fast)
{
    set_option("math", "fast");
    each_size("fast", true);
}

Test(product_union, of_any_width)
{
    static const char *const bits[] = {"128", "256"};
    for (int i = 0; i < 2; i++) {
        set_option("vector_bits", bits[i]);
        each_size(bits[i], false);
    }
}

Test(product_union, by_any_number_of_threads)
{
    static const char *const threads[] = {"1", "2", "7"};
    for (int i = 0; i < 3; i++) {
        set_option("threads", threads[i]);
        each_size(threads[i], true);
    }
}

/* One program, made for the first sizes, goes for the others: as few as one row or column, nothing along k, none of one product. */
Test(product_union, with_sizes_as_arguments)
{
    set_option("dynamic", "always");
    each_size("dynamic", false);
    static const Sizes small[] = {{64, {100, 90, 80}, 260, true, KILN_F32, 0}, {1, {3, 1, 2}, 2, true, KILN_F32, 0},
                                  {2, {1, 1, 1}, 300, true, KILN_F32, 0},      {7, {5, 2, 3}, 0, true, KILN_F32, 0},
                                  {9, {0, 4, 5}, 20, true, KILN_F32, 0},       {9, {33, 0, 0}, 20, true, KILN_F32, 0},
                                  {0, {30, 3, 4}, 20, true, KILN_F32, 0},      {65, {257, 1, 129}, 513, true, KILN_F32, 0}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        check(&small[i], "small", false);
    end_mode();
}

/* Queries that are stored head by head have batch and rows apart, where keys and values have them as one axis. */
Test(product_union, of_queries_in_heads)
{
    enum { HEADS = 4, EACH = 24, DEPTH = 70 };
    static const int64_t batches[][2] = {{3, 25}, {5, 1}, {1, 40}, {2, 0}};
    static float x[1 << 14], w[PRODUCTS][1 << 13], out[2][PRODUCTS][1 << 13];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)(i * 7919 % 2003) / 512 - 2;
    for (size_t i = 0; i < sizeof w / sizeof **w; i++)
        w[i % PRODUCTS][i / PRODUCTS] = (float)(i * 31 % 255) / 128 - 1;
    for (int dynamic = 0; dynamic < 2; dynamic++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            int64_t n = batches[b][0], rows = batches[b][1];
            set_option("dynamic", dynamic ? "always" : "never");
            for (int mode = 0; mode < 2; mode++) {
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *in = kiln_from(KILN_F32, KILN_SHAPE(n, rows, DEPTH), x), *y[PRODUCTS];
                set_option("mode", mode ? "interp" : "jit");
                for (int i = 0; i < PRODUCTS; i++)
                    y[i] = kiln_matmul(in, kiln_from(KILN_F32, KILN_SHAPE(DEPTH, HEADS * EACH), w[i]));
                y[0] =
                    kiln_permute(kiln_reshape(kiln_mul(y[0], kiln_scalar(0.25)), KILN_SHAPE(n, rows, HEADS, EACH)), KILN_AXES(0, 2, 1, 3));
                y[0] = kiln_relu(y[0]);
                kiln_stats before = stats_now();
                cr_assert_eq(kiln_eval_many(y, PRODUCTS), KILN_OK, "%s", kiln_error_message());
                kiln_stats after = stats_now();
                if (!mode && !dynamic && n == 3)
                    cr_assert_eq(after.kernels - before.kernels, 1);
                for (int i = 0; i < PRODUCTS; i++)
                    cr_assert_eq(kiln_read(y[i], KILN_F32, out[mode][i], (size_t)(n * rows * HEADS * EACH) * sizeof(float)), KILN_OK);
                kiln_scope_end(scope);
            }
            for (int i = 0; i < PRODUCTS; i++)
                cr_assert_eq(memcmp(out[0][i], out[1][i], (size_t)(n * rows * HEADS * EACH) * sizeof(float)), 0, "%d of %d x %d", i, (int)n,
                             (int)rows);
        }
    end_mode();
}

/* Gradients of the weights have the input in common: one kernel of three products, whatever order their other operands come in. */
Test(product_union, of_gradients)
{
    kiln_scope *scope = kiln_scope_begin();
    const Sizes *s = &sizes[3];
    kiln_tensor *in[1 + 2 * PRODUCTS], *grad[PRODUCTS], *loss = NULL;
    static float jit[PRODUCTS][MOST], interpreted[PRODUCTS][MOST];
    for (int mode = 0; mode < 2; mode++) {
        set_option("mode", mode ? "interp" : "jit");
        inputs(s, in);
        for (int i = 0; i < PRODUCTS; i++)
            in[1 + i] = kiln_param(in[1 + i]);
        for (int i = 0; i < PRODUCTS; i++) {
            kiln_tensor *sum = kiln_sum(kiln_sin(product(s, in, i)));
            loss = i ? kiln_add(loss, sum) : sum;
        }
        cr_assert_eq(kiln_grad(loss, in + 1, PRODUCTS, grad), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_eval_many(grad, PRODUCTS), KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < PRODUCTS; i++)
            cr_assert_eq(kiln_read(grad[i], KILN_F32, mode ? interpreted[i] : jit[i], (size_t)(s->n[i] * s->k) * sizeof(float)), KILN_OK);
    }
    for (int i = 0; i < PRODUCTS; i++)
        cr_assert_eq(memcmp(jit[i], interpreted[i], (size_t)(s->n[i] * s->k) * sizeof(float)), 0, "gradient %d", i);
    kiln_scope_end(scope);
    end_mode();
}

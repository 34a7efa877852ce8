/*
 * Matrix products on a CUDA device: tensor cores where the mode allows them, of views, and products with vectors.
 */
#include "on_cuda.h"

/* relu(a @ b + c) of a[m, k], b[k, 17] in `dtype`, from numbers that tf32 does not hold. */
static void products(kiln_dtype dtype, int64_t m, int64_t k, float *out)
{
    static float data[64 * 64];
    for (int i = 0; i < 64 * 64; i++)
        data[i] = (float)(i * 7919 % 8191) / 8191 - 0.45f;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *a = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(m, k), data), dtype);
    kiln_tensor *b = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(k, 17), data + 5), dtype);
    kiln_tensor *c = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(17), data + 11), dtype);
    kiln_tensor *r = kiln_relu(kiln_add(kiln_matmul(a, b), c));
    cr_assert(kiln_read(kiln_cast(r, KILN_F32), KILN_F32, out, (size_t)(m * 17) * sizeof *out) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
}

static double furthest(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static int64_t compiles(void)
{
    kiln_stats stats = stats_now();
    return stats.compiles;
}

/* Tensor cores: in fast mode, for f32 by an option of its own; each mode is a program of its own, found again. */
Test(cuda_products, tensor_cores_where_the_mode_allows_them)
{
    enum { M = 20, K = 48, N = M * 17 };
    static const struct {
        kiln_dtype dtype;
        const char *tf32;
        double most; /* of fast mode: 0 has the bits of strict mode. Sums are below 16 */
    } rows[] = {{KILN_F16, "0", 0x1p-7}, {KILN_BF16, "0", 0x1p-4}, {KILN_F32, "0", 0}, {KILN_F32, "1", 0x1p-7}};
    float want[N], strict[N], fast[N], again[N];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set_option("device", "cpu");
        set_option("mode", "interp");
        products(rows[i].dtype, M, K, want);
        start_exact("rough=on");
        set_option("mode", "jit");
        set_option("tf32", rows[i].tf32);
        set_option("math", "strict");
        products(rows[i].dtype, M, K, strict);
        cr_assert(memcmp(strict, want, sizeof want) == 0, "strict mode, %s", kiln_dtype_name(rows[i].dtype));
        int64_t before = compiles();
        set_option("math", "fast");
        products(rows[i].dtype, M, K, fast);
        cr_assert(compiles() > before, "fast mode is a program of its own, %s", kiln_dtype_name(rows[i].dtype));
        double off = furthest(fast, want, N);
        cr_assert(off <= rows[i].most, "fast mode, %s: %g", kiln_dtype_name(rows[i].dtype), off);
        cr_assert(rows[i].dtype != KILN_F32 || (off > 0) == (rows[i].most > 0), "tf32 %s", rows[i].tf32);
        before = compiles();
        products(rows[i].dtype, M, K, again);
        set_option("math", "strict");
        products(rows[i].dtype, M, K, strict);
        cr_assert(compiles() == before && memcmp(again, fast, sizeof fast) == 0 && memcmp(strict, want, sizeof want) == 0);
    }
}

/* The order of a sum follows from its length, dtype and device alone: one row or many, sizes compiled in or not. */
Test(cuda_products, tensor_cores_give_a_row_the_same_bits_in_every_program)
{
    enum { M = 20, K = 40 };
    start_exact("rough=on");
    float all[M * 17], one[M * 17];
    products(KILN_BF16, M, K, all);
    for (int i = 0; i < 6; i++) {
        set_option("dynamic", i & 1 ? "always" : "never");
        int64_t m = i < 2 ? M : i < 4 ? 1 : 3;
        products(KILN_BF16, m, K, one);
        cr_assert(memcmp(one, all, (size_t)m * 17 * sizeof *one) == 0, "%d rows, dynamic %d", (int)m, i & 1);
    }
}

static kiln_tensor *whole_numbers(kiln_dtype dtype, kiln_shape shape)
{
    static float data[4096];
    for (int i = 0; i < 4096; i++)
        data[i] = (float)(i * 37 % 19 - 9);
    return kiln_cast(kiln_from(KILN_F32, shape, data), dtype);
}

enum { VIEWS = 12 };

/* Products of views; every sum is a whole number below 2^24, so their order does not show. */
static kiln_tensor *product_of_views(kiln_dtype t, int which)
{
    kiln_tensor *a = whole_numbers(t, KILN_SHAPE(24, 40)), *b = whole_numbers(t, KILN_SHAPE(40, 32));
    kiln_tensor *zero = kiln_int(0), *batch = whole_numbers(t, KILN_SHAPE(3, 24, 40));
    switch (which) {
    case 0: return kiln_matmul(kiln_flip(a, KILN_AXES(1)), b);
    case 1: return kiln_matmul(kiln_pad(a, 2, (kiln_padding[]){{1, 2}, {0, 7}}, zero), kiln_pad(b, 1, (kiln_padding[]){{3, 4}}, zero));
    case 2: return kiln_matmul(kiln_slice_axis(a, 1, 1, 40, 3), kiln_slice_axis(b, 0, 2, 15, 1));
    case 3: return kiln_matmul(kiln_take(a, kiln_from(KILN_I32, KILN_SHAPE(5), (int32_t[]){7, -1, 0, 7, 3}), 0), b);
    case 4: return kiln_matmul(kiln_concat((kiln_tensor *[]){a, kiln_mul(a, a)}, 2, 0), b);
    case 5: return kiln_matmul(batch, b);
    case 6: return kiln_matmul(kiln_permute(batch, KILN_AXES(1, 0, 2)), b);
    case 7: return kiln_matmul(kiln_tril(kiln_matmul(a, kiln_transpose(a)), 0), a);
    case 8: return kiln_matmul(kiln_slice_axis(a, 0, 3, 4, 1), b); /* one row */
    case 9: return kiln_matmul(a, kiln_slice_axis(b, 1, 5, 6, 1)); /* one column */
    case 10: return kiln_matmul(kiln_transpose(b), kiln_transpose(a));
    default:
        return kiln_add(kiln_relu(kiln_matmul(kiln_cast(a, KILN_F32), kiln_cast(b, KILN_F32))),
                        kiln_cast(kiln_flip(kiln_slice_axis(b, 0, 0, 24, 1), KILN_AXES(0)), KILN_F32));
    }
}

Test(cuda_products, tensor_cores_take_views)
{
    static const kiln_dtype types[] = {KILN_BF16, KILN_F16, KILN_F32};
    static float want[4096], got[4096];
    start_exact("rough=on");
    set_option("tf32", "1");
    for (int i = 0; i < VIEWS * 3; i++)
        for (int interp = 1; interp >= 0; interp--) {
            set_option("mode", interp ? "interp" : "jit");
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *r = product_of_views(types[i % 3], i / 3);
            int64_t n = kiln_numel(r);
            cr_assert(r && n <= 4096 && kiln_eval(r) == KILN_OK, "%s", kiln_error_message()); /* rounded to its dtype */
            cr_assert(kiln_read(kiln_cast(r, KILN_F32), KILN_F32, interp ? want : got, (size_t)n * sizeof *got) == KILN_OK, "%s",
                      kiln_error_message());
            for (int64_t x = 0; x < n && !interp; x++)
                cr_assert(got[x] == want[x] || (isnan(got[x]) && isnan(want[x])), "view %d of %s: element %d is %g, not %g", i / 3,
                          kiln_dtype_name(types[i % 3]), (int)x, (double)got[x], (double)want[x]);
            kiln_scope_end(scope);
        }
    kiln_stats stats = stats_now();
    cr_assert(stats.fallbacks == 0);
}

/* [rows, columns] of small numbers of either sign. */
static kiln_tensor *small_numbers(kiln_dtype dtype, float *data, int64_t rows, int64_t columns, int by)
{
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = (float)((int)(i * 11 + i / columns) % by - by / 2) * 0.25f;
    return kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(rows, columns), data), dtype);
}

/* Products with a vector are reductions in fast mode: near the sums in f64, the same bits in every program, one kernel each. */
Test(cuda_products, products_with_vectors)
{
    static const kiln_dtype types[] = {KILN_F32, KILN_F64, KILN_BF16};
    static const int64_t lengths[] = {0, 1, 5, 257, 1024, 40000};
    static float left[40000], right[40000];
    start_exact(NULL);
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        set_option("dynamic", dynamic ? "always" : "never");
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                kiln_scope *scope = kiln_scope_begin();
                int64_t k = lengths[l], m = k > 1024 ? 1 : 9;
                kiln_tensor *a = small_numbers(types[t], left, m, k, 5);
                kiln_tensor *v = kiln_reshape(small_numbers(types[t], right, 1, k, 7), KILN_SHAPE(k));
                double got[9], dot = 0;
                cr_assert(kiln_eval(a) == KILN_OK && kiln_eval(v) == KILN_OK, "%s", kiln_error_message());
                kiln_stats before = stats_now();
                kiln_tensor *y = kiln_matmul(a, v);
                cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
                kiln_stats after = stats_now();
                cr_expect(after.kernels - before.kernels <= 1, "%d kernels", (int)(after.kernels - before.kernels));
                cr_assert(kiln_read(kiln_cast(y, KILN_F64), KILN_F64, got, (size_t)m * 8) == KILN_OK, "%s", kiln_error_message());
                for (int64_t i = 0; i < m; i++) {
                    double want = 0;
                    for (int64_t j = 0; j < k; j++)
                        want += (double)left[i * k + j] * (double)right[j];
                    double error = fabs(got[i] - want);
                    cr_expect(error <= (types[t] == KILN_BF16 ? 0.004 * fabs(want) : 1e-5), "%s, %d elements: %g, not %g",
                              kiln_dtype_name(types[t]), (int)k, got[i], want);
                }
                kiln_tensor *one = kiln_reshape(kiln_slice_axis(a, 0, 0, 1, 1), KILN_SHAPE(k));
                cr_assert(kiln_item(kiln_matmul(one, v), &dot) == KILN_OK, "%s", kiln_error_message());
                cr_expect(dot == got[0], "%s, %d elements: %g as a dot product, %g in a matrix", kiln_dtype_name(types[t]), (int)k, dot,
                          got[0]);
                kiln_scope_end(scope);
            }
    }
    kiln_stats stats = stats_now();
    cr_assert(stats.fallbacks == 0);
}

/* On a device of one multiprocessor 128 x 256 results are one tile, whose shared memory the launch brings. Several times: by a graph, too. */
Test(cuda_products, a_launch_brings_the_memory_of_large_tiles)
{
    enum { M = 128, N = 256, K = 72, TIMES = 4 };
    static float a[M * K], b[K * N], want[M * N], got[M * N];
    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i * 7919 % 8191) / 8191 - 0.45f;
    for (int i = 0; i < K * N; i++)
        b[i] = (float)(i * 104729 % 8191) / 8191 - 0.55f;
    set_option("device", "cpu");
    for (int time = 0; time <= TIMES; time++) {
        if (time == 1)
            start_exact("cc=9.0,sms=1");
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(M, K), a), KILN_F16);
        kiln_tensor *y = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(K, N), b), KILN_F16);
        cr_assert(kiln_eval(x) == KILN_OK && kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
        kiln_tensor *product = kiln_matmul(kiln_cast(x, KILN_F32), kiln_cast(y, KILN_F32));
        cr_assert(kiln_read(product, KILN_F32, time ? got : want, sizeof got) == KILN_OK, "%s", kiln_error_message());
        cr_assert(!time || furthest(got, want, M * N) < 1e-4, "time %d: %g", time, furthest(got, want, M * N));
        kiln_scope_end(scope);
    }
    cr_assert(want[0] != 0);
}

/* Reductions: values, axes, dtypes, empties. */
#include "api.h"

#define X23 F32(KILN_SHAPE(2, 3), 1, 5, 3, 4, 2, 6)

/* Where the result has no elements either, nothing is missing. */
API_TEST(reduce, extremes_of_nothing_for_nobody)
{
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), *none = kiln_zeros(KILN_F32, KILN_SHAPE(0, 0));
    EXPECT_EMPTY(kiln_max_axes(x, KILN_AXES(1), false), KILN_F32, KILN_SHAPE(0));
    EXPECT_EMPTY(kiln_min_axes(none, KILN_AXES(1), true), KILN_F32, KILN_SHAPE(0, 1));
    EXPECT_EMPTY(kiln_argmax_axis(x, 1, false), KILN_I64, KILN_SHAPE(0));
    EXPECT_EMPTY(kiln_argmin_axis(none, 0, false), KILN_I64, KILN_SHAPE(0));
    EXPECT_ERROR(kiln_max_axes(x, KILN_AXES(0), false), KILN_BAD_SHAPE, "there is no value of zero elements");
    EXPECT_ERROR(kiln_argmax_axis(x, 0, false), KILN_BAD_SHAPE, "there is no value of zero elements");
}

API_TEST(reduce, sums_and_axes)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_sum(x), KILN_F32, KILN_SHAPE(), 0, 21);
    EXPECT(kiln_sum_axes(x, KILN_AXES(0), false), KILN_F32, KILN_SHAPE(3), 0, 5, 7, 9);
    EXPECT(kiln_sum_axes(x, KILN_AXES(-1), false), KILN_F32, KILN_SHAPE(2), 0, 9, 12);
    EXPECT(kiln_sum_axes(x, KILN_AXES(1), true), KILN_F32, KILN_SHAPE(2, 1), 0, 9, 12);
    EXPECT(kiln_sum_axes(x, KILN_AXES(0, 1), true), KILN_F32, KILN_SHAPE(1, 1), 0, 21);
    EXPECT(kiln_sum_axes(x, KILN_ALL_AXES, false), KILN_F32, KILN_SHAPE(), 0, 21);
    EXPECT(kiln_sum_axes(x, KILN_AXES(), false), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 5, 3, 4, 2, 6);
    EXPECT(kiln_prod(x), KILN_F32, KILN_SHAPE(), 0, 720);
    EXPECT(kiln_prod_axes(x, KILN_AXES(0), false), KILN_F32, KILN_SHAPE(3), 0, 4, 10, 18);
    kiln_tensor *cube = kiln_reshape(kiln_arange(KILN_F32, 0, 24, 1), KILN_SHAPE(2, 3, 4));
    EXPECT(kiln_sum_axes(cube, KILN_AXES(0, 2), false), KILN_F32, KILN_SHAPE(3), 0, 60, 92, 124);
    EXPECT(kiln_sum_axes(cube, KILN_AXES(1), false), KILN_F32, KILN_SHAPE(2, 4), 0, 12, 15, 18, 21, 48, 51, 54, 57);
}

API_TEST(reduce, extremes)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_max(x), KILN_F32, KILN_SHAPE(), 0, 6);
    EXPECT(kiln_min(x), KILN_F32, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_max_axes(x, KILN_AXES(1), false), KILN_F32, KILN_SHAPE(2), 0, 5, 6);
    EXPECT(kiln_min_axes(x, KILN_AXES(0), true), KILN_F32, KILN_SHAPE(1, 3), 0, 1, 2, 3);
    EXPECT(kiln_argmax(x), KILN_I64, KILN_SHAPE(), 0, 5);
    EXPECT(kiln_argmin(x), KILN_I64, KILN_SHAPE(), 0, 0);
    EXPECT(kiln_argmax_axis(x, 1, false), KILN_I64, KILN_SHAPE(2), 0, 1, 2);
    EXPECT(kiln_argmax_axis(x, 0, true), KILN_I64, KILN_SHAPE(1, 3), 0, 1, 0, 1);
    EXPECT(kiln_argmin_axis(x, -1, false), KILN_I64, KILN_SHAPE(2), 0, 0, 1);
    EXPECT(kiln_argmax(I32(KILN_SHAPE(4), 3, 7, 7, 1)), KILN_I64, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_argmax(BOOL(KILN_SHAPE(3), 0, 1, 1)), KILN_I64, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_argmax(F32(KILN_SHAPE(4), 3, NAN, 9, NAN)), KILN_I64, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_argmin(F32(KILN_SHAPE(3), 3, NAN, -9)), KILN_I64, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_argmax(F32(KILN_SHAPE(), 3)), KILN_I64, KILN_SHAPE(), 0, 0);
    EXPECT(kiln_max(F32(KILN_SHAPE(3), 1, NAN, 2)), KILN_F32, KILN_SHAPE(), 0, NAN);
    EXPECT(kiln_max(F32(KILN_SHAPE(2), -INFINITY, -INFINITY)), KILN_F32, KILN_SHAPE(), 0, -INFINITY);
    EXPECT(kiln_min(I32(KILN_SHAPE(2), INT32_MAX, INT32_MAX)), KILN_I32, KILN_SHAPE(), 0, INT32_MAX);
}

API_TEST(reduce, any_and_all)
{
    kiln_tensor *x = BOOL(KILN_SHAPE(2, 2), 0, 1, 1, 1);
    EXPECT(kiln_any(x), KILN_BOOL, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_all(x), KILN_BOOL, KILN_SHAPE(), 0, 0);
    EXPECT(kiln_all_axes(x, KILN_AXES(1), false), KILN_BOOL, KILN_SHAPE(2), 0, 0, 1);
    EXPECT(kiln_any_axes(F32(KILN_SHAPE(2, 1), 0, 0.5f), KILN_AXES(1), true), KILN_BOOL, KILN_SHAPE(2, 1), 0, 0, 1);
    EXPECT(kiln_any(F32(KILN_SHAPE(1), NAN)), KILN_BOOL, KILN_SHAPE(), 0, 1);
}

API_TEST(reduce, statistics)
{
    kiln_tensor *x = F64(KILN_SHAPE(4), 1, 2, 4, 9);
    EXPECT(kiln_mean(x), KILN_F64, KILN_SHAPE(), 1e-15, 4);
    EXPECT(kiln_var(x, 0), KILN_F64, KILN_SHAPE(), 1e-15, 9.5);
    EXPECT(kiln_var(x, 1), KILN_F64, KILN_SHAPE(), 1e-15, 38.0 / 3);
    EXPECT(kiln_std(x, 0), KILN_F64, KILN_SHAPE(), 1e-15, sqrt(9.5));
    EXPECT(kiln_mean_axes(X23, KILN_AXES(0), false), KILN_F32, KILN_SHAPE(3), 0, 2.5, 3.5, 4.5);
    EXPECT(kiln_var_axes(X23, KILN_AXES(1), 0, true), KILN_F32, KILN_SHAPE(2, 1), 1e-6, 8.0 / 3, 8.0 / 3);
    EXPECT(kiln_std_axes(X23, KILN_AXES(1), 1, false), KILN_F32, KILN_SHAPE(2), 1e-6, 2, 2);
    EXPECT(kiln_mean(I32(KILN_SHAPE(2), 1, 2)), KILN_F32, KILN_SHAPE(), 0, 1.5);
    EXPECT(kiln_mean(BOOL(KILN_SHAPE(4), 1, 0, 0, 0)), KILN_F32, KILN_SHAPE(), 0, 0.25);
    EXPECT(kiln_var(F32(KILN_SHAPE(1), 3), 1), KILN_F32, KILN_SHAPE(), 0, NAN);
    EXPECT(kiln_var(F32(KILN_SHAPE(2), 1000000, 1000002), 0), KILN_F32, KILN_SHAPE(), 0, 1); /* two passes */
    kiln_tensor *big = kiln_full(KILN_F16, KILN_SHAPE(1000), 300);
    EXPECT(kiln_mean(big), KILN_F16, KILN_SHAPE(), 0, 300); /* the sum is beyond f16 */
}

API_TEST(reduce, dtypes_of_sums)
{
    static const struct {
        kiln_dtype in, out;
    } rows[] = {{KILN_BOOL, KILN_I64},  {KILN_I8, KILN_I64},  {KILN_I16, KILN_I64}, {KILN_I32, KILN_I64}, {KILN_I64, KILN_I64},
                {KILN_U8, KILN_U64},    {KILN_U16, KILN_U64}, {KILN_U32, KILN_U64}, {KILN_U64, KILN_U64}, {KILN_F16, KILN_F16},
                {KILN_BF16, KILN_BF16}, {KILN_F32, KILN_F32}, {KILN_F64, KILN_F64}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        kiln_tensor *x = kiln_ones(rows[k].in, KILN_SHAPE(200));
        expect((int)k, kiln_sum(x), rows[k].out, KILN_SHAPE(), 0, (double[]){200}, 1);
        expect((int)k, kiln_prod(x), rows[k].out, KILN_SHAPE(), 0, (double[]){1}, 1);
    }
    EXPECT(kiln_sum(kiln_full(KILN_I8, KILN_SHAPE(300), 100)), KILN_I64, KILN_SHAPE(), 0, 30000);
    EXPECT(kiln_sum(kiln_full(KILN_F16, KILN_SHAPE(4096), 0.25)), KILN_F16, KILN_SHAPE(), 0, 1024); /* in f32 */
}

API_TEST(reduce, logsumexp)
{
    EXPECT(kiln_logsumexp(F32(KILN_SHAPE(2), 1000, 1000)), KILN_F32, KILN_SHAPE(), 1e-6, 1000 + log(2));
    EXPECT(kiln_logsumexp(F32(KILN_SHAPE(2), -INFINITY, -INFINITY)), KILN_F32, KILN_SHAPE(), 0, -INFINITY);
    EXPECT(kiln_logsumexp(F32(KILN_SHAPE(2), INFINITY, 1)), KILN_F32, KILN_SHAPE(), 0, INFINITY);
    EXPECT(kiln_logsumexp(F32(KILN_SHAPE(2), NAN, 1)), KILN_F32, KILN_SHAPE(), 0, NAN);
    EXPECT(kiln_logsumexp_axes(F64(KILN_SHAPE(2, 2), 0, 0, 1, 2), KILN_AXES(1), true), KILN_F64, KILN_SHAPE(2, 1), 1e-14, log(2),
           log(exp(1) + exp(2)));
    EXPECT(kiln_logsumexp(kiln_zeros(KILN_F32, KILN_SHAPE(0))), KILN_F32, KILN_SHAPE(), 0, -INFINITY);
}

API_TEST(reduce, of_nothing)
{
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(0)), *wide = kiln_zeros(KILN_F32, KILN_SHAPE(2, 0));
    EXPECT(kiln_sum(x), KILN_F32, KILN_SHAPE(), 1e-9, 0);
    EXPECT(kiln_prod(x), KILN_F32, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_any(x), KILN_BOOL, KILN_SHAPE(), 0, 0);
    EXPECT(kiln_all(x), KILN_BOOL, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_mean(x), KILN_F32, KILN_SHAPE(), 0, NAN);
    EXPECT(kiln_var(x, 0), KILN_F32, KILN_SHAPE(), 0, NAN);
    EXPECT(kiln_sum_axes(wide, KILN_AXES(1), false), KILN_F32, KILN_SHAPE(2), 1e-9, 0, 0);
    EXPECT_EMPTY(kiln_sum_axes(wide, KILN_AXES(0), false), KILN_F32, KILN_SHAPE(0));
    EXPECT_EMPTY(kiln_max_axes(wide, KILN_AXES(0), false), KILN_F32, KILN_SHAPE(0));
    EXPECT_ERROR(kiln_max(x), KILN_BAD_SHAPE, "kiln_max", "zero elements", "f32[0]");
    EXPECT_ERROR(kiln_min_axes(wide, KILN_AXES(1), false), KILN_BAD_SHAPE, "kiln_min_axes", "f32[2,0]");
    EXPECT_ERROR(kiln_argmax(x), KILN_BAD_SHAPE, "kiln_argmax");
    EXPECT_ERROR(kiln_argmin_axis(wide, 1, false), KILN_BAD_SHAPE, "kiln_argmin_axis");
}

API_TEST(reduce, bad_axes)
{
    kiln_tensor *x = X23;
    EXPECT_ERROR(kiln_sum_axes(x, KILN_AXES(2), false), KILN_INVALID, "kiln_sum_axes: axis 2 does not exist: x is f32[2,3]");
    EXPECT_ERROR(kiln_mean_axes(x, KILN_AXES(-3), false), KILN_INVALID, "axis -3");
    EXPECT_ERROR(kiln_max_axes(x, KILN_AXES(1, -1), false), KILN_INVALID, "axis -1 is named twice");
    EXPECT_ERROR(kiln_argmax_axis(x, 5, false), KILN_INVALID, "kiln_argmax_axis", "axis 5");
    EXPECT_ERROR(kiln_sum_axes(x, KILN_AXES(0, 0, 0, 0, 0, 0, 0, 0, 0), false), KILN_INVALID, "9 axes");
    EXPECT_ERROR(kiln_var(x, NAN), KILN_INVALID, "kiln_var: correction is nan");
    EXPECT_ERROR(kiln_sum_axes(F32(KILN_SHAPE(), 1), KILN_AXES(0), false), KILN_INVALID, "f32[]");
}

API_TEST(reduce, large)
{
    int64_t n = 100003;
    kiln_tensor *x = kiln_arange(KILN_F64, 0, (double)n, 1);
    EXPECT(kiln_sum(x), KILN_F64, KILN_SHAPE(), 1e-15, (double)n * (double)(n - 1) / 2);
    EXPECT(kiln_max(x), KILN_F64, KILN_SHAPE(), 0, (double)(n - 1));
    EXPECT(kiln_argmax(kiln_remainder(x, kiln_scalar(50000))), KILN_I64, KILN_SHAPE(), 0, 49999);
    EXPECT(kiln_sum(kiln_ones(KILN_F32, KILN_SHAPE(20000000))), KILN_F32, KILN_SHAPE(), 0, 20000000);
}

/* Lengths at which an accumulator of the operand's own dtype would stop growing. */
API_TEST(reduce, accumulators_do_not_saturate)
{
    static const struct {
        kiln_dtype dtype;
        int64_t n;
    } rows[] = {{KILN_F32, 3 << 23}, {KILN_F16, 4096},  {KILN_BF16, 512}, {KILN_I8, 1000},
                {KILN_U8, 1000},     {KILN_BOOL, 1000}, {KILN_I32, 100}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        double value = 0;
        kiln_tensor *x = kiln_ones(rows[k].dtype, KILN_SHAPE(rows[k].n));
        cr_assert(kiln_item(kiln_sum(x), &value) == KILN_OK && value == (double)rows[k].n, "%s: sum of %d ones is %g",
                  kiln_dtype_name(rows[k].dtype), (int)rows[k].n, value);
        cr_assert(kiln_item(kiln_mean(x), &value) == KILN_OK && value == 1, "%s: mean of %d ones is %g", kiln_dtype_name(rows[k].dtype),
                  (int)rows[k].n, value);
        if (rows[k].n > 1 << 20)
            continue;
        cr_assert(kiln_item(kiln_select(kiln_cumsum(x, 0), 0, -1), &value) == KILN_OK && value == (double)rows[k].n,
                  "%s: running sum of %d ones is %g", kiln_dtype_name(rows[k].dtype), (int)rows[k].n, value);
        if (rows[k].dtype == KILN_F16 || rows[k].dtype == KILN_BF16)
            cr_assert(kiln_item(kiln_matmul(x, x), &value) == KILN_OK && value == (double)rows[k].n, "%s: %d ones times ones is %g",
                      kiln_dtype_name(rows[k].dtype), (int)rows[k].n, value);
    }
    double value = 0;
    cr_assert(kiln_item(kiln_sum(kiln_full_int(KILN_I32, KILN_SHAPE(3), INT32_MAX)), &value) == KILN_OK && value == 3.0 * INT32_MAX);
    cr_assert(kiln_item(kiln_mean(kiln_full(KILN_F16, KILN_SHAPE(70000), 60000)), &value) == KILN_OK && fabs(value - 60000) <= 32,
              "mean of large f16 is %g", value);
}

/* Tiles that no edge cuts have code of their own (jit/pieces.h), and so may those of rows that none cuts; what is computed once a row, of what
 * was padded along rows alone, is not theirs. */
API_TEST(reduce, of_what_is_padded_along_rows_beside_windows)
{
    enum { ROWS = 6, COLUMNS = 66, DEEP = 3, OUT_ROWS = ROWS + 2, OUT_COLUMNS = COLUMNS + 4 };
    static float x[ROWS][COLUMNS][DEEP], beside[100 + ROWS + 100];
    static double want[OUT_ROWS][OUT_COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS * DEEP; i++)
        (&x[0][0][0])[i] = (float)(i % 17);
    for (int i = 0; i < 200 + ROWS; i++) /* no memory around those that are read has zeros */
        beside[i] = (float)(1000 + i);
    for (int i = 0; i < OUT_ROWS; i++) {
        bool in = i >= 1 && i < ROWS + 1;
        for (int j = 0; j < OUT_COLUMNS; j++) {
            double sum = DEEP * (in ? 2 * beside[100 + i - 1] + 1 : 1);
            for (int k = 0; k < DEEP && in && j >= 2 && j < COLUMNS + 2; k++)
                sum += x[i - 1][j - 2][k];
            want[i][j] = sum;
        }
    }
    kiln_tensor *all = kiln_from(KILN_F32, KILN_SHAPE(200 + ROWS), beside), *some = kiln_slice_axis(all, 0, 100, 100 + ROWS, 1);
    kiln_check(kiln_eval(all));
    kiln_tensor *a = kiln_pad(kiln_from(KILN_F32, KILN_SHAPE(ROWS, COLUMNS, DEEP), x), 2, (kiln_padding[]){{1, 1}, {2, 2}}, kiln_int(0));
    kiln_tensor *b = kiln_add(kiln_mul(kiln_pad(some, 1, (kiln_padding[]){{1, 1}}, kiln_int(0)), 2.0), 1.0);
    kiln_tensor *y = kiln_sum_axes(kiln_add(a, kiln_reshape(b, KILN_SHAPE(OUT_ROWS, 1, 1))), KILN_AXES(2), false);
    expect(__LINE__, y, KILN_F32, KILN_SHAPE(OUT_ROWS, OUT_COLUMNS), 0, &want[0][0], (size_t)OUT_ROWS * OUT_COLUMNS);
}

/* Distances of n points, folded over a short axis along which lanes do not run: the second points are turned before. Bits are the interpreter's. */
static void distances(int64_t n, int64_t m, int64_t k, bool sum, const char *bits)
{
    enum { MOST = 701 * 700 };
    static float want[MOST], got[MOST];
    for (int jit = 0; jit < 2; jit++) {
        set_option("mode", jit ? "jit" : "interp");
        set_option("vector_bits", bits);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_reshape(kiln_mul(kiln_arange(KILN_F32, 0, (double)(n * k), 1), 0.0137), KILN_SHAPE(n, 1, k));
        kiln_tensor *y = kiln_reshape(kiln_mul(kiln_arange(KILN_F32, 0, (double)(m * k), 1), -0.0071), KILN_SHAPE(1, m, k));
        cr_assert(kiln_eval(x) == KILN_OK && kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
        kiln_tensor *apart = kiln_sub(x, y);
        apart = sum ? kiln_sum_axes(kiln_square(apart), KILN_AXES(2), false) : kiln_max_axes(kiln_abs(apart), KILN_AXES(2), false);
        cr_assert_eq(kiln_read(apart, KILN_F32, jit ? got : want, (size_t)(n * m) * 4), KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
    }
    cr_assert_eq(memcmp(want, got, (size_t)(n * m) * 4), 0, "%d x %d of %d, %s, %s bits", (int)n, (int)m, (int)k, sum ? "sum" : "max",
                 bits);
}

Test(reduce, distances_of_many_points)
{
    static const char *const bits[] = {"128", "256", "512"};
    begin_mode(1);
    set_option("math", "strict");
    for (int b = 0; b < 3; b++) {
        distances(259, 257, 64, true, bits[b]);
        distances(701, 700, 9, true, bits[b]);
        distances(353, 371, 33, b != 1, bits[b]);
    }
    end_mode();
}

/* Filled tensors, ranges, memory copied and borrowed, random numbers. */
#include "api.h"

#include <stdint.h>

API_TEST(create, filled)
{
    EXPECT(kiln_zeros(KILN_F32, KILN_SHAPE(2, 2)), KILN_F32, KILN_SHAPE(2, 2), 0, 0, 0, 0, 0);
    EXPECT(kiln_ones(KILN_BOOL, KILN_SHAPE(2)), KILN_BOOL, KILN_SHAPE(2), 0, 1, 1);
    EXPECT(kiln_full(KILN_I16, KILN_SHAPE(2), -7), KILN_I16, KILN_SHAPE(2), 0, -7, -7);
    EXPECT_ERROR(kiln_full(KILN_I16, KILN_SHAPE(2), -7.9), KILN_INVALID, "kiln_full: -7.9 is no whole number: the dtype is i16");
    EXPECT_ERROR(kiln_full(KILN_U64, KILN_SHAPE(2), 0.5), KILN_INVALID, "kiln_full: 0.5 is no whole number");
    EXPECT(kiln_full(KILN_F64, KILN_SHAPE(), 0.1), KILN_F64, KILN_SHAPE(), 0, 0.1);
    EXPECT(kiln_full(KILN_F16, KILN_SHAPE(1), 0.1), KILN_F16, KILN_SHAPE(1), 1e-4, 0.1);
    EXPECT_EMPTY(kiln_full(KILN_F32, KILN_SHAPE(0, 7), 3), KILN_F32, KILN_SHAPE(0, 7));
    int64_t value;
    cr_assert(kiln_item_int(kiln_full_int(KILN_I64, KILN_SHAPE(1), INT64_MAX - 1), &value) == KILN_OK);
    cr_assert(value == INT64_MAX - 1);
    kiln_tensor *x = kiln_zeros(KILN_U8, KILN_SHAPE(2));
    EXPECT(kiln_ones_like(x), KILN_U8, KILN_SHAPE(2), 0, 1, 1);
    EXPECT(kiln_zeros_like(x), KILN_U8, KILN_SHAPE(2), 0, 0, 0);
    EXPECT(kiln_full_like(x, 255), KILN_U8, KILN_SHAPE(2), 0, 255, 255);
    EXPECT_ERROR(kiln_full_like(x, 256), KILN_INVALID, "kiln_full_like: 256 does not fit u8");
    EXPECT_ERROR(kiln_full(KILN_I32, KILN_SHAPE(1), NAN), KILN_INVALID, "nan does not fit i32");
    EXPECT_ERROR(kiln_full(KILN_I8, KILN_SHAPE(1), -129), KILN_INVALID, "-129 does not fit i8");
    EXPECT_ERROR(kiln_full_int(KILN_U32, KILN_SHAPE(1), -1), KILN_INVALID, "-1 does not fit u32");
    EXPECT_ERROR(kiln_zeros((kiln_dtype)77, KILN_SHAPE(1)), KILN_INVALID, "kiln_zeros: dtype 77 does not exist");
    EXPECT_ERROR(kiln_zeros(KILN_F32, KILN_SHAPE(-1)), KILN_BAD_SHAPE, "dim 0 of the shape is -1");
    EXPECT_ERROR(kiln_zeros(KILN_F32, KILN_SHAPE(INT64_C(1) << 31, INT64_C(1) << 32)), KILN_OVERFLOW, "2^62");
    EXPECT_ERROR(kiln_zeros(KILN_F32, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1)), KILN_BAD_SHAPE, "rank 9");
    EXPECT_EMPTY(kiln_zeros(KILN_F32, KILN_SHAPE(0, INT64_C(1) << 62)), KILN_F32, KILN_SHAPE(0, INT64_C(1) << 62));
}

API_TEST(create, ranges)
{
    EXPECT(kiln_arange(KILN_I32, 0, 5, 1), KILN_I32, KILN_SHAPE(5), 0, 0, 1, 2, 3, 4);
    EXPECT(kiln_arange(KILN_F32, 1, 2, 0.25), KILN_F32, KILN_SHAPE(4), 0, 1, 1.25, 1.5, 1.75);
    EXPECT(kiln_arange(KILN_I64, 5, 0, -2), KILN_I64, KILN_SHAPE(3), 0, 5, 3, 1);
    EXPECT(kiln_arange(KILN_U8, 250, 256, 1), KILN_U8, KILN_SHAPE(6), 0, 250, 251, 252, 253, 254, 255);
    EXPECT_EMPTY(kiln_arange(KILN_F32, 5, 0, 1), KILN_F32, KILN_SHAPE(0));
    EXPECT_ERROR(kiln_arange(KILN_F32, 0, 1, 0), KILN_INVALID, "kiln_arange", "step 0");
    EXPECT_ERROR(kiln_arange(KILN_F32, 0, INFINITY, 1), KILN_INVALID, "stop inf");
    EXPECT_ERROR(kiln_arange(KILN_I32, 0, 2, 0.5), KILN_INVALID, "whole numbers");
    EXPECT_ERROR(kiln_arange(KILN_U8, 0, 300, 1), KILN_INVALID, "299 does not fit u8");
    EXPECT_ERROR(kiln_arange(KILN_BOOL, 0, 2, 1), KILN_BAD_DTYPE, "bool");
    EXPECT_ERROR(kiln_arange(KILN_F64, 0, 1e300, 1), KILN_OVERFLOW, "2^62");
    EXPECT(kiln_linspace(KILN_F64, 0, 1, 5), KILN_F64, KILN_SHAPE(5), 0, 0, 0.25, 0.5, 0.75, 1);
    EXPECT(kiln_linspace(KILN_F32, 3, -3, 2), KILN_F32, KILN_SHAPE(2), 0, 3, -3);
    EXPECT(kiln_linspace(KILN_F32, 3, 9, 1), KILN_F32, KILN_SHAPE(1), 0, 3);
    EXPECT_EMPTY(kiln_linspace(KILN_F32, 3, 9, 0), KILN_F32, KILN_SHAPE(0));
    EXPECT_ERROR(kiln_linspace(KILN_I32, 0, 1, 2), KILN_BAD_DTYPE, "kiln_linspace: dtype is i32");
    EXPECT_ERROR(kiln_linspace(KILN_F32, 0, 1, -1), KILN_INVALID, "n -1");
    EXPECT(kiln_eye(KILN_F32, 2, 3, 0), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 0, 0, 0, 1, 0);
    EXPECT(kiln_eye(KILN_BOOL, 3, 3, -1), KILN_BOOL, KILN_SHAPE(3, 3), 0, 0, 0, 0, 1, 0, 0, 0, 1, 0);
    EXPECT(kiln_eye(KILN_I32, 1, 2, INT64_MAX), KILN_I32, KILN_SHAPE(1, 2), 0, 0, 0);
    EXPECT_EMPTY(kiln_eye(KILN_F32, 0, 3, 0), KILN_F32, KILN_SHAPE(0, 3));
    EXPECT_ERROR(kiln_eye(KILN_F32, -1, 3, 0), KILN_BAD_SHAPE, "kiln_eye");
}

API_TEST(create, from_copies)
{
    float data[3] = {1, 2, 3};
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), data);
    data[0] = 9;
    EXPECT(x, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
    EXPECT(BOOL(KILN_SHAPE(3), 0, 7, 255), KILN_BOOL, KILN_SHAPE(3), 0, 0, 1, 1);
    EXPECT_EMPTY(kiln_from(KILN_F32, KILN_SHAPE(0), NULL), KILN_F32, KILN_SHAPE(0));
    EXPECT_ERROR(kiln_from(KILN_F32, KILN_SHAPE(1), NULL), KILN_INVALID, "kiln_from: data is NULL");
    EXPECT_ERROR(kiln_from(KILN_F64, KILN_SHAPE(INT64_C(1) << 60), data), KILN_OVERFLOW, "2^62 bytes");
}

static int deleted;
static void *deleted_data;

static void deleter(void *data, void *user)
{
    deleted += *(int *)user;
    deleted_data = data;
}

API_TEST(create, wrap_borrows_until_the_last_user_is_gone)
{
    static int weight = 1;
    float data[4] = {1, 2, 3, 4};
    deleted = 0;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(4), data, deleter, &weight);
    kiln_tensor *view = kiln_keep(kiln_reshape(x, KILN_SHAPE(2, 2)));
    kiln_scope_end(scope);
    cr_assert(deleted == 0, "a pending view still needs the memory");
    EXPECT(view, KILN_F32, KILN_SHAPE(2, 2), 0, 1, 2, 3, 4);
    cr_assert(data[0] == 1 && data[3] == 4);
    scope = kiln_scope_begin();
    deleted = 0;
    kiln_wrap(KILN_F32, KILN_SHAPE(4), data, deleter, &weight);
    kiln_scope_end(scope);
    cr_assert(deleted == 1 && deleted_data == data);
    deleted = 0;
    EXPECT_ERROR(kiln_wrap(KILN_F32, KILN_SHAPE(2), (char *)data + 1, deleter, &weight), KILN_INVALID, "not aligned to 4");
    EXPECT_ERROR(kiln_wrap(KILN_F32, KILN_SHAPE(-2), data, deleter, &weight), KILN_BAD_SHAPE, "kiln_wrap");
    EXPECT_ERROR(kiln_wrap(KILN_F32, KILN_SHAPE(2), NULL, deleter, &weight), KILN_INVALID, "NULL");
    cr_assert(deleted == 0, "a refused wrap does not call the deleter");
    EXPECT_EMPTY(kiln_wrap(KILN_F32, KILN_SHAPE(0), NULL, NULL, NULL), KILN_F32, KILN_SHAPE(0));
}

API_TEST(create, wrap_with_strides)
{
    float data[6] = {1, 2, 3, 4, 5, 6};
    kiln_tensor *column = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3, 2), (int64_t[]){1, 3}, data, NULL, NULL);
    EXPECT(column, KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
    EXPECT(kiln_add(column, kiln_int(1)), KILN_F32, KILN_SHAPE(3, 2), 0, 2, 5, 3, 6, 4, 7);
    kiln_tensor *back = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), (int64_t[]){-2}, data + 5, NULL, NULL);
    EXPECT(back, KILN_F32, KILN_SHAPE(3), 0, 6, 4, 2);
    EXPECT(kiln_neg(back), KILN_F32, KILN_SHAPE(3), 0, -6, -4, -2);
    EXPECT(kiln_sum_axes(column, KILN_AXES(0), false), KILN_F32, KILN_SHAPE(2), 0, 6, 15);
    kiln_tensor *same = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), (int64_t[]){0}, data + 2, NULL, NULL);
    EXPECT(kiln_mul(same, same), KILN_F32, KILN_SHAPE(3), 0, 9, 9, 9);
    kiln_tensor *packed = kiln_wrap_strided(KILN_F32, KILN_SHAPE(2, 3), (int64_t[]){3, 1}, data, NULL, NULL);
    EXPECT(kiln_transpose(packed), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
    const void *dense;
    cr_assert(kiln_data(column, &dense) == KILN_OK);
    cr_assert(((const float *)dense)[1] == 4 && ((const float *)dense)[2] == 2);
    EXPECT_ERROR(kiln_wrap_strided(KILN_F32, KILN_SHAPE(2), NULL, data, NULL, NULL), KILN_INVALID, "strides is NULL");
    EXPECT_ERROR(kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), (int64_t[]){INT64_MAX}, data, NULL, NULL), KILN_OVERFLOW, "strides");
}

API_TEST(create, touch)
{
    float data[2] = {1, 2};
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(2), data, NULL, NULL);
    EXPECT(kiln_neg(x), KILN_F32, KILN_SHAPE(2), 0, -1, -2);
    data[0] = 5;
    kiln_touch(x);
    EXPECT(kiln_neg(x), KILN_F32, KILN_SHAPE(2), 0, -5, -2);
    kiln_touch(NULL);
    kiln_touch(kiln_ones(KILN_F32, KILN_SHAPE(2)));
    static int weight = 1;
    deleted = 0;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = kiln_wrap(KILN_F32, KILN_SHAPE(2), data, deleter, &weight);
    kiln_touch(y);
    kiln_touch(y);
    cr_assert(deleted == 0);
    kiln_scope_end(scope);
    cr_assert(deleted == 1, "the deleter runs once: %d", deleted);
    for (int i = 0; i < 300000; i++) /* versions do not pile up */
        kiln_touch(x);
    EXPECT(kiln_neg(x), KILN_F32, KILN_SHAPE(2), 0, -5, -2);
}

/* ---- random numbers ---- */

enum { N = 20000 };

static void moments(kiln_tensor *x, double *mean, double *variance, double *low, double *high)
{
    double *data = malloc(N * sizeof *data);
    cr_assert(kiln_read(kiln_cast(x, KILN_F64), KILN_F64, data, N * sizeof *data) == KILN_OK, "%s", kiln_error_message());
    *mean = *variance = 0;
    *low = INFINITY;
    *high = -INFINITY;
    for (int i = 0; i < N; i++) {
        *mean += data[i] / N;
        *low = fmin(*low, data[i]);
        *high = fmax(*high, data[i]);
    }
    for (int i = 0; i < N; i++)
        *variance += (data[i] - *mean) * (data[i] - *mean) / N;
    free(data);
}

API_TEST(random, distributions)
{
    static const kiln_dtype types[] = {KILN_F16, KILN_BF16, KILN_F32, KILN_F64};
    double mean, variance, low, high;
    kiln_seed(1);
    for (int t = 0; t < 4; t++) {
        moments(kiln_uniform(types[t], KILN_SHAPE(N), -1, 3), &mean, &variance, &low, &high);
        cr_assert(fabs(mean - 1) < 0.03 && fabs(variance - 16.0 / 12) < 0.03, "%g %g", mean, variance);
        cr_assert(low >= -1 && high <= 3 && low < -0.99 && high > 2.99);
        moments(kiln_normal(types[t], KILN_SHAPE(N / 100, 100), 2, 0.5), &mean, &variance, &low, &high);
        cr_assert(fabs(mean - 2) < 0.015 && fabs(variance - 0.25) < 0.01, "%g %g", mean, variance);
        cr_assert(low > -1 && high < 5 && low < 0.7 && high > 3.3);
    }
    moments(kiln_randint(KILN_I8, KILN_SHAPE(N), -3, 4), &mean, &variance, &low, &high);
    cr_assert(fabs(mean) < 0.05 && fabs(variance - 4) < 0.1 && low == -3 && high == 3);
    EXPECT(kiln_uniform(KILN_F32, KILN_SHAPE(2), 5, 5), KILN_F32, KILN_SHAPE(2), 0, 5, 5);
    EXPECT_EMPTY(kiln_normal(KILN_F32, KILN_SHAPE(0), 0, 1), KILN_F32, KILN_SHAPE(0));
}

static double first(kiln_tensor *x)
{
    double value = NAN;
    cr_assert(kiln_item(kiln_select(kiln_flatten(x), 0, 0), &value) == KILN_OK, "%s", kiln_error_message());
    return value;
}

API_TEST(random, stream)
{
    kiln_seed(42);
    double a = first(kiln_uniform(KILN_F64, KILN_SHAPE(3), 0, 1)), b = first(kiln_uniform(KILN_F64, KILN_SHAPE(3), 0, 1));
    cr_assert(a != b, "two draws differ");
    kiln_seed(42);
    kiln_uniform(KILN_F64, KILN_SHAPE(3), 0, 1); /* never used, but advances */
    cr_assert(first(kiln_uniform(KILN_F64, KILN_SHAPE(3), 0, 1)) == b);
    kiln_seed(42);
    cr_assert(first(kiln_uniform(KILN_F64, KILN_SHAPE(1000, 2), 0, 1)) == a, "independent of the size");
    kiln_seed(43);
    cr_assert(first(kiln_uniform(KILN_F64, KILN_SHAPE(3), 0, 1)) != a);
    kiln_seed(7);
    kiln_tensor *x = kiln_normal(KILN_F32, KILN_SHAPE(4), 0, 1), *y = kiln_normal(KILN_F32, KILN_SHAPE(4), 0, 1);
    double difference;
    cr_assert(kiln_item(kiln_max(kiln_abs(kiln_sub(x, y))), &difference) == KILN_OK);
    cr_assert(difference > 0, "two draws in one graph are not one");
    cr_assert(kiln_item(kiln_max(kiln_abs(kiln_sub(x, x))), &difference) == KILN_OK);
    cr_assert(difference == 0, "one draw has one value");
}

API_TEST(random, known_answer)
{
    /* Threefry-2x32-20 of counter (0, 0) and key (0, 0) is 6b200159 99ba4efe (the authors' test
     * vectors). */
    kiln_seed(0);
    double x = first(kiln_uniform(KILN_F32, KILN_SHAPE(1), 0, 1));
    cr_assert(x == (double)(0x6b200159u >> 8) / 16777216, "%.9g", x);
}

API_TEST(random, bad_input)
{
    EXPECT_ERROR(kiln_uniform(KILN_I32, KILN_SHAPE(1), 0, 1), KILN_BAD_DTYPE, "kiln_uniform: dtype is i32: a float is needed");
    EXPECT_ERROR(kiln_uniform(KILN_F32, KILN_SHAPE(1), 1, 0), KILN_INVALID, "low 1 and high 0");
    EXPECT_ERROR(kiln_uniform(KILN_F32, KILN_SHAPE(1), 0, INFINITY), KILN_INVALID, "finite");
    EXPECT_ERROR(kiln_uniform(KILN_F32, KILN_SHAPE(1), -3e38, 3e38), KILN_INVALID, "fits f32");
    EXPECT_ERROR(kiln_uniform(KILN_F16, KILN_SHAPE(1), 1e39, 1e39), KILN_INVALID, "finite");
    EXPECT_ERROR(kiln_uniform(KILN_F64, KILN_SHAPE(1), -1.7e308, 1.7e308), KILN_INVALID, "fits f64");
    EXPECT_ERROR(kiln_normal(KILN_F32, KILN_SHAPE(1), 0, -1), KILN_INVALID, "kiln_normal", "std -1");
    EXPECT_ERROR(kiln_normal(KILN_F32, KILN_SHAPE(-1), 0, 1), KILN_BAD_SHAPE, "kiln_normal");
    EXPECT_ERROR(kiln_randint(KILN_F32, KILN_SHAPE(1), 0, 1), KILN_BAD_DTYPE, "an int is needed");
    EXPECT_ERROR(kiln_randint(KILN_I32, KILN_SHAPE(1), 3, 3), KILN_INVALID, "not below");
    EXPECT_ERROR(kiln_randint(KILN_U8, KILN_SHAPE(1), 0, 257), KILN_INVALID, "[0, 257) does not fit u8");
}

/* Recorded, but no memory has room for them: bytes that overflow are not taken for few. */
API_TEST(create, larger_than_any_memory)
{
    kiln_tensor *x = kiln_expand(kiln_exp(F64(KILN_SHAPE(1), 1)), KILN_SHAPE(INT64_C(1) << 61));
    cr_assert(kiln_eval(x) == KILN_OVERFLOW, "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "kiln_eval: a value has more than 2^62 bytes: f64[2305843009213693952]"), "%s",
              kiln_error_message());
    kiln_tensor *zeros = kiln_zeros(KILN_I16, KILN_SHAPE(INT64_C(1) << 61, 2));
    cr_assert(kiln_eval(zeros) == KILN_OVERFLOW, "%s", kiln_error_message());
    kiln_clear_error();
}

API_TEST(create, empty_beside_large_dims)
{
    int64_t big = INT64_C(1) << 31;
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(big, big, 0));
    EXPECT_EMPTY(x, KILN_F32, KILN_SHAPE(big, big, 0));
    EXPECT_EMPTY(kiln_add(kiln_exp(x), kiln_scalar(1)), KILN_F32, KILN_SHAPE(big, big, 0));
    EXPECT_EMPTY(kiln_sum_axes(x, KILN_AXES(0, 1), false), KILN_F32, KILN_SHAPE(0));
    EXPECT_EMPTY(kiln_mean_axes(x, KILN_AXES(0, 1), true), KILN_F32, KILN_SHAPE(1, 1, 0));
    EXPECT_EMPTY(kiln_permute(x, KILN_AXES(2, 0, 1)), KILN_F32, KILN_SHAPE(0, big, big));
    EXPECT_EMPTY(kiln_tile(kiln_slice_axis(x, 0, 0, 2, 1), KILN_SHAPE(2, 1, 3)), KILN_F32, KILN_SHAPE(4, big, 0));
    EXPECT_EMPTY(kiln_reshape(x, KILN_SHAPE(0, 5)), KILN_F32, KILN_SHAPE(0, 5));
    EXPECT(kiln_sum(x), KILN_F32, KILN_SHAPE(), 1e-9, 0);
    EXPECT_EMPTY(kiln_softmax(x, 0), KILN_F32, KILN_SHAPE(big, big, 0));
    EXPECT_ERROR(kiln_zeros(KILN_F32, KILN_SHAPE(big, big, 2, 0)), KILN_OVERFLOW, "2^62"); /* as NumPy */
    EXPECT_ERROR(kiln_tile(x, KILN_SHAPE(2, 1, 1)), KILN_OVERFLOW, "2^62");
    EXPECT_ERROR(kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(big, 4, 1, 0)), kiln_zeros(KILN_F32, KILN_SHAPE(big, 1))), KILN_OVERFLOW, "2^62");
}

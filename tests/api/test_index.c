/* take, take_along_axis, scatter, sort, argsort, topk, cumsum. */
#include "api.h"
#include "tests/support/guarded.h"

#define X23 F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6)

API_TEST(index, take)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_take(x, I64(KILN_SHAPE(2), 2, 0), 1), KILN_F32, KILN_SHAPE(2, 2), 0, 3, 1, 6, 4);
    EXPECT(kiln_take(x, I32(KILN_SHAPE(3), -1, 0, -2), 0), KILN_F32, KILN_SHAPE(3, 3), 0, 4, 5, 6, 1, 2, 3, 1, 2, 3);
    EXPECT(kiln_take(x, U8(KILN_SHAPE(), 1), -1), KILN_F32, KILN_SHAPE(2), 0, 2, 5);
    EXPECT(kiln_take(x, I64(KILN_SHAPE(2, 2), 0, 1, 2, 1), 1), KILN_F32, KILN_SHAPE(2, 2, 2), 0, 1, 2, 3, 2, 4, 5, 6, 5);
    EXPECT_EMPTY(kiln_take(x, kiln_zeros(KILN_I64, KILN_SHAPE(0)), 0), KILN_F32, KILN_SHAPE(0, 3));
    EXPECT_EMPTY(kiln_take(kiln_zeros(KILN_F32, KILN_SHAPE(0)), kiln_zeros(KILN_I64, KILN_SHAPE(0)), 0), KILN_F32, KILN_SHAPE(0));
    EXPECT_ERROR(kiln_take(x, I64(KILN_SHAPE(1), 0), 2), KILN_INVALID, "kiln_take: axis 2");
    EXPECT_ERROR(kiln_take(kiln_zeros(KILN_F32, KILN_SHAPE(0)), I64(KILN_SHAPE(1), 0), 0), KILN_BAD_INDEX,
                 "kiln_take: axis 0 has no elements to index: x is f32[0]");
    EXPECT_ERROR(kiln_take(F32(KILN_SHAPE(), 1), I64(KILN_SHAPE(1), 0), 0), KILN_INVALID, "axis 0");
}

API_TEST(index, out_of_bounds_is_found_at_the_sync_point)
{
    kiln_tensor *x = X23, *i = I64(KILN_SHAPE(2), 0, 3);
    for (int k = 0; k < 3; k++) {
        kiln_tensor *bad = k == 0   ? kiln_take(x, i, 1)
                           : k == 1 ? kiln_take(x, I64(KILN_SHAPE(1), -4), 1)
                                    : kiln_scatter(x, i, F32(KILN_SHAPE(), 9), 1, KILN_SCATTER_SET);
        kiln_status status = kiln_wait(bad); /* eager mode found it before: bad is NULL */
        cr_assert(status == KILN_BAD_INDEX, "%d: %s", k, kiln_status_name(status));
        cr_assert(strstr(kiln_error_message(), "out of bounds"), "%s", kiln_error_message());
        cr_assert(strstr(kiln_error_message(), "test_index.c"), "%s", kiln_error_message());
    }
    EXPECT(kiln_take(x, I64(KILN_SHAPE(1), 2), 1), KILN_F32, KILN_SHAPE(2, 1), 0, 3, 6); /* the state is usable */
}

API_TEST(index, what_only_u64_holds_is_out_of_bounds)
{
    kiln_tensor *x = X23, *i = kiln_from(KILN_U64, KILN_SHAPE(1), (uint64_t[]){UINT64_MAX});
    kiln_tensor *labels = kiln_expand(i, KILN_SHAPE(2));
    kiln_tensor *good = kiln_from(KILN_U64, KILN_SHAPE(2), (uint64_t[]){2, 0});
    cr_assert(kiln_wait(kiln_take(x, i, 1)) == KILN_BAD_INDEX);
    cr_assert(kiln_wait(kiln_cross_entropy(x, labels)) == KILN_BAD_INDEX);
    cr_assert(strstr(kiln_error_message(), "test_index.c"), "%s", kiln_error_message());
    EXPECT(kiln_take(x, good, 1), KILN_F32, KILN_SHAPE(2, 2), 0, 3, 1, 6, 4);
}

API_TEST(index, take_along_axis)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_take_along_axis(x, I64(KILN_SHAPE(2, 1), 2, 0), 1), KILN_F32, KILN_SHAPE(2, 1), 0, 3, 4);
    EXPECT(kiln_take_along_axis(x, I64(KILN_SHAPE(1, 3), 1, 0, -1), 0), KILN_F32, KILN_SHAPE(1, 3), 0, 4, 2, 6);
    EXPECT(kiln_take_along_axis(x, I64(KILN_SHAPE(1, 2), 0, 2), 1), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 3, 4, 6);
    EXPECT_ERROR(kiln_take_along_axis(x, I64(KILN_SHAPE(2), 0, 1), 0), KILN_BAD_SHAPE, "kiln_take_along_axis: ranks differ");
    EXPECT_ERROR(kiln_take_along_axis(x, I64(KILN_SHAPE(3, 1), 0, 1, 2), 1), KILN_BAD_SHAPE, "outside of axis 1", "index is i64[3,1]");
}

API_TEST(index, scatter)
{
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(4)), *i = I64(KILN_SHAPE(3), 1, 3, 1);
    kiln_tensor *s = F32(KILN_SHAPE(3), 5, 6, 7);
    EXPECT(kiln_scatter(x, i, s, 0, KILN_SCATTER_SET), KILN_F32, KILN_SHAPE(4), 0, 0, 7, 0, 6);
    EXPECT(kiln_scatter(x, i, s, 0, KILN_SCATTER_ADD), KILN_F32, KILN_SHAPE(4), 0, 0, 12, 0, 6);
    EXPECT(kiln_scatter(x, i, s, 0, KILN_SCATTER_MAX), KILN_F32, KILN_SHAPE(4), 0, 0, 7, 0, 6);
    EXPECT(kiln_scatter(kiln_full(KILN_F32, KILN_SHAPE(4), 6.5), i, s, 0, KILN_SCATTER_MIN), KILN_F32, KILN_SHAPE(4), 0, 6.5, 5, 6.5, 6);
    EXPECT(x, KILN_F32, KILN_SHAPE(4), 0, 0, 0, 0, 0); /* values never change */
    EXPECT(kiln_scatter(X23, I64(KILN_SHAPE(1), -1), kiln_int(9), 1, KILN_SCATTER_SET), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 9, 4, 5, 9);
    EXPECT(kiln_scatter(X23, I64(KILN_SHAPE(2), 0, 0), F32(KILN_SHAPE(2, 3), 1, 1, 1, 2, 2, 2), 0, KILN_SCATTER_ADD), KILN_F32,
           KILN_SHAPE(2, 3), 0, 4, 5, 6, 4, 5, 6);
    EXPECT(kiln_scatter(BOOL(KILN_SHAPE(2), 0, 0), I64(KILN_SHAPE(1), 1), BOOL(KILN_SHAPE(1), 1), 0, KILN_SCATTER_SET), KILN_BOOL,
           KILN_SHAPE(2), 0, 0, 1);
    EXPECT(kiln_scatter(x, kiln_zeros(KILN_I64, KILN_SHAPE(0)), kiln_zeros(KILN_F32, KILN_SHAPE(0)), 0, KILN_SCATTER_SET), KILN_F32,
           KILN_SHAPE(4), 0, 0, 0, 0, 0);
    EXPECT(kiln_scatter_along_axis(X23, I64(KILN_SHAPE(2, 1), 2, 0), F32(KILN_SHAPE(2, 1), 8, 9), 1, KILN_SCATTER_SET), KILN_F32,
           KILN_SHAPE(2, 3), 0, 1, 2, 8, 9, 5, 6);
    EXPECT(kiln_scatter_along_axis(X23, I64(KILN_SHAPE(1, 3), 1, 0, 1), kiln_int(10), 0, KILN_SCATTER_ADD), KILN_F32, KILN_SHAPE(2, 3), 0,
           1, 12, 3, 14, 5, 16);
    EXPECT_ERROR(kiln_scatter(x, I64(KILN_SHAPE(1, 1), 0), s, 0, KILN_SCATTER_SET), KILN_BAD_SHAPE, "kiln_scatter: index has one axis");
    EXPECT_ERROR(kiln_scatter(x, i, F32(KILN_SHAPE(2), 1, 2), 0, KILN_SCATTER_SET), KILN_BAD_SHAPE, "source does not broadcast to [3]",
                 "f32[2]");
    EXPECT_ERROR(kiln_scatter(x, i, s, 0, (kiln_scatter_mode)7), KILN_INVALID, "mode 7");
    for (int mode = KILN_SCATTER_ADD; mode <= KILN_SCATTER_MIN; mode++) { /* of bools SET alone */
        kiln_tensor *no = BOOL(KILN_SHAPE(1), 0), *yes = BOOL(KILN_SHAPE(1), 1), *at = I64(KILN_SHAPE(1), 0);
        EXPECT_ERROR(kiln_scatter(no, at, yes, 0, (kiln_scatter_mode)mode), KILN_BAD_DTYPE, "kiln_scatter: ", "bool");
        EXPECT_ERROR(kiln_scatter_along_axis(no, at, yes, 0, (kiln_scatter_mode)mode), KILN_BAD_DTYPE, "kiln_scatter_along_axis: ", "bool");
    }
    EXPECT_ERROR(kiln_scatter(x, s, s, 0, KILN_SCATTER_SET), KILN_BAD_DTYPE, "index is f32[3]: ints are needed");
    EXPECT_ERROR(kiln_scatter_along_axis(X23, I64(KILN_SHAPE(1, 4), 0, 0, 0, 0), kiln_int(1), 0, KILN_SCATTER_SET), KILN_BAD_SHAPE,
                 "kiln_scatter_along_axis: index is larger than x outside of axis 0");
}

API_TEST(index, sort)
{
    kiln_tensor *x = F32(KILN_SHAPE(5), 3, NAN, 1, 2, -INFINITY);
    EXPECT(kiln_sort(x, 0, false), KILN_F32, KILN_SHAPE(5), 0, -INFINITY, 1, 2, 3, NAN);
    EXPECT(kiln_sort(x, 0, true), KILN_F32, KILN_SHAPE(5), 0, 3, 2, 1, -INFINITY, NAN);
    EXPECT(kiln_argsort(x, -1, false), KILN_I64, KILN_SHAPE(5), 0, 4, 2, 3, 0, 1);
    EXPECT(kiln_argsort(I32(KILN_SHAPE(4), 1, 0, 1, 0), 0, false), KILN_I64, KILN_SHAPE(4), 0, 1, 3, 0, 2); /* stable */
    EXPECT(kiln_argsort(I32(KILN_SHAPE(4), 1, 0, 1, 0), 0, true), KILN_I64, KILN_SHAPE(4), 0, 0, 2, 1, 3);
    EXPECT(kiln_sort(I32(KILN_SHAPE(2, 3), 3, 1, 2, 0, 5, -1), 1, false), KILN_I32, KILN_SHAPE(2, 3), 0, 1, 2, 3, -1, 0, 5);
    EXPECT(kiln_sort(I32(KILN_SHAPE(2, 3), 3, 1, 2, 0, 5, -1), 0, false), KILN_I32, KILN_SHAPE(2, 3), 0, 0, 1, -1, 3, 5, 2);
    EXPECT(kiln_sort(BOOL(KILN_SHAPE(3), 1, 0, 1), 0, false), KILN_BOOL, KILN_SHAPE(3), 0, 0, 1, 1);
    EXPECT(kiln_sort(kiln_from(KILN_U64, KILN_SHAPE(2), (uint64_t[]){UINT64_MAX, 1}), 0, false), KILN_U64, KILN_SHAPE(2), 0, 1,
           (double)UINT64_MAX);
    EXPECT_EMPTY(kiln_sort(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), 1, false), KILN_F32, KILN_SHAPE(2, 0));
    EXPECT_ERROR(kiln_sort(x, 1, false), KILN_INVALID, "kiln_sort: axis 1");
    EXPECT_ERROR(kiln_argsort(F32(KILN_SHAPE(), 1), 0, false), KILN_INVALID, "kiln_argsort: axis 0");
}

API_TEST(index, topk)
{
    kiln_tensor *x = F32(KILN_SHAPE(2, 4), 1, 4, 2, 3, 8, 5, 7, 6), *values, *where;
    cr_assert(kiln_topk(x, 2, 1, true, &values, &where) == KILN_OK);
    EXPECT(values, KILN_F32, KILN_SHAPE(2, 2), 0, 4, 3, 8, 7);
    EXPECT(where, KILN_I64, KILN_SHAPE(2, 2), 0, 1, 3, 0, 2);
    cr_assert(kiln_topk(x, 1, 0, false, &values, &where) == KILN_OK);
    EXPECT(values, KILN_F32, KILN_SHAPE(1, 4), 0, 1, 4, 2, 3);
    cr_assert(kiln_topk(x, 0, 0, false, &values, &where) == KILN_OK);
    EXPECT_EMPTY(values, KILN_F32, KILN_SHAPE(0, 4));
    cr_assert(kiln_topk(x, 5, 1, true, &values, &where) == KILN_INVALID);
    cr_assert(values == NULL && where == NULL);
    EXPECT_ERROR(NULL, KILN_INVALID, "kiln_topk: k is 5, axis 1 has 4 elements: x is f32[2,4]");
    cr_assert(kiln_topk(x, 1, 1, true, &values, NULL) == KILN_INVALID);
    EXPECT_ERROR(NULL, KILN_INVALID, "indices is NULL");
}

/* An index smaller than x leaves the rest as it is. The first two are the examples of PyTorch's manual. */
API_TEST(index, scatter_along_axis_in_a_corner)
{
    kiln_shape shape = KILN_SHAPE(3, 5);
    kiln_tensor *zeros = kiln_zeros(KILN_I32, shape), *x = kiln_reshape(kiln_arange(KILN_I32, 0, 15, 1), shape);
    kiln_tensor *row = I64(KILN_SHAPE(1, 4), 0, 1, 2, 0), *four = I32(KILN_SHAPE(1, 4), 1, 2, 3, 4);
    kiln_tensor *two = I64(KILN_SHAPE(2, 3), 0, 1, 2, 0, 1, -1), *six = I32(KILN_SHAPE(2, 3), 1, 2, 3, 6, 7, 8);
    EXPECT(kiln_scatter_along_axis(zeros, row, four, 0, KILN_SCATTER_SET), KILN_I32, shape, 0, 1, 0, 0, 4, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0, 0);
    EXPECT(kiln_scatter_along_axis(zeros, two, six, 1, KILN_SCATTER_SET), KILN_I32, shape, 0, 1, 2, 3, 0, 0, 6, 7, 0, 0, 8, 0, 0, 0, 0, 0);
    EXPECT(kiln_scatter_along_axis(x, two, kiln_int(100), 0, KILN_SCATTER_ADD), KILN_I32, shape, 0, 200, 1, 2, 3, 4, 5, 206, 7, 8, 9, 10,
           11, 212, 13, 14);
    EXPECT(kiln_scatter_along_axis(x, two, six, 0, KILN_SCATTER_MAX), KILN_I32, shape, 0, 6, 1, 2, 3, 4, 5, 7, 7, 8, 9, 10, 11, 12, 13, 14);
    EXPECT(kiln_scatter_along_axis(x, I64(KILN_SHAPE(0, 2)), kiln_int(7), 1, KILN_SCATTER_SET), KILN_I32, shape, 0, 0, 1, 2, 3, 4, 5, 6, 7,
           8, 9, 10, 11, 12, 13, 14);
    kiln_tensor *cube = kiln_reshape(kiln_arange(KILN_F32, 0, 8, 1), KILN_SHAPE(2, 2, 2)), *one = I64(KILN_SHAPE(1, 2, 1), 1, 0);
    EXPECT(kiln_scatter_along_axis(cube, one, F32(KILN_SHAPE(1, 2, 1), 10, 20), 1, KILN_SCATTER_SET), KILN_F32, KILN_SHAPE(2, 2, 2), 0, 20,
           1, 10, 3, 4, 5, 6, 7);
    EXPECT_ERROR(kiln_scatter_along_axis(x, I64(KILN_SHAPE(4, 1), 0, 0, 0, 0), six, 1, KILN_SCATTER_SET), KILN_BAD_SHAPE,
                 "kiln_scatter_along_axis: index is larger than x outside of axis 1: x is i32[3,5], index is i64[4,1]");
    EXPECT_ERROR(kiln_scatter_along_axis(x, I64(KILN_SHAPE(1), 0), six, 1, KILN_SCATTER_SET), KILN_BAD_SHAPE, "ranks differ");
    kiln_tensor *bad = kiln_scatter_along_axis(x, I64(KILN_SHAPE(1, 1), 5), kiln_int(1), 1, KILN_SCATTER_SET);
    cr_assert(kiln_wait(bad) == KILN_BAD_INDEX && strstr(kiln_error_message(), "kiln_scatter_along_axis"), "%s", kiln_error_message());
    kiln_clear_error();
}

/* The same at many sizes by programs for any: what a loop over the index gives. */
API_TEST(index, scatter_along_axis_in_a_corner_of_any_size)
{
    set_option("dynamic", "always");
    static const int sizes[][4] = {{6, 7, 3, 5}, {6, 7, 6, 7}, {17, 9, 2, 20}, {17, 9, 17, 1}, {33, 40, 5, 64}, {1, 1, 1, 3}, {5, 3, 0, 3}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int rows = sizes[s][0], columns = sizes[s][1], n = sizes[s][2], m = sizes[s][3];
        int32_t want[33 * 40], got[33 * 40], source[33 * 64];
        int64_t index[33 * 64];
        for (int i = 0; i < rows * columns; i++)
            want[i] = i;
        for (int i = 0; i < n * m; i++) {
            index[i] = (i * 7 + i / m) % columns;
            source[i] = 1000 + i;
        }
        kiln_tensor *x = kiln_from(KILN_I32, KILN_SHAPE(rows, columns), want);
        for (int i = 0; i < n * m; i++)
            want[i / m * columns + index[i]] += source[i];
        kiln_tensor *y = kiln_scatter_along_axis(x, kiln_from(KILN_I64, KILN_SHAPE(n, m), index),
                                                 kiln_from(KILN_I32, KILN_SHAPE(n, m), source), 1, KILN_SCATTER_ADD);
        cr_assert(kiln_read(y, KILN_I32, got, sizeof *got * (size_t)(rows * columns)) == KILN_OK, "%s", kiln_error_message());
        cr_assert(memcmp(got, want, sizeof *got * (size_t)(rows * columns)) == 0, "size %zu", s);
    }
}

/* NaN is the greatest, as for max and argmax; equal ones stay in their order. */
API_TEST(index, topk_nan)
{
    kiln_tensor *values, *where, *x = F32(KILN_SHAPE(6), 2, NAN, -INFINITY, 2, NAN, INFINITY);
    cr_assert(kiln_topk(x, 6, 0, true, &values, &where) == KILN_OK);
    EXPECT(values, KILN_F32, KILN_SHAPE(6), 0, NAN, NAN, INFINITY, 2, 2, -INFINITY);
    EXPECT(where, KILN_I64, KILN_SHAPE(6), 0, 1, 4, 5, 0, 3, 2);
    cr_assert(kiln_topk(x, 1, 0, true, &values, &where) == KILN_OK);
    EXPECT(kiln_sub(where, kiln_argmax(x)), KILN_I64, KILN_SHAPE(1), 0, 0);
    cr_assert(kiln_topk(x, 6, 0, false, &values, &where) == KILN_OK);
    EXPECT(values, KILN_F32, KILN_SHAPE(6), 0, -INFINITY, 2, 2, INFINITY, NAN, NAN);
    EXPECT(where, KILN_I64, KILN_SHAPE(6), 0, 2, 0, 3, 5, 1, 4);
    kiln_tensor *rows = kiln_transpose(kiln_cast(kiln_reshape(x, KILN_SHAPE(2, 3)), KILN_F16));
    cr_assert(kiln_topk(rows, 1, 0, true, &values, &where) == KILN_OK);
    EXPECT(values, KILN_F16, KILN_SHAPE(1, 2), 0, NAN, NAN);
    EXPECT(where, KILN_I64, KILN_SHAPE(1, 2), 0, 1, 1);
    cr_assert(kiln_topk(kiln_zeros(KILN_F32, KILN_SHAPE(0, 2)), 0, 0, true, &values, &where) == KILN_OK, "%s", kiln_error_message());
    EXPECT_EMPTY(values, KILN_F32, KILN_SHAPE(0, 2));
    cr_assert(kiln_topk(I32(KILN_SHAPE(4), 3, 9, 9, 1), 3, 0, true, &values, &where) == KILN_OK);
    EXPECT(where, KILN_I64, KILN_SHAPE(3), 0, 1, 2, 0);
}

API_TEST(index, cumsum)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_cumsum(x, 1), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 3, 6, 4, 9, 15);
    EXPECT(kiln_cumsum(x, 0), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 5, 7, 9);
    EXPECT(kiln_cumsum(kiln_full(KILN_I8, KILN_SHAPE(3), 100), 0), KILN_I64, KILN_SHAPE(3), 0, 100, 200, 300);
    EXPECT(kiln_cumsum(BOOL(KILN_SHAPE(3), 1, 1, 0), 0), KILN_I64, KILN_SHAPE(3), 0, 1, 2, 2);
    EXPECT_EMPTY(kiln_cumsum(kiln_zeros(KILN_F32, KILN_SHAPE(0)), 0), KILN_F32, KILN_SHAPE(0));
    EXPECT(kiln_select(kiln_cumsum(kiln_full(KILN_F16, KILN_SHAPE(4000), 0.5), 0), 0, -1), KILN_F16, KILN_SHAPE(), 0, 2000);
    /* beside a sum, in one kernel: short, and of many blocks */
    EXPECT(kiln_sum(kiln_cumsum(kiln_reshape(x, KILN_SHAPE(6)), 0)), KILN_F32, KILN_SHAPE(), 0, 56);
    EXPECT(kiln_sum(kiln_cumsum(kiln_ones(KILN_F64, KILN_SHAPE(9000)), 0)), KILN_F64, KILN_SHAPE(), 0, 40504500);
    EXPECT_ERROR(kiln_cumsum(x, 2), KILN_INVALID, "kiln_cumsum: axis 2");
}

/* Taking along an axis that was broadcast reads the same element whatever the index; the index is checked all the same. */
API_TEST(index, an_index_that_does_not_matter_is_checked)
{
    kiln_tensor *index = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){1, 9});
    cr_assert(kiln_eval(index) == KILN_OK);
    kiln_tensor *full = kiln_full(KILN_F32, KILN_SHAPE(5, 3), 2);
    kiln_tensor *wide = kiln_expand(kiln_ones(KILN_F32, KILN_SHAPE(1, 3)), KILN_SHAPE(5, 3));
    cr_assert(kiln_wait(kiln_take(full, index, 0)) == KILN_BAD_INDEX);
    cr_assert(kiln_wait(kiln_take(wide, index, 0)) == KILN_BAD_INDEX);
    cr_assert(kiln_wait(kiln_sum(kiln_take(wide, index, 0))) == KILN_BAD_INDEX);
}

/* A place that is a running sum of the same kernel. */
API_TEST(index, taken_by_a_running_sum)
{
    static const int64_t lengths[] = {1, 2, 7, 64, 300, 4097, 20000};
    static int64_t steps[20000], got[20000];
    for (int i = 0; i < 20000; i++)
        steps[i] = i % 3;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int64_t n = lengths[i], sum = 0;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *at = kiln_remainder(kiln_cumsum(kiln_from(KILN_I64, KILN_SHAPE(n), steps), 0), kiln_int(n));
        kiln_tensor *taken = kiln_take(kiln_from(KILN_I64, KILN_SHAPE(n), steps), at, 0);
        cr_assert(kiln_read(taken, KILN_I64, got, sizeof *got * (size_t)n) == KILN_OK, "%s", kiln_error_message());
        for (int64_t k = 0; k < n; k++) {
            sum += steps[k];
            cr_assert(got[k] == steps[sum % n], "%d of %d", (int)k, (int)n);
        }
        kiln_scope_end(scope);
    }
    kiln_stats stats = stats_now();
    cr_assert_eq(stats.fallbacks, 0);
}

/* Rows of elements taken one by one are no copies of what lies side by side: indices are read a tile at a time, none beyond their end. */
Test(index, are_not_read_beyond_their_end)
{
    enum { COLUMNS = 5, CLASSES = 4, ROWS = 3 };
    begin_mode(1);
    set_option("mode", "eager");
    set_option("dynamic", "always");
    kiln_tensor *x = kiln_reshape(kiln_arange(KILN_F32, 0, ROWS * COLUMNS * CLASSES, 1), KILN_SHAPE(ROWS, COLUMNS, CLASSES));
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    Guarded memory = guarded_at_end(ROWS * COLUMNS, 0);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        ((uint8_t *)memory.data)[i] = (uint8_t)(i * 7 % CLASSES);
    kiln_tensor *index = kiln_wrap(KILN_U8, KILN_SHAPE(ROWS, COLUMNS), memory.data, NULL, NULL);
    kiln_tensor *y = kiln_take_along_axis(x, kiln_unsqueeze(index, 2), -1);
    float got[ROWS * COLUMNS];
    cr_assert_eq(kiln_read(y, KILN_F32, got, sizeof got), KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < ROWS * COLUMNS; i++)
        cr_assert_eq(got[i], (float)(i * CLASSES + i * 7 % CLASSES));
    end_mode();
    guarded_free(&memory);
}

/* Tasks have some of the places each; each place is added to in the order of the indices, in whatever number of threads. */
static void scatter_shared_out(int64_t columns, kiln_scatter_mode mode)
{
    enum { N = 30011, PLACES = 1500 };
    static float alone[PLACES * 40], together[PLACES * 40];
    static const char *const threads[] = {"1", "1", "2", "3", "16"}; /* of which the interpreter is the first */
    static int32_t places[N];
    uint64_t state = 7;
    for (int i = 0; i < N; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        places[i] = (int32_t)((state >> 33) % (2 * PLACES)) - PLACES;
    }
    size_t bytes = (size_t)(PLACES * columns) * sizeof *alone;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        set_option("threads", threads[t]);
        set_option("mode", t ? "jit" : "interp");
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *index = kiln_from(KILN_I32, KILN_SHAPE(N), places);
        kiln_tensor *x = kiln_mul(kiln_arange(KILN_F32, 0, (double)(PLACES * columns), 1), 0.37),
                    *source = kiln_mul(kiln_arange(KILN_F32, 0, (double)(N * columns), 1), -0.013);
        if (columns > 1) {
            x = kiln_reshape(x, KILN_SHAPE(PLACES, columns));
            source = kiln_reshape(source, KILN_SHAPE(N, columns));
        }
        kiln_tensor *y = kiln_scatter(x, index, source, 0, mode);
        cr_assert_eq(kiln_read(y, KILN_F32, t ? together : alone, bytes), KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
        cr_assert(t == 0 || memcmp(alone, together, bytes) == 0, "mode %d, %d columns, %s threads", (int)mode, (int)columns, threads[t]);
    }
    places[N - 2] = PLACES;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *zeros = kiln_zeros(KILN_F32, KILN_SHAPE(PLACES)), *ones = kiln_ones(KILN_F32, KILN_SHAPE(N));
    kiln_tensor *bad = kiln_scatter(zeros, kiln_from(KILN_I32, KILN_SHAPE(N), places), ones, 0, mode);
    cr_assert_eq(kiln_wait(bad), KILN_BAD_INDEX);
    kiln_clear_error();
    kiln_scope_end(scope);
}

Test(index, are_scattered_by_several_threads)
{
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        begin_mode(1);
        set_option("dynamic", dynamic ? "always" : "never");
        for (int mode = KILN_SCATTER_SET; mode <= KILN_SCATTER_MIN; mode++)
            for (int columns = 0; columns < 3; columns++)
                scatter_shared_out((const int64_t[]){1, 3, 40}[columns], (kiln_scatter_mode)mode);
        end_mode();
    }
}

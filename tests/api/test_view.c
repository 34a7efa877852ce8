/* Functions that move elements: reshape, permute, slice, pad, concat and their like. */
#include "api.h"

#include <stdio.h>
#include <string.h>

#define X23 F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6)

API_TEST(view, reshape)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_reshape(x, KILN_SHAPE(3, 2)), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_reshape(x, KILN_SHAPE(-1)), KILN_F32, KILN_SHAPE(6), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_reshape(x, KILN_SHAPE(1, -1, 2)), KILN_F32, KILN_SHAPE(1, 3, 2), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_flatten(kiln_transpose(x)), KILN_F32, KILN_SHAPE(6), 0, 1, 4, 2, 5, 3, 6);
    EXPECT(kiln_reshape(F32(KILN_SHAPE(1, 1), 7), KILN_SHAPE()), KILN_F32, KILN_SHAPE(), 0, 7);
    EXPECT(kiln_reshape(F32(KILN_SHAPE(), 7), KILN_SHAPE(1, 1, 1)), KILN_F32, KILN_SHAPE(1, 1, 1), 0, 7);
    EXPECT(kiln_flatten(F32(KILN_SHAPE(), 7)), KILN_F32, KILN_SHAPE(1), 0, 7);
    EXPECT_EMPTY(kiln_reshape(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), KILN_SHAPE(0, 5)), KILN_F32, KILN_SHAPE(0, 5));
    EXPECT_EMPTY(kiln_reshape(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), KILN_SHAPE(3, -1)), KILN_F32, KILN_SHAPE(3, 0));
    EXPECT_ERROR(kiln_reshape(x, KILN_SHAPE(4, 2)), KILN_BAD_SHAPE, "kiln_reshape: 6 elements do not make [4,2]: x is f32[2,3]");
    EXPECT_ERROR(kiln_reshape(x, KILN_SHAPE(4, -1)), KILN_BAD_SHAPE, "[4,-1]");
    EXPECT_ERROR(kiln_reshape(x, KILN_SHAPE(-1, -1)), KILN_INVALID, "dims 0 and 1 are both -1");
    EXPECT_ERROR(kiln_reshape(x, KILN_SHAPE(-2, 3)), KILN_BAD_SHAPE, "dim 0 of the shape is -2");
    EXPECT_ERROR(kiln_reshape(kiln_zeros(KILN_F32, KILN_SHAPE(0)), KILN_SHAPE(0, -1)), KILN_BAD_SHAPE, "[0,-1]");
    EXPECT_ERROR(kiln_reshape(x, KILN_SHAPE(6, 1, 1, 1, 1, 1, 1, 1, 1)), KILN_BAD_SHAPE, "rank 9");
}

API_TEST(view, axes_of_size_1)
{
    kiln_tensor *x = kiln_reshape(X23, KILN_SHAPE(1, 2, 1, 3));
    EXPECT(kiln_squeeze(x, KILN_ALL_AXES), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_squeeze(x, KILN_AXES(-2)), KILN_F32, KILN_SHAPE(1, 2, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_unsqueeze(X23, 0), KILN_F32, KILN_SHAPE(1, 2, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_unsqueeze(X23, -1), KILN_F32, KILN_SHAPE(2, 3, 1), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_unsqueeze(X23, 1), KILN_F32, KILN_SHAPE(2, 1, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT_ERROR(kiln_squeeze(x, KILN_AXES(1)), KILN_BAD_SHAPE, "kiln_squeeze: axis 1 is not of size 1");
    EXPECT_ERROR(kiln_unsqueeze(x, 5), KILN_INVALID, "kiln_unsqueeze: axis 5");
    EXPECT_ERROR(kiln_unsqueeze(kiln_zeros(KILN_F32, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)), 0), KILN_BAD_SHAPE, "9 axes");
}

API_TEST(view, permute)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_transpose(x), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
    EXPECT(kiln_permute(x, KILN_AXES(1, 0)), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
    EXPECT(kiln_transpose(kiln_transpose(x)), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
    kiln_tensor *cube = kiln_reshape(kiln_arange(KILN_I32, 0, 12, 1), KILN_SHAPE(2, 3, 2));
    EXPECT(kiln_permute(cube, KILN_AXES(2, 0, 1)), KILN_I32, KILN_SHAPE(2, 2, 3), 0, 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11);
    EXPECT(kiln_swap_axes(cube, 0, -1), KILN_I32, KILN_SHAPE(2, 3, 2), 0, 0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11);
    EXPECT_ERROR(kiln_permute(x, KILN_AXES(0)), KILN_INVALID, "kiln_permute: 1 axes are named: x is f32[2,3]");
    EXPECT_ERROR(kiln_permute(x, KILN_ALL_AXES), KILN_INVALID,
                 "kiln_permute: KILN_ALL_AXES is no order; name each axis once: x is f32[2,3]");
    EXPECT_ERROR(kiln_permute(x, KILN_AXES(0, 0)), KILN_INVALID, "named twice");
    EXPECT_ERROR(kiln_permute(x, KILN_AXES(0, 2)), KILN_INVALID, "axis 2");
    EXPECT_ERROR(kiln_transpose(F32(KILN_SHAPE(1), 1)), KILN_BAD_SHAPE, "kiln_transpose: two axes");
    EXPECT_ERROR(kiln_swap_axes(x, 0, 2), KILN_INVALID, "kiln_swap_axes: axis 2");
}

/* Pairs, fours and eights of bytes that change places move as words, wherever they begin (jit/words.c). */
API_TEST(view, permute_words_at_any_address)
{
    enum { ROWS = 67, COLUMNS = 37, MOST = 8 };
    static uint8_t bytes[ROWS * COLUMNS * MOST + 1], want[ROWS * COLUMNS * MOST], got[ROWS * COLUMNS * MOST];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 151 >> 3);
    for (int n = 1; n <= MOST; n++)
        for (int past = 0; past < 2; past++) {
            const size_t of_all = (size_t)(ROWS * COLUMNS * n);
            kiln_tensor *x =
                kiln_slice_axis(kiln_from(KILN_U8, KILN_SHAPE(ROWS * COLUMNS * n + 1), bytes), 0, past, past + (int64_t)of_all, 1);
            x = kiln_permute(kiln_reshape(x, KILN_SHAPE(ROWS, COLUMNS, n)), KILN_AXES(1, 0, 2));
            for (int row = 0; row < ROWS; row++)
                for (int column = 0; column < COLUMNS; column++)
                    memcpy(want + (column * ROWS + row) * n, bytes + past + (row * COLUMNS + column) * n, (size_t)n);
            cr_assert_eq(kiln_read(x, KILN_U8, got, of_all), KILN_OK, "%s", kiln_error_message());
            cr_assert(memcmp(got, want, of_all) == 0, "%d at once, from %d on", n, past);
        }
}

API_TEST(view, expand)
{
    EXPECT(kiln_expand(F32(KILN_SHAPE(2, 1), 1, 2), KILN_SHAPE(2, 3)), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 1, 1, 2, 2, 2);
    EXPECT(kiln_expand(F32(KILN_SHAPE(2), 1, 2), KILN_SHAPE(2, -1)), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 2, 1, 2);
    EXPECT(kiln_sum(kiln_expand(F32(KILN_SHAPE(), 2), KILN_SHAPE(5, 5))), KILN_F32, KILN_SHAPE(), 0, 50);
    EXPECT_EMPTY(kiln_expand(F32(KILN_SHAPE(1), 2), KILN_SHAPE(3, 0)), KILN_F32, KILN_SHAPE(3, 0));
    EXPECT_ERROR(kiln_expand(X23, KILN_SHAPE(3, 3)), KILN_BAD_SHAPE, "kiln_expand: axis 0 cannot become 3: x is f32[2,3]");
    EXPECT_ERROR(kiln_expand(X23, KILN_SHAPE(3)), KILN_BAD_SHAPE, "fewer axes");
    EXPECT_ERROR(kiln_expand(X23, (kiln_shape){.rank = -INT32_MAX - 1}), KILN_BAD_SHAPE, "rank");
}

/* Python's slice of 0..n-1, counted out. */
static size_t python_slice(int64_t n, kiln_range r, double *out)
{
    int64_t step = r.step == KILN_NONE ? 1 : r.step, start, stop;
    size_t count = 0;
    if (step > 0) {
        start = r.start == KILN_NONE ? 0 : r.start < 0 ? r.start + n : r.start;
        stop = r.stop == KILN_NONE ? n : r.stop < 0 ? r.stop + n : r.stop;
        for (int64_t i = start < 0 ? 0 : start; i < stop && i < n; i += step)
            out[count++] = (double)i;
    } else {
        start = r.start == KILN_NONE ? n - 1 : r.start < 0 ? r.start + n : r.start;
        stop = r.stop == KILN_NONE ? -1 : r.stop < 0 ? (r.stop + n < -1 ? -1 : r.stop + n) : r.stop;
        for (int64_t i = start > n - 1 ? n - 1 : start; i > stop && i >= 0; i += step)
            out[count++] = (double)i;
    }
    return count;
}

Test(view, slices_as_python)
{
    static const int64_t ends[] = {KILN_NONE, -9, -5, -2, 0, 1, 3, 5, 99}, steps[] = {KILN_NONE, 1, 2, 7, -1, -2, -7};
    kiln_scope *scope = kiln_scope_begin();
    set_option("mode", "interp");
    kiln_tensor *x = kiln_arange(KILN_I32, 0, 5, 1);
    for (size_t a = 0; a < 9; a++)
        for (size_t b = 0; b < 9; b++)
            for (size_t s = 0; s < 7; s++) {
                double want[8];
                size_t n = python_slice(5, (kiln_range){ends[a], ends[b], steps[s]}, want);
                kiln_tensor *y = kiln_slice_axis(x, 0, ends[a], ends[b], steps[s]);
                expect((int)(1000 * a + 100 * b + s), y, KILN_I32, KILN_SHAPE((int64_t)n), 0, want, n);
            }
    kiln_scope_end(scope);
}

API_TEST(view, slice)
{
    kiln_tensor *x = kiln_reshape(kiln_arange(KILN_F32, 0, 20, 1), KILN_SHAPE(4, 5));
    EXPECT(kiln_slice(x, 2, (kiln_range[]){{1, 4, 2}, {KILN_NONE, KILN_NONE, -2}}), KILN_F32, KILN_SHAPE(2, 3), 0, 9, 7, 5, 19, 17, 15);
    EXPECT(kiln_slice(x, 1, (kiln_range[]){{-1, KILN_NONE, 1}}), KILN_F32, KILN_SHAPE(1, 5), 0, 15, 16, 17, 18, 19);
    EXPECT(kiln_slice(x, 2, (kiln_range[]){KILN_ALL, {4, 5, 1}}), KILN_F32, KILN_SHAPE(4, 1), 0, 4, 9, 14, 19);
    EXPECT_EMPTY(kiln_slice(x, 1, (kiln_range[]){{3, 1, 1}}), KILN_F32, KILN_SHAPE(0, 5));
    EXPECT(kiln_select(x, 0, -1), KILN_F32, KILN_SHAPE(5), 0, 15, 16, 17, 18, 19);
    EXPECT(kiln_select(x, 1, 2), KILN_F32, KILN_SHAPE(4), 0, 2, 7, 12, 17);
    EXPECT(kiln_select(kiln_select(x, 0, 1), 0, 1), KILN_F32, KILN_SHAPE(), 0, 6);
    EXPECT(kiln_slice_axis(x, -1, 0, 2, 1), KILN_F32, KILN_SHAPE(4, 2), 0, 0, 1, 5, 6, 10, 11, 15, 16);
    EXPECT(kiln_slice_axis(x, 0, 0, INT64_MAX, INT64_MAX), KILN_F32, KILN_SHAPE(1, 5), 0, 0, 1, 2, 3, 4);
    EXPECT(kiln_slice(F32(KILN_SHAPE(), 3), 0, NULL), KILN_F32, KILN_SHAPE(), 0, 3);
    EXPECT_ERROR(kiln_slice(x, 3, (kiln_range[]){KILN_ALL, KILN_ALL, KILN_ALL}), KILN_INVALID, "kiln_slice: 3 ranges: x is f32[4,5]");
    EXPECT_ERROR(kiln_slice(x, 1, NULL), KILN_INVALID, "NULL");
    EXPECT_ERROR(kiln_slice_axis(x, 0, 0, 1, 0), KILN_INVALID, "kiln_slice_axis: the step along axis 0 is 0");
    EXPECT_ERROR(kiln_slice_axis(x, 2, 0, 1, 1), KILN_INVALID, "axis 2");
    EXPECT_ERROR(kiln_select(x, 0, 4), KILN_BAD_INDEX, "kiln_select: index 4 is outside of axis 0: x is f32[4,5]");
    EXPECT_ERROR(kiln_select(x, 0, -5), KILN_BAD_INDEX, "-5");
}

API_TEST(view, flip_and_roll)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_flip(x, KILN_AXES(0)), KILN_F32, KILN_SHAPE(2, 3), 0, 4, 5, 6, 1, 2, 3);
    EXPECT(kiln_flip(x, KILN_ALL_AXES), KILN_F32, KILN_SHAPE(2, 3), 0, 6, 5, 4, 3, 2, 1);
    EXPECT(kiln_flip(x, KILN_AXES()), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT_EMPTY(kiln_flip(kiln_zeros(KILN_F32, KILN_SHAPE(0)), KILN_ALL_AXES), KILN_F32, KILN_SHAPE(0));
    EXPECT(kiln_roll(x, 1, 1), KILN_F32, KILN_SHAPE(2, 3), 0, 3, 1, 2, 6, 4, 5);
    EXPECT(kiln_roll(x, -1, 1), KILN_F32, KILN_SHAPE(2, 3), 0, 2, 3, 1, 5, 6, 4);
    EXPECT(kiln_roll(x, 302, 0), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_roll(x, INT64_MIN + 1, 0), KILN_F32, KILN_SHAPE(2, 3), 0, 4, 5, 6, 1, 2, 3);
    EXPECT_ERROR(kiln_roll(x, 1, 2), KILN_INVALID, "kiln_roll: axis 2");
}

API_TEST(view, pad)
{
    kiln_tensor *x = X23;
    EXPECT(kiln_pad(x, 2, (kiln_padding[]){{1, 0}, {0, 2}}, kiln_scalar(9)), KILN_F32, KILN_SHAPE(3, 5), 0, 9, 9, 9, 9, 9, 1, 2, 3, 9, 9, 4,
           5, 6, 9, 9);
    EXPECT(kiln_pad(kiln_zeros(KILN_I32, KILN_SHAPE(0)), 1, (kiln_padding[]){{1, 1}}, kiln_int(-3)), KILN_I32, KILN_SHAPE(2), 0, -3, -3);
    EXPECT(kiln_pad(x, 0, NULL, kiln_scalar(1)), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT_ERROR(kiln_pad(x, 1, (kiln_padding[]){{-1, 0}}, kiln_scalar(1)), KILN_INVALID, "kiln_pad: the padding of axis 0 is -1, 0");
    EXPECT_ERROR(kiln_pad(x, 3, (kiln_padding[]){{0, 0}, {0, 0}, {0, 0}}, kiln_scalar(1)), KILN_INVALID, "3 paddings");
    EXPECT_ERROR(kiln_pad(x, 0, NULL, x), KILN_BAD_SHAPE, "value has rank 0: it is f32[2,3]");
    EXPECT_ERROR(kiln_pad(x, 1, (kiln_padding[]){{INT64_MAX, 0}}, kiln_scalar(1)), KILN_OVERFLOW, "kiln_pad");

    /* a weak scalar beyond the dtype: an int refuses it, a float takes the nearest that it has */
    const kiln_padding one = {1, 0};
    kiln_tensor *u8 = kiln_full(KILN_U8, KILN_SHAPE(1), 7), *half = kiln_full(KILN_F16, KILN_SHAPE(1), 7);
    EXPECT(kiln_pad(u8, 1, &one, kiln_int(255)), KILN_U8, KILN_SHAPE(2), 0, 255, 7);
    EXPECT(kiln_pad(u8, 1, &one, kiln_scalar(255)), KILN_U8, KILN_SHAPE(2), 0, 255, 7);
    EXPECT_ERROR(kiln_pad(u8, 1, &one, kiln_int(300)), KILN_INVALID, "300");
    EXPECT_ERROR(kiln_pad(u8, 1, &one, kiln_scalar(300)), KILN_INVALID, "300");
    EXPECT_ERROR(kiln_pad(u8, 1, &one, kiln_int(-1)), KILN_INVALID, "-1");
    EXPECT_ERROR(kiln_pad(u8, 1, &one, kiln_scalar(0.5)), KILN_INVALID, "0.5");
    EXPECT(kiln_pad(half, 1, &one, kiln_scalar(1e9)), KILN_F16, KILN_SHAPE(2), 0, INFINITY, 7);
    EXPECT(kiln_pad(half, 1, &one, kiln_scalar(65519)), KILN_F16, KILN_SHAPE(2), 0, 65504, 7);
    EXPECT(kiln_pad(u8, 1, &one, kiln_cast(kiln_int(300), KILN_I32)), KILN_U8, KILN_SHAPE(2), 0, 44, 7); /* not weak: cast */
}

API_TEST(view, joins)
{
    kiln_tensor *a = X23, *b = F32(KILN_SHAPE(1, 3), 7, 8, 9), *c = I32(KILN_SHAPE(2, 1), 10, 11);
    EXPECT(kiln_concat((kiln_tensor *[]){a, b}, 2, 0), KILN_F32, KILN_SHAPE(3, 3), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    EXPECT(kiln_concat((kiln_tensor *[]){a, c, a}, 3, -1), KILN_F32, KILN_SHAPE(2, 7), 0, 1, 2, 3, 10, 1, 2, 3, 4, 5, 6, 11, 4, 5, 6);
    EXPECT(kiln_concat((kiln_tensor *[]){a}, 1, 0), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
    EXPECT(kiln_concat((kiln_tensor *[]){b, kiln_zeros(KILN_F32, KILN_SHAPE(0, 3))}, 2, 0), KILN_F32, KILN_SHAPE(1, 3), 0, 7, 8, 9);
    kiln_tensor *u = F32(KILN_SHAPE(2), 1, 2), *v = F32(KILN_SHAPE(2), 3, 4);
    EXPECT(kiln_stack((kiln_tensor *[]){u, v}, 2, 0), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 2, 3, 4);
    EXPECT(kiln_stack((kiln_tensor *[]){u, v}, 2, -1), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 3, 2, 4);
    EXPECT(kiln_stack((kiln_tensor *[]){kiln_scalar(1), kiln_int(2)}, 2, 0), KILN_F32, KILN_SHAPE(2), 0, 1, 2);
    EXPECT_ERROR(kiln_concat((kiln_tensor *[]){a, c}, 2, 0), KILN_BAD_SHAPE,
                 "kiln_concat: shapes differ: tensor 0 is f32[2,3], tensor 1 is");
    EXPECT_ERROR(kiln_concat((kiln_tensor *[]){a, u}, 2, 0), KILN_BAD_SHAPE, "tensor 1 is f32[2]");
    EXPECT_ERROR(kiln_concat((kiln_tensor *[]){a, b}, 2, 2), KILN_INVALID, "axis 2");
    EXPECT_ERROR(kiln_concat((kiln_tensor *[]){F32(KILN_SHAPE(), 1)}, 1, 0), KILN_BAD_SHAPE, "no axis to join along");
    EXPECT_ERROR(kiln_concat(NULL, 2, 0), KILN_INVALID, "NULL");
    EXPECT_ERROR(kiln_concat((kiln_tensor *[]){a}, 0, 0), KILN_INVALID, "0 tensors");
    EXPECT_ERROR(kiln_concat((kiln_tensor *[]){a, NULL}, 2, 0), KILN_INVALID, "tensor 1 is NULL");
    EXPECT_ERROR(kiln_stack((kiln_tensor *[]){a, b}, 2, 0), KILN_BAD_SHAPE, "kiln_stack: shapes differ");
    EXPECT_ERROR(kiln_stack((kiln_tensor *[]){a, a}, 2, 4), KILN_INVALID, "kiln_stack: axis 4");
}

API_TEST(view, many_joined)
{
    enum { N = 100 };
    kiln_tensor *parts[N];
    double want[2 * N];
    for (int i = 0; i < N; i++) {
        parts[i] = F32(KILN_SHAPE(2), (float)i, (float)-i);
        want[2 * i] = i;
        want[2 * i + 1] = -i;
    }
    want[1] = 0;
    expect(__LINE__, kiln_concat(parts, N, 0), KILN_F32, KILN_SHAPE(2 * N), 1e-9, want, 2 * N);
}

/* Planes become a last axis of two or four, in tiles in which each has a vector; times a number for each plane; padded, too, so that some lanes are
 * read under masks. */
API_TEST(view, planes_in_turns)
{
    static const char *const bits[] = {"0", "256", "128"};
    static const kiln_dtype dtypes[] = {KILN_U8, KILN_BF16, KILN_F32, KILN_F64};
    enum { LONG = 2750 /* enough points for a program for any size to have code for planes of two or four */, MOST = 3 * 4 * LONG };
    static double x[MOST], want[2 * MOST];
    for (int round = 0; round < 144; round++) {
        const int i = round / 2, planes = i % 2 ? 4 : 2, pad = i / 2 % 3, n = (const int[]){5, 67, LONG}[i / 6 % 3], wide = n + 2 * pad;
        const kiln_dtype dtype = dtypes[i / 18];
        const bool scaled = round / 4 % 2;
        set_option("vector_bits", bits[(i + i / 18) % 3]);
        set_option("dynamic", round % 2 ? "always" : "never");
        for (int k = 0; k < 3 * planes * n; k++)
            x[k] = k * 7 % 60 + 1;
        for (int k = 0; k < 3 * planes * wide; k++) {
            const int plane = k % planes, at = k / planes % wide - pad, row = k / planes / wide;
            want[k] = at < 0 || at >= n ? 0 : x[(row * planes + plane) * n + at] * (scaled ? plane + 1 : 1);
        }
        kiln_tensor *y = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(3, planes, n), x), dtype);
        y = kiln_swap_axes(kiln_eval(y) == KILN_OK ? y : NULL, 1, 2);
        if (scaled)
            y = kiln_mul(y, kiln_cast(planes == 4 ? F32(KILN_SHAPE(4), 1, 2, 3, 4) : F32(KILN_SHAPE(2), 1, 2), dtype));
        y = kiln_pad_by(y, 3, (const kiln_padding[]){{0, 0}, {pad, pad}, {0, 0}}, KILN_PAD_ZERO);
        expect(__LINE__, y, dtype, KILN_SHAPE(3, wide, planes), 0, want, (size_t)(3 * planes * wide));
    }
}

API_TEST(view, split)
{
    kiln_tensor *x = X23, *parts[3] = {x, x, x};
    cr_assert(kiln_split(x, 1, 3, NULL, parts) == KILN_OK);
    EXPECT(parts[0], KILN_F32, KILN_SHAPE(2, 1), 0, 1, 4);
    EXPECT(parts[2], KILN_F32, KILN_SHAPE(2, 1), 0, 3, 6);
    cr_assert(kiln_split(x, -1, 3, (int64_t[]){1, 0, 2}, parts) == KILN_OK);
    EXPECT(parts[0], KILN_F32, KILN_SHAPE(2, 1), 0, 1, 4);
    EXPECT_EMPTY(parts[1], KILN_F32, KILN_SHAPE(2, 0));
    EXPECT(parts[2], KILN_F32, KILN_SHAPE(2, 2), 0, 2, 3, 5, 6);
    cr_assert(kiln_split(x, 1, 2, NULL, parts) == KILN_BAD_SHAPE);
    cr_assert(parts[0] == NULL && parts[1] == NULL);
    EXPECT_ERROR(NULL, KILN_BAD_SHAPE, "kiln_split: axis 1 is not cut evenly: x is f32[2,3]");
    cr_assert(kiln_split(x, 1, 2, (int64_t[]){1, 1}, parts) == KILN_BAD_SHAPE);
    EXPECT_ERROR(NULL, KILN_BAD_SHAPE, "the sizes do not add up to axis 1");
    cr_assert(kiln_split(x, 1, 2, (int64_t[]){-1, 4}, parts) == KILN_BAD_SHAPE);
    kiln_clear_error();
    cr_assert(kiln_split(x, 2, 1, NULL, parts) == KILN_INVALID);
    EXPECT_ERROR(NULL, KILN_INVALID, "kiln_split: axis 2");
    cr_assert(kiln_split(x, 0, 0, NULL, parts) == KILN_INVALID);
    kiln_clear_error();
}

API_TEST(view, tile)
{
    kiln_tensor *x = F32(KILN_SHAPE(1, 2), 1, 2);
    EXPECT(kiln_tile(x, KILN_SHAPE(2, 2)), KILN_F32, KILN_SHAPE(2, 4), 0, 1, 2, 1, 2, 1, 2, 1, 2);
    EXPECT(kiln_tile(x, KILN_SHAPE(2)), KILN_F32, KILN_SHAPE(1, 4), 0, 1, 2, 1, 2);
    EXPECT(kiln_tile(x, KILN_SHAPE(2, 1, 1)), KILN_F32, KILN_SHAPE(2, 1, 2), 0, 1, 2, 1, 2);
    EXPECT(kiln_tile(F32(KILN_SHAPE(), 5), KILN_SHAPE(3)), KILN_F32, KILN_SHAPE(3), 0, 5, 5, 5);
    EXPECT_EMPTY(kiln_tile(x, KILN_SHAPE(0, 1)), KILN_F32, KILN_SHAPE(0, 2));
    EXPECT(kiln_sum(kiln_tile(kiln_ones(KILN_F32, KILN_SHAPE(2, 1, 2, 1, 2, 1, 2, 1)), KILN_SHAPE(2, 2, 2, 2, 2, 2, 2, 2))), KILN_F32,
           KILN_SHAPE(), 0, 4096);
    EXPECT_ERROR(kiln_tile(x, KILN_SHAPE(-1)), KILN_BAD_SHAPE, "kiln_tile");
    EXPECT_ERROR(kiln_tile(x, KILN_SHAPE(INT64_C(1) << 61, 4)), KILN_OVERFLOW, "kiln_tile");
}

API_TEST(view, triangles)
{
    kiln_tensor *x = kiln_reshape(kiln_arange(KILN_I32, 1, 10, 1), KILN_SHAPE(3, 3));
    EXPECT(kiln_triu(x, 0), KILN_I32, KILN_SHAPE(3, 3), 0, 1, 2, 3, 0, 5, 6, 0, 0, 9);
    EXPECT(kiln_triu(x, 1), KILN_I32, KILN_SHAPE(3, 3), 0, 0, 2, 3, 0, 0, 6, 0, 0, 0);
    EXPECT(kiln_tril(x, 0), KILN_I32, KILN_SHAPE(3, 3), 0, 1, 0, 0, 4, 5, 0, 7, 8, 9);
    EXPECT(kiln_tril(x, -1), KILN_I32, KILN_SHAPE(3, 3), 0, 0, 0, 0, 4, 0, 0, 7, 8, 0);
    EXPECT(kiln_tril(x, INT64_MAX), KILN_I32, KILN_SHAPE(3, 3), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    EXPECT(kiln_triu(kiln_ones(KILN_F32, KILN_SHAPE(2, 1, 2)), 1), KILN_F32, KILN_SHAPE(2, 1, 2), 0, 0, 1, 0, 1);
    EXPECT_ERROR(kiln_triu(F32(KILN_SHAPE(2), 1, 2), 0), KILN_BAD_SHAPE, "kiln_triu: two axes");
}

API_TEST(view, chains)
{
    kiln_tensor *x = kiln_reshape(kiln_arange(KILN_F32, 0, 24, 1), KILN_SHAPE(2, 3, 4));
    kiln_tensor *y = kiln_flip(kiln_transpose(kiln_slice_axis(x, 1, 0, 3, 2)), KILN_AXES(1)); /* [2,4,2] */
    EXPECT(kiln_sum_axes(kiln_mul(y, kiln_int(2)), KILN_AXES(1), false), KILN_F32, KILN_SHAPE(2, 2), 0, 12, 76, 108, 172);
    EXPECT(kiln_reshape(kiln_pad(kiln_select(y, 0, 0), 2, (kiln_padding[]){{0, 0}, {1, 0}}, kiln_int(-1)), KILN_SHAPE(12)), KILN_F32,
           KILN_SHAPE(12), 0, -1, 3, 11, -1, 2, 10, -1, 1, 9, -1, 0, 8);
}

/* A repeated array that lies column by column: a square of registers would go on past the end of a column (jit/llvm/cpu/squares.c). */
Test(view, repeated_columns)
{
    static const char *const cpus[] = {"host", "x86-64-v3"};
    for (int c = 0; c < 2; c++)
        for (int64_t rows = 2; rows <= 5; rows++)
            for (int64_t columns = 4; columns <= 17; columns += 13) {
                double data[5 * 17], got[4 * 5 * 17];
                kiln_scope *scope = kiln_scope_begin();
                set_option("cpu", cpus[c]);
                for (int64_t k = 0; k < rows * columns; k++)
                    data[k] = (double)k;
                kiln_tensor *x = kiln_wrap_strided(KILN_F64, KILN_SHAPE(rows, columns), (int64_t[]){1, rows}, data, NULL, NULL);
                kiln_tensor *one = kiln_from(KILN_F64, KILN_SHAPE(1), (double[]){1});
                OK(kiln_read(kiln_mul(kiln_tile(x, KILN_SHAPE(4, 1)), one), KILN_F64, got, sizeof *got * (size_t)(4 * rows * columns)));
                for (int64_t i = 0; i < 4 * rows; i++)
                    for (int64_t j = 0; j < columns; j++)
                        cr_assert_eq(got[i * columns + j], data[j * rows + i % rows], "%s, %d x %d: row %d, column %d", cpus[c], (int)rows,
                                     (int)columns, (int)i, (int)j);
                kiln_scope_end(scope);
            }
    end_mode();
}

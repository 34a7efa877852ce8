/* Windows: unfold, paddings, convolution and pooling against plain loops over random settings; what the documentation of others describes; errors. */
#include "api.h"

#include "tests/support/slice.h"

#include <stdio.h>

enum { VALUES = 1 << 14 };

static uint64_t state;

static int pick(int n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

static void fill(double *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = pick(7) - 3;
}

/* ---- convolution ---- */

/* Along two axes; one has height 1 and windows of 1 there. */
typedef struct Setting {
    int n, groups, in, out, size[2], taps[2], stride[2], dilation[2], low[2], high[2]; /* in, out: of a group */
} Setting;

static double x[VALUES], w[VALUES], y[2 * VALUES], behind[2 * VALUES], dx[VALUES], dw[VALUES]; /* behind: what flows back */

static int padded_places(const Setting *s, int d)
{
    int n = s->size[d] + s->low[d] + s->high[d], span = (s->taps[d] - 1) * s->dilation[d] + 1;
    return n < span ? 0 : (n - span) / s->stride[d] + 1;
}

static int transposed_places(const Setting *s, int d)
{
    return (s->size[d] - 1) * s->stride[d] - s->low[d] - s->high[d] + (s->taps[d] - 1) * s->dilation[d] + 1;
}

/* Each pair of an element of x and a tap that meet at a place: forward the place takes from the element, transposed the element gives to
 * it. With what flows back to both. */
static int loops(const Setting *s, bool transposed)
{
    int places[2], in = s->in * s->groups, out = s->out * s->groups;
    for (int d = 0; d < 2; d++)
        places[d] = transposed ? transposed_places(s, d) : padded_places(s, d);
    int count = s->n * out * places[0] * places[1];
    fill(behind, count);
    memset(y, 0, sizeof y);
    memset(dx, 0, sizeof dx);
    memset(dw, 0, sizeof dw);
    const int *wide = transposed ? places : s->size, *narrow = transposed ? s->size : places;
    for (int n = 0; n < s->n; n++)
        for (int o = 0; o < out; o++)
            for (int i = 0; i < s->in; i++)
                for (int p = 0; p < narrow[0]; p++)
                    for (int q = 0; q < narrow[1]; q++)
                        for (int t = 0; t < s->taps[0]; t++)
                            for (int u = 0; u < s->taps[1]; u++) {
                                int a = p * s->stride[0] + t * s->dilation[0] - s->low[0],
                                    b = q * s->stride[1] + u * s->dilation[1] - s->low[1];
                                if (a < 0 || b < 0 || a >= wide[0] || b >= wide[1])
                                    continue;
                                int channel = o / s->out * s->in + i, at = transposed ? p : a, bt = transposed ? q : b;
                                int to = transposed ? a : p, too = transposed ? b : q;
                                int row = transposed ? channel * s->out + o % s->out : o * s->in + i;
                                int yi = ((n * out + o) * places[0] + to) * places[1] + too;
                                int xi = ((n * in + channel) * s->size[0] + at) * s->size[1] + bt;
                                int wi = (row * s->taps[0] + t) * s->taps[1] + u;
                                y[yi] += x[xi] * w[wi];
                                dx[xi] += behind[yi] * w[wi];
                                dw[wi] += behind[yi] * x[xi];
                            }
    return count;
}

/* Half of them have windows that are one apart. */
static Setting invent(bool flat, bool transposed)
{
    bool depthwise = pick(4) == 0, apart = pick(2);
    Setting s = {.n = 1 + pick(2), .groups = 1 + pick(3), .in = depthwise ? 1 : 1 + pick(3), .out = depthwise ? 1 : 1 + pick(3)};
    for (int d = 0; d < 2; d++) {
        bool one = flat && d == 0;
        s.taps[d] = one ? 1 : 1 + pick(3);
        s.stride[d] = one || !apart ? 1 : 1 + pick(3);
        s.dilation[d] = one ? 1 : 1 + pick(2);
        int span = (s.taps[d] - 1) * s.dilation[d] + 1;
        s.low[d] = one ? 0 : transposed ? pick(span) : pick(3);
        s.high[d] = one ? 0 : transposed ? pick(span) : pick(3);
        s.size[d] = one ? 1 : span + pick(4);
    }
    return s;
}

/* To bf16: sums of whole numbers are exact in f32, from which they are rounded once. */
static void round_to(kiln_dtype dtype, double *values, size_t n)
{
    for (size_t i = 0; i < n && dtype == KILN_BF16; i++) {
        float value = (float)values[i];
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        word = (word + 0x7fff + (word >> 16 & 1)) & 0xffff0000;
        memcpy(&value, &word, sizeof word);
        values[i] = value;
    }
}

/* Along the last axis alone: `flat`. */
static void against_loops(const Setting *s, bool flat, bool transposed, bool last, kiln_dtype dtype)
{
    int in = s->in * s->groups, out = s->out * s->groups, count = s->n * in * s->size[0] * s->size[1];
    fill(x, count);
    fill(w, in * s->out * s->taps[0] * s->taps[1]);
    int n = loops(s, transposed);
    kiln_conv_options o = {.groups = s->groups, .transposed = transposed, .channels_last = last};
    for (int d = 0; d < 2 - flat; d++) {
        o.stride[d] = s->stride[d + flat];
        o.dilation[d] = s->dilation[d + flat];
        o.padding[d] = (kiln_padding){s->low[d + flat], s->high[d + flat]};
    }
    int rows = transposed ? in : out, columns = transposed ? s->out : s->in;
    kiln_tensor *image = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(s->n, in, s->size[0], s->size[1]), x), dtype);
    kiln_tensor *weight = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(rows, columns, s->taps[0], s->taps[1]), w), dtype);
    kiln_tensor *both[2] = {image, weight}, *d[2];
    if (dtype != KILN_I32)
        for (int k = 0; k < 2; k++)
            both[k] = kiln_param(kiln_retain(both[k]));
    image = both[0];
    weight = both[1];
    if (flat) {
        image = kiln_squeeze(image, KILN_AXES(2));
        weight = kiln_squeeze(weight, KILN_AXES(2));
    }
    if (last)
        image = flat ? kiln_swap_axes(image, 1, 2) : kiln_permute(image, KILN_AXES(0, 2, 3, 1));
    printf("seed %d: %d x %d channels, %d groups, taps %d %d, stride %d %d\n", (int)slice_seed(), s->in, s->out, s->groups, s->taps[0],
           s->taps[1], s->stride[0], s->stride[1]);
    kiln_tensor *made = kiln_conv(image, weight, &o);
    cr_assert(made, "seed %d: %s", (int)slice_seed(), kiln_error_message());
    if (last)
        made = flat ? kiln_swap_axes(made, 1, 2) : kiln_permute(made, KILN_AXES(0, 3, 1, 2));
    int places[2] = {transposed ? transposed_places(s, 0) : padded_places(s, 0),
                     transposed ? transposed_places(s, 1) : padded_places(s, 1)};
    kiln_shape shape = flat ? KILN_SHAPE(s->n, out, places[1]) : KILN_SHAPE(s->n, out, places[0], places[1]);
    bool has_gradient = dtype != KILN_I32;
    if (has_gradient) {
        kiln_tensor *seed = kiln_cast(kiln_from(KILN_F64, shape, behind), dtype);
        cr_assert(kiln_vjp(1, &made, &seed, 2, both, 0, d) == KILN_OK, "seed %d: %s", (int)slice_seed(), kiln_error_message());
    }
    round_to(dtype, y, (size_t)n);
    expect(__LINE__, made, dtype, shape, 1e-12, y, (size_t)n); /* whole numbers: exact in any order, but for the sign of 0 */
    if (!has_gradient)
        return;
    round_to(dtype, dx, (size_t)count);
    round_to(dtype, dw, (size_t)kiln_numel(both[1]));
    expect(__LINE__, d[0], dtype, kiln_shape_of(both[0]), 1e-12, dx, (size_t)count);
    expect(__LINE__, d[1], dtype, kiln_shape_of(both[1]), 1e-12, dw, (size_t)kiln_numel(both[1]));
    for (int k = 0; k < 2; k++)
        kiln_release(both[k]);
}

API_TEST(convolution, equals_loops)
{
    static const kiln_dtype dtypes[] = {KILN_F64, KILN_F32, KILN_I32};
    state = slice_seed() * 131 + 7;
    for (int round = 0; round < 12; round++) {
        bool flat = round % 4 == 3, transposed = round % 2, last = pick(3) == 0;
        Setting s = invent(flat, transposed);
        against_loops(&s, flat, transposed, last, dtypes[round % 3]);
    }
}

/* Large enough that places are rows of tiles where they lie in x (jit/llvm/cpu/place.c), in either layout: rows of 14, 7, 8, 13, 16,
 * 27 and 29 places, strides: tiles of which some have a row less. In the gradient of weights these rows are taps, 3, 2 and 7, and a tile has
 * several of them; of bf16 pairs of places are read as one element where rows have an even number. */
API_TEST(convolution, equals_loops_where_places_are_read_in_place)
{
    static const Setting settings[] = {
        {2, 1, 5, 32, {14, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, {1, 1, 7, 33, {29, 14}, {3, 2}, {2, 2}, {1, 1}, {1, 1}, {1, 0}},
        {2, 2, 2, 24, {16, 16}, {3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}}, {2, 1, 33, 20, {5, 13}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        {3, 1, 16, 64, {1, 48}, {1, 7}, {1, 1}, {1, 1}, {0, 3}, {0, 3}}, {1, 1, 8, 120, {14, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        {2, 1, 8, 64, {14, 13}, {3, 3}, {1, 2}, {1, 1}, {1, 0}, {1, 2}}, {2, 1, 8, 64, {7, 16}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        {1, 1, 8, 33, {7, 27}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},  {1, 1, 8, 64, {6, 29}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    };
    state = slice_seed() * 131 + 9;
    static const kiln_dtype dtypes[] = {KILN_F64, KILN_F32, KILN_BF16};
    for (int i = 0; i < 30; i++)
        against_loops(&settings[i / 3], settings[i / 3].size[0] == 1, false, i / 3 % 2, dtypes[i % 3]);
}

/* Depthwise: tiles that are inside, tiles that the ends of rows cut, and those of the first and last rows, each with code of its own. In the last
 * setting a window has one row, which lies beside the image for all of its tiles or for none. */
API_TEST(convolution, equals_loops_where_edges_cut_rows)
{
    static const Setting settings[] = {
        {2, 5, 1, 1, {6, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},  {1, 4, 1, 1, {9, 75}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
        {1, 3, 1, 1, {5, 70}, {2, 4}, {1, 1}, {2, 1}, {2, 3}, {0, 1}},  {1, 3, 1, 1, {1, 130}, {1, 5}, {1, 3}, {1, 2}, {0, 4}, {0, 4}},
        {1, 3, 1, 1, {13, 40}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, {2, 3, 1, 1, {7, 33}, {5, 5}, {1, 1}, {1, 1}, {2, 4}, {5, 1}},
        {1, 3, 1, 1, {3, 20}, {3, 2}, {1, 1}, {2, 1}, {4, 1}, {1, 3}},  {1, 3, 1, 1, {9, 150}, {1, 3}, {2, 2}, {1, 1}, {1, 0}, {1, 1}},
    };
    state = slice_seed() * 131 + 13;
    static const kiln_dtype dtypes[] = {KILN_F64, KILN_F32, KILN_BF16};
    for (int i = 0; i < 24; i++)
        against_loops(&settings[i / 3], settings[i / 3].size[0] == 1, false, false, dtypes[i % 3]);
}

/* Gradients of weights of few channels, of so many taps that a tile is three vectors without AVX-512 (12 columns, 6 with 128 bits): the last one of a row
 * has 10, 9 and 11 of them, 4, 3 and 5. F64, so that what comes from behind is read where it lies. */
API_TEST(convolution, equals_loops_by_tiles_of_three_vectors)
{
    static const char *const bits[] = {"128", "256"};
    static const int taps[][2] = {{5, 10}, {5, 9}, {3, 11}, {5, 11}, {1, 13}};
    state = slice_seed() * 131 + 19;
    for (int i = 0; i < 10; i++) {
        const int *t = taps[i / 2];
        Setting s = {2, 1, 5, 3, {12 + t[0], 34 + t[1]}, {t[0], t[1]}, {1, 1}, {1, 1}, {0, 0}, {0, 0}};
        set_option("vector_bits", bits[i % 2]);
        against_loops(&s, false, false, false, KILN_F64);
    }
}

/* Depthwise with what follows it, in place where that may be: rows that are together in a tile, and those that fill none. */
API_TEST(convolution, depthwise_in_a_block)
{
    enum { C = 3 };
    static const int sizes[][2] = {{12, 40}, {9, 19}, {2, 33}, {1, 70}, {7, 7}};
    state = slice_seed() * 131 + 17;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int high = sizes[i][0], wide = sizes[i][1], count = C * high * wide;
        fill(x, count);
        fill(w, C * 9);
        fill(behind, count);
        for (int at = 0; at < count; at++) {
            int c = at / (high * wide), p = at / wide % high, q = at % wide;
            double sum = 3 - c;
            for (int t = 0; t < 9; t++) {
                int a = p + t / 3 - 1, b = q + t % 3 - 1;
                sum += a < 0 || b < 0 || a >= high || b >= wide ? 0 : x[(c * high + a) * wide + b] * w[c * 9 + t];
            }
            y[at] = (sum > 0 ? sum : 0) + behind[at];
        }
        kiln_shape shape = KILN_SHAPE(1, C, high, wide);
        kiln_conv_options o = {.groups = C, .same = true, .bias = F32(KILN_SHAPE(C), 3, 2, 1)};
        kiln_tensor *image = kiln_cast(kiln_from(KILN_F64, shape, x), KILN_F32), *rest = kiln_from(KILN_F64, shape, behind);
        kiln_tensor *weight = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(C, 1, 3, 3), w), KILN_F32);
        kiln_tensor *made = kiln_add(kiln_relu(kiln_conv(image, weight, &o)), kiln_cast(rest, KILN_F32));
        expect(__LINE__, made, KILN_F32, shape, 0, y, (size_t)count); /* whole numbers */
    }
}

/* One program for images of any size: places are read in place there, too, in rows of less than a tile and of more. */
Test(convolution, equals_loops_where_sizes_change)
{
    static const char *const bits[] = {"0", "256", "128"};
    begin_mode(0);
    kiln_stats before;
    state = slice_seed() * 131 + 11;
    for (int i = 0; i < 3; i++) {
        set_option("vector_bits", bits[i]);
        for (int round = 0; round < 16; round++) {
            Setting s = {1 + round % 2, 1, 8, 32, {16 - round % 2, 16 + round % 2}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}};
            if (round > 3) {
                s.size[0] = 1 + pick(12);
                s.size[1] = 1 + pick(38);
            }
            kiln_scope *scope = kiln_scope_begin();
            against_loops(&s, false, false, i == 1, KILN_F32);
            kiln_scope_end(scope);
            if (round == 5)
                kiln_get_stats(&before);
        }
        no_compile_since(&before);
    }
    set_option("vector_bits", "0");
    end_mode();
}

/* Weights that lie across the lanes of many points, and are turned before: where sizes are constants, and where they are none. */
API_TEST(convolution, weights_of_channels_that_are_last)
{
    enum { CHANNELS = 33 };
    for (int i = 0; i < 4; i++) {
        const int side = 31 + 2 * i;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *image = kiln_cast(kiln_randint(KILN_I32, KILN_SHAPE(2, CHANNELS, side, side + 1), -9, 9), KILN_F32);
        kiln_tensor *weights = kiln_cast(kiln_randint(KILN_I32, KILN_SHAPE(CHANNELS, 1, 3, 2), -9, 9), KILN_F32);
        cr_assert(kiln_eval(image) == KILN_OK && kiln_eval(weights) == KILN_OK);
        kiln_conv_options o = {.groups = CHANNELS, .padding = {{1, 1}, {0, 1}}};
        kiln_tensor *first = kiln_conv(image, weights, &o);
        o.channels_last = true;
        image = kiln_permute(image, KILN_AXES(0, 2, 3, 1));
        cr_assert(kiln_eval(image) == KILN_OK);
        kiln_tensor *last = kiln_conv(image, weights, &o);
        cr_assert(kiln_eval(first) == KILN_OK && kiln_eval(last) == KILN_OK, "%s", kiln_error_message());
        double apart = -1, most = 0;
        cr_assert_eq(kiln_item(kiln_max(kiln_abs(kiln_sub(first, kiln_permute(last, KILN_AXES(0, 3, 1, 2))))), &apart), KILN_OK);
        cr_assert_eq(kiln_item(kiln_max(kiln_abs(last)), &most), KILN_OK);
        cr_expect(apart == 0 && most > 100, "%d x %d: %g apart, at most %g", side, side + 1, apart, most);
        kiln_scope_end(scope);
    }
}

/* Batches, heights and widths that change make one program for all of them, in either layout: convolution, pooling and what is between. */
Test(convolution, sizes_change)
{
    begin_mode(0);
    kiln_stats before;
    for (int last = 0; last < 2; last++) {
        kiln_conv_options conv = {.padding = {{1, 1}, {1, 1}}, .channels_last = last};
        kiln_pool_options pool = {.channels_last = last};
        for (int i = 0; i < 24; i++) {
            int n = 1 + i % 5, high = 4 + i * 5 % 7, wide = 4 + i * 3 % 11;
            kiln_scope *scope = kiln_scope_begin();
            kiln_shape shape = last ? KILN_SHAPE(n, high, wide, 2) : KILN_SHAPE(n, 2, high, wide);
            kiln_tensor *line = kiln_reshape(kiln_arange(KILN_F64, 0, wide, 1), last ? KILN_SHAPE(wide, 1) : KILN_SHAPE(wide));
            kiln_tensor *image = kiln_expand(line, shape), *ones = kiln_ones(KILN_F64, KILN_SHAPE(3, 2, 3, 3));
            cr_assert(image && kiln_eval(image) == KILN_OK && kiln_eval(ones) == KILN_OK);
            kiln_tensor *made = kiln_max_pool(kiln_relu(kiln_conv(image, ones, &conv)), KILN_SHAPE(2, 2), &pool);
            double all = 0, got; /* each place sees two channels of three columns, in three rows or, at the ends, two */
            for (int p = 0; p < high / 2; p++)
                for (int q = 0; q < wide / 2; q++) {
                    double most = 0;
                    for (int k = 0; k < 4; k++) {
                        int row = 2 * p + k / 2, column = 2 * q + k % 2, rows = 3 - (row == 0) - (row == high - 1);
                        double sum = 2 * rows * (3 * column - (column == wide - 1 ? wide : 0) + (column == 0));
                        most = sum > most ? sum : most;
                    }
                    all += most;
                }
            cr_assert_eq(kiln_item(kiln_sum(made), &got), KILN_OK, "%s", kiln_error_message());
            cr_expect_eq(got, 3 * n * all, "%d x %d x %d, channels last %d: %g, not %g", n, high, wide, last, got, 3 * n * all);
            if (i == 7)
                kiln_get_stats(&before);
            kiln_scope_end(scope);
        }
        no_compile_since(&before);
    }
    end_mode();
}

static kiln_tensor *block_norm(kiln_tensor *image, kiln_tensor *ones, bool last)
{
    return kiln_batch_norm(image, ones, ones, &(kiln_norm_options){.weight = ones, .bias = ones, .channels_last = last});
}

/* A layout takes no kernel and no copy: a residual block with channels last launches and moves what it does with channels first, which are
 * two convolutions, the images padded for each, and the scales of the norms. */
Test(convolution, layouts_are_not_copied)
{
    enum { N = 2, C = 32, SIZE = 14 };
    kiln_stats stats[2];
    begin_mode(0);
    for (int last = 0; last < 2; last++) {
        kiln_conv_options o = {.same = true, .channels_last = last};
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *image = kiln_uniform(KILN_F32, last ? KILN_SHAPE(N, SIZE, SIZE, C) : KILN_SHAPE(N, C, SIZE, SIZE), -1, 1);
        kiln_tensor *weight = kiln_uniform(KILN_F32, KILN_SHAPE(C, C, 3, 3), -1, 1), *ones = kiln_uniform(KILN_F32, KILN_SHAPE(C), 1, 2);
        cr_assert(kiln_eval(image) == KILN_OK && kiln_eval(weight) == KILN_OK && kiln_eval(ones) == KILN_OK);
        kiln_reset_stats();
        kiln_tensor *made = kiln_relu(block_norm(kiln_conv(image, weight, &o), ones, last));
        made = kiln_relu(kiln_add(block_norm(kiln_conv(made, weight, &o), ones, last), image));
        cr_assert(kiln_eval(made) == KILN_OK, "%s", kiln_error_message());
        kiln_get_stats(&stats[last]);
        kiln_scope_end(scope);
    }
    cr_expect_eq(stats[1].kernels, stats[0].kernels, "%d and %d kernels", (int)stats[1].kernels, (int)stats[0].kernels);
    cr_expect_eq(stats[1].bytes_moved, stats[0].bytes_moved, "%d and %d bytes", (int)stats[1].bytes_moved, (int)stats[0].bytes_moved);
    cr_expect(stats[0].kernels <= 6, "%d kernels", (int)stats[0].kernels);
    end_mode();
}

#define IMAGE kiln_reshape(kiln_arange(KILN_F32, 1, 10, 1), KILN_SHAPE(1, 1, 3, 3))

API_TEST(convolution, options)
{
    kiln_tensor *ones = kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 2, 2)), *wide = kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 3, 3));
    EXPECT(kiln_conv(IMAGE, ones, NULL), KILN_F32, KILN_SHAPE(1, 1, 2, 2), 0, 12, 16, 24, 28);
    EXPECT(kiln_conv(kiln_squeeze(IMAGE, KILN_AXES(0)), ones, NULL), KILN_F32, KILN_SHAPE(1, 2, 2), 0, 12, 16, 24, 28);
    EXPECT(kiln_conv(IMAGE, wide, &(kiln_conv_options){.same = true}), KILN_F32, KILN_SHAPE(1, 1, 3, 3), 0, 12, 21, 16, 27, 45, 33, 24, 39,
           28);
    EXPECT(kiln_conv(IMAGE, ones, &(kiln_conv_options){.same = true}), KILN_F32, KILN_SHAPE(1, 1, 3, 3), 0, 12, 16, 9, 24, 28, 15, 15, 17,
           9); /* the odd row behind */
    EXPECT(kiln_conv(IMAGE, ones, &(kiln_conv_options){.same = true, .stride = {2, 2}}), KILN_F32, KILN_SHAPE(1, 1, 2, 2), 0, 12, 9, 15, 9);
    kiln_conv_options edge = {.padding = {{1, 0}, {0, 1}}, .pad_mode = KILN_PAD_EDGE};
    EXPECT(kiln_conv(IMAGE, ones, &edge), KILN_F32, KILN_SHAPE(1, 1, 3, 3), 0, 6, 10, 12, 12, 16, 18, 24, 28, 30);
    /* padding beyond the kernel, a stride beyond it, the last elements left out */
    EXPECT(kiln_conv(IMAGE, kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 1, 1)), &(kiln_conv_options){.padding = {{2, 0}}, .stride = {3, 2}}),
           KILN_F32, KILN_SHAPE(1, 1, 2, 2), 0, 0, 0, 4, 6);
    kiln_tensor *two = kiln_ones(KILN_F32, KILN_SHAPE(2, 1, 3, 3)); /* two outputs, each with a bias */
    /* numbers of torch.nn.Conv1d and ConvTranspose1d: `same` with taps apart; output padding below the dilation; padding of a whole kernel */
    kiln_tensor *line = F32(KILN_SHAPE(1, 1, 4), 1, 2, 3, 4), *taps = F32(KILN_SHAPE(1, 1, 2), 1, 2);
    EXPECT(kiln_conv(line, taps, &(kiln_conv_options){.same = true, .dilation = {3}}), KILN_F32, KILN_SHAPE(1, 1, 4), 0, 6, 9, 2, 3);
    EXPECT(kiln_conv(line, taps, &(kiln_conv_options){.transposed = true, .dilation = {3}, .output_padding = {2}}), KILN_F32,
           KILN_SHAPE(1, 1, 9), 0, 1, 2, 3, 6, 4, 6, 8, 0, 0);
    EXPECT(kiln_conv(line, taps, &(kiln_conv_options){.transposed = true, .padding = {{2, 2}}}), KILN_F32, KILN_SHAPE(1, 1, 1), 0, 7);
    EXPECT(kiln_conv(IMAGE, two, &(kiln_conv_options){.bias = F32(KILN_SHAPE(2), 0.5, -45)}), KILN_F32, KILN_SHAPE(1, 2, 1, 1), 0, 45.5, 0);
    EXPECT(kiln_conv(F32(KILN_SHAPE(1, 1, 2), 1, 2), F32(KILN_SHAPE(1, 1, 2), 1, 10),
                     &(kiln_conv_options){.transposed = true, .stride = {2}, .output_padding = {1}}),
           KILN_F32, KILN_SHAPE(1, 1, 5), 0, 1, 10, 2, 20, 0);
    /* three axes */
    EXPECT(kiln_conv(kiln_ones(KILN_F16, KILN_SHAPE(2, 1, 3, 3, 3)), kiln_ones(KILN_F16, KILN_SHAPE(1, 1, 3, 3, 3)), NULL), KILN_F16,
           KILN_SHAPE(2, 1, 1, 1, 1), 0, 27, 27);
    EXPECT_EMPTY(kiln_conv(kiln_zeros(KILN_F32, KILN_SHAPE(0, 1, 3, 3)), ones, NULL), KILN_F32,
                 KILN_SHAPE(0, 1, 2, 2)); /* an empty batch */
    EXPECT_EMPTY(kiln_conv(IMAGE, kiln_zeros(KILN_F32, KILN_SHAPE(0, 1, 2, 2)), NULL), KILN_F32, KILN_SHAPE(1, 0, 2, 2));
    /* no channels: sums of nothing */
    EXPECT(kiln_conv(kiln_zeros(KILN_F32, KILN_SHAPE(1, 0, 2, 2)), kiln_zeros(KILN_F32, KILN_SHAPE(1, 0, 2, 2)), NULL), KILN_F32,
           KILN_SHAPE(1, 1, 1, 1), 0, 0);
}

/* Images without elements: no places where each element is one, or `same` counts them (ONNX's ceil(0 / stride)); with padding, windows of that. */
API_TEST(convolution, of_nothing)
{
    const kiln_conv_options same = {.same = true, .stride = {2, 2}}, four = {.groups = 4, .same = true};
    const kiln_pool_options pool_same = {.same = true};
    kiln_tensor *flat = kiln_zeros(KILN_F32, KILN_SHAPE(2, 4, 0, 3)), *one = kiln_ones(KILN_F32, KILN_SHAPE(5, 4, 1, 1)),
                *wide = kiln_ones(KILN_F32, KILN_SHAPE(5, 4, 3, 3)), *deep = kiln_ones(KILN_F32, KILN_SHAPE(4, 1, 3, 3));
    EXPECT_EMPTY(kiln_conv(flat, one, NULL), KILN_F32, KILN_SHAPE(2, 5, 0, 3));
    EXPECT_EMPTY(kiln_conv(flat, one, &(kiln_conv_options){.stride = {3, 3}, .bias = kiln_ones(KILN_F32, KILN_SHAPE(5))}), KILN_F32,
                 KILN_SHAPE(2, 5, 0, 1));
    EXPECT_EMPTY(kiln_conv(flat, wide, &same), KILN_F32, KILN_SHAPE(2, 5, 0, 2));
    EXPECT_EMPTY(kiln_conv(flat, deep, &four), KILN_F32, KILN_SHAPE(2, 4, 0, 3));
    EXPECT_EMPTY(kiln_conv(kiln_permute(flat, KILN_AXES(0, 2, 3, 1)), wide, &(kiln_conv_options){.same = true, .channels_last = true}),
                 KILN_F32, KILN_SHAPE(2, 0, 3, 5));
    EXPECT_EMPTY(kiln_conv(kiln_zeros(KILN_F32, KILN_SHAPE(4, 0)), kiln_ones(KILN_F32, KILN_SHAPE(5, 4, 1)), NULL), KILN_F32,
                 KILN_SHAPE(5, 0));
    EXPECT_EMPTY(kiln_max_pool(flat, KILN_SHAPE(1, 3), NULL), KILN_F32, KILN_SHAPE(2, 4, 0, 1));
    EXPECT_EMPTY(kiln_max_pool(flat, KILN_SHAPE(2, 2), &pool_same), KILN_F32, KILN_SHAPE(2, 4, 0, 2));
    EXPECT_EMPTY(kiln_avg_pool(flat, KILN_SHAPE(2, 2), &pool_same), KILN_F32, KILN_SHAPE(2, 4, 0, 2));
    EXPECT_EMPTY(kiln_avg_pool(flat, KILN_SHAPE(1, 1), &(kiln_pool_options){.exclude_padding = true}), KILN_F32, KILN_SHAPE(2, 4, 0, 3));
    /* (size - 1) * stride - padding + dilation * (taps - 1) + output padding + 1 places */
    kiln_tensor *line = kiln_zeros(KILN_F32, KILN_SHAPE(1, 2, 0)), *taps = kiln_ones(KILN_F32, KILN_SHAPE(2, 1, 3));
    EXPECT(kiln_conv(line, taps, &(kiln_conv_options){.transposed = true, .stride = {2}, .output_padding = {1}}), KILN_F32,
           KILN_SHAPE(1, 1, 2), 0, 0, 0);
    EXPECT(kiln_conv(line, taps, &(kiln_conv_options){.transposed = true}), KILN_F32, KILN_SHAPE(1, 1, 2), 0, 0, 0);
    /* the gradient of nothing is zero */
    kiln_tensor *weight = kiln_param(kiln_retain(kiln_ones(KILN_F32, KILN_SHAPE(1, 2, 1)))), *g;
    cr_assert_eq(kiln_grad(kiln_sum(kiln_conv(line, weight, NULL)), &weight, 1, &g), KILN_OK, "%s", kiln_error_message());
    EXPECT(g, KILN_F32, KILN_SHAPE(1, 2, 1), 0, 0, 0);
    kiln_release(weight);
    /* and to no images flows nothing, however windows lie */
    kiln_tensor *none = kiln_param(kiln_retain(kiln_zeros(KILN_F32, KILN_SHAPE(0, 4, 5, 5)))), *taps_of[2] = {wide, deep};
    for (int k = 0; k < 2; k++) {
        kiln_tensor *sum = kiln_sum(kiln_conv(none, taps_of[k], &(kiln_conv_options){.same = true, .groups = k ? 4 : 1}));
        cr_assert_eq(kiln_grad(sum, &none, 1, &g), KILN_OK, "%s", kiln_error_message());
        EXPECT_EMPTY(g, KILN_F32, KILN_SHAPE(0, 4, 5, 5));
    }
    kiln_release(none);
    EXPECT_ERROR(kiln_conv(flat, wide, NULL), KILN_BAD_SHAPE, "0 elements with padding are fewer than a window's 3");
    EXPECT_ERROR(kiln_max_pool(flat, KILN_SHAPE(2, 2), NULL), KILN_BAD_SHAPE, "0 elements with padding are fewer than a window's 2");
    EXPECT_ERROR(kiln_conv(line, taps, &(kiln_conv_options){.transposed = true, .stride = {3}, .padding = {{1, 1}}}), KILN_BAD_SHAPE,
                 "leaves nothing");
}

API_TEST(convolution, refuses)
{
    kiln_tensor *image = IMAGE, *ones = kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 2, 2));
    EXPECT_ERROR(kiln_conv(image, kiln_ones(KILN_F32, KILN_SHAPE(1, 2, 2, 2)), NULL), KILN_BAD_SHAPE, "channels differ, with 1 groups",
                 "x is f32[1,1,3,3], w is f32[1,2,2,2]");
    EXPECT_ERROR(kiln_conv(image, kiln_ones(KILN_F32, KILN_SHAPE(3, 1, 2, 2)), &(kiln_conv_options){.groups = 2}), KILN_BAD_SHAPE,
                 "3 output channels are not cut evenly by 2 groups");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.groups = -1}), KILN_INVALID, "-1 groups");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.groups = INT64_MAX}), KILN_BAD_SHAPE, "groups");
    EXPECT_ERROR(kiln_conv(image, kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 4, 2)), NULL), KILN_BAD_SHAPE,
                 "3 elements with padding are fewer than a window's 4 along spatial axis 0");
    EXPECT_ERROR(kiln_conv(image, kiln_ones(KILN_F32, KILN_SHAPE(1, 1)), NULL), KILN_BAD_SHAPE, "w is f32[1,1]");
    EXPECT_ERROR(kiln_conv(image, kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 2)), NULL), KILN_BAD_SHAPE, "rank 3, or 2 without n");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.stride = {-1}}), KILN_INVALID, "stride -1");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.dilation = {INT64_MAX}}), KILN_OVERFLOW, "a window of 2 with dilation");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.padding = {{-1, 0}}}), KILN_INVALID, "padding of spatial axis 0 is -1, 0");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.padding = {{INT64_MAX, 1}}}), KILN_OVERFLOW, "overflows");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.same = true, .padding = {{1, 1}}}), KILN_INVALID, "`same`");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.same = true, .transposed = true}), KILN_INVALID, "`transposed`");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.output_padding = {1}}), KILN_INVALID, "output padding without");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.transposed = true, .output_padding = {1}}), KILN_INVALID, "output padding 1");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.transposed = true, .padding = {{3, 3}}}), KILN_BAD_SHAPE, "leaves nothing");
    EXPECT_ERROR(kiln_conv(F32(KILN_SHAPE(1, 1, 2), 1, 2), F32(KILN_SHAPE(1, 1, 2), 1, 2),
                           &(kiln_conv_options){.transposed = true, .padding = {{1, 2}}}),
                 KILN_BAD_SHAPE, "padding 1, 2 along axis 0 leaves nothing");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.pad_mode = (kiln_pad_mode)9, .padding = {{1, 1}}}), KILN_INVALID, "mode 9");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.pad_mode = KILN_PAD_REFLECT, .padding = {{3, 0}}}), KILN_BAD_SHAPE,
                 "not enough elements");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.bias = F32(KILN_SHAPE(2), 1, 2)}), KILN_BAD_SHAPE, "bias is f32[2]");
    EXPECT_ERROR(kiln_conv(image, ones, &(kiln_conv_options){.reserved = {[7] = 1}}), KILN_INVALID, "reserved[7] of the options is not 0");
    EXPECT_ERROR(kiln_conv(kiln_gt(image, kiln_int(1)), kiln_gt(ones, kiln_int(0)), NULL), KILN_BAD_DTYPE, "bool");
}

/* A convolution is linear in x and in w: <x, dx> = <y, g> = <w, dw>. Two axes with a stride, three, where windows have all ranks in use,
 * one in groups. */
API_TEST(convolution, gradient)
{
    const struct {
        kiln_shape x, w;
        kiln_conv_options o;
    } rows[] = {
        {KILN_SHAPE(2, 2, 5, 4), KILN_SHAPE(3, 2, 2, 3), {.stride = {2, 1}, .padding = {{1, 1}, {0, 2}}, .dilation = {1, 2}}},
        {KILN_SHAPE(1, 1, 4, 3, 5), KILN_SHAPE(2, 1, 2, 2, 2), {.stride = {1, 1, 2}, .dilation = {2, 1, 1}}},
        {KILN_SHAPE(2, 4, 6), KILN_SHAPE(4, 1, 3), {.groups = 4, .same = true}},
        {KILN_SHAPE(1, 2, 3, 3), KILN_SHAPE(2, 2, 2, 2), {.transposed = true, .stride = {2, 2}, .padding = {{1, 0}}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t n = 1, m = 1;
        for (int d = 0; d < rows[i].x.rank; d++)
            n *= rows[i].x.dim[d];
        for (int d = 0; d < rows[i].w.rank; d++)
            m *= rows[i].w.dim[d];
        kiln_tensor *image = kiln_param(kiln_sin(kiln_reshape(kiln_arange(KILN_F64, 0, (double)n, 1), rows[i].x)));
        kiln_tensor *weight = kiln_param(kiln_cos(kiln_reshape(kiln_arange(KILN_F64, 0, (double)m, 1), rows[i].w)));
        kiln_tensor *made = kiln_conv(image, weight, &rows[i].o), *both[2] = {image, weight}, *d[2];
        cr_assert(made, "row %d: %s", (int)i, kiln_error_message());
        kiln_tensor *g = kiln_sin(kiln_reshape(kiln_arange(KILN_F64, 3, (double)kiln_numel(made) + 3, 1), kiln_shape_of(made)));
        cr_assert(kiln_vjp(1, &made, &g, 2, both, 0, d) == KILN_OK, "row %d: %s", (int)i, kiln_error_message());
        kiln_tensor *want = kiln_sum(kiln_mul(made, g));
        for (int k = 0; k < 2; k++)
            EXPECT(kiln_sub(kiln_sum(kiln_mul(both[k], d[k])), want), KILN_F64, KILN_SHAPE(), 1e-9, 0);
    }
}

/* ---- pooling ---- */

static double pooled(const double *in, int size, int taps, int stride, int low, int high, int place, bool mean, bool exclude)
{
    double most = -INFINITY, sum = 0;
    int count = 0, first = place * stride - low;
    for (int i = first; i < first + taps; i++) {
        bool inside = i >= 0 && i < size;
        count += exclude ? inside : i < size + high;
        sum += inside ? in[i] : 0;
        most = inside && in[i] > most ? in[i] : most;
    }
    return mean ? sum / count : most;
}

API_TEST(pooling, equals_loops)
{
    state = slice_seed() * 17 + 3;
    for (int round = 0; round < 12; round++) {
        int taps = 1 + pick(4), stride = 1 + pick(3), size = taps + pick(6), low = pick(taps / 2 + 1), high = pick(taps / 2 + 1);
        bool ceil = round % 2, exclude = pick(2);
        int span = size + low + high - taps, count = span / stride + 1;
        if (ceil && span % stride && count * stride < size + low)
            count++;
        kiln_pool_options o = {.stride = {stride}, .padding = {{low, high}}, .ceil = ceil, .exclude_padding = exclude};
        fill(x, 2 * size);
        kiln_tensor *image = kiln_from(KILN_F64, KILN_SHAPE(1, 2, size), x);
        for (int mean = 0; mean < 2; mean++) {
            for (int i = 0; i < 2 * count; i++)
                y[i] = pooled(x + i / count * size, size, taps, stride, low, high, i % count, mean, exclude);
            printf("seed %d, round %d: %d of %d, stride %d, padding %d %d, ceil %d\n", (int)slice_seed(), round, taps, size, stride, low,
                   high, ceil);
            kiln_tensor *made = mean ? kiln_avg_pool(image, KILN_SHAPE(taps), &o) : kiln_max_pool(image, KILN_SHAPE(taps), &o);
            expect(__LINE__, made, KILN_F64, KILN_SHAPE(1, 2, count), 1e-12, y, (size_t)(2 * count));
        }
    }
}

/* What flows to the elements of a maximum: shared by those that are as great, wherever windows overlap. */
static void pooled_back(const double *in, const double *g, double *d, const Setting *s)
{
    const int places[2] = {padded_places(s, 0), padded_places(s, 1)};
    for (int at = 0; at < places[0] * places[1]; at++) {
        double most = -INFINITY, equal = 0;
        for (int pass = 0; pass < 3; pass++)
            for (int t = 0; t < s->taps[0] * s->taps[1]; t++) {
                int i = at / places[1] * s->stride[0] - s->low[0] + t / s->taps[1] * s->dilation[0];
                int j = at % places[1] * s->stride[1] - s->low[1] + t % s->taps[1] * s->dilation[1];
                bool inside = i >= 0 && i < s->size[0] && j >= 0 && j < s->size[1];
                double value = inside ? in[i * s->size[1] + j] : -INFINITY;
                if (pass == 0)
                    most = value > most ? value : most;
                else if (pass == 1)
                    equal += value == most;
                else if (inside && value == most)
                    d[i * s->size[1] + j] += g[at] / equal;
            }
    }
}

API_TEST(pooling, gradient_equals_loops)
{
    state = slice_seed() * 23 + 7;
    for (int round = 0; round < 16; round++) {
        Setting s = {0};
        for (int d = 0; d < 2; d++) {
            s.taps[d] = 1 + pick(4);
            s.stride[d] = round % 2 ? 1 + pick(3) : 1;
            s.dilation[d] = round % 3 ? 1 : 1 + pick(2);
            s.low[d] = pick(s.taps[d]);
            s.high[d] = pick(s.taps[d]);
            s.size[d] = (s.taps[d] - 1) * s.dilation[d] + 1 + pick(d ? 70 : 12);
        }
        int n = s.size[0] * s.size[1], count = padded_places(&s, 0) * padded_places(&s, 1);
        fill(x, 2 * n);
        fill(behind, 2 * count);
        memset(dx, 0, sizeof dx);
        for (int i = 0; i < 2; i++)
            pooled_back(x + i * n, behind + i * count, dx + i * n, &s);
        printf("seed %d, round %d: %dx%d of %dx%d, stride %d %d, dilation %d %d, padding %d %d, %d %d\n", (int)slice_seed(), round,
               s.taps[0], s.taps[1], s.size[0], s.size[1], s.stride[0], s.stride[1], s.dilation[0], s.dilation[1], s.low[0], s.high[0],
               s.low[1], s.high[1]);
        kiln_dtype dtype = round % 4 < 2 ? KILN_F32 : KILN_F64;
        kiln_tensor *image = kiln_param(kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(1, 2, s.size[0], s.size[1]), x), dtype)), *got;
        kiln_tensor *made = kiln_max_pool(image, KILN_SHAPE(s.taps[0], s.taps[1]),
                                          &(kiln_pool_options){.stride = {s.stride[0], s.stride[1]},
                                                               .dilation = {s.dilation[0], s.dilation[1]},
                                                               .padding = {{s.low[0], s.high[0]}, {s.low[1], s.high[1]}}});
        kiln_tensor *g = kiln_cast(kiln_reshape(kiln_from(KILN_F64, KILN_SHAPE(2 * count), behind), kiln_shape_of(made)), dtype);
        cr_assert_eq(kiln_vjp(1, &made, &g, 1, &image, 0, &got), KILN_OK, "%s", kiln_error_message());
        expect(__LINE__, got, dtype, KILN_SHAPE(1, 2, s.size[0], s.size[1]), 1e-5, dx, (size_t)(2 * n));
    }
}

/* An element of four windows, in which 257 of bf16, or 258, would be one of two: what comes from them is added up and rounded once. */
API_TEST(pooling, gradients_are_rounded_once)
{
    double at[25] = {0}, from[4] = {256, 1, 1, 1}, back[25] = {0};
    at[12] = 1;
    back[12] = 260;
    kiln_tensor *image = kiln_param(kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(1, 1, 5, 5), at), KILN_BF16)), *d;
    kiln_tensor *made = kiln_max_pool(image, KILN_SHAPE(3, 3), &(kiln_pool_options){.stride = {2, 2}});
    kiln_tensor *g = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(1, 1, 2, 2), from), KILN_BF16);
    cr_assert_eq(kiln_vjp(1, &made, &g, 1, &image, 0, &d), KILN_OK, "%s", kiln_error_message());
    expect(__LINE__, d, KILN_BF16, KILN_SHAPE(1, 1, 5, 5), 0, back, 25);
}

/* Nothing of the windows' size is stored, however many overlap: the maxima, what each element of a window gets, and the result. */
Test(pooling, gradient_stores_no_windows)
{
    begin_mode(0);
    kiln_tensor *image = kiln_param(kiln_ones(KILN_F32, KILN_SHAPE(1, 2, 32, 32))), *g = kiln_full(KILN_F32, KILN_SHAPE(1, 2, 32, 32), 2),
                *d;
    kiln_tensor *both[2] = {image, g};
    cr_assert_eq(kiln_eval_many(both, 2), KILN_OK);
    kiln_stats before = stats_now();
    kiln_tensor *made = kiln_max_pool(image, KILN_SHAPE(3, 3), &(kiln_pool_options){.stride = {1, 1}, .same = true});
    cr_assert_eq(kiln_vjp(1, &made, &g, 1, &image, 0, &d), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_eval(d), KILN_OK);
    kiln_stats after = stats_now();
    cr_expect_eq(after.kernels - before.kernels, 2, "%d kernels", (int)(after.kernels - before.kernels));
    cr_expect_eq(after.bytes_moved - before.bytes_moved, 8 * 2 * 32 * 32 * 4, "%d bytes", (int)(after.bytes_moved - before.bytes_moved));
    end_mode();
}

API_TEST(pooling, options)
{
    kiln_tensor *image = IMAGE;
    EXPECT(kiln_max_pool(image, KILN_SHAPE(2, 2), NULL), KILN_F32, KILN_SHAPE(1, 1, 1, 1), 0, 5);
    EXPECT(kiln_max_pool(image, KILN_SHAPE(2, 2), &(kiln_pool_options){.ceil = true}), KILN_F32, KILN_SHAPE(1, 1, 2, 2), 0, 5, 6, 8, 9);
    EXPECT(kiln_avg_pool(image, KILN_SHAPE(2, 2), &(kiln_pool_options){.ceil = true}), KILN_F32, KILN_SHAPE(1, 1, 2, 2), 0, 3, 4.5, 7.5, 9);
    EXPECT(kiln_avg_pool(image, KILN_SHAPE(2, 2), &(kiln_pool_options){.same = true, .stride = {1, 1}, .exclude_padding = true}), KILN_F32,
           KILN_SHAPE(1, 1, 3, 3), 0, 3, 4, 4.5, 6, 7, 7.5, 7.5, 8.5, 9);
    EXPECT(kiln_max_pool(image, KILN_SHAPE(2, 2), &(kiln_pool_options){.stride = {1, 1}, .dilation = {2, 2}}), KILN_F32,
           KILN_SHAPE(1, 1, 1, 1), 0, 9);
    EXPECT(kiln_max_pool(kiln_reshape(image, KILN_SHAPE(3, 3, 1)), KILN_SHAPE(3, 3), &(kiln_pool_options){.channels_last = true}), KILN_F32,
           KILN_SHAPE(1, 1, 1), 0, 9);
    EXPECT(kiln_max_pool(kiln_cast(kiln_sub(image, kiln_int(100)), KILN_I8), KILN_SHAPE(3, 3),
                         &(kiln_pool_options){.padding = {{2, 0}, {2, 0}}}),
           KILN_I8, KILN_SHAPE(1, 1, 1, 1), 0, -99); /* padding is no 0 */
    EXPECT(kiln_avg_pool(kiln_cast(image, KILN_I32), KILN_SHAPE(1, 2), NULL), KILN_F32, KILN_SHAPE(1, 1, 3, 1), 0, 1.5, 4.5, 7.5);
    EXPECT(kiln_max_pool(F32(KILN_SHAPE(1, 4), 1, (float)NAN, 3, 4), KILN_SHAPE(2), NULL), KILN_F32, KILN_SHAPE(1, 2), 0, NAN, 4);
    /* padding beyond half a window; a window of padding alone has no gradient, and no mean where padding does not count */
    kiln_tensor *four = F32(KILN_SHAPE(1, 4), 1, 2, 3, 4), *pair = kiln_param(F32(KILN_SHAPE(1, 2), 5, 7)), *g;
    kiln_pool_options wide = {.stride = {1}, .padding = {{2, 2}}}, apart = {.stride = {1}, .padding = {{1, 1}}, .dilation = {3}};
    EXPECT(kiln_max_pool(four, KILN_SHAPE(3), &wide), KILN_F32, KILN_SHAPE(1, 6), 0, 1, 2, 3, 4, 4, 4);
    EXPECT(kiln_avg_pool(four, KILN_SHAPE(3), &wide), KILN_F32, KILN_SHAPE(1, 6), 1e-6, 1.0 / 3, 1, 2, 3, 7.0 / 3, 4.0 / 3);
    kiln_tensor *nothing = kiln_max_pool(pair, KILN_SHAPE(2), &apart);
    cr_assert_eq(kiln_grad(kiln_sum(nothing), &pair, 1, &g), KILN_OK, "%s", kiln_error_message());
    EXPECT(nothing, KILN_F32, KILN_SHAPE(1, 1), 0, -INFINITY);
    EXPECT(g, KILN_F32, KILN_SHAPE(1, 2), 0, 0, 0);
    EXPECT(kiln_avg_pool(pair, KILN_SHAPE(2), &apart), KILN_F32, KILN_SHAPE(1, 1), 0, 0);
    apart.exclude_padding = true;
    EXPECT(kiln_avg_pool(pair, KILN_SHAPE(2), &apart), KILN_F32, KILN_SHAPE(1, 1), 0, NAN);
    /* `ceil`: a window that would begin in the padding behind is left out, the last one of a stride above the kernel is not */
    EXPECT(kiln_max_pool(F32(KILN_SHAPE(1, 5), 1, 2, 3, 4, 5), KILN_SHAPE(2),
                         &(kiln_pool_options){.stride = {3}, .padding = {{1, 1}}, .ceil = true}),
           KILN_F32, KILN_SHAPE(1, 2), 0, 1, 4);
    EXPECT(kiln_max_pool(four, KILN_SHAPE(1), &(kiln_pool_options){.stride = {3}, .ceil = true}), KILN_F32, KILN_SHAPE(1, 2), 0, 1, 4);
    EXPECT(kiln_avg_pool(four, KILN_SHAPE(3), &(kiln_pool_options){.stride = {2}, .padding = {{1, 1}}, .ceil = true}), KILN_F32,
           KILN_SHAPE(1, 3), 1e-6, 1, 3, 2);
    EXPECT_ERROR(kiln_max_pool(image, KILN_SHAPE(2, 2), &(kiln_pool_options){.padding = {{2, 0}}}), KILN_INVALID, "windows hold nothing");
    EXPECT_ERROR(kiln_max_pool(image, KILN_SHAPE(4, 4), NULL), KILN_BAD_SHAPE, "fewer than a window's 4");
    EXPECT_ERROR(kiln_max_pool(image, KILN_SHAPE(0, 1), NULL), KILN_INVALID, "windows of 0");
    EXPECT_ERROR(kiln_avg_pool(kiln_ones(KILN_F32, KILN_SHAPE(2, 2)), KILN_SHAPE(2, 2, 2), NULL), KILN_BAD_SHAPE, "rank 5, or 4 without n");
    EXPECT_ERROR(kiln_avg_pool(image, KILN_SHAPE(), NULL), KILN_BAD_SHAPE, "1 to 3 axes, not 0");
    EXPECT_ERROR(kiln_avg_pool(image, KILN_SHAPE(2, 2), &(kiln_pool_options){.reserved = {1}}), KILN_INVALID, "reserved[0] of the options");
    EXPECT_ERROR(kiln_avg_pool(image, KILN_SHAPE(2, 2), &(kiln_pool_options){.same = true, .ceil = true}), KILN_INVALID, "`ceil`");
}

/* ---- windows, padding ---- */

API_TEST(windows, unfold)
{
    kiln_tensor *line = kiln_arange(KILN_I32, 0, 7, 1), *image = kiln_reshape(kiln_arange(KILN_I32, 0, 6, 1), KILN_SHAPE(3, 2));
    EXPECT(kiln_unfold(line, 0, 3, 2, 1), KILN_I32, KILN_SHAPE(3, 3), 0, 0, 1, 2, 2, 3, 4, 4, 5, 6);
    EXPECT(kiln_unfold(line, -1, 2, 4, 2), KILN_I32, KILN_SHAPE(2, 2), 0, 0, 2, 4, 6);
    EXPECT(kiln_unfold(image, 0, 2, 1, 1), KILN_I32, KILN_SHAPE(2, 2, 2), 0, 0, 2, 1, 3, 2, 4, 3, 5);
    EXPECT(kiln_sum_axes(kiln_unfold(kiln_square(line), 0, 3, 1, 1), KILN_AXES(-1), false), KILN_I64, KILN_SHAPE(5), 0, 5, 14, 29, 50, 77);
    EXPECT_ERROR(kiln_unfold(line, 0, 8, 1, 1), KILN_BAD_SHAPE, "axis 0 is shorter than a window, 8 elements: x is i32[7]");
    EXPECT_ERROR(kiln_unfold(line, 0, 0, 1, 1), KILN_INVALID, "windows of 0");
    EXPECT_ERROR(kiln_unfold(line, 0, 1, 0, 1), KILN_INVALID, "stride 0");
    EXPECT_ERROR(kiln_unfold(line, 0, 3, 1, INT64_MAX), KILN_OVERFLOW, "dilation 9223372036854775807");
    EXPECT_ERROR(kiln_unfold(line, 1, 1, 1, 1), KILN_INVALID, "axis 1");
    EXPECT_ERROR(kiln_unfold(kiln_ones(KILN_F32, KILN_SHAPE(2, 1, 1, 1, 1, 1, 1, 2)), 0, 2, 1, 1), KILN_BAD_SHAPE, "8 are the most");
}

/* Lengths that change make one program for all of them. */
Test(windows, lengths_change)
{
    begin_mode(0);
    kiln_stats before;
    for (int n = 20; n < 60; n++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *line = kiln_arange(KILN_F32, 0, n, 1), *last = kiln_select(kiln_unfold(kiln_mul(line, line), 0, 5, 3, 2), -1, -1);
        double want = (double)((n - 9) / 3 * 3 + 8), got;
        cr_assert(kiln_item(kiln_select(last, 0, -1), &got) == KILN_OK && got == want * want, "%d: %g, not %g: %s", n, got, want * want,
                  kiln_error_message());
        kiln_scope_end(scope);
        if (n == 25)
            kiln_get_stats(&before);
    }
    no_compile_since(&before);
    end_mode();
}

/* What flows to a line from windows of it: element by element, by windows that overlap, touch, or leave gaps. */
static kiln_tensor *from_windows(kiln_tensor *line, kiln_tensor *back, int taps, int stride, int dilation)
{
    kiln_tensor *got = NULL;
    line = kiln_param(line);
    kiln_check(kiln_grad(kiln_sum(kiln_mul(kiln_unfold(line, 1, taps, stride, dilation), back)), &line, 1, &got));
    return got;
}

API_TEST(windows, gradients_equal_loops)
{
    state = slice_seed() * 29 + 5;
    for (int round = 0; round < 24; round++) {
        int taps = 1 + pick(round % 6 ? 5 : 12), stride = 1 + pick(round % 3 ? 4 : 2), dilation = round % 3 ? 1 : 1 + pick(3),
            count = 1 + pick(5);
        int size = (count - 1) * stride + (taps - 1) * dilation + 1 + pick(stride);
        fill(x, 2 * size);
        fill(behind, 2 * count * taps);
        memset(dx, 0, sizeof dx);
        for (int i = 0; i < 2 * count; i++)
            for (int t = 0; t < taps; t++)
                dx[i / count * size + i % count * stride + t * dilation] += behind[i * taps + t];
        printf("seed %d, round %d: %d of %d, stride %d, dilation %d\n", (int)slice_seed(), round, taps, size, stride, dilation);
        kiln_tensor *line = kiln_from(KILN_F64, KILN_SHAPE(2, size), x), *back = kiln_from(KILN_F64, KILN_SHAPE(2, count, taps), behind);
        expect(__LINE__, from_windows(line, back, taps, stride, dilation), KILN_F64, KILN_SHAPE(2, size), 0, dx, (size_t)(2 * size));
    }
}

/* Lengths that change make one program of each kind for all of them. */
Test(windows, gradients_of_lengths_that_change)
{
    static const int taps[] = {3, 3, 2, 5};
    static const int stride[] = {1, 2, 2, 3};
    begin_mode(0);
    for (int kind = 0; kind < 4; kind++) {
        kiln_stats before;
        for (int count = 9; count < 40; count++) {
            kiln_scope *scope = kiln_scope_begin();
            int size = (count - 1) * stride[kind] + taps[kind];
            kiln_tensor *line = kiln_ones(KILN_F64, KILN_SHAPE(2, size)), *back = kiln_ones(KILN_F64, KILN_SHAPE(2, count, taps[kind]));
            memset(dx, 0, sizeof dx);
            for (int i = 0; i < 2 * count * taps[kind]; i++)
                dx[i / taps[kind] / count * size + i / taps[kind] % count * stride[kind] + i % taps[kind]]++;
            expect(__LINE__, from_windows(line, back, taps[kind], stride[kind], 1), KILN_F64, KILN_SHAPE(2, size), 0, dx,
                   (size_t)(2 * size));
            kiln_scope_end(scope);
            if (count == 20)
                kiln_get_stats(&before);
        }
        no_compile_since(&before);
    }
    end_mode();
}

API_TEST(windows, pad_by)
{
    kiln_tensor *line = F32(KILN_SHAPE(3), 1, 2, 3), *image = F32(KILN_SHAPE(2, 2), 1, 2, 3, 4);
    const kiln_padding two = {2, 2}, both[2] = {{1, 0}, {0, 1}};
    EXPECT(kiln_pad_by(line, 1, &two, KILN_PAD_ZERO), KILN_F32, KILN_SHAPE(7), 0, 0, 0, 1, 2, 3, 0, 0);
    EXPECT(kiln_pad_by(line, 1, &two, KILN_PAD_EDGE), KILN_F32, KILN_SHAPE(7), 0, 1, 1, 1, 2, 3, 3, 3);
    EXPECT(kiln_pad_by(line, 1, &two, KILN_PAD_REFLECT), KILN_F32, KILN_SHAPE(7), 0, 3, 2, 1, 2, 3, 2, 1);
    EXPECT(kiln_pad_by(line, 1, &two, KILN_PAD_SYMMETRIC), KILN_F32, KILN_SHAPE(7), 0, 2, 1, 1, 2, 3, 3, 2);
    EXPECT(kiln_pad_by(line, 1, &two, KILN_PAD_WRAP), KILN_F32, KILN_SHAPE(7), 0, 2, 3, 1, 2, 3, 1, 2);
    EXPECT(kiln_pad_by(image, 2, both, KILN_PAD_WRAP), KILN_F32, KILN_SHAPE(3, 3), 0, 3, 4, 3, 1, 2, 1, 3, 4, 3);
    EXPECT_ERROR(kiln_pad_by(line, 1, &(kiln_padding){3, 0}, KILN_PAD_REFLECT), KILN_BAD_SHAPE, "not enough elements for 3, 0 more");
    EXPECT_ERROR(kiln_pad_by(kiln_zeros(KILN_F32, KILN_SHAPE(0)), 1, &two, KILN_PAD_EDGE), KILN_BAD_SHAPE, "not enough");
    EXPECT_ERROR(kiln_pad_by(line, 1, &two, (kiln_pad_mode)5), KILN_INVALID, "padding mode 5");
    EXPECT_ERROR(kiln_pad_by(line, 1, &(kiln_padding){-1, 0}, KILN_PAD_ZERO), KILN_INVALID, "-1, 0");
    EXPECT_ERROR(kiln_pad_by(line, 2, both, KILN_PAD_ZERO), KILN_INVALID, "2 paddings: x is f32[3]");
}

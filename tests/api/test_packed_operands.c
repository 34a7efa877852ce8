/*
 * Operands that a matrix product computes where it packs them (jit/fuse/cost.c): one kernel, no matrix in between, and the bits of a product of
 * stored operands, for each way in which products are made, any width of vectors, sizes as arguments.
 */
#include "api.h"
#include "tests/support/slice.h"

#include <math.h>
#include <string.h>

enum { MOST = 1 << 18, WEIGHTS = 1 << 20 };

typedef struct Sizes {
    int64_t batch, m, n, k;
    bool turned; /* the second operand lies contiguous along k */
    kiln_dtype dtype;
} Sizes;

/* 8 rows and less: the weights, which are read once; more, and both sides are packed. */
static const Sizes sizes[] = {
    {1, 1, 300, 301, true, KILN_F32},   {1, 3, 257, 290, true, KILN_F32},  {1, 1, 640, 131, false, KILN_F32},
    {1, 5, 520, 130, false, KILN_F32},  {1, 70, 300, 260, true, KILN_F32}, {1, 301, 290, 257, false, KILN_F32},
    {2, 64, 259, 264, true, KILN_F32},  {1, 9, 300, 260, true, KILN_F64},  {1, 1, 300, 280, true, KILN_BF16},
    {1, 70, 300, 260, false, KILN_F16}, {1, 40, 300, 261, true, KILN_I32},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static char want[MOST * 8], got[MOST * 8];

/* x; weights of 8 bits with a scale for each column; more to add. Some are not finite. */
static void inputs(const Sizes *s, kiln_tensor *in[4])
{
    static float x[WEIGHTS], scale[1 << 12];
    static int8_t weights[WEIGHTS];
    bool whole = s->dtype == KILN_I32;
    int64_t n_x = s->batch * s->m * s->k, n_w = s->batch * s->n * s->k;
    cr_assert(n_x <= WEIGHTS && n_w <= WEIGHTS);
    for (int64_t i = 0; i < n_x; i++)
        x[i] = whole ? (float)(i * 7 % 19 - 9) : (float)(i * 7919 % 2003) / 512 - 2;
    for (int64_t i = 0; i < n_w; i++)
        weights[i] = (int8_t)(i * 31 % 255 - 127);
    for (int64_t i = 0; i < s->n; i++)
        scale[i] = whole ? (float)(i % 5) : (float)(i % 17) / 64;
    if (!whole) {
        x[n_x / 2] = -0.0F;
        scale[0] = INFINITY;
        scale[s->n / 2] = NAN;
    }
    in[0] = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(s->batch, s->m, s->k), x), s->dtype);
    in[1] = kiln_from(KILN_I8, s->turned ? KILN_SHAPE(s->batch, s->n, s->k) : KILN_SHAPE(s->batch, s->k, s->n), weights);
    in[2] = kiln_cast(kiln_from(KILN_F32, s->turned ? KILN_SHAPE(s->n, 1) : KILN_SHAPE(1, s->n), scale), s->dtype);
    in[3] = kiln_full(s->dtype, KILN_SHAPE(1, s->k), 3);
    cr_assert_eq(kiln_eval_many(in, 4), KILN_OK, "%s", kiln_error_message());
}

/* What the product reads: dequantised weights, and relu(2 x + 3). */
static void operands(const Sizes *s, kiln_tensor *const *in, kiln_tensor *out[2])
{
    out[0] = kiln_relu(kiln_add(kiln_add(in[0], in[0]), in[3]));
    out[1] = kiln_mul(kiln_cast(in[1], s->dtype), in[2]);
    if (s->turned)
        out[1] = kiln_transpose(out[1]);
}

static size_t product(const Sizes *s, kiln_tensor *const *in, bool stored, char *to)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *side[2];
    operands(s, in, side);
    if (stored)
        cr_assert_eq(kiln_eval_many(side, 2), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *y = kiln_matmul(side[0], side[1]);
    size_t bytes = (size_t)kiln_numel(y) * kiln_dtype_size(s->dtype);
    cr_assert(kiln_numel(y) <= MOST && kiln_read(y, s->dtype, to, bytes) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    return bytes;
}

static void each_size(const char *how)
{
    for (const Sizes *s = sizes; s < sizes + SIZES; s++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[4];
        inputs(s, in);
        size_t bytes = product(s, in, true, want);
        kiln_stats before = stats_now();
        product(s, in, false, got);
        kiln_stats after = stats_now();
        cr_assert_eq(memcmp(want, got, bytes), 0, "%s: other bits: %d x %d x %d x %d, dtype %d", how, (int)s->batch, (int)s->m, (int)s->n,
                     (int)s->k, (int)s->dtype);
        cr_assert_leq(after.kernels - before.kernels, 2, "%s: the weights are computed where they are packed", how);
        set_option("mode", "interp");
        product(s, in, false, got);
        set_option("mode", "jit");
        cr_assert_eq(memcmp(want, got, bytes), 0, "%s: not the interpreter's: %d x %d x %d x %d, dtype %d", how, (int)s->batch, (int)s->m,
                     (int)s->n, (int)s->k, (int)s->dtype);
        kiln_scope_end(scope);
    }
    end_mode();
}

static void strictly(void) { set_option("math", "strict"); }

TestSuite(packed_operands, .init = strictly);

Test(packed_operands, the_bits_of_stored_ones) { each_size("strict"); }

Test(packed_operands, of_any_width)
{
    static const char *const bits[] = {"128", "256", "512"};
    for (int i = 0; i < 3; i++) {
        set_option("vector_bits", bits[i]);
        each_size(bits[i]);
    }
}

/* One program, made for the first sizes, goes for the others: as few as one row, and nothing along k. */
Test(packed_operands, with_sizes_as_arguments)
{
    set_option("dynamic", "always");
    each_size("dynamic");
    static const Sizes small[] = {{1, 64, 300, 260, true, KILN_F32}, {1, 1, 3, 2, true, KILN_F32},  {1, 2, 1, 700, true, KILN_F32},
                                  {1, 7, 5, 0, true, KILN_F32},      {1, 90, 2, 1, true, KILN_F32}, {1, 0, 300, 20, true, KILN_F32}};
    kiln_stats before, after;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[4];
        inputs(&small[i], in);
        size_t bytes = product(&small[i], in, true, want);
        kiln_get_stats(&before);
        product(&small[i], in, false, got);
        kiln_get_stats(&after);
        cr_assert_eq(memcmp(want, got, bytes), 0, "sizes %d", (int)i);
        kiln_scope_end(scope);
    }
}

/* Weights of a byte are read once, and nothing is written but the result. */
Test(packed_operands, move_the_bytes_of_what_they_are_made_of)
{
    const Sizes s = {1, 1, 1000, 1000, true, KILN_F32};
    kiln_tensor *in[4];
    inputs(&s, in);
    product(&s, in, false, got);
    kiln_stats before = stats_now();
    product(&s, in, false, got);
    kiln_stats after = stats_now();
    cr_assert_leq(after.bytes_moved - before.bytes_moved, 1000 * 1000 + 16 * 1000 * 4);
}

/* ---- rotary embedding of both sides, whose rows are in pieces ---- */

static const Sizes rotated_sizes[] = {
    {2, 40, 70, 64, true, KILN_F32},  {3, 9, 33, 128, true, KILN_F32},  {1, 50, 300, 48, true, KILN_F32},
    {1, 30, 40, 300, true, KILN_F32}, {2, 20, 20, 64, true, KILN_BF16}, {1, 33, 65, 96, true, KILN_BF16},
    {2, 17, 40, 32, true, KILN_F16},  {1, 40, 50, 64, true, KILN_F64},  {1, 30, 40, 560, true, KILN_F32},
};
enum { ROTATED = sizeof rotated_sizes / sizeof *rotated_sizes };
typedef enum Spelling { ROTARY, ROTATE_HALF, PAIRS, SPELLINGS } Spelling;

/* All but the last: as models have it, x cos + rotate_half(x) sin. */
static kiln_tensor *rotated(kiln_tensor *x, kiln_tensor *angles, Spelling how)
{
    const int64_t d = kiln_dim(x, 2), half = d / 2;
    if (how != ROTATE_HALF)
        return kiln_rotary(x, angles, how == PAIRS);
    kiln_tensor *whole = kiln_concat((kiln_tensor *[]){angles, angles}, 2, -1);
    kiln_tensor *turned =
        kiln_concat((kiln_tensor *[]){kiln_neg(kiln_slice_axis(x, -1, half, d, 1)), kiln_slice_axis(x, -1, 0, half, 1)}, 2, -1);
    kiln_tensor *cosine = kiln_cast(kiln_cos(whole), kiln_dtype_of(x)), *sine = kiln_cast(kiln_sin(whole), kiln_dtype_of(x));
    cr_assert(kiln_eval(cosine) == KILN_OK && kiln_eval(sine) == KILN_OK, "%s", kiln_error_message());
    return kiln_add(kiln_mul(x, cosine), kiln_mul(turned, sine));
}

static kiln_tensor *rows_of(const Sizes *s, int64_t rows)
{
    static float x[WEIGHTS];
    const int64_t n = s->batch * rows * s->k;
    cr_assert(n <= WEIGHTS);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i * 7919 % 2003) / 512 - 2;
    x[n / 2] = -0.0F;
    x[n / 3] = INFINITY;
    kiln_tensor *y = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(s->batch, rows, s->k), x), s->dtype);
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    return y;
}

static kiln_tensor *angles_of(const Sizes *s, int64_t rows)
{
    kiln_tensor *angles = kiln_mul(kiln_reshape(kiln_arange(KILN_F32, 0, (double)rows, 1), KILN_SHAPE(rows, 1)),
                                   kiln_exp(kiln_mul(kiln_arange(KILN_F32, 0, (double)(s->k / 2), 1), -0.1)));
    cr_assert(kiln_eval(angles) == KILN_OK, "%s", kiln_error_message());
    return angles;
}

/* Kernels of it, and what it is. stored: rotated before. */
static int64_t rotated_product(const Sizes *s, Spelling how, bool stored, char *to, size_t *bytes)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *side[2] = {rotated(rows_of(s, s->m), angles_of(s, s->m), how), rotated(rows_of(s, s->n), angles_of(s, s->n), how)};
    if (stored)
        cr_assert_eq(kiln_eval_many(side, 2), KILN_OK, "%s", kiln_error_message());
    kiln_stats before = stats_now();
    kiln_tensor *y = kiln_matmul(side[0], kiln_transpose(side[1]));
    *bytes = (size_t)kiln_numel(y) * kiln_dtype_size(s->dtype);
    cr_assert(kiln_numel(y) <= MOST && kiln_read(y, s->dtype, to, *bytes) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    kiln_scope_end(scope);
    return after.kernels - before.kernels;
}

static void each_rotation(const char *name)
{
    for (const Sizes *s = rotated_sizes; s < rotated_sizes + ROTATED; s++)
        for (Spelling how = 0; how < SPELLINGS; how++) {
            static const int64_t most[] = {[ROTARY] = 3, [ROTATE_HALF] = 1, [PAIRS] = 9}; /* sines and cosines are stored; pairs, too */
            size_t bytes;
            if (!slice_takes_in_turn((uint64_t)((s - rotated_sizes) * SPELLINGS + (int)how), 3))
                continue;
            rotated_product(s, how, true, want, &bytes);
            const int64_t kernels = rotated_product(s, how, false, got, &bytes);
            cr_assert_eq(memcmp(want, got, bytes), 0, "%s: other bits: %d x %d x %d x %d, dtype %d, spelling %d", name, (int)s->batch,
                         (int)s->m, (int)s->n, (int)s->k, (int)s->dtype, (int)how);
            cr_assert_leq(kernels, s->batch == 1 ? 9 : most[how], "%s: spelling %d of %d x %d x %d x %d, dtype %d: %d kernels", name,
                          (int)how, (int)s->batch, (int)s->m, (int)s->n, (int)s->k, (int)s->dtype, (int)kernels);
            set_option("mode", "interp");
            rotated_product(s, how, false, got, &bytes);
            set_option("mode", "jit");
            cr_assert_eq(memcmp(want, got, bytes), 0, "%s: not the interpreter's: %d x %d x %d x %d, dtype %d, spelling %d", name,
                         (int)s->batch, (int)s->m, (int)s->n, (int)s->k, (int)s->dtype, (int)how);
        }
}

Test(packed_operands, rotated)
{
    each_rotation("strict");
    set_option("vector_bits", "256");
    each_rotation("256 bits");
    set_option("vector_bits", "128");
    each_rotation("128 bits");
}

Test(packed_operands, rotated_with_sizes_as_arguments)
{
    set_option("dynamic", "always");
    each_rotation("dynamic");
}

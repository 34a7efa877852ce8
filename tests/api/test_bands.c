/*
 * Kernels that run together, some rows at a time (jit/fuse/bands.c): the same bits as one after the other, for any number of rows, threads, vectors; with
 * sizes as arguments, in place, in loops, from disk; and less memory and traffic.
 */
#include "api.h"
#include "tests/support/slice.h"

#include <math.h>
#include <stdio.h>

enum { MOST = 1 << 20 };

static char want[MOST * 8], got[MOST * 8];
static uint64_t state = 1;

static double pick(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)(state >> 40) / (1 << 22) - 2;
}

static kiln_tensor *values(kiln_dtype dtype, kiln_shape shape)
{
    static float data[MOST];
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++)
        n *= shape.dim[i];
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)pick();
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, shape, data), dtype);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

/* ---- graphs ---- */

typedef struct Sizes {
    int64_t batch, rows, keys, d, e;
    kiln_dtype dtype;
} Sizes;

typedef kiln_tensor *Build(const Sizes *s, kiln_tensor *const *in);

static kiln_tensor *softmax_by_hand(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    kiln_tensor *scores = kiln_matmul(in[0], kiln_transpose(in[1]));
    return kiln_matmul(kiln_softmax(kiln_mul(scores, 0.25), -1), in[2]);
}

static kiln_tensor *attention(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    return kiln_attention(in[0], in[1], in[2], &(kiln_attention_options){.causal = true, .from_end = true});
}

/* Rows that are read twice, by a step of their own and by the last product's epilogue. */
static kiln_tensor *twice(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    kiln_tensor *a = kiln_matmul(in[0], kiln_transpose(in[1])), *most = kiln_max_axes(a, KILN_AXES(-1), true);
    kiln_tensor *b = kiln_exp(kiln_sub(a, most)), *total = kiln_sum_axes(b, KILN_AXES(-1), true);
    return kiln_add(kiln_mul(kiln_matmul(b, in[2]), kiln_reciprocal(total)), most);
}

/* A product and the norm of its rows; the product of a vector beside it. */
static kiln_tensor *norm(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    kiln_tensor *a = kiln_matmul(in[0], kiln_transpose(in[1]));
    kiln_tensor *mean = kiln_mean_axes(a, KILN_AXES(-1), true), *rest = kiln_sub(a, mean);
    return kiln_mul(rest, kiln_rsqrt(kiln_add(kiln_mean_axes(kiln_square(rest), KILN_AXES(-1), true), 1e-5)));
}

/* Three products; what is between the last two is no fold. */
static kiln_tensor *deep(const Sizes *s, kiln_tensor *const *in)
{
    kiln_tensor *p = softmax_by_hand(s, in);
    return kiln_softmax(kiln_matmul(kiln_relu(p), kiln_transpose(in[2])), -1);
}

/* The right operand of the second product is two products with rows of their own, between the first and the second: they go before both. */
static kiln_tensor *between(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    kiln_tensor *left = kiln_matmul(in[0], kiln_transpose(in[1])), *middle = kiln_matmul(in[2], kiln_transpose(in[2]));
    return kiln_matmul(left, kiln_matmul(middle, in[2]));
}

static Build *const builds[] = {softmax_by_hand, attention, twice, norm, deep, between};
enum { BUILDS = sizeof builds / sizeof *builds };

static size_t width_of(kiln_dtype dtype) { return dtype == KILN_F64 ? 8 : dtype == KILN_F32 ? 4 : 2; }

static void inputs(const Sizes *s, kiln_tensor *in[3])
{
    state = 7;
    in[0] = values(s->dtype, KILN_SHAPE(s->batch, s->rows, s->d));
    in[1] = values(s->dtype, KILN_SHAPE(s->batch, s->keys, s->d));
    in[2] = values(s->dtype, KILN_SHAPE(s->batch, s->keys, s->e));
}

static size_t compute(Build *build, const Sizes *s, kiln_tensor *const *in, const char *bands, char *to)
{
    kiln_scope *scope = kiln_scope_begin();
    set_option("bands", bands);
    kiln_tensor *y = build(s, in);
    int64_t n = kiln_numel(y);
    size_t bytes = (size_t)n * width_of(s->dtype);
    cr_assert(n <= MOST && kiln_read(y, s->dtype, to, bytes) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    return bytes;
}

static void same(Build *build, const Sizes *s, const char *how)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[3];
    inputs(s, in);
    kiln_stats before = stats_now();
    size_t bytes = compute(build, s, in, "off", want);
    kiln_stats middle = stats_now();
    compute(build, s, in, "always", got);
    kiln_stats after = stats_now();
    cr_assert_eq(memcmp(want, got, bytes), 0, "%s: other bits: %d x %d keys %d d %d e %d, dtype %d", how, (int)s->batch, (int)s->rows,
                 (int)s->keys, (int)s->d, (int)s->e, (int)s->dtype);
    cr_assert_eq(after.kernels - middle.kernels, middle.kernels - before.kernels, "%s: the same kernels", how);
    if (s->rows > 1)
        cr_assert_lt(after.bytes_moved - middle.bytes_moved, middle.bytes_moved - before.bytes_moved,
                     "%s: rows stay in the caches: %d x %d", how, (int)s->batch, (int)s->rows);
    kiln_scope_end(scope);
}

static const Sizes sizes[] = {
    {1, 1, 40, 8, 8, KILN_F32},     {1, 31, 33, 8, 8, KILN_F32},    {3, 64, 64, 16, 16, KILN_F32}, {1, 300, 70, 8, 24, KILN_F32},
    {2, 511, 40, 5, 3, KILN_F32},   {1, 449, 65, 300, 7, KILN_F32}, {5, 17, 129, 4, 40, KILN_F64}, {2, 257, 30, 9, 10, KILN_F64},
    {2, 230, 50, 16, 8, KILN_BF16}, {3, 40, 300, 8, 8, KILN_F16},   {1, 0, 8, 8, 8, KILN_F32},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* ---- tests ---- */

/* One in five of the sizes of each graph, from `first` on. */
static void each_case(const char *how, int first)
{
    for (int b = 0; b < BUILDS; b++)
        for (int s = 0; s < SIZES; s++)
            if (slice_takes_in_turn((uint64_t)(first + b + s), 5))
                same(builds[b], &sizes[s], how);
}

Test(bands, the_same_bits_as_one_after_the_other)
{
    set_option("threads", "1"); /* where any number of bands is run as such */
    each_case("one thread", 0);
}

Test(bands, by_any_number_of_threads)
{
    set_option("threads", "2");
    each_case("two threads", 1);
    set_option("threads", "7");
    each_case("seven threads", 2);
}

Test(bands, of_any_width)
{
    set_option("threads", "1");
    set_option("vector_bits", "256");
    each_case("256 bits", 3);
    set_option("vector_bits", "128");
    each_case("128 bits", 4);
}

Test(bands, strictly)
{
    set_option("threads", "1");
    set_option("math", "strict");
    each_case("strict", 0);
}

Test(bands, with_sizes_as_arguments)
{
    set_option("threads", "1");
    set_option("dynamic", "always");
    each_case("sizes as arguments", 0);
    kiln_stats before = stats_now();
    each_case("the same programs again", 0);
    kiln_stats after = stats_now();
    cr_assert_eq(after.compiles, before.compiles, "programs for any size take all of them");
}

/* Queries in a band, of several blocks of k: of the tiles of scores that the mask leaves, blocks of zeros are looked for, too. */
static kiln_tensor *projected(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    kiln_tensor *q = kiln_matmul(in[0], kiln_mul(kiln_matmul(kiln_transpose(in[1]), in[1]), 0.01));
    return kiln_attention(q, in[1], in[2], &(kiln_attention_options){.causal = true});
}

Test(bands, of_causal_scores_of_queries_in_a_band)
{
    const Sizes s = {1, 300, 290, 300, 8, KILN_F32};
    kiln_tensor *in[3];
    set_option("strict", "1");
    inputs(&s, in);
    size_t bytes = compute(projected, &s, in, "off", want);
    compute(projected, &s, in, "always", got);
    cr_assert_eq(memcmp(want, got, bytes), 0);
}

/* Reads four results, one after the other; bytes of all. */
static size_t read_four(const Sizes *s, kiln_tensor *const y[4], char *to)
{
    size_t bytes = 0;
    for (int i = 0; i < 4; i++) {
        size_t each = (size_t)kiln_numel(y[i]) * width_of(s->dtype);
        cr_assert(bytes + each <= sizeof want && kiln_read(y[i], s->dtype, to + bytes, each) == KILN_OK, "%s", kiln_error_message());
        bytes += each;
    }
    return bytes;
}

/* ---- what sums rows up: the gradients of keys and values ---- */

typedef struct Cost {
    int64_t kernels, moved;
} Cost;

/* The gradients of q, k and v, and the result itself, one after the other; bytes of all. */
static size_t gradients(Build *build, const Sizes *s, const char *bands, char *to, Cost *cost)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[3], *y[4], *weight;
    inputs(s, in);
    for (int i = 0; i < 3; i++)
        in[i] = kiln_param(in[i]);
    set_option("bands", bands);
    y[3] = build(s, in);
    weight = values(s->dtype, KILN_SHAPE(s->batch, s->rows, kiln_dim(y[3], 2)));
    kiln_stats before = stats_now();
    cr_assert(kiln_vjp(1, &y[3], &weight, 3, in, 0, y) == KILN_OK && kiln_eval_many(y, 4) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    *cost = (Cost){after.kernels - before.kernels, after.bytes_moved - before.bytes_moved};
    const size_t bytes = read_four(s, y, to);
    kiln_scope_end(scope);
    return bytes;
}

static kiln_tensor *masked_attention(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    return kiln_attention(in[0], in[1], in[2], &(kiln_attention_options){.causal = true, .before = 70, .softcap = 3});
}

static const Sizes gradient_sizes[] = {
    {1, 1, 40, 8, 8, KILN_F32},    {7, 255, 70, 8, 24, KILN_F32},  {2, 257, 40, 5, 3, KILN_F32},  {1, 1100, 130, 30, 7, KILN_F32},
    {2, 513, 30, 9, 10, KILN_F64}, {3, 300, 50, 16, 8, KILN_BF16}, {2, 270, 200, 8, 8, KILN_F16}, {2, 0, 8, 8, 8, KILN_F32},
};

/* One in four of the cases of each graph, from `first` on: each compiles two programs. */
static void each_gradient(const char *how, uint64_t first)
{
    static Build *const graphs[] = {softmax_by_hand, masked_attention, deep};
    for (int g = 0; g < 3; g++)
        for (size_t c = 0; c < sizeof gradient_sizes / sizeof *gradient_sizes; c++) {
            const Sizes *s = &gradient_sizes[c];
            if (!slice_takes_in_turn(first + (uint64_t)g + c, 4))
                continue;
            Cost apart, together;
            size_t bytes = gradients(graphs[g], s, "off", want, &apart);
            gradients(graphs[g], s, "always", got, &together);
            cr_assert_eq(memcmp(want, got, bytes), 0, "%s: other bits: graph %d, case %d", how, g, (int)c);
            cr_assert_eq(together.kernels, apart.kernels, "%s: the same kernels", how);
            if (s->rows > 1)
                cr_assert_lt(together.moved, apart.moved, "%s: rows stay in the caches: graph %d, case %d", how, g, (int)c);
        }
}

Test(bands, gradients)
{
    set_option("threads", "1");
    each_gradient("one thread", 0);
    set_option("threads", "2");
    each_gradient("two threads", 1);
    set_option("threads", "7");
    each_gradient("seven threads", 2);
}

Test(bands, gradients_strictly)
{
    set_option("threads", "1");
    set_option("math", "strict");
    set_option("vector_bits", "256");
    each_gradient("256 bits", 3);
}

Test(bands, gradients_with_sizes_as_arguments)
{
    set_option("threads", "1");
    set_option("dynamic", "always");
    each_gradient("sizes as arguments", 0);
    kiln_stats before = stats_now();
    each_gradient("the same programs again", 0);
    kiln_stats after = stats_now();
    cr_assert_eq(after.compiles, before.compiles, "programs for any size take all of them");
}

/* ---- what a mask leaves out is not multiplied (jit/llvm/cpu/skip.c) ---- */

static kiln_tensor *places(int64_t n, int axis)
{
    kiln_tensor *x = kiln_arange(KILN_I64, 0, (double)n, 1);
    return axis ? x : kiln_reshape(x, KILN_SHAPE(n, 1));
}

/* Keys behind a query's place do not count; nor do those far before it, and the first ten. */
static kiln_tensor *masked(const Sizes *s, kiln_tensor *const *in)
{
    kiln_tensor *scores = kiln_matmul(in[0], kiln_transpose(in[1])), *distance = kiln_sub(places(s->rows, 0), places(s->keys, 1));
    scores = kiln_where(kiln_lt(distance, 0), -INFINITY, kiln_mul(scores, 0.25));
    scores = kiln_where(kiln_logical_and(kiln_lt(distance, 400), kiln_ge(places(s->keys, 1), 10)), scores, -1e9);
    kiln_tensor *most = kiln_maximum(kiln_max_axes(scores, KILN_AXES(-1), true), -1e8);
    return kiln_matmul(kiln_exp(kiln_sub(scores, most)), in[2]);
}

/* Half of the sums are asked for, by an epilogue that is no attention. */
static kiln_tensor *lower(const Sizes *s, kiln_tensor *const *in)
{
    kiln_tensor *product = kiln_matmul(in[0], kiln_transpose(in[1]));
    return kiln_where(kiln_ge(places(s->rows, 0), places(s->keys, 1)), kiln_add(product, 1), kiln_neg(kiln_abs(in[3])));
}

/* Sums of one document's places, of 64 each. */
static kiln_tensor *documents(const Sizes *s, kiln_tensor *const *in)
{
    kiln_tensor *product = kiln_matmul(in[0], kiln_transpose(in[1])), *row = kiln_floor_divide(places(s->rows, 0), 64);
    return kiln_where(kiln_ne(row, kiln_floor_divide(places(s->keys, 1), 64)), -3, kiln_mul(product, in[3]));
}

/* Of the sums in a strip about the diagonal none is asked for. */
static kiln_tensor *strip(const Sizes *s, kiln_tensor *const *in)
{
    kiln_tensor *distance = kiln_sub(kiln_add(places(s->rows, 0), 5), places(s->keys, 1));
    kiln_tensor *outside = kiln_logical_or(kiln_gt(distance, 130), kiln_logical_not(kiln_ge(distance, -70)));
    return kiln_where(outside, kiln_matmul(in[0], kiln_transpose(in[1])), places(s->keys, 1));
}

/* One in six of the cases of each graph, from `first` on. */
static void skips(const char *how, uint64_t first)
{
    static const Sizes cases[] = {
        {1, 300, 600, 8, 8, KILN_F32},  {1, 600, 300, 300, 5, KILN_F32}, {2, 40, 700, 8, 40, KILN_F64}, {1, 530, 530, 4, 33, KILN_F32},
        {1, 200, 410, 20, 9, KILN_F32}, {1, 900, 530, 4, 33, KILN_F32} /* values in panels that are made before */};
    static Build *const graphs[] = {masked, lower, documents, strip};
    static const float poison[] = {0, INFINITY, NAN};
    for (int g = 0; g < 4; g++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int bad = 0; bad < 3; bad++) {
                if (!slice_takes_in_turn(first + (uint64_t)g + 3 * c + (uint64_t)bad, 6))
                    continue;
                const Sizes *s = &cases[c];
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *in[4];
                inputs(s, in);
                in[3] = kiln_scalar(2);
                /* in a block that most rows do not see; but those whose weight there is 0 multiply it */
                int64_t place = s->keys > 512 ? 300 : s->keys - 1;
                for (int i = 1; i < 3; i++)
                    in[i] =
                        kiln_where(kiln_eq(kiln_reshape(places(s->keys, 1), KILN_SHAPE(s->keys, 1)), place), (double)poison[bad], in[i]);
                for (int i = 1; i < 3; i++)
                    cr_assert(kiln_eval(in[i]) == KILN_OK, "%s", kiln_error_message());
                set_option("mode", "interp");
                size_t bytes = compute(graphs[g], s, in, "off", want);
                set_option("mode", "jit");
                for (int bands = 0; bands < 2; bands++) {
                    compute(graphs[g], s, in, bands ? "always" : "off", got);
                    for (size_t i = 0; i < bytes / width_of(s->dtype); i++) {
                        double a = element(s->dtype, want, i), b = element(s->dtype, got, i);
                        cr_assert(memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)), "%s: graph %d, case %d, %g: %g at %d, not %g",
                                  how, g, (int)c, (double)poison[bad], b, (int)i, a);
                    }
                }
                kiln_scope_end(scope);
            }
}

Test(bands, masks)
{
    set_option("threads", "1");
    set_option("math", "strict");
    skips("the best width", 0);
    set_option("vector_bits", "256");
    skips("256 bits", 2);
    set_option("vector_bits", "128");
    set_option("dynamic", "always");
    skips("128 bits, sizes as arguments", 4);
}

/* ---- nor are its exponentials computed (jit/llvm/cpu/masked.c) ---- */

/* Stretches of -inf in rows of each kind: none, at the end, at the start, everywhere, beside +inf, beside NaN, every other one, all but one in between. */
static kiln_tensor *stretches(const Sizes *s)
{
    static float data[1 << 14];
    for (int64_t i = 0; i < s->rows * s->keys; i++) {
        const int64_t row = i / s->keys, at = i % s->keys, kind = row % 8, cut = 64 + 37 * (row / 8);
        const bool left[] = {false, at >= cut, at < cut, true, true, true, at % 2 == 1, at >= 64 && at < s->keys - 20};
        data[i] = left[kind] ? -INFINITY : (float)pick();
        data[i] = kind == 4 && at == cut ? INFINITY : kind == 5 && at == cut ? NAN : kind == 7 && at == 127 ? 3 : data[i];
    }
    return kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(s->rows, s->keys), data), s->dtype);
}

static kiln_tensor *exponentials(const Sizes *s, kiln_tensor *const *in)
{
    (void)s;
    kiln_tensor *scores = kiln_add(kiln_matmul(in[0], kiln_transpose(in[1])), in[3]);
    kiln_tensor *y = kiln_exp(kiln_sub(scores, kiln_max_axes(scores, KILN_AXES(-1), true)));
    return kiln_add(kiln_matmul(y, in[2]), kiln_sum_axes(y, KILN_AXES(-1), true));
}

static void rows_with_stretches(const char *how)
{
    static const Sizes cases[] = {
        {1, 24, 128, 9, 8, KILN_F32}, {1, 24, 391, 9, 12, KILN_F32}, {1, 24, 300, 5, 8, KILN_F64}, {1, 16, 640, 16, 8, KILN_BF16}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const Sizes *s = &cases[c];
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[4];
        inputs(s, in);
        in[3] = stretches(s);
        cr_assert(kiln_eval(in[3]) == KILN_OK, "%s", kiln_error_message());
        set_option("mode", "interp");
        size_t bytes = compute(exponentials, s, in, "off", want);
        set_option("mode", "jit");
        compute(exponentials, s, in, "always", got);
        for (size_t i = 0; i < bytes / width_of(s->dtype); i++) {
            double a = element(s->dtype, want, i), b = element(s->dtype, got, i);
            cr_assert(memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)), "%s: case %d: %g at %d, not %g", how, (int)c, b, (int)i, a);
        }
        kiln_scope_end(scope);
    }
}

Test(bands, exponentials_of_what_a_mask_leaves)
{
    set_option("threads", "1");
    set_option("math", "strict");
    rows_with_stretches("the best width");
    set_option("vector_bits", "256");
    rows_with_stretches("256 bits");
    set_option("dynamic", "always");
    rows_with_stretches("256 bits, sizes as arguments");
    set_option("vector_bits", "128");
    rows_with_stretches("128 bits");
}

/* ---- nor are zeros behind a mask written, or read (jit/llvm/cpu/spans.c) ---- */

typedef enum Mask { CAUSAL, FROM_END, WINDOW, AFTER, NONE, MASKS } Mask;

/* Which keys does a row see? */
static kiln_tensor *sees(const Sizes *s, Mask mask)
{
    kiln_tensor *distance = kiln_sub(places(s->rows, 0), places(s->keys, 1));
    switch (mask) {
    case CAUSAL: return kiln_ge(distance, 0);
    case FROM_END: return kiln_ge(distance, -333);
    case WINDOW: return kiln_logical_and(kiln_ge(distance, -15), kiln_lt(distance, 130));
    case AFTER: return kiln_le(distance, -20);
    case NONE:
    case MASKS: break;
    }
    return kiln_ge(distance, 5000);
}

static int told_spans; /* kernels that were told to have some */

static void count_spans(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic;
    told_spans += strstr(line, "spans of") != NULL;
}

/* As an attention's gradient has it: weights by scores, rows of which may be NaN, and what comes from their gradients, where another mask may be;
 * what is read of both by rows, and summed up. One after the other; bytes of all. */
static size_t weights_and_gradients(const Sizes *s, kiln_tensor *const *in, Mask mask, Mask other, char *to)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *scores = kiln_mul(kiln_matmul(in[0], kiln_transpose(in[1])), 0.25);
    kiln_tensor *p = kiln_exp(kiln_sub(kiln_where(sees(s, mask), scores, -INFINITY), in[4]));
    kiln_tensor *d = kiln_where(sees(s, other), kiln_mul(kiln_matmul(in[3], kiln_transpose(in[2])), p), 0);
    kiln_tensor *y[] = {kiln_matmul(p, in[2]), kiln_matmul(kiln_transpose(p), in[3]), kiln_matmul(d, in[1]),
                        kiln_matmul(kiln_transpose(d), in[0])};
    cr_assert(kiln_eval_many(y, 4) == KILN_OK, "%s", kiln_error_message());
    const size_t bytes = read_four(s, y, to);
    kiln_scope_end(scope);
    return bytes;
}

static void put(kiln_tensor **x, int64_t n, int64_t place, double value)
{
    *x = kiln_where(kiln_eq(kiln_reshape(places(n, 1), KILN_SHAPE(n, 1)), place), value, *x);
    cr_assert(kiln_eval(*x) == KILN_OK, "%s", kiln_error_message());
}

/* Memory of a band has what earlier ones of the batch left there. Two of 28 masks and values for each size, from `first` on. */
static void spans(const char *how, uint64_t first)
{
    static const Sizes cases[] = {
        {3, 520, 700, 8, 8, KILN_F32}, {2, 600, 530, 20, 33, KILN_F32}, {2, 300, 560, 5, 9, KILN_F64}, {3, 300, 610, 16, 16, KILN_BF16}};
    static const struct {
        Mask mask, other;
    } masks[] = {{CAUSAL, CAUSAL}, {FROM_END, FROM_END}, {WINDOW, WINDOW}, {AFTER, AFTER},
                 {NONE, NONE},     {CAUSAL, FROM_END},   {WINDOW, CAUSAL}};
    static const double special[] = {0, NAN, INFINITY, -INFINITY};
    uint64_t number = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
            for (int bad = 0; bad < 4; bad++, number++) {
                const Sizes *s = &cases[c];
                kiln_tensor *in[5];
                if (!slice_takes_in_turn(first + number, 14))
                    continue;
                kiln_scope *scope = kiln_scope_begin();
                inputs(s, in);
                in[3] = values(s->dtype, KILN_SHAPE(s->batch, s->rows, s->e));
                in[4] = values(s->dtype, KILN_SHAPE(s->batch, s->rows, 1));
                put(&in[4], s->rows, 290, special[bad]);
                if (bad % 2)
                    put(&in[1 + bad / 2], s->keys, s->keys - 3, special[bad]);
                set_option("bands", "off");
                set_option("mode", "interp");
                size_t bytes = weights_and_gradients(s, in, masks[m].mask, masks[m].other, want);
                set_option("mode", "jit");
                set_option("bands", "always");
                weights_and_gradients(s, in, masks[m].mask, masks[m].other, got);
                for (size_t i = 0; i < bytes / width_of(s->dtype); i++) {
                    double a = element(s->dtype, want, i), b = element(s->dtype, got, i);
                    cr_assert(memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)), "%s: case %d, masks %d, %g: %g at %d, not %g", how,
                              (int)c, (int)m, special[bad], b, (int)i, a);
                }
                kiln_scope_end(scope);
            }
}

static void each_span(const char *how, uint64_t first)
{
    set_option("log", "kernels");
    kiln_set_log_sink(count_spans, NULL);
    set_option("math", "strict");
    spans(how, first);
    cr_expect_gt(told_spans, 0, "%s: no kernel is told of spans", how);
}

Test(bands, spans)
{
    set_option("threads", "1");
    each_span("one thread", 0);
}

Test(bands, spans_of_threads)
{
    set_option("threads", "2"); /* which share the bands of one of the batch, where these are odd */
    each_span("two threads", 3);
    set_option("threads", "3");
    each_span("three threads", 6);
}

Test(bands, spans_of_any_width)
{
    set_option("threads", "1");
    set_option("vector_bits", "256");
    each_span("256 bits", 9);
    set_option("vector_bits", "128");
    set_option("dynamic", "always");
    each_span("128 bits, sizes as arguments", 12);
}

/* ---- what many bands multiply by is packed before them (jit/panels.c) ---- */

static int packed; /* so many operands, it was told */

static void count_packed(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic;
    packed += strstr(line, "packed before them") != NULL;
}

/* Keys and values that a kernel makes, of a head for each two of queries. */
static kiln_tensor *grouped(const Sizes *s, kiln_tensor *const *in)
{
    const kiln_range half[] = {{0, s->batch / 2, 1}};
    kiln_tensor *keys = kiln_tanh(kiln_slice(in[1], 1, half)), *v = kiln_exp(kiln_slice(in[2], 1, half));
    return kiln_attention(in[0], keys, v, &(kiln_attention_options){.causal = true});
}

/* The keys are read by what follows the bands, too, and two products multiply by the same values. */
static kiln_tensor *read_again(const Sizes *s, kiln_tensor *const *in)
{
    kiln_tensor *keys = kiln_exp(in[1]), *scores = kiln_matmul(in[0], kiln_transpose(keys));
    kiln_tensor *y = kiln_add(kiln_matmul(kiln_relu(scores), in[2]), kiln_matmul(kiln_softmax(scores, -1), in[2]));
    return kiln_add(kiln_mul(y, (double)s->e), kiln_max_axes(keys, KILN_AXES(-1, -2), true));
}

/* One in three of the cases, from `first` on; the last is of gradients. */
static void packs_before(const char *math, const char *bits, uint64_t first)
{
    static const struct {
        Build *build;
        Sizes s;
        int packed; /* -1: bf16 by pairs, where the CPU multiplies such */
    } cases[] = {
        {softmax_by_hand, {2, 1000, 513, 33, 40, KILN_F32}, 2},
        {attention, {1, 960, 704, 32, 65, KILN_F32}, 2},
        {deep, {1, 900, 520, 40, 37, KILN_F64}, 3},
        {grouped, {4, 901, 530, 36, 33, KILN_F32}, 2},
        {read_again, {1, 1003, 516, 36, 44, KILN_F32}, 3},
        {attention, {1, 900, 900, 80, 80, KILN_BF16}, 2},
        {attention, {2, 901, 520, 80, 70, KILN_F16}, 2},
        {softmax_by_hand, {1, 900, 900, 80, 80, KILN_BF16}, -1},
        {attention, {1, 150, 513, 40, 40, KILN_F32}, 0}, /* few bands */
        {attention, {1, 1000, 130, 8, 8, KILN_F32}, 0},  /* little to pack */
    };
    enum { CASES = sizeof cases / sizeof *cases };
    set_option("math", math);
    set_option("dynamic", "never"); /* of a program for any size that is there nothing is told */
    set_option("vector_bits", bits);
    for (size_t c = 0; c < CASES; c++) {
        if (!slice_takes_in_turn(first + c, 3))
            continue;
        kiln_scope *scope = kiln_scope_begin();
        const Sizes *s = &cases[c].s;
        kiln_tensor *in[3];
        inputs(s, in);
        size_t bytes = compute(cases[c].build, s, in, "off", want);
        packed = 0;
        for (int threads = 1; threads <= 2; threads++) {
            set_option("threads", threads == 1 ? "1" : "2");
            compute(cases[c].build, s, in, "always", got);
            cr_assert_eq(memcmp(want, got, bytes), 0, "%s, %s bits: other bits: case %d, %d threads", math, bits, (int)c, threads);
        }
        cr_expect(cases[c].packed < 0 || packed == cases[c].packed, "%s, %s bits: case %d: %d packed before, %d are expected", math, bits,
                  (int)c, packed, cases[c].packed);
        kiln_scope_end(scope);
    }
    if (!slice_takes_in_turn(first + CASES, 3))
        return;
    const Sizes s = {1, 1100, 300, 72, 80, KILN_F32};
    Cost apart, together;
    size_t bytes = gradients(masked_attention, &s, "off", want, &apart);
    packed = 0;
    gradients(masked_attention, &s, "always", got, &together);
    cr_assert_eq(memcmp(want, got, bytes), 0, "%s, %s bits: other bits of gradients", math, bits);
    cr_expect_gt(packed, 1, "%s, %s bits: %d packed before in gradients", math, bits, packed);
}

static void packs_at_each_width(const char *math)
{
    set_option("log", "fusion");
    kiln_set_log_sink(count_packed, NULL);
    packs_before(math, "128", 0);
    packs_before(math, "256", 1);
    packs_before(math, "512", 2);
}

Test(bands, pack_before_them) { packs_at_each_width("fast"); }
Test(bands, pack_before_them_strictly) { packs_at_each_width("strict"); }

/* What the last product writes may lie where an input lay only when no row of it is still to be read. */
Test(bands, in_place)
{
    Sizes s = {1, 600, 600, 8, 8, KILN_F32}; /* x is read by the first product, all rows of it, and by the last one's epilogue */
    kiln_tensor *in[3];
    set_option("threads", "1");
    for (int how = 0; how < 2; how++) {
        set_option("bands", how ? "always" : "off");
        inputs(&s, in);
        kiln_tensor *x = in[0];
        for (int step = 0; step < 3; step++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *p = kiln_softmax(kiln_matmul(x, kiln_transpose(x)), -1);
            cr_assert(kiln_assign(x, kiln_add(kiln_matmul(p, in[2]), x)) == KILN_OK, "%s", kiln_error_message());
            kiln_scope_end(scope); /* the last that meant the old x */
            cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
        }
        cr_assert(kiln_read(x, KILN_F32, how ? got : want, 600 * 8 * 4) == KILN_OK, "%s", kiln_error_message());
    }
    cr_assert_eq(memcmp(want, got, 600 * 8 * 4), 0);
}

/* Nor when what rows are summed up to is written where the parameter lay. */
Test(bands, gradients_in_place)
{
    Sizes s = {3, 520, 300, 8, 8, KILN_F32};
    kiln_tensor *in[3], *grads[3];
    set_option("threads", "1");
    for (int how = 0; how < 2; how++) {
        set_option("bands", how ? "always" : "off");
        inputs(&s, in);
        for (int i = 0; i < 3; i++)
            in[i] = kiln_param(in[i]);
        for (int step = 0; step < 3; step++) {
            kiln_scope *scope = kiln_scope_begin();
            cr_assert(kiln_grad(kiln_sum(kiln_tanh(attention(&s, in))), in, 3, grads) == KILN_OK, "%s", kiln_error_message());
            for (int i = 0; i < 3; i++)
                cr_assert(kiln_assign(in[i], kiln_sub(in[i], kiln_mul(grads[i], 0.1))) == KILN_OK, "%s", kiln_error_message());
            kiln_scope_end(scope);
            cr_assert(kiln_eval_many(in, 3) == KILN_OK, "%s", kiln_error_message());
        }
        char *to = how ? got : want;
        for (int i = 0; i < 3; i++) {
            size_t bytes = (size_t)kiln_numel(in[i]) * 4;
            cr_assert(kiln_read(in[i], KILN_F32, to, bytes) == KILN_OK, "%s", kiln_error_message());
            to += bytes;
        }
    }
    cr_assert_eq(memcmp(want, got, 3 * (520 + 300 + 300) * 8 * 4), 0);
}

static void layer(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *p = kiln_softmax(kiln_matmul(in[0], kiln_transpose(in[0])), -1);
    out[0] = kiln_matmul(p, in[0]);
    out[1] = kiln_add(in[1], 1);
}

static kiln_tensor *few(kiln_tensor **in, void *user)
{
    (void)user;
    return kiln_lt(in[1], 3);
}

Test(bands, in_loops_and_functions)
{
    Sizes s = {1, 300, 300, 8, 8, KILN_F32};
    kiln_tensor *in[3];
    set_option("threads", "1");
    inputs(&s, in);
    for (int how = 0; how < 2; how++) {
        set_option("bands", how ? "always" : "off");
        kiln_tensor *loop[2] = {in[0], kiln_int(0)};
        cr_assert(kiln_while(few, layer, 2, loop, 5, loop, NULL) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_read(loop[0], KILN_F32, how ? got : want, 300 * 8 * 4) == KILN_OK, "%s", kiln_error_message());
    }
    cr_assert_eq(memcmp(want, got, 300 * 8 * 4), 0, "in a loop");
    kiln_function *f = kiln_function_new(layer, 2, 2, NULL);
    for (int call = 0; call < 4; call++) {
        kiln_tensor *x[2] = {in[0], kiln_int(0)}, *y[2];
        for (int step = 0; step < 3; step++) {
            cr_assert(kiln_function_call(f, x, y) == KILN_OK, "%s", kiln_error_message());
            x[0] = y[0];
            x[1] = y[1];
        }
        cr_assert(kiln_read(x[0], KILN_F32, got, 300 * 8 * 4) == KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(memcmp(want, got, 300 * 8 * 4), 0, "call %d", call);
    }
    kiln_function_free(f);
}

/* A bad index in the middle of a band is told like any other. */
Test(bands, bad_indices)
{
    Sizes s = {1, 300, 64, 8, 8, KILN_F32};
    kiln_tensor *in[3];
    int64_t places[300] = {0};
    set_option("threads", "1");
    set_option("bands", "always");
    inputs(&s, in);
    for (int bad = 0; bad < 2; bad++) {
        places[299] = bad ? 64 : 63;
        kiln_tensor *at = kiln_from(KILN_I64, KILN_SHAPE(300), places);
        kiln_tensor *p =
            kiln_softmax(kiln_matmul(kiln_reshape(in[0], KILN_SHAPE(300, 8)), kiln_transpose(kiln_reshape(in[1], KILN_SHAPE(64, 8)))), -1);
        kiln_tensor *picked = kiln_take(kiln_reshape(in[2], KILN_SHAPE(64, 8)), at, 0);
        kiln_tensor *y = kiln_add(kiln_matmul(p, kiln_reshape(in[2], KILN_SHAPE(64, 8))), picked);
        kiln_status status = kiln_eval(y);
        cr_assert_eq(status, bad ? KILN_BAD_INDEX : KILN_OK, "%s", kiln_error_message());
        kiln_clear_error();
    }
}

/* By itself kiln makes bands where a matrix of scores would be large, and that one is never whole in memory. */
Test(bands, attention_needs_no_matrix_of_scores)
{
    enum { LENGTH = 2048, MIB = 1 << 20 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *q = kiln_uniform(KILN_F32, KILN_SHAPE(8, LENGTH, 16), -1, 1),
                *k = kiln_uniform(KILN_F32, KILN_SHAPE(8, LENGTH, 16), -1, 1);
    cr_assert(kiln_eval(q) == KILN_OK && kiln_eval(k) == KILN_OK);
    kiln_stats before = stats_now();
    kiln_tensor *y = kiln_attention(q, k, k, NULL);
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    int64_t moved = after.bytes_moved - before.bytes_moved, one = 8 * LENGTH * 16 * 4;
    cr_assert_leq(moved, 12 * one, "%d MiB were moved: only q, k, panels and the result, and not 128 MiB of scores", (int)(moved / MIB));
    cr_assert_leq(after.kernels - before.kernels, 5, "a product, rows, a product, and panels of k for both");
    kiln_scope_end(scope);
}

/*
 * Weights below the least normal, and what sums of them would be, are zeros in fast mode: with one of them a multiply-add takes some CPUs as long as
 * forty others. Key 7 has such a weight, key 8 one whose product with its value is less; no other key has a value.
 */
Test(bands, weights_below_the_least_normal)
{
    enum { QUERIES = 500, KEYS = 300, D = 24 };
    static float bias[KEYS], v[KEYS * D];
    bias[7] = -95;
    bias[8] = -80;
    set_option("bands", "always");
    for (int which = 7; which <= 8; which++)
        for (int strict = 0; strict < 2; strict++) {
            kiln_scope *scope = kiln_scope_begin();
            const float value = which == 7 ? 1 : 1e-5F;
            memset(v, 0, sizeof v);
            for (int d = 0; d < D; d++)
                v[which * D + d] = value;
            kiln_tensor *q = kiln_zeros(KILN_F32, KILN_SHAPE(1, QUERIES, D)), *k = kiln_zeros(KILN_F32, KILN_SHAPE(1, KEYS, D));
            set_option("math", strict ? "strict" : "fast");
            kiln_tensor *y = kiln_attention(q, k, kiln_from(KILN_F32, KILN_SHAPE(1, KEYS, D), v),
                                            &(kiln_attention_options){.mask = kiln_from(KILN_F32, KILN_SHAPE(1, KEYS), bias)});
            float *result = (float *)(void *)got;
            cr_assert(kiln_read(y, KILN_F32, result, sizeof(float[QUERIES * D])) == KILN_OK, "%s", kiln_error_message());
            const double exact = exp(bias[which]) * value / (KEYS - 2);
            for (int i = 0; i < QUERIES * D; i++)
                cr_assert(strict ? fabs(result[i] - exact) < 0.01 * exact + 1.5e-45 : result[i] == 0,
                          "key %d, %s: element %d is %g, not %g", which, strict ? "strict" : "fast", i, (double)result[i],
                          strict ? exact : 0);
            kiln_scope_end(scope);
        }
}

/* ALiBi: slope[h] * (j - i) is added where scores are made, and is nowhere in memory; of grouped queries and behind a causal mask, too. */
static kiln_tensor *with_slopes(kiln_tensor *q, kiln_tensor *k, bool causal)
{
    static const float slopes[] = {0.5F, 0.25F, 0.125F, 0.0625F};
    const int64_t heads = kiln_dim(q, 1), queries = kiln_dim(q, 2), keys = kiln_dim(k, 2);
    kiln_tensor *distance = kiln_sub(kiln_arange(KILN_F32, 0, (double)keys, 1),
                                     kiln_reshape(kiln_arange(KILN_F32, 0, (double)queries, 1), KILN_SHAPE(queries, 1)));
    kiln_tensor *bias = kiln_mul(kiln_from(KILN_F32, KILN_SHAPE(heads, 1, 1), slopes), distance);
    return kiln_attention(q, k, k, &(kiln_attention_options){.causal = causal, .mask = bias});
}

/* Two of the six cases, from `number` on. */
static void each_alibi(const char *how, uint64_t number)
{
    enum { HEADS = 4, LENGTH = 530, D = 16 };
    for (int shared = 1; shared <= HEADS; shared += shared)
        for (int causal = 0; causal < 2; causal++) {
            if (!slice_takes_in_turn(number++, 3))
                continue;
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *q = values(KILN_F32, KILN_SHAPE(1, HEADS, LENGTH, D)), *k = values(KILN_F32, KILN_SHAPE(1, shared, LENGTH, D));
            const int64_t bytes = HEADS * LENGTH * D * 4, scores = HEADS * LENGTH * LENGTH * 4;
            kiln_tensor *y = with_slopes(q, k, causal);
            kiln_reset_stats();
            kiln_stats before = stats_now();
            cr_assert(kiln_read(y, KILN_F32, got, (size_t)bytes) == KILN_OK, "%s", kiln_error_message());
            kiln_stats after = stats_now();
            cr_assert_leq(after.kernels - before.kernels, 6, "%s: a product with its bias, rows, a product; panels of k for both", how);
            cr_assert_lt(after.peak_bytes - before.live_bytes, scores / 4, "%s: no matrix of scores, or of what is added to them", how);
            cr_assert_lt(after.bytes_moved - before.bytes_moved, scores / 4, "%s: nor is one moved", how);
            set_option("mode", "interp");
            cr_assert(kiln_read(with_slopes(q, k, causal), KILN_F32, want, (size_t)bytes) == KILN_OK, "%s", kiln_error_message());
            set_option("mode", "jit");
            cr_assert_eq(memcmp(want, got, (size_t)bytes), 0, "%s: not the interpreter's: %d heads of keys, causal %d", how, shared,
                         causal);
            kiln_scope_end(scope);
        }
}

Test(bands, biases_of_places_need_no_matrix)
{
    static const char *const bits[] = {"128", "256", "512"};
    set_option("threads", "1");
    set_option("math", "strict");
    for (int i = 0; i < 3; i++) {
        set_option("vector_bits", bits[i]);
        each_alibi(bits[i], (uint64_t)i);
    }
    set_option("dynamic", "always");
    each_alibi("sizes as arguments", 0);
}

/* A convolution is in none: its windows are read where they lie in the image, which a band would pack. */
Test(bands, none_has_windows)
{
    enum { N = 2, C = 64, SIZE = 56 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(N, C, SIZE, SIZE), -1, 1),
                *w = kiln_uniform(KILN_F32, KILN_SHAPE(C, C, 3, 3), -1, 1);
    kiln_tensor *point = kiln_uniform(KILN_F32, KILN_SHAPE(C, C, 1, 1), -1, 1);
    cr_assert(kiln_eval(x) == KILN_OK && kiln_eval(w) == KILN_OK && kiln_eval(point) == KILN_OK);
    kiln_reset_stats();
    kiln_tensor *y = kiln_conv(kiln_relu(kiln_conv(x, w, &(kiln_conv_options){.same = true})), point, NULL);
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_stats stats = stats_now();
    int64_t one = N * C * SIZE * SIZE * 4; /* x, padded and read again, what is between and read again, y */
    cr_assert_geq(stats.bytes_moved, 6 * one, "%d KiB were moved", (int)(stats.bytes_moved >> 10));
    kiln_scope_end(scope);
}

/* Nor where keys are so many that packing them for each band takes longer than the matrix would, which is of 1.1 GB here. */
Test(bands, many_keys_need_no_matrix_of_scores)
{
    enum { QUERIES = 4200, KEYS = 1 << 16, D = 16, MB = 1000000 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *q = kiln_uniform(KILN_F32, KILN_SHAPE(QUERIES, D), -1, 1), *k = kiln_uniform(KILN_F32, KILN_SHAPE(KEYS, D), -1, 1);
    cr_assert(kiln_eval(q) == KILN_OK && kiln_eval(k) == KILN_OK);
    kiln_reset_stats();
    cr_assert(kiln_eval(kiln_attention(q, k, k, NULL)) == KILN_OK, "%s", kiln_error_message());
    kiln_stats stats = stats_now();
    cr_assert_lt(stats.peak_bytes, (int64_t)100 * MB, "%d MB", (int)(stats.peak_bytes / MB));
    kiln_scope_end(scope);
}

/* Nor does its gradient store one, where other steps stand between: scores are computed again, and all of it runs in bands of one of the batch. */
static void little_memory(kiln_tensor *(*spelled)(kiln_tensor *const *), int64_t shared, int64_t length, kiln_stats *after)
{
    enum { HEADS = 8, MIB = 1 << 20 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[3], *grads[3];
    for (int i = 0; i < 3; i++) {
        in[i] = kiln_param(kiln_uniform(KILN_F32, KILN_SHAPE(1, i ? shared : HEADS, length, 16), -1, 1));
        cr_assert(kiln_eval(in[i]) == KILN_OK);
    }
    kiln_tensor *loss = kiln_sum(kiln_tanh(spelled(in)));
    cr_assert(kiln_grad(loss, in, 3, grads) == KILN_OK, "%s", kiln_error_message());
    kiln_reset_stats();
    kiln_stats before = stats_now();
    cr_assert(kiln_eval_many(grads, 3) == KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(after);
    int64_t one = HEADS * length * 16 * 4, moved = after->bytes_moved - before.bytes_moved, held = after->peak_bytes - before.live_bytes;
    int64_t scores = HEADS * length * length * 4;
    cr_assert_leq(moved, 40 * one, "%d MiB were moved, and a matrix of scores has %d", (int)(moved / MIB), (int)(scores / MIB));
    cr_assert_leq(held, 10 * one, "%d MiB of data beside the inputs, and a matrix of scores has %d", (int)(held / MIB),
                  (int)(scores / MIB));
    kiln_scope_end(scope);
}

/* The program for any size, too, which is one for all of them: guards that bands ask for hold wherever heads are split in the same way. */
static void no_matrix_in_the_gradient(kiln_tensor *(*spelled)(kiln_tensor *const *), int64_t shared, const char *threads)
{
    kiln_stats stats;
    set_option("threads", threads);
    little_memory(spelled, shared, 1024, &stats);
    set_option("dynamic", "always");
    little_memory(spelled, shared, 900, &stats);
    little_memory(spelled, shared, 800, &stats);
    cr_expect_eq(stats.compiles, 0, "another length compiles anew");
    set_option("dynamic", "auto");
}

static kiln_tensor *called(kiln_tensor *const *in)
{
    return kiln_attention(in[0], in[1], in[2], &(kiln_attention_options){.causal = true});
}

static kiln_tensor *by_hand(kiln_tensor *const *in)
{
    return kiln_matmul(kiln_softmax(kiln_mul(kiln_matmul(in[0], kiln_transpose(in[1])), 0.25), -1), in[2]);
}

Test(bands, gradients_need_no_matrix_of_scores)
{
    static const struct {
        kiln_tensor *(*spelled)(kiln_tensor *const *);
        int64_t shared;
        const char *threads; /* 9 are more than there are heads: they share each */
    } cases[] = {{called, 8, "1"}, {by_hand, 8, "9"}, {called, 2, "1"}, {by_hand, 8, "1"}, {called, 8, "9"}, {called, 1, "1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (slice_takes_in_turn(i, 3))
            no_matrix_in_the_gradient(cases[i].spelled, cases[i].shared, cases[i].threads);
}

/*
 * Attention as one kernel on a CUDA device (jit/fuse/attention.c, jit/llvm/cuda/attention.c), in fast mode: next to the interpreter for many shapes,
 * masks and layouts; what becomes of infinities, NaN and of rows that see nothing; one kernel, and no scores in memory; the same bits in every
 * program; and which attentions have kernels like other products instead.
 */
#include "attention_data.h"
#include "on_cuda.h"

#include "tests/support/slice.h"

#include <stdio.h>

enum { MOST = 1 << 19 };

typedef enum Mask { NO_MASK, BOOLS, ADDED, ROWS_UNSEEN, MASKS, SLOPES = MASKS } Mask;

typedef struct Case {
    kiln_dtype dtype;
    int64_t batch, heads, shared, queries, keys, d, e;
    bool causal, from_end, lengths, by_hand, permuted, shifted;
    Mask mask;
    Turn turn;
    double softcap, scale;
    float odd;  /* an element of this value ... */
    int odd_in; /* ... in q, k or v; none: -1 */
    bool tf32;  /* elements are those of an f16, which tf32 has */
} Case;

static float data[3][MOST], mask[MOST];
static float want[MOST], got[MOST], again[MOST];

static kiln_tensor *input(const Case *c, int which)
{
    int64_t heads = which ? c->shared : c->heads, rows = which ? c->keys : c->queries, width = which == 2 ? c->e : c->d, one = c->shifted;
    kiln_shape shape = c->permuted ? KILN_SHAPE(c->batch, rows, heads, width + one) : KILN_SHAPE(c->batch, heads, rows, width + one);
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, shape, data[which]), c->tf32 ? KILN_F16 : c->dtype);
    if (c->tf32)
        x = kiln_cast(x, c->dtype);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    if (c->permuted)
        x = kiln_permute(x, KILN_AXES(0, 2, 1, 3));
    return one ? kiln_slice(x, 4, (kiln_range[]){KILN_ALL, KILN_ALL, KILN_ALL, {1, width + 1, 1}}) : x;
}

static kiln_tensor *attention(const Case *c)
{
    static const int64_t lengths[] = {0, 3, 70, 1000};
    kiln_tensor *q = turned(input(c, 0), c->turn), *k = turned(input(c, 1), c->turn), *v = input(c, 2);
    if (c->by_hand)
        return kiln_matmul(kiln_softmax(kiln_mul(kiln_matmul(q, kiln_transpose(k)), 0.25), -1), v);
    kiln_attention_options o = {.causal = c->causal, .from_end = c->from_end, .softcap = c->softcap, .scale = c->scale};
    if (c->lengths)
        o.lengths = kiln_from(KILN_I64, KILN_SHAPE(c->batch), lengths);
    kiln_tensor *added = kiln_from(KILN_F32, KILN_SHAPE(c->queries, c->keys), mask);
    o.mask = c->mask == SLOPES  ? slopes_of_places(c->heads, c->queries, c->keys)
             : c->mask == BOOLS ? kiln_gt(added, 0)
             : c->mask          ? kiln_cast(added, c->dtype)
                                : NULL;
    return kiln_attention(q, k, v, &o);
}

static void fill(const Case *c)
{
    for (int i = 0; i < 3; i++)
        fill_factor(data[i], MOST);
    fill_mask(mask, MOST, c->keys, c->mask == ROWS_UNSEEN);
    if (c->odd_in >= 0)
        data[c->odd_in][c->d * 5 + 3] = c->odd;
}

static void compute(const Case *c, float *out)
{
    int64_t n = c->batch * c->heads * c->queries * c->e;
    cr_assert(n <= MOST && c->queries * c->keys <= MOST);
    kiln_scope *scope = kiln_scope_begin();
    cr_assert(kiln_read(kiln_cast(attention(c), KILN_F32), KILN_F32, out, (size_t)n * sizeof *out) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
}

static void reference(const Case *c, float *out)
{
    set_option("device", "cpu");
    set_option("mode", "interp");
    compute(c, out);
    set_option("mode", "jit");
}

/* A weight rounded to the values' dtype (to tf32: as to f16), a result rounded to it, what scores may be off by (less than 2^-12 of weights that scores of at most 30 make),
 * and by hand scores and weights that the reference rounds as well. */
static double allowed(const Case *c)
{
#define ATTENTION(factors, bound) unit = (c->tf32 ? KILN_F16 : c->dtype) == KILN_##factors ? bound : unit;
    double unit = 0, most = 2;
#include "ir/accuracy_cuda.def"
    double scores =
        c->mask == SLOPES ? 0x1p-24 * (double)(c->keys > c->queries ? c->keys : c->queries) : 0; /* of a quarter of so many places */
    return (c->by_hand ? 12 : 2.5) * unit * most + scores + (c->dtype == KILN_F32 && !c->tf32 ? 0x1p-17 : 0x1p-11);
}

static void compare(const Case *c, const char *what)
{
    int64_t n = c->batch * c->heads * c->queries * c->e;
    for (int64_t i = 0; i < n; i++) {
        bool same = isnan(want[i])   ? isnan(got[i])
                    : isinf(want[i]) ? got[i] == want[i]
                                     : fabs((double)got[i] - (double)want[i]) <= allowed(c);
        cr_assert(same,
                  "%s: %s b%d h%d/%d %d x %d, %d to %d, causal %d from end %d lengths %d by hand %d permuted %d shifted %d mask %d turn %d "
                  "softcap "
                  "%g: row %d column %d: %g, not %g",
                  what, kiln_dtype_name(c->dtype), (int)c->batch, (int)c->heads, (int)c->shared, (int)c->queries, (int)c->keys, (int)c->d,
                  (int)c->e, c->causal, c->from_end, c->lengths, c->by_hand, c->permuted, c->shifted, c->mask, c->turn, c->softcap,
                  (int)(i / c->e), (int)(i % c->e), (double)got[i], (double)want[i]);
    }
}

/* Kernels that a computation takes, its inputs being there. */
static int64_t launches(const Case *c, float *out)
{
    compute(c, out);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = attention(c);
    kiln_stats before = stats_now();
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    kiln_stats after = stats_now();
    return after.kernels - before.kernels;
}

static void start(const char *settings)
{
    start_exact(settings);
    set_option("math", "fast");
}

/* Sines, cosines and keys that are turned, of some elements in two steps, are kernels before it; queries are turned, and scores get what places add, in
 * that of attention. */
static int64_t most_kernels(const Case *c) { return c->turn ? 5 : 1; }

/* Next to the interpreter, on the device, and in no more kernels; of one key or none there is nothing to weigh. */
static void check(const Case *c, const char *device)
{
    fill(c);
    reference(c, want);
    start(device);
    set_option("tf32", c->tf32 ? "1" : "0");
    int64_t kernels = launches(c, got);
    compare(c, device);
    cr_assert((kernels > 0 && kernels <= most_kernels(c)) || c->keys <= 1 || !c->queries || !c->batch, "%s: %d kernels: %d x %d, %d of %d",
              device, (int)kernels, (int)c->queries, (int)c->keys, (int)c->heads, (int)c->shared);
}

static const Case cases[] = {
    {KILN_BF16, 1, 1, 1, 1, 1, 16, 16, .odd_in = -1},
    {KILN_BF16, 2, 3, 3, 7, 7, 64, 64, .causal = true, .odd_in = -1},
    {KILN_F16, 2, 2, 2, 64, 64, 64, 64, .odd_in = -1},
    {KILN_BF16, 1, 2, 2, 100, 100, 128, 128, .causal = true, .odd_in = -1},
    {KILN_F16, 1, 1, 1, 130, 1000, 32, 48, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_BF16, 1, 1, 1, 300, 200, 64, 64, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_BF16, 4, 4, 2, 40, 100, 64, 64, .lengths = true, .odd_in = -1},
    {KILN_F16, 2, 6, 2, 33, 65, 64, 64, .causal = true, .lengths = true, .from_end = true, .odd_in = -1},
    {KILN_BF16, 2, 4, 1, 50, 70, 64, 32, .causal = true, .odd_in = -1},
    {KILN_BF16, 2, 2, 2, 70, 130, 64, 64, .mask = BOOLS, .odd_in = -1},
    {KILN_F16, 2, 2, 2, 70, 130, 64, 64, .mask = ADDED, .softcap = 3, .odd_in = -1},
    {KILN_BF16, 2, 2, 2, 70, 65, 64, 64, .mask = ROWS_UNSEEN, .odd_in = -1},
    {KILN_BF16, 2, 2, 2, 70, 65, 64, 64, .by_hand = true, .odd_in = -1},
    {KILN_F16, 2, 2, 2, 129, 64, 48, 80, .by_hand = true, .odd_in = -1},
    {KILN_BF16, 2, 3, 3, 70, 65, 64, 64, .permuted = true, .causal = true, .odd_in = -1},
    {KILN_F16, 2, 3, 3, 70, 65, 64, 64, .shifted = true, .odd_in = -1},
    {KILN_BF16, 0, 3, 3, 70, 65, 64, 64, .odd_in = -1},
    {KILN_BF16, 2, 3, 3, 0, 65, 64, 64, .odd_in = -1},
    {KILN_BF16, 2, 3, 3, 20, 0, 64, 64, .odd_in = -1},
    {KILN_BF16, 2, 2, 2, 20, 0, 64, 64, .by_hand = true, .odd_in = -1},
    {KILN_BF16, 1, 1, 1, 1, 1000, 128, 128, .scale = 0.3, .odd_in = -1},
};

Test(cuda_attention, equals_the_interpreter)
{
    state = 5;
    set_option("dynamic", "never");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i], "cc=9.0,rough=on");
}

static const Case of_f32[] = {
    {KILN_F32, 2, 3, 3, 17, 7, 64, 64, .causal = true, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 64, 64, 64, 64, .odd_in = -1},
    {KILN_F32, 1, 2, 2, 100, 100, 128, 128, .causal = true, .odd_in = -1},
    {KILN_F32, 1, 1, 1, 130, 1000, 32, 48, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 1, 1, 1, 300, 200, 16, 16, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 4, 4, 2, 40, 100, 64, 64, .lengths = true, .odd_in = -1},
    {KILN_F32, 2, 6, 2, 33, 65, 80, 112, .causal = true, .lengths = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 70, 130, 64, 64, .mask = BOOLS, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 70, 130, 64, 64, .mask = ADDED, .softcap = 3, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 70, 65, 64, 64, .mask = ROWS_UNSEEN, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 129, 65, 48, 64, .by_hand = true, .odd_in = -1},
    {KILN_F32, 2, 3, 3, 70, 65, 64, 64, .permuted = true, .causal = true, .odd_in = -1},
    {KILN_F32, 2, 3, 3, 70, 65, 64, 64, .shifted = true, .odd_in = -1},
    {KILN_F32, 2, 3, 3, 0, 65, 64, 64, .odd_in = -1},
    {KILN_F32, 2, 3, 3, 20, 0, 64, 64, .odd_in = -1},
};

/* By multiply-adds: whether cp.async is there (sm_80) or not; and bf16 where tensor cores have none of it. With the option tf32 by tensor cores. */
static void check_f32(const char *device, kiln_dtype dtype, bool tf32, size_t first, size_t step)
{
    state = 6;
    set_option("dynamic", "never");
    for (size_t i = first; i < sizeof of_f32 / sizeof *of_f32; i += step) {
        Case c = of_f32[i];
        c.dtype = dtype;
        c.tf32 = tf32;
        check(&c, device);
    }
}

Test(cuda_attention, of_f32) { check_f32("cc=9.0,rough=on", KILN_F32, false, 0, 1); }

Test(cuda_attention, of_f32_without_copies) { check_f32("cc=7.5", KILN_F32, false, 0, 3); }

Test(cuda_attention, of_bf16_without_tensor_cores_for_it) { check_f32("cc=7.5", KILN_BF16, false, 1, 3); }

/* Tensor cores multiply it where the option says so; where there are none for it, multiply-adds as ever. */
Test(cuda_attention, of_f32_as_tf32) { check_f32("cc=9.0,rough=on", KILN_F32, true, 0, 1); }

Test(cuda_attention, of_f32_as_tf32_copied_early) { check_f32("cc=8.0,async=early", KILN_F32, true, 0, 2); }

Test(cuda_attention, of_f32_without_tensor_cores_for_it) { check_f32("cc=7.5", KILN_F32, true, 1, 4); }

/* ---- places ---- */

/* Grouped queries, behind a causal mask and not, of as many keys as queries, of more, and of a cache whose last place is the last query's. */
static const Case of_places[] = {
    {KILN_F32, 2, 4, 4, 70, 70, 64, 64, .turn = HALVES, .causal = true, .odd_in = -1},
    {KILN_F32, 1, 6, 2, 100, 130, 32, 48, .turn = NEIGHBOURS, .odd_in = -1},
    {KILN_F32, 1, 4, 1, 33, 65, 128, 128, .turn = SPELLED, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 2, 4, 2, 70, 130, 64, 64, .mask = SLOPES, .odd_in = -1},
    {KILN_F32, 1, 3, 3, 130, 100, 80, 32, .mask = SLOPES, .causal = true, .odd_in = -1},
    {KILN_F32, 1, 4, 2, 70, 70, 64, 64, .turn = HALVES, .mask = SLOPES, .causal = true, .softcap = 3, .odd_in = -1},
    {KILN_F32, 2, 8, 2, 1, 600, 64, 64, .turn = HALVES, .odd_in = -1},
    {KILN_F32, 2, 8, 2, 3, 600, 64, 64, .mask = SLOPES, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 1, 2, 2, 40, 1100, 32, 32, .turn = SPELLED, .mask = SLOPES, .odd_in = -1},
};

static void check_places(const char *device, kiln_dtype dtype, bool tf32, size_t first, size_t step)
{
    state = 8;
    for (size_t i = first; i < sizeof of_places / sizeof *of_places; i += step) {
        Case c = of_places[i];
        c.dtype = dtype;
        c.tf32 = tf32;
        check(&c, device);
    }
}

Test(cuda_attention, places_of_f32)
{
    set_option("dynamic", "never");
    check_places("cc=9.0,rough=on", KILN_F32, false, 0, 1);
    check_places("cc=7.5", KILN_F32, false, 0, 4);
}

Test(cuda_attention, places_of_f32_as_tf32)
{
    set_option("dynamic", "never");
    check_places("cc=9.0,async=early", KILN_F32, true, 0, 1);
}

Test(cuda_attention, places_of_half_precision)
{
    set_option("dynamic", "never");
    check_places("cc=9.0,rough=on", KILN_BF16, false, 0, 1);
    check_places("cc=8.0", KILN_F16, false, 0, 1);
    check_places("cc=7.5", KILN_F16, false, 1, 3);
}

/* Keys that are turned are stored as narrow as they are, so that tensor cores multiply them: no score, and nothing in f32 but the table of angles, is moved. */
Test(cuda_attention, turned_keys_are_stored_as_narrow_as_they_are)
{
    set_option("dynamic", "never");
    Case c = {KILN_BF16, 1, 4, 2, 256, 256, 64, 64, .causal = true, .turn = HALVES, .odd_in = -1};
    const int64_t query = 4 * 256 * 64, key = 2 * 256 * 64, angles = 256 * 32;
    fill(&c);
    start("cc=9.0");
    kiln_tensor *y = attention(&c);
    kiln_reset_stats();
    kiln_stats before = stats_now();
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    int64_t moved = after.bytes_moved - before.bytes_moved, most = 2 * (2 * query + 4 * key) + 4 * 8 * angles;
    cr_assert(moved <= most, "%d bytes, not %d", (int)moved, (int)most);
}

/* Lengths that are arguments: one program takes them all. */
static void grow_places(kiln_dtype dtype, Turn turn, Mask added)
{
    kiln_stats before, after;
    for (int i = 0; i < 5; i++) {
        Case c = {dtype, 1, 4, 2, 40 + 13 * i, 40 + 13 * i, 32, 32, .causal = true, .turn = turn, .mask = added, .odd_in = -1};
        kiln_get_stats(&before);
        check(&c, "cc=9.0,rough=on");
        kiln_get_stats(&after);
        cr_assert(i < 3 || after.compiles == before.compiles, "compiled for %d places", (int)c.keys);
    }
}

Test(cuda_attention, places_of_any_length)
{
    for (int turn = 0; turn < TURNS; turn++) {
        grow_places(KILN_F32, (Turn)turn, turn % 2 ? NO_MASK : SLOPES);
        grow_places(KILN_BF16, (Turn)turn, turn % 3 ? NO_MASK : SLOPES);
    }
}

/* Heads whose number of elements is an argument, too, have scores in memory. */
Test(cuda_attention, places_of_any_size)
{
    set_option("dynamic", "always");
    state = 9;
    for (size_t i = 0; i < sizeof of_places / sizeof *of_places; i += 2) {
        Case c = of_places[i];
        fill(&c);
        reference(&c, want);
        start("cc=9.0,rough=on");
        compute(&c, got);
        compare(&c, "any size");
    }
}

/* Elements that tf32 has not are rounded, each by 2^-11 at most: scores here hardly, values do. Without the option they are not. */
Test(cuda_attention, tf32_rounds)
{
    Case c = {KILN_F32, 1, 2, 2, 70, 130, 64, 64, .odd_in = -1, .scale = 0x1p-10};
    double off[2] = {0};
    fill(&c);
    reference(&c, want);
    for (int tf32 = 0; tf32 < 2; tf32++) {
        start("cc=9.0");
        set_option("tf32", tf32 ? "1" : "0");
        cr_assert_eq(launches(&c, got), 1);
        for (int i = 0; i < 2 * 70 * 64; i++)
            off[tf32] = fmax(off[tf32], fabs((double)got[i] - (double)want[i]));
    }
    cr_assert(off[0] < 0x1p-19 && off[1] > 0x1p-17 && off[1] < 0x1p-9, "%g, %g", off[0], off[1]);
}

/* Which element is odd, where it is seen and where it is not, and what becomes of the rows that see it. */
Test(cuda_attention, infinities_and_nan_are_the_interpreters)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 216; i++) { /* f16, f32, and that as tf32 */
        int j = i / 2 % 36;
        Case c = {KILN_F16, 1, 2, 1, 20, 80, 32, 32, .odd = odd[j % 3], .odd_in = j / 3 % 3, .mask = j < 27 ? (Mask)(j / 9) : NO_MASK};
        c.dtype = i < 72 ? KILN_F16 : KILN_F32;
        c.tf32 = i >= 144;
        c.causal = j < 9;
        c.by_hand = j >= 27;
        if (i % 2) /* keys in parts, of few queries and of many */
            c.queries = i % 4 == 1 ? 8 : 20, c.keys = 600;
        state = (uint64_t)i;
        fill(&c);
        reference(&c, want);
        start("cc=9.0");
        set_option("tf32", c.tf32 ? "1" : "0");
        compute(&c, got);
        compare(&c, "odd");
    }
}

/* What is moved and held is queries, keys, values and the result. */
Test(cuda_attention, no_scores_in_memory)
{
    static const kiln_dtype dtypes[] = {KILN_BF16, KILN_F32};
    for (int i = 0; i < 2; i++) {
        Case c = {dtypes[i], 1, 2, 2, 256, 512, 16, 16, .causal = true, .from_end = true, .odd_in = -1};
        const int64_t bytes = dtypes[i] == KILN_F32 ? 4 : 2, moved = bytes * 2 * (2 * 256 + 2 * 512) * 16, scores = 4 * 2 * 256 * 512;
        fill(&c);
        start("cc=9.0");
        kiln_tensor *y = attention(&c);
        kiln_reset_stats();
        kiln_stats before = stats_now();
        cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
        kiln_stats after = stats_now();
        cr_assert_eq(after.kernels, 1);
        cr_assert_eq(after.bytes_moved, moved, "%d bytes, not %d", (int)after.bytes_moved, (int)moved);
        cr_assert(after.peak_bytes - before.live_bytes < scores / 8, "%d bytes", (int)(after.peak_bytes - before.live_bytes));
    }
}

/* Rows that see nothing: 0 of kiln_attention, NaN of softmax. */
Test(cuda_attention, a_row_that_sees_nothing)
{
    Case c = {KILN_BF16, 1, 1, 1, 20, 80, 32, 32, .mask = ROWS_UNSEEN, .odd_in = -1};
    fill(&c);
    start("cc=9.0");
    compute(&c, got);
    for (int64_t i = 0; i < 20 * 32; i++)
        cr_assert(i / 32 % 3 == 1 ? got[i] == 0 : isfinite(got[i]) && got[i] != 0);
}

/* Keys that no query of a block sees are not read: neither is what is infinite there. */
Test(cuda_attention, keys_that_nobody_sees_are_not_read)
{
    for (int i = 0; i < 4; i++) {
        Case c = {KILN_F16, 2, 4, 2, 50, 300, 32, 32, .odd_in = -1, .causal = i != 1, .from_end = i == 2, .lengths = i == 1 || i == 2};
        fill(&c);
        reference(&c, want);
        for (int64_t head = 0; head < 4; head++) /* the lengths are 0 and 3 */
            for (int64_t j = i == 3 ? 0 : 64; j < (i == 3 ? 64 : 300); j++)
                data[2][(head * 300 + j) * 32] = NAN;
        start("cc=9.0");
        compute(&c, got);
        if (i < 3)
            compare(&c, "nobody");
        else
            cr_assert(isnan(got[0]));
    }
}

/* Numbers of queries, keys and heads that are arguments; other batches: each row has the same bits. */
Test(cuda_attention, a_row_has_the_same_bits_in_every_program)
{
    Case c = {KILN_F16, 2, 2, 2, 70, 130, 64, 64, .causal = true, .odd_in = -1};
    int64_t n = 2 * 70 * 64;
    fill(&c);
    start("cc=9.0,rough=on");
    set_option("dynamic", "never");
    compute(&c, got);
    set_option("dynamic", "auto");
    for (int i = 0; i < 8; i++) {
        Case other = c;
        other.batch = 1 + i % 3;
        if (i < 6)
            other.queries -= i, other.keys -= i;
        cr_assert_eq(launches(&other, again), 1);
        cr_assert(i < 6 || memcmp(again, got, (size_t)(other.batch > 1 ? 2 * n : n) * sizeof *got) == 0, "%d", i);
    }
}

/* Groups of heads, whose queries are rows of one product: as many as an argument, times the group. */
Test(cuda_attention, groups_of_any_length)
{
    for (int i = 0; i < 6; i++) {
        Case c = {KILN_BF16, 1, 4, 2, 20 + 17 * i, 30 + 9 * i, 32, 32, .causal = true, .from_end = true, .odd_in = -1};
        check(&c, "cc=9.0,rough=on");
    }
}

#define OLD "cc=7.5" /* tensor cores that load nothing by themselves, and of f16 alone */

/* Of a process: a driver stays what it was first. */
static const char *any_device(void)
{
    static const char *const all[] = {OLD, "cc=8.0,rough=on", "cc=9.0", "cc=9.0,async=early"};
    return all[pick(4)];
}

/* Few queries: keys are cut into parts. */
static Case few(int64_t d, int64_t e)
{
    static const int64_t lengths[] = {1, 63, 64, 255, 256, 257, 512, 513, 700, 1024, 1500, 2000};
    static const int64_t queries[] = {1, 1, 2, 3};
    Case c = {.odd_in = -1, .dtype = KILN_BF16, .batch = 1 + pick(2), .shared = 1 + pick(2), .d = d, .e = e};
    c.dtype = pick(3) ? pick(2) ? KILN_BF16 : KILN_F32 : KILN_F16;
    c.heads = c.shared * (1 + pick(5));
    c.queries = queries[pick(4)], c.keys = lengths[pick(12)];
    c.by_hand = c.heads == c.shared && pick(2) == 0;
    c.causal = pick(2), c.from_end = c.causal && pick(4), c.lengths = pick(3) == 0;
    c.permuted = pick(3) == 0, c.shifted = pick(4) == 0;
    c.mask = (Mask)pick(MASKS);
    c.softcap = pick(4) ? 0 : 2;
    while (c.batch * c.shared * c.keys * (c.d + c.e) > MOST)
        c.keys /= 2;
    return c;
}

Test(cuda_attention, few_queries_take_keys_in_parts)
{
    state = slice_seed() * 19 + 1;
    set_option("dynamic", "never");
    const char *device = any_device();
    for (int i = 0; i < 16; i++) {
        int64_t d = 16 * (1 + pick(8)), e = 16 * (1 + pick(8));
        Case c = few(d, e);
        check(&c, device);
    }
}

/* More queries: blocks of 128 of them have parts of the keys. */
Test(cuda_attention, blocks_of_queries_take_keys_in_parts)
{
    static const int64_t queries[] = {17, 33, 64, 100, 128, 130}, keys[] = {513, 576, 800, 1024, 1100, 1537};
    state = slice_seed() * 23 + 1;
    set_option("dynamic", "never");
    const char *device = any_device();
    for (int i = 0; i < 8; i++) {
        Case c = few(16 * (1 + pick(4)), 16 * (1 + pick(4)));
        bool old = strcmp(device, OLD) == 0;
        c.dtype = pick(3) == 0 ? KILN_F32 : old ? KILN_F16 : c.dtype;
        c.batch = 1, c.heads = c.shared, c.queries = queries[pick(6)], c.keys = keys[pick(6)];
        check(&c, device);
    }
}

/* A cache that grows: keys are an argument. The parts are those of its length, not of the program. */
static void grow(kiln_dtype dtype, int64_t queries)
{
    for (int i = 0; i < 6; i++) {
        Case c = {dtype, 1, 4, 2, queries, 400 + 173 * i, 32, 32, .causal = true, .from_end = true, .odd_in = -1};
        int64_t n = c.heads * c.queries * c.e;
        check(&c, "cc=9.0,rough=on");
        set_option("dynamic", "never");
        compute(&c, again);
        set_option("dynamic", "auto");
        cr_assert(memcmp(again, got, (size_t)n * sizeof *got) == 0, "%d keys", (int)c.keys);
    }
}

Test(cuda_attention, a_growing_cache) { grow(KILN_BF16, 1); }

Test(cuda_attention, a_growing_cache_of_many_queries) { grow(KILN_F16, 20); }

Test(cuda_attention, a_growing_cache_of_f32) { grow(KILN_F32, 10); }

Test(cuda_attention, a_growing_cache_of_f32_and_few_queries)
{
    for (int queries = 1; queries <= 8; queries *= 2)
        grow(KILN_F32, queries);
}

/* Up to 16 rows of queries, a group's together, and more: two programs. */
Test(cuda_attention, few_queries_become_many)
{
    for (int i = 0; i < 12; i++) {
        Case c = {i % 2 ? KILN_F32 : KILN_F16, 1, 4, 2, 6 + i / 2, 600, 32, 32, .odd_in = -1};
        check(&c, "cc=8.0,rough=on");
    }
}

static Case invent(int64_t d, int64_t e)
{
    static const int64_t lengths[] = {1, 2, 7, 31, 63, 64, 65, 100, 127, 128, 129, 200};
    Case c = {.odd_in = -1, .dtype = pick(2) ? KILN_F16 : KILN_BF16, .batch = 1 + pick(3), .shared = 1 + pick(2), .d = d, .e = e};
    c.heads = c.shared * (1 + pick(2));
    c.queries = lengths[pick(12)], c.keys = lengths[pick(12)];
    c.by_hand = c.heads == c.shared && pick(4) == 0;
    c.causal = pick(2), c.from_end = pick(2), c.lengths = pick(4) == 0;
    c.permuted = pick(3) == 0, c.shifted = pick(4) == 0;
    c.mask = (Mask)pick(SLOPES + 1);
    c.turn = (Turn)(pick(2) * pick(TURNS));
    c.softcap = pick(4) ? 0 : 2;
    return c;
}

Test(cuda_attention, random_cases)
{
    state = slice_seed() * 13 + 1;
    set_option("dynamic", "never");
    const char *device = any_device();
    for (int i = 0; i < 20; i++) {
        int64_t d = 16 * (1 + pick(8)), e = 16 * (1 + pick(8));
        Case c = invent(d, e);
        c.dtype = strcmp(device, OLD) == 0 ? KILN_F16 : c.dtype;
        check(&c, device);
    }
}

/* Sizes become arguments as they change. */
Test(cuda_attention, random_sizes)
{
    state = slice_seed() * 17 + 1;
    for (int i = 0; i < 20; i++) {
        Case c = invent(64, 32);
        c.dtype = KILN_BF16;
        c.mask = c.mask == SLOPES ? SLOPES : c.mask % 2 ? BOOLS : NO_MASK;
        c.by_hand = false;
        c.softcap = 0;
        c.permuted = c.shifted = false;
        check(&c, "cc=9.0,rough=on");
    }
}

/* What has other kernels, and says why. */
static int64_t kernels_of(kiln_tensor *y)
{
    kiln_stats before = stats_now();
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    return after.kernels - before.kernels;
}

Test(cuda_attention, what_does_not_fit_has_other_kernels)
{
    start("cc=9.0");
    set_option("dynamic", "never");
    Case c = {KILN_BF16, 1, 2, 2, 20, 30, 32, 32, .odd_in = -1};
    fill(&c);
    kiln_tensor *q = input(&c, 0), *k = input(&c, 1), *v = input(&c, 2), *y;
    cr_assert_eq(kernels_of(kiln_attention(q, k, v, NULL)), 1);
    cr_assert_gt(kernels_of(kiln_attention(q, k, v, &(kiln_attention_options){.dropout = 0.5})), 1);
    c.dtype = KILN_F64;
    cr_assert_gt(kernels_of(attention(&c)), 1);
    c.dtype = KILN_F32;
    cr_assert_eq(kernels_of(attention(&c)), 1);
    c.queries = 8;
    cr_assert_eq(kernels_of(attention(&c)), 1);
    c.queries = 20;
    c.dtype = KILN_BF16, c.d = 24;
    cr_assert_gt(kernels_of(attention(&c)), 1);
    c.d = 32;
    set_option("math", "strict");
    cr_assert_gt(kernels_of(attention(&c)), 1);
    set_option("math", "fast");
    set_option("bands", "off");
    cr_assert_gt(kernels_of(attention(&c)), 1);
    set_option("bands", "auto");
    set_option("fuse", "0");
    y = attention(&c);
    cr_assert_gt(kernels_of(y), 1);
    set_option("fuse", "1");
    /* weights that are an output too */
    kiln_tensor *w = kiln_softmax(kiln_matmul(q, kiln_transpose(k)), -1), *both[2] = {w, kiln_matmul(w, v)};
    cr_assert(kiln_eval_many(both, 2) == KILN_OK, "%s", kiln_error_message());
    /* gradients want them */
    q = kiln_param(q);
    kiln_tensor *g, *loss = kiln_sum(kiln_cast(kiln_attention(q, k, v, NULL), KILN_F32));
    cr_assert(kiln_grad(loss, &q, 1, &g) == KILN_OK && kiln_eval(g) == KILN_OK, "%s", kiln_error_message());
}

/* As many queries as keys, and the sums or the greatest of rows where those of columns are needed: that is no softmax of rows. */
Test(cuda_attention, sums_of_other_rows_are_no_attention)
{
    enum { N = 64, D = 32, HEADS = 6 };
    static float of_device[HEADS * N * D], expected[HEADS * N * D];
    Case c = {KILN_F32, 2, 3, 3, N, N, D, D, .odd_in = -1};
    start("cc=9.0");
    fill(&c);
    for (int wrong = 0; wrong < 4; wrong++)
        for (int interpreted = 0; interpreted < 2; interpreted++) {
            set_option("mode", interpreted ? "interp" : "jit");
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *q = input(&c, 0), *k = input(&c, 1), *v = input(&c, 2), *s = kiln_matmul(q, kiln_transpose(k));
            kiln_tensor *most = kiln_max_axes(s, KILN_AXES(-1), true), *e, *sum;
            e = kiln_exp(kiln_sub(s, wrong & 1 ? kiln_reshape(most, KILN_SHAPE(2, 3, 1, N)) : most));
            sum = kiln_sum_axes(e, KILN_AXES(-1), true);
            kiln_tensor *y = kiln_matmul(kiln_div(e, wrong & 2 ? kiln_reshape(sum, KILN_SHAPE(2, 3, 1, N)) : sum), v);
            cr_assert(kiln_read(y, KILN_F32, interpreted ? expected : of_device, sizeof expected) == KILN_OK, "%s", kiln_error_message());
            kiln_scope_end(scope);
            for (int i = 0; i < HEADS * N * D && interpreted; i++)
                cr_assert_float_eq(of_device[i], expected[i], 1e-4 * (1 + fabsf(expected[i])), "%d, element %d: %g, not %g", wrong, i,
                                   (double)of_device[i], (double)expected[i]);
        }
    set_option("mode", "jit");
}

/* What comes from behind is a number, so that one of the products that scores are made of is the same for all keys of a row: it is none of that row's. */
Test(cuda_attention, gradients_of_a_sum)
{
    enum { N = 64, D = 32, HEADS = 2 };
    static float of_device[3][HEADS * N * D], expected[HEADS * N * D];
    Case c = {KILN_BF16, 1, HEADS, HEADS, N, N, D, D, .by_hand = true, .odd_in = -1};
    start("cc=9.0");
    set_option("dynamic", "never");
    fill(&c);
    for (int interpreted = 0; interpreted < 2; interpreted++) {
        set_option("mode", interpreted ? "interp" : "jit");
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[3] = {input(&c, 0), input(&c, 1), input(&c, 2)}, *out[4];
        for (int i = 0; i < 3; i++)
            kiln_param(in[i]);
        out[3] = kiln_matmul(kiln_softmax(kiln_mul(kiln_matmul(in[0], kiln_transpose(in[1])), 0.25), -1), in[2]);
        cr_assert(kiln_grad(kiln_sum(kiln_cast(out[3], KILN_F32)), in, 3, out) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_eval_many(out, 4) == KILN_OK, "%s", kiln_error_message());
        for (int g = 0; g < 3; g++) {
            float *to = interpreted ? expected : of_device[g];
            cr_assert(kiln_read(kiln_cast(out[g], KILN_F32), KILN_F32, to, sizeof expected) == KILN_OK, "%s", kiln_error_message());
            for (int i = 0; i < HEADS * N * D && interpreted; i++)
                cr_assert_float_eq(of_device[g][i], expected[i], 0.02 * (1 + fabsf(expected[i])), "gradient %d, element %d: %g, not %g", g,
                                   i, (double)of_device[g][i], (double)expected[i]);
        }
        kiln_scope_end(scope);
    }
    set_option("mode", "jit");
}

/* Where scores are stored, for a gradient, they are as narrow as their product is: f32 is made of them by those who read them. */
Test(cuda_attention, scores_by_hand_are_stored_as_narrow_as_they_are)
{
    start("cc=9.0");
    set_option("dynamic", "never");
    Case c = {KILN_BF16, 1, 2, 2, 64, 64, 32, 32, .by_hand = true, .odd_in = -1};
    const int64_t scores = 2 * 64 * 64;
    fill(&c);
    kiln_tensor *in[3] = {input(&c, 0), input(&c, 1), input(&c, 2)}, *out[4];
    for (int i = 0; i < 3; i++)
        kiln_param(in[i]);
    out[3] = kiln_matmul(kiln_softmax(kiln_mul(kiln_matmul(in[0], kiln_transpose(in[1])), 0.25), -1), in[2]);
    cr_assert(kiln_grad(kiln_sum(kiln_cast(out[3], KILN_F32)), in, 3, out) == KILN_OK, "%s", kiln_error_message());
    kiln_reset_stats();
    kiln_stats before = stats_now();
    cr_assert(kiln_eval_many(out, 4) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    /* eight bytes of each score more where two of those kept were f32, and twice the peak */
    int64_t bytes = after.bytes_moved - before.bytes_moved, peak = after.peak_bytes - before.live_bytes;
    cr_assert(bytes <= 30 * scores && peak <= 8 * scores, "%d bytes moved, %d at once, of %d scores", (int)bytes, (int)peak, (int)scores);
}

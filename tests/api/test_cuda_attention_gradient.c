/*
 * Attention with its gradient on a CUDA device without scores in memory (jit/fuse/chain.c), in fast mode: next to the interpreter for many
 * shapes, masks and spellings; rows that see nothing, NaN and infinities; what is moved and held; sizes that change; the same bits each
 * time; and which have other kernels.
 */
#include "attention_data.h"
#include "on_cuda.h"

#include "tests/support/slice.h"

#include <stdio.h>

enum { MOST = 1 << 18 };

typedef enum Spelling { ATTENTION, SOFTMAX, DIVIDED, SPELLINGS } Spelling;
typedef enum Mask { NO_MASK, BOOLS, ADDED, ROWS_UNSEEN, MASKS, SLOPES = MASKS } Mask;

typedef struct Case {
    kiln_dtype dtype;
    int64_t batch, heads, shared, queries, keys, d;
    bool causal, from_end, lengths, permuted;
    Spelling spelling;
    Mask mask;
    Turn turn;
    double softcap;
    float odd;  /* an element of this value ... */
    int odd_in; /* ... in q, k, v or what comes from behind; none: -1 */
} Case;

enum { Q, K, V, DY, INPUTS };

static float data[INPUTS][MOST], mask[MOST], want[INPUTS][MOST], got[INPUTS][MOST], again[INPUTS][MOST];

/* What KILN_LOG=fusion says: kernels with a dot in them beside others, plain products, and why scores are stored. */
static struct {
    int chains, products;
    char why[256];
} told;

static void listen(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level;
    if (strcmp(topic, "fusion") != 0)
        return;
    bool kernel = strncmp(line, "kernel ", 7) == 0;
    told.chains += kernel && strstr(line, " attention");
    told.products += kernel && strstr(line, " matmul");
    if (strncmp(line, "scores in memory", 16) == 0 || (!told.why[0] && strncmp(line, "not one kernel", 14) == 0))
        snprintf(told.why, sizeof told.why, "%s", line);
}

static int64_t elements(const Case *c, int which)
{
    bool of_keys = which == K || which == V;
    return c->batch * (of_keys ? c->shared : c->heads) * (of_keys ? c->keys : c->queries) * c->d;
}

static kiln_tensor *input(const Case *c, int which)
{
    bool of_keys = which == K || which == V;
    int64_t heads = of_keys ? c->shared : c->heads, rows = of_keys ? c->keys : c->queries;
    kiln_shape shape = c->permuted ? KILN_SHAPE(c->batch, rows, heads, c->d) : KILN_SHAPE(c->batch, heads, rows, c->d);
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, shape, data[which]), c->dtype);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

static kiln_tensor *attention(const Case *c, kiln_tensor *q, kiln_tensor *k, kiln_tensor *v)
{
    static const int64_t lengths[] = {0, 3, 70, 1000};
    kiln_tensor *added = kiln_from(KILN_F32, KILN_SHAPE(c->queries, c->keys), mask);
    q = turned(q, c->turn), k = turned(k, c->turn);
    if (c->spelling == SOFTMAX)
        return kiln_matmul(kiln_softmax(kiln_mul(kiln_matmul(q, kiln_transpose(k)), 0.25), -1), v);
    if (c->spelling == DIVIDED) {
        kiln_tensor *s = kiln_add(kiln_mul(kiln_matmul(q, kiln_transpose(k)), 0.25), kiln_cast(added, c->dtype));
        kiln_tensor *e = kiln_exp(kiln_sub(s, kiln_stop_gradient(kiln_max_axes(s, KILN_AXES(-1), true))));
        return kiln_div(kiln_matmul(e, v), kiln_sum_axes(e, KILN_AXES(-1), true));
    }
    kiln_attention_options o = {.causal = c->causal, .from_end = c->from_end, .softcap = c->softcap};
    if (c->lengths)
        o.lengths = kiln_from(KILN_I64, KILN_SHAPE(c->batch), lengths);
    o.mask = c->mask == SLOPES  ? slopes_of_places(c->heads, c->queries, c->keys)
             : c->mask == BOOLS ? kiln_gt(added, 0)
             : c->mask          ? kiln_cast(added, c->dtype)
                                : NULL;
    return kiln_attention(q, k, v, &o);
}

static void fill(const Case *c)
{
    for (int i = 0; i < INPUTS; i++)
        fill_factor(data[i], MOST);
    fill_mask(mask, MOST, c->keys, c->mask == ROWS_UNSEEN);
    if (c->odd_in >= 0)
        data[c->odd_in][c->d * 5 + 3] = c->odd;
}

/* The result, and what the three inputs get. */
static void record(const Case *c, kiln_tensor *out[INPUTS])
{
    kiln_tensor *in[INPUTS], *of[3];
    for (int i = 0; i < INPUTS; i++)
        in[i] = input(c, i);
    for (int i = 0; i < 3; i++) {
        kiln_param(in[i]);
        of[i] = c->permuted ? kiln_permute(in[i], KILN_AXES(0, 2, 1, 3)) : in[i];
    }
    kiln_tensor *y = attention(c, of[Q], of[K], of[V]), *dy = c->permuted ? kiln_permute(in[DY], KILN_AXES(0, 2, 1, 3)) : in[DY];
    cr_assert(kiln_vjp(1, &y, &dy, 3, in, 0, out) == KILN_OK, "%s", kiln_error_message());
    out[DY] = y;
}

static void compute(const Case *c, float to[INPUTS][MOST])
{
    kiln_tensor *out[INPUTS], *wide[INPUTS];
    kiln_scope *scope = kiln_scope_begin();
    record(c, out);
    told.chains = told.products = 0;
    told.why[0] = 0;
    cr_assert(kiln_eval_many(out, INPUTS) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < INPUTS; i++) {
        wide[i] = kiln_cast(out[i], KILN_F32);
        cr_assert(elements(c, i) <= MOST);
        cr_assert(kiln_read(wide[i], KILN_F32, to[i], (size_t)elements(c, i) * sizeof **to) == KILN_OK, "%s", kiln_error_message());
    }
    kiln_scope_end(scope);
}

static void start(const char *settings)
{
    start_exact(settings);
    set_option("math", "fast");
    set_option("cache", "off");
    set_option("bands", "always"); /* few scores of f16 and bf16, too */
    set_option("log", "fusion");
    kiln_set_log_sink(listen, NULL);
}

static void reference(const Case *c)
{
    set_option("device", "cpu");
    set_option("mode", "interp");
    compute(c, want);
    set_option("mode", "jit");
}

/* Of the greatest element: of f32 what sums and exponentials round, else roundings of the result and of weights, by hand of scores too. */
static double allowed(const Case *c, double greatest)
{
    double unit = c->dtype == KILN_BF16 ? 0x1p-8 : c->dtype == KILN_F16 ? 0x1p-11 : 0x1p-19;
    return unit * greatest * (c->dtype == KILN_F32 ? 1 : c->spelling ? 8 : 4);
}

static void compare(const Case *c, const char *what)
{
    static const char *const name[] = {"dq", "dk", "dv", "y"};
    for (int i = 0; i < INPUTS; i++) {
        double greatest = 0;
        for (int64_t j = 0; j < elements(c, i); j++)
            greatest = isfinite(want[i][j]) && fabs((double)want[i][j]) > greatest ? fabs((double)want[i][j]) : greatest;
        for (int64_t j = 0; j < elements(c, i); j++) {
            bool same = isfinite(want[i][j]) ? fabs((double)got[i][j] - (double)want[i][j]) <= allowed(c, greatest) : !isfinite(got[i][j]);
            cr_assert(same,
                      "%s: %s b%d h%d/%d %d x %d of %d, causal %d from end %d lengths %d permuted %d spelling %d mask %d turn %d softcap "
                      "%g: %s, row %d column %d: %g, not %g",
                      what, kiln_dtype_name(c->dtype), (int)c->batch, (int)c->heads, (int)c->shared, (int)c->queries, (int)c->keys,
                      (int)c->d, c->causal, c->from_end, c->lengths, c->permuted, c->spelling, c->mask, c->turn, c->softcap, name[i],
                      (int)(j / c->d), (int)(j % c->d), (double)got[i][j], (double)want[i][j]);
        }
    }
}

/* Most, total, result, and three gradients; by hand the sum of weights times what comes from behind, too. */
static void expect_chains(const Case *c, const char *what)
{
    cr_assert(told.chains >= 6 && told.products == 0 && !told.why[0],
              "%s: %d x %d of %d heads of %d: %d kernels with dots beside others, %d products: %s", what, (int)c->queries, (int)c->keys,
              (int)c->heads, (int)c->shared, told.chains, told.products, told.why);
}

static void check(const Case *c, const char *device, bool chains)
{
    fill(c);
    reference(c);
    start(device);
    compute(c, got);
    compare(c, device);
    if (chains)
        expect_chains(c, device);
}

static const Case cases[] = {
    {KILN_F32, 1, 1, 1, 64, 64, 32, .odd_in = -1},
    {KILN_F32, 2, 3, 3, 17, 7, 64, .causal = true, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 130, 200, 64, .odd_in = -1},
    {KILN_F32, 1, 2, 2, 200, 130, 128, .causal = true, .odd_in = -1},
    {KILN_F32, 1, 2, 2, 130, 300, 16, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 4, 4, 2, 40, 100, 48, .lengths = true, .odd_in = -1},
    {KILN_F32, 2, 6, 2, 33, 65, 80, .causal = true, .lengths = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 2, 4, 1, 50, 70, 32, .causal = true, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 70, 130, 64, .mask = BOOLS, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 70, 130, 64, .mask = ADDED, .softcap = 3, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 70, 65, 64, .mask = ROWS_UNSEEN, .odd_in = -1},
    {KILN_F32, 2, 3, 3, 70, 65, 64, .permuted = true, .causal = true, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 129, 65, 48, .spelling = SOFTMAX, .odd_in = -1},
    {KILN_F32, 2, 2, 2, 70, 130, 32, .spelling = DIVIDED, .odd_in = -1},
    {KILN_BF16, 2, 2, 2, 70, 130, 64, .causal = true, .odd_in = -1},
    {KILN_F16, 2, 4, 2, 70, 65, 32, .mask = ADDED, .odd_in = -1},
    {KILN_F16, 1, 2, 2, 129, 65, 128, .spelling = SOFTMAX, .odd_in = -1},
    {KILN_BF16, 2, 6, 2, 33, 65, 80, .causal = true, .lengths = true, .from_end = true, .odd_in = -1},
    {KILN_BF16, 2, 2, 2, 70, 65, 64, .mask = ROWS_UNSEEN, .odd_in = -1},
    {KILN_BF16, 1, 2, 2, 40, 100, 128, .softcap = 3, .mask = BOOLS, .odd_in = -1},
    {KILN_F16, 2, 3, 3, 70, 65, 48, .permuted = true, .causal = true, .odd_in = -1},
    {KILN_F16, 2, 2, 2, 70, 130, 32, .spelling = DIVIDED, .odd_in = -1},
};

Test(cuda_attention_gradient, equals_the_interpreter)
{
    state = 5;
    set_option("dynamic", "never");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i], "cc=9.0,rough=on", true);
}

/* Tensor cores multiply f16 and bf16 in these kernels, so scores are not stored however few they are. */
Test(cuda_attention_gradient, few_scores_of_half_precision)
{
    set_option("dynamic", "never");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].dtype == KILN_F32)
            continue;
        fill(&cases[i]);
        reference(&cases[i]);
        start("cc=8.0");
        set_option("bands", "auto");
        compute(&cases[i], got);
        compare(&cases[i], "few");
        expect_chains(&cases[i], "few");
    }
}

/* Rotary embedding and ALiBi: grouped queries, behind a causal mask and not. */
static const Case of_places[] = {
    {KILN_F32, 1, 2, 2, 70, 70, 64, .turn = HALVES, .causal = true, .odd_in = -1},
    {KILN_F32, 1, 6, 2, 30, 130, 32, .turn = NEIGHBOURS, .odd_in = -1},
    {KILN_F32, 1, 4, 1, 33, 65, 128, .turn = SPELLED, .causal = true, .from_end = true, .odd_in = -1},
    {KILN_F32, 1, 4, 2, 70, 130, 64, .mask = SLOPES, .odd_in = -1},
    {KILN_F32, 1, 2, 2, 130, 100, 80, .mask = SLOPES, .causal = true, .odd_in = -1},
    {KILN_F32, 1, 4, 2, 40, 40, 48, .turn = HALVES, .mask = SLOPES, .causal = true, .softcap = 3, .odd_in = -1},
};

static void check_places(const char *device, kiln_dtype dtype, size_t first, size_t step, bool chains)
{
    state = 8;
    for (size_t i = first; i < sizeof of_places / sizeof *of_places; i += step) {
        Case c = of_places[i];
        c.dtype = dtype;
        check(&c, device, chains);
    }
}

Test(cuda_attention_gradient, places)
{
    set_option("dynamic", "never");
    check_places("cc=9.0,rough=on", KILN_F32, 0, 1, true);
    check_places("cc=9.0,async=early", KILN_BF16, 0, 2, true);
    check_places("cc=7.5", KILN_F16, 1, 2, true);
}

/* With sizes as arguments scores are stored. */
Test(cuda_attention_gradient, places_of_any_size)
{
    set_option("dynamic", "always");
    check_places("cc=9.0,rough=on", KILN_F32, 0, 2, false);
    check_places("cc=8.0", KILN_BF16, 1, 2, false);
}

/* A device with little shared memory takes fewer keys at once. */
Test(cuda_attention_gradient, of_small_devices)
{
    set_option("dynamic", "never");
    for (int i = 0; i < 2; i++)
        check(&(Case){KILN_BF16, 1, 2, 2, 130, 200, i ? 64 : 128, .causal = true, .odd_in = -1}, "cc=8.6", true);
}

/* Of rows that it has no room for few scores are stored. */
Test(cuda_attention_gradient, long_rows_of_small_devices)
{
    Case c = {KILN_F16, 1, 2, 2, 20, 30, 128, .spelling = SOFTMAX, .odd_in = -1};
    set_option("dynamic", "never");
    fill(&c);
    reference(&c);
    start("cc=7.5");
    set_option("bands", "auto");
    compute(&c, got);
    compare(&c, "long rows");
    cr_assert(told.chains == 0 && strstr(told.why, "tensor cores multiply"), "%d kernels, %s", told.chains, told.why);
}

/* Nothing comes by cp.async. */
Test(cuda_attention_gradient, without_copies)
{
    state = 6;
    set_option("dynamic", "never");
    for (size_t i = 1; i < sizeof cases / sizeof *cases; i += 3)
        check(&cases[i], "cc=7.5", true);
}

/* Where nothing is there, nothing is made of it. */
Test(cuda_attention_gradient, of_nothing)
{
    for (int i = 0; i < 3; i++) {
        Case c = {KILN_F32, i != 0, 3, 3, i == 1 ? 0 : 70, i == 2 ? 0 : 65, 64, .odd_in = -1};
        check(&c, "cc=9.0", false);
    }
}

/* An element that is odd is so in all that it is seen in, and in nothing else. */
Test(cuda_attention_gradient, infinities_and_nan)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    set_option("dynamic", "never");
    for (int i = 0; i < 24; i++) {
        Case c = {KILN_F32, 1, 2, 1, 20, 80, 32, .odd = odd[i % 3], .odd_in = i / 3 % 4, .causal = i >= 12};
        state = (uint64_t)i;
        check(&c, "cc=9.0", i % 12 == 0); /* those that follow are the same program */
        c.dtype = KILN_BF16;
        check(&c, "cc=9.0", i % 12 == 0);
    }
}

/* What is held is far less than scores are, what is moved less than twice all of them: forward and backward wrote and read them 7 times. */
Test(cuda_attention_gradient, no_scores_in_memory)
{
    for (int i = 0; i < SPELLINGS; i++) {
        Case c = {KILN_F32, 1, 2, 2, 512, 512, 16, .odd_in = -1, .spelling = (Spelling)i, .causal = i == ATTENTION};
        const int64_t scores = 4 * 2 * 512 * 512;
        kiln_tensor *out[INPUTS];
        fill(&c);
        start("cc=9.0");
        record(&c, out);
        kiln_reset_stats();
        kiln_stats before = stats_now();
        cr_assert(kiln_eval_many(out, INPUTS) == KILN_OK, "%s", kiln_error_message());
        kiln_stats after = stats_now();
        int64_t held = after.peak_bytes - before.live_bytes - (i == DIVIDED ? scores / 2 : 0),
                moved = after.bytes_moved - before.bytes_moved;
        cr_assert(held < scores / 4 && moved < scores * (i == DIVIDED ? 5 : 2), "%d: %d bytes held, %d moved, of %d", i, (int)held,
                  (int)moved, (int)scores);
    }
}

/* Sizes that change are arguments. Of groups of heads, whose rows are merged and split again, they are not seen to be the same: scores are
 * stored. */
static void grow(const Case *first, int step)
{
    kiln_stats before, after;
    for (int i = 0; i < 8; i++) {
        Case c = *first;
        c.queries += step * i, c.keys += 2 * step * i, c.batch = 1 + i % 3;
        fill(&c);
        reference(&c);
        start("cc=9.0,rough=on");
        kiln_get_stats(&before);
        compute(&c, got);
        kiln_get_stats(&after);
        compare(&c, "growing");
        if (after.compiles != before.compiles && c.heads == c.shared)
            expect_chains(&c, "growing");
        cr_assert(i < 5 || after.compiles == before.compiles, "compiled for %d x %d", (int)c.queries, (int)c.keys);
    }
}

Test(cuda_attention_gradient, of_any_length)
{
    grow(&(Case){KILN_F32, 1, 2, 2, 40, 30, 32, .causal = true, .from_end = true, .odd_in = -1}, 13);
}

Test(cuda_attention_gradient, groups_of_any_length) { grow(&(Case){KILN_F32, 1, 4, 2, 40, 30, 32, .causal = true, .odd_in = -1}, 13); }

Test(cuda_attention_gradient, softmax_of_any_length)
{
    grow(&(Case){KILN_BF16, 1, 2, 2, 40, 30, 64, .spelling = SOFTMAX, .odd_in = -1}, 11);
}

/* No sum is shared by blocks: however they come, and whatever else is in the batch, a row has the same bits. */
Test(cuda_attention_gradient, the_same_bits_each_time)
{
    Case c = {KILN_F32, 2, 2, 2, 200, 130, 32, .causal = true, .odd_in = -1}, one = c;
    one.batch = 1;
    fill(&c);
    set_option("dynamic", "never");
    start("cc=9.0,rough=on");
    compute(&c, got);
    compute(&c, again);
    for (int i = 0; i < INPUTS; i++)
        cr_assert(memcmp(got[i], again[i], (size_t)elements(&c, i) * sizeof **got) == 0, "%d", i);
    compute(&one, again);
    for (int i = 0; i < INPUTS; i++)
        cr_assert(memcmp(got[i], again[i], (size_t)elements(&one, i) * sizeof **got) == 0, "%d", i);
}

/* What does not fit says why, and is right all the same. */
Test(cuda_attention_gradient, what_does_not_fit_has_scores_in_memory)
{
    static const struct {
        Case c;
        const char *option, *value, *why;
    } misfits[] = {
        {{KILN_F64, 1, 2, 2, 20, 30, 32, .odd_in = -1}, NULL, NULL, "not f32, f16 or bf16"},
        {{KILN_F32, 1, 2, 2, 20, 30, 24, .odd_in = -1}, NULL, NULL, "16, 32, ... 128 elements"},
        {{KILN_F32, 1, 2, 2, 20, 30, 144, .odd_in = -1}, NULL, NULL, "16, 32, ... 128 elements"},
        {{KILN_F32, 1, 2, 2, 20, 30, 32, .odd_in = -1}, "math", "strict", ""},
        {{KILN_F32, 1, 2, 2, 20, 30, 32, .odd_in = -1}, "bands", "off", ""},
    };
    set_option("dynamic", "never");
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        const Case *c = &misfits[i].c;
        fill(c);
        reference(c);
        start("cc=9.0");
        if (misfits[i].option)
            set_option(misfits[i].option, misfits[i].value);
        compute(c, got);
        compare(c, "misfit");
        cr_assert(told.chains == 0 && strstr(told.why, misfits[i].why), "%d: %d kernels, %s", (int)i, told.chains, told.why);
        if (misfits[i].option)
            set_option(misfits[i].option, strcmp(misfits[i].option, "math") == 0 ? "fast" : "auto");
    }
}

/* Scores that somebody wants are stored, once. */
Test(cuda_attention_gradient, scores_that_are_wanted_are_stored)
{
    Case c = {KILN_F32, 1, 2, 2, 70, 65, 32, .odd_in = -1};
    fill(&c);
    start("cc=9.0");
    kiln_tensor *in[3] = {kiln_param(input(&c, Q)), kiln_param(input(&c, K)), kiln_param(input(&c, V))}, *dy = input(&c, DY), *out[5];
    kiln_tensor *w = kiln_softmax(kiln_matmul(in[Q], kiln_transpose(in[K])), -1), *y = kiln_matmul(w, in[V]);
    cr_assert(kiln_vjp(1, &y, &dy, 3, in, 0, out) == KILN_OK, "%s", kiln_error_message());
    out[3] = y, out[4] = w;
    cr_assert(kiln_eval_many(out, 5) == KILN_OK, "%s", kiln_error_message());
    cr_assert(told.chains == 0 && strstr(told.why, "something else needs"), "%d kernels, %s", told.chains, told.why);
}

/* Bits of scores and weights are in no memory, so whatever shapes, masks and spellings there are meet here. */
Test(cuda_attention_gradient, random_cases)
{
    static const int64_t lengths[] = {2, 7, 31, 63, 64, 65, 100, 127, 128, 129, 200};
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F32, KILN_F32, KILN_F16, KILN_BF16};
    static const char *const devices[] = {"cc=7.5", "cc=8.0,rough=on", "cc=9.0", "cc=9.0,async=early"};
    state = slice_seed() * 13 + 1;
    const char *device = devices[pick(4)];
    for (int i = 0; i < 12; i++) {
        Case c = {.odd_in = -1, .dtype = dtypes[pick(5)], .batch = 1 + pick(2), .shared = 1 + pick(2), .d = 16 * (1 + pick(8))};
        c.heads = c.shared * (1 + pick(2));
        c.queries = lengths[pick(11)], c.keys = lengths[pick(11)];
        c.spelling = c.heads == c.shared && !pick(3) ? (Spelling)(1 + pick(2)) : ATTENTION;
        c.causal = pick(2), c.from_end = pick(2), c.lengths = pick(4) == 0, c.permuted = pick(3) == 0;
        c.mask = (Mask)pick(c.spelling == DIVIDED ? ROWS_UNSEEN : SLOPES + 1);
        c.turn = (Turn)(pick(2) * pick(TURNS));
        c.softcap = pick(4) ? 0 : 2;
        set_option("dynamic", pick(2) ? "never" : "auto");
        check(&c, device, false);
    }
}

/*
 * Convolution, pooling, attention, its gradient and batches of products: time, and the operations or bytes of it per second.
 *
 *     convolution [--quick] [--varied]
 *
 * --varied: each row's program has met other batches and sizes before, and is one for all of them.
 * Inputs are evaluated before a clock starts (weights are packed in each call); a call is that of a kiln_function. Built as a module (CONVOLUTION_MODULE) it is
 * what bench/convolution.py runs beside PyTorch.
 */
#include "bench/timing.h"
#include "runtime/include/kiln.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CONVOLUTION_MODULE
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT static
#endif

enum { ROUNDS = 15, QUICK_ROUNDS = 3, MOST_INPUTS = 4, MOST_RESULTS = 3 };

typedef enum Kind { CONV, MAX_POOL, AVG_POOL, ATTENTION, GRADIENT, PRODUCT } Kind; /* GRADIENT: attention and that of its operands */

typedef struct Case {
    const char *name;
    Kind kind;
    int64_t
        in[2]
          [4]; /* x and weights, or query and keys (values are like keys), or two factors; ends with 0; pooling: x and [window, window] */
    int64_t stride, pad, groups;
    bool causal;
} Case;

static const Case cases[] = {
    {"3x3 of 64 channels at 56, 1 image", CONV, {{1, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false},
    {"3x3 of 128 channels at 28, 1 image", CONV, {{1, 128, 28, 28}, {128, 128, 3, 3}}, 1, 1, 1, false},
    {"3x3 of 256 channels at 14, 1 image", CONV, {{1, 256, 14, 14}, {256, 256, 3, 3}}, 1, 1, 1, false},
    {"3x3 of 64 channels at 56, 32 images", CONV, {{32, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false},
    {"3x3 of 128 channels at 28, 32 images", CONV, {{32, 128, 28, 28}, {128, 128, 3, 3}}, 1, 1, 1, false},
    {"3x3 of 256 channels at 14, 32 images", CONV, {{32, 256, 14, 14}, {256, 256, 3, 3}}, 1, 1, 1, false},
    {"7x7 stride 2 of 3 channels at 224, 1 image", CONV, {{1, 3, 224, 224}, {64, 3, 7, 7}}, 2, 3, 1, false},
    {"1x1 of 64 to 256 channels at 56, 1 image", CONV, {{1, 64, 56, 56}, {256, 64, 1, 1}}, 1, 0, 1, false},
    {"1x1 of 64 to 256 channels at 56, 32 images", CONV, {{32, 64, 56, 56}, {256, 64, 1, 1}}, 1, 0, 1, false},
    {"depthwise 3x3 of 128 channels at 56, 1 image", CONV, {{1, 128, 56, 56}, {128, 1, 3, 3}}, 1, 1, 128, false},
    {"depthwise 3x3 of 128 channels at 56, 32 images", CONV, {{32, 128, 56, 56}, {128, 1, 3, 3}}, 1, 1, 128, false},
    {"maxima of 3x3 stride 2 at 112, 8 images", MAX_POOL, {{8, 64, 112, 112}, {3, 3}}, 2, 1, 1, false},
    {"means of 2x2 stride 2 at 112, 8 images", AVG_POOL, {{8, 64, 112, 112}, {2, 2}}, 2, 0, 1, false},
    {"attention 4 x 16 heads, 128 x 128 of 64", ATTENTION, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, false},
    {"attention 4 x 16 heads, 128 x 128 of 64, causal", ATTENTION, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, true},
    {"attention 1 x 16 heads, 1024 x 1024 of 64", ATTENTION, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, false},
    {"attention 1 x 16 heads, 1024 x 1024 of 64, causal", ATTENTION, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, true},
    {"attention 1 x 4 heads, 4096 x 4096 of 128, causal", ATTENTION, {{1, 4, 4096, 128}, {1, 4, 4096, 128}}, 0, 0, 1, true},
    {"attention 1 x 16 heads, 1 x 4096 of 128", ATTENTION, {{1, 16, 1, 128}, {1, 16, 4096, 128}}, 0, 0, 1, false},
    {"gradient 4 x 16 heads, 128 x 128 of 64, causal", GRADIENT, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, true},
    {"gradient 1 x 16 heads, 1024 x 1024 of 64", GRADIENT, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, false},
    {"gradient 1 x 16 heads, 1024 x 1024 of 64, causal", GRADIENT, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, true},
    {"gradient 1 x 4 heads, 4096 x 4096 of 64, causal", GRADIENT, {{1, 4, 4096, 64}, {1, 4, 4096, 64}}, 0, 0, 1, true},
    {"64 products of 128 cubed", PRODUCT, {{64, 128, 128}, {64, 128, 128}}, 0, 0, 1, false},
    {"1024 products of 16 cubed", PRODUCT, {{1024, 16, 16}, {1024, 16, 16}}, 0, 0, 1, false},
    {"1024 products of 32 cubed", PRODUCT, {{1024, 32, 32}, {1024, 32, 32}}, 0, 0, 1, false},
    {"1024 products of 64 cubed", PRODUCT, {{1024, 64, 64}, {1024, 64, 64}}, 0, 0, 1, false},
};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct Run {
    const Case *of;
    kiln_scope *scope;
    kiln_function *f;
    kiln_tensor *in[MOST_INPUTS], *out[MOST_RESULTS];
    int results;
    int n;
} Run;

static kiln_shape shape_of(const int64_t *dims)
{
    kiln_shape shape = {0, {0}};
    while (shape.rank < 4 && dims[shape.rank]) {
        shape.dim[shape.rank] = dims[shape.rank];
        shape.rank++;
    }
    return shape;
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Case *c = user;
    const kiln_conv_options conv = {.stride = {c->stride, c->stride}, .padding = {{c->pad, c->pad}, {c->pad, c->pad}}, .groups = c->groups};
    const kiln_pool_options pool = {.stride = {c->stride, c->stride}, .padding = {{c->pad, c->pad}, {c->pad, c->pad}}};
    const kiln_attention_options attention = {.causal = c->causal};
    switch (c->kind) {
    case CONV: out[0] = kiln_conv(in[0], in[1], &conv); break;
    case MAX_POOL: out[0] = kiln_max_pool(in[0], shape_of(c->in[1]), &pool); break;
    case AVG_POOL: out[0] = kiln_avg_pool(in[0], shape_of(c->in[1]), &pool); break;
    case ATTENTION: out[0] = kiln_attention(in[0], in[1], in[2], &attention); break;
    case GRADIENT: /* of the result times in[3] after a tanh, so that no step but its own knows what comes from behind */
        kiln_check(kiln_grad(kiln_sum(kiln_mul(kiln_tanh(kiln_attention(in[0], in[1], in[2], &attention)), in[3])), in, 3, out));
        break;
    case PRODUCT: out[0] = kiln_matmul(in[0], in[1]); break;
    }
}

/* ---- what bench/convolution.py calls ---- */

/* Calls f with batches and sizes of their own, for which it is compiled anew until a program takes them all. */
static void vary(Run *run)
{
    const Case *c = run->of;
    bool image = c->kind == CONV || c->kind == MAX_POOL || c->kind == AVG_POOL;
    for (int times = 1; times <= 3; times++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[MOST_INPUTS], *out[MOST_RESULTS];
        for (int k = 0; k < run->n; k++) {
            kiln_shape shape = shape_of(c->in[k == 1 || k == 2]);
            for (int d = 0; d < shape.rank && (k == 0 || !image); d++) /* channels and heads stay */
                shape.dim[d] += image && d == 1 ? 0 : image || c->kind == PRODUCT ? 2 * times : d == 0 || d == 2 ? times : 0;
            in[k] = kiln_uniform(KILN_F32, shape, -1, 1);
        }
        kiln_check(kiln_eval_many(in, run->n));
        kiln_check(kiln_function_call(run->f, in, out));
        kiln_check(kiln_eval_many(out, run->results));
        kiln_scope_end(scope);
    }
}

EXPORT Run *convolution_open(int i, int varied)
{
    Run *run = calloc(1, sizeof *run);
    if (!run)
        exit(1);
    run->of = &cases[i];
    run->scope = kiln_scope_begin();
    run->n = run->of->kind == GRADIENT                                ? 4
             : run->of->kind == ATTENTION                             ? 3
             : run->of->kind == MAX_POOL || run->of->kind == AVG_POOL ? 1
                                                                      : 2;
    kiln_seed(1);
    for (int k = 0; k < run->n; k++)
        run->in[k] = kiln_uniform(KILN_F32, shape_of(run->of->in[k == 1 || k == 2]), -1, 1);
    kiln_check(kiln_eval_many(run->in, run->n));
    run->results = run->of->kind == GRADIENT ? 3 : 1;
    run->f = kiln_function_new(body, run->n, run->results, (void *)(uintptr_t)run->of);
    if (!run->f)
        kiln_check(kiln_error_status());
    if (varied)
        vary(run);
    return run;
}

EXPORT void convolution_close(Run *run)
{
    for (int k = 0; k < run->results; k++)
        kiln_release(run->out[k]);
    kiln_function_free(run->f);
    kiln_scope_end(run->scope);
    free(run);
}

EXPORT void convolution_call(Run *run)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *out[MOST_RESULTS];
    kiln_check(kiln_function_call(run->f, run->in, out));
    kiln_check(kiln_eval_many(out, run->results));
    for (int k = 0; k < run->results; k++) {
        kiln_release(run->out[k]);
        run->out[k] = kiln_retain(out[k]);
    }
    kiln_scope_end(scope);
}

#ifdef CONVOLUTION_MODULE
/* "name;kind;stride;pad;groups;causal", window for pooling behind; NULL past the last. */
EXPORT const char *convolution_text(int i)
{
    static const char *const kinds[] = {"conv", "max_pool", "avg_pool", "attention", "gradient", "product"};
    static char text[160];
    if (i >= CASES)
        return NULL;
    const Case *c = &cases[i];
    snprintf(text, sizeof text, "%s;%s;%lld;%lld;%lld;%d;%lld", c->name, kinds[c->kind], (long long)c->stride, (long long)c->pad,
             (long long)c->groups, c->causal, (long long)c->in[1][0]);
    return text;
}

/* Input i, or a result of the last call (i = -1, -2, ..): its rank, and its dims; `data` (may be NULL) gets the elements. -1: there is none. */
EXPORT int convolution_read(Run *run, int i, int64_t *dims, void *data)
{
    kiln_tensor *x = i < 0 ? (i + run->results >= 0 ? run->out[-1 - i] : NULL) : i < run->n ? run->in[i] : NULL;
    if (!x)
        return -1;
    kiln_shape shape = kiln_shape_of(x);
    memcpy(dims, shape.dim, sizeof *dims * (size_t)shape.rank);
    if (data)
        kiln_check(kiln_read(x, KILN_F32, data, (size_t)kiln_numel(x) * sizeof(float)));
    return shape.rank;
}
#else

/* ---- the program ---- */

/* Multiplications and additions of a call; of pooling bytes. */
static double work(const Run *run)
{
    const Case *c = run->of;
    double out = (double)kiln_numel(run->out[0]);
    switch (c->kind) {
    case CONV: return 2 * out * (double)(c->in[1][1] * c->in[1][2] * c->in[1][3]);
    case MAX_POOL:
    case AVG_POOL: return 4 * (out + (double)kiln_numel(run->in[0]));
    case ATTENTION: return 4 * out * (double)c->in[1][2] * (c->causal ? 0.5 : 1);
    case GRADIENT: return 3 * 4 * out * (double)c->in[1][2] * (c->causal ? 0.5 : 1); /* without computing the scores again */
    case PRODUCT: return 2 * out * (double)c->in[0][2];
    }
    return 0;
}

static void measure(int i, int rounds, bool varied)
{
    double times[MAX_ROUNDS];
    Run *run = convolution_open(i, varied);
    kiln_stats before, after;
    for (int k = 0; k < 3; k++)
        convolution_call(run);
    kiln_get_stats(&before);
    for (int k = 0; k < rounds; k++) {
        double start = now_seconds();
        convolution_call(run);
        times[k] = now_seconds() - start;
    }
    kiln_get_stats(&after);
    if (after.compiles != before.compiles) {
        fprintf(stderr, "convolution: %s: %lld compiles after the third call\n", run->of->name,
                (long long)(after.compiles - before.compiles));
        exit(1);
    }
    double seconds = median(times, rounds);
    bool pool = run->of->kind == MAX_POOL || run->of->kind == AVG_POOL;
    printf("%-52s %9.3f ms, %3lld kernels, %7.2f G%s/s\n", run->of->name, seconds * 1e3,
           (long long)(after.kernels - before.kernels) / rounds, work(run) / seconds * 1e-9, pool ? "B" : "flop");
    convolution_close(run);
}

int main(int argc, char **argv)
{
    bool quick = false, varied = false;
    for (int i = 1; i < argc; i++) {
        quick |= !strcmp(argv[i], "--quick");
        varied |= !strcmp(argv[i], "--varied");
    }
    if (argc > 1 + quick + varied) {
        fputs("usage: convolution [--quick] [--varied]\n", stderr);
        return 2;
    }
    for (int i = 0; i < CASES; i++)
        measure(i, quick ? QUICK_ROUNDS : ROUNDS, varied);
    return 0;
}
#endif

/*
 * Convolution, pooling, attention, their gradients and batches of products: time, and the operations or bytes of it per second.
 *
 *     convolution [--quick] [--varied]
 *
 * --varied: each row's program has met other batches and sizes before, and is one for all of them.
 * Inputs are evaluated before a clock starts (weights are packed in each call); a call is that of a kiln_function. Built as a module
 * (CONVOLUTION_MODULE) it is what bench/convolution.py runs beside PyTorch.
 */
#include "bench/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CONVOLUTION_MODULE
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT static
#endif

/* CONV_GRADIENT, MAX_GRADIENT, AVG_GRADIENT, GRADIENT: convolution, pooling, attention and that of its operands */
typedef enum Kind { CONV, CONV_GRADIENT, MAX_POOL, AVG_POOL, MAX_GRADIENT, AVG_GRADIENT, ATTENTION, GRADIENT, PRODUCT } Kind;

typedef struct Case {
    const char *name;
    Kind kind;
    int64_t
        in[2]
          [4]; /* x and weights, or query and keys (values are like keys), or two factors; ends with 0; pooling: x and [window, window] */
    int64_t stride, pad, groups;
    bool causal;
    kiln_dtype dtype;
} Case;

static const Case cases[] = {
    {"3x3 of 64 channels at 56, 1 image", CONV, {{1, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"3x3 of 128 channels at 28, 1 image", CONV, {{1, 128, 28, 28}, {128, 128, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"3x3 of 256 channels at 14, 1 image", CONV, {{1, 256, 14, 14}, {256, 256, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"3x3 of 64 channels at 56, 32 images", CONV, {{32, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"3x3 of 128 channels at 28, 32 images", CONV, {{32, 128, 28, 28}, {128, 128, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"3x3 of 256 channels at 14, 32 images", CONV, {{32, 256, 14, 14}, {256, 256, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"7x7 stride 2 of 3 channels at 224, 1 image", CONV, {{1, 3, 224, 224}, {64, 3, 7, 7}}, 2, 3, 1, false, KILN_F32},
    {"3x3 stride 2 of 64 to 128 channels at 56, 8 images", CONV, {{8, 64, 56, 56}, {128, 64, 3, 3}}, 2, 1, 1, false, KILN_F32},
    {"1x1 stride 2 of 256 to 512 channels at 56, 8 images", CONV, {{8, 256, 56, 56}, {512, 256, 1, 1}}, 2, 0, 1, false, KILN_F32},
    {"3x3 of 4 groups of 32 channels at 28, 8 images", CONV, {{8, 128, 28, 28}, {128, 32, 3, 3}}, 1, 1, 4, false, KILN_F32},
    {"3x3 of 32 groups of 8 channels at 14, 8 images", CONV, {{8, 256, 14, 14}, {256, 8, 3, 3}}, 1, 1, 32, false, KILN_F32},
    {"1x1 of 64 to 256 channels at 56, 1 image", CONV, {{1, 64, 56, 56}, {256, 64, 1, 1}}, 1, 0, 1, false, KILN_F32},
    {"1x1 of 64 to 256 channels at 56, 32 images", CONV, {{32, 64, 56, 56}, {256, 64, 1, 1}}, 1, 0, 1, false, KILN_F32},
    {"depthwise 3x3 of 128 channels at 56, 1 image", CONV, {{1, 128, 56, 56}, {128, 1, 3, 3}}, 1, 1, 128, false, KILN_F32},
    {"depthwise 3x3 of 128 channels at 56, 32 images", CONV, {{32, 128, 56, 56}, {128, 1, 3, 3}}, 1, 1, 128, false, KILN_F32},
    {"depthwise 3x3 stride 2 of 128 channels at 56, 8 images", CONV, {{8, 128, 56, 56}, {128, 1, 3, 3}}, 2, 1, 128, false, KILN_F32},
    {"gradients 3x3 of 64 channels at 56, 1 image", CONV_GRADIENT, {{1, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"gradients 3x3 of 64 channels at 56, 32 images", CONV_GRADIENT, {{32, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"gradients 3x3 of 128 channels at 28, 32 images", CONV_GRADIENT, {{32, 128, 28, 28}, {128, 128, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"gradients 3x3 of 256 channels at 14, 32 images", CONV_GRADIENT, {{32, 256, 14, 14}, {256, 256, 3, 3}}, 1, 1, 1, false, KILN_F32},
    {"gradients 3x3 stride 2 of 64 channels at 56, 8 images", CONV_GRADIENT, {{8, 64, 56, 56}, {128, 64, 3, 3}}, 2, 1, 1, false, KILN_F32},
    {"gradients 7x7 stride 2 of 3 channels at 224, 1 image", CONV_GRADIENT, {{1, 3, 224, 224}, {64, 3, 7, 7}}, 2, 3, 1, false, KILN_F32},
    {"gradients 1x1 of 64 to 256 channels at 56, 8 images", CONV_GRADIENT, {{8, 64, 56, 56}, {256, 64, 1, 1}}, 1, 0, 1, false, KILN_F32},
    {"gradients depthwise 3x3 of 128 channels at 56, 8 images",
     CONV_GRADIENT,
     {{8, 128, 56, 56}, {128, 1, 3, 3}},
     1,
     1,
     128,
     false,
     KILN_F32},
    {"gradients depthwise 3x3 stride 2 of 128 channels at 56, 8 images",
     CONV_GRADIENT,
     {{8, 128, 56, 56}, {128, 1, 3, 3}},
     2,
     1,
     128,
     false,
     KILN_F32},
    {"maxima of 3x3 stride 2 at 112, 8 images", MAX_POOL, {{8, 64, 112, 112}, {3, 3}}, 2, 1, 1, false, KILN_F32},
    {"means of 2x2 stride 2 at 112, 8 images", AVG_POOL, {{8, 64, 112, 112}, {2, 2}}, 2, 0, 1, false, KILN_F32},
    {"gradient of maxima of 3x3 stride 2 at 112, 8 images", MAX_GRADIENT, {{8, 64, 112, 112}, {3, 3}}, 2, 1, 1, false, KILN_F32},
    {"gradient of maxima of 3x3 at 56, 8 images", MAX_GRADIENT, {{8, 64, 56, 56}, {3, 3}}, 1, 1, 1, false, KILN_F32},
    {"gradient of maxima of 2x2 stride 2 at 112, 8 images", MAX_GRADIENT, {{8, 64, 112, 112}, {2, 2}}, 2, 0, 1, false, KILN_F32},
    {"gradient of means of 2x2 stride 2 at 112, 8 images", AVG_GRADIENT, {{8, 64, 112, 112}, {2, 2}}, 2, 0, 1, false, KILN_F32},
    {"gradient of means of 3x3 at 56, 8 images", AVG_GRADIENT, {{8, 64, 56, 56}, {3, 3}}, 1, 1, 1, false, KILN_F32},
    {"bf16 3x3 of 64 channels at 56, 8 images", CONV, {{8, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false, KILN_BF16},
    {"bf16 3x3 of 128 channels at 28, 8 images", CONV, {{8, 128, 28, 28}, {128, 128, 3, 3}}, 1, 1, 1, false, KILN_BF16},
    {"bf16 3x3 of 256 channels at 14, 8 images", CONV, {{8, 256, 14, 14}, {256, 256, 3, 3}}, 1, 1, 1, false, KILN_BF16},
    {"bf16 7x7 stride 2 of 3 channels at 224, 1 image", CONV, {{1, 3, 224, 224}, {64, 3, 7, 7}}, 2, 3, 1, false, KILN_BF16},
    {"bf16 1x1 of 64 to 256 channels at 56, 8 images", CONV, {{8, 64, 56, 56}, {256, 64, 1, 1}}, 1, 0, 1, false, KILN_BF16},
    {"bf16 depthwise 3x3 of 128 channels at 56, 1 image", CONV, {{1, 128, 56, 56}, {128, 1, 3, 3}}, 1, 1, 128, false, KILN_BF16},
    {"bf16 3x3 of 32 groups of 8 channels at 14, 8 images", CONV, {{8, 256, 14, 14}, {256, 8, 3, 3}}, 1, 1, 32, false, KILN_BF16},
    {"f16 3x3 of 64 channels at 56, 8 images", CONV, {{8, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false, KILN_F16},
    {"f16 depthwise 3x3 of 128 channels at 56, 1 image", CONV, {{1, 128, 56, 56}, {128, 1, 3, 3}}, 1, 1, 128, false, KILN_F16},
    {"bf16 gradients 3x3 of 64 channels at 56, 8 images", CONV_GRADIENT, {{8, 64, 56, 56}, {64, 64, 3, 3}}, 1, 1, 1, false, KILN_BF16},
    {"bf16 gradients 1x1 of 64 to 256 channels at 56, 8 images",
     CONV_GRADIENT,
     {{8, 64, 56, 56}, {256, 64, 1, 1}},
     1,
     0,
     1,
     false,
     KILN_BF16},
    {"bf16 gradients depthwise 3x3 of 128 channels at 56, 8 images",
     CONV_GRADIENT,
     {{8, 128, 56, 56}, {128, 1, 3, 3}},
     1,
     1,
     128,
     false,
     KILN_BF16},
    {"bf16 maxima of 3x3 stride 2 at 112, 8 images", MAX_POOL, {{8, 64, 112, 112}, {3, 3}}, 2, 1, 1, false, KILN_BF16},
    {"bf16 gradient of maxima of 3x3 stride 2 at 112, 8 images", MAX_GRADIENT, {{8, 64, 112, 112}, {3, 3}}, 2, 1, 1, false, KILN_BF16},
    {"attention 4 x 16 heads, 128 x 128 of 64", ATTENTION, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, false, KILN_F32},
    {"attention 4 x 16 heads, 128 x 128 of 64, causal", ATTENTION, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, true, KILN_F32},
    {"attention 1 x 16 heads, 1024 x 1024 of 64", ATTENTION, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, false, KILN_F32},
    {"attention 1 x 16 heads, 1024 x 1024 of 64, causal", ATTENTION, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, true, KILN_F32},
    {"attention 1 x 4 heads, 4096 x 4096 of 128, causal", ATTENTION, {{1, 4, 4096, 128}, {1, 4, 4096, 128}}, 0, 0, 1, true, KILN_F32},
    {"attention 1 x 16 heads, 1 x 4096 of 128", ATTENTION, {{1, 16, 1, 128}, {1, 16, 4096, 128}}, 0, 0, 1, false, KILN_F32},
    {"attention 1 x 32 heads, 8 of keys, 1 x 4096 of 128", ATTENTION, {{1, 32, 1, 128}, {1, 8, 4096, 128}}, 0, 0, 1, false, KILN_F32},
    {"bf16 attention 4 x 16 heads, 128 x 128 of 64, causal", ATTENTION, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, true, KILN_BF16},
    {"bf16 attention 1 x 16 heads, 1024 x 1024 of 64, causal", ATTENTION, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, true, KILN_BF16},
    {"bf16 attention 1 x 4 heads, 4096 x 4096 of 128, causal", ATTENTION, {{1, 4, 4096, 128}, {1, 4, 4096, 128}}, 0, 0, 1, true, KILN_BF16},
    {"bf16 attention 1 x 16 heads, 1 x 4096 of 128", ATTENTION, {{1, 16, 1, 128}, {1, 16, 4096, 128}}, 0, 0, 1, false, KILN_BF16},
    {"bf16 attention 1 x 32 heads, 8 of keys, 1 x 4096 of 128", ATTENTION, {{1, 32, 1, 128}, {1, 8, 4096, 128}}, 0, 0, 1, false, KILN_BF16},
    {"f16 attention 4 x 16 heads, 128 x 128 of 64, causal", ATTENTION, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, true, KILN_F16},
    {"f16 attention 1 x 16 heads, 1024 x 1024 of 64, causal", ATTENTION, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, true, KILN_F16},
    {"f16 attention 1 x 16 heads, 1 x 4096 of 128", ATTENTION, {{1, 16, 1, 128}, {1, 16, 4096, 128}}, 0, 0, 1, false, KILN_F16},
    {"f16 attention 1 x 32 heads, 8 of keys, 1 x 4096 of 128", ATTENTION, {{1, 32, 1, 128}, {1, 8, 4096, 128}}, 0, 0, 1, false, KILN_F16},
    {"gradient 4 x 16 heads, 128 x 128 of 64, causal", GRADIENT, {{4, 16, 128, 64}, {4, 16, 128, 64}}, 0, 0, 1, true, KILN_F32},
    {"gradient 1 x 16 heads, 1024 x 1024 of 64", GRADIENT, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, false, KILN_F32},
    {"gradient 1 x 16 heads, 1024 x 1024 of 64, causal", GRADIENT, {{1, 16, 1024, 64}, {1, 16, 1024, 64}}, 0, 0, 1, true, KILN_F32},
    {"gradient 1 x 4 heads, 4096 x 4096 of 64, causal", GRADIENT, {{1, 4, 4096, 64}, {1, 4, 4096, 64}}, 0, 0, 1, true, KILN_F32},
    {"64 products of 128 cubed", PRODUCT, {{64, 128, 128}, {64, 128, 128}}, 0, 0, 1, false, KILN_F32},
    {"1024 products of 16 cubed", PRODUCT, {{1024, 16, 16}, {1024, 16, 16}}, 0, 0, 1, false, KILN_F32},
    {"1024 products of 32 cubed", PRODUCT, {{1024, 32, 32}, {1024, 32, 32}}, 0, 0, 1, false, KILN_F32},
    {"1024 products of 64 cubed", PRODUCT, {{1024, 64, 64}, {1024, 64, 64}}, 0, 0, 1, false, KILN_F32},
};
enum { CASES = sizeof cases / sizeof *cases };

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
    case CONV_GRADIENT: /* what comes from behind is in[2] */
        out[0] = kiln_conv(in[0], in[1], &conv);
        kiln_check(kiln_grad(kiln_sum(kiln_mul(out[0], in[2])), in, 2, out + 1));
        break;
    case MAX_POOL: out[0] = kiln_max_pool(in[0], shape_of(c->in[1]), &pool); break;
    case AVG_POOL: out[0] = kiln_avg_pool(in[0], shape_of(c->in[1]), &pool); break;
    case MAX_GRADIENT: /* what comes from behind is in[1] */
    case AVG_GRADIENT:
        out[0] = (c->kind == MAX_GRADIENT ? kiln_max_pool : kiln_avg_pool)(in[0], shape_of(c->in[1]), &pool);
        kiln_check(kiln_grad(kiln_sum(kiln_mul(out[0], in[1])), in, 1, out + 1));
        break;
    case ATTENTION: out[0] = kiln_attention(in[0], in[1], in[2], &attention); break;
    case GRADIENT: /* of the result times in[3] after a tanh, so that no step but its own knows what comes from behind */
        kiln_check(kiln_grad(kiln_sum(kiln_mul(kiln_tanh(kiln_attention(in[0], in[1], in[2], &attention)), in[3])), in, 3, out));
        break;
    case PRODUCT: out[0] = kiln_matmul(in[0], in[1]); break;
    }
}

/* ---- what bench/convolution.py calls ---- */

static bool is_pool(Kind kind) { return kind == MAX_POOL || kind == AVG_POOL || kind == MAX_GRADIENT || kind == AVG_GRADIENT; }
static bool is_image(Kind kind) { return kind == CONV || kind == CONV_GRADIENT || is_pool(kind); }

/* Input k of c, at that size: what comes from behind convolution and pooling is like their result. */
static kiln_shape input_shape(const Case *c, int k, const kiln_shape *x)
{
    kiln_shape shape = k == 0 ? *x : shape_of(c->in[k == 1 || k == 2]);
    bool pool = is_pool(c->kind);
    if (k == (pool ? 1 : 2) && is_image(c->kind)) {
        const int64_t *taps = c->in[1] + (pool ? 0 : 2);
        shape = (kiln_shape){4,
                             {x->dim[0], pool ? x->dim[1] : c->in[1][0], (x->dim[2] + 2 * c->pad - taps[0]) / c->stride + 1,
                              (x->dim[3] + 2 * c->pad - taps[1]) / c->stride + 1}};
    }
    return shape;
}

static int inputs_of(Kind kind)
{
    return kind == GRADIENT ? 4 : kind == ATTENTION || kind == CONV_GRADIENT ? 3 : kind == MAX_POOL || kind == AVG_POOL ? 1 : 2;
}

static int results_of(Kind kind)
{
    return kind == GRADIENT || kind == CONV_GRADIENT ? 3 : kind == MAX_GRADIENT || kind == AVG_GRADIENT ? 2 : 1;
}

static kiln_tensor *random_input(const Case *c, kiln_shape shape) { return kiln_cast(kiln_uniform(KILN_F32, shape, -1, 1), c->dtype); }

/* Calls it with batches and sizes of their own, for which it is compiled anew until a program takes them all. */
static void vary(Call *call, const Case *c)
{
    bool image = is_image(c->kind);
    for (int times = 1; times <= 3; times++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[MOST_INPUTS], *out[MOST_RESULTS];
        kiln_shape x = shape_of(c->in[0]);
        for (int d = 0; d < x.rank && image; d++) /* channels and heads stay */
            x.dim[d] += d == 1 ? 0 : 2 * times;
        for (int k = 0; k < call->inputs; k++) {
            kiln_shape shape = input_shape(c, k, &x);
            for (int d = 0; d < shape.rank && !image; d++)
                shape.dim[d] += c->kind == PRODUCT ? 2 * times : d == 0 || d == 2 ? times : 0;
            in[k] = random_input(c, shape);
        }
        kiln_check(kiln_eval_many(in, call->inputs));
        kiln_check(kiln_function_call(call->f, in, out));
        kiln_check(kiln_eval_many(out, call->results));
        kiln_scope_end(scope);
    }
}

/* ---- what bench/convolution.py calls ---- */

EXPORT Call *convolution_open(int i, int varied)
{
    const Case *c = &cases[i];
    kiln_shape x = shape_of(c->in[0]);
    Call *call = call_new();
    for (; call->inputs < inputs_of(c->kind); call->inputs++)
        call->in[call->inputs] = random_input(c, input_shape(c, call->inputs, &x));
    call_compile(call, body, results_of(c->kind), c);
    if (varied)
        vary(call, c);
    return call;
}

#ifdef CONVOLUTION_MODULE
/* "name;kind;stride;pad;groups;causal", window for pooling behind; NULL past the last. */
EXPORT const char *convolution_text(int i)
{
    static const char *const kinds[] = {"conv",         "conv_gradient", "max_pool", "avg_pool", "max_gradient",
                                        "avg_gradient", "attention",     "gradient", "product"};
    static char text[160];
    if (i >= CASES)
        return NULL;
    const Case *c = &cases[i];
    snprintf(text, sizeof text, "%s;%s;%lld;%lld;%lld;%d;%lld", c->name, kinds[c->kind], (long long)c->stride, (long long)c->pad,
             (long long)c->groups, c->causal, (long long)c->in[1][0]);
    return text;
}

EXPORT void convolution_call(Call *call) { call_run(call); }

EXPORT void convolution_close(Call *call) { call_free(call); }

EXPORT int convolution_read(const Call *call, int i, int64_t *dims, int *dtype, void *data)
{
    return call_read(call, i, dims, dtype, data);
}
#else

/* ---- the program ---- */

/* Multiplications and additions of a call; of pooling bytes. */
static double work(const Call *call, const Case *c)
{
    double out = (double)kiln_numel(call->out[0]), bytes = (double)kiln_dtype_size(c->dtype);
    switch (c->kind) {
    case CONV: return 2 * out * (double)(c->in[1][1] * c->in[1][2] * c->in[1][3]);
    case CONV_GRADIENT: return 3 * 2 * out * (double)(c->in[1][1] * c->in[1][2] * c->in[1][3]);
    case MAX_POOL:
    case AVG_POOL: return bytes * (out + (double)kiln_numel(call->in[0]));
    case MAX_GRADIENT:
    case AVG_GRADIENT: return bytes * (2 * out + 2 * (double)kiln_numel(call->in[0]));
    case ATTENTION: return 4 * out * (double)c->in[1][2] * (c->causal ? 0.5 : 1);
    case GRADIENT: return 3 * 4 * out * (double)c->in[1][2] * (c->causal ? 0.5 : 1); /* without computing the scores again */
    case PRODUCT: return 2 * out * (double)c->in[0][2];
    }
    return 0;
}

static void measure(int i, int rounds, bool varied)
{
    const Case *c = &cases[i];
    Call *call = convolution_open(i, varied);
    CallTime time = call_time(call, rounds);
    if (time.compiles) {
        fprintf(stderr, "convolution: %s: %lld compiles after the third call\n", c->name, time.compiles);
        exit(1);
    }
    bool pool = is_pool(c->kind);
    printf("%-56s %9.3f ms, %3lld kernels, %7.2f G%s/s\n", c->name, time.seconds * 1e3, time.kernels, work(call, c) / time.seconds * 1e-9,
           pool ? "B" : "flop");
    call_free(call);
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
        measure(i, quick ? QUICK_ROUNDS : CALL_ROUNDS, varied);
    return 0;
}
#endif

/*
 * Programs of a few ops, as people write them: products with what follows them, norms, reductions, moves, scans, stencils, attention with places,
 * a block of a transformer and of a ResNet: the time of a call of a kiln_function, and its kernels.
 *
 *     programs [--quick]
 *
 * Inputs are evaluated, and weights packed, before a clock starts. Built as a module (PROGRAMS_MODULE) it is what bench/programs.py runs beside
 * NumPy, PyTorch and JAX, and with math=strict beside itself.
 */
#include "bench/call.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PROGRAMS_MODULE
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT static
#endif

typedef struct Input { /* uniform from low to high; of an int type below high */
    kiln_dtype dtype;
    kiln_shape shape;
    double low, high;
    int64_t inputs; /* > 0: weights of a layer of so many: low and high over the root of that, so that results are as large as inputs */
} Input;

typedef struct Program {
    const char *name;
    void (*body)(kiln_tensor **in, kiln_tensor **out, void *user);
    int results;
    Input in[MOST_INPUTS]; /* ends with dtype 0, which is bool: none is */
} Program;

#define BODY(name) static void name(kiln_tensor **in, kiln_tensor **out, void *user)
#define ONE(name, expression) \
    BODY(name)                \
    {                         \
        (void)user;           \
        out[0] = expression;  \
    }

/* ---- products with what follows them ---- */

ONE(linear_gelu, kiln_add(kiln_gelu(kiln_linear(in[0], in[1], in[2])), in[0]))
ONE(linear_gelu_norm, kiln_layer_norm(kiln_add(kiln_gelu(kiln_linear(in[0], in[1], in[2])), in[0]), in[3], in[4], 1e-5))
ONE(dequantised, kiln_matmul(in[0], kiln_transpose(kiln_mul(kiln_cast(in[1], KILN_F32), kiln_unsqueeze(in[2], 1)))))
ONE(two_layers, kiln_matmul(kiln_relu(kiln_matmul(in[0], in[1])), in[2]))
BODY(query_key_value)
{
    (void)user;
    for (int k = 0; k < 3; k++)
        out[k] = kiln_linear(in[0], in[1 + k], in[4 + k]);
}

/* ---- elementwise, norms, reductions ---- */

ONE(chain, kiln_relu(kiln_mul(kiln_add(kiln_mul(kiln_sin(in[0]), kiln_cos(in[1])), in[0]), in[1])))
ONE(chain_sum, kiln_sum(kiln_add(kiln_mul(kiln_tanh(kiln_add(kiln_mul(in[0], 0.1), 1.7)), kiln_sigmoid(in[0])),
                                 kiln_exp(kiln_neg(kiln_square(in[0]))))))
ONE(small_chain, kiln_sigmoid(kiln_mul(kiln_relu(kiln_add(kiln_mul(in[0], 2.0), 1.0)), 0.5)))
ONE(where_log, kiln_where(kiln_gt(in[0], 1.0), kiln_log(in[0]), kiln_sqrt(in[0])))
ONE(power, kiln_pow(in[0], in[1]))
ONE(softmax, kiln_softmax(in[0], -1))
ONE(layer_norm, kiln_layer_norm(in[0], in[1], in[2], 1e-5))
ONE(rms_norm, kiln_rms_norm(in[0], in[1], 1e-5))
ONE(logsumexp, kiln_logsumexp_axes(in[0], KILN_AXES(1), false))
ONE(sum_all, kiln_sum(in[0]))
ONE(sum_rows, kiln_sum_axes(in[0], KILN_AXES(1), false))
ONE(sum_columns, kiln_sum_axes(in[0], KILN_AXES(0), false))
ONE(max_all, kiln_max(in[0]))
ONE(argmax_rows, kiln_argmax_axis(in[0], 1, false))
ONE(argmax_columns, kiln_argmax_axis(in[0], 0, false))
ONE(var_columns, kiln_var_axes(in[0], KILN_AXES(0), 0, false))
ONE(distances, kiln_sqrt(kiln_sum_axes(kiln_square(kiln_sub(kiln_unsqueeze(in[0], 1), kiln_unsqueeze(in[1], 0))), KILN_AXES(2), false)))

/* ---- moves and scans ---- */

ONE(scan_rows, kiln_cumsum(in[0], -1))
ONE(scan_columns, kiln_cumsum(in[0], 0))
ONE(transposed, kiln_transpose(in[0]))
ONE(channels_last, kiln_permute(in[0], KILN_AXES(0, 2, 3, 1)))
ONE(middle_swapped, kiln_permute(in[0], KILN_AXES(0, 2, 1, 3)))
ONE(embedding, kiln_take(in[0], in[1], 0))
ONE(scatter_add, kiln_scatter(in[0], in[1], in[2], 0, KILN_SCATTER_ADD))
ONE(columns_joined, kiln_concat(in, 8, 1))
ONE(strided, kiln_slice(in[0], 2, (kiln_range[]){{0, KILN_NONE, 2}, {0, KILN_NONE, 2}}))
BODY(stencil)
{
    (void)user;
    const kiln_range inner = {1, -1, 1}, before = {0, -2, 1}, after = {2, KILN_NONE, 1};
    kiln_tensor *x = in[0];
    kiln_tensor *up = kiln_slice(x, 2, (kiln_range[]){before, inner}), *down = kiln_slice(x, 2, (kiln_range[]){after, inner});
    kiln_tensor *left = kiln_slice(x, 2, (kiln_range[]){inner, before}), *right = kiln_slice(x, 2, (kiln_range[]){inner, after});
    kiln_tensor *sum = kiln_add(kiln_add(up, down), kiln_add(left, right));
    out[0] = kiln_sub(sum, kiln_mul(kiln_slice(x, 2, (kiln_range[]){inner, inner}), 4.0));
}

/* A 3x3 convolution as nine shifted products: x [H + 2, W + 2, channels], w [3, 3, channels, filters]. */
BODY(shifted_products)
{
    (void)user;
    kiln_shape shape = kiln_shape_of(in[0]);
    int64_t rows = shape.dim[0] - 2, columns = shape.dim[1] - 2;
    for (int64_t k = 0; k < 9; k++) {
        int64_t i = k / 3, j = k % 3;
        kiln_tensor *x = kiln_slice(in[0], 2, (kiln_range[]){{i, i + rows, 1}, {j, j + columns, 1}});
        kiln_tensor *w = kiln_select(kiln_select(in[1], 0, i), 0, j);
        kiln_tensor *part = kiln_matmul(kiln_reshape(x, KILN_SHAPE(rows * columns, shape.dim[2])), w);
        out[0] = k ? kiln_add(out[0], part) : part;
    }
}

/* ---- blocks of networks ---- */

enum { HEADS = 8 };

/* [batch, length, width] -> [batch, HEADS, length, width / HEADS] */
static kiln_tensor *heads(kiln_tensor *x)
{
    kiln_shape s = kiln_shape_of(x);
    return kiln_permute(kiln_reshape(x, KILN_SHAPE(s.dim[0], s.dim[1], HEADS, s.dim[2] / HEADS)), KILN_AXES(0, 2, 1, 3));
}

/* x cos + rotate_half(x) sin, as models have it: x [..., length, d], angles [length, d / 2] */
static kiln_tensor *rotated(kiln_tensor *x, kiln_tensor *angles)
{
    const int64_t d = kiln_dim(x, -1), half = d / 2;
    kiln_tensor *turned[2] = {kiln_neg(kiln_slice_axis(x, -1, half, d, 1)), kiln_slice_axis(x, -1, 0, half, 1)};
    kiln_tensor *cosine = kiln_cos(angles), *sine = kiln_sin(angles);
    cosine = kiln_concat((kiln_tensor *[]){cosine, cosine}, 2, -1);
    sine = kiln_concat((kiln_tensor *[]){sine, sine}, 2, -1);
    return kiln_add(kiln_mul(x, cosine), kiln_mul(kiln_concat(turned, 2, -1), sine));
}

BODY(rotary_attention)
{
    (void)user;
    out[0] = kiln_attention(rotated(in[0], in[3]), rotated(in[1], in[3]), in[2], &(kiln_attention_options){.causal = true});
}

/* ALiBi: of each head, slope * (place of the key - place of the query) is added to its scores */
BODY(alibi_attention)
{
    (void)user;
    const int64_t heads = kiln_dim(in[0], 1), length = kiln_dim(in[0], 2);
    kiln_tensor *place = kiln_arange(KILN_F32, 0, (double)length, 1);
    kiln_tensor *bias = kiln_mul(kiln_reshape(in[3], KILN_SHAPE(heads, 1, 1)), kiln_sub(place, kiln_unsqueeze(place, 1)));
    out[0] = kiln_attention(in[0], in[1], in[2], &(kiln_attention_options){.mask = bias});
}

BODY(transformer)
{
    (void)user;
    kiln_tensor *x = in[0], *part[3];
    if (kiln_split(kiln_linear(kiln_layer_norm(x, in[1], in[2], 1e-5), in[3], in[4]), -1, 3, NULL, part) != KILN_OK)
        return;
    kiln_tensor *mixed = kiln_attention(heads(part[0]), heads(part[1]), heads(part[2]), NULL);
    x = kiln_add(x, kiln_linear(kiln_reshape(kiln_permute(mixed, KILN_AXES(0, 2, 1, 3)), kiln_shape_of(x)), in[5], in[6]));
    kiln_tensor *h = kiln_gelu(kiln_linear(kiln_layer_norm(x, in[7], in[8], 1e-5), in[9], in[10]));
    out[0] = kiln_add(x, kiln_linear(h, in[11], in[12]));
}

/* relu(x + norm(conv(relu(norm(conv x))))) with the running statistics of inference */
BODY(resnet)
{
    (void)user;
    const kiln_conv_options same = {.padding = {{1, 1}, {1, 1}}};
    kiln_tensor *x = in[0];
    for (int k = 0; k < 2; k++) {
        kiln_tensor **p = in + 1 + 5 * k; /* weights; scale, bias, mean, variance */
        x = kiln_batch_norm(kiln_conv(x, p[0], &same), p[3], p[4], &(kiln_norm_options){.weight = p[1], .bias = p[2]});
        x = kiln_relu(k ? kiln_add(x, in[0]) : x);
    }
    out[0] = x;
}

/* ---- the table ---- */

#define S1(a)    \
    {            \
        1, { a } \
    }
#define S2(a, b)    \
    {               \
        2, { a, b } \
    }
#define S3(a, b, c)    \
    {                  \
        3, { a, b, c } \
    }
#define S4(a, b, c, d)    \
    {                     \
        4, { a, b, c, d } \
    }
#define F(shape)                      \
    {                                 \
        KILN_F32, shape, -1.0, 1.0, 0 \
    }
#define WEIGHTS(shape, inputs)             \
    {                                      \
        KILN_F32, shape, -1.7, 1.7, inputs \
    }
#define POSITIVE(shape)              \
    {                                \
        KILN_F32, shape, 0.1, 2.0, 0 \
    }
#define INTS(dtype, shape, low, high) \
    {                                 \
        dtype, shape, low, high, 0    \
    }
#define SQUARE F(S2(4096, 4096))
#define RESNET(n, c, size)                                                                                                   \
    {                                                                                                                        \
        F(S4(n, c, size, size)), F(S4(c, c, 3, 3)), POSITIVE(S1(c)), F(S1(c)), F(S1(c)), POSITIVE(S1(c)), F(S4(c, c, 3, 3)), \
            POSITIVE(S1(c)), F(S1(c)), F(S1(c)), POSITIVE(S1(c))                                                             \
    }
#define TRANSFORMER(b, s, d)                                                                                               \
    {                                                                                                                      \
        F(S3(b, s, d)), POSITIVE(S1(d)), F(S1(d)), WEIGHTS(S2(3 * d, d), d), F(S1(3 * d)), WEIGHTS(S2(d, d), d), F(S1(d)), \
            POSITIVE(S1(d)), F(S1(d)), WEIGHTS(S2(4 * d, d), d), F(S1(4 * d)), WEIGHTS(S2(d, 4 * d), 4 * d), F(S1(d))      \
    }

static const Program programs[] = {
    {"linear, GELU, residual, 512 x 512", linear_gelu, 1, {F(S2(512, 512)), WEIGHTS(S2(512, 512), 512), F(S1(512))}},
    {"linear, GELU, residual, 512 x 1024", linear_gelu, 1, {F(S2(512, 1024)), WEIGHTS(S2(1024, 1024), 1024), F(S1(1024))}},
    {"linear, GELU, residual, norm, 512 x 512",
     linear_gelu_norm,
     1,
     {F(S2(512, 512)), WEIGHTS(S2(512, 512), 512), F(S1(512)), F(S1(512)), F(S1(512))}},
    {"linear, GELU, residual, norm, 512 x 1024",
     linear_gelu_norm,
     1,
     {F(S2(512, 1024)), WEIGHTS(S2(1024, 1024), 1024), F(S1(1024)), F(S1(1024)), F(S1(1024))}},
    {"i8 weights dequantised, 1 x 4096", dequantised, 1, {F(S2(1, 4096)), INTS(KILN_I8, S2(4096, 4096), -127, 128), POSITIVE(S1(4096))}},
    {"i8 weights dequantised, 64 x 1024", dequantised, 1, {F(S2(64, 1024)), INTS(KILN_I8, S2(1024, 1024), -127, 128), POSITIVE(S1(1024))}},
    {"q, k, v of one input, 512 x 512",
     query_key_value,
     3,
     {F(S2(512, 512)), F(S2(512, 512)), F(S2(512, 512)), F(S2(512, 512)), F(S1(512)), F(S1(512)), F(S1(512))}},
    {"q, k, v of one input, 8 x 512",
     query_key_value,
     3,
     {F(S2(8, 512)), F(S2(512, 512)), F(S2(512, 512)), F(S2(512, 512)), F(S1(512)), F(S1(512)), F(S1(512))}},
    {"two layers and relu, 256 x 1024 x 2048", two_layers, 1, {F(S2(256, 1024)), F(S2(1024, 2048)), F(S2(2048, 1024))}},
    {"(a) relu((sin x cos y + x) y), 2^24", chain, 1, {F(S1(1 << 24)), F(S1(1 << 24))}},
    {"(b) sum of tanh, sigmoid, exp, 10M", chain_sum, 1, {F(S1(10000000))}},
    {"(e) sigmoid(relu(2 x + 1) / 2), 4096 x 4096", small_chain, 1, {SQUARE}},
    {"where of log and sqrt, 2^24", where_log, 1, {POSITIVE(S1(1 << 24))}},
    {"pow, 2^22", power, 1, {POSITIVE(S1(1 << 22)), F(S1(1 << 22))}},
    {"softmax 4096 x 4096", softmax, 1, {SQUARE}},
    {"softmax 1024 x 64", softmax, 1, {F(S2(1024, 64))}},
    {"layer norm 4096 x 4096", layer_norm, 1, {SQUARE, F(S1(4096)), F(S1(4096))}},
    {"layer norm 1024 x 64", layer_norm, 1, {F(S2(1024, 64)), F(S1(64)), F(S1(64))}},
    {"RMS norm 4096 x 4096", rms_norm, 1, {SQUARE, F(S1(4096))}},
    {"RMS norm 1024 x 64", rms_norm, 1, {F(S2(1024, 64)), F(S1(64))}},
    {"logsumexp of rows, 4096 x 4096", logsumexp, 1, {SQUARE}},
    {"sum of all, 4096 x 4096", sum_all, 1, {SQUARE}},
    {"sum of rows, 4096 x 4096", sum_rows, 1, {SQUARE}},
    {"sum of columns, 4096 x 4096", sum_columns, 1, {SQUARE}},
    {"max of all, 4096 x 4096", max_all, 1, {SQUARE}},
    {"argmax of rows, 4096 x 4096", argmax_rows, 1, {SQUARE}},
    {"argmax of columns, 4096 x 4096", argmax_columns, 1, {SQUARE}},
    {"variance of columns, 4096 x 4096", var_columns, 1, {SQUARE}},
    {"pairwise distances, 1000 x 1000 of 64", distances, 1, {F(S2(1000, 64)), F(S2(1000, 64))}},
    {"cumsum of rows, 4096 x 4096", scan_rows, 1, {SQUARE}},
    {"cumsum of columns, 4096 x 4096", scan_columns, 1, {SQUARE}},
    {"cumsum of a line of 2^24", scan_rows, 1, {F(S1(1 << 24))}},
    {"transpose 4096 x 4096", transposed, 1, {SQUARE}},
    {"0 2 1 3 of 32 x 128 x 16 x 64", middle_swapped, 1, {F(S4(32, 128, 16, 64))}},
    {"0 2 3 1 of 8 x 3 x 512 x 512", channels_last, 1, {F(S4(8, 3, 512, 512))}},
    {"0 2 1 3 of 4 x 1024 x 1024 pairs", middle_swapped, 1, {F(S4(4, 1024, 1024, 2))}},
    {"8192 rows of 50000 x 512", embedding, 1, {F(S2(50000, 512)), INTS(KILN_I64, S1(8192), 0, 50000)}},
    {"scatter-add of 2^20 into 1e5", scatter_add, 1, {F(S1(100000)), INTS(KILN_I64, S1(1 << 20), 0, 100000), F(S1(1 << 20))}},
    {"eight of 1024 x 4096 along columns",
     columns_joined,
     1,
     {F(S2(1024, 4096)), F(S2(1024, 4096)), F(S2(1024, 4096)), F(S2(1024, 4096)), F(S2(1024, 4096)), F(S2(1024, 4096)), F(S2(1024, 4096)),
      F(S2(1024, 4096))}},
    {"every other row and column, 4096 x 4096", strided, 1, {SQUARE}},
    {"five-point stencil, 4096 x 4096", stencil, 1, {SQUARE}},
    {"nine shifted products, 56 x 56 x 64", shifted_products, 1, {F(S3(58, 58, 64)), F(S4(3, 3, 64, 64))}},
    {"rotary attention, causal, 4 x 16 x 128 x 64",
     rotary_attention,
     1,
     {F(S4(4, 16, 128, 64)), F(S4(4, 16, 128, 64)), F(S4(4, 16, 128, 64)), POSITIVE(S2(128, 32))}},
    {"rotary attention, causal, 1 x 16 x 1024 x 64",
     rotary_attention,
     1,
     {F(S4(1, 16, 1024, 64)), F(S4(1, 16, 1024, 64)), F(S4(1, 16, 1024, 64)), POSITIVE(S2(1024, 32))}},
    {"ALiBi attention, 1 x 16 x 1024 x 64",
     alibi_attention,
     1,
     {F(S4(1, 16, 1024, 64)), F(S4(1, 16, 1024, 64)), F(S4(1, 16, 1024, 64)), POSITIVE(S1(16))}},
    {"transformer block, 1 x 128 x 512", transformer, 1, TRANSFORMER(1, 128, 512)},
    {"transformer block, 8 x 128 x 512", transformer, 1, TRANSFORMER(8, 128, 512)},
    {"ResNet block, 1 x 64 x 56 x 56", resnet, 1, RESNET(1, 64, 56)},
    {"ResNet block, 8 x 128 x 28 x 28", resnet, 1, RESNET(8, 128, 28)},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* ---- what bench/programs.py calls ---- */

EXPORT Call *programs_open(int i)
{
    Call *call = call_new();
    for (const Input *in = programs[i].in; call->inputs < MOST_INPUTS && in->dtype; in++) {
        const double by = in->inputs ? sqrt((double)in->inputs) : 1;
        call->in[call->inputs++] = in->dtype == KILN_F32 ? kiln_uniform(in->dtype, in->shape, in->low / by, in->high / by)
                                                         : kiln_randint(in->dtype, in->shape, (int64_t)in->low, (int64_t)in->high);
    }
    call_compile(call, programs[i].body, programs[i].results, NULL);
    return call;
}

#ifdef PROGRAMS_MODULE
EXPORT const char *programs_name(int i) { return i < PROGRAMS ? programs[i].name : NULL; } /* NULL past the last */

EXPORT int programs_option(const char *name, const char *value) { return kiln_set_option(name, value) == KILN_OK ? 0 : -1; }

EXPORT void programs_call(Call *call) { call_run(call); }

EXPORT void programs_close(Call *call) { call_free(call); }

EXPORT int programs_read(const Call *call, int i, int64_t *dims, int *dtype, void *data) { return call_read(call, i, dims, dtype, data); }
#else

/* ---- the program ---- */

static void measure(int i, int rounds)
{
    Call *call = programs_open(i);
    CallTime time = call_time(call, rounds);
    printf("%-44s %10.3f ms, %2lld kernels, %8.1f MB moved\n", programs[i].name, time.seconds * 1e3, time.kernels, time.bytes * 1e-6);
    call_free(call);
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--quick"))) {
        fputs("usage: programs [--quick]\n", stderr);
        return 2;
    }
    for (int i = 0; i < PROGRAMS; i++)
        measure(i, argc == 2 ? QUICK_ROUNDS : CALL_ROUNDS);
    return 0;
}
#endif

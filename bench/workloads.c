/* See workloads.h. Inputs come from kiln's generator with a fixed seed. */
#include "bench/workloads.h"

#include <math.h>
#include <string.h>

static int64_t scaled(int64_t n, int small)
{
    return small ? (n / 8 > 16 ? n / 8 : 16) : n;
}

static kiln_status evaluated(kiln_tensor **in, int n)
{
    return kiln_eval_many(in, n);
}

/* Weights scaled so that the layer keeps the size of its input. */
static kiln_tensor *weight(kiln_dtype dtype, int64_t rows, int64_t columns)
{
    return kiln_normal(dtype, KILN_SHAPE(rows, columns), 0, 1 / sqrt((double)rows));
}

/* ---- (a), (b), (e): elementwise chains ---- */

static kiln_status two_vectors(kiln_tensor **in, int small)
{
    kiln_shape shape = KILN_SHAPE(scaled(1 << 24, small));
    in[0] = kiln_uniform(KILN_F32, shape, -3, 3);
    in[1] = kiln_uniform(KILN_F32, shape, -3, 3);
    return evaluated(in, 2);
}

static kiln_tensor *graph_a(kiln_tensor **in)
{
    kiln_tensor *x = in[0], *y = in[1];
    return kiln_relu(kiln_mul(kiln_add(kiln_mul(kiln_sin(x), kiln_cos(y)), x), y));
}

static kiln_status ten_million(kiln_tensor **in, int small)
{
    in[0] = kiln_uniform(KILN_F32, KILN_SHAPE(scaled(10000000, small)), -3, 3);
    return evaluated(in, 1);
}

static kiln_tensor *graph_b(kiln_tensor **in)
{
    kiln_tensor *x = in[0];
    kiln_tensor *u = kiln_tanh(kiln_add(kiln_mul(x, kiln_scalar(0.1)), kiln_scalar(1.7)));
    return kiln_sum(kiln_add(kiln_mul(u, kiln_sigmoid(x)), kiln_exp(kiln_mul(kiln_neg(x), x))));
}

static kiln_status square_matrix(kiln_tensor **in, int small)
{
    in[0] = kiln_uniform(KILN_F32, KILN_SHAPE(scaled(4096, small), 4096), -3, 3);
    return evaluated(in, 1);
}

static kiln_tensor *graph_e(kiln_tensor **in)
{
    kiln_tensor *t = kiln_relu(kiln_add(kiln_mul(in[0], kiln_scalar(2)), kiln_scalar(1)));
    return kiln_sigmoid(kiln_mul(t, kiln_scalar(0.5)));
}

/* ---- rows ---- */

static kiln_tensor *graph_softmax(kiln_tensor **in)
{
    return kiln_softmax(in[0], -1);
}

static kiln_status layer_norm_inputs(kiln_tensor **in, int small)
{
    in[0] = kiln_uniform(KILN_F32, KILN_SHAPE(scaled(4096, small), 4096), -3, 3);
    in[1] = kiln_uniform(KILN_F32, KILN_SHAPE(4096), 0.5, 1.5);
    in[2] = kiln_uniform(KILN_F32, KILN_SHAPE(4096), -1, 1);
    return evaluated(in, 3);
}

static kiln_tensor *graph_layer_norm(kiln_tensor **in)
{
    return kiln_layer_norm(in[0], in[1], in[2], 1e-5);
}

/* ---- (c), (g): contractions ---- */

static kiln_status two_layers(kiln_tensor **in, int small)
{
    int64_t n = scaled(256, small), k = scaled(1024, small), h = scaled(2048, small);
    in[0] = kiln_normal(KILN_F32, KILN_SHAPE(n, k), 0, 1);
    in[1] = weight(KILN_F32, k, h);
    in[2] = weight(KILN_F32, h, k);
    return evaluated(in, 3);
}

static kiln_tensor *graph_c(kiln_tensor **in)
{
    return kiln_matmul(kiln_relu(kiln_matmul(in[0], in[1])), in[2]);
}

static kiln_status mlp_inputs(kiln_tensor **in, int small)
{
    int64_t n = scaled(512, small), k = scaled(2048, small), h = scaled(4096, small);
    in[0] = kiln_normal(KILN_BF16, KILN_SHAPE(n, k), 0, 1);
    in[1] = weight(KILN_BF16, k, h);
    in[2] = weight(KILN_BF16, h, k);
    in[3] = weight(KILN_BF16, h, k);
    return evaluated(in, 4);
}

/* The product with in[3] is recorded and never asked for: exactly two contractions should run. */
static kiln_tensor *graph_g(kiln_tensor **in)
{
    kiln_tensor *hidden = kiln_relu(kiln_matmul(in[0], in[1]));
    kiln_tensor *unused = kiln_matmul(hidden, in[3]);
    (void)unused;
    return kiln_matmul(hidden, in[2]);
}

const Workload workloads[] = {
    {"a", "relu((sin x * cos y + x) * y)", "2^24 f32", 2, 2, two_vectors, graph_a},
    {"b", "sum(tanh(0.1x+1.7) * sigmoid(x) + exp(-x*x))", "10M f32", 1, 1, ten_million, graph_b},
    {"c", "relu(X A) B", "256x1024x2048 f32", 3, 1, two_layers, graph_c},
    {"e", "sigmoid(relu(2x + 1) * 0.5)", "4096x4096 f32", 1, 1, square_matrix, graph_e},
    {"softmax", "softmax over rows", "4096x4096 f32", 1, 1, square_matrix, graph_softmax},
    {"layer_norm", "layer norm over rows", "4096x4096 f32", 3, 1, layer_norm_inputs, graph_layer_norm},
    {"g", "two layers and an unused product", "512x2048x4096 bf16", 4, 1, mlp_inputs, graph_g},
};
const int n_workloads = sizeof workloads / sizeof *workloads;

const Workload *workload_named(const char *name)
{
    for (int i = 0; i < n_workloads; i++)
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    return NULL;
}

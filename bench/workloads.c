/* See workloads.h. The references know nothing of kiln: libm's functions in f64, in the plainest order. */
#include "bench/workloads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

kiln_shape workload_shape(const Workload *w, int input, int small)
{
    const WorkloadInput *in = &w->input[input];
    kiln_shape shape = {.rank = in->rank};
    for (int d = 0; d < in->rank; d++) {
        int64_t scaled = in->dim[d] >> (3 * small);
        shape.dim[d] = in->fixed[d] || small == 0 ? in->dim[d] : scaled > 16 ? scaled : 16;
    }
    return shape;
}

void workload_range(const Workload *w, int input, int small, double *low, double *high)
{
    *low = w->input[input].low;
    *high = w->input[input].high;
    if (*low < *high)
        return;
    *high = sqrt(3.0 / (double)workload_shape(w, input, small).dim[0]); /* variance 1 / rows */
    *low = -*high;
}

kiln_status workload_inputs(const Workload *w, kiln_dtype dtype, int small, kiln_tensor **in)
{
    for (int i = 0; i < w->n_inputs; i++) {
        double low, high;
        workload_range(w, i, small, &low, &high);
        in[i] = kiln_uniform(dtype, workload_shape(w, i, small), low, high);
    }
    return kiln_eval_many(in, w->n_inputs);
}

/* ---- (a), (b), (e): elementwise chains ---- */

static kiln_tensor *graph_a(kiln_tensor **in)
{
    kiln_tensor *x = in[0], *y = in[1];
    return kiln_relu(kiln_mul(kiln_add(kiln_mul(kiln_sin(x), kiln_cos(y)), x), y));
}

static void reference_a(const HostInput *in, int64_t row, double *out)
{
    double x = (double)in[0].data[row], y = (double)in[1].data[row];
    *out = fmax((sin(x) * cos(y) + x) * y, 0);
}

static kiln_tensor *graph_b(kiln_tensor **in)
{
    kiln_tensor *x = in[0];
    kiln_tensor *u = kiln_tanh(kiln_add(kiln_mul(x, kiln_scalar(0.1)), kiln_scalar(1.7)));
    return kiln_sum(kiln_add(kiln_mul(u, kiln_sigmoid(x)), kiln_exp(kiln_mul(kiln_neg(x), x))));
}

static void reference_b(const HostInput *in, int64_t row, double *out)
{
    double x = (double)in[0].data[row];
    *out = tanh(0.1 * x + 1.7) / (1 + exp(-x)) + exp(-x * x);
}

static kiln_tensor *graph_e(kiln_tensor **in)
{
    kiln_tensor *t = kiln_relu(kiln_add(kiln_mul(in[0], kiln_scalar(2)), kiln_scalar(1)));
    return kiln_sigmoid(kiln_mul(t, kiln_scalar(0.5)));
}

static void reference_e(const HostInput *in, int64_t row, double *out)
{
    for (int64_t j = 0; j < in[0].columns; j++) {
        double x = (double)in[0].data[row * in[0].columns + j];
        out[j] = 1 / (1 + exp(-0.5 * fmax(2 * x + 1, 0)));
    }
}

/* ---- rows ---- */

static kiln_tensor *graph_softmax(kiln_tensor **in) { return kiln_softmax(in[0], -1); }

static void reference_softmax(const HostInput *in, int64_t row, double *out)
{
    int64_t n = in[0].columns;
    const float *x = in[0].data + row * n;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        most = fmax(most, (double)x[j]);
    for (int64_t j = 0; j < n; j++)
        sum += out[j] = exp((double)x[j] - most);
    for (int64_t j = 0; j < n; j++)
        out[j] /= sum;
}

static kiln_tensor *graph_layer_norm(kiln_tensor **in) { return kiln_layer_norm(in[0], in[1], in[2], 1e-5); }

static void reference_layer_norm(const HostInput *in, int64_t row, double *out)
{
    int64_t n = in[0].columns;
    const float *x = in[0].data + row * n;
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < n; j++)
        sum += (double)x[j];
    double mean = sum / (double)n;
    for (int64_t j = 0; j < n; j++)
        squares += ((double)x[j] - mean) * ((double)x[j] - mean);
    double scale = 1 / sqrt(squares / (double)n + 1e-5);
    for (int64_t j = 0; j < n; j++)
        out[j] = ((double)x[j] - mean) * scale * (double)in[1].data[j] + (double)in[2].data[j];
}

/* ---- (c), (g): contractions ---- */

static kiln_tensor *graph_c(kiln_tensor **in) { return kiln_matmul(kiln_relu(kiln_matmul(in[0], in[1])), in[2]); }

/* The product with in[3] is recorded and never asked for: exactly two contractions should run. */
static kiln_tensor *graph_g(kiln_tensor **in)
{
    kiln_tensor *hidden = kiln_relu(kiln_matmul(in[0], in[1]));
    kiln_tensor *unused = kiln_matmul(hidden, in[3]);
    (void)unused;
    return kiln_matmul(hidden, in[2]);
}

/* out = x B, for a row x. */
static void row_times(const double *x, const HostInput *b, double *out)
{
    memset(out, 0, sizeof *out * (size_t)b->columns);
    for (int64_t k = 0; k < b->rows; k++)
        for (int64_t j = 0; j < b->columns; j++)
            out[j] += x[k] * (double)b->data[k * b->columns + j];
}

/* Both: relu(X A) B. */
static void reference_layers(const HostInput *in, int64_t row, double *out)
{
    double *x = malloc(sizeof *x * (size_t)(in[1].rows + in[1].columns)), *hidden = x + in[1].rows;
    if (!x) {
        for (int64_t j = 0; j < in[2].columns; j++)
            out[j] = NAN; /* nothing equals it: the check fails */
        return;
    }
    for (int64_t k = 0; k < in[1].rows; k++)
        x[k] = (double)in[0].data[row * in[1].rows + k];
    row_times(x, &in[1], hidden);
    for (int64_t j = 0; j < in[1].columns; j++)
        hidden[j] = fmax(hidden[j], 0);
    row_times(hidden, &in[2], out);
    free(x);
}

#define VECTOR(n)              \
    {                          \
        1, {n}, {false}, -3, 3 \
    }
#define MATRIX                                \
    {                                         \
        2, {4096, 4096}, {false, true}, -3, 3 \
    }
#define OF_COLUMNS(low, high)        \
    {                                \
        1, {4096}, {true}, low, high \
    }
#define DATA(rows, columns)                                       \
    {                                                             \
        2, {rows, columns}, {false, false}, -1.7320508, 1.7320508 \
    } /* variance 1 */
#define WEIGHT(rows, columns)                    \
    {                                            \
        2, {rows, columns}, {false, false}, 0, 0 \
    }

const Workload workloads[] = {
    {"a", "relu((sin x * cos y + x) * y)", "2^24 f32", KILN_F32, 2, 2, {VECTOR(1 << 24), VECTOR(1 << 24)}, graph_a, reference_a, false},
    {"b", "sum(tanh(0.1x+1.7) * sigmoid(x) + exp(-x*x))", "10M f32", KILN_F32, 1, 1, {VECTOR(10000000)}, graph_b, reference_b, true},
    {"c",
     "relu(X A) B",
     "256x1024x2048 f32",
     KILN_F32,
     3,
     3,
     {DATA(256, 1024), WEIGHT(1024, 2048), WEIGHT(2048, 1024)},
     graph_c,
     reference_layers,
     false},
    {"e", "sigmoid(relu(2x + 1) * 0.5)", "4096x4096 f32", KILN_F32, 1, 1, {MATRIX}, graph_e, reference_e, false},
    {"softmax", "softmax over rows", "4096x4096 f32", KILN_F32, 1, 1, {MATRIX}, graph_softmax, reference_softmax, false},
    {"layer_norm",
     "layer norm over rows",
     "4096x4096 f32",
     KILN_F32,
     3,
     3,
     {MATRIX, OF_COLUMNS(0.5, 1.5), OF_COLUMNS(-1, 1)},
     graph_layer_norm,
     reference_layer_norm,
     false},
    {"g",
     "two layers and an unused product",
     "512x2048x4096 bf16",
     KILN_BF16,
     4,
     3,
     {DATA(512, 2048), WEIGHT(2048, 4096), WEIGHT(4096, 2048), WEIGHT(4096, 2048)},
     graph_g,
     reference_layers,
     false},
};
const int n_workloads = sizeof workloads / sizeof *workloads;

const Workload *workload_named(const char *name)
{
    for (int i = 0; i < n_workloads; i++)
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    return NULL;
}

/*
 * A step of training: loss, gradients and AdamW's update of a small network and of a transformer block, as one kiln_function each.
 *
 *     train [--quick]          time of a step, kernels, bytes moved, the most memory there was beside parameters, state and inputs;
 *                              time to record loss and gradients, which a kiln_function does once
 *
 * Built as a module, too, whose functions (train_*) bench/train.py calls, which runs the same steps in PyTorch beside it.
 */
#include "bench/timing.h"

#include <kiln.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARAMS = 16, MOST_INPUTS = 2, ROUNDS = 31, QUICK_ROUNDS = 3 };

typedef struct Train Train;
typedef kiln_tensor *Loss(kiln_tensor **p, kiln_tensor **in);

typedef struct Workload {
    const char *name;
    Loss *loss;
    int n;
    kiln_shape shape[MOST_PARAMS];
    kiln_shape input[MOST_INPUTS];
    int classes; /* of input 1, which are labels; 0: floats */
} Workload;

struct Train {
    const Workload *workload;
    kiln_scope *scope;
    kiln_tensor *p[MOST_PARAMS], *g[MOST_PARAMS], *in[MOST_INPUTS + 1];
    kiln_optimizer *opt;
    kiln_function *step;
};

/* ---- the workloads ---- */

static kiln_tensor *mlp(kiln_tensor **p, kiln_tensor **in)
{
    kiln_tensor *x = kiln_relu(kiln_linear(in[0], p[0], p[1]));
    x = kiln_relu(kiln_linear(x, p[2], p[3]));
    return kiln_mean(kiln_cross_entropy(kiln_linear(x, p[4], p[5]), in[1]));
}

enum { B = 8, S = 128, D = 256, HEADS = 4 };

/* [B, S, D] -> [B, HEADS, S, D / HEADS] */
static kiln_tensor *heads(kiln_tensor *x)
{
    return kiln_permute(kiln_reshape(x, KILN_SHAPE(B, S, HEADS, D / HEADS)), KILN_AXES(0, 2, 1, 3));
}

static kiln_tensor *block(kiln_tensor **p, kiln_tensor **in)
{
    kiln_tensor *x = in[0], *part[3];
    kiln_tensor *h = kiln_layer_norm(x, p[0], p[1], 1e-5);
    if (kiln_split(kiln_linear(h, p[2], p[3]), -1, 3, NULL, part) != KILN_OK)
        return NULL;
    kiln_tensor *scores = kiln_mul(kiln_matmul(heads(part[0]), kiln_transpose(heads(part[1]))), 1 / sqrt((double)D / HEADS));
    kiln_tensor *mixed = kiln_permute(kiln_matmul(kiln_softmax(scores, -1), heads(part[2])), KILN_AXES(0, 2, 1, 3));
    x = kiln_add(x, kiln_linear(kiln_reshape(mixed, KILN_SHAPE(B, S, D)), p[4], p[5]));
    h = kiln_layer_norm(x, p[6], p[7], 1e-5);
    x = kiln_add(x, kiln_linear(kiln_gelu(kiln_linear(h, p[8], p[9])), p[10], p[11]));
    return kiln_mse(x, in[1]);
}

#define SHAPE1(a) \
    {             \
        1, { a }  \
    }
#define SHAPE2(a, b) \
    {                \
        2, { a, b }  \
    }
#define SHAPE3(a, b, c) \
    {                   \
        3, { a, b, c }  \
    }
static const Workload workloads[] = {
    {"mlp",
     mlp,
     6,
     {SHAPE2(1024, 784), SHAPE1(1024), SHAPE2(1024, 1024), SHAPE1(1024), SHAPE2(10, 1024), SHAPE1(10)},
     {SHAPE2(128, 784), SHAPE1(128)},
     10},
    {"block",
     block,
     12,
     {SHAPE1(D), SHAPE1(D), SHAPE2(3 * D, D), SHAPE1(3 * D), SHAPE2(D, D), SHAPE1(D), SHAPE1(D), SHAPE1(D), SHAPE2(4 * D, D), SHAPE1(4 * D),
      SHAPE2(D, 4 * D), SHAPE1(D)},
     {SHAPE3(B, S, D), SHAPE3(B, S, D)},
     0},
};
enum { WORKLOADS = sizeof workloads / sizeof *workloads };

/* ---- a step ---- */

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Train *t = user;
    out[0] = t->workload->loss(t->p, in);
    if (kiln_grad(out[0], t->p, t->workload->n, t->g) == KILN_OK)
        (void)kiln_optimizer_step(t->opt, t->g, in[MOST_INPUTS]);
}

#define EXPORT __attribute__((visibility("default")))

EXPORT Train *train_open(const char *name)
{
    Train *t = calloc(1, sizeof *t);
    for (int i = 0; t && i < WORKLOADS; i++)
        if (!strcmp(workloads[i].name, name))
            t->workload = &workloads[i];
    if (!t || !t->workload) {
        free(t);
        return NULL;
    }
    const Workload *w = t->workload;
    t->scope = kiln_scope_begin();
    kiln_seed(1);
    for (int i = 0; i < w->n; i++) { /* vectors: biases and what multiplies a norm, some noise around 1 so that none is idle */
        bool matrix = w->shape[i].rank == 2;
        t->p[i] = kiln_param(kiln_normal(KILN_F32, w->shape[i], matrix ? 0 : 0.5, matrix ? 1 / sqrt((double)w->shape[i].dim[1]) : 0.1));
    }
    t->in[0] = kiln_randn(KILN_F32, w->input[0]);
    t->in[1] = w->classes ? kiln_randint(KILN_I64, w->input[1], 0, w->classes) : kiln_randn(KILN_F32, w->input[1]);
    t->in[2] = kiln_full(KILN_F32, KILN_SHAPE(), 1e-3);
    kiln_check(kiln_eval_many(t->p, w->n));
    kiln_check(kiln_eval_many(t->in, 3));
    t->opt = kiln_optimizer_new(t->p, w->n, &(kiln_optimizer_options){.kind = KILN_ADAMW, .weight_decay = 0.01});
    t->step = kiln_function_new(step, MOST_INPUTS + 1, 1, t);
    return t;
}

EXPORT int train_option(const char *name, const char *value) { return kiln_set_option(name, value) == KILN_OK ? 0 : -1; }

EXPORT void train_close(Train *t)
{
    kiln_function_free(t->step);
    kiln_optimizer_free(t->opt);
    kiln_scope_end(t->scope);
    free(t);
}

/* One step; returns its loss. */
EXPORT double train_step(Train *t)
{
    double value;
    kiln_tensor *loss;
    kiln_scope *scope = kiln_scope_begin();
    kiln_check(kiln_function_call(t->step, t->in, &loss));
    kiln_check(kiln_item(loss, &value));
    kiln_scope_end(scope);
    return value;
}

/* Parameter i, or past those an input; NULL past all. Rank and dims; `data` (may be NULL) gets the elements. Returns the rank, -1 past all. */
EXPORT int train_read(Train *t, int i, int64_t *dims, void *data)
{
    int n = t->workload->n;
    if (i >= n + MOST_INPUTS)
        return -1;
    kiln_tensor *x = i < n ? t->p[i] : t->in[i - n];
    kiln_shape shape = kiln_shape_of(x);
    memcpy(dims, shape.dim, sizeof *dims * (size_t)shape.rank);
    if (data)
        kiln_check(kiln_read(x, kiln_dtype_of(x), data, (size_t)kiln_numel(x) * kiln_dtype_size(kiln_dtype_of(x))));
    return shape.rank;
}

/* ---- the program ---- */

#ifndef TRAIN_MODULE
static void measure(const Workload *w, int rounds)
{
    double times[MAX_ROUNDS], first = 0, last = 0;
    Train *t = train_open(w->name);
    kiln_stats before, after;
    for (int i = 0; i < 3; i++)
        first = i ? first : train_step(t);
    kiln_reset_stats();
    kiln_get_stats(&before);
    for (int i = 0; i < rounds; i++) {
        double start = now_seconds();
        last = train_step(t);
        times[i] = now_seconds() - start;
    }
    kiln_get_stats(&after);
    if (after.compiles != before.compiles || !(last < first)) {
        fprintf(stderr, "train: %s: %lld compiles after the third step, loss from %g to %g\n", w->name,
                (long long)(after.compiles - before.compiles), first, last);
        exit(1);
    }
    printf("%-8s %8.2f ms a step, %3lld kernels, %7.1f MB moved, %6.1f MB held, %5.1f MB more at most\n", w->name,
           median(times, rounds) * 1e3, (long long)(after.kernels - before.kernels) / rounds,
           (double)(after.bytes_moved - before.bytes_moved) / rounds * 1e-6, (double)before.live_bytes * 1e-6,
           (double)(after.peak_bytes - before.live_bytes) * 1e-6);
    train_close(t);
}

/* Loss and gradients, recorded and let go. */
static void measure_recording(const Workload *w)
{
    double forward[MAX_ROUNDS], gradient[MAX_ROUNDS];
    int64_t ops = 0, more = 0;
    Train *t = train_open(w->name);
    for (int i = 0; i < ROUNDS; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_stats before, between, after;
        kiln_get_stats(&before);
        double start = now_seconds();
        kiln_tensor *loss = w->loss(t->p, t->in);
        double middle = now_seconds();
        kiln_get_stats(&between);
        double again = now_seconds();
        kiln_check(kiln_grad(loss, t->p, w->n, t->g));
        gradient[i] = now_seconds() - again;
        forward[i] = middle - start;
        kiln_get_stats(&after);
        ops = between.nodes - before.nodes;
        more = after.nodes - between.nodes;
        kiln_scope_end(scope);
    }
    double f = median(forward, ROUNDS) * 1e9, g = median(gradient, ROUNDS) * 1e9;
    printf("%-8s %8.0f ns for each of %lld ops that are recorded, %.0f ns for gradients through it, %lld ops more\n", w->name,
           f / (double)ops, (long long)ops, g / (double)ops, (long long)more);
    train_close(t);
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--quick"))) {
        fputs("usage: train [--quick]\n", stderr);
        return 2;
    }
    for (int i = 0; i < WORKLOADS; i++) {
        measure(&workloads[i], argc == 2 ? QUICK_ROUNDS : ROUNDS);
        measure_recording(&workloads[i]);
    }
    return 0;
}
#endif

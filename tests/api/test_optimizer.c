/* Optimisers: their steps against the papers' formulas in double precision, in place, compiled once, resumed; clipping, accumulation, loss
 * scaling. */
#include "api.h"
#include "tests/support/count.h"

#include <stdio.h>
#include <unistd.h>

/* --- against double precision ----------------------------------------------------------------------------------- */

enum { N = 4, STEPS = 6 };

static const kiln_optimizer_options variants[] = {
    {.kind = KILN_SGD},
    {.kind = KILN_SGD, .weight_decay = 0.1},
    {.kind = KILN_SGD, .momentum = 0.9},
    {.kind = KILN_SGD, .momentum = 0.5, .nesterov = true, .weight_decay = 0.01},
    {.kind = KILN_ADAM},
    {.kind = KILN_ADAM, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-4, .weight_decay = 0.1},
    {.kind = KILN_ADAMW, .weight_decay = 0.1},
    {.kind = KILN_ADAMW, .beta1 = 0.5},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

typedef struct Reference {
    double p[N], m[N], v[N];
    int steps;
} Reference;

static double rate_of(int step) { return 0.1 / (1 + step); }

/* One step as the formulas of torch.optim have it. */
static void reference_step(const kiln_optimizer_options *o, Reference *x, const double *grad)
{
    double b1 = o->beta1 > 0 ? o->beta1 : 0.9, b2 = o->beta2 > 0 ? o->beta2 : 0.999, eps = o->eps > 0 ? o->eps : 1e-8;
    double rate = rate_of(x->steps++);
    for (int i = 0; i < N; i++) {
        double g = grad[i];
        if (o->kind == KILN_ADAMW)
            x->p[i] *= 1 - rate * o->weight_decay;
        else
            g += o->weight_decay * x->p[i];
        if (o->kind == KILN_SGD) {
            x->m[i] = o->momentum * x->m[i] + g;
            x->p[i] -= rate * (o->momentum == 0 ? g : o->nesterov ? g + o->momentum * x->m[i] : x->m[i]);
            continue;
        }
        x->m[i] = b1 * x->m[i] + (1 - b1) * g;
        x->v[i] = b2 * x->v[i] + (1 - b2) * g * g;
        double m = x->m[i] / (1 - pow(b1, x->steps)), v = x->v[i] / (1 - pow(b2, x->steps));
        x->p[i] -= rate * m / (sqrt(v) + eps);
    }
}

/* The loss: sum c (p - 1)^2 p, whose gradient is c (p - 1) (3 p - 1). */
static const double curve[N] = {0.5, 1, -0.25, 2}, start[N] = {0.5, -0.75, 1.5, 2};

static kiln_tensor *loss_of(kiln_tensor *p)
{
    kiln_tensor *d = kiln_sub(p, 1), *c = kiln_cast(F64(KILN_SHAPE(N), 0.5, 1, -0.25, 2), kiln_dtype_of(p));
    return kiln_sum(kiln_mul(kiln_mul(c, kiln_square(d)), p));
}

typedef struct Trained {
    kiln_tensor *p, *g;
    kiln_optimizer *opt;
} Trained;

static void train_body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Trained *t = user;
    out[0] = loss_of(t->p);
    if (kiln_grad(out[0], &t->p, 1, &t->g) == KILN_OK)
        (void)kiln_optimizer_step(t->opt, &t->g, in[0]);
}

static void make_trained(Trained *t, kiln_dtype dtype, const kiln_optimizer_options *o)
{
    t->p = kiln_param(kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(N), start), dtype));
    t->opt = kiln_optimizer_new(&t->p, 1, o);
    cr_assert(t->p && t->opt, "%s", kiln_error_message());
}

/* Without a function: the parameter and all of the state are computed together. */
static void step_alone(Trained *t, double rate)
{
    kiln_tensor *all[8] = {t->p}, *out, *in = kiln_scalar(rate);
    int n = 1;
    kiln_scope *scope = kiln_scope_begin();
    train_body(&in, &out, t);
    kiln_scope_end(scope);
    while ((all[n] = kiln_optimizer_state(t->opt, n - 1, NULL)))
        n++;
    cr_assert(kiln_eval_many(all, n) == KILN_OK, "%s", kiln_error_message());
}

static void check_variant(const kiln_optimizer_options *o, kiln_dtype dtype, bool function, double tolerance)
{
    Reference x = {.steps = 0};
    Trained t;
    memcpy(x.p, start, sizeof start);
    make_trained(&t, dtype, o);
    kiln_function *f = kiln_function_new(train_body, 1, 1, &t);
    for (int step = 0; step < STEPS; step++) {
        double g[N];
        kiln_tensor *rate = kiln_scalar(rate_of(step)), *loss;
        for (int i = 0; i < N; i++)
            g[i] = curve[i] * (x.p[i] - 1) * (3 * x.p[i] - 1);
        reference_step(o, &x, g);
        if (function)
            cr_assert(kiln_function_call(f, &rate, &loss) == KILN_OK, "%s", kiln_error_message());
        else
            step_alone(&t, rate_of(step));
        expect(__LINE__, t.p, dtype, KILN_SHAPE(N), tolerance, x.p, N);
    }
    const char *name;
    kiln_tensor *m = kiln_optimizer_state(t.opt, o->kind != KILN_SGD, &name);
    if (o->kind != KILN_SGD || o->momentum > 0) {
        cr_assert_str_eq(name, o->kind == KILN_SGD ? "momentum.0" : "m.0");
        expect(__LINE__, m, dtype == KILN_F64 ? KILN_F64 : KILN_F32, KILN_SHAPE(N), tolerance, x.m, N);
    } else {
        cr_assert(!m && !name);
    }
    if (o->kind != KILN_SGD) {
        EXPECT(kiln_optimizer_state(t.opt, 0, &name), KILN_I64, KILN_SHAPE(), 0, STEPS);
        cr_assert_str_eq(name, "steps");
        expect(__LINE__, kiln_optimizer_state(t.opt, 2, &name), dtype == KILN_F64 ? KILN_F64 : KILN_F32, KILN_SHAPE(N), tolerance, x.v, N);
        cr_assert_str_eq(name, "v.0");
    }
    kiln_function_free(f);
    kiln_optimizer_free(t.opt);
}

API_TEST(optimizer, steps_in_f64)
{
    for (int k = 0; k < VARIANTS; k++)
        check_variant(&variants[k], KILN_F64, k % 2, 1e-13);
}

API_TEST(optimizer, steps_in_f32)
{
    for (int k = 0; k < VARIANTS; k++)
        check_variant(&variants[k], KILN_F32, k % 2 == 0, 5e-6);
}

API_TEST(optimizer, steps_in_half_precision)
{
    for (int k = 0; k < VARIANTS; k += 2) {
        check_variant(&variants[k], KILN_F16, true, 2e-2);
        check_variant(&variants[k], KILN_BF16, true, 1e-1);
    }
}

/* --- clipping, accumulation ---------------------------------------------------------------------------------------- */

API_TEST(optimizer, clip_by_global_norm)
{
    kiln_tensor *g[3] = {F32(KILN_SHAPE(2), 3, 0), kiln_cast(F32(KILN_SHAPE(1, 2), 0, -12), KILN_F16), F64(KILN_SHAPE(), 4)}, *c[3], *norm;
    cr_assert(kiln_clip_by_global_norm(g, 3, 6.5, c, &norm) == KILN_OK, "%s", kiln_error_message());
    EXPECT(norm, KILN_F64, KILN_SHAPE(), 1e-15, 13);
    EXPECT(c[0], KILN_F32, KILN_SHAPE(2), 1e-6, 1.5, 0);
    EXPECT(c[1], KILN_F16, KILN_SHAPE(1, 2), 1e-3, 0, -6);
    EXPECT(c[2], KILN_F64, KILN_SHAPE(), 1e-6, 2);
    cr_assert(kiln_clip_by_global_norm(g, 2, 100, g, NULL) == KILN_OK, "%s", kiln_error_message()); /* in place of the array */
    EXPECT(g[0], KILN_F32, KILN_SHAPE(2), 0, 3, 0);
    cr_assert(kiln_clip_by_global_norm(NULL, 0, 1, NULL, &norm) == KILN_OK, "%s", kiln_error_message());
    EXPECT(norm, KILN_F32, KILN_SHAPE(), 0, 0);
    kiln_tensor *bad[2] = {F32(KILN_SHAPE(2), INFINITY, 1), F32(KILN_SHAPE(1), NAN)};
    cr_assert(kiln_clip_by_global_norm(bad, 1, 1, c, &norm) == KILN_OK, "%s", kiln_error_message());
    EXPECT(norm, KILN_F32, KILN_SHAPE(), 0, INFINITY);
    EXPECT(c[0], KILN_F32, KILN_SHAPE(2), 0, NAN, 0);
    cr_assert(kiln_clip_by_global_norm(bad + 1, 1, 1, c, &norm) == KILN_OK, "%s", kiln_error_message());
    EXPECT(c[0], KILN_F32, KILN_SHAPE(1), 0, NAN);
    bad[0] = NULL;
    cr_assert(kiln_clip_by_global_norm(bad, 2, 1, c, &norm) == KILN_INVALID && !c[0] && !c[1] && !norm);
    cr_assert(strstr(kiln_error_message(), "grads[0] is NULL"), "%s", kiln_error_message());
    kiln_clear_error();
}

/* Gradients of two batches, added up in a tensor, are those of both together. */
API_TEST(optimizer, accumulation)
{
    kiln_tensor *p = kiln_param(F64(KILN_SHAPE(2), 1, 2)), *sum = kiln_zeros(KILN_F64, KILN_SHAPE(2)), *g;
    kiln_optimizer *opt = kiln_optimizer_new(&p, 1, &(kiln_optimizer_options){.kind = KILN_SGD});
    for (int batch = 1; batch <= 2; batch++) {
        cr_assert(kiln_grad(kiln_sum(kiln_mul(kiln_square(p), batch)), &p, 1, &g) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_assign(sum, kiln_add(sum, g)) == KILN_OK && kiln_eval(sum) == KILN_OK, "%s", kiln_error_message());
    }
    cr_assert(kiln_optimizer_step(opt, &sum, kiln_scalar(0.5)) == KILN_OK, "%s", kiln_error_message());
    EXPECT(p, KILN_F64, KILN_SHAPE(2), 0, -2, -4);
    kiln_optimizer_free(opt);
}

/* --- loss scaling --------------------------------------------------------------------------------------------------- */

typedef struct Scaled {
    kiln_tensor *p, *g;
    kiln_optimizer *opt;
    kiln_scaler *scaler;
} Scaled;

/* The loss is computed in f16: in[0] p, whose gradient in[0] is too small for f16 unless it is scaled. */
static void scaled_body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Scaled *s = user;
    kiln_tensor *loss = kiln_sum(kiln_cast(kiln_mul(kiln_cast(s->p, KILN_F16), in[0]), KILN_F32));
    if (kiln_grad(kiln_scaler_scale(s->scaler, loss), &s->p, 1, &s->g) != KILN_OK)
        return;
    out[0] = kiln_scaler_unscale(s->scaler, &s->g, 1, &s->g);
    (void)kiln_optimizer_step_where(s->opt, out[0], &s->g, in[1]);
}

API_TEST(optimizer, loss_scaling)
{
    Scaled s = {.p = kiln_param(F32(KILN_SHAPE(2), 1, -1))};
    s.opt = kiln_optimizer_new(&s.p, 1, &(kiln_optimizer_options){.kind = KILN_ADAM});
    s.scaler = kiln_scaler_new(1024, 3);
    kiln_function *f = kiln_function_new(scaled_body, 2, 1, &s);
    cr_assert(s.opt && s.scaler && f, "%s", kiln_error_message());
    const double slope[] = {1e-7, 1e-7, INFINITY, 1e-7, 1e-7, 1e-7, 1e-7}, scales[] = {1024, 1024, 512, 512, 512, 1024, 1024};
    double steps = 0, p[2] = {1, -1};
    for (int i = 0; i < 7; i++) {
        /* at least 2^-24, the least that f16 has: the gradient comes whole only by its scale */
        kiln_tensor *in[2] = {kiln_cast(F32(KILN_SHAPE(2), (float)slope[i], (float)slope[i]), KILN_F16), kiln_scalar(0.125)}, *finite;
        cr_assert(kiln_function_call(f, in, &finite) == KILN_OK, "%s", kiln_error_message());
        EXPECT(finite, KILN_BOOL, KILN_SHAPE(), 0, isfinite(slope[i]));
        for (int k = 0; k < 2 && isfinite(slope[i]); k++)
            p[k] -= 0.125 * 1.1920929e-7 /
                    (1.1920929e-7 + 1e-8); /* f16 rounds 1e-7 to 2^-23; Adam's step has the size of the rate, but for eps */
        steps += isfinite(slope[i]);
        expect(__LINE__, s.p, KILN_F32, KILN_SHAPE(2), 1e-4, p, 2);
        const char *name;
        EXPECT(kiln_optimizer_state(s.opt, 0, NULL), KILN_I64, KILN_SHAPE(), 0, steps);
        EXPECT(kiln_scaler_state(s.scaler, 0, &name), KILN_F32, KILN_SHAPE(), 0, scales[i]);
        cr_assert_str_eq(name, "scale");
    }
    EXPECT(kiln_scaler_state(s.scaler, 1, NULL), KILN_I64, KILN_SHAPE(), 0, 1);
    kiln_function_free(f);
    kiln_optimizer_free(s.opt);
    kiln_scaler_free(s.scaler);
}

/* Where the condition is false nothing changes: not the state either, and a NaN that was not chosen does no harm. */
API_TEST(optimizer, step_where)
{
    kiln_tensor *p = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *g = F32(KILN_SHAPE(2), NAN, 1);
    kiln_optimizer *opt = kiln_optimizer_new(&p, 1, &(kiln_optimizer_options){.kind = KILN_SGD, .momentum = 0.5});
    cr_assert(kiln_optimizer_step_where(opt, kiln_bool(false), &g, kiln_scalar(1)) == KILN_OK, "%s", kiln_error_message());
    EXPECT(p, KILN_F32, KILN_SHAPE(2), 0, 1, 2);
    EXPECT(kiln_optimizer_state(opt, 0, NULL), KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    kiln_tensor *fine = F32(KILN_SHAPE(2), 4, 1);
    cr_assert(kiln_optimizer_step_where(opt, kiln_all(kiln_isfinite(fine)), &fine, kiln_scalar(1)) == KILN_OK, "%s", kiln_error_message());
    EXPECT(p, KILN_F32, KILN_SHAPE(2), 0, -3, 1);
    kiln_optimizer_free(opt);
}

/* --- a small network: in place, compiled once, resumed ------------------------------------------------------------ */

enum { BATCH = 32, IN = 20, HIDDEN = 50, CLASSES = 5, PARAMS = 4 };

typedef struct Net {
    kiln_tensor *p[PARAMS], *g[PARAMS];
    kiln_optimizer *opt;
    kiln_function *step;
    double dropout;
} Net;

static void net_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Net *net = user;
    kiln_tensor *hidden = kiln_relu(kiln_linear(in[0], net->p[0], net->p[1]));
    if (net->dropout > 0)
        hidden = kiln_dropout(hidden, net->dropout);
    out[0] = kiln_mean(kiln_cross_entropy(kiln_linear(hidden, net->p[2], net->p[3]), in[1]));
    if (kiln_grad(out[0], net->p, PARAMS, net->g) == KILN_OK && kiln_clip_by_global_norm(net->g, PARAMS, 1, net->g, NULL) == KILN_OK)
        (void)kiln_optimizer_step(net->opt, net->g, in[2]);
}

static void make_net(Net *net, double dropout)
{
    const kiln_shape shapes[PARAMS] = {KILN_SHAPE(HIDDEN, IN), KILN_SHAPE(HIDDEN), KILN_SHAPE(CLASSES, HIDDEN), KILN_SHAPE(CLASSES)};
    kiln_seed(17);
    for (int i = 0; i < PARAMS; i++)
        net->p[i] = kiln_param(kiln_normal(KILN_F32, shapes[i], 0, 0.1));
    net->opt = kiln_optimizer_new(net->p, PARAMS, &(kiln_optimizer_options){.kind = KILN_ADAMW, .weight_decay = 0.01});
    net->step = kiln_function_new(net_step, 3, 1, net);
    net->dropout = dropout;
    cr_assert(net->opt && net->step && kiln_eval_many(net->p, PARAMS) == KILN_OK, "%s", kiln_error_message());
}

static void free_net(Net *net)
{
    kiln_function_free(net->step);
    kiln_optimizer_free(net->opt);
}

/* Batch `step`: points around a centre for each class. bad: one label is no class. */
static kiln_status train(Net *net, int step, bool bad, double *loss)
{
    kiln_scope *scope = kiln_scope_begin();
    int32_t label[BATCH];
    static float x[BATCH][IN];
    for (int i = 0; i < BATCH; i++) {
        label[i] = (i * 7 + step) % CLASSES;
        for (int k = 0; k < IN; k++)
            x[i][k] = (float)((k % CLASSES == label[i]) + 0.1 * ((i * 31 + k * 17 + step * 13) % 11 - 5));
    }
    label[7] = bad ? CLASSES : label[7];
    kiln_tensor *in[3] = {kiln_from(KILN_F32, KILN_SHAPE(BATCH, IN), x), kiln_from(KILN_I32, KILN_SHAPE(BATCH), label),
                          kiln_scalar(0.01 / (1 + 0.01 * step))};
    kiln_tensor *out;
    kiln_seed((uint64_t)step); /* what is dropped depends on the step alone */
    kiln_status status = kiln_function_call(net->step, in, &out);
    if (status == KILN_OK)
        status = kiln_item(out, loss);
    kiln_scope_end(scope);
    return status;
}

static size_t net_bits(const Net *net, char *bits)
{
    kiln_tensor *x;
    size_t n = 0;
    for (int i = 0; (x = i < PARAMS ? net->p[i] : kiln_optimizer_state(net->opt, i - PARAMS, NULL)); i++) {
        size_t bytes = (size_t)kiln_numel(x) * kiln_dtype_size(kiln_dtype_of(x));
        cr_assert(kiln_read(x, kiln_dtype_of(x), bits + n, bytes) == KILN_OK, "%s", kiln_error_message());
        n += bytes;
    }
    return n;
}

enum { BITS = 1 << 16 };

/* Hundreds of steps: one program, and the loss falls. */
Test(optimizer_step, compiles_once_and_learns)
{
    Net net;
    double loss, first = 0;
    kiln_stats before;
    kiln_scope *scope = kiln_scope_begin();
    make_net(&net, 0);
    for (int step = 0; step < 300; step++) {
        cr_assert(train(&net, step, false, &loss) == KILN_OK, "%s", kiln_error_message());
        first = step ? first : loss;
        if (step == 0)
            kiln_get_stats(&before);
    }
    kiln_stats after = stats_now();
    cr_assert_eq(after.compiles, before.compiles, "%d compiles after the first step", (int)(after.compiles - before.compiles));
    cr_assert(first > 1.4 && loss < 0.05, "%g, then %g", first, loss);
    free_net(&net);
    kiln_scope_end(scope);
}

/* The first call records what the others do: the state is no literal, not even the number of steps. */
Test(optimizer_step, is_pure)
{
    Net net;
    double loss;
    kiln_scope *scope = kiln_scope_begin();
    set_option("check", "pure");
    make_net(&net, 0.5);
    for (int step = 0; step < 4; step++)
        cr_assert(train(&net, step, false, &loss) == KILN_OK, "%s", kiln_error_message());
    Scaled s = {.p = kiln_param(F32(KILN_SHAPE(), 1))};
    s.opt = kiln_optimizer_new(&s.p, 1, &(kiln_optimizer_options){.kind = KILN_ADAM});
    s.scaler = kiln_scaler_new(1024, 3);
    kiln_function *f = kiln_function_new(scaled_body, 2, 1, &s);
    for (int step = 0; step < 4; step++) {
        kiln_tensor *in[2] = {kiln_ones(KILN_F16, KILN_SHAPE()), kiln_scalar(0.125)}, *finite;
        cr_assert(kiln_function_call(f, in, &finite) == KILN_OK, "%s", kiln_error_message());
    }
    kiln_function_free(f);
    kiln_optimizer_free(s.opt);
    kiln_scaler_free(s.scaler);
    free_net(&net);
    kiln_scope_end(scope);
}

static char said[1 << 16];
static kiln_log_buffer log_text = {said, sizeof said, 0};

/* Parameters and state are overwritten where they lie: nothing but the gradients of one step is allocated beside them, although a label may
 * be out of bounds; and where one is, nothing was overwritten. */
static void in_place(int at_least)
{
    Net net;
    double loss;
    kiln_stats stats;
    static char before[BITS], after[BITS];
    kiln_scope *scope = kiln_scope_begin();
    make_net(&net, 0);
    for (int step = 0; step < 3; step++)
        cr_assert(train(&net, step, false, &loss) == KILN_OK, "%s", kiln_error_message());
    set_option("log", "memory");
    kiln_set_log_sink(kiln_log_into, &log_text);
    cr_assert(train(&net, 3, false, &loss) == KILN_OK, "%s", kiln_error_message()); /* an option was set: traced anew */
    log_text.needed = 0;
    said[0] = 0;
    cr_assert(train(&net, 4, false, &loss) == KILN_OK, "%s", kiln_error_message());
    int in_place = occurrences("in place", said);
    kiln_set_log_sink(NULL, NULL);
    set_option("log", "");
    cr_assert(in_place >= at_least, "%d of %d in place: %s", in_place, 3 * PARAMS, said);
    cr_assert(train(&net, 5, false, &loss) == KILN_OK, "%s", kiln_error_message());
    kiln_reset_stats();
    kiln_get_stats(&stats);
    int64_t held = stats.live_bytes, params = (HIDDEN * IN + HIDDEN + CLASSES * HIDDEN + CLASSES) * (int64_t)sizeof(float);
    cr_assert(train(&net, 6, false, &loss) == KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(&stats);
    int64_t room = (BATCH * (IN + 2 * HIDDEN + 4 * CLASSES + 8) + 4096) * (int64_t)sizeof(float); /* a batch, what is computed of it */
    cr_assert(stats.peak_bytes - held < params + room && stats.live_bytes == held, "%d bytes beside %d, %d of parameters",
              (int)(stats.peak_bytes - held), (int)held, (int)params);
    size_t n = net_bits(&net, before);
    cr_assert(train(&net, 7, true, &loss) == KILN_BAD_INDEX, "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "kiln_cross_entropy"), "%s", kiln_error_message());
    kiln_clear_error();
    cr_assert(net_bits(&net, after) == n && !memcmp(before, after, n), "a step that failed changed something");
    cr_assert(train(&net, 7, false, &loss) == KILN_OK, "%s", kiln_error_message());
    cr_assert(net_bits(&net, after) == n && memcmp(before, after, n) != 0);
    free_net(&net);
    kiln_scope_end(scope);
}

Test(optimizer_step, is_in_place) { in_place(3 * PARAMS); }

/* The device goes on behind a bad label: the kernels that overwrite do nothing then. (A bias and its state are read where columns are
 * summed.) */
Test(optimizer_step, is_in_place_on_cuda)
{
    if (!cuda_driver()) {
        cr_log_warn("no software CUDA driver in this build: nothing was tested");
        return;
    }
    use_driver();
    set_option("device", "cuda");
    in_place(2 * 3);
}

/* A bad label in every mode and on the software device: an error, parameters and moments as they were. */
API_TEST(optimizer, a_bad_label_changes_nothing)
{
    Net net;
    double loss;
    static char before[BITS], after[BITS];
    make_net(&net, 0.5);
    for (int step = 0; step < 4; step++) {
        size_t n = net_bits(&net, before);
        cr_assert(train(&net, step, true, &loss) == KILN_BAD_INDEX, "step %d: %s", step, kiln_error_message());
        kiln_clear_error();
        cr_assert(net_bits(&net, after) == n && !memcmp(before, after, n), "step %d changed something", step);
        cr_assert(train(&net, step, false, &loss) == KILN_OK, "step %d: %s", step, kiln_error_message());
        cr_assert(net_bits(&net, after) == n && memcmp(before, after, n) != 0);
    }
    free_net(&net);
}

/* Saved after a few steps and restored into another network, training goes on with the same bits, dropout included. */
API_TEST(optimizer, resumes_with_the_same_bits)
{
    char path[512], names[PARAMS][16];
    const char *tmp = getenv("TMPDIR"), *name;
    static char whole[BITS], resumed[BITS];
    kiln_named saved[32];
    Net a, b;
    double loss;
    int n = 0;
    snprintf(path, sizeof path, "%s/kiln_optimizer_%ld.safetensors", tmp ? tmp : "/tmp", (long)getpid());
    make_net(&a, 0.25);
    for (int step = 0; step < 5; step++)
        cr_assert(train(&a, step, false, &loss) == KILN_OK, "%s", kiln_error_message());
    for (; n < PARAMS; n++) {
        snprintf(names[n], sizeof names[n], "p.%d", n);
        saved[n] = (kiln_named){names[n], a.p[n]};
    }
    for (kiln_tensor *x; (x = kiln_optimizer_state(a.opt, n - PARAMS, &name)); n++)
        saved[n] = (kiln_named){name, x};
    cr_assert_eq(n, PARAMS + 2 * PARAMS + 1);
    cr_assert(kiln_save_safetensors(path, n, saved, 0, NULL) == KILN_OK, "%s", kiln_error_message());
    for (int step = 5; step < 10; step++)
        cr_assert(train(&a, step, false, &loss) == KILN_OK, "%s", kiln_error_message());
    size_t bytes = net_bits(&a, whole);

    make_net(&b, 0.25);
    kiln_file *file = kiln_load_safetensors(path);
    for (int i = 0; i < n; i++) {
        kiln_tensor *to = i < PARAMS ? b.p[i] : kiln_optimizer_state(b.opt, i - PARAMS, NULL);
        cr_assert(kiln_assign(to, kiln_file_tensor(file, saved[i].name)) == KILN_OK, "%s", kiln_error_message());
    }
    kiln_file_free(file);
    for (int step = 5; step < 10; step++)
        cr_assert(train(&b, step, false, &loss) == KILN_OK, "%s", kiln_error_message());
    cr_assert(net_bits(&b, resumed) == bytes && !memcmp(whole, resumed, bytes), "other bits than without the interruption");
    remove(path);
    free_net(&a);
    free_net(&b);
}

/* --- what fails ------------------------------------------------------------------------------------------------------ */

static void made_inside(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **p = user;
    cr_assert(!kiln_optimizer_new(p, 1, &(kiln_optimizer_options){.kind = KILN_SGD}));
    out[0] = in[0];
}

Test(optimizer_errors, say_what)
{
    kiln_tensor *p[2] = {kiln_param(F32(KILN_SHAPE(2), 1, 2)), kiln_param(F32(KILN_SHAPE(1), 3))}, *g[2] = {p[0], F32(KILN_SHAPE(2), 1, 1)};
    kiln_optimizer *opt = kiln_optimizer_new(p, 2, &(kiln_optimizer_options){.kind = KILN_ADAM});
    cr_assert(opt, "%s", kiln_error_message());
    cr_assert(kiln_optimizer_step(opt, g, kiln_scalar(1)) == KILN_BAD_SHAPE);
    cr_assert(strstr(kiln_error_message(), "kiln_optimizer_step: grads[1] is f32[2], and its parameter is f32[1] (test_optimizer.c:"), "%s",
              kiln_error_message());
    kiln_clear_error();
    EXPECT(p[0], KILN_F32, KILN_SHAPE(2), 0, 1, 2); /* not half a step */
    EXPECT(kiln_optimizer_state(opt, 0, NULL), KILN_I64, KILN_SHAPE(), 0, 0);
    cr_assert(!kiln_optimizer_state(opt, 5, NULL) && !kiln_optimizer_state(opt, -1, NULL) && !kiln_optimizer_state(NULL, 0, NULL));
    kiln_tensor *twice[2] = {p[0], p[0]}, *out, *x = F32(KILN_SHAPE(1), 1);
    cr_assert(!kiln_optimizer_new(twice, 2, &(kiln_optimizer_options){.kind = KILN_SGD}));
    cr_assert(strstr(kiln_error_message(), "params[0] and params[1] are one tensor"), "%s", kiln_error_message());
    kiln_clear_error();
    kiln_function *f = kiln_function_new(made_inside, 1, 1, p);
    cr_assert(kiln_function_call(f, &x, &out) == KILN_INVALID);
    cr_assert(strstr(kiln_error_message(), "make it outside"), "%s", kiln_error_message());
    kiln_clear_error();
    kiln_function_free(f);
    kiln_optimizer_free(opt);
}

static void assigns_wrongly(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **p = user;
    out[0] = kiln_neg(in[0]);
    (void)kiln_assign(p[0], kiln_add(p[0], kiln_scalar(1)));
    if (p[1]) /* of another shape: nothing but the kept error tells of it */
        (void)kiln_assign(p[1], in[0]);
    else if (!kiln_reshape(in[0], KILN_SHAPE(5)))
        kiln_clear_error(); /* handled */
}

/* An error that is kept fails the call, although all outputs are there, and nothing is assigned; one that is cleared does not. */
API_TEST(optimizer, an_error_inside_a_function_fails_the_call)
{
    kiln_tensor *p[2] = {kiln_retain(F32(KILN_SHAPE(2), 1, 2)), F32(KILN_SHAPE(3), 1, 2, 3)}, *x = F32(KILN_SHAPE(2), 3, 4), *y;
    kiln_function *f = kiln_function_new(assigns_wrongly, 1, 1, p);
    for (int kept = 0; kept < 2; kept++) { /* also where an earlier error is kept, whose message is shown */
        if (kept)
            cr_assert(!kiln_reshape(x, KILN_SHAPE(7)));
        cr_assert(kiln_function_call(f, &x, &y) == KILN_BAD_SHAPE && !y);
        cr_assert(
            strstr(kiln_error_message(), kept ? "inside the function: kiln_reshape" : "inside the function: kiln_assign: shapes differ"),
            "%s", kiln_error_message());
        kiln_clear_error();
        EXPECT(p[0], KILN_F32, KILN_SHAPE(2), 0, 1, 2);
    }
    p[1] = NULL;
    for (int i = 0; i < 3; i++)
        cr_assert(kiln_function_call(f, &x, &y) == KILN_OK, "%s", kiln_error_message());
    EXPECT(p[0], KILN_F32, KILN_SHAPE(2), 0, 4, 5);
    EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, -3, -4);
    kiln_function_free(f);
    kiln_release(p[0]);
}

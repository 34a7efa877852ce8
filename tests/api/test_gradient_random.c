/*
 * Gradients of random programs: pending, in eager and interpreted mode, compiled for the CPU and for the software CUDA device, in a
 * kiln_function and outside of one, with sync points at random places, in a recording and outside of one, with ops in kiln_checkpoints at random
 * places. Equal bit for bit in strict mode; a sync point outside of a recording may make it the error that names it, never another number. And
 * with ops in kiln_custom_gradients whose rule is the plain derivative: equal but for the order in which parts are added up.
 *
 * A program that has another gradient is shrunk: nodes that the difference does not need become the node before them. What is left is told.
 */
#include "api.h"
#include "tests/support/sanitizer.h"
#include "tests/support/slice.h"

#include <stdio.h>

enum { NODES = 14, ROWS = 3, COLUMNS = 4, N = ROWS * COLUMNS, PARAMS = 2, PROGRAMS = 720 }; /* of which a run takes a slice */

typedef struct Draw {
    uint64_t state;
} Draw;

static unsigned draw(Draw *d, unsigned below) /* splitmix64 */
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (unsigned)((z ^ z >> 31) % below);
}

/* One op on values of [ROWS, COLUMNS]. */
static kiln_tensor *step(Draw *d, kiln_tensor *a, kiln_tensor *b)
{
    static const int64_t take[4] = {2, 0, 2, 1};
    switch (draw(d, 20)) {
    case 0: return kiln_sin(a);
    case 1: return kiln_tanh(kiln_add(a, b));
    case 2: return kiln_mul(a, b);
    case 3: return kiln_sub(a, b);
    case 4: return kiln_maximum(a, b);
    case 5: return kiln_where(kiln_gt(a, b), kiln_square(a), kiln_sqrt(kiln_neg(b)));
    case 6: return kiln_softmax(a, (int)draw(d, 2));
    case 7: return kiln_sub(a, kiln_mean_axes(b, KILN_AXES(1), true));
    case 8: return kiln_add(a, kiln_max_axes(b, KILN_AXES(0), true));
    case 9: return kiln_matmul(a, kiln_matmul(kiln_transpose(b), a));
    case 10: return kiln_div(a, kiln_add(kiln_abs(b), kiln_scalar(1)));
    case 11: return kiln_cumsum(kiln_flip(a, KILN_AXES(0)), 1);
    case 12: return kiln_concat((kiln_tensor *[]){kiln_slice_axis(a, 1, 1, 3, 1), kiln_slice_axis(b, 1, 0, 4, 2)}, 2, 1);
    case 13: return kiln_reshape(kiln_transpose(kiln_reshape(a, KILN_SHAPE(COLUMNS, ROWS))), KILN_SHAPE(ROWS, COLUMNS));
    case 14: return kiln_slice_axis(kiln_take(a, kiln_from(KILN_I64, KILN_SHAPE(4), take), 0), 0, 0, ROWS, 1);
    case 15: return kiln_layer_norm(a, kiln_slice_axis(b, 0, 0, 1, 1), kiln_scalar(0.5), 1e-3);
    case 16: return kiln_sort(a, 1, false);
    case 17: return kiln_mul(kiln_stop_gradient(a), b);
    case 18: return kiln_roll(kiln_exp(kiln_neg(kiln_square(a))), 1, 0);
    default: return kiln_prod_axes(kiln_stack((kiln_tensor *[]){a, b}, 2, 0), KILN_AXES(0), false);
    }
}

typedef enum Wrap { PLAIN, CHECKPOINTS, CUSTOM } Wrap;

/* How a program is run. */
typedef struct Way {
    const char *name, *mode;
    unsigned often; /* a sync point after every so many nodes or so; 0: none */
    bool recorded, function, cuda;
    bool slow; /* compiling takes a while: for some programs only */
    Wrap wrap;
} Way;

static const Way reference = {"interpreted", "interp", .wrap = PLAIN};
static const Way ways[] = {
    {"interpreted, recorded, often", "interp", .often = 2, .recorded = true, .wrap = CHECKPOINTS},
    {"interpreted, recorded", "interp", .often = 6, .recorded = true},
    {"interpreted, often", "interp", .often = 2},
    {"interpreted with sync points", "interp", .often = 6},
    {"interpreted, a function", "interp", .function = true},
    {"interpreted, a function with sync points", "interp", .often = 5, .function = true},
    {"interpreted, a function in a recording", "interp", .often = 5, .recorded = true, .function = true},
    {"interpreted, custom", "interp", .wrap = CUSTOM},
    {"interpreted, recorded, custom", "interp", .often = 3, .recorded = true, .wrap = CUSTOM},
    {"interpreted with sync points, custom", "interp", .often = 3, .wrap = CUSTOM},
    {"eager, custom", "eager", .often = 3, .wrap = CUSTOM},
    {"eager", "eager", .often = 3, .wrap = CHECKPOINTS},
    {"eager, a function", "eager", .function = true, .often = 3},
    {"compiled", "jit", .slow = true},
    {"compiled, checkpoints", "jit", .slow = true, .wrap = CHECKPOINTS},
    {"compiled, custom", "jit", .slow = true, .wrap = CUSTOM},
    {"compiled, recorded", "jit", .often = 5, .recorded = true, .slow = true, .wrap = CHECKPOINTS},
    {"compiled, a function", "jit", .function = true, .slow = true, .wrap = CHECKPOINTS},
    {"compiled, a function with sync points", "jit", .often = 7, .function = true, .slow = true},
    {"CUDA", "jit", .cuda = true, .slow = true, .wrap = CHECKPOINTS},
    {"CUDA, a function", "jit", .function = true, .cuda = true, .slow = true},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* The same in a checkpoint, or in one inside of another, or in none. */
typedef struct Step {
    Draw *d;
    unsigned depth;
    Draw before; /* of a custom gradient: for its rule */
} Step;

static void checkpointed(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Step inner = *(const Step *)user;
    if (inner.depth-- == 0)
        out[0] = step(inner.d, in[0], in[1]);
    else
        cr_assert_eq(kiln_checkpoint(checkpointed, 2, in, 1, out, &inner), KILN_OK, "%s", kiln_error_message());
}

static void custom(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Step *s = user;
    s->before = *s->d;
    out[0] = step(s->d, in[0], in[1]);
}

static void custom_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    Draw d = ((Step *)user)->before;
    kiln_tensor *y = step(&d, in[0], in[1]);
    (void)out;
    for (int i = 0; i < 2; i++)
        if (kiln_vjp(1, &y, cotangents, 1, &in[i], KILN_GRAD_CONNECTED, &grads[i]) != KILN_OK) {
            cr_assert(strstr(kiln_error_message(), "no output depends on"), "%s", kiln_error_message());
            kiln_clear_error(); /* NULL: zeros would be something that goes on to where infinities are */
        }
}

static void wrapped(Wrap wrap, Draw *d, unsigned depth, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *in[] = {a, b};
    Step s = {d, wrap == CHECKPOINTS ? depth : 0, *d};
    if (wrap == CUSTOM && depth)
        cr_assert_eq(kiln_custom_gradient(custom, custom_vjp, NULL, 2, in, 1, out, &s), KILN_OK, "%s", kiln_error_message());
    else
        checkpointed(in, out, &s);
}

static bool left_out[NODES + PARAMS]; /* while a program is shrunk: the node before stands for it */

/* Records program `d` with its gradients, from parameters. */
static kiln_status record(Draw d, uint64_t seed, const Way *way, kiln_tensor *const *params, kiln_tensor **grads)
{
    Draw points = {seed * 31 + way->often}, depths = {seed * 17};
    kiln_tensor *value[NODES + PARAMS] = {params[0], params[1]};
    for (int k = PARAMS; k < NODES + PARAMS; k++) {
        unsigned n = (unsigned)k;
        kiln_tensor *a = value[draw(&d, n)], *b = value[n - 1 - draw(&d, n < 4 ? n : 4)];
        wrapped(way->wrap, &d, draw(&depths, 4), a, b, &value[k]);
        cr_assert(value[k], "%s", kiln_error_message());
        if (left_out[k])
            value[k] = value[k - 1];
        if (way->often && draw(&points, way->often) == 0)
            OK(kiln_eval(value[draw(&points, n + 1)]));
    }
    return kiln_grad(kiln_sum(kiln_add(value[NODES + PARAMS - 1], value[NODES + PARAMS - 2])), params, PARAMS, grads);
}

/* The same in a kiln_function: one parameter is an argument, the other one it captures. */
typedef struct Call {
    Draw d;
    uint64_t seed;
    const Way *way;
    kiln_tensor *captured;
} Call;

static void record_call(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Call *call = user;
    (void)record(call->d, call->seed, call->way, (kiln_tensor *[]){in[0], call->captured}, out);
}

typedef struct Outcome {
    bool error;
    double grad[PARAMS][N];
} Outcome;

static void take(kiln_status status, kiln_tensor *const *grads, Outcome *out)
{
    out->error = status != KILN_OK;
    if (out->error) {
        cr_assert(status == KILN_INVALID && strstr(kiln_error_message(), "was computed by kiln_eval"), "%s", kiln_error_message());
        kiln_clear_error();
    }
    for (int k = 0; k < PARAMS && !out->error; k++)
        OK(kiln_read(grads[k], KILN_F64, out->grad[k], sizeof out->grad[k]));
}

/* Traced with other numbers, then replayed. */
static void run_function(const Draw *d, uint64_t seed, const Way *way, kiln_tensor *const *params, Outcome *out)
{
    kiln_tensor *grads[PARAMS], *other = kiln_param(kiln_full(KILN_F64, KILN_SHAPE(ROWS, COLUMNS), 0.5));
    Call call = {*d, seed, way, kiln_param(kiln_full(KILN_F64, KILN_SHAPE(ROWS, COLUMNS), 0.25))};
    kiln_function *f = kiln_function_new(record_call, 1, PARAMS, &call);
    take(kiln_function_call(f, &other, grads), grads, out);
    OK(kiln_assign(call.captured, params[1]));
    for (int k = 0; k < 2; k++)
        take(kiln_function_call(f, params, grads), grads, out);
    kiln_function_free(f);
}

static void run(uint64_t seed, const Way *way, Outcome *out)
{
    Draw d = {seed};
    set_option("mode", way->mode);
    kiln_scope *scope = kiln_scope_begin();
    OK(kiln_set_device(way->cuda ? "cuda" : "cpu"));
    kiln_recording *recording = way->recorded ? kiln_recording_begin() : NULL;
    kiln_tensor *params[PARAMS], *grads[PARAMS];
    for (int k = 0; k < PARAMS; k++) {
        double data[N];
        for (int i = 0; i < N; i++)
            data[i] = ((double)draw(&d, 2001) - 1000) / 700;
        params[k] = kiln_param(kiln_from(KILN_F64, KILN_SHAPE(ROWS, COLUMNS), data));
    }
    if (way->function)
        run_function(&d, seed, way, params, out);
    else
        take(record(d, seed, way, params, grads), grads, out);
    kiln_recording_end(recording);
    kiln_scope_end(scope);
}

/* Has the program another gradient that way? Then where, as text. */
static bool differs(uint64_t seed, const Way *way, Outcome *got, char text[128])
{
    Outcome want;
    run(seed, &reference, &want);
    run(seed, way, got);
    double most = 0, tolerance = way->wrap == CUSTOM || way->cuda ? 1e-9 : 0;
    for (int i = 0; i < PARAMS * N; i++)
        most = fmax(most, fabs(want.grad[i / N][i % N]));
    strcpy(text, "an error in a recording or in eager mode");
    if (got->error)
        return way->recorded || strcmp(way->mode, "eager") == 0;
    for (int i = 0; i < PARAMS * N; i++) {
        double a = got->grad[i / N][i % N], b = want.grad[i / N][i % N];
        snprintf(text, 128, "gradient %d[%d] is %.17g, not %.17g", i / N, i % N, a, b);
        if (!(a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * most))
            return true;
    }
    return false;
}

/* Which nodes are needed for a difference, as "2 7 9 ", and which difference that is then. */
static void shrink(uint64_t seed, const Way *way, char nodes[4 * NODES], char text[128])
{
    Outcome got;
    for (int k = NODES + PARAMS; k-- > PARAMS;) {
        left_out[k] = true;
        left_out[k] = differs(seed, way, &got, text);
    }
    (void)differs(seed, way, &got, text);
    nodes[0] = 0;
    for (int k = PARAMS; k < NODES + PARAMS; k++)
        if (!left_out[k])
            sprintf(nodes + strlen(nodes), "%d ", k);
}

/* The sum of both gradients of what is left, as the interpreter has it. */
static void explain(uint64_t seed, char *text, size_t size)
{
    Draw d = {seed};
    kiln_tensor *params[PARAMS], *grads[PARAMS];
    set_option("mode", "interp");
    OK(kiln_set_device("cpu"));
    for (int k = 0; k < PARAMS * N; k++)
        (void)draw(&d, 2001);
    for (int k = 0; k < PARAMS; k++)
        params[k] = kiln_param(kiln_ones(KILN_F64, KILN_SHAPE(ROWS, COLUMNS)));
    if (record(d, seed, &reference, params, grads) != KILN_OK || kiln_graph_text(kiln_add(grads[0], grads[1]), text, size, NULL) != KILN_OK)
        snprintf(text, size, "%s", kiln_error_message());
}

static void silent(void *user, int level, const char *topic, const char *line) { (void)user, (void)level, (void)topic, (void)line; }

Test(gradient_random, programs, .timeout = HANGS_AFTER(60))
{
    static const char *const hows[] = {"auto", "memory", "off"};
    int errors = 0, numbers = 0, least = (int)(PROGRAMS / slices() / 10);
    kiln_set_log_sink(silent, NULL); /* functions with sync points are warned of */
    set_option("math", "strict");
    if (cuda_driver())
        use_driver();
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        if (!slice_takes(seed))
            continue;
        for (int w = 0; w < WAYS; w++) {
            const Way *way = &ways[w];
            Outcome got;
            char where[128], nodes[4 * NODES];
            static char graph[1 << 14];
            if ((way->cuda && !cuda_driver()) || (way->slow && seed / slices() % (way->cuda ? 12 : 6)))
                continue;
            set_option("remat", way->slow ? hows[seed / slices() / 6 % 3] : "auto");
            if (differs(seed, way, &got, where)) {
                shrink(seed, way, nodes, where);
                explain(seed, graph, sizeof graph);
                cr_assert_fail("program %d, %s: %s; nodes %sare enough:\n%s", (int)seed, way->name, where, nodes, graph);
            }
            errors += got.error;
            numbers += !got.error && way->often && !way->recorded;
        }
    }
    cr_assert(errors >= least && numbers >= least, "%d errors, %d numbers", errors, numbers);
}

/*
 * Gradients of random programs: pending, in eager and interpreted mode, with sync points at random places, in a recording and outside of
 * one, with ops in kiln_checkpoints at random places. Equal bit for bit in strict mode; a sync point outside of a recording may make it the error
 * that names it, never another number. And with ops in kiln_custom_gradients whose rule is the plain derivative: equal but for the order in
 * which parts are added up.
 */
#include "api.h"
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

typedef struct Outcome {
    bool error;
    double grad[PARAMS][N];
} Outcome;

/* Program `seed`, with a sync point after every `often`-th node or so (0: none). */
static void run(uint64_t seed, unsigned often, bool recorded, Wrap wrap, Outcome *out)
{
    Draw program = {seed}, points = {seed * 31 + often}, depths = {seed * 17};
    kiln_scope *scope = kiln_scope_begin();
    kiln_recording *recording = recorded ? kiln_recording_begin() : NULL;
    kiln_tensor *value[NODES + PARAMS], *params[PARAMS], *grads[PARAMS];
    for (int k = 0; k < PARAMS; k++) {
        double data[N];
        for (int i = 0; i < N; i++)
            data[i] = ((double)draw(&program, 2001) - 1000) / 700;
        value[k] = params[k] = kiln_param(kiln_from(KILN_F64, KILN_SHAPE(ROWS, COLUMNS), data));
    }
    for (int k = PARAMS; k < NODES + PARAMS; k++) {
        unsigned n = (unsigned)k;
        kiln_tensor *a = value[draw(&program, n)], *b = value[n - 1 - draw(&program, n < 4 ? n : 4)];
        wrapped(wrap, &program, draw(&depths, 4), a, b, &value[k]);
        cr_assert(value[k], "%s", kiln_error_message());
        if (often && draw(&points, often) == 0)
            cr_assert_eq(kiln_eval(value[draw(&points, n + 1)]), KILN_OK, "%s", kiln_error_message());
    }
    kiln_tensor *loss = kiln_sum(kiln_add(value[NODES + PARAMS - 1], value[NODES + PARAMS - 2]));
    kiln_status status = kiln_grad(loss, params, PARAMS, grads);
    out->error = status != KILN_OK;
    if (out->error) {
        cr_assert(status == KILN_INVALID && strstr(kiln_error_message(), "was computed by kiln_eval"), "%s", kiln_error_message());
        kiln_clear_error();
    }
    for (int k = 0; k < PARAMS && !out->error; k++)
        cr_assert_eq(kiln_read(grads[k], KILN_F64, out->grad[k], sizeof out->grad[k]), KILN_OK, "%s", kiln_error_message());
    kiln_recording_end(recording);
    kiln_scope_end(scope);
}

static void expect_near(uint64_t seed, const char *how, const Outcome *got, const Outcome *want, double tolerance)
{
    double most = 0;
    for (int i = 0; i < PARAMS * N; i++)
        most = fmax(most, fabs(want->grad[i / N][i % N]));
    for (int k = 0; k < PARAMS; k++)
        for (int i = 0; i < N; i++) {
            double a = got->grad[k][i], b = want->grad[k][i];
            cr_assert(a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * most,
                      "program %d, %s: gradient %d[%d] is %.17g, not %.17g", (int)seed, how, k, i, a, b);
        }
}

static void expect_same(uint64_t seed, const char *how, const Outcome *got, const Outcome *want) { expect_near(seed, how, got, want, 0); }

Test(gradient_random, programs, .timeout = 300)
{
    int errors = 0, numbers = 0, least = (int)(PROGRAMS / slices() / 10);
    set_option("math", "strict");
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        Outcome want, got;
        if (!slice_takes(seed))
            continue;
        set_option("mode", "interp");
        run(seed, 0, false, PLAIN, &want);
        cr_assert(!want.error);
        for (unsigned often = 2; often <= 6; often += 4) {
            run(seed, often, true, often == 2 ? CHECKPOINTS : PLAIN, &got);
            cr_assert(!got.error, "program %d: an error in a recording", (int)seed);
            expect_same(seed, "interpreted in a recording", &got, &want);
            run(seed, often, false, PLAIN, &got);
            errors += got.error;
            numbers += !got.error;
            if (!got.error)
                expect_same(seed, "interpreted with sync points", &got, &want);
        }
        run(seed, 0, false, CUSTOM, &got);
        expect_near(seed, "custom, interpreted", &got, &want, 1e-9);
        run(seed, 3, true, CUSTOM, &got);
        cr_assert(!got.error);
        expect_near(seed, "custom, interpreted in a recording", &got, &want, 1e-9);
        run(seed, 3, false, CUSTOM, &got);
        if (!got.error)
            expect_near(seed, "custom, interpreted with sync points", &got, &want, 1e-9);
        set_option("mode", "eager");
        run(seed, 3, false, CUSTOM, &got);
        cr_assert(!got.error);
        expect_near(seed, "custom, eager", &got, &want, 1e-9);
        run(seed, 3, false, CHECKPOINTS, &got);
        cr_assert(!got.error);
        expect_same(seed, "eager", &got, &want);
        if (seed / slices() % 6 == 0) { /* compiling takes a while */
            static const char *const hows[] = {"auto", "memory", "off"};
            set_option("mode", "jit");
            set_option("remat", hows[seed / slices() / 6 % 3]);
            run(seed, 0, false, PLAIN, &got);
            expect_same(seed, "compiled", &got, &want);
            run(seed, 0, false, CHECKPOINTS, &got);
            expect_same(seed, "compiled with checkpoints", &got, &want);
            run(seed, 0, false, CUSTOM, &got);
            expect_near(seed, "custom, compiled", &got, &want, 1e-9);
            run(seed, 5, true, CHECKPOINTS, &got);
            expect_same(seed, "compiled in a recording", &got, &want);
        }
    }
    cr_assert(errors >= least && numbers >= least, "%d errors, %d numbers", errors, numbers);
}

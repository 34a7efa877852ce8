/* kiln_checkpoint: the same bits as without, less memory, every kind of gradient, and what its function may not do. */
#include "api.h"

#include <stdio.h>

static char said[1 << 18];
static kiln_log_buffer log_text = {said, sizeof said, 0};

static kiln_tensor *made(kiln_shape shape)
{
    kiln_tensor *x = kiln_uniform(KILN_F32, shape, -1, 1);
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    return x;
}

static void same_bits(kiln_tensor *a, kiln_tensor *b, const char *what)
{
    static float x[1 << 18], y[1 << 18];
    size_t n = (size_t)kiln_numel(a) * sizeof *x;
    cr_assert_leq(n, sizeof x);
    cr_assert_eq(kiln_read(a, KILN_F32, x, n), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_read(b, KILN_F32, y, n), KILN_OK, "%s", kiln_error_message());
    cr_expect(memcmp(x, y, n) == 0, "%s", what);
}

/* --- a deep network ------------------------------------------------------------------------------------------ */

enum { WIDTH = 64, BATCH = 512, MAX_LAYERS = 64 };

typedef struct Net {
    kiln_tensor *w[MAX_LAYERS];
    int first, layers, block, inner; /* of one call */
} Net;

static void layers(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Net *net = user;
    kiln_tensor *x = in[0];
    for (int i = net->first; i < net->first + net->layers; i += net->inner ? net->inner : 1) {
        if (net->inner) {
            Net part = *net;
            part.first = i;
            part.layers = net->inner;
            part.inner = 0;
            cr_assert_eq(kiln_checkpoint(layers, 1, &x, 1, &x, &part), KILN_OK, "%s", kiln_error_message());
        } else {
            x = kiln_tanh(kiln_matmul(x, net->w[i]));
        }
    }
    out[0] = x;
}

static kiln_tensor *forward(Net *net, kiln_tensor *x)
{
    int all = net->layers;
    kiln_tensor *h = x;
    for (int i = 0; i < all; i += net->block) {
        Net part = *net;
        part.first = i;
        part.layers = net->block;
        if (net->block == all)
            layers(&h, &h, &part);
        else
            cr_assert_eq(kiln_checkpoint(layers, 1, &h, 1, &h, &part), KILN_OK, "%s", kiln_error_message());
    }
    return h;
}

/* The peak that KILN_LOG=gradient told of, in KB; what was computed again. */
static double told(int *again)
{
    const char *peak = strstr(said, "; peak "), *copies = strstr(said, "computed again: ");
    char unit[4] = "";
    double value = 0;
    cr_assert(peak && copies, "%s", said);
    cr_assert_eq(sscanf(peak, "; peak %lf %3s", &value, unit), 2);
    cr_assert_eq(sscanf(copies, "computed again: %d", again), 1);
    return value * (unit[0] == 'M' ? 1024 : 1);
}

static double train(Net *net, kiln_tensor *x, kiln_tensor **g, int *again)
{
    kiln_tensor *loss = kiln_sum(kiln_square(forward(net, x)));
    cr_assert_eq(kiln_grad(loss, net->w, net->layers, g), KILN_OK, "%s", kiln_error_message());
    said[log_text.needed = 0] = 0;
    cr_assert_eq(kiln_eval_many(g, net->layers), KILN_OK, "%s", kiln_error_message());
    return told(again);
}

/* What is kept of n layers in blocks of b is a value for each block and, while one is computed again, the b - 1 inside; one more is the
 * gradient on its way. Blocks of 8 with blocks of 2 inside: 2, and 3 of the inner ones, and 1 inside. Gradients are 16 KB each. Without
 * kiln_checkpoint each layer's value is kept. The log rounds to 0.1 MB. */
Test(checkpoint, memory_falls_as_computed_by_hand)
{
    static const double values[] = {16 + 1, 4 + 3 + 1, 8 + 1 + 1, 2 + 3 + 1 + 1};
    static const int copies[] = {0, 4 * 2 * 3, 8 * 2 * 1, 2 * 2 * 6 + 8 * 2};
    static const char *const how[] = {"auto", "off", "memory"};
    set_option("cache", "off");
    set_option("log", "gradient");
    kiln_set_log_sink(kiln_log_into, &log_text);
    Net net = {.layers = 16};
    kiln_tensor *x = made(KILN_SHAPE(BATCH, WIDTH)), *g[4][MAX_LAYERS];
    for (int i = 0; i < net.layers; i++)
        net.w[i] = kiln_param(made(KILN_SHAPE(WIDTH, WIDTH)));
    for (int k = 0; k < 3; k++) {
        set_option("remat", how[k]);
        int again[4];
        double peak[4];
        static const int blocks[] = {16, 4, 2, 8}, inners[] = {0, 0, 0, 2};
        for (int b = 0; b < 4; b++) {
            net.block = blocks[b];
            net.inner = inners[b];
            peak[b] = train(&net, x, g[b], &again[b]);
            cr_expect(fabs(peak[b] - 128 * values[b] - 16 * 16) < 52, "remat=%s, blocks of %d: %g KB", how[k], blocks[b], peak[b]);
            cr_expect_eq(again[b], copies[b], "remat=%s, blocks of %d: %d", how[k], blocks[b], again[b]);
            for (int i = 0; b && i < net.layers; i++)
                same_bits(g[b][i], g[0][i], how[k]);
        }
    }
}

/* --- what goes through it ---------------------------------------------------------------------------------------- */

/* Two results of x and n, an int: a product with a captured parameter, dropout; and what nobody asks for. */
typedef struct Model {
    kiln_tensor *w, *scale;
    bool wrapped;
} Model;

static void inner(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Model *m = user;
    out[0] = kiln_dropout(kiln_sin(kiln_mul(in[0], m->scale)), 0.5);
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Model *m = user;
    kiln_tensor *h = kiln_matmul(kiln_tanh(in[0]), m->w), *kept = NULL;
    if (m->wrapped)
        cr_assert_eq(kiln_checkpoint(inner, 1, &h, 1, &kept, m), KILN_OK, "%s", kiln_error_message());
    else
        inner(&h, &kept, m);
    out[0] = kiln_mul(kept, kept);
    out[1] = kiln_cumsum(kiln_exp(kept), 0);
    out[2] = kiln_add(in[1], kiln_int(1));
}

static kiln_tensor *loss_of(Model *m, kiln_tensor *x, kiln_tensor *n)
{
    kiln_tensor *in[] = {x, n}, *out[3] = {NULL};
    kiln_seed(7);
    if (m->wrapped)
        cr_assert_eq(kiln_checkpoint(body, 2, in, 3, out, m), KILN_OK, "%s", kiln_error_message());
    else
        body(in, out, m);
    return kiln_sum(kiln_add(kiln_mul(out[0], out[2]), kiln_square(kiln_sin(out[0]))));
}

typedef struct Results {
    kiln_tensor *all[6];
} Results;

/* The loss, gradients, a directional derivative and a gradient of a gradient. */
static Results results(Model *m, kiln_tensor *x, kiln_tensor *n)
{
    Results r;
    kiln_tensor *params[] = {x, m->w, m->scale}, *g[3], *second;
    kiln_tensor *loss = loss_of(m, x, n);
    cr_assert_eq(kiln_grad(loss, params, 3, g), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *tangents[] = {kiln_cos(x), kiln_sin(m->w), kiln_scalar(1)}, *along;
    cr_assert_eq(kiln_jvp(3, params, tangents, 1, &loss, 0, &along), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *slope = kiln_sum(kiln_square(g[0]));
    cr_assert_eq(kiln_grad(slope, &params[1], 1, &second), KILN_OK, "%s", kiln_error_message());
    memcpy(r.all, (kiln_tensor *[]){loss, g[0], g[1], g[2], along, second}, sizeof r.all);
    return r;
}

static Model model(kiln_tensor **x)
{
    kiln_seed(1);
    *x = kiln_param(made(KILN_SHAPE(8, 4)));
    return (Model){kiln_param(made(KILN_SHAPE(4, 4))), kiln_param(made(KILN_SHAPE())), false};
}

static void compare(const Results *a, const Results *b)
{
    for (int k = 0; k < 6; k++) {
        char what[32];
        snprintf(what, sizeof what, "result %d", k);
        same_bits(a->all[k], b->all[k], what);
    }
}

/* Captured parameters, ints, random draws, unused results, a checkpoint inside, both modes, a gradient of a gradient; in a recording with sync points
 * in between as well. */
API_TEST(checkpoint, same_bits_as_without)
{
    kiln_tensor *x, *n = I32(KILN_SHAPE(4), 1, 2, 3, 4);
    Model m = model(&x);
    Results plain = results(&m, x, n);
    m.wrapped = true;
    Results wrapped = results(&m, x, n);
    compare(&plain, &wrapped);
    kiln_recording *recording = kiln_recording_begin();
    kiln_tensor *loss = loss_of(&m, x, n), *g;
    cr_assert_eq(kiln_eval(loss), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_grad(loss, &x, 1, &g), KILN_OK, "%s", kiln_error_message());
    same_bits(g, plain.all[1], "in a recording");
    kiln_recording_end(recording);
}

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Model *m = user;
    kiln_tensor *params[] = {in[0], m->w};
    kiln_tensor *at[] = {in[0], in[1]}, *made_of[3];
    if (m->wrapped)
        cr_assert_eq(kiln_checkpoint(body, 2, at, 3, made_of, m), KILN_OK, "%s", kiln_error_message());
    else
        body(at, made_of, m);
    out[0] = kiln_sum(kiln_mul(made_of[0], made_of[2]));
    (void)kiln_grad(out[0], params, 2, out + 1);
}

/* Replayed: each call draws anew. */
API_TEST(checkpoint, in_a_function)
{
    kiln_tensor *x, *n = I32(KILN_SHAPE(4), 1, 2, 3, 4), *out[2][4][3];
    Model m = model(&x);
    for (int wrapped = 0; wrapped < 2; wrapped++) {
        m.wrapped = wrapped;
        kiln_function *f = kiln_function_new(step, 2, 3, &m);
        kiln_seed(3);
        for (int i = 0; i < 4; i++)
            cr_assert_eq(kiln_function_call(f, (kiln_tensor *[]){x, n}, out[wrapped][i]), KILN_OK, "%s", kiln_error_message());
        kiln_function_free(f);
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            same_bits(out[0][i][k], out[1][i][k], "in a function");
}

static void replayed(kiln_tensor **in, kiln_tensor **out, void *f)
{
    cr_assert_eq(kiln_function_call(f, in, out), KILN_OK, "%s", kiln_error_message());
}

static void twice(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], in[0]);
}

/* A kiln_function that is called inside is a part of it. */
API_TEST(checkpoint, a_function_inside)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *out, *g;
    kiln_function *f = kiln_function_new(twice, 1, 1, NULL);
    cr_assert_eq(kiln_checkpoint(replayed, 1, &x, 1, &out, f), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_grad(kiln_sum(out), &x, 1, &g), KILN_OK, "%s", kiln_error_message());
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 2, 2);
    kiln_function_free(f);
}

/* --- what its function may not do --------------------------------------------------------------------------------------------- */

typedef enum Misuse { EVALUATES, ASSIGNS, SEEDS, LEAVES_OUT, FAILS, MOVES, ENDS_SCOPE, MISUSES } Misuse;

typedef struct Bad {
    Misuse how;
    kiln_tensor *outside;
    kiln_scope *scope;
} Bad;

static void misuse(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Bad *bad = user;
    double value;
    kiln_tensor *own = kiln_square(in[0]);
    out[0] = kiln_mul(own, own);
    (void)kiln_assign(own, out[0]); /* its own: allowed */
    switch (bad->how) {
    case EVALUATES: cr_expect_eq(kiln_item(kiln_sum(out[0]), &value), KILN_INVALID); break;
    case ASSIGNS: (void)kiln_assign(bad->outside, in[0]); break;
    case SEEDS: kiln_seed(1); break;
    case LEAVES_OUT: out[0] = NULL; break;
    case FAILS: out[0] = kiln_reshape(in[0], KILN_SHAPE(2)); break;
    case MOVES: cr_expect_eq(kiln_set_device("cpu"), KILN_INVALID); break;
    case ENDS_SCOPE: kiln_scope_end(bad->scope); break;
    case MISUSES: break;
    }
}

API_TEST(checkpoint, refuses)
{
    static const char *const texts[] = {"kiln_item: inside the function of kiln_checkpoint, which only records (test_checkpoint.c:",
                                        "kiln_assign: p comes from outside of the function of kiln_checkpoint, which only records (test_",
                                        "kiln_seed: inside the function of kiln_checkpoint",
                                        "kiln_checkpoint: the function left out[0] unset (test_checkpoint.c:",
                                        "kiln_reshape: ",
                                        "kiln_set_device: inside the function of kiln_checkpoint",
                                        "kiln_scope_end: the body of a kiln_checkpoint may end"};
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3), 1, 2, 3)), *w = F32(KILN_SHAPE(3), 5, 6, 7), *out = x, *g;
    for (Misuse how = 0; how < MISUSES; how++) {
        Bad bad = {how, w, kiln_scope_begin()};
        fails_with(kiln_checkpoint(misuse, 1, &x, 1, &out, &bad), how == FAILS ? KILN_BAD_SHAPE : KILN_INVALID, texts[how]);
        cr_expect(!out);
        kiln_scope_end(bad.scope);
    }
    EXPECT(w, KILN_F32, KILN_SHAPE(3), 0, 5, 6, 7);
    Bad good = {MISUSES, w, NULL};
    cr_assert_eq(kiln_checkpoint(misuse, 1, &x, 1, &out, &good), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_grad(kiln_sum(out), &x, 1, &g), KILN_OK, "%s", kiln_error_message());
    EXPECT(g, KILN_F32, KILN_SHAPE(3), 0, 4, 32, 108);
    kiln_tensor *none = NULL;
    fails_with(kiln_checkpoint(misuse, 1, &none, 1, &out, &good), KILN_INVALID, "kiln_checkpoint: in[0] is NULL (test_checkpoint.c:");
    fails_with(kiln_checkpoint(NULL, 1, &x, 1, &out, &good), KILN_INVALID, "needs functions");
    fails_with(kiln_checkpoint(misuse, -1, &x, 1, &out, &good), KILN_INVALID, "needs functions");
    fails_with(kiln_checkpoint(misuse, 1, &x, 1, NULL, &good), KILN_INVALID, "needs functions");
}

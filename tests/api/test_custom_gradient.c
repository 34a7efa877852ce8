/* kiln_custom_gradient: rules of the user's in each kind of gradient, equal to the plain ones where they say the same, and what they may not do. */
#include "api.h"

#include <stdio.h>

static void near(kiln_tensor *a, kiln_tensor *b, double tolerance, const char *what, int k)
{
    static double x[4096], y[4096];
    size_t n = (size_t)kiln_numel(a);
    cr_assert(n == (size_t)kiln_numel(b) && n <= 4096);
    OK(kiln_read(kiln_cast(a, KILN_F64), KILN_F64, x, n * sizeof *x));
    OK(kiln_read(kiln_cast(b, KILN_F64), KILN_F64, y, n * sizeof *y));
    for (size_t i = 0; i < n; i++)
        cr_assert(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i])), "%s %d: element %zu is %.9g, not %.9g", what, k, i, x[i], y[i]);
}

/* --- the same as without ---------------------------------------------------------------------------------------- */

/* Of a matrix x, a matrix w, an int n, a number: tanh(x w) * n * number; exp(x) summed over rows; n + 1. */
static void layer(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(kiln_mul(kiln_tanh(kiln_matmul(in[0], in[1])), kiln_cast(in[2], KILN_F32)), in[3]);
    out[1] = kiln_sum_axes(kiln_exp(in[0]), KILN_AXES(0), 0);
    out[2] = kiln_add(in[2], kiln_int(1));
}

/* d of the first result's tanh from the result itself: (1 - t) (1 + t) scale. */
static kiln_tensor *slope(kiln_tensor **in, kiln_tensor **out)
{
    kiln_tensor *scale = kiln_mul(kiln_cast(in[2], KILN_F32), in[3]), *t = kiln_div(out[0], scale);
    return kiln_mul(scale, kiln_sub(kiln_ones(KILN_F32, KILN_SHAPE()), kiln_square(t)));
}

static void layer_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)user;
    cr_assert(cotangents[0] && cotangents[1] && !cotangents[2], "an int has no cotangent");
    cr_assert(kiln_rank(cotangents[1]) == 1 && kiln_dtype_of(out[2]) == KILN_I32);
    kiln_tensor *g = kiln_mul(cotangents[0], slope(in, out));
    grads[0] = kiln_add(kiln_matmul(g, kiln_transpose(in[1])), kiln_mul(kiln_exp(in[0]), cotangents[1]));
    grads[1] = kiln_matmul(kiln_transpose(in[0]), g);
}

static void layer_jvp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **along, void *user)
{
    (void)user;
    cr_assert(tangents[0] && tangents[1] && !tangents[2] && !tangents[3]);
    kiln_tensor *t = kiln_add(kiln_matmul(tangents[0], in[1]), kiln_matmul(in[0], tangents[1]));
    along[0] = kiln_mul(t, slope(in, out));
    along[1] = kiln_sum_axes(kiln_mul(kiln_exp(in[0]), tangents[0]), KILN_AXES(0), 0);
}

typedef enum How { PLAIN, BOTH, VJP_ONLY, JVP_ONLY, IN_CHECKPOINT, NESTED, HOWS } How;

static void wrapped(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    OK(kiln_custom_gradient(layer, layer_vjp, layer_jvp, 4, in, 3, out, NULL));
}

static void apply(How how, kiln_tensor **in, kiln_tensor **out)
{
    switch (how) {
    case PLAIN: layer(in, out, NULL); break;
    case BOTH: wrapped(in, out, NULL); break;
    case VJP_ONLY: OK(kiln_custom_gradient(layer, layer_vjp, NULL, 4, in, 3, out, NULL)); break;
    case JVP_ONLY: OK(kiln_custom_gradient(layer, NULL, layer_jvp, 4, in, 3, out, NULL)); break;
    case IN_CHECKPOINT: OK(kiln_checkpoint(wrapped, 4, in, 3, out, NULL)); break;
    case NESTED: OK(kiln_custom_gradient(wrapped, layer_vjp, layer_jvp, 4, in, 3, out, NULL)); break;
    case HOWS: break;
    }
}

enum { RESULTS = 8 };

typedef struct Results {
    int n;
    kiln_tensor *all[RESULTS];
} Results;

static Results results(How how, kiln_tensor *x, kiln_tensor *w, kiln_tensor *n)
{
    kiln_tensor *in[] = {kiln_sin(x), w, n, kiln_scalar(0.75)}, *out[3], *params[] = {x, w}, *g[2], *second[2], *along;
    apply(how, in, out);
    kiln_tensor *more[] = {kiln_mul(out[0], out[0]), w, n, kiln_scalar(0.5)}, *deeper[3];
    apply(how, more, deeper); /* another one, of what the first made */
    kiln_tensor *loss = kiln_add(kiln_sum(kiln_mul(deeper[0], kiln_cast(out[2], KILN_F32))), kiln_sum(kiln_square(out[1])));
    loss = kiln_add(loss, kiln_sum(kiln_mul(kiln_tanh(out[0]), out[0])));
    Results r = {.n = 5, .all = {loss}};
    OK(kiln_grad(loss, params, 2, g));
    kiln_tensor *turned = kiln_add(kiln_sum(kiln_square(g[0])), kiln_sum(kiln_sin(g[1])));
    OK(kiln_grad(turned, params, 2, second));
    memcpy(r.all + 1, (kiln_tensor *[]){g[0], g[1], second[0], second[1]}, 4 * sizeof *g);
    if (how != VJP_ONLY) {
        kiln_tensor *tangents[] = {kiln_cos(x), kiln_sin(w)};
        OK(kiln_jvp(2, params, tangents, 1, &loss, 0, &along));
        r.all[r.n++] = along;
        OK(kiln_jvp(2, params, tangents, 2, g, 0, second)); /* forward over reverse */
        r.all[r.n++] = second[0];
        r.all[r.n++] = second[1];
    }
    return r;
}

API_TEST(custom_gradient, equals_the_plain_derivative_where_it_says_the_same)
{
    kiln_seed(5);
    kiln_tensor *x = kiln_param(kiln_uniform(KILN_F32, KILN_SHAPE(5, 4), -1, 1)),
                *w = kiln_param(kiln_uniform(KILN_F32, KILN_SHAPE(4, 4), -1, 1)), *n = I32(KILN_SHAPE(4), 1, 2, 3, 4);
    OK(kiln_eval_many((kiln_tensor *[]){x, w}, 2));
    Results plain = results(PLAIN, x, w, n);
    for (How how = BOTH; how < HOWS; how++) {
        Results own = results(how, x, w, n);
        for (int k = 0; k < own.n; k++)
            near(own.all[k], plain.all[k], 2e-5, "result", k + 10 * (int)how);
    }
}

/* Each value is computed as soon as it is there, and gradients are asked for later. */
API_TEST(custom_gradient, in_a_recording)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2, 2), 0.5, -0.25, 1, 0.125)), *w = kiln_param(F32(KILN_SHAPE(2, 2), 1, 2, 3, 4)),
                *n = I32(KILN_SHAPE(2), 1, 2), *g[2][2];
    for (int recorded = 0; recorded < 2; recorded++) {
        kiln_recording *recording = recorded ? kiln_recording_begin() : NULL;
        kiln_tensor *in[] = {kiln_sin(x), w, n, kiln_scalar(2)}, *out[3], *params[] = {x, w};
        apply(BOTH, in, out);
        if (recorded)
            OK(kiln_eval(out[0]));
        kiln_tensor *loss = kiln_sum(kiln_square(out[0]));
        if (recorded)
            OK(kiln_eval(loss));
        OK(kiln_grad(loss, params, 2, g[recorded]));
        kiln_recording_end(recording);
    }
    near(g[1][0], g[0][0], 1e-6, "recorded", 0);
    near(g[1][1], g[0][1], 1e-6, "recorded", 1);
    kiln_tensor *in[] = {x, w, n, kiln_scalar(2)}, *out[3], *none;
    apply(BOTH, in, out);
    OK(kiln_eval(out[0]));
    char mode[16];
    OK(kiln_get_option("mode", mode, sizeof mode));
    if (strcmp(mode, "eager") != 0) /* which keeps all */
        fails_with(kiln_grad(kiln_sum(out[0]), &x, 1, &none), KILN_INVALID, "was computed by kiln_eval");
}

/* --- rules that say something else -------------------------------------------------------------------------------- */

static void rounded(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_cast(kiln_cast(kiln_round(in[0]), KILN_I32), KILN_F32); /* nothing flows through an int */
}

static void straight(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    grads[0] = cotangents[0];
}

static void clipped(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out;
    double most = *(double *)user;
    grads[0] = kiln_clamp(cotangents[0], kiln_scalar(-most), kiln_scalar(most));
}

static void same(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

API_TEST(custom_gradient, straight_through_and_clipped)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(4), 0.25f, 1.625f, -2.25f, 5)), *y, *z, *g;
    double most = 3;
    OK(kiln_custom_gradient(rounded, straight, NULL, 1, &x, 1, &y, NULL));
    EXPECT(y, KILN_F32, KILN_SHAPE(4), 0, 0, 2, -2, 5);
    OK(kiln_custom_gradient(rounded, straight, NULL, 1, &x, 1, &y, NULL));
    OK(kiln_custom_gradient(same, clipped, NULL, 1, &y, 1, &z, &most));
    most = 1e9; /* read while it was recorded */
    OK(kiln_grad(kiln_sum(kiln_square(z)), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(4), 0, 0, 3, -3, 3);
    kiln_tensor *one = kiln_scalar(1), *along;
    fails_with(kiln_jvp(1, &x, &one, 1, &z, 0, &along), KILN_UNSUPPORTED, "was given no jvp, and forward mode needs one");
    OK(kiln_jvp(1, &x, &one, 1, (kiln_tensor *[]){kiln_sin(x)}, 0, &along)); /* where none is on the way */
}

static void two_ways(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = out[1] = kiln_square(in[0]); /* one value, twice */
    out[2] = in[1];
}

static void told_apart(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    kiln_tensor *second = kiln_mul(cotangents[1], kiln_scalar(100));
    grads[0] = kiln_add(cotangents[0], second);
    grads[1] = kiln_mul(cotangents[2], kiln_scalar(1000));
}

/* Results that are one value have cotangents of their own; what nobody uses has zeros; an input may be two of them. */
API_TEST(custom_gradient, each_result_has_its_cotangent)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 3, 4)), *in[] = {x, x}, *out[3], *g;
    OK(kiln_custom_gradient(two_ways, told_apart, NULL, 2, in, 3, out, NULL));
    OK(kiln_grad(kiln_sum(out[1]), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 100, 100);
    OK(kiln_grad(kiln_sum(kiln_add(kiln_add(out[0], out[1]), kiln_add(out[2], x))), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 1102, 1102);
    OK(kiln_vjp(1, out, (kiln_tensor *[]){kiln_scalar(2)}, 1, out, 0, &g)); /* with respect to a result */
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 2, 2);
    kiln_tensor *again[3];
    OK(kiln_custom_gradient(two_ways, told_apart, NULL, 2, in, 3, in[0] == x ? again : out, NULL));
    OK(kiln_grad(kiln_sum(again[2]), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 1000, 1000);
}

static void nothing(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)cotangents, (void)grads, (void)user;
}

static void cubed(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)cotangents, (void)user;
    grads[0] = kiln_scalar(3); /* a number, spread */
}

API_TEST(custom_gradient, zero_and_numbers)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 3, 4)), *y = NULL, *g;
    OK(kiln_custom_gradient(same, nothing, NULL, 1, &x, 1, &y, NULL));
    OK(kiln_grad(kiln_sum(y), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    OK(kiln_custom_gradient(same, cubed, NULL, 1, &x, 1, &y, NULL));
    OK(kiln_grad(kiln_sum(y), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 3, 3);
}

/* --- implicit differentiation -------------------------------------------------------------------------------------- */

/* 1 where y = exp(-x y); of both. */
static kiln_tensor *gap(kiln_tensor *x, kiln_tensor *y) { return kiln_sub(y, kiln_exp(kiln_neg(kiln_mul(x, y)))); }

static void iterated(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_full(KILN_F64, KILN_SHAPE(3), 0.5);
    for (int i = 0; i < 60; i++) /* Newton's steps would be fewer; this forgets less than it should */
        out[0] = kiln_sub(out[0], kiln_mul(gap(in[0], out[0]), kiln_scalar(0.5)));
}

/* dy/dx = -(dgap/dy)^-1 dgap/dx: two gradients inside of the rule. */
static void implicit(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)user;
    kiln_tensor *h = gap(in[0], out[0]), *one = kiln_scalar(1), *by[2], *of[] = {in[0], out[0]};
    OK(kiln_vjp(1, &h, &one, 2, of, 0, by));
    grads[0] = kiln_neg(kiln_div(kiln_mul(cotangents[0], by[0]), by[1]));
}

API_TEST(custom_gradient, at_the_end_of_an_iteration)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(3), 0.5, 1, 2)), *y, *g, *second;
    OK(kiln_custom_gradient(iterated, implicit, NULL, 1, &x, 1, &y, NULL));
    OK(kiln_grad(kiln_sum(y), &x, 1, &g));
    OK(kiln_grad(kiln_sum(g), &x, 1, &second));
    /* y = W(x) / x; y' = -y^2 / (1 + x y); y'' by differentiating that: y (y^3 x ... ) evaluated by differences of y'. */
    double at[3] = {0.5, 1, 2}, want[3], bend[3];
    for (int i = 0; i < 3; i++) {
        double slopes[3];
        for (int k = -1; k <= 1; k++) {
            double a = at[i] + k * 1e-5, b = 0.5;
            for (int n = 0; n < 200; n++)
                b -= 0.5 * (b - exp(-a * b));
            slopes[k + 1] = -b * b / (1 + a * b);
        }
        want[i] = slopes[1];
        bend[i] = (slopes[2] - slopes[0]) / 2e-5;
    }
    expect(__LINE__, g, KILN_F64, KILN_SHAPE(3), 1e-9, want, 3);
    expect(__LINE__, second, KILN_F64, KILN_SHAPE(3), 1e-7, bend, 3);
}

/* --- functions, random numbers, many of them -------------------------------------------------------------------------- */

static void noisy(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    grads[0] = kiln_mul(cotangents[0], kiln_rand(KILN_F32, KILN_SHAPE(3)));
}

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *y;
    (void)user;
    OK(kiln_custom_gradient(same, noisy, NULL, 1, in, 1, &y, NULL));
    OK(kiln_grad(kiln_sum(kiln_mul(y, y)), in, 1, out));
}

/* Replayed, each call draws anew; with the same seed the same; two gradients of one value share what was drawn. */
API_TEST(custom_gradient, in_a_function)
{
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3), *g[2][3];
    kiln_function *f = kiln_function_new(step, 1, 1, NULL);
    for (int round = 0; round < 2; round++) {
        kiln_seed(4);
        for (int i = 0; i < 3; i++)
            OK(kiln_function_call(f, &x, &g[round][i]));
    }
    float values[2][3][3];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++)
            OK(kiln_read(g[round][i], KILN_F32, values[round][i], sizeof values[round][i]));
    cr_expect(memcmp(values[0], values[1], sizeof values[0]) == 0, "a seed gives two results");
    cr_expect(memcmp(values[0][0], values[0][1], sizeof values[0][0]) != 0 && memcmp(values[0][1], values[0][2], sizeof values[0][0]) != 0,
              "two calls drew the same");
    kiln_function_free(f);
    kiln_tensor *p = kiln_param(x), *y, *one[2];
    OK(kiln_custom_gradient(same, noisy, NULL, 1, &p, 1, &y, NULL));
    OK(kiln_grad(kiln_sum(y), &p, 1, &one[0]));
    OK(kiln_grad(kiln_sum(y), &p, 1, &one[1]));
    near(one[0], one[1], 0, "drawn once", 0);
}

static void doubled(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    grads[0] = kiln_mul(cotangents[0], kiln_scalar(1 + 1. / 1024));
}

/* As many as a deep model has, one of the other; released without deep recursion, too. */
Test(custom_gradient, a_chain_of_thousands)
{
    enum { N = 3000 };
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *g;
    for (int round = 0; round < 2; round++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = x;
        for (int i = 0; i < N * (1 + 30 * round); i++)
            OK(kiln_custom_gradient(same, doubled, NULL, 1, &y, 1, &y, NULL));
        if (round == 0) { /* the second is let go of without */
            OK(kiln_grad(kiln_sum(y), &x, 1, &g));
            EXPECT(g, KILN_F32, KILN_SHAPE(2), 1e-3, pow(1 + 1. / 1024, N), pow(1 + 1. / 1024, N));
        }
        kiln_scope_end(scope);
    }
}

/* Nothing is held by itself: what is pending when its handles go, goes. */
Test(custom_gradient, memory_is_given_back)
{
    kiln_stats before, after;
    float *data = calloc(1 << 20, sizeof *data);
    for (int i = 0; i < 20; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(1 << 20), data)), *y, *z, *g;
        OK(kiln_custom_gradient(same, doubled, NULL, 1, &x, 1, &y, NULL));
        OK(kiln_custom_gradient(rounded, straight, NULL, 1, &y, 1, &z, NULL));
        if (i & 1)
            OK(kiln_grad(kiln_sum(z), &x, 1, &g));
        if (i & 2)
            OK(kiln_eval(z));
        kiln_scope_end(scope);
        kiln_get_stats(&after);
        if (i == 4)
            before = after;
    }
    cr_expect_eq(after.live_bytes, before.live_bytes, "%lld, not %lld", (long long)after.live_bytes, (long long)before.live_bytes);
    free(data);
}

/* --- what it may not do ------------------------------------------------------------------------------------------------ */

static kiln_tensor *outside;

static void captures(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(kiln_tanh(in[0]), outside);
}

typedef enum Misuse { EVALUATES, SHAPE, DTYPE, OF_AN_INT, NESTS, FAILS, KEEPS, MISUSES } Misuse;

static void misuse(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    Misuse how = *(Misuse *)user;
    double value;
    grads[0] = cotangents[0];
    switch (how) {
    case EVALUATES: cr_expect_eq(kiln_item(kiln_sum(out[0]), &value), KILN_INVALID); break;
    case SHAPE: grads[0] = kiln_sum(grads[0]); break;
    case DTYPE: grads[0] = kiln_cast(grads[0], KILN_F64); break;
    case OF_AN_INT: grads[1] = in[1]; break;
    case NESTS: (void)kiln_custom_gradient(same, straight, NULL, 1, in, 1, grads, NULL); break;
    case FAILS: grads[0] = kiln_reshape(grads[0], KILN_SHAPE(7)); break;
    case KEEPS: outside = kiln_retain(kiln_exp(cotangents[0])); break;
    case MISUSES: break;
    }
}

static void first(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_exp(in[0]);
}

static void uses_outside(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    grads[0] = kiln_mul(cotangents[0], outside);
}

static void not_linear(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **along, void *user)
{
    (void)in, (void)out, (void)user;
    along[0] = kiln_square(tangents[0]);
}

static void too_long(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **along, void *user)
{
    (void)in, (void)out, (void)user;
    along[0] = kiln_sum(tangents[0]);
}

API_TEST(custom_gradient, refuses)
{
    static const struct {
        kiln_status status;
        const char *text;
    } bad[] = {{KILN_INVALID, "kiln_item: inside the function of kiln_custom_gradient, which only records (test_custom_gradient.c:"},
               {KILN_BAD_SHAPE, "kiln_custom_gradient: grads[0] is f32[], and what it belongs to is f32[3] (test_custom_gradient.c:"},
               {KILN_BAD_DTYPE, "kiln_custom_gradient: grads[0] is f64[3], and what it belongs to is f32[3]"},
               {KILN_BAD_DTYPE, "grads[1] was set, and what it belongs to is i32[2]: leave it NULL"},
               {KILN_UNSUPPORTED, "inside a rule of another kiln_custom_gradient"},
               {KILN_BAD_SHAPE, "kiln_reshape: "}};
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3), 1, 2, 3)), *n = I32(KILN_SHAPE(2), 1, 2), *in[] = {x, n}, *y = x, *g;
    for (Misuse how = 0; how < KEEPS; how++) {
        fails_with(kiln_custom_gradient(first, misuse, NULL, 2, in, 1, &y, &how), bad[how].status, bad[how].text);
        cr_expect(!y);
    }
    Misuse how = KEEPS;
    OK(kiln_custom_gradient(first, misuse, NULL, 2, in, 1, &y, &how));
    kiln_tensor *kept = outside;
    fails_with(kiln_eval(kept), KILN_INVALID, "has no value outside of the rule");
    fails_with(kiln_custom_gradient(first, uses_outside, NULL, 1, &x, 1, &g, NULL), KILN_INVALID,
               "that another kiln_custom_gradient's rule");
    OK(kiln_grad(kiln_sum(y), &x, 1, &g)); /* the others are as good as ever */
    EXPECT(g, KILN_F32, KILN_SHAPE(3), 0, 1, 1, 1);
    kiln_release(kept);
    outside = kiln_param(F32(KILN_SHAPE(3), 4, 5, 6));
    fails_with(kiln_custom_gradient(captures, straight, NULL, 1, &x, 1, &y, NULL), KILN_INVALID, "is not among its inputs");
    outside = kiln_mul(outside, outside);
    fails_with(kiln_custom_gradient(captures, straight, NULL, 1, &x, 1, &y, NULL), KILN_INVALID,
               "is not among its inputs (kiln_mul at test_custom_gradient.c:");
    outside = kiln_stop_gradient(outside);
    OK(kiln_custom_gradient(captures, straight, NULL, 1, &x, 1, &y, NULL));
    OK(kiln_custom_gradient(first, uses_outside, NULL, 1, &x, 1, &y, NULL)); /* a rule may use what it likes */
    OK(kiln_grad(kiln_sum(y), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(3), 0, 16, 25, 36);
    fails_with(kiln_custom_gradient(first, NULL, not_linear, 1, &x, 1, &y, NULL), KILN_INVALID, "has to be linear in its tangents");
    fails_with(kiln_custom_gradient(first, NULL, too_long, 1, &x, 1, &y, NULL), KILN_BAD_SHAPE, "out_tangents[0] is f32[], and");
    fails_with(kiln_custom_gradient(first, straight, too_long, 1, &x, 1, &y, NULL), KILN_BAD_SHAPE, "out_tangents[0] is f32[], and");
}

/* What a rule takes from outside is differentiated by the next gradient, too: d/dx of c(x) g, with c = outside * x. */
API_TEST(custom_gradient, a_rule_uses_a_variable)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3), 1, 2, 3)), *w = kiln_param(F32(KILN_SHAPE(3), 4, 5, 6)), *y, *g, *both[2],
                *params[] = {x, w};
    outside = kiln_square(w);
    OK(kiln_custom_gradient(first, uses_outside, NULL, 1, &x, 1, &y, NULL));
    kiln_tensor *loss = kiln_add(kiln_sum(y), kiln_sum(outside)); /* which the walk comes to by two ways */
    OK(kiln_grad(loss, params, 2, both));
    EXPECT(both[0], KILN_F32, KILN_SHAPE(3), 0, 16, 25, 36);
    EXPECT(both[1], KILN_F32, KILN_SHAPE(3), 0, 8, 10, 12);
    outside = kiln_square(w);
    OK(kiln_custom_gradient(first, uses_outside, NULL, 1, &x, 1, &y, NULL));
    OK(kiln_grad(kiln_sum(kiln_square(y)), &x, 1, &g)); /* 2 e^x w^2 */
    OK(kiln_grad(kiln_sum(g), params, 2, both));        /* 2 (w^2)(w^2) by the rule of y = e^x; 4 e^x w */
    EXPECT(both[0], KILN_F32, KILN_SHAPE(3), 1e-6, 512, 1250, 2592);
    EXPECT(both[1], KILN_F32, KILN_SHAPE(3), 1e-6, 16 * exp(1), 20 * exp(2), 24 * exp(3));
}

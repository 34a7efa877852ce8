/*
 * Derivatives of derivatives of loops and branches: of each program the product u^T H v in four ways (reverse and forward mode, one over
 * the other), in f64, against central differences of the first derivative.
 */
#include "each_mode.h"
#include "tests/support/slice.h"

#include <math.h>
#include <string.h>

#define SECOND_TEST(name) STRICT_TEST(second, name)

enum { PARAMS = 3 };

typedef struct Model {
    const char *name;
    kiln_tensor *(*loss)(kiln_tensor **p); /* of p[0]: [3], p[1]: [4,3], p[2]: [3,3] */
} Model;

static kiln_tensor *noise(void) { return kiln_mul(kiln_uniform(KILN_F64, KILN_SHAPE(3), 0, 1), 0.1); }

static kiln_tensor *mix(kiln_tensor *x, kiln_tensor *w)
{
    return kiln_reshape(kiln_matmul(kiln_reshape(x, KILN_SHAPE(1, 3)), w), KILN_SHAPE(3));
}

/* --- the programs --- */

static void cell(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor *w = user;
    carry_out[0] = kiln_tanh(kiln_add(kiln_add(mix(carry[0], w), kiln_mul(x[0], kiln_cast(carry[1], KILN_F64))), noise()));
    carry_out[1] = kiln_add(carry[1], kiln_add(i, 1));
    y[0] = kiln_mul(carry[0], kiln_sin(x[0]));
    y[1] = kiln_gt(x[0], 0);
}

static kiln_tensor *scan_with(kiln_tensor **p, unsigned flags)
{
    kiln_tensor *init[] = {p[0], kiln_full(KILN_I64, KILN_SHAPE(), 1)}, *last[2], *ys[2];
    if (kiln_scan(cell, -1, flags, 2, init, last, 1, &p[1], 2, ys, p[2]) != KILN_OK)
        return NULL;
    return kiln_add(kiln_sum(kiln_square(last[0])), kiln_sum(kiln_mul(ys[0], kiln_cast(ys[1], KILN_F64))));
}

static kiln_tensor *scan_up(kiln_tensor **p) { return scan_with(p, 0); }
static kiln_tensor *scan_down(kiln_tensor **p) { return scan_with(p, KILN_SCAN_REVERSE); }

static void times_w(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = mix(kiln_sin(in[0]), user);
    out[1] = kiln_mul(in[1], in[1]);
}

static void other(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], kiln_sum(kiln_cos(in[1])));
    out[1] = in[1];
}

static kiln_tensor *branch_of(kiln_tensor **p, int which)
{
    kiln_tensor *in[] = {p[0], kiln_select(p[1], 0, 1)}, *out[2];
    if (kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(), which), times_w, other, 2, in, 2, out, p[2]) != KILN_OK)
        return NULL;
    return kiln_add(kiln_sum(kiln_square(out[0])), kiln_sum(kiln_exp(out[1])));
}

static kiln_tensor *then_branch(kiln_tensor **p) { return branch_of(p, 1); }
static kiln_tensor *else_branch(kiln_tensor **p) { return branch_of(p, 0); }

static void inner(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor *in[] = {carry[0], kiln_mul(carry[0], x[0])}, *out[2];
    if (kiln_cond(kiln_eq(i, 1), times_w, other, 2, in, 2, out, user) != KILN_OK)
        return;
    carry_out[0] = kiln_tanh(out[0]);
    y[0] = out[1];
}

static void outer(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor **p = user, *last, *ys, *start = kiln_add(carry[0], kiln_mul(x[0], 0.5));
    (void)i;
    if (kiln_scan(inner, -1, KILN_SCAN_REVERSE, 1, &start, &last, 1, &p[1], 1, &ys, p[2]) != KILN_OK)
        return;
    carry_out[0] = kiln_mul(last, 0.9);
    y[0] = kiln_sum_axes(ys, KILN_AXES(0), false);
}

static kiln_tensor *scan_in_scan(kiln_tensor **p)
{
    kiln_tensor *last, *ys;
    if (kiln_scan(outer, -1, 0, 1, &p[0], &last, 1, &p[1], 1, &ys, p) != KILN_OK)
        return NULL;
    return kiln_add(kiln_sum(kiln_square(last)), kiln_sum(ys));
}

/* How many steps there are is in the state, as is one value that stays. */
static kiln_tensor *until(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], 4);
}

static void go_on(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **p = user;
    out[0] = kiln_tanh(kiln_add(kiln_add(mix(in[0], p[2]), kiln_mul(in[2], kiln_cast(in[1], KILN_F64))), noise()));
    out[1] = kiln_add(in[1], 1);
    out[2] = in[2];
}

static kiln_tensor *bounded_while(kiln_tensor **p)
{
    kiln_tensor *state[] = {p[0], kiln_full(KILN_I64, KILN_SHAPE(), 0), kiln_select(p[1], 0, 2)};
    if (kiln_while(until, go_on, 3, state, 6, state, p) != KILN_OK)
        return NULL;
    return kiln_add(kiln_sum(kiln_square(state[0])), kiln_sum(kiln_mul(state[2], state[0])));
}

static void step_of_whiles(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)y;
    kiln_tensor *state[] = {carry[0], kiln_full(KILN_I64, KILN_SHAPE(), 2), x[0]};
    if (kiln_while(until, go_on, 3, state, 2, state, user) == KILN_OK)
        carry_out[0] = kiln_mul(state[0], 1.25);
}

static kiln_tensor *while_in_scan(kiln_tensor **p)
{
    kiln_tensor *last;
    if (kiln_scan(step_of_whiles, -1, 0, 1, &p[0], &last, 1, &p[1], 0, NULL, p) != KILN_OK)
        return NULL;
    return kiln_sum(kiln_square(last));
}

/* A rule of the user's, which says what differences say. */
static void power(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_exp(in[0]);
}

static void power_back(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)user;
    grads[0] = kiln_mul(cotangents[0], out[0]);
}

static void power_along(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **out_tangents, void *user)
{
    (void)in, (void)user;
    out_tangents[0] = kiln_mul(tangents[0], out[0]);
}

static void step_with_rule(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor *in = kiln_mul(mix(carry[0], user), x[0]), *out;
    (void)i, (void)y;
    if (kiln_custom_gradient(power, power_back, power_along, 1, &in, 1, &out, NULL) == KILN_OK)
        carry_out[0] = kiln_sin(out);
}

static kiln_tensor *rule_in_scan(kiln_tensor **p)
{
    kiln_tensor *last;
    if (kiln_scan(step_with_rule, -1, 0, 1, &p[0], &last, 1, &p[1], 0, NULL, p[2]) != KILN_OK)
        return NULL;
    return kiln_sum(kiln_square(last));
}

static const Model models[] = {
    {"scan", scan_up},
    {"scan, downwards", scan_down},
    {"branch", then_branch},
    {"other branch", else_branch},
    {"scan in scan, with branches", scan_in_scan},
    {"while", bounded_while},
    {"while in scan", while_in_scan},
    {"a rule of the user's in a scan", rule_in_scan},
};

/* --- products with the second derivative --- */

static kiln_tensor *dot(kiln_tensor **a, kiln_tensor **b)
{
    kiln_tensor *sum = kiln_sum(kiln_mul(a[0], b[0]));
    for (int k = 1; k < PARAMS; k++)
        sum = kiln_add(sum, kiln_sum(kiln_mul(a[k], b[k])));
    return sum;
}

static kiln_tensor *loss_of(const Model *m, kiln_tensor **p)
{
    kiln_seed(3);
    return m->loss(p);
}

/* d loss along v, by the mode. */
static kiln_tensor *first(const Model *m, kiln_tensor **p, kiln_tensor **v, bool forward)
{
    kiln_tensor *loss = loss_of(m, p), *grads[PARAMS], *along;
    if (forward)
        return kiln_jvp(PARAMS, p, v, 1, &loss, 0, &along) == KILN_OK ? along : NULL;
    return kiln_grad(loss, p, PARAMS, grads) == KILN_OK ? dot(grads, v) : NULL;
}

static kiln_tensor *second(kiln_tensor *of, kiln_tensor **p, kiln_tensor **u, bool forward)
{
    kiln_tensor *grads[PARAMS], *along;
    if (forward)
        return kiln_jvp(PARAMS, p, u, 1, &of, 0, &along) == KILN_OK ? along : NULL;
    return kiln_grad(of, p, PARAMS, grads) == KILN_OK ? dot(grads, u) : NULL;
}

static void make(kiln_tensor **x, bool params)
{
    const kiln_shape shape[PARAMS] = {KILN_SHAPE(3), KILN_SHAPE(4, 3), KILN_SHAPE(3, 3)};
    for (int k = 0; k < PARAMS; k++) {
        x[k] = kiln_uniform(KILN_F64, shape[k], -1, 1);
        OK(kiln_eval(x[k]));
        if (params)
            x[k] = kiln_param(x[k]);
    }
}

/* Central differences, twice: with the error of h^2 taken out (Richardson). */
static double by_differences(const Model *m, kiln_tensor **p, kiln_tensor **u, kiln_tensor **v)
{
    double side[2], difference[2];
    for (int round = 0; round < 2; round++) {
        const double h = round ? 1e-5 : 2e-5;
        for (int s = 0; s < 2; s++) {
            kiln_tensor *moved[PARAMS];
            for (int k = 0; k < PARAMS; k++) {
                moved[k] = kiln_stop_gradient(kiln_add(p[k], kiln_mul(u[k], s ? -h : h)));
                OK(kiln_eval(moved[k]));
                moved[k] = kiln_param(moved[k]);
            }
            OK(kiln_item(first(m, moved, v, false), &side[s]));
        }
        difference[round] = (side[0] - side[1]) / (2 * h);
    }
    return (4 * difference[1] - difference[0]) / 3;
}

SECOND_TEST(derivatives_of_loops)
{
    for (size_t n = 0; n < sizeof models / sizeof *models; n++) {
        const Model *m = &models[n];
        if (!slice_takes_in_turn(n, 4))
            continue;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *p[PARAMS], *u[PARAMS], *v[PARAMS];
        kiln_seed(n + 1);
        make(p, true);
        make(u, false);
        make(v, false);
        const double want = by_differences(m, p, u, v);
        for (int way = 0; way < 4; way++) {
            double got = 0;
            kiln_tensor *along = first(m, p, v, way & 1), *value;
            cr_assert(along, "%s, way %d: %s", m->name, way, kiln_error_message());
            value = second(along, p, u, way & 2);
            cr_assert(value, "%s, way %d: %s", m->name, way, kiln_error_message());
            OK(kiln_item(value, &got));
            cr_expect(fabs(got - want) < 1e-7 * (1 + fabs(want)), "%s, way %d: %.12g, not %.12g", m->name, way, got, want);
        }
        kiln_scope_end(scope);
    }
}

/* --- higher ones --- */

static void grow(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    carry_out[0] = kiln_mul(carry[0], user);
}

/* Each is recorded anew, as what is read is computed, and how is gone. */
SECOND_TEST(derivatives_of_any_order)
{
    const double want[] = {4 * 1.5 * 1.5 * 1.5, 12 * 1.5 * 1.5, 24 * 1.5, 24, 0};
    kiln_tensor *rate = kiln_param(kiln_full(KILN_F64, KILN_SHAPE(), 1.5)), *start = kiln_ones(KILN_F64, KILN_SHAPE()), *y;
    for (int order = 0; order < 5; order++) {
        OK(kiln_scan(grow, 4, 0, 1, &start, &y, 0, NULL, 0, NULL, rate));
        for (int k = 0; k <= order; k++)
            OK(kiln_grad(y, &rate, 1, &y));
        EXPECT(y, KILN_F64, KILN_SHAPE(), 1e-12, want[order]);
    }
}

/* Half of it computed: the right number or an error, never another number. */
SECOND_TEST(what_was_computed_meanwhile_is_said)
{
    for (int joint = 0; joint < 2; joint++)
        for (int which = 0; which < 3; which++) {
            kiln_tensor *rate = kiln_param(kiln_full(KILN_F64, KILN_SHAPE(), 1.5)), *start = kiln_ones(KILN_F64, KILN_SHAPE()), *y, *g, *h;
            set_option("joint", joint ? "1" : "0");
            OK(kiln_scan(grow, 4, 0, 1, &start, &y, 0, NULL, 0, NULL, rate));
            if (which == 2)
                OK(kiln_eval(y));
            kiln_status status = kiln_grad(y, &rate, 1, &g);
            if (status == KILN_OK && which == 0)
                OK(kiln_eval(y));
            if (status == KILN_OK && which == 1)
                OK(kiln_eval(kiln_mul(y, g)));
            if (status == KILN_OK)
                status = kiln_grad(g, &rate, 1, &h);
            if (status == KILN_OK)
                EXPECT(h, KILN_F64, KILN_SHAPE(), 1e-12, 12 * 1.5 * 1.5);
            else
                fails_with(status, KILN_INVALID, "is gone");
        }
    set_option("joint", "1");
}

/* In a recording it is kept. */
SECOND_TEST(a_recording_keeps_what_second_derivatives_take)
{
    kiln_tensor *rate = kiln_param(kiln_full(KILN_F64, KILN_SHAPE(), 1.5)), *start = kiln_ones(KILN_F64, KILN_SHAPE()), *y, *g, *h;
    kiln_recording *recording = kiln_recording_begin();
    OK(kiln_scan(grow, 4, 0, 1, &start, &y, 0, NULL, 0, NULL, rate));
    OK(kiln_eval(y));
    OK(kiln_grad(y, &rate, 1, &g));
    OK(kiln_eval(g));
    OK(kiln_grad(g, &rate, 1, &h));
    EXPECT(h, KILN_F64, KILN_SHAPE(), 1e-12, 12 * 1.5 * 1.5);
    kiln_recording_end(recording);
}

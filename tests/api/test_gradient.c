/* kiln_grad, kiln_vjp, kiln_jvp through the public interface: closed forms, parameters, functions, errors. What each op's derivative is:
 * unit/test_gradient.c. */
#include "api.h"

static kiln_tensor *gradient(kiln_tensor *loss, kiln_tensor *param)
{
    kiln_tensor *g = NULL;
    kiln_status status = kiln_grad(loss, &param, 1, &g);
    cr_assert_eq(status, KILN_OK, "%s", kiln_error_message());
    return g;
}

/* --- closed forms ------------------------------------------------------------------------------------------ */

API_TEST(gradient, of_a_sum_of_squares)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2, 2), 1, -2, 3, 0.5));
    kiln_tensor *g = gradient(kiln_sum(kiln_square(x)), x);
    EXPECT(g, KILN_F32, KILN_SHAPE(2, 2), 0, 2, -4, 6, 1);
}

API_TEST(gradient, of_cross_entropy_is_softmax_minus_one_hot)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(2, 3), 1, 2, 3, 0, 0, -1)), *labels = I32(KILN_SHAPE(2), 2, 0);
    kiln_tensor *g = gradient(kiln_sum(kiln_cross_entropy(x, labels)), x);
    double a = exp(-2), b = exp(-1), s = a + b + 1, t = 2 + exp(-1);
    EXPECT(g, KILN_F64, KILN_SHAPE(2, 3), 1e-13, a / s, b / s, 1 / s - 1, 1 / t - 1, 1 / t, exp(-1) / t);
}

/* Negative labels count from the end, and so do they in the gradient. */
API_TEST(gradient, of_labels_from_the_end)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(3, 2), 0, 0, 0, 0, 0, 0)), *labels = I32(KILN_SHAPE(3), -1, -2, 1);
    kiln_tensor *g = gradient(kiln_sum(kiln_cross_entropy(x, labels)), x);
    EXPECT(g, KILN_F64, KILN_SHAPE(3, 2), 1e-15, 0.5, -0.5, -0.5, 0.5, 0.5, -0.5);
    g = gradient(kiln_sum(kiln_take_along_axis(x, kiln_unsqueeze(labels, 1), 1)), x);
    EXPECT(g, KILN_F64, KILN_SHAPE(3, 2), 0, 0, 1, 1, 0, 0, 1);
}

/* A label that is out of bounds is an error where only the gradient is asked for, too: the forward pass is not computed then. */
API_TEST(gradient, of_labels_out_of_bounds)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(2, 3), 1, 2, 3, 0, 0, -1)), *g;
    for (int label = -4; label <= 3; label += 7) {
        kiln_tensor *loss = kiln_sum(kiln_cross_entropy(x, I32(KILN_SHAPE(2), 0, label)));
        if (!loss) { /* eager mode */
            cr_expect_eq(kiln_error_status(), KILN_BAD_INDEX);
            kiln_clear_error();
            continue;
        }
        double values[6];
        cr_assert_eq(kiln_grad(loss, &x, 1, &g), KILN_OK, "%s", kiln_error_message());
        cr_expect_eq(kiln_read(g, KILN_F64, values, sizeof values), KILN_BAD_INDEX, "label %d", label);
        cr_expect(strstr(kiln_error_message(), "kiln_cross_entropy"), "%s", kiln_error_message());
    }
}

/* y (g - sum(g y)), ties of the largest included */
API_TEST(gradient, of_softmax_and_its_logarithms)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(3), 1, 1, 0)), *c = F64(KILN_SHAPE(3), 1, 2, 4);
    double e = exp(-1), s = 2 + e, y[3] = {1 / s, 1 / s, e / s}, mean = y[0] + 2 * y[1] + 4 * y[2];
    EXPECT(gradient(kiln_sum(kiln_mul(kiln_softmax(x, 0), c)), x), KILN_F64, KILN_SHAPE(3), 1e-13, y[0] * (1 - mean), y[1] * (2 - mean),
           y[2] * (4 - mean));
    EXPECT(gradient(kiln_sum(kiln_mul(kiln_log_softmax(x, 0), c)), x), KILN_F64, KILN_SHAPE(3), 1e-13, 1 - 7 * y[0], 2 - 7 * y[1],
           4 - 7 * y[2]);
    EXPECT(gradient(kiln_logsumexp(x), x), KILN_F64, KILN_SHAPE(3), 1e-13, y[0], y[1], y[2]);
    /* the second derivative: diag(y) - y y^T times a vector */
    kiln_tensor *first = gradient(kiln_logsumexp(x), x);
    EXPECT(gradient(kiln_sum(kiln_mul(first, c)), x), KILN_F64, KILN_SHAPE(3), 1e-13, y[0] * (1 - mean), y[1] * (2 - mean),
           y[2] * (4 - mean));
}

/* Ba et al. 2016: 1/sigma (g - mean(g) - n mean(g n)), n the normalised values. */
API_TEST(gradient, of_layer_norm)
{
    double v[4] = {1, 2, 4, 9}, w[4] = {1, -1, 2, 0.5}, mean = 4, var = 9.5, want[4], eps = 1e-5, a = 0, b = 0;
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(4), 1, 2, 4, 9)), *weight = kiln_param(F64(KILN_SHAPE(4), 1, -1, 2, 0.5)),
                *bias = kiln_param(F64(KILN_SHAPE(4), 0, 0, 0, 1)), *g[3];
    kiln_tensor *y = kiln_layer_norm(x, weight, bias, eps);
    cr_assert_eq(kiln_grad(kiln_sum(y), (kiln_tensor *[]){x, weight, bias}, 3, g), KILN_OK);
    double sigma = sqrt(var + eps);
    for (int i = 0; i < 4; i++) {
        a += w[i] / 4;
        b += w[i] * (v[i] - mean) / sigma / 4;
    }
    for (int i = 0; i < 4; i++)
        want[i] = (w[i] - a - (v[i] - mean) / sigma * b) / sigma;
    expect(__LINE__, g[0], KILN_F64, KILN_SHAPE(4), 1e-12, want, 4);
    EXPECT(g[1], KILN_F64, KILN_SHAPE(4), 1e-12, -3 / sigma, -2 / sigma, 0, 5 / sigma);
    EXPECT(g[2], KILN_F64, KILN_SHAPE(4), 0, 1, 1, 1, 1);
}

/* The product of the others; of others that are 0, too, the second derivative is the product of all but both. */
API_TEST(gradient, of_products_with_zeros)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(4, 3), 2, 3, 4, 0, 3, 4, 0, 4, 0, 0, 0, 0)), *weight = F64(KILN_SHAPE(3), 1, 2, 3);
    kiln_tensor *first = gradient(kiln_sum(kiln_prod_axes(x, KILN_AXES(1), false)), x);
    kiln_tensor *second = gradient(kiln_sum(kiln_mul(first, weight)), x);
    EXPECT(first, KILN_F64, KILN_SHAPE(4, 3), 1e-13, 12, 8, 6, 12, 0, 0, 0, 0, 0, 0, 0, 0);
    EXPECT(second, KILN_F64, KILN_SHAPE(4, 3), 1e-13, 17, 10, 7, 17, 4, 3, 12, 0, 4, 0, 0, 0);
}

API_TEST(gradient, of_std_at_0_is_0)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3), 2, 2, 2));
    EXPECT(gradient(kiln_std(x, 1), x), KILN_F32, KILN_SHAPE(3), 0, 0, 0, 0);
}

API_TEST(gradient, of_clamp)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(5), -2, -1, 0, 1, 2));
    EXPECT(gradient(kiln_sum(kiln_clamp(x, kiln_int(-1), kiln_int(1))), x), KILN_F32, KILN_SHAPE(5), 0, 0, 0.5, 1, 0.5, 0);
}

/* A weight that a batch shares: one product for it, [b m, k]^T [b m, n]. */
API_TEST(gradient, of_a_shared_weight)
{
    kiln_tensor *x = F32(KILN_SHAPE(2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8), *w = kiln_param(F32(KILN_SHAPE(2, 1), 1, 1));
    EXPECT(gradient(kiln_sum(kiln_matmul(x, w)), w), KILN_F32, KILN_SHAPE(2, 1), 0, 16, 20);
}

/* --- parameters --------------------------------------------------------------------------------------------- */

API_TEST(gradient, descent_finds_the_line)
{
    kiln_tensor *x = F32(KILN_SHAPE(4, 2), 0, 1, 1, 1, 2, 1, 3, 1), *y = F32(KILN_SHAPE(4), 1, 3, 5, 7);
    kiln_tensor *w = kiln_param(kiln_zeros(KILN_F32, KILN_SHAPE(2)));
    for (int step = 0; step < 200; step++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *loss = kiln_mean(kiln_square(kiln_sub(kiln_matmul(x, w), y)));
        kiln_tensor *g = gradient(loss, w);
        cr_assert_eq(kiln_assign(w, kiln_sub(w, kiln_mul(kiln_scalar(0.1), g))), KILN_OK);
        kiln_scope_end(scope);
        cr_assert_eq(kiln_eval(w), KILN_OK, "%s", kiln_error_message());
    }
    EXPECT(w, KILN_F32, KILN_SHAPE(2), 1e-3, 2, 1);
}

API_TEST(gradient, a_value_that_was_assigned_is_a_leaf)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(1), 3)), *rate = kiln_param(F32(KILN_SHAPE(1), 2)), *g[2];
    kiln_tensor *next = kiln_mul(w, rate);
    cr_assert_eq(kiln_assign(w, next), KILN_OK);
    cr_assert_eq(kiln_grad(kiln_square(w), (kiln_tensor *[]){w, rate}, 2, g), KILN_OK, "%s", kiln_error_message());
    EXPECT(g[0], KILN_F32, KILN_SHAPE(1), 0, 12);
    EXPECT(g[1], KILN_F32, KILN_SHAPE(1), 0, 0);
    /* the other handle goes on to mean what was computed */
    next = kiln_mul(F32(KILN_SHAPE(1), 3), rate);
    cr_assert_eq(kiln_assign(w, next), KILN_OK);
    EXPECT(gradient(kiln_square(next), rate), KILN_F32, KILN_SHAPE(1), 0, 36);
}

API_TEST(gradient, of_a_parameter_that_was_assigned_since)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(1), 3)), *g;
    kiln_tensor *loss = kiln_square(w);
    cr_assert_eq(kiln_assign(w, F32(KILN_SHAPE(1), 4)), KILN_OK);
    fails_with(kiln_grad(loss, &w, 1, &g), KILN_INVALID, "kiln_grad: params[0] was assigned (test_gradient.c:");
    cr_assert(!g);
}

/* A handle that gets a parameter's value is no parameter. */
API_TEST(gradient, a_copy_of_a_parameter_is_none)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(1), 3)), *other = F32(KILN_SHAPE(1), 5);
    cr_assert_eq(kiln_assign(other, w), KILN_OK);
    cr_assert_eq(kiln_assign(other, kiln_square(w)), KILN_OK);
    EXPECT(gradient(kiln_square(other), w), KILN_F32, KILN_SHAPE(1), 0, 108);
}

/* What was recorded from a value before it became a parameter does not end there. */
API_TEST(gradient, marking_does_not_cut_what_there_was)
{
    kiln_tensor *a = kiln_param(F32(KILN_SHAPE(1), 3));
    kiln_tensor *b = kiln_square(a), *c = kiln_square(b);
    kiln_param(b);
    EXPECT(gradient(c, a), KILN_F32, KILN_SHAPE(1), 0, 108);
    kiln_tensor *d = kiln_square(b), *g[2];
    cr_assert_eq(kiln_grad(d, (kiln_tensor *[]){a, b}, 2, g), KILN_OK);
    EXPECT(g[0], KILN_F32, KILN_SHAPE(1), 0, 0);
    EXPECT(g[1], KILN_F32, KILN_SHAPE(1), 0, 18);
}

API_TEST(gradient, stops_where_it_is_told)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 3, 4));
    EXPECT(gradient(kiln_sum(kiln_mul(x, kiln_stop_gradient(kiln_square(x)))), x), KILN_F32, KILN_SHAPE(2), 0, 9, 16);
    EXPECT(gradient(kiln_sum(kiln_stop_gradient(x)), x), KILN_F32, KILN_SHAPE(2), 0, 0, 0);
}

API_TEST(gradient, zeros_or_an_error_where_nothing_is_connected)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(2), 3, 4)), *y = kiln_param(F32(KILN_SHAPE(3), 3, 4, 5)), *g[2], *one = kiln_scalar(1);
    kiln_tensor *out = kiln_square(x);
    cr_assert_eq(kiln_vjp(1, &out, &one, 2, (kiln_tensor *[]){x, y}, 0, g), KILN_OK, "%s", kiln_error_message());
    EXPECT(g[0], KILN_F64, KILN_SHAPE(2), 0, 6, 8);
    EXPECT(g[1], KILN_F32, KILN_SHAPE(3), 0, 0, 0, 0);
    fails_with(kiln_vjp(1, &out, &one, 2, (kiln_tensor *[]){x, y}, KILN_GRAD_CONNECTED, g), KILN_INVALID, "no output depends on inputs[1]");
    cr_assert(!g[0] && !g[1]);
    fails_with(kiln_jvp(1, &y, &one, 1, &out, KILN_GRAD_CONNECTED, g), KILN_INVALID, "outputs[0] depends on none of the inputs");
}

API_TEST(gradient, forward_mode)
{
    kiln_tensor *x = kiln_param(F64(KILN_SHAPE(2), 1, 2)), *y = kiln_param(F64(KILN_SHAPE(2), 3, 4)), *t[2];
    kiln_tensor *out[2] = {kiln_mul(x, y), kiln_sin(x)};
    kiln_tensor *tangents[2] = {F64(KILN_SHAPE(2), 1, 0), kiln_scalar(2)};
    cr_assert_eq(kiln_jvp(2, (kiln_tensor *[]){x, y}, tangents, 2, out, 0, t), KILN_OK, "%s", kiln_error_message());
    EXPECT(t[0], KILN_F64, KILN_SHAPE(2), 0, 5, 4);
    EXPECT(t[1], KILN_F64, KILN_SHAPE(2), 1e-15, cos(1), 0);
}

API_TEST(gradient, in_half_precision)
{
    kiln_tensor *x = kiln_param(kiln_cast(F32(KILN_SHAPE(3), 1, 2, 3), KILN_F16));
    EXPECT(gradient(kiln_sum(kiln_mul(kiln_square(x), x)), x), KILN_F16, KILN_SHAPE(3), 0, 3, 12, 27);
}

API_TEST(gradient, of_rows_taken_twice)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3, 2), 1, 2, 3, 4, 5, 6)), *rows = I32(KILN_SHAPE(4), 2, 0, 2, 2);
    EXPECT(gradient(kiln_sum(kiln_take(x, rows, 0)), x), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 1, 0, 0, 3, 3);
}

/* The same bits are drawn again where the backward pass needs them. */
API_TEST(gradient, of_random_draws)
{
    kiln_seed(7);
    kiln_tensor *x = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(100), 2));
    kiln_tensor *mask = kiln_lt(kiln_uniform(KILN_F32, KILN_SHAPE(100), 0, 1), kiln_scalar(0.5));
    kiln_tensor *y = kiln_where(mask, kiln_mul(x, kiln_scalar(2)), kiln_scalar(0));
    double difference;
    cr_assert_eq(kiln_item(kiln_max(kiln_abs(kiln_sub(gradient(kiln_sum(y), x), kiln_div(y, kiln_scalar(2))))), &difference), KILN_OK);
    cr_assert_eq(difference, 0);
}

/* --- what was computed ----------------------------------------------------------------------------------------- */

static bool is_eager(void)
{
    char mode[16];
    cr_assert_eq(kiln_get_option("mode", mode, sizeof mode), KILN_OK);
    return !strcmp(mode, "eager");
}

API_TEST(gradient, through_what_was_computed)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *g;
    kiln_tensor *y = kiln_square(x);
    if (!is_eager()) { /* where values keep how they were made */
        cr_assert_eq(kiln_eval(y), KILN_OK);
        fails_with(kiln_grad(kiln_sum(y), &x, 1, &g), KILN_INVALID, "kiln_grad: the value of kiln_square (test_gradient.c:");
        fails_with(kiln_grad(kiln_sum(y), &x, 1, &g), KILN_INVALID, ") was computed by kiln_eval (test_gradient.c:");
        kiln_tensor *loss = kiln_sum(kiln_square(x));
        double value;
        cr_assert_eq(kiln_item(loss, &value), KILN_OK);
        fails_with(kiln_grad(loss, &x, 1, &g), KILN_INVALID, "was computed by kiln_item");
        EXPECT(gradient(kiln_sum(y), y), KILN_F32, KILN_SHAPE(2), 0, 1, 1); /* with respect to itself nothing is gone */
        kiln_tensor *in[2] = {x, y}, *both[2];
        fails_with(kiln_grad(kiln_sum(y), in, 2, both), KILN_INVALID, "one of several params");
        EXPECT(gradient(kiln_sum(kiln_mul(x, kiln_stop_gradient(y))), x), KILN_F32, KILN_SHAPE(2), 0, 1, 4);
    } else {
        cr_assert_eq(kiln_eval(y), KILN_OK);
        EXPECT(gradient(kiln_sum(y), x), KILN_F32, KILN_SHAPE(2), 0, 2, 4);
    }
}

/* Ints that were computed from a parameter are constants. */
API_TEST(gradient, through_ints_that_were_computed)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3), 1, 5, 2));
    kiln_tensor *best = kiln_argmax(x);
    cr_assert_eq(kiln_eval(best), KILN_OK);
    EXPECT(gradient(kiln_sum(kiln_take(x, kiln_reshape(best, KILN_SHAPE(1)), 0)), x), KILN_F32, KILN_SHAPE(3), 0, 0, 1, 0);
}

/* Nothing flows through a copy to another device; kiln_to of what lies there already is no copy. */
API_TEST(gradient, through_a_move)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *y = kiln_to(kiln_square(x), "cpu"), *g;
    char device[16];
    cr_assert_eq(kiln_device_of(x, device, sizeof device), KILN_OK);
    if (!strcmp(device, "cpu")) {
        if (!is_eager())
            cr_assert(!kiln_is_evaluated(y));
        EXPECT(gradient(kiln_sum(y), x), KILN_F32, KILN_SHAPE(2), 0, 2, 4);
        return;
    }
    fails_with(kiln_grad(kiln_sum(kiln_square(y)), &x, 1, &g), KILN_UNSUPPORTED, "moved by kiln_to (test_gradient.c:");
    cr_assert(!g);
    fails_with(kiln_grad(kiln_sum(kiln_to(x, "cpu")), &x, 1, &g), KILN_UNSUPPORTED, "moved by kiln_to (test_gradient.c:");
    EXPECT(gradient(kiln_sum(kiln_stop_gradient(y)), x), KILN_F32, KILN_SHAPE(2), 0, 0, 0);
}

/* --- functions --------------------------------------------------------------------------------------------------- */

static void squares(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *w = user;
    out[0] = kiln_sum(kiln_square(kiln_mul(w, in[0])));
    (void)kiln_grad(out[0], (kiln_tensor *[]){w, in[0]}, 2, out + 1);
}

API_TEST(gradient, in_a_function)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *out[3];
    kiln_function *f = kiln_function_new(squares, 1, 3, w);
    for (int k = 1; k <= 3; k++) {
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(2), k);
        cr_assert_eq(kiln_function_call(f, &x, out), KILN_OK, "%s", kiln_error_message());
        EXPECT(out[0], KILN_F32, KILN_SHAPE(), 0, 5 * k * k);
        EXPECT(out[1], KILN_F32, KILN_SHAPE(2), 0, 2 * k * k, 4 * k * k);
        EXPECT(out[2], KILN_F32, KILN_SHAPE(2), 0, 2 * k, 8 * k);
        cr_assert_eq(kiln_assign(w, F32(KILN_SHAPE(2), 1, 2)), KILN_OK); /* another leaf of the same values */
    }
    kiln_tensor *g, *x = kiln_full(KILN_F32, KILN_SHAPE(2), 4);
    for (int k = 0; k < 4; k++) { /* a replay, then one that is prepared */
        cr_assert_eq(kiln_function_call(f, &x, out), KILN_OK);
        if (is_eager()) { /* it is run each time, and what it recorded keeps how it was made */
            EXPECT(gradient(out[0], w), KILN_F32, KILN_SHAPE(2), 0, 32, 64);
            continue;
        }
        fails_with(kiln_grad(out[0], &w, 1, &g), KILN_INVALID, "was computed by kiln_function_call (test_gradient.c:");
        fails_with(kiln_grad(out[0], &w, 1, &g), KILN_INVALID, "make the function by kiln_value_and_grad");
    }
    kiln_function_free(f);
}

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *w = user, *g;
    out[0] = kiln_mean(kiln_square(kiln_sub(kiln_matmul(in[0], w), in[1])));
    if (kiln_grad(out[0], &w, 1, &g) == KILN_OK)
        (void)kiln_assign(w, kiln_sub(w, kiln_mul(in[2], g)));
}

API_TEST(gradient, a_step_in_a_function)
{
    kiln_tensor *in[3] = {F32(KILN_SHAPE(4, 2), 0, 1, 1, 1, 2, 1, 3, 1), F32(KILN_SHAPE(4), 1, 3, 5, 7),
                          kiln_full(KILN_F32, KILN_SHAPE(), 0.1)};
    kiln_tensor *w = kiln_param(kiln_zeros(KILN_F32, KILN_SHAPE(2))), *loss;
    kiln_function *f = kiln_function_new(step, 3, 1, w);
    for (int k = 0; k < 200; k++)
        cr_assert_eq(kiln_function_call(f, in, &loss), KILN_OK, "%s", kiln_error_message());
    EXPECT(w, KILN_F32, KILN_SHAPE(2), 1e-3, 2, 1);
    EXPECT(gradient(kiln_sum(kiln_square(w)), w), KILN_F32, KILN_SHAPE(2), 1e-2, 4, 2); /* it is still a leaf */
    kiln_function_free(f);
}

static void ignores(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], kiln_scalar(2));
    cr_assert_eq(kiln_eval(out[0]), KILN_OK); /* so it is run at each call */
}

/* Inside, arguments are parameters; outside, a result is tracked only where an argument is. */
API_TEST(gradient, arguments_are_parameters_inside_only)
{
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(2), 4), *y, *w = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *g;
    kiln_function *f = kiln_function_new(ignores, 1, 1, NULL);
    cr_assert_eq(kiln_function_call(f, &x, &y), KILN_OK);
    EXPECT(gradient(kiln_sum(kiln_mul(w, y)), w), KILN_F32, KILN_SHAPE(2), 0, 8, 8);
    cr_assert_eq(kiln_function_call(f, &w, &y), KILN_OK);
    fails_with(kiln_grad(kiln_sum(kiln_mul(w, y)), &w, 1, &g), KILN_INVALID, "was computed by");
    kiln_function_free(f);
}

/* --- recordings --- */

API_TEST(gradient, in_a_recording)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *g;
    kiln_recording *outer = kiln_recording_begin(), *inner = kiln_recording_begin();
    kiln_tensor *y = kiln_square(kiln_mul(x, kiln_scalar(3)));
    cr_assert_eq(kiln_eval(y), KILN_OK);
    kiln_recording_end(inner); /* the outer one has it now */
    kiln_tensor *loss = kiln_sum(kiln_mul(y, x));
    double value;
    cr_assert_eq(kiln_item(loss, &value), KILN_OK);
    cr_assert_eq(value, 81);
    EXPECT(gradient(loss, x), KILN_F32, KILN_SHAPE(2), 0, 27, 108);
    EXPECT(gradient(kiln_sum(gradient(loss, x)), x), KILN_F32, KILN_SHAPE(2), 0, 54, 108);
    kiln_recording_end(outer);
    fails_with(kiln_grad(kiln_square(loss), &x, 1, &g), KILN_INVALID, "was computed by kiln_recording_end");
    kiln_recording_end(outer);
    fails_with(kiln_error_status(), KILN_INVALID, "kiln_recording_end: the recording is not an open one");
}

/* The memory that recordings keep: it grows while one is open, an inner one hands it on, and in the end there is none. */
API_TEST(gradient, what_recordings_keep_is_counted)
{
    enum { SIZE = 1000 };
    int64_t before = kiln_kept_bytes();
    kiln_tensor *x = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(SIZE), 2)), *y[3];
    cr_assert_eq(kiln_eval(x), KILN_OK);
    cr_expect_eq(kiln_kept_bytes(), before, "a parameter is nothing that is kept");
    kiln_recording *outer = kiln_recording_begin(), *inner = kiln_recording_begin();
    for (int k = 0; k < 3; k++) {
        y[k] = kiln_sin(k ? y[k - 1] : x);
        cr_assert_eq(kiln_eval(y[k]), KILN_OK);
        cr_expect_eq(kiln_kept_bytes() - before, 4 * SIZE * (k + 1), "%d: %lld", k, (long long)kiln_kept_bytes());
    }
    kiln_reset_stats();
    kiln_recording_end(inner);
    cr_expect_eq(kiln_kept_bytes() - before, 4 * SIZE * 3);
    kiln_recording_end(outer);
    cr_expect_eq(kiln_kept_bytes(), before, "%lld", (long long)kiln_kept_bytes());
    {
        kiln_scope *scope = kiln_scope_begin(); /* values that no recording holds: eager mode keeps them as long as they live */
        cr_assert_eq(kiln_eval(kiln_sin(x)), KILN_OK);
        kiln_scope_end(scope);
    }
    cr_expect_eq(kiln_kept_bytes(), before);
}

/* Nothing is overwritten that a gradient may need. */
API_TEST(gradient, a_recording_keeps_values)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3), 1, 2, 3));
    kiln_recording *recording = kiln_recording_begin();
    kiln_tensor *y = kiln_retain(kiln_exp(x));
    cr_assert_eq(kiln_eval(y), KILN_OK);
    for (int k = 0; k < 3; k++) {
        kiln_scope *scope = kiln_scope_begin();
        cr_assert_eq(kiln_assign(y, kiln_square(y)), KILN_OK);
        kiln_scope_end(scope);
        cr_assert_eq(kiln_eval(y), KILN_OK);
    }
    kiln_tensor *g = gradient(kiln_sum(kiln_log(y)), x);
    EXPECT(g, KILN_F32, KILN_SHAPE(3), 1e-5, 8, 8, 8);
    kiln_recording_end(recording);
    kiln_release(y);
}

/* A function that is called in a recording is a part of it. */
API_TEST(gradient, of_a_function_in_a_recording)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *out[3], *x = kiln_full(KILN_F32, KILN_SHAPE(2), 2);
    kiln_function *f = kiln_function_new(squares, 1, 3, w);
    kiln_recording *recording = kiln_recording_begin();
    x = kiln_param(x);
    cr_assert_eq(kiln_function_call(f, &x, out), KILN_OK, "%s", kiln_error_message());
    EXPECT(gradient(out[0], w), KILN_F32, KILN_SHAPE(2), 0, 8, 16);
    kiln_recording_end(recording);
    kiln_function_free(f);
}

static void loss_of(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[1] = kiln_mul(in[0], in[1]);
    out[0] = kiln_sum(kiln_square(out[1]));
}

API_TEST(gradient, of_a_function_and_its_value)
{
    kiln_function *f = kiln_value_and_grad(loss_of, 2, 2, (int[]){1, 0}, 2, NULL);
    kiln_tensor *out[4], *same = kiln_full(KILN_F32, KILN_SHAPE(2), 3);
    for (int k = 1; k <= 2; k++) {
        kiln_tensor *in[2] = {kiln_full(KILN_F32, KILN_SHAPE(2), k), F32(KILN_SHAPE(2), 3, 4)};
        cr_assert_eq(kiln_function_call(f, in, out), KILN_OK, "%s", kiln_error_message());
        EXPECT(out[0], KILN_F32, KILN_SHAPE(), 0, 25 * k * k);
        EXPECT(out[1], KILN_F32, KILN_SHAPE(2), 0, 3 * k, 4 * k);
        EXPECT(out[2], KILN_F32, KILN_SHAPE(2), 0, 6 * k * k, 8 * k * k);
        EXPECT(out[3], KILN_F32, KILN_SHAPE(2), 0, 18 * k, 32 * k);
    }
    /* one tensor as two inputs is two */
    cr_assert_eq(kiln_function_call(f, (kiln_tensor *[]){same, same}, out), KILN_OK, "%s", kiln_error_message());
    EXPECT(out[3], KILN_F32, KILN_SHAPE(2), 0, 54, 54);
    kiln_function_free(f);
    kiln_function *bad = kiln_value_and_grad(loss_of, 2, 2, (int[]){0}, 1, NULL);
    kiln_tensor *ints[2] = {I32(KILN_SHAPE(2), 1, 2), I32(KILN_SHAPE(2), 1, 2)};
    fails_with(kiln_function_call(bad, ints, out), KILN_BAD_DTYPE, "inside the function: kiln_grad: loss is i64[]: a float is needed");
    kiln_function_free(bad);
}

static void calls_with_one_twice(kiln_tensor **in, kiln_tensor **out, void *inner)
{
    cr_expect_eq(kiln_function_call(inner, (kiln_tensor *[]){in[0], in[0]}, out), KILN_OK, "%s", kiln_error_message());
}

/* A function inside another is a part of its trace: there, too, one tensor as two inputs is two. */
API_TEST(gradient, of_a_function_inside_another)
{
    kiln_function *inner = kiln_value_and_grad(loss_of, 2, 2, (int[]){1, 0}, 2, NULL);
    kiln_function *outer = kiln_function_new(calls_with_one_twice, 1, 4, inner);
    kiln_tensor *out[4], *x = kiln_full(KILN_F32, KILN_SHAPE(2), 3);
    cr_assert_eq(kiln_function_call(outer, &x, out), KILN_OK, "%s", kiln_error_message());
    EXPECT(out[2], KILN_F32, KILN_SHAPE(2), 0, 54, 54);
    EXPECT(out[3], KILN_F32, KILN_SHAPE(2), 0, 54, 54);
    kiln_function_free(outer);
    kiln_function_free(inner);
}

/* --- bad arguments -------------------------------------------------------------------------------------------------- */

API_TEST(gradient, bad_arguments)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *plain = F32(KILN_SHAPE(2), 1, 2), *g = x, *loss = kiln_sum(kiln_square(x));
    kiln_tensor *ints = I32(KILN_SHAPE(2), 1, 2), *one = kiln_scalar(1), *weak = kiln_scalar(2);
    cr_assert(!kiln_param(ints));
    fails_with(kiln_error_status(), KILN_BAD_DTYPE, "kiln_param: x is i32[2]: only floats have gradients (test_gradient.c:");
    cr_assert(!kiln_param(weak));
    fails_with(kiln_error_status(), KILN_INVALID, "use kiln_full");
    cr_assert(!kiln_param(NULL));
    fails_with(kiln_error_status(), KILN_INVALID, "x is NULL");
    cr_assert_eq(kiln_param(x), x, "twice is once");
    fails_with(kiln_grad(kiln_square(x), &x, 1, &g), KILN_BAD_SHAPE, "loss is f32[2]: one element is needed");
    cr_assert(!g);
    fails_with(kiln_grad(kiln_argmax(x), &x, 1, &g), KILN_BAD_DTYPE, "loss is i64[]");
    fails_with(kiln_grad(loss, &plain, 1, &g), KILN_INVALID, "params[0] is no parameter");
    fails_with(kiln_grad(loss, &ints, 1, &g), KILN_BAD_DTYPE, "params[0] is i32[2]");
    fails_with(kiln_grad(loss, &weak, 1, &g), KILN_INVALID, "params[0] is a weak float");
    fails_with(kiln_grad(NULL, &x, 1, &g), KILN_INVALID, "loss is NULL");
    fails_with(kiln_grad(loss, (kiln_tensor *[]){NULL}, 1, &g), KILN_INVALID, "params[0] is NULL");
    fails_with(kiln_grad(loss, &x, -1, &g), KILN_INVALID, "n >= 0");
    fails_with(kiln_grad(loss, NULL, 1, &g), KILN_INVALID, "n >= 0");
    cr_assert_eq(kiln_grad(loss, NULL, 0, NULL), KILN_OK);
    fails_with(kiln_vjp(1, &loss, &one, 1, &x, 2, &g), KILN_INVALID, "flags are 0x2");
    fails_with(kiln_vjp(1, &loss, &plain, 1, &x, 0, &g), KILN_BAD_SHAPE, "cotangents[0] is f32[2], and what it belongs to is f32[]");
    fails_with(kiln_jvp(1, &x, &ints, 1, &loss, 0, &g), KILN_BAD_DTYPE, "tangents[0] is i32[2], and what it belongs to is f32[2]");
    fails_with(kiln_vjp(1, NULL, &one, 1, &x, 0, &g), KILN_INVALID, "needs arrays");
    fails_with(kiln_grad(kiln_sum(kiln_nextafter(x, plain)), &x, 1, &g), KILN_UNSUPPORTED, "kiln_nextafter (test_gradient.c:");
    cr_assert(!kiln_stop_gradient(NULL));
    fails_with(kiln_error_status(), KILN_INVALID, "x is NULL");
}

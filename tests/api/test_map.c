/* kiln_map: what it stands for is the function on slices, stacked. Each op by itself: unit/test_map_ops. */
#include "each_mode.h"

#include <stdio.h>

#define MAP_TEST(name) STRICT_TEST(map, name)

static void ok(int line, kiln_status status) { cr_assert_eq(status, KILN_OK, "line %d: %s", line, kiln_error_message()); }

static kiln_tensor *given(kiln_dtype dtype, kiln_shape shape)
{
    kiln_tensor *x = kiln_cast(kiln_uniform(KILN_F64, shape, -1, 1), dtype);
    OK(kiln_eval(x));
    return x;
}

enum { MOST = 4, LONGEST = 8 };

/* out[k]: the function at each index, one call after the other, stacked. */
static void by_slices(kiln_function_body *f, int n_in, kiln_tensor *const *in, const int *axes, int n_out, kiln_tensor **out, void *user)
{
    kiln_tensor *one[MOST], *each[MOST][LONGEST] = {{NULL}};
    int64_t n = 0;
    for (int k = 0; k < n_in; k++)
        if (axes[k] != KILN_WHOLE)
            n = kiln_dim(in[k], axes[k]);
    for (int64_t i = 0; i < n; i++) {
        kiln_tensor *got[MOST] = {NULL};
        for (int k = 0; k < n_in; k++)
            one[k] = axes[k] == KILN_WHOLE ? in[k] : kiln_select(in[k], axes[k], i);
        f(one, got, user);
        for (int k = 0; k < n_out; k++)
            each[k][i] = got[k];
    }
    for (int k = 0; k < n_out; k++)
        out[k] = kiln_stack(each[k], (int)n, 0);
}

static void against_slices(int line, kiln_function_body *f, int n_in, kiln_tensor *const *in, const int *axes, int n_out, void *user)
{
    kiln_tensor *want[MOST], *got[MOST];
    by_slices(f, n_in, in, axes, n_out, want, user);
    for (int64_t chunk = 0; chunk < 8; chunk++) { /* 1, 2, ...: with and without a rest */
        ok(line, kiln_map(f, n_in, in, axes, chunk, n_out, got, user));
        for (int k = 0; k < n_out; k++)
            same_bits(line, got[k], want[k]);
    }
}
#define AGAINST_SLICES(f, n_in, in, axes, n_out, user) against_slices(__LINE__, f, n_in, in, axes, n_out, user)

/* --- functions ------------------------------------------------------------------------------------------------------- */

static void layer(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_softmax(kiln_add(kiln_matmul(in[0], in[1]), in[2]), -1);
    out[1] = kiln_max_axes(out[0], KILN_AXES(0), false);
    out[2] = kiln_sum(in[1]); /* no index has a part in it, if the weights are whole */
}

MAP_TEST(of_a_layer)
{
    kiln_tensor *in[] = {given(KILN_F32, KILN_SHAPE(5, 4, 3)), given(KILN_F32, KILN_SHAPE(3, 6)), given(KILN_F32, KILN_SHAPE(6, 5))};
    AGAINST_SLICES(layer, 3, in, ((int[]){0, KILN_WHOLE, 1}), 3, NULL);
    AGAINST_SLICES(layer, 3, in, ((int[]){0, KILN_WHOLE, -1}), 3, NULL);
    in[0] = kiln_permute(in[0], KILN_AXES(1, 2, 0));
    AGAINST_SLICES(layer, 3, in, ((int[]){-1, KILN_WHOLE, 1}), 3, NULL);
    in[1] = given(KILN_F32, KILN_SHAPE(3, 5, 6));
    AGAINST_SLICES(layer, 3, in, ((int[]){2, 1, 1}), 3, NULL);
}

/* What it takes from outside is whole, pending or not. */
static void with_captured(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_mul(kiln_matmul(in[0], *(kiln_tensor **)user), 2);
    out[1] = *(kiln_tensor **)user;
}

MAP_TEST(captures)
{
    kiln_tensor *in[] = {given(KILN_F32, KILN_SHAPE(5, 2, 3))}, *captured = kiln_mul(given(KILN_F32, KILN_SHAPE(3, 3)), 0.5);
    AGAINST_SLICES(with_captured, 1, in, ((int[]){0}), 2, &captured);
}

static void inner(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sub(kiln_cumsum(in[0], 0), in[1]);
}

static void outer(kiln_tensor **in, kiln_tensor **out, void *user)
{
    int64_t chunk = *(int *)user;
    (void)kiln_map(inner, 2, in, (int[]){1, KILN_WHOLE}, chunk, 1, out, NULL);
}

MAP_TEST(of_a_map)
{
    kiln_tensor *in[] = {given(KILN_F32, KILN_SHAPE(4, 3, 5)), given(KILN_F32, KILN_SHAPE(5))};
    for (int chunk = 0; chunk < 3; chunk += 2)
        AGAINST_SLICES(outer, 2, in, ((int[]){2, 0}), 1, &chunk);
}

/* --- loops and branches ---------------------------------------------------------------------------------------------- */

static void scan_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    carry_out[0] = kiln_add(kiln_mul(carry[0], *(kiln_tensor **)user), x[0]);
    carry_out[1] = kiln_add(carry[1], i); /* does not vary */
    y[0] = kiln_mul(carry[0], x[1]);
    y[1] = kiln_mul(carry[1], 2);
}

static void scans(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *zero[] = {kiln_zeros(KILN_F32, KILN_SHAPE(3)), kiln_int(0)};
    (void)kiln_scan(scan_step, -1, KILN_SCAN_REVERSE, 2, zero, out, 2, in, 2, out + 2, &in[2]);
}

MAP_TEST(of_a_scan)
{
    kiln_tensor *in[] = {given(KILN_F32, KILN_SHAPE(4, 5, 3)), given(KILN_F32, KILN_SHAPE(4, 3)), given(KILN_F32, KILN_SHAPE(5))};
    AGAINST_SLICES(scans, 3, in, ((int[]){1, KILN_WHOLE, 0}), 4, NULL);
    in[0] = in[1];
    AGAINST_SLICES(scans, 3, in, ((int[]){KILN_WHOLE, KILN_WHOLE, 0}), 4, NULL);
}

/* From the greatest power of 2 that is not greater; table[k], k below how often: out of bounds for an index that is at its end, if it went on. */
static kiln_tensor *not_there(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[0], state[1]);
}

static void look_up(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_add(in[0], kiln_take(*(kiln_tensor **)user, in[2], 0));
    out[1] = in[1];
    out[2] = kiln_add(in[2], 1);
}

static void until(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *state[] = {kiln_zeros(KILN_F32, KILN_SHAPE()), in[0], kiln_full(KILN_I64, KILN_SHAPE(), 0)};
    if (kiln_while(not_there, look_up, 3, state, 4, state, user) == KILN_OK) {
        out[0] = state[0];
        out[1] = state[2];
    }
}

MAP_TEST(of_a_while)
{
    kiln_tensor *table = kiln_from(KILN_F32, KILN_SHAPE(4), (float[]){1, 2, 3, 4});
    kiln_tensor *in[] = {kiln_from(KILN_F32, KILN_SHAPE(5), (float[]){0, 1, 2.5, 10, 5})};
    AGAINST_SLICES(until, 1, in, ((int[]){0}), 2, &table);
    AGAINST_SLICES(until, 1, in, ((int[]){-1}), 2, &table);
}

static kiln_tensor *below_ten(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], 10);
}

static void both_grow(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_mul(in[0], *(kiln_tensor **)user);
    out[1] = kiln_add(in[1], 3);
}

static void as_often(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *state[] = {kiln_ones(KILN_F32, KILN_SHAPE(2)), kiln_int(0)};
    (void)kiln_while(below_ten, both_grow, 2, state, 0, out, &in[0]); /* varies by what it captures */
}

MAP_TEST(of_a_while_that_ends_for_all_at_once)
{
    kiln_tensor *in[] = {given(KILN_F32, KILN_SHAPE(5))};
    AGAINST_SLICES(as_often, 1, in, ((int[]){0}), 2, NULL);
}

/* Both branches would fail, or never end, for those that do not take them. */
static void in_the_table(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_take(*(kiln_tensor **)user, in[0], 0);
    kiln_tensor *count = kiln_zeros(KILN_F32, KILN_SHAPE());
    out[1] = kiln_add(count, 7);
}

static kiln_tensor *not_zero(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_ne(state[0], 0);
}

static void one_up(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], 1);
    out[1] = kiln_add(in[1], 1);
}

static void up_to_zero(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *state[] = {in[0], kiln_zeros(KILN_F32, KILN_SHAPE())};
    (void)kiln_while(not_zero, one_up, 2, state, 100, state, NULL);
    out[0] = kiln_add(kiln_take(*(kiln_tensor **)user, kiln_neg(in[0]), 0), 100);
    out[1] = state[1];
}

static void branches(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)kiln_cond(kiln_ge(in[0], in[1]), in_the_table, up_to_zero, 1, in, 2, out, user);
}

MAP_TEST(of_a_cond)
{
    kiln_tensor *table = kiln_from(KILN_F32, KILN_SHAPE(4), (float[]){1, 2, 3, 4});
    kiln_tensor *in[] = {kiln_from(KILN_I64, KILN_SHAPE(6), (int64_t[]){0, -1, 3, -3, 2, -2}), kiln_full(KILN_I64, KILN_SHAPE(), 0)};
    AGAINST_SLICES(branches, 2, in, ((int[]){0, KILN_WHOLE}), 2, &table);
    /* One decision for all: one branch runs. */
    in[0] = kiln_from(KILN_I64, KILN_SHAPE(3), (int64_t[]){1, 3, 2});
    kiln_tensor *all = given(KILN_F32, KILN_SHAPE(3, 4));
    for (int yes = 0; yes < 2; yes++) {
        kiln_tensor *pair[] = {kiln_full(KILN_I64, KILN_SHAPE(), yes ? 1 : -2), kiln_full(KILN_I64, KILN_SHAPE(), 0), all};
        AGAINST_SLICES(branches, 3, pair, ((int[]){KILN_WHOLE, KILN_WHOLE, 0}), 2, &table);
    }
}

/* An index out of bounds that is read is told, with the line of the function. */
static int bad_line;
static void takes(kiln_tensor **in, kiln_tensor **out, void *user)
{
    bad_line = __LINE__ + 1;
    out[0] = kiln_take(*(kiln_tensor **)user, in[0], 0);
}

MAP_TEST(an_index_out_of_bounds_has_its_line)
{
    kiln_tensor *table = kiln_from(KILN_F32, KILN_SHAPE(4), (float[]){1, 2, 3, 4}), *out = NULL;
    kiln_tensor *in = kiln_from(KILN_I64, KILN_SHAPE(3), (int64_t[]){0, 4, 1});
    kiln_status status = kiln_map(takes, 1, &in, NULL, 0, 1, &out, &table);
    float got[3];
    if (status == KILN_OK) /* eager computes at once */
        status = kiln_read(out, KILN_F32, got, sizeof got);
    char place[64];
    snprintf(place, sizeof place, "test_map.c:%d", bad_line);
    cr_assert_eq(status, KILN_BAD_INDEX, "%d: %s", (int)status, kiln_error_message());
    cr_assert(strstr(kiln_error_message(), place), "%s", kiln_error_message());
    kiln_clear_error();
}

/* --- gradients --------------------------------------------------------------------------------------------------------- */

static kiln_tensor *example_loss(kiln_tensor *w, kiln_tensor *x, kiln_tensor *y)
{
    return kiln_square(kiln_sub(kiln_sum(kiln_tanh(kiln_matmul(x, w))), y));
}

static void example_gradient(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    (void)kiln_grad(example_loss(in[0], in[1], in[2]), &in[0], 1, out);
}

/* A gradient for each example; and their sum is the gradient of the sum. */
MAP_TEST(of_a_gradient)
{
    kiln_tensor *w = given(KILN_F64, KILN_SHAPE(3, 2)), *x = given(KILN_F64, KILN_SHAPE(5, 3)), *y = given(KILN_F64, KILN_SHAPE(5)), *each,
                *one;
    OK(kiln_map(example_gradient, 3, (kiln_tensor *[]){w, x, y}, (int[]){KILN_WHOLE, 0, 0}, 0, 1, &each, NULL));
    for (int i = 0; i < 5; i++) {
        kiln_tensor *p = kiln_param(kiln_add(w, 0));
        OK(kiln_grad(example_loss(p, kiln_select(x, 0, i), kiln_select(y, 0, i)), &p, 1, &one));
        SAME(kiln_select(each, 0, i), one);
    }
}

static void example(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = example_loss(*(kiln_tensor **)user, in[0], in[1]); }

static void scan_example(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *zero[] = {kiln_zeros(KILN_F64, KILN_SHAPE(3)), kiln_int(0)}, *last[2], *ys[2];
    kiln_tensor *xs[] = {kiln_expand(in[0], KILN_SHAPE(4, 3)), kiln_expand(in[1], KILN_SHAPE(4, 3))};
    kiln_tensor *factor = kiln_sum(*(kiln_tensor **)user);
    if (kiln_scan(scan_step, -1, 0, 2, zero, last, 2, xs, 2, ys, &factor) == KILN_OK)
        out[0] = kiln_add(kiln_sum(last[0]), kiln_sum(ys[0]));
}

static void cond_example(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *w = *(kiln_tensor **)user;
    (void)kiln_cond(kiln_gt(in[1], 0), example, scan_example, 2, in, 1, out, &w);
}

static void scan_gradient(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *loss = NULL;
    (void)user;
    scan_example(in + 1, &loss, &in[0]);
    (void)kiln_grad(loss, in, 2, out);
}

MAP_TEST(of_a_gradient_of_a_scan)
{
    kiln_tensor *in[] = {given(KILN_F64, KILN_SHAPE(3, 2)), given(KILN_F64, KILN_SHAPE(5, 3)), given(KILN_F64, KILN_SHAPE(5))}, *each[2],
                *one[2];
    OK(kiln_map(scan_gradient, 3, in, (int[]){KILN_WHOLE, 0, 0}, 0, 2, each, NULL));
    for (int i = 0; i < 5; i++) {
        kiln_tensor *p[] = {kiln_param(kiln_add(in[0], 0)), kiln_param(kiln_select(in[1], 0, i)), kiln_select(in[2], 0, i)};
        scan_gradient(p, one, NULL);
        for (int k = 0; k < 2; k++)
            SAME(kiln_select(each[k], 0, i), one[k]);
    }
}

static void straight(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    grads[0] = cotangents[0];
}

static void rounds(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_round(in[0]);
}

static void rounded(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    (void)kiln_custom_gradient(rounds, straight, NULL, 1, in, 1, out, NULL);
}

static void rounded_gradient(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *y = NULL;
    rounded(in, &y, user);
    (void)kiln_grad(kiln_sum(kiln_square(y)), in, 1, out);
}

/* A derivative of the user's: inside it holds; it is never lost in silence. */
MAP_TEST(of_a_custom_gradient)
{
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(2, 2), (float[]){0.25f, 1.75f, -2.25f, 3}), *out;
    OK(kiln_map(rounded, 1, &x, NULL, 0, 1, &out, NULL));
    EXPECT(out, KILN_F32, KILN_SHAPE(2, 2), 0, 0, 2, -2, 3);
    OK(kiln_map(rounded_gradient, 1, &x, NULL, 0, 1, &out, NULL));
    EXPECT(out, KILN_F32, KILN_SHAPE(2, 2), 0, 0, 4, -4, 6);
    x = kiln_param(x);
    fails_with(kiln_map(rounded, 1, &x, NULL, 0, 1, &out, NULL), KILN_UNSUPPORTED, "it would lose its derivative");
}

/* From outside. */
MAP_TEST(gradient_of_a_map)
{
    static kiln_function_body *const functions[] = {example, scan_example, cond_example};
    for (int f = 0; f < 3; f++)
        for (int64_t chunk = 0; chunk < 3; chunk++) {
            kiln_tensor *w = kiln_param(given(KILN_F64, KILN_SHAPE(3, 2))), *x = kiln_param(given(KILN_F64, KILN_SHAPE(5, 3)));
            kiln_tensor *in[] = {x, given(KILN_F64, KILN_SHAPE(5))}, *params[] = {w, x}, *loss, *got[2], *want[2];
            OK(kiln_map(functions[f], 2, in, NULL, chunk, 1, &loss, &w));
            OK(kiln_grad(kiln_sum(loss), params, 2, got));
            by_slices(functions[f], 2, in, (int[]){0, 0}, 1, &loss, &w);
            OK(kiln_grad(kiln_sum(loss), params, 2, want));
            for (int k = 0; k < 2; k++) {
                double most;
                OK(kiln_item(kiln_cast(kiln_max(kiln_abs(kiln_sub(got[k], want[k]))), KILN_F64), &most));
                cr_assert(most < 1e-11, "function %d, chunk %d, params[%d]: %g", f, (int)chunk, k, most);
            }
        }
}

/* --- draws, sizes, functions, layers -------------------------------------------------------------------------------------- */

static void draws(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_uniform(KILN_F32, KILN_SHAPE(2), 0, 1), kiln_mul(in[0], 0));
    out[1] = kiln_dropout(kiln_ones(KILN_F32, KILN_SHAPE(2)), 0.5); /* depends on the index, and on nothing else */
}

Test(map, each_index_draws_its_own)
{
    float first[2][10], got[10];
    for (int mode = 0; mode < MODES && set_mode(mode); mode++)
        for (int64_t chunk = 0; chunk < 4; chunk++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(5)), *out[2];
            kiln_seed(3);
            OK(kiln_map(draws, 1, &x, NULL, chunk, 2, out, NULL));
            for (int k = 0; k < 2; k++) {
                bool begins = mode == 0 && chunk == 0;
                OK(kiln_read(out[k], KILN_F32, begins ? first[k] : got, sizeof got));
                cr_assert(begins || memcmp(first[k], got, sizeof got) == 0, "%s, chunk %d: draws otherwise", modes[mode], (int)chunk);
            }
            kiln_scope_end(scope);
        }
    for (int a = 0; a < 10; a++)
        for (int b = 0; b < a; b++)
            cr_assert(first[0][a] != first[0][b], "draws %d and %d are one", a, b);
    end_mode();
}

MAP_TEST(of_nothing)
{
    kiln_tensor *in[] = {kiln_zeros(KILN_F32, KILN_SHAPE(0, 4, 3)), given(KILN_F32, KILN_SHAPE(3, 6)), given(KILN_F32, KILN_SHAPE(6, 0))},
                *out[4];
    kiln_tensor *table = kiln_ones(KILN_F32, KILN_SHAPE(4)), *none = kiln_zeros(KILN_F32, KILN_SHAPE(0));
    for (int64_t chunk = 0; chunk < 2; chunk++) {
        OK(kiln_map(layer, 3, in, (int[]){0, KILN_WHOLE, 1}, chunk, 3, out, NULL));
        EXPECT_EMPTY(out[0], KILN_F32, KILN_SHAPE(0, 4, 6));
        EXPECT_EMPTY(out[2], KILN_F32, KILN_SHAPE(0));
        OK(kiln_map(until, 1, &none, NULL, chunk, 2, out, &table));
        EXPECT_EMPTY(out[1], KILN_I64, KILN_SHAPE(0));
        OK(kiln_map(scans, 3, (kiln_tensor *[]){kiln_zeros(KILN_F32, KILN_SHAPE(4, 0, 3)), given(KILN_F32, KILN_SHAPE(4, 3)), none},
                    (int[]){1, KILN_WHOLE, 0}, chunk, 4, out, NULL));
        EXPECT_EMPTY(out[2], KILN_F32, KILN_SHAPE(0, 4, 3));
    }
}

/* How many indices there are is no part of what is compiled: of each form, one of the first size and one for all others. */
Test(map, sizes_do_not_compile_again)
{
    kiln_tensor *table = kiln_from(KILN_F32, KILN_SHAPE(4), (float[]){1, 2, 3, 4}), *w = given(KILN_F32, KILN_SHAPE(3, 6));
    OK(kiln_eval(table));
    for (int form = 0; form < 3; form++) {
        kiln_stats now;
        for (int64_t n = 3; n < 40; n += 2) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *out[3], *x = given(KILN_F32, KILN_SHAPE(n, 4, 3)), *b = given(KILN_F32, KILN_SHAPE(6, n));
            kiln_tensor *goal = kiln_mul(kiln_abs(given(KILN_F32, KILN_SHAPE(n))), 10);
            OK(kiln_eval(goal));
            kiln_stats start = stats_now();
            if (form == 1)
                OK(kiln_map(until, 1, &goal, NULL, 0, 2, out, &table));
            else
                OK(kiln_map(layer, 3, (kiln_tensor *[]){x, w, b}, (int[]){0, KILN_WHOLE, 1}, form ? 2 : 0, 2 + (form == 0), out, NULL));
            OK(kiln_eval_many(out, 2));
            kiln_get_stats(&now);
            if (n > 5)
                cr_assert_eq(now.compiles, start.compiles, "form %d, %d indices: compiled again", form, (int)n);
            kiln_scope_end(scope);
        }
    }
    end_mode();
}

static void mapped(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    (void)kiln_map(draws, 1, in, NULL, 2, 2, out, NULL);
    kiln_tensor *each;
    (void)kiln_map(scans, 3, in + 1, (int[]){1, KILN_WHOLE, 0}, 0, 4, (kiln_tensor *[4]){NULL}, NULL);
    (void)kiln_map(example_gradient, 3, in + 4, (int[]){KILN_WHOLE, 0, 0}, 0, 1, &each, NULL);
    out[2] = each;
}

Test(map, is_replayed_in_a_function)
{
    set_mode(0);
    kiln_function *f = kiln_function_new(mapped, 7, 3, NULL);
    kiln_tensor *in[] = {kiln_zeros(KILN_F32, KILN_SHAPE(5)), given(KILN_F32, KILN_SHAPE(4, 5, 3)), given(KILN_F32, KILN_SHAPE(4, 3)),
                         given(KILN_F32, KILN_SHAPE(5)),      given(KILN_F64, KILN_SHAPE(3, 2)),    given(KILN_F64, KILN_SHAPE(5, 3)),
                         given(KILN_F64, KILN_SHAPE(5))};
    kiln_tensor *out[3], *want[3];
    kiln_stats before;
    for (int call = 0; call < 4; call++) {
        in[5] = given(KILN_F64, KILN_SHAPE(5, 3));
        kiln_seed(8);
        mapped(in, want, NULL);
        OK(kiln_eval_many(want, 3));
        kiln_seed(8);
        OK(kiln_function_call(f, in, out));
        for (int k = 0; k < 3; k++)
            SAME(out[k], want[k]);
        if (call == 2)
            kiln_get_stats(&before);
    }
    no_compile_since(&before);
    kiln_function_free(f);
    end_mode();
}

static void make_a_nan(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    bad_line = __LINE__ + 1;
    out[0] = kiln_log(in[0]);
}

/* Layers see what the function records, once; the finite check sees the values of all indices. */
static void count_ops(const char *op, int *n) { *n += strcmp(op, "log") == 0; }

static kiln_tensor *counting(const kiln_op_call *call, void *user)
{
    count_ops(call->op, user);
    return kiln_mode_next(call, call->in);
}

Test(map, under_layers)
{
    set_mode(0);
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3, 2), (float[]){1, 2, 3, -4, 5, 6}), *out;
    char place[96];
    kiln_mode *finite = kiln_finite_check_push();
    OK(kiln_map(make_a_nan, 1, &x, NULL, 0, 1, &out, NULL));
    snprintf(place, sizeof place, "test_map.c:%d) made a NaN of finite operands, first at [1,1]", bad_line);
    fails_with(kiln_eval(out), KILN_INVALID, place);
    OK(kiln_mode_pop(finite));
    int n = 0;
    kiln_mode *mine = kiln_mode_push(counting, NULL, &n);
    OK(kiln_map(make_a_nan, 1, &x, NULL, 2, 1, &out, NULL));
    cr_assert_eq(n, 1);
    OK(kiln_mode_pop(mine));
    kiln_mode *cast = kiln_autocast_push(KILN_BF16);
    OK(kiln_map(layer, 3,
                (kiln_tensor *[]){given(KILN_F32, KILN_SHAPE(5, 4, 3)), given(KILN_F32, KILN_SHAPE(3, 6)), given(KILN_F32, KILN_SHAPE(6))},
                (int[]){0, KILN_WHOLE, KILN_WHOLE}, 0, 3, (kiln_tensor *[3]){NULL}, NULL));
    OK(kiln_mode_pop(cast));
    end_mode();
}

/* One kernel, as if it had been written for all at once; of pieces one is in memory at a time. */
static void pairs(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *all = *(kiln_tensor **)user;
    out[0] = kiln_sum(kiln_sort(kiln_sum_axes(kiln_square(kiln_sub(all, in[0])), KILN_AXES(1), false), 0, false));
}

Test(map, is_as_if_written_for_all_at_once)
{
    kiln_tensor *x = given(KILN_F32, KILN_SHAPE(400, 8)), *in[] = {x, x}, *out;
    kiln_stats before, after;
    OK(kiln_map(inner, 2, in, NULL, 0, 1, &out, NULL));
    kiln_get_stats(&before);
    OK(kiln_eval(out));
    kiln_get_stats(&after);
    cr_assert_eq(after.kernels - before.kernels, 1);
    int64_t peak[2];
    for (int k = 0; k < 2; k++) {
        kiln_scope *scope = kiln_scope_begin();
        OK(kiln_map(pairs, 1, &x, NULL, k ? 20 : 0, 1, &out, &x));
        kiln_reset_stats();
        kiln_get_stats(&before);
        OK(kiln_eval(out));
        kiln_get_stats(&after);
        peak[k] = (int64_t)(after.peak_bytes - before.live_bytes);
        kiln_scope_end(scope);
    }
    cr_assert(peak[1] * 8 < peak[0], "%d bytes, at once %d", (int)peak[1], (int)peak[0]);
    end_mode();
}

/* --- errors ---------------------------------------------------------------------------------------------------------------- */

static void widens(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_reshape(in[0], KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, kiln_numel(in[0])));
    out[0] = kiln_flatten(out[0]);
}

static void too_wide(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_reshape(in[0], KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, kiln_numel(in[0])));
}

static void reads(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    float x[3];
    if (kiln_read(in[0], KILN_F32, x, sizeof x) != KILN_OK)
        out[0] = in[0];
}

static void fails(kiln_tensor **in, kiln_tensor **out, void *user)
{
    bad_line = __LINE__ + 1;
    out[0] = kiln_matmul(((kiln_tensor **)user)[1], in[0]); /* [3,5] by [4] */
}

static kiln_tensor *leaked;
static void leaks(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    leaked = kiln_retain(in[0]);
    out[0] = kiln_neg(in[0]);
}

MAP_TEST(errors_say_what_and_where)
{
    kiln_tensor *in[] = {kiln_ones(KILN_F32, KILN_SHAPE(4, 3)), kiln_ones(KILN_F32, KILN_SHAPE(3, 5))}, *out = in[0];
    fails_with(kiln_map(inner, 2, in, NULL, 0, 1, &out, NULL), KILN_BAD_SHAPE,
               "in[0] is f32[4,3] and has 4 indices (axis 0), in[1] is f32[3,5] and has 3 (axis 0)");
    cr_assert_null(out);
    fails_with(kiln_map(inner, 2, in, (int[]){0, -1}, 0, 1, &out, NULL), KILN_BAD_SHAPE, "in[1] is f32[3,5] and has 5 (axis 1)");
    fails_with(kiln_map(inner, 2, in, (int[]){0, 2}, 0, 1, &out, NULL), KILN_INVALID, "axes[1] is 2, and in[1] is f32[3,5]");
    fails_with(kiln_map(inner, 2, in, (int[]){0, -3}, 0, 1, &out, NULL), KILN_INVALID, "axes[1] is -3");
    fails_with(kiln_map(inner, 2, in, (int[]){KILN_WHOLE, KILN_WHOLE}, 0, 1, &out, NULL), KILN_INVALID, "all are KILN_WHOLE");
    fails_with(kiln_map(inner, 2, in, NULL, -1, 1, &out, NULL), KILN_INVALID, "chunk >= 0");
    fails_with(kiln_map(inner, 0, in, NULL, 0, 1, &out, NULL), KILN_INVALID, "n_in >= 1 inputs");
    fails_with(kiln_map(widens, 1, in, NULL, 0, 1, &out, NULL), KILN_UNSUPPORTED, "has 8 axes, and kiln_map adds one: at most 7");
    fails_with(kiln_map(too_wide, 1, in, NULL, 0, 1, &out, NULL), KILN_UNSUPPORTED, "of 8 axes, and gets one more");
    kiln_tensor *wide = kiln_ones(KILN_F32, KILN_SHAPE(4, 1, 1, 1, 1, 1, 1, 2));
    fails_with(kiln_map(inner, 2, (kiln_tensor *[]){wide, wide}, NULL, 2, 1, &out, NULL), KILN_UNSUPPORTED,
               "with a chunk, which is an axis more, at most 7");
    fails_with(kiln_map(reads, 1, in, NULL, 0, 1, &out, NULL), KILN_INVALID, "inside the function of kiln_map, which only records");
    kiln_status status = kiln_map(fails, 1, in, (int[]){1}, 0, 1, &out, in);
    char place[64];
    snprintf(place, sizeof place, "test_map.c:%d", bad_line);
    cr_assert_eq(status, KILN_BAD_SHAPE, "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "inner dims differ: a is f32[3,5], b is f32[4]"), "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), place), "%s", kiln_error_message());
    kiln_clear_error();
    OK(kiln_map(leaks, 1, in, NULL, 0, 1, &out, NULL));
    fails_with(kiln_eval(kiln_add(leaked, 1)), KILN_INVALID, "a function of kiln_map");
    kiln_release(leaked);
}

/* --- derivatives of loops, of each index ------------------------------------------------------------------------------------------ */

static kiln_tensor *fewer_than_its_own(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], state[2]);
}

static void sine_of_square(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sin(kiln_mul(in[0], in[0]));
    out[1] = kiln_add(in[1], 1);
    out[2] = in[2];
}

static void sine_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    carry_out[0] = kiln_sin(kiln_mul(carry[0], *(kiln_tensor **)user));
}

/* in: x, and how many steps; *user: a derivative of which order, of a kiln_while or of a kiln_scan. */
static void derivative_of_one(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const int order = abs(*(int *)user);
    kiln_tensor *state[] = {in[0], kiln_full(KILN_I64, KILN_SHAPE(), 0), in[1]};
    kiln_status status = *(int *)user > 0 ? kiln_while(fewer_than_its_own, sine_of_square, 3, state, 6, state, NULL)
                                          : kiln_scan(sine_step, 3, 0, 1, state, state, 0, NULL, 0, NULL, in);
    for (int k = 0; k < order && status == KILN_OK; k++)
        status = kiln_grad(state[0], in, 1, state);
    out[0] = status == KILN_OK ? state[0] : NULL;
}

STRICT_TEST(map, derivatives_of_loops_that_end_one_by_one)
{
    const double first[] = {1.1, 0.9, 1.2};
    for (int order = -2; order <= 2; order++) {
        kiln_tensor *x = kiln_from(KILN_F64, KILN_SHAPE(3), first), *n = kiln_from(KILN_I64, KILN_SHAPE(3), (int64_t[]){1, 3, 5}), *all;
        if (!order)
            continue;
        OK(kiln_map(derivative_of_one, 2, (kiln_tensor *[]){x, n}, NULL, 0, 1, &all, &order));
        for (int k = 0; k < 3; k++) {
            kiln_tensor *in[] = {kiln_param(kiln_select(x, 0, k)), kiln_select(n, 0, k)}, *one;
            derivative_of_one(in, &one, &order);
            cr_assert(one, "order %d: %s", order, kiln_error_message());
            same_bits(__LINE__, kiln_select(all, 0, k), one);
        }
    }
}

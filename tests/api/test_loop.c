/* kiln_while, kiln_scan, kiln_cond: the same bits as without them, in every mode; what runs how often; what their functions may not do. */
#include "each_mode.h"
#include "tests/support/remove_folder.h"

#include <stdio.h>
#include <unistd.h>

#define LOOP_TEST(name) STRICT_TEST(loop, name)

static kiln_tensor *given(kiln_dtype dtype, kiln_shape shape)
{
    kiln_tensor *x = kiln_cast(kiln_mul(kiln_uniform(KILN_F32, shape, -1, 1), dtype == KILN_F32 ? 1 : 9), dtype);
    kiln_check(kiln_eval(x));
    return x;
}

static kiln_tensor *row(kiln_tensor *x, int64_t i)
{
    kiln_tensor *r = kiln_slice(x, 1, (kiln_range[]){{i, i + 1, 1}});
    int64_t dims[8];
    for (int d = 1; d < kiln_rank(x); d++)
        dims[d - 1] = kiln_dim(x, d);
    return kiln_reshape(r, kiln_make_shape((size_t)kiln_rank(x) - 1, dims));
}

/* --- kiln_while -------------------------------------------------------------------------------------------------- */

static kiln_tensor *below(kiln_tensor **state, void *user) { return kiln_lt(kiln_max(state[0]), *(double *)user); }

static void twice(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 2);
    out[1] = kiln_add(in[1], 1);
}

LOOP_TEST(while_until_its_condition)
{
    for (int n = 0; n < 9; n++) {
        double limit = ldexp(1, n);
        kiln_tensor *state[] = {kiln_ones(KILN_F32, KILN_SHAPE(3)), kiln_int(0)};
        cr_assert_eq(kiln_while(below, twice, 2, state, 0, state, &limit), KILN_OK, "%s", kiln_error_message());
        EXPECT(state[0], KILN_F32, KILN_SHAPE(3), 0, limit, limit, limit);
        EXPECT(state[1], KILN_I64, KILN_SHAPE(), 0, n);
    }
}

static kiln_tensor *below_state(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], state[2]);
}

static void count(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(in[0], 0.5), 1);
    out[1] = kiln_add(in[1], 1);
    out[2] = in[2];
}

/* Neither how often it runs nor the sizes that it runs on are part of what is compiled, but for the first change. */
Test(loop, runs_and_sizes_do_not_compile_again)
{
    for (int64_t k = 0; k < 40; k++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_stats before;
        kiln_get_stats(&before);
        kiln_tensor *state[] = {kiln_ones(KILN_F32, KILN_SHAPE(5 + k)), kiln_full(KILN_I64, KILN_SHAPE(), 0),
                                kiln_full(KILN_I64, KILN_SHAPE(), (double)(3 * k))};
        kiln_check(kiln_eval(state[2]));
        cr_assert_eq(kiln_while(below_state, count, 3, state, 0, state, NULL), KILN_OK, "%s", kiln_error_message());
        float got[64];
        cr_assert_eq(kiln_read(state[0], KILN_F32, got, sizeof *got * (size_t)(5 + k)), KILN_OK, "%s", kiln_error_message());
        float want = 1;
        for (int64_t i = 0; i < 3 * k; i++)
            want = want * 0.5f + 1;
        for (int64_t i = 0; i < 5 + k; i++)
            cr_assert_eq(got[i], want);
        if (k >= 3)
            no_compile_since(&before);
        kiln_scope_end(scope);
    }
    end_mode();
}

LOOP_TEST(while_has_a_bound)
{
    double limit = 1e9;
    kiln_tensor *state[] = {kiln_ones(KILN_F32, KILN_SHAPE(3)), kiln_int(0)}, *out[2];
    kiln_status status = kiln_while(below, twice, 2, state, 30, out, &limit);
    cr_assert_eq(status, KILN_OK);
    EXPECT(out[1], KILN_I64, KILN_SHAPE(), 0, 30); /* 2^30: just enough */
    status = kiln_while(below, twice, 2, state, 29, out, &limit);
    if (status == KILN_OK) /* eager computes at once */
        status = kiln_wait(out[0]);
    fails_with(status, KILN_INVALID, "is not at its end after 29 steps: raise its max_steps");
}

/* --- kiln_scan against what it stands for ------------------------------------------------------------------------ */

typedef struct Recipe {
    uint32_t seed;
    int n_carry, n_xs, n_ys;
    kiln_tensor *captured, *index; /* [4,4], of f32; [2], i64 */
} Recipe;

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

/* Some op on values of [3,4]. */
static kiln_tensor *some_op(const Recipe *r, uint32_t *state, kiln_tensor *a, kiln_tensor *b, kiln_tensor *i)
{
    switch (next(state) % 16) {
    case 0: return kiln_add(a, b);
    case 1: return kiln_tanh(kiln_sub(a, b));
    case 2: return kiln_mul(kiln_sin(a), b);
    case 3: return kiln_matmul(a, r->captured);
    case 4: return kiln_softmax(a, 1);
    case 5: return kiln_sub(a, kiln_mean_axes(b, KILN_AXES(1), true));
    case 6: return kiln_sort(a, 1, false);
    case 7: return kiln_cumsum(a, 0);
    case 8: return kiln_where(kiln_gt(a, b), a, kiln_neg(b));
    case 9: return kiln_take(a, kiln_take(r->index, kiln_full(KILN_I64, KILN_SHAPE(3), 1), 0), 0);
    case 10: return kiln_add(a, kiln_cast(kiln_remainder(i, 3), KILN_F32));
    case 11: return kiln_flip(a, KILN_AXES(0, 1));
    case 12: return kiln_add(b, kiln_sum_axes(kiln_exp(kiln_neg(kiln_abs(a))), KILN_AXES(0), true));
    case 13: return kiln_maximum(a, kiln_mul(b, 0.5));
    case 14: return kiln_reshape(kiln_transpose(a), KILN_SHAPE(3, 4));
    default: return kiln_sub(a, row(kiln_reshape(r->captured, KILN_SHAPE(4, 1, 4)), 2));
    }
}

static void random_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Recipe *r = user;
    uint32_t state = r->seed;
    kiln_tensor *value[40];
    int n = 0, made = 2 + (int)(next(&state) % 9);
    for (int k = 0; k < r->n_carry; k++)
        value[n++] = carry[k];
    for (int k = 0; k < r->n_xs; k++)
        value[n++] = x[k];
    if (n == 0)
        value[n++] = kiln_mul(kiln_ones(KILN_F32, KILN_SHAPE(3, 4)), kiln_cast(i, KILN_F32));
    for (; made > 0; made--) {
        kiln_tensor *a = value[next(&state) % (uint32_t)n], *b = value[next(&state) % (uint32_t)n];
        value[n++] = some_op(r, &state, a, b, i);
    }
    for (int k = 0; k < r->n_carry; k++) /* some as they are, some another's */
        carry_out[k] =
            next(&state) % 4 ? kiln_mul(kiln_tanh(value[n - 1 - (int)(next(&state) % 3)]), 0.75) : value[next(&state) % (uint32_t)n];
    for (int k = 0; k < r->n_ys; k++)
        y[k] = next(&state) % 3 ? value[next(&state) % (uint32_t)n] : kiln_sum_axes(value[n - 1], KILN_AXES(1), false);
}

enum { MOST = 4, LONGEST = 8 }; /* values of each kind, steps */

/* What the scan of these stands for: the last carries, and y[k][i]. */
static void take_steps(Recipe *r, int64_t length, bool reverse, kiln_tensor **init, kiln_tensor **xs, kiln_tensor **carry,
                       kiln_tensor *y[MOST][LONGEST])
{
    memcpy(carry, init, sizeof *carry * (size_t)r->n_carry);
    for (int64_t step = 0; step < length; step++) {
        int64_t i = reverse ? length - 1 - step : step;
        kiln_tensor *x[MOST], *next_carry[MOST], *made[MOST] = {NULL};
        for (int k = 0; k < r->n_xs; k++)
            x[k] = row(xs[k], i);
        random_step(kiln_full(KILN_I64, KILN_SHAPE(), (double)i), carry, x, next_carry, made, r);
        memcpy(carry, next_carry, sizeof *carry * (size_t)r->n_carry);
        for (int k = 0; k < r->n_ys; k++)
            y[k][i] = made[k];
    }
}

static void scan_against_steps(uint32_t seed, int64_t length, bool reverse)
{
    uint32_t state = seed;
    Recipe r = {.seed = seed * 7 + 1, .n_carry = (int)(next(&state) % 4), .n_xs = (int)(next(&state) % 3), .n_ys = (int)(next(&state) % 3)};
    if (r.n_carry + r.n_ys == 0)
        r.n_carry = 1;
    r.captured = given(KILN_F32, KILN_SHAPE(4, 4));
    r.index = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){0, 2});
    if (seed % 3 == 0)
        r.captured = kiln_mul(r.captured, 0.5); /* pending */
    kiln_tensor *init[MOST], *xs[MOST], *last[MOST], *ys[MOST], *carry[MOST], *y[MOST][LONGEST];
    for (int k = 0; k < r.n_carry; k++)
        init[k] = k == 1 && seed % 4 == 0 ? init[0] : given(KILN_F32, KILN_SHAPE(3, 4));
    for (int k = 0; k < r.n_xs; k++)
        xs[k] = seed % 5 == 0 ? kiln_permute(given(KILN_F32, KILN_SHAPE(4, 3, length)), KILN_AXES(2, 1, 0))
                              : given(KILN_F32, KILN_SHAPE(length, 3, 4));
    cr_assert_eq(kiln_scan(random_step, length, reverse ? KILN_SCAN_REVERSE : 0, r.n_carry, init, last, r.n_xs, xs, r.n_ys, ys, &r),
                 KILN_OK, "seed %u: %s", seed, kiln_error_message());
    take_steps(&r, length, reverse, init, xs, carry, y);
    for (int k = 0; k < r.n_carry; k++)
        SAME(carry[k], last[k]);
    for (int k = 0; k < r.n_ys; k++)
        for (int64_t i = 0; i < length; i++)
            SAME(y[k][i], row(ys[k], i));
}

LOOP_TEST(scan_is_its_steps)
{
    for (uint32_t seed = 0; seed < 60; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_seed(seed);
        scan_against_steps(seed, 1 + seed % 5, seed & 1);
        kiln_scope_end(scope);
    }
}

static void add_up(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)user;
    carry_out[0] = kiln_add(carry[0], x ? x[0] : i);
    y[0] = carry[0];
}

LOOP_TEST(scan_of_no_step)
{
    kiln_tensor *zero = kiln_full(KILN_F32, KILN_SHAPE(2), 7), *xs = kiln_zeros(KILN_F32, KILN_SHAPE(0, 2)), *last, *ys;
    cr_assert_eq(kiln_scan(add_up, -1, 0, 1, &zero, &last, 1, &xs, 1, &ys, NULL), KILN_OK, "%s", kiln_error_message());
    EXPECT(last, KILN_F32, KILN_SHAPE(2), 0, 7, 7);
    EXPECT_EMPTY(ys, KILN_F32, KILN_SHAPE(0, 2));
}

static void count_up(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)user, (void)x;
    carry_out[0] = kiln_add(carry[0], i);
    y[0] = kiln_mul(i, i);
}

LOOP_TEST(scan_of_many_steps)
{
    kiln_tensor *zero = kiln_int(0), *last, *ys;
    cr_assert_eq(kiln_scan(count_up, 1000, 0, 1, &zero, &last, 0, NULL, 1, &ys, NULL), KILN_OK, "%s", kiln_error_message());
    EXPECT(last, KILN_I64, KILN_SHAPE(), 0, 499500);
    EXPECT(kiln_sum(ys), KILN_I64, KILN_SHAPE(), 0, 332833500);
}

/* --- kiln_cond ----------------------------------------------------------------------------------------------------- */

static void look_up(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_take(in[0], in[1], 0);
}

static void give_zeros(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(kiln_cast(in[1], KILN_F32), 0);
}

LOOP_TEST(cond_runs_one_of_two)
{
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), (float[]){5, 6, 7}), *out;
    kiln_tensor *inside = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){2, 0}),
                *outside = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){2, 3});
    kiln_tensor *yes = kiln_gt(kiln_sum(x), 1), *no = kiln_gt(kiln_sum(x), 100);
    cr_assert_eq(kiln_cond(yes, look_up, give_zeros, 2, (kiln_tensor *[]){x, inside}, 1, &out, NULL), KILN_OK, "%s", kiln_error_message());
    EXPECT(out, KILN_F32, KILN_SHAPE(2), 0, 7, 5);
    /* What would fail is not run. */
    cr_assert_eq(kiln_cond(no, look_up, give_zeros, 2, (kiln_tensor *[]){x, outside}, 1, &out, NULL), KILN_OK, "%s", kiln_error_message());
    EXPECT(out, KILN_F32, KILN_SHAPE(2), 0, 0, 0);
}

static int bad_line;

static void look_up_badly(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    bad_line = __LINE__ + 1;
    out[0] = kiln_take(in[0], in[1], 0);
}

LOOP_TEST(an_index_out_of_bounds_in_a_body_has_its_line)
{
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), (float[]){5, 6, 7}), *out = NULL;
    kiln_tensor *outside = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){2, 3});
    kiln_status status =
        kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(1), 1), look_up_badly, give_zeros, 2, (kiln_tensor *[]){x, outside}, 1, &out, NULL);
    if (status == KILN_OK) /* eager computes at once */
        status = kiln_wait(out);
    char place[64];
    snprintf(place, sizeof place, "test_loop.c:%d", bad_line);
    cr_assert_eq(status, KILN_BAD_INDEX, "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), place), "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "kiln_take"), "%s", kiln_error_message());
    kiln_clear_error();
}

/* --- bodies in bodies ------------------------------------------------------------------------------------------------ */

static void inner_add(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)x, (void)y;
    carry_out[0] = kiln_add(carry[0], kiln_mul(i, ((kiln_tensor **)user)[0]));
}

static void sum_of_products(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *captured[] = {((kiln_tensor **)user)[0]};
    (void)kiln_scan(inner_add, 4, 0, 1, in, out, 0, NULL, 0, NULL, captured); /* + 6 i */
}

static void as_it_is(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

static void outer_add(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)x, (void)y, (void)user;
    (void)kiln_cond(kiln_remainder(i, 2), sum_of_products, as_it_is, 1, carry, 1, carry_out, &i); /* odd ones */
}

static kiln_tensor *small(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[0], 100);
}

static void four_deep(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)kiln_scan(outer_add, 6, 0, 1, in, out, 0, NULL, 0, NULL, user);
}

LOOP_TEST(bodies_nest)
{
    kiln_tensor *state = kiln_int(1); /* each round adds 6 (1 + 3 + 5) */
    cr_assert_eq(kiln_while(small, four_deep, 1, &state, 0, &state, NULL), KILN_OK, "%s", kiln_error_message());
    EXPECT(state, KILN_I64, KILN_SHAPE(), 0, 109);
}

static void deeper(kiln_tensor **in, kiln_tensor **out, void *user)
{
    int *left = user;
    if (--*left > 0)
        (void)kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(), 1), deeper, as_it_is, 1, in, 1, out, user);
    else
        out[0] = kiln_add(in[0], 1);
}

LOOP_TEST(eight_deep_and_no_deeper)
{
    kiln_tensor *x = kiln_int(1), *out;
    int left = 8;
    cr_assert_eq(kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(), 1), deeper, as_it_is, 1, &x, 1, &out, &left), KILN_OK, "%s",
                 kiln_error_message());
    EXPECT(out, KILN_I64, KILN_SHAPE(), 0, 2);
    left = 9;
    fails_with(kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(), 1), deeper, as_it_is, 1, &x, 1, &out, &left), KILN_UNSUPPORTED,
               "more than 8 deep");
    cr_assert_null(out);
}

/* --- what a body uses from outside, random draws, functions -------------------------------------------------------------- */

static void add_user(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    carry_out[0] = kiln_add(carry[0], *(kiln_tensor **)user);
}

LOOP_TEST(captured_values_are_those_of_the_recording)
{
    kiln_tensor *p = kiln_full(KILN_F32, KILN_SHAPE(2), 3), *zero = kiln_zeros(KILN_F32, KILN_SHAPE(2)), *sum;
    cr_assert_eq(kiln_scan(add_user, 5, 0, 1, &zero, &sum, 0, NULL, 0, NULL, &p), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_assign(p, kiln_full(KILN_F32, KILN_SHAPE(2), 100)), KILN_OK);
    EXPECT(sum, KILN_F32, KILN_SHAPE(2), 0, 15, 15);
    EXPECT(zero, KILN_F32, KILN_SHAPE(2), 0, 0, 0); /* nothing was written where a carry began */
    EXPECT(p, KILN_F32, KILN_SHAPE(2), 0, 100, 100);
}

static void draw(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)user;
    kiln_tensor *u = kiln_uniform(KILN_F32, KILN_SHAPE(3), 0, 1);
    carry_out[0] = kiln_add(carry[0], u);
    y[0] = u;
}

static kiln_tensor *drawn(void)
{
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(3)), *last, *ys;
    kiln_seed(42);
    cr_assert_eq(kiln_scan(draw, 4, 0, 1, &zero, &last, 0, NULL, 1, &ys, NULL), KILN_OK, "%s", kiln_error_message());
    return ys;
}

static void draw_function(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    (void)kiln_scan(draw, 4, 0, 1, in, &out[0], 0, NULL, 1, &out[1], NULL);
}

Test(loop, draws_differ_by_iteration_and_not_by_mode)
{
    float first[12], got[12];
    for (int mode = 0; mode < MODES && set_mode(mode); mode++) {
        cr_assert_eq(kiln_read(drawn(), KILN_F32, mode ? got : first, sizeof got), KILN_OK, "%s", kiln_error_message());
        cr_assert(!mode || memcmp(first, got, sizeof got) == 0, "%s draws otherwise", modes[mode]);
    }
    for (int a = 0; a < 12; a++)
        for (int b = 0; b < a; b++)
            cr_assert(first[a] != first[b], "draws %d and %d are one", a, b);
    set_option("device", "cpu");
    set_mode(0);
    kiln_function *f = kiln_function_new(draw_function, 1, 2, NULL);
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(3)), *out[2], *ys[3];
    float calls[3][12];
    for (int call = 0; call < 3; call++) { /* the second and third are replayed: they draw on */
        if (call != 1)
            kiln_seed(42);
        cr_assert_eq(kiln_function_call(f, &zero, out), KILN_OK, "%s", kiln_error_message());
        ys[call] = out[1];
        cr_assert_eq(kiln_read(ys[call], KILN_F32, calls[call], sizeof got), KILN_OK, "%s", kiln_error_message());
    }
    cr_assert(memcmp(calls[0], first, sizeof got) == 0 && memcmp(calls[2], first, sizeof got) == 0);
    cr_assert(memcmp(calls[1], first, sizeof got) != 0);
    kiln_function_free(f);
    end_mode();
}

/* --- what runs how often ---------------------------------------------------------------------------------------------- */

Test(loop, all_results_are_computed_with_the_first)
{
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(3)), *xs = kiln_ones(KILN_F32, KILN_SHAPE(4, 3)), *last, *ys;
    kiln_check(kiln_eval(xs));
    kiln_stats before, after;
    cr_assert_eq(kiln_scan(add_up, -1, 0, 1, &zero, &last, 1, &xs, 1, &ys, NULL), KILN_OK);
    cr_assert_eq(kiln_eval(kiln_sum(last)), KILN_OK);
    kiln_get_stats(&before);
    cr_assert_eq(kiln_eval(ys), KILN_OK); /* is there */
    cr_assert_eq(kiln_eval(last), KILN_OK);
    kiln_get_stats(&after);
    cr_assert_eq(after.evals, before.evals);
    EXPECT(kiln_sum(ys), KILN_F32, KILN_SHAPE(), 0, 18);

    /* What nobody has is not kept: the peak of ys alone would be 40 MB. */
    kiln_scope *scope = kiln_scope_begin();
    xs = kiln_ones(KILN_F32, KILN_SHAPE(100, 100000));
    zero = kiln_zeros(KILN_F32, KILN_SHAPE(100000));
    cr_assert_eq(kiln_scan(add_up, -1, 0, 1, &zero, &last, 1, &xs, 1, &ys, NULL), KILN_OK);
    kiln_check(kiln_eval(xs));
    kiln_retain(last);
    kiln_scope_end(scope);
    kiln_reset_stats();
    kiln_get_stats(&before);
    double sum;
    cr_assert_eq(kiln_item(kiln_cast(kiln_max(last), KILN_F32), &sum), KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(&after);
    cr_assert_eq(sum, 100);
    cr_assert_lt(after.peak_bytes - before.live_bytes, 8000000, "%d bytes more", (int)(after.peak_bytes - before.live_bytes));
    kiln_release(last);
    end_mode();
}

static void add_reversed(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor **t = user;
    (void)i, (void)x, (void)y;
    carry_out[0] = kiln_add(kiln_flip(carry[0], KILN_AXES(0)), *t);
}

/* One kernel for each step, and nothing between them but it; one for all steps, where each element is a loop of its own. */
Test(loop, a_step_is_its_kernels)
{
    for (int elementwise = 0; elementwise < 2; elementwise++) {
        kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(1000)), *captured = kiln_full(KILN_F32, KILN_SHAPE(1000), 2), *last;
        kiln_check(kiln_eval(zero));
        kiln_check(kiln_eval(captured));
        cr_assert_eq(kiln_scan(elementwise ? add_user : add_reversed, 50, 0, 1, &zero, &last, 0, NULL, 0, NULL, &captured), KILN_OK);
        kiln_stats before = stats_now();
        cr_assert_eq(kiln_eval(last), KILN_OK);
        kiln_stats after = stats_now();
        int64_t kernels = elementwise ? 1 : 50;
        cr_assert_eq(after.kernels - before.kernels, kernels);
        cr_assert_eq(after.evals - before.evals, 1);
        cr_assert_eq(after.compiles - before.compiles, 1);
        cr_assert_eq(after.bytes_moved - before.bytes_moved, kernels * 3 * 4000);
        float got[1000];
        cr_assert_eq(kiln_read(last, KILN_F32, got, sizeof got), KILN_OK);
        cr_assert_eq(got[0], 100);
    }
    end_mode();
}

static void takes_outside(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor **pair = user;
    (void)i, (void)x, (void)y;
    carry_out[0] = kiln_add(carry[0], kiln_exp(kiln_take(pair[0], pair[1], 0)));
}

/* What is the same in each step is computed before the loop: a product with a softmax, at the innermost of two loops. */
static void same_work(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor **w = user;
    (void)i, (void)x, (void)y;
    carry_out[0] = kiln_add(kiln_mul(carry[0], 0.5), kiln_matmul(kiln_softmax(w[0], 1), kiln_exp(carry[1])));
    carry_out[1] = carry[1]; /* stays */
}

static void same_work_inside(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    (void)kiln_scan(same_work, 3, 0, 2, carry, carry_out, 0, NULL, 0, NULL, user);
}

LOOP_TEST(what_is_the_same_in_each_step_is_computed_once)
{
    char mode[16], device[16];
    OK(kiln_get_option("mode", mode, sizeof mode));
    OK(kiln_get_option("device", device, sizeof device));
    kiln_tensor *w = given(KILN_F32, KILN_SHAPE(20, 20)), *last[2];
    kiln_tensor *init[] = {given(KILN_F32, KILN_SHAPE(20, 30)), given(KILN_F32, KILN_SHAPE(20, 30))};
    for (int deep = 0; deep < 2; deep++) {
        kiln_tensor *want[] = {init[0], init[1]};
        OK(kiln_scan(deep ? same_work_inside : same_work, 10, 0, 2, init, last, 0, NULL, 0, NULL, &w));
        kiln_stats before = stats_now();
        OK(kiln_eval(last[0]));
        kiln_stats after = stats_now();
        int steps = deep ? 30 : 10, kernels = (int)(after.kernels - before.kernels);
        int loops = strcmp(device, "cpu") != 0 ? steps
                    : deep                     ? 10
                                               : 1; /* what is left of a step is elementwise: there one kernel for all */
        if (strcmp(mode, "jit") == 0)
            cr_assert(kernels <= loops + 6, "%d kernels for %d steps", kernels, steps);
        for (int k = 0; k < steps; k++)
            same_work(NULL, want, NULL, want, NULL, &w);
        SAME(last[0], want[0]);
    }
    /* What may fail stays where it is: there may be no step, or another branch. */
    kiln_tensor *table = kiln_ones(KILN_F32, KILN_SHAPE(3)), *outside = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){0, 3}),
                *pair[] = {table, outside};
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(2)), *end;
    OK(kiln_scan(takes_outside, 0, 0, 1, &zero, &end, 0, NULL, 0, NULL, pair));
    EXPECT(end, KILN_F32, KILN_SHAPE(2), 0, 0, 0);
}

/* --- the cache on disk ------------------------------------------------------------------------------------------------ */

static void cache_in(char *folder, size_t bytes)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, bytes, "%s/kiln_loop_XXXXXX", tmp ? tmp : "/tmp");
    cr_assert(mkdtemp(folder));
    set_option("cache", "on");
    set_option("cache_dir", folder);
}

/* Another program takes the place of those in memory. */
static void forget_programs(void)
{
    set_option("compile", "on");
    set_option("cache_bytes", "1");
    EXPECT(kiln_exp(kiln_zeros(KILN_F32, KILN_SHAPE(2))), KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    set_option("cache_bytes", "268435456");
}

Test(loop, a_program_with_bodies_lies_on_disk)
{
    char folder[256];
    cache_in(folder, sizeof folder);
    for (int round = 0; round < 2; round++) {
        double limit = 1000;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *state[] = {kiln_ones(KILN_F32, KILN_SHAPE(3)), kiln_int(0)}, *nested = kiln_int(1);
        kiln_stats before = stats_now();
        set_option("compile", round ? "off" : "on");
        cr_assert_eq(kiln_while(below, twice, 2, state, 0, state, &limit), KILN_OK);
        EXPECT(state[1], KILN_I64, KILN_SHAPE(), 0, 10);
        cr_assert_eq(kiln_while(small, four_deep, 1, &nested, 0, &nested, NULL), KILN_OK, "%s", kiln_error_message());
        EXPECT(nested, KILN_I64, KILN_SHAPE(), 0, 109);
        kiln_stats after = stats_now();
        cr_assert_eq(after.disk_hits - before.disk_hits, round ? 2 : 0);
        kiln_scope_end(scope);
        forget_programs();
    }
    remove_folder(folder);
    end_mode();
}

/* --- what goes wrong --------------------------------------------------------------------------------------------------- */

static void grows(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_concat(in, 1, 0);
    out[0] = kiln_concat((kiln_tensor *[]){out[0], out[0]}, 2, 0);
}

static void widens(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_cast(in[0], KILN_F64);
}

static void reads(kiln_tensor **in, kiln_tensor **out, void *user)
{
    float x[4];
    (void)user;
    if (kiln_read(in[0], KILN_F32, x, sizeof x) != KILN_OK)
        out[0] = in[0];
}

static void assigns(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)kiln_assign(*(kiln_tensor **)user, in[0]);
    out[0] = in[0];
}

static kiln_tensor *leaked;
static void leaks(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    leaked = kiln_retain(in[0]);
    out[0] = kiln_neg(in[0]);
}

static void gives_nothing(kiln_tensor **in, kiln_tensor **out, void *user) { (void)in, (void)out, (void)user; }

static kiln_tensor *always(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(kiln_sum(state[0]), -1);
}

static kiln_tensor *no_scalar(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(state[0], 0);
}

LOOP_TEST(errors_say_what_and_where)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4)), *out = x;
    fails_with(kiln_while(always, grows, 1, &x, 0, &out, NULL), KILN_BAD_SHAPE, "state[0] is f32[4] and becomes f32[8]");
    cr_assert_null(out);
    fails_with(kiln_while(always, widens, 1, &x, 0, &out, NULL), KILN_BAD_DTYPE, "state[0] is f32[4] and becomes f64[4]");
    fails_with(kiln_while(no_scalar, as_it_is, 1, &x, 0, &out, NULL), KILN_BAD_SHAPE,
               "the condition gave bool[4]: one element is needed (kiln_any");
    fails_with(kiln_while(always, reads, 1, &x, 0, &out, NULL), KILN_INVALID, "inside the function of kiln_while, which only records");
    fails_with(kiln_while(always, assigns, 1, &x, 0, &out, &x), KILN_INVALID, "comes from outside of the function of kiln_while");
    fails_with(kiln_while(always, gives_nothing, 1, &x, 0, &out, NULL), KILN_INVALID, "left out[0] unset");
    fails_with(kiln_cond(x, as_it_is, as_it_is, 1, &x, 1, &out, NULL), KILN_BAD_SHAPE, "predicate is f32[4]");
    fails_with(kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(), 1), as_it_is, widens, 1, &x, 1, &out, NULL), KILN_BAD_DTYPE,
               "out[0] is f32[4] of then_f and f64[4] of else_f");
    kiln_tensor *long_xs = kiln_ones(KILN_F32, KILN_SHAPE(3, 4)), *last;
    fails_with(kiln_scan(add_user, 2, 0, 1, &x, &last, 1, &long_xs, 0, NULL, &x), KILN_BAD_SHAPE,
               "xs[0] is f32[3,4], and the loop has 2 steps");

    cr_assert_eq(kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(), 1), leaks, as_it_is, 1, &x, 1, &out, NULL), KILN_OK, "%s",
                 kiln_error_message());
    EXPECT(out, KILN_F32, KILN_SHAPE(4), 0, -1, -1, -1, -1);
    fails_with(kiln_eval(kiln_add(leaked, 1)), KILN_INVALID, "a function of kiln_cond");
    kiln_release(leaked);
}

/* --- gradients ----------------------------------------------------------------------------------------------------------- */

static void close_to(int line, uint32_t seed, kiln_tensor *a, kiln_tensor *b)
{
    double worst = -1, most = -1;
    cr_assert(a && b, "line %d: seed %u: %s", line, seed, kiln_error_message());
    if (kiln_numel(a) == 0)
        return;
    cr_assert_eq(kiln_item(kiln_max(kiln_abs(kiln_sub(a, b))), &worst), KILN_OK, "line %d: seed %u: %s", line, seed, kiln_error_message());
    cr_assert_eq(kiln_item(kiln_max(kiln_abs(b)), &most), KILN_OK, "line %d: %s", line, kiln_error_message());
    cr_assert(worst <= 2e-4 * (1 + most), "line %d: seed %u: %g of %g", line, seed, worst, most);
}

/* Something that all of x has a part in. */
static kiln_tensor *loss_of(kiln_tensor **x, int n, uint32_t seed)
{
    kiln_tensor *sum = kiln_sum(kiln_zeros(KILN_F32, KILN_SHAPE(1)));
    for (int k = 0; k < n; k++) {
        if (kiln_numel(x[k]) == 0)
            continue;
        kiln_tensor *weights =
            kiln_sin(kiln_add(kiln_reshape(kiln_arange(KILN_F32, 0, (double)kiln_numel(x[k]), 1), kiln_shape_of(x[k])), (int)seed + k));
        sum = kiln_add(sum, kiln_sum(kiln_mul(x[k], weights)));
    }
    return sum;
}

static void gradient_against_steps(uint32_t seed, int64_t length, bool reverse)
{
    uint32_t state = seed;
    Recipe r = {
        .seed = seed * 11 + 5, .n_carry = (int)(next(&state) % 3), .n_xs = (int)(next(&state) % 3), .n_ys = (int)(next(&state) % 3)};
    if (r.n_carry + r.n_ys == 0)
        r.n_carry = 1;
    r.captured = kiln_param(given(KILN_F32, KILN_SHAPE(4, 4)));
    r.index = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){0, 2});
    kiln_tensor *init[MOST], *xs[MOST], *last[MOST], *ys[MOST], *carry[MOST], *y[MOST][LONGEST], *out[8], *params[8], *got[8], *want[8];
    int n_params = 0, n_out = 0;
    params[n_params++] = r.captured;
    for (int k = 0; k < r.n_carry; k++)
        params[n_params++] = init[k] = kiln_param(given(KILN_F32, KILN_SHAPE(3, 4)));
    for (int k = 0; k < r.n_xs; k++) {
        xs[k] = given(KILN_F32, KILN_SHAPE(length, 3, 4));
        if (k == 0) /* the other is data */
            params[n_params++] = kiln_param(xs[k]);
    }
    cr_assert_eq(kiln_scan(random_step, length, reverse ? KILN_SCAN_REVERSE : 0, r.n_carry, init, last, r.n_xs, xs, r.n_ys, ys, &r),
                 KILN_OK, "seed %u: %s", seed, kiln_error_message());
    for (int k = 0; k < r.n_carry; k++)
        out[n_out++] = last[k];
    for (int k = 0; k < r.n_ys; k++)
        out[n_out++] = ys[k];
    cr_assert_eq(kiln_grad(loss_of(out, n_out, seed), params, n_params, got), KILN_OK, "seed %u: %s", seed, kiln_error_message());
    take_steps(&r, length, reverse, init, xs, carry, y);
    n_out = 0;
    for (int k = 0; k < r.n_carry; k++)
        out[n_out++] = carry[k];
    for (int k = 0; k < r.n_ys; k++)
        out[n_out++] = length ? kiln_stack(y[k], (int)length, 0) : ys[k];
    cr_assert_eq(kiln_grad(loss_of(out, n_out, seed), params, n_params, want), KILN_OK, "seed %u: %s", seed, kiln_error_message());
    for (int k = 0; k < n_params; k++)
        close_to(__LINE__, seed, got[k], want[k]);
}

LOOP_TEST(gradient_of_a_scan_is_that_of_its_steps)
{
    for (uint32_t seed = 0; seed < 40; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_seed(seed);
        gradient_against_steps(seed, seed % 6, seed & 1);
        kiln_scope_end(scope);
    }
}

static void some_steps(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = kiln_tanh(kiln_matmul(in[0], *(kiln_tensor **)user)); }

static void other_steps(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(kiln_square(in[0]), in[1]);
}

LOOP_TEST(gradient_of_a_branch_is_that_of_the_one_that_ran)
{
    for (int which = 0; which < 2; which++) {
        kiln_tensor *params[] = {kiln_param(given(KILN_F32, KILN_SHAPE(3, 3))), kiln_param(given(KILN_F32, KILN_SHAPE(3, 3))),
                                 kiln_param(given(KILN_F32, KILN_SHAPE(3, 3)))};
        kiln_tensor *out, *got[3], *want[3];
        cr_assert_eq(kiln_cond(kiln_full(KILN_BOOL, KILN_SHAPE(), which), some_steps, other_steps, 2, params, 1, &out, &params[2]), KILN_OK,
                     "%s", kiln_error_message());
        cr_assert_eq(kiln_grad(loss_of(&out, 1, 3), params, 3, got), KILN_OK, "%s", kiln_error_message());
        (which ? some_steps : other_steps)(params, &out, &params[2]);
        cr_assert_eq(kiln_grad(loss_of(&out, 1, 3), params, 3, want), KILN_OK, "%s", kiln_error_message());
        for (int k = 0; k < 3; k++)
            close_to(__LINE__, (uint32_t)which, got[k], want[k]);
    }
}

/* Whole numbers among carries, xs and ys: nothing flows to them, and the way back reads them. */
static void factorial_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    carry_out[0] = kiln_add(carry[0], kiln_int(1));
    carry_out[1] = kiln_mul(carry[1], kiln_cast(kiln_mul(carry[0], x[0]), KILN_F32));
    y[0] = carry[0];
    y[1] = kiln_mul(carry_out[1], x[1]);
}

LOOP_TEST(gradients_pass_whole_numbers_by)
{
    kiln_tensor *x = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(), 2)), *init[] = {kiln_full(KILN_I64, KILN_SHAPE(), 1), x}, *last[2],
                *ys[2];
    kiln_tensor *scale = kiln_param(kiln_ones(KILN_F32, KILN_SHAPE(4))), *twos = kiln_full(KILN_I64, KILN_SHAPE(4), 2);
    kiln_tensor *params[] = {x, scale}, *grads[2];
    cr_assert_eq(kiln_scan(factorial_step, -1, 0, 2, init, last, 2, (kiln_tensor *[]){twos, scale}, 2, ys, NULL), KILN_OK, "%s",
                 kiln_error_message());
    EXPECT(last[1], KILN_F32, KILN_SHAPE(), 0, 2 * 2 * 4 * 6 * 8);
    EXPECT(ys[0], KILN_I64, KILN_SHAPE(4), 0, 1, 2, 3, 4);
    /* y[1] = x (2, 8, 48, 384) scale */
    cr_assert_eq(kiln_scan(factorial_step, -1, 0, 2, init, last, 2, (kiln_tensor *[]){twos, scale}, 2, ys, NULL), KILN_OK);
    cr_assert_eq(kiln_grad(kiln_sum(ys[1]), params, 2, grads), KILN_OK, "%s", kiln_error_message());
    EXPECT(grads[0], KILN_F32, KILN_SHAPE(), 0, 2 + 8 + 48 + 384);
    EXPECT(grads[1], KILN_F32, KILN_SHAPE(4), 0, 4, 16, 96, 768);
}

/* Noise that is drawn in the loop: the way back sees what the way there saw, in each call of a function. */
static void noisy_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)user;
    y[0] = kiln_uniform(KILN_F32, KILN_SHAPE(2), 0.5, 1.5);
    carry_out[0] = kiln_mul(carry[0], y[0]);
}

static void noisy(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *last, *ys;
    (void)user;
    (void)kiln_scan(noisy_step, 3, 0, 1, in, &last, 0, NULL, 1, &ys, NULL);
    out[0] = kiln_sum(last);
    out[1] = kiln_stop_gradient(ys);
}

Test(loop, the_way_back_draws_what_the_way_there_drew)
{
    kiln_function *f = kiln_value_and_grad(noisy, 1, 2, (int[]){0}, 1, NULL);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2));
    float before[2] = {0, 0};
    for (int call = 0; call < 4; call++) { /* d (x y0 y1 y2) / d x = y0 y1 y2 */
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *out[3];
        float ys[3][2], grad[2];
        cr_assert_eq(kiln_function_call(f, &x, out), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_read(out[1], KILN_F32, ys, sizeof ys), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_read(out[2], KILN_F32, grad, sizeof grad), KILN_OK, "%s", kiln_error_message());
        for (int k = 0; k < 2; k++) {
            cr_assert(fabsf(grad[k] - ys[0][k] * ys[1][k] * ys[2][k]) < 1e-5f, "call %d: %g", call, (double)grad[k]);
            cr_assert(grad[k] != before[k], "call %d draws what the last one drew", call);
            before[k] = grad[k];
        }
        kiln_scope_end(scope);
    }
    kiln_function_free(f);
    end_mode();
}

static void cell(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor **w = user;
    (void)i;
    carry_out[0] = kiln_tanh(kiln_add(kiln_matmul(carry[0], w[0]), kiln_matmul(x[0], w[1])));
    y[0] = kiln_matmul(carry_out[0], w[2]);
}

typedef struct Rnn {
    kiln_tensor *w[3];
} Rnn;

/* A recurrent network learns to tell the running mean of what it has seen; sequences get longer. */
static kiln_tensor *rnn_loss(Rnn *net, int64_t length)
{
    kiln_tensor *h = kiln_zeros(KILN_F32, KILN_SHAPE(8, 16)), *xs = kiln_uniform(KILN_F32, KILN_SHAPE(length, 8, 1), -1, 1), *last, *ys;
    cr_assert_eq(kiln_scan(cell, -1, 0, 1, &h, &last, 1, &xs, 1, &ys, net->w), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *count = kiln_reshape(kiln_arange(KILN_F32, 1, (double)length + 1, 1), KILN_SHAPE(length, 1, 1));
    return kiln_mean(kiln_square(kiln_sub(ys, kiln_div(kiln_cumsum(xs, 0), count))));
}

Test(loop, a_recurrent_network_learns)
{
    Rnn net;
    const int64_t rows[] = {16, 1, 16}, cols[] = {16, 16, 1};
    kiln_seed(7);
    for (int k = 0; k < 3; k++)
        net.w[k] = kiln_keep(kiln_param(kiln_mul(given(KILN_F32, KILN_SHAPE(rows[k], cols[k])), 0.3)));
    double first = 0, loss = 0;
    kiln_stats before;
    for (int step = 0; step < 150; step++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *grads[3], *value = rnn_loss(&net, 4 + step % 7);
        if (step == 20)
            kiln_get_stats(&before);
        cr_assert_eq(kiln_grad(value, net.w, 3, grads), KILN_OK, "%s", kiln_error_message());
        for (int k = 0; k < 3; k++)
            cr_assert_eq(kiln_assign(net.w[k], kiln_sub(net.w[k], kiln_mul(grads[k], 0.3))), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_item(value, &loss), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_eval_many(net.w, 3), KILN_OK, "%s", kiln_error_message());
        first = step ? first : loss;
        kiln_scope_end(scope);
    }
    no_compile_since(&before); /* other lengths need no other program */
    cr_assert(loss < 0.2 * first, "%g, at first %g", loss, first);
    end_mode();
}

static void descend(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *grad = NULL;
    (void)user;
    (void)kiln_grad(kiln_sum(kiln_square(kiln_sub(in[0], in[1]))), &in[0], 1, &grad);
    out[0] = kiln_sub(in[0], kiln_mul(grad, 0.25));
    out[1] = in[1];
}

static kiln_tensor *apart(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(kiln_max(kiln_abs(kiln_sub(state[0], state[1]))), 1e-3);
}

/* A gradient of what a step records, asked for in the step. */
LOOP_TEST(descends_to_a_minimum)
{
    kiln_tensor *state[] = {kiln_zeros(KILN_F32, KILN_SHAPE(2)), kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){4, -2})};
    cr_assert_eq(kiln_while(apart, descend, 2, state, 100, state, NULL), KILN_OK, "%s", kiln_error_message());
    EXPECT(state[0], KILN_F32, KILN_SHAPE(2), 1e-3, 4, -2);
}

/* The finite check looks at what is recorded around a loop, and is not put out by what is inside. */
LOOP_TEST(the_finite_check_looks_around_loops)
{
    char mode[16];
    cr_assert_eq(kiln_get_option("mode", mode, sizeof mode), KILN_OK);
    bool eager = strcmp(mode, "eager") == 0;
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(2)), *last, *ys;
    kiln_mode *check = kiln_finite_check_push();
    cr_assert_eq(kiln_scan(draw, 2, 0, 1, (kiln_tensor *[]){kiln_zeros(KILN_F32, KILN_SHAPE(3))}, &last, 0, NULL, 1, &ys, NULL), KILN_OK,
                 "%s", kiln_error_message());
    EXPECT(kiln_isfinite(last), KILN_BOOL, KILN_SHAPE(3), 0, 1, 1, 1);
    cr_assert_eq(kiln_scan(draw, 2, 0, 1, (kiln_tensor *[]){kiln_zeros(KILN_F32, KILN_SHAPE(3))}, &last, 0, NULL, 1, &ys, NULL), KILN_OK,
                 "%s", kiln_error_message());
    kiln_tensor *nan = kiln_log(kiln_sub(zero, 1));
    kiln_status status = kiln_eval(kiln_add(kiln_sum(last), kiln_sum(nan)));
    fails_with(eager ? kiln_error_status() : status, KILN_INVALID, "made a NaN of finite operands"); /* eager: kept by the op */
    cr_assert_eq(kiln_mode_pop(check), KILN_OK);
    kiln_clear_error();
}

/* carry: 3, 2, 1, 0, whose logarithm is the infinity of step 3; ys: 1 of all elements but one. */
static void bad_in_step_3(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x;
    *(int *)user = __LINE__ + 1;
    y[0] = kiln_where(kiln_gt(carry[0], 0), kiln_log(carry[0]), 7); /* nothing of it is to be seen outside */
    carry_out[0] = kiln_sub(carry[0], 1);
}

static void bad_loops(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)x;
    kiln_tensor *last, *start = kiln_add(carry[0], kiln_cast(kiln_sub(kiln_int(2), i), KILN_F32));
    if (kiln_scan_at(bad_in_step_3, 3, 0, 1, &start, &last, 0, NULL, 1, y, user, "inner.c", 5) == KILN_OK)
        carry_out[0] = carry[0];
}

static void bad_branch(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_isfinite(kiln_log(in[0]));
}

static void good_branch(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_isfinite(kiln_exp(in[0]));
}

static void root(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sub(in[0], 1);
    out[1] = kiln_add(in[1], kiln_where(kiln_gt(in[0], 0), kiln_sqrt(in[0]), 0));
}

static kiln_tensor *is_above(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(kiln_max(state[0]), -2.5);
}

static void take_root(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    carry_out[0] = kiln_sqrt(carry[0]);
}

static void leaves_unset(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    carry_out[0] = kiln_exp(carry[0]);
}

static void pops(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    kiln_tensor *before = kiln_exp(carry[0]);
    if (kiln_mode_pop(*(kiln_mode **)user) == KILN_OK)
        carry_out[0] = kiln_log(kiln_sub(before, before));
    *(kiln_mode **)user = NULL;
}

/* The layer may be gone before the function is at its end. */
LOOP_TEST(the_finite_check_is_popped_in_a_body)
{
    kiln_tensor *start = kiln_ones(KILN_F32, KILN_SHAPE(2)), *last;
    kiln_mode *check = kiln_finite_check_push();
    cr_assert_eq(kiln_scan(pops, 2, 0, 1, &start, &last, 0, NULL, 0, NULL, &check), KILN_OK, "%s", kiln_error_message());
    EXPECT(last, KILN_F32, KILN_SHAPE(2), 0, -INFINITY, -INFINITY);
}

static void exponent(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *start = in[0];
    kiln_tensor *state[] = {start, kiln_zeros(KILN_F32, KILN_SHAPE())};
    if (kiln_while(is_above, root, 2, state, 0, state, user) == KILN_OK)
        out[0] = state[1];
}

static void expect_blame(int line, kiln_tensor *x, const char *text)
{
    kiln_status status = kiln_eval(x);
    cr_assert_eq(status, KILN_INVALID, "line %d: %s", line, kiln_error_message());
    cr_assert(strstr(kiln_error_message(), text), "line %d: \"%s\", not \"%s\"", line, kiln_error_message(), text);
    kiln_clear_error();
}

#define EXPECT_BLAME(x, text) expect_blame(__LINE__, (x), (text))

/* Which op of a body, in which iteration, made what is not finite; also where nothing of it comes out of the loop. */
LOOP_TEST(the_finite_check_looks_into_bodies)
{
    char mode[16], text[256];
    int line = 0;
    cr_assert_eq(kiln_get_option("mode", mode, sizeof mode), KILN_OK);
    kiln_tensor *start = F32(KILN_SHAPE(2, 2), 9, 9, 3, 9), *last, *ys, *state[2], *out, *grad;
    kiln_mode *check = kiln_finite_check_push();
    if (strcmp(mode, "eager") == 0) { /* the loop is a sync point there */
        fails_with(kiln_scan(bad_in_step_3, 5, 0, 1, &start, &last, 0, NULL, 1, &ys, &line), KILN_INVALID, "in iteration 3 of kiln_scan");
        cr_expect(!last && !ys);
        cr_assert_eq(kiln_mode_pop(check), KILN_OK);
        kiln_clear_error();
        return;
    }
    cr_assert_eq(kiln_scan_at(bad_in_step_3, 5, 0, 1, &start, &last, 0, NULL, 1, &ys, &line, "net.c", 50), KILN_OK);
    snprintf(text, sizeof text,
             "kiln_log (test_loop.c:%d) made an infinity of finite operands, first at [1,0], in iteration 3 of "
             "kiln_scan (net.c:50)",
             line);
    EXPECT_BLAME(last, text);
    EXPECT(kiln_isfinite(last), KILN_BOOL, KILN_SHAPE(2, 2), 0, 1, 1, 1, 1); /* the values are there, and nothing more is wrong */
    /* 0 + 2 - i: 2 1 0 in iteration 0 of the outer loop */
    start = kiln_zeros(KILN_F32, KILN_SHAPE());
    cr_assert_eq(kiln_scan_at(bad_loops, 2, KILN_SCAN_REVERSE, 1, &start, &last, 0, NULL, 1, &ys, &line, "net.c", 60), KILN_OK);
    snprintf(text, sizeof text,
             "kiln_log (test_loop.c:%d) made an infinity of finite operands, first at [], in iteration 1, 1 of "
             "kiln_scan (net.c:60)",
             line);
    EXPECT_BLAME(ys, text);
    /* square roots of 1.5, 0.5, -0.5: a loop that counts its steps itself; operands that are not finite are nobody's fault */
    state[0] = F32(KILN_SHAPE(2), 4, 1.5f);
    state[1] = kiln_zeros(KILN_F32, KILN_SHAPE(2));
    cr_assert_eq(kiln_while(is_above, root, 2, state, 0, state, NULL), KILN_OK);
    EXPECT_BLAME(state[1], "made a NaN of finite operands, first at [1], in iteration 2 of kiln_while (test_loop.c:");
    state[0] = F32(KILN_SHAPE(2), -INFINITY, -INFINITY);
    state[1] = kiln_zeros(KILN_F32, KILN_SHAPE(2));
    cr_assert_eq(kiln_while(is_above, root, 2, state, 0, state, NULL), KILN_OK);
    EXPECT(state[1], KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    /* a branch: the one that is taken */
    for (int k = 0; k < 2; k++) {
        kiln_tensor *x = F32(KILN_SHAPE(2), 1, -1), *p = kiln_full(KILN_BOOL, KILN_SHAPE(), k);
        cr_assert_eq(kiln_cond_at(p, bad_branch, good_branch, 1, &x, 1, &out, NULL, "net.c", 70), KILN_OK);
        if (k)
            EXPECT_BLAME(out, "made a NaN of finite operands, first at [1], in kiln_cond (net.c:70)");
        else
            EXPECT(out, KILN_BOOL, KILN_SHAPE(2), 0, 1, 1);
    }
    /* many at once: once, by the indices */
    kiln_tensor *many = F32(KILN_SHAPE(3), 1, 2.5f, 3);
    cr_assert_eq(kiln_map(exponent, 1, &many, NULL, 0, 1, &out, NULL), KILN_OK);
    EXPECT_BLAME(out, "made a NaN of finite operands, first at [0]");
    /* on the way back: d sqrt(x) at 0 */
    kiln_tensor *p = kiln_param(F32(KILN_SHAPE(2), 1, 0));
    cr_assert_eq(kiln_scan_at(take_root, 3, 0, 1, &p, &last, 0, NULL, 0, NULL, NULL, "net.c", 80), KILN_OK);
    cr_assert_eq(kiln_grad(kiln_sum(last), &p, 1, &grad), KILN_OK);
    EXPECT_BLAME(grad, "made an infinity of finite operands, first at [1], in iteration 2 of kiln_scan (net.c:80)");
    /* what a function leaves unset is told as the user counts */
    fails_with(kiln_scan(leaves_unset, 2, 0, 1, &p, &last, 0, NULL, 1, &ys, NULL), KILN_INVALID, "left out[1] unset");
    cr_assert_eq(kiln_mode_pop(check), KILN_OK);
    kiln_clear_error();
}

static void sort_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    carry_out[0] = kiln_sub(kiln_sort(carry[0], 1, false), carry[0]);
}

/* --- loops in loops -------------------------------------------------------------------------------------------------------- */

typedef struct Nest {
    kiln_tensor *w;    /* [3,3] */
    bool unrolled;     /* by C, instead */
    int depth, branch; /* levels below; which of two at the innermost */
} Nest;

static void nest_steps(const Nest *n, int64_t length, kiln_tensor **carry, kiln_tensor **y);

static void nest_branch(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_mul(kiln_sin(in[0]), kiln_sum(((const Nest *)user)->w));
}

static void nest_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    Nest n = *(const Nest *)user;
    kiln_tensor *c[] = {kiln_tanh(kiln_add(kiln_matmul(carry[0], n.w), kiln_cast(i, KILN_F64))), carry[1]}, *inner = carry[0];
    (void)x;
    if (n.depth > 0) {
        n.depth--;
        nest_steps(&n, 3, c, &inner);
        inner = kiln_mean_axes(inner, KILN_AXES(0), false);
    } else if (n.unrolled) {
        (n.branch ? nest_branch : as_it_is)(c, c, &n);
    } else {
        (void)kiln_cond(kiln_eq(carry[2], 1), nest_branch, as_it_is, 1, c, 1, c, &n);
    }
    carry_out[0] = c[0];
    carry_out[1] = kiln_add(kiln_mul(c[1], 0.5), kiln_sum(inner));
    carry_out[2] = carry[2];
    y[0] = kiln_mul(c[0], carry_out[1]);
}

static void nest_steps(const Nest *n, int64_t length, kiln_tensor **carry, kiln_tensor **y)
{
    kiln_tensor *state[] = {carry[0], carry[1], kiln_full(KILN_I64, KILN_SHAPE(), n->branch)}, *ys[LONGEST];
    if (!n->unrolled) {
        (void)kiln_scan(nest_step, length, 0, 3, state, state, 0, NULL, 1, y, (void *)(uintptr_t)n);
    } else {
        for (int64_t i = 0; i < length; i++) {
            kiln_tensor *next_state[3] = {NULL};
            nest_step(kiln_full(KILN_I64, KILN_SHAPE(), (double)i), state, NULL, next_state, &ys[i], (void *)(uintptr_t)n);
            memcpy(state, next_state, sizeof state);
        }
        *y = kiln_stack(ys, (int)length, 0);
    }
    memcpy(carry, state, 2 * sizeof *state);
}

static kiln_tensor *nest_loss(Nest n, kiln_tensor **params)
{
    kiln_tensor *carry[] = {params[1], params[2]}, *y;
    n.w = params[0];
    nest_steps(&n, 2, carry, &y);
    return kiln_add(kiln_add(kiln_sum(kiln_square(carry[0])), carry[1]), kiln_sum(y));
}

/* Against the unrolled loops, bit for bit of what is summed in the same order, and against differences. */
LOOP_TEST(gradient_of_loops_in_loops_is_that_of_their_steps)
{
    for (int depth = 0; depth < 3; depth++)
        for (int branch = 0; branch < 2; branch++) {
            kiln_scope *scope = kiln_scope_begin();
            Nest n = {.depth = depth, .branch = branch};
            kiln_tensor *params[] = {kiln_param(given(KILN_F64, KILN_SHAPE(3, 3))), kiln_param(given(KILN_F64, KILN_SHAPE(2, 3))),
                                     kiln_param(given(KILN_F64, KILN_SHAPE()))};
            kiln_tensor *got[3], *want[3];
            OK(kiln_grad(nest_loss(n, params), params, 3, got));
            n.unrolled = true;
            OK(kiln_grad(nest_loss(n, params), params, 3, want));
            for (int k = 0; k < 3; k++) {
                double worst, most;
                OK(kiln_item(kiln_max(kiln_abs(kiln_sub(got[k], want[k]))), &worst));
                OK(kiln_item(kiln_max(kiln_abs(want[k])), &most));
                cr_assert(worst <= 1e-13 * (1 + most), "depth %d, params[%d]: %g of %g", depth, k, worst, most);
            }
            kiln_scope_end(scope);
        }
}

static void rounds(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_round(in[0]);
}

static void straight(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)out;
    grads[0] = kiln_mul(cotangents[0], kiln_add(in[0], *(kiln_tensor **)user));
}

static void straight_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    kiln_tensor *rounded;
    if (kiln_custom_gradient(rounds, straight, NULL, 1, carry, 1, &rounded, user) == KILN_OK)
        carry_out[0] = kiln_mul(kiln_add(rounded, 0.25), 1.5);
}

/* --- kiln_while: at no step, below its bound, at it, beyond it ----------------------------------------------------------- */

static kiln_tensor *not_often_enough(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], state[3]);
}

/* One carry that nothing flows to, one that stays as it is. */
static void while_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Nest *n = user;
    kiln_tensor *noise = kiln_mul(kiln_uniform(KILN_F64, KILN_SHAPE(3), 0, 1), 0.1);
    out[0] = kiln_tanh(kiln_add(kiln_add(kiln_matmul(in[0], n->w), kiln_mul(in[2], kiln_cast(in[1], KILN_F64))), noise));
    if (n->depth) {
        Nest inner = {.w = n->w, .unrolled = n->unrolled};
        kiln_tensor *carry[] = {kiln_reshape(out[0], KILN_SHAPE(1, 3)), kiln_sum(in[2])}, *y;
        nest_steps(&inner, 2, carry, &y);
        out[0] = kiln_add(out[0], kiln_mul(kiln_reshape(carry[0], KILN_SHAPE(3)), carry[1]));
    }
    out[1] = kiln_add(in[1], 1);
    out[2] = in[2];
    out[3] = in[3];
}

static kiln_tensor *while_loss(Nest *n, kiln_tensor **params, int64_t steps, int64_t most)
{
    kiln_tensor *state[] = {params[0], kiln_full(KILN_I64, KILN_SHAPE(), 0), params[1], kiln_full(KILN_I64, KILN_SHAPE(), (double)steps)};
    n->w = params[2];
    if (kiln_while(not_often_enough, while_step, 4, state, most, state, n) != KILN_OK)
        return NULL;
    return kiln_add(kiln_sum(kiln_square(state[0])), kiln_sum(kiln_mul(state[2], 3)));
}

LOOP_TEST(gradient_of_a_bounded_while)
{
    char mode[16];
    OK(kiln_get_option("mode", mode, sizeof mode));
    for (int depth = 0; depth < 2; depth++)
        for (int64_t steps = 0; steps <= 6; steps++) {
            kiln_scope *scope = kiln_scope_begin();
            Nest n = {.depth = depth};
            kiln_tensor *params[] = {kiln_param(given(KILN_F64, KILN_SHAPE(3))), kiln_param(given(KILN_F64, KILN_SHAPE(3))),
                                     kiln_param(given(KILN_F64, KILN_SHAPE(3, 3)))};
            kiln_tensor *got[3];
            double loss[2], value;
            kiln_seed(5);
            kiln_tensor *y = while_loss(&n, params, steps, 5);
            if (steps > 5) {
                if (strcmp(mode, "eager") != 0) {
                    OK(kiln_grad(y, params, 3, got));
                    fails_with(kiln_wait(got[0]), KILN_INVALID, "is not at its end after 5 steps");
                }
                kiln_clear_error();
                kiln_scope_end(scope);
                continue;
            }
            OK(kiln_grad(y, params, 3, got));
            for (int k = 0; k < 3; k++) /* central differences along some direction */
                for (int at = 0; at < 3; at++) {
                    const double h = 1e-6;
                    for (int side = 0; side < 2; side++) {
                        kiln_tensor *moved[3], *one = kiln_eye(KILN_F64, 3, 3, 0);
                        memcpy(moved, params, sizeof moved);
                        one = kiln_select(one, 0, at);
                        moved[k] = kiln_stop_gradient(kiln_add(params[k], kiln_mul(one, side ? -h : h)));
                        kiln_seed(5);
                        OK(kiln_item(while_loss(&n, moved, steps, 5), &loss[side]));
                    }
                    kiln_tensor *along = k < 2 ? got[k] : kiln_sum_axes(got[k], KILN_AXES(0), false); /* w moves in all of its rows */
                    OK(kiln_item(kiln_select(along, 0, at), &value));
                    double want = (loss[0] - loss[1]) / (2 * h);
                    cr_assert(fabs(value - want) < 1e-6 * (1 + fabs(want)), "depth %d, %d steps, params[%d][%d]: %g, not %g", depth,
                              (int)steps, k, at, value, want);
                }
            kiln_scope_end(scope);
        }
}

/* Bodies that overwrite what their loop made, and hold loops or sorts. */
Test(loop, loops_in_loops_lie_on_disk)
{
    char folder[256];
    cache_in(folder, sizeof folder);
    for (int round = 0; round < 2; round++) {
        kiln_scope *scope = kiln_scope_begin();
        Nest n = {.depth = 1};
        kiln_seed(1);
        kiln_tensor *params[] = {kiln_param(given(KILN_F64, KILN_SHAPE(3))), kiln_param(given(KILN_F64, KILN_SHAPE(3))),
                                 kiln_param(given(KILN_F64, KILN_SHAPE(3, 3)))};
        kiln_tensor *grads[3], *x = given(KILN_F32, KILN_SHAPE(4, 5)), *last;
        kiln_stats before = stats_now();
        set_option("compile", round ? "off" : "on");
        OK(kiln_grad(while_loss(&n, params, 3, 5), params, 3, grads));
        OK(kiln_eval_many(grads, 3));
        OK(kiln_scan(sort_step, 3, 0, 1, &x, &last, 0, NULL, 0, NULL, NULL));
        OK(kiln_eval(last));
        kiln_stats after = stats_now();
        cr_assert_eq(after.disk_hits - before.disk_hits, round ? 2 : 0);
        kiln_scope_end(scope);
        forget_programs();
    }
    remove_folder(folder);
    end_mode();
}

/* --- forward mode ----------------------------------------------------------------------------------------------------------- */

/* Of scans in scans with branches: that of the unrolled program; with reverse mode it makes the same product. */
LOOP_TEST(forward_mode_through_loops_in_loops)
{
    for (int depth = 0; depth < 3; depth++)
        for (int branch = 0; branch < 2; branch++) {
            kiln_scope *scope = kiln_scope_begin();
            Nest n = {.depth = depth, .branch = branch};
            kiln_tensor *params[] = {kiln_param(given(KILN_F64, KILN_SHAPE(3, 3))), kiln_param(given(KILN_F64, KILN_SHAPE(2, 3))),
                                     kiln_param(given(KILN_F64, KILN_SHAPE()))};
            kiln_tensor *tangents[] = {given(KILN_F64, KILN_SHAPE(3, 3)), given(KILN_F64, KILN_SHAPE(2, 3)), given(KILN_F64, KILN_SHAPE())};
            kiln_tensor *got, *want, *grads[3], *loss = nest_loss(n, params);
            double values[3];
            OK(kiln_jvp(3, params, tangents, 1, &loss, 0, &got));
            OK(kiln_grad(loss, params, 3, grads));
            n.unrolled = true;
            loss = nest_loss(n, params);
            OK(kiln_jvp(3, params, tangents, 1, &loss, 0, &want));
            kiln_tensor *product = kiln_zeros(KILN_F64, KILN_SHAPE());
            for (int k = 0; k < 3; k++)
                product = kiln_add(product, kiln_sum(kiln_mul(grads[k], tangents[k])));
            OK(kiln_item(got, &values[0]));
            OK(kiln_item(want, &values[1]));
            OK(kiln_item(product, &values[2]));
            for (int k = 1; k < 3; k++)
                cr_assert(fabs(values[0] - values[k]) < 1e-12 * (1 + fabs(values[0])), "depth %d: %.17g, not %.17g (%d)", depth, values[0],
                          values[k], k);
            kiln_scope_end(scope);
        }
}

/* Of xs, ys, whole numbers, captured values; what a scan computes in the end and on the way. */
LOOP_TEST(forward_mode_of_a_scan_is_that_of_its_steps)
{
    for (uint32_t seed = 0; seed < 12; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        uint32_t state = seed;
        const int64_t length = 1 + seed % 4;
        kiln_seed(seed);
        Recipe r = {.seed = seed * 13 + 5, .n_carry = (int)(next(&state) % 3), .n_xs = 1 + (int)(next(&state) % 2), .n_ys = 1};
        r.captured = kiln_param(given(KILN_F32, KILN_SHAPE(4, 4)));
        r.index = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){0, 2});
        kiln_tensor *init[MOST], *xs[MOST], *last[MOST], *ys[MOST], *carry[MOST], *y[MOST][LONGEST], *in[8], *tangents[8], *out[8], *got[8],
            *want[8];
        int n_in = 0, n_out = 0;
        in[n_in++] = r.captured;
        for (int k = 0; k < r.n_carry; k++)
            in[n_in++] = init[k] = kiln_param(given(KILN_F32, KILN_SHAPE(3, 4)));
        for (int k = 0; k < r.n_xs; k++)
            in[n_in++] = xs[k] = kiln_param(given(KILN_F32, KILN_SHAPE(length, 3, 4)));
        for (int k = 0; k < n_in; k++)
            tangents[k] = given(KILN_F32, kiln_shape_of(in[k]));
        OK(kiln_scan(random_step, -1, seed & 1 ? KILN_SCAN_REVERSE : 0, r.n_carry, init, last, r.n_xs, xs, r.n_ys, ys, &r));
        for (int k = 0; k < r.n_carry; k++)
            out[n_out++] = last[k];
        out[n_out++] = ys[0];
        OK(kiln_jvp(n_in, in, tangents, n_out, out, 0, got));
        take_steps(&r, length, seed & 1, init, xs, carry, y);
        n_out = 0;
        for (int k = 0; k < r.n_carry; k++)
            out[n_out++] = carry[k];
        out[n_out++] = kiln_stack(y[0], (int)length, 0);
        OK(kiln_jvp(n_in, in, tangents, n_out, out, 0, want));
        for (int k = 0; k < n_out; k++)
            close_to(__LINE__, seed, got[k], want[k]);
        kiln_scope_end(scope);
    }
}

/* With and without a bound, with draws in the step: against central differences. */
LOOP_TEST(forward_mode_of_a_while)
{
    for (int64_t most = 0; most < 8; most += 7)
        for (int64_t steps = 0; steps < 5; steps += 2) {
            kiln_scope *scope = kiln_scope_begin();
            Nest n = {.depth = 1};
            kiln_tensor *params[] = {kiln_param(given(KILN_F64, KILN_SHAPE(3))), kiln_param(given(KILN_F64, KILN_SHAPE(3))),
                                     kiln_param(given(KILN_F64, KILN_SHAPE(3, 3)))};
            kiln_tensor *tangents[] = {given(KILN_F64, KILN_SHAPE(3)), given(KILN_F64, KILN_SHAPE(3)), given(KILN_F64, KILN_SHAPE(3, 3))},
                        *got;
            const double h = 1e-6;
            double value, loss[2];
            kiln_seed(5);
            kiln_tensor *y = while_loss(&n, params, steps, most);
            OK(kiln_jvp(3, params, tangents, 1, &y, 0, &got));
            OK(kiln_item(got, &value));
            for (int side = 0; side < 2; side++) {
                kiln_tensor *moved[3];
                for (int k = 0; k < 3; k++)
                    moved[k] = kiln_stop_gradient(kiln_add(params[k], kiln_mul(tangents[k], side ? -h : h)));
                kiln_seed(5);
                OK(kiln_item(while_loss(&n, moved, steps, most), &loss[side]));
            }
            double want = (loss[0] - loss[1]) / (2 * h);
            cr_assert(fabs(value - want) < 1e-6 * (1 + fabs(want)), "%d steps of %d: %g, not %g", (int)steps, (int)most, value, want);
            kiln_scope_end(scope);
        }
}

/* A loop whose gradient nobody asks for has room for no stack, whatever its bound is. */
static kiln_tensor *two_steps(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], 2);
}

LOOP_TEST(a_bound_costs_nothing_without_a_gradient)
{
    kiln_tensor *state[] = {kiln_param(kiln_ones(KILN_F32, KILN_SHAPE(1000))), kiln_int(0)};
    OK(kiln_while(two_steps, twice, 2, state, (int64_t)1 << 40, state, NULL));
    EXPECT(kiln_max(state[0]), KILN_F32, KILN_SHAPE(), 0, 4);
}

/* A derivative of the user's in a loop is that, also where the loop is in another. */
LOOP_TEST(derivatives_of_the_users_hold_in_loops)
{
    kiln_tensor *p = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(2), 2.25)), *q = kiln_full(KILN_F32, KILN_SHAPE(), 0.5), *last = p, *got,
                *want;
    OK(kiln_scan(straight_step, 3, 0, 1, &p, &last, 0, NULL, 0, NULL, &q));
    OK(kiln_grad(kiln_sum(last), &p, 1, &got));
    last = p;
    for (int k = 0; k < 3; k++)
        straight_step(NULL, &last, NULL, &last, NULL, &q);
    OK(kiln_grad(kiln_sum(last), &p, 1, &want));
    SAME(got, want);
}

static void only_doubles(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 2);
}

static void doubles(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    (void)kiln_while(below, only_doubles, 1, carry, 0, carry_out, user);
}

LOOP_TEST(what_no_gradient_flows_through_is_said)
{
    double limit = 100;
    kiln_tensor *p = kiln_param(kiln_ones(KILN_F32, KILN_SHAPE(2))), *state[] = {p, kiln_int(0)}, *grad = NULL, *sum = NULL;
    cr_assert_eq(kiln_while(below, twice, 2, state, 0, state, &limit), KILN_OK, "%s", kiln_error_message());
    char text[96];
    snprintf(text, sizeof text, "no gradient flows through kiln_while (test_loop.c:%d) without max_steps", __LINE__ - 2);
    fails_with(kiln_grad(kiln_sum(state[0]), &p, 1, &grad), KILN_UNSUPPORTED, text);
    /* In another loop, too: that is recorded as ever, and who asks for the gradient is told. */
    kiln_tensor *last = NULL;
    OK(kiln_scan(doubles, 2, 0, 1, &p, &last, 0, NULL, 0, NULL, &limit));
    fails_with(kiln_grad(kiln_sum(last), &p, 1, &grad), KILN_UNSUPPORTED, "no gradient flows through kiln_while (test_loop.c:");
    EXPECT(last, KILN_F32, KILN_SHAPE(2), 0, 128, 128);
    cr_assert_eq(kiln_grad(kiln_sum(kiln_mul(p, kiln_stop_gradient(state[0]))), &p, 1, &grad), KILN_OK, "%s", kiln_error_message());
    EXPECT(grad, KILN_F32, KILN_SHAPE(2), 0, 128, 128);
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(2));
    cr_assert_eq(kiln_scan(add_user, 3, 0, 1, &zero, &sum, 0, NULL, 0, NULL, &p), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *wide = kiln_reshape(zero, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 2)), *end = NULL; /* could not be stacked */
    cr_assert_eq(kiln_scan(add_user, 3, 0, 1, &wide, &end, 0, NULL, 0, NULL, &p), KILN_OK, "%s", kiln_error_message());
    EXPECT(kiln_flatten(end), KILN_F32, KILN_SHAPE(2), 0, 3, 3);
    OK(kiln_scan(add_user, 3, 0, 1, &wide, &end, 0, NULL, 0, NULL, &p));
    fails_with(kiln_grad(kiln_sum(end), &p, 1, &grad), KILN_UNSUPPORTED, "no gradient flows through kiln_scan");
    (void)sum;
}

/* --- a million iterations ------------------------------------------------------------------------------------------------------- */

static kiln_tensor *fewer_than(kiln_tensor **state, void *user) { return kiln_lt(state[1], user); }

static void counts_up(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_matmul(kiln_tanh(in[0]), kiln_full(KILN_F32, KILN_SHAPE(64, 64), 0.01));
    out[1] = kiln_add(in[1], 1);
}

/* Memory does not grow with the number of iterations: of a loop that has to store what it makes on the way, with and without the finite check. */
Test(loop, memory_is_flat_over_a_million_iterations)
{
    int64_t peak[2] = {0, 0};
    for (int watched = 0; watched < 2; watched++)
        for (int many = 0; many < 2; many++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_mode *check = watched ? kiln_finite_check_push() : NULL;
            const int64_t steps = !many ? 1000 : watched ? 100000 : 1000000;
            kiln_tensor *limit = kiln_full(KILN_I64, KILN_SHAPE(), (double)steps);
            kiln_tensor *state[] = {kiln_ones(KILN_F32, KILN_SHAPE(1, 64)), kiln_full(KILN_I64, KILN_SHAPE(), 0)};
            OK(kiln_while(fewer_than, counts_up, 2, state, 0, state, limit));
            EXPECT(state[1], KILN_I64, KILN_SHAPE(), 0, (double)steps);
            kiln_stats stats = stats_now();
            peak[many] = stats.peak_bytes;
            OK(kiln_mode_pop(check));
            kiln_scope_end(scope);
            cr_assert(!many || peak[1] <= peak[0], "%d bytes for 1000 iterations, %d for %d", (int)peak[0], (int)peak[1], (int)steps);
        }
}

/* kiln_function: what its C function does besides recording from its inputs, and what the user keeps of that. */
#include "api.h"

static int runs; /* of the traced C function */

static kiln_tensor *called(kiln_function *f, kiln_tensor *in)
{
    kiln_tensor *out[2];
    cr_assert(kiln_function_call(f, &in, out) == KILN_OK, "%s", kiln_error_message());
    return out[0];
}

static kiln_tensor *captured;

static void returns_captured(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = captured;
    out[1] = kiln_neg(in[0]);
}

/* A result that is a tensor from outside as it is: what that means at each call. */
Test(function_trace, a_captured_tensor_may_be_a_result)
{
    for (int pending = 0; pending < 2; pending++) {
        kiln_function *f = kiln_function_new(returns_captured, 1, 2, NULL);
        kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
        runs = 0;
        captured = pending ? kiln_add(x, kiln_scalar(4)) : F32(KILN_SHAPE(2), 5, 6);
        for (int i = 0; i < 4; i++) {
            EXPECT(called(f, x), KILN_F32, KILN_SHAPE(2), 0, 5 + i, 6 + i);
            EXPECT(captured, KILN_F32, KILN_SHAPE(2), 0, 5 + i, 6 + i);
            cr_assert(kiln_assign(captured, kiln_add(captured, kiln_scalar(1))) == KILN_OK);
        }
        cr_assert(runs == 1, "%d runs", runs);
        kiln_function_free(f);
    }
}

static void keeps_what_is_inside(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **kept = user;
    runs++;
    kept[0] = kiln_retain(kiln_mul(in[0], kiln_scalar(2)));
    kept[1] = kiln_retain(kiln_exp(kiln_sub(captured, captured)));
    out[0] = kiln_add(kept[0], kept[1]);
}

/* A tensor that the C function made and the user kept is one like any other. */
Test(function_trace, what_is_kept_of_it_can_be_computed)
{
    kiln_tensor *kept[2] = {NULL, NULL};
    kiln_function *f = kiln_function_new(keeps_what_is_inside, 1, 1, kept);
    captured = F32(KILN_SHAPE(2), 5, 6);
    for (int i = 0; i < 4; i++) {
        EXPECT(called(f, F32(KILN_SHAPE(2), (float)i, (float)(2 * i))), KILN_F32, KILN_SHAPE(2), 0, 2 * i + 1, 4 * i + 1);
        EXPECT(kiln_add(kept[0], kept[1]), KILN_F32, KILN_SHAPE(2), 0, 1, 1); /* of the first call, the only trace */
        EXPECT(kept[0], KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    }
    cr_assert(runs == 1, "%d runs", runs);
    kiln_function_free(f);
    EXPECT(kept[1], KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    kiln_release(kept[0]);
    kiln_release(kept[1]);
}

static void marks_its_values(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    cr_assert(kiln_mark_dynamic(in[0], 0, 1, 100) == KILN_OK, "%s", kiln_error_message());
    out[0] = kiln_abs(in[0]);
    cr_assert(kiln_mark_dynamic(out[0], 1, 1, 100) == KILN_OK, "%s", kiln_error_message());
}

static kiln_tensor *ones(int64_t rows, int64_t columns)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(rows, columns));
    cr_assert(kiln_eval(x) == KILN_OK);
    return x;
}

/* Marks that the C function sets: its result has them at each call, the caller's tensor has not. */
Test(function_trace, marks_inside)
{
    kiln_function *f = kiln_function_new(marks_its_values, 1, 1, NULL);
    runs = 0;
    for (int round = 0; round < 4; round++)
        for (int64_t n = 3; n < 6; n++) {
            kiln_tensor *x = ones(3, n);
            int64_t before = stats_now().compiles;
            kiln_tensor *y = called(f, x);
            EXPECT(kiln_sum(y), KILN_F32, KILN_SHAPE(), 0, (double)(3 * n));
            cr_assert(kiln_mark_static(x, 0) == KILN_OK, "%s", kiln_error_message());
            cr_assert(kiln_mark_static(y, 1) == KILN_INVALID && kiln_mark_static(y, 0) == KILN_OK);
            cr_assert(round || stats_now().compiles - before == 2 * (n == 3), "%d columns", (int)n);
        }
    cr_assert(runs == 3, "%d runs", runs);
    kiln_function_free(f);
}

enum { PART = 8192 }; /* pending nodes that are computed as one */

static void longer_than_a_part(kiln_tensor **in, kiln_tensor **out, void *user)
{
    runs++;
    out[0] = in[0];
    for (int i = 0; i < *(const int *)user; i++)
        out[0] = kiln_neg(out[0]);
    out[1] = kiln_add(in[0], kiln_scalar(1));
}

/* Results of which one is just as large as a part: the graph is still none for one program. */
Test(function_trace, results_in_several_parts)
{
    for (int n = PART - 1; n <= PART + 1; n++) {
        kiln_function *f = kiln_function_new(longer_than_a_part, 1, 2, &n);
        for (int i = 0; i < 2; i++) {
            kiln_tensor *in = F32(KILN_SHAPE(2), (float)(1 + i), 2), *out[2];
            cr_assert(kiln_function_call(f, &in, out) == KILN_OK, "%s", kiln_error_message());
            int sign = n % 2 ? -1 : 1;
            EXPECT(out[0], KILN_F32, KILN_SHAPE(2), 0, sign * (1 + i), sign * 2);
            EXPECT(out[1], KILN_F32, KILN_SHAPE(2), 0, 2 + i, 3);
        }
        kiln_function_free(f);
    }
}

static void set_unfused(void *data, void *user)
{
    (void)data, (void)user;
    set_option("fuse", "0");
}

static void chain(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = kiln_mul(kiln_exp(kiln_neg(in[0])), captured);
}

/* An option that changes code is set while a call is under way, after its key was made: no program is filed under a key that it does
 * not fit. */
Test(function_trace, options_set_meanwhile)
{
    static float data[2] = {1, 2};
    kiln_function *f = kiln_function_new(chain, 1, 1, NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2), 0, 0);
    captured = F32(KILN_SHAPE(2), 3, 4);
    set_option("cache_bytes", "1"); /* room for the newest program alone */
    EXPECT(called(f, x), KILN_F32, KILN_SHAPE(2), 0, 3, 4);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *wrapped = kiln_wrap(KILN_F32, KILN_SHAPE(2), data, set_unfused, NULL);
    cr_assert(kiln_assign(captured, kiln_add(wrapped, kiln_scalar(1))) == KILN_OK);
    kiln_scope_end(scope);
    runs = 0;
    EXPECT(called(f, x), KILN_F32, KILN_SHAPE(2), 0, 2, 3); /* computes what is captured, and lets the memory go */
    char text[8];
    cr_assert(kiln_get_option("fuse", text, sizeof text) == KILN_OK);
    cr_assert(strcmp(text, "0") == 0 && runs == 0, "fuse=%s, %d runs", text, runs);
    set_option("fuse", "1");
    int64_t before = stats_now().kernels;
    EXPECT(called(f, x), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
    cr_assert(stats_now().kernels - before == 1, "%d kernels", (int)(stats_now().kernels - before));
    kiln_function_free(f);
}

static void sets_one_of_two(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

static void calls_it(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *two[2];
    cr_assert(kiln_function_call(user, in, two) == KILN_INVALID && !two[0] && !two[1], "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "out[1] unset"), "%s", kiln_error_message());
    kiln_clear_error();
    out[0] = kiln_neg(in[0]);
}

/* A function that fails inside another gives NULLs, too. */
Test(function_trace, a_failing_function_inside)
{
    kiln_function *inner = kiln_function_new(sets_one_of_two, 1, 2, NULL), *f = kiln_function_new(calls_it, 1, 1, inner);
    EXPECT(called(f, F32(KILN_SHAPE(2), 1, 2)), KILN_F32, KILN_SHAPE(2), 0, -1, -2);
    kiln_function_free(f);
    kiln_function_free(inner);
}

static void noise(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = kiln_add(in[0], kiln_uniform(KILN_F32, KILN_SHAPE(3), 0, 1));
}

/* A replay draws what comes next in the stream, whoever computes it: compiled code, the interpreter, or that in place of code that
 * could not be compiled. */
Test(function_trace, draws_in_every_mode)
{
    static const char *const settings[][2] = {{"test_fail", "compile"}, {"test_fail", ""}, {"mode", "interp"}, {"mode", "eager"}};
    kiln_tensor *zeros = F32(KILN_SHAPE(3), 0, 0, 0), *out[1];
    float want[5][3], got[3];
    kiln_seed(3);
    for (int i = 0; i < 5; i++)
        cr_assert(kiln_read(kiln_uniform(KILN_F32, KILN_SHAPE(3), 0, 1), KILN_F32, want[i], sizeof want[i]) == KILN_OK);
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        set_option(settings[s][0], settings[s][1]);
        kiln_function *f = kiln_function_new(noise, 1, 1, NULL);
        runs = 0;
        kiln_seed(3);
        for (int i = 0; i < 5; i++) {
            cr_assert(kiln_function_call(f, &zeros, out) == KILN_OK, "%s", kiln_error_message());
            cr_assert(kiln_read(out[0], KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
            cr_assert(memcmp(got, want[i], sizeof got) == 0, "%s=%s, call %d", settings[s][0], settings[s][1], i);
        }
        cr_assert(runs == 1 || strcmp(settings[s][1], "eager") == 0, "%d runs", runs);
        kiln_function_free(f);
    }
    cr_assert(stats_now().fallbacks == 5 && stats_now().compiles > 0, "%d fall-backs", (int)stats_now().fallbacks);
}

static kiln_tensor *other;

static void tens_and_ones(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(captured, kiln_scalar(10)), kiln_add(other, in[0]));
}

/* Captured tensors that were two values may be one later: the graph is another then, the function is not. */
Test(function_trace, check_pure_where_captured_tensors_become_one_value)
{
    kiln_function *f = kiln_function_new(tens_and_ones, 1, 1, NULL);
    kiln_tensor *zeros = F32(KILN_SHAPE(2), 0, 0), *five = F32(KILN_SHAPE(2), 5, 6);
    captured = F32(KILN_SHAPE(2), 1, 2);
    other = kiln_add(five, kiln_scalar(0));
    set_option("check", "pure");
    for (int i = 0; i < 6; i++) {
        EXPECT(called(f, zeros), KILN_F32, KILN_SHAPE(2), 0, i % 2 ? 11 : 15, i % 2 ? 22 : 26);
        cr_assert(kiln_assign(other, i % 2 ? five : captured) == KILN_OK);
    }
    kiln_function_free(f);
}

/* ... or lie otherwise in memory. */
Test(function_trace, check_pure_where_captured_tensors_change_their_layout)
{
    static float data[4] = {5, -1, 6, -1};
    const int64_t every_other[] = {2};
    kiln_function *f = kiln_function_new(tens_and_ones, 1, 1, NULL);
    kiln_tensor *zeros = F32(KILN_SHAPE(2), 0, 0), *dense = F32(KILN_SHAPE(2), 5, 6);
    kiln_tensor *strided = kiln_wrap_strided(KILN_F32, KILN_SHAPE(2), every_other, data, NULL, NULL);
    captured = F32(KILN_SHAPE(2), 1, 2);
    other = kiln_neg(zeros);
    set_option("check", "pure");
    for (int i = 0; i < 6; i++) {
        kiln_tensor *now = i % 3 == 0 ? dense : i % 3 == 1 ? strided : kiln_add(dense, kiln_scalar(0)); /* to be computed */
        cr_assert(kiln_assign(other, now) == KILN_OK);
        EXPECT(called(f, zeros), KILN_F32, KILN_SHAPE(2), 0, 15, 26);
    }
    kiln_function_free(f);
}

static void returns_it(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = in[0];
}

static void retains_it(kiln_tensor **in, kiln_tensor **out, void *user)
{
    returns_it(in, out, user);
    *(kiln_tensor **)user = kiln_retain(out[0]);
}

static void captures_it(kiln_tensor **in, kiln_tensor **out, void *user)
{
    returns_it(in, out, user);
    cr_assert(kiln_assign(captured, in[0]) == KILN_OK, "%s", kiln_error_message());
}

/* Nothing is computed: it is replayed all the same, and follows what it is given. */
API_TEST(function_trace, functions_that_hand_on_their_input)
{
    static kiln_function_body *const bodies[] = {returns_it, retains_it, captures_it};
    char mode[8];
    cr_assert(kiln_get_option("mode", mode, sizeof mode) == KILN_OK);
    captured = F32(KILN_SHAPE(2), 0, 0);
    for (int b = 0; b < 3; b++) {
        kiln_tensor *retained = NULL;
        kiln_function *f = kiln_function_new(bodies[b], 1, 1, &retained);
        runs = 0;
        for (int i = 0; i < 4; i++) {
            EXPECT(called(f, F32(KILN_SHAPE(2), (float)i, 2)), KILN_F32, KILN_SHAPE(2), 0, i, 2);
            if (retained)
                kiln_release(retained);
            retained = NULL;
            if (b == 2)
                EXPECT(captured, KILN_F32, KILN_SHAPE(2), 0, i, 2);
        }
        cr_assert(runs == (strcmp(mode, "eager") ? 1 : 4), "body %d: %d runs", b, runs);
        kiln_function_free(f);
    }
}

static void brings_it(kiln_tensor **in, kiln_tensor **out, void *user)
{
    returns_it(in, out, user);
    out[0] = captured ? captured : F32(KILN_SHAPE(2), 5, 6);
}

/* The same of a tensor from outside, whatever that is at each call, and of one that the function brings along. */
Test(function_trace, functions_that_hand_on_another_tensor)
{
    for (int brings = 0; brings < 2; brings++) {
        kiln_function *f = kiln_function_new(brings_it, 1, 1, NULL);
        captured = brings ? NULL : F32(KILN_SHAPE(2), 5, 6);
        runs = 0;
        for (int i = 0; i < 4; i++) {
            kiln_tensor *y = called(f, F32(KILN_SHAPE(2), 1, 2));
            EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, brings ? 5 : 5 + i, 6);
            cr_assert(kiln_assign(y, F32(KILN_SHAPE(2), 0, 0)) == KILN_OK); /* another handle than what is brought along */
            cr_assert(brings || kiln_assign(captured, F32(KILN_SHAPE(2), (float)(6 + i), 6)) == KILN_OK);
        }
        cr_assert(runs == 1, "%d runs", runs);
        kiln_function_free(f);
    }
}

static void returns_both(kiln_tensor **in, kiln_tensor **out, void *user)
{
    returns_it(in, out, user);
    cr_assert(kiln_assign(captured, in[0]) == KILN_OK, "%s", kiln_error_message());
    out[1] = kiln_exp(in[0]);
}

/* A weak scalar that is passed is weak no more, where it is a result or assigned as well. */
API_TEST(function_trace, passed_scalars_are_strong)
{
    kiln_function *f = kiln_function_new(returns_both, 1, 2, NULL);
    captured = kiln_from(KILN_F64, KILN_SHAPE(), (const double[]){0});
    for (int i = 0; i < 4; i++) {
        kiln_tensor *x = kiln_scalar(i), *y = called(f, x);
        cr_assert(kiln_is_weak(x) && !kiln_is_weak(y) && !kiln_is_weak(captured), "call %d", i);
        EXPECT(kiln_add(y, kiln_ones(KILN_F32, KILN_SHAPE())), KILN_F64, KILN_SHAPE(), 0, i + 1);
        EXPECT(captured, KILN_F64, KILN_SHAPE(), 0, i);
    }
    kiln_function_free(f);
}

static void returns_a_number(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    cr_assert(kiln_assign(other, captured) == KILN_OK, "%s", kiln_error_message());
    out[0] = captured;
    out[1] = kiln_mul(in[0], captured);
}

/* A captured number is the same one once it was read: that the function hands it on is no reason to trace again, and not impure. */
Test(function_trace, a_number_may_be_computed_meanwhile)
{
    static const char *const checks[] = {"off", "pure"};
    for (int pure = 0; pure < 2; pure++) {
        kiln_function *f = kiln_function_new(returns_a_number, 1, 2, NULL);
        set_option("check", checks[pure]);
        captured = kiln_scalar(3);
        other = kiln_scalar(1);
        runs = 0;
        for (int i = 0; i < 6; i++) {
            double value;
            if (i == 2)
                cr_assert(kiln_item(captured, &value) == KILN_OK && value == 3);
            kiln_tensor *y = called(f, F32(KILN_SHAPE(2), 1, 2));
            cr_assert(kiln_is_weak(y) && kiln_is_weak(other));
            EXPECT(kiln_mul(y, F32(KILN_SHAPE(2), 1, 2)), KILN_F32, KILN_SHAPE(2), 0, 3, 6);
            cr_assert(kiln_item(other, &value) == KILN_OK && value == 3);
        }
        cr_assert(runs == (pure ? 6 : 1), "%d runs", runs);
        kiln_function_free(f);
    }
}

static kiln_function *inner;

/* Adds 1 to its argument, where that stays inside; gives the captured tensor as it is. */
static void assigns_its_argument(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    cr_expect(kiln_assign(in[0], kiln_add(in[0], kiln_scalar(1))) == KILN_OK, "%s", kiln_error_message());
    out[0] = in[0];
    out[1] = captured;
}

static void calls_inner(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *args[] = {user ? user : kiln_mul(in[0], kiln_scalar(10))}, *inside[2];
    cr_expect(kiln_function_call(inner, args, inside) == KILN_OK, "%s", kiln_error_message());
    cr_expect(kiln_assign(captured, kiln_mul(captured, kiln_scalar(2))) == KILN_OK);
    out[0] = kiln_add(kiln_mul(inside[0], in[0]), args[0]);
    out[1] = inside[1];
}

/* A function inside another one gets no handle of its caller's and gives none of its own, and what is weak outside is not inside: as when
 * it is called by itself. */
Test(function_trace, arguments_and_results_of_a_function_inside)
{
    inner = kiln_function_new(assigns_its_argument, 1, 2, NULL);
    for (int kind = 0; kind < 4; kind++) {
        captured = F32(KILN_SHAPE(2), 1, 2);
        kiln_tensor *x = kind < 3 ? F32(KILN_SHAPE(2), 3, 4) : kiln_cast(F32(KILN_SHAPE(2), 3, 4), KILN_F16), *out[2];
        /* something computed; captured; a captured number, which meets f32 and f16 */
        void *number = kind < 2 ? NULL : kiln_scalar(5);
        kiln_function *f = kiln_function_new(calls_inner, 1, 2, kind == 1 ? captured : number);
        for (int i = 0, before = 1; i < 3; i++, before *= 2) {
            cr_assert(kiln_function_call(f, &x, out) == KILN_OK, "%s", kiln_error_message());
            if (kind == 0)
                EXPECT(out[0], KILN_F32, KILN_SHAPE(2), 0, 31 * 3 + 30, 41 * 4 + 40);
            else if (kind == 1)
                EXPECT(out[0], KILN_F32, KILN_SHAPE(2), 0, (before + 1) * 3 + 2 * before, (2 * before + 1) * 4 + 4 * before);
            else
                EXPECT(out[0], KILN_F64, KILN_SHAPE(2), 0, 6 * 3 + 5, 6 * 4 + 5);
            EXPECT(out[1], KILN_F32, KILN_SHAPE(2), 0, before, 2 * before);
            EXPECT(captured, KILN_F32, KILN_SHAPE(2), 0, 2 * before, 4 * before);
        }
        kiln_function_free(f);
    }
    kiln_function_free(inner);
}

/* What has a captured number in its graph does not have what is computed to be one, and the other way round. */
Test(function_trace, check_pure_where_captured_numbers_are_computed)
{
    kiln_function *f = kiln_function_new(tens_and_ones, 1, 1, NULL);
    kiln_tensor *zeros = F32(KILN_SHAPE(2), 0, 0);
    captured = F32(KILN_SHAPE(2), 1, 2);
    other = kiln_scalar(0);
    set_option("check", "pure");
    for (int i = 0; i < 9; i++) {
        cr_assert(kiln_assign(other, i % 3 ? kiln_scalar(5) : kiln_add(kiln_scalar(2), kiln_scalar(3))) == KILN_OK);
        if (i % 3 == 1) /* the number itself, as an input */
            cr_assert(kiln_eval(other) == KILN_OK);
        EXPECT(called(f, zeros), KILN_F32, KILN_SHAPE(2), 0, 15, 25);
    }
    kiln_function_free(f);
}

/* kiln_function: traced once, replayed; what it uses besides its inputs is seen at each call. */
#include "kiln.h"
#include "tests/support/stats.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <string.h>

static int runs; /* of the traced C function */

static kiln_tensor *vector(int64_t n, float first)
{
    float data[64];
    for (int64_t i = 0; i < n; i++)
        data[i] = first + (float)i;
    return kiln_from(KILN_F32, KILN_SHAPE(n), data);
}

static void check(kiln_tensor *x, int64_t n, const float *want)
{
    float got[64];
    cr_assert(eq(int, kiln_read(x, KILN_F32, got, (size_t)n * sizeof *got), KILN_OK), "%s", kiln_error_message());
    for (int64_t i = 0; i < n; i++)
        cr_assert(eq(flt, got[i], want[i]));
}

static int64_t compiles(void)
{
    kiln_stats stats = stats_now();
    return stats.compiles;
}

static void call(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out)
{
    cr_assert(eq(int, kiln_function_call(f, in, out), KILN_OK), "%s", kiln_error_message());
}

static void axpy(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = kiln_add(kiln_mul(in[0], in[1]), in[2]);
}

/* Opens scopes of its own and calls another that does. */
static void scoped(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_scope *outer = kiln_scope_begin(), *inner = kiln_scope_begin();
    if (user) {
        kiln_tensor *first;
        cr_assert(eq(int, kiln_function_call(user, in, &first), KILN_OK), "%s", kiln_error_message());
        out[1] = kiln_add(first, kiln_int(1));
    }
    kiln_tensor *unused = kiln_exp(in[0]);
    (void)unused;
    out[0] = kiln_mul(in[0], kiln_int(2));
    (void)kiln_neg(out[0]);
    kiln_scope_end(inner);
    kiln_scope_end(outer);
}

Test(function, outputs_outlive_the_scopes_of_the_body)
{
    for (int mode = 0; mode < 3; mode++) {
        cr_assert(eq(int, kiln_set_option("mode", (const char *const[]){"jit", "eager", "interp"}[mode]), KILN_OK));
        kiln_function *f = kiln_function_new(scoped, 1, 1, NULL), *g = kiln_function_new(scoped, 1, 2, f);
        kiln_tensor *in = vector(3, 1), *out[2];
        for (int round = 0; round < 3; round++) {
            call(g, &in, out);
            for (int i = 0; i < 100; i++)
                cr_assert(kiln_neg(in) != NULL); /* what was let go is used again */
            check(out[0], 3, (float[]){2, 4, 6});
            check(out[1], 3, (float[]){3, 5, 7});
        }
        kiln_function_free(g);
        kiln_function_free(f);
    }
}

static void attends(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_attention(in[0], in[0], in[0], &(kiln_attention_options){.causal = true, .scale = 0.5, .softcap = 5});
}

/* Temporaries without an element have no memory, and the third call binds them without looking (what sanitizers see). */
Test(function, empty_temporaries)
{
    kiln_function *f = kiln_function_new(attends, 1, 1, NULL);
    for (int i = 0; i < 4; i++) {
        kiln_tensor *x = kiln_zeros(KILN_F64, KILN_SHAPE(0, 1, 1, 0, 1)), *y;
        cr_assert(eq(int, kiln_eval(x), KILN_OK));
        call(f, &x, &y);
        cr_assert(eq(int, kiln_eval(y), KILN_OK), "%s", kiln_error_message());
        cr_assert(eq(int, (int)kiln_numel(y), 0));
    }
    kiln_function_free(f);
}

Test(function, is_traced_once_for_each_kind_of_input)
{
    kiln_function *f = kiln_function_new(axpy, 3, 1, NULL);
    kiln_tensor *out;
    for (int round = 0; round < 5; round++) {
        kiln_tensor *in[] = {vector(3, (float)round), vector(3, 1), vector(3, 0)};
        call(f, in, &out);
        float r = (float)round;
        check(out, 3, (float[]){r, (r + 1) * 2 + 1, (r + 2) * 3 + 2});
    }
    cr_assert(eq(int, runs, 1));
    int64_t before = compiles();
    kiln_tensor *longer[] = {vector(4, 0), vector(4, 0), vector(4, 0)};
    call(f, longer, &out);
    check(out, 4, (float[]){0, 2, 6, 12});
    cr_assert(eq(int, runs, 2));
    cr_assert(eq(i64, compiles(), before + 1));
    kiln_tensor *same = vector(3, 2), *twice[] = {same, same, same};
    call(f, twice, &out);
    check(out, 3, (float[]){6, 12, 20});
    cr_assert(eq(int, runs, 2));
    kiln_function_free(f);
}

Test(function, evaluates_pending_inputs)
{
    kiln_function *f = kiln_function_new(axpy, 3, 1, NULL);
    kiln_tensor *x = kiln_add(vector(2, 1), kiln_scalar(1)), *in[] = {x, x, x}, *out;
    call(f, in, &out);
    check(out, 2, (float[]){6, 12});
    cr_assert(kiln_is_evaluated(x));
    kiln_function_free(f);
}

static kiln_tensor *weight;

static void scaled(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = kiln_mul(in[0], weight);
    out[1] = in[0];
}

Test(function, reads_captured_tensors_at_each_call)
{
    kiln_function *f = kiln_function_new(scaled, 1, 2, NULL);
    kiln_tensor *in[] = {vector(2, 1)}, *out[2];
    weight = vector(2, 10);
    call(f, in, out);
    check(out[0], 2, (float[]){10, 22});
    check(out[1], 2, (float[]){1, 2});
    cr_assert(eq(int, kiln_assign(weight, kiln_add(weight, kiln_scalar(1))), KILN_OK)); /* pending */
    call(f, in, out);
    check(out[0], 2, (float[]){11, 24});
    cr_assert(eq(int, runs, 1));
    kiln_function_free(f);
}

static void varies_captured(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *x = kiln_param(kiln_stop_gradient(weight)), *square = kiln_square(x);
    cr_expect(eq(int, kiln_grad(kiln_sum(square), &x, 1, &out[0]), KILN_OK));
    cr_expect(eq(int, kiln_jvp(1, &x, &in[0], 1, &square, 0, &out[1]), KILN_OK));
}

/* A parameter that a function makes of a captured tensor is what that means at each call. */
Test(function, makes_parameters_of_captured_tensors)
{
    kiln_function *f = kiln_function_new(varies_captured, 1, 2, NULL);
    kiln_tensor *in[] = {vector(2, 1)}, *out[2];
    weight = vector(2, 10);
    for (int k = 0; k < 2; k++) {
        call(f, in, out);
        check(out[0], 2, (float[]){20 + 2.f * (float)k, 22 + 2.f * (float)k});
        check(out[1], 2, (float[]){20 + 2.f * (float)k, 44 + 4.f * (float)k});
        cr_assert(eq(int, kiln_assign(weight, kiln_add(weight, kiln_scalar(1))), KILN_OK));
    }
    kiln_function_free(f);
}

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    kiln_tensor *gradient = kiln_mul(in[0], weight);
    cr_expect(eq(int, kiln_assign(weight, kiln_sub(weight, kiln_mul(gradient, kiln_scalar(0.5)))), KILN_OK));
    out[0] = kiln_sum(kiln_mul(weight, weight));
}

Test(function, replays_assigns)
{
    kiln_function *f = kiln_function_new(step, 1, 1, NULL);
    kiln_tensor *in[] = {kiln_ones(KILN_F32, KILN_SHAPE(2))}, *out;
    weight = vector(2, 4);
    kiln_tensor *alias = kiln_retain(kiln_reshape(weight, KILN_SHAPE(2, 1))); /* another reader of the old value */
    call(f, in, &out);                                                        /* 4, 5 -> 2, 2.5 */
    check(out, 1, (float[]){10.25f});
    check(weight, 2, (float[]){2, 2.5f});
    check(alias, 2, (float[]){4, 5});
    for (int i = 0; i < 2; i++)
        call(f, in, &out);
    check(weight, 2, (float[]){0.5f, 0.625f});
    check(alias, 2, (float[]){4, 5});
    cr_assert(eq(int, runs, 1));
    kiln_release(alias);
    kiln_function_free(f);
}

typedef enum Extra { NOTHING, READS, FAILS } Extra;

/* weight += in[0] */
static void only_assigns(kiln_tensor **in, kiln_tensor **out, void *user)
{
    float value[2];
    (void)out;
    runs++;
    if (user && *(Extra *)user == READS)
        cr_expect(eq(int, kiln_read(in[0], KILN_F32, value, sizeof value), KILN_OK));
    cr_expect(eq(int, kiln_assign(weight, kiln_add(weight, in[0])), KILN_OK));
    if (user && *(Extra *)user == FAILS)
        cr_expect(zero(ptr, kiln_add(in[0], vector(3, 0))));
}

static void nests(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_function **f = user;
    (void)out;
    kiln_status status = kiln_function_call(*f, in, NULL);
    if (status != KILN_OK) /* handed on */
        cr_expect(zero(ptr, kiln_add(in[0], vector(3, 0))));
}

Test(function, without_results_only_assigns)
{
    for (int mode = 0; mode < 3; mode++) {
        cr_assert(eq(int, kiln_set_option("mode", (const char *const[]){"jit", "eager", "interp"}[mode]), KILN_OK));
        for (Extra extra = NOTHING; extra <= FAILS; extra++)
            for (int nested = 0; nested < 2; nested++) {
                kiln_function *f = kiln_function_new(only_assigns, 1, 0, &extra), *g = kiln_function_new(nests, 1, 0, &f);
                cr_assert(f && g, "%s", kiln_error_message());
                weight = vector(2, 10);
                kiln_tensor *in[] = {vector(2, 1)};
                runs = 0;
                for (int i = 0; i < 4; i++) {
                    kiln_status status = kiln_function_call(nested ? g : f, in, NULL);
                    cr_assert(eq(int, status, extra == FAILS ? KILN_BAD_SHAPE : KILN_OK), "%s", kiln_error_message());
                    kiln_clear_error();
                }
                check(weight, 2, extra == FAILS ? (float[]){10, 11} : (float[]){14, 19});
                cr_assert(eq(int, runs, extra == NOTHING && mode != 1 ? 1 : 4), "mode %d, extra %d", mode, (int)extra);
                kiln_function_free(g);
                kiln_function_free(f);
            }
    }
}

static void noisy(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    (void)kiln_uniform(KILN_F32, KILN_SHAPE(5), 0, 1); /* unused, but it advances the stream */
    out[0] = kiln_add(in[0], kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1));
}

Test(function, draws_advance_the_stream_as_without_it)
{
    float plain[3][4], traced[3][4];
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(4)), *out;
    kiln_seed(7);
    for (int i = 0; i < 3; i++) {
        noisy(&zero, &out, NULL);
        cr_assert(eq(int, kiln_read(out, KILN_F32, plain[i], sizeof plain[i]), KILN_OK));
    }
    kiln_function *f = kiln_function_new(noisy, 1, 1, NULL);
    kiln_seed(7);
    runs = 0;
    for (int i = 0; i < 3; i++) {
        call(f, &zero, &out);
        cr_assert(eq(int, kiln_read(out, KILN_F32, traced[i], sizeof traced[i]), KILN_OK));
    }
    cr_assert(eq(int, runs, 1));
    cr_assert(eq(int, memcmp(plain, traced, sizeof plain), 0));
    kiln_seed(8);
    call(f, &zero, &out);
    cr_assert(eq(int, kiln_read(out, KILN_F32, traced[1], sizeof traced[1]), KILN_OK));
    cr_assert(ne(int, memcmp(traced[0], traced[1], sizeof traced[0]), 0));
    kiln_function_free(f);
}

static void silent(void *user, int level, const char *topic, const char *line) { (void)user, (void)level, (void)topic, (void)line; }

static void *draw_seven(void *unused)
{
    (void)unused;
    kiln_scope *scope = kiln_scope_begin();
    bool fine = kiln_uniform(KILN_F32, KILN_SHAPE(7), 0, 1) != NULL;
    kiln_scope_end(scope);
    return fine ? &runs : NULL;
}

/* Another thread draws between this one's draws, while it is traced. */
static void two_draws(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)in, (void)user;
    out[0] = kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1);
    pthread_t thread;
    void *fine = NULL;
    cr_assert(pthread_create(&thread, NULL, draw_seven, NULL) == 0 && pthread_join(thread, &fine) == 0 && fine);
    out[1] = kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1);
}

Test(function, no_position_of_the_stream_is_drawn_twice)
{
    float stream[64], got[2][4];
    kiln_seed(7);
    cr_assert(eq(int, kiln_read(kiln_uniform(KILN_F32, KILN_SHAPE(64), 0, 1), KILN_F32, stream, sizeof stream), KILN_OK));
    kiln_seed(7);
    kiln_function *f = kiln_function_new(two_draws, 0, 2, NULL);
    for (int i = 0; i < 3; i++) { /* 15 positions a call: the first of them had another thread's between them */
        kiln_tensor *nothing[1] = {NULL}, *out[2];
        call(f, nothing, out);
        for (int k = 0; k < 2; k++) {
            cr_assert(eq(int, kiln_read(out[k], KILN_F32, got[k], sizeof got[k]), KILN_OK));
            cr_assert(eq(int, memcmp(got[k], stream + 15 * i + 11 * k, sizeof got[k]), 0), "call %d, draw %d", i, k);
        }
    }
    kiln_tensor *next = kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1);
    cr_assert(eq(int, kiln_read(next, KILN_F32, got[0], sizeof got[0]), KILN_OK));
    cr_assert(eq(int, memcmp(got[0], stream + 45, sizeof got[0]), 0));
    kiln_function_free(f);
}

static void seeded(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)in, (void)user;
    out[0] = kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1);
    kiln_seed(7);
    out[1] = kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1);
}

Test(function, that_seeds_is_run_each_time)
{
    kiln_set_log_sink(silent, NULL);
    float got[4][2][4];
    kiln_function *f = kiln_function_new(seeded, 0, 2, NULL);
    for (int i = 0; i < 4; i++) { /* twice without, twice with the function */
        kiln_tensor *nothing[1] = {NULL}, *out[2];
        if (i % 2 == 0)
            kiln_seed(3);
        if (i < 2)
            seeded(nothing, out, NULL);
        else
            call(f, nothing, out);
        for (int k = 0; k < 2; k++)
            cr_assert(eq(int, kiln_read(out[k], KILN_F32, got[i][k], sizeof got[i][k]), KILN_OK));
    }
    cr_assert(eq(int, memcmp(got[0], got[2], 2 * sizeof got[0]), 0));
    cr_assert(ne(int, memcmp(got[0][0], got[0][1], sizeof got[0][0]), 0));
    kiln_function_free(f);
}

static char last_warning[512];
static int warnings;

static void sink(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    if (level != 0)
        return;
    warnings++;
    strncpy(last_warning, line, sizeof last_warning - 1);
}

static void branching(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    double total = 0;
    cr_expect(eq(int, kiln_item(kiln_sum(in[0]), &total), KILN_OK));
    out[0] = total > 0 ? kiln_neg(in[0]) : kiln_abs(in[0]);
}

Test(function, a_sync_point_inside_means_run_each_time_and_is_said_once)
{
    kiln_set_log_sink(sink, NULL);
    kiln_function *f = kiln_function_new(branching, 1, 1, NULL);
    kiln_tensor *out, *in[] = {vector(2, 1)};
    call(f, in, &out);
    check(out, 2, (float[]){-1, -2});
    in[0] = vector(2, -9);
    call(f, in, &out);
    check(out, 2, (float[]){9, 8});
    cr_assert(eq(int, runs, 2));
    cr_assert(eq(int, warnings, 1));
    cr_assert(strstr(last_warning, "kiln_item") && strstr(last_warning, "test_function.c"), "%s", last_warning);
    kiln_function_free(f);
}

static void incomplete(kiln_tensor **in, kiln_tensor **out, void *user) { (void)in, (void)out, (void)user; }

static void wrong(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_matmul(in[0], in[0]);
    kiln_tensor *p = weight;
    cr_expect(eq(int, kiln_assign(p, kiln_scalar(3)), KILN_OK));
}

Test(function, errors_are_statuses_and_change_nothing)
{
    kiln_tensor *out = (kiln_tensor *)1, *in[] = {kiln_ones(KILN_F32, KILN_SHAPE(2, 3))};
    cr_assert(zero(ptr, kiln_function_new(NULL, 1, 1, NULL)));
    kiln_clear_error();
    kiln_function *f = kiln_function_new(incomplete, 1, 1, NULL);
    cr_assert(eq(int, kiln_function_call(f, in, &out), KILN_INVALID));
    cr_assert(strstr(kiln_error_message(), "out[0]") != NULL, "%s", kiln_error_message());
    cr_assert(zero(ptr, out));
    kiln_function_free(f);

    kiln_clear_error();
    weight = kiln_full(KILN_F32, KILN_SHAPE(), 5);
    f = kiln_function_new(wrong, 1, 1, NULL);
    cr_assert(eq(int, kiln_function_call(f, in, &out), KILN_BAD_SHAPE));
    cr_assert(strstr(kiln_error_message(), "kiln_matmul") != NULL, "%s", kiln_error_message());
    double value;
    cr_assert(eq(int, kiln_item(weight, &value), KILN_OK));
    cr_assert(eq(dbl, value, 5));
    in[0] = NULL;
    cr_assert(ne(int, kiln_function_call(f, in, &out), KILN_OK));
    kiln_function_free(f);
    kiln_function_free(NULL);
}

static void *frees(void *f)
{
    kiln_function_free(f);
    bool refused = kiln_error_status() == KILN_INVALID && strstr(kiln_error_message(), "kiln_function_free: the function is being called");
    return refused ? f : NULL;
}

static void freed_elsewhere(kiln_tensor **in, kiln_tensor **out, void *user)
{
    pthread_t thread;
    void *refused = NULL;
    cr_assert(pthread_create(&thread, NULL, frees, *(kiln_function **)user) == 0);
    pthread_join(thread, &refused);
    cr_assert(refused != NULL, "another thread freed a function that is being called");
    out[0] = kiln_neg(in[0]);
}

Test(function, is_not_freed_by_another_thread_while_it_is_called)
{
    kiln_function *f = NULL;
    kiln_tensor *in[] = {vector(2, 1)}, *out;
    f = kiln_function_new(freed_elsewhere, 1, 1, &f);
    call(f, in, &out);
    check(out, 2, (float[]){-1, -2});
    call(f, in, &out);
    check(out, 2, (float[]){-1, -2});
    kiln_function_free(f);
}

static void outer(kiln_tensor **in, kiln_tensor **out, void *user)
{
    runs++;
    kiln_tensor *args[] = {in[0], in[0], in[0]};
    cr_expect(eq(int, kiln_function_call(user, args, out), KILN_OK));
    out[0] = kiln_neg(out[0]);
}

Test(function, functions_nest)
{
    kiln_function *inner = kiln_function_new(axpy, 3, 1, NULL), *f = kiln_function_new(outer, 1, 1, inner);
    kiln_tensor *in[] = {vector(2, 1)}, *out;
    for (int i = 0; i < 3; i++)
        call(f, in, &out);
    check(out, 2, (float[]){-2, -6});
    cr_assert(eq(int, runs, 2));
    kiln_function_free(f);
    kiln_function_free(inner);
}

static void times_captured(kiln_tensor **in, kiln_tensor **out, void *user)
{
    runs++;
    out[0] = kiln_mul(in[0], (kiln_tensor *)user);
}

static void times_captured_that_grows(kiln_tensor **in, kiln_tensor **out, void *user)
{
    times_captured(in, out, user);
    cr_expect(eq(int, kiln_assign(user, kiln_add(user, kiln_int(1))), KILN_OK));
}

/* A number made outside is a tensor like others: what it means is seen at each call, and it stays weak. */
Test(function, captured_scalars_may_change)
{
    const char *const checks[] = {"off", "pure"};
    for (int turn = 0; turn < 4; turn++) {
        kiln_tensor *factor = kiln_scalar(2), *in[] = {vector(2, 1)}, *out;
        kiln_function *f = kiln_function_new(turn < 2 ? times_captured : times_captured_that_grows, 1, 1, factor);
        cr_assert(eq(int, kiln_set_option("check", checks[turn % 2]), KILN_OK));
        runs = 0;
        for (int i = 0; i < 6; i++) {
            float now = (float)(turn < 2 ? 2 + i / 2 : 2 + i);
            if (turn < 2 && i % 2 == 0)
                cr_assert(eq(int, kiln_assign(factor, kiln_scalar((double)now)), KILN_OK));
            call(f, in, &out);
            cr_assert(eq(int, kiln_dtype_of(out), KILN_F32), "turn %d, call %d", turn, i);
            check(out, 2, (float[]){now, 2 * now});
            cr_assert(kiln_is_weak(factor), "turn %d, call %d", turn, i);
        }
        cr_assert(turn % 2 || runs <= 3, "turn %d: traced %d times", turn, runs);
        kiln_function_free(f);
    }
}

static void noise_times_captured(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_mul(kiln_add(in[0], (kiln_tensor *)user), kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1));
    out[1] = user;
}

/* A captured scalar is computed first, and no number of the graph any more: the stream's position and key are those of the others. */
Test(function, draws_beside_captured_scalars)
{
    const char *const modes[] = {"jit", "interp", "eager"};
    for (int turn = 0; turn < 9; turn++) {
        int kind = turn % 3;
        cr_assert(eq(int, kiln_set_option("mode", modes[turn / 3]), KILN_OK));
        kiln_tensor *factor = kind ? kiln_scalar(3) : kiln_full(KILN_F32, KILN_SHAPE(), 3), *in[] = {vector(4, 1)}, *out[2];
        double value;
        if (kind == 2)
            cr_assert(eq(int, kiln_item(factor, &value), KILN_OK));
        kiln_function *f = kiln_function_new(noise_times_captured, 1, 2, factor);
        float want[4][4];
        for (int i = 0; i < 8; i++) { /* four times without, four times with the function */
            if (i % 4 == 0)
                kiln_seed(11);
            if (i < 4)
                noise_times_captured(in, out, factor);
            else
                call(f, in, out);
            float got[4];
            cr_assert(eq(int, kiln_read(out[0], KILN_F32, got, sizeof got), KILN_OK), "%s", kiln_error_message());
            cr_assert(eq(int, kiln_item(kiln_mul(out[1], kiln_scalar(2)), &value), KILN_OK));
            cr_assert(value == 6, "turn %d, call %d: %g", turn, i, value);
            if (i < 4)
                memcpy(want[i], got, sizeof got);
            else
                check(out[0], 4, want[i - 4]);
        }
        kiln_function_free(f);
    }
}

static void one_of_two(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_neg(in[0]);
}

typedef struct Inside {
    kiln_function *inner;
    kiln_status status;
    kiln_tensor *out[2];
} Inside;

static void calls_it(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Inside *inside = user;
    inside->status = kiln_function_call(inside->inner, in, inside->out);
    out[0] = kiln_add(in[0], in[0]);
}

/* On error all outputs are NULL, inside another function too. */
Test(function, an_output_that_is_left_out)
{
    Inside inside = {.inner = kiln_function_new(one_of_two, 1, 2, NULL), .status = KILN_OK};
    kiln_function *f = kiln_function_new(calls_it, 1, 1, &inside);
    kiln_tensor *in[] = {vector(2, 1)}, *out[2] = {in[0], in[0]};
    cr_assert(eq(int, kiln_function_call(inside.inner, in, out), KILN_INVALID));
    cr_assert(strstr(kiln_error_message(), "out[1]") && out[0] == NULL && out[1] == NULL, "%s", kiln_error_message());
    call(f, in, out);
    check(out[0], 2, (float[]){2, 4});
    cr_assert(eq(int, inside.status, KILN_INVALID));
    cr_assert(inside.out[0] == NULL && inside.out[1] == NULL);
    kiln_function_free(f);
    kiln_function_free(inside.inner);
}

Test(function, works_in_eager_and_interp_mode)
{
    kiln_function *f = kiln_function_new(axpy, 3, 1, NULL);
    kiln_tensor *x = vector(2, 1), *in[] = {x, x, x}, *out;
    const char *const modes[] = {"eager", "interp", "jit"};
    for (int m = 0; m < 3; m++) {
        cr_assert(eq(int, kiln_set_option("mode", modes[m]), KILN_OK));
        for (int i = 0; i < 2; i++) {
            call(f, in, &out);
            check(out, 2, (float[]){2, 6});
        }
    }
    kiln_function_free(f);
}

/* --- KILN_CHECK=pure --- */

typedef struct Impure {
    int variant; /* what it does this time */
    double number;
    kiln_tensor *a, *b;
} Impure;

static void impure(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Impure *how = user;
    runs++;
    kiln_tensor *x = in[0], *data = kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){1, how->variant == 4 ? 3.0f : 2.0f});
    x = how->variant == 1 ? kiln_sub(x, in[1]) : kiln_add(x, in[1]);
    x = kiln_mul(x, kiln_scalar(how->number));
    x = kiln_add(x, how->variant == 2 ? how->b : how->a);
    x = kiln_add(kiln_add(x, data), kiln_uniform(KILN_F32, KILN_SHAPE(2), 0, 1));
    if (how->variant == 3)
        x = kiln_slice_axis(kiln_concat((kiln_tensor *[]){x, x}, 2, 0), 0, 1, 3, 1);
    out[0] = x;
}

Test(function, check_pure_finds_what_changed)
{
    Impure how = {0, 2, vector(2, 1), vector(2, 5)};
    kiln_function *f = kiln_function_new(impure, 2, 1, &how);
    kiln_tensor *in[] = {vector(2, 0), vector(2, 3)}, *out;
    float plain[3][2], checked[3][2];
    for (int pass = 0; pass < 2; pass++) {
        cr_assert(eq(int, kiln_set_option("check", pass ? "pure" : "off"), KILN_OK));
        kiln_seed(7);
        runs = 0;
        for (int i = 0; i < 3; i++) {
            call(f, in, &out);
            cr_assert(eq(int, kiln_read(out, KILN_F32, pass ? checked[i] : plain[i], sizeof plain[i]), KILN_OK));
        }
        cr_assert(eq(int, runs, pass ? 3 : 1));
    }
    cr_assert(memcmp(plain, checked, sizeof plain) == 0, "checking changes the stream");
    cr_assert(memcmp(plain[0], plain[1], sizeof plain[0]) != 0);
    static const char *const said[] = {"", "recorded other functions", "another tensor", "recorded other functions", "another tensor"};
    for (int variant = 1; variant <= 4; variant++) {
        how.variant = variant;
        cr_assert(eq(int, kiln_function_call(f, in, &out), KILN_INVALID));
        cr_assert(strstr(kiln_error_message(), said[variant]) != NULL, "%d: %s", variant, kiln_error_message());
        cr_assert(zero(ptr, out));
    }
    how.variant = 0;
    call(f, in, &out);
    how.number = 3;
    cr_assert(eq(int, kiln_function_call(f, in, &out), KILN_INVALID));
    cr_assert(strstr(kiln_error_message(), "a number that it read differs") != NULL, "%s", kiln_error_message());
    kiln_clear_error();
    kiln_function_free(f);
}

/* Strided inputs and captured ones are replayed too. */
Test(function, strided_inputs_are_replayed)
{
    float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    kiln_function *f = kiln_function_new(axpy, 3, 1, NULL);
    runs = 0;
    for (int i = 0; i < 4; i++) {
        kiln_tensor *x = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), (int64_t[]){2}, data + i, NULL, NULL);
        kiln_tensor *in[] = {x, vector(3, 1), vector(3, 0)}, *out;
        call(f, in, &out);
        float r = (float)i;
        check(out, 3, (float[]){r, (r + 2) * 2 + 1, (r + 4) * 3 + 2});
    }
    cr_assert(eq(int, runs, 1));
    weight = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), (int64_t[]){2}, data, NULL, NULL);
    kiln_function *g = kiln_function_new(scaled, 1, 2, NULL);
    kiln_tensor *in = vector(3, 1), *out[2];
    call(g, &in, out);
    check(out[0], 3, (float[]){0, 4, 12});
    cr_assert(eq(int, kiln_assign(weight, kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), (int64_t[]){4}, data, NULL, NULL)), KILN_OK));
    call(g, &in, out);
    check(out[0], 3, (float[]){0, 8, 24});
    kiln_function_free(f);
    kiln_function_free(g);
}

/* The program that a function remembers leaves the cache: it is compiled again, not run from where it was. */
Test(function, survives_the_eviction_of_its_program)
{
    kiln_function *f = kiln_function_new(axpy, 3, 1, NULL);
    kiln_tensor *in[] = {vector(3, 1), vector(3, 1), vector(3, 0)}, *out;
    cr_assert(eq(int, kiln_set_option("cache_bytes", "1"), KILN_OK)); /* room for the newest program alone */
    runs = 0;
    for (int i = 0; i < 4; i++) {
        call(f, in, &out);
        check(out, 3, (float[]){1, 5, 11});
        call(f, in, &out);
        check(out, 3, (float[]){1, 5, 11});
        kiln_tensor *other = kiln_exp(vector(4, 0));
        float first[4];
        cr_assert(eq(int, kiln_read(other, KILN_F32, first, sizeof first), KILN_OK));
        cr_assert(eq(flt, first[0], 1));
    }
    cr_assert(eq(int, runs, 1));
    cr_assert(eq(i64, compiles(), 8));
    kiln_function_free(f);
}

/* --- repeats: the program is prepared, calls only put in pointers and scalars ----------------------------------------------- */

/* Several kernels with memory between them, a random draw, results that appear twice, and one that is an input. */
static void many_results(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *rows = kiln_softmax(kiln_cumsum(kiln_matmul(in[0], in[1]), 1), 1);
    out[0] = kiln_sum_axes(rows, KILN_AXES(0), false);
    out[1] = kiln_add(rows, kiln_uniform(KILN_F32, KILN_SHAPE(5, 7), 0, 1));
    out[2] = out[0];
    out[3] = in[1];
    out[4] = kiln_mul(out[0], in[2]);
}

enum { RESULTS = 5, REPEATS = 12 };

static kiln_tensor *numbers(int64_t a, int64_t b, int seed)
{
    float data[64];
    for (int64_t i = 0; i < a * b; i++)
        data[i] = (float)((i * 37 + seed * 11) % 29) * 0.1f - 1.4f;
    return kiln_from(KILN_F32, KILN_SHAPE(a, b), data);
}

static void results_of(bool replay, kiln_function *f, int round, kiln_tensor **out)
{
    kiln_tensor *in[3] = {numbers(5, 6, round), numbers(6, 7, round + 3), numbers(1, 7, round + 5)};
    if (round % 3 == 0)
        in[2] = kiln_neg(in[2]); /* still to be computed */
    if (replay)
        cr_assert(kiln_function_call(f, in, out) == KILN_OK, "%s", kiln_error_message());
    else
        many_results(in, out, NULL);
}

/* Each result of each repeat is what it is without the function, also after all later calls. */
Test(function, repeats_give_what_recording_gives)
{
    kiln_function *f = kiln_function_new(many_results, 3, RESULTS, NULL);
    kiln_tensor *got[REPEATS][RESULTS], *wanted[REPEATS][RESULTS];
    kiln_seed(5);
    for (int r = 0; r < REPEATS; r++)
        results_of(true, f, r, got[r]);
    kiln_seed(5);
    for (int r = 0; r < REPEATS; r++) {
        results_of(false, f, r, wanted[r]);
        cr_assert(kiln_eval_many(wanted[r], RESULTS) == KILN_OK);
    }
    for (int r = 0; r < REPEATS; r++)
        for (int k = 0; k < RESULTS; k++) {
            float x[64], y[64];
            size_t bytes = sizeof *x * (size_t)kiln_numel(wanted[r][k]);
            cr_assert(kiln_numel(got[r][k]) == kiln_numel(wanted[r][k]));
            cr_assert(kiln_read(got[r][k], KILN_F32, x, bytes) == KILN_OK && kiln_read(wanted[r][k], KILN_F32, y, bytes) == KILN_OK);
            cr_assert(memcmp(x, y, bytes) == 0, "call %d, result %d", r, k);
        }
    kiln_stats stats = stats_now();
    cr_assert(stats.fallbacks == 0);
    kiln_function_free(f);
}

static void sum_and_difference(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], in[1]);
    out[1] = kiln_sub(in[0], in[1]);
}

/* Counted as any other evaluation; an option that is set, a mode, a log topic: the long way, and back. */
Test(function, repeats_are_counted_and_obey_options)
{
    kiln_function *f = kiln_function_new(sum_and_difference, 2, 2, NULL);
    kiln_tensor *in[2] = {numbers(4, 4, 1), numbers(4, 4, 2)}, *out[2];
    for (int i = 0; i < 3; i++)
        cr_assert(kiln_function_call(f, in, out) == KILN_OK);
    kiln_stats after;
    kiln_stats before = stats_now();
    for (int i = 0; i < 10; i++)
        cr_assert(kiln_function_call(f, in, out) == KILN_OK);
    kiln_get_stats(&after);
    cr_assert(after.evals - before.evals == 10 && after.hits - before.hits == 10 && after.misses == before.misses);
    cr_assert(after.kernels > before.kernels && after.bytes_moved > before.bytes_moved);
    int64_t live = after.live_bytes;
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < 100; i++)
        cr_assert(kiln_function_call(f, in, out) == KILN_OK);
    kiln_scope_end(scope);
    kiln_get_stats(&after);
    cr_assert(after.live_bytes == live, "%d bytes are left", (int)(after.live_bytes - live));
    static const char *const settings[][2] = {{"mode", "interp"}, {"mode", "eager"}, {"mode", "jit"}, {"threads", "3"},
                                              {"math", "strict"}, {"math", "fast"},  {"threads", "0"}};
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        cr_assert(kiln_set_option(settings[s][0], settings[s][1]) == KILN_OK);
        for (int i = 0; i < 3; i++) {
            float data[16];
            in[0] = numbers(4, 4, i), in[1] = numbers(4, 4, i);
            cr_assert(kiln_function_call(f, in, out) == KILN_OK, "%s", kiln_error_message());
            cr_assert(kiln_read(out[1], KILN_F32, data, sizeof data) == KILN_OK);
            for (int k = 0; k < 16; k++)
                cr_assert(data[k] == 0);
        }
    }
    kiln_function_free(f);
}

static void noise_on_captured(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)in;
    out[0] = kiln_add(kiln_uniform(KILN_F32, KILN_SHAPE(3), 0, 1), user);
}

/* A captured tensor that lies otherwise from some call on makes the function be traced again; that draws as often as a replay. */
Test(function, a_new_trace_draws_what_a_replay_would)
{
    float data[6] = {1, 0, 2, 0, 3, 0}, want[5][3], got[3];
    int64_t every_other[] = {2};
    kiln_tensor *plain = kiln_from(KILN_F32, KILN_SHAPE(3), (float[]){1, 2, 3}), *nothing[1] = {NULL}, *out[1];
    kiln_tensor *strided = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), every_other, data, NULL, NULL);
    kiln_seed(11);
    for (int i = 0; i < 5; i++)
        cr_assert(kiln_read(kiln_add(kiln_uniform(KILN_F32, KILN_SHAPE(3), 0, 1), plain), KILN_F32, want[i], sizeof want[i]) == KILN_OK);
    kiln_tensor *captured = kiln_add(plain, kiln_scalar(0));
    cr_assert(kiln_eval(captured) == KILN_OK);
    kiln_function *f = kiln_function_new(noise_on_captured, 0, 1, captured);
    kiln_seed(11);
    for (int i = 0; i < 5; i++) {
        if (i == 3)
            cr_assert(kiln_assign(captured, strided) == KILN_OK);
        cr_assert(kiln_function_call(f, nothing, out) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_read(out[0], KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
        cr_assert(memcmp(got, want[i], sizeof got) == 0, "call %d", i);
    }
    kiln_function_free(f);
}

static kiln_tensor *first, *second; /* captured */

static void add_transposed(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_assign(first, kiln_add(first, kiln_transpose(in[0])));
    out[0] = kiln_int(1);
}

/* An argument may be the very tensor that is assigned: it is read where it is overwritten. */
Test(function, an_argument_that_is_assigned)
{
    enum { N = 64 };
    static float data[N][N], want[N][N], got[N][N];
    for (int i = 0; i < N * N; i++)
        data[i / N][i % N] = (float)(i % 101);
    first = kiln_from(KILN_F32, KILN_SHAPE(N, N), data);
    kiln_function *f = kiln_function_new(add_transposed, 1, 1, NULL);
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < N * N; i++)
            want[i / N][i % N] = data[i / N][i % N] + data[i % N][i / N];
        memcpy(data, want, sizeof data);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[1] = {first}, *out[1];
        call(f, in, out);
        kiln_scope_end(scope);
        cr_assert(eq(int, kiln_read(first, KILN_F32, got, sizeof got), KILN_OK), "%s", kiln_error_message());
        cr_assert(memcmp(got, want, sizeof got) == 0, "call %d", turn);
    }
    kiln_function_free(f);
}

static void step_both(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)in, (void)user;
    kiln_tensor *a = kiln_add(first, kiln_int(1)), *b = kiln_mul(second, kiln_int(3));
    kiln_assign(first, a);
    kiln_assign(second, b);
    out[0] = kiln_int(1);
}

Test(function, assigned_tensors_that_become_one_value)
{
    first = vector(3, 1);
    second = vector(3, 5);
    kiln_function *f = kiln_function_new(step_both, 0, 1, NULL);
    for (int turn = 0; turn < 3; turn++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *out[1];
        if (turn == 2)
            kiln_assign(second, first);
        call(f, NULL, out);
        kiln_scope_end(scope);
    }
    check(first, 3, (float[]){4, 5, 6});
    check(second, 3, (float[]){9, 12, 15});
    kiln_function_free(f);
}

static void tens_and_ones(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(first, kiln_int(10)), kiln_add(second, in[0]));
}

/* The other way round: one value while the function is traced, two later, and one again. */
Test(function, captured_tensors_that_were_one_value)
{
    first = vector(3, 1);
    second = vector(3, 5);
    kiln_tensor *other = vector(3, 5), *zero = kiln_zeros(KILN_F32, KILN_SHAPE(3)), *in[1] = {zero}, *out[1];
    kiln_function *f = kiln_function_new(tens_and_ones, 1, 1, NULL);
    for (int turn = 0; turn < 8; turn++) {
        kiln_assign(second, turn % 4 < 2 ? first : other);
        call(f, in, out);
        check(out[0], 3, turn % 4 < 2 ? (float[]){11, 22, 33} : (float[]){15, 26, 37});
    }
    kiln_function_free(f);
}

static void uses_captured(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = kiln_add(in[0], (kiln_tensor *)user); }

/* The first call says what went wrong, as later ones do. */
Test(function, captured_tensors_that_cannot_be_computed)
{
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(1)), *in[1] = {zero}, *out[1];
    int64_t far = 99;
    kiln_tensor *bad = kiln_take(vector(3, 1), kiln_from(KILN_I64, KILN_SHAPE(1), &far), 0);
    kiln_function *f = kiln_function_new(uses_captured, 1, 1, bad);
    for (int turn = 0; turn < 2; turn++) {
        cr_assert(eq(int, kiln_function_call(f, in, out), KILN_BAD_INDEX), "%s", kiln_error_message());
        cr_assert(strstr(kiln_error_message(), "index 99 of the kiln_take at") != NULL, "%s", kiln_error_message());
        kiln_clear_error();
    }
    kiln_function_free(f);
}

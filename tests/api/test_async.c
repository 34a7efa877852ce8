/*
 * kiln_eval_async: the call returns, another thread computes, who asks waits. An op of the test's keeps that thread at work for as long as
 * a test wants something to be under way, or queued.
 */
#include "api.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t entered, may_go;
static atomic_uint calls;
static pthread_t caller;
static atomic_bool elsewhere;

static kiln_status same_type(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    *out = *in;
    return KILN_OK;
}

/* Copies, once it may. */
static kiln_status gate(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    calls++;
    elsewhere = !pthread_equal(pthread_self(), caller);
    sem_post(&entered);
    while (sem_wait(&may_go) != 0)
        ;
    memcpy(out->data, in->data, sizeof(float) * (size_t)in->type.shape.dim[0]);
    return KILN_OK;
}

static kiln_tensor *through_gate(kiln_tensor *x)
{
    static const kiln_op *op;
    kiln_tensor *y;
    if (!op) {
        kiln_op_info info = {.name = "test.gate", .version = "1", .n_in = 1, .n_out = 1, .infer = same_type, .host = gate};
        sem_init(&entered, 0, 0);
        sem_init(&may_go, 0, 0);
        caller = pthread_self();
        op = kiln_op_register(&info);
    }
    cr_assert(kiln_op_apply(op, &x, NULL, 0, &y) == KILN_OK, "%s", kiln_error_message());
    return y;
}

static void queue(kiln_tensor *x) { cr_assert(kiln_eval_async(x) == KILN_OK, "%s", kiln_error_message()); }

/* The other thread is at work until sem_post(&may_go). */
static kiln_tensor *busy(void)
{
    kiln_tensor *x = through_gate(F32(KILN_SHAPE(3), 1, 2, 3));
    queue(x);
    while (sem_wait(&entered) != 0)
        ;
    return x;
}

Test(async, returns_while_it_is_computed, .timeout = HANGS_AFTER(60))
{
    kiln_tensor *x = busy(), *y = kiln_add(x, kiln_scalar(1));
    cr_assert(elsewhere && !kiln_is_evaluated(x));
    queue(y);
    cr_assert(!kiln_is_evaluated(y));
    sem_post(&may_go);
    EXPECT(x, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
    EXPECT(y, KILN_F32, KILN_SHAPE(3), 0, 2, 3, 4);
    cr_assert_eq(calls, 1, "it is computed once");
    cr_assert(kiln_eval_async(x) == KILN_OK && kiln_wait(x) == KILN_OK && calls == 1, "there is nothing left to do");
}

/* What nobody holds when its turn comes, and what somebody else computed meanwhile. */
Test(async, drops_what_is_not_needed, .timeout = HANGS_AFTER(60))
{
    kiln_tensor *x = busy();
    kiln_scope *scope = kiln_scope_begin();
    queue(kiln_exp(F32(KILN_SHAPE(2), 1, 2)));
    kiln_scope_end(scope);
    kiln_stats before = stats_now();
    sem_post(&may_go);
    cr_assert(kiln_wait(x) == KILN_OK);
    kiln_tensor *last = kiln_neg(x);
    queue(last); /* behind what is to be dropped */
    while (!kiln_is_evaluated(last))
        usleep(1000);
    kiln_stats after = stats_now();
    cr_assert_eq(after.evals - before.evals, 1, "%d evaluations", (int)(after.evals - before.evals));
}

static void many_in_any_order(void)
{
    enum { N = 300 };
    kiln_tensor *x[N], *start = kiln_arange(KILN_F32, 0, 5, 1);
    for (int k = 0; k < N; k++) {
        x[k] = kiln_mul(k % 7 ? x[k - 1] : start, kiln_scalar(k % 7 + 1));
        queue(x[k]);
    }
    for (int k = 0, at; k < N; k++) {
        double want = 4, got;
        at = k * 37 % N;
        for (int j = 1; j <= at % 7; j++)
            want *= j + 1;
        cr_assert(kiln_item(kiln_slice_axis(x[at], 0, 4, 5, 1), &got) == KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(got, want, "%d: %g", at, got);
    }
}
API_TEST(async, many) { many_in_any_order(); }

API_TEST(async, several_together)
{
    kiln_tensor *x = F32(KILN_SHAPE(4), 4, 1, 3, 2), *both[2] = {kiln_sort(x, 0, false), kiln_sum(x)};
    cr_assert(kiln_eval_many_async(both, 2) == KILN_OK && kiln_eval_many_async(both, 0) == KILN_OK);
    EXPECT(both[1], KILN_F32, KILN_SHAPE(), 0, 10);
    EXPECT(both[0], KILN_F32, KILN_SHAPE(4), 0, 1, 2, 3, 4);
}

/* It is the reader's, who learns whose it was; it is computed again where it is asked for again. */
Test(async, fails_where_it_is_read, .timeout = HANGS_AFTER(60))
{
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2), *work = busy(), *bad = kiln_take(x, I64(KILN_SHAPE(1), 5), 0);
    kiln_tensor *from_it = kiln_add(kiln_take(x, I64(KILN_SHAPE(1), 7), 0), kiln_scalar(1)), *good = kiln_add(x, x), *behind = kiln_exp(x);
    queue(bad), queue(from_it), queue(good), queue(behind);
    sem_post(&may_go);
    cr_assert(kiln_wait(work) == KILN_OK);
    while (!kiln_is_evaluated(behind))
        usleep(1000);
    static const char place[] = "computed by kiln_eval_async at test_async.c:";
    float value[2];
    cr_assert(kiln_read(bad, KILN_F32, value, sizeof *value) == KILN_BAD_INDEX);
    cr_assert(strstr(kiln_error_message(), place) && strstr(kiln_error_message(), "kiln_read: ") && strstr(kiln_error_message(), "index 5"),
              "%s", kiln_error_message());
    cr_assert(kiln_read(bad, KILN_F32, value, sizeof *value) == KILN_BAD_INDEX && !strstr(kiln_error_message(), place), "%s",
              kiln_error_message());
    cr_assert(kiln_wait(kiln_neg(from_it)) == KILN_BAD_INDEX, "what is computed from it fails by itself");
    EXPECT(good, KILN_F32, KILN_SHAPE(2), 0, 2, 4);
    kiln_clear_error();
}

/* Where no other thread may: under a mode. */
Test(async, at_once, .timeout = HANGS_AFTER(60))
{
    kiln_mode *mode = kiln_finite_check_push();
    kiln_tensor *x = kiln_exp(F32(KILN_SHAPE(1), 0));
    queue(x);
    cr_assert(kiln_is_evaluated(x));
    kiln_tensor *bad = kiln_log(F32(KILN_SHAPE(1), 0));
    cr_assert(kiln_eval_async(bad) != KILN_OK, "the mode sees it");
    cr_assert(kiln_mode_pop(mode) == KILN_OK);
}

/* 64 wait, the 65th does not. */
Test(async, a_full_queue, .timeout = HANGS_AFTER(60))
{
    kiln_tensor *work = busy(), *x = F32(KILN_SHAPE(2), 1, 2), *y[64];
    for (int k = 0; k < 64; k++)
        queue(y[k] = kiln_add(x, kiln_scalar(k)));
    sem_post(&may_go); /* it computes under the lock, so the next call waits for that */
    kiln_tensor *last = kiln_add(x, kiln_scalar(64));
    queue(last);
    EXPECT(last, KILN_F32, KILN_SHAPE(2), 0, 65, 66);
    for (int k = 63; k >= 0; k--)
        EXPECT(y[k], KILN_F32, KILN_SHAPE(2), 0, k + 1, k + 2);
    cr_assert(kiln_wait(work) == KILN_OK);
}

/* The loss and what was assigned from its gradients are one program, as at kiln_eval: nothing is computed twice. */
static void train(bool async, double *loss, float *weights, long long *compiles, long long *evals)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(3, 1), 0.5, -1, 2)), *x = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *g;
    cr_assert(kiln_eval(kiln_zeros(KILN_F32, KILN_SHAPE(1))) == KILN_OK);
    kiln_reset_stats();
    for (int step = 0; step < 20; step++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *now = kiln_mean(kiln_square(kiln_matmul(x, w)));
        cr_assert(kiln_grad(now, &w, 1, &g) == KILN_OK);
        cr_assert(kiln_assign(w, kiln_sub(w, kiln_mul(g, kiln_scalar(0.01)))) == KILN_OK);
        cr_assert((async ? kiln_eval_async(now) : kiln_eval(now)) == KILN_OK);
        cr_assert(kiln_item(now, &loss[step]) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
    }
    cr_assert(kiln_read(w, KILN_F32, weights, 3 * sizeof *weights) == KILN_OK);
    kiln_stats stats = stats_now();
    *compiles = stats.compiles;
    *evals = stats.evals;
}

Test(async, with_its_gradients, .timeout = HANGS_AFTER(60))
{
    double loss[2][20];
    float weights[2][3];
    long long compiles[2], evals[2];
    set_option("cache", "off");
    for (int async = 0; async < 2; async++)
        train(async, loss[async], weights[async], &compiles[async], &evals[async]);
    cr_assert(memcmp(loss[0], loss[1], sizeof loss[0]) == 0 && memcmp(weights[0], weights[1], sizeof weights[0]) == 0);
    cr_assert(evals[0] == 20 && evals[1] <= evals[0], "%lld, %lld evaluations", evals[0], evals[1]);
    cr_assert_eq(compiles[1], 0, "%lld programs more", compiles[1]);
}

/* A child has what was queued, under way too, and computes it itself. */
Test(async, fork, .timeout = HANGS_AFTER(60))
{
    if (!CHILD_MAY_ALLOCATE)
        return;
    kiln_tensor *x = kiln_arange(KILN_F32, 0, 100000, 1), *y[20];
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < 20; k++)
            queue(y[k] = kiln_add(kiln_sum(kiln_sin(kiln_add(x, kiln_scalar(k)))), kiln_scalar(round)));
        pid_t child = fork();
        if (child == 0) {
            double value;
            kiln_tensor *more = kiln_add(x, kiln_scalar(round));
            test_seconds(20);
            for (int k = 0; k < 20; k++)
                if (kiln_item(y[k], &value) != KILN_OK)
                    _exit(1);
            _exit(kiln_eval_async(more) == KILN_OK && kiln_wait(more) == KILN_OK ? 0 : 2);
        }
        int status = -1;
        cr_assert(child > 0 && waitpid(child, &status, 0) == child);
        cr_assert(status == 0, "child %d: %x", round, (unsigned)status);
        for (int k = 0; k < 20; k++)
            cr_assert(kiln_wait(y[k]) == KILN_OK);
    }
}

static void *wait_for(void *x)
{
    kiln_status status = kiln_wait(x);
    pthread_testcancel();
    return status == KILN_OK ? NULL : x;
}

/* It takes effect when the wait is over; others go on. */
Test(async, a_thread_that_waits_is_cancelled, .timeout = HANGS_AFTER(60))
{
    pthread_t thread;
    void *result = NULL;
    kiln_tensor *x = busy(), *y = kiln_neg(x);
    cr_assert(pthread_create(&thread, NULL, wait_for, kiln_retain(x)) == 0);
    usleep(50000); /* it sleeps by now */
    cr_assert(pthread_cancel(thread) == 0);
    usleep(50000);
    queue(y);
    sem_post(&may_go);
    cr_assert(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    EXPECT(y, KILN_F32, KILN_SHAPE(3), 0, -1, -2, -3);
    kiln_release(x);
}

typedef struct Asked {
    kiln_tensor *x;
    kiln_status status;
    int lines;
} Asked;

static void ask(void *user, int level, const char *topic, const char *line)
{
    Asked *asked = user;
    float value[3];
    (void)level, (void)topic, (void)line;
    asked->status = kiln_read(asked->x, KILN_F32, value, sizeof value);
    asked->lines++;
}

/* A sink, whom the other thread may wait for, does not wait for that. */
Test(async, a_sink_is_refused, .timeout = HANGS_AFTER(60))
{
    Asked asked = {.x = busy()};
    kiln_set_log_sink(ask, &asked);
    kiln_mode *mode = kiln_log_ops_push();
    (void)kiln_exp(F32(KILN_SHAPE(1), 0));
    cr_assert(kiln_mode_pop(mode) == KILN_OK);
    kiln_set_log_sink(NULL, NULL);
    cr_assert(asked.lines > 0 && asked.status == KILN_INVALID, "%d lines, %d", asked.lines, asked.status);
    sem_post(&may_go);
    EXPECT(asked.x, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
}

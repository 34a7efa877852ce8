/*
 * Evaluations that take no lock (runtime/eval/lock.c, "inside"), in several threads that have run their programs before: of inputs that all share, few and
 * more than a walk keeps a list of; of pending nodes that are handed on while others are made of them; in place; with an index out of bounds; with memory whose
 * deleter asks for a computation when an evaluation lets go of it; while gradients, compiles, full caches and forks need the lock. A plain program, so
 * that it also runs under ThreadSanitizer. Argument: the number of rounds.
 */
#include "kiln.h"
#include "tests/threads/run_threads.h"
#include "tests/support/sanitizer.h"
#include "tests/support/stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, WEIGHTS = 24, N = 50, LONG = 50000, SIDE = 900, TRIES = 36, GOOD = 5 };

static int rounds = 400;
static bool full; /* the cache is */
static atomic_int failures, deleted;
static kiln_tensor *weight[WEIGHTS]; /* evaluated; [k] is k + 1 everywhere */
static kiln_tensor *long_weight;
static kiln_tensor *_Atomic handed[THREADS];

static void wrong(const char *what, int thread, int round, double got, double expected)
{
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "thread %d round %d: %s: %g, expected %g (%s)\n", thread, round, what, got, expected, kiln_error_message());
}

static void expect(kiln_tensor *x, double expected, const char *what, int thread, int round)
{
    double got = -1;
    if (kiln_item(kiln_max(x), &got) != KILN_OK || got != expected || kiln_item(kiln_min(x), &got) != KILN_OK || got != expected)
        wrong(what, thread, round, got, expected);
}

/* One scope, one evaluation of few nodes: what nearly all threads do nearly always. */
static void plain(int thread, int round)
{
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(N), thread);
    if (kiln_eval(x) != KILN_OK)
        wrong("an input", thread, round, 0, 0);
    kiln_tensor *y = kiln_add(kiln_mul(x, weight[round % WEIGHTS]), weight[thread]);
    if (kiln_eval(y) != KILN_OK)
        wrong("a sync point", thread, round, 0, 0);
    expect(y, thread * (1 + round % WEIGHTS) + thread + 1, "weights of all", thread, round);
    kiln_call_report report = {.size = sizeof report};
    if (kiln_last_call(&report) != KILN_OK || report.source == KILN_CALL_NOTHING || report.source == KILN_CALL_INTERPRETED)
        wrong("where the program came from", thread, round, report.source, KILN_CALL_MEMORY);
}

static void many_weights(int thread, int round)
{
    kiln_tensor *sum = kiln_scalar(0);
    for (int k = 0; k < WEIGHTS; k++)
        sum = kiln_add(sum, weight[(k + round) % WEIGHTS]);
    expect(sum, WEIGHTS * (WEIGHTS + 1) / 2, "more inputs of another thread than are listed", thread, round);
}

/* Each result is made of what the neighbour handed on, pending or computed meanwhile, and handed on in its turn: values count the hands. */
static void hand_on(int thread, int round)
{
    kiln_tensor *from = atomic_exchange(&handed[thread], NULL);
    kiln_tensor *to = from ? kiln_add(from, kiln_int(1)) : kiln_sqrt(long_weight);
    kiln_tensor *mine = kiln_mul(kiln_sqrt(kiln_mul(to, to)), kiln_int(2)); /* both threads need `to`, for some time */
    kiln_retain(to);
    if (round % 8 == 7) { /* not for ever */
        kiln_release(to);
        kiln_release(from);
        return;
    }
    kiln_tensor *lost = atomic_exchange(&handed[(thread + 1) % THREADS], to);
    double first = -1, twice = -1, again = -1;
    if (round % 2 && kiln_eval_async(mine) != KILN_OK)
        wrong("queueing", thread, round, 0, 0);
    if (kiln_item(kiln_max(mine), &twice) != KILN_OK || kiln_item(kiln_max(to), &first) != KILN_OK || twice != 2 * first ||
        first != (double)(int64_t)first || first < 1)
        wrong("what was handed on", thread, round, twice, 2 * first);
    if (from && (kiln_item(kiln_max(from), &again) != KILN_OK || again != first - 1))
        wrong("what was handed here", thread, round, again, first - 1);
    kiln_release(lost);
    kiln_release(from);
}

static void in_place(int thread, int round)
{
    kiln_tensor *p = kiln_full(KILN_F32, KILN_SHAPE(N), 1);
    for (int k = 0; k < 5; k++) {
        kiln_scope *scope = kiln_scope_begin();
        if (kiln_assign(p, kiln_add(p, kiln_cast(kiln_full(KILN_F32, KILN_SHAPE(), thread), KILN_F32))) != KILN_OK ||
            kiln_eval(p) != KILN_OK)
            wrong("an update", thread, round, 0, 0);
        kiln_scope_end(scope);
    }
    expect(p, 1 + 5 * thread, "updates in place", thread, round);
}

static void out_of_bounds(int thread, int round)
{
    int32_t at[2] = {1, round % 3 ? 1 : N};
    double got = -1;
    kiln_tensor *x = kiln_sum(kiln_take(weight[3], kiln_from(KILN_I32, KILN_SHAPE(2), at), 0));
    kiln_status status = kiln_item(x, &got);
    if (round % 3 ? status != KILN_OK || got != 8 : status != KILN_BAD_INDEX || !strstr(kiln_error_message(), "inside.c"))
        wrong("indices", thread, round, got, 8);
}

/* A deleter may look at what is computed, but not compute. */
static void computes(void *data, void *user)
{
    double got = -1;
    kiln_scope *scope = kiln_scope_begin();
    if (user && kiln_item(kiln_add(kiln_scalar(1), kiln_scalar(2)), &got) != KILN_INVALID)
        wrong("what a deleter computes", -1, 0, got, -1);
    kiln_clear_error();
    kiln_scope_end(scope);
    free(data);
    atomic_fetch_add(&deleted, 1);
}

static void lets_go(int thread, int round)
{
    kiln_tensor *y[2];
    kiln_scope *scope = kiln_scope_begin();
    for (int k = 0; k < 2; k++) {
        float *data = malloc(sizeof *data * N);
        for (int i = 0; data && i < N; i++)
            data[i] = (float)(thread + k);
        y[k] = kiln_keep(kiln_add(kiln_wrap(KILN_F32, KILN_SHAPE(N), data, computes, data), kiln_int(1)));
    }
    kiln_scope_end(scope); /* only what is pending holds the memory now */
    if (kiln_eval_many(y, 2) != KILN_OK)
        wrong("two values", thread, round, 0, 0);
    expect(y[0], thread + 1, "of wrapped memory", thread, round);
    expect(y[1], thread + 2, "of wrapped memory", thread, round);
}

/* What needs the lock. */
static void locked(int thread, int round)
{
    kiln_tensor *p = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(N), thread)), *grad = NULL;
    if (kiln_grad(kiln_sum(kiln_mul(p, kiln_mul(p, weight[1]))), &p, 1, &grad) != KILN_OK)
        wrong("a gradient", thread, round, 0, 0);
    expect(grad, 4.0 * thread, "a gradient", thread, round);
    kiln_tensor *other = kiln_sum(kiln_full(KILN_F32, KILN_SHAPE(1 + round % 7, 1 + thread), 1)); /* sizes that are new at first */
    expect(other, (1 + round % 7) * (1 + thread), "another size", thread, round);
}

/* A graph that nobody had before: its number in binary, as ops. */
static void never_seen(int thread, int round)
{
    static atomic_int numbers;
    double expected = 1;
    kiln_tensor *x = kiln_mul(weight[0], kiln_int(1));
    for (int number = 1 + atomic_fetch_add(&numbers, 1); number; number /= 2) {
        x = number % 2 ? kiln_add(x, weight[1]) : kiln_maximum(x, weight[0]);
        expected += number % 2 ? 2 : 0;
    }
    expect(x, expected, "a new graph", thread, round);
}

static void *work(void *user)
{
    int thread = *(int *)user;
    for (int round = 0; round < rounds; round++) {
        static void (*const pieces[])(int, int) = {plain, many_weights, hand_on, in_place, out_of_bounds, lets_go, locked};
        kiln_scope *scope = kiln_scope_begin();
        for (int k = 0; k < 6; k++)
            pieces[k](thread, round);
        if (round % 16 == thread)
            locked(thread, round);
        if (full)
            never_seen(thread, round);
        if (CHILD_MAY_ALLOCATE && thread == 0 && round % 64 == 63) {
            int status = 1;
            pid_t child = fork();
            if (child == 0) {
                atomic_store(&failures, 0);
                for (int again = 0; again < 3; again++)
                    plain(thread, round);
                _exit(atomic_load(&failures) != 0);
            }
            if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
                wrong("a child", thread, round, status, 0);
        }
        kiln_scope_end(scope);
    }
    return NULL;
}

/* --- a pending node that two threads need is computed once, though both could go inside ----------------------------------------- */

static kiln_tensor *square; /* SIDE x SIDE, evaluated */
static bool both;           /* the helper evaluates two values */
static atomic_bool begun;

static kiln_tensor *product(void) { return kiln_matmul(square, square); }

static void *help(void *user)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *p = user ? user : product(), *two[2] = {kiln_add(p, kiln_int(1)), p};
    atomic_store(&begun, true);
    if (both ? kiln_eval_many(two, 2) != KILN_OK : kiln_eval(p) != KILN_OK)
        wrong("a product", 1, 0, 0, 0);
    kiln_scope_end(scope);
    return NULL;
}

static void start(pthread_t *thread, kiln_tensor *p)
{
    atomic_store(&begun, false);
    if (pthread_create(thread, NULL, help, p) != 0)
        exit(2);
}

/* The bytes that the two move, who need one product: one after the other, or the second while the first is at it. */
static int64_t moved(bool concurrent)
{
    pthread_t thread;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *p = product(), *needs = both ? p : kiln_sum(p);
    int64_t before = stats_now().bytes_moved;
    start(&thread, p);
    while (concurrent && !atomic_load(&begun))
        usleep(100);
    if (concurrent)
        usleep(5000); /* of some 20 ms */
    else
        pthread_join(thread, NULL);
    if (kiln_eval(needs) != KILN_OK)
        wrong("of a product", 0, 0, 0, 0);
    if (concurrent)
        pthread_join(thread, NULL);
    kiln_scope_end(scope);
    return stats_now().bytes_moved - before;
}

static void once(void)
{
    pthread_t thread;
    for (int mode = 0; mode < 2; mode++) {
        both = mode;
        for (int k = 0; k < 2; k++) { /* each has run the program before */
            kiln_scope *scope = kiln_scope_begin();
            start(&thread, NULL);
            pthread_join(thread, NULL);
            if (kiln_eval(both ? product() : kiln_sum(product())) != KILN_OK)
                wrong("of a product", 0, 0, 0, 0);
            kiln_scope_end(scope);
        }
        int64_t live = stats_now().live_bytes, expected = moved(false);
        int good = 0;
        for (int k = 0; k < TRIES && good < GOOD; k++) /* on a busy machine the helper is often not the first */
            good += moved(true) == expected;
        if (good < GOOD)
            wrong("how often a product that two need was computed once", mode, 0, good, GOOD);
        if (stats_now().live_bytes != live)
            wrong("live bytes", mode, 0, (double)stats_now().live_bytes, (double)live);
    }
}

static void all(void)
{
    int64_t live = stats_now().live_bytes;
    run_threads(THREADS, work);
    for (int i = 0; i < THREADS; i++)
        kiln_release(atomic_exchange(&handed[i], NULL));
    for (int k = 0; k < 60000 && stats_now().live_bytes != live; k++) /* what was queued is let go of when its turn comes */
        usleep(1000);
    if (stats_now().live_bytes != live) /* a value that was published twice is never freed */
        wrong("live bytes", -1, 0, (double)stats_now().live_bytes, (double)live);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    for (int k = 0; k < WEIGHTS; k++)
        weight[k] = kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(N), k + 1));
    long_weight = kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(LONG), 1));
    square = kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(SIDE, SIDE), 1));
    if (kiln_eval(square) != KILN_OK || kiln_eval_many(weight, WEIGHTS) != KILN_OK || kiln_eval(long_weight) != KILN_OK)
        return 2;
    if (kiln_set_option("threads", "1") != KILN_OK)
        return 2;
    once();
    kiln_stats before = stats_now();
    all();
    if (stats_now().evals - before.evals != stats_now().hits + stats_now().misses - before.hits - before.misses)
        wrong("hits and misses", -1, 0, (double)(stats_now().hits + stats_now().misses), (double)stats_now().evals);
    if (atomic_load(&deleted) != THREADS * rounds * 2)
        wrong("blocks of memory given back", -1, 0, atomic_load(&deleted), THREADS * rounds * 2);
    rounds = 4;
    int64_t misses = stats_now().misses;
    if (kiln_set_option("cache_bytes", "1") != KILN_OK ||
        kiln_set_option("cache", "off") != KILN_OK) /* programs come and go: nobody may use one that went */
        return 2;
    full = true;
    all();
    if (stats_now().misses - misses < 2 * rounds * THREADS) /* the new ones, and as many again that had gone */
        wrong("misses of a full cache", -1, 0, (double)(stats_now().misses - misses), 2 * rounds * THREADS);
    if (stats_now().fallbacks)
        wrong("fall-backs", -1, 0, (double)stats_now().fallbacks, 0);
    for (int k = 0; k < WEIGHTS; k++)
        kiln_release(weight[k]);
    kiln_release(long_weight);
    kiln_release(square);
    if (atomic_load(&failures) == 0)
        puts("all results right");
    return atomic_load(&failures) != 0;
}

/*
 * kiln_functions that several threads repeat without a lock (runtime/function/replay.c), short ones and long ones, of prepared programs and of others,
 * shared and each thread's own, while what they are repeated by is dropped (more kinds of inputs than a function remembers, options that are set,
 * programs that leave the cache), while gradients and forks keep all others out, with inputs whose deleters call functions, with captured tensors,
 * random draws, indices out of bounds. Every value is right, on a CUDA device, too. A plain program, so that it also runs under ThreadSanitizer.
 * Argument: the number of rounds.
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

enum { THREADS = 4, SHORT = 16, MOST = 20000, KINDS = 70, CALLS = 20 };

static int rounds = 60, large = MOST;
static bool on_cuda; /* where a child has no device */
static atomic_int failures, deleted, traced;
static atomic_bool drops; /* what is repeated comes and goes */
static kiln_function *shared, *sorting;
static kiln_tensor *captured; /* 3 everywhere */

static void wrong(const char *what, int thread, int round, double got, double expected)
{
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "thread %d round %d: %s: %g, expected %g (%s)\n", thread, round, what, got, expected, kiln_error_message());
}

/* 2 x + 3, and x itself. */
static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    atomic_fetch_add(&traced, 1);
    out[0] = kiln_add(kiln_mul(in[0], kiln_int(2)), captured);
    out[1] = in[0];
}

static void only_made(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(in[0], kiln_int(2)), captured);
}

/* The same, sorted: more than a prepared program does. */
static void sorts(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_sort(kiln_mul(in[0], kiln_int(2)), 0, false), captured);
}

static void count(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    carry_out[0] = kiln_relu(kiln_add(carry[0], kiln_int(1)));
}

/* The same, in three steps of a loop. */
static void loops(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *twice = kiln_mul(in[0], kiln_int(2));
    if (kiln_scan(count, 3, 0, 1, &twice, out, 0, NULL, 0, NULL, NULL) != KILN_OK)
        out[0] = NULL;
}

static void takes(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_take(in[0], in[1], 0);
}

static void draws(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], kiln_uniform(KILN_F32, KILN_SHAPE(SHORT), 0, 1));
}

static bool all_are(const kiln_tensor *x, float expected)
{
    static _Thread_local float got[MOST];
    int64_t n = kiln_rank(x) ? kiln_dim(x, 0) : 1;
    if (kiln_read((kiln_tensor *)(uintptr_t)x, KILN_F32, got, (size_t)n * sizeof *got) != KILN_OK)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (got[i] != expected)
            return false;
    return true;
}

static void call(kiln_function *f, int n_out, int64_t n, int thread, int round)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(n), thread + 1), *out[2] = {NULL};
    if (kiln_eval(x) != KILN_OK)
        wrong("an input", thread, round, 0, 0);
    for (int k = 0; k < CALLS; k++) {
        kiln_scope *inner = kiln_scope_begin();
        if (kiln_function_call(f, &x, out) != KILN_OK || !all_are(out[0], (float)(2 * (thread + 1) + 3)) ||
            (n_out > 1 && !all_are(out[1], (float)(thread + 1))))
            wrong("a function", thread, round, (double)n, 2 * (thread + 1) + 3);
        kiln_call_report report = {.size = sizeof report};
        if (kiln_last_call(&report) != KILN_OK || report.source == KILN_CALL_NOTHING || report.source == KILN_CALL_INTERPRETED)
            wrong("where the program came from", thread, round, report.source, KILN_CALL_MEMORY);
        kiln_scope_end(inner);
    }
    kiln_scope_end(scope);
}

static void draw(kiln_function *f, int thread, int round)
{
    float a[SHORT], b[SHORT];
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(SHORT)), *one, *other;
    if (kiln_eval(x) != KILN_OK || kiln_function_call(f, &x, &one) != KILN_OK || kiln_function_call(f, &x, &other) != KILN_OK ||
        kiln_read(one, KILN_F32, a, sizeof a) != KILN_OK || kiln_read(other, KILN_F32, b, sizeof b) != KILN_OK ||
        memcmp(a, b, sizeof a) == 0)
        wrong("draws", thread, round, 0, 0);
    kiln_scope_end(scope);
}

/* Every other index is out of bounds: the call says so, or on a CUDA device who reads what it gave. */
static void take(kiln_function *f, int thread, int round)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[2] = {kiln_full(KILN_F32, KILN_SHAPE(SHORT), thread), NULL}, *out;
    float got[2] = {-1, -1};
    if (kiln_eval(in[0]) != KILN_OK)
        wrong("an input", thread, round, 0, 0);
    for (int k = 0; k < 6; k++) {
        const int32_t index[2] = {0, k % 2 ? SHORT : SHORT - 1};
        in[1] = kiln_from(KILN_I32, KILN_SHAPE(2), index);
        kiln_status status = kiln_function_call(f, in, &out), expected = k % 2 ? KILN_BAD_INDEX : KILN_OK;
        if (status == KILN_OK)
            status = kiln_read(out, KILN_F32, got, sizeof got);
        if (status != expected || (status == KILN_OK && got[1] != (float)thread))
            wrong("a function that takes", thread, round, got[1], thread);
        kiln_clear_error();
    }
    kiln_scope_end(scope);
}

/* More kinds of inputs than a function remembers: the oldest goes, while other threads repeat it. */
static void other_kinds(kiln_function *f, int thread, int round)
{
    for (int k = 0; k < KINDS && atomic_load(&drops); k++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(1 + k), thread + 1), *out[2] = {NULL};
        if (kiln_function_call(f, &x, out) != KILN_OK || !all_are(out[0], (float)(2 * (thread + 1) + 3)))
            wrong("another kind", thread, round, k, 0);
        kiln_scope_end(scope);
    }
}

/* The last value of what is wrapped here is let go of by a call. */
static void calls_again(void *data, void *user)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = captured, *out[2] = {NULL};
    if (kiln_function_call(user, &x, out) == KILN_OK && !all_are(out[0], 9))
        wrong("a deleter's call", -1, 0, 0, 9);
    kiln_clear_error();
    kiln_scope_end(scope);
    free(data);
    atomic_fetch_add(&deleted, 1);
}

static void wrapped(kiln_function *f, int thread, int round)
{
    kiln_scope *scope = kiln_scope_begin();
    float *data = malloc(sizeof *data * SHORT);
    for (int i = 0; data && i < SHORT; i++)
        data[i] = (float)(thread + 1);
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(SHORT), data, calls_again, f), *out[2] = {NULL};
    if (on_cuda)
        x = kiln_to(x, "cuda");
    if (kiln_function_call(f, &x, out) != KILN_OK || !all_are(out[0], (float)(2 * (thread + 1) + 3)))
        wrong("of wrapped memory", thread, round, 0, 0);
    kiln_scope_end(scope);
}

static void keeps_out(int thread, int round)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *p = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(SHORT), thread)), *grad = NULL;
    if (kiln_grad(kiln_sum(kiln_mul(p, p)), &p, 1, &grad) != KILN_OK || !all_are(grad, (float)(2 * thread)))
        wrong("a gradient", thread, round, 0, 0);
    int status = 1;
    pid_t child = CHILD_MAY_ALLOCATE && !on_cuda && round % 8 == 0 ? fork() : -1;
    if (child == 0) {
        atomic_store(&failures, 0);
        call(shared, 2, SHORT, thread, round);
        _exit(atomic_load(&failures) != 0);
    }
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        wrong("a child", thread, round, status, 0);
    if (round % 4 == 0 && atomic_load(&drops) && kiln_set_option("max_variants", round % 8 ? "7" : "8") != KILN_OK)
        wrong("an option", thread, round, 0, 0);
    kiln_scope_end(scope);
}

static void *work(void *user)
{
    int thread = *(int *)user;
    kiln_function *own = kiln_function_new(only_made, 1, 1, NULL), *random = kiln_function_new(draws, 1, 1, NULL);
    kiln_function *looping = kiln_function_new(loops, 1, 1, NULL), *taking = kiln_function_new(takes, 2, 1, NULL);
    for (int round = 0; round < rounds; round++) {
        call(shared, 2, SHORT, thread, round);
        call(own, 1, SHORT, thread, round);
        call(own, 1, large, thread, round);
        call(shared, 2, large, thread, round);
        call(sorting, 1, SHORT, thread, round);
        call(looping, 1, SHORT, thread, round);
        take(taking, thread, round);
        draw(random, thread, round);
        wrapped(own, thread, round);
        if (thread == 0 && round % 4 == 1)
            other_kinds(shared, thread, round);
        if (thread == 1 && round % 4 == 1)
            keeps_out(thread, round);
    }
    kiln_function_free(own);
    kiln_function_free(random);
    kiln_function_free(looping);
    kiln_function_free(taking);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    on_cuda = getenv("KILN_DEVICE") && strcmp(getenv("KILN_DEVICE"), "cuda") == 0;
    if (on_cuda)
        large = 300; /* the driver made of software takes its time */
    captured = kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(), 3));
    shared = kiln_function_new(body, 1, 2, NULL);
    sorting = kiln_function_new(sorts, 1, 1, NULL);
    if (!shared || !sorting || kiln_eval(captured) != KILN_OK || kiln_set_option("threads", "1") != KILN_OK)
        return 2;
    kiln_stats before = stats_now();
    run_threads(THREADS, work);
    kiln_stats after = stats_now();
    if (after.evals - before.evals != after.hits + after.misses - before.hits - before.misses)
        wrong("hits and misses", -1, 0, (double)(after.hits + after.misses), (double)after.evals);
    atomic_store(&drops, true);
    run_threads(THREADS, work);
    if (kiln_set_option("cache_bytes", "1") != KILN_OK)
        return 2;
    rounds = rounds > 8 ? 8 : rounds;
    run_threads(THREADS, work);
    if (atomic_load(&deleted) == 0)
        wrong("blocks of memory given back", -1, 0, 0, 1);
    kiln_function_free(shared);
    kiln_function_free(sorting);
    kiln_release(captured);
    if (atomic_load(&failures) == 0)
        puts("all results right");
    return atomic_load(&failures) != 0;
}

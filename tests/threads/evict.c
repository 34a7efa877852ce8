/*
 * Programs leave the cache while they run: threads compile, launch and evict at once, with room for about two programs. Every
 * result is right, nothing that runs is unmapped, and each thread's own tensors outlive the programs that made them. Without
 * Criterion, so that it also runs under ThreadSanitizer.
 */
#include "kiln.h"
#include "tests/threads/run_threads.h"
#include "tests/support/stats.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 25, STRUCTURES = 6, N = 70000 };

static atomic_int failures;
static kiln_function *shared; /* called from all threads: it remembers its last program, which may be gone */

static void axpy(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(in[0], kiln_scalar(3)), in[1]);
}

static void check(double got, double want, int thread, int round, const char *what)
{
    if (got == want)
        return;
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "thread %d round %d: %s is %g, expected %g (%s)\n", thread, round, what, got, want, kiln_error_message());
}

/* `depth` additions of 1 to ones, as one structure; large enough for the pool, so that the run takes a while. */
static kiln_tensor *structure(kiln_tensor *ones, int depth)
{
    kiln_tensor *x = ones;
    for (int i = 0; i < depth; i++)
        x = kiln_add(x, ones);
    return kiln_max(x);
}

static void *work(void *number)
{
    int thread = *(int *)number;
    kiln_scope *outer = kiln_scope_begin();
    kiln_tensor *ones = kiln_ones(KILN_F32, KILN_SHAPE(N)), *held[STRUCTURES] = {NULL};
    if (kiln_eval(ones) != KILN_OK)
        atomic_fetch_add(&failures, 1);
    for (int round = 0; round < ROUNDS; round++) {
        kiln_scope *scope = kiln_scope_begin();
        int depth = (round + thread) % STRUCTURES;
        double value = NAN;
        kiln_tensor *result = structure(ones, depth);
        check(kiln_item(result, &value) == KILN_OK ? value : NAN, depth + 1, thread, round, "a program's value");
        if (!held[depth])
            held[depth] = kiln_retain(result);
        kiln_tensor *in[2] = {ones, result}, *out[1];
        if (kiln_function_call(shared, in, out) != KILN_OK || kiln_item(kiln_min(out[0]), &value) != KILN_OK)
            value = NAN;
        check(value, 3 + depth + 1, thread, round, "a function's value");
        kiln_scope_end(scope);
    }
    for (int depth = 0; depth < STRUCTURES; depth++) {
        double value = NAN;
        if (held[depth] && kiln_item(held[depth], &value) == KILN_OK)
            check(value, depth + 1, thread, ROUNDS, "an old result");
        kiln_release(held[depth]);
    }
    kiln_scope_end(outer);
    return NULL;
}

int main(void)
{
    if (kiln_set_option("cache_bytes", "30000") != KILN_OK || !(shared = kiln_function_new(axpy, 2, 1, NULL)))
        return 2;
    run_threads(THREADS, work);
    kiln_function_free(shared);
    kiln_stats stats = stats_now();
    printf("%d failures, %d compiles of %d structures\n", atomic_load(&failures), (int)stats.compiles, STRUCTURES + 2);
    if (stats.compiles < 2 * STRUCTURES || stats.fallbacks) {
        fprintf(stderr, "%d compiles: nothing was evicted; %d fallbacks\n", (int)stats.compiles, (int)stats.fallbacks);
        return 1;
    }
    return atomic_load(&failures) != 0;
}

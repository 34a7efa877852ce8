/*
 * Two threads that evaluate the same graphs at the same time, many times, with sizes that make programs compile while others run:
 * every result is right. A plain program, so that it also runs under ThreadSanitizer. Argument: the number of rounds.
 */
#include "kiln.h"
#include "tests/support/stats.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 3, MOST = 400 };

static int rounds = 240;

static atomic_int failures;
static kiln_tensor *shared_input;   /* evaluated, read by all */
static kiln_tensor *shared_pending; /* whoever is first computes it */

static float input(int64_t i) { return (float)((i * 37) % 101) * 0.03f - 1.5f; }

static void fail_at(int thread, int round, const char *what, double got, double wanted)
{
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "thread %d round %d: %s: %g, expected %g (%s)\n", thread, round, what, got, wanted, kiln_error_message());
}

/* relu(x * s + 1), its sum, and the greatest element. */
static void one_round(int thread, int round)
{
    float data[MOST], got[MOST];
    int64_t n = 1 + (round * 7) % MOST;
    double s = 0.5 + 0.1 * (round % 9), sum = 0, most = 0, total, greatest;
    for (int64_t i = 0; i < n; i++)
        data[i] = input(i + thread);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(n), data);
    kiln_tensor *y = kiln_relu(kiln_add(kiln_mul(x, kiln_scalar(s)), kiln_int(1)));
    kiln_tensor *two[2] = {kiln_sum(y), kiln_max(y)};
    if (kiln_eval_many(two, 2) != KILN_OK || kiln_item(two[0], &total) != KILN_OK || kiln_item(two[1], &greatest) != KILN_OK ||
        kiln_read(y, KILN_F32, got, (size_t)n * sizeof *got) != KILN_OK) {
        fail_at(thread, round, "a sync point failed", 0, 0);
    } else {
        for (int64_t i = 0; i < n; i++) {
            double wanted = fmax((double)data[i] * s + 1, 0);
            if (fabs((double)got[i] - wanted) > 1e-5)
                fail_at(thread, round, "element", (double)got[i], wanted);
            sum += wanted;
            most = fmax(most, wanted);
        }
        if (fabs(total - sum) > 1e-4 * (1 + sum))
            fail_at(thread, round, "sum", total, sum);
        if (fabs(greatest - most) > 1e-5)
            fail_at(thread, round, "max", greatest, most);
    }
    kiln_scope_end(scope);
}

static void share(int thread, int round)
{
    double got = 0, pending = 0;
    kiln_scope *scope = kiln_scope_begin();
    if (kiln_item(kiln_sum(kiln_mul(shared_input, kiln_int(2))), &got) != KILN_OK || got != 2000)
        fail_at(thread, round, "shared input", got, 2000);
    if (kiln_item(shared_pending, &pending) != KILN_OK || pending != 3000)
        fail_at(thread, round, "shared pending value", pending, 3000);
    kiln_scope_end(scope);
}

static void running_sum(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    carry_out[0] = kiln_add(carry[0], x[0]);
    y[0] = carry_out[0];
}

/* The results of one loop in the hands of two threads: one evaluates its result, the other reads or lets go of the other, which the loop
 * computes as long as somebody has it. */
static kiln_tensor *_Atomic handed_over;

static void loops(int thread, int round)
{
    kiln_scope *scope = kiln_scope_begin(), *inner = kiln_scope_begin();
    int64_t n = 1 + round % 9;
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE()), *xs = kiln_ones(KILN_F32, KILN_SHAPE(n)), *last, *ys;
    double got = 0;
    if (kiln_scan(running_sum, -1, 0, 1, &zero, &last, 1, &xs, 1, &ys, NULL) != KILN_OK) {
        fail_at(thread, round, "a loop", 0, 0);
        kiln_scope_end(inner);
    } else {
        kiln_retain(ys); /* from now on nobody has it but who takes it */
        kiln_keep(last);
        kiln_scope_end(inner);
        kiln_tensor *other = atomic_exchange(&handed_over, ys);
        if (kiln_item(last, &got) != KILN_OK || got != (double)n)
            fail_at(thread, round, "the end of a loop", got, (double)n);
        double most = other ? (double)kiln_dim(other, 0) : 0;
        if (other && round % 3 == 0 && (kiln_item(kiln_max(other), &got) != KILN_OK || got != most))
            fail_at(thread, round, "what another thread's loop gave", got, most);
        kiln_release(other);
    }
    kiln_scope_end(scope);
}

static void *work(void *user)
{
    int thread = *(int *)user;
    for (int round = 0; round < rounds; round++) {
        one_round(thread, round);
        share(thread, round);
        loops(thread, round);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    pthread_t threads[THREADS];
    int numbers[THREADS];
    shared_input = kiln_retain(kiln_ones(KILN_F32, KILN_SHAPE(1000)));
    if (kiln_eval(shared_input) != KILN_OK)
        return 1;
    shared_pending = kiln_retain(kiln_sum(kiln_mul(shared_input, kiln_int(3))));
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0)
            return 1;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    kiln_stats stats = stats_now();
    if (stats.fallbacks || stats.compiles > 40) {
        fprintf(stderr, "fallbacks %d, compiles %d\n", (int)stats.fallbacks, (int)stats.compiles);
        atomic_fetch_add(&failures, 1);
    }
    kiln_release(shared_input);
    kiln_release(shared_pending);
    kiln_release(atomic_load(&handed_over));
    if (atomic_load(&failures) == 0)
        puts("all results right");
    return atomic_load(&failures) != 0;
}

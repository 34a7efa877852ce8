/*
 * Statistics of several threads, each of which counts for itself: the sums are those of all, of threads that ended, too, and in a forked child; the bytes
 * of tensors that one thread computes and another lets go of come and go; the peak is out by 64 KiB for each thread at most. A plain program, so that it
 * also runs under ThreadSanitizer.
 */
#include "kiln.h"
#include "tests/support/sanitizer.h"
#include "tests/support/stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, CALLS = 300, MOST = 40000, HELD = 40, HELD_ELEMENTS = 5000 };

static kiln_tensor *_Atomic handed[THREADS];
static atomic_int failures;
static int64_t ops; /* of a call */

static void check(const char *what, int64_t got, int64_t least, int64_t most)
{
    if (got >= least && got <= most)
        return;
    atomic_fetch_add(&failures, 1);
    fprintf(stderr, "%s: %lld, expected %lld to %lld\n", what, (long long)got, (long long)least, (long long)most);
}

static kiln_tensor *computed(int64_t n, double number)
{
    kiln_tensor *y = kiln_mul(kiln_ones(KILN_F32, KILN_SHAPE(n)), kiln_scalar(number));
    if (kiln_eval(y) != KILN_OK)
        atomic_fetch_add(&failures, 1);
    return y;
}

/* Sizes of every class that a thread keeps, and beyond. Each result goes to the next thread, which lets go of what it finds there. */
static void *work(void *user)
{
    int me = *(int *)user;
    for (int k = 0; k < CALLS; k++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = kiln_retain(computed(1 + (int64_t)k * k * MOST / (CALLS * CALLS), 2));
        kiln_release(atomic_exchange(&handed[(me + 1) % THREADS], y));
        kiln_release(atomic_exchange(&handed[me], NULL));
        kiln_scope_end(scope);
    }
    return NULL;
}

static void *hold(void *unused)
{
    (void)unused;
    kiln_scope *scope = kiln_scope_begin();
    for (int k = 0; k < HELD; k++)
        computed(HELD_ELEMENTS, 3);
    kiln_scope_end(scope);
    return NULL;
}

static void run(int n, void *(*function)(void *))
{
    pthread_t thread[THREADS];
    int number[THREADS];
    for (int i = 0; i < n; i++) {
        number[i] = i;
        if (pthread_create(&thread[i], NULL, function, &number[i]) != 0)
            exit(2);
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
}

static void all_counted(int64_t live)
{
    kiln_stats before = stats_now();
    run(THREADS, work);
    for (int i = 0; i < THREADS; i++)
        kiln_release(atomic_exchange(&handed[i], NULL));
    kiln_stats now = stats_now();
    check("sync points", now.evals - before.evals, THREADS * CALLS, THREADS * CALLS);
    check("hits and misses", now.hits + now.misses - before.hits - before.misses, THREADS * CALLS, THREADS * CALLS);
    check("kernels", now.kernels - before.kernels, THREADS * CALLS, THREADS * CALLS);
    check("ops", now.nodes - before.nodes, THREADS * CALLS * ops, THREADS * CALLS * ops);
    check("live bytes", now.live_bytes, live, live);
}

int main(void)
{
    kiln_scope *scope = kiln_scope_begin();
    int64_t before = stats_now().nodes;
    computed(10, 1);
    ops = stats_now().nodes - before;
    int64_t live = stats_now().live_bytes;
    all_counted(live);

    kiln_reset_stats();
    run(1, hold); /* beside this thread, which counts, too */
    int64_t held = live + HELD * HELD_ELEMENTS * 4;
    check("the peak", stats_now().peak_bytes, held - 2 * (64 << 10), held + 2 * (64 << 10));

    fflush(NULL);
    pid_t child = CHILD_MAY_ALLOCATE ? fork() : -1;
    if (child == 0) {
        all_counted(live);
        kiln_reset_stats();
        _exit(atomic_load(&failures) != 0);
    }
    int status = 1;
    if (CHILD_MAY_ALLOCATE && (child < 0 || waitpid(child, &status, 0) != child || status != 0))
        check("the child's status", status, 0, 0);
    kiln_scope_end(scope);
    if (atomic_load(&failures) == 0)
        puts("all is counted");
    return atomic_load(&failures) != 0;
}

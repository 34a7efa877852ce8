/*
 * KILN_ASYNC_COMPILE under load: three threads evaluate graphs of changing sizes while programs are compiled in the background,
 * swapped in and, since few bytes are allowed, evicted; the main thread forks and computes, too; the process exits in the middle of
 * a background compile. Every result is right. A plain program, so that it also runs under ThreadSanitizer.
 */
#include "kiln.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, ROUNDS = 70, FORKS = 4, MOST = 200 };

static atomic_int failures, at_work;
static kiln_tensor *ones; /* evaluated, read by all */

static void wrong(const char *what, double got, double wanted)
{
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "%s: %g, expected %g (%s)\n", what, got, wanted, kiln_error_message());
}

/* One of `kind` structures at n elements: sum(|x| * s + kind). */
static void one_round(int kind, int64_t n, double s)
{
    float data[MOST];
    double sum = 0, total = 0;
    for (int64_t i = 0; i < n; i++) {
        data[i] = (float)((i * 37) % 101) * 0.03f - 1.5f;
        sum += fabs((double)data[i]) * s + kind;
    }
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = kiln_mul(kiln_abs(kiln_from(KILN_F32, KILN_SHAPE(n), data)), kiln_scalar(s));
    for (int k = 0; k < kind; k++)
        y = kiln_add(y, kiln_int(1));
    if (kiln_item(kiln_sum(y), &total) != KILN_OK || fabs(total - sum) > 1e-4 * (1 + sum))
        wrong("sum", total, sum);
    kiln_scope_end(scope);
}

static void *work(void *user)
{
    int thread = *(int *)user;
    for (int round = 0; round < ROUNDS; round++)
        one_round((round + thread) % 5, 1 + (round * 7 + thread) % MOST, 0.5 + 0.1 * (round % 9));
    atomic_fetch_sub(&at_work, 1);
    return NULL;
}

static void child_computes(int k)
{
    double sum = 0;
    test_seconds(60);
    if (!CHILD_MAY_ALLOCATE)
        _exit(0);
    if (getenv("KILN_DEVICE")) /* a CUDA device is none of a child's: it is told so */
        _exit(kiln_item(kiln_sum(ones), &sum) != KILN_DEVICE);
    if (kiln_item(kiln_sum(ones), &sum) != KILN_OK || sum != 1000)
        _exit(1);
    one_round(6 + k, 10, 0.5);
    one_round(6 + k, 11, 0.5);
    _exit(atomic_load(&failures) != 0);
}

static void fork_once(int k)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        child_computes(k);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        wrong("status of a child", status, 0);
}

static void quiet(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic, (void)line; /* it recompiles often, and says so */
}

int main(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    double sum = 0;
    if (kiln_set_option("async_compile", "1") != KILN_OK || kiln_set_option("cache_bytes", "10000") != KILN_OK)
        return 1;
    kiln_set_log_sink(quiet, NULL);
    ones = kiln_retain(kiln_ones(KILN_F32, KILN_SHAPE(1000)));
    if (kiln_eval(ones) != KILN_OK || kiln_item(kiln_sum(ones), &sum) != KILN_OK || sum != 1000)
        return 1;
    atomic_store(&at_work, THREADS);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0)
            return 1;
    }
    for (int k = 0; k < FORKS && atomic_load(&at_work) > 0; k++) {
        usleep(10000);
        fork_once(k);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    kiln_stats stats;
    kiln_get_stats(&stats);
    for (int k = 0; k < 60000 && !stats.background_compiles && !stats.disk_loaded;
         k++) { /* on a busy machine that thread may not have begun */
        if (k % 5000 == 0)
            one_round(18 + k / 5000, 5, 0.25);
        usleep(1000);
        kiln_get_stats(&stats);
    }
    if (stats.fallbacks || (!stats.background_compiles && !stats.disk_loaded))
        wrong("fall-backs and background compiles", (double)stats.fallbacks, (double)stats.background_compiles);
    one_round(17, 5, 0.25); /* queues one more, which exit meets */
    printf("%d programs, %d of them in the background, %d hits, %d misses\n", (int)stats.compiles, (int)stats.background_compiles,
           (int)stats.hits, (int)stats.misses);
    if (atomic_load(&failures) == 0)
        puts("all results right");
    return atomic_load(&failures) != 0;
}

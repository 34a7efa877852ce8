/* The thread pool: every task once, whatever the grain and the threads; nesting; fork; shutdown. */
#include "runtime/eval/launch.h"
#include "runtime/eval/pool.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Count {
    atomic_uchar *seen;
    int64_t tasks, grain;
    int max_threads;
    atomic_int bad;
} Count;

static void count(void *count_, int64_t lo, int64_t hi, int thread)
{
    Count *c = count_;
    if (lo < 0 || hi > c->tasks || lo >= hi || hi - lo > c->grain || thread < 0 || thread >= c->max_threads)
        atomic_fetch_add(&c->bad, 1);
    for (int64_t i = lo; i < hi; i++)
        atomic_fetch_add(&c->seen[i], 1);
}

static void check(int64_t tasks, int64_t grain, int max_threads)
{
    Count c = {calloc((size_t)tasks + 1, 1), tasks, grain, max_threads, 0};
    pool_run(tasks, grain, max_threads, count, &c);
    cr_assert_eq(c.bad, 0, "tasks %ld grain %ld", (long)tasks, (long)grain);
    for (int64_t i = 0; i < tasks; i++)
        cr_assert_eq(c.seen[i], 1, "task %ld of %ld", (long)i, (long)tasks);
    free(c.seen);
}

Test(pool, every_task_once)
{
    static const int64_t tasks[] = {0, 1, 2, 7, 64, 1000, 100003}, grains[] = {1, 3, 64, 1000000};
    for (int threads = 0; threads <= 9; threads += 3) {
        pool_set_threads(threads);
        for (size_t t = 0; t < sizeof tasks / sizeof *tasks; t++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
                check(tasks[t], grains[g], 1 + (int)(t % 5));
    }
    pool_shutdown();
    check(1000, 1, 4);
    pool_shutdown();
    pool_shutdown();
}

Test(pool, threads_setting)
{
    pool_set_threads(5);
    cr_assert_eq(pool_threads(), 5);
    pool_set_threads(0);
    cr_assert_geq(pool_threads(), 1);
    pool_set_threads(-3);
    cr_assert_geq(pool_threads(), 1);
}

static void outer(void *inner, int64_t lo, int64_t hi, int thread)
{
    (void)thread;
    for (int64_t i = lo; i < hi; i++)
        pool_run(100, 10, 4, count, (Count *)inner + i);
}

Test(pool, nested_runs_inline, .timeout = HANGS_AFTER(30))
{
    enum { N = 20 };
    Count c[N];
    for (int i = 0; i < N; i++)
        c[i] = (Count){calloc(100, 1), 100, 10, 1, 0};
    pool_set_threads(4);
    pool_run(N, 1, 4, outer, c);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(c[i].bad, 0);
        for (int j = 0; j < 100; j++)
            cr_assert_eq(c[i].seen[j], 1);
        free(c[i].seen);
    }
}

static void *run_many(void *unused)
{
    for (int i = 0; i < 300; i++)
        check(500, 7, 4);
    return unused;
}

Test(pool, callers_take_turns, .timeout = HANGS_AFTER(60))
{
    pool_set_threads(3);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, run_many, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

static atomic_bool stop_busy;

static void *keep_busy(void *unused)
{
    while (!atomic_load(&stop_busy))
        check(5000, 10, 4);
    return unused;
}

/* Forks `times` times; each child uses the pool, if it may, and must end well. */
static void fork_and_use(int times, bool child_uses)
{
    for (int i = 0; i < times; i++) {
        pid_t child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
            test_seconds(20);
            if (child_uses)
                check(1000, 3, 4);
            _exit(0);
        }
        int status = -1;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "child %d ended with %x", i, (unsigned)status);
        check(1000, 3, 4);
    }
}

Test(pool, fork_when_idle, .timeout = HANGS_AFTER(60))
{
    pool_set_threads(4);
    check(1000, 3, 4);
    let_threads_start();
    fork_and_use(10, true);
}

Test(pool, fork_when_busy, .timeout = HANGS_AFTER(60))
{
    pool_set_threads(4);
    pthread_t busy;
    cr_assert_eq(pthread_create(&busy, NULL, keep_busy, NULL), 0);
    fork_and_use(20, CHILD_MAY_ALLOCATE);
    atomic_store(&stop_busy, true);
    pthread_join(busy, NULL);
}

/* Tasks that are faster together: so many of them at a time, as long as all threads have some. */
Test(pool, tasks_that_belong_together)
{
    static const struct {
        int64_t tasks, together, grain;
        int threads;
    } rows[] = {{8, 4, 4, 2}, {8, 4, 2, 4}, {8, 4, 1, 8}, {8, 4, 1, 16}, {9, 4, 3, 4}, {3, 4, 2, 2}, {32, 4, 4, 2}, {8, 1, 1, 2}};
    static CompiledKernel code;
    const ProgKernel kernel = {.compiled = &code, .cost = 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const HostLaunch launch = {.phases = 1, .tasks = {rows[i].tasks, rows[i].tasks}, .points = 1 << 24, .together = rows[i].together};
        cr_expect_eq(phase_of(&kernel, &launch, NULL, 0, rows[i].threads).grain, rows[i].grain, "row %zu", i);
    }
}

/*
 * Processes that share a cache directory: 16 start together and go through the same 8 programs for 200 rounds, forgetting them between
 * the rounds. Now and then one of them removes an entry, as an eviction or a user would; then one more process evicts all the time.
 *
 *   all values are right in every process and every round; nobody needs the interpreter
 *   nobody waits: the longest look-up stays far below what a lock that was left behind would cost
 *   in the end the directory holds the 8 entries, whole, and no temporary; everybody hits
 */
#include "tests/faults/harness.h"
#include "tests/faults/whole.h"
#include "tests/support/seconds.h"
#include "tests/support/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 16, PROGRAMS = 8, ROUNDS = KILN_TEST_SLOWER > 1 ? 60 : 200, ROUNDS_PER_REMOVAL = 100, ROUNDS_PER_EVICTION = 300 };

static const char *cache;

/* What the processes count, in memory that they share. */
typedef struct Shared {
    int ready, go, wrong, fallbacks, done, rounds;
    long compiles, hits, refused, removed;
    long longest_us;
} Shared;

static Shared *shared;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void most(long *at, long value)
{
    long seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value > seen && !__atomic_compare_exchange_n(at, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

/* Program k: a sum of k + 1 squares of the same vector, plus a number that no program contains. */
static bool compute(int k, double number)
{
    static const float data[4] = {1, 2, 3, 4};
    double value = -1;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(4), data), *y = kiln_scalar(number);
    for (int i = 0; i <= k; i++)
        y = kiln_add(y, kiln_sum(kiln_mul(x, x)));
    bool right = kiln_item(y, &value) == KILN_OK && value == number + 30 * (k + 1);
    if (!right && __atomic_fetch_add(&shared->wrong, 1, __ATOMIC_RELAXED) < 5)
        printf("process %d: program %d gives %g: %s\n", (int)getpid(), k, value, kiln_error_message());
    kiln_scope_end(scope);
    return right;
}

static void set(const char *name, const char *value)
{
    if (kiln_set_option(name, value) != KILN_OK)
        _exit(3);
}

static void begin_process(void)
{
    set("cache", "on");
    set("cache_dir", cache);
    set("threads", "1");
    __atomic_fetch_add(&shared->ready, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST))
        usleep(100);
}

typedef struct Pick {
    int wanted, at;
} Pick;

static void remove_wanted(const char *path, void *user)
{
    Pick *pick = user;
    if (pick->at++ == pick->wanted && unlink(path) == 0)
        __atomic_fetch_add(&shared->removed, 1, __ATOMIC_RELAXED);
}

static void compute_all(int process)
{
    for (int round = 0; round < ROUNDS; round++) {
        forget_programs();
        for (int i = 0; i < PROGRAMS; i++) {
            double start = now();
            compute((i + (round ? process : 0)) % PROGRAMS, process * 1000 + round); /* the first round: all want the same */
            most(&shared->longest_us, (long)(1e6 * (now() - start)));
        }
        int all = __atomic_fetch_add(&shared->rounds, 1, __ATOMIC_RELAXED);
        if (all % ROUNDS_PER_REMOVAL == ROUNDS_PER_REMOVAL - 1)
            each_entry(cache, remove_wanted, &(Pick){all / ROUNDS_PER_REMOVAL % PROGRAMS, 0});
    }
    kiln_stats s = stats_now();
    __atomic_fetch_add(&shared->compiles, s.compiles, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shared->hits, s.disk_hits, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shared->refused, s.disk_refused, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shared->fallbacks, (int)s.fallbacks, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shared->done, 1, __ATOMIC_SEQ_CST);
}

/* Until all are done: a process with hardly any room, for which it is always time to evict. */
static void evict_always(void)
{
    char stamp[PATH_BYTES];
    int last = 0;
    snprintf(stamp, sizeof stamp, "%s/evicted", cache);
    set("cache_size", "30000");
    set("cache", "refresh"); /* publishes each time, which is when it evicts */
    while (__atomic_load_n(&shared->done, __ATOMIC_SEQ_CST) < PROCESSES) {
        int all = __atomic_load_n(&shared->rounds, __ATOMIC_RELAXED);
        usleep(1000);
        if (all - last < ROUNDS_PER_EVICTION)
            continue;
        last = all;
        unlink(stamp);
        forget_programs();
        compute(all / ROUNDS_PER_EVICTION % PROGRAMS, all);
    }
}

static void spawn(void (*work)(int), void (*other)(void), int process)
{
    fflush(stdout);
    if (fork() == 0) {
        test_seconds(280);
        begin_process();
        if (work)
            work(process);
        else
            other();
        _exit(0);
    }
}

static void race(bool with_eviction)
{
    cache = new_folder();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        exit(2);
    int others = with_eviction ? 1 : 0, failed = 0;
    for (int process = 0; process < PROCESSES; process++)
        spawn(compute_all, NULL, process);
    if (with_eviction)
        spawn(NULL, evict_always, 0);
    while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < PROCESSES + others)
        usleep(1000);
    double start = now();
    __atomic_store_n(&shared->go, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < PROCESSES + others; i++) {
        int status = -1;
        wait(&status);
        failed += status != 0;
    }
    double took = now() - start;
    CHECK(failed == 0 && shared->wrong == 0 && shared->fallbacks == 0, "%d processes failed, %d wrong values, %d fall-backs", failed,
          shared->wrong, shared->fallbacks);
    CHECK(shared->refused == 0, "%ld entries were refused", shared->refused);
    CHECK(shared->hits > PROCESSES * ROUNDS, "%ld hits", shared->hits);
    CHECK(shared->removed > 5, "%ld removed", shared->removed);
    double longest = 1e-6 * (double)shared->longest_us; /* on a busy machine all of it takes long */
    CHECK(longest < 20 || longest < 0.5 * took, "somebody waited %.1f s of %.1f", longest, took);
    printf("%s: %ld programs loaded, %ld compiled, %ld removed at random; the longest took %.0f ms\n",
           with_eviction ? "with eviction" : "without eviction", shared->hits, shared->compiles, shared->removed,
           1e-3 * (double)shared->longest_us);
    int bad = 0, temporary = 0, n = entries(cache, &bad, &temporary);
    CHECK(bad == 0 && temporary == 0 && n <= PROGRAMS, "%d entries, %d bad, %d temporary", n, bad, temporary);

    memset(shared, 0, sizeof *shared); /* and now in peace: after one round everybody hits */
    shared->go = 1;
    set("cache", "on");
    set("cache_dir", cache);
    for (int again = 0; again < 2; again++) {
        int64_t compiles = stats_now().compiles;
        forget_programs();
        for (int k = 0; k < PROGRAMS; k++)
            CHECK(compute(k, again), "program %d", k);
        if (again)
            CHECK(stats_now().compiles == compiles, "%d programs are not kept", (int)(stats_now().compiles - compiles));
    }
    munmap(shared, sizeof *shared);
    drop_folder();
}

static void sixteen_processes(void) { race(false); }
static void with_eviction(void) { race(true); }

int main(int argc, char **argv)
{
    static const Test tests[] = {{"sixteen_processes", sixteen_processes}, {"with_eviction", with_eviction}};
    return run_some_tests("race", tests, sizeof tests / sizeof *tests, argc, argv);
}

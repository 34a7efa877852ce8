/*
 * Evaluations of many threads: the throughput of n threads over that of one.
 *
 *     threads [--quick] [--only TEXT] [--most N] [--json FILE]
 *
 * Each thread evaluates graphs of its own, again and again: recorded anew, or by a kiln_function; all of one program, or each thread its
 * own; found in memory, or never seen (misses compile). Sizes: a call of a few microseconds, one of tens, one that is worth all cores. "1
 * core": each call on one thread (KILN_THREADS=1), each thread on a core of its own; else on all. One thread and n are measured in turns,
 * round after round; the ratio is the median over the rounds. Also told: what the longest call took, over the median one of one thread,
 * since a queue that is unfair shows there. On a machine with fewer cores than threads a ratio can only be that of the cores. Last,
 * kiln_eval_async: a step of kiln's and one of the caller's that takes as long, beside each other or in turns.
 *
 * With THREADS_MODULE a library for bench/threads.py, which measures the same in PyTorch and JAX.
 */
#include "bench/result.h"
#include "bench/timing.h"
#include <kiln.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 11, QUICK_ROUNDS = 3, MOST_THREADS = 128, MISSES = 6, OPS = 4 };

#ifndef THREADS_MODULE
static int rounds = ROUNDS;
#endif
static double seconds = 0.1;

static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "threads: %s: %s\n", what, kiln_error_message());
    exit(1);
}

/* --- work ------------------------------------------------------------------------------------------------------------------ */

typedef enum Way { RECORDED, FUNCTION, OWN_FUNCTION, MISS } Way;

typedef struct Kind {
    const char *name;
    Way way;
    int64_t n;
    bool one_core, own; /* own: each thread's graph is another one */
} Kind;

static const Kind kinds[] = {
    {"small, 1 core, one program", RECORDED, 64, true, false},
    {"small, 1 core, own programs", RECORDED, 64, true, true},
    {"small, 1 core, one function", FUNCTION, 64, true, false},
    {"small, 1 core, own functions", OWN_FUNCTION, 64, true, true},
    {"short, 1 core, own programs", RECORDED, 1024, true, true},
    {"short, 1 core, own functions", OWN_FUNCTION, 1024, true, true},
    {"middle, 1 core, one program", RECORDED, 8192, true, false},
    {"middle, 1 core, own programs", RECORDED, 8192, true, true},
    {"middle, 1 core, one function", FUNCTION, 8192, true, false},
    {"middle, 1 core, own functions", OWN_FUNCTION, 8192, true, true},
    {"large, 1 core, own programs", RECORDED, 200000, true, true},
    {"small, own programs", RECORDED, 64, false, true},
    {"large, one program", RECORDED, 200000, false, false},
    {"large, own programs", RECORDED, 200000, false, true},
    {"misses, 1 core", MISS, 64, true, true},
};

typedef struct Worker {
    const Kind *kind;
    int number;
    int graph;
    kiln_function *f;
    kiln_tensor *x;
    double longest, calls, start, end; /* what it did */
    pthread_t thread;
} Worker;

static kiln_function *shared;
static atomic_int ready;
static int running; /* threads */
static atomic_bool stop;
static atomic_int unique; /* graphs that were never seen */

/* Alike for all numbers as far as the time that they take goes; 16 programs. */
static kiln_tensor *chain(kiln_tensor *x, int number)
{
    kiln_tensor *y = x;
    for (int k = 0; k < OPS; k++, number /= 2)
        y = number % 2 ? kiln_mul(kiln_sin(y), x) : kiln_mul(x, kiln_cos(y));
    return y;
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = chain(in[0], *(int *)user); }

/* A graph that nothing has seen: its number in binary, as ops. */
static kiln_tensor *never_seen(kiln_tensor *x)
{
    kiln_tensor *y = x;
    for (int number = atomic_fetch_add(&unique, 1) + 1; number; number /= 2)
        y = number % 2 ? kiln_add(kiln_sin(y), x) : kiln_mul(kiln_cos(y), x);
    return y;
}

static void call(Worker *w)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y;
    switch (w->kind->way) {
    case RECORDED: must(kiln_eval(chain(w->x, w->graph)), "evaluation"); break;
    case FUNCTION: must(kiln_function_call(shared, &w->x, &y), "function"); break;
    case OWN_FUNCTION: must(kiln_function_call(w->f, &w->x, &y), "function"); break;
    case MISS: must(kiln_eval(never_seen(w->x)), "evaluation"); break;
    }
    kiln_scope_end(scope);
}

/* To a core of its own, as far as there are any. */
static void pin(int number)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    int left = number % CPU_COUNT(&all);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && left-- == 0)
            CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

static void *work(void *user)
{
    Worker *w = user;
    if (w->kind->one_core)
        pin(w->number);
    kiln_scope *scope = kiln_scope_begin();
    w->x = kiln_uniform(KILN_F32, KILN_SHAPE(w->kind->n), -1, 1);
    must(kiln_eval(w->x), "input");
    for (int k = 0; k < 3 && w->kind->way != MISS; k++)
        call(w);
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&ready) < running) /* a barrier would wake one after the other */
        sched_yield();
    double start = now_seconds(), last = start;
    for (w->calls = w->longest = 0;
         w->kind->way == MISS ? w->calls < MISSES : w->calls == 0 || !atomic_load_explicit(&stop, memory_order_relaxed); w->calls++) {
        call(w);
        double now = now_seconds();
        w->longest = now - last > w->longest ? now - last : w->longest;
        last = now;
        if (now - start > seconds) /* whoever sees it first: a watch of its own might get no core */
            atomic_store_explicit(&stop, true, memory_order_relaxed);
    }
    w->start = start;
    w->end = last;
    kiln_scope_end(scope);
    return NULL;
}

typedef struct Measured {
    double rate, longest; /* calls in a second, of all; seconds */
} Measured;

static Worker worker[MOST_THREADS];

static Measured measure(int n)
{
    Measured m = {0};
    double calls = 0, start = 0, end = 0;
    atomic_store(&stop, false);
    atomic_store(&ready, 0);
    running = n;
    for (int i = 0; i < n; i++)
        if (pthread_create(&worker[i].thread, NULL, work, &worker[i]) != 0)
            must(KILN_OUT_OF_MEMORY, "a thread");
    for (int i = 0; i < n; i++) {
        const Worker *w = &worker[i];
        pthread_join(w->thread, NULL);
        calls += w->calls;
        m.longest = w->longest > m.longest ? w->longest : m.longest;
        start = i == 0 || w->start < start ? w->start : start;
        end = w->end > end ? w->end : end;
    }
    m.rate = calls / (end - start);
    return m;
}

static void open_kind(const Kind *kind, int most)
{
    static int numbers[MOST_THREADS];
    must(kiln_set_option("threads", kind->one_core ? "1" : "0"), "option");
    numbers[0] = 0;
    shared = kind->way == FUNCTION ? kiln_function_new(body, 1, 1, &numbers[0]) : NULL;
    for (int i = 0; i < most; i++) {
        numbers[i] = kind->own ? i : 0;
        worker[i] = (Worker){.kind = kind, .number = i, .graph = numbers[i]};
        if (kind->way == OWN_FUNCTION)
            worker[i].f = kiln_function_new(body, 1, 1, &numbers[i]);
    }
}

static void close_kind(int most)
{
    for (int i = 0; i < most; i++)
        kiln_function_free(worker[i].f);
    kiln_function_free(shared);
}

#ifdef THREADS_MODULE
#define EXPORT __attribute__((visibility("default")))

EXPORT int threads_rows(void) { return (int)(sizeof kinds / sizeof *kinds); }
EXPORT const char *threads_name(int row) { return kinds[row].name; }
EXPORT int64_t threads_elements(int row) { return kinds[row].n; }
/* 1: each call on a core of its own; 2: each thread has a graph of its own; 4: graphs that were never seen. */
EXPORT int threads_what(int row) { return kinds[row].one_core | kinds[row].own << 1 | (kinds[row].way == MISS) << 2; }

/* Calls in a second, of n threads together. */
EXPORT double threads_rate(int row, int n, double how_long)
{
    seconds = how_long;
    must(kiln_set_option("cache", "off"), "option");
    open_kind(&kinds[row], n);
    double rate = measure(n).rate;
    close_kind(n);
    return rate;
}
#else

static void run(const Kind *kind, int most)
{
    char what[60];
    double one[MAX_ROUNDS], ratio[MAX_ROUNDS], longest[MAX_ROUNDS];
    open_kind(kind, most);
    for (int n = 2; n <= most; n *= 2) {
        for (int r = 0; r < rounds; r++) {
            Measured alone = measure(1), all = measure(n);
            one[r] = 1 / alone.rate;
            ratio[r] = all.rate / alone.rate;
            longest[r] = all.longest / one[r];
        }
        if (n == 2)
            named_result(kind->name, "a call of one thread", 1e6 * median(one, rounds), "us", 0, false);
        snprintf(what, sizeof what, "%d threads over 1", n);
        named_result(kind->name, what, median(ratio, rounds), "x", n > cpu_count() || n > 2 ? 0 : kind->one_core ? 1.9 : 1, true);
        snprintf(what, sizeof what, "%d threads: longest call", n);
        named_result(kind->name, what, median(longest, rounds), "calls", 0, false);
    }
    close_kind(most);
}

/* --- kiln_eval_async: the caller works meanwhile ------------------------------------------------------------------------------- */

/* Of the caller's own, of about so many seconds. */
static void own_work(double how_long)
{
    for (double end = now_seconds() + how_long; now_seconds() < end;)
        ;
}

/* One step after the other, or the caller's part beside kiln's: seconds for a step, and until the sync point returns. */
static double step(kiln_tensor *x, double own, bool async, double *returned)
{
    kiln_scope *scope = kiln_scope_begin();
    double start = now_seconds();
    kiln_tensor *y = chain(x, 5);
    must(async ? kiln_eval_async(y) : kiln_eval(y), "evaluation");
    *returned = now_seconds() - start;
    own_work(own);
    must(kiln_wait(y), "waiting");
    double took = now_seconds() - start;
    kiln_scope_end(scope);
    return took;
}

static void run_async(int64_t n)
{
    enum { STEPS = 51 };
    char name[40];
    double after[MAX_ROUNDS], ratio[MAX_ROUNDS], took[2][STEPS], returned[2][STEPS];
    snprintf(name, sizeof name, "async, %lld elements", (long long)n);
    must(kiln_set_option("threads", "1"), "option");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(n), -1, 1);
    must(kiln_eval(x), "input");
    for (int k = 0; k < STEPS; k++)
        took[0][k] = step(x, 0, false, &returned[0][k]);
    double own = median(took[0], STEPS);
    for (int r = 0; r < rounds; r++) {
        for (int async = 0; async < 2; async++)
            for (int k = 0; k < STEPS; k++)
                took[async][k] = step(x, own, async, &returned[async][k]);
        ratio[r] = median(took[0], STEPS) / median(took[1], STEPS);
        after[r] = median(returned[1], STEPS);
    }
    named_result(name, "a call of one thread", 1e6 * own, "us", 0, false);
    named_result(name, "kiln_eval_async returns after", 1e6 * median(after, rounds), "us", 0, false);
    named_result(name, "with as much work of the caller's, over kiln_eval", median(ratio, rounds), "x",
                 cpu_count() > 1 && n > 10000 ? 1.8 : 0, true);
    kiln_scope_end(scope);
}

int main(int argc, char **argv)
{
    const char *only = "", *json = NULL;
    int most = 2 * cpu_count();
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--quick") == 0) {
            rounds = QUICK_ROUNDS;
            seconds = 0.05;
        } else if (strcmp(argv[i], "--only") == 0 && more) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--most") == 0 && more) {
            most = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--json") == 0 && more) {
            json = argv[++i];
        } else {
            fprintf(stderr, "usage: threads [--quick] [--only TEXT] [--most N] [--json FILE]\n");
            return 2;
        }
    }
    most = most < 2 ? 2 : most > MOST_THREADS ? MOST_THREADS : most;
    must(kiln_set_option("cache", "off"), "option");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (strstr(kinds[k].name, only))
            run(&kinds[k], most);
    for (int64_t n = 1000; n <= 1000000 && strstr("async", only); n *= 10)
        run_async(n);
    return json ? write_json(json, "") : 0;
}
#endif

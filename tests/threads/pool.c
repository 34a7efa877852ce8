/*
 * The pool under ThreadSanitizer: several callers, changing thread counts, pauses long enough for workers to fall asleep. And as if there were NUMA
 * nodes: each thread takes from its node's part of the tasks as long as there are any there. The number of threads bounds the workers of all callers
 * together.
 */
#include "runtime/eval/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLERS = 3, ROUNDS = 200, TASKS = 777 };

/* Plain memory on purpose: only the pool orders these accesses. */
typedef struct Job {
    long in[TASKS], out[TASKS];
} Job;

static void square(void *job_, int64_t lo, int64_t hi, int thread)
{
    (void)thread;
    Job *job = job_;
    for (int64_t i = lo; i < hi; i++)
        job->out[i] = job->in[i] * job->in[i];
}

static void *caller(void *seed_)
{
    Job *job = calloc(1, sizeof *job);
    long seed = *(const long *)seed_, wrong = 0;
    if (!job)
        return seed_;
    for (long round = 0; round < ROUNDS; round++) {
        for (long i = 0; i < TASKS; i++)
            job->in[i] = i + round * seed;
        if (round % 16 == 0)
            pool_set_threads(1 + (int)((round / 16 + seed) % 4));
        pool_run(TASKS, 1 + round % 20, 4, square, job);
        for (long i = 0; i < TASKS; i++)
            wrong += job->out[i] != (i + round * seed) * (i + round * seed);
        if (round % 50 == 0)
            nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    free(job);
    return wrong ? seed_ : NULL;
}

enum { NODES = 3, NODE_THREADS = 6, NODE_TASKS = 1000, GRAIN = 7 };

static atomic_int threads_seen, tasks_of[NODES], strangers, early, taken[NODE_TASKS];
static _Thread_local int my_node = -1;

static int node(void)
{
    if (my_node < 0)
        my_node = atomic_fetch_add(&threads_seen, 1) % NODES;
    return my_node;
}

static int part_of(int64_t task)
{
    int64_t chunks = (NODE_TASKS - 1) / GRAIN + 1, chunk = task / GRAIN;
    int part = NODES - 1;
    while (part > 0 && chunk < chunks / NODES * part + chunks % NODES * part / NODES)
        part--;
    return part;
}

/* What is claimed and not counted yet is a chunk of each thread at most. */
static void on_node(void *all, int64_t lo, int64_t hi, int thread)
{
    (void)thread;
    const int *tasks = all;
    int home = node(), part = part_of(lo);
    if (part != home) {
        atomic_fetch_add(&strangers, 1);
        if (atomic_load(&tasks_of[home]) + NODE_THREADS * GRAIN < tasks[home])
            atomic_fetch_add(&early, 1);
    }
    for (int64_t i = lo; i < hi; i++)
        atomic_fetch_add(&taken[i], 1);
    atomic_fetch_add(&tasks_of[part], (int)(hi - lo));
    nanosleep(&(struct timespec){0, 20000}, NULL);
}

static int on_nodes(void)
{
    int tasks[NODES] = {0}, wrong = 0;
    for (int64_t i = 0; i < NODE_TASKS; i++)
        tasks[part_of(i)]++;
    pool_set_threads(NODE_THREADS);
    pool_set_nodes(NODES, node);
    for (int round = 0; round < 20; round++) {
        for (int k = 0; k < NODES; k++)
            atomic_store(&tasks_of[k], 0);
        pool_run(NODE_TASKS, GRAIN, NODE_THREADS, on_node, tasks);
        for (int64_t i = 0; i < NODE_TASKS; i++)
            wrong += atomic_exchange(&taken[i], 0) != 1;
    }
    pool_run(2, 1, NODE_THREADS, square, &(Job){{1, 2}, {0}}); /* fewer chunks than nodes */
    pool_set_nodes(0, NULL);
    if (wrong || atomic_load(&early))
        printf("%d tasks not run once, %d taken from another node's part too early (%d at all)\n", wrong, atomic_load(&early),
               atomic_load(&strangers));
    return wrong || atomic_load(&early);
}

enum { BOUND = 3, BOUNDED_ROUNDS = 40, BOUNDED_TASKS = 64 };

static atomic_int at_work, most_at_work;
static _Thread_local bool calls;

static void count_workers(void *unused, int64_t lo, int64_t hi, int thread)
{
    (void)unused, (void)lo, (void)hi, (void)thread;
    if (!calls) {
        int now = atomic_fetch_add(&at_work, 1) + 1, most = atomic_load(&most_at_work);
        while (now > most && !atomic_compare_exchange_weak(&most_at_work, &most, now))
            continue;
    }
    nanosleep(&(struct timespec){0, 20000}, NULL);
    if (!calls)
        atomic_fetch_sub(&at_work, 1);
}

static void *bounded_caller(void *unused)
{
    calls = true;
    for (int round = 0; round < BOUNDED_ROUNDS; round++)
        pool_run(BOUNDED_TASKS, 1, BOUND, count_workers, NULL);
    return unused;
}

static int is_bounded(void)
{
    pthread_t thread[CALLERS];
    pool_set_threads(BOUND);
    for (int i = 0; i < CALLERS; i++)
        if (pthread_create(&thread[i], NULL, bounded_caller, NULL) != 0)
            exit(2);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(thread[i], NULL);
    int most = atomic_load(&most_at_work);
    if (most > BOUND - 1)
        printf("%d workers at a time, of %d threads with the caller\n", most, BOUND);
    return most > BOUND - 1;
}

int main(void)
{
    pthread_t thread[CALLERS];
    long seed[CALLERS];
    int failures = 0;
    for (long i = 0; i < CALLERS; i++) {
        seed[i] = i + 1;
        if (pthread_create(&thread[i], NULL, caller, &seed[i]) != 0)
            return 2;
    }
    for (int i = 0; i < CALLERS; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        failures += failed != NULL;
    }
    failures += on_nodes();
    failures += is_bounded();
    pool_shutdown();
    printf("%d failures\n", failures);
    return failures != 0;
}

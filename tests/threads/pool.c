/* The pool under ThreadSanitizer: several callers, changing thread counts, pauses long enough for workers to fall asleep. */
#include "runtime/eval/pool.h"

#include <pthread.h>
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
    pool_shutdown();
    printf("%d failures\n", failures);
    return failures != 0;
}

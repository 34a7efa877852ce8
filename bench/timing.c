/*
 * See timing.h. Idle threads yield in a loop: a yardstick must not pay for waking them, so call stop_parts before
 * anything else is to have all CPUs.
 */
#include "bench/timing.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_PARTS = 256 };

double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int compare(const void *a_, const void *b_)
{
    const double a = *(const double *)a_, b = *(const double *)b_;
    return (a > b) - (a < b);
}

double median(const double *values, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, sizeof *sorted * (size_t)n);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

int cpu_count(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < MAX_PARTS ? count : MAX_PARTS;
}

static struct {
    pthread_t thread[MAX_PARTS];
    int index[MAX_PARTS], seen[MAX_PARTS], started, parts;
    PartFn *fn;
    void *arg;
    atomic_int generation, left;
    atomic_bool stop;
} crew;

static void *crew_main(void *index_)
{
    int index = *(int *)index_, seen = crew.seen[index - 1];
    for (;;) {
        int generation;
        while ((generation = atomic_load(&crew.generation)) == seen)
            sched_yield();
        seen = generation;
        if (atomic_load(&crew.stop))
            return NULL;
        if (index < crew.parts)
            crew.fn(crew.arg, index, crew.parts);
        atomic_fetch_sub(&crew.left, 1);
    }
}

void run_parts(int parts, PartFn *fn, void *arg)
{
    if (parts > MAX_PARTS)
        parts = MAX_PARTS;
    while (crew.started < parts - 1) {
        int i = crew.started;
        crew.index[i] = i + 1;
        crew.seen[i] = atomic_load(&crew.generation);
        if (pthread_create(&crew.thread[i], NULL, crew_main, &crew.index[i]) != 0) {
            perror("bench: thread");
            exit(1);
        }
        crew.started++;
    }
    crew.fn = fn;
    crew.arg = arg;
    crew.parts = parts;
    atomic_store(&crew.left, crew.started);
    atomic_fetch_add(&crew.generation, 1);
    fn(arg, 0, parts);
    while (atomic_load(&crew.left) > 0)
        ;
}

void stop_parts(void)
{
    atomic_store(&crew.stop, true);
    atomic_fetch_add(&crew.generation, 1);
    for (int i = 0; i < crew.started; i++)
        pthread_join(crew.thread[i], NULL);
    crew.started = 0;
    atomic_store(&crew.stop, false);
}

float *new_floats(size_t n, float low, float high)
{
    size_t bytes = (n * sizeof(float) + (2u << 20) - 1) >> 21 << 21;
    float *data = aligned_alloc(2u << 20, bytes);
    if (!data) {
        fprintf(stderr, "bench: no memory for %zu floats\n", n);
        exit(1);
    }
    madvise(data, bytes, MADV_HUGEPAGE);
    uint32_t state = 12345;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = low + (high - low) * (float)(state >> 8) * 0x1p-24f;
    }
    return data;
}

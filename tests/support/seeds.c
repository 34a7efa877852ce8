/* See seeds.h. */
#include "tests/support/seeds.h"
#include "tests/support/vectors.h"
#include "tests/support/seconds.h"
#include "tests/support/slice.h"
#include "kiln.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SEED_SECONDS = 60 };

void *seeds_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return memory;
}

double seeds_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void quiet(void *user, int level, const char *topic, const char *line) { (void)user, (void)level, (void)topic, (void)line; }

bool seeds_in_child(bool (*run)(const void *data), const void *data, unsigned seconds, int *status)
{
    int ended = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        test_seconds(seconds);
        kiln_set_log_sink(quiet, NULL);
        bool well = run(data);
        fflush(stdout);
        _exit(!well);
    }
    waitpid(child, &ended, 0);
    if (status)
        *status = ended;
    return child > 0 && ended == 0;
}

typedef struct Batch {
    const Seeds *seeds;
    uint64_t *at, end; /* shared: the seed at work */
    double until;
} Batch;

static bool run_batch(const void *data)
{
    const Batch *b = data;
    for (int i = 0; i < b->seeds->per_child && *b->at != b->end && seeds_clock() < b->until; i++, ++*b->at) {
        test_seconds(SEED_SECONDS);
        if (!b->seeds->run(*b->at))
            return false;
    }
    return true;
}

bool seeds_asked(int argc, char **argv, const char *name, SeedsAsked *asked)
{
    bool seed = false, count = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--show") == 0) {
            asked->show = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            asked->first = strtoull(argv[++i], NULL, 10);
            seed = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--count") == 0) {
            asked->count = strtoull(argv[++i], NULL, 10);
            count = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0) {
            asked->seconds = strtod(argv[++i], NULL);
        } else if (i + 1 < argc && strcmp(argv[i], "--failures") == 0) {
            asked->failures = atoi(argv[++i]);
        } else {
            fprintf(stderr, "usage: %s [--seed N] [--count M] [--seconds S] [--failures F] [--show]\n", name);
            return false;
        }
    }
    if (count && !seed)
        slice_seeds(&asked->first, &asked->count);
    if (count) /* work is counted, not time */
        asked->seconds = 1e9;
    return true;
}

int seeds_main(int argc, char **argv, const Seeds *seeds)
{
    SeedsAsked asked = {.first = 1, .count = UINT64_MAX, .seconds = seeds->seconds, .failures = 3};
    double start = seeds_clock();
    int failures = 0;
    if (!seeds_asked(argc, argv, seeds->name, &asked))
        return 2;
    uint64_t first = asked.first;
    if (asked.show) {
        seeds->show(first);
        return 0;
    }
    uint64_t *at = seeds_shared(sizeof *at);
    Batch batch = {seeds, at, asked.count > UINT64_MAX - first ? UINT64_MAX : first + asked.count, start + asked.seconds};
    for (*at = first; *at != batch.end && seeds_clock() < batch.until && failures < asked.failures;) {
        if (seeds_in_child(run_batch, &batch, SEED_SECONDS, NULL))
            continue;
        failures++;
        printf("seed %" PRIu64 "\n", *at);
        seeds->explain((*at)++);
        fflush(stdout);
    }
    if (!getenv("KILN_DEVICE"))
        vectors_print();
    printf("%s: seeds %" PRIu64 " to %" PRIu64 ", %" PRIu64 " %s, %d failures, %.1f s\n", seeds->name, first, *at - 1, *seeds->counted,
           seeds->what, failures, seeds_clock() - start);
    if (*seeds->counted == 0)
        printf("FAIL nothing was compared\n");
    return failures > 0 || *seeds->counted == 0;
}

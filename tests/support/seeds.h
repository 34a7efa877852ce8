/*
 * The frame of a fuzzer that goes through seeds: its arguments, children that do the work, the line at the end.
 *
 *     PROGRAM [--seed N] [--count M] [--seconds S] [--failures F] [--show]
 *
 * With --count and no --seed it is a slice of an endless row of seeds (slice.h), M in all slices together: other ones in each commit.
 * The parent never calls kiln. A run in which nothing was compared fails.
 */
#ifndef TESTS_SUPPORT_SEEDS_H
#define TESTS_SUPPORT_SEEDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Seeds {
    const char *name;
    const char *what;               /* is counted: "values read" */
    const uint64_t *counted;        /* in memory that seeds_shared gave */
    int per_child;                  /* seeds one after another in a process: later ones meet the programs of earlier ones */
    double seconds;                 /* unless --seconds says other */
    bool (*run)(uint64_t seed);     /* in a child: is all well? */
    void (*explain)(uint64_t seed); /* of a seed that was not well: prints the least plan that is not */
    void (*show)(uint64_t seed);    /* prints the seed's plan */
} Seeds;

/* What the arguments ask for. */
typedef struct SeedsAsked {
    uint64_t first, count;
    double seconds;
    int failures; /* at most */
    bool show;
} SeedsAsked;

/* Reads the arguments over what *asked says; false: they are none of those, and the usage was told. */
bool seeds_asked(int argc, char **argv, const char *name, SeedsAsked *asked);

/* The whole of main. */
int seeds_main(int argc, char **argv, const Seeds *seeds);

/* Memory that children write and their parent reads; all 0. Ends the program when there is none. */
void *seeds_shared(size_t bytes);

/* Runs a function in a child of its own that may take so many seconds, without kiln's log. True: it said so. *status, if not NULL, gets
 * what waitpid says. */
bool seeds_in_child(bool (*run)(const void *data), const void *data, unsigned seconds, int *status);

double seeds_clock(void); /* seconds */

#endif

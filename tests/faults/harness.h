/*
 * What the tests of the cache on disk under faults share: a directory of their own, worker processes, and a look at what lies on
 * disk. Checks, and tests in children, come from tests/mutation/harness.h.
 */
#ifndef TESTS_FAULTS_HARNESS_H
#define TESTS_FAULTS_HARNESS_H

#include "tests/mutation/harness.h"

#include <stdbool.h>
#include <stddef.h>

enum { PATH_BYTES = 512 };

/* Makes an empty directory for this test and forgets the last one. Its path. */
const char *new_folder(void);
void drop_folder(void); /* with everything in it */

typedef struct Run {
    int exit, signal; /* of the worker; -1: did not end that way */
    long compiles, hits, refused, stored, fallbacks, warnings, descriptors;
    double seconds;
    char text[1 << 14]; /* all it said */
} Run;

/* Runs a worker of `programs` programs with the cache directory `cache` (NULL: none is named). `environment`: "NAME=VALUE" or
 * "NAME" to unset it, NULL ends; NULL: nothing more. As user `uid` where that is not 0. */
const Run *worker(const char *cache, int programs, const char *const *environment, unsigned uid);
const Run *worker_at(const char *path, const char *cache, int programs, const char *const *environment, unsigned uid); /* another copy */
/* The number behind "name=" in a worker's last line; 0: it is not there. */
long number(const Run *run, const char *name);
/* It ended well, its values are right, and it lost no descriptor. */
#define WELL(run, what)                                                                                                \
    do {                                                                                                               \
        CHECK((run)->exit == 0, "%s: exit %d, signal %d:\n%s", (what), (run)->exit, (run)->signal, (run)->text);       \
        CHECK((run)->descriptors == 0, "%s: %ld descriptors stay open:\n%s", (what), (run)->descriptors, (run)->text); \
    } while (0)

/* Entries in a cache directory. *bad gets those that are not whole under their own name, *temporary what writers left. */
int entries(const char *cache, int *bad, int *temporary);
/* Calls each(path) for every entry. */
void each_entry(const char *cache, void (*each)(const char *path, void *user), void *user);

size_t read_file(const char *path, unsigned char *bytes, size_t most);
void write_file(const char *path, const void *bytes, size_t n);
void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

/*
 * Plain test programs about guards and reuse: checks that count and print, tests run in children so that each starts with an
 * empty cache, and log lines kept for inspection.
 */
#ifndef TESTS_MUTATION_HARNESS_H
#define TESTS_MUTATION_HARNESS_H

#include "tests/support/compare.h"
#include "tests/support/stats.h"

/* Counts and prints a failure; goes on. */
#define CHECK(condition, ...) check_that((condition), __FILE__, __LINE__, #condition, __VA_ARGS__)
/* A status that must be KILN_OK. */
#define OK(status) check_ok((status), __FILE__, __LINE__)

void check_that(bool ok, const char *file, int line, const char *condition, const char *format, ...) __attribute__((format(printf, 5, 6)));
bool check_ok(kiln_status status, const char *file, int line);
int checks_failed(void);

typedef struct Test {
    const char *name;
    void (*run)(void);
} Test;

/* Runs each test (those named in argv, if any) in a child process; the exit status of main. */
int run_tests(const char *program, const Test *tests, int n, int argc, char **argv);
/* The same, of the tests a slice (support/slice.h). */
int run_some_tests(const char *program, const Test *tests, int n, int argc, char **argv);

void set_option(const char *name, const char *value);

/* Warnings (level 0) since the last reset, and the text of the last ones. */
extern int n_warnings;
extern char last_warning[512];

/* Reads an f32 tensor of n elements; at most `size` bytes. false: a failure was counted. */
bool read_f32(kiln_tensor *x, float *data, int64_t n);
/* A tensor of n f32 from a seed, in [-4, 4). */
kiln_tensor *plain_f32(kiln_shape shape, uint64_t seed);
/* Do programs run on a device (KILN_DEVICE)? There a wrap, which lies on the host, is moved first. */
bool on_device(void);
kiln_tensor *there(kiln_tensor *x);
/* The value of x as interp computes it from the same recipe, compared with what the current mode gives: builds twice. */
typedef kiln_tensor *Recipe1(void *user);
bool same_as_interp(Recipe1 *build, void *user, const char *what);

#endif

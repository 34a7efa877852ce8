/*
 * pthread_cancel at any moment of a thread's work: it takes effect outside of kiln, so that other threads' calls go on. Compiles,
 * look-ups, several threads at one kernel, log lines, bodies of functions and deleters that wait, compiles in the background.
 */
#define KILN_NO_LOCATIONS
#include "kiln.h"
#include "tests/support/seconds.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 60, N = 1 << 18 };

static FILE *null_file;

/* A cancellation point each. */
static void sink(void *user, int level, const char *topic, const char *line)
{
    (void)user;
    fprintf(null_file, "%d %s %s\n", level, topic, line);
    usleep(1);
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    usleep(20);
    out[0] = kiln_add(kiln_mul(in[0], in[0]), kiln_scalar(1));
}

static void deleter(void *data, void *user)
{
    (void)user;
    usleep(1);
    free(data);
}

/* Something of everything; 0: all is well. */
static int work(unsigned number)
{
    int failed = 0;
    kiln_scope *scope = kiln_scope_begin();
    float *data = malloc(sizeof *data * N);
    if (!data)
        return 1;
    for (int i = 0; i < N; i++)
        data[i] = (float)(i % 7);
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(N), data, deleter, NULL), *y = NULL;
    double sum = 0, want = 0;
    for (int i = 0; i < 7; i++)
        want += (double)(N / 7 + (i < N % 7)) * i;
    kiln_tensor *z = x;
    for (unsigned i = 0; i < 2 * (number % 30); i++) /* now and then a new structure */
        z = kiln_neg(z);
    failed |= kiln_item(kiln_sum(z), &sum) != KILN_OK || sum != want;
    kiln_function *f = kiln_function_new(body, 1, 1, NULL);
    kiln_tensor *in = kiln_ones(KILN_F32, KILN_SHAPE(number % 5 + 1));
    failed |= !f || kiln_function_call(f, &in, &y) != KILN_OK || kiln_item(kiln_sum(y), &sum) != KILN_OK || sum != 2 * (number % 5 + 1);
    kiln_function_free(f);
    kiln_scope_end(scope);
    return failed;
}

static void *victim(void *first)
{
    for (unsigned i = (unsigned)(uintptr_t)first;; i++) {
        if (work(i) != 0) {
            fprintf(stderr, "a thread: %s\n", kiln_error_message());
            _exit(1);
        }
        pthread_testcancel();
    }
}

int main(void)
{
    test_seconds(100); /* a lock that nobody gives back */
    null_file = fopen("/dev/null", "w");
    kiln_set_log_sink(sink, NULL);
    if (!null_file || kiln_set_option("log", "perf,cache,recompiles") != KILN_OK || kiln_set_option("threads", "2") != KILN_OK)
        return 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        void *end;
        if (kiln_set_option("async_compile", round % 2 ? "1" : "0") != KILN_OK ||
            pthread_create(&thread, NULL, victim, (void *)(uintptr_t)(round * 3)) != 0)
            return 1;
        usleep(round * round * 4);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        if (end != PTHREAD_CANCELED || work(round) != 0)
            return fprintf(stderr, "round %u: %s\n", round, kiln_error_message()), 1;
    }
    kiln_set_log_sink(NULL, NULL);
    printf("%d threads cancelled\n", ROUNDS);
    return 0;
}

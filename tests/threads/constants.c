/*
 * Values that were made of constants (kiln_mark_constant), while threads read, make, drop and change what they are made of: one tensor that
 * all share, those of each thread, which come and go, and memory that a thread changes and touches; with room for a few of the values. A
 * function that all call captured one. Every result is right. Without Criterion, so that it also runs under ThreadSanitizer.
 */
#include "kiln.h"
#include "tests/threads/run_threads.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 40, N = 64 };

static atomic_int failures;
static kiln_tensor *shared;
static kiln_function *function;

static void check(bool right, int round, const char *what)
{
    if (!right && atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "round %d: %s (%s)\n", round, what, kiln_error_message());
}

/* The greatest column sum of exp(w - first) + first, times x: N * (1 + first) * x where all of w is `first`. */
static kiln_tensor *greatest(kiln_tensor *w, double first, kiln_tensor *x)
{
    kiln_tensor *table =
        kiln_sum_axes(kiln_add(kiln_exp(kiln_sub(kiln_transpose(w), kiln_scalar(first))), kiln_scalar(first)), KILN_AXES(0), false);
    return kiln_max(kiln_mul(table, x));
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = greatest(shared, 2, in[0]);
}

static bool is(kiln_tensor *y, double want)
{
    double value = NAN;
    return kiln_item(y, &value) == KILN_OK && value == want;
}

static void *work(void *number)
{
    const int thread = *(const int *)number;
    float *own = malloc(sizeof *own * N * N);
    kiln_scope *outer = kiln_scope_begin();
    kiln_tensor *wrapped = kiln_wrap(KILN_F32, KILN_SHAPE(N, N), own, NULL, NULL);
    check(kiln_mark_constant(wrapped) == KILN_OK, -1, "a mark");
    for (int round = 0; round < ROUNDS; round++) {
        kiln_scope *scope = kiln_scope_begin();
        const double times = 1 + (round + thread) % 3;
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(N), times), *y;
        check(kiln_eval(x) == KILN_OK, round, "x");
        check(is(greatest(shared, 2, x), 3 * N * times), round, "of the shared one");
        check(kiln_function_call(function, &x, &y) == KILN_OK && is(y, 3 * N * times), round, "of the function's");
        const int first = round % 5;
        kiln_tensor *fresh = kiln_full(KILN_F32, KILN_SHAPE(N, N), first);
        check(kiln_eval(fresh) == KILN_OK && kiln_mark_constant(fresh) == KILN_OK, round, "a mark");
        check(is(greatest(fresh, first, x), (1 + first) * N * times), round, "of a new one");
        for (int i = 0; i < N * N; i++)
            own[i] = (float)first;
        kiln_touch(wrapped);
        check(is(greatest(wrapped, first, x), (1 + first) * N * times), round, "of a touched one");
        kiln_scope_end(scope);
    }
    kiln_scope_end(outer);
    free(own);
    return NULL;
}

int main(void)
{
    kiln_scope *scope = kiln_scope_begin();
    shared = kiln_full(KILN_F32, KILN_SHAPE(N, N), 2);
    if (kiln_set_option("constant_bytes", "1200") != KILN_OK || kiln_eval(shared) != KILN_OK || kiln_mark_constant(shared) != KILN_OK ||
        !(function = kiln_function_new(body, 1, 1, NULL)))
        return 2;
    run_threads(THREADS, work);
    kiln_function_free(function);
    kiln_scope_end(scope);
    return atomic_load(&failures) ? 1 : 0;
}

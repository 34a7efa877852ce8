/*
 * Loops inside compiled programs: ns a step of small ones, and of a Mandelbrot set a point. The median of some runs, each with its recording and
 * call, by the processor time of one thread.
 *
 *     loops [--quick]
 */
#include "bench/timing.h"
#include "runtime/include/kiln.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 21, QUICK_ROUNDS = 5 };

typedef void Program(int64_t steps, kiln_tensor *const *given);

static void must(kiln_status status)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "loops: %s\n", kiln_error_message());
    exit(1);
}

static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void halve(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    next[0] = kiln_add(kiln_mul(c[0], 0.5), 1);
}

static void halve_row(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    y[0] = next[0] = kiln_add(kiln_mul(c[0], 0.5), x[0]);
}

static void scan(int64_t steps, kiln_tensor *const *given)
{
    kiln_tensor *last;
    must(kiln_scan(halve, steps, 0, 1, given, &last, 0, NULL, 0, NULL, NULL));
    must(kiln_eval(last));
}

static void scan_rows(int64_t steps, kiln_tensor *const *given)
{
    kiln_tensor *last, *ys;
    must(kiln_scan(halve_row, steps, 0, 1, given, &last, 1, given + 1, 1, &ys, NULL));
    must(kiln_eval(ys));
}

static void turn(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    next[0] = kiln_tanh(kiln_matmul(c[0], user));
}

static void network(int64_t steps, kiln_tensor *const *given)
{
    kiln_tensor *last;
    must(kiln_scan(turn, steps, 0, 1, given, &last, 0, NULL, 0, NULL, given[1]));
    must(kiln_eval(last));
}

static kiln_tensor *more(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], state[2]);
}

static void count(kiln_tensor **state, kiln_tensor **next, void *user)
{
    (void)user;
    next[0] = kiln_mul(state[0], 0.5);
    next[1] = kiln_add(state[1], 1);
    next[2] = state[2];
}

static void while_loop(int64_t steps, kiln_tensor *const *given)
{
    kiln_tensor *state[] = {given[0], kiln_int(0), kiln_int(steps)};
    must(kiln_while(more, count, 3, state, 0, state, NULL));
    must(kiln_eval(state[0]));
}

static void square_and_add(kiln_tensor *i, kiln_tensor **z, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    kiln_tensor *const *c = user, *re2 = kiln_square(z[0]), *im2 = kiln_square(z[1]), *inside = kiln_le(kiln_add(re2, im2), 4);
    (void)i, (void)x, (void)y;
    next[0] = kiln_where(inside, kiln_add(kiln_sub(re2, im2), c[0]), z[0]);
    next[1] = kiln_where(inside, kiln_add(kiln_mul(kiln_mul(z[0], z[1]), 2), c[1]), z[1]);
    next[2] = kiln_add(z[2], kiln_cast(inside, KILN_F32));
}

static void mandelbrot(int64_t steps, kiln_tensor *const *given)
{
    kiln_tensor *end[3];
    must(kiln_scan(square_and_add, steps, 0, 3, given + 2, end, 0, NULL, 0, NULL, (void *)(uintptr_t)given));
    must(kiln_eval_many(end, 3));
}

static kiln_tensor *bounded(kiln_tensor **z, void *user)
{
    (void)user;
    return kiln_logical_and(kiln_le(kiln_add(kiln_square(z[0]), kiln_square(z[1])), 4), kiln_lt(z[4], z[5]));
}

static void iterate(kiln_tensor **z, kiln_tensor **next, void *user)
{
    (void)user;
    next[0] = kiln_add(kiln_sub(kiln_square(z[0]), kiln_square(z[1])), z[2]);
    next[1] = kiln_add(kiln_mul(kiln_mul(z[0], z[1]), 2), z[3]);
    next[2] = z[2];
    next[3] = z[3];
    next[4] = kiln_add(z[4], 1);
    next[5] = z[5];
}

static void escape(kiln_tensor **c, kiln_tensor **out, void *user)
{
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE()), *z[] = {zero, zero, c[0], c[1], kiln_full(KILN_I32, KILN_SHAPE(), 0), c[2]};
    if (kiln_while(bounded, iterate, 6, z, 0, z, user) == KILN_OK)
        out[0] = z[4];
}

/* Each point until its own end. */
static void escape_times(int64_t steps, kiln_tensor *const *given)
{
    kiln_tensor *in[] = {given[0], given[1], kiln_full_int(KILN_I32, KILN_SHAPE(), steps)}, *out;
    must(kiln_map(escape, 3, in, (int[]){0, 0, KILN_WHOLE}, 0, 1, &out, NULL));
    must(kiln_eval(out));
}

static double ns_a_step(Program *program, int64_t steps, kiln_tensor *const *given, int rounds)
{
    double ns[MAX_ROUNDS];
    for (int r = -2; r < rounds; r++) { /* two to compile, and to find what varies */
        kiln_scope *scope = kiln_scope_begin();
        double start = own_seconds();
        program(steps, given);
        if (r >= 0)
            ns[r] = 1e9 * (own_seconds() - start) / (double)steps;
        kiln_scope_end(scope);
    }
    return median(ns, rounds);
}

static kiln_tensor *there(kiln_tensor *x)
{
    must(kiln_eval(x));
    return x;
}

int main(int argc, char **argv)
{
    bool quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 + quick) {
        fprintf(stderr, "usage: loops [--quick]\n");
        return 2;
    }
    int rounds = quick ? QUICK_ROUNDS : ROUNDS;
    int64_t steps = quick ? 2000 : 50000, points = 1 << 20, turns = quick ? 5 : 100;
    must(kiln_set_option("cache", "off"));
    must(kiln_set_option("threads", "1"));
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *one[] = {there(kiln_ones(KILN_F32, KILN_SHAPE()))}, *thousand[] = {there(kiln_ones(KILN_F32, KILN_SHAPE(1000)))};
    kiln_tensor *rows[] = {there(kiln_ones(KILN_F32, KILN_SHAPE(16))), there(kiln_ones(KILN_F32, KILN_SHAPE(steps, 16)))};
    kiln_tensor *cell[] = {there(kiln_ones(KILN_F32, KILN_SHAPE(1, 8))), there(kiln_full(KILN_F32, KILN_SHAPE(8, 8), 0.1))};
    printf("%-52s %9.2f ns a step\n", "kiln_scan, one element", ns_a_step(scan, steps, one, rounds));
    printf("%-52s %9.2f ns a step\n", "kiln_scan, 16 elements, x[i] and y[i]", ns_a_step(scan_rows, steps, rows, rounds));
    printf("%-52s %9.2f ns a step\n", "kiln_scan, 1000 elements", ns_a_step(scan, steps, thousand, rounds));
    printf("%-52s %9.2f ns a step\n", "kiln_scan, tanh(h @ w), 8 elements", ns_a_step(network, steps, cell, rounds));
    printf("%-52s %9.2f ns a step\n", "kiln_while, one element and a counter", ns_a_step(while_loop, steps, one, rounds));
    kiln_tensor *zero = there(kiln_zeros(KILN_F32, KILN_SHAPE(points)));
    kiln_tensor *set[] = {there(kiln_linspace(KILN_F32, -2, 0.6, points)), there(kiln_full(KILN_F32, KILN_SHAPE(points), 0.1)), zero, zero,
                          zero};
    double ns = ns_a_step(mandelbrot, turns, set, rounds);
    printf("%-52s %9.4f ns a point and step\n", "Mandelbrot set, 1,048,576 points", ns / (double)points);
    ns = ns_a_step(escape_times, turns, set, rounds);
    printf("%-52s %9.4f ns a point and step\n", "the same with kiln_while, each until its end", ns / (double)points);
    kiln_scope_end(scope);
    return 0;
}

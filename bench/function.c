/*
 * Host time of a kiln_function's call apart from its kernel.
 *
 *     function [--quick]
 *
 * A call on eight inputs does three things: it finds that the function was seen (DESIGN's fast path), makes the result, and runs one
 * kernel. The kernel of 16 elements alone, entered directly with the same arguments, is measured beside it, round after round; the
 * difference is the host time that the aim is about. Linked with the inside of the library, whose program it looks up.
 *
 * Then kiln_solve in a function, beside the same calls of LAPACK made directly, where there is that library.
 *
 * The clock is this thread's processor time. A core's frequency moves, and neighbours take their share of it: so each round measures a
 * chain of dependent operations too, two cycles each, and the figures are given in cycles as well, which move less.
 */
#include "bench/timing.h"
#include "cache/memory.h"
#include "runtime/eval/launch.h"
#include "runtime/include/kiln.h"
#include "runtime/linalg/lapack.h"
#include "runtime/record/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INPUTS = 8, ELEMENTS = 16, MAX_ARGS = 16, ROUNDS = 41, QUICK_ROUNDS = 9 };

static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "function: %s: %s\n", what, kiln_error_message());
    exit(1);
}

static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sum_of_eight(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
    for (int i = 1; i < INPUTS; i++)
        out[0] = kiln_add(out[0], in[i]);
}

/* --- what is measured --- */

typedef struct Bench {
    kiln_function *f;
    kiln_tensor *in[INPUTS];
    const Program *program;
    int64_t sizes[64];
    void *args[MAX_ARGS];
    Phase phase;
    float result[ELEMENTS];
} Bench;

static void call(Bench *b)
{
    kiln_tensor *out;
    kiln_scope *scope = kiln_scope_begin();
    must(kiln_function_call(b->f, b->in, &out), "call");
    kiln_scope_end(scope);
}

static void only_scope(Bench *b)
{
    (void)b;
    kiln_scope_end(kiln_scope_begin());
}

static void only_kernel(Bench *b) { phase_run(&b->phase, NULL); }

/* Eight operations of two cycles, each waiting for the one before. */
static void chain(Bench *b)
{
    static uint64_t x = 88172645463325252u;
    (void)b;
    uint64_t v = x;
    for (int i = 0; i < 8; i++) {
        v ^= v << 1;
        __asm__ volatile("" : "+r"(v));
    }
    x = v;
}
enum { CHAIN_CYCLES = 16 };

typedef void Thing(Bench *b);

static double once(Thing *thing, Bench *b, int turns)
{
    double start = own_seconds();
    for (int i = 0; i < turns; i++)
        thing(b);
    return 1e9 * (own_seconds() - start) / turns;
}

/* The chain is so short that its loop is unrolled here: by hand, so that the loop costs it nothing. */
static double cycle_ns(Bench *b, int turns)
{
    double start = own_seconds();
    for (int i = 0; i < turns; i++) {
        chain(b), chain(b), chain(b), chain(b), chain(b), chain(b), chain(b), chain(b);
        chain(b), chain(b), chain(b), chain(b), chain(b), chain(b), chain(b), chain(b);
    }
    return 1e9 * (own_seconds() - start) / turns / 16 / CHAIN_CYCLES;
}

/* --- the kernel by itself --- */

static void take_program(void *user, const Program *program, const Facts *made)
{
    Bench *b = user;
    if (made->n_ints < INPUTS || b->program)
        return;
    b->program = program;
    if (program->guards.sizes.n <= sizeof b->sizes / sizeof *b->sizes)
        sizes_eval(&program->guards.sizes, made->ints, b->sizes);
}

static void find_kernel(Bench *b)
{
    cache_each(take_program, b);
    const Program *p = b->program;
    if (!p || p->n_steps != 1 || p->n_args > MAX_ARGS || p->guards.sizes.n > sizeof b->sizes / sizeof *b->sizes) {
        fprintf(stderr, "function: the program is not the one kernel that is expected\n");
        exit(1);
    }
    for (uint32_t a = 0; a < p->n_args; a++) {
        const ProgArg *arg = &p->args[a];
        const ProgBuffer *buffer = &p->buffers[arg->kind == BIND_BUFFER ? arg->value : 0];
        if (arg->kind == BIND_SIZE)
            memcpy(&b->args[a], &b->sizes[arg->value], sizeof b->args[a]);
        else
            b->args[a] = buffer->kind == BUFFER_INPUT ? (void *)b->in[buffer->index]->node->data : (void *)b->result;
    }
    HostLaunch room;
    b->phase = phase_of(&p->kernels[0], kernel_launch(p->kernels[0].compiled, b->args, &room), b->args, 0, 1);
}

static void check(Bench *b)
{
    kiln_tensor *out;
    float got[ELEMENTS];
    only_kernel(b);
    must(kiln_function_call(b->f, b->in, &out), "call");
    must(kiln_read(out, KILN_F32, got, sizeof got), "read");
    if (memcmp(got, b->result, sizeof got) != 0) {
        fprintf(stderr, "function: the kernel alone gives something else\n");
        exit(1);
    }
}

static void print(const char *name, const double *ns, const double *cycles, int rounds, double aim)
{
    double value = median(ns, rounds);
    printf("%-44s %8.1f ns %8.0f cycles", name, value, median(cycles, rounds));
    if (aim > 0)
        printf("   aim <= %g ns: %s", aim, value <= aim ? "yes" : "NO");
    printf("\n");
}

/* --- linear algebra --- */

enum { LARGEST = 128 };

typedef struct System {
    const Lapack *lapack;
    kiln_function *f;
    kiln_tensor *in[2];
    int32_t n, pivot[LARGEST];
    double a[LARGEST * LARGEST], b[LARGEST], factors[LARGEST * LARGEST], x[LARGEST];
} System;

static void body_of_system(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_solve(in[0], in[1]);
}

static void by_kiln(System *s)
{
    kiln_tensor *out;
    kiln_scope *scope = kiln_scope_begin();
    must(kiln_function_call(s->f, s->in, &out), "call");
    kiln_scope_end(scope);
}

static void directly(System *s)
{
    const int32_t one = 1;
    int32_t info;
    memcpy(s->factors, s->a, sizeof *s->a * (size_t)(s->n * s->n));
    memcpy(s->x, s->b, sizeof *s->b * (size_t)s->n);
    s->lapack->getrf(&s->n, &s->n, s->factors, &s->n, s->pivot, &info);
    s->lapack->getrs("T", &s->n, &one, s->factors, &s->n, s->pivot, s->x, &s->n, &info, 1);
}

static double system_once(void (*thing)(System *), System *s, int turns)
{
    double start = own_seconds();
    for (int i = 0; i < turns; i++)
        thing(s);
    return 1e9 * (own_seconds() - start) / turns;
}

static void measure_system(const Lapack *lapack, int n, int rounds, int turns)
{
    static System s;
    double ns[2][MAX_ROUNDS], over[MAX_ROUNDS];
    s.lapack = lapack;
    s.n = n;
    for (int i = 0; i < n * n; i++)
        s.a[i] = (double)(i * 7919 % 1009) / 1009 + (i % (n + 1) == 0 ? n : 0);
    for (int i = 0; i < n; i++)
        s.b[i] = i;
    s.in[0] = kiln_from(KILN_F64, KILN_SHAPE(n, n), s.a);
    s.in[1] = kiln_from(KILN_F64, KILN_SHAPE(n), s.b);
    s.f = kiln_function_new(body_of_system, 2, 1, NULL);
    for (int i = 0; i < 4; i++)
        by_kiln(&s);
    for (int r = 0; r < rounds; r++) {
        ns[0][r] = system_once(by_kiln, &s, turns);
        ns[1][r] = system_once(directly, &s, turns);
        over[r] = ns[0][r] - ns[1][r];
    }
    double value = median(over, rounds), direct = median(ns[1], rounds);
    bool good = value <= 2000 || value <= 0.03 * direct;
    printf("kiln_solve %3d x %-3d %9.1f ns, LAPACK alone %9.1f ns, over %7.1f ns   aim <= 2000 ns or 3 %%: %s\n", n, n,
           median(ns[0], rounds), direct, value, good ? "yes" : "NO");
    kiln_function_free(s.f);
}

static void measure_systems(int rounds, int turns)
{
    static const int sizes[] = {1, 4, 16, 64, LARGEST};
    const Lapack *lapack;
    if (lapack_open(&lapack) != ST_OK) {
        puts("kiln_solve: left out: there is no LAPACK library");
        return;
    }
    for (int k = 0; k < 5; k++)
        measure_system(&lapack[1], sizes[k], rounds, sizes[k] > 16 ? turns / 25 + 1 : turns / 5);
}

int main(int argc, char **argv)
{
    bool quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 + quick) {
        fprintf(stderr, "usage: function [--quick]\n");
        return 2;
    }
    int rounds = quick ? QUICK_ROUNDS : ROUNDS, turns = quick ? 500 : 5000;
    static Bench b;
    must(kiln_set_option("cache", "off"), "option");
    must(kiln_set_option("mode", "jit"), "option");
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < INPUTS; i++) {
        float data[ELEMENTS];
        for (int k = 0; k < ELEMENTS; k++)
            data[k] = (float)(i * k) * 0.25f - 3.0f;
        b.in[i] = kiln_from(KILN_F32, KILN_SHAPE(4, 4), data);
    }
    b.f = kiln_function_new(sum_of_eight, INPUTS, 1, NULL);
    for (int i = 0; i < 4; i++)
        call(&b);
    find_kernel(&b);
    check(&b);

    enum { CALL, KERNEL, SCOPE, HOST, N };
    double ns[N][MAX_ROUNDS], cycles[N][MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        double cycle = cycle_ns(&b, turns / 4);
        ns[CALL][r] = once(call, &b, turns);
        ns[KERNEL][r] = once(only_kernel, &b, turns);
        ns[SCOPE][r] = once(only_scope, &b, turns);
        cycle = (cycle + cycle_ns(&b, turns / 4)) / 2;
        ns[HOST][r] = ns[CALL][r] - ns[KERNEL][r];
        for (int k = 0; k < N; k++)
            cycles[k][r] = ns[k][r] / cycle;
    }
    print("function of 8 inputs [4,4], call and release", ns[CALL], cycles[CALL], rounds, 0);
    print("  its kernel alone", ns[KERNEL], cycles[KERNEL], rounds, 0);
    print("  an empty scope", ns[SCOPE], cycles[SCOPE], rounds, 0);
    print("  host time beside the kernel", ns[HOST], cycles[HOST], rounds, 200);
    kiln_function_free(b.f);
    measure_systems(rounds, turns);
    kiln_scope_end(scope);
    return 0;
}

/*
 * Many threads at once, 2 to 16: each computes pieces of work -- chains, products, sorts, loops, updates in place, functions, gradients, gathers
 * out of bounds -- while the others do, and all read and compute one another's pending values; options change, the process forks, a thread is
 * cancelled, deleters call back. Each piece gives the same bits as in one thread alone, or the same error. A plain program, so that it also
 * runs under ThreadSanitizer. Argument: the number of rounds.
 */
#include "kiln.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"
#include "tests/support/stats.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 16, SEEDS = 6, LARGE = 70000, SMALL = 37 };
#define WEIGHT 1.25

static int rounds = 12;
static atomic_int failures;

static void wrong(const char *what, int thread, int round)
{
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "thread %d round %d: %s (%s)\n", thread, round, what, kiln_error_message());
}

/* --- bits ------------------------------------------------------------------------------------------------------------------ */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Computes x: its bits; 1: it could not be computed. */
static uint64_t bits_of(kiln_tensor *x)
{
    const void *data;
    if (kiln_data(x, &data) != KILN_OK)
        return 1;
    return hash_bytes(UINT64_C(0xcbf29ce484222325), data, (size_t)kiln_numel(x) * kiln_dtype_size(kiln_dtype_of(x)));
}

static kiln_tensor *input(int64_t n, int seed)
{
    float *data = malloc(sizeof *data * (size_t)n);
    for (int64_t i = 0; data && i < n; i++)
        data[i] = (float)((i * 37 + seed * 11) % 101) * 0.03f - 1.5f;
    kiln_tensor *x = data ? kiln_from(KILN_F32, KILN_SHAPE(n), data) : NULL;
    free(data);
    return x;
}

/* --- pieces ---------------------------------------------------------------------------------------------------------------- */

static uint64_t chain(int seed)
{
    kiln_tensor *x = input(seed % 2 ? LARGE : SMALL, seed);
    for (int k = 0; k <= seed; k++)
        x = kiln_add(kiln_mul(kiln_tanh(x), kiln_scalar(0.5 + seed)), kiln_int(k));
    kiln_tensor *two[2] = {kiln_sum(x), x};
    return kiln_eval_many(two, 2) == KILN_OK ? bits_of(two[0]) ^ bits_of(two[1]) : 1;
}

static uint64_t product(int seed)
{
    int64_t n = 8 + 40 * (seed % 3);
    kiln_tensor *x = kiln_reshape(input(n * n, seed), KILN_SHAPE(n, n));
    return bits_of(kiln_softmax(kiln_matmul(x, kiln_transpose(x)), 1));
}

static uint64_t sorted(int seed) { return bits_of(kiln_sort(input(seed % 2 ? LARGE : SMALL, seed), 0, seed % 3 == 0)); }

static void running_sum(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    carry_out[0] = kiln_add(carry[0], x[0]);
    y[0] = kiln_mul(carry_out[0], kiln_scalar(0.5));
}

static uint64_t loop(int seed)
{
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE()), *xs = input(SMALL + seed, seed), *last, *ys;
    if (kiln_scan(running_sum, -1, 0, 1, &zero, &last, 1, &xs, 1, &ys, NULL) != KILN_OK)
        return 1;
    return bits_of(last) ^ bits_of(ys);
}

/* Each step overwrites what the one before made. */
static uint64_t in_place(int seed)
{
    kiln_tensor *total = kiln_retain(kiln_zeros(KILN_F32, KILN_SHAPE(seed % 2 ? LARGE : SMALL)));
    for (int step = 0; step < 6; step++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_assign(total, kiln_add(kiln_mul(total, kiln_scalar(0.75)), input(kiln_numel(total), seed + step)));
        if (kiln_eval(total) != KILN_OK)
            wrong("an update", -1, seed);
        kiln_scope_end(scope);
    }
    uint64_t bits = bits_of(total);
    kiln_release(total);
    return bits;
}

static kiln_function *one_for_all; /* each thread calls it */
static int scale = 3;

static void smooth(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_div(kiln_add(kiln_mul(in[0], kiln_int(*(int *)user)), in[1]), kiln_scalar(4));
    out[1] = kiln_max(out[0]);
}

static uint64_t call(kiln_function *f, int seed)
{
    kiln_tensor *in[2] = {input(seed % 2 ? LARGE : SMALL, seed), input(seed % 2 ? LARGE : SMALL, seed + 1)}, *out[2];
    uint64_t bits = 0;
    for (int k = 0; k < 4; k++) {
        kiln_scope *scope = kiln_scope_begin();
        if (kiln_function_call(f, in, out) != KILN_OK) {
            wrong("a function", -1, seed);
            kiln_scope_end(scope);
            return 1;
        }
        bits = bits * 31 + (bits_of(out[0]) ^ bits_of(out[1]));
        kiln_scope_end(scope);
    }
    return bits;
}

static uint64_t function(int seed) { return call(one_for_all, seed); }

static uint64_t own_function(int seed)
{
    kiln_function *f = kiln_function_new(smooth, 2, 2, &scale);
    uint64_t bits = f ? call(f, seed) : 1;
    kiln_function_free(f);
    return bits;
}

static uint64_t gradient(int seed)
{
    kiln_tensor *w = kiln_param(input(SMALL, seed)), *grad;
    kiln_tensor *loss = kiln_sum(kiln_square(kiln_tanh(kiln_mul(w, kiln_scalar(1 + seed)))));
    return kiln_grad(loss, &w, 1, &grad) == KILN_OK ? bits_of(grad) ^ bits_of(loss) : 1;
}

/* Every other one reads behind the end, and is told so. */
static uint64_t take(int seed)
{
    int64_t at[3] = {0, seed, seed % 2 ? SMALL : SMALL - 1};
    kiln_tensor *x = kiln_take(input(SMALL, seed), kiln_from(KILN_I64, KILN_SHAPE(3), at), 0);
    if (seed % 2 == 0)
        return bits_of(x);
    kiln_status status = kiln_eval(x);
    return status == KILN_BAD_INDEX && strstr(kiln_error_message(), "index 37") ? (uint64_t)status : 1;
}

/* Another thread computes it while this one goes on recording, asks for what is made of it, or lets it go. */
static uint64_t queued(int seed)
{
    kiln_tensor *x = input(seed % 2 ? LARGE : SMALL, seed), *all[4];
    for (int k = 0; k < 4; k++) {
        all[k] = kiln_sin(kiln_mul(k ? all[k - 1] : x, kiln_scalar(0.5 + k)));
        kiln_scope *scope = kiln_scope_begin();
        if (kiln_eval_async(all[k]) != KILN_OK || kiln_eval_async(kiln_sum(all[k])) != KILN_OK)
            return 1;
        kiln_scope_end(scope);
    }
    return bits_of(kiln_max(all[3])) ^ bits_of(all[seed % 4]);
}

typedef struct Piece {
    const char *name;
    uint64_t (*work)(int seed);
} Piece;

static const Piece pieces[] = {
    {"chain", chain},       {"product", product},           {"sort", sorted},       {"loop", loop}, {"in place", in_place},
    {"function", function}, {"own function", own_function}, {"gradient", gradient}, {"take", take}, {"queued", queued}};
enum { PIECES = sizeof pieces / sizeof *pieces };

static uint64_t expected[PIECES][SEEDS];

/* Not part of a function that is cancelled: AddressSanitizer would not see that what lies on its stack is gone. */
static __attribute__((noinline)) uint64_t piece(int k, int seed)
{
    kiln_scope *scope = kiln_scope_begin();
    uint64_t bits = pieces[k].work(seed);
    kiln_scope_end(scope);
    return bits;
}

static void work_of(int thread, int round)
{
    for (int i = 0; i < PIECES; i++) {
        int k = (i + thread) % PIECES, seed = (round * 5 + thread + i) % SEEDS;
        if (piece(k, seed) != expected[k][seed])
            wrong(pieces[k].name, thread, round);
    }
}

/* --- values of each other -------------------------------------------------------------------------------------------------- */

static pthread_barrier_t barrier;
static int n_threads;

/* What one thread recorded and all compute, in this round: */
static struct {
    kiln_tensor *between; /* nobody asks for it but through others */
    kiln_tensor *asked;   /* some ask for it; overwrites what it is made of, which nothing else has */
    kiln_tensor *w, *loss;
    kiln_tensor *slow; /* takes long, and is part of what all ask for */
} shared;

static atomic_int deleted;

/* A deleter may ask for what is computed already, and record. */
static void deleter(void *data, void *user)
{
    (void)user;
    kiln_tensor *one = kiln_add(kiln_int(1), kiln_int(2)), *w = kiln_param(kiln_ones(KILN_F32, KILN_SHAPE(2))), *grad;
    if (!one || kiln_grad(kiln_sum(kiln_square(w)), &w, 1, &grad) != KILN_OK)
        wrong("a deleter", -1, 0);
    free(data);
    atomic_fetch_add(&deleted, 1);
}

static void record_shared(int round)
{
    kiln_scope *scope = kiln_scope_begin();
    int64_t n = round % 2 ? LARGE : SMALL;
    float *mine = malloc(sizeof *mine * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        mine[i] = (float)(i % 7);
    kiln_tensor *x = input(n, round), *wrapped = kiln_wrap(KILN_F32, KILN_SHAPE(n), mine, deleter, NULL);
    shared.between = kiln_retain(kiln_mul(kiln_add(x, wrapped), kiln_scalar(1.5)));
    kiln_tensor *only = kiln_from(KILN_F32, KILN_SHAPE(n), mine);
    shared.w = kiln_retain(kiln_param(kiln_full(KILN_F32, KILN_SHAPE(), WEIGHT)));
    shared.asked = kiln_retain(kiln_mul(kiln_tanh(kiln_cos(kiln_sin(only))), shared.w));
    shared.loss = kiln_retain(kiln_sum(shared.asked));
    kiln_tensor *slow = kiln_reshape(kiln_ones(KILN_F32, KILN_SHAPE(160 * 160)), KILN_SHAPE(160, 160));
    for (int k = 0; k < 3; k++)
        slow = kiln_mul(kiln_matmul(slow, slow), kiln_scalar(1.0 / 160));
    shared.slow = kiln_retain(slow);
    kiln_scope_end(scope);
}

static void release_shared(void)
{
    kiln_tensor *all[] = {shared.between, shared.asked, shared.w, shared.loss, shared.slow};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kiln_release(all[i]);
    memset(&shared, 0, sizeof shared);
}

static double derivative(int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += tanh(cos(sin((double)(i % 7))));
    return sum;
}

static void check_shared(int thread, int round)
{
    int64_t n = round % 2 ? LARGE : SMALL, i = (round * 13 + thread) % n;
    float *got = malloc(sizeof *got * (size_t)n);
    double x = (double)((float)((i * 37 + round * 11) % 101) * 0.03f - 1.5f), mine = (double)(i % 7), by_w = tanh(cos(sin(mine)));
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y, *grad = NULL;
    double item, want = 0;
    bool ok = true;
    switch ((thread + round) % 5) {
    case 0:
        y = kiln_add(shared.between, kiln_int(thread));
        want = (double)(((float)x + (float)mine) * 1.5f + (float)thread);
        break;
    case 1:
        y = shared.between;
        want = (double)(((float)x + (float)mine) * 1.5f);
        break;
    case 2:
        y = shared.asked;
        want = by_w * WEIGHT;
        break;
    case 3:
        y = kiln_grad(shared.loss, &shared.w, 1, &grad) == KILN_OK ? kiln_expand(grad, KILN_SHAPE(n)) : NULL;
        want = derivative(n);
        break;
    default: y = kiln_mul(shared.asked, kiln_int(2)); want = 2 * by_w * WEIGHT;
    }
    if (!y) /* another thread has computed the loss */
        kiln_clear_error();
    else if (kiln_read(y, KILN_F32, got, sizeof *got * (size_t)n) != KILN_OK)
        ok = false;
    else
        ok = fabs((double)got[i] - want) < 1e-5 * (1 + fabs(want));
    if (!ok)
        wrong("a value of all", thread, round);
    if (kiln_item(kiln_max(kiln_add(shared.slow, kiln_int(thread))), &item) != KILN_OK || item != 1 + thread)
        wrong("a slow value of all", thread, round);
    if (thread == 1 && kiln_eval(shared.loss) != KILN_OK)
        wrong("a loss", thread, round);
    kiln_scope_end(scope);
    free(got);
}

static void *work(void *user)
{
    int thread = *(int *)user;
    for (int round = 0; round < rounds; round++) {
        if (thread == round % n_threads) {
            release_shared();
            record_shared(round);
        }
        pthread_barrier_wait(&barrier);
        check_shared(thread, round);
        work_of(thread, round);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

/* One thread computes in place what another one asks for a gradient of, which needs what is overwritten: it gets that, or is told that it
 * is too late. */
static void *compute_in_place(void *times)
{
    for (int round = 0; round < *(int *)times; round++) {
        pthread_barrier_wait(&barrier);
        if (kiln_eval(shared.asked) != KILN_OK)
            wrong("a value in place", 0, round);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void derive_meanwhile(int times)
{
    pthread_t other;
    atomic_int delay = 0;
    double got, want = derivative(LARGE);
    pthread_barrier_init(&barrier, NULL, 2);
    if (pthread_create(&other, NULL, compute_in_place, &times) != 0)
        exit(1);
    for (int round = 0; round < times; round++) {
        kiln_tensor *grad = NULL;
        kiln_scope *scope = kiln_scope_begin();
        record_shared(1);
        pthread_barrier_wait(&barrier);
        for (int spin = 0; spin < 4000 * (round % 32); spin++)
            atomic_fetch_add(&delay, 1);
        if (kiln_grad(shared.loss, &shared.w, 1, &grad) != KILN_OK)
            kiln_clear_error();
        else if (kiln_item(grad, &got) != KILN_OK || fabs(got - want) > 1e-4 * want)
            wrong("a gradient of what is computed in place", 1, round);
        pthread_barrier_wait(&barrier);
        release_shared();
        kiln_scope_end(scope);
    }
    pthread_join(other, NULL);
    pthread_barrier_destroy(&barrier);
}

/* --- compiles -------------------------------------------------------------------------------------------------------------- */

enum { COMPILERS = 4 };

static kiln_tensor *of_all[2]; /* evaluated: each walk gives them other numbers */

/* A graph for each number, as ops. */
static kiln_tensor *graph(int number)
{
    kiln_tensor *x = of_all[number % 2], *z = of_all[1 - number % 2], *y = kiln_mul(kiln_exp(kiln_neg(x)), z);
    for (; number; number /= 2)
        y = number % 2 ? kiln_add(kiln_sin(y), x) : kiln_mul(kiln_cos(y), z);
    return y;
}

typedef struct Compiler {
    pthread_t thread;
    int number, first;
    bool own; /* graphs of its own, else those of all */
    uint64_t bits[COMPILERS];
} Compiler;

static void *compile(void *user)
{
    Compiler *c = user;
    kiln_scope *scope = kiln_scope_begin();
    if (kiln_eval(kiln_add(kiln_ones(KILN_F32, KILN_SHAPE(3)), kiln_int(1))) != KILN_OK)
        wrong("a first value", c->number, 0);
    pthread_barrier_wait(&barrier);
    for (int k = 0; k < COMPILERS; k++)
        c->bits[k] = bits_of(graph(c->first + (c->own ? COMPILERS * c->number : 0) + k));
    kiln_scope_end(scope);
    return NULL;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Threads that need one program compile it once; those that need several compile them concurrently: longer in all than it takes. */
static bool compile_together(bool own)
{
    static int next = 1 << 10; /* graphs that nothing has seen */
    Compiler c[COMPILERS];
    int wanted = own ? COMPILERS * COMPILERS : COMPILERS;
    kiln_scope *scope = kiln_scope_begin();
    if (kiln_eval(kiln_add(kiln_ones(KILN_F32, KILN_SHAPE(3)), kiln_int(1))) != KILN_OK)
        wrong("a first value", -1, 0);
    kiln_stats before = stats_now();
    double start = seconds();
    pthread_barrier_init(&barrier, NULL, COMPILERS);
    for (int i = 0; i < COMPILERS; i++) {
        c[i] = (Compiler){.number = i, .first = next, .own = own};
        if (pthread_create(&c[i].thread, NULL, compile, &c[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < COMPILERS; i++)
        pthread_join(c[i].thread, NULL);
    pthread_barrier_destroy(&barrier);
    kiln_stats after = stats_now();
    bool concurrent = after.compile_seconds - before.compile_seconds > 1.05 * (seconds() - start);
    int made = (int)(after.compiles - before.compiles - (after.background_compiles - before.background_compiles));
    if (made != wanted)
        wrong("compiles", made, wanted);
    if (kiln_set_option("mode", "interp") != KILN_OK)
        wrong("an option", -1, 0);
    for (int i = 0; i < COMPILERS; i++)
        for (int k = 0; k < COMPILERS; k++)
            if (c[i].bits[k] != bits_of(graph(next + (own ? COMPILERS * i : 0) + k)))
                wrong("what was compiled concurrently", i, k);
    if (kiln_set_option("mode", "jit") != KILN_OK)
        wrong("an option", -1, 0);
    next += wanted;
    kiln_scope_end(scope);
    return concurrent;
}

/* The general programs, which are made in the background of what was compiled, are right as well. */
static void other_sizes(void)
{
    enum { FIRST = 1 << 10, GRAPHS = COMPILERS + COMPILERS * COMPILERS };
    uint64_t bits[GRAPHS];
    for (int i = 0; i < GRAPHS; i++)
        bits[i] = bits_of(graph(FIRST + i));
    if (kiln_set_option("mode", "interp") != KILN_OK)
        wrong("an option", -1, 0);
    for (int i = 0; i < GRAPHS; i++)
        if (bits[i] != bits_of(graph(FIRST + i)))
            wrong("a general program", -1, i);
    if (kiln_set_option("mode", "jit") != KILN_OK)
        wrong("an option", -1, 0);
}

static void new_inputs(int64_t n)
{
    for (int k = 0; k < 2; k++) {
        of_all[k] = input(n, k);
        if (kiln_eval(of_all[k]) != KILN_OK)
            wrong("an input", -1, k);
    }
}

enum { TIMES = 300 };

static void *evaluate_often(void *user)
{
    pthread_barrier_wait(&barrier);
    for (int k = 0; k < TIMES; k++) {
        kiln_scope *scope = kiln_scope_begin();
        if (kiln_eval(graph(1 << 10)) != KILN_OK)
            wrong("a known graph", -1, k);
        kiln_scope_end(scope);
    }
    return user;
}

/* None is lost, as it would be where threads count without a lock. */
static void count_launches(void)
{
    pthread_t threads[COMPILERS];
    kiln_scope *scope = kiln_scope_begin();
    new_inputs(LARGE / 8);
    kiln_stats first = stats_now();
    if (kiln_eval(graph(1 << 10)) != KILN_OK)
        wrong("a graph", -1, 0);
    kiln_stats before = stats_now();
    pthread_barrier_init(&barrier, NULL, COMPILERS);
    for (int i = 0; i < COMPILERS; i++)
        if (pthread_create(&threads[i], NULL, evaluate_often, NULL) != 0)
            exit(1);
    for (int i = 0; i < COMPILERS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    int64_t each = before.kernels - first.kernels, bytes = before.bytes_moved - first.bytes_moved;
    if (stats_now().kernels - before.kernels != COMPILERS * TIMES * each ||
        stats_now().bytes_moved - before.bytes_moved != COMPILERS * TIMES * bytes)
        wrong("launches counted", (int)(stats_now().kernels - before.kernels), COMPILERS * TIMES * (int)each);
    kiln_scope_end(scope);
}

static void compile_concurrently(void)
{
    bool concurrent = false;
    kiln_scope *scope = kiln_scope_begin();
    new_inputs(5);
    if (kiln_set_option("cache", "off") != KILN_OK || kiln_set_option("async_compile", "1") != KILN_OK)
        wrong("an option", -1, 0);
    compile_together(false);
    compile_together(true);
    new_inputs(11);
    other_sizes();
    if (kiln_set_option("async_compile", "0") != KILN_OK)
        wrong("an option", -1, 0);
    for (int k = 0; k < 5 && !concurrent; k++)
        concurrent = compile_together(true);
    if (!concurrent)
        wrong("compiles take turns", -1, 0);
    kiln_scope_end(scope);
}

/* --- around them --------------------------------------------------------------------------------------------------------- */

static atomic_bool over;

static void *set_options(void *unused)
{
    static const char *const threads[] = {"1", "3", "2", "4"};
    (void)unused;
    for (int k = 0; !atomic_load(&over); k++) {
        if (kiln_set_option("threads", threads[k % 4]) != KILN_OK)
            wrong("an option", -1, k);
        usleep(3000);
    }
    return NULL;
}

static void *ends_when_cancelled(void *unused)
{
    while (true) {
        piece(0, 1);
        pthread_testcancel();
    }
    return unused;
}

static void fork_once(int k)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        test_seconds(60);
        if (!CHILD_MAY_ALLOCATE)
            _exit(0);
        for (int i = 0; i < 3; i++)
            if (piece((k + i) % PIECES, k % SEEDS) != expected[(k + i) % PIECES][k % SEEDS])
                _exit(1);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        wrong("a child", -1, status);
}

static void run_threads(int n)
{
    pthread_t threads[MOST_THREADS], options, cancelled;
    int numbers[MOST_THREADS];
    n_threads = n;
    atomic_store(&over, false);
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    if (pthread_create(&options, NULL, set_options, NULL) != 0 || pthread_create(&cancelled, NULL, ends_when_cancelled, NULL) != 0)
        exit(1);
    for (int i = 0; i < n; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0)
            exit(1);
    }
    let_threads_start();
    for (int k = 0; k < 3; k++) {
        usleep(5000);
        fork_once(k);
    }
    pthread_cancel(cancelled);
    pthread_join(cancelled, NULL);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(options, NULL);
    pthread_barrier_destroy(&barrier);
    release_shared();
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    if (!(one_for_all = kiln_function_new(smooth, 2, 2, &scale)))
        return 1;
    for (int k = 0; k < PIECES; k++)
        for (int seed = 0; seed < SEEDS; seed++)
            if ((expected[k][seed] = piece(k, seed)) == 1)
                wrong(pieces[k].name, -1, seed);
    static const int numbers[] = {2, 3, 8, MOST_THREADS};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        run_threads(numbers[i]);
    derive_meanwhile(3 * rounds);
    compile_concurrently();
    count_launches();
    kiln_function_free(one_for_all);
    if (stats_now().fallbacks)
        wrong("a fall-back", -1, (int)stats_now().fallbacks);
    if (atomic_load(&deleted) != rounds * (3 + (int)(sizeof numbers / sizeof *numbers)))
        wrong("deleters", -1, atomic_load(&deleted));
    if (atomic_load(&failures) == 0)
        puts("all results right");
    return atomic_load(&failures) != 0;
}

/*
 * Random programs (tests/support/random_graph.h) in many threads: each computes all of a batch, in an order of its own, some by
 * kiln_eval_async, and has the interpreter's bits. Threads meet the same programs, in memory and while they are compiled, with the same and
 * with other sizes; of some they share the inputs, of which some are constants. Between batches options change. A plain program, so that it also runs under ThreadSanitizer.
 *
 *     random [BATCHES] [SECONDS] [THREADS]        an hour of it: random 1000000 3600 8
 *
 * The seeds are those of the slice (tests/support/slice.h).
 */
#include "kiln.h"
#include "tests/support/random_graph.h"
#include "tests/support/slice.h"
#include "tests/support/stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RECIPES = 10, SIZES = 3, ITEMS = RECIPES * SIZES, MOST_THREADS = 64 };

typedef struct Value {
    kiln_dtype dtype;
    kiln_shape shape;
    void *data;
} Value;

typedef struct Item {
    const Recipe *recipe;
    int64_t sizes[PALETTE];
    uint64_t seed;
    kiln_tensor *constant[RECIPE_NODES]; /* inputs that all threads share, marked, in some items; else NULL */
    int n;                               /* outputs; -1: it has no values, as an index is out of bounds, say */
    Value out[RECIPE_OUTPUTS];
} Item;

static Recipe recipe[RECIPES];
static Item item[ITEMS];
static atomic_int failures;
static atomic_llong compared;
static int threads = 8;

/* Draws are those of the process, so only one may be recording. */
static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

static kiln_tensor *input(const Recipe *r, int k, kiln_shape shape, void *user)
{
    const RecipeNode *node = &r->node[k];
    Item *at = user;
    int64_t n = shape_elements(shape);
    if (at->constant[k])
        return at->constant[k];
    void *data = malloc((size_t)n * 8 + 8);
    if (!data)
        exit(2);
    values_fill((kiln_dtype)node->dtype, (Values)node->values, 1, at->seed + (uint64_t)k, n, data);
    kiln_tensor *x = kiln_from((kiln_dtype)node->dtype, shape, data);
    free(data);
    if (at->seed % 3 == 0 && k % 2 == 0 && kiln_mark_constant(x) == KILN_OK) /* the main thread's first recording */
        at->constant[k] = kiln_retain(x);
    return x;
}

static int record(Item *at, kiln_tensor **out)
{
    pthread_mutex_lock(&recording);
    kiln_seed(at->seed);
    int n = recipe_build(at->recipe, at->sizes, input, at, out, NULL, NULL);
    pthread_mutex_unlock(&recording);
    return n;
}

static void *read_all(kiln_tensor *x)
{
    size_t bytes = (size_t)kiln_numel(x) * kiln_dtype_size(kiln_dtype_of(x));
    void *data = malloc(bytes + 1);
    if (!data || kiln_read(x, kiln_dtype_of(x), data, bytes) != KILN_OK) {
        free(data);
        return NULL;
    }
    return data;
}

/* By the interpreter, in one thread. */
static void expect(Item *at)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *out[RECIPE_OUTPUTS];
    at->n = record(at, out);
    if (at->n > 0 && kiln_eval_many(out, at->n) != KILN_OK)
        at->n = -1;
    for (int k = 0; k < at->n; k++)
        at->out[k] = (Value){kiln_dtype_of(out[k]), kiln_shape_of(out[k]), read_all(out[k])};
    kiln_scope_end(scope);
}

static void wrong(const Item *at, int thread, int k, const char *what)
{
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "thread %d, recipe %llu, seed %llu, output %d: %s (%s)\n", thread, (unsigned long long)at->recipe->seed,
                (unsigned long long)at->seed, k, what, kiln_error_message());
}

static void compute(Item *at, int thread, bool async)
{
    kiln_tensor *out[RECIPE_OUTPUTS];
    int n = record(at, out);
    if (n <= 0)
        return;
    kiln_status status = async ? kiln_eval_many_async(out, n) : kiln_eval_many(out, n);
    if (async && status == KILN_OK)
        status = kiln_wait(out[n - 1]);
    if ((status == KILN_OK) != (at->n >= 0))
        wrong(at, thread, -1, "another status than the interpreter's");
    for (int k = n - 1; k >= 0 && status == KILN_OK && at->n == n; k--) {
        const Value *want = &at->out[k];
        void *got = read_all(out[k]);
        bool alike = got && want->data && kiln_dtype_of(out[k]) == want->dtype && shape_equal(kiln_shape_of(out[k]), want->shape);
        if (!alike || values_differ(want->dtype, shape_elements(want->shape), want->data, got, (Tolerance){0, 0}) >= 0)
            wrong(at, thread, k, alike ? "other bits than the interpreter's" : "no value, or another kind");
        atomic_fetch_add(&compared, 1);
        free(got);
    }
}

static void *work(void *user)
{
    const int thread = *(const int *)user, step = (int[]){1, 7, 11, 13, 17, 19, 23, 29}[thread % 8]; /* none divides ITEMS = 30 but 1 */
    for (int i = 0; i < ITEMS; i++) {
        kiln_scope *scope = kiln_scope_begin();
        compute(&item[(thread / 2 + i * step) % ITEMS], thread, (thread + i) % 3 == 0);
        kiln_scope_end(scope);
        kiln_clear_error();
    }
    return NULL;
}

static uint64_t next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void set(const char *name, const char *value)
{
    if (kiln_set_option(name, value) != KILN_OK)
        kiln_clear_error(); /* of another machine */
}

static void set_options(uint64_t *state)
{
    static const char *const choices[][4] = {
        {"dynamic", "auto", "never", "always"}, {"threads", "1", "2", "0"},       {"fuse", "1", "1", "0"},
        {"vector_bits", "0", "128", "256"},     {"async_compile", "0", "0", "1"}, {"max_variants", "8", "8", "2"},
        {"bands", "auto", "always", "off"}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        set(choices[i][0], choices[i][1 + next(state) % 3]);
}

static void batch(uint64_t seed)
{
    static const int64_t some[] = {0, 1, 2, 3, 5, 8, 9, 16, 23, 32, 40, 64};
    uint64_t state = seed * 2654435761u + 1;
    pthread_t thread[MOST_THREADS];
    int number[MOST_THREADS];
    for (int r = 0; r < RECIPES; r++)
        recipe_random(seed * RECIPES + (uint64_t)r, &recipe[r]);
    set("mode", "interp");
    for (int i = 0; i < ITEMS; i++) {
        item[i] = (Item){.recipe = &recipe[i / SIZES], .seed = seed * ITEMS + (uint64_t)i};
        memcpy(item[i].sizes, recipe[i / SIZES].sizes, sizeof item[i].sizes);
        for (int p = 0; p < PALETTE && i % SIZES; p++)
            if (next(&state) & 1)
                item[i].sizes[p] = some[next(&state) % (sizeof some / sizeof *some)];
        expect(&item[i]);
    }
    kiln_clear_error();
    set("mode", "jit");
    set_options(&state);
    for (int t = 0; t < threads; t++) {
        number[t] = t;
        if (pthread_create(&thread[t], NULL, work, &number[t]) != 0)
            exit(2);
    }
    for (int t = 0; t < threads; t++)
        pthread_join(thread[t], NULL);
    for (int i = 0; i < ITEMS; i++)
        for (int k = 0; k < item[i].n; k++)
            free(item[i].out[k].data);
    for (int i = 0; i < ITEMS; i++)
        for (int k = 0; k < RECIPE_NODES; k++)
            kiln_release(item[i].constant[k]);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    long batches = argc > 1 ? atol(argv[1]) : 4, done = 0;
    double end = seconds() + (argc > 2 ? atof(argv[2]) : 1e9);
    if (argc > 3)
        threads = atoi(argv[3]) < 1 || atoi(argv[3]) > MOST_THREADS ? 8 : atoi(argv[3]);
    set("math", "strict");
    for (; done < batches && seconds() < end && atomic_load(&failures) == 0; done++)
        batch(slice_seed() * 1000 + (uint64_t)done);
    kiln_stats stats = stats_now();
    printf("%ld batches in %d threads: %lld values compared, %lld programs, %lld fallbacks, %d failures\n", done, threads,
           (long long)atomic_load(&compared), (long long)stats.compiles, (long long)stats.fallbacks, atomic_load(&failures));
    return atomic_load(&failures) != 0 || atomic_load(&compared) == 0 || stats.fallbacks != 0;
}

/*
 * What changing shapes cost: guards, look-ups, generalised programs, recompiles, kiln_function.
 *
 *     dynamic [--quick] [--only PART] [--json FILE]
 *
 * Ratios have both sides measured in turns in this process, round after round, and are the median over the rounds. What one thread
 * does is measured in its own processor time, so that other programs on the machine count less. Each part has graphs that no other
 * part has, so it starts without programs.
 */
#include "bench/result.h"
#include "bench/timing.h"
#include <kiln.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 21, QUICK_ROUNDS = 5 };

static bool quick;
static int rounds;

static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "dynamic: %s: %s\n", what, kiln_error_message());
    exit(1);
}

static void option(const char *name, const char *value) { must(kiln_set_option(name, value), name); }

static int compiles(void)
{
    kiln_stats stats;
    kiln_get_stats(&stats);
    return (int)stats.compiles;
}

/* Processor time of this thread: other programs on the machine do not count. */
static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- generalised against static --- */

typedef kiln_tensor *Program(kiln_tensor *x);
static kiln_tensor *chain(kiln_tensor *x) { return kiln_add(kiln_mul(kiln_sin(x), x), kiln_scalar(1)); }
static kiln_tensor *plain(kiln_tensor *x) { return kiln_add(kiln_mul(x, kiln_scalar(3)), x); }
static kiln_tensor *rows_softmax(kiln_tensor *x) { return kiln_softmax(x, 1); }
static kiln_tensor *narrow_softmax(kiln_tensor *x) { return kiln_neg(kiln_softmax(x, 1)); } /* a structure of its own */
static kiln_tensor *rows_norm(kiln_tensor *x) { return kiln_normalize(x, KILN_AXES(1), 1e-5); }
static kiln_tensor *short_norm(kiln_tensor *x) { return kiln_square(kiln_normalize(x, KILN_AXES(1), 1e-5)); }
static kiln_tensor *rows_sum(kiln_tensor *x) { return kiln_sum_axes(x, KILN_AXES(1), false); }
static kiln_tensor *rows_exp(kiln_tensor *x) { return kiln_exp(x); }
static kiln_tensor *branches(kiln_tensor *x)
{
    return kiln_add(kiln_mul(kiln_sin(x), kiln_cos(kiln_neg(x))), x);
} /* (a) of bench/workloads.c */

static kiln_tensor *grown_chain(kiln_tensor *x) { return kiln_add(kiln_mul(kiln_cos(x), x), kiln_scalar(1)); }
static kiln_tensor *grown_plain(kiln_tensor *x) { return kiln_sub(kiln_mul(x, kiln_scalar(3)), x); }
static kiln_tensor *grown_softmax(kiln_tensor *x) { return kiln_abs(kiln_softmax(x, 1)); }
static kiln_tensor *grown_sum(kiln_tensor *x) { return kiln_sum(kiln_abs(x)); }
static kiln_tensor *grown_columns(kiln_tensor *x) { return kiln_sum_axes(kiln_abs(x), KILN_AXES(0), false); }
static kiln_tensor *grown_norm(kiln_tensor *x) { return kiln_abs(kiln_normalize(x, KILN_AXES(1), 1e-5)); }
static kiln_tensor *line_softmax(kiln_tensor *x) { return kiln_square(kiln_softmax(x, 1)); }
static kiln_tensor *line_norm(kiln_tensor *x) { return kiln_neg(kiln_normalize(x, KILN_AXES(1), 1e-5)); }
static kiln_tensor *line_exp(kiln_tensor *x) { return kiln_neg(kiln_exp(x)); }
static kiln_tensor *line_sin(kiln_tensor *x) { return kiln_neg(kiln_sin(x)); }

/* Times a matrix that stays. */
static kiln_tensor *times_matrix(kiln_tensor *x)
{
    static kiln_tensor *matrix;
    const int64_t n = kiln_dim(x, 1);
    if (!matrix)
        matrix = kiln_retain(kiln_uniform(KILN_F32, KILN_SHAPE(n, n), -1, 1));
    must(kiln_eval(matrix), "a matrix");
    return kiln_matmul(x, matrix);
}

static kiln_tensor *few_rows(kiln_tensor *x) { return kiln_neg(times_matrix(x)); }
static kiln_tensor *more_rows(kiln_tensor *x) { return kiln_abs(times_matrix(x)); }
static kiln_tensor *many_rows(kiln_tensor *x) { return kiln_square(times_matrix(x)); }

typedef struct Twin {
    const char *name;
    Program *program; /* another structure in each row: a program that an earlier row made would do */
    int64_t rows, columns;
    bool from_tiny; /* the general program is made for 2x3 */
} Twin;

static const Twin twins_table[] = {
    {"elementwise (light)", plain, 1000, 1003, false},
    {"elementwise (sin)", chain, 1000, 1003, false},
    {"elementwise (sin * cos)", branches, 1000, 1003, false},
    {"elementwise (exp)", rows_exp, 1000, 1003, false},
    {"softmax", rows_softmax, 1000, 1003, false},
    {"softmax", narrow_softmax, 4000, 64, false},
    {"normalize", rows_norm, 1000, 1003, false},
    {"normalize", short_norm, 4000, 400, false},
    {"sums of rows", rows_sum, 1000, 1003, false},
    {"product of few rows", few_rows, 3, 1024, false},
    {"product of 16 rows", more_rows, 16, 1024, false},
    {"product of 200 rows", many_rows, 200, 1024, false},
    {"elementwise (light)", grown_plain, 4000, 4096, true},
    {"elementwise (cos)", grown_chain, 4000, 4096, true},
    {"elementwise (sin)", line_sin, 1, 1000000, true},
    {"elementwise (exp)", line_exp, 1, 1000000, true},
    {"softmax", grown_softmax, 64, 65536, true},
    {"softmax", line_softmax, 1, 1000000, true},
    {"normalize", grown_norm, 1000, 1003, true},
    {"normalize", line_norm, 1, 1000000, true},
    {"sum", grown_sum, 1, 4000000, true},
    {"sums of columns", grown_columns, 1000, 1003, true},
};

static kiln_tensor *uniform(int64_t a, int64_t b)
{
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(a, b), -1, 1);
    must(kiln_eval(x), "input");
    return x;
}

static double once(Program *program, kiln_tensor *x, int repeats)
{
    double start = own_seconds();
    for (int i = 0; i < repeats; i++) {
        kiln_scope *scope = kiln_scope_begin();
        must(kiln_eval(program(x)), "evaluation");
        kiln_scope_end(scope);
    }
    return own_seconds() - start;
}

/* Memory of x's elements, which x is a copy of. */
static float *elements(kiln_tensor *x, int64_t n)
{
    enum { PAGE = 1 << 21 };
    float *data = aligned_alloc(PAGE, ((size_t)n * sizeof(float) + PAGE - 1) / PAGE * PAGE);
    if (!data)
        exit(1);
    must(kiln_read(x, KILN_F32, data, (size_t)n * sizeof(float)), "elements");
    return data;
}

/* The same elements twice: with both axes marked static, and both dynamic, so that each has a program of its own. On one thread. They lie in
 * one memory, as two would differ by how they lie in pages and caches. from_tiny: the general one was made for 2x3. */
static void twins(const Twin *t)
{
    Program *program = t->program;
    int64_t a = t->rows, b = t->columns;
    kiln_scope *scope = kiln_scope_begin();
    float *data = elements(uniform(a, b), a * b);
    kiln_tensor *fixed = kiln_wrap(KILN_F32, KILN_SHAPE(a, b), data, NULL, NULL), *tiny = uniform(2, 3);
    kiln_tensor *general = kiln_wrap(KILN_F32, KILN_SHAPE(a, b), data, NULL, NULL);
    must(kiln_mark_static(fixed, 0), "mark");
    must(kiln_mark_static(fixed, 1), "mark");
    must(kiln_mark_dynamic(general, 0, 0, INT64_MAX), "mark");
    must(kiln_mark_dynamic(general, 1, 0, INT64_MAX), "mark");
    must(kiln_mark_dynamic(tiny, 0, 0, INT64_MAX), "mark");
    must(kiln_mark_dynamic(tiny, 1, 0, INT64_MAX), "mark");
    int before = compiles(), repeats = quick ? 2 : 10;
    (void)once(program, fixed, 3);
    (void)once(program, t->from_tiny ? tiny : general, 3);
    if (compiles() != before + 2)
        fprintf(stderr, "dynamic: %s: %d compiles instead of 2\n", t->name, compiles() - before);
    double ratio[MAX_ROUNDS];
    option("threads", "1");
    for (int r = 0; r < rounds; r++) {
        bool first = r % 2;
        double x = once(program, first ? fixed : general, repeats), y = once(program, first ? general : fixed, repeats);
        ratio[r] = first ? y / x : x / y;
    }
    option("threads", "0");
    char text[64];
    snprintf(text, sizeof text, "%s %dx%d: generalised%s / static", t->name, (int)a, (int)b, t->from_tiny ? " at 2x3" : "");
    result(text, median(ratio, rounds), "", 1.1, false);
    kiln_scope_end(scope);
    free(data);
}

static void general_and_static(void)
{
    for (size_t i = 0; i < sizeof twins_table / sizeof *twins_table; i++)
        twins(&twins_table[i]);
}

/* --- look-ups --- */

/* Seconds of one evaluation, cycling through the inputs. */
static double cycle(Program *program, kiln_tensor **x, int n)
{
    double best[MAX_ROUNDS];
    int turns = quick ? 200 : 2000;
    for (int r = 0; r < rounds; r++) {
        double start = own_seconds();
        for (int i = 0; i < turns; i++) {
            kiln_scope *scope = kiln_scope_begin();
            must(kiln_eval(program(x[i % n])), "evaluation");
            kiln_scope_end(scope);
        }
        best[r] = (own_seconds() - start) / turns;
    }
    return median(best, rounds);
}

/* With `n` static variants met in turn, the one that fits is always the last: n guard sets are checked. */
static double latency(int n)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x[16];
    option("dynamic", "never");
    for (int i = 0; i < n; i++)
        x[i] = uniform(2 + i, 8);
    for (int i = 0; i < n; i++)
        must(kiln_eval(plain(x[i])), "evaluation");
    double seconds = cycle(plain, x, n);
    option("dynamic", "auto");
    kiln_scope_end(scope);
    return seconds;
}

/* One generalised variant of a graph with `rank` integer facts, met with two shapes in turn (so never an exact repeat). */
static double walk(int rank)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x[2];
    option("dynamic", "always");
    for (int i = 0; i < 2; i++) {
        kiln_shape shape = {rank, {1, 1, 1, 1, 1, 1, 1, 1}};
        shape.dim[rank - 1] = 16 + i;
        x[i] = kiln_ones(KILN_F32, shape);
        must(kiln_eval(x[i]), "input");
    }
    must(kiln_eval(plain(x[0])), "evaluation");
    double seconds = cycle(plain, x, 2);
    option("dynamic", "auto");
    kiln_scope_end(scope);
    return seconds;
}

static void lookups(void)
{
    double one = latency(1), four = latency(4), eight = latency(8);
    result("record and evaluate 2 ops, 1 variant", 1e6 * one, "us", 0, false);
    result("the same, 4 variants, the last fits", 1e6 * four, "us", 0, false);
    result("the same, 8 variants, the last fits", 1e6 * eight, "us", 0, false);
    result("guard check per variant", 1e9 * (eight - one) / 7, "ns", 0, false);
    double few = walk(1), many = walk(8);
    result("generalised variant, per integer fact (record to launch)", 1e9 * (many - few) / 7, "ns", 0, false);
}

/* --- recompile storm --- */

static void storm(void)
{
    enum { SHAPES = 10000 };
    static const kiln_dtype other = KILN_F64; /* a signature of its own */
    unsigned state = 1;
    int before = compiles(), calls = quick ? SHAPES / 10 : SHAPES;
    double start = own_seconds();
    for (int i = 0; i < calls; i++) {
        kiln_scope *scope = kiln_scope_begin();
        int64_t dim[3];
        for (int d = 0; d < 3; d++)
            dim[d] = 2 + (int64_t)((state = state * 1664525u + 1013904223u) >> 16) % 24;
        kiln_tensor *x = kiln_full(other, KILN_SHAPE(dim[0], dim[1], dim[2]), 0.5);
        kiln_tensor *y = kiln_sum_axes(kiln_mul(kiln_exp(x), kiln_scalar(i)), KILN_AXES(2), false);
        must(kiln_eval(kiln_reshape(y, KILN_SHAPE(dim[0] * dim[1]))), "storm");
        kiln_scope_end(scope);
    }
    result("storm: compiles for random shapes and scalars", compiles() - before, "", 9, false);
    result("storm: per call", 1e6 * (own_seconds() - start) / calls, "us", 0, false);
}

/* --- a text-like workload: batches of sequences of random length through two layers --- */

enum { WIDTH = 64, HEADS = 4, LAYERS = 2 };

typedef struct Layer {
    kiln_tensor *qkv, *out, *up, *down, *scale, *shift;
} Layer;

static kiln_tensor *attention(kiln_tensor *x, const Layer *l, int64_t batch, int64_t length)
{
    kiln_tensor *part[3];
    must(kiln_split(kiln_matmul(x, l->qkv), 2, 3, NULL, part), "split");
    for (int i = 0; i < 3; i++)
        part[i] = kiln_permute(kiln_reshape(part[i], KILN_SHAPE(batch, length, HEADS, WIDTH / HEADS)), KILN_AXES(0, 2, 1, 3));
    kiln_tensor *score = kiln_mul(kiln_matmul(part[0], kiln_transpose(part[1])), kiln_scalar(0.25));
    kiln_tensor *mixed = kiln_permute(kiln_matmul(kiln_softmax(score, -1), part[2]), KILN_AXES(0, 2, 1, 3));
    return kiln_matmul(kiln_reshape(mixed, KILN_SHAPE(batch, length, WIDTH)), l->out);
}

static kiln_tensor *transformer(kiln_tensor *x, const Layer *layers, int64_t batch, int64_t length)
{
    for (int i = 0; i < LAYERS; i++) {
        const Layer *l = &layers[i];
        x = kiln_add(x, attention(kiln_layer_norm(x, l->scale, l->shift, 1e-5), l, batch, length));
        x = kiln_add(x, kiln_matmul(kiln_relu(kiln_matmul(kiln_layer_norm(x, l->scale, l->shift, 1e-5), l->up)), l->down));
    }
    return kiln_mean_axes(x, KILN_AXES(1), false);
}

/* `other`: a graph of another structure, so that it has programs of its own. */
static double text(int calls, bool other, int *compiled)
{
    Layer layers[LAYERS];
    unsigned state = 5;
    int before = compiles();
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < LAYERS; i++) {
        kiln_tensor *ones = kiln_ones(KILN_F32, KILN_SHAPE(WIDTH)), *zeros = kiln_zeros(KILN_F32, KILN_SHAPE(WIDTH));
        must(kiln_eval(ones), "weights");
        must(kiln_eval(zeros), "weights");
        layers[i] =
            (Layer){uniform(WIDTH, 3 * WIDTH), uniform(WIDTH, WIDTH), uniform(WIDTH, 4 * WIDTH), uniform(4 * WIDTH, WIDTH), ones, zeros};
    }
    static float data[8 * 200 * WIDTH];
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        data[i] = (float)(i % 17) * 0.1f - 0.8f;
    double start = now_seconds();
    for (int i = 0; i < calls; i++) {
        kiln_scope *step = kiln_scope_begin();
        int64_t batch = 1 + (int64_t)((state = state * 1664525u + 1013904223u) >> 16) % 8;
        int64_t length = 1 + (int64_t)((state = state * 1664525u + 1013904223u) >> 16) % 200;
        kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(batch, length, WIDTH), data, NULL, NULL);
        kiln_tensor *y = transformer(x, layers, batch, length);
        must(kiln_eval(other ? kiln_neg(y) : y), "text");
        kiln_scope_end(step);
    }
    double seconds = now_seconds() - start;
    *compiled = compiles() - before;
    kiln_scope_end(scope);
    return seconds;
}

static void text_like(void)
{
    int calls = quick ? 40 : 2000, few = quick ? 4 : 40, fewest = few / 4, n;
    double seconds = text(calls, false, &n);
    result("text: calls", calls, "", 0, false);
    result("text: auto, compiles", n, "", 0, false);
    result("text: auto, all calls", seconds, "s", 0, false);
    result("text: auto, per call", 1e3 * seconds / calls, "ms", 0, false);
    double warm_few = text(few, false, &n), warm_fewest = text(fewest, false, &n); /* the sampled calls, all programs there */
    option("dynamic", "never");
    double fixed = text(few, true, &n);
    result("text: always static, compiles per call", (double)n / few, "", 0, false);
    result("text: always static, the first calls alone", fixed, "s", 0, false);
    result("text: always static / auto with warm programs", fixed / warm_few, "", 0, false);
    option("dynamic", "auto");
    option("mode", "interp");
    double interp = text(fewest, false, &n);
    result("text: interp, a quarter of those calls", interp, "s", 0, false);
    result("text: interp / auto with warm programs", interp / warm_fewest, "", 0, false);
    option("mode", "jit");
}

/* --- kiln_function --- */

static void sum_of_eight(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
    for (int i = 1; i < 8; i++)
        out[0] = kiln_add(out[0], in[i]);
}

/* A call on eight tiny inputs, its one kernel included (bench/function.c has it apart), and recording and evaluating the same. */
static void functions(void)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_function *f = kiln_function_new(sum_of_eight, 8, 1, NULL);
    kiln_tensor *in[8], *out;
    for (int i = 0; i < 8; i++)
        in[i] = uniform(4, 4);
    int turns = quick ? 1000 : 20000;
    double replayed[MAX_ROUNDS], recorded[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        double start = own_seconds();
        for (int i = 0; i < turns; i++) {
            kiln_scope *step = kiln_scope_begin();
            must(kiln_function_call(f, in, &out), "function");
            kiln_scope_end(step);
        }
        replayed[r] = (own_seconds() - start) / turns;
        start = own_seconds();
        for (int i = 0; i < turns; i++) {
            kiln_scope *step = kiln_scope_begin();
            sum_of_eight(in, &out, NULL);
            must(kiln_eval(out), "evaluation");
            kiln_scope_end(step);
        }
        recorded[r] = (own_seconds() - start) / turns;
    }
    result("function of 8 inputs [4,4], a call, kernel included", 1e9 * median(replayed, rounds), "ns", 0, false);
    result("the same recorded and evaluated", 1e9 * median(recorded, rounds), "ns", 0, false);
    kiln_function_free(f);
    kiln_scope_end(scope);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {{"static", general_and_static}, {"lookups", lookups}, {"functions", functions}, {"storm", storm}, {"text", text_like}};
enum { PARTS = sizeof parts / sizeof *parts };

static int usage(void)
{
    fprintf(stderr, "usage: dynamic [--quick] [--only PART] [--json FILE]\nparts:");
    for (int i = 0; i < PARTS; i++)
        fprintf(stderr, " %s", parts[i].name);
    fputc('\n', stderr);
    return 2;
}

int main(int argc, char **argv)
{
    const char *json = NULL;
    int only = -1;
    if (kiln_set_option("cache", "off") != KILN_OK) /* what an earlier run left on disk must not count */
        return 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            quick = true;
        } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            const char *name = argv[++i];
            for (only = PARTS - 1; only >= 0 && strcmp(name, parts[only].name) != 0; only--)
                ;
            if (only < 0)
                return usage();
        } else {
            return usage();
        }
    }
    rounds = quick ? QUICK_ROUNDS : ROUNDS;
    for (int i = 0; i < PARTS; i++)
        if (only < 0 || i == only)
            parts[i].run();
    char more[48];
    snprintf(more, sizeof more, "\"cpus\": %d, \"quick\": %s", cpu_count(), quick ? "true" : "false");
    return json ? write_json(json, more) : 0;
}

/*
 * What functions cost by the kind of their arguments: no argument should be a cliff.
 *
 *     arguments [--json FILE] [FUNCTION...]
 *
 * A row per function and kind: the time of 16,384 elements in cache over that of usual ones, on one thread, in its own processor time.
 * All kinds of a function are measured in turns, round after round; the ratio is that of the least times. Subnormal arguments and
 * results are rows without an aim: what an instruction with one takes is the CPU's (none, or more than a hundred cycles), and the row
 * `mul` is there to compare with. Where few products are subnormal and the others not, AMD's Zen 5 begins again behind each vector.
 */
#include "bench/result.h"
#include "bench/timing.h"
#include <kiln.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ELEMENTS = 1 << 14, WIDTH = 256, ROUNDS = 15, CALLS = 8 };

static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "arguments: %s: %s\n", what, kiln_error_message());
    exit(1);
}

static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double uniform(double low, double high)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return low + (high - low) * (double)(state >> 11) * 0x1p-53;
}

static double usual(void) { return uniform(-4, 4); }
static double beyond(void) { return uniform(-1000, 1000); }
static double few_minus_inf(void) { return uniform(0, 1) < 0.01 ? -INFINITY : usual(); }
static double minus_inf(void) { return -INFINITY; }
static double few_large(void) { return uniform(0, 1) < 0.01 ? 1e30 : usual(); }
static double large(void) { return uniform(-1e30, 1e30); }
static double million(void) { return uniform(-1e6, 1e6); }
static double not_a_number(void) { return NAN; }
static double little_result(void) { return uniform(-103, -88); }
static double subnormal(void) { return uniform(-1e-39, 1e-39); }
static double subnormal_square(void) { return uniform(-1e-20, 1e-20); }
static double few_subnormal(void) { return uniform(0, 1) < 0.01 ? subnormal() : usual(); }

static const struct Kind {
    const char *name;
    double (*draw)(void);
    bool aim;
} kinds[] = {
    {"usual", usual, true},
    {"beyond the range, +-1000", beyond, true},
    {"1 % minus infinity", few_minus_inf, true},
    {"minus infinity", minus_inf, true},
    {"1 % of 1e30", few_large, true},
    {"large, +-1e30", large, true},
    {"+-1e6", million, true},
    {"NaN", not_a_number, true},
    {"-103 to -88, where e^x is subnormal in f32", little_result, false},
    {"subnormal", subnormal, false},
    {"1 % subnormal", few_subnormal, false},
    {"+-1e-20, whose square is subnormal in f32", subnormal_square, true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef kiln_tensor *Function(kiln_tensor *x);

/* clang-format off */
static kiln_tensor *f_mul(kiln_tensor *x)         { return kiln_mul(x, kiln_scalar(0.25)); }
static kiln_tensor *f_exp(kiln_tensor *x)         { return kiln_exp(x); }
static kiln_tensor *f_exp2(kiln_tensor *x)        { return kiln_exp2(x); }
static kiln_tensor *f_expm1(kiln_tensor *x)       { return kiln_expm1(x); }
static kiln_tensor *f_sigmoid(kiln_tensor *x)     { return kiln_sigmoid(x); }
static kiln_tensor *f_silu(kiln_tensor *x)        { return kiln_silu(x); }
static kiln_tensor *f_tanh(kiln_tensor *x)        { return kiln_tanh(x); }
static kiln_tensor *f_softplus(kiln_tensor *x)    { return kiln_softplus(x); }
static kiln_tensor *f_erf(kiln_tensor *x)         { return kiln_erf(x); }
static kiln_tensor *f_gelu(kiln_tensor *x)        { return kiln_gelu(x); }
static kiln_tensor *f_log(kiln_tensor *x)         { return kiln_log(x); }
static kiln_tensor *f_sin(kiln_tensor *x)         { return kiln_sin(x); }
static kiln_tensor *f_cos(kiln_tensor *x)         { return kiln_cos(x); }
static kiln_tensor *f_tan(kiln_tensor *x)         { return kiln_tan(x); }
static kiln_tensor *f_softmax(kiln_tensor *x)     { return kiln_softmax(x, 1); }
static kiln_tensor *f_log_softmax(kiln_tensor *x) { return kiln_log_softmax(x, 1); }
/* clang-format on */

static const struct Measured {
    const char *name;
    Function *f;
    double aim;
} functions[] = {
    {"mul", f_mul, 1.3},   {"exp", f_exp, 1.3},         {"exp2", f_exp2, 1.3}, {"expm1", f_expm1, 1.3},
    {"silu", f_silu, 1.3}, {"sigmoid", f_sigmoid, 1.3}, {"tanh", f_tanh, 1.3}, {"softplus", f_softplus, 1.3},
    {"erf", f_erf, 1.3},   {"gelu", f_gelu, 1.3},       {"log", f_log, 1.3},   {"softmax", f_softmax, 1.3},
    {"sin", f_sin, 2},     {"cos", f_cos, 2},           {"tan", f_tan, 2},     {"log_softmax", f_log_softmax, 1.3},
};

static kiln_tensor *input(kiln_dtype dtype, const struct Kind *kind)
{
    static float f32[ELEMENTS];
    static double f64[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) {
        f64[i] = kind->draw();
        f32[i] = (float)f64[i];
    }
    kiln_tensor *x = kiln_from(dtype, KILN_SHAPE(ELEMENTS / WIDTH, WIDTH), dtype == KILN_F64 ? (const void *)f64 : (const void *)f32);
    must(kiln_eval(x), "input");
    return x;
}

static double calls(const struct Measured *m, kiln_tensor *x)
{
    double start = own_seconds();
    for (int i = 0; i < CALLS; i++) {
        kiln_scope *scope = kiln_scope_begin();
        must(kiln_eval(m->f(x)), m->name);
        kiln_scope_end(scope);
    }
    return (own_seconds() - start) / CALLS;
}

static void measure(const struct Measured *m, const char *dtype, kiln_tensor **x)
{
    double least[KINDS];
    for (int k = 0; k < KINDS; k++)
        least[k] = INFINITY;
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < KINDS; k++)
            least[k] = fmin(least[k], calls(m, x[k]));
    char name[80];
    snprintf(name, sizeof name, "%s %s: an element, usual", m->name, dtype);
    result(name, 1e9 * least[0] / ELEMENTS, "ns", 0, false);
    for (int k = 1; k < KINDS; k++) {
        snprintf(name, sizeof name, "%s %s: %s", m->name, dtype, kinds[k].name);
        result(name, least[k] / least[0], "", kinds[k].aim ? m->aim : 0, false);
    }
}

/* Is the function (NULL: any) one of those in argv from `first` up to `end`? */
static bool is_named(char **argv, int first, int end, const struct Measured *m)
{
    for (int i = first; i < end; i++)
        for (size_t k = 0; k < sizeof functions / sizeof *functions; k++)
            if ((!m || m == &functions[k]) && !strcmp(argv[i], functions[k].name))
                return true;
    return false;
}

int main(int argc, char **argv)
{
    const char *json = NULL;
    int first = 1; /* of the functions named */
    if (argc > 2 && !strcmp(argv[1], "--json")) {
        json = argv[2];
        first = 3;
    }
    for (int i = first; i < argc; i++)
        if (!is_named(argv, i, i + 1, NULL))
            return fprintf(stderr, "usage: arguments [--json FILE] [FUNCTION...]\n"), 2;
    must(kiln_set_option("threads", "1"), "threads");
    must(kiln_set_option("cache", "off"), "cache");
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64};
    for (int d = 0; d < 2; d++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x[KINDS];
        for (int k = 0; k < KINDS; k++)
            x[k] = input(dtypes[d], &kinds[k]);
        for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
            if (first == argc || is_named(argv, first, argc, &functions[i]))
                measure(&functions[i], d ? "f64" : "f32", x);
        kiln_scope_end(scope);
    }
    return json && write_json(json, "\"elements\": 16384") ? 1 : 0;
}

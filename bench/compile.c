/*
 * What the compiler takes for functions that are many instructions: one of each, and chains.
 *
 *     compile [--quick] [--json FILE]
 *
 * A row is the processor time of a first evaluation of some 1,024 elements (all threads', the compiler's among them) less that of a second
 * one; the median over several sizes, each of which has a program of its own (dynamic=never). The cache on disk is off.
 */
#include "bench/result.h"
#include "bench/timing.h"
#include <kiln.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZES = 7, ELEMENTS = 1024 };

static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "compile: %s: %s\n", what, kiln_error_message());
    exit(1);
}

static double process_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef kiln_tensor *Function(kiln_tensor *x);

/* clang-format off */
static kiln_tensor *f_add(kiln_tensor *x)      { return kiln_add(x, x); }
static kiln_tensor *f_exp(kiln_tensor *x)      { return kiln_exp(x); }
static kiln_tensor *f_log(kiln_tensor *x)      { return kiln_log(x); }
static kiln_tensor *f_sin(kiln_tensor *x)      { return kiln_sin(x); }
static kiln_tensor *f_cos(kiln_tensor *x)      { return kiln_cos(x); }
static kiln_tensor *f_tan(kiln_tensor *x)      { return kiln_tan(x); }
static kiln_tensor *f_tanh(kiln_tensor *x)     { return kiln_tanh(x); }
static kiln_tensor *f_sigmoid(kiln_tensor *x)  { return kiln_sigmoid(x); }
static kiln_tensor *f_erf(kiln_tensor *x)      { return kiln_erf(x); }
static kiln_tensor *f_gelu(kiln_tensor *x)     { return kiln_gelu(x); }
static kiln_tensor *f_pow(kiln_tensor *x)      { return kiln_pow(kiln_abs(x), x); }
static kiln_tensor *f_atan2(kiln_tensor *x)    { return kiln_atan2(kiln_neg(x), x); }

static const struct Compiled {
    const char *name;
    Function *f;
    kiln_dtype dtype;
    int times;   /* in a chain */
    double aim;  /* ms */
    bool slow;   /* left out by --quick */
} rows[] = {
    {"add f32",     f_add,     KILN_F32, 1, 0, false},    {"exp f32",    f_exp,  KILN_F32, 1, 0, false},
    {"log f32",     f_log,     KILN_F32, 1, 0, false},    {"sin f32",    f_sin,  KILN_F32, 1, 3, false},
    {"cos f32",     f_cos,     KILN_F32, 1, 0, false},    {"tan f32",    f_tan,  KILN_F32, 1, 0, false},
    {"tanh f32",    f_tanh,    KILN_F32, 1, 0, false},    {"sigmoid f32", f_sigmoid, KILN_F32, 1, 0, false},
    {"erf f32",     f_erf,     KILN_F32, 1, 0, false},    {"gelu f32",   f_gelu, KILN_F32, 1, 0, false},
    {"pow f32",     f_pow,     KILN_F32, 1, 0, false},    {"atan2 f32",  f_atan2, KILN_F32, 1, 0, false},
    {"exp f64",     f_exp,     KILN_F64, 1, 0, false},    {"sin f64",    f_sin,  KILN_F64, 1, 0, false},
    {"tan f64",     f_tan,     KILN_F64, 1, 0, false},    {"pow f64",    f_pow,  KILN_F64, 1, 0, false},
    {"1,000 add f32", f_add,   KILN_F32, 1000, 0, false}, {"10 sin f32", f_sin,  KILN_F32, 10, 0, false},
    {"100 sin f32", f_sin,     KILN_F32, 100, 0, false},  {"1,000 sin f32", f_sin, KILN_F32, 1000, 500, true},
    {"100 sin f64", f_sin,     KILN_F64, 100, 0, true},   
    {"100 tanh f32", f_tanh,   KILN_F32, 100, 0, false},  {"1,000 tanh f32", f_tanh, KILN_F32, 1000, 0, true},
};
/* clang-format on */

static double evaluate(const struct Compiled *row, kiln_tensor *x)
{
    double start = process_seconds();
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = x;
    for (int i = 0; i < row->times; i++)
        y = row->f(y);
    must(kiln_eval(y), row->name);
    kiln_scope_end(scope);
    return process_seconds() - start;
}

static void measure(const struct Compiled *row)
{
    double taken[SIZES];
    int sizes = row->times >= 100 ? 3 : SIZES;
    for (int i = 0; i < sizes; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_uniform(row->dtype, KILN_SHAPE(ELEMENTS + 64 * i), 0, 1);
        must(kiln_eval(x), "input");
        double first = evaluate(row, x);
        taken[i] = first - evaluate(row, x);
        kiln_scope_end(scope);
    }
    result(row->name, 1e3 * median(taken, sizes), "ms", row->aim, false);
}

int main(int argc, char **argv)
{
    const char *json = NULL;
    bool quick = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick"))
            quick = true;
        else if (!strcmp(argv[i], "--json") && i + 1 < argc)
            json = argv[++i];
        else
            return fprintf(stderr, "usage: compile [--quick] [--json FILE]\n"), 2;
    }
    must(kiln_set_option("cache", "off"), "cache");
    must(kiln_set_option("threads", "1"), "threads");
    must(kiln_set_option("dynamic", "never"), "dynamic");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!quick || !rows[i].slow)
            measure(&rows[i]);
    return json && write_json(json, "") ? 1 : 0;
}

/*
 * The demo: what fusing and compiling is worth. Runs each workload in eager mode (each function is its own kernel, at once) and in
 * jit mode in one process and prints a table; then shows one graph on its way through the compiler, and why it is or is not compiled
 * again for other inputs.
 *
 *     demo            full sizes (about 1 GB of memory)
 *     demo --quick    an eighth of the work, for a first look and as a test
 *
 * "bytes" are those that kernels read and write. GB/s of a copy is measured here too, in turns with the workloads, because memory
 * speed on a shared machine changes from minute to minute.
 */
#include "bench/hand.h"
#include "bench/timing.h"
#include "bench/workloads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPY_FLOATS = 1 << 24, FEWEST = 3, MOST = 9 };
static const double ENOUGH_SECONDS = 0.6;

/* Prints kiln's message and ends: a demo has nobody to hand an error to. */
static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "demo: %s: %s\n", what, kiln_error_message());
    exit(1);
}

/* ---- the copy ---- */

typedef struct Copy {
    float *to;
    const float *from;
    size_t n;
} Copy;

static void copy_part(void *copy_, int part, int parts)
{
    const Copy *c = copy_;
    size_t step = (c->n / (size_t)parts + 15) / 16 * 16, lo = step * (size_t)part;
    size_t hi = lo + step < c->n ? lo + step : c->n;
    if (lo < hi)
        hand_best()->copy(c->to + lo, c->from + lo, hi - lo, false);
}

static double copy_bandwidth(const Copy *copy)
{
    Copy c = *copy;
    run_parts(cpu_count(), copy_part, &(Copy){c.to, c.from, 0}); /* threads ready */
    double start = now_seconds();
    run_parts(cpu_count(), copy_part, &c);
    double time = now_seconds() - start;
    stop_parts();
    return 2.0 * sizeof(float) * (double)c.n / time;
}

/* ---- one workload in one mode ---- */

typedef struct Result {
    double first, time, bytes, copy; /* seconds, seconds, bytes, bytes per second */
    long long kernels;
} Result;

/* One evaluation; its time. */
static double run_once(const Workload *w, kiln_tensor **in)
{
    kiln_scope *scope = kiln_scope_begin();
    double start = now_seconds();
    must(kiln_eval(w->graph(in)), w->name);
    double time = now_seconds() - start;
    kiln_scope_end(scope);
    return time;
}

static Result measure(const Workload *w, kiln_tensor **in, const char *mode, const Copy *copy)
{
    must(kiln_set_option("mode", mode), "mode");
    Result r = {0};
    double times[MAX_ROUNDS], copies[MAX_ROUNDS], spent = 0;
    kiln_stats before, after;
    r.first = run_once(w, in);
    kiln_get_stats(&before);
    run_once(w, in);
    kiln_get_stats(&after);
    r.kernels = after.kernels - before.kernels;
    r.bytes = (double)(after.bytes_moved - before.bytes_moved);
    int n = 0;
    while (n < FEWEST || (n < MOST && spent < ENOUGH_SECONDS)) {
        copies[n] = copy_bandwidth(copy);
        spent += times[n] = run_once(w, in);
        n++;
    }
    r.time = median(times, n);
    r.copy = median(copies, n);
    return r;
}

static void print_row(const Workload *w, const char *mode, const Result *r, const Result *eager)
{
    char speedup[16] = "";
    if (eager)
        snprintf(speedup, sizeof speedup, "%.1fx", eager->time / r->time);
    printf("%-10s %-5s %7lld %9.1f %9.2f %7.1f %7.0f%% %8s %9.1f\n", w->name, mode, r->kernels, r->bytes * 1e-6, r->time * 1e3,
           r->bytes / r->time * 1e-9, 100 * r->bytes / r->time / r->copy, speedup, r->first * 1e3);
}

static void run_workload(const Workload *w, int small, const Copy *copy)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[WORKLOAD_INPUTS];
    kiln_seed(1);
    must(kiln_set_option("mode", "jit"), "mode");
    must(workload_inputs(w, w->dtype, small, in), "inputs");
    Result eager = measure(w, in, "eager", copy), jit = measure(w, in, "jit", copy);
    print_row(w, "eager", &eager, NULL);
    print_row(w, "jit", &jit, &eager);

    /* The two must agree, or the table means nothing. */
    double value[2];
    const char *const modes[] = {"eager", "jit"};
    for (int i = 0; i < 2; i++) {
        must(kiln_set_option("mode", modes[i]), "mode");
        must(kiln_item(kiln_mean(kiln_cast(w->graph(in), KILN_F64)), &value[i]), "check");
    }
    if (!(fabs(value[0] - value[1]) <= 1e-4 * (fabs(value[0]) + 1e-3))) {
        fprintf(stderr, "demo: %s: eager gives %.9g, jit gives %.9g\n", w->name, value[0], value[1]);
        exit(1);
    }
    kiln_scope_end(scope);
}

static void table(int small)
{
    Copy copy = {new_floats(COPY_FLOATS, 0, 0), new_floats(COPY_FLOATS, 0, 1), (size_t)(small ? COPY_FLOATS / 8 : COPY_FLOATS)};
    printf("kiln %s, %d CPUs, loops by hand: %s, copy of %zu MB with plain stores: %.1f GB/s read + written\n\n", kiln_version(),
           cpu_count(), hand_best()->name, copy.n * sizeof(float) >> 20, copy_bandwidth(&copy) * 1e-9);
    printf("%-10s %-5s %7s %9s %9s %7s %8s %8s %9s\n", "workload", "mode", "kernels", "MB moved", "ms", "GB/s", "of copy", "speed-up",
           "first ms");
    for (int i = 0; i < n_workloads; i++)
        run_workload(&workloads[i], small, &copy);
    printf("\n");
    for (int i = 0; i < n_workloads; i++)
        printf("  %-10s %s, %s%s\n", workloads[i].name, workloads[i].formula, workloads[i].size, small ? " (an eighth of it)" : "");
    printf("  first ms   the first call, which compiles; ms: median of the later ones\n");
    free(copy.to);
    free((void *)copy.from);
}

/* ---- one graph through the compiler ---- */

static void to_stdout(void *user, int level, const char *topic, const char *line)
{
    (void)user;
    printf("  %s%-10s %s\n", level == 0 ? "warning " : "", topic, line);
}

/* Rows scaled to length one, then cut off: small, but with a reduction in the middle. */
static kiln_tensor *unit_rows(kiln_tensor *x)
{
    kiln_tensor *length = kiln_sqrt(kiln_sum_axes(kiln_mul(x, x), KILN_AXES(-1), true));
    kiln_tensor *scaled = kiln_div(x, kiln_add(length, kiln_scalar(0)));
    return kiln_relu(kiln_mul(scaled, kiln_scalar(1)));
}

static void show(const char *what, kiln_tensor *x, const char *topics)
{
    printf("\n%s\n", what);
    must(kiln_set_option("log", topics), "log");
    must(kiln_eval(unit_rows(x)), what);
    must(kiln_set_option("log", ""), "log");
}

static void walk_through(void)
{
    printf("\nOne graph on its way through the compiler (what KILN_LOG shows)\n");
    must(kiln_set_option("mode", "jit"), "mode");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x[] = {
        kiln_uniform(KILN_F32, KILN_SHAPE(1000, 256), -1, 1),
        kiln_uniform(KILN_F32, KILN_SHAPE(500, 256), -1, 1),
        kiln_uniform(KILN_F32, KILN_SHAPE(123, 256), -1, 1),
        kiln_uniform(KILN_F64, KILN_SHAPE(123, 256), -1, 1),
    };
    must(kiln_eval_many(x, 4), "inputs");
    kiln_set_log_sink(to_stdout, NULL);
    show("f32[1000,256], never seen: compiled", x[0], "graph,passes,fusion,kernels,memory,guards,recompiles,timing");
    show("f32[1000,256] again: nothing to say, it is in the cache", x[0], "recompiles");
    show("f32[500,256]: another number of rows", x[1], "recompiles,guards");
    show("f32[123,256]: any number of rows fits now", x[2], "recompiles");
    show("f64[123,256]: another dtype", x[3], "recompiles");
    kiln_set_log_sink(NULL, NULL);
    kiln_scope_end(scope);

    kiln_stats stats;
    kiln_get_stats(&stats);
    printf("\n%lld evaluations: %lld found their program, %lld did not; %lld programs compiled in %.1f ms\n", (long long)stats.evals,
           (long long)stats.hits, (long long)stats.misses, (long long)stats.compiles, stats.compile_seconds * 1e3);
    for (int i = 0; i < KILN_MISS_REASONS && kiln_miss_reason(i); i++)
        if (stats.miss[i])
            printf("  %4lld x %s\n", (long long)stats.miss[i], kiln_miss_reason(i));
}

int main(int argc, char **argv)
{
    int small = argc > 1 && strcmp(argv[1], "--quick") == 0;
    if (kiln_set_option("cache", "off") != KILN_OK) /* what an earlier run left on disk must not count */
        return 1;
    if (argc > 2 || (argc == 2 && !small)) {
        fprintf(stderr, "usage: demo [--quick]\n");
        return 2;
    }
    table(small);
    walk_through();
    return 0;
}

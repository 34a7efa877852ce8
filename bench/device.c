/*
 * The workloads on a CUDA device, measured; one part of bench/gpu, which calls it once for each part so that
 * a crash costs that part alone.
 *
 *     device [--small N] [--rows FILE] [--scratch DIR] PART [NAME]
 *
 *     list                names of the workloads, in the order in which they are measured
 *     describe            the same with what another program needs to do the same work: a line for each input
 *     facts               the device, its driver
 *     workload NAME       time, rates, kernels, largest error
 *     host                what a call costs the host
 *     cold NAME           first calls in fresh processes: compiled; loaded from the cache on disk (in the folder DIR)
 *     first NAME          one such first call; prints milliseconds
 *     check               every workload once, against its reference: for compute-sanitizer
 *
 * How time is taken: inputs rotate over sets that together exceed the device's L2 cache by far. Calls go on
 * for 0.3 s before a clock starts. Then 15 rounds: a batch of calls, long enough for the clock (20 ms), each
 * recorded and queued as a user's would be, and one wait at its end; the figure is the median of the rounds,
 * per call. After each round the driver's own copy is measured the same way: "of copy" has both sides in
 * turns. bench/yardsticks.py does the same for other programs, on the same inputs: element i of an input is a
 * hash of i and a seed.
 *
 * The result of the last timed call is compared with a reference in f64: all rows, or a sample of them spread
 * over the whole; the error is the largest difference over the largest reference value.
 */
#include "bench/cuda_yardstick.h"
#include "bench/result.h"
#include "bench/timing.h"
#include "bench/workloads.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15, MAX_SETS = 32, MAX_BATCH = 2000, PROCESSES = 5 };
static const double BATCH_SECONDS = 0.02, WARM_SECONDS = 0.3;
static const size_t COPY_BYTES = (size_t)256 << 20;

static kiln_tensor *graph_copy(kiln_tensor **in) { return kiln_neg(in[0]); }
static void reference_copy(const HostInput *in, int64_t row, double *out) { *out = -(double)in[0].data[row]; }
static const Workload copy = {"copy",     "-x",           "2^26 f32", KILN_F32, 1, 1, {{1, {1 << 26}, {false}, -3, 3}},
                              graph_copy, reference_copy, false};

/* What is measured, with the aims of the project: microseconds on an H200, of the speed of a copy on any device. */
typedef struct Measured {
    const char *name, *workload; /* names that end in tf32 have the option of that name on */
    kiln_dtype dtype;
    double aim_us, aim_copy;
    int kernels; /* 0: no aim */
} Measured;

static const Measured measured[] = {
    {"copy", NULL, KILN_F32, 0, 0, 1},   {"a", "a", KILN_F32, 0, 0.90, 1},           {"b", "b", KILN_F32, 13, 0, 1},
    {"e", "e", KILN_F32, 0, 0.92, 1},    {"softmax", "softmax", KILN_F32, 35, 0, 1}, {"layer_norm", "layer_norm", KILN_F32, 35, 0, 1},
    {"c_f32", "c", KILN_F32, 0, 0, 2},   {"c_tf32", "c", KILN_F32, 12, 0, 2},        {"c_bf16", "c", KILN_BF16, 9, 0, 2},
    {"c_f16", "c", KILN_F16, 9, 0, 2},   {"g_f32", "g", KILN_F32, 0, 0, 2},          {"g_tf32", "g", KILN_F32, 0, 0, 2},
    {"g_bf16", "g", KILN_BF16, 0, 0, 2}, {"g_f16", "g", KILN_F16, 0, 0, 2},
};
enum { N_MEASURED = sizeof measured / sizeof *measured };

static int small;
static FILE *rows_file;
static const char *program, *current = "device", *scratch = ".";
static CudaFacts facts;

static bool uses_tf32(const Measured *m) { return strstr(m->name, "tf32") != NULL; }
static const Workload *workload_of(const Measured *m) { return m->workload ? workload_named(m->workload) : &copy; }

/* --- rows ----------------------------------------------------------------------------------------------- */

static void row(const char *what, const char *who, double value, const char *unit, double aim, bool at_least, Outcome outcome,
                const char *note)
{
    Row r = {.value = value, .aim = aim, .at_least = at_least, .outcome = outcome};
    snprintf(r.name, sizeof r.name, "%s: %s", current, what);
    snprintf(r.who, sizeof r.who, "%s", who);
    snprintf(r.unit, sizeof r.unit, "%s", unit);
    snprintf(r.note, sizeof r.note, "%s", note);
    if (rows_file)
        write_line(rows_file, &r);
    printf("%-44s %-7s %12.5g %-8s%s %s\n", r.name, r.who, r.value, r.unit, outcome == ROW_FAILED ? " FAILED" : "", r.note);
    fflush(stdout);
}

static void figure(const char *what, double value, const char *unit) { row(what, "kiln", value, unit, 0, false, ROW_OK, ""); }

/* Ends the part with a row that says why. */
static _Noreturn void give_up(const char *what, const char *why)
{
    row(what, "kiln", NAN, "", 0, false, ROW_FAILED, why);
    exit(1);
}

static void must(kiln_status status, const char *what)
{
    if (status != KILN_OK)
        give_up(what, kiln_error_message());
}

/* --- inputs --------------------------------------------------------------------------------------------- */

/* A hash with good avalanche (lowbias32, Chris Wellons 2018), the upper 24 bits of it scaled to low..high. */
static float hashed(uint32_t i, uint32_t seed, double low, double high)
{
    uint32_t x = i + seed * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    return (float)(low + (high - low) * ((double)(x >> 8) * 0x1p-24));
}

static void choose_tf32(const Measured *m) { must(kiln_set_option("tf32", uses_tf32(m) ? "1" : "0"), "option tf32"); }

static uint32_t seed_of(int set, int input) { return (uint32_t)(set * WORKLOAD_INPUTS + input + 1); }

static HostInput host_input(const Workload *w, int set, int input)
{
    kiln_shape shape = workload_shape(w, input, small);
    HostInput h = {.rows = shape.dim[0], .columns = shape.rank > 1 ? shape.dim[1] : 1};
    double low, high;
    workload_range(w, input, small, &low, &high);
    int64_t n = h.rows * h.columns;
    float *data = malloc(sizeof *data * (size_t)n);
    if (!data)
        give_up("inputs", "no memory on the host");
    for (int64_t i = 0; i < n; i++)
        data[i] = hashed((uint32_t)i, seed_of(set, input), low, high);
    h.data = data;
    return h;
}

static void make_set(const Measured *m, int set, kiln_tensor **in)
{
    const Workload *w = workload_of(m);
    for (int i = 0; i < w->n_inputs; i++) {
        HostInput h = host_input(w, set, i);
        in[i] = kiln_from(KILN_F32, workload_shape(w, i, small), h.data);
        if (m->dtype != KILN_F32)
            in[i] = kiln_cast(in[i], m->dtype);
        must(kiln_wait(in[i]), "inputs");
        free((void *)h.data);
    }
}

/* --- results against the reference ---------------------------------------------------------------------- */

static float *host_copy(kiln_tensor *x)
{
    size_t bytes = (size_t)kiln_numel(x) * sizeof(float);
    float *data = malloc(bytes);
    if (!data)
        give_up("check", "no memory on the host");
    must(kiln_read(kiln_cast(x, KILN_F32), KILN_F32, data, bytes), "reading");
    return data;
}

static double tolerance(const Measured *m)
{
    if (m->dtype == KILN_BF16)
        return 2e-2;
    if (m->dtype == KILN_F16)
        return 4e-3;
    return uses_tf32(m) ? 2e-3 : 2e-5;
}

/* The largest error of `result` on inputs `in`, those of set `set`. */
static double error_of(const Measured *m, int set, kiln_tensor **in, kiln_tensor *result_)
{
    const Workload *w = workload_of(m);
    HostInput host[WORKLOAD_INPUTS];
    for (int i = 0; i < w->n_read; i++) {
        host[i] = host_input(w, set, i);
        if (m->dtype != KILN_F32) { /* as rounded on the device */
            free((void *)host[i].data);
            host[i].data = host_copy(in[i]);
        }
    }
    float *got = host_copy(result_);
    int64_t rows = host[0].rows, columns = w->sums ? 1 : kiln_numel(result_) / rows;
    double flops = w->input[1].rank == 2 ? 4.0 * (double)(host[1].rows * host[1].columns) : (double)columns;
    int64_t most = (int64_t)(1e9 / flops), step = w->sums || rows <= most ? 1 : rows / most;
    double worst = 0, scale = 0, sum = 0, *want = calloc((size_t)columns, sizeof *want);
    if (!want)
        give_up("check", "no memory on the host");
    for (int64_t r = 0; r < rows; r += step) {
        int64_t at = r + step < rows ? r : rows - 1; /* the last row always */
        w->reference(host, at, want);
        if (w->sums) {
            sum += want[0];
            continue;
        }
        for (int64_t j = 0; j < columns; j++) {
            double difference = fabs((double)got[at * columns + j] - want[j]);
            worst = difference <= worst ? worst : difference; /* NaN stays */
            scale = fmax(scale, fabs(want[j]));
        }
    }
    if (w->sums) {
        worst = fabs((double)got[0] - sum);
        scale = fabs(sum);
    }
    free(want);
    free(got);
    for (int i = 0; i < w->n_read; i++)
        free((void *)host[i].data);
    return scale > 0 ? worst / scale : NAN;
}

static bool error_row(const Measured *m, double error)
{
    bool fine = error <= tolerance(m); /* false for NaN */
    row("error", "kiln", error, "", tolerance(m), false, fine ? ROW_OK : ROW_FAILED, fine ? "" : "the result is wrong");
    return fine;
}

/* --- one workload --------------------------------------------------------------------------------------- */

typedef struct Run {
    const Workload *w;
    kiln_tensor *in[MAX_SETS][WORKLOAD_INPUTS];
    int sets, next;          /* of the call to come */
    kiln_function *function; /* calls go through it; NULL: they are recorded */
    kiln_tensor *last;       /* the result of the last batch */
    int last_set;
} Run;

static void body(kiln_tensor **in, kiln_tensor **out, void *workload) { out[0] = ((const Workload *)workload)->graph(in); }

/* Seconds per call of `n` calls and one wait. */
static double batch(Run *run, int n)
{
    kiln_release(run->last);
    double start = now_seconds();
    for (int i = 0; i < n; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = NULL;
        run->last_set = run->next;
        run->next = (run->next + 1) % run->sets;
        if (run->function)
            must(kiln_function_call(run->function, run->in[run->last_set], &y), "function");
        else
            y = run->w->graph(run->in[run->last_set]);
        must(i + 1 < n ? kiln_eval(y) : kiln_wait(y), "run");
        run->last = i + 1 < n ? NULL : kiln_retain(y);
        kiln_scope_end(scope);
    }
    return (now_seconds() - start) / n;
}

/* The size of a batch that takes about BATCH_SECONDS. Uses every set, and the device long enough for its
 * clocks to rise. */
static int warm_up(Run *run)
{
    double start = now_seconds(), time = batch(run, run->sets);
    do
        time = fmin(time, batch(run, run->sets));
    while (small < 3 && now_seconds() - start < WARM_SECONDS);
    double calls = (small >= 3 ? 0.1 : 1) * BATCH_SECONDS / time;
    return calls < 1 ? 1 : calls > MAX_BATCH ? MAX_BATCH : (int)calls;
}

/* Seconds per call, the median of the rounds. */
static double seconds_anew(Run *run, int rounds)
{
    double time[MAX_ROUNDS];
    int calls = warm_up(run);
    for (int r = 0; r < rounds; r++)
        time[r] = batch(run, calls);
    return median(time, rounds);
}

static int sets_for(size_t bytes)
{
    if (small >= 3)
        return 2;
    size_t sets = 3 * facts.l2_bytes / bytes + 1;
    return sets < 3 ? 3 : sets > MAX_SETS ? MAX_SETS : (int)sets;
}

/* Bytes of the inputs that matter, in the dtype measured. */
static size_t input_bytes(const Measured *m)
{
    const Workload *w = workload_of(m);
    size_t bytes = 0;
    for (int i = 0; i < w->n_read; i++) {
        kiln_shape shape = workload_shape(w, i, small);
        bytes += (size_t)(shape.dim[0] * (shape.rank > 1 ? shape.dim[1] : 1)) * kiln_dtype_size(m->dtype);
    }
    return bytes;
}

static void workload_part(const Measured *m)
{
    const Workload *w = workload_of(m);
    kiln_scope *scope = kiln_scope_begin();
    static Run run;
    size_t bytes = input_bytes(m), copy_bytes = COPY_BYTES >> (3 * small);
    run = (Run){.w = w, .sets = sets_for(bytes)};
    for (int s = 0; s < run.sets; s++)
        make_set(m, s, run.in[s]);

    kiln_stats before, after;
    kiln_get_stats(&before);
    double first = batch(&run, 1);
    kiln_get_stats(&after);
    double kernels = (double)(after.kernels - before.kernels);
    bytes += (size_t)kiln_numel(run.last) * kiln_dtype_size(kiln_dtype_of(run.last));
    if (after.fallbacks != before.fallbacks)
        give_up("run", "it did not compile: the interpreter computed it (KILN_STRICT=1 says why)");

    int calls = warm_up(&run), rounds = small >= 3 ? 2 : small ? 5 : ROUNDS;
    double time[MAX_ROUNDS], of_copy[MAX_ROUNDS], copied[MAX_ROUNDS];
    (void)yardstick_copy(copy_bytes, 2);
    for (int r = 0; r < rounds; r++) {
        time[r] = batch(&run, calls);
        copied[r] = 2 * (double)copy_bytes / yardstick_copy(copy_bytes, small >= 3 ? 2 : 20);
        of_copy[r] = (double)bytes / time[r] / copied[r];
    }
    double seconds = median(time, rounds), error = error_of(m, run.last_set, run.in[run.last_set], run.last);

    double without_graphs = NAN;
    if (kernels > 1 && kiln_set_option("cuda_graphs", "0") == KILN_OK) {
        without_graphs = seconds_anew(&run, rounds);
        must(kiln_set_option("cuda_graphs", "1"), "option");
    }
    run.function = kiln_function_new(body, w->n_inputs, 1, (void *)w);
    double called = seconds_anew(&run, rounds);
    double function_error = error_of(m, run.last_set, run.in[run.last_set], run.last);
    error = error >= function_error ? error : function_error; /* the larger; NaN of either stays */

    bool full = small == 0, h200 = strstr(facts.name, "H200") != NULL;
    row("time", "kiln", 1e6 * seconds, "us", full && h200 ? m->aim_us : 0, false, ROW_OK, "");
    figure("time through kiln_function", 1e6 * called, "us");
    if (without_graphs > 0)
        figure("time without CUDA graphs", 1e6 * without_graphs, "us");
    figure("bandwidth", 1e-9 * (double)bytes / seconds, "GB/s");
    row("of copy", "kiln", median(of_copy, rounds), "", full ? m->aim_copy : 0, true, ROW_OK, "");
    row("copy by the driver", "driver", 1e-9 * median(copied, rounds), "GB/s", 0, true, copied[0] > 0 ? ROW_OK : ROW_FAILED, "");
    if (w->input[1].rank == 2) {
        kiln_shape x = workload_shape(w, 0, small), a = workload_shape(w, 1, small);
        figure("rate", 4e-12 * (double)(x.dim[0] * a.dim[0] * a.dim[1]) / seconds, "TFLOP/s");
    }
    row("kernels", "kiln", kernels, "", m->kernels, false, ROW_OK, "");
    figure("first call, inputs there", 1e3 * first, "ms");
    bool fine = error_row(m, error);
    kiln_release(run.last);
    kiln_function_free(run.function);
    kiln_scope_end(scope);
    if (!fine)
        exit(1);
}

static int check_part(void)
{
    int wrong = 0;
    for (int i = 0; i < N_MEASURED; i++) {
        const Measured *m = &measured[i];
        current = m->name;
        choose_tf32(m);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[WORKLOAD_INPUTS];
        make_set(m, 0, in);
        kiln_tensor *y = workload_of(m)->graph(in);
        must(kiln_wait(y), "run");
        wrong += !error_row(m, error_of(m, 0, in, y));
        kiln_scope_end(scope);
    }
    return wrong != 0;
}

/* --- what a call costs the host ------------------------------------------------------------------------- */

enum { CHAIN = 10 };

static kiln_tensor *chain(kiln_tensor **in)
{
    kiln_tensor *z = in[0];
    for (int op = 0; op < CHAIN; op += 2)
        z = kiln_sub(kiln_mul(z, in[1]), in[0]);
    return z;
}

static void chain_body(kiln_tensor **in, kiln_tensor **out, void *unused)
{
    (void)unused;
    out[0] = chain(in);
}

static void host_part(void)
{
    enum { TRIES = 51, CALLS = 100 };
    kiln_scope *scope = kiln_scope_begin();
    float data[16] = {0.5f, 0.25f};
    kiln_tensor *in[2] = {kiln_from(KILN_F32, KILN_SHAPE(16), data), kiln_from(KILN_F32, KILN_SHAPE(16), data)};
    must(kiln_wait(in[0]), "inputs");
    must(kiln_wait(in[1]), "inputs");
    kiln_function *function = kiln_function_new(chain_body, 2, 1, NULL);
    double record[MAX_ROUNDS], queued[MAX_ROUNDS], called[MAX_ROUNDS], waited[MAX_ROUNDS], bare[MAX_ROUNDS], besides[MAX_ROUNDS];
    int tries = small >= 3 ? 5 : TRIES, calls = small >= 3 ? 10 : CALLS;
    for (int t = -2; t < tries; t++) {
        int at = t < 0 ? 0 : t;
        double recording = 0, all = 0, by_function = 0;
        for (int i = 0; i < calls; i++) {
            kiln_scope *inner = kiln_scope_begin();
            double start = now_seconds();
            kiln_tensor *z = chain(in);
            double recorded = now_seconds();
            must(kiln_eval(z), "chain");
            all += now_seconds() - start;
            recording += recorded - start;
            kiln_scope_end(inner);
        }
        must(kiln_wait(kiln_neg(in[0])), "wait");
        for (int i = 0; i < calls; i++) {
            kiln_scope *inner = kiln_scope_begin();
            kiln_tensor *z;
            double start = now_seconds();
            must(kiln_function_call(function, in, &z), "function");
            must(kiln_eval(z), "function");
            by_function += now_seconds() - start;
            kiln_scope_end(inner);
        }
        must(kiln_wait(kiln_neg(in[0])), "wait");
        record[at] = recording / calls / CHAIN;
        queued[at] = all / calls;
        called[at] = by_function / calls;
        double start = now_seconds();
        must(kiln_wait(chain(in)), "wait");
        waited[at] = now_seconds() - start;
        bare[at] = yardstick_launch(calls);
        besides[at] = fmin(queued[at] - recording / calls, called[at]) - bare[at];
    }
    figure("recording an op", 1e9 * median(record, tries), "ns");
    figure("10 ops recorded, hit, queued", 1e6 * median(queued, tries), "us");
    figure("the same through kiln_function", 1e6 * median(called, tries), "us");
    figure("10 ops recorded, hit, waited for", 1e6 * median(waited, tries), "us");
    row("queueing a bare launch", "driver", 1e6 * median(bare, tries), "us", 0, false, bare[0] > 0 ? ROW_OK : ROW_FAILED, "");
    row("a hit besides recording and launch", "kiln", 1e6 * median(besides, tries), "us", small ? 0 : 1, false, ROW_OK, "");
    kiln_function_free(function);
    kiln_scope_end(scope);
}

/* --- first calls ---------------------------------------------------------------------------------------- */

static void first_part(const Measured *m)
{
    static Run run;
    kiln_scope *scope = kiln_scope_begin();
    run = (Run){.w = workload_of(m), .sets = 1};
    make_set(m, 0, run.in[0]);
    double ms = 1e3 * batch(&run, 1);
    kiln_stats stats;
    kiln_get_stats(&stats);
    printf("%.6f %d %d\n", ms, (int)stats.disk_hits, (int)stats.fallbacks);
    kiln_release(run.last);
    kiln_scope_end(scope);
}

/* A first call in a fresh process; milliseconds. The driver has a cache of its own, which would hide what
 * compiling takes. */
static double first_call(const Measured *m, const char *cache, int want_hits)
{
    char command[3000];
    double ms;
    int hits, fallbacks;
    snprintf(command, sizeof command, "CUDA_CACHE_DISABLE=1 KILN_CACHE=%s KILN_CACHE_DIR='%s/first_%s' '%s' --small %d first %s", cache,
             scratch, m->name, program, small, m->name);
    FILE *child = popen(command, "r");
    bool read = child && fscanf(child, "%lf %d %d", &ms, &hits, &fallbacks) == 3;
    if (!child || pclose(child) != 0 || !read)
        give_up("first call", "the fresh process failed");
    if (fallbacks)
        give_up("first call", "it did not compile: the interpreter computed it");
    /* A dtype's cast of the inputs is a program too, so there may be more. */
    if (want_hits && hits < want_hits)
        give_up("first call", "the program was not found on disk");
    return ms;
}

static void cold_part(const Measured *m)
{
    int n = small >= 3 ? 1 : PROCESSES;
    double compiled[PROCESSES], loaded[PROCESSES];
    for (int i = 0; i < n; i++)
        compiled[i] = first_call(m, "off", 0);
    first_call(m, "on", 0);
    for (int i = 0; i < n; i++)
        loaded[i] = first_call(m, "on", 1);
    double aim_compiled = workload_of(m)->input[1].rank == 2 ? 120 : 15;
    row("first call, compiled", "kiln", median(compiled, n), "ms", small ? 0 : aim_compiled, false, ROW_OK, "");
    row("first call, from disk", "kiln", median(loaded, n), "ms", small ? 0 : 1, false, ROW_OK, "");
}

/* --- the parts ------------------------------------------------------------------------------------------ */

/* NAME WORKLOAD DTYPE SETS READ TOLERANCE INPUTS, then for each input rows, columns (0: rank 1), low, high,
 * with tabs between them. */
static void describe_part(void)
{
    for (int i = 0; i < N_MEASURED; i++) {
        const Measured *m = &measured[i];
        const Workload *w = workload_of(m);
        printf("%s\t%s\t%s\t%d\t%d\t%g\t%d", m->name, w->name, kiln_dtype_name(m->dtype), sets_for(input_bytes(m)), w->n_read, tolerance(m),
               w->n_inputs);
        for (int k = 0; k < w->n_inputs; k++) {
            kiln_shape shape = workload_shape(w, k, small);
            double low, high;
            workload_range(w, k, small, &low, &high);
            printf("\t%lld\t%lld\t%.17g\t%.17g", (long long)shape.dim[0], shape.rank > 1 ? (long long)shape.dim[1] : 0LL, low, high);
        }
        printf("\n");
    }
}

static void facts_part(void)
{
    char driver[40];
    snprintf(driver, sizeof driver, "CUDA %d.%d", facts.driver / 1000, facts.driver % 1000 / 10);
    row("name", "driver", facts.major + 0.1 * facts.minor, "cc", 0, false, ROW_OK, facts.name);
    row("driver", "driver", facts.driver, "", 0, false, ROW_OK, driver);
    row("multiprocessors", "driver", facts.multiprocessors, "", 0, false, ROW_OK, "");
    row("L2 cache", "driver", (double)facts.l2_bytes * 0x1p-20, "MiB", 0, false, ROW_OK, "");
    row("memory", "driver", (double)facts.memory_bytes * 0x1p-30, "GiB", 0, false, ROW_OK, "");
    row("memory that is free", "driver", (double)facts.free_bytes * 0x1p-30, "GiB", 0, false, ROW_OK, "");
}

/* Opens the device that the option `device` says, the first one by default. */
static void open_device(void)
{
    char name[32] = "", why[200];
    if (kiln_get_option("device", name, sizeof name) != KILN_OK || strncmp(name, "cuda", 4) != 0)
        snprintf(name, sizeof name, "cuda:0");
    must(kiln_set_device(name), name);
    if (!yardstick_open(name[4] == ':' ? atoi(name + 5) : 0, &facts, why, sizeof why))
        give_up("driver", why);
}

static int run_part(const char *part, const Measured *m)
{
    if (strcmp(part, "list") == 0) {
        for (int i = 0; i < N_MEASURED; i++)
            printf("%s\n", measured[i].name);
        return 0;
    }
    open_device();
    if (m) {
        current = m->name;
        choose_tf32(m);
    }
    if (strcmp(part, "facts") == 0)
        facts_part();
    else if (strcmp(part, "describe") == 0)
        describe_part();
    else if (strcmp(part, "workload") == 0 && m)
        workload_part(m);
    else if (strcmp(part, "first") == 0 && m)
        first_part(m);
    else if (strcmp(part, "cold") == 0 && m)
        cold_part(m);
    else if (strcmp(part, "check") == 0)
        return check_part();
    else if (strcmp(part, "host") == 0) {
        current = "host";
        host_part();
    } else
        return 2;
    return 0;
}

int main(int argc, char **argv)
{
    int i = 1;
    program = argv[0];
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (strcmp(argv[i], "--small") == 0)
            small = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--scratch") == 0)
            scratch = argv[i + 1];
        else if (strcmp(argv[i], "--rows") != 0)
            break;
        else if (!(rows_file = fopen(argv[i + 1], "a"))) {
            perror(argv[i + 1]);
            return 2;
        }
    }
    const char *part = i < argc ? argv[i] : "";
    const Measured *m = NULL;
    for (int k = 0; k < N_MEASURED; k++)
        if (i + 1 < argc && strcmp(argv[i + 1], measured[k].name) == 0)
            m = &measured[k];
    if (strcmp(part, "first") != 0 && kiln_set_option("cache", "off") != KILN_OK) /* what an earlier run left on disk must not count */
        return 1;
    int status = i + 1 < argc && !m ? 2 : run_part(part, m);
    if (status == 2)
        fprintf(stderr, "usage: device [--small N] [--rows FILE] [--scratch DIR] list|describe|facts|workload "
                        "NAME|host|cold NAME|check\n");
    return status;
}

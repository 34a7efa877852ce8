/*
 * The benchmark: what kiln aims for, measured, as a table and as JSON.
 *
 *     bench [--quick] [--json FILE] [--markdown FILE]
 *     bench --cold                    one line: milliseconds of the first call of workload (a) in a fresh process
 *
 * Every ratio has both sides measured in turns in this process, round after round, and is the median over the rounds. Inputs are
 * evaluated before any clock starts and rotate over sets that together exceed the usual caches. The floor of a workload that
 * streams memory is the slower of two things:
 *     copy        the bytes it must read and write, at the speed of a copy (the faster of plain and non-temporal stores)
 *     arithmetic  the same formula on data in cache: by hand (hand.inc), and by kiln's own kernel
 * Both are printed, the ratio to each as well.
 */
#include "bench/hand.h"
#include "bench/result.h"
#include "bench/timing.h"
#include "bench/workloads.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 3, ROUNDS = 15, QUICK_ROUNDS = 3, CACHED = 1 << 15 };

static int small, rounds;
static const char *program;

static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "bench: %s: %s\n", what, kiln_error_message());
    exit(1);
}

/* ---- loops by hand on all CPUs ---- */

typedef enum HandKind { HAND_COPY, HAND_A, HAND_E, HAND_B } HandKind;

typedef struct HandJob {
    HandKind kind;
    bool stream;
    float *out;
    const float *x, *y;
    size_t n;
    int repeats;       /* over the same range: > 1 for data in cache */
    double sum[64][8]; /* per part, a cache line each */
} HandJob;

static void hand_part(void *job_, int part, int parts)
{
    HandJob *j = job_;
    const HandLoops *h = hand_best();
    size_t step = (j->n / (size_t)parts + 15) / 16 * 16, lo = step * (size_t)part;
    size_t n = lo >= j->n ? 0 : lo + step < j->n ? step : j->n - lo;
    for (int i = 0; i < j->repeats && n > 0; i++) {
        switch (j->kind) {
        case HAND_COPY: h->copy(j->out + lo, j->x + lo, n, j->stream); break;
        case HAND_A: h->a(j->out + lo, j->x + lo, j->y + lo, n, j->stream); break;
        case HAND_E: h->e(j->out + lo, j->x + lo, n, j->stream); break;
        case HAND_B: j->sum[part % 64][0] = h->b(j->x + lo, n); break;
        }
    }
}

static void nothing(void *unused, int part, int parts) { (void)unused, (void)part, (void)parts; }

/* Seconds of one run with all threads ready. They are gone afterwards, so that kiln's own have the CPUs. */
static double hand_seconds(HandJob *job)
{
    run_parts(cpu_count(), nothing, NULL);
    double start = now_seconds();
    run_parts(cpu_count(), hand_part, job);
    double time = now_seconds() - start;
    stop_parts();
    return time;
}

/* Seconds per element and run of a loop whose data stay in each core's cache. */
static double hand_cached(HandKind kind, float *out, const float *x, const float *y)
{
    enum { TRIES = 7 };
    HandJob job = {.kind = kind, .out = out, .x = x, .y = y, .n = CACHED, .repeats = 100};
    double times[TRIES];
    for (int i = 0; i < TRIES; i++)
        times[i] = hand_seconds(&job) / job.repeats / CACHED;
    return median(times, TRIES);
}

/* ---- kiln ---- */

static double eval_seconds(const Workload *w, kiln_tensor **in)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *result_ = w->graph(in);
    double start = now_seconds();
    must(kiln_eval(result_), w->name);
    double time = now_seconds() - start;
    kiln_scope_end(scope);
    return time;
}

/* Kernels and bytes of one evaluation. */
static void count_work(const Workload *w, kiln_tensor **in, double *kernels, double *bytes)
{
    kiln_stats before, after;
    kiln_get_stats(&before);
    eval_seconds(w, in);
    kiln_get_stats(&after);
    *kernels = (double)(after.kernels - before.kernels);
    *bytes = (double)(after.bytes_moved - before.bytes_moved);
}

/* Seconds per element of kiln's own kernel on data in cache: the difference of two sizes, so that launching is not counted. */
static double kiln_cached(const Workload *w)
{
    static const int64_t sizes[2] = {2 * CACHED, 4 * CACHED};
    double time[2];
    kiln_scope *scope = kiln_scope_begin();
    for (int s = 0; s < 2; s++) {
        kiln_tensor *in[WORKLOAD_INPUTS];
        for (int i = 0; i < w->n_inputs; i++)
            in[i] = kiln_uniform(KILN_F32, KILN_SHAPE(sizes[s]), -3, 3);
        must(kiln_eval_many(in, w->n_inputs), "inputs");
        double times[MAX_ROUNDS];
        for (int i = 0; i < 20; i++)
            eval_seconds(w, in);
        for (int i = 0; i < 101; i++)
            times[i] = eval_seconds(w, in);
        time[s] = median(times, 101);
    }
    kiln_scope_end(scope);
    return (time[1] - time[0]) / (2 * CACHED);
}

/* ---- the sections ---- */

static void make_inputs(const Workload *w, kiln_tensor *in[SETS][WORKLOAD_INPUTS])
{
    kiln_seed(1);
    for (int s = 0; s < SETS; s++)
        must(workload_inputs(w, KILN_F32, small, in[s]), "inputs");
}

/*
 * Workloads that stream memory: kiln, copy and the loop by hand in turns; in each round each of them runs twice (copy and loop
 * once with plain and once with non-temporal stores) and the better run counts. hand < 0: there is no loop.
 */
static void bench_streaming(const Workload *w, int hand, float *buffers[SETS][3], size_t floats, double aim)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[SETS][WORKLOAD_INPUTS];
    make_inputs(w, in);
    double kernels, bytes, elements = (double)kiln_numel(in[0][0]);
    eval_seconds(w, in[0]);
    count_work(w, in[0], &kernels, &bytes);

    double own = hand >= 0 ? kiln_cached(w) : 0;
    double by_hand = hand >= 0 ? hand_cached((HandKind)hand, buffers[0][2], buffers[0][0], buffers[0][1]) : 0;
    double kiln[MAX_ROUNDS], loop[MAX_ROUNDS], copy[MAX_ROUNDS], of_copy[MAX_ROUNDS], of_floor[MAX_ROUNDS], of_own[MAX_ROUNDS];
    size_t n = (size_t)elements < floats ? (size_t)elements : floats;
    for (int r = 0; r < rounds; r++) {
        float **b = buffers[r % SETS], **c = buffers[(r + 1) % SETS];
        HandJob plain = {.kind = HAND_COPY, .out = c[2], .x = c[0], .n = n, .repeats = 1}, stream = plain;
        stream.stream = true;
        stream.out = b[2];
        stream.x = c[1];
        double t_plain = hand_seconds(&plain), t_stream = hand_seconds(&stream);
        copy[r] = (t_plain < t_stream ? t_plain : t_stream) / (8.0 * (double)n) * bytes;
        kiln[r] = fmin(eval_seconds(w, in[r % SETS]), eval_seconds(w, in[(r + 1) % SETS]));
        if (hand >= 0) {
            HandJob job = {.kind = (HandKind)hand, .out = b[2], .x = b[0], .y = b[1], .n = n, .repeats = 1};
            double first = hand_seconds(&job);
            job.stream = true;
            job.out = c[2];
            job.x = c[0];
            job.y = c[1];
            double second = hand_seconds(&job);
            loop[r] = (first < second ? first : second) / (double)n * elements;
        }
        of_copy[r] = copy[r] / kiln[r];
        of_floor[r] = fmax(copy[r], by_hand * elements) / kiln[r];
        of_own[r] = fmax(copy[r], own * elements) / kiln[r];
    }
    named_result(w->name, "time", 1e3 * median(kiln, rounds), "ms", 0, false);
    named_result(w->name, "kernels", kernels, "", 1, false);
    named_result(w->name, "bandwidth", bytes * 1e-9 / median(kiln, rounds), "GB/s", 0, true);
    named_result(w->name, "of copy bandwidth", median(of_copy, rounds), "", hand >= 0 ? 0 : aim, true);
    if (hand >= 0) {
        named_result(w->name, "by hand, from memory", 1e3 * median(loop, rounds), "ms", 0, false);
        named_result(w->name, "by hand, from cache", 1e3 * by_hand * elements, "ms", 0, false);
        named_result(w->name, "kiln, from cache", 1e3 * own * elements, "ms", 0, false);
        named_result(w->name, "of slower of copy, hand from cache", median(of_floor, rounds), "", 0, true);
        named_result(w->name, "of slower of copy, own from cache", median(of_own, rounds), "", aim, true);
    }
    kiln_scope_end(scope);
}

static void bench_copy(float *buffers[SETS][3], size_t floats)
{
    double plain[MAX_ROUNDS], stream[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        HandJob job = {.kind = HAND_COPY, .out = buffers[r % SETS][1], .x = buffers[r % SETS][0], .n = floats, .repeats = 1};
        plain[r] = 8e-9 * (double)floats / hand_seconds(&job);
        job.stream = true;
        job.out = buffers[(r + 1) % SETS][1];
        job.x = buffers[(r + 1) % SETS][0];
        stream[r] = 8e-9 * (double)floats / hand_seconds(&job);
    }
    result("copy, plain stores, read + written", median(plain, rounds), "GB/s", 0, true);
    result("copy, non-temporal stores, read + written", median(stream, rounds), "GB/s", 0, true);
}

static void bench_b(float *buffers[SETS][3], size_t floats)
{
    const Workload *w = workload_named("b");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[SETS][WORKLOAD_INPUTS];
    make_inputs(w, in);
    double kernels, bytes, elements = (double)kiln_numel(in[0][0]);
    eval_seconds(w, in[0]);
    count_work(w, in[0], &kernels, &bytes);
    size_t n = (size_t)elements / 16 * 16;
    if (n > floats)
        n = floats;
    double kiln[MAX_ROUNDS], loop[MAX_ROUNDS], ratio[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        HandJob job = {.kind = HAND_B, .x = buffers[r % SETS][0], .n = n, .repeats = 1};
        kiln[r] = fmin(eval_seconds(w, in[r % SETS]), eval_seconds(w, in[(r + 1) % SETS]));
        loop[r] = hand_seconds(&job);
        job.x = buffers[(r + 1) % SETS][0];
        loop[r] = fmin(loop[r], hand_seconds(&job)) / (double)n * elements;
        ratio[r] = kiln[r] / loop[r];
    }
    named_result("b", "time", 1e3 * median(kiln, rounds), "ms", 0, false);
    named_result("b", "kernels", kernels, "", 1, false);
    named_result("b", "by hand", 1e3 * median(loop, rounds), "ms", 0, false);
    named_result("b", "time over the loop by hand", median(ratio, rounds), "", 1.3, false);
    kiln_scope_end(scope);
}

/* Records `ops` functions in a scope; seconds for the recording alone. */
static double record_seconds(kiln_tensor *x, kiln_tensor *y, int ops)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *z = x;
    double start = now_seconds();
    for (int i = 0; i < ops; i += 2)
        z = kiln_sub(kiln_mul(z, y), x);
    double time = now_seconds() - start;
    kiln_scope_end(scope);
    return time;
}

static void bench_host(void)
{
    enum { OPS = 1000, CHAIN = 10, TRIES = 201 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(16), -1, 1), *y = kiln_uniform(KILN_F32, KILN_SHAPE(16), -1, 1);
    must(kiln_eval_many((kiln_tensor *[]){x, y}, 2), "inputs");
    double times[TRIES], whole[TRIES], sync[TRIES];
    for (int i = 0; i < TRIES; i++) {
        double start = now_seconds();
        times[i] = record_seconds(x, y, OPS) / OPS;
        whole[i] = (now_seconds() - start) / OPS;
    }
    result("recording an op", 1e9 * median(times, TRIES), "ns", 100, false);
    result("recording an op and letting it go", 1e9 * median(whole, TRIES), "ns", 0, false);

    kiln_stats before, after;
    for (int i = -20; i < TRIES; i++) {
        kiln_scope *inner = kiln_scope_begin();
        kiln_tensor *z = x;
        for (int op = 0; op < CHAIN; op += 2)
            z = kiln_sub(kiln_mul(z, y), x);
        if (i == 0)
            kiln_get_stats(&before);
        double start = now_seconds();
        must(kiln_eval(z), "chain");
        if (i >= 0)
            sync[i] = now_seconds() - start;
        kiln_scope_end(inner);
    }
    kiln_get_stats(&after);
    if (after.compiles != before.compiles || after.kernels - before.kernels != TRIES)
        printf("(the chain of %d ops was not one cached kernel: %lld compiles, %lld kernels in %d calls)\n", CHAIN,
               (long long)(after.compiles - before.compiles), (long long)(after.kernels - before.kernels), TRIES);
    result("hit with 10 ops, 16 elements, sync to result", 1e6 * median(sync, TRIES), "us", 2, false);
    kiln_scope_end(scope);
}

/* The first call of (a) in this process, on inputs that are there. */
static int cold(void)
{
    const Workload *w = workload_named("a");
    kiln_scope *scope = kiln_scope_begin();
    static float data[1024];
    kiln_tensor *in[WORKLOAD_INPUTS] = {kiln_from(KILN_F32, KILN_SHAPE(1024), data), kiln_from(KILN_F32, KILN_SHAPE(1024), data)};
    must(kiln_eval_many(in, 2), "inputs");
    printf("%.6f\n", 1e3 * eval_seconds(w, in));
    kiln_scope_end(scope);
    return 0;
}

static void bench_cold(void)
{
    enum { PROCESSES = 7 };
    char command[4200];
    double times[PROCESSES];
    snprintf(command, sizeof command, "'%s' --cold", program);
    for (int i = 0; i < PROCESSES; i++) {
        FILE *child = popen(command, "r");
        if (!child || fscanf(child, "%lf", &times[i]) != 1) {
            fprintf(stderr, "bench: cannot run myself as %s\n", command);
            exit(1);
        }
        pclose(child);
    }
    result("first call of (a) in a fresh process", median(times, PROCESSES), "ms", 15, false);
}

int main(int argc, char **argv)
{
    const char *json = NULL, *markdown = NULL;
    if (kiln_set_option("cache", "off") != KILN_OK) /* what an earlier run left on disk must not count */
        return 1;
    program = argv[0];
    rounds = ROUNDS;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--cold") == 0)
            return cold();
        if (strcmp(argv[i], "--quick") == 0) {
            small = 1;
            rounds = QUICK_ROUNDS;
        } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json = argv[++i];
        } else if (strcmp(argv[i], "--markdown") == 0 && i + 1 < argc) {
            markdown = argv[++i];
        } else {
            fprintf(stderr, "usage: bench [--quick] [--json FILE] [--markdown FILE]\n");
            return 2;
        }
    }
    size_t floats = (size_t)1 << (small ? 21 : 24);
    float *buffers[SETS][3];
    for (int s = 0; s < SETS; s++)
        for (int i = 0; i < 3; i++)
            buffers[s][i] = new_floats(floats, -3, 3);

    printf("kiln %s, %d CPUs, loops by hand: %s, %d rounds%s\n\n", kiln_version(), cpu_count(), hand_best()->name, rounds,
           small ? ", an eighth of the work" : "");
    bench_copy(buffers, floats);
    bench_streaming(workload_named("a"), HAND_A, buffers, floats, 0.85);
    bench_streaming(workload_named("e"), HAND_E, buffers, floats, 0.85);
    bench_b(buffers, floats);
    bench_streaming(workload_named("softmax"), -1, buffers, floats, 0);
    bench_streaming(workload_named("layer_norm"), -1, buffers, floats, 0);
    bench_host();
    bench_cold();
    for (int s = 0; s < SETS; s++)
        for (int i = 0; i < 3; i++)
            free(buffers[s][i]);
    char more[80], head[80];
    snprintf(more, sizeof more, "\"cpus\": %d, \"loops\": \"%s\", \"quick\": %s", cpu_count(), hand_best()->name, small ? "true" : "false");
    snprintf(head, sizeof head, "kiln %s, %d CPUs, %s", kiln_version(), cpu_count(), hand_best()->name);
    int failed = json ? write_json(json, more) : 0;
    return failed || (markdown && write_markdown(markdown, head));
}

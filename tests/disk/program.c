/*
 * A process that uses the cache on disk, driven by its arguments, for tests that need several processes.
 *
 *     disk_program STEP...       each step prints a line "STEP <hash of the result's bits>" or "STEP error: ..."
 *       KIND:N                   a graph (the table below) with size N
 *       set:NAME=VALUE           an option
 *       wait:N                   until N programs were compiled in the background
 *       fork                     the following steps happen in a child
 *     at the end a line of counters: "hits=1 misses=0 ..." and one "miss.REASON=N" for each reason that occurred
 * What kiln says goes to stdout as "warning: ..." and "log: ...".
 */
#include "tests/support/stats.h"

#include <kiln.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    printf("%s: %s\n", level ? "log" : "warning", line);
}

static kiln_tensor *input(int64_t rows, int64_t columns)
{
    static float data[1 << 16];
    for (int64_t i = 0; i < rows * columns && i < 1 << 16; i++)
        data[i] = (float)(i % 1000) / 7.0f - 3.0f;
    return kiln_from(KILN_F32, KILN_SHAPE(rows, columns), data);
}

static kiln_tensor *elementwise(int64_t n) { return kiln_relu(kiln_sub(kiln_sin(input(n, 3)), kiln_scalar(0.25))); }
static kiln_tensor *reduction(int64_t n) { return kiln_sum_axes(kiln_exp(input(n, 5)), KILN_AXES(0), false); }
static kiln_tensor *contraction(int64_t n) { return kiln_tanh(kiln_matmul(input(n, 8), input(8, 6))); }
static kiln_tensor *product(int64_t n) { return kiln_matmul(input(n, 7), input(7, 40)); }
static kiln_tensor *ranked(int64_t n) { return kiln_argsort(product(n), 1, false); } /* its product is the kernel of product() */
static kiln_tensor *grid(int64_t n) { return kiln_sum_axes(kiln_exp(input(n / 100, n % 100)), KILN_AXES(1), false); } /* two sizes */
static kiln_tensor *doubles(int64_t n) { return kiln_mul(kiln_arange(KILN_F64, 0, (double)n, 1), kiln_scalar(3)); }
static kiln_tensor *power(int64_t n) { return kiln_pow(input(4, 4), kiln_scalar((double)n)); }
static kiln_tensor *sorted(int64_t n) { return kiln_argsort(kiln_cos(input(3, n)), 1, true); }

static kiln_tensor *marked(int64_t n, bool dynamic)
{
    kiln_tensor *x = input(n, 3);
    kiln_status status = dynamic ? kiln_mark_dynamic(x, 0, 1, 1000) : kiln_mark_static(x, 0);
    return status == KILN_OK ? kiln_neg(kiln_exp(x)) : NULL;
}

static kiln_tensor *mark_dynamic(int64_t n) { return marked(n, true); }
static kiln_tensor *mark_static(int64_t n) { return marked(n, false); }

/* A product with weights that are turned once. */
static kiln_tensor *constant(int64_t n)
{
    kiln_tensor *w = kiln_from(KILN_F32, KILN_SHAPE(6, 8), (float[48]){1, 2, 3, 4, 5, 6, 7});
    return kiln_mark_constant(w) == KILN_OK ? kiln_matmul(input(n, 8), kiln_transpose(w)) : NULL;
}

/* Index n is out of bounds from 10 on. */
static kiln_tensor *gather(int64_t n)
{
    int64_t index[2] = {1, n};
    return kiln_take(kiln_exp(input(10, 2)), kiln_from(KILN_I64, KILN_SHAPE(2), index), 0);
}

static kiln_tensor *strided(int64_t n)
{
    static float data[4096];
    for (int i = 0; i < 4096; i++)
        data[i] = (float)i * 0.5f;
    return kiln_exp(kiln_mul(kiln_wrap_strided(KILN_F32, KILN_SHAPE(n, 4), (int64_t[]){1, n + 1}, data, NULL, NULL), kiln_scalar(-0.01)));
}

static void traced(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(in[0], in[0]), kiln_scalar(1));
}

static kiln_tensor *function(int64_t n)
{
    kiln_function *f = kiln_function_new(traced, 1, 1, NULL);
    kiln_tensor *x = input(n, 3), *y = NULL;
    kiln_status status = kiln_function_call(f, &x, &y);
    kiln_function_free(f);
    return status == KILN_OK ? y : NULL;
}

static const struct {
    const char *name;
    kiln_tensor *(*make)(int64_t n);
} kinds[] = {{"elementwise", elementwise}, {"reduction", reduction}, {"contraction", contraction},
             {"doubles", doubles},         {"power", power},         {"sorted", sorted},
             {"dynamic", mark_dynamic},    {"static", mark_static},  {"gather", gather},
             {"strided", strided},         {"function", function},   {"grid", grid},
             {"product", product},         {"ranked", ranked},       {"constant", constant}};

static uint64_t hash(const void *data, size_t n)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return h;
}

static void compute(const char *step, kiln_tensor *(*make)(int64_t n), int64_t n)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = make(n);
    kiln_status status = kiln_eval(y);
    size_t bytes = y ? (size_t)kiln_numel(y) * kiln_dtype_size(kiln_dtype_of(y)) : 0;
    void *data = malloc(bytes + 1);
    if (status == KILN_OK)
        status = kiln_read(y, kiln_dtype_of(y), data, bytes);
    if (status == KILN_OK)
        printf("%s %016" PRIx64 "\n", step, hash(data, bytes));
    else
        printf("%s error: %s\n", step, kiln_error_message());
    kiln_clear_error();
    free(data);
    kiln_scope_end(scope);
}

static void counters(void)
{
    kiln_stats s = stats_now();
    printf("hits=%" PRId64 " misses=%" PRId64 " compiles=%" PRId64 " fallbacks=%" PRId64 " disk_hits=%" PRId64 " disk_loaded=%" PRId64
           " disk_refused=%" PRId64 " disk_stored=%" PRId64 "\n",
           s.hits, s.misses, s.compiles, s.fallbacks, s.disk_hits, s.disk_loaded, s.disk_refused, s.disk_stored);
    for (int i = 0; kiln_miss_reason(i); i++)
        if (s.miss[i])
            printf("miss.%s=%" PRId64 "\n", kiln_miss_reason(i), s.miss[i]);
}

/* false: they did not come within some minutes. */
static bool wait_for(int64_t n)
{
    kiln_stats s;
    for (int i = 0; i < 60000; i++) {
        kiln_get_stats(&s);
        if (s.background_compiles >= n)
            return true;
        usleep(5000);
    }
    return false;
}

static int do_step(char *step)
{
    char *colon = strchr(step, ':'), *equals;
    if (!colon)
        return 2;
    if (strncmp(step, "wait:", 5) == 0)
        return wait_for(atoll(colon + 1)) ? 0 : 2;
    if (strncmp(step, "set:", 4) == 0 && (equals = strchr(step, '='))) {
        *equals = '\0';
        return kiln_set_option(step + 4, equals + 1) == KILN_OK ? 0 : 2;
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (strncmp(step, kinds[k].name, (size_t)(colon - step)) == 0 && kinds[k].name[colon - step] == '\0') {
            compute(step, kinds[k].make, atoll(colon + 1));
            return 0;
        }
    return 2;
}

int main(int argc, char **argv)
{
    kiln_set_log_sink(say, NULL);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "fork") == 0) {
            fflush(stdout);
            pid_t child = fork();
            if (child > 0) {
                int status;
                waitpid(child, &status, 0);
                return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
            }
            continue;
        }
        if (do_step(argv[i]) != 0) {
            fprintf(stderr, "%s: no such step: %s\n", argv[0], argv[i]);
            return 2;
        }
    }
    counters();
    fflush(stdout);
    return 0;
}

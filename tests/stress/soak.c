/*
 * soak [seconds]: a program that goes on and on, in small: shapes that change, structures that come and go, a cache in memory and one on
 * disk that are too small for them, functions that are traced, replayed and freed, threads that end, errors, npy files. What the process
 * holds after the first third is what it holds at the end: resident memory, mappings, descriptors, threads. Every value is checked. 6
 * seconds, and as many evaluations as fit in; more on demand.
 */
#include "kiln.h"
#include "tests/stress/usage.h"
#include "tests/support/remove_folder.h"
#include "tests/support/stats.h"

#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

enum { ROUNDS_AT_LEAST = 30, LIMIT_BYTES = 400000 };

static char folder[256], file[300];

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const int *depth = user;
    out[0] = in[0];
    for (int i = 0; i < *depth; i++)
        out[0] = kiln_add(kiln_mul(out[0], in[1]), kiln_scalar(1));
}

/* x -> 0.5 x + 1, `depth` times, of ones. */
static double expected(int depth)
{
    double x = 1;
    for (int i = 0; i < depth; i++)
        x = 0.5 * x + 1;
    return x;
}

static bool near(double got, double want) { return got > want - 1e-3 * want && got < want + 1e-3 * want; }

/* 30 evaluations or so; the number chooses sizes and structures. */
static bool one_round(unsigned number)
{
    kiln_scope *scope = kiln_scope_begin();
    bool ok = true;
    for (unsigned k = 0; k < 8 && ok; k++) { /* sizes change, the structure stays */
        int64_t n = 1 + (number * 37 + k * 101) % 5000;
        double sum = 0;
        ok = kiln_item(kiln_sum(kiln_exp(kiln_zeros(KILN_F32, KILN_SHAPE(n, 3)))), &sum) == KILN_OK && near(sum, 3.0 * (double)n);
    }
    for (unsigned k = 0; k < 2 && ok; k++) { /* new structures: of 4,096, most have left the caches by the time they return */
        unsigned digits = (number * 2 + k) * 2654435761u >> 20;
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(16));
        double want = 16, got = 0;
        for (int i = 0; i < 6; i++, digits /= 4) {
            kiln_tensor *next[4] = {kiln_add(x, x), kiln_flip(x, KILN_AXES(0)), kiln_neg(kiln_neg(x)), kiln_abs(x)};
            want *= digits % 4 == 0 ? 2 : 1;
            x = next[digits % 4];
        }
        ok = kiln_item(kiln_sum(x), &got) == KILN_OK && near(got, want);
    }
    int depth = 1 + (int)(number % 6);
    kiln_function *f = kiln_function_new(body, 2, 1, &depth);
    for (int k = 0; k < 6 && ok; k++) {
        kiln_tensor *in[2] = {kiln_ones(KILN_F32, KILN_SHAPE(3 + k / 3)), kiln_full(KILN_F32, KILN_SHAPE(), 0.5)}, *out;
        double sum = 0;
        ok = f && kiln_function_call(f, in, &out) == KILN_OK && kiln_item(kiln_sum(out), &sum) == KILN_OK &&
             near(sum, (3 + k / 3) * expected(depth));
    }
    kiln_function_free(f);
    kiln_tensor *saved = kiln_arange(KILN_I32, 0, (double)(number % 100 + 1), 1), *loaded;
    int64_t total = 0;
    ok = ok && kiln_save_npy(saved, file) == KILN_OK && (loaded = kiln_load_npy(file)) &&
         kiln_item_int(kiln_sum(loaded), &total) == KILN_OK && total == (int64_t)(number % 100) * (number % 100 + 1) / 2;
    kiln_tensor *wrong = kiln_matmul(kiln_ones(KILN_F32, KILN_SHAPE(2, 3)), kiln_ones(KILN_F32, KILN_SHAPE(2, 3)));
    ok = ok && !wrong && kiln_eval(wrong) != KILN_OK && !kiln_load_npy("/nowhere");
    if (!ok)
        fprintf(stderr, "round %u: %s\n", number, kiln_error_message());
    kiln_clear_error();
    kiln_scope_end(scope);
    return ok;
}

static void *in_a_thread(void *number) { return (void *)(uintptr_t)one_round((unsigned)(uintptr_t)number); }

/* Every fourth round in a thread that ends. */
static bool some(unsigned number)
{
    pthread_t thread;
    void *ok;
    if (number % 4)
        return one_round(number);
    return pthread_create(&thread, NULL, in_a_thread, (void *)(uintptr_t)number) == 0 && pthread_join(thread, &ok) == 0 && ok;
}

static int64_t bytes_on_disk;
static int add_up(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)path, (void)where;
    bytes_on_disk += type == FTW_F ? (int64_t)info->st_size : 0;
    return 0;
}

static int grown(const char *what, long early, long end, long room)
{
    if (end <= early + room)
        return 0;
    printf("%s: %ld, and %ld at the end\n", what, early, end);
    return 1;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 6, start = seconds_now();
    const char *tmp = getenv("TMPDIR");
    char limit[32];
    snprintf(folder, sizeof folder, "%s/kiln_soak_XXXXXX", tmp ? tmp : "/tmp");
    snprintf(limit, sizeof limit, "%d", LIMIT_BYTES);
    if (!mkdtemp(folder))
        return 2;
    snprintf(file, sizeof file, "%s/x.npy", folder);
    const char *const options[][2] = {
        {"cache_dir", folder}, {"cache", "on"}, {"cache_size", limit}, {"cache_bytes", "200000"}, {"threads", "2"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (kiln_set_option(options[i][0], options[i][1]) != KILN_OK)
            return fprintf(stderr, "%s\n", kiln_error_message()), 2;

    Use early = {0};
    int failures = 0;
    unsigned round = 0, third = 0;
    while ((seconds_now() - start < seconds || round < ROUNDS_AT_LEAST) && !failures) {
        failures += !some(round++);
        if (!third && round >= ROUNDS_AT_LEAST / 3 && seconds_now() - start > seconds / 3) {
            third = round;
            early = use_now();
        }
    }
    Use end = use_now();
    for (int wait = 0; wait < 60000 && end.threads > early.threads; wait++) { /* a joined thread may still be going */
        usleep(1000);
        end = use_now();
    }
    kiln_stats stats = stats_now();
    nftw(folder, add_up, 16, FTW_PHYS);
    printf("%u rounds, %" PRId64 " evaluations, %" PRId64 " compiles, %" PRId64
           " hits; after round %u and at the end: resident %ld and %ld KiB, "
           "maps %ld and %ld, descriptors %ld and %ld, threads %ld and %ld; on disk %" PRId64 " bytes\n",
           round, stats.evals, stats.compiles, stats.hits, third, early.resident_kib, end.resident_kib, early.maps, end.maps,
           early.descriptors, end.descriptors, early.threads, end.threads, bytes_on_disk);
    failures += grown("descriptors", early.descriptors, end.descriptors, 0);
    failures += grown("threads", early.threads, end.threads, 0);
    failures += grown("mappings", early.maps, end.maps, early.maps / 10 + 20);
    if (!getenv("ASAN_OPTIONS"))
        failures += grown("resident KiB", early.resident_kib, end.resident_kib, early.resident_kib / 10 + 4096);
    if (stats.fallbacks)
        failures += printf("%" PRId64 " fallbacks\n", stats.fallbacks) > 0;
    remove_folder(folder);
    return failures != 0;
}

/*
 * programs [--long]: many different programs one after another, so that most of them leave the cache again. What the process holds
 * must depend on what is kept, not on how many programs there ever were:
 *
 *   resident memory   LLVM's contexts, modules and objects are gone with each compile
 *   mappings          each kernel is a mapping of its own; the kernel's limit is 65,530 of them
 *   descriptors       none is kept
 *
 * Every value is checked. Short: 1,200 programs. Long: 10,000, then 70,000 with the usual limit of bytes.
 */
#include "kiln.h"
#include "tests/stress/usage.h"
#include "tests/support/stats.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

/* A program of its own for each `number`: nine ops of four kinds, the digits of the number. The value, computed twice. */
static bool one(uint32_t number)
{
    static const float start[4] = {1, 2, 3, 4};
    float want[4], got[4];
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(4), start);
    memcpy(want, start, sizeof want);
    for (int step = 0; step < 9; step++, number /= 4) {
        kiln_tensor *next[4] = {kiln_add(x, x), kiln_neg(x), kiln_abs(x), kiln_maximum(x, kiln_flip(x, KILN_AXES(0)))};
        x = next[number % 4];
        float old[4];
        memcpy(old, want, sizeof old);
        for (int i = 0; i < 4; i++) {
            float other = old[3 - i];
            float results[4] = {old[i] + old[i], -old[i], old[i] < 0 ? -old[i] : old[i], old[i] > other ? old[i] : other};
            want[i] = results[number % 4];
        }
    }
    bool ok = kiln_read(x, KILN_F32, got, sizeof got) == KILN_OK && memcmp(got, want, sizeof got) == 0;
    if (!ok)
        fprintf(stderr, "wrong value: %s\n", kiln_error_message());
    kiln_scope_end(scope);
    return ok;
}

/* `n` programs; what is held after a quarter of them is about what is held after all. */
static int run(const char *title, uint32_t n, const char *cache_bytes, long most_maps)
{
    if (kiln_set_option("cache_bytes", cache_bytes) != KILN_OK)
        return 1;
    Use early = {0}, most = {0};
    int failures = 0;
    for (uint32_t i = 0; i < n && !failures; i++) {
        failures += !one(i * 2654435761u % (1u << 18));
        if (i == n / 4)
            early = use_now();
        if (i % (n / 40) == 0) {
            Use now = use_now();
            most.maps = now.maps > most.maps ? now.maps : most.maps;
            most.resident_kib = now.resident_kib > most.resident_kib ? now.resident_kib : most.resident_kib;
        }
    }
    Use end = use_now();
    long room_kib = atol(cache_bytes) / 1024 * 3 / 2; /* a large cache may still fill; malloc needs more than was asked for */
    kiln_stats stats = stats_now();
    printf("%s: %u programs, %" PRId64 " compiles, %.1f ms each; resident %ld MiB after a quarter, %ld at the end, %ld at most; "
           "maps %ld, %ld, %ld\n",
           title, n, stats.compiles, 1e3 * stats.compile_seconds / (double)(stats.compiles + 1), early.resident_kib / 1024,
           end.resident_kib / 1024, most.resident_kib / 1024, early.maps, end.maps, most.maps);
    if (stats.fallbacks || stats.compiles < n / 2) {
        printf("%" PRId64 " fallbacks, only %" PRId64 " compiles\n", stats.fallbacks, stats.compiles);
        failures++;
    }
    if (most.maps > most_maps) {
        printf("too many mappings\n");
        failures++;
    }
    if (end.descriptors > early.descriptors) {
        printf("descriptors: %ld, and %ld at the end\n", early.descriptors, end.descriptors);
        failures++;
    }
    if (!getenv("ASAN_OPTIONS") && end.resident_kib > early.resident_kib + early.resident_kib / 10 + 8 * 1024 + room_kib) {
        printf("resident memory grows with every program\n");
        failures++;
    }
    kiln_reset_stats();
    return failures;
}

int main(int argc, char **argv)
{
    bool is_long = argc == 2 && strcmp(argv[1], "--long") == 0;
    if (argc > 1 && !is_long)
        return fprintf(stderr, "usage: programs [--long]\n"), 2;
    int failures = run("small cache", is_long ? 10000 : 1200, "1000000", 2000);
    if (is_long && !failures)
        failures += run("usual cache", 70000, "268435456", 50000);
    return failures != 0;
}

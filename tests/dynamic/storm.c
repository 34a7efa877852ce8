/*
 * A recompile storm: 10,000 random shapes and 10,000 scalars through one structure and signature cost at most nine compiles,
 * look-up time does not grow with the number of calls, memory of programs is bounded, and the answers are right.
 */
#include "tests/mutation/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS = 10000, TENTH = CALLS / 10 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* max over rows of sum(x * scale + 1), where all elements of x are `value`: columns * (value * scale + 1), exactly. */
static double storm_call(int64_t a, int64_t b, int64_t c, double value, double scale, double *spent)
{
    static float data[12 * 12 * 12];
    kiln_scope *scope = kiln_scope_begin();
    for (int64_t i = 0; i < a * b * c; i++)
        data[i] = (float)value;
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(a, b, c), data);
    kiln_tensor *y = kiln_sum_axes(kiln_add(kiln_mul(x, kiln_scalar(scale)), kiln_scalar(1)), KILN_AXES(-1), false);
    kiln_tensor *z = kiln_max(kiln_reshape(y, KILN_SHAPE(a * b)));
    double got = NAN, start = seconds();
    OK(kiln_item(z, &got));
    *spent += seconds() - start;
    kiln_scope_end(scope);
    return got;
}

/* Resident memory of this process in KiB; 0 where the system does not say. */
static long resident_kib(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &pages, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * 4;
}

static void storm(void)
{
    Rng rng = {7};
    double tenth[10] = {0};
    int64_t reduced = 0, first_reduced = 0;
    long first_kib = 0;
    for (int i = 0; i < CALLS; i++) {
        int64_t a = rng_between(&rng, 2, 12), b = rng_between(&rng, 2, 12), c = rng_between(&rng, 2, 12);
        double value = (double)rng_between(&rng, -8, 8), scale = (double)(i % 997) - 3;
        double got = storm_call(a, b, c, value, scale, &tenth[i / TENTH]);
        CHECK(got == (double)c * (value * scale + 1), "call %d [%d,%d,%d]: %g, expected %g", i, (int)a, (int)b, (int)c, got,
              (double)c * (value * scale + 1));
        if (i == TENTH) {
            first_reduced = stats_now().compiles;
            first_kib = resident_kib();
        }
    }
    reduced = stats_now().compiles;
    printf("storm: %" PRId64 " compiles for %d shapes and scalars; us per call by tenths:", reduced, CALLS);
    for (int i = 0; i < 10; i++)
        printf(" %.2f", 1e6 * tenth[i] / TENTH);
    printf("\n");
    CHECK(reduced <= 9, "%" PRId64 " compiles", reduced);
    CHECK(reduced == first_reduced, "still compiling after %d calls", TENTH);
    CHECK(stats_now().fallbacks == 0, "%s", last_warning);
    CHECK(stats_now().live_bytes < 1 << 20, "%d bytes of tensors are left", (int)stats_now().live_bytes);
    CHECK(resident_kib() <= first_kib + 8192 || getenv("ASAN_OPTIONS"), "memory grows: %ld KiB, then %ld KiB", first_kib, resident_kib());
    double late = tenth[5]; /* the least of five: what else the machine does only adds */
    for (int i = 6; i < 10; i++)
        late = tenth[i] < late ? tenth[i] : late;
    CHECK(late < 3 * tenth[1] + 0.01, "look-up time grows: %g s, then %g s", tenth[1], late);
}

/* Scalars alone, at one shape: never more than the first programs, whatever values rules like come along. */
static void scalars(void)
{
    double spent = 0;
    for (int i = 0; i < CALLS; i++) {
        double scale = i % 7 == 3 ? (double)(i % 3) - 1 : 0.5 * i;
        double got = storm_call(3, 4, 5, 2, scale, &spent);
        CHECK(got == 5 * (2 * scale + 1), "scalar %g: %g", scale, got);
    }
    CHECK(stats_now().compiles <= 9, "%d compiles", (int)stats_now().compiles);
}

/* Each call of one line meets another structure's worth of sizes: as many programs as are allowed, and one warning that says so. */
static void one_warning(void)
{
    set_option("dynamic", "never");
    for (int i = 0; i < 300; i++) {
        double spent = 0;
        storm_call(2 + i % 10, 2 + i / 10 % 10, 3 + i / 100, 1, 2, &spent);
    }
    CHECK(n_warnings == 1 && strstr(last_warning, "recompiles of one graph") && strstr(last_warning, "storm.c:"),
          "%d warnings, the last: %s", n_warnings, last_warning);
}

/* Memory, handles and functions come and go at the same addresses: none of them may be taken for its predecessor. */
static void times_user(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = kiln_mul(in[0], kiln_scalar(*(const double *)user)); }

static void reuse(void)
{
    int same_address = 0;
    const void *last = NULL;
    for (int i = 0; i < 500; i++) {
        kiln_scope *scope = kiln_scope_begin();
        double factor = 2 + i % 5, got = 0;
        kiln_tensor *x = kiln_full(KILN_F64, KILN_SHAPE(3), i), *y = NULL;
        const void *data = NULL;
        kiln_function *f = kiln_function_new(times_user, 1, 1, &factor);
        for (int again = 0; again < 2; again++) {
            OK(kiln_function_call(f, &x, &y));
            OK(kiln_item(kiln_sum(y), &got));
            CHECK(got == 3.0 * i * factor, "round %d: %g, expected %g", i, got, 3.0 * i * factor);
        }
        OK(kiln_data(y, &data));
        same_address += data == last;
        last = data;
        kiln_function_free(f);
        kiln_scope_end(scope);
    }
    CHECK(same_address > 100 || getenv("ASAN_OPTIONS"), "addresses were reused %d times only", same_address);
    CHECK(stats_now().compiles < 20, "%d compiles", (int)stats_now().compiles);
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"storm", storm}, {"scalars", scalars}, {"one_warning", one_warning}, {"reuse", reuse}};
    return run_tests("storm", tests, sizeof tests / sizeof *tests, argc, argv);
}

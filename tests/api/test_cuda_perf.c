/*
 * KILN_LOG=perf on the software driver, whose events tell when it ran a kernel: times are the device's, of each launch, and nobody waits
 * for them while the topic is off.
 */
#include "on_cuda.h"

#include <stdio.h>
#include <time.h>

enum { LINES = 16, N = 20000 };

static struct {
    int n;
    char line[LINES][200];
} perf;

static void keep_perf(void *user, int level, const char *topic, const char *line)
{
    (void)user;
    cr_expect(level != 0, "%s", line);
    if (strcmp(topic, "perf") == 0 && perf.n < LINES)
        snprintf(perf.line[perf.n++], sizeof perf.line[0], "%s", line);
}

static void use_cuda(const char *log)
{
    kiln_set_log_sink(keep_perf, NULL);
    CUDA_WITH("fuse", "0", "log", log);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Two launches: exp of n elements, and a sum with x. The wall time of evaluating them. */
static double evaluate(int64_t n)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(n), 2);
    cr_assert(kiln_eval(x) == KILN_OK && kiln_wait(x) == KILN_OK, "%s", kiln_error_message());
    kiln_tensor *y = kiln_add(kiln_exp(x), x);
    perf.n = 0;
    double start = seconds();
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    double wall = seconds() - start;
    kiln_scope_end(scope);
    return wall;
}

/* What line i says. */
static void read_line(int i, const char *kernel, double *us, double *rate)
{
    char name[64];
    cr_assert(i < perf.n && sscanf(perf.line[i], "%63s %lf us %lf GB/s", name, us, rate) == 3, "line %d of %d: %s", i, perf.n,
              perf.line[i]);
    cr_expect(strstr(name, kernel) != NULL, "%s: %s", kernel, perf.line[i]);
}

Test(cuda_perf, times_are_the_devices)
{
    use_cuda("perf");
    evaluate(N); /* compiles */
    double us[2], rate[2], wall, told;
    int tries = 200; /* while something else has the machine between the launches */
    do {
        wall = evaluate(N);
        cr_assert(perf.n == 2, "%d lines", perf.n);
        read_line(0, "exp", &us[0], &rate[0]);
        read_line(1, "add", &us[1], &rate[1]);
        told = 1e-6 * (us[0] + us[1]);
        cr_expect(told <= wall, "%g us and %g us in %g us", us[0], us[1], 1e6 * wall);
        /* queueing takes microseconds; running so many instructions by software nearly all of the time */
    } while (told <= 0.1 * wall && --tries);
    cr_expect(tries, "%g us and %g us in %g us", us[0], us[1], 1e6 * wall);
    for (int i = 0; i < 2; i++) { /* bytes: x in and exp out; x and exp in, the sum out */
        double bytes = 4.0 * N * (i ? 3 : 2), same = 1e-3 * bytes / us[i];
        cr_expect(rate[i] > same - 0.02 && rate[i] < same + 0.02, "%g bytes in %g us are %g GB/s, not %g", bytes, us[i], same, rate[i]);
    }
    tries = 200;
    do {
        evaluate(10);
        read_line(0, "exp", &us[1], &rate[1]);
    } while (us[1] >= us[0] && --tries);
    cr_expect(tries, "%g us for 10 elements, %g for %d", us[1], us[0], N);
}

Test(cuda_perf, graphs_and_waits_are_as_ever_without_it)
{
    use_cuda("perf");
    test_cuda_counters before = counted();
    for (int i = 0; i < 5; i++)
        evaluate(30);
    cr_expect(counted().graph_launches == before.graph_launches && perf.n == 2, "%d lines", perf.n);
    set_option("log", "");
    before = counted();
    for (int i = 0; i < 5; i++)
        evaluate(30);
    cr_expect(counted().graph_launches > before.graph_launches && perf.n == 0, "%d lines", perf.n);

    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(30));
    cr_assert(kiln_eval(x) == KILN_OK && kiln_wait(x) == KILN_OK);
    before = counted();
    cr_assert(kiln_eval(kiln_exp(x)) == KILN_OK);
    cr_expect(counted().synchronizations == before.synchronizations);
}

/* A launch that fails is an error as ever; its time is not told. */
Test(cuda_perf, failures_leave_nothing_behind)
{
    use_cuda("perf");
    evaluate(30);
    DRIVER(test_cuda_configure)("fail=cuEventCreate:3:2"); /* of the launch after the one that makes x */
    evaluate(30);
    cr_expect(perf.n == 1, "%d lines", perf.n);
    evaluate(30);
    cr_expect(perf.n == 2, "%d lines", perf.n);
    DRIVER(test_cuda_configure)("fail=cuLaunchKernel:1:1");
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(30));
    kiln_status status = kiln_eval(kiln_exp(x));
    cr_expect(status == KILN_DEVICE, "%s", kiln_status_name(status));
    evaluate(30);
    cr_expect(perf.n == 2, "%d lines", perf.n);
}

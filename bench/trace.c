/*
 * What a timeline costs (KILN_TRACE): calls of one kernel, with and without a trace in turns, in one process, in processor time of all its
 * threads, the system's part included, so that what else runs on the machine hardly counts. Set KILN_THREADS=1: waiting threads spin.
 *
 *     trace [ELEMENTS [ROUNDS]]     0 elements, or none said: as many as make a kernel of 100 us
 *
 * Prints the medians of a call, and the median of the ratios of neighbours.
 */
#include "timing.h"

#include <kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 500, FIRST_SIZE = 65536, MOST = MAX_ROUNDS };

static void must(kiln_status status)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "%s\n", kiln_error_message());
    exit(1);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of one call. */
static double calls(kiln_tensor *x)
{
    double start = cpu_seconds();
    for (int i = 0; i < CALLS; i++) {
        kiln_scope *scope = kiln_scope_begin();
        must(kiln_eval(kiln_tanh(kiln_sin(kiln_exp(kiln_neg(x))))));
        kiln_scope_end(scope);
    }
    return (cpu_seconds() - start) / CALLS;
}

int main(int argc, char **argv)
{
    static double off[MOST], on[MOST], ratio[MOST];
    int64_t n = argc > 1 ? atoll(argv[1]) : 0;
    int rounds = argc > 2 ? atoi(argv[2]) : 31;
    char path[] = "/tmp/kiln_bench_trace.XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || rounds < 1 || rounds > MOST)
        return 2;
    kiln_tensor *x = kiln_linspace(KILN_F32, 0, 1, n ? n : FIRST_SIZE);
    must(kiln_eval(x));
    (void)calls(x);
    if (!n) {
        n = (int64_t)(FIRST_SIZE * 100e-6 / calls(x));
        x = kiln_linspace(KILN_F32, 0, 1, n);
        must(kiln_eval(x));
        (void)calls(x);
    }
    for (int i = 0; i < rounds; i++) {
        off[i] = calls(x);
        must(kiln_trace_start(path));
        on[i] = calls(x);
        must(kiln_trace_stop());
        ratio[i] = on[i] / off[i];
    }
    printf("%lld elements; a call without %.2f us, with a trace %.2f us; ratio %.3f\n", (long long)n, 1e6 * median(off, rounds),
           1e6 * median(on, rounds), median(ratio, rounds));
    close(file);
    remove(path);
    return 0;
}

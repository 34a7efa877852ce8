/* kiln_last_call: what the last sync point did. */
#include "tests/support/stats.h"

#include <criterion/criterion.h>
#include <kiln.h>
#include <pthread.h>
#include <string.h>

static kiln_call_report last(void)
{
    kiln_call_report report = {.size = sizeof report};
    cr_assert(kiln_last_call(&report) == KILN_OK, "%s", kiln_error_message());
    cr_assert(report.size == sizeof report);
    return report;
}

static void *of_another_thread(void *source)
{
    *(int *)source = last().source;
    return NULL;
}

Test(last_call, compiled_then_from_memory)
{
    cr_assert(last().source == KILN_CALL_NOTHING && last().launches == 0 && last().miss_reason == -1);
    for (int i = 0; i < 2; i++) {
        kiln_tensor *a = kiln_full(KILN_F32, KILN_SHAPE(64, 48), 0.5), *b = kiln_full(KILN_F32, KILN_SHAPE(48, 32), 2);
        cr_assert(kiln_eval(a) == KILN_OK && kiln_eval(b) == KILN_OK);
        cr_assert(kiln_eval(kiln_exp(kiln_matmul(a, b))) == KILN_OK);
        kiln_call_report r = last();
        cr_expect(r.source == (i ? KILN_CALL_MEMORY : KILN_CALL_COMPILED), "source %d", r.source);
        cr_expect(i ? r.miss_reason == -1 : strcmp(kiln_miss_reason(r.miss_reason), "never_seen") == 0);
        cr_expect(i ? r.compile_seconds == 0 : r.compile_seconds > 0 && r.compile_seconds < 60);
        cr_expect(r.load_seconds >= 0 && (!i || r.load_seconds == 0));
        cr_expect(r.launches == 1 && r.kernels == 1, "%ld launches of %ld kernels", (long)r.launches, (long)r.kernels);
        cr_expect(r.bytes == 4 * (64 * 48 + 48 * 32 + 64 * 32), "%ld bytes", (long)r.bytes);
        cr_expect(r.flops == 2 * 64 * 48 * 32 && r.specials == 64 * 32, "%ld flops, %ld specials", (long)r.flops, (long)r.specials);
        cr_expect(r.in_place == 0 && r.why_not_in_place != NULL);
        cr_expect(r.regime != NULL && r.peak_flops > 0, "peak %g", r.peak_flops);
        cr_expect(strlen(r.program) >= 16 && strspn(r.program, "0123456789abcdef") >= 16, "program %s", r.program);
        float values[64 * 48];
        cr_assert(kiln_read(a, KILN_F32, values, sizeof values) == KILN_OK); /* nothing to compute: the report stays */
        cr_expect(last().launches == 1);
    }
}

Test(last_call, sizes_are_those_of_the_call)
{
    for (int64_t n = 10; n < 50; n += 10) { /* the third one's size is an argument */
        kiln_tensor *x = kiln_full(KILN_F64, KILN_SHAPE(n), 3);
        cr_assert(kiln_eval(x) == KILN_OK && kiln_eval(kiln_sub(x, kiln_reciprocal(x))) == KILN_OK);
        kiln_call_report r = last();
        cr_expect(r.flops == 2 * n && r.bytes == 16 * n && r.specials == 0, "%ld: %ld flops, %ld bytes", (long)n, (long)r.flops,
                  (long)r.bytes);
    }
}

Test(last_call, in_place_or_why_not)
{
    kiln_tensor *p = kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(1000), 1));
    cr_assert(kiln_eval(p) == KILN_OK);
    for (int i = 0; i < 3; i++) {
        kiln_scope *scope = kiln_scope_begin();
        cr_assert(kiln_assign(p, kiln_mul(p, 0.5)) == KILN_OK);
        kiln_scope_end(scope);
        cr_assert(kiln_eval(p) == KILN_OK);
    }
    kiln_call_report r = last();
    cr_expect(r.in_place == 1 && r.why_not_in_place == NULL, "%ld, %s", (long)r.in_place, r.why_not_in_place);
    kiln_tensor *y = kiln_neg(p); /* p still means its input */
    cr_assert(kiln_eval(y) == KILN_OK);
    r = last();
    cr_expect(r.in_place == 0 && r.why_not_in_place && strstr(r.why_not_in_place, "handle"), "%s", r.why_not_in_place);
    kiln_release(p);
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], 1.0);
}

Test(last_call, of_functions_sorts_and_the_interpreter)
{
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(100), 1), *y;
    cr_assert(kiln_eval(x) == KILN_OK);
    kiln_function *f = kiln_function_new(body, 1, 1, NULL);
    for (int i = 0; i < 8; i++) {
        if (i == 5) { /* something else in between */
            cr_assert(kiln_eval(kiln_square(kiln_full(KILN_F32, KILN_SHAPE(7), 2))) == KILN_OK);
            cr_expect(last().bytes == 28, "%ld bytes", (long)last().bytes);
        }
        cr_assert(kiln_function_call(f, &x, &y) == KILN_OK);
        kiln_call_report r = last();
        cr_expect(r.source == (i ? KILN_CALL_MEMORY : KILN_CALL_COMPILED), "call %d: source %d", i, r.source);
        cr_expect(r.launches == 1 && r.flops == 100 && r.bytes == 800, "call %d: %ld flops, %ld bytes", i, (long)r.flops, (long)r.bytes);
        cr_expect(r.in_place == 0 && r.why_not_in_place);
    }
    kiln_function_free(f);
    cr_assert(kiln_eval(kiln_sort(x, 0, false)) == KILN_OK);
    kiln_call_report r = last();
    cr_expect(r.launches == 1 && r.kernels == 0 && r.flops == 0 && !r.regime);
    int source = -1;
    pthread_t other;
    cr_assert(pthread_create(&other, NULL, of_another_thread, &source) == 0 && pthread_join(other, NULL) == 0);
    cr_expect(source == KILN_CALL_NOTHING, "another thread's report is %d", source);
    cr_assert(kiln_set_option("mode", "interp") == KILN_OK && kiln_eval(kiln_cos(x)) == KILN_OK);
    r = last();
    cr_expect(r.source == KILN_CALL_INTERPRETED && r.launches == 0 && !r.program[0] && !r.regime && r.peak_flops == 0);
}

/* A program built with an earlier or a later header: what both know is filled, what lies behind stays. */
Test(last_call, other_sizes_of_the_struct)
{
    struct {
        kiln_call_report report;
        char behind[32];
    } later;
    cr_assert(kiln_eval(kiln_full(KILN_F32, KILN_SHAPE(4), 1)) == KILN_OK);
    memset(&later, 'x', sizeof later);
    later.report.size = sizeof later;
    cr_assert(kiln_last_call(&later.report) == KILN_OK);
    cr_expect(later.report.size == sizeof later.report && later.report.launches == 1 && later.behind[0] == 'x');
    kiln_call_report report = {.size = offsetof(kiln_call_report, peak_flops), .peak_flops = 7}; /* as the first version had it */
    cr_expect(kiln_last_call(&report) == KILN_OK && report.launches == 1 && report.peak_flops == 7 &&
              report.size == offsetof(kiln_call_report, peak_flops));
    report.size--;
    cr_expect(kiln_last_call(&report) == KILN_INVALID && strstr(kiln_error_message(), "sizeof(kiln_call_report)"), "%s",
              kiln_error_message());
    report.size = 0;
    cr_expect(kiln_last_call(&report) == KILN_INVALID);
    cr_expect(kiln_last_call(NULL) == KILN_INVALID && strstr(kiln_error_message(), "report is NULL"));
    kiln_clear_error();
}

/* A graph that is too large for one program: what its parts did is counted together. */
Test(last_call, a_graph_that_is_cut)
{
    enum { OPS = 9000, N = 16 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(N));
    cr_assert(kiln_eval(x) == KILN_OK);
    kiln_tensor *y = x;
    for (int i = 0; i < OPS; i++)
        y = i % 2 ? kiln_mul(y, x) : kiln_add(y, x);
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_call_report first = last();
    kiln_stats stats = stats_now();
    cr_expect(stats.compiles > 2, "%d programs: it was not cut", (int)stats.compiles);
    cr_expect(first.source == KILN_CALL_COMPILED && first.launches >= stats.compiles - 1 && first.kernels <= first.launches);
    cr_expect(first.flops == (int64_t)OPS * N, "%lld flops", (long long)first.flops);
    cr_expect(first.bytes >= first.launches * N * 4 && first.compile_seconds > 0, "%lld bytes", (long long)first.bytes);
    kiln_scope_end(scope);
}

/* --- kiln_perf_scaling ------------------------------------------------------------------------------------------------------ */

typedef struct Asked {
    int calls, stop_at, compiling;
    int64_t least, most;
} Asked;

static kiln_status asked_for(int64_t n, void *user)
{
    Asked *asked = user;
    asked->least = !asked->calls || n < asked->least ? n : asked->least;
    asked->most = n > asked->most ? n : asked->most;
    if (++asked->calls == asked->stop_at)
        return kiln_eval(NULL);
    kiln_tensor *x = kiln_linspace(KILN_F32, 0, 1, n);
    for (int i = 0; i < asked->compiling * asked->calls; i++)
        x = kiln_sin(x);
    return kiln_eval(kiln_sum(kiln_sin(kiln_exp(kiln_sin(x)))));
}

Test(last_call, scaling)
{
    Asked tiny = {0}, large = {0};
    kiln_scaling s = {.size = sizeof s};
    int tries = 20; /* what else the machine does is measured, too */
    do {
        tiny = (Asked){0};
        cr_assert(kiln_perf_scaling(asked_for, 4, &tiny, &s) == KILN_OK, "%s", kiln_error_message());
        cr_expect(s.size == sizeof s && s.runs >= 5 && s.runs <= 101 && tiny.calls == 2 * s.runs + 4 && s.compiles == 0);
        cr_expect(tiny.least == 4 && tiny.most == 8 && s.seconds > 0 && s.seconds_twice > 0);
    } while (!strstr(s.verdict, "overhead") && --tries);
    cr_expect(s.ratio < 1.6 && strstr(s.verdict, "overhead"), "%.2f %s", s.ratio, s.verdict);
    do
        cr_assert(kiln_perf_scaling(asked_for, 1 << 20, &large, &s) == KILN_OK);
    while (strstr(s.verdict, "overhead:") && --tries > 0);
    cr_expect(s.ratio > 1.25 && !strstr(s.verdict, "overhead:"), "%.2f %s", s.ratio, s.verdict);
}

Test(last_call, scaling_that_compiles_or_fails)
{
    Asked compiling = {.compiling = 1}, failing = {.stop_at = 7};
    kiln_scaling s = {.size = sizeof s};
    cr_assert(kiln_perf_scaling(asked_for, 4, &compiling, &s) == KILN_OK);
    cr_expect(s.compiles >= s.runs, "%d runs, %d compiles", (int)s.runs, (int)s.compiles);
    s.runs = -1;
    cr_expect(kiln_perf_scaling(asked_for, 4, &failing, &s) == KILN_INVALID && failing.calls == 7 && s.runs == -1);
    cr_expect(strstr(kiln_error_message(), "kiln_eval"), "%s", kiln_error_message());
    s.size = 3;
    cr_expect(kiln_perf_scaling(asked_for, 4, &failing, &s) == KILN_INVALID && strstr(kiln_error_message(), "sizeof(kiln_scaling)"));
}

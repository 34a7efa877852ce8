/*
 * CUDA graphs on the software driver: what ran twice in the same way is one launch from then on,
 * with the pointers and sizes of each call; and what happens when graphs fail, are too many, or
 * lose their kernels. With fuse=0 a chain of n equal ops is n launches of one kernel.
 */
#include "on_cuda.h"
#include "tests/support/count.h"

#include <pthread.h>

static char warnings[WARNINGS];

/* With memory from kiln's pool, for a repeat gets the same again. */
static void use_cuda(void)
{
    kiln_set_log_sink(keep_warnings, warnings);
    CUDA_WITH("fuse", "0", "rewrite", "0", "strict", "1");
}

/* With memory whose end the driver knows, for tests of what kernels do. */
static void use_exact_cuda(void)
{
    kiln_set_log_sink(keep_warnings, warnings);
    CUDA_WITH("test_memory", "exact", "fuse", "0", "rewrite", "0", "strict", "1");
}

/* How often the driver was asked for a kernel or a graph since `before`. */
static uint64_t graph_launches(const test_cuda_counters *before) { return counted().graph_launches - before->graph_launches; }

/* x, of n elements, after k times y -> sin(y) + x. */
static kiln_tensor *chain(kiln_tensor *x, int k)
{
    kiln_tensor *y = x;
    for (int i = 0; i < k; i++)
        y = kiln_add(kiln_sin(y), x);
    return y;
}

static void read_back(kiln_tensor *x, float *to, int n)
{
    cr_assert(kiln_read(x, KILN_F32, to, sizeof *to * (size_t)n) == KILN_OK, "%s", kiln_error_message());
}

/* The chain of k steps over `data` is what the interpreter makes of it, bit for bit. */
static void expect_chain(const float *data, int n, int k)
{
    static float want[4096], got[4096];
    cr_assert(n <= 4096);
    set_option("mode", "interp");
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(n), data);
    read_back(chain(x, k), want, n);
    set_option("mode", "jit");
    kiln_scope *scope = kiln_scope_begin();
    x = kiln_from(KILN_F32, KILN_SHAPE(n), data);
    read_back(chain(x, k), got, n);
    kiln_scope_end(scope);
    for (int i = 0; i < n; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof *got) == 0, "element %d of %d, %d steps: %.9g, not %.9g", i, n, k, (double)got[i],
                  (double)want[i]);
}

static const float *some_data(int seed)
{
    static float data[4096];
    for (int i = 0; i < 4096; i++)
        data[i] = (float)((i * 37 + seed * 101) % 1000) * 0.01f - 5;
    return data;
}

Test(cuda_graphs, the_third_run_is_one_launch_with_its_own_pointers)
{
    use_cuda();
    set_option("math", "strict");
    for (int run = 0; run < 6; run++) {
        test_cuda_counters before = counted();
        expect_chain(some_data(run), 100, 5); /* kept: its memory is another one each time */
        cr_assert_eq(graph_launches(&before), run < 2 ? 0 : 1, "run %d", run);
        cr_assert_eq(counted().launches - before.launches, 10);
    }
    kiln_stats stats = stats_now();
    cr_assert_eq(stats.graph_launches, 4);
    cr_assert_eq(stats.kernels, 60);
    cr_assert_eq(stats.fallbacks, 0);
    cr_assert_str_eq(warnings, "");
}

Test(cuda_graphs, driver_calls_of_a_repeat)
{
    use_cuda();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(64), some_data(0));
    uint64_t calls[6];
    for (int run = 0; run < 6; run++) {
        uint64_t before = counted().calls;
        kiln_scope *scope = kiln_scope_begin();
        cr_assert(kiln_eval(chain(x, 20)) == KILN_OK, "%s", kiln_error_message());
        calls[run] = counted().calls - before;
        kiln_scope_end(scope);
    }
    cr_assert(calls[1] > 40, "%d calls", (int)calls[1]);
    /* The pool gives the same memory again: nothing is updated, one launch is all but for asking
     * which context is current. */
    cr_assert(calls[5] < calls[1] - 30, "%d calls, %d before", (int)calls[5], (int)calls[1]);
}

Test(cuda_graphs, sizes_change_in_a_generalised_program)
{
    use_exact_cuda();
    set_option("math", "strict");
    static const int sizes[] = {64, 65, 66, 1000, 1, 4096, 3, 2048};
    expect_chain(some_data(0), 10, 4);
    test_cuda_counters before = counted();
    for (int i = 0; i < 8; i++)
        expect_chain(some_data(i), sizes[i], 4);
    kiln_stats stats = stats_now();
    cr_assert_leq(stats.compiles, 3);
    cr_assert_geq(graph_launches(&before), 4);
    before = counted();
    expect_chain(some_data(9), 0, 4); /* nothing to launch */
    cr_assert_eq(graph_launches(&before), 0);
    expect_chain(some_data(9), 7, 4);
    cr_assert_eq(graph_launches(&before), 1);
}

/* `a` rows of `b`: after k times y -> sin(y) * row + column, turned. Kernels that divide by sizes. */
static kiln_tensor *turned(const float *data, int a, int b, int k)
{
    kiln_tensor *y = kiln_from(KILN_F32, KILN_SHAPE(a, b), data), *row = kiln_from(KILN_F32, KILN_SHAPE(b), data + 7),
                *column = kiln_from(KILN_F32, KILN_SHAPE(a, 1), data + 3);
    for (int i = 0; i < k; i++)
        y = kiln_add(kiln_mul(kiln_sin(y), row), column);
    return kiln_add(kiln_transpose(y), kiln_permute(column, KILN_AXES(1, 0)));
}

static void expect_turned(const float *data, int a, int b)
{
    static float want[4000], got[4000];
    cr_assert(a * b <= 4000);
    set_option("mode", "interp");
    read_back(turned(data, a, b, 3), want, a * b);
    set_option("mode", "jit");
    kiln_scope *scope = kiln_scope_begin();
    read_back(turned(data, a, b, 3), got, a * b);
    kiln_scope_end(scope);
    for (int i = 0; i < a * b; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof *got) == 0, "element %d of %d x %d: %.9g, not %.9g", i, a, b, (double)got[i],
                  (double)want[i]);
}

/* What a size is divided by with is an argument, too, and changes with it. */
Test(cuda_graphs, sizes_that_are_divided_by_change)
{
    use_cuda();
    set_option("math", "strict");
    static const int sizes[][2] = {{30, 40}, {31, 43}, {40, 30}, {3, 1000}, {1000, 3}, {2, 2},
                                   {64, 62}, {17, 5},  {32, 64}, {5, 17},   {61, 64},  {63, 62}};
    expect_turned(some_data(0), 20, 50);
    test_cuda_counters before = counted();
    kiln_stats first;
    for (int i = 0; i < 12; i++) {
        expect_turned(some_data(i), sizes[i][0], sizes[i][1]);
        if (i == 3)
            kiln_get_stats(&first);
    }
    kiln_stats last = stats_now();
    cr_assert_leq(last.compiles - first.compiles, 1, "the same program for all sizes");
    cr_assert_geq(graph_launches(&before), 4);
    expect_turned(some_data(1), 0, 9); /* no divisor, and nothing to launch */
    expect_turned(some_data(2), 9, 0);
    expect_turned(some_data(3), 9, 11);
    cr_assert_eq(counted().violations, 0);
}

/* Reductions over several blocks (scratch with counters), rows, a contraction, more inputs than the
 * parameters of a kernel hold. */
static void many_kinds(float *out)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(64, 64), some_data(1)), *all[600];
    kiln_tensor *y = kiln_matmul(kiln_softmax(x, 1), x), *sum = kiln_sum(kiln_exp(kiln_mul(y, kiln_scalar(0.1))));
    for (int i = 0; i < 600; i++)
        all[i] = kiln_from(KILN_F32, KILN_SHAPE(2), some_data(i));
    kiln_tensor *many = all[0];
    for (int i = 1; i < 600; i++)
        many = kiln_add(many, all[i]);
    kiln_tensor *total = kiln_add(kiln_add(sum, kiln_sum(many)), kiln_max(kiln_sum_axes(x, KILN_AXES(0), false)));
    read_back(total, out, 1);
    kiln_scope_end(scope);
}

Test(cuda_graphs, all_kinds_of_kernels)
{
    use_exact_cuda();
    for (int fuse = 0; fuse < 2; fuse++) {
        set_option("fuse", fuse ? "1" : "0");
        float first, now;
        test_cuda_counters before = counted();
        many_kinds(&first);
        for (int run = 1; run < 5; run++) {
            many_kinds(&now);
            cr_assert(memcmp(&first, &now, sizeof now) == 0, "run %d, fuse=%d: %.9g, not %.9g", run, fuse, (double)now, (double)first);
        }
        cr_assert_gt(graph_launches(&before), 0, "fuse=%d", fuse);
    }
    cr_assert_eq(counted().violations, 0);
}

/* Arguments in device memory, as those of kernels that have more than 512: a copy for each launch, and the launches of a graph get
 * those of this call. */
Test(cuda_graphs, arguments_in_device_memory)
{
    use_cuda();
    static const int sizes[] = {64, 64, 64, 64, 65, 1000, 1, 4096, 3, 2048, 7, 0};
    set_option("test_fail", "block:0");
    set_option("math", "strict");
    test_cuda_counters first = counted();
    expect_chain(some_data(0), 64, 1);
    uint64_t copies = counted().copies - first.copies; /* of two launches, their values included */
    for (int run = 0; run < 12; run++) {
        test_cuda_counters before = counted();
        expect_chain(some_data(run), sizes[run], 4);
        if (!software_driver()) /* which tells of copies */
            continue;
        cr_assert_eq(counted().launches - before.launches, sizes[run] ? 8 : 0, "run %d", run);
        cr_assert(!sizes[run] || counted().copies - before.copies == copies + 6, "run %d: %d copies", run,
                  (int)(counted().copies - before.copies));
    }
    cr_assert_geq(graph_launches(&first), 6);
    float want, got;
    for (int fuse = 0; fuse < 2; fuse++) {
        set_option("fuse", fuse ? "1" : "0");
        set_option("mode", "interp");
        many_kinds(&want);
        set_option("mode", "jit");
        for (int run = 0; run < 4; run++) {
            many_kinds(&got);
            cr_assert(memcmp(&got, &want, sizeof got) == 0, "run %d, fuse=%d: %.9g, not %.9g", run, fuse, (double)got, (double)want);
        }
    }
    cr_assert_eq(counted().violations, 0);
    cr_assert_str_eq(warnings, "");
}

/* They are given back once the launches are queued: a repeat takes no more memory. */
Test(cuda_graphs, arguments_in_device_memory_go)
{
    use_cuda();
    set_option("test_fail", "block:0");
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(64), some_data(0));
    size_t live = 0;
    for (int run = 0; run < 20; run++) {
        kiln_scope *scope = kiln_scope_begin();
        cr_assert(kiln_wait(chain(x, 4)) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
        live = run == 5 ? (size_t)counted().bytes_live : live;
    }
    cr_assert_eq((size_t)counted().bytes_live, live, "%zu bytes, %zu before", (size_t)counted().bytes_live, live);
}

/* A sort is launches like all others, as many as the length asks for: another length is another
 * graph. */
Test(cuda_graphs, sorts_are_part_of_them)
{
    use_exact_cuda();
    static const int64_t lengths[] = {100, 3000};
    static int64_t got[3000], want[3000];
    set_option("dynamic", "always");
    for (int run = 0; run < 10; run++) {
        int64_t n = lengths[run % 2];
        kiln_scope *scope = kiln_scope_begin();
        for (int mode = 0; mode < 2; mode++) {
            set_option("mode", mode ? "interp" : "jit");
            kiln_tensor *x = kiln_mul(kiln_arange(KILN_I32, 0, (double)n, 1), kiln_int(7919 + run));
            x = kiln_argsort(kiln_bitwise_and(x, kiln_int(255)), 0, true);
            cr_assert(kiln_read(x, KILN_I64, mode ? want : got, sizeof *got * (size_t)n) == KILN_OK, "%s", kiln_error_message());
        }
        for (int64_t i = 0; i < n; i++)
            cr_assert_eq(got[i], want[i], "run %d, element %d", run, (int)i);
        kiln_scope_end(scope);
    }
    cr_assert_geq(counted().graph_launches, 4);
    cr_assert_eq(counted().violations, 0);
}

static const char *const switches[][2] = {{"cuda_graphs", "off"}, {"sync", "1"}};

Test(cuda_graphs, can_be_switched_off)
{
    use_cuda();
    for (size_t i = 0; i < 2; i++) {
        set_option(switches[i][0], switches[i][1]);
        for (int run = 0; run < 5; run++)
            expect_chain(some_data(run), 10, 2);
        cr_assert_eq(counted().graph_launches, 0, "%s=%s", switches[i][0], switches[i][1]);
        set_option(switches[i][0], i ? "0" : "on");
    }
    for (int run = 0; run < 3; run++)
        expect_chain(some_data(run), 10, 2);
    cr_assert_eq(counted().graph_launches, 3 - 2);
}

/* Parameters are overwritten in place by a program of several launches: a graph must not run it
 * twice. */
Test(cuda_graphs, updates_in_place)
{
    use_cuda();
    kiln_tensor *p = kiln_retain(kiln_from(KILN_F32, KILN_SHAPE(50), some_data(3)));
    float want[50], got[50];
    memcpy(want, some_data(3), sizeof want);
    for (int run = 0; run < 8; run++) {
        kiln_scope *scope = kiln_scope_begin();
        if (run == 5 && software_driver())
            DRIVER(test_cuda_fail_call)("cuGraphLaunch", 1, 2, 0);
        kiln_tensor *next = kiln_add(kiln_mul(p, kiln_scalar(0.5)), kiln_scalar(run));
        cr_assert(kiln_assign(p, next) == KILN_OK && kiln_eval(p) == KILN_OK, "%s", kiln_error_message());
        read_back(p, got, 50);
        for (int i = 0; i < 50; i++) {
            want[i] = want[i] * 0.5f + (float)run;
            cr_assert(got[i] == want[i], "run %d, element %d: %.9g, not %.9g", run, i, (double)got[i], (double)want[i]);
        }
        kiln_scope_end(scope);
    }
    kiln_release(p);
}

static const struct {
    const char *call;
    int nth;
} graph_calls[] = {
    {"cuGraphCreate", 1},
    {"cuGraphAddKernelNode_v2", 1},
    {"cuGraphAddKernelNode_v2", 3},
    {"cuGraphInstantiateWithFlags", 1},
    {"cuGraphLaunch", 1},
    {"cuGraphLaunch", 2},
    {"cuGraphExecKernelNodeSetParams_v2", 1},
    {"cuGraphExecKernelNodeSetParams_v2", 2},
};
enum { GRAPH_CALLS = sizeof graph_calls / sizeof *graph_calls };

ParameterizedTestParameters(cuda_graphs, a_failing_call_leads_to_plain_launches)
{
    static size_t index[2 * GRAPH_CALLS];
    for (size_t i = 0; i < 2 * GRAPH_CALLS; i++)
        index[i] = i;
    return cr_make_param_array(size_t, index, 2 * GRAPH_CALLS);
}

ParameterizedTest(size_t *i, cuda_graphs, a_failing_call_leads_to_plain_launches)
{
    use_cuda();
    set_option("math", "strict");
    const char *call = graph_calls[*i / 2].call;
    DRIVER(test_cuda_fail_call)(call, graph_calls[*i / 2].nth, *i % 2 ? 801 : 2, 0);
    for (int run = 0; run < 8; run++)
        expect_chain(some_data(run), 30, 3);
    char *at = strstr(warnings, "a graph of 6 launches");
    cr_assert(at && strstr(at, *i % 2 ? "801" : "(2: ") && strstr(at, "KILN_CUDA_GRAPHS=off"), "%s: %s", call, warnings);
    cr_assert(!strstr(at + 1, "a graph of"), "told again: %s", warnings);
    kiln_stats stats;
    kiln_get_stats(&stats);
    cr_assert_eq(stats.kernels, 48);
    cr_assert_eq(stats.fallbacks, 0);
    cr_assert_leq(stats.graph_launches, 3); /* those before it failed */
    for (int run = 0; run < 4; run++)
        expect_chain(some_data(run), 30, 4); /* other graphs work */
    kiln_get_stats(&stats);
    cr_assert_geq(stats.graph_launches, 2);
}

Test(cuda_graphs, a_sticky_error_names_the_kernels)
{
    use_cuda();
    for (int run = 0; run < 3; run++)
        expect_chain(some_data(run), 30, 3);
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(30), some_data(0));
    DRIVER(test_cuda_fail_call)("cuGraphLaunch", 1, 700, 1);
    for (int run = 0; run < 2; run++) {
        cr_assert(kiln_eval(chain(x, 3)) == KILN_DEVICE);
        cr_assert(strstr(kiln_error_message(), "700") && (run || strstr(kiln_error_message(), "KILN_SYNC=1")) &&
                      strstr(kiln_error_message(), "test_cuda_graphs.c"),
                  "%s", kiln_error_message());
        cr_assert(strstr(kiln_error_message(), "a graph of 6 launches, from sin"), "%s", kiln_error_message());
    }
}

/* How many graphs the driver holds ready; a real device does not tell. */
static void expect_alive(int least, int most)
{
    static char text[1 << 20];
    if (!software_driver())
        return;
    (void)DRIVER(test_cuda_leaks)(text, sizeof text);
    int n = occurrences("graph exec", text);
    cr_assert(least <= n && n <= most, "%d graphs are alive, not %d to %d", n, least, most);
}

/* Hundreds of sequences: few instances are kept, and those in use stay. */
Test(cuda_graphs, are_bounded)
{
    use_cuda();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(4), some_data(0));
    for (int k = 1; k <= 70; k++)
        for (int run = 0; run < 3; run++) {
            kiln_scope *scope = kiln_scope_begin();
            cr_assert(kiln_eval(chain(x, k)) == KILN_OK, "%s", kiln_error_message());
            kiln_scope_end(scope);
        }
    expect_alive(64, 64);
    test_cuda_counters before = counted();
    expect_chain(some_data(0), 4, 70); /* none was idle for long enough to make room */
    cr_assert_eq(graph_launches(&before), 0);
    expect_chain(some_data(0), 4, 64);
    cr_assert_eq(graph_launches(&before), 1);
    for (int run = 0; run < 300; run++) { /* one stays in use, the others not */
        kiln_scope *scope = kiln_scope_begin();
        cr_assert(kiln_eval(chain(x, 1)) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
    }
    before = counted();
    expect_chain(some_data(0), 4, 70);
    expect_chain(some_data(0), 4, 1);
    cr_assert_eq(graph_launches(&before), 2);
    expect_alive(64, 64);
    cr_assert_eq(counted().violations, 0);
}

/* Kernels are unloaded with the last program that has them: no graph may launch them any more. */
Test(cuda_graphs, go_before_their_kernels)
{
    use_cuda();
    set_option("cache_bytes", "1"); /* each program is dropped when the next comes */
    for (int round = 0; round < 3; round++) {
        for (int run = 0; run < 4; run++)
            expect_chain(some_data(run), 20, 2);
        expect_alive(1, 64);
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(20), some_data(0));
        for (int k = 0; k < 2; k++) {
            kiln_tensor *y = k ? kiln_exp(x) : kiln_mul(x, x);
            cr_assert(kiln_wait(y) == KILN_OK, "%s", kiln_error_message());
        }
        expect_alive(0, 0);
    }
    cr_assert_eq(counted().violations, 0);
}

static void *repeat(void *user)
{
    kiln_tensor *x = user;
    float first[40], now[40];
    bool fine = true;
    for (int run = 0; run < 30 && fine; run++) {
        kiln_scope *scope = kiln_scope_begin();
        fine = kiln_read(chain(x, 3), KILN_F32, run ? now : first, sizeof now) == KILN_OK && (!run || memcmp(first, now, sizeof now) == 0);
        kiln_scope_end(scope);
    }
    kiln_release(x);
    return fine ? x : NULL;
}

/* One program, several threads: each has a stream and instances of its own. */
Test(cuda_graphs, threads)
{
    use_cuda();
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    for (int t = 0; t < THREADS; t++) {
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(40), some_data(t));
        cr_assert(pthread_create(&thread[t], NULL, repeat, kiln_retain(x)) == 0);
    }
    for (int t = 0; t < THREADS; t++) {
        void *result;
        pthread_join(thread[t], &result);
        cr_assert(result != NULL, "thread %d", t);
    }
    cr_assert_geq(counted().graph_launches, THREADS * 20);
    expect_alive(0, THREADS);
    cr_assert_eq(counted().violations, 0);
    cr_assert_str_eq(warnings, "");
}

/* Four runs of a program of several launches with a look-up and a sum; how many failed. What
 * succeeded is right. */
static int runs_with_failures(const float *data, const float *want)
{
    int failed = 0;
    for (int run = 0; run < 4; run++) {
        float got[3] = {0};
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3000), data), *index = I64(KILN_SHAPE(2), 2999, 7);
        kiln_tensor *y = kiln_take(chain(x, 2), index, 0), *sum = kiln_reshape(kiln_sum(chain(x, 1)), KILN_SHAPE(1));
        kiln_status status = kiln_eval(sum);
        if (status == KILN_OK)
            status = kiln_read(kiln_concat((kiln_tensor *[]){y, sum}, 2, 0), KILN_F32, got, sizeof got);
        failed += status != KILN_OK;
        cr_assert(status != KILN_OK || memcmp(got, want, sizeof got) == 0, "run %d: %.9g %.9g %.9g, not %.9g %.9g %.9g", run,
                  (double)got[0], (double)got[1], (double)got[2], (double)want[0], (double)want[1], (double)want[2]);
        kiln_clear_error();
        kiln_scope_end(scope);
    }
    return failed;
}

/* Whichever call fails, no result is wrong, and what comes after works. */
static void any_failing_call(int step)
{
    set_option("math", "strict");
    set_option("strict", "0");
    float want[3];
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3000), some_data(5));
    kiln_tensor *y = kiln_take(chain(x, 2), I64(KILN_SHAPE(2), 2999, 7), 0), *sum = kiln_reshape(kiln_sum(chain(x, 1)), KILN_SHAPE(1));
    read_back(kiln_concat((kiln_tensor *[]){y, sum}, 2, 0), want, 3);
    static const int codes[] = {2, 1};
    for (int code = 0; code < 2; code++) {
        /* each program is dropped when another comes: modules and graphs are made anew */
        set_option("cache_bytes", "1");
        uint64_t before = counted().calls;
        cr_assert_eq(runs_with_failures(some_data(5), want), 0);
        int calls = (int)(counted().calls - before);
        for (int n = 1 + code; n <= calls; n += step) {
            if (n % 2)
                set_option("cache_bytes", n % 4 == 1 ? "1" : "268435456");
            DRIVER(test_cuda_fail_call)(NULL, n, codes[code], 0);
            int failed = runs_with_failures(some_data(5), want);
            cr_assert(failed <= 1, "call %d: %d runs failed", n, failed);
            DRIVER(test_cuda_fail_call)(NULL, 0, 0, 0);
            cr_assert_eq(runs_with_failures(some_data(5), want), 0, "after call %d failed", n);
        }
    }
    cr_assert_eq(counted().violations, 0);
}

Test(cuda_graphs, any_failing_call)
{
    use_cuda();
    any_failing_call(3);
}

Test(cuda_graphs, any_failing_call_with_arguments_in_device_memory)
{
    use_cuda();
    set_option("test_fail", "block:0");
    any_failing_call(11);
}

/* --- threads -------------------------------------------------------------------------------------------------------------- */

enum { WARM = 4, BESIDE = 300 }; /* so many runs until nothing is traced, loaded or built any more */
static pthread_barrier_t warm, hooked;
static kiln_function *doubles; /* NULL: recorded anew each time */

static void doubled(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], in[0]);
}

static bool doubles_it(kiln_tensor *x)
{
    float got[BESIDE];
    kiln_tensor *y = x;
    double expected = doubles ? 2 : 8;
    if (doubles && kiln_function_call(doubles, &x, &y) != KILN_OK)
        return false;
    for (int k = 0; k < 3 && !doubles; k++) /* three launches */
        y = kiln_add(y, y);
    return kiln_read(y, KILN_F32, got, sizeof got) == KILN_OK && got[0] == expected && got[BESIDE - 1] == expected;
}

static void *runs(void *fine)
{
    float ones[BESIDE];
    bool right = true;
    for (int i = 0; i < BESIDE; i++)
        ones[i] = 1;
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(BESIDE), ones);
    for (int k = 0; k <= WARM; k++) {
        kiln_scope *scope = kiln_scope_begin();
        if (k == WARM) {
            pthread_barrier_wait(&warm);
            pthread_barrier_wait(&hooked);
        }
        right &= doubles_it(x);
        kiln_scope_end(scope);
    }
    return right ? fine : NULL;
}

/* Two threads come to this call of the driver at one time. */
static void meet_in(const char *call)
{
    pthread_t thread[2];
    atomic_int came = 0;
    pthread_barrier_init(&warm, NULL, 3);
    pthread_barrier_init(&hooked, NULL, 3);
    for (int i = 0; i < 2; i++)
        cr_assert(pthread_create(&thread[i], NULL, runs, &came) == 0);
    pthread_barrier_wait(&warm);
    DRIVER(test_cuda_before)(call, 2, wait_for_another, &came);
    pthread_barrier_wait(&hooked);
    for (int i = 0; i < 2; i++) {
        void *fine;
        pthread_join(thread[i], &fine);
        cr_assert(fine != NULL, "thread %d", i);
    }
    cr_assert_eq(atomic_load(&came), 2, "threads come to %s one after the other", call);
}

Test(cuda_graphs, of_two_threads_are_launched_beside_each_other)
{
    use_cuda();
    meet_in("cuGraphLaunch");
}

Test(cuda_graphs, functions_are_repeated_beside_each_other)
{
    use_cuda();
    doubles = kiln_function_new(doubled, 1, 1, NULL);
    meet_in("cuLaunchKernel");
    kiln_function_free(doubles);
}

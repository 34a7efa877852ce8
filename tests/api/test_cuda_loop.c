/*
 * Loops and branches that a CUDA device runs by itself: one launch of a graph with conditional nodes, which nobody waits for, and the
 * values that the interpreter and the host's loop make, bit for bit; errors from inside; and the host's loop wherever a driver has no such
 * nodes or refuses something.
 */
#include "on_cuda.h"

#include <stdio.h>

static char warnings[WARNINGS], said[16384];

static void keep_all(void *user, int level, const char *topic, const char *line)
{
    keep_warnings(user, level, topic, line);
    if (strlen(said) + strlen(line) + 2 < sizeof said)
        strcat(strcat(said, line), "\n");
}

static void use_cuda(void)
{
    warnings[0] = said[0] = 0;
    kiln_set_log_sink(keep_all, warnings);
    CUDA_WITH("test_memory", "exact", "math", "strict", "log", "kernels");
}

static const char host_runs[] = "the host runs the";

/* --- programs -------------------------------------------------------------------------------------------------------- */

static kiln_tensor *below(kiln_tensor **state, void *user) { return kiln_lt(state[1], ((int64_t *)user)[0]); }

/* x -> x * 1.25 + captured / (i + 1), i + 1; the third stays. A step that looks at others is no kernel with the loop inside. */
static kiln_tensor *captured;
static bool in_kernel;
static void grow(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(in_kernel ? in[0] : kiln_roll(in[0], 1, 0), 1.25), kiln_div(captured, kiln_add(in[1], 1)));
    out[1] = kiln_add(in[1], 1);
    out[2] = in[2];
}

enum { N = 7, VALUES = 256 };

/* So many steps; the values that it ends with. */
static kiln_status grown(int64_t steps, int64_t bound, float *to)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_sin(kiln_arange(KILN_F32, 0, N, 1)), *out[3];
    captured = kiln_cos(kiln_arange(KILN_F32, 0, N, 1));
    kiln_status status = kiln_while(below, grow, 3, (kiln_tensor *[]){x, kiln_int(0), captured}, bound, out, &steps);
    if (status == KILN_OK)
        status = kiln_read(kiln_concat((kiln_tensor *[]){out[0], out[2], kiln_reshape(kiln_cast(out[1], KILN_F32), KILN_SHAPE(1))}, 3, 0),
                           KILN_F32, to, sizeof *to * (2 * N + 1));
    kiln_scope_end(scope);
    return status;
}

/* Two states that change places, and a sum of what comes by; each third step a branch that draws, with a loop in it. */
static kiln_tensor *less(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(kiln_max(kiln_abs(state[2])), 20);
}

static void inner_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    (void)user;
    next[0] = kiln_add(kiln_mul(carry[0], 0.5), kiln_mul(x[0], kiln_cast(i, KILN_F32)));
    y[0] = kiln_sub(next[0], x[0]);
}

static void drawn(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *last, *ys, *rows = kiln_reshape(kiln_arange(KILN_F32, 0, 5 * N, 1), KILN_SHAPE(5, N));
    (void)user;
    (void)kiln_scan(inner_step, -1, KILN_SCAN_REVERSE, 1, in, &last, 1, &rows, 1, &ys, NULL);
    out[0] = kiln_add(last, kiln_add(kiln_uniform(KILN_F32, KILN_SHAPE(N), 0, 1), kiln_sum_axes(ys, KILN_AXES(0), false)));
}

static void halved(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 0.5);
}

static void nested_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *third;
    (void)user;
    (void)kiln_cond(kiln_eq(kiln_remainder(in[3], 3), 0), drawn, halved, 1, &in[0], 1, &third, NULL);
    out[0] = in[1];
    out[1] = kiln_add(in[0], kiln_mul(third, 0.01));
    out[2] = kiln_add(in[2], kiln_abs(in[0]));
    out[3] = kiln_add(in[3], 1);
}

static void nested(float *to)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_arange(KILN_F32, 0, N, 1), *out[4];
    kiln_seed(11);
    OK(kiln_while(less, nested_step, 4, (kiln_tensor *[]){kiln_sin(x), kiln_cos(x), kiln_mul(x, 0.1), kiln_int(0)}, 0, out, NULL));
    OK(kiln_read(kiln_concat((kiln_tensor *[]){out[0], out[1], out[2], kiln_reshape(kiln_cast(out[3], KILN_F32), KILN_SHAPE(1))}, 4, 0),
                 KILN_F32, to, sizeof *to * (3 * N + 1)));
    kiln_scope_end(scope);
}

static void row_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    (void)user;
    next[0] = kiln_add(kiln_mul(kiln_roll(carry[0], 1, 0), 0.75), x[0]); /* looks at others: no kernel of its own */
    next[1] = kiln_add(carry[1], i);
    y[0] = kiln_sum(next[0]);
}

/* The last carries and the first ys of a scan over so many rows of `wide`. */
static void scanned(int64_t rows, int64_t wide, unsigned flags, float *to)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *xs = kiln_reshape(kiln_sin(kiln_arange(KILN_F32, 0, (double)(rows * wide), 1)), KILN_SHAPE(rows, wide)), *last[2], *ys;
    OK(kiln_scan(row_step, -1, flags, 2, (kiln_tensor *[]){kiln_zeros(KILN_F32, KILN_SHAPE(wide)), kiln_int(0)}, last, 1, &xs, 1, &ys,
                 NULL));
    kiln_tensor *all = kiln_concat((kiln_tensor *[]){last[0], kiln_reshape(kiln_cast(last[1], KILN_F32), KILN_SHAPE(1)), ys}, 3, 0);
    OK(kiln_read(all, KILN_F32, to, sizeof *to * (size_t)(wide + 1 + rows)));
    kiln_scope_end(scope);
}

/* With a device that decides: a real one may have an older driver, which is told. */
static bool use_loops(void)
{
    float got[VALUES];
    use_cuda();
    OK(grown(2, 0, got));
    bool host = strstr(said, host_runs);
    cr_assert(!host || !software_driver(), "%s", said);
    if (host)
        cr_log_warn("the device decides no loops: %s", said);
    return !host;
}

static void same_bits(int line, const float *got, const float *want, int n)
{
    for (int i = 0; i < n; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof *got) == 0, "line %d, value %d: %.9g, not %.9g", line, i, (double)got[i],
                  (double)want[i]);
}
#define SAME_BITS(got, want, n) same_bits(__LINE__, got, want, n)

/* --- values, launches, waiting ----------------------------------------------------------------------------------------------- */

Test(cuda_loop, a_while_is_one_launch_that_nobody_waits_for)
{
    if (!use_loops())
        return;
    static const int64_t steps[] = {3, 3, 0, 1, 50, 7};
    float got[VALUES], want[VALUES], host[VALUES];
    for (int k = 0; k < 6; k++) {
        set_option("mode", "interp");
        OK(grown(steps[k], 50, want));
        set_option("mode", "jit");
        set_option("cuda_graphs", "0");
        test_cuda_counters before = counted();
        OK(grown(steps[k], 50, host));
        uint64_t waits = counted().synchronizations - before.synchronizations;
        set_option("cuda_graphs", "1");
        before = counted();
        OK(grown(steps[k], 50, got));
        SAME_BITS(got, want, 2 * N + 1);
        SAME_BITS(host, want, 2 * N + 1);
        if (k == 0)
            continue; /* compiled first */
        cr_assert_geq(counted().graph_launches - before.graph_launches, 1);
        if (software_driver()) { /* what the loop does not wait for: each condition */
            uint64_t now = counted().synchronizations - before.synchronizations;
            cr_assert(waits >= now + (uint64_t)steps[k] + 1, "%d waits, %d of the host's loop", (int)now, (int)waits);
        }
    }
    cr_assert_str_eq(warnings, "");
    cr_assert_eq(counted().violations, 0);
}

/* kiln_eval queues it and returns; a second call changes parameters of the same instance. */
Test(cuda_loop, eval_returns_at_once_and_a_repeat_builds_nothing)
{
    if (!use_loops())
        return;
    set_option("log", "");
    for (int run = 0; run < 4; run++) {
        kiln_scope *scope = kiln_scope_begin();
        int64_t steps = 40 + run;
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(N)), *out[3];
        captured = kiln_ones(KILN_F32, KILN_SHAPE(N));
        OK(kiln_eval(x) == KILN_OK ? kiln_eval(captured) : KILN_INVALID);
        OK(kiln_while(below, grow, 3, (kiln_tensor *[]){x, kiln_int(0), captured}, 0, out, &steps));
        test_cuda_counters before = counted();
        if (software_driver()) /* the instance is there: made once */
            DRIVER(test_cuda_fail_call)("cuGraphInstantiateWithFlags", 1, 801, 0);
        OK(kiln_eval(out[0]));
        test_cuda_counters after = counted();
        cr_assert_eq(after.graph_launches - before.graph_launches, 1);
        if (software_driver()) { /* nothing ran before it was waited for */
            cr_assert_eq(after.synchronizations, before.synchronizations);
            cr_assert_eq(after.launches, before.launches);
        }
        OK(kiln_wait(out[0]));
        if (software_driver())
            cr_assert_geq(counted().launches - before.launches, (uint64_t)(2 * steps));
        kiln_scope_end(scope);
    }
    if (software_driver())
        DRIVER(test_cuda_fail_call)(NULL, 0, 0, 0);
}

Test(cuda_loop, bodies_in_bodies)
{
    if (!use_loops())
        return;
    float got[VALUES], want[VALUES], host[VALUES];
    set_option("mode", "interp");
    nested(want);
    set_option("mode", "jit");
    set_option("cuda_graphs", "0");
    nested(host);
    cr_assert(strstr(said, host_runs) && strstr(said, "there are no CUDA graphs"), "%s", said);
    set_option("cuda_graphs", "1");
    said[0] = 0;
    for (int run = 0; run < 3; run++) {
        test_cuda_counters before = counted();
        nested(got);
        SAME_BITS(got, want, 3 * N + 1);
        cr_assert_geq(counted().graph_launches - before.graph_launches, 1);
    }
    SAME_BITS(host, want, 3 * N + 1);
    cr_assert(want[3 * N] > 6, "%g steps", (double)want[3 * N]); /* three branches of each kind at least */
    cr_assert(!strstr(said, host_runs), "%s", said);
    cr_assert_str_eq(warnings, "");
    cr_assert_eq(counted().violations, 0);
}

/* A scan whose launches are many: one graph for all lengths; rows that are copied in pieces of 16, 4 and 1 bytes. */
Test(cuda_loop, scans_over_many_lengths)
{
    if (!use_loops())
        return;
    static const int64_t rows[] = {80, 70, 100, 99, 65, 120}, wide[] = {8, 8, 7, 7, 1, 64};
    static float got[VALUES], want[VALUES];
    for (int k = 0; k < 6; k++) {
        unsigned flags = k & 1 ? KILN_SCAN_REVERSE : 0;
        set_option("mode", "interp");
        scanned(rows[k], wide[k], flags, want);
        set_option("mode", "jit");
        test_cuda_counters before = counted();
        scanned(rows[k], wide[k], flags, got);
        SAME_BITS(got, want, (int)(wide[k] + 1 + rows[k]));
        cr_assert_geq(counted().graph_launches - before.graph_launches, 1, "%d", k);
    }
    cr_assert_str_eq(warnings, "");
    cr_assert_eq(counted().violations, 0);
    said[0] = 0; /* few launches are queued one by one */
    scanned(20, 8, 0, got);
    cr_assert(!strstr(said, host_runs), "%s", said);
}

static void count_up(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], 1);
}

static kiln_tensor *counting(kiln_tensor **state, void *user) { return kiln_lt(state[0], *(int64_t *)user); }

/* A million is as well, and takes half a minute here. */
Test(cuda_loop, a_hundred_thousand_iterations)
{
    if (!use_loops())
        return;
    int64_t steps = 100000;
    double value;
    set_option("log", "");
    if (software_driver())
        set_option("test_memory", "pooled");
    set_option("fuse", "0"); /* else it is one kernel */
    kiln_tensor *x = kiln_int(0);
    OK(kiln_while(counting, count_up, 1, &x, 0, &x, &steps));
    test_cuda_counters before = counted();
    OK(kiln_item(x, &value));
    cr_assert_eq(value, 1e5);
    cr_assert_eq(counted().graph_launches - before.graph_launches, 1);
}

/* --- errors from inside --------------------------------------------------------------------------------------------------------- */

Test(cuda_loop, a_bound_is_told_to_who_waits)
{
    use_cuda();
    float got[VALUES];
    for (int k = 0; k < 2; k++) {
        in_kernel = k == 1;
        OK(grown(12, 12, got));
        cr_assert_eq(got[2 * N], 12);
        expect_status(grown(13, 12, got), KILN_INVALID, "is not at its end after 12 steps: raise its max_steps");
        cr_assert(strstr(kiln_error_message(), "test_cuda_loop.c:"), "%s", kiln_error_message());
        kiln_clear_error();
        OK(grown(12, 12, got)); /* and the next run is right */
        cr_assert_eq(got[2 * N], 12);
    }
}

static int bad_line;

static void look_up(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    bad_line = __LINE__ + 1;
    out[0] = kiln_add(in[0], kiln_take(captured, in[1], 0));
    out[1] = kiln_add(in[1], 1);
}

static void looks_up(kiln_tensor **in, kiln_tensor **out, void *user) /* a branch that is wrong in the third step */
{
    (void)kiln_cond(kiln_ge(in[1], 0), look_up, look_up, 2, in, 2, out, user);
}

static kiln_tensor *ever(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(kiln_min(state[1]), 1000000000); /* it has no end but the error's */
}

Test(cuda_loop, an_index_out_of_bounds_ends_all_loops_around)
{
    use_cuda();
    float value;
    captured = kiln_retain(kiln_from(KILN_F32, KILN_SHAPE(3), (float[]){5, 6, 7}));
    kiln_function_body *const steps[] = {look_up, looks_up};
    for (int k = 0; k < 2; k++) {
        kiln_tensor *state[] = {kiln_zeros(KILN_F32, KILN_SHAPE(1)), kiln_from(KILN_I64, KILN_SHAPE(1), (int64_t[]){0})}, *out[2];
        OK(kiln_while(ever, steps[k], 2, state, 0, out, NULL));
        OK(kiln_eval(out[0]));
        char place[64];
        expect_status(kiln_read(kiln_mul(out[0], 2), KILN_F32, &value, sizeof value), KILN_BAD_INDEX,
                      "is out of bounds: axis 0 has 3 elements");
        snprintf(place, sizeof place, "test_cuda_loop.c:%d", bad_line);
        cr_assert(strstr(kiln_error_message(), place), "%s", kiln_error_message());
        kiln_clear_error();
    }
    kiln_release(captured);
}

static kiln_tensor *ever_1(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(kiln_min(state[0]), 1000000000);
}

static void inner_of_one(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)kiln_while(ever_1, count_up, 1, &in[1], 5, &out[1], user);
    out[0] = kiln_add(in[0], 1);
}

static kiln_tensor *below_100(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[0], 100);
}

static void doubled(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 2);
}

static void doubled_inside(kiln_tensor **in, kiln_tensor **out, void *user) { (void)kiln_while(below_100, doubled, 1, in, 0, out, user); }

static void in_a_branch(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)kiln_cond(kiln_lt(in[0], 50), doubled_inside, doubled, 1, in, 1, out, user);
}

/* A loop that has no end for what stands where the index was put right: in a kernel, of launches in one graph and by the host, in a branch; the index in
 * the same program and in one before. */
Test(cuda_loop, an_index_out_of_bounds_begins_no_loop)
{
    use_cuda();
    kiln_tensor *table = kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){1, 0}), *at, *out;
    for (int k = 0; k < 32; k++) {
        double value;
        set_option("fuse", k & 4 ? "0" : "1");
        set_option("cuda_graphs", k & 8 ? "0" : "1");
        at = kiln_from(KILN_I64, KILN_SHAPE(), (int64_t[]){k % 2 ? 5 : 0});
        kiln_tensor *x = kiln_take(table, at, 0);
        if (k & 2)
            OK(kiln_eval(x));
        if (k & 16)
            in_a_branch(&x, &out, NULL);
        else
            OK(kiln_while(below_100, doubled, 1, &x, 0, &out, NULL));
        if (k % 2)
            expect_status(kiln_item(out, &value), KILN_BAD_INDEX, "is out of bounds: axis 0 has 2 elements");
        else
            OK(kiln_item(out, &value));
        cr_assert(k % 2 || value == 128, "%g", value);
        kiln_clear_error();
    }
}

/* A loop inside that does not end within its bound ends the one around, which has none. */
Test(cuda_loop, a_bound_inside_ends_the_loop_around)
{
    use_cuda();
    for (int k = 0; k < 2; k++) {
        set_option("fuse", k ? "0" : "1"); /* the one inside is a kernel, or launches */
        kiln_tensor *state[] = {kiln_int(0), kiln_int(0)}, *out[2];
        OK(kiln_while(ever_1, inner_of_one, 2, state, 0, out, NULL));
        expect_status(kiln_wait(out[0]), KILN_INVALID, "is not at its end after 5 steps");
        kiln_clear_error();
    }
}

/* What overwrites an input comes after the error is known: the old value stays. */
Test(cuda_loop, nothing_is_overwritten_by_what_fails)
{
    use_cuda();
    kiln_tensor *p = NULL;
    for (int run = 0; run < 8; run++) {
        int64_t steps = run % 4 == 3 ? 9 : 4;
        in_kernel = run >= 4;
        if (run % 4 == 0) {
            kiln_release(p);
            p = kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(N), 2));
            OK(kiln_wait(p));
        }
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *out[3];
        captured = kiln_ones(KILN_F32, KILN_SHAPE(N));
        OK(kiln_while(below, grow, 3, (kiln_tensor *[]){kiln_zeros(KILN_F32, KILN_SHAPE(N)), kiln_int(0), captured}, 4, out, &steps));
        kiln_status status = kiln_assign(p, kiln_add(p, kiln_mul(out[0], 0)));
        if (status == KILN_OK)
            status = kiln_wait(p);
        if (run % 4 < 3)
            OK(status);
        else
            expect_status(status, KILN_INVALID, "is not at its end after 4 steps");
        kiln_clear_error();
        kiln_scope_end(scope);
    }
    kiln_release(p);
}

/* --- the host's loop --------------------------------------------------------------------------------------------------------------- */

Test(cuda_loop, an_older_driver_has_the_host_loop)
{
    setenv("KILN_TEST_CUDA", "driver=12030,rough=on", 1);
    use_cuda();
    float got[VALUES], want[VALUES];
    set_option("mode", "interp");
    nested(want);
    set_option("mode", "jit");
    nested(got);
    SAME_BITS(got, want, 3 * N + 1);
    cr_assert(strstr(said, host_runs) && strstr(said, "the driver is older than CUDA 12.4"), "%s", said);
    cr_assert_str_eq(warnings, "");
}

/* Each driver call that they need fails once, the first or second time: values are right, a warning tells, and the host loops. */
static const char *const calls[] = {
    "cuModuleLoadDataEx", "cuModuleGetFunction",         "cuGraphCreate", "cuGraphConditionalHandleCreate",   "cuGraphAddKernelNode_v2",
    "cuGraphAddNode_v2",  "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2"};
enum { CALLS = sizeof calls / sizeof *calls };

ParameterizedTestParameters(cuda_loop, calls_that_fail_leave_the_host_loop)
{
    static int which[2 * CALLS];
    for (int i = 0; i < 2 * CALLS; i++)
        which[i] = i;
    return cr_make_param_array(int, which, 2 * CALLS);
}

ParameterizedTest(int *which, cuda_loop, calls_that_fail_leave_the_host_loop)
{
    use_cuda();
    float got[VALUES], want[VALUES];
    const char *call = calls[*which / 2];
    int n = 1 + *which % 2;
    bool update = strstr(call, "SetParams"),
         once = strstr(call, "Load") || strstr(call, "Create") == call + 7 || strstr(call, "Instantiate");
    set_option("mode", "interp");
    nested(want);
    set_option("mode", "jit");
    set_option("cuda_graphs", "0"); /* all is compiled and loaded */
    nested(got);
    set_option("cuda_graphs", "1");
    if (update) /* an instance is there, and the next run's memory is another */
        nested(got);
    said[0] = 0;
    test_cuda_counters before = counted();
    DRIVER(test_cuda_fail_call)(call, n, n == 1 ? 801 : 1, 0);
    nested(got);
    DRIVER(test_cuda_fail_call)(NULL, 0, 0, 0);
    SAME_BITS(got, want, 3 * N + 1);
    bool failed = n == 1 || !(once || strstr(call, "Launch"));
    if (update || !failed) /* made anew; or the call was not made twice */
        cr_assert(!strstr(said, host_runs) && counted().graph_launches > before.graph_launches, "%s: %s", call, said);
    else
        cr_assert(strstr(said, host_runs) && strstr(warnings, "the host runs"), "%s %d: %s", call, n, said);
    nested(got);
    SAME_BITS(got, want, 3 * N + 1);
    cr_assert_eq(counted().violations, 0);
}

/*
 * The whole library under stress from outside: each allocation failing in turn, forks, a deep graph on a small stack, the caller's
 * floating-point state. Linked with the inside for the allocation hook only.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "kiln.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"
#include "tests/support/stats.h"

#include <criterion/criterion.h>
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the n-th allocation fails ---- */

static void silent(void *user, int level, const char *topic, const char *line) { (void)user, (void)level, (void)topic, (void)line; }

/* A program with a bit of everything; `variant` makes its structure new. Its value is expected(variant). */
static kiln_status program(int variant, double *value)
{
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(2, 3), data);
    kiln_status marked = variant & 1 ? kiln_mark_constant(x) : KILN_OK; /* then its value is made once and kept */
    kiln_tensor *y = kiln_reshape(kiln_transpose(x), KILN_SHAPE(6));
    for (int i = 0; i < variant % 7; i++)
        y = kiln_add(y, kiln_scalar(1));
    kiln_tensor *parts[2] = {y, kiln_slice_axis(y, 0, 0, 6, 2)};
    kiln_tensor *z = kiln_relu(kiln_concat(parts, 2, 0));
    kiln_status status = kiln_item(kiln_sum(z), value);
    kiln_scope_end(scope);
    return marked == KILN_OK ? status : marked; /* it was told of what failed first */
}

/* transpose gives 1 4 2 5 3 6; every second: 1 2 3 */
static double expected(int variant) { return 27 + 9 * (variant % 7); }

/* A step whose loss is read before the parameter that it updates: loss 91 + variant % 7, and the sum of the updated parameter, -21. */
static kiln_status step(int variant, double *value)
{
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(6), data)), *loss = kiln_sum(kiln_square(w)), *g = NULL;
    double sum = 0;
    for (int i = 0; i < variant % 7; i++)
        loss = kiln_add(loss, kiln_scalar(1));
    bool recorded = kiln_grad(loss, &w, 1, &g) == KILN_OK && kiln_assign(w, kiln_sub(w, g)) == KILN_OK;
    kiln_status status = kiln_item(recorded ? loss : NULL, value); /* NULL: the error that was kept */
    if (status == KILN_OK)
        status = kiln_item(kiln_sum(w), &sum);
    *value += sum;
    kiln_scope_end(scope);
    return status;
}

static double step_expected(int variant) { return 70 + variant % 7; }

/* Ops of one's own: a function of the host with a derivative, and one that has effects. */
static double noted;

static kiln_status same(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
    return KILN_OK;
}

static kiln_status times(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    int factor = 1;
    (void)user;
    if (bytes)
        memcpy(&factor, attributes, bytes);
    for (int i = 0; i < 6; i++)
        ((float *)out[0].data)[i] = ((const float *)in[0].data)[i] * (float)factor;
    noted = (double)*(const float *)in[0].data;
    return KILN_OK;
}

static void times_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, const void *attributes,
                      size_t bytes, void *user)
{
    int factor = 1;
    (void)in, (void)out, (void)user;
    if (bytes)
        memcpy(&factor, attributes, bytes);
    grads[0] = kiln_mul(cotangents[0], kiln_scalar(factor));
}

static const kiln_op *registered(bool effects)
{
    static const kiln_op *op[2];
    kiln_op_info info = {.name = effects ? "robust.effects" : "robust.times", .version = "1", .n_in = 1, .n_out = 1};
    info.infer = same;
    info.host = times;
    info.vjp = effects ? NULL : times_vjp;
    info.flags = effects ? KILN_OP_EFFECTS : 0;
    return op[effects] ? op[effects] : (op[effects] = kiln_op_register(&info));
}

static kiln_status ops(int variant, double *value)
{
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(6), data)), *y = NULL, *g = NULL, *z = NULL;
    const kiln_op *op = registered(false), *effects = registered(true);
    int factor = 1 + variant % 7;
    bool recorded = op && effects && kiln_op_apply(op, &x, &factor, sizeof factor, &y) == KILN_OK &&
                    kiln_grad(kiln_sum(y), &x, 1, &g) == KILN_OK && kiln_op_apply(effects, &y, NULL, 0, &z) == KILN_OK;
    kiln_status status = kiln_item(recorded ? kiln_sum(kiln_add(z, g)) : NULL, value);
    kiln_scope_end(scope);
    return status;
}

static double ops_expected(int variant) { return 27 * (1 + variant % 7); }

/* Loops and branches: a scan and its gradient, a branch, and a loop that ends for each number by itself. */
static void add_up(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    next[0] = kiln_add(c[0], x[0]);
    y[0] = kiln_mul(next[0], 2);
}

static void handed_on(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

static void doubled(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 2);
}

static kiln_tensor *below_4(kiln_tensor **s, void *user)
{
    (void)user;
    return kiln_lt(s[0], 4);
}

static void one_more(kiln_tensor **s, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(s[0], 1);
    out[1] = kiln_add(s[1], 1);
}

static void steps_to_4(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *s[] = {in[0], kiln_full(KILN_F32, KILN_SHAPE(), 0)};
    if (kiln_while(below_4, one_more, 2, s, 10, s, user) == KILN_OK)
        out[0] = s[1];
}

static kiln_status loops(int variant, double *value)
{
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(6), data)), *zero = kiln_full(KILN_F32, KILN_SHAPE(), 0), *last, *ys, *g;
    kiln_tensor *steps, *sum;
    bool recorded = kiln_scan(add_up, -1, 0, 1, &zero, &last, 1, &x, 1, &ys, NULL) == KILN_OK && kiln_grad(last, &x, 1, &g) == KILN_OK &&
                    kiln_map(steps_to_4, 1, &x, NULL, 0, 1, &steps, NULL) == KILN_OK &&
                    kiln_cond(kiln_gt(last, 20), doubled, handed_on, 1, &last, 1, &sum, NULL) == KILN_OK;
    for (int i = 0; i < variant % 7 && recorded; i++)
        sum = kiln_add(sum, kiln_scalar(1));
    kiln_status status = kiln_item(recorded ? kiln_add(kiln_add(kiln_sum(g), kiln_sum(steps)), kiln_add(sum, kiln_max(ys))) : NULL, value);
    kiln_scope_end(scope);
    return status;
}

/* The gradient 6, steps 3 + 2 + 1, twice the sum, twice that again. */
static double loops_expected(int variant) { return 6 + 6 + 42 + 42 + variant % 7; }

/* Fails the n-th allocation for n = 1, 2, ... until a run gets through untouched. */
static void fail_each(kiln_status (*run)(int variant, double *value), double (*wanted)(int variant), bool sticky)
{
    kiln_set_log_sink(silent, NULL);
    int failures = 0, n = 1;
    for (int clean = 0; clean < 3 && n < 5000; n++) {
        double value = -1;
        os_fail_alloc(n, sticky);
        kiln_status status = run(n, &value);
        bool said = strlen(kiln_error_message()) > 0; /* before memory is back */
        os_fail_alloc(0, false);
        if (status == KILN_OK) {
            cr_assert_float_eq(value, wanted(n), 0, "allocation %d: %g instead of %g", n, value, wanted(n));
            clean++;
        } else {
            cr_assert_eq(status, KILN_OUT_OF_MEMORY, "allocation %d: %s", n, kiln_error_message());
            cr_assert(said);
            failures++;
            clean = 0;
        }
        kiln_clear_error();
        value = -1;
        cr_assert_eq(run(n, &value), KILN_OK, "after allocation %d: %s", n, kiln_error_message());
        cr_assert_float_eq(value, wanted(n), 0, "after allocation %d", n);
    }
    cr_assert_gt(failures, 5, "the hook reaches kiln's allocations");
    kiln_set_log_sink(NULL, NULL);
}

Test(robust, one_allocation_fails, .timeout = HANGS_AFTER(120)) { fail_each(program, expected, false); }

Test(robust, all_further_allocations_fail, .timeout = HANGS_AFTER(120)) { fail_each(program, expected, true); }

Test(robust, one_allocation_of_a_step_fails, .timeout = HANGS_AFTER(120)) { fail_each(step, step_expected, false); }

Test(robust, one_allocation_of_ops_fails, .timeout = HANGS_AFTER(120)) { fail_each(ops, ops_expected, false); }

Test(robust, all_further_allocations_of_ops_fail, .timeout = HANGS_AFTER(120)) { fail_each(ops, ops_expected, true); }

Test(robust, one_allocation_of_loops_fails, .timeout = HANGS_AFTER(120)) { fail_each(loops, loops_expected, false); }

Test(robust, all_further_allocations_of_loops_fail, .timeout = HANGS_AFTER(120)) { fail_each(loops, loops_expected, true); }

Test(robust, all_further_allocations_of_a_step_fail, .timeout = HANGS_AFTER(120)) { fail_each(step, step_expected, true); }

/* ---- fork ---- */

static double big_sum(int64_t n)
{
    double value = -1;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_add(kiln_ones(KILN_F32, KILN_SHAPE(n)), kiln_scalar(1));
    if (kiln_item(kiln_sum(x), &value) != KILN_OK)
        value = -2;
    kiln_scope_end(scope);
    return value;
}

/* Each child computes, if it may, and must end well. */
static void fork_and_compute(int times, bool child_computes)
{
    for (int i = 0; i < times; i++) {
        pid_t child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
            test_seconds(30);
            if (!child_computes)
                _exit(0);
            _exit(big_sum(100000) == 200000 && big_sum(300000 + i) == 600000 + 2 * i ? 0 : 1);
        }
        int status = -1;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "child %d ended with %x", i, (unsigned)status);
        cr_assert_float_eq(big_sum(100000), 200000, 0);
    }
}

Test(robust, fork_before_first_use, .timeout = HANGS_AFTER(60)) { fork_and_compute(2, true); }

Test(robust, fork_when_idle, .timeout = HANGS_AFTER(60))
{
    cr_assert_float_eq(big_sum(100000), 200000, 0);
    let_threads_start();
    fork_and_compute(5, true);
}

static atomic_bool stop;

/* Records, compiles and runs all the time, so that forks meet every lock held. */
static void *keep_busy(void *unused)
{
    for (int i = 0; !atomic_load(&stop); i++) {
        double value;
        if (program(i, &value) != KILN_OK || big_sum(50000) != 100000)
            return &stop;
    }
    return unused;
}

Test(robust, fork_when_busy, .timeout = HANGS_AFTER(100))
{
    pthread_t busy[2];
    void *failed;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&busy[i], NULL, keep_busy, NULL), 0);
    fork_and_compute(20, CHILD_MAY_ALLOCATE);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(busy[i], &failed);
        cr_assert_null(failed);
    }
}

/* ---- depth ---- */

enum { CHAIN = 1000000 };

/* A million functions one after another, recorded, run and freed on 256 KiB of stack. */
static void *deep_chain(void *result)
{
    double value = -1;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(4)), *one = kiln_ones(KILN_F32, KILN_SHAPE(4));
    for (int i = 0; i < CHAIN; i++) {
        kiln_scope *inner = i % 1000 == 0 ? kiln_scope_begin() : NULL;
        x = kiln_add(x, one);
        if (inner) {
            kiln_keep(x);
            kiln_scope_end(inner);
        }
    }
    kiln_status status = kiln_item(kiln_max(x), &value);
    kiln_scope_end(scope);
    *(double *)result = status == KILN_OK ? value : -2;
    return NULL;
}

/* 2^18 values of their own, added in pairs: 786,000 nodes, of which most are alive at once. */
static void *wide_tree(void *result)
{
    enum { LEAVES = 1 << 18 };
    double value = -1;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor **level = malloc(sizeof(kiln_tensor *) * LEAVES), *ones = kiln_ones(KILN_F64, KILN_SHAPE(4));
    for (int i = 0; level && i < LEAVES; i++)
        level[i] = kiln_mul(ones, kiln_scalar(i));
    for (int n = LEAVES; level && n > 1; n /= 2)
        for (int i = 0; i < n / 2; i++)
            level[i] = kiln_add(level[2 * i], level[2 * i + 1]);
    kiln_status status = level ? kiln_item(kiln_max(level[0]), &value) : KILN_OUT_OF_MEMORY;
    free(level);
    kiln_scope_end(scope);
    *(double *)result = status == KILN_OK ? value - (double)LEAVES * (LEAVES - 1) / 2 : -2;
    return NULL;
}

static double on_small_stack(void *(*work)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;
    double value = 0;
    cr_assert_eq(pthread_attr_init(&attr), 0);
    cr_assert_eq(pthread_attr_setstacksize(&attr, 256 << 10), 0);
    cr_assert_eq(pthread_create(&thread, &attr, work, &value), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    return value;
}

Test(robust, million_node_chain, .timeout = HANGS_AFTER(170))
{
    double value = on_small_stack(deep_chain);
    cr_assert_float_eq(value, CHAIN, 0, "got %g: %s", value, kiln_error_message());
}

Test(robust, wide_tree, .timeout = HANGS_AFTER(170))
{
    double difference = on_small_stack(wide_tree);
    cr_assert_float_eq(difference, 0, 0, "off by %g: %s", difference, kiln_error_message());
}

/* A chain that is never computed must be freed as well. */
Test(robust, forgotten_chain, .timeout = HANGS_AFTER(60))
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(4));
    for (int i = 0; i < CHAIN / 4; i++)
        x = kiln_mul(x, x);
    cr_assert(x);
    kiln_scope_end(scope);
    kiln_stats stats = stats_now();
    cr_assert_eq(stats.kernels, 0);
}

/* ---- the caller's floating-point state ---- */

Test(robust, floating_point_state_is_the_callers)
{
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();
    cr_assert_float_eq(big_sum(100000), 200000, 0);
    cr_assert_eq(__builtin_ia32_stmxcsr() & ~0x3fu, before & ~0x3fu, "modes and masks (flags may be raised)");
    unsigned flush = before | 0x8040; /* flush to zero, denormals are zero */
    __builtin_ia32_ldmxcsr(flush);
    cr_assert_float_eq(big_sum(100001), 200002, 0);
    cr_assert_eq(__builtin_ia32_stmxcsr() & ~0x3fu, flush & ~0x3fu, "a caller that flushes goes on flushing");
    __builtin_ia32_ldmxcsr(before);
#endif
    cr_assert_eq(fegetround(), FE_TONEAREST);
}

/* ---- outputs so large that stores go past the cache ---- */

enum { LARGE = (9 << 20) + 5 }; /* not a multiple of a vector; 36 MiB of f32 */

Test(robust, large_outputs, .timeout = HANGS_AFTER(120))
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *i = kiln_arange(KILN_I32, 0, LARGE, 1);
    cr_assert_eq(kiln_eval(i), KILN_OK);
    kiln_tensor *x = kiln_cast(kiln_bitwise_and(i, kiln_int(1023)), KILN_F32);
    kiln_tensor *y = kiln_add(kiln_mul(x, kiln_scalar(2)), kiln_scalar(1));
    const void *data;
    cr_assert_eq(kiln_data(y, &data), KILN_OK);
    const float *got = data;
    for (int at = 0; at < LARGE; at++)
        cr_assert_float_eq(got[at], (float)(2 * (at & 1023) + 1), 0, "element %d is %g", at, (double)got[at]);

    /* in place: the output is the input's storage */
    cr_assert_eq(kiln_assign(y, kiln_neg(y)), KILN_OK);
    cr_assert_eq(kiln_data(y, &data), KILN_OK);
    got = data;
    for (int at = 0; at < LARGE; at++)
        cr_assert_float_eq(got[at], (float)(-2 * (at & 1023) - 1), 0, "in place: element %d is %g", at, (double)got[at]);

    /* a consumer on other threads, at once */
    double sum;
    cr_assert_eq(kiln_item(kiln_sum(kiln_cast(y, KILN_F64)), &sum), KILN_OK);
    double expect = 0;
    for (int at = 0; at < LARGE; at++)
        expect -= 2 * (at & 1023) + 1;
    cr_assert_float_eq(sum, expect, 0);
    kiln_scope_end(scope);
}

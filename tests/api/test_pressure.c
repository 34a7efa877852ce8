/* Graphs that nobody evaluates: what they hold in memory stays bounded by the option pressure_bytes. */
#include "tests/api/api.h"

enum { MIB = 1 << 20, STEPS = 300, N = MIB / 4 }; /* 1 MiB a step, 16 allowed */

static int warnings;

static void count(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    warnings += level == 0 && strstr(line, "not computed") != NULL;
}

static void begin(void)
{
    set_option("pressure_bytes", "16777216");
    kiln_set_log_sink(count, NULL);
}

static void end(void) { kiln_set_log_sink(NULL, NULL); }

TestSuite(pressure, .init = begin, .fini = end);

static double value(kiln_tensor *x)
{
    double number = 0;
    cr_assert(kiln_item(x, &number) == KILN_OK, "%s", kiln_error_message());
    return number;
}

static kiln_tensor *step_data(int step)
{
    static float data[N];
    for (int i = 0; i < N; i++)
        data[i] = (float)((i + step) % 4);
    return kiln_from(KILN_F32, KILN_SHAPE(N), data);
}

/* Two totals that are assigned to: the second still needs what the first has let go. */
Test(pressure, totals)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *total = kiln_zeros(KILN_F32, KILN_SHAPE()), *most = kiln_zeros(KILN_F32, KILN_SHAPE());
    for (int step = 0; step < STEPS; step++) {
        kiln_scope *inner = kiln_scope_begin();
        kiln_tensor *x = step_data(step);
        cr_assert(kiln_assign(total, kiln_add(total, kiln_mean(x))) == KILN_OK);
        cr_assert(kiln_assign(most, kiln_maximum(most, kiln_max(x))) == KILN_OK);
        kiln_scope_end(inner);
    }
    cr_assert_lt(stats_now().peak_bytes, 20 * MIB);
    cr_assert_eq(value(total), 1.5 * STEPS);
    cr_assert_eq(value(most), 3);
    cr_assert_eq(warnings, 1, "%d warnings", warnings);
    cr_assert_lt(stats_now().evals, STEPS / 8);
    kiln_scope_end(scope);
}

/* A list of results, each of which holds data of its own, wrapped memory with a deleter among it. */
static int freed;
static void free_data(void *data, void *user)
{
    (void)user;
    free(data);
    freed++;
}

Test(pressure, a_list_of_results)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *sum[STEPS];
    int most = 0;
    for (int step = 0; step < STEPS; step++) {
        kiln_scope *inner = kiln_scope_begin();
        float *data = malloc(sizeof *data * N);
        cr_assert_not_null(data);
        for (int i = 0; i < N; i++)
            data[i] = (float)step;
        sum[step] = kiln_keep(kiln_mean(kiln_wrap(KILN_F32, KILN_SHAPE(N), data, free_data, NULL)));
        most = step + 1 - freed > most ? step + 1 - freed : most;
        kiln_scope_end(inner);
    }
    cr_assert_leq(most, 20, "%d at once", most);
    for (int step = 0; step < STEPS; step++)
        cr_assert_eq(value(sum[step]), step);
    kiln_scope_end(scope);
}

/* Data that is the user's for good, and results as large as it, give no reason to compute anything. */
Test(pressure, computing_would_not_help)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x[40], *y[40];
    for (int k = 0; k < 40; k++)
        x[k] = step_data(k);
    for (int k = 0; k < 40; k++) {
        y[k] = kiln_exp(x[k]);
        for (int i = 0; i < 20; i++)
            y[k] = kiln_mul(y[k], kiln_scalar(0.5));
    }
    cr_assert_eq(stats_now().evals, 0);
    cr_assert_eq(warnings, 0);
    for (int k = 0; k < 40; k++)
        cr_assert(!kiln_is_evaluated(y[k]));
    kiln_scope_end(scope);
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
    for (int i = 0; i < 30; i++)
        out[0] = kiln_add(out[0], kiln_scalar(1));
}

/* A body is traced as ever, and a log line about it may look at memory. */
Test(pressure, not_in_a_trace)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *held = step_data(0), *total = kiln_sum(held), *y;
    for (int k = 1; k < 30; k++)
        total = kiln_add(total, kiln_sum(step_data(k)));
    kiln_function *f = kiln_function_new(body, 1, 1, NULL);
    kiln_tensor *x = step_data(1);
    for (int call = 0; call < 3; call++) {
        cr_assert(kiln_function_call(f, &x, &y) == KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(value(kiln_sum(y)), (1.5 + 30) * N);
    }
    cr_assert_eq(value(total), 30 * 1.5 * N);
    kiln_function_free(f);
    kiln_scope_end(scope);
}

/* Results that take more than half of what would go: nothing is computed. */
Test(pressure, computing_would_hardly_help)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y[40];
    for (int k = 0; k < 40; k++) {
        kiln_scope *inner = kiln_scope_begin();
        y[k] = kiln_keep(kiln_exp(kiln_slice_axis(step_data(k), 0, 0, N * 3 / 4, 1)));
        kiln_scope_end(inner);
    }
    for (int i = 0; i < 20; i++)
        (void)kiln_add(kiln_scalar(1), kiln_scalar(2));
    cr_assert_gt(stats_now().live_bytes, 30 * MIB);
    cr_assert_eq(stats_now().evals, 0);
    cr_assert_eq(warnings, 0);
    for (int k = 0; k < 40; k++)
        cr_assert(!kiln_is_evaluated(y[k]));
    kiln_scope_end(scope);
}

/* A body that holds more than is allowed: nothing is computed while it is traced. */
static int64_t evals_in_body;
static void large_body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    int64_t before = stats_now().evals;
    out[0] = kiln_mul(in[0], kiln_scalar(1));
    for (int k = 0; k < 40; k++) {
        kiln_scope *inner = kiln_scope_begin();
        kiln_tensor *sum = kiln_keep(kiln_add(out[0], kiln_mean(step_data(k))));
        kiln_scope_end(inner);
        out[0] = sum;
    }
    evals_in_body = stats_now().evals - before;
}

Test(pressure, not_while_a_body_is_traced)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_function *f = kiln_function_new(large_body, 1, 1, NULL);
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(1), 2), *y;
    for (int call = 0; call < 2; call++) {
        cr_assert(kiln_function_call(f, &x, &y) == KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(value(y), 2 + 40 * 1.5);
    }
    cr_assert_eq(evals_in_body, 0);
    kiln_function_free(f);
    kiln_scope_end(scope);
}

/* A running total of results that are kept: the total alone frees nothing, since what it was made of is held by what it uses. */
Test(pressure, a_total_of_kept_results)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *mean[STEPS], *total = kiln_zeros(KILN_F32, KILN_SHAPE());
    for (int step = 0; step < STEPS; step++) {
        kiln_scope *inner = kiln_scope_begin();
        mean[step] = kiln_keep(kiln_mean(step_data(step)));
        cr_assert(kiln_assign(total, kiln_add(total, mean[step])) == KILN_OK);
        kiln_scope_end(inner);
    }
    cr_assert_lt(stats_now().peak_bytes, 20 * MIB);
    cr_assert_eq(value(total), 1.5 * STEPS);
    for (int step = 0; step < STEPS; step++)
        cr_assert_eq(value(mean[step]), 1.5);
    kiln_scope_end(scope);
}

/* Where the ends of chains free enough, they alone are computed, not what is on the way, though that is held and small, too. */
Test(pressure, only_the_ends)
{
    enum { PART = N / 32 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *way[20], *end[20];
    for (int k = 0; k < 20; k++) {
        kiln_scope *inner = kiln_scope_begin();
        kiln_tensor *total = kiln_mean(step_data(k));
        way[k] = kiln_keep(kiln_mul(kiln_arange(KILN_F32, 0, PART, 1), kiln_scalar(0.5)));
        end[k] = kiln_keep(kiln_add(kiln_max(way[k]), total));
        kiln_scope_end(inner);
    }
    cr_assert_lt(stats_now().live_bytes, 20 * MIB);
    cr_assert_eq(warnings, 1, "%d warnings", warnings);
    cr_assert(kiln_is_evaluated(end[0]));
    for (int k = 0; k < 20; k++)
        cr_assert(!kiln_is_evaluated(way[k]), "%d", k);
    for (int k = 0; k < 20; k++)
        cr_assert_eq(value(end[k]), 1.5 + 0.5 * (PART - 1));
    kiln_scope_end(scope);
}

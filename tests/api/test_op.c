/* kiln_op_register, kiln_op_apply: ops by decomposition and by a function of the host. What they may not do: test_op_wrong.c. Images:
 * test_cuda_op.c. */
#include "op.h"

#include <stddef.h>

Test(op, is_a_step_of_the_program)
{
    kiln_op_info info = ramp_info("test.ramp");
    const kiln_op *op = registered(&info);
    EACH_MODE
    {
        kiln_scope *scope = kiln_scope_begin();
        calls = 0;
        kiln_stats before = stats_now();
        kiln_tensor *x = kiln_mul(kiln_arange(KILN_F32, 0, 4, 1), 10), *y = kiln_add(applied(op, x), 1), *z = applied(op, kiln_neg(y));
        EXPECT(kiln_mul(z, 2), KILN_F32, KILN_SHAPE(4), 0, -4, -86, -168, -250);
        kiln_stats after = stats_now();
        cr_assert_eq(calls, 2);
        if (mode_ == 0) { /* three kernels, two calls */
            cr_assert_eq(after.evals - before.evals, 1);
            cr_assert_eq(after.compiles - before.compiles, 1);
            cr_assert_eq(after.kernels - before.kernels, 5);
        }
        kiln_scope_end(scope);
    }
    end_mode();
}

/* Of strided memory, a number, a view. */
Test(op, gets_dense_operands)
{
    kiln_op_info info = ramp_info("test.dense");
    const kiln_op *op = registered(&info);
    static float data[] = {1, 2, 3, 4, 5, 6};
    EACH_MODE
    {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3, 2), (int64_t[]){1, 3}, data, NULL, NULL);
        EXPECT(applied(op, x), KILN_F32, KILN_SHAPE(3, 2), 0, 2, 9, 6, 13, 10, 17);
        EXPECT(applied(op, kiln_flip(kiln_from(KILN_F32, KILN_SHAPE(3), data), KILN_AXES(0))), KILN_F32, KILN_SHAPE(3), 0, 6, 5, 4);
        EXPECT(applied(op, kiln_full(KILN_F32, KILN_SHAPE(), 7)), KILN_F32, KILN_SHAPE(), 0, 14);
        EXPECT(applied(op, kiln_scalar(3)), KILN_F32, KILN_SHAPE(), 0, 6);
        EXPECT(kiln_concat((kiln_tensor *[]){applied(op, kiln_expand(kiln_scalar(1), KILN_SHAPE(2))), kiln_ones(KILN_F32, KILN_SHAPE(1))},
                           2, 0),
               KILN_F32, KILN_SHAPE(3), 0, 2, 3, 1);
        EXPECT(kiln_sum(applied(op, kiln_ones(KILN_F32, KILN_SHAPE(0, 3)))), KILN_F32, KILN_SHAPE(), 0, 0);
        kiln_scope_end(scope);
    }
    end_mode();
}

static kiln_status aligned(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    return (uintptr_t)attributes % _Alignof(max_align_t) == 0 ? ramp(in, out, attributes, bytes, user) : kiln_op_fail("not aligned");
}

Test(op, attributes_are_other_values)
{
    kiln_op_info info = ramp_info("test.attributes");
    info.host = aligned;
    const kiln_op *op = registered(&info);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *y[3];
    for (int k = 0; k < 3; k++) {
        float factor = (float)(k % 2 + 3);
        cr_assert_eq(kiln_op_apply(op, &x, &factor, sizeof factor, &y[k]), KILN_OK);
    }
    calls = 0;
    EXPECT(kiln_stack(y, 3, 0), KILN_F32, KILN_SHAPE(3, 2), 0, 3, 4, 4, 5, 3, 4);
    cr_assert_eq(calls, 2); /* equal ones are one */
    float other = 5;
    kiln_stats before = stats_now();
    cr_assert_eq(kiln_op_apply(op, &x, &other, sizeof other, &y[0]), KILN_OK);
    EXPECT(y[0], KILN_F32, KILN_SHAPE(2), 0, 5, 6);
    cr_assert_eq(kiln_op_apply(op, &x, &other, sizeof other, &y[0]), KILN_OK);
    EXPECT(y[0], KILN_F32, KILN_SHAPE(2), 0, 5, 6);
    kiln_stats after = stats_now();
    cr_assert_eq(after.compiles - before.compiles, 1);
    cr_assert_eq(after.hits - before.hits, 1);
    end_mode();
}

/* --- several outputs, sizes that change -------------------------------------------------------------------------------------- */

/* [n], u8 -> f64[n, 2], i64[], f16[0] */
static kiln_status three(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    if (in[0].shape.rank != 1 || in[1].dtype != KILN_U8)
        return kiln_op_fail("wants a line and a byte");
    out[0] = (kiln_type){KILN_F64, KILN_SHAPE(in[0].shape.dim[0], 2)};
    out[1] = (kiln_type){KILN_I64, KILN_SHAPE()};
    out[2] = (kiln_type){KILN_F16, KILN_SHAPE(0)};
    return KILN_OK;
}

static kiln_status count(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    int64_t n = in[0].type.shape.dim[0], sum = *(const uint8_t *)in[1].data;
    (void)attributes, (void)bytes, (void)user;
    calls++;
    for (int64_t i = 0; i < n; i++) {
        ((double *)out[0].data)[2 * i] = (double)((const int32_t *)in[0].data)[i];
        ((double *)out[0].data)[2 * i + 1] = (double)i;
        sum += ((const int32_t *)in[0].data)[i];
    }
    memcpy(out[1].data, &sum, sizeof sum);
    return KILN_OK;
}

Test(op, several_outputs_at_sizes_that_change)
{
    kiln_op_info info = {.name = "test.three", .version = "1", .n_in = 2, .n_out = 3, .infer = three, .host = count};
    const kiln_op *op = registered(&info);
    EACH_MODE
    {
        kiln_stats before = stats_now();
        for (int64_t n = 0; n < 6; n++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = kiln_add(kiln_arange(KILN_I32, 0, (double)n, 1), 1), *out[3];
            kiln_tensor *in[] = {x, kiln_cast(kiln_full(KILN_F32, KILN_SHAPE(), 5), KILN_U8)};
            calls = 0;
            cr_assert_eq(kiln_op_apply(op, in, NULL, 0, out), KILN_OK, "%s", kiln_error_message());
            kiln_tensor *sums = kiln_sum_axes(out[0], KILN_AXES(0), false); /* and the other results with it */
            EXPECT(sums, KILN_F64, KILN_SHAPE(2), 0, (double)(n * (n + 1) / 2), (double)(n * (n - 1) / 2));
            EXPECT(out[1], KILN_I64, KILN_SHAPE(), 0, (double)(5 + n * (n + 1) / 2));
            cr_assert_eq(calls, 1);
            cr_assert_eq(kiln_numel(out[2]), 0);
            cr_assert_eq(kiln_eval(out[2]), KILN_OK);
            kiln_scope_end(scope);
        }
        kiln_stats after = stats_now();
        if (mode_ == 0)
            cr_assert_leq(after.compiles - before.compiles, 2);
    }
    end_mode();
}

/* [n] -> [n (n - 1) / 2 + 1]: as long as the input for n = 1 and 2, by chance */
static kiln_status pairs_type(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    kiln_status status = same(in, out, attributes, bytes, user);
    out[0].shape.dim[0] = in[0].shape.dim[0] * (in[0].shape.dim[0] - 1) / 2 + 1;
    return status;
}

static kiln_status pairs(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    for (int64_t i = 0; i < count_of(&out[0].type); i++)
        ((float *)out[0].data)[i] = ((const float *)in[0].data)[0];
    return KILN_OK;
}

Test(op, sizes_of_results_are_facts_of_their_own)
{
    kiln_op_info info = ramp_info("test.pairs");
    info.infer = pairs_type;
    info.host = pairs;
    const kiln_op *op = registered(&info);
    kiln_stats before = stats_now();
    for (int64_t n = 2; n < 8; n++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(n), 3), *y = kiln_mul(applied(op, x), 2);
        cr_assert_eq(kiln_dim(y, 0), n * (n - 1) / 2 + 1);
        EXPECT(kiln_sum(y), KILN_F32, KILN_SHAPE(), 0, 6 * (double)(n * (n - 1) / 2 + 1));
        EXPECT(kiln_sum(applied(op, y)), KILN_F32, KILN_SHAPE(), 0, 6 * (double)((n * (n - 1) / 2 + 1) * (n * (n - 1) / 2) / 2 + 1));
        kiln_scope_end(scope);
    }
    kiln_stats after = stats_now();
    cr_assert_leq(after.compiles - before.compiles, 4, "%d", (int)(after.compiles - before.compiles)); /* of two graphs */
    end_mode();
}

/* Nobody needs any of its results, or only the second one. */
Test(op, results_that_nobody_needs)
{
    kiln_op_info info = {.name = "test.unread", .version = "1", .n_in = 2, .n_out = 3, .infer = three, .host = count};
    const kiln_op *op = registered(&info);
    EACH_MODE
    {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[] = {kiln_full(KILN_I32, KILN_SHAPE(3), 2), kiln_zeros(KILN_U8, KILN_SHAPE())}, *out[3];
        calls = 0;
        cr_assert_eq(kiln_op_apply(op, in, NULL, 0, out), KILN_OK);
        kiln_tensor *sum = kiln_retain(kiln_mul(out[1], 2));
        kiln_scope_end(scope);
        EXPECT(sum, KILN_I64, KILN_SHAPE(), 0, 12);
        cr_assert_eq(calls, 1);
        kiln_release(sum);
        scope = kiln_scope_begin();
        kiln_tensor *again[] = {kiln_full(KILN_I32, KILN_SHAPE(3), 2), kiln_zeros(KILN_U8, KILN_SHAPE())};
        calls = 0;
        cr_assert_eq(kiln_op_apply(op, again, NULL, 0, out), KILN_OK);
        kiln_scope_end(scope);
        cr_assert_eq(calls, mode_ == 1); /* eager: at once */
    }
    end_mode();
}

/* --- in functions, loops and branches ---------------------------------------------------------------------------------------- */

static const kiln_op *inner;

static void calls_it(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    cr_assert_eq(kiln_op_apply(inner, (kiln_tensor *[]){kiln_add(in[0], 1)}, NULL, 0, out), KILN_OK);
    out[0] = kiln_mul(out[0], 10);
}

static void as_it_is(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

static void scan_calls(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    cr_assert_eq(kiln_op_apply(inner, (kiln_tensor *[]){kiln_add(carry[0], x[0])}, NULL, 0, carry_out), KILN_OK);
    y[0] = kiln_sum(carry_out[0]);
}

Test(op, in_a_function_that_is_replayed)
{
    kiln_op_info info = ramp_info("test.replayed");
    inner = registered(&info);
    EACH_MODE
    {
        kiln_function *f = kiln_function_new(calls_it, 1, 1, NULL);
        calls = 0;
        for (int k = 0; k < 5; k++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *in[] = {kiln_full(KILN_F32, KILN_SHAPE(k == 3 ? 1 : 2), k)}, *out[1];
            cr_assert_eq(kiln_function_call(f, in, out), KILN_OK, "%s", kiln_error_message());
            if (k == 3)
                EXPECT(out[0], KILN_F32, KILN_SHAPE(1), 0, 80);
            else
                EXPECT(out[0], KILN_F32, KILN_SHAPE(2), 0, 20 * (k + 1), 20 * (k + 1) + 10);
            kiln_scope_end(scope);
        }
        cr_assert_eq(calls, 5);
        kiln_function_free(f);
    }
    end_mode();
}

Test(op, in_loops_and_branches)
{
    kiln_op_info info = ramp_info("test.loops");
    inner = registered(&info);
    EACH_MODE
    {
        for (int64_t length = 0; length < 5; length++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(2)), *last, *ys, *xs = kiln_ones(KILN_F32, KILN_SHAPE(length, 2));
            float want[2] = {0, 0};
            calls = 0;
            cr_assert_eq(kiln_scan(scan_calls, -1, 0, 1, &zero, &last, 1, &xs, 1, &ys, NULL), KILN_OK, "%s", kiln_error_message());
            for (int64_t i = 0; i < length; i++)
                for (int k = 0; k < 2; k++)
                    want[k] = (want[k] + 1) * 2 + (float)k;
            EXPECT(last, KILN_F32, KILN_SHAPE(2), 0, want[0], want[1]);
            cr_assert_eq(calls, length);
            kiln_scope_end(scope);
        }
        for (int yes = 0; yes < 2; yes++) {
            kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(1)), *y;
            calls = 0;
            cr_assert_eq(kiln_cond(kiln_bool(yes), calls_it, as_it_is, 1, &x, 1, &y, NULL), KILN_OK, "%s", kiln_error_message());
            EXPECT(y, KILN_F32, KILN_SHAPE(1), 0, yes ? 40 : 1);
            cr_assert_eq(calls, yes);
        }
    }
    end_mode();
}

/* --- in kiln_map --------------------------------------------------------------------------------------------------------------- */

static void row_of_two(kiln_tensor **in, kiln_tensor **out, void *user)
{
    cr_assert_eq(kiln_op_apply(inner, (kiln_tensor *[]){kiln_mul(in[0], user)}, NULL, 0, out), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_op_apply(inner, (kiln_tensor *[]){user}, NULL, 0, &out[1]), KILN_OK, "%s", kiln_error_message()); /* of no row */
}

static void row_by_row(kiln_tensor **in, kiln_tensor **out, void *user)
{
    cr_assert_eq(kiln_map(row_of_two, 1, in, NULL, 0, 2, out, user), KILN_OK, "%s", kiln_error_message());
}

static void calls_or_not(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *chosen = kiln_gt(kiln_sum(in[0]), 3);
    (void)user;
    if (kiln_cond(chosen, calls_it, as_it_is, 1, in, 1, out, NULL) != KILN_OK)
        out[0] = NULL;
}

Test(op, maps_call_it_for_each_row)
{
    kiln_op_info info = ramp_info("test.rows");
    inner = registered(&info);
    EACH_MODE
    {
        for (int64_t n = 0; n < 4; n++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = kiln_reshape(kiln_arange(KILN_F32, 0, (double)(2 * n), 1), KILN_SHAPE(n, 2)),
                        *two = kiln_full(KILN_F32, KILN_SHAPE(1), 2);
            kiln_tensor *y[2], *deep;
            float got[6], want[6] = {0, 5, 8, 13, 16, 21};
            calls = 0;
            cr_assert_eq(kiln_map(row_of_two, 1, &x, NULL, 0, 2, y, two), KILN_OK, "%s", kiln_error_message());
            cr_assert_eq(kiln_read(y[0], KILN_F32, got, sizeof *got * 2 * (size_t)n), KILN_OK, "%s", kiln_error_message());
            cr_assert(memcmp(got, want, sizeof *got * 2 * (size_t)n) == 0);
            cr_assert_eq(calls, n);
            cr_assert_eq(kiln_dim(y[1], 0), n);
            cr_assert_eq(kiln_eval(y[1]), KILN_OK, "%s", kiln_error_message());
            deep = kiln_reshape(x, KILN_SHAPE(n, 1, 2));
            cr_assert_eq(kiln_map(row_by_row, 1, &deep, NULL, 0, 2, y, two), KILN_OK, "%s", kiln_error_message());
            cr_assert_eq(kiln_read(y[0], KILN_F32, got, sizeof *got * 2 * (size_t)n), KILN_OK, "%s", kiln_error_message());
            cr_assert(memcmp(got, want, sizeof *got * 2 * (size_t)n) == 0);
            kiln_scope_end(scope);
        }
    }
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2, 2)), *y;
    FAILS(kiln_map(calls_or_not, 1, &x, NULL, 0, 1, &y, NULL), KILN_UNSUPPORTED, "test.rows in a branch or loop that not all rows take");
    end_mode();
}

/* --- by decomposition ------------------------------------------------------------------------------------------------------- */

static void gelu(kiln_tensor **in, kiln_tensor **out, const void *attributes, size_t bytes, void *user)
{
    float slope = 1.702f;
    (void)user;
    if (bytes)
        memcpy(&slope, attributes, sizeof slope);
    out[0] = kiln_mul(in[0], kiln_sigmoid(kiln_mul(in[0], (double)slope)));
}

static void nothing(kiln_tensor **in, kiln_tensor **out, const void *attributes, size_t bytes, void *user)
{
    (void)in, (void)out, (void)attributes, (void)bytes, (void)user;
}

static void looks(kiln_tensor **in, kiln_tensor **out, const void *attributes, size_t bytes, void *user)
{
    double value;
    (void)attributes, (void)bytes, (void)user;
    if (kiln_item(kiln_sum(in[0]), &value) == KILN_OK)
        out[0] = in[0];
}

Test(op, a_decomposition_is_what_it_records)
{
    kiln_op_info info = {.name = "test.gelu", .version = "1", .n_in = 1, .n_out = 1, .decompose = gelu};
    const kiln_op *op = registered(&info);
    EACH_MODE
    {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_param(kiln_sub(kiln_arange(KILN_F32, 0, 5, 1), 2)), *plain[1], *grad[2];
        kiln_stats stats[3];
        float a[5], b[5];
        kiln_check(kiln_eval(x));
        kiln_get_stats(&stats[0]);
        gelu(&x, plain, NULL, 0, NULL);
        cr_assert_eq(kiln_read(kiln_add(plain[0], 1), KILN_F32, a, sizeof a), KILN_OK);
        kiln_get_stats(&stats[1]);
        cr_assert_eq(kiln_read(kiln_add(applied(op, x), 1), KILN_F32, b, sizeof b), KILN_OK);
        kiln_get_stats(&stats[2]);
        cr_assert(memcmp(a, b, sizeof a) == 0);
        cr_assert_eq(stats[2].kernels - stats[1].kernels, stats[1].kernels - stats[0].kernels);
        if (mode_ == 0) /* the same key: nothing is compiled */
            cr_assert_eq(stats[2].compiles, stats[1].compiles);
        gelu(&x, plain, NULL, 0, NULL);
        cr_assert_eq(kiln_grad(kiln_sum(plain[0]), &x, 1, &grad[0]), KILN_OK);
        cr_assert_eq(kiln_grad(kiln_sum(applied(op, x)), &x, 1, &grad[1]), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_read(grad[0], KILN_F32, a, sizeof a), KILN_OK);
        cr_assert_eq(kiln_read(grad[1], KILN_F32, b, sizeof b), KILN_OK);
        cr_assert(memcmp(a, b, sizeof a) == 0);
        kiln_scope_end(scope);
    }
    info = (kiln_op_info){.name = "test.nothing", .version = "1", .n_in = 1, .n_out = 1, .decompose = nothing};
    const kiln_op *empty = registered(&info);
    info = (kiln_op_info){.name = "test.looks", .version = "1", .n_in = 1, .n_out = 1, .decompose = looks};
    const kiln_op *looking = registered(&info);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *y = x;
    FAILS(kiln_op_apply(empty, &x, NULL, 0, &y), KILN_INVALID, "kiln_op_apply: the function left out[0] unset (test_op.c:");
    cr_assert(y == NULL);
    FAILS(kiln_op_apply(looking, &x, NULL, 0, &y), KILN_INVALID, "kiln_item: inside the function of kiln_op_apply, which only records");
    end_mode();
}

/* --- derivatives -------------------------------------------------------------------------------------------------------------- */

static void ramp_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, const void *attributes,
                     size_t bytes, void *user)
{
    float factor = 2;
    (void)in, (void)out, (void)user;
    if (bytes)
        memcpy(&factor, attributes, sizeof factor);
    grads[0] = kiln_mul(cotangents[0], (double)factor);
}

static void ramp_jvp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **out_tangents, const void *attributes,
                     size_t bytes, void *user)
{
    ramp_vjp(in, out, tangents, out_tangents, attributes, bytes, user);
}

static void scan_learns(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    cr_assert_eq(kiln_op_apply(inner, (kiln_tensor *[]){kiln_mul(carry[0], user)}, NULL, 0, carry_out), KILN_OK, "%s",
                 kiln_error_message());
}

static void checkpointed(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    cr_assert_eq(kiln_op_apply(inner, in, NULL, 0, out), KILN_OK);
    out[0] = kiln_square(out[0]);
}

Test(op, derivatives)
{
    kiln_op_info info = ramp_info("test.vjp");
    info.vjp = ramp_vjp;
    info.jvp = ramp_jvp;
    const kiln_op *op = inner = registered(&info);
    info = ramp_info("test.none");
    const kiln_op *none = registered(&info);
    EACH_MODE
    {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){3, 4})), *y, *g, *t = kiln_ones(KILN_F32, KILN_SHAPE(2));
        float factor = 5;
        cr_assert_eq(kiln_op_apply(op, &x, &factor, sizeof factor, &y), KILN_OK, "%s", kiln_error_message());
        kiln_tensor *loss = kiln_sum(kiln_square(y)); /* 2 (5 x + i) 5 */
        cr_assert_eq(kiln_grad(loss, &x, 1, &g), KILN_OK, "%s", kiln_error_message());
        EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 150, 210);
        cr_assert_eq(kiln_op_apply(op, &x, NULL, 0, &y), KILN_OK);
        cr_assert_eq(kiln_jvp(1, &x, &t, 1, &y, 0, &g), KILN_OK, "%s", kiln_error_message());
        EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 2, 2);

        kiln_tensor *rate = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(1), 3)), *start = kiln_ones(KILN_F32, KILN_SHAPE(1)), *last;
        cr_assert_eq(kiln_scan(scan_learns, 3, 0, 1, &start, &last, 0, NULL, 0, NULL, rate), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_grad(kiln_sum(last), &rate, 1, &g), KILN_OK, "%s", kiln_error_message());
        EXPECT(g, KILN_F32, KILN_SHAPE(1), 0, 3 * 8 * 9); /* (2 rate)^3 */
        EXPECT(last, KILN_F32, KILN_SHAPE(1), 0, 6 * 6 * 6);

        calls = 0; /* value and gradient at once, through a checkpoint: its forward half is not computed again */
        cr_assert_eq(kiln_checkpoint(checkpointed, 1, &x, 1, &y, NULL), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_grad(kiln_sum(kiln_square(y)), &x, 1, &g), KILN_OK, "%s", kiln_error_message());
        EXPECT(g, KILN_F32, KILN_SHAPE(2), 1e-6, 1728, 5832);
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 1e-6, 36, 81);
        cr_assert_eq(calls, 1, "%d", (int)calls);

        inner = none;
        cr_assert_eq(kiln_scan(scan_learns, 3, 0, 1, &start, &last, 0, NULL, 0, NULL, rate), KILN_OK, "%s", kiln_error_message());
        inner = op;
        FAILS(kiln_grad(kiln_sum(last), &rate, 1, &g), KILN_UNSUPPORTED, "no gradient flows through kiln_scan (test_op.c:");
        EXPECT(last, KILN_F32, KILN_SHAPE(1), 0, 6 * 6 * 6);

        y = applied(none, x);
        FAILS(kiln_grad(kiln_sum(y), &x, 1, &g), KILN_UNSUPPORTED, "test.none (test_op.c:");
        y = applied(none, kiln_stop_gradient(x));
        cr_assert_eq(kiln_grad(kiln_sum(kiln_mul(y, x)), &x, 1, &g), KILN_OK, "%s", kiln_error_message());
        EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 6, 9);
        kiln_scope_end(scope);
    }
    end_mode();
}

/* --- effects ------------------------------------------------------------------------------------------------------------------- */

enum { LOGGED = 16 };
static struct {
    int n;
    float value[LOGGED];
} logged;

static kiln_status no_type(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)in, (void)out, (void)attributes, (void)bytes, (void)user;
    return KILN_OK;
}

static kiln_status log_first(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    (void)out, (void)attributes, (void)bytes, (void)user;
    logged.value[logged.n++] = *(const float *)in[0].data;
    return KILN_OK;
}

static void logs(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_add(in[0], 1);
    (void)kiln_op_apply(user, out, NULL, 0, NULL);
}

Test(op, effects_happen_once_and_in_order)
{
    kiln_op_info info = {.name = "test.log", .version = "1", .n_in = 1, .flags = KILN_OP_EFFECTS, .infer = no_type, .host = log_first};
    const kiln_op *op = registered(&info);
    info = ramp_info("test.counts");
    info.flags = KILN_OP_EFFECTS;
    const kiln_op *counts = registered(&info);
    EACH_MODE
    {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *y = x, *made[2], *g;
        logged.n = 0;
        for (int k = 0; k < 3; k++) {
            y = kiln_mul(y, 2);
            cr_assert_eq(kiln_op_apply(op, &y, NULL, 0, NULL), KILN_OK, "%s", kiln_error_message());
            cr_assert_eq(kiln_op_apply(op, &x, NULL, 0, NULL), KILN_OK);
        }
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 8, 8);
        const float want[] = {2, 1, 4, 1, 8, 1};
        cr_assert_eq(logged.n, 6);
        cr_assert(memcmp(logged.value, want, sizeof want) == 0);

        calls = 0;
        made[0] = applied(counts, x);
        made[1] = applied(counts, x); /* never one */
        cr_assert_eq(calls, 2);
        EXPECT(kiln_add(made[0], made[1]), KILN_F32, KILN_SHAPE(2), 0, 4, 6);
        cr_assert_eq(calls, 2);

        kiln_function *f = kiln_function_new(logs, 1, 1, (void *)(uintptr_t)op); /* run each time */
        for (int k = 0; k < 3; k++)
            cr_assert_eq(kiln_function_call(f, &x, &y), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(logged.n, 9);
        kiln_function_free(f);
        FAILS(kiln_checkpoint(logs, 1, &x, 1, &y, (void *)(uintptr_t)op), KILN_INVALID,
              "kiln_op_apply: inside the function of kiln_checkpoint, which only records (test_op.c:");
        cr_assert_eq(logged.n, 9);
        kiln_tensor *p = kiln_param(x);
        y = applied(counts, kiln_mul(p, 3));
        FAILS(kiln_grad(kiln_sum(y), &p, 1, &g), KILN_INVALID, "kiln_op_apply (test_op.c:");
        kiln_scope_end(scope);
    }
    end_mode();
}

/* KILN_CHECK=repeat: everything is computed twice, and what differs is named. */
#include "each_mode.h"

#include <math.h>
#include <string.h>

static void repeated(void) { set_option("check", "repeat"); }
static void once(void) { set_option("check", "off"); }

TestSuite(repeat, .init = repeated, .fini = once);

static void step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    carry_out[0] = kiln_add(kiln_mul(carry[0], 0.5), x[0]);
    y[0] = kiln_sum(carry_out[0]);
}

/* Draws, loops, sums over many threads, values that are updated in place: as without. */
STRICT_TEST(repeat, what_is_computed_twice_is_what_it_was)
{
    for (int round = 0; round < 2; round++) {
        static float data[2][64];
        set_option("check", round ? "repeat" : "off");
        kiln_scope *scope = kiln_scope_begin();
        kiln_seed(7);
        kiln_tensor *p = kiln_zeros(KILN_F32, KILN_SHAPE(64)), *last, *ys;
        OK(kiln_eval(p));
        for (int k = 0; k < 4; k++) {
            kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(300, 64), -1, 1), *sum = kiln_sum_axes(x, KILN_AXES(0), false);
            OK(kiln_scan(step, -1, 0, 1, &p, &last, 1, &x, 1, &ys, NULL));
            OK(kiln_assign(p, kiln_add(kiln_add(last, sum), kiln_mean(ys))));
            OK(kiln_eval(p));
        }
        OK(kiln_read(p, KILN_F32, data[round], sizeof data[round]));
        kiln_scope_end(scope);
        cr_assert(round == 0 || memcmp(data[0], data[1], sizeof data[0]) == 0);
    }
    set_option("check", "repeat");
}

/* --- an op of the user's that is not deterministic --- */

static kiln_status like(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
    return KILN_OK;
}

static kiln_status count(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes;
    const float *from = in[0].data;
    float *to = out[0].data;
    int calls = ++((int *)user)[0];
    for (int k = 0; k < 6; k++)
        to[k] = from[k] + (k == 5 && ((int *)user)[1] ? (float)calls : 0);
    return KILN_OK;
}

static void apply(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *y;
    if (kiln_op_apply(user, in, NULL, 0, &y) == KILN_OK)
        out[0] = kiln_mul(y, 2);
}

Test(repeat, an_op_that_differs_is_named)
{
    int user[2] = {0, 0};
    const kiln_op *op = kiln_op_register(
        &(kiln_op_info){.name = "acme.count", .version = "1", .n_in = 1, .n_out = 1, .infer = like, .host = count, .user = user});
    cr_assert(op, "%s", kiln_error_message());
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *y;
    for (int mode = 0; mode < 3; mode++) {
        set_option("mode", modes[mode]);
        user[0] = user[1] = 0;
        OK(kiln_op_apply(op, &x, NULL, 0, &y));
        EXPECT(y, KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
        cr_assert_eq(user[0], 2, "%s: %d calls", modes[mode], user[0]);
        user[1] = 1;
        kiln_status status = kiln_op_apply(op, &x, NULL, 0, &y);
        status = status == KILN_OK ? kiln_eval(kiln_add(y, 1)) : status;
        fails_with(status, KILN_INVALID, "is not the same when it is computed once more: ");
        kiln_clear_error();
    }
    set_option("mode", "jit");
    /* in a function that is replayed, too */
    kiln_function *f = kiln_function_new(apply, 1, 1, (void *)(uintptr_t)op);
    user[1] = 0;
    for (int call = 0; call < 4; call++) {
        user[0] = 0;
        OK(kiln_function_call(f, &x, &y));
        OK(kiln_eval(y));
        cr_assert_eq(user[0], 2, "call %d: %d calls", call, user[0]);
    }
    user[1] = 1;
    kiln_status status = kiln_function_call(f, &x, &y);
    fails_with(status == KILN_OK ? kiln_eval(y) : status, KILN_INVALID, "(bits ");
    kiln_function_free(f);
}

/* Ops of the tests api/test_op*.c: one that computes, and what is told where a call fails. */
#ifndef TEST_OP_H
#define TEST_OP_H

#include "api.h"

#include <stdatomic.h>

/* jit, eager, interp: mode_ 0, 1, 2. */
enum { MODES = 3 };
#define EACH_MODE for (int mode_ = 0; mode_ < MODES && (begin_mode(mode_), true); mode_++)

static inline const kiln_op *registered(const kiln_op_info *info)
{
    const kiln_op *op = kiln_op_register(info);
    cr_assert(op != NULL, "%s", kiln_error_message());
    return op;
}

static inline kiln_tensor *applied_at(const char *file, int line, const kiln_op *op, kiln_tensor *x)
{
    kiln_tensor *out = NULL;
    cr_assert_eq(kiln_op_apply_at(op, &x, NULL, 0, &out, file, line), KILN_OK, "%s", kiln_error_message());
    return out;
}
#define applied(op, x) applied_at(__FILE__, __LINE__, (op), (x))

static inline void op_fails(int line, kiln_status status, kiln_status want, const char *text)
{
    cr_assert_eq(status, want, "line %d: %s: %s", line, kiln_status_name(status), kiln_error_message());
    cr_assert(strstr(kiln_error_message(), text) != NULL, "line %d: %s", line, kiln_error_message());
    kiln_clear_error();
}
#define FAILS(status, want, text) op_fails(__LINE__, status, want, text)

/* --- functions of the host ------------------------------------------------------------------------------------------------ */

static atomic_int calls;

static inline int64_t count_of(const kiln_type *type)
{
    int64_t n = 1;
    for (int d = 0; d < type->shape.rank; d++)
        n *= type->shape.dim[d];
    return n;
}

static inline kiln_status same(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
    return in[0].dtype == KILN_F32 ? KILN_OK : kiln_op_fail("wants f32, not %s", kiln_dtype_name(in[0].dtype));
}

/* out = in * factor (attributes: a float; else 2) + its place */
static inline kiln_status ramp(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    float factor = 2;
    (void)user;
    calls++;
    if (bytes)
        memcpy(&factor, attributes, sizeof factor);
    for (int64_t i = 0; i < count_of(&in[0].type); i++)
        ((float *)out[0].data)[i] = ((const float *)in[0].data)[i] * factor + (float)i;
    return KILN_OK;
}

static inline kiln_op_info ramp_info(const char *name)
{
    return (kiln_op_info){.name = name, .version = "1", .n_in = 1, .n_out = 1, .infer = same, .host = ramp};
}

#endif

/*
 * Elementwise ops: their tapes, or in INTERP_F64 mode the C library where it has the function.
 *
 * In that mode a cast between floats changes nothing, and an op whose meaning is the format's own (nextafter) is done in
 * that format.
 */
#include "ir/base/os.h"
#include "ir/interp_ops.h"

#include <math.h>
#include <string.h>

bool run_op(const Run *run, Op op, const DType *in_types, DType out_type, size_t n, const void *const *in, void *out)
{
    const Tape *tape = tape_get(op, in_types, out_type, run->math);
    return tape && tape_run(tape, in_types, out_type, n, in, out);
}

/* ---- the C library's view ---- */

static double rsqrt_(double x) { return 1 / sqrt(x); }
static double sigmoid_(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double silu_(double x) { return x * sigmoid_(x); }
static double softplus_(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }

static double logaddexp_(double x, double y)
{
    double distance = x == y ? 0 : fabs(x - y);
    return (x < y ? y : x) + log1p(exp(-distance));
}

static double (*const libm1[OP_COUNT])(double) = {
    /* clang-format off */
    [OP_RSQRT] = rsqrt_, [OP_EXP] = exp,     [OP_EXP2] = exp2,   [OP_EXPM1] = expm1, [OP_LOG] = log,
    [OP_LOG2] = log2,    [OP_LOG10] = log10, [OP_LOG1P] = log1p, [OP_SIN] = sin,     [OP_COS] = cos,
    [OP_TAN] = tan,      [OP_ASIN] = asin,   [OP_ACOS] = acos,   [OP_ATAN] = atan,   [OP_SINH] = sinh,
    [OP_COSH] = cosh,    [OP_TANH] = tanh,   [OP_ASINH] = asinh, [OP_ACOSH] = acosh, [OP_ATANH] = atanh,
    [OP_ERF] = erf,      [OP_ERFC] = erfc,   [OP_SIGMOID] = sigmoid_, [OP_SILU] = silu_, [OP_SOFTPLUS] = softplus_,
    /* clang-format on */
};
static double (*const libm2[OP_COUNT])(double, double) = {
    [OP_POW] = pow, [OP_ATAN2] = atan2, [OP_HYPOT] = hypot, [OP_FMOD] = fmod, [OP_LOGADDEXP] = logaddexp_,
};

static Status nextafter_in(const Run *run, Ref r, DType t)
{
    Value *v = &run->value[r];
    DType pair[2] = {t, t}, wide = DT_F64;
    void *room[3];
    bool ok = true;
    for (int k = 0; k < 3; k++)
        ok &= (room[k] = value_room(t, v->n)) != NULL;
    for (uint32_t k = 0; k < 2; k++)
        ok = ok && run_op(run, OP_CAST, &wide, t, v->n, (const void *const[]){run_in(run, r, k)->data}, room[k]);
    ok = ok && run_op(run, OP_NEXTAFTER, pair, t, v->n, (const void *const[]){room[0], room[1]}, room[2]) &&
         run_op(run, OP_CAST, &t, wide, v->n, (const void *const[]){room[2]}, v->data);
    for (int k = 0; k < 3; k++)
        os_free(room[k]);
    return ok ? ST_OK : ST_OUT_OF_MEMORY;
}

/* True when the mode has its own way for this node, and it was taken. */
static bool in_f64(const Run *run, Ref r, Status *status)
{
    const Node *node = run_node(run, r);
    Value *v = &run->value[r];
    Op op = (Op)node->op;
    *status = ST_OK;
    if (run->mode != INTERP_F64 || v->dtype != DT_F64)
        return false;
    const double *a = run_in(run, r, 0)->data;
    double *out = v->data;
    if (libm1[op]) {
        for (size_t i = 0; i < v->n; i++)
            out[i] = libm1[op](a[i]);
    } else if (libm2[op]) {
        const double *b = run_in(run, r, 1)->data;
        for (size_t i = 0; i < v->n; i++)
            out[i] = libm2[op](a[i], b[i]);
    } else if (op == OP_NEXTAFTER && node->dtype != DT_F64) {
        *status = nextafter_in(run, r, (DType)node->dtype);
    } else {
        return false;
    }
    return true;
}

Status interp_ew(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    Value *v = &run->value[r];
    DType types[3] = {0};
    const void *in[3] = {0};
    for (uint32_t k = 0; k < node->n_in; k++) {
        types[k] = run_in(run, r, k)->dtype;
        in[k] = run_in(run, r, k)->data;
    }
    Status status;
    if (in_f64(run, r, &status))
        return status;
    return run_op(run, (Op)node->op, types, v->dtype, v->n, in, v->data) ? ST_OK : ST_OUT_OF_MEMORY;
}

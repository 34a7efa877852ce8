/* Scalars that the host computes (jit/host_scalars.h): their values and their text. */
#include "jit/host_scalars.h"
#include "ir/infer.h"
#include "ir/text.h"

bool host_scalars_run(const HostScalar *at, uint32_t n, MathMode math, const uint64_t *scalars, uint64_t *value)
{
    for (uint32_t i = 0; i < n; i++) {
        const HostScalar *h = &at[i];
        DType types[3];
        const void *in[3];
        value[i] = h->op == OP_INPUT ? scalars[h->in[0]] : h->bits;
        if (op_class((Op)h->op) == CLS_LEAF)
            continue;
        for (int k = 0; k < op_info[h->op].arity; k++) {
            types[k] = (DType)at[h->in[k]].dtype;
            in[k] = &value[h->in[k]]; /* its low bytes, which come first on this machine, are the element */
        }
        const Tape *tape = tape_get((Op)h->op, types, (DType)h->dtype, math);
        if (!tape || !tape_run(tape, types, (DType)h->dtype, 1, in, &value[i]))
            return false;
    }
    return true;
}

bool host_scalar_fits(const HostScalar *at, uint32_t index, uint32_t n_scalars)
{
    const HostScalar *h = &at[index];
    DType types[3];
    if (h->op >= OP_COUNT || h->dtype >= DT_COUNT)
        return false;
    if (op_class((Op)h->op) != CLS_EW)
        return h->op == OP_SCALAR || (h->op == OP_INPUT && h->in[0] < n_scalars);
    uint32_t arity = (uint32_t)op_info[h->op].arity;
    for (uint32_t k = 0; k < arity; k++) {
        if (h->in[k] >= index)
            return false;
        types[k] = (DType)at[h->in[k]].dtype;
    }
    return h->bits == 0 && infer_dtype((Op)h->op, arity, types, (DType)h->dtype) == (DType)h->dtype;
}

void host_scalar_print(const HostScalar *at, uint32_t index, Str *out)
{
    const HostScalar *h = &at[index];
    str_printf(out, "h%u: %s = ", index, dtype_name((DType)h->dtype));
    if (h->op == OP_INPUT)
        str_printf(out, "k%u", h->in[0]);
    else if (h->op == OP_SCALAR)
        text_print_scalar((DType)h->dtype, h->bits, out);
    else
        str_printf(out, "%s", op_name((Op)h->op));
    for (int k = 0; op_class((Op)h->op) == CLS_EW && k < op_info[h->op].arity; k++)
        str_printf(out, " h%u", h->in[k]);
}

/* The layer of kiln_autocast_push. */
#define KILN_NO_LOCATIONS
#include "runtime/mode/mode.h"

/* Products, in the lower dtype; the result is f32 again, as what comes next expects, and the cast a part of whatever kernel reads it. All other
 * ops are as accurate as their operands: f16 and bf16 are computed in f32 as ever. Derivatives are of what was recorded. */
RtNode *autocast_op(Rec *r, kiln_mode *mode, const OpCall *call)
{
    RtNode *in[2] = {NULL};
    bool lower = op_class(call->op) == CLS_CONTRACT && call->n_in == 2 && mode->dtype != DT_F32 && !mode->hidden && !r->derived;
    for (uint32_t k = 0; k < call->n_in && lower; k++)
        lower = node_dtype(call->in[k]) == DT_F32;
    if (!lower)
        return mode_next(r, call);
    for (uint32_t k = 0; k < call->n_in; k++)
        in[k] = rec_cast(r, call->in[k], (DType)mode->dtype);
    OpCall low = *call;
    low.in = in;
    return in[0] && in[1] ? rec_cast(r, mode_next(r, &low), DT_F32) : NULL;
}

/* The next autocast below, which a new one hides. */
static kiln_mode *hidden_by(const kiln_mode *mode)
{
    kiln_mode *at = mode->below;
    while (at && at->kind != mode->kind)
        at = at->below;
    return at;
}

void autocast_end(kiln_mode *mode)
{
    for (kiln_mode *at = hidden_by(mode); at; at = hidden_by(at))
        at->hidden--;
}

kiln_mode *kiln_autocast_push(kiln_dtype low) { return kiln_autocast_push_at(low, NULL, 0); }

kiln_mode *kiln_autocast_push_at(kiln_dtype low, const char *file, int line)
{
    const Loc loc = {file, line};
    if (low != KILN_BF16 && low != KILN_F16 && low != KILN_F32) {
        (void)error_keep(fail(ST_DTYPE, "low is %s: KILN_BF16, KILN_F16, or KILN_F32 for none", kiln_dtype_name(low)), "kiln_autocast_push",
                         loc);
        return NULL;
    }
    kiln_mode *mode = mode_push(LAYER_AUTOCAST, loc);
    if (!mode)
        return NULL;
    mode->dtype = (uint8_t)low;
    for (kiln_mode *at = hidden_by(mode); at; at = hidden_by(at))
        at->hidden++;
    return mode;
}

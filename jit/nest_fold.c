/* How the folds of a nest are accumulated: in how many slots, and whether by the short steps that maxima and minima of floats have. */
#include "jit/nest.h"

#include "jit/rules.h"

/*
 * Lanes along r: those of a short row alone, since the others would hold the start value, and x op start == x. Of a fold without order no more than
 * are in registers beside what is loaded, but where the row has one round over all: that is no loop, and what is loaded are the accumulators.
 */
static uint32_t row_slots(const KernelFacts *f, int64_t lanes, int64_t length, bool ordered, DType state)
{
    int64_t all = f->order.lanes / lanes, most = rule_limit(f->bits, LIMIT_accumulators) * f->bits / 8 / (int64_t)dtype_bytes(state),
            slots = 1;
    while (slots < all && (length < 0 || slots * lanes < length))
        slots *= 2;
    bool once = length >= 0 && length / (slots * lanes) == 1 && slots <= rule_limit(f->bits, LIMIT_round);
    while (!ordered && !once && slots > 1 && slots * lanes > most)
        slots /= 2;
    return (uint32_t)slots;
}

int64_t nest_column_rows(const Nest *n, const KernelFacts *f)
{
    int64_t even = f->schedule->columns & -f->schedule->columns, lanes = f->schedule->lanes;
    return nest_ordered(n, f->k, 0) ? f->order.lanes : lanes > even ? lanes / even : 1;
}

/* A maximum or minimum of floats of whole registers, whose end is worth it (jit/llvm/cpu/extreme.c). */
static bool is_extreme(const Nest *n, const KernelFacts *f, VRef fold, DType state, int64_t lanes)
{
    const Schedule *s = f->schedule;
    const KInst *x = &f->k->inst.at[fold];
    bool along_r = s->along >= (int64_t)f->n_x, floats = (x->op == FOLD_MAX || x->op == FOLD_MIN) && dtype_is_float(state);
    if (!floats || s->columns || lanes < s->bits / 8 / (int64_t)dtype_bytes(state) * (along_r ? 2 : 1))
        return false;
    int64_t points = s->strip ? s->steps : s->unroll;
    return along_r || (!points && !s->strip) ||
           (points >= rule_limit(f->bits, LIMIT_extreme_points) && !nest_ordered(n, f->k, n->does[fold].body));
}

NestFold nest_fold(const Nest *n, const KernelFacts *f, VRef fold)
{
    const KInst *x = &f->k->inst.at[fold];
    bool place = inst_has_place(x), ordered = x->order.kind == ORD_LANES, along_r = f->schedule->along >= (int64_t)f->n_x;
    int64_t lanes = nest_stage_lanes(f->schedule, n->does[fold].body), length = nest_points(f->k, kernel_r_axes(f->k));
    DType state = fold_state((Fold)x->op, (DType)(place ? f->k->inst.at[x->a].dtype : x->dtype));
    NestFold how = {.slots = 1, .extreme = is_extreme(n, f, fold, state, lanes)};
    if (f->schedule->unroll)
        return how;
    if (along_r && !place && !how.extreme)
        how.slots = f->schedule->columns ? (uint32_t)(nest_column_rows(n, f) * f->schedule->columns / f->schedule->lanes)
                                         : row_slots(f, lanes, length, ordered, state);
    else if (ordered)
        how.slots = length >= 0 && length < f->order.lanes ? (uint32_t)(length > 0 ? length : 1) : f->order.lanes;
    return how;
}

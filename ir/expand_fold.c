/*
 * Steps and merges of folds that are no elementwise op, as tapes; the others (FOLD in ir/folds.def) have that op's tape.
 *
 * A function gives one part of the new state. x: the parts of the state, then the element (STEP) or the parts of a later state (MERGE).
 */
#include "ir/expand.h"
#include "ir/fold.h"

#include <stdatomic.h>

enum { BEST, PLACE }; /* parts of ARGMAX, ARGMIN */

static bool is_float(const E *e, X x) { return x_type(e, x) == SC_F32 || x_type(e, x) == SC_F64; }

/*
 * Of x, a value or a place, that of the better of two: NaN is better than all but NaN. A float stays in front of what is at most it, which NaN is
 * not, and if it is NaN. That is a select on an `or` of two comparisons, which all vectors are good at: masks that are no result of a comparison
 * of their width are repacked with AVX2, and two comparisons under an `and` wait for each other with AVX-512.
 */
static X of_better(E *e, const X *x, unsigned part, X earlier, bool max)
{
    X own = x[BEST], other = x[2 + BEST], low = max ? other : own, high = max ? own : other, take;
    if (!is_float(e, own)) {
        take = dtype_is_signed(e->in[BEST]) ? x_slt(e, high, low) : x_ult(e, high, low);
        return x_select(e, earlier ? x_or(e, take, earlier) : take, x[2 + part], x[part]);
    }
    X stays = x_or(e, x_fle(e, low, high), x_isnan(e, own));
    return x_select(e, earlier ? x_and(e, stays, x_not(e, earlier)) : stays, x[part], x[2 + part]);
}

static X equal(E *e, X x, X y)
{
    if (!is_float(e, x))
        return x_ieq(e, x, y);
    return x_or(e, x_feq(e, x, y), x_and(e, x_isnan(e, x), x_isnan(e, y)));
}

/* Elements of a state come in order, so an equal one is later. */
static X extreme_step(E *e, unsigned part, const X *x, bool max) { return of_better(e, x, part, 0, max); }

static X extreme_merge(E *e, unsigned part, const X *x, bool max)
{
    return of_better(e, x, part, x_and(e, equal(e, x[BEST], x[2 + BEST]), x_slt(e, x[2 + PLACE], x[PLACE])), max);
}

static X step_ARGMAX(E *e, unsigned part, const X *x) { return extreme_step(e, part, x, true); }
static X merge_ARGMAX(E *e, unsigned part, const X *x) { return extreme_merge(e, part, x, true); }
static X step_ARGMIN(E *e, unsigned part, const X *x) { return extreme_step(e, part, x, false); }
static X merge_ARGMIN(E *e, unsigned part, const X *x) { return extreme_merge(e, part, x, false); }

static X step_DOT(E *e, unsigned part, const X *x)
{
    (void)part;
    return is_float(e, x[0]) ? x_fma(e, x[1], x[2], x[0]) : x_add(e, x_mul(e, x[1], x[2]), x[0]);
}

static X merge_DOT(E *e, unsigned part, const X *x)
{
    (void)part;
    return x_add(e, x[0], x[1]);
}

typedef X FoldExpand(E *e, unsigned part, const X *x);

static FoldExpand *const own[FOLD_COUNT][FOLD_TAPES] = {
#define FOLD(id, text, op, step, exact)
#define FOLD_OWN(id, text, op, operands, parts, exact) [FOLD_##id] = {[FOLD_STEP] = step_##id, [FOLD_MERGE] = merge_##id},
#include "ir/folds.def"
#undef FOLD
#undef FOLD_OWN
};

static X record_part(E *e, const X *x, const void *what)
{
    const uint8_t *w = what; /* fold, tape, part */
    return own[w[0]][w[1]](e, w[2], x);
}

const Tape *fold_tape(Fold fold, FoldTape which, unsigned part, DType state)
{
    static _Atomic(const Tape *) table[FOLD_COUNT][FOLD_TAPES][2][DT_COUNT];
    const FoldInfo *info = &fold_info[fold];
    if (info->step != OP_COUNT)
        return tape_get((Op)info->step, (DType[]){state, state}, state, MATH_STRICT);
    _Atomic(const Tape *) *slot = &table[fold][which][part][state];
    const Tape *tape = atomic_load_explicit(slot, memory_order_acquire);
    if (tape)
        return tape;
    DType in[4] = {state, state, state, state};
    unsigned n = which == FOLD_STEP ? 1u + info->operands : 2;
    if (info->parts == 2) {
        n = 4;
        in[PLACE] = in[2 + PLACE] = DT_I64;
    }
    const uint8_t what[3] = {(uint8_t)fold, (uint8_t)which, (uint8_t)part};
    return tape_publish(slot, tape_record(record_part, what, in, n));
}

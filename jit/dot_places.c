/*
 * Windows of images whose rows can be read where they lie (jit/llvm/cpu/place.c): the index is a sum of what depends on the row and what
 * depends on the step, and goes on evenly from row to row within groups of them.
 */
#include "jit/dot_facts.h"

/* Does it go on by the same number, *by, from each point of the axis to the next among any `rows` from a multiple of that on? */
static bool goes_on_by(const Kernel *k, IRef i, uint32_t axis, int64_t rows, int64_t *by)
{
    const Idx *x = &k->idx.at[i];
    int64_t a, b;
    *by = 0;
    if (!kidx_uses_axis(k, i, axis))
        return true;
    switch ((IdxKind)x->kind) {
    case IX_AXIS: *by = 1; return true;
    case IX_ADD: return goes_on_by(k, x->a, axis, rows, &a) && goes_on_by(k, x->b, axis, rows, &b) && !__builtin_add_overflow(a, b, by);
    case IX_MUL: return kidx_is_const(k, x->b, &b) && goes_on_by(k, x->a, axis, rows, &a) && !__builtin_mul_overflow(a, b, by);
    case IX_DIV:
    case IX_MOD: {
        uint8_t of = k->idx.at[x->a].kind;
        if (!kidx_is_const(k, x->b, &b) || !goes_on_by(k, x->a, axis, rows, &a))
            return false;
        *by = a && x->kind == IX_MOD;
        return !a || (b % rows == 0 && (of == IX_AXIS || of == IX_MOD)); /* those are multiples of `rows` where the axis is */
    }
    case IX_CONST:
    case IX_ARG:
    case IX_VALUE: return false;
    }
    return false;
}

/* Is no term of the sum made of both axes? */
static bool parted(const Kernel *k, IRef i, uint32_t a, uint32_t b)
{
    const Idx *x = &k->idx.at[i];
    if (!kidx_uses_axis(k, i, a) || !kidx_uses_axis(k, i, b))
        return true;
    return x->kind == IX_ADD && parted(k, x->a, a, b) && parted(k, x->b, a, b);
}

int64_t dot_rows_in_place(const KernelFacts *f, VRef v, int axis, int64_t most, int64_t *apart)
{
    const Kernel *k = f->k;
    const KInst *n = &k->inst.at[v];
    uint32_t last = k->axes.n - 1;
    int64_t size, by;
    if (n->kind != KI_LOAD || n->pred != VREF_NONE || k->args.at[n->arg].band || axis == NO_AXIS ||
        !kidx_is_const(k, k->axes.at[axis].size, &size) || index_through_value(k, n->idx))
        return 0;
    if (goes_on_by(k, n->idx, last, INT64_MAX, &by) || !parted(k, n->idx, (uint32_t)axis, last)) /* no windows: each is read once */
        return 0;
    for (int64_t rows = most; rows > 0 && size > 0; rows--)
        if (size % rows == 0 && goes_on_by(k, n->idx, (uint32_t)axis, rows, apart) && *apart > 0)
            return rows;
    return 0;
}

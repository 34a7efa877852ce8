/*
 * Windows of images whose rows can be read where they lie (jit/llvm/cpu/place.c): the index is a sum of what depends on the row and what
 * depends on the step, and goes on evenly from row to row within a row of the image, whose length may be an argument.
 */
#include "jit/dot_facts.h"

/* Is a size, made of constants and arguments, a multiple of another for certain? */
static bool multiple(const Kernel *k, IRef size, IRef of)
{
    int64_t n, by;
    if (size == of)
        return true;
    if (kidx_is_const(k, size, &n) && kidx_is_const(k, of, &by))
        return by > 0 && n % by == 0;
    return k->idx.at[size].kind == IX_MUL && (multiple(k, k->idx.at[size].a, of) || multiple(k, k->idx.at[size].b, of));
}

/* By what the coordinate is divided, or its remainder taken: *by gets such a size of which all others may be multiples, none: IREF_NONE. */
static void divided_by(const Kernel *k, IRef i, uint32_t axis, IRef *by)
{
    const Idx *x = &k->idx.at[i];
    if (!kidx_uses_axis(k, i, axis) || x->kind == IX_AXIS)
        return;
    divided_by(k, x->a, axis, by);
    divided_by(k, x->b, axis, by);
    if ((x->kind == IX_DIV || x->kind == IX_MOD) && (*by == IREF_NONE || multiple(k, *by, x->b)))
        *by = x->b;
}

/* Does it go on by the same number, *by, from each point of the axis to the next within any `row` points from a multiple of that on? */
static bool goes_on_by(const Kernel *k, IRef i, uint32_t axis, IRef row, int64_t *by)
{
    const Idx *x = &k->idx.at[i];
    int64_t a, b;
    *by = 0;
    if (!kidx_uses_axis(k, i, axis))
        return true;
    switch ((IdxKind)x->kind) {
    case IX_AXIS: *by = 1; return true;
    case IX_ADD: return goes_on_by(k, x->a, axis, row, &a) && goes_on_by(k, x->b, axis, row, &b) && !__builtin_add_overflow(a, b, by);
    case IX_MUL:
        if (!goes_on_by(k, x->a, axis, row, &a) || kidx_uses_axis(k, x->b, axis))
            return false;
        return !a || (kidx_is_const(k, x->b, &b) && !__builtin_mul_overflow(a, b, by));
    case IX_DIV:
    case IX_MOD: {
        uint8_t of = k->idx.at[x->a].kind;
        if (!goes_on_by(k, x->a, axis, row, &a))
            return false;
        *by = a && x->kind == IX_MOD;
        return !a || (multiple(k, x->b, row) && (of == IX_AXIS || of == IX_MOD)); /* those are multiples of `row` where the axis is */
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

/* Rows of the axis, whose length is `row`, are pairs that lie side by side, and so are all of its points. */
static bool in_pairs(const Kernel *k, IRef i, uint32_t axis, IRef row)
{
    int64_t by, length, size;
    return goes_on_by(k, i, axis, row, &by) && by == 1 && kidx_is_const(k, row, &length) && length % 2 == 0 &&
           kidx_is_const(k, k->axes.at[axis].size, &size) && size % 2 == 0;
}

bool dot_places(const KernelFacts *f, VRef v, int axis, DotPlaces *out)
{
    const Kernel *k = f->k;
    const KInst *n = &k->inst.at[v];
    uint32_t last = k->axes.n - 1;
    IRef steps = IREF_NONE;
    if (n->kind != KI_LOAD || n->pred != VREF_NONE || k->args.at[n->arg].band || axis == NO_AXIS || index_through_value(k, n->idx))
        return false;
    divided_by(k, n->idx, last, &steps);
    if (steps == IREF_NONE || !parted(k, n->idx, (uint32_t)axis, last)) /* no windows: each is read once */
        return false;
    *out = (DotPlaces){.row = IREF_NONE, .pairs = in_pairs(k, n->idx, last, steps)};
    divided_by(k, n->idx, (uint32_t)axis, &out->row);
    IRef size = k->axes.at[axis].size;
    out->row = out->row == IREF_NONE ? size : out->row;
    out->fixed = kidx_is_const(k, out->row, &out->length);
    return multiple(k, size, out->row) && goes_on_by(k, n->idx, (uint32_t)axis, out->row, &out->apart) && out->apart > 0 &&
           (!out->fixed || out->length > 0);
}

int64_t dot_places_lower(const DotPlaces *p, int64_t rows)
{
    if (!p->fixed)
        return 0;
    int64_t tiles = (p->length + rows - 1) / rows, lower = tiles * rows - p->length;
    return lower < tiles ? lower : 0;
}

int64_t dot_places_runs(const DotPlaces *p, int64_t rows) { return p->fixed && rows > p->length ? rows / p->length : 1; }

bool dot_places_whole(const DotPlaces *p, int64_t rows) { return p->fixed && (rows > p->length || p->length % rows == 0); }

/*
 * Which keys of an attention none of its block's queries sees, and which all of them see. Scores are where(seen, .., -inf). With `seen` false for
 * each query and key of a rectangle, as far as bounds of what it compares tell, keys have no weight, so a block need not come to them: neither half
 * of the scores of causal attention nor what is behind the length of a sequence. (Values that are infinite or NaN are not seen either then.) With
 * `seen` true for each, scores are what stands there, and need not ask.
 *
 * Bounds are of i64 as they wrap: sums of bounds wrap as what is between them does, so only where the lower one has become the greater they say nothing.
 */
#include "jit/llvm/cuda/tiles.h"

#include <math.h>

typedef struct Span { /* of an i64, both included */
    LV least, most;
} Span;

static bool moves(const Rectangle *r, uint32_t axes) { return (axes >> r->axis[ROWS] & 1) || (axes >> r->axis[COLUMNS] & 1); }

static Span span_sum(Emit *e, Span a, Span b) { return (Span){l_add(e, a.least, b.least), l_add(e, a.most, b.most)}; }

static Span span_difference(Emit *e, Span a, Span b) { return (Span){l_sub(e, a.least, b.most), l_sub(e, a.most, b.least)}; }

static bool span_of_index(Emit *e, const Rectangle *r, IRef i, Span *out)
{
    const Idx *x = &e->k->idx.at[i];
    Span a, b;
    switch ((IdxKind)x->kind) {
    case IX_CONST: *out = (Span){l_i64(e, x->value), l_i64(e, x->value)}; return true;
    case IX_ARG: *out = (Span){argument(e, x->a), argument(e, x->a)}; return true;
    case IX_AXIS:
        *out = (Span){e->axis[x->a].base, e->axis[x->a].base};
        for (int s = 0; s < 2; s++)
            if (x->a == r->axis[s])
                *out = (Span){r->first[s], r->last[s]};
        return true;
    case IX_ADD:
        if (!span_of_index(e, r, x->a, &a) || !span_of_index(e, r, x->b, &b))
            return false;
        *out = span_sum(e, a, b);
        return true;
    case IX_MOD: /* of queries of several heads: where they are all of one */
        if (moves(r, e->k->idx_axes.at[x->b]) || !span_of_index(e, r, x->a, &a) || !span_of_index(e, r, x->b, &b))
            return false;
        LV by = l_max(e, b.least, l_i64(e, 1)), turn = l_div(e, a.least, by),
           one = LLVMBuildICmp(e->b, LLVMIntEQ, turn, l_div(e, a.most, by), "");
        Span low = {l_sub(e, a.least, l_mul(e, turn, by)), l_sub(e, a.most, l_mul(e, turn, by))};
        *out = (Span){LLVMBuildSelect(e->b, one, low.least, l_i64(e, 0), ""),
                      LLVMBuildSelect(e->b, one, low.most, l_sub(e, by, l_i64(e, 1)), "")};
        return true;
    case IX_MUL:
    case IX_DIV:
    case IX_VALUE: return false;
    }
    return false;
}

static bool span_of(Emit *e, const Rectangle *r, VRef v, Span *out)
{
    const KInst *x = &e->k->inst.at[v];
    Span a, b;
    if (x->dtype != DT_I64)
        return false;
    if (!moves(r, e->k->inst_axes.at[v])) {
        LV same = value(e, v).v;
        *out = (Span){same, same};
        return true;
    }
    if (x->kind == KI_INDEX)
        return span_of_index(e, r, x->idx, out);
    if (x->kind != KI_OP || (x->op != OP_ADD && x->op != OP_SUB) || !span_of(e, r, x->a, &a) || !span_of(e, r, x->b, &b))
        return false;
    *out = x->op == OP_ADD ? span_sum(e, a, b) : span_difference(e, a, b);
    return true;
}

/* i1: a bool is `what` in all of the rectangle; NULL: nothing tells. */
static LV all_are(Emit *e, const Rectangle *r, VRef v, bool what)
{
    const KInst *x = &e->k->inst.at[v];
    Span a, b;
    if (x->kind != KI_OP)
        return NULL;
    if (x->op == OP_AND) {
        LV left = all_are(e, r, x->a, what), right = all_are(e, r, x->b, what);
        if (left && right)
            return what ? both(e, left, right) : LLVMBuildOr(e->b, left, right, "");
        return what ? NULL : left ? left : right;
    }
    bool less = x->op == OP_LT || x->op == OP_LE;
    if ((!less && x->op != OP_GT && x->op != OP_GE) || !span_of(e, r, x->a, &a) || !span_of(e, r, x->b, &b))
        return NULL;
    bool equal = x->op == OP_LE || x->op == OP_GE, strict = what != equal; /* equal: it holds of equals, too */
    LV yes = less == what ? LLVMBuildICmp(e->b, strict ? LLVMIntSLT : LLVMIntSLE, a.most, b.least, "")
                          : LLVMBuildICmp(e->b, strict ? LLVMIntSGT : LLVMIntSGE, a.least, b.most, "");
    return both(e, yes,
                both(e, LLVMBuildICmp(e->b, LLVMIntSLE, a.least, a.most, ""), LLVMBuildICmp(e->b, LLVMIntSLE, b.least, b.most, "")));
}

/* Is what is not seen -inf, in this launch? */
static LV minus_infinity(Emit *e, VRef v)
{
    const KInst *x = &e->k->inst.at[v];
    if (x->dtype != DT_F32 || (x->kind != KI_CONST && x->kind != KI_SCALAR))
        return NULL;
    return LLVMBuildFCmp(e->b, LLVMRealOEQ, value(e, v).v, l_const(e, SC_F32, scalar_from_double(DT_F32, -(double)INFINITY), false), "");
}

LV never_seen(Emit *e, const Rectangle *r, VRef score)
{
    const KInst *x = &e->k->inst.at[score];
    LV none = x->kind == KI_OP && x->op == OP_WHERE ? minus_infinity(e, x->c) : NULL, no = none ? all_are(e, r, x->a, false) : NULL;
    return no ? both(e, none, no) : NULL;
}

LV always_seen(Emit *e, const Rectangle *r, VRef score)
{
    const KInst *x = &e->k->inst.at[score];
    return x->kind == KI_OP && x->op == OP_WHERE ? all_are(e, r, x->a, true) : NULL;
}

/* Is a number 0 in this launch? */
static LV is_zero(Emit *e, VRef v)
{
    const KInst *x = &e->k->inst.at[v];
    if (x->dtype != DT_F32 || (x->kind != KI_CONST && x->kind != KI_SCALAR))
        return NULL;
    return LLVMBuildFCmp(e->b, LLVMRealOEQ, value(e, v).v, l_const(e, SC_F32, 0, false), "");
}

static LV either(Emit *e, LV a, LV b) { return a && b ? LLVMBuildOr(e->b, a, b, "") : a ? a : b; }

/* exp(score - what is taken away from a row's), what such are multiplied by, and where(seen, .., 0). */
LV never_weighs(Emit *e, const Rectangle *r, VRef weight)
{
    const KInst *x = &e->k->inst.at[weight];
    if (x->kind != KI_OP)
        return NULL;
    if (x->op == OP_CAST)
        return never_weighs(e, r, x->a);
    if (x->op == OP_MUL || x->op == OP_MUL_NO_NAN)
        return either(e, never_weighs(e, r, x->a), never_weighs(e, r, x->b));
    if (x->op == OP_EXP && e->k->inst.at[x->a].kind == KI_OP && e->k->inst.at[x->a].op == OP_SUB)
        return never_seen(e, r, e->k->inst.at[x->a].a);
    LV zero = x->op == OP_WHERE ? is_zero(e, x->c) : NULL, no = zero ? all_are(e, r, x->a, false) : NULL;
    return no ? both(e, zero, no) : NULL;
}

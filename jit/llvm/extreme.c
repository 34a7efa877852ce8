/*
 * The maximum or minimum of floats whose lanes run along r, by three instructions a vector where the op's own tape (ir/expand_basic.c) takes seven.
 *
 * What makes the op long is NaN, which beats everything, and zeros, of which the positive one is greater. Neither needs to be known before the end:
 *
 *     best = x > best ? x : best          one instruction; no NaN gets in, and of zeros either may stay
 *     nan  |= x0 or x1 is NaN             one comparison for two vectors
 *     sign &= bits of x                   (a minimum: |=)
 *
 * At the end a best that is a zero has the sign that is left: negative if all signs were (a maximum, in which none is greater than zero).
 * And if there was a NaN it is NaN.
 */
#include "jit/llvm/build.h"

static unsigned acc_bytes(const Reduction *r) { return (unsigned)dtype_bytes((DType)r->acc_type); }

static bool is_max(const Reduction *r) { return r->fold == FOLD_MAX; }

/* Elements of a register. */
static unsigned register_lanes(const Emit *e, const Reduction *r) { return (unsigned)e->bits / 8 / acc_bytes(r); }

bool extreme_fits(const Emit *e, const Reduction *r, int lanes)
{
    return (r->fold == FOLD_MAX || r->fold == FOLD_MIN) && dtype_is_float((DType)r->acc_type) && e->vec_r && !e->schedule.columns &&
           !e->target->scalar_lanes && (unsigned)lanes >= 2 * register_lanes(e, r);
}

static LLVMTypeRef bits_type(const Emit *e, const Reduction *r) { return e->type[acc_bytes(r) == 8 ? SC_I64 : SC_I32]; }

static LLVMTypeRef sign_type(const Emit *e, const Reduction *r) { return LLVMVectorType(bits_type(e, r), register_lanes(e, r)); }

/* With AVX-512 comparisons give masks, which are what meets best; else vectors. */
static LLVMTypeRef nan_type(const Emit *e, const Reduction *r)
{
    return e->bits == 512 ? LLVMVectorType(e->type[SC_I1], register_lanes(e, r)) : sign_type(e, r);
}

void extreme_open(Emit *e, Reduction *r)
{
    r->sign = l_alloca(e, sign_type(e, r), 64, "sign");
    r->nan = l_alloca(e, nan_type(e, r), 64, "nan");
}

void extreme_begin(Emit *e, const Reduction *r)
{
    LLVMTypeRef sign = sign_type(e, r);
    l_store(e, is_max(r) ? LLVMConstAllOnes(sign) : LLVMConstNull(sign), r->sign, 0);
    l_store(e, LLVMConstNull(nan_type(e, r)), r->nan, 0);
}

static LV register_of(Emit *e, LV v, unsigned from, unsigned n)
{
    LV at[MAX_LANES];
    for (unsigned i = 0; i < n; i++)
        at[i] = LLVMConstInt(e->type[SC_I32], from + i, 0);
    return LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(at, n), "");
}

static LV better(Emit *e, const Reduction *r, LV best, LV x)
{
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, is_max(r) ? LLVMRealOGT : LLVMRealOLT, x, best, ""), x, best, "");
}

static LV signs(Emit *e, const Reduction *r, LV a, LV b) { return is_max(r) ? LLVMBuildAnd(e->b, a, b, "") : LLVMBuildOr(e->b, a, b, ""); }

/* What all begins with loses, has the sign that changes none, and is no NaN: so it stands for lanes that are masked off. */
LV extreme_step(Emit *e, const Reduction *r, LV best, LV x)
{
    unsigned n = register_lanes(e, r), lanes = (unsigned)e->lanes;
    LV sign = l_load(e, sign_type(e, r), r->sign, 0), nan = l_load(e, nan_type(e, r), r->nan, 0), before = NULL;
    if (e->mask)
        x = live_select(e, x, part_start(e, r, NULL, true).v);
    for (unsigned from = 0; from < lanes; from += n) {
        LV v = register_of(e, x, from, n);
        sign = signs(e, r, sign, LLVMBuildBitCast(e->b, v, sign_type(e, r), ""));
        if (from / n % 2) {
            LV either = LLVMBuildFCmp(e->b, LLVMRealUNO, before, v, "");
            nan = LLVMBuildOr(e->b, nan, e->bits == 512 ? either : LLVMBuildSExt(e->b, either, nan_type(e, r), ""), "");
        }
        before = v;
    }
    l_store(e, sign, r->sign, 0);
    l_store(e, nan, r->nan, 0);
    return better(e, r, best, x);
}

static LV is_nan(Emit *e, const Reduction *r)
{
    LV nan = l_load(e, nan_type(e, r), r->nan, 0);
    LLVMTypeRef mask = LLVMIntTypeInContext(e->ctx, register_lanes(e, r));
    if (e->bits != 512)
        nan = LLVMBuildICmp(e->b, LLVMIntSLT, nan, LLVMConstNull(LLVMTypeOf(nan)), "");
    return LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildBitCast(e->b, nan, mask, ""), LLVMConstNull(mask), "");
}

static LV zero_of_sign(Emit *e, const Reduction *r, LLVMTypeRef element)
{
    LV sign = l_load(e, sign_type(e, r), r->sign, 0);
    for (unsigned n = register_lanes(e, r) / 2; n; n /= 2)
        sign = signs(e, r, register_of(e, sign, 0, n), register_of(e, sign, n, n));
    sign = LLVMBuildExtractElement(e->b, sign, LLVMConstInt(e->type[SC_I32], 0, 0), "");
    LV top = LLVMConstInt(bits_type(e, r), (uint64_t)1 << (8 * acc_bytes(r) - 1), 0);
    return LLVMBuildBitCast(e->b, LLVMBuildAnd(e->b, sign, top, ""), element, "");
}

/* Of all lanes. Few are a zero or NaN, so the rest is behind a branch: in line it took twice as long as a row of 32 (512 bits). */
LV extreme_result(Emit *e, const Reduction *r, LV best)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(best));
    for (unsigned n = (unsigned)e->lanes / 2; n; n /= 2)
        best = better(e, r, register_of(e, best, 0, n), register_of(e, best, n, n));
    best = LLVMBuildExtractElement(e->b, best, LLVMConstInt(e->type[SC_I32], 0, 0), "");
    LV nan = is_nan(e, r), zero = LLVMBuildFCmp(e->b, LLVMRealOEQ, best, LLVMConstNull(element), ""), each[2] = {best};
    LLVMBasicBlockRef from[2] = {LLVMGetInsertBlock(e->b), l_block(e, "zero_or_nan")}, join = l_block(e, "");
    LLVMBuildCondBr(e->b, LLVMBuildOr(e->b, nan, zero, ""), from[1], join);
    l_at(e, from[1]);
    uint64_t bits = scalar_from_double((DType)r->acc_type, __builtin_nan(""));
    LV not_a_number = l_const(e, (SType)dtype_info[r->acc_type].scalar, bits, false);
    each[1] = LLVMBuildSelect(e->b, nan, not_a_number, zero_of_sign(e, r, element), "");
    LLVMBuildBr(e->b, join);
    l_at(e, join);
    LV result = LLVMBuildPhi(e->b, element, "");
    LLVMAddIncoming(result, each, from, 2);
    return result;
}

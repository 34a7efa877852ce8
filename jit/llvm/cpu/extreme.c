/*
 * The maximum or minimum of floats, by three instructions a vector where the op's own tape (ir/expand_basic.c) takes seven.
 *
 * What makes the op long is NaN, which beats everything, and zeros, of which the positive one is greater. Neither needs to be known before the end:
 *
 *     best = x > best ? x : best          one instruction; no NaN gets in, and of zeros either may stay
 *     nan  |= x0 or x1 is NaN             one comparison for two vectors
 *     sign &= bits of x                   (a minimum: |=)
 *
 * At the end a best that is a zero has the sign that is left: negative if all signs were (a maximum, in which none is greater than zero).
 * And if there was a NaN it is NaN.
 *
 * Lanes along r share one register of signs and one of NaN, and the end looks at a scalar. Lanes along x have their own: as many registers as
 * best, and two elements of a comparison are points of r where the schedule has code for each (unroll.c).
 */
#include "jit/llvm/build.h"

static unsigned acc_bytes(const Reduction *r) { return (unsigned)dtype_bytes((DType)r->acc_type); }

static bool is_max(const Reduction *r) { return r->fold == FOLD_MAX; }

/* Elements of a register. */
static unsigned register_lanes(const Emit *e, const Reduction *r) { return (unsigned)e->bits / 8 / acc_bytes(r); }

/* Registers of signs, and of NaN. */
static unsigned registers(const Emit *e, const Reduction *r)
{
    unsigned n = (unsigned)e->lanes / register_lanes(e, r);
    return e->vec_r || !n ? 1 : n;
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
    r->sign = l_alloca(e, LLVMArrayType2(sign_type(e, r), registers(e, r)), 64, "sign");
    r->nan = l_alloca(e, LLVMArrayType2(nan_type(e, r), registers(e, r)), 64, "nan");
}

static LV sign_at(Emit *e, const Reduction *r, unsigned i) { return l_gep(e, sign_type(e, r), r->sign, l_i64(e, e->vec_r ? 0 : i)); }

static LV nan_at(Emit *e, const Reduction *r, unsigned i)
{
    LV at = l_i64(e, e->vec_r ? 0 : i);
    return LLVMBuildGEP2(e->b, LLVMArrayType2(nan_type(e, r), registers(e, r)), r->nan, (LV[]){l_i64(e, 0), at}, 2, "");
}

void extreme_begin(Emit *e, const Reduction *r)
{
    LLVMTypeRef sign = sign_type(e, r);
    for (unsigned i = 0; i < registers(e, r); i++) {
        l_store(e, is_max(r) ? LLVMConstAllOnes(sign) : LLVMConstNull(sign), sign_at(e, r, i), 0);
        l_store(e, LLVMConstNull(nan_type(e, r)), nan_at(e, r, i), 0);
    }
}

static LV better(Emit *e, const Reduction *r, LV best, LV x)
{
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, is_max(r) ? LLVMRealOGT : LLVMRealOLT, x, best, ""), x, best, "");
}

static LV signs(Emit *e, const Reduction *r, LV a, LV b) { return is_max(r) ? LLVMBuildAnd(e->b, a, b, "") : LLVMBuildOr(e->b, a, b, ""); }

static void put_sign(Emit *e, const Reduction *r, LV at, LV v)
{
    LV sign = l_load(e, sign_type(e, r), at, 0);
    l_store(e, signs(e, r, sign, LLVMBuildBitCast(e->b, v, sign_type(e, r), "")), at, 0);
}

/* What is not ordered with a vector of NaN is it with none: below AVX-512 the register itself is compared, where there is one x. */
static void put_nan(Emit *e, const Reduction *r, LV at, LV a, LV b)
{
    LV nan = l_load(e, nan_type(e, r), at, 0), both = nan;
    if (e->bits < 512 && !b)
        b = LLVMBuildBitCast(e->b, nan, LLVMTypeOf(a), ""), both = NULL;
    LV either = LLVMBuildFCmp(e->b, LLVMRealUNO, b ? b : a, a, "");
    either = e->bits == 512 ? either : LLVMBuildSExt(e->b, either, nan_type(e, r), "");
    l_store(e, both ? LLVMBuildOr(e->b, both, either, "") : either, at, 0);
}

/* What all begins with loses, has the sign that changes none, and is no NaN: so it stands for lanes that are masked off. */
LV extreme_step(Emit *e, const Reduction *r, LV best, LV x, LV y)
{
    unsigned n = register_lanes(e, r), lanes = (unsigned)e->lanes;
    if (e->mask && e->vec_r)
        x = live_select(e, x, part_start(e, r, NULL, true).v);
    LV before = NULL;
    for (unsigned from = 0; from < lanes; from += n) {
        LV v = l_part(e, x, (int)from, (int)n), w = y ? l_part(e, y, (int)from, (int)n) : NULL;
        put_sign(e, r, sign_at(e, r, from / n), v);
        if (w)
            put_sign(e, r, sign_at(e, r, from / n), w);
        if (!e->vec_r)
            put_nan(e, r, nan_at(e, r, from / n), v, w);
        else if (from / n % 2)
            put_nan(e, r, nan_at(e, r, 0), before, v);
        else if (from + n == lanes)
            put_nan(e, r, nan_at(e, r, 0), v, NULL);
        before = v;
    }
    best = better(e, r, best, x);
    return y ? better(e, r, best, y) : best;
}

/* Which lanes of a register saw a NaN: a vector of i1. */
static LV nan_lanes(Emit *e, const Reduction *r, unsigned i)
{
    LV nan = l_load(e, nan_type(e, r), nan_at(e, r, i), 0);
    return e->bits == 512 ? nan : LLVMBuildICmp(e->b, LLVMIntSLT, nan, LLVMConstNull(LLVMTypeOf(nan)), "");
}

static LV is_nan(Emit *e, const Reduction *r)
{
    LLVMTypeRef mask = LLVMIntTypeInContext(e->ctx, register_lanes(e, r));
    return LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildBitCast(e->b, nan_lanes(e, r, 0), mask, ""), LLVMConstNull(mask), "");
}

static LV not_a_number(Emit *e, const Reduction *r)
{
    uint64_t bits = scalar_from_double((DType)r->acc_type, __builtin_nan(""));
    return l_const(e, (SType)dtype_info[r->acc_type].scalar, bits, false);
}

/* The zero that has the sign of `sign`, of one lane or of several. */
static LV zero_of_sign(Emit *e, const Reduction *r, LV sign, LLVMTypeRef type)
{
    LV top = LLVMConstInt(bits_type(e, r), (uint64_t)1 << (8 * acc_bytes(r) - 1), 0);
    if (LLVMGetTypeKind(type) == LLVMVectorTypeKind)
        top = l_splat_n(e, top, register_lanes(e, r));
    return LLVMBuildBitCast(e->b, LLVMBuildAnd(e->b, sign, top, ""), type, "");
}

/* Of all lanes. Few are a zero or NaN, so the rest is behind a branch: in line it took twice as long as a row of 32 (512 bits). */
static LV result_along_r(Emit *e, const Reduction *r, LV best)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(best));
    for (int n = e->lanes / 2; n; n /= 2)
        best = better(e, r, l_part(e, best, 0, n), l_part(e, best, n, n));
    best = LLVMBuildExtractElement(e->b, best, LLVMConstInt(e->type[SC_I32], 0, 0), "");
    LV nan = is_nan(e, r), zero = LLVMBuildFCmp(e->b, LLVMRealOEQ, best, LLVMConstNull(element), ""), each[2] = {best};
    LLVMBasicBlockRef from[2] = {LLVMGetInsertBlock(e->b), l_block(e, "zero_or_nan")}, join = l_block(e, "");
    LLVMBuildCondBr(e->b, LLVMBuildOr(e->b, nan, zero, ""), from[1], join);
    l_at(e, from[1]);
    LV sign = l_load(e, sign_type(e, r), sign_at(e, r, 0), 0);
    for (int n = (int)register_lanes(e, r) / 2; n; n /= 2)
        sign = signs(e, r, l_part(e, sign, 0, n), l_part(e, sign, n, n));
    sign = LLVMBuildExtractElement(e->b, sign, LLVMConstInt(e->type[SC_I32], 0, 0), "");
    each[1] = LLVMBuildSelect(e->b, nan, not_a_number(e, r), zero_of_sign(e, r, sign, element), "");
    LLVMBuildBr(e->b, join);
    l_at(e, join);
    LV result = LLVMBuildPhi(e->b, element, "");
    LLVMAddIncoming(result, each, from, 2);
    return result;
}

LV extreme_result(Emit *e, const Reduction *r, LV best)
{
    unsigned n = register_lanes(e, r);
    LV parts[MAX_LANES];
    if (e->vec_r)
        return result_along_r(e, r, best);
    for (unsigned i = 0; i < registers(e, r); i++) {
        LV v = l_part(e, best, (int)(i * n), (int)n), sign = l_load(e, sign_type(e, r), sign_at(e, r, i), 0);
        LV zero = LLVMBuildFCmp(e->b, LLVMRealOEQ, v, LLVMConstNull(LLVMTypeOf(v)), "");
        v = LLVMBuildSelect(e->b, zero, zero_of_sign(e, r, sign, LLVMTypeOf(v)), v, "");
        parts[i] = LLVMBuildSelect(e->b, nan_lanes(e, r, i), l_splat_n(e, not_a_number(e, r), n), v, "");
    }
    return l_join(e, parts, registers(e, r));
}

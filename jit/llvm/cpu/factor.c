/*
 * Steps of a product's sums and what they multiply: one element of either operand in the accumulator's dtype, or by pairs (ir/orders.def) two of bf16.
 *
 *     f32:    fma(a[k], b[k], sum)
 *     pairs:  vdpbf16ps(sum, a[k + 1] : a[k], b[k + 1] : b[k])
 *
 * A pair is 32 bits and travels as an f32: panels, squares and registers are laid out as those of a product of f32 with half as many steps.
 */
#include "jit/llvm/cpu/contract.h"

/* Two values of 16 bits as the halves of an f32's bits. */
static LV pair(Emit *e, Val low, Val high)
{
    LLVMTypeRef i32 = e->type[SC_I32];
    unsigned n = (unsigned)e->lanes;
    if (n == 1 || (!low.vec && !high.vec)) {
        LV upper = LLVMBuildShl(e->b, LLVMBuildZExt(e->b, high.v, i32, ""), LLVMConstInt(i32, 16, 0), "");
        LV both = LLVMBuildOr(e->b, LLVMBuildZExt(e->b, low.v, i32, ""), upper, "");
        return val_vector(e, (Val){.v = LLVMBuildBitCast(e->b, both, e->type[SC_F32], "")});
    }
    LV at[2 * MAX_LANES];
    for (unsigned i = 0; i < 2 * n; i++)
        at[i] = LLVMConstInt(i32, i / 2 + i % 2 * n, 0);
    LV both = LLVMBuildShuffleVector(e->b, val_vector(e, low), val_vector(e, high), LLVMConstVector(at, 2 * n), "");
    return LLVMBuildBitCast(e->b, both, LLVMVectorType(e->type[SC_F32], n), "");
}

LV contract_factor(Emit *e, const Contract *c, int side, LV k, int64_t n)
{
    VRef operand = c->dot.operand[side];
    contract_k(e, k, false);
    if (c->dot.each == 1)
        return val_vector(e, cast_emit(e, c->dot.in, c->dot.acc, value(e, operand)));
    Val low = value(e, operand), high = {.v = LLVMConstNull(e->type[SC_I16])};
    if (n > 1) {
        contract_anew(e, LV_R);
        contract_k(e, l_add(e, k, l_i64(e, 1)), false);
        high = value(e, operand);
    }
    return pair(e, low, high);
}

LV contract_factors(Emit *e, const Contract *c, int side, LV k)
{
    int lanes = e->lanes;
    lanes_change(e, lanes * (int)c->dot.each);
    contract_k(e, k, true);
    Val v = value(e, c->dot.operand[side]);
    LV factors = c->dot.each > 1 ? LLVMBuildBitCast(e->b, val_vector(e, v), LLVMVectorType(e->type[SC_F32], (unsigned)lanes), "")
                                 : val_vector(e, cast_emit(e, c->dot.in, c->dot.acc, v));
    lanes_change(e, lanes);
    return factors;
}

/* Elements [from, from + n) of a vector; poison past its end. */
static LV part_of(Emit *e, LV v, unsigned from, unsigned n)
{
    LV at[MAX_LANES];
    unsigned all = LLVMGetVectorSize(LLVMTypeOf(v));
    for (unsigned i = 0; i < n; i++)
        at[i] = from + i < all ? LLVMConstInt(e->type[SC_I32], from + i, 0) : LLVMGetPoison(e->type[SC_I32]);
    return LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(at, n), "");
}

/* The instruction on so many sums. */
static LV pairs_step(Emit *e, LV sum, LV a, LV b, unsigned n)
{
    const char *name = n == 16  ? "llvm.x86.avx512bf16.dpbf16ps.512"
                       : n == 8 ? "llvm.x86.avx512bf16.dpbf16ps.256"
                                : "llvm.x86.avx512bf16.dpbf16ps.128";
    LLVMTypeRef halves = LLVMVectorType(LLVMBFloatTypeInContext(e->ctx), 2 * n);
    LV args[] = {sum, LLVMBuildBitCast(e->b, a, halves, ""), LLVMBuildBitCast(e->b, b, halves, "")};
    return l_intrinsic(e, name, NULL, 0, args, 3);
}

LV contract_step(Emit *e, const Contract *c, LV sum, LV a, LV b)
{
    enum { LEAST = 4, MOST = 16 };
    LLVMTypeRef type = LLVMTypeOf(sum);
    if (c->dot.each == 1)
        return dot_step(e, c->dot.acc, sum, a, b);
    bool vec = LLVMGetTypeKind(type) == LLVMVectorTypeKind;
    unsigned all = vec ? LLVMGetVectorSize(type) : 1, n = all < LEAST ? LEAST : all > MOST ? MOST : all;
    LV in[3] = {sum, a, b}, out[MAX_LANES / MOST];
    if (all == n)
        return pairs_step(e, sum, a, b, n);
    for (int i = 0; i < 3 && !vec; i++)
        in[i] = LLVMBuildInsertElement(e->b, LLVMGetPoison(LLVMVectorType(type, LEAST)), in[i], LLVMConstNull(e->type[SC_I32]), "");
    for (unsigned at = 0; at < all; at += n)
        out[at / n] = pairs_step(e, part_of(e, in[0], at, n), part_of(e, in[1], at, n), part_of(e, in[2], at, n), n);
    if (!vec)
        return LLVMBuildExtractElement(e->b, out[0], LLVMConstNull(e->type[SC_I32]), "");
    return all < n ? part_of(e, out[0], 0, all) : l_join(e, out, all / n);
}

LV contract_steps_of(Emit *e, const Contract *c, LV points) { return l_ceil_div(e, points, l_i64(e, c->dot.each)); }

void contract_steps(Emit *e, const Contract *c, LV from, LV k1, const char *name, StepFn *body, void *user)
{
    int64_t n;
    LV each = l_i64(e, c->dot.each), whole = c->dot.each == 1 ? k1 : l_add(e, from, l_mul(e, l_div(e, l_sub(e, k1, from), each), each));
    Loop l = loop_begin(e, from, whole, each, name);
    body(e, c, &l, c->dot.each, user);
    loop_end(e, &l);
    if (c->dot.each == 1 || (l_is_const(c->n_k, &n) && n % c->dot.each == 0))
        return;
    Loop odd = loop_begin(e, whole, k1, each, "odd"); /* once, or not at all */
    body(e, c, &odd, 1, user);
    loop_end(e, &odd);
}

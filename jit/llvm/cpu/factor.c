/*
 * Steps of a product's sums and what they multiply: one element of either operand in the accumulator's dtype, or two of 16 bits: of bf16, where the
 * order goes by pairs (ir/orders.def), or of integers whose lower 16 bits as a signed number are all that counts (dot_each).
 *
 *     f32:    fma(a[k], b[k], sum)
 *     bf16:   vdpbf16ps(sum, a[k + 1] : a[k], b[k + 1] : b[k])
 *     i8...:  sum + vpmaddwd(a[k + 1] : a[k], b[k + 1] : b[k]), which LLVM makes vpdpwssd where the CPU has it
 *
 * Modulo 2^32 the latter is exact: only twice -2^15 * -2^15 is more than 32 bits have, and wraps as the sums do. Nothing depends on the order.
 *
 * A pair is 32 bits and travels as an element of the sums: panels, squares and registers are laid out as those of a product of f32 or i32 with half
 * as many steps.
 */
#include "jit/llvm/cpu/contract.h"

/* Elements of an operand of which two are a factor: the bits of a bf16; an integer's lower 16, or all 8. */
static Val half(Emit *e, VRef operand)
{
    Val v = value(e, dot_uncast(e->k, operand));
    const DType of = (DType)e->k->inst.at[dot_uncast(e->k, operand)].dtype;
    if (dtype_bytes(of) > 2)
        v.v = LLVMBuildTrunc(e->b, v.v, v.vec ? l_vec(e, e->type[SC_I16]) : e->type[SC_I16], "");
    return v;
}

/* With 16 bits an element. */
static LV widened(Emit *e, VRef operand, LV v)
{
    const DType of = (DType)e->k->inst.at[dot_uncast(e->k, operand)].dtype;
    LLVMTypeRef type = LLVMTypeOf(v), i16 = e->type[SC_I16];
    if (dtype_bytes(of) > 1)
        return v;
    if (LLVMGetTypeKind(type) == LLVMVectorTypeKind)
        i16 = LLVMVectorType(i16, LLVMGetVectorSize(type));
    return LLVMBuildIntCast2(e->b, v, i16, dtype_is_signed(of), "");
}

/* Two of them as one element of the sums' type. Bytes change places before they are widened, which are half as many vectors. */
static LV pair(Emit *e, const Contract *c, VRef operand, Val low, Val high)
{
    LLVMTypeRef i32 = e->type[SC_I32], element = LLVMGetElementType(c->vector);
    unsigned n = (unsigned)e->lanes;
    if (n == 1 || (!low.vec && !high.vec)) {
        LV upper = LLVMBuildZExt(e->b, widened(e, operand, high.v), i32, "");
        upper = LLVMBuildShl(e->b, upper, LLVMConstInt(i32, 16, 0), "");
        LV both = LLVMBuildOr(e->b, LLVMBuildZExt(e->b, widened(e, operand, low.v), i32, ""), upper, "");
        return val_vector(e, (Val){.v = LLVMBuildBitCast(e->b, both, element, "")});
    }
    LV at[2 * MAX_LANES];
    for (unsigned i = 0; i < 2 * n; i++)
        at[i] = LLVMConstInt(i32, i / 2 + i % 2 * n, 0);
    LV both = LLVMBuildShuffleVector(e->b, val_vector(e, low), val_vector(e, high), LLVMConstVector(at, 2 * n), "");
    return LLVMBuildBitCast(e->b, widened(e, operand, both), LLVMVectorType(element, n), "");
}

LV contract_factor(Emit *e, const Contract *c, int side, LV k, int64_t n)
{
    VRef operand = c->dot.operand[side];
    contract_k(e, k, false);
    if (c->dot.each == 1)
        return val_vector(e, cast_emit(e, c->dot.in, c->dot.acc, value(e, operand)));
    Val low = half(e, operand), high = {.v = LLVMConstNull(low.vec ? LLVMGetElementType(LLVMTypeOf(low.v)) : LLVMTypeOf(low.v))};
    if (n > 1) {
        contract_anew(e, LV_R);
        contract_k(e, l_add(e, k, l_i64(e, 1)), false);
        high = half(e, operand);
    }
    return pair(e, c, operand, low, high);
}

LV contract_factors(Emit *e, const Contract *c, int side, LV k)
{
    int lanes = e->lanes;
    VRef operand = c->dot.operand[side];
    lanes_change(e, lanes * (int)c->dot.each);
    contract_k(e, k, true);
    LV factors;
    if (c->dot.each > 1) {
        LV halves = widened(e, operand, val_vector(e, half(e, operand)));
        factors = LLVMBuildBitCast(e->b, halves, LLVMVectorType(LLVMGetElementType(c->vector), (unsigned)lanes), "");
    } else {
        factors = val_vector(e, cast_emit(e, c->dot.in, c->dot.acc, value(e, operand)));
    }
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

/* The instructions on 4, 8 or 16 sums. */
static LV pairs_step(Emit *e, const Contract *c, LV sum, LV a, LV b, unsigned n)
{
    static const char *const dots[] = {"llvm.x86.avx512bf16.dpbf16ps.128", "llvm.x86.avx512bf16.dpbf16ps.256",
                                       "llvm.x86.avx512bf16.dpbf16ps.512"};
    static const char *const multiply[] = {"llvm.x86.sse2.pmadd.wd", "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx512.pmaddw.d.512"};
    const bool ints = !dtype_is_float(c->dot.acc);
    LLVMTypeRef halves = LLVMVectorType(ints ? e->type[SC_I16] : LLVMBFloatTypeInContext(e->ctx), 2 * n);
    LV args[] = {sum, LLVMBuildBitCast(e->b, a, halves, ""), LLVMBuildBitCast(e->b, b, halves, "")};
    return ints ? LLVMBuildAdd(e->b, sum, l_intrinsic(e, multiply[n / 8], NULL, 0, args + 1, 2), "")
                : l_intrinsic(e, dots[n / 8], NULL, 0, args, 3);
}

LV contract_step(Emit *e, const Contract *c, LV sum, LV a, LV b)
{
    enum { LEAST = 4 };
    const unsigned most = (unsigned)c->dot.lanes;
    LLVMTypeRef type = LLVMTypeOf(sum);
    if (c->dot.each == 1)
        return dot_step(e, c->dot.acc, sum, a, b);
    bool vec = LLVMGetTypeKind(type) == LLVMVectorTypeKind;
    unsigned all = vec ? LLVMGetVectorSize(type) : 1, n = all < LEAST ? LEAST : all > most ? most : all;
    LV in[3] = {sum, a, b}, out[MAX_LANES / LEAST];
    if (all == n)
        return pairs_step(e, c, sum, a, b, n);
    for (int i = 0; i < 3 && !vec; i++)
        in[i] = LLVMBuildInsertElement(e->b, LLVMGetPoison(LLVMVectorType(type, LEAST)), in[i], LLVMConstNull(e->type[SC_I32]), "");
    for (unsigned at = 0; at < all; at += n)
        out[at / n] = pairs_step(e, c, part_of(e, in[0], at, n), part_of(e, in[1], at, n), part_of(e, in[2], at, n), n);
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

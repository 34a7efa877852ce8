/*
 * Steps of a product's sums and what they multiply: one element of either operand in the accumulator's dtype; two of 16 bits, of bf16, where the
 * order goes by pairs (ir/orders.def), or of integers whose lower 16 bits as a signed number are all that counts; or four bytes, where the CPU has
 * an instruction for that (DotFacts.each).
 *
 *     f32:    fma(a[k], b[k], sum)
 *     bf16:   vdpbf16ps(sum, a[k + 1] : a[k], b[k + 1] : b[k])
 *     i8...:  sum + vpmaddwd(a[k + 1] : a[k], b[k + 1] : b[k]), which LLVM makes vpdpwssd where the CPU has it
 *             vpdpbusd(sum, a[k + 3] : ... : a[k], b[k + 3] : ... : b[k])
 *
 * Modulo 2^32 the latter two are exact: only twice -2^15 * -2^15 is more than 32 bits have, and wraps as the sums do. Nothing depends on the order.
 *
 * vpdpbusd multiplies bytes without sign by bytes with one. Where both operands have one, or none has, the lane operand's upper bits are flipped:
 * that is 128 more, or less, and what it adds to a sum is the product of the row by a column whose bytes are all 0x80 (contract_flip).
 *
 * Two or four elements are 32 bits and travel as an element of the sums: panels, squares and registers are laid out as those of a product of f32 or
 * i32 with fewer steps.
 */
#include "jit/llvm/cpu/contract.h"
#include "jit/llvm/cpu/subnormals.h"

/* Elements of an operand of which several are a factor: the bits of a bf16; an integer's lower 16, or all 8. */
static Val part(Emit *e, VRef operand)
{
    Val v = value(e, dot_uncast(e->k, operand));
    const DType of = (DType)e->k->inst.at[dot_uncast(e->k, operand)].dtype;
    if (dtype_bytes(of) > 2)
        v.v = LLVMBuildTrunc(e->b, v.v, v.vec ? l_vec(e, e->type[SC_I16]) : e->type[SC_I16], "");
    if (of == DT_BOOL)
        v.v = LLVMBuildZExt(e->b, v.v, v.vec ? l_vec(e, e->type[SC_I8]) : e->type[SC_I8], "");
    return v;
}

/* With as many bits an element as a factor has for it. */
static LV widened(Emit *e, const Contract *c, VRef operand, LV v)
{
    const DType of = (DType)e->k->inst.at[dot_uncast(e->k, operand)].dtype;
    LLVMTypeRef type = LLVMTypeOf(v), to = e->type[c->dot.each == 2 ? SC_I16 : SC_I8];
    if (LLVMGetTypeKind(type) == LLVMVectorTypeKind)
        to = LLVMVectorType(to, LLVMGetVectorSize(type));
    return dtype_bytes(of) > 1 ? v : LLVMBuildIntCast2(e->b, v, to, dtype_is_signed(of), "");
}

static LLVMTypeRef ints_of(Emit *e, unsigned bits, unsigned n) { return LLVMVectorType(LLVMIntTypeInContext(e->ctx, bits), n); }

/* Two or four of them as one element of the sums' type. Bytes change places before they are widened, which are half as many vectors. */
static LV together(Emit *e, const Contract *c, VRef operand, const Val *parts)
{
    LLVMTypeRef i32 = e->type[SC_I32], element = LLVMGetElementType(c->vector);
    unsigned n = (unsigned)e->lanes, each = (unsigned)c->dot.each;
    bool vec = false;
    LV all[4];
    for (unsigned i = 0; i < each; i++)
        vec |= n > 1 && parts[i].vec;
    if (!vec) {
        LV word = LLVMConstNull(i32);
        for (unsigned i = 0; i < each; i++) {
            LV wide = LLVMBuildZExt(e->b, widened(e, c, operand, parts[i].v), i32, "");
            word = LLVMBuildOr(e->b, word, LLVMBuildShl(e->b, wide, LLVMConstInt(i32, 32 / each * i, 0), ""), "");
        }
        return val_vector(e, (Val){.v = LLVMBuildBitCast(e->b, word, element, "")});
    }
    for (unsigned i = 0; i < each; i++)
        all[i] = val_vector(e, parts[i]);
    for (unsigned i = 0; i < each / 2; i++)
        all[i] = l_in_turns(e, all[2 * i], all[2 * i + 1]);
    if (each == 4)
        all[0] =
            l_in_turns(e, LLVMBuildBitCast(e->b, all[0], ints_of(e, 16, n), ""), LLVMBuildBitCast(e->b, all[1], ints_of(e, 16, n), ""));
    return LLVMBuildBitCast(e->b, each == 4 ? all[0] : widened(e, c, operand, all[0]), LLVMVectorType(element, n), "");
}

LV contract_flip(Emit *e, unsigned lanes)
{
    LV bits = LLVMConstInt(e->type[SC_I32], 0x80808080u, 0);
    return lanes > 1 ? l_splat_n(e, bits, lanes) : bits;
}

/* As the step multiplies it. */
static LV flipped(Emit *e, const Contract *c, int side, LV factor)
{
    return c->flips[side] ? LLVMBuildXor(e->b, factor, contract_flip(e, (unsigned)e->lanes), "") : factor;
}

/* What a band hands on to the product, and nobody stores? */
static bool is_of_band(const Emit *e, VRef operand)
{
    const KInst *n = &e->k->inst.at[operand];
    if (n->kind == KI_OP && n->op == OP_CAST)
        n = &e->k->inst.at[n->a];
    return n->kind == KI_LOAD && e->k->args.at[n->arg].band;
}

bool contract_flushes(const Emit *e, const Contract *c)
{
    return e->math == MATH_FAST && dtype_is_float(c->dot.acc) && c->dot.each == 1 &&
           (is_of_band(e, c->dot.operand[ROW_SIDE]) || is_of_band(e, c->dot.operand[LANE_SIDE]));
}

/* As the sums have it. Of a band numbers below the least normal become zeros where that is allowed: blocks of zeros are skipped. */
static LV factor_of(Emit *e, const Contract *c, VRef operand)
{
    LV v = val_vector(e, cast_emit(e, c->dot.in, c->dot.acc, value(e, operand)));
    if (!contract_flushes(e, c) || !is_of_band(e, operand))
        return v;
    return LLVMBuildSelect(e->b, subnormals_are(e, v), LLVMConstNull(LLVMTypeOf(v)), v, "");
}

LV contract_factor(Emit *e, const Contract *c, int side, LV k, int64_t n)
{
    VRef operand = c->dot.operand[side];
    Val parts[4];
    contract_k(e, k, false);
    if (c->dot.each == 1)
        return factor_of(e, c, operand);
    for (int64_t i = 0; i < c->dot.each; i++) {
        if (i > 0 && i < n) {
            contract_anew(e, LV_R);
            contract_k(e, l_add(e, k, l_i64(e, i)), false);
        }
        parts[i] = i < n ? part(e, operand) : (Val){.v = LLVMConstNull(LLVMTypeOf(parts[0].v)), .vec = parts[0].vec};
    }
    return flipped(e, c, side, together(e, c, operand, parts));
}

LV contract_factors(Emit *e, const Contract *c, int side, LV k)
{
    int lanes = e->lanes;
    VRef operand = c->dot.operand[side];
    lanes_change(e, lanes * (int)c->dot.each);
    contract_k(e, k, true);
    LV factors;
    if (c->dot.each > 1) {
        LV parts = widened(e, c, operand, val_vector(e, part(e, operand)));
        factors = LLVMBuildBitCast(e->b, parts, LLVMVectorType(LLVMGetElementType(c->vector), (unsigned)lanes), "");
    } else {
        factors = factor_of(e, c, operand);
    }
    lanes_change(e, lanes);
    return flipped(e, c, side, factors);
}

/* The instructions on 4, 8 or 16 sums. */
static LV step_of(Emit *e, const Contract *c, LV sum, LV a, LV b, unsigned n)
{
    static const char *const fours[] = {"llvm.x86.avx512.vpdpbusd.128", "llvm.x86.avx512.vpdpbusd.256", "llvm.x86.avx512.vpdpbusd.512"};
    static const char *const dots[] = {"llvm.x86.avx512bf16.dpbf16ps.128", "llvm.x86.avx512bf16.dpbf16ps.256",
                                       "llvm.x86.avx512bf16.dpbf16ps.512"};
    static const char *const multiply[] = {"llvm.x86.sse2.pmadd.wd", "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx512.pmaddw.d.512"};
    const bool ints = !dtype_is_float(c->dot.acc);
    if (c->dot.each == 4)
        return l_intrinsic(e, fours[n / 8], NULL, 0, (LV[]){sum, c->row_signed ? b : a, c->row_signed ? a : b}, 3);
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
        return step_of(e, c, sum, a, b, n);
    for (int i = 0; i < 3 && !vec; i++)
        in[i] = LLVMBuildInsertElement(e->b, LLVMGetPoison(LLVMVectorType(type, LEAST)), in[i], LLVMConstNull(e->type[SC_I32]), "");
    for (unsigned at = 0; at < all; at += n)
        out[at / n] =
            step_of(e, c, l_part(e, in[0], (int)at, (int)n), l_part(e, in[1], (int)at, (int)n), l_part(e, in[2], (int)at, (int)n), n);
    if (!vec)
        return LLVMBuildExtractElement(e->b, out[0], LLVMConstNull(e->type[SC_I32]), "");
    return all < n ? l_part(e, out[0], 0, (int)all) : l_join(e, out, all / n);
}

LV contract_steps_of(Emit *e, const Contract *c, LV points) { return l_ceil_div(e, points, l_i64(e, c->dot.each)); }

void contract_steps(Emit *e, const Contract *c, LV from, LV k1, const char *name, StepFn *body, void *user)
{
    int64_t known;
    LV each = l_i64(e, c->dot.each), whole = c->dot.each == 1 ? k1 : l_add(e, from, l_mul(e, l_div(e, l_sub(e, k1, from), each), each));
    Loop l = loop_begin(e, from, whole, each, name);
    body(e, c, &l, c->dot.each, user);
    loop_end(e, &l);
    for (int64_t n = 1; n < c->dot.each; n++) {
        if (l_is_const(c->n_k, &known) && known % c->dot.each != n)
            continue;
        LV these = LLVMBuildICmp(e->b, LLVMIntEQ, l_sub(e, k1, whole), l_i64(e, n), "");
        Loop rest = loop_begin(e, whole, LLVMBuildSelect(e->b, these, k1, whole, ""), each, "rest"); /* once, or not at all */
        body(e, c, &rest, n, user);
        loop_end(e, &rest);
    }
}

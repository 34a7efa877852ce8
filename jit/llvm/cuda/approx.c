/*
 * Fast mode: f32 functions by the device's approximate instructions, where an error bound can be
 * stated in units in the last place over all inputs (ir/accuracy_cuda.def has it, and the
 * documented bounds of the instructions that it follows from).
 *
 *     exp x        2^n * ex2 y, n the integer nearest to x log2 e, y the rest
 *                  ex2 takes y to 2 units, but what an error in y makes of a large y is up to 45
 *     sigmoid x    1 / (1 + 2^n P) as 2^-n / (2^-n + P), with 2^n P = exp -x as above
 *                  nothing overflows, and small results keep their digits
 *     tanh x       sign of x times 1 - 2 / (ex2(2 |x| log2 e) + 1), from 0.55 on; an odd polynomial below
 *                  tanh.approx where the result is rounded to f16 or bf16
 *
 * Each is a handful of instructions: the device issues one at a time for all units, and a sum over such functions is limited
 * by that, not by memory (tests/unit/test_ptx_quality.c counts them).
 *
 * Not used: lg2 (its error is absolute around 1), sin and cos (the same around their zeros). A
 * division that the program asks for stays rounded: x / x is 1, and the mean of equal numbers is
 * that number, which normalisations rely on. 1 / x is no division but a reciprocal (ir/rules.def). No result is flushed to zero:
 * instructions that would do so are used where theirs is a normal number, or where what it does not add up to is lost anyway. NaN,
 * infinities, zeros and their signs come out as the expansions have them.
 */
#include "jit/llvm/cuda/cuda.h"

typedef enum Instruction { EX2, EX2_NORMAL, RCP, RCP_NORMAL, RSQRT, TANH, FMA_SAT } Instruction;

static const struct {
    const char *text;
    unsigned operands;
} instructions[] =
    {
        [EX2] = {"ex2.approx.f32 $0, $1;", 1},
        [EX2_NORMAL] = {"ex2.approx.ftz.f32 $0, $1;", 1}, /* a third of the machine code of the other */
        [RCP] = {"rcp.approx.f32 $0, $1;", 1},
        [RCP_NORMAL] = {"rcp.approx.ftz.f32 $0, $1;", 1},
        [RSQRT] = {"rsqrt.approx.f32 $0, $1;", 1},
        [TANH] = {"tanh.approx.f32 $0, $1;", 1},
        [FMA_SAT] = {"fma.rn.sat.f32 $0, $1, $2, $3;", 3}, /* to [0, 1]; NaN gives 0 */
};

static LV one_lane(Emit *e, Instruction which, LV *in)
{
    static const char *const constraints[] = {"=f,f", "=f,f,f", "=f,f,f,f"};
    LLVMTypeRef f32 = e->type[SC_F32], params[3] = {f32, f32, f32};
    unsigned n = instructions[which].operands;
    const char *text = instructions[which].text, *operands = constraints[n - 1];
    LLVMTypeRef type = LLVMFunctionType(f32, params, n, 0);
    LV call = LLVMGetInlineAsm(type, text, strlen(text), operands, strlen(operands), 0, 0, LLVMInlineAsmDialectATT, 0);
    return LLVMBuildCall2(e->b, type, call, in, n, "");
}

/* On scalars, or lane by lane. */
static LV instruction(Emit *e, Instruction which, const LV *operands)
{
    LLVMTypeRef type = LLVMTypeOf(operands[0]);
    if (LLVMGetTypeKind(type) != LLVMVectorTypeKind)
        return one_lane(e, which, (LV *)operands);
    LV all = LLVMGetPoison(type);
    for (unsigned i = 0; i < LLVMGetVectorSize(type); i++) {
        LV at = LLVMConstInt(e->type[SC_I32], i, 0), in[3];
        for (unsigned o = 0; o < instructions[which].operands; o++)
            in[o] = LLVMBuildExtractElement(e->b, operands[o], at, "");
        all = LLVMBuildInsertElement(e->b, all, one_lane(e, which, in), at, "");
    }
    return all;
}

static LV approximate(Emit *e, Instruction which, LV x) { return instruction(e, which, &x); }

static LV number(Emit *e, LV like, double value)
{
    bool vec = LLVMGetTypeKind(LLVMTypeOf(like)) == LLVMVectorTypeKind;
    return l_const(e, SC_F32, scalar_from_double(DT_F32, value), vec);
}

static LV fma3(Emit *e, LV a, LV b, LV c)
{
    LLVMTypeRef type = LLVMTypeOf(a);
    return l_intrinsic(e, "llvm.fma", &type, 1, (LV[]){a, b, c}, 3);
}

static LV fma_by(Emit *e, LV a, double b, LV c) { return fma3(e, a, number(e, a, b), c); }

/* x, but `bound` where it is beyond it; a NaN stays. */
static LV at_most(Emit *e, LV x, double bound)
{
    LV b = number(e, x, bound);
    LLVMTypeRef type = LLVMTypeOf(x);
    if (e->cuda->sm >= 80 && e->cuda->ptx >= 70) /* one instruction */
        return l_intrinsic(e, "llvm.minimum", &type, 1, (LV[]){x, b}, 2);
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealOGT, x, b, ""), b, x, "");
}

static LV at_least(Emit *e, LV x, double bound)
{
    LV b = number(e, x, bound);
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealOLT, x, b, ""), b, x, "");
}

static LV magnitude(Emit *e, LV x)
{
    LLVMTypeRef type = LLVMTypeOf(x);
    return l_intrinsic(e, "llvm.fabs", &type, 1, &x, 1);
}

static LLVMTypeRef integers_like(Emit *e, LV x)
{
    LLVMTypeRef type = LLVMTypeOf(x), i32t = e->type[SC_I32];
    return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMVectorType(i32t, LLVMGetVectorSize(type)) : i32t;
}

static LV as_integers(Emit *e, LV x) { return LLVMBuildBitCast(e->b, x, integers_like(e, x), ""); }

static LV integer(Emit *e, LV like, uint32_t value)
{
    LLVMTypeRef type = LLVMTypeOf(like);
    LV one = LLVMConstInt(e->type[SC_I32], value, 0);
    return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? l_splat_n(e, one, LLVMGetVectorSize(type)) : one;
}

static const double LOG2E = 0x1.715476p+0, LOG2E_REST = 0x1.4ae0bf85ddf44p-26;
static const double WHOLE = 0x1.8p+23; /* added to a number, leaves its nearest integer in the last bits */

/*
 * exp(sign x) = 2^n * *power, n the integer next to sign x log2 e within [least, most]: *power is about 1, except where n is
 * held back. Returns 2^(sign n), made of bits: WHOLE plus its exponent as f32 has it is what the fma leaves.
 */
static LV split_exp(Emit *e, LV x, int sign, int least, int most, LV *power)
{
    double span = most - least, zero = WHOLE + 127;
    LV part = instruction(e, FMA_SAT, (LV[]){x, number(e, x, sign * LOG2E / span), number(e, x, -least / span)});
    LV whole = fma_by(e, part, sign * span, number(e, x, zero + sign * least));
    LV minus_n = sign > 0 ? LLVMBuildFSub(e->b, number(e, x, zero), whole, "") : LLVMBuildFSub(e->b, whole, number(e, x, zero), "");
    LV rest = fma_by(e, x, sign * LOG2E_REST, fma_by(e, x, sign * LOG2E, minus_n));
    *power = approximate(e, EX2_NORMAL, rest);
    LV bits = LLVMBuildShl(e->b, as_integers(e, whole), integer(e, x, 23), "");
    return LLVMBuildBitCast(e->b, bits, LLVMTypeOf(x), "");
}

static LV emit_exp(Emit *e, LV x)
{
    LV power, scale = split_exp(e, x, 1, -126, 126, &power);
    return LLVMBuildFMul(e->b, power, scale, "");
}

/* sigmoid x = *scale * the result; exp -x down to 2^-30, which adds nothing to 1. */
static LV split_sigmoid(Emit *e, LV x, LV *scale)
{
    LV power;
    *scale = split_exp(e, x, -1, -30, 126, &power);
    return approximate(e, RCP_NORMAL, LLVMBuildFAdd(e->b, *scale, power, ""));
}

static LV emit_sigmoid(Emit *e, LV x)
{
    LV scale, below = split_sigmoid(e, x, &scale);
    return at_most(e, LLVMBuildFMul(e->b, scale, below, ""), 1);
}

static LV emit_silu(Emit *e, LV x)
{
    LV scale, below = split_sigmoid(e, x, &scale);
    return LLVMBuildFMul(e->b, scale, LLVMBuildFMul(e->b, x, below, ""), "");
}

/*
 * The polynomial is tanh x / x - 1 over x^2, to 1.1e-9 relative to tanh x. The large ones need no more care than this: what E is
 * wrong by is divided by (E + 1)^2.
 */
static LV emit_tanh(Emit *e, LV x)
{
    static const double odd[] = {-0x1.9b302p-8, 0x1.593dp-6, -0x1.b9287ap-5, 0x1.110d26p-3, -0x1.55554ap-2};
    LV z = LLVMBuildFMul(e->b, x, x, ""), p = number(e, x, odd[0]), a = magnitude(e, x);
    for (size_t i = 1; i < sizeof odd / sizeof *odd; i++)
        p = fma3(e, p, z, number(e, x, odd[i]));
    LV small = fma3(e, x, LLVMBuildFMul(e->b, p, z, ""), x);
    LV power = approximate(e, EX2_NORMAL, LLVMBuildFMul(e->b, a, number(e, x, 2 * LOG2E), ""));
    LV rest = approximate(e, RCP_NORMAL, LLVMBuildFAdd(e->b, power, number(e, x, 1), ""));
    LV large = fma_by(e, rest, -2, number(e, x, 1)), near = LLVMBuildFCmp(e->b, LLVMRealOLT, a, number(e, x, 0.55), "");
    LV r = as_integers(e, LLVMBuildSelect(e->b, near, small, large, ""));
    LV sign = LLVMBuildAnd(e->b, as_integers(e, x), integer(e, x, 0x80000000u), ""); /* of -0, too */
    return LLVMBuildBitCast(e->b, LLVMBuildOr(e->b, r, sign, ""), LLVMTypeOf(x), "");
}

static LV emit_tanh_half(Emit *e, LV x) { return at_least(e, at_most(e, approximate(e, TANH, x), 1), -1); }

bool approximate_cuda(Emit *e, Op op, DType rounded, const Val *in, Val *out)
{
    LV x = in[0].v, r = NULL;
    if (op == OP_EXP)
        r = emit_exp(e, x);
    else if (op == OP_EXP2)
        r = approximate(e, EX2, x);
    else if (op == OP_SIGMOID)
        r = emit_sigmoid(e, x);
    else if (op == OP_SILU)
        r = emit_silu(e, x);
    else if (op == OP_RSQRT)
        r = approximate(e, RSQRT, x);
    else if (op == OP_RECIPROCAL)
        r = approximate(e, RCP, x);
    else if (op == OP_TANH)
        r = rounded != DT_F32 && e->cuda->ptx >= 70 ? emit_tanh_half(e, x) : emit_tanh(e, x);
    *out = (Val){.v = r, .vec = in[0].vec};
    return r != NULL;
}

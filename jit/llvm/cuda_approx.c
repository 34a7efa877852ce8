/*
 * Fast mode: f32 functions by the device's approximate instructions, where an error bound can be
 * stated in units in the last place over all inputs (ir/accuracy_cuda.def has it, and the
 * documented bounds of the instructions that it follows from).
 *
 *     exp x        2^y (1 + ln 2 * d), y = x log2 e rounded, d what y misses
 *                  ex2 takes y to 2 units, but what an error in y itself makes is up to 45
 *     sigmoid x    (x < 0 ? E : 1) / (1 + E), E = exp -|x|
 *                  nothing overflows, and small results keep their digits
 *     tanh x       its expansion, but for the division
 *                  tanh.approx where the result is rounded to f16 or bf16
 *
 * Not used: lg2 (its error is absolute around 1), sin and cos (the same around their zeros). A
 * division that the program asks for stays rounded: x / x is 1, and the mean of equal numbers is
 * that number, which normalisations rely on. Nothing flushes subnormals. NaN, infinities, zeros and
 * their signs come out as the expansions have them.
 */
#include "jit/llvm/cuda.h"

typedef enum Instruction { EX2, RCP, RSQRT, TANH, DIV_FULL } Instruction;

static const char *const text[] = {[EX2] = "ex2.approx.f32 $0, $1;",
                                   [RCP] = "rcp.approx.f32 $0, $1;",
                                   [RSQRT] = "rsqrt.approx.f32 $0, $1;",
                                   [TANH] = "tanh.approx.f32 $0, $1;",
                                   [DIV_FULL] = "div.full.f32 $0, $1, $2;"};

static LV one_lane(Emit *e, Instruction which, LV *in, unsigned n)
{
    LLVMTypeRef f32 = e->type[SC_F32], params[2] = {f32, f32};
    LLVMTypeRef type = LLVMFunctionType(f32, params, n, 0);
    const char *constraints = n == 2 ? "=f,f,f" : "=f,f";
    LV call = LLVMGetInlineAsm(type, text[which], strlen(text[which]), constraints,
                               strlen(constraints), 0, 0, LLVMInlineAsmDialectATT, 0);
    return LLVMBuildCall2(e->b, type, call, in, n, "");
}

/* On scalars, or lane by lane. */
static LV approximate(Emit *e, Instruction which, LV a, LV b)
{
    LLVMTypeRef type = LLVMTypeOf(a);
    if (LLVMGetTypeKind(type) != LLVMVectorTypeKind)
        return one_lane(e, which, (LV[]){a, b}, b ? 2 : 1);
    LV all = LLVMGetPoison(type);
    for (unsigned i = 0; i < LLVMGetVectorSize(type); i++) {
        LV at = LLVMConstInt(e->type[SC_I32], i, 0),
           in[2] = {LLVMBuildExtractElement(e->b, a, at, "")};
        if (b)
            in[1] = LLVMBuildExtractElement(e->b, b, at, "");
        all = LLVMBuildInsertElement(e->b, all, one_lane(e, which, in, b ? 2 : 1), at, "");
    }
    return all;
}

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

/* x, but `bound` where x is beyond it; a NaN stays. */
static LV limit(Emit *e, LV x, LLVMRealPredicate beyond, double bound)
{
    LV b = number(e, x, bound);
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, beyond, x, b, ""), b, x, "");
}

static LV magnitude(Emit *e, LV x)
{
    LLVMTypeRef type = LLVMTypeOf(x);
    return l_intrinsic(e, "llvm.fabs", &type, 1, &x, 1);
}

/* Beyond the limits the result is 0 or infinite, and y stays finite. */
static LV emit_exp(Emit *e, LV x)
{
    static const double log2e = 0x1.715476p+0, log2e_rest = 0x1.4ae0bf85ddf44p-26,
                        ln2 = 0x1.62e42fefa39efp-1;
    x = limit(e, limit(e, x, LLVMRealOGT, 89), LLVMRealOLT, -105);
    LV y = LLVMBuildFMul(e->b, x, number(e, x, log2e), "");
    LV missed = fma3(e, x, number(e, x, log2e), LLVMBuildFNeg(e->b, y, ""));
    missed = fma3(e, x, number(e, x, log2e_rest), missed);
    LV factor = fma3(e, missed, number(e, x, ln2), number(e, x, 1));
    return LLVMBuildFMul(e->b, approximate(e, EX2, y, NULL), factor, "");
}

static LV emit_sigmoid(Emit *e, LV x)
{
    LV one = number(e, x, 1), power = emit_exp(e, LLVMBuildFNeg(e->b, magnitude(e, x), ""));
    LV above = LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealOLT, x, number(e, x, 0), ""),
                               power, one, "");
    LV below = approximate(e, RCP, LLVMBuildFAdd(e->b, one, power, ""), NULL);
    return limit(e, LLVMBuildFMul(e->b, above, below, ""), LLVMRealOGT, 1);
}

static LV emit_tanh(Emit *e, LV x)
{
    LV r = approximate(e, TANH, x, NULL);
    return limit(e, limit(e, r, LLVMRealOGT, 1), LLVMRealOLT, -1);
}

bool approximate_cuda(Emit *e, Op op, DType rounded, const Val *in, Val *out)
{
    LV x = in[0].v, r = NULL;
    if (op == OP_EXP)
        r = emit_exp(e, x);
    else if (op == OP_EXP2)
        r = approximate(e, EX2, x, NULL);
    else if (op == OP_SIGMOID)
        r = emit_sigmoid(e, x);
    else if (op == OP_RSQRT)
        r = approximate(e, RSQRT, x, NULL);
    else if (op == OP_RECIPROCAL)
        r = approximate(e, RCP, x, NULL);
    else if (op == OP_TANH && rounded != DT_F32 && e->cuda->ptx >= 70)
        r = emit_tanh(e, x);
    *out = (Val){.v = r, .vec = in[0].vec};
    return r != NULL;
}

/* Only tanh's, (E - 1) / (E + 1) with E = exp 2|x|, which is to be 1 where E is large and never
 * more. */
LV divide_cuda(Emit *e, Op op, LV a, LV b)
{
    if (op != OP_TANH)
        return NULL;
    LV q = approximate(e, DIV_FULL, a, b), one = number(e, a, 1);
    LV large = LLVMBuildFCmp(e->b, LLVMRealOGT, a, number(e, a, 0x1p26), "");
    LV above = LLVMBuildFCmp(e->b, LLVMRealOGT, q, one, "");
    return LLVMBuildSelect(e->b, LLVMBuildOr(e->b, large, above, ""), one, q, "");
}

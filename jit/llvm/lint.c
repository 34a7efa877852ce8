/*
 * What no instruction of ours may be, looked at in every module before LLVM's passes see it. A few nanoseconds an instruction; what is
 * found is an error of this folder, so the kernel is refused (ST_INTERNAL).
 *
 * - nsw, nuw, exact, nneg, disjoint, inbounds, fast-math flags: they are promises, and user data reaches every instruction.
 * - fptosi and fptoui, undefined where the number does not fit: only by l_float_to_int, which makes any number of that, or whose callers have
 *   made it fit.
 * - masked accesses that are not one instruction of the machine: LLVM 19 loses masks that it splits or widens (cpu/tails.c has the story).
 *
 * KILN_TEST_FAIL=lint:NAME puts one of them in, which shows that it is found.
 */
#include "jit/llvm/session.h"

#include <stdio.h>

static const char fits[] = "kiln.fits";

LV l_float_to_int(Emit *e, LLVMOpcode op, LV v, LLVMTypeRef type)
{
    LV i = LLVMBuildCast(e->b, op, v, type, "");
    if (LLVMIsAInstruction(i))
        LLVMSetMetadata(i, LLVMGetMDKindIDInContext(e->ctx, fits, sizeof fits - 1), LLVMMDNodeInContext(e->ctx, NULL, 0));
    return op == LLVMFPToSI ? LLVMBuildFreeze(e->b, i, "") : i;
}

/* The flag that an instruction has; NULL: none. */
static const char *flag_of(LV v)
{
    LLVMOpcode op = LLVMGetInstructionOpcode(v);
    switch (op) {
    case LLVMAdd:
    case LLVMSub:
    case LLVMMul:
    case LLVMShl: return LLVMGetNSW(v) ? "nsw" : LLVMGetNUW(v) ? "nuw" : NULL;
    case LLVMUDiv:
    case LLVMSDiv:
    case LLVMLShr:
    case LLVMAShr: return LLVMGetExact(v) ? "exact" : NULL;
    case LLVMOr: return LLVMGetIsDisjoint(v) ? "disjoint" : NULL;
    case LLVMZExt: return LLVMGetNNeg(v) ? "nneg" : NULL;
    case LLVMGetElementPtr: return LLVMIsInBounds(v) ? "inbounds" : NULL;
    default: return LLVMCanValueUseFastMathFlags(v) && LLVMGetFastMathFlags(v) ? "fast-math flags" : NULL;
    }
}

/* One masked load or store of contiguous elements: one instruction? */
static bool whole_register(const Session *s, LLVMTypeRef vector)
{
    LLVMTypeRef element = LLVMGetElementType(vector);
    LLVMTypeKind kind = LLVMGetTypeKind(element);
    unsigned lanes = LLVMGetVectorSize(vector), most = s->e.bits == 512 ? 512 : 256;
    unsigned bits = kind == LLVMFloatTypeKind     ? 32
                    : kind == LLVMDoubleTypeKind  ? 64
                    : kind == LLVMIntegerTypeKind ? LLVMGetIntTypeWidth(element)
                                                  : 0;
    return (bits * lanes == 128 || bits * lanes == 256 || bits * lanes == 512) && bits * lanes <= most && bits >= (most == 512 ? 8 : 32);
}

static bool no_mask(LV mask) { return mask == LLVMConstAllOnes(LLVMTypeOf(mask)); }

/* A gather or scatter: without a mask, or one instruction? */
static bool whole_gather(const Session *s, LV ptrs, LV mask)
{
    return no_mask(mask) || (s->e.bits == 512 && LLVMGetVectorSize(LLVMTypeOf(ptrs)) <= 8);
}

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static bool call_allowed(const Session *s, LV call)
{
    size_t n;
    const char *name = LLVMGetValueName2(LLVMGetCalledValue(call), &n);
    if (!starts(name, "llvm.masked.") && !starts(name, "llvm.vp."))
        return true;
    if (s->e.bits == 0) /* CUDA: there is no such thing */
        return false;
    if (starts(name, "llvm.masked.load."))
        return whole_register(s, LLVMTypeOf(call));
    if (starts(name, "llvm.masked.store."))
        return whole_register(s, LLVMTypeOf(LLVMGetOperand(call, 0)));
    if (starts(name, "llvm.masked.gather."))
        return whole_gather(s, LLVMGetOperand(call, 0), LLVMGetOperand(call, 2));
    return starts(name, "llvm.masked.scatter.") && whole_gather(s, LLVMGetOperand(call, 1), LLVMGetOperand(call, 3));
}

/* What is wrong with an instruction; NULL: nothing. */
static const char *fault_of(const Session *s, LV v, unsigned fits_kind)
{
    LLVMOpcode op = LLVMGetInstructionOpcode(v);
    if ((op == LLVMFPToSI || op == LLVMFPToUI) && !LLVMGetMetadata(v, fits_kind))
        return "a float to int whose operand nobody made fit";
    if (op == LLVMCall && LLVMIsAFunction(LLVMGetCalledValue(v)) && !call_allowed(s, v))
        return "a masked access that is more than one instruction";
    return flag_of(v);
}

Status lint_ir(const Session *s)
{
    unsigned kind = LLVMGetMDKindIDInContext(s->e.ctx, fits, sizeof fits - 1);
    for (LV fn = LLVMGetFirstFunction(s->e.module); fn; fn = LLVMGetNextFunction(fn))
        for (LLVMBasicBlockRef b = LLVMGetFirstBasicBlock(fn); b; b = LLVMGetNextBasicBlock(b))
            for (LV v = LLVMGetFirstInstruction(b); v; v = LLVMGetNextInstruction(v)) {
                const char *fault = fault_of(s, v, kind);
                if (!fault)
                    continue;
                char *text = LLVMPrintValueToString(v);
                Status status = fail(ST_INTERNAL, "kernel %s: %s in its IR: %s", s->name, fault, text);
                LLVMDisposeMessage(text);
                return status;
            }
    return ST_OK;
}

/* ---- the test hook ---- */

typedef enum Spoil {
    SPOIL_NSW,
    SPOIL_NUW,
    SPOIL_EXACT,
    SPOIL_INBOUNDS,
    SPOIL_FAST,
    SPOIL_FPTOSI,
    SPOIL_FPTOUI,
    SPOIL_MASK,
    SPOIL_COUNT
} Spoil;

static void spoil(Emit *e, Spoil what)
{
    LV at = LLVMBuildAlloca(e->b, e->type[SC_I64], ""), x = l_load(e, e->type[SC_I64], at, 8), v;
    switch (what) {
    case SPOIL_NSW: LLVMBuildNSWAdd(e->b, x, x, ""); break;
    case SPOIL_NUW: LLVMBuildNUWMul(e->b, x, x, ""); break;
    case SPOIL_EXACT: LLVMBuildExactSDiv(e->b, x, x, ""); break;
    case SPOIL_INBOUNDS: LLVMBuildInBoundsGEP2(e->b, e->type[SC_I8], at, &x, 1, ""); break;
    case SPOIL_FAST:
        v = LLVMBuildSIToFP(e->b, x, e->type[SC_F64], "");
        LLVMSetFastMathFlags(LLVMBuildFAdd(e->b, v, v, ""), LLVMFastMathNoNaNs);
        break;
    case SPOIL_FPTOSI: LLVMBuildFPToSI(e->b, LLVMBuildSIToFP(e->b, x, e->type[SC_F64], ""), e->type[SC_I32], ""); break;
    case SPOIL_FPTOUI: LLVMBuildFPToUI(e->b, LLVMBuildSIToFP(e->b, x, e->type[SC_F64], ""), e->type[SC_I32], ""); break;
    case SPOIL_MASK: {
        LLVMTypeRef wide = LLVMVectorType(e->type[SC_F32], 32);
        LV args[4] = {at, LLVMConstInt(e->type[SC_I32], 4, 0), LLVMConstNull(LLVMVectorType(e->type[SC_I1], 32)), LLVMConstNull(wide)};
        l_intrinsic(e, "llvm.masked.load", (LLVMTypeRef[]){wide, LLVMTypeOf(at)}, 2, args, 4);
        break;
    }
    case SPOIL_COUNT: break;
    }
}

void lint_spoil(Session *s)
{
    static const char *const names[SPOIL_COUNT] = {"nsw", "nuw", "exact", "inbounds", "fast", "fptosi", "fptoui", "mask"};
    char hook[32];
    option_text(OPT_TEST_FAIL, hook, sizeof hook);
    LV fn = starts(hook, "lint:") ? LLVMGetFirstFunction(s->e.module) : NULL;
    while (fn && LLVMIsDeclaration(fn))
        fn = LLVMGetNextFunction(fn);
    for (int i = 0; fn && i < SPOIL_COUNT; i++)
        if (strcmp(hook + 5, names[i]) == 0) {
            LLVMPositionBuilderBefore(s->e.b, LLVMGetFirstInstruction(LLVMGetEntryBasicBlock(fn)));
            spoil(&s->e, (Spoil)i);
        }
}

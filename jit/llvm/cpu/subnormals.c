/*
 * Numbers below the least normal as zeros, where they are read and where they would be made: two bits of MXCSR, which holds for vectors of any width.
 * An instruction that meets one takes some CPUs forty times as long.
 */
#include "jit/llvm/build.h"
#include "jit/llvm/cpu/subnormals.h"

#include <float.h>

static void load_mode(Emit *e, LV from) { l_intrinsic(e, "llvm.x86.sse.ldmxcsr", NULL, 0, &from, 1); }

LV subnormals_flush(Emit *e)
{
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x40 };
    LLVMTypeRef i32 = e->type[SC_I32];
    LV before = l_alloca(e, i32, 0, "mode"), now = l_alloca(e, i32, 0, "flushed"),
       bits = LLVMConstInt(i32, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO, 0);
    l_intrinsic(e, "llvm.x86.sse.stmxcsr", NULL, 0, &before, 1);
    l_store(e, LLVMBuildOr(e->b, l_load(e, i32, before, 4), bits, ""), now, 4);
    load_mode(e, now);
    return before;
}

void subnormals_keep(Emit *e, LV before) { load_mode(e, before); }

bool subnormals_flushed(const Emit *e) { return e->math == MATH_FAST && e->options->value[OPT_SUBNORMALS] == SUBNORMALS_FLUSH; }

LV subnormals_are(Emit *e, LV v)
{
    LLVMTypeRef form = LLVMTypeOf(v);
    const bool vec = LLVMGetTypeKind(form) == LLVMVectorTypeKind;
    LLVMTypeRef element = vec ? LLVMGetElementType(form) : form;
    LV bound = LLVMConstReal(element, element == e->type[SC_F64] ? DBL_MIN : FLT_MIN);
    bound = vec ? l_splat_n(e, bound, LLVMGetVectorSize(form)) : bound;
    return LLVMBuildFCmp(e->b, LLVMRealOLT, l_intrinsic(e, "llvm.fabs", &form, 1, &v, 1), bound, "");
}

bool subnormals_normal(Emit *e, DType dtype, Val *v)
{
    if (!subnormals_flushed(e))
        return false;
    if (!v || (dtype != DT_F32 && dtype != DT_F64))
        return true;
    LLVMTypeRef form = LLVMTypeOf(v->v);
    LV zero = l_intrinsic(e, "llvm.copysign", &form, 1, (LV[]){LLVMConstNull(form), v->v}, 2);
    v->v = LLVMBuildSelect(e->b, subnormals_are(e, v->v), zero, v->v, "");
    return true;
}

LV subnormals_body(Emit *e, LV fn)
{
    enum { MOST = 8 };
    LLVMTypeRef type = LLVMGlobalGetValueType(fn);
    LV body = LLVMAddFunction(e->module, "flushed", type), args[MOST];
    LLVMSetLinkage(body, LLVMInternalLinkage);
    l_attribute(e, body, "noinline"); /* nothing moves to where the mode is another */
    function_open(e, fn, NULL);
    LV before = subnormals_flush(e);
    for (unsigned i = 0; i < LLVMCountParams(fn); i++)
        args[i] = LLVMGetParam(fn, i);
    LLVMBuildCall2(e->b, type, body, args, LLVMCountParams(fn), "");
    subnormals_keep(e, before);
    LLVMBuildRetVoid(e->b);
    return body;
}

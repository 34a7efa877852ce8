/*
 * Divisions by sizes that only the launch knows, as 32-bit indices have them: the host finds a multiplier and a shift for each size
 * (grid_magic) and passes them behind the arguments (LaunchPlan.divisor). A quotient is a wide multiplication and a shift then, where the
 * instruction div.u32 stands for fifteen or so; a remainder is taken from it by another multiplication. Equal divisions of one number
 * are one, which LLVM sees.
 *
 * It holds for 0 <= a < 2^31, that is for all numbers that are used where a kernel has index_bits. Divisions of 64 bits stay as they are.
 */
#include "jit/llvm/cuda/cuda.h"

/* Half of a slot: 0 is the multiplier, 1 the shift. */
static LV half_of(Emit *e, uint32_t slot, int half)
{
    Place place = level_enter(e, LV_TASK);
    LV at = l_gep(e, e->type[SC_I32], e->block, l_i64(e, (int64_t)(e->k->args.n + slot) * 2 + half));
    LV v = l_load(e, e->type[SC_I32], at, 4);
    level_leave(e, place);
    return v;
}

/* All 64 bits of a product. As an instruction of LLVM's it would lose its form: what extends `by` to 64 bits moves out of the loop,
 * and the back end no longer sees that 32 bits are multiplied. */
static LV product(Emit *e, LV a, LV by)
{
    static const char text[] = "mul.wide.u32 $0, $1, $2;", operands[] = "=l,r,r";
    LLVMTypeRef i32t = e->type[SC_I32], type = LLVMFunctionType(e->type[SC_I64], (LLVMTypeRef[]){i32t, i32t}, 2, 0);
    LV multiply = LLVMGetInlineAsm(type, text, sizeof text - 1, operands, sizeof operands - 1, 0, 0, LLVMInlineAsmDialectATT, 0);
    LV in[2] = {LLVMBuildIntCast2(e->b, a, i32t, 0, ""), by};
    LV call = LLVMBuildCall2(e->b, type, multiply, in, 2, "");
    unsigned memory = LLVMGetEnumAttributeKindForName("memory", 6); /* none: equal ones are one */
    LLVMAddCallSiteAttribute(call, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->ctx, memory, 0));
    return call;
}

/* a, of index type or a vector of it, by node `size`. NULL: the block has no room for another divisor. */
static LV multiplied(Emit *e, LV a, uint16_t size)
{
    uint32_t slot;
    if (e->launch->node[size].op == LAUNCH_CONST || !grid_divide_by(e->launch, size, e->k->args.n, &slot))
        return NULL;
    LV by = half_of(e, slot, 0), shift = LLVMBuildZExt(e->b, half_of(e, slot, 1), e->type[SC_I64], "");
    LLVMTypeRef type = LLVMTypeOf(a);
    if (LLVMGetTypeKind(type) != LLVMVectorTypeKind)
        return LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, product(e, a, by), shift, ""), e->index, "");
    LV all = LLVMGetPoison(type);
    for (unsigned i = 0; i < LLVMGetVectorSize(type); i++) {
        LV lane = LLVMConstInt(e->type[SC_I32], i, 0), x = LLVMBuildExtractElement(e->b, a, lane, "");
        LV q = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, product(e, x, by), shift, ""), e->index, "");
        all = LLVMBuildInsertElement(e->b, all, q, lane, "");
    }
    return all;
}

/* Is it made of sizes and constants, as an axis size is? */
static bool is_size(const Kernel *k, IRef i)
{
    const Idx *x = &k->idx.at[i];
    switch ((IdxKind)x->kind) {
    case IX_CONST:
    case IX_ARG: return true;
    case IX_ADD:
    case IX_MUL: return is_size(k, x->a) && is_size(k, x->b);
    case IX_DIV:
    case IX_MOD:
    case IX_AXIS:
    case IX_VALUE: return false;
    }
    return false;
}

LV divide_cuda(Emit *e, LV a, IRef size)
{
    LaunchBuilder *p = e->launch;
    uint32_t n_nodes = p->n_nodes;
    bool full = p->full;
    if (!is_size(e->k, size))
        return NULL;
    uint16_t node = size_node(e, size);
    if (p->full || p->n_nodes > LAUNCH_NODES / 2) { /* the rest is for grids */
        p->n_nodes = n_nodes;
        p->full = full;
        return NULL;
    }
    return multiplied(e, a, node);
}

LV cuda_quotient(Emit *e, LV a, LV d, uint16_t size)
{
    LV q = e->k->index_bits && !LLVMIsConstant(d) ? multiplied(e, a, size) : NULL;
    return q ? q : l_div(e, a, d);
}

/* With wide indices LLVM tests at run time whether both fit 32 bits, as it does for all divisions of this target. */
LV cuda_divide(Emit *e, LV a, LV d, LV bound, uint16_t size)
{
    int64_t most, by;
    LLVMTypeRef i64t = e->type[SC_I64], i32t = e->type[SC_I32];
    if (e->k->index_bits)
        return LLVMBuildZExt(e->b, cuda_quotient(e, index_narrow(e, a), index_narrow(e, d), size), i64t, "");
    if (!l_is_const(bound, &most) || most > INT32_MAX || (l_is_const(d, &by) && (by <= 0 || by > INT32_MAX)))
        return l_div(e, a, d);
    LV q = LLVMBuildUDiv(e->b, LLVMBuildTrunc(e->b, a, i32t, ""), LLVMBuildTrunc(e->b, d, i32t, ""), "");
    return LLVMBuildZExt(e->b, q, i64t, "");
}

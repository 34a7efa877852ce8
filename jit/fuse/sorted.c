/*
 * An argsort as a kernel, for devices that sort by themselves (FORM_SORT). On a CPU it is a step of
 * its own, STEP_SORT.
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

enum { OUTER = 2, LINE, INNER }; /* arguments of both: in, out, then these sizes */

/* Bits of a place that stand beside the bits of an element: 32 where that makes one register pair
 * of both, which a guard may have to say. A program for lines of any length has 64. */
static uint64_t place_bits(const Graph *g, DType dtype, Dim n)
{
    bool fits = dtype_bytes(dtype) < 4 || (dtype_bytes(dtype) == 4 && spec_range(g, n, 0, UINT32_MAX, "sort"));
    return fits ? 32 : 64;
}

/* STEP_SORT becomes STEP_KERNEL. Sizes stay arguments even where they are known: the code is the
 * same. */
void sort_on_device(Graph *g, DType dtype, PlanStep *step)
{
    Kernel *k = kernel_new(g->arena);
    const PlanArg *args = step->args.at;
    k->form = FORM_SORT;
    k->cost = 1;
    VEC_PUSH(g->arena, k->args, (KArg){.kind = ARG_BUFFER, .dtype = (uint8_t)dtype});
    VEC_PUSH(g->arena, k->args, (KArg){.kind = ARG_BUFFER, .dtype = DT_I64, .written = true});
    for (int i = OUTER; i <= INNER; i++)
        VEC_PUSH(g->arena, k->args, (KArg){.kind = ARG_SIZE, .natural = true});
    VEC_PUSH(g->arena, k->args, (KArg){.kind = ARG_SCRATCH});
    IRef outer = kidx_arg(k, OUTER), n = kidx_arg(k, LINE), inner = kidx_arg(k, INNER);
    kernel_add_axis(k, AXIS_X, outer, 0);
    kernel_add_axis(k, AXIS_X, inner, 0);
    kernel_add_axis(k, AXIS_R, n, 0);
    IRef at = kidx_add(k, kidx_mul(k, kidx_axis(k, 0), n), kidx_axis(k, 2));
    at = kidx_add(k, kidx_mul(k, at, inner), kidx_axis(k, 1));
    KInst load = KINST(.kind = KI_LOAD, .dtype = (uint8_t)dtype), store = KINST(.kind = KI_STORE, .dtype = DT_I64);
    KInst sort = KINST(.kind = KI_SORT, .dtype = DT_I64, .mode = step->descending);
    load.idx = store.idx = at;
    sort.a = kernel_inst(k, load);
    sort.imm = place_bits(g, dtype, args[LINE].size);
    store.a = kernel_inst(k, sort);
    store.arg = 1;
    kernel_inst(k, store);
    step->kind = STEP_KERNEL;
    step->kernel = k;
    VEC_PUSH(g->arena, step->args, (PlanArg){.kind = BIND_SHARED, .size = DIM_NONE});
}

/*
 * An argsort is a step of its own, STEP_SORT; for devices that sort by themselves it is a kernel (FORM_SORT). A gather of what its own
 * argsort has sorted is a sort of the elements.
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
static void sort_on_device(Graph *g, DType dtype, PlanStep *step)
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

void form_sort(Fuser *f, Unit *u, Ref n)
{
    Graph *g = f->g;
    bool values = (f->flags[n] & NODE_SORTED) != 0;
    const Node *node = graph_node(g, values ? graph_node(g, n)->in[1] : n), *x = graph_node(g, node->in[0]);
    uint32_t from = dense_buffer(f, u, node->in[0]);
    Dim outer = dim_const(g, 1), inner = dim_const(g, 1);
    for (uint32_t i = 0; i < x->rank; i++) {
        if (i < node->attr.axis)
            outer = dim_mul(g, outer, x->dim[i]);
        else if (i > node->attr.axis)
            inner = dim_mul(g, inner, x->dim[i]);
    }
    PlanStep step = {
        .kind = STEP_SORT, .descending = node->attr.flag != 0, .values = values, .what = values ? "sort" : "argsort", .node = n};
    Dim along = x->rank ? x->dim[node->attr.axis] : dim_const(g, 1);
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_BUFFER, .buffer = from, .size = DIM_NONE});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_BUFFER, .buffer = buffer_for(f, n), .size = DIM_NONE});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = outer});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = along});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = inner});
    int64_t bytes = (int64_t)(dtype_bytes((DType)x->dtype) + dtype_bytes((DType)graph_node(g, n)->dtype));
    step.bytes = dim_mul(g, node_numel(g, n), dim_const(g, bytes));
    if (target_kind(&f->options->target)->sorts_by_kernels)
        sort_on_device(g, (DType)x->dtype, &step);
    VEC_PUSH(f->arena, u->steps, step);
    VEC_PUSH(f->arena, u->outputs, n);
}

/* A gather of sorted elements needs no places where nothing else reads them: the sort moves the elements themselves. */
void find_sorted(Fuser *f)
{
    const Graph *g = f->g;
    for (Ref n = 0; n < f->n && f->fuse && !target_kind(&f->options->target)->sorts_by_kernels; n++) {
        const Node *node = graph_node(g, n);
        if (!(f->flags[n] & NODE_LIVE) || node->op != OP_GATHER)
            continue;
        Ref places = node->in[1];
        const Node *sort = graph_node(g, places);
        if (sort->op != OP_ARGSORT || sort->in[0] != node->in[0] || sort->attr.axis != node->attr.axis ||
            f->user_at[places + 1] - f->user_at[places] != 1 || f->flags[places] & NODE_OUTPUT)
            continue;
        f->flags[n] |= NODE_SORTED;
        f->flags[places] &= (uint16_t)~NODE_LIVE;
    }
}

/* Sizes of a kernel as nodes of its launch plan (../launch_plan.h), for either target; and such a node as code, for what both ask. */
#include "jit/launch_plan.h"
#include "jit/llvm/build.h"

uint16_t size_node(Emit *e, IRef size)
{
    const Idx *x = &e->k->idx.at[size];
    LaunchBuilder *b = e->launch;
    switch ((IdxKind)x->kind) {
    case IX_CONST: return launch_const(b, x->value);
    case IX_ARG: return launch_arg(b, x->a);
    case IX_ADD: return launch_op(b, LAUNCH_ADD, size_node(e, x->a), size_node(e, x->b));
    case IX_MUL: return launch_op(b, LAUNCH_MUL, size_node(e, x->a), size_node(e, x->b));
    case IX_DIV:
    case IX_MOD:
    case IX_AXIS:
    case IX_VALUE: break;
    }
    b->full = true; /* no size is made of these */
    return 0;
}

uint16_t axis_node(Emit *e, uint32_t axis) { return size_node(e, e->k->axes.at[axis].size); }

uint16_t axes_node(Emit *e, uint32_t first, uint32_t end)
{
    uint16_t n = launch_const(e->launch, 1);
    for (uint32_t a = first; a < end; a++)
        n = launch_op(e->launch, LAUNCH_MUL, n, axis_node(e, a));
    return n;
}

uint16_t tasks_node(Emit *e, uint16_t n, int64_t each) { return launch_op(e->launch, LAUNCH_CEIL_DIV, n, launch_const(e->launch, each)); }

/* `known`: by number, NULL: not yet. */
static LV value_of(Emit *e, uint16_t node, LV *known);

static LV compute(Emit *e, uint16_t node, LV *known)
{
    const LaunchNode *n = &e->launch->node[node];
    LaunchOp op = (LaunchOp)n->op;
    if (op == LAUNCH_CONST)
        return l_i64(e, n->value);
    if (op == LAUNCH_ARG)
        return argument(e, (uint32_t)n->value);
    if (op == LAUNCH_SMS || op == LAUNCH_OPS) { /* no code of a host's can tell */
        e->launch->full = true;
        return l_i64(e, 0);
    }
    LV a = value_of(e, n->a, known), b = value_of(e, n->b, known);
    switch (op) {
    case LAUNCH_ADD: return l_add(e, a, b);
    case LAUNCH_MUL: return l_mul(e, a, b);
    case LAUNCH_CEIL_DIV: return l_ceil_div(e, a, l_max(e, b, l_i64(e, 1)));
    case LAUNCH_CEIL_SHIFT: return l_ceil_div(e, a, l_i64(e, INT64_C(1) << e->launch->node[n->b].value));
    case LAUNCH_MIN: return l_min(e, a, b);
    case LAUNCH_MAX: return l_max(e, a, b);
    case LAUNCH_LESS: return LLVMBuildZExt(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, a, b, ""), e->type[SC_I64], "");
    case LAUNCH_CHOOSE: {
        LV test = LLVMBuildICmp(e->b, LLVMIntNE, a, l_i64(e, 0), "");
        return LLVMBuildSelect(e->b, test, b, value_of(e, n->c, known), "");
    }
    case LAUNCH_CONST:
    case LAUNCH_ARG:
    case LAUNCH_SMS:
    case LAUNCH_OPS: break;
    }
    return a;
}

static LV value_of(Emit *e, uint16_t node, LV *known)
{
    if (!known[node])
        known[node] = compute(e, node, known);
    return known[node];
}

LV node_value(Emit *e, uint16_t node)
{
    LV known[LAUNCH_NODES] = {NULL};
    return value_of(e, node, known);
}

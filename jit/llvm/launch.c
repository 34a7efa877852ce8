/* Sizes of a kernel as nodes of its launch plan (../launch_plan.h), for either target. */
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

/*
 * Loops, branches and calls: a step each, whose bodies are graphs that are planned by themselves.
 */
#include "jit/fuse/fuse.h"

#include "ir/body.h"

static void push_buffer(Fuser *f, PlanStep *step, uint32_t buffer)
{
    VEC_PUSH(f->g->arena, step->args, (PlanArg){.kind = buffer == NO_BUFFER ? BIND_NONE : BIND_BUFFER, .buffer = buffer, .size = DIM_NONE});
}

static uint8_t step_of(Op op) { return op == OP_LOOP ? STEP_LOOP : op == OP_COND ? STEP_COND : STEP_CALL; }

/* Bytes that a call is given and gives. */
static Dim call_bytes(Graph *g, const Node *node)
{
    Dim sum = dim_const(g, 0);
    for (uint32_t i = 0; i < node->n_in; i++) {
        int64_t size = (int64_t)dtype_bytes((DType)graph_node(g, node->in[i])->dtype);
        sum = dim_add(g, sum, dim_mul(g, node_numel(g, node->in[i]), dim_const(g, size)));
    }
    for (uint32_t k = 0; k < node->attr.n; k++) {
        BodyType type = body_result_type(g, node, k);
        Dim bytes = dim_const(g, (int64_t)dtype_bytes((DType)type.dtype));
        for (int d = 0; d < type.rank; d++)
            bytes = dim_mul(g, bytes, type.dim[d]);
        sum = dim_add(g, sum, bytes);
    }
    return sum;
}

/* A loop, branch or call, with all of its results that somebody reads. Its bodies are planned when nothing is tried any more. */
void form_body(Fuser *f, Unit *u, Ref n)
{
    Graph *g = f->g;
    const Node *node = graph_node(g, n);
    PlanStep step = {.kind = step_of((Op)node->op), .what = op_name((Op)node->op), .node = n};
    if (step.kind == STEP_CALL)
        step.what = arena_printf(g->arena, "call %s %s", node->callee->name, node->callee->version);
    for (uint32_t i = 0; i < node->n_in; i++)
        push_buffer(f, &step, dense_buffer(f, u, node->in[i]));
    uint32_t first = step.args.n, n_results = body_n_results(node);
    for (uint32_t k = 0; k < n_results; k++)
        push_buffer(f, &step, NO_BUFFER);
    for (uint32_t i = f->user_at[n]; i < f->user_at[n + 1]; i++) {
        Ref result = f->users[i];
        PlanArg *arg = &step.args.at[first + graph_node(g, result)->attr.n];
        arg->kind = BIND_BUFFER;
        arg->buffer = buffer_for(f, result);
        VEC_PUSH(f->arena, u->outputs, result);
    }
    if (node->op == OP_LOOP)
        VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = node->fact[0]});
    step.bytes = step.kind == STEP_CALL ? call_bytes(g, graph_node(g, n)) : dim_const(g, 0); /* its kernels' */
    VEC_PUSH(f->arena, u->steps, step);
}

/* Each body as a graph of its own. */
static Status plan_bodies_of(Fuser *f, PlanStep *step)
{
    const Node *node = graph_node(f->g, step->node);
    step->bodies = ARENA_ARRAY(f->g->arena, Plan, node->n_bodies);
    for (uint32_t b = 0; b < node->n_bodies; b++) {
        if (fuser_tells(f))
            fuser_tell(f, arena_printf(f->arena, "%s of %%%u:", body_name((Op)node->op, b), step->node));
        TRY(jit_plan_told(node->bodies[b], f->options, &step->bodies[b], f->told));
    }
    return ST_OK;
}

/* Loops that are kernels are planned before the buffers of the steps are placed: they are steps like others then. */
Status plan_loops(Fuser *f)
{
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        PlanStep *step = &f->plan->steps.at[s];
        if (step->kind != STEP_LOOP || !loop_may_be_kernel(f, step->node))
            continue;
        TRY(plan_bodies_of(f, step));
        (void)loop_as_kernel(f, s);
    }
    return ST_OK;
}

Status plan_bodies(Fuser *f)
{
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        PlanStep *step = &f->plan->steps.at[s];
        if ((step->kind == STEP_LOOP || step->kind == STEP_COND) && !step->bodies)
            TRY(plan_bodies_of(f, step));
    }
    return ST_OK;
}

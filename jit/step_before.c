/* Steps that make what another one reads. */
#include "jit/step_before.h"
#include "jit/kernel_facts.h"

#include <string.h>

StepBefore step_before(Graph *g, const PlanStep *of, PlanStep *step, DType in, DType out)
{
    const DType dtype[2] = {in, out};
    StepBefore x = {of, step, ARENA_ARRAY(g->arena, uint32_t, of->kernel->args.n + 1)};
    memset(x.arg, 0xff, sizeof *x.arg * (of->kernel->args.n + 1));
    step->kernel = kernel_new(g->arena);
    for (int i = 0; i < 2; i++) {
        VEC_PUSH(g->arena, step->kernel->args, (KArg){.kind = ARG_BUFFER, .dtype = (uint8_t)dtype[i], .written = i == 1});
        VEC_PUSH(g->arena, step->args, (PlanArg){.kind = BIND_BUFFER, .size = DIM_NONE});
    }
    return x;
}

IRef step_before_size(void *user, uint32_t arg)
{
    StepBefore *x = user;
    Kernel *k = x->step->kernel;
    if (x->arg[arg] == UINT32_MAX) {
        x->arg[arg] = k->args.n;
        VEC_PUSH(k->arena, k->args, x->of->kernel->args.at[arg]);
        VEC_PUSH(k->arena, x->step->args, x->of->args.at[arg]);
    }
    return kidx_arg(k, x->arg[arg]);
}

PlanBuffer buffer_before(const PlanBuffer *like, BufferKind kind, DType dtype, Dim numel)
{
    PlanBuffer b = *like;
    b.kind = (uint8_t)kind;
    b.dtype = (uint8_t)dtype;
    b.numel = numel;
    b.slot = NO_SLOT;
    b.alias_input = b.within = NO_BUFFER;
    b.first_step = b.last_step = 0;
    return b;
}

void plan_put_before(Plan *plan, Arena *arena, uint32_t at, const PlanStep *steps, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        VEC_PUSH(arena, plan->steps, steps[i]);
    memmove(plan->steps.at + at + n, plan->steps.at + at, sizeof *steps * (plan->steps.n - n - at));
    memcpy(plan->steps.at + at, steps, sizeof *steps * n);
    for (uint32_t b = 0; b < plan->bands.n; b++)
        plan->bands.at[b].first += plan->bands.at[b].first >= at ? n : 0;
}

static bool loaded_once(const Kernel *k, uint32_t arg)
{
    uint32_t loads = 0;
    for (VRef v = 0; v < k->inst.n; v++)
        loads += k->inst.at[v].kind == KI_LOAD && k->inst.at[v].arg == arg;
    return loads == 1;
}

bool may_be_made_before(const Kernel *k, VRef load)
{
    const KInst *n = &k->inst.at[load];
    if (n->kind != KI_LOAD || n->pred != VREF_NONE || index_through_value(k, n->idx))
        return false;
    const KArg *arg = &k->args.at[n->arg];
    return !arg->band && !arg->written && !arg->may_alias && !arg->panel && loaded_once(k, n->arg);
}

/* A step put before another one, which makes what that reads from then on: panels of a product (jit/panels.c), operands turned (jit/fuse/turn.c). */
#ifndef JIT_STEP_BEFORE_H
#define JIT_STEP_BEFORE_H

#include "jit/plan.h"

/* Its kernel is made of expressions of the other one's. */
typedef struct StepBefore {
    const PlanStep *of;
    PlanStep *step;
    uint32_t *arg; /* of it, for each of the other's; UINT32_MAX: none yet */
} StepBefore;

/* Its kernel has no axes yet; arguments 0 and 1 are what it reads and what it makes, whose buffers are named later. */
StepBefore step_before(Graph *g, const PlanStep *of, PlanStep *step, DType in, DType out);
/* KMap.size, of a StepBefore: sizes that both know. */
IRef step_before_size(void *x, uint32_t arg);

/* Its buffer: for as many elements, made of what is in `like`. */
PlanBuffer buffer_before(const PlanBuffer *like, BufferKind kind, DType dtype, Dim numel);
/* Steps in front of step `at`, before buffers are planned. */
void plan_put_before(Plan *plan, Arena *arena, uint32_t at, const PlanStep *steps, uint32_t n);

/* Can it be read from somewhere else? Where nothing asks for some of its elements only, through values, or twice. */
bool may_be_made_before(const Kernel *k, VRef load);

#endif

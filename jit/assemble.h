/* The last step of jit/compile.c: from what was planned to a program. */
#ifndef JIT_ASSEMBLE_H
#define JIT_ASSEMBLE_H

#include "jit/compile.h"
#include "jit/constants.h"
#include "jit/plan.h"

typedef struct Parts {
    const CompileRequest *request;
    const Graph *g;
    const Plan *plan;
    const Constants *constants; /* what has left the graph, to be computed once, ... */
    const Plan *constant_plans; /* ... and the plan of each */
    GuardBuilder *guards;
} Parts;

/* Fills p, which has its kernels: those of the graph's steps in their order, then those of the constants'. */
Status jit_assemble(const Parts *parts, Program *p);

#endif

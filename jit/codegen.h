/* From planned kernels to machine code: the step of jit/compile.c that takes most of its time. */
#ifndef JIT_CODEGEN_H
#define JIT_CODEGEN_H

#include "ir/base/progress.h"
#include "jit/compile.h"
#include "jit/plan.h"

typedef struct CodeRequest {
    const CompileRequest *compile;
    Arena *arena;
    const Plan *plan;
    void (*dump)(void *user, const char *stage, const char *text); /* for KILN_DUMP; NULL: no dump */
    void *user;
    const Progress *progress;
} CodeRequest;

/* The code of the plan's kernels in order of its steps, into kernels[0..*n) (also on failure: those that are there): kernels known by
 * their text are taken from the table, the others are emitted, on all CPUs, and entered. *fresh: how many. */
Status jit_code(const CodeRequest *request, ProgKernel *kernels, uint32_t *n, uint32_t *fresh);

#endif

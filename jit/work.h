/*
 * What a kernel computes, counted from its text: for KILN_LOG=perf, KILN_PERF, traces and kiln_last_call. Each value counts once, as often
 * as the axes that it depends on say, whatever the code does with it; so these are the least that the graph asks for:
 *
 *   flops      arithmetic on floats, each op 1; in a product of matrices a multiplication and its addition 2. Casts, choices and comparisons are none
 *   specials   functions that are worth storing rather than computing twice (exp, sin, sqrt: OPF_COSTLY)
 *   ops        what has to be issued for all but the specials, on lanes of 4 bytes: an op is 1, one on 8 bytes 2; a multiplication with its addition 1
 *   steps      the same for the specials, by their definitions (ir/expand*.c)
 *   halves     of the flops: in products of 16-bit floats, for which GPUs have units of their own
 *
 * A kernel is counted once, when somebody asks first, and the counts are kept with it. Under the evaluation lock.
 */
#ifndef JIT_WORK_H
#define JIT_WORK_H

#include "jit/program.h"

typedef struct Work {
    double flops, specials, ops, steps, halves;
} Work;

void work_add(Work *sum, const Work *more, double times);

/* What the step computes at these sizes (a program's size table). A sort, or without memory: nothing. */
Work step_work(const Program *program, const ProgStep *step, const int64_t *sizes);

#endif

/* A program prepared for repeats: the same sizes, other data (runtime/function/prepared.c). Made and freed under the evaluation lock; in one run at a
 * time. */
#ifndef RUNTIME_PREPARED_H
#define RUNTIME_PREPARED_H

#include "runtime/eval/launch.h"

typedef struct Prepared Prepared;

/* Borrows the program: as a CacheMemo does, it may be used while cache_recall finds the program. NULL: it has something that only launch()
 * does (a loop, a sort, a fault to report, room whose size a kernel tells, an output that is an input or another output, a CUDA device), or there is no
 * memory. */
Prepared *prepared_new(const Program *program, const int64_t *sizes);
void prepared_free(Prepared *p); /* NULL is allowed */

double prepared_seconds(const Prepared *p); /* that its kernels take on one thread, about */

/* Runs it on inputs' data, by number, and the call's scalars; outputs[k] gets storage with a reference for the caller. ST_OUT_OF_MEMORY:
 * no output is set. No input is overwritten. With the evaluation lock or concurrently, who holds the program then; launch_count is the caller's. */
Status prepared_run(Evaluation *e, Prepared *p, char *const *inputs, const uint64_t *scalars, Result *outputs);

#endif

/* What evaluation writes into a trace (KILN_TRACE, ir/base/timeline.h). Where nothing is written a call here costs a branch. */
#ifndef RUNTIME_TRACED_H
#define RUNTIME_TRACED_H

#include "ir/base/timeline.h"
#include "runtime/evaluation.h"

void traced_op(void);       /* an op was recorded; only while a trace is written */
void traced_recorded(void); /* a sync point begins; likewise */
void traced_sync(const Evaluation *e, Status status);
void traced_lookup(const Call *call, int64_t began, const CacheHit *hit);                       /* NULL: nothing was found */
void traced_miss(const Evaluation *e, const Graph *g, const Call *call, const CacheMiss *miss); /* with expected and found */
void traced_results(Call *call);   /* the largest results of a call, with their places; only while a trace is written */
void traced_use(Program *program); /* is about to run: the first time draws the arrow from its compile in the background */
typedef struct Launched Launched;  /* runtime/eval/perf.h */
void traced_launch(const Evaluation *e, const Launched *launched, int64_t began);

#endif

/*
 * KILN_CHECK=repeat: each call is computed twice, first on one thread, and both have the same bits, or the sync point fails (KILN_INVALID)
 * and names the first value that differs. Kiln's own ops are deterministic, whatever the number of threads; ops of the user's may not be.
 */
#ifndef RUNTIME_TWICE_H
#define RUNTIME_TWICE_H

#include "runtime/evaluation.h"

/* Is this call computed twice? Not where other processes take part. */
bool twice_wanted(const Evaluation *e, const Call *call);
/* Computes it by `compute`. The results of the second time stay. */
Status twice(Evaluation *e, Call *call, Status (*compute)(Evaluation *e, Call *call));

#endif

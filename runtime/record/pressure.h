/*
 * Memory pressure: what nobody evaluates keeps what it was recorded from in memory. When tensors take more than the option
 * pressure_bytes says, recording computes those recorded values that hold more than they are.
 */
#ifndef RUNTIME_PRESSURE_H
#define RUNTIME_PRESSURE_H

#include "runtime/api/stats.h"
#include "runtime/record/tensor.h"

extern _Atomic int64_t pressure_mark; /* bytes that are too many; 0: to be found out */
extern _Atomic int64_t pressure_lent; /* bytes of wrapped memory that has a deleter: freed by its owner once nothing needs it */

static inline bool pressure_high(void)
{
    int64_t held = stat_near(STAT_LIVE) + atomic_load_explicit(&pressure_lent, memory_order_relaxed);
    return held > atomic_load_explicit(&pressure_mark, memory_order_relaxed);
}

/* At the end of recording: computes what this thread has recorded where that frees memory. A failure is left to the sync point. */
void pressure_relieve(Loc loc);
void pressure_reset(void); /* the option was set */

#endif

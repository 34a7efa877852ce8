/* Counters of the process: one for each row of cache/stats.def and of guards/reasons.def. Relaxed
 * atomics: cheap, never a lock. They only grow (but for those of bytes); what kiln_reset_stats
 * forgets is remembered beside them. */
#ifndef RUNTIME_STATS_H
#define RUNTIME_STATS_H

#include "guards/guards.h"
#include <stdatomic.h>

typedef enum StatId {
#define STAT(id, name, help) STAT_##id,
#include "cache/stats.def"
#undef STAT
    STAT_COUNT
} StatId;

extern _Atomic int64_t stat_values[STAT_COUNT];
extern _Atomic int64_t stat_misses[REASON_COUNT];

static inline void stat_add(StatId id, int64_t n) { atomic_fetch_add_explicit(&stat_values[id], n, memory_order_relaxed); }
/* For those that change under the evaluation lock only, so not in a launch (launch_count): without a locked instruction. */
static inline void stat_count(StatId id, int64_t n)
{
    int64_t old = atomic_load_explicit(&stat_values[id], memory_order_relaxed);
    atomic_store_explicit(&stat_values[id], old + n, memory_order_relaxed);
}
static inline int64_t stat_get(StatId id) { return atomic_load_explicit(&stat_values[id], memory_order_relaxed); }

/* Counts a miss and its reason. */
static inline void stat_miss(Reason reason)
{
    stat_add(STAT_MISSES, 1);
    atomic_fetch_add_explicit(&stat_misses[reason], 1, memory_order_relaxed);
}

/* Adds to the live bytes (n may be negative) and keeps the peak. */
void stat_live(int64_t n);

#endif

/*
 * Counters of the process: one for each row of cache/stats.def and of guards/reasons.def.
 *
 * Each thread of the user counts in a block of its own, so that threads share no cache line; who reads adds the blocks up. A block is never freed: what a
 * thread counted stays in it, and the next thread that begins goes on with it. Levels, such as the bytes that are live, are the process's, and where several
 * threads count, each tells of its live bytes only when STAT_SLACK of them came or went: the peak is that much out for each of them.
 *
 * They only grow (but for those of bytes); what kiln_reset_stats forgets is remembered beside them.
 */
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

enum { STAT_SLACK = 64 << 10 };

typedef struct StatBlock {
    struct StatBlock *next;            /* all there ever were */
    atomic_bool taken;                 /* by a thread that lives */
    _Atomic int64_t value[STAT_COUNT]; /* written by that thread alone; LIVE: what it did not tell of so far */
} StatBlock;

extern _Thread_local StatBlock *stat_block __attribute__((tls_model("initial-exec"))); /* NULL: a thread of kiln's, or memory ran out */
extern _Atomic int64_t stat_values[STAT_COUNT];                                        /* levels, and what is counted without a block */
extern _Atomic int64_t stat_misses[REASON_COUNT];

void stats_start_thread(void);
void stats_end_thread(void);
void stats_forked(void); /* in the child */

/* Do several threads count? */
bool stats_shared(void);

/* Adds to a level: KEPT, POOLED. */
static inline void stat_level(StatId id, int64_t n) { atomic_fetch_add_explicit(&stat_values[id], n, memory_order_relaxed); }
/* Counts. */
static inline void stat_add(StatId id, int64_t n)
{
    if (!stat_block) {
        stat_level(id, n);
        return;
    }
    _Atomic int64_t *value = &stat_block->value[id];
    atomic_store_explicit(value, atomic_load_explicit(value, memory_order_relaxed) + n, memory_order_relaxed);
}
int64_t stat_get(StatId id);
/* A level, from one place: LIVE without what threads did not tell of so far. */
static inline int64_t stat_near(StatId id) { return atomic_load_explicit(&stat_values[id], memory_order_relaxed); }

/* Counts a miss and its reason. */
static inline void stat_miss(Reason reason)
{
    stat_add(STAT_MISSES, 1);
    atomic_fetch_add_explicit(&stat_misses[reason], 1, memory_order_relaxed);
}

/* Adds to the live bytes (n may be negative) and keeps the peak. */
void stat_live(int64_t n);

#endif

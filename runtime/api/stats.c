/* The counters of runtime/api/stats.h and their public face, kiln_stats. */
#include "runtime/api/stats.h"
#include "runtime/record/thread.h"

#include <string.h>

_Atomic int64_t stat_values[STAT_COUNT];
_Atomic int64_t stat_misses[REASON_COUNT];
static _Atomic int64_t forgotten[STAT_COUNT], forgotten_misses[REASON_COUNT]; /* what they were at kiln_reset_stats */

_Static_assert((int)REASON_COUNT <= KILN_MISS_REASONS, "kiln_stats.miss has room for every reason");

static const char *const reason_names[REASON_COUNT] = {
#define REASON(id, name, text) name,
#include "guards/reasons.def"
#undef REASON
};

void stat_live(int64_t n)
{
    int64_t live = atomic_fetch_add_explicit(&stat_values[STAT_LIVE], n, memory_order_relaxed) + n;
    int64_t peak = stat_get(STAT_PEAK);
    while (live > peak &&
           !atomic_compare_exchange_weak_explicit(&stat_values[STAT_PEAK], &peak, live, memory_order_relaxed, memory_order_relaxed))
        ;
}

static int64_t since_reset(StatId id) { return stat_get(id) - atomic_load_explicit(&forgotten[id], memory_order_relaxed); }

void kiln_get_stats(kiln_stats *stats)
{
    if (!stats)
        return;
    nodes_count(rt_thread());
    *stats = (kiln_stats){
        .nodes = since_reset(STAT_NODES),
        .evals = since_reset(STAT_EVALS),
        .hits = since_reset(STAT_HITS),
        .misses = since_reset(STAT_MISSES),
        .compiles = since_reset(STAT_COMPILES),
        .background_compiles = since_reset(STAT_BACKGROUND),
        .compile_seconds = (double)since_reset(STAT_COMPILE_NS) * 1e-9,
        .disk_hits = since_reset(STAT_DISK_HITS),
        .disk_loaded = since_reset(STAT_DISK_LOADED),
        .disk_refused = since_reset(STAT_DISK_REFUSED),
        .disk_stored = since_reset(STAT_DISK_STORED),
        .disk_saved_seconds = (double)since_reset(STAT_DISK_SAVED_NS) * 1e-9,
        .fallbacks = since_reset(STAT_FALLBACKS),
        .kernels = since_reset(STAT_KERNELS),
        .bytes_moved = since_reset(STAT_BYTES),
        .live_bytes = since_reset(STAT_LIVE),
        .peak_bytes = since_reset(STAT_PEAK),
        .pooled_bytes = since_reset(STAT_POOLED),
        .graph_launches = since_reset(STAT_GRAPHS),
    };
    for (int i = 0; i < REASON_COUNT; i++)
        stats->miss[i] =
            atomic_load_explicit(&stat_misses[i], memory_order_relaxed) - atomic_load_explicit(&forgotten_misses[i], memory_order_relaxed);
}

void kiln_reset_stats(void)
{
    nodes_count(rt_thread());
    for (int i = 0; i < STAT_COUNT; i++)
        if (i != STAT_LIVE && i != STAT_PEAK && i != STAT_KEPT && i != STAT_POOLED)
            atomic_store_explicit(&forgotten[i], stat_get((StatId)i), memory_order_relaxed);
    for (int i = 0; i < REASON_COUNT; i++)
        atomic_store_explicit(&forgotten_misses[i], atomic_load_explicit(&stat_misses[i], memory_order_relaxed), memory_order_relaxed);
    atomic_store_explicit(&stat_values[STAT_PEAK], stat_get(STAT_LIVE), memory_order_relaxed);
}

int64_t kiln_kept_bytes(void) { return stat_get(STAT_KEPT); }

const char *kiln_miss_reason(int reason) { return reason >= 0 && reason < REASON_COUNT ? reason_names[reason] : NULL; }

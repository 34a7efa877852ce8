/* The counters of runtime/api/stats.h and their public face, kiln_stats. */
#include "runtime/api/stats.h"
#include "ir/base/os.h"
#include "runtime/record/thread.h"

#include <string.h>

_Thread_local StatBlock *stat_block __attribute__((tls_model("initial-exec")));
_Atomic int64_t stat_values[STAT_COUNT];
_Atomic int64_t stat_misses[REASON_COUNT];
static _Atomic int64_t forgotten[STAT_COUNT], forgotten_misses[REASON_COUNT]; /* what they were at kiln_reset_stats */
static StatBlock *_Atomic blocks;
static atomic_int n_taken;

_Static_assert((int)REASON_COUNT <= KILN_MISS_REASONS, "kiln_stats.miss has room for every reason");

static const char *const reason_names[REASON_COUNT] = {
#define REASON(id, name, text) name,
#include "guards/reasons.def"
#undef REASON
};

/* ---- blocks ---- */

static StatBlock *take_block(void)
{
    for (StatBlock *block = atomic_load(&blocks); block; block = block->next)
        if (!atomic_load_explicit(&block->taken, memory_order_relaxed) && !atomic_exchange(&block->taken, true))
            return block;
    StatBlock *fresh = os_alloc_aligned(64, (sizeof *fresh + 63) / 64 * 64);
    if (!fresh)
        return NULL;
    memset(fresh, 0, sizeof *fresh);
    atomic_init(&fresh->taken, true);
    fresh->next = atomic_load(&blocks);
    while (!atomic_compare_exchange_weak(&blocks, &fresh->next, fresh))
        ;
    return fresh;
}

void stats_start_thread(void)
{
    stat_block = take_block();
    if (stat_block)
        atomic_fetch_add(&n_taken, 1);
}

void stats_end_thread(void)
{
    StatBlock *mine = stat_block;
    if (!mine)
        return;
    stat_block = NULL;
    stat_live(atomic_exchange(&mine->value[STAT_LIVE], 0));
    atomic_store(&mine->taken, false);
    atomic_fetch_sub(&n_taken, 1);
}

void stats_forked(void)
{
    for (StatBlock *block = atomic_load(&blocks); block; block = block->next)
        atomic_store(&block->taken, block == stat_block);
    atomic_store(&n_taken, stat_block != NULL);
}

bool stats_shared(void) { return atomic_load_explicit(&n_taken, memory_order_relaxed) > 1; }

/* ---- counting ---- */

int64_t stat_get(StatId id)
{
    int64_t sum = stat_near(id);
    for (const StatBlock *block = atomic_load(&blocks); block; block = block->next)
        sum += atomic_load_explicit(&block->value[id], memory_order_relaxed);
    return sum;
}

static void set_peak(int64_t live)
{
    int64_t peak = stat_near(STAT_PEAK);
    while (live > peak &&
           !atomic_compare_exchange_weak_explicit(&stat_values[STAT_PEAK], &peak, live, memory_order_relaxed, memory_order_relaxed))
        ;
}

void stat_live(int64_t n)
{
    if (stat_block) {
        _Atomic int64_t *untold = &stat_block->value[STAT_LIVE];
        n += atomic_load_explicit(untold, memory_order_relaxed);
        bool tell = !stats_shared() || n >= STAT_SLACK || n <= -STAT_SLACK;
        atomic_store_explicit(untold, tell ? 0 : n, memory_order_relaxed);
        if (!tell)
            return;
    }
    set_peak(atomic_fetch_add_explicit(&stat_values[STAT_LIVE], n, memory_order_relaxed) + n);
}

/* ---- reading ---- */

static int64_t since_reset(StatId id) { return stat_get(id) - atomic_load_explicit(&forgotten[id], memory_order_relaxed); }

void kiln_get_stats(kiln_stats *stats)
{
    if (!stats)
        return;
    nodes_count(rt_thread());
    int64_t live = since_reset(STAT_LIVE), peak = since_reset(STAT_PEAK);
    int64_t background = since_reset(STAT_BACKGROUND); /* read once: `compiles` without them is what callers waited for, at any moment */
    *stats = (kiln_stats){
        .nodes = since_reset(STAT_NODES),
        .evals = since_reset(STAT_EVALS),
        .hits = since_reset(STAT_HITS),
        .misses = since_reset(STAT_MISSES),
        .compiles = since_reset(STAT_COMPILES) + background,
        .background_compiles = background,
        .compile_seconds = (double)since_reset(STAT_COMPILE_NS) * 1e-9,
        .disk_hits = since_reset(STAT_DISK_HITS),
        .disk_loaded = since_reset(STAT_DISK_LOADED),
        .disk_refused = since_reset(STAT_DISK_REFUSED),
        .disk_stored = since_reset(STAT_DISK_STORED),
        .disk_saved_seconds = (double)since_reset(STAT_DISK_SAVED_NS) * 1e-9,
        .fallbacks = since_reset(STAT_FALLBACKS),
        .kernels = since_reset(STAT_KERNELS),
        .bytes_moved = since_reset(STAT_BYTES),
        .live_bytes = live,
        .peak_bytes = peak > live ? peak : live, /* not all of it was told of */
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

/*
 * What a process leaves behind in the cache directory, for the command `kiln`: the files `counters`, `misses` and `info`
 * (cache/records.h). One write each, no lock, and never a failure that anybody sees: it is only for people.
 */
#include "cache/disk.h"
#include "cache/maker.h"
#include "cache/records.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "runtime/api/stats.h"
#include "runtime/device/device.h"
#include "runtime/eval/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTERS_LIMIT = 4 << 20, MISSES_LIMIT = 1 << 20 };

static Disk *_Atomic log_disk; /* where this process's counters go */
static _Atomic int64_t refused[REFUSAL_COUNT];
static _Atomic int64_t before[COUNTER_COUNT], misses_before[REASON_COUNT]; /* what is written already, or was a parent's */

static const char *const refusal_names[REFUSAL_COUNT] = {
    [REFUSED_DAMAGED] = "damaged", [REFUSED_UNREADABLE] = "unreadable", [REFUSED_MAKER] = "maker"};

void store_log_refused(StoreRefusal why) { atomic_fetch_add_explicit(&refused[why], 1, memory_order_relaxed); }

/* --- counters ---------------------------------------------------------------------------------------------------------- */

static int64_t counted(CounterId id)
{
    switch (id) {
    case COUNTER_MEMORY_HITS: return stat_get(STAT_HITS) - stat_get(STAT_DISK_HITS);
    case COUNTER_DISK_HITS: return stat_get(STAT_DISK_HITS);
    case COUNTER_COMPILES: return stat_get(STAT_COMPILES) + stat_get(STAT_BACKGROUND);
    case COUNTER_PUBLISHED: return stat_get(STAT_DISK_STORED);
    case COUNTER_COMPILE_US: return stat_get(STAT_COMPILE_NS) / 1000;
    case COUNTER_LOAD_US: return stat_get(STAT_DISK_LOAD_NS) / 1000;
    case COUNTER_SAVED_US: return stat_get(STAT_DISK_SAVED_NS) / 1000;
    case COUNTER_COUNT: break;
    }
    return 0;
}

static void count_from_here(void)
{
    for (int i = 0; i < COUNTER_COUNT; i++)
        before[i] = counted((CounterId)i);
    for (int i = 0; i < REASON_COUNT; i++)
        misses_before[i] = stat_misses[i];
}

void store_log_forked(void)
{
    count_from_here();
    for (int i = 0; i < REFUSAL_COUNT; i++)
        refused[i] = 0;
    cache_take_hits(NULL, NULL);
}

static void add_number(Str *line, const char *group, const char *name, int64_t value)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", group, name);
    if (value > 0)
        record_number(line, full, value);
}

static void add_hits(const Program *program, uint64_t hits, void *user)
{
    Str *line = user;
    if (!program->entry[0])
        return;
    record_text(line, "entry", program->entry);
    record_number(line, "hits", (int64_t)hits);
    record_end(line);
}

static Status write_counters(Arena *arena, void *user)
{
    Disk *disk = user;
    Str line;
    str_init(&line, arena);
    record_number(&line, "time", os_time());
    size_t empty = line.len;
    for (int i = 0; i < COUNTER_COUNT; i++)
        add_number(&line, "", counter_name((CounterId)i), counted((CounterId)i) - before[i]);
    for (int i = 0; i < REASON_COUNT; i++)
        add_number(&line, "miss.", reason_name((Reason)i), stat_misses[i] - misses_before[i]);
    for (int i = 0; i < REFUSAL_COUNT; i++)
        add_number(&line, "refused.", refusal_names[i], refused[i]);
    if (line.len == empty)
        return ST_OK;
    record_end(&line);
    if (eval_trylock()) { /* at exit another thread may be at work */
        cache_take_hits(add_hits, &line);
        eval_unlock();
    }
    return disk_append(disk, "counters", line.text, COUNTERS_LIMIT);
}

static void write_at_exit(void)
{
    Disk *disk = atomic_exchange(&log_disk, NULL);
    if (disk)
        (void)with_arena(write_counters, disk);
}

void store_log_open(Disk *disk)
{
    static atomic_bool registered;
    Disk *last = atomic_exchange(&log_disk, disk);
    if (last) {
        (void)with_arena(write_counters, last);
        count_from_here();
    }
    if (!atomic_exchange(&registered, true))
        (void)os_at_exit(write_at_exit);
}

/* --- misses --------------------------------------------------------------------------------------------------------------- */

typedef struct MissJob {
    Disk *disk;
    MissRecord record;
} MissJob;

static Status write_miss(Arena *arena, void *user)
{
    const MissJob *job = user;
    Str line;
    str_init(&line, arena);
    record_miss(&line, &job->record);
    return disk_append(job->disk, "misses", line.text, MISSES_LIMIT);
}

void store_log_miss(Disk *disk, const char *key, const Evaluation *e, const Call *call, const CacheMiss *miss)
{
    MissJob job = {disk, {.time = os_time(), .where = e->api, .reason = reason_name(miss->reason), .key = key, .facts = call->facts}};
    (void)with_arena(write_miss, &job);
}

/* --- info ------------------------------------------------------------------------------------------------------------------ */

/* Appends what `info` says of GPU k: lines "cuda:K=..." and "cuda:K.NAME=...". false: nothing. */
static bool add_gpu(Str *text, const char *info, int k)
{
    char name[16];
    int n = snprintf(name, sizeof name, "cuda:%d", k);
    bool found = false;
    for (const char *at = info; at && *at;) {
        size_t line = strcspn(at, "\n");
        if (strncmp(at, name, (size_t)n) == 0 && (at[n] == '=' || at[n] == '.')) {
            str_printf(text, "%.*s\n", (int)line, at);
            found = true;
        }
        at += line + (at[line] == '\n');
    }
    return found;
}

static Status write_info(Arena *arena, void *user)
{
    Disk *disk = user;
    JitOptions options;
    Str maker, text, gpus;
    const char *there;
    options_snapshot(&options);
    str_init(&maker, arena);
    str_init(&text, arena);
    str_init(&gpus, arena);
    if (!maker_text(&options, &maker))
        return ST_OK;
    const char *at = maker.text;
    KeyLine line;
    while (key_line_next(&at, maker.text + maker.len, &line)) {
        str_printf(&text, "%.*s=%.*s\n", (int)line.name_bytes, line.name, (int)line.n, line.bytes);
        if (line.name_bytes == 8 && memcmp(line.name, "features", 8) == 0)
            break; /* what follows are options */
    }
    TRY(disk_text(disk, "info", arena, &there));
    (void)cuda_describe(&gpus);
    for (int k = 0; k < MAX_CUDA_DEVICES; k++)
        if (!add_gpu(&text, gpus.text, k))
            (void)add_gpu(&text, there, k); /* what another process found of a GPU that this one does not use stays */
    return there && strcmp(there, text.text) == 0 ? ST_OK : disk_write_text(disk, "info", text.text);
}

void store_log_info(Disk *disk)
{
    static Disk *_Atomic written;
    static _Atomic uint32_t with; /* so many GPUs; more may come into use */
    uint32_t in_use = cuda_describe(NULL);
    bool more = atomic_exchange(&with, in_use) != in_use;
    if (atomic_exchange(&written, disk) != disk || more)
        (void)with_arena(write_info, disk);
}

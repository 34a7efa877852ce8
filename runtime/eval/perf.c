/*
 * See perf.h.
 *
 *   limits     what a launch takes at least on this machine (cache/machine.h): its bytes at the speed of memory, or of the cache where they
 *              fit there; its arithmetic, and that of its special functions, at the peak of multiplying and adding, which is two flops in one
 *              instruction. The greatest names the regime. Where even that is less than waking a thread, it is overhead. So a launch's regime
 *              follows from what is computed and from the machine, not from how busy that was; a row's is that of most of its time
 *   counting   a row for each kernel of each program, and one for each program, in a table of fixed size: what comes when it is full is one row
 *              together. The median comes from a histogram with four steps to a factor of two, so it is right to a tenth
 *   told       by the time that could be saved: what it took beyond that limit
 *
 *
 * A CUDA device is not measured: its limits follow from its clocks (runtime/cuda/cuda_limits.c), so less of them can be reached.
 * Leaves out: the limits of sorts; such rows stand by all of their time.
 */
#include "runtime/eval/perf.h"
#include "cache/machine.h"
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/eval/pool.h"
#include "runtime/eval/run.h"
#include "runtime/eval/store.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 1024, SLOTS = 4096, STEPS = 128, STEPS_PER_OCTAVE = 4, ID_BYTES = CALL_ID_HEX + 1, NAME_BYTES = 64, ADVICES = 3 };
enum { THREAD_CACHE = 128 << 10 };    /* bytes for each thread that its cache holds, as machine_measure copies them */
static const double SHORTEST = 50e-9; /* of the histogram */
static const double LAUNCH = 1e-6;    /* a launch that wakes nobody: about what a sync point takes */
static const double NEAR = 50;        /* percent of a limit */

static const struct {
    const char *name, *near, *far;
} regimes[REGIME_COUNT] = {
#define REGIME(id, name, near, far) {name, near, far},
#include "runtime/eval/regimes.def"
#undef REGIME
};

/* --- limits ---------------------------------------------------------------------------------------------------------------- */

static struct {
    Machine machine;                    /* threads 0: not looked at so far */
    int64_t told[1 + MAX_CUDA_DEVICES]; /* the trace that knows them: of the CPU, of each device */
} limits;

/* As it is kept, or measured now. */
static const Machine *machine_now(void)
{
    int threads = pool_threads();
    if (limits.machine.threads != threads) {
        int64_t began = timeline_begin();
        store_machine(threads, &limits.machine);
        limits.told[0] = 0;
        if (began)
            timeline_span(TL_WAIT, "look at this machine", began, TL_INT("threads", threads));
    }
    return &limits.machine;
}

bool perf_host_limits(int device, DeviceLimits *out)
{
    (void)device;
    const Machine *m = machine_now();
    double read = (double)m->value[MACHINE_READ], copy = (double)m->value[MACHINE_COPY], wake = 1e-9 * (double)m->value[MACHINE_WAKE];
    *out = (DeviceLimits){.memory = read > copy ? read : copy,
                          .cached = (double)m->value[MACHINE_CACHE],
                          .flops = (double)m->value[MACHINE_FMA_F32],
                          .cache_bytes = (int64_t)m->threads * THREAD_CACHE,
                          .launch = wake > LAUNCH ? wake : LAUNCH};
    return true;
}

/* false: they are not known. */
static bool limits_of(const Launched *l, DeviceLimits *out) { return l->known && device_kind(l->device)->launcher->limits(l->device, out); }

static double at_rate(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/* What is told of so many launches together; *least: the seconds that they take at least. */
static Regime regime_of(const Launched *l, int64_t launches, const DeviceLimits *m, double *least)
{
    const Work *w = &l->work;
    double halves = m->half_flops > 0 ? w->halves : 0;
    const double by[REGIME_OVERHEAD] = {[REGIME_MEMORY] = at_rate((double)l->bytes, l->bytes <= m->cache_bytes ? m->cached : m->memory),
                                        [REGIME_COMPUTE] = at_rate(2 * w->ops - halves, m->flops) + at_rate(halves, m->half_flops),
                                        [REGIME_SPECIAL] =
                                            m->specials > 0 ? at_rate(w->specials, m->specials) : at_rate(2 * w->steps, m->flops)};
    Regime worst = REGIME_MEMORY;
    for (Regime r = REGIME_MEMORY; r < REGIME_OVERHEAD; r++)
        if (by[r] > by[worst])
            worst = r;
    *least = by[worst];
    return *least < (double)launches * m->launch ? REGIME_OVERHEAD : worst;
}

void perf_look(void) { (void)machine_now(); }

/* Once for each device in a trace, under the names of cache/machine.def where that measured it. */
static void trace_limits(const Launched *l, const DeviceLimits *m)
{
    const DeviceKind *kind = device_kind(l->device);
    int64_t *told = &limits.told[kind->numbered ? 1 + device_number(l->device) : 0];
    if (!timeline_on() || *told == timeline_serial())
        return;
    *told = timeline_serial();
    char name[DEVICE_NAME];
    const TimelineArg measured[] = {
        TL_INT("threads", limits.machine.threads),
#define MACHINE(id, name, scale, unit, help) TL_INT(name, limits.machine.value[MACHINE_##id]),
#include "cache/machine.def"
#undef MACHINE
    };
    if (kind->launcher->clocked)
        timeline_limits(device_name(l->device, name), TL_INT("memory", (int64_t)m->memory), TL_INT("fma_f32", (int64_t)m->flops),
                        TL_INT("products_16", (int64_t)m->half_flops), TL_INT("specials", (int64_t)m->specials));
    else
        timeline_limits_of("cpu", measured, sizeof measured / sizeof *measured);
}

PerfLimit perf_limit(const Launched *l, int64_t launches)
{
    DeviceLimits m;
    PerfLimit out = {0};
    if (limits_of(l, &m)) {
        out.regime = regimes[regime_of(l, launches, &m, &out.seconds)].name;
        out.peak = m.flops;
        trace_limits(l, &m);
    }
    return out;
}

/* --- counting -------------------------------------------------------------------------------------------------------------- */

typedef struct RowKey {
    char name[NAME_BYTES]; /* of a kernel; "": a program's own row */
    char program[ID_BYTES];
    bool known;
} RowKey;

typedef struct Row {
    RowKey key;
    int64_t calls, launches; /* launches: of a program */
    double seconds, kernels; /* kernels: of a program, the seconds in them */
    double bytes, flops, specials;
    double limit;                  /* what the launches take at least */
    double spent[REGIME_UNKNOWN];  /* of the seconds: in launches of that regime */
    int64_t counted;               /* launches whose events were counted, */
    double events[OS_EVENT_COUNT]; /* and these */
    double saving;                 /* at the end */
    Regime regime;                 /* likewise */
    uint32_t took[STEPS];
} Row;

typedef struct Sum { /* of the launches since the last program's end */
    int64_t launches;
    double seconds, bytes, flops, specials;
} Sum;

static struct {
    Row *rows; /* heap; NULL: nothing was counted */
    uint32_t n;
    uint16_t slot[SLOTS]; /* open addressing: row + 1 */
    Sum sum;
    uint32_t devices; /* bit k: something ran on cuda:k */
    bool registered;  /* tell() at exit */
    bool counted;     /* somewhere */
} table;

static void tell(void);

/* The row; the last one, named so, where the table is full. NULL: no memory. */
static Row *row_of(const char *name, const Program *program, bool known)
{
    if (!table.rows && !(table.rows = os_calloc(MOST_ROWS, sizeof *table.rows)))
        return NULL;
    if (!table.registered)
        table.registered = os_at_exit(tell);
    RowKey key;
    memset(&key, 0, sizeof key); /* hashed whole */
    snprintf(key.name, sizeof key.name, "%s", name);
    snprintf(key.program, sizeof key.program, "%.*s", ID_BYTES - 1, program_name(program));
    key.known = known;
    uint64_t at = hash64(&key, sizeof key) % SLOTS;
    for (; table.slot[at]; at = (at + 1) % SLOTS)
        if (memcmp(&table.rows[table.slot[at] - 1].key, &key, sizeof key) == 0)
            return &table.rows[table.slot[at] - 1];
    if (table.n == MOST_ROWS)
        return &table.rows[MOST_ROWS - 1];
    Row *row = &table.rows[table.n++];
    row->key = key;
    if (table.n == MOST_ROWS)
        row->key = (RowKey){.name = "all others"};
    else
        table.slot[at] = (uint16_t)table.n;
    return row;
}

static void count(Row *row, double seconds)
{
    int step = seconds > SHORTEST ? (int)(STEPS_PER_OCTAVE * log2(seconds / SHORTEST)) : 0;
    row->took[step < STEPS ? step : STEPS - 1]++;
    row->calls++;
    row->seconds += seconds;
}

static void add_launch(const Launched *l, double seconds)
{
    DeviceLimits m;
    bool known = limits_of(l, &m);
    Row *row = row_of(l->what, l->program, known);
    if (!row)
        return;
    if (device_kind(l->device)->numbered)
        table.devices |= UINT32_C(1) << device_number(l->device);
    count(row, seconds);
    row->bytes += (double)l->bytes;
    row->flops += l->work.flops;
    row->specials += l->work.specials;
    row->counted += l->counted.known;
    table.counted |= l->counted.known;
    for (int e = 0; e < OS_EVENT_COUNT && l->counted.known; e++)
        row->events[e] += l->counted.value[e] > 0 ? (double)l->counted.value[e] : 0;
    if (known) {
        double least;
        row->spent[regime_of(l, 1, &m, &least)] += seconds;
        row->limit += least;
    }
    table.sum.launches++;
    table.sum.seconds += seconds;
    table.sum.bytes += (double)l->bytes;
    table.sum.flops += l->work.flops;
    table.sum.specials += l->work.specials;
}

void perf_call(const Program *program, double seconds)
{
    Row *row = program ? row_of("", program, false) : NULL;
    if (row) {
        count(row, seconds);
        row->launches += table.sum.launches;
        row->kernels += table.sum.seconds;
        row->bytes += table.sum.bytes;
        row->flops += table.sum.flops;
        row->specials += table.sum.specials;
    }
    table.sum = (Sum){0};
}

void perf_forked(void)
{
    events_forked();
    if (table.rows)
        memset(table.rows, 0, table.n * sizeof *table.rows);
    memset(table.slot, 0, sizeof table.slot);
    table.n = 0;
    table.sum = (Sum){0};
    table.devices = 0;
}

static double median_of(const Row *row)
{
    int64_t before = 0;
    int step = 0;
    while (step < STEPS - 1 && (before += row->took[step]) * 2 < row->calls)
        step++;
    return SHORTEST * exp2((step + 0.5) / STEPS_PER_OCTAVE);
}

/* --- one line for each launch ------------------------------------------------------------------------------------------------- */

static double percent(double part, double of) { return of > 0 ? 100 * part / of : 0; }

double perf_percent(const PerfLimit *limit, double seconds) { return percent(limit->seconds, seconds); }

static void log_launch(const Launched *l, double seconds)
{
    PerfLimit reach = perf_limit(l, 1);
    char limit[64] = "";
    if (reach.regime)
        snprintf(limit, sizeof limit, " %4.0f%% of the limit: %s", perf_percent(&reach, seconds), reach.regime);
    double rate = seconds > 0 ? 1e-9 / seconds : 0;
    log_line(LOG_PERF, "%-32s %10.3f us %8.2f GB/s %8.2f GFLOP/s%s", l->what, 1e6 * seconds, rate * (double)l->bytes, rate * l->work.flops,
             limit);
}

void perf_launched(const Launched *l, double seconds)
{
    if (log_on(LOG_PERF))
        log_launch(l, seconds);
    if (perf_counted())
        add_launch(l, seconds);
}

/* --- telling ------------------------------------------------------------------------------------------------------------------- */

static bool is_kernel(const Row *row) { return row->key.name[0] != '\0'; }

static void judge(Row *row)
{
    row->regime = REGIME_UNKNOWN;
    row->saving = is_kernel(row) ? row->seconds : row->seconds - row->kernels;
    if (!is_kernel(row) || !row->key.known)
        return;
    row->regime = REGIME_MEMORY;
    for (Regime r = REGIME_MEMORY; r < REGIME_UNKNOWN; r++)
        if (row->spent[r] > row->spent[row->regime])
            row->regime = r;
    row->saving = row->limit < row->seconds ? row->seconds - row->limit : 0;
}

static int by_saving(const void *a_, const void *b_)
{
    const Row *a = a_, *b = b_;
    if (is_kernel(a) != is_kernel(b))
        return is_kernel(a) ? -1 : 1;
    return a->saving != b->saving ? (a->saving > b->saving ? -1 : 1) : memcmp(&a->key, &b->key, sizeof a->key);
}

/* Whole numbers: what reads a comma as a separator shall not meet one in a number, as some locales have it. */
static void tell_csv(const Row *row)
{
    bool limited = is_kernel(row) && row->regime != REGIME_UNKNOWN;
    char limit[64] = ",,unknown,";
    if (limited)
        snprintf(limit, sizeof limit, "%.0f,%.0f,%s,%.0f", 1e9 * row->limit, percent(row->limit, row->seconds), regimes[row->regime].name,
                 1e9 * row->saving);
    if (!is_kernel(row))
        snprintf(limit, sizeof limit, "%.0f,%.0f,,%.0f", 1e9 * row->kernels, percent(row->kernels, row->seconds), 1e9 * row->saving);
    char events[OS_EVENT_COUNT * 24];
    for (int e = 0, n = 0; e < OS_EVENT_COUNT; e++)
        n += row->counted && events_have((OsEvent)e) ? snprintf(events + n, sizeof events - (size_t)n, ",%.0f", row->events[e])
                                                     : snprintf(events + n, sizeof events - (size_t)n, ",");
    log_always(LOG_PERF, "%s,%s,%s,%" PRId64 ",%" PRId64 ",%.0f,%.0f,%.0f,%.0f,%.0f,%s%s", is_kernel(row) ? "kernel" : "program",
               row->key.name, row->key.program, row->calls, is_kernel(row) ? row->calls : row->launches, 1e9 * row->seconds,
               1e9 * median_of(row), row->bytes, row->flops, row->specials, limit, events);
}

static void tell_kernel(const Row *row)
{
    char limit[16] = "-", saving[32] = "-";
    double rate = row->seconds > 0 ? 1e-9 / row->seconds : 0;
    if (row->regime != REGIME_UNKNOWN) {
        snprintf(limit, sizeof limit, "%.0f%%", percent(row->limit, row->seconds));
        snprintf(saving, sizeof saving, "%.3f", 1e3 * row->saving);
    }
    log_always(LOG_PERF, "%9" PRId64 " %11.3f %11.2f %8.2f %8.2f %8.2f %8s  %-17s %10s  %s of %s", row->calls, 1e3 * row->seconds,
               1e6 * median_of(row), rate * row->bytes, rate * row->flops, rate * row->specials, limit, regimes[row->regime].name, saving,
               row->key.name, row->key.program);
}

static void tell_program(const Row *row)
{
    double calls = (double)row->calls, around = row->seconds - row->kernels;
    log_always(LOG_PERF, "program %s: %" PRId64 " calls, median %.2f us; each %.1f launches of %.2f us in all, %.2f us around them%s",
               row->key.program, row->calls, 1e6 * median_of(row), (double)row->launches / calls, 1e6 * row->kernels / calls,
               1e6 * around / calls, row->kernels < around ? ": overhead; evaluate less often, or more at once, or use kiln_function" : "");
}

static void tell_machine(const Machine *m)
{
    const double giga = 1e-9;
    log_always(LOG_PERF,
               "this machine, %d thread%s: copies %.2f GB/s, reads %.2f GB/s, in cache %.2f GB/s; %.1f GFLOP/s in f32, %.1f in f64; "
               "waking a thread %.2f us",
               m->threads, m->threads == 1 ? "" : "s", giga * (double)m->value[MACHINE_COPY], giga * (double)m->value[MACHINE_READ],
               giga * (double)m->value[MACHINE_CACHE], giga * (double)m->value[MACHINE_FMA_F32], giga * (double)m->value[MACHINE_FMA_F64],
               1e-3 * (double)m->value[MACHINE_WAKE]);
}

static void tell_devices(void)
{
    DeviceLimits c;
    for (int k = 0; k < MAX_CUDA_DEVICES; k++)
        if (table.devices >> k & 1 && cuda_limits(DEVICE_CUDA + k, &c))
            log_always(
                LOG_PERF,
                "cuda:%d, by its clocks: %.2f GB/s; %.1f GFLOP/s in f32, %.1f in products of 16-bit floats; %.1f G special functions/s", k,
                1e-9 * c.memory, 1e-9 * c.flops, 1e-9 * c.half_flops, 1e-9 * c.specials);
}

/* What to do where most can be saved. */
static void tell_advice(const Row *row)
{
    double median = median_of(row),
           least = row->limit / (double)row->calls; /* the mean has the first launch in it, and whatever disturbed one */
    bool near = percent(least, median) >= NEAR;
    log_always(LOG_PERF, "%s, %" PRId64 " launches, most of %.2f us, for %.2f us of work: %s", row->key.name, row->calls, 1e6 * median,
               1e6 * least, near ? regimes[row->regime].near : regimes[row->regime].far);
}

/* What the CPU counted, a line for each kernel, and why it did not count the rest. */
static void tell_events(void)
{
    char line[256], missing[OS_EVENT_COUNT * 32] = "";
    const char *why = "";
    bool any = false;
    for (int e = 0; e < OS_EVENT_COUNT; e++) {
        size_t n = strlen(missing);
        any |= events_have((OsEvent)e);
        if (events_have((OsEvent)e))
            continue;
        snprintf(missing + n, sizeof missing - n, "%s%s", n ? ", " : "", event_name[e]);
        why = events_why_not((OsEvent)e);
    }
    int n = snprintf(line, sizeof line, "%9s", "launches");
    for (int e = 0; e < OS_EVENT_COUNT; e++)
        n += snprintf(line + n, sizeof line - (size_t)n, " %13s", event_name[e]);
    if (any)
        log_always(LOG_PERF, "%s  counted in each by the CPU, kernel", line);
    for (uint32_t i = 0; i < table.n && any; i++) {
        const Row *row = &table.rows[i];
        if (!row->counted)
            continue;
        n = snprintf(line, sizeof line, "%9" PRId64, row->counted);
        for (int e = 0; e < OS_EVENT_COUNT; e++)
            n += events_have((OsEvent)e) ? snprintf(line + n, sizeof line - (size_t)n, " %13.1f", row->events[e] / (double)row->counted)
                                         : snprintf(line + n, sizeof line - (size_t)n, " %13s", "-");
        log_always(LOG_PERF, "%s  %s", line, row->key.name);
    }
    if (*missing && table.counted)
        log_always(LOG_PERF, "not counted: %s: %s", missing, why);
}

static void tell_rows(const Machine *m, bool csv)
{
    double all = 0;
    int64_t launches = 0;
    for (uint32_t i = 0; i < table.n; i++) {
        judge(&table.rows[i]);
        all += is_kernel(&table.rows[i]) ? table.rows[i].seconds : 0;
        launches += is_kernel(&table.rows[i]) ? table.rows[i].calls : 0;
    }
    qsort(table.rows, table.n, sizeof *table.rows, by_saving);
    if (csv) {
        log_always(LOG_PERF, "what,kernel,program,calls,launches,total_ns,median_ns,bytes,flops,specials,limit_ns,percent_of_limit,regime,"
                             "could_be_saved_ns,instructions,cycles,cache_misses,page_faults");
    } else {
        log_always(LOG_PERF, "%" PRId64 " launches took %.3f ms", launches, 1e3 * all);
        tell_machine(m);
        tell_devices();
        log_always(LOG_PERF, "%9s %11s %11s %8s %8s %8s %8s  %-17s %10s  %s", "calls", "total ms", "median us", "GB/s", "GFLOP/s",
                   "Gfunc/s", "of limit", "regime", "to save ms", "kernel of program");
    }
    for (uint32_t i = 0; i < table.n; i++)
        csv ? tell_csv(&table.rows[i]) : is_kernel(&table.rows[i]) ? tell_kernel(&table.rows[i]) : tell_program(&table.rows[i]);
    if (!csv)
        tell_events();
    for (uint32_t i = 0; i < table.n && i < ADVICES && !csv; i++)
        if (is_kernel(&table.rows[i]) && table.rows[i].regime != REGIME_UNKNOWN && table.rows[i].saving > 0.05 * all)
            tell_advice(&table.rows[i]);
}

/* Not while another thread still computes, which may go on for ever. */
static void tell(void)
{
    int64_t how = option_int(OPT_PERF);
    if (how == PERF_OFF || table.n == 0)
        return;
    if (!eval_trylock()) {
        log_always(LOG_PERF, "nothing is told: another thread computes while the process ends");
        return;
    }
    tell_rows(machine_now(), how == PERF_CSV); /* also where a device computed: it is the one beside it */
    eval_unlock();
}

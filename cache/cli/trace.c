/*
 * `kiln trace diff`: two timelines (KILN_TRACE) held against each other, kernel by kernel: which got slower, which are new, which are gone.
 * What is compared is the median time of a kernel, by device, name, bytes and flops. On a CUDA device times are those of its own clock.
 * `kiln report --diff` makes a page of the same.
 */
#include "cache/cli/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KERNELS = 1 << 16 };
static const double TOO_SHORT = 1e3; /* ns: the clock's own time counts */
static const double SAME = 0.05;     /* a change that is none */

typedef struct Kernel {
    const TraceKernel *is;
    int64_t n[TRACE_SIDES];
    double median[TRACE_SIDES], total[TRACE_SIDES];
} Kernel;

struct TraceDiff {
    Cli *cli;
    TraceFile trace[TRACE_SIDES];
    TraceKernels read;
    int side; /* that is being read */
    VEC(Kernel) kernels;
    uint32_t failed; /* that got slower by more than --fail-above */
    double worst;
};

static bool take_event(void *user, const json_t *event)
{
    TraceDiff *d = user;
    return !trace_is_kernel(event) || trace_kernels_add(&d->read, d->cli->arena, d->side, event);
}

/* ---- comparing ---- */

typedef enum Change { CHANGE_SLOWER, CHANGE_FASTER, CHANGE_SAME, CHANGE_SHORT, CHANGE_NEW, CHANGE_GONE } Change;
static const char *const change_name[] = {"slower", "faster", "same", "too short", "new", "gone"};

static double ratio_of(const Kernel *k) { return k->median[0] > 0 ? k->median[1] / k->median[0] : 0; }

static Change change_of(const Kernel *k)
{
    if (k->n[0] == 0 || k->n[1] == 0)
        return k->n[0] == 0 ? CHANGE_NEW : CHANGE_GONE;
    if (k->median[0] < TOO_SHORT && k->median[1] < TOO_SHORT)
        return CHANGE_SHORT;
    double ratio = ratio_of(k);
    return ratio == 0 || ratio > 1 + SAME ? CHANGE_SLOWER : ratio < 1 - SAME ? CHANGE_FASTER : CHANGE_SAME;
}

/* What its change brought to the whole: of B's launches. */
static double brought(const Kernel *k)
{
    Change change = change_of(k);
    if (change == CHANGE_NEW || change == CHANGE_GONE)
        return change == CHANGE_NEW ? k->total[1] : -k->total[0];
    return (k->median[1] - k->median[0]) * (double)k->n[1];
}

static int by_brought(const void *a_, const void *b_)
{
    const Kernel *a = a_, *b = b_;
    double left = brought(a), right = brought(b);
    return left != right ? (left > right ? -1 : 1) : strcmp(a->is->name, b->is->name);
}

/* ---- telling ---- */

static const char *ns_text(const Kernel *k, int side, Arena *arena)
{
    return k->n[side] ? arena_printf(arena, "%.2f", 1e-3 * k->median[side]) : "";
}

void trace_diff_print(const TraceDiff *d)
{
    static const Column columns[] = {{.title = "KERNEL", .style = STYLE_KEY, .shrink = true},
                                     {.title = "BYTES", .right = true},
                                     {.title = "LAUNCHES A", .right = true},
                                     {.title = "B", .right = true},
                                     {.title = "MEDIAN US A", .right = true},
                                     {.title = "B", .right = true},
                                     {.title = "CHANGE", .right = true},
                                     {.title = ""}};
    Arena *arena = d->cli->arena;
    Table table;
    table_init(&table, arena, columns, 8);
    for (uint32_t i = 0; i < d->kernels.n; i++) {
        const Kernel *k = &d->kernels.at[i];
        Change change = change_of(k);
        const char **row = table_row(&table);
        row[0] = k->is->device < 0 ? k->is->name : arena_printf(arena, "%s on %s", k->is->name, trace_device(k->is, arena));
        row[1] = size_text(arena, (uint64_t)(k->is->bytes > 0 ? k->is->bytes : 0));
        row[2] = arena_printf(arena, "%" PRId64, k->n[0]);
        row[3] = arena_printf(arena, "%" PRId64, k->n[1]);
        row[4] = ns_text(k, 0, arena);
        row[5] = ns_text(k, 1, arena);
        row[6] = change < CHANGE_NEW && k->median[0] > 0 ? arena_printf(arena, "%+.1f%%", 100 * (ratio_of(k) - 1)) : "";
        row[7] = change_name[change];
    }
    table_print(d->cli, &table);
}

static json_t *trace_json(Cli *cli, const TraceFile *trace)
{
    json_t *all = json_object();
    js_set(cli, all, "path", js_text(trace->path));
    js_set(cli, all, "version", js_text(trace->version));
    js_set(cli, all, "launches", json_integer(trace->launches));
    js_set(cli, all, "lost_events", json_integer(trace->lost));
    js_set(cli, all, "unreadable", json_integer(trace->bad));
    return all;
}

json_t *trace_diff_json(const TraceDiff *d)
{
    Cli *cli = d->cli;
    json_t *root = json_object(), *list = json_array();
    js_set(cli, root, "a", trace_json(cli, &d->trace[0]));
    js_set(cli, root, "b", trace_json(cli, &d->trace[1]));
    for (uint32_t i = 0; i < d->kernels.n; i++) {
        const Kernel *k = &d->kernels.at[i];
        json_t *row = json_object();
        js_set(cli, row, "kernel", js_text(k->is->name));
        js_set(cli, row, "device", js_text(trace_device(k->is, cli->arena)));
        js_set(cli, row, "bytes", json_integer(k->is->bytes));
        js_set(cli, row, "flops", json_integer(k->is->flops));
        js_set(cli, row, "launches_a", json_integer(k->n[0]));
        js_set(cli, row, "launches_b", json_integer(k->n[1]));
        js_set(cli, row, "median_a", k->n[0] ? json_real(1e-9 * k->median[0]) : json_null());
        js_set(cli, row, "median_b", k->n[1] ? json_real(1e-9 * k->median[1]) : json_null());
        js_set(cli, row, "change", js_text(change_name[change_of(k)]));
        js_push(cli, list, row);
    }
    js_set(cli, root, "kernels", list);
    js_set(cli, root, "failed", json_integer(d->failed));
    return root;
}

/* What keeps the comparison from being the whole truth, and what --fail-above found. */
int trace_diff_end(const TraceDiff *d)
{
    for (int side = 0; side < TRACE_SIDES; side++) {
        const TraceFile *t = &d->trace[side];
        if (!t->version)
            complain("%s: it is cut short; compared is what is there", t->path);
        if (t->lost)
            complain("%s: %" PRId64 " older events are not in it (KILN_TRACE_SIZE)", t->path, t->lost);
        if (t->bad)
            complain("%s: %" PRId64 " lines are no events of a trace and were left out", t->path, t->bad);
        if (!t->launches)
            complain("%s: it has no kernels", t->path);
    }
    const char *a = d->trace[0].version, *b = d->trace[1].version;
    if (a && b && strcmp(a, b) != 0)
        complain("they are of two versions of kiln, %s and %s: kernels may be named and cut otherwise", a, b);
    if (d->read.refused)
        complain("%" PRId64 " launches are of kernels beyond the first %d and were not compared", d->read.refused, MOST_KERNELS);
    if (d->failed)
        complain("%" PRIu32 " kernel%s slower by more than %s, the worst by %.1f%%", d->failed, d->failed == 1 ? " is" : "s are",
                 d->cli->flag[FLAG_FAIL_ABOVE], 100 * d->worst);
    return d->failed ? END_FOUND : END_FINE;
}

int trace_diff(Cli *cli, const char *const path[TRACE_SIDES], TraceDiff **out)
{
    double fail_above = INFINITY;
    if (flag_on(cli, FLAG_FAIL_ABOVE))
        (void)parse_percent(cli->flag[FLAG_FAIL_ABOVE], &fail_above);
    TraceDiff *d = ARENA_NEW(cli->arena, TraceDiff);
    d->cli = cli;
    d->read.most = MOST_KERNELS;
    for (d->side = 0; d->side < TRACE_SIDES; d->side++) {
        int end = trace_read(cli, path[d->side], &d->trace[d->side], take_event, d);
        if (end != END_FINE)
            return end;
    }
    for (uint32_t i = 0; i < d->read.all.n; i++) {
        TraceKernel *is = d->read.all.at[i];
        Kernel k = {.is = is};
        for (int side = 0; side < TRACE_SIDES; side++) {
            k.n[side] = is->time[side].n;
            k.total[side] = is->time[side].total;
            k.median[side] = samples_median(&is->time[side]);
        }
        Change change = change_of(&k);
        bool both = change == CHANGE_SLOWER || change == CHANGE_SAME; /* --fail-above=1% asks for more than SAME */
        double more = both && k.median[0] > 0 ? ratio_of(&k) - 1 : both ? INFINITY : 0;
        d->failed += flag_on(cli, FLAG_FAIL_ABOVE) && more > fail_above;
        d->worst = more > d->worst ? more : d->worst;
        VEC_PUSH(cli->arena, d->kernels, k);
    }
    if (d->kernels.n)
        qsort(d->kernels.at, d->kernels.n, sizeof *d->kernels.at, by_brought);
    *out = d;
    return END_FINE;
}

int cmd_TRACE(Cli *cli)
{
    TraceDiff *d;
    if (strcmp(cli->args[0], "diff") != 0) {
        complain("there is no command \"trace %s\"; `kiln trace diff A B` compares two traces", cli->args[0]);
        return END_USAGE;
    }
    int end = trace_diff(cli, &cli->args[1], &d);
    if (end != END_FINE)
        return end;
    if (flag_on(cli, FLAG_JSON))
        end = js_print(cli, trace_diff_json(d));
    else
        trace_diff_print(d);
    int found = trace_diff_end(d);
    return end == END_FINE ? found : end;
}

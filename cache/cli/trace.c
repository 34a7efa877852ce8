/*
 * `kiln trace diff`: two timelines (KILN_TRACE) held against each other, kernel by kernel: which got slower, which are new, which are gone.
 *
 * A trace is read line by line, as the library writes it (ir/base/timeline.c): an event a line. So one that is larger than memory, or was cut
 * short, or whose process died, is read as far as it goes. What is compared is the median time of a kernel, by name, bytes and flops: a graph
 * may have changed around it. On a CUDA device times are those of its own clock.
 */
#include "cache/cli/cli.h"
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "ir/base/vec.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDES = 2, LONGEST_LINE = 64 << 10 };
static const char head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
static const double TOO_SHORT = 1e3; /* ns: the clock's own time counts */
static const double SAME = 0.05;     /* a change that is none */
static const double LONGEST = 1e18;  /* ns: no span is longer */

typedef struct Kernel {
    const char *name;
    int64_t bytes, flops;
    VEC(double) ns[SIDES];
    double median[SIDES], total[SIDES];
    struct Kernel *next; /* of the same slot */
} Kernel;

typedef struct Trace {
    const char *path, *version;  /* of the library; NULL: its end is not there */
    int64_t lost, launches, bad; /* events that went; of kernels; lines that are no events */
} Trace;

enum { SLOTS = 1 << 14 };
typedef struct Diff {
    Cli *cli;
    Trace trace[SIDES];
    Kernel *slot[SLOTS];
    VEC(Kernel *) kernels;
} Diff;

/* ---- reading ---- */

static Kernel *kernel_of(Diff *d, const char *name, int64_t bytes, int64_t flops)
{
    uint64_t key[3] = {hash64(name, strlen(name)), (uint64_t)bytes, (uint64_t)flops};
    Kernel **at = &d->slot[hash64(key, sizeof key) % SLOTS];
    for (; *at; at = &(*at)->next)
        if ((*at)->bytes == bytes && (*at)->flops == flops && strcmp((*at)->name, name) == 0)
            return *at;
    *at = ARENA_NEW(d->cli->arena, Kernel);
    (*at)->name = arena_strdup(d->cli->arena, name);
    (*at)->bytes = bytes;
    (*at)->flops = flops;
    VEC_PUSH(d->cli->arena, d->kernels, *at);
    return *at;
}

/* A launch that a CPU ran, or what a device did: a CUDA launch is queued only, and tells no tasks. */
static bool is_kernel(const json_t *event, const json_t *args)
{
    const char *category = json_string_value(json_object_get(event, "cat"));
    return category && (strcmp(category, "device") == 0 || (strcmp(category, "launch") == 0 && json_object_get(args, "tasks")));
}

static void take_event(Diff *d, int side, const json_t *event)
{
    const json_t *args = json_object_get(event, "args"), *dur = json_object_get(event, "dur");
    const char *name = json_string_value(json_object_get(event, "name"));
    double ns = 1e3 * json_number_value(dur);
    if (!is_kernel(event, args))
        return;
    if (!name || !json_is_number(dur) || !(ns >= 0 && ns < LONGEST)) {
        d->trace[side].bad++;
        return;
    }
    Kernel *k = kernel_of(d, name, json_integer_value(json_object_get(args, "bytes")), json_integer_value(json_object_get(args, "flops")));
    VEC_PUSH(d->cli->arena, k->ns[side], ns);
    k->total[side] += ns;
    d->trace[side].launches++;
}

/* The end: ],"otherData":{"kiln":"0.2.0","lost_events":3}} */
static void take_end(Diff *d, int side, const char *text, size_t n)
{
    Trace *trace = &d->trace[side];
    char *line = arena_printf(d->cli->arena, "{\"traceEvents\":[%.*s", (int)n, text);
    json_t *root = json_loads(line, 0, NULL), *other = json_object_get(root, "otherData");
    const char *version = json_string_value(json_object_get(other, "kiln"));
    trace->version = version ? arena_strdup(d->cli->arena, version) : NULL;
    trace->lost = json_integer_value(json_object_get(other, "lost_events"));
    json_decref(root);
}

/* A line without what stands around it. Many events matter to nobody here: only those that say so are parsed. */
static void take_line(Diff *d, int side, const char *line, size_t n)
{
    while (n && strchr(" \t\r,", line[n - 1]))
        n--;
    while (n && strchr(" \t", *line)) {
        line++;
        n--;
    }
    if (n == 0)
        return;
    if (*line == ']') {
        take_end(d, side, line, n < LONGEST_LINE ? n : LONGEST_LINE);
        return;
    }
    json_t *event = n < LONGEST_LINE ? json_loadb(line, n, 0, NULL) : NULL;
    if (json_is_object(event))
        take_event(d, side, event);
    else
        d->trace[side].bad++;
    json_decref(event);
}

/* The next line without its newline, of which so much is kept as fits: LONGEST_LINE is too long. false: the file is at its end. */
static bool next_line(FILE *file, char *line, size_t *n)
{
    int c = getc_unlocked(file);
    for (*n = 0; c != EOF && c != '\n'; c = getc_unlocked(file))
        if (*n < LONGEST_LINE)
            line[(*n)++] = (char)c;
    return c != EOF || *n;
}

/* Read and not mapped: the command has nothing in it that could map code (tests/package/consumer.sh). */
static int read_trace(Diff *d, int side, const char *path)
{
    char *line = ARENA_ARRAY(d->cli->arena, char, LONGEST_LINE);
    size_t n;
    d->trace[side].path = path;
    FILE *file = fopen(path, "re");
    errno = file ? 0 : errno;
    bool begins = file && fread(line, 1, sizeof head - 1, file) == sizeof head - 1 && memcmp(line, head, sizeof head - 1) == 0;
    while (begins && next_line(file, line, &n))
        take_line(d, side, line, n);
    int trouble = errno && (!file || ferror(file)) ? errno : 0;
    if (file)
        fclose(file);
    if (trouble || !begins) {
        complain(trouble ? "%s: %s" : "%s: it is no trace as kiln writes it (KILN_TRACE=%s)", path, trouble ? strerror(trouble) : path);
        return END_TROUBLE;
    }
    return END_FINE;
}

/* ---- comparing ---- */

typedef enum Change { CHANGE_SLOWER, CHANGE_FASTER, CHANGE_SAME, CHANGE_SHORT, CHANGE_NEW, CHANGE_GONE } Change;
static const char *const change_name[] = {"slower", "faster", "same", "too short", "new", "gone"};

static int by_value(const void *a_, const void *b_)
{
    double a = *(const double *)a_, b = *(const double *)b_;
    return (a > b) - (a < b);
}

static double median_of(double *ns, uint32_t n)
{
    if (n == 0)
        return 0;
    qsort(ns, n, sizeof *ns, by_value);
    return n % 2 ? ns[n / 2] : (ns[n / 2 - 1] + ns[n / 2]) / 2;
}

static double ratio_of(const Kernel *k) { return k->median[0] > 0 ? k->median[1] / k->median[0] : 0; }

static Change change_of(const Kernel *k)
{
    if (k->ns[0].n == 0 || k->ns[1].n == 0)
        return k->ns[0].n == 0 ? CHANGE_NEW : CHANGE_GONE;
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
    return (k->median[1] - k->median[0]) * k->ns[1].n;
}

static int by_brought(const void *a_, const void *b_)
{
    const Kernel *a = *(Kernel *const *)a_, *b = *(Kernel *const *)b_;
    double left = brought(a), right = brought(b);
    return left != right ? (left > right ? -1 : 1) : strcmp(a->name, b->name);
}

/* ---- telling ---- */

static const char *ns_text(const Kernel *k, int side, Arena *arena)
{
    return k->ns[side].n ? arena_printf(arena, "%.2f", 1e-3 * k->median[side]) : "";
}

static void print_diff(Diff *d)
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
        const Kernel *k = d->kernels.at[i];
        Change change = change_of(k);
        const char **row = table_row(&table);
        row[0] = k->name;
        row[1] = size_text(arena, (uint64_t)(k->bytes > 0 ? k->bytes : 0));
        row[2] = arena_printf(arena, "%" PRIu32, k->ns[0].n);
        row[3] = arena_printf(arena, "%" PRIu32, k->ns[1].n);
        row[4] = ns_text(k, 0, arena);
        row[5] = ns_text(k, 1, arena);
        row[6] = change < CHANGE_NEW && k->median[0] > 0 ? arena_printf(arena, "%+.1f%%", 100 * (ratio_of(k) - 1)) : "";
        row[7] = change_name[change];
    }
    table_print(d->cli, &table);
}

static json_t *trace_json(Cli *cli, const Trace *trace)
{
    json_t *all = json_object();
    js_set(cli, all, "path", js_text(trace->path));
    js_set(cli, all, "version", js_text(trace->version));
    js_set(cli, all, "launches", json_integer(trace->launches));
    js_set(cli, all, "lost_events", json_integer(trace->lost));
    js_set(cli, all, "unreadable", json_integer(trace->bad));
    return all;
}

static int diff_json(Diff *d, uint32_t failed)
{
    Cli *cli = d->cli;
    json_t *root = json_object(), *list = json_array();
    js_set(cli, root, "a", trace_json(cli, &d->trace[0]));
    js_set(cli, root, "b", trace_json(cli, &d->trace[1]));
    for (uint32_t i = 0; i < d->kernels.n; i++) {
        const Kernel *k = d->kernels.at[i];
        json_t *row = json_object();
        js_set(cli, row, "kernel", js_text(k->name));
        js_set(cli, row, "bytes", json_integer(k->bytes));
        js_set(cli, row, "flops", json_integer(k->flops));
        js_set(cli, row, "launches_a", json_integer(k->ns[0].n));
        js_set(cli, row, "launches_b", json_integer(k->ns[1].n));
        js_set(cli, row, "median_a", k->ns[0].n ? json_real(1e-9 * k->median[0]) : json_null());
        js_set(cli, row, "median_b", k->ns[1].n ? json_real(1e-9 * k->median[1]) : json_null());
        js_set(cli, row, "change", js_text(change_name[change_of(k)]));
        js_push(cli, list, row);
    }
    js_set(cli, root, "kernels", list);
    js_set(cli, root, "failed", json_integer(failed));
    return js_print(cli, root);
}

/* What keeps the comparison from being the whole truth. */
static void complain_of(const Diff *d)
{
    for (int side = 0; side < SIDES; side++) {
        const Trace *t = &d->trace[side];
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
}

int cmd_TRACE(Cli *cli)
{
    double fail_above = 0;
    if (strcmp(cli->args[0], "diff") != 0) {
        complain("there is no command \"trace %s\"; `kiln trace diff A B` compares two traces", cli->args[0]);
        return END_USAGE;
    }
    if (flag_on(cli, FLAG_FAIL_ABOVE))
        (void)parse_percent(cli->flag[FLAG_FAIL_ABOVE], &fail_above);
    Diff *d = ARENA_NEW(cli->arena, Diff);
    d->cli = cli;
    for (int side = 0; side < SIDES; side++) {
        int end = read_trace(d, side, cli->args[side + 1]);
        if (end != END_FINE)
            return end;
    }
    uint32_t failed = 0;
    double worst = 0;
    for (uint32_t i = 0; i < d->kernels.n; i++) {
        Kernel *k = d->kernels.at[i];
        for (int side = 0; side < SIDES; side++)
            k->median[side] = median_of(k->ns[side].at, k->ns[side].n);
        Change change = change_of(k);
        bool both = change == CHANGE_SLOWER || change == CHANGE_SAME; /* --fail-above=1% asks for more than SAME */
        double more = both && k->median[0] > 0 ? ratio_of(k) - 1 : both ? INFINITY : 0;
        failed += flag_on(cli, FLAG_FAIL_ABOVE) && more > fail_above;
        worst = more > worst ? more : worst;
    }
    if (d->kernels.n)
        qsort(d->kernels.at, d->kernels.n, sizeof *d->kernels.at, by_brought);
    int end = END_FINE;
    if (flag_on(cli, FLAG_JSON))
        end = diff_json(d, failed);
    else
        print_diff(d);
    complain_of(d);
    if (failed)
        complain("%" PRIu32 " kernel%s slower by more than %s, the worst by %.1f%%", failed, failed == 1 ? " is" : "s are",
                 cli->flag[FLAG_FAIL_ABOVE], 100 * worst);
    return end == END_FINE && failed ? END_FOUND : end;
}

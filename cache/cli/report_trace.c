/*
 * A timeline's part of the report, in one reading and bounded memory: the longest spans, kernels and sync points summed up, the memory's
 * course thinned out. What had to be left out is counted and told.
 */
#include "cache/cli/report.h"
#include "ir/base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SPANS = 20000,
    MOST_KERNELS = 5000,
    MOST_PLACES = 1000,
    MOST_MISSES = 2000,
    MOST_POINTS = 4000,
    MOST_LANES = 256,
    MOST_BUFFERS = 40, /* told, of places */
    PLACE_SLOTS = 4096
};

typedef struct Span {
    double ts, dur;
    int64_t lane;
    json_int_t name, category, detail;
} Span;

/* A sync point of the program. */
typedef struct Place {
    const char *name, *api;
    int64_t syncs, misses, most_bytes, growth;
    int64_t results, largest; /* recorded there: how many were told, bytes of the largest */
    const char *result_api;
    double total;
    struct Place *next; /* of the same slot */
} Place;

typedef struct Point {
    double ts;
    int64_t value[4];
} Point;

typedef struct Summed { /* of a category */
    json_int_t name;
    int64_t n;
    double total;
} Summed;

typedef struct TraceReport {
    Report *report;
    Arena *arena;
    Span *span; /* a heap: the shortest on top */
    uint32_t n_spans;
    int64_t spans, misses;
    double begin, end, left_out; /* ns; left_out: time of spans that are not kept */
    TraceKernels kernels;
    Place *slot[PLACE_SLOTS];
    VEC(Place *) places;
    Place *last; /* whose sync point ended last */
    Point point[MOST_POINTS];
    uint32_t n_points, every, skipped; /* every so many counters make a point */
    int64_t tensors;                   /* live after the last sync point */
    VEC(Summed) categories;
    json_t *lanes, *miss;
    uint32_t n_lanes;
    bool places_full;
} TraceReport;

static const char *const memory_keys[4] = {"tensors", "most", "kept for reuse", "programs"};

/* ---- the longest spans ---- */

static void swap(Span *a, Span *b)
{
    Span t = *a;
    *a = *b;
    *b = t;
}

static void sink(Span *heap, uint32_t n, uint32_t at)
{
    for (uint32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        child += child + 1 < n && heap[child + 1].dur < heap[child].dur;
        if (heap[at].dur <= heap[child].dur)
            return;
        swap(&heap[at], &heap[child]);
        at = child;
    }
}

static void keep_span(TraceReport *t, Span span)
{
    t->spans++;
    if (t->n_spans < MOST_SPANS) {
        uint32_t at = t->n_spans++;
        t->span[at] = span;
        for (; at && t->span[at].dur < t->span[(at - 1) / 2].dur; at = (at - 1) / 2)
            swap(&t->span[at], &t->span[(at - 1) / 2]);
        return;
    }
    t->left_out += span.dur < t->span[0].dur ? span.dur : t->span[0].dur;
    if (span.dur <= t->span[0].dur)
        return;
    t->span[0] = span;
    sink(t->span, t->n_spans, 0);
}

/* Would a span that long be kept? Texts of others are not interned. */
static bool long_enough(const TraceReport *t, double dur) { return t->n_spans < MOST_SPANS || dur > t->span[0].dur; }

/* ---- places ---- */

static const char *place_name(Arena *arena, const json_t *event)
{
    const char *file = trace_text(event, "file");
    return file ? arena_printf(arena, "%s:%" PRId64, file, trace_int(event, "line")) : NULL;
}

/* NULL: there are as many as there may be. */
static Place *place_of(TraceReport *t, const char *name)
{
    Place **at = &t->slot[hash64(name, strlen(name)) % PLACE_SLOTS];
    for (; *at; at = &(*at)->next)
        if (strcmp((*at)->name, name) == 0)
            return *at;
    t->places_full = t->places.n == MOST_PLACES;
    if (t->places_full)
        return NULL;
    *at = ARENA_NEW(t->arena, Place);
    (*at)->name = arena_strdup(t->arena, name);
    VEC_PUSH(t->arena, t->places, *at);
    return *at;
}

/* ---- events ---- */

/* What is told of an event beside its name: a sync point's place, a launch's program, or its arguments. */
static const char *detail_of(Arena *arena, const json_t *event)
{
    const char *place = place_name(arena, event), *key;
    if (place)
        return place;
    if (trace_is_kernel(event))
        return trace_text(event, "program");
    Str out;
    str_init(&out, arena);
    json_t *value;
    json_object_foreach(json_object_get(event, "args"), key, value)
    {
        str_printf(&out, "%s%s ", out.len ? ", " : "", key);
        if (json_is_string(value))
            str_printf(&out, "%s", json_string_value(value));
        else
            str_printf(&out, json_is_integer(value) ? "%.0f" : "%.3f", json_number_value(value));
    }
    return out.text;
}

static bool take_span(TraceReport *t, const json_t *event, Arena *scratch)
{
    const char *name = trace_field(event, "name"), *category = trace_field(event, "cat");
    double ts, dur;
    if (!name || !category || !trace_ns(event, "ts", &ts) || !trace_ns(event, "dur", &dur))
        return false;
    t->begin = t->spans == 0 || ts < t->begin ? ts : t->begin;
    t->end = ts + dur > t->end ? ts + dur : t->end;
    json_int_t category_ = report_string(t->report, category);
    uint32_t c = 0;
    while (c < t->categories.n && t->categories.at[c].name != category_)
        c++;
    if (c == t->categories.n && c < MOST_LANES)
        VEC_PUSH(t->arena, t->categories, (Summed){.name = category_});
    if (c < t->categories.n) {
        t->categories.at[c].n++;
        t->categories.at[c].total += dur;
    }
    if (strcmp(category, "sync") == 0) {
        const char *place = place_name(scratch, event);
        t->last = place_of(t, place ? place : "(place unknown)");
        if (t->last) {
            t->last->api = t->last->api ? t->last->api : arena_strdup(t->arena, name);
            t->last->syncs++;
            t->last->total += dur;
        }
    }
    Span span = {.ts = ts, .dur = dur, .lane = json_integer_value(json_object_get(event, "tid")), .category = category_};
    if (long_enough(t, dur)) {
        span.name = report_string(t->report, name);
        span.detail = report_string(t->report, detail_of(scratch, event));
    }
    keep_span(t, span);
    return !trace_is_kernel(event) || trace_kernels_add(&t->kernels, t->arena, 0, event);
}

/* The memory's course: as it is, then of every two neighbours the one with more, then of every four... */
static bool take_counter(TraceReport *t, const json_t *event)
{
    const char *name = trace_field(event, "name");
    Point point = {0};
    if (!name || !trace_ns(event, "ts", &point.ts))
        return false;
    if (strcmp(name, "bytes") != 0)
        return true;
    for (int i = 0; i < 4; i++)
        point.value[i] = trace_int(event, memory_keys[i]);
    if (t->last) {
        int64_t growth = point.value[0] - t->tensors;
        t->last->growth = growth > t->last->growth ? growth : t->last->growth;
        t->last->most_bytes = point.value[0] > t->last->most_bytes ? point.value[0] : t->last->most_bytes;
    }
    t->tensors = point.value[0];
    if (t->skipped) {
        Point *newest = &t->point[t->n_points - 1];
        if (point.value[0] > newest->value[0])
            *newest = point;
    } else {
        if (t->n_points == MOST_POINTS) {
            for (uint32_t i = 0; i < MOST_POINTS / 2; i++)
                t->point[i] = t->point[2 * i + (t->point[2 * i + 1].value[0] > t->point[2 * i].value[0])];
            t->n_points = MOST_POINTS / 2;
            t->every *= 2;
        }
        t->point[t->n_points++] = point;
    }
    t->skipped = (t->skipped + 1) % t->every;
    return true;
}

static bool take_miss(TraceReport *t, const json_t *event, Arena *scratch)
{
    const char *reason = trace_field(event, "name"), *name = place_name(scratch, event);
    Cli *cli = t->report->cli;
    double ts;
    if (!reason || !trace_ns(event, "ts", &ts))
        return false;
    Place *place = place_of(t, name ? name : "(place unknown)");
    if (place)
        place->misses++;
    if (t->misses++ >= MOST_MISSES)
        return true;
    json_t *row = json_array();
    js_push(cli, row, json_integer((json_int_t)ts));
    js_push(cli, row, json_integer(report_string(t->report, reason)));
    js_push(cli, row, json_integer(report_string(t->report, name ? name : "(place unknown)")));
    js_push(cli, row, json_integer(trace_int(event, "programs")));
    js_push(cli, row, json_integer(report_string(t->report, trace_text(event, "why"))));
    js_push(cli, t->miss, row);
    return true;
}

static bool take_result(TraceReport *t, const json_t *event, Arena *scratch)
{
    const char *api = trace_field(event, "name"), *name = place_name(scratch, event);
    int64_t bytes = trace_int(event, "bytes");
    Place *place = api ? place_of(t, name ? name : "(place unknown)") : NULL;
    if (!place || bytes < 0)
        return api != NULL && bytes >= 0;
    place->results++;
    if (bytes > place->largest) {
        place->largest = bytes;
        if (!place->result_api || strcmp(place->result_api, api) != 0)
            place->result_api = arena_strdup(t->arena, api);
    }
    return true;
}

static bool take_name(TraceReport *t, const json_t *event)
{
    const char *what = trace_field(event, "name"), *name = trace_text(event, "name");
    if (!what || strcmp(what, "thread_name") != 0 || !name || t->n_lanes == MOST_LANES)
        return true;
    json_t *row = json_array();
    js_push(t->report->cli, row, json_integer(json_integer_value(json_object_get(event, "tid"))));
    js_push(t->report->cli, row, js_text(name));
    js_push(t->report->cli, t->lanes, row);
    t->n_lanes++;
    return true;
}

static bool take_event(void *user, const json_t *event)
{
    TraceReport *t = user;
    const char *phase = trace_field(event, "ph"), *category = trace_field(event, "cat");
    Arena *scratch = t->report->scratch;
    bool good = phase != NULL;
    arena_reset(scratch);
    if (good && *phase == 'X')
        good = take_span(t, event, scratch);
    else if (good && *phase == 'C')
        good = take_counter(t, event);
    else if (good && *phase == 'i' && category && strcmp(category, "miss") == 0)
        good = take_miss(t, event, scratch);
    else if (good && *phase == 'i' && category && strcmp(category, "result") == 0)
        good = take_result(t, event, scratch);
    else if (good && *phase == 'M')
        good = take_name(t, event);
    return good;
}

/* ---- as JSON ---- */

static int by_time(const void *a_, const void *b_)
{
    const Span *a = a_, *b = b_;
    return a->lane != b->lane ? (a->lane > b->lane) - (a->lane < b->lane)
           : a->ts != b->ts   ? (a->ts > b->ts) - (a->ts < b->ts)
                              : (a->dur < b->dur) - (a->dur > b->dur);
}

static int by_total(const void *a_, const void *b_)
{
    const TraceKernel *a = *(TraceKernel *const *)a_, *b = *(TraceKernel *const *)b_;
    if (a->time[0].total != b->time[0].total)
        return a->time[0].total > b->time[0].total ? -1 : 1;
    return strcmp(a->name, b->name);
}

static json_t *spans_json(TraceReport *t)
{
    Cli *cli = t->report->cli;
    json_t *all = json_array();
    qsort(t->span, t->n_spans, sizeof *t->span, by_time);
    for (uint32_t i = 0; i < t->n_spans; i++) {
        const Span *s = &t->span[i];
        json_t *row = json_array();
        js_push(cli, row, json_integer(s->lane));
        js_push(cli, row, json_integer((json_int_t)s->ts));
        js_push(cli, row, json_integer((json_int_t)s->dur));
        js_push(cli, row, json_integer(s->name));
        js_push(cli, row, json_integer(s->category));
        js_push(cli, row, json_integer(s->detail));
        js_push(cli, all, row);
    }
    return all;
}

static json_t *kernels_json(TraceReport *t)
{
    Report *report = t->report;
    Cli *cli = report->cli;
    json_t *all = json_array();
    if (t->kernels.all.n)
        qsort(t->kernels.all.at, t->kernels.all.n, sizeof *t->kernels.all.at, by_total);
    for (uint32_t i = 0; i < t->kernels.all.n; i++) {
        TraceKernel *k = t->kernels.all.at[i];
        json_t *row = json_object();
        js_set(cli, row, "name", json_integer(report_string(report, k->name)));
        js_set(cli, row, "program", json_integer(report_string(report, k->program)));
        js_set(cli, row, "bytes", json_integer(k->bytes));
        js_set(cli, row, "flops", json_integer(k->flops));
        js_set(cli, row, "specials", json_integer(k->specials));
        js_set(cli, row, "threads", json_integer(k->threads));
        js_set(cli, row, "device", json_integer(report_string(report, trace_device(k, cli->arena))));
        js_set(cli, row, "regime", json_integer(report_string(report, k->regime)));
        js_set(cli, row, "launches", json_integer(k->time[0].n));
        js_set(cli, row, "limit", json_real(k->limit));
        js_set(cli, row, "total", json_integer((json_int_t)k->time[0].total));
        js_set(cli, row, "median", json_integer((json_int_t)samples_median(&k->time[0])));
        js_set(cli, row, "least", json_integer((json_int_t)k->time[0].least));
        js_set(cli, row, "most", json_integer((json_int_t)k->time[0].most));
        js_push(cli, all, row);
    }
    return all;
}

static json_t *places_json(const TraceReport *t)
{
    Cli *cli = t->report->cli;
    json_t *all = json_array();
    for (uint32_t i = 0; i < t->places.n; i++) {
        const Place *p = t->places.at[i];
        if (!p->syncs && !p->misses) /* something was recorded there, no more */
            continue;
        json_t *row = json_object();
        js_set(cli, row, "place", js_text(p->name));
        js_set(cli, row, "call", js_text(p->api));
        js_set(cli, row, "syncs", json_integer(p->syncs));
        js_set(cli, row, "total", json_integer((json_int_t)p->total));
        js_set(cli, row, "misses", json_integer(p->misses));
        js_set(cli, row, "live", json_integer(p->most_bytes));
        js_set(cli, row, "growth", json_integer(p->growth));
        js_push(cli, all, row);
    }
    return all;
}

static int by_largest(const void *a_, const void *b_)
{
    const Place *a = *(Place *const *)a_, *b = *(Place *const *)b_;
    return a->largest != b->largest ? (a->largest < b->largest) - (a->largest > b->largest) : strcmp(a->name, b->name);
}

/* The largest buffers: results, by the place where they were recorded. */
static json_t *buffers_json(TraceReport *t)
{
    Cli *cli = t->report->cli;
    json_t *all = json_array();
    Place **place = ARENA_ARRAY(t->arena, Place *, t->places.n + 1);
    for (uint32_t i = 0; i < t->places.n; i++) /* no memcpy: without places there is no array */
        place[i] = t->places.at[i];
    qsort(place, t->places.n, sizeof(Place *), by_largest);
    for (uint32_t i = 0; i < t->places.n && i < MOST_BUFFERS && place[i]->largest; i++) {
        json_t *row = json_object();
        js_set(cli, row, "place", js_text(place[i]->name));
        js_set(cli, row, "api", js_text(place[i]->result_api));
        js_set(cli, row, "bytes", json_integer(place[i]->largest));
        js_set(cli, row, "results", json_integer(place[i]->results));
        js_push(cli, all, row);
    }
    return all;
}

static json_t *memory_json(const TraceReport *t)
{
    Cli *cli = t->report->cli;
    json_t *all = json_array();
    for (uint32_t i = 0; i < t->n_points; i++) {
        json_t *row = json_array();
        js_push(cli, row, json_integer((json_int_t)t->point[i].ts));
        for (int k = 0; k < 4; k++)
            js_push(cli, row, json_integer(t->point[i].value[k]));
        js_push(cli, all, row);
    }
    return all;
}

static json_t *categories_json(const TraceReport *t)
{
    Cli *cli = t->report->cli;
    json_t *all = json_array();
    for (uint32_t i = 0; i < t->categories.n; i++) {
        json_t *row = json_array();
        js_push(cli, row, json_integer(t->categories.at[i].name));
        js_push(cli, row, json_integer(t->categories.at[i].n));
        js_push(cli, row, json_integer((json_int_t)t->categories.at[i].total));
        js_push(cli, all, row);
    }
    return all;
}

/* Of what the file tells, what has the right form: {"cpu":{"copy":17228887066}}. */
static json_t *limits_json(Cli *cli, const char *text)
{
    json_t *told = text ? json_loads(text, 0, NULL) : NULL, *all = json_object(), *of, *value;
    const char *device, *name;
    json_object_foreach(told, device, of)
    {
        json_t *good = json_object();
        json_object_foreach(of, name, value)
        {
            if (json_is_integer(value) && json_integer_value(value) >= 0)
                js_set(cli, good, name, json_incref(value));
        }
        js_set(cli, all, device, good);
    }
    json_decref(told);
    return all;
}

static void note_limits(TraceReport *t, const TraceFile *file)
{
    Report *report = t->report;
    if (!file->version)
        report_note(report, "%s is cut short: its end is missing. Shown is what is there.", file->path);
    else if (strcmp(file->version, KILN_VERSION_STRING) != 0)
        report_note(report, "%s was written by kiln %s, this page by kiln %s.", file->path, file->version, KILN_VERSION_STRING);
    if (file->lost)
        report_note(report, "%" PRId64 " older events are not in the trace (KILN_TRACE_SIZE).", file->lost);
    if (file->bad)
        report_note(report, "%" PRId64 " lines of the trace are no events and were left out.", file->bad);
    if (t->spans > t->n_spans)
        report_note(report, "The timeline shows the %u longest of %" PRId64 " spans; the others took %.3f ms together. Sums count all.",
                    t->n_spans, t->spans, 1e-6 * t->left_out);
    if (t->kernels.refused)
        report_note(report, "%" PRId64 " launches are of kernels beyond the first %d and are not in the table of kernels.",
                    t->kernels.refused, MOST_KERNELS);
    if (t->places_full)
        report_note(report, "Of the sync points only the first %d places are told.", MOST_PLACES);
    if (t->misses > MOST_MISSES)
        report_note(report, "Of %" PRId64 " misses the first %d are listed.", t->misses, MOST_MISSES);
}

int report_trace(Report *report, const char *path)
{
    Cli *cli = report->cli;
    TraceFile file;
    if (report->n_traces++) {
        complain("one report shows one trace, and %s is another one; kiln report --diff A B compares two", path);
        return END_USAGE;
    }
    TraceReport *t = ARENA_NEW(cli->arena, TraceReport);
    *t = (TraceReport){.report = report, .arena = cli->arena, .every = 1, .lanes = json_array(), .miss = json_array()};
    t->span = ARENA_ARRAY(cli->arena, Span, MOST_SPANS);
    t->kernels.most = MOST_KERNELS;
    int end = trace_read(cli, path, &file, take_event, t);
    if (end != END_FINE) {
        json_decref(t->lanes);
        json_decref(t->miss);
        return end;
    }
    json_t *source = report_source(report, "trace", path), *trace = json_object();
    js_set(cli, source, "version", js_text(file.version));
    js_set(cli, source, "lost_events", json_integer(file.lost));
    js_set(cli, source, "unreadable", json_integer(file.bad));
    js_set(cli, trace, "begin", json_integer((json_int_t)t->begin));
    js_set(cli, trace, "end", json_integer((json_int_t)t->end));
    js_set(cli, trace, "n_spans", json_integer(t->spans));
    js_set(cli, trace, "n_misses", json_integer(t->misses));
    js_set(cli, trace, "lanes", t->lanes);
    js_set(cli, trace, "spans", spans_json(t));
    js_set(cli, trace, "kernels", kernels_json(t));
    js_set(cli, trace, "limits", limits_json(cli, file.limits));
    js_set(cli, trace, "places", places_json(t));
    js_set(cli, trace, "misses", t->miss);
    js_set(cli, trace, "memory", memory_json(t));
    js_set(cli, trace, "buffers", buffers_json(t));
    js_set(cli, trace, "categories", categories_json(t));
    js_set(cli, report->root, "trace", trace);
    note_limits(t, &file);
    return END_FINE;
}

/*
 * validate TRACE [print]: is this a trace as kiln writes it?
 *
 *   JSON, an object of the Chrome trace event format; each event has what its kind needs, and a category of ir/base/timeline.def
 *   spans of one lane lie one inside another or apart; but for those of devices, which have several streams
 *   an arrow has two ends, the later one later, and each lies in a span of its lane
 *   counters are numbers
 *
 * `print` prints what a golden text is made of: the events of each lane in order, without what differs from run to run.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_DEVICE = 2000 };

static const char *const categories[] = {
#define TIMELINE(id, name, help) name,
#include "ir/base/timeline.def"
#undef TIMELINE
};

typedef struct Event {
    json_t *json;
    const char *name, *category;
    char phase;
    int64_t tid, id, began, ended; /* ns */
    size_t order;
} Event;

static Event *events;
static size_t n_events;

static void wrong(const Event *e, const char *why)
{
    char *text = e ? json_dumps(e->json, JSON_COMPACT) : NULL;
    fprintf(stderr, "%s: %s\n", why, text ? text : "");
    exit(1);
}

static const char *text_of(const Event *e, const char *key)
{
    const char *text = json_string_value(json_object_get(e->json, key));
    if (!text)
        wrong(e, key);
    return text;
}

static int64_t int_of(const Event *e, const char *key)
{
    json_t *value = json_object_get(e->json, key);
    if (!json_is_integer(value))
        wrong(e, key);
    return json_integer_value(value);
}

static int64_t time_of(const Event *e, const char *key)
{
    json_t *value = json_object_get(e->json, key);
    if (!json_is_number(value) || json_number_value(value) < 0)
        wrong(e, key);
    return (int64_t)(1000 * json_number_value(value) + 0.5);
}

/* What is measured of a machine that is busy may be too low, by whatever factor. */
static void check_limit(Event *e)
{
    json_t *args = json_object_get(e->json, "args"), *percent = json_object_get(args, "percent_of_limit");
    if (percent && (!json_is_string(json_object_get(args, "regime")) || json_number_value(percent) < 0))
        wrong(e, "percent_of_limit");
}

static void read_event(Event *e)
{
    e->name = text_of(e, "name");
    const char *phase = text_of(e, "ph");
    if (strlen(phase) != 1 || !strchr("XiCsfM", *phase))
        wrong(e, "its kind");
    e->phase = *phase;
    e->tid = int_of(e, "tid");
    if (int_of(e, "pid") <= 0 || e->tid < 0)
        wrong(e, "its place");
    if (e->phase == 'M') {
        if (!json_is_string(json_object_get(json_object_get(e->json, "args"), "name")))
            wrong(e, "no name");
        return;
    }
    e->category = text_of(e, "cat");
    size_t c = 0;
    while (c < sizeof categories / sizeof *categories && strcmp(categories[c], e->category) != 0)
        c++;
    if (c == sizeof categories / sizeof *categories)
        wrong(e, "no category of ir/base/timeline.def");
    e->began = e->ended = time_of(e, "ts");
    if (e->phase == 'X')
        e->ended += time_of(e, "dur");
    check_limit(e);
    if (e->phase == 's' || e->phase == 'f')
        e->id = int_of(e, "id");
    else if (!json_is_object(json_object_get(e->json, "args")))
        wrong(e, "no args");
    if (e->phase == 'C') {
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(e->json, "args"), key, value) if (!json_is_number(value) || json_number_value(value) < 0)
            wrong(e, "a counter is no number");
    }
}

static int by_place(const void *a_, const void *b_)
{
    const Event *a = a_, *b = b_;
    if (a->tid != b->tid)
        return a->tid < b->tid ? -1 : 1;
    if (a->began != b->began)
        return a->began < b->began ? -1 : 1;
    if (a->ended != b->ended)
        return a->ended > b->ended ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

static void check_nesting(void)
{
    Event *stack[64];
    size_t depth = 0;
    for (size_t i = 0; i < n_events; i++) {
        Event *e = &events[i];
        if (e->phase != 'X' || e->tid >= FIRST_DEVICE)
            continue;
        while (depth && (stack[depth - 1]->tid != e->tid || stack[depth - 1]->ended <= e->began))
            depth--;
        if (depth && e->ended > stack[depth - 1]->ended)
            wrong(e, "it ends after the one that it began in");
        if (depth == sizeof stack / sizeof *stack)
            wrong(e, "nested too deep");
        stack[depth++] = e;
    }
}

static int in_a_span(const Event *e)
{
    for (size_t i = 0; i < n_events; i++)
        if (events[i].phase == 'X' && events[i].tid == e->tid && events[i].began <= e->began && e->began <= events[i].ended)
            return 1;
    return 0;
}

static int by_id(const void *a_, const void *b_)
{
    const Event *a = *(Event *const *)a_, *b = *(Event *const *)b_;
    return a->id != b->id ? (a->id < b->id ? -1 : 1) : (a->phase > b->phase ? -1 : 1); /* s before f */
}

/* Those whose other end was lost are let be, and so are spans that were: whole says that nothing was. */
static void check_arrows(int whole)
{
    size_t n = 0;
    Event **ends = calloc(n_events + 1, sizeof(Event *));
    if (!ends)
        exit(2);
    for (size_t i = 0; i < n_events; i++)
        if (events[i].phase == 's' || events[i].phase == 'f')
            ends[n++] = &events[i];
    if (n)
        qsort(ends, n, sizeof(Event *), by_id);
    for (size_t i = 0; i < n && whole; i += 2) {
        Event *s = ends[i], *f = i + 1 < n ? ends[i + 1] : NULL;
        if (!f || s->phase != 's' || f->phase != 'f' || s->id != f->id || strcmp(s->name, f->name) != 0 || f->began < s->began)
            wrong(s, "an arrow without its other end");
        if (i < 2000 && (!in_a_span(s) || !in_a_span(f)))
            wrong(s, "an arrow that hangs in the air");
    }
    free(ends);
}

/* Names of entries, bytes and rates differ from machine to machine. */
static int stays(const char *key)
{
    static const char *const others[] = {"GB/s",  "percent_of_limit", "bytes", "entry",          "program",
                                         "graph", "tensors",          "most",  "kept for reuse", "programs"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i], key) == 0)
            return 0;
    return 1;
}

static void print(const Event *e)
{
    const char *key;
    json_t *value;
    printf("%" PRId64 " %c %s: %s", e->tid, e->phase, e->category ? e->category : "", e->name);
    json_object_foreach(json_object_get(e->json, "args"), key, value)
    {
        const char *text = json_string_value(value), *file = text ? strstr(text, "/program.c") : NULL;
        char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        if (file)
            printf(" %s=%s", key, file + 1);
        else if (stays(key) || (text && strlen(text) < 16))
            printf(" %s=%s", key, dump);
        else
            printf(" %s=#", key);
        free(dump);
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *root = argc > 1 ? json_load_file(argv[1], JSON_REJECT_DUPLICATES, &error) : NULL;
    if (!root) {
        fprintf(stderr, "no JSON: %s at line %d\n", argc > 1 ? error.text : "no file", argc > 1 ? error.line : 0);
        return 1;
    }
    json_t *list = json_object_get(root, "traceEvents"), *lost = json_object_get(json_object_get(root, "otherData"), "lost_events");
    if (!json_is_array(list) || !json_is_integer(lost) || json_integer_value(lost) < 0)
        wrong(NULL, "not the object that a trace is");
    n_events = json_array_size(list);
    events = calloc(n_events + 1, sizeof *events);
    if (!events)
        return 2;
    for (size_t i = 0; i < n_events; i++) {
        events[i] = (Event){.json = json_array_get(list, i), .order = i};
        read_event(&events[i]);
    }
    qsort(events, n_events, sizeof *events, by_place);
    check_nesting();
    check_arrows(json_integer_value(lost) == 0);
    if (argc > 2)
        for (size_t i = 0; i < n_events; i++)
            print(&events[i]);
    else
        printf("%zu events, %" JSON_INTEGER_FORMAT " lost\n", n_events, json_integer_value(lost));
    free(events);
    json_decref(root);
    return 0;
}

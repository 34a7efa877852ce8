/* See trace_read.h. Read and not mapped: the command has nothing in it that could map code (tests/package/consumer.sh). */
#include "cache/cli/trace_read.h"
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_LINE = 64 << 10 };
enum { MOST_SAMPLES = 1 << 13, FEW_SAMPLES = 1 << 8, SAMPLES_OF_ALL = 1 << 22 }; /* of a kernel; of one among many; together */
static const char head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
static const double LONGEST = 1e18; /* ns: no span is longer */

typedef struct Reader {
    Cli *cli;
    TraceFile *file;
    TraceTake *take;
    void *user;
} Reader;

/* The end: ],"otherData":{"kiln":"0.3.0","lost_events":3,"limits":{...}}} */
static void take_end(Reader *r, const char *text, size_t n)
{
    char *line = arena_printf(r->cli->arena, "{\"traceEvents\":[%.*s", (int)n, text);
    json_t *root = json_loads(line, 0, NULL), *other = json_object_get(root, "otherData");
    const char *version = json_string_value(json_object_get(other, "kiln"));
    r->file->version = version ? arena_strdup(r->cli->arena, version) : NULL;
    r->file->lost = json_integer_value(json_object_get(other, "lost_events"));
    char *limits = json_dumps(json_object_get(other, "limits"), 0);
    r->file->limits = limits ? arena_strdup(r->cli->arena, limits) : NULL;
    free(limits);
    json_decref(root);
}

/* A line without what stands around it. */
static void take_line(Reader *r, const char *line, size_t n)
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
        take_end(r, line, n < LONGEST_LINE ? n : LONGEST_LINE);
        return;
    }
    json_t *event = n < LONGEST_LINE ? json_loadb(line, n, 0, NULL) : NULL;
    bool good = json_is_object(event) && r->take(r->user, event);
    r->file->bad += !good;
    r->file->launches += good && trace_is_kernel(event);
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

int trace_read(Cli *cli, const char *path, TraceFile *out, TraceTake *take, void *user)
{
    Reader reader = {cli, out, take, user};
    char *line = ARENA_ARRAY(cli->arena, char, LONGEST_LINE);
    size_t n;
    *out = (TraceFile){.path = path};
    FILE *file = fopen(path, "re");
    errno = file ? 0 : errno;
    bool begins = file && fread(line, 1, sizeof head - 1, file) == sizeof head - 1 && memcmp(line, head, sizeof head - 1) == 0;
    int cause = errno;
    ProgressLine progress = cli_progress();
    double mega = 0;
    if (begins && progress.terminal && fseeko(file, 0, SEEK_END) == 0) { /* not of a pipe */
        mega = 1e-6 * (double)ftello(file);
        begins = fseeko(file, sizeof head - 1, SEEK_SET) == 0;
    }
    errno = cause;
    for (uint32_t lines = 0; begins && next_line(file, line, &n); lines++) {
        if (lines % 1024 == 0 && mega > 0)
            progress_line_step(&progress, "read, MB", 1e-6 * (double)ftello(file), mega);
        take_line(&reader, line, n);
    }
    progress_line_clear();
    int trouble = errno && (!file || ferror(file)) ? errno : 0;
    if (file)
        fclose(file);
    if (trouble || !begins) {
        complain(trouble ? "%s: %s" : "%s: it is no trace as a program writes it with KILN_TRACE=file.json%s", path,
                 trouble ? strerror(trouble) : "");
        return END_TROUBLE;
    }
    return END_FINE;
}

/* ---- events ---- */

static const json_t *argument(const json_t *event, const char *name) { return json_object_get(json_object_get(event, "args"), name); }

int64_t trace_int(const json_t *event, const char *name) { return json_integer_value(argument(event, name)); }

const char *trace_text(const json_t *event, const char *name) { return json_string_value(argument(event, name)); }

const char *trace_field(const json_t *event, const char *name) { return json_string_value(json_object_get(event, name)); }

bool trace_ns(const json_t *event, const char *name, double *ns)
{
    const json_t *value = json_object_get(event, name);
    *ns = 1e3 * json_number_value(value);
    return json_is_number(value) && *ns >= 0 && *ns < LONGEST;
}

bool trace_is_kernel(const json_t *event)
{
    const char *category = trace_field(event, "cat");
    return category && (strcmp(category, "device") == 0 || (strcmp(category, "launch") == 0 && argument(event, "tasks")));
}

/* ---- times ---- */

static void samples_add(Samples *s, TraceKernels *of, Arena *arena, double ns)
{
    uint32_t most = of->taken < SAMPLES_OF_ALL ? MOST_SAMPLES : FEW_SAMPLES;
    s->every = s->every ? s->every : 1;
    s->least = s->n == 0 || ns < s->least ? ns : s->least;
    s->most = ns > s->most ? ns : s->most;
    s->total += ns;
    if (s->n++ % s->every)
        return;
    while (s->ns.n >= most) {
        s->ns.n /= 2;
        s->every *= 2;
        for (uint32_t i = 0; i < s->ns.n; i++)
            s->ns.at[i] = s->ns.at[2 * (size_t)i];
    }
    of->taken += of->taken < SAMPLES_OF_ALL;
    VEC_PUSH(arena, s->ns, (float)ns);
}

static int by_value(const void *a_, const void *b_)
{
    float a = *(const float *)a_, b = *(const float *)b_;
    return (a > b) - (a < b);
}

double samples_median(Samples *s)
{
    uint32_t n = s->ns.n;
    if (n == 0)
        return 0;
    qsort(s->ns.at, n, sizeof *s->ns.at, by_value);
    return n % 2 ? (double)s->ns.at[n / 2] : ((double)s->ns.at[n / 2 - 1] + (double)s->ns.at[n / 2]) / 2;
}

/* ---- kernels ---- */

/* NULL: there are as many as there may be. */
static TraceKernel *kernel_of(TraceKernels *kernels, Arena *arena, int32_t device, const char *name, int64_t bytes, int64_t flops)
{
    uint64_t key[] = {hash64(name, strlen(name)), (uint64_t)device, (uint64_t)bytes, (uint64_t)flops};
    TraceKernel **at = &kernels->slot[hash64(key, sizeof key) % TRACE_SLOTS];
    for (; *at; at = &(*at)->next)
        if ((*at)->device == device && (*at)->bytes == bytes && (*at)->flops == flops && strcmp((*at)->name, name) == 0)
            return *at;
    if (kernels->all.n == kernels->most)
        return NULL;
    *at = ARENA_NEW(arena, TraceKernel);
    (*at)->name = arena_strdup(arena, name);
    (*at)->device = device;
    (*at)->bytes = bytes;
    (*at)->flops = flops;
    VEC_PUSH(arena, kernels->all, *at);
    return *at;
}

/* `old`, if it says the same. */
static const char *kept(Arena *arena, const char *old, const char *text)
{
    return !text || (old && strcmp(old, text) == 0) ? old : arena_strdup(arena, text);
}

const char *trace_device(const TraceKernel *kernel, Arena *arena)
{
    return kernel->device < 0 ? "cpu" : arena_printf(arena, "cuda:%d", (int)kernel->device);
}

/* That of its lane, where it is a device's. */
static int32_t device_of(const json_t *event)
{
    const char *category = trace_field(event, "cat");
    json_int_t lane = json_integer_value(json_object_get(event, "tid")) - TIMELINE_FIRST_DEVICE;
    return category && strcmp(category, "device") == 0 && lane >= 0 ? (int32_t)(lane % TIMELINE_DEVICES) : -1;
}

bool trace_kernels_add(TraceKernels *kernels, Arena *arena, int side, const json_t *event)
{
    const char *name = trace_field(event, "name");
    double ns;
    if (!name || !trace_ns(event, "dur", &ns))
        return false;
    TraceKernel *k = kernel_of(kernels, arena, device_of(event), name, trace_int(event, "bytes"), trace_int(event, "flops"));
    if (!k) {
        kernels->refused++;
        return true;
    }
    samples_add(&k->time[side], kernels, arena, ns);
    if (!k->program) /* that of its first launch */
        k->program = kept(arena, NULL, trace_text(event, "program"));
    k->regime = kept(arena, k->regime, trace_text(event, "regime"));
    k->specials = trace_int(event, "specials");
    k->threads = trace_int(event, "threads");
    double percent = json_number_value(argument(event, "percent_of_limit"));
    k->limit = percent > 0 && percent < LONGEST ? ns * percent / 100 : k->limit;
    return true;
}

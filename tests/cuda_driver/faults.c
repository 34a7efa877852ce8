// Settings, injected failures, counters, texts: what test_cuda.h offers.
#include "tests/cuda_driver/driver.h"
#include "tests/cuda_driver/race.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Settings settings;
test_cuda_counters counters;

static struct Fault {
    char name[64]; // "": any
    long left;     // calls until it happens, 0: none planned
    CUresult code;
    bool sticky;
} fault;

static struct Before {
    char name[64]; // "": none
    int calls;     // that it is still for
    void (*hook)(void *);
    void *user;
} before;

static size_t memory_limit;
static char last_report[4096];

// ---- settings ----

static bool parse_long(const char *text, long least, long most, long *out)
{
    char *rest;
    long v = strtol(text, &rest, 0);
    if (rest == text || *rest || v < least || v > most)
        return false;
    *out = v;
    return true;
}

static bool parse_bytes(const char *text, size_t *out)
{
    char *rest;
    unsigned long long v = strtoull(text, &rest, 0);
    if (rest == text)
        return false;
    int shift = *rest == 'K' ? 10 : *rest == 'M' ? 20 : *rest == 'G' ? 30 : 0;
    if (shift)
        rest++;
    *out = (size_t)v << shift;
    return *rest == 0;
}

static bool parse_word(const char *text, const char *const *words, int *out)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(text, words[i])) {
            *out = i;
            return true;
        }
    return false;
}

// N:CODE[:sticky] or NAME:N:CODE[:sticky]
static bool parse_fault(const char *text)
{
    char copy[128], *part[4] = {0}, *save = NULL;
    size_t n = 0;
    if (strlen(text) >= sizeof copy)
        return false;
    strcpy(copy, text);
    for (char *p = strtok_r(copy, ":", &save); p && n < 4; p = strtok_r(NULL, ":", &save))
        part[n++] = p;
    bool named = n > 0 && (part[0][0] < '0' || part[0][0] > '9');
    size_t i = named ? 1 : 0;
    long count, code;
    if (n < i + 2 || !parse_long(part[i], 0, 1L << 40, &count) || !parse_long(part[i + 1], 0, 9999, &code))
        return false;
    bool sticky = n > i + 2;
    if (sticky && strcmp(part[i + 2], "sticky"))
        return false;
    test_cuda_fail_call(named ? part[0] : NULL, count, (int)code, sticky);
    return true;
}

static bool apply_setting(const char *name, const char *value)
{
    static const char *const on_off[] = {"off", "on", NULL}, *const streams[] = {"eager", "late", "mixed", NULL},
                             *const uninit[] = {"off", "not_local", "on", NULL}, *const races[] = {"off", "shared", "on", NULL},
                             *const exited[] = {"error", "allow", NULL}, *const async[] = {"late", "early", NULL},
                             *const waits[] = {"obeyed", "ignored", NULL};
    long n = 0;
    int word = 0;
    size_t bytes = 0;
    bool ok = false;
    if (!strcmp(name, "devices") && (ok = parse_long(value, 0, MAX_DEVICES, &n)))
        settings.devices = (int)n;
    else if (!strcmp(name, "cc"))
        ok = sscanf(value, "%d.%d", &settings.major, &settings.minor) == 2;
    else if (!strcmp(name, "sms") && (ok = parse_long(value, 1, 1024, &n)))
        settings.sms = (int)n;
    else if (!strcmp(name, "driver") && (ok = parse_long(value, 0, 99990, &n)))
        settings.driver = (int)n;
    else if (!strcmp(name, "name") && (ok = strlen(value) < sizeof settings.name))
        strcpy(settings.name, value);
    else if (!strcmp(name, "memory") && (ok = parse_bytes(value, &bytes)))
        settings.memory = bytes;
    else if (!strcmp(name, "fail"))
        ok = parse_fault(value);
    else if (!strcmp(name, "streams") && (ok = parse_word(value, streams, &word)))
        settings.late = word != 0, settings.mixed = word == 2;
    else if (!strcmp(name, "waits") && (ok = parse_word(value, waits, &word)))
        settings.no_waits = word != 0;
    else if (!strcmp(name, "order") && (ok = parse_long(value, 0, 1L << 40, &n)))
        settings.order = (uint64_t)n;
    else if (!strcmp(name, "together") && (ok = parse_long(value, 1, 1024, &n)))
        settings.together = (uint32_t)n;
    else if (!strcmp(name, "uninit") && (ok = parse_word(value, uninit, &word)))
        settings.uninit = (Uninit)word;
    else if (!strcmp(name, "races") && (ok = parse_word(value, races, &word)))
        settings.races = (Races)word;
    else if (!strcmp(name, "exited") && (ok = parse_word(value, exited, &word)))
        settings.exited_allowed = word != 0;
    else if (!strcmp(name, "steps") && (ok = parse_bytes(value, &bytes)))
        settings.steps = bytes;
    else if (!strcmp(name, "async") && (ok = parse_word(value, async, &word)))
        settings.early = word != 0;
    else if (!strcmp(name, "rough") && (ok = parse_word(value, on_off, &word)))
        settings.rough = word != 0;
    else if (!strcmp(name, "log") && (ok = strlen(value) < sizeof settings.log))
        strcpy(settings.log, value);
    else if (!strcmp(name, "graphs") && (ok = strlen(value) < sizeof settings.graphs))
        strcpy(settings.graphs, value);
    else if (!strcmp(name, "leaks") && (ok = parse_word(value, on_off, &word)))
        settings.leaks = word != 0;
    return ok;
}

static int configure(const char *text)
{
    while (*text) {
        char one[512], *value;
        size_t n = strcspn(text, ",");
        if (n >= sizeof one)
            return -1;
        memcpy(one, text, n);
        one[n] = 0;
        text += n + (text[n] == ',');
        value = strchr(one, '=');
        if (n == 0)
            continue;
        if (!value)
            return -1;
        *value++ = 0;
        if (!apply_setting(one, value))
            return -1;
    }
    return 0;
}

static void start_settings(void)
{
    settings = (Settings){.devices = 1,
                          .major = 8,
                          .minor = 0,
                          .sms = 8,
                          .driver = 13000,
                          .name = "kiln software device",
                          .memory = (size_t)2 << 30,
                          .late = true,
                          .together = 1,
                          .uninit = UNINIT_ON,
                          .races = RACES_ON,
                          .steps = UINT64_C(2) << 30,
                          .log = "stderr"};
    const char *text = getenv("KILN_TEST_CUDA");
    settings.malformed = text && configure(text);
    if (settings.malformed)
        log_text("KILN_TEST_CUDA holds an unknown or malformed setting (test_cuda.h lists them)\n");
}

API int test_cuda_configure(const char *text)
{
    api_lock();
    int r = configure(text);
    api_unlock();
    return r;
}

// ---- failures ----

API void test_cuda_fail_call(const char *name, long n, int code, int sticky)
{
    api_lock();
    fault = (struct Fault){.left = n, .code = (CUresult)code, .sticky = sticky != 0};
    if (name)
        snprintf(fault.name, sizeof fault.name, "%s", name);
    api_unlock();
}

API void test_cuda_fail(long n, int code, int sticky) { test_cuda_fail_call(NULL, n, code, sticky); }

CUresult fault_next(const char *name, bool *sticky)
{
    counters.calls++;
    *sticky = false;
    if (fault.left == 0 || (fault.name[0] && strcmp(fault.name, name)) || --fault.left)
        return CUDA_SUCCESS;
    *sticky = fault.sticky;
    return fault.code;
}

API void test_cuda_before(const char *name, int calls, void (*hook)(void *), void *user)
{
    api_lock();
    before = (struct Before){.calls = calls, .hook = hook, .user = user};
    snprintf(before.name, sizeof before.name, "%s", name ? name : "");
    api_unlock();
}

void before_next(const char *name)
{
    struct Before now = {0};
    api_lock();
    if (before.name[0] && !strcmp(before.name, name)) {
        now = before;
        if (--before.calls == 0)
            before = (struct Before){0};
    }
    api_unlock();
    if (now.hook)
        now.hook(now.user);
}

API void test_cuda_limit_memory(size_t bytes)
{
    api_lock();
    memory_limit = bytes;
    api_unlock();
}

size_t memory_total(void) { return memory_limit ? memory_limit : settings.memory; }

// ---- counters and texts ----

API void test_cuda_get_counters(test_cuda_counters *out)
{
    api_lock();
    *out = counters;
    api_unlock();
}

API void test_cuda_reset_counters(void)
{
    api_lock();
    counters = (test_cuda_counters){.bytes_live = counters.bytes_live, .bytes_peak = counters.bytes_live};
    api_unlock();
}

void log_text(const char *text)
{
    if (!strcmp(settings.log, "none"))
        return;
    FILE *f = !strcmp(settings.log, "stderr") ? stderr : fopen(settings.log, "a");
    if (!f)
        return;
    fputs(text, f);
    if (f != stderr)
        fclose(f);
}

void report(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_report, sizeof last_report, format, args);
    va_end(args);
    char line[sizeof last_report + 32];
    snprintf(line, sizeof line, "test cuda: %s\n", last_report);
    log_text(line);
}

const char *report_text(void) { return last_report; }

API const char *test_cuda_report(void) { return last_report; }

API void test_cuda_clear_report(void)
{
    api_lock();
    last_report[0] = 0;
    api_unlock();
}

// ---- leaks, reset ----

static size_t list_leaks(char *text, size_t room)
{
    static const ObjectKind kinds[] = {OBJECT_CONTEXT, OBJECT_MODULE, OBJECT_STREAM,    OBJECT_EVENT,
                                       OBJECT_LINKER,  OBJECT_GRAPH,  OBJECT_GRAPH_EXEC};
    size_t leaks, used = 0;
    if (room)
        text[0] = 0;
    leaks = memory_leaks(text, room, &used);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (const Object *o = object_first(kinds[k]); o; o = object_next(o)) {
            if (kinds[k] == OBJECT_CONTEXT && ((const Context *)o)->retained == 0)
                continue;
            if (kinds[k] == OBJECT_STREAM && ((const Stream *)o)->context->null_stream == (const Stream *)o)
                continue;
            leaks++;
            if (used < room) {
                int n = snprintf(text + used, room - used, "%s #%llu\n", object_names[kinds[k]], (unsigned long long)o->number);
                used += n > 0 ? (size_t)n : 0;
            }
        }
    return leaks;
}

API size_t test_cuda_leaks(char *text, size_t room)
{
    api_lock();
    size_t leaks = list_leaks(text, room);
    api_unlock();
    return leaks;
}

static void forget_everything(void)
{
    contexts_reset();
    memory_reset();
    race_unload();
    fault = (struct Fault){0};
    before = (struct Before){0};
    memory_limit = 0;
    counters = (test_cuda_counters){0};
    last_report[0] = 0;
}

API void test_cuda_reset(void)
{
    api_lock();
    forget_everything();
    start_settings();
    api_unlock();
}

__attribute__((constructor)) static void load(void) { start_settings(); }

__attribute__((destructor)) static void unload(void)
{
    if (settings.leaks) {
        char text[8192];
        if (list_leaks(text, sizeof text)) {
            log_text("test cuda: still alive at unload:\n");
            log_text(text);
        }
    }
    forget_everything();
}

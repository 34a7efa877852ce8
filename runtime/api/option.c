/* The library itself as the user sees it: version, options, the log sink. */
#include "ir/base/log.h"
#include "ir/base/progress.h"
#include "ir/base/timeline.h"
#include "jit/options.h"
#include "runtime/eval.h"
#include "runtime/eval/perf.h"
#include "runtime/record/pressure.h"
#include "runtime/record/thread.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

const char *kiln_version(void) { return KILN_VERSION; }

/* Ends the trace that is being written, and begins one where a path says so. The machine is looked at before, which would be the longest span
 * else; not while another thread computes, who may wait for the sink that calls this: the first launch does it then. */
static Status trace_to(const char *path)
{
    TRY(timeline_stop());
    if (*path && eval_trylock()) {
        perf_look();
        eval_unlock();
    }
    return *path ? timeline_start(path, (size_t)option_int(OPT_TRACE_SIZE)) : ST_OK;
}

static void begin_trace(void)
{
    char path[PATH_BYTES];
    if (*option_text(OPT_TRACE, path, sizeof path) && trace_to(path) != ST_OK)
        log_warn("KILN_TRACE: no timeline is written: %s", fail_message());
}

/* Not where the environment is read: the command `kiln`, which shows the options, writes no trace. */
void trace_from_environment(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_trace);
}

kiln_status kiln_set_option(const char *name, const char *value)
{
    static const char api[] = "kiln_set_option";
    Loc nowhere = {0};
    if (!name || !value)
        return error_sync(fail(ST_INVALID, "%s is NULL", name ? "value" : "name"), api, nowhere);
    pressure_reset();
    trace_from_environment(); /* what is set here comes after it */
    Status status = strcmp(name, option_name(OPT_TRACE)) == 0 ? trace_to(value) : ST_OK;
    return error_sync(status == ST_OK ? option_set(name, value) : status, api, nowhere);
}

kiln_status kiln_trace_start(const char *path)
{
    static const char api[] = "kiln_trace_start";
    if (!path || !*path)
        return error_sync(fail(ST_INVALID, path ? "path is empty" : "path is NULL"), api, (Loc){0});
    trace_from_environment();
    Status status = trace_to(path);
    return error_sync(status == ST_OK ? option_set(option_name(OPT_TRACE), path) : status, api, (Loc){0});
}

kiln_status kiln_trace_stop(void)
{
    trace_from_environment();
    Status status = trace_to("");
    return error_sync(status == ST_OK ? option_set(option_name(OPT_TRACE), "") : status, "kiln_trace_stop", (Loc){0});
}

kiln_status kiln_get_option(const char *name, char *buffer, size_t size)
{
    static const char api[] = "kiln_get_option";
    Loc nowhere = {0};
    if (!name || (!buffer && size))
        return error_sync(fail(ST_INVALID, "%s is NULL", name ? "buffer" : "name"), api, nowhere);
    return error_sync(option_get(name, buffer, size), api, nowhere);
}

/* Whom kiln_set_progress named; under the log's lock (log_hold). */
static struct {
    kiln_progress_callback *callback;
    void *user;
} told;

static void tell_progress(void *user, const ProgressNow *now)
{
    (void)user;
    told.callback(told.user, &(kiln_progress){.size = sizeof(kiln_progress),
                                              .phase = now->phase,
                                              .program = now->program,
                                              .name = now->name,
                                              .done = now->done,
                                              .total = now->total,
                                              .seconds = now->seconds});
}

void kiln_set_progress(kiln_progress_callback *callback, void *user)
{
    log_hold();
    told.callback = callback;
    told.user = user;
    progress_set_sink(callback ? tell_progress : NULL, NULL);
    log_let_go();
}

void kiln_set_log_sink(kiln_log_sink *sink, void *user) { log_set_sink(sink, user); }

void kiln_log_into(void *buffer_, int level, const char *topic, const char *line)
{
    kiln_log_buffer *buffer = buffer_;
    (void)level, (void)topic;
    if (!buffer || !line)
        return;
    if (buffer->needed < buffer->size)
        snprintf(buffer->text + buffer->needed, buffer->size - buffer->needed, "%s\n", line);
    else if (buffer->size && !buffer->needed)
        *buffer->text = '\0';
    buffer->needed += strlen(line) + 1;
}

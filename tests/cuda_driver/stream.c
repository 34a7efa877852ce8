// Streams and events: work in order, done as late as the API allows.
//
// A command is queued and runs when something waits for it: so a host that forgets to wait, a stream that forgets to wait
// for another one, or a staging buffer that is used again too early gives a wrong or unwritten value here every time, which
// on a device happens once a month. With streams=eager a command runs when it is queued, with streams=mixed streams run in turns of
// lengths that nobody foresees, as on a device.
//
// The null stream is the legacy one: work on it comes after all work queued before on blocking streams and before all that
// is queued after.
#include "tests/cuda_driver/driver.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- commands ----

void command_release(Command *c)
{
    if (c->kind == COMMAND_KERNEL)
        free(c->u.kernel.params);
    if (c->kind == COMMAND_COPY)
        free(c->u.copy.staged);
    if (c->kind == COMMAND_CONDITIONAL || c->kind == COMMAND_DEFAULT)
        conditional_release(&c->u.conditional);
    if (c->kind == COMMAND_FOREIGN)
        captured_release(c->u.foreign.captured);
}

static bool duplicate(uint8_t **buffer, size_t size)
{
    if (!*buffer)
        return true;
    uint8_t *fresh = malloc(size ? size : 1);
    if (fresh)
        memcpy(fresh, *buffer, size);
    *buffer = fresh;
    return fresh != NULL;
}

bool command_copy(Command *to, const Command *from)
{
    *to = *from;
    to->next = NULL;
    if (to->kind == COMMAND_KERNEL)
        return duplicate(&to->u.kernel.params, to->u.kernel.param_bytes);
    if (to->kind == COMMAND_COPY)
        return duplicate(&to->u.copy.staged, to->u.copy.size);
    if (to->kind == COMMAND_CONDITIONAL || to->kind == COMMAND_DEFAULT)
        return conditional_copy(&to->u.conditional);
    if (to->kind == COMMAND_FOREIGN)
        captured_retain(to->u.foreign.captured);
    return true;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static CUresult run_until(Stream *stream, const Event *event, uint64_t version);

CUresult command_run(Command *c)
{
    switch (c->kind) {
    case COMMAND_KERNEL: return launch_run(&c->u.kernel, c->context, c->graph);
    case COMMAND_COPY: return copy_run(&c->u.copy);
    case COMMAND_SET: return set_run(&c->u.set);
    case COMMAND_RECORD:
        c->u.event.event->done = c->u.event.version;
        c->u.event.event->time = now_seconds();
        return CUDA_SUCCESS;
    case COMMAND_WAIT: return run_until(c->u.event.event->stream, c->u.event.event, c->u.event.version);
    case COMMAND_FREE: {
        Allocation *a = memory_at(c->u.free);
        if (a)
            memory_free(a);
        return CUDA_SUCCESS;
    }
    case COMMAND_DEFAULT: conditional_default(&c->u.conditional); return CUDA_SUCCESS;
    case COMMAND_CONDITIONAL: return conditional_run(&c->u.conditional, c->context, c->graph);
    case COMMAND_FOREIGN: {
        int state = c->u.foreign.poll(c->u.foreign.user);
        return state == 0 ? CUDA_ERROR_NOT_READY : state < 0 ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
    }
    }
    return CUDA_ERROR_UNKNOWN;
}

// ---- queues ----

void stream_discard(Stream *stream)
{
    while (stream->first) {
        Command *c = stream->first;
        stream->first = c->next;
        command_release(c);
        free(c);
    }
    stream->last = &stream->first;
}

static CUresult run_first(Stream *stream)
{
    Command *c = stream->first;
    Context *context = stream->context;
    CUresult result = context->sticky ? context->sticky : command_run(c);
    if (result == CUDA_ERROR_NOT_READY)
        return result;
    stream->first = c->next;
    if (!stream->first)
        stream->last = &stream->first;
    if (result != CUDA_SUCCESS)
        context_break(context, result);
    command_release(c);
    free(c);
    return result;
}

// event NULL: all of it.
static CUresult run_until(Stream *stream, const Event *event, uint64_t version)
{
    if (event && event->done >= version)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    while (stream->first && result == CUDA_SUCCESS && !(event && event->done >= version))
        result = run_first(stream);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        stream_discard(stream);
    return result;
}

// To its end, whatever it waits for.
static CUresult wait_until(Stream *stream, const Event *event, uint64_t version)
{
    CUresult result;
    while ((result = run_until(stream, event, version)) == CUDA_ERROR_NOT_READY) {
        api_unlock();
        sched_yield();
        api_lock();
    }
    return result;
}

CUresult stream_drain(Stream *stream)
{
    CUresult result = wait_until(stream, NULL, 0);
    return result ? result : stream->context->sticky;
}

static CUresult drain_others(Context *context, bool blocking_only)
{
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o)) {
        Stream *s = (Stream *)o;
        if (s->context != context || s == context->null_stream || (blocking_only && !s->blocking))
            continue;
        CUresult result = stream_drain(s);
        if (result)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult stream_drain_context(Context *context)
{
    CUresult result = stream_drain(context->null_stream);
    return result ? result : drain_others(context, false);
}

// A few commands of about every other stream.
static void run_some(Context *context)
{
    static uint64_t state;
    if (!state)
        state = settings.order | 1;
    for (Object *o = object_first(OBJECT_STREAM), *next; o; o = next) {
        Stream *s = (Stream *)o;
        next = object_next(o);
        state = state * 6364136223846793005u + 1442695040888963407u;
        for (uint64_t some = state >> 61; some >= 4 && s->context == context && s->first; some--) {
            CUresult result = run_first(s);
            if (result == CUDA_ERROR_NOT_READY)
                break;
            if (result != CUDA_SUCCESS)
                stream_discard(s);
        }
    }
}

CUresult stream_submit(Stream *stream, const Command *command)
{
    if (stream->capture) {
        if (stream->capture_invalid)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        Command owned = *command;
        CUresult added = capture_add(stream, &owned);
        command_release(&owned);
        return added;
    }
    Context *context = stream->context;
    CUresult result = stream == context->null_stream ? drain_others(context, true)
                      : stream->blocking             ? stream_drain(context->null_stream)
                                                     : CUDA_SUCCESS;
    Command *c = result ? NULL : malloc(sizeof *c);
    if (!c) {
        Command dropped = *command;
        command_release(&dropped);
        return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *c = *command;
    c->context = context;
    c->next = NULL;
    *stream->last = c;
    stream->last = &c->next;
    // What went wrong with queued work shows later, as on a device; here at the next call that needs the context.
    if (!settings.late)
        run_until(stream, NULL, 0);
    else if (settings.mixed)
        run_some(context);
    return CUDA_SUCCESS;
}

// ---- streams ----

CUresult stream_create(CUstream *out, unsigned flags)
{
    if (!out || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    Stream *s = object_new(OBJECT_STREAM, sizeof *s);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->context = context_current();
    s->blocking = flags == CU_STREAM_DEFAULT;
    s->last = &s->first;
    *out = s;
    return CUDA_SUCCESS;
}

CUresult stream_get(CUstream handle, Stream **out)
{
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        *out = context_current()->null_stream;
        return CUDA_SUCCESS;
    }
    *out = object_check(handle, OBJECT_STREAM);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_destroy(CUstream handle)
{
    Stream *s = object_check(handle, OBJECT_STREAM);
    if (!s || s == s->context->null_stream)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_drain(s); // a device finishes the work, too
    stream_discard(s);
    for (Object *o = object_first(OBJECT_EVENT); o; o = object_next(o))
        if (((Event *)o)->stream == s)
            ((Event *)o)->stream = NULL;
    object_free(s);
    return CUDA_SUCCESS;
}

// A query that finds work does some of it, so that who asks in a loop gets an end; it still says "not ready".
CUresult stream_query(CUstream handle)
{
    Stream *s;
    CUresult result = stream_get(handle, &s);
    if (result)
        return result;
    if (s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!s->first)
        return CUDA_SUCCESS;
    result = run_first(s);
    return result ? result : CUDA_ERROR_NOT_READY;
}

CUresult stream_synchronize(CUstream handle)
{
    Stream *s;
    CUresult result = stream_get(handle, &s);
    if (result)
        return result;
    if (s->capture) {
        s->capture_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    counters.synchronizations++;
    return stream_drain(s);
}

CUresult stream_wait(CUstream handle, CUevent event)
{
    Stream *s;
    Event *e = object_check(event, OBJECT_EVENT);
    CUresult result = stream_get(handle, &s);
    if (result || !e)
        return result ? result : CUDA_ERROR_INVALID_HANDLE;
    if (e->capture) { // joins the capture, or is part of it already
        if (s->capture && s->capture != e->capture)
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        if (s == s->context->null_stream)
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        return capture_join(s, e);
    }
    if (s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (e->recorded == e->done || settings.no_waits)
        return CUDA_SUCCESS;
    Command c = {.kind = COMMAND_WAIT, .u.event = {e, e->recorded}};
    return stream_submit(s, &c);
}

// ---- events ----

CUresult event_create(CUevent *out, unsigned flags)
{
    if (!out || flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    Event *e = object_new(OBJECT_EVENT, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->context = context_current();
    e->timing = !(flags & CU_EVENT_DISABLE_TIMING);
    *out = e;
    return CUDA_SUCCESS;
}

static CUresult reach(Event *e) { return e->stream ? wait_until(e->stream, e, e->recorded) : CUDA_SUCCESS; }

CUresult event_destroy(CUevent event)
{
    Event *e = object_check(event, OBJECT_EVENT);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    // Commands refer to it: those that record it run now, and those that wait for it.
    reach(e);
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o))
        for (Command *c = ((Stream *)o)->first; c; c = c->next)
            if ((c->kind == COMMAND_WAIT || c->kind == COMMAND_RECORD) && c->u.event.event == e) {
                stream_drain((Stream *)o);
                break;
            }
    object_free(e);
    return CUDA_SUCCESS;
}

CUresult event_record(CUevent event, CUstream stream)
{
    Stream *s;
    Event *e = object_check(event, OBJECT_EVENT);
    CUresult result = stream_get(stream, &s);
    if (result || !e)
        return result ? result : CUDA_ERROR_INVALID_HANDLE;
    if (e->context != s->context)
        return CUDA_ERROR_INVALID_HANDLE;
    e->capture = s->capture;
    e->tips = s->tips;
    if (s->capture)
        return CUDA_SUCCESS;
    if (e->stream && e->stream != s)
        reach(e); // an older record on another stream may not come after this one
    e->stream = s;
    e->recorded++;
    Command c = {.kind = COMMAND_RECORD, .u.event = {e, e->recorded}};
    return stream_submit(s, &c);
}

CUresult event_query(CUevent event)
{
    Event *e = object_check(event, OBJECT_EVENT);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (e->recorded == e->done)
        return CUDA_SUCCESS;
    CUresult result = e->stream && e->stream->first ? run_first(e->stream) : CUDA_SUCCESS;
    return result ? result : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(CUevent event)
{
    Event *e = object_check(event, OBJECT_EVENT);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    counters.synchronizations++;
    return reach(e);
}

CUresult event_elapsed(float *out, CUevent start, CUevent end)
{
    Event *a = object_check(start, OBJECT_EVENT), *b = object_check(end, OBJECT_EVENT);
    if (!a || !b || !a->timing || !b->timing || !a->recorded || !b->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (a->done != a->recorded || b->done != b->recorded)
        return CUDA_ERROR_NOT_READY;
    *out = (float)((b->time - a->time) * 1e3);
    return CUDA_SUCCESS;
}

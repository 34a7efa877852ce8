/*
 * The timeline (KILN_TRACE=file.json, kiln_trace_start): what each thread did when, in the Chrome trace event format, which Perfetto
 * and chrome://tracing open. The categories are rows of ir/base/timeline.def.
 *
 *     int64_t began = timeline_begin();                     0 while no trace is written: one load and a branch
 *     ...
 *     if (began)
 *         timeline_span(TL_BIND, "bind", began, TL_INT("steps", n));
 *
 * An event is text from the start. Events gather in a block of the file (ir/base/os_blocks.h), so that it is valid JSON at every moment; when
 * the file is as large as it may be the oldest block is replaced, and the file tells how many events went with it. A forked child has
 * a file of its own from its first event on. Nothing here fails a call: a file that cannot be written any more ends the trace, with one
 * warning.
 *
 * Threads are numbered in the order of their first events: lane 1 is the first one's. A thread that works while another one waits for it
 * takes over that one's lane.
 */
#ifndef IR_BASE_TIMELINE_H
#define IR_BASE_TIMELINE_H

#include "ir/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lanes of CUDA devices: that of stream s of device k is TIMELINE_FIRST_DEVICE + k + s * TIMELINE_DEVICES. */
enum { TIMELINE_FIRST_DEVICE = 2000, TIMELINE_DEVICES = 16 };

typedef enum TimelineCategory {
#define TIMELINE(id, name, help) TL_##id,
#include "ir/base/timeline.def"
#undef TIMELINE
    TL_COUNT
} TimelineCategory;

extern unsigned char timeline_written; /* a trace is */

static inline bool timeline_on(void) { return __builtin_expect(__atomic_load_n(&timeline_written, __ATOMIC_RELAXED) != 0, 0); }

int64_t timeline_now(void); /* nanoseconds, never 0 */
static inline int64_t timeline_begin(void) { return timeline_on() ? timeline_now() : 0; }

/* What is told of an event beside its name. A text may be anything: it is escaped, and cut where it is long; NULL: left out. */
typedef struct TimelineArg {
    const char *key; /* plain letters */
    const char *text;
    double real;
    int64_t number;
    enum { TL_KIND_TEXT, TL_KIND_REAL, TL_KIND_INT } kind;
} TimelineArg;
#define TL_TEXT(name, value)                                 \
    {                                                        \
        .key = (name), .text = (value), .kind = TL_KIND_TEXT \
    }
#define TL_REAL(name, value)                                 \
    {                                                        \
        .key = (name), .real = (value), .kind = TL_KIND_REAL \
    } /* 6 digits; not finite: null */
#define TL_INT(name, value)                                   \
    {                                                         \
        .key = (name), .number = (value), .kind = TL_KIND_INT \
    }

/* Something that this thread did since `began`; began 0: nothing is written. One TL_ argument at least. */
#define timeline_span(category, name, began, ...)                               \
    timeline_span_of(category, name, began, (const TimelineArg[]){__VA_ARGS__}, \
                     sizeof((const TimelineArg[]){__VA_ARGS__}) / sizeof(TimelineArg))
void timeline_span_of(TimelineCategory category, const char *name, int64_t began, const TimelineArg *args, size_t n);
/* What a device did in a stream, which has a lane of its own. */
#define timeline_device_span(device, stream, name, began, ended, ...)                               \
    timeline_device_span_of(device, stream, name, began, ended, (const TimelineArg[]){__VA_ARGS__}, \
                            sizeof((const TimelineArg[]){__VA_ARGS__}) / sizeof(TimelineArg))
void timeline_device_span_of(uint32_t device, uint32_t stream, const char *name, int64_t began, int64_t ended, const TimelineArg *args,
                             size_t n);
/* Something that happened now. */
#define timeline_mark(category, name, ...) \
    timeline_mark_of(category, name, (const TimelineArg[]){__VA_ARGS__}, sizeof((const TimelineArg[]){__VA_ARGS__}) / sizeof(TimelineArg))
void timeline_mark_of(TimelineCategory category, const char *name, const TimelineArg *args, size_t n);
/* Numbers that change: a row of curves. Whole ones; `name` is static; told where they changed. */
#define timeline_counter(name, ...) \
    timeline_counter_of(name, (const TimelineArg[]){__VA_ARGS__}, sizeof((const TimelineArg[]){__VA_ARGS__}) / sizeof(TimelineArg))
void timeline_counter_of(const char *name, const TimelineArg *args, size_t n);

/* What a device can do at most, for otherData: {"limits":{"cpu":{...}}}. Whole numbers; keys are static; a later call replaces. */
#define timeline_limits(device, ...) \
    timeline_limits_of(device, (const TimelineArg[]){__VA_ARGS__}, sizeof((const TimelineArg[]){__VA_ARGS__}) / sizeof(TimelineArg))
void timeline_limits_of(const char *device, const TimelineArg *args, size_t n);
int64_t timeline_serial(void); /* which trace it is: another one for each */

/* An arrow, from the span of `lane` that was open at `from` to the span of this thread that is open at `to`. */
void timeline_arrow(const char *name, uint32_t lane, int64_t from, int64_t to);

/* Lanes. */
uint32_t timeline_lane(void);              /* this thread's */
void timeline_share_lane(uint32_t lane);   /* this thread works for that lane's, which waits */
void timeline_name_lane(const char *name); /* "worker"; at the thread's start */
/* A thread that lives for one piece of work: takes a lane that no other such thread has now, gives it back. */
uint32_t timeline_borrow_lane(const char *name);
void timeline_return_lane(uint32_t lane);

/* Begins a trace; one that is being written ends before. %p in the path becomes the process's number. ST_IO, ST_INVALID: there is none. */
Status timeline_start(const char *path, size_t max_bytes);
/* Ends it: the file gets its last events. ST_IO: it did not get them. None is being written: ST_OK. */
Status timeline_stop(void);
/* A good moment to write what gathered: the end of a sync point. */
void timeline_flush(void);
/* Makes fork wait for an event being written, as log_handle_forks does. */
void timeline_handle_forks(void);

#endif

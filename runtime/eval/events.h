/*
 * What the CPU counts while kernels run (ir/base/os_events.h), for KILN_PERF: where that is permitted. Under the evaluation lock.
 *
 * The counters are opened before the first launch that is to be counted, in its thread, and the workers are started anew, so that theirs count
 * too. Launches in other threads are not counted: their row says of how many launches it tells.
 */
#ifndef RUNTIME_EVENTS_H
#define RUNTIME_EVENTS_H

#include "ir/base/os_events.h"

#include <stdbool.h>

typedef struct Counted {
    bool known;
    int64_t value[OS_EVENT_COUNT]; /* -1: not counted here */
} Counted;

extern const char *const event_name[OS_EVENT_COUNT]; /* "cache misses" */

void events_begin(void);       /* a launch begins */
void events_end(Counted *out); /* ... and ends: what it took */
bool events_have(OsEvent event);
const char *events_why_not(OsEvent event); /* static */
void events_forked(void);                  /* they count the parent */

#endif

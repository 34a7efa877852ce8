/* Events that the CPU and the kernel count (Linux: perf_event_open): of this thread, and of threads that it starts from now on. */
#ifndef IR_BASE_OS_EVENTS_H
#define IR_BASE_OS_EVENTS_H

#include <stdint.h>

typedef enum OsEvent {
    OS_EVENT_INSTRUCTIONS,
    OS_EVENT_CYCLES,
    OS_EVENT_CACHE_MISSES, /* of the last level */
    OS_EVENT_PAGE_FAULTS,
    OS_EVENT_COUNT
} OsEvent;

int os_event_open(OsEvent event);   /* a descriptor; -1, errno: the CPU does not count it, or not for us */
int64_t os_event_read(int counter); /* so far; -1: it cannot be read */
void os_event_close(int counter);

#endif

/* Counters of the CPU and the kernel. See os_events.h. */
#include "ir/base/os_events.h"
#include "ir/base/os_fd.h"

#include <linux/perf_event.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    uint32_t type;
    uint64_t config;
} events[] = {
    [OS_EVENT_INSTRUCTIONS] = {PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
    [OS_EVENT_CYCLES] = {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
    [OS_EVENT_CACHE_MISSES] = {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES},
    [OS_EVENT_PAGE_FAULTS] = {PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS},
};

int os_event_open(OsEvent event)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = events[event].type;
    attr.config = events[event].config;
    attr.inherit = 1;
    attr.exclude_kernel = 1; /* which needs no more rights than the process has */
    attr.exclude_hv = 1;
    OsLow low;
    os_low_hold(&low);
    int counter = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    os_low_release(&low);
    return counter;
}

int64_t os_event_read(int counter)
{
    uint64_t value;
    return read(counter, &value, sizeof value) == (ssize_t)sizeof value ? (int64_t)(value & INT64_MAX) : -1;
}

void os_event_close(int counter) { close(counter); }

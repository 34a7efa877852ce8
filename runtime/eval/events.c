/* See events.h. */
#include "runtime/eval/events.h"
#include "jit/options.h"
#include "runtime/eval/pool.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

const char *const event_name[OS_EVENT_COUNT] = {[OS_EVENT_INSTRUCTIONS] = "instructions",
                                                [OS_EVENT_CYCLES] = "cycles",
                                                [OS_EVENT_CACHE_MISSES] = "cache misses",
                                                [OS_EVENT_PAGE_FAULTS] = "page faults"};

static struct {
    bool opened;
    pthread_t thread;                                 /* whose they are */
    int counter[OS_EVENT_COUNT], why[OS_EVENT_COUNT]; /* -1: see why, an errno */
    int64_t before[OS_EVENT_COUNT];
} counters;

static void open_all(void)
{
    char hook[32];
    bool refused = strcmp(option_text(OPT_TEST_FAIL, hook, sizeof hook), "counters") == 0;
    pool_shutdown(); /* workers that are started from now on are counted */
    counters.opened = true;
    counters.thread = pthread_self();
    for (int e = 0; e < OS_EVENT_COUNT; e++) {
        errno = EACCES;
        counters.counter[e] = refused ? -1 : os_event_open((OsEvent)e);
        counters.why[e] = errno;
    }
}

void events_begin(void)
{
    if (!counters.opened)
        open_all();
    for (int e = 0; e < OS_EVENT_COUNT; e++)
        if (counters.counter[e] >= 0)
            counters.before[e] = os_event_read(counters.counter[e]);
}

void events_end(Counted *out)
{
    out->known = counters.opened && pthread_equal(counters.thread, pthread_self());
    for (int e = 0; e < OS_EVENT_COUNT; e++) {
        int64_t now = counters.counter[e] >= 0 ? os_event_read(counters.counter[e]) : -1;
        out->value[e] = now < 0 || counters.before[e] < 0 ? -1 : now - counters.before[e];
    }
}

bool events_have(OsEvent event) { return counters.opened && counters.counter[event] >= 0; }

const char *events_why_not(OsEvent event)
{
    switch (counters.why[event]) {
    case EACCES:
    case EPERM: return "not permitted (/proc/sys/kernel/perf_event_paranoid, or the rules of a container)";
    case EMFILE:
    case ENFILE: return "no descriptor is left";
    case ENOSYS: return "this kernel has no perf_event_open";
    default: return "this machine has no such counter, as most virtual ones";
    }
}

void events_forked(void)
{
    for (int e = 0; counters.opened && e < OS_EVENT_COUNT; e++)
        if (counters.counter[e] >= 0)
            os_event_close(counters.counter[e]);
    counters.opened = false;
}

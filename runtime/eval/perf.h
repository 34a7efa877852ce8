/*
 * What launches took, what limits them and what could be done: a line for each in KILN_LOG=perf, all together at the end of the process with
 * KILN_PERF=summary|csv. Under the evaluation lock.
 */
#ifndef RUNTIME_PERF_H
#define RUNTIME_PERF_H

#include "ir/base/log.h"
#include "ir/base/timeline.h"
#include "jit/work.h"
#include "runtime/device/device.h"
#include "runtime/eval/events.h"
#include "runtime/evaluation.h"

typedef enum Regime {
#define REGIME(id, name, near, far) REGIME_##id,
#include "runtime/eval/regimes.def"
#undef REGIME
    REGIME_COUNT
} Regime;

typedef struct Launched Launched;
/* A launch, or all launches of a step on a device. */
struct Launched {
    const Program *program; /* borrowed */
    const char *what;
    int64_t bytes;
    Work work;
    int64_t tasks, threads; /* how its last phase was shared out */
    int device;
    bool known; /* is it known what it computes? Not of a sort */
    Counted counted;
};

/* Does somebody want the time of each launch? */
static inline bool perf_timed(void) { return log_on(LOG_PERF) || option_int(OPT_PERF) != PERF_OFF || timeline_on(); }
static inline bool perf_counted(void) { return option_int(OPT_PERF) != PERF_OFF; }

/* Before a launch on the CPU whose time is wanted, and before a trace begins: measures the machine, where nobody did. */
void perf_look(void);
/* Limits of the host (a row of Launcher, run.h): as measured. */
bool perf_host_limits(int device, DeviceLimits *out);
/* Its time is known: into the log and the sums, where they are wanted. */
void perf_launched(const Launched *l, double seconds);
/* The launches since the last time were a program's, which was there; `seconds` after the sync point began. NULL: a call that had to wait for a
 * compile, or failed: not counted. */
void perf_call(const Program *program, double seconds);
void perf_forked(void); /* what was counted is the parent's */

/* What limits these launches together. */
typedef struct PerfLimit {
    const char *regime; /* static; NULL: what their device can reach is not known */
    double seconds;     /* that they take at least */
    double peak;        /* floating-point operations of f32 that the device does in a second at most */
} PerfLimit;
PerfLimit perf_limit(const Launched *l, int64_t launches);
double perf_percent(const PerfLimit *limit, double seconds); /* of the limit, reached by launches that took so long */

#endif

/*
 * Reading timelines (KILN_TRACE), for `kiln trace diff` and `kiln report`: line by line, as the library writes them (ir/base/timeline.c), an
 * event a line. So one that is larger than memory, was cut short, or whose process died, is read as far as it goes, in bounded memory.
 */
#ifndef CACHE_CLI_TRACE_READ_H
#define CACHE_CLI_TRACE_READ_H

#include "cache/cli/cli.h"
#include "ir/base/vec.h"

typedef struct TraceFile {
    const char *path, *version; /* of the library; NULL: its end is not there */
    int64_t lost, launches;     /* older events that were replaced; kernels that ran */
    int64_t bad;                /* lines that are no events */
    const char *limits;         /* JSON: what each device can do, as the process knew it; NULL: untold */
} TraceFile;

/* An event of the file, borrowed; false: it is none after all. */
typedef bool TraceTake(void *user, const json_t *event);
/* END_FINE, or the status to end with, all being said: there is no such file, or it is no trace. */
int trace_read(Cli *cli, const char *path, TraceFile *out, TraceTake *take, void *user);

/* A launch that a CPU ran, or what a device did: a CUDA launch is queued only, and tells no tasks. */
bool trace_is_kernel(const json_t *event);
/* A number of the event, or of its arguments, in nanoseconds: `ts`, `dur`. false: there is none, or no span is that long. */
bool trace_ns(const json_t *event, const char *name, double *ns);
int64_t trace_int(const json_t *event, const char *name);       /* of its arguments; 0: none */
const char *trace_text(const json_t *event, const char *name);  /* likewise; NULL */
const char *trace_field(const json_t *event, const char *name); /* of the event itself */

/* Times of which the median is asked for: all of them up to some thousands, then every second, every fourth... As floats: a time is not
 * measured to seven digits. */
typedef struct Samples {
    VEC(float) ns;
    uint32_t every;
    int64_t n;
    double total, least, most;
} Samples;
double samples_median(Samples *samples); /* sorts them; 0: there are none */

/* A kernel is known by its device, its name, its bytes and its flops: a graph may have changed around it. */
enum { TRACE_SIDES = 2 };
typedef struct TraceKernel {
    const char *name, *program, *regime; /* of its first launch; of its last one; NULL: untold */
    int64_t bytes, flops, specials, threads;
    int32_t device;            /* the CUDA device by whose clock it was timed; -1: the CPU */
    double limit;              /* ns that a launch takes at least; 0: untold */
    Samples time[TRACE_SIDES]; /* in each of two traces; [0] where there is one */
    struct TraceKernel *next;  /* of the same slot */
} TraceKernel;

enum { TRACE_SLOTS = 1 << 14 };
typedef struct TraceKernels {
    TraceKernel *slot[TRACE_SLOTS];
    VEC(TraceKernel *) all;
    uint32_t most;   /* of them */
    int64_t refused; /* launches of kernels beyond that */
    uint32_t taken;  /* samples of all: beyond some millions each kernel keeps fewer */
} TraceKernels;
/* "cpu", "cuda:0" */
const char *trace_device(const TraceKernel *kernel, Arena *arena);
/* Takes an event that is one of a kernel; false: it has no name or no time. */
bool trace_kernels_add(TraceKernels *kernels, Arena *arena, int side, const json_t *event);

#endif

/* One run of a program, or of a body inside of it: what runtime/eval/launch.c and launch_body.c share. */
#ifndef RUNTIME_RUN_H
#define RUNTIME_RUN_H

#include "runtime/device/device.h"
#include "runtime/eval/launch.h"
#include "runtime/eval/op.h"
#include "runtime/eval/perf.h"

typedef struct Run {
    Evaluation *e;
    const Program *p, *whole; /* what runs; the program that it lies in: that has the kernels, and a name */
    const int64_t *sizes;
    const Call *call;
    int device;
    const DeviceKind *kind;
    void **address, **args; /* of each buffer; of the step at hand */
    uint64_t *host;         /* scalars that the program makes of the call's */
    Storage *temps, *shared;
    Storage *rows;               /* of bands whose steps run one after the other */
    int64_t fault;               /* fault id that a kernel left here, 0: none */
    void *fault_word;            /* where kernels leave it: there, or a CUDA device's word */
    uint32_t *fault_node;        /* set with ST_INDEX */
    uint32_t overwrites;         /* on a CUDA device: from this step on inputs are overwritten; UINT32_MAX: none are */
    Launched last;               /* the step at hand, where somebody wants its time */
    struct Recording *recording; /* of the loops and branches that it is in, which the device will run (runtime/eval/launch_device.c) */
} Run;

/*
 * How programs run on a kind of device, one row each (launch_host.c, launch_cuda.c). Copies come after the launches so far; a read waits for
 * them. What may be NULL is not called where it is: a call through a table costs some nanoseconds of a hit.
 */
typedef struct Launcher {
    bool clocked;                                     /* the device's clock tells how long a launch took, and later */
    bool (*limits)(int device, DeviceLimits *out);    /* false: they are not known */
    bool (*may_overwrite)(const Run *run);            /* may any of its inputs be overwritten? NULL: yes */
    Status (*begin)(Run *run);                        /* or NULL: nothing is allocated yet */
    Status (*prepare)(Run *run, const bool *donated); /* or NULL: buffers are bound; donated: which inputs are overwritten, NULL: none */
    Status (*reads)(Run *run, Storage *storage);      /* or NULL: besides its inputs, this */
    Status (*reserve)(Run *run); /* or NULL: where inputs are overwritten, before the first step: all that steps may have to allocate */
    Status (*end)(Run *run, const Result *results, Status status); /* or NULL: whatever it came to; the status of it all */
    void (*timed)(Run *run);                                       /* run->last is wanted with its time */
    Status (*overwrites)(Run *run);                                /* from the next step on inputs are: where run->overwrites says so */
    Status (*kernel)(Run *run, const ProgStep *step);              /* its arguments are bound, but for what its steps share */
    Status (*bodies)(Run *run, const ProgStep *step, bool *done);  /* a loop or branch whole; NULL or *done = false: by iterations */
    /* A function of kiln's own on the device's memory; *done = false: it knows memory of the host alone. And one of a user's op. */
    Status (*library)(const Run *run, const Callee *callee, Loc loc, CallBuffer *in, uint32_t n_in, CallBuffer *out, uint32_t n_out,
                      bool *done);
    Status (*call)(const Run *run, const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out,
                   uint32_t n_out);
    Status (*copy)(const Run *run, void *to, const void *from, size_t bytes);
    Status (*read)(const Run *run, void *to, const void *from, size_t bytes);  /* to the host */
    Status (*write)(const Run *run, void *to, const void *from, size_t bytes); /* from the host, where it may change at once */
    Status (*zero)(const Run *run, void *to, size_t bytes);
    Status (*flush)(const Run *run); /* what was collected is queued */
} Launcher;

/* On a CUDA device: can an index turn out to be out of bounds in this program, or around it? */
static inline bool run_has_word(const Run *run) { return run->fault_word != &run->fault; }

/* Is a launch measured, and when did it begin for a timeline (0: that is not written)? What that needs is under the evaluation lock. */
static inline bool run_timed(const Run *run) { return !run->e->concurrent && perf_timed(); }
static inline int64_t run_traced(const Run *run) { return run->e->concurrent ? 0 : timeline_begin(); }

/* Scalars that are computed here and now (jit/host_scalars.h), before anything has run that could not be taken back. */
Status run_host(const Run *run);
void bind_args(Run *run, const ProgStep *step); /* into run->args */
Status run_step(Run *run, const ProgStep *step);
/* All steps of run->p, bands as such; until one fails or an index is out of bounds. */
Status run_steps(Run *run);

/* Steps that run together; what they may have to allocate, now: *together, or for one after the other, beside what each step does.
 * (runtime/eval/launch_band.c) */
Status run_band(Run *run, const ProgBand *band);
Status band_reserve(Run *run, const ProgBand *band, bool *together);

/* A LOOP or COND, whose arguments are in run->args. (runtime/eval/launch_body.c) */
Status run_bodies(Run *run, const ProgStep *step);
/* The steps of a body whose operands and results lie where in[] and out[] say, each time anew, worked out once (runtime/eval/launch_repeat.c).
 * *repeat is NULL where that is not possible; it is to be freed even on failure. */
typedef struct Repeat Repeat;
Status repeat_new(Run *run, void *const *in, void *const *out, Repeat **repeat);
Status repeat_run(const Repeat *repeat, Run *run); /* run->fault: an index was out of bounds */
void repeat_free(Repeat *repeat);

/* A SORT, of the host. (runtime/eval/launch_host.c) */
Status host_sort(const Run *run, const ProgStep *step);

/* A CALL. (runtime/eval/launch_op.c) */
Status run_call(Run *run, const ProgStep *step);
/* A user's op on a CUDA device, whose memory the buffers are. */
Status op_call_cuda(const Run *run, const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out,
                    uint32_t n_out);

#endif

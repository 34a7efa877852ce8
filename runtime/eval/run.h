/* One run of a program, or of a body inside of it: what runtime/eval/launch.c and launch_body.c share. */
#ifndef RUNTIME_RUN_H
#define RUNTIME_RUN_H

#include "runtime/eval/launch.h"
#include "runtime/eval/perf.h"

typedef struct Run {
    Evaluation *e;
    const Program *p, *whole; /* what runs; the program that it lies in: that has the kernels, and a name */
    const int64_t *sizes;
    const Call *call;
    int device;
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

/* On a CUDA device: can an index turn out to be out of bounds in this program, or around it? */
static inline bool run_has_word(const Run *run) { return run->fault_word != &run->fault; }

/* Is a launch measured, and when did it begin for a timeline (0: that is not written)? What that needs is under the evaluation lock. */
static inline bool run_timed(const Run *run) { return !run->e->beside && perf_timed(); }
static inline int64_t run_traced(const Run *run) { return run->e->beside ? 0 : timeline_begin(); }

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

/* A CALL. (runtime/eval/launch_op.c) */
Status run_call(Run *run, const ProgStep *step);

#endif

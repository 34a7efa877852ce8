/*
 * What fusion makes of a graph: kernels in launch order, what each argument is bound to, and the buffers between them.
 * Still in terms of the graph (Dims, scalar facts); jit/assemble.c turns it into a Program, which is plain data.
 */
#ifndef JIT_PLAN_H
#define JIT_PLAN_H

#include "ir/graph.h"
#include "jit/host_scalars.h"
#include "jit/kernel.h"

enum { NO_BUFFER = 0xffffffffu, NO_SLOT = 0xffffffffu };

typedef enum BufferKind {
    BUFFER_INPUT,
    BUFFER_OUTPUT,
    BUFFER_TEMP,
    BUFFER_BAND /* a temporary of which each thread has the rows that it is at (jit/fuse/bands.c) */
} BufferKind;

typedef struct PlanBuffer {
    uint8_t kind, dtype;
    Ref node;             /* whose value it holds; contiguous row-major, except inputs with strides */
    uint32_t index;       /* INPUT: which input */
    Dim numel, row;       /* elements; BAND: those of a row */
    uint32_t slot;        /* TEMP: which slot of the arena (lifetimes disjoint => slots shared); BAND: which slot of a thread's own */
    uint32_t alias_input; /* OUTPUT: an input whose storage may be taken over when the caller gives it up: same numel
                                    and dtype, contiguous, read for the last time by the step that writes this output, only
                                    at the index it writes; NO_BUFFER: none */
    uint32_t within;      /* TEMP: of a bucket, in whose memory it lies, ... (jit/buffers.c); NO_BUFFER: of none */
    Dim at;               /* ... from this element on */
    uint32_t first_step, last_step;
} PlanBuffer;

typedef enum BindKind { BIND_BUFFER, BIND_SIZE, BIND_SCALAR, BIND_HOST, BIND_SHARED, BIND_FAULT, BIND_NONE, BIND_SPANS } BindKind;

typedef struct PlanArg {
    uint8_t
        kind; /* BindKind, one to one with the kernel's ArgKind, but that SCALAR and HOST are ARG_SCALAR; NONE: a result that nobody reads */
    uint32_t buffer; /* index into Plan.buffers; SPANS: which of the band's */
    Dim size;
    uint32_t scalar; /* SCALAR: index into graph.scalars; HOST: index into Plan.host */
} PlanArg;

typedef enum StepKind {
    STEP_KERNEL,
    STEP_LOOP, /* args: BUFFERs of the operands, BUFFER or NONE for each result, SIZE count; bodies: the step, maybe the condition (ir/body.h) */
    STEP_COND, /* the same without a count; then, else */
    STEP_SORT, /* args: BUFFER in, BUFFER out, SIZE outer, SIZE n, SIZE inner, dtype of in, `descending` and `values` in the step: along
                                    the middle axis, stable, the places (i64) or the elements (jit/sort.c). On a CPU; for CUDA places are
                                    a kernel (jit/fuse/sorted.c) */
    STEP_CALL  /* of the user's function (CUSTOM): BUFFERs of the operands, BUFFER or NONE for each result. What it calls is told by the
                                    recorded node: neither program nor entry hold more of it than its name */
} StepKind;

typedef struct PlanStep {
    uint8_t kind;
    bool descending, values;
    bool placed; /* copies a buffer to where it lies in a bucket: the step goes (jit/buffers.c) */
    bool turns;  /* copies an operand of the next step, with what lies across its lanes along them (jit/fuse/turn.c) */
    Kernel *kernel;
    VEC(PlanArg) args;
    Dim bytes; /* bytes read and written, each buffer counted once: for statistics */
    const char
        *what; /* short readable name from its main ops, and functions (jit/fuse/names.c): "sin_mul_add", "matmul_add_gelu"; [a-z0-9_] */
    Ref node;  /* the main result, for messages; LOOP, COND, CALL: the node */
    struct Plan *bodies;
    uint32_t band; /* 1 + the band that it runs in; 0: none */
    bool folds;    /* in a band: a product whose sum is over the band's rows */
} PlanStep;

/* Steps that follow each other and are run together, some rows at a time (jit/fuse/bands.c). */
typedef struct PlanBand {
    uint32_t first, n;
    Dim batch, rows; /* how many rows there are: of each product, and how many products */
} PlanBand;
enum { BAND_STEPS = 16, BAND_SLOTS = 32, BAND_SPANS = 16 }; /* at most */
enum { SPAN_BYTES = 16 };                                   /* i64: the first column, the one behind the last */

typedef struct PlanFault { /* fault ids of KI_BOUND: id = index + 1 */
    Ref node;
} PlanFault;

typedef struct Plan {
    VEC(PlanBuffer) buffers;
    VEC(PlanStep) steps;
    VEC(PlanBand) bands;
    VEC(uint32_t) outputs; /* buffer of each graph output; may be an INPUT buffer or named twice */
    VEC(PlanFault) faults;
    VEC(HostScalar) host;
    uint32_t n_slots, n_band_slots;
    int64_t peak_with_reuse, peak_without; /* bytes, at the hints */
    uint64_t looks;                        /* at nodes, in all attempts at kernels: what planning cost, in a unit that no noise disturbs */
} Plan;

/* Fuses the graph (already optimised) into kernels and plans buffers. Guards through g->shared->query. Logs under
 * LOG_FUSION (a readable reason for every fusion not made), LOG_KERNELS and LOG_MEMORY. */
typedef struct JitOptions JitOptions;
Status jit_plan(Graph *g, const JitOptions *options, Plan *plan);
/* The same, and what LOG_FUSION says goes to `told` too (NULL: nowhere else). */
Status jit_plan_told(Graph *g, const JitOptions *options, Plan *plan, Str *told);

#endif

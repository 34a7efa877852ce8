/*
 * What each thread of the user has: free lists, the innermost scope, the nodes of the call being
 * recorded, its errors.
 *
 * One thread-local struct, reached with one address computation, so that recording takes no lock.
 * It is set up by the first call in a thread and torn down when the thread ends (its root scope
 * ends then; its free lists go to the process).
 */
#ifndef RUNTIME_THREAD_H
#define RUNTIME_THREAD_H

#include "runtime/function/trace.h"

typedef struct ErrorState ErrorState; /* runtime/api/error.c */

/* Storage that a thread keeps for itself: up to SMALL_BYTES, by its size in steps of 64; where several threads are at work, up to MIDDLE_BYTES, by size class
 * (eight for each doubling). */
enum { SMALL_BYTES = 1024, SMALL_STEP = 64, SMALL_CLASSES = SMALL_BYTES / SMALL_STEP };
enum { MIDDLE_BYTES = SMALL_BYTES << 8, MIDDLE_CLASSES = 8 * 8 };

/* A body of a loop or branch that is being recorded (runtime/record/bodies.h). */
typedef struct LoopBody {
    struct LoopBody *outer;
    uint32_t id;   /* of all that were ever recorded; never 0 */
    RtNode *index; /* the number of the iteration; NULL: it has none */
    bool again;    /* what it records is recorded once more, in another form (kiln_map) */
} LoopBody;

typedef struct RtThread {
    bool ready;
    uint32_t serial; /* another one for each thread; not 0 */
    uint32_t n_free_nodes, n_free_handles;
    uint32_t n_recorded;                           /* nodes made and not yet counted in the statistics */
    uint32_t n_traced;                             /* with KILN_TRACE: ops recorded since the last sync point, ... */
    int64_t recording;                             /* ... the first of them then; 0: none */
    RtNode *free_nodes;                            /* linked through RtNode.data */
    kiln_tensor *free_handles;                     /* linked through kiln_tensor.node */
    uint32_t small_bytes, middle_bytes;            /* of the data of ... */
    Storage *kept[SMALL_CLASSES + MIDDLE_CLASSES]; /* ... freed storage, by size; linked through Storage.user */
    kiln_scope *scope;                             /* innermost; the root scope at least, unless memory ran out */
    kiln_scope *free_scopes;
    struct Groups *group;   /* what is computed with gradients (runtime/gradient/group.h); NULL: none were recorded */
    kiln_recording *keeper; /* the innermost recording (runtime/gradient/recording.c); NULL: none */
    Body *body;             /* the innermost function of the user's that runs; NULL: none */
    kiln_mode *mode;        /* the innermost layer that is not masked (runtime/mode/mode.h); NULL: none */
    kiln_mode *mode_floor;  /* the one below the layer that is at work: not to be popped */
    struct OpAtWork *op;    /* the op of the user's whose function runs (runtime/eval/op.h); NULL: none */
    LoopBody *loop;         /* the innermost body of a loop or branch; NULL: none */
    uint8_t custom;         /* what of kiln_custom_gradient runs (runtime/gradient/custom.h); 0: nothing */
    uint32_t checkpoints;   /* how many of these are a kiln_checkpoint's */
    RtNode **temp;          /* nodes of the call being recorded (runtime/record/record.c) */
    uint32_t n_temp, cap_temp;
    ErrorState *error;
    struct Evaluation *evaluation;   /* runtime/evaluation.h; NULL: it evaluated nothing so far */
    int device;                      /* kiln_set_device; DEVICE_ANY: not set */
    struct CudaStream **cuda_stream; /* of each CUDA device, or NULL (runtime/cuda/cuda.c) */
} RtThread;

/* The innermost body that may only record; NULL: none. */
static inline const Body *body_that_records(const RtThread *t)
{
    const Body *body = t->body;
    while (body && !body->api)
        body = body->outer;
    return body;
}

extern _Thread_local RtThread rt_tls __attribute__((tls_model("initial-exec")));

void rt_thread_start(void);

static inline RtThread *rt_thread(void)
{
    if (!rt_tls.ready)
        rt_thread_start();
    return &rt_tls;
}

/* Counts this thread's nodes in the statistics (done now and then, so that recording takes no
 * shared counter). */
void nodes_count(RtThread *thread);

/* Looking at a thread's own scopes, from t->scope outwards. */
const kiln_scope *scope_around(const kiln_scope *scope); /* NULL: none */
uint32_t scope_size(const kiln_scope *scope);
kiln_tensor *scope_handle(const kiln_scope *scope, uint32_t i);

/* KILN_TRACE, once (runtime/api/option.c). */
void trace_from_environment(void);

/* Parts of the set-up and the teardown, each in the file that owns the thing. */
void errors_start_thread(RtThread *thread);
void scopes_end_within(RtThread *thread, const kiln_scope *scope); /* those inside of an open one */
void scopes_end_thread(RtThread *thread);
/* Every handle that a scope of this thread owns. */
void scopes_visit(void (*visit)(const kiln_tensor *x, void *user), void *user);
void nodes_end_thread(RtThread *thread);
void handles_end_thread(RtThread *thread);
void storages_end_thread(RtThread *thread);
void errors_end_thread(RtThread *thread);
void evaluation_end_thread(RtThread *thread);
void cuda_end_thread(RtThread *thread);

#endif

/*
 * Tensors inside: handles, recorded nodes, storage.
 *
 *   kiln_tensor (handle) --> RtNode (immutable meaning) --> RtNode inputs... --> Storage (data)
 *
 * A handle is what the user holds; kiln_assign makes it mean another node. A node is one recorded op; evaluating it sets
 * `storage` and, unless it is to `keep` them, lets its inputs go. Node fields other than storage, inputs (when evaluated), mark and index
 * never change after recording; those that do are guarded by the evaluation lock (runtime/eval/lock.c), or are the owner's while nobody has that, so
 * recording needs no lock. While a call runs without that lock, its pending nodes are claimed and change in no way.
 */
#ifndef RUNTIME_TENSOR_H
#define RUNTIME_TENSOR_H

#include "ir/graph.h"
#ifndef KILN_NO_LOCATIONS
#define KILN_NO_LOCATIONS /* inside, functions are called plainly */
#endif
#include "kiln.h"
#include <stdatomic.h>

typedef struct Storage {
    atomic_uint refs;     /* nodes (and exports) that use it */
    atomic_bool borrowed; /* wrapped or exported: never overwritten */
    bool ours;            /* from the pool, and goes back to it */
    bool lent;            /* the user's, who frees it in the deleter */
    bool read_only;       /* borrowed, and its owner lets nobody write: a mapped file, or DLPack said so */
    uint8_t device;       /* runtime/device/device.h */
    void *data;           /* 64-byte aligned when ours; the lowest address in use */
    size_t bytes;
    void (*deleter)(void *origin, void *user);
    void *origin, *user;
    struct CudaStream *_Atomic stream; /* a CUDA device: the stream that wrote it; */
    _Atomic uint64_t stamp;   /* of its values, where something was made of them that is kept (runtime/eval/constants.c); 0: nothing was */
    _Atomic uint64_t readers; /* those that have read it since, a bit each (runtime/cuda/cuda.h) */
    struct CudaFault *fault;  /* the same: why its values may turn out to be wrong (runtime/cuda/cuda_fault.c); NULL: they are right */
} Storage;

enum { NODE_INLINE_IN = 3, NODE_INLINE_FACTS = 4 };

typedef struct RtNode RtNode;

/* Nodes that others refer to besides their inputs (runtime/gradient/custom.h): one block of memory, which those share. */
typedef struct Held {
    atomic_uint refs;
    uint32_t n;
    RtNode **node; /* a reference each */
} Held;

struct RtNode {
    atomic_uint refs; /* handles and users */
    uint8_t op, dtype, rank;
    uint8_t device;     /* where it is to be computed (runtime/device/device.h); its storage knows where it is */
    bool weak;          /* a weakly typed scalar (kiln_scalar, kiln_int) or an expression of such */
    bool strided;       /* evaluated, with `stride` other than row-major (wraps) */
    bool given;         /* taken to be computed, while a graph is only looked at (runtime/eval/collect.c) */
    bool tracked;       /* a parameter's value or a float computed from one: gradients may be asked for (runtime/gradient/) */
    bool stop;          /* a constant to gradients */
    bool keep;          /* computed, it keeps its inputs, so that gradients may still be asked for */
    uint8_t seen;       /* marks of a walk, under the evaluation lock (runtime/gradient/group.c) */
    uint8_t checkpoint; /* inside of so many kiln_checkpoints, at most MAX_CHECKPOINT */
    uint8_t inside;     /* of a function of kiln_custom_gradient, a rule, or a body (runtime/gradient/custom.h); 0: none */
    uint8_t phase;      /* 0: forward; 1 to 3: a gradient (of a gradient, ...), or computed from one */
    uint32_t n_in, n_facts;
    RtNode **in;    /* inline_in or heap; each holds a reference */
    int64_t *facts; /* inline_facts or heap */
    Attr attr;
    int64_t dim[MAX_RANK];
    uint64_t scalar;          /* OP_SCALAR: bits in dtype; with `held`: which result it is */
    Storage *_Atomic storage; /* NULL: pending */
    char *data;               /* first element (storage->data plus an offset) */
    union {
        int64_t *stride;             /* in elements, when strided; heap */
        struct BodyResults *results; /* of a loop or branch, and of each of its results: a reference (runtime/record/bodies.h) */
    };
    Held *held; /* a result of kiln_custom_gradient: gradients flow by its rule, not through its input; a loop or branch: its bodies
                                 (runtime/record/bodies.h); NULL: it is none */
    struct Marks *marks; /* of its axes (runtime/api/mark.h); NULL: none; heap */
    Loc loc;
    const char *api;      /* the public function that recorded it; static text; NULL: memory of the user */
    uint32_t depth;       /* longest chain of pending nodes below, saturating: for splitting */
    uint32_t body;        /* the body that recorded it (LoopBody.id); 0: none */
    uint32_t mark, index; /* collection (runtime/eval/collect.c), under the evaluation lock */
    uint32_t after;       /* KILN_LOG=breaks: how many sync points came before it (runtime/eval/breaks.c) */
    uint32_t leaf;        /* a parameter's value, where gradients end: which parameter's; 0: none */
    uint32_t owner;       /* the thread that recorded it (RtThread.serial) */
    union {
        RtNode *inline_in[NODE_INLINE_IN];
        struct { /* tracked, and its inputs were let go: by which sync point */
            const char *api;
            Loc loc;
        } computed;
    };
    int64_t inline_facts[NODE_INLINE_FACTS];
};

struct kiln_tensor {
    RtNode *node;
    atomic_uint refs;  /* retains, plus one for the owning scope */
    uint32_t param;    /* which parameter it is (runtime/gradient/param.h); 0: none */
    kiln_scope *scope; /* NULL when no scope owns it any more */
    uint32_t scope_slot;
    atomic_uint listed; /* where in a thread's list of what is computed with gradients (runtime/gradient/group.h); 0: in none */
    uint32_t born;      /* which trace of a kiln_function made it (runtime/function/trace.h); 0: none */
};

/* Allocates a node with room for n_in inputs and n_facts facts, refs = 1. NULL: out of memory (fail() was called). Inputs and facts
 * are filled by the caller (inputs retained). */
RtNode *node_new(Op op, DType dtype, int rank, const int64_t *dims, uint32_t n_in, uint32_t n_facts);
RtNode *node_retain(RtNode *node);
void node_release(RtNode *node); /* iterative: depth costs no stack */
/* Under the evaluation lock: the node has its value now. Takes over one reference to `storage`; releases the inputs. */
void node_set_storage(RtNode *node, Storage *storage, char *data);
/* The same in two steps, of which only the second lets go of anything. */
void node_set_value(RtNode *node, Storage *storage, char *data);
void node_value_set(RtNode *node);
/* Of a node that has its value, and keeps nothing: what it was made of, to be released by the caller, to `to`. Returns how many. */
uint32_t node_take_inputs(RtNode *node, RtNode **to);
/* Under the evaluation lock: a node that kept its inputs lets them go as soon as it has its value; `api` is why. */
void node_let_go(RtNode *node, const char *api);
int64_t node_elements(const RtNode *node); /* their number */
/* Has it no value yet? */
static inline bool node_pending(const RtNode *node)
{
    return !atomic_load_explicit(&((RtNode *)(uintptr_t)node)->storage, memory_order_acquire);
}

Storage *storage_new(size_t bytes);       /* from the pool; counted in live/peak; NULL: out of memory (fail() was called) */
void storage_free_data(Storage *storage); /* memory that it made */
/* Borrows [data, data + bytes); in the end deleter(origin, user) is called. NULL: out of memory (fail() was called). */
Storage *storage_borrow(void *data, size_t bytes, void *origin, void (*deleter)(void *, void *), void *user);
/* A borrowed one is the user's, who frees it in `deleter` (NULL: or never). */
void storage_lend(Storage *storage, void (*deleter)(void *, void *));
void storage_trim(void); /* gives pooled memory back to the system */
Storage *storage_retain(Storage *storage);
void storage_release(Storage *storage);

/* A handle for a node (takes over the caller's reference) owned by this thread's innermost scope. NULL: out of memory, node released. */
kiln_tensor *tensor_new(RtNode *node);

/*
 * The heart of recording (runtime/record/record.c): checks by ir/infer.h, makes the node, under KILN_MODE=eager evaluates it at once.
 * Inputs must be non-NULL. Errors: NULL, with the message kept for the thread under public function `api`.
 */
kiln_tensor *record(const char *api, Loc loc, Op op, DType own, const Attr *attr, uint32_t n_in, kiln_tensor *const *in,
                    const int64_t *facts, uint32_t n_facts);

/* runtime/eval/breaks.c: the number of sync points so far. */
uint32_t breaks_passed(void);

/* runtime/eval.c: computes the values of the nodes (those that are pending). Returns with the thread's message set on failure. */
Status eval_nodes(RtNode *const *nodes, uint32_t n, const char *api, Loc loc);
/* The same; those that lie nowhere yet go to `device` (DEVICE_ANY: the thread's). */
Status eval_nodes_on(int device, RtNode *const *nodes, uint32_t n, const char *api, Loc loc);

/* runtime/api/error.c: keeps the first error of the thread as "api: message (file:line)"; with status ST_OK does nothing. */
Status error_keep(Status status, const char *api, Loc loc);
/* The same for a sync point: shown, not kept. Returns the public status; ST_OK does nothing. */
kiln_status error_sync(Status status, const char *api, Loc loc);
/* How many errors this thread was to keep so far; were there some since then that it has not cleared? */
uint64_t errors_raised(void);
bool errors_since(uint64_t before);
/* What was raised since then was none: somebody tried what he can do without. */
typedef struct ErrorMark {
    uint64_t raised;
    bool kept;
} ErrorMark;
ErrorMark errors_mark(void);
void errors_back_to(ErrorMark mark);
/* Is one kept that the thread has neither cleared nor got? */
bool errors_kept(void);
/* A sync point was given NULL: fails with the kept error and consumes it; with none, "`what` is NULL" (KILN_INVALID). */
kiln_status error_null(const char *what, const char *api, Loc loc);

#endif

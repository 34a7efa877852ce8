/*
 * A call: the pending graph behind some requested tensors, in canonical form -- structure, signature, facts, buffers
 * (DESIGN.md section 3). Made by runtime/eval/collect.c, served by runtime/eval.c. All under the evaluation lock.
 */
#ifndef RUNTIME_CALL_H
#define RUNTIME_CALL_H

#include "cache/memory.h"
#include "runtime/record/tensor.h"

/* At most this many pending nodes are compiled as one graph; a larger one is cut into several calls. */
enum { CALL_MAX_NODES = 8192 };

/* A growing heap array that is kept from call to call. */
#define BUF(T)         \
    struct {           \
        T *at;         \
        size_t n, cap; \
    }

/* Nodes of a call that an earlier walk met too (runtime/eval/breaks.c): of the latest walk of which there are any. */
typedef struct Again {
    uint32_t walk, n;
    size_t bytes;       /* of their values */
    const RtNode *node; /* the last of them */
} Again;

typedef struct Call {
    BUF(RtNode *) nodes;   /* in canonical order: inputs before users; evaluated nodes are the graph's inputs */
    BUF(uint32_t) outputs; /* canonical numbers of the requested nodes */
    BUF(uint32_t) inputs;  /* canonical numbers of the inputs */
    BUF(uint8_t) structure, signature;
    BUF(int64_t) ints;
    BUF(uint64_t) scalars;
    CallKey key;
    Facts facts;
    bool ordered;         /* some node, of bodies too, is a collective */
    int device;           /* where it runs (runtime/device/device.h); its inputs lie there */
    const uint32_t *held; /* a replayed function: how many references to each input the call itself holds; else NULL */
    uint32_t walk,
        evaluation;  /* numbers of this collection, which marks nodes, and of the sync point it is for (several, when a graph is cut) */
    Again again;     /* pending nodes that an earlier walk collected */
    Again reads;     /* inputs that an earlier walk met, as inputs or as results */
    CacheMemo *memo; /* a replayed function: its last hit; else NULL */
} Call;

typedef struct Evaluation Evaluation; /* runtime/evaluation.h */

/* Makes further outputs of the complete nodes that a later gradient would compute a second time, or, of a graph that is cut, the calls that
 * follow (runtime/eval/saved.c). ST_OUT_OF_MEMORY. */
Status call_save(Evaluation *e, bool is_cut);

/* The recorded node of a canonical number; those behind the call's own are inside of bodies (runtime/record/bodies.h). */
const RtNode *call_node(const Call *call, uint32_t number);
static inline Loc call_place(const Call *call, uint32_t number) { return call_node(call, number)->loc; }

static inline RtNode *call_output(const Call *call, size_t k) { return call->nodes.at[call->outputs.at[k]]; }

/* Serves one complete call: computes the values of its outputs. */
typedef Status ServeCall(Evaluation *e, Call *call, void *user);

/*
 * Walks the pending graph behind `roots` and hands it to `serve`, in several calls when it is larger than CALL_MAX_NODES.
 * Iterative: depth costs no stack. `keyed` bytes open the structure. ST_OUT_OF_MEMORY, ST_DEVICE (an input lies elsewhere), or what
 * `serve` returned.
 */
Status collect(Evaluation *e, RtNode *const *roots, uint32_t n_roots, int device, const uint8_t *keyed, size_t keyed_bytes,
               ServeCall *serve, void *user);

/* After a collect() whose `serve` only looks and computes nothing: nothing is taken to be computed any more. */
void collect_end(Evaluation *e);

/* Gives its nodes their numbers again, after other walks, which may have met its inputs, too. */
void call_renumber(const Call *call);

/* The call as a graph for compiling or interpreting; graph.ints and graph.scalars are the call's facts, in order. */
Graph *call_graph(const Call *call, Arena *arena);

/* Each scalar of the call, in the order of call->scalars. */
void call_scalars(const Call *call, void (*visit)(const RtNode *scalar, size_t k, void *user), void *user);

/* Marks the scalars that are arguments of every program: varies[k] for the k-th scalar. */
void call_arguments(const Call *call, bool *varies);

/* Which inputs are donated: nothing else will need them once the outputs have their values, so they may be overwritten. [k] for the k-th
 * input; valid until the next call. NULL: out of memory. */
const bool *call_donated(Evaluation *e, const Call *call);

/* The value of an output; with a reference to the storage for who gets it. */
typedef struct Result {
    Storage *storage;
    char *data;
} Result;

/* Indices into an axis: what there is to say when one is out of bounds. NO_AXIS: a loop that is not at its end after `size` steps. */
enum { NO_AXIS = -1 };
typedef struct IndexPlace {
    const char *api;
    Loc loc;
    int axis;
    int64_t size;
} IndexPlace;
IndexPlace index_place(const RtNode *node);
Status index_failed(const IndexPlace *place, const char *which); /* which: "index 7", or NULL; ST_INDEX, of a loop ST_INVALID */
/* The same for the node of this number, with the index where it is at hand. */
Status call_index_failed(const Call *call, uint32_t number);

/* Makes room for `want` elements; false: out of memory. */
#define BUF_RESERVE(buf, want) buf_reserve((void **)&(buf).at, &(buf).cap, sizeof *(buf).at, (want))
bool buf_reserve(void **at, size_t *cap, size_t size, size_t want);

#endif

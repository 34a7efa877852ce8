/*
 * Templates of kiln_functions (runtime/function/function.c): what a trace recorded, in a form that can be served again and again.
 *
 * A template is the pending graph as a Call (runtime/eval/call.h) whose inputs are placeholders, and where each value comes from at the
 * next call. Its nodes are copies of its own: what the user keeps of a trace is evaluated like anything else.
 * Made by runtime/function/template.c, replayed by runtime/function/replay.c.
 */
#ifndef RUNTIME_TEMPLATE_H
#define RUNTIME_TEMPLATE_H

#include "runtime/function/prepared.h"
#include "runtime/function/trace.h"

typedef enum SourceKind { FROM_ARG, FROM_HANDLE, FROM_NODE, FROM_RESULT } SourceKind;

/* Where a value comes from: argument k, a handle's current meaning, a fixed node, the call's k-th output. */
typedef struct Source {
    uint8_t kind;
    bool first; /* RESULT: no earlier source is the same */
    uint32_t index;
    kiln_tensor *handle; /* retained */
    RtNode *node;        /* retained */
} Source;

/* A random draw of the trace. */
typedef struct Draw {
    RtNode *counter, *key;
    uint64_t start, count;
    uint32_t counter_scalar, key_scalar; /* in the call; UINT32_MAX: the draw is not used */
} Draw;

/* A captured weak scalar: recording makes a number of it (runtime/record/record.c), so the template holds for that number alone. */
typedef struct Number {
    kiln_tensor *handle; /* retained */
    uint64_t bits;
    uint8_t dtype;
    bool pending;
} Number;

/* What a C function did while it was traced, besides recording. */
struct Trace {
    kiln_tensor *const *args; /* the stand-ins, alive while the trace runs ... */
    RtNode **arg_nodes;       /* ... and their nodes, retained */
    uint32_t n_args;
    BUF(kiln_tensor *) used;     /* handles from outside, retained */
    BUF(kiln_tensor *) assigned; /* handles from outside, retained */
    BUF(RtNode *) old;           /* what they meant before */
    BUF(Draw) draws;
    Status failed; /* ST_OK, or what went wrong with the trace itself ... */
    char *why;     /* ... and what was said of that */
    bool synced;
    Loc sync_loc;
    const char *sync_api;
};

typedef struct Template Template;
struct Template {
    Template *next;
    uint64_t options; /* options_generation it was traced under */
    unsigned mode;    /* modes_key; likewise */
    uint8_t *signature;
    size_t signature_bytes;
    Call call;       /* owns its arrays; a reference on each node (placeholders for the inputs) */
    Source *inputs;  /* of the call's inputs */
    Source *results; /* of the function's outputs, then of the assigned handles */
    kiln_tensor **assigned;
    uint32_t n_results, n_assigned, n_alike, n_numbers;
    kiln_tensor **alike; /* pairs of captured handles that meant one value: one source stands for both */
    Number *numbers;
    Draw *draws;
    uint32_t n_draws;
    uint64_t drawn; /* positions of the stream from the first draw to the last */
    int home;       /* the thread's device when it was traced; DEVICE_ANY: there was none */
    /* Room for replaying the long way, and what the last replay found. */
    bool replaying;
    CacheMemo memo;
    RtNode **now;    /* call.nodes with the inputs' current nodes and the fresh results in their places */
    RtNode **fresh;  /* by the call's outputs; a reference each */
    RtNode **values; /* by the template's results; a reference each */
    uint64_t *scalars;
    uint32_t *held;
    /* The fast path: the program of `memo`, prepared, while that is still the same. */
    bool repeats;         /* it can be; else nothing was tried, or to no avail */
    atomic_bool repeated; /* without the lock, since one was dropped last */
    bool dropped;         /* freed, as soon as nobody is on a seat */
    uint32_t users;       /* on seats */
    struct Seat *idle;    /* seats (runtime/function/replay.c); those of threads that have company are theirs (Evaluation.seats) */
    struct Variant *prepared_variant; /* what `memo` said then; NULL: nothing was tried */
    uint64_t prepared_generation;
    uint32_t prepared_number; /* of all that were prepared, which no other has (evaluation_next_number) */
};

/* The template of a finished trace whose results are roots[0..n): the function's outputs, then what the assigned handles would mean.
 * NULL: out of memory or too large for one program (fail() was called). */
Template *template_new(Evaluation *e, const Trace *trace, RtNode *const *roots, uint32_t n);
void template_free(Template *t); /* which nobody repeats */
void template_drop(Template *t); /* once nobody repeats it any more. Under the evaluation lock */
void seats_free(Template *t);    /* the idle ones */
void seats_end_thread(Evaluation *e);

/* Do the captured tensors mean what the trace took for granted: one value, the same number? */
bool template_holds(const Template *t);

/* Would another trace find them as this one did: where they lie in memory, their marks, what is a number? Replaying sees for itself. */
bool template_fits(const Template *t);

/* Serves the template with the current values: out[0..n_out) get fresh handles, the assigned handles their new meaning. `base` is
 * the random stream's position. *retrace: the template no longer fits (nothing was done). Under the evaluation lock, alone. */
Status template_replay(Evaluation *e, Template *t, kiln_tensor *const *in, kiln_tensor **out, int n_out, uint64_t base, Loc loc,
                       bool *retrace);

/* The fast way of serving it, where nothing has changed since it was served the long way; false: not this time, nothing was done. Kernels that take a
 * while run concurrently with evaluations. Under the evaluation lock, which it may give back and take again. */
bool template_repeat(Evaluation *e, Template *t, kiln_tensor *const *in, kiln_tensor **out, Loc loc, Status *status);
/* The same inside, where this thread repeated it the other way before. What it holds is in e->let_go then. *dropped: the template is no more of use, and
 * is this thread's to hold until template_release_own. */
bool template_repeat_own(Evaluation *e, Template *t, kiln_tensor *const *in, kiln_tensor **out, Loc loc, Status *status, bool *dropped);
void template_release_own(Evaluation *e, Template *t); /* outside */

/* What differs between two traces of one function on inputs of one kind, for a message; NULL: nothing, or captured tensors of other values
 * have become one, so that the traces cannot be compared. Values of draws may differ. */
const char *template_difference(const Template *a, const Template *b);

/* Handles for n_out values; all NULL on failure. */
Status template_hand_out(RtNode *const *values, kiln_tensor **out, int n_out);

/* Fresh pending nodes of the same meaning and marks: the second, a shell, with room for operands and facts that are still to be set. NULL:
 * out of memory (fail() was called). */
RtNode *node_like(const RtNode *node);
RtNode *node_shell(const RtNode *node, uint32_t n_in, uint32_t n_facts);

/* Another node for the data of an evaluated one, with its marks; not weak. NULL: out of memory (fail() was called). */
RtNode *node_of_data(const RtNode *node);

/* A number that was given (kiln_scalar, kiln_int), computed or not: recording copies it. */
static inline bool node_is_number(const RtNode *node) { return node->weak && node->op == OP_SCALAR; }

#endif

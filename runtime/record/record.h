/*
 * Recording: from a public call to nodes.
 *
 *     API2(kiln_tensor *, kiln_example, kiln_tensor *, x, int, axis)
 *     {
 *         Rec r = REC(kiln_example);
 *         RtNode *in = rec_in(&r, x, "x");
 *         ... rec_* functions ...
 *         return rec_end(&r, result);
 *     }
 *
 * A Rec is one public call being recorded: its name and place for messages. Every node made through
 * it is owned by it until rec_end, which turns the result into a handle and lets go of the rest; so
 * the code in between neither frees nor checks: all functions here take NULL operands and give NULL
 * back, the first failure keeps the thread's error under the call's name. Nodes returned are
 * borrowed. Only complete, checked nodes exist: a failure leaves nothing behind.
 */
#ifndef RUNTIME_RECORD_H
#define RUNTIME_RECORD_H

#include "ir/base/fp_mode.h"
#include "ir/infer.h"
#include "ir/fold.h"
#include "runtime/record/thread.h"

typedef struct Rec {
    const char *api;
    Loc loc;
    RtThread *thread;
    uint32_t base; /* thread->temp[base..] are this call's nodes */
    Status status; /* of its first failure */
    int device;    /* of the first operand that lies somewhere; DEVICE_ANY: none so far */
    bool derived;  /* it records a derivative, of what modes saw */
    FpMode caller; /* until rec_end */
} Rec;

/* Defines a public function and its twin that knows the caller's place; the body follows. */
#define API1(R, name, T1, a)                       \
    R name(T1 a) { return name##_at(a, NULL, 0); } \
    R name##_at(T1 a, const char *file, int line)
#define API2(R, name, T1, a, T2, b)                         \
    R name(T1 a, T2 b) { return name##_at(a, b, NULL, 0); } \
    R name##_at(T1 a, T2 b, const char *file, int line)
#define API3(R, name, T1, a, T2, b, T3, c)                           \
    R name(T1 a, T2 b, T3 c) { return name##_at(a, b, c, NULL, 0); } \
    R name##_at(T1 a, T2 b, T3 c, const char *file, int line)
#define API4(R, name, T1, a, T2, b, T3, c, T4, d)                             \
    R name(T1 a, T2 b, T3 c, T4 d) { return name##_at(a, b, c, d, NULL, 0); } \
    R name##_at(T1 a, T2 b, T3 c, T4 d, const char *file, int line)
#define API5(R, name, T1, a, T2, b, T3, c, T4, d, T5, e)                               \
    R name(T1 a, T2 b, T3 c, T4 d, T5 e) { return name##_at(a, b, c, d, e, NULL, 0); } \
    R name##_at(T1 a, T2 b, T3 c, T4 d, T5 e, const char *file, int line)
#define API6(R, name, T1, a, T2, b, T3, c, T4, d, T5, e, T6, f)                                 \
    R name(T1 a, T2 b, T3 c, T4 d, T5 e, T6 f) { return name##_at(a, b, c, d, e, f, NULL, 0); } \
    R name##_at(T1 a, T2 b, T3 c, T4 d, T5 e, T6 f, const char *file, int line)

/* Begins the record of the public function `name`, in a body made by API1..6. */
#define REC(name) rec_begin(#name, file, line)
Rec rec_begin(const char *api, const char *file, int line);
/* Ends it: a handle for `result`, owned by the innermost scope. NULL result: NULL. */
kiln_tensor *rec_end(Rec *r, RtNode *result);
/* A handle for one of several results, before rec_end(r, NULL) ends the call. */
kiln_tensor *rec_out(Rec *r, RtNode *result);

/* Keeps an error of this call and returns NULL: `return rec_fail(r, ST_SHAPE, "...")`. */
#define rec_fail(r, status, ...) rec_failed((r), fail((status), __VA_ARGS__))
RtNode *rec_failed(Rec *r, Status status);

/* The node an argument means; NULL with an error kept when it is NULL. `what` names it. */
RtNode *rec_in(Rec *r, kiln_tensor *x, const char *what);
/* An argument that may be left out: *in is NULL then. A NULL is also what a function that failed has returned, so while an error is kept it
 * counts as that: false, with an error kept. */
bool rec_optional(Rec *r, kiln_tensor *x, const char *what, RtNode **in);
/* x as what belongs to `like`, such as its cotangent: of its dtype and shape, or (a weak scalar) spread to it; else an error is kept. */
RtNode *rec_like(Rec *r, kiln_tensor *x, const RtNode *like, const char *what);
/* A node for a message: "f32[256,1024]", "weak float". buf has SHAPE_TEXT bytes. */
const char *node_text(const RtNode *x, char *buf);

/* Is what this call records computed at once (KILN_MODE=eager)? Not what is made of placeholders, nor on DEVICE_META. */
bool rec_is_eager(const Rec *r);

/* Hands a new node (NULL: there was no memory) to the call, which owns it until it ends. */
RtNode *rec_own(Rec *r, RtNode *node);

/* ---- nodes ---- */

/* The last steps of a node that was made by hand (NULL: there was no memory), whose in[] are still to be set: for what rec_node does not know. */
RtNode *rec_finish(Rec *r, RtNode *node, RtNode *const *in);
/* What an op gives of these operands, which are not NULL. */
Status rec_infer(Op op, DType own, const Attr *attr, uint32_t n_in, RtNode *const *in, const int64_t *facts, uint32_t n_facts, Shape *out);
/* One op, checked by ir/infer.h. */
RtNode *rec_node(Rec *r, Op op, DType own, const Attr *attr, uint32_t n_in, RtNode *const *in, const int64_t *facts, uint32_t n_facts);
RtNode *rec_bits(Rec *r, DType dtype, uint64_t bits); /* a scalar of rank 0 */
RtNode *rec_scalar(Rec *r, DType dtype, double value);
RtNode *rec_int(Rec *r, DType dtype, int64_t value);
/* An evaluated node over storage, whose reference it takes over. strides (in elements) NULL:
 * row-major. When memory runs out the storage is let go without calling its deleter. */
RtNode *rec_data(Rec *r, DType dtype, int rank, const int64_t *dims, Storage *storage, void *data, const int64_t *strides);
/* What elements with strides (NULL: row-major) take, counted in bytes from the first one. ST_OVERFLOW. (runtime/api/create.c) */
typedef struct StridedReach {
    int64_t low;  /* where the lowest is */
    size_t bytes; /* from there to the end of the highest */
    bool packed;  /* they lie row-major, without gaps */
} StridedReach;
Status strided_reach(DType dtype, kiln_shape shape, const int64_t *strides, StridedReach *reach);
RtNode *rec_iota(Rec *r, int64_t n);              /* i64: 0, 1, ... n - 1 */
RtNode *rec_cast(Rec *r, RtNode *x, DType dtype); /* x itself where it has the dtype; never weak */
RtNode *rec_strong(Rec *r, RtNode *x);            /* a weak scalar as f32, i64 or bool; others as they are */

/* Elementwise ops on operands of the right dtype; shapes are broadcast. */
RtNode *rec_ew1(Rec *r, Op op, RtNode *a);
RtNode *rec_ew2(Rec *r, Op op, RtNode *a, RtNode *b);
RtNode *rec_ew3(Rec *r, Op op, RtNode *a, RtNode *b, RtNode *c);

/* What a public elementwise function takes, and what it makes of its operands. */
typedef enum Prep {
    PREP_NUM,    /* numbers, promoted; bool alone is refused */
    PREP_SIGNED, /* the same for what needs a difference: says why */
    PREP_FLOAT,  /* promoted; ints and bools become f32 */
    PREP_ANY,    /* promoted */
    PREP_BITS,   /* ints or bools, promoted */
    PREP_INTS,   /* ints, promoted */
    PREP_TRUTH   /* cast to bool */
} Prep;
/* Brings n operands to one dtype. false: an error was kept. names: of the operands, for messages. */
bool rec_promote(Rec *r, Prep prep, int n, RtNode **x, const char *const *names);
/* The nodes of a list of n tensors, promoted; freed with os_free. NULL: an error was kept. (runtime/api/ops_view.c) */
RtNode **rec_list(Rec *r, kiln_tensor *const *tensors, int n);
/* Brings n operands to one shape. The same. */
bool rec_broadcast(Rec *r, int n, RtNode **x, const char *const *names);
/* The dtype that n operands promote to and whether it is weak. */
DType rec_common(int n, RtNode *const *x, bool *weak);

/* ---- shapes and views ---- */

bool rec_shape(Rec *r, kiln_shape shape);                   /* is it one? else an error is kept */
bool rec_axis(Rec *r, const RtNode *x, int axis, int *out); /* negative axes resolved */
bool rec_axes(Rec *r, const RtNode *x, kiln_axes axes, uint8_t *mask);
/* Broadcasts; the caller checked that it can be. */
RtNode *rec_expand(Rec *r, RtNode *x, int rank, const int64_t *dims);
/* Repeats the axes of mask, each of size 1, also to size 1: where an op knows which axes it repeats,
 * the structure must not depend on sizes. */
RtNode *rec_repeat(Rec *r, RtNode *x, uint8_t mask, const int64_t *dims);
/* To a shape of the same number of elements, for users: no groups of axes are known (ir/infer_reshape.c). */
RtNode *rec_reshape(Rec *r, RtNode *x, int rank, const int64_t *dims);
/* n axes from `axis` on become one, and back; n = 0 inserts or drops an axis of size 1. */
RtNode *rec_merge(Rec *r, RtNode *x, int axis, int n);
RtNode *rec_split(Rec *r, RtNode *x, int axis, int n, const int64_t *dims);
RtNode *rec_same(Rec *r, RtNode *x);               /* another node of the same value */
RtNode *rec_insert(Rec *r, RtNode *x, int axis);   /* an axis of size 1 that becomes `axis` */
RtNode *rec_drop(Rec *r, RtNode *x, uint8_t mask); /* drops axes of size 1 */
RtNode *rec_permute(Rec *r, RtNode *x, const uint8_t *perm);
/* start, step and length along one axis */
RtNode *rec_slice(Rec *r, RtNode *x, int axis, int64_t start, int64_t step, int64_t length);
RtNode *rec_concat(Rec *r, uint32_t n, RtNode *const *x, int axis);

/* A number of rank 0; refused where an int dtype does not hold it. (runtime/api/create.c) */
RtNode *rec_number(Rec *r, kiln_dtype dtype, double value);

/* ---- reductions, indexing ---- */

/* op over the axes of mask, which are dropped or stay as size 1. An empty mask gives x. */
RtNode *rec_reduce(Rec *r, Op op, RtNode *x, uint8_t mask, bool keepdims);
/* x as i64 indices; `what` names it. Not ints: an error. (runtime/api/ops_index.c) */
RtNode *rec_index(Rec *r, RtNode *x, const char *what);
RtNode *rec_gather(Rec *r, RtNode *x, RtNode *index, int axis); /* index: i64, x's dims but for the axis */
/* x, of one axis, as that axis of dims, repeated along the others; and the elements of x where a 1-D index says along an axis. */
RtNode *rec_spread(Rec *r, RtNode *x, int rank, const int64_t *dims, int axis);
RtNode *rec_take(Rec *r, RtNode *x, RtNode *index, int axis);
RtNode *rec_argsort(Rec *r, RtNode *x, int axis, bool descending);
/* Are the words that options keep for later zeros? Else an error is kept. */
enum { RESERVED = 8 };
bool rec_reserved(Rec *r, const uint64_t reserved[RESERVED]);
/* The number of elements that the axes of mask hold. */
int64_t rec_count(const RtNode *x, uint8_t mask);
/* The dtype that composites compute in: f64 for f64, f32 for all others. */
DType compute_dtype(DType dtype);

/* Each element of x, a float, is 0 with probability p, else x / (1 - p); the caller checked 0 <= p < 1. (runtime/api/random.c) */
RtNode *rec_dropout(Rec *r, RtNode *x, double p);

/* Handles p[0..n) mean these values from now on, each of its handle's dtype and shape: all or, when the call has failed or fails now,
 * none. (runtime/eval/sync.c) */
void rec_assign(Rec *r, size_t n, kiln_tensor *const *p, RtNode **value);

/* A node that was just recorded, and that nobody else has, becomes a constant to gradients; returns it. */
RtNode *rec_stop(RtNode *x);

static inline DType node_dtype(const RtNode *x) { return (DType)x->dtype; }

#endif

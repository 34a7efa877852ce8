/*
 * Modes: layers of a thread that see each op that is about to be recorded, before those below them; the lowest is recording itself.
 *
 *     rec_node ...                            runtime/record/record.c: is there a layer?
 *       -> mode_dispatch(op call)
 *            top layer, now masked            may record what it likes by the layers below: other ops, this one on other operands
 *              -> mode_next(op call) ... -> the node
 *
 * What a layer gives has the dtype and shape that the op has, so that functions made of several ops need not know of layers. Numbers
 * (kiln_scalar, literals) and views that only copy a node for its owner are not seen. Primitives, not public functions: one form instead
 * of hundreds; the public function's name comes along.
 */
#ifndef RUNTIME_MODE_H
#define RUNTIME_MODE_H

#include "runtime/record/record.h"

typedef struct OpCall {
    Op op;
    DType own; /* as for rec_node */
    const Attr *attr;
    uint32_t n_in;
    RtNode *const *in; /* borrowed, as all that Rec deals with */
    const int64_t *facts;
    uint32_t n_facts;
} OpCall;

/* A kind of layer: a row of runtime/mode/modes.def. */
typedef struct ModeKind {
    const char *pushed_by;                                      /* kiln_... */
    RtNode *(*op)(Rec *r, kiln_mode *mode, const OpCall *call); /* gives the result; NULL: an error is kept */
    void (*end)(kiln_mode *mode);                               /* when it is popped */
    bool
        replayed; /* what it does follows from modes_key: a kiln_function is traced once for each; else its body is run as a part of what is around */
} ModeKind;

struct kiln_mode {
    const ModeKind *kind;
    kiln_mode *below;
    uint8_t dtype;   /* autocast: of products; DT_F32: none */
    uint32_t hidden; /* autocast: by so many above it */
    kiln_mode_op *call;
    void (*end)(void *user);
    void *user;
    uint64_t n_ops; /* seen */
    void *state;    /* of the kind's own */
};

typedef enum ModeId {
#define KIND(id, pushed_by, op, end, replayed) LAYER_##id,
#include "runtime/mode/modes.def"
#undef KIND
} ModeId;

/* A new layer on top, for the kind's public function to fill. NULL: an error is kept. */
kiln_mode *mode_push(ModeId id, Loc loc);
bool mode_is(const kiln_mode *mode, ModeId id);

/* For the makers of nodes, where rt_thread()->mode is not NULL. */
RtNode *mode_dispatch(Rec *r, const OpCall *call);
/* By the layers below: inside of ModeKind.op. */
RtNode *mode_next(Rec *r, const OpCall *call);

/* The functions of modes.def. */
#define KIND(id, pushed_by, op, end, replayed)               \
    RtNode *op(Rec *r, kiln_mode *mode, const OpCall *call); \
    void end(kiln_mode *mode);
#include "runtime/mode/modes.def"
#undef KIND

/* What templates of kiln_functions depend on; modes_replayed: on nothing else. */
unsigned modes_key(const RtThread *t);
bool modes_replayed(const RtThread *t);
/* Pops what was pushed since the innermost one was `mode`: by a function that left them open. */
void modes_pop_to(RtThread *t, const kiln_mode *mode);
void modes_end_thread(RtThread *t);

#endif

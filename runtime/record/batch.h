/*
 * Recording a body for all indices at once: what kiln_map does with the function that it was given (runtime/api/map.c).
 *
 *     body:    %1 = matmul %x %w      x varies (it is one row of many), w does not
 *     batch:   x has a first axis, w is repeated along one, and matmul has one batch axis more
 *
 * It works on recorded nodes and not in the graph: there a batch would be one more kind of node, which gradients, layers, templates of functions and
 * eager mode had to know. So all of them see ops as any other, at the user's lines, and fuse them with what is around.
 */
#ifndef RUNTIME_BATCH_H
#define RUNTIME_BATCH_H

#include "runtime/record/bodies.h"

/* A value of the body: with the batch as its first axis, or (nothing that varies has a part in it) as it is. */
typedef struct Mapped {
    RtNode *node;
    bool varies;
} Mapped;

typedef struct Batch {
    Rec *r;
    int64_t n;    /* indices */
    RtNode *mask; /* bool[n]: those that run it, inside of a branch or loop that not all take; NULL: all do */
} Batch;

/* Records the body; out[k] for its outputs, borrowed. false: an error is kept. */
bool batch_inline(const Batch *b, const RtBody *body, const Mapped *in, const Mapped *captured, Mapped *out);
/* x with the batch as its first axis. */
RtNode *batch_spread(const Batch *b, Mapped x);
/* chosen[n] ? x : y for each index, x and y of one type. */
RtNode *batch_select(const Batch *b, RtNode *chosen, RtNode *x, RtNode *y);

/* Which outputs of a body vary: varies[0..) for its inputs, then what it captured. `masked`: Batch.mask will not be NULL. false: an error is kept. */
bool batch_varies(Rec *r, const RtBody *body, const bool *in, const bool *captured, bool masked, bool *out);
/* A loop or branch: all of its results. (runtime/record/batch_body.c) */
bool batch_body(const Batch *b, const RtNode *of, const Mapped *in, Mapped *result);
/* A call of the user's op. (runtime/record/batch_call.c) */
bool batch_call(const Batch *b, const RtNode *of, const Mapped *in, Mapped *result);
bool batch_body_varies(Rec *r, const RtNode *of, const bool *in, bool masked, bool *result);

#endif

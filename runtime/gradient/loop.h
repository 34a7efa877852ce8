/*
 * What the derivatives of loops and branches share (loop.c, loop_scan.c): the rule at work, room for its lists of handles, the body recorded
 * once more and differentiated.
 */
#ifndef RUNTIME_GRADIENT_LOOP_H
#define RUNTIME_GRADIENT_LOOP_H

#include "runtime/gradient/custom.h"
#include "runtime/gradient/param.h"
#include "runtime/record/bodies.h"

typedef struct Work {
    const DifferentiableBodies *d;
    kiln_tensor **in;         /* of the rule: the operands */
    const RtBody *body;       /* the one at work */
    uint32_t carries, xs, ys; /* of a scan; ys: the user's */
    uint32_t n_captured;
} Work;

static inline bool flows(const RtNode *node) { return dtype_is_float(node_dtype(node)); }

/* Is a gradient asked for with respect to operand k? */
static inline bool wanted(const Work *w, uint32_t k) { return flows(w->d->in[k]) && w->d->in[k]->tracked; }

static inline Rec begin(const Work *w) { return rec_begin(w->d->r->api, w->d->r->loc.file, w->d->r->loc.line); }

/* x and y for each float of a list. */
typedef struct Pairs {
    kiln_tensor **a, **b;
    int n;
} Pairs;

static inline void add_pair(Pairs *p, kiln_tensor *a, kiln_tensor *b)
{
    p->a[p->n] = a;
    p->b[p->n++] = b;
}

/* Room for all lists of handles. */
typedef struct Room {
    kiln_tensor **at;
    size_t used;
} Room;

static inline kiln_tensor **take(Room *room, size_t n)
{
    kiln_tensor **here = room->at + room->used;
    room->used += n;
    return here;
}

/* os_free(room.at). Without memory `at` is NULL, and an error is kept: what a rule leaves unset would be zero. */
Room loop_room(const Work *w);
/* The body on these inputs and captured values: handles of its outputs. */
bool loop_inline_body(const Work *w, kiln_tensor *const *in, kiln_tensor *const *captured, kiln_tensor **out);
/* Cotangents of the inputs `of` for the outputs and cotangents in `with`, to grads. */
bool loop_differentiate(const Work *w, const Pairs *with, int n, kiln_tensor **of, kiln_tensor **grads);
kiln_tensor *loop_zeros_like(const Work *w, const RtNode *like);
kiln_tensor *loop_sum(const Work *w, kiln_tensor *a, kiln_tensor *b);

/* The rule of kiln_scan: loop_scan.c. */
void scan_back(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user);

#endif

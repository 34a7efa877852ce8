/*
 * Parameters: handles whose values are leaves, where gradients end.
 *
 * The mark is the handle's (kiln_tensor.param, a number that no other parameter has) and stays when kiln_assign gives it another value; the
 * value's node knows whose leaf it is (RtNode.leaf). A node that others have as well is no leaf of anybody: the parameter gets one
 * of its own, of the same value, so that nothing that was computed from the other one ends there.
 */
#ifndef RUNTIME_PARAM_H
#define RUNTIME_PARAM_H

#include "runtime/record/record.h"

uint32_t param_new_id(void);

/* A node of x's value that is the leaf of a parameter: x itself where `only_owner`, the parameter's handle, has it. NULL: an error was kept. */
RtNode *param_value(Rec *r, RtNode *x, uint32_t param, bool only_owner);

/* The same for a handle that means an evaluated value since a kiln_function was called, which assigned it. ST_OUT_OF_MEMORY: its value is no
 * leaf, and gradients say so. */
Status param_assigned(kiln_tensor *p);

/* A tensor of one number, repeated, for the state of an optimiser: the caller owns it, and what uses it sees a tensor, of rank 0, too, and
 * no literal that a function would freeze. NULL: an error was kept. */
kiln_tensor *state_new(Rec *r, RtNode *number, int rank, const int64_t *dims);

/* The same value, through which no gradient flows. NULL for NULL, or an error was kept. */
RtNode *param_constant(Rec *r, RtNode *x);

/* A node takes the place of another of the same value. */
static inline void param_copy(RtNode *to, const RtNode *from)
{
    to->tracked = from->tracked;
    to->stop = from->stop;
    to->phase = from->phase;
    to->leaf = from->leaf;
    if (!from->tracked || node_pending(from))
        return;
    to->computed.api = from->keep ? "kiln_data" : from->computed.api;
    to->computed.loc = from->keep ? from->loc : from->computed.loc;
}

#endif

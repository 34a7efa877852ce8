/* The order among collectives, for those who record calls once more (runtime/comm/comm.h). */
#ifndef RUNTIME_CHAIN_H
#define RUNTIME_CHAIN_H

#include "runtime/record/record.h"

/* The order goes on where the operands lie: values on several devices have one order, too. Where they are on another device than before, a sync
 * point. On failure the error is kept. */
Status chain_move(const Rec *r);
/* What the next collective takes as its last operand; borrowed. NULL: an error is kept. */
RtNode *chain_operand(Rec *r);
/* It was recorded: `call`, whose last result is what the one after it takes. false: an error is kept. */
bool chain_advance(Rec *r, RtNode *call);
/* How many were recorded so far, this one among them: a number that grows. */
uint64_t chain_next(void);
/* Gradients flow backward in the order in which their collectives were recorded: was there one? */
bool chain_there(void);
/* A parameter that what is received is said to depend on, as a gradient flows on from there: on the rank that sent it. Borrowed; NULL:
 * nothing was received. */
kiln_tensor *chain_elsewhere(void);
/* Makes it. NULL: an error is kept. */
kiln_tensor *chain_open_elsewhere(void);

#endif

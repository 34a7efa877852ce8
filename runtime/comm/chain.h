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

#endif

/* Moving out of loops what is the same in each step: jit/hoist.c. */
#ifndef JIT_HOIST_H
#define JIT_HOIST_H

#include "ir/graph.h"

/* Of all loops in g and in the bodies in it, the inner ones first. Reads hints only, so no guards. How many values were moved. */
uint32_t hoist(Graph *g);

/* What may be computed elsewhere, and earlier: it cannot fail, and means the same there. And what is always worth being computed once. */
bool hoist_may_move(Op op);
bool hoist_is_work(const Node *n);

#endif

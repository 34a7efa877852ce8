/*
 * What is made of constants alone (kiln_mark_constant) leaves a graph: jit/constants.c. How a program is launched that reads such values:
 * runtime/eval/constants.c.
 */
#ifndef JIT_CONSTANTS_H
#define JIT_CONSTANTS_H

#include "ir/graph.h"

/* Graphs of one output each, of the same inputs as the graph that they left; in that, they are its inputs behind these. */
typedef VEC(Graph *) Constants;

/* Takes them out of g, which has no rewrites before it any more. packs: products compute light operands where they pack them
 * (jit/target.h). Reads hints, and guards that products have several rows where a turned operand is kept. What was kept, and what was not
 * though it is made of constants alone, is told under LOG_FUSION. */
void constants_apart(Graph *g, bool packs, Constants *out);

#endif

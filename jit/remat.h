/* Rematerialisation: jit/remat.c. */
#ifndef JIT_REMAT_H
#define JIT_REMAT_H

#include "ir/graph.h"

/* Gives the backward half of g copies of what it computes again. `how`: REMAT_AUTO, REMAT_OFF, REMAT_MEMORY (jit/options.h). Reads hints only,
 * so no guards. `bands`: products and what is done to their rows run some rows at a time (jit/fuse/bands.c). A graph without nodes of a phase
 * above 0 stays as it is. */
void remat(Graph *g, int how, bool bands);

#endif

/* Dropping what loops and branches compute and nobody reads: jit/trim.c. */
#ifndef JIT_TRIM_H
#define JIT_TRIM_H

#include "ir/graph.h"

/* Rewrites g, its bodies too. How many results left. */
uint32_t trim(Graph *g);

#endif

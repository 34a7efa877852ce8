/* What the makers of nests share (jit/nest.c, jit/nest_product.c). */
#ifndef JIT_NEST_BUILD_H
#define JIT_NEST_BUILD_H

#include "jit/nest.h"

typedef struct NestBuild {
    Nest *n;
    const KernelFacts *f;
    const Kernel *k;
    const Schedule *s;
    uint32_t x, r, rows; /* axes: of x, of r; those of rows, around what a point or a tile is */
    int tiles;           /* the axis of the tiles, or -1 */
    int64_t in_tile;     /* rows of windows in a tile; 0: the one that it is of */
    bool vec_r, split, joined;
    int64_t length; /* of r where that is constant, else -1 */
} NestBuild;

/* Behind the parent's children; NEST_NONE: behind the phases. */
NestRef nest_add(NestBuild *b, NestRef parent, NestNode node);
/* Do steps of so many points leave none? -1: it is not known how many there are. */
bool nest_whole_steps(int64_t points, int64_t by);
void nest_product(NestBuild *b);

#endif

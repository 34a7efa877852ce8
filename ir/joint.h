/* A joint graph: a forward half and the backward half that is its gradient; what goes from one to the other. */
#ifndef IR_JOINT_H
#define IR_JOINT_H

#include "ir/graph.h"

/* What is forward: nodes of phase 0, and what they are made of. forward[r] and live[r] for each node, in g's arena. false: there is no
 * backward half. */
bool joint_halves(const Graph *g, bool **forward, bool **live);

/*
 * Appends what the backward half reads of the forward half and what it computes again:
 *
 *     read of the forward pass: 37 values, 512.0 MB (most: %14 matmul f32[4096,1024] 16.0 MB net.c:31); computed again: 61 values, 1.9 GB
 *
 * Inputs, numbers and views do not count. `each`: and all of them, a line each. No newline at the end. false, and nothing: there is no
 * backward half. Sizes are those of the graph at hand. Reading is all that the graph says: where one kernel computes both
 * halves it reads no memory for that.
 */
bool joint_print(const Graph *g, bool each, Str *out);

/* "16.0 MB" */
void bytes_print(double bytes, Str *out);

#endif

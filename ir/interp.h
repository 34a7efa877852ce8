/*
 * The reference interpreter: the oracle. One plain function per class of op, one node after another, each into its own
 * buffer. Slow is fine; clever is not.
 */
#ifndef IR_INTERP_H
#define IR_INTERP_H

#include "ir/graph.h"
#include "ir/fold.h"

typedef enum InterpMode {
    INTERP_NATIVE, /* in each op's own dtype with the shared expansions: what strict mode must equal bit for bit */
    INTERP_F64     /* every float op in f64 with libm, results kept in f64 between ops: bounds the error of the others */
} InterpMode;

/*
 * Runs g with the hints as sizes, folds in the order of the device (ir/orders.def). inputs[k]: the data of the k-th INPUT (strided as its facts say; element size
 * of its dtype). outputs[k]: contiguous row-major room for the k-th output in its dtype -- in INTERP_F64 mode, for floating
 * outputs, room for doubles. ST_INDEX when a gather or scatter index is out of bounds (*bad_node is the node, maybe of a body; its element was
 * taken from the nearest valid index), ST_INVALID (a loop goes on beyond its bound), ST_OUT_OF_MEMORY.
 */
Status interp_run(const Graph *g, InterpMode mode, MathMode math, OrderDevice device, const void *const *inputs, void *const *outputs,
                  const Node **bad_node);

#endif

/*
 * Derivatives of graphs: reverse mode and forward mode, by the rows of ir/gradients.def.
 *
 * Both walk over the nodes that there are and add new ones behind them; what was there stays as it is. New nodes are merged with each other, never
 * with older ones (each recorded node is a value of its own, which somebody may ask the derivative with respect to), and have as
 * `origin` the node whose derivative they are.
 *
 * Structure of what is added depends on structure, and on whether a slice's step is 1, -1 or another, never on sizes: numbers that
 * a derivative needs and that are no sum or product of sizes at hand (the padding of a slice) become facts of their own.
 */
#ifndef IR_GRADIENT_H
#define IR_GRADIENT_H

#include "ir/graph.h"

/*
 * grad[i] = sum over k of cotangent[k]^T d out[k] / d in[i], of dtype and shape of in[i]; REF_NONE: no out[k] depends on it. Walks go on
 * beyond in[i], to others of `in`; a node with `stop`, and one that is no float, ends them. cotangent[k] is of dtype and shape of
 * out[k], a float. ST_UNSUPPORTED: an op on the way has no derivative (REFUSED); *refused is that node.
 */
Status gradient_vjp(Graph *g, uint32_t n_out, const Ref *out, const Ref *cotangent, uint32_t n_in, const Ref *in, Ref *grad, Ref *refused);
/* out_tangent[k] = sum over i of d out[k] / d in[i] tangent[i]; REF_NONE likewise. */
Status gradient_jvp(Graph *g, uint32_t n_in, const Ref *in, const Ref *tangent, uint32_t n_out, const Ref *out, Ref *out_tangent,
                    Ref *refused);

/* May a derivative flow from the k-th input of such a node to its result? By op and dtypes alone. */
bool gradient_flows(Op op, uint32_t k, DType in, DType result);
/* May the derivative of such a node read the value of its k-th input? That of the result counts, as it is made of all of them. */
bool gradient_reads(Op op, uint32_t k);

#endif

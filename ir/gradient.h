/*
 * Derivatives of graphs: reverse mode and forward mode, by the rows of ir/gradients.def.
 *
 * Both walk over the nodes that there are and add new ones behind them; what was there stays as it is. New nodes are merged with each other, never
 * with older ones (each recorded node is a value of its own, which somebody may ask the derivative with respect to), and have as
 * `origin` the node whose derivative they are.
 *
 * Structure of what is added depends on structure, on whether a slice's step is 1, -1 or another, and on whether the windows of a
 * convolution are one apart and about as many as elements (ir/gradient_windows.c), on no other sizes: numbers that a derivative needs and
 * that are no sum or product of sizes at hand (the padding of a slice) become facts of their own.
 */
#ifndef IR_GRADIENT_H
#define IR_GRADIENT_H

#include "ir/callee.h"

/*
 * A part of the graph whose derivative somebody else knows (runtime/gradient/custom.h): of in[0..n_in), each older than all of out, it made
 * out[0..n_out), which are nodes without inputs. Several may be one and the same value: out[k] is its number[k]-th result, of n_results.
 * With `rule` it is a call whose derivative kiln knows, and value[0..n_results) are its results.
 */
typedef struct GradientCall {
    uint32_t n_in, n_out, n_results;
    const Ref *in, *out;
    const uint32_t *number;
    const Callee *rule; /* NULL: GradientCalls knows it */
    const Ref *value;
    void *with;
} GradientCall;

/* How these are differentiated. Of a result of which nobody asked for anything, and one that is no float, `seed` is REF_NONE; for a rule also where
 * there would be zeros. */
typedef struct GradientCalls {
    uint32_t n;
    const GradientCall *call;
    bool (*has)(const GradientCall *call, bool forward); /* does it know the derivative in this mode? */
    /* Adds the derivative to the graph: reverse mode: got[i] is in[i]'s part of the cotangent, seed[r] that of the r-th result;
     * forward mode: got[r] is the tangent of the r-th result, seed[i] that of in[i]. Of the dtype and shape of what it belongs to; REF_NONE: zero. */
    void (*derive)(void *user, const GradientCall *call, bool forward, const Ref *seed, Ref *got);
    void *user;
} GradientCalls;

/*
 * grad[i] = sum over k of cotangent[k]^T d out[k] / d in[i], of dtype and shape of in[i]; REF_NONE: no out[k] depends on it. Walks go on
 * beyond in[i], to others of `in`; a node with `stop`, and one that is no float, ends them. cotangent[k] is of dtype and shape of
 * out[k], a float. `calls` may be NULL. ST_UNSUPPORTED: an op on the way (REFUSED), or
 * a call, has no derivative; *refused is that node.
 */
Status gradient_vjp(Graph *g, const GradientCalls *calls, uint32_t n_out, const Ref *out, const Ref *cotangent, uint32_t n_in,
                    const Ref *in, Ref *grad, Ref *refused);
/* out_tangent[k] = sum over i of d out[k] / d in[i] tangent[i]; REF_NONE likewise. */
Status gradient_jvp(Graph *g, const GradientCalls *calls, uint32_t n_in, const Ref *in, const Ref *tangent, uint32_t n_out, const Ref *out,
                    Ref *out_tangent, Ref *refused);

/* May a derivative flow from the k-th input of such a node to its result? By op and dtypes alone. */
bool gradient_flows(Op op, uint32_t k, DType in, DType result);
/* May the derivative of such a node read the value of its k-th input? That of the result counts, as it is made of all of them. */
bool gradient_reads(Op op, uint32_t k);

#endif

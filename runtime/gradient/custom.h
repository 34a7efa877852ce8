/*
 * kiln_custom_gradient: functions whose derivative is the user's.
 *
 * Both functions are called once, when the value is recorded, and what the derivative records is kept as a template: it is made of
 * placeholders for the inputs, the results and what is to be passed on. A gradient puts copies of its nodes into its graph
 * (runtime/gradient/gradient.c). So nothing of the user's is called later, errors have their place, and what a gradient recorded
 * may be differentiated again.
 *
 *     in --> f --> out --> result       result: the same value (a RESHAPE), whose `held` is a Custom.
 *     ^                      |          The walk of a gradient that comes to a result does not go through f: it applies a rule
 *     +-------- Custom <-----+          and goes on at `in`.
 *
 * A Custom refers to what f was given and made, never to the results, so nothing holds itself; a result lets go of it when it lets go of
 * its inputs.
 */
#ifndef RUNTIME_CUSTOM_H
#define RUNTIME_CUSTOM_H

#include "runtime/record/record.h"
#include "runtime/record/slot.h"

/* RtThread.custom, RtNode.inside: is this a function, the derivative of one, or a body of a loop or branch? From INSIDE_RULE on it may be made of
 * placeholders, which have no values. */
enum { INSIDE_FUNCTION = 1, INSIDE_RULE, INSIDE_BODY };

/* One mode of a derivative. Places: n_in inputs, n_out results, n_out cotangents, n_in tangents. */
typedef struct Rule {
    bool given;
    uint32_t n_made, n_captured, n_results;
    RtNode **made;     /* the template: what depends on a place, operands first */
    RtNode **captured; /* other operands, as they are */
    Slot *operand;     /* of made[0], made[1], ... */
    Slot *result;      /* a cotangent of each input (forward: a tangent of each result); SLOT_NONE: zero */
} Rule;

typedef struct Custom {
    Held held; /* first: what a gradient that comes to a result goes on at, inputs and captured nodes; then the rest */
    uint32_t n_in, n_out;
    uint32_t n_behind;
    uint32_t n_plain; /* results from here on are carries that a scan stacks: what flows to them goes on by another rule (bodies_rule) */
    bool of_bodies;   /* recorded by custom_of_bodies: it is the derivative of a loop or branch (runtime/gradient/loop.c) */
    bool of_results;  /* recorded by custom_of_results: `out` are the results themselves */
    uint64_t order;   /* of a collective: gradients flow backward in it (runtime/comm/chain.h); 0: it is none */
    RtNode **in, **out;
    Rule rule[2]; /* reverse mode, forward mode */
} Custom;

static inline const Custom *custom_of(const RtNode *node) { return (const Custom *)(const void *)node->held; }
/* Which result a node with `held` is. */
static inline uint32_t custom_number(const RtNode *node) { return (uint32_t)node->scalar; }
/* Does something flow through such an input or result? */
static inline bool custom_flows(const RtNode *node) { return dtype_is_float((DType)node->dtype) && !node->weak; }

/* kiln_custom_gradient for loops and branches: a rule that cannot be recorded (KILN_UNSUPPORTED) is one that is not given. result[k]: references. */
typedef struct CustomFunction {
    kiln_function_body *f;
    kiln_vjp_body *vjp;
    kiln_jvp_body *jvp;
    void *user;
    uint32_t n_plain; /* of its results (Custom) */
} CustomFunction;
Status custom_of_bodies(const char *api, Loc loc, const CustomFunction *function, uint32_t n_in, RtNode *const *in, uint32_t n_out,
                        RtNode **result);
/* The same for results that are there: one rule for them, which custom_release lets go of. An error is kept. */
Status custom_of_results(const char *api, Loc loc, const CustomFunction *function, bool forward, uint32_t n_in, RtNode *const *in,
                         uint32_t n_out, RtNode *const *out, Custom **custom);
void custom_release(Custom *custom);
/* kiln_custom_gradient for another public function, which errors are told of. */
kiln_status custom_gradient(const char *api, Loc loc, kiln_function_body *f, kiln_vjp_body *vjp, kiln_jvp_body *jvp, int n_in,
                            kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user);

/* A node for result k, which flows (custom_flows). */
RtNode *custom_result(Rec *r, const Custom *custom, uint32_t k);

/* A result once more, of a function whose inputs and results, and what its rules captured, are now other nodes: instead[k] for the first
 * n_behind + n_out of Custom.held. Results of one function are results of one again. */
typedef struct CustomsAgain {
    uint32_t n, cap;
    struct CustomAgain {
        const Custom *of;
        Custom *now; /* a reference */
    } * at;
} CustomsAgain;
RtNode *custom_again(Rec *r, CustomsAgain *all, const RtNode *of, RtNode *const *instead);
void customs_again_end(CustomsAgain *all);

#endif

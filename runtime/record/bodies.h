/*
 * Graphs inside recorded nodes: what kiln_while, kiln_scan and kiln_cond record (runtime/api/loop.c); and calls of the user's functions,
 * which have results in the same way, and no graph (runtime/api/op.c).
 *
 *     operands --> LOOP, COND, CUSTOM --> RESULT 0, RESULT 1, ...        only results have values, and only they are handed out
 *                    |  held: the Bodies, which copies of the node share (runtime/function/template.c)
 *                    v
 *                  what each function recorded, operands first
 *
 * A body is closed: what its function used from outside is an operand of the node. Nodes that were recorded by the function know it
 * (RtNode.body). They are never computed as they are; runtime/eval/collect.c writes them behind their node.
 */
#ifndef RUNTIME_BODIES_H
#define RUNTIME_BODIES_H

#include "ir/callee.h"
#include "runtime/record/record.h"
#include "runtime/record/slot.h"

typedef struct RtBody {
    uint32_t n_inputs, n_made, n_outputs; /* inputs: but for the captured ones, which follow them */
    RtNode **made;
    Slot *operand; /* of made[0], made[1], ...; SLOT_PLACE: an input */
    Slot *output;
    Slot *behind; /* what derivatives of the user's take that were recorded in it (body_n_behind of each node); NULL: they are not needed */
} RtBody;

typedef struct Bodies {
    Held held; /* first: all that was made */
    uint32_t n_bodies, n_results, n_nodes;
    RtBody body[2];
    bool reports;         /* the first result is what the finite check sees in them (runtime/mode/finite_body.c) */
    const Callee *callee; /* CUSTOM, which has no bodies: what is called, in the same block; NULL: it is none */
} Bodies;

/* The results of one node that are alive and have no value yet, without references to them. The node and its results share it, so that a
 * result finds it whatever another thread does to the result's operand meanwhile. A template's nodes have none. */
typedef struct BodyResults {
    atomic_uint refs;
    atomic_flag busy;
    RtNode *result[];
} BodyResults;

static inline bool node_has_bodies(const RtNode *node) { return op_class((Op)node->op) == CLS_BODY; }
static inline Bodies *bodies_of(const RtNode *node) { return (Bodies *)(void *)node->held; }

/* The k-th result that somebody could ask for, retained; NULL: nobody can any more. */
RtNode *bodies_result(const RtNode *node, uint32_t k);
/* Drops a reference to a result: was it the last one? */
bool bodies_drop_result(RtNode *result);
/* It has its value: nobody has to compute it any more. */
void bodies_forget_result(RtNode *result);
void body_results_release(BodyResults *results);

/* Each node inside of bodies, those of a node before the node's own bodies. */
typedef void BodiesVisit(const RtNode *node, void *user);
void bodies_visit(const RtNode *node, BodiesVisit *visit, void *user);

/* Building nodes in a graph, those with bodies too. scalar: the bits of a SCALAR, which are asked for in the order of collect.c. Nodes of bodies have
 * as origin the numbers from `origin` on. */
typedef struct BodiesBuild {
    Arena *arena;
    uint64_t (*scalar)(struct BodiesBuild *build, const RtNode *node);
    uint32_t origin;
} BodiesBuild;
Ref bodies_build(BodiesBuild *b, Graph *g, const RtNode *node, const Ref *in);

/* A node with the bodies of `of`, on other operands of the same types; and a result of such a node. */
RtNode *bodies_again(Rec *r, const RtNode *of, RtNode *const *in);
RtNode *bodies_result_new(Rec *r, RtNode *node, uint32_t k, const Shape *type);
/* Has a LOOP or COND what its derivative takes (bodies_rule)? And the type of its result k. */
bool bodies_have_rule(const RtNode *node);
/* Is result k one of the carries that a scan stacks for its derivative? */
bool bodies_stacked(const RtNode *node, uint32_t k);
Shape bodies_result_type(const RtNode *node, uint32_t k);
/* A node of a body, no result of a loop, on other operands of the same types; borrowed. */
RtNode *bodies_once_more(Rec *r, const RtNode *of, RtNode *const *in);
/* A node that calls `callee`, which is copied, on n_in operands, with results of these types. */
RtNode *bodies_call_new(Rec *r, const Callee *callee, uint32_t n_in, RtNode *const *in, uint32_t n_results, const Shape *type);
Shape call_result_type(const RtNode *call, uint32_t k);
/* Records what the body recorded, on these inputs and captured values: out[k] for its outputs, borrowed. false: an error is kept. */
bool bodies_inline(Rec *r, const RtBody *body, RtNode *const *in, RtNode *const *captured, RtNode **out);

/* A function that is recorded as a body: it gets inputs of these types and gives n_out values, strong ones. */
typedef struct BodyFunction {
    void (*call)(kiln_tensor **in, kiln_tensor **out, void *with);
    void *with;
    uint32_t n_in, n_out;
    const Shape *in;
    bool counts;     /* in[0] is the number of an iteration, which random draws are told apart by */
    uint32_t hidden; /* so many of what it gives, the first, are not the user's */
} BodyFunction;

typedef struct BodyMaking BodyMaking;
/* Runs the functions, which may only record (runtime/gradient/body.h), and records a node of `op` whose operands are `given` and what they used from
 * outside; result[k] gets a retained RESULT of type[k]. `check` sees what body `which` gave, before anything is made of it: an error that
 * it gives is kept. */
typedef struct BodiesRequest {
    Op op;
    Attr attr;
    const int64_t *facts;
    uint32_t n_facts, n_bodies, n_given, n_results;
    RtNode *const *given;
    const BodyFunction *function;
    Status (*check)(void *user, uint32_t which, RtNode *const *out);
    Status (*type)(void *user, uint32_t k, RtNode *const *out, Shape *type); /* of result k, by what the first function gave */
    void *user;
    bool
        differentiable; /* gradients flow through it (runtime/gradient/loop.c): a LOOP without a condition has its carries as further ys then */
    bool reports;       /* see Bodies */
} BodiesRequest;
Status bodies_record(Rec *r, const BodiesRequest *request, RtNode **result);

/* What a function recorded, for somebody who records it again in a form of his own; let go of by traced_end, also after an error. `check`
 * as above. */
typedef struct Traced {
    Bodies *bodies;
    uint32_t n_captured;
    RtNode **captured; /* references */
} Traced;
Status bodies_trace(Rec *r, const BodyFunction *function, Status (*check)(void *user, uint32_t which, RtNode *const *out), void *user,
                    Traced *traced);
void traced_end(Traced *traced);

/* The node and its results on n_in operands, as a function whose derivative is known: for a LOOP without a condition, the last n_results are its
 * carries, as many as these, stacked. result[k] retained. (runtime/gradient/loop.c) */
typedef struct DifferentiableBodies {
    Rec *r;
    const RtNode *node; /* a node of these operands that nobody has: a pattern */
    RtNode *const *in;
    const Shape *type; /* of the results */
    uint32_t n_results;
    bool of_stacked; /* reverse mode: cotangents of the stacked carries, and none of the others; else of all others */
} DifferentiableBodies;
Status bodies_differentiable(const DifferentiableBodies *d, RtNode **result);

/* The derivative of a node whose rules are not recorded with it, as bodies_have_rule tells: those that other rules record, and in reverse mode what
 * flows to the stacked carries of a scan, which second derivatives alone take. Of one direction; let go of by custom_release. An error is kept. */
struct Custom;
Status bodies_rule(RtNode *node, bool forward, bool of_stacked, struct Custom **rule);

#endif

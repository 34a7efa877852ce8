/*
 * Graphs inside nodes.
 *
 *   LOOP   operands: carries, xs, captured values. The step (bodies[0]) makes of i (i64), the carries, x[i] of each xs and the captured
 *          values the next carries and y[i] of each ys. The condition (bodies[1], if there is one; then there are no xs) makes
 *          of carries and captured values a bool: it is asked before each step, and the loop ends where it is false. Its ys are as long as it may be; what
 *          lies behind the last step is undefined.
 *          Results: the carries at the end, then the ys with a first axis. `reverse`: i goes down. `settles`: the condition is whether any element of
 *          a carry of bools is true; where one is false a step changes nothing of any carry that is not handed on, nor that. So it makes no
 *          difference which points take part in a step once they are false: what kiln_map makes of a loop that ends for each index by itself
 *   COND   operands: the predicate (a bool of rank 0), then what both bodies are given. Results: those of the body that ran
 *
 *   CUSTOM a call of the user's, or of LAPACK (ir/callee.h), which has no bodies: n results of attr.custom.type, whose dims are its facts. Equal calls are one node
 *
 * A body is closed: what it reads is an input of it. Its inputs have the sizes of the operands, from the one space of sizes that
 * it shares with the graph around, so a size is one size on both sides.
 */
#ifndef IR_BODY_H
#define IR_BODY_H

#include "ir/callee.h"
#include "ir/graph.h"

enum { MAX_BODIES = 2, MAX_BODY_DEPTH = 8 };

typedef struct BodyType {
    uint8_t dtype, rank;
    Dim dim[MAX_RANK];
} BodyType;

/* "step", "condition", "then", "else". */
const char *body_name(Op op, uint32_t which);
uint32_t body_least(Op op); /* so many a node of this op has, or up to MAX_BODIES */
/* A loop whose condition holds after all the steps that it was allowed. */
Status body_endless(Loc loc, int64_t steps);

uint32_t body_n_inputs(const Node *node, uint32_t which);
/* The operand that an input of a body is, REF_NONE: the step's i; `sliced`: it is the operand at index i of its first axis. */
uint32_t body_operand(const Node *node, uint32_t which, uint32_t input, bool *sliced);
uint32_t body_n_outputs(const Node *node, uint32_t which);
uint32_t body_n_results(const Node *node);

/* Of a node that is LOOP, COND or CUSTOM, in g or about to be: all but its bodies is set. */
BodyType body_input_type(const Graph *g, const Node *node, uint32_t which, uint32_t input);
/* The same, with its bodies. */
BodyType body_result_type(const Graph *g, const Node *node, uint32_t k);

/* NULL, or what is wrong with operands and attributes of such a node. */
const char *body_check_node(const Graph *g, const Node *node);
/* The same of its bodies, whose own graphs are verified too: sizes by their values. */
Status body_verify(const Graph *g, const Node *node);

/* An empty body of such a node, which is about to be added to g, with its inputs; and the node itself, of bodies that are complete: what must be
 * equal in every graph of the structure is unified; of a CUSTOM an equal one that is there already. */
Graph *body_new(Graph *g, const Node *node, uint32_t which);
Ref graph_add_body(Graph *g, const Node *node);
/* A result of such a node. */
Ref graph_add_result(Graph *g, Ref node, uint32_t k, Loc loc);
/* The node once more, on other operands of the same types. */
Ref graph_put_body(Graph *g, const Node *node, const Ref *in);
/* The operands of a node of another numbering; in the arena. */
const Ref *graph_operands(Arena *arena, const Node *n, const Ref *map);
/* Any node but an INPUT once more, in this graph or another of the same sizes. */
Ref graph_put_again(Graph *g, const Node *node, const Ref *in);

#endif

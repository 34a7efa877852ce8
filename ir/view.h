/*
 * A graph as passes of users see it (kiln_pass_register, docs/passes.md): looked at, asked, added to, replaced in.
 *
 *     nodes      0 ... view_nodes - 1: those that were there, operands before users; what the pass builds stands behind and is not walked
 *     facts      a size or number is asked through ir/query.h in the name of the pass, which leaves a guard; hints leave none
 *     building   what an op needs equal is asked, too: recording has not checked it for every graph of this structure
 *     replacing  users that were there read the new node, what the pass built reads what it was given
 *
 * Nothing that a caller gives may break the graph: what does not fit is the view's error, the first of which fails the pass. Memory that
 * runs out inside one of these functions is such an error, too: no jump passes through the caller.
 */
#ifndef IR_VIEW_H
#define IR_VIEW_H

#include "ir/graph.h"

typedef struct GraphView GraphView;

/* `who`: the pass, for guards; lives as long as programs. depth: of so many bodies. */
GraphView *view_begin(Graph *g, const char *who, int depth);
/* Puts the graph in order: its nodes are numbered anew. ST_COMPILE, ST_OUT_OF_MEMORY: the view's error; the graph is in no particular state. */
Status view_end(GraphView *v, uint32_t *built, uint32_t *replaced);
/* Notes the view's first error; the caller gets a value that says no. */
void view_fail(GraphView *v, Status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

int view_depth(const GraphView *v);
uint32_t view_nodes(const GraphView *v);
bool view_has(const GraphView *v, int64_t node); /* one that was there or was built */
const Node *view_node(const GraphView *v, Ref r);
uint32_t view_users(GraphView *v, Ref r, const Ref **users);
bool view_is_output(const GraphView *v, Ref r);
/* Texts live as long as the view; NULL: no memory. */
const char *view_attributes(GraphView *v, Ref r);
const char *view_text(GraphView *v, Ref r);

/* The same, asked: false where the program serves others, too. */
bool view_size(GraphView *v, Ref r, int axis, int64_t *size);
bool view_number(GraphView *v, Ref r, double *number); /* of a number, or one repeated */
int64_t view_size_now(const GraphView *v, Ref r, int axis);

/* Does the expression (ir/pattern.h) fit r? vars: what x, y, z, c are, REF_NONE where it has them not. Numbers in it are asked. */
bool view_match(GraphView *v, Ref r, const char *pattern, Ref vars[4]);

/* Building: REF_NONE where it cannot be, with an error if that is the caller's fault and none if sizes that would have to be equal vary. */
Ref view_op(GraphView *v, const char *op, const Ref *in, uint32_t n_in);
Ref view_constant(GraphView *v, DType dtype, double value);
Ref view_build(GraphView *v, const char *expression, const Ref vars[4]);
bool view_replace(GraphView *v, Ref old, Ref with);

#endif

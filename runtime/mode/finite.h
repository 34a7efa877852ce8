/*
 * The layer of kiln_finite_check_push: which op makes the first NaN or infinity out of finite operands?
 *
 * Beside each float result the place of its first element that is not finite is recorded, and the next sync point computes those places together with
 * what it was asked for: they are further outputs of the kernels that make the values, so what fuses without the layer fuses with it, and
 * no value in between is stored for it. A result that only hands on what was there (views, operands that are not finite themselves: masks of
 * -inf, data with gaps) is none that is told.
 *
 * So it is in the body of a loop or branch that is recorded under the layer (runtime/mode/finite_body.c): what its function records, forward
 * or backward, is looked at in each iteration, and the loop or branch gets one more result, which says what was the first. What the
 * condition of a kiln_while computes is not looked at: it has no such result.
 */
#ifndef RUNTIME_FINITE_H
#define RUNTIME_FINITE_H

#include "runtime/mode/mode.h"

typedef struct Finite Finite;

bool finite_pushed(const RtThread *t); /* has the thread such a layer? */
/* A sync point of this thread asks for nodes[0..*n): *all begins with them, and places follow; *n counts both. *all is NULL where there is nothing to
 * check; else to be freed by os_free. ST_OUT_OF_MEMORY. */
Status finite_roots(const RtThread *t, RtNode *const *nodes, uint32_t *n, RtNode ***all);
/* They were computed: ST_INVALID tells the first op that made something that is not finite. Nothing is left to check. */
Status finite_judge(const RtThread *t);
/* They cannot be: something that was recorded fails, which is told to who asks for it. */
void finite_forget(const RtThread *t);

/* ---- bodies ---- */

/* Are those that are recorded now looked into? */
bool finite_watches(const RtThread *t);

/* The checks of the body thread->loop, from before its function runs until finite_body_end. NULL: an error is kept. */
typedef struct FiniteChecks FiniteChecks;
FiniteChecks *finite_body_begin(Rec *r);
void finite_body_end(FiniteChecks **body);
/* Its report, after its function ran. before, i: of a loop, the report up to here and the number of the iteration; else NULL. */
RtNode *finite_body_report(Rec *r, FiniteChecks *body, RtNode *before, RtNode *i);
RtNode *finite_no_report(Rec *r);
Shape finite_report_type(void);
/* A node with bodies was recorded, whose report this is. */
void finite_reported(Rec *r, RtNode *report);

/* Records what the request asks for, with a report. */
struct BodiesRequest;
Status finite_bodies(Rec *r, const struct BodiesRequest *request, RtNode **result);
/* The node was recorded once more: what it reports is looked at. */
void finite_body_again(Rec *r, RtNode *node);

#endif

/*
 * What belongs to a gradient: the outputs' graph, the gradients, and what was assigned since. Computed together, none of it is computed twice.
 *
 *   kiln_grad(loss, p, n, g)     a group begins: g[0] to g[n - 1]
 *   kiln_assign(w, w - 0.1 g)    w's new value belongs to it
 *   kiln_item(loss)              needs what the gradients need as well (the products of the forward pass), so it computes w, too
 *
 * A sync point that is about to compute, as something in between, a value that members of a group need as well computes with it what was
 * assigned since the gradients were recorded; and where none of that is made of them, the gradients themselves. Only what some handle still
 * means: what nobody holds is not computed. Where that fails, what was asked for is computed alone, so a mistake in a gradient is an error of
 * whoever asks for the gradient. (A CUDA device tells of a bad index too late for that: there, nothing comes along that has an index which what
 * was asked for does not check.) KILN_JOINT=0: what was asked for and nothing else.
 *
 * Each thread has its own list. It counts as an owner of the handles in it, and lets go of one that has no other: at sync points, when a
 * scope ends, at kiln_release. In the trace of a kiln_function nothing is listed, as all of its results are one graph anyway.
 */
#ifndef RUNTIME_GROUP_H
#define RUNTIME_GROUP_H

#include "runtime/evaluation.h"
#include "runtime/record/thread.h"

/* In RtNode.seen: it was computed beside what a sync point asked for. */
enum { SEEN_IN_COMPANY = 128 };

/* Gradients were recorded: a new group. ST_OUT_OF_MEMORY: none, and nothing is listed. */
Status group_new(RtThread *t, int n, kiln_tensor *const *grads);
/* n more handles can be listed without a failure. ST_OUT_OF_MEMORY. */
Status group_reserve(RtThread *t, size_t n);
/* Handle p means another value now; after group_reserve. */
void group_assigned(RtThread *t, kiln_tensor *p);
/* Lets go of what has its value or no other owner. */
void group_sweep(RtThread *t);
/* Is anything? */
bool group_lists_any(const RtThread *t);
/* Is x listed by this thread? */
static inline bool group_lists(const RtThread *t, const kiln_tensor *x)
{
    return t->group && atomic_load_explicit(&((kiln_tensor *)(uintptr_t)x)->listed, memory_order_relaxed);
}
/* Under the evaluation lock: what a sync point that asks for `nodes` computes: *roots begins with them, *n counts them; a reference each, to be
 * given back by group_done. *roots is NULL where they are all. ST_OUT_OF_MEMORY. */
Status group_roots(Evaluation *e, RtNode *const *nodes, RtNode ***roots, uint32_t *n);
/* The sync point is over; `why` it failed (ST_OK: it did not): what was asked for is computed alone now. */
void group_done(Evaluation *e, RtNode **roots, uint32_t n, Status why);
void group_end_thread(RtThread *t);

#endif

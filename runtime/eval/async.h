/*
 * kiln_eval_async: values are computed by a thread of kiln's while the caller goes on (runtime/eval/async.c).
 *
 */
#ifndef RUNTIME_EVAL_ASYNC_H
#define RUNTIME_EVAL_ASYNC_H

#include "runtime/record/record.h"

/* Computes the nodes as eval_nodes() does, in another thread where that is possible, else here. A failure there arrives at the first sync point
 * that asks for one of the nodes. */
Status async_eval(RtNode *const *nodes, uint32_t n, const char *api, Loc loc);
/* A sync point asks for these: what is being computed is waited for, what is only queued is the caller's now. The status of what failed. */
Status async_settle(RtNode *const *nodes, uint32_t n);
void async_handle_forks(void); /* of runtime/eval/lock.c: its handlers are to come after these */

#endif

/* Compiling in the background, KILN_ASYNC_COMPILE (runtime/eval/background.c). All functions are called under the evaluation lock. */
#ifndef RUNTIME_BACKGROUND_H
#define RUNTIME_BACKGROUND_H

#include "runtime/eval.h"

/* Before a look-up: enters the programs that are finished. One load when there are none. */
void background_enter(const JitOptions *options);

uint32_t background_waiting(void); /* graphs queued, or being compiled */
bool background_done(void);        /* something is finished and waits to be entered */

/* A program was made because none fitted: the most general one of its signature is queued behind it. */
void background_generalise(const Evaluation *e, const Call *call, const Program *made);

/* A look-up ended at a general program: a better one is loaded from disk (and is *hit then) or queued, as a miss would have made it. */
void background_improve(Evaluation *e, const Call *call, CacheHit *hit);

/* A miss: if the most general program of its signature is on its way, gets it (waiting for it, or compiling it here). */
bool background_await(const Evaluation *e, const Call *call, CacheHit *hit);

/* A fork waits for a compile in flight; the child has no thread until it queues something. Before the log's handlers in fork's order:
 * called after log_handle_forks. */
void background_handle_forks(void);

#endif

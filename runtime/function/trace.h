/*
 * Tracing a kiln_function: what its C function used besides its inputs. The recording layer calls these hooks; outside a
 * trace each costs one thread-local load.
 */
#ifndef RUNTIME_TRACE_H
#define RUNTIME_TRACE_H

#include "runtime/record/tensor.h"

typedef struct Trace Trace;
extern _Thread_local Trace *trace_current;  /* NULL: this thread traces nothing */
extern _Thread_local uint32_t trace_serial; /* of this thread's last trace; never 0 in a trace */

/*
 * The body of a kiln_function while it runs: a C function of the user's, which must not pull away what its caller stands on. It may end
 * the scopes that it began; those that it leaves open are ended for it, and a result that lies in one of either moves to the scope
 * around. runtime/function/function.c makes it, runtime/record/scope.c asks.
 */
typedef struct Body {
    struct Body *outer;
    kiln_scope *floor; /* the innermost scope when it was called */
    kiln_tensor **out;
    int n_out;
    const char *api; /* it may only record, as this function calls it (runtime/gradient/body.h); NULL: a kiln_function's */
} Body;

/* What a new handle remembers: the trace that makes it. */
static inline uint32_t trace_birth(void) { return trace_current ? trace_serial : 0; }

void trace_note_use(kiln_tensor *t);
void trace_note_draw(RtNode *counter, RtNode *key, uint64_t start, uint64_t count);
void trace_note_assign(kiln_tensor *p);
void trace_note_sync(const char *api, Loc loc);

/* An operand of a recorded op. */
static inline void trace_use(kiln_tensor *t)
{
    if (trace_current)
        trace_note_use(t);
}

/* A random draw: the SCALAR nodes (u64) that hold the stream's position, `start`, and its key; `count` positions were used. */
static inline void trace_draw(RtNode *counter, RtNode *key, uint64_t start, uint64_t count)
{
    if (trace_current)
        trace_note_draw(counter, key, start, count);
}

/* kiln_assign changed what handle p means; called before the change. */
static inline void trace_assign(kiln_tensor *p)
{
    if (trace_current)
        trace_note_assign(p);
}

/* A sync point. */
static inline void trace_sync(const char *api, Loc loc)
{
    if (trace_current)
        trace_note_sync(api, loc);
}

#endif

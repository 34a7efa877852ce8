/*
 * Functions of the user's that are called once, while something is recorded, and that may only record (kiln_checkpoint,
 * kiln_custom_gradient): what they give is a part of what is recorded around them. They run in a scope of their own, on handles of their
 * own. Sync points, kiln_to, kiln_seed, kiln_set_device and assigning to a handle from outside are errors in them, kept with their own
 * line: a body is a value, whoever computes it, and how often.
 */
#ifndef RUNTIME_BODY_H
#define RUNTIME_BODY_H

#include "runtime/record/record.h"

typedef struct BodyRun {
    const char *api; /* the public function that runs it, and where */
    Loc loc;
    uint32_t n_in, n_out;
    RtNode *const *in; /* borrowed; of NULL the function gets NULL */
    RtNode **out;      /* a reference each, NULL on error; with `sparse` NULL where the function left one unset, too */
    void (*call)(kiln_tensor **in, kiln_tensor **out, void *with); /* calls it */
    void *with;
    bool checkpoint; /* gradients compute again what it records, but for the results */
    bool sparse;
    uint32_t hidden; /* so many of out, the first, are not the user's */
    uint8_t custom;  /* RtThread.custom while it runs; 0: as it was */
} BodyRun;

/* Errors are kept: the function's own, or one of out of memory, or that an output is unset. */
Status body_run(const BodyRun *run);

/* Is this thread in such a function? Then the error is kept, under the name and place of what it called. */
bool body_refuses(const char *api, Loc loc);
/* The same for assigning to p, which is allowed where the function made p. */
bool body_refuses_assign(const kiln_tensor *p, const char *api, Loc loc);

/* Handles in the innermost scope for n nodes, whose references are taken over; on error (kept) all are NULL. */
Status body_hand_out(const char *api, Loc loc, uint32_t n, RtNode **node, kiln_tensor **out);

/* Checks what such a public function was given: the nodes of in[0..n_in), borrowed, and room for n_out and `more` behind them, freed with
 * os_free; all of `out` is NULL from now on. Errors are kept, and told by r->status. */
RtNode **body_arguments(Rec *r, bool functions, int n_in, kiln_tensor *const *in, int n_out, kiln_tensor **out, size_t more);

#endif

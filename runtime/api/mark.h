/* Marks on tensors: which sizes the user wants as arguments of compiled code, and which never; whose values stay (runtime/api/mark.c). */
#ifndef RUNTIME_MARK_H
#define RUNTIME_MARK_H

#include "runtime/eval/call.h"

typedef enum MarkKind { MARK_NONE, MARK_DYNAMIC, MARK_STATIC, MARK_CONSTANT } MarkKind;

/* Of one node; heap memory of the node's. Changed under the evaluation lock. */
typedef struct Marks {
    uint8_t kind[MAX_RANK];
    int64_t min[MAX_RANK], max[MAX_RANK]; /* promised for a dynamic axis */
    Loc loc[MAX_RANK];                    /* where it was marked */
    bool constant;                        /* the whole of it: its values stay as they are */
} Marks;

/* Writes what the marks of a node add to a signature, at most MARKS_BYTES; returns the bytes written. */
enum { MARKS_BYTES = MAX_RANK * (2 + 2 * sizeof(int64_t)) + 1 };
size_t marks_signature(const RtNode *node, uint8_t *out);

/* A copy for a node that stands for another; false: out of memory (fail() was called). */
bool marks_copy(RtNode *to, const RtNode *from);

/* Are the marks of two nodes of one rank and dims the same, as far as programs go? */
bool marks_equal(const RtNode *a, const RtNode *b);

/* Brings the marks of the call's nodes into a policy (NULL: only checks them). ST_INVALID: two marks contradict each other; the message
 * names both places. */
Status marks_apply(const Call *call, const Graph *g, GuardPolicy *policy);

/* Adds the ranges that the call's dynamic marks promise to a policy, in the graph's arena. */
void marks_promise(const Call *call, const Graph *g, GuardPolicy *policy);

#endif

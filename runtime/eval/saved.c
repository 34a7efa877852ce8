/*
 * In a recording (runtime/gradient/recording.c): which values in between are computed for good, as further outputs.
 *
 * A gradient that is asked for later computes again what of the forward pass it needs and finds no value of. That is little for a chain of
 * elementwise ops and as much as the forward pass itself for products, sorts, scatters and scans. So of these the results are kept, where a
 * derivative may need them: where some user reads the value to get its own derivative (ir/gradients.def), or what is made of it is needed.
 * Of a product to which a bias is added it is the sum: the product alone is in no derivative then, and the sum is what its kernel
 * stores anyway.
 *
 * It follows from ops and wiring alone, never from sizes, so programs of one structure go on to be one entry. What was recorded
 * before the recording began is not kept: with a value it would forget how it was made.
 */
#include "ir/gradient.h"
#include "runtime/evaluation.h"

#include <string.h>

enum { NOBODY = UINT32_MAX, SEVERAL = UINT32_MAX - 1 };

static bool is_pending(const RtNode *node) { return node_pending(node) && !node->given; }

/* The recording holds it: others die when the outputs that they are made into let their inputs go. */
static bool may_save(const RtNode *node) { return is_pending(node) && node->keep; }

static bool is_dear(const RtNode *node)
{
    OpClass cls = op_class((Op)node->op);
    return cls == CLS_CONTRACT || cls == CLS_SORT || cls == CLS_SCATTER || cls == CLS_SCAN;
}

/* Is its value, if needed, one that is kept? */
static bool saved_at(const RtNode *node) { return is_dear(node) && may_save(node); }

/* The end of the sums behind node i that nothing but its kernel would see. */
static uint32_t end_of_sums(const Evaluation *e, uint32_t i)
{
    for (;;) {
        uint32_t user = e->user.at[i];
        if (user == NOBODY || user == SEVERAL)
            return i;
        const RtNode *node = e->call.nodes.at[user];
        if ((node->op != OP_ADD && node->op != OP_SUB && node->op != OP_NEG) || !may_save(node))
            return i;
        i = user;
    }
}

static Status add_output(Evaluation *e, uint32_t i)
{
    for (size_t k = 0; k < e->call.outputs.n; k++)
        if (e->call.outputs.at[k] == i)
            return ST_OK;
    if (!BUF_RESERVE(e->call.outputs, e->call.outputs.n + 1))
        return ST_OUT_OF_MEMORY;
    e->call.outputs.at[e->call.outputs.n++] = i;
    return ST_OK;
}

Status call_save(Evaluation *e)
{
    size_t n = e->call.nodes.n;
    if (!e->keeps)
        return ST_OK;
    if (!BUF_RESERVE(e->user, n) || !BUF_RESERVE(e->used, n))
        return ST_OUT_OF_MEMORY;
    bool *needed = e->used.at; /* its work is done */
    memset(needed, 0, n);
    memset(e->user.at, 0xff, n * sizeof *e->user.at);
    for (size_t i = n; i-- > 0;) {
        const RtNode *node = e->call.nodes.at[i];
        bool derived = node->tracked && !node->stop, made_again = needed[i] && !saved_at(node);
        for (uint32_t k = 0; is_pending(node) && k < node->n_in; k++) {
            uint32_t x = node->in[k]->index;
            e->user.at[x] = e->user.at[x] == NOBODY ? (uint32_t)i : SEVERAL;
            needed[x] |= made_again || (derived && gradient_reads((Op)node->op, k));
        }
        for (uint32_t k = 0; is_pending(node) && node->held && k < node->held->n; k++) /* a rule of the user's may read all it was given */
            if (node->held->node[k]->mark == e->call.walk)
                needed[node->held->node[k]->index] = true;
    }
    for (size_t i = 0; i < n; i++) {
        const RtNode *node = e->call.nodes.at[i];
        if (needed[i] && saved_at(node))
            TRY(add_output(e, end_of_sums(e, (uint32_t)i)));
    }
    return ST_OK;
}

/*
 * Which values in between are computed for good, as further outputs: in a recording (runtime/gradient/recording.c), and where a large graph is cut.
 *
 * A gradient that is asked for later computes again what of the forward pass it needs and finds no value of. That is little for a chain of
 * elementwise ops and as much as the forward pass itself for products, sorts, scatters, scans and calls. So of these the results are kept, where a
 * derivative may need them: where some user reads the value to get its own derivative (ir/gradients.def), or what is made of it is needed.
 * Of a product to which a bias is added it is the sum: the product alone is in no derivative then, and the sum is what its kernel
 * stores anyway.
 *
 * It follows from ops and wiring alone, never from sizes, so programs of one structure go on to be one entry. What was recorded
 * before the recording began is not kept: with a value it would forget how it was made.
 *
 * A graph that is cut (runtime/eval/collect.c) is alike: what the rest of it uses and has no value is computed once more there, a backward pass
 * behind a cut the whole forward pass. There what is used by more than the complete nodes is needed, as the count of its references tells.
 */
#include "ir/gradient.h"
#include "runtime/evaluation.h"

#include <string.h>

enum { NOBODY = UINT32_MAX, SEVERAL = UINT32_MAX - 1 };

static bool is_pending(const RtNode *node) { return node_pending(node) && !node->given; }

/* The recording holds it, or the rest of the graph does: others die when the outputs that they are made into let their inputs go. */
static bool may_save(const RtNode *node, bool is_cut) { return is_pending(node) && (is_cut || node->keep); }

static bool is_dear(const RtNode *node)
{
    OpClass cls = op_class((Op)node->op);
    bool of_call = cls == CLS_RESULT && node->in[0]->op == OP_CUSTOM;
    return cls == CLS_CONTRACT || cls == CLS_SORT || cls == CLS_SCATTER || cls == CLS_SCAN || of_call;
}

/* Is its value, if needed, one that is kept? */
static bool saved_at(const RtNode *node, bool is_cut) { return may_save(node, is_cut) && is_dear(node); }

/* Is node i of a graph that is cut used by more than its pending nodes? */
static bool outside(const Evaluation *e, uint32_t i, bool is_cut)
{
    RtNode *node = e->call.nodes.at[i];
    return is_cut && is_pending(node) && atomic_load_explicit(&node->refs, memory_order_relaxed) > e->uses.at[i];
}

/* The end of the sums behind node i that nothing but its kernel would see. */
static uint32_t end_of_sums(const Evaluation *e, uint32_t i, bool is_cut)
{
    for (;;) {
        uint32_t user = e->user.at[i];
        if (user == NOBODY || user == SEVERAL)
            return i;
        const RtNode *node = e->call.nodes.at[user];
        if ((node->op != OP_ADD && node->op != OP_SUB && node->op != OP_NEG) || !may_save(node, is_cut) || outside(e, i, is_cut))
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

/* For a later gradient of what is recorded, or, of a graph that is cut, for the rest. */
static Status save(Evaluation *e, bool is_cut)
{
    size_t n = e->call.nodes.n;
    if (!BUF_RESERVE(e->user, n) || !BUF_RESERVE(e->uses, n) || !BUF_RESERVE(e->used, n) || !BUF_RESERVE(e->output, n))
        return ST_OUT_OF_MEMORY;
    bool *needed = e->used.at; /* its work is done */
    memset(needed, 0, n);
    memset(e->user.at, 0xff, n * sizeof *e->user.at);
    memset(e->uses.at, 0, n * sizeof *e->uses.at);
    memset(e->output.at, 0, n);
    for (size_t k = 0; k < e->call.outputs.n && is_cut; k++) /* has a value for the rest, and is not made again */
        e->output.at[e->call.outputs.at[k]] = true;
    for (size_t i = n; i-- > 0;) {
        const RtNode *node = e->call.nodes.at[i];
        needed[i] |= outside(e, (uint32_t)i, is_cut); /* all users of it that are here are behind it */
        bool derived = !is_cut && node->tracked && !node->stop, made_again = needed[i] && !saved_at(node, is_cut) && !e->output.at[i];
        for (uint32_t k = 0; is_pending(node) && k < node->n_in; k++) {
            uint32_t x = node->in[k]->index;
            e->uses.at[x]++;
            e->user.at[x] = e->user.at[x] == NOBODY ? (uint32_t)i : SEVERAL;
            needed[x] |= made_again || (derived && gradient_reads((Op)node->op, k));
        }
        bool by_user = !is_cut && is_pending(node) && node->held; /* a rule of the user's may read all it was given */
        for (uint32_t k = 0; by_user && k < node->held->n; k++)
            if (node->held->node[k]->mark == e->call.walk)
                needed[node->held->node[k]->index] = true;
    }
    for (size_t i = 0; i < n; i++) {
        const RtNode *node = e->call.nodes.at[i];
        if (needed[i] && saved_at(node, is_cut))
            TRY(add_output(e, node->op == OP_RESULT ? (uint32_t)i : end_of_sums(e, (uint32_t)i, is_cut)));
    }
    return ST_OK;
}

Status call_save(Evaluation *e, bool is_cut)
{
    if (e->keeps)
        TRY(save(e, false));
    return is_cut ? save(e, true) : ST_OK;
}

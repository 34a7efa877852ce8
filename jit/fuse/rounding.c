/*
 * Which f16 and bf16 values may be used as they were computed, in f32, by those that read them.
 *
 * The rule (math=fast): an intermediate may stay unrounded only while nobody could tell. So it is rounded where it
 *   - is an output or is stored for another kernel or another stage: whoever reads it must see what is there;
 *   - is cast: the caller asked for its value;
 *   - is read in more than one place of the graph, views of it counted: y - y shifted by nothing is 0; one that a gradient computes
 *     again is read there as well;
 *   - is scattered or sorted, which move elements as they are.
 * What is left is a chain: one reader, which computes in f32 as well and rounds its own result, or sums up in f32. That is
 * a matter of the graph, not of a kernel, since several kernels may compute one node. So a node is decided here once, after the
 * last round, and instructions carry the answer to the emitter (KInst.unrounded), which drops what it may not use
 * (value_set). In strict mode every value is rounded.
 */
#include "jit/fuse/fuse.h"

enum { SEVERAL = UINT32_MAX };

void note_node(Build *b, Ref n, VRef v)
{
    KInst *inst = &b->k->inst.at[v];
    const Node *node = graph_node(b->f->g, n);
    if (!dtype_is_half((DType)inst->dtype))
        return;
    bool first = !inst->of && inst_graph_op(inst) == (Op)node->op;
    inst->of = first || inst->of == n + 1 ? n + 1 : SEVERAL; /* one of a reduction over axes of size 1 is its operand, too */
}

void note_same(KInst *inst, uint32_t of)
{
    if (inst->of != of)
        inst->of = SEVERAL;
}

/* Is n read once, by what computes with it in f32? `alone` is known for all later nodes. */
static bool read_once(const Fuser *f, Ref n, const bool *alone)
{
    const Node *it = graph_node(f->g, n);
    if (!dtype_is_half((DType)it->dtype) || it->again || it->copied || f->flags[n] & NODE_OUTPUT || f->user_at[n + 1] - f->user_at[n] != 1)
        return false;
    Ref reader = f->users[f->user_at[n]];
    const Node *node = graph_node(f->g, reader);
    switch (class_of(f, reader)) {
    case CLS_VIEW:
    case CLS_GATHER: return alone[reader];
    case CLS_EW: return node->op != OP_CAST;
    case CLS_REDUCE:
    case CLS_SCAN:
    case CLS_CONTRACT: return true;
    case CLS_SCATTER:
    case CLS_SORT:
    case CLS_BODY:
    case CLS_RESULT:
    case CLS_LEAF: break;
    }
    return false;
}

void choose_unrounded(Fuser *f)
{
    if (options_math(f->options) != MATH_FAST)
        return;
    bool *alone = ARENA_ARRAY(f->arena, bool, f->n + 1);
    for (Ref n = f->n; n-- > 0;)
        alone[n] = read_once(f, n, alone);
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        Kernel *k = f->plan->steps.at[s].kernel;
        for (VRef v = 0; k && v < k->inst.n; v++) {
            KInst *inst = &k->inst.at[v];
            bool known = inst->of && inst->of != SEVERAL;
            inst->unrounded = known && !inst->save && alone[inst->of - 1] && f->buffer_of[inst->of - 1] == NO_BUFFER;
        }
    }
}

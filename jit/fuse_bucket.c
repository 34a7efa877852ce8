/*
 * Buckets: what a collective carries of several tensors, one behind the other: a concat along the first axis that collectives alone read.
 *
 * Each operand has a step of its own that stores it there (form_concat). One that has no buffer is computed by that step. One that has,
 * since a product makes it or others read it too, would be copied; instead its buffer becomes a part of the bucket's, and the step
 * goes (jit/buffers.c), so that whoever makes it stores it in its place.
 */
#include "jit/fuse.h"

#include "ir/callee.h"

static bool is_collective(const Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n);
    return node->op == OP_CUSTOM && node->callee->ordered;
}

/* Do collectives read n, as it is or reshaped, and nothing else? */
static bool only_for_collectives(const Fuser *f, Ref n)
{
    bool only = !(f->flags[n] & NODE_OUTPUT) && f->user_at[n] < f->user_at[n + 1];
    for (uint32_t i = f->user_at[n]; i < f->user_at[n + 1] && only; i++) {
        const Ref user = f->users[i];
        only = is_collective(f, user) || (graph_node(f->g, user)->op == OP_RESHAPE && only_for_collectives(f, user));
    }
    return only;
}

void find_buckets(Fuser *f)
{
    for (Ref n = 0; n < f->n; n++) {
        const Node *node = graph_node(f->g, n);
        if (f->flags[n] & NODE_LIVE && node->op == OP_CONCAT && node->attr.axis == 0 && only_for_collectives(f, n))
            f->flags[n] |= NODE_BUCKET;
    }
}

/* Why the value of `source` cannot lie in a bucket from that element on; NULL: it can. */
static const char *not_in_place(Fuser *f, Ref source, const PlanBuffer *b, Dim at)
{
    enum { ALIGNED = 16 };
    const int64_t bytes = (int64_t)dtype_bytes((DType)b->dtype);
    if (b->kind == BUFFER_INPUT)
        return "it is an input";
    if (b->kind == BUFFER_OUTPUT)
        return "its value is asked for, too";
    if (b->within != NO_BUFFER)
        return "it lies in a bucket already";
    if (class_of(f, source) == CLS_RESULT)
        return "no kernel makes it";
    if (target_kind(&f->options->target)->aligns && dim_hint(f->g, at) * bytes % ALIGNED)
        return "it would not be aligned there";
    return NULL;
}

void place_in_bucket(Fuser *f, Unit *u, Ref n, Ref bucket, Dim at)
{
    const Ref source = strip_reshape(f->g, n);
    if (graph_node(f->g, source)->op != OP_INPUT && !has_buffer(f, source)) {
        reason(f, "%%%u is computed in its place in the bucket %%%u", n, bucket);
        return;
    }
    const uint32_t to = buffer_for(f, bucket), from = buffer_for(f, source);
    PlanBuffer *b = &f->plan->buffers.at[from];
    const char *why = not_in_place(f, source, b, at);
    if (why) {
        reason(f, "%%%u is copied into the bucket %%%u: %s", source, bucket, why);
        return;
    }
    reason(f, "%%%u is stored in its place in the bucket %%%u", source, bucket);
    b->within = to;
    b->at = at;
    u->steps.at[u->steps.n - 1].placed = true;
}

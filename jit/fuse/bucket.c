/*
 * Buckets: what a collective carries of several tensors, one behind the other: a concat along the first axis that collectives alone read.
 *
 * Each operand has a step of its own that stores it there (form_concat). One that has no buffer is computed by that step. One that has,
 * since a product makes it or others read it too, would be copied; instead its buffer becomes a part of the bucket's, and the step
 * goes (jit/buffers.c), so that whoever makes it stores it in its place.
 */
#include "jit/fuse/fuse.h"

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

static const PlanBuffer *buffer_of(const Asked *a) { return &a->f->plan->buffers.at[buffer_for(a->f, a->n)]; }

bool refuses_bucket_input(Asked *a) { return buffer_of(a)->kind == BUFFER_INPUT; }

bool refuses_bucket_output(Asked *a) { return buffer_of(a)->kind == BUFFER_OUTPUT; }

bool refuses_bucket_other(Asked *a) { return buffer_of(a)->within != NO_BUFFER; }

bool refuses_bucket_unmade(Asked *a) { return class_of(a->f, a->n) == CLS_RESULT; }

bool refuses_bucket_unaligned(Asked *a)
{
    enum { ALIGNED = 16 };
    const int64_t bytes = (int64_t)dtype_bytes((DType)buffer_of(a)->dtype);
    return target_kind(&a->f->options->target)->aligns && dim_hint(a->f->g, a->at) * bytes % ALIGNED;
}

void place_in_bucket(Fuser *f, Unit *u, Ref n, Ref bucket, Dim at)
{
    Asked asked = {.f = f, .n = strip_reshape(f->g, n), .at = at};
    if (graph_node(f->g, asked.n)->op != OP_INPUT && !has_buffer(f, asked.n))
        return;
    const uint32_t to = buffer_for(f, bucket), from = buffer_for(f, asked.n);
    const RefusalId why = refuse(GROUP_BUCKET, &asked);
    if (why && fuser_tells(f))
        VEC_PUSH(f->arena, f->reasons, ((Refused){.id = why, .n = asked.n, .root = bucket}));
    if (why)
        return;
    f->plan->buffers.at[from].within = to;
    f->plan->buffers.at[from].at = at;
    u->steps.at[u->steps.n - 1].placed = true;
}

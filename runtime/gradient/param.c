/* Marking parameters: see param.h. */
#define KILN_NO_LOCATIONS
#include "runtime/gradient/param.h"
#include "runtime/function/template.h"

#include <stdatomic.h>

uint32_t param_new_id(void)
{
    static atomic_uint last;
    return atomic_fetch_add(&last, 1) + 1;
}

static void make_leaf(RtNode *node, uint32_t param)
{
    node->tracked = true;
    node->stop = false;
    node->phase = 0;
    node->leaf = param;
}

static bool shared(const RtNode *node) { return atomic_load_explicit(&((RtNode *)(uintptr_t)node)->refs, memory_order_acquire) > 1; }

RtNode *param_value(Rec *r, RtNode *x, uint32_t param, bool only_owner)
{
    if (!only_owner || shared(x)) /* of what a trace captures it is a value in the graph: a call has another */
        x = node_pending(x) || trace_current ? rec_same(r, x) : rec_own(r, node_of_data(x));
    if (x)
        make_leaf(x, param);
    return x;
}

Status param_assigned(kiln_tensor *p)
{
    if (!p->param)
        return ST_OK;
    RtNode *node = p->node;
    if (shared(node)) {
        node = node_of_data(p->node);
        if (!node)
            return ST_OUT_OF_MEMORY;
        node_release(p->node);
        p->node = node;
    }
    make_leaf(node, p->param);
    return ST_OK;
}

kiln_tensor *state_new(Rec *r, RtNode *number, int rank, const int64_t *dims)
{
    const int64_t one[1] = {1};
    RtNode *whole = rank ? rec_expand(r, number, rank, dims) : rec_drop(r, rec_expand(r, number, 1, one), 1);
    kiln_tensor *x = rec_out(r, whole);
    return x ? kiln_retain(x) : NULL;
}

API1(kiln_tensor *, kiln_param, kiln_tensor *, x)
{
    Rec r = REC(kiln_param);
    char text[SHAPE_TEXT];
    if (x && x->param) {
        rec_end(&r, NULL);
        return x;
    }
    RtNode *node = rec_in(&r, x, "x"), *leaf = NULL;
    uint32_t id = param_new_id();
    if (node && node->weak)
        rec_fail(&r, ST_INVALID, "x is a %s: a number that is copied into what is recorded; use kiln_full(dtype, KILN_SHAPE(), value)",
                 node_text(node, text));
    else if (node && !dtype_is_float(node_dtype(node)))
        rec_fail(&r, ST_DTYPE, "x is %s: only floats have gradients", node_text(node, text));
    else if (node && trace_current && x->born != trace_serial)
        rec_fail(&r, ST_INVALID, "x is no value of this kiln_function: make it a parameter outside (inputs are parameters inside)");
    else if (node)
        leaf = param_value(&r, node, id, true);
    if (leaf && leaf != node) {
        node_release(node);
        x->node = node_retain(leaf);
    }
    if (leaf)
        x->param = id;
    rec_end(&r, NULL);
    return leaf ? x : NULL;
}

RtNode *param_constant(Rec *r, RtNode *x) { return x ? rec_stop(rec_same(r, x)) : NULL; }

API1(kiln_tensor *, kiln_stop_gradient, kiln_tensor *, x)
{
    Rec r = REC(kiln_stop_gradient);
    RtNode *in = rec_in(&r, x, "x");
    if (in && !in->tracked)
        return rec_end(&r, in);
    return rec_end(&r, param_constant(&r, in));
}

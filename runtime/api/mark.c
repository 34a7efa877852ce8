/*
 * kiln_mark_dynamic, kiln_mark_static and kiln_mark_constant.
 *
 * A mark belongs to a node, one for each axis: of an input of a graph, or of a value inside it. It enters two things: the signature, so
 * that calls with other marks have variants of their own, and the policy of a compilation. The signature holds the *value* of a static
 * axis: each value then has its own list of variants, within which the size never changes, so nothing will generalise it. It holds the
 * promised range of a dynamic one: a program may rely on that, because only calls with the same promise get it.
 * Inside a graph a size may be made of several facts: a dynamic mark is about all of them, a static one about one that stands alone.
 * Whether a node's values are to stay enters the signature alone: a graph in which they are has programs that keep what is made of them
 * (jit/constants.c), which those of other graphs do not.
 * A dim is fixed for the life of a node, so a promised range is checked once, when the axis is marked.
 */
#define KILN_NO_LOCATIONS
#include "runtime/api/mark.h"
#include "ir/base/os.h"
#include "runtime/eval.h"
#include "runtime/record/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PLACE_TEXT = 300 };

static const char *place_text(Loc loc, char *buffer)
{
    if (loc.file)
        snprintf(buffer, PLACE_TEXT, "%s:%d", loc.file, loc.line);
    else
        snprintf(buffer, PLACE_TEXT, "an unknown place");
    return buffer;
}

/* --- in a call ------------------------------------------------------------------------------------------------------ */

size_t marks_signature(const RtNode *node, uint8_t *out)
{
    uint8_t *at = out;
    for (uint8_t axis = 0; axis < node->rank; axis++) {
        if (node->marks->kind[axis] == MARK_NONE)
            continue;
        bool fixed = node->marks->kind[axis] == MARK_STATIC;
        int64_t range[2] = {fixed ? node->dim[axis] : node->marks->min[axis], fixed ? node->dim[axis] : node->marks->max[axis]};
        *at++ = node->marks->kind[axis];
        *at++ = axis;
        memcpy(at, range, sizeof range);
        at += sizeof range;
    }
    if (node->marks->constant)
        *at++ = MARK_CONSTANT;
    return (size_t)(at - out);
}

bool marks_copy(RtNode *to, const RtNode *from)
{
    if (!from->marks)
        return true;
    to->marks = os_alloc(sizeof *to->marks);
    if (!to->marks) {
        (void)fail(ST_OUT_OF_MEMORY, "no memory for the marks of a tensor");
        return false;
    }
    *to->marks = *from->marks;
    return true;
}

bool marks_equal(const RtNode *a, const RtNode *b)
{
    uint8_t x[MARKS_BYTES], y[MARKS_BYTES];
    size_t n = a->marks ? marks_signature(a, x) : 0, m = b->marks ? marks_signature(b, y) : 0;
    return n == m && memcmp(x, y, n) == 0;
}

/* An axis that has a mark of some kind, for the class of sizes it belongs to. */
typedef struct Marked {
    const RtNode *node;
    int axis;
} Marked;

static Status contradiction(const RtNode *a, int a_axis, const RtNode *b, int b_axis)
{
    char first[PLACE_TEXT], second[PLACE_TEXT], a_text[SHAPE_TEXT], b_text[SHAPE_TEXT];
    return fail(ST_INVALID, "axis %d of %s is marked %s at %s, axis %d of %s is marked %s at %s, but the graph needs the two equal", a_axis,
                node_text(a, a_text), a->marks->kind[a_axis] == MARK_STATIC ? "static" : "dynamic",
                place_text(a->marks->loc[a_axis], first), b_axis, node_text(b, b_text),
                b->marks->kind[b_axis] == MARK_STATIC ? "static" : "dynamic", place_text(b->marks->loc[b_axis], second));
}

/* What one axis means for the facts of its size; `policy` NULL: only look for contradictions. */
static Status apply_axis(const Graph *g, Marked mark, Dim dim, Marked *of_class, GuardPolicy *policy)
{
    uint8_t kind = mark.node->marks->kind[mark.axis];
    Marked *class = &of_class[dim_find(g, dim)];
    if (class->node && class->node->marks->kind[class->axis] != kind)
        return contradiction(class->node, class->axis, mark.node, mark.axis);
    *class = mark;
    uint32_t *facts, n = dim_facts(g, dim, &facts);
    if (!policy || (kind == MARK_STATIC && n != 1))
        return ST_OK;
    for (uint32_t i = 0; i < n; i++)
        (kind == MARK_STATIC ? policy->int_fixed : policy->int_varies)[facts[i]] = true;
    return ST_OK;
}

Status marks_apply(const Call *call, const Graph *g, GuardPolicy *policy)
{
    Marked *of_class = NULL;
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Node *node = graph_node(g, r);
        const RtNode *of = call->nodes.at[node->origin];
        if (!of->marks || node->rank != of->rank)
            continue;
        if (!of_class)
            of_class = ARENA_ARRAY(g->arena, Marked, g->shared->dims.n + 1);
        for (int axis = 0; axis < of->rank; axis++)
            if (of->marks->kind[axis] != MARK_NONE)
                TRY(apply_axis(g, (Marked){of, axis}, node->dim[axis], of_class, policy));
    }
    return ST_OK;
}

void marks_promise(const Call *call, const Graph *g, GuardPolicy *policy)
{
    VEC(PromisedRange) promised = {0};
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Node *node = graph_node(g, r);
        const RtNode *of = call->nodes.at[node->origin];
        for (int axis = 0; of->marks && node->rank == of->rank && axis < of->rank; axis++)
            if (of->marks->kind[axis] == MARK_DYNAMIC)
                VEC_PUSH(g->arena, promised, ((PromisedRange){node->dim[axis], of->marks->min[axis], of->marks->max[axis]}));
    }
    policy->promised = promised.at;
    policy->n_promised = promised.n;
}

/* --- the public functions ---------------------------------------------------------------------------------------------- */

static Status mark(kiln_tensor *x, int axis, MarkKind kind, int64_t min, int64_t max, Loc loc)
{
    RtNode *node = x->node;
    char text[SHAPE_TEXT], where[PLACE_TEXT];
    int at = axis < 0 ? axis + node->rank : axis;
    if (at < 0 || at >= node->rank)
        return fail(ST_SHAPE, "axis %d does not exist: x is %s, recorded at %s", axis, node_text(node, text), place_text(node->loc, where));
    if (min < 0 || min > max)
        return fail(ST_INVALID, "min %" PRId64 " and max %" PRId64 ": 0 <= min <= max is needed", min, max);
    if (node->dim[at] < min || node->dim[at] > max)
        return fail(ST_SHAPE, "axis %d of %s, recorded at %s, is %" PRId64 ": outside the promised %" PRId64 " to %" PRId64, axis,
                    node_text(node, text), place_text(node->loc, where), node->dim[at], min, max);
    if (node->marks && node->marks->kind[at] != MARK_NONE && node->marks->kind[at] != kind)
        return fail(ST_INVALID, "axis %d of %s is already marked %s at %s", axis, node_text(node, text),
                    kind == MARK_STATIC ? "dynamic" : "static", place_text(node->marks->loc[at], where));
    if (!node->marks && !(node->marks = os_calloc(1, sizeof *node->marks)))
        return fail(ST_OUT_OF_MEMORY, "no memory for the marks of a tensor");
    node->marks->kind[at] = (uint8_t)kind;
    node->marks->min[at] = min;
    node->marks->max[at] = max;
    node->marks->loc[at] = loc;
    return ST_OK;
}

static Status mark_constant(kiln_tensor *x)
{
    RtNode *node = x->node;
    if (!node->marks && !(node->marks = os_calloc(1, sizeof *node->marks)))
        return fail(ST_OUT_OF_MEMORY, "no memory for the marks of a tensor");
    node->marks->constant = true;
    return ST_OK;
}

static kiln_status mark_public(kiln_tensor *x, int axis, MarkKind kind, int64_t min, int64_t max, const char *api, Loc loc)
{
    if (!x)
        return error_null("x", api, loc);
    Status status = eval_enter(NULL);
    if (status == ST_OK) {
        status = mark(x, axis, kind, min, max, loc);
        eval_unlock();
    }
    return error_sync(status, api, loc);
}

API4(kiln_status, kiln_mark_dynamic, kiln_tensor *, x, int, axis, int64_t, min, int64_t, max)
{
    return mark_public(x, axis, MARK_DYNAMIC, min, max, "kiln_mark_dynamic", (Loc){file, line});
}

API2(kiln_status, kiln_mark_static, kiln_tensor *, x, int, axis)
{
    return mark_public(x, axis, MARK_STATIC, 0, INT64_MAX, "kiln_mark_static", (Loc){file, line});
}

API1(kiln_status, kiln_mark_constant, kiln_tensor *, x)
{
    const Loc loc = {file, line};
    if (!x)
        return error_null("x", "kiln_mark_constant", loc);
    Status status = eval_enter(NULL);
    if (status == ST_OK) {
        status = mark_constant(x);
        eval_unlock();
    }
    return error_sync(status, "kiln_mark_constant", loc);
}

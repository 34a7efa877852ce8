/*
 * The graph part of the key text (cache/key_text.h): structure and signature of a call, as text. What cache/memory.c compares as bytes
 * is all in it, readable; nothing else is: no size, number, path, address or order of allocation.
 *
 *     %0 = input f32[?,?]
 *     %1 = input f32[?,?] strided marks(dynamic 0, static 1=64, constant)
 *     %2 = mul f32[?,?] %0 %1
 *     %3 = reduce_sum f32[?] %2 axes(1)
 *     return %3
 */
#include "cache/entry.h"
#include "ir/attr.h"
#include "ir/body.h"
#include "runtime/api/mark.h"
#include "runtime/eval/store.h"
#include "runtime/record/bodies.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void add_type(const RtNode *node, Str *out)
{
    str_printf(out, " %s[", dtype_name((DType)node->dtype));
    for (int axis = 0; axis < node->rank; axis++)
        str_printf(out, axis ? ",?" : "?");
    str_printf(out, "]");
}

static void add_marks(const RtNode *node, Str *out)
{
    const char *between = " marks(";
    for (int axis = 0; node->marks && axis < node->rank; axis++) {
        if (node->marks->kind[axis] == MARK_NONE)
            continue;
        if (node->marks->kind[axis] == MARK_STATIC)
            str_printf(out, "%sstatic %d=%" PRId64, between, axis, node->dim[axis]);
        else
            str_printf(out, "%sdynamic %d=%" PRId64 ":%" PRId64, between, axis, node->marks->min[axis], node->marks->max[axis]);
        between = ", ";
    }
    if (node->marks && node->marks->constant) {
        str_printf(out, "%sconstant", between);
        between = ", ";
    }
    if (between[0] == ',')
        str_printf(out, ")");
}

static void add_input(const RtNode *node, Str *out)
{
    str_printf(out, "input");
    add_type(node, out);
    if (node->strided)
        str_printf(out, " strided");
    add_marks(node, out);
}

/* Attributes that the table of ir/attr.h does not know for this op: none so far, but the key must not depend on that. */
static void add_odd_attributes(const RtNode *node, Str *out)
{
    Attr rest = node->attr;
    unsigned fields = attr_info((Op)node->op).fields;
    if (fields & ATTR_AXES)
        rest.mask = 0;
    if (fields & ATTR_AXIS)
        rest.axis = 0;
    if (fields & ATTR_PERM)
        memset(rest.perm, 0, node->rank);
    if ((fields & ATTR_GROUPS) && rest.n <= 2 * MAX_RANK) {
        memset(rest.group.in, 0, rest.n);
        memset(rest.group.out, 0, rest.n);
        rest.n = 0;
    }
    if ((fields & ATTR_MODE) && rest.mode < 4)
        rest.mode = 0;
    if ((fields & ATTR_DESCENDING) && rest.flag == 1)
        rest.flag = 0;
    if (fields & ATTR_NUMBER)
        rest.n = 0;
    if (fields & ATTR_LOOP)
        memset(&rest.loop, 0, sizeof rest.loop);
    if (fields & ATTR_CUSTOM) {
        memset(&rest.custom, 0, sizeof rest.custom);
        rest.n = 0;
    }
    if (node->op == OP_SCALAR && rest.mode == SCALAR_ARGUMENT) {
        str_printf(out, " argument");
        rest.mode = 0;
    }
    static const Attr none;
    if (memcmp(&rest, &none, sizeof rest) == 0)
        return;
    str_printf(out, " attributes(");
    for (size_t i = 0; i < sizeof node->attr; i++)
        str_printf(out, "%02x", ((const uint8_t *)&node->attr)[i]);
    str_printf(out, ")");
}

static void add_bodies(const RtNode *node, int depth, Str *out);

/* What stands behind its operands. */
static void add_rest(const RtNode *node, int depth, Str *out)
{
    attr_print((Op)node->op, &node->attr, node->rank, out);
    add_odd_attributes(node, out);
    if (node->checkpoint)
        str_printf(out, " checkpoint(%u)", node->checkpoint);
    if (node->phase)
        str_printf(out, " phase(%u)", node->phase);
    add_bodies(node, depth, out);
}

static void add_op(const RtNode *node, Str *out)
{
    str_printf(out, "%s", op_name((Op)node->op));
    add_type(node, out);
    add_marks(node, out);
    for (uint32_t i = 0; i < node->n_in; i++)
        str_printf(out, " %%%" PRIu32, node->in[i]->index);
    add_rest(node, 1, out);
}

/* A node in a body: operands are %0 and so on what was made, i0 and so on inputs, c0 and so on captured. */
static void add_made(const RtNode *node, const Slot *operand, int depth, Str *out)
{
    static const char list[] = "ic%";
    str_printf(out, "%s", op_name((Op)node->op));
    add_type(node, out);
    for (uint32_t k = 0; k < node->n_in; k++)
        str_printf(out, " %c%" PRIu32, list[slot_list(operand[k])], slot_index(operand[k]));
    add_rest(node, depth + 1, out);
}

static void add_bodies(const RtNode *node, int depth, Str *out)
{
    static const char list[] = "ic%";
    const Bodies *bodies = node_has_bodies(node) ? bodies_of(node) : NULL;
    if (bodies && bodies->callee) {
        str_printf(out, " calls(");
        callee_print(bodies->callee, out);
        str_printf(out, ")");
    }
    for (uint32_t b = 0; bodies && b < bodies->n_bodies; b++) {
        const RtBody *body = &bodies->body[b];
        const Slot *operand = body->operand;
        str_printf(out, "\n%*s%s(%" PRIu32 ")", 2 * depth, "", body_name((Op)node->op, b), body->n_inputs);
        for (uint32_t m = 0; m < body->n_made; operand += body->made[m++]->n_in) {
            str_printf(out, "\n%*s%%%" PRIu32 " = ", 2 * depth + 2, "", m);
            add_made(body->made[m], operand, depth + 1, out);
        }
        str_printf(out, "\n%*sreturn", 2 * depth + 2, "");
        for (uint32_t k = 0; k < body->n_outputs; k++)
            str_printf(out, " %c%" PRIu32, list[slot_list(body->output[k])], slot_index(body->output[k]));
    }
}

void call_graph_text(const Call *call, Str *out)
{
    for (size_t i = 0; i < call->nodes.n; i++) {
        const RtNode *node = call->nodes.at[i];
        str_printf(out, "%%%zu = ", i);
        if (node_pending(node))
            add_op(node, out);
        else
            add_input(node, out);
        str_printf(out, "\n");
    }
    str_printf(out, "return");
    for (size_t i = 0; i < call->outputs.n; i++)
        str_printf(out, " %%%" PRIu32, call->outputs.at[i]);
    str_printf(out, "\n");
}

void call_key_text(const Call *call, Str *out)
{
    Str graph;
    str_init(&graph, out->arena);
    call_graph_text(call, &graph);
    key_line_add(out, "graph", graph.text, graph.len);
}

/* --- the name of the graph -------------------------------------------------------------------------------------------- */

typedef struct IdJob {
    const Call *call;
    CallId id;
} IdJob;

static Status id_in_arena(Arena *arena, void *user)
{
    IdJob *job = user;
    char name[ENTRY_NAME_BYTES];
    Str text;
    str_init(&text, arena);
    call_key_text(job->call, &text);
    entry_prefix(&(KeyText){NULL, text.text, 0, text.len}, false, name);
    snprintf(job->id.text, sizeof job->id.text, "%.*s", CALL_ID_HEX, name);
    return ST_OK;
}

CallId call_id(const Call *call)
{
    IdJob job = {.call = call, .id = {"?"}}; /* without memory */
    (void)with_arena(id_in_arena, &job);
    return job.id;
}

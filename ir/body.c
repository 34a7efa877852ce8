/* LOOP, COND and CUSTOM: what they and their bodies are given and give (ir/body.h). One place that knows the order of operands, inputs and
 * results. */
#include "ir/body.h"
#include "ir/infer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *body_name(Op op, uint32_t which)
{
    static const char *const names[][2] = {{"step", "condition"}, {"then", "else"}};
    return names[op == OP_COND][which];
}

uint32_t body_least(Op op) { return op == OP_COND ? 2 : op == OP_LOOP; }

Status body_endless(Loc loc, int64_t steps)
{
    char place[320] = "";
    if (loc.file)
        snprintf(place, sizeof place, " at %s:%d", loc.file, loc.line);
    return fail(ST_INVALID, "the loop%s is not at its end after %" PRId64 " steps: raise its max_steps, or look at its condition", place,
                steps);
}

static bool is_step(const Node *node, uint32_t which) { return node->op == OP_LOOP && which == 0; }

uint32_t body_n_inputs(const Node *node, uint32_t which)
{
    return node->op == OP_COND ? node->n_in - 1 : node->n_in + is_step(node, which);
}

uint32_t body_operand(const Node *node, uint32_t which, uint32_t input, bool *sliced)
{
    *sliced = false;
    if (node->op == OP_COND)
        return input + 1;
    if (!is_step(node, which))
        return input;
    if (input == 0)
        return REF_NONE;
    uint32_t first = node->attr.loop.carries;
    *sliced = input - 1 >= first && input - 1 < first + node->attr.loop.xs;
    return input - 1;
}

uint32_t body_n_results(const Node *node) { return node->op == OP_LOOP ? node->attr.loop.carries + node->attr.loop.ys : node->attr.n; }

uint32_t body_n_outputs(const Node *node, uint32_t which) { return node->op == OP_COND || is_step(node, which) ? body_n_results(node) : 1; }

static BodyType type_of(const Node *n)
{
    BodyType type = {.dtype = n->dtype, .rank = n->rank};
    memcpy(type.dim, n->dim, sizeof type.dim);
    return type;
}

BodyType body_input_type(const Graph *g, const Node *node, uint32_t which, uint32_t input)
{
    bool sliced;
    uint32_t operand = body_operand(node, which, input, &sliced);
    if (operand == REF_NONE)
        return (BodyType){.dtype = DT_I64};
    BodyType type = type_of(graph_node(g, node->in[operand]));
    if (sliced) {
        type.rank--;
        memmove(type.dim, type.dim + 1, sizeof *type.dim * type.rank);
    }
    return type;
}

static const Node *output_node(const Graph *body, uint32_t k) { return graph_node(body, body->outputs.at[k]); }

static BodyType call_result_type(const Node *node, uint32_t k)
{
    BodyType type = {.dtype = node->attr.custom.type[k] >> 4, .rank = node->attr.custom.type[k] & 15};
    uint32_t first = 0;
    for (uint32_t before = 0; before < k; before++)
        first += node->attr.custom.type[before] & 15u;
    memcpy(type.dim, node->fact + first, sizeof *type.dim * type.rank);
    return type;
}

BodyType body_result_type(const Graph *g, const Node *node, uint32_t k)
{
    if (node->op == OP_CUSTOM)
        return call_result_type(node, k);
    if (node->op == OP_LOOP && k < node->attr.loop.carries)
        return type_of(graph_node(g, node->in[k]));
    BodyType type = type_of(output_node(node->bodies[0], k));
    if (node->op == OP_COND)
        return type;
    memmove(type.dim + 1, type.dim, sizeof *type.dim * type.rank);
    type.dim[0] = node->fact[0];
    type.rank++;
    return type;
}

static const char *check_call(const Graph *g, const Node *node)
{
    if (!node->callee)
        return "it does not say what it calls";
    for (uint32_t k = 0; k < node->n_facts; k++)
        if (dim_hint(g, node->fact[k]) < 0)
            return "a result has less than 0 elements";
    return NULL;
}

const char *body_check_node(const Graph *g, const Node *node)
{
    bool call = node->op == OP_CUSTOM;
    if (call && (node->attr.n == 0 || node->attr.n > MAX_CALL_RESULTS))
        return "it has no results, or too many";
    for (uint32_t k = 0; call && k < node->attr.n; k++)
        if (node->attr.custom.type[k] >> 4 >= DT_COUNT || (node->attr.custom.type[k] & 15) > MAX_RANK)
            return "a result has no dtype or too many axes";
    for (uint32_t k = 0; k < node->n_in; k++)
        if (op_class((Op)graph_node(g, node->in[k])->op) == CLS_BODY)
            return "an operand has no value";
    if (node->n_facts != infer_fact_count((Op)node->op, &node->attr, 0))
        return "wrong number of facts";
    if (call)
        return check_call(g, node);
    if (node->op == OP_COND) {
        const Node *predicate = node->n_in ? graph_node(g, node->in[0]) : NULL;
        return predicate && predicate->dtype == DT_BOOL && predicate->rank == 0 ? NULL : "the predicate is no bool of rank 0";
    }
    uint32_t carries = node->attr.loop.carries, xs = node->attr.loop.xs;
    if (carries + xs > node->n_in)
        return "fewer operands than carries and xs";
    if (dim_hint(g, node->fact[0]) < 0)
        return "it runs less than 0 times";
    for (uint32_t k = carries; k < carries + xs; k++) {
        const Node *x = graph_node(g, node->in[k]);
        if (x->rank == 0 || dim_hint(g, x->dim[0]) != dim_hint(g, node->fact[0]))
            return "the first axis of one of the xs is not as long as the loop";
    }
    return NULL;
}

static bool same_type(const Graph *g, const BodyType *a, const BodyType *b)
{
    bool same = a->dtype == b->dtype && a->rank == b->rank;
    for (int d = 0; same && d < a->rank; d++)
        same = dim_hint(g, a->dim[d]) == dim_hint(g, b->dim[d]);
    return same;
}

static const char *check_outputs(const Graph *g, const Node *node, uint32_t which)
{
    const Graph *body = node->bodies[which];
    if (body->outputs.n != body_n_outputs(node, which))
        return "a body has not as many outputs as results";
    for (uint32_t k = 0; k < body->outputs.n; k++) {
        const Node *out = output_node(body, k);
        BodyType got = type_of(out), want;
        if (op_class((Op)out->op) == CLS_BODY)
            return "an output of a body has no value";
        if (node->op == OP_LOOP && which == 1) {
            want = (BodyType){.dtype = DT_BOOL};
        } else if (node->op == OP_COND) {
            want = type_of(output_node(node->bodies[0], k));
        } else if (k < node->attr.loop.carries) {
            want = type_of(graph_node(g, node->in[k]));
        } else if (got.rank == MAX_RANK) {
            return "ys would have too many axes";
        } else {
            continue;
        }
        if (!same_type(g, &got, &want))
            return which ? "the outputs of its bodies differ" : "the step changes the type of a carry";
    }
    return NULL;
}

Status body_verify(const Graph *g, const Node *node)
{
    const char *why = body_check_node(g, node);
    if (!why && (node->n_bodies < body_least((Op)node->op) || node->n_bodies > (node->op == OP_CUSTOM ? 0 : MAX_BODIES)))
        why = "wrong number of bodies";
    if (!why && node->op == OP_LOOP && node->n_bodies == 2 && (node->attr.loop.xs || node->attr.loop.reverse))
        why = "a loop with a condition has neither xs nor a direction";
    if (!why && node->op == OP_LOOP && node->attr.loop.settles && node->n_bodies != 2)
        why = "a loop without a condition settles";
    for (uint32_t b = 0; b < node->n_bodies && !why; b++) {
        const Graph *body = node->bodies[b];
        if (body->shared != g->shared || body->inputs.n != body_n_inputs(node, b))
            why = "a body has not as many inputs as operands";
        if (!why)
            TRY(graph_verify(body));
        for (uint32_t k = 0; k < body->inputs.n && !why; k++) {
            BodyType want = body_input_type(g, node, b, k), got = type_of(graph_node(body, body->inputs.at[k]));
            if (!same_type(g, &got, &want) || graph_node(body, body->inputs.at[k])->attr.flag)
                why = "an input of a body is not as its operand";
        }
        why = why ? why : check_outputs(g, node, b);
    }
    return why ? fail(ST_INTERNAL, "%s", why) : ST_OK;
}

/* ---- building ---- */

Graph *body_new(Graph *g, const Node *node, uint32_t which)
{
    Graph *body = ARENA_NEW(g->arena, Graph);
    body->arena = g->arena;
    body->shared = g->shared;
    body->around = g;
    body->place = graph_place(g, g->nodes.n);
    for (uint32_t k = 0; k < body_n_inputs(node, which); k++) {
        BodyType type = body_input_type(g, node, which, k);
        Node input = {.op = OP_INPUT, .dtype = type.dtype, .rank = type.rank, .n_facts = type.rank, .fact = type.dim, .loc = node->loc};
        input.origin = g->origin;
        input.attr.n = k;
        memcpy(input.dim, type.dim, sizeof *type.dim * type.rank);
        Ref r = graph_push_node(body, &input);
        VEC_PUSH(g->arena, body->inputs, r);
    }
    return body;
}

static void unify(Graph *g, const BodyType *a, const BodyType *b)
{
    for (int d = 0; d < a->rank; d++)
        dim_unify(g, a->dim[d], b->dim[d]);
}

/* A call that is there already: the same one, on the same operands, whose results have the same sizes by structure. REF_NONE: none. */
static Ref equal_call(Graph *g, const Node *node)
{
    bool equal = false;
    Ref r = g->nodes.n;
    while (g->apart != REF_NONE && !equal && r-- > g->apart) {
        const Node *x = graph_node(g, r);
        equal = x->op == OP_CUSTOM && x->stop == node->stop && x->n_in == node->n_in && x->n_facts == node->n_facts &&
                memcmp(&x->attr, &node->attr, sizeof x->attr) == 0 && callee_equal(x->callee, node->callee) &&
                (x->n_in == 0 || memcmp(x->in, node->in, sizeof *x->in * x->n_in) == 0);
        for (uint32_t k = 0; equal && k < x->n_facts; k++)
            equal = dim_hint(g, x->fact[k]) == dim_hint(g, node->fact[k]);
    }
    if (!equal)
        return REF_NONE;
    Node *x = graph_node(g, r);
    for (uint32_t k = 0; k < x->n_facts; k++)
        dim_unify(g, x->fact[k], node->fact[k]);
    if (node->phase < x->phase || (node->phase == x->phase && node->checkpoint < x->checkpoint))
        x->checkpoint = node->checkpoint;
    x->phase = node->phase < x->phase ? node->phase : x->phase;
    return r;
}

Ref graph_add_body(Graph *g, const Node *node)
{
    Node n = *node;
    n.dtype = DT_BOOL;
    n.rank = 0;
    n.stop = g->stop;
    n.phase = g->phase;
    n.checkpoint = g->checkpoint;
    n.origin = g->origin;
    if (n.op == OP_CUSTOM) {
        Ref same = equal_call(g, &n);
        if (same != REF_NONE)
            return same;
        n.callee = callee_copy(g->arena, node->callee);
    }
    n.bodies = arena_copy(g->arena, node->bodies, sizeof *node->bodies * node->n_bodies);
    for (uint32_t k = 0; n.op == OP_LOOP && k < n.attr.loop.carries + n.attr.loop.xs; k++) {
        const Node *operand = graph_node(g, n.in[k]);
        BodyType is = type_of(operand), gives = is;
        if (k < n.attr.loop.carries) {
            gives = type_of(output_node(n.bodies[0], k));
            unify(g, &is, &gives);
        } else {
            dim_unify(g, operand->dim[0], n.fact[0]);
        }
    }
    for (uint32_t k = 0; n.op == OP_COND && k < n.attr.n; k++) {
        BodyType one = type_of(output_node(n.bodies[0], k)), other = type_of(output_node(n.bodies[1], k));
        unify(g, &one, &other);
    }
    return graph_push_node(g, &n);
}

Ref graph_add_result(Graph *g, Ref node, uint32_t k, Loc loc)
{
    BodyType type = body_result_type(g, graph_node(g, node), k);
    Attr which = {.n = k};
    return graph_add(g, OP_RESULT, (DType)type.dtype, &node, 1, &which, NULL, 0, loc);
}

Ref graph_put_body(Graph *g, const Node *node, const Ref *in)
{
    Node n = *node;
    n.in = (Ref *)(uintptr_t)in;
    Ref same = n.op == OP_CUSTOM ? equal_call(g, &n) : REF_NONE;
    if (same != REF_NONE)
        return same;
    for (uint32_t b = 0; b < n.n_bodies; b++)
        n.bodies[b]->around = g;
    return graph_push_node(g, &n);
}

const Ref *graph_operands(Arena *arena, const Node *n, const Ref *map)
{
    Ref *in = ARENA_ARRAY(arena, Ref, n->n_in + 1);
    for (uint32_t k = 0; k < n->n_in; k++)
        in[k] = map[n->in[k]];
    return in;
}

Ref graph_put_again(Graph *g, const Node *n, const Ref *in)
{
    g->origin = n->origin;
    g->phase = n->phase;
    g->checkpoint = n->checkpoint;
    if (n->op == OP_SCALAR)
        return graph_put_leaf(g, n);
    if (op_class((Op)n->op) == CLS_BODY)
        return graph_put_body(g, n, in);
    return graph_add(g, (Op)n->op, (DType)n->dtype, in, n->n_in, &n->attr, n->fact, n->n_facts, n->loc);
}

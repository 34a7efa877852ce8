/*
 * Building the graph: nodes in topological order, interned where they carry no facts.
 *
 * graph_add infers the sizes (unifying what the op needs equal) and gives an equal node where there
 * is one. Equal means: op, dtype, inputs and attributes alike, byte for byte, and neither carries a
 * fact. A scalar constant (attr.flag = 1) counts its bits in. Inputs and scalar facts are never
 * merged.
 *
 * Callers have checked shapes; a broken invariant prints the node and aborts.
 */
#include "ir/graph.h"
#include "ir/base/hash.h"
#include "ir/infer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Graph *graph_new(Arena *arena)
{
    Graph *g = ARENA_NEW(arena, Graph);
    g->arena = arena;
    g->shared = ARENA_NEW(arena, GraphShared);
    g->place = REF_NONE;
    return g;
}

static bool interned(const Node *n)
{
    return n->n_facts == 0 && n->op != OP_INPUT && (n->op != OP_SCALAR || n->attr.flag) && op_class((Op)n->op) != CLS_BODY;
}

static uint64_t node_hash(const Graph *g, const Node *n)
{
    struct {
        uint64_t kind, inputs, bits;
    } key = {(uint64_t)n->op << 16 | (uint64_t)n->stop << 8 | n->dtype, hash64(n->in, sizeof *n->in * n->n_in), 0};
    if (n->op == OP_SCALAR)
        key.bits = g->shared->scalars.at[n->scalar].bits;
    return hash64(&key, sizeof key) ^ hash64(&n->attr, sizeof n->attr);
}

static bool node_equal(const Graph *g, const Node *x, const Node *y)
{
    return x->op == y->op && x->dtype == y->dtype && x->stop == y->stop && x->n_in == y->n_in &&
           (x->n_in == 0 || memcmp(x->in, y->in, sizeof *x->in * x->n_in) == 0) && memcmp(&x->attr, &y->attr, sizeof x->attr) == 0 &&
           (x->op != OP_SCALAR || g->shared->scalars.at[x->scalar].bits == g->shared->scalars.at[y->scalar].bits);
}

/* Enters node r, which is not in the table. */
static void enter(Graph *g, Ref r) { table_add(g->arena, &g->intern, table_key(node_hash(g, graph_node(g, r))), r); }

/* Makes the table anew from the nodes. */
static void rebuild_table(Graph *g)
{
    table_clear(&g->intern);
    for (Ref r = g->apart; r < g->nodes.n; r++)
        if (interned(graph_node(g, r)))
            enter(g, r);
}

/* The node equal to `n`, or REF_NONE. */
static Ref find_equal(const Graph *g, const Node *n)
{
    for (uint32_t probe = 0, r; table_next(&g->intern, table_key(node_hash(g, n)), &probe, &r);)
        if (node_equal(g, graph_node(g, r), n))
            return r;
    return REF_NONE;
}

static _Noreturn void broken(Graph *g, const Node *n, const char *why)
{
    fprintf(stderr, "kiln: broken invariant: %s: %s %s", why, op_name((Op)n->op),
            n->dtype < DT_COUNT ? dtype_name((DType)n->dtype) : "of no dtype");
    for (uint32_t k = 0; k < n->n_in; k++) {
        fprintf(stderr, " %%%u", n->in[k]);
        if (n->in[k] >= g->nodes.n)
            continue;
        const Node *in = graph_node(g, n->in[k]);
        fprintf(stderr, ":%s[", dtype_name((DType)in->dtype));
        for (int d = 0; d < in->rank; d++)
            fprintf(stderr, "%s%lld", d ? "," : "", (long long)dim_hint(g, in->dim[d]));
        fputs("]", stderr);
    }
    fputs("\n", stderr);
    abort();
}

bool graph_is_number(const Graph *g, const Node *n)
{
    bool number = op_class((Op)n->op) == CLS_EW || op_repeats((Op)n->op);
    for (uint32_t k = 0; k < n->n_in && number; k++)
        number = graph_node(g, n->in[k])->number;
    return number;
}

/* Checks what is cheap to check at every call: inputs are older nodes, arity, dtype by the rule. */
static void check(Graph *g, const Node *n)
{
    DType small[4], *types = n->n_in <= 4 ? small : ARENA_ARRAY(g->arena, DType, n->n_in);
    int arity = op_info[n->op].arity;
    if (arity != ARITY_ANY && (uint32_t)arity != n->n_in)
        broken(g, n, "wrong number of inputs");
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (n->in[k] >= g->nodes.n)
            broken(g, n, "an input does not exist yet");
        types[k] = (DType)graph_node(g, n->in[k])->dtype;
    }
    if (n->dtype >= DT_COUNT || infer_dtype((Op)n->op, n->n_in, types, (DType)n->dtype) != (DType)n->dtype)
        broken(g, n, "wrong dtype");
}

static Ref push(Graph *g, Node n)
{
    Ref r = g->nodes.n;
    VEC_PUSH(g->arena, g->nodes, n);
    return r;
}

Ref graph_add(Graph *g, Op op, DType dtype, const Ref *in, uint32_t n_in, const Attr *attr, const Dim *facts, uint32_t n_facts, Loc loc)
{
    Node n = {.op = (uint8_t)op,
              .dtype = (uint8_t)dtype,
              .stop = g->stop,
              .phase = g->phase,
              .checkpoint = g->checkpoint,
              .origin = g->origin,
              .n_in = n_in,
              .n_facts = n_facts,
              .in = (Ref *)(uintptr_t)in,
              .loc = loc};
    if (attr)
        n.attr = *attr;
    check(g, &n);
    if (op == OP_INPUT || op == OP_SCALAR || op_class(op) == CLS_BODY)
        broken(g, &n, "leaves and what has bodies have functions of their own");
    if (n_facts != infer_fact_count(op, &n.attr, 0))
        broken(g, &n, "wrong number of facts");
    bool merge = n_facts == 0 && g->apart != REF_NONE;
    if (merge) {
        Ref same = find_equal(g, &n);
        if (same != REF_NONE) {
            Node *older = graph_node(g, same);
            if (g->phase < older->phase || (g->phase == older->phase && g->checkpoint < older->checkpoint))
                older->checkpoint = g->checkpoint;
            older->phase = g->phase < older->phase ? g->phase : older->phase;
            return same;
        }
    }
    infer_dims(g, op, &n.attr, n_in, in, facts, &n.rank, n.dim);
    n.in = arena_copy(g->arena, in, sizeof *in * n_in);
    n.fact = arena_copy(g->arena, facts, sizeof *facts * n_facts);
    n.number = graph_is_number(g, &n);
    Ref r = push(g, n);
    if (merge)
        enter(g, r);
    return r;
}

Ref graph_push_node(Graph *g, const Node *node)
{
    Node n = *node;
    n.in = arena_copy(g->arena, n.in, sizeof *n.in * n.n_in);
    n.fact = arena_copy(g->arena, n.fact, sizeof *n.fact * n.n_facts);
    return push(g, n);
}

void graph_keep_apart(Graph *g)
{
    g->apart = g->nodes.n;
    rebuild_table(g);
}

Ref graph_add_input(Graph *g, DType dtype, int rank, const int64_t *dims, const int64_t *strides, Loc loc)
{
    Ref r = g->nodes.n;
    Node n = {.op = OP_INPUT,
              .dtype = (uint8_t)dtype,
              .rank = (uint8_t)rank,
              .origin = g->origin,
              .loc = loc,
              .n_facts = (uint32_t)(strides ? 2 * rank : rank)};
    n.attr.n = g->inputs.n;
    n.attr.flag = strides != NULL;
    n.fact = ARENA_ARRAY(g->arena, Dim, n.n_facts);
    for (int d = 0; d < rank; d++)
        n.dim[d] = n.fact[d] = dim_fact(g, dims[d], FACT_DIM, (uint8_t)d, r);
    for (int d = 0; strides && d < rank; d++)
        n.fact[rank + d] = dim_fact(g, strides[d], FACT_STRIDE, (uint8_t)d, r);
    push(g, n);
    VEC_PUSH(g->arena, g->inputs, r);
    return r;
}

/* Appends a SCALAR whose value is scalars[last]. */
static Ref push_scalar(Graph *g, DType dtype, uint64_t bits, bool constant, Loc loc)
{
    Ref r = g->nodes.n;
    Node n = {.op = OP_SCALAR, .dtype = (uint8_t)dtype, .number = true, .origin = g->origin, .scalar = g->shared->scalars.n, .loc = loc};
    n.attr.flag = constant;
    ScalarFact fact = {.bits = bits, .dtype = (uint8_t)dtype, .node = graph_place(g, r)};
    VEC_PUSH(g->arena, g->shared->scalars, fact);
    return push(g, n);
}

Ref graph_add_scalar(Graph *g, DType dtype, uint64_t bits, Loc loc) { return push_scalar(g, dtype, bits, false, loc); }

Ref graph_add_const(Graph *g, DType dtype, uint64_t bits, Loc loc)
{
    Ref r = push_scalar(g, dtype, bits, true, loc);
    Node n = *graph_node(g, r);
    g->nodes.n--; /* looked up as if it were not there yet */
    Ref same = find_equal(g, &n);
    if (same != REF_NONE) {
        g->shared->scalars.n--;
        return same;
    }
    g->nodes.n++;
    enter(g, r);
    return r;
}

bool graph_is_const(const Graph *g, Ref r, uint64_t *bits)
{
    const Node *n = graph_node(g, r);
    if (n->op != OP_SCALAR || !n->attr.flag)
        return false;
    *bits = g->shared->scalars.at[n->scalar].bits;
    return true;
}

Ref graph_ew(Graph *g, Op op, Ref a, Ref b, Ref c, Loc loc)
{
    Ref in[3] = {a, b, c};
    uint32_t n_in = a == REF_NONE ? 0 : b == REF_NONE ? 1 : c == REF_NONE ? 2 : 3;
    DType types[3], out;
    for (uint32_t k = 0; k < n_in; k++)
        types[k] = (DType)graph_node(g, in[k])->dtype;
    out = infer_dtype(op, n_in, types, DT_COUNT);
    return graph_add(g, op, out, in, n_in, NULL, NULL, 0, loc);
}

void graph_output(Graph *g, Ref r) { VEC_PUSH(g->arena, g->outputs, r); }

int64_t node_hint_numel(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    uint64_t numel = 1;
    for (int d = 0; d < n->rank; d++)
        numel *= (uint64_t)dim_hint(g, n->dim[d]);
    return (int64_t)numel;
}

Dim node_numel(Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    Dim numel = dim_const(g, 1);
    for (int d = 0; d < n->rank; d++)
        numel = dim_mul(g, numel, n->dim[d]);
    return numel;
}

const Node *graph_take_nodes(Graph *g, uint32_t *n)
{
    const Node *nodes = g->nodes.at;
    *n = g->nodes.n;
    g->apart = 0;
    memset(&g->nodes, 0, sizeof g->nodes);
    VEC_RESERVE(g->arena, g->nodes, *n);
    rebuild_table(g);
    return nodes;
}

Ref graph_put_leaf(Graph *g, const Node *leaf)
{
    bool constant = interned(leaf);
    Ref same = constant ? find_equal(g, leaf) : REF_NONE;
    if (same != REF_NONE)
        return same;
    Ref r = push(g, *leaf);
    if (constant)
        enter(g, r);
    if (leaf->op == OP_INPUT)
        g->inputs.at[leaf->attr.n] = r;
    return r;
}

/* The bodies of the outermost graph's node r, and those in them, belong to it. */
static void place_bodies(const Node *node, Ref r)
{
    for (uint32_t b = 0; b < node->n_bodies; b++) {
        node->bodies[b]->place = r;
        for (Ref k = 0; k < node->bodies[b]->nodes.n; k++)
            place_bodies(graph_node(node->bodies[b], k), r);
    }
}

void graph_remap(Graph *g, const Ref *map, uint32_t n_old)
{
    for (uint32_t k = 0; k < g->outputs.n; k++)
        g->outputs.at[k] = map[g->outputs.at[k]];
    if (g->around) /* facts belong to nodes of the outermost graph */
        return;
    for (Ref r = 0; r < g->nodes.n; r++)
        place_bodies(graph_node(g, r), r);
    for (uint32_t k = 0; k < g->shared->ints.n; k++)
        g->shared->ints.at[k].node = g->shared->ints.at[k].node < n_old ? map[g->shared->ints.at[k].node] : REF_NONE;
    for (uint32_t k = 0; k < g->shared->scalars.n; k++)
        g->shared->scalars.at[k].node = g->shared->scalars.at[k].node < n_old ? map[g->shared->scalars.at[k].node] : REF_NONE;
    for (uint32_t k = 0; k < g->shared->dims.n; k++)
        g->shared->dims.at[k].owner = g->shared->dims.at[k].owner < n_old ? map[g->shared->dims.at[k].owner] : REF_NONE;
}

void graph_compact(Graph *g, Ref *map)
{
    uint32_t n_old = g->nodes.n, kept = 0;
    bool *live = ARENA_ARRAY(g->arena, bool, n_old);
    if (!map)
        map = ARENA_ARRAY(g->arena, Ref, n_old);
    for (uint32_t k = 0; k < g->inputs.n; k++)
        live[g->inputs.at[k]] = true;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        live[g->outputs.at[k]] = true;
    for (Ref r = n_old; r-- > 0;)
        for (uint32_t k = 0; live[r] && k < graph_node(g, r)->n_in; k++)
            live[graph_node(g, r)->in[k]] = true;
    for (Ref r = 0; r < n_old; r++) {
        map[r] = live[r] ? kept : REF_NONE;
        if (!live[r])
            continue;
        Node *n = graph_node(g, kept++);
        if (n != graph_node(g, r))
            *n = *graph_node(g, r);
        for (uint32_t k = 0; k < n->n_in; k++)
            n->in[k] = map[n->in[k]];
    }
    g->nodes.n = kept;
    g->apart = 0;
    for (uint32_t k = 0; k < g->inputs.n; k++)
        g->inputs.at[k] = map[g->inputs.at[k]];
    graph_remap(g, map, n_old);
    rebuild_table(g);
}

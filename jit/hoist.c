/*
 * What does not depend on a loop's state leaves the loop.
 *
 *     step(%0: i, %1: carry, %2: w) { %3 = exp %2  %4 = mul %1 %3 ... }     ->     exp of w before the loop, which is captured instead of w
 *
 *   invariant   made of captured values and carries that are handed on as they are, of numbers and of sizes. Nothing that may fail (an index out of bounds: the
 *               loop may have no step), no bodies. Random draws in loops depend on the number of the step, so they stay
 *   worth it    reductions, products, scans, sorts, and elementwise ops that are COSTLY; with them what is made of them. All else is computed where it is read
 *               more cheaply than it is read from memory
 *   moved       of these each that is read by what stays. No views: they would be copies. And nothing elementwise that is larger than all that
 *               it is made of: a table of sums is better made anew than kept
 *
 * A result of a carry that is handed on is what that began as, so that the loop around knows.
 *
 * A moved value is an operand behind the others, so both bodies get an input more. Nothing leaves a branch, as it may never be run.
 */
#include "jit/hoist.h"
#include "ir/body.h"

#include <string.h>

typedef struct Moving {
    Graph *body;
    bool *invariant, *moves; /* of each node */
    VEC(Ref) root;           /* those that become operands */
} Moving;

typedef struct Hoist {
    Graph *g; /* around the loop */
    uint32_t moved;
} Hoist;

/* ---- what moves ---- */

/* Is this input of a body of the loop the same in each step? */
static bool stays(const Node *loop, uint32_t which, uint32_t input)
{
    bool sliced;
    uint32_t operand = body_operand(loop, which, input, &sliced);
    if (operand == REF_NONE || sliced)
        return false;
    const Graph *step = loop->bodies[0];
    return operand >= loop->attr.loop.carries || step->outputs.at[operand] == step->inputs.at[operand + 1];
}

bool hoist_may_move(Op op)
{
    switch (op_class(op)) {
    case CLS_EW:
    case CLS_VIEW:
    case CLS_REDUCE:
    case CLS_SCAN:
    case CLS_SORT:
    case CLS_CONTRACT: return true;
    case CLS_LEAF: return op != OP_INPUT;
    case CLS_GATHER:
    case CLS_SCATTER: /* an index may be out of bounds */
    case CLS_BODY:
    case CLS_RESULT: return false;
    }
    return false;
}

bool hoist_is_work(const Node *n)
{
    OpClass cls = op_class((Op)n->op);
    return !n->number && (cls == CLS_REDUCE || cls == CLS_SCAN || cls == CLS_SORT || cls == CLS_CONTRACT ||
                          (cls == CLS_EW && op_info[n->op].flags & OPF_COSTLY));
}

/* By nodes of the body: of the invariant ones, which are to be computed outside. */
static void find_moving(Arena *arena, const Node *loop, uint32_t which, Moving *m)
{
    Graph *body = m->body = loop->bodies[which];
    uint32_t n_nodes = body->nodes.n;
    int64_t *largest = ARENA_ARRAY(arena, int64_t, n_nodes + 1); /* of the inputs that a node is made of */
    bool *read = ARENA_ARRAY(arena, bool, n_nodes + 1);          /* by what stays */
    m->invariant = ARENA_ARRAY(arena, bool, n_nodes + 1);
    m->moves = ARENA_ARRAY(arena, bool, n_nodes + 1);
    for (Ref r = 0; r < n_nodes; r++) {
        const Node *n = graph_node(body, r);
        bool view = op_class((Op)n->op) == CLS_VIEW, made_of_work = hoist_is_work(n);
        m->invariant[r] = n->op == OP_INPUT ? stays(loop, which, n->attr.n) : hoist_may_move((Op)n->op);
        largest[r] = n->op == OP_INPUT ? node_hint_numel(body, r) : 0;
        for (uint32_t k = 0; k < n->n_in; k++) {
            m->invariant[r] &= m->invariant[n->in[k]];
            made_of_work |= m->moves[n->in[k]];
            largest[r] = largest[n->in[k]] > largest[r] ? largest[n->in[k]] : largest[r];
        }
        /* Views of what moves count as moving, so that what is made of them does; they are no roots. */
        bool fits = op_class((Op)n->op) != CLS_EW || node_hint_numel(body, r) <= largest[r];
        m->moves[r] = m->invariant[r] && made_of_work && (view || fits);
    }
    for (uint32_t k = 0; k < body->outputs.n; k++)
        read[body->outputs.at[k]] = true;
    for (Ref r = n_nodes; r-- > 0;) {
        const Node *n = graph_node(body, r);
        bool view = op_class((Op)n->op) == CLS_VIEW;
        if (m->moves[r] && read[r] && !view)
            VEC_PUSH(arena, m->root, r);
        for (uint32_t k = 0; k < n->n_in; k++)
            read[n->in[k]] |= !m->moves[r] || (view && read[r]);
    }
}

/* ---- moving ---- */

/* Records outside what a node of the body is made of, and it. */
static Ref move_out(Hoist *h, const Node *loop, uint32_t which, const Moving *m, Ref r, Ref *map)
{
    const Node *n = graph_node(m->body, r);
    bool sliced;
    if (map[r] != REF_NONE)
        return map[r];
    if (n->op == OP_INPUT)
        return map[r] = loop->in[body_operand(loop, which, n->attr.n, &sliced)];
    for (uint32_t k = 0; k < n->n_in; k++) /* as deep as the longest chain in a body, below CALL_MAX_NODES */
        move_out(h, loop, which, m, n->in[k], map);
    n = graph_node(m->body, r);
    return map[r] = graph_put_again(h->g, n, graph_operands(h->g->arena, n, map));
}

/* The body with inputs for more operands; what moved is read from those from `first` on. */
static void rebuild(Graph *g, const Node *loop, uint32_t which, const Moving *m, uint32_t first)
{
    Graph *body = m->body;
    uint32_t n_old, origin = body->origin;
    uint8_t phase = body->phase, checkpoint = body->checkpoint;
    const Node *old = graph_take_nodes(body, &n_old);
    Ref *map = ARENA_ARRAY(g->arena, Ref, n_old + 1);
    for (Ref r = 0; r < n_old; r++)
        map[r] = old[r].op == OP_INPUT ? graph_put_leaf(body, &old[r]) : REF_NONE;
    for (uint32_t k = (uint32_t)body->inputs.n; k < body_n_inputs(loop, which); k++) {
        BodyType type = body_input_type(g, loop, which, k);
        Node input = {.op = OP_INPUT, .dtype = type.dtype, .rank = type.rank, .n_facts = type.rank, .fact = type.dim, .loc = loop->loc};
        input.attr.n = k;
        memcpy(input.dim, type.dim, sizeof *type.dim * type.rank);
        Ref r = graph_push_node(body, &input);
        VEC_PUSH(g->arena, body->inputs, r);
    }
    for (size_t k = 0; k < m->root.n; k++)
        map[m->root.at[k]] = body->inputs.at[first + k];
    for (Ref r = 0; r < n_old; r++)
        if (map[r] == REF_NONE)
            map[r] = graph_put_again(body, &old[r], graph_operands(g->arena, &old[r], map));
    body->origin = origin;
    body->phase = phase;
    body->checkpoint = checkpoint;
    graph_remap(body, map, n_old);
    graph_compact(body, NULL);
}

/* `loop` has operands of h->g, and is not in it yet. */
static Ref put_loop(Hoist *h, const Node *old, const Ref *in)
{
    Graph *g = h->g;
    Node loop = *old;
    Moving moving[MAX_BODIES] = {0};
    uint32_t more = 0, at = loop.n_in;
    loop.in = (Ref *)(uintptr_t)in;
    for (uint32_t b = 0; b < loop.n_bodies; b++) {
        find_moving(g->arena, &loop, b, &moving[b]);
        more += (uint32_t)moving[b].root.n;
    }
    if (!more)
        return graph_put_again(g, old, in);
    Ref *operands = ARENA_ARRAY(g->arena, Ref, loop.n_in + more);
    memcpy(operands, in, sizeof *in * loop.n_in);
    for (uint32_t b = 0; b < loop.n_bodies; b++) {
        Ref *map = ARENA_ARRAY(g->arena, Ref, moving[b].body->nodes.n + 1);
        memset(map, 0xff, sizeof *map * (moving[b].body->nodes.n + 1));
        for (size_t k = 0; k < moving[b].root.n; k++)
            operands[at++] = move_out(h, &loop, b, &moving[b], moving[b].root.at[k], map);
    }
    loop.in = operands;
    loop.n_in = at;
    for (uint32_t b = 0, first = 0; b < loop.n_bodies; b++) {
        rebuild(g, &loop, b, &moving[b], body_n_inputs(old, b) + first);
        first += (uint32_t)moving[b].root.n;
    }
    h->moved += more;
    return graph_put_again(g, &loop, operands);
}

/* A result that is what its carry began as; REF_NONE: it is none. (Of a loop with a condition it is not known before that it comes to its end.) */
static Ref begins_as(const Graph *g, const Node *n, const Ref *in)
{
    const Node *loop = n->op == OP_RESULT ? graph_node(g, in[0]) : NULL;
    uint32_t k = n->attr.n;
    bool same = loop && loop->op == OP_LOOP && loop->n_bodies == 1 && k < loop->attr.loop.carries && stays(loop, 0, k + 1);
    return same ? loop->in[k] : REF_NONE;
}

uint32_t hoist(Graph *g)
{
    Hoist h = {.g = g};
    bool loops = false;
    for (Ref r = 0; r < g->nodes.n; r++) {
        for (uint32_t b = 0; b < graph_node(g, r)->n_bodies; b++)
            h.moved += hoist(graph_node(g, r)->bodies[b]);
        loops |= graph_node(g, r)->op == OP_LOOP;
    }
    if (!loops)
        return h.moved;
    uint32_t n_old, origin = g->origin;
    uint8_t phase = g->phase, checkpoint = g->checkpoint;
    const Node *old = graph_take_nodes(g, &n_old);
    Ref *map = ARENA_ARRAY(g->arena, Ref, n_old + 1);
    for (Ref r = 0; r < n_old; r++) {
        const Ref *in = graph_operands(g->arena, &old[r], map);
        if ((map[r] = begins_as(g, &old[r], in)) != REF_NONE)
            continue;
        map[r] = old[r].op == OP_LOOP    ? put_loop(&h, &old[r], in)
                 : old[r].op == OP_INPUT ? graph_put_leaf(g, &old[r])
                                         : graph_put_again(g, &old[r], in);
    }
    g->origin = origin;
    g->phase = phase;
    g->checkpoint = checkpoint;
    graph_remap(g, map, n_old);
    graph_compact(g, NULL);
    return h.moved;
}

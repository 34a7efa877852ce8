/*
 * Which values of a forward pass its gradient reads from memory, and which it computes again.
 *
 * A joint graph has two halves: nodes of phase 0 and what they are made of, and the rest. Whatever the backward half reads of the forward
 * half either stays in memory from there to here, or is computed again here from other values that do. The choice is a minimum
 * cut. Each value v of the forward half that the backward half may need is two vertices:
 *
 *     source -> need(v)     infinite    a node of the backward half reads it
 *     need(v) -> again(v)   save(v)     cut: it is needed, and read from memory
 *     again(v) -> sink      redo(v)     cut: it is computed again, ...
 *     again(v) -> need(u)   infinite    ... for which its operand u is needed
 *
 * What is on the source's side with both vertices is copied, in front of the first backward node that needs it, so that what a backward kernel
 * stores lives for a short time. Copies are apart from their originals: fusion decides within each half what it stores. Where both are
 * computed in one kernel after all, equal instructions are one there.
 *
 * Costs are those of fusion (jit/fuse/cost.c), with the sizes of the graph at hand, which decide nothing but the speed:
 *   save   writing it and reading it, or reading alone where it lies in memory anyway: inputs, outputs, products, their
 *          operands, scatters, sorts
 *   redo   a quarter of its arithmetic, as kernels wait for memory most of the time; a reduction reads its operand
 *          once more and may be a launch; an operand of a backward product is written and read
 * Other products, sorts, scatters and scans are never computed again, outside of kiln_checkpoint. Views are never saved: what they view is.
 * Numbers, ranges and constants take part in nothing. With remat=memory only bytes that would not be there otherwise count.
 *
 * Scores are such a product whatever it costs: one of a batch that is large, and much larger than its operands, as q k^T of attention is. Where
 * bands run it (jit/fuse/bands.c) it is never whole in memory, nor is what is made of it element by element; saved, all of that would be, from
 * here to there. Computing it again takes a fifth of the time of such a gradient, or less.
 *
 * What was recorded inside of a kiln_checkpoint (Node.checkpoint) is computed again whatever it costs, and with remat=off, too: save is infinite,
 * redo nothing. The results of one are not inside; that they are not computed again (redo is infinite) ends each checkpoint's copies at
 * its inputs. Inner checkpoints are for memory at the time of the outer one's copies, so there are copies for each depth:
 *
 *     copy(v, L)    reads copy(u, min(L, depth(u))) of its operand u, where copy(u, 0) is u
 *     backward      a node reads copy(u, depth(u))
 *
 * so that copies of depth 1 recompute the outer function as a forward pass, whose inner checkpoints' values die at once, and those of
 * depth 2 recompute an inner function from its inputs there, when the backward half comes to it.
 *
 * The flow is Dinic's (1970): phases of a breadth-first search and blocking flows.
 */
#include "jit/remat.h"
#include "ir/joint.h"
#include "jit/fuse/cost.h"
#include "jit/options.h"

#include <string.h>

typedef struct Edge {
    uint32_t to, next; /* of the same vertex */
    int64_t room;
} Edge;

enum { SOURCE, SINK, FIRST, NO_EDGE = UINT32_MAX };
static const int64_t INFINITE = INT64_MAX / 8;

typedef struct Remat {
    Graph *g;
    Arena *arena;
    uint32_t n;
    bool *live, *forward;
    bool *stored;   /* lies in memory whatever is decided here */
    bool *operand;  /* a product, a sort or a scatter of the backward half reads it: computed again, it is stored again */
    bool *scores;   /* it is, or is made element by element of, a product that is computed again rather than saved */
    uint8_t *depth; /* inside of so many checkpoints, where it is forward */
    bool memory, off;
    /* The network. */
    uint32_t *need; /* the vertex of each node, again(v) is the next one; 0: none */
    VEC(Edge) edges;
    uint32_t *first, *at, *level, *queue, n_vertices;
} Remat;

/* ---- the halves ---- */

static bool is_banned(OpClass cls)
{
    return cls == CLS_CONTRACT || cls == CLS_SORT || cls == CLS_SCATTER || cls == CLS_SCAN || cls == CLS_BODY || cls == CLS_RESULT;
}

/* Loops and branches are never computed again, not even in checkpoints: their results are values like those that come from outside. */
static bool of_bodies(const Node *node) { return op_class((Op)node->op) == CLS_BODY || op_class((Op)node->op) == CLS_RESULT; }

static bool moves_only(const Node *node) { return op_class((Op)node->op) == CLS_VIEW && node->op != OP_PAD && node->op != OP_CONCAT; }

static bool takes_part(const Node *node) { return !node->number && (op_class((Op)node->op) != CLS_LEAF || node->op == OP_INPUT); }

/* Marks what r is a view or a cast of, r included, down to what is computed. */
static void mark_source(const Remat *m, bool *mark, Ref r)
{
    for (;; r = graph_node(m->g, r)->in[0]) {
        mark[r] = true;
        const Node *node = graph_node(m->g, r);
        if (!moves_only(node) && node->op != OP_CAST)
            break;
    }
}

/* How deep each node is inside of checkpoints; what a view shows is no deeper than the view. Is anything? */
static bool find_depths(Remat *m)
{
    bool any = false;
    for (Ref r = 0; r < m->n; r++)
        if (m->live[r] && m->forward[r] && takes_part(graph_node(m->g, r)) && graph_node(m->g, r)->op != OP_INPUT &&
            !of_bodies(graph_node(m->g, r)))
            m->depth[r] = graph_node(m->g, r)->checkpoint;
    for (Ref r = m->n; r-- > 0;) {
        const Node *node = graph_node(m->g, r);
        any |= m->depth[r] != 0;
        if (m->live[r] && m->forward[r] && moves_only(node) && m->depth[node->in[0]] > m->depth[r])
            m->depth[node->in[0]] = m->depth[r];
    }
    return any;
}

/* The result of a checkpoint? */
static bool is_result(const Remat *m, Ref r)
{
    const Node *node = graph_node(m->g, r);
    bool result = false;
    for (uint32_t k = 0; k < node->n_in && !result; k++)
        result = m->depth[node->in[k]] > m->depth[r];
    return result;
}

/* The end of the elementwise chain behind product r: a kernel of the product computes it too, and stores it alone. */
static Ref end_of_product(const Remat *m, const uint32_t *users, const Ref *user, Ref r)
{
    while (users[r] == 1) {
        const Node *next = graph_node(m->g, user[r]);
        if (op_class((Op)next->op) != CLS_EW && next->op != OP_RESHAPE)
            break;
        r = user[r];
    }
    return r;
}

static void find_stored(Remat *m)
{
    const Graph *g = m->g;
    uint32_t *users = ARENA_ARRAY(m->arena, uint32_t, m->n);
    Ref *user = ARENA_ARRAY(m->arena, Ref, m->n);
    for (Ref r = 0; r < m->n; r++)
        for (uint32_t k = 0; m->live[r] && k < graph_node(g, r)->n_in; k++) {
            users[graph_node(g, r)->in[k]]++;
            user[graph_node(g, r)->in[k]] = r;
        }
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        users[g->outputs.at[k]]++;
        mark_source(m, m->stored, g->outputs.at[k]);
    }
    for (Ref r = 0; r < m->n; r++) {
        const Node *node = graph_node(g, r);
        OpClass cls = op_class((Op)node->op);
        if (!m->live[r])
            continue;
        if (node->op == OP_INPUT || cls == CLS_SORT || cls == CLS_SCATTER || cls == CLS_RESULT)
            m->stored[r] = true;
        if (cls == CLS_CONTRACT)
            m->stored[end_of_product(m, users, user, r)] = true;
        bool reads_many_times = cls == CLS_CONTRACT || cls == CLS_SORT || cls == CLS_SCATTER || cls == CLS_BODY;
        for (uint32_t k = 0; reads_many_times && k < node->n_in; k++)
            mark_source(m, m->forward[r] ? m->stored : m->operand, node->in[k]);
    }
}

/* Is it a product that is much larger than its operands? */
static bool is_scores(const Remat *m, Ref r)
{
    enum { LEAST_BYTES = 16 << 20, LARGER = 2 };
    const Node *node = graph_node(m->g, r);
    if (node->op != OP_MATMUL || node->rank < 3)
        return false;
    double all = (double)node_hint_numel(m->g, r), a = (double)node_hint_numel(m->g, node->in[0]),
           b = (double)node_hint_numel(m->g, node->in[1]);
    return all * (double)dtype_bytes((DType)node->dtype) >= LEAST_BYTES && all >= LARGER * (a + b);
}

/* What the graph returns, and what ends a checkpoint, lies in memory. */
static void find_scores(Remat *m)
{
    const Graph *g = m->g;
    bool *kept = ARENA_ARRAY(m->arena, bool, m->n);
    for (uint32_t k = 0; k < g->outputs.n; k++)
        mark_source(m, kept, g->outputs.at[k]);
    for (Ref r = 0; r < m->n; r++) {
        const Node *node = graph_node(g, r);
        OpClass cls = op_class((Op)node->op);
        if (!m->live[r] || !m->forward[r] || kept[r] || m->depth[r] || is_result(m, r))
            continue;
        m->scores[r] = is_scores(m, r);
        for (uint32_t k = 0; k < node->n_in && (cls == CLS_EW || moves_only(node)); k++)
            m->scores[r] |= m->scores[node->in[k]] && node_hint_numel(g, node->in[k]) == node_hint_numel(g, r);
    }
}

/* ---- costs ---- */

static int64_t whole(double cost) { return cost >= (double)INFINITE ? INFINITE : (int64_t)(16 * cost) + 1; }

/* Reading or writing all of it. */
static double traffic(const Remat *m, Ref r)
{
    return (double)node_hint_numel(m->g, r) * (double)dtype_bytes((DType)graph_node(m->g, r)->dtype) / 4 * COST_STORE;
}

static int64_t save_cost(const Remat *m, Ref r)
{
    const Node *node = graph_node(m->g, r);
    if (moves_only(node) || m->depth[r] || m->scores[r])
        return INFINITE;
    if (m->memory)
        return node->op == OP_INPUT ? 1 : whole(traffic(m, r));
    return whole(m->stored[r] ? traffic(m, r) : 2 * traffic(m, r));
}

static int64_t redo_cost(const Remat *m, Ref r)
{
    const Node *node = graph_node(m->g, r);
    OpClass cls = op_class((Op)node->op);
    double cost = 0;
    if (m->depth[r])
        return 0;
    if (m->scores[r] && cls == CLS_CONTRACT)
        return 1;
    if (node->op == OP_INPUT || is_banned(cls) || is_result(m, r) || (m->off && !moves_only(node)))
        return INFINITE;
    if (cls == CLS_REDUCE)
        cost = traffic(m, node->in[0]) + COST_LAUNCH;
    else if (cls == CLS_GATHER)
        cost = traffic(m, r);
    else if (!moves_only(node))
        cost = (double)node_hint_numel(m->g, r) * (op_info[node->op].flags & OPF_COSTLY ? COST_COSTLY : 1) / 4;
    if (m->operand[r] && !moves_only(node) && node->op != OP_CAST)
        cost += 2 * traffic(m, r);
    return whole(m->memory ? cost / 1024 : cost);
}

/* ---- the network ---- */

static void add_edge(Remat *m, uint32_t from, uint32_t to, int64_t room)
{
    Edge there = {to, m->first[from], room}, back = {from, m->first[to], 0};
    VEC_PUSH(m->arena, m->edges, there);
    m->first[from] = m->edges.n - 1;
    VEC_PUSH(m->arena, m->edges, back);
    m->first[to] = m->edges.n - 1;
}

static uint32_t need_of(Remat *m, Ref r)
{
    if (!m->need[r]) {
        m->need[r] = m->n_vertices;
        m->n_vertices += 2;
    }
    return m->need[r];
}

/* A gather that is computed again reads of its table what it takes, not all of it. */
static bool reads_all(const Remat *m, const Node *node, uint32_t k)
{
    return node->op != OP_GATHER || k || graph_node(m->g, node->in[k])->op != OP_INPUT;
}

static void build(Remat *m)
{
    const Graph *g = m->g;
    memset(m->first, 0xff, sizeof *m->first * (2 * (size_t)m->n + FIRST));
    m->n_vertices = FIRST;
    for (Ref r = m->n; r-- > 0;) {
        const Node *node = graph_node(g, r);
        if (!m->live[r])
            continue;
        for (uint32_t k = 0; k < node->n_in && !m->forward[r]; k++)
            if (m->forward[node->in[k]] && takes_part(graph_node(g, node->in[k])))
                add_edge(m, SOURCE, need_of(m, node->in[k]), INFINITE);
        if (!m->forward[r] || !m->need[r])
            continue;
        int64_t redo = redo_cost(m, r);
        add_edge(m, m->need[r], m->need[r] + 1, save_cost(m, r));
        add_edge(m, m->need[r] + 1, SINK, redo);
        for (uint32_t k = 0; k < node->n_in && redo < INFINITE; k++)
            if (takes_part(graph_node(g, node->in[k])) && reads_all(m, node, k))
                add_edge(m, m->need[r] + 1, need_of(m, node->in[k]), INFINITE);
    }
}

/* How far each vertex is from the source, where there is room. Is the sink reached? */
static bool find_levels(Remat *m)
{
    uint32_t head = 0, tail = 0;
    memset(m->level, 0xff, sizeof *m->level * m->n_vertices);
    m->level[SOURCE] = 0;
    m->queue[tail++] = SOURCE;
    while (head < tail) {
        uint32_t v = m->queue[head++];
        for (uint32_t e = m->first[v]; e != NO_EDGE; e = m->edges.at[e].next) {
            uint32_t to = m->edges.at[e].to;
            if (!m->edges.at[e].room || m->level[to] != UINT32_MAX)
                continue;
            m->level[to] = m->level[v] + 1;
            m->queue[tail++] = to;
        }
    }
    return m->level[SINK] != UINT32_MAX;
}

/* One path to the sink along rising levels, which is filled; the path is a stack of edges, in m->queue. false: there is none. */
static bool fill_path(Remat *m)
{
    uint32_t v = SOURCE, depth = 0;
    while (v != SINK) {
        uint32_t e = m->at[v];
        while (e != NO_EDGE && (!m->edges.at[e].room || m->level[m->edges.at[e].to] != m->level[v] + 1))
            e = m->edges.at[e].next;
        m->at[v] = e;
        if (e != NO_EDGE) {
            m->queue[depth++] = e;
            v = m->edges.at[e].to;
        } else if (depth) { /* a dead end */
            v = m->edges.at[m->queue[--depth] ^ 1].to;
            m->at[v] = m->edges.at[m->at[v]].next;
        } else {
            return false;
        }
    }
    int64_t room = INT64_MAX;
    for (uint32_t i = 0; i < depth; i++)
        room = m->edges.at[m->queue[i]].room < room ? m->edges.at[m->queue[i]].room : room;
    for (uint32_t i = 0; i < depth; i++) {
        m->edges.at[m->queue[i]].room -= room;
        m->edges.at[m->queue[i] ^ 1].room += room;
    }
    return true;
}

/* Afterwards m->level says which vertices are on the source's side. */
static void find_cut(Remat *m)
{
    while (find_levels(m)) {
        memcpy(m->at, m->first, sizeof *m->at * m->n_vertices);
        while (fill_path(m))
            continue;
    }
}

/* ---- copies ---- */

static bool is_copied(const Remat *m, Ref r) { return m->forward[r] && m->need[r] && m->level[m->need[r] + 1] != UINT32_MAX; }

/* How many copies it has. */
static uint8_t copies_of(const Remat *m, Ref r) { return !is_copied(m, r) ? 0 : m->depth[r] ? m->depth[r] : 1; }

enum { BACKWARD = MAX_CHECKPOINT + 1 }; /* it reads the deepest copies */

typedef struct Copy {
    Ref node;
    uint8_t level; /* 0: itself */
} Copy;

typedef struct Rebuild {
    const Remat *m;
    const Node *old;
    Ref *made[MAX_CHECKPOINT + 1]; /* of each old node: its copies, itself first */
    VEC(Copy) stack;
} Rebuild;

/* What a copy of that level reads of old node `in`. */
static Copy operand(const Rebuild *b, Ref in, uint8_t level)
{
    uint8_t copies = copies_of(b->m, in);
    return (Copy){in, level < copies ? level : copies};
}

/* Level 0 and BACKWARD: the node itself. */
static Ref put(Rebuild *b, Ref r, uint8_t level, uint8_t phase)
{
    Graph *g = b->m->g;
    Node node = b->old[r];
    node.in = ARENA_ARRAY(g->arena, Ref, node.n_in);
    for (uint32_t k = 0; k < node.n_in; k++) {
        Copy in = operand(b, b->old[r].in[k], level);
        node.in[k] = b->made[in.level][in.node];
    }
    if (level && level != BACKWARD)
        node.again = level;
    else
        node.copied |= is_copied(b->m, r);
    node.phase = phase;
    VEC_PUSH(g->arena, g->nodes, node);
    if (node.op == OP_INPUT)
        g->inputs.at[node.attr.n] = g->nodes.n - 1;
    return g->nodes.n - 1;
}

/* Copies of what backward node r reads and computes again, operands first. */
static void put_copies(Rebuild *b, Ref r)
{
    uint8_t phase = b->old[r].phase;
    VEC_PUSH(b->m->arena, b->stack, ((Copy){r, BACKWARD}));
    while (b->stack.n) {
        Copy top = b->stack.at[b->stack.n - 1];
        bool ready = true;
        for (uint32_t k = b->old[top.node].n_in; k-- > 0;) {
            Copy in = operand(b, b->old[top.node].in[k], top.level);
            if (!in.level || b->made[in.level][in.node] != REF_NONE)
                continue;
            VEC_PUSH(b->m->arena, b->stack, in);
            ready = false;
        }
        if (!ready)
            continue;
        b->stack.n--;
        if (top.node != r && b->made[top.level][top.node] == REF_NONE)
            b->made[top.level][top.node] = put(b, top.node, top.level, phase);
    }
}

static void rebuild(Remat *m)
{
    uint32_t n_old;
    Rebuild b = {.m = m, .old = graph_take_nodes(m->g, &n_old)};
    for (int level = 0; level <= MAX_CHECKPOINT; level++) {
        b.made[level] = ARENA_ARRAY(m->arena, Ref, n_old);
        memset(b.made[level], 0xff, sizeof *b.made[level] * n_old);
    }
    for (Ref r = 0; r < n_old; r++) {
        bool backward = m->live[r] && !m->forward[r];
        if (backward)
            put_copies(&b, r);
        b.made[0][r] = put(&b, r, backward ? BACKWARD : 0, b.old[r].phase);
    }
    graph_remap(m->g, b.made[0], n_old);
}

void remat(Graph *g, int how, bool bands)
{
    uint32_t n = g->nodes.n;
    Remat m = {.g = g, .arena = g->arena, .n = n, .memory = how == REMAT_MEMORY, .off = how == REMAT_OFF};
    if (!joint_halves(g, &m.forward, &m.live))
        return;
    m.depth = ARENA_ARRAY(g->arena, uint8_t, n);
    if (!find_depths(&m) && m.off)
        return;
    m.stored = ARENA_ARRAY(g->arena, bool, n);
    m.operand = ARENA_ARRAY(g->arena, bool, n);
    find_stored(&m);
    m.scores = ARENA_ARRAY(g->arena, bool, n);
    if (bands && !m.off)
        find_scores(&m);
    m.need = ARENA_ARRAY(g->arena, uint32_t, n);
    uint32_t *vertices[] = {NULL, NULL, NULL, NULL};
    for (int k = 0; k < 4; k++)
        vertices[k] = ARENA_ARRAY(g->arena, uint32_t, 2 * (size_t)n + FIRST);
    m.first = vertices[0];
    m.at = vertices[1];
    m.level = vertices[2];
    m.queue = vertices[3];
    build(&m);
    find_cut(&m);
    rebuild(&m);
}

/*
 * What gets a buffer.
 *
 * Before the first round, by structure: graph outputs; scatters, sorts and long concats; each matrix product together
 * with the elementwise chain that follows it (its epilogue: the last node of the chain gets the buffer); and operands of
 * matrix products that are more than a view or cast of a buffer, since a contraction reads them many times.
 *
 * After a round, when it is known which kernels evaluate what: a value that several kernels compute, or one kernel at
 * several coordinates, or at many more points than it has elements, gets a buffer if storing it is cheaper. The unit of
 * cost is one cheap op on one element; touching four bytes of memory costs STORE of them (PERFORMANCE.md section 1).
 */
#include "jit/fuse.h"

#include "ir/base/log.h"

enum { COSTLY = 5, STORE = 5, COST_MAX = 1 << 20 };
#define LAUNCH 100000.0 /* a kernel is worth its launch when it saves this many units */

static bool is_view(const Node *node) { return op_class((Op)node->op) == CLS_VIEW; }

static void want(Fuser *f, Ref n)
{
    f->flags[n] |= NODE_WANT;
}

static uint32_t user_count(const Fuser *f, Ref n) { return f->user_at[n + 1] - f->user_at[n]; }

/* The node whose buffer holds matmul c and the elementwise work after it; marks the nodes on the way as its epilogue. */
static Ref matmul_top(Fuser *f, Ref c)
{
    Ref at = c;
    f->contract_of[c] = c;
    while (f->fuse && user_count(f, at) == 1) {
        Ref u = f->users[f->user_at[at]];
        const Node *user = graph_node(f->g, u);
        bool follows = op_class((Op)user->op) == CLS_EW || user->op == OP_RESHAPE ||
                       (user->op == OP_PERMUTE && f->flags[u] & NODE_WANT);
        if (!follows || f->contract_of[u] != REF_NONE)
            break;
        f->contract_of[u] = c;
        at = u;
    }
    /* a reshape at the end of the chain moves nothing */
    while (graph_node(f->g, at)->op == OP_RESHAPE && at != c) {
        f->contract_of[at] = REF_NONE;
        at = graph_node(f->g, at)->in[0];
    }
    return at;
}

/* An operand of a contraction: wanted unless it is views and casts of a buffer. */
static void want_operand(Fuser *f, Ref n)
{
    Ref at = n;
    while (is_view(graph_node(f->g, at)) && graph_node(f->g, at)->op != OP_PAD && graph_node(f->g, at)->op != OP_CONCAT)
        at = graph_node(f->g, at)->in[0];
    Ref top = at;
    while (!has_buffer(f, at)) {
        const Node *node = graph_node(f->g, at);
        if (op_class((Op)node->op) == CLS_LEAF)
            return;
        if (node->op != OP_CAST && (!is_view(node) || node->op == OP_PAD || node->op == OP_CONCAT)) {
            want(f, top);
            return;
        }
        at = node->in[0];
    }
}

void want_structural(Fuser *f)
{
    const Graph *g = f->g;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        Ref n = strip_reshape(g, g->outputs.at[i]);
        if (graph_node(g, n)->op != OP_INPUT || graph_node(g, n)->attr.flag)
            want(f, n);
    }
    for (Ref n = 0; n < f->n; n++) {
        const Node *node = graph_node(g, n);
        if (!(f->flags[n] & NODE_LIVE))
            continue;
        OpClass cls = op_class((Op)node->op);
        if (cls == CLS_SORT || cls == CLS_SCATTER || (node->op == OP_CONCAT && node->n_in > MAX_CONCAT))
            want(f, n);
        else if (!f->fuse && cls != CLS_LEAF && cls != CLS_VIEW)
            want(f, n);
    }
    for (Ref n = 0; n < f->n; n++)
        if (f->flags[n] & NODE_LIVE && graph_node(g, n)->op == OP_MATMUL)
            want(f, matmul_top(f, n));
    for (Ref n = 0; n < f->n; n++) {
        if (f->flags[n] & NODE_LIVE && graph_node(g, n)->op == OP_MATMUL) {
            want_operand(f, graph_node(g, n)->in[0]);
            want_operand(f, graph_node(g, n)->in[1]);
        }
    }
}

/* ---- after a round ---- */

typedef struct Where {
    uint32_t first;       /* of the units that evaluate it */
    uint32_t count;       /* different units, 2 standing for more too */
} Where;

static void add_unit(Where *w, uint32_t unit)
{
    if (!w->count) {
        w->first = unit;
        w->count = 1;
    } else if (w->count == 1 && w->first != unit)
        w->count = 2;
}

/* Units of work to compute one element from buffers: a reduction counts as a buffer, since it would become one. */
static uint32_t own_cost(const Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n);
    OpClass cls = op_class((Op)node->op);
    if (cls == CLS_VIEW)
        return node->op == OP_PAD || node->op == OP_CONCAT ? 2 : 0;
    if (cls == CLS_LEAF)
        return node->op == OP_INPUT && node->rank ? STORE : 0;
    if (cls == CLS_GATHER)
        return STORE;
    return cls == CLS_EW ? op_info[node->op].flags & OPF_COSTLY ? COSTLY : 1 : STORE;
}

static void costs(const Fuser *f, uint32_t *cost)
{
    for (Ref n = 0; n < f->n; n++) {
        const Node *node = graph_node(f->g, n);
        OpClass cls = op_class((Op)node->op);
        uint64_t sum = own_cost(f, n);
        bool leaf = cls == CLS_REDUCE || cls == CLS_SCAN || cls == CLS_CONTRACT || cls == CLS_SORT || cls == CLS_SCATTER;
        for (uint32_t i = 0; !leaf && i < node->n_in; i++)
            sum += has_buffer(f, node->in[i]) ? STORE : cost[node->in[i]];
        cost[n] = sum > COST_MAX ? COST_MAX : (uint32_t)sum;
    }
}

static bool dear(const Fuser *f, Ref n, const Where *w, const uint32_t *cost)
{
    OpClass cls = op_class((Op)graph_node(f->g, n)->op);
    if (w->count < 2 || cls == CLS_LEAF || cls == CLS_VIEW)
        return false;
    if (cls == CLS_REDUCE || cls == CLS_SCAN)
        return true;
    return cost[n] > 2 * STORE;
}

static void say(Fuser *f, Ref n, const char *why)
{
    if (log_on(LOG_FUSION)) {
        const char *line = arena_printf(f->arena, "stored: %%%u %s: %s", n, op_name((Op)graph_node(f->g, n)->op), why);
        VEC_PUSH(f->arena, f->decisions, line);
    }
}

/* Computed at many more points than it has elements, or at several coordinates of one kernel. */
static bool want_blown_up(Fuser *f, const uint32_t *cost)
{
    double *points = ARENA_ARRAY(f->arena, double, f->n);
    uint32_t *times = ARENA_ARRAY(f->arena, uint32_t, f->n), *unit = ARENA_ARRAY(f->arena, uint32_t, f->n);
    bool any = false;
    for (uint32_t i = 0; i < f->visits.n; i++) {
        const Visit *v = &f->visits.at[i];
        times[v->node] = times[v->node] && unit[v->node] == v->unit ? times[v->node] + 1 : 1;
        unit[v->node] = v->unit;
        OpClass cls = op_class((Op)graph_node(f->g, v->node)->op);
        if (has_buffer(f, v->node) || cls == CLS_LEAF || cls == CLS_VIEW || f->contract_of[v->node] != REF_NONE)
            continue;
        points[v->node] += v->points;
        bool reduces = cls == CLS_REDUCE || cls == CLS_SCAN;
        double numel = (double)node_hint_numel(f->g, v->node);
        bool repeated = times[v->node] > 1 && (reduces || times[v->node] * cost[v->node] > 8 * STORE);
        bool spread = !reduces && cost[v->node] > STORE + 3 && v->points > 2 * numel &&
                      (v->points - numel) * (cost[v->node] - STORE) > LAUNCH;
        if (repeated || spread) {
            say(f, v->node, repeated ? "one kernel reads it at several places" : "it is read at many more points than it has elements");
            want(f, v->node);
            any = true;
        }
    }
    return any;
}

bool want_more(Fuser *f)
{
    if (!f->fuse)
        return false;
    bool any = false;
    uint32_t *cost = ARENA_ARRAY(f->arena, uint32_t, f->n);
    Where *where = ARENA_ARRAY(f->arena, Where, f->n);
    costs(f, cost);
    any = want_blown_up(f, cost);
    for (uint32_t i = 0; i < f->visits.n; i++) /* reductions: wherever they were really computed */
        if (op_class((Op)graph_node(f->g, f->visits.at[i].node)->op) == CLS_REDUCE)
            add_unit(&where[f->visits.at[i].node], f->visits.at[i].unit);
    uint32_t fresh = f->units.n; /* units that new buffers will have */
    for (Ref n = f->n; n-- > 0;) {
        if (!(f->flags[n] & NODE_LIVE))
            continue;
        bool made = f->flags[n] & NODE_FORCED || (f->flags[n] & NODE_WANT && f->unit_of[n] != NO_UNIT);
        if (!has_buffer(f, n) && dear(f, n, &where[n], cost)) {
            say(f, n, "several kernels need it");
            want(f, n);
            any = true;
        } else if (made && f->flags[n] & NODE_FORCED && !(f->flags[n] & NODE_WANT) && dear(f, n, &where[n], cost)) {
            want(f, n);
            any = true;
        }
        Where self = where[n];
        if (made)
            self = (Where){.first = f->unit_of[n], .count = 1};
        else if (has_buffer(f, n))
            self = (Where){.first = fresh++, .count = 1};
        const Node *node = graph_node(f->g, n);
        for (uint32_t i = 0; i < node->n_in; i++) {
            if (self.count)
                add_unit(&where[node->in[i]], self.first);
            if (self.count > 1)
                where[node->in[i]].count = 2;
        }
    }
    return any;
}

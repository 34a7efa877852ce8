/*
 * Where to divide what is too large for one kernel.
 *
 * Evaluation goes depth first, so when the budget of a kernel runs out, what happens to be left is
 * stored: down a chain of softmaxes the budget goes into the numerators, and each sum and maximum
 * gets a buffer of its own. The nodes are numbered in an order in which operands come first, so
 * there is a better way to divide: the kernel takes the nodes from its root down to some number,
 * and loads what they need from below.
 *
 *     taken      %903 %902 %901 | %900 %899 ...
 *     boundary            3       2       1 ...   elements of the nodes below that are read above
 *
 * Of the numbers that leave a kernel at least half as large as it may be, the one with the smallest
 * boundary is taken, and the lowest of those. Between two softmaxes it is one node. Nothing below
 * the boundary can depend on what is above, so a kernel cut there is in no cycle for it.
 *
 * Views are no place for a cut: what they view is stored instead.
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

typedef struct Cutter {
    Fuser *f;
    VEC(Ref) marked;  /* what the taken nodes read and could compute */
    double elements;  /* of those marked and not yet taken: the boundary's */
    uint32_t open;    /* how many these are */
    uint32_t buffers; /* written by the taken, or read wherever the cut is */
    uint32_t visits;  /* of the taken ones, about */
} Cutter;

static bool looked_through(const Node *node) { return op_class((Op)node->op) == CLS_VIEW && node->op != OP_PAD && node->op != OP_CONCAT; }

/* What a node costs as part of the boundary: nothing if it has a buffer anyway. */
static double elements_of(const Fuser *f, Ref n) { return has_buffer(f, n) ? 0 : (double)node_hint_numel(f->g, n); }

/* Does the kernel only load it? NODE_TARGET: it did, and not for its size. Results of loops, branches and calls it cannot compute, whoever
 * is still to make them: what is behind them is no part of it. */
static bool is_loaded(const Fuser *f, Ref n)
{
    const OpClass cls = op_class((Op)graph_node(f->g, n)->op);
    return cls == CLS_LEAF || cls == CLS_RESULT || f->flags[n] & NODE_TARGET || (has_buffer(f, n) && !(f->flags[n] & NODE_PENDING));
}

static void mark(Cutter *c, Ref n)
{
    Fuser *f = c->f;
    while (!has_buffer(f, n) && looked_through(graph_node(f->g, n))) {
        n = graph_node(f->g, n)->in[0];
        c->visits++;
    }
    if (f->stamp[n] == f->stamp_now)
        return;
    f->stamp[n] = f->stamp_now;
    if (is_loaded(f, n)) {
        const Node *node = graph_node(f->g, n);
        c->visits++;
        c->buffers += op_class((Op)node->op) != CLS_LEAF || node->op == OP_INPUT;
        return;
    }
    VEC_PUSH(f->scratch, c->marked, n);
    c->elements += elements_of(f, n);
    c->open++;
}

static void take(Cutter *c, Ref n)
{
    const Node *node = graph_node(c->f->g, n);
    c->elements -= elements_of(c->f, n);
    c->open--;
    c->visits++;
    c->buffers += has_buffer(c->f, n);
    for (uint32_t i = 0; i < node->n_in; i++)
        mark(c, node->in[i]);
}

static bool search(Fuser *f, Ref root, uint32_t limit, Cut *cut)
{
    typedef struct Place {
        Ref last; /* taken */
        uint32_t visits, marked;
        double elements;
    } Place;
    VEC(Place) places = {0};
    Cutter c = {.f = f};
    *cut = (Cut){0};
    f->stamp_now++;
    mark(&c, root);
    for (Ref n = root; c.open; n--) {
        f->plan->looks++;
        if (f->stamp[n] != f->stamp_now || is_loaded(f, n))
            continue;
        take(&c, n);
        if (c.visits > limit || c.buffers + c.open > MAX_BUFFERS)
            break;
        VEC_PUSH(f->scratch, places, (Place){n, c.visits, c.marked.n, c.elements});
    }
    if (!places.n || !c.open)
        return false;
    uint32_t least = places.at[places.n - 1].visits / 2;
    Place best = places.at[places.n - 1];
    for (uint32_t i = places.n; i-- > 0 && places.at[i].visits >= least;)
        if (places.at[i].elements < best.elements)
            best = places.at[i];
    for (uint32_t i = 0; i < best.marked; i++)
        if (c.marked.at[i] < best.last)
            VEC_PUSH(f->scratch, *cut, c.marked.at[i]);
    return true;
}

bool narrow_cut(Build *b, uint32_t limit, Cut *cut)
{
    uint16_t *flags = b->f->flags;
    for (uint32_t i = 0; i < b->loads.n; i++)
        flags[b->loads.at[i]] |= NODE_TARGET;
    for (uint32_t i = 0; i < b->left.n; i++)
        flags[b->left.at[i]] &= (uint16_t) ~(NODE_TARGET | NODE_FORCED);
    bool found = search(b->f, b->root, limit, cut);
    for (uint32_t i = 0; i < b->loads.n; i++)
        flags[b->loads.at[i]] &= (uint16_t)~NODE_TARGET;
    for (uint32_t i = 0; i < b->left.n; i++)
        flags[b->left.at[i]] |= NODE_FORCED;
    return found;
}

/* The uppermost node that the attempt evaluated at many places: storing it makes the kernel small
 * at once. */
Ref many_places(Fuser *f, uint32_t visits)
{
    uint32_t *times = f->times;
    Ref best = REF_NONE;
    for (uint32_t i = visits; i < f->visits.n; i++) {
        Ref n = f->visits.at[i].node;
        if (++times[n] >= MAX_PLACES && (best == REF_NONE || n > best) && !never_stored(f, n) && !has_buffer(f, n))
            best = n;
    }
    for (uint32_t i = visits; i < f->visits.n; i++)
        times[f->visits.at[i].node] = 0;
    return best;
}

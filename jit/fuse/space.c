/*
 * The loops of a kernel, chosen from its root.
 *
 * A walk down from the root tracks, for each axis of each node, which axes of the root its
 * coordinate depends on. Where it meets a reduction, the root's axes that the reduction's
 * coordinates use must become x axes. The others were dropped by the broadcast of its result: if
 * they are as many and as long as the reduced axes, they are the row (softmax: x = rows, r =
 * columns, the root is stored in the r loops). If there are none, the reduced axes are new loops
 * and the root is computed after them (a mean, a norm). A running sum makes its axis the row.
 *
 * Reductions that ask for the same loops vote together, with the elements they read; the most votes
 * win. The others do not fit and get kernels of their own (jit/fuse/draft.c says why in each case).
 *
 *     %5 = softmax over the last axis of [64, 1000]:   max and sum vote for x = axis 0, r = axis 1
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

enum { MAX_WALK = 512, MAX_VOTES = 8 };

bool size_const(Fuser *f, Dim dim, int64_t *value)
{
    Dim d = dim_find(f->g, dim);
    if (f->g->shared->dims.at[d].kind == DIM_CONST) {
        *value = dim_hint(f->g, d);
        return true;
    }
    while (f->sizes.n <= d)
        VEC_PUSH(f->arena, f->sizes, (SizeFact){.known = 0});
    SizeFact *fact = &f->sizes.at[d];
    if (!fact->known)
        fact->known = spec_dim(f->g, d, "fuse", &fact->value) ? 1 : 2;
    *value = fact->value;
    return fact->known == 1;
}

bool size_is_fixed(const Fuser *f, Dim dim)
{
    Dim d = dim_find(f->g, dim);
    return f->g->shared->dims.at[d].kind == DIM_CONST || (d < f->sizes.n && f->sizes.at[d].known == 1);
}

bool sizes_equal(Fuser *f, Dim a, Dim b)
{
    int64_t x, y;
    if (dim_same(f->g, a, b))
        return true;
    return dim_hint(f->g, a) == dim_hint(f->g, b) && size_const(f, a, &x) && size_const(f, b, &y) && x == y;
}

bool size_is_one(Fuser *f, Dim d)
{
    int64_t value;
    return dim_hint(f->g, d) == 1 && size_const(f, d, &value) && value == 1;
}

/* A guard says so, or that it is more: the sizes of a call choose, not those that a program was made at. */
bool size_at_most(const Fuser *f, Dim d, int64_t most, const char *who)
{
    bool less = dim_hint(f->g, d) <= most;
    (void)spec_range(f->g, d, less ? 0 : most + 1, less ? most : INT64_MAX, who);
    return less;
}

bool reduce_is_trivial(Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n), *input = graph_node(f->g, node->in[0]);
    if (node->op == OP_CUMSUM)
        return size_is_one(f, node->dim[node->attr.axis]);
    for (uint32_t i = 0; i < input->rank; i++)
        if (node->attr.mask >> i & 1 && !size_is_one(f, input->dim[i]))
            return false;
    return true;
}

/* Which axes of the root each axis of a node depends on. */
typedef struct Step {
    Ref node;
    uint8_t mask[MAX_RANK];
} Step;

typedef struct Vote {
    bool fresh;     /* the row is new loops; the root is computed after them */
    uint8_t x, row; /* axes of the root */
    uint32_t n_r;
    Dim r[MAX_RANK];
    double weight;
} Vote;

typedef struct Walk {
    Fuser *f;
    Ref root;
    uint8_t all; /* the root's axes longer than 1 */
    VEC(Step) todo;
    uint32_t steps;
    uint32_t n_votes;
    Vote votes[MAX_VOTES];
} Walk;

static void push(Walk *w, Ref n, const uint8_t *mask)
{
    Fuser *f = w->f;
    if (op_class((Op)graph_node(f->g, n)->op) == CLS_LEAF || w->steps >= MAX_WALK)
        return;
    for (uint32_t i = w->todo.n > 16 ? w->todo.n - 16 : 0; i < w->todo.n; i++) /* near ones */
        if (w->todo.at[i].node == n && !memcmp(w->todo.at[i].mask, mask, MAX_RANK))
            return;
    w->steps++;
    Step s = {.node = n};
    memcpy(s.mask, mask, MAX_RANK);
    VEC_PUSH(f->scratch, w->todo, s);
}

static void vote(Walk *w, const Vote *v)
{
    for (uint32_t i = 0; i < w->n_votes; i++) {
        Vote *other = &w->votes[i];
        bool same = other->fresh == v->fresh && other->x == v->x && other->row == v->row && other->n_r == v->n_r;
        for (uint32_t r = 0; same && r < v->n_r; r++)
            same = sizes_equal(w->f, other->r[r], v->r[r]);
        if (same) {
            other->weight += v->weight;
            return;
        }
    }
    if (w->n_votes < MAX_VOTES)
        w->votes[w->n_votes++] = *v;
}

/* What loops a reduction or scan at these coordinates asks for. */
static void consider(Walk *w, const Step *s)
{
    Fuser *f = w->f;
    const Node *node = graph_node(f->g, s->node), *input = graph_node(f->g, node->in[0]);
    const Node *root = graph_node(f->g, w->root);
    Vote v = {.weight = 1 + (double)node_hint_numel(f->g, node->in[0])};
    bool scan = node->op == OP_CUMSUM;
    for (uint32_t i = 0; i < node->rank; i++)
        if (!scan || i != node->attr.axis)
            v.x |= s->mask[i];
    v.row = (uint8_t)(w->all & ~v.x);
    double points = 1;
    Dim row[MAX_RANK];
    uint32_t n_row = 0;
    for (uint32_t i = 0; i < root->rank; i++) {
        if ((v.x | (scan ? v.row : 0)) >> i & 1)
            points *= (double)dim_hint(f->g, root->dim[i]);
        if (v.row >> i & 1)
            row[n_row++] = root->dim[i];
    }
    if (points > (double)node_hint_numel(f->g, s->node))
        return;
    if (scan) {
        v.r[v.n_r++] = node->dim[node->attr.axis];
        if (v.row != s->mask[node->attr.axis])
            return;
    } else
        for (uint32_t i = 0; i < input->rank; i++)
            if (node->attr.mask >> i & 1 && !size_is_one(f, input->dim[i]))
                v.r[v.n_r++] = input->dim[i];
    v.fresh = !n_row;
    if (!v.fresh && n_row != v.n_r)
        return;
    for (uint32_t i = 0; !v.fresh && i < n_row; i++)
        if (!sizes_equal(f, row[i], v.r[i]))
            return;
    if (!(scan && v.fresh))
        vote(w, &v);
}

/* Masks of a view's input from those of its output. */
static void view_masks(const Graph *g, const Node *node, const uint8_t *out, uint8_t *in)
{
    const Node *input = graph_node(g, node->in[0]);
    memset(in, 0, MAX_RANK);
    if (node->op == OP_RESHAPE) {
        uint32_t i = 0, o = 0;
        for (uint32_t group = 0; group < node->attr.n; group++) {
            uint8_t all = 0;
            for (uint32_t j = 0; j < node->attr.group.out[group]; j++)
                all |= out[o++];
            for (uint32_t j = 0; j < node->attr.group.in[group]; j++)
                in[i++] = all;
        }
        return;
    }
    if (node->op == OP_WINDOW) {
        uint32_t axis = node->attr.axis;
        for (uint32_t i = 0; i + 1 < MAX_RANK; i++)
            in[i] = out[i + (i > axis)];
        in[axis] |= out[axis + 1];
        return;
    }
    for (uint32_t i = 0; i < input->rank && i < MAX_RANK; i++) {
        if (node->op == OP_PERMUTE)
            in[node->attr.perm[i]] = out[i];
        else
            in[i] = node->op == OP_EXPAND && node->attr.mask >> i & 1 ? 0 : out[i];
    }
}

/* Does a node with a buffer stop the walk? What may be absorbed is looked through. */
static bool opaque(Walk *w, const Step *s)
{
    Fuser *f = w->f;
    if (s->node == w->root || !has_buffer(f, s->node))
        return false;
    if (!f->fuse || !(f->flags[s->node] & NODE_PENDING) || f->flags[s->node] & NODE_REFUSED)
        return true;
    uint8_t seen = 0;
    for (uint32_t i = 0; i < graph_node(f->g, s->node)->rank; i++) {
        if (s->mask[i] & (s->mask[i] - 1) || seen & s->mask[i])
            return true;
        seen |= s->mask[i];
    }
    return false;
}

static void visit(Walk *w, const Step *s)
{
    Fuser *f = w->f;
    const Node *node = graph_node(f->g, s->node);
    uint8_t in[MAX_RANK], all = 0;
    if (opaque(w, s))
        return;
    switch (class_of(w->f, s->node)) {
    case CLS_EW:
        for (uint32_t i = 0; i < node->n_in; i++)
            push(w, node->in[i], s->mask);
        return;
    case CLS_VIEW:
        if (node->op == OP_PAD || node->op == OP_CONCAT) {
            for (uint32_t i = 0; i < node->n_in && !(node->op == OP_PAD && i); i++)
                push(w, node->in[i], s->mask);
            return;
        }
        view_masks(f->g, node, s->mask, in);
        push(w, node->in[0], in);
        return;
    case CLS_REDUCE:
    case CLS_SCAN:
        if (!f->fuse && s->node != w->root)
            return;
        if (!reduce_is_trivial(f, s->node)) {
            consider(w, s);
            if (node->op == OP_CUMSUM && s->node != w->root) /* a running sum as root decides alone */
                push(w, node->in[0], s->mask);
            return;
        }
        memset(in, 0, sizeof in);
        for (uint32_t i = 0, o = 0; i < graph_node(f->g, node->in[0])->rank; i++)
            if (node->op == OP_CUMSUM || !(node->attr.mask >> i & 1))
                in[i] = s->mask[o++];
        push(w, node->in[0], in);
        return;
    case CLS_GATHER:
        push(w, node->in[1], s->mask);
        for (uint32_t i = 0; i < node->rank; i++)
            all |= s->mask[i];
        memcpy(in, s->mask, sizeof in);
        in[node->attr.axis] = all;
        push(w, node->in[0], in);
        return;
    case CLS_LEAF:
    case CLS_SCATTER:
    case CLS_SORT:
    case CLS_BODY:
    case CLS_RESULT:
    case CLS_CONTRACT: return;
    }
}

const Space *space_of(Fuser *f, Ref root)
{
    Space *space = &f->space[root];
    if (space->known)
        return space;
    const Node *node = graph_node(f->g, root);
    Walk w = {.f = f, .root = root};
    Step first = {.node = root};
    for (uint32_t i = 0; i < node->rank; i++) {
        first.mask[i] = (uint8_t)(size_is_one(f, node->dim[i]) ? 0u : 1u << i);
        w.all |= first.mask[i];
    }
    VEC_PUSH(f->scratch, w.todo, first);
    for (uint32_t i = 0; i < w.todo.n; i++) {
        Step s = w.todo.at[i];
        visit(&w, &s);
    }
    const Vote *best = NULL;
    for (uint32_t i = 0; i < w.n_votes; i++)
        if (!best || w.votes[i].weight > best->weight)
            best = &w.votes[i];
    *space = (Space){.known = true};
    uint8_t x = best && !best->fresh ? best->x : w.all;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < node->rank; i++) {
            if (!(w.all >> i & 1))
                space->axis_of[i] = -1;
            else if ((x >> i & 1) == (pass == 0)) {
                space->axis_of[i] = (int8_t)(space->n_x + space->n_r);
                space->dim[space->n_x + space->n_r] = node->dim[i];
                *(pass ? &space->n_r : &space->n_x) += 1;
            }
        }
    }
    for (uint32_t i = 0; best && best->fresh && i < best->n_r; i++)
        space->dim[space->n_x + space->n_r++] = best->r[i];
    return space;
}

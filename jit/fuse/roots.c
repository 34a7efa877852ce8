/*
 * Roots: the nodes around which a kernel is drafted, and which of them are made by one kernel.
 *
 * Several roots are one kernel where they have the same loops and read the same data: then that is read once. What each reads is known from
 * the round before, so roots are merged from the second round on. Small ones are merged whatever they read: they are less than a launch.
 */
#include "jit/fuse/fuse.h"

enum { MAX_CANDIDATES = 128, SMALL = 4096, MAX_REASONS = 500 };

Tuple space_tuple(Build *b, const Space *space, uint32_t rank)
{
    Coords c = {.n = rank};
    for (uint32_t i = 0; i < rank; i++)
        c.at[i] = space->axis_of[i] < 0 ? kidx_const(b->k, 0) : kidx_axis(b->k, (uint32_t)space->axis_of[i]);
    return build_tuple(b, &c);
}

void add_root(Build *b, Ref n, Tuple at)
{
    Fuser *f = b->f;
    const Node *node = graph_node(f->g, n);
    f->flags[n] |= NODE_ROOT;
    VEC_PUSH(f->scratch, b->outputs, n);
    VRef v = value_compute(b, n, at, VREF_NONE);
    build_store(b, buffer_for(f, n), n, at, 0, DIM_NONE, v);
    uint32_t used = 0;
    for (uint32_t i = 0; i < node->rank; i++)
        used |= b->k->idx_axes.at[b->tuples.at[at].at[i]];
    if (b->n_r && used == (b->x_mask | b->r_mask)) {
        Frame frame = {.rank = node->rank, .at = at};
        memcpy(frame.dim, node->dim, sizeof frame.dim);
        VEC_PUSH(f->scratch, b->frames, frame);
    }
}

static bool dims_equal(Fuser *f, const Dim *a, const Dim *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!sizes_equal(f, a[i], b[i]))
            return false;
    return true;
}

/* Is it no kernel around a root: a unit of another kind, or that of a product? */
bool has_own_unit(const Fuser *f, Ref n)
{
    OpClass cls = class_of(f, n);
    return cls == CLS_SORT || cls == CLS_SCATTER || cls == CLS_RESULT || cls == CLS_LEAF || in_pieces(f, n) ||
           f->contract_of[n] != REF_NONE;
}

static const Unit *unit_before(const Fuser *f, Ref n) { return f->previous_of[n] == NO_UNIT ? NULL : &f->previous.at[f->previous_of[n]]; }

static void mark_read(Fuser *f, const Ref *loads, uint32_t n, bool on)
{
    for (uint32_t i = 0; i < n; i++)
        f->flags[loads[i]] = (uint16_t)(on ? f->flags[loads[i]] | NODE_READ : f->flags[loads[i]] & ~NODE_READ);
}

/* Does the unit load a node marked NODE_READ? */
static bool reads_same(const Fuser *f, const Unit *u)
{
    for (uint32_t i = 0; i < u->loads.n; i++)
        if (f->flags[u->loads.at[i]] & NODE_READ)
            return true;
    return false;
}

bool same_loops(Build *b, const Space *own, Ref n, Tuple *at)
{
    Fuser *f = b->f;
    const Node *node = graph_node(f->g, n);
    const Space *space = space_of(f, n);
    if (space->n_x == own->n_x && space->n_r == own->n_r && dims_equal(f, space->dim, own->dim, own->n_x + own->n_r)) {
        *at = space_tuple(b, space, node->rank);
        return true;
    }
    for (uint32_t i = 0; !space->n_r && i < b->frames.n; i++) {
        if (b->frames.at[i].rank == node->rank && dims_equal(f, b->frames.at[i].dim, node->dim, node->rank)) {
            *at = b->frames.at[i].at;
            return true;
        }
    }
    return false;
}

/* Adds to the kernel the other roots that have its loops and read what it reads. */
void merge_roots(Build *b, const Space *own)
{
    Fuser *f = b->f;
    uint32_t tried = 0;
    f->reached_now++;
    mark_read(f, b->loads.at, b->loads.n, true);
    for (uint32_t i = f->pending.n; i-- > 0 && tried < MAX_CANDIDATES;) {
        Ref n = f->pending.at[i];
        const Unit *before = unit_before(f, n);
        Asked asked = {.f = f, .b = b, .n = n, .before = before, .own = own};
        f->plan->looks++;
        if (!(f->flags[n] & NODE_PENDING) || f->flags[n] & (NODE_ROOT | NODE_REFUSED) || !before || has_own_unit(f, n))
            continue;
        tried++;
        if (!reads_same(f, before) && b->x_points * b->r_points > SMALL)
            continue;
        RefusalId why = refuse(GROUP_ROOTS, &asked);
        if (why && f->reasons.n < MAX_REASONS)
            refused_note(f, &f->reasons, why, &asked);
        if (why)
            continue;
        add_root(b, n, asked.at);
        mark_read(f, b->loads.at, b->loads.n, true);
    }
    mark_read(f, b->loads.at, b->loads.n, false);
}

/* A pure elementwise root may be better placed in the kernel of a row of the same shape: that root,
 * or `n` itself. */
Ref better_root(Fuser *f, Ref n)
{
    const Unit *mine = unit_before(f, n);
    const Node *node = graph_node(f->g, n);
    if (!f->fuse || !mine || space_of(f, n)->n_r)
        return n;
    Ref best = n;
    uint32_t tried = 0;
    mark_read(f, mine->loads.at, mine->loads.n, true);
    for (uint32_t i = f->pending.n; i-- > 0 && tried < MAX_CANDIDATES && best == n;) {
        Ref other = f->pending.at[i];
        const Unit *before = unit_before(f, other);
        if (other == n || !(f->flags[other] & NODE_PENDING) || !before || has_own_unit(f, other) || for_later(f, n, other))
            continue;
        tried++;
        const Node *peer = graph_node(f->g, other);
        const Node *shape = op_class((Op)peer->op) == CLS_REDUCE ? graph_node(f->g, peer->in[0]) : peer;
        if (space_of(f, other)->n_r && shape->rank == node->rank && dims_equal(f, shape->dim, node->dim, node->rank) &&
            reads_same(f, before))
            best = other;
    }
    mark_read(f, mine->loads.at, mine->loads.n, false);
    return best;
}

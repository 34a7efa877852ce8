/*
 * Fusion: from a graph to few kernels.
 *
 * A node is either computed wherever it is needed (its scalar ops are copied into each kernel that
 * reads it) or it has a buffer. Kernels follow from the second set: one "unit" per buffer, or per
 * few buffers with the same loops. Units are formed from the last node to the first:
 *
 *     roots = nodes that want a buffer (outputs first)
 *     while roots:
 *         take the last
 *         choose its loops (space.c)
 *         draft its kernel (draft.c): evaluate it down to inputs and buffers; what cannot be computed in these loops is
 *         forced to have a buffer: a new root
 *         add other roots that have the same loops and read the same data
 *
 * That is a round. After it, it is known which kernels evaluate what, and values that are cheaper
 * to store than to compute again become roots (cost.c); then the round is repeated, and its
 * guards are taken back first. Two rounds are the rule (roots are merged from the second on, when
 * it is known what each reads), one where there is only one kernel.
 *
 * A unit that makes several nodes could close a cycle: it needs another unit's buffer, which needs
 * one of its own. So after each unit the graph, with formed units as single points, is searched
 * from what the unit loads; a node found again is refused a place in the unit, and its kernel is
 * drafted anew.
 *
 * So all that may turn out otherwise does so in drafts. Those of the last round are what has been decided: they become
 * kernels (lower.c), which cannot fail, in the order of what they need of each other (order.c).
 */
#include "jit/fuse/fuse.h"
#include "jit/fuse/recognise.h"

#include "ir/base/log.h"
#include "ir/body.h"
#include "ir/query.h"

enum { MAX_ROUNDS = 7, MAX_CANDIDATES = 128, SMALL = 4096, MAX_REASONS = 500 };

Ref strip_reshape(const Graph *g, Ref n)
{
    while (graph_node(g, n)->op == OP_RESHAPE)
        n = graph_node(g, n)->in[0];
    return n;
}

/* ---- buffers ---- */

uint32_t buffer_private(Fuser *f, Ref n, BufferKind kind)
{
    const Node *node = graph_node(f->g, n);
    uint32_t index = kind == BUFFER_INPUT ? node->attr.n : 0;
    VEC_PUSH(f->g->arena, f->plan->buffers,
             (PlanBuffer){.kind = (uint8_t)kind,
                          .dtype = node->dtype,
                          .node = n,
                          .index = index,
                          .numel = node_numel(f->g, n),
                          .slot = NO_SLOT,
                          .alias_input = NO_BUFFER,
                          .within = NO_BUFFER,
                          .at = DIM_NONE});
    return f->plan->buffers.n - 1;
}

uint32_t buffer_for(Fuser *f, Ref n)
{
    if (f->buffer_of[n] == NO_BUFFER) {
        BufferKind kind = graph_node(f->g, n)->op == OP_INPUT ? BUFFER_INPUT : BUFFER_TEMP;
        if (kind == BUFFER_TEMP && f->flags[n] & NODE_OUTPUT)
            kind = BUFFER_OUTPUT;
        f->buffer_of[n] = buffer_private(f, n, kind);
    }
    return f->buffer_of[n];
}

/* Gives n a buffer because the kernel being built cannot hold it. */
void force(Fuser *f, Build *b, Ref n)
{
    if (!has_buffer(f, n)) {
        f->flags[n] |= NODE_FORCED | NODE_PENDING;
        VEC_PUSH(f->scratch, b->forced, n);
        VEC_PUSH(f->arena, f->pending, n);
    }
}

/* ---- roots of a kernel ---- */

static Tuple space_tuple(Build *b, const Space *space, uint32_t rank)
{
    Coords c = {.n = rank};
    for (uint32_t i = 0; i < rank; i++)
        c.at[i] = space->axis_of[i] < 0 ? kidx_const(b->k, 0) : kidx_axis(b->k, (uint32_t)space->axis_of[i]);
    return build_tuple(b, &c);
}

static void add_root(Build *b, Ref n, Tuple at)
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

static bool special(const Fuser *f, Ref n)
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
static void merge_roots(Build *b, const Space *own)
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
        if (!(f->flags[n] & NODE_PENDING) || f->flags[n] & (NODE_ROOT | NODE_REFUSED) || !before || special(f, n))
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
static Ref better_root(Fuser *f, Ref n)
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
        if (other == n || !(f->flags[other] & NODE_PENDING) || !before || special(f, other) || for_later(f, n, other))
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

/* ---- units ---- */

static void unit_take(Fuser *f, Unit *u, Build *b)
{
    for (uint32_t i = 0; i < b->loads.n; i++) {
        uint32_t j = 0;
        while (j < u->loads.n && u->loads.at[j] != b->loads.at[i])
            j++;
        if (j == u->loads.n)
            VEC_PUSH(f->arena, u->loads, b->loads.at[i]);
    }
    for (uint32_t i = 0; i < b->outputs.n; i++) {
        VEC_PUSH(f->arena, u->outputs, b->outputs.at[i]);
        f->flags[b->outputs.at[i]] &= (uint16_t)~NODE_ROOT;
    }
    u->visits += b->visits;
    Draft draft = build_draft(b);
    draft.step = u->steps.n;
    VEC_PUSH(f->arena, u->drafts, draft);
    VEC_PUSH(f->arena, u->steps, ((PlanStep){.kind = STEP_KERNEL, .node = b->root}));
}

/* Attempts at one kernel: what to go back to, and what the next must not compute. */
typedef struct Attempts {
    uint32_t visits, reasons, pending;
    Cut refused;
} Attempts;

/* Takes back what an attempt left behind. */
static void give_up(Fuser *f, Build *b, const Attempts *a)
{
    for (uint32_t i = 0; i < b->outputs.n; i++)
        f->flags[b->outputs.at[i]] &= (uint16_t)~NODE_ROOT;
    for (uint32_t i = 0; i < b->forced.n; i++)
        f->flags[b->forced.at[i]] &= (uint16_t) ~(NODE_FORCED | NODE_PENDING);
    b->forced.n = 0;
    f->visits.n = a->visits;
    f->reasons.n = a->reasons;
    f->pending.n = a->pending;
}

/* Gives n a buffer in all further attempts. */
static void force_from_now(Fuser *f, Build *b, Attempts *a, Ref n)
{
    force(f, b, n);
    b->forced.n = 0;
    a->pending = f->pending.n;
}

static void keep_out(Fuser *f, Attempts *a, Ref n)
{
    f->flags[n] |= NODE_REFUSED;
    VEC_PUSH(f->arena, a->refused, n);
}

/* The uppermost node that the attempt evaluated at many places: storing it makes the kernel small
 * at once. */
static Ref many_places(Fuser *f, uint32_t visits)
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

/* The contraction kernel of root n: loops over the product's own axes; n's coordinates follow from
 * them, up the epilogue. false: they would become too long, or something on the way has a kernel of plain loops by now. */
static bool contraction_tuple(Build *b, Ref n, Tuple *at)
{
    Fuser *f = b->f;
    VEC(Ref) path = {0};
    Coords c = {.n = graph_node(f->g, b->contraction)->rank};
    for (uint32_t i = 0; i < c.n; i++)
        c.at[i] = product_axis(b, i);
    for (Ref step = n; step != b->contraction;) {
        const Node *node = graph_node(f->g, step);
        VEC_PUSH(f->scratch, path, step);
        uint32_t i = 0;
        while (i < node->n_in && f->contract_of[node->in[i]] != b->contraction)
            i++;
        if (i == node->n_in)
            return false;
        step = node->in[i];
    }
    while (path.n) {
        c = view_output(b, path.at[--path.n], &c);
        if (coords_long(b, &c))
            return false;
    }
    *at = build_tuple(b, &c);
    return true;
}

static bool is_vector(const Graph *g, Dim d)
{
    const DimInfo *info = &g->shared->dims.at[dim_find(g, d)];
    return info->kind == DIM_CONST && info->hint == 1;
}

/*
 * On a CUDA device a product with a vector is a reduction of products: a block of threads or all of them for each element, where a
 * contraction has one thread each, which sums up in order. Strict mode promises that order for floats. In fast mode the two differ in
 * rounding, so structure decides (a vector that was given another axis), the same for all variants of a program; a size that
 * only happens to be 1 stays a contraction. One that a rewrite relied on to be 1 (of an axis that a reshape by numbers adds) counts as
 * structure: variants for other sizes may then round otherwise.
 */
bool sums_products(const Fuser *f, const Node *node)
{
    bool vector = is_vector(f->g, node->dim[node->rank - 1]) || is_vector(f->g, node->dim[node->rank - 2]);
    return target_kind(&f->options->target)->sums_thin && vector &&
           (options_math(f->options) == MATH_FAST || dtype_is_int((DType)node->dtype));
}

static void begin(Build *b, Fuser *f, Ref n, Space *space)
{
    Ref c = f->contract_of[n];
    if (c == REF_NONE) {
        build_init(b, f, space->dim, space->n_x, space->n_r, n);
        return;
    }
    const Node *node = graph_node(f->g, c), *left = graph_node(f->g, node->in[0]);
    const Attention *attention = attention_of(f, c);
    Dim dim[MAX_RANK + 3];
    uint32_t n_x = node->rank;
    if (attention) {
        n_x = attention_loops(f, attention, dim);
    } else {
        memcpy(dim, node->dim, sizeof node->dim);
        dim[node->rank] = left->dim[left->rank - 1];
    }
    build_init(b, f, dim, n_x, attention ? 2 : 1, n);
    b->k->form = attention ? FORM_ATTENTION : sums_products(f, node) ? FORM_LOOPS : FORM_CONTRACT;
    b->contraction = c;
    b->attention = attention;
}

/* Refuses what closes a cycle: node by node, since one refused may take the others along, and all
 * that are left when that goes on. */
static Status break_cycle(Fuser *f, Build *b, Attempts *a, Ref cycle, const Cut *all)
{
    enum { ONE_BY_ONE = 4 };
    Ref root = b->root;
    if (cycle == root && b->outputs.n > 1) /* something added to its kernel needs it from outside */
        cycle = b->outputs.at[b->outputs.n - 1] != root ? b->outputs.at[b->outputs.n - 1] : b->outputs.at[0];
    if (cycle == root)
        return fail(ST_INTERNAL, "fusion: the kernel of %%%u depends on itself", root);
    keep_out(f, a, cycle);
    for (uint32_t i = 0; a->refused.n > ONE_BY_ONE && i < all->n; i++)
        if (all->at[i] != root && all->at[i] != cycle)
            keep_out(f, a, all->at[i]);
    return ST_OK;
}

static Status form_kernel(Fuser *f, Unit *u, Ref root)
{
    Attempts a = {.visits = f->visits.n, .reasons = f->reasons.n, .pending = f->pending.n};
    for (uint32_t budget = MAX_VISITS, limit = MAX_VISITS;;) {
        Build b;
        Space space = *space_of(f, root);
        begin(&b, f, root, &space);
        b.budget = budget;
        b.absorb = f->fuse;
        bool contract = b.contraction != REF_NONE;
        Tuple at;
        if (!contract)
            at = space_tuple(&b, &space, graph_node(f->g, root)->rank);
        else if (!contraction_tuple(&b, root, &at)) {
            f->contract_of[root] = REF_NONE;
            continue;
        }
        add_root(&b, root, at);
        if (b.attention && (b.unattended || !b.contracts || b.left.n)) { /* to be planned anew without it */
            unattend(f, b.attention->product, b.unattended ? b.unattended : REFUSAL_large_attention, true);
            f->anew = true;
            return ST_OK;
        }
        if (f->fuse && !contract && f->previous.n)
            merge_roots(&b, &space);
        if (contract && !b.contracts) { /* the product is stored on the way: what is left is plain loops */
            give_up(f, &b, &a);
            f->contract_of[root] = REF_NONE;
            continue;
        }
        Ref many = b.left.n ? many_places(f, a.visits) : REF_NONE;
        if (many != REF_NONE) {
            give_up(f, &b, &a);
            force_from_now(f, &b, &a, many);
            refused_note(f, &f->decisions, REFUSAL_many, &(Asked){.n = many});
            continue;
        }
        Cut cut = {0}, cycles = {0};
        bool full = b.buffers > MAX_BUFFERS + 4 && budget > 8;
        if (b.left.n && !contract && limit > MAX_VISITS / 8 && narrow_cut(&b, limit, &cut) && (full || cut.n < b.left.n)) {
            give_up(f, &b, &a);
            for (uint32_t i = 0; i < cut.n; i++) {
                force_from_now(f, &b, &a, cut.at[i]);
                keep_out(f, &a, cut.at[i]);
                refused_note(f, &f->decisions, REFUSAL_divided, &(Asked){.n = cut.at[i]});
            }
            limit /= 2;
            f->space[root].known = false;
            continue;
        }
        Ref cycle = cycle_of(f, &b, &cycles);
        if (cycle == REF_NONE && !full) {
            for (uint32_t i = 0; i < a.refused.n; i++)
                f->flags[a.refused.at[i]] &= (uint16_t)~NODE_REFUSED;
            unit_take(f, u, &b);
            return ST_OK;
        }
        give_up(f, &b, &a);
        if (full)
            budget /= 2;
        else
            TRY(break_cycle(f, &b, &a, cycle, &cycles));
        f->space[root].known = false;
    }
}

/* A kernel that evaluates n and stores it in part of a buffer of the shape of `shape`. */
static void form_piece(Fuser *f, Unit *u, Ref n, uint32_t buffer, Ref shape, uint32_t axis, Dim offset)
{
    Build b;
    Space space = {0};
    const Node *node = graph_node(f->g, n);
    if (node->op != OP_INPUT && !has_buffer(f, n))
        space = *space_of(f, n);
    else
        for (uint32_t i = 0; i < node->rank; i++) {
            bool one = size_is_one(f, node->dim[i]);
            space.axis_of[i] = one ? -1 : (int8_t)space.n_x;
            if (!one)
                space.dim[space.n_x++] = node->dim[i];
        }
    build_init(&b, f, space.dim, space.n_x, space.n_r, n);
    Tuple at = space_tuple(&b, &space, node->rank);
    VRef v = value_at(&b, n, at, VREF_NONE);
    build_store(&b, buffer, shape, at, axis, offset, v);
    unit_take(f, u, &b);
}

/* x copied into the result's buffer, then the updates: parallel over all axes but the indexed one,
 * in order along it. */
static void form_scatter(Fuser *f, Unit *u, Ref n)
{
    const Node *node = graph_node(f->g, n), *index = graph_node(f->g, node->in[1]);
    uint32_t buffer = buffer_for(f, n), axis = node->attr.axis, n_x = 0;
    form_piece(f, u, node->in[0], buffer, n, 0, DIM_NONE);
    if (is_empty(f, index)) {
        VEC_PUSH(f->arena, u->outputs, n);
        return;
    }
    Dim dim[MAX_RANK];
    Coords c = {.n = index->rank};
    int32_t place[MAX_RANK];
    for (uint32_t i = 0; i < index->rank; i++) {
        place[i] = i == axis || size_is_one(f, index->dim[i]) ? -1 : (int32_t)n_x;
        if (place[i] >= 0)
            dim[n_x++] = index->dim[i];
    }
    dim[n_x] = index->dim[axis];
    Build b;
    build_init(&b, f, dim, n_x, 1, n);
    b.contraction = n; /* no reductions in here */
    for (uint32_t i = 0; i < index->rank; i++)
        c.at[i] = i == axis ? kidx_axis(b.k, n_x) : place[i] < 0 ? kidx_const(b.k, 0) : kidx_axis(b.k, (uint32_t)place[i]);
    Tuple at = build_tuple(&b, &c);
    VRef where = value_at(&b, node->in[1], at, VREF_NONE);
    VRef source = value_at(&b, node->in[2], at, VREF_NONE);
    VRef live, clamped = build_bound(&b, n, where, node->dim[axis], at, VREF_NONE, &live);
    IRef sum = kidx_const(b.k, 0), stride = kidx_const(b.k, 1);
    for (uint32_t i = node->rank; i-- > 0;) {
        IRef at_axis = i == axis ? kidx_value(b.k, clamped) : c.at[i];
        sum = kidx_add(b.k, sum, kidx_mul(b.k, at_axis, stride));
        if (i)
            stride = kidx_mul(b.k, stride, build_size(&b, node->dim[i]));
    }
    KInst scatter = KINST(.kind = KI_SCATTER, .dtype = node->dtype, .mode = node->attr.mode);
    scatter.arg = build_buffer_arg(&b, buffer, true);
    scatter.a = source;
    scatter.idx = sum;
    kernel_inst(b.k, scatter);
    unit_take(f, u, &b);
    VEC_PUSH(f->arena, u->outputs, n);
}

/* The buffer of n, row-major: its own, or a copy. */
static uint32_t dense_buffer(Fuser *f, Unit *u, Ref n)
{
    const Graph *g = f->g;
    Ref source = strip_reshape(g, n);
    bool input = graph_node(g, source)->op == OP_INPUT;
    if (input ? !graph_node(g, source)->attr.flag : has_buffer(f, source)) {
        VEC_PUSH(f->arena, u->loads, source);
        return buffer_for(f, source);
    }
    uint32_t copy = buffer_private(f, n, BUFFER_TEMP);
    form_piece(f, u, n, copy, n, 0, DIM_NONE);
    return copy;
}

static void push_buffer(Fuser *f, PlanStep *step, uint32_t buffer)
{
    VEC_PUSH(f->g->arena, step->args, (PlanArg){.kind = buffer == NO_BUFFER ? BIND_NONE : BIND_BUFFER, .buffer = buffer, .size = DIM_NONE});
}

static uint8_t step_of(Op op) { return op == OP_LOOP ? STEP_LOOP : op == OP_COND ? STEP_COND : STEP_CALL; }

/* Bytes that a call is given and gives. */
static Dim call_bytes(Graph *g, const Node *node)
{
    Dim sum = dim_const(g, 0);
    for (uint32_t i = 0; i < node->n_in; i++) {
        int64_t size = (int64_t)dtype_bytes((DType)graph_node(g, node->in[i])->dtype);
        sum = dim_add(g, sum, dim_mul(g, node_numel(g, node->in[i]), dim_const(g, size)));
    }
    for (uint32_t k = 0; k < node->attr.n; k++) {
        BodyType type = body_result_type(g, node, k);
        Dim bytes = dim_const(g, (int64_t)dtype_bytes((DType)type.dtype));
        for (int d = 0; d < type.rank; d++)
            bytes = dim_mul(g, bytes, type.dim[d]);
        sum = dim_add(g, sum, bytes);
    }
    return sum;
}

/* A loop, branch or call, with all of its results that somebody reads. Its bodies are planned when nothing is tried any more. */
static void form_body(Fuser *f, Unit *u, Ref n)
{
    Graph *g = f->g;
    const Node *node = graph_node(g, n);
    PlanStep step = {.kind = step_of((Op)node->op), .what = op_name((Op)node->op), .node = n};
    if (step.kind == STEP_CALL)
        step.what = arena_printf(g->arena, "call %s %s", node->callee->name, node->callee->version);
    for (uint32_t i = 0; i < node->n_in; i++)
        push_buffer(f, &step, dense_buffer(f, u, node->in[i]));
    uint32_t first = step.args.n, n_results = body_n_results(node);
    for (uint32_t k = 0; k < n_results; k++)
        push_buffer(f, &step, NO_BUFFER);
    for (uint32_t i = f->user_at[n]; i < f->user_at[n + 1]; i++) {
        Ref result = f->users[i];
        PlanArg *arg = &step.args.at[first + graph_node(g, result)->attr.n];
        arg->kind = BIND_BUFFER;
        arg->buffer = buffer_for(f, result);
        VEC_PUSH(f->arena, u->outputs, result);
    }
    if (node->op == OP_LOOP)
        VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = node->fact[0]});
    step.bytes = step.kind == STEP_CALL ? call_bytes(g, graph_node(g, n)) : dim_const(g, 0); /* its kernels' */
    VEC_PUSH(f->arena, u->steps, step);
}

static void form_sort(Fuser *f, Unit *u, Ref n)
{
    Graph *g = f->g;
    bool values = (f->flags[n] & NODE_SORTED) != 0;
    const Node *node = graph_node(g, values ? graph_node(g, n)->in[1] : n), *x = graph_node(g, node->in[0]);
    uint32_t from = dense_buffer(f, u, node->in[0]);
    Dim outer = dim_const(g, 1), inner = dim_const(g, 1);
    for (uint32_t i = 0; i < x->rank; i++) {
        if (i < node->attr.axis)
            outer = dim_mul(g, outer, x->dim[i]);
        else if (i > node->attr.axis)
            inner = dim_mul(g, inner, x->dim[i]);
    }
    PlanStep step = {
        .kind = STEP_SORT, .descending = node->attr.flag != 0, .values = values, .what = values ? "sort" : "argsort", .node = n};
    Dim along = x->rank ? x->dim[node->attr.axis] : dim_const(g, 1);
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_BUFFER, .buffer = from, .size = DIM_NONE});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_BUFFER, .buffer = buffer_for(f, n), .size = DIM_NONE});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = outer});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = along});
    VEC_PUSH(g->arena, step.args, (PlanArg){.kind = BIND_SIZE, .size = inner});
    int64_t bytes = (int64_t)(dtype_bytes((DType)x->dtype) + dtype_bytes((DType)graph_node(g, n)->dtype));
    step.bytes = dim_mul(g, node_numel(g, n), dim_const(g, bytes));
    if (target_kind(&f->options->target)->sorts_by_kernels)
        sort_on_device(g, (DType)x->dtype, &step);
    VEC_PUSH(f->arena, u->steps, step);
    VEC_PUSH(f->arena, u->outputs, n);
}

static void form_concat(Fuser *f, Unit *u, Ref n)
{
    const Node *node = graph_node(f->g, n);
    Dim offset = dim_const(f->g, 0), row = dim_const(f->g, 1);
    for (uint32_t d = 1; d < node->rank; d++) /* of a bucket, whose axis is the first */
        row = dim_mul(f->g, row, node->dim[d]);
    for (uint32_t i = 0; i < node->n_in; i++) {
        node = graph_node(f->g, n);
        form_piece(f, u, node->in[i], buffer_for(f, n), n, node->attr.axis, offset);
        if (f->flags[n] & NODE_BUCKET)
            place_in_bucket(f, u, node->in[i], n, dim_mul(f->g, offset, row));
        node = graph_node(f->g, n);
        offset = dim_add(f->g, offset, graph_node(f->g, node->in[i])->dim[node->attr.axis]);
    }
    VEC_PUSH(f->arena, u->outputs, n);
}

static void form_copy(Fuser *f, Unit *u, Ref n)
{
    if (f->copy_of[n] == NO_BUFFER)
        f->copy_of[n] = buffer_private(f, n, BUFFER_OUTPUT);
    form_piece(f, u, n, f->copy_of[n], n, 0, DIM_NONE);
}

/* Roots that have been formed leave the list when they may be half of it, so that a search of it
 * costs no more than the roots that are left. */
static void forget_formed(Fuser *f, uint32_t formed)
{
    f->formed += formed;
    if (2 * f->formed <= f->pending.n)
        return;
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->pending.n; i++)
        if (f->flags[f->pending.at[i]] & NODE_PENDING)
            f->pending.at[n++] = f->pending.at[i];
    f->plan->looks += f->pending.n;
    f->pending.n = n;
    f->formed = 0;
}

static Status form_unit(Fuser *f, Ref root)
{
    Unit u = {.root = root};
    const Node *node = graph_node(f->g, root);
    OpClass cls = class_of(f, root);
    if (cls == CLS_SCATTER)
        form_scatter(f, &u, root);
    else if (cls == CLS_SORT)
        form_sort(f, &u, root);
    else if (cls == CLS_RESULT)
        form_body(f, &u, node->in[0]);
    else if (in_pieces(f, root))
        form_concat(f, &u, root);
    else if (node->op == OP_INPUT)
        form_copy(f, &u, root);
    else
        TRY(form_kernel(f, &u, root));
    f->flags[root] &= (uint16_t)~NODE_PENDING;
    for (uint32_t i = 0; i < u.outputs.n; i++) {
        f->unit_of[u.outputs.at[i]] = f->units.n;
        f->flags[u.outputs.at[i]] &= (uint16_t)~NODE_PENDING;
        if (u.outputs.n > 1 && u.outputs.at[i] < f->lowest_shared)
            f->lowest_shared = u.outputs.at[i];
    }
    forget_formed(f, u.outputs.n);
    VEC_PUSH(f->arena, f->units, u);
    return ST_OK;
}

/* ---- a round ---- */

static void round_begin(Fuser *f)
{
    f->previous.at = f->units.at;
    f->previous.n = f->units.n;
    f->units.at = NULL;
    f->units.n = f->units.cap = 0;
    f->lowest_shared = REF_NONE;
    memcpy(f->previous_of, f->unit_of, sizeof *f->unit_of * f->n);
    f->pending.n = f->visits.n = f->reasons.n = f->sizes.n = f->formed = 0;
    f->plan->buffers.n = f->plan->faults.n = 0;
    memset(f->space, 0, sizeof *f->space * f->n);
    arena_reset(f->drafts);
    for (Ref n = 0; n < f->n; n++) {
        f->unit_of[n] = NO_UNIT;
        f->buffer_of[n] = f->copy_of[n] = NO_BUFFER;
        f->fault_of[n] = UINT32_MAX;
        f->flags[n] &=
            NODE_LIVE | NODE_WANT | NODE_CHOSEN | NODE_NEVER | NODE_OUTPUT | NODE_SORTED | NODE_ATTENDED | NODE_BUCKET | NODE_CHAINED;
        if (f->flags[n] & NODE_WANT) {
            f->flags[n] |= NODE_PENDING;
            VEC_PUSH(f->arena, f->pending, n);
        }
    }
}

static Status form_units(Fuser *f)
{
    for (Ref n = f->n; n-- > 0 && !f->anew;)
        while (f->flags[n] & NODE_PENDING && !f->anew)
            TRY(form_unit(f, special(f, n) ? n : better_root(f, n)));
    return ST_OK;
}

/* Writes the kernels of what the last round has decided. */
static void lower_units(Fuser *f)
{
    for (uint32_t u = 0; u < f->units.n; u++)
        for (uint32_t i = 0; i < f->units.at[u].drafts.n; i++) {
            Draft *d = &f->units.at[u].drafts.at[i];
            arena_reset(f->scratch);
            lower(f, d, &f->units.at[u].steps.at[d->step]);
        }
}

/* A gather of sorted elements needs no places where nothing else reads them: the sort moves the elements themselves. */
static void find_sorted(Fuser *f)
{
    const Graph *g = f->g;
    for (Ref n = 0; n < f->n && f->fuse && !target_kind(&f->options->target)->sorts_by_kernels; n++) {
        const Node *node = graph_node(g, n);
        if (!(f->flags[n] & NODE_LIVE) || node->op != OP_GATHER)
            continue;
        Ref places = node->in[1];
        const Node *sort = graph_node(g, places);
        if (sort->op != OP_ARGSORT || sort->in[0] != node->in[0] || sort->attr.axis != node->attr.axis ||
            f->user_at[places + 1] - f->user_at[places] != 1 || f->flags[places] & NODE_OUTPUT)
            continue;
        f->flags[n] |= NODE_SORTED;
        f->flags[places] &= (uint16_t)~NODE_LIVE;
    }
}

static void find_users(Fuser *f)
{
    const Graph *g = f->g;
    f->user_at = ARENA_ARRAY(f->arena, uint32_t, f->n + 2);
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        f->flags[g->outputs.at[i]] |= NODE_LIVE;
        f->flags[strip_reshape(g, g->outputs.at[i])] |= NODE_OUTPUT;
    }
    for (Ref n = f->n; n-- > 0;)
        for (uint32_t i = 0; f->flags[n] & NODE_LIVE && i < g->nodes.at[n].n_in; i++) {
            f->flags[g->nodes.at[n].in[i]] |= NODE_LIVE;
            f->user_at[g->nodes.at[n].in[i] + 1]++;
        }
    for (Ref n = 0; n < f->n; n++)
        f->user_at[n + 1] += f->user_at[n];
    uint32_t *fill = ARENA_ARRAY(f->arena, uint32_t, f->n + 1);
    f->users = ARENA_ARRAY(f->arena, uint32_t, f->user_at[f->n] + 1);
    for (Ref n = 0; n < f->n; n++)
        for (uint32_t i = 0; f->flags[n] & NODE_LIVE && i < g->nodes.at[n].n_in; i++) {
            Ref in = g->nodes.at[n].in[i];
            f->users[f->user_at[in] + fill[in]++] = n;
        }
}

static void fuser_init(Fuser *f, Graph *g, const JitOptions *options, Plan *plan)
{
    *f = (Fuser){.g = g, .options = options, .arena = g->arena, .plan = plan, .n = g->nodes.n, .unattended = f->unattended};
    f->fuse = options->value[OPT_FUSE] != 0;
    f->scratch = arena_scratch(f->arena);
    f->drafts = arena_scratch(f->arena);
    uint32_t n = f->n + 1;
    f->flags = ARENA_ARRAY(f->arena, uint16_t, n);
    f->contract_of = ARENA_ARRAY(f->arena, Ref, n);
    f->unit_of = ARENA_ARRAY(f->arena, uint32_t, n);
    f->previous_of = ARENA_ARRAY(f->arena, uint32_t, n);
    f->buffer_of = ARENA_ARRAY(f->arena, uint32_t, n);
    f->copy_of = ARENA_ARRAY(f->arena, uint32_t, n);
    f->fault_of = ARENA_ARRAY(f->arena, uint32_t, n);
    f->stamp = ARENA_ARRAY(f->arena, uint32_t, n);
    f->reached = ARENA_ARRAY(f->arena, uint32_t, n);
    f->times = ARENA_ARRAY(f->arena, uint32_t, n);
    f->space = ARENA_ARRAY(f->arena, Space, n);
    for (Ref i = 0; i < n; i++) {
        f->contract_of[i] = REF_NONE;
        f->unit_of[i] = NO_UNIT;
    }
}

/* ---- the log ---- */

static void tell(Fuser *f, const char *line)
{
    if (!fuser_tells(f))
        return;
    if (log_on(LOG_FUSION))
        log_line(LOG_FUSION, "%s", line);
    if (f->told)
        str_printf(f->told, "%s\n", line);
}

/* What has a buffer for a reason that is told is loaded for that one. */
static void log_refused(Fuser *f)
{
    bool *told = ARENA_ARRAY(f->arena, bool, f->n + 1);
    for (uint32_t i = 0; i < f->decisions.n; i++) {
        const Refused *r = &f->decisions.at[i];
        if (!has_buffer(f, r->n))
            continue;
        told[r->n] = true;
        tell(f, refused_line(f, r));
    }
    for (uint32_t i = 0; i < f->unattended.n; i++)
        tell(f, refused_line(f, &(Refused){.id = f->unattended.at[i].why, .root = f->unattended.at[i].product}));
    for (uint32_t i = 0; i < f->reasons.n; i++)
        if (!(told[f->reasons.at[i].n] && refusal_group(f->reasons.at[i].id) == GROUP_MADE))
            tell(f, refused_line(f, &f->reasons.at[i]));
}

static void log_recognised(Fuser *f)
{
    Str out;
    str_init(&out, f->arena);
    recognised_print(f, &out);
    if (!out.len)
        return;
    log_text(LOG_FUSION, out.text);
    if (f->told)
        str_printf(f->told, "%s", out.text);
}

static void log_plan(Fuser *f)
{
    if (fuser_tells(f)) {
        log_refused(f);
        log_recognised(f);
    }
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        const PlanStep *step = &f->plan->steps.at[s];
        if (fuser_tells(f))
            tell(f, arena_printf(f->arena, "kernel %u %s makes %%%u: %u instructions, %lld bytes", s, step->what, step->node,
                                 step->kernel ? step->kernel->inst.n : 0, (long long)dim_hint(f->g, step->bytes)));
        if (log_on(LOG_KERNELS) && step->kernel) {
            Str text;
            str_init(&text, f->arena);
            kernel_print(step->kernel, &text);
            log_line(LOG_KERNELS, "kernel %u: %s", s, step->what);
            log_text(LOG_KERNELS, text.text);
        }
    }
}

/* Each body as a graph of its own. */
static Status plan_bodies_of(Fuser *f, PlanStep *step)
{
    const Node *node = graph_node(f->g, step->node);
    step->bodies = ARENA_ARRAY(f->g->arena, Plan, node->n_bodies);
    for (uint32_t b = 0; b < node->n_bodies; b++) {
        if (fuser_tells(f))
            tell(f, arena_printf(f->arena, "%s of %%%u:", body_name((Op)node->op, b), step->node));
        TRY(jit_plan_told(node->bodies[b], f->options, &step->bodies[b], f->told));
    }
    return ST_OK;
}

/* Loops that are kernels are planned before the buffers of the steps are placed: they are steps like others then. */
static Status plan_loops(Fuser *f)
{
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        PlanStep *step = &f->plan->steps.at[s];
        if (step->kind != STEP_LOOP || !loop_may_be_kernel(f, step->node))
            continue;
        TRY(plan_bodies_of(f, step));
        (void)loop_as_kernel(f, s);
    }
    return ST_OK;
}

static Status plan_bodies(Fuser *f)
{
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        PlanStep *step = &f->plan->steps.at[s];
        if ((step->kind == STEP_LOOP || step->kind == STEP_COND) && !step->bodies)
            TRY(plan_bodies_of(f, step));
    }
    return ST_OK;
}

Status jit_plan(Graph *g, const JitOptions *options, Plan *plan) { return jit_plan_told(g, options, plan, NULL); }

Status jit_plan_told(Graph *g, const JitOptions *options, Plan *plan, Str *told)
{
    Fuser f = {0};
    uint32_t start = query_mark(g);
again:
    *plan = (Plan){0};
    fuser_init(&f, g, options, plan);
    f.told = told;
    find_users(&f);
    find_sorted(&f);
    find_buckets(&f);
    want_structural(&f);
    for (f.round = 0;; f.round++) {
        uint32_t mark = query_mark(g);
        round_begin(&f);
        TRY(form_units(&f));
        if (f.anew) {
            query_undo(g, start);
            goto again;
        }
        bool again = f.fuse && f.units.n > 1 && (f.round == 0 || want_more(&f)); /* only now is it known what can be merged */
        if (!again || f.round + 1 == MAX_ROUNDS)
            break;
        query_undo(g, mark);
    }
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        Ref n = strip_reshape(g, g->outputs.at[i]);
        uint32_t buffer = f.copy_of[n] != NO_BUFFER ? f.copy_of[n] : buffer_for(&f, n);
        VEC_PUSH(g->arena, plan->outputs, buffer);
    }
    lower_units(&f);
    TRY(order_units(&f));
    plan_host_scalars(&f);
    plan_bands(&f);
    TRY(plan_loops(&f));
    plan_buffers(&f);
    choose_unrounded(&f);
    if (target_kind(&options->target)->narrow_index)
        choose_index_width(g, plan);
    for (uint32_t s = 0; s < plan->steps.n; s++)
        if (plan->steps.at[s].kernel)
            TRY(kernel_verify(plan->steps.at[s].kernel));
    log_plan(&f);
    return plan_bodies(&f);
}

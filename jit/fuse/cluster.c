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

#include "ir/query.h"
#include "jit/panels.h"

enum { MAX_ROUNDS = 7 };

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

/* ---- units ---- */

void unit_take(Fuser *f, Unit *u, Build *b)
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
    uint32_t budget, limit; /* nodes that it may evaluate, and that it may before it is divided */
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

/* From the root down, and other roots that fit in. */
static void draft_kernel(Fuser *f, Build *b, const Attempts *a, Ref root)
{
    Space space = *space_of(f, root);
    Tuple at;
    if (f->contract_of[root] != REF_NONE && !product_begin(b, f, root, &at))
        f->contract_of[root] = REF_NONE;
    bool product = f->contract_of[root] != REF_NONE;
    if (!product) {
        build_init(b, f, space.dim, space.n_x, space.n_r, root);
        at = space_tuple(b, &space, graph_node(f->g, root)->rank);
    }
    b->budget = a->budget;
    b->absorb = f->fuse;
    add_root(b, root, at);
    if (f->fuse && !product && f->previous.n)
        merge_roots(b, &space);
}

/* Is the draft too large, and is it known what to store instead? Then that has a buffer in the next one. */
static bool divide(Fuser *f, Build *b, Attempts *a, bool full)
{
    Ref many = b->left.n ? many_places(f, a->visits) : REF_NONE;
    if (many != REF_NONE) {
        give_up(f, b, a);
        force_from_now(f, b, a, many);
        refused_note(f, &f->decisions, REFUSAL_many, &(Asked){.n = many});
        return true;
    }
    Cut cut = {0};
    bool may = b->left.n && b->contraction == REF_NONE && a->limit > MAX_VISITS / 8;
    if (!may || !narrow_cut(b, a->limit, &cut) || (!full && cut.n >= b->left.n))
        return false;
    give_up(f, b, a);
    for (uint32_t i = 0; i < cut.n; i++) {
        force_from_now(f, b, a, cut.at[i]);
        keep_out(f, a, cut.at[i]);
        refused_note(f, &f->decisions, REFUSAL_divided, &(Asked){.n = cut.at[i]});
    }
    a->limit /= 2;
    f->space[b->root].known = false;
    return true;
}

/* Does the draft hold? Else it is given up, and the next one will be another. */
static Status settle(Fuser *f, Build *b, Attempts *a, bool *holds)
{
    *holds = false;
    if (b->attention && (b->unattended || !b->contracts || b->left.n)) { /* to be planned anew without it */
        unattend(f, b->attention->product, b->unattended ? b->unattended : REFUSAL_large_attention, true);
        f->anew = true;
        return ST_OK;
    }
    if (b->contraction != REF_NONE && !b->contracts) { /* the product is stored on the way: what is left is plain loops */
        give_up(f, b, a);
        f->contract_of[b->root] = REF_NONE;
        return ST_OK;
    }
    bool full = b->buffers > MAX_BUFFERS + 4 && a->budget > 8;
    if (divide(f, b, a, full))
        return ST_OK;
    Cut cycles = {0};
    Ref cycle = cycle_of(f, b, &cycles);
    *holds = cycle == REF_NONE && !full;
    if (*holds)
        return ST_OK;
    give_up(f, b, a);
    f->space[b->root].known = false;
    if (!full)
        return break_cycle(f, b, a, cycle, &cycles);
    a->budget /= 2;
    return ST_OK;
}

static Status form_kernel(Fuser *f, Unit *u, Ref root)
{
    Attempts a = {.visits = f->visits.n, .reasons = f->reasons.n, .pending = f->pending.n, .budget = MAX_VISITS, .limit = MAX_VISITS};
    Build b;
    for (bool holds = false; !holds && !f->anew;) {
        draft_kernel(f, &b, &a, root);
        TRY(settle(f, &b, &a, &holds));
    }
    for (uint32_t i = 0; i < a.refused.n; i++)
        f->flags[a.refused.at[i]] &= (uint16_t)~NODE_REFUSED;
    if (!f->anew)
        unit_take(f, u, &b);
    return ST_OK;
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
        f->flags[n] &= NODE_LIVE | NODE_WANT | NODE_CHOSEN | NODE_NEVER | NODE_OUTPUT | NODE_SORTED | NODE_ATTENDED | NODE_BUCKET |
                       NODE_CHAINED | NODE_PACKED;
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
            TRY(form_unit(f, has_own_unit(f, n) ? n : better_root(f, n)));
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

/* ---- the plan ---- */

/* The last round has decided, unless f->anew says that it must be from the start. */
static Status decide(Fuser *f)
{
    find_users(f);
    find_sorted(f);
    find_buckets(f);
    want_structural(f);
    for (f->round = 0;; f->round++) {
        uint32_t mark = query_mark(f->g);
        round_begin(f);
        TRY(form_units(f));
        bool again = !f->anew && f->fuse && f->units.n > 1 && (f->round == 0 || want_more(f)); /* only now is it known what can be merged */
        if (!again || f->round + 1 == MAX_ROUNDS)
            return ST_OK;
        query_undo(f->g, mark);
    }
}

Status jit_plan(Graph *g, const JitOptions *options, Plan *plan) { return jit_plan_told(g, options, plan, NULL); }

Status jit_plan_told(Graph *g, const JitOptions *options, Plan *plan, Str *told)
{
    Fuser f = {0};
    const uint32_t start = query_mark(g);
    do {
        query_undo(g, start);
        *plan = (Plan){0};
        fuser_init(&f, g, options, plan);
        f.told = told;
        TRY(decide(&f));
    } while (f.anew);
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        Ref n = strip_reshape(g, g->outputs.at[i]);
        uint32_t buffer = f.copy_of[n] != NO_BUFFER ? f.copy_of[n] : buffer_for(&f, n);
        VEC_PUSH(g->arena, plan->outputs, buffer);
    }
    lower_units(&f);
    name_nodes(&f);
    name_steps(&f);
    TRY(order_units(&f));
    plan_host_scalars(&f);
    plan_bands(&f);
    plan_unions(&f);
    plan_blocks(&f);
    TRY(plan_loops(&f));
    turn_operands(&f);
    panels_before_products(g, options, plan, told);
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

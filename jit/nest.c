/* The nest of a kernel under a schedule: which loops there are, in which order, where their tails are and what is done in each. */
#include "jit/nest_build.h"
#include "jit/rules.h"

#include <string.h>

NestRole nest_role(NestKind kind)
{
    static const uint8_t role[] = {
#define NEST(id, role, text) NEST_ROLE_##role,
#include "jit/nest.def"
#undef NEST
    };
    return (NestRole)role[kind];
}

int64_t nest_points(const Kernel *k, uint32_t axes)
{
    int64_t n = 1, size;
    bool known = true;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        if (!(axes >> a & 1))
            continue;
        bool fixed = kidx_is_const(k, k->axes.at[a].size, &size);
        if (fixed && size <= 0)
            return 0;
        known &= fixed && !__builtin_mul_overflow(n, size, &n);
    }
    return known ? n : -1;
}

/* ---- statements ---- */

static Statement statement_of(const KernelFacts *f, VRef v)
{
    const KInst *x = &f->k->inst.at[v];
    const InstInfo *info = &f->info[v];
    Statement s = {.body = (uint8_t)info->stage};
    bool effect = x->kind == KI_STORE || x->kind == KI_SCATTER || f->checked[v];
    if (!f->live[v])
        return (Statement){0};
    if (effect)
        s.body = (uint8_t)(info->r_level ? info->stage : f->n_stages);
    s.kind = inst_runs(x)                         ? STATEMENT_RUN
             : inst_reduces(x) && !inst_is_dot(x) ? STATEMENT_STEP
             : x->kind == KI_NEXT                 ? STATEMENT_NEXT
             : effect                             ? STATEMENT_EFFECT
                                                  : STATEMENT_NONE;
    s.saved = x->save && info->r_level && f->n_stages;
    return s;
}

void nest_statements(Nest *n, const KernelFacts *f, Arena *arena)
{
    *n = (Nest){.arena = arena, .does = ARENA_ARRAY(arena, Statement, f->k->inst.n + 1), .phase = NEST_NONE};
    for (VRef v = 0; v < f->k->inst.n; v++)
        n->does[v] = statement_of(f, v);
}

bool nest_ordered(const Nest *n, const Kernel *k, uint32_t stage)
{
    for (VRef v = 0; v < k->inst.n; v++)
        if (n->does[v].kind == STATEMENT_STEP && n->does[v].body == stage && k->inst.at[v].order.kind == ORD_LANES)
            return true;
    return false;
}

/* ---- loops ---- */

NestRef nest_add(NestBuild *b, NestRef parent, NestNode node)
{
    NestRef at = b->n->node.n, last = NEST_NONE;
    node.parent = parent;
    node.child = node.next = NEST_NONE;
    VEC_PUSH(b->n->arena, b->n->node, node);
    NestRef *link = parent == NEST_NONE ? &b->n->phase : &b->n->node.at[parent].child;
    while (*link != NEST_NONE) {
        last = *link;
        link = &b->n->node.at[last].next;
    }
    *link = at;
    return at;
}

static NestRef add_kind(NestBuild *b, NestRef parent, NestKind kind, uint32_t number)
{
    return nest_add(b, parent, (NestNode){.kind = (uint8_t)kind, .number = number});
}

static NestRef add_loop(NestBuild *b, NestRef parent, NestKind kind, uint32_t axes, int64_t by)
{
    return nest_add(b, parent, (NestNode){.kind = (uint8_t)kind, .axes = axes, .by = by});
}

bool nest_whole_steps(int64_t points, int64_t by) { return by == 1 || (points >= 0 && points % by == 0); }

/* Are these folds cut into blocks, as their order has them? */
static bool has_blocks(const NestBuild *b, uint32_t stage)
{
    return nest_ordered(b->n, b->k, stage) && !(b->length >= 0 && b->length <= b->f->order.block);
}

static NestRef blocks(NestBuild *b, NestRef parent, uint32_t stage)
{
    return has_blocks(b, stage) ? add_loop(b, parent, NEST_BLOCKS, b->r, b->f->order.block) : parent;
}

/* The most accumulators that a fold of a stage has; those without order may have fewer (reduce_step_all). */
static uint32_t stage_slots(const NestBuild *b, uint32_t stage)
{
    uint32_t slots = 1;
    for (VRef v = 0; v < b->k->inst.n; v++) {
        if (b->n->does[v].kind != STATEMENT_STEP || b->n->does[v].body != stage)
            continue;
        uint32_t of = nest_fold(b->n, b->f, v).slots;
        slots = of > slots ? of : slots;
    }
    return slots;
}

static NestRef add_rounds(NestBuild *b, NestRef parent, int64_t lanes, int64_t slots)
{
    NestRef round = add_loop(b, parent, NEST_ROUNDS, b->r, lanes);
    b->n->node.at[round].points = slots;
    return round;
}

/* Is what a stage does at a point of r long? */
static bool heavy_stage(const NestBuild *b, uint32_t stage)
{
    bool *part = ARENA_ARRAY(b->f->arena, bool, b->k->inst.n + 1);
    facts_part(b->f, stage, true, part);
    return facts_heavy(b->f, facts_weigh(b->f, b->s, part));
}

/*
 * Lanes along r: a round over the accumulators is a step as far as whole rounds go, a vector in what is left, which may be known to be
 * nothing.
 */
static NestRef lanes_along_r(NestBuild *b, NestRef parent, int64_t lanes, uint32_t stage, bool block)
{
    int64_t slots = stage_slots(b, stage), round = slots * lanes, left = b->length, one = b->f->bits / 32;
    bool once = b->s->body == BODY_ONCE,
         rounds = slots > 1 && slots <= rule_limit(b->f->bits, LIMIT_round) && !b->f->heavy && !once && (left < 0 || left >= round);
    if (rounds && left >= 0) {
        left %= round;
        if (left == 0)
            return add_rounds(b, parent, lanes, slots);
    }
    NestRef at = add_loop(b, parent, NEST_LANES, b->r, lanes);
    if (rounds)
        add_kind(b, add_rounds(b, at, lanes, slots), NEST_BODY, stage);
    NestNode *node = &b->n->node.at[at];
    /* two bodies where rows are short; a kernel that is there split and whole has code enough, but for stages that are little code */
    bool rows = b->f->n_stages > 1 && !(b->split && b->s->split == SPLIT_ASKED && heavy_stage(b, stage));
    if (nest_whole_steps(left, lanes))
        node->tail = NEST_TAIL_NONE;
    else
        node->tail = once && !rows                                        ? NEST_TAIL_PASSES
                     : left < 0 && !b->split && slots == 1 && lanes > one ? NEST_TAIL_REGISTERS
                                                                          : NEST_TAIL_MASK;
    if ((!block || rounds) && left >= 0 && left < lanes && node->tail != NEST_TAIL_PASSES)
        node->whole = NEST_WHOLE_NONE;
    return at;
}

int64_t nest_stage_lanes(const Schedule *s, uint32_t stage) { return s->n_stages ? s->stage_lanes[stage] : s->lanes; }

static bool ends(const Kernel *k)
{
    for (VRef v = 0; v < k->inst.n; v++)
        if (k->inst.at[v].kind == KI_NEXT && k->inst.at[v].mode == ENDS)
            return true;
    return false;
}

/* One point of r after another, as far as carries say; few of them have no loop, whose counter takes as long as what little they do. */
static NestRef steps(NestBuild *b, NestRef parent, bool block)
{
    NestNode node = {.kind = NEST_STEPS, .axes = b->r, .by = 1, .ends = ends(b->k)};
    if (b->s->shares)
        node.kind = NEST_CHOSEN;
    else if (!block && !node.ends && b->length > 1 && b->length <= rule_limit(b->f->bits, LIMIT_few_steps) &&
             b->length * b->k->inst.n <= rule_limit(b->f->bits, LIMIT_few_steps_code))
        node.kind = NEST_EACH, node.points = b->length;
    return nest_add(b, parent, node);
}

/* From accumulators to totals. */
static void folds(NestBuild *b, NestRef parent, uint32_t stage, bool block)
{
    add_kind(b, parent, NEST_START, stage);
    NestRef loop = b->vec_r ? lanes_along_r(b, parent, nest_stage_lanes(b->s, stage), stage, block) : steps(b, parent, block);
    add_kind(b, loop, NEST_BODY, stage);
    add_kind(b, parent, NEST_MERGE, stage);
}

static void stage(NestBuild *b, NestRef parent, uint32_t number, bool partial)
{
    NestRef at =
        nest_add(b, parent, (NestNode){.kind = NEST_STAGE, .number = number, .lanes = nest_stage_lanes(b->s, number), .partial = partial});
    NestRef inner = partial ? at : blocks(b, at, number);
    folds(b, inner, number, partial || inner != at);
    add_kind(b, at, partial ? NEST_PART : NEST_TOTAL, number);
}

static NestRef columns(NestBuild *b, NestRef parent, uint32_t number, bool partial)
{
    NestRef at = nest_add(b, parent, (NestNode){.kind = NEST_COLUMNS, .number = number, .partial = partial});
    NestRef inner = partial ? at : blocks(b, at, number);
    add_kind(b, inner, NEST_START, number);
    NestRef joint = add_loop(b, inner, NEST_JOINT, b->r | 1u << (b->f->n_x - 1), b->s->lanes);
    int64_t points = b->length < 0 ? -1 : b->length * b->s->columns;
    b->n->node.at[joint].tail = nest_whole_steps(inner == at && !partial ? points : -1, b->s->lanes) ? NEST_TAIL_NONE : NEST_TAIL_MASK;
    add_kind(b, joint, NEST_BODY, number);
    add_kind(b, inner, NEST_COLUMN_MERGE, number);
    return add_loop(b, at, NEST_COLUMN, 1u << (b->f->n_x - 1), 1);
}

/* An x point, or a tile of them. */
static void point(NestBuild *b, NestRef parent)
{
    uint32_t stages = b->f->n_stages;
    if (b->in_tile) {
        parent = add_loop(b, parent, NEST_OVERLAP_ROWS, 1u << b->s->across, 1);
        b->n->node.at[parent].points = b->in_tile;
    }
    if (b->s->columns) {
        NestRef column = columns(b, parent, 0, false);
        add_kind(b, column, NEST_TOTAL, 0);
        add_kind(b, column, NEST_BODY, stages);
        return;
    }
    for (uint32_t s = 0; s < stages; s++) {
        if (!b->s->unroll) {
            stage(b, parent, s, false);
            continue;
        }
        NestRef unroll = nest_add(b, parent, (NestNode){.kind = NEST_UNROLL, .number = s, .axes = b->r, .by = 1, .points = b->s->unroll});
        add_kind(b, unroll, NEST_BODY, s);
    }
    add_kind(b, parent, NEST_BODY, stages);
}

/* What is done where the blocks of a stage have been summed up by other tasks. */
static void combine(NestBuild *b, NestRef parent, uint32_t number)
{
    add_kind(b, parent, NEST_COMBINE, number);
    if (number + 1 == b->f->n_stages)
        add_kind(b, parent, NEST_BODY, b->f->n_stages);
}

bool nest_kept(const KernelFacts *f, VRef v)
{
    const KInst *x = &f->k->inst.at[v];
    if (x->kind != KI_OP || !f->live[v] || f->info[v].r_level || !f->info[v].stage || x->unrounded)
        return false;
    for (VRef reader = v + 1; reader < f->k->inst.n; reader++) {
        VRef in[4];
        uint32_t n = kernel_operands(&f->k->inst.at[reader], in);
        for (uint32_t i = 0; i < n; i++)
            if (in[i] == v && f->live[reader] && f->info[reader].r_level)
                return true;
    }
    return false;
}

bool nest_keeps(const KernelFacts *f, uint32_t stage)
{
    bool any = false;
    for (VRef v = 0; v < f->k->inst.n; v++)
        any |= nest_kept(f, v) && f->info[v].stage == stage + 1;
    return any;
}

/* Of `most` copies of a stage at a point, as many as are not long; of one stage the schedule says how many. */
static int64_t stage_copies(const NestBuild *b, uint32_t stage, int64_t most)
{
    if (b->f->n_stages == 1 || most < 2)
        return most;
    bool *part = ARENA_ARRAY(b->f->arena, bool, b->k->inst.n + 1);
    facts_part(b->f, stage, true, part);
    Weight w = facts_weigh(b->f, b->s, part);
    int64_t ops = (w.ops + 2) * (b->s->lanes * w.widest * 8 / b->f->bits);
    while (most > 1 && most * ops > rule_limit(b->f->bits, LIMIT_stages_code))
        most /= 2;
    return most > 1 ? most : 0;
}

/* The rows of a strip, or of one of its canonical lanes, several at once. */
static void strip_rows(NestBuild *b, NestRef parent, uint32_t number, uint32_t x, int64_t by)
{
    NestRef rows = add_loop(b, parent, NEST_STRIP_ROWS, b->r, by);
    b->n->node.at[rows].points = stage_copies(b, number, b->s->steps);
    add_kind(b, add_loop(b, rows, NEST_ROW_TILES, x, b->s->lanes), NEST_BODY, number);
}

/* The rows of a block: in chains where these are short, which only a launch knows where sizes vary. */
static void strip_block(NestBuild *b, NestRef parent, uint32_t number, uint32_t x)
{
    int64_t lanes = b->f->order.lanes, n_chains = stage_copies(b, number, b->s->chains);
    bool chains = n_chains > 1, two = chains && b->length < 0;
    int64_t few = two ? rule_limit(b->f->bits, LIMIT_chains_below) : 0;
    if (chains) {
        NestRef lane = add_loop(b, parent, NEST_CANONICAL, b->r, lanes / n_chains);
        b->n->node.at[lane].few = few;
        NestRef chain = add_loop(b, add_loop(b, lane, NEST_CHAIN_TILES, x, b->s->lanes), NEST_CHAINS, b->r, lanes);
        b->n->node.at[chain].points = n_chains;
        add_kind(b, chain, NEST_BODY, number);
    }
    if (!chains || two) {
        NestRef lane = add_loop(b, parent, NEST_CANONICAL, b->r, lanes);
        b->n->node.at[lane].few = few;
        strip_rows(b, lane, number, x, lanes);
    }
}

/* A stage of all tiles of a strip. */
static void strip_stage(NestBuild *b, NestRef parent, uint32_t number, uint32_t x)
{
    NestRef strip = add_kind(b, parent, NEST_STRIP_STAGE, number);
    if (nest_ordered(b->n, b->k, number))
        strip_block(b, blocks(b, strip, number), number, x);
    else
        strip_rows(b, strip, number, x, 1);
    if (nest_keeps(b->f, number)) {
        NestRef keep = add_loop(b, strip, NEST_STRIP_KEEP, x, b->s->lanes); /* the nodes may have moved */
        b->n->node.at[keep].number = number;
    }
}

/* Several tiles through the rows together. */
static void strips(NestBuild *b, NestRef tiles)
{
    uint32_t x = b->n->node.at[tiles].axes;
    NestRef strip = add_loop(b, tiles, NEST_STRIPS, x, b->s->strip * b->s->lanes);
    for (uint32_t s = 0; s < b->f->n_stages; s++)
        strip_stage(b, strip, s, x);
    add_kind(b, add_loop(b, strip, NEST_STRIP_END, x, b->s->lanes), NEST_BODY, b->f->n_stages);
}

typedef enum What { WHAT_ALL, WHAT_COMBINED } What; /* is done at a point */

/* The tiles of a row, or of a piece of it, of so many points (-1: not known). */
static void tiles(NestBuild *b, NestRef parent, bool task, int64_t points, What what, uint32_t number)
{
    const Schedule *s = b->s;
    uint32_t axes = b->joined ? 3u << (b->f->n_x - 2) : 1u << b->tiles;
    bool tail = !nest_whole_steps(points, s->lanes), in_strips = s->strip && !b->split, none = points >= 0 && points < s->lanes;
    bool once = b->joined && s->join_below; /* there is one tail: the less code the better */
    NestRef at = nest_add(b, parent, (NestNode){.kind = NEST_TILES, .axes = axes, .by = s->lanes, .task = task});
    NestNode *node = &b->n->node.at[at];
    node->inside = s->inside >= 0 && !none;
    if (tail && s->body == BODY_ONCE && !node->inside)
        node->tail = NEST_TAIL_PASSES;
    else if (tail && s->tail == TAIL_EARLIER && node->inside)
        node->tail = NEST_TAIL_EARLIER;
    else if (tail)
        node->tail = s->tail != TAIL_SCALAR && !once ? NEST_TAIL_MASK : points >= 0 && !b->joined ? NEST_TAIL_HALVES : NEST_TAIL_SCALAR;
    if (none && node->tail != NEST_TAIL_PASSES)
        node->whole = NEST_WHOLE_NONE;
    else if (in_strips)
        node->whole = b->length >= 0 || b->f->in_order ? NEST_WHOLE_NONE : NEST_WHOLE_SHORT;
    if (in_strips && !none)
        strips(b, at);
    if (what == WHAT_COMBINED)
        combine(b, at, number);
    else
        point(b, at);
}

/* Are few rows, in pieces, a task, with all points of the last two axes? */
static bool pieces_in_task(const NestBuild *b)
{
    uint32_t n_x = b->f->n_x;
    if (!b->f->n_pieces || b->f->n_stages || n_x < 2 || b->tiles != (int)n_x - 1 || b->s->pieces != (int64_t)n_x - 2)
        return false;
    int64_t rows = nest_points(b->k, 1u << (n_x - 2)), size = nest_points(b->k, 1u << (n_x - 1)), lanes = b->s->lanes;
    int64_t most = rule_limit(b->f->bits, LIMIT_few_tiles);
    return rows >= 0 && rows <= most && size >= 0 && size <= most * lanes && rows * ((size + lanes - 1) / lanes) <= most;
}

/* A row of tiles, which may be in pieces. */
static void row(NestBuild *b, NestRef parent, bool task, What what, uint32_t number)
{
    const KernelFacts *f = b->f;
    bool along = b->s->pieces == b->tiles;
    uint32_t axes = b->joined ? 3u << (f->n_x - 2) : 1u << b->tiles;
    if (!f->n_pieces) {
        tiles(b, parent, task, nest_points(b->k, axes), what, number);
        return;
    }
    NestRef pieces = add_loop(b, parent, NEST_PIECES, 1u << b->s->pieces, 1);
    for (uint32_t p = 0; p < f->n_pieces; p++) {
        if (f->piece[p] == 0)
            continue;
        NestRef at =
            nest_add(b, pieces, (NestNode){.kind = NEST_PIECE, .number = p, .axes = 1u << b->s->pieces, .by = 1, .points = f->piece[p]});
        if (pieces_in_task(b))
            at = add_loop(b, at, NEST_PIECE_ROWS, 1u << b->s->pieces, 1);
        tiles(b, at, task, along ? f->piece[p] : nest_points(b->k, axes), what, number);
    }
}

/* Rows of few tiles, a constant number, are tasks as a whole: loops over tiles that begin and end anywhere took as long as what they do. */
static bool row_is_task(const NestBuild *b)
{
    int64_t size = nest_points(b->k, 1u << b->tiles), most = rule_limit(b->f->bits, LIMIT_few_tiles);
    return pieces_in_task(b) || (b->rows && !b->f->n_stages && !b->joined && size >= 0 && size <= most * b->s->lanes);
}

/* Tasks are tiles of several rows, side by side or one after the other. */
static void bands(NestBuild *b, NestRef phase)
{
    uint32_t across = 1u << b->s->across, last = 1u << b->tiles;
    NestRef at = nest_add(b, phase, (NestNode){.kind = NEST_ROWS, .axes = b->rows & ~across, .by = 1, .task = true});
    at = nest_add(b, at, (NestNode){.kind = NEST_BANDS, .axes = across, .by = b->s->rows + b->s->again, .task = true});
    at = nest_add(b, at, (NestNode){.kind = NEST_TILES, .axes = last, .by = b->s->lanes, .task = true});
    if (!nest_whole_steps(nest_points(b->k, last), b->s->lanes))
        b->n->node.at[at].tail = NEST_TAIL_MASK;
    if (b->s->square) {
        NestRef square = add_loop(b, at, NEST_SQUARES, across, b->s->square);
        b->n->node.at[square].points = b->s->rows;
        add_kind(b, square, NEST_BODY, b->f->n_stages);
    }
    point(b, add_loop(b, at, NEST_BAND, across, 1));
}

/* Several rows of windows in a tile; rows that fill none, one by one. */
static void overlapping(NestBuild *b, NestRef phase)
{
    uint32_t across = 1u << b->s->across, last = 1u << b->tiles;
    int64_t rows = nest_points(b->k, across), points = nest_points(b->k, last);
    NestRef at = nest_add(b, phase, (NestNode){.kind = NEST_ROWS, .axes = b->rows & ~across, .by = 1, .task = true});
    at = nest_add(b, at, (NestNode){.kind = NEST_OVERLAP, .axes = across, .by = b->s->rows, .task = true});
    b->in_tile = b->s->rows;
    tiles(b, at, true, points, WHAT_ALL, 0);
    b->in_tile = 0;
    if (nest_whole_steps(rows, b->s->rows))
        return;
    at = add_loop(b, at, NEST_OVERLAP_LEFT, across, 1);
    at = add_loop(b, at, NEST_TILES, last, b->s->lanes);
    b->n->node.at[at].tail = nest_whole_steps(points, b->s->lanes) ? NEST_TAIL_NONE : NEST_TAIL_MASK;
    b->n->node.at[at].whole = points >= 0 && points < b->s->lanes ? NEST_WHOLE_NONE : NEST_WHOLE;
    point(b, at);
}

static void walk(NestBuild *b, NestRef phase, What what, uint32_t number)
{
    if (schedule_overlaps(b->s)) {
        overlapping(b, phase);
        return;
    }
    if (b->s->rows || b->s->again) {
        bands(b, phase);
        return;
    }
    if (b->s->shares)
        phase = nest_add(b, phase, (NestNode){.kind = NEST_SHARES, .points = b->s->shares, .task = true});
    NestRef rows = nest_add(b, phase, (NestNode){.kind = NEST_ROWS, .axes = b->rows, .by = 1, .task = true});
    if (b->tiles >= 0)
        row(b, rows, !row_is_task(b), what, number);
    else if (what == WHAT_COMBINED)
        combine(b, b->s->columns ? add_loop(b, rows, NEST_COLUMN, 1u << (b->f->n_x - 1), 1) : rows, number);
    else
        point(b, rows);
}

/* Tasks are blocks of a stage. */
static void walk_blocks(NestBuild *b, NestRef phase, uint32_t number)
{
    NestRef at = nest_add(b, phase, (NestNode){.kind = NEST_ROWS, .axes = b->rows, .by = 1, .task = true});
    if (b->tiles >= 0) {
        at = nest_add(b, at, (NestNode){.kind = NEST_TILES, .axes = 1u << b->tiles, .by = b->s->lanes, .task = true});
        if (!nest_whole_steps(nest_points(b->k, 1u << b->tiles), b->s->lanes))
            b->n->node.at[at].tail = NEST_TAIL_MASK;
    }
    at = nest_add(b, at, (NestNode){.kind = NEST_BLOCKS, .axes = b->r, .by = b->f->order.block, .task = true});
    if (b->s->columns)
        add_kind(b, columns(b, at, number, true), NEST_PART, number);
    else
        stage(b, at, number, true);
}

static NestRef add_phase(NestBuild *b, uint32_t number)
{
    return nest_add(b, NEST_NONE,
                    (NestNode){.kind = NEST_PHASE, .number = number, .split = b->split, .joined = b->joined && b->s->join_below});
}

void nest_build(Nest *n, const KernelFacts *f)
{
    const Schedule *s = f->schedule;
    uint32_t all = (uint32_t)((1ull << f->k->axes.n) - 1), x = (uint32_t)((1ull << f->n_x) - 1);
    NestBuild b = {.n = n, .f = f, .k = f->k, .s = s, .x = x, .r = all & ~x, .vec_r = s->along >= (int64_t)f->n_x};
    b.tiles = b.vec_r || s->along < 0 ? -1 : (int)s->along;
    b.joined = s->joined;
    b.rows = s->joined ? x & ~(3u << (f->n_x - 2)) : b.tiles >= 0 || s->columns ? x & ~(1u << (f->n_x - 1)) : x;
    if (pieces_in_task(&b))
        b.rows &= ~(1u << (f->n_x - 2));
    b.length = nest_points(f->k, b.r);
    if (f->k->form == FORM_CONTRACT) {
        nest_product(&b);
        return;
    }
    for (uint32_t p = 0; p < 2 * f->n_stages && s->split != SPLIT_NEVER; p++) {
        b.split = true;
        NestRef phase = add_phase(&b, p);
        if (p % 2 == 0)
            walk_blocks(&b, phase, p / 2);
        else
            walk(&b, phase, WHAT_COMBINED, p / 2);
    }
    b.split = false;
    if (s->split != SPLIT_ALWAYS)
        walk(&b, add_phase(&b, 0), WHAT_ALL, 0);
    if (!s->join_below)
        return;
    b.joined = true;
    b.rows = x & ~(3u << (f->n_x - 2));
    walk(&b, add_phase(&b, 1), WHAT_ALL, 0);
}

NestRef nest_task_loop(const Nest *n, NestRef phase, NestKind kind)
{
    for (NestRef at = phase; at != NEST_NONE; at = n->node.at[at].child)
        if (n->node.at[at].task && n->node.at[at].kind == kind)
            return at;
    return NEST_NONE;
}

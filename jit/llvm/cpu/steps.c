/*
 * Loops over the r axes: points one after another, vectors of them, rounds over several accumulators, and what those leave: whole vectors of a
 * round that is none, then a tail, under one mask or by registers.
 *
 * The r axes are walked as one flat loop, since the canonical order of reductions counts elements
 * over all of them. Where lanes run along r and there are several r axes, coordinates come from the
 * flat index (index.c keeps them linear where a tile cannot cross a row); where lanes run along x
 * there is a loop for each run along the last axis, and an odometer keeps the others.
 */
#include "jit/llvm/build.h"

/* Coordinates of the r axes at e->flat, for lanes along r. */
static void r_coordinates(Emit *e)
{
    Ix flat = {.base = e->flat, .stride = l_i64(e, 1), .aligned = true};
    for (uint32_t a = e->k->axes.n; a-- > e->n_x;) {
        if (a == e->n_x) {
            e->axis[a] = flat;
            break;
        }
        LV size = l_max(e, axis_size(e, a), l_i64(e, 1));
        e->axis[a] = ix_divide(e, flat, size, IREF_NONE, true);
        flat = ix_divide(e, flat, size, IREF_NONE, false);
    }
}

/* Of point number `at`, where their sizes are known. */
void r_constants(Emit *e, int64_t at)
{
    int64_t rest = at, size = 1;
    for (uint32_t a = e->k->axes.n; a-- > e->n_x;) {
        kidx_is_const(e->k, e->k->axes.at[a].size, &size);
        e->axis[a] = ix_uniform(l_i64(e, rest % size));
        rest /= size;
    }
}

void r_point(Emit *e, LV flat)
{
    level_open(e, LV_R);
    e->flat = flat;
    r_coordinates(e);
}

void r_step(Emit *e, NestRef inside, LV flat)
{
    r_point(e, flat);
    nest_emit(e, inside);
}

/* Whatever loop over r is the first in a stage: what belongs to the x point is put in front of it. */
static void r_begins(Emit *e, LV branch)
{
    if (e->folded.outermost)
        e->before[x_level(e)] = branch;
}

/* A step is a round over the accumulators: each is named by a constant, so that all are in registers. */
static void rounds_between(Emit *e, const NestNode *node, LV from, LV to)
{
    Loop l = loop_begin(e, from, to, l_i64(e, node->by * node->points), "r");
    r_begins(e, l.guard);
    for (int64_t s = 0; s < node->points; s++) {
        e->slot = l_i64(e, s);
        r_step(e, node->child, l_add(e, l.iv, l_i64(e, s * node->by)));
    }
    e->slot = NULL;
    loop_end(e, &l);
}

void walk_rounds(Emit *e, const NestNode *node) { rounds_between(e, node, e->folded.from, e->folded.to); }

/* The `left` points from `at` on, fewer than a vector; begins: there is nothing in front of them. Blocks are whole vectors but for the last one, so
 * where there are any, they are as many in each row. */
static void r_tail(Emit *e, NestRef inside, LV at, LV left, bool begins)
{
    If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, left, l_i64(e, 0), ""), "r_tail");
    if (begins)
        r_begins(e, i.branch);
    Place place = level_enter(e, LV_TASK);
    e->mask = l_lane_mask(e, l_mod(e, e->flat_n, l_i64(e, e->lanes)));
    level_leave(e, place);
    e->whole = NULL;
    r_step(e, inside, at);
    mask_end(e);
    if_end(e, &i);
}

static bool folds(const Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage)
            return true;
    return false;
}

/*
 * The same by single registers, under a mask each, until there are no more points: a vector of several takes the work of all of them for the
 * first one's points (Zen 4, AVX-512, normalize of 4,000 rows of 400: 270 us, so 228).
 */
static void r_tail_of_registers(Emit *e, const NestNode *node, LV at, LV left)
{
    int lanes = e->lanes, one = e->bits / 32;
    if (e->bits < 512 && !folds(e, e->stage)) { /* all have the same code, and a store under a mask is long */
        Loop l = loop_begin(e, l_i64(e, 0), left, l_i64(e, one), "r_register");
        if (node->whole != NEST_WHOLE)
            r_begins(e, l.guard);
        lanes_change(e, one);
        e->mask = l_lane_mask(e, l_sub(e, left, l.iv));
        e->whole = NULL;
        r_step(e, node->child, l_add(e, at, l.iv));
        mask_end(e);
        lanes_change(e, lanes);
        loop_end(e, &l);
        return;
    }
    LLVMBasicBlockRef done = l_block(e, "");
    for (e->part = 0; e->part < lanes; e->part += one) {
        LLVMBasicBlockRef some = l_block(e, "r_register");
        LV branch = LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, left, l_i64(e, e->part), ""), some, done);
        if (e->part == 0 && node->whole != NEST_WHOLE)
            r_begins(e, branch);
        l_at(e, some);
        lanes_change(e, one);
        Place place = level_enter(e, LV_TASK);
        e->mask = l_lane_mask(e, l_sub(e, l_mod(e, e->flat_n, l_i64(e, lanes)), l_i64(e, e->part)));
        level_leave(e, place);
        e->whole = NULL;
        r_step(e, node->child, l_add(e, at, l_i64(e, e->part)));
        mask_end(e);
        lanes_change(e, lanes);
    }
    e->part = 0;
    LLVMBuildBr(e->b, done);
    l_at(e, done);
}

/*
 * What rounds leave, fewer points than a round: the first accumulators take a whole vector each, the next one takes the tail. Branches say
 * which, so that none has to be in memory.
 */
static void r_less_than_round(Emit *e, const NestNode *node, LV at, LV left)
{
    const NestNode *round = &e->nest.node.at[node->child];
    LV by = l_i64(e, node->by);
    LLVMBasicBlockRef done = l_block(e, "");
    for (int64_t s = 0;; s++) {
        int64_t n = 0;
        bool known = l_is_const(left, &n), full = known && n >= node->by, more = s + 1 < round->points && (full || !known);
        LLVMBasicBlockRef whole = more && !full ? l_block(e, "r_whole") : NULL, part = whole ? l_block(e, "r_part") : NULL;
        e->slot = l_i64(e, s);
        if (whole) {
            LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, left, by, ""), whole, part);
            l_at(e, part);
        }
        if (!full && node->tail != NEST_TAIL_NONE)
            r_tail(e, round->next, at, left, false);
        if (!full)
            LLVMBuildBr(e->b, done);
        if (!more)
            break;
        if (whole)
            l_at(e, whole);
        r_step(e, round->next, at);
        at = l_add(e, at, by);
        left = l_sub(e, left, by);
    }
    e->slot = NULL;
    l_at(e, done);
}

/* The first point, from `from` on, that is in no whole step of `by` points before `to`. */
static LV whole_until(Emit *e, LV from, LV to, LV by) { return l_add(e, from, l_mul(e, l_div(e, l_sub(e, to, from), by), by)); }

/* Blocks start at multiples of the order's, hence of the lane count: where the whole length is one too, so is every block. */
void walk_lanes(Emit *e, const NestNode *node)
{
    LV from = e->folded.from, to = e->folded.to, lanes = l_i64(e, node->by);
    NestRef inside = node->child;
    const NestNode *rounds = &e->nest.node.at[inside];
    if (rounds->kind == NEST_ROUNDS) {
        LV end = whole_until(e, from, to, l_i64(e, rounds->by * rounds->points));
        rounds_between(e, rounds, from, end);
        r_less_than_round(e, node, end, l_sub(e, to, end));
        return;
    }
    LV full = whole_until(e, from, to, lanes);
    if (node->tail == NEST_TAIL_PASSES) {
        Passes p = passes_begin(e, from, to, full, to, "r");
        r_begins(e, p.branch);
        r_step(e, inside, p.tiles.iv);
        passes_end(e, &p);
        return;
    }
    Masked masked;
    if (node->whole == NEST_WHOLE && masked_stage(e, &masked)) {
        LV chunks = whole_until(e, from, full, l_i64(e, masked.chunk));
        Loop l = loop_begin(e, from, chunks, l_i64(e, masked.chunk), "chunk");
        r_begins(e, l.guard);
        masked_chunk(e, &masked, node, l.iv);
        loop_end(e, &l);
        l = loop_begin(e, chunks, full, lanes, "r");
        r_step(e, inside, l.iv);
        loop_end(e, &l);
    } else if (node->whole == NEST_WHOLE) {
        Loop l = loop_begin(e, from, full, lanes, "r");
        r_begins(e, l.guard);
        r_step(e, inside, l.iv);
        loop_end(e, &l);
    }
    LV left = l_sub(e, to, full);
    if (node->tail == NEST_TAIL_REGISTERS)
        r_tail_of_registers(e, node, full, left);
    else if (node->tail != NEST_TAIL_NONE)
        r_tail(e, inside, full, left, node->whole != NEST_WHOLE);
}

/* Few of them: each has code of its own. */
void walk_each(Emit *e, const NestNode *node)
{
    LLVMBasicBlockRef first = l_block(e, "r");
    r_begins(e, LLVMBuildBr(e->b, first));
    l_at(e, first);
    for (int64_t at = 0; at < node->points; at++) {
        level_open(e, LV_R);
        e->flat = l_i64(e, at);
        r_constants(e, at);
        nest_inside(e, node);
    }
}

/* Of several axes: runs along the last one, each a loop that counts up in memory, and an odometer for the others. */
static void runs_of_steps(Emit *e, const NestNode *node)
{
    const uint32_t first = e->n_x, last = e->k->axes.n - 1;
    LV at[MAX_AXES], from = e->folded.from, to = e->folded.to, size = l_max(e, axis_size(e, last), l_i64(e, 1));
    LV begin = l_div(e, from, size), rest = begin;
    for (uint32_t a = last; a-- > first;) {
        LV points = l_max(e, axis_size(e, a), l_i64(e, 1));
        at[a] = l_alloca(e, e->type[SC_I64], 8, "r");
        l_store(e, l_mod(e, rest, points), at[a], 8);
        rest = l_div(e, rest, points);
    }
    Loop runs = loop_begin(e, begin, l_ceil_div(e, to, size), l_i64(e, 1), "run");
    r_begins(e, runs.guard);
    for (uint32_t a = first; a < last; a++)
        e->axis[a] = ix_uniform(l_load(e, e->type[SC_I64], at[a], 8));
    LV run = l_mul(e, runs.iv, size);
    Loop l = loop_begin(e, l_max(e, from, run), l_min(e, to, l_add(e, run, size)), l_i64(e, 1), "r");
    level_open(e, LV_R);
    e->flat = l.iv;
    e->axis[last] = ix_uniform(l_sub(e, l.iv, run));
    nest_inside(e, node);
    loop_end(e, &l);
    LV carry = l_i64(e, 1);
    for (uint32_t a = last; a-- > first;) {
        LV next = l_add(e, e->axis[a].base, carry);
        LV over = LLVMBuildICmp(e->b, LLVMIntSGE, next, axis_size(e, a), "");
        l_store(e, LLVMBuildSelect(e->b, over, l_i64(e, 0), next, ""), at[a], 8);
        carry = LLVMBuildZExt(e->b, over, e->type[SC_I64], "");
    }
    loop_end(e, &runs);
}

/* One after another (lanes along x, or none). */
void walk_steps(Emit *e, const NestNode *node)
{
    if (e->n_r > 1) { /* nothing is carried from one to the next then */
        runs_of_steps(e, node);
        return;
    }
    LV from = e->folded.from, to = e->folded.to, any = node->ends ? carries_go_on(e) : NULL;
    Loop l = loop_begin(e, from, any ? LLVMBuildSelect(e->b, any, to, from, "") : to, l_i64(e, 1), "r");
    r_begins(e, l.guard);
    level_open(e, LV_R);
    e->flat = l.iv;
    e->axis[e->n_x] = ix_uniform(l.iv);
    nest_inside(e, node);
    if (any)
        l.end = LLVMBuildSelect(e->b, carries_go_on(e), to, from, "");
    loop_end(e, &l);
}

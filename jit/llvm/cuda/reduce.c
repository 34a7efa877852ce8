/*
 * Kernels with reductions, scans or scatters: each x point belongs to a group of threads.
 *
 *     for g = block; g < x groups; g += blocks             `groups_per_block` x points at once, one for each group
 *         for each stage
 *             [row in registers]   all tiles of the row side by side, kept from stage to stage
 *             [loop]               for blocks of the order: leaves of the tree one after another   (cuda/reduce_tree.c)
 *             [scan]               step after step of the line                                        (cuda/scan.c)
 *             the threads of the group put their results together
 *         x-level stores, by the first thread of the group
 *
 * What goes in order (scatters, scans of floats in strict mode: scan_serial; loops, whose carries are in registers) has one thread a point.
 *
 * A split kernel (few x points, long r) has one phase, hence one launch, a stage. Its tasks are (x group, block of the
 * stage's elements), or, of heavy bodies where those are few, a half or a quarter of the block's lanes (Emit.cut); partial results go to
 * ARG_SCRATCH, and whoever comes last for an x group, by a counter there, puts
 * them together in their fixed order and sets the counter back to zero.
 *
 * Threads without a point of their own take the last one, so that all meet at barriers and shuffles; they store nothing.
 */
#include "jit/llvm/cuda/cuda.h"

enum { COUNTERS = GRID_COUNTER_BYTES / 4, BLOCKS_PER_SM = 32 };

static LV i64_max(Emit *e, LV a, int64_t least) { return l_max(e, a, l_i64(e, least)); }

static LV is_zero(Emit *e, LV a) { return LLVMBuildICmp(e->b, LLVMIntEQ, a, l_i64(e, 0), ""); }

static LV both(Emit *e, LV a, LV b) { return a && b ? LLVMBuildAnd(e->b, a, b, "") : a ? a : b; }

static bool has_reductions(const Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage)
            return true;
    return false;
}

/* ---- one step of the r loop ---- */

/* Coordinates of the r axes at e->flat: of a tile, which lies in one row of the last axis, or of one element. */
static void coordinates(Emit *e)
{
    LV rest = e->flat;
    for (uint32_t a = e->k->axes.n; a-- > e->n_x;) {
        LV size = i64_max(e, axis_size(e, a), 1), c = rest;
        if (a > e->n_x) {
            LV q = cuda_divide(e, rest, size, e->flat_n, axis_node(e, a));
            c = l_sub(e, rest, l_mul(e, q, size));
            rest = q;
        }
        bool lanes = a + 1 == e->k->axes.n && e->lanes > 1;
        e->axis[a] = lanes ? (Ix){.base = c, .stride = l_i64(e, 1), .aligned = true} : ix_uniform(c);
    }
}

static void step_open(Emit *e, LV flat)
{
    level_open(e, LV_R);
    e->flat = flat;
    coordinates(e);
}

static bool index_reads(const Kernel *k, IRef i, const bool *values)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD)
        return index_reads(k, x->a, values) || index_reads(k, x->b, values);
    return x->kind == IX_VALUE && values[x->a];
}

/* What a running sum leads to, by way of an index too. */
static bool *behind_scans(const Emit *e)
{
    const Kernel *k = e->k;
    bool *behind = ARENA_ARRAY(e->arena, bool, k->inst.n + 1);
    for (uint32_t i = 0; i < k->inst.n; i++) {
        const KInst *x = &k->inst.at[i];
        VRef in[4];
        uint32_t n_in = kernel_operands(x, in);
        behind[i] = inst_runs(x) || (x->idx != IREF_NONE && index_reads(k, x->idx, behind));
        for (uint32_t o = 0; o < n_in; o++)
            behind[i] |= behind[in[o]];
    }
    return behind;
}

/* What only a later stage needs (the weights of a normalisation) shall not wait in registers: twice as many threads have room for
 * theirs. What threads add up together is not there yet. */
static bool *stage_loads(Emit *e, uint32_t stage)
{
    bool *loads = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1), *behind = behind_scans(e);
    facts_part(&e->facts, stage, false, loads);
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        loads[i] &= e->k->inst.at[i].kind == KI_LOAD && !(e->scan_group && behind[i]);
    return loads;
}

void copies_load(Emit *e, uint32_t stage, Copy **copies, uint32_t n)
{
    const bool *loads = stage_loads(e, stage);
    for (uint32_t u = 0; u < n; u++) {
        copy_enter(e, copies[u]);
        for (uint32_t i = 0; i < e->k->inst.n; i++)
            if (loads[i])
                value(e, i);
        copy_leave(e, copies[u]);
    }
}

void copies_run(Emit *e, uint32_t stage, Copy **copies, uint32_t n)
{
    for (uint32_t u = 0; u < n; u++) {
        copy_enter(e, copies[u]);
        reduce_step_all(e, stage);
        emit_operands(e, true, stage);
        copy_leave(e, copies[u]);
    }
    for (uint32_t u = 0; u < n; u++) {
        copy_enter(e, copies[u]);
        emit_effects(e, true, stage);
        copy_leave(e, copies[u]);
    }
    e->partial = e->slot = NULL;
}

Copy *open_copy(Emit *e, LV flat, LV instead, LV inside, LV alive)
{
    Copy *c = copy_new(e);
    step_open(e, inside ? LLVMBuildSelect(e->b, inside, flat, instead, "") : flat);
    e->partial = inside;
    e->inside = both(e, alive, inside);
    return c;
}

enum { UNROLL = 4, MOST_SLOTS = 8, BUNDLE = 8, BUNDLE_OPS = 16, BUNDLE_BYTES = 64 };

/* Tiles of a step, loaded together. */
static uint32_t tiles_of_step(Emit *e, uint32_t stage)
{
    if (e->step_slots > 1)
        return e->step_slots;
    if (e->cold || e->in_order)
        return 1;
    if (plan_ops(e) <= CUDA_LIGHT_OPS)
        return UNROLL;
    return e->split && e->lanes <= CUDA_SPLIT_LANES ? heavy_tiles(e, stage_loads(e, stage), e->cut > 1 ? CUDA_CUT_TILES : CUDA_SPLIT_TILES)
                                                    : 1;
}

/*
 * for (i = from; i < to; i += by) of the elements of a stage; several tiles at once where bodies are light, and where each of
 * them has an accumulator of its own. `apart` (NULL: they are one after another): what lies between those, which step by `by` each.
 */
static void step_loop(Emit *e, uint32_t stage, LV from, LV to, LV by, LV apart)
{
    uint32_t n = tiles_of_step(e, stage);
    LV alive = e->inside, any = carries_go_on(e);
    Loop l = loop_begin(e, from, any ? LLVMBuildSelect(e->b, any, to, from, "") : to, apart ? by : l_mul(e, by, l_i64(e, n)), "r");
    by = apart ? apart : by;
    if (n > 1) {
        Copy *copies[MOST_SLOTS];
        int inner = e->inner;
        e->inner = LV_R;
        for (uint32_t u = 0; u < n; u++) {
            LV flat = u ? l_add(e, l.iv, l_mul(e, by, l_i64(e, u))) : l.iv;
            LV inside = u ? LLVMBuildICmp(e->b, LLVMIntSLT, flat, to, "") : NULL;
            copies[u] = open_copy(e, flat, l.iv, inside, alive);
            e->slot = e->step_slots > 1 ? l_i64(e, u) : NULL;
            copy_leave(e, copies[u]);
        }
        copies_load(e, stage, copies, n);
        copies_run(e, stage, copies, n);
        e->inner = inner;
    } else {
        step_open(e, l.iv);
        r_body(e, stage);
        e->mask = NULL;
    }
    e->inside = alive;
    if (any)
        l.end = LLVMBuildSelect(e->b, carries_go_on(e), to, from, "");
    loop_end(e, &l);
    level_close(e, LV_R, LV_ROW);
    e->cur = LV_R; /* nothing of the x level may be emitted here: this may be inside a loop */
}

/* ---- the order of ordered sums: leaves, blocks ---- */

typedef void LeafBody(Emit *e, uint32_t stage, LV first, LV to, LV stride, LV apart);

static LV pow2_above(Emit *e, LV n) /* the least power of two >= n, n >= 1 */
{
    LLVMTypeRef i64 = e->type[SC_I64];
    LV zeros = l_intrinsic(e, "llvm.ctlz", &i64, 1, (LV[]){l_sub(e, n, l_i64(e, 1)), LLVMConstInt(e->type[SC_I1], 0, 0)}, 2);
    return LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLE, n, l_i64(e, 1), ""), l_i64(e, 1),
                           LLVMBuildShl(e->b, l_i64(e, 1), LLVMBuildAnd(e->b, l_sub(e, l_i64(e, 64), zeros), l_i64(e, 63), ""), ""), "");
}

static LV log2_of(Emit *e, LV pow2)
{
    LLVMTypeRef i64 = e->type[SC_I64];
    return l_intrinsic(e, "llvm.cttz", &i64, 1, (LV[]){pow2, LLVMConstInt(e->type[SC_I1], 0, 0)}, 2);
}

/* q's lowest `bits` bits, the other way round. */
static LV reversed(Emit *e, LV q, LV bits)
{
    LLVMTypeRef i64 = e->type[SC_I64];
    LV all = l_intrinsic(e, "llvm.bitreverse", &i64, 1, (LV[]){q}, 1);
    all = LLVMBuildLShr(e->b, all, l_i64(e, 1), ""); /* a shift by 64 is not defined */
    return LLVMBuildLShr(e->b, all, LLVMBuildAnd(e->b, l_sub(e, l_i64(e, 63), bits), l_i64(e, 63), ""), "");
}

/*
 * Elements [from, to) to the accumulators of this thread, `unit` elements for all threads of the group at once, this one
 * `mine` further on. Where the order shows and there are more canonical lanes than that, leaf after leaf; or as many leaves at
 * once as there are accumulators, those that the tree joins first, so that their loads are in flight together and only what they
 * come to goes to the stack.
 */
static void leaves(Emit *e, uint32_t stage, LV from, LV to, int64_t unit, LV mine, LeafBody *body)
{
    int64_t lanes = e->order.lanes, length;
    LV first = l_add(e, from, mine), slots = l_i64(e, e->step_slots);
    bool one = !stage_ordered(e, stage) || unit * e->step_slots >= lanes || (l_is_const(l_sub(e, to, from), &length) && length <= unit);
    if (one) {
        reduce_block_begin(e, stage, from);
        body(e, stage, first, to, l_i64(e, unit), NULL);
        return;
    }
    LV tiles = i64_max(e, l_ceil_div(e, l_sub(e, to, from), l_i64(e, unit)), e->step_slots);
    LV count = l_div(e, pow2_above(e, l_min(e, tiles, l_i64(e, lanes / unit))), slots), depth = log2_of(e, count);
    LV apart = e->step_slots > 1 ? l_mul(e, count, l_i64(e, unit)) : NULL;
    Loop q = loop_begin(e, l_i64(e, 0), count, l_i64(e, 1), "leaf");
    reduce_block_begin(e, stage, from);
    LV at = l_add(e, first, l_mul(e, reversed(e, q.iv, depth), l_i64(e, unit)));
    body(e, stage, at, to, l_i64(e, lanes), apart);
    slots_join(e, stage);
    partials_push(e, stage, 0, q.iv);
    loop_end(e, &q);
    partials_pop(e, stage, 0, depth);
    slots_leave(e, stage);
}

static LV mine_of(Emit *e, const Walk *w)
{
    if (e->cut == 1)
        return l_mul(e, w->th.t, l_i64(e, e->lanes));
    LV run = l_i64(e, CUDA_CUT_LANES), runs = l_add(e, l_mul(e, l_div(e, w->th.t, run), l_i64(e, e->cut)), w->th.part);
    return l_add(e, l_mul(e, runs, run), l_mod(e, w->th.t, run));
}

/* Elements [from, to) of a stage, at most a block of them: to the total. */
static void span(Emit *e, const Walk *w, uint32_t stage, LV from, LV to)
{
    leaves(e, stage, from, to, (int64_t)e->group * e->lanes * e->cut, mine_of(e, w), step_loop);
    reduce_group(e, &w->th, stage, e->cut > 1 ? CUDA_CUT_LANES : 1);
}

/* All blocks of a row: the tree over their results, leaf after leaf. */
static void blocks(Emit *e, const Walk *w, uint32_t stage)
{
    int64_t length;
    LV zero = l_i64(e, 0), size = l_i64(e, e->order.block), lanes = l_i64(e, e->order.lanes);
    if (l_is_const(e->flat_n, &length) && length <= e->order.block) {
        span(e, w, stage, zero, e->flat_n);
        return;
    }
    LV n = i64_max(e, l_ceil_div(e, e->flat_n, size), 1);
    LV count = pow2_above(e, l_min(e, n, lanes)), depth = log2_of(e, count);
    Loop q = loop_begin(e, zero, count, l_i64(e, 1), "leaf_block");
    e->cur = LV_R;
    chain_open(e, stage, zero);
    Loop b = loop_begin(e, reversed(e, q.iv, depth), n, lanes, "block");
    LV from = l_mul(e, b.iv, size);
    span(e, w, stage, from, l_min(e, l_add(e, from, size), e->flat_n));
    chain_add(e, stage);
    loop_end(e, &b);
    partials_push(e, stage, 1, q.iv);
    loop_end(e, &q);
    partials_pop(e, stage, 1, depth);
    chain_close(e, stage);
}

/*
 * One thread, elements in their order, and yet a sum whose order shows (a scan beside a sum): accumulators for all
 * canonical lanes at once, in local memory; the results of blocks likewise.
 */
static void in_order(Emit *e, uint32_t stage)
{
    LV size = l_i64(e, e->order.block), zero = l_i64(e, 0);
    LV lanes = l_i64(e, e->order.lanes);
    LV n = i64_max(e, l_ceil_div(e, e->flat_n, size), 1);
    LV *kept = ARENA_ARRAY(e->arena, LV, e->n_red + 1);
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage && e->red[i].ordered)
            kept[i] = l_alloca(e, LLVMArrayType2(l_memory(e, (DType)e->red[i].acc_type), e->order.lanes), 8, "blocks");
    chain_open(e, stage, zero);
    Loop b = loop_begin(e, zero, n, l_i64(e, 1), "block");
    e->cur = LV_R;
    LV from = l_mul(e, b.iv, size), to = l_min(e, l_add(e, from, size), e->flat_n);
    reduce_block_begin(e, stage, from);
    step_loop(e, stage, from, to, l_i64(e, 1), NULL);
    reduce_block_end(e, stage, LLVMConstInt(e->type[SC_I1], 1, 0), l_sub(e, to, from));
    chain_add(e, stage); /* of what has no order; the rest below */
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (!kept[i])
            continue;
        LLVMTypeRef type = l_memory(e, (DType)r->acc_type);
        LV at = l_gep(e, type, kept[i], l_mod(e, b.iv, lanes)), total = l_load(e, type, r->total, 0);
        LV first = LLVMBuildICmp(e->b, LLVMIntSLT, b.iv, lanes, "");
        If begun = if_begin(e, first, "first");
        l_store(e, total, at, 0);
        if_end(e, &begun);
        If more = if_begin(e, LLVMBuildNot(e->b, first, ""), "more"); /* before that nothing is there */
        Part sum = part_merge(e, r, (Part){.v = l_load(e, type, at, 0)}, (Part){.v = total}, false);
        l_store(e, sum.v, at, 0);
        if_end(e, &more);
    }
    loop_end(e, &b);
    chain_close(e, stage);
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (!kept[i])
            continue;
        LLVMTypeRef type = l_memory(e, (DType)r->acc_type);
        LV used = l_min(e, n, lanes);
        for (int64_t s = e->order.lanes / 2; s; s /= 2) {
            Loop j = loop_begin(e, l_i64(e, 0), l_min(e, l_i64(e, s), l_sub(e, used, l_i64(e, s))), l_i64(e, 1), "tree");
            LV low = l_gep(e, type, kept[i], j.iv), high = l_gep(e, type, kept[i], l_add(e, j.iv, l_i64(e, s)));
            Part sum = part_merge(e, r, (Part){.v = l_load(e, type, low, 0)}, (Part){.v = l_load(e, type, high, 0)}, false);
            l_store(e, sum.v, low, 0);
            loop_end(e, &j);
        }
        l_store(e, l_load(e, type, kept[i], 0), r->total, 0);
    }
}

/* ---- a row in registers ---- */

static void open_copies(Emit *e, Walk *w)
{
    int64_t unit = (int64_t)e->group * e->lanes, n;
    bool known = l_is_const(e->flat_n, &n);
    w->copies = ARENA_ARRAY(e->arena, Copy *, w->tiles);
    for (uint32_t u = 0; u < w->tiles; u++) {
        LV flat = l_add(e, mine_of(e, w), l_i64(e, u * unit)), inside = NULL;
        if (!known || (u + 1) * unit > n)
            inside = LLVMBuildICmp(e->b, LLVMIntSLT, flat, e->flat_n, "");
        w->copies[u] = open_copy(e, flat, l_i64(e, 0), inside, w->alive);
        e->slot = l_i64(e, u % w->slots);
        copy_leave(e, w->copies[u]);
        level_close(e, LV_R, LV_ROW);
    }
}

static void stage_copies(Emit *e, Walk *w, uint32_t stage)
{
    reduce_block_begin(e, stage, l_i64(e, 0));
    copies_load(e, stage, w->copies, w->tiles);
    if (e->scan_group)
        scan_copies(e, w, stage, w->copies, w->tiles);
    copies_run(e, stage, w->copies, w->tiles);
    e->inside = w->alive;
    reduce_group(e, &w->th, stage, 1);
}

/* ---- points ---- */

static void accumulators(Emit *e, const Walk *w, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        r->scratch = -1;
        r->slots = !r->ordered || r->arg ? 1 : e->in_order ? e->order.lanes : w->tiles ? w->slots : e->step_slots;
    }
    reduce_open(e, stage);
    partials_open(e, stage);
}

/* Behind an index that an earlier kernel found out of bounds values are any, and a loop might have no end for them. (Others may write to
 * that word, of their own loops: hence volatile.) */
static void begin_no_loop(Emit *e)
{
    for (uint32_t a = 0; a < e->k->args.n && kernel_ending(e->k) != VREF_NONE; a++) {
        if (!e->k->args.at[a].stops)
            continue;
        LV word = l_load(e, e->type[SC_I64], argument(e, a), 8);
        LLVMSetVolatile(word, true);
        carries_end(e, LLVMBuildNot(e->b, is_zero(e, word), ""));
    }
}

static void stage_all(Emit *e, Walk *w, uint32_t stage)
{
    e->stage = stage;
    e->inside = w->alive;
    carries_open(e);
    begin_no_loop(e);
    pin(e, LV_ROW);
    if (!e->scan_group) {
        scans_open(e, stage);
        scan_open_serial(e, stage);
    }
    accumulators(e, w, stage);
    if (w->tiles) {
        if (!stage)
            open_copies(e, w);
        stage_copies(e, w, stage);
    } else if (e->scan_group && stage_scans(e, stage)) {
        reduce_block_begin(e, stage, l_i64(e, 0));
        scan_span(e, w, stage);
        reduce_group(e, &w->th, stage, 1);
    } else if (e->in_order && stage_ordered(e, stage)) {
        in_order(e, stage);
    } else if (stage_ordered(e, stage)) {
        blocks(e, w, stage);
    } else {
        span(e, w, stage, l_i64(e, 0), e->flat_n);
    }
    level_close(e, LV_R, LV_ROW);
    reduce_close(e, stage);
    e->inside = NULL;
}

void seek_point(Emit *e, Walk *w, LV g)
{
    LV x = g, n = e->x_total;
    w->alive = NULL;
    if (e->groups_per_block > 1) {
        x = l_add(e, l_mul(e, g, l_i64(e, e->groups_per_block)), w->th.local);
        w->alive = LLVMBuildICmp(e->b, LLVMIntSLT, x, n, "");
        x = LLVMBuildSelect(e->b, w->alive, x, l_sub(e, n, l_i64(e, 1)), "");
    }
    w->leader = e->group > 1 ? both(e, w->alive, is_zero(e, w->th.t)) : w->alive;
    row_seek(e, outer_axes(e), x, NULL);
    e->x_flat = x;
    pin(e, LV_ROW);
}

bool overwrites_points(const Emit *e)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *x = &e->k->inst.at[i];
        if (x->kind == KI_STORE && e->live[i] && !e->info[i].r_level && e->k->args.at[x->arg].may_alias)
            return true;
    }
    return false;
}

/* By the first thread of a group, once all of them have loaded what they need of the point; so have threads without one, which load the
 * last point's. */
void x_stores(Emit *e, const Walk *w)
{
    If i = {0};
    if (e->group * e->groups_per_block > 1 && overwrites_points(e))
        barrier(e);
    if (w->leader)
        i = if_begin(e, w->leader, "first");
    emit_stores(e, false, 0);
    if (w->leader)
        if_end(e, &i);
}

/* Over first, first + by, ... below `to`, where first < by and by >= least: no loop where that is one round at most. ptxas would
 * take all that is the same in each round out of it, and have to keep it in memory. */
static Loop rounds_begin(Emit *e, LV first, LV to, LV by, int64_t least, const char *name)
{
    int64_t n;
    return l_is_const(to, &n) && n > 0 && n <= least ? (Loop){.iv = first} : loop_begin(e, first, to, by, name);
}

static void rounds_end(Emit *e, const Loop *l)
{
    if (l->body)
        loop_end(e, l);
}

/* For what all blocks of a launch share: it has one for each up to BLOCKS_PER_SM (plan_launch). */
static Loop tasks_begin(Emit *e, const Walk *w, LV tasks, const char *name)
{
    return rounds_begin(e, w->th.block, tasks, w->th.blocks, BLOCKS_PER_SM, name);
}

static void walk_points(Emit *e, Walk *w)
{
    Loop l = tasks_begin(e, w, w->groups, "points");
    level_open(e, LV_ROW);
    seek_point(e, w, l.iv);
    for (uint32_t s = 0; s < e->n_stages; s++)
        stage_all(e, w, s);
    pin(e, LV_ROW);
    x_stores(e, w);
    level_close(e, LV_ROW, LV_ROW);
    rounds_end(e, &l);
}

/* ---- split kernels ---- */

/* What the tasks of a block have left: totals of lanes `n` apart, for which the tree goes on. */
static Part block_result(Emit *e, const Reduction *r, LV block)
{
    int n = e->cut > 1 ? e->cut * CUDA_CUT_LANES : 1;
    Part *all = ARENA_ARRAY(e->arena, Part, n);
    for (int i = 0; i < n; i++)
        all[i] = part_read(e, r, l_add(e, l_mul(e, block, l_i64(e, n)), l_i64(e, i)));
    for (int s = n / 2; s; s /= 2)
        for (int i = 0; i < s; i++)
            all[i] = part_merge(e, r, all[i], all[i + s], false);
    return all[0];
}

static void combine_step(Emit *e, uint32_t stage, LV first, LV to, LV stride, LV apart)
{
    (void)apart;
    Loop l = loop_begin(e, first, to, stride, "partial");
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        DType t = (DType)r->acc_type;
        LLVMTypeRef type = l_memory(e, t);
        Part sum = {.v = l_from_memory(e, t, l_load(e, type, r->acc, 0)), .at = r->arg ? l_load(e, e->type[SC_I64], r->acc_at, 0) : NULL};
        sum = part_merge(e, r, sum, block_result(e, r, l.iv), false);
        l_store(e, l_to_memory(e, t, sum.v), r->acc, 0);
        if (r->arg)
            l_store(e, sum.at, r->acc_at, 0);
    }
    loop_end(e, &l);
}

static void store_block(Emit *e, LV whose, uint32_t stage, LV block)
{
    If i = {0};
    if (whose)
        i = if_begin(e, whose, "first");
    reduce_store_block(e, stage, block);
    if (whose)
        if_end(e, &i);
}

/* By all threads of the block that came last, for every x group that shares the counter. */
static void finish(Emit *e, Walk *w, uint32_t stage, LV counter)
{
    int lanes = e->lanes;
    uint32_t slots = e->step_slots;
    Loop l = rounds_begin(e, counter, w->groups, l_i64(e, COUNTERS), COUNTERS, "finish");
    level_open(e, LV_ROW);
    seek_point(e, w, l.iv);
    e->lanes = 1;
    e->step_slots = 1;
    e->stage = stage;
    accumulators(e, w, stage);
    if (has_reductions(e, stage)) {
        leaves(e, stage, l_i64(e, 0), w->blocks, e->group, w->th.t, combine_step);
        reduce_group(e, &w->th, stage, 1);
        store_block(e, w->leader, stage, e->blocks);
    }
    e->lanes = lanes;
    e->step_slots = slots;
    reduce_close(e, stage);
    if (stage + 1 == e->n_stages) {
        pin(e, LV_ROW);
        x_stores(e, w);
    }
    level_close(e, LV_ROW, LV_ROW);
    rounds_end(e, &l);
}

static void walk_tasks(Emit *e, Walk *w, uint32_t stage)
{
    LV tasks = l_mul(e, w->blocks, l_i64(e, e->cut));
    Loop l = tasks_begin(e, w, l_mul(e, w->groups, tasks), "task");
    level_open(e, LV_ROW);
    LV g = l_div(e, l.iv, tasks), task = l_sub(e, l.iv, l_mul(e, g, tasks)), block = l_div(e, task, l_i64(e, e->cut));
    w->th.part = l_mod(e, task, l_i64(e, e->cut));
    LV from = l_mul(e, block, l_i64(e, e->order.block));
    LV to = l_min(e, l_add(e, from, l_i64(e, e->order.block)), e->flat_n);
    seek_point(e, w, g);
    e->stage = stage;
    e->inside = w->alive;
    accumulators(e, w, stage);
    span(e, w, stage, from, to);
    level_close(e, LV_R, LV_ROW);
    e->inside = NULL;
    if (e->cut > 1) {
        LV run = l_i64(e, CUDA_CUT_LANES);
        store_block(e, LLVMBuildICmp(e->b, LLVMIntSLT, w->th.t, run, ""), stage, l_add(e, l_mul(e, task, run), w->th.t));
    } else {
        store_block(e, w->leader, stage, block);
    }
    LV counter = l_mod(e, g, l_i64(e, COUNTERS));
    LV alike = l_ceil_div(e, l_sub(e, w->groups, counter), l_i64(e, COUNTERS));
    If last = if_begin(e, last_to_arrive(e, w->th.tid, w->th.shared, counter, l_mul(e, alike, tasks)), "last");
    finish(e, w, stage, counter);
    if_end(e, &last);
    level_close(e, LV_ROW, LV_ROW);
    rounds_end(e, &l);
}

/* ---- entries ---- */

/* Do all sizes allow whole tiles, whatever the launch, so that only pointers could stand against them? */
static bool tiles_by_size(Emit *e)
{
    const Kernel *k = e->k;
    int64_t size, length;
    return e->k->axes.n > e->n_x && kidx_is_const(k, k->axes.at[k->axes.n - 1].size, &size) && l_is_const(e->flat_n, &length) &&
           (e->row_tiles || e->tile_align);
}

/* Columns: may a thread have the accumulators of several leaves? */
static bool bundles(Emit *e)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < e->n_red; i++)
        bytes += e->red[i].ordered && !e->red[i].arg ? BUNDLE * dtype_bytes((DType)e->red[i].acc_type) : 0;
    return !e->in_order && bytes <= BUNDLE_BYTES && plan_ops(e) <= BUNDLE_OPS;
}

/* Neighbouring elements to neighbouring threads: fewer at once than there are canonical lanes, so a thread has several of those. */
static uint32_t step_slots(Emit *e)
{
    if (!e->vec_r)
        return bundles(e) ? BUNDLE : 1;
    int64_t n = e->in_order ? 1 : e->order.lanes / e->cut / e->group;
    return n <= (e->cold ? UNROLL : MOST_SLOTS) && e->group * e->cut * n == e->order.lanes ? (uint32_t)n : 1;
}

/* For whole, aligned tiles that fit the registers set aside for them; or for whatever comes, element by element: neighbouring
 * threads then read neighbouring elements, and no mask is needed either. */
static void version(Emit *e, Walk *w, uint32_t phase, bool tiled, const uint8_t *align)
{
    int lanes = e->lanes;
    e->lanes = tiled ? lanes : 1;
    e->cold = !tiled && tiles_by_size(e);
    e->tile_align = tiled && lanes > 1 ? align : NULL;
    w->tiles = tiled ? e->row_tiles : 0;
    e->step_slots = tiled ? 1 : step_slots(e);
    e->inner = w->tiles ? LV_R : LV_COUNT;
    if (e->split && e->scan_group)
        scan_tasks(e, w);
    else if (e->split)
        walk_tasks(e, w, phase);
    else
        walk_points(e, w);
    e->lanes = lanes;
}

/* i1: rows are made of whole, aligned tiles, and fit the registers set aside for them. */
static LV whole_guard(Emit *e, uint32_t tiles)
{
    LV guard = e->lanes > 1 ? align_guard(e, UINT32_MAX) : LLVMConstInt(e->type[SC_I1], 1, 0);
    if (e->lanes > 1) {
        LV size = axis_size(e, e->k->axes.n - 1);
        guard = LLVMBuildAnd(e->b, guard, is_zero(e, LLVMBuildAnd(e->b, size, l_i64(e, e->lanes - 1), "")), "");
    }
    if (tiles) {
        LV most = l_i64(e, (int64_t)tiles * e->group * e->lanes);
        LV fits = LLVMBuildAnd(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, e->flat_n, l_i64(e, 0), ""),
                               LLVMBuildICmp(e->b, LLVMIntSLE, e->flat_n, most, ""), "");
        guard = LLVMBuildAnd(e->b, guard, fits, "");
    }
    return guard;
}

static void sizes(Emit *e, Walk *w)
{
    Place place = level_enter(e, LV_TASK);
    e->flat_n = axes_product(e, e->n_x, e->k->axes.n);
    e->x_total = axes_product(e, 0, e->n_x);
    w->groups = l_ceil_div(e, e->x_total, l_i64(e, e->groups_per_block));
    if (e->split) {
        w->blocks = i64_max(e, l_ceil_div(e, e->flat_n, l_i64(e, e->order.block)), 1);
        e->blocks = l_mul(e, w->blocks, l_i64(e, e->cut > 1 ? e->cut * CUDA_CUT_LANES : 1));
        reduce_layout(e);
    }
    w->th.tid = cuda_special(e, "tid.x");
    w->th.block = cuda_special(e, "ctaid.x");
    w->th.blocks = cuda_special(e, "nctaid.x");
    LV one = l_i64(e, e->vec_r ? e->group : e->groups_per_block);
    LV high = l_div(e, w->th.tid, one), low = l_mod(e, w->th.tid, one);
    w->th.t = e->vec_r ? low : high;
    w->th.local = e->vec_r ? high : low;
    level_leave(e, place);
}

static void plan_launch(Emit *e, LaunchPhase *phase)
{
    LaunchBuilder *p = e->launch;
    uint16_t x = axes_node(e, 0, e->n_x), r = axes_node(e, e->n_x, e->k->axes.n);
    uint16_t tasks = launch_op(p, LAUNCH_CEIL_DIV, x, launch_const(p, e->groups_per_block));
    phase->points = launch_op(p, LAUNCH_MUL, x, r);
    if (e->split && e->scan_group) {
        scan_launch(e, phase);
        return;
    }
    if (e->split) {
        uint16_t n_blocks = launch_op(p, LAUNCH_MAX, launch_op(p, LAUNCH_CEIL_DIV, r, launch_const(p, e->order.block)), launch_const(p, 1));
        tasks = launch_op(p, LAUNCH_MUL, tasks, n_blocks);
        if (e->cut > 1) {
            tasks = launch_op(p, LAUNCH_MUL, tasks, launch_const(p, e->cut));
            n_blocks = launch_op(p, LAUNCH_MUL, n_blocks, launch_const(p, e->cut * CUDA_CUT_LANES));
        }
        p->scratch = reduce_layout_node(e, x, n_blocks);
    }
    phase->tasks = launch_op(p, LAUNCH_MIN, tasks, launch_op(p, LAUNCH_MUL, launch_sms(p), launch_const(p, BLOCKS_PER_SM)));
}

void emit_reductions(Emit *e)
{
    uint32_t phases = e->split ? e->n_stages : 1;
    uint64_t bytes = exchange_bytes(e), scans = scan_exchange_bytes(e);
    bytes = scans > bytes ? scans : bytes;
    LV shared = cuda_shared(e, bytes > 16 ? bytes : 16, "exchange");
    e->scan = ARENA_ARRAY(e->arena, LV, e->k->inst.n + 1);
    for (uint32_t i = 0; i < phases; i++) {
        LaunchPhase *phase;
        Walk w = {.th.shared = shared, .slots = e->row_slots ? e->row_slots : 1};
        unsigned threads = (unsigned)(e->group * e->groups_per_block);
        unsigned blocks = e->scan_group && !e->vec_r && threads > WARP ? SCAN_COLUMN_THREADS / threads : 0;
        cuda_entry(e, phases > 1 ? arena_printf(e->arena, "_%u", i) : "", threads, blocks, &phase);
        plan_launch(e, phase);
        sizes(e, &w);
        int64_t always = 0;
        LV guard = e->lanes > 1 || e->row_tiles ? whole_guard(e, e->row_tiles) : NULL;
        const uint8_t *align = e->lanes > 1 ? e->tile_align : NULL;
        bool only = guard && l_is_const(guard, &always) && always;
        LLVMBasicBlockRef other = NULL, end = NULL;
        if (guard && !only) {
            LLVMBasicBlockRef whole = l_block(e, "whole");
            other = l_block(e, "any"), end = l_block(e, "end");
            LLVMBuildCondBr(e->b, guard, whole, other);
            l_at(e, whole);
        }
        if (guard)
            version(e, &w, i, true, align);
        if (other) {
            LLVMBuildBr(e->b, end);
            l_at(e, other);
        }
        if (!only)
            version(e, &w, i, false, NULL);
        if (other) {
            LLVMBuildBr(e->b, end);
            l_at(e, end);
        }
        e->tile_align = align;
        cuda_return(e);
    }
}

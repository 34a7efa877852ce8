/*
 * FORM_LOOPS: the loop nest of a kernel, its phases and its launch plan.
 *
 *   run(args, phase, lo, hi, scratch)        one task: a tile of the last x axis, or one x point
 *       [LV_TASK]
 *       for rows of the tasks [lo, hi)                 coordinates kept by an odometer
 *           [LV_ROW]
 *           for full tiles of the row, then the masked one
 *               [LV_TILE]
 *               for each stage
 *                   for blocks of the order            only where the order of a float sum shows
 *                       for flat = ...                 [LV_R]  loads, ops, reduction steps, stores
 *                       reduction trees
 *               x-level stores
 *
 * The r axes are walked as one flat loop, since the canonical order of reductions counts elements
 * over all of them. Where lanes run along r and there are several r axes, coordinates come from the
 * flat index (index.c keeps them linear where a tile cannot cross a row); where lanes run along x
 * an odometer keeps them.
 *
 * A split kernel has two phases a stage: 2s runs the blocks of stage s as tasks of their own (x
 * tile, block), leaving partial results in the shared scratch; 2s + 1 combines them for each x, and
 * the last one also runs the x-level stores.
 *
 * All stores of a body come after all its loads, so that an output may share an input's storage. Values carried from one r point to the next
 * (value.c) lie in the function's frame for LLVM, which keeps them in registers: each point reads all of them before it sets one.
 */
#include "jit/launch_plan.h"
#include "jit/llvm/build.h"

static int x_level(const Emit *e) { return e->tile_axis != NO_AXIS ? LV_TILE : LV_ROW; }

static uint32_t row_axes(const Emit *e)
{
    if (e->schedule.joined || pieces_in_task(e))
        return e->n_x - 2;
    return e->tile_axis != NO_AXIS || e->schedule.columns ? e->n_x - 1 : e->n_x;
}

/* Blocks of the axis that several rows of a task lie along. */
static uint32_t row_axis(const Emit *e) { return (uint32_t)e->schedule.across; }

static LV row_blocks(Emit *e) { return l_ceil_div(e, axis_size(e, row_axis(e)), l_i64(e, e->schedule.rows)); }

/* Rows of few tiles, a constant number, are tasks as a whole: loops over tiles that begin and end anywhere took as long as what they do. */
static bool row_is_task(const Emit *e)
{
    enum { FEW_TILES = 16 };
    int64_t size;
    if (pieces_in_task(e))
        return true;
    return e->tile_axis != NO_AXIS && row_axes(e) > 0 && !e->n_stages && !e->schedule.rows && !e->schedule.joined &&
           kidx_is_const(e->k, e->k->axes.at[e->tile_axis].size, &size) && size <= FEW_TILES * e->lanes;
}

/* Sizes that all functions of a kernel need; at LV_TASK. */
static void sizes_open(Emit *e)
{
    e->flat_n = axes_product(e, e->n_x, e->k->axes.n);
    int64_t length;
    reduce_place(e, l_is_const(e->flat_n, &length) ? length : -1);
    strip_place(e);
    pieces_open(e);
    if (e->stream) {
        e->points[0] = axes_product(e, 0, e->n_x);
        e->points[1] = l_mul(e, e->points[0], e->flat_n);
    }
    if (!e->split)
        return;
    e->x_total = axes_product(e, 0, e->n_x);
    e->blocks = l_ceil_div(e, e->flat_n, l_i64(e, e->order.block));
    reduce_layout(e);
}

/* ---- saved rows ---- */

static bool row_kept(const Emit *e, uint32_t i)
{
    return e->k->inst.at[i].save && e->live[i] && e->info[i].r_level && !e->split && e->n_stages;
}

/* Of the widest stage. */
static int row_lanes(const Emit *e)
{
    int lanes = e->lanes;
    for (uint32_t s = 0; s < e->n_stages; s++)
        lanes = stage_lanes(e, s) > lanes ? stage_lanes(e, s) : lanes;
    return lanes;
}

/* Bytes of the row of instruction i: a whole vector past the end, because the last tile is stored
 * unmasked. */
static LV row_bytes(Emit *e, uint32_t i)
{
    int lanes = row_lanes(e);
    LV points = e->vec_r ? l_add(e, e->flat_n, l_i64(e, lanes)) : l_mul(e, e->flat_n, l_i64(e, lanes));
    return l_align64(e, l_mul(e, points, l_i64(e, (int64_t)dtype_bytes((DType)e->k->inst.at[i].dtype))));
}

static void rows_open(Emit *e)
{
    LV at = l_i64(e, e->scratch_bytes);
    e->saved = ARENA_ARRAY(e->arena, LV, e->k->inst.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!row_kept(e, i))
            continue;
        e->saved[i] = l_gep_bytes(e, e->scratch, at);
        at = l_add(e, at, row_bytes(e, i));
    }
}

/* The scratch of a thread: accumulators, and the rows behind them. */
static uint16_t rows_node(Emit *e, uint16_t r)
{
    LaunchBuilder *b = e->launch;
    uint16_t lanes = launch_const(b, row_lanes(e)), points = launch_op(b, e->vec_r ? LAUNCH_ADD : LAUNCH_MUL, r, lanes);
    uint16_t at = launch_const(b, e->scratch_bytes);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        uint16_t each = launch_const(b, (int64_t)dtype_bytes((DType)e->k->inst.at[i].dtype));
        if (row_kept(e, i))
            at = launch_op(b, LAUNCH_ADD, at, launch_round_up(b, launch_op(b, LAUNCH_MUL, points, each), 64));
    }
    return at;
}

static void row_save(Emit *e, uint32_t i)
{
    DType t = (DType)e->k->inst.at[i].dtype;
    LV at = e->vec_r ? e->flat : l_mul(e, e->flat, l_i64(e, e->lanes));
    LV v = l_to_memory(e, t, value_vector(e, i));
    l_store(e, v, l_gep(e, l_memory(e, t), e->saved[i], at), (unsigned)dtype_bytes(t));
}

void rows_save(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->saved && e->saved[i] && e->info[i].stage == stage)
            row_save(e, i);
}

/* ---- bodies ---- */

static bool is_effect(const Emit *e, uint32_t i)
{
    uint8_t kind = e->k->inst.at[i].kind;
    return kind == KI_STORE || kind == KI_SCATTER || e->checked[i];
}

static bool acts(const Emit *e, uint32_t i, bool r_level, uint32_t stage)
{
    return is_effect(e, i) && e->info[i].r_level == r_level && (!r_level || e->info[i].stage == stage);
}

void emit_operands(Emit *e, bool r_level, uint32_t stage)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (acts(e, i, r_level, stage))
            value(e, e->k->inst.at[i].a);
}

void emit_effects(Emit *e, bool r_level, uint32_t stage)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!acts(e, i, r_level, stage))
            continue;
        if (e->k->inst.at[i].kind == KI_BOUND)
            value(e, i);
        else if (e->k->inst.at[i].kind == KI_STORE)
            value_store(e, i);
        else
            value_scatter(e, i);
    }
}

void emit_stores(Emit *e, bool r_level, uint32_t stage)
{
    emit_operands(e, r_level, stage);
    emit_effects(e, r_level, stage);
}

void r_body(Emit *e, uint32_t stage)
{
    const Kernel *k = e->k;
    for (uint32_t i = 0; i < k->inst.n && !e->scan_group; i++) /* a group has its running sums where the stage needs them */
        if (inst_runs(&k->inst.at[i]) && e->live[i] && e->info[i].stage == stage)
            value(e, i);
    carries_read(e);
    rows_save(e, stage);
    reduce_step_all(e, stage);
    emit_stores(e, true, stage);
    carries_step(e);
}

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

static void r_step(Emit *e, uint32_t stage, LV flat)
{
    level_open(e, LV_R);
    e->flat = flat;
    r_coordinates(e);
    r_body(e, stage);
}

/* The accumulators of a stage, where its reductions have equally many or one; else 1. */
static uint32_t stage_slots(const Emit *e, uint32_t stage)
{
    uint32_t slots = 1;
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (r->stage == stage && r->slots > 1 && slots > 1 && r->slots != slots)
            return 1;
        slots = r->stage == stage && r->slots > slots ? r->slots : slots;
    }
    return slots;
}

/* Elements [from, to) with lanes along r, of which there are whole rounds over the accumulators: each step is one, so that they are in registers. */
static void r_loop_rounds(Emit *e, uint32_t stage, LV from, LV to, uint32_t slots, bool outermost)
{
    Loop l = loop_begin(e, from, to, l_i64(e, e->lanes * (int64_t)slots), "r");
    if (outermost)
        e->before[x_level(e)] = l.guard;
    for (uint32_t s = 0; s < slots; s++) {
        e->slot = l_i64(e, s);
        r_step(e, stage, l_add(e, l.iv, l_i64(e, s * (int64_t)e->lanes)));
    }
    e->slot = NULL;
    loop_end(e, &l);
}

/* Elements [from, to) with lanes along r. Blocks start at multiples of the order's, hence of the
 * lane count: where the whole length is one too, so is every block. */
static void r_loop_lanes(Emit *e, uint32_t stage, LV from, LV to, bool outermost)
{
    enum { ROUND = 4 }; /* copies of the code */
    uint32_t slots = stage_slots(e, stage);
    int64_t points;
    if (slots > 1 && slots <= ROUND && !plan_heavy(e) && l_is_const(e->flat_n, &points) && points % (slots * (int64_t)e->lanes) == 0) {
        r_loop_rounds(e, stage, from, to, slots, outermost);
        return;
    }
    LV lanes = l_i64(e, e->lanes), span = l_sub(e, to, from);
    bool whole_tiles = no_tail(e, span) || no_tail(e, e->flat_n);
    /* two bodies where rows are short; a kernel that is there split and whole has code enough */
    bool row_kernel = e->n_stages > 1 && !(e->split && e->schedule.split == SPLIT_ASKED);
    if (e->schedule.body == BODY_ONCE && !whole_tiles && !row_kernel) {
        Passes p = passes_begin(e, from, to, l_add(e, from, l_mul(e, l_div(e, span, lanes), lanes)), to, "r");
        if (outermost)
            e->before[x_level(e)] = p.branch;
        r_step(e, stage, p.tiles.iv);
        passes_end(e, &p);
        return;
    }
    LV full = l_add(e, from, l_mul(e, l_div(e, span, lanes), lanes));
    LV guard = NULL;
    int64_t f, t;
    if (!(l_is_const(from, &f) && l_is_const(full, &t) && f == t)) {
        Loop l = loop_begin(e, from, full, lanes, "r");
        guard = l.guard;
        if (outermost)
            e->before[x_level(e)] = guard;
        r_step(e, stage, l.iv);
        loop_end(e, &l);
    }
    if (whole_tiles)
        return;
    If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, full, to, ""), "r_tail");
    if (!guard && outermost)
        e->before[x_level(e)] = i.branch;
    e->mask = l_lane_mask(e, l_sub(e, to, full));
    e->whole = NULL;
    r_step(e, stage, full);
    mask_end(e);
    if_end(e, &i);
}

/* Elements [from, to) one after another (lanes along x, or none); an odometer for several axes. */
static void r_loop_steps(Emit *e, uint32_t stage, LV from, LV to, bool outermost)
{
    uint32_t first = e->n_x, end = e->k->axes.n;
    LV at[MAX_AXES];
    bool odometer = e->n_r > 1;
    if (odometer) {
        LV rest = from;
        for (uint32_t a = end; a-- > first;) {
            LV size = l_max(e, axis_size(e, a), l_i64(e, 1));
            at[a] = l_alloca(e, e->type[SC_I64], 8, "r");
            l_store(e, l_mod(e, rest, size), at[a], 8);
            rest = l_div(e, rest, size);
        }
    }
    LV any = carries_go_on(e);
    Loop l = loop_begin(e, from, any ? LLVMBuildSelect(e->b, any, to, from, "") : to, l_i64(e, 1), "r");
    if (outermost)
        e->before[x_level(e)] = l.guard;
    level_open(e, LV_R);
    e->flat = l.iv;
    for (uint32_t a = first; a < end; a++)
        e->axis[a] = ix_uniform(odometer ? l_load(e, e->type[SC_I64], at[a], 8) : l.iv);
    r_body(e, stage);
    if (odometer) {
        LV carry = l_i64(e, 1);
        for (uint32_t a = end; a-- > first;) {
            LV next = l_add(e, e->axis[a].base, carry);
            LV over = LLVMBuildICmp(e->b, LLVMIntSGE, next, axis_size(e, a), "");
            l_store(e, LLVMBuildSelect(e->b, over, l_i64(e, 0), next, ""), at[a], 8);
            carry = LLVMBuildZExt(e->b, over, e->type[SC_I64], "");
        }
    }
    if (any)
        l.end = LLVMBuildSelect(e->b, carries_go_on(e), to, from, "");
    loop_end(e, &l);
}

static void r_loop(Emit *e, uint32_t stage, LV from, LV to, bool outermost)
{
    if (e->vec_r)
        r_loop_lanes(e, stage, from, to, outermost);
    else
        r_loop_steps(e, stage, from, to, outermost);
}

/* One block of a stage: from accumulators to totals. */
static void stage_block(Emit *e, uint32_t stage, LV from, LV to, LV first, bool outermost)
{
    reduce_block_begin(e, stage, from);
    r_loop(e, stage, from, to, outermost);
    e->cur = LV_R; /* nothing of the x level may be emitted here: this may be inside the block loop */
    reduce_block_end(e, stage, first, l_sub(e, to, from));
}

void scans_open(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        if (!inst_runs(n) || e->info[i].stage > stage)
            continue;
        DType acc = dtype_accumulator((DType)n->dtype);
        e->scan[i] = l_alloca(e, l_type(e, acc, true), 0, "scan");
        uint64_t bits = fold_start(FOLD_SUM, acc);
        l_store(e, l_const(e, (SType)dtype_info[acc].scalar, bits, true), e->scan[i], 0);
    }
}

/* Scalars that were spread over another number of lanes are spread anew. */
void lanes_change(Emit *e, int lanes)
{
    if (lanes == e->lanes)
        return;
    e->lanes = lanes;
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        e->val[i].splat = NULL;
}

static void stage_all(Emit *e, uint32_t stage)
{
    int outer = e->cur, lanes = e->lanes;
    lanes_change(e, stage_lanes(e, stage));
    LV one = LLVMConstInt(e->type[SC_I1], 1, 0);
    int64_t length;
    e->stage = stage;
    scans_open(e, stage);
    carries_open(e);
    reduce_open(e, stage);
    if (!stage_ordered(e, stage) || (l_is_const(e->flat_n, &length) && length <= e->order.block)) {
        stage_block(e, stage, l_i64(e, 0), e->flat_n, one, true);
    } else {
        Loop l = loop_begin(e, l_i64(e, 0), e->flat_n, l_i64(e, e->order.block), "block");
        e->before[x_level(e)] = l.guard;
        level_open(e, LV_R);
        LV to = l_min(e, l_add(e, l.iv, l_i64(e, e->order.block)), e->flat_n);
        stage_block(e, stage, l.iv, to, LLVMBuildICmp(e->b, LLVMIntEQ, l.iv, l_i64(e, 0), ""), false);
        loop_end(e, &l);
    }
    level_close(e, LV_R, outer);
    reduce_close(e, stage);
    lanes_change(e, lanes);
}

/* ---- x points ---- */

static void body_unsplit(Emit *e, uint32_t unused)
{
    (void)unused;
    if (e->schedule.columns) {
        columns_all(e);
        return;
    }
    for (uint32_t s = 0; s < e->n_stages; s++)
        if (e->schedule.unroll)
            unroll_stage(e, s);
        else
            stage_all(e, s);
    emit_stores(e, false, 0);
}

static void body_combine(Emit *e, uint32_t stage)
{
    e->stage = stage;
    reduce_open(e, stage);
    reduce_combine(e, stage);
    reduce_close(e, stage);
    if (stage + 1 == e->n_stages)
        emit_stores(e, false, 0);
}

/* The number of this x point, where somebody asks (split kernels). */
void count_x(Emit *e)
{
    LV n = l_i64(e, 0);
    for (uint32_t a = 0; a < e->n_x; a++)
        n = l_add(e, l_mul(e, n, axis_size(e, a)), e->axis[a].base);
    e->x_flat = n;
}

/* Coordinates of the row axes of number `rest`, into the odometer (or, odometer NULL, straight into
 * e->axis). */
void row_seek(Emit *e, LV rest, LV *odometer)
{
    for (uint32_t a = row_axes(e); a-- > 0;) {
        LV size = l_max(e, axis_size(e, a), l_i64(e, 1)), q = a ? index_divide(e, rest, size, e->k->axes.at[a].size) : NULL,
           c = a ? l_sub(e, rest, l_mul(e, q, size)) : rest; /* lo may be 0 of 0 */
        if (odometer) {
            odometer[a] = l_alloca(e, e->type[SC_I64], 8, "x");
            l_store(e, c, odometer[a], 8);
        } else {
            e->axis[a] = ix_uniform(c);
        }
        if (a)
            rest = q;
    }
}

static void row_read(Emit *e, LV *odometer)
{
    for (uint32_t a = 0; a < row_axes(e); a++)
        e->axis[a] = ix_uniform(l_load(e, e->type[SC_I64], odometer[a], 8));
}

static void row_next(Emit *e, LV *odometer)
{
    LV carry = l_i64(e, 1);
    for (uint32_t a = row_axes(e); a-- > 0;) {
        LV next = l_add(e, e->axis[a].base, carry);
        if (a) {
            LV over = LLVMBuildICmp(e->b, LLVMIntSGE, next, axis_size(e, a), "");
            carry = LLVMBuildZExt(e->b, over, e->type[SC_I64], "");
            next = LLVMBuildSelect(e->b, over, l_i64(e, 0), next, "");
        }
        l_store(e, next, odometer[a], 8);
    }
}

/* Rows of tiles: a row at a time, from tile j of the first one on, until no task is left. */
static void walk_rows(Emit *e, LV lo, LV hi, PointBody *body, uint32_t stage)
{
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, lo, hi, ""), "rows");
    e->before[LV_TASK] = some.branch;
    e->cur = LV_ROW; /* sizes asked for here are still hoisted to LV_TASK */
    if (row_axes(e) == 0) {
        level_open(e, LV_ROW);
        tiles_all(e, lo, hi, body, stage);
        if_end(e, &some);
        return;
    }
    Place place = level_enter(e, LV_TASK);
    LV in_row = tiles_of_row(e);
    level_leave(e, place);
    LV odometer[MAX_AXES], row = l_div(e, lo, in_row), i64s[2];
    row_seek(e, row, odometer);
    for (int i = 0; i < 2; i++)
        i64s[i] = l_alloca(e, e->type[SC_I64], 8, i ? "j" : "left");
    l_store(e, l_sub(e, hi, lo), i64s[0], 8);
    l_store(e, l_sub(e, lo, l_mul(e, row, in_row)), i64s[1], 8);
    LLVMBasicBlockRef top = l_block(e, "row"), exit = l_block(e, "");
    LLVMBuildBr(e->b, top);
    l_at(e, top);
    level_open(e, LV_ROW);
    LV left = l_load(e, e->type[SC_I64], i64s[0], 8), j0 = l_load(e, e->type[SC_I64], i64s[1], 8);
    LV j1 = l_min(e, in_row, l_add(e, j0, left));
    row_read(e, odometer);
    tiles_all(e, j0, j1, body, stage);
    row_next(e, odometer);
    left = l_sub(e, left, l_sub(e, j1, j0));
    l_store(e, left, i64s[0], 8);
    l_store(e, l_i64(e, 0), i64s[1], 8);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, left, l_i64(e, 0), ""), top, exit);
    l_at(e, exit);
    if_end(e, &some);
}

/* A task is one x point, or a row of them. */
static void walk_points(Emit *e, LV lo, LV hi, PointBody *body, uint32_t stage)
{
    LV odometer[MAX_AXES];
    row_seek(e, lo, odometer);
    Loop l = loop_begin(e, lo, hi, l_i64(e, 1), "row");
    e->before[LV_TASK] = l.guard;
    level_open(e, LV_ROW);
    row_read(e, odometer);
    if (e->split && !e->schedule.columns)
        count_x(e);
    if (e->tile_axis != NO_AXIS)
        tiles_all(e, l_i64(e, 0), tiles_of_row(e), body, stage);
    else if (e->split && e->schedule.columns)
        columns_each(e, body, stage);
    else
        body(e, stage);
    row_next(e, odometer);
    loop_end(e, &l);
}

void pin(Emit *e, int level)
{
    LLVMBasicBlockRef next = l_block(e, "");
    e->before[level] = LLVMBuildBr(e->b, next);
    l_at(e, next);
}

/* A task is one tile in a block of rows (see plan_row_block): task number = (outer axes, block,
 * tile). */
static void walk_row_blocks(Emit *e, LV lo, LV hi)
{
    LV per_row = tiles_of_row(e), blocks = row_blocks(e), size = axis_size(e, (uint32_t)e->tile_axis);
    Loop t = loop_begin(e, lo, hi, l_i64(e, 1), "task");
    e->before[LV_TASK] = t.guard;
    level_open(e, LV_ROW);
    LV rest = l_div(e, t.iv, per_row), at = l_mul(e, l_sub(e, t.iv, l_mul(e, rest, per_row)), l_i64(e, e->lanes));
    LV outer = l_div(e, rest, blocks), from = l_mul(e, l_sub(e, rest, l_mul(e, outer, blocks)), l_i64(e, e->schedule.rows));
    LV to = l_min(e, l_add(e, from, l_i64(e, e->schedule.rows)), axis_size(e, row_axis(e)));
    for (uint32_t a = e->n_x - 1; a-- > 0;) {
        if (a == row_axis(e))
            continue;
        e->axis[a] = ix_uniform(l_mod(e, outer, axis_size(e, a)));
        outer = l_div(e, outer, axis_size(e, a));
    }
    If squares = {0}, others = {0};
    if (e->schedule.square) {
        LV whole = LLVMBuildICmp(e->b, LLVMIntEQ, l_sub(e, to, from), l_i64(e, e->schedule.rows), "");
        if (!no_tail(e, size))
            whole = LLVMBuildAnd(e->b, whole, LLVMBuildICmp(e->b, LLVMIntSGE, l_sub(e, size, at), l_i64(e, e->lanes), ""), "");
        squares = if_begin(e, whole, "squares");
        squares_block(e, at, from);
        if_end(e, &squares);
        others = if_begin(e, LLVMBuildNot(e->b, whole, ""), "others");
    }
    if (!no_tail(e, size))
        tile_mask(e, l_sub(e, size, at));
    Loop r = loop_begin(e, from, to, l_i64(e, 1), "row");
    level_open(e, LV_ROW);
    e->axis[row_axis(e)] = ix_uniform(r.iv);
    pin(e, LV_ROW);
    tile(e, at, true, body_unsplit, 0);
    loop_end(e, &r);
    mask_end(e);
    if (e->schedule.square)
        if_end(e, &others);
    loop_end(e, &t);
}

static void walk(Emit *e, LV lo, LV hi, PointBody *body, uint32_t stage)
{
    if (e->schedule.rows) {
        walk_row_blocks(e, lo, hi);
        return;
    }
    if (e->tile_axis != NO_AXIS && !row_is_task(e))
        walk_rows(e, lo, hi, body, stage);
    else
        walk_points(e, lo, hi, body, stage);
}

/* Phase 2s of a split kernel: task t is block t % blocks of x tile t / blocks. */
static void walk_blocks(Emit *e, LV lo, LV hi, uint32_t stage)
{
    LV per_row = e->tile_axis != NO_AXIS ? tiles_of_row(e) : NULL;
    Loop l = loop_begin(e, lo, hi, l_i64(e, 1), "task");
    e->before[LV_TASK] = l.guard;
    level_open(e, LV_ROW);
    LV x = l_div(e, l.iv, e->blocks), block = l_sub(e, l.iv, l_mul(e, x, e->blocks));
    LV from = l_mul(e, block, l_i64(e, e->order.block));
    LV to = l_min(e, l_add(e, from, l_i64(e, e->order.block)), e->flat_n);
    row_seek(e, per_row ? l_div(e, x, per_row) : x, NULL);
    if (per_row) {
        LV at = l_mul(e, l_mod(e, x, per_row), l_i64(e, e->lanes));
        LV size = axis_size(e, (uint32_t)e->tile_axis);
        if (!no_tail(e, size))
            tile_mask(e, l_sub(e, size, at));
        pin(e, LV_ROW);
        level_open(e, LV_TILE);
        e->axis[e->tile_axis] = (Ix){.base = at, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = true};
    }
    if (e->schedule.columns) {
        columns_block(e, stage, block, from, to);
    } else {
        count_x(e);
        int outer = e->cur;
        e->stage = stage;
        reduce_open(e, stage);
        stage_block(e, stage, from, to, LLVMConstInt(e->type[SC_I1], 1, 0), true);
        level_close(e, LV_R, outer);
        reduce_store_block(e, stage, block);
    }
    mask_end(e);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &l);
}

/* ---- functions ---- */

LV function_add(Emit *e, const char *name, bool exported, unsigned n_i64)
{
    LLVMTypeRef params[8];
    unsigned n = 0;
    params[n++] = e->ptr;
    for (unsigned i = 0; i < n_i64; i++)
        params[n++] = e->type[SC_I64];
    params[n++] = e->ptr; /* scratch */
    LV fn = LLVMAddFunction(e->module, name, LLVMFunctionType(LLVMVoidTypeInContext(e->ctx), params, n, 0));
    LLVMSetLinkage(fn, exported ? LLVMExternalLinkage : LLVMInternalLinkage);
    if (exported)
        LLVMSetVisibility(fn, LLVMHiddenVisibility);
    return fn;
}

/* A function of tasks [lo, hi) of a phase, begun by function_open, finished by a return. */
static void phase_body(Emit *e, uint32_t phase, LV lo, LV hi)
{
    sizes_open(e);
    rows_open(e);
    if (!e->split)
        walk(e, lo, hi, body_unsplit, 0);
    else if (phase % 2 == 0)
        walk_blocks(e, lo, hi, phase / 2);
    else
        walk(e, lo, hi, body_combine, phase / 2);
    stream_end(e);
    LLVMBuildRetVoid(e->b);
}

static LV phase_function(Emit *e, uint32_t phase, const char *name)
{
    LV fn = function_add(e, name, false, 2);
    function_open(e, fn, LLVMGetParam(fn, 3));
    phase_body(e, phase, LLVMGetParam(fn, 1), LLVMGetParam(fn, 2));
    return fn;
}

/* With SPLIT_ASKED: is this launch split? */
static LV split_now(Emit *e)
{
    LV few = LLVMBuildICmp(e->b, LLVMIntSLT, axes_product(e, 0, e->n_x), l_i64(e, HOST_FEW), "");
    LV far = LLVMBuildICmp(e->b, LLVMIntSGE, axes_product(e, e->n_x, e->k->axes.n), l_i64(e, HOST_FAR), "");
    return LLVMBuildAnd(e->b, few, far, "");
}

static void run_open(Emit *e, LV run) { function_open(e, run, LLVMGetParam(run, 4)); }

static void call_phase(Emit *e, LV phase)
{
    LV args[4] = {e->block, LLVMGetParam(e->fn, 2), LLVMGetParam(e->fn, 3), e->scratch};
    LLVMBuildCall2(e->b, LLVMGlobalGetValueType(phase), phase, args, 4, "");
}

/* What of the plan depends on whether rows are joined. */
static void rows_join(Emit *e, int64_t joined)
{
    e->schedule.joined = joined;
    plan_levels(e);
}

/* With join_below: both walks, of which a launch takes one. */
static void emit_run_joining(Emit *e)
{
    LV walks[2];
    walks[0] = phase_function(e, 0, "apart");
    rows_join(e, JOINED_ANY);
    walks[1] = phase_function(e, 0, "joined");
    rows_join(e, 0);
    run_open(e, function_add(e, "run", true, 3));
    LV row = axis_size(e, e->n_x - 1), few = LLVMBuildICmp(e->b, LLVMIntSLT, row, l_i64(e, e->schedule.join_below), "");
    few = LLVMBuildAnd(e->b, few, LLVMBuildICmp(e->b, LLVMIntNE, l_mod(e, row, l_i64(e, e->lanes)), l_i64(e, 0), ""), "");
    for (int joined = 0; joined < 2; joined++) {
        If i = if_begin(e, joined ? few : LLVMBuildNot(e->b, few, ""), "walk");
        call_phase(e, walks[joined]);
        if_end(e, &i);
    }
    LLVMBuildRetVoid(e->b);
}

static void emit_run(Emit *e)
{
    bool split = e->split, asked = e->schedule.split == SPLIT_ASKED;
    uint32_t n = 2 * e->n_stages;
    if (e->schedule.join_below) {
        emit_run_joining(e);
        return;
    }
    if (!split) { /* no dispatch */
        LV run = function_add(e, "run", true, 3);
        run_open(e, run);
        phase_body(e, 0, LLVMGetParam(run, 2), LLVMGetParam(run, 3));
        return;
    }
    LV *phases = ARENA_ARRAY(e->arena, LV, n), whole = NULL;
    for (uint32_t p = 0; p < n; p++)
        phases[p] = phase_function(e, p, arena_printf(e->arena, "phase%u", p));
    e->split = false;
    if (asked)
        whole = phase_function(e, 0, "whole");
    e->split = true;
    LV run = function_add(e, "run", true, 3);
    run_open(e, run);
    If unsplit, parts = {0};
    if (asked) {
        LV now = split_now(e);
        unsplit = if_begin(e, LLVMBuildNot(e->b, now, ""), "unsplit");
        call_phase(e, whole);
        if_end(e, &unsplit);
        parts = if_begin(e, now, "split");
    }
    for (uint32_t p = 0; p < n; p++) {
        If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, LLVMGetParam(run, 1), l_i64(e, p), ""), "phase");
        call_phase(e, phases[p]);
        if_end(e, &i);
    }
    if (asked)
        if_end(e, &parts);
    LLVMBuildRetVoid(e->b);
}

/* ---- the launch plan ---- */

static uint16_t x_tasks_node(Emit *e)
{
    LaunchBuilder *b = e->launch;
    uint16_t rows;
    if (e->schedule.rows) {
        uint16_t outer = launch_op(b, LAUNCH_MUL, axes_node(e, 0, row_axis(e)), axes_node(e, row_axis(e) + 1, e->n_x - 1));
        rows = launch_op(b, LAUNCH_MUL, outer, tasks_node(e, axis_node(e, row_axis(e)), e->schedule.rows));
    } else {
        rows = axes_node(e, 0, row_axes(e));
    }
    return e->tile_axis == NO_AXIS || row_is_task(e) ? rows : launch_op(b, LAUNCH_MUL, rows, tiles_node(e));
}

/* What a launch is: each of these a node. */
typedef enum Ask { ASK_COUNT, ASK_EVEN, ASK_ODD, ASK_LOCAL, ASK_SCRATCH, ASK_ROWS, ASKS } Ask;

/* Split or not, as e->split says. */
static void answer(Emit *e, uint16_t x, uint16_t r, uint16_t node[ASKS])
{
    LaunchBuilder *b = e->launch;
    int64_t length;
    reduce_place(e, launch_is_const(b, r, &length) ? length : -1);
    strip_place(e);
    node[ASK_COUNT] = launch_const(b, e->split ? 2 * e->n_stages : 1);
    node[ASK_EVEN] = node[ASK_ODD] = x_tasks_node(e);
    node[ASK_LOCAL] = rows_node(e, r);
    node[ASK_SCRATCH] = launch_const(b, 0);
    node[ASK_ROWS] = launch_const(b, !e->split && e->tile_axis == NO_AXIS && !e->schedule.columns);
    if (e->split) {
        uint16_t blocks = tasks_node(e, r, e->order.block);
        node[ASK_EVEN] = launch_op(b, LAUNCH_MUL, node[ASK_ODD], blocks);
        node[ASK_SCRATCH] = reduce_layout_node(e, x, blocks);
    }
}

static void plan_launch(Emit *e)
{
    LaunchBuilder *b = e->launch;
    uint16_t x = axes_node(e, 0, e->n_x), r = axes_node(e, e->n_x, e->k->axes.n), node[ASKS], whole[ASKS];
    bool split = e->split;
    answer(e, x, r, node);
    if (split && e->schedule.split == SPLIT_ASKED) { /* as split_now asks */
        uint16_t few = launch_op(b, LAUNCH_LESS, x, launch_const(b, HOST_FEW)),
                 far = launch_op(b, LAUNCH_LESS, launch_const(b, HOST_FAR - 1), r);
        e->split = false;
        answer(e, x, r, whole);
        e->split = true;
        for (int ask = 0; ask < ASKS; ask++)
            node[ask] = launch_choose(b, launch_op(b, LAUNCH_MUL, few, far), node[ask], whole[ask]);
    }
    if (e->schedule.join_below) {
        uint16_t row = axis_node(e, e->n_x - 1), tiles = launch_op(b, LAUNCH_MUL, tasks_node(e, row, e->lanes), launch_const(b, e->lanes));
        uint16_t few = launch_op(b, LAUNCH_LESS, row, launch_const(b, e->schedule.join_below));
        few = launch_op(b, LAUNCH_MUL, few, launch_op(b, LAUNCH_LESS, row, tiles)); /* as emit_run_joining asks */
        e->schedule.joined = JOINED_ANY;
        answer(e, x, r, whole);
        e->schedule.joined = 0;
        for (int ask = 0; ask < ASKS; ask++)
            node[ask] = launch_choose(b, few, whole[ask], node[ask]);
    }
    for (int odd = 0; odd < (split ? 2 : 1); odd++) {
        LaunchPhase *phase = launch_phase(b, "", 0);
        phase->tasks = node[odd ? ASK_ODD : ASK_EVEN];
        phase->points = launch_op(b, LAUNCH_MUL, x, r);
        phase->local = node[ASK_LOCAL];
    }
    b->count = node[ASK_COUNT];
    b->scratch = node[ASK_SCRATCH];
    b->rows = node[ASK_ROWS];
}

void emit_loops(Emit *e)
{
    e->scan = ARENA_ARRAY(e->arena, LV, e->k->inst.n + 1);
    emit_run(e);
    plan_launch(e);
}

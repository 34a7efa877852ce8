/*
 * FORM_LOOPS on the host: one walk over the nest (jit/nest.h), which says what loops there are, in which order and with which tails; a
 * function for each kind of node opens its loop, walks what is in it and closes it. Here are phases and tasks, stages, the
 * statements of bodies and the launch plan; steps.c has the loops over r, and tiles.c, columns.c, strips.c, squares.c and unroll.c have the others.
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
 * A split kernel has two phases a stage: 2s runs the blocks of stage s as tasks of their own (x
 * tile, block), leaving partial results in the shared scratch; 2s + 1 combines them for each x, and
 * the last one also runs the x-level stores.
 *
 * All stores of a body come after all its loads, so that an output may share an input's storage. Values carried from one r point to the next
 * (value.c) lie in the function's frame for LLVM, which keeps them in registers: each point reads all of them before it sets one.
 */
#include "jit/launch_plan.h"
#include "jit/llvm/build.h"
#include "jit/llvm/cpu/subnormals.h"

/* Sizes that all functions of a kernel need; at LV_TASK. */
static void sizes_open(Emit *e)
{
    e->flat_n = axes_product(e, e->n_x, e->k->axes.n);
    reduce_place(e);
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

static bool row_kept(const Emit *e, uint32_t i) { return e->nest.does[i].saved && !e->split; }

/* Where blocks are tasks rows lie in the shared scratch, behind partial results, those of all x points one after another. */
static bool row_shared(const Emit *e, uint32_t i) { return e->nest.does[i].saved && e->vec_r; }

/* Of the widest stage. */
static int row_lanes(const Emit *e)
{
    int lanes = e->lanes;
    for (uint32_t s = 0; s < e->n_stages; s++) {
        int of = (int)nest_stage_lanes(&e->schedule, s);
        lanes = of > lanes ? of : lanes;
    }
    return lanes;
}

/* Lanes along x: of how many points each row is kept. */
static int64_t points_kept(const Emit *e) { return e->lanes * (e->schedule.strip && !e->split ? e->schedule.strip : 1); }

LV row_place(Emit *e, VRef v)
{
    LLVMTypeRef element = l_memory(e, (DType)e->k->inst.at[v].dtype);
    LV at = e->flat;
    if (e->strip
            .tile) /* tiles of a row side by side, as many as there are: rows of a power of two of bytes would share few places of the caches */
        at = l_add(e, l_mul(e, at, e->strip.n), e->strip.tile);
    if (!e->vec_r)
        at = l_mul(e, at, l_i64(e, e->lanes));
    return l_gep(e, element, e->saved[v], at);
}

/* Bytes of the row of instruction i: a whole vector past the end, because the last tile is stored
 * unmasked. */
static LV row_bytes(Emit *e, uint32_t i)
{
    int lanes = row_lanes(e);
    LV points = e->vec_r ? l_add(e, e->flat_n, l_i64(e, lanes)) : l_mul(e, e->flat_n, l_i64(e, points_kept(e)));
    return l_align64(e, l_mul(e, points, l_i64(e, (int64_t)dtype_bytes((DType)e->k->inst.at[i].dtype))));
}

static void rows_open(Emit *e)
{
    LV at = l_i64(e, e->scratch_bytes);
    e->asks = ARENA_ARRAY(e->arena, uint32_t, e->k->inst.n + 1);
    e->saved = ARENA_ARRAY(e->arena, LV, e->k->inst.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!row_kept(e, i))
            continue;
        e->saved[i] = l_gep_bytes(e, e->scratch, at);
        at = l_add(e, at, row_bytes(e, i));
    }
}

/* Bytes of the rows, of those for which `of` holds, of one x point or tile. */
static uint16_t rows_node(Emit *e, bool (*of)(const Emit *, uint32_t))
{
    LaunchBuilder *b = e->launch;
    uint16_t lanes = launch_const(b, row_lanes(e)), r = axes_node(e, e->n_x, e->k->axes.n);
    uint16_t points = e->vec_r ? launch_op(b, LAUNCH_ADD, r, lanes) : launch_op(b, LAUNCH_MUL, r, launch_const(b, points_kept(e))),
             bytes = launch_const(b, 0);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        uint16_t each = launch_const(b, (int64_t)dtype_bytes((DType)e->k->inst.at[i].dtype));
        if (of(e, i))
            bytes = launch_op(b, LAUNCH_ADD, bytes, launch_round_up(b, launch_op(b, LAUNCH_MUL, points, each), 64));
    }
    return bytes;
}

/* Bytes of partial results. */
static uint16_t partial_node(Emit *e)
{
    uint16_t x = axes_node(e, 0, e->n_x), r = axes_node(e, e->n_x, e->k->axes.n);
    return reduce_layout_node(e, x, tasks_node(e, r, e->order.block));
}

/* Of all x points. */
static uint16_t shared_rows_node(Emit *e) { return launch_op(e->launch, LAUNCH_MUL, axes_node(e, 0, e->n_x), rows_node(e, row_shared)); }

/* 1 where they are so few bytes that to compute them again takes longer. */
static uint16_t keep_node(Emit *e)
{
    return launch_op(e->launch, LAUNCH_LESS, shared_rows_node(e), launch_const(e->launch, HOST_KEEP + 1));
}

/* Where the rows of this x point are in the shared scratch. */
static void shared_rows_open(Emit *e)
{
    LV at = node_value(e, partial_node(e));
    for (uint32_t i = 0; i < e->k->inst.n && e->keeps; i++) {
        if (!row_shared(e, i))
            continue;
        LV bytes = row_bytes(e, i);
        e->saved[i] = l_gep_bytes(e, argument(e, e->shared_arg), l_add(e, at, l_mul(e, e->x_flat, bytes)));
        at = l_add(e, at, l_mul(e, e->x_total, bytes));
    }
}

static void row_save(Emit *e, uint32_t i)
{
    DType t = (DType)e->k->inst.at[i].dtype;
    LV v = l_to_memory(e, t, value_vector(e, i));
    l_store(e, v, row_place(e, i), (unsigned)dtype_bytes(t));
}

void rows_save(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->saved && e->saved[i] && e->info[i].stage == stage)
            row_save(e, i);
}

/* ---- bodies ---- */

static bool in_body(const Emit *e, uint32_t i, StatementKind kind, uint32_t body)
{
    const Statement *s = &e->nest.does[i];
    return s->kind == kind && s->body == body;
}

static uint32_t body_number(const Emit *e, bool r_level, uint32_t stage) { return r_level ? stage : e->n_stages; }

void emit_operands(Emit *e, bool r_level, uint32_t stage)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (in_body(e, i, STATEMENT_EFFECT, body_number(e, r_level, stage)) && nest_body_has(e->k, e->own, i))
            value(e, e->k->inst.at[i].a);
}

void emit_effects(Emit *e, bool r_level, uint32_t stage)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!in_body(e, i, STATEMENT_EFFECT, body_number(e, r_level, stage)) || !nest_body_has(e->k, e->own, i))
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
    for (uint32_t i = 0; i < e->k->inst.n && !e->scan_group; i++) /* a group has its running sums where the stage needs them */
        if (in_body(e, i, STATEMENT_RUN, stage))
            value(e, i);
    carries_read(e);
    rows_save(e, stage);
    reduce_step_all(e, stage);
    emit_stores(e, true, stage);
    carries_step(e);
}

static void body(Emit *e, const NestNode *node)
{
    int outer = e->cur;
    if (node->number != e->n_stages) {
        r_body(e, node->number);
        return;
    }
    if (e->overlap) /* its row is one of several in the tile */
        e->cur = LV_R;
    emit_stores(e, false, 0);
    e->cur = outer;
}

/* ---- stages ---- */

/* Blocks of the order. */
static void blocks(Emit *e, const NestNode *node)
{
    NestKind of = (NestKind)e->nest.node.at[node->parent].kind;
    if (of == NEST_STRIP_STAGE) {
        strip_blocks(e, node);
        return;
    }
    Loop l = loop_begin(e, l_i64(e, 0), e->flat_n, l_i64(e, node->by), "block");
    if (of == NEST_STAGE) {
        e->before[x_level(e)] = l.guard;
        level_open(e, LV_R);
    }
    LV to = l_min(e, l_add(e, l.iv, l_i64(e, node->by)), e->flat_n);
    e->folded = (Folded){l.iv, to, LLVMBuildICmp(e->b, LLVMIntEQ, l.iv, l_i64(e, 0), ""), false};
    nest_inside(e, node);
    loop_end(e, &l);
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

Folded all_folded(Emit *e) { return (Folded){l_i64(e, 0), e->flat_n, LLVMConstInt(e->type[SC_I1], 1, 0), true}; }

static void stage(Emit *e, const NestNode *node)
{
    int outer = e->cur, lanes = e->lanes;
    lanes_change(e, (int)node->lanes);
    e->stage = node->number;
    scans_open(e, node->number);
    carries_open(e);
    reduce_open(e, node->number);
    if (!node->partial)
        e->folded = all_folded(e);
    for (NestRef at = node->child; at != NEST_NONE; at = e->nest.node.at[at].next) {
        if (e->nest.node.at[at].next == NEST_NONE) /* what becomes of the totals */
            level_close(e, LV_R, outer);
        nest_emit(e, at);
    }
    lanes_change(e, lanes);
}

static void start(Emit *e, const NestNode *node) { reduce_block_begin(e, node->number, e->folded.from); }

static void merge(Emit *e, const NestNode *node)
{
    e->cur = LV_R; /* nothing of the x level may be emitted here: this may be inside the block loop */
    reduce_block_end(e, node->number, e->folded.first, l_sub(e, e->folded.to, e->folded.from));
}

static void total(Emit *e, const NestNode *node) { reduce_close(e, node->number); }

static void part(Emit *e, const NestNode *node) { reduce_store_block(e, node->number, e->folded_block); }

static void combine(Emit *e, const NestNode *node)
{
    e->stage = node->number;
    reduce_open(e, node->number);
    reduce_combine(e, node->number);
    reduce_close(e, node->number);
}

/* ---- x points ---- */

/* The number of this x point, where somebody asks (split kernels). */
void count_x(Emit *e)
{
    LV n = l_i64(e, 0);
    for (uint32_t a = 0; a < e->n_x; a++)
        n = l_add(e, l_mul(e, n, axis_size(e, a)), e->axis[a].base);
    e->x_flat = n;
}

/* Steps of an axis of rows: its points, or several of them. */
static int64_t row_step(const Emit *e, uint32_t a) { return overlap_axis(e, a) ? e->schedule.rows : 1; }
static LV row_steps(Emit *e, uint32_t a) { return l_ceil_div(e, axis_size(e, a), l_i64(e, row_step(e, a))); }

/* Coordinates of the first n axes, those of rows, of number `rest`, into the odometer (or, odometer NULL, straight into e->axis). */
void row_seek(Emit *e, uint32_t n, LV rest, LV *odometer)
{
    for (uint32_t a = n; a-- > 0;) {
        LV size = l_max(e, row_steps(e, a), l_i64(e, 1)),
           q = a ? index_divide(e, rest, size, row_step(e, a) == 1 ? e->k->axes.at[a].size : IREF_NONE) : NULL,
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

static void row_read(Emit *e, uint32_t n, LV *odometer)
{
    for (uint32_t a = 0; a < n; a++)
        e->axis[a] = ix_uniform(l_mul(e, l_load(e, e->type[SC_I64], odometer[a], 8), l_i64(e, row_step(e, a))));
}

static void row_next(Emit *e, uint32_t n, LV *odometer)
{
    LV carry = l_i64(e, 1);
    for (uint32_t a = n; a-- > 0;) {
        LV next = l_add(e, l_load(e, e->type[SC_I64], odometer[a], 8), carry);
        if (a) {
            LV over = LLVMBuildICmp(e->b, LLVMIntSGE, next, row_steps(e, a), "");
            carry = LLVMBuildZExt(e->b, over, e->type[SC_I64], "");
            next = LLVMBuildSelect(e->b, over, l_i64(e, 0), next, "");
        }
        l_store(e, next, odometer[a], 8);
    }
}

/* Of ROWS: all axes up to its last one. */
static uint32_t row_axes(const NestNode *rows) { return (uint32_t)__builtin_popcount(rows->axes); }

/* Tasks are tiles of rows: a row at a time, from tile j of the first one on, until no task is left. */
static void tile_tasks(Emit *e, const NestNode *rows, LV lo, LV hi)
{
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, lo, hi, ""), "rows");
    uint32_t n = row_axes(rows) + (e->overlap ? 1 : 0);
    e->before[LV_TASK] = some.branch;
    e->cur = LV_ROW; /* sizes asked for here are still hoisted to LV_TASK */
    if (n == 0) {
        level_open(e, LV_ROW);
        e->stretch = (Stretch){.from = lo, .to = hi};
        nest_inside(e, rows);
        if_end(e, &some);
        return;
    }
    Place place = level_enter(e, LV_TASK);
    LV in_row = tiles_of_row(e, rows);
    level_leave(e, place);
    LV odometer[MAX_AXES], row = l_div(e, lo, in_row), i64s[2];
    row_seek(e, n, row, odometer);
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
    row_read(e, n, odometer);
    e->stretch = (Stretch){.from = j0, .to = j1};
    nest_inside(e, rows);
    row_next(e, n, odometer);
    left = l_sub(e, left, l_sub(e, j1, j0));
    l_store(e, left, i64s[0], 8);
    l_store(e, l_i64(e, 0), i64s[1], 8);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, left, l_i64(e, 0), ""), top, exit);
    l_at(e, exit);
    if_end(e, &some);
}

/* A task is one x point, or a row of them. */
static void row_tasks(Emit *e, const NestNode *rows, LV lo, LV hi)
{
    LV odometer[MAX_AXES];
    uint32_t n = row_axes(rows);
    if (n > 1) /* one has the task's number */
        row_seek(e, n, lo, odometer);
    Loop l = loop_begin(e, lo, hi, l_i64(e, 1), "row");
    e->before[LV_TASK] = l.guard;
    level_open(e, LV_ROW);
    if (n > 1)
        row_read(e, n, odometer);
    else if (n)
        e->axis[0] = ix_uniform(l_mul(e, l.iv, l_i64(e, row_step(e, 0))));
    NestKind inner = (NestKind)e->nest.node.at[rows->child].kind;
    if (inner == NEST_TILES || inner == NEST_PIECES)
        e->stretch = (Stretch){.from = l_i64(e, 0), .to = tiles_of_row(e, rows)};
    else if (e->split && n == e->n_x)
        count_x(e);
    nest_inside(e, rows);
    if (n > 1)
        row_next(e, n, odometer);
    loop_end(e, &l);
}

void pin(Emit *e, int level)
{
    LLVMBasicBlockRef next = l_block(e, "");
    e->before[level] = LLVMBuildBr(e->b, next);
    l_at(e, next);
}

static uint32_t axis_of(const NestNode *node) { return (uint32_t)__builtin_ctz(node->axes); }

/* A task is one tile in a band of rows (see plan_row_block): task number = (outer axes, band, tile). */
static void band_tasks(Emit *e, const NestNode *rows, const NestNode *bands, const NestNode *tiles, LV lo, LV hi)
{
    uint32_t across = axis_of(bands);
    const NestNode *first = &e->nest.node.at[tiles->child];
    bool in_squares = first->kind == NEST_SQUARES, tail = tiles->tail != NEST_TAIL_NONE;
    LV per_row = tiles_of_row(e, bands), height = l_i64(e, bands->by), blocks = l_ceil_div(e, axis_size(e, across), height);
    LV size = axis_size(e, axis_of(tiles));
    Loop t = loop_begin(e, lo, hi, l_i64(e, 1), "task");
    e->before[LV_TASK] = t.guard;
    level_open(e, LV_ROW);
    LV rest = l_div(e, t.iv, per_row), at = l_mul(e, l_sub(e, t.iv, l_mul(e, rest, per_row)), l_i64(e, tiles->by));
    LV outer = l_div(e, rest, blocks), from = l_mul(e, l_sub(e, rest, l_mul(e, outer, blocks)), height);
    LV to = l_min(e, l_add(e, from, height), axis_size(e, across));
    for (uint32_t a = e->n_x; a-- > 0;) {
        if (!(rows->axes >> a & 1))
            continue;
        e->axis[a] = ix_uniform(l_mod(e, outer, axis_size(e, a)));
        outer = l_div(e, outer, axis_size(e, a));
    }
    If wholes = {0}, others = {0};
    e->band = (Band){at, from, to};
    LV whole = in_squares ? LLVMBuildICmp(e->b, LLVMIntEQ, l_sub(e, to, from), height, "") : NULL;
    if (tail && (in_squares || e->schedule.again)) {
        LV lanes = LLVMBuildICmp(e->b, LLVMIntSGE, l_sub(e, size, at), l_i64(e, tiles->by), "");
        whole = whole ? LLVMBuildAnd(e->b, whole, lanes, "") : lanes;
    }
    if (whole) {
        wholes = if_begin(e, whole, "whole");
        nest_emit(e, tiles->child);
        if_end(e, &wholes);
        others = if_begin(e, LLVMBuildNot(e->b, whole, ""), "others");
    }
    if (tail)
        tile_mask(e, l_sub(e, size, at));
    nest_emit(e, in_squares ? first->next : tiles->child);
    mask_end(e);
    if (whole)
        if_end(e, &others);
    loop_end(e, &t);
}

static void band(Emit *e, const NestNode *node)
{
    Loop r = loop_begin(e, e->band.from, e->band.to, l_i64(e, 1), "row");
    level_open(e, LV_ROW);
    e->axis[axis_of(node)] = ix_uniform(r.iv);
    pin(e, LV_ROW);
    tile(e, node, e->band.tile, 0);
    loop_end(e, &r);
}

/* Phase 2s of a split kernel: task t is block t % blocks of x tile t / blocks. */
static void block_tasks(Emit *e, const NestNode *rows, const NestNode *tiles, const NestNode *blocks, LV lo, LV hi)
{
    LV per_row = tiles ? tiles_of_row(e, rows) : NULL;
    Loop l = loop_begin(e, lo, hi, l_i64(e, 1), "task");
    e->before[LV_TASK] = l.guard;
    level_open(e, LV_ROW);
    LV x = l_div(e, l.iv, e->blocks), block = l_sub(e, l.iv, l_mul(e, x, e->blocks));
    LV from = l_mul(e, block, l_i64(e, blocks->by));
    LV to = l_min(e, l_add(e, from, l_i64(e, blocks->by)), e->flat_n);
    row_seek(e, row_axes(rows), per_row ? l_div(e, x, per_row) : x, NULL);
    if (tiles) {
        LV at = l_mul(e, l_mod(e, x, per_row), l_i64(e, tiles->by));
        if (tiles->tail != NEST_TAIL_NONE)
            tile_mask(e, l_sub(e, axis_size(e, axis_of(tiles)), at));
        pin(e, LV_ROW);
        level_open(e, LV_TILE);
        e->axis[axis_of(tiles)] = (Ix){.base = at, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = true};
    }
    if (e->nest.node.at[blocks->child].kind == NEST_STAGE) {
        count_x(e);
        shared_rows_open(e);
    }
    e->folded = (Folded){from, to, LLVMConstInt(e->type[SC_I1], 1, 0), true};
    e->folded_block = block;
    nest_inside(e, blocks);
    mask_end(e);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &l);
}

static const NestNode *task_loop(const Emit *e, NestRef phase, NestKind kind)
{
    NestRef at = nest_task_loop(&e->nest, phase, kind);
    return at == NEST_NONE ? NULL : &e->nest.node.at[at];
}

/* The tasks [lo, hi) of a phase: those of its rows and tiles. */
static void x_tasks(Emit *e, NestRef phase, LV lo, LV hi)
{
    const NestNode *rows = task_loop(e, phase, NEST_ROWS), *tiles = task_loop(e, phase, NEST_TILES);
    const NestNode *bands = task_loop(e, phase, NEST_BANDS), *in_blocks = task_loop(e, phase, NEST_BLOCKS);
    if (in_blocks)
        block_tasks(e, rows, tiles, in_blocks, lo, hi);
    else if (bands)
        band_tasks(e, rows, bands, tiles, lo, hi);
    else if (tiles)
        tile_tasks(e, rows, lo, hi);
    else
        row_tasks(e, rows, lo, hi);
}

/* The same, of each of which shares are tasks. */
static void tasks(Emit *e, NestRef phase, LV lo, LV hi)
{
    const NestNode *shares = task_loop(e, phase, NEST_SHARES);
    if (!shares) {
        x_tasks(e, phase, lo, hi);
        return;
    }
    Loop l = shares_begin(e, shares, lo, hi);
    x_tasks(e, phase, l.iv, l_add(e, l.iv, l_i64(e, 1)));
    loop_end(e, &l);
}

/* ---- the walk ---- */

static void (*const emit_kind[NEST_KINDS])(Emit *, const NestNode *) = {
    [NEST_BAND] = band,
    [NEST_OVERLAP] = walk_overlap,
    [NEST_OVERLAP_ROWS] = walk_overlap_rows,
    [NEST_OVERLAP_LEFT] = walk_overlap_left,
    [NEST_SQUARES] = walk_squares,
    [NEST_PIECES] = walk_pieces,
    [NEST_PIECE] = walk_piece,
    [NEST_PIECE_ROWS] = walk_piece_rows,
    [NEST_TILES] = walk_tiles,
    [NEST_STRIPS] = walk_strips,
    [NEST_STRIP_STAGE] = walk_strip_stage,
    [NEST_BLOCKS] = blocks,
    [NEST_STEPS] = walk_steps,
    [NEST_EACH] = walk_each,
    [NEST_CHOSEN] = walk_chosen,
    [NEST_LANES] = walk_lanes,
    [NEST_ROUNDS] = walk_rounds,
    [NEST_UNROLL] = walk_unroll,
    [NEST_JOINT] = walk_joint,
    [NEST_COLUMN] = walk_column,
    [NEST_CANONICAL] = walk_canonical,
    [NEST_STRIP_ROWS] = walk_strip_rows,
    [NEST_ROW_TILES] = walk_row_tiles,
    [NEST_CHAIN_TILES] = walk_chain_tiles,
    [NEST_STRIP_KEEP] = walk_strip_keep,
    [NEST_STRIP_END] = walk_strip_end,
    [NEST_STAGE] = stage,
    [NEST_COLUMNS] = walk_columns,
    [NEST_START] = start,
    [NEST_MERGE] = merge,
    [NEST_COLUMN_MERGE] = walk_column_merge,
    [NEST_TOTAL] = total,
    [NEST_PART] = part,
    [NEST_COMBINE] = combine,
    [NEST_BODY] = body,
};

void nest_emit(Emit *e, NestRef at) { emit_kind[e->nest.node.at[at].kind](e, &e->nest.node.at[at]); }

void nest_inside(Emit *e, const NestNode *node)
{
    for (NestRef at = node->child; at != NEST_NONE; at = e->nest.node.at[at].next)
        nest_emit(e, at);
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
    return exported && subnormals_flushed(e) ? subnormals_body(e, fn) : fn;
}

/* What of the plan depends on whether rows are joined, with join_below. */
static void rows_join(Emit *e, bool joined)
{
    if (!e->schedule.join_below)
        return;
    e->schedule.joined = joined ? JOINED_ANY : 0;
    plan_levels(e);
}

/* A function of tasks [lo, hi) of a phase, begun by function_open, finished by a return. */
static void phase_body(Emit *e, NestRef phase, LV lo, LV hi)
{
    e->split = e->nest.node.at[phase].split;
    rows_join(e, e->nest.node.at[phase].joined);
    sizes_open(e);
    rows_open(e);
    repeat_rows(e);
    tasks(e, phase, lo, hi);
    stream_end(e);
    rows_join(e, false);
    LLVMBuildRetVoid(e->b);
}

static LV phase_function(Emit *e, NestRef phase)
{
    const NestNode *node = &e->nest.node.at[phase];
    LV fn = function_add(e, node->split ? arena_printf(e->arena, "phase%u", node->number) : node->joined ? "joined" : "whole", false, 2);
    function_open(e, fn, LLVMGetParam(fn, 3));
    phase_body(e, phase, LLVMGetParam(fn, 1), LLVMGetParam(fn, 2));
    return fn;
}

/* ---- which phases a launch takes: asked by its plan and by the code ---- */

/* With SPLIT_ASKED: 1 where this launch is split. */
static uint16_t split_node(Emit *e)
{
    LaunchBuilder *b = e->launch;
    uint16_t x = axes_node(e, 0, e->n_x), r = axes_node(e, e->n_x, e->k->axes.n);
    uint16_t few = launch_op(b, LAUNCH_LESS, x, launch_const(b, HOST_FEW));
    return launch_op(b, LAUNCH_MUL, few, launch_op(b, LAUNCH_LESS, launch_const(b, HOST_FAR - 1), r));
}

/* With join_below: 1 where the rows of this launch are joined: they are few points, and no whole tiles. */
static uint16_t join_node(Emit *e)
{
    LaunchBuilder *b = e->launch;
    uint16_t row = axis_node(e, e->n_x - 1), few = launch_op(b, LAUNCH_LESS, row, launch_const(b, e->schedule.join_below));
    return launch_op(b, LAUNCH_MUL, few, launch_op(b, LAUNCH_LESS, row, launch_round_up(b, row, e->schedule.lanes)));
}

/* Have all sizes come that the kernel expects? */
static uint16_t expected_node(Emit *e)
{
    LaunchBuilder *b = e->launch;
    uint16_t all = launch_const(b, 1);
    for (uint32_t a = 0; a < e->k->args.n; a++) {
        const KArg *size = &e->k->args.at[a];
        if (!size->expects)
            continue;
        uint16_t is = launch_arg(b, a), above = launch_op(b, LAUNCH_LESS, launch_const(b, size->expected - 1), is);
        all = launch_op(b, LAUNCH_MUL, all,
                        launch_op(b, LAUNCH_MUL, above, launch_op(b, LAUNCH_LESS, is, launch_const(b, size->expected + 1))));
    }
    return all;
}

static LV holds(Emit *e, uint16_t test) { return LLVMBuildICmp(e->b, LLVMIntNE, node_value(e, test), l_i64(e, 0), ""); }

static void run_open(Emit *e, LV run) { function_open(e, run, LLVMGetParam(run, 4)); }

static void call_phase(Emit *e, LV phase)
{
    LV args[4] = {e->block, LLVMGetParam(e->fn, 2), LLVMGetParam(e->fn, 3), e->scratch};
    LLVMBuildCall2(e->b, LLVMGlobalGetValueType(phase), phase, args, 4, "");
}

/* With join_below: two phases, of which a launch takes one. */
static void emit_run_joining(Emit *e, LV run, NestRef apart, NestRef joined)
{
    LV walks[2] = {phase_function(e, apart), phase_function(e, joined)};
    run_open(e, run);
    LV few = holds(e, join_node(e));
    for (int walk = 0; walk < 2; walk++) {
        If i = if_begin(e, walk ? few : LLVMBuildNot(e->b, few, ""), "walk");
        call_phase(e, walks[walk]);
        if_end(e, &i);
    }
    LLVMBuildRetVoid(e->b);
}

/* A phase of a split kernel, with rows kept and without; one is NULL where no launch takes it, or where it makes no difference. */
typedef struct Ways {
    LV kept, anew;
} Ways;

static bool keeps_rows(const Emit *e, uint32_t stage)
{
    bool any = false;
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        any |= row_shared(e, i) && e->info[i].stage <= stage;
    return any;
}

static Ways phase_ways(Emit *e, NestRef phase)
{
    uint32_t number = e->nest.node.at[phase].number;
    int64_t always;
    Ways w = {0};
    bool differ = number % 2 == 0 && keeps_rows(e, number / 2), known = differ && launch_is_const(e->launch, keep_node(e), &always);
    if (!known || !always)
        w.anew = phase_function(e, phase);
    e->keeps = differ && (!known || always);
    if (e->keeps)
        w.kept = phase_function(e, phase);
    e->keeps = false;
    return w;
}

static void call_ways(Emit *e, const Ways *w, LV keeps)
{
    if (!w->kept || !w->anew) {
        call_phase(e, w->kept ? w->kept : w->anew);
        return;
    }
    If kept = if_begin(e, keeps, "kept");
    call_phase(e, w->kept);
    if_end(e, &kept);
    If anew = if_begin(e, LLVMBuildNot(e->b, keeps, ""), "anew");
    call_phase(e, w->anew);
    if_end(e, &anew);
}

static void emit_run(Emit *e, LV run)
{
    NestRef phase = e->nest.phase, next = e->nest.node.at[phase].next;
    if (next == NEST_NONE) { /* no dispatch */
        run_open(e, run);
        phase_body(e, phase, LLVMGetParam(run, 2), LLVMGetParam(run, 3));
        return;
    }
    if (e->nest.node.at[next].joined) {
        emit_run_joining(e, run, phase, next);
        return;
    }
    Ways *phases = ARENA_ARRAY(e->arena, Ways, e->nest.node.n);
    LV whole = NULL;
    uint32_t n = 0;
    for (; phase != NEST_NONE; phase = e->nest.node.at[phase].next)
        if (e->nest.node.at[phase].split)
            phases[n++] = phase_ways(e, phase);
        else
            whole = phase_function(e, phase);
    run_open(e, run);
    LV keeps = holds(e, keep_node(e));
    If unsplit, parts = {0};
    if (whole) {
        LV now = holds(e, split_node(e));
        unsplit = if_begin(e, LLVMBuildNot(e->b, now, ""), "unsplit");
        call_phase(e, whole);
        if_end(e, &unsplit);
        parts = if_begin(e, now, "split");
    }
    for (uint32_t p = 0; p < n; p++) {
        If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, LLVMGetParam(run, 1), l_i64(e, p), ""), "phase");
        call_ways(e, &phases[p], keeps);
        if_end(e, &i);
    }
    if (whole)
        if_end(e, &parts);
    LLVMBuildRetVoid(e->b);
}

/* A launch takes the code for the sizes that are expected, or that for any. */
static void emit_run_expecting(Emit *e, LV run)
{
    LV ways[2] = {function_add(e, "any", false, 3), function_add(e, "expected", false, 3)};
    emit_run(e, ways[0]);
    emit_run(e->expected, ways[1]);
    run_open(e, run);
    LV now = holds(e, expected_node(e)), args[5];
    for (unsigned i = 0; i < 5; i++)
        args[i] = LLVMGetParam(run, i);
    for (int way = 0; way < 2; way++) {
        If i = if_begin(e, way ? now : LLVMBuildNot(e->b, now, ""), "way");
        LLVMBuildCall2(e->b, LLVMGlobalGetValueType(ways[way]), ways[way], args, 5, "");
        if_end(e, &i);
    }
    LLVMBuildRetVoid(e->b);
}

/* ---- the launch plan ---- */

static uint16_t points_node(Emit *e, uint32_t axes)
{
    uint16_t n = launch_const(e->launch, 1);
    for (uint32_t a = 0; a < e->k->axes.n; a++)
        if (axes >> a & 1)
            n = launch_op(e->launch, LAUNCH_MUL, n, axis_node(e, a));
    return n;
}

/* Of the loops of a phase that tasks are made of, down to those over tiles. */
static uint16_t x_tasks_node(Emit *e, NestRef phase)
{
    const NestNode *bands = task_loop(e, phase, e->overlap ? NEST_OVERLAP : NEST_BANDS), *tiles = task_loop(e, phase, NEST_TILES);
    uint16_t n = points_node(e, task_loop(e, phase, NEST_ROWS)->axes);
    if (bands)
        n = launch_op(e->launch, LAUNCH_MUL, n, tasks_node(e, points_node(e, bands->axes), bands->by));
    const NestNode *shares = task_loop(e, phase, NEST_SHARES);
    n = shares ? launch_op(e->launch, LAUNCH_MUL, n, launch_const(e->launch, shares->points)) : n;
    return tiles ? launch_op(e->launch, LAUNCH_MUL, n, tiles_node(e, tiles)) : n;
}

/* What a launch is: each of these a node. */
typedef enum Ask { ASK_COUNT, ASK_EVEN, ASK_ODD, ASK_LOCAL, ASK_SCRATCH, ASK_ROWS, ASKS } Ask;

/* Of this phase and, where it is split, of those like it. */
static void answer(Emit *e, NestRef phase, uint16_t r, uint16_t node[ASKS])
{
    LaunchBuilder *b = e->launch;
    const NestNode *rows = task_loop(e, phase, NEST_ROWS);
    e->split = e->nest.node.at[phase].split;
    reduce_place(e);
    strip_place(e);
    node[ASK_COUNT] = launch_const(b, e->split ? 2 * e->n_stages : 1);
    node[ASK_EVEN] = node[ASK_ODD] = x_tasks_node(e, phase);
    node[ASK_LOCAL] = launch_op(b, LAUNCH_ADD, launch_const(b, e->scratch_bytes), rows_node(e, row_kept));
    node[ASK_SCRATCH] = launch_const(b, 0);
    node[ASK_ROWS] = launch_const(b, !e->split && !e->schedule.shares && row_axes(rows) == e->n_x);
    if (e->split) {
        uint16_t blocks = tasks_node(e, r, task_loop(e, phase, NEST_BLOCKS)->by);
        node[ASK_EVEN] = launch_op(b, LAUNCH_MUL, node[ASK_ODD], blocks);
        node[ASK_SCRATCH] = launch_op(b, LAUNCH_ADD, partial_node(e), launch_op(b, LAUNCH_MUL, keep_node(e), shared_rows_node(e)));
    }
}

/* Of all phases; is it one that may be split? */
static bool answers(Emit *e, uint16_t node[ASKS])
{
    LaunchBuilder *b = e->launch;
    uint16_t r = axes_node(e, e->n_x, e->k->axes.n), whole[ASKS];
    NestRef last = e->nest.phase;
    bool split = e->nest.node.at[last].split;
    answer(e, last, r, node);
    while (e->nest.node.at[last].next != NEST_NONE)
        last = e->nest.node.at[last].next;
    if (split && !e->nest.node.at[last].split) {
        answer(e, last, r, whole);
        for (int ask = 0; ask < ASKS; ask++)
            node[ask] = launch_choose(b, split_node(e), node[ask], whole[ask]);
    }
    if (e->nest.node.at[last].joined) {
        answer(e, last, r, whole);
        for (int ask = 0; ask < ASKS; ask++)
            node[ask] = launch_choose(b, join_node(e), whole[ask], node[ask]);
    }
    return split;
}

static void plan_launch(Emit *e)
{
    LaunchBuilder *b = e->launch;
    uint16_t node[ASKS], expected[ASKS];
    bool split = answers(e, node);
    if (e->expected) {
        split |= answers(e->expected, expected);
        for (int ask = 0; ask < ASKS; ask++)
            node[ask] = launch_choose(b, expected_node(e), expected[ask], node[ask]);
    }
    for (int odd = 0; odd < (split ? 2 : 1); odd++) {
        LaunchPhase *phase = launch_phase(b, "", 0);
        phase->tasks = node[odd ? ASK_ODD : ASK_EVEN];
        phase->points = launch_op(b, LAUNCH_MUL, axes_node(e, 0, e->n_x), axes_node(e, e->n_x, e->k->axes.n));
        phase->local = node[ASK_LOCAL];
    }
    b->count = node[ASK_COUNT];
    b->scratch = node[ASK_SCRATCH];
    b->rows = node[ASK_ROWS];
    b->together = (uint8_t)e->schedule.shares;
}

void emit_loops(Emit *e)
{
    LV run = function_add(e, "run", true, 3);
    e->scan = ARENA_ARRAY(e->arena, LV, e->k->inst.n + 1);
    if (e->expected) {
        e->expected->scan = ARENA_ARRAY(e->arena, LV, e->expected->k->inst.n + 1);
        emit_run_expecting(e, run);
    } else {
        emit_run(e, run);
    }
    plan_launch(e);
}

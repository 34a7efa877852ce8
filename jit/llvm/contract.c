/*
 * FORM_CONTRACT: out[batch..., m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n]).
 *
 * Lanes run along one of m and n (the lane axis, normally n); the other is the row axis. The
 * operand that varies along the lane axis is the lane operand, the other the row operand. A task is
 * a block of `block_rows` rows by `block_tiles` tiles:
 *
 *       for blocks of k (block_k)
 *           convert the row operand's block to rows_at [block_rows][block_k]
 *                                                      if it is more than a plain load
 *           for tiles of the lane axis
 *               pack the lane operand to panel [block_k][lanes]        unless rows are few
 *               for groups of `rows` rows
 *                   `rows` vectors of accumulators in registers
 *                   for k: one panel vector, `rows` broadcasts, `rows` FMAs
 *       for tiles, for rows: epilogue
 *
 * Results of blocks are added up in sums [block_rows][block_tiles][lanes], in the accumulator's dtype: a block of k is the order's
 * (ir/scalar.h), one chain of FMAs from +0. Sums, panel and rows lie in the thread's scratch.
 *
 * A row group that reaches past the end computes its last row again and again; only existing rows
 * are stored. Lanes past the end read as zero and are masked in the epilogue. Without packing (few
 * rows, or an operand that varies along both axes) the lane operand is loaded in the inner loop.
 */
#include "jit/llvm/build.h"

typedef struct Contract {
    VRef reduce, lane_operand, row_operand;
    DType in, acc;
    int row_axis; /* NO_AXIS: one row */
    int64_t rows; /* of a register tile */
    int64_t block_rows, block_tiles, block_k;
    bool pack_lanes, pack_rows;
    int64_t panel, rows_at, bytes; /* offsets in scratch; sums are at 0 */
    LV n_rows, n_lanes, n_k;
    LV row_blocks, tile_blocks, tiles;
    LV row0, row1, tile0; /* of the task */
} Contract;

enum { SHARED_ROWS = 128, SHARED_TILES = 8, STREAM_ROWS = 512, FEW_ROWS = 16 };

static int64_t axis_hint(const Emit *e, int axis) { return axis == NO_AXIS ? 1 : e->k->axes.at[axis].hint; }

/* A load in the accumulator's dtype: nothing to gain from converting it beforehand. */
static bool plain_load(const Emit *e, VRef v, DType acc)
{
    const KInst *n = &e->k->inst.at[v];
    return n->kind == KI_LOAD && n->pred == VREF_NONE && (DType)n->dtype == acc;
}

static bool varies(const Emit *e, VRef v, int axis) { return axis != NO_AXIS && (e->info[v].axes >> axis & 1); }

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Which way, how wide, how much at once. Chooses by hints; no choice changes a result. */
static void contract_plan(Emit *e, Contract *c)
{
    const Kernel *k = e->k;
    *c = (Contract){0};
    while (k->inst.at[c->reduce].kind != KI_REDUCE || k->inst.at[c->reduce].op != OP_MATMUL)
        c->reduce++;
    const KInst *n = &k->inst.at[c->reduce];
    c->in = (DType)k->inst.at[n->a].dtype;
    c->acc = dtype_accumulator((DType)n->dtype);
    int last = e->n_x ? (int)e->n_x - 1 : NO_AXIS, before = e->n_x > 1 ? (int)e->n_x - 2 : NO_AXIS;
    bool swap = before != NO_AXIS && axis_hint(e, last) < 8 && axis_hint(e, before) > axis_hint(e, last);
    e->tile_axis = swap ? before : last;
    c->row_axis = swap ? last : before;
    c->lane_operand = swap ? n->a : n->b;
    c->row_operand = swap ? n->b : n->a;

    unsigned bytes = (unsigned)dtype_bytes(c->acc);
    int vector = e->bits / (bytes == 8 ? 64 : 32);
    int64_t extent = axis_hint(e, e->tile_axis), rows = axis_hint(e, c->row_axis);
    e->lanes = e->tile_axis == NO_AXIS || k->vec_axis == UINT32_MAX ? 1 : 2 * vector;
    while (e->lanes > 1 && e->lanes / 2 >= extent)
        e->lanes /= 2;

    bool regular = !varies(e, c->row_operand, e->tile_axis) && !varies(e, c->lane_operand, c->row_axis);
    int64_t most = e->bits == 512 ? 8 : 6;
    c->rows = !regular ? 1 : rows < most ? (rows > 0 ? rows : 1) : most;
    c->pack_lanes = regular && rows >= FEW_ROWS;
    c->pack_rows = c->pack_lanes && !plain_load(e, c->row_operand, c->acc);
    c->block_k = DOT_BLOCK;
    c->block_rows = !c->pack_lanes ? c->rows : round_up(c->pack_rows ? SHARED_ROWS : STREAM_ROWS, c->rows);
    c->block_tiles = c->pack_rows ? SHARED_TILES : 1;
    c->panel = round_up(c->block_rows * c->block_tiles * e->lanes * bytes, 64);
    c->rows_at = c->panel + (c->pack_lanes ? round_up(c->block_k * e->lanes * bytes, 64) : 0);
    c->bytes = c->rows_at + (c->pack_rows ? round_up((c->block_rows * c->block_k + e->lanes) * bytes, 64) : 0);
}

static LV axis_or_one(Emit *e, int axis) { return axis == NO_AXIS ? l_i64(e, 1) : axis_size(e, (uint32_t)axis); }

static void contract_sizes(Emit *e, Contract *c)
{
    c->n_rows = axis_or_one(e, c->row_axis);
    c->n_lanes = axis_or_one(e, e->tile_axis);
    c->n_k = axes_product(e, e->n_x, e->k->axes.n);
    c->tiles = l_ceil_div(e, c->n_lanes, l_i64(e, e->lanes));
    c->row_blocks = l_ceil_div(e, c->n_rows, l_i64(e, c->block_rows));
    c->tile_blocks = l_ceil_div(e, c->tiles, l_i64(e, c->block_tiles));
}

/* ---- small things ---- */

static LLVMTypeRef acc_type(Emit *e, const Contract *c, bool vec) { return l_type(e, c->acc, vec); }

static LV slot(Emit *e, const Contract *c, int64_t offset, LV element)
{
    return l_gep(e, acc_type(e, c, false), l_gep_bytes(e, e->scratch, l_i64(e, offset)), element);
}

static LV load_vector(Emit *e, const Contract *c, LV at) { return l_load(e, acc_type(e, c, true), at, (unsigned)dtype_bytes(c->acc)); }

static void store_vector(Emit *e, const Contract *c, LV v, LV at) { l_store(e, v, at, (unsigned)dtype_bytes(c->acc)); }

/* Where the sums of a row and a tile of this task lie. */
static LV sums_at(Emit *e, const Contract *c, LV row, LV tile)
{
    LV r = l_mul(e, l_sub(e, row, c->row0), l_i64(e, c->block_tiles));
    return slot(e, c, 0, l_mul(e, l_add(e, r, l_sub(e, tile, c->tile0)), l_i64(e, e->lanes)));
}

static Val operand(Emit *e, const Contract *c, VRef v) { return cast_emit(e, c->in, c->acc, value(e, v)); }

static void set_row(Emit *e, const Contract *c, LV row)
{
    if (c->row_axis != NO_AXIS)
        e->axis[c->row_axis] = ix_uniform(row);
}

static void set_k(Emit *e, LV k, LV stride)
{
    e->flat = k;
    e->axis[e->k->axes.n - 1] = (Ix){.base = k, .stride = stride};
}

/* The coordinates of tile number `tile`, and its mask. */
static void set_tile(Emit *e, const Contract *c, LV tile)
{
    if (e->tile_axis == NO_AXIS)
        return;
    LV at = l_mul(e, tile, l_i64(e, e->lanes));
    e->axis[e->tile_axis] = (Ix){.base = at, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = true};
    int64_t n;
    bool whole = e->lanes == 1 || (l_is_const(c->n_lanes, &n) && n % e->lanes == 0);
    e->mask = whole ? NULL : l_lane_mask(e, l_sub(e, c->n_lanes, at));
}

/* ---- packing ---- */

static void pack_rows(Emit *e, const Contract *c, LV k0, LV k1)
{
    LV lanes = l_i64(e, e->lanes), mask = e->mask;
    Loop m = loop_begin(e, c->row0, c->row1, l_i64(e, 1), "pack_row");
    level_open(e, LV_ROW);
    set_row(e, c, m.iv);
    LV to = slot(e, c, c->rows_at, l_mul(e, l_sub(e, m.iv, c->row0), l_i64(e, c->block_k)));
    Loop l = loop_begin(e, k0, k1, lanes, "pack_k");
    e->before[LV_ROW] = e->before[LV_TILE] = l.guard;
    level_open(e, LV_R);
    set_k(e, l.iv, e->lanes > 1 ? l_i64(e, 1) : NULL);
    e->mask = e->lanes > 1 ? l_lane_mask(e, l_sub(e, k1, l.iv)) : NULL;
    LV v = val_vector(e, operand(e, c, c->row_operand));
    store_vector(e, c, v, l_gep(e, acc_type(e, c, false), to, l_sub(e, l.iv, k0)));
    e->mask = mask;
    level_close(e, LV_R, LV_ROW);
    loop_end(e, &l);
    loop_end(e, &m);
}

static void pack_lanes(Emit *e, const Contract *c, LV k0, LV k1, LV tile)
{
    LLVMBasicBlockRef next = l_block(e, "pack");
    e->before[LV_ROW] = LLVMBuildBr(e->b, next);
    l_at(e, next);
    level_open(e, LV_ROW); /* terms of the batch axes that pack_rows made lie inside its loop */
    set_tile(e, c, tile);
    Loop l = loop_begin(e, k0, k1, l_i64(e, 1), "pack_lanes");
    e->before[LV_TILE] = l.guard;
    level_open(e, LV_R);
    set_k(e, l.iv, NULL);
    LV v = val_vector(e, operand(e, c, c->lane_operand));
    store_vector(e, c, v, slot(e, c, c->panel, l_mul(e, l_sub(e, l.iv, k0), l_i64(e, e->lanes))));
    level_close(e, LV_R, LV_ROW);
    e->mask = NULL;
    loop_end(e, &l);
}

/* ---- the register tile ---- */

static LV multiply_add(Emit *e, const Contract *c, LV a, LV b, LV sum)
{
    LLVMTypeRef type = acc_type(e, c, true);
    if (dtype_is_float(c->acc))
        return l_intrinsic(e, "llvm.fma", &type, 1, (LV[]){a, b, sum}, 3);
    return LLVMBuildAdd(e->b, LLVMBuildMul(e->b, a, b, ""), sum, "");
}

/* The row operand at (row0 + r of this group, k), broadcast. */
static LV row_value(Emit *e, const Contract *c, LV row, int64_t r, LV k0, LV k)
{
    if (c->pack_rows) {
        Place place = level_enter(e, LV_ROW);
        LV at = l_mul(e, l_add(e, l_sub(e, row, c->row0), l_i64(e, r)), l_i64(e, c->block_k));
        LV from = slot(e, c, c->rows_at, l_sub(e, at, k0));
        level_leave(e, place);
        return l_splat(e, l_load(e, acc_type(e, c, false), l_gep(e, acc_type(e, c, false), from, k), 0));
    }
    e->scope[LV_ROW] = ++e->scopes; /* another row: nothing below LV_TASK holds */
    e->scope[LV_TILE] = ++e->scopes;
    e->scope[LV_R] = ++e->scopes;
    int64_t n;
    Place place = level_enter(e, LV_ROW);
    LV at = l_add(e, row, l_i64(e, r));
    if (r && !(l_is_const(c->n_rows, &n) && n % c->rows == 0))
        at = l_min(e, at, l_sub(e, c->n_rows, l_i64(e, 1)));
    level_leave(e, place);
    set_row(e, c, at);
    return val_vector(e, operand(e, c, c->row_operand));
}

static void register_tile(Emit *e, const Contract *c, LV row, LV tile, LV k0, LV k1)
{
    LV sum[16];
    LLVMTypeRef type = acc_type(e, c, true);
    int64_t first;
    for (int64_t r = 0; r < c->rows; r++) {
        sum[r] = l_alloca(e, type, 0, "sum");
        l_store(e, LLVMConstNull(type), sum[r], 0);
    }
    level_open(e, LV_ROW);
    set_row(e, c, row);
    if (!c->pack_lanes)
        set_tile(e, c, tile);
    Loop l = loop_begin(e, k0, k1, l_i64(e, 1), "k");
    e->before[LV_ROW] = e->before[LV_TILE] = l.guard;
    level_open(e, LV_R);
    set_k(e, l.iv, NULL);
    LV b = c->pack_lanes ? load_vector(e, c, slot(e, c, c->panel, l_mul(e, l_sub(e, l.iv, k0), l_i64(e, e->lanes))))
                         : val_vector(e, operand(e, c, c->lane_operand));
    for (int64_t r = 0; r < c->rows; r++) {
        LV a = row_value(e, c, row, r, k0, l.iv);
        l_store(e, multiply_add(e, c, a, b, l_load(e, type, sum[r], 0)), sum[r], 0);
    }
    level_close(e, LV_R, LV_ROW);
    loop_end(e, &l);
    for (int64_t r = 0; r < c->rows; r++) {
        LV at = sums_at(e, c, l_add(e, row, l_i64(e, r)), tile), block = l_load(e, type, sum[r], 0);
        if (!l_is_const(k0, &first)) {
            LV old = load_vector(e, c, at),
               both = dtype_is_float(c->acc) ? LLVMBuildFAdd(e->b, old, block, "") : LLVMBuildAdd(e->b, old, block, "");
            block = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, k0, l_i64(e, 0), ""), block, both, "");
        }
        store_vector(e, c, block, at);
    }
    e->mask = NULL;
}

/* ---- tasks ---- */

static void block_of_k(Emit *e, const Contract *c, LV k0, LV k1, LV tile1)
{
    if (c->pack_rows)
        pack_rows(e, c, k0, k1);
    Loop j = loop_begin(e, c->tile0, tile1, l_i64(e, 1), "tile");
    if (c->pack_lanes)
        pack_lanes(e, c, k0, k1, j.iv);
    Loop m = loop_begin(e, c->row0, c->row1, l_i64(e, c->rows), "rows");
    register_tile(e, c, m.iv, j.iv, k0, k1);
    loop_end(e, &m);
    loop_end(e, &j);
}

static void epilogue(Emit *e, const Contract *c, LV tile1)
{
    Loop j = loop_begin(e, c->tile0, tile1, l_i64(e, 1), "tile");
    Loop m = loop_begin(e, c->row0, c->row1, l_i64(e, 1), "epilogue");
    level_open(e, LV_ROW);
    set_row(e, c, m.iv);
    set_tile(e, c, j.iv);
    LLVMBasicBlockRef next = l_block(e, "");
    e->before[LV_ROW] = LLVMBuildBr(e->b, next);
    l_at(e, next);
    level_open(e, LV_TILE);
    Val v = {.v = load_vector(e, c, sums_at(e, c, m.iv, j.iv)), .vec = e->lanes > 1};
    value_set(e, c->reduce, e->level[c->reduce], cast_emit(e, c->acc, (DType)e->k->inst.at[c->reduce].dtype, v));
    emit_stores(e, false, 0);
    e->mask = NULL;
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &m);
    loop_end(e, &j);
}

/* Batch coordinates: the axes that are neither rows nor lanes, row-major. */
static void seek_batch(Emit *e, const Contract *c, LV rest)
{
    for (int a = (int)e->n_x - 1; a >= 0; a--) {
        if (a == c->row_axis || a == e->tile_axis)
            continue;
        LV size = axis_size(e, (uint32_t)a);
        e->axis[a] = ix_uniform(l_mod(e, rest, size));
        rest = l_div(e, rest, size);
    }
}

static void emit_contract_run(Emit *e, Contract *c)
{
    LV run = function_add(e, "run", true, LLVMVoidTypeInContext(e->ctx), 3, true);
    function_open(e, run, LLVMGetParam(run, 4));
    contract_sizes(e, c);
    Loop t = loop_begin(e, LLVMGetParam(run, 2), LLVMGetParam(run, 3), l_i64(e, 1), "task");
    e->before[LV_TASK] = t.guard;
    level_open(e, LV_ROW);
    LV rest = l_div(e, t.iv, c->tile_blocks), batch = l_div(e, rest, c->row_blocks);
    c->tile0 = l_mul(e, l_sub(e, t.iv, l_mul(e, rest, c->tile_blocks)), l_i64(e, c->block_tiles));
    c->row0 = l_mul(e, l_sub(e, rest, l_mul(e, batch, c->row_blocks)), l_i64(e, c->block_rows));
    c->row1 = l_min(e, l_add(e, c->row0, l_i64(e, c->block_rows)), c->n_rows);
    LV tile1 = l_min(e, l_add(e, c->tile0, l_i64(e, c->block_tiles)), c->tiles);
    seek_batch(e, c, batch);
    int64_t k;
    if (l_is_const(c->n_k, &k) && k <= c->block_k) {
        block_of_k(e, c, l_i64(e, 0), c->n_k, tile1);
    } else { /* at least once: with no k at all the sums are zero */
        Loop l = loop_begin(e, l_i64(e, 0), l_max(e, c->n_k, l_i64(e, 1)), l_i64(e, c->block_k), "block_k");
        block_of_k(e, c, l.iv, l_min(e, l_add(e, l.iv, l_i64(e, c->block_k)), c->n_k), tile1);
        loop_end(e, &l);
    }
    epilogue(e, c, tile1);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &t);
    LLVMBuildRetVoid(e->b);
}

static void emit_contract_query(Emit *e, Contract *c)
{
    LV fn = function_add(e, "query", true, e->type[SC_I64], 2, false);
    function_open(e, fn, NULL);
    contract_sizes(e, c);
    LV batch = l_i64(e, 1), points = c->n_k, answers[ASK_POINTS + 1];
    for (uint32_t a = 0; a < e->n_x; a++) {
        points = l_mul(e, points, axis_size(e, a));
        if ((int)a != c->row_axis && (int)a != e->tile_axis)
            batch = l_mul(e, batch, axis_size(e, a));
    }
    answers[ASK_PHASES] = l_i64(e, 1);
    answers[ASK_TASKS] = l_mul(e, batch, l_mul(e, c->row_blocks, c->tile_blocks));
    answers[ASK_SCRATCH] = l_i64(e, c->bytes);
    answers[ASK_SHARED] = l_i64(e, 0);
    answers[ASK_POINTS] = points;
    query_emit(e, answers);
}

void emit_contract(Emit *e)
{
    Contract c;
    contract_plan(e, &c);
    plan_levels(e); /* for the lane axis just chosen */
    emit_contract_run(e, &c);
    emit_contract_query(e, &c);
}

/* The schedule of a product, its tasks, its epilogue, and the packed way. */
#include "jit/llvm/cpu/contract.h"
#include "jit/launch_plan.h"

/* ---- the schedule ---- */

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The size of an axis, or what is planned for. */
static int64_t about(const Emit *e, int axis)
{
    int64_t n = axis == NO_AXIS ? 1 : kernel_extent(e->k, (uint32_t)axis);
    return n > 0 ? n : 1;
}

static bool is_const(const Emit *e, int axis)
{
    int64_t n;
    return axis != NO_AXIS && kidx_is_const(e->k, e->k->axes.at[axis].size, &n);
}

static bool varies(const Emit *e, VRef v, int axis) { return axis != NO_AXIS && (e->info[v].axes >> axis & 1); }

/* Bytes an element of the loads that v is computed from and that step along `axis`. */
static unsigned stepping(const Emit *e, VRef v, int axis)
{
    const KInst *n = &e->k->inst.at[v];
    unsigned bytes = 0;
    VRef in[4];
    if (axis == NO_AXIS || !varies(e, v, axis))
        return 0;
    if (n->kind == KI_LOAD && index_walk(e->k, n->idx, (uint32_t)axis) == INDEX_STEPS)
        bytes = (unsigned)dtype_bytes((DType)n->dtype);
    uint32_t n_in = kernel_operands(n, in);
    for (uint32_t i = 0; i < n_in; i++)
        bytes += stepping(e, in[i], axis);
    return bytes;
}

/* Of a band in which rows are summed up, too: rows of the blocks that they come in; else 0. */
static int64_t in_blocks(const Emit *e)
{
    int64_t rows = 0;
    for (uint32_t a = 0; a < e->k->args.n; a++)
        rows = e->k->args.at[a].blocks ? e->k->args.at[a].blocks : rows;
    return rows;
}

/* Does it sum up the rows of a band? */
static bool folds_rows(const Emit *e)
{
    bool any = false;
    for (uint32_t a = 0; a < e->k->args.n; a++)
        any |= e->k->args.at[a].kind == ARG_SCRATCH;
    return any;
}

/* Bytes of a row of what is in bands; 0: nothing is. */
static int64_t band_row(const Emit *e)
{
    const Kernel *k = e->k;
    int64_t most = 0;
    if (folds_rows(e)) /* its rows are steps of the sum */
        return 0;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        if ((n->kind != KI_LOAD && n->kind != KI_STORE) || !k->args.at[n->arg].band)
            continue;
        int64_t bytes = (int64_t)dtype_bytes((DType)k->args.at[n->arg].dtype);
        for (uint32_t a = e->n_x - 1; a < k->axes.n; a++)
            bytes = k->inst_axes.at[v] >> a & 1 ? least(bytes, INT64_MAX >> KERNEL_BUCKETS) * about(e, (int)a) : bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Does what is stored lie contiguous along `before`, not along `last`, and could lanes run along it? Then they should. */
static bool stored_across(const Emit *e, const KInst *n, int before, int last)
{
    enum { FEW = 16 };
    const Kernel *k = e->k;
    bool across = false;
    if (before == NO_AXIS || about(e, before) < FEW || varies(e, n->b, before) || varies(e, n->a, last))
        return false;
    for (VRef v = 0; v < k->inst.n; v++) {
        if (k->inst.at[v].kind != KI_STORE)
            continue;
        if (index_walk(k, k->inst.at[v].idx, (uint32_t)before) != INDEX_STEPS)
            return false;
        across = true;
    }
    return across;
}

static void choose_axes(const Emit *e, Contract *c)
{
    const Kernel *k = e->k;
    const KInst *n = &k->inst.at[c->reduce];
    int last = e->n_x ? (int)e->n_x - 1 : NO_AXIS, before = e->n_x > 1 ? (int)e->n_x - 2 : NO_AXIS;
    bool band = band_row(e) > 0 || folds_rows(e),
         thin = before != NO_AXIS && !band && about(e, last) < 8 && about(e, before) > about(e, last);
    bool swap = thin || (band_row(e) == 0 && stored_across(e, n, before, last));
    c->axis[LANE_SIDE] = swap ? before : last;
    c->operand[LANE_SIDE] = swap ? n->a : n->b;
    c->operand[ROW_SIDE] = swap ? n->b : n->a;
    c->axis[ROW_SIDE] = NO_AXIS;
    for (int a = 0; a < (int)e->n_x; a++) {
        bool row = a != c->axis[LANE_SIDE] && !varies(e, c->operand[LANE_SIDE], a) && varies(e, c->operand[ROW_SIDE], a);
        if (row && (band ? a >= before : about(e, a) >= about(e, c->axis[ROW_SIDE])))
            c->axis[ROW_SIDE] = a;
    }
    for (int s = 0; s < SIDES; s++)
        c->along[s] = stepping(e, c->operand[s], (int)k->axes.n - 1) > stepping(e, c->operand[s], c->axis[s]);
}

typedef struct TileShape {
    int bits, bytes, rows, vectors;
} TileShape;

static const TileShape shapes[] = {
#define TILE(bits, bytes, rows, vectors) {bits, bytes, rows, vectors},
#include "jit/llvm/cpu/tiles.def"
#undef TILE
};

/*
 * Of a product in a band: rows of a task, which are the band's (jit/bands.c). As many as keep what lies in the band in a core's caches, and so
 * many that packing the other operand for them alone costs little. Any two products of a band come to the same number, as they see the same
 * rows: a multiple of every tile's. 0: one task has all rows.
 */
static int64_t rows_of_band(const Emit *e, int64_t m)
{
    enum { MOST_BYTES = 2 << 20, MOST_ROWS_OF_BAND = 224 };
    int64_t unit = 0, row = band_row(e);
    if (in_blocks(e))
        return in_blocks(e);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        unit = shapes[i].bits == e->bits && shapes[i].rows > unit ? shapes[i].rows : unit;
    int64_t groups = least(MOST_BYTES / unit / row, MOST_ROWS_OF_BAND / unit), most = unit * (groups > 1 ? groups : 1);
    return m <= most && is_const(e, (int)e->n_x - 2) ? 0 : round_up(ceil_div(m, ceil_div(m, most)), unit);
}

/* The tile that computes the fewest columns for nothing; the number of rows is evened out over the groups. */
static void choose_tile(const Emit *e, Contract *c, int64_t m, int64_t n)
{
    int64_t best = INT64_MAX;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const TileShape *s = &shapes[i];
        int64_t width = s->vectors * c->lanes, columns = round_up(n, width);
        if (s->bits != e->bits || s->bytes != (int)dtype_bytes(c->acc) || columns >= best - best / 8)
            continue;
        best = columns;
        c->width = width;
        c->rows = s->rows;
    }
    if (is_const(e, c->axis[ROW_SIDE]) && !(band_row(e) && rows_of_band(e, m)))
        c->rows = ceil_div(m, ceil_div(m, c->rows));
}

/* Groups and tiles of a task: so that what is packed is used often and stays in the caches, and that there are tasks for some threads. */
static void choose_blocks(const Emit *e, Contract *c, int64_t batch, int64_t m, int64_t n, int64_t k)
{
    double work = 2.0 * (double)batch * (double)m * (double)n * (double)k;
    int64_t tasks = work >= 1 << 28 ? 8 : work >= 1 << 25 ? 4 : work >= 1 << 22 ? 2 : 1;
    int64_t bytes = (int64_t)dtype_bytes(c->acc), groups = ceil_div(m, c->rows), tiles = ceil_div(n, c->width);
    int64_t rows_bytes = e->bits == 512 ? 400 << 10 : 200 << 10;
    int64_t g = least(groups, rows_bytes / (c->block * bytes * c->rows)), t = least(tiles, (c->one_block ? 4096 : 2048) / bytes / c->width);
    if (band_row(e)) { /* bands are the tasks */
        int64_t rows = rows_of_band(e, m);
        c->block_rows = rows ? rows : round_up(m, c->rows);
        c->block_tiles = ceil_div(tiles, ceil_div(tiles, t));
        return;
    }
    while (batch * ceil_div(groups, g) * ceil_div(tiles, t) < tasks && (g * c->rows > 64 || t * c->width > 128)) {
        if (g * c->rows > t * c->width / 4 && g > 1) /* rows cost more to pack: they want wide tasks */
            g = (g + 1) / 2;
        else
            t = (t + 1) / 2;
    }
    c->block_rows = c->rows * ceil_div(groups, ceil_div(groups, g));
    c->block_tiles = ceil_div(tiles, ceil_div(tiles, t));
}

static void plan_packed(const Emit *e, Contract *c, int64_t batch, int64_t m, int64_t n, int64_t k)
{
    enum { RUN = 512 }; /* bytes of a row of the lane operand that are read in one go */
    choose_tile(e, c, m, n);
    choose_blocks(e, c, batch, m, n, k);
    c->panels = least(c->block_tiles, ceil_div(RUN, c->width * (int64_t)dtype_bytes(c->acc)));
}

static void plan_thin(const Emit *e, Contract *c, int64_t m, int64_t n)
{
    int64_t most = c->way == WAY_DIRECT ? e->bits == 512 ? 8 : 6 : 8, bytes = (int64_t)dtype_bytes(c->acc);
    c->rows = ceil_div(m, ceil_div(m, most));
    c->width = c->way == WAY_DOTS ? c->lanes : 2 * c->lanes;
    while (c->way == WAY_DIRECT && c->width > 1 && c->width / 2 >= n)
        c->width /= 2;
    if (c->way == WAY_STRIPS && c->rows > 4)
        c->width = c->lanes;
    c->block_rows = c->way == WAY_DIRECT ? c->rows * least(ceil_div(m, c->rows), ceil_div(64, c->rows)) : c->rows;
    int64_t columns = c->way == WAY_STRIPS ? (c->rows > 4            ? 1024
                                              : n * bytes < 8 * 4096 ? 2048
                                                                     : 4096) /
                                                 bytes
                      : c->way == WAY_DIRECT ? 8 * c->width
                                             : 2 * c->width;
    c->block_tiles = least(ceil_div(n, c->width), columns / c->width);
}

static bool plain_load(const Emit *e, const Contract *c, int side)
{
    const KInst *n = &e->k->inst.at[c->operand[side]];
    return n->kind == KI_LOAD && n->pred == VREF_NONE && (DType)n->dtype == c->acc;
}

static bool has_lanes(const Emit *e, const Contract *c) { return c->axis[LANE_SIDE] != NO_AXIS && e->k->vec_axis != UINT32_MAX; }

static bool regular(const Emit *e, const Contract *c) { return has_lanes(e, c) && !varies(e, c->operand[ROW_SIDE], c->axis[LANE_SIDE]); }

static Way choose_way(const Emit *e, const Contract *c, int64_t batch, int64_t m, int64_t n, int64_t k)
{
    if (!regular(e, c))
        return WAY_DIRECT;
    if ((m > 8 && band_row(e)) || in_blocks(e) || folds_rows(e))
        return WAY_PACKED;
    if (c->along[LANE_SIDE])
        return m <= 8 ? WAY_DOTS : WAY_PACKED;
    if (m <= 8)
        return k * n >= 1 << 15 && n >= 128 ? WAY_STRIPS : WAY_DIRECT;
    /* what the caches hold is read where it is, by one product: those of a batch come from memory */
    bool cached = batch == 1 && m <= 512 && k * n * (int64_t)dtype_bytes(c->acc) <= 1 << 18;
    bool plain = plain_load(e, c, LANE_SIDE) && plain_load(e, c, ROW_SIDE);
    return k <= 8 || k * n <= 1 << 11 || (cached && plain) ? WAY_DIRECT : WAY_PACKED;
}

/* Integers narrower than 32 bits are summed up in 32: the low bits are the same. */
static DType accumulator(DType t) { return dtype_is_float(t) ? dtype_accumulator(t) : dtype_bytes(t) == 8 ? DT_I64 : DT_I32; }

/* What follows from the kernel alone. */
static void read_kernel(const Emit *e, Contract *c)
{
    const Kernel *k = e->k;
    *c = (Contract){0};
    while (!inst_is_dot(&k->inst.at[c->reduce]))
        c->reduce++;
    const KInst *n = &k->inst.at[c->reduce];
    c->in = (DType)k->inst.at[n->a].dtype;
    c->out = (DType)n->dtype;
    c->acc = accumulator(c->out);
    choose_axes(e, c);
    c->lanes = e->bits / 8 / (int)dtype_bytes(c->acc);
    c->block = kernel_dot_block(n);
    c->blocks = in_blocks(e);
    c->folds = folds_rows(e);
    c->one_block = !c->folds && is_const(e, (int)k->axes.n - 1) && about(e, (int)k->axes.n - 1) <= c->block;
}

void contract_schedule(Emit *e)
{
    Contract c;
    read_kernel(e, &c);
    int64_t rows = about(e, c.axis[ROW_SIDE]), columns = about(e, c.axis[LANE_SIDE]), steps = about(e, (int)e->k->axes.n - 1), batch = 1;
    for (int a = 0; a < (int)e->n_x; a++)
        batch *= a == c.axis[LANE_SIDE] || a == c.axis[ROW_SIDE] ? 1 : least(about(e, a), 1 << 20);
    c.way = choose_way(e, &c, batch, rows, columns, steps);
    if (c.way == WAY_PACKED)
        plan_packed(e, &c, least(batch, 1 << 20), rows, columns, steps);
    else
        plan_thin(e, &c, rows, columns);
    e->schedule.way = c.way;
    e->schedule.along = c.axis[LANE_SIDE];
    e->schedule.across = c.axis[ROW_SIDE];
    e->schedule.tile_rows = c.rows;
    e->schedule.tile_width = has_lanes(e, &c) ? c.width : 1;
    e->schedule.task_rows = c.block_rows;
    e->schedule.task_tiles = c.block_tiles;
    e->schedule.panels = c.panels;
    e->schedule.prefetch = has_lanes(e, &c) && plan_heavy(e);
}

void contract_facts(const Emit *e, ScheduleFacts *facts)
{
    Contract c;
    read_kernel(e, &c);
    facts->product = true;
    facts->regular = regular(e, &c);
    facts->along_k = c.along[LANE_SIDE];
    facts->vector = c.lanes;
}

/* What follows from kernel and schedule. */
static void contract_plan(Emit *e, Contract *c)
{
    const Schedule *s = &e->schedule;
    read_kernel(e, c);
    c->way = (Way)s->way;
    c->rows = s->tile_rows;
    c->width = s->tile_width;
    c->block_rows = s->task_rows;
    c->block_tiles = s->task_tiles;
    c->panels = s->panels;
    c->folds &= c->way == WAY_PACKED; /* a schedule may ask for another: its only phase is the whole sum */
    int64_t bytes = (int64_t)dtype_bytes(c->acc), steps = about(e, (int)e->k->axes.n - 1), groups = ceil_div(c->block_rows, c->rows);
    c->one_tile = c->way == WAY_DIRECT || c->way == WAY_DOTS || (c->way == WAY_PACKED && c->one_block);
    int64_t sums = c->one_tile ? c->rows * c->width : groups * c->rows * c->block_tiles * c->width;
    c->most_k = c->one_block ? round_up(steps, c->lanes) : c->block;
    c->part = round_up(sums * bytes, 64);
    c->panel_at = c->part + (c->way == WAY_PACKED ? c->lanes * c->lanes * bytes : 0);
    c->rows_at = c->panel_at + round_up(c->way == WAY_PACKED ? panel_stride(c, c->width) * c->panels * bytes + PACK_SLACK : 0, 64);
    c->bytes = c->rows_at + round_up(c->way == WAY_PACKED ? panel_stride(c, c->rows) * groups * bytes + PACK_SLACK : 0, 64);
    if (c->way == WAY_STRIPS) /* a block's sums */
        c->bytes += c->part;
    skip_plan(e, c);
    for (int which = 0; which < FLAGS; which++) {
        c->flags_at[which] = c->bytes;
        c->bytes += round_up(skip_bytes(c, which), 64);
    }
    c->vector = LLVMVectorType(e->type[dtype_info[c->acc].scalar], (unsigned)c->lanes);
}

static LV axis_or_one(Emit *e, int axis) { return axis == NO_AXIS ? l_i64(e, 1) : axis_size(e, (uint32_t)axis); }

static void contract_sizes(Emit *e, Contract *c)
{
    for (int s = 0; s < SIDES; s++)
        c->n[s] = axis_or_one(e, c->axis[s]);
    c->n_k = axes_product(e, e->n_x, e->k->axes.n);
    c->tiles = l_ceil_div(e, c->n[LANE_SIDE], l_i64(e, c->width));
    c->row_blocks = l_ceil_div(e, c->n[ROW_SIDE], l_i64(e, c->block_rows));
    c->tile_blocks = l_ceil_div(e, c->tiles, l_i64(e, c->block_tiles));
    memcpy(c->end, c->n, sizeof c->end);
    c->sums = e->scratch;
    if (e->stream)
        e->points[0] = axes_product(e, 0, e->n_x);
}

/* ---- small things ---- */

LV contract_slot(Emit *e, const Contract *c, int64_t offset, LV element)
{
    return l_gep(e, LLVMGetElementType(c->vector), l_gep_bytes(e, e->scratch, l_i64(e, offset)), element);
}

LV contract_load(Emit *e, const Contract *c, LV at) { return l_load(e, l_type(e, c->acc, true), at, (unsigned)dtype_bytes(c->acc)); }

void contract_store(Emit *e, const Contract *c, LV v, LV at) { l_store(e, v, at, (unsigned)dtype_bytes(c->acc)); }

LV contract_operand(Emit *e, const Contract *c, int side) { return val_vector(e, cast_emit(e, c->in, c->acc, value(e, c->operand[side]))); }

void contract_row(Emit *e, const Contract *c, LV row)
{
    if (c->axis[ROW_SIDE] != NO_AXIS)
        e->axis[c->axis[ROW_SIDE]] = ix_uniform(row);
}

void contract_k(Emit *e, LV k, bool lanes)
{
    e->flat = k;
    e->axis[e->k->axes.n - 1] = (Ix){.base = k, .stride = lanes && e->lanes > 1 ? l_i64(e, 1) : NULL};
}

void contract_tile(Emit *e, const Contract *c, LV tile)
{
    int64_t n;
    if (e->tile_axis == NO_AXIS)
        return;
    LV at = l_mul(e, tile, l_i64(e, c->width));
    e->axis[e->tile_axis] = (Ix){.base = at, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = e->lanes == c->width};
    if (e->lanes > 1 && !(l_is_const(c->n[LANE_SIDE], &n) && n % c->width == 0))
        tile_mask(e, l_sub(e, c->n[LANE_SIDE], at));
    else
        e->whole = l_const(e, SC_I1, 1, false);
}

LV contract_sums(Emit *e, const Contract *c, LV group, LV tile)
{
    if (c->one_tile)
        return c->sums;
    LV n = l_add(e, l_mul(e, group, l_i64(e, c->block_tiles)), l_sub(e, tile, c->tile0));
    return l_gep(e, LLVMGetElementType(c->vector), c->sums, l_mul(e, n, l_i64(e, c->rows * c->width)));
}

void contract_epilogue(Emit *e, const Contract *c, LV group, LV tile)
{
    LV first = l_add(e, c->row0, l_mul(e, group, l_i64(e, c->rows))), sums = contract_sums(e, c, group, tile);
    LV end = l_min(e, l_add(e, first, l_i64(e, c->rows)), c->end[ROW_SIDE]);
    lanes_change(e, (int)c->width);
    e->cur = LV_ROW;
    contract_tile(e, c, tile);
    Loop m = loop_begin(e, first, end, l_i64(e, 1), "epilogue");
    level_open(e, LV_ROW);
    contract_row(e, c, m.iv);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    LV at = l_mul(e, l_sub(e, m.iv, first), l_i64(e, c->width)), v = contract_load(e, c, l_gep(e, LLVMGetElementType(c->vector), sums, at));
    Val sum = {.vec = e->lanes > 1};
    if (dtype_is_float(c->acc))
        sum = cast_emit(e, c->acc, c->out, (Val){.v = v, .vec = sum.vec});
    else
        sum.v = LLVMBuildTruncOrBitCast(e->b, v, l_type(e, c->out, true), "");
    value_set(e, c->reduce, e->level[c->reduce], sum);
    emit_stores(e, false, 0);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &m);
    mask_end(e);
}

/* ---- packed ---- */

/* Steps [k0, k1) of what a tile sums up. */
static void packed_multiply(Emit *e, const Contract *c, LV group, LV tile, LV at, LV k0, LV k1)
{
    LV rows = contract_slot(e, c, c->rows_at, l_mul(e, group, l_i64(e, panel_stride(c, c->rows))));
    LV panel = contract_slot(e, c, c->panel_at, l_mul(e, at, l_i64(e, panel_stride(c, c->width))));
    LV first = LLVMBuildICmp(e->b, LLVMIntEQ, k0, l_i64(e, 0), ""), sums = contract_sums(e, c, group, tile), zero = NULL;
    If some, none;
    if (c->zeros) {
        zero = skip_is_zero(e, c, at, group);
        some = if_begin(e, LLVMBuildNot(e->b, zero, ""), "some");
    }
    LV args[] = {rows, panel, sums, l_sub(e, k1, k0), LLVMBuildZExt(e->b, first, e->type[SC_I64], "")};
    LLVMBuildCall2(e->b, LLVMGlobalGetValueType(c->multiply), c->multiply, args, 5, "");
    if (c->zeros) {
        if_end(e, &some);
        none = if_begin(e, zero, "none");
        skip_add_zeros(e, c, sums, first);
        if_end(e, &none);
    }
}

/* `at`: how many-eth of the packed panels the tile is. */
static void packed_tile(Emit *e, const Contract *c, LV groups, LV group, LV tile, LV at, LV k0, LV k1)
{
    If wanted;
    if (c->wanted != VREF_NONE)
        wanted = if_begin(e, skip_wanted(e, c, at, groups, group), "wanted");
    packed_multiply(e, c, group, tile, at, k0, k1);
    if (c->wanted != VREF_NONE)
        if_end(e, &wanted);
    if (c->one_block) {
        contract_epilogue(e, c, group, tile);
        return;
    }
    If last = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGE, k1, c->n_k, ""), "last");
    contract_epilogue(e, c, group, tile);
    if_end(e, &last);
}

static void packed_block(Emit *e, const Contract *c, LV groups, LV k0, LV k1)
{
    LV zero = l_i64(e, 0), one = l_i64(e, 1), zeros = NULL;
    pack_panels(e, c, ROW_SIDE, &(Panels){c->row0, groups, c->rows, contract_slot(e, c, c->rows_at, zero)}, k0, k1);
    if (c->zeros)
        zeros = skip_find_zeros(e, c, groups, LLVMBuildICmp(e->b, LLVMIntEQ, l_sub(e, k1, k0), l_i64(e, c->block), ""));
    Loop p = loop_begin(e, c->tile0, c->tile1, l_i64(e, c->panels), "panels");
    LV end = l_min(e, l_add(e, p.iv, l_i64(e, c->panels)), c->tile1), count = l_sub(e, end, p.iv);
    If wanted;
    if (c->wanted != VREF_NONE)
        wanted = if_begin(e, skip_look(e, c, p.iv, end, groups), "pack");
    Panels wide = {l_mul(e, p.iv, l_i64(e, c->width)), count, c->width, contract_slot(e, c, c->panel_at, zero)};
    pack_panels(e, c, LANE_SIDE, &wide, k0, k1);
    if (c->wanted != VREF_NONE)
        if_end(e, &wanted);
    if (c->zeros)
        skip_find_finite(e, c, count, zeros);
    Loop j = loop_begin(e, p.iv, end, one, "tile");
    Loop g = loop_begin(e, zero, groups, one, "group");
    packed_tile(e, c, groups, g.iv, j.iv, l_sub(e, j.iv, p.iv), k0, k1);
    loop_end(e, &g);
    loop_end(e, &j);
    loop_end(e, &p);
}

static void packed_task(Emit *e, const Contract *c)
{
    LV groups = l_ceil_div(e, l_sub(e, c->row1, c->row0), l_i64(e, c->rows));
    if (c->one_block) {
        packed_block(e, c, groups, l_i64(e, 0), c->n_k);
        return;
    }
    if (c->folds) {
        LV k0 = l_mul(e, LLVMGetParam(e->fn, 1), l_i64(e, c->block));
        packed_block(e, c, groups, k0, l_min(e, l_add(e, k0, l_i64(e, c->block)), c->n_k));
        return;
    }
    /* at least once: with no k at all the sums are zero */
    Loop l = loop_begin(e, l_i64(e, 0), l_max(e, c->n_k, l_i64(e, 1)), l_i64(e, c->block), "block");
    packed_block(e, c, groups, l.iv, l_min(e, l_add(e, l.iv, l_i64(e, c->block)), c->n_k));
    loop_end(e, &l);
}

/* ---- tasks ---- */

/* Batch coordinates: the axes that are neither rows nor lanes, row-major. */
static void seek_batch(Emit *e, const Contract *c, LV rest)
{
    for (int a = (int)e->n_x - 1; a >= 0; a--) {
        if (a == c->axis[ROW_SIDE] || a == c->axis[LANE_SIDE])
            continue;
        LV size = axis_size(e, (uint32_t)a);
        e->axis[a] = ix_uniform(l_mod(e, rest, size));
        rest = l_div(e, rest, size);
    }
}

static void emit_contract_run(Emit *e, Contract *c)
{
    static void (*const ways[])(Emit *, const Contract *) = {
        [WAY_DIRECT] = thin_direct, [WAY_PACKED] = packed_task, [WAY_STRIPS] = thin_strips, [WAY_DOTS] = thin_dots};
    LV run = function_add(e, "run", true, 3);
    function_open(e, run, LLVMGetParam(run, 4));
    contract_sizes(e, c);
    Loop t = loop_begin(e, LLVMGetParam(run, 2), LLVMGetParam(run, 3), l_i64(e, 1), "task");
    e->before[LV_TASK] = t.guard;
    level_open(e, LV_ROW);
    LV rest = l_div(e, t.iv, c->tile_blocks), batch = l_div(e, rest, c->row_blocks);
    c->tile0 = l_mul(e, l_sub(e, t.iv, l_mul(e, rest, c->tile_blocks)), l_i64(e, c->block_tiles));
    c->row0 = l_mul(e, l_sub(e, rest, l_mul(e, batch, c->row_blocks)), l_i64(e, c->block_rows));
    c->row1 = l_min(e, l_add(e, c->row0, l_i64(e, c->block_rows)), c->n[ROW_SIDE]);
    c->tile1 = l_min(e, l_add(e, c->tile0, l_i64(e, c->block_tiles)), c->tiles);
    if (c->blocks)
        c->end[ROW_SIDE] = c->row1;
    if (c->folds)
        c->sums = l_gep_bytes(e, argument(e, e->shared_arg), l_mul(e, t.iv, l_i64(e, c->part)));
    seek_batch(e, c, batch);
    ways[c->way](e, c);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &t);
    stream_end(e);
    LLVMBuildRetVoid(e->b);
}

/* Do tasks follow each other by batch and rows? */
static bool band_axes(const Emit *e, const Contract *c)
{
    return !folds_rows(e) && e->n_x >= 2 && c->axis[LANE_SIDE] == (int)e->n_x - 1 && c->axis[ROW_SIDE] == (int)e->n_x - 2;
}

static void plan_launch(Emit *e, const Contract *c)
{
    LaunchBuilder *b = e->launch;
    uint16_t one = launch_const(b, 1), n[SIDES], batch = one, k = axes_node(e, e->n_x, e->k->axes.n);
    for (int s = 0; s < SIDES; s++)
        n[s] = c->axis[s] == NO_AXIS ? one : axis_node(e, (uint32_t)c->axis[s]);
    for (uint32_t a = 0; a < e->n_x; a++)
        if ((int)a != c->axis[ROW_SIDE] && (int)a != c->axis[LANE_SIDE])
            batch = launch_op(b, LAUNCH_MUL, batch, axis_node(e, a));
    uint16_t tiles = tasks_node(e, tasks_node(e, n[LANE_SIDE], c->width), c->block_tiles), rows = tasks_node(e, n[ROW_SIDE], c->block_rows);
    LaunchPhase *phase = launch_phase(b, "", 0);
    phase->tasks = launch_op(b, LAUNCH_MUL, batch, launch_op(b, LAUNCH_MUL, rows, tiles));
    phase->points = launch_op(b, LAUNCH_MUL, k, axes_node(e, 0, e->n_x));
    phase->local = launch_const(b, c->bytes);
    b->count = c->folds ? launch_op(b, LAUNCH_MAX, tasks_node(e, k, c->block), one) : one;
    b->scratch = c->folds ? launch_op(b, LAUNCH_MUL, phase->tasks, launch_const(b, c->part)) : launch_const(b, 0);
    b->rows = launch_const(b, c->folds ? c->block : band_axes(e, c) ? c->block_rows : 0);
}

void emit_contract(Emit *e)
{
    Contract c;
    contract_plan(e, &c);
    if (c.way == WAY_PACKED) {
        c.multiply = tile_function(e, &c);
        c.square = c.along[LANE_SIDE] || c.along[ROW_SIDE] ? square_function(e, &c) : NULL;
    }
    emit_contract_run(e, &c);
    plan_launch(e, &c);
}

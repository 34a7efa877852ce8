/*
 * Reductions of columns: lanes along x, and several tiles that lie side by side go through the rows together (the directive `strip`).
 *
 *     one tile after another                 a strip of tiles
 *
 *         for tile                               for r
 *             for r                                  for tile of the strip
 *                 acc[r % 64] op= a[r][tile]             acc[tile] op= a[r][tile]
 *
 * A tile alone reads 256 bytes of each row: of rows that lie 16 KB apart all of them fall into few sets of the cache, and the hardware fetches
 * nothing ahead. A strip reads a page or two of each row, and several rows at once (the directive `steps`): each tile adds its part of all of them
 * to what it loads from the strip. The last rows, fewer than that, go one by one, if there may be such.
 *
 * The 64 canonical lanes of an ordered sum (ir/orders.def) would be 64 strips, which no first cache holds. So a strip takes one of them after
 * another: rows l, l + 64, l + 128, ... of a block are one chain, whose rows are taken in their order, however many at once. The tree adds
 * lane l + 32 to l, then l + 16, ...: in the order of their mirrored numbers (0, 32, 16, 48, 8, ...) lanes that meet come one after another,
 * and a stack of partial sums does the rest, as a binary counter carries. Lane number q is accumulated where its carries end: at
 * stack[zeros at the end of q + 1].
 *
 *     q      0        1              2        3                               4
 *     stack  [0] = 0  [1] = [0]+32   [0] = 16 [2] = [1]+([0]+48)              [0] = 8
 *
 * A block's sum ends in stack[6]. Where there are few rows a chain is short, and most of the time goes into strips that are filled, read and
 * written for it. So a tile takes several lanes (the directive `chains`), whose first steps of the tree are then made in registers: 8 lanes
 * are 8 l + q for one q; eight such q are what the stack is for, which begins at stack[3] then, so that a block's sum ends in stack[6] as well. But
 * a tile that goes through many rows alone jumps through more of memory than the hardware follows and the caches hold. Where it is not known
 * how many there are, each block asks (NestNode.few). What has no order is accumulated in one strip whatever the order of the rows. The tile
 * that is not whole goes alone (reduce.c).
 *
 * Several stages (a mean, then the squares of what differs from it) go through the rows of a strip one after another. What a stage folds waits
 * in its strips; what points of later stages need of that (nest_kept: a mean, a reciprocal) is computed once a tile and waits in strips of its
 * own. Rows that are kept (KInst.save) lie side by side as the tiles do.
 *
 * A loop in a kernel (KI_CARRY) of many operations for each value that it carries goes through its iterations in strips, too: what one
 * iteration of a tile waits for, others fill. Its carries lie in the strip.
 */
#include "jit/llvm/build.h"

enum {
    FOLDED = 6, /* the last strip of the stack: a block's sum */
    TOTAL,      /* that of all blocks */
    STRIPS
};

static int64_t tile_bytes(const Emit *e, const Reduction *r) { return e->lanes * (int64_t)dtype_bytes((DType)r->acc_type); }

/* Is it a fold of the stage at hand? */
static bool folds_here(const Emit *e, const Reduction *r) { return r->stage == e->stage; }

/* Of a value in all tiles of a strip, where one lies for them: a carry, or what a stage leaves for the next ones. */
static bool in_values(const Emit *e, VRef v) { return e->k->inst.at[v].kind == KI_CARRY || nest_kept(&e->facts, v); }

static int64_t value_bytes(const Emit *e, VRef v)
{
    return (e->schedule.strip * e->lanes * (int64_t)dtype_bytes((DType)e->k->inst.at[v].dtype) + 63) & -64;
}

void strip_place(Emit *e)
{
    for (uint32_t i = 0; i < e->n_red && e->schedule.strip && !e->split; i++) {
        Reduction *r = &e->red[i];
        r->strip = e->scratch_bytes;
        e->scratch_bytes += (r->ordered ? STRIPS : 1) * ((e->schedule.strip * tile_bytes(e, r) + 63) & -64);
    }
    e->strip_values = e->scratch_bytes;
    for (uint32_t i = 0; i < e->k->inst.n && e->schedule.strip; i++)
        if (in_values(e, i))
            e->scratch_bytes += value_bytes(e, i);
}

static LV value_of(Emit *e, VRef v, LV tile)
{
    int64_t at = e->strip_values;
    for (uint32_t i = 0; i < v; i++)
        at += in_values(e, i) ? value_bytes(e, i) : 0;
    return l_gep(e, l_vec(e, l_memory(e, (DType)e->k->inst.at[v].dtype)), l_gep_bytes(e, e->scratch, l_i64(e, at)), tile);
}

/* The carries are those of a tile of the strip. */
static void carries_of(Emit *e, LV tile)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->k->inst.at[i].kind == KI_CARRY)
            e->scan[i] = value_of(e, i, tile);
}

/* Strip `which` (i64) of a reduction. They lie as close as their tiles allow: at powers of two of bytes they would share few places of the cache. */
static LV strip_at(Emit *e, const Reduction *r, LV which)
{
    LV bytes = l_align64(e, l_mul(e, e->strip.n, l_i64(e, tile_bytes(e, r))));
    return l_gep_bytes(e, e->scratch, l_add(e, l_i64(e, r->strip), l_mul(e, which, bytes)));
}

static LV tile_of(Emit *e, const Reduction *r, LV strip, LV tile) { return l_gep(e, slot_type(e, (DType)r->acc_type), strip, tile); }

static LV get(Emit *e, const Reduction *r, LV at)
{
    DType t = (DType)r->acc_type;
    return l_from_memory(e, t, l_load(e, slot_type(e, t), at, (unsigned)dtype_bytes(t)));
}

static void put(Emit *e, const Reduction *r, LV at, LV v)
{
    DType t = (DType)r->acc_type;
    l_store(e, l_to_memory(e, t, v), at, (unsigned)dtype_bytes(t));
}

/* Tiles [0, n) of a strip hold what a reduction starts with. */
static void fill(Emit *e, const Reduction *r, LV strip, LV n)
{
    LV start = part_start(e, r, NULL, true).v;
    Loop l = loop_begin(e, l_i64(e, 0), n, l_i64(e, 1), "start");
    put(e, r, tile_of(e, r, strip, l.iv), start);
    loop_end(e, &l);
}

/* to = a op b; `first` (i1): to = b. */
static void merge(Emit *e, const Reduction *r, LV to, LV a, LV b, LV n, LV first)
{
    Loop l = loop_begin(e, l_i64(e, 0), n, l_i64(e, 1), "merge");
    LV x = get(e, r, tile_of(e, r, a, l.iv)), y = get(e, r, tile_of(e, r, b, l.iv));
    LV sum = part_merge(e, r, (Part){.v = x}, (Part){.v = y}, true).v;
    put(e, r, tile_of(e, r, to, l.iv), first ? LLVMBuildSelect(e->b, first, y, sum, "") : sum);
    loop_end(e, &l);
}

/* What the first `stages` stages have for a tile: what is folded, and what is made of it. */
static void stages_of(Emit *e, LV tile, uint32_t stages)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (r->stage < stages)
            reduce_result(e, r, (Val){.v = get(e, r, tile_of(e, r, strip_at(e, r, l_i64(e, r->strip_folded)), tile)), .vec = e->lanes > 1});
    }
    for (VRef v = 0; v < e->k->inst.n; v++) {
        DType t = (DType)e->k->inst.at[v].dtype;
        if (!nest_kept(&e->facts, v) || e->info[v].stage > stages || e->info[v].stage > e->stage)
            continue;
        LV x = l_load(e, l_vec(e, l_memory(e, t)), value_of(e, v, tile), (unsigned)dtype_bytes(t));
        value_set(e, v, e->level[v], (Val){.v = l_from_memory(e, t, x), .vec = e->lanes > 1});
    }
}

/* A loop over the tiles, for which `stages` stages are folded. */
static Loop tiles_begin(Emit *e, const char *name, uint32_t stages)
{
    Loop l = loop_begin(e, l_i64(e, 0), e->strip.n, l_i64(e, 1), name);
    level_open(e, LV_TILE);
    LV base = l_add(e, e->strip.at, l_mul(e, l.iv, l_i64(e, e->lanes)));
    e->axis[e->tile_axis] = (Ix){.base = base, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = true};
    e->strip.tile = l.iv;
    stages_of(e, l.iv, stages);
    return l;
}

static void tiles_end(Emit *e, const Loop *l)
{
    e->strip.tile = NULL;
    loop_end(e, l);
    level_close(e, LV_TILE, LV_ROW);
}

static void seek_row(Emit *e, LV row)
{
    for (uint32_t a = e->k->axes.n; a-- > e->n_x;) {
        LV size = l_max(e, axis_size(e, a), l_i64(e, 1));
        e->axis[a] = ix_uniform(a == e->n_x ? row : l_mod(e, row, size));
        row = a == e->n_x ? row : l_div(e, row, size);
    }
}

/* Are all rows taken so many at once, as far as is known when code is made? */
static bool rows_are_whole(const Emit *e, int64_t by)
{
    int64_t n;
    return l_is_const(e->flat_n, &n) && n % by == 0 && (!stage_ordered(e, e->stage) || e->order.block % by == 0);
}

/* Every so many rows of the strip: several at a time as long as there are as many. */
void walk_strip_rows(Emit *e, const NestNode *node)
{
    LV from = e->strip.from, to = e->folded.to;
    e->strip.by = node->by;
    if (node->points) {
        int64_t ahead = e->rows_ahead, by = node->by * node->points;
        LV end = l_sub(e, to, l_i64(e, by - node->by)), step = l_i64(e, by);
        e->strip.rows = node->points;
        e->rows_ahead = e->schedule.prefetch ? by : -1;
        e->ahead_far = true;
        Loop r = loop_begin(e, from, end, step, "rows");
        e->flat = r.iv;
        nest_inside(e, node);
        loop_end(e, &r);
        e->ahead_far = false;
        e->rows_ahead = ahead;
        if (rows_are_whole(e, by))
            return;
        from = l_add(e, from, l_mul(e, l_ceil_div(e, l_max(e, l_sub(e, end, from), l_i64(e, 0)), step), step));
    }
    e->strip.rows = 1;
    Loop r = loop_begin(e, from, to, l_i64(e, node->by), "r");
    e->flat = r.iv;
    nest_inside(e, node);
    loop_end(e, &r);
}

/*
 * The accumulators of a tile are in its strip; while it takes several rows, in registers. A maximum of floats (extreme.c) of these begins anew,
 * as the strip has no signs and no NaN beside what it holds, and joins that as one row more would.
 */
static void accumulators_of(Emit *e, LV tile)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (!folds_here(e, r))
            continue;
        LV at = tile_of(e, r, e->strip.acc[i], tile);
        r->acc = at;
        r->extreme = e->strip.extreme[i] && e->strip.rows > 1;
        if (e->strip.rows == 1)
            continue;
        r->acc = l_alloca(e, slot_type(e, (DType)r->acc_type), 64, "rows");
        if (r->extreme) {
            extreme_open(e, r);
            extreme_begin(e, r);
        }
        put(e, r, r->acc, r->extreme ? part_start(e, r, NULL, true).v : get(e, r, at));
    }
}

static void accumulators_end(Emit *e, LV tile)
{
    for (uint32_t i = 0; i < e->n_red && e->strip.rows > 1; i++) {
        const Reduction *r = &e->red[i];
        if (!folds_here(e, r))
            continue;
        LV at = tile_of(e, r, e->strip.acc[i], tile), v = get(e, r, r->acc);
        if (r->extreme)
            v = part_merge(e, r, (Part){.v = get(e, r, at)}, (Part){.v = extreme_result(e, r, v)}, true).v;
        put(e, r, at, v);
    }
}

/* The tiles of such rows. */
void walk_row_tiles(Emit *e, const NestNode *node)
{
    int64_t rows = e->strip.rows;
    uint32_t n_axes = e->k->axes.n - e->n_x;
    LV first = e->flat, *row = ARENA_ARRAY(e->arena, LV, rows);
    Ix *axes = ARENA_ARRAY(e->arena, Ix, rows * n_axes + 1);
    for (int64_t i = 0; i < rows; i++) {
        row[i] = i ? l_add(e, first, l_i64(e, i * e->strip.by)) : first;
        seek_row(e, row[i]);
        memcpy(axes + i * n_axes, e->axis + e->n_x, n_axes * sizeof *axes);
    }
    Loop t = tiles_begin(e, "strip", e->stage);
    pin(e, LV_TILE);
    accumulators_of(e, t.iv);
    carries_of(e, t.iv);
    for (int64_t i = 0; i < rows; i++) {
        memcpy(e->axis + e->n_x, axes + i * n_axes, n_axes * sizeof *axes);
        level_open(e, LV_R);
        e->flat = row[i];
        nest_inside(e, node);
    }
    accumulators_end(e, t.iv);
    tiles_end(e, &t);
}

/* ---- several canonical lanes in registers ---- */

/* Rows of one canonical lane, from `from` on, of one tile. */
static Part *chain(Emit *e, const NestNode *node, LV from, LV to)
{
    Part *part = ARENA_ARRAY(e->arena, Part, e->n_red + 1);
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (!folds_here(e, r))
            continue;
        r->acc = l_alloca(e, slot_type(e, (DType)r->acc_type), 64, "chain");
        put(e, r, r->acc, part_start(e, r, NULL, true).v);
    }
    Loop l = loop_begin(e, from, to, l_i64(e, node->by), "r");
    seek_row(e, l.iv);
    level_open(e, LV_R);
    e->flat = l.iv;
    nest_inside(e, node);
    loop_end(e, &l);
    for (uint32_t i = 0; i < e->n_red; i++)
        if (folds_here(e, &e->red[i]))
            part[i].v = get(e, &e->red[i], e->red[i].acc);
    return part;
}

/* The tree over the lanes whose first rows are from, from + step, ... and among the first of each canonical lane. */
static Part *lanes_tree(Emit *e, const NestNode *node, LV from, LV to, int64_t step)
{
    if (step == node->by)
        return chain(e, node, from, to);
    Part *a = lanes_tree(e, node, from, to, 2 * step), *b = lanes_tree(e, node, l_add(e, from, l_i64(e, step)), to, 2 * step);
    for (uint32_t i = 0; i < e->n_red; i++)
        if (folds_here(e, &e->red[i]))
            a[i] = part_merge(e, &e->red[i], a[i], b[i], true);
    return a;
}

/* Several canonical lanes of each tile of the strip (CHAINS, in here); what has an order goes to the stack, with its carries. */
void walk_chain_tiles(Emit *e, const NestNode *node)
{
    const NestNode *chains = &e->nest.node.at[node->child];
    Loop t = tiles_begin(e, "strip", e->stage);
    pin(e, LV_TILE);
    Part *part = lanes_tree(e, chains, e->strip.from, e->folded.to, chains->by / chains->points);
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (!folds_here(e, r))
            continue;
        LV to_tile = tile_of(e, r, e->strip.acc[i], t.iv);
        if (!r->ordered) {
            put(e, r, to_tile, part_merge(e, r, (Part){.v = get(e, r, to_tile)}, part[i], true).v);
            continue;
        }
        put(e, r, r->acc, part[i].v);
        Loop k = loop_begin(e, e->strip.stack, e->strip.carried, l_i64(e, 1), "carry");
        Part waiting = {.v = get(e, r, tile_of(e, r, strip_at(e, r, k.iv), t.iv))}, sum = {.v = get(e, r, r->acc)};
        put(e, r, r->acc, part_merge(e, r, waiting, sum, true).v);
        loop_end(e, &k);
        put(e, r, to_tile, get(e, r, r->acc));
    }
    tiles_end(e, &t);
}

/* The rows of a block, by canonical lanes. */
void walk_canonical(Emit *e, const NestNode *node)
{
    LV zero = l_i64(e, 0), one = l_i64(e, 1), few = l_i64(e, node->few);
    bool chains = e->nest.node.at[node->child].kind == NEST_CHAIN_TILES;
    LV rows = l_sub(e, e->folded.to, e->folded.from);
    If way = node->few ? if_begin(e, LLVMBuildICmp(e->b, chains ? LLVMIntSLT : LLVMIntSGE, rows, few, ""), "rows_of_block") : (If){0};
    int64_t bits = __builtin_ctzll((uint64_t)node->by);
    Loop q = loop_begin(e, zero, l_i64(e, node->by), one, "lane");
    LLVMTypeRef i64 = e->type[SC_I64];
    LV mirrored = LLVMBuildLShr(e->b, l_intrinsic(e, "llvm.bitreverse", &i64, 1, (LV[]){q.iv}, 1), l_i64(e, 64 - bits), "");
    LV carries = l_intrinsic(e, "llvm.cttz", &i64, 1, (LV[]){l_add(e, q.iv, one), LLVMConstInt(e->type[SC_I1], 1, 0)}, 2);
    e->strip.stack = l_i64(e, FOLDED - bits);
    e->strip.carried = l_add(e, e->strip.stack, carries);
    e->strip.from = l_add(e, e->folded.from, mirrored);
    e->rows_ahead = chains ? -1 : e->order.lanes;
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (!r->ordered || !folds_here(e, r))
            continue;
        r->strip_folded = FOLDED;
        e->strip.acc[i] = strip_at(e, r, e->strip.carried);
        if (!chains)
            fill(e, r, e->strip.acc[i], e->strip.n);
    }
    nest_inside(e, node);
    Loop k = chains ? (Loop){0} : loop_begin(e, e->strip.stack, e->strip.carried, one, "carry");
    for (uint32_t i = 0; i < e->n_red && !chains; i++)
        if (e->red[i].ordered && folds_here(e, &e->red[i]))
            merge(e, &e->red[i], e->strip.acc[i], strip_at(e, &e->red[i], k.iv), e->strip.acc[i], e->strip.n, NULL);
    if (!chains)
        loop_end(e, &k);
    loop_end(e, &q);
    if (node->few)
        if_end(e, &way);
}

void strip_blocks(Emit *e, const NestNode *node)
{
    LV zero = l_i64(e, 0);
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].ordered && folds_here(e, &e->red[i])) /* of no rows: what is stored then is asked below */
            fill(e, &e->red[i], strip_at(e, &e->red[i], l_i64(e, TOTAL)), e->strip.n);
    Loop b = loop_begin(e, zero, e->flat_n, l_i64(e, node->by), "block");
    LV first = LLVMBuildICmp(e->b, LLVMIntEQ, b.iv, zero, "");
    e->folded = (Folded){.from = b.iv, .to = l_min(e, l_add(e, b.iv, l_i64(e, node->by)), e->flat_n)};
    nest_inside(e, node);
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (!r->ordered || !folds_here(e, r))
            continue;
        LV total = strip_at(e, r, l_i64(e, TOTAL));
        merge(e, r, total, total, strip_at(e, r, l_i64(e, r->strip_folded)), e->strip.n, first);
        r->strip_folded = TOTAL;
    }
    loop_end(e, &b);
}

/* What points of later stages need of each tile. */
void walk_strip_keep(Emit *e, const NestNode *node)
{
    Loop t = tiles_begin(e, "keep", node->number + 1);
    for (VRef v = 0; v < e->k->inst.n; v++) {
        DType type = (DType)e->k->inst.at[v].dtype;
        if (nest_kept(&e->facts, v) && e->info[v].stage == node->number + 1)
            l_store(e, l_to_memory(e, type, value_vector(e, v)), value_of(e, v, t.iv), (unsigned)dtype_bytes(type));
    }
    tiles_end(e, &t);
}

/* The tiles of a strip behind its rows. */
void walk_strip_end(Emit *e, const NestNode *node)
{
    Loop t = tiles_begin(e, "columns", e->n_stages);
    carries_of(e, t.iv);
    nest_inside(e, node);
    tiles_end(e, &t);
}

/* The rows of all tiles of the strip. */
void walk_strip_stage(Emit *e, const NestNode *node)
{
    e->stage = node->number;
    e->rows_ahead = 1; /* the one that is read next, where no order says another */
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (!folds_here(e, r))
            continue;
        r->strip_folded = 0;
        e->strip.acc[i] = strip_at(e, r, l_i64(e, 0));
        if (!r->ordered)
            fill(e, r, e->strip.acc[i], e->strip.n);
    }
    Loop start = e->in_order ? tiles_begin(e, "start", e->stage) : (Loop){0};
    if (e->in_order) {
        carries_of(e, start.iv);
        carries_start(e);
        tiles_end(e, &start);
    }
    e->folded = all_folded(e);
    e->strip.from = e->folded.from;
    nest_inside(e, node);
    e->rows_ahead = 0;
}

/* Strips of whole tiles, as many as e->stretch has. */
void walk_strips(Emit *e, const NestNode *node)
{
    Stretch in = e->stretch;
    LV lanes = l_i64(e, e->lanes), most = l_i64(e, node->by / e->lanes);
    Loop l = loop_begin(e, in.from, in.to, most, "strips");
    e->before[LV_ROW] = l.guard;
    e->strip = (StripWalk){.acc = ARENA_ARRAY(e->arena, LV, e->n_red + 1), .extreme = ARENA_ARRAY(e->arena, bool, e->n_red + 1)};
    e->strip.n = l_min(e, most, l_sub(e, in.to, l.iv));
    e->strip.at = l_add(e, in.begin, l_mul(e, l.iv, lanes));
    uint32_t *slots = ARENA_ARRAY(e->arena, uint32_t, e->n_red + 1);
    for (uint32_t i = 0; i < e->n_red; i++) { /* a strip has one for each tile */
        slots[i] = e->red[i].slots;
        e->red[i].slots = 1;
        e->strip.extreme[i] = e->red[i].extreme;
    }
    nest_inside(e, node);
    for (uint32_t i = 0; i < e->n_red; i++) {
        e->red[i].slots = slots[i];
        e->red[i].extreme = e->strip.extreme[i];
    }
    loop_end(e, &l);
}

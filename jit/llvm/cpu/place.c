/*
 * Rows that are read where they lie, in packed products: windows of images.
 *
 * A convolution is a product of weights with windows of x, and each element of x is in as many windows as one has taps: packing them
 * copies x nine times for 3 x 3 taps, and takes about as long as multiplying by 64 channels. But places side by side lie side by side in x,
 * whatever the tap: where lanes run along the channels and the rows of a tile are such places, the micro-kernel reads
 *
 *     row r at step k of the sum:   first row + offset[k] + r * in_place
 *
 * One table of offsets serves all rows. That wants an index that is a sum of what depends on the rows and what depends on the step, and
 * tiles in which no row of the image ends. Where its length is no multiple of a tile's rows some tiles have a row less. Where that is not
 * enough the last tile begins earlier: it computes sums that the one before has, and stores the rest.
 *
 *     row of 14 places, tiles of 5     |0 1 2 3 4|5 6 7 8 9|10 11 12 13|
 *                tiles of 6            |0 1 2 3 4 5|6 7 8 9 10 11|
 *                                                      |8 9 10 11 12 13|
 *
 * A length that is an argument may be less than a tile's rows, or such that much is computed again: the micro-kernel is there for some
 * heights, and a launch takes one of them for all of its tiles. Tasks and sums are cut as if each tile had all its rows. Images
 * of a batch follow each other as more rows, so that what is packed, the weights, is packed for many.
 *
 * Where rows of the image are short, the taps of a window in the gradient of weights, a tile has several of them: each is found by itself.
 *
 * Of bf16, which is multiplied by pairs of steps (factor.c), a pair is read as one element, where its two lie side by side in x: in the gradient of
 * weights, whose steps are places.
 *
 * Channels that fill half a long vector, those of groups, are multiplied in vectors of that half (dot_lanes).
 *
 * Results that lie contiguous along the places are stored so: a tile's sums change places in registers first.
 */
#include "jit/llvm/cpu/contract.h"

#include "jit/launch_plan.h"

/* ---- tiles ---- */

void place_plan(const Emit *e, Contract *c)
{
    static const int64_t lower[] = {7, 5, 4, 2, 1};
    c->heights = 1;
    c->height[0] = c->rows;
    c->runs = 1;
    if (!c->in_place)
        return;
    (void)dot_places(&e->facts, c->dot.operand[ROW_SIDE], c->dot.axis[ROW_SIDE], &c->places);
    c->runs = dot_places_runs(&c->places, c->rows);
    for (size_t i = 0; i < sizeof lower / sizeof *lower && !c->places.fixed; i++)
        if (lower[i] < c->rows)
            c->height[c->heights++] = lower[i];
    c->lower = dot_places_lower(&c->places, c->rows);
    if (c->lower)
        c->height[c->heights++] = c->rows - 1;
}

bool place_whole(const Contract *c) { return dot_places_whole(&c->places, c->rows); }

static uint16_t length_node(Emit *e, const Contract *c)
{
    return launch_op(e->launch, LAUNCH_MAX, size_node(e, c->places.row), launch_const(e->launch, 1));
}

/* Rows of each tile: those that take a row of the image the least time, a tile's about as long as one row more, of 8 vectors at least, whose
 * additions do not wait for each other. */
static uint16_t height_node(Emit *e, const Contract *c)
{
    LaunchBuilder *b = e->launch;
    int64_t busy = 8 / (c->width / c->dot.lanes);
    uint16_t length = length_node(e, c), best = 0, least = 0;
    if (c->places.fixed)
        return launch_const(b, c->rows);
    for (int i = c->heights - 1; i >= 0; i--) {
        int64_t rows = c->height[i];
        uint16_t height = launch_const(b, rows), time = launch_const(b, (rows > busy ? rows : busy) + 1);
        time = launch_op(b, LAUNCH_MUL, launch_op(b, LAUNCH_CEIL_DIV, length, height), time);
        if (i < c->heights - 1) {
            uint16_t worse = launch_op(b, LAUNCH_MAX, launch_op(b, LAUNCH_LESS, least, time), launch_op(b, LAUNCH_LESS, length, height));
            height = launch_choose(b, worse, best, height);
            time = launch_choose(b, worse, least, time);
        }
        best = height;
        least = time;
    }
    return best;
}

uint16_t place_rows(Emit *e, const Contract *c, uint16_t rows)
{
    LaunchBuilder *b = e->launch;
    if (place_whole(c))
        return rows;
    uint16_t length = length_node(e, c), groups = launch_op(b, LAUNCH_CEIL_DIV, length, height_node(e, c));
    uint16_t tiles = launch_op(b, LAUNCH_MUL, launch_op(b, LAUNCH_CEIL_DIV, rows, length), groups);
    return launch_op(b, LAUNCH_MUL, tiles, launch_const(b, c->rows));
}

void place_sizes(Emit *e, Contract *c)
{
    if (place_whole(c))
        return;
    c->row_length = node_value(e, length_node(e, c));
    c->row_height = node_value(e, height_node(e, c));
    c->row_groups = l_ceil_div(e, c->row_length, c->row_height);
    LV tiles = l_mul(e, l_div(e, c->n[ROW_SIDE], c->row_length), c->row_groups);
    c->n[ROW_SIDE] = l_mul(e, tiles, l_i64(e, c->rows));
}

PlaceGroup place_group(Emit *e, const Contract *c)
{
    LV at = l_add(e, l_div(e, c->row0, l_i64(e, c->rows)), c->group), first = contract_first_row(e, c);
    if (place_whole(c))
        return (PlaceGroup){first, l_i64(e, c->rows), first, l_i64(e, c->rows)};
    LV row = l_div(e, at, c->row_groups), tile = l_mod(e, at, c->row_groups), in_row = l_mul(e, tile, c->row_height);
    if (c->lower) {
        LV before = l_sub(e, tile, l_sub(e, c->row_groups, l_i64(e, c->lower))); /* so many lower ones, where it is one of them */
        LV lower = LLVMBuildICmp(e->b, LLVMIntSGE, before, l_i64(e, 0), "");
        LV count = LLVMBuildSelect(e->b, lower, l_i64(e, c->rows - 1), l_i64(e, c->rows), "");
        in_row = l_sub(e, in_row, l_max(e, before, l_i64(e, 0)));
        first = l_add(e, l_mul(e, row, c->row_length), in_row);
        return (PlaceGroup){first, count, first, count};
    }
    LV count = l_min(e, c->row_height, l_sub(e, c->row_length, in_row));
    first = l_add(e, l_mul(e, row, c->row_length), in_row);
    return (PlaceGroup){l_add(e, first, l_sub(e, count, c->row_height)), c->row_height, first, count};
}

/* ---- reading ---- */

LV place_row(Emit *e, const Contract *c, LV row, LV k)
{
    const KInst *n = &e->k->inst.at[c->dot.operand[ROW_SIDE]];
    int lanes = e->lanes;
    lanes_change(e, 1);
    contract_row(e, c, row);
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    e->cur = LV_R;
    contract_k(e, k, false);
    LV at = address_of(e, l_memory(e, (DType)n->dtype), argument(e, n->arg), n->idx).ptr;
    level_close(e, LV_ROW, LV_ROW);
    lanes_change(e, lanes);
    return at;
}

void place_offsets(Emit *e, const Contract *c, LV k0, LV k1)
{
    LLVMTypeRef i64 = e->type[SC_I64];
    LV each = l_i64(e, c->dot.each), from = LLVMBuildPtrToInt(e->b, place_row(e, c, l_i64(e, 0), l_i64(e, 0)), i64, "");
    Loop l = loop_begin(e, k0, l_add(e, k1, l_i64(e, PLACE_AHEAD * c->dot.each)), each, "offset");
    LV at = LLVMBuildPtrToInt(e->b, place_row(e, c, l_i64(e, 0), l.iv), i64, "");
    LV to = l_gep(e, i64, l_gep_bytes(e, e->scratch, l_i64(e, c->rows_at)), l_div(e, l_sub(e, l.iv, k0), each));
    l_store(e, LLVMBuildSub(e->b, at, from, ""), to, 8);
    loop_end(e, &l);
}

/* ---- what follows the sums ---- */

int64_t place_stride(const Contract *c) { return c->row_lanes > c->dot.lanes ? c->row_lanes : c->dot.lanes; }

/* The sums [rows][width] as [width][place_stride], of which the last elements are any. */
static void turn(Emit *e, const Contract *c, LV sums)
{
    LLVMTypeRef element = LLVMGetElementType(c->vector);
    int64_t stride = place_stride(c);
    unsigned bytes = (unsigned)dtype_bytes(c->dot.acc);
    Loop l = loop_begin(e, l_i64(e, 0), l_i64(e, c->width), l_i64(e, c->dot.lanes), "turn");
    for (int64_t r = 0; r < stride; r += c->dot.lanes) {
        LV v[MAX_LANES];
        for (int64_t i = 0; i < c->dot.lanes; i++) {
            LV from = l_gep(e, element, sums, l_add(e, l.iv, l_i64(e, (r + i) * c->width)));
            v[i] = r + i < c->rows ? l_load(e, c->vector, from, bytes) : LLVMConstNull(c->vector);
        }
        tile_transpose(e, v, c->dot.lanes);
        for (int i = 0; i < c->dot.lanes; i++) {
            LV column = l_mul(e, l_add(e, l.iv, l_i64(e, i)), l_i64(e, stride));
            l_store(e, v[i], contract_slot(e, c, c->turned_at, l_add(e, column, l_i64(e, r))), bytes);
        }
    }
    loop_end(e, &l);
}

/* For each column of this tile, with lanes along the rows from `row` on, of which so many are there; `count` NULL: nobody asks which. */
static void each_column(Emit *e, const Contract *c, LV row, LV count, const char *name, PlaceColumnFn *body, const PlaceGroup *g)
{
    int tile_axis = e->tile_axis;
    uint8_t *level = e->level, *ix_level = e->ix_level;
    LV first = l_mul(e, c->tile, l_i64(e, c->width)), end = l_min(e, l_add(e, first, l_i64(e, c->width)), c->end[LANE_SIDE]);
    e->tile_axis = c->dot.axis[ROW_SIDE]; /* for what follows, until all is as it was */
    plan_levels(e);
    lanes_change(e, (int)c->row_lanes);
    e->cur = LV_ROW;
    contract_row(e, c, row);
    e->axis[e->tile_axis].stride = l_i64(e, 1);
    if (count && (c->row_lanes > c->rows || !place_whole(c)))
        tile_mask(e, count);
    else
        e->whole = l_const(e, SC_I1, 1, false);
    Loop j = loop_begin(e, first, end, l_i64(e, 1), name);
    level_open(e, LV_ROW);
    e->axis[c->dot.axis[LANE_SIDE]] = ix_uniform(j.iv);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    body(e, c, g, l_sub(e, j.iv, first));
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &j);
    mask_end(e);
    e->tile_axis = tile_axis;
    e->level = level;
    e->ix_level = ix_level;
}

/* What lies before the last row's line was asked for by the tile before. */
void place_ask(Emit *e, const Contract *c, PlaceColumnFn *ask)
{
    const PlaceGroup g = place_group(e, c);
    each_column(e, c, l_add(e, g.first, l_sub(e, g.count, l_i64(e, 1))), NULL, "ask", ask, &g);
}

static void store_column(Emit *e, const Contract *c, const PlaceGroup *g, LV column)
{
    LV at = l_add(e, l_mul(e, column, l_i64(e, place_stride(c))), l_sub(e, g->first, g->base));
    contract_stores(e, c, contract_load(e, c, contract_slot(e, c, c->turned_at, at)));
}

void place_epilogue(Emit *e, const Contract *c, const PlaceGroup *g)
{
    turn(e, c, contract_sums(e, c));
    each_column(e, c, g->first, g->count, "epilogue", store_column, g);
}

/* The plan of a product, its tasks, the walk over its nest with the loops that all ways share, packing, and what follows a sum. */
#include "jit/llvm/cpu/contract.h"
#include "jit/launch_plan.h"
#include "jit/panels.h"
#include "jit/rules.h"

/* ---- the plan ---- */

enum { COMBINED_AT_ONCE = 4 }; /* vectors of sums that are added side by side */

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Packed, of a number of rows that may vary: lower tiles, so that few rows are multiplied that are not there. Those of much fewer than half are
 * rarely needed, and take nearly as long, since each sum waits for the one before. */
static void lower_heights(Contract *c)
{
    enum { LEAST = 4, LEAST_OF_THREE = 8 };
    if (c->rows >= LEAST_OF_THREE)
        c->height[c->heights++] = (3 * c->rows + 3) / 4;
    if (c->rows >= LEAST)
        c->height[c->heights++] = c->rows / 2 + 1;
}

/* Do tasks follow each other by batch and rows? */
static bool band_axes(const Emit *e, const Contract *c)
{
    return !c->dot.sums_rows && e->n_x >= 2 && c->dot.axis[LANE_SIDE] == (int)e->n_x - 1 && c->dot.axis[ROW_SIDE] == (int)e->n_x - 2;
}

/* What follows from kernel and schedule. */
static void contract_plan(Emit *e, Contract *c)
{
    const Schedule *s = &e->schedule;
    *c = (Contract){.dot = dot_scheduled(&e->facts)};
    c->way = (Way)s->way;
    c->rows = s->tile_rows;
    c->width = s->tile_width;
    c->block_rows = s->task_rows;
    c->block_tiles = s->task_tiles;
    c->panels = s->panels;
    c->in_place = s->in_place;
    place_plan(e, c);
    if (c->way == WAY_PACKED && !c->in_place && c->dot.axis[ROW_SIDE] != NO_AXIS && !dot_is_const(&e->facts, c->dot.axis[ROW_SIDE]))
        lower_heights(c);
    bool packs = false;
    for (uint32_t i = 0; i < e->facts.n_products; i++) {
        const DotFacts one = dot_product(&e->facts, &c->dot, i);
        bool kept = dot_reads_panels(&e->facts, &one);
        c->some_kept |= kept;
        packs |= !kept;
    }
    c->kept = !packs;
    c->turned = dot_turned(&e->facts, &c->dot);
    c->row_lanes = dot_row_lanes(s);
    c->folds = c->dot.sums_rows && c->way == WAY_PACKED; /* a schedule may ask for another: its only phase is the whole sum */
    int64_t bytes = (int64_t)dtype_bytes(c->dot.acc), groups = (c->block_rows + c->rows - 1) / c->rows;
    c->one_tile = c->way == WAY_DIRECT || c->way == WAY_DOTS || (c->way == WAY_PACKED && c->dot.one_block);
    const bool splits = s->split != SPLIT_NEVER;
    int64_t sums = c->one_tile && !splits ? c->rows * c->width : groups * c->rows * c->block_tiles * c->width;
    c->most_steps = (c->dot.one_block ? round_up(c->dot.n_k, c->dot.lanes * c->dot.each) : c->dot.block) / c->dot.each;
    c->together = c->way == WAY_STRIPS ? STRIP_TASKS : 1;
    c->part = round_up(c->together * sums * bytes, splits ? COMBINED_AT_ONCE * e->bits / 8 : 64);
    c->panel_at = c->part + (c->way == WAY_PACKED ? c->dot.lanes * c->dot.lanes * bytes : 0);
    c->rows_at = c->panel_at + round_up(c->way == WAY_PACKED && packs ? panel_stride(c, c->width) * c->panels * bytes + PACK_SLACK : 0, 64);
    int64_t packed = c->in_place ? (c->most_steps + PLACE_AHEAD) * 8 : panel_stride(c, c->rows) * groups * bytes + PACK_SLACK;
    c->turned_at = c->bytes = c->rows_at + round_up(c->way == WAY_PACKED ? packed : 0, 64);
    if (c->turned)
        c->bytes += round_up((c->width * place_stride(c) + (place_whole(c) ? 0 : c->rows)) * bytes, 64);
    if (c->way == WAY_STRIPS) /* a block's sums */
        c->bytes += c->part;
    skip_plan(e, c);
    spans_plan(e, c, band_axes(e, c));
    for (int which = 0; which < FLAGS; which++) {
        c->flags_at[which] = c->bytes;
        c->bytes += round_up(skip_bytes(c, which), 64);
    }
    c->flips[c->way == WAY_PACKED ? ROW_SIDE : LANE_SIDE] = c->dot.flips;
    c->row_signed = c->dot.row_signed != c->flips[ROW_SIDE];
    c->starts_at = c->bytes;
    if (c->flips[ROW_SIDE])
        c->bytes += round_up(c->width * bytes, 64);
    c->vector = LLVMVectorType(e->type[dtype_info[c->dot.acc].scalar], (unsigned)c->dot.lanes);
}

static LV axis_or_one(Emit *e, int axis) { return axis == NO_AXIS ? l_i64(e, 1) : axis_size(e, (uint32_t)axis); }

/* Of all products, or of the only one. */
static void products_sizes(Emit *e, Contract *c)
{
    const uint32_t n = e->facts.n_products;
    c->product = ARENA_ARRAY(e->arena, OneProduct, n);
    c->tiles = l_i64(e, 0);
    for (uint32_t i = 0; i < n; i++) {
        OneProduct *one = &c->product[i];
        one->dot = dot_product(&e->facts, &c->dot, i);
        one->n = n == 1 ? c->n[LANE_SIDE] : axis_or_one(e, one->dot.axis[LANE_SIDE]);
        one->first = c->tiles;
        one->tiles = l_ceil_div(e, one->n, l_i64(e, c->width));
        one->points = n == 1 ? axes_product(e, 0, e->n_x) : l_mul(e, axes_product(e, 0, e->n_x - n), one->n);
        c->tiles = l_add(e, c->tiles, one->tiles);
    }
}

static void contract_sizes(Emit *e, Contract *c)
{
    for (int s = 0; s < SIDES; s++)
        c->n[s] = axis_or_one(e, c->dot.axis[s]);
    c->n[ROW_SIDE] = l_mul(e, c->n[ROW_SIDE], axis_or_one(e, c->dot.outer));
    if (c->in_place)
        place_sizes(e, c);
    c->n_k = axes_product(e, e->n_x, e->k->axes.n);
    products_sizes(e, c);
    c->row_blocks = l_ceil_div(e, c->n[ROW_SIDE], l_i64(e, c->block_rows));
    c->tile_blocks = l_ceil_div(e, c->tiles, l_i64(e, c->block_tiles));
    if (c->task_of != TASK_WHOLE) {
        c->k_blocks = l_max(e, l_ceil_div(e, c->n_k, l_i64(e, c->dot.block)), l_i64(e, 1));
        c->k_together = node_value(e, c->together_k);
        c->parts = argument(e, e->shared_arg);
    }
    memcpy(c->end, c->n, sizeof c->end);
    c->sums = e->scratch;
    if (e->stream)
        e->points[0] = c->product[0].points;
}

/* ---- small things ---- */

LV contract_slot(Emit *e, const Contract *c, int64_t offset, LV element)
{
    return l_gep(e, LLVMGetElementType(c->vector), l_gep_bytes(e, e->scratch, l_i64(e, offset)), element);
}

LV contract_load(Emit *e, const Contract *c, LV at)
{
    return l_load(e, l_type(e, c->dot.acc, true), at, (unsigned)dtype_bytes(c->dot.acc));
}

void contract_store(Emit *e, const Contract *c, LV v, LV at) { l_store(e, v, at, (unsigned)dtype_bytes(c->dot.acc)); }

void contract_anew(Emit *e, int level)
{
    for (; level < LV_COUNT; level++)
        e->scope[level] = ++e->scopes;
}

void contract_k(Emit *e, LV k, bool lanes)
{
    e->flat = k;
    e->axis[e->k->axes.n - 1] = (Ix){.base = k, .stride = lanes && e->lanes > 1 ? l_i64(e, 1) : NULL};
}

void contract_row(Emit *e, const Contract *c, LV row)
{
    if (c->dot.outer != NO_AXIS) {
        LV rows = axis_size(e, (uint32_t)c->dot.axis[ROW_SIDE]);
        e->axis[c->dot.outer] = ix_uniform(l_div(e, row, rows));
        row = l_mod(e, row, rows);
    }
    if (c->dot.axis[ROW_SIDE] != NO_AXIS)
        e->axis[c->dot.axis[ROW_SIDE]] = ix_uniform(row);
}

void contract_tile(Emit *e, const Contract *c, LV tile)
{
    int64_t n;
    if (e->tile_axis == NO_AXIS)
        return;
    LV at = l_mul(e, tile, l_i64(e, c->width));
    e->axis[e->tile_axis] = (Ix){.base = at, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = e->lanes == c->width};
    if (c->settled && c->left)
        tile_mask(e, c->left);
    else if (e->lanes > 1 && !c->settled && !(l_is_const(c->n[LANE_SIDE], &n) && n % c->width == 0))
        tile_mask(e, l_sub(e, c->n[LANE_SIDE], at));
    else
        e->whole = l_const(e, SC_I1, 1, false);
}

/* Of blocks that are tasks: [tiles][rows] of a task, whatever its groups. */
LV contract_sums(Emit *e, const Contract *c)
{
    if (c->task_of != TASK_WHOLE) {
        LV row = l_sub(e, contract_first_row(e, c), c->row0), at = l_mul(e, l_sub(e, c->tile, c->sums_tile), l_i64(e, c->block_rows));
        return l_gep(e, LLVMGetElementType(c->vector), c->sums, l_mul(e, l_add(e, at, row), l_i64(e, c->width)));
    }
    if (c->one_tile)
        return c->sums;
    LV n = l_add(e, l_mul(e, c->group, l_i64(e, c->together * c->block_tiles)), l_sub(e, c->tile, c->sums_tile));
    return l_gep(e, LLVMGetElementType(c->vector), c->sums, l_mul(e, n, l_i64(e, c->rows * c->width)));
}

LV contract_first_row(Emit *e, const Contract *c) { return l_add(e, c->row0, l_mul(e, c->group, c->group_rows)); }

void contract_stores(Emit *e, const Contract *c, LV v)
{
    Val sum = {.vec = e->lanes > 1};
    if (dtype_is_float(c->dot.acc))
        sum = cast_emit(e, c->dot.acc, c->dot.out, (Val){.v = v, .vec = sum.vec});
    else
        sum.v = LLVMBuildTruncOrBitCast(e->b, v, l_type(e, c->dot.out, true), "");
    value_set(e, c->dot.reduce, e->level[c->dot.reduce], sum);
    e->own = kernel_beside(e->k) & (c->dot.axis[LANE_SIDE] == NO_AXIS ? 0 : 1u << c->dot.axis[LANE_SIDE]);
    emit_stores(e, false, 0);
}

/* ---- loops ---- */

static void blocks(Emit *e, Contract *c, const NestNode *node)
{
    /* at least once: with no k at all the sums are zero */
    Loop l = loop_begin(e, l_i64(e, 0), l_max(e, c->n_k, l_i64(e, 1)), l_i64(e, node->by), "block");
    c->k0 = l.iv;
    c->k1 = l_min(e, l_add(e, l.iv, l_i64(e, node->by)), c->n_k);
    product_inside(e, c, node);
    loop_end(e, &l);
}

static void panels(Emit *e, Contract *c, const NestNode *node)
{
    Loop p = loop_begin(e, c->tile0, c->tile1, l_i64(e, c->panels), "panels");
    c->panel0 = p.iv;
    c->panel1 = l_min(e, l_add(e, p.iv, l_i64(e, c->panels)), c->tile1);
    product_inside(e, c, node);
    loop_end(e, &p);
}

typedef struct LanePanels {
    LV at;          /* the first of those that are packed, or read, at once, at the first step of the block */
    int64_t stride; /* from one to the next, in elements of the sums */
} LanePanels;

static LanePanels lane_panels(Emit *e, const Contract *c)
{
    const VRef operand = dot_uncast(e->k, c->dot.operand[LANE_SIDE]);
    PanelLayout l;
    if (!c->kept || !panel_layout_of(e->k, operand, &l))
        return (LanePanels){contract_slot(e, c, c->panel_at, l_i64(e, 0)), panel_stride(c, c->width)};
    LV at = l_add(e, l_mul(e, c->panel0, l_i64(e, l.steps * l.width * l.each)), l_mul(e, c->k0, l_i64(e, l.width)));
    for (uint32_t a = 0; a < e->n_x; a++)
        if (l.axes >> a & 1)
            at = l_add(e, at, l_mul(e, e->axis[a].base, l_i64(e, l.stride[a])));
    int64_t bytes = (int64_t)dtype_bytes((DType)e->k->inst.at[operand].dtype);
    return (LanePanels){l_gep_bytes(e, argument(e, e->k->inst.at[operand].arg), l_mul(e, at, l_i64(e, bytes))), l.steps * l.width};
}

/* That of the tile that the walk is at. */
static LV lane_panel(Emit *e, const Contract *c)
{
    const LanePanels p = lane_panels(e, c);
    return l_gep(e, LLVMGetElementType(c->vector), p.at, l_mul(e, l_sub(e, c->tile, c->panel0), l_i64(e, p.stride)));
}

static void tiles(Emit *e, Contract *c, const NestNode *node)
{
    Loop j = loop_begin(e, c->panel0, c->panel1, l_i64(e, 1), "tile");
    c->tile = j.iv;
    if (c->flips[ROW_SIDE])
        pack_starts(e, c, lane_panel(e, c), contract_slot(e, c, c->starts_at, l_i64(e, 0)));
    (c->way == WAY_DIRECT && c->task_of != TASK_COMBINED ? direct_tile : product_inside)(e, c, node);
    loop_end(e, &j);
}

static void groups(Emit *e, Contract *c, const NestNode *node)
{
    Loop g = loop_begin(e, l_i64(e, 0), c->groups, l_i64(e, 1), "group");
    c->group = g.iv;
    c->first = c->way == WAY_PACKED || c->task_of == TASK_COMBINED ? NULL : contract_first_row(e, c);
    product_inside(e, c, node);
    loop_end(e, &g);
}

/* What is in one of several products, with those tiles of the task that are its own. */
static void product(Emit *e, Contract *c, const NestNode *node)
{
    const OneProduct *of = &c->product[node->number];
    Contract one = *c;
    int tile_axis = e->tile_axis;
    uint8_t *level = e->level, *ix_level = e->ix_level;
    LV points = e->points[0];
    one.dot = of->dot;
    one.kept = dot_reads_panels(&e->facts, &of->dot);
    one.n[LANE_SIDE] = one.end[LANE_SIDE] = of->n;
    one.sums_tile = l_sub(e, c->tile0, of->first);
    one.tile0 = one.panel0 = l_max(e, one.sums_tile, l_i64(e, 0));
    one.tile1 = one.panel1 = l_min(e, l_sub(e, c->tile1, of->first), of->tiles);
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, one.tile0, one.tile1, ""), "product");
    e->tile_axis = of->dot.axis[LANE_SIDE]; /* for what is in here */
    e->points[0] = e->stream ? of->points : NULL;
    plan_levels(e);
    contract_anew(e, LV_ROW);
    product_inside(e, &one, node);
    contract_anew(e, LV_ROW);
    e->tile_axis = tile_axis;
    e->points[0] = points;
    e->level = level;
    e->ix_level = ix_level;
    if_end(e, &some);
}

static void last(Emit *e, Contract *c, const NestNode *node)
{
    If last = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGE, c->k1, c->n_k, ""), "last");
    product_inside(e, c, node);
    if_end(e, &last);
}

/* What follows the sums of this tile, row by row; or, turned, column by column. */
static void sums_of_tile(Emit *e, Contract *c)
{
    if ((c->way == WAY_DIRECT || c->way == WAY_DOTS) && c->task_of == TASK_WHOLE)
        thin_sums_end(e, c);
    PlaceGroup g = {.first = contract_first_row(e, c), .base = contract_first_row(e, c)};
    if (c->in_place)
        g = place_group(e, c);
    if (c->turned) {
        place_epilogue(e, c, &g);
        return;
    }
    LV sums = contract_sums(e, c), end = l_add(e, g.first, c->in_place ? g.count : c->group_rows);
    end = c->in_place ? end : l_min(e, end, c->end[ROW_SIDE]);
    lanes_change(e, (int)(c->settled ? c->lanes : c->width));
    e->cur = LV_ROW;
    contract_tile(e, c, c->tile);
    Loop m = loop_begin(e, g.first, end, l_i64(e, 1), "epilogue");
    level_open(e, LV_ROW);
    contract_row(e, c, m.iv);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    LV at = l_mul(e, l_sub(e, m.iv, g.base), l_i64(e, sums_apart(c)));
    contract_stores(e, c, contract_load(e, c, l_gep(e, LLVMGetElementType(c->vector), sums, at)));
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &m);
    mask_end(e);
}

/* Is a sum stored and nothing else? Then code of its own for each row is little. */
static bool only_stored(const Emit *e, const Contract *c)
{
    bool only = e->facts.n_products == 1;
    for (VRef v = c->dot.reduce + 1; v < e->k->inst.n && only; v++)
        only = e->k->inst.at[v].kind == KI_STORE && e->k->inst.at[v].a == c->dot.reduce;
    return only;
}

/* All rows of a group, from the registers that their sums are in. */
static void store_group(Emit *e, Contract *c)
{
    LV first = contract_first_row(e, c);
    lanes_change(e, (int)c->lanes);
    e->cur = LV_ROW;
    contract_tile(e, c, c->tile);
    for (int64_t r = 0; r < c->rows; r++) {
        level_open(e, LV_ROW);
        contract_row(e, c, l_add(e, first, l_i64(e, r)));
        pin(e, LV_ROW);
        level_open(e, LV_TILE);
        contract_stores(e, c, l_load(e, l_type(e, c->dot.acc, true), c->total[r], 0));
        level_close(e, LV_ROW, LV_ROW);
    }
    mask_end(e);
}

static void sums_where(Emit *e, Contract *c, LV condition, const int8_t *says)
{
    If i = if_begin(e, condition, "sums");
    e->says = says;
    sums_of_tile(e, c);
    e->says = NULL;
    if_end(e, &i);
}

/* Whether sums are read is asked point by point only where some are and some are not. */
static void sums_of_wanted(Emit *e, Contract *c)
{
    LV some = skip_wanted(e, c, true), others = skip_wanted(e, c, false);
    if (LLVMIsConstant(some) && LLVMIsConstant(others) && c->span_arg[SPAN_BESIDE] == NO_SPAN) {
        sums_of_tile(e, c);
        return;
    }
    sums_where(e, c, LLVMBuildNot(e->b, some, ""), c->says[false]);
    if (c->span_arg[SPAN_BESIDE] != NO_SPAN) { /* what is read there is not known to be wanted where sums are */
        LV outside = spans_beside(e, c), inside = LLVMBuildNot(e->b, outside, "");
        e->zero = &c->beside;
        sums_where(e, c, LLVMBuildAnd(e->b, some, outside, ""), NULL);
        e->zero = NULL;
        some = LLVMBuildAnd(e->b, some, inside, "");
        others = LLVMBuildOr(e->b, others, outside, "");
    }
    sums_where(e, c, LLVMBuildNot(e->b, others, ""), c->says[true]);
    sums_where(e, c, LLVMBuildAnd(e->b, some, others, ""), NULL);
}

static void sum_points(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    if (c->wanted != VREF_NONE)
        sums_of_wanted(e, c);
    else
        (c->even && only_stored(e, c) ? store_group : sums_of_tile)(e, c);
}

/* ---- packed ---- */

static void pack_rows(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    const LV whole = LLVMBuildICmp(e->b, LLVMIntEQ, l_sub(e, c->k1, c->k0), l_i64(e, c->dot.block), "");
    if (c->zeros && c->dot.along[ROW_SIDE]) {
        c->zero_groups = skip_pack_rows(e, c, whole);
        return;
    }
    if (c->span_arg[SPAN_ROWS] != NO_SPAN) {
        c->zero_groups = skip_pack_columns(e, c, whole);
        return;
    }
    const Panels panels = {c->row0, c->groups, c->group_rows, c->rows, contract_slot(e, c, c->rows_at, l_i64(e, 0))};
    pack_panels(e, c, ROW_SIDE, &panels, c->k0, c->k1);
    if (c->zeros)
        c->zero_groups = skip_find_zeros(e, c, l_i64(e, 0), c->groups, whole);
}

static void places(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    place_offsets(e, c, c->k0, c->k1);
}

static void pack_lanes(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    LV count = l_sub(e, c->panel1, c->panel0);
    const LanePanels p = lane_panels(e, c); /* they are looked through below, also where none is packed */
    If wanted;
    if (c->wanted != VREF_NONE)
        wanted = if_begin(e, skip_look(e, c), "pack");
    const LV width = l_i64(e, c->width);
    if (!c->kept)
        pack_panels(e, c, LANE_SIDE, &(Panels){l_mul(e, c->panel0, width), count, width, c->width, p.at}, c->k0, c->k1);
    if (c->wanted != VREF_NONE)
        if_end(e, &wanted);
    if (c->zeros)
        skip_find_finite(e, c, p.at, p.stride, count, c->zero_groups);
}

/* The lowest height of which so many groups have these rows. */
static LV height_for(Emit *e, const Contract *c, LV rows, LV groups)
{
    LV height = l_i64(e, c->rows);
    for (int i = 1; i < c->heights; i++) {
        LV lower = l_i64(e, c->height[i]);
        height = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, l_mul(e, lower, groups), rows, ""), lower, height, "");
    }
    return height;
}

/* Of each point of a tile something else, where it lies, contiguous along what lanes run along then: a store, or a load of what follows the sum. */
static bool of_tile(const Emit *e, const Contract *c, const KInst *n)
{
    const int along = c->dot.axis[c->turned ? ROW_SIDE : LANE_SIDE], across = c->dot.axis[c->turned ? LANE_SIDE : ROW_SIDE];
    if ((n->kind != KI_STORE && n->kind != KI_LOAD) || n->pred != VREF_NONE || index_through_value(e->k, n->idx))
        return false;
    bool sums = false;
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        sums |= kidx_uses_axis(e->k, n->idx, a);
    return !sums && kidx_uses_axis(e->k, n->idx, (uint32_t)across) && index_walk(e->k, n->idx, (uint32_t)along) == INDEX_STEPS;
}

/* Not of a band, whose rows are in the caches. */
static bool asks_for_tile(const Emit *e, const Contract *c)
{
    bool some = false;
    for (VRef v = 0; v < e->k->inst.n && c->dot.axis[ROW_SIDE] != NO_AXIS && e->tile_axis != NO_AXIS; v++)
        some |= of_tile(e, c, &e->k->inst.at[v]);
    return some && c->task_of == TASK_WHOLE && (!c->in_place || c->turned) && !c->dot.band_row && !c->dot.band_rows && !c->dot.sums_rows;
}

static void ask_here(Emit *e, const Contract *c)
{
    e->ahead_far = true; /* a power of two apart, they share a set of the first cache */
    for (VRef v = 0; v < e->k->inst.n; v++) {
        const KInst *n = &e->k->inst.at[v];
        if (!of_tile(e, c, n))
            continue;
        const DType t = (DType)(n->kind == KI_STORE ? e->k->inst.at[n->a].dtype : n->dtype);
        prefetch_at(e, t, address_of(e, l_memory(e, t), argument(e, n->arg), n->idx), 0);
    }
    e->ahead_far = false;
}

static void ask_column(Emit *e, const Contract *c, const PlaceGroup *g, LV column)
{
    (void)g, (void)column;
    ask_here(e, c);
}

static void ask_rows(Emit *e, const Contract *c)
{
    LV first = contract_first_row(e, c), end = l_min(e, l_add(e, first, c->group_rows), c->end[ROW_SIDE]);
    lanes_change(e, (int)c->width);
    e->cur = LV_ROW;
    e->axis[e->tile_axis] = (Ix){.base = l_mul(e, c->tile, l_i64(e, c->width)), .stride = l_i64(e, 1)};
    Loop m = loop_begin(e, first, end, l_i64(e, 1), "ask");
    level_open(e, LV_ROW);
    contract_row(e, c, m.iv);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    ask_here(e, c);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &m);
}

/*
 * What follows the sums of a tile goes to rows far apart, which the hardware does not follow: they are asked for while its last block is multiplied.
 * (Zen 4, one thread, us, off and on: 1024 cubed i8 5700 -> 5360, f32 21030 -> 20850, 512 cubed f64 5611 -> 5462; with AVX2 512 cubed f32
 * 3173 -> 3077. Cascade Lake, one thread, ms: 3x3 of 64 channels at 56, 32 images, whose channels lie apart, 73.1 -> 68.4.)
 */
static void ask_for_tile(Emit *e, const Contract *c)
{
    const int lanes = e->lanes, cur = e->cur;
    if (!asks_for_tile(e, c))
        return;
    If last;
    if (!c->dot.one_block)
        last = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGE, c->k1, c->n_k, ""), "ask");
    contract_anew(e, LV_ROW);
    if (c->turned)
        place_ask(e, c, ask_column);
    else
        ask_rows(e, c);
    contract_anew(e, LV_ROW);
    e->cur = cur;
    lanes_change(e, lanes);
    if (!c->dot.one_block)
        if_end(e, &last);
}

/* `at`: how many-eth of the packed panels the tile is. */
static void multiply_tile(Emit *e, const Contract *c, LV at)
{
    ask_for_tile(e, c);
    LV offsets = l_gep_bytes(e, e->scratch, l_i64(e, c->rows_at));
    PlaceGroup place = {0};
    if (c->in_place)
        place = place_group(e, c);
    LV rows = c->in_place ? place_row(e, c, place.base, l_i64(e, 0))
                          : contract_slot(e, c, c->rows_at, l_mul(e, c->group, l_i64(e, panel_stride(c, c->rows))));
    LV panel = lane_panel(e, c);
    LV first = c->task_of == TASK_BLOCK ? LLVMConstInt(e->type[SC_I1], 1, 0) : LLVMBuildICmp(e->b, LLVMIntEQ, c->k0, l_i64(e, 0), ""),
       sums = contract_sums(e, c), zero = NULL;
    If some, none;
    if (c->zeros) {
        zero = skip_is_zero(e, c, at, c->group);
        some = if_begin(e, LLVMBuildNot(e->b, zero, ""), "some");
        if (c->dot.along[ROW_SIDE] || c->span_arg[SPAN_ROWS] != NO_SPAN)
            skip_pack_zeros(e, c, c->group, rows);
    }
    LV args[7 + PLACE_RUNS] = {rows, panel, sums, contract_steps_of(e, c, l_sub(e, c->k1, c->k0)),
                               LLVMBuildZExt(e->b, first, e->type[SC_I64], "")};
    unsigned n_args = 5;
    if (c->in_place)
        args[n_args++] = offsets;
    for (int64_t i = 1; i < c->runs; i++)
        args[n_args++] = place_row(e, c, l_add(e, place.base, l_i64(e, i * c->places.length)), l_i64(e, 0));
    if (c->flips[ROW_SIDE])
        args[n_args++] = contract_slot(e, c, c->starts_at, l_i64(e, 0));
    LV height = place.height;
    if (c->heights > 1 && !c->in_place) {
        LV left = l_min(e, l_sub(e, c->end[ROW_SIDE], contract_first_row(e, c)), c->group_rows);
        height = height_for(e, c, left, l_i64(e, 1));
    }
    for (int i = 0; i < c->heights; i++) {
        If this;
        if (c->heights > 1)
            this = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, height, l_i64(e, c->height[i]), ""), "height");
        LLVMBuildCall2(e->b, LLVMGlobalGetValueType(c->multiply[i]), c->multiply[i], args, n_args, "");
        if (c->heights > 1)
            if_end(e, &this);
    }
    if (c->zeros) {
        if_end(e, &some);
        none = if_begin(e, zero, "none");
        skip_add_zeros(e, c, sums, first);
        if_end(e, &none);
    }
}

static void multiply(Emit *e, Contract *c, const NestNode *node)
{
    (void)node; /* what is in it is what the function does */
    LV at = l_sub(e, c->tile, c->panel0);
    If wanted;
    if (c->wanted != VREF_NONE)
        wanted = if_begin(e, skip_wanted(e, c, true), "wanted");
    multiply_tile(e, c, at);
    if (c->wanted != VREF_NONE)
        if_end(e, &wanted);
}

/* ---- blocks that are tasks ---- */

/* Where this block's sums of the result are: those of a phase lie one after the other, behind them what all before have come to. */
static LV part_at(Emit *e, const Contract *c, LV result, LV block)
{
    LV n = l_add(e, l_mul(e, result, l_add(e, c->k_together, l_i64(e, 1))), block);
    return l_gep_bytes(e, c->parts, l_mul(e, n, l_i64(e, c->part)));
}

/* The sums of a task's blocks are added to those of the blocks before, in order, some vectors at once. */
static void combine(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    const LLVMTypeRef element = LLVMGetElementType(c->vector);
    const LV first = LLVMBuildICmp(e->b, LLVMIntEQ, c->k0, l_i64(e, 0), "");
    const LV n = l_ceil_div(e, l_sub(e, c->k1, c->k0), l_i64(e, c->dot.block)), from = LLVMBuildZExt(e->b, first, e->type[SC_I64], "");
    const unsigned align = (unsigned)(e->bits / 8);
    LV sum[COMBINED_AT_ONCE], before = LLVMBuildSelect(e->b, first, c->parts, c->sums, "");
    Loop l =
        loop_begin(e, l_i64(e, 0), l_i64(e, c->part / (int64_t)dtype_bytes(c->dot.acc)), l_i64(e, COMBINED_AT_ONCE * c->dot.lanes), "sum");
    for (int i = 0; i < COMBINED_AT_ONCE; i++) {
        sum[i] = l_alloca(e, c->vector, 0, "sum");
        l_store(e, l_load(e, c->vector, l_gep(e, element, before, l_add(e, l.iv, l_i64(e, i * c->dot.lanes))), align), sum[i], 0);
    }
    Loop b = loop_begin(e, from, n, l_i64(e, 1), "block");
    LV at = l_gep_bytes(e, c->parts, l_mul(e, b.iv, l_i64(e, c->part)));
    for (int i = 0; i < COMBINED_AT_ONCE; i++) {
        LV more = l_load(e, c->vector, l_gep(e, element, at, l_add(e, l.iv, l_i64(e, i * c->dot.lanes))), align);
        l_store(e, dot_merge(e, c->dot.acc, l_load(e, c->vector, sum[i], 0), more), sum[i], 0);
    }
    loop_end(e, &b);
    for (int i = 0; i < COMBINED_AT_ONCE; i++)
        l_store(e, l_load(e, c->vector, sum[i], 0), l_gep(e, element, c->sums, l_add(e, l.iv, l_i64(e, i * c->dot.lanes))), align);
    loop_end(e, &l);
}

/* ---- the walk ---- */

static void start(Emit *e, Contract *c, const NestNode *node) { (c->way == WAY_STRIPS ? strip_start : thin_start)(e, c, node); }
static void merge(Emit *e, Contract *c, const NestNode *node) { (c->way == WAY_STRIPS ? strip_merge : thin_merge)(e, c, node); }

/* What is in MULTIPLY, and in a loop of steps, is done by whoever does these. */
static ProductFn *const product_kind[NEST_KINDS] = {
    [NEST_BLOCKS] = blocks,
    [NEST_PRODUCT] = product,
    [NEST_PANELS] = panels,
    [NEST_TILE] = tiles,
    [NEST_GROUP] = groups,
    [NEST_LAST] = last,
    [NEST_DOT_COMBINE] = combine,
    [NEST_SUM_POINTS] = sum_points,
    [NEST_PACK_ROWS] = pack_rows,
    [NEST_PLACES] = places,
    [NEST_PACK_LANES] = pack_lanes,
    [NEST_KEPT_LANES] = pack_lanes,
    [NEST_MULTIPLY] = multiply,
    [NEST_DOT_START] = start,
    [NEST_STEPS] = direct_steps,
    [NEST_SQUARES_OF_K] = dots_steps,
    [NEST_STRIPS_OF_K] = strip_steps,
    [NEST_DOT_MERGE] = merge,
};

void product_inside(Emit *e, Contract *c, const NestNode *node)
{
    for (NestRef at = node->child; at != NEST_NONE; at = e->nest.node.at[at].next)
        product_kind[e->nest.node.at[at].kind](e, c, &e->nest.node.at[at]);
}

/* ---- tasks ---- */

static bool of_batch(const Contract *c, int a) { return a != c->dot.axis[ROW_SIDE] && a != c->dot.axis[LANE_SIDE] && a != c->dot.outer; }

/* Batch coordinates: the axes that are neither rows nor lanes, row-major. `rest` is less than they have points. */
static void seek_batch(Emit *e, const Contract *c, LV rest)
{
    int a = (int)(e->n_x - e->facts.n_products), first = 0;
    while (first < a && !of_batch(c, first))
        first++;
    for (; a >= first; a--) {
        if (!of_batch(c, a))
            continue;
        LV size = axis_size(e, (uint32_t)a);
        e->axis[a] = ix_uniform(a == first ? rest : l_mod(e, rest, size));
        rest = a == first ? rest : l_div(e, rest, size);
    }
}

/* The rows of the task are evened out over its groups, as far as there are heights for it. */
static LV rows_of_group(Emit *e, const Contract *c)
{
    return c->in_place || c->heights < 2 ? l_i64(e, c->rows) : height_for(e, c, l_sub(e, c->row1, c->row0), c->groups);
}

/* Blocks as tasks: those of two phases go over the next ones of k. Of the last there may be fewer. */
static void task_of_blocks(Emit *e, Contract *c, LV phase, LV result, LV block)
{
    const LV size = l_i64(e, c->dot.block), first = l_mul(e, LLVMBuildLShr(e->b, phase, l_i64(e, 1), ""), c->k_together),
             end = l_add(e, first, c->k_together);
    if (c->task_of == TASK_BLOCK) {
        c->k0 = l_mul(e, l_add(e, first, block), size);
        c->k1 = l_min(e, l_add(e, c->k0, size), c->n_k);
        c->sums = part_at(e, c, result, block);
    } else {
        c->k0 = l_mul(e, first, size);
        c->k1 = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, end, c->k_blocks, ""), l_mul(e, end, size),
                                l_max(e, c->n_k, l_i64(e, 1)), "");
        c->sums = part_at(e, c, result, c->k_together);
        c->parts = part_at(e, c, result, l_i64(e, 0));
    }
}

/* Where the walk begins: all tiles, all groups, all of k or the block of this phase. */
static void task_begin(Emit *e, Contract *c, LV phase)
{
    c->panel0 = c->sums_tile = c->tile0;
    c->panel1 = c->tile1;
    c->group = l_i64(e, 0);
    c->groups = l_ceil_div(e, l_sub(e, c->row1, c->row0), l_i64(e, c->rows));
    c->group_rows = rows_of_group(e, c);
    if (c->task_of == TASK_WHOLE) {
        c->k0 = c->folds ? l_mul(e, phase, l_i64(e, c->dot.block)) : l_i64(e, 0);
        c->k1 = c->folds ? l_min(e, l_add(e, c->k0, l_i64(e, c->dot.block)), c->n_k) : c->n_k;
    }
    if (c->way == WAY_DOTS)
        thin_sums(e, c);
    if (c->way == WAY_STRIPS)
        lanes_change(e, (int)c->width);
}

/* Tasks [lo, hi) of a phase, in a function that has been opened. */
static void tasks(Emit *e, const Contract *plan, NestRef phase)
{
    const LV number = LLVMGetParam(e->fn, 1);
    Contract of = *plan, *c = &of;
    NestRef from = c->folds ? e->nest.node.at[phase].child : phase; /* a phase is a block where it folds */
    const NestNode *node = &e->nest.node.at[phase];
    c->task_of = !node->split ? TASK_WHOLE : node->number ? TASK_COMBINED : TASK_BLOCK;
    contract_sizes(e, c);
    Loop t = loop_begin(e, LLVMGetParam(e->fn, 2), LLVMGetParam(e->fn, 3), l_i64(e, 1), "task");
    e->before[LV_TASK] = t.guard;
    level_open(e, LV_ROW);
    LV result = c->task_of == TASK_BLOCK ? l_div(e, t.iv, c->k_together) : t.iv;
    LV rest = l_div(e, result, c->tile_blocks), batch = l_div(e, rest, c->row_blocks);
    c->tile0 = l_mul(e, l_sub(e, result, l_mul(e, rest, c->tile_blocks)), l_i64(e, c->block_tiles));
    c->row0 = l_mul(e, l_sub(e, rest, l_mul(e, batch, c->row_blocks)), l_i64(e, c->block_rows));
    c->row1 = l_min(e, l_add(e, c->row0, l_i64(e, c->block_rows)), c->n[ROW_SIDE]);
    LV tasks_here = l_i64(e, 1);
    if (c->together > 1) {
        LV of_row = l_sub(e, c->tile_blocks, l_sub(e, t.iv, l_mul(e, rest, c->tile_blocks))), left = l_sub(e, t.end, t.iv);
        t.step = tasks_here = l_min(e, l_min(e, of_row, left), l_i64(e, c->together));
    }
    c->tile1 = l_min(e, l_add(e, c->tile0, l_mul(e, tasks_here, l_i64(e, c->block_tiles))), c->tiles);
    if (c->dot.band_rows)
        c->end[ROW_SIDE] = c->row1;
    if (c->folds)
        c->sums = l_gep_bytes(e, argument(e, e->shared_arg), l_mul(e, t.iv, l_i64(e, c->part)));
    If some;
    if (c->task_of != TASK_WHOLE) {
        task_of_blocks(e, c, number, result, l_sub(e, t.iv, l_mul(e, result, c->k_together)));
        some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, c->k0, l_max(e, c->n_k, l_i64(e, 1)), ""), "some");
    }
    seek_batch(e, c, batch);
    if (c->spans) /* blocks of rows are tasks or phases */
        spans_begin(e, c, c->folds ? l_add(e, l_mul(e, batch, l_ceil_div(e, c->n_k, l_i64(e, c->dot.block))), number) : rest);
    task_begin(e, c, number);
    product_inside(e, c, &e->nest.node.at[nest_task_loop(&e->nest, from, c->task_of == TASK_BLOCK ? NEST_BLOCKS : NEST_TASK_TILES)]);
    if (c->task_of != TASK_WHOLE)
        if_end(e, &some);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &t);
    stream_end(e);
    LLVMBuildRetVoid(e->b);
}

static LV phase_function(Emit *e, const Contract *c, NestRef phase)
{
    LV fn = function_add(e, e->nest.node.at[phase].number ? "combined" : "blocks", false, 3);
    function_open(e, fn, LLVMGetParam(fn, 4));
    tasks(e, c, phase);
    return fn;
}

static void call_phase(Emit *e, LV phase, LV condition)
{
    LV args[5] = {e->block};
    If i = if_begin(e, condition, "phase");
    for (unsigned p = 1; p < 5; p++)
        args[p] = LLVMGetParam(e->fn, p);
    LLVMBuildCall2(e->b, LLVMGlobalGetValueType(phase), phase, args, 5, "");
    if_end(e, &i);
}

static void emit_contract_run(Emit *e, const Contract *c)
{
    LV run = function_add(e, "run", true, 3);
    NestRef first = e->nest.phase;
    if (e->schedule.split == SPLIT_NEVER) {
        function_open(e, run, LLVMGetParam(run, 4));
        tasks(e, c, first);
        return;
    }
    LV even = phase_function(e, c, first), odd = phase_function(e, c, e->nest.node.at[first].next);
    function_open(e, run, LLVMGetParam(run, 4));
    LV is_odd = LLVMBuildTrunc(e->b, LLVMGetParam(run, 1), e->type[SC_I1], "");
    call_phase(e, even, LLVMBuildNot(e->b, is_odd, ""));
    call_phase(e, odd, is_odd);
    LLVMBuildRetVoid(e->b);
}

/* Nodes of the launch that more than one place asks for. */
typedef struct Counts {
    uint16_t columns, results; /* of all products; tasks that these make */
    uint16_t blocks, together; /* of k; those of a phase, where they are tasks */
} Counts;

static Counts counts(Emit *e, const Contract *c)
{
    Counts out;
    LaunchBuilder *b = e->launch;
    uint16_t one = launch_const(b, 1), n[SIDES], batch = one;
    for (int s = 0; s < SIDES; s++)
        n[s] = c->dot.axis[s] == NO_AXIS ? one : axis_node(e, (uint32_t)c->dot.axis[s]);
    if (c->dot.outer != NO_AXIS)
        n[ROW_SIDE] = launch_op(b, LAUNCH_MUL, n[ROW_SIDE], axis_node(e, (uint32_t)c->dot.outer));
    for (uint32_t a = 0; a < e->n_x - e->facts.n_products + 1; a++)
        if ((int)a != c->dot.axis[ROW_SIDE] && (int)a != c->dot.axis[LANE_SIDE] && (int)a != c->dot.outer)
            batch = launch_op(b, LAUNCH_MUL, batch, axis_node(e, a));
    n[ROW_SIDE] = c->in_place ? place_rows(e, c, n[ROW_SIDE]) : n[ROW_SIDE];
    uint16_t tiles = tasks_node(e, n[LANE_SIDE], c->width);
    out.columns = n[LANE_SIDE];
    for (uint32_t i = 1; i < e->facts.n_products; i++) {
        uint16_t more = axis_node(e, (uint32_t)dot_product(&e->facts, &c->dot, i).axis[LANE_SIDE]);
        out.columns = launch_op(b, LAUNCH_ADD, out.columns, more);
        tiles = launch_op(b, LAUNCH_ADD, tiles, tasks_node(e, more, c->width));
    }
    uint16_t rows = tasks_node(e, n[ROW_SIDE], c->block_rows);
    out.results = launch_op(b, LAUNCH_MUL, batch, launch_op(b, LAUNCH_MUL, rows, tasks_node(e, tiles, c->block_tiles)));
    out.blocks = launch_op(b, LAUNCH_MAX, tasks_node(e, axes_node(e, e->n_x, e->k->axes.n), c->dot.block), one);
    uint16_t room = launch_const(b, rule_limit(e->bits, LIMIT_block_sums) / c->part);
    out.together = launch_op(b, LAUNCH_MIN, out.blocks, launch_op(b, LAUNCH_MAX, launch_op(b, LAUNCH_CEIL_DIV, room, out.results), one));
    return out;
}

static void plan_launch(Emit *e, const Contract *c, const Counts *n)
{
    const bool split = e->schedule.split != SPLIT_NEVER;
    LaunchBuilder *b = e->launch;
    uint16_t one = launch_const(b, 1), k = axes_node(e, e->n_x, e->k->axes.n), points = axes_node(e, 0, e->n_x);
    if (e->facts.n_products > 1)
        points = launch_op(b, LAUNCH_MUL, axes_node(e, 0, e->n_x - e->facts.n_products), n->columns);
    for (int odd = 0; odd <= split; odd++) {
        LaunchPhase *phase = launch_phase(b, "", 0);
        phase->tasks = odd || !split ? n->results : launch_op(b, LAUNCH_MUL, n->results, n->together);
        phase->points = launch_op(b, LAUNCH_MUL, odd ? n->together : k, points);
        phase->local = launch_const(b, c->bytes);
    }
    const uint16_t phases = launch_op(b, LAUNCH_MUL, launch_op(b, LAUNCH_CEIL_DIV, n->blocks, n->together), launch_const(b, 2)),
                   parts = launch_op(b, LAUNCH_MUL, n->results, split ? launch_op(b, LAUNCH_ADD, n->together, one) : one);
    b->count = split ? phases : c->folds ? n->blocks : one;
    b->scratch = launch_op(b, LAUNCH_MUL, parts, launch_const(b, split || c->folds ? c->part : 0));
    b->together = (uint8_t)c->together;
    b->spans = c->spans;
    b->rows = launch_const(b, c->folds ? c->dot.block : band_axes(e, c) && !c->in_place && !split ? c->block_rows : 0);
}

void emit_contract(Emit *e)
{
    Contract c;
    contract_plan(e, &c);
    if (c.way == WAY_PACKED) {
        for (int i = 0; i < c.heights; i++)
            c.multiply[i] = tile_function(e, &c, c.height[i]);
        bool along = c.dot.along[ROW_SIDE];
        for (uint32_t i = 0; i < e->facts.n_products; i++)
            along |= dot_product(&e->facts, &c.dot, i).along[LANE_SIDE];
        c.square = along ? square_function(e, &c) : NULL;
    }
    const Counts n = counts(e, &c);
    c.together_k = n.together;
    emit_contract_run(e, &c);
    plan_launch(e, &c, &n);
}

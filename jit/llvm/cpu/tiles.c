/*
 * Tiles of lanes: the points of a row, or of a stretch of it, `lanes` at a time; the last ones, which fill no tile, under a mask or one by one.
 * Which loops a row is cut into says the nest.
 */
#include "jit/llvm/build.h"
#include "jit/llvm/emit.h"

/* Points of the axes that lanes run along, for lanes along x. */
static LV tile_row(Emit *e)
{
    LV last = axis_size(e, (uint32_t)e->tile_axis);
    return e->schedule.joined ? l_mul(e, axis_size(e, e->n_x - 2), last) : last;
}

/* The pieces that tiles of a row lie in, or NULL: those of another axis, or none. */
static const NestNode *pieces_along(const Emit *e, const NestNode *row)
{
    const NestNode *inner = &e->nest.node.at[row->child];
    return inner->kind == NEST_PIECES && inner->axes >> e->tile_axis & 1 ? inner : NULL;
}

LV tiles_of_row(Emit *e, const NestNode *row)
{
    const NestNode *pieces = pieces_along(e, row);
    LV n = l_i64(e, 0), from, to;
    if (!pieces)
        return l_ceil_div(e, tile_row(e), l_i64(e, e->lanes));
    for (NestRef p = pieces->child; p != NEST_NONE; p = e->nest.node.at[p].next) {
        piece_begin(e, e->nest.node.at[p].number, &from, &to);
        n = l_add(e, n, l_ceil_div(e, l_sub(e, to, from), l_i64(e, e->lanes)));
    }
    piece_end(e);
    return n;
}

uint16_t tiles_node(Emit *e, const NestNode *tiles)
{
    const NestNode *piece = &e->nest.node.at[tiles->parent];
    if (piece->kind == NEST_PIECE && piece->axes & tiles->axes)
        return pieces_node(e, tiles->by);
    return tasks_node(e, axes_node(e, (uint32_t)__builtin_ctz(tiles->axes), e->n_x), tiles->by);
}

/* How far tiles are past multiples of the lane count, of which the first is at n. */
static int64_t tiles_past(const Emit *e, LV n)
{
    int64_t c;
    return e->lanes == 1 ? 0 : l_is_const(n, &c) && c >= 0 ? c % e->lanes : UNALIGNED;
}

/* The mask of a tile with `left` elements to its end, and whether that is all of it. Only the last tile computes its mask, aside. */
void tile_mask(Emit *e, LV left)
{
    e->whole = LLVMBuildICmp(e->b, LLVMIntSGE, left, l_i64(e, e->lanes), "");
    e->left = left;
    LLVMBasicBlockRef from[2] = {LLVMGetInsertBlock(e->b), l_block(e, "last")}, join = l_block(e, "");
    l_unlikely(e, LLVMBuildCondBr(e->b, LLVMBuildNot(e->b, e->whole, ""), from[1], join));
    l_at(e, from[1]);
    LV lanes = l_iota(e, e->type[SC_I64]), masks[2] = {l_const(e, SC_I1, 1, true)};
    masks[1] = LLVMBuildICmp(e->b, LLVMIntULT, lanes, l_splat(e, left), "");
    LLVMBuildBr(e->b, join);
    l_at(e, join);
    e->mask = LLVMBuildPhi(e->b, LLVMTypeOf(masks[0]), "mask");
    LLVMAddIncoming(e->mask, masks, from, 2);
}

void mask_end(Emit *e) { e->mask = e->whole = e->left = NULL; }

/* full: where whole tiles end in the row, whose size is `size`. */
Passes passes_begin(Emit *e, LV from, LV to, LV full, LV size, const char *name)
{
    Passes p = {.pass = l_block(e, "pass"), .full = l_max(e, from, l_min(e, full, to)), .to = to};
    LLVMBasicBlockRef first = LLVMGetInsertBlock(e->b);
    LV yes = LLVMConstInt(e->type[SC_I1], 1, 0);
    p.branch = LLVMBuildBr(e->b, p.pass);
    l_at(e, p.pass);
    p.from = LLVMBuildPhi(e->b, e->type[SC_I64], "from");
    p.whole = LLVMBuildPhi(e->b, e->type[SC_I1], "whole");
    LLVMAddIncoming(p.from, &from, &first, 1);
    LLVMAddIncoming(p.whole, &yes, &first, 1);
    e->whole = p.whole;
    e->left = l_unknown_one(e, l_sub(e, size, full));
    e->mask = l_lane_mask(e, LLVMBuildSelect(e->b, p.whole, l_i64(e, e->lanes), e->left, ""));
    LV end = LLVMBuildSelect(e->b, p.whole, p.full, to, "");
    p.tiles = loop_begin(e, p.from, end, l_i64(e, e->lanes), name);
    return p;
}

void passes_end(Emit *e, Passes *p)
{
    loop_end(e, &p->tiles);
    LLVMBasicBlockRef last = LLVMGetInsertBlock(e->b), exit = l_block(e, "");
    LV no = LLVMConstInt(e->type[SC_I1], 0, 0), more = LLVMBuildICmp(e->b, LLVMIntSLT, p->full, p->to, "");
    l_unlikely(e, LLVMBuildCondBr(e->b, LLVMBuildAnd(e->b, p->whole, more, ""), p->pass, exit));
    LLVMAddIncoming(p->from, &p->full, &last, 1);
    LLVMAddIncoming(p->whole, &no, &last, 1);
    l_at(e, exit);
    mask_end(e);
}

void tile_begin(Emit *e, LV at, int64_t past)
{
    level_open(e, LV_TILE);
    Ix lanes = {.base = at, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = past != UNALIGNED, .past = past};
    e->axis[e->tile_axis] = lanes;
    if (e->schedule.joined) {
        IRef size = e->k->axes.at[e->n_x - 1].size;
        LV count = l_max(e, axis_size(e, e->n_x - 1), l_i64(e, 1));
        e->joint = lanes;
        for (uint32_t rest = 0; rest < 2; rest++) /* nobody asks for them where rows repeat */
            e->axis[e->n_x - 2 + rest] = e->repeated ? (Ix){0} : ix_divide(e, lanes, count, size, rest);
    }
    if (e->split)
        count_x(e);
}

void tile_end(Emit *e)
{
    e->joint.base = NULL;
    repeat_next(e);
    level_close(e, LV_TILE, LV_ROW);
}

void tile(Emit *e, const NestNode *node, LV at, int64_t past)
{
    tile_begin(e, at, past);
    if (e->overlap) /* its folds do that, but one that nobody reads is not there */
        pin(e, LV_TILE);
    for (NestRef inner = node->child; inner != NEST_NONE; inner = e->nest.node.at[inner].next)
        if (e->nest.node.at[inner].kind != NEST_STRIPS)
            nest_emit(e, inner);
    tile_end(e);
}

/* What is left of a row, known how much, by smaller and smaller tiles. */
static void tail_of_halves(Emit *e, const NestNode *node, LV at, LV end)
{
    int64_t left = 0;
    l_is_const(l_sub(e, end, at), &left);
    for (int64_t lanes = node->by / 2; lanes >= 1; lanes /= 2) {
        if (!(left & lanes))
            continue;
        lanes_change(e, (int)lanes);
        tile(e, node, at, UNALIGNED);
        at = l_add(e, at, l_i64(e, lanes));
    }
    lanes_change(e, (int)node->by);
}

/* The same without lanes. */
static void tail_of_elements(Emit *e, const NestNode *node, LV at, LV end)
{
    Loop l = loop_begin(e, at, end, l_i64(e, 1), "element");
    lanes_change(e, 1);
    tile(e, node, l.iv, 0);
    loop_end(e, &l);
    lanes_change(e, (int)node->by);
}

/* A tile of windows, of either code that a choice has; whole: it is inside, or else an edge cuts its row's tiles alone. */
static void tile_known(Emit *e, const NestNode *node, LV at, bool inside, LV choice, int64_t past)
{
    for (int is = 0; is < (choice ? 2 : 1); is++) {
        If i = {0};
        if (choice)
            i = if_begin(e, is ? choice : LLVMBuildNot(e->b, choice, ""), "choice");
        e->says = e->edges->says[!inside][is];
        tile(e, node, at, past);
        e->says = NULL;
        if (choice)
            if_end(e, &i);
    }
}

/* The tiles [from, to), the last of which may be no whole one: those that are inside, and the others under a mask. Of these most are in rows
 * that no edge cuts: they have code of their own, too, which asks for edges along the lanes alone. The last one may begin earlier, which makes it
 * whole, and most often inside. */
static void tiles_of_windows(Emit *e, const NestNode *node, LV from, LV to, LV end, bool row, int64_t past)
{
    const bool earlier = node->tail == NEST_TAIL_EARLIER;
    int64_t size;
    Loop l = loop_begin(e, from, to, l_i64(e, e->lanes), "tile");
    if (row)
        e->before[LV_ROW] = l.guard;
    level_open(e, LV_TILE); /* what a row's coordinates make is needed by all of its tiles, so it stands before them */
    LV at = earlier ? l_max(e, l_min(e, l.iv, l_sub(e, end, l_i64(e, e->lanes))), l_i64(e, 0)) : l.iv;
    LV left = l_sub(e, end, at), in = tile_is_inside(e, at, false), in_row = tile_is_inside(e, at, true);
    LV choice = e->edges->choice == VREF_NONE ? NULL : value(e, e->edges->choice).v;
    if (choice)
        value_forget(e, e->edges->choice); /* where it is known it is another value */
    level_close(e, LV_TILE, LV_ROW);
    if (node->tail == NEST_TAIL_NONE || (earlier && l_is_const(end, &size) && size >= e->lanes))
        left = NULL;
    if (left)
        in = LLVMBuildAnd(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, left, l_i64(e, e->lanes), ""), in, "");
    If inside = if_begin(e, in, "inside");
    tile_known(e, node, at, true, choice, past);
    if_end(e, &inside);
    If edge = if_begin(e, LLVMBuildNot(e->b, in, ""), "edge");
    int64_t always;
    e->mask = left ? l_lane_mask(e, left) : NULL; /* as many points as there are */
    if (!l_is_const(in_row, &always)) {
        If beside = if_begin(e, in_row, "beside");
        tile_known(e, node, at, false, choice, past);
        if_end(e, &beside);
        If corner = if_begin(e, LLVMBuildNot(e->b, in_row, ""), "corner");
        tile(e, node, at, past);
        if_end(e, &corner);
    } else {
        tile(e, node, at, past);
    }
    mask_end(e);
    if_end(e, &edge);
    loop_end(e, &l);
}

/* Is a value in this index that each tile reads for itself? */
static bool place_of_tile(const Emit *e, IRef i)
{
    const Idx *x = &e->k->idx.at[i];
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD)
        return place_of_tile(e, x->a) || place_of_tile(e, x->b);
    return x->kind == IX_VALUE && e->level[x->a] >= LV_TILE;
}

/* The store that is all a body does, and the load whose value it stores as it is; false: it is not like that. */
static bool is_copy(const Emit *e, const KInst **store, const KInst **load)
{
    VRef v = 0;
    while (e->k->inst.at[v].kind != KI_STORE)
        v++;
    *store = &e->k->inst.at[v];
    for (v = (*store)->a; v != VREF_NONE && e->k->inst.at[v].kind == KI_OP;)
        v = piece_side(e, &e->k->inst.at[v]);
    *load = v == VREF_NONE ? NULL : &e->k->inst.at[v];
    return *load && (*load)->kind == KI_LOAD && ((*load)->pred == VREF_NONE || piece_says(e, (*load)->pred) == 1) &&
           !place_of_tile(e, (*load)->idx) && !place_of_tile(e, (*store)->idx);
}

/* Tiles [j0, last) of a row that is only copied, together: the tile from which on others are left. */
static LV tiles_copied(Emit *e, LV begin, LV j0, LV last, int64_t past)
{
    const KInst *store, *load;
    if (!is_copy(e, &store, &load))
        return j0;
    LV lanes = l_i64(e, e->lanes);
    LLVMTypeRef element = l_memory(e, (DType)load->dtype);
    LV bytes = l_mul(e, l_mul(e, l_sub(e, last, j0), lanes), l_i64(e, (int64_t)dtype_bytes((DType)load->dtype)));
    tile_begin(e, l_add(e, begin, l_mul(e, j0, lanes)), past);
    Address to = address_of(e, element, argument(e, store->arg), store->idx),
            from = address_of(e, element, argument(e, load->arg), load->idx);
    LV done = copy_host(e, to, from, bytes);
    tile_end(e);
    return done ? LLVMBuildSelect(e->b, done, last, j0, "") : j0;
}

static LV strips_pay(Emit *e) { return LLVMBuildICmp(e->b, LLVMIntSGE, e->flat_n, l_i64(e, e->order.lanes), ""); }

/* Tiles of a stretch of the row whose coordinates are set. */
void walk_tiles(Emit *e, const NestNode *node)
{
    Stretch in = e->stretch;
    bool row = !in.begin, guarded = !row, strips = e->nest.node.at[node->child].kind == NEST_STRIPS;
    LV begin = row ? l_i64(e, 0) : in.begin, end = row ? tile_row(e) : in.end, j0 = in.from, j1 = in.to;
    LV size = l_sub(e, end, begin), lanes = l_i64(e, e->lanes);
    LV full = l_div(e, size, lanes); /* tiles without a mask */
    int64_t past = node->tail == NEST_TAIL_EARLIER ? UNALIGNED : tiles_past(e, begin);
    repeat_from(e, l_add(e, begin, l_mul(e, j0, lanes)));
    if (node->inside) {
        tiles_of_windows(e, node, l_add(e, begin, l_mul(e, j0, lanes)), l_add(e, begin, l_mul(e, j1, lanes)), end, row, past);
        return;
    }
    LV last = node->tail != NEST_TAIL_NONE && (strips || node->whole == NEST_WHOLE) ? l_min(e, j1, full) : j1;
    if (strips) { /* but for few rows, where it is not known how many there are */
        LV to = node->whole == NEST_WHOLE_SHORT ? LLVMBuildSelect(e->b, strips_pay(e), last, j0, "") : last;
        e->stretch = (Stretch){.begin = begin, .from = j0, .to = to};
        nest_emit(e, node->child);
        j0 = to;
    }
    if (node->tail == NEST_TAIL_PASSES) {
        LV from = l_add(e, begin, l_mul(e, j0, lanes)), to = l_add(e, begin, l_mul(e, j1, lanes));
        Passes p = passes_begin(e, from, to, l_add(e, begin, l_mul(e, full, lanes)), end, "tile");
        if (row && !strips)
            e->before[LV_ROW] = p.branch;
        tile(e, node, p.tiles.iv, past);
        passes_end(e, &p);
        return;
    }
    bool copies = e->schedule.copy && node->whole == NEST_WHOLE && llvm_host_copies(e->options);
    if (copies && row && !strips)
        pin(e, LV_ROW);
    if (copies)
        j0 = tiles_copied(e, begin, j0, last, past);
    if (node->whole != NEST_WHOLE_NONE) {
        Loop l = loop_begin(e, l_add(e, begin, l_mul(e, j0, lanes)), l_add(e, begin, l_mul(e, last, lanes)), lanes, "tile");
        if (row && !strips && !copies)
            e->before[LV_ROW] = l.guard;
        tile(e, node, l.iv, past);
        loop_end(e, &l);
    }
    guarded |= strips || node->whole != NEST_WHOLE_NONE;
    if (node->tail == NEST_TAIL_NONE)
        return;
    If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, j1, full, ""), "tile_tail");
    if (!guarded)
        e->before[LV_ROW] = i.branch;
    LV at = l_add(e, begin, l_mul(e, full, lanes));
    if (node->tail == NEST_TAIL_SCALAR) {
        tail_of_elements(e, node, at, end);
    } else if (node->tail == NEST_TAIL_HALVES) {
        tail_of_halves(e, node, at, end);
    } else {
        Place place = row ? level_enter(e, LV_TASK) : (Place){.cur = e->cur}; /* all rows end with as many */
        e->mask = l_lane_mask(e, row ? l_mod(e, tile_row(e), lanes) : l_sub(e, end, at));
        level_leave(e, place);
        e->whole = NULL;
        tile(e, node, at, past);
        mask_end(e);
    }
    if_end(e, &i);
}

/* One after another along the lanes: each has the tiles of the row that lie in it. Of another axis: the row is in one of them, or each has rows. */
void walk_pieces(Emit *e, const NestNode *node)
{
    Stretch row = e->stretch;
    bool along = node->axes >> e->tile_axis & 1;
    e->stretch.passed = l_i64(e, 0);
    if (along)
        pin(e, LV_ROW);
    for (NestRef p = node->child; p != NEST_NONE; p = e->nest.node.at[p].next) {
        LV passed = e->stretch.passed;
        e->stretch = row;
        e->stretch.passed = passed;
        nest_emit(e, p);
    }
    piece_end(e);
}

static void piece_along(Emit *e, const NestNode *node, LV begin, LV end)
{
    LV first = e->stretch.passed;
    Place place = level_enter(e, LV_TASK);
    LV n = l_ceil_div(e, l_sub(e, end, begin), l_i64(e, e->lanes)), next = l_add(e, first, n);
    level_leave(e, place);
    LV a = l_max(e, l_sub(e, e->stretch.from, first), l_i64(e, 0)), b = l_min(e, l_sub(e, e->stretch.to, first), n);
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, a, b, ""), "piece");
    e->stretch = (Stretch){.begin = begin, .end = end, .from = a, .to = b, .passed = next};
    nest_inside(e, node);
    if_end(e, &some);
    e->stretch.passed = next;
}

void walk_piece_rows(Emit *e, const NestNode *node)
{
    Loop rows = loop_begin(e, e->band.from, e->band.to, l_i64(e, 1), "piece");
    level_open(e, LV_ROW);
    e->axis[__builtin_ctz(node->axes)] = ix_uniform(rows.iv);
    nest_inside(e, node);
    loop_end(e, &rows);
}

void walk_piece(Emit *e, const NestNode *node)
{
    LV from, to;
    piece_begin(e, node->number, &from, &to);
    if (e->nest.node.at[node->child].kind == NEST_PIECE_ROWS) {
        e->band = (Band){.from = from, .to = to};
        nest_inside(e, node);
        return;
    }
    if (node->axes >> e->tile_axis & 1) {
        piece_along(e, node, from, to);
        return;
    }
    LV at = e->axis[__builtin_ctz(node->axes)].base;
    LV in = LLVMBuildAnd(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, at, from, ""), LLVMBuildICmp(e->b, LLVMIntSLT, at, to, ""), "");
    If here = if_begin(e, in, "piece");
    level_open(e, LV_ROW); /* what another piece has computed for its rows is not here */
    nest_inside(e, node);
    if_end(e, &here);
}

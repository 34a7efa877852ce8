/*
 * Tiles of lanes: the points of a row, or of a stretch of it, `lanes` at a time; the last ones, which fill no tile, under a mask or one by one.
 * Which loops a row is cut into (strips, pieces) is decided here for all walks of loops.c.
 */
#include "jit/llvm/build.h"

static bool in_pieces(const Emit *e, bool tiles) { return e->pieces && (pieces_axis(e->pieces) == (uint32_t)e->tile_axis) == tiles; }

LV tile_row(Emit *e)
{
    LV last = axis_size(e, (uint32_t)e->tile_axis);
    return e->schedule.joined ? l_mul(e, axis_size(e, e->n_x - 2), last) : last;
}

LV tiles_of_row(Emit *e)
{
    LV n = l_i64(e, 0), from, to;
    if (!in_pieces(e, true))
        return l_ceil_div(e, tile_row(e), l_i64(e, e->lanes));
    for (uint32_t p = 0; p < pieces_count(e->pieces); p++)
        if (piece_begin(e, p, &from, &to))
            n = l_add(e, n, l_ceil_div(e, l_sub(e, to, from), l_i64(e, e->lanes)));
    piece_end(e);
    return n;
}

uint16_t tiles_node(Emit *e)
{
    if (in_pieces(e, true))
        return pieces_node(e, e->lanes);
    uint32_t axis = (uint32_t)e->tile_axis;
    return tasks_node(e, e->schedule.joined ? axes_node(e, e->n_x - 2, e->n_x) : axis_node(e, axis), e->lanes);
}

bool no_tail(const Emit *e, LV n)
{
    int64_t c;
    return e->lanes == 1 || (l_is_const(n, &c) && c % e->lanes == 0);
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

void tile(Emit *e, LV at, bool aligned, PointBody *body, uint32_t stage)
{
    level_open(e, LV_TILE);
    Ix lanes = {.base = at, .stride = e->lanes > 1 ? l_i64(e, 1) : NULL, .aligned = aligned};
    e->axis[e->tile_axis] = lanes;
    if (e->schedule.joined) {
        IRef size = e->k->axes.at[e->n_x - 1].size;
        LV count = l_max(e, axis_size(e, e->n_x - 1), l_i64(e, 1));
        e->joint = lanes;
        for (uint32_t rest = 0; rest < 2; rest++)
            e->axis[e->n_x - 2 + rest] = ix_divide(e, lanes, count, size, rest);
    }
    if (e->split)
        count_x(e);
    body(e, stage);
    e->joint.base = NULL;
    level_close(e, LV_TILE, LV_ROW);
}

/* What is left of a row, without masks: where its length is known smaller and smaller tiles, else element by element. */
static void tail_of_elements(Emit *e, LV at, LV end, PointBody *body, uint32_t stage)
{
    int all = e->lanes;
    int64_t left;
    if (l_is_const(l_sub(e, end, at), &left) && !e->schedule.joined) {
        for (int lanes = all / 2; lanes >= 1; lanes /= 2) {
            if (!(left & lanes))
                continue;
            lanes_change(e, lanes);
            tile(e, at, false, body, stage);
            at = l_add(e, at, l_i64(e, lanes));
        }
    } else {
        Loop l = loop_begin(e, at, end, l_i64(e, 1), "element");
        lanes_change(e, 1);
        tile(e, l.iv, true, body, stage);
        loop_end(e, &l);
    }
    lanes_change(e, all);
}

static LV strips_pay(Emit *e) { return LLVMBuildICmp(e->b, LLVMIntSGE, e->flat_n, l_i64(e, e->order.lanes), ""); }

/* Tiles [j0, j1) of the points [begin, end) of the row whose coordinates are set. `row`: what belongs to the row is put in front of them. */
static void tiles(Emit *e, LV begin, LV end, LV j0, LV j1, bool row, PointBody *body, uint32_t stage)
{
    LV size = l_sub(e, end, begin), lanes = l_i64(e, e->lanes);
    LV full = l_div(e, size, lanes); /* tiles without a mask */
    bool tail = !no_tail(e, size), guarded = !row, aligned = no_tail(e, begin), strips = e->schedule.strip && !e->split;
    int64_t c;
    bool known = l_is_const(e->flat_n, &c) || e->in_order;
    if (tail && e->schedule.body == BODY_ONCE && !strips) {
        LV from = l_add(e, begin, l_mul(e, j0, lanes)), to = l_add(e, begin, l_mul(e, j1, lanes));
        Passes p = passes_begin(e, from, to, l_add(e, begin, l_mul(e, full, lanes)), end, "tile");
        if (row)
            e->before[LV_ROW] = p.branch;
        tile(e, p.tiles.iv, aligned, body, stage);
        passes_end(e, &p);
        return;
    }
    if (!(l_is_const(full, &c) && c == 0)) {
        LV last = tail ? l_min(e, j1, full) : j1;
        if (strips) { /* but for few rows, where it is not known how many there are */
            LV most = l_i64(e, e->schedule.strip), to = known ? last : LLVMBuildSelect(e->b, strips_pay(e), last, j0, "");
            Loop l = loop_begin(e, j0, to, most, "strips");
            e->before[LV_ROW] = l.guard;
            strip_emit(e, l_add(e, begin, l_mul(e, l.iv, lanes)), l_min(e, most, l_sub(e, to, l.iv)));
            loop_end(e, &l);
            j0 = to;
        }
        if (!strips || !known) {
            Loop l = loop_begin(e, l_add(e, begin, l_mul(e, j0, lanes)), l_add(e, begin, l_mul(e, last, lanes)), lanes, "tile");
            if (row && !strips)
                e->before[LV_ROW] = l.guard;
            tile(e, l.iv, aligned, body, stage);
            loop_end(e, &l);
        }
        guarded = true;
    }
    if (!tail)
        return;
    If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, j1, full, ""), "tile_tail");
    if (!guarded)
        e->before[LV_ROW] = i.branch;
    LV at = l_add(e, begin, l_mul(e, full, lanes));
    if (e->schedule.tail == TAIL_SCALAR) {
        tail_of_elements(e, at, end, body, stage);
    } else {
        e->mask = l_lane_mask(e, l_sub(e, end, at));
        e->whole = NULL;
        tile(e, at, aligned, body, stage);
        mask_end(e);
    }
    if_end(e, &i);
}

/* Tiles [j0, j1) of a row whose pieces lie one after another along the lanes. */
static void tiles_in_pieces(Emit *e, LV j0, LV j1, PointBody *body, uint32_t stage)
{
    LV first = l_i64(e, 0), from, to;
    pin(e, LV_ROW);
    for (uint32_t p = 0; p < pieces_count(e->pieces); p++) {
        if (!piece_begin(e, p, &from, &to))
            continue;
        Place place = level_enter(e, LV_TASK);
        LV n = l_ceil_div(e, l_sub(e, to, from), l_i64(e, e->lanes)), next = l_add(e, first, n);
        level_leave(e, place);
        LV a = l_max(e, l_sub(e, j0, first), l_i64(e, 0)), b = l_min(e, l_sub(e, j1, first), n);
        If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, a, b, ""), "piece");
        tiles(e, from, to, a, b, false, body, stage);
        if_end(e, &some);
        first = next;
    }
    piece_end(e);
}

/* Tiles [j0, j1) of a row, which is in one of the pieces of another axis. */
static void tiles_of_piece(Emit *e, LV j0, LV j1, PointBody *body, uint32_t stage)
{
    LV at = e->axis[pieces_axis(e->pieces)].base, from, to;
    for (uint32_t p = 0; p < pieces_count(e->pieces); p++) {
        if (!piece_begin(e, p, &from, &to))
            continue;
        LV in = LLVMBuildAnd(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, at, from, ""), LLVMBuildICmp(e->b, LLVMIntSLT, at, to, ""), "");
        If here = if_begin(e, in, "piece");
        level_open(e, LV_ROW); /* what another piece has computed for its rows is not here */
        tiles(e, l_i64(e, 0), tile_row(e), j0, j1, true, body, stage);
        if_end(e, &here);
    }
    piece_end(e);
}

bool pieces_in_task(const Emit *e)
{
    enum { FEW_TILES = 16 };
    int64_t rows, size;
    return e->pieces && e->n_x >= 2 && e->tile_axis == (int)e->n_x - 1 && pieces_axis(e->pieces) == e->n_x - 2 &&
           kidx_is_const(e->k, e->k->axes.at[e->n_x - 2].size, &rows) && kidx_is_const(e->k, e->k->axes.at[e->n_x - 1].size, &size) &&
           rows <= FEW_TILES && size <= FEW_TILES * e->lanes && rows * ((size + e->lanes - 1) / e->lanes) <= FEW_TILES;
}

/* All rows of each piece, one piece after another. */
static void tiles_of_pieces(Emit *e, PointBody *body, uint32_t stage)
{
    LV first = l_i64(e, 0), from, to;
    for (uint32_t p = 0; p < pieces_count(e->pieces); p++) {
        if (!piece_begin(e, p, &from, &to))
            continue;
        Loop rows = loop_begin(e, from, to, l_i64(e, 1), "piece");
        level_open(e, LV_ROW);
        e->axis[pieces_axis(e->pieces)] = ix_uniform(rows.iv);
        tiles(e, first, tile_row(e), first, tiles_of_row(e), true, body, stage);
        loop_end(e, &rows);
    }
    piece_end(e);
}

void tiles_all(Emit *e, LV j0, LV j1, PointBody *body, uint32_t stage)
{
    if (in_pieces(e, true))
        tiles_in_pieces(e, j0, j1, body, stage);
    else if (pieces_in_task(e))
        tiles_of_pieces(e, body, stage);
    else if (e->pieces)
        tiles_of_piece(e, j0, j1, body, stage);
    else
        tiles(e, l_i64(e, 0), tile_row(e), j0, j1, true, body, stage);
}

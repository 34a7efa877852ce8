/*
 * Transposed inputs (the directive `square`): of a block of rows, whose points lie side by side in an input where those of a row lie far apart, a
 * square of registers is loaded along them, one register for each lane of the tile, and changes places there:
 *
 *     memory      lane 0   a b c d        row 0   a e i m
 *                 lane 1   e f g h   ->   row 1   b f j n       a whole register of each row at once
 *                 ...
 *
 * Every line is read once and whole. Lane by lane each is read again for every row, and where lanes lie a multiple of 4096 bytes apart, the
 * first cache has lost it until then (1024 x 1024 f32: 2.5 times as long).
 */
#include "jit/llvm/cpu/contract.h"

/* The point of the other axes but the lanes'; what belongs to it has a place of its own. */
static void row_open(Emit *e, uint32_t across, LV row)
{
    level_open(e, LV_ROW);
    e->axis[across] = ix_uniform(row);
    pin(e, LV_ROW);
}

/* Tiles of `side` rows of load i; false: lanes have no distance. */
static bool square_load(Emit *e, uint32_t i, LV *v)
{
    const KInst *n = &e->k->inst.at[i];
    LLVMTypeRef element = l_memory(e, (DType)n->dtype);
    Address at = address_of(e, element, argument(e, n->arg), n->idx);
    if (at.many || !at.stride)
        return false;
    for (int l = 0; l < e->lanes; l++) {
        LV from = l_gep(e, element, at.ptr, l_mul(e, index_wide(e, at.stride), l_i64(e, l)));
        v[l] = l_load(e, l_vec(e, element), from, (unsigned)dtype_bytes((DType)n->dtype));
    }
    tile_transpose(e, v, e->lanes);
    return true;
}

static void square_row(Emit *e, const NestNode *node, uint32_t row)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        DType t = (DType)e->k->inst.at[i].dtype;
        if (e->squares[i])
            value_set(e, i, LV_TILE, (Val){.v = l_from_memory(e, t, e->squares[i][row]), .vec = true});
    }
    nest_inside(e, node);
}

/* The square of `side` rows from `first` on. */
static void square(Emit *e, const NestNode *node, LV first)
{
    int64_t side = node->by;
    uint32_t across = (uint32_t)__builtin_ctz(node->axes);
    LV at = e->band.tile;
    row_open(e, across, first);
    level_open(e, LV_TILE);
    e->axis[e->tile_axis] = (Ix){.base = at, .stride = l_i64(e, 1), .aligned = true};
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        LV *v = ARENA_ARRAY(e->arena, LV, (size_t)side);
        e->squares[i] = in_squares(&e->facts, i, side, (uint32_t)e->tile_axis, across) && square_load(e, i, v) ? v : NULL;
    }
    level_close(e, LV_TILE, LV_ROW);
    for (int64_t r = 0; r < side; r++) {
        row_open(e, across, l_add(e, first, l_i64(e, r)));
        tile_begin(e, at, 0);
        square_row(e, node, (uint32_t)r);
        tile_end(e);
    }
}

/* A whole tile of a whole band: a loop over its squares, whose code is long to compile, and whose addresses go by no loop (band_tasks). */
void walk_squares(Emit *e, const NestNode *node)
{
    e->squares = ARENA_ARRAY(e->arena, LV *, e->k->inst.n + 1);
    Loop l = loop_begin(e, l_i64(e, 0), l_i64(e, node->points), l_i64(e, node->by), "square");
    square(e, node, l_add(e, e->band.from, l.iv));
    loop_end(e, &l);
}

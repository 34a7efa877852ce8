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
 * tiles in which no row of the image ends: of as many rows as divide its length. Images of a batch follow each other as more rows, so
 * that what is packed, the weights, is packed for many.
 *
 * Results that lie contiguous along the places are stored so: a tile's sums change places in registers first.
 */
#include "jit/llvm/cpu/contract.h"

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
    LV from = LLVMBuildPtrToInt(e->b, place_row(e, c, c->row0, l_i64(e, 0)), i64, "");
    Loop l = loop_begin(e, k0, l_add(e, k1, l_i64(e, PLACE_AHEAD)), l_i64(e, 1), "offset");
    LV at = LLVMBuildPtrToInt(e->b, place_row(e, c, c->row0, l.iv), i64, "");
    LV to = l_gep(e, i64, l_gep_bytes(e, e->scratch, l_i64(e, c->rows_at)), l_sub(e, l.iv, k0));
    l_store(e, LLVMBuildSub(e->b, at, from, ""), to, 8);
    loop_end(e, &l);
}

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

void place_epilogue(Emit *e, const Contract *c, LV first)
{
    int tile_axis = e->tile_axis, lanes = (int)c->row_lanes;
    uint8_t *level = e->level, *ix_level = e->ix_level;
    LV sums = contract_sums(e, c), column = l_mul(e, c->tile, l_i64(e, c->width)),
       end = l_min(e, l_add(e, column, l_i64(e, c->width)), c->end[LANE_SIDE]);
    turn(e, c, sums);
    e->tile_axis = c->dot.axis[ROW_SIDE]; /* for what follows, until all is as it was */
    plan_levels(e);
    lanes_change(e, lanes);
    e->cur = LV_ROW;
    contract_row(e, c, first);
    e->axis[e->tile_axis].stride = l_i64(e, 1);
    if (lanes > c->rows)
        tile_mask(e, l_i64(e, c->rows));
    else
        e->whole = l_const(e, SC_I1, 1, false);
    Loop j = loop_begin(e, column, end, l_i64(e, 1), "epilogue");
    level_open(e, LV_ROW);
    e->axis[c->dot.axis[LANE_SIDE]] = ix_uniform(j.iv);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    contract_stores(e, c,
                    contract_load(e, c, contract_slot(e, c, c->turned_at, l_mul(e, l_sub(e, j.iv, column), l_i64(e, place_stride(c))))));
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &j);
    mask_end(e);
    e->tile_axis = tile_axis;
    e->level = level;
    e->ix_level = ix_level;
}

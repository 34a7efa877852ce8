/*
 * Kernels without reductions that read a transposed input: its neighbours lie along another x axis than those of the output
 * (a transpose, by itself or fused into what uses it). Lane after lane such a load takes 4 bytes of a sector of 32, and each sector
 * comes over eight times.
 *
 * So a thread has a square of lanes x lanes points: `lanes` tiles of the last axis, one below the other along the other
 * axis, `other`. Inputs along the last axis are loaded a tile at a time, as always, those along `other` the other way, and
 * change places in registers, which costs nothing:
 *
 *                    last axis ->                         load other         the tiles see
 *               . . . . . . . .                           a b c d            a e i m
 *     other     . A A A A . . .    thread A's square      e f g h     ->     b f j n
 *        |      . A A A A . . .                           i j k l            c g k o
 *        v      . A A A A . . .                           m n o p            d h l p
 *               . A A A A . . .
 *
 * A warp has 8 of them along `other` and 4 along the last axis, so that 128 bytes of f32 are read in one piece and 64 are
 * written; a block 16 by 16, so that lines are used up while they are in the cache. No shared memory, no barrier.
 *
 *     for s = block; s < squares of blocks; s += blocks
 *         if this thread's square exists:  loads of all its tiles; ops of all; stores of all
 *
 * As for all tiles, sizes must be multiples of `lanes` and pointers aligned; otherwise points go one by one (cuda/elementwise.c).
 */
#include "jit/llvm/cuda/cuda.h"

enum { BLOCK_SIDE = 16, MOST_SIDE = 4, LEAST_SIZE = 32 };

static bool reads_transposed(Emit *e, uint32_t i, uint32_t axis, uint32_t other)
{
    const KInst *n = &e->k->inst.at[i];
    return e->live[i] && n->kind == KI_LOAD && n->pred == VREF_NONE && !cuda_whole_tile(e, i, axis) && kidx_uses_axis(e->k, n->idx, axis) &&
           cuda_whole_tile(e, i, other);
}

static bool divides(const Emit *e, uint32_t axis, int64_t by)
{
    int64_t size;
    return !kidx_is_const(e->k, e->k->axes.at[axis].size, &size) || size % by == 0;
}

void plan_transposed(Emit *e)
{
    if (e->n_x < 2 || e->lanes < 2 || plan_ops(e) > CUDA_LIGHT_OPS)
        return;
    uint32_t last = e->n_x - 1, most = 0;
    int before = e->lanes;
    e->lanes = e->lanes < MOST_SIDE ? e->lanes : MOST_SIDE;
    for (uint32_t axis = 0; axis < last; axis++) {
        uint32_t loads = 0;
        for (uint32_t i = 0; i < e->k->inst.n; i++)
            loads += reads_transposed(e, i, last, axis);
        if (loads > most && divides(e, axis, e->lanes) && kernel_extent(e->k, axis) >= LEAST_SIZE &&
            kernel_extent(e->k, last) >= LEAST_SIZE) {
            most = loads;
            e->transposed_axis = (int)axis;
        }
    }
    if (e->transposed_axis == NO_AXIS) {
        e->lanes = before;
        return;
    }
    plan_align(e, (uint32_t)e->transposed_axis);
    uint8_t *align = (uint8_t *)e->tile_align;
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (!reads_transposed(e, i, last, (uint32_t)e->transposed_axis))
            align[i] = 0;
    e->transposed_align = align;
    plan_align(e, last);
}

LV transposed_guard(Emit *e)
{
    uint32_t other = (uint32_t)e->transposed_axis;
    const uint8_t *align = e->tile_align;
    e->tile_align = e->transposed_align;
    LV guard = align_guard(e, other);
    e->tile_align = align;
    LV low = LLVMBuildAnd(e->b, axis_size(e, other), l_i64(e, e->lanes - 1), "");
    return LLVMBuildAnd(e->b, guard, LLVMBuildICmp(e->b, LLVMIntEQ, low, l_i64(e, 0), ""), "");
}

/* Squares along axis a (where another axis is cut into them: points), as a node of the launch plan. */
static uint16_t squares_along(Emit *e, uint32_t a)
{
    uint16_t size = axis_node(e, a), side = launch_const(e->launch, BLOCK_SIDE * e->lanes);
    bool cut = a + 1 == e->n_x || (int)a == e->transposed_axis;
    return cut ? launch_op(e->launch, LAUNCH_CEIL_DIV, size, side) : size;
}

uint16_t transposed_blocks(Emit *e)
{
    uint16_t n = launch_const(e->launch, 1);
    for (uint32_t a = 0; a < e->n_x; a++)
        n = launch_op(e->launch, LAUNCH_MUL, n, squares_along(e, a));
    return n;
}

/* Of the square of an input that is transposed. */
typedef struct Rows {
    LV of_lane[MOST_SIDE];
} Rows;

/* Rows of the square of load i: one for each lane, of `lanes` elements along `other`; at the first tile. */
static void load_rows(Emit *e, uint32_t i, Rows *row)
{
    const KInst *n = &e->k->inst.at[i];
    const KArg *arg = &e->k->args.at[n->arg];
    LLVMTypeRef element = l_memory(e, (DType)n->dtype);
    Address at = address_of(e, element, argument(e, n->arg), n->idx);
    at.align = e->transposed_align[i];
    at.constant = !arg->written && !arg->may_alias;
    for (int lane = 0; lane < e->lanes; lane++)
        row->of_lane[lane] = cuda_load_row(e, element, at, lane);
}

/* The tile at `place` of the square, as its load's value. */
static void take_column(Emit *e, uint32_t i, const Rows *row, int place)
{
    LV v = LLVMGetPoison(LLVMTypeOf(row->of_lane[0])), from = LLVMConstInt(e->type[SC_I32], (unsigned)place, 0);
    for (int lane = 0; lane < e->lanes; lane++) {
        LV x = LLVMBuildExtractElement(e->b, row->of_lane[lane], from, "");
        v = LLVMBuildInsertElement(e->b, v, x, LLVMConstInt(e->type[SC_I32], (unsigned)lane, 0), "");
    }
    value_set(e, i, e->level[i], (Val){.v = l_from_memory(e, (DType)e->k->inst.at[i].dtype, v), .vec = true});
}

static Copy *open_tile_of(Emit *e, const Ix *axis, int place, Rows *rows)
{
    level_open(e, LV_ROW);
    Copy *c = copy_new(e);
    memcpy(e->axis, axis, sizeof e->axis);
    e->axis[e->transposed_axis].base = l_add(e, axis[e->transposed_axis].base, l_i64(e, place));
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (e->k->inst.at[i].kind != KI_LOAD || !e->live[i] || e->level[i] < LV_ROW)
            continue;
        if (!e->transposed_align[i]) {
            value(e, i);
            continue;
        }
        if (!place)
            load_rows(e, i, &rows[i]);
        take_column(e, i, &rows[i], place);
    }
    copy_leave(e, c);
    return c;
}

/* Bits [from, from + n) of the thread's number. */
static LV bits_of(Emit *e, LV tid, int from, int n)
{
    return LLVMBuildAnd(e->b, LLVMBuildLShr(e->b, tid, l_i64(e, from), ""), l_i64(e, (1 << n) - 1), "");
}

static LV joined(Emit *e, LV low, LV high, int bits) { return LLVMBuildOr(e->b, low, LLVMBuildShl(e->b, high, l_i64(e, bits), ""), ""); }

void emit_transposed(Emit *e)
{
    uint32_t last = e->n_x - 1, other = (uint32_t)e->transposed_axis;
    LV lanes = l_i64(e, e->lanes), side = l_i64(e, BLOCK_SIDE), total = l_i64(e, 1), squares[MAX_AXES];
    LV block = cuda_special(e, "ctaid.x"), blocks = cuda_special(e, "nctaid.x"), tid = cuda_special(e, "tid.x");
    LV along = joined(e, bits_of(e, tid, 0, 2), bits_of(e, tid, 5, 2), 2);
    LV down = joined(e, bits_of(e, tid, 2, 3), bits_of(e, tid, 7, 1), 3);
    for (uint32_t a = 0; a <= last; a++) {
        squares[a] = axis_size(e, a);
        if (a == last || a == other)
            squares[a] = l_ceil_div(e, l_div(e, squares[a], lanes), side);
        total = l_mul(e, total, squares[a]);
    }
    Loop l = loop_begin(e, block, total, blocks, "squares");
    LV rest = l.iv, inside = NULL;
    Ix axis[MAX_AXES] = {0};
    for (uint32_t a = e->n_x; a-- > 0;) {
        LV c = rest;
        if (a) {
            LV q = cuda_divide(e, rest, squares[a], total, squares_along(e, a));
            c = l_sub(e, rest, l_mul(e, q, squares[a]));
            rest = q;
        }
        axis[a] = ix_uniform(c);
        if (a != last && a != other)
            continue;
        c = l_mul(e, l_add(e, l_mul(e, c, side), a == last ? along : down), lanes);
        LV exists = LLVMBuildICmp(e->b, LLVMIntSLT, c, axis_size(e, a), "");
        inside = inside ? LLVMBuildAnd(e->b, inside, exists, "") : exists;
        axis[a] = a == last ? (Ix){.base = c, .stride = l_i64(e, 1), .aligned = true} : ix_uniform(c);
    }
    If i = if_begin(e, inside, "square");
    Copy *copies[MOST_SIDE];
    Rows *rows = ARENA_ARRAY(e->arena, Rows, e->k->inst.n + 1);
    for (int place = 0; place < e->lanes; place++)
        copies[place] = open_tile_of(e, axis, place, rows);
    elementwise_copies(e, copies, (uint32_t)e->lanes);
    if_end(e, &i);
    loop_end(e, &l);
}

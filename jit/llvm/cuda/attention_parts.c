/*
 * Attention on CUDA whose keys are cut in parts, so that a device is busy however few queries and heads there are: how many parts (of both walks, that
 * of blocks of queries and that of few), and what becomes of the parts of a block. (Those of few queries: cuda/decode.c.)
 *
 * How many parts there are is a function of sizes and of the device (KeyCut), so one call has the same bits in every program. Blocks of queries are cut where
 * they are fewer than multiprocessors: a task is a block and a part. What its threads have goes to ARG_SCRATCH as that of a product does (cuda/parts.c),
 * behind it the most and the total of each row; whoever comes last for a block takes the parts in order and scales each to the greatest most so far.
 */
#include "jit/llvm/cuda/attention.h"

static const KeyCut block_cut = {.waves = 0, .blocks = 1, .least = 512, .most = 32, .unit = ATTEND_BLOCK};

/* Tasks that fill the device once; that fill it `waves` times. There is a counter for each tile that is cut, two tasks at least. */
static int64_t tasks_of(const Emit *e, const KeyCut *c, int64_t waves)
{
    int64_t n = waves * c->blocks * cuda_multiprocessors(e->cuda), most = 2 * PARTS_COUNTERS;
    return n < most ? n : most;
}

void attend_cut(Emit *e, Product *p, const KeyCut *c, LV tiles)
{
    LV one = l_i64(e, 1), unit = l_i64(e, c->unit), some = l_max(e, tiles, one), n = l_div(e, l_i64(e, tasks_of(e, c, 1)), some);
    if (c->waves)
        n = l_max(e, n, l_min(e, l_div(e, l_i64(e, tasks_of(e, c, c->waves)), some), l_i64(e, c->wave_parts)));
    n = l_min(e, n, l_i64(e, c->most));
    n = l_max(e, l_min(e, n, l_ceil_div(e, p->n_k, l_i64(e, c->least))), one);
    p->part_k = l_mul(e, l_max(e, l_ceil_div(e, l_ceil_div(e, p->n_k, n), unit), one), unit);
    p->parts = l_max(e, l_ceil_div(e, p->n_k, p->part_k), one);
    p->splits = true;
}

static uint16_t quotient_node(LaunchBuilder *g, int64_t n, uint16_t by)
{
    return launch_op(g, LAUNCH_ADD, launch_op(g, LAUNCH_CEIL_DIV, launch_const(g, n + 1), by), launch_const(g, -1));
}

/* As attend_cut has it, on the host. */
uint16_t attend_cut_node(Emit *e, const KeyCut *c, uint16_t tiles)
{
    LaunchBuilder *g = e->launch;
    uint16_t one = launch_const(g, 1), unit = launch_const(g, c->unit), keys = axis_node(e, e->n_x);
    uint16_t some = launch_op(g, LAUNCH_MAX, tiles, one), n = quotient_node(g, tasks_of(e, c, 1), some);
    if (c->waves) {
        uint16_t few = launch_op(g, LAUNCH_MIN, quotient_node(g, tasks_of(e, c, c->waves), some), launch_const(g, c->wave_parts));
        n = launch_op(g, LAUNCH_MAX, n, few);
    }
    n = launch_op(g, LAUNCH_MIN, n, launch_const(g, c->most));
    uint16_t most = launch_op(g, LAUNCH_CEIL_DIV, keys, launch_const(g, c->least));
    n = launch_op(g, LAUNCH_MAX, launch_op(g, LAUNCH_MIN, n, most), one);
    uint16_t units = launch_op(g, LAUNCH_CEIL_DIV, launch_op(g, LAUNCH_CEIL_DIV, keys, n), unit);
    uint16_t part = launch_op(g, LAUNCH_MUL, launch_op(g, LAUNCH_MAX, units, one), unit);
    return launch_op(g, LAUNCH_MAX, launch_op(g, LAUNCH_CEIL_DIV, keys, part), one);
}

/* ---- blocks of queries ---- */

static LV parts_place(Emit *e, const Product *p) { return l_gep_bytes(e, p->attend->parts, cuda_special(e, "tid.x")); }

void attend_plan_parts(Emit *e, Product *p)
{
    LV tiles = p->tiles[ROWS];
    for (int axis = 0; axis < p->axis[ROWS]; axis++)
        tiles = l_mul(e, tiles, axis_size(e, (uint32_t)axis));
    attend_cut(e, p, &block_cut, tiles);
    int64_t fixed;
    p->splits = !l_is_const(p->parts, &fixed) || fixed > 1;
    if (!p->splits)
        return;
    p->attend->parts = cuda_shared(e, TILE_THREADS, "parts"); /* a byte of each thread: no barrier */
    l_store(e, LLVMBuildTrunc(e->b, p->parts, e->type[SC_I8], ""), parts_place(e, p), 1);
}

LV attend_parts(Emit *e, const Product *p)
{
    return LLVMBuildZExt(e->b, l_load(e, e->type[SC_I8], parts_place(e, p), 1), e->type[SC_I64], "");
}

uint16_t attend_parts_node(Emit *e)
{
    LaunchBuilder *g = e->launch;
    uint16_t down = launch_op(g, LAUNCH_CEIL_DIV, axis_node(e, e->n_x - 2), launch_const(g, ATTEND_ROWS));
    return attend_cut_node(e, &block_cut, launch_op(g, LAUNCH_MUL, axes_node(e, 0, e->n_x - 2), down));
}

uint32_t attend_left(const Product *p, LV *out)
{
    const Attend *a = p->attend;
    uint32_t n = 0;
    for (int row = 0; row < a->at->rows; row++) {
        out[n++] = a->most[row];
        out[n++] = a->total[row];
    }
    return n;
}

void attend_merge(Emit *e, const Product *p, const LV *part)
{
    const Attend *a = p->attend;
    LLVMTypeRef f32 = e->type[SC_F32];
    for (int row = 0; row < a->at->rows; row++) {
        const LV *other = part + p->sums + 2 * row;
        LV before = l_load(e, f32, a->most[row], 0), most = attend_greater(e, before, other[0]), base = attend_base(e, most);
        LV scale[2] = {attend_scale(e, before, base), attend_scale(e, other[0], base)};
        l_store(e, most, a->most[row], 0);
        for (int64_t i = -1; i < (int64_t)p->sums / a->at->rows; i++) {
            int64_t at = i < 0 ? 0 : a->at->sum(row, i);
            LV sum = i < 0 ? a->total[row] : p->sum[at], more = i < 0 ? other[1] : part[at];
            LV mine = LLVMBuildFMul(e->b, l_load(e, f32, sum, 0), scale[0], "");
            l_store(e, LLVMBuildFAdd(e->b, mine, LLVMBuildFMul(e->b, more, scale[1], ""), ""), sum, 0);
        }
    }
}

void attend_finish(Emit *e, Product *p)
{
    If whole = {0};
    if (p->splits)
        whole = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLE, attend_parts(e, p), l_i64(e, 1), ""), "whole");
    attend_divide(e, p);
    if (p->splits)
        if_end(e, &whole);
}

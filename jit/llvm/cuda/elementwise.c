/*
 * Kernels without reductions: every thread takes points one grid apart.
 *
 *     guard = whole, aligned tiles
 *     if guard:  for t = thread; t < tiles; t += 2 * threads      tiles t and t + threads side by side
 *                    loads of both; ops of both; stores of both
 *     for p = (guard ? points that those tiles cover : 0) + thread; p < points; p += threads
 *         one point
 *
 * Where inputs lie along another axis than the outputs, tiles come in squares (cuda/transpose.c).
 */
#include "jit/llvm/cuda/cuda.h"

enum { BLOCKS_PER_SM = 32 };

static bool is_loaded(const Emit *e, uint32_t i) { return e->k->inst.at[i].kind == KI_LOAD && e->live[i] && e->level[i] >= LV_ROW; }

/* Two tiles at once, where there are threads enough all the same. */
static uint32_t unroll_of(Emit *e)
{
    double points = 1;
    for (uint32_t a = 0; a < e->n_x; a++)
        points *= (double)kernel_extent(e->k, a);
    if (e->lanes == 1 || points < 2.0 * e->lanes * (double)cuda_busy(e->cuda))
        return 1;
    if (plan_ops(e) <= CUDA_LIGHT_OPS)
        return 2;
    bool *loads = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        loads[i] = is_loaded(e, i);
    return heavy_tiles(e, loads, 2);
}

/* Coordinates of the x axes of point (or tile) number n; `per_row`: tiles of the last axis. */
static void seek(Emit *e, LV n, LV per_row)
{
    LV points = axes_product(e, 0, e->n_x);
    for (uint32_t a = e->n_x; a-- > 0;) {
        LV size = a == e->n_x - 1 ? per_row : axis_size(e, a), c = n;
        bool tiles = a == e->n_x - 1 && e->lanes > 1;
        if (a) {
            uint16_t by = axis_node(e, a);
            by = tiles ? launch_op(e->launch, LAUNCH_CEIL_DIV, by, launch_const(e->launch, e->lanes)) : by; /* lanes divide it here */
            LV q = cuda_divide(e, n, size, points, by);
            c = l_sub(e, n, l_mul(e, q, size));
            n = q;
        }
        e->axis[a] = tiles ? (Ix){.base = l_mul(e, c, l_i64(e, e->lanes)), .stride = l_i64(e, 1), .aligned = true} : ix_uniform(c);
    }
}

static Copy *open_tile(Emit *e, LV n, LV per_row, LV inside)
{
    level_open(e, LV_ROW);
    Copy *c = copy_new(e);
    seek(e, n, per_row);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    e->inside = inside;
    enum { EARLY_REGISTERS = 32 }; /* what would be behind these is loaded where it is used: registers would be spilled */
    size_t registers = 0;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!is_loaded(e, i))
            continue;
        registers += (size_t)e->lanes * (dtype_bytes((DType)e->k->inst.at[i].dtype) > 4 ? 2 : 1);
        if (registers <= EARLY_REGISTERS)
            value(e, i);
    }
    copy_leave(e, c);
    return c;
}

void elementwise_copies(Emit *e, Copy **copies, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        copy_enter(e, copies[i]);
        emit_operands(e, false, 0);
        copy_leave(e, copies[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        copy_enter(e, copies[i]);
        emit_effects(e, false, 0);
    }
    e->inside = NULL;
    level_close(e, LV_ROW, LV_ROW);
}

static void whole_tiles(Emit *e, LV thread, LV threads, LV tiles, LV per_row, uint32_t unroll)
{
    Loop l = loop_begin(e, thread, tiles, l_mul(e, threads, l_i64(e, unroll)), "tiles");
    Copy *copies[2];
    copies[0] = open_tile(e, l.iv, per_row, NULL);
    if (unroll > 1) {
        LV next = LLVMBuildAdd(e->b, l.iv, threads, "");
        LV inside = LLVMBuildICmp(e->b, LLVMIntSLT, next, tiles, "");
        copies[1] = open_tile(e, LLVMBuildSelect(e->b, inside, next, l.iv, ""), per_row, inside);
    }
    elementwise_copies(e, copies, unroll);
    loop_end(e, &l);
}

static void single_points(Emit *e, LV from, LV points, LV threads)
{
    int lanes = e->lanes;
    const uint8_t *align = e->tile_align;
    e->lanes = 1;
    e->tile_align = NULL;
    Loop l = loop_begin(e, from, points, threads, "points");
    Copy *copy = open_tile(e, l.iv, e->n_x ? axis_size(e, e->n_x - 1) : NULL, NULL);
    elementwise_copies(e, &copy, 1);
    loop_end(e, &l);
    e->lanes = lanes;
    e->tile_align = align;
}

/* Can whole tiles cover a launch: full rows where there are several? */
static LV tiles_guard(Emit *e)
{
    LV guard = align_guard(e, e->n_x - 1);
    if (e->n_x == 1)
        return guard;
    if (e->transposed_axis != NO_AXIS)
        guard = LLVMBuildAnd(e->b, guard, transposed_guard(e), "");
    LV low = LLVMBuildAnd(e->b, axis_size(e, e->n_x - 1), l_i64(e, e->lanes - 1), "");
    return LLVMBuildAnd(e->b, guard, LLVMBuildICmp(e->b, LLVMIntEQ, low, l_i64(e, 0), ""), "");
}

static void emit_elementwise(Emit *e)
{
    LaunchPhase *phase;
    uint32_t unroll = unroll_of(e);
    cuda_entry(e, "", ELEMENTWISE_THREADS, 0, &phase);
    e->inner = LV_ROW;
    phase->points = axes_node(e, 0, e->n_x);
    uint16_t each = launch_const(e->launch, ELEMENTWISE_THREADS * e->lanes * (int64_t)unroll);
    uint16_t most = launch_op(e->launch, LAUNCH_MUL, launch_sms(e->launch), launch_const(e->launch, BLOCKS_PER_SM));
    uint16_t wanted = e->transposed_axis != NO_AXIS ? transposed_blocks(e) : launch_op(e->launch, LAUNCH_CEIL_DIV, phase->points, each);
    phase->tasks = launch_op(e->launch, LAUNCH_MIN, wanted, most);

    Place place = level_enter(e, LV_TASK);
    LV points = axes_product(e, 0, e->n_x);
    level_leave(e, place);
    LV block = cuda_special(e, "ctaid.x"), threads = l_mul(e, cuda_special(e, "nctaid.x"), l_i64(e, ELEMENTWISE_THREADS));
    LV thread = l_add(e, l_mul(e, block, l_i64(e, ELEMENTWISE_THREADS)), cuda_special(e, "tid.x"));
    LV from = l_i64(e, 0);
    if (e->lanes > 1) {
        LV lanes = l_i64(e, e->lanes), size = axis_size(e, e->n_x - 1), tiles = l_div(e, points, lanes);
        LV guard = tiles_guard(e);
        If i = if_begin(e, guard, "aligned");
        if (e->transposed_axis != NO_AXIS)
            emit_transposed(e);
        else
            whole_tiles(e, thread, threads, tiles, l_div(e, size, lanes), unroll);
        if_end(e, &i);
        from = LLVMBuildSelect(e->b, guard, l_mul(e, tiles, lanes), from, "");
    }
    int64_t size;
    if (!(e->lanes > 1 && l_is_const(from, &size) && l_is_const(points, &size)))
        single_points(e, l_add(e, from, thread), points, threads);
    cuda_return(e);
}

void emit_threads(Emit *e)
{
    if (e->n_stages)
        emit_reductions(e);
    else
        emit_elementwise(e);
}

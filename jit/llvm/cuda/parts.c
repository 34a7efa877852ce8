/*
 * Matrix products on CUDA whose sums over k are cut into parts, so that few results keep a whole device at work: those whose order is
 * PARTS (ir/orders.def: floats in fast mode), or of integers, where any is exact.
 *
 * A task is a tile and a part. Its sums, a chain over the k of the part, go to ARG_SCRATCH; whoever comes last for a tile, by a
 * counter there, adds them up in the order of the parts and has the epilogue:
 *
 *     scratch:  counters | tile 0: part 0 [sums][threads], part 1, ... | tile 1 ...
 *
 * How many parts there are is a function of the sizes of the graph's product (Kernel.product and the length of k) alone: not of
 * the tile at hand, hints, merged axes, or of what is known when the program is made. So variants of a program give the same
 * bits. It counts whole tiles (cuda_part_shapes): a task leaves a whole one however little of it exists, so what has many tiles
 * is not cut, and the scratch is bounded. Parts are multiples of every slice, so only the last one may end within one.
 *
 * Attention has parts of keys, by rules of its own (cuda/attention_parts.c), and more than sums to leave.
 */
#include "jit/llvm/cuda/tiles.h"

int64_t parts_hint(const Emit *e)
{
    int64_t batch = 1, k = axis_hint(e, (int)e->n_x);
    int rows = (int)e->n_x - 2; /* as far as axes were not merged */
    if (!e->k->split)
        return 1;
    for (int a = 0; a < rows; a++)
        batch = batch < CUDA_FULL_TILES ? batch * axis_hint(e, a) : batch;
    int64_t part = cuda_part(batch, axis_hint(e, rows), axis_hint(e, rows + 1), k);
    return k > part ? (k + part - 1) / part : 1;
}

/* As cuda_part has it, of numbers that the kernel knows. */
void plan_parts(Emit *e, Product *p)
{
    if (!e->k->split)
        return;
    if (p->attend) {
        attend_plan_parts(e, p);
        return;
    }
    LV one = l_i64(e, 1), full = l_i64(e, CUDA_FULL_TILES), tiles = full, size[3];
    for (int i = 0; i < 3; i++)
        size[i] = index_uniform(e, e->k->product[i]);
    for (int i = 0; i < CUDA_PART_SHAPES; i++) {
        LV down = l_ceil_div(e, size[1], l_i64(e, cuda_part_shapes[i].rows)),
           across = l_ceil_div(e, size[2], l_i64(e, cuda_part_shapes[i].columns));
        tiles = l_min(e, tiles, l_mul(e, l_mul(e, down, across), size[0]));
    }
    LV wanted = l_ceil_div(e, full, l_max(e, tiles, one)), most = l_ceil_div(e, p->n_k, l_i64(e, CUDA_LEAST_PART));
    LV n = l_max(e, l_min(e, l_min(e, wanted, most), l_i64(e, CUDA_MOST_PARTS)), one);
    LV units = l_ceil_div(e, l_ceil_div(e, p->n_k, n), l_i64(e, CUDA_PART_UNIT));
    p->part_k = l_mul(e, l_max(e, units, one), l_i64(e, CUDA_PART_UNIT));
    p->parts = l_max(e, l_ceil_div(e, p->n_k, p->part_k), one);
    int64_t fixed;
    p->splits = !l_is_const(p->parts, &fixed) || fixed > 1;
}

/* As cuda_part has it, on the host. */
uint16_t parts_node(Emit *e)
{
    if (e->k->form == FORM_ATTENTION)
        return attend_parts_node(e);
    LaunchBuilder *g = e->launch;
    uint16_t one = launch_const(g, 1), unit = launch_const(g, CUDA_PART_UNIT);
    uint16_t full = launch_const(g, CUDA_FULL_TILES), tiles = full, size[3], k = axes_node(e, e->n_x, e->k->axes.n);
    for (int i = 0; i < 3; i++)
        size[i] = size_node(e, e->k->product[i]);
    for (int i = 0; i < CUDA_PART_SHAPES; i++) {
        uint16_t down = launch_op(g, LAUNCH_CEIL_DIV, size[1], launch_const(g, cuda_part_shapes[i].rows));
        uint16_t across = launch_op(g, LAUNCH_CEIL_DIV, size[2], launch_const(g, cuda_part_shapes[i].columns));
        tiles = launch_op(g, LAUNCH_MIN, tiles, launch_op(g, LAUNCH_MUL, launch_op(g, LAUNCH_MUL, down, across), size[0]));
    }
    uint16_t wanted = launch_op(g, LAUNCH_CEIL_DIV, full, launch_op(g, LAUNCH_MAX, tiles, one));
    uint16_t most = launch_op(g, LAUNCH_CEIL_DIV, k, launch_const(g, CUDA_LEAST_PART));
    uint16_t n = launch_op(g, LAUNCH_MIN, launch_op(g, LAUNCH_MIN, wanted, most), launch_const(g, CUDA_MOST_PARTS));
    n = launch_op(g, LAUNCH_MAX, n, one);
    uint16_t units = launch_op(g, LAUNCH_CEIL_DIV, launch_op(g, LAUNCH_CEIL_DIV, k, n), unit);
    uint16_t part = launch_op(g, LAUNCH_MUL, launch_op(g, LAUNCH_MAX, units, one), unit);
    return launch_op(g, LAUNCH_MAX, launch_op(g, LAUNCH_CEIL_DIV, k, part), one);
}

/* What a thread leaves of a task: allocas. */
enum { MOST_LEFT = MOST_SUMS + MOST_STATES };
static uint32_t left_of(const Product *p, LV *out)
{
    memcpy(out, p->sum, p->sums * sizeof *out);
    return p->sums + (p->attend ? attend_left(p, out + p->sums) : 0);
}

/* Bytes of a task. */
static int64_t task_bytes(const Product *p)
{
    LV left[MOST_LEFT];
    return (int64_t)left_of(p, left) * TILE_THREADS * (int64_t)dtype_bytes(p->acc);
}

void parts_scratch(Emit *e, const Product *p, uint16_t tasks, uint16_t parts)
{
    LaunchBuilder *g = e->launch;
    uint16_t split = launch_op(g, LAUNCH_MIN, launch_op(g, LAUNCH_ADD, parts, launch_const(g, -1)), launch_const(g, 1));
    uint16_t bytes = launch_op(g, LAUNCH_MUL, launch_op(g, LAUNCH_MUL, tasks, split), launch_const(g, task_bytes(p)));
    g->scratch = launch_op(g, LAUNCH_ADD, launch_const(g, GRID_COUNTER_BYTES), bytes);
}

/* Where this thread's first sum of a task lies; the next one is `TILE_THREADS` further on. */
static LV sums_at(Emit *e, const Product *p, LV tile, LV part)
{
    LV task = l_add(e, l_mul(e, tile, p->parts), part);
    LV at = l_add(e, l_mul(e, task, l_i64(e, task_bytes(p))), l_i64(e, GRID_COUNTER_BYTES));
    return l_gep(e, l_type(e, p->acc, false), l_gep_bytes(e, argument(e, e->shared_arg), at), p->tid);
}

LV leave_sums(Emit *e, const Product *p, LV tile, LV tiles)
{
    LLVMTypeRef type = l_type(e, p->acc, false);
    LV to = sums_at(e, p, tile, p->part), left[MOST_LEFT];
    uint32_t n = left_of(p, left);
    for (uint32_t i = 0; i < n; i++)
        l_store(e, l_load(e, type, left[i], 0), l_gep(e, type, to, l_i64(e, (int64_t)i * TILE_THREADS)), 0);
    LV counter = l_mod(e, tile, l_i64(e, PARTS_COUNTERS));
    LV alike = l_ceil_div(e, l_sub(e, tiles, counter), l_i64(e, PARTS_COUNTERS));
    return last_to_arrive(e, p->tid, p->shared, counter, l_mul(e, alike, p->parts));
}

static void load_left(Emit *e, const Product *p, LV from, uint32_t n, LV *out)
{
    LLVMTypeRef type = l_type(e, p->acc, false);
    for (uint32_t i = 0; i < n; i++)
        out[i] = l_load(e, type, l_gep(e, type, from, l_i64(e, (int64_t)i * TILE_THREADS)), 0);
}

void take_parts(Emit *e, Product *p, LV tile)
{
    LV left[MOST_LEFT], part[MOST_LEFT];
    uint32_t n = left_of(p, left);
    load_left(e, p, sums_at(e, p, tile, l_i64(e, 0)), n, part);
    for (uint32_t i = 0; i < n; i++)
        l_store(e, part[i], left[i], 0);
    Loop l = loop_begin(e, l_i64(e, 1), p->parts, l_i64(e, 1), "parts");
    load_left(e, p, sums_at(e, p, tile, l.iv), n, part);
    if (p->attend)
        attend_merge(e, p, part);
    for (uint32_t i = 0; i < n && !p->attend; i++)
        l_store(e, dot_merge(e, p->acc, l_load(e, l_type(e, p->acc, false), left[i], 0), part[i]), left[i], 0);
    loop_end(e, &l);
    if (p->attend)
        attend_divide(e, p);
}

/*
 * Contractions on CUDA: a block of threads computes a tile of one matrix product.
 *
 *     for tasks (batch, tile row, tile column, part of k), grid-stride
 *         slice 0 to shared memory
 *         for k0 = 0; k0 < K; k0 += depth
 *             barrier
 *             slice k0 + depth (or later ones, where several fit) on its way: plain loads by cp.async, others to registers
 *             products of slice k0, by fused multiply-adds (cuda/fma.c) or tensor cores (cuda/mma.c)
 *             registers to the other slice of the shared memory
 *         sums through shared memory, so that neighbours are stored by neighbours: epilogue
 *
 * A block has eight warps, warps[ROWS] x warps[COLUMNS] of them. Rows and columns past the end of the product repeat the
 * last ones and are not stored.
 *
 * Versions. Slices come 16 bytes of shared memory at a time where pointers and sizes allow it, else element by element;
 * the epilogue likewise. The kernel looks at both guards itself.
 *
 * Every element is one chain over k from +0 whatever the tile (or over parts of k: cuda/parts.c), so which tile is chosen,
 * and by which hints, shows in no result.
 */
#include "jit/llvm/cuda/tiles.h"

#include <stdio.h>

enum { OUT_BYTES = 40 * 1024 };

static bool varies_along(const Emit *e, VRef v, int axis) { return axis != NO_AXIS && (e->info[v].axes >> axis & 1); }

int64_t axis_hint(const Emit *e, int axis) { return axis == NO_AXIS ? 1 : kernel_extent(e->k, (uint32_t)axis); }

void find_product(const Emit *e, Product *p)
{
    const Kernel *k = e->k;
    while (!inst_is_dot(&k->inst.at[p->reduce]))
        p->reduce++;
    const KInst *n = &k->inst.at[p->reduce];
    p->operand[ROWS] = n->a, p->operand[COLUMNS] = n->b;
    p->type = (DType)k->inst.at[n->a].dtype;
    p->async = e->cuda->sm >= 80 && e->cuda->ptx >= 70;
    for (int s = 0; s < 2; s++) {
        p->axis[s] = NO_AXIS;
        for (int a = 0; a < (int)e->n_x; a++)
            if (varies_along(e, p->operand[s], a) && !varies_along(e, p->operand[!s], a))
                p->axis[s] = a;
        p->along_k[s] = p->axis[s] == NO_AXIS || cuda_steps_along_k(e, p->operand[s]);
    }
}

static bool is_batch(const Product *p, int a) { return a != p->axis[ROWS] && a != p->axis[COLUMNS]; }

void tiles_choose(const Emit *e, Product *p, bool tensor)
{
    CudaProduct product = {.batch = 1, .k = axis_hint(e, (int)e->n_x), .parts = parts_hint(e), .bytes = element_bytes(p), .tensor = tensor};
    for (int s = 0; s < 2; s++)
        product.n[s] = axis_hint(e, p->axis[s]);
    for (int a = 0; a < (int)e->n_x; a++)
        product.batch *= is_batch(p, a) ? (double)axis_hint(e, a) : 1;
    product.copies = tensor && is_plain(e, p, ROWS) && is_plain(e, p, COLUMNS);
    const CudaTile *t = cuda_tile(e->cuda, &product);
    for (int s = 0; s < 2; s++) {
        p->warps[s] = t->warps[s];
        p->of_warp[s] = t->of_warp[s];
        p->side[s] = cuda_tile_side(t, s);
    }
    p->depth = cuda_tile_depth(&product, t);
    p->slices = cuda_tile_slices(e->cuda, &product, t);
    p->min_blocks = t->blocks > 1 ? 2 : 1;
    p->sums = (uint32_t)(p->side[ROWS] * p->side[COLUMNS] / TILE_THREADS);
}

/* ---- the epilogue ---- */

/* Four rows of sums meet no bank twice. */
static int64_t out_pitch(const Product *p) { return p->side[COLUMNS] + 8; }

/* Rows of the tile that go through shared memory at once: all, or those of one row of warps. */
static int64_t out_rows(const Product *p)
{
    int64_t all = p->side[ROWS] * out_pitch(p) * (int64_t)dtype_bytes(p->acc);
    return all <= OUT_BYTES ? p->side[ROWS] : p->of_warp[ROWS];
}

static void put_sums(Emit *e, const Product *p, LV chunk)
{
    bool all = out_rows(p) == p->side[ROWS];
    If mine = {0};
    if (!all)
        mine = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, p->warp[ROWS], chunk, ""), "mine");
    LV row = all ? l_mul(e, p->warp[ROWS], l_i64(e, p->of_warp[ROWS] * out_pitch(p))) : l_i64(e, 0);
    p->how->put(e, p, row, out_pitch(p));
    if (!all)
        if_end(e, &mine);
}

/* Sums of a chunk, e->lanes of a row a thread and turn. */
static void take_sums(Emit *e, Product *p, LV chunk)
{
    LLVMTypeRef type = l_type(e, p->acc, false);
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    LV per_row = l_i64(e, p->side[COLUMNS] / e->lanes);
    Loop l = loop_begin(e, p->tid, l_i64(e, out_rows(p) * p->side[COLUMNS] / e->lanes), l_i64(e, TILE_THREADS), "out");
    level_open(e, LV_ROW);
    LV at[2] = {l_div(e, l.iv, per_row), l_mul(e, l_mod(e, l.iv, per_row), l_i64(e, e->lanes))}, inside = NULL;
    LV from = l_gep(e, type, p->shared, l_add(e, l_mul(e, at[ROWS], l_i64(e, out_pitch(p))), at[COLUMNS]));
    at[ROWS] = l_add(e, at[ROWS], l_mul(e, chunk, l_i64(e, out_rows(p))));
    for (int s = 0; s < 2; s++) {
        at[s] = l_add(e, p->first[s], at[s]);
        LV here = LLVMBuildICmp(e->b, LLVMIntSLT, at[s], p->n[s], "");
        inside = inside ? both(e, inside, here) : here;
    }
    If i = if_begin(e, inside, "exists");
    for (int s = 0; s < 2; s++)
        if (p->axis[s] != NO_AXIS)
            e->axis[p->axis[s]] = lanes_from(e, at[s], s == COLUMNS);
    pin(e, LV_ROW);
    Val v = {.v = l_load(e, l_vec(e, type), from, e->lanes > 1 ? MOST_BYTES : 0), .vec = e->lanes > 1};
    value_set(e, p->reduce, e->level[p->reduce], cast_emit(e, p->acc, (DType)e->k->inst.at[p->reduce].dtype, v));
    emit_stores(e, false, 0);
    level_close(e, LV_ROW, LV_ROW);
    if_end(e, &i);
    loop_end(e, &l);
    memcpy(e->axis, batch, sizeof batch);
}

/* The accesses after the product that can be whole aligned tiles along the columns; NULL: none. */
typedef struct Epilogue {
    const uint8_t *align;
    int lanes;
    LV guard;
} Epilogue;

static Epilogue plan_epilogue(Emit *e, Product *p)
{
    Epilogue out = {.lanes = 1};
    const Kernel *k = e->k;
    int64_t widest = 2;
    if (p->axis[COLUMNS] == NO_AXIS)
        return out;
    for (uint32_t i = 0; i < k->inst.n; i++)
        if (k->inst.at[i].kind == KI_STORE) {
            int64_t bytes = (int64_t)dtype_bytes((DType)k->inst.at[k->inst.at[i].a].dtype);
            widest = bytes > widest ? bytes : widest;
        }
    e->lanes = widest > MOST_BYTES / 4 ? 4 : MOST_BYTES / (int)widest;
    bool some = plan_align(e, (uint32_t)p->axis[COLUMNS]);
    uint8_t *align = ARENA_ARRAY(e->arena, uint8_t, k->inst.n + 1);
    for (uint32_t i = 0; i < k->inst.n; i++)
        align[i] = e->info[i].r_level ? 0 : e->tile_align[i];
    e->tile_align = align;
    LV guard = both(e, align_guard(e, (uint32_t)p->axis[COLUMNS]), divides(e, p->n[COLUMNS], e->lanes));
    if (some)
        out = (Epilogue){.align = align, .lanes = e->lanes, .guard = guard};
    e->lanes = 1;
    e->tile_align = NULL;
    return out;
}

/* if (guard) { whole } else { part }: which of the two there are. */
typedef struct Versions {
    LV guard;
    bool is[2];
    LLVMBasicBlockRef at[2], join;
} Versions;

static Versions versions_begin(Emit *e, LV guard)
{
    Versions v = {.guard = guard, .is = {true, true}};
    int64_t c;
    if (!guard || l_is_const(guard, &c))
        v.is[!(guard && c)] = false;
    if (v.is[0] && v.is[1]) {
        v.at[1] = l_block(e, "whole"), v.at[0] = l_block(e, "part"), v.join = l_block(e, "");
        LLVMBuildCondBr(e->b, guard, v.at[1], v.at[0]);
    }
    return v;
}

static bool version_open(Emit *e, const Versions *v, int which)
{
    if (v->is[which] && v->join)
        l_at(e, v->at[which]);
    return v->is[which];
}

static void version_close(Emit *e, const Versions *v)
{
    if (v->join)
        LLVMBuildBr(e->b, v->join);
}

static void versions_end(Emit *e, const Versions *v)
{
    if (v->join)
        l_at(e, v->join);
}

static void epilogue(Emit *e, Product *p, const Epilogue *plan)
{
    Loop chunks = loop_begin(e, l_i64(e, 0), l_i64(e, p->side[ROWS] / out_rows(p)), l_i64(e, 1), "chunk");
    barrier(e);
    put_sums(e, p, chunks.iv);
    barrier(e);
    Versions v = versions_begin(e, plan->guard);
    for (int which = 1; which >= 0; which--) {
        if (!version_open(e, &v, which))
            continue;
        e->lanes = which ? plan->lanes : 1;
        e->tile_align = which ? plan->align : NULL;
        take_sums(e, p, chunks.iv);
        e->lanes = 1;
        e->tile_align = NULL;
        version_close(e, &v);
    }
    versions_end(e, &v);
    loop_end(e, &chunks);
}

/* ---- tasks ---- */

void tiles_sizes(Emit *e, Product *p)
{
    p->n_k = axis_size(e, e->n_x);
    for (int s = 0; s < 2; s++) {
        p->n[s] = p->axis[s] == NO_AXIS ? l_i64(e, 1) : axis_size(e, (uint32_t)p->axis[s]);
        p->tiles[s] = l_ceil_div(e, p->n[s], l_i64(e, p->side[s]));
        uint16_t n = p->axis[s] == NO_AXIS ? launch_const(e->launch, 1) : axis_node(e, (uint32_t)p->axis[s]);
        p->tiles_node[s] = launch_op(e->launch, LAUNCH_CEIL_DIV, n, launch_const(e->launch, p->side[s]));
    }
}

/*
 * A special register, read anew. What follows from a thread's number would otherwise be computed once, in front of all loops,
 * and keep registers that the sums need.
 */
static LV read_again(Emit *e, const char *name)
{
    char text[32];
    static const char into[] = "=r";
    int n = snprintf(text, sizeof text, "mov.u32 $0, %%%s;", name);
    LLVMTypeRef type = LLVMFunctionType(e->type[SC_I32], NULL, 0, 0);
    LV read = LLVMGetInlineAsm(type, text, (size_t)n, into, sizeof into - 1, 1, 0, LLVMInlineAsmDialectATT, 0);
    return LLVMBuildZExt(e->b, LLVMBuildCall2(e->b, type, read, NULL, 0, ""), e->type[SC_I64], "");
}

LV tiles_task(Emit *e, Product *p, LV number)
{
    number = number ? number : read_again(e, "ctaid.x");
    p->k0 = l_i64(e, 0), p->k1 = p->n_k;
    if (!p->splits)
        return number;
    LV tile = l_div(e, number, p->parts);
    p->part = l_sub(e, number, l_mul(e, tile, p->parts));
    p->k0 = l_mul(e, p->part, p->part_k);
    p->k1 = l_min(e, l_add(e, p->k0, p->part_k), p->n_k);
    return tile;
}

void tiles_locate(Emit *e, Product *p, LV tile)
{
    p->tid = read_again(e, "tid.x");
    p->lane = l_mod(e, p->tid, l_i64(e, WARP));
    LV warp = l_div(e, p->tid, l_i64(e, WARP));
    p->warp[ROWS] = l_div(e, warp, l_i64(e, p->warps[COLUMNS]));
    p->warp[COLUMNS] = l_mod(e, warp, l_i64(e, p->warps[COLUMNS]));
    p->how->place(e, p);
    LV at = index_narrow(e, tile);
    for (int s = 1; s >= 0; s--) {
        LV tiles = index_narrow(e, p->tiles[s]), next = cuda_quotient(e, at, tiles, p->tiles_node[s]);
        LV first = l_mul(e, l_sub(e, at, l_mul(e, next, tiles)), index_narrow(e, l_i64(e, p->side[s])));
        p->first[s] = e->k->index_bits ? LLVMBuildZExt(e->b, first, e->type[SC_I64], "") : first;
        at = next;
    }
    LV batch = e->k->index_bits ? LLVMBuildZExt(e->b, at, e->type[SC_I64], "") : at;
    for (int a = (int)e->n_x - 1; a >= 0; a--)
        if (is_batch(p, a)) {
            LV size = axis_size(e, (uint32_t)a), next = index_divide(e, batch, size, e->k->axes.at[a].size);
            e->axis[a] = ix_uniform(l_sub(e, batch, l_mul(e, next, size)));
            batch = next;
        }
}

/* The sums of a task are there: the epilogue of its tile, or of those that it was the last one for. */
static void finish(Emit *e, Product *p, LV number, LV all, const Epilogue *out)
{
    LV tile = tiles_task(e, p, number);
    tiles_locate(e, p, tile);
    if (!p->splits) {
        epilogue(e, p, out);
        return;
    }
    LLVMTypeRef i64t = e->type[SC_I64];
    LV from = l_alloca(e, i64t, 0, "from"), to = l_alloca(e, i64t, 0, "to"), step = l_i64(e, PARTS_COUNTERS);
    LV cut = LLVMBuildICmp(e->b, LLVMIntSGT, p->parts, l_i64(e, 1), "");
    l_store(e, tile, from, 0);
    l_store(e, l_add(e, tile, l_i64(e, 1)), to, 0);
    If leave = if_begin(e, cut, "leave");
    LV last = leave_sums(e, p, tile, all);
    l_store(e, l_mod(e, tile, step), from, 0);
    l_store(e, LLVMBuildSelect(e->b, last, all, l_i64(e, 0), ""), to, 0);
    if_end(e, &leave);
    Loop l = loop_begin(e, l_load(e, i64t, from, 0), l_load(e, i64t, to, 0), step, "finish");
    If take = if_begin(e, cut, "take");
    take_parts(e, p, l.iv);
    if_end(e, &take);
    tiles_locate(e, p, l.iv);
    epilogue(e, p, out);
    loop_end(e, &l);
}

static void add_versions(Emit *e, Product *p, LV fetch, const Fetch *plans)
{
    Versions v = versions_begin(e, fetch);
    for (int which = 1; which >= 0; which--) {
        if (!version_open(e, &v, which))
            continue;
        p->fetch = plans[which];
        add_products(e, p);
        version_close(e, &v);
    }
    versions_end(e, &v);
}

static void task(Emit *e, Product *p, LV number, LV all, LV fetch, const Fetch *plans, const Epilogue *out)
{
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    tiles_locate(e, p, tiles_task(e, p, number));
    for (uint32_t i = 0; i < p->sums; i++)
        l_store(e, p->attend ? attend_none(e, p) : LLVMConstNull(l_type(e, p->acc, false)), p->sum[i], 0);
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, p->n_k, l_i64(e, 0), ""), "some");
    if (p->attend)
        attend_keys(e, p);
    else
        add_versions(e, p, fetch, plans);
    if_end(e, &some);
    level_close(e, LV_ROW, LV_ROW);
    if (p->attend && p->splits)
        p->parts = attend_parts(e, p);
    finish(e, p, number, all, out);
    level_close(e, LV_ROW, LV_ROW);
}

static void allocate(Emit *e, Product *p, Fetch *plans, LaunchPhase *phase)
{
    int64_t out = out_rows(p) * out_pitch(p) * (int64_t)dtype_bytes(p->acc);
    int64_t slices = p->attend ? attend_bytes(p) : p->slices * (slice_bytes(p, ROWS) + slice_bytes(p, COLUMNS));
    for (int which = 0; which < 2 && !p->attend; which++) {
        Fetch *f = &plans[which];
        e->lanes = f->lanes;
        for (int s = 0; s < 2; s++)
            for (int64_t u = 0; u < f->loads[s]; u++)
                f->next[s][u] = l_alloca(e, l_vec(e, p->element), 0, "next");
    }
    e->lanes = 1;
    for (uint32_t i = 0; i < p->sums; i++)
        p->sum[i] = l_alloca(e, l_type(e, p->acc, false), 0, "sum");
    p->shared = cuda_shared_by(e, phase, (uint64_t)(out > slices ? out : slices), "tiles");
}

void emit_tiles(Emit *e, Product *p)
{
    LaunchPhase *phase;
    Fetch plans[2] = {{0}};
    bool vectors = false;
    if (!p->attend) {
        plan_fetch(e, p, false);
        plans[0] = p->fetch;
        vectors = plan_fetch(e, p, true);
        plans[1] = p->fetch;
    }
    cuda_entry(e, "", TILE_THREADS, p->min_blocks, &phase);
    LaunchBuilder *g = e->launch;
    uint16_t tasks = launch_const(g, 1);
    for (int a = 0; a < (int)e->n_x; a++) {
        int64_t side = a == p->axis[ROWS] ? p->side[ROWS] : a == p->axis[COLUMNS] ? p->side[COLUMNS] : 1;
        uint16_t size = axis_node(e, (uint32_t)a);
        tasks = launch_op(g, LAUNCH_MUL, tasks, launch_op(g, LAUNCH_CEIL_DIV, size, launch_const(g, side)));
    }
    phase->points = axes_node(e, 0, e->k->axes.n);
    Place sizes = level_enter(e, LV_TASK);
    tiles_sizes(e, p);
    plan_parts(e, p);
    level_leave(e, sizes);
    if (p->splits) {
        tasks = launch_op(g, LAUNCH_MUL, tasks, parts_node(e));
        parts_scratch(e, p, tasks, parts_node(e));
    }
    phase->tasks = launch_op(g, LAUNCH_MIN, tasks, launch_const(g, INT32_MAX));
    allocate(e, p, plans, phase);
    Place place = level_enter(e, LV_TASK);
    LV fetch = vectors ? fetch_guard(e, p) : NULL;
    if (p->attend)
        attend_open(e, p);
    Epilogue out = plan_epilogue(e, p);
    LV all = l_mul(e, p->tiles[ROWS], p->tiles[COLUMNS]);
    for (int a = 0; a < (int)e->n_x; a++)
        if (is_batch(p, a))
            all = l_mul(e, all, axis_size(e, (uint32_t)a));
    LV tasks_n = p->splits ? l_mul(e, all, p->parts) : all;
    if (p->attend) /* which cuts no more tiles than there are counters */
        all = l_i64(e, PARTS_COUNTERS);
    level_leave(e, place);
    if (e->k->index_bits) { /* each point is stored at an index of its own, so tasks fit a grid */
        task(e, p, NULL, all, fetch, plans, &out);
    } else {
        Loop l = loop_begin(e, cuda_special(e, "ctaid.x"), tasks_n, cuda_special(e, "nctaid.x"), "task");
        task(e, p, l.iv, all, fetch, plans, &out);
        loop_end(e, &l);
    }
    cuda_return(e);
}

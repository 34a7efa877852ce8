/*
 * Contractions on CUDA by tensor cores: factors in f16 or bf16, or f32 taken as tf32, sums in f32.
 *
 *     for tasks (batch, tile row, tile column), grid-stride
 *         slice 0 to shared memory
 *         for k0 = 0; k0 < K; k0 += depth
 *             barrier
 *             slice k0 + depth on its way: plain loads by cp.async, others to registers
 *             for steps of the slice
 *                 fragments by ldmatrix, one mma.sync a pair of them
 *             registers to the other half of the shared memory
 *         sums through shared memory, so that neighbours are stored by neighbours: epilogue
 *
 * A block has eight warps, `rows` x `columns` of them; a warp has m x n fragments of 16 x 8 sums
 * (`shapes`).
 *
 * When: in fast mode only. Products are exact and sums are f32, but their order within an
 * instruction and its rounding are the device's; strict mode promises the reference's bits and goes
 * to cuda_contract.c. tf32 keeps 10 bits of each factor, so it needs the option of that name as
 * well. Bounds are in ir/accuracy_cuda.def. Whether tensor cores are used depends on dtypes, device
 * and options alone, never on sizes or hints: every element is one chain of instructions over k
 * from +0 whatever the tiles, so variants of a program and fusions of a graph give the same bits.
 *
 * Shared memory. A slice lies as its buffer does, [row][k] or [k][row], padded so that eight rows
 * of 16 bytes meet no bank twice; ldmatrix reads the first as it is and transposes the second (but
 * not 32-bit elements: those are loaded one by one). k past the end is zero for both factors; rows
 * and columns past the end repeat the last ones and are not stored.
 *
 * Versions. Slices come 16 bytes of the stored type at a time where pointers and sizes allow it,
 * else element by element, without a way through registers; the epilogue likewise. The kernel looks
 * at both guards itself.
 */
#include "jit/llvm/cuda_mma.h"

enum { DEVICE_BLOCKS = 108, OUT_BYTES = 40 * 1024 };

static const Shape shapes[] = {
    {2, 4, 4, 4}, {2, 4, 2, 2}, {2, 4, 1, 1}, {1, 8, 1, 2}, {8, 1, 1, 2}};
enum { SHAPE_BIG, SHAPE_MIDDLE, SHAPE_SMALL, SHAPE_FEW_ROWS, SHAPE_FEW_COLUMNS };

static LV both(Emit *e, LV a, LV b)
{
    return LLVMBuildAnd(e->b, a, b, "");
}

static bool is_half(DType t)
{
    return t == DT_F16 || t == DT_BF16;
}

/* ---- whether, and which way ---- */

static bool varies(const Emit *e, VRef v, int axis)
{
    return axis != NO_AXIS && (e->info[v].axes >> axis & 1);
}
static int64_t hint(const Emit *e, int axis)
{
    return axis == NO_AXIS ? 1 : e->k->axes.at[axis].hint;
}
/* Factors that were widened to f32 are taken as they were before: their products are exact either
 * way. */
static void choose_factors(Emit *e, Product *p)
{
    const Kernel *k = e->k;
    while (k->inst.at[p->reduce].kind != KI_REDUCE || k->inst.at[p->reduce].op != OP_MATMUL)
        p->reduce++;
    const KInst *n = &k->inst.at[p->reduce], *a = &k->inst.at[n->a], *b = &k->inst.at[n->b];
    p->operand[ROWS] = n->a, p->operand[COLUMNS] = n->b;
    p->type = (DType)a->dtype;
    if (p->type != DT_F32 || a->kind != KI_OP || b->kind != KI_OP || a->op != OP_CAST ||
        b->op != OP_CAST)
        return;
    DType from = (DType)k->inst.at[a->a].dtype;
    if (!is_half(from) || (DType)k->inst.at[b->a].dtype != from)
        return;
    p->operand[ROWS] = a->a, p->operand[COLUMNS] = b->a;
    p->type = from;
}

static bool fits(const Emit *e, Product *p)
{
    const CudaTarget *t = e->cuda;
    bool ampere = t->sm >= 80 && t->ptx >= 70;
    if (e->math != MATH_FAST || e->n_r != 1)
        return false;
    p->short_k = !ampere;
    switch (p->type) {
    case DT_F16:
        return ampere || (t->sm >= 75 && t->ptx >= 65);
    case DT_BF16:
        return ampere;
    case DT_F32:
        return ampere && e->options->value[OPT_TF32];
    default:
        return false;
    }
}

/* Rows are what only the first factor varies along, columns what only the second does; all other
 * axes are batch. */
static void choose_axes(Emit *e, Product *p)
{
    for (int s = 0; s < 2; s++) {
        p->axis[s] = NO_AXIS;
        for (int a = 0; a < (int)e->n_x; a++)
            if (varies(e, p->operand[s], a) && !varies(e, p->operand[!s], a))
                p->axis[s] = a;
    }
}

static void choose_shape(Emit *e, Product *p)
{
    int64_t rows = hint(e, p->axis[ROWS]), columns = hint(e, p->axis[COLUMNS]), tiles = 1;
    for (uint32_t a = 0; a < e->n_x; a++) {
        int64_t n = e->k->axes.at[a].hint,
                of = (int)a == p->axis[ROWS] || (int)a == p->axis[COLUMNS] ? 128 : 1;
        tiles = tiles < DEVICE_BLOCKS ? tiles * ((n + of - 1) / of) : tiles;
    }
    int which = rows >= 128 && columns >= 128 && tiles >= DEVICE_BLOCKS ? SHAPE_BIG
                : rows <= 16 && columns > 32                            ? SHAPE_FEW_ROWS
                : columns <= 16 && rows > 32                            ? SHAPE_FEW_COLUMNS
                : rows > 32 && columns > 32                             ? SHAPE_MIDDLE
                                                                        : SHAPE_SMALL;
    p->shape = &shapes[which];
    p->side[ROWS] = p->shape->rows * p->shape->m * 16;
    p->side[COLUMNS] = p->shape->columns * p->shape->n * 8;
    for (int s = 0; s < 2; s++)
        p->along_k[s] = p->axis[s] == NO_AXIS || cuda_steps_along_k(e, p->operand[s]);
}

/* ---- the epilogue ---- */

/* Four rows of sums meet no bank twice. */
static int64_t out_pitch(const Product *p)
{
    return p->side[COLUMNS] + 8;
}

/* Rows of the tile that go through shared memory at once: all, or those of one row of warps. */
static int64_t out_rows(const Product *p)
{
    return p->side[ROWS] * out_pitch(p) * 4 <= OUT_BYTES ? p->side[ROWS] : p->shape->m * 16;
}

static void put_sums(Emit *e, const Product *p, LV chunk)
{
    LLVMTypeRef f32 = e->type[SC_F32], pair = LLVMVectorType(f32, 2);
    bool all = out_rows(p) == p->side[ROWS];
    If mine = {0};
    if (!all)
        mine = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, p->warp[ROWS], chunk, ""), "mine");
    LV row = l_div(e, p->lane, l_i64(e, 4)),
       column = l_mul(e, l_mod(e, p->lane, l_i64(e, 4)), l_i64(e, 2));
    if (all)
        row = l_add(e, row, l_mul(e, p->warp[ROWS], l_i64(e, p->shape->m * 16)));
    column = l_add(e, column, l_mul(e, p->warp[COLUMNS], l_i64(e, p->shape->n * 8)));
    LV base = l_add(e, l_mul(e, row, l_i64(e, out_pitch(p))), column);
    for (int64_t i = 0; i < p->shape->m; i++)
        for (int64_t j = 0; j < p->shape->n; j++)
            for (int64_t h = 0; h < 2; h++) {
                LV two = LLVMGetPoison(pair);
                for (int64_t x = 0; x < 2; x++)
                    two = LLVMBuildInsertElement(
                        e->b, two, l_load(e, f32, p->sum[i][j][2 * h + x], 0), i32(e, x), "");
                LV at = l_add(e, base, l_i64(e, (16 * i + 8 * h) * out_pitch(p) + 8 * j));
                l_store(e, two, l_gep(e, f32, p->shared, at), 8);
            }
    if (!all)
        if_end(e, &mine);
}

/* Sums of a chunk, e->lanes of a row a thread and turn. */
static void take_sums(Emit *e, Product *p, LV chunk)
{
    LLVMTypeRef f32 = e->type[SC_F32];
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    LV per_row = l_i64(e, p->side[COLUMNS] / e->lanes);
    Loop l = loop_begin(e, p->tid, l_i64(e, out_rows(p) * p->side[COLUMNS] / e->lanes),
                        l_i64(e, MMA_THREADS), "out");
    level_open(e, LV_ROW);
    LV at[2] = {l_div(e, l.iv, per_row), l_mul(e, l_mod(e, l.iv, per_row), l_i64(e, e->lanes))},
       inside = NULL;
    LV from =
        l_gep(e, f32, p->shared, l_add(e, l_mul(e, at[ROWS], l_i64(e, out_pitch(p))), at[COLUMNS]));
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
    Val v = {.v = l_load(e, l_vec(e, f32), from, e->lanes > 1 ? MOST_BYTES : 4),
             .vec = e->lanes > 1};
    value_set(e, p->reduce, e->level[p->reduce],
              cast_emit(e, DT_F32, (DType)e->k->inst.at[p->reduce].dtype, v));
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
    LV guard =
        both(e, align_guard(e, (uint32_t)p->axis[COLUMNS]), divides(e, p->n[COLUMNS], e->lanes));
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
    Loop chunks =
        loop_begin(e, l_i64(e, 0), l_i64(e, p->side[ROWS] / out_rows(p)), l_i64(e, 1), "chunk");
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

static void sizes(Emit *e, Product *p)
{
    Place place = level_enter(e, LV_TASK);
    p->n_k = axis_size(e, e->n_x);
    for (int s = 0; s < 2; s++) {
        p->n[s] = p->axis[s] == NO_AXIS ? l_i64(e, 1) : axis_size(e, (uint32_t)p->axis[s]);
        p->tiles[s] = l_ceil_div(e, p->n[s], l_i64(e, p->side[s]));
    }
    p->tid = cuda_special(e, "tid.x");
    p->lane = l_mod(e, p->tid, l_i64(e, WARP));
    LV warp = l_div(e, p->tid, l_i64(e, WARP));
    p->warp[ROWS] = l_div(e, warp, l_i64(e, p->shape->columns));
    p->warp[COLUMNS] = l_mod(e, warp, l_i64(e, p->shape->columns));
    level_leave(e, place);
}

static bool is_batch(const Product *p, int a)
{
    return a != p->axis[ROWS] && a != p->axis[COLUMNS];
}

static void task(Emit *e, Product *p, LV number, LV fetch, const Fetch *plans, const Epilogue *out)
{
    LV rest = l_div(e, number, p->tiles[COLUMNS]), batch = l_div(e, rest, p->tiles[ROWS]);
    p->first[COLUMNS] =
        l_mul(e, l_sub(e, number, l_mul(e, rest, p->tiles[COLUMNS])), l_i64(e, p->side[COLUMNS]));
    p->first[ROWS] =
        l_mul(e, l_sub(e, rest, l_mul(e, batch, p->tiles[ROWS])), l_i64(e, p->side[ROWS]));
    for (int a = (int)e->n_x - 1; a >= 0; a--)
        if (is_batch(p, a)) {
            e->axis[a] = ix_uniform(l_mod(e, batch, axis_size(e, (uint32_t)a)));
            batch = l_div(e, batch, axis_size(e, (uint32_t)a));
        }
    for (int64_t i = 0; i < p->shape->m; i++)
        for (int64_t j = 0; j < p->shape->n; j++)
            for (int r = 0; r < 4; r++)
                l_store(e, LLVMConstNull(e->type[SC_F32]), p->sum[i][j][r], 0);
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, p->n_k, l_i64(e, 0), ""), "some");
    Versions v = versions_begin(e, fetch);
    for (int which = 1; which >= 0; which--) {
        if (!version_open(e, &v, which))
            continue;
        p->fetch = plans[which];
        add_products(e, p);
        version_close(e, &v);
    }
    versions_end(e, &v);
    if_end(e, &some);
    epilogue(e, p, out);
    level_close(e, LV_ROW, LV_ROW);
}

static void allocate(Emit *e, Product *p, Fetch *plans)
{
    uint64_t bytes = (uint64_t)(out_rows(p) * out_pitch(p) * 4);
    for (int which = 0; which < 2; which++) {
        Fetch *f = &plans[which];
        bytes = (uint64_t)(2 * f->stage) > bytes ? (uint64_t)(2 * f->stage) : bytes;
        e->lanes = f->lanes;
        for (int s = 0; s < 2; s++)
            for (int64_t u = 0; u < f->loads[s]; u++)
                f->next[s][u] = l_alloca(e, l_vec(e, element_type(e, p)), 0, "next");
    }
    e->lanes = 1;
    for (int64_t i = 0; i < p->shape->m; i++)
        for (int64_t j = 0; j < p->shape->n; j++)
            for (int r = 0; r < 4; r++)
                p->sum[i][j][r] = l_alloca(e, e->type[SC_F32], 0, "sum");
    p->shared = cuda_shared(e, bytes, "tiles");
}

bool emit_mma(Emit *e)
{
    Product p = {0};
    GridPhase *phase;
    choose_factors(e, &p);
    if (!fits(e, &p))
        return false;
    choose_axes(e, &p);
    choose_shape(e, &p);
    Fetch plans[2];
    plan_fetch(e, &p, false);
    plans[0] = p.fetch;
    bool vectors = plan_fetch(e, &p, true);
    plans[1] = p.fetch;
    /* two blocks leave 128 registers: a big tile fits if nothing waits in registers on its way to
     * shared memory */
    bool room =
        p.shape != &shapes[SHAPE_BIG] || (vectors && p.fetch.async[ROWS] && p.fetch.async[COLUMNS]);
    cuda_entry(e, "", MMA_THREADS, room ? 2 : 1, &phase);
    GridPlan *g = e->grid;
    uint16_t tasks = grid_const(g, 1);
    for (int a = 0; a < (int)e->n_x; a++) {
        int64_t side = a == p.axis[ROWS]      ? p.side[ROWS]
                       : a == p.axis[COLUMNS] ? p.side[COLUMNS]
                                              : 1;
        uint16_t size = cuda_size(e, e->k->axes.at[a].size);
        tasks = grid_op(g, GRID_MUL, tasks, grid_op(g, GRID_CEIL_DIV, size, grid_const(g, side)));
    }
    phase->points = cuda_product(e, 0, e->k->axes.n);
    phase->blocks = grid_op(g, GRID_MIN, tasks, grid_const(g, INT32_MAX));
    sizes(e, &p);
    allocate(e, &p, plans);
    Place place = level_enter(e, LV_TASK);
    LV fetch = vectors ? fetch_guard(e, &p) : NULL;
    Epilogue out = plan_epilogue(e, &p);
    LV all = l_mul(e, p.tiles[ROWS], p.tiles[COLUMNS]);
    for (int a = 0; a < (int)e->n_x; a++)
        if (is_batch(&p, a))
            all = l_mul(e, all, axis_size(e, (uint32_t)a));
    level_leave(e, place);
    Loop l = loop_begin(e, cuda_special(e, "ctaid.x"), all, cuda_special(e, "nctaid.x"), "task");
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    task(e, &p, l.iv, fetch, plans, &out);
    loop_end(e, &l);
    cuda_return(e);
    return true;
}

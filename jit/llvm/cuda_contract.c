/*
 * Contractions on CUDA: a block of 16 x 16 threads computes a tile of `side` x `side` elements of one matrix product.
 *
 *     for tasks (batch, tile row, tile column), grid-stride
 *         registers = this thread's elements of the first slices
 *         for k0 = 0; k0 < K; k0 += depth
 *             slices to shared memory; meanwhile the next ones are on their way to registers
 *             for k of the slice: `each` rows times `each` columns of fused multiply-adds a thread
 *         sums through shared memory, so that neighbours are stored by neighbours: epilogue, stores
 *
 * Slices hold operands in the accumulator's dtype, as [k][row] and [k][column], with whatever is computed on a loaded
 * element done once, on its way to shared memory. Each element is one chain of multiply-adds over k from +0, as
 * everywhere: results equal the reference's bit for bit. No k past the end is added (-0 + 0 is +0); rows and columns past
 * the end read the last ones and are not stored.
 *
 * Where an operand varies along both axes of the tile, or there is no matrix, each thread computes an element by itself.
 *
 * Tensor cores have their own walk: cuda_mma.c. Left out so far: accesses of 16 bytes for slices.
 */
#include "jit/llvm/cuda.h"

enum { EDGE = 16, THREADS = EDGE * EDGE, PAD = 4, CHUNK = 64, MOST_EACH = 8, SMALL = 32, BIG = 512 };

typedef struct Product {
    VRef reduce, operand[2];   /* of rows, of columns */
    DType in, acc;
    int axis[2];               /* rows, columns; NO_AXIS: one */
    LV n[2], n_k, tiles[2], first[2]; /* sizes; tiles along each; first row and column of the task */
    int64_t each, side, depth; /* of a register tile and of the task's tile; k of a slice */
    bool along_k[2];           /* neighbouring threads load neighbours along k */
    LV tid, t[2];              /* this thread: number, row and column of its register tile */
    LV slice[2], out;          /* shared memory */
    int64_t loads;             /* elements of a slice that a thread loads */
    Copy *copy[2][MOST_EACH];
    LV next[2][MOST_EACH];     /* allocas: elements on their way */
    LV sum[MOST_EACH][MOST_EACH];
} Product;

static LLVMTypeRef acc_type(Emit *e, const Product *p) { return l_type(e, p->acc, false); }

static Val operand(Emit *e, const Product *p, VRef v) { return cast_emit(e, p->in, p->acc, value(e, v)); }

static LV multiply_add(Emit *e, const Product *p, LV a, LV b, LV sum)
{
    LLVMTypeRef type = acc_type(e, p);
    if (dtype_is_float(p->acc))
        return l_intrinsic(e, "llvm.fma", &type, 1, (LV[]){a, b, sum}, 3);
    return LLVMBuildAdd(e->b, LLVMBuildMul(e->b, a, b, ""), sum, "");
}

static bool varies(const Emit *e, VRef v, int axis) { return axis != NO_AXIS && (e->info[v].axes >> axis & 1); }

static int64_t hint(const Emit *e, int axis) { return axis == NO_AXIS ? 1 : e->k->axes.at[axis].hint; }

static void find(Emit *e, Product *p)
{
    const Kernel *k = e->k;
    while (k->inst.at[p->reduce].kind != KI_REDUCE || k->inst.at[p->reduce].op != OP_MATMUL)
        p->reduce++;
    const KInst *n = &k->inst.at[p->reduce];
    p->operand[0] = n->a, p->operand[1] = n->b;
    p->in = (DType)k->inst.at[n->a].dtype;
    p->acc = dtype_accumulator((DType)n->dtype);
    p->axis[1] = e->n_x ? (int)e->n_x - 1 : NO_AXIS;
    p->axis[0] = e->n_x > 1 ? (int)e->n_x - 2 : NO_AXIS;
}

static void set_k(Emit *e, LV k)
{
    e->flat = k;
    e->axis[e->k->axes.n - 1] = ix_uniform(k);
}

static void sizes(Emit *e, Product *p)
{
    Place place = level_enter(e, LV_TASK);
    p->n_k = l_i64(e, 1);
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        p->n_k = l_mul(e, p->n_k, axis_size(e, a));
    e->x_total = l_i64(e, 1);
    for (uint32_t a = 0; a < e->n_x; a++)
        e->x_total = l_mul(e, e->x_total, axis_size(e, a));
    for (int s = 0; s < 2; s++) {
        p->n[s] = p->axis[s] == NO_AXIS ? l_i64(e, 1) : axis_size(e, (uint32_t)p->axis[s]);
        p->tiles[s] = p->side ? l_ceil_div(e, p->n[s], l_i64(e, p->side)) : NULL;
    }
    p->tid = cuda_special(e, "tid.x");
    p->t[0] = l_div(e, p->tid, l_i64(e, EDGE));
    p->t[1] = l_mod(e, p->tid, l_i64(e, EDGE));
    level_leave(e, place);
}

static void finish_element(Emit *e, const Product *p, LV sum)
{
    Val v = {.v = sum};
    value_set(e, p->reduce, e->level[p->reduce], cast_emit(e, p->acc, (DType)e->k->inst.at[p->reduce].dtype, v));
    emit_stores(e, false, 0);
}

/* ---- one element a thread ---- */

static void emit_elements(Emit *e, Product *p)
{
    GridPhase *phase;
    cuda_entry(e, "", THREADS, 0, &phase);
    phase->points = cuda_product(e, 0, e->k->axes.n);
    phase->blocks = grid_op(e->grid, GRID_CEIL_DIV, cuda_product(e, 0, e->n_x), grid_const(e->grid, THREADS));
    phase->blocks = grid_op(e->grid, GRID_MIN, phase->blocks, grid_const(e->grid, INT32_MAX));
    sizes(e, p);
    LV from = l_add(e, l_mul(e, cuda_special(e, "ctaid.x"), l_i64(e, THREADS)), p->tid);
    LV by = l_mul(e, cuda_special(e, "nctaid.x"), l_i64(e, THREADS)), sum = l_alloca(e, acc_type(e, p), 0, "sum");
    Loop l = loop_begin(e, from, e->x_total, by, "element");
    level_open(e, LV_ROW);
    row_seek(e, l.iv, NULL);
    pin(e, LV_ROW);
    l_store(e, LLVMConstNull(acc_type(e, p)), sum, 0);
    Loop k = loop_begin(e, l_i64(e, 0), p->n_k, l_i64(e, 1), "k");
    level_open(e, LV_R);
    set_k(e, k.iv);
    LV a = operand(e, p, p->operand[0]).v, b = operand(e, p, p->operand[1]).v;
    l_store(e, multiply_add(e, p, a, b, l_load(e, acc_type(e, p), sum, 0)), sum, 0);
    level_close(e, LV_R, LV_ROW);
    loop_end(e, &k);
    pin(e, LV_ROW);
    finish_element(e, p, l_load(e, acc_type(e, p), sum, 0));
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &l);
    cuda_return(e);
}

/* ---- tiles ---- */

bool cuda_steps_along_k(const Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    uint32_t axis = e->k->axes.n - 1;
    if (n->kind == KI_LOAD) {
        const Idx *last = &e->k->idx.at[n->idx];
        while (last->kind == IX_ADD) { /* some term of the sum is the axis itself */
            const Idx *b = &e->k->idx.at[last->b];
            if (b->kind == IX_AXIS && b->a == axis)
                return true;
            last = &e->k->idx.at[last->a];
        }
        return last->kind == IX_AXIS && last->a == axis;
    }
    VRef in[4];
    uint32_t count = kernel_operands(n, in);
    for (uint32_t i = 0; i < count; i++)
        if (e->info[in[i]].r_level)
            return cuda_steps_along_k(e, in[i]);
    return false;
}

static void plan_tiles(Emit *e, Product *p)
{
    int64_t rows = hint(e, p->axis[0]), columns = hint(e, p->axis[1]), least = rows < columns ? rows : columns;
    p->each = least <= SMALL ? 1 : least >= BIG && dtype_bytes(p->acc) == 4 ? MOST_EACH : 4;
    p->side = EDGE * p->each;
    p->depth = p->each == MOST_EACH ? 8 : 16; /* what leaves room for two blocks in the registers */
    p->loads = p->side * p->depth / THREADS;
    for (int s = 0; s < 2; s++)
        p->along_k[s] = cuda_steps_along_k(e, p->operand[s]);
}

/* Number u of this thread's elements of a slice: where along the rows or columns, and where along k. */
static LV slice_place(Emit *e, const Product *p, int s, int64_t u, LV *k)
{
    LV n = l_add(e, p->tid, l_i64(e, u * THREADS)), inner = l_i64(e, p->along_k[s] ? p->depth : p->side);
    LV low = l_mod(e, n, inner), high = l_div(e, n, inner);
    *k = p->along_k[s] ? low : high;
    return p->along_k[s] ? high : low;
}

/* A tile of coordinates that every element of a slice has of its own, outside of the loop over k. */
static void open_slices(Emit *e, Product *p)
{
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    for (int s = 0; s < 2; s++)
        for (int64_t u = 0; u < p->loads; u++) {
            LV k;
            level_open(e, LV_ROW);
            Copy *c = p->copy[s][u] = copy_new(e);
            LV at = l_add(e, p->first[s], slice_place(e, p, s, u, &k));
            at = l_min(e, at, l_sub(e, p->n[s], l_i64(e, 1)));
            memcpy(e->axis, batch, sizeof batch);
            if (p->axis[s] != NO_AXIS)
                e->axis[p->axis[s]] = ix_uniform(at);
            if (p->axis[!s] != NO_AXIS)
                e->axis[p->axis[!s]] = ix_uniform(l_i64(e, 0));
            pin(e, LV_ROW);
            copy_leave(e, c);
        }
}

/* The slices from k0 on, to registers; k past the end takes the last one. */
static void fetch_slices(Emit *e, Product *p, LV k0)
{
    for (int s = 0; s < 2; s++)
        for (int64_t u = 0; u < p->loads; u++) {
            LV k;
            copy_enter(e, p->copy[s][u]);
            slice_place(e, p, s, u, &k);
            level_open(e, LV_R);
            set_k(e, l_min(e, l_add(e, k0, k), l_sub(e, p->n_k, l_i64(e, 1))));
            l_store(e, operand(e, p, p->operand[s]).v, p->next[s][u], 0);
            level_close(e, LV_R, LV_ROW);
            copy_leave(e, p->copy[s][u]);
        }
}

static int64_t slice_row(const Product *p) { return p->side + PAD; }

static void put_slices(Emit *e, Product *p)
{
    for (int s = 0; s < 2; s++)
        for (int64_t u = 0; u < p->loads; u++) {
            LV k, at = slice_place(e, p, s, u, &k);
            at = l_add(e, l_mul(e, k, l_i64(e, slice_row(p))), at);
            l_store(e, l_load(e, acc_type(e, p), p->next[s][u], 0), l_gep(e, acc_type(e, p), p->slice[s], at), 0);
        }
}

/* One k of the slices in shared memory. */
static void multiply(Emit *e, Product *p, LV k)
{
    LLVMTypeRef type = acc_type(e, p), some = p->each > 1 ? LLVMVectorType(type, 4) : type;
    LV x[2][MOST_EACH];
    unsigned bytes = (unsigned)dtype_bytes(p->acc), align = bytes * (p->each > 1 ? 4 : 1);
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < p->each; i += 4) {
            LV at = l_add(e, l_mul(e, k, l_i64(e, slice_row(p))), l_add(e, l_mul(e, p->t[s], l_i64(e, p->each)), l_i64(e, i)));
            LV v = l_load(e, some, l_gep(e, type, p->slice[s], at), align > MOST_BYTES ? MOST_BYTES : align);
            for (int64_t j = 0; j < 4 && i + j < p->each; j++)
                x[s][i + j] = p->each > 1 ? LLVMBuildExtractElement(e->b, v, LLVMConstInt(e->type[SC_I32], (unsigned)j, 0), "") : v;
        }
    for (int64_t i = 0; i < p->each; i++)
        for (int64_t j = 0; j < p->each; j++)
            l_store(e, multiply_add(e, p, x[0][i], x[1][j], l_load(e, type, p->sum[i][j], 0)), p->sum[i][j], 0);
}

static void multiply_slices(Emit *e, Product *p, LV k0)
{
    LV left = l_sub(e, p->n_k, k0);
    int64_t n;
    bool whole = l_is_const(p->n_k, &n) && n % p->depth == 0;
    LLVMBasicBlockRef full = l_block(e, "slice"), part = whole ? NULL : l_block(e, "part"), join = l_block(e, "");
    if (whole)
        LLVMBuildBr(e->b, full);
    else
        LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, left, l_i64(e, p->depth), ""), full, part);
    l_at(e, full);
    for (int64_t k = 0; k < p->depth; k++)
        multiply(e, p, l_i64(e, k));
    LLVMBuildBr(e->b, join);
    if (part) {
        l_at(e, part);
        Loop l = loop_begin(e, l_i64(e, 0), left, l_i64(e, 1), "k");
        multiply(e, p, l.iv);
        loop_end(e, &l);
        LLVMBuildBr(e->b, join);
    }
    l_at(e, join);
}

/* Rows [chunk, chunk + CHUNK) of the tile: sums to shared memory, then one element a thread and turn. */
static void epilogue(Emit *e, Product *p, const Ix *batch, int64_t chunk)
{
    LLVMTypeRef type = acc_type(e, p);
    int64_t rows = p->side < CHUNK ? p->side : CHUNK;
    LV row = l_mul(e, p->t[0], l_i64(e, p->each)), column = l_mul(e, p->t[1], l_i64(e, p->each));
    barrier(e);
    If mine = {0};
    if (rows < p->side) {
        LV low = LLVMBuildICmp(e->b, LLVMIntSGE, row, l_i64(e, chunk), "");
        LV high = LLVMBuildICmp(e->b, LLVMIntSLT, row, l_i64(e, chunk + rows), "");
        mine = if_begin(e, LLVMBuildAnd(e->b, low, high, ""), "mine");
    }
    for (int64_t i = 0; i < p->each; i++)
        for (int64_t j = 0; j < p->each; j++) {
            LV at = l_add(e, l_mul(e, l_add(e, row, l_i64(e, i - chunk)), l_i64(e, p->side)), l_add(e, column, l_i64(e, j)));
            l_store(e, l_load(e, type, p->sum[i][j], 0), l_gep(e, type, p->out, at), 0);
        }
    if (rows < p->side)
        if_end(e, &mine);
    barrier(e);
    Loop l = loop_begin(e, p->tid, l_i64(e, rows * p->side), l_i64(e, THREADS), "out");
    level_open(e, LV_ROW);
    memcpy(e->axis, batch, sizeof e->axis);
    LV side = l_i64(e, p->side), at[2] = {l_add(e, l_div(e, l.iv, side), l_i64(e, chunk)), l_mod(e, l.iv, side)}, inside = NULL;
    for (int s = 0; s < 2; s++) {
        at[s] = l_add(e, p->first[s], at[s]);
        LV here = LLVMBuildICmp(e->b, LLVMIntSLT, at[s], p->n[s], "");
        inside = inside ? LLVMBuildAnd(e->b, inside, here, "") : here;
    }
    If i = if_begin(e, inside, "exists");
    for (int s = 0; s < 2; s++)
        if (p->axis[s] != NO_AXIS)
            e->axis[p->axis[s]] = ix_uniform(at[s]);
    pin(e, LV_ROW);
    finish_element(e, p, l_load(e, type, l_gep(e, type, p->out, l.iv), 0));
    level_close(e, LV_ROW, LV_ROW);
    if_end(e, &i);
    loop_end(e, &l);
}

static void task(Emit *e, Product *p, LV number)
{
    LV rest = l_div(e, number, p->tiles[1]), batch = l_div(e, rest, p->tiles[0]);
    p->first[1] = l_mul(e, l_sub(e, number, l_mul(e, rest, p->tiles[1])), l_i64(e, p->side));
    p->first[0] = l_mul(e, l_sub(e, rest, l_mul(e, batch, p->tiles[0])), l_i64(e, p->side));
    for (int a = (int)e->n_x - 3; a >= 0; a--) {
        e->axis[a] = ix_uniform(l_mod(e, batch, axis_size(e, (uint32_t)a)));
        batch = l_div(e, batch, axis_size(e, (uint32_t)a));
    }
    Ix axes[MAX_AXES];
    memcpy(axes, e->axis, sizeof axes);
    for (int64_t i = 0; i < p->each; i++)
        for (int64_t j = 0; j < p->each; j++)
            l_store(e, LLVMConstNull(acc_type(e, p)), p->sum[i][j], 0);
    LV zero = l_i64(e, 0), slice = l_i64(e, p->depth);
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, p->n_k, zero, ""), "some");
    e->inner = LV_ROW;
    open_slices(e, p);
    fetch_slices(e, p, zero);
    Loop l = loop_begin(e, zero, p->n_k, slice, "slices");
    barrier(e); /* the last ones have been used */
    put_slices(e, p);
    barrier(e);
    fetch_slices(e, p, l_add(e, l.iv, slice));
    multiply_slices(e, p, l.iv);
    loop_end(e, &l);
    e->inner = LV_COUNT;
    if_end(e, &some);
    level_close(e, LV_ROW, LV_ROW);
    for (int64_t chunk = 0; chunk < p->side; chunk += CHUNK)
        epilogue(e, p, axes, chunk);
    level_close(e, LV_ROW, LV_ROW);
}

static void emit_tiles(Emit *e, Product *p)
{
    GridPhase *phase;
    plan_tiles(e, p);
    cuda_entry(e, "", THREADS, 2, &phase);
    GridPlan *g = e->grid;
    uint16_t tasks = cuda_product(e, 0, e->n_x > 2 ? e->n_x - 2 : 0), side = grid_const(g, p->side);
    for (int s = 0; s < 2; s++)
        if (p->axis[s] != NO_AXIS)
            tasks = grid_op(g, GRID_MUL, tasks, grid_op(g, GRID_CEIL_DIV, cuda_size(e, e->k->axes.at[p->axis[s]].size), side));
    phase->points = cuda_product(e, 0, e->k->axes.n);
    phase->blocks = grid_op(g, GRID_MIN, tasks, grid_const(g, INT32_MAX));
    sizes(e, p);
    uint64_t bytes = dtype_bytes(p->acc), slice = (uint64_t)(p->depth * slice_row(p)) * bytes;
    uint64_t out = (uint64_t)((p->side < CHUNK ? p->side : CHUNK) * p->side) * bytes;
    LV shared = cuda_shared(e, 2 * slice > out ? 2 * slice : out, "tiles");
    p->slice[0] = p->out = shared;
    p->slice[1] = l_gep_bytes(e, shared, l_i64(e, (int64_t)slice));
    for (int s = 0; s < 2; s++)
        for (int64_t u = 0; u < p->loads; u++)
            p->next[s][u] = l_alloca(e, acc_type(e, p), 0, "next");
    for (int64_t i = 0; i < p->each; i++)
        for (int64_t j = 0; j < p->each; j++)
            p->sum[i][j] = l_alloca(e, acc_type(e, p), 0, "sum");
    Place place = level_enter(e, LV_TASK);
    LV all = p->tiles[0];
    all = l_mul(e, all, p->tiles[1]);
    for (uint32_t a = 0; a + 2 < e->n_x; a++)
        all = l_mul(e, all, axis_size(e, a));
    level_leave(e, place);
    Loop l = loop_begin(e, cuda_special(e, "ctaid.x"), all, cuda_special(e, "nctaid.x"), "task");
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    task(e, p, l.iv);
    loop_end(e, &l);
    cuda_return(e);
}

void emit_contract_cuda(Emit *e)
{
    Product p = {0};
    if (emit_mma(e))
        return;
    find(e, &p);
    bool regular = e->n_r == 1 && !varies(e, p.operand[0], p.axis[1]) && !varies(e, p.operand[1], p.axis[0]) && e->n_x;
    if (regular)
        emit_tiles(e, &p);
    else
        emit_elements(e, &p);
}

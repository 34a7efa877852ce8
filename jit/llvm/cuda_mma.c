/*
 * Contractions on CUDA by tensor cores: factors in f16 or bf16, or f32 taken as tf32, sums in f32.
 *
 *     for tasks (batch, tile row, tile column), grid-stride
 *         slice 0 to shared memory
 *         for k0 = 0; k0 < K; k0 += depth
 *             barrier
 *             slice k0 + depth on its way: by cp.async where the factor is a plain load, else to
 * registers for steps of the slice: fragments by ldmatrix, one mma.sync a pair of fragments
 *             registers to the other half of the shared memory
 *         sums through shared memory, so that neighbours are stored by neighbours: epilogue, stores
 *
 * A block has eight warps, `rows` x `columns` of them; a warp has m x n fragments of 16 x 8 sums
 * (`shapes`).
 *
 * When: in fast mode only. Products are exact and sums are f32, but their order within an
 * instruction and its rounding are the device's; strict mode promises the reference's bits and goes
 * to cuda_contract.c. tf32 keeps 10 bits of each factor, so it needs the option of that name as
 * well. Bounds are in ir/accuracy_cuda.def. Whether tensor cores are used depends on dtypes, device and
 * options alone, never on sizes or hints: every element is one chain of instructions over k from +0
 * whatever the tiles, so variants of a program and fusions of a graph give the same bits.
 *
 * Shared memory. A slice lies as its buffer does, [row][k] or [k][row], padded so that eight rows
 * of 16 bytes meet no bank twice; ldmatrix reads the first as it is and transposes the second (but
 * not 32-bit elements: those are loaded one by one). k past the end is zero for both factors; rows
 * and columns past the end repeat the last ones and are not stored.
 *
 * Versions. Slices come `lanes` elements at a time (16 bytes of the stored type) where pointers and
 * sizes allow it, else one by one; the epilogue likewise; the kernel looks at both guards itself.
 */
#include "jit/llvm/cuda.h"

#include <stdio.h>

enum {
    WARPS = 8,
    THREADS = WARPS * WARP,
    HALVES = 2,
    MOST_FRAGMENTS = 4,
    MOST_LOADS = 8,
    DEVICE_BLOCKS = 108
};
enum {
    ROWS,
    COLUMNS
}; /* the two factors, and the axis of the tile that only this one varies along */
enum { SLICE_BYTES = 64, OUT_BYTES = 40 * 1024, BANK_PAD = 16 };

static const struct Shape {
    int64_t rows, columns, m, n; /* warps; fragments of each */
} shapes[] = {{2, 4, 4, 4}, {2, 4, 2, 2}, {2, 4, 1, 1}, {1, 8, 1, 2}, {8, 1, 1, 2}};
enum { SHAPE_BIG, SHAPE_MIDDLE, SHAPE_SMALL, SHAPE_FEW_ROWS, SHAPE_FEW_COLUMNS };

/* How a version of the code brings slices to shared memory. */
typedef struct Fetch {
    int lanes;
    int64_t depth, loads[2]; /* k of a slice; accesses of a thread */
    int64_t stage;           /* bytes of half the shared memory */
    const uint8_t *align[2]; /* e->tile_align */
    bool async[2];
    Copy *copy[2][MOST_LOADS];
    LV next[2][MOST_LOADS]; /* allocas: elements on their way */
} Fetch;

typedef struct Product {
    VRef reduce, operand[2];
    DType type;   /* of the factors: F16, BF16, F32 for tf32 */
    bool short_k; /* sm_75: instructions over 8 k instead of 16 */
    int axis[2];  /* NO_AXIS: one row, one column */
    LV n[2], n_k, tiles[2],
        first[2]; /* sizes; tiles along each; first row and column of the task */
    const struct Shape *shape;
    int64_t side[2];       /* of the tile */
    bool along_k[2];       /* slices lie as [row][k] */
    LV tid, lane, warp[2]; /* this thread: number, lane, row and column of its warp */
    LV fragment[2]; /* element of a slice that this lane's first address is at, but for the slice's
                       pitch */
    LV shared;
    Fetch fetch;
    LV sum[MOST_FRAGMENTS][MOST_FRAGMENTS][4];
} Product;

static int64_t element_bytes(const Product *p)
{
    return (int64_t)dtype_bytes(p->type);
}
static int64_t step_k(const Product *p)
{
    return 32 / element_bytes(p);
} /* of the fragments that are loaded at once */

static LV i32(Emit *e, int64_t v)
{
    return LLVMConstInt(e->type[SC_I32], (uint64_t)v, 0);
}
static LLVMTypeRef element_type(Emit *e, const Product *p)
{
    return e->type[p->type == DT_F32 ? SC_I32 : SC_I16];
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
static bool is_half(DType t)
{
    return t == DT_F16 || t == DT_BF16;
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

/* Do neighbouring elements of this factor lie along k? Decided by its first load that varies along
 * k. */
static bool steps_along_k(Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    uint32_t axis = e->n_x;
    if (n->kind == KI_LOAD) {
        for (IRef at = n->idx;;
             at = e->k->idx.at[at].a) { /* some term of the sum is the axis itself */
            const Idx *x = &e->k->idx.at[at];
            const Idx *term = x->kind == IX_ADD ? &e->k->idx.at[x->b] : x;
            if (term->kind == IX_AXIS && term->a == axis)
                return true;
            if (x->kind != IX_ADD)
                return false;
        }
    }
    VRef in[4];
    uint32_t count = kernel_operands(n, in);
    for (uint32_t i = 0; i < count; i++)
        if (e->info[in[i]].r_level)
            return steps_along_k(e, in[i]);
    return false;
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
        p->along_k[s] = p->axis[s] == NO_AXIS || steps_along_k(e, p->operand[s]);
}

/* ---- slices ---- */

/* Elements from one row of a slice to the next. */
static int64_t pitch(const Product *p, int s)
{
    int64_t pad = BANK_PAD / element_bytes(p),
            wide = p->type == DT_F32 ? 2 * pad : pad; /* not by ldmatrix */
    return p->along_k[s] ? p->fetch.depth + pad : p->side[s] + wide;
}

static int64_t slice_bytes(const Product *p, int s)
{
    return (p->along_k[s] ? p->side[s] : p->fetch.depth) * pitch(p, s) * element_bytes(p);
}

static void mark_operands(Emit *e, VRef v, bool *mark)
{
    VRef in[4];
    uint32_t n = kernel_operands(&e->k->inst.at[v], in);
    mark[v] = true;
    for (uint32_t i = 0; i < n; i++)
        mark_operands(e, in[i], mark);
}

/* Which of the loads of factor s can be whole aligned accesses. */
static bool plan_factor(Emit *e, Product *p, int s)
{
    bool *mine = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1), some = false;
    mark_operands(e, p->operand[s], mine);
    plan_align(e, p->along_k[s] ? e->n_x : (uint32_t)p->axis[s]);
    uint8_t *align = ARENA_ARRAY(e->arena, uint8_t, e->k->inst.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        align[i] = mine[i] ? e->tile_align[i] : 0;
        some |= align[i] != 0;
    }
    p->fetch.align[s] = align;
    const KInst *n = &e->k->inst.at[p->operand[s]];
    const KArg *arg = n->kind == KI_LOAD ? &e->k->args.at[n->arg] : NULL;
    p->fetch.async[s] = !p->short_k && arg && n->pred == VREF_NONE && is_half(p->type) &&
                        align[p->operand[s]] == MOST_BYTES;
    return some;
}

static bool plan_fetch(Emit *e, Product *p, bool vector)
{
    Fetch *f = &p->fetch;
    *f = (Fetch){.lanes = vector ? MOST_BYTES / (int)element_bytes(p) : 1};
    f->depth = (vector ? SLICE_BYTES : SLICE_BYTES / 2) / element_bytes(p);
    bool some = false;
    for (int s = 0; s < 2; s++) {
        int64_t all = p->side[s] * f->depth / f->lanes;
        f->loads[s] = (all + THREADS - 1) / THREADS;
        f->stage += slice_bytes(p, s);
    }
    e->lanes = f->lanes;
    for (int s = 0; s < 2 && vector; s++)
        some |= plan_factor(e, p, s);
    e->lanes = 1;
    e->tile_align = NULL;
    return some;
}

static LV both(Emit *e, LV a, LV b)
{
    return LLVMBuildAnd(e->b, a, b, "");
}

static LV divides(Emit *e, LV n, int by)
{
    LV low = LLVMBuildAnd(e->b, n, l_i64(e, by - 1), "");
    return LLVMBuildICmp(e->b, LLVMIntEQ, low, l_i64(e, 0), "");
}

/* i1: this launch's slices can come whole. */
static LV fetch_guard(Emit *e, Product *p)
{
    LV guard = LLVMConstInt(e->type[SC_I1], 1, 0);
    e->lanes = p->fetch.lanes;
    for (int s = 0; s < 2; s++) {
        e->tile_align = p->fetch.align[s];
        guard = both(e, guard, align_guard(e, p->along_k[s] ? e->n_x : (uint32_t)p->axis[s]));
        guard = both(e, guard, divides(e, p->along_k[s] ? p->n_k : p->n[s], e->lanes));
    }
    e->lanes = 1;
    e->tile_align = NULL;
    return guard;
}

/* Access u of this thread to a slice: which row or column of the tile, which k; `mine`: i1, or NULL
 * for always. */
typedef struct Spot {
    LV row, k, mine;
} Spot;

static Spot spot_of(Emit *e, const Product *p, int s, int64_t u)
{
    const Fetch *f = &p->fetch;
    int64_t inner = (p->along_k[s] ? f->depth : p->side[s]) / f->lanes,
            all = p->side[s] * f->depth / f->lanes;
    LV n = l_add(e, p->tid, l_i64(e, u * THREADS));
    Spot at = {0};
    if (all < THREADS) {
        at.mine = LLVMBuildICmp(e->b, LLVMIntSLT, n, l_i64(e, all), "");
        n = l_mod(e, n, l_i64(e, all));
    }
    LV low = l_mul(e, l_mod(e, n, l_i64(e, inner)), l_i64(e, f->lanes)),
       high = l_div(e, n, l_i64(e, inner));
    at.row = p->along_k[s] ? high : low;
    at.k = p->along_k[s] ? low : high;
    return at;
}

static Ix lanes_from(Emit *e, LV base, bool lanes)
{
    return lanes && e->lanes > 1 ? (Ix){.base = base, .stride = l_i64(e, 1), .aligned = true}
                                 : ix_uniform(base);
}

/* The coordinates of every access but for k, outside of the loop over k. */
static void open_slices(Emit *e, Product *p)
{
    Fetch *f = &p->fetch;
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    e->lanes = f->lanes;
    for (int s = 0; s < 2; s++)
        for (int64_t u = 0; u < f->loads[s]; u++) {
            level_open(e, LV_ROW);
            Copy *c = f->copy[s][u] = copy_new(e);
            LV at = l_add(e, p->first[s], spot_of(e, p, s, u).row);
            at = l_min(e, at, l_sub(e, p->n[s], l_i64(e, p->along_k[s] ? 1 : f->lanes)));
            memcpy(e->axis, batch, sizeof batch);
            if (p->axis[s] != NO_AXIS)
                e->axis[p->axis[s]] = lanes_from(e, at, !p->along_k[s]);
            if (p->axis[!s] != NO_AXIS)
                e->axis[p->axis[!s]] = ix_uniform(l_i64(e, 0));
            pin(e, LV_ROW);
            copy_leave(e, c);
        }
    e->lanes = 1;
}

/* An element of a slice as shared memory has it. */
static LV to_factor(Emit *e, const Product *p, LV v)
{
    if (p->type != DT_F32)
        return v;
    if (e->lanes == 1)
        return l_intrinsic(e, "llvm.nvvm.f2tf32.rna", NULL, 0, &v, 1);
    LV all = LLVMGetPoison(l_vec(e, e->type[SC_I32]));
    for (int i = 0; i < e->lanes; i++) {
        LV x = LLVMBuildExtractElement(e->b, v, i32(e, i), "");
        all = LLVMBuildInsertElement(
            e->b, all, l_intrinsic(e, "llvm.nvvm.f2tf32.rna", NULL, 0, &x, 1), i32(e, i), "");
    }
    return all;
}

/* Where access u lands in the half of shared memory at `half`. */
static LV slice_at(Emit *e, const Product *p, int s, Spot at, LV half)
{
    LV row = p->along_k[s] ? at.row : at.k, column = p->along_k[s] ? at.k : at.row;
    LV slice = s == ROWS ? half : l_gep_bytes(e, half, l_i64(e, slice_bytes(p, ROWS)));
    return l_gep(e, element_type(e, p), slice,
                 l_add(e, l_mul(e, row, l_i64(e, pitch(p, s))), column));
}

static void copy_async(Emit *e, const Product *p, int s, Spot at, LV half, LV exists)
{
    const KInst *n = &e->k->inst.at[p->operand[s]];
    Address from = address_of(e, l_memory(e, p->type), argument(e, n->arg), n->idx);
    If mine = {0};
    if (at.mine)
        mine = if_begin(e, at.mine, "mine");
    LV bytes = exists ? LLVMBuildSelect(e->b, exists, i32(e, MOST_BYTES), i32(e, 0), "")
                      : i32(e, MOST_BYTES);
    l_intrinsic(e, "llvm.nvvm.cp.async.cg.shared.global.16.s", NULL, 0,
                (LV[]){slice_at(e, p, s, at, half), from.ptr, bytes}, 3);
    if (at.mine)
        if_end(e, &mine);
}

static bool any_async(const Product *p)
{
    return p->fetch.async[ROWS] || p->fetch.async[COLUMNS];
}

/* The slices from k0 on, on their way to the half at `half`; k past the end is zero. */
static void fetch_slices(Emit *e, Product *p, LV k0, LV half)
{
    Fetch *f = &p->fetch;
    int64_t n;
    bool whole = l_is_const(p->n_k, &n) && n % f->depth == 0;
    e->lanes = f->lanes;
    for (int s = 0; s < 2; s++) {
        e->tile_align = f->align[s];
        for (int64_t u = 0; u < f->loads[s]; u++) {
            Spot at = spot_of(e, p, s, u);
            LV k = l_add(e, k0, at.k),
               last = l_sub(e, p->n_k, l_i64(e, p->along_k[s] ? f->lanes : 1));
            LV exists = whole ? NULL : LLVMBuildICmp(e->b, LLVMIntSLT, k, p->n_k, "");
            copy_enter(e, f->copy[s][u]);
            level_open(e, LV_R);
            e->flat = l_min(e, k, last);
            e->axis[e->n_x] = lanes_from(e, e->flat, p->along_k[s]);
            if (f->async[s]) {
                copy_async(e, p, s, at, half, exists);
            } else {
                LV v = to_factor(e, p, val_vector(e, value(e, p->operand[s])));
                v = exists ? LLVMBuildSelect(e->b, exists, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
                l_store(e, v, f->next[s][u], 0);
            }
            level_close(e, LV_R, LV_ROW);
            copy_leave(e, f->copy[s][u]);
        }
    }
    e->lanes = 1;
    e->tile_align = NULL;
}

static void put_slices(Emit *e, Product *p, LV half)
{
    Fetch *f = &p->fetch;
    e->lanes = f->lanes;
    LLVMTypeRef type = l_vec(e, element_type(e, p));
    for (int s = 0; s < 2; s++)
        for (int64_t u = 0; u < f->loads[s] && !f->async[s]; u++) {
            Spot at = spot_of(e, p, s, u);
            If mine = {0};
            if (at.mine)
                mine = if_begin(e, at.mine, "mine");
            l_store(e, l_load(e, type, f->next[s][u], 0), slice_at(e, p, s, at, half),
                    (unsigned)(f->lanes * element_bytes(p)));
            if (at.mine)
                if_end(e, &mine);
        }
    e->lanes = 1;
}

/* ---- fragments ---- */

/*
 * Sixteen rows (or columns) from `first` of the warp's on, and step_k of k from `k` on, as mma.sync
 * wants them: register r holds rows 8 * (r % 2)... of k half r / 2 for the rows' factor, k half r %
 * 2 of columns 8 * (r / 2)... for the other. Lane l of ldmatrix gives the address of row l % 8 of
 * matrix l / 8.
 */
static void load_fragments(Emit *e, const Product *p, int s, LV slice, int64_t first, int64_t k,
                           int registers, LV *out)
{
    LLVMTypeRef type = element_type(e, p);
    LV at = l_add(e, p->fragment[s],
                  l_i64(e, p->along_k[s] ? first * pitch(p, s) + k : k * pitch(p, s) + first));
    if (p->type == DT_F32 && !p->along_k[s]) {
        for (int r = 0; r < registers; r++) {
            int64_t row = 8 * (s == ROWS ? r % 2 : r / 2), half = 4 * (s == ROWS ? r / 2 : r % 2);
            out[r] =
                l_load(e, type,
                       l_gep(e, type, slice, l_add(e, at, l_i64(e, half * pitch(p, s) + row))), 4);
        }
        return;
    }
    char name[64];
    snprintf(name, sizeof name, "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x%d%s.b16", registers,
             p->along_k[s] ? "" : ".trans");
    LV from = l_gep(e, type, slice, at);
    LLVMTypeRef pointer = LLVMTypeOf(from);
    LV all = l_intrinsic(e, name, &pointer, 1, &from, 1);
    for (int r = 0; r < registers; r++)
        out[r] = LLVMBuildExtractValue(e->b, all, (unsigned)r, "");
}

/* This lane's part of the address of fragments: an element of a slice. */
static void place_fragments(Emit *e, Product *p)
{
    LV low = l_mod(e, p->lane, l_i64(e, 8)), eight = l_i64(e, 8);
    LV middle = l_mod(e, l_div(e, p->lane, eight), l_i64(e, 2)),
       high = l_div(e, p->lane, l_i64(e, 16));
    for (int s = 0; s < 2; s++) {
        int64_t of_warp = s == ROWS ? p->shape->m * 16 : p->shape->n * 8, row = pitch(p, s),
                half = step_k(p) / 2;
        LV up = s == ROWS ? middle : high,
           along = s == ROWS ? high : middle; /* 8 rows further; half a step of k further */
        if (s == COLUMNS && p->shape->n == 1)
            up = l_i64(e, 0); /* two matrices: the other lanes' addresses are not used */
        LV base = l_mul(e, p->warp[s], l_i64(e, of_warp));
        if (p->along_k[s]) {
            base = l_add(e, base, l_add(e, low, l_mul(e, up, eight)));
            p->fragment[s] =
                l_add(e, l_mul(e, base, l_i64(e, row)), l_mul(e, along, l_i64(e, half)));
        } else if (p->type == DT_F32) { /* lane 4g + t: k t, row g */
            LV k = l_mul(e, l_mod(e, p->lane, l_i64(e, 4)), l_i64(e, row));
            p->fragment[s] = l_add(e, k, l_add(e, base, l_div(e, p->lane, l_i64(e, 4))));
        } else {
            LV k = l_add(e, low, l_mul(e, along, l_i64(e, half)));
            p->fragment[s] =
                l_add(e, l_mul(e, k, l_i64(e, row)), l_add(e, base, l_mul(e, up, eight)));
        }
    }
}

/* sum += a * b. LLVM takes f16 as pairs and the others as words. */
static void multiply_add(Emit *e, const Product *p, const LV *a, const LV *b, const LV *sum)
{
    int na = p->short_k ? 2 : 4, nb = na / 2;
    const char *name = p->type == DT_F32    ? "llvm.nvvm.mma.m16n8k8.row.col.tf32"
                       : p->type == DT_BF16 ? "llvm.nvvm.mma.m16n8k16.row.col.bf16"
                       : p->short_k         ? "llvm.nvvm.mma.m16n8k8.row.col.f32.f32"
                                            : "llvm.nvvm.mma.m16n8k16.row.col.f32.f32";
    LLVMTypeRef pair = LLVMVectorType(e->half, 2);
    LV in[10];
    for (int part = 0; part < (p->short_k ? 2 : 1); part++) {
        int n = 0;
        for (int i = 0; i < na; i++)
            in[n++] = a[part * na + i];
        for (int i = 0; i < nb; i++)
            in[n++] = b[part * nb + i];
        for (int i = 0; i < n && p->type == DT_F16; i++)
            in[i] = LLVMBuildBitCast(e->b, in[i], pair, "");
        for (int i = 0; i < 4; i++)
            in[n++] = l_load(e, e->type[SC_F32], sum[i], 0);
        LV d = l_intrinsic(e, name, NULL, 0, in, (unsigned)n);
        for (int i = 0; i < 4; i++)
            l_store(e, LLVMBuildExtractValue(e->b, d, (unsigned)i, ""), sum[i], 0);
    }
}

static void multiply_slices(Emit *e, const Product *p, LV half)
{
    LV other = l_gep_bytes(e, half, l_i64(e, slice_bytes(p, ROWS)));
    for (int64_t k = 0; k < p->fetch.depth; k += step_k(p)) {
        LV a[MOST_FRAGMENTS][4], b[MOST_FRAGMENTS][2];
        for (int64_t i = 0; i < p->shape->m; i++)
            load_fragments(e, p, ROWS, half, 16 * i, k, 4, a[i]);
        if (p->shape->n == 1)
            load_fragments(e, p, COLUMNS, other, 0, k, 2, b[0]);
        else
            for (int64_t j = 0; j < p->shape->n; j += 2)
                load_fragments(e, p, COLUMNS, other, 8 * j, k, 4, b[j]);
        for (int64_t i = 0; i < p->shape->m; i++)
            for (int64_t j = 0; j < p->shape->n; j++)
                multiply_add(e, p, a[i], b[j], p->sum[i][j]);
    }
}

/* ---- the loop over k ---- */

static void wait_async(Emit *e, const Product *p)
{
    if (any_async(p))
        l_intrinsic(e, "llvm.nvvm.cp.async.wait.all", NULL, 0, NULL, 0);
}

static void add_products(Emit *e, Product *p)
{
    Fetch *f = &p->fetch;
    LV zero = l_i64(e, 0), depth = l_i64(e, f->depth), stage = l_i64(e, f->stage);
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    level_open(e, LV_ROW);
    e->inner = LV_ROW;
    open_slices(e, p);
    place_fragments(e, p);
    barrier(e); /* the last task's sums have been read */
    fetch_slices(e, p, zero, p->shared);
    put_slices(e, p, p->shared);
    Loop l = loop_begin(e, zero, p->n_k, depth, "slices");
    LV odd = l_mod(e, l_div(e, l.iv, depth), l_i64(e, HALVES)), offset = l_mul(e, odd, stage);
    LV here = l_gep_bytes(e, p->shared, offset),
       there = l_gep_bytes(e, p->shared, l_sub(e, stage, offset));
    wait_async(e, p);
    barrier(e); /* this slice is there, the one before has been used */
    fetch_slices(e, p, l_add(e, l.iv, depth), there);
    multiply_slices(e, p, here);
    put_slices(e, p, there);
    loop_end(e, &l);
    wait_async(e, p); /* for what lies past the end */
    e->inner = LV_COUNT;
    level_close(e, LV_ROW, LV_ROW);
    memcpy(e->axis, batch, sizeof batch);
}

/* ---- the epilogue ---- */

static int64_t out_pitch(const Product *p)
{
    return p->side[COLUMNS] + 8;
} /* four rows of sums meet no bank twice */

/* Rows of the tile that go through shared memory at once: all, or those of one row of warps. */
static int64_t out_rows(const Product *p)
{
    return p->side[ROWS] * out_pitch(p) * 4 <= OUT_BYTES ? p->side[ROWS] : p->shape->m * 16;
}

static void put_sums(Emit *e, const Product *p, int64_t chunk)
{
    LLVMTypeRef f32 = e->type[SC_F32], pair = LLVMVectorType(f32, 2);
    bool all = out_rows(p) == p->side[ROWS];
    If mine = {0};
    if (!all)
        mine =
            if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, p->warp[ROWS], l_i64(e, chunk), ""), "mine");
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
static void take_sums(Emit *e, Product *p, int64_t chunk)
{
    LLVMTypeRef f32 = e->type[SC_F32];
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    LV per_row = l_i64(e, p->side[COLUMNS] / e->lanes);
    Loop l = loop_begin(e, p->tid, l_i64(e, out_rows(p) * p->side[COLUMNS] / e->lanes),
                        l_i64(e, THREADS), "out");
    level_open(e, LV_ROW);
    LV at[2] = {l_div(e, l.iv, per_row), l_mul(e, l_mod(e, l.iv, per_row), l_i64(e, e->lanes))},
       inside = NULL;
    LV from =
        l_gep(e, f32, p->shared, l_add(e, l_mul(e, at[ROWS], l_i64(e, out_pitch(p))), at[COLUMNS]));
    at[ROWS] = l_add(e, at[ROWS], l_i64(e, chunk * out_rows(p)));
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
    for (int64_t chunk = 0; chunk * out_rows(p) < p->side[ROWS]; chunk++) {
        barrier(e);
        put_sums(e, p, chunk);
        barrier(e);
        Versions v = versions_begin(e, plan->guard);
        for (int which = 1; which >= 0; which--) {
            if (!version_open(e, &v, which))
                continue;
            e->lanes = which ? plan->lanes : 1;
            e->tile_align = which ? plan->align : NULL;
            take_sums(e, p, chunk);
            e->lanes = 1;
            e->tile_align = NULL;
            version_close(e, &v);
        }
        versions_end(e, &v);
    }
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
        bytes = (uint64_t)(HALVES * f->stage) > bytes ? (uint64_t)(HALVES * f->stage) : bytes;
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
    cuda_entry(e, "", THREADS, p.shape == &shapes[SHAPE_BIG] ? 1 : 2, &phase);
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

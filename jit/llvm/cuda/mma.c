/*
 * Contractions on CUDA by tensor cores: factors in f16 or bf16, or f32 taken as tf32, sums in f32. The walk is
 * cuda/tiles.c; for each step of a slice, fragments come by ldmatrix, and one mma.sync takes a pair of them.
 *
 * A warp has m x n fragments of 16 x 8 sums, by the tile (jit/cuda_tile.h).
 *
 * When: in fast mode only. Products are exact and sums are f32, but their order within an
 * instruction and its rounding are the device's; strict mode promises the reference's bits and goes
 * to cuda/fma.c. tf32 keeps 10 bits of each factor, so it needs the option of that name as
 * well. Bounds are in ir/accuracy_cuda.def. Whether tensor cores are used depends on the factors'
 * dtypes, device and options, never on sizes or hints: every element is one chain of instructions
 * over k from +0 whatever the tiles, so the same kernel for other sizes gives the same bits.
 * Another fusion need not: factors cast from f16 or bf16 to f32 are multiplied as they were before
 * the cast where it is part of the kernel, as f32 where its result has a buffer of its own (fuse=0,
 * eager mode, a cast that is also an output). Both keep the bounds.
 *
 * Shared memory. A slice lies as its buffer does, [row][k] or [k][row], padded so that eight rows
 * of 16 bytes meet no bank twice; ldmatrix reads the first as it is and transposes the second (but
 * not 32-bit elements: those are loaded one by one). k past the end is zero for both factors.
 */
#include "jit/llvm/cuda/tiles.h"

#include <stdio.h>

enum { BANK_PAD = 16, FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 8, MOST_FRAGMENTS = 8, MANY_SUMS = 64 };

/* sm_75: instructions over 8 k instead of 16 */
static bool short_k(const Product *p) { return !p->async; }

/* Of the fragments that are loaded at once. */
int64_t mma_step(const Product *p) { return 32 / element_bytes(p); }

/* ---- whether, and which way ---- */

/* Factors that were widened to f32 are taken as they were before: their products are exact either
 * way. */
VRef mma_factor(const Emit *e, VRef v)
{
    const KInst *x = &e->k->inst.at[v];
    return x->kind == KI_OP && x->op == OP_CAST && x->dtype == DT_F32 && dtype_is_half((DType)e->k->inst.at[x->a].dtype) ? x->a : v;
}

static void choose_factors(Emit *e, Product *p)
{
    const KInst *n = &e->k->inst.at[p->reduce];
    VRef a = mma_factor(e, n->a), b = mma_factor(e, n->b);
    DType from = (DType)e->k->inst.at[a].dtype;
    if (a == n->a || b == n->b || (DType)e->k->inst.at[b].dtype != from)
        return;
    p->operand[ROWS] = a, p->operand[COLUMNS] = b;
    p->type = from;
}

static bool fits(const Emit *e, const Product *p)
{
    if (e->k->inst.at[p->reduce].order.kind != ORD_PARTS || e->n_r != 1)
        return false;
    switch (p->type) {
    case DT_F16: return p->async || (e->cuda->sm >= 75 && e->cuda->ptx >= 65);
    case DT_BF16: return p->async;
    case DT_F32: return p->async && e->options->value[OPT_TF32];
    default: return false;
    }
}

/* ---- fragments ---- */

static LV as_tf32(Emit *e, LV v) { return l_intrinsic(e, "llvm.nvvm.f2tf32.rna", NULL, 0, &v, 1); }

void mma_round(Emit *e, const Product *p, LV *v, int n)
{
    for (int i = 0; i < n && p->type == DT_F32; i++)
        v[i] = as_tf32(e, LLVMBuildBitCast(e->b, v[i], e->type[SC_F32], ""));
}

static LV factor(Emit *e, const Product *p, int s)
{
    LV v = val_vector(e, value(e, p->operand[s]));
    if (p->type == DT_F32 && e->lanes == 1) {
        v = as_tf32(e, v);
    } else if (p->type == DT_F32) {
        LV all = LLVMGetPoison(l_vec(e, p->element));
        for (int i = 0; i < e->lanes; i++) {
            LV one = as_tf32(e, LLVMBuildExtractElement(e->b, v, const_i32(e, i), ""));
            all = LLVMBuildInsertElement(e->b, all, one, const_i32(e, i), "");
        }
        v = all;
    }
    return v;
}

/*
 * Sixteen rows (or columns) from `first` of the warp's on, and mma_step of k from `k` on, as mma.sync
 * wants them: register r holds rows 8 * (r % 2)... of k half r / 2 for the rows' factor, k half r %
 * 2 of columns 8 * (r / 2)... for the other. Lane l of ldmatrix gives the address of row l % 8 of
 * matrix l / 8.
 */
void mma_load(Emit *e, const Product *p, int s, LV slice, int64_t first, int64_t k, int registers, LV *out)
{
    LLVMTypeRef type = p->element;
    LV at = l_add(e, p->place[s], l_i64(e, p->keeps_k[s] ? first * slice_pitch(p, s) + k : k * slice_pitch(p, s) + first));
    if (p->type == DT_F32 && !p->keeps_k[s]) {
        for (int r = 0; r < registers; r++) {
            int64_t row = 8 * (s == ROWS ? r % 2 : r / 2), half = 4 * (s == ROWS ? r / 2 : r % 2);
            out[r] = l_load(e, type, l_gep(e, type, slice, l_add(e, at, l_i64(e, half * slice_pitch(p, s) + row))), 4);
        }
        return;
    }
    char name[64];
    snprintf(name, sizeof name, "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x%d%s.b16", registers, p->keeps_k[s] ? "" : ".trans");
    LV from = l_gep(e, type, slice, at);
    LLVMTypeRef pointer = LLVMTypeOf(from);
    LV all = l_intrinsic(e, name, &pointer, 1, &from, 1);
    for (int r = 0; r < registers; r++)
        out[r] = LLVMBuildExtractValue(e->b, all, (unsigned)r, "");
}

/* The four sums of a fragment. */
static const LV *sums_of(const Product *p, int64_t i, int64_t j) { return &p->sum[4 * (i * p->fragments[COLUMNS] + j)]; }

/* This lane's part of the address of fragments: an element of a slice. */
void mma_place(Emit *e, Product *p)
{
    LV low = l_mod(e, p->lane, l_i64(e, 8)), eight = l_i64(e, 8);
    LV middle = l_mod(e, l_div(e, p->lane, eight), l_i64(e, 2)), high = l_div(e, p->lane, l_i64(e, 16));
    for (int s = 0; s < 2; s++) {
        int64_t of_warp = p->of_warp[s], row = slice_pitch(p, s), half = mma_step(p) / 2;
        LV up = s == ROWS ? middle : high, along = s == ROWS ? high : middle; /* 8 rows further; half a step of k further */
        if (s == COLUMNS && p->fragments[COLUMNS] == 1)
            up = l_i64(e, 0); /* two matrices: the other lanes' addresses are not used */
        LV base = l_mul(e, p->warp[s], l_i64(e, of_warp));
        if (p->keeps_k[s]) {
            base = l_add(e, base, l_add(e, low, l_mul(e, up, eight)));
            p->place[s] = l_add(e, l_mul(e, base, l_i64(e, row)), l_mul(e, along, l_i64(e, half)));
        } else if (p->type == DT_F32) { /* lane 4g + t: k t, row g */
            LV k = l_mul(e, l_mod(e, p->lane, l_i64(e, 4)), l_i64(e, row));
            p->place[s] = l_add(e, k, l_add(e, base, l_div(e, p->lane, l_i64(e, 4))));
        } else {
            LV k = l_add(e, low, l_mul(e, along, l_i64(e, half)));
            p->place[s] = l_add(e, l_mul(e, k, l_i64(e, row)), l_add(e, base, l_mul(e, up, eight)));
        }
    }
}

/* sum += a * b. LLVM takes f16 as pairs and the others as words. */
void mma_add(Emit *e, const Product *p, const LV *a, const LV *b, const LV *sum)
{
    int na = short_k(p) ? 2 : 4, nb = na / 2;
    const char *name = p->type == DT_F32    ? "llvm.nvvm.mma.m16n8k8.row.col.tf32"
                       : p->type == DT_BF16 ? "llvm.nvvm.mma.m16n8k16.row.col.bf16"
                       : short_k(p)         ? "llvm.nvvm.mma.m16n8k8.row.col.f32.f32"
                                            : "llvm.nvvm.mma.m16n8k16.row.col.f32.f32";
    LLVMTypeRef pair = LLVMVectorType(e->half, 2);
    LV in[10];
    for (int part = 0; part < (short_k(p) ? 2 : 1); part++) {
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

static void slices(Emit *e, const Product *p, LV half, LV k0)
{
    (void)k0;
    LV other = l_gep_bytes(e, half, l_i64(e, slice_bytes(p, ROWS)));
    for (int64_t k = 0; k < p->depth; k += mma_step(p)) {
        LV a[MOST_FRAGMENTS][4], b[MOST_FRAGMENTS][2];
        for (int64_t i = 0; i < p->fragments[ROWS]; i++)
            mma_load(e, p, ROWS, half, 16 * i, k, 4, a[i]);
        if (p->fragments[COLUMNS] == 1)
            mma_load(e, p, COLUMNS, other, 0, k, 2, b[0]);
        else
            for (int64_t j = 0; j < p->fragments[COLUMNS]; j += 2)
                mma_load(e, p, COLUMNS, other, 8 * j, k, 4, b[j]);
        for (int64_t i = 0; i < p->fragments[ROWS]; i++)
            for (int64_t j = 0; j < p->fragments[COLUMNS]; j++)
                mma_add(e, p, a[i], b[j], sums_of(p, i, j));
    }
}

static void put(Emit *e, const Product *p, LV first, int64_t pitch)
{
    LLVMTypeRef f32 = e->type[SC_F32], pair = LLVMVectorType(f32, 2);
    LV row = l_div(e, p->lane, l_i64(e, 4)), column = l_mul(e, l_mod(e, p->lane, l_i64(e, 4)), l_i64(e, 2));
    column = l_add(e, column, l_mul(e, p->warp[COLUMNS], l_i64(e, p->of_warp[COLUMNS])));
    LV base = l_add(e, first, l_add(e, l_mul(e, row, l_i64(e, pitch)), column));
    for (int64_t i = 0; i < p->fragments[ROWS]; i++)
        for (int64_t j = 0; j < p->fragments[COLUMNS]; j++)
            for (int64_t h = 0; h < 2; h++) {
                LV two = LLVMGetPoison(pair);
                for (int64_t x = 0; x < 2; x++)
                    two = LLVMBuildInsertElement(e->b, two, l_load(e, f32, sums_of(p, i, j)[2 * h + x], 0), const_i32(e, x), "");
                LV at = l_add(e, base, l_i64(e, (16 * i + 8 * h) * pitch + 8 * j));
                l_store(e, two, l_gep(e, f32, p->shared, at), 8);
            }
}

/* ---- the plan ---- */

static const Multiply by_mma = {.factor = factor, .place = mma_place, .slices = slices, .put = put};

/* Eight warps below one another, each of `fragments`; `along_k`: columns lie as [column][k], else [k][column]. */
void mma_plan(Emit *e, Product *p, DType type, const int64_t fragments[2], int64_t depth, bool along_k)
{
    p->how = &by_mma;
    p->type = type;
    p->acc = DT_F32;
    p->element = e->type[type == DT_F32 ? SC_I32 : SC_I16];
    p->zeros = p->raw = true;
    p->depth = depth;
    p->min_blocks = 1;
    p->sums = (uint32_t)(4 * fragments[ROWS] * fragments[COLUMNS]);
    for (int s = 0; s < 2; s++) {
        p->warps[s] = s == ROWS ? TILE_WARPS : 1;
        p->fragments[s] = fragments[s];
        p->of_warp[s] = fragments[s] * (s == ROWS ? 16 : 8);
        p->side[s] = p->warps[s] * p->of_warp[s];
        p->along_k[s] = p->keeps_k[s] = s == ROWS || along_k;
        p->pad[s] = BANK_PAD / element_bytes(p);
    }
}

bool plan_mma(Emit *e, Product *p)
{
    Product own = *p;
    choose_factors(e, &own);
    if (e->n_r != 1 || !fits(e, &own))
        return false;
    *p = own;
    p->raw = p->type != DT_F32;
    tiles_choose(e, p, true);
    p->how = &by_mma;
    p->acc = DT_F32;
    p->element = e->type[p->type == DT_F32 ? SC_I32 : SC_I16];
    p->zeros = true;
    for (int s = 0; s < 2; s++) {
        p->fragments[s] = p->of_warp[s] / (s == ROWS ? FRAGMENT_ROWS : FRAGMENT_COLUMNS);
        p->along_k[s] = p->axis[s] == NO_AXIS || cuda_steps_along_k(e, p->operand[s]);
        p->keeps_k[s] = p->along_k[s];
        p->pad[s] = BANK_PAD / element_bytes(p);
        if (!p->keeps_k[s] && p->type == DT_F32) /* not by ldmatrix */
            p->pad[s] *= 2;
    }
    /* two blocks leave 128 registers: sums of 128 x 128 fit if nothing waits in registers on its way to shared memory */
    if (p->sums >= MANY_SUMS && !(plan_fetch(e, p, true) && p->fetch.async[ROWS] && p->fetch.async[COLUMNS]))
        p->min_blocks = 1;
    return true;
}

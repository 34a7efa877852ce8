/*
 * Contractions by tensor cores: slices of both factors to shared memory, fragments of them to
 * registers, products to sums. The picture is in cuda_mma.c.
 */
#include "jit/llvm/cuda_mma.h"

#include <stdio.h>

enum { HALVES = 2, SLICE_BYTES = 64, BANK_PAD = 16 };

/* Of the fragments that are loaded at once. */
static int64_t step_k(const Product *p)
{
    return 32 / element_bytes(p);
}

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
    p->fetch.async[s] = !p->short_k && arg && n->pred == VREF_NONE && p->type != DT_F32 &&
                        align[p->operand[s]] == MOST_BYTES;
    return some;
}

bool plan_fetch(Emit *e, Product *p, bool vector)
{
    Fetch *f = &p->fetch;
    *f = (Fetch){.lanes = vector ? MOST_BYTES / (int)element_bytes(p) : 1,
                 .depth = SLICE_BYTES / element_bytes(p)};
    bool some = false;
    for (int s = 0; s < 2; s++) {
        int64_t all = p->side[s] * f->depth / f->lanes;
        f->loads[s] = vector ? (all + MMA_THREADS - 1) / MMA_THREADS : 0;
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

LV divides(Emit *e, LV n, int by)
{
    LV low = LLVMBuildAnd(e->b, n, l_i64(e, by - 1), "");
    return LLVMBuildICmp(e->b, LLVMIntEQ, low, l_i64(e, 0), "");
}

/* i1: this launch's slices can come whole. */
LV fetch_guard(Emit *e, Product *p)
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

/* Access number n to a slice: which row or column of the tile, which k; `mine`: i1, or NULL for
 * always. */
typedef struct Spot {
    LV row, k, mine;
} Spot;

static int64_t accesses(const Product *p, int s)
{
    return p->side[s] * p->fetch.depth / p->fetch.lanes;
}

static Spot spot_at(Emit *e, const Product *p, int s, LV n)
{
    const Fetch *f = &p->fetch;
    int64_t inner = (p->along_k[s] ? f->depth : p->side[s]) / f->lanes;
    LV low = l_mul(e, l_mod(e, n, l_i64(e, inner)), l_i64(e, f->lanes)),
       high = l_div(e, n, l_i64(e, inner));
    return (Spot){.row = p->along_k[s] ? high : low, .k = p->along_k[s] ? low : high};
}

/* Access u of this thread. */
static Spot spot_of(Emit *e, const Product *p, int s, int64_t u)
{
    int64_t all = accesses(p, s);
    LV n = l_add(e, p->tid, l_i64(e, u * MMA_THREADS));
    if (all >= MMA_THREADS)
        return spot_at(e, p, s, n);
    Spot at = spot_at(e, p, s, l_mod(e, n, l_i64(e, all)));
    at.mine = LLVMBuildICmp(e->b, LLVMIntSLT, n, l_i64(e, all), "");
    return at;
}

/* The coordinates of an access but for k, those of the batch given. */
static void seek(Emit *e, const Product *p, int s, LV row, const Ix *batch)
{
    LV at = l_min(e, l_add(e, p->first[s], row),
                  l_sub(e, p->n[s], l_i64(e, p->along_k[s] ? 1 : p->fetch.lanes)));
    memcpy(e->axis, batch, sizeof e->axis);
    if (p->axis[s] != NO_AXIS)
        e->axis[p->axis[s]] = lanes_from(e, at, !p->along_k[s]);
    if (p->axis[!s] != NO_AXIS)
        e->axis[p->axis[!s]] = ix_uniform(l_i64(e, 0));
    pin(e, LV_ROW);
}

/* Its k, and whether that exists: i1, or NULL for always. */
static LV seek_k(Emit *e, const Product *p, int s, LV k)
{
    int64_t n;
    e->flat = l_min(e, k, l_sub(e, p->n_k, l_i64(e, p->along_k[s] ? p->fetch.lanes : 1)));
    e->axis[e->n_x] = lanes_from(e, e->flat, p->along_k[s]);
    bool whole = l_is_const(p->n_k, &n) && n % p->fetch.depth == 0;
    return whole ? NULL : LLVMBuildICmp(e->b, LLVMIntSLT, k, p->n_k, "");
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
            seek(e, p, s, spot_of(e, p, s, u).row, batch);
            copy_leave(e, c);
        }
    e->lanes = 1;
}

static LV as_tf32(Emit *e, LV v)
{
    return l_intrinsic(e, "llvm.nvvm.f2tf32.rna", NULL, 0, &v, 1);
}

/* The factor at the coordinates set, as shared memory has it; zero where k does not exist. */
static LV factor(Emit *e, const Product *p, int s, LV exists)
{
    LV v = val_vector(e, value(e, p->operand[s]));
    if (p->type == DT_F32 && e->lanes == 1) {
        v = as_tf32(e, v);
    } else if (p->type == DT_F32) {
        LV all = LLVMGetPoison(l_vec(e, e->type[SC_I32]));
        for (int i = 0; i < e->lanes; i++) {
            LV one = as_tf32(e, LLVMBuildExtractElement(e->b, v, i32(e, i), ""));
            all = LLVMBuildInsertElement(e->b, all, one, i32(e, i), "");
        }
        v = all;
    }
    return exists ? LLVMBuildSelect(e->b, exists, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
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
    e->lanes = f->lanes;
    for (int s = 0; s < 2; s++) {
        e->tile_align = f->align[s];
        for (int64_t u = 0; u < f->loads[s]; u++) {
            Spot at = spot_of(e, p, s, u);
            copy_enter(e, f->copy[s][u]);
            level_open(e, LV_R);
            LV exists = seek_k(e, p, s, l_add(e, k0, at.k));
            if (f->async[s])
                copy_async(e, p, s, at, half, exists);
            else
                l_store(e, factor(e, p, s, exists), f->next[s][u], 0);
            level_close(e, LV_R, LV_ROW);
            copy_leave(e, f->copy[s][u]);
        }
    }
    e->lanes = 1;
    e->tile_align = NULL;
}

/* The rest of the way, of those that are in registers. */
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

/* All of the way, one element at a time. */
static void move_slices(Emit *e, Product *p, LV k0, LV half)
{
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    for (int s = 0; s < 2; s++) {
        Loop l = loop_begin(e, p->tid, l_i64(e, accesses(p, s)), l_i64(e, MMA_THREADS), "move");
        level_open(e, LV_ROW);
        Spot at = spot_at(e, p, s, l.iv);
        seek(e, p, s, at.row, batch);
        level_open(e, LV_R);
        LV v = factor(e, p, s, seek_k(e, p, s, l_add(e, k0, at.k)));
        l_store(e, v, slice_at(e, p, s, at, half), (unsigned)element_bytes(p));
        level_close(e, LV_R, LV_ROW);
        loop_end(e, &l);
    }
    memcpy(e->axis, batch, sizeof batch);
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

void add_products(Emit *e, Product *p)
{
    Fetch *f = &p->fetch;
    LV zero = l_i64(e, 0), depth = l_i64(e, f->depth), stage = l_i64(e, f->stage);
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    level_open(e, LV_ROW);
    e->inner = f->lanes > 1 ? LV_ROW : LV_COUNT;
    open_slices(e, p);
    place_fragments(e, p);
    barrier(e); /* the last task's sums have been read */
    if (f->lanes == 1)
        move_slices(e, p, zero, p->shared);
    fetch_slices(e, p, zero, p->shared);
    put_slices(e, p, p->shared);
    Loop l = loop_begin(e, zero, p->n_k, depth, "slices");
    LV odd = l_mod(e, l_div(e, l.iv, depth), l_i64(e, HALVES)), offset = l_mul(e, odd, stage),
       next = l_add(e, l.iv, depth);
    LV here = l_gep_bytes(e, p->shared, offset),
       there = l_gep_bytes(e, p->shared, l_sub(e, stage, offset));
    wait_async(e, p);
    barrier(e); /* this slice is there, the one before has been used */
    fetch_slices(e, p, next, there);
    multiply_slices(e, p, here);
    put_slices(e, p, there);
    if (f->lanes == 1)
        move_slices(e, p, next, there);
    loop_end(e, &l);
    wait_async(e, p); /* for what lies past the end */
    e->inner = LV_COUNT;
    level_close(e, LV_ROW, LV_ROW);
    memcpy(e->axis, batch, sizeof batch);
}

/*
 * Contractions on CUDA: slices of both factors on their way to shared memory, and the loop over k. The picture is in
 * cuda/tiles.c.
 *
 * A slice lies as [row][k] or [k][row], whichever the multiplication wants; where its buffer lies the other way, the
 * elements of an access are put down one by one. A way through registers is spared where the device can copy by itself
 * (cp.async: plain loads, whole accesses or single elements of 4 or 8 bytes).
 */
#include "jit/llvm/cuda/tiles.h"

#include <stdio.h>

enum { FEW_SUMS = 32 }; /* of a thread, that leave registers for single elements on their way */

int64_t slice_pitch(const Product *p, int s) { return (p->keeps_k[s] ? p->depth : p->side[s]) + p->pad[s]; }

int64_t slice_bytes(const Product *p, int s) { return (p->keeps_k[s] ? p->side[s] : p->depth) * slice_pitch(p, s) * element_bytes(p); }

Ix lanes_from(Emit *e, LV base, bool lanes)
{
    return lanes && e->lanes > 1 ? (Ix){.base = base, .stride = l_i64(e, 1), .aligned = true} : ix_uniform(base);
}

void mark_operands(Emit *e, VRef v, bool *mark)
{
    VRef in[4];
    uint32_t n = kernel_operands(&e->k->inst.at[v], in);
    mark[v] = true;
    for (uint32_t i = 0; i < n; i++)
        mark_operands(e, in[i], mark);
}

bool is_plain(const Emit *e, const Product *p, int s)
{
    const KInst *n = &e->k->inst.at[p->operand[s]];
    return p->async && p->raw && n->kind == KI_LOAD && n->pred == VREF_NONE && (DType)n->dtype == p->type;
}

/* Which of the loads of factor s can be whole aligned accesses. */
bool align_operand(Emit *e, VRef v, uint32_t axis, const uint8_t **out)
{
    bool *mine = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1), some = false;
    mark_operands(e, v, mine);
    plan_align(e, axis);
    uint8_t *align = ARENA_ARRAY(e->arena, uint8_t, e->k->inst.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        align[i] = mine[i] ? e->tile_align[i] : 0;
        some |= align[i] != 0;
    }
    *out = align;
    return some;
}

static bool plan_factor(Emit *e, Product *p, int s)
{
    const uint8_t *align;
    bool some = align_operand(e, p->operand[s], p->along_k[s] ? e->n_x : (uint32_t)p->axis[s], &align);
    p->fetch.align[s] = align;
    p->fetch.async[s] = is_plain(e, p, s) && align[p->operand[s]] == MOST_BYTES && p->along_k[s] == p->keeps_k[s];
    return some;
}

static bool whole_slices(const Product *p)
{
    int64_t n;
    return l_is_const(p->n_k, &n) && n % p->depth == 0;
}

static int64_t accesses(const Product *p, int s) { return p->side[s] * p->depth / p->fetch.lanes; }

bool plan_fetch(Emit *e, Product *p, bool vector)
{
    Fetch *f = &p->fetch;
    *f = (Fetch){.lanes = vector ? MOST_BYTES / (int)element_bytes(p) : 1};
    bool some = false, plain = is_plain(e, p, ROWS) && is_plain(e, p, COLUMNS);
    bool registers = vector || (p->one_by_one && ((plain && whole_slices(p)) || p->sums <= FEW_SUMS));
    for (int s = 0; s < 2; s++) {
        f->loads[s] = registers ? (accesses(p, s) + TILE_THREADS - 1) / TILE_THREADS : 0;
        f->async[s] = !vector && p->one_by_one && is_plain(e, p, s);
    }
    e->lanes = f->lanes;
    for (int s = 0; s < 2 && vector; s++)
        some |= plan_factor(e, p, s);
    e->lanes = 1;
    e->tile_align = NULL;
    return some;
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

static Spot spot_at(Emit *e, const Product *p, int s, LV n)
{
    int lanes = p->fetch.lanes;
    int64_t inner = (p->along_k[s] ? p->depth : p->side[s]) / lanes;
    LV low = l_mul(e, l_mod(e, n, l_i64(e, inner)), l_i64(e, lanes)), high = l_div(e, n, l_i64(e, inner));
    return (Spot){.row = p->along_k[s] ? high : low, .k = p->along_k[s] ? low : high};
}

/* Access u of this thread. */
static Spot spot_of(Emit *e, const Product *p, int s, int64_t u)
{
    int64_t all = accesses(p, s);
    LV n = l_add(e, p->tid, l_i64(e, u * TILE_THREADS));
    if (all >= TILE_THREADS)
        return spot_at(e, p, s, n);
    Spot at = spot_at(e, p, s, l_mod(e, n, l_i64(e, all)));
    at.mine = LLVMBuildICmp(e->b, LLVMIntSLT, n, l_i64(e, all), "");
    return at;
}

/* The lesser of two numbers that are not negative, of which the second is an index. */
static LV no_more(Emit *e, LV a, LV most)
{
    LV least = index_narrow(e, l_min(e, a, most));
    return e->k->index_bits ? LLVMBuildZExt(e->b, least, e->type[SC_I64], "") : least;
}

/* The coordinates of an access but for k, those of the batch given. */
static void seek(Emit *e, const Product *p, int s, LV row, const Ix *batch)
{
    LV at = no_more(e, l_add(e, p->first[s], row), l_sub(e, p->n[s], l_i64(e, p->along_k[s] ? 1 : p->fetch.lanes)));
    memcpy(e->axis, batch, sizeof e->axis);
    if (p->axis[s] != NO_AXIS)
        e->axis[p->axis[s]] = lanes_from(e, at, !p->along_k[s]);
    if (p->axis[!s] != NO_AXIS)
        e->axis[p->axis[!s]] = ix_uniform(l_i64(e, 0));
    pin(e, LV_ROW);
}

/* Its k, and whether that exists where it shall be zero if not: i1, or NULL for always. */
static LV seek_k(Emit *e, const Product *p, int s, LV k)
{
    LV last = l_sub(e, p->n_k, l_i64(e, p->along_k[s] ? p->fetch.lanes : 1));
    e->flat = whole_slices(p) ? k : no_more(e, k, last);
    e->axis[e->n_x] = lanes_from(e, e->flat, p->along_k[s]);
    return !p->zeros || whole_slices(p) ? NULL : LLVMBuildICmp(e->b, LLVMIntSLT, k, p->n_k, "");
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

/* The factor at the coordinates set; zero where k does not exist. */
static LV factor(Emit *e, const Product *p, int s, LV exists)
{
    LV v = p->how->factor(e, p, s);
    return exists ? LLVMBuildSelect(e->b, exists, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
}

/* Where access u lands in the half of shared memory at `half`. */
static LV slice_at(Emit *e, const Product *p, int s, Spot at, LV half)
{
    LV row = p->keeps_k[s] ? at.row : at.k, column = p->keeps_k[s] ? at.k : at.row;
    LV slice = s == ROWS ? half : l_gep_bytes(e, half, l_i64(e, slice_bytes(p, ROWS)));
    return l_gep(e, p->element, slice, l_add(e, l_mul(e, row, l_i64(e, slice_pitch(p, s))), column));
}

void copy_to_shared(Emit *e, VRef load, LV to, LV exists)
{
    const KInst *n = &e->k->inst.at[load];
    LLVMTypeRef type = l_memory(e, (DType)n->dtype);
    /* single elements: many addresses at once, which offsets keep short */
    Address from =
        e->lanes > 1 ? address_of(e, type, argument(e, n->arg), n->idx) : address_ix(e, type, argument(e, n->arg), index_of(e, n->idx));
    int64_t bytes = e->lanes * (int64_t)dtype_bytes((DType)n->dtype);
    LV taken = const_i32(e, bytes);
    char name[64];
    if (exists)
        taken = LLVMBuildSelect(e->b, exists, taken, const_i32(e, 0), "");
    snprintf(name, sizeof name, "llvm.nvvm.cp.async.%s.shared.global.%d%s", bytes == MOST_BYTES ? "cg" : "ca", (int)bytes,
             exists ? ".s" : "");
    l_intrinsic(e, name, NULL, 0, (LV[]){to, from.ptr, taken}, exists ? 3 : 2);
}

static void copy_async(Emit *e, const Product *p, int s, Spot at, LV half, LV exists)
{
    If mine = {0};
    if (at.mine)
        mine = if_begin(e, at.mine, "mine");
    copy_to_shared(e, p->operand[s], slice_at(e, p, s, at, half), exists);
    if (at.mine)
        if_end(e, &mine);
}

static bool any_async(const Product *p) { return p->fetch.async[ROWS] || p->fetch.async[COLUMNS]; }

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

static void put_access(Emit *e, const Product *p, int s, Spot at, LV v, LV half)
{
    if (e->lanes == 1 || p->along_k[s] == p->keeps_k[s]) {
        l_store(e, v, slice_at(e, p, s, at, half), (unsigned)(e->lanes * element_bytes(p)));
        return;
    }
    LV to = slice_at(e, p, s, at, half);
    int64_t step = p->along_k[s] ? slice_pitch(p, s) : 1;
    for (int l = 0; l < e->lanes; l++)
        l_store(e, LLVMBuildExtractElement(e->b, v, const_i32(e, l), ""), l_gep(e, p->element, to, l_i64(e, l * step)),
                (unsigned)element_bytes(p));
}

/* The rest of the way, of those that are in registers. */
static void put_slices(Emit *e, Product *p, LV half)
{
    Fetch *f = &p->fetch;
    e->lanes = f->lanes;
    LLVMTypeRef type = l_vec(e, p->element);
    for (int s = 0; s < 2; s++)
        for (int64_t u = 0; u < f->loads[s] && !f->async[s]; u++) {
            Spot at = spot_of(e, p, s, u);
            If mine = {0};
            if (at.mine)
                mine = if_begin(e, at.mine, "mine");
            put_access(e, p, s, at, l_load(e, type, f->next[s][u], 0), half);
            if (at.mine)
                if_end(e, &mine);
        }
    e->lanes = 1;
}

/* All of the way, one element at a time; copies are on their way afterwards. */
static void move_slices(Emit *e, Product *p, LV k0, LV half)
{
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    for (int s = 0; s < 2; s++) {
        Loop l = loop_begin(e, p->tid, l_i64(e, accesses(p, s)), l_i64(e, TILE_THREADS), "move");
        level_open(e, LV_ROW);
        Spot at = spot_at(e, p, s, l.iv);
        seek(e, p, s, at.row, batch);
        level_open(e, LV_R);
        LV exists = seek_k(e, p, s, l_add(e, k0, at.k));
        if (p->fetch.async[s])
            copy_async(e, p, s, at, half, exists);
        else
            l_store(e, factor(e, p, s, exists), slice_at(e, p, s, at, half), (unsigned)element_bytes(p));
        level_close(e, LV_R, LV_ROW);
        loop_end(e, &l);
    }
    memcpy(e->axis, batch, sizeof batch);
}

/* ---- the loop over k ---- */

void wait_copies(Emit *e) { l_intrinsic(e, "llvm.nvvm.cp.async.wait.all", NULL, 0, NULL, 0); }

static void wait_async(Emit *e, const Product *p)
{
    if (any_async(p))
        wait_copies(e);
}

static LV slice_of(Emit *e, const Product *p, LV offset) { return l_gep_bytes(e, p->shared, offset); }

static LV stage_bytes(Emit *e, const Product *p) { return l_i64(e, slice_bytes(p, ROWS) + slice_bytes(p, COLUMNS)); }

/* From one slice in shared memory to the next, round and round. */
static LV next_slice(Emit *e, const Product *p, LV offset)
{
    int64_t stage = slice_bytes(p, ROWS) + slice_bytes(p, COLUMNS);
    LV last = LLVMBuildICmp(e->b, LLVMIntEQ, offset, l_i64(e, (p->slices - 1) * stage), "");
    return LLVMBuildSelect(e->b, last, l_i64(e, 0), l_add(e, offset, l_i64(e, stage)), "");
}

/* The slice from k on its way, if there is one; a group of copies in any case, so that the number of groups tells what has come. */
static void ask_for_slice(Emit *e, Product *p, LV k, LV offset)
{
    If more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, k, p->k1, ""), "more");
    fetch_slices(e, p, k, slice_of(e, p, offset));
    if_end(e, &more);
    l_intrinsic(e, "llvm.nvvm.cp.async.commit.group", NULL, 0, NULL, 0);
}

/* Slices that are all copied: while one is multiplied, p->slices - 1 are on their way. */
static void copied_slices(Emit *e, Product *p)
{
    int64_t ahead = p->slices - 1;
    LV step = l_i64(e, p->depth), here = l_alloca(e, e->type[SC_I64], 0, "here"), to = l_alloca(e, e->type[SC_I64], 0, "to");
    for (int64_t i = 0; i < ahead; i++)
        ask_for_slice(e, p, l_add(e, p->k0, l_i64(e, i * p->depth)), l_mul(e, l_i64(e, i), stage_bytes(e, p)));
    l_store(e, l_i64(e, 0), here, 0);
    l_store(e, l_mul(e, l_i64(e, ahead), stage_bytes(e, p)), to, 0);
    Loop l = loop_begin(e, p->k0, p->k1, step, "slices");
    LV wait = const_i32(e, ahead - 1), from = l_load(e, e->type[SC_I64], here, 0), into = l_load(e, e->type[SC_I64], to, 0);
    l_intrinsic(e, "llvm.nvvm.cp.async.wait.group", NULL, 0, &wait, 1);
    barrier(e); /* this slice is there, the one before has been used */
    ask_for_slice(e, p, l_add(e, l.iv, l_i64(e, ahead * p->depth)), into);
    p->how->slices(e, p, slice_of(e, p, from), l.iv);
    l_store(e, next_slice(e, p, from), here, 0);
    l_store(e, from, to, 0); /* which all have read at the next barrier */
    loop_end(e, &l);
    wait_copies(e); /* for what lies past the end */
}

/* Slices of which some come through registers or one element at a time: while one is multiplied, the next is on its way. */
static void moved_slices(Emit *e, Product *p)
{
    bool registers = p->fetch.loads[ROWS] != 0, early = !registers && any_async(p);
    LV depth = l_i64(e, p->depth), stage = stage_bytes(e, p);
    if (!registers)
        move_slices(e, p, p->k0, p->shared);
    fetch_slices(e, p, p->k0, p->shared);
    put_slices(e, p, p->shared);
    Loop l = loop_begin(e, p->k0, p->k1, depth, "slices");
    LV odd = l_mod(e, l_div(e, l.iv, depth), l_i64(e, 2)), offset = l_mul(e, odd, stage), next = l_add(e, l.iv, depth);
    LV here = slice_of(e, p, offset), there = slice_of(e, p, l_sub(e, stage, offset));
    wait_async(e, p);
    barrier(e); /* this slice is there, the one before has been used */
    If more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, next, p->k1, ""), "more");
    fetch_slices(e, p, next, there);
    if (early)
        move_slices(e, p, next, there);
    if_end(e, &more);
    p->how->slices(e, p, here, l.iv);
    put_slices(e, p, there);
    if (!registers && !early) {
        more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, next, p->k1, ""), "more");
        move_slices(e, p, next, there);
        if_end(e, &more);
    }
    loop_end(e, &l);
    wait_async(e, p); /* for what lies past the end */
}

void add_products(Emit *e, Product *p)
{
    bool registers = p->fetch.loads[ROWS] != 0;
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    level_open(e, LV_ROW);
    e->inner = registers ? LV_ROW : LV_COUNT;
    open_slices(e, p);
    barrier(e); /* the last task's sums have been read */
    if (p->slices > 2 && p->fetch.async[ROWS] && p->fetch.async[COLUMNS])
        copied_slices(e, p);
    else
        moved_slices(e, p);
    e->inner = LV_COUNT;
    level_close(e, LV_ROW, LV_ROW);
    memcpy(e->axis, batch, sizeof batch);
}

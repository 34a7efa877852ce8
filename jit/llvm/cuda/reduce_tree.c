/*
 * Reductions on CUDA: from what each thread has to one result, in the order of ir/orders.def.
 *
 * A tree over 2^d values adds value j and value j + 2^(d-1) first, then the halves of what is left, and so on:
 *
 *     node(s, j) = node(2s, j) + node(2s, j + s)        node(2^d, j) = value j        the result is node(1, 0)
 *
 * Its strides are shared out. With T threads of V lanes (T * V * S canonical lanes, all powers of two), canonical lane
 * number i belongs to accumulator i / (T*V) of thread i / V % T, lane i % V:
 *
 *     strides T*V and above   within a thread, over its S accumulators
 *     strides V .. T*V/2      over threads: shared memory between warps, shuffles within a warp
 *     strides below V         over the lanes of one thread
 *
 * Within a thread the accumulators either exist at once (few, their number known: `slots`) or one after another, in the
 * order in which a walk down the tree meets its leaves (bit-reversed numbers): then a stack of partial sums, one
 * subtree for each height, is enough: the binary counter of pairwise summation. Leaf q is merged with the subtrees below the trailing ones of q.
 * Both may go together: then the accumulators are the leaves that the tree joins first (slots_join), and the stack has their sums.
 * The same is done with the results of blocks, where there are several.
 */
#include "jit/llvm/cuda/cuda.h"

#include <stdio.h>

enum { MOST_PARTIALS = 12 /* subtrees: heights 0 to log2 of the order's lanes, which are 1024 at most, and one more */ };

static bool of_stage(const Reduction *r, uint32_t stage) { return r->stage == stage; }

static LLVMTypeRef part_type(Emit *e, DType t, bool vec) { return vec ? slot_type(e, t) : l_memory(e, t); }

static bool acc_vec(const Emit *e) { return e->lanes > 1; }

static Part part_load_at(Emit *e, const Reduction *r, LV at, LV at_index, bool vec)
{
    DType t = (DType)r->acc_type;
    Part p = {.v = l_from_memory(e, t, l_load(e, part_type(e, t, vec), at, 0))};
    if (r->arg)
        p.at = l_load(e, part_type(e, DT_I64, vec), at_index, 0);
    return p;
}

static void part_store_at(Emit *e, const Reduction *r, Part p, LV at, LV at_index)
{
    l_store(e, l_to_memory(e, (DType)r->acc_type, p.v), at, 0);
    if (r->arg)
        l_store(e, p.at, at_index, 0);
}

/* ---- stacks of partial sums ---- */

void partials_open(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (!of_stage(r, stage))
            continue;
        for (int tree = 0; tree < 2; tree++) {
            bool vec = tree == 0 && acc_vec(e);
            r->partials[tree] = l_alloca(e, LLVMArrayType2(part_type(e, (DType)r->acc_type, vec), MOST_PARTIALS), 0, "partials");
            if (r->arg)
                r->partials_at[tree] = l_alloca(e, LLVMArrayType2(part_type(e, DT_I64, vec), MOST_PARTIALS), 0, "partials_at");
        }
        r->chain = l_alloca(e, part_type(e, (DType)r->acc_type, false), 0, "chain");
        if (r->arg)
            r->chain_at = l_alloca(e, e->type[SC_I64], 0, "chain_at");
    }
}

typedef struct Spot {
    LV at, at_index;
    bool vec;
} Spot;

static Spot leaf_spot(const Emit *e, const Reduction *r, int tree)
{
    return tree ? (Spot){r->chain, r->chain_at, false} : (Spot){r->acc, r->acc_at, acc_vec(e)};
}

static Spot partials_spot(Emit *e, const Reduction *r, int tree, LV height)
{
    Spot s = {.vec = tree == 0 && acc_vec(e)};
    s.at = l_gep(e, part_type(e, (DType)r->acc_type, s.vec), r->partials[tree], height);
    if (r->arg)
        s.at_index = l_gep(e, part_type(e, DT_I64, s.vec), r->partials_at[tree], height);
    return s;
}

static Part spot_load(Emit *e, const Reduction *r, Spot s) { return part_load_at(e, r, s.at, s.at_index, s.vec); }

static void spot_store(Emit *e, const Reduction *r, Part p, Spot s) { part_store_at(e, r, p, s.at, s.at_index); }

void partials_push(Emit *e, uint32_t stage, int tree, LV leaf)
{
    LLVMTypeRef i64 = e->type[SC_I64];
    LV ones = l_intrinsic(e, "llvm.cttz", &i64, 1, (LV[]){LLVMBuildNot(e->b, leaf, ""), LLVMConstInt(e->type[SC_I1], 0, 0)}, 2);
    Loop l = loop_begin(e, l_i64(e, 0), ones, l_i64(e, 1), "join");
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (!of_stage(r, stage))
            continue;
        Spot here = leaf_spot(e, r, tree);
        Part before = spot_load(e, r, partials_spot(e, r, tree, l.iv));
        spot_store(e, r, part_merge(e, r, before, spot_load(e, r, here), here.vec), here);
    }
    loop_end(e, &l);
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (of_stage(r, stage))
            spot_store(e, r, spot_load(e, r, leaf_spot(e, r, tree)), partials_spot(e, r, tree, ones));
    }
}

void partials_pop(Emit *e, uint32_t stage, int tree, LV depth)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (of_stage(r, stage))
            spot_store(e, r, spot_load(e, r, partials_spot(e, r, tree, depth)), leaf_spot(e, r, tree));
    }
}

/* ---- blocks of one lane, one after another ---- */

void chain_open(Emit *e, uint32_t stage, LV from)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (of_stage(r, stage))
            spot_store(e, r, part_start(e, r, from, false), leaf_spot(e, r, 1));
    }
}

void chain_add(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (!of_stage(r, stage))
            continue;
        Spot chain = leaf_spot(e, r, 1);
        Part total = part_load_at(e, r, r->total, r->total_at, false);
        spot_store(e, r, part_merge(e, r, spot_load(e, r, chain), total, false), chain);
    }
}

void chain_close(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (of_stage(r, stage))
            part_store_at(e, r, spot_load(e, r, leaf_spot(e, r, 1)), r->total, r->total_at);
    }
}

/* ---- between threads ---- */

LV barrier(Emit *e) { return l_intrinsic(e, "llvm.nvvm.barrier0", NULL, 0, NULL, 0); }

static LV i32(Emit *e, uint32_t value) { return LLVMConstInt(e->type[SC_I32], value, 0); }

/* One 32-bit register, i32 or f32: see cuda_shuffle. */
static LV shuffle_word(Emit *e, const char *mode, LV v, LV by)
{
    char name[48];
    snprintf(name, sizeof name, "llvm.nvvm.shfl.sync.%s.%s", mode, LLVMTypeOf(v) == e->type[SC_F32] ? "f32" : "i32");
    uint32_t width = e->group < WARP ? (uint32_t)e->group : WARP;
    return l_intrinsic(e, name, NULL, 0, (LV[]){i32(e, UINT32_MAX), v, by, i32(e, (WARP - width) << 8 | 31)}, 4);
}

LV cuda_shuffle(Emit *e, const char *mode, LV v, LV by)
{
    LLVMTypeRef type = LLVMTypeOf(v), i32t = e->type[SC_I32], i64t = e->type[SC_I64];
    if (type == i32t || type == e->type[SC_F32])
        return shuffle_word(e, mode, v, by);
    if (type == i64t || type == e->type[SC_F64]) {
        LV bits = type == i64t ? v : LLVMBuildBitCast(e->b, v, i64t, "");
        LV low = LLVMBuildTrunc(e->b, bits, i32t, "");
        LV high = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, bits, l_i64(e, 32), ""), i32t, "");
        low = LLVMBuildZExt(e->b, shuffle_word(e, mode, low, by), i64t, "");
        high = LLVMBuildZExt(e->b, shuffle_word(e, mode, high, by), i64t, "");
        bits = LLVMBuildOr(e->b, low, LLVMBuildShl(e->b, high, l_i64(e, 32), ""), "");
        return type == i64t ? bits : LLVMBuildBitCast(e->b, bits, type, "");
    }
    LV wide = LLVMBuildZExt(e->b, v, i32t, "");
    return LLVMBuildTrunc(e->b, shuffle_word(e, mode, wide, by), type, "");
}

static LV shuffle(Emit *e, const char *mode, LV v, uint32_t by)
{
    LLVMTypeRef type = LLVMTypeOf(v);
    if (LLVMGetTypeKind(type) != LLVMVectorTypeKind)
        return cuda_shuffle(e, mode, v, i32(e, by));
    LV all = LLVMGetPoison(type);
    for (unsigned i = 0; i < LLVMGetVectorSize(type); i++) {
        LV at = i32(e, i), one = LLVMBuildExtractElement(e->b, v, at, "");
        all = LLVMBuildInsertElement(e->b, all, cuda_shuffle(e, mode, one, i32(e, by)), at, "");
    }
    return all;
}

static Part part_shuffle(Emit *e, const Reduction *r, const char *mode, Part p, uint32_t by)
{
    Part s = {.v = shuffle(e, mode, p.v, by)};
    if (r->arg)
        s.at = shuffle(e, mode, p.at, by);
    return s;
}

/* Of the values of a block's threads; places follow, of 8 bytes each. */
static uint64_t values_bytes(const Emit *e, const Reduction *r)
{
    uint64_t bytes = (uint64_t)(e->lanes * e->group * e->groups_per_block) * dtype_bytes((DType)r->acc_type);
    return (bytes + 7) / 8 * 8;
}

uint64_t exchange_bytes(const Emit *e)
{
    uint64_t most = 0, places = 8 * (uint64_t)(e->lanes * e->group * e->groups_per_block);
    for (uint32_t i = 0; i < e->n_red; i++) {
        uint64_t bytes = values_bytes(e, &e->red[i]) + (e->red[i].arg ? places : 0);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The tree over `n` parts that other threads left in shared memory, `apart` parts from one another, from `first` on.
 * Done by every thread for itself: they all need the result. */
static Part shared_tree(Emit *e, const Threads *w, const Reduction *r, Part own, LV first, LV apart, int n)
{
    DType t = (DType)r->acc_type;
    bool vec = acc_vec(e);
    LLVMTypeRef type = part_type(e, t, vec), type_at = part_type(e, DT_I64, vec);
    unsigned align = (unsigned)dtype_bytes(t) * (unsigned)e->lanes;
    LV indices = l_gep_bytes(e, w->shared, l_i64(e, (int64_t)values_bytes(e, r)));
    if (align > MOST_BYTES)
        align = MOST_BYTES;
    Part all[WARP];
    barrier(e); /* what was read here before has been used */
    l_store(e, l_to_memory(e, t, own.v), l_gep(e, type, w->shared, w->tid), align);
    if (r->arg)
        l_store(e, own.at, l_gep(e, type_at, indices, w->tid), 8);
    barrier(e);
    for (int i = 0; i < n; i++) {
        LV at = l_add(e, first, l_mul(e, apart, l_i64(e, i)));
        all[i].v = l_from_memory(e, t, l_load(e, type, l_gep(e, type, w->shared, at), align));
        all[i].at = r->arg ? l_load(e, type_at, l_gep(e, type_at, indices, at), 8) : NULL;
    }
    for (int s = n / 2; s; s /= 2)
        for (int j = 0; j < s; j++)
            all[j] = part_merge(e, r, all[j], all[j + s], vec);
    return all[0];
}

/* The accumulators of one thread, where several exist at once. */
static Part own_tree(Emit *e, const Reduction *r)
{
    if (r->slots == 1)
        return part_load_at(e, r, r->acc, r->acc_at, acc_vec(e));
    Part *all = ARENA_ARRAY(e->arena, Part, e->order.lanes);
    for (uint32_t s = 0; s < r->slots; s++)
        all[s] = part_load_at(e, r, l_gep(e, slot_type(e, (DType)r->acc_type), r->acc, l_i64(e, s)), NULL, acc_vec(e));
    for (uint32_t s = r->slots / 2; s; s /= 2)
        for (uint32_t j = 0; j < s; j++)
            all[j] = part_merge(e, r, all[j], all[j + s], acc_vec(e));
    return all[0];
}

void slots_join(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (of_stage(r, stage) && r->slots > 1)
            part_store_at(e, r, own_tree(e, r), r->acc, r->acc_at);
    }
}

void slots_leave(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++)
        if (of_stage(&e->red[i], stage))
            e->red[i].slots = 1;
}

void reduce_group(Emit *e, const Threads *w, uint32_t stage, int left)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (!of_stage(r, stage))
            continue;
        Part p = own_tree(e, r);
        if (!e->vec_r && e->group > 1) { /* threads of a group are `groups_per_block` apart */
            p = shared_tree(e, w, r, p, w->local, l_i64(e, e->groups_per_block), e->group);
        } else if (e->group > 1) {
            if (e->group > WARP) {
                LV lane = LLVMBuildAnd(e->b, w->tid, l_i64(e, WARP - 1), "");
                p = shared_tree(e, w, r, p, lane, l_i64(e, WARP), e->group / WARP);
            }
            for (int s = (e->group < WARP ? e->group : WARP) / 2; s >= left; s /= 2)
                p = part_merge(e, r, p, part_shuffle(e, r, "down", p, (uint32_t)s), acc_vec(e));
        }
        if (e->vec_r)
            p = part_halve(e, r, p);
        if (e->vec_r && e->group > 1 && left == 1)
            p = part_shuffle(e, r, "idx", p, 0);
        part_store_at(e, r, p, r->total, r->total_at);
    }
}

/* ---- between blocks ---- */

void cuda_fence(Emit *e) { l_intrinsic(e, "llvm.nvvm.membar.gl", NULL, 0, NULL, 0); }

/* What the block's threads wrote is published by the first one (barrier, fence, count), and what others published is taken
 * over by it (count, fence, barrier). */
LV last_to_arrive(Emit *e, LV tid, LV shared, LV counter, LV tasks)
{
    LLVMTypeRef i32t = e->type[SC_I32];
    barrier(e);
    If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, tid, l_i64(e, 0), ""), "arrive");
    cuda_fence(e);
    LV at = l_gep(e, i32t, argument(e, e->shared_arg), counter);
    LV before = LLVMBuildAtomicRMW(e->b, LLVMAtomicRMWBinOpAdd, at, LLVMConstInt(i32t, 1, 0), LLVMAtomicOrderingMonotonic, 0);
    cuda_fence(e);
    LV last = LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildZExt(e->b, before, e->type[SC_I64], ""), l_sub(e, tasks, l_i64(e, 1)), "");
    If reset = if_begin(e, last, "reset");
    l_store(e, LLVMConstNull(i32t), at, 4);
    if_end(e, &reset);
    l_store(e, LLVMBuildZExt(e->b, last, i32t, ""), shared, 4);
    if_end(e, &i);
    barrier(e);
    LV yes = LLVMBuildICmp(e->b, LLVMIntNE, l_load(e, i32t, shared, 4), LLVMConstNull(i32t), "");
    barrier(e);
    return yes;
}

/*
 * What the gradient of attention makes of its scores (jit/fuse/chain.c), by tensor cores: a block of threads has 128 rows, a warp 16 of them, and walks
 * the keys in slices of 64, or of 32 where a multiprocessor has less room. No exponential is this walk's: of one or two dots of each row and key the
 * kernel's instructions make a weight, and weights times values are summed up.
 *
 *     rows of both dots to shared memory, where they stay
 *     first keys and values on their way
 *     for k0 = 0; k0 < keys; k0 += slice                       but for those at both ends that weigh nothing for all rows (cuda/seen.c)
 *         wait, barrier; the next slice on its way
 *         dots += rows x keys, of each dot
 *         weights of dots: the kernel's instructions, each for its place; 0 past the last key
 *         sums += weights x values                             weights are rounded to the dtype of the values, from register to register
 *
 * Values are the keys of one of the dots more often than not (dq is ds times keys, dk ds times queries, which its rows have dots with): then they are in
 * shared memory once, read as they lie for the dot and by columns for the sum.
 *
 * An element is one chain of products over the keys from +0, in steps of 16 (8) of them, whatever the slices. Where weights alone are folded there are no
 * values: a thread folds its sixteen of a row and 64 keys in order, in the end the four that have the row together do.
 */
#include "jit/llvm/cuda/attention.h"

#include <math.h>

enum { MOST_ADDENDS = 32 };

/* ---- values that are keys ---- */

static uint32_t addends_of(const Kernel *k, IRef i, IRef out[MOST_ADDENDS], uint32_t n)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_ADD)
        return addends_of(k, x->b, out, addends_of(k, x->a, out, n));
    if (n < MOST_ADDENDS)
        out[n] = i;
    return n + 1;
}

/* Do two factors lie at the same places, the one's elements along its inner axis, the other's along its own? */
static bool same_slice(const Emit *e, const Factor *a, const Factor *b)
{
    const Kernel *k = e->k;
    const KInst *x = &k->inst.at[a->v], *y = &k->inst.at[b->v];
    if (x->kind != KI_LOAD || y->kind != KI_LOAD || x->arg != y->arg || x->pred != VREF_NONE || y->pred != VREF_NONE || a->row != b->row ||
        a->width != b->width)
        return false;
    IRef left[MOST_ADDENDS], right[MOST_ADDENDS];
    uint32_t n = addends_of(k, x->idx, left, 0), m = addends_of(k, y->idx, right, 0), found = 0;
    for (uint32_t i = 0; n == m && n <= MOST_ADDENDS && i < n; i++) {
        const Idx *one = &k->idx.at[left[i]];
        bool along = one->kind == IX_AXIS && one->a == a->inner, here = false;
        if (!along && kidx_uses_axis(k, left[i], a->inner))
            return false;
        for (uint32_t j = 0; j < m; j++) {
            const Idx *other = &k->idx.at[right[j]];
            here |= along ? other->kind == IX_AXIS && other->a == b->inner : left[i] == right[j];
        }
        found += here;
    }
    return n <= MOST_ADDENDS && found == n && n == m;
}

/* ---- weights alone: their sum, or the greatest ---- */

/* The greater of two; NaN where one is. */
static LV fold_scores(Emit *e, const Product *p, LV a, LV b)
{
    if (e->k->inst.at[p->attend->attend].mode & ATTEND_SUM)
        return LLVMBuildFAdd(e->b, a, b, "");
    LV greater = LLVMBuildFCmp(e->b, LLVMRealOGT, a, b, ""), nan = LLVMBuildFCmp(e->b, LLVMRealUNO, a, a, "");
    return LLVMBuildSelect(e->b, LLVMBuildOr(e->b, greater, nan, ""), a, b, "");
}

LV attend_none(Emit *e, const Product *p) { return f32_const(e, e->k->inst.at[p->attend->attend].mode & ATTEND_MOST ? -INFINITY : 0); }

void attend_fold_block(Emit *e, const Product *p)
{
    const Attend *a = p->attend;
    for (int row = 0; row < a->at->rows; row++) {
        LV all = l_load(e, e->type[SC_F32], p->sum[row], 0);
        for (int64_t i = 0; i < a->keys / a->at->threads; i++)
            all = fold_scores(e, p, all, l_load(e, e->type[SC_F32], a->dot_sum[a->at->sum(row, i)], 0));
        l_store(e, all, p->sum[row], 0);
    }
}

void attend_fold_rows(Emit *e, const Product *p)
{
    const Layout *at = p->attend->at;
    for (int row = 0; row < at->rows; row++) {
        LV all = l_load(e, e->type[SC_F32], p->sum[row], 0);
        for (int i = 0; i < 3 && at->apart[i]; i++)
            all = fold_scores(e, p, all, cuda_shuffle(e, "bfly", all, const_i32(e, at->apart[i])));
        l_store(e, all, p->sum[row], 0);
    }
}

void attend_put_rows(Emit *e, const Product *p, LV row, int64_t pitch)
{
    const Layout *at = p->attend->at;
    for (int r = 0; r < at->rows; r++) {
        LV down = l_add(e, row, l_mul(e, l_add(e, at->row(e, p), l_i64(e, at->row_step * r)), l_i64(e, pitch)));
        l_store(e, l_load(e, e->type[SC_F32], p->sum[r], 0), l_gep(e, e->type[SC_F32], p->shared, down), 0);
    }
}

static const Multiply of_rows = {.place = mma_place, .put = attend_put_rows};

/* ---- the walk ---- */

static int64_t bytes_of(const Factor *x, const Product *p) { return x->v == VREF_NONE ? 0 : x->rows * x->pitch * element_bytes(p); }

/* Of the rows of both dots; of a slice of keys, behind which are those of the second dot, and values if they are none of these. */
static int64_t rows_bytes(const Product *p)
{
    const Factor *x = p->attend->factor;
    return bytes_of(&x[QUERIES], p) + bytes_of(&x[MORE_QUERIES], p);
}

static int64_t keys_at(const Product *p, int which)
{
    const Factor *x = p->attend->factor;
    if (which == VALUES && p->attend->values_of)
        which = p->attend->values_of;
    return which == KEYS ? 0 : bytes_of(&x[KEYS], p) + (which == MORE_KEYS ? 0 : bytes_of(&x[MORE_KEYS], p));
}

static int64_t slice_of_keys(const Product *p)
{
    return keys_at(p, FACTORS) + (p->attend->values_of ? 0 : bytes_of(&p->attend->factor[VALUES], p));
}

static void bring_keys(Emit *e, const Product *p, LV k0, LV to)
{
    static const int brought[] = {KEYS, MORE_KEYS, VALUES};
    const Attend *a = p->attend;
    for (int i = 0; i < 3; i++)
        if (a->factor[brought[i]].v != VREF_NONE && !(brought[i] == VALUES && a->values_of))
            attend_bring(e, p, brought[i], k0, p->k1, l_i64(e, 0), l_gep_bytes(e, to, l_i64(e, keys_at(p, brought[i]))));
}

/* One or two dots of the rows and of a slice's keys. */
static void make_dots(Emit *e, Product *p, LV slice)
{
    Attend *a = p->attend;
    LV second = l_gep_bytes(e, p->shared, l_i64(e, bytes_of(&a->factor[QUERIES], p)));
    for (uint32_t i = 0; i < a->n_dots * a->dots.sums; i++)
        l_store(e, f32_const(e, 0), a->dot_sum[i], 0);
    for (uint32_t dot = 0; dot < a->n_dots; dot++)
        attend_add_dots(e, p, dot, NULL, dot ? second : p->shared, l_gep_bytes(e, slice, l_i64(e, keys_at(p, dot ? MORE_KEYS : KEYS))));
}

static void walk(Emit *e, Product *p)
{
    Attend *a = p->attend;
    bool values = a->factor[VALUES].v != VREF_NONE, two = a->stages > 1;
    LV zero = l_i64(e, 0), keys = l_i64(e, a->keys), bytes = l_i64(e, slice_of_keys(p)), turn = l_alloca(e, e->type[SC_I64], 0, "turn");
    LV slices = l_gep_bytes(e, p->shared, l_i64(e, rows_bytes(p))), from, to;
    a->dots.lane = p->lane;
    memcpy(a->dots.warp, p->warp, sizeof p->warp);
    mma_place(e, &a->dots);
    l_store(e, zero, turn, 0);
    attend_seen(e, p, a->keys, &from, &to);
    barrier(e); /* the last task's sums have been read */
    attend_bring(e, p, QUERIES, p->first[ROWS], p->n[ROWS], zero, p->shared);
    if (a->n_dots > 1)
        attend_bring(e, p, MORE_QUERIES, p->first[ROWS], p->n[ROWS], zero,
                     l_gep_bytes(e, p->shared, l_i64(e, bytes_of(&a->factor[QUERIES], p))));
    if (two)
        bring_keys(e, p, from, slices);
    Loop l = loop_begin(e, from, to, keys, "keys");
    LV here = l_load(e, e->type[SC_I64], turn, 0), next = l_add(e, l.iv, keys);
    if (two) {
        attend_arrive(e, p);
        LV there = l_sub(e, bytes, here);
        l_store(e, there, turn, 0);
        If more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, next, to, ""), "more");
        bring_keys(e, p, next, l_gep_bytes(e, slices, there));
        if_end(e, &more);
    } else {
        barrier(e);
        bring_keys(e, p, l.iv, slices);
        attend_arrive(e, p);
    }
    LV slice = l_gep_bytes(e, slices, here);
    make_dots(e, p, slice);
    attend_block_scores(e, p, l.iv);
    if (values)
        attend_add_means(e, p, l_gep_bytes(e, slice, l_i64(e, keys_at(p, VALUES))));
    else
        attend_fold_block(e, p);
    loop_end(e, &l);
    attend_land(e, p); /* where no key weighs, some are on their way all the same */
    if (!values)
        attend_fold_rows(e, p);
}

/* ---- the plan ---- */

static void plan_slices(Emit *e, Product *p, int64_t keys, int64_t stages)
{
    Attend *a = p->attend;
    Factor *x = a->factor;
    a->keys = keys;
    a->stages = stages;
    if (x[VALUES].v != VREF_NONE) {
        mma_plan(e, p, p->type, (int64_t[]){1, x[VALUES].width / 8}, keys, false);
    } else {
        mma_plan(e, p, p->type, (int64_t[]){1, 2}, keys, false);
        p->how = &of_rows;
        p->fragments[COLUMNS] = 0;
        p->sums = ROWS_OF_THREAD;
        p->of_warp[COLUMNS] = p->side[COLUMNS] = 1;
    }
    mma_plan(e, &a->dots, p->type, (int64_t[]){1, keys / 8}, x[KEYS].width, true);
    for (int i = 0; i < FACTORS; i++) {
        x[i].rows = i == QUERIES || i == MORE_QUERIES ? p->side[ROWS] : keys;
        x[i].pitch = x[i].width + a->dots.pad[COLUMNS];
    }
    a->bytes = rows_bytes(p) + stages * slice_of_keys(p);
}

void emit_attention_chain(Emit *e, Product *p)
{
    static const struct {
        int64_t keys, stages;
    } ways[] = {{ATTEND_BLOCK, 2}, {ATTEND_BLOCK / 2, 2}, {ATTEND_BLOCK / 2, 1}}; /* cuda_chain_fits: the last one does */
    Attend *a = p->attend;
    const Factor *x = a->factor;
    a->walk = walk;
    for (int i = 0; i < 2 && !a->values_of && x[VALUES].v != VREF_NONE; i++) {
        int keys = i ? MORE_KEYS : KEYS;
        a->values_of = x[keys].v != VREF_NONE && same_slice(e, &x[VALUES], &x[keys]) ? keys : 0;
    }
    /* of long rows the scores of two dots and of 64 keys would not fit in registers beside the sums */
    size_t way = a->n_dots > 1 && x[VALUES].v != VREF_NONE && x[VALUES].width > 80;
    do
        plan_slices(e, p, ways[way].keys, ways[way].stages);
    while (a->bytes > cuda_shared_memory(e->cuda) - CUDA_SHARED_BLOCK && ++way < sizeof ways / sizeof *ways);
    emit_tiles(e, p);
}

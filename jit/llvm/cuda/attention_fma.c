/*
 * Attention on CUDA by fused multiply-adds, of f32 and of what a device has no tensor cores for: a block of threads has 128 queries of a head, a warp 16
 * of them, and walks its keys in blocks of 64, as in cuda/attention.c. What is in registers there would not fit, and does not fit the shared memory, so
 * all three factors come in slices, two of which have room; while one is multiplied the next one is on its way:
 *
 *     for k0 = 0; k0 < keys; k0 += 64                      but for those at both ends that no query of the block sees (cuda/seen.c)
 *         for d = 0; d < elements; d += 16
 *             wait, barrier; the next slice on its way
 *             dots += queries [128][d...] x keys [64][d...]
 *         scores and weights, as in cuda/attention.c
 *         for each 32 keys of the block
 *             their weights to shared memory, each warp its own
 *             for each 16 of them
 *                 wait, barrier; the next slice on its way
 *                 means += weights x values [16][elements]
 *
 * A thread has rows 4r to 4r + 3 of its warp, keys c, c + 8, ... and columns 4c to 4c + 3, 32 + 4c, ...; lanes are counted by c and r so that eight in a
 * row read from two rows and four columns, no bank twice:
 *
 *     lane (bits)   4  3 2  1  0        c = bits 3, 2, 0      r = bits 4, 1
 *                   r  c c  r  c
 *
 * A dot is one chain over the elements from +0, a mean one over the keys of a block, from what was there before.
 *
 * The gradient's products (jit/fuse/chain.c) are walked in the same way, without a most and a total: slices of a second dot follow those of
 * the first, and what is made of both is the weights. Where that alone is folded, to the sum or the greatest of each row, there are no
 * values: a thread folds what it has, and at the end the eight that have a row together do.
 */
#include "jit/llvm/cuda/attention.h"

enum { ROWS_EACH = 4, KEYS_ACROSS = 8, UNIT = 4, UNIT_COLUMNS = KEYS_ACROSS * UNIT };
enum { DEPTH = 16, SLICE_KEYS = 16, HALF_KEYS = 32, FEW_KEYS = 8, WEIGHTS_PITCH = TILE_WARPS * 4 * ROWS_EACH + 8 };

static LV lane_bits(Emit *e, const Product *p, int from, int n, int to)
{
    LV bits = l_mod(e, l_div(e, p->lane, l_i64(e, 1 << from)), l_i64(e, 1 << n));
    return l_mul(e, bits, l_i64(e, 1 << to));
}

static LV first_row(Emit *e, const Product *p)
{
    return l_mul(e, l_add(e, lane_bits(e, p, 1, 1, 0), lane_bits(e, p, 4, 1, 1)), l_i64(e, ROWS_EACH));
}

static LV column_of(Emit *e, const Product *p) { return l_add(e, lane_bits(e, p, 0, 1, 0), lane_bits(e, p, 2, 2, 1)); }

static LV key_of(Emit *e, const Product *p, int64_t i) { return l_add(e, column_of(e, p), l_i64(e, KEYS_ACROSS * i)); }

static int64_t sum_of(int row, int64_t i) { return ROWS_EACH * i + row; }

static const Layout layout = {
    .rows = ROWS_EACH, .row_step = 1, .threads = KEYS_ACROSS, .apart = {1, 4, 8}, .row = first_row, .key = key_of, .sum = sum_of};

/* ---- products ---- */

static LLVMTypeRef unit_type(Emit *e) { return LLVMVectorType(e->type[SC_F32], UNIT); }

static LV load_unit(Emit *e, const Product *p, LV base, LV at)
{
    return l_load(e, unit_type(e), l_gep(e, p->element, base, at), MOST_BYTES);
}

static LV of_unit(Emit *e, LV v, int64_t i) { return LLVMBuildExtractElement(e->b, v, const_i32(e, i), ""); }

static void add_product(Emit *e, const Product *p, LV sum, LV a, LV b)
{
    l_store(e, dot_step(e, p->acc, l_load(e, p->element, sum, 0), a, b), sum, 0);
}

/* A slice of queries, and behind it one of keys: four elements of each row at once. */
static void add_dots(Emit *e, const Product *p, uint32_t dot, LV slice)
{
    const Attend *a = p->attend;
    const LV *sum = &a->dot_sum[dot * a->dots.sums];
    const Factor *x = a->factor;
    LV other = l_gep_bytes(e, slice, l_i64(e, x[QUERIES].rows * x[QUERIES].pitch * 4)), column = column_of(e, p);
    for (int64_t d = 0; d < DEPTH; d += UNIT) {
        LV row[ROWS_EACH];
        for (int64_t i = 0; i < ROWS_EACH; i++)
            row[i] =
                load_unit(e, p, slice, l_add(e, l_mul(e, l_add(e, p->place[ROWS], l_i64(e, i)), l_i64(e, x[QUERIES].pitch)), l_i64(e, d)));
        for (int64_t j = 0; j < ATTEND_BLOCK / KEYS_ACROSS; j++) {
            LV key = l_add(e, column, l_i64(e, KEYS_ACROSS * j));
            LV v = load_unit(e, p, other, l_add(e, l_mul(e, key, l_i64(e, x[KEYS].pitch)), l_i64(e, d)));
            for (int64_t i = 0; i < UNIT; i++)
                for (int r = 0; r < ROWS_EACH; r++)
                    add_product(e, p, sum[sum_of(r, j)], of_unit(e, row[r], i), of_unit(e, v, i));
        }
    }
}

/* Weights of 32 keys, from key `first` of the block on, to where the warp's rows are: [key][row]. */
static void put_weights(Emit *e, const Product *p, LV weights, int64_t first)
{
    for (int64_t j = 0; j < HALF_KEYS / KEYS_ACROSS; j++) {
        LV four = LLVMGetPoison(unit_type(e));
        for (int r = 0; r < ROWS_EACH; r++) {
            LV one = l_load(e, p->element, p->attend->dot_sum[sum_of(r, first / KEYS_ACROSS + j)], 0);
            four = LLVMBuildInsertElement(e->b, four, one, const_i32(e, r), "");
        }
        LV at = l_add(e, l_mul(e, key_of(e, p, j), l_i64(e, WEIGHTS_PITCH)), p->place[ROWS]);
        l_store(e, four, l_gep(e, p->element, weights, at), MOST_BYTES);
    }
}

/* A slice of values, by the weights of its keys, which begin at `weights`. */
static void add_means(Emit *e, const Product *p, LV values, LV weights)
{
    const Factor *x = &p->attend->factor[VALUES];
    Loop l = loop_begin(e, l_i64(e, 0), l_i64(e, SLICE_KEYS), l_i64(e, FEW_KEYS), "few");
    for (int64_t k = 0; k < FEW_KEYS; k++) {
        LV key = l_add(e, l.iv, l_i64(e, k));
        LV row = load_unit(e, p, weights, l_add(e, l_mul(e, key, l_i64(e, WEIGHTS_PITCH)), p->place[ROWS]));
        for (int64_t u = 0; u < p->fragments[COLUMNS]; u++) {
            LV column = l_add(e, p->place[COLUMNS], l_i64(e, u * UNIT_COLUMNS));
            if ((u + 1) * UNIT_COLUMNS > x->width) /* columns past the width are others once more, and not stored */
                column = l_min(e, column, l_i64(e, x->width - UNIT));
            LV v = load_unit(e, p, values, l_add(e, l_mul(e, key, l_i64(e, x->pitch)), column));
            for (int64_t i = 0; i < UNIT; i++)
                for (int r = 0; r < ROWS_EACH; r++)
                    add_product(e, p, p->sum[sum_of(r, UNIT * u + i)], of_unit(e, row, r), of_unit(e, v, i));
        }
    }
    loop_end(e, &l);
}

/* ---- the walk ---- */

static int64_t slice_bytes_of(const Factor *x) { return x->rows * x->pitch * 4; }

/* Of the two that are in shared memory. */
static int64_t stage_bytes(const Factor *x)
{
    int64_t dots = slice_bytes_of(&x[QUERIES]) + slice_bytes_of(&x[KEYS]),
            means = x[VALUES].v == VREF_NONE ? 0 : slice_bytes_of(&x[VALUES]);
    return dots > means ? dots : means;
}

static void bring_dots(Emit *e, const Product *p, uint32_t dot, LV k0, LV d, LV to)
{
    attend_bring(e, p, dot ? MORE_QUERIES : QUERIES, p->first[ROWS], p->n[ROWS], d, to);
    attend_bring(e, p, dot ? MORE_KEYS : KEYS, k0, p->k1, d, l_gep_bytes(e, to, l_i64(e, slice_bytes_of(&p->attend->factor[QUERIES]))));
}

static void bring_values(Emit *e, const Product *p, LV k0, LV to) { attend_bring(e, p, VALUES, k0, p->k1, l_i64(e, 0), to); }

/* A slice is there, at the return; the next one may go to *next. */
static LV next_slice(Emit *e, const Product *p, LV turn, LV *next)
{
    LV stage = l_i64(e, stage_bytes(p->attend->factor)), here = l_load(e, e->type[SC_I64], turn, 0), there = l_sub(e, stage, here);
    attend_arrive(e, p);
    l_store(e, there, turn, 0);
    *next = l_gep_bytes(e, p->shared, there);
    return l_gep_bytes(e, p->shared, here);
}

static void warp_meets(Emit *e)
{
    LV all = const_i32(e, -1);
    l_intrinsic(e, "llvm.nvvm.bar.warp.sync", NULL, 0, &all, 1);
}

static LV not_(Emit *e, LV condition) { return LLVMBuildNot(e->b, condition, ""); }

/* What a walk over keys has besides the task: its place in memory, where the slice at hand is, and blocks of keys. */
typedef struct KeyWalk {
    LV turn, weights, zero, to;
} KeyWalk;

/* A dot of all elements; the slice that follows the last one is on its way at the end: of the next dot, of values, or of the next keys. */
static void walk_dot(Emit *e, Product *p, const KeyWalk *w, uint32_t dot, LV k0)
{
    const Attend *a = p->attend;
    LV width = l_i64(e, a->factor[KEYS].width), depth = l_i64(e, DEPTH), next = l_add(e, k0, l_i64(e, ATTEND_BLOCK)), there;
    Loop elements = loop_begin(e, w->zero, width, depth, "elements");
    LV here = next_slice(e, p, w->turn, &there), d = l_add(e, elements.iv, depth), more = LLVMBuildICmp(e->b, LLVMIntSLT, d, width, "");
    bool ends = dot + 1 == a->n_dots && a->factor[VALUES].v == VREF_NONE;
    If go_on = if_begin(e, more, "more");
    bring_dots(e, p, dot, k0, d, there);
    if_end(e, &go_on);
    If last = if_begin(e, ends ? both(e, not_(e, more), LLVMBuildICmp(e->b, LLVMIntSLT, next, w->to, "")) : not_(e, more), "last");
    if (ends)
        bring_dots(e, p, 0, next, w->zero, there);
    else if (dot + 1 < a->n_dots)
        bring_dots(e, p, dot + 1, k0, w->zero, there);
    else
        bring_values(e, p, k0, there);
    if_end(e, &last);
    add_dots(e, p, dot, here);
    loop_end(e, &elements);
}

/* Values of a block's keys by their weights. */
static void walk_values(Emit *e, Product *p, const KeyWalk *w, LV k0)
{
    LV slice = l_i64(e, SLICE_KEYS), next = l_add(e, k0, l_i64(e, ATTEND_BLOCK)), there;
    for (int64_t first = 0; first < ATTEND_BLOCK; first += HALF_KEYS) {
        warp_meets(e); /* it is done with the weights before */
        put_weights(e, p, w->weights, first);
        warp_meets(e);
        Loop keys = loop_begin(e, w->zero, l_i64(e, HALF_KEYS), slice, "values");
        LV values = next_slice(e, p, w->turn, &there), k = l_add(e, l_i64(e, first), l_add(e, keys.iv, slice));
        if (first + HALF_KEYS < ATTEND_BLOCK) {
            bring_values(e, p, l_add(e, k0, k), there);
        } else {
            LV inside = LLVMBuildICmp(e->b, LLVMIntSLT, k, l_i64(e, ATTEND_BLOCK), "");
            If again = if_begin(e, inside, "more");
            bring_values(e, p, l_add(e, k0, k), there);
            if_end(e, &again);
            If then = if_begin(e, both(e, not_(e, inside), LLVMBuildICmp(e->b, LLVMIntSLT, next, w->to, "")), "next");
            bring_dots(e, p, 0, next, w->zero, there);
            if_end(e, &then);
        }
        add_means(e, p, values, l_gep(e, p->element, w->weights, l_mul(e, keys.iv, l_i64(e, WEIGHTS_PITCH))));
        loop_end(e, &keys);
    }
}

static void walk(Emit *e, Product *p)
{
    Attend *a = p->attend;
    const Factor *x = a->factor;
    bool chains = attend_chains(e, p), values = x[VALUES].v != VREF_NONE;
    KeyWalk w = {.turn = l_alloca(e, e->type[SC_I64], 0, "turn"), .zero = l_i64(e, 0)};
    LV from;
    w.weights = l_gep_bytes(e, p->shared, l_i64(e, 2 * stage_bytes(x)));
    if (!chains)
        attend_start(e, p);
    l_store(e, w.zero, w.turn, 0);
    attend_seen(e, p, ATTEND_BLOCK, &from, &w.to);
    barrier(e); /* the last task's sums have been read */
    bring_dots(e, p, 0, from, w.zero, p->shared);
    Loop l = loop_begin(e, from, w.to, l_i64(e, ATTEND_BLOCK), "keys");
    for (uint32_t i = 0; i < a->n_dots * a->dots.sums; i++)
        l_store(e, f32_const(e, 0), a->dot_sum[i], 0);
    for (uint32_t dot = 0; dot < a->n_dots; dot++)
        walk_dot(e, p, &w, dot, l.iv);
    attend_block_scores(e, p, l.iv);
    if (!chains)
        attend_weights(e, p);
    if (values)
        walk_values(e, p, &w, l.iv);
    else
        attend_fold_block(e, p);
    loop_end(e, &l);
    attend_land(e, p); /* where no key is seen, some are on their way all the same */
    if (!chains)
        attend_finish(e, p);
    else if (!values)
        attend_fold_rows(e, p);
}

/* ---- the plan ---- */

static void place(Emit *e, Product *p)
{
    p->place[ROWS] = l_add(e, l_mul(e, p->warp[ROWS], l_i64(e, p->of_warp[ROWS])), first_row(e, p));
    p->place[COLUMNS] = l_mul(e, column_of(e, p), l_i64(e, UNIT));
}

static void put(Emit *e, const Product *p, LV row, int64_t pitch)
{
    if (!p->fragments[COLUMNS]) /* of a row all threads have the same */
        attend_put_rows(e, p, row, pitch);
    for (int r = 0; r < ROWS_EACH; r++)
        for (int64_t u = 0; u < p->fragments[COLUMNS]; u++) {
            LV four = LLVMGetPoison(unit_type(e));
            for (int64_t i = 0; i < UNIT; i++) {
                LV one = l_load(e, p->element, p->sum[sum_of(r, UNIT * u + i)], 0);
                four = LLVMBuildInsertElement(e->b, four, one, const_i32(e, i), "");
            }
            LV down = l_add(e, row, l_mul(e, l_add(e, first_row(e, p), l_i64(e, r)), l_i64(e, pitch)));
            l_store(e, four, l_gep(e, p->element, p->shared, l_add(e, down, l_add(e, p->place[COLUMNS], l_i64(e, u * UNIT_COLUMNS)))),
                    MOST_BYTES);
        }
}

static const Multiply by_fma = {.place = place, .put = put};

void emit_attention_fma(Emit *e, Product *p)
{
    Attend *a = p->attend;
    Factor *x = a->factor;
    int64_t units = x[VALUES].v == VREF_NONE ? 0 : (x[VALUES].width + UNIT_COLUMNS - 1) / UNIT_COLUMNS;
    const int64_t of_warp[2] = {4 * ROWS_EACH, units ? units * UNIT_COLUMNS : 1};
    p->how = &by_fma;
    p->acc = DT_F32;
    p->element = e->type[SC_F32];
    p->sums = (uint32_t)(units ? ROWS_EACH * UNIT * units : ROWS_EACH);
    p->min_blocks = 1;
    p->fragments[COLUMNS] = units;
    for (int s = 0; s < 2; s++) {
        p->warps[s] = s == ROWS ? TILE_WARPS : 1;
        p->of_warp[s] = of_warp[s];
        p->side[s] = p->warps[s] * of_warp[s];
    }
    a->at = &layout;
    a->walk = walk;
    a->keys = ATTEND_BLOCK;
    a->dots.sums = ROWS_EACH * ATTEND_BLOCK / KEYS_ACROSS;
    e->group = WARP;
    for (int i = 0; i < FACTORS; i++) {
        bool rows = i == QUERIES || i == MORE_QUERIES;
        x[i].rows = rows ? p->side[ROWS] : i == VALUES ? SLICE_KEYS : ATTEND_BLOCK;
        x[i].part = i == VALUES ? x[i].width : DEPTH;
        x[i].pitch = i == VALUES ? p->side[COLUMNS] + UNIT : DEPTH + UNIT;
    }
    a->bytes = 2 * stage_bytes(x) + (units ? (int64_t)4 * HALF_KEYS * WEIGHTS_PITCH : 0);
    emit_tiles(e, p);
}

/*
 * Attention of few queries on CUDA by fused multiply-adds, of f32 and of what a device has no tensor cores for: the walk of cuda/decode.c,
 * which has the tasks and what follows. Up to four queries are a warp's; up to four of them have all four warps, which take eight keys of
 * every 32, up to eight have two each, and each four of more have one. So a multiprocessor reads a key once from further away than its own
 * cache, however many queries it has.
 *
 *     queries to shared memory
 *     keys of the first eight on their way
 *     for k0 = 0; k0 < part; k0 += 8 * (warps that have the same queries)
 *         values k0... on their way
 *         dots = queries x keys
 *         the next keys on their way
 *         scores, weights, means: as in cuda/attention.c
 *
 * Eight neighbouring threads have two keys, each of them four elements of every 32 of a row: so an access is of whole 128 bytes, of four
 * rows of a warp. A dot is one chain over what a thread has of it, then the eight add up; what is made of it all of them know, and each
 * has its columns of the means. So the four groups of a warp are attentions of their own, without a word between them until the part is
 * over. Then they are scaled to the greatest most, and added.
 */
#include "jit/llvm/cuda/decode.h"

enum { ROWS_EACH = 4, KEYS_EACH = 2, THREADS_EACH = 8, GROUPS = WARP / THREADS_EACH, FOUR = 4, SPAN = THREADS_EACH * FOUR };
enum { MOST_SPANS = 128 / SPAN, WARP_KEYS = GROUPS * KEYS_EACH };

static LV group_of(Emit *e, const Product *p) { return l_div(e, p->lane, l_i64(e, THREADS_EACH)); }
static LV in_group(Emit *e, const Product *p) { return l_mod(e, p->lane, l_i64(e, THREADS_EACH)); }

static LV row_zero(Emit *e, const Product *p) { return (void)p, l_i64(e, 0); }
static LV key_number(Emit *e, const Product *p, int64_t i) { return (void)p, l_i64(e, i); }
static int64_t sum_of(int row, int64_t i) { return ROWS_EACH * i + row; }

/* Keys are counted from the group's first one. */
static const Layout layout = {
    .rows = ROWS_EACH, .row_step = 1, .threads = 1, .apart = {0}, .row = row_zero, .key = key_number, .sum = sum_of};

static LLVMTypeRef four_type(Emit *e) { return LLVMVectorType(e->type[SC_F32], FOUR); }

static LV of_four(Emit *e, LV v, int64_t i) { return LLVMBuildExtractElement(e->b, v, const_i32(e, i), ""); }

/* ---- factors ---- */

/* This thread's elements of a row of its warp. */
static LV query_at(Emit *e, const Decode *d, LV row, int64_t span)
{
    LV line = l_add(e, l_mul(e, l_add(e, l_mul(e, d->warp, l_i64(e, ROWS_EACH)), row), l_i64(e, d->spans[0])), l_i64(e, span));
    return l_gep(e, four_type(e), d->p->shared, l_add(e, l_mul(e, line, l_i64(e, THREADS_EACH)), in_group(e, d->p)));
}

/* Each group brings a row. */
static void load_queries(Emit *e, const Decode *d)
{
    const Product *p = d->p;
    LV mine = group_of(e, p), band = l_mul(e, p->warp[ROWS], l_i64(e, ROWS_EACH));
    for (int64_t c = 0; c < d->spans[0]; c++) {
        LV row = l_add(e, p->first[ROWS], l_add(e, band, mine));
        l_store(e, decode_row(e, d, QUERIES, row, p->n[ROWS], c, in_group(e, p), false), query_at(e, d, mine, c), MOST_BYTES);
    }
    barrier(e);
}

static void load_rows(Emit *e, const Decode *d, int which, LV k0, LV *out)
{
    const int64_t spans = d->spans[which == VALUES];
    for (int64_t i = 0; i < KEYS_EACH; i++)
        for (int64_t c = 0; c < spans; c++)
            out[i * spans + c] = decode_row(e, d, which, l_add(e, k0, l_i64(e, i)), d->p->k1, c, in_group(e, d->p), which == VALUES);
}

static void load_keys(Emit *e, const Decode *d, LV k0, LV *const to)
{
    LV keys[KEYS_EACH * MOST_SPANS];
    load_rows(e, d, KEYS, k0, keys);
    for (int64_t i = 0; i < KEYS_EACH * d->spans[0]; i++)
        l_store(e, keys[i], to[i], 0);
}

/* ---- products ---- */

static void add_dots(Emit *e, const Decode *d, LV *const keys)
{
    const Attend *a = d->a;
    LV sum[ROWS_EACH * KEYS_EACH];
    for (int i = 0; i < ROWS_EACH * KEYS_EACH; i++)
        sum[i] = f32_const(e, 0);
    for (int64_t c = 0; c < d->spans[0]; c++)
        for (int r = 0; r < ROWS_EACH; r++) {
            LV query = l_load(e, four_type(e), query_at(e, d, l_i64(e, r), c), MOST_BYTES);
            LLVMSetVolatile(query, true); /* or it would be in registers all the same */
            for (int64_t i = 0; i < KEYS_EACH; i++) {
                LV key = l_load(e, four_type(e), keys[i * d->spans[0] + c], 0), *at = &sum[sum_of(r, i)];
                for (int64_t j = 0; j < FOUR; j++)
                    *at = dot_step(e, DT_F32, *at, of_four(e, query, j), of_four(e, key, j));
            }
        }
    for (int i = 0; i < ROWS_EACH * KEYS_EACH; i++) {
        for (int64_t apart = 1; apart < THREADS_EACH; apart *= 2)
            sum[i] = LLVMBuildFAdd(e->b, sum[i], cuda_shuffle(e, "bfly", sum[i], const_i32(e, apart)), "");
        l_store(e, sum[i], a->dot_sum[i], 0);
    }
}

static void add_means(Emit *e, const Decode *d, const LV *values)
{
    const Product *p = d->p;
    LLVMTypeRef f32 = e->type[SC_F32];
    for (int r = 0; r < ROWS_EACH; r++)
        for (int64_t i = 0; i < KEYS_EACH; i++) {
            LV weight = l_load(e, f32, d->a->dot_sum[sum_of(r, i)], 0);
            for (int64_t x = 0; x < FOUR * d->spans[1]; x++) {
                LV sum = p->sum[sum_of(r, x)], value = of_four(e, values[i * d->spans[1] + x / FOUR], x % FOUR);
                l_store(e, dot_step(e, DT_F32, l_load(e, f32, sum, 0), weight, value), sum, 0);
            }
        }
}

static void walk(Emit *e, const Decode *d, LV from, LV to, bool ahead, bool full)
{
    const Product *p = d->p;
    LV keys[KEYS_EACH * MOST_SPANS], values[KEYS_EACH * MOST_SPANS];
    LV unit = l_mul(e, d->stripes, l_i64(e, WARP_KEYS));
    LV mine = l_add(e, l_mul(e, d->stripe, l_i64(e, WARP_KEYS)), l_mul(e, group_of(e, p), l_i64(e, KEYS_EACH)));
    for (int64_t i = 0; i < KEYS_EACH * d->spans[0]; i++)
        keys[i] = l_alloca(e, four_type(e), 0, "keys");
    load_queries(e, d);
    if (ahead)
        load_keys(e, d, l_add(e, from, mine), keys);
    Loop l = loop_begin(e, from, to, unit, "keys");
    LV k0 = l_add(e, l.iv, mine);
    if (!ahead)
        load_keys(e, d, k0, keys);
    else
        load_rows(e, d, VALUES, k0, values);
    add_dots(e, d, keys);
    if (ahead)
        load_keys(e, d, l_add(e, k0, unit), keys);
    memcpy(e->axis, d->batch, sizeof e->axis);
    attend_scores(e, p, k0);
    attend_weights(e, p);
    if (!ahead)
        load_rows(e, d, VALUES, k0, values);
    add_means(e, d, values);
    loop_end(e, &l);
    memcpy(e->axis, d->batch, sizeof e->axis);
    (void)full;
}

/* ---- what a warp has ---- */

/* Of the groups of the warp: the greatest, or the sum. */
static LV of_groups(Emit *e, LV v, bool most)
{
    for (int64_t apart = THREADS_EACH; apart < WARP; apart *= 2) {
        LV other = cuda_shuffle(e, "bfly", v, const_i32(e, apart));
        v = most ? attend_greater(e, v, other) : LLVMBuildFAdd(e->b, v, other, "");
    }
    return v;
}

static LV row_of_task(Emit *e, const Decode *d, int row)
{
    return l_add(e, l_mul(e, d->p->warp[ROWS], l_i64(e, ROWS_EACH)), l_i64(e, row));
}

static void put_most(Emit *e, const Decode *d)
{
    for (int r = 0; r < ROWS_EACH; r++) {
        LV most = of_groups(e, l_load(e, e->type[SC_F32], d->a->most[r], 0), true);
        l_store(e, most, decode_of_warp(e, d->most, d->warp, row_of_task(e, d, r)), 0); /* by all threads alike */
    }
}

/* Each group stores a row. */
static void put_means(Emit *e, const Decode *d)
{
    const Product *p = d->p;
    LLVMTypeRef f32 = e->type[SC_F32];
    for (int r = 0; r < ROWS_EACH; r++) {
        LV row = row_of_task(e, d, r), base = attend_base(e, decode_most_of_warps(e, d, row));
        LV scale = attend_scale(e, l_load(e, f32, d->a->most[r], 0), base);
        LV total = of_groups(e, LLVMBuildFMul(e->b, l_load(e, f32, d->a->total[r], 0), scale, ""), false), mean[FOUR * MOST_SPANS];
        for (int64_t x = 0; x < FOUR * d->spans[1]; x++)
            mean[x] = of_groups(e, LLVMBuildFMul(e->b, l_load(e, f32, p->sum[sum_of(r, x)], 0), scale, ""), false);
        If mine = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, group_of(e, p), l_i64(e, r), ""), "mine");
        l_store(e, total, decode_of_warp(e, d->totals, d->warp, row), 0);
        for (int64_t x = 0; x < FOUR * d->spans[1]; x++) {
            LV column = l_add(e, l_mul(e, in_group(e, p), l_i64(e, FOUR)), l_i64(e, x / FOUR * SPAN + x % FOUR));
            l_store(e, mean[x], decode_mean_at(e, d, d->warp, row, column), 0);
        }
        if_end(e, &mine);
    }
}

/* ---- the plan ---- */

static void place(Emit *e, Product *p) { (void)e, (void)p; }

static const Multiply multiply = {.place = place};

static void plan(Emit *e, const Decode *d)
{
    Product *p = d->p;
    Attend *a = d->a;
    const int64_t of_warp[2] = {ROWS_EACH, d->spans[1] * SPAN};
    p->how = &multiply;
    p->acc = DT_F32;
    p->element = e->type[SC_F32];
    p->sums = (uint32_t)(ROWS_EACH * FOUR * d->spans[1]);
    for (int s = 0; s < 2; s++) {
        p->warps[s] = s == ROWS ? DECODE_WARPS : 1;
        p->of_warp[s] = p->side[s] = of_warp[s];
    }
    a->at = &layout;
    a->dots.sums = ROWS_EACH * KEYS_EACH;
    e->group = WARP;
}

const DecodeWay decode_by_fma = {.vector = FOUR,
                                 .span = {SPAN, SPAN},
                                 .keys = KEYS_EACH,
                                 .rows = ROWS_EACH,
                                 .plan = plan,
                                 .walk = walk,
                                 .most = put_most,
                                 .put = put_means};

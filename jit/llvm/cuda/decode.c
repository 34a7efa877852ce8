/*
 * Attention of few queries on CUDA, as fast as keys and values come: keys are cut into parts, so that a device is busy however few heads
 * there are. A task is 16 queries of a head (grouped heads are queries of one) and a part of its keys. Here: tasks, what becomes of what
 * warps and parts have, and the walk by tensor cores; that by fused multiply-adds is in cuda/decode_fma.c. By tensor cores each of a
 * task's four warps takes 16 keys of every 64.
 *
 *     queries to shared memory: fragments of all their elements
 *     keys of the first 64 on their way
 *     for k0 = 0; k0 < part; k0 += 64
 *         values k0... on their way
 *         dots = queries x keys
 *         keys k0 + 64... on their way
 *         scores, weights, means: as in cuda/attention.c, each warp by itself
 *     warps' means, scaled to the greatest most, are added through shared memory
 *     parts' likewise: they go to ARG_SCRATCH, and whoever comes last for 16 queries takes all of them, in order
 *     means / total, and the epilogue
 *
 * Keys and values go from memory to the registers of the warp that multiplies them, each byte once, 16 bytes a thread. They can, because
 * a product may number elements as it likes where both of its factors do alike. Thread 4g + t has
 *
 *     of key g          elements 32c + 8t to 32c + 8t + 7: pairs 0 and 1 are its part of one step of the product, pairs 2 and 3 of the next
 *     of values         2t, 2t + 1, 2t + 8, 2t + 9 elements 64c + 8g to 64c + 8g + 7: element j of two neighbours is its part of fragment j,
 *                       whose column g stands for 64c + 8g + j
 *
 * so eight rows of 64 bytes, or four of 128, are one access of a warp.
 *
 * Scratch:  counters | task: means [16][width], most [16], total [16] | ...
 *
 * How many parts there are: cuda/attention_parts.c.
 */
#include "jit/llvm/cuda/decode.h"

#include <math.h>

enum { WARP_KEYS = 16, UNIT_KEYS = DECODE_WARPS * WARP_KEYS };
/* elements of a row that the threads of an access have: of keys and queries four, of values eight */
enum { KEY_SPAN = 4 * VECTOR, VALUE_SPAN = 8 * VECTOR, REGISTERS = 4, MOST_SPANS = 128 / KEY_SPAN };
enum { BLOCKS = 2, MERGED = 8 };

static const KeyCut cut = {.blocks = BLOCKS, .waves = 4, .wave_parts = 8, .least = 256, .most = 128, .unit = UNIT_KEYS};

/* ---- factors ---- */

LV decode_row(Emit *e, const Decode *d, int which, LV row, LV end, int64_t span, LV column, bool whole)
{
    const Factor *x = &d->a->factor[which];
    const int64_t wide = d->way->span[which == VALUES], vector = d->way->vector;
    LV at = l_add(e, l_mul(e, column, l_i64(e, vector)), l_i64(e, span * wide)), exists = NULL;
    if ((span + 1) * wide > x->width) {
        exists = LLVMBuildICmp(e->b, LLVMIntSLT, at, l_i64(e, x->width), "");
        at = l_min(e, at, l_i64(e, x->width - vector));
    }
    if (whole) {
        LV inside = LLVMBuildICmp(e->b, LLVMIntSLT, row, end, "");
        exists = exists ? both(e, exists, inside) : inside;
    }
    level_open(e, LV_ROW);
    memcpy(e->axis, d->batch, sizeof e->axis);
    e->axis[x->row] = ix_uniform(l_min(e, row, l_sub(e, end, l_i64(e, 1))));
    e->axis[x->inner] = lanes_from(e, at, true);
    pin(e, LV_ROW);
    level_open(e, LV_R);
    e->flat = l_i64(e, 0);
    LV v = val_vector(e, cast_emit(e, (DType)e->k->inst.at[x->v].dtype, d->p->type, value(e, x->v)));
    level_close(e, LV_R, LV_ROW);
    level_close(e, LV_ROW, LV_ROW);
    return exists ? LLVMBuildSelect(e->b, exists, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
}

/* ---- by tensor cores ---- */

/* Eight elements: four registers. */
static LV load_eight(Emit *e, const Decode *d, int which, LV row, LV end, int64_t span, LV column, bool whole)
{
    LV v = decode_row(e, d, which, row, end, span, column, whole);
    return LLVMBuildBitCast(e->b, v, LLVMVectorType(e->type[SC_I32], REGISTERS), "");
}

static LV of_eight(Emit *e, LV v, int64_t i) { return LLVMBuildExtractElement(e->b, v, const_i32(e, i), ""); }

static LV lane_group(Emit *e, const Product *p) { return l_div(e, p->lane, l_i64(e, 4)); }
static LV lane_in_group(Emit *e, const Product *p) { return l_mod(e, p->lane, l_i64(e, 4)); }

/* A thread's part of fragment `step` of its warp's rows, in shared memory: registers are for what comes from further away. */
static LV query_at(Emit *e, const Decode *d, int64_t step)
{
    LV at = l_add(e, d->p->tid, l_i64(e, step * DECODE_THREADS));
    return l_gep(e, LLVMVectorType(e->type[SC_I32], REGISTERS), d->p->shared, at);
}

/* Of each span two steps. */
static void load_queries(Emit *e, const Decode *d)
{
    const Product *p = d->p;
    for (int64_t c = 0; c < d->spans[0]; c++) {
        LV half[ROWS_OF_THREAD];
        for (int h = 0; h < ROWS_OF_THREAD; h++) {
            LV row = l_add(e, p->first[ROWS], l_add(e, lane_group(e, p), l_i64(e, 8 * h)));
            half[h] = load_eight(e, d, QUERIES, row, p->n[ROWS], c, lane_in_group(e, p), false);
        }
        for (int64_t s = 0; s < 2; s++) {
            LV fragment = LLVMGetPoison(LLVMTypeOf(half[0]));
            for (int64_t i = 0; i < REGISTERS; i++) {
                LV one = of_eight(e, half[i % 2], 2 * s + i / 2);
                fragment = LLVMBuildInsertElement(e->b, fragment, one, const_i32(e, i), "");
            }
            l_store(e, fragment, query_at(e, d, 2 * c + s), MOST_BYTES);
        }
    }
}

/* The keys of a warp from k0 on: of eight keys each all spans. */
static void load_keys(Emit *e, const Decode *d, LV k0, LV *const to)
{
    for (int64_t i = 0; i < 2; i++)
        for (int64_t c = 0; c < d->spans[0]; c++) {
            LV key = l_add(e, k0, l_add(e, lane_group(e, d->p), l_i64(e, 8 * i)));
            l_store(e, load_eight(e, d, KEYS, key, d->p->k1, c, lane_in_group(e, d->p), false), to[i * d->spans[0] + c], 0);
        }
}

static void add_dots(Emit *e, const Decode *d, LV *const keys)
{
    LLVMTypeRef type = LLVMVectorType(e->type[SC_I32], REGISTERS);
    for (uint32_t i = 0; i < d->a->dots.sums; i++)
        l_store(e, f32_const(e, 0), d->a->dot_sum[i], 0);
    for (int64_t step = 0; step < 2 * d->spans[0]; step++) {
        LV all = l_load(e, type, query_at(e, d, step), MOST_BYTES), query[REGISTERS];
        LLVMSetVolatile(all, true); /* or it would be in registers all the same */
        for (int64_t i = 0; i < REGISTERS; i++)
            query[i] = of_eight(e, all, i);
        for (int64_t i = 0; i < 2; i++) {
            LV key = l_load(e, type, keys[i * d->spans[0] + step / 2], 0);
            LV pairs[2] = {of_eight(e, key, 2 * (step % 2)), of_eight(e, key, 2 * (step % 2) + 1)};
            mma_add(e, &d->a->dots, query, pairs, &d->a->dot_sum[4 * i]);
        }
    }
}

/* Values 2t, 2t + 1, 2t + 8, 2t + 9 of the warp's 16 from k0 on: span c. */
static void load_values(Emit *e, const Decode *d, LV k0, int64_t c, LV *out)
{
    for (int64_t r = 0; r < REGISTERS; r++) {
        LV key = l_add(e, k0, l_add(e, l_mul(e, lane_in_group(e, d->p), l_i64(e, 2)), l_i64(e, 8 * (r / 2) + r % 2)));
        out[r] = load_eight(e, d, VALUES, key, d->p->k1, c, lane_group(e, d->p), true);
    }
}

/* Element j of two rows: a register. */
static LV two_rows(Emit *e, LV low, LV high, int64_t j)
{
    LV in[3] = {of_eight(e, low, j / 2), of_eight(e, high, j / 2), const_i32(e, j % 2 ? 0x7632 : 0x5410)};
    return l_intrinsic(e, "llvm.nvvm.prmt", NULL, 0, in, 3);
}

static void pair_weights(Emit *e, const Decode *d, LV *rows)
{
    LLVMTypeRef f32 = e->type[SC_F32];
    for (int64_t r = 0; r < REGISTERS; r++) { /* rows 8 * (r % 2)..., keys 8 * (r / 2)... */
        const LV *two = &d->a->dot_sum[4 * (r / 2) + 2 * (r % 2)];
        rows[r] = attend_pair(e, d->p, l_load(e, f32, two[0], 0), l_load(e, f32, two[1], 0));
    }
}

static void add_means(Emit *e, const Decode *d, const LV *weights, const LV *v, int64_t c)
{
    const Product *p = d->p;
    for (int64_t j = 0; j < VECTOR; j++)
        mma_add(e, p, weights, (LV[]){two_rows(e, v[0], v[1], j), two_rows(e, v[2], v[3], j)}, &p->sum[REGISTERS * (VECTOR * c + j)]);
}

/*
 * `ahead`: as the picture has it, which takes more registers than single elements leave: then keys come where they are needed, and
 * values behind the products of keys; `full`: values behind the scores, which need registers themselves.
 */
static void walk_keys(Emit *e, const Decode *d, LV from, LV to, bool ahead, bool full)
{
    const Product *p = d->p;
    LLVMTypeRef type = LLVMVectorType(e->type[SC_I32], REGISTERS);
    LV keys[2 * MOST_SPANS], values[MOST_SPANS][REGISTERS], weights[REGISTERS];
    LV unit = l_i64(e, UNIT_KEYS), mine = l_mul(e, d->warp, l_i64(e, WARP_KEYS));
    for (int64_t i = 0; i < 2 * d->spans[0]; i++)
        keys[i] = l_alloca(e, type, 0, "keys");
    load_queries(e, d);
    if (ahead)
        load_keys(e, d, l_add(e, from, mine), keys);
    Loop l = loop_begin(e, from, to, unit, "keys");
    LV k0 = l_add(e, l.iv, mine);
    if (!ahead)
        load_keys(e, d, k0, keys);
    for (int64_t c = 0; c < d->spans[1] && ahead; c++)
        load_values(e, d, k0, c, values[c]);
    add_dots(e, d, keys);
    if (ahead)
        load_keys(e, d, l_add(e, k0, unit), keys);
    for (int64_t c = 0; c < d->spans[1] && !ahead && !full; c++)
        load_values(e, d, k0, c, values[c]);
    memcpy(e->axis, d->batch, sizeof e->axis);
    attend_scores(e, p, k0);
    attend_weights(e, p);
    pair_weights(e, d, weights);
    for (int64_t c = 0; c < d->spans[1]; c++) {
        if (full)
            load_values(e, d, k0, c, values[c]);
        add_means(e, d, weights, values[c], c);
    }
    loop_end(e, &l);
    memcpy(e->axis, d->batch, sizeof e->axis);
}

static void put_most(Emit *e, const Decode *d)
{
    const Product *p = d->p;
    If first = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, lane_in_group(e, p), l_i64(e, 0), ""), "first");
    for (int half = 0; half < ROWS_OF_THREAD; half++) {
        LV row = l_add(e, lane_group(e, p), l_i64(e, 8 * half));
        l_store(e, l_load(e, e->type[SC_F32], d->a->most[half], 0), decode_of_warp(e, d->most, d->warp, row), 0);
    }
    if_end(e, &first);
}

static void put_means(Emit *e, const Decode *d)
{
    const Product *p = d->p;
    const Attend *a = d->a;
    LLVMTypeRef f32 = e->type[SC_F32];
    for (int half = 0; half < ROWS_OF_THREAD; half++) {
        LV mine = l_add(e, lane_group(e, p), l_i64(e, 8 * half)), total = attend_row(e, p, l_load(e, f32, a->total[half], 0), false);
        LV base = attend_base(e, decode_most_of_warps(e, d, mine)), scale = attend_scale(e, l_load(e, f32, a->most[half], 0), base);
        If write = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, lane_in_group(e, p), l_i64(e, 0), ""), "first");
        l_store(e, LLVMBuildFMul(e->b, total, scale, ""), decode_of_warp(e, d->totals, d->warp, mine), 0);
        if_end(e, &write);
        for (int64_t f = 0; f < p->fragments[COLUMNS]; f++)
            for (int64_t x = 0; x < 2; x++) { /* column 2t + x of the fragment */
                LV g = l_add(e, l_mul(e, lane_in_group(e, p), l_i64(e, 2)), l_i64(e, x));
                LV to = l_add(e, l_mul(e, g, l_i64(e, VECTOR)), l_i64(e, f / VECTOR * VALUE_SPAN + f % VECTOR));
                LV mean = LLVMBuildFMul(e->b, l_load(e, f32, p->sum[4 * f + 2 * half + x], 0), scale, "");
                l_store(e, mean, decode_mean_at(e, d, d->warp, mine, to), 0);
            }
    }
}

static void plan(Emit *e, const Decode *d)
{
    Product *p = d->p;
    mma_plan(e, p, p->type, (int64_t[]){1, d->spans[1] * VECTOR}, WARP_KEYS, false);
    mma_plan(e, &d->a->dots, p->type, (int64_t[]){1, WARP_KEYS / 8}, WARP_KEYS, true);
}

static const DecodeWay by_mma = {.vector = VECTOR,
                                 .span = {KEY_SPAN, VALUE_SPAN},
                                 .keys = WARP_KEYS,
                                 .rows = DECODE_ROWS,
                                 .plan = plan,
                                 .walk = walk_keys,
                                 .most = put_most,
                                 .put = put_means};

/* ---- keys of a task ---- */

/* The keys of the task, by whole accesses where this launch has them. */
static void attend_part(Emit *e, const Decode *d)
{
    const Factor *x = d->a->factor;
    uint8_t *align = ARENA_ARRAY(e->arena, uint8_t, e->k->inst.n + 1);
    LV guard = NULL, from, to;
    for (int i = 0; i < FACTORS; i++)
        for (uint32_t v = 0; x[i].guard && v < e->k->inst.n; v++)
            align[v] |= x[i].align[v];
    for (int i = 0; i < FACTORS; i++)
        if (x[i].guard)
            guard = guard ? both(e, guard, x[i].guard) : x[i].guard;
    bool full = x[VALUES].width > VALUE_SPAN && attend_heavy(e, d->a);
    attend_seen(e, d->p, UNIT_KEYS, &from, &to);
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, from, to, ""), "some");
    e->lanes = (int)d->way->vector;
    if (guard) {
        LLVMBasicBlockRef whole = l_block(e, "whole"), single = l_block(e, "single"), done = l_block(e, "");
        LLVMBuildCondBr(e->b, guard, whole, single);
        l_at(e, whole);
        e->tile_align = align;
        d->way->walk(e, d, from, to, !full, full);
        e->tile_align = NULL;
        LLVMBuildBr(e->b, done);
        l_at(e, single);
        d->way->walk(e, d, from, to, false, full);
        LLVMBuildBr(e->b, done);
        l_at(e, done);
    } else {
        d->way->walk(e, d, from, to, false, full);
    }
    e->lanes = 1;
    if_end(e, &some);
}

/* ---- results ---- */

static LV f32_at(Emit *e, LV base, LV n) { return l_gep(e, e->type[SC_F32], base, n); }

LV decode_mean_at(Emit *e, const Decode *d, LV warp, LV row, LV column)
{
    LV line = l_add(e, l_mul(e, warp, l_i64(e, DECODE_ROWS)), row);
    return f32_at(e, d->p->shared, l_add(e, l_mul(e, line, l_i64(e, d->pitch)), column));
}

LV decode_of_warp(Emit *e, LV stats, LV warp, LV row) { return f32_at(e, stats, l_add(e, l_mul(e, warp, l_i64(e, DECODE_ROWS)), row)); }

/* Warp number i of those that have a row, the first one if there are not so many. */
static LV warp_of_row(Emit *e, const Decode *d, LV row, int64_t i, LV *exists)
{
    LV first = l_div(e, row, l_i64(e, d->way->rows)), warp = l_add(e, first, l_mul(e, d->bands, l_i64(e, i)));
    *exists = LLVMBuildICmp(e->b, LLVMIntSLT, warp, l_i64(e, DECODE_WARPS), "");
    return LLVMBuildSelect(e->b, *exists, warp, first, "");
}

LV decode_most_of_warps(Emit *e, const Decode *d, LV row)
{
    LV most = NULL, exists;
    for (int64_t i = 0; i < DECODE_WARPS; i++) {
        LV one = l_load(e, e->type[SC_F32], decode_of_warp(e, d->most, warp_of_row(e, d, row, i, &exists), row), 0);
        most = most ? attend_greater(e, most, one) : one; /* one of them twice is as good */
    }
    return most;
}

static LV sum_of_warps(Emit *e, const Decode *d, LV row, LV column)
{
    LV sum = NULL, exists;
    for (int64_t i = 0; i < DECODE_WARPS; i++) {
        LV warp = warp_of_row(e, d, row, i, &exists);
        LV at = column ? decode_mean_at(e, d, warp, row, column) : decode_of_warp(e, d->totals, warp, row);
        LV one = LLVMBuildSelect(e->b, exists, l_load(e, e->type[SC_F32], at, 0), f32_const(e, 0), "");
        sum = sum ? LLVMBuildFAdd(e->b, sum, one, "") : one;
    }
    return sum;
}

/* Of the task: queries that exist times columns by `each`; thread after thread. */
static Loop each_mean(Emit *e, const Decode *d, LV rows, int64_t each, LV *row, LV *column)
{
    LV per_row = l_i64(e, d->a->factor[VALUES].width / each);
    Loop l = loop_begin(e, d->p->tid, l_mul(e, rows, per_row), l_i64(e, DECODE_THREADS), "mean");
    *row = l_div(e, l.iv, per_row);
    *column = l_mul(e, l_mod(e, l.iv, per_row), l_i64(e, each));
    return l;
}

/* What the warps have becomes what the block has, where the first warp's was. */
static void join_warps(Emit *e, const Decode *d, LV rows)
{
    LV at, column, tid = d->p->tid;
    d->way->most(e, d);
    barrier(e);
    d->way->put(e, d);
    barrier(e);
    Loop l = each_mean(e, d, rows, 1, &at, &column);
    l_store(e, sum_of_warps(e, d, at, column), decode_mean_at(e, d, l_i64(e, 0), at, column), 0);
    loop_end(e, &l);
    If one = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, tid, rows, ""), "row");
    LV most = decode_most_of_warps(e, d, tid), sum = sum_of_warps(e, d, tid, NULL);
    l_store(e, most, decode_of_warp(e, d->most, l_i64(e, 0), tid), 0);
    l_store(e, sum, decode_of_warp(e, d->totals, l_i64(e, 0), tid), 0);
    if_end(e, &one);
    barrier(e);
}

/* f32 of a task in the scratch. */
static int64_t task_words(const Decode *d) { return DECODE_ROWS * (d->a->factor[VALUES].width + 2); }

static LV scratch_at(Emit *e, const Decode *d, LV tile, LV part, LV word)
{
    LV task = l_add(e, l_mul(e, tile, d->p->parts), part);
    LV at = l_gep_bytes(e, argument(e, e->shared_arg), l_i64(e, GRID_COUNTER_BYTES));
    return f32_at(e, at, l_add(e, l_mul(e, task, l_i64(e, task_words(d))), word));
}

static LV mean_word(Emit *e, const Decode *d, LV row, LV column)
{
    return l_add(e, l_mul(e, row, l_i64(e, d->a->factor[VALUES].width)), column);
}

static LV stat_word(Emit *e, const Decode *d, int which, LV row)
{
    return l_add(e, row, l_i64(e, DECODE_ROWS * (d->a->factor[VALUES].width + which)));
}

static void leave_part(Emit *e, const Decode *d, LV tile, LV rows)
{
    const Product *p = d->p;
    LLVMTypeRef f32 = e->type[SC_F32];
    LV row, column;
    Loop l = each_mean(e, d, rows, 1, &row, &column);
    l_store(e, l_load(e, f32, decode_mean_at(e, d, l_i64(e, 0), row, column), 0),
            scratch_at(e, d, tile, p->part, mean_word(e, d, row, column)), 4);
    loop_end(e, &l);
    If one = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, p->tid, rows, ""), "row");
    for (int which = 0; which < 2; which++) {
        LV from = decode_of_warp(e, which ? d->totals : d->most, l_i64(e, 0), p->tid);
        l_store(e, l_load(e, f32, from, 0), scratch_at(e, d, tile, p->part, stat_word(e, d, which, p->tid)), 4);
    }
    if_end(e, &one);
}

/* All parts of a tile, to where the block's own was: four columns a thread, eight parts at a time, so that many loads are on their way. */
static void take_parts_of(Emit *e, const Decode *d, LV tile, LV rows)
{
    enum { FOUR = 4 };
    LLVMTypeRef f32 = e->type[SC_F32], four = LLVMVectorType(f32, FOUR);
    LV row, column, zero = LLVMConstNull(four), last = l_sub(e, d->p->parts, l_i64(e, 1));
    LV sum = l_alloca(e, four, 0, "sum"), total = l_alloca(e, f32, 0, "total"), most = l_alloca(e, f32, 0, "most");
    Loop l = each_mean(e, d, rows, FOUR, &row, &column);
    l_store(e, zero, sum, 0);
    l_store(e, f32_const(e, 0), total, 0);
    l_store(e, f32_const(e, -INFINITY), most, 0);
    Loop parts = loop_begin(e, l_i64(e, 0), d->p->parts, l_i64(e, MERGED), "parts");
    LV mean[MERGED], stat[2][MERGED], before = l_load(e, f32, most, 0), now = before;
    for (int64_t i = 0; i < MERGED; i++) {
        LV part = l_add(e, parts.iv, l_i64(e, i)), there = l_min(e, part, last);
        LV exists = LLVMBuildICmp(e->b, LLVMIntSLE, part, last, "");
        mean[i] = l_load(e, four, scratch_at(e, d, tile, there, mean_word(e, d, row, column)), MOST_BYTES);
        mean[i] = LLVMBuildSelect(e->b, exists, mean[i], zero, "");
        for (int which = 0; which < 2; which++) {
            LV v = l_load(e, f32, scratch_at(e, d, tile, there, stat_word(e, d, which, row)), 4);
            stat[which][i] = LLVMBuildSelect(e->b, exists, v, f32_const(e, which ? 0 : -INFINITY), "");
        }
        now = attend_greater(e, now, stat[0][i]);
    }
    LV base = attend_base(e, now), scale = attend_scale(e, before, base), all = LLVMBuildFMul(e->b, l_load(e, f32, total, 0), scale, "");
    LV means = LLVMBuildFMul(e->b, l_load(e, four, sum, 0), l_splat_n(e, scale, FOUR), "");
    for (int64_t i = 0; i < MERGED; i++) {
        LV by = attend_scale(e, stat[0][i], base);
        all = LLVMBuildFAdd(e->b, all, LLVMBuildFMul(e->b, stat[1][i], by, ""), "");
        means = LLVMBuildFAdd(e->b, means, LLVMBuildFMul(e->b, mean[i], l_splat_n(e, by, FOUR), ""), "");
    }
    l_store(e, now, most, 0);
    l_store(e, all, total, 0);
    l_store(e, means, sum, 0);
    loop_end(e, &parts);
    LV v = l_load(e, four, sum, 0);
    for (int64_t i = 0; i < FOUR; i++)
        l_store(e, of_eight(e, v, i), decode_mean_at(e, d, l_i64(e, 0), row, l_add(e, column, l_i64(e, i))), 0);
    If once = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, column, l_i64(e, 0), ""), "once");
    l_store(e, l_load(e, f32, total, 0), decode_of_warp(e, d->totals, l_i64(e, 0), row), 0);
    if_end(e, &once);
    loop_end(e, &l);
    barrier(e);
}

static void epilogue(Emit *e, const Decode *d, LV rows)
{
    const Product *p = d->p;
    LLVMTypeRef f32 = e->type[SC_F32];
    LV row, column;
    Loop l = each_mean(e, d, rows, 1, &row, &column);
    level_open(e, LV_ROW);
    memcpy(e->axis, d->batch, sizeof e->axis);
    e->axis[p->axis[ROWS]] = ix_uniform(l_add(e, p->first[ROWS], row));
    e->axis[p->axis[COLUMNS]] = ix_uniform(column);
    pin(e, LV_ROW);
    LV share = attend_share(e, p, l_load(e, f32, decode_of_warp(e, d->totals, l_i64(e, 0), row), 0));
    LV mean = LLVMBuildFMul(e->b, l_load(e, f32, decode_mean_at(e, d, l_i64(e, 0), row, column), 0), share, "");
    mean = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, p->n_k, l_i64(e, 0), ""), mean, f32_const(e, 0), "");
    value_set(e, p->reduce, e->level[p->reduce], (Val){.v = mean});
    emit_stores(e, false, 0);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &l);
    memcpy(e->axis, d->batch, sizeof e->axis);
}

/* ---- tasks ---- */

static void task(Emit *e, Decode *d, LV number)
{
    Product *p = d->p;
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    LV tile = tiles_task(e, p, number);
    tiles_locate(e, p, tile);
    LV warp = p->warp[ROWS], rows = l_min(e, l_sub(e, p->n[ROWS], p->first[ROWS]), l_i64(e, DECODE_ROWS));
    LV bands = l_i64(e, 1);
    for (int64_t n = DECODE_ROWS / 2; n >= d->way->rows; n /= 2) { /* a power of two of them: it divides the warps */
        LV more = LLVMBuildICmp(e->b, LLVMIntSGT, rows, l_i64(e, n), "");
        bands = LLVMBuildSelect(e->b, more, l_max(e, bands, l_i64(e, 2 * n / d->way->rows)), bands, "");
    }
    d->bands = bands;
    d->warp = warp;
    d->stripe = l_div(e, warp, bands);
    d->stripes = l_div(e, l_i64(e, DECODE_WARPS), bands);
    p->warp[ROWS] = l_mod(e, warp, bands);
    memcpy(d->batch, e->axis, sizeof d->batch);
    for (uint32_t i = 0; i < p->sums; i++)
        l_store(e, f32_const(e, 0), p->sum[i], 0);
    attend_start(e, p);
    barrier(e); /* the last task's results have been read */
    attend_part(e, d);
    LV done = l_alloca(e, e->type[SC_I1], 0, "done");
    barrier(e); /* queries have been read */
    join_warps(e, d, rows);
    l_store(e, LLVMConstInt(e->type[SC_I1], 1, 0), done, 0);
    If several = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, p->parts, l_i64(e, 1), ""), "cut");
    leave_part(e, d, tile, rows);
    LV last = last_to_arrive(e, p->tid, d->word, l_mod(e, tile, l_i64(e, PARTS_COUNTERS)), p->parts);
    l_store(e, last, done, 0);
    If take = if_begin(e, last, "take");
    take_parts_of(e, d, tile, rows);
    if_end(e, &take);
    if_end(e, &several);
    If all = if_begin(e, l_load(e, e->type[SC_I1], done, 0), "all");
    epilogue(e, d, rows);
    if_end(e, &all);
    level_close(e, LV_ROW, LV_ROW);
}

static int64_t spans_of(int64_t width, int64_t span) { return (width + span - 1) / span; }

void emit_decode(Emit *e, Product *p)
{
    Attend *a = p->attend;
    Decode d = {.p = p, .a = a, .way = p->type == DT_F32 ? &decode_by_fma : &by_mma};
    LaunchPhase *phase;
    LaunchBuilder *g = e->launch;
    for (int i = 0; i < 2; i++)
        d.spans[i] = spans_of(a->factor[i ? VALUES : KEYS].width, d.way->span[i]);
    a->keys = d.way->keys;
    d.way->plan(e, &d);
    p->side[ROWS] = DECODE_ROWS;
    d.pitch = p->side[COLUMNS] + 1;
    cuda_entry(e, "", DECODE_THREADS, BLOCKS, &phase);
    uint16_t heads = axes_node(e, 0, e->n_x - 2), rows = axis_node(e, (uint32_t)p->axis[ROWS]);
    uint16_t tiles = launch_op(g, LAUNCH_MUL, heads, launch_op(g, LAUNCH_CEIL_DIV, rows, launch_const(g, DECODE_ROWS)));
    uint16_t parts = attend_cut_node(e, &cut, tiles), tasks = launch_op(g, LAUNCH_MUL, tiles, parts);
    phase->points = axes_node(e, 0, e->k->axes.n);
    phase->tasks = launch_op(g, LAUNCH_MIN, tasks, launch_const(g, INT32_MAX));
    uint16_t split = launch_op(g, LAUNCH_MIN, launch_op(g, LAUNCH_ADD, parts, launch_const(g, -1)), launch_const(g, 1));
    uint16_t bytes = launch_op(g, LAUNCH_MUL, launch_op(g, LAUNCH_MUL, tasks, split), launch_const(g, 4 * task_words(&d)));
    g->scratch = launch_op(g, LAUNCH_ADD, launch_const(g, GRID_COUNTER_BYTES), bytes);
    for (uint32_t i = 0; i < p->sums; i++)
        p->sum[i] = l_alloca(e, e->type[SC_F32], 0, "sum");
    int64_t means = 4 * DECODE_WARPS * DECODE_ROWS * d.pitch, queries = 2 * d.spans[0] * DECODE_THREADS * MOST_BYTES;
    p->shared = cuda_shared(e, (uint64_t)(means > queries ? means : queries), "means"); /* queries before */
    d.most = cuda_shared(e, 4 * DECODE_WARPS * DECODE_ROWS, "most");
    d.totals = cuda_shared(e, 4 * DECODE_WARPS * DECODE_ROWS, "totals");
    d.word = cuda_shared(e, 4, "word");
    Place place = level_enter(e, LV_TASK);
    tiles_sizes(e, p);
    attend_open(e, p);
    LV all = p->tiles[ROWS];
    for (int axis = 0; axis < p->axis[ROWS]; axis++)
        all = l_mul(e, all, axis_size(e, (uint32_t)axis));
    attend_cut(e, p, &cut, all);
    LV n = l_mul(e, all, p->parts);
    level_leave(e, place);
    Loop l = loop_begin(e, cuda_special(e, "ctaid.x"), n, cuda_special(e, "nctaid.x"), "task");
    task(e, &d, l.iv);
    loop_end(e, &l);
    cuda_return(e);
}

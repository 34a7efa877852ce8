/*
 * Attention on CUDA by tensor cores: a block of threads has 128 queries of a head, a warp 16 of them, and walks its keys in blocks of 64.
 *
 *     queries to shared memory, from there to registers: fragments of all their elements (where two blocks share a multiprocessor, in the loop)
 *     first keys on their way
 *     for k0 = 0; k0 < keys; k0 += 64                          but for those at both ends that no query of the block sees (cuda/seen.c)
 *         wait, barrier: keys k0... are there, and nobody is at the values before
 *         values k0... on their way
 *         dots = queries x keys                                16 x 64 of a warp, 32 a thread, in registers
 *         wait, barrier: values are there, and nobody is at the keys
 *         keys k0 + 64... on their way
 *         scores of dots: the kernel's instructions, each for its place; -inf past the last key
 *         most' = max(most, scores), weights = exp(scores - most'), total = total * exp(most - most') + weights
 *         means = means * exp(most - most') + weights x values
 *     means / total, and the epilogue of products (cuda/tiles.c)
 *
 * Scores and weights are never in memory, shared memory neither: what a thread has of two fragments of sums is, in pairs of the narrow dtype, what it
 * has to have of one fragment of rows. A query's scores are those of four neighbouring threads, which have two queries each, rows 8 apart.
 *
 * f32 is multiplied as tf32 where the option of that name is set (else: cuda/attention_fma.c). Whoever has brought elements to shared memory
 * rounds them there before the barrier, so that eight warps need not. Values are read from there word by word.
 *
 * So `total` and `means` are folded in blocks of 64 keys from the first on, whatever the launch. Weights are f32 in the total, and rounded to the dtype
 * of the values where they are multiplied: ir/accuracy_cuda.def. The most is taken without NaN, which the weights bring. Where it is -inf, 0 is taken away
 * instead, and where it is +inf weights are NaN, as exp(inf - inf) is.
 */
#include "jit/llvm/cuda/attention.h"

#include <math.h>

static int64_t factor_bytes(const Factor *x, const Product *p) { return x->rows * x->pitch * element_bytes(p); }

int64_t attend_bytes(const Product *p) { return p->attend->bytes; }

void attend_keys(Emit *e, Product *p) { p->attend->walk(e, p); }

/* ---- slices ---- */

/* Elements of an access. */
static int vector_of(const Product *p) { return MOST_BYTES / (int)element_bytes(p); }

/* Sines of several elements at once would take the registers of what is summed up. */
static bool is_costly(Emit *e, VRef v)
{
    bool *mine = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1), costly = false;
    mark_operands(e, v, mine);
    for (VRef i = 0; i <= v; i++)
        costly |= mine[i] && e->k->inst.at[i].kind == KI_OP && op_info[e->k->inst.at[i].op].flags & OPF_COSTLY;
    return costly;
}

static void align_factors(Emit *e, Product *p)
{
    e->lanes = vector_of(p);
    for (int i = 0; i < FACTORS; i++) {
        Factor *x = &p->attend->factor[i];
        if (x->v == VREF_NONE)
            continue;
        const KInst *n = &e->k->inst.at[x->v];
        bool some = align_operand(e, x->v, x->inner, &x->align), as_it_is = (DType)n->dtype == p->type && n->pred == VREF_NONE;
        x->async = p->async && n->kind == KI_LOAD && as_it_is && x->align[x->v] == MOST_BYTES;
        x->guard = NULL;
        if (some && !is_costly(e, x->v)) {
            e->tile_align = x->align;
            x->guard = align_guard(e, x->inner);
        }
    }
    e->tile_align = NULL;
    e->lanes = 1;
}

void attend_open(Emit *e, Product *p)
{
    Attend *a = p->attend;
    LLVMTypeRef f32 = e->type[SC_F32];
    align_factors(e, p);
    for (uint32_t i = 0; i < a->n_dots * a->dots.sums; i++)
        a->dot_sum[i] = l_alloca(e, f32, 0, "dot");
    for (int row = 0; row < a->at->rows; row++) {
        a->most[row] = l_alloca(e, f32, 0, "most");
        a->total[row] = l_alloca(e, f32, 0, "total");
    }
}

void attend_start(Emit *e, const Product *p)
{
    for (int row = 0; row < p->attend->at->rows; row++) {
        l_store(e, f32_const(e, -INFINITY), p->attend->most[row], 0);
        l_store(e, f32_const(e, 0), p->attend->total[row], 0);
    }
}

/* A slice of a factor: rows from `first` on, of which those from `end` on are zeros, elements from `column` on. */
typedef struct Slice {
    const Factor *x;
    const Ix *batch;
    LV first, end, column, to;
    bool rounds; /* they are there, and become tf32 */
} Slice;

/* The coordinate `at`, or the last one of `n`. Narrow where coordinates are, so that comparisons of them are: axes times elements of a
 * head fit 32 bits then, and so does what is up to a block behind their end. */
static Ix coordinate(Emit *e, LV at, LV n)
{
    LLVMTypeRef i32t = e->type[SC_I32];
    LV last = l_sub(e, n, l_i64(e, 1));
    if (e->k->index_bits != 32)
        return ix_uniform(l_min(e, at, last));
    at = LLVMBuildTrunc(e->b, at, i32t, ""), last = LLVMBuildTrunc(e->b, last, i32t, "");
    LV least = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, at, last, ""), at, last, "");
    return ix_uniform(LLVMBuildSExt(e->b, least, e->type[SC_I64], ""));
}

static LV as_words(Emit *e, const Product *p, LV v)
{
    LV all = LLVMGetPoison(l_vec(e, p->element));
    for (int i = 0; i < e->lanes; i++) {
        LV one = e->lanes > 1 ? LLVMBuildExtractElement(e->b, v, const_i32(e, i), "") : v;
        mma_round(e, p, &one, 1);
        all = e->lanes > 1 ? LLVMBuildInsertElement(e->b, all, one, const_i32(e, i), "") : one;
    }
    return all;
}

/* Of a row of the slice, elements from `column` on; `place` is where the slice has room for them. */
static void bring_one(Emit *e, const Product *p, const Slice *s, LV row, LV column, LV place)
{
    const Factor *x = s->x;
    const unsigned bytes = (unsigned)(e->lanes * element_bytes(p));
    if (s->rounds) {
        l_store(e, as_words(e, p, l_load(e, l_vec(e, p->element), place, bytes)), place, bytes);
        return;
    }
    LV at = l_add(e, s->first, row), exists = LLVMBuildICmp(e->b, LLVMIntSLT, index_narrow(e, at), index_narrow(e, s->end), "");
    level_open(e, LV_ROW);
    memcpy(e->axis, s->batch, sizeof e->axis);
    e->axis[x->row] = coordinate(e, at, s->end);
    e->axis[x->inner] = lanes_from(e, l_add(e, s->column, column), true);
    pin(e, LV_ROW);
    level_open(e, LV_R);
    e->flat = l_i64(e, 0);
    if (x->async && e->lanes > 1) {
        copy_to_shared(e, x->v, place, exists);
    } else {
        LV v = val_vector(e, cast_emit(e, (DType)e->k->inst.at[x->v].dtype, p->type, value(e, x->v)));
        v = LLVMBuildSelect(e->b, exists, v, LLVMConstNull(LLVMTypeOf(v)), "");
        l_store(e, p->attend->tf32 ? as_words(e, p, v) : v, place, bytes);
    }
    level_close(e, LV_R, LV_ROW);
    level_close(e, LV_ROW, LV_ROW);
}

/* Accesses from number n on, `times` of them: rows that are as far apart as all threads' accesses of a row are many. */
static void bring_some(Emit *e, const Product *p, const Slice *s, LV n, int64_t times)
{
    const Factor *x = s->x;
    int64_t per_row = x->part / e->lanes;
    LV row = l_div(e, n, l_i64(e, per_row)), column = l_mul(e, l_mod(e, n, l_i64(e, per_row)), l_i64(e, e->lanes));
    LV place = l_gep(e, p->element, s->to, l_add(e, l_mul(e, row, l_i64(e, x->pitch)), column));
    for (int64_t u = 0; u < times; u++) {
        int64_t down = u * TILE_THREADS / per_row;
        bring_one(e, p, s, l_add(e, row, l_i64(e, down)), column, l_gep(e, p->element, place, l_i64(e, down * x->pitch)));
    }
}

/* What is computed, as queries that are turned by their place are, takes registers for one access at a time. */
static bool is_computed(const Emit *e, const Slice *s)
{
    const KInst *n = &e->k->inst.at[s->x->v];
    return !s->rounds && n->kind != KI_LOAD;
}

static void bring_all(Emit *e, const Product *p, const Slice *s)
{
    int64_t per_row = s->x->part / e->lanes, all = s->x->rows * per_row;
    const bool unrolled = e->lanes > 1 && all % TILE_THREADS == 0 && !is_computed(e, s);
    if (unrolled && TILE_THREADS % per_row == 0) {
        bring_some(e, p, s, p->tid, all / TILE_THREADS);
    } else if (unrolled) {
        for (int64_t u = 0; u < all; u += TILE_THREADS)
            bring_some(e, p, s, l_add(e, p->tid, l_i64(e, u)), 1);
    } else {
        Loop l = loop_begin(e, p->tid, l_i64(e, all), l_i64(e, TILE_THREADS), "bring");
        bring_some(e, p, s, l.iv, 1);
        loop_end(e, &l);
    }
    memcpy(e->axis, s->batch, sizeof e->axis);
}

void attend_bring(Emit *e, const Product *p, int which, LV first, LV end, LV column, LV to)
{
    const Factor *x = &p->attend->factor[which];
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    Slice s = {.x = x, .batch = batch, .first = first, .end = end, .column = column, .to = to};
    if (!x->guard) {
        bring_all(e, p, &s);
        return;
    }
    LLVMBasicBlockRef whole = l_block(e, "whole"), single = l_block(e, "single"), done = l_block(e, "");
    LLVMBuildCondBr(e->b, x->guard, whole, single);
    l_at(e, whole);
    e->lanes = vector_of(p);
    e->tile_align = x->align;
    bring_all(e, p, &s);
    e->lanes = 1;
    e->tile_align = NULL;
    LLVMBuildBr(e->b, done);
    l_at(e, single);
    bring_all(e, p, &s);
    LLVMBuildBr(e->b, done);
    l_at(e, done);
}

void attend_land(Emit *e, const Product *p)
{
    bool any = false;
    for (int i = 0; i < FACTORS; i++)
        any |= p->attend->factor[i].async;
    if (any)
        wait_copies(e);
}

void attend_arrive(Emit *e, const Product *p)
{
    attend_land(e, p);
    barrier(e);
}

/* The same, of a factor, whose elements of 32 bits become tf32. */
static void arrive_as_words(Emit *e, const Product *p, int which, LV to)
{
    const Factor *x = &p->attend->factor[which];
    attend_land(e, p);
    if (p->attend->tf32 && x->async) {
        If whole = if_begin(e, x->guard, "round");
        e->lanes = vector_of(p);
        bring_all(e, p, &(Slice){.x = x, .batch = e->axis, .to = to, .rounds = true});
        e->lanes = 1;
        if_end(e, &whole);
    }
    barrier(e);
}

/* ---- scores ---- */

LV attend_greater(Emit *e, LV a, LV b)
{
    LLVMTypeRef f32 = e->type[SC_F32];
    return l_intrinsic(e, "llvm.maxnum", &f32, 1, (LV[]){a, b}, 2);
}

LV attend_row(Emit *e, const Product *p, LV v, bool most)
{
    const Layout *at = p->attend->at;
    for (int i = 0; i < 3 && at->apart[i]; i++) {
        LV other = cuda_shuffle(e, "bfly", v, const_i32(e, at->apart[i]));
        v = most ? attend_greater(e, v, other) : LLVMBuildFAdd(e->b, v, other, "");
    }
    return v;
}

/* exp(x - base), `by` being -base * log2(e). */
static LV exponential(Emit *e, LV x, LV by)
{
    static const char text[] = "ex2.approx.ftz.f32 $0, $1;", operands[] = "=f,f";
    LLVMTypeRef f32 = e->type[SC_F32], type = LLVMFunctionType(f32, &f32, 1, 0);
    LV power = l_intrinsic(e, "llvm.fma", &f32, 1, (LV[]){x, f32_const(e, 1.44269504088896340736), by}, 3);
    LV call = LLVMGetInlineAsm(type, text, sizeof text - 1, operands, sizeof operands - 1, 0, 0, LLVMInlineAsmDialectATT, 0);
    return LLVMBuildCall2(e->b, type, call, &power, 1, "");
}

LV attend_base(Emit *e, LV most)
{
    LV none = LLVMBuildFCmp(e->b, LLVMRealOEQ, most, f32_const(e, -INFINITY), "");
    return LLVMBuildSelect(e->b, none, f32_const(e, 0), most, "");
}

LV attend_scale(Emit *e, LV most, LV base) { return exponential(e, LLVMBuildFSub(e->b, most, base, ""), f32_const(e, -0.0)); }

/* ---- which sums a thread of fragments has: two rows, 8 apart; of each 8 columns two neighbours ---- */

static LV fragment_row(Emit *e, const Product *p) { return l_div(e, p->lane, l_i64(e, 4)); }

static LV fragment_key(Emit *e, const Product *p, int64_t i)
{
    return l_add(e, l_mul(e, l_mod(e, p->lane, l_i64(e, 4)), l_i64(e, 2)), l_i64(e, 8 * (i / 2) + i % 2));
}

static int64_t fragment_sum(int row, int64_t i) { return 4 * (i / 2) + 2 * row + i % 2; }

static const Layout fragments = {
    .rows = ROWS_OF_THREAD, .row_step = 8, .threads = 4, .apart = {1, 2}, .row = fragment_row, .key = fragment_key, .sum = fragment_sum};

static LV row_of_thread(Emit *e, const Product *p, int row)
{
    const Layout *at = p->attend->at;
    LV first = l_add(e, l_mul(e, p->warp[ROWS], l_i64(e, p->of_warp[ROWS])), at->row(e, p));
    return l_add(e, p->first[ROWS], l_add(e, first, l_i64(e, at->row_step * row)));
}

/* The rows of the block, of no columns yet. */
static Rectangle rectangle_of(Emit *e, const Product *p)
{
    Rectangle r = {.axis = {(uint32_t)p->axis[ROWS], e->n_x}};
    r.first[ROWS] = p->first[ROWS];
    r.last[ROWS] = l_min(e, l_add(e, p->first[ROWS], l_i64(e, p->side[ROWS] - 1)), l_sub(e, p->n[ROWS], l_i64(e, 1)));
    return r;
}

/* Scores of a row that a thread has. */
static int64_t scores_of_thread(const Attend *a) { return a->keys / a->at->threads; }

static LV score_of(const Attend *a, int row, int64_t i) { return a->dot_sum[a->at->sum(row, i)]; }

/* Dots become `score`, where they are, of keys that may not exist. */
static void score_rows(Emit *e, const Product *p, LV k0, VRef score)
{
    const Attend *a = p->attend;
    const Kernel *k = e->k;
    LLVMTypeRef f32 = e->type[SC_F32];
    Ix batch[MAX_AXES];
    memcpy(batch, e->axis, sizeof batch);
    for (int row = 0; row < a->at->rows && (score != a->dot[0] || k->inst.at[score].dtype != DT_F32); row++) {
        level_open(e, LV_ROW);
        e->axis[p->axis[ROWS]] = coordinate(e, row_of_thread(e, p, row), p->n[ROWS]);
        e->axis[p->axis[COLUMNS]] = ix_uniform(l_i64(e, 0));
        pin(e, LV_ROW);
        for (int64_t i = 0; i < scores_of_thread(a); i++) {
            LV sum = score_of(a, row, i);
            level_open(e, LV_R);
            e->flat = l_i64(e, 0);
            e->axis[e->n_x] = coordinate(e, l_add(e, k0, a->at->key(e, p, i)), p->k1);
            for (uint32_t d = 0; d < a->n_dots; d++) {
                LV dot = l_load(e, f32, a->dot_sum[d * a->dots.sums + (uint32_t)a->at->sum(row, i)], 0);
                value_set(e, a->dot[d], e->level[a->dot[d]], cast_emit(e, DT_F32, (DType)k->inst.at[a->dot[d]].dtype, (Val){.v = dot}));
            }
            l_store(e, value(e, score).v, sum, 0);
            level_close(e, LV_R, LV_ROW);
        }
        level_close(e, LV_ROW, LV_ROW);
    }
    memcpy(e->axis, batch, sizeof batch);
}

static void no_scores_behind(Emit *e, const Product *p, LV k0)
{
    const Attend *a = p->attend;
    LLVMTypeRef f32 = e->type[SC_F32];
    LV left = l_sub(e, p->k1, k0), unseen = f32_const(e, e->k->inst.at[a->attend].mode & ATTEND_SUM ? 0 : -INFINITY);
    If last = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, left, l_i64(e, a->keys), ""), "last");
    for (int64_t i = 0; i < scores_of_thread(a); i++) {
        LV exists = LLVMBuildICmp(e->b, LLVMIntSLT, a->at->key(e, p, i), left, "");
        for (int row = 0; row < a->at->rows; row++) {
            LV sum = score_of(a, row, i);
            l_store(e, LLVMBuildSelect(e->b, exists, l_load(e, f32, sum, 0), unseen, ""), sum, 0);
        }
    }
    if_end(e, &last);
}

void attend_scores(Emit *e, const Product *p, LV k0)
{
    score_rows(e, p, k0, e->k->inst.at[p->attend->attend].a);
    no_scores_behind(e, p, k0);
}

void attend_block_scores(Emit *e, const Product *p, LV k0)
{
    const Attend *a = p->attend;
    VRef score = e->k->inst.at[a->attend].a;
    Rectangle r = rectangle_of(e, p);
    r.first[COLUMNS] = k0, r.last[COLUMNS] = l_sub(e, l_min(e, l_add(e, k0, l_i64(e, a->keys)), p->k1), l_i64(e, 1));
    LV seen = attend_heavy(e, a) ? NULL : always_seen(e, &r, score);
    if (!seen) {
        attend_scores(e, p, k0);
        return;
    }
    LLVMBasicBlockRef all = l_block(e, "seen"), some = l_block(e, "masked"), done = l_block(e, "");
    LLVMBuildCondBr(e->b, seen, all, some);
    l_at(e, all);
    score_rows(e, p, k0, e->k->inst.at[score].b);
    LLVMBuildBr(e->b, done);
    l_at(e, some);
    score_rows(e, p, k0, score);
    LLVMBuildBr(e->b, done);
    l_at(e, done);
    no_scores_behind(e, p, k0);
}

/* What a thread has summed up of a row, times something. */
static void scale_row(Emit *e, const Product *p, int row, LV by)
{
    const Layout *at = p->attend->at;
    for (int64_t i = 0; i < (int64_t)p->sums / at->rows; i++) {
        LV sum = p->sum[at->sum(row, i)];
        l_store(e, LLVMBuildFMul(e->b, l_load(e, e->type[SC_F32], sum, 0), by, ""), sum, 0);
    }
}

/* Scores become weights, where they are; what came before is scaled. */
void attend_weights(Emit *e, const Product *p)
{
    const Attend *a = p->attend;
    LLVMTypeRef f32 = e->type[SC_F32];
    for (int row = 0; row < a->at->rows; row++) {
        LV before = l_load(e, f32, a->most[row], 0), most = before, sum = NULL;
        LV score[ATTEND_BLOCK / 4];
        for (int64_t i = 0; i < scores_of_thread(a); i++)
            most = attend_greater(e, most, score[i] = l_load(e, f32, score_of(a, row, i), 0));
        most = attend_row(e, p, most, true);
        l_store(e, most, a->most[row], 0);
        LV base = attend_base(e, most), by = LLVMBuildFMul(e->b, base, f32_const(e, -1.44269504088896340736), "");
        LV scale = attend_scale(e, before, base); /* exactly 1 where it has not changed */
        for (int64_t i = 0; i < scores_of_thread(a); i++) {
            LV weight = exponential(e, score[i], by);
            sum = sum ? LLVMBuildFAdd(e->b, sum, weight, "") : weight;
            l_store(e, weight, score_of(a, row, i), 0);
        }
        LV total = LLVMBuildFMul(e->b, l_load(e, f32, a->total[row], 0), scale, "");
        l_store(e, LLVMBuildFAdd(e->b, total, sum, ""), a->total[row], 0);
        scale_row(e, p, row, scale);
    }
}

/* Two f32 rounded to the factors' dtype: a register. */
LV attend_pair(Emit *e, const Product *p, LV low, LV high)
{
    LLVMTypeRef f32 = e->type[SC_F32], i32t = e->type[SC_I32], two[2] = {f32, f32};
    if (p->async) {
        const char *text = p->type == DT_BF16 ? "cvt.rn.bf16x2.f32 $0, $1, $2;" : "cvt.rn.f16x2.f32 $0, $1, $2;";
        LLVMTypeRef type = LLVMFunctionType(i32t, two, 2, 0);
        LV convert = LLVMGetInlineAsm(type, text, strlen(text), "=r,f,f", 6, 0, 0, LLVMInlineAsmDialectATT, 0);
        return LLVMBuildCall2(e->b, type, convert, (LV[]){high, low}, 2, ""); /* the first goes to the upper half */
    }
    LV pair = LLVMGetPoison(LLVMVectorType(e->half, 2));
    for (int i = 0; i < 2; i++)
        pair = LLVMBuildInsertElement(e->b, pair, LLVMBuildFPTrunc(e->b, i ? high : low, e->half, ""), const_i32(e, i), "");
    return LLVMBuildBitCast(e->b, pair, i32t, "");
}

/* ---- products ---- */

void attend_add_dots(Emit *e, Product *p, uint32_t dot, const LV *held, LV rows, LV keys)
{
    Attend *a = p->attend;
    const LV *sum = &a->dot_sum[dot * a->dots.sums];
    int64_t step = mma_step(&a->dots);
    for (int64_t k = 0; k < a->dots.depth; k += step) {
        LV some[4];
        if (held)
            memcpy(some, held + 4 * (k / step), sizeof some);
        else
            mma_load(e, &a->dots, ROWS, rows, 0, k, 4, some);
        for (int64_t j = 0; j < a->dots.fragments[COLUMNS]; j += 2) {
            LV b[4];
            mma_load(e, &a->dots, COLUMNS, keys, 8 * j, k, 4, b);
            for (int64_t i = 0; i < 2; i++)
                mma_add(e, &a->dots, some, b + 2 * i, &sum[4 * (j + i)]);
        }
    }
}

/* A product may number its keys as it likes where both of its factors do alike: thread t's two of a step's eight are keys 2t and 2t + 1, whose
 * weights it has. */
static void add_means_of_words(Emit *e, Product *p, LV values)
{
    const LV *weight = p->attend->dot_sum;
    const int64_t pitch = p->attend->factor[VALUES].pitch;
    LV key = l_mul(e, l_mod(e, p->lane, l_i64(e, 4)), l_i64(e, 2)), mine = l_add(e, l_mul(e, key, l_i64(e, pitch)), fragment_row(e, p));
    for (int64_t k = 0; k < p->attend->keys; k += mma_step(p)) {
        LV rows[4];
        for (int r = 0; r < 4; r++) { /* rows 8 * (r % 2)..., keys 2t + r / 2 of the step */
            LV one = l_load(e, e->type[SC_F32], weight[4 * (k / 8) + 2 * (r % 2) + r / 2], 0);
            rows[r] = LLVMBuildBitCast(e->b, one, e->type[SC_I32], "");
        }
        mma_round(e, p, rows, 4);
        for (int64_t j = 0; j < p->fragments[COLUMNS]; j++) {
            LV b[2];
            for (int64_t i = 0; i < 2; i++)
                b[i] = l_load(e, p->element, l_gep(e, p->element, values, l_add(e, mine, l_i64(e, (k + i) * pitch + 8 * j))), 0);
            mma_add(e, p, rows, b, &p->sum[4 * j]);
        }
    }
}

void attend_add_means(Emit *e, Product *p, LV values)
{
    if (p->type == DT_F32) {
        add_means_of_words(e, p, values);
        return;
    }
    const LV *weight = p->attend->dot_sum;
    LLVMTypeRef f32 = e->type[SC_F32];
    int64_t step = mma_step(p);
    for (int64_t k = 0; k < p->attend->keys; k += step) {
        LV rows[4];
        for (int64_t r = 0; r < 4; r++) { /* rows 8 * (r % 2)..., keys 8 * (r / 2)... of the step */
            const LV *two = &weight[4 * (k / 8 + r / 2) + 2 * (r % 2)];
            rows[r] = attend_pair(e, p, l_load(e, f32, two[0], 0), l_load(e, f32, two[1], 0));
        }
        for (int64_t j = 0; j < p->fragments[COLUMNS]; j += 2) {
            LV b[4];
            mma_load(e, p, COLUMNS, values, 8 * j, k, 4, b);
            for (int64_t i = 0; i < 2; i++)
                mma_add(e, p, rows, b + 2 * i, &p->sum[4 * (j + i)]);
        }
    }
}

LV attend_share(Emit *e, const Product *p, LV total)
{
    LV nothing = LLVMBuildFCmp(e->b, LLVMRealOEQ, total, f32_const(e, 0), "");
    if (e->k->inst.at[p->attend->attend].mode & ATTEND_ZERO)
        total = LLVMBuildSelect(e->b, nothing, f32_const(e, 1), total, "");
    return LLVMBuildFDiv(e->b, f32_const(e, 1), total, "");
}

void attend_divide(Emit *e, Product *p)
{
    const Attend *a = p->attend;
    for (int row = 0; row < a->at->rows; row++) {
        LV total = attend_row(e, p, l_load(e, e->type[SC_F32], a->total[row], 0), false);
        scale_row(e, p, row, attend_share(e, p, total));
    }
}

void attend_seen(Emit *e, const Product *p, int64_t block, LV *from, LV *to)
{
    LLVMTypeRef i64t = e->type[SC_I64];
    VRef score = e->k->inst.at[p->attend->attend].a;
    LV one = l_i64(e, 1);
    Rectangle r = rectangle_of(e, p);
    *from = p->k0, *to = p->k1;
    r.first[COLUMNS] = p->k0, r.last[COLUMNS] = l_sub(e, p->k1, one);
    LV (*never)(Emit *, const Rectangle *, VRef) = e->k->inst.at[p->attend->attend].mode & ATTEND_SUM ? never_weighs : never_seen;
    if (!never(e, &r, score))
        return;
    LV at[2] = {l_alloca(e, i64t, 0, "from"), l_alloca(e, i64t, 0, "to")};
    l_store(e, p->k1, at[0], 0);
    l_store(e, p->k0, at[1], 0);
    Loop l = loop_begin(e, p->k0, p->k1, l_i64(e, block), "seen");
    LV next = l_min(e, l_add(e, l.iv, l_i64(e, block)), p->k1);
    r.first[COLUMNS] = l.iv, r.last[COLUMNS] = l_sub(e, next, one);
    LV no = never(e, &r, score), first = l_load(e, i64t, at[0], 0), end = l_load(e, i64t, at[1], 0);
    l_store(e, LLVMBuildSelect(e->b, no, first, l_min(e, first, l.iv), ""), at[0], 0);
    l_store(e, LLVMBuildSelect(e->b, no, end, next, ""), at[1], 0);
    loop_end(e, &l);
    *from = l_load(e, i64t, at[0], 0), *to = l_load(e, i64t, at[1], 0);
}

static void walk_blocks(Emit *e, Product *p)
{
    Attend *a = p->attend;
    const Factor *x = a->factor;
    int64_t step = mma_step(p), n_fragments = x[QUERIES].width / step;
    LV *queries = a->stay ? NULL : ARENA_ARRAY(e->arena, LV, 4 * n_fragments), block = l_i64(e, ATTEND_BLOCK);
    LV zero = f32_const(e, 0), start = l_i64(e, 0);
    LV keys = a->stay ? l_gep_bytes(e, p->shared, l_i64(e, factor_bytes(&x[QUERIES], p))) : p->shared;
    LV values = l_gep_bytes(e, keys, l_i64(e, factor_bytes(&x[KEYS], p)));
    a->dots.lane = p->lane;
    memcpy(a->dots.warp, p->warp, sizeof p->warp);
    mma_place(e, &a->dots);
    attend_start(e, p);
    barrier(e); /* the last task's sums have been read */
    attend_bring(e, p, QUERIES, p->first[ROWS], p->n[ROWS], start, p->shared);
    if (!a->stay || a->tf32)
        arrive_as_words(e, p, QUERIES, p->shared);
    if (!a->stay) {
        for (int64_t i = 0; i < n_fragments; i++)
            mma_load(e, &a->dots, ROWS, p->shared, 0, i * step, 4, queries + 4 * i);
        barrier(e);
    }
    LV from, to;
    attend_seen(e, p, ATTEND_BLOCK, &from, &to);
    attend_bring(e, p, KEYS, from, p->k1, start, keys);
    Loop l = loop_begin(e, from, to, block, "keys");
    LV next = l_add(e, l.iv, block);
    arrive_as_words(e, p, KEYS, keys);
    attend_bring(e, p, VALUES, l.iv, p->k1, start, values);
    for (uint32_t i = 0; i < a->dots.sums; i++)
        l_store(e, zero, a->dot_sum[i], 0);
    attend_add_dots(e, p, 0, queries, p->shared, keys);
    arrive_as_words(e, p, VALUES, values);
    If more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, next, to, ""), "more");
    attend_bring(e, p, KEYS, next, p->k1, start, keys);
    if_end(e, &more);
    attend_block_scores(e, p, l.iv);
    attend_weights(e, p);
    attend_add_means(e, p, values);
    loop_end(e, &l);
    attend_land(e, p); /* where no key is seen, some are on their way all the same */
    attend_finish(e, p);
}

/* ---- the plan ---- */

static int64_t width_of(const Emit *e, uint32_t axis)
{
    int64_t n = 0;
    (void)kidx_is_const(e->k, e->k->axes.at[axis].size, &n);
    return n;
}

bool attend_chains(const Emit *e, const Product *p) { return inst_is_chain(&e->k->inst.at[p->attend->attend]); }

static Factor factor_of(const Emit *e, VRef v, uint32_t row, uint32_t inner)
{
    return (Factor){.v = v, .row = row, .inner = inner, .width = width_of(e, inner), .part = width_of(e, inner)};
}

bool attend_heavy(const Emit *e, const Attend *a)
{
    const Kernel *k = e->k;
    bool *mine = ARENA_ARRAY(e->arena, bool, k->inst.n + 1), heavy = false;
    mine[k->inst.at[a->attend].a] = true;
    for (VRef v = a->attend; v-- > 0;) {
        const KInst *n = &k->inst.at[v];
        VRef in[4];
        uint32_t n_in = mine[v] && !inst_is_dot(n) ? kernel_operands(n, in) : 0;
        for (uint32_t i = 0; i < n_in; i++)
            mine[in[i]] = true;
        if (mine[v] && n->idx != IREF_NONE)
            kidx_mark_values(k, n->idx, mine);
        bool costs = n->kind == KI_LOAD || (n->kind == KI_OP && op_info[n->op].flags & OPF_COSTLY);
        heavy |= mine[v] && costs && (e->info[v].axes >> (e->n_x - 2) & 5);
    }
    return heavy;
}

static bool is_side(int64_t n) { return n > 0 && n <= 128 && n % 16 == 0; }

static void emit_blocks(Emit *e, Product *p)
{
    Attend *a = p->attend;
    Factor *x = a->factor;
    int64_t widest = x[VALUES].width > x[KEYS].width ? x[VALUES].width : x[KEYS].width;
    a->keys = ATTEND_BLOCK;
    mma_plan(e, p, p->type, (int64_t[]){1, x[VALUES].width / 8}, ATTEND_BLOCK, false);
    mma_plan(e, &a->dots, p->type, (int64_t[]){1, ATTEND_BLOCK / 8}, x[KEYS].width, true);
    for (int i = 0; i < FACTORS; i++) {
        x[i].rows = i == QUERIES ? p->side[ROWS] : ATTEND_BLOCK;
        x[i].pitch = x[i].width + p->pad[COLUMNS];
    }
    int64_t queries = factor_bytes(&x[QUERIES], p), others = factor_bytes(&x[KEYS], p) + factor_bytes(&x[VALUES], p);
    a->walk = walk_blocks;
    /* two blocks leave 128 registers: neither queries fit beside the sums nor addresses of masks, or a tanh */
    a->stay = p->async && widest <= 64 && !attend_heavy(e, a);
    p->min_blocks = a->stay ? 2 : 1;
    a->bytes = a->stay ? queries + others : queries > others ? queries : others;
    emit_tiles(e, p);
}

void emit_attention_cuda(Emit *e)
{
    const Kernel *k = e->k;
    Product p = {0};
    Attend a = {0};
    while (k->inst.at[a.attend].kind != KI_ATTEND)
        a.attend++;
    for (VRef v = 0; v < a.attend; v++)
        if (inst_is_dot(&k->inst.at[v]))
            a.dot[a.n_dots++] = v;
    const KInst *attend = &k->inst.at[a.attend], *dot = &k->inst.at[a.dot[0]];
    uint32_t rows = e->n_x - 2, columns = e->n_x - 1, keys = e->n_x, inner = e->n_x + 1;
    bool alone = kernel_folds_scores(k, attend);
    VRef query = mma_factor(e, dot->a), key = mma_factor(e, dot->b), values = mma_factor(e, attend->b);
    DType type = kernel_attend_type(k);
    bool parts = attend->mode & ATTEND_PARTS;
    type = cuda_multiplies(e->cuda, type) && (!inst_is_chain(attend) || cuda_chain_fits(e->cuda, width_of(e, inner))) ? type : DT_F32;
    if (!is_side(width_of(e, inner)) || (!alone && !is_side(width_of(e, columns)))) {
        e->refused = "attention of such elements"; /* jit/fuse/attention.c makes no such kernel */
        return;
    }
    if (k->split)
        e->launch->scratch = launch_const(e->launch, GRID_COUNTER_BYTES);
    if (type == DT_F32)
        query = dot->a, key = dot->b, values = attend->b;
    p.async = a.dots.async = cuda_copies(e->cuda);
    p.type = type;
    p.reduce = a.attend;
    p.axis[ROWS] = (int)rows, p.axis[COLUMNS] = (int)columns;
    p.attend = &a;
    a.at = &fragments;
    e->group = fragments.threads;
    a.factor[QUERIES] = factor_of(e, query, rows, inner);
    a.factor[KEYS] = factor_of(e, key, keys, inner);
    a.factor[VALUES] = factor_of(e, values, keys, columns);
    a.factor[MORE_QUERIES].v = a.factor[MORE_KEYS].v = VREF_NONE;
    if (alone)
        a.factor[VALUES].v = VREF_NONE;
    if (a.n_dots > 1) {
        bool half = type != DT_F32;
        const KInst *second = &k->inst.at[a.dot[1]];
        a.factor[MORE_QUERIES] = factor_of(e, half ? mma_factor(e, second->a) : second->a, rows, inner);
        a.factor[MORE_KEYS] = factor_of(e, half ? mma_factor(e, second->b) : second->b, keys, inner);
    }
    a.tf32 = type == DT_F32 && p.async && e->options->value[OPT_TF32] && !parts && !inst_is_chain(attend);
    if (parts)
        emit_decode(e, &p);
    else if (type == DT_F32 && !a.tf32)
        emit_attention_fma(e, &p);
    else if (inst_is_chain(attend))
        emit_attention_chain(e, &p);
    else
        emit_blocks(e, &p);
}

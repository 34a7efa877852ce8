/*
 * Scatters of which tasks have some of the places each (the directive `shares`). Elements are added, or put, to a place in the order of the r axis; so
 * a task goes through all indices, in order, and does the points of its own places:
 *
 *     for 64 points at a time
 *         word = which of their places are the task's        lanes along r: some instructions for each vector of indices
 *         for the bits of the word
 *             the body, for that point
 *
 * Whoever has all shares, as one thread has, does all points in a loop. Which share a place is in: places lie in runs, which are dealt out to the
 * shares in turn. So a thread, which has neighbouring shares, has as much of each part of the places as any other. Runs are about a page long where there
 * are enough places, since the hardware fetches lines beside those that are asked for, which another thread may be writing to (Zen 4, two threads, half
 * of 2^20 values into 1e5 each: runs of a line 950 us, of 16 lines 510).
 *
 * Each word is made before the points of the one before are done: where a loop over bits ends is hardly ever foreseen, and what follows is on its way by
 * then (Zen 4, an eighth of 2^20 values into 1e5: 375 -> 277 us).
 */
#include "jit/llvm/build.h"

enum { WORD = 64, LEAST_TURNS = 4, PAGE = 4096 }; /* points of a word; so often at least it is a share's turn; bytes of a run */

/* What in_shares compares: the number of a place's share is in bits of the place, which `up` makes the highest. */
typedef struct Choice {
    VRef place;
    LV up, from, end;
} Choice;

static int64_t exponent(int64_t power) { return 63 - __builtin_clzll((uint64_t)power); }

/* How many elements lie between a place and the next one. */
static LV stride_of(Emit *e, IRef i)
{
    const Idx *x = &e->k->idx.at[i];
    if (x->kind != IX_ADD && x->kind != IX_MUL)
        return l_i64(e, 1);
    bool first = index_through_value(e->k, x->a);
    LV inside = stride_of(e, first ? x->a : x->b);
    return x->kind == IX_ADD ? inside : l_mul(e, inside, index_uniform(e, first ? x->b : x->a));
}

static LV log_2(Emit *e, LV v)
{
    LV args[2] = {l_max(e, v, l_i64(e, 1)), LLVMConstInt(e->type[SC_I1], 0, 0)};
    return l_sub(e, l_i64(e, 63), l_intrinsic(e, "llvm.ctlz", &e->type[SC_I64], 1, args, 2));
}

/* Of the number of places in a run. */
static LV run_exponent(Emit *e, LV places)
{
    const KInst *scatter = e->k->inst.at + e->k->inst.n;
    while ((--scatter)->kind != KI_SCATTER)
        ;
    LV bytes = l_mul(e, stride_of(e, scatter->idx), l_i64(e, (int64_t)dtype_bytes((DType)e->k->inst.at[scatter->a].dtype)));
    LV turns = l_sub(e, log_2(e, places), l_i64(e, exponent(e->schedule.shares * LEAST_TURNS)));
    return l_min(e, l_max(e, turns, l_i64(e, 0)), log_2(e, LLVMBuildUDiv(e->b, l_i64(e, PAGE), l_max(e, bytes, l_i64(e, 1)), "")));
}

static Choice choice(Emit *e)
{
    Choice c = {.place = facts_place(&e->facts)};
    int64_t bits = exponent(e->schedule.shares);
    LV run = run_exponent(e, index_uniform(e, e->k->inst.at[c.place].idx)), low = l_i64(e, 64 - bits);
    c.up = l_sub(e, low, run);
    c.from = LLVMBuildAdd(e->b, LLVMBuildShl(e->b, e->shares.from, low, ""), l_i64(e, INT64_MIN), "");
    c.end = LLVMBuildAdd(e->b, LLVMBuildShl(e->b, l_sub(e, e->shares.to, e->shares.from), low, ""), l_i64(e, INT64_MIN), "");
    return c;
}

/* Not asked where the task has all shares: their number has no bit then. */
static LV in_shares(Emit *e, const Choice *c, LV place)
{
    LV v[3] = {c->up, c->from, c->end};
    for (int i = 0; i < 3 && e->lanes > 1; i++)
        v[i] = l_splat(e, v[i]);
    LV up = LLVMBuildShl(e->b, place, v[0], "");
    return LLVMBuildICmp(e->b, LLVMIntSLT, LLVMBuildSub(e->b, up, v[1], ""), v[2], "");
}

/*
 * A word of points from `at` on, all of which are there: into *word. A loop, since the code for negative indices is long; of vectors of 512 bits
 * two, whose bits are in masks, of others one register or two, of which an instruction takes the bits (AVX2, eight lanes 826 us, four 600).
 */
static void whole_word(Emit *e, const Choice *c, LV at, LV word)
{
    const bool vec_r = e->vec_r;
    const int lanes = e->lanes, once = e->bits < 512 ? 4 : 16;
    const LV mask = e->mask, whole = e->whole, left = e->left;
    e->vec_r = true;
    e->mask = e->whole = e->left = NULL;
    lanes_change(e, once);
    Loop l = loop_begin(e, at, l_add(e, at, l_i64(e, WORD)), l_i64(e, once), "r_word");
    r_point(e, l.iv);
    LV in = in_shares(e, c, value_vector(e, c->place));
    LV bits = LLVMBuildZExt(e->b, LLVMBuildBitCast(e->b, in, LLVMIntTypeInContext(e->ctx, (unsigned)once), ""), e->type[SC_I64], "");
    LV before = LLVMBuildLShr(e->b, l_load(e, e->type[SC_I64], word, 8), l_i64(e, once), "");
    l_store(e, LLVMBuildOr(e->b, before, LLVMBuildShl(e->b, bits, l_i64(e, WORD - once), ""), ""), word, 8);
    loop_end(e, &l);
    lanes_change(e, lanes);
    e->vec_r = vec_r;
    e->mask = mask, e->whole = whole, e->left = left;
}

static void point(Emit *e, LV at)
{
    level_open(e, LV_R);
    e->flat = at;
    e->axis[e->n_x] = ix_uniform(at);
}

/* The last one, of fewer points, or none: into *word. */
static void last_word(Emit *e, const Choice *c, LV at, LV word)
{
    const int lanes = e->lanes;
    l_store(e, l_i64(e, 0), word, 8);
    Loop l = loop_begin(e, at, e->folded.to, l_i64(e, 1), "r_last");
    lanes_change(e, 1);
    point(e, l.iv);
    LV in = LLVMBuildZExt(e->b, in_shares(e, c, value(e, c->place).v), e->type[SC_I64], "");
    LV bit = LLVMBuildShl(e->b, in, l_sub(e, l.iv, at), "");
    l_store(e, LLVMBuildOr(e->b, l_load(e, e->type[SC_I64], word, 8), bit, ""), word, 8);
    lanes_change(e, lanes);
    loop_end(e, &l);
}

/* The points of *word, which begins at `at`. */
static void points_of(Emit *e, const NestNode *node, LV word, LV at)
{
    LLVMBasicBlockRef some = l_block(e, "chosen"), body = l_block(e, "r"), done = l_block(e, "");
    LLVMBuildBr(e->b, some);
    l_at(e, some);
    LV bits = l_load(e, e->type[SC_I64], word, 8);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntNE, bits, l_i64(e, 0), ""), body, done);
    l_at(e, body);
    LV args[2] = {bits, LLVMConstInt(e->type[SC_I1], 1, 0)};
    LV first = l_intrinsic(e, "llvm.cttz", &e->type[SC_I64], 1, args, 2);
    l_store(e, LLVMBuildAnd(e->b, bits, l_sub(e, bits, l_i64(e, 1)), ""), word, 8);
    point(e, l_add(e, at, first));
    nest_inside(e, node);
    LLVMBuildBr(e->b, some);
    l_at(e, done);
}

static void chosen(Emit *e, const NestNode *node)
{
    const Choice c = choice(e);
    const LV to = e->folded.to, by = l_i64(e, WORD), now = l_alloca(e, e->type[SC_I64], 8, "word"),
             next = l_alloca(e, e->type[SC_I64], 8, "next");
    l_store(e, l_i64(e, 0), next, 8);
    Loop l = loop_begin(e, l_i64(e, 0), l_add(e, to, by), by, "words");
    l_store(e, l_load(e, e->type[SC_I64], next, 8), now, 8);
    LV all = LLVMBuildICmp(e->b, LLVMIntSLE, l_add(e, l.iv, by), to, "");
    If whole = if_begin(e, all, "whole");
    whole_word(e, &c, l.iv, next);
    if_end(e, &whole);
    If last = if_begin(e, LLVMBuildNot(e->b, all, ""), "last");
    last_word(e, &c, l.iv, next);
    if_end(e, &last);
    points_of(e, node, now, l_sub(e, l.iv, by));
    loop_end(e, &l);
}

/* What belongs to the x point is put in front of both ways. */
void walk_chosen(Emit *e, const NestNode *node)
{
    LV all = LLVMBuildICmp(e->b, LLVMIntEQ, l_sub(e, e->shares.to, e->shares.from), l_i64(e, e->schedule.shares), "");
    If every = if_begin(e, all, "every");
    e->before[x_level(e)] = every.branch;
    e->folded.outermost = false;
    walk_steps(e, node);
    if_end(e, &every);
    If some = if_begin(e, LLVMBuildNot(e->b, all, ""), "some");
    chosen(e, node);
    if_end(e, &some);
    e->folded.outermost = true;
}

Loop shares_begin(Emit *e, const NestNode *node, LV lo, LV hi)
{
    LV shares = l_i64(e, node->points);
    Loop l = loop_begin(e, l_div(e, lo, shares), l_ceil_div(e, hi, shares), l_i64(e, 1), "task");
    LV first = l_mul(e, l.iv, shares);
    e->shares = (Shares){l_max(e, l_sub(e, lo, first), l_i64(e, 0)), l_min(e, l_sub(e, hi, first), shares)};
    return l;
}

/*
 * Sorting on CUDA: the stable argsort of lines.
 *
 * An element becomes one unsigned integer, an item: its key, whose order is the one asked for
 * (jit/sort.c defines it), above its place in the line. No two items of a line are equal, so
 * however they are sorted, equal elements keep their order. Places that no element has are filled
 * with all ones: no item is greater.
 *
 *   tiles    A block takes TILE items: a part of a long line, or several short ones, each of them in
 *            the room of EACH << k items, which 1 << k threads own. A thread sorts its EACH items in
 *            registers; k times, runs of w threads become one of 2 * w, through shared memory. Lines
 *            that fit are done.
 *   merge    Round r = 1, 2, ... merges runs of TILE << (r - 1) items of a line in pairs: a launch
 *            each, as many as the longest line needs (ROUNDS at most; the others have no blocks). A
 *            block makes TILE items of the result.
 *
 * Merging, both times: the first d items of a merged pair of runs are m of the one and d - m of the
 * other; a binary search finds m (the "merge path"), so every thread knows what its EACH items are
 * made of. EACH is odd: threads that go through shared memory EACH items apart meet no bank twice.
 *
 * Between the launches items lie as lines of n, in ARG_SCRATCH and, where an item is as large as a
 * place, by turns in the output, which nobody reads until the last round has written it:
 *
 *     tiles --> room(rounds) --> merge 1 --> room(rounds - 1) --> ... --> room(1) = scratch
 *           --> merge `rounds` --> places
 *
 * A place has as many bits as an element of less than 8 bytes leaves in 64. KI_SORT.imm says how
 * many it needs: for 8 bytes, and for 4 bytes in a program for lines of any length, an item has 128
 * bits.
 */
#include "jit/llvm/cuda/cuda.h"
#include "jit/sort.h"

enum { THREADS = 256, EACH = 9, TILE = THREADS * EACH, STEPS = 8, ROUNDS = LAUNCH_PHASES - 1 };
_Static_assert(1 << STEPS == THREADS, "a tile is sorted in as many steps as its threads double");

enum { BLOCKS_NARROW = 4, BLOCKS_WIDE = 2 }; /* that a multiprocessor shall have room for */

typedef struct Sort {
    KeyRule rule;
    bool wide;
    unsigned place_bits, bytes; /* bytes: of an item */
    LLVMTypeRef item, i32;
    LV most; /* an item greater than all */
    LV in, out, scratch;
    LV n, inner, lines, tiles, rounds; /* tiles: of a line */
    LV tid, block;                     /* tid: i32 */
    LV shared;
    LV own[EACH];  /* allocas: the items of this thread */
    LV line, from; /* the block's first line, and the first place of it */
    LV owners;     /* i32: so many threads own the items of a line: 1 << owners */
} Sort;

static LV c32(Emit *e, int64_t value) { return LLVMConstInt(e->type[SC_I32], (uint64_t)value, 1); }

static LV wide(Emit *e, LV v) { return LLVMBuildZExt(e->b, v, e->type[SC_I64], ""); }

static LV narrow(Emit *e, LV v) { return LLVMBuildTrunc(e->b, v, e->type[SC_I32], ""); }

static LV below(Emit *e, LV a, LV b) { return LLVMBuildICmp(e->b, LLVMIntSLT, a, b, ""); }

static LV item_at(Emit *e, const Sort *s, LV base, LV index) { return l_load(e, s->item, l_gep(e, s->item, base, index), s->bytes); }

static void put_item(Emit *e, const Sort *s, LV item, LV base, LV index) { l_store(e, item, l_gep(e, s->item, base, index), s->bytes); }

/* ---- items ---- */

/* key_of in jit/sort.c. */
static LV key_of(Emit *e, const Sort *s, LV x)
{
    const KeyRule *r = &s->rule;
    LLVMTypeRef type = LLVMTypeOf(x);
    LV zero = LLVMConstNull(type), sign = LLVMConstInt(type, r->sign, 0), key = x, nan = NULL;
    if (r->is_float) {
        LV size = LLVMBuildAnd(e->b, x, LLVMConstInt(type, r->sign - 1, 0), "");
        nan = LLVMBuildICmp(e->b, LLVMIntUGT, size, LLVMConstInt(type, r->infinity, 0), "");
        LV minus_zero = LLVMBuildICmp(e->b, LLVMIntEQ, x, sign, "");
        x = LLVMBuildSelect(e->b, minus_zero, zero, x, "");
        LV above = LLVMBuildOr(e->b, x, sign, "");
        key = LLVMBuildSelect(e->b, below(e, x, zero), LLVMBuildNot(e->b, x, ""), above, "");
    } else if (r->is_signed) {
        key = LLVMBuildXor(e->b, x, sign, "");
    }
    if (r->descending)
        key = LLVMBuildNot(e->b, key, "");
    return nan ? LLVMBuildSelect(e->b, nan, LLVMConstAllOnes(type), key, "") : key;
}

static LV item_of(Emit *e, const Sort *s, LV x, LV place)
{
    LV high = LLVMBuildZExt(e->b, key_of(e, s, x), s->item, "");
    high = LLVMBuildShl(e->b, high, LLVMConstInt(s->item, s->place_bits, 0), "");
    return LLVMBuildOr(e->b, high, LLVMBuildZExt(e->b, place, s->item, ""), "");
}

static LV place_of(Emit *e, const Sort *s, LV item)
{
    if (s->wide)
        return LLVMBuildTrunc(e->b, item, e->type[SC_I64], "");
    return LLVMBuildAnd(e->b, item, LLVMConstInt(s->item, (UINT64_C(1) << s->place_bits) - 1, 0), "");
}

/* Where the element at `place` of a line lies in the input and its place in the output. */
static LV element(Emit *e, const Sort *s, LV line, LV place)
{
    LV outer = LLVMBuildUDiv(e->b, line, s->inner, ""), rest = l_sub(e, line, l_mul(e, outer, s->inner));
    LV first = l_add(e, l_mul(e, l_mul(e, outer, s->n), s->inner), rest);
    return l_add(e, first, l_mul(e, place, s->inner));
}

/* Where the items of a line lie while `left` rounds are still to come. */
static LV room(Emit *e, const Sort *s, LV left, LV line)
{
    LV scratch = l_gep_bytes(e, s->scratch, l_i64(e, GRID_COUNTER_BYTES)), other = s->out;
    if (s->wide)
        other = l_gep(e, s->item, scratch, l_mul(e, s->lines, s->n));
    LV odd = LLVMBuildTrunc(e->b, left, e->type[SC_I1], "");
    return l_gep(e, s->item, LLVMBuildSelect(e->b, odd, scratch, other, ""), l_mul(e, line, s->n));
}

/* ---- merging ---- */

/* A loop that narrows [low, high) until it is empty. */
typedef struct Search {
    LV low, high;
    LLVMBasicBlockRef head, end;
} Search;

/* Among what a may have of the first d items: at least what b cannot have, at most all of a. The body is next. */
static Search search_begin(Emit *e, LV n_a, LV n_b, LV d)
{
    LLVMTypeRef type = LLVMTypeOf(d);
    LV low = l_max(e, LLVMBuildSub(e->b, d, n_b, ""), LLVMConstNull(type)), high = l_min(e, d, n_a);
    LLVMBasicBlockRef before = LLVMGetInsertBlock(e->b), body;
    Search f = {.head = l_block(e, "search")};
    body = l_block(e, "");
    f.end = l_block(e, "");
    LLVMBuildBr(e->b, f.head);
    l_at(e, f.head);
    f.low = LLVMBuildPhi(e->b, type, "");
    f.high = LLVMBuildPhi(e->b, type, "");
    LLVMAddIncoming(f.low, &low, &before, 1);
    LLVMAddIncoming(f.high, &high, &before, 1);
    LLVMBuildCondBr(e->b, below(e, f.low, f.high), body, f.end);
    l_at(e, body);
    return f;
}

/* Goes on with these bounds; after the loop: where it ended. */
static LV search_end(Emit *e, const Search *f, LV low, LV high)
{
    LLVMBasicBlockRef body = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, f->head);
    LLVMAddIncoming(f->low, &low, &body, 1);
    LLVMAddIncoming(f->high, &high, &body, 1);
    l_at(e, f->end);
    return f->low;
}

/* i1: is a's item number i one of the first d? It is if it comes before b's item number d - i - 1. */
static LV among_first(Emit *e, const Sort *s, LV a, LV i, LV b, LV d)
{
    LV other = LLVMBuildSub(e->b, LLVMBuildSub(e->b, d, i, ""), LLVMConstInt(LLVMTypeOf(d), 1, 0), "");
    return LLVMBuildICmp(e->b, LLVMIntULT, item_at(e, s, a, i), item_at(e, s, b, other), "");
}

/* How many of the first d items of a merged with b are a's. Indices have the type of d. */
static LV search(Emit *e, const Sort *s, LV a, LV n_a, LV b, LV n_b, LV d)
{
    Search f = search_begin(e, n_a, n_b, d);
    LV one = LLVMConstInt(LLVMTypeOf(d), 1, 0);
    LV middle = LLVMBuildLShr(e->b, LLVMBuildAdd(e->b, f.low, f.high, ""), one, "");
    LV first = among_first(e, s, a, middle, b, d);
    return search_end(e, &f, LLVMBuildSelect(e->b, first, LLVMBuildAdd(e->b, middle, one, ""), f.low, ""),
                      LLVMBuildSelect(e->b, first, f.high, middle, ""));
}

/* Number i of WARP places from low on, below low + length. */
static LV probe(Emit *e, LV low, LV length, LV i) { return l_add(e, low, LLVMBuildLShr(e->b, l_mul(e, length, i), l_i64(e, 5), "")); }

/* The same by the 32 threads of a warp together, where each step waits for memory: they test 32
 * places at once. i64 */
static LV search_by_warp(Emit *e, const Sort *s, LV a, LV n_a, LV b, LV n_b, LV d)
{
    LV lane = wide(e, LLVMBuildAnd(e->b, s->tid, c32(e, WARP - 1), ""));
    Search f = search_begin(e, n_a, n_b, d);
    LV length = l_sub(e, f.high, f.low), first = among_first(e, s, a, probe(e, f.low, length, lane), b, d);
    LV votes = l_intrinsic(e, "llvm.nvvm.vote.ballot.sync", NULL, 0, (LV[]){c32(e, -1), first}, 2);
    LV n = wide(e, l_intrinsic(e, "llvm.ctpop", (LLVMTypeRef[]){s->i32}, 1, &votes, 1)), last = l_sub(e, n, l_i64(e, 1));
    LV none = LLVMBuildICmp(e->b, LLVMIntEQ, n, l_i64(e, 0), ""), all = LLVMBuildICmp(e->b, LLVMIntEQ, n, l_i64(e, WARP), "");
    LV past = l_add(e, probe(e, f.low, length, last), l_i64(e, 1));
    return search_end(e, &f, LLVMBuildSelect(e->b, none, f.low, past, ""),
                      LLVMBuildSelect(e->b, all, f.high, probe(e, f.low, length, n), ""));
}

/* This thread's items: d and the EACH - 1 after it of the merged runs [a, b) and [b, end) in shared
 * memory. What is read past the end of a run is not used. */
static void merge_own(Emit *e, const Sort *s, LV a, LV b, LV end, LV d)
{
    LV m = search(e, s, l_gep(e, s->item, s->shared, a), LLVMBuildSub(e->b, b, a, ""), l_gep(e, s->item, s->shared, b),
                  LLVMBuildSub(e->b, end, b, ""), d);
    LV at[2] = {LLVMBuildAdd(e->b, a, m, ""), LLVMBuildAdd(e->b, b, LLVMBuildSub(e->b, d, m, ""), "")}, x[2];
    for (int i = 0; i < 2; i++)
        x[i] = item_at(e, s, s->shared, at[i]);
    for (int j = 0; j < EACH; j++) {
        LV less = LLVMBuildICmp(e->b, LLVMIntULT, x[1], x[0], "");
        LV second = LLVMBuildOr(e->b, LLVMBuildNot(e->b, below(e, at[0], b), ""), LLVMBuildAnd(e->b, below(e, at[1], end), less, ""), "");
        l_store(e, LLVMBuildSelect(e->b, second, x[1], x[0], ""), s->own[j], s->bytes);
        if (j + 1 == EACH)
            break;
        LV step = LLVMBuildZExt(e->b, second, s->i32, "");
        at[0] = LLVMBuildSub(e->b, LLVMBuildAdd(e->b, at[0], c32(e, 1), ""), step, "");
        at[1] = LLVMBuildAdd(e->b, at[1], step, "");
        LV next = item_at(e, s, s->shared, LLVMBuildSelect(e->b, second, at[1], at[0], ""));
        x[0] = LLVMBuildSelect(e->b, second, x[0], next, "");
        x[1] = LLVMBuildSelect(e->b, second, next, x[1], "");
    }
}

/* ---- shared memory ---- */

static LV own_first(Emit *e, const Sort *s) { return LLVMBuildMul(e->b, s->tid, c32(e, EACH), ""); }

static void take_own(Emit *e, const Sort *s)
{
    barrier(e);
    for (int j = 0; j < EACH; j++)
        l_store(e, item_at(e, s, s->shared, LLVMBuildAdd(e->b, own_first(e, s), c32(e, j), "")), s->own[j], s->bytes);
}

/* What is in shared memory has been used by all before, and all see what is there after. */
static void share_own(Emit *e, const Sort *s)
{
    barrier(e);
    for (int j = 0; j < EACH; j++)
        put_item(e, s, l_load(e, s->item, s->own[j], s->bytes), s->shared, LLVMBuildAdd(e->b, own_first(e, s), c32(e, j), ""));
    barrier(e);
}

/* Number u of the items that a thread moves between global and shared memory: neighbours move
 * neighbours. i32 */
static LV moved(Emit *e, const Sort *s, LV u)
{
    return LLVMBuildAdd(e->b, s->tid, LLVMBuildMul(e->b, narrow(e, u), c32(e, THREADS), ""), "");
}

/* ---- entries ---- */

static void open_entry(Emit *e, Sort *s, const char *suffix, LaunchPhase **phase)
{
    cuda_entry(e, suffix, THREADS, s->wide ? BLOCKS_WIDE : BLOCKS_NARROW, phase);
    s->in = argument(e, 0);
    s->out = argument(e, 1);
    LV outer = argument(e, 2);
    s->n = argument(e, 3);
    s->inner = argument(e, 4);
    s->scratch = argument(e, 5);
    s->lines = l_mul(e, outer, s->inner);
    s->tiles = l_ceil_div(e, s->n, l_i64(e, TILE));
    LLVMTypeRef i64 = e->type[SC_I64];
    LV no = LLVMConstInt(e->type[SC_I1], 0, 0);
    s->rounds = l_sub(e, l_i64(e, 64), l_intrinsic(e, "llvm.ctlz", &i64, 1, (LV[]){l_sub(e, s->tiles, l_i64(e, 1)), no}, 2));
    s->tid = narrow(e, cuda_special(e, "tid.x"));
    s->block = cuda_special(e, "ctaid.x");
    for (int j = 0; j < EACH; j++)
        s->own[j] = l_alloca(e, s->item, s->bytes, "own");
    If first = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, s->tid, c32(e, 0), ""), "past");
    put_item(e, s, s->most, s->shared, c32(e, TILE)); /* what is read past the end */
    if_end(e, &first);
}

/* The first line of the block, where in it, and who owns the items of a line. */
static void open_tile(Emit *e, Sort *s)
{
    LLVMTypeRef i64 = e->type[SC_I64];
    LV no = LLVMConstInt(e->type[SC_I1], 0, 0), all = l_i64(e, STEPS);
    LV threads = l_sub(e, l_ceil_div(e, s->n, l_i64(e, EACH)), l_i64(e, 1));
    LV k = l_sub(e, l_i64(e, 64), l_intrinsic(e, "llvm.ctlz", &i64, 1, (LV[]){threads, no}, 2));
    s->owners = narrow(e, l_min(e, k, all));
    LV line = LLVMBuildUDiv(e->b, s->block, s->tiles, "");
    s->from = l_mul(e, l_sub(e, s->block, l_mul(e, line, s->tiles)), l_i64(e, TILE));
    s->line = LLVMBuildShl(e->b, line, l_sub(e, all, wide(e, s->owners)), "");
}

/* Of item `at` of the tile: its line and its place in it; i1: there is one. */
static LV tile_item(Emit *e, const Sort *s, LV at, LV *line, LV *place)
{
    LV number = LLVMBuildLShr(e->b, LLVMBuildUDiv(e->b, at, c32(e, EACH), ""), s->owners, "");
    LV first = LLVMBuildMul(e->b, LLVMBuildShl(e->b, number, s->owners, ""), c32(e, EACH), "");
    *line = l_add(e, s->line, wide(e, number));
    *place = l_add(e, s->from, wide(e, LLVMBuildSub(e->b, at, first, "")));
    return LLVMBuildAnd(e->b, below(e, *line, s->lines), below(e, *place, s->n), "");
}

/* The item that belongs to a place of a line: its own place where all rounds are done, else all of
 * it for the next round, among the items of this line `to`. */
static void put_result(Emit *e, const Sort *s, LV done, LV item, LV to, LV line, LV place)
{
    LLVMBasicBlockRef last = l_block(e, "places"), more = l_block(e, "items"), join = l_block(e, "");
    LLVMBuildCondBr(e->b, done, last, more);
    l_at(e, last);
    l_store(e, place_of(e, s, item), l_gep(e, e->type[SC_I64], s->out, element(e, s, line, place)), 8);
    LLVMBuildBr(e->b, join);
    l_at(e, more);
    put_item(e, s, item, to, place);
    LLVMBuildBr(e->b, join);
    l_at(e, join);
}

static void load_tile(Emit *e, const Sort *s)
{
    LLVMTypeRef type = LLVMIntTypeInContext(e->ctx, s->rule.bytes * 8);
    LV last = l_sub(e, s->lines, l_i64(e, 1)), end = l_sub(e, s->n, l_i64(e, 1)), line, place;
    Loop l = loop_begin(e, l_i64(e, 0), l_i64(e, EACH), l_i64(e, 1), "load");
    LV at = moved(e, s, l.iv), there = tile_item(e, s, at, &line, &place);
    LV from = element(e, s, l_min(e, line, last), l_min(e, place, end));
    LV x = l_load(e, type, l_gep(e, type, s->in, from), s->rule.bytes);
    put_item(e, s, LLVMBuildSelect(e->b, there, item_of(e, s, x, place), s->most, ""), s->shared, at);
    loop_end(e, &l);
}

/* Exchanges of neighbours, EACH times: in registers. */
static void sort_own(Emit *e, const Sort *s)
{
    LV x[EACH];
    for (int j = 0; j < EACH; j++)
        x[j] = l_load(e, s->item, s->own[j], s->bytes);
    for (int turn = 0; turn < EACH; turn++)
        for (int j = turn & 1; j + 1 < EACH; j += 2) {
            LV swap = LLVMBuildICmp(e->b, LLVMIntULT, x[j + 1], x[j], ""), low = x[j];
            x[j] = LLVMBuildSelect(e->b, swap, x[j + 1], low, "");
            x[j + 1] = LLVMBuildSelect(e->b, swap, low, x[j + 1], "");
        }
    for (int j = 0; j < EACH; j++)
        l_store(e, x[j], s->own[j], s->bytes);
}

static void merge_tile(Emit *e, const Sort *s)
{
    Loop l = loop_begin(e, l_i64(e, 0), wide(e, s->owners), l_i64(e, 1), "double");
    share_own(e, s);
    LV run = LLVMBuildShl(e->b, c32(e, 1), narrow(e, l.iv), ""), pair = LLVMBuildShl(e->b, run, c32(e, 1), "");
    LV first = LLVMBuildAnd(e->b, s->tid, LLVMBuildNeg(e->b, pair, ""), "");
    LV length = LLVMBuildMul(e->b, run, c32(e, EACH), ""), a = LLVMBuildMul(e->b, first, c32(e, EACH), "");
    LV b = LLVMBuildAdd(e->b, a, length, "");
    merge_own(e, s, a, b, LLVMBuildAdd(e->b, b, length, ""), LLVMBuildSub(e->b, own_first(e, s), a, ""));
    loop_end(e, &l);
}

static void emit_tiles(Emit *e, Sort *s, LaunchPhase **phase)
{
    open_entry(e, s, "", phase);
    open_tile(e, s);
    load_tile(e, s);
    take_own(e, s);
    sort_own(e, s);
    merge_tile(e, s);
    share_own(e, s);
    LV done = LLVMBuildICmp(e->b, LLVMIntEQ, s->tiles, l_i64(e, 1), "");
    Loop l = loop_begin(e, l_i64(e, 0), l_i64(e, EACH), l_i64(e, 1), "store");
    LV line, place, at = moved(e, s, l.iv), item = item_at(e, s, s->shared, at);
    If there = if_begin(e, tile_item(e, s, at, &line, &place), "there");
    put_result(e, s, done, item, room(e, s, s->rounds, line), line, place);
    if_end(e, &there);
    loop_end(e, &l);
    cuda_return(e);
}

/* What a block of the rounds makes its items of; i64. */
typedef struct Parts {
    LV a, b;   /* where the parts of the two runs begin, in the line */
    LV n_a, n; /* items of the one and of both */
} Parts;

/* Two warps search, one for each end. */
static Parts find_parts(Emit *e, const Sort *s, LV round, LV source)
{
    LV run = LLVMBuildShl(e->b, l_i64(e, TILE), l_sub(e, round, l_i64(e, 1)), "");
    LV tile = LLVMBuildUDiv(e->b, s->from, l_i64(e, TILE), "");
    LV a = l_mul(e, LLVMBuildShl(e->b, LLVMBuildLShr(e->b, tile, round, ""), round, ""), l_i64(e, TILE));
    LV b = l_min(e, l_add(e, a, run), s->n), end = l_min(e, l_add(e, b, run), s->n);
    LV n_a = l_sub(e, b, a), n_b = l_sub(e, end, b), d = l_sub(e, s->from, a);
    LV to = l_min(e, l_add(e, d, l_i64(e, TILE)), l_add(e, n_a, n_b));
    LV ends = cuda_shared(e, 16, "ends"), m[2];
    If searcher = if_begin(e, below(e, s->tid, c32(e, 2 * WARP)), "ends");
    LV second = LLVMBuildLShr(e->b, s->tid, c32(e, 5), ""), own = LLVMBuildSelect(e->b, below(e, s->tid, c32(e, WARP)), d, to, "");
    own = search_by_warp(e, s, l_gep(e, s->item, source, a), n_a, l_gep(e, s->item, source, b), n_b, own);
    LV lane = LLVMBuildAnd(e->b, s->tid, c32(e, WARP - 1), "");
    If one = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, lane, c32(e, 0), ""), "end");
    l_store(e, own, l_gep(e, e->type[SC_I64], ends, second), 8);
    if_end(e, &one);
    if_end(e, &searcher);
    barrier(e);
    for (int i = 0; i < 2; i++)
        m[i] = l_load(e, e->type[SC_I64], l_gep(e, e->type[SC_I64], ends, l_i64(e, i)), 8);
    return (Parts){l_add(e, a, m[0]), l_add(e, b, l_sub(e, d, m[0])), l_sub(e, m[1], m[0]), l_sub(e, to, d)};
}

/* Both parts, one after the other, to shared memory. */
static void load_parts(Emit *e, const Sort *s, const Parts *p, LV source)
{
    LV item[EACH];
    for (int u = 0; u < EACH; u++) {
        LV at = wide(e, moved(e, s, l_i64(e, u))), there = below(e, at, p->n);
        LV from = LLVMBuildSelect(e->b, below(e, at, p->n_a), l_add(e, p->a, at), l_add(e, p->b, l_sub(e, at, p->n_a)), "");
        LV x = item_at(e, s, source, LLVMBuildSelect(e->b, there, from, l_i64(e, 0), ""));
        item[u] = LLVMBuildSelect(e->b, there, x, s->most, "");
    }
    for (int u = 0; u < EACH; u++)
        put_item(e, s, item[u], s->shared, moved(e, s, l_i64(e, u)));
}

static void emit_rounds(Emit *e, Sort *s, LaunchPhase **phase)
{
    open_entry(e, s, "_merge", phase);
    open_tile(e, s);
    LV round = l_load(e, e->type[SC_I64], l_gep(e, e->type[SC_I64], e->block, l_i64(e, e->k->args.n)), 8);
    LV left = l_sub(e, s->rounds, round), source = room(e, s, l_add(e, left, l_i64(e, 1)), s->line);
    Parts p = find_parts(e, s, round, source);
    load_parts(e, s, &p, source);
    barrier(e);
    merge_own(e, s, c32(e, 0), narrow(e, p.n_a), c32(e, TILE), own_first(e, s));
    share_own(e, s);
    LV to = room(e, s, left, s->line), done = LLVMBuildICmp(e->b, LLVMIntEQ, left, l_i64(e, 0), "");
    for (int u = 0; u < EACH; u++) {
        LV at = moved(e, s, l_i64(e, u)), place = l_add(e, s->from, wide(e, at)), item = item_at(e, s, s->shared, at);
        If there = if_begin(e, below(e, wide(e, at), p.n), "there");
        put_result(e, s, done, item, to, s->line, place);
        if_end(e, &there);
    }
    cuda_return(e);
}

/* ---- launches ---- */

/* node: 1 where a line has more than `items`, else 0 (or less, where it has none). */
static uint16_t longer(Emit *e, uint16_t n, int64_t items)
{
    LaunchBuilder *p = e->launch;
    uint16_t parts = launch_op(p, LAUNCH_CEIL_DIV, n, launch_const(p, items));
    return launch_op(p, LAUNCH_MIN, launch_const(p, 1), launch_op(p, LAUNCH_ADD, parts, launch_const(p, -1)));
}

void emit_sort_cuda(Emit *e)
{
    const KInst *load = &e->k->inst.at[0], *sort = &e->k->inst.at[1];
    Sort s = {.rule = sort_key_rule((DType)load->dtype, sort->mode != 0)};
    unsigned key_bits = s.rule.bytes * 8;
    s.wide = key_bits + sort->imm > 64;
    s.bytes = s.wide ? 16 : 8;
    s.place_bits = s.wide ? 64 : 64 - key_bits;
    s.item = LLVMIntTypeInContext(e->ctx, s.bytes * 8);
    s.i32 = e->type[SC_I32];
    s.most = LLVMConstAllOnes(s.item);
    s.shared = cuda_shared(e, (TILE + 1) * s.bytes, "items");

    LaunchBuilder *p = e->launch;
    p->numbered = true;
    uint16_t n = launch_arg(p, 3), lines = launch_op(p, LAUNCH_MUL, launch_arg(p, 2), launch_arg(p, 4));
    uint16_t all = launch_op(p, LAUNCH_MUL, lines, n), tile = launch_const(p, TILE), threads = launch_const(p, 1);
    uint16_t tiles = launch_op(p, LAUNCH_MUL, lines, launch_op(p, LAUNCH_CEIL_DIV, n, tile)); /* a part of a line each */
    for (int k = 0; k < STEPS; k++) {                                                         /* that own the items of a line */
        uint16_t more = launch_op(p, LAUNCH_CEIL_DIV, n, launch_const(p, EACH << k));
        threads = launch_op(p, LAUNCH_MUL, threads, launch_op(p, LAUNCH_MIN, more, launch_const(p, 2)));
    }
    LaunchPhase *phase;
    emit_tiles(e, &s, &phase);
    phase->points = all;
    phase->tasks = launch_op(p, LAUNCH_CEIL_DIV, launch_op(p, LAUNCH_MUL, tiles, threads), launch_const(p, THREADS));
    emit_rounds(e, &s, &phase);
    const LaunchPhase round = *phase;
    for (int r = 1; r <= ROUNDS; r++) {
        if (r > 1)
            phase = launch_phase(p, p->names + round.entry, THREADS);
        phase->points = all;
        phase->tasks = launch_op(p, LAUNCH_MUL, tiles, longer(e, n, (int64_t)TILE << (r - 1)));
    }
    uint16_t bytes = launch_op(p, LAUNCH_MUL, all, launch_const(p, s.wide ? 2 * s.bytes : s.bytes));
    p->scratch = launch_op(p, LAUNCH_MUL, longer(e, n, TILE), launch_op(p, LAUNCH_ADD, bytes, launch_const(p, GRID_COUNTER_BYTES)));
}

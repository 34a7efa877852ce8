/*
 * Parts of a vector: accesses of contiguous elements of which some lanes are not there, under a mask or behind the end of a row.
 *
 * No access relies on LLVM to keep a mask. LLVM 19 loses it where it has to split or widen a masked access: of
 * `masked.load <16 x float> (splat p) & <1, 1, 1, 1, 0, ...>` for AVX2 the upper half became a plain load, which read past the
 * end of the buffer. So a masked access is one instruction of the machine, and lint.c refuses all others.
 *
 *     a mask                         parts of a register, 16 bytes at least (lanes that do not exist are masked off here); with less than AVX-512
 *                                    elements of 4 or 8 bytes alone; loads of 2 bytes by pairs of which both are there; others lane by lane,
 *                                    without a branch
 *     the tail of a row, to store    without AVX-512 whole registers as such and the last one by halves: AMD's processors take masked stores of
 *                                    AVX2 by microcode
 *     the same where tiles that      a copy to or from the stack (`left`), without AVX-512; sums of products by halves
 *     may be whole share the code
 */
#include "jit/llvm/cpu/tails.h"

/* At least `bytes` of stack, all 0 at the start of the function. */
static LV stack_place(Emit *e, StackPlace *place, unsigned bytes, const char *name)
{
    if (place->bytes >= bytes)
        return place->at;
    LLVMTypeRef words = LLVMVectorType(e->type[SC_I64], (bytes + 7) / 8);
    LV at = l_alloca(e, words, 64, name);
    LLVMBasicBlockRef block = LLVMGetInsertBlock(e->b);
    LLVMPositionBuilderBefore(e->b, e->entry_end);
    l_store(e, LLVMConstNull(words), at, 64);
    if (e->standing)
        LLVMPositionBuilderBefore(e->b, e->standing);
    else
        LLVMPositionBuilderAtEnd(e->b, block);
    *place = (StackPlace){at, bytes};
    return at;
}

/* Never written to: what is loaded where a predicate is false. */
LV zeros(Emit *e, unsigned bytes) { return stack_place(e, &e->zeros, bytes, "zeros"); }
/* Never read: what a store goes to where its predicate is false. */
LV sink(Emit *e, unsigned bytes) { return stack_place(e, &e->sink, bytes, "sink"); }

unsigned tile_bytes(const Emit *e, unsigned align) { return align * (unsigned)e->lanes; }

/* ---- masks ---- */

/* Lanes of one masked access of contiguous elements: those of a register, at most the tile's but 16 bytes at least; 0: the machine has none. */
unsigned lanes_at_once(const Emit *e, unsigned bytes)
{
    unsigned wide = e->bits == 512 ? 512 : 256, most = wide / 8 / bytes, least = 16 / bytes, lanes = (unsigned)e->lanes;
    if (e->bits < 512 && bytes < 4)
        return 0;
    return lanes > most ? most : lanes < least ? least : lanes;
}

LV lane_of(Emit *e, LV v, unsigned lane) { return LLVMBuildExtractElement(e->b, v, LLVMConstInt(e->type[SC_I32], lane, 0), ""); }

static bool is_splat(LV v)
{
    return LLVMIsAShuffleVectorInst(v) && LLVMIsAInsertElementInst(LLVMGetOperand(v, 0)) && LLVMGetMaskValue(v, 0) == 0 &&
           LLVMIsPoison(LLVMGetOperand(LLVMGetOperand(v, 0), 0)) && LLVMIsPoison(LLVMGetOperand(v, 1));
}

/* Lanes [from, from + n) of a mask. It is taken apart as it was put together: each part is computed in the register it is used in. */
static LV mask_part(Emit *e, LV mask, unsigned from, unsigned n)
{
    if (LLVMIsAICmpInst(mask))
        return LLVMBuildICmp(e->b, LLVMGetICmpPredicate(mask), mask_part(e, LLVMGetOperand(mask, 0), from, n),
                             mask_part(e, LLVMGetOperand(mask, 1), from, n), "");
    if (LLVMIsABinaryOperator(mask) && LLVMGetInstructionOpcode(mask) == LLVMAnd)
        return LLVMBuildAnd(e->b, mask_part(e, LLVMGetOperand(mask, 0), from, n), mask_part(e, LLVMGetOperand(mask, 1), from, n), "");
    if (is_splat(mask))
        return l_splat_n(e, LLVMGetOperand(LLVMGetOperand(mask, 0), 1), n);
    return l_part(e, mask, (int)from, (int)n);
}

/* The mask of the part of a tile that begins at lane `from`: `n` lanes, those past the tile's off. */
LV part_mask(Emit *e, LV mask, unsigned from, unsigned n)
{
    unsigned lanes = LLVMGetVectorSize(LLVMTypeOf(mask));
    if (n <= lanes)
        return n == lanes ? mask : mask_part(e, mask, from, n);
    LV parts[MAX_LANES] = {mask};
    for (unsigned i = 1; i < n / lanes; i++)
        parts[i] = LLVMConstNull(LLVMTypeOf(mask));
    return l_join(e, parts, n / lanes);
}

static LV load_part(Emit *e, LLVMTypeRef element, LV ptr, LV mask, unsigned align)
{
    LLVMTypeRef vector = LLVMVectorType(element, LLVMGetVectorSize(LLVMTypeOf(mask)));
    if (LLVMIsConstant(mask) && LLVMIsNull(mask))
        return LLVMConstNull(vector);
    if (mask == LLVMConstAllOnes(LLVMTypeOf(mask)))
        return l_load(e, vector, ptr, align);
    LV args[4] = {ptr, LLVMConstInt(e->type[SC_I32], align, 0), mask, LLVMConstNull(vector)};
    return l_intrinsic(e, "llvm.masked.load", (LLVMTypeRef[]){vector, e->ptr}, 2, args, 4);
}

static void store_part(Emit *e, LV v, LV ptr, LV mask, unsigned align)
{
    if (LLVMIsConstant(mask) && LLVMIsNull(mask))
        return;
    if (mask == LLVMConstAllOnes(LLVMTypeOf(mask))) {
        l_store(e, v, ptr, align);
        return;
    }
    LV args[4] = {v, ptr, LLVMConstInt(e->type[SC_I32], align, 0), mask};
    l_intrinsic(e, "llvm.masked.store", (LLVMTypeRef[]){LLVMTypeOf(v), e->ptr}, 2, args, 4);
}

/* Lanes one further down (up), of the last (first) one 0. */
static LV moved(Emit *e, LV v, bool down)
{
    int n = (int)LLVMGetVectorSize(LLVMTypeOf(v)), from[MAX_LANES];
    for (int i = 0; i < n; i++)
        from[i] = down ? i + 1 : i ? i - 1 : n;
    LV at[MAX_LANES];
    for (int i = 0; i < n; i++)
        at[i] = LLVMConstInt(e->type[SC_I32], (unsigned)from[i], 0);
    return LLVMBuildShuffleVector(e->b, v, LLVMConstNull(LLVMTypeOf(v)), LLVMConstVector(at, (unsigned)n), "");
}

/* Into v at the lanes of `bits`, one after another, by way of the stack: each lies so many elements behind the one before. */
static LV load_lanes(Emit *e, LV v, LV ptr, int64_t apart, LV bits)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(v)), word = LLVMTypeOf(bits);
    LV at = l_alloca(e, LLVMTypeOf(v), 32, "lanes"), one = LLVMConstInt(word, 1, 0), none = LLVMConstNull(word);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(e->b), some = l_block(e, "lanes"), each = l_block(e, "lane"), done = l_block(e, "");
    l_unlikely(e, LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntNE, bits, none, ""), some, done));
    l_at(e, some);
    l_store(e, v, at, 32);
    LLVMBuildBr(e->b, each);
    l_at(e, each);
    LV left = LLVMBuildPhi(e->b, word, "");
    LV lane = l_intrinsic(e, "llvm.cttz", &word, 1, (LV[]){left, LLVMConstInt(e->type[SC_I1], 1, 0)}, 2);
    lane = LLVMBuildZExt(e->b, lane, e->type[SC_I64], "");
    l_store(e, l_load(e, element, l_gep(e, element, ptr, l_mul(e, lane, l_i64(e, apart))), 2), l_gep(e, element, at, lane), 2);
    LV next = LLVMBuildAnd(e->b, left, LLVMBuildSub(e->b, left, one, ""), "");
    LLVMAddIncoming(left, (LV[]){bits, next}, (LLVMBasicBlockRef[]){some, each}, 2);
    LLVMBasicBlockRef all = l_block(e, "all");
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntNE, next, none, ""), each, all);
    l_at(e, all);
    LV with = l_load(e, LLVMTypeOf(v), at, 32);
    LLVMBuildBr(e->b, done);
    l_at(e, done);
    LV phi = LLVMBuildPhi(e->b, LLVMTypeOf(v), "");
    LLVMAddIncoming(phi, (LV[]){v, with}, (LLVMBasicBlockRef[]){from, all}, 2);
    return phi;
}

/*
 * Elements of 2 bytes: AVX2 has masks for 4 bytes. Pairs of which both lanes are there, those that begin at even lanes and those at odd ones: all
 * lanes that have a neighbour. One that has none is rare, the only one of a tail.
 */
static LV load_pairs(Emit *e, LV ptr, LV mask)
{
    const unsigned n = LLVMGetVectorSize(LLVMTypeOf(mask));
    LLVMTypeRef words = LLVMVectorType(e->type[SC_I16], n), pairs = LLVMVectorType(e->type[SC_I32], n / 2);
    LV is = LLVMBuildSExt(e->b, mask, words, ""), v = LLVMConstNull(words), covered = v;
    for (unsigned odd = 0; odd < 2; odd++) {
        LV both = LLVMBuildBitCast(e->b, odd ? moved(e, is, true) : is, pairs, "");
        both = LLVMBuildICmp(e->b, LLVMIntEQ, both, LLVMConstAllOnes(pairs), "");
        LV two[2] = {load_part(e, e->type[SC_I32], l_gep(e, e->type[SC_I16], ptr, l_i64(e, odd)), both, 2),
                     LLVMBuildSExt(e->b, both, pairs, "")};
        for (int i = 0; i < 2; i++) {
            two[i] = LLVMBuildBitCast(e->b, two[i], words, "");
            two[i] = odd ? moved(e, two[i], false) : two[i];
        }
        v = LLVMBuildOr(e->b, v, two[0], "");
        covered = LLVMBuildOr(e->b, covered, two[1], "");
    }
    LV alone = LLVMBuildICmp(e->b, LLVMIntNE, is, covered, "");
    return load_lanes(e, v, ptr, 1, LLVMBuildBitCast(e->b, alone, LLVMIntTypeInContext(e->ctx, n), ""));
}

bool pairs_hold(const Emit *e, unsigned align) { return align == 2 && !lanes_at_once(e, align) && !e->standing; }

/*
 * Every second element of 2 bytes, by words of 4: the one that begins with it where the next lane is live, so that what lies between is
 * there, too; else the one that ends with it, where the lane before is.
 */
LV load_every_second(Emit *e, LV ptr, LV mask)
{
    const unsigned lanes = (unsigned)e->lanes, n = lanes > 8 ? 8 : lanes < 4 ? 4 : lanes;
    LLVMTypeRef half = e->type[SC_I16], word = e->type[SC_I32];
    LV is = LLVMBuildSExt(e->b, mask, LLVMVectorType(word, lanes), ""), none = LLVMConstNull(LLVMTypeOf(is));
    LV begins = LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildAnd(e->b, is, moved(e, is, true), ""), none, "");
    LV before = LLVMBuildICmp(e->b, LLVMIntNE, moved(e, is, false), none, "");
    LV rest = LLVMBuildAnd(e->b, mask, LLVMBuildNot(e->b, begins, ""), ""), ends = LLVMBuildAnd(e->b, rest, before, "");
    LV parts[2][MAX_LANES] = {{NULL}};
    for (unsigned from = 0; from < lanes; from += n)
        for (unsigned end = 0; end < 2; end++) {
            LV at = l_gep(e, half, ptr, l_i64(e, 2 * (int64_t)from - (int64_t)end));
            parts[end][from / n] = load_part(e, word, at, part_mask(e, end ? ends : begins, from, n), 2);
        }
    LV both[2], sixteen = l_splat_n(e, LLVMConstInt(word, 16, 0), lanes);
    for (unsigned end = 0; end < 2; end++)
        both[end] = n > lanes ? l_part(e, parts[end][0], 0, e->lanes) : l_join(e, parts[end], lanes / n);
    LV v = LLVMBuildSelect(e->b, ends, LLVMBuildLShr(e->b, both[1], sixteen, ""), both[0], "");
    v = LLVMBuildTrunc(e->b, v, LLVMVectorType(half, lanes), "");
    LV alone = LLVMBuildAnd(e->b, rest, LLVMBuildNot(e->b, before, ""), "");
    return load_lanes(e, v, ptr, 2, LLVMBuildBitCast(e->b, alone, LLVMIntTypeInContext(e->ctx, lanes), ""));
}

static LV load_lane_by_lane(Emit *e, LLVMTypeRef element, LV ptr, LV mask, unsigned align)
{
    LV v = LLVMGetPoison(l_vec(e, element));
    for (unsigned l = 0; l < (unsigned)e->lanes; l++) {
        LV from = LLVMBuildSelect(e->b, lane_of(e, mask, l), l_gep(e, element, ptr, l_i64(e, l)), zeros(e, 8), "");
        v = LLVMBuildInsertElement(e->b, v, l_load(e, element, from, align), LLVMConstInt(e->type[SC_I32], l, 0), "");
    }
    return v;
}

enum { PAIRED_LEAST = 8, PAIRED_MOST = 16 }; /* lanes of 2 bytes of a register */

LV masked_load(Emit *e, LLVMTypeRef element, LV ptr, LV mask, unsigned align)
{
    unsigned n = lanes_at_once(e, align), lanes = (unsigned)e->lanes;
    LV parts[MAX_LANES] = {NULL};
    bool pairs = pairs_hold(e, align);
    if (!mask)
        return l_load(e, l_vec(e, element), ptr, align);
    if (n == 0 && !pairs)
        return load_lane_by_lane(e, element, ptr, mask, align);
    n = !pairs ? n : lanes > PAIRED_MOST ? PAIRED_MOST : lanes < PAIRED_LEAST ? PAIRED_LEAST : lanes;
    for (unsigned from = 0; from < lanes; from += n) {
        LV at = l_gep(e, element, ptr, l_i64(e, from)), some = part_mask(e, mask, from, n);
        parts[from / n] = pairs ? LLVMBuildBitCast(e->b, load_pairs(e, at, some), LLVMVectorType(element, n), "")
                                : load_part(e, element, at, some, align);
    }
    return n > lanes ? l_part(e, parts[0], 0, e->lanes) : l_join(e, parts, lanes / n);
}

/* How many lanes a tail has (l_lane_mask), where its mask is the whole one; NULL: it is another. */
static LV lanes_of_tail(const Emit *e, LV mask)
{
    bool tail = mask == e->mask && LLVMIsAICmpInst(mask) && is_splat(LLVMGetOperand(mask, 1));
    return tail ? LLVMGetOperand(LLVMGetOperand(LLVMGetOperand(mask, 1), 0), 1) : NULL;
}

/*
 * Lanes [0, left) of v, fewer than it has; `down`: the last ones, where they lie in it. Half of them, a quarter and so on, where `left` has the bit. Of
 * three vectors as of four, whose last (first) one is not there.
 */
static void store_by_halves(Emit *e, LV v, LV to, LV left, bool down, unsigned align)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(v));
    int lanes = (int)LLVMGetVectorSize(LLVMTypeOf(v)), all = 1;
    while (all < lanes)
        all *= 2;
    v = l_part(e, v, down ? lanes - all : 0, all); /* (below 0: poison as well) */
    if (down)
        to = l_gep(e, element, to, l_i64(e, lanes));
    for (int n = all / 2; n > 0; n /= 2) {
        LV half[2] = {l_part(e, v, 0, n), l_part(e, v, n, n)};
        LV bit = LLVMBuildAnd(e->b, left, l_i64(e, n), ""), has = LLVMBuildICmp(e->b, LLVMIntNE, bit, l_i64(e, 0), "");
        LV next = l_gep(e, element, to, down ? LLVMBuildNeg(e->b, bit, "") : bit);
        If some = if_begin(e, has, "left");
        l_store(e, half[down], down ? next : to, align);
        if_end(e, &some);
        v = LLVMBuildSelect(e->b, has, half[!down], half[down], "");
        to = next;
    }
}

/*
 * The first `left` lanes of a tail, `n` at once: whole registers as such, of the one that is not a half, a quarter and so on, as AMD's
 * processors take a masked store of AVX2 by microcode (Zen 4: 12 cycles), even of no lane.
 */
static void store_tail(Emit *e, LV v, LV ptr, LV left, unsigned n, unsigned align)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(v)), index = LLVMTypeOf(left);
    LLVMBasicBlockRef last = l_block(e, "store_last"), done = l_block(e, "");
    unsigned parts = (unsigned)e->lanes / n;
    LV part[MAX_LANES], at[MAX_LANES];
    LLVMBasicBlockRef from[MAX_LANES];
    for (unsigned i = 0; i < parts; i++) {
        part[i] = l_part(e, v, (int)(i * n), (int)n), at[i] = LLVMConstInt(index, i * n, 0);
        from[i] = LLVMGetInsertBlock(e->b);
        LLVMBasicBlockRef whole = l_block(e, "store_whole");
        LV has = LLVMBuildICmp(e->b, LLVMIntUGE, left, LLVMConstInt(index, (i + 1) * n, 0), "");
        LLVMBuildCondBr(e->b, has, whole, last);
        l_at(e, whole);
        l_store(e, part[i], l_gep(e, element, ptr, l_i64(e, i * n)), align);
    }
    LLVMBuildBr(e->b, done);
    l_at(e, last);
    LV rest = LLVMBuildPhi(e->b, LLVMTypeOf(part[0]), ""), begin = LLVMBuildPhi(e->b, index, "");
    LLVMAddIncoming(rest, part, from, parts);
    LLVMAddIncoming(begin, at, from, parts);
    LV to = l_gep(e, element, ptr, LLVMBuildZExt(e->b, begin, e->type[SC_I64], ""));
    store_by_halves(e, rest, to, LLVMBuildZExt(e->b, LLVMBuildSub(e->b, left, begin, ""), e->type[SC_I64], ""), false, align);
    LLVMBuildBr(e->b, done);
    l_at(e, done);
}

void masked_store(Emit *e, LV v, LV ptr, LV mask, unsigned align)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(v));
    unsigned n = lanes_at_once(e, align), lanes = (unsigned)e->lanes;
    if (!mask) {
        l_store(e, v, ptr, align);
        return;
    }
    LV left = e->bits < 512 && n <= lanes ? lanes_of_tail(e, mask) : NULL;
    if (n && left) {
        store_tail(e, v, ptr, left, n, align);
        return;
    }
    for (unsigned l = 0; n == 0 && l < lanes; l++) {
        LV to = LLVMBuildSelect(e->b, lane_of(e, mask, l), l_gep(e, element, ptr, l_i64(e, l)), sink(e, 8), "");
        l_store(e, lane_of(e, v, l), to, align);
    }
    for (unsigned from = 0; n && from < lanes; from += n)
        store_part(e, l_part(e, v, (int)from, (int)n), l_gep(e, element, ptr, l_i64(e, from)), part_mask(e, mask, from, n), align);
}

/* ---- the last tile ---- */

/*
 * A tile that may be the last of its row has a branch around each access, which only the last takes; the body between them is there once.
 * Masks in each tile cost as much as what they protect (AVX2 on Zen: sin of 2^24 f32 took 2.6 times as long; bench/dynamic).
 *
 * Contiguous elements are accessed whole even then: the last tile's are copied to the stack in front of a load, from there behind a store, one
 * after another, and what the branch decides is an address.
 *
 *     whole:                    last: stage[0 .. left) = at[0 .. left)
 *     v = load (at or stage)
 *
 * No vector is alive in there, and none comes out, where a mask and two values that meet took so many registers of AVX2's 16 that the
 * whole tiles spilled (sin(x) * x + 1 in cache: 1.2 times as long). Stores of products are made otherwise (stage_store).
 */
bool forks(const Emit *e) { return e->left && !e->standing; }

/* In front of a whole tile's access. */
Fork fork_begin(Emit *e)
{
    Fork f = {.from = {l_block(e, "whole"), l_block(e, "last")}, .join = l_block(e, "")};
    l_unlikely(e, LLVMBuildCondBr(e->b, LLVMBuildNot(e->b, e->whole, ""), f.from[1], f.from[0]));
    l_at(e, f.from[0]);
    return f;
}

/* Between that and the last tile's; its mask. */
LV fork_last(Emit *e, Fork *f)
{
    f->from[0] = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, f->join);
    l_at(e, f->from[1]);
    return l_lane_mask(e, e->left);
}

LV fork_end(Emit *e, Fork *f, LV whole, LV last)
{
    f->from[1] = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, f->join);
    l_at(e, f->join);
    if (!whole)
        return NULL;
    LV phi = LLVMBuildPhi(e->b, LLVMTypeOf(whole), ""), each[2] = {whole, last};
    LLVMAddIncoming(phi, each, f->from, 2);
    return phi;
}

LV live_select(Emit *e, LV v, LV other)
{
    if (!forks(e))
        return LLVMBuildSelect(e->b, e->mask, v, other, "");
    Fork f = fork_begin(e);
    LV mask = fork_last(e, &f);
    return fork_end(e, &f, v, LLVMBuildSelect(e->b, mask, v, other, ""));
}

/* With 32 registers and masks in others there is no need. */
bool stages(const Emit *e, int64_t stride, const Val *pred) { return e->bits < 512 && stride && !(pred && pred->vec); }

static LV stage_of(Emit *e, StackPlace *place, unsigned align)
{
    unsigned bytes = tile_bytes(e, align);
    return stack_place(e, place, bytes, place == &e->stage_in ? "stage_in" : "stage_out");
}

/* Bytes [at, at + bytes), as many at once as there are. */
static void copy_bytes(Emit *e, LV to, LV from, int64_t at, int64_t bytes)
{
    for (int64_t n = 32; n > 0; n /= 2)
        for (; bytes >= n; at += n, bytes -= n) {
            LV v = l_load(e, LLVMVectorType(e->type[SC_I8], (unsigned)n), l_gep_bytes(e, from, l_i64(e, at)), 1);
            l_store(e, v, l_gep_bytes(e, to, l_i64(e, at)), 1);
        }
}

/* The last tile's elements, where they lie in it. */
static void copy_left(Emit *e, LLVMTypeRef element, int64_t stride, LV to, LV from, unsigned align)
{
    LV lanes = l_i64(e, e->lanes), begin = stride < 0 ? l_sub(e, lanes, e->left) : l_i64(e, 0);
    int64_t left;
    if (l_is_const(e->left, &left)) {
        copy_bytes(e, to, from, stride < 0 ? (e->lanes - left) * align : 0, left * align);
        return;
    }
    Loop l = loop_begin(e, begin, stride < 0 ? lanes : e->left, l_i64(e, 1), "left");
    LV v = l_load(e, element, l_gep(e, element, from, l.iv), align);
    l_store(e, v, l_gep(e, element, to, l.iv), align);
    loop_end(e, &l);
}

LV stage_load(Emit *e, LLVMTypeRef element, LV at, int64_t stride, unsigned align)
{
    LV stage = stage_of(e, &e->stage_in, align);
    Fork f = fork_begin(e);
    fork_last(e, &f);
    copy_left(e, element, stride, stage, at, align);
    return l_load(e, l_vec(e, element), fork_end(e, &f, at, stage), align);
}

/*
 * Sums of a product are stored row by row with little between: by halves, from registers (batches of 8 x 8 x 8: 0.4 of the time). Elsewhere that
 * gains nothing, and compiling takes a tenth more.
 */
void stage_store(Emit *e, LV v, LV at, int64_t stride, unsigned align)
{
    bool halves = e->k->form == FORM_CONTRACT;
    LV stage = halves ? NULL : stage_of(e, &e->stage_out, align);
    if (stage)
        l_store(e, v, LLVMBuildSelect(e->b, e->whole, at, stage, ""), align);
    Fork f = fork_begin(e);
    if (halves)
        l_store(e, v, at, align);
    fork_last(e, &f);
    if (halves)
        store_by_halves(e, v, at, e->left, stride < 0, align);
    else
        copy_left(e, LLVMGetElementType(LLVMTypeOf(v)), stride, at, stage, align);
    fork_end(e, &f, NULL, NULL);
}

/*
 * The host's loads and stores of one tile of lanes: contiguous, reversed, broadcast, strided and indexed,
 * under the tile's mask (lanes past the end) and an instruction's own predicate. Masked-off lanes
 * read as zero bits and touch no memory of the program.
 *
 * Where there is one predicate for all lanes an access goes without it to a place on the stack where it is false: `zeros` to load, `sink` to store.
 * Parts of contiguous elements are tails.c's business, and so is why nothing relies on LLVM to keep a mask. Here are
 *
 *     runs (Runs)                    each under a mask of its own, where a tile has few
 *     every second to fourth         as many vectors, without what lies between, and shuffled together
 *     a few lists in turns           the same: a vector of each, all shuffled together
 *     a mask, strided or indexed     with AVX-512 parts of one register of pointers; else masked-off lanes point to the stack
 *
 * A uniform access under a uniform predicate must not branch (code is hoisted): that is why it goes to the stack.
 */
#include "jit/llvm/cpu/tails.h"

static unsigned align_of(DType dtype) { return (unsigned)dtype_bytes(dtype); }

/* A predicate that differs from lane to lane. */
static const Val *by_lane(const Val *pred) { return pred && pred->vec ? pred : NULL; }

/* Does the mask hold wherever v does? */
static bool within(LV v, LV mask)
{
    if (v == mask)
        return true;
    return LLVMIsABinaryOperator(v) && LLVMGetInstructionOpcode(v) == LLVMAnd &&
           (within(LLVMGetOperand(v, 0), mask) || within(LLVMGetOperand(v, 1), mask));
}

/* The live lanes: the tile's mask and the predicate of each; NULL: all of them. */
static LV live_lanes(Emit *e, LV mask, const Val *pred)
{
    pred = by_lane(pred);
    return !pred ? mask : mask && !within(pred->v, mask) ? LLVMBuildAnd(e->b, mask, pred->v, "") : pred->v;
}

static LV all_lanes(Emit *e) { return l_const(e, SC_I1, 1, true); }

/* One pointer for each lane. */
static LV lane_pointers(Emit *e, LLVMTypeRef element, Address at)
{
    if (at.many)
        return at.ptr;
    if (!at.stride)
        return l_splat(e, at.ptr);
    return l_gep(e, element, at.ptr, index_vector(e, (Ix){.base = l_i64(e, 0), .stride = at.stride}));
}

/* ---- gathers and scatters ---- */

/* Lanes of one masked gather or scatter: a register of pointers. 0: none; LLVM makes single accesses of it, so there shall be no mask. */
static unsigned pointers_at_once(const Emit *e) { return e->bits == 512 ? 8 : 0; }

static LV gather_part(Emit *e, LLVMTypeRef element, LV ptrs, LV mask, unsigned align)
{
    LLVMTypeRef vector = LLVMVectorType(element, LLVMGetVectorSize(LLVMTypeOf(ptrs)));
    LV args[4] = {ptrs, LLVMConstInt(e->type[SC_I32], align, 0), mask, LLVMConstNull(vector)};
    return l_intrinsic(e, "llvm.masked.gather", (LLVMTypeRef[]){vector, LLVMTypeOf(ptrs)}, 2, args, 4);
}

/* That of one lane. What is added up to it is taken apart, so that the machine adds what differs from lane to lane. */
static LV lane_pointer(Emit *e, LV ptrs, unsigned lane)
{
    if (LLVMGetTypeKind(LLVMTypeOf(ptrs)) != LLVMVectorTypeKind)
        return ptrs;
    if (!LLVMIsAGetElementPtrInst(ptrs) || LLVMGetNumOperands(ptrs) != 2)
        return lane_of(e, ptrs, lane);
    LV index = LLVMGetOperand(ptrs, 1);
    if (LLVMGetTypeKind(LLVMTypeOf(index)) == LLVMVectorTypeKind)
        index = lane_of(e, index, lane);
    return l_gep(e, LLVMGetGEPSourceElementType(ptrs), lane_pointer(e, LLVMGetOperand(ptrs, 0), lane), index);
}

/* A load a lane: gathers of the machine take as long where they are fast (Zen 5: 16 lanes 5.0 ns, 4.6 one by one), or ten times as long. */
static LV gather_lanes(Emit *e, LLVMTypeRef element, LV ptrs, unsigned align)
{
    LV v = LLVMGetPoison(l_vec(e, element));
    for (unsigned l = 0; l < (unsigned)e->lanes; l++)
        v = LLVMBuildInsertElement(e->b, v, l_load(e, element, lane_pointer(e, ptrs, l), align), LLVMConstInt(e->type[SC_I32], l, 0), "");
    return v;
}

/* The same where each lies one stride behind the one before: added up one by one there is no lane's own distance to keep in a register. */
static LV load_stepping(Emit *e, LLVMTypeRef element, LV ptr, LV stride, unsigned align)
{
    LV v = LLVMGetPoison(l_vec(e, element));
    for (unsigned l = 0; l < (unsigned)e->lanes; l++) {
        v = LLVMBuildInsertElement(e->b, v, l_load(e, element, ptr, align), LLVMConstInt(e->type[SC_I32], l, 0), "");
        ptr = l_gep(e, element, ptr, stride);
    }
    return v;
}

static LV gather(Emit *e, LLVMTypeRef element, LV ptrs, LV mask, unsigned align)
{
    unsigned n = pointers_at_once(e), lanes = (unsigned)e->lanes;
    LV parts[MAX_LANES];
    if (!mask || n == 0) {
        if (mask)
            ptrs = LLVMBuildSelect(e->b, mask, ptrs, l_splat(e, zeros(e, 8)), "");
        return gather_lanes(e, element, ptrs, align);
    }
    if (lanes <= n)
        return gather_part(e, element, ptrs, mask, align);
    for (unsigned from = 0; from < lanes; from += n)
        parts[from / n] = gather_part(e, element, l_part(e, ptrs, (int)from, (int)n), part_mask(e, mask, from, n), align);
    return l_join(e, parts, lanes / n);
}

static void scatter_part(Emit *e, LV v, LV ptrs, LV mask, unsigned align)
{
    LV args[4] = {v, ptrs, LLVMConstInt(e->type[SC_I32], align, 0), mask};
    l_intrinsic(e, "llvm.masked.scatter", (LLVMTypeRef[]){LLVMTypeOf(v), LLVMTypeOf(ptrs)}, 2, args, 4);
}

static void scatter(Emit *e, LV v, LV ptrs, LV mask, unsigned align)
{
    unsigned n = pointers_at_once(e), lanes = (unsigned)e->lanes;
    if (!mask || n == 0) {
        if (mask)
            ptrs = LLVMBuildSelect(e->b, mask, ptrs, l_splat(e, sink(e, 8)), "");
        scatter_part(e, v, ptrs, all_lanes(e), align);
        return;
    }
    if (lanes <= n) {
        scatter_part(e, v, ptrs, mask, align);
        return;
    }
    for (unsigned from = 0; from < lanes; from += n)
        scatter_part(e, l_part(e, v, (int)from, (int)n), l_part(e, ptrs, (int)from, (int)n), part_mask(e, mask, from, n), align);
}

/* ---- fetching ahead ---- */

static void prefetch(Emit *e, LV ptr, unsigned bytes, bool to_write)
{
    enum { SECOND_CACHE = 2, FIRST_CACHE = 3 }; /* locality, as LLVM counts it */
    for (unsigned at = 0; at < bytes; at += LINE) {
        LV args[4] = {l_gep_bytes(e, ptr, l_i64(e, at)), LLVMConstInt(e->type[SC_I32], to_write, 0),
                      LLVMConstInt(e->type[SC_I32], e->ahead_far ? SECOND_CACHE : FIRST_CACHE, 0), LLVMConstInt(e->type[SC_I32], 1, 0)};
        l_intrinsic(e, "llvm.prefetch", &e->ptr, 1, args, 4);
    }
}

void l_prefetch(Emit *e, LV ptr, unsigned from, unsigned bytes) { prefetch(e, l_gep_bytes(e, ptr, l_i64(e, from)), bytes, false); }

/*
 * The stream of a heavy body is fetched ahead by software: with some 70 instructions an iteration
 * too few lines are in flight (sum(tanh * sigmoid + exp) of 40 MB: 22 ms without, 8 ms with;
 * nothing changes for light bodies). Past the end of a buffer a prefetch does nothing.
 */
static void prefetch_stream(Emit *e, LV ptr, unsigned bytes)
{
    enum { AHEAD = 4096 };
    bool streams = e->vec_r ? e->cur == LV_R : e->cur == LV_TILE && !e->n_stages;
    if (e->ahead || (e->schedule.prefetch == PREFETCH_ON && streams))
        l_prefetch(e, ptr, e->ahead ? e->ahead : AHEAD, bytes);
}

/* Stride of an address as a small constant, 0 for none known. */
static int64_t known_stride(Address at)
{
    int64_t s;
    return !at.many && l_is_const(at.stride, &s) && (s == 1 || s == -1) ? s : 0;
}

bool address_is_line(Address at) { return known_stride(at) == 1; }

void prefetch_at(Emit *e, DType dtype, Address at, unsigned from)
{
    if (known_stride(at) == 1)
        l_prefetch(e, at.ptr, from, align_of(dtype) * (unsigned)e->lanes);
}

/* ---- loads and stores ---- */

/* The address, or `place` where a predicate of all lanes is false; each lane has its own, then, if the address has a stride. */
static LV or_place(Emit *e, LV ptr, const Val *pred, LV place) { return LLVMBuildSelect(e->b, pred->v, ptr, place, ""); }

/* ---- every second, third or fourth ---- */

enum { MOST_STRIDE = 4 };

/* Small enough that as many whole vectors cost less than a gather; else 0. `dear`: masks of AVX2 are, those of stores, which AMD's processors take by
 * microcode, and of runs, of which each has its own. */
static int64_t small_stride(const Emit *e, LV stride, bool dear, unsigned align)
{
    int64_t s;
    bool known = l_is_const(stride, &s) && s >= 2 && s <= MOST_STRIDE;
    return known && align >= 2 && e->lanes >= s && (!dear || e->bits == 512) ? s : 0;
}

/* The same to load: where the machine has no masks for elements so small, without a mask, or by pairs every second one. */
static int64_t small_stride_of_load(const Emit *e, LV stride, LV mask, unsigned align)
{
    const int64_t s = small_stride(e, stride, false, align);
    return !mask || lanes_at_once(e, align) || (s == 2 && pairs_hold(e, align)) ? s : 0;
}

static LV lane_number(Emit *e, int64_t n) { return LLVMConstInt(e->type[SC_I32], (uint64_t)n, 0); }

/* The same where masks have registers of their own: their bits are put in places by one instruction, for all parts. */
static LV spread_bits(Emit *e, LV mask, int64_t first, int64_t stride)
{
    LLVMTypeRef i64 = e->type[SC_I64], bits = LLVMIntTypeInContext(e->ctx, (unsigned)e->lanes);
    uint64_t places = 0;
    for (int64_t i = 0; i < e->lanes; i++)
        places |= UINT64_C(1) << i * stride;
    LV word = LLVMBuildZExt(e->b, LLVMBuildBitCast(e->b, mask, bits, ""), i64, "");
    word = l_intrinsic(e, "llvm.x86.bmi.pdep.64", NULL, 0, (LV[]){word, LLVMConstInt(i64, places, 0)}, 2);
    word = LLVMBuildLShr(e->b, word, LLVMConstInt(i64, (uint64_t)first, 0), "");
    return LLVMBuildBitCast(e->b, LLVMBuildTrunc(e->b, word, bits, ""), LLVMTypeOf(mask), "");
}

/* Lanes [first, first + lanes) of a mask that is spread `stride` apart. */
static LV spread_mask(Emit *e, LV mask, int64_t first, int64_t stride)
{
    LV at[MAX_LANES];
    if (e->bits == 512 && e->lanes * stride <= 64)
        return spread_bits(e, mask, first, stride);
    LLVMTypeRef words = LLVMVectorType(e->type[SC_I32], (unsigned)e->lanes); /* LLVM moves bits one by one, or wider words than these */
    for (int64_t i = 0; i < e->lanes; i++)
        at[i] = lane_number(e, (first + i) % stride ? e->lanes : (first + i) / stride);
    mask = LLVMBuildSExt(e->b, mask, words, "");
    mask = LLVMBuildShuffleVector(e->b, mask, LLVMConstNull(words), LLVMConstVector(at, (unsigned)e->lanes), "");
    return LLVMBuildICmp(e->b, LLVMIntNE, mask, LLVMConstNull(words), "");
}

/*
 * Of `stride` vectors that lie behind each other the elements that are wanted. The last one ends with the last lane's: what follows may lie past
 * the buffer. Under a mask, what is not wanted is masked off instead.
 */
static LV load_strided(Emit *e, LLVMTypeRef element, LV ptr, LV mask, int64_t stride, unsigned align)
{
    int64_t lanes = e->lanes;
    LV v = LLVMGetPoison(l_vec(e, element));
    if (mask && !lanes_at_once(e, align))
        return LLVMBuildBitCast(e->b, load_every_second(e, ptr, mask), l_vec(e, element), "");
    for (int64_t part = 0; part < stride; part++) {
        int64_t first = part + 1 < stride || mask ? part * lanes : (lanes - 1) * stride + 1 - lanes;
        LV from[MAX_LANES], own = mask ? spread_mask(e, mask, first, stride) : NULL;
        for (int64_t i = 0; i < lanes; i++)
            from[i] = lane_number(e, i * stride / lanes == part ? lanes + i * stride - first : i);
        LV loaded = masked_load(e, element, l_gep(e, element, ptr, l_i64(e, first)), own, align);
        v = LLVMBuildShuffleVector(e->b, v, loaded, LLVMConstVector(from, (unsigned)lanes), "");
    }
    return v;
}

/* v's lanes to every second, third or fourth element: what lies between is masked off. */
static void store_strided(Emit *e, LV v, LV ptr, LV mask, int64_t stride, unsigned align)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(v));
    int64_t lanes = e->lanes;
    mask = mask ? mask : all_lanes(e);
    for (int64_t part = 0; part < stride; part++) {
        int64_t first = part * lanes;
        LV to[MAX_LANES];
        for (int64_t i = 0; i < lanes; i++)
            to[i] = lane_number(e, (first + i) / stride);
        LV spread = LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(to, (unsigned)lanes), "");
        masked_store(e, spread, l_gep(e, element, ptr, l_i64(e, first)), spread_mask(e, mask, first, stride), align);
    }
}

/* One element for all lanes, which is there where any of them is live. */
static LV load_for_all(Emit *e, LLVMTypeRef element, LV ptr, LV mask, unsigned align)
{
    if (!mask)
        return l_splat(e, l_load(e, element, ptr, align));
    LLVMTypeRef bits = LLVMIntTypeInContext(e->ctx, (unsigned)e->lanes);
    LV any = LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildBitCast(e->b, mask, bits, ""), LLVMConstNull(bits), "");
    LV v = l_splat(e, l_load(e, element, LLVMBuildSelect(e->b, any, ptr, zeros(e, 8), ""), align));
    return LLVMBuildSelect(e->b, mask, v, LLVMConstNull(LLVMTypeOf(v)), "");
}

/*
 * Patterns: how far from the first lane's each element lies is known. So are those of short rows side by side (the directive `joined`): reversed, every
 * second one, one of each row, or the same row again and again; and those of x[t / 2]. What lies between the first and the last of them is loaded
 * whole, under a mask what live lanes want of it, and put in its places.
 */
enum { MOST_PARTS = 4, MOST_EQUAL = 4, MOST_APART = 2 }; /* under a mask: lanes that want the same element; elements, each by itself */

/* Where each lane's element lies, from the lowest on; elements from there to the highest, or 0: not known, or too many. */
static int64_t pattern_of(const Emit *e, Address at, int64_t *place, int64_t *lowest)
{
    int64_t from, length, stride, step, low = 0, high = 0;
    if (!at.many || !at.runs.first || !at.runs.of || !l_is_const(at.runs.at, &from) || !l_is_const(at.runs.length, &length) ||
        !l_is_const(at.runs.stride, &stride) || !l_is_const(at.runs.step, &step))
        return 0;
    for (int64_t t = 0; t < e->lanes; t++) {
        int64_t run, in_run;
        if (__builtin_mul_overflow((from + t) / length, step, &run) ||
            __builtin_mul_overflow((from + t) % length - from, stride, &in_run) || __builtin_add_overflow(run, in_run, &place[t]))
            return 0;
        low = place[t] < low ? place[t] : low;
        high = place[t] > high ? place[t] : high;
    }
    for (int64_t t = 0; t < e->lanes; t++)
        place[t] -= low;
    *lowest = low;
    return high - low < MOST_PARTS * e->lanes ? high - low + 1 : 0;
}

/* Of the elements from `first` on, as many as there are lanes, those that a live lane wants. */
static LV wanted(Emit *e, LV mask, const int64_t *place, int64_t first)
{
    int64_t lanes = e->lanes, more = lanes;
    LV none = LLVMConstNull(LLVMTypeOf(mask)), all = none;
    for (bool seen[MAX_LANES] = {false}; more;) {
        LV at[MAX_LANES] = {NULL};
        for (int64_t t = 0; t < lanes; t++) {
            int64_t i = place[t] - first;
            if (seen[t] || (i >= 0 && i < lanes && at[i]))
                continue;
            if (i >= 0 && i < lanes)
                at[i] = lane_number(e, t);
            seen[t] = true;
            more--;
        }
        for (int64_t i = 0; i < lanes; i++)
            at[i] = at[i] ? at[i] : lane_number(e, lanes);
        LV once = LLVMBuildShuffleVector(e->b, mask, none, LLVMConstVector(at, (unsigned)lanes), "");
        all = all == none ? once : LLVMBuildOr(e->b, all, once, "");
    }
    return all;
}

/* Can a mask of lanes become one of elements? By as many steps as lanes want the same one, which shall be few. */
static bool has_mask_of_elements(const Emit *e, const int64_t *place, unsigned align)
{
    for (int64_t t = MOST_EQUAL; t < e->lanes; t++) {
        int equal = 0;
        for (int64_t i = 0; i < t; i++)
            equal += place[i] == place[t];
        if (equal == MOST_EQUAL)
            return false;
    }
    return lanes_at_once(e, align) || pairs_hold(e, align);
}

/*
 * Of a mask that is known the lanes want what lies between the first and the last of their elements, which is all in one buffer: it needs no mask.
 * Then places are counted from the first one on, which is there. false: nothing has changed.
 */
static bool narrowed(const Emit *e, LV mask, int64_t *place, int64_t *span, int64_t *first)
{
    bool live[MAX_LANES], some = false;
    int64_t low = *span, high = 0;
    for (int64_t t = 0; t < e->lanes; t++) {
        LV bit = LLVMIsConstant(mask) ? LLVMGetAggregateElement(mask, (unsigned)t) : NULL;
        if (!bit || !LLVMIsAConstantInt(bit))
            return false;
        live[t] = LLVMConstIntGetZExtValue(bit);
        some |= live[t];
        low = live[t] && place[t] < low ? place[t] : low;
        high = live[t] && place[t] > high ? place[t] : high;
    }
    for (int64_t t = 0; t < e->lanes && some; t++)
        place[t] = live[t] ? place[t] - low : 0;
    *first = low;
    *span = some ? high - low + 1 : *span;
    return some;
}

static LV load_pattern(Emit *e, LLVMTypeRef element, LV ptr, LV mask, const int64_t *place, int64_t span, unsigned align)
{
    int64_t lanes = e->lanes, whole = span < lanes && !mask ? span : lanes;
    LV v = LLVMGetPoison(l_vec(e, element)), at[MAX_LANES];
    for (int64_t part = 0; part * lanes < span; part++) {
        int64_t first = (part + 1) * lanes <= span || span < lanes || mask ? part * lanes : span - lanes;
        LV from = l_gep(e, element, ptr, l_i64(e, first));
        LV loaded = mask ? masked_load(e, element, from, wanted(e, mask, place, first), align)
                         : l_load(e, LLVMVectorType(element, (unsigned)whole), from, align);
        for (int64_t t = 0; t < lanes; t++)
            at[t] = lane_number(e, place[t] / lanes == part ? place[t] - first : part ? lanes + t : 0);
        LV places = LLVMConstVector(at, (unsigned)lanes);
        v = LLVMBuildShuffleVector(e->b, loaded, part ? v : LLVMGetPoison(LLVMTypeOf(loaded)), places, "");
    }
    return mask ? LLVMBuildSelect(e->b, mask, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
}

/* A pattern of one or two elements, each for all lanes that want it: fewer instructions than a mask of elements, and no gather. */
static LV load_each(Emit *e, LLVMTypeRef element, LV ptr, LV mask, const int64_t *place, int64_t span, unsigned align)
{
    LV v = NULL;
    for (int64_t i = 0; i < span; i++) {
        LV wants[MAX_LANES];
        for (int64_t t = 0; t < e->lanes; t++)
            wants[t] = LLVMConstInt(e->type[SC_I1], place[t] == i, 0);
        LV own = LLVMBuildAnd(e->b, mask, LLVMConstVector(wants, (unsigned)e->lanes), "");
        LV one = load_for_all(e, element, l_gep(e, element, ptr, l_i64(e, i)), own, align);
        v = v ? LLVMBuildSelect(e->b, own, one, v, "") : one;
    }
    return v;
}

/*
 * Lists in turns: rows of a few points that lie apart, as when planes become a last axis (the directive `joined`). Every second, or fourth,
 * lane lies behind the one before, or where that does: `step` is 0. (Zen 4, AVX-512, one thread, us: 8 x 64 x 56 x 56 bf16 to pairs of channels, padded 1720 -> 390; 4 x 2 planes of
 * 65536 f32 362 -> 247, with AVX2 373 -> 237.)
 */
static int64_t lists_of(const Emit *e, Address at, bool masked, unsigned align, int64_t *step)
{
    int64_t from, length;
    if (!at.many || !at.runs.first || !at.runs.of || !l_is_const(at.runs.at, &from) || !l_is_const(at.runs.length, &length) ||
        !l_is_const(at.runs.step, step))
        return 0;
    const bool even = length == 2 || length == 4, more = length > 2 && length <= MOST_LISTS && !masked;
    bool in_turns = (even || more) && from == 0 && e->lanes % length == 0;
    return in_turns && (*step == 0 || *step == 1) && (!masked || lanes_at_once(e, align)) ? length : 0;
}

/* The bits of a mask that list `number` has. Shuffled, LLVM moves bits of AVX-512 one by one. */
static LV mask_of_list(Emit *e, LV mask, int64_t number, int64_t lists)
{
    const unsigned all = (unsigned)e->lanes, n = all / (unsigned)lists;
    LV at[MAX_LANES];
    for (unsigned i = 0; i < n; i++)
        at[i] = lane_number(e, i * lists + number);
    if (LLVMIsConstant(mask) || e->bits < 512)
        return LLVMBuildShuffleVector(e->b, mask, LLVMGetPoison(LLVMTypeOf(mask)), LLVMConstVector(at, n), "");
    LLVMTypeRef i64 = e->type[SC_I64];
    uint64_t bits = 0;
    for (unsigned i = 0; i < n; i++)
        bits |= UINT64_C(1) << (i * lists + number);
    LV word = LLVMBuildZExt(e->b, LLVMBuildBitCast(e->b, mask, LLVMIntTypeInContext(e->ctx, all), ""), i64, "");
    word = l_intrinsic(e, "llvm.x86.bmi.pext.64", NULL, 0, (LV[]){word, LLVMConstInt(i64, bits, 0)}, 2);
    word = LLVMBuildTrunc(e->b, word, LLVMIntTypeInContext(e->ctx, n), "");
    return LLVMBuildBitCast(e->b, word, LLVMVectorType(e->type[SC_I1], n), "");
}

/* Of so many vectors one element each: every one to its lanes, then beside those of the vectors before it. */
static LV in_turns_of(Emit *e, LV *part, int64_t lists)
{
    LV all = NULL, place[MAX_LANES], blend[MAX_LANES];
    for (int64_t i = 0; i < lists; i++) {
        for (int64_t t = 0; t < e->lanes; t++) {
            place[t] = t % lists == i ? lane_number(e, t / lists) : LLVMGetPoison(e->type[SC_I32]);
            blend[t] = lane_number(e, t % lists == i ? e->lanes + t : t);
        }
        LV own = LLVMBuildShuffleVector(e->b, part[i], LLVMGetPoison(LLVMTypeOf(part[i])), LLVMConstVector(place, (unsigned)e->lanes), "");
        all = all ? LLVMBuildShuffleVector(e->b, all, own, LLVMConstVector(blend, (unsigned)e->lanes), "") : own;
    }
    return all;
}

static LV load_lists(Emit *e, LLVMTypeRef element, const Runs *runs, LV mask, int64_t lists, int64_t step, unsigned align)
{
    const int lanes = e->lanes;
    LV part[MOST_LISTS];
    for (int64_t i = 0; i < lists; i++) {
        LV own = mask ? mask_of_list(e, mask, i, lists) : NULL, from = l_gep(e, element, runs->first, l_mul(e, runs->stride, l_i64(e, i)));
        e->lanes = lanes / (int)lists;
        part[i] = (step ? masked_load : load_for_all)(e, element, from, own, align);
        e->lanes = lanes;
    }
    if (lists & (lists - 1))
        return in_turns_of(e, part, lists);
    for (int64_t n = lists / 2; n; n /= 2) /* two at a time, which any machine does well */
        for (int64_t i = 0; i < n; i++)
            part[i] = l_in_turns(e, part[i], part[i + n]);
    return part[0];
}

/*
 * Runs: what lies behind each other is loaded at once, each run of a tile under a mask of its own. Lanes from `begin` on, which may be below 0,
 * are of the run that is loaded. A known length tells how often; else a loop is cheaper than a gather unless runs are short.
 */
enum { MOST_RUNS = 6, MOST_RUNS_AVX2 = 4 };

static int64_t most_runs(const Emit *e) { return e->bits == 512 ? MOST_RUNS : MOST_RUNS_AVX2; }

/* May the tile be loaded like that? */
static bool in_runs(const Emit *e, Address at, unsigned align)
{
    int64_t stride, length;
    if (!at.many || !at.runs.first || !at.runs.of || !l_is_const(at.runs.stride, &stride) || !lanes_at_once(e, align))
        return false;
    if (stride != 1 && !small_stride(e, at.runs.stride, true, align))
        return false;
    return l_is_const(at.runs.length, &length) ? (e->lanes + length - 2) / length < most_runs(e) : !e->standing;
}

static LV clamped(Emit *e, LV lane)
{
    return l_splat(e, LLVMBuildTrunc(e->b, l_max(e, l_min(e, lane, l_i64(e, e->lanes)), l_i64(e, 0)), e->type[SC_I32], ""));
}

/* v, and from lane `begin` on, as many as a run has, what lies at ptr for lane 0. */
static LV load_run(Emit *e, LLVMTypeRef element, const Runs *runs, LV v, LV ptr, LV begin, LV mask, unsigned align)
{
    int64_t stride = 1;
    l_is_const(runs->stride, &stride);
    LV lane = l_iota(e, e->type[SC_I32]), own = LLVMBuildICmp(e->b, LLVMIntSLT, lane, clamped(e, l_add(e, begin, runs->length)), "");
    if (v)
        own = LLVMBuildAnd(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, lane, clamped(e, begin), ""), own, "");
    LV live = mask ? LLVMBuildAnd(e->b, own, mask, "") : own;
    LV part = stride == 1 ? masked_load(e, element, ptr, live, align) : load_strided(e, element, ptr, live, stride, align);
    return v ? LLVMBuildSelect(e->b, own, part, v, "") : part;
}

static LV load_runs(Emit *e, LLVMTypeRef element, const Runs *runs, LV mask, unsigned align)
{
    LV begin = l_sub(e, l_i64(e, 0), runs->at), lanes = l_i64(e, e->lanes), jump = runs_jump(e, runs), v = NULL;
    int64_t length;
    if (l_is_const(runs->length, &length)) {
        for (int64_t p = 0, n = (e->lanes + length - 2) / length + 1; p < n; p++) {
            LV from = l_gep(e, element, runs->first, l_mul(e, jump, l_i64(e, p)));
            v = load_run(e, element, runs, v, from, l_add(e, begin, l_i64(e, p * length)), mask, align);
        }
        return v;
    }
    LV all = l_alloca(e, l_vec(e, element), 0, "all"), from = l_alloca(e, e->type[SC_I64], 8, "from");
    l_store(e, load_run(e, element, runs, NULL, runs->first, begin, mask, align), all, 0);
    l_store(e, jump, from, 8);
    Loop l = loop_begin(e, l_add(e, begin, runs->length), lanes, runs->length, "run");
    LV offset = l_load(e, e->type[SC_I64], from, 8), ptr = l_gep(e, element, runs->first, offset);
    v = load_run(e, element, runs, l_load(e, l_vec(e, element), all, 0), ptr, l.iv, mask, align);
    l_store(e, v, all, 0);
    l_store(e, l_add(e, offset, jump), from, 8);
    loop_end(e, &l);
    return l_load(e, l_vec(e, element), all, 0);
}

static LV load_tile(Emit *e, LLVMTypeRef element, Address at, LV tile, const Val *pred, unsigned align, bool staged);

/* Short runs of unknown length: a gather. */
static LV load_runs_or(Emit *e, LLVMTypeRef element, Address at, LV tile, const Val *pred, unsigned align)
{
    Runs runs = at.runs;
    LV mask = live_lanes(e, tile, pred);
    int64_t length;
    if (pred && !pred->vec) {
        runs.first = or_place(e, runs.first, pred, zeros(e, MOST_STRIDE * tile_bytes(e, align)));
        runs.step = LLVMBuildSelect(e->b, pred->v, runs.step, l_mul(e, runs.length, runs.stride), "");
    }
    if (l_is_const(runs.length, &length))
        return load_runs(e, element, &runs, mask, align);
    LLVMBasicBlockRef from[2] = {l_block(e, "runs"), l_block(e, "gather")}, join = l_block(e, "");
    LV few = LLVMBuildICmp(e->b, LLVMIntSGE, l_mul(e, runs.length, l_i64(e, most_runs(e))), l_i64(e, e->lanes), ""), each[2];
    LLVMBuildCondBr(e->b, few, from[0], from[1]);
    l_at(e, from[0]);
    each[0] = load_runs(e, element, &runs, mask, align);
    from[0] = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, join);
    l_at(e, from[1]);
    at.ptr = runs_pointers(e, element, &runs); /* here, where they are needed */
    at.runs = (Runs){0};
    each[1] = load_tile(e, element, at, tile, pred, align, false);
    from[1] = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, join);
    l_at(e, join);
    LV phi = LLVMBuildPhi(e->b, l_vec(e, element), "");
    LLVMAddIncoming(phi, each, from, 2);
    return phi;
}

/* A tile whose address has a stride, where `tile` and the predicate hold. */
static LV load_tile(Emit *e, LLVMTypeRef element, Address at, LV tile, const Val *pred, unsigned align, bool staged)
{
    bool uniform = pred && !pred->vec;
    LV mask = live_lanes(e, tile, pred);
    int64_t stride = known_stride(at), place[MAX_LANES], lowest, first = 0, span = pattern_of(e, at, place, &lowest);
    if (span && mask && !uniform && narrowed(e, mask, place, &span, &first)) {
        LV v = load_pattern(e, element, l_gep(e, element, at.runs.first, l_i64(e, lowest + first)), NULL, place, span, align);
        return LLVMBuildSelect(e->b, mask, v, LLVMConstNull(LLVMTypeOf(v)), "");
    }
    if (span && mask && span <= MOST_APART && !uniform)
        return load_each(e, element, l_gep(e, element, at.runs.first, l_i64(e, lowest)), mask, place, span, align);
    if (span && (!mask || has_mask_of_elements(e, place, align))) {
        LV from = l_gep(e, element, at.runs.first, l_i64(e, lowest));
        if (uniform)
            from = or_place(e, from, pred, zeros(e, MOST_PARTS * tile_bytes(e, align)));
        return load_pattern(e, element, from, mask, place, span, align);
    }
    int64_t step, lists = uniform ? 0 : lists_of(e, at, mask != NULL, align, &step);
    if (lists)
        return load_lists(e, element, &at.runs, mask, lists, step, align);
    if (in_runs(e, at, align))
        return load_runs_or(e, element, at, tile, pred, align);
    int64_t small = at.many ? 0 : small_stride_of_load(e, at.stride, mask, align);
    if (small) {
        LV from = uniform ? or_place(e, at.ptr, pred, zeros(e, (unsigned)small * tile_bytes(e, align))) : at.ptr;
        return load_strided(e, element, from, mask, small, align);
    }
    if (!stride && !at.many && at.stride && !mask && !pred)
        return load_stepping(e, element, at.ptr, at.stride, align);
    if (!stride) {
        LV ptrs = lane_pointers(e, element, at);
        return gather(e, element, uniform ? or_place(e, ptrs, pred, l_splat(e, zeros(e, 8))) : ptrs, mask, align);
    }
    LV low = stride == 1 ? at.ptr : l_gep(e, element, at.ptr, l_i64(e, 1 - e->lanes));
    LV from = uniform ? or_place(e, low, pred, zeros(e, tile_bytes(e, align))) : low;
    LV v = staged ? stage_load(e, element, from, stride, align)
                  : masked_load(e, element, from, stride == 1 || !mask ? mask : l_reverse(e, mask), align);
    return stride == 1 ? v : l_reverse(e, v);
}

static void store_tile(Emit *e, LV v, Address at, LV tile, const Val *pred, unsigned align, bool staged)
{
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(v));
    bool uniform = pred && !pred->vec;
    LV mask = live_lanes(e, tile, pred);
    int64_t stride = known_stride(at), small = at.many ? 0 : small_stride(e, at.stride, true, align);
    if (small) {
        LV to = uniform ? or_place(e, at.ptr, pred, sink(e, (unsigned)small * tile_bytes(e, align))) : at.ptr;
        store_strided(e, v, to, mask, small, align);
        return;
    }
    if (!stride) {
        LV ptrs = lane_pointers(e, element, at);
        scatter(e, v, uniform ? or_place(e, ptrs, pred, l_splat(e, sink(e, 8))) : ptrs, mask, align);
        return;
    }
    LV low = stride == 1 ? at.ptr : l_gep(e, element, at.ptr, l_i64(e, 1 - e->lanes));
    LV to = uniform ? or_place(e, low, pred, sink(e, tile_bytes(e, align))) : low;
    if (stride != 1)
        v = l_reverse(e, v);
    if (staged)
        stage_store(e, v, to, stride, align);
    else
        masked_store(e, v, to, stride == 1 || !mask ? mask : l_reverse(e, mask), align);
}

Val load_host(Emit *e, DType dtype, Address at, const Val *pred)
{
    LLVMTypeRef element = l_memory(e, dtype);
    unsigned align = align_of(dtype);
    if (e->lanes == 1 || (!at.many && !at.stride && !by_lane(pred))) {
        LV v = l_load(e, element, pred ? or_place(e, at.ptr, pred, zeros(e, 8)) : at.ptr, align);
        return (Val){.v = l_from_memory(e, dtype, v)};
    }
    LV v;
    bool staged = forks(e) && stages(e, known_stride(at), pred);
    if (forks(e) && !staged) {
        Fork f = fork_begin(e);
        LV whole = load_tile(e, element, at, NULL, pred, align, false), mask = fork_last(e, &f);
        v = fork_end(e, &f, whole, load_tile(e, element, at, mask, pred, align, false));
    } else {
        v = load_tile(e, element, at, staged ? NULL : e->mask, pred, align, staged);
    }
    if (known_stride(at) == 1 && !at.asked)
        prefetch_stream(e, at.ptr, tile_bytes(e, align));
    return (Val){.v = l_from_memory(e, dtype, v), .vec = true};
}

/* Under the tile's mask and the predicate. */
static void store_lanes(Emit *e, LV v, Address at, const Val *pred, unsigned align)
{
    bool staged = forks(e) && stages(e, known_stride(at), pred);
    if (!forks(e) || staged) {
        store_tile(e, v, at, staged ? NULL : e->mask, pred, align, staged);
        return;
    }
    Fork f = fork_begin(e);
    store_tile(e, v, at, NULL, pred, align, false);
    LV mask = fork_last(e, &f);
    store_tile(e, v, at, mask, pred, align, false);
    fork_end(e, &f, NULL, NULL);
}

void store_host(Emit *e, DType dtype, Address at, Val x, const Val *pred)
{
    unsigned align = align_of(dtype);
    if (e->lanes == 1 || (!at.many && !at.stride && !x.vec && !by_lane(pred)))
        l_store(e, l_to_memory(e, dtype, x.v), pred ? or_place(e, at.ptr, pred, sink(e, 8)) : at.ptr, align);
    else
        store_lanes(e, l_to_memory(e, dtype, val_vector(e, x)), at, pred, align);
}

/* No branch: the fault goes to the stack where there is none. Atomic, because other threads may report too. */
void fault_host(Emit *e, LV bad, LV to, LV id)
{
    LV nowhere = l_alloca(e, e->type[SC_I64], 8, "nowhere");
    LV store = l_store(e, id, LLVMBuildSelect(e->b, bad, to, nowhere, ""), 8);
    LLVMSetOrdering(store, LLVMAtomicOrderingMonotonic);
}

/* Is this instruction in the loop that begins with this block and is still open? Blocks are appended as they are made. */
static bool is_in_loop(LV v, LLVMBasicBlockRef loop)
{
    LLVMBasicBlockRef of = LLVMGetInstructionParent(v);
    while (loop && loop != of)
        loop = LLVMGetNextBasicBlock(loop);
    return loop != NULL;
}

/*
 * The address of the first tile of the loop that the tile at ptr is in, before that loop, where its parts are known there: all of its tiles
 * lie in lines as the first does. NULL: they are not. The builder is moved.
 */
static LV first_tile(Emit *e, LLVMTypeRef element, LV ptr)
{
    LV at = e->vec_r ? e->flat : e->axis[e->tile_axis].base;
    if (LLVMIsAFreezeInst(ptr))
        ptr = LLVMGetOperand(ptr, 0);
    if (!LLVMIsAPHINode(at) || LLVMCountIncoming(at) != 1 || !LLVMIsAGetElementPtrInst(ptr) || LLVMGetNumOperands(ptr) != 2 ||
        LLVMGetOperand(ptr, 1) != at)
        return NULL;
    LV start = LLVMGetOperand(ptr, 0);
    if (LLVMIsAInstruction(start) && is_in_loop(start, LLVMGetInstructionParent(at)))
        return NULL;
    LLVMPositionBuilderBefore(e->b, LLVMGetBasicBlockTerminator(LLVMGetIncomingBlock(at, 0)));
    return l_gep(e, element, start, LLVMGetIncomingValue(at, 0));
}

/* i1: are these bits of the address 0? */
static LV bits_are_zero(Emit *e, LV ptr, LV bits)
{
    LV address = LLVMBuildPtrToInt(e->b, ptr, e->type[SC_I64], "");
    return LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildAnd(e->b, address, bits, ""), l_i64(e, 0), "");
}

/* A line that is written is read and owned first: early enough nobody waits for it. Outputs that are not large ask for what they are about to write,
 * which costs less than a branch. */
void ask_at(Emit *e, DType dtype, Address at, LV large)
{
    enum { AHEAD = 1024 };
    if (e->standing || known_stride(at) != 1)
        return;
    Place place = level_enter(e, LV_TASK);
    LV ahead = LLVMBuildSelect(e->b, large, l_i64(e, AHEAD), l_i64(e, 0), "");
    level_leave(e, place);
    prefetch(e, l_gep_bytes(e, at.ptr, ahead), (unsigned)e->lanes * (unsigned)dtype_bytes(dtype), true);
}

/*
 * A plain store first reads the line it is going to overwrite: of an output that no cache will hold
 * anyway, a third to a half of all traffic (x + y of 64 MB each: 12.6 ms, streamed 9.0). Streaming
 * needs whole aligned vectors of whole lines: asked once before a loop over the tiles of a row, else by each tile. What is streamed
 * is not in the cache for the next kernel: only for big outputs. `bits`: those of the address that must
 * be 0.
 */
void stream_at(Emit *e, DType dtype, Address at, Val x, LV bits)
{
    int64_t bytes = e->lanes * (int64_t)dtype_bytes(dtype);
    if (e->standing || known_stride(at) != 1 || bytes % LINE || (e->mask && !e->whole)) {
        store_at(e, dtype, at, x, NULL);
        return;
    }
    e->streamed = true;
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
    LV first = first_tile(e, l_memory(e, dtype), at.ptr), stream = bits_are_zero(e, first ? first : at.ptr, bits);
    l_at(e, here);
    if (e->mask)
        stream = LLVMBuildAnd(e->b, stream, e->whole, "");
    LLVMBasicBlockRef past = l_block(e, "stream"), plain = l_block(e, "plain"), join = l_block(e, "");
    LV v = l_to_memory(e, dtype, val_vector(e, x));
    LLVMBuildCondBr(e->b, stream, past, plain);
    l_at(e, past);
    LV store = l_store(e, v, at.ptr, 64), one = LLVMConstInt(e->type[SC_I32], 1, 0);
    LLVMSetMetadata(store, LLVMGetMDKindIDInContext(e->ctx, "nontemporal", 11), LLVMMDNodeInContext(e->ctx, &one, 1));
    LLVMBuildBr(e->b, join);
    l_at(e, plain);
    store_lanes(e, v, at, NULL, align_of(dtype));
    LLVMBuildBr(e->b, join);
    l_at(e, join);
}

/*
 * Bytes that are only moved go by the machine's own instruction where that is fast and they are many: it writes whole lines without reading
 * them first. From and to whole lines only, since others are slow on some machines.
 */
LV copy_host(Emit *e, Address to, Address from, LV bytes)
{
    if (known_stride(to) != 1 || known_stride(from) != 1)
        return NULL;
    static const char text[] = "rep movsb", operands[] = "={di},={si},={cx},0,1,2,~{memory},~{dirflag},~{fpsr},~{flags}";
    LLVMTypeRef in[3] = {e->ptr, e->ptr, e->type[SC_I64]};
    LLVMTypeRef type = LLVMFunctionType(LLVMStructTypeInContext(e->ctx, in, 3, 0), in, 3, 0);
    LV places =
        LLVMBuildOr(e->b, LLVMBuildPtrToInt(e->b, to.ptr, e->type[SC_I64], ""), LLVMBuildPtrToInt(e->b, from.ptr, e->type[SC_I64], ""), "");
    LV lines = LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildAnd(e->b, places, l_i64(e, LINE - 1), ""), l_i64(e, 0), "");
    LV many = LLVMBuildICmp(e->b, LLVMIntSGE, bytes, l_i64(e, e->schedule.copy), ""), pays = LLVMBuildAnd(e->b, lines, many, "");
    LV move = LLVMGetInlineAsm(type, text, sizeof text - 1, operands, sizeof operands - 1, 1, 0, LLVMInlineAsmDialectATT, 0);
    If copy = if_begin(e, pays, "copy");
    LLVMBuildCall2(e->b, type, move, (LV[]){to.ptr, from.ptr, bytes}, 3, "");
    if_end(e, &copy);
    return pays;
}

/* Streamed stores are not ordered with others: they must be seen by whoever sees this function
 * return. */
void stream_end(Emit *e)
{
    if (e->streamed)
        l_intrinsic(e, "llvm.x86.sse.sfence", NULL, 0, NULL, 0);
}

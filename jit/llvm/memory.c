/*
 * The host's loads and stores of one tile of lanes: contiguous, reversed, broadcast, strided and indexed,
 * under the tile's mask (lanes past the end) and an instruction's own predicate. Masked-off lanes
 * read as zero bits and touch no memory.
 *
 * A uniform access under a uniform predicate must not branch (code is hoisted), so it goes to the
 * `sink` of the function, eight bytes of stack, when the predicate is false.
 */
#include "jit/llvm/build.h"

static unsigned align_of(DType dtype) { return (unsigned)dtype_bytes(dtype); }

/* The live lanes: the tile's mask and the predicate; NULL: all of them. */
static LV live_lanes(Emit *e, const Val *pred)
{
    if (!pred)
        return e->mask;
    LV p = val_vector(e, *pred);
    return e->mask ? LLVMBuildAnd(e->b, e->mask, p, "") : p;
}

static LV all_lanes(Emit *e) { return l_const(e, SC_I1, 1, true); }

static LV sink_or(Emit *e, LV ptr, const Val *pred)
{
    if (!pred)
        return ptr;
    if (!e->sink) {
        e->sink = l_alloca(e, e->type[SC_I64], 8, "sink");
        LLVMBasicBlockRef block = LLVMGetInsertBlock(e->b);
        LLVMPositionBuilderBefore(e->b, e->entry_end);
        l_store(e, l_i64(e, 0), e->sink, 8);
        if (e->standing)
            LLVMPositionBuilderBefore(e->b, e->standing);
        else
            LLVMPositionBuilderAtEnd(e->b, block);
    }
    return LLVMBuildSelect(e->b, pred->v, ptr, e->sink, "");
}

/* One pointer for each lane. */
static LV lane_pointers(Emit *e, LLVMTypeRef element, Address at)
{
    if (at.many)
        return at.ptr;
    if (!at.stride)
        return l_splat(e, at.ptr);
    return l_gep(e, element, at.ptr, index_vector(e, (Ix){.base = l_i64(e, 0), .stride = at.stride}));
}

static LV masked_load(Emit *e, LLVMTypeRef vector, LV ptr, LV mask, unsigned align)
{
    if (!mask)
        return l_load(e, vector, ptr, align);
    LV args[4] = {ptr, LLVMConstInt(e->type[SC_I32], align, 0), mask, LLVMConstNull(vector)};
    LLVMTypeRef types[2] = {vector, e->ptr};
    return l_intrinsic(e, "llvm.masked.load", types, 2, args, 4);
}

static void masked_store(Emit *e, LV v, LV ptr, LV mask, unsigned align)
{
    if (!mask) {
        l_store(e, v, ptr, align);
        return;
    }
    LV args[4] = {v, ptr, LLVMConstInt(e->type[SC_I32], align, 0), mask};
    LLVMTypeRef types[2] = {LLVMTypeOf(v), e->ptr};
    l_intrinsic(e, "llvm.masked.store", types, 2, args, 4);
}

static void prefetch(Emit *e, LV ptr, unsigned from, unsigned bytes)
{
    for (unsigned at = 0; at < bytes; at += LINE) {
        LV args[4] = {l_gep_bytes(e, ptr, l_i64(e, from + at)), LLVMConstInt(e->type[SC_I32], 0, 0), LLVMConstInt(e->type[SC_I32], 3, 0),
                      LLVMConstInt(e->type[SC_I32], 1, 0)};
        l_intrinsic(e, "llvm.prefetch", &e->ptr, 1, args, 4);
    }
}

/*
 * The stream of a heavy body is fetched ahead by software: with some 70 instructions an iteration
 * too few lines are in flight (sum(tanh * sigmoid + exp) of 40 MB: 22 ms without, 8 ms with;
 * nothing changes for light bodies). Past the end of a buffer a prefetch does nothing.
 */
static void prefetch_stream(Emit *e, LV ptr, unsigned bytes)
{
    enum { AHEAD = 4096 };
    bool streams = e->vec_r ? e->cur == LV_R : e->cur == LV_TILE && !e->n_stages;
    if (e->prefetch && streams)
        prefetch(e, ptr, AHEAD, bytes);
}

/* Stride of an address as a small constant, 0 for none known. */
static int64_t known_stride(Address at)
{
    int64_t s;
    return !at.many && l_is_const(at.stride, &s) && (s == 1 || s == -1) ? s : 0;
}

void prefetch_at(Emit *e, DType dtype, Address at)
{
    if (known_stride(at) == 1)
        prefetch(e, at.ptr, 0, align_of(dtype) * (unsigned)e->lanes);
}

Val load_host(Emit *e, DType dtype, Address at, const Val *pred)
{
    LLVMTypeRef element = l_memory(e, dtype), vector = l_vec(e, element);
    unsigned align = align_of(dtype);
    if (e->lanes == 1 || (!at.many && !at.stride && !(pred && pred->vec))) {
        LV v = l_load(e, element, sink_or(e, at.ptr, pred), align);
        return (Val){.v = l_from_memory(e, dtype, v)};
    }
    LV mask = live_lanes(e, pred), v;
    int64_t stride = known_stride(at);
    if (stride == 1) {
        v = masked_load(e, vector, at.ptr, mask, align);
        prefetch_stream(e, at.ptr, align * (unsigned)e->lanes);
    } else if (stride == -1) {
        LV low = l_gep(e, element, at.ptr, l_i64(e, 1 - e->lanes));
        v = l_reverse(e, masked_load(e, vector, low, mask ? l_reverse(e, mask) : NULL, align));
    } else {
        LV ptrs = lane_pointers(e, element, at);
        LV args[4] = {ptrs, LLVMConstInt(e->type[SC_I32], align, 0), mask ? mask : all_lanes(e), LLVMConstNull(vector)};
        LLVMTypeRef types[2] = {vector, LLVMTypeOf(ptrs)};
        v = l_intrinsic(e, "llvm.masked.gather", types, 2, args, 4);
    }
    return (Val){.v = l_from_memory(e, dtype, v), .vec = true};
}

void store_host(Emit *e, DType dtype, Address at, Val x, const Val *pred)
{
    LLVMTypeRef element = l_memory(e, dtype);
    unsigned align = align_of(dtype);
    if (e->lanes == 1 || (!at.many && !at.stride && !x.vec && !(pred && pred->vec))) {
        l_store(e, l_to_memory(e, dtype, x.v), sink_or(e, at.ptr, pred), align);
        return;
    }
    LV v = l_to_memory(e, dtype, val_vector(e, x)), mask = live_lanes(e, pred);
    int64_t stride = known_stride(at);
    if (stride == 1) {
        masked_store(e, v, at.ptr, mask, align);
    } else if (stride == -1) {
        LV low = l_gep(e, element, at.ptr, l_i64(e, 1 - e->lanes));
        masked_store(e, l_reverse(e, v), low, mask ? l_reverse(e, mask) : NULL, align);
    } else {
        LV ptrs = lane_pointers(e, element, at);
        LV args[4] = {v, ptrs, LLVMConstInt(e->type[SC_I32], align, 0), mask ? mask : all_lanes(e)};
        LLVMTypeRef types[2] = {LLVMTypeOf(v), LLVMTypeOf(ptrs)};
        l_intrinsic(e, "llvm.masked.scatter", types, 2, args, 4);
    }
}

/* No branch: the fault goes to the stack where there is none. Atomic, because other threads may report too. */
void fault_host(Emit *e, LV bad, LV to, LV id)
{
    LV nowhere = l_alloca(e, e->type[SC_I64], 8, "nowhere");
    LV store = l_store(e, id, LLVMBuildSelect(e->b, bad, to, nowhere, ""), 8);
    LLVMSetOrdering(store, LLVMAtomicOrderingMonotonic);
}

/*
 * A plain store first reads the line it is going to overwrite: of an output that no cache will hold
 * anyway, a third to a half of all traffic (x + y of 64 MB each: 12.6 ms, streamed 9.0). Streaming
 * needs whole aligned vectors of whole lines; each tile looks whether it has one. What is streamed
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
    LV address = LLVMBuildPtrToInt(e->b, at.ptr, e->type[SC_I64], "");
    LV low = LLVMBuildAnd(e->b, address, bits, "");
    LV stream = LLVMBuildICmp(e->b, LLVMIntEQ, low, l_i64(e, 0), "");
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
    masked_store(e, v, at.ptr, e->mask, align_of(dtype));
    LLVMBuildBr(e->b, join);
    l_at(e, join);
}

/* Streamed stores are not ordered with others: they must be seen by whoever sees this function
 * return. */
void stream_end(Emit *e)
{
    if (e->streamed)
        l_intrinsic(e, "llvm.x86.sse.sfence", NULL, 0, NULL, 0);
}

/*
 * CUDA's loads and stores of a tile: one access for a contiguous aligned tile, else one for each lane.
 *
 * A load need not ask whether the tile exists: the walks give a thread that has none the coordinates of some that do;
 * only where the kernel writes to what it reads, that one's owner may be at it. Then, and under an instruction's own
 * predicate, which guards against addresses that are not there, a load goes to a block of zeros instead, without a
 * branch. Stores do branch.
 *
 * Where nobody writes while the kernel runs, loads are marked so and become ld.global.nc.
 */
#include "jit/llvm/cuda/cuda.h"

static LV lane_of(Emit *e, LV vector, int lane)
{
    return LLVMBuildExtractElement(e->b, vector, LLVMConstInt(e->type[SC_I32], (unsigned)lane, 0), "");
}

/* A variable of the module in global memory: zeros to read, or a place to write what nobody wants. */
static LV global_bytes(Emit *e, const char *name, bool constant)
{
    LV g = LLVMGetNamedGlobal(e->module, name);
    if (g)
        return g;
    LLVMTypeRef type = LLVMArrayType2(e->type[SC_I64], MAX_LANES);
    g = LLVMAddGlobalInAddressSpace(e->module, type, name, CUDA_GLOBAL);
    LLVMSetInitializer(g, LLVMConstNull(type));
    LLVMSetLinkage(g, LLVMInternalLinkage);
    LLVMSetGlobalConstant(g, constant);
    LLVMSetAlignment(g, MOST_BYTES);
    return g;
}

static LV both(Emit *e, LV a, LV b) { return a && b ? LLVMBuildAnd(e->b, a, b, "") : a ? a : b; }

static LV or_zeros(Emit *e, LV ptr, LV pred) { return pred ? LLVMBuildSelect(e->b, pred, ptr, global_bytes(e, "zeros", true), "") : ptr; }

static LV plain_load(Emit *e, LLVMTypeRef type, LV ptr, unsigned align, bool constant)
{
    LV v = l_load(e, type, ptr, align);
    if (constant)
        LLVMSetMetadata(v, LLVMGetMDKindIDInContext(e->ctx, "invariant.load", 14), LLVMMDNodeInContext(e->ctx, NULL, 0));
    return v;
}

/* LLVM 19 crashes on eight constant f32 that become f64: such vectors are put together from parts of 16 bytes. */
static LV marked_load(Emit *e, LLVMTypeRef type, LV ptr, unsigned align, bool constant)
{
    enum { MOST = 4, MOST_ALIGN = 16 };
    bool large = LLVMGetTypeKind(type) == LLVMVectorTypeKind && LLVMGetVectorSize(type) > MOST &&
                 LLVMGetTypeKind(LLVMGetElementType(type)) == LLVMFloatTypeKind;
    if (!constant || !large)
        return plain_load(e, type, ptr, align, constant);
    LLVMTypeRef four = LLVMVectorType(LLVMGetElementType(type), MOST);
    LV all = LLVMGetPoison(type);
    for (unsigned i = 0; i < LLVMGetVectorSize(type); i += MOST) {
        LV at = l_gep_bytes(e, ptr, l_i64(e, (int64_t)(sizeof(float) * i)));
        LV part = plain_load(e, four, at, align < MOST_ALIGN ? align : MOST_ALIGN, true);
        for (unsigned j = 0; j < MOST; j++)
            all = LLVMBuildInsertElement(e->b, all, lane_of(e, part, (int)j), LLVMConstInt(e->type[SC_I32], i + j, 0), "");
    }
    return all;
}

static LV lane_pointer(Emit *e, LLVMTypeRef element, Address at, int lane)
{
    if (at.many)
        return lane_of(e, at.ptr, lane);
    if (!at.stride)
        return at.ptr;
    LV n = LLVMConstInt(LLVMTypeOf(at.stride), (unsigned)lane, 0);
    return l_gep(e, element, at.ptr, l_mul(e, at.stride, n));
}

LV cuda_load_row(Emit *e, LLVMTypeRef element, Address at, int lane)
{
    return marked_load(e, l_vec(e, element), lane_pointer(e, element, at, lane), at.align, at.constant);
}

static bool is_contiguous(Address at)
{
    int64_t stride;
    return !at.many && l_is_const(at.stride, &stride) && stride == 1;
}

Val load_cuda(Emit *e, DType dtype, Address at, const Val *pred)
{
    LLVMTypeRef element = l_memory(e, dtype);
    unsigned bytes = (unsigned)dtype_bytes(dtype);
    bool by_lane = pred && pred->vec && e->lanes > 1;
    LV own = at.constant || e->standing ? NULL : e->inside, where = by_lane || !pred ? own : both(e, own, pred->v);
    if (e->lanes == 1 || (!at.many && !at.stride && !by_lane)) {
        LV v = marked_load(e, element, or_zeros(e, at.ptr, where), bytes, at.constant);
        return (Val){.v = l_from_memory(e, dtype, v)};
    }
    LV v;
    if (is_contiguous(at) && at.align && !by_lane) {
        v = marked_load(e, l_vec(e, element), or_zeros(e, at.ptr, where), at.align, at.constant);
    } else {
        v = LLVMGetPoison(l_vec(e, element));
        for (int l = 0; l < e->lanes; l++) {
            LV p = by_lane ? both(e, own, lane_of(e, pred->v, l)) : where;
            LV x = marked_load(e, element, or_zeros(e, lane_pointer(e, element, at, l), p), bytes, at.constant);
            v = LLVMBuildInsertElement(e->b, v, x, LLVMConstInt(e->type[SC_I32], (unsigned)l, 0), "");
        }
    }
    return (Val){.v = l_from_memory(e, dtype, v), .vec = true};
}

/* A vector of bytes as one of words: LLVM stores the former four bytes at a time. */
static LV as_words(Emit *e, LV v)
{
    unsigned n = LLVMGetVectorSize(LLVMTypeOf(v)) / 4;
    LLVMTypeRef i32t = e->type[SC_I32];
    if (n < 2 || LLVMGetElementType(LLVMTypeOf(v)) != e->type[SC_I8])
        return v;
    LV words = LLVMGetPoison(LLVMVectorType(i32t, n));
    for (unsigned i = 0; i < n; i++) {
        LV word = NULL;
        for (unsigned j = 0; j < 4; j++) {
            LV byte = LLVMBuildZExt(e->b, lane_of(e, v, (int)(4 * i + j)), i32t, "");
            byte = LLVMBuildShl(e->b, byte, LLVMConstInt(i32t, 8 * j, 0), "");
            word = word ? LLVMBuildOr(e->b, word, byte, "") : byte;
        }
        words = LLVMBuildInsertElement(e->b, words, word, LLVMConstInt(i32t, i, 0), "");
    }
    return words;
}

void store_cuda(Emit *e, DType dtype, Address at, Val x, const Val *pred)
{
    LLVMTypeRef element = l_memory(e, dtype);
    unsigned bytes = (unsigned)dtype_bytes(dtype);
    bool by_lane = pred && pred->vec && e->lanes > 1, uniform = e->lanes == 1 || (!at.many && !at.stride && !x.vec && !by_lane);
    LV mask = uniform ? NULL : e->mask, where = both(e, e->inside, by_lane || !pred ? NULL : pred->v);
    LV v = l_to_memory(e, dtype, uniform ? x.v : val_vector(e, x));
    if (by_lane)
        mask = both(e, mask, pred->v);
    If all = {0};
    if (where)
        all = if_begin(e, where, "store");
    if (uniform) {
        l_store(e, v, at.ptr, bytes);
    } else if (is_contiguous(at) && at.align && !mask) {
        l_store(e, as_words(e, v), at.ptr, at.align);
    } else {
        for (int l = 0; l < e->lanes; l++) {
            LV p = lane_pointer(e, element, at, l), lane = lane_of(e, v, l);
            If one = {0};
            if (mask)
                one = if_begin(e, lane_of(e, mask, l), "store_lane");
            l_store(e, lane, p, bytes);
            if (mask)
                if_end(e, &one);
        }
    }
    if (where)
        if_end(e, &all);
}

/* Any thread may write, each its own number: hence volatile, which is no race in the memory model. */
static void tell(Emit *e, LV id, LV to) { LLVMSetVolatile(l_store(e, id, to, 8), true); }

void fault_cuda(Emit *e, LV bad, LV to, LV id)
{
    if (e->standing) {
        tell(e, id, LLVMBuildSelect(e->b, bad, to, global_bytes(e, "nowhere", false), ""));
        return;
    }
    If i = if_begin(e, both(e, bad, e->inside), "fault"); /* outside of its points a thread may have a zero for an index */
    tell(e, id, to);
    if_end(e, &i);
}

/*
 * Thin helpers over the LLVM builder: types, constants, folding integer arithmetic, loops, and the
 * levels of build.h.
 *
 * The folding is not for beauty: sizes known at compile time must stay LLVM constants, because
 * later code asks (l_is_const) whether a tail or a second block can exist at all.
 */
#include "jit/llvm/build.h"

#include <string.h>

/* ---- types and constants ---- */

LLVMTypeRef l_vec(const Emit *e, LLVMTypeRef element) { return e->lanes == 1 ? element : LLVMVectorType(element, (unsigned)e->lanes); }

LLVMTypeRef l_type(const Emit *e, DType dtype, bool vec)
{
    LLVMTypeRef t = e->type[dtype_info[dtype].scalar];
    return vec ? l_vec(e, t) : t;
}

LLVMTypeRef l_memory(const Emit *e, DType dtype) { return e->type[dtype == DT_BOOL ? SC_I8 : dtype_info[dtype].scalar]; }

LV l_i64(const Emit *e, int64_t value) { return LLVMConstInt(e->type[SC_I64], (uint64_t)value, 1); }

/* A constant of a scalar type from its bits; a NaN keeps its payload. */
LV l_const(const Emit *e, SType type, uint64_t bits, bool vec)
{
    LV c;
    if (type == SC_F32)
        c = LLVMConstBitCast(LLVMConstInt(e->type[SC_I32], bits & 0xffffffffu, 0), e->type[SC_F32]);
    else if (type == SC_F64)
        c = LLVMConstBitCast(LLVMConstInt(e->type[SC_I64], bits, 0), e->type[SC_F64]);
    else
        c = LLVMConstInt(e->type[type], type == SC_I1 ? bits & 1 : bits, 0);
    if (!vec || e->lanes == 1)
        return c;
    LV all[MAX_LANES];
    for (int i = 0; i < e->lanes; i++)
        all[i] = c;
    return LLVMConstVector(all, (unsigned)e->lanes);
}

bool l_is_const(LV v, int64_t *value)
{
    if (!v || !LLVMIsAConstantInt(v))
        return false;
    *value = LLVMConstIntGetSExtValue(v);
    return true;
}

/* ---- vectors ---- */

LV l_splat_n(Emit *e, LV scalar, unsigned n)
{
    if (n == 1)
        return scalar;
    LLVMTypeRef vector = LLVMVectorType(LLVMTypeOf(scalar), n);
    if (LLVMIsConstant(scalar)) {
        LV all[MAX_LANES];
        for (unsigned i = 0; i < n; i++)
            all[i] = scalar;
        return LLVMConstVector(all, n);
    }
    LV one = LLVMBuildInsertElement(e->b, LLVMGetPoison(vector), scalar, LLVMConstNull(e->type[SC_I32]), "");
    return LLVMBuildShuffleVector(e->b, one, LLVMGetPoison(vector), LLVMConstNull(LLVMVectorType(e->type[SC_I32], n)), "");
}

LV l_splat(Emit *e, LV scalar) { return l_splat_n(e, scalar, (unsigned)e->lanes); }

LV l_iota(Emit *e, LLVMTypeRef element)
{
    LV all[MAX_LANES];
    for (int i = 0; i < e->lanes; i++)
        all[i] = LLVMConstInt(element, (unsigned)i, 0);
    return e->lanes == 1 ? all[0] : LLVMConstVector(all, (unsigned)e->lanes);
}

/*
 * Rows that end with a tile of one element: a number that LLVM does not know. From a mask of one lane that it knows LLVM 19 makes scalar code of
 * whatever the lane needs, and of a float's comparison for equality that two selects there use an and of two conditions that no AVX-512 instruction
 * takes: it gives up (the norm of [257, 129] along axis 0).
 */
LV l_unknown_one(Emit *e, LV count)
{
    int64_t n;
    if (!l_is_const(count, &n) || n != 1 || e->target->scalar_lanes)
        return count;
    LV place = l_alloca(e, e->type[SC_I64], 8, "one");
    l_store(e, count, place, 8);
    LV one = l_load(e, e->type[SC_I64], place, 8);
    LLVMSetVolatile(one, 1);
    return one;
}

LV l_lane_mask(Emit *e, LV count)
{
    count = l_unknown_one(e, count);
    LV n = LLVMBuildTrunc(e->b, l_min(e, count, l_i64(e, e->lanes)), e->type[SC_I32], "");
    return LLVMBuildICmp(e->b, LLVMIntULT, l_iota(e, e->type[SC_I32]), l_splat(e, n), "");
}

LV l_reverse(Emit *e, LV v)
{
    if (e->lanes == 1)
        return v;
    LV all[MAX_LANES];
    for (int i = 0; i < e->lanes; i++)
        all[i] = LLVMConstInt(e->type[SC_I32], (unsigned)(e->lanes - 1 - i), 0);
    return LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(all, (unsigned)e->lanes), "");
}

LV l_part(Emit *e, LV v, int from, int n)
{
    LV at[MAX_LANES];
    int all = (int)LLVMGetVectorSize(LLVMTypeOf(v));
    for (int i = from; i < from + n; i++)
        at[i - from] = i >= 0 && i < all ? LLVMConstInt(e->type[SC_I32], (unsigned)i, 0) : LLVMGetPoison(e->type[SC_I32]);
    return n == all ? v : LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(at, (unsigned)n), "");
}

LV l_join(Emit *e, LV *parts, unsigned n)
{
    unsigned all = n * LLVMGetVectorSize(LLVMTypeOf(parts[0]));
    LV at[MAX_LANES];
    for (; n > 1; n = (n + 1) / 2)
        for (unsigned i = 0; i < n; i += 2) {
            LLVMTypeRef type = LLVMTypeOf(parts[i]);
            unsigned lanes = 2 * LLVMGetVectorSize(type);
            for (unsigned l = 0; l < lanes; l++)
                at[l] = LLVMConstInt(e->type[SC_I32], l, 0);
            parts[i / 2] =
                LLVMBuildShuffleVector(e->b, parts[i], i + 1 < n ? parts[i + 1] : LLVMGetPoison(type), LLVMConstVector(at, lanes), "");
        }
    return l_part(e, parts[0], 0, (int)all);
}

LV l_in_turns(Emit *e, LV low, LV high)
{
    LV at[2 * MAX_LANES];
    unsigned n = LLVMGetVectorSize(LLVMTypeOf(low));
    for (unsigned i = 0; i < 2 * n; i++)
        at[i] = LLVMConstInt(e->type[SC_I32], i / 2 + i % 2 * n, 0);
    return LLVMBuildShuffleVector(e->b, low, high, LLVMConstVector(at, 2 * n), "");
}

/* Of v: are some of these bits set?, which is asked of each lane, the same of vectors or'ed together; else v. */
static LV bits_in_one(Emit *e, LV v)
{
    enum { REGISTER = 256 }; /* narrower ones LLVM puts together itself */
    LV bits = LLVMIsAICmpInst(v) && LLVMGetICmpPredicate(v) == LLVMIntNE && LLVMIsNull(LLVMGetOperand(v, 1)) ? LLVMGetOperand(v, 0) : NULL;
    if (!bits || !LLVMIsABinaryOperator(bits) || LLVMGetInstructionOpcode(bits) != LLVMAnd || !LLVMIsConstant(LLVMGetOperand(bits, 1)))
        return v;
    LV x = LLVMGetOperand(bits, 0), bit = LLVMGetAggregateElement(LLVMGetOperand(bits, 1), 0);
    unsigned n = LLVMGetVectorSize(LLVMTypeOf(x)), most = REGISTER / LLVMGetIntTypeWidth(LLVMTypeOf(bit));
    for (unsigned i = 1; i < n; i++)
        if (LLVMGetAggregateElement(LLVMGetOperand(bits, 1), i) != bit)
            return v;
    for (; n > most && n % 2 == 0; n /= 2) /* rows of three, side by side, may be odd */
        x = LLVMBuildOr(e->b, l_part(e, x, 0, (int)n / 2), l_part(e, x, (int)n / 2, (int)n / 2), "");
    x = LLVMBuildAnd(e->b, x, l_splat_n(e, bit, n), "");
    return LLVMBuildICmp(e->b, LLVMIntNE, x, LLVMConstNull(LLVMTypeOf(x)), "");
}

LV l_any(Emit *e, Val v)
{
    if (!v.vec || e->lanes == 1)
        return v.v;
    if (e->target->scalar_lanes) {
        LV any = NULL;
        for (int i = 0; i < e->lanes; i++) {
            LV one = LLVMBuildExtractElement(e->b, v.v, LLVMConstInt(e->type[SC_I32], (unsigned)i, 0), "");
            any = any ? LLVMBuildOr(e->b, any, one, "") : one;
        }
        return any;
    }
    LV any = e->bits < 512 ? bits_in_one(e, v.v) : v.v; /* there each vector has its mask */
    LLVMTypeRef bits = LLVMIntTypeInContext(e->ctx, LLVMGetVectorSize(LLVMTypeOf(any)));
    return LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildBitCast(e->b, any, bits, ""), LLVMConstNull(bits), "");
}

/* ---- i64 arithmetic ---- */

static bool is(LV v, int64_t value)
{
    int64_t c;
    return l_is_const(v, &c) && c == value;
}

LV l_add(Emit *e, LV a, LV b) { return is(b, 0) ? a : is(a, 0) ? b : LLVMBuildAdd(e->b, a, b, ""); }
LV l_sub(Emit *e, LV a, LV b) { return is(b, 0) ? a : LLVMBuildSub(e->b, a, b, ""); }
LV l_mul(Emit *e, LV a, LV b) { return is(b, 1) || is(a, 0) ? a : is(a, 1) || is(b, 0) ? b : LLVMBuildMul(e->b, a, b, ""); }
LV l_div(Emit *e, LV a, LV b) { return is(b, 1) ? a : LLVMBuildUDiv(e->b, a, b, ""); }

LV l_mod(Emit *e, LV a, LV b)
{
    int64_t c;
    if (l_is_const(b, &c)) {
        if (c == 1)
            return LLVMConstNull(LLVMTypeOf(b));
        if (c > 0 && (c & (c - 1)) == 0)
            return LLVMBuildAnd(e->b, a, LLVMConstInt(LLVMTypeOf(b), (uint64_t)c - 1, 0), "");
    }
    return l_sub(e, a, l_mul(e, l_div(e, a, b), b)); /* shares the division with l_div of the same operands */
}

/* select that folds constant conditions */
static LV l_choose(Emit *e, LV condition, LV a, LV b)
{
    int64_t c;
    if (l_is_const(condition, &c))
        return c ? a : b;
    return LLVMBuildSelect(e->b, condition, a, b, "");
}

LV l_min(Emit *e, LV a, LV b) { return l_choose(e, LLVMBuildICmp(e->b, LLVMIntSLT, a, b, ""), a, b); }

LV l_max(Emit *e, LV a, LV b) { return l_choose(e, LLVMBuildICmp(e->b, LLVMIntSGT, a, b, ""), a, b); }

LV l_ceil_div(Emit *e, LV a, LV b) { return l_div(e, l_add(e, a, l_sub(e, b, l_i64(e, 1))), b); }

LV l_align64(Emit *e, LV bytes) { return LLVMBuildAnd(e->b, l_add(e, bytes, l_i64(e, 63)), l_i64(e, -64), ""); }

/* ---- memory ---- */

LV l_gep(Emit *e, LLVMTypeRef element, LV ptr, LV index)
{
    if (is(index, 0))
        return ptr;
    return LLVMBuildGEP2(e->b, element, ptr, &index, 1, "");
}

LV l_gep_bytes(Emit *e, LV ptr, LV bytes) { return l_gep(e, e->type[SC_I8], ptr, bytes); }

LV l_intrinsic(Emit *e, const char *name, LLVMTypeRef *types, unsigned n_types, LV *args, unsigned n_args)
{
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    LV fn = LLVMGetIntrinsicDeclaration(e->module, id, types, n_types);
    LLVMTypeRef type = LLVMIntrinsicGetType(e->ctx, id, types, n_types);
    return LLVMBuildCall2(e->b, type, fn, args, n_args, "");
}

/* Room on the stack for the whole function, whatever the place it is asked for at. */
LV l_alloca(Emit *e, LLVMTypeRef type, unsigned align, const char *name)
{
    LLVMBasicBlockRef block = LLVMGetInsertBlock(e->b);
    LLVMPositionBuilderBefore(e->b, e->entry_end);
    LV at = LLVMBuildAlloca(e->b, type, name);
    if (align)
        LLVMSetAlignment(at, align);
    if (e->standing)
        LLVMPositionBuilderBefore(e->b, e->standing);
    else
        LLVMPositionBuilderAtEnd(e->b, block);
    return at;
}

LV l_load(Emit *e, LLVMTypeRef type, LV ptr, unsigned align)
{
    LV v = LLVMBuildLoad2(e->b, type, ptr, "");
    if (align)
        LLVMSetAlignment(v, align);
    return v;
}

LV l_store(Emit *e, LV value, LV ptr, unsigned align)
{
    LV s = LLVMBuildStore(e->b, value, ptr);
    if (align)
        LLVMSetAlignment(s, align);
    return s;
}

/* The type of v with its elements replaced. */
static LLVMTypeRef like(LV v, LLVMTypeRef element)
{
    LLVMTypeRef t = LLVMTypeOf(v);
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMVectorType(element, LLVMGetVectorSize(t)) : element;
}

LV l_to_memory(Emit *e, DType dtype, LV v) { return dtype == DT_BOOL ? LLVMBuildZExt(e->b, v, like(v, e->type[SC_I8]), "") : v; }

LV l_from_memory(Emit *e, DType dtype, LV v)
{
    return dtype == DT_BOOL ? LLVMBuildICmp(e->b, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
}

/* ---- control flow ---- */

LLVMBasicBlockRef l_block(Emit *e, const char *name) { return LLVMAppendBasicBlockInContext(e->ctx, e->fn, name); }

void l_at(Emit *e, LLVMBasicBlockRef block)
{
    LLVMPositionBuilderAtEnd(e->b, block);
    e->standing = NULL;
}

/* One step, as all that is known says. */
static bool is_single(LV start, LV end, LV step)
{
    int64_t from, to, by;
    return l_is_const(start, &from) && l_is_const(end, &to) && l_is_const(step, &by) && from < to && to - from <= by;
}

Loop loop_begin(Emit *e, LV start, LV end, LV step, const char *name)
{
    Loop l = {.end = end, .step = step};
    LLVMBasicBlockRef pre = LLVMGetInsertBlock(e->b);
    if (is_single(start, end, step)) {
        l.exit = l_block(e, name);
        l.guard = LLVMBuildBr(e->b, l.exit);
        l.iv = start;
        l_at(e, l.exit);
        return l;
    }
    l.body = l_block(e, name);
    l.exit = l_block(e, "");
    l.guard = LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, start, end, ""), l.body, l.exit);
    l_at(e, l.body);
    l.iv = LLVMBuildPhi(e->b, e->type[SC_I64], "i");
    LLVMAddIncoming(l.iv, &start, &pre, 1);
    return l;
}

void loop_end(Emit *e, const Loop *l)
{
    if (!l->body)
        return;
    LV next = LLVMBuildAdd(e->b, l->iv, l->step, "");
    LLVMBasicBlockRef latch = LLVMGetInsertBlock(e->b);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next, l->end, ""), l->body, l->exit);
    LLVMAddIncoming(l->iv, &next, &latch, 1);
    l_at(e, l->exit);
}

If if_begin(Emit *e, LV condition, const char *name)
{
    If i;
    LLVMBasicBlockRef body = l_block(e, name);
    i.exit = l_block(e, "");
    i.branch = LLVMBuildCondBr(e->b, condition, body, i.exit);
    l_at(e, body);
    return i;
}

void if_end(Emit *e, const If *i)
{
    LLVMBuildBr(e->b, i->exit);
    l_at(e, i->exit);
}

void l_unlikely(Emit *e, LV branch)
{
    LV weights[] = {LLVMMDStringInContext(e->ctx, "branch_weights", 14), LLVMConstInt(e->type[SC_I32], 1, 0),
                    LLVMConstInt(e->type[SC_I32], 1 << 20, 0)};
    LLVMSetMetadata(branch, LLVMGetMDKindIDInContext(e->ctx, "prof", 4), LLVMMDNodeInContext(e->ctx, weights, 3));
}

void l_attribute(Emit *e, LV fn, const char *name)
{
    unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
    LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->ctx, kind, 0));
}

/* ---- levels ---- */

void level_open(Emit *e, int level)
{
    for (int l = level; l < LV_COUNT; l++)
        e->scope[l] = ++e->scopes;
    e->cur = level;
}

void level_close(Emit *e, int level, int outer)
{
    for (int l = level; l < LV_COUNT; l++)
        e->scope[l] = ++e->scopes;
    e->cur = outer;
}

Place level_enter(Emit *e, int level)
{
    Place p = {e->cur, LLVMGetInsertBlock(e->b), e->standing};
    if (level < e->cur) {
        e->cur = level;
        e->standing = e->before[level];
        LLVMPositionBuilderBefore(e->b, e->standing);
    }
    return p;
}

void level_leave(Emit *e, Place p)
{
    if (p.cur == e->cur)
        return;
    e->cur = p.cur;
    e->standing = p.standing;
    if (p.standing)
        LLVMPositionBuilderBefore(e->b, p.standing);
    else
        LLVMPositionBuilderAtEnd(e->b, p.block);
}

void function_open(Emit *e, LV fn, LV scratch)
{
    e->fn = fn;
    e->block = LLVMGetParam(fn, 0);
    e->scratch = scratch;
    LLVMBasicBlockRef entry = l_block(e, "entry"), start = l_block(e, "start");
    l_at(e, entry);
    e->entry_end = LLVMBuildBr(e->b, start);
    l_at(e, start);
    e->zeros = e->sink = e->stage_in = e->stage_out = (StackPlace){0};
    e->mask = e->whole = e->left = e->points[0] = e->points[1] = e->inside = NULL;
    e->streamed = false;
    e->flat = NULL;
    memset(e->axis, 0, sizeof e->axis);
    level_open(e, LV_TASK);
}

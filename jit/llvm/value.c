/*
 * Body instructions to values, on demand, each at the outermost level that knows its operands (see
 * build.h).
 *
 * Folds carry state through the r loop: their result is set by reduce.c after the loop of its stage (in the
 * phases of a split kernel it is read back from the shared scratch); the value of a running one is stepped where it is
 * first asked for in the loop's body: once a step, since lanes never run along r there.
 */
#include "jit/llvm/build.h"

static LV read_argument(Emit *e, LV block, uint32_t arg)
{
    const KArg *a = &e->k->args.at[arg];
    LV slot = l_gep(e, e->type[SC_I64], block, l_i64(e, arg));
    switch ((ArgKind)a->kind) {
    case ARG_BUFFER:
    case ARG_SCRATCH:
    case ARG_SPANS:
    case ARG_FAULT: return l_load(e, e->ptr, slot, 8);
    case ARG_SIZE: return l_load(e, e->type[SC_I64], slot, 8);
    case ARG_SCALAR: /* little endian: the low bytes of the slot are the value */
        return l_from_memory(e, (DType)a->dtype, l_load(e, l_memory(e, (DType)a->dtype), slot, 8));
    }
    return NULL;
}

LV argument(Emit *e, uint32_t arg)
{
    struct ArgMemo *memo = &e->arg[arg];
    if (memo->scope && memo->scope == e->scope[LV_TASK])
        return memo->v;
    Place place = level_enter(e, LV_TASK);
    memo->v = read_argument(e, e->block, arg);
    level_leave(e, place);
    memo->scope = e->scope[LV_TASK];
    return memo->v;
}

static struct ValMemo *memo_of(const Emit *e, VRef v) { return e->level[v] >= e->inner ? &e->inner_val[v] : &e->val[v]; }

void value_set(Emit *e, VRef v, int level, Val val)
{
    if (!e->k->inst.at[v].unrounded)
        val.wide = NULL;
    *memo_of(e, v) = (struct ValMemo){.val = val, .scope = e->scope[level], .level = (uint8_t)level};
}

void value_forget(Emit *e, VRef v) { memo_of(e, v)->scope = 0; }

static bool remembered(const Emit *e, VRef v)
{
    const struct ValMemo *memo = memo_of(e, v);
    return memo->scope && memo->scope == e->scope[memo->level];
}

/* What a coordinate's absolute value is at most, as far as constants say; else SMALL. */
static const uint64_t SMALL = UINT64_C(1) << 60;

static uint64_t at_most(const Kernel *k, IRef i)
{
    const Idx *x = &k->idx.at[i];
    int64_t n;
    uint64_t a, b;
    switch ((IdxKind)x->kind) {
    case IX_CONST: return x->value > -(int64_t)SMALL && x->value < (int64_t)SMALL ? (uint64_t)(x->value < 0 ? -x->value : x->value) : SMALL;
    case IX_AXIS: return kidx_is_const(k, k->axes.at[x->a].size, &n) && n < INT32_MAX ? (uint64_t)n : SMALL;
    case IX_ADD:
    case IX_MUL:
        a = at_most(k, x->a), b = at_most(k, x->b);
        if (a > INT32_MAX || b > INT32_MAX)
            return SMALL;
        return x->kind == IX_ADD ? a + b : a * b;
    case IX_DIV:
    case IX_MOD:
    case IX_ARG:
    case IX_VALUE: break;
    }
    return SMALL;
}

/*
 * A coordinate that grows evenly from lane to lane, compared with a number: true in the first lanes alone, or false there. How many they are
 * is a scalar, held against the lanes' numbers, for which 32 bits do where coordinates have 64.
 */
static bool compare_lanes(Emit *e, const KInst *n, Val *out)
{
    bool below = n->op == OP_LT || n->op == OP_LE, after = n->op == OP_LE || n->op == OP_GT;
    int64_t by;
    if ((!below && n->op != OP_GE && n->op != OP_GT) || e->lanes == 1 || e->target->scalar_lanes)
        return false;
    const KInst *left = &e->k->inst.at[n->a], *right = &e->k->inst.at[n->b];
    if (left->kind != KI_INDEX || (right->kind != KI_INDEX && right->kind != KI_CONST) || e->k->inst_axes.at[n->b] ||
        index_through_value(e->k, left->idx) || (right->kind == KI_INDEX && index_through_value(e->k, right->idx)))
        return false;
    uint64_t most = right->kind == KI_INDEX ? at_most(e->k, right->idx) : right->imm < SMALL ? right->imm : UINT64_MAX;
    Ix at = index_of(e, left->idx);
    if (most > SMALL || at.many || !at.stride || !l_is_const(at.stride, &by) || by < 1)
        return false;
    LV count = l_sub(e, l_add(e, value(e, n->b).v, l_i64(e, after)), index_wide(e, at.base)), mask;
    if (by > 1)
        count = l_ceil_div(e, l_max(e, count, l_i64(e, 0)), l_i64(e, by));
    if (most < 1 << 30 && at_most(e->k, left->idx) < 1 << 30) /* it needs no more */
        mask =
            LLVMBuildICmp(e->b, LLVMIntSLT, l_iota(e, e->type[SC_I32]), l_splat(e, LLVMBuildTrunc(e->b, count, e->type[SC_I32], "")), "");
    else
        mask = l_lane_mask(e, l_max(e, count, l_i64(e, 0)));
    mask = below ? mask : LLVMBuildNot(e->b, mask, "");
    if (e->edges && e->mask) /* once for all that ask for it: loads see that it is there (cpu/tails.c) */
        mask = LLVMBuildAnd(e->b, mask, e->mask, "");
    *out = (Val){.v = mask, .vec = true};
    return true;
}

/*
 * A product with an exponential, some of which are subnormal wherever scores lie far apart. A few such products among others make AMD's
 * Zen 5 begin again what follows (softmax of scores up to +-1000 took 1.36 times the usual, bench/arguments), those of a fused
 * multiply-add do not. x y + -0 is x y, zeros and all.
 */
static bool may_be_subnormal(const Emit *e, const KInst *n)
{
    const KInst *all = e->k->inst.at, *a = &all[n->a], *b = &all[n->b];
    bool wide = n->dtype == DT_F32 || n->dtype == DT_F64;
    return n->op == OP_MUL && wide && !e->cuda && ((a->kind == KI_OP && a->op == OP_EXP) || (b->kind == KI_OP && b->op == OP_EXP));
}

static Val fused_product(Emit *e, DType dtype, const Val *in)
{
    SType type = (SType)dtype_info[dtype].scalar;
    bool vec = in[0].vec || in[1].vec;
    LV x = vec ? val_vector(e, in[0]) : in[0].v, y = vec ? val_vector(e, in[1]) : in[1].v;
    LLVMTypeRef form = LLVMTypeOf(x);
    return (Val){.v = l_intrinsic(e, "llvm.fma", &form, 1,
                                  (LV[]){x, y, l_const(e, type, type == SC_F64 ? UINT64_C(1) << 63 : UINT64_C(1) << 31, vec)}, 3),
                 .vec = vec};
}

/*
 * Is it a weight of a softmax in fast mode: an exponential of what is less than the greatest, which is only summed up and divided or multiplied? Their
 * sum is 1 at least, beside which those near the least normal number and below it are zeros, as the usual way of exp has them: vectors with a subnormal
 * take CPUs of Intel's forty times as long (softmax of f32 up to +-1000 took 1.8 times the usual, bench/arguments).
 */
static bool is_weight(const Emit *e, const KInst *n)
{
    const KInst *all = e->k->inst.at, *below = &all[n->a];
    bool weighs = !e->cuda && e->math == MATH_FAST && n->op == OP_EXP && (n->dtype == DT_F32 || n->dtype == DT_F64) &&
                  below->kind == KI_OP && below->op == OP_SUB && all[below->b].kind == KI_FOLD && all[below->b].op == FOLD_MAX;
    for (VRef v = 0; v < e->k->inst.n && weighs; v++) {
        VRef in[4];
        uint32_t count = kernel_operands(&all[v], in);
        for (uint32_t i = 0; i < count && weighs; i++)
            weighs = &all[in[i]] != n || (all[v].kind == KI_FOLD && all[v].op == FOLD_SUM) ||
                     (all[v].kind == KI_OP && (all[v].op == OP_MUL || all[v].op == OP_DIV));
    }
    return weighs;
}

static Val emit_op(Emit *e, const KInst *n)
{
    VRef side = piece_side(e, n);
    Val lanes;
    if (side != VREF_NONE)
        return value(e, side);
    if (compare_lanes(e, n, &lanes))
        return lanes;
    VRef refs[3] = {n->a, n->b, n->c};
    DType types[3] = {0};
    Val in[3] = {{0}};
    int arity = op_info[n->op].arity;
    for (int i = 0; i < arity; i++) {
        types[i] = (DType)e->k->inst.at[refs[i]].dtype;
        in[i] = value(e, refs[i]);
    }
    bool vec = in[0].vec || in[1].vec || in[2].vec;
    for (int i = 0; i < arity && vec && !e->target->scalar_lanes; i++)
        if (!in[i].vec && !in[i].wide && !LLVMIsConstant(in[i].v))
            in[i] = (Val){.v = value_vector(e, refs[i]), .vec = true};
    if (n->op == OP_CAST) /* of a value that was just rounded: from what it was rounded from */
        return n->dtype == DT_F32 ? cast_emit(e, types[0], DT_F32, in[0]) : op_emit(e, OP_CAST, types, (DType)n->dtype, in);
    if (may_be_subnormal(e, n))
        return fused_product(e, (DType)n->dtype, in);
    e->usual = is_weight(e, n);
    Val result = op_emit(e, (Op)n->op, types, (DType)n->dtype, in);
    e->usual = false;
    return result;
}

/* Lanes along x and rows under one another: the hardware doesn't follow strides beyond a page, so
 * the line of a later row is fetched by address. */
static void fetch_later_row(Emit *e, const KInst *n)
{
    enum { ROWS_AHEAD = 8 };
    int64_t ahead = e->rows_ahead ? e->rows_ahead : ROWS_AHEAD;
    uint32_t r = e->n_x;
    if (!e->prefetch_rows || e->vec_r || e->lanes == 1 || e->rows_ahead < 0 || e->cur != LV_R || e->n_r != 1 || n->pred != VREF_NONE ||
        !kidx_uses_axis(e->k, n->idx, r) || index_through_value(e->k, n->idx))
        return;
    Ix here = e->axis[r];
    uint32_t scope = e->scope[LV_R];
    e->scope[LV_R] = ++e->scopes;
    Place place = level_enter(e, LV_TASK);
    LV rows = axis_size(e, r), by = LLVMIsConstant(rows) ? l_i64(e, ahead) : l_min(e, l_i64(e, ahead), l_div(e, rows, l_i64(e, 4)));
    level_leave(e, place);
    e->axis[r] = ix_uniform(l_add(e, here.base, by));
    prefetch_at(e, (DType)n->dtype, address_of(e, l_memory(e, (DType)n->dtype), argument(e, n->arg), n->idx), 0);
    e->axis[r] = here;
    e->scope[LV_R] = scope;
}

/* The tile of a load where an outer x axis is one further. */
static void fetch_behind(Emit *e, const KInst *n, uint32_t axis, Address (*address)(Emit *, LLVMTypeRef, LV, IRef))
{
    Ix here = e->axis[axis];
    uint32_t scope[LV_COUNT];
    memcpy(scope, e->scope, sizeof scope);
    for (int level = LV_ROW; level < LV_COUNT; level++)
        e->scope[level] = ++e->scopes;
    Place place = level_enter(e, LV_ROW);
    e->axis[axis] = ix_uniform(l_add(e, here.base, l_i64(e, 1)));
    level_leave(e, place);
    prefetch_at(e, (DType)n->dtype, address(e, l_memory(e, (DType)n->dtype), argument(e, n->arg), n->idx), 0);
    e->axis[axis] = here;
    memcpy(e->scope, scope, sizeof scope);
}

/* Is what a load reads of a row planned to stay in the caches from one stage to the next? */
static bool row_stays(const Emit *e, const KInst *n)
{
    enum { ROW_BYTES = 1 << 18 };
    double bytes = (double)dtype_bytes((DType)n->dtype);
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        bytes *= (double)kernel_extent(e->k, a);
    return bytes <= ROW_BYTES;
}

/*
 * Lanes along r, several stages over one row: the first waits for memory, the others compute from
 * the cache. So the second asks for the next row (softmax of 4096 x 4096: 11.4 ms without, 8.4
 * with).
 */
static void fetch_next_point(Emit *e, const KInst *n)
{
    uint32_t x = e->n_x - 1;
    if (!e->prefetch_rows || !e->vec_r || e->cur != LV_R || e->stage != 1 || e->split || !e->n_x || n->pred != VREF_NONE ||
        !kidx_uses_axis(e->k, n->idx, x) || index_through_value(e->k, n->idx) || !row_stays(e, n))
        return;
    fetch_behind(e, n, x, address_of);
}

/* What the stage before has read, and what lies ahead of it, is in the caches, so that no other stage asks (normalize of 4,000 rows of 272: 0.96 of
 * the time with AVX-512). */
static bool asked_before(Emit *e, const KInst *n)
{
    if (!e->asks || !e->vec_r || e->cur != LV_R || e->split || !row_stays(e, n))
        return false;
    uint32_t *first = &e->asks[n - e->k->inst.at];
    *first = *first ? *first : e->stage + 1;
    return *first != e->stage + 1;
}

/*
 * Elements taken from a line in whatever order: the hardware, which follows what comes one after another, does not see that the line of the next
 * row is next. So it is asked for, in that order.
 */
static void fetch_next_gathered(Emit *e, const KInst *n)
{
    enum { LINE_BYTES = 1 << 14 };
    const Schedule *s = &e->schedule;
    uint32_t row = e->n_x - 2;
    int64_t size;
    if (!e->prefetch_rows || e->n_r || e->n_x < 2 || e->tile_axis != (int)e->n_x - 1 || e->lanes == 1 || e->cur != LV_TILE || s->joined ||
        s->rows || n->pred != VREF_NONE || !kidx_uses_axis(e->k, n->idx, row))
        return;
    VRef v = index_gathers(e, n->idx);
    const KInst *bound = v == VREF_NONE ? NULL : &e->k->inst.at[v];
    if (!bound || bound->kind != KI_BOUND || !kidx_is_const(e->k, bound->idx, &size) ||
        size > LINE_BYTES / (int64_t)dtype_bytes((DType)n->dtype))
        return;
    fetch_behind(e, n, row, address_in_line);
}

/* Does each point of an axis begin where the one before ends, `size` elements after it? */
static bool follows(const Kernel *k, IRef i, uint32_t axis, IRef size)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_ADD)
        return follows(k, x->a, axis, size) || follows(k, x->b, axis, size);
    return index_is_row(k, i, axis, size);
}

/*
 * Rows that go backwards or lie apart, each read as it lies: the hardware, which follows what comes one after another, begins anew with each. So each
 * tile asks for that of the next row, where rows are some pages at most.
 */
static void fetch_next_row(Emit *e, const KInst *n)
{
    enum { LEAST_BYTES = 1 << 11, MOST_BYTES = 1 << 14 };
    const Schedule *s = &e->schedule;
    uint32_t row = e->n_x - 2;
    if (!e->prefetch_rows || e->n_r || e->n_x < 2 || e->tile_axis != (int)e->n_x - 1 || e->lanes == 1 || e->cur != LV_TILE || e->mask ||
        s->joined || s->rows || n->pred != VREF_NONE || index_through_value(e->k, n->idx))
        return;
    int64_t bytes = kernel_extent(e->k, row + 1) * (int64_t)dtype_bytes((DType)n->dtype);
    if (bytes < LEAST_BYTES || bytes > MOST_BYTES || index_walk(e->k, n->idx, row + 1) != INDEX_STEPS ||
        !kidx_uses_axis(e->k, n->idx, row) || follows(e->k, n->idx, row, e->k->axes.at[row + 1].size))
        return;
    fetch_behind(e, n, row, address_of);
}

/*
 * Few rows below a page, folded tile by tile: the tiles go through the same memory in turn, a line of each row at a time, which the hardware does not
 * follow, but for the second line of a pair. So each asks for that of the next point of the axis outside.
 */
static void fetch_next_block(Emit *e, const KInst *n)
{
    enum { PAIR = 128, PAGE = 1 << 12, MOST_BYTES = 1 << 14 };
    uint32_t row = e->n_x - 2;
    if (!e->prefetch_rows || !e->schedule.unroll || e->overlap || e->n_x < 2 || e->tile_axis != (int)e->n_x - 1 || e->cur != LV_R ||
        e->mask || n->pred != VREF_NONE || index_through_value(e->k, n->idx) || !kidx_uses_axis(e->k, n->idx, row))
        return;
    int64_t bytes = kernel_extent(e->k, row + 1) * (int64_t)dtype_bytes((DType)n->dtype);
    if (bytes <= PAIR || bytes >= PAGE || bytes * e->schedule.unroll > MOST_BYTES || index_walk(e->k, n->idx, row + 1) != INDEX_STEPS)
        return;
    fetch_behind(e, n, row, address_of);
}

/*
 * The hardware, which follows what is read line by line, ends with the page and begins with the next one when that is read. So the first lines of a
 * later page are asked for at the beginning of each.
 */
static void fetch_later_page(Emit *e, const KInst *n, Address at)
{
    enum { PAGE = 1 << 12, PAGES_AHEAD = 2, LINES = 2 };
    bool again = e->n_x; /* what all points of x read is in a cache */
    for (uint32_t a = 0; a < e->n_x && again; a++)
        again = kernel_extent(e->k, a) == 1 || !kidx_uses_axis(e->k, n->idx, a);
    if (again || e->schedule.prefetch != PREFETCH_PAGES || e->cur != (e->vec_r ? LV_R : LV_TILE) || n->pred != VREF_NONE ||
        !address_is_line(at))
        return;
    LV in_page = LLVMBuildAnd(e->b, LLVMBuildPtrToInt(e->b, at.ptr, e->type[SC_I64], ""), l_i64(e, PAGE - 1), "");
    int64_t bytes = e->lanes * (int64_t)dtype_bytes((DType)n->dtype);
    If begins = if_begin(e, LLVMBuildICmp(e->b, LLVMIntULT, in_page, l_i64(e, bytes), ""), "page");
    l_unlikely(e, begins.branch);
    l_prefetch(e, at.ptr, PAGES_AHEAD * PAGE, LINES * LINE);
    if_end(e, &begins);
}

/* An instruction's predicate, or NULL: it holds everywhere. */
static Val *predicate(Emit *e, const KInst *n, Val *pred)
{
    if (n->pred == VREF_NONE || piece_says(e, n->pred) == 1)
        return NULL;
    *pred = value(e, n->pred);
    return pred;
}

static Val emit_load(Emit *e, const KInst *n)
{
    const KArg *arg = &e->k->args.at[n->arg];
    DType dtype = (DType)n->dtype;
    Val pred, *p = predicate(e, n, &pred);
    if (p && piece_says(e, n->pred) == 0)
        return (Val){.v = l_const(e, (SType)dtype_info[dtype].scalar, 0, false)};
    Val repeated;
    if (load_repeated(e, (VRef)(n - e->k->inst.at), &repeated))
        return repeated;
    Address at = address_of(e, l_memory(e, dtype), argument(e, n->arg), n->idx);
    at.align = e->tile_align ? e->tile_align[n - e->k->inst.at] : 0;
    at.constant = !arg->written && !arg->may_alias;
    at.asked = asked_before(e, n);
    Val v = load_at(e, dtype, at, p);
    fetch_later_row(e, n);
    fetch_next_point(e, n);
    fetch_next_gathered(e, n);
    fetch_next_row(e, n);
    fetch_next_block(e, n);
    fetch_later_page(e, n, at);
    return v;
}

static LV not_below(Emit *e, LV x, LV sizes) { return LLVMBuildICmp(e->b, LLVMIntUGE, x, sizes, ""); }

/* In [0, size), where it is in [-size, size). */
static LV bound_from_end(Emit *e, LV x, LV sizes)
{
    LV negative = LLVMBuildICmp(e->b, LLVMIntSLT, x, LLVMConstNull(LLVMTypeOf(x)), "");
    return LLVMBuildSelect(e->b, negative, LLVMBuildAdd(e->b, x, sizes, ""), x, "");
}

static LV bound_clamp(Emit *e, LV x, LV sizes)
{
    LLVMTypeRef type = LLVMTypeOf(x);
    LV zero = LLVMConstNull(type), last = LLVMBuildAdd(e->b, sizes, LLVMConstAllOnes(type), "");
    x = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, x, last, ""), last, x, "");
    return LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, x, zero, ""), zero, x, "");
}

/* Lanes that are bad where they count. */
static LV bound_fault(Emit *e, const KInst *n, Val bad)
{
    if (n->pred != VREF_NONE) {
        Val pred = value(e, n->pred);
        if (pred.vec && !bad.vec)
            bad = (Val){.v = l_splat(e, bad.v), .vec = true};
        bad.v = LLVMBuildAnd(e->b, bad.v, bad.vec ? val_vector(e, pred) : pred.v, "");
    }
    if (bad.vec && e->mask)
        bad.v = live_select(e, bad.v, l_const(e, SC_I1, 0, true));
    return l_any(e, bad);
}

/* Reports an index out of range; the index in range that is used. */
static LV bound_checked(Emit *e, const KInst *n, Val i, LV sizes)
{
    LV x = bound_from_end(e, i.v, sizes), out = not_below(e, x, sizes);
    e->target->fault(e, bound_fault(e, n, (Val){.v = out, .vec = i.vec}), argument(e, n->arg), l_i64(e, (int64_t)n->imm));
    return bound_clamp(e, x, sizes);
}

/*
 * What is for negative indices and those out of range alone is behind a branch, which a place does not wait for (2^20 scattered values, Zen 4: 1200 ->
 * 810 us); code that is hoisted and threads of a GPU have none.
 */
static Val emit_bound(Emit *e, const KInst *n)
{
    Val i = value(e, n->a);
    LV size = index_uniform(e, n->idx), sizes = i.vec ? l_splat(e, size) : size;
    (void)argument(e, n->arg);
    if (n->pred != VREF_NONE)
        value(e, n->pred);
    if (e->standing || e->target->scalar_lanes)
        return (Val){.v = bound_checked(e, n, i, sizes), .vec = i.vec};
    LV other = not_below(e, i.v, sizes);
    LLVMBasicBlockRef from[2] = {LLVMGetInsertBlock(e->b), l_block(e, "not_below")}, join = l_block(e, "");
    l_unlikely(e, LLVMBuildCondBr(e->b, l_any(e, (Val){.v = other, .vec = i.vec}), from[1], join));
    l_at(e, from[1]);
    LV each[2] = {i.v, bound_checked(e, n, i, sizes)};
    from[1] = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, join);
    l_at(e, join);
    LV in = LLVMBuildPhi(e->b, LLVMTypeOf(i.v), "");
    LLVMAddIncoming(in, each, from, 2);
    return (Val){.v = in, .vec = i.vec};
}

static Val emit_scan(Emit *e, VRef ref)
{
    const KInst *n = &e->k->inst.at[ref];
    DType in = (DType)e->k->inst.at[n->a].dtype, acc = dtype_accumulator((DType)n->dtype);
    Val x = cast_emit(e, in, acc, value(e, n->a));
    LLVMTypeRef type = l_type(e, acc, true);
    Val run;
    if (e->target->scan && e->target->scan(e, ref, x, &run))
        return cast_emit(e, acc, (DType)n->dtype, run);
    run = (Val){.v = l_load(e, type, e->scan[ref], 0), .vec = true};
    run = op_emit(e, OP_ADD, (DType[]){acc, acc}, acc, (Val[]){run, x});
    l_store(e, val_vector(e, run), e->scan[ref], 0);
    return cast_emit(e, acc, (DType)n->dtype, run);
}

/* Is this instruction the same for all x points, if the carries are of which `same` says so? */
static bool same_everywhere(const Emit *e, VRef v)
{
    const Kernel *k = e->k;
    const KInst *x = &k->inst.at[v];
    uint32_t x_axes = (1u << e->n_x) - 1, n;
    VRef in[4];
    if (x->kind != KI_OP && x->kind != KI_SCALAR && x->kind != KI_CONST && x->kind != KI_INDEX && x->kind != KI_LOAD &&
        x->kind != KI_CARRY && x->kind != KI_NEXT)
        return false;
    bool same = x->idx == IREF_NONE || !(k->idx_axes.at[x->idx] & x_axes);
    n = kernel_operands(x, in);
    for (uint32_t i = 0; i < n; i++)
        same &= e->same[in[i]];
    return same;
}

/* A counter beside an array is one number for all lanes. */
static bool carried_once(Emit *e, VRef carry)
{
    const Kernel *k = e->k;
    if (e->same)
        return e->same[carry];
    e->same = ARENA_ARRAY(e->arena, bool, k->inst.n + 1);
    memset(e->same, true, k->inst.n);
    for (bool changed = true; changed;) {
        changed = false;
        for (VRef v = 0; v < k->inst.n; v++) {
            bool same = e->same[v] && same_everywhere(e, v);
            VRef first = k->inst.at[v].kind == KI_NEXT ? k->inst.at[v].a : v;
            changed |= same != e->same[v] || (first != v && !same && e->same[first]);
            e->same[v] = same;
            e->same[first] &= same; /* a carry is what it becomes */
        }
    }
    return e->same[carry];
}

static LLVMTypeRef carry_type(Emit *e, VRef carry)
{
    LLVMTypeRef one = l_memory(e, (DType)e->k->inst.at[carry].dtype);
    return carried_once(e, carry) ? one : l_vec(e, one);
}

/* What a KI_CARRY is now: e->scan has it, as it has running values. */
static Val carry_read(Emit *e, VRef carry)
{
    DType t = (DType)e->k->inst.at[carry].dtype;
    LV v = l_load(e, carry_type(e, carry), e->scan[carry], (unsigned)dtype_bytes(t));
    return (Val){.v = l_from_memory(e, t, v), .vec = !carried_once(e, carry)};
}

static void carry_write(Emit *e, VRef carry, VRef from)
{
    DType t = (DType)e->k->inst.at[carry].dtype;
    LV v = carried_once(e, carry) ? NULL : value_vector(e, from);
    if (!v) {
        Val one = value(e, from);
        v = one.vec && e->lanes > 1 ? LLVMBuildExtractElement(e->b, one.v, LLVMConstInt(e->type[SC_I32], 0, 0), "") : one.v;
    }
    l_store(e, l_to_memory(e, t, v), e->scan[carry], (unsigned)dtype_bytes(t));
}

void carries_open(Emit *e)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->k->inst.at[i].kind == KI_CARRY)
            e->scan[i] = l_alloca(e, carry_type(e, i), 0, "carry");
    carries_start(e);
}

void carries_start(Emit *e)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->k->inst.at[i].kind == KI_CARRY)
            carry_write(e, i, e->k->inst.at[i].a);
}

/* All are read before one is written: a carry may become what another one was. And what they become is made before the point stores anything, which
 * may lie where that is loaded from. */
void carries_read(Emit *e)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->k->inst.at[i].kind == KI_CARRY)
            value(e, i);
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->k->inst.at[i].kind == KI_NEXT)
            value(e, e->k->inst.at[i].b);
}

void carries_step(Emit *e)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->k->inst.at[i].kind == KI_NEXT)
            carry_write(e, e->k->inst.at[i].a, e->k->inst.at[i].b);
}

LV carries_go_on(Emit *e)
{
    VRef carry = kernel_ending(e->k);
    if (carry == VREF_NONE)
        return NULL;
    Val v = carry_read(e, carry);
    v.v = e->mask && v.vec ? LLVMBuildAnd(e->b, v.v, e->mask, "") : v.v;
    return l_any(e, v);
}

void carries_end(Emit *e, LV end)
{
    VRef carry = kernel_ending(e->k);
    LV on = LLVMBuildAnd(e->b, carry_read(e, carry).v, LLVMBuildNot(e->b, end, ""), "");
    l_store(e, l_to_memory(e, DT_BOOL, on), e->scan[carry], 1);
}

/* A row kept by an earlier stage: [lanes] elements a step where lanes run along x, else contiguous.
 * */
static Val emit_saved(Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    LLVMTypeRef element = l_memory(e, (DType)n->dtype);
    LV x = l_load(e, l_vec(e, element), row_place(e, v), (unsigned)dtype_bytes((DType)n->dtype));
    return (Val){.v = l_from_memory(e, (DType)n->dtype, x), .vec = true};
}

static Val emit_value(Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    if (piece_says(e, v) >= 0)
        return (Val){.v = l_const(e, SC_I1, (uint64_t)piece_says(e, v), false)};
    if (e->zero && *e->zero == v)
        return (Val){.v = l_const(e, (SType)dtype_info[n->dtype].scalar, 0, false)};
    switch ((InstKind)n->kind) {
    case KI_OP: return emit_op(e, n);
    case KI_SCALAR: return (Val){.v = e->scalars_anew ? read_argument(e, e->target->anew(e, e->block), n->arg) : argument(e, n->arg)};
    case KI_CONST: return (Val){.v = l_const(e, (SType)dtype_info[n->dtype].scalar, n->imm, false)};
    case KI_INDEX: {
        Ix ix = index_of(e, n->idx);
        bool vec = ix.many || (ix.stride && e->lanes > 1);
        return (Val){.v = index_wide(e, vec ? index_vector(e, ix) : ix.base), .vec = vec};
    }
    case KI_LOAD: return emit_load(e, n);
    case KI_FOLD: return inst_runs(n) ? emit_scan(e, v) : reduce_read(e, v);
    case KI_CARRY: return carry_read(e, v);
    case KI_NEXT: return carry_read(e, n->a); /* behind the loop */
    case KI_BOUND: return emit_bound(e, n);
    case KI_ATTEND:
    case KI_SORT:
    case KI_STORE:
    case KI_SCATTER: break;
    }
    return (Val){0};
}

/* Where it is computed: what follows from a tile's being inside is that tile's, though other tiles of its row may have it in common. */
static int level_of(const Emit *e, VRef v)
{
    return e->says && e->edges && e->edges->asks[v] && e->level[v] < LV_TILE ? LV_TILE : e->level[v];
}

Val value(Emit *e, VRef v)
{
    int level = level_of(e, v);
    Val r;
    if (remembered(e, v))
        return memo_of(e, v)->val;
    if (e->overlap && overlap_recall(e, v, &r)) {
        value_set(e, v, level, r);
        return r;
    }
    Place place = level_enter(e, level);
    bool kept = e->saved && e->saved[v] && e->info[v].stage < e->stage;
    r = kept ? emit_saved(e, v) : emit_value(e, v);
    value_set(e, v, level, r);
    if (e->overlap)
        overlap_keep(e, v, memo_of(e, v)->val);
    level_leave(e, place);
    return memo_of(e, v)->val;
}

LV val_vector(Emit *e, Val v) { return v.vec || e->lanes == 1 ? v.v : l_splat(e, v.v); }

LV value_vector(Emit *e, VRef v)
{
    Val x = value(e, v);
    if (x.vec || e->lanes == 1)
        return x.v;
    struct ValMemo *memo = memo_of(e, v);
    if (!memo->splat) {
        Place place = level_enter(e, memo->level);
        memo->splat = l_splat(e, x.v);
        level_leave(e, place);
    }
    return memo->splat;
}

/* i1: is output `arg` other storage than every input it may share one with? In place the line has
 * just been read, and streaming would gain nothing. */
static LV apart_from_inputs(Emit *e, uint32_t arg)
{
    LV apart = l_const(e, SC_I1, 1, false), out = argument(e, arg);
    for (uint32_t a = 0; e->k->args.at[arg].may_alias && a < e->k->args.n; a++) {
        const KArg *in = &e->k->args.at[a];
        if (in->kind == ARG_BUFFER && !in->written && in->may_alias)
            apart = LLVMBuildAnd(e->b, apart, LLVMBuildICmp(e->b, LLVMIntNE, out, argument(e, a), ""), "");
    }
    return apart;
}

/* i1, at LV_TASK: are there so many bytes in what is stored, at the sizes of this call? NULL: never. */
static LV is_large(Emit *e, VRef v, DType dtype, int64_t bytes)
{
    LV points = e->points[e->info[v].r_level];
    int64_t many = bytes / (int64_t)dtype_bytes(dtype), n;
    if (!points || (l_is_const(points, &n) && n < many) || e->k->args.at[e->k->inst.at[v].arg].band)
        return NULL;
    Place place = level_enter(e, LV_TASK);
    LV large = LLVMBuildICmp(e->b, LLVMIntSGE, points, l_i64(e, many), "");
    level_leave(e, place);
    return large;
}

/* Which bits of its address keep a store from going past the caches: those below a line where the output is large, else all of them. One
 * register for the whole loop. */
static LV bits_of_line(Emit *e, VRef v, LV large)
{
    Place place = level_enter(e, LV_TASK);
    LV streams = LLVMBuildAnd(e->b, large, apart_from_inputs(e, e->k->inst.at[v].arg), "");
    LV bits = LLVMBuildSelect(e->b, streams, l_i64(e, LINE - 1), l_i64(e, -1), "");
    level_leave(e, place);
    return bits;
}

void value_store(Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    Val pred, *p = predicate(e, n, &pred), x = value(e, n->a);
    DType dtype = (DType)e->k->inst.at[n->a].dtype;
    Address at = address_of(e, l_memory(e, dtype), argument(e, n->arg), n->idx);
    at.align = e->tile_align ? e->tile_align[v] : 0;
    bool asks = e->asks_to_store && e->cur == (e->vec_r ? LV_R : LV_TILE); /* what is stored next comes behind this */
    LV large = p ? NULL : is_large(e, v, dtype, asks ? ASK_BYTES : STREAM_BYTES);
    if (large && !asks) {
        stream_at(e, dtype, at, x, bits_of_line(e, v, large));
        return;
    }
    if (large)
        ask_at(e, dtype, at, large);
    store_at(e, dtype, at, x, p);
}

/* Which op combines an element with what is there; OP_COUNT: it replaces it. */
static Op scatter_step(ScatterMode mode)
{
    static const Op step[] = {[SCATTER_SET] = OP_COUNT, [SCATTER_ADD] = OP_ADD, [SCATTER_MAX] = OP_MAXIMUM, [SCATTER_MIN] = OP_MINIMUM};
    return step[mode];
}

/* Lanes are different x points, which never meet in one element: all lanes may go at once. */
void value_scatter(Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    Val pred, *p = predicate(e, n, &pred), x = value(e, n->a);
    DType dtype = (DType)e->k->inst.at[n->a].dtype;
    Address at = address_of(e, l_memory(e, dtype), argument(e, n->arg), n->idx);
    Op step = scatter_step((ScatterMode)n->mode);
    if (step != OP_COUNT)
        x = op_emit(e, step, (DType[]){dtype, dtype}, dtype, (Val[]){load_at(e, dtype, at, p), x});
    store_at(e, dtype, at, x, p);
}

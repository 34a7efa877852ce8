/*
 * Reductions, in the order that ir/orders.def says.
 *
 * An accumulator array of `slots` vectors, `lanes` elements each, stands for the 64 canonical
 * lanes:
 *
 *   lanes along r   element i of a block goes to canonical lane i % 64, which is element
 *                   i % lanes of slot (i % 64) / lanes. The tree halves one vector of 64. The
 *                   result is a scalar.
 *   lanes along x   each vector lane is an x point of its own and a slot is a canonical lane:
 *                   slot i % 64. The tree adds slots. A length known to be below 64 needs only
 *                   that many: the others would hold the start value, and x op start == x. The
 *                   result is a vector.
 *
 * Where the order does not show (integers, max, min, any, all) lanes along r do the same, which
 * shortens the chain of dependent steps; lanes along x, and arg, have one slot. Results of blocks
 * are added up in `total`.
 *
 * argmax and argmin carry the flat index beside the value. NaN beats everything; of equals the
 * first wins. A slot starts with the least value and its first index, so that a lane that never
 * sees anything greater still names its first element; lanes past the end start with indices past
 * the end and lose every tie against lane 0.
 *
 * One slot lives in registers (the scalar-replacement pass promotes it), and so do more where each
 * step names its slot (rounds); else they live on the stack or, when big, in scratch.
 */
#include "jit/launch_plan.h"
#include "jit/llvm/build.h"

enum { STACK_SLOTS = 1024 /* bytes of one accumulator array on the stack */ };

void reduce_plan(Emit *e)
{
    const Kernel *k = e->k;
    e->red = ARENA_ARRAY(e->arena, Reduction, k->inst.n + 1);
    for (uint32_t i = 0; i < k->inst.n; i++) {
        const KInst *n = &k->inst.at[i];
        if (e->nest.does[i].kind != STATEMENT_STEP)
            continue;
        Reduction *r = &e->red[e->n_red++];
        *r = (Reduction){.inst = i, .fold = n->op, .stage = e->nest.does[i].body};
        r->in = k->inst.at[n->a].dtype;
        r->arg = fold_has_place((Fold)r->fold);
        r->acc_type = (uint8_t)fold_state((Fold)r->fold, (DType)(r->arg ? r->in : n->dtype));
        r->ordered = n->order.kind == ORD_LANES;
    }
}

void reduce_place(Emit *e)
{
    e->scratch_bytes = 0;
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        NestFold how = nest_fold(&e->nest, &e->facts, r->inst);
        int64_t lanes = nest_stage_lanes(&e->schedule, r->stage);
        int64_t bytes = how.slots * lanes * (int64_t)dtype_bytes((DType)r->acc_type);
        r->slots = how.slots;
        r->extreme = how.extreme;
        r->scratch = -1;
        if (r->slots > 1 && bytes > STACK_SLOTS) {
            r->scratch = e->scratch_bytes;
            e->scratch_bytes += (bytes + 63) & -64;
        }
    }
}

bool stage_ordered(const Emit *e, uint32_t stage) { return nest_ordered(&e->nest, e->k, stage); }

/* ---- memory of slots and totals ---- */

LLVMTypeRef slot_type(Emit *e, DType t) { return l_vec(e, l_memory(e, t)); }

/* A total is a scalar where lanes run along r. */
static bool total_vec(const Emit *e) { return !e->vec_r && e->lanes > 1; }

static LLVMTypeRef total_type(Emit *e, DType t) { return total_vec(e) ? slot_type(e, t) : l_memory(e, t); }

static Val total_load(Emit *e, DType t, LV at)
{
    return (Val){.v = l_from_memory(e, t, l_load(e, total_type(e, t), at, 0)), .vec = total_vec(e)};
}

static void total_store(Emit *e, DType t, Val v, LV at) { l_store(e, l_to_memory(e, t, v.v), at, 0); }

/* What a reduction over nothing gives. */
static LV empty_value(Emit *e, const Reduction *r)
{
    DType t = (DType)r->acc_type;
    return l_const(e, (SType)dtype_info[t].scalar, fold_empty((Fold)r->fold, t), total_vec(e));
}

/* Is there nothing to fold? (i1) NULL: there is something, for sure. */
static LV folds_nothing(Emit *e)
{
    int64_t length;
    return l_is_const(e->flat_n, &length) && length > 0 ? NULL : LLVMBuildICmp(e->b, LLVMIntSLE, e->flat_n, l_i64(e, 0), "");
}

/* Is a total put together of blocks, so that it is there before the first one? Then it begins with what nothing gives, which that one replaces, and
 * nobody asks in the end. Not of columns, whose totals are elsewhere. */
static bool total_begins(const Emit *e, const Reduction *r)
{
    int64_t length;
    bool blocks = !l_is_const(e->flat_n, &length) || length > e->order.block;
    return !e->cuda && !e->split && !r->totals && !r->arg && blocks && stage_ordered(e, r->stage);
}

void reduce_open(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        DType t = (DType)r->acc_type;
        if (r->scratch >= 0)
            r->acc = l_gep_bytes(e, e->scratch, l_i64(e, r->scratch));
        else
            r->acc = l_alloca(e, r->slots == 1 ? slot_type(e, t) : LLVMArrayType2(slot_type(e, t), r->slots), 64, "acc");
        r->total = l_alloca(e, total_type(e, t), 0, "total");
        if (total_begins(e, r))
            total_store(e, t, (Val){.v = empty_value(e, r)}, r->total);
        if (r->extreme)
            extreme_open(e, r);
        if (r->arg) {
            r->acc_at = l_alloca(e, slot_type(e, DT_I64), 64, "acc_at");
            r->total_at = l_alloca(e, total_type(e, DT_I64), 0, "total_at");
        }
    }
}

static LV slot_at(Emit *e, const Reduction *r, LV slot)
{
    DType t = (DType)r->acc_type;
    return r->slots > 1 ? l_gep(e, slot_type(e, t), r->acc, slot) : l_gep(e, l_memory(e, t), r->acc, l_i64(e, e->part));
}

static LV place_at(Emit *e, const Reduction *r) { return l_gep(e, e->type[SC_I64], r->acc_at, l_i64(e, e->part)); }

static Val slot_load(Emit *e, const Reduction *r, LV slot)
{
    DType t = (DType)r->acc_type;
    LV v = l_load(e, slot_type(e, t), slot_at(e, r, slot), (unsigned)dtype_bytes(t));
    return (Val){.v = l_from_memory(e, t, v), .vec = true};
}

static void slot_store(Emit *e, const Reduction *r, LV slot, Val v)
{
    DType t = (DType)r->acc_type;
    l_store(e, l_to_memory(e, t, val_vector(e, v)), slot_at(e, r, slot), (unsigned)dtype_bytes(t));
}

/* ---- steps ---- */

/* One part of a state by the fold's own tape; a place is behind each value. */
static LV by_tape(Emit *e, const Reduction *r, FoldTape which, unsigned part, Part a, Part b, bool vec)
{
    const LV v[4] = {a.v, a.at, b.v, b.at};
    Val in[4];
    for (int i = 0; i < 4; i++)
        in[i] = (Val){.v = v[i], .vec = vec};
    return fold_emit(e, (Fold)r->fold, which, part, (DType)r->acc_type, in, 4).v;
}

/* Of a fold without places: the op that puts an element to a state is the one that puts two states together. */
static Val step(Emit *e, const Reduction *r, Val a, Val b)
{
    DType t = (DType)r->acc_type;
    return op_emit(e, (Op)fold_info[r->fold].step, (DType[]){t, t}, t, (Val[]){a, b});
}

/* Flat indices of this step's lanes. */
static LV step_index(Emit *e, LV flat) { return index_vector(e, (Ix){.base = flat, .stride = e->vec_r ? l_i64(e, 1) : NULL}); }

void reduce_block_begin(Emit *e, uint32_t stage, LV from)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        DType t = (DType)r->acc_type;
        uint64_t bits = fold_start((Fold)r->fold, t);
        Val start = {.v = l_const(e, (SType)dtype_info[t].scalar, bits, true), .vec = true};
        if (r->arg)
            l_store(e, step_index(e, from), r->acc_at, 0);
        if (r->extreme)
            extreme_begin(e, r);
        if (r->slots <= 4 || (e->target->scalar_lanes && r->slots <= 32)) {
            for (uint32_t s = 0; s < r->slots; s++)
                slot_store(e, r, l_i64(e, s), start);
            continue;
        }
        LV used = l_i64(e, r->slots); /* of lanes along x: a slot a point (tree_slots) */
        if (!e->vec_r && !e->cuda && r->slots == (uint32_t)e->order.lanes)
            used = l_max(e, l_min(e, used, e->flat_n), l_i64(e, 1));
        Loop l = loop_begin(e, l_i64(e, 0), used, l_i64(e, 1), "start_slots");
        slot_store(e, r, l.iv, start);
        loop_end(e, &l);
    }
}

static void arg_step(Emit *e, Reduction *r, Val x)
{
    Part old = {.v = slot_load(e, r, NULL).v, .at = l_load(e, slot_type(e, DT_I64), place_at(e, r), 8)};
    Part next = part_later(e, r, old, (Part){.v = val_vector(e, x), .at = step_index(e, e->flat)});
    if (e->partial) {
        next.v = LLVMBuildSelect(e->b, e->partial, next.v, old.v, "");
        next.at = LLVMBuildSelect(e->b, e->partial, next.at, old.at, "");
    } else if (e->mask && e->vec_r) {
        next.v = live_select(e, next.v, old.v);
        next.at = live_select(e, next.at, old.at);
    }
    slot_store(e, r, NULL, (Val){.v = next.v, .vec = true});
    l_store(e, next.at, place_at(e, r), 8);
}

/* The operand, as accumulators have it. */
static Val step_operand(Emit *e, const Reduction *r)
{
    Val x = value(e, e->k->inst.at[r->inst].a);
    if (r->arg)
        x.wide = NULL; /* which is the first of equals is asked of the rounded ones */
    return cast_emit(e, (DType)r->in, (DType)r->acc_type, x);
}

Part reduce_part(Emit *e, const Reduction *r)
{
    return (Part){.v = val_vector(e, step_operand(e, r)), .at = r->arg ? step_index(e, e->flat) : NULL};
}

void reduce_step_all(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage)
            value(e, e->k->inst.at[e->red[i].inst].a); /* loads first: no store to a slot in between */
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        Val x = step_operand(e, r);
        if (r->arg) {
            arg_step(e, r, x);
            continue;
        }
        LV slot = NULL;
        if (r->extreme) {
            slot_store(e, r, NULL, (Val){.v = extreme_step(e, r, slot_load(e, r, NULL).v, val_vector(e, x), NULL), .vec = true});
            continue;
        }
        if (r->slots > 1 && e->slot) {
            slot = e->slot;
        } else if (r->slots > 1) { /* blocks begin at multiples of 64, so the flat index gives the lane */
            slot = LLVMBuildAnd(e->b, e->flat, l_i64(e, e->order.lanes - 1), "");
            if (e->vec_r)
                slot = l_div(e, slot, l_i64(e, e->lanes));
        }
        if (slot && !r->ordered && e->vec_r && !e->schedule.columns) /* it may have fewer than the order's lanes would be */
            slot = l_mod(e, slot, l_i64(e, r->slots));
        Val old = slot_load(e, r, slot), next = step(e, r, old, x);
        LV v = val_vector(e, next);
        if (e->partial)
            v = LLVMBuildSelect(e->b, e->partial, v, val_vector(e, old), "");
        else if (e->mask && e->vec_r)
            v = live_select(e, v, old.v);
        slot_store(e, r, slot, (Val){.v = v, .vec = true});
    }
}

/* ---- trees ---- */

/* Half of a vector of n lanes; a scalar where one lane is left. */
static LV half(Emit *e, LV v, unsigned n, bool upper)
{
    unsigned h = n / 2;
    if (h == 1)
        return LLVMBuildExtractElement(e->b, v, LLVMConstInt(e->type[SC_I32], upper, 0), "");
    LV index[MAX_LANES];
    for (unsigned i = 0; i < h; i++)
        index[i] = LLVMConstInt(e->type[SC_I32], i + (upper ? h : 0), 0);
    return LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(index, h), "");
}

Part part_merge(Emit *e, const Reduction *r, Part a, Part b, bool vec)
{
    if (!r->arg)
        return (Part){.v = step(e, r, (Val){.v = a.v, .vec = vec}, (Val){.v = b.v, .vec = vec}).v};
    return (Part){.v = by_tape(e, r, FOLD_MERGE, 0, a, b, vec), .at = by_tape(e, r, FOLD_MERGE, 1, a, b, vec)};
}

Part part_later(Emit *e, const Reduction *r, Part a, Part b)
{
    return (Part){.v = by_tape(e, r, FOLD_STEP, 0, a, b, true), .at = by_tape(e, r, FOLD_STEP, 1, a, b, true)};
}

Part part_halve(Emit *e, const Reduction *r, Part a)
{
    int lanes = e->lanes;
    LLVMTypeRef type = LLVMTypeOf(a.v);
    unsigned n = LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMGetVectorSize(type) : 1;
    for (; n > 1; n /= 2) {
        e->lanes = (int)n / 2; /* tapes are emitted for this width */
        Part low = {.v = half(e, a.v, n, false)}, high = {.v = half(e, a.v, n, true)};
        if (r->arg)
            low.at = half(e, a.at, n, false), high.at = half(e, a.at, n, true);
        a = part_merge(e, r, low, high, true);
    }
    e->lanes = lanes;
    return a;
}

Part part_start(Emit *e, const Reduction *r, LV from, bool vec)
{
    DType t = (DType)r->acc_type;
    uint64_t bits = fold_start((Fold)r->fold, t);
    Part p = {.v = l_const(e, (SType)dtype_info[t].scalar, bits, vec)};
    if (r->arg)
        p.at = vec ? step_index(e, from) : from;
    return p;
}

/* lanes along r: all slots as one vector, halved down to a scalar */
static Val tree_lanes(Emit *e, const Reduction *r, LV *at)
{
    DType t = (DType)r->acc_type;
    if (r->extreme)
        return (Val){.v = extreme_result(e, r, slot_load(e, r, NULL).v)};
    unsigned n = (unsigned)e->lanes * r->slots;
    LLVMTypeRef all = n == 1 ? l_memory(e, t) : LLVMVectorType(l_memory(e, t), n);
    Part a = {.v = l_from_memory(e, t, l_load(e, all, r->acc, (unsigned)dtype_bytes(t)))};
    if (r->arg)
        a.at = l_load(e, slot_type(e, DT_I64), r->acc_at, 0);
    a = part_halve(e, r, a);
    *at = a.at;
    return (Val){.v = a.v};
}

static void add_slots(Emit *e, const Reduction *r, LV to, LV from)
{
    slot_store(e, r, to, step(e, r, slot_load(e, r, to), slot_load(e, r, from)));
}

/* lanes along x: slots added to slots; those at or past `length` hold the start value and are left
 * out */
static Val tree_slots(Emit *e, const Reduction *r, LV length, LV *at)
{
    if (r->arg)
        *at = l_load(e, slot_type(e, DT_I64), r->acc_at, 0);
    if (r->extreme)
        return (Val){.v = extreme_result(e, r, slot_load(e, r, NULL).v), .vec = true};
    LV used = r->slots < (uint32_t)e->order.lanes ? l_i64(e, r->slots) : length;
    for (uint32_t s = (uint32_t)e->order.lanes / 2; s && r->slots > 1; s /= 2) {
        LV end = l_min(e, l_i64(e, s), l_sub(e, used, l_i64(e, s)));
        int64_t known;
        if (l_is_const(end, &known) && known <= 2) {
            for (int64_t j = 0; j < known; j++)
                add_slots(e, r, l_i64(e, j), l_i64(e, j + s));
            continue;
        }
        Loop l = loop_begin(e, l_i64(e, 0), end, l_i64(e, 1), "tree");
        add_slots(e, r, l.iv, LLVMBuildAdd(e->b, l.iv, l_i64(e, s), ""));
        loop_end(e, &l);
    }
    return slot_load(e, r, l_i64(e, 0));
}

static void total_set(Emit *e, const Reduction *r, Val v, LV at)
{
    total_store(e, (DType)r->acc_type, v, r->total);
    if (r->arg)
        l_store(e, at, r->total_at, 0);
}

/* total = first ? v : total op v. By a branch: a row has few blocks, and a choice would wait for all of them. */
static void add_total(Emit *e, Reduction *r, LV first, Val v, LV at)
{
    DType t = (DType)r->acc_type;
    int64_t known = 0;
    v.vec = total_vec(e);
    if (l_is_const(first, &known) && known) {
        total_set(e, r, v, at);
        return;
    }
    LLVMBasicBlockRef next[2] = {l_block(e, "first"), l_block(e, "later")}, join = l_block(e, "");
    LLVMBuildCondBr(e->b, first, next[0], next[1]);
    l_at(e, next[0]);
    total_set(e, r, v, at);
    LLVMBuildBr(e->b, join);
    l_at(e, next[1]);
    Part old = {.v = total_load(e, t, r->total).v, .at = r->arg ? l_load(e, total_type(e, DT_I64), r->total_at, 0) : NULL};
    Part both = part_merge(e, r, old, (Part){.v = v.v, .at = at}, v.vec);
    v.v = both.v;
    total_set(e, r, v, both.at);
    LLVMBuildBr(e->b, join);
    l_at(e, join);
}

void reduce_block_end(Emit *e, uint32_t stage, LV first, LV length)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        LV at = NULL;
        Val v = e->vec_r ? tree_lanes(e, r, &at) : tree_slots(e, r, length, &at);
        add_total(e, r, first, v, at);
    }
}

/* ---- results ---- */

/* The value, or what nothing gives. */
static LV or_empty(Emit *e, const Reduction *r, LV v)
{
    LV none = folds_nothing(e);
    return none ? LLVMBuildSelect(e->b, none, empty_value(e, r), v, "") : v;
}

static void set_result(Emit *e, const Reduction *r, Val v)
{
    if (!r->arg)
        v = cast_emit(e, (DType)r->acc_type, (DType)e->k->inst.at[r->inst].dtype, v);
    value_set(e, r->inst, e->level[r->inst], v);
}

void reduce_result(Emit *e, const Reduction *r, Val v)
{
    if (!r->arg)
        v.v = or_empty(e, r, v.v);
    set_result(e, r, v);
}

void reduce_close(Emit *e, uint32_t stage)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage == stage)
            (total_begins(e, r) ? set_result : reduce_result)(
                e, r, total_load(e, r->arg ? DT_I64 : (DType)r->acc_type, r->arg ? r->total_at : r->total));
    }
}

/* ---- split kernels: partial results in the shared scratch, [blocks + 1][x points]; the last row
 * holds the combined ones ---- */

void reduce_layout(Emit *e)
{
    LV bytes = l_i64(e, e->target->shared_reserved), each = l_mul(e, e->x_total, l_add(e, e->blocks, l_i64(e, 1)));
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        r->part = bytes;
        bytes = l_add(e, bytes, l_align64(e, l_mul(e, each, l_i64(e, (int64_t)dtype_bytes((DType)r->acc_type)))));
        if (!r->arg)
            continue;
        r->part_at = bytes;
        bytes = l_add(e, bytes, l_align64(e, l_mul(e, each, l_i64(e, 8))));
    }
}

uint16_t reduce_layout_node(Emit *e, uint16_t x, uint16_t blocks)
{
    LaunchBuilder *b = e->launch;
    uint16_t sum = launch_const(b, e->target->shared_reserved), one = launch_const(b, 1);
    uint16_t each = launch_op(b, LAUNCH_MUL, x, launch_op(b, LAUNCH_ADD, blocks, one));
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        for (int part = 0; part < (r->arg ? 2 : 1); part++) {
            int64_t bytes = part ? 8 : (int64_t)dtype_bytes((DType)r->acc_type);
            sum = launch_op(b, LAUNCH_ADD, sum, launch_round_up(b, launch_op(b, LAUNCH_MUL, each, launch_const(b, bytes)), 64));
        }
    }
    return sum;
}

static Address part_address(Emit *e, DType t, LV offset, LV block)
{
    LV base = l_gep_bytes(e, argument(e, e->shared_arg), offset);
    Ix ix = {.base = l_add(e, l_mul(e, block, e->x_total), e->x_flat), .stride = total_vec(e) ? l_i64(e, 1) : NULL};
    return address_ix(e, l_memory(e, t), base, ix);
}

static Val part_load(Emit *e, DType t, LV offset, LV block)
{
    Val v = load_at(e, t, part_address(e, t, offset, block), NULL);
    return v;
}

Part part_read(Emit *e, const Reduction *r, LV block)
{
    Part p = {.v = part_load(e, (DType)r->acc_type, r->part, block).v};
    if (r->arg)
        p.at = part_load(e, DT_I64, r->part_at, block).v;
    return p;
}

void reduce_store_block(Emit *e, uint32_t stage, LV block)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        DType t = (DType)r->acc_type;
        store_at(e, t, part_address(e, t, r->part, block), total_load(e, t, r->total), NULL);
        if (r->arg)
            store_at(e, DT_I64, part_address(e, DT_I64, r->part_at, block), total_load(e, DT_I64, r->total_at), NULL);
    }
}

void reduce_combine(Emit *e, uint32_t stage)
{
    Loop l = loop_begin(e, l_i64(e, 0), e->blocks, l_i64(e, 1), "combine");
    LV first = LLVMBuildICmp(e->b, LLVMIntEQ, l.iv, l_i64(e, 0), "");
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        Val v = part_load(e, (DType)r->acc_type, r->part, l.iv);
        LV at = r->arg ? part_load(e, DT_I64, r->part_at, l.iv).v : NULL;
        add_total(e, r, first, v, at);
    }
    loop_end(e, &l);
    reduce_store_block(e, stage, e->blocks);
}

Val reduce_read(Emit *e, VRef v)
{
    const Reduction *r = e->red;
    while (r->inst != v)
        r++;
    if (r->arg)
        return part_load(e, DT_I64, r->part_at, e->blocks);
    DType t = (DType)r->acc_type;
    Val x = part_load(e, t, r->part, e->blocks);
    x.v = or_empty(e, r, x.v);
    return cast_emit(e, t, (DType)e->k->inst.at[v].dtype, x);
}

/*
 * Running sums by all threads of a group, in the order of ir/orders.def (HALVES): the value at element i is
 *
 *     (((S + S') + S'') + ...) + x[i]
 *
 * where the S are the nodes of a binary tree over the line that cover the elements before i, the largest first. A node
 * is the sum of its two halves. This says nothing about threads, so the same numbers come out whatever a group is.
 *
 * A group takes a step of so many elements at once. Up: sums of nodes, from the elements of a thread to the whole step.
 * Down: what stands before each node, from the step to the elements. From high to low the bits of an element's number are
 *
 *     rows        step | run of the thread (`runs`) | warp | lane of the warp | element of the run (`width`)
 *     columns     step |                                     thread of the group | element of the run
 *
 * A bit of the lanes is one butterfly shuffle: each lane learns the sum of its sibling node, and on the way down adds
 * it if that one comes first. The runs' sums in warps go to shared memory, where each warp scans all of them by itself.
 * A bit of the steps is one place of a binary counter (Carry): sums of nodes that wait for their other half.
 * Where one thread has to walk the line (scan_serial), an element is a step.
 *
 * A split scan has several blocks of threads a line, in one launch:
 *
 *     take the next ticket: a step of some line; load it, sum it
 *     publish the step's sum; wait for those of the same SUPER steps before it, and sum them: by the same order
 *     the last of SUPER steps publishes the sum of them all; wait for those of the SUPERs before, and sum them
 *     down with that, store
 *
 * A block waits only for sums that blocks with earlier tickets publish before they wait themselves, so it does not matter
 * how many run at once. Nothing is added up in the order in which it arrives.
 * What is published lies in ARG_SCRATCH, which holds anything at first: the block with the first ticket clears it, and the others
 * wait for that. The last block to leave sets the counters back to zero, for the next launch.
 */
#include "jit/llvm/cuda/cuda.h"

enum { RUNS = WARP, WIDTH = 16, LEVELS = 5 /* of a warp */, LINE_BITS = 44 /* of the longest line */, SUPER = SCAN_SPLIT_THREADS };

typedef struct Sweep {
    DType acc;
    uint32_t runs, width;  /* of this thread */
    LV x[RUNS][WIDTH];     /* its elements */
    LV total[RUNS];        /* of each run: its sum; in rows that of the whole warp (or group, if smaller) */
    LV lane[RUNS][LEVELS]; /* rows: what stands before this lane in its warp (or group): see butterfly */
    LV entry[LEVELS];      /* rows of several warps: likewise before entry number `lane` of their sums */
    LV column[WARP];       /* columns: the sum of each thread of the group */
    LV all;                /* of the whole step */
} Sweep;

/* ---- which scans ---- */

static bool wanted_index(const Emit *e, IRef i, bool *wanted);

static bool want(const Emit *e, VRef v, bool *wanted)
{
    const KInst *n = &e->k->inst.at[v];
    if (!e->info[v].r_level || wanted[v])
        return true;
    wanted[v] = true;
    VRef in[4];
    uint32_t n_in = kernel_operands(n, in);
    for (uint32_t o = 0; o < n_in; o++)
        want(e, in[o], wanted);
    return n->idx == IREF_NONE || wanted_index(e, n->idx, wanted);
}

static bool wanted_index(const Emit *e, IRef i, bool *wanted)
{
    const Idx *x = &e->k->idx.at[i];
    if (x->kind == IX_VALUE)
        return want(e, x->a, wanted);
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD)
        return wanted_index(e, x->a, wanted) && wanted_index(e, x->b, wanted);
    return true;
}

/* The r-level values that stage `stage` needs. */
static bool *wanted_in(const Emit *e, uint32_t stage)
{
    bool *wanted = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        if (!e->live[i] || e->info[i].stage != stage)
            continue;
        if (inst_reduces(n) && e->info[n->a].r_level)
            want(e, n->a, wanted);
        if (e->info[i].r_level && (n->kind == KI_STORE || n->kind == KI_SCATTER || e->checked[i]))
            want(e, i, wanted);
    }
    return wanted;
}

bool stage_scans(const Emit *e, uint32_t stage)
{
    const bool *wanted = wanted_in(e, stage);
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (wanted[i] && inst_runs(&e->k->inst.at[i]))
            return true;
    return false;
}

static bool float_sum(const Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    return e->live[v] && inst_reduces(n) && n->order.kind != ORD_ANY;
}

const char *scan_serial(const Emit *e)
{
    bool serial = false;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (e->k->inst.at[i].kind == KI_SCATTER)
            return "a scatter goes in order";
        serial |= e->live[i] && e->k->inst.at[i].order.kind == ORD_SERIAL;
    }
    if (serial)
        return "in strict mode floats are added in order";
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (float_sum(e, i) && stage_scans(e, e->info[i].stage))
            return "a sum of floats in the same loop has another order";
    return NULL;
}

/* ---- sums in order ---- */

static LV get(Emit *e, DType acc, LV at) { return l_load(e, l_memory(e, acc), at, (unsigned)dtype_bytes(acc)); }

static void put(Emit *e, DType acc, LV v, LV at) { l_store(e, v, at, (unsigned)dtype_bytes(acc)); }

static LV none(const Emit *e, DType acc) /* x + none is x */
{
    return l_const(e, (SType)dtype_info[acc].scalar, fold_start(FOLD_SUM, acc), false);
}

static LV plus(Emit *e, DType acc, LV a, LV b) /* a == NULL: nothing */
{
    return a ? op_emit(e, OP_ADD, (DType[]){acc, acc}, acc, (Val[]){{.v = a}, {.v = b}}).v : b;
}

/* Of n > 1 nodes: those of the first half of their tree. */
static uint32_t first_half(uint32_t n)
{
    uint32_t half = 1;
    while (2 * half < n)
        half *= 2;
    return half;
}

static LV tree_sum(Emit *e, DType acc, const LV *x, uint32_t n)
{
    if (n == 1)
        return x[0];
    uint32_t half = first_half(n);
    LV low = tree_sum(e, acc, x, half);
    return plus(e, acc, low, tree_sum(e, acc, x + half, n - half));
}

/* before[i]: `base` and what stands before node i of n. */
static void tree_before(Emit *e, DType acc, const LV *x, uint32_t n, LV base, LV *before)
{
    if (n == 1) {
        before[0] = base;
        return;
    }
    uint32_t half = first_half(n);
    tree_before(e, acc, x, half, base, before);
    tree_before(e, acc, x + half, n - half, plus(e, acc, base, tree_sum(e, acc, x, half)), before + half);
}

static uint32_t log2_above(uint64_t n)
{
    uint32_t bits = 0;
    while ((uint64_t)1 << bits < n)
        bits++;
    return bits;
}

/* *total becomes that of all lanes of the group or warp, before[h] the sum of the sibling at bit h if that stands before it.
 * Integers are the same in any order: before[0] is all of it, one register. */
static void butterfly(Emit *e, DType acc, LV *total, LV lane, LV *before, uint32_t levels)
{
    for (uint32_t h = 0; h < levels; h++) {
        LV sibling = cuda_shuffle(e, "bfly", *total, LLVMConstInt(e->type[SC_I32], 1u << h, 0));
        LV bit = LLVMBuildAnd(e->b, lane, l_i64(e, 1 << h), "");
        LV later = LLVMBuildICmp(e->b, LLVMIntNE, bit, l_i64(e, 0), "");
        before[h] = LLVMBuildSelect(e->b, later, sibling, none(e, acc), "");
        *total = plus(e, acc, *total, sibling);
        if (h && !dtype_is_float(acc))
            before[0] = plus(e, acc, before[0], before[h]);
    }
}

/* `base` and what stands before a lane. */
static LV before_lane(Emit *e, DType acc, LV base, const LV *before, uint32_t levels)
{
    for (uint32_t h = dtype_is_float(acc) || !levels ? levels : 1; h-- > 0;)
        base = plus(e, acc, base, before[h]);
    return base;
}

/* ---- one step ---- */

static uint32_t warps_of(const Emit *e) { return e->group > WARP ? (uint32_t)e->group / WARP : 1; }

static uint32_t lane_levels(const Emit *e) { return log2_above(e->group < WARP ? (uint32_t)e->group : WARP); }

static LV lane_of(Emit *e, const Walk *w) { return LLVMBuildAnd(e->b, w->th.tid, l_i64(e, WARP - 1), ""); }

static LV warp_of(Emit *e, const Walk *w) { return l_div(e, w->th.tid, l_i64(e, WARP)); }

static LV shared_at(Emit *e, const Walk *w, DType acc, LV number) { return l_gep(e, l_memory(e, acc), w->th.shared, number); }

uint64_t scan_exchange_bytes(const Emit *e) { return e->scan_group ? 8 * (uint64_t)(e->vec_r ? WARP : e->group * e->groups_per_block) : 0; }

static void up_columns(Emit *e, const Walk *w, Sweep *s)
{
    s->all = s->total[0];
    if (e->group == 1)
        return;
    barrier(e);
    put(e, s->acc, s->total[0], shared_at(e, w, s->acc, w->th.tid));
    barrier(e);
    for (int t = 0; t < e->group; t++)
        s->column[t] = get(e, s->acc, shared_at(e, w, s->acc, l_add(e, w->th.local, l_i64(e, (int64_t)t * e->groups_per_block))));
    s->all = tree_sum(e, s->acc, s->column, (uint32_t)e->group);
}

static void up_rows(Emit *e, const Walk *w, Sweep *s)
{
    uint32_t warps = warps_of(e), n = s->runs * warps;
    for (uint32_t r = 0; r < s->runs; r++)
        butterfly(e, s->acc, &s->total[r], w->th.t, s->lane[r], lane_levels(e));
    if (warps == 1) {
        s->all = tree_sum(e, s->acc, s->total, s->runs);
        return;
    }
    LV lane = lane_of(e, w), warp = warp_of(e, w);
    barrier(e);
    If first = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, lane, l_i64(e, 0), ""), "sums");
    for (uint32_t r = 0; r < s->runs; r++)
        put(e, s->acc, s->total[r], shared_at(e, w, s->acc, l_add(e, warp, l_i64(e, r * warps))));
    if_end(e, &first);
    barrier(e);
    LV there = LLVMBuildICmp(e->b, LLVMIntSLT, lane, l_i64(e, n), "");
    LV at = n < WARP ? LLVMBuildSelect(e->b, there, lane, l_i64(e, 0), "") : lane;
    s->all = get(e, s->acc, shared_at(e, w, s->acc, at));
    if (n < WARP)
        s->all = LLVMBuildSelect(e->b, there, s->all, none(e, s->acc), "");
    butterfly(e, s->acc, &s->all, lane, s->entry, log2_above(n));
    if (n < WARP) /* the lanes above have nothing */
        s->all = cuda_shuffle(e, "idx", s->all, LLVMConstInt(e->type[SC_I32], 0, 0));
}

/* Sums of the nodes, from the elements to the step. By all threads of the block together. */
static void sweep_up(Emit *e, const Walk *w, Sweep *s)
{
    for (uint32_t r = 0; r < s->runs; r++)
        s->total[r] = tree_sum(e, s->acc, s->x[r], s->width);
    if (e->vec_r)
        up_rows(e, w, s);
    else
        up_columns(e, w, s);
}

/* before[r]: what stands before run r of this thread; `base` stands before the step (NULL: nothing). */
static void sweep_down(Emit *e, const Walk *w, const Sweep *s, LV base, LV *before)
{
    uint32_t warps = warps_of(e);
    if (!e->vec_r) {
        LV all[WARP];
        before[0] = base;
        if (e->group == 1)
            return;
        tree_before(e, s->acc, s->column, (uint32_t)e->group, base, all);
        before[0] = all[0] ? all[0] : none(e, s->acc);
        for (int t = 1; t < e->group; t++) {
            LV here = LLVMBuildICmp(e->b, LLVMIntEQ, w->th.t, l_i64(e, t), "");
            before[0] = LLVMBuildSelect(e->b, here, all[t], before[0], "");
        }
        return;
    }
    if (warps == 1) {
        tree_before(e, s->acc, s->total, s->runs, base, before);
    } else {
        LV warp = LLVMBuildTrunc(e->b, warp_of(e, w), e->type[SC_I32], "");
        LV entry = before_lane(e, s->acc, base, s->entry, log2_above(s->runs * warps));
        for (uint32_t r = 0; r < s->runs; r++) {
            LV from = LLVMBuildAdd(e->b, warp, LLVMConstInt(e->type[SC_I32], r * warps, 0), "");
            before[r] = cuda_shuffle(e, "idx", entry, from);
        }
    }
    for (uint32_t r = 0; r < s->runs; r++)
        before[r] = before_lane(e, s->acc, before[r], s->lane[r], lane_levels(e));
}

/* The elements of a scan's operand: a tile is a run in rows, an element of the only run in columns. */
static void sweep_take(Emit *e, VRef scan, Copy **tiles, uint32_t n, Sweep *s)
{
    const KInst *inst = &e->k->inst.at[scan];
    *s = (Sweep){.acc = dtype_accumulator((DType)inst->dtype), .runs = e->vec_r ? n : 1, .width = e->vec_r ? (uint32_t)e->lanes : n};
    for (uint32_t u = 0; u < n; u++) {
        copy_enter(e, tiles[u]);
        Val x = cast_emit(e, (DType)e->k->inst.at[inst->a].dtype, s->acc, value(e, inst->a));
        for (int l = 0; l < e->lanes; l++) {
            LV *to = e->vec_r ? &s->x[u][l] : &s->x[0][u];
            *to = x.vec && e->lanes > 1 ? LLVMBuildExtractElement(e->b, x.v, LLVMConstInt(e->type[SC_I32], (unsigned)l, 0), "") : x.v;
        }
        copy_leave(e, tiles[u]);
    }
}

static void sweep_give(Emit *e, VRef scan, Copy **tiles, uint32_t n, const Sweep *s, const LV *before)
{
    LV sums[RUNS][WIDTH];
    for (uint32_t r = 0; r < s->runs; r++) {
        tree_before(e, s->acc, s->x[r], s->width, before[r], sums[r]);
        for (uint32_t i = 0; i < s->width; i++)
            sums[r][i] = plus(e, s->acc, sums[r][i], s->x[r][i]);
    }
    for (uint32_t u = 0; u < n; u++) {
        copy_enter(e, tiles[u]);
        Val sum = {.v = e->vec_r ? sums[u][0] : sums[0][u], .vec = true};
        if (e->lanes > 1)
            sum.v = LLVMGetPoison(l_type(e, s->acc, true));
        for (int l = 0; l < e->lanes && e->lanes > 1; l++)
            sum.v = LLVMBuildInsertElement(e->b, sum.v, sums[u][l], LLVMConstInt(e->type[SC_I32], (unsigned)l, 0), "");
        value_set(e, scan, LV_R, cast_emit(e, s->acc, (DType)e->k->inst.at[scan].dtype, sum));
        copy_leave(e, tiles[u]);
    }
}

/* ---- step after step ---- */

/* What stands before step number q. Integers need no more than that; for floats also the places of q as a counter:
 * partials[h] is the node that bit h of q stands for, above[h] what stands before the first node of all bits up to h. */
struct Carry {
    DType acc;
    LV base, partials, above;
};

/* For steps whose numbers have at most so many bits. */
static Carry carry_open(Emit *e, DType acc, uint32_t bits)
{
    unsigned bytes = (unsigned)dtype_bytes(acc);
    LLVMTypeRef type = l_memory(e, acc), all = LLVMArrayType2(type, bits + 1);
    Carry c = {.acc = acc, .base = l_alloca(e, type, bytes, "before")};
    put(e, acc, none(e, acc), c.base);
    if (dtype_is_float(acc)) {
        c.partials = l_alloca(e, all, bytes, "partials");
        c.above = l_alloca(e, all, bytes, "above");
    }
    return c;
}

static LV carry_base(Emit *e, const Carry *c) { return get(e, c->acc, c->base); }

static LV place(Emit *e, const Carry *c, LV all, LV bit) { return l_gep(e, l_memory(e, c->acc), all, bit); }

/* Step number q is done; its sum is `total`. */
static void carry_next(Emit *e, const Carry *c, LV q, LV total)
{
    LLVMTypeRef i64 = e->type[SC_I64];
    LV zero = l_i64(e, 0), one = l_i64(e, 1);
    if (!c->partials) {
        put(e, c->acc, plus(e, c->acc, carry_base(e, c), total), c->base);
        return;
    }
    LV node = l_alloca(e, l_memory(e, c->acc), (unsigned)dtype_bytes(c->acc), "node");
    put(e, c->acc, total, node);
    LV ones = l_intrinsic(e, "llvm.cttz", &i64, 1, (LV[]){LLVMBuildNot(e->b, q, ""), LLVMConstInt(e->type[SC_I1], 0, 0)}, 2);
    Loop l = loop_begin(e, zero, ones, one, "merge");
    LV low = get(e, c->acc, place(e, c, c->partials, l.iv));
    put(e, c->acc, plus(e, c->acc, low, get(e, c->acc, node)), node);
    loop_end(e, &l);
    LV sum = get(e, c->acc, node);
    put(e, c->acc, sum, place(e, c, c->partials, ones));
    put(e, c->acc, sum, c->base);
    LV higher = LLVMBuildLShr(e->b, LLVMBuildLShr(e->b, q, ones, ""), one, "");
    If more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntNE, higher, zero, ""), "above");
    put(e, c->acc, plus(e, c->acc, get(e, c->acc, place(e, c, c->above, ones)), sum), c->base);
    if_end(e, &more);
    LV base = carry_base(e, c);
    l = loop_begin(e, zero, ones, one, "above_all");
    put(e, c->acc, base, place(e, c, c->above, l.iv));
    loop_end(e, &l);
}

/* ---- one thread a line ---- */

void scan_open_serial(Emit *e, uint32_t stage)
{
    e->scan_carry = ARENA_ARRAY(e->arena, Carry, e->k->inst.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        if (inst_runs(n) && e->live[i] && e->info[i].stage <= stage)
            e->scan_carry[i] = carry_open(e, dtype_accumulator((DType)n->dtype), LINE_BITS);
    }
}

bool scan_cuda(Emit *e, VRef v, Val x, Val *sum)
{
    if (e->k->inst.at[v].order.kind != ORD_HALVES)
        return false;
    const Carry *c = &e->scan_carry[v];
    *sum = (Val){.v = plus(e, c->acc, carry_base(e, c), x.v), .vec = true};
    carry_next(e, c, e->flat, x.v);
    return true;
}

/* ---- the walks ---- */

/* The scans that a stage needs, in the order of the body. Returns how many. */
static uint32_t scans_of(const Emit *e, uint32_t stage, VRef *scans)
{
    const bool *wanted = wanted_in(e, stage);
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (wanted[i] && inst_runs(&e->k->inst.at[i]))
            scans[n++] = i;
    return n;
}

void scan_copies(Emit *e, const Walk *w, uint32_t stage, Copy **tiles, uint32_t n)
{
    VRef *scans = ARENA_ARRAY(e->arena, VRef, e->k->inst.n + 1);
    uint32_t n_scans = scans_of(e, stage, scans);
    for (uint32_t i = 0; i < n_scans; i++) {
        Sweep s;
        LV before[RUNS];
        sweep_take(e, scans[i], tiles, n, &s);
        sweep_up(e, w, &s);
        sweep_down(e, w, &s, NULL, before);
        sweep_give(e, scans[i], tiles, n, &s, before);
    }
}

static int64_t step_elements(const Emit *e) { return (int64_t)e->group * e->lanes * (int64_t)e->scan_tiles; }

/* The tiles of this thread in the step that begins at element `from`. */
static void open_step(Emit *e, const Walk *w, LV from, Copy **tiles)
{
    LV alive = e->inside;
    int64_t length, each = e->vec_r ? (int64_t)e->group * e->lanes : 1;
    bool whole = l_is_const(e->flat_n, &length) && length % step_elements(e) == 0;
    LV mine = l_mul(e, w->th.t, l_i64(e, e->vec_r ? e->lanes : (int64_t)e->scan_tiles));
    for (uint32_t u = 0; u < e->scan_tiles; u++) {
        LV flat = l_add(e, l_add(e, from, mine), l_i64(e, u * each));
        LV inside = whole ? NULL : LLVMBuildICmp(e->b, LLVMIntSLT, flat, e->flat_n, "");
        tiles[u] = open_copy(e, flat, from, inside, alive);
        e->slot = NULL;
        copy_leave(e, tiles[u]);
    }
    e->inside = alive;
}

void scan_span(Emit *e, const Walk *w, uint32_t stage)
{
    VRef *scans = ARENA_ARRAY(e->arena, VRef, e->k->inst.n + 1);
    uint32_t n = scans_of(e, stage, scans);
    Carry *carry = ARENA_ARRAY(e->arena, Carry, n + 1);
    int64_t length, unit = step_elements(e);
    bool known = l_is_const(e->flat_n, &length), one = known && length <= unit;
    uint32_t bits = known ? log2_above((uint64_t)(length / unit + 1)) : LINE_BITS - log2_above((uint64_t)unit);
    int inner = e->inner;
    LV alive = e->inside;
    for (uint32_t i = 0; i < n && !one; i++)
        carry[i] = carry_open(e, dtype_accumulator((DType)e->k->inst.at[scans[i]].dtype), bits);
    Loop l = loop_begin(e, l_i64(e, 0), e->flat_n, l_i64(e, unit), "scan");
    Copy *tiles[RUNS];
    e->inner = LV_R;
    open_step(e, w, l.iv, tiles);
    copies_load(e, stage, tiles, e->scan_tiles);
    for (uint32_t i = 0; i < n; i++) {
        Sweep s;
        LV before[RUNS];
        sweep_take(e, scans[i], tiles, e->scan_tiles, &s);
        sweep_up(e, w, &s);
        sweep_down(e, w, &s, one ? NULL : carry_base(e, &carry[i]), before);
        if (!one)
            carry_next(e, &carry[i], l_div(e, l.iv, l_i64(e, unit)), s.all);
        sweep_give(e, scans[i], tiles, e->scan_tiles, &s, before);
    }
    copies_run(e, stage, tiles, e->scan_tiles);
    e->inner = inner;
    e->inside = alive;
    loop_end(e, &l);
    level_close(e, LV_R, LV_ROW);
    e->cur = LV_R;
}

/* ---- several blocks a line ---- */

/* Counters, in ARG_SCRATCH. After them, for each sum one or two i64: 32 bits of it and THERE. Such a word is written and read by one
 * access, so that no fence has to come between a sum and a flag. */
enum { TICKET, READY, LEFT };
#define THERE ((int64_t)1 << 32)

typedef struct Split {
    const Walk *w;
    LV tiles, supers, tasks; /* steps of a line, SUPERs of a line, steps of all lines */
    LV each;                 /* sums of one scan that are published: of every step, then of every SUPER */
    unsigned words;          /* i64 for each of them */
} Split;

static LV counter(Emit *e, int which) { return l_gep(e, e->type[SC_I32], argument(e, e->shared_arg), l_i64(e, which)); }

/* One access: `bytes` is the size of the type, which aligns it. */
static LV volatile_load(Emit *e, LLVMTypeRef type, LV at, unsigned bytes)
{
    LV v = l_load(e, type, at, bytes);
    LLVMSetVolatile(v, 1);
    return v;
}

static void volatile_store(Emit *e, LV v, LV at, unsigned bytes) { LLVMSetVolatile(l_store(e, v, at, bytes), 1); }

static LV count(Emit *e, int which)
{
    LV one = LLVMConstInt(e->type[SC_I32], 1, 0);
    return LLVMBuildAtomicRMW(e->b, LLVMAtomicRMWBinOpAdd, counter(e, which), one, LLVMAtomicOrderingMonotonic, 0);
}

/* *at as soon as it is not zero. */
static LV wait_for(Emit *e, LLVMTypeRef type, LV at, unsigned bytes)
{
    LLVMBasicBlockRef poll = l_block(e, "poll"), there = l_block(e, "there");
    LLVMBuildBr(e->b, poll);
    l_at(e, poll);
    LV v = volatile_load(e, type, at, bytes);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, v, LLVMConstNull(type), ""), poll, there);
    l_at(e, there);
    return v;
}

static If only_first(Emit *e, const Walk *w) { return if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, w->th.tid, l_i64(e, 0), ""), "first"); }

/* A value of thread `from`, for all threads of the block. */
static LV from_thread(Emit *e, const Walk *w, DType acc, LV v, LV from)
{
    barrier(e);
    If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, w->th.tid, from, ""), "tell");
    put(e, acc, v, w->th.shared);
    if_end(e, &i);
    barrier(e);
    return get(e, acc, w->th.shared);
}

static LV take_ticket(Emit *e, const Walk *w)
{
    LLVMTypeRef i32 = e->type[SC_I32];
    barrier(e);
    If i = only_first(e, w);
    l_store(e, count(e, TICKET), w->th.shared, 4);
    if_end(e, &i);
    barrier(e);
    return LLVMBuildZExt(e->b, l_load(e, i32, w->th.shared, 4), e->type[SC_I64], "");
}

/* i64 number `number` of those after the counters. */
static LV word_at(Emit *e, LV number)
{
    LV bytes = l_add(e, l_i64(e, GRID_COUNTER_BYTES), l_mul(e, number, l_i64(e, 8)));
    return l_gep_bytes(e, argument(e, e->shared_arg), bytes);
}

static unsigned words_of(DType acc) { return dtype_bytes(acc) > 4 ? 2 : 1; }

/* Tells all blocks the sum `v`, number `number`. All threads of the block know it, one tells it. */
static void publish(Emit *e, const Split *p, DType acc, LV number, LV v)
{
    LLVMTypeRef bits = LLVMIntTypeInContext(e->ctx, 8 * (unsigned)dtype_bytes(acc)), i64 = e->type[SC_I64];
    If i = only_first(e, p->w);
    v = LLVMBuildZExt(e->b, LLVMBuildBitCast(e->b, v, bits, ""), i64, "");
    for (unsigned word = 0; word < words_of(acc); word++) {
        LV half = LLVMBuildAnd(e->b, LLVMBuildLShr(e->b, v, l_i64(e, 32 * (int64_t)word), ""), l_i64(e, UINT32_MAX), "");
        LV at = word_at(e, l_add(e, l_mul(e, number, l_i64(e, p->words)), l_i64(e, word)));
        volatile_store(e, LLVMBuildOr(e->b, half, l_i64(e, THERE), ""), at, 8);
    }
    if_end(e, &i);
}

/* Where `there` (i1) holds, sum number `number` as soon as it is published; else `instead`. */
static LV published(Emit *e, const Split *p, DType acc, LV number, LV there, LV instead)
{
    LLVMTypeRef type = l_memory(e, acc), i64 = e->type[SC_I64], bits = LLVMIntTypeInContext(e->ctx, 8 * (unsigned)dtype_bytes(acc));
    LV v = l_alloca(e, type, (unsigned)dtype_bytes(acc), "published"), all = NULL;
    put(e, acc, instead, v);
    If i = if_begin(e, there, "await");
    for (unsigned word = 0; word < words_of(acc); word++) {
        LV got = wait_for(e, i64, word_at(e, l_add(e, l_mul(e, number, l_i64(e, p->words)), l_i64(e, word))), 8);
        LV half = LLVMBuildAnd(e->b, got, l_i64(e, UINT32_MAX), "");
        all = word ? LLVMBuildOr(e->b, all, LLVMBuildShl(e->b, half, l_i64(e, 32 * (int64_t)word), ""), "") : half;
    }
    put(e, acc, LLVMBuildBitCast(e->b, LLVMBuildTrunc(e->b, all, bits, ""), type, ""), v);
    if_end(e, &i);
    return get(e, acc, v);
}

/* A step of one value for each thread of the block. */
static Sweep sweep_threads(Emit *e, const Walk *w, DType acc, LV v)
{
    Sweep s = {.acc = acc, .runs = 1, .width = 1};
    s.x[0][0] = v;
    sweep_up(e, w, &s);
    return s;
}

/* What stands before SUPER number `super` of a line; the sum of its first SUPER is number `first`. */
static LV before_super(Emit *e, const Split *p, DType acc, LV first, LV super)
{
    const Walk *w = p->w;
    LV base = l_alloca(e, l_memory(e, acc), (unsigned)dtype_bytes(acc), "supers"), size = l_i64(e, SUPER);
    put(e, acc, none(e, acc), base);
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, super, l_i64(e, 0), ""), "supers");
    Carry carry = carry_open(e, acc, LINE_BITS - log2_above(SUPER * SUPER * WARP));
    Loop l = loop_begin(e, l_i64(e, 0), l_add(e, super, l_i64(e, 1)), size, "super");
    LV number = l_add(e, l.iv, w->th.tid), there = LLVMBuildICmp(e->b, LLVMIntSLT, number, super, ""), before;
    Sweep s = sweep_threads(e, w, acc, published(e, p, acc, l_add(e, first, number), there, none(e, acc)));
    sweep_down(e, w, &s, carry_base(e, &carry), &before);
    put(e, acc, from_thread(e, w, acc, before, l_mod(e, super, size)), base); /* the last one is the one asked for */
    carry_next(e, &carry, l_div(e, l.iv, size), s.all);
    loop_end(e, &l);
    if_end(e, &some);
    return get(e, acc, base);
}

/* What stands before step `tile` of line `line`, whose sum is `total`, for scan number `scan`. */
static LV before_step(Emit *e, const Split *p, uint32_t scan, DType acc, LV line, LV tile, LV total)
{
    const Walk *w = p->w;
    LV size = l_i64(e, SUPER), super = l_div(e, tile, size), within = l_mod(e, tile, size);
    LV here = l_add(e, l_mul(e, p->each, l_i64(e, scan)), l_mul(e, line, p->tiles));
    LV supers = l_add(e, l_add(e, l_mul(e, p->each, l_i64(e, scan)), p->tasks), l_mul(e, line, p->supers));
    publish(e, p, acc, l_add(e, here, tile), total);

    LV earlier = LLVMBuildICmp(e->b, LLVMIntSLT, w->th.tid, within, "");
    LV own = LLVMBuildICmp(e->b, LLVMIntEQ, w->th.tid, within, "");
    LV number = l_add(e, l_add(e, here, l_mul(e, super, size)), w->th.tid), before;
    LV instead = LLVMBuildSelect(e->b, own, total, none(e, acc), "");
    Sweep s = sweep_threads(e, w, acc, published(e, p, acc, number, earlier, instead));
    If last = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, within, l_i64(e, SUPER - 1), ""), "last_of_super");
    publish(e, p, acc, l_add(e, supers, super), s.all);
    if_end(e, &last);
    sweep_down(e, w, &s, before_super(e, p, acc, supers, super), &before);
    return from_thread(e, w, acc, before, within);
}

/* The block with the first ticket clears all sums; the others that have work wait for that. */
static void make_ready(Emit *e, const Split *p, LV ticket, uint32_t n_scans)
{
    LLVMTypeRef i32 = e->type[SC_I32];
    LV is_first = LLVMBuildICmp(e->b, LLVMIntEQ, ticket, l_i64(e, 0), "");
    If clear = if_begin(e, is_first, "clear");
    Loop l = loop_begin(e, p->w->th.tid, l_mul(e, p->each, l_i64(e, n_scans * p->words)), l_i64(e, e->group), "word");
    l_store(e, l_i64(e, 0), word_at(e, l.iv), 8);
    loop_end(e, &l);
    barrier(e);
    If tell = only_first(e, p->w);
    cuda_fence(e);
    volatile_store(e, LLVMConstInt(i32, 1, 0), counter(e, READY), 4);
    if_end(e, &tell);
    if_end(e, &clear);
    LV waits = LLVMBuildAnd(e->b, LLVMBuildNot(e->b, is_first, ""), LLVMBuildICmp(e->b, LLVMIntSLT, ticket, p->tasks, ""), "");
    LV one = LLVMBuildICmp(e->b, LLVMIntEQ, p->w->th.tid, l_i64(e, 0), "");
    If wait = if_begin(e, LLVMBuildAnd(e->b, waits, one, ""), "wait");
    wait_for(e, i32, counter(e, READY), 4);
    cuda_fence(e);
    if_end(e, &wait);
    barrier(e);
}

/* The last block to leave has the counters at zero again. */
static void leave(Emit *e, const Walk *w)
{
    LLVMTypeRef i32 = e->type[SC_I32];
    barrier(e);
    If first = only_first(e, w);
    cuda_fence(e);
    LV left = LLVMBuildZExt(e->b, count(e, LEFT), e->type[SC_I64], "");
    cuda_fence(e);
    If last = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, left, l_sub(e, w->th.blocks, l_i64(e, 1)), ""), "reset");
    for (int c = TICKET; c <= LEFT; c++)
        l_store(e, LLVMConstNull(i32), counter(e, c), 4);
    if_end(e, &last);
    if_end(e, &first);
}

static void task(Emit *e, Walk *w, const Split *p, LV ticket, const VRef *scans, uint32_t n)
{
    Copy *tiles[RUNS];
    level_open(e, LV_ROW);
    LV line = l_div(e, ticket, p->tiles), tile = l_sub(e, ticket, l_mul(e, line, p->tiles));
    seek_point(e, w, line);
    e->stage = 0;
    e->inside = w->alive;
    int inner = e->inner;
    e->inner = LV_R;
    If some = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSGT, e->flat_n, l_i64(e, 0), ""), "step");
    open_step(e, w, l_mul(e, tile, l_i64(e, step_elements(e))), tiles);
    copies_load(e, 0, tiles, e->scan_tiles);
    for (uint32_t i = 0; i < n; i++) {
        Sweep s;
        LV before[RUNS];
        sweep_take(e, scans[i], tiles, e->scan_tiles, &s);
        sweep_up(e, w, &s);
        sweep_down(e, w, &s, before_step(e, p, i, s.acc, line, tile, s.all), before);
        sweep_give(e, scans[i], tiles, e->scan_tiles, &s, before);
    }
    copies_run(e, 0, tiles, e->scan_tiles);
    if_end(e, &some);
    e->inner = inner;
    e->inside = NULL;
    level_close(e, LV_R, LV_ROW);
    pin(e, LV_ROW);
    If once = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, tile, l_i64(e, 0), ""), "once");
    x_stores(e, w);
    if_end(e, &once);
    level_close(e, LV_ROW, LV_ROW);
}

static unsigned words_for(const Emit *e, const VRef *scans, uint32_t n)
{
    unsigned most = 1;
    for (uint32_t i = 0; i < n; i++)
        if (words_of(dtype_accumulator((DType)e->k->inst.at[scans[i]].dtype)) > most)
            most = 2;
    return most;
}

void scan_tasks(Emit *e, Walk *w)
{
    VRef *scans = ARENA_ARRAY(e->arena, VRef, e->k->inst.n + 1);
    uint32_t n = scans_of(e, 0, scans);
    Split p = {.w = w};
    p.tiles = l_max(e, l_ceil_div(e, e->flat_n, l_i64(e, step_elements(e))), l_i64(e, 1));
    p.supers = l_ceil_div(e, p.tiles, l_i64(e, SUPER));
    p.tasks = l_mul(e, e->x_total, p.tiles);
    p.each = l_add(e, p.tasks, l_mul(e, e->x_total, p.supers));
    p.words = words_for(e, scans, n);

    LV next = l_alloca(e, e->type[SC_I64], 8, "ticket"), first = take_ticket(e, w);
    make_ready(e, &p, first, n);
    l_store(e, first, next, 8);
    LLVMBasicBlockRef head = l_block(e, "tickets"), body = l_block(e, "task"), end = l_block(e, "no_more");
    LLVMBuildBr(e->b, head);
    l_at(e, head);
    LV ticket = l_load(e, e->type[SC_I64], next, 8);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, ticket, p.tasks, ""), body, end);
    l_at(e, body);
    task(e, w, &p, ticket, scans, n);
    l_store(e, take_ticket(e, w), next, 8);
    LLVMBuildBr(e->b, head);
    l_at(e, end);
    leave(e, w);
}

/* Room for the sums of the version whose steps are smallest: one lane. */
void scan_launch(Emit *e, LaunchPhase *phase)
{
    LaunchBuilder *p = e->launch;
    VRef *scans = ARENA_ARRAY(e->arena, VRef, e->k->inst.n + 1);
    uint32_t n = scans_of(e, 0, scans);
    int64_t step = (int64_t)e->group * (int64_t)e->scan_tiles, bytes = 8 * (int64_t)(n * words_for(e, scans, n));
    uint16_t x = axes_node(e, 0, e->n_x), r = axes_node(e, e->n_x, e->k->axes.n);
    uint16_t tiles = launch_op(p, LAUNCH_MAX, launch_op(p, LAUNCH_CEIL_DIV, r, launch_const(p, step)), launch_const(p, 1));
    uint16_t supers = launch_op(p, LAUNCH_CEIL_DIV, tiles, launch_const(p, SUPER));
    uint16_t each = launch_op(p, LAUNCH_MUL, x, launch_op(p, LAUNCH_ADD, tiles, supers));
    p->scratch = launch_op(p, LAUNCH_ADD, launch_const(p, GRID_COUNTER_BYTES), launch_op(p, LAUNCH_MUL, each, launch_const(p, bytes)));
    uint16_t tasks = launch_op(p, LAUNCH_MUL, x, tiles), sms = launch_op(p, LAUNCH_MUL, launch_sms(p), launch_const(p, SCAN_BLOCKS_PER_SM));
    phase->tasks = launch_op(p, LAUNCH_MIN, tasks, sms);
}

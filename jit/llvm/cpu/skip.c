/*
 * What a packed product need not multiply, found out while it runs; no bit changes.
 *
 *     unwanted   where every store of a tile goes through where(p, .., sum, .., something else) and p, which compares places, is false in all of
 *                the tile: causal attention asks for half of the scores. Whether it can be follows from the tile's first and last places
 *     zeros      where a group's rows of a band are +0 in a whole block of k, as behind a mask: the block's sums are +0 if nothing in the panel is
 *                infinite or NaN. Adding +0 is all that is left of it, and once does as well as again and again. Rows that lie along k are looked
 *                at before they are packed, which those are not
 */
#include "jit/llvm/cpu/contract.h"

/* ---- which tiles are wanted ---- */

/* Marks what depends on the sum, but for what depends on it through instruction `through` alone. Does a store, or an effect? */
static bool reaches(const Kernel *k, VRef sum, VRef through, bool *marked)
{
    bool stored = false;
    for (VRef v = 0; v < k->inst.n; v++) {
        VRef in[4];
        uint32_t n = kernel_operands(&k->inst.at[v], in);
        marked[v] = v == sum;
        for (uint32_t i = 0; i < n && v != through; i++)
            marked[v] |= marked[in[i]];
        stored |= marked[v] && k->inst.at[v].kind != KI_OP && !inst_reduces(&k->inst.at[v]);
    }
    return stored;
}

/* Is it made of coordinates, numbers and sizes, in few operations? */
static bool made_of_places(const Kernel *k, VRef v, int *budget)
{
    const KInst *n = &k->inst.at[v];
    VRef in[4];
    if (n->kind != KI_OP)
        return n->kind == KI_CONST || n->kind == KI_SCALAR || n->kind == KI_INDEX;
    uint32_t count = kernel_operands(n, in);
    bool made = --*budget >= 0;
    for (uint32_t i = 0; i < count && made; i++)
        made = made_of_places(k, in[i], budget);
    return made;
}

/* ---- what a bool of places may be ---- */

typedef struct Range { /* i64, both ends may be met; low NULL: not known */
    LV low, high;
} Range;

/* Points of the rows and columns [first, last], some of which need not exist. */
typedef struct Places {
    const Contract *c;
    LV first[SIDES], last[SIDES];
    int budget; /* of operations */
    LV odd;     /* i1: a number of the launch is one with which nothing is known; NULL: none is */
} Places;

static void note_odd(Emit *e, Places *p, LV odd) { p->odd = p->odd ? LLVMBuildOr(e->b, p->odd, odd, "") : odd; }

/* A constant or a number of the launch, NULL: neither. It is less than 2^32 and at least `least`, so that a few operations do not wrap. */
static LV number_of(Emit *e, Places *p, VRef v, int64_t least)
{
    const KInst *n = &e->k->inst.at[v];
    const int64_t most = INT64_C(1) << 32;
    if (n->dtype != DT_I64 || (n->kind != KI_CONST && n->kind != KI_SCALAR))
        return NULL;
    LV x = value(e, v).v, from = l_i64(e, least);
    note_odd(e, p, LLVMBuildICmp(e->b, LLVMIntUGE, l_sub(e, x, from), l_i64(e, most - least), ""));
    return x;
}

static Range range_of_index(const Emit *e, const Places *p, IRef i)
{
    const Idx *x = &e->k->idx.at[i];
    for (int s = 0; s < SIDES && x->kind == IX_AXIS; s++)
        if ((int)x->a == p->c->dot.axis[s])
            return (Range){p->first[s], p->last[s]};
    return (Range){0};
}

/* Of coordinates, their sums and differences, and quotients of a coordinate and a number. */
static Range range_of(Emit *e, Places *p, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    if (n->kind == KI_INDEX)
        return range_of_index(e, p, n->idx);
    if (n->kind != KI_OP || (n->op != OP_ADD && n->op != OP_SUB && n->op != OP_FLOORDIV) || --p->budget < 0) {
        LV x = number_of(e, p, v, -(INT64_C(1) << 32));
        return (Range){x, x};
    }
    if (n->op == OP_FLOORDIV) {
        const Range a = e->k->inst.at[n->a].kind == KI_INDEX ? range_of(e, p, n->a) : (Range){0}; /* which is not negative */
        LV by = a.low ? number_of(e, p, n->b, 1) : NULL, one = l_i64(e, 1);
        by = by ? l_max(e, by, one) : NULL;
        return by ? (Range){l_div(e, a.low, by), l_div(e, a.high, by)} : (Range){0};
    }
    const Range a = range_of(e, p, n->a), b = range_of(e, p, n->b);
    if (!a.low || !b.low)
        return (Range){0};
    return n->op == OP_ADD ? (Range){l_add(e, a.low, b.low), l_add(e, a.high, b.high)}
                           : (Range){l_sub(e, a.low, b.high), l_sub(e, a.high, b.low)};
}

/* What is compared; a number of the launch stands by itself. */
static Range compared(Emit *e, Places *p, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    if (n->kind != KI_SCALAR || n->dtype != DT_I64)
        return n->dtype == DT_I64 ? range_of(e, p, v) : (Range){0};
    LV x = value(e, v).v;
    return (Range){x, x};
}

/* i1: may a < b (a <= b) be so anywhere? */
static LV may_be_below(Emit *e, Range a, Range b, bool equal)
{
    return LLVMBuildICmp(e->b, equal ? LLVMIntSLE : LLVMIntSLT, a.low, b.high, "");
}

static LV may_compare(Emit *e, Op op, Range a, Range b)
{
    if (op == OP_EQ)
        return LLVMBuildAnd(e->b, may_be_below(e, a, b, true), may_be_below(e, b, a, true), "");
    if (op == OP_NE)
        return LLVMBuildOr(e->b, may_be_below(e, a, b, false), may_be_below(e, b, a, false), "");
    return op == OP_LT || op == OP_LE ? may_be_below(e, a, b, op == OP_LE) : may_be_below(e, b, a, op == OP_GE);
}

static Op other_way(Op op)
{
    static const uint8_t other[OP_COUNT] = {
        [OP_LT] = OP_GE, [OP_GE] = OP_LT, [OP_LE] = OP_GT, [OP_GT] = OP_LE, [OP_EQ] = OP_NE, [OP_NE] = OP_EQ};
    return (Op)other[op];
}

/* i1: may v be `is` anywhere? NULL: nothing is known. */
static LV may_be(Emit *e, Places *p, VRef v, bool is)
{
    const KInst *n = &e->k->inst.at[v];
    if (n->kind != KI_OP || n->dtype != DT_BOOL || --p->budget < 0)
        return NULL;
    if (n->op == OP_NOT)
        return may_be(e, p, n->a, !is);
    if (n->op == OP_AND || n->op == OP_OR) {
        LV a = may_be(e, p, n->a, is), b = may_be(e, p, n->b, is);
        if ((n->op == OP_AND) == is) /* both must be */
            return !a || !b ? (a ? a : b) : LLVMBuildAnd(e->b, a, b, "");
        return !a || !b ? NULL : LLVMBuildOr(e->b, a, b, "");
    }
    if (!other_way((Op)n->op))
        return NULL;
    const Range a = compared(e, p, n->a), b = compared(e, p, n->b);
    return !a.low || !b.low ? NULL : may_compare(e, is ? (Op)n->op : other_way((Op)n->op), a, b);
}

/* ---- which tiles are wanted ---- */

void skip_plan(const Emit *e, Contract *c)
{
    enum { OPERATIONS = 12 };
    const Kernel *k = e->k;
    bool *marked = ARENA_ARRAY(e->arena, bool, k->inst.n + 1);
    c->wanted = VREF_NONE;
    c->zeros = false;
    if (c->way != WAY_PACKED || c->in_place || e->facts.n_products > 1)
        return;
    const KInst *a = &k->inst.at[c->dot.operand[ROW_SIDE]];
    c->zeros = a->kind == KI_LOAD && a->pred == VREF_NONE && k->args.at[a->arg].band && !c->dot.one_block && dtype_is_float(c->dot.acc);
    (void)reaches(k, c->dot.reduce, VREF_NONE, marked);
    for (VRef v = 0; v < k->inst.n && c->wanted == VREF_NONE; v++) {
        const KInst *n = &k->inst.at[v];
        int budget = OPERATIONS;
        if (n->kind != KI_OP || n->op != OP_WHERE || marked[n->a] || marked[n->b] == marked[n->c] || !made_of_places(k, n->a, &budget))
            continue;
        bool *around = ARENA_ARRAY(e->arena, bool, k->inst.n + 1);
        if (reaches(k, c->dot.reduce, v, around))
            continue;
        c->wanted = n->a;
        c->unless = marked[n->c];
        for (int read = 0; read < 2; read++) {
            c->says[read] = ARENA_ARRAY(e->arena, int8_t, k->inst.n + 1);
            memset(c->says[read], -1, k->inst.n + 1);
            c->says[read][n->a] = (bool)read != c->unless;
        }
    }
}

/* i1: may a point of these tiles and rows be one whose sum is read, or is not? */
static LV may_want(Emit *e, const Contract *c, LV tile0, LV tile1, LV row0, LV row1, bool read)
{
    enum { OPERATIONS = 24 };
    const LV one = l_i64(e, 1), width = l_i64(e, c->width);
    Places p = {.c = c, .budget = OPERATIONS};
    p.first[LANE_SIDE] = l_mul(e, tile0, width);
    p.last[LANE_SIDE] = l_sub(e, l_mul(e, tile1, width), one);
    p.first[ROW_SIDE] = row0;
    p.last[ROW_SIDE] = l_sub(e, row1, one);
    LV may = may_be(e, &p, c->wanted, read != c->unless);
    return !may ? l_const(e, SC_I1, 1, false) : p.odd ? LLVMBuildOr(e->b, may, p.odd, "") : may;
}

LV skip_may_want(Emit *e, const Contract *c, LV tile0, LV tile1, LV row0, LV row1)
{
    return may_want(e, c, tile0, tile1, row0, row1, true);
}

LV skip_look(Emit *e, const Contract *c) { return may_want(e, c, c->panel0, c->panel1, c->row0, c->row1, true); }

LV skip_wanted(Emit *e, const Contract *c, bool read)
{
    LV first = contract_first_row(e, c), end = l_min(e, l_add(e, first, c->group_rows), c->end[ROW_SIDE]);
    return may_want(e, c, c->tile, l_add(e, c->tile, l_i64(e, 1)), first, end, read);
}

/* ---- flags: i64, 0 or not ---- */

static LV flag_at(Emit *e, LV flags, LV i) { return l_gep(e, e->type[SC_I64], flags, i); }

static void flag_set(Emit *e, LV flags, LV i, LV bit)
{
    l_store(e, LLVMBuildZExt(e->b, bit, e->type[SC_I64], ""), flag_at(e, flags, i), 8);
}

static LV flag_is(Emit *e, LV flags, LV i)
{
    return LLVMBuildICmp(e->b, LLVMIntNE, l_load(e, e->type[SC_I64], flag_at(e, flags, i), 8), l_i64(e, 0), "");
}

LV skip_flags(Emit *e, const Contract *c, int which) { return l_gep_bytes(e, e->scratch, l_i64(e, c->flags_at[which])); }

int64_t skip_bytes(const Contract *c, int which)
{
    int64_t groups = c->block_rows / c->rows + 1;
    return c->zeros ? 8 * (which == FLAGS_ZERO ? groups : c->panels) : 0;
}

/* ---- blocks of zeros ---- */

/* Vectors that have an infinity or NaN in a lane have NaN there, others have zeros. */
static LV not_finite(Emit *e, const Contract *c, LV x, LLVMTypeRef bits)
{
    LV zero = LLVMConstNull(c->vector);
    if (c->dot.each == 1)
        return LLVMBuildFMul(e->b, x, zero, "");
    LV both = LLVMBuildBitCast(e->b, x, bits, ""), sixteen = l_splat_n(e, LLVMConstInt(e->type[SC_I32], 16, 0), (unsigned)c->dot.lanes);
    LV low = LLVMBuildBitCast(e->b, LLVMBuildShl(e->b, both, sixteen, ""), c->vector, "");
    LV high = LLVMBuildAnd(e->b, both, l_splat_n(e, LLVMConstInt(e->type[SC_I32], 0xffff0000u, 0), (unsigned)c->dot.lanes), "");
    return LLVMBuildFAdd(e->b, LLVMBuildFMul(e->b, low, zero, ""),
                         LLVMBuildFMul(e->b, LLVMBuildBitCast(e->b, high, c->vector, ""), zero, ""), "");
}

static LLVMTypeRef bits_of(Emit *e, const Contract *c)
{
    return LLVMVectorType(e->type[dtype_bytes(c->dot.acc) == 8 ? SC_I64 : SC_I32], (unsigned)c->dot.lanes);
}

/* i1: is no lane of these set? */
static LV no_lane(Emit *e, const Contract *c, LV set)
{
    LV mask = LLVMBuildBitCast(e->b, set, LLVMIntTypeInContext(e->ctx, (unsigned)c->dot.lanes), "");
    return LLVMBuildICmp(e->b, LLVMIntEQ, mask, LLVMConstNull(LLVMTypeOf(mask)), "");
}

/* Whole blocks only: of a part the end of a panel is no whole vector. For panels [first, end) of `width`, `stride` elements apart: their flags. What
 * is looked for ends the search of a panel. */
static void look_through(Emit *e, const Contract *c, LV panels, int64_t width, int64_t stride, LV first, LV end, LV whole, bool zeros)
{
    enum { CHAINS = 4 }; /* of additions */
    LLVMTypeRef element = LLVMGetElementType(c->vector), bits = bits_of(e, c);
    int64_t chunks = 16 / c->dot.each, each = c->dot.block / c->dot.each * width / c->dot.lanes / chunks;
    LV flags = skip_flags(e, c, zeros ? FLAGS_ZERO : FLAGS_FINITE);
    Loop p = loop_begin(e, first, end, l_i64(e, 1), "panel");
    LV from = l_gep(e, element, panels, l_mul(e, p.iv, l_i64(e, stride)));
    flag_set(e, flags, p.iv, whole);
    Loop i = loop_begin(e, l_i64(e, 0), l_i64(e, chunks), l_i64(e, 1), "chunk");
    If still = if_begin(e, flag_is(e, flags, p.iv), "still");
    LV all[CHAINS] = {0};
    for (int64_t v = 0; v < each; v++) {
        LV at = l_gep(e, element, from, l_add(e, l_mul(e, i.iv, l_i64(e, each * c->dot.lanes)), l_i64(e, v * c->dot.lanes)));
        LV x = l_load(e, c->vector, at, (unsigned)dtype_bytes(c->dot.acc)), *to = &all[v % CHAINS];
        if (zeros)
            x = LLVMBuildBitCast(e->b, x, bits, "");
        else
            x = not_finite(e, c, x, bits);
        *to = !*to ? x : zeros ? LLVMBuildOr(e->b, *to, x, "") : LLVMBuildFAdd(e->b, *to, x, "");
    }
    for (int64_t v = 1; v < CHAINS && v < each; v++)
        all[0] = zeros ? LLVMBuildOr(e->b, all[0], all[v], "") : LLVMBuildFAdd(e->b, all[0], all[v], "");
    LV bad = zeros ? LLVMBuildICmp(e->b, LLVMIntNE, all[0], LLVMConstNull(bits), "") : LLVMBuildFCmp(e->b, LLVMRealUNO, all[0], all[0], "");
    flag_set(e, flags, p.iv, no_lane(e, c, bad));
    if_end(e, &still);
    loop_end(e, &i);
    loop_end(e, &p);
}

/* i1, where it lies: are the rows of this group zeros in the block, which is a whole one? What is none ends it. */
static LV zero_rows(Emit *e, const Contract *c, LV whole)
{
    enum { VECTORS = 4 };
    const int all = e->lanes;
    const int64_t points = c->dot.lanes * c->dot.each;
    LV zero = l_alloca(e, e->type[SC_I1], 0, "zero"), first = contract_first_row(e, c);
    LV end = l_min(e, l_add(e, first, c->group_rows), c->end[ROW_SIDE]);
    l_store(e, whole, zero, 0);
    lanes_change(e, c->dot.lanes);
    Loop r = loop_begin(e, first, LLVMBuildSelect(e->b, whole, end, first, ""), l_i64(e, 1), "row");
    contract_row(e, c, r.iv);
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    e->cur = LV_R;
    Loop k = loop_begin(e, c->k0, c->k1, l_i64(e, VECTORS * points), "zeros");
    LV some = NULL;
    for (int64_t v = 0; v < VECTORS; v++) {
        contract_anew(e, LV_R);
        LV x = LLVMBuildBitCast(e->b, contract_factors(e, c, ROW_SIDE, l_add(e, k.iv, l_i64(e, v * points))), bits_of(e, c), "");
        some = some ? LLVMBuildOr(e->b, some, x, "") : x;
    }
    LV none = no_lane(e, c, LLVMBuildICmp(e->b, LLVMIntNE, some, LLVMConstNull(bits_of(e, c)), ""));
    l_store(e, none, zero, 0);
    k.end = LLVMBuildSelect(e->b, none, k.end, c->k0, "");
    loop_end(e, &k);
    level_close(e, LV_ROW, LV_ROW);
    r.end = LLVMBuildSelect(e->b, l_load(e, e->type[SC_I1], zero, 0), r.end, first, "");
    loop_end(e, &r);
    lanes_change(e, all);
    return zero;
}

static LV group_panel(Emit *e, const Contract *c, LV group)
{
    return contract_slot(e, c, c->rows_at, l_mul(e, group, l_i64(e, panel_stride(c, c->rows))));
}

static void zero_panel(Emit *e, const Contract *c, LV panel)
{
    Loop i = loop_begin(e, l_i64(e, 0), l_i64(e, c->dot.block / c->dot.each * c->rows), l_i64(e, c->dot.lanes), "zeros");
    l_store(e, LLVMConstNull(c->vector), l_gep(e, LLVMGetElementType(c->vector), panel, i.iv), (unsigned)dtype_bytes(c->dot.acc));
    loop_end(e, &i);
}

/* Outside of a span, which all rows have in common, they are zeros without a look. A part of a block has no flag: its panel is made. */
LV skip_pack_rows(Emit *e, const Contract *c, LV whole)
{
    enum { AGAIN = 2 };
    const bool spans = c->span_arg[SPAN_ROWS] != NO_SPAN;
    LV some = l_alloca(e, e->type[SC_I1], 0, "some"), flags = skip_flags(e, c, FLAGS_ZERO), i1 = LLVMConstInt(e->type[SC_I1], 1, 0);
    LV outside = spans ? span_outside(e, c->rows_span, c->k0, c->k1) : LLVMConstNull(e->type[SC_I1]);
    LV look = LLVMBuildAnd(e->b, whole, LLVMBuildXor(e->b, outside, i1, ""), "");
    l_store(e, LLVMConstNull(e->type[SC_I1]), some, 0);
    Loop g = loop_begin(e, l_i64(e, 0), c->groups, l_i64(e, 1), "group");
    Contract of = *c;
    of.group = g.iv;
    LV at = flag_at(e, flags, g.iv), zero = l_load(e, e->type[SC_I1], zero_rows(e, &of, look), 0), to = group_panel(e, c, g.iv);
    zero = LLVMBuildOr(e->b, zero, LLVMBuildAnd(e->b, whole, outside, ""), "");
    LV again = LLVMBuildAnd(e->b, LLVMBuildICmp(e->b, LLVMIntNE, c->k0, l_i64(e, 0), ""), flag_is(e, flags, g.iv), "");
    LV flag = LLVMBuildSelect(e->b, again, l_i64(e, AGAIN), l_i64(e, 1), "");
    l_store(e, LLVMBuildSelect(e->b, zero, flag, l_i64(e, 0), ""), at, 8);
    l_store(e, LLVMBuildOr(e->b, l_load(e, e->type[SC_I1], some, 0), zero, ""), some, 0);
    If others = if_begin(e, LLVMBuildXor(e->b, LLVMBuildOr(e->b, zero, outside, ""), i1, ""), "others");
    pack_panels(e, c, ROW_SIDE, &(Panels){contract_first_row(e, &of), l_i64(e, 1), c->group_rows, c->rows, to}, c->k0, c->k1);
    if_end(e, &others);
    if (spans) {
        If part = if_begin(e, LLVMBuildAnd(e->b, outside, LLVMBuildXor(e->b, whole, i1, ""), ""), "part");
        zero_panel(e, c, to);
        if_end(e, &part);
    }
    loop_end(e, &g);
    return l_load(e, e->type[SC_I1], some, 0);
}

/* What lies outside of a span, group by group: it is zeros. A part of a block has no flag: its panel is made. */
LV skip_pack_columns(Emit *e, const Contract *c, LV whole)
{
    LV none = l_i64(e, 0), one = l_i64(e, 1), flags = skip_flags(e, c, FLAGS_ZERO), height = c->group_rows;
    LV end = l_ceil_div(e, l_max(e, l_sub(e, c->rows_span.end, c->row0), none), height);
    LV first = l_div(e, l_max(e, l_sub(e, c->rows_span.first, c->row0), none), height);
    end = l_min(e, end, c->groups);
    first = l_min(e, first, end);
    LV to = contract_slot(e, c, c->rows_at, l_mul(e, first, l_i64(e, panel_stride(c, c->rows))));
    LV at = l_add(e, c->row0, l_mul(e, first, height));
    pack_panels(e, c, ROW_SIDE, &(Panels){at, l_sub(e, end, first), height, c->rows, to}, c->k0, c->k1);
    for (int side = 0; side < 2; side++) {
        Loop g = loop_begin(e, side ? end : none, side ? c->groups : first, one, "outside");
        flag_set(e, flags, g.iv, whole);
        If part = if_begin(e, LLVMBuildNot(e->b, whole, ""), "part");
        zero_panel(e, c, group_panel(e, c, g.iv));
        if_end(e, &part);
        loop_end(e, &g);
    }
    return skip_find_zeros(e, c, first, end, whole);
}

/* The panel of rows that has not been packed. */
void skip_pack_zeros(Emit *e, const Contract *c, LV group, LV rows)
{
    If zero = if_begin(e, flag_is(e, skip_flags(e, c, FLAGS_ZERO), group), "zero_rows");
    l_unlikely(e, zero.branch);
    zero_panel(e, c, rows);
    if_end(e, &zero);
}

LV skip_find_zeros(Emit *e, const Contract *c, LV first, LV end, LV whole)
{
    LV some = l_alloca(e, e->type[SC_I1], 0, "some"), flags = skip_flags(e, c, FLAGS_ZERO);
    look_through(e, c, contract_slot(e, c, c->rows_at, l_i64(e, 0)), c->rows, panel_stride(c, c->rows), first, end, whole, true);
    l_store(e, LLVMConstNull(e->type[SC_I1]), some, 0);
    Loop g = loop_begin(e, l_i64(e, 0), c->groups, l_i64(e, 1), "group");
    l_store(e, LLVMBuildOr(e->b, l_load(e, e->type[SC_I1], some, 0), flag_is(e, flags, g.iv), ""), some, 0);
    loop_end(e, &g);
    return l_load(e, e->type[SC_I1], some, 0);
}

void skip_find_finite(Emit *e, const Contract *c, LV panels, int64_t stride, LV count, LV some)
{
    If any = if_begin(e, some, "finite");
    look_through(e, c, panels, c->width, stride, l_i64(e, 0), count, LLVMConstInt(e->type[SC_I1], 1, 0), false);
    if_end(e, &any);
}

/* i1: are the sums of the block +0? The panel's flag is only there where some group has zeros. */
LV skip_is_zero(Emit *e, const Contract *c, LV tile, LV group)
{
    LV zero = flag_is(e, skip_flags(e, c, FLAGS_ZERO), group), finite = flag_is(e, skip_flags(e, c, FLAGS_FINITE), tile);
    return LLVMBuildSelect(e->b, zero, finite, LLVMConstNull(e->type[SC_I1]), "");
}

/* What multiply() does with such a block. */
void skip_add_zeros(Emit *e, const Contract *c, LV sums, LV first)
{
    LV flag = l_load(e, e->type[SC_I64], flag_at(e, skip_flags(e, c, FLAGS_ZERO), c->group), 8);
    If once = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, flag, l_i64(e, 1), ""), "once");
    unsigned align = (unsigned)dtype_bytes(c->dot.acc) * (unsigned)c->dot.lanes;
    Loop i = loop_begin(e, l_i64(e, 0), l_i64(e, c->rows * c->width / c->dot.lanes), l_i64(e, 1), "zeros");
    LV at = l_gep(e, LLVMGetElementType(c->vector), sums, l_mul(e, i.iv, l_i64(e, c->dot.lanes))), zero = LLVMConstNull(c->vector);
    LV old = l_load(e, c->vector, at, align);
    l_store(e, LLVMBuildSelect(e->b, first, zero, LLVMBuildFAdd(e->b, old, zero, ""), ""), at, align);
    loop_end(e, &i);
    if_end(e, &once);
}

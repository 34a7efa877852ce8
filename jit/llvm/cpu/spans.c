/*
 * Spans: of rows of a band that are +0 but for some columns, the others are neither written nor read.
 *
 * Behind a mask half of what causal attention's gradient hands on, weights and their gradients, is zeros. A product that makes such rows tells
 * those that read them [first, end), the columns outside of which all rows of its task are +0, in whole units, which blocks of k are, and writes
 * these and MARGIN columns on either side, as far as there are any, for groups of columns. Elsewhere nothing is there, or what an earlier band left.
 *
 *     made     sums that no store reads (skip.c) are left out by whole tiles. What is stored instead has to be the same in all of a row, and it
 *              is looked at, row by row: exp(-inf - m) is +0 unless m is NaN or -inf. If it is not +0 in one, all columns are in the span
 *     rows     of a product's row operand blocks outside are zeros without a look, and not packed (skip_pack_rows, skip_pack_columns)
 *     beside   what is read beside the sums of a tile that is all outside is zero
 *
 * No bit changes: readers take for +0 what is +0, and multiply zeros as before where the other panel is not finite.
 * A launch has spans where all that touch the rows heed them and have the same blocks of rows (LaunchPlan.spans, runtime/eval/launch_band.c);
 * else the pointer is NULL, and the rows are all there.
 */
#include "jit/llvm/cpu/contract.h"

#include "jit/plan.h"

/* Columns. A block of k or a tile that has one of a span has no others; a group may have some. */
enum { UNIT = 256, MARGIN = MOST_ROWS };

/* ---- the plan ---- */

/* Is it the same in all of a row, as far as `says` leaves it? */
static bool same_in_row(const Kernel *k, VRef v, const int8_t *says, uint32_t columns, int *budget)
{
    const KInst *n = &k->inst.at[v];
    VRef in[4];
    if (--*budget < 0)
        return false;
    if (n->kind == KI_LOAD || n->kind == KI_INDEX)
        return n->pred == VREF_NONE && !index_through_value(k, n->idx) && !kidx_uses_axis(k, n->idx, columns);
    if (n->kind != KI_OP)
        return n->kind == KI_CONST || n->kind == KI_SCALAR;
    if (n->op == OP_WHERE && says[n->a] >= 0)
        return same_in_row(k, says[n->a] ? n->b : n->c, says, columns, budget);
    uint32_t count = kernel_operands(n, in);
    bool same = true;
    for (uint32_t i = 0; i < count && same; i++)
        same = same_in_row(k, in[i], says, columns, budget);
    return same;
}

/* The only store, if what it stores where no sum is read is the same in all of a row. */
static VRef even_store(const Emit *e, const Contract *c)
{
    enum { OPERATIONS = 32 };
    const Kernel *k = e->k;
    VRef store = VREF_NONE;
    int budget = OPERATIONS;
    for (VRef v = 0; v < k->inst.n; v++) {
        const InstKind kind = (InstKind)k->inst.at[v].kind;
        if (kind == KI_SCATTER || kind == KI_BOUND || (kind == KI_STORE && store != VREF_NONE))
            return VREF_NONE;
        store = kind == KI_STORE ? v : store;
    }
    const bool even = c->wanted != VREF_NONE && store != VREF_NONE && c->dot.axis[LANE_SIDE] != NO_AXIS &&
                      same_in_row(k, k->inst.at[store].a, c->says[false], (uint32_t)c->dot.axis[LANE_SIDE], &budget);
    return even && dtype_is_float((DType)k->inst.at[k->inst.at[store].a].dtype) ? store : VREF_NONE;
}

/* Is it one element for each sum? */
static bool is_beside(const Emit *e, const Contract *c, const KInst *load)
{
    bool beside = load->pred == VREF_NONE && !index_through_value(e->k, load->idx) &&
                  kidx_uses_axis(e->k, load->idx, (uint32_t)c->dot.axis[LANE_SIDE]) && UNIT % c->width == 0;
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        beside &= !kidx_uses_axis(e->k, load->idx, a);
    return beside;
}

/* What the kernel does with these rows; SPANS: something else. */
static int use_of(const Emit *e, const Contract *c, uint32_t arg, VRef *load)
{
    const VRef store = even_store(e, c);
    uint32_t loads = 0;
    for (VRef v = 0; v < e->k->inst.n; v++)
        if (e->k->inst.at[v].kind == KI_LOAD && e->k->inst.at[v].arg == arg) {
            *load = v;
            loads++;
        }
    if (e->k->args.at[arg].written)
        return !loads && !c->folds && store != VREF_NONE && e->k->inst.at[store].arg == arg ? SPAN_MADE : SPANS;
    if (loads == 1 && *load == c->dot.operand[ROW_SIDE])
        return c->zeros && c->dot.along[ROW_SIDE] == !c->folds && UNIT % c->dot.block == 0 ? SPAN_ROWS : SPANS;
    return loads == 1 && !c->folds && store != VREF_NONE && is_beside(e, c, &e->k->inst.at[*load]) ? SPAN_BESIDE : SPANS;
}

void spans_plan(const Emit *e, Contract *c, bool rows_are_tasks)
{
    const Kernel *k = e->k;
    bool heeds = c->way == WAY_PACKED && !c->in_place && c->dot.outer == NO_AXIS && e->facts.n_products == 1 &&
                 e->schedule.split == SPLIT_NEVER && (c->folds || rows_are_tasks) && c->rows <= MARGIN;
    uint32_t arg[SPANS] = {NO_SPAN, NO_SPAN, NO_SPAN};
    for (uint32_t a = 0; a < k->args.n && heeds; a++) {
        VRef load = VREF_NONE;
        if (k->args.at[a].kind != ARG_SPANS)
            continue;
        const int which = use_of(e, c, k->args.at[a].of, &load);
        heeds = which != SPANS && arg[which] == NO_SPAN;
        if (heeds)
            arg[which] = a;
        c->beside = which == SPAN_BESIDE ? load : c->beside;
    }
    for (int which = 0; which < SPANS; which++) {
        c->span_arg[which] = heeds ? arg[which] : NO_SPAN;
        c->spans |= c->span_arg[which] != NO_SPAN;
    }
}

/* ---- where a block's is ---- */

/* Are there any? */
static If if_spans(Emit *e, LV spans)
{
    return if_begin(e, LLVMBuildICmp(e->b, LLVMIntNE, spans, LLVMConstNull(LLVMTypeOf(spans)), ""), "spans");
}

static LV place_in(Emit *e, LV spans, LV block, bool end)
{
    return l_gep_bytes(e, spans, l_add(e, l_mul(e, block, l_i64(e, SPAN_BYTES)), l_i64(e, end ? SPAN_BYTES / 2 : 0)));
}

static Span read_span(Emit *e, const Contract *c, int which, LV block, LV columns)
{
    LV first = l_alloca(e, e->type[SC_I64], 0, "first"), end = l_alloca(e, e->type[SC_I64], 0, "end");
    LV spans = argument(e, c->span_arg[which]);
    l_store(e, l_i64(e, 0), first, 0);
    l_store(e, columns, end, 0);
    If there = if_spans(e, spans);
    l_store(e, l_load(e, e->type[SC_I64], place_in(e, spans, block, false), 8), first, 0);
    l_store(e, l_load(e, e->type[SC_I64], place_in(e, spans, block, true), 8), end, 0);
    if_end(e, &there);
    return (Span){l_load(e, e->type[SC_I64], first, 0), l_load(e, e->type[SC_I64], end, 0)};
}

LV span_outside(Emit *e, Span s, LV from, LV to)
{
    return LLVMBuildOr(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, from, s.end, ""), LLVMBuildICmp(e->b, LLVMIntSLE, to, s.first, ""), "");
}

/* ---- making ---- */

/* i1: is what these rows have where no sum is read +0? */
static LV rows_are_zeros(Emit *e, Contract *c)
{
    const int lanes = e->lanes, cur = e->cur;
    const VRef stored = e->k->inst.at[even_store(e, c)].a;
    LV zero = l_alloca(e, e->type[SC_I1], 0, "zero");
    l_store(e, LLVMConstInt(e->type[SC_I1], 1, 0), zero, 0);
    lanes_change(e, 1);
    e->cur = LV_ROW;
    contract_tile(e, c, l_i64(e, 0));
    e->says = c->says[false];
    Loop r = loop_begin(e, c->row0, c->row1, l_i64(e, 1), "zeros");
    level_open(e, LV_ROW);
    contract_row(e, c, r.iv);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    LV x = value(e, stored).v;
    LLVMTypeRef bits = LLVMIntTypeInContext(e->ctx, 8 * (unsigned)dtype_bytes((DType)e->k->inst.at[stored].dtype));
    LV is = LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildBitCast(e->b, x, bits, ""), LLVMConstNull(bits), "");
    l_store(e, LLVMBuildAnd(e->b, l_load(e, e->type[SC_I1], zero, 0), is, ""), zero, 0);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &r);
    e->says = NULL;
    mask_end(e);
    lanes_change(e, lanes);
    e->cur = cur;
    return l_load(e, e->type[SC_I1], zero, 0);
}

/* Tells the span of this block of rows and leaves the task those tiles that are in it, or near. */
static void make_span(Emit *e, Contract *c, LV block)
{
    LV spans = argument(e, c->span_arg[SPAN_MADE]), none = l_i64(e, 0), one = l_i64(e, 1), width = l_i64(e, c->width);
    LV first = l_alloca(e, e->type[SC_I64], 0, "first"), end = l_alloca(e, e->type[SC_I64], 0, "end");
    l_store(e, none, first, 0);
    l_store(e, c->tiles, end, 0);
    If there = if_spans(e, spans);
    l_store(e, c->tiles, first, 0);
    l_store(e, none, end, 0);
    Loop t = loop_begin(e, none, c->tiles, one, "span");
    LV next = l_add(e, t.iv, one), some = skip_may_want(e, c, t.iv, next, c->row0, c->row1);
    LV low = l_load(e, e->type[SC_I64], first, 0), high = l_load(e, e->type[SC_I64], end, 0);
    l_store(e, LLVMBuildSelect(e->b, some, l_min(e, low, t.iv), low, ""), first, 0);
    l_store(e, LLVMBuildSelect(e->b, some, next, high, ""), end, 0);
    loop_end(e, &t);
    LV zeros = rows_are_zeros(e, c), unit = l_i64(e, UNIT), columns = c->n[LANE_SIDE];
    high = l_load(e, e->type[SC_I64], end, 0);
    low = l_mul(e, l_div(e, l_mul(e, l_min(e, l_load(e, e->type[SC_I64], first, 0), high), width), unit), unit);
    high = l_min(e, l_mul(e, l_ceil_div(e, l_mul(e, high, width), unit), unit), columns);
    low = LLVMBuildSelect(e->b, zeros, low, none, "");
    high = LLVMBuildSelect(e->b, zeros, high, columns, "");
    l_store(e, low, place_in(e, spans, block, false), 8);
    l_store(e, high, place_in(e, spans, block, true), 8);
    LV margin = l_i64(e, MARGIN);
    l_store(e, l_div(e, l_max(e, l_sub(e, low, margin), none), width), first, 0);
    l_store(e, l_ceil_div(e, l_add(e, high, margin), width), end, 0);
    if_end(e, &there);
    c->tile0 = l_max(e, c->tile0, l_load(e, e->type[SC_I64], first, 0));
    c->tile1 = l_min(e, c->tile1, l_load(e, e->type[SC_I64], end, 0));
}

void spans_begin(Emit *e, Contract *c, LV block)
{
    if (c->span_arg[SPAN_ROWS] != NO_SPAN)
        c->rows_span = read_span(e, c, SPAN_ROWS, block, c->folds ? c->n[ROW_SIDE] : c->n_k);
    if (c->span_arg[SPAN_BESIDE] != NO_SPAN)
        c->beside_span = read_span(e, c, SPAN_BESIDE, block, c->n[LANE_SIDE]);
    if (c->span_arg[SPAN_MADE] != NO_SPAN)
        make_span(e, c, block);
}

LV spans_beside(Emit *e, const Contract *c)
{
    LV width = l_i64(e, c->width), from = l_mul(e, c->tile, width);
    return span_outside(e, c->beside_span, from, l_add(e, from, width));
}

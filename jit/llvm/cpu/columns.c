/*
 * Reductions of few columns (the directive `columns`): a table of C columns, a constant few, whose rows lie one behind another in memory, is read as
 * it lies. Lanes run along both axes, over joint = row * C + column:
 *
 *     memory        00 01 02  10 11 12  20 21 22  30 31 32  40 41 ...        row, column of three
 *     accumulators  [ 64 rows of C: canonical lane and column              ] each step takes the next `lanes` of them, round and round
 *
 * An element's canonical lane is its row's number mod 64 (ir/orders.def), so 64 * C accumulators in the order of memory are all that there are. The
 * tree adds their upper half to the lower one six times, which leaves C sums; each is then an x point by itself, without lanes. Where no
 * order shows, any number of rows will do: as few as make whole steps, which is one vector where C is a power of two.
 *
 * Coordinates differ from lane to lane. An index in which they occur as row * C + column, times a constant, has that stride (index.c); any
 * other is an index of its own for each lane.
 */
#include "jit/llvm/build.h"

static LV count(const Emit *e) { return l_i64(e, e->schedule.columns); }

/* Accumulators, of each fold. */
static uint32_t slots(const Emit *e) { return e->n_red ? e->red[0].slots : 1; }

/* `at`: where the number of the next accumulator is kept; NULL: there is one. */
static void step(Emit *e, const NestNode *node, LV joint, LV at)
{
    uint32_t x = e->n_x - 1;
    e->slot = at ? l_load(e, e->type[SC_I64], at, 8) : NULL;
    level_open(e, LV_R);
    e->flat = joint;
    e->joint = (Ix){.base = joint, .stride = l_i64(e, 1), .aligned = true};
    e->axis[x] = ix_divide(e, e->joint, count(e), IREF_NONE, true);
    Ix row = ix_divide(e, e->joint, count(e), IREF_NONE, false);
    for (uint32_t a = e->k->axes.n; a-- > e->n_x;) {
        LV size = l_max(e, axis_size(e, a), l_i64(e, 1));
        e->axis[a] = a == e->n_x ? row : ix_divide(e, row, size, IREF_NONE, true);
        row = a == e->n_x ? row : ix_divide(e, row, size, IREF_NONE, false);
    }
    nest_inside(e, node);
    e->joint.base = NULL;
    if (!at)
        return;
    LV next = l_add(e, e->slot, l_i64(e, 1)), over = LLVMBuildICmp(e->b, LLVMIntEQ, next, l_i64(e, slots(e)), "");
    l_store(e, LLVMBuildSelect(e->b, over, l_i64(e, 0), next, ""), at, 8);
    e->slot = NULL;
}

/* What halve works in: one accumulator is in a register as long as nobody asks for a part of it. */
static LV apart(Emit *e, const Reduction *r)
{
    DType t = (DType)r->acc_type;
    if (r->slots > 1)
        return r->acc;
    LV copy = l_alloca(e, slot_type(e, t), 64, "apart");
    l_store(e, l_load(e, slot_type(e, t), r->acc, (unsigned)dtype_bytes(t)), copy, (unsigned)dtype_bytes(t));
    return copy;
}

/* acc[i] = acc[i] op acc[i + half] for i < half, `wide` at a time. */
static void halve(Emit *e, const Reduction *r, LV acc, int64_t half, int64_t wide)
{
    DType t = (DType)r->acc_type;
    LLVMTypeRef element = l_memory(e, t);
    int lanes = e->lanes;
    e->lanes = (int)wide; /* tapes are emitted for this width */
    for (int64_t i = 0; i < half; i += wide) {
        LV at[2] = {l_gep(e, element, acc, l_i64(e, i)), l_gep(e, element, acc, l_i64(e, i + half))}, v[2];
        for (int s = 0; s < 2; s++)
            v[s] = l_from_memory(e, t, l_load(e, slot_type(e, t), at[s], (unsigned)dtype_bytes(t)));
        LV sum = part_merge(e, r, (Part){.v = v[0]}, (Part){.v = v[1]}, true).v;
        l_store(e, l_to_memory(e, t, sum), at[0], (unsigned)dtype_bytes(t));
    }
    e->lanes = lanes;
}

/* total = first ? acc : total op acc, of each column. */
static void add_totals(Emit *e, const Reduction *r, LV acc, LV first)
{
    DType t = (DType)r->acc_type;
    LLVMTypeRef element = l_memory(e, t);
    unsigned bytes = (unsigned)dtype_bytes(t);
    int lanes = e->lanes;
    Loop j = loop_begin(e, l_i64(e, 0), count(e), l_i64(e, 1), "total");
    e->lanes = 1;
    LV at = l_gep(e, element, r->totals, j.iv), now = l_from_memory(e, t, l_load(e, element, l_gep(e, element, acc, j.iv), bytes));
    LV old = LLVMBuildSelect(e->b, first, now, l_from_memory(e, t, l_load(e, element, at, bytes)), "");
    LV sum = part_merge(e, r, (Part){.v = old}, (Part){.v = now}, false).v;
    l_store(e, l_to_memory(e, t, LLVMBuildSelect(e->b, first, now, sum, "")), at, bytes);
    e->lanes = lanes;
    loop_end(e, &j);
}

/* The rows of a block. */
void walk_joint(Emit *e, const NestNode *node)
{
    LV from = e->folded.from, to = e->folded.to;
    LV lanes = l_i64(e, node->by), begin = l_mul(e, from, count(e)), end = l_mul(e, to, count(e)), span = l_sub(e, end, begin);
    LV full = l_add(e, begin, l_mul(e, l_div(e, span, lanes), lanes)), at = NULL;
    if (slots(e) > 1) {
        at = l_alloca(e, e->type[SC_I64], 8, "slot");
        l_store(e, l_i64(e, 0), at, 8);
    }
    Loop l = loop_begin(e, begin, full, lanes, "joint");
    step(e, node, l.iv, at);
    loop_end(e, &l);
    if (node->tail == NEST_TAIL_NONE)
        return;
    If i = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, full, end, ""), "joint_tail");
    e->mask = l_lane_mask(e, l_sub(e, end, full));
    step(e, node, full, at);
    mask_end(e);
    if_end(e, &i);
}

/* Its accumulators, into the totals. */
void walk_column_merge(Emit *e, const NestNode *node)
{
    int64_t even = e->schedule.columns & -e->schedule.columns;
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (r->stage != node->number)
            continue;
        LV acc = apart(e, r);
        for (int64_t lane = nest_column_rows(&e->nest, &e->facts) / 2; lane; lane /= 2)
            halve(e, r, acc, lane * e->schedule.columns, lane * even < MAX_LANES ? lane * even : MAX_LANES);
        add_totals(e, r, acc, e->folded.first);
    }
}

/* What is done with each column, for which lanes are gone and its x coordinate is set: with its totals, or with the blocks' results. */
void walk_column(Emit *e, const NestNode *node)
{
    if (e->nest.node.at[node->parent].kind != NEST_COLUMNS) {
        for (uint32_t i = 0; i < e->n_red; i++)
            e->red[i].totals = NULL;
        pin(e, LV_ROW);
    }
    Loop j = loop_begin(e, l_i64(e, 0), count(e), l_i64(e, 1), "column");
    lanes_change(e, 1);
    level_open(e, LV_R);
    e->axis[e->n_x - 1] = ix_uniform(j.iv);
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].totals)
            e->red[i].total = l_gep(e, l_memory(e, (DType)e->red[i].acc_type), e->red[i].totals, j.iv);
    if (e->split)
        count_x(e);
    nest_inside(e, node);
    loop_end(e, &j);
    lanes_change(e, (int)e->schedule.lanes);
    level_close(e, LV_ROW, LV_ROW);
}

/* For the point of the outer x axes that is set: all blocks, or the one that is a task; then the columns. */
void walk_columns(Emit *e, const NestNode *node)
{
    e->stage = node->number;
    pin(e, LV_ROW);
    reduce_open(e, node->number);
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        r->totals = l_alloca(e, LLVMArrayType2(l_memory(e, (DType)r->acc_type), (uint64_t)e->schedule.columns), 64, "totals");
    }
    if (!node->partial)
        e->folded = all_folded(e);
    nest_inside(e, node);
}

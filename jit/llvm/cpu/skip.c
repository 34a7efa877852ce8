/*
 * What a packed product need not multiply, found out while it runs; no bit changes.
 *
 *     unwanted   where every store of a tile goes through where(p, .., sum, .., something else) and p, which is made of places alone, is false in
 *                all of the tile: causal attention asks for half of the scores
 *     zeros      where a group's rows of a band are +0 in a whole block of k, as behind a mask: the block's sums are +0 if nothing in the panel is
 *                infinite or NaN. Adding +0 is all that is left of it
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
    }
}

/* i1: is any point of the tile wanted? */
static LV tile_wanted(Emit *e, const Contract *c, LV group, LV tile)
{
    LV first = l_add(e, c->row0, l_mul(e, group, c->group_rows)), found = l_alloca(e, e->type[SC_I1], 0, "wanted");
    LV end = l_min(e, l_add(e, first, c->group_rows), c->end[ROW_SIDE]);
    l_store(e, LLVMConstNull(e->type[SC_I1]), found, 0);
    lanes_change(e, (int)c->width);
    e->cur = LV_ROW;
    contract_tile(e, c, tile);
    Loop m = loop_begin(e, first, end, l_i64(e, 1), "look");
    level_open(e, LV_ROW);
    contract_row(e, c, m.iv);
    pin(e, LV_ROW);
    level_open(e, LV_TILE);
    Val p = value(e, c->wanted);
    p.v = c->unless ? LLVMBuildNot(e->b, p.v, "") : p.v;
    l_store(e, LLVMBuildOr(e->b, l_load(e, e->type[SC_I1], found, 0), l_any(e, p), ""), found, 0);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &m);
    mask_end(e);
    return l_load(e, e->type[SC_I1], found, 0);
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
    return 8 * (which == FLAGS_WANTED ? c->wanted == VREF_NONE ? 0 : groups * c->panels
                : c->zeros            ? which == FLAGS_ZERO ? groups : c->panels
                                      : 0);
}

LV skip_look(Emit *e, const Contract *c, LV tile0, LV tile1, LV groups)
{
    LV some = l_alloca(e, e->type[SC_I1], 0, "some"), flags = skip_flags(e, c, FLAGS_WANTED);
    l_store(e, LLVMConstNull(e->type[SC_I1]), some, 0);
    Loop j = loop_begin(e, tile0, tile1, l_i64(e, 1), "tile");
    Loop g = loop_begin(e, l_i64(e, 0), groups, l_i64(e, 1), "group");
    LV wanted = tile_wanted(e, c, g.iv, j.iv);
    flag_set(e, flags, l_add(e, l_mul(e, l_sub(e, j.iv, tile0), groups), g.iv), wanted);
    l_store(e, LLVMBuildOr(e->b, l_load(e, e->type[SC_I1], some, 0), wanted, ""), some, 0);
    loop_end(e, &g);
    loop_end(e, &j);
    return l_load(e, e->type[SC_I1], some, 0);
}

LV skip_wanted(Emit *e, const Contract *c, LV tile, LV groups, LV group)
{
    return flag_is(e, skip_flags(e, c, FLAGS_WANTED), l_add(e, l_mul(e, tile, groups), group));
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

/* Whole blocks only: of a part the end of a panel is no whole vector. For each of `count` panels of `width`, `stride` elements apart: its flag. What
 * is looked for ends the search of a panel. */
static void look_through(Emit *e, const Contract *c, LV panels, int64_t width, int64_t stride, LV count, LV whole, bool zeros)
{
    LLVMTypeRef element = LLVMGetElementType(c->vector),
                bits = LLVMVectorType(e->type[dtype_bytes(c->dot.acc) == 8 ? SC_I64 : SC_I32], (unsigned)c->dot.lanes);
    int64_t chunks = 16 / c->dot.each, each = c->dot.block / c->dot.each * width / c->dot.lanes / chunks;
    LV flags = skip_flags(e, c, zeros ? FLAGS_ZERO : FLAGS_FINITE);
    Loop p = loop_begin(e, l_i64(e, 0), count, l_i64(e, 1), "panel");
    LV from = l_gep(e, element, panels, l_mul(e, p.iv, l_i64(e, stride)));
    flag_set(e, flags, p.iv, whole);
    Loop i = loop_begin(e, l_i64(e, 0), l_i64(e, chunks), l_i64(e, 1), "chunk");
    If still = if_begin(e, flag_is(e, flags, p.iv), "still");
    LV all = NULL;
    for (int64_t v = 0; v < each; v++) {
        LV at = l_gep(e, element, from, l_add(e, l_mul(e, i.iv, l_i64(e, each * c->dot.lanes)), l_i64(e, v * c->dot.lanes)));
        LV x = l_load(e, c->vector, at, (unsigned)dtype_bytes(c->dot.acc));
        if (zeros)
            x = LLVMBuildBitCast(e->b, x, bits, "");
        else
            x = not_finite(e, c, x, bits);
        all = !all ? x : zeros ? LLVMBuildOr(e->b, all, x, "") : LLVMBuildFAdd(e->b, all, x, "");
    }
    LV bad = zeros ? LLVMBuildICmp(e->b, LLVMIntNE, all, LLVMConstNull(bits), "") : LLVMBuildFCmp(e->b, LLVMRealUNO, all, all, "");
    LV mask = LLVMBuildBitCast(e->b, bad, LLVMIntTypeInContext(e->ctx, (unsigned)c->dot.lanes), "");
    flag_set(e, flags, p.iv, LLVMBuildICmp(e->b, LLVMIntEQ, mask, LLVMConstNull(LLVMTypeOf(mask)), ""));
    if_end(e, &still);
    loop_end(e, &i);
    loop_end(e, &p);
}

LV skip_find_zeros(Emit *e, const Contract *c, LV groups, LV whole)
{
    LV some = l_alloca(e, e->type[SC_I1], 0, "some"), flags = skip_flags(e, c, FLAGS_ZERO);
    look_through(e, c, contract_slot(e, c, c->rows_at, l_i64(e, 0)), c->rows, panel_stride(c, c->rows), groups, whole, true);
    l_store(e, LLVMConstNull(e->type[SC_I1]), some, 0);
    Loop g = loop_begin(e, l_i64(e, 0), groups, l_i64(e, 1), "group");
    l_store(e, LLVMBuildOr(e->b, l_load(e, e->type[SC_I1], some, 0), flag_is(e, flags, g.iv), ""), some, 0);
    loop_end(e, &g);
    return l_load(e, e->type[SC_I1], some, 0);
}

void skip_find_finite(Emit *e, const Contract *c, LV panels, int64_t stride, LV count, LV some)
{
    If any = if_begin(e, some, "finite");
    look_through(e, c, panels, c->width, stride, count, LLVMConstInt(e->type[SC_I1], 1, 0), false);
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
    unsigned align = (unsigned)dtype_bytes(c->dot.acc) * (unsigned)c->dot.lanes;
    Loop i = loop_begin(e, l_i64(e, 0), l_i64(e, c->rows * c->width / c->dot.lanes), l_i64(e, 1), "zeros");
    LV at = l_gep(e, LLVMGetElementType(c->vector), sums, l_mul(e, i.iv, l_i64(e, c->dot.lanes))), zero = LLVMConstNull(c->vector);
    LV old = l_load(e, c->vector, at, align);
    l_store(e, LLVMBuildSelect(e->b, first, zero, LLVMBuildFAdd(e->b, old, zero, ""), ""), at, align);
    loop_end(e, &i);
}

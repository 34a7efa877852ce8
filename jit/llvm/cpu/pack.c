/*
 * Packing: whatever computes an operand is evaluated once for each element of a panel, which the micro-kernel then reads in order.
 *
 * Where neighbours along the panel's width are neighbours in memory (or nothing is), lanes run along the width; where they are along k,
 * vectors are read along k, one for each point of the width, and squares transposed in registers. Points past the end of the axis repeat
 * the last one, or are zero: no store reaches what they make.
 */
#include "jit/llvm/cpu/contract.h"

static LV panel(Emit *e, const Contract *c, const Panels *p, LV number)
{
    return l_gep(e, LLVMGetElementType(c->vector), p->to, l_mul(e, number, l_i64(e, panel_stride(c, p->width))));
}

static LV place(Emit *e, const Contract *c, LV to, LV step, int64_t width, int64_t more)
{
    LLVMTypeRef element = LLVMGetElementType(c->vector);
    return l_gep(e, element, l_gep(e, element, to, l_mul(e, step, l_i64(e, width))), l_i64(e, more));
}

static void set_axis(Emit *e, const Contract *c, int side, Ix ix)
{
    if (c->axis[side] != NO_AXIS)
        e->axis[c->axis[side]] = ix;
}

/* ---- lanes along the width ---- */

/* All panels of a step before the next step: what is contiguous is read in one go, and lines that two panels share once. */
static void pack_across(Emit *e, const Contract *c, int side, const Panels *p, LV k0, LV k1)
{
    int lanes = c->lanes, all = e->lanes;
    while (lanes < p->width)
        lanes *= 2;
    lanes_change(e, lanes);
    int64_t n;
    bool whole = c->axis[side] == NO_AXIS || (p->width == lanes && l_is_const(c->n[side], &n) && n % p->width == 0);
    Loop l = loop_begin(e, k0, k1, l_i64(e, 1), "pack");
    Loop j = loop_begin(e, l_i64(e, 0), p->count, l_i64(e, 1), "panel");
    LV at = l_add(e, p->first, l_mul(e, j.iv, l_i64(e, p->width)));
    set_axis(e, c, side, (Ix){.base = at, .stride = l_i64(e, 1), .aligned = p->width == lanes});
    if (!whole)
        tile_mask(e, l_sub(e, c->n[side], at));
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    e->cur = LV_R;
    contract_k(e, l.iv, false);
    e->prefetch_rows = true; /* rows far apart: the hardware does not follow */
    l_store(e, contract_operand(e, c, side), place(e, c, panel(e, c, p, j.iv), l_sub(e, l.iv, k0), p->width, 0),
            (unsigned)dtype_bytes(c->acc));
    e->prefetch_rows = false;
    level_close(e, LV_ROW, LV_ROW);
    mask_end(e);
    loop_end(e, &j);
    loop_end(e, &l);
    lanes_change(e, all);
}

/* ---- lanes along k ---- */

/* The square of points [sub, sub + lanes) of the panel and as many steps from k on, transposed; lanes past `width` are zero. */
static void square(Emit *e, const Contract *c, int side, LV first, int64_t width, int64_t sub, LV k, LV *v)
{
    enum { AHEAD = 256 };
    int64_t n;
    bool whole = c->axis[side] == NO_AXIS || (l_is_const(c->n[side], &n) && n % width == 0);
    for (int i = 0; i < c->lanes; i++) {
        if (sub + i >= width) {
            v[i] = LLVMConstNull(c->vector);
            continue;
        }
        for (int level = LV_ROW; level < LV_COUNT; level++) /* another point: nothing below LV_TASK holds */
            e->scope[level] = ++e->scopes;
        Place outside = level_enter(e, LV_ROW);
        LV at = l_add(e, first, l_i64(e, sub + i));
        if (!whole && sub + i)
            at = l_min(e, at, l_sub(e, c->n[side], l_i64(e, 1)));
        level_leave(e, outside);
        set_axis(e, c, side, ix_uniform(at));
        contract_k(e, k, true);
        e->ahead = AHEAD;
        v[i] = contract_operand(e, c, side);
        e->ahead = 0;
    }
    tile_transpose(e, v, c->lanes);
}

/* Steps in order, and all of a step before the next: what a store writes past the width is overwritten by the next step. */
static void pack_squares(Emit *e, const Contract *c, int side, LV first, int64_t width, LV k, LV from, LV to)
{
    enum { AT_ONCE = 4 };
    LV v[AT_ONCE][MAX_LANES];
    int64_t all = (width + c->lanes - 1) / c->lanes, at_once = width % c->lanes ? all : 1;
    for (int64_t sub = 0; sub < all; sub += at_once) {
        for (int64_t s = 0; s < at_once; s++)
            square(e, c, side, first, width, (sub + s) * c->lanes, k, v[s]);
        for (int i = 0; i < c->lanes; i++)
            for (int64_t s = 0; s < at_once; s++) {
                LV at = place(e, c, to, l_add(e, from, l_i64(e, i)), width, (sub + s) * c->lanes);
                l_store(e, v[s][i], at, (unsigned)dtype_bytes(c->acc));
            }
    }
}

static void pack_along(Emit *e, const Contract *c, int side, const Panels *p, LV k0, LV k1)
{
    int all = e->lanes;
    lanes_change(e, c->lanes);
    Loop j = loop_begin(e, l_i64(e, 0), p->count, l_i64(e, 1), "panel");
    LV first = l_add(e, p->first, l_mul(e, j.iv, l_i64(e, p->width))), to = panel(e, c, p, j.iv);
    LV lanes = l_i64(e, c->lanes), full = l_add(e, k0, l_mul(e, l_div(e, l_sub(e, k1, k0), lanes), lanes));
    Loop l = loop_begin(e, k0, full, lanes, "pack");
    e->before[LV_ROW] = e->before[LV_TILE] = l.guard;
    level_open(e, LV_ROW);
    e->cur = LV_R;
    pack_squares(e, c, side, first, p->width, l.iv, l_sub(e, l.iv, k0), to);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &l);
    int64_t n;
    if (!(l_is_const(c->n_k, &n) && n % c->lanes == 0)) {
        If tail = if_begin(e, LLVMBuildICmp(e->b, LLVMIntSLT, full, k1, ""), "pack_tail");
        e->before[LV_ROW] = e->before[LV_TILE] = tail.branch;
        level_open(e, LV_ROW);
        e->cur = LV_R;
        e->mask = l_lane_mask(e, l_sub(e, k1, full));
        pack_squares(e, c, side, first, p->width, full, l_sub(e, full, k0), to);
        mask_end(e);
        level_close(e, LV_ROW, LV_ROW);
        if_end(e, &tail);
    }
    loop_end(e, &j);
    lanes_change(e, all);
}

void pack_panels(Emit *e, const Contract *c, int side, const Panels *p, LV k0, LV k1)
{
    if (c->along[side])
        pack_along(e, c, side, p, k0, k1);
    else
        pack_across(e, c, side, p, k0, k1);
}

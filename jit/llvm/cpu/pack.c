/*
 * Packing: whatever computes an operand is evaluated once for each element of a panel, which the micro-kernel then reads in order.
 *
 * Where neighbours along the panel's width are neighbours in memory (or nothing is), lanes run along the width; where they are along k,
 * vectors are read along k, one for each point of the width, and squares transposed in registers. Points past the end of the axis repeat
 * the last one, or are zero: no store reaches what they make.
 */
#include "jit/llvm/cpu/contract.h"

#include "jit/pieces.h"

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
    if (c->dot.axis[side] != NO_AXIS)
        e->axis[c->dot.axis[side]] = ix;
}

/* Which step point k is. */
static LV step_of(Emit *e, const Contract *c, LV k0, LV k) { return l_div(e, l_sub(e, k, k0), l_i64(e, c->dot.each)); }

typedef struct Packing {
    const Panels *panels;
    LV k0, first, to; /* first, to: of the panel, where it is one after the other */
    int side;
    bool whole; /* no lane is past the end */
} Packing;

/* ---- lanes along the width ---- */

static void step_across(Emit *e, const Contract *c, const Loop *loop, int64_t n, void *user)
{
    const Packing *packing = user;
    const Panels *p = packing->panels;
    int side = packing->side;
    Loop j = loop_begin(e, l_i64(e, 0), p->count, l_i64(e, 1), "panel");
    LV at = l_add(e, p->first, l_mul(e, j.iv, p->apart));
    int64_t apart;
    set_axis(e, c, side, (Ix){.base = at, .stride = l_i64(e, 1), .aligned = l_is_const(p->apart, &apart) && apart == e->lanes});
    if (!packing->whole)
        tile_mask(e, l_sub(e, c->end[side], at));
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    e->cur = LV_R;
    e->prefetch_rows = true; /* rows far apart: the hardware does not follow */
    e->ahead_far = true;     /* and a set of the first cache does not hold as many of them as are asked for */
    LV factor = contract_factor(e, c, side, loop->iv, n);
    e->prefetch_rows = false;
    e->ahead_far = false;
    l_store(e, factor, place(e, c, panel(e, c, p, j.iv), step_of(e, c, packing->k0, loop->iv), p->width, 0),
            (unsigned)dtype_bytes(c->dot.acc));
    level_close(e, LV_ROW, LV_ROW);
    mask_end(e);
    loop_end(e, &j);
}

/* All panels of a step before the next step: what is contiguous is read in one go, and lines that two panels share once. */
static void pack_across(Emit *e, const Contract *c, int side, const Panels *p, LV k0, LV k1)
{
    int lanes = c->dot.lanes, all = e->lanes;
    while (lanes < p->width)
        lanes *= 2;
    lanes_change(e, lanes);
    int64_t n;
    bool whole = c->dot.axis[side] == NO_AXIS || (p->width == lanes && l_is_const(c->end[side], &n) && n % p->width == 0);
    Packing packing = {p, k0, .side = side, .whole = whole};
    contract_steps(e, c, k0, k1, "pack", step_across, &packing);
    lanes_change(e, all);
}

/* ---- lanes along k ---- */

typedef struct Square {
    int side;
    LV first, sub; /* points [first + sub, + lanes), of the panel that begins at `first` */
    int64_t width; /* of the panel */
} Square;

/* The point that a row of the square is: past the end of the axis, or of the panel, the last one. */
static LV point_of(Emit *e, const Contract *c, const Square *s, LV number)
{
    int64_t n;
    const bool fits = s->width % c->dot.lanes == 0, whole = l_is_const(c->end[s->side], &n) && n % s->width == 0;
    LV in_panel = l_add(e, s->sub, number), last = l_sub(e, c->end[s->side], l_i64(e, 1));
    in_panel = fits ? in_panel : l_min(e, in_panel, l_i64(e, s->width - 1));
    return fits && whole ? l_add(e, s->first, in_panel) : l_min(e, l_add(e, s->first, in_panel), last);
}

/* A vector along k, of the point that the walk is at. What is asked for goes to the second cache: of rows that lie a power of two apart a set of the
 * first one does not hold as many (Zen 4, AVX-512, us, a b^T 1024 f32 23310 -> 21628, bf16 11206 -> 11069). */
static LV square_row(Emit *e, const Contract *c, const Square *s, LV k)
{
    enum { AHEAD = 256 };
    e->ahead = AHEAD;
    e->ahead_far = true;
    LV row = contract_factors(e, c, s->side, k);
    e->ahead = 0;
    e->ahead_far = false;
    return row;
}

/* Is what computes the operand so little that each row of a square has code of its own? */
static bool is_light(const Emit *e, const Contract *c, int side)
{
    const KInst *x = &e->k->inst.at[dot_uncast(e->k, c->dot.operand[side])];
    if (x->kind == KI_OP && x->op == OP_CAST)
        x = &e->k->inst.at[x->a];
    return x->kind == KI_LOAD && x->pred == VREF_NONE && !index_through_value(e->k, x->idx);
}

/* The square at step k, to the panel's step `to`. Points past the width go where the next step is written, or nobody reads. */
static void pack_square(Emit *e, const Contract *c, const Square *s, LV k, LV to)
{
    LV v[MAX_LANES];
    for (int i = 0; i < c->dot.lanes; i++) {
        contract_anew(e, LV_ROW);
        Place place = level_enter(e, LV_ROW);
        LV at = point_of(e, c, s, l_i64(e, i));
        level_leave(e, place);
        set_axis(e, c, s->side, ix_uniform(at));
        v[i] = square_row(e, c, s, k);
    }
    tile_transpose(e, v, c->dot.lanes);
    for (int i = 0; i < c->dot.lanes; i++) /* in order: what is past the width is overwritten by the next step */
        l_store(e, v[i], l_gep(e, LLVMGetElementType(c->vector), to, l_i64(e, i * s->width)), (unsigned)dtype_bytes(c->dot.acc));
}

/* The same by way of the scratch: the code of a row is there once. */
static void pack_heavy_square(Emit *e, const Contract *c, const Square *s, LV k, LV to)
{
    Loop w = loop_begin(e, l_i64(e, 0), l_i64(e, c->dot.lanes), l_i64(e, 1), "point");
    set_axis(e, c, s->side, ix_uniform(point_of(e, c, s, w.iv)));
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    e->cur = LV_R;
    contract_store(e, c, square_row(e, c, s, k), contract_slot(e, c, c->part, l_mul(e, w.iv, l_i64(e, c->dot.lanes))));
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &w);
    LV args[] = {contract_slot(e, c, c->part, l_i64(e, 0)), to, l_i64(e, s->width)};
    LLVMBuildCall2(e->b, LLVMGlobalGetValueType(c->square), c->square, args, 3, "");
}

/* One step of the rest of a panel, one point after the other: it is less than a vector of steps, and little code. */
static void step_rest(Emit *e, const Contract *c, const Loop *loop, int64_t n, void *user)
{
    const Packing *packing = user;
    int64_t width = packing->panels->width;
    int side = packing->side;
    Loop w = loop_begin(e, l_i64(e, 0), l_i64(e, width), l_i64(e, 1), "point");
    set_axis(e, c, side, ix_uniform(l_min(e, l_add(e, packing->first, w.iv), l_sub(e, c->end[side], l_i64(e, 1)))));
    level_open(e, LV_ROW);
    pin(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    e->cur = LV_R;
    LV step = place(e, c, packing->to, step_of(e, c, packing->k0, loop->iv), width, 0);
    LV at = l_gep(e, LLVMGetElementType(c->vector), step, w.iv);
    l_store(e, contract_factor(e, c, side, loop->iv, n), at, (unsigned)dtype_bytes(c->dot.acc));
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &w);
}

/* Where comparisons cut k, at multiples of `points`: so many pieces (jit/pieces.h), of which piece i begins at start[i]. NULL: they do not. */
static const Pieces *pieces_of_k(const Emit *e, int64_t points, int64_t start[MOST_PIECES])
{
    const Pieces *p = pieces_of(&e->facts, e->k->axes.n - 1);
    int64_t length[MOST_PIECES];
    if (!p || !pieces_lengths(e->k, p, length))
        return NULL;
    start[0] = 0;
    for (uint32_t i = 0; i + 1 < p->n; i++) {
        start[i + 1] = start[i] + length[i];
        if (start[i + 1] % points)
            return NULL;
    }
    return p;
}

/* The squares of so many steps, one row of them after the other: the hardware follows as many rows of memory as a square has. Where they reach past
 * the width the last ones are first: what they write there is where the first ones of the next steps go. */
static void pack_squares(Emit *e, const Contract *c, Square *s, LV k0, LV from, LV end, LV to)
{
    const int64_t lanes = c->dot.lanes, all = (s->width + lanes - 1) / lanes;
    const bool fits = s->width % lanes == 0, light = is_light(e, c, s->side);
    Loop n = loop_begin(e, l_i64(e, 0), l_i64(e, all), l_i64(e, 1), "squares");
    s->sub = l_mul(e, fits ? n.iv : l_sub(e, l_i64(e, all - 1), n.iv), l_i64(e, lanes));
    Loop k = loop_begin(e, from, end, l_i64(e, lanes * c->dot.each), "square");
    e->before[LV_ROW] = e->before[LV_TILE] = k.guard;
    level_open(e, LV_ROW);
    e->cur = LV_R;
    LV at = l_gep(e, LLVMGetElementType(c->vector), place(e, c, to, step_of(e, c, k0, k.iv), s->width, 0), s->sub);
    (light ? pack_square : pack_heavy_square)(e, c, s, k.iv, at);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &k);
    loop_end(e, &n);
}

/* Squares of the steps [k0, full), which are whole ones. No square is in two pieces, and in each its comparisons are known: halves of a row that
 * change places, as in rotary embedding, are read without masks, which not every target has. */
static void pack_whole(Emit *e, const Contract *c, Square *s, LV k0, LV full, LV to)
{
    int64_t start[MOST_PIECES];
    const Pieces *p = pieces_of_k(e, c->dot.lanes * c->dot.each, start);
    for (uint32_t i = 0; i < (p ? p->n : 1); i++) {
        LV from = i ? l_max(e, k0, l_i64(e, start[i])) : k0, end = p && i + 1 < p->n ? l_min(e, full, l_i64(e, start[i + 1])) : full;
        e->says = p ? p->says[i] : NULL;
        pack_squares(e, c, s, k0, from, end, to);
        e->says = NULL;
    }
}

static void pack_along(Emit *e, const Contract *c, int side, const Panels *p, LV k0, LV k1)
{
    int all = e->lanes;
    int64_t points = c->dot.lanes * c->dot.each;
    LV by = l_i64(e, points), full = l_add(e, k0, l_mul(e, l_div(e, l_sub(e, k1, k0), by), by));
    Loop j = loop_begin(e, l_i64(e, 0), p->count, l_i64(e, 1), "panel");
    LV first = l_add(e, p->first, l_mul(e, j.iv, p->apart)), to = panel(e, c, p, j.iv);
    lanes_change(e, c->dot.lanes);
    pack_whole(e, c, &(Square){.side = side, .first = first, .width = p->width}, k0, full, to);
    int64_t n;
    if (!(l_is_const(c->n_k, &n) && n % points == 0)) {
        lanes_change(e, 1);
        contract_steps(e, c, full, k1, "pack_rest", step_rest, &(Packing){.panels = p, .k0 = k0, .first = first, .to = to, .side = side});
    }
    loop_end(e, &j);
    lanes_change(e, all);
}

void pack_panels(Emit *e, const Contract *c, int side, const Panels *p, LV k0, LV k1)
{
    if (c->dot.along[side])
        pack_along(e, c, side, p, k0, k1);
    else
        pack_across(e, c, side, p, k0, k1);
}

/* ---- what flipped bits of rows add ---- */

/* Steps [from, to), `n` at once: a chain of sums each. */
static void add_flips(Emit *e, const Contract *c, LV panel, LV *sum, LV from, LV to, int n)
{
    const LV flip = contract_flip(e, (unsigned)c->dot.lanes);
    const int vectors = (int)(c->width / c->dot.lanes);
    Loop k = loop_begin(e, from, to, l_i64(e, n), "k");
    LV at = l_gep(e, LLVMGetElementType(c->vector), panel, l_mul(e, k.iv, l_i64(e, c->width)));
    for (int i = 0; i < n * vectors; i++) {
        LV lanes = l_load(e, c->vector, l_gep(e, LLVMGetElementType(c->vector), at, l_i64(e, i * c->dot.lanes)), 4);
        l_store(e, contract_step(e, c, l_load(e, c->vector, sum[i], 0), flip, lanes), sum[i], 0);
    }
    loop_end(e, &k);
}

void pack_starts(Emit *e, const Contract *c, LV panel, LV to)
{
    enum { AT_ONCE = 2, MOST_VECTORS = 8 };
    const int vectors = (int)(c->width / c->dot.lanes);
    LV sum[AT_ONCE * MOST_VECTORS], steps = contract_steps_of(e, c, l_sub(e, c->k1, c->k0)),
                                    full = l_mul(e, l_div(e, steps, l_i64(e, AT_ONCE)), l_i64(e, AT_ONCE));
    for (int i = 0; i < AT_ONCE * vectors; i++) {
        sum[i] = l_alloca(e, c->vector, 0, "more");
        l_store(e, LLVMConstNull(c->vector), sum[i], 0);
    }
    add_flips(e, c, panel, sum, l_i64(e, 0), full, AT_ONCE);
    add_flips(e, c, panel, sum, full, steps, 1);
    for (int v = 0; v < vectors; v++) {
        LV all = l_add(e, l_load(e, c->vector, sum[v], 0), l_load(e, c->vector, sum[vectors + v], 0));
        l_store(e, LLVMBuildNeg(e->b, all, ""), l_gep(e, LLVMGetElementType(c->vector), to, l_i64(e, v * c->dot.lanes)), 4);
    }
}

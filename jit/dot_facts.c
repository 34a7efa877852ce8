/* What is read off a product before its tiles are chosen. */
#include "jit/dot_facts.h"

int64_t dot_about(const KernelFacts *f, int axis)
{
    int64_t n = axis == NO_AXIS ? 1 : kernel_extent(f->k, (uint32_t)axis);
    return n > 0 ? n : 1;
}

int dot_last(const KernelFacts *f) { return f->n_x ? (int)(f->n_x - f->n_products) : NO_AXIS; }
int dot_before(const KernelFacts *f) { return f->n_x > f->n_products ? (int)(f->n_x - f->n_products) - 1 : NO_AXIS; }

bool dot_is_const(const KernelFacts *f, int axis)
{
    int64_t n;
    return axis != NO_AXIS && kidx_is_const(f->k, f->k->axes.at[axis].size, &n);
}

bool dot_varies(const KernelFacts *f, VRef v, int axis) { return axis != NO_AXIS && (f->info[v].axes >> axis & 1); }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bytes an element of the loads that v is computed from and that step along `axis`, if they vary along `other` as well (NO_AXIS: all): a scale
 * or bias that goes along with a matrix says nothing of how that lies. */
static unsigned stepping(const KernelFacts *f, VRef v, int axis, int other)
{
    const KInst *n = &f->k->inst.at[v];
    unsigned bytes = 0;
    VRef in[4];
    if (axis == NO_AXIS || !dot_varies(f, v, axis))
        return 0;
    if (n->kind == KI_LOAD && index_walk(f->k, n->idx, (uint32_t)axis) == INDEX_STEPS && (other == NO_AXIS || dot_varies(f, v, other)))
        bytes = (unsigned)dtype_bytes((DType)n->dtype);
    uint32_t n_in = kernel_operands(n, in);
    for (uint32_t i = 0; i < n_in; i++)
        bytes += stepping(f, in[i], axis, other);
    return bytes;
}

/* Bytes of a row of what is in bands. */
static int64_t band_row(const KernelFacts *f)
{
    const Kernel *k = f->k;
    int64_t most = 0;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        if ((n->kind != KI_LOAD && n->kind != KI_STORE) || !k->args.at[n->arg].band)
            continue;
        int64_t bytes = (int64_t)dtype_bytes((DType)k->args.at[n->arg].dtype);
        for (uint32_t a = f->n_x - 1; a < k->axes.n; a++)
            bytes = k->inst_axes.at[v] >> a & 1 ? least(bytes, INT64_MAX >> KERNEL_BUCKETS) * dot_about(f, (int)a) : bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Integers narrower than 32 bits are summed up in 32: the low bits are the same. */
DType dot_accumulator(DType t) { return dtype_is_float(t) ? dtype_accumulator(t) : dtype_bytes(t) == 8 ? DT_I64 : DT_I32; }

VRef dot_uncast(const Kernel *k, VRef v)
{
    const KInst *n = &k->inst.at[v];
    bool cast = n->kind == KI_OP && n->op == OP_CAST && dtype_is_int((DType)n->dtype) && dtype_bytes((DType)n->dtype) == 4;
    const DType from = cast ? (DType)k->inst.at[n->a].dtype : DT_F32;
    return dtype_is_int(from) && dtype_bytes(from) <= 2 ? n->a : v;
}

/* Do the lower 16 bits of v, as a signed number, make the same product, as far as a result of so many bytes has it? */
static bool fits_half(const Kernel *k, VRef v, size_t bytes)
{
    const DType of = (DType)k->inst.at[dot_uncast(k, v)].dtype;
    return dtype_is_int(of) && (bytes <= 2 || dtype_bytes(of) == 1 || of == DT_I16);
}

static bool by_pairs(const Kernel *k, const KInst *dot)
{
    const size_t bytes = dtype_bytes((DType)dot->dtype);
    if (dtype_is_float((DType)dot->dtype))
        return dot->order.kind == ORD_PAIRS;
    return bytes <= 4 && fits_half(k, dot->a, bytes) && fits_half(k, dot->b, bytes);
}

static DType uncast(const Kernel *k, VRef v) { return (DType)k->inst.at[dot_uncast(k, v)].dtype; }

/* Are both operands bytes? */
static bool by_fours(const Kernel *k, const KInst *dot)
{
    return dtype_is_int((DType)dot->dtype) && dtype_bytes((DType)dot->dtype) <= 4 && dtype_bytes(uncast(k, dot->a)) == 1 &&
           dtype_bytes(uncast(k, dot->b)) == 1;
}

/* Several products of one operand go along k together, and are multiplied by one function. */
static int64_t each(const KernelFacts *f, const DotFacts *d)
{
    const Kernel *k = f->k;
    bool pairs = true, fours = f->fours;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        pairs &= !inst_is_dot(n) || by_pairs(k, n);
        fours &= !inst_is_dot(n) || (by_fours(k, n) && (f->n_products == 1 || uncast(k, n->b) == uncast(k, k->inst.at[d->reduce].b)));
    }
    return fours ? 4 : pairs ? 2 : 1;
}

/* Of a product of bytes: which operand counts as signed? Of a result that is a byte, too, either may, as only lower bits are left. */
static void sign(const KernelFacts *f, DotFacts *d)
{
    const bool any = dtype_bytes(d->out) == 1, row = dtype_is_signed(uncast(f->k, d->operand[ROW_SIDE])),
               lane = dtype_is_signed(uncast(f->k, d->operand[LANE_SIDE]));
    d->row_signed = any || row;
    d->flips = d->each == 4 && !any && row == lane;
}

int64_t dot_panel(const KernelFacts *f, VRef operand, int axis)
{
    const KInst *load = &f->k->inst.at[dot_uncast(f->k, operand)];
    const KArg *arg = load->kind == KI_LOAD ? &f->k->args.at[load->arg] : NULL;
    return arg && arg->panel && arg->panel_axis == axis ? arg->panel : 0;
}

/* Does an operand lie contiguous along k rather than along this axis? */
static bool dot_along(const KernelFacts *f, VRef operand, int axis)
{
    const int k = (int)f->k->axes.n - 1;
    return stepping(f, operand, k, axis) > stepping(f, operand, axis, k);
}

static void find_sides(const KernelFacts *f, DotFacts *d, int along)
{
    const KInst *n = &f->k->inst.at[d->reduce];
    bool turned = along != dot_last(f), band = d->band_row > 0 || d->sums_rows;
    d->axis[LANE_SIDE] = along;
    d->operand[LANE_SIDE] = turned ? n->a : n->b;
    d->operand[ROW_SIDE] = turned ? n->b : n->a;
    d->axis[ROW_SIDE] = NO_AXIS;
    for (int a = 0; a < (int)f->n_x; a++) {
        bool row = a != along && !dot_varies(f, d->operand[LANE_SIDE], a) && dot_varies(f, d->operand[ROW_SIDE], a);
        if (row && (band ? a >= dot_before(f) : dot_about(f, a) >= dot_about(f, d->axis[ROW_SIDE])))
            d->axis[ROW_SIDE] = a;
    }
    for (int s = 0; s < SIDES; s++)
        d->along[s] = dot_along(f, d->operand[s], d->axis[s]);
}

bool dot_stored_along(const KernelFacts *f, int axis)
{
    const Kernel *k = f->k;
    bool along = false;
    for (VRef v = 0; v < k->inst.n; v++) {
        if (k->inst.at[v].kind != KI_STORE)
            continue;
        if (index_walk(k, k->inst.at[v].idx, (uint32_t)axis) != INDEX_STEPS)
            return false;
        along = true;
    }
    return along;
}

/* Points along the axes, which are known. */
static void count(const KernelFacts *f, DotFacts *d)
{
    enum { MANY = 1 << 20 };
    d->batch = 1;
    for (int s = 0; s < SIDES; s++)
        d->n[s] = dot_about(f, d->axis[s]);
    d->n[ROW_SIDE] *= least(dot_about(f, d->outer), MANY);
    for (uint32_t i = 1; i < f->n_products; i++)
        d->n[LANE_SIDE] = least(d->n[LANE_SIDE] + least(dot_about(f, dot_last(f) + (int)i), MANY), MANY);
    for (int a = 0; a < (int)(f->n_x - f->n_products) + 1; a++)
        if (a != d->axis[LANE_SIDE] && a != d->axis[ROW_SIDE] && a != d->outer)
            d->batch = least(d->batch * least(dot_about(f, a), MANY), MANY);
}

void dot_join_rows(const KernelFacts *f, DotFacts *d, int rows)
{
    d->axis[ROW_SIDE] = rows;
    d->outer = NO_AXIS;
    for (int a = 0; a < (int)f->n_x; a++)
        if (a != rows && !dot_varies(f, d->operand[LANE_SIDE], a) && dot_varies(f, d->operand[ROW_SIDE], a))
            d->outer = a;
    count(f, d);
}

/* The dot that depends on these axes. */
static VRef dot_of(const Kernel *k, uint32_t axes)
{
    VRef v = 0;
    while (!inst_is_dot(&k->inst.at[v]) || (k->inst_axes.at[v] & axes) != axes)
        v++;
    return v;
}

bool dot_short(const DotFacts *d)
{
    enum { SHORT = 2048 };
    return d->one_block && d->n_k * (int64_t)dtype_bytes(d->acc) <= SHORT;
}

DotFacts dot_product(const KernelFacts *f, const DotFacts *d, uint32_t number)
{
    DotFacts one = *d;
    int axis = dot_last(f) + (int)number;
    if (f->n_products == 1)
        return one;
    one.reduce = dot_of(f->k, 1u << axis);
    one.operand[LANE_SIDE] = f->k->inst.at[one.reduce].b;
    one.axis[LANE_SIDE] = axis;
    one.n[LANE_SIDE] = dot_about(f, axis);
    one.kept = dot_panel(f, one.operand[LANE_SIDE], axis);
    one.along[LANE_SIDE] = dot_along(f, one.operand[LANE_SIDE], axis);
    return one;
}

int64_t dot_widest(const KernelFacts *f, const DotFacts *d)
{
    int64_t most = 1;
    for (uint32_t i = 0; i < f->n_products; i++) {
        int64_t n = dot_product(f, d, i).n[LANE_SIDE];
        most = n > most ? n : most;
    }
    return most;
}

int64_t dot_tiles(const KernelFacts *f, const DotFacts *d, int64_t width)
{
    int64_t tiles = 0;
    for (uint32_t i = 0; i < f->n_products; i++)
        tiles += (dot_product(f, d, i).n[LANE_SIDE] + width - 1) / width;
    return tiles;
}

DotFacts dot_facts(const KernelFacts *f, int64_t along)
{
    const Kernel *k = f->k;
    int last_k = (int)k->axes.n - 1;
    DotFacts d = {.outer = NO_AXIS};
    d.reduce = dot_of(k, f->n_products > 1 ? 1u << dot_last(f) : 0);
    const KInst *n = &k->inst.at[d.reduce];
    d.in = (DType)k->inst.at[n->a].dtype;
    d.out = (DType)n->dtype;
    d.acc = dot_accumulator(d.out);
    d.lanes = (int)(f->bits / 8 / (int64_t)dtype_bytes(d.acc));
    d.each = each(f, &d);
    for (uint32_t a = 0; a < k->args.n; a++) {
        d.band_rows = k->args.at[a].blocks ? k->args.at[a].blocks : d.band_rows;
        d.sums_rows |= k->args.at[a].kind == ARG_SCRATCH && !k->split;
    }
    d.block = kernel_dot_block(n) * (d.each == 4 && !d.sums_rows && !d.band_rows ? 2 : 1); /* a quarter of the steps, without an order */
    d.band_row = d.sums_rows ? 0 : band_row(f);                                            /* its rows are steps of the sum */
    find_sides(f, &d, (int)along);
    sign(f, &d);
    d.one_block = !d.sums_rows && dot_is_const(f, last_k) && dot_about(f, last_k) <= d.block;
    d.has_lanes = d.axis[LANE_SIDE] != NO_AXIS && k->vec_axis != UINT32_MAX;
    d.regular = d.has_lanes && !dot_varies(f, d.operand[ROW_SIDE], d.axis[LANE_SIDE]);
    d.n_k = dot_about(f, last_k);
    count(f, &d);
    d.kept = dot_panel(f, d.operand[LANE_SIDE], d.axis[LANE_SIDE]);
    for (uint32_t i = 1; i < f->n_products; i++) {
        const DotFacts one = dot_product(f, &d, i);
        d.along[LANE_SIDE] &= one.along[LANE_SIDE];
        d.kept = d.kept ? d.kept : one.kept;
    }
    return d;
}

/* ---- under a schedule ---- */

int dot_lanes(const DotFacts *d, const Schedule *s) { return s->in_place && s->tile_width < d->lanes ? (int)s->tile_width : d->lanes; }

DotFacts dot_scheduled(const KernelFacts *f)
{
    DotFacts dot = dot_facts(f, f->schedule->along);
    if (f->schedule->in_place)
        dot_join_rows(f, &dot, (int)f->schedule->across);
    dot.lanes = dot_lanes(&dot, f->schedule);
    /* Rows of k are interleaved for a few rows only: narrow vectors take longer for that than multiplying them by pairs saves. */
    if (f->schedule->way == WAY_STRIPS && f->bits < 512 && !dtype_is_float(dot.acc))
        dot.each = 1;
    if ((f->schedule->way == WAY_DIRECT || f->schedule->way == WAY_STRIPS) && dot.each == 4)
        dot.each = 2;
    dot.flips &= dot.each == 4;
    return dot;
}

bool dot_reads_panels(const KernelFacts *f, const DotFacts *d)
{
    return f->schedule->way == WAY_PACKED && d->kept && d->kept == f->schedule->tile_width;
}

bool dot_turned(const KernelFacts *f, const DotFacts *d)
{
    return f->schedule->in_place && dot_stored_along(f, d->axis[ROW_SIDE]) && !dot_stored_along(f, d->axis[LANE_SIDE]);
}

int64_t dot_row_lanes(const Schedule *s)
{
    int64_t lanes = 1;
    while (lanes < s->tile_rows)
        lanes *= 2;
    return lanes;
}

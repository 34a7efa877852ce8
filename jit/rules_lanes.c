/* Rules of all loops: along which axis lanes run, how many there are, what tasks are, and how often the body is there. */
#include "jit/rules_inside.h"

#include "jit/pieces.h"

/* ---- which way the lanes run ---- */

/* Does this access go through memory as its rows and columns lie? Where several r axes are one, the last decides. */
static bool goes_along_columns(const KernelFacts *f, IRef i, int64_t columns)
{
    const Kernel *k = f->k;
    const Idx *x = &k->idx.at[i];
    uint32_t r = k->axes.n - 1;
    int64_t factor = 0;
    if (x->kind == IX_ADD)
        return goes_along_columns(f, x->a, columns) && goes_along_columns(f, x->b, columns);
    if (kidx_uses_axis(k, i, r))
        return x->kind == IX_MUL && k->idx.at[x->a].kind == IX_AXIS && kidx_is_const(k, x->b, &factor) && factor == columns;
    return x->kind == IX_AXIS || !kidx_uses_axis(k, i, f->n_x - 1);
}

bool give_columns(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t columns = last_x(f);
    if (columns < 2 || !folds_columns(f) || (columns > rule_limit(f->bits, LIMIT_columns) && !has(f->k, in_lanes)))
        return false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        int64_t bytes = (int64_t)dtype_bytes(inst_reduces(n) ? dtype_accumulator((DType)n->dtype) : (DType)n->dtype);
        if (!f->live[i] || (!f->info[i].r_level && !inst_reduces(n)))
            continue;
        if (columns * bytes > rule_limit(f->bits, LIMIT_columns_bytes) || n->kind == KI_INDEX || n->kind == KI_BOUND ||
            n->pred != VREF_NONE)
            return false;
        if ((n->kind == KI_LOAD || n->kind == KI_STORE) &&
            (!kidx_uses_axis(f->k, n->idx, f->n_x - 1) || !goes_along_columns(f, n->idx, columns)))
            return false;
    }
    s->along = (int64_t)f->k->axes.n - 1;
    s->columns = columns;
    return planned_r(f) >= f->order.lanes;
}

bool give_rows(Choice *c, Schedule *s)
{
    const Kernel *k = c->f->k;
    s->along = (int64_t)k->vec_axis;
    return c->f->n_r && k->vec_axis == k->axes.n - 1 && !c->f->in_order;
}

bool give_points(Choice *c, Schedule *s)
{
    s->along = (int64_t)c->f->n_x - 1;
    return c->f->n_x && c->f->k->vec_axis == c->f->n_x - 1;
}

bool give_scalar(Choice *c, Schedule *s)
{
    s->along = (int64_t)c->f->n_x - 1;
    return true;
}

/* ---- what are tasks ---- */

static bool splits(const KernelFacts *f) { return f->k->split && f->n_stages && !f->in_order; }

bool give_split_asked(Choice *c, Schedule *s)
{
    s->split = SPLIT_ASKED;
    return splits(c->f) && c->f->k->split_asked;
}

bool give_split(Choice *c, Schedule *s)
{
    s->split = SPLIT_ALWAYS;
    return splits(c->f);
}

/* ---- lanes and body ---- */

/* What is heavy because of a few points, such as casts of what does not fit, has little code on the way of the others. */
static bool heavy_usually(const KernelFacts *f, Weight w)
{
    return facts_heavy(f, w) && (f->n_r || w.usual > rule_limit(f->bits, LIMIT_light));
}

/* Bytes that all points load, each an element of its own. */
static double bytes_loaded(const KernelFacts *f)
{
    double points = 1, bytes = 0;
    for (uint32_t a = 0; a < f->k->axes.n; a++)
        points *= (double)kernel_extent(f->k, a);
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        bytes += inst(f, i)->kind == KI_LOAD && f->live[i] ? (double)dtype_bytes((DType)inst(f, i)->dtype) : 0;
    return points * bytes;
}

bool give_ahead(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    s->prefetch = PREFETCH_ON;
    return has_lanes(s) && facts_heavy(f, c->w) && (heavy_usually(f, c->w) || bytes_loaded(f) >= (double)rule_limit(f->bits, LIMIT_ahead));
}

/*
 * Rows that are scanned one element after the other, each in its own memory: lanes across rows would gather what lies far apart, and a
 * row by itself is read and written as it lies. Where each element takes many operations or a slow one, the lanes are worth it.
 */
static bool scans_rows(const KernelFacts *f, const Schedule *s, Weight w)
{
    bool steps = false;
    if (!along_x(f, s) || facts_heavy(f, w) || !has(f->k, inst_runs))
        return false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        if (n->kind == KI_OP && (op_info[n->op].flags & OPF_COSTLY || n->op == OP_DIV))
            return false;
        if (!f->live[i] || !f->info[i].r_level || (n->kind != KI_LOAD && n->kind != KI_STORE))
            continue;
        IndexWalk across = index_walk(f->k, n->idx, (uint32_t)s->along), along = index_walk(f->k, n->idx, f->k->axes.n - 1);
        if (across == INDEX_STEPS)
            return false;
        steps |= across == INDEX_JUMPS && along == INDEX_STEPS;
    }
    return steps;
}

bool give_one_by_one(Choice *c, Schedule *s)
{
    s->lanes = 1;
    return !has_lanes(s) || scans_rows(c->f, s, c->w);
}

bool give_narrow(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    s->lanes = (is_light_fold(f, c->w) && f->bits / 8 < LINE ? 2 : 1) * f->bits / 8 / c->w.widest;
    return c->w.widest <= 2;
}

bool give_carrying(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t one = one_vector(f), lanes = rule_limit(f->bits, LIMIT_carrying_vectors) * one;
    lanes = lanes < MOST_LANES ? lanes : MOST_LANES;
    lanes = c->w.widest > 4 ? lanes / 2 : lanes;
    while (lanes > one && c->w.ops * (lanes / one) > rule_limit(f->bits, LIMIT_carrying_code))
        lanes /= 2;
    s->lanes = lanes;
    return has(f->k, carries);
}

bool give_light_fold(Choice *c, Schedule *s)
{
    s->lanes = (c->w.widest > 4 ? 2 : 4) * one_vector(c->f);
    return is_light_fold(c->f, c->w);
}

bool give_light(Choice *c, Schedule *s)
{
    s->lanes = 2 * one_vector(c->f);
    return !c->f->n_r && c->w.usual <= rule_limit(c->f->bits, LIMIT_light) && c->w.widest <= 4;
}

/* Rows of memory that lie far apart share a place in the caches: what is left of a line by one tile is gone before the next one reads it. */
bool give_across(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t one = one_vector(f);
    s->lanes = (c->w.widest > 4 ? 2 : 4) * one;
    while (s->lanes > one && c->w.ops * (s->lanes / one) > rule_limit(f->bits, LIMIT_across_code))
        s->lanes /= 2;
    return along_x(f, s) && f->n_r && !f->in_order && planned_r(f) >= rule_limit(f->bits, LIMIT_many_rows) &&
           !inside_of(f, (uint32_t)s->along);
}

bool give_one_vector(Choice *c, Schedule *s)
{
    s->lanes = one_vector(c->f);
    return true;
}

/* Are elements of the innermost rows read under a mask, as those of windows with edges? */
static bool reads_under_masks(const KernelFacts *f)
{
    bool masks = false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        masks |= n->kind == KI_LOAD && f->live[i] && n->pred != VREF_NONE && f->k->inst_axes.at[n->pred] >> (f->k->axes.n - 1) & 1;
    }
    return masks;
}

/*
 * Not more than there are points; of several r axes as many as keep every tile inside one row, so that it is contiguous. But what is read under masks, where
 * these have registers of their own, is as well read in two parts as in one: a whole vector, of rows that lie the same distance apart. (Cascade Lake,
 * AVX-512, one thread, ms, gradient of the weights of depthwise 3x3 of 128 channels at 56, one image: 0.8 -> 0.5; stride 2, rows of 28, 2.1 -> 0.9; with AVX2
 * 1.8 -> 2.5. 8 images, whose rows are not, 23 -> 34.)
 */
int64_t rules_fitting_lanes(const KernelFacts *f, const Schedule *s, int64_t lanes)
{
    int64_t row, points = s->along < 0 ? 1 : extent(f, s);
    while (lanes > 1 && lanes / 2 >= points)
        lanes /= 2;
    if (!along_r(f, s) || f->n_r < 2 || !is_const(f, f->k->axes.n - 1, &row))
        return lanes;
    if (f->bits == 512 && f->n_r == 2 && row % one_vector(f) && reads_under_masks(f))
        return lanes < one_vector(f) ? lanes : one_vector(f);
    for (int64_t n = lanes; n >= 4; n /= 2)
        if (row % n == 0)
            return n;
    return lanes;
}

bool give_once(Choice *c, Schedule *s)
{
    s->body = BODY_ONCE;
    return has_lanes(s) && heavy_usually(c->f, c->w);
}

bool give_no_masks(Choice *c, Schedule *s)
{
    s->tail = TAIL_SCALAR;
    return has_lanes(s) && !has_masks(c->f, c->w) && !c->f->n_r && !facts_heavy(c->f, c->w);
}

void rules_ask_lanes(Choice *c, Weight w, Schedule *s)
{
    s->body = BODY_TWICE;
    s->tail = TAIL_MASK;
    rules_ask(c, ONE_LANES, w, s);
    s->lanes = rules_fitting_lanes(c->f, s, s->lanes < MOST_LANES ? s->lanes : MOST_LANES);
    rules_ask(c, ALL_BODY, w, s);
}

/* Of several stages the others have what the first one read. A step that keeps a place takes longer than its memory does: argmax of rows of 4096 x 4096
 * took 7.1 ms with pages asked for, 6.7 without. */
bool give_pages(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    const bool by_line =
        s->lanes > 1 && !s->joined && !s->columns && !s->strip && !s->unroll && !s->rows && !s->square && !s->copy && s->inside < 0;
    const bool in_order = has(f->k, inst_has_place) || has(f->k, inst_runs);
    if (s->prefetch || !by_line || in_order || f->n_stages > 1 || (f->n_r && !along_r(f, s)))
        return false;
    s->prefetch = PREFETCH_PAGES;
    return extent(f, s) * c->w.narrowest >= rule_limit(f->bits, LIMIT_page) &&
           bytes_loaded(f) >= (double)rule_limit(f->bits, LIMIT_uncached);
}

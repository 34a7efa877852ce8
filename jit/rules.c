/*
 * The rules by which a CPU's kernel gets its schedule: a function for each row of jit/rules.def, those of products in
 * jit/rules_product.c. A rule that makes another thing of what a point is asks again for lanes and body.
 */
#include "jit/rules_inside.h"

#include "jit/kernel_text.h"
#include "jit/overlap.h"
#include "jit/pieces.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum Group {
    ONE_ALONG,
    ONE_SPLIT,
    ALL_AHEAD,
    ONE_LANES,
    ALL_BODY,
    ALL_MORE,
    ONE_SIDES,
    ONE_WAY,
    ONE_TILE,
    ONE_TASK,
    ALL_LAST
} Group;

static void ask(Choice *c, Group group, Weight w, Schedule *s);

int64_t rule_limit(int64_t bits, LimitId id)
{
    static const int64_t limits[][2] = {
#define LIMIT(id, narrow, wide, unit, measured) {narrow, wide},
#include "jit/limits.def"
#undef LIMIT
    };
    return limits[id][bits >= 512];
}

/* ---- what rules look at ---- */

static const KInst *inst(const KernelFacts *f, VRef v) { return &f->k->inst.at[v]; }

static bool has(const Kernel *k, bool (*is)(const KInst *))
{
    for (uint32_t i = 0; i < k->inst.n; i++)
        if (is(&k->inst.at[i]))
            return true;
    return false;
}

static bool carries(const KInst *x) { return x->kind == KI_CARRY; }
static bool ends(const KInst *x) { return x->kind == KI_NEXT && x->mode == ENDS; }
static bool in_lanes(const KInst *x) { return x->order.kind == ORD_LANES; }

static bool along_r(const KernelFacts *f, const Schedule *s) { return s->along >= (int64_t)f->n_x; }
static bool along_x(const KernelFacts *f, const Schedule *s) { return s->along >= 0 && !along_r(f, s); }

static bool has_lanes(const Schedule *s) { return !(s->rules >> RULE_scalar & 1); }

/* Lanes of 32 bits in a vector. */
static int64_t one_vector(const KernelFacts *f) { return f->bits / 32; }

static bool is_const(const KernelFacts *f, uint32_t axis, int64_t *size) { return kidx_is_const(f->k, f->k->axes.at[axis].size, size); }

/* Points of the axes that lanes run along, or what is planned for. */
static int64_t extent(const KernelFacts *f, const Schedule *s)
{
    if (!along_r(f, s))
        return kernel_extent(f->k, (uint32_t)s->along) * (s->joined ? kernel_extent(f->k, f->n_x - 2) : 1);
    int64_t n = 1;
    for (uint32_t a = f->n_x; a < f->k->axes.n; a++)
        n *= kernel_extent(f->k, a) > 0 ? kernel_extent(f->k, a) : 1;
    return n;
}

/* Points of the r axes, or what is planned for. */
static int64_t planned_r(const KernelFacts *f)
{
    int64_t n = 1;
    for (uint32_t a = f->n_x; a < f->k->axes.n; a++)
        n *= kernel_extent(f->k, a);
    return n;
}

/* Points of the r axes, where that is constant; else 0. */
static int64_t constant_r(const KernelFacts *f)
{
    int64_t n = f->n_r ? 1 : 0, size;
    for (uint32_t a = f->n_x; a < f->k->axes.n; a++)
        n = is_const(f, a, &size) && !__builtin_mul_overflow(n, size, &n) ? n : 0;
    return n;
}

/* Points of the last x axis, where that is constant; else 0. */
static int64_t last_x(const KernelFacts *f)
{
    int64_t n = 0;
    return f->n_x && is_const(f, f->n_x - 1, &n) ? n : 0;
}

/* Folds, none of them in order or of places. */
static bool folds_in_strips(const KernelFacts *f) { return f->n_x && f->n_r && f->n_stages && !f->in_order && !has(f->k, inst_has_place); }

/* The same in one stage. */
static bool folds_columns(const KernelFacts *f) { return folds_in_strips(f) && f->n_stages == 1; }

/* AVX2 has no masked access to smaller elements. */
static bool has_masks(const KernelFacts *f, Weight w) { return f->bits == 512 || w.narrowest >= 4; }

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
    s->prefetch = 1;
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

static bool light_fold(const KernelFacts *f, Weight w) { return f->n_r && w.ops <= rule_limit(f->bits, LIMIT_light_fold); }

bool give_narrow(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    s->lanes = (light_fold(f, c->w) && f->bits / 8 < LINE ? 2 : 1) * f->bits / 8 / c->w.widest;
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
    return light_fold(c->f, c->w);
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

/* Not more than there are points; of several r axes as many as keep every tile inside one row, so that it is contiguous. */
static int64_t fitting_lanes(const KernelFacts *f, const Schedule *s, int64_t lanes)
{
    int64_t row, points = s->along < 0 ? 1 : extent(f, s);
    while (lanes > 1 && lanes / 2 >= points)
        lanes /= 2;
    if (!along_r(f, s) || f->n_r < 2 || !is_const(f, f->k->axes.n - 1, &row))
        return lanes;
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

static void ask_lanes(Choice *c, Weight w, Schedule *s)
{
    s->body = BODY_TWICE;
    s->tail = TAIL_MASK;
    ask(c, ONE_LANES, w, s);
    s->lanes = fitting_lanes(c->f, s, s->lanes < MOST_LANES ? s->lanes : MOST_LANES);
    ask(c, ALL_BODY, w, s);
}

/* ---- short rows ---- */

/* Is it a load, a store or a coordinate, whose index rules of short rows must look at? *other: it is something that they leave alone. */
static bool reads_index(const KInst *n, bool *other)
{
    *other = n->kind == KI_CONST || n->kind == KI_SCALAR || n->kind == KI_OP;
    return (n->kind == KI_LOAD || n->kind == KI_STORE || n->kind == KI_INDEX) && n->pred == VREF_NONE;
}

/* Rows that lie side by side where they are stored: all that is read of a tile of them is a few vectors, or one row again and again. */
static bool rows_join(const KernelFacts *f, int64_t length)
{
    int64_t most = rule_limit(f->bits, LIMIT_apart);
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        int64_t times[KERNEL_AXES] = {0};
        bool other, reads = reads_index(n, &other);
        if (!f->live[i] || other)
            continue;
        if (!reads || !index_linear(f->k, n->idx, 3u << (f->n_x - 2), times))
            return false;
        int64_t row = times[f->n_x - 2], apart = times[f->n_x - 1];
        if (n->kind == KI_STORE ? apart != 1 || row != length : n->kind == KI_LOAD && (llabs(row) > most * length || llabs(apart) > most))
            return false;
    }
    return true;
}

/*
 * The same for rows of two or four points, which are read from as many places, in each of which rows go on, or stay: a vector of each, all shuffled
 * together, some under masks (load_lists in jit/llvm/cpu/memory.c). Bytes of the widest element that is read so; 0: it is something else.
 */
static int64_t rows_are_lists(const KernelFacts *f, int64_t length)
{
    int64_t widest = 0;
    for (uint32_t i = 0; i < f->k->inst.n && (length == 2 || length == 4); i++) {
        const KInst *n = inst(f, i);
        int64_t times[KERNEL_AXES] = {0}, bytes = (int64_t)dtype_bytes((DType)n->dtype);
        if (!f->live[i] || n->kind == KI_CONST || n->kind == KI_SCALAR || n->kind == KI_OP)
            continue;
        const bool load = n->kind == KI_LOAD && index_steps(f->k, n->idx, f->n_x - 1); /* from place to place, whatever is between them */
        if ((!load && n->kind != KI_STORE && n->kind != KI_INDEX) || !index_linear(f->k, n->idx, (load ? 1u : 3u) << (f->n_x - 2), times))
            return 0;
        const int64_t row = times[f->n_x - 2], apart = times[f->n_x - 1];
        const bool masked = n->pred != VREF_NONE && f->bits < 512 && bytes < 4; /* lane by lane */
        if (n->kind == KI_STORE ? apart != 1 || row != length || n->pred != VREF_NONE
                                : n->kind == KI_LOAD && ((row != 0 && row != 1) || masked))
            return 0;
        widest = n->kind == KI_LOAD && row && bytes > widest ? bytes : widest;
    }
    return widest;
}

/* Of a kernel without folds, with rows along which no pieces are cut. */
static bool has_rows(const KernelFacts *f) { return !f->n_r && !f->n_stages && f->n_x >= 2; }
static bool rows_are_whole(const KernelFacts *f) { return !pieces_of(f, f->n_x - 1) && !pieces_of(f, f->n_x - 2); }

/* Whole rows, as many as four vectors hold, where that is no power of two; points that fill no tile are then computed one by one. */
static int64_t lanes_of_rows(const KernelFacts *f, Weight w, int64_t length)
{
    int64_t most = f->bits / 2 / w.widest, lanes = length;
    most = most < MOST_LANES ? most : MOST_LANES;
    while (2 * lanes <= most)
        lanes *= 2;
    return !facts_heavy(f, w) && lanes <= most ? lanes : 0;
}

/*
 * By themselves such rows would take an access each. Heavy bodies have one vector in flight, and what is left of a row costs them as much
 * as a whole tile and more, so they join also where rows are no whole tiles: up to a length from which a tile in two rows costs more than
 * that.
 */
bool give_joined(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t length, lanes = s->lanes;
    if (!has_lanes(s) || !has_rows(f) || !is_const(f, f->n_x - 1, &length) || length < 2)
        return false;
    const int64_t bytes = rows_are_lists(f, length);
    if (!bytes && !(rows_are_whole(f) && rows_join(f, length)))
        return false;
    s->joined = length;
    Weight w = facts_weigh(f, s, NULL);
    ask_lanes(c, w, s);
    if (s->body == BODY_ONCE && length % s->lanes && length <= rule_limit(f->bits, LIMIT_long_row))
        return true;
    if (bytes && s->body != BODY_ONCE) { /* a whole vector of each list */
        const int64_t most = length * f->bits / 8 / bytes;
        s->lanes = most < MOST_LANES ? most : MOST_LANES;
    }
    if (length & (length - 1)) {
        s->lanes = lanes_of_rows(f, w, length);
        s->tail = TAIL_SCALAR;
    }
    return s->lanes > lanes && s->lanes % length == 0;
}

/*
 * Each launch asks. Where rows are no whole tiles, the rest of one costs as much as a tile, with AVX2 as much as six. Where all that is read is
 * rows side by side, or the same row again and again (jit/llvm/cpu/repeat.c), a tile in several rows costs no more than another.
 */
bool give_join_below(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    bool repeats = rows_repeat(f->k);
    int64_t length;
    if (!has_rows(f) || s->rows || s->lanes == 1 || (s->body != BODY_ONCE && !repeats) || is_const(f, f->n_x - 1, &length) ||
        kernel_extent(f->k, f->n_x - 1) > rule_limit(f->bits, LIMIT_planned) || !rows_are_whole(f))
        return false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        uint32_t count[3] = {0};
        bool other, reads = reads_index(n, &other);
        if (!f->live[i] || other)
            continue;
        if (!reads || !index_counts_rows(f->k, n->idx, f->n_x - 2, count) ||
            (n->kind == KI_STORE && (count[0] != 1 || count[1] != 1 || count[2])))
            return false;
    }
    s->join_below = rule_limit(f->bits, repeats ? LIMIT_join_repeating : LIMIT_join_below);
    return true;
}

/* ---- folds ---- */

/*
 * A heavy stage keeps its light neighbours (the maximum before softmax's exp, the quotient after it) at one vector a step, where
 * a chain of dependent steps is all they have; so in kernels of several stages each chooses for itself.
 */
bool give_stages(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    if (!along_r(f, s) || f->n_stages < 2 || f->n_stages > SCHEDULE_STAGES || s->lanes != one_vector(f))
        return false;
    bool *part = ARENA_ARRAY(f->arena, bool, f->k->inst.n + 1);
    s->n_stages = f->n_stages;
    for (uint32_t stage = 0; stage < f->n_stages; stage++) {
        facts_part(f, stage, true, part);
        Weight w = facts_weigh(f, s, part);
        int64_t lanes = light_fold(f, w) && w.widest == 4 ? 4 * s->lanes : s->lanes;
        while (lanes > s->lanes && lanes / 2 >= extent(f, s))
            lanes /= 2;
        lanes = lanes < MOST_LANES ? lanes : MOST_LANES;
        s->stage_lanes[stage] = (uint8_t)fitting_lanes(f, s, lanes);
    }
    return true;
}

/*
 * Several stages go through the rows of a strip several times: it is no wider than the caches hold of it. Rows that are kept may be more than
 * planned for.
 */
static int64_t strip_bytes(const KernelFacts *f, bool any_rows)
{
    int64_t most = rule_limit(f->bits, LIMIT_strip_bytes), least = rule_limit(f->bits, LIMIT_strip_least), rows = 0;
    bool saved = false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        saved |= n->save;
        if (f->live[i] && f->info[i].r_level && (n->kind == KI_LOAD || n->save))
            rows += planned_r(f);
    }
    if (f->n_stages == 1)
        return most;
    if (saved && rows * least > rule_limit(f->bits, LIMIT_strip_kept))
        return 0;
    int64_t held = rule_limit(f->bits, LIMIT_strip_stages) / (rows ? rows : 1);
    return held < least || (saved && any_rows) ? least : held > most ? most : held;
}

/* Does each vector that is folded come from the caches, since so many other points of x read it, too? */
static bool read_again(const KernelFacts *f, const Schedule *s)
{
    bool any = false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        if (n->kind != KI_LOAD || !f->live[i] || !f->info[i].r_level || index_walk(f->k, n->idx, (uint32_t)s->along) == INDEX_STAYS)
            continue;
        int64_t bytes = (int64_t)dtype_bytes((DType)n->dtype), times = 1;
        for (uint32_t a = 0; a < f->k->axes.n; a++) {
            bool varies = index_through_value(f->k, n->idx) || f->k->inst_axes.at[i] >> a & 1;
            if (__builtin_mul_overflow(*(varies ? &bytes : &times), kernel_extent(f->k, a), varies ? &bytes : &times))
                return false;
        }
        if (bytes > rule_limit(f->bits, LIMIT_cached_bytes) || times < rule_limit(f->bits, LIMIT_read_again))
            return false;
        any = true;
    }
    return any;
}

/* How often a sum has this coordinate; 0: not a constant number of times. */
static int64_t times_in(const Kernel *k, IRef i, uint32_t axis)
{
    const Idx *x = &k->idx.at[i];
    int64_t times;
    if (!(k->idx_axes.at[i] >> axis & 1) || (x->kind != IX_AXIS && x->kind != IX_ADD && x->kind != IX_MUL))
        return 0;
    if (x->kind == IX_AXIS)
        return 1;
    const int64_t a = times_in(k, x->a, axis), b = times_in(k, x->b, axis);
    if (x->kind == IX_ADD)
        return a && b ? 0 : a + b;
    return a && kidx_is_const(k, x->b, &times) && !__builtin_mul_overflow(a, times, &times) ? times : 0;
}

/* Windows whose neighbours have points in common, along whatever axis. */
static bool slides(const KernelFacts *f)
{
    int64_t n;
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        for (uint32_t r = f->n_x; f->live[i] && (inst(f, i)->kind == KI_LOAD || inst(f, i)->kind == KI_INDEX) && r < f->k->axes.n; r++) {
            const int64_t by = times_in(f->k, inst(f, i)->idx, r);
            for (uint32_t x = 0; by > 0 && is_const(f, r, &n) && x < f->n_x; x++) {
                const int64_t times = times_in(f->k, inst(f, i)->idx, x);
                if (times > 0 && times % by == 0 && times / by < n)
                    return true;
            }
        }
    return false;
}

/* Constant few points of r, whose code is not long: operations of them all, else 0. */
static int64_t unrolled_ops(const Choice *c, const Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t n = constant_r(f), ops = n * facts_weigh_point(f, s, c->w), folds = 0;
    if (!along_x(f, s) || n < 1 || n > f->order.lanes || (n == f->order.lanes && !read_again(f, s)))
        return 0;
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        folds += inst(f, i)->kind == KI_FOLD;
    bool windows = inside_of(f, (uint32_t)s->along) || slides(f); /* each fold over its own: as long as the code of as many kernels */
    int64_t most = rule_limit(f->bits, windows ? LIMIT_unroll_windows : read_again(f, s) ? LIMIT_unroll_again : LIMIT_unroll_code);
    return ops > most * (windows ? folds : 1) ? 0 : ops;
}

/*
 * Folds of columns that are long enough to pay for what is done once a strip: a page of each row. Where there is an order, the sums of
 * 64 lanes lie in memory either way; else a tile alone has its own in registers, which is as good where a row is short, and where elements
 * are narrower than what they are folded to. Long bodies of several stages (the rule `across`) win where a row is a page, and need no more
 * lanes than compute well: strips have whole lines of each row. What others read again and again takes no longer tile by tile, with sums in registers.
 */
bool give_strip(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t held = 1, read = 8, size, page = rule_limit(f->bits, LIMIT_page);
    bool ordered = has(f->k, in_lanes), any_rows = false;
    bool stages = f->n_stages > 1;
    if (!folds_in_strips(f) || along_r(f, s) || s->lanes == 1 || s->split == SPLIT_ALWAYS || (s->body == BODY_ONCE && !stages) ||
        (f->n_stages == 1 && unrolled_ops(c, s) && read_again(f, s)))
        return false;
    for (uint32_t a = f->n_x; a < f->k->axes.n; a++)
        any_rows |= !is_const(f, a, &size); /* loops.c asks how many there are */
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        DType acc = dtype_accumulator((DType)n->dtype);
        int64_t bytes = (int64_t)dtype_bytes(inst_reduces(n) ? acc : (DType)n->dtype);
        held = inst_reduces(n) && bytes > held ? bytes : held;
        read = n->kind == KI_LOAD && f->info[i].r_level && bytes < read ? bytes : read;
    }
    int64_t columns = extent(f, s), least_rows = ordered ? f->order.lanes : f->order.lanes / 2;
    bool wide = columns >= 2 * s->lanes || !is_const(f, (uint32_t)s->along, &size), long_rows = columns * read >= page;
    if (s->lanes * read <= LINE)
        long_rows |= held == read && columns >= rule_limit(f->bits, LIMIT_strip_tiles) * s->lanes;
    else
        long_rows &= held == read;
    bool heavy = stages && s->rules >> RULE_across & 1;
    int64_t few = (c->w.widest > 4 ? 1 : 2) * one_vector(f);
    if (heavy && s->lanes > few)
        s->lanes = few;
    s->strip = strip_bytes(f, any_rows) / (s->lanes * held);
    s->strip = s->strip < MOST_STRIP ? s->strip : MOST_STRIP;
    return s->strip && wide && (heavy ? columns * read >= page : ordered || long_rows) && (any_rows || planned_r(f) >= least_rows);
}

/*
 * What a strip reads in one go shall fit the first cache: of few rows its sums are the most of that. Where sizes vary a launch may have few rows,
 * whatever is planned for.
 */
bool give_chains(Choice *c, Schedule *s)
{
    int64_t rows = planned_r(c->f), bits = c->f->bits;
    bool few = rows <= rule_limit(bits, LIMIT_chains_four);
    s->chains = few ? 4 : 2;
    s->strip /= few ? 2 : 1;
    return s->strip && has(c->f->k, in_lanes) && (rows <= rule_limit(bits, LIMIT_chains_two) || !constant_r(c->f));
}

/*
 * What a strip holds is loaded and stored once for several rows, and the hardware follows as many at once. Where no cache holds them, the next
 * ones are asked for, too; from a cache that only takes time. Chains are for few rows: where sizes vary there is code for many, too.
 */
bool give_steps(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    bool stages = f->n_stages > 1; /* each has as many as are little code (jit/nest.c) */
    if (!s->strip || (s->chains && !stages && constant_r(f)))
        return false;
    int64_t ops = facts_weigh_point(f, s, c->w) * (s->lanes * c->w.widest * 8 / f->bits), row = 0;
    s->steps = rule_limit(f->bits, LIMIT_steps);
    while (s->steps > 1 && !stages && s->steps * ops > rule_limit(f->bits, LIMIT_steps_code))
        s->steps /= 2;
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        if (inst(f, i)->kind == KI_LOAD && f->live[i] && f->info[i].r_level)
            row += extent(f, s) * (int64_t)dtype_bytes((DType)inst(f, i)->dtype);
    s->prefetch = planned_r(f) * row >= rule_limit(f->bits, LIMIT_uncached);
    return s->steps > 1;
}

/* What an iteration does with a carry takes so long that loading and storing it is nothing beside it, and a few vectors in registers do
 * not fill the time. */
bool give_carried(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t n = 0, bytes = 0, one = one_vector(f), most = rule_limit(f->bits, LIMIT_carried_tiles);
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        if (carries(inst(f, i))) {
            n++;
            bytes += (int64_t)dtype_bytes((DType)inst(f, i)->dtype);
        }
    if (!n || has(f->k, ends) || !along_x(f, s) || extent(f, s) < 4 * one || !facts_heavy(f, c->w) ||
        c->w.ops < rule_limit(f->bits, LIMIT_carried) * n)
        return false;
    s->lanes = one;
    s->strip = rule_limit(f->bits, LIMIT_carried_bytes) / (s->lanes * bytes);
    s->strip = s->strip < 1 ? 1 : s->strip > most ? most : s->strip;
    return true;
}

/*
 * No more lanes than leave room for the sums that wait in registers for others, and than keep the code of several vectors short: those
 * that have a cache line of each row are as fast. But a whole line, where so many rows share a place in the first cache that what is left of it
 * is gone before the next tile reads it. Rows in pages of their own are more than the hardware follows, which shows where a register is less
 * than a line.
 */
bool give_unroll(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t n = constant_r(f), points = 1, waiting = 2, registers = f->bits == 512 ? 32 : 16, ops = unrolled_ops(c, s);
    if (!ops || s->strip || f->in_order || s->split != SPLIT_NEVER)
        return false;
    int64_t vectors = s->lanes * c->w.widest * 8 / f->bits;
    s->unroll = n;
    while (points < n)
        points *= 2, waiting++;
    const int64_t row = extent(f, s) * c->w.narrowest;
    const bool apart = n * row > rule_limit(f->bits, LIMIT_lines_stay);
    while (has(f->k, in_lanes) && vectors > 1 && vectors * waiting > registers && (!apart || s->lanes * c->w.narrowest > LINE))
        vectors /= 2, s->lanes /= 2;
    while (apart && s->lanes * c->w.narrowest < LINE && 2 * vectors * ops <= rule_limit(f->bits, LIMIT_lines_code))
        vectors *= 2, s->lanes *= 2;
    const int64_t least = read_again(f, s) ? 2 : 1;
    while (vectors > least && vectors * ops > rule_limit(f->bits, LIMIT_unroll_vectors) && s->lanes * c->w.narrowest > LINE)
        vectors /= 2, s->lanes /= 2;
    s->prefetch = f->bits / 8 < LINE && n >= rule_limit(f->bits, LIMIT_many_rows) && row >= rule_limit(f->bits, LIMIT_page);
    return true;
}

/* ---- windows ---- */

/* Both copies of the code are long; where no tile of a row is inside there is one. */
bool give_inside(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    if (!along_x(f, s) || s->lanes == 1 || s->strip || s->split != SPLIT_NEVER || f->in_order || extent(f, s) < 2 * s->lanes ||
        !inside_of(f, (uint32_t)s->along))
        return false;
    s->inside = s->along;
    s->body = BODY_TWICE;
    return true;
}

/* Stores are all that it does: no index is checked, nothing is scattered. */
static bool only_stores(const KernelFacts *f)
{
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        if (f->checked[i] || inst(f, i)->kind == KI_SCATTER || (inst(f, i)->kind == KI_STORE && f->info[i].r_level))
            return false;
    return true;
}

/* Of windows whose points have code of their own: are several rows of them a tile's? */
static bool can_overlap(const KernelFacts *f) { return f->n_x >= 2 && f->n_stages == 1 && !f->in_order && only_stores(f); }

/* Of the widest accumulator. */
static int64_t folded_bytes(const KernelFacts *f)
{
    int64_t most = 1;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        int64_t bytes = (int64_t)dtype_bytes(dtype_accumulator((DType)inst(f, i)->dtype));
        most = inst_reduces(inst(f, i)) && bytes > most ? bytes : most;
    }
    return most;
}

/*
 * As many rows as make the fewest loads, where those that fill no tile are loaded one by one; of equals the fewest. What rows wait for is in
 * registers: one vector of each.
 */
bool give_overlap(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t most = rule_limit(f->bits, LIMIT_overlap_rows), points, best = 1;
    if (!s->unroll || s->lanes == 1 || !can_overlap(f))
        return false;
    s->across = (int64_t)f->n_x - 2;
    const Overlap *o = overlap_of(f, (uint32_t)s->across);
    bool known = is_const(f, (uint32_t)s->across, &points);
    int64_t one = overlap_loads(f, o, 1), ops = s->unroll * facts_weigh_point(f, s, c->w);
    double fewest = (double)one;
    const int64_t code = rule_limit(f->bits, read_again(f, s) ? LIMIT_unroll_again : LIMIT_overlap_code);
    for (int64_t rows = 2; rows <= most && rows * ops <= code; rows++) {
        double loads = (double)overlap_loads(f, o, rows), left = known ? (double)(points % rows) : 0;
        loads = known && points ? ((double)(points / rows) * loads + left * (double)one) / (double)points : loads / (double)rows;
        if (loads >= fewest)
            continue;
        fewest = loads;
        best = rows;
    }
    s->rows = best;
    s->body = BODY_TWICE;
    while (s->lanes * folded_bytes(f) * 8 > f->bits)
        s->lanes /= 2;
    return best > 1 && fewest * 3 <= (double)one * 2;
}

/* ---- scatters ---- */

bool give_shares(Choice *c, Schedule *s)
{
    s->shares = rule_limit(c->f->bits, LIMIT_shares);
    return facts_place(c->f) != VREF_NONE;
}

/* ---- transposed inputs ---- */

/* 4096 x 4096 f32: 141 ms row by row, 30 so. */
bool give_bands(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    if (f->n_stages || f->n_x < 2 || !along_x(f, s) || s->lanes == 1 || s->joined)
        return false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        if ((n->kind != KI_LOAD && n->kind != KI_STORE) || index_walk(f->k, n->idx, (uint32_t)s->along) != INDEX_JUMPS)
            continue;
        for (uint32_t a = 0; a + 1 < f->n_x; a++) {
            int64_t block = LINE / (int64_t)dtype_bytes((DType)n->dtype);
            if (index_walk(f->k, n->idx, a) != INDEX_STEPS || block < s->rows)
                continue;
            s->rows = block;
            s->across = a;
        }
    }
    return s->rows;
}

/* Each row of a band has code of its own. */
bool give_squares(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    for (uint32_t i = 0; i < f->k->inst.n && s->rows; i++) {
        int64_t side = square_side(f->bits, (DType)inst(f, i)->dtype), points = kernel_extent(f->k, (uint32_t)s->across), squares = 0;
        int64_t rows = (s->rows < points ? s->rows : points) / side * side;
        uint32_t along = (uint32_t)s->along, across = (uint32_t)s->across;
        for (uint32_t n = i; n < f->k->inst.n && in_squares(f, i, side, along, across); n++)
            squares += in_squares(f, n, side, along, across);
        if (!rows || !squares || squares > rule_limit(f->bits, LIMIT_squares) || s->lanes < side ||
            c->w.ops * rows > rule_limit(f->bits, LIMIT_squares_code))
            continue;
        s->rows = rows;
        s->square = s->lanes = side;
        return true;
    }
    return false;
}

/* ---- pieces ---- */

/* Weight of the heaviest piece; ops of all together in *all. */
static Weight weigh_pieces(const KernelFacts *f, const Schedule *s, const Pieces *p, uint32_t *all)
{
    Weight most = {.widest = 1, .narrowest = 8};
    bool *part = ARENA_ARRAY(f->arena, bool, f->k->inst.n + 1);
    *all = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        piece_part(f, p, i, part);
        Weight w = facts_weigh(f, s, part);
        *all += w.ops;
        most.ops = w.ops > most.ops ? w.ops : most.ops;
        most.widest = w.widest > most.widest ? w.widest : most.widest;
        most.narrowest = w.narrowest < most.narrowest ? w.narrowest : most.narrowest;
    }
    return most;
}

/* Pieces of a row that one tile holds cost more than they save, but where each is some tiles without a mask. */
static bool pieces_pay(const KernelFacts *f, const Schedule *s, const Pieces *p, int64_t row)
{
    int64_t length[MOST_PIECES], size;
    if (p->axis != s->along || !is_const(f, (uint32_t)s->along, &size) || size > row)
        return true;
    bool whole = pieces_lengths(f->k, p, length);
    for (uint32_t i = 0; i < p->n && whole; i++)
        whole = length[i] % s->lanes == 0;
    return whole;
}

bool give_pieces(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    const Pieces *p = NULL;
    uint32_t axis = f->n_x, ops;
    if (s->joined && rows_are_lists(f, s->joined)) /* lanes go over both axes, and with masks */
        return false;
    while (axis > 0 && !f->n_r && has_lanes(s) && !s->rows && !p)
        p = pieces_of(f, --axis);
    if (!p)
        return false;
    Weight w = weigh_pieces(f, s, p, &ops);
    int64_t length[MOST_PIECES], longest = 0, lanes = s->lanes;
    bool known = p->axis == s->along && pieces_lengths(f->k, p, length);
    ask_lanes(c, w, s);
    for (uint32_t i = 0; known && i < p->n; i++)
        longest = length[i] > longest ? length[i] : longest;
    while (known && s->lanes > 1 && s->lanes / 2 >= longest)
        s->lanes /= 2;
    s->pieces = axis;
    s->prefetch = 0;
    ask(c, ALL_AHEAD, w, s);
    return ops <= rule_limit(f->bits, LIMIT_pieces_code) && (!has_masks(f, w) || pieces_pay(f, s, p, lanes));
}

/* ---- copies ---- */

/* A value of memory as it is there, or one of several, which is known in each piece. */
static bool is_copied(const KernelFacts *f, const Schedule *s, VRef v)
{
    const KInst *x = inst(f, v);
    if (x->kind == KI_OP && x->op == OP_WHERE && s->pieces >= 0)
        return is_copied(f, s, x->b) || is_copied(f, s, x->c);
    return x->kind == KI_LOAD && x->dtype != DT_BOOL && (x->pred == VREF_NONE || s->pieces >= 0);
}

/* Where all that the kernel does is one such store: the bytes of an element; else 0. */
static int64_t copied_bytes(const KernelFacts *f, const Schedule *s)
{
    int64_t bytes = 0;
    for (VRef v = 0; v < f->k->inst.n; v++) {
        const KInst *x = inst(f, v);
        bool store = x->kind == KI_STORE;
        if (x->kind == KI_SCATTER || f->checked[v] || (store && (bytes || x->pred != VREF_NONE || !is_copied(f, s, x->a))))
            return 0;
        bytes = store ? (int64_t)dtype_bytes((DType)inst(f, x->a)->dtype) : bytes;
    }
    return bytes;
}

bool give_copies(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    bool tiles = !f->n_r && along_x(f, s) && s->lanes > 1 && s->body == BODY_TWICE && !s->rows && !s->joined && s->inside < 0;
    s->copy = rule_limit(f->bits, LIMIT_copy);
    return tiles && extent(f, s) * copied_bytes(f, s) >= s->copy;
}

/* ---- the table ---- */

typedef struct Rule {
    const char *name;
    Group group;
    Give *give;
    uint32_t gives; /* a bit for each directive */
} Rule;

enum {
#define DIRECTIVE(forms, field, kind, help) DIRECTIVE_##field,
#include "jit/directives.def"
#undef DIRECTIVE
    DIRECTIVE_stages
};

static const Rule *rule_at(RuleId id)
{
    enum {
#define DIRECTIVE(forms, field, kind, help) field = 1 << DIRECTIVE_##field,
#include "jit/directives.def"
#undef DIRECTIVE
        stages = 1 << DIRECTIVE_stages
    };
    static const Rule rules[] = {
#define RULE(id, group, gives, sentence) {#id, group, give_##id, gives},
#include "jit/rules.def"
#undef RULE
    };
    return &rules[id];
}

/* What of two schedules is not the same: a bit for each directive. */
static uint32_t changed(const Schedule *a, const Schedule *b)
{
    uint32_t bits = (uint32_t)(a->n_stages != b->n_stages || memcmp(a->stage_lanes, b->stage_lanes, sizeof a->stage_lanes) != 0)
                    << DIRECTIVE_stages;
#define DIRECTIVE(forms, field, kind, help) bits |= (uint32_t)(a->field != b->field) << DIRECTIVE_##field;
#include "jit/directives.def"
#undef DIRECTIVE
    return bits;
}

static bool takes_one(Group group) { return group != ALL_AHEAD && group != ALL_BODY && group != ALL_MORE && group != ALL_LAST; }

/* What the rules of a group gave before is for the caller to take back. */
static void ask(Choice *c, Group group, Weight w, Schedule *s)
{
    const Weight before = c->w;
    c->w = w;
    for (RuleId id = 0; id < RULES; id++)
        if (rule_at(id)->group == group)
            s->rules &= ~(UINT64_C(1) << id);
    for (RuleId id = 0; id < RULES; id++) {
        const Rule *rule = rule_at(id);
        Schedule with = *s;
        if (rule->group != group || !rule->give(c, &with))
            continue;
        if (changed(s, &with) & ~rule->gives)
            c->broken = rule->name;
        *s = with;
        s->rules |= UINT64_C(1) << id;
        if (takes_one(group))
            break;
    }
    c->w = before;
}

static void choose_loops(Choice *c, Schedule *s)
{
    s->lanes = 1;
    s->across = s->pieces = s->inside = -1;
    ask(c, ONE_ALONG, (Weight){0}, s);
    ask(c, ONE_SPLIT, (Weight){0}, s);
    Weight w = facts_weigh(c->f, s, NULL);
    ask(c, ALL_AHEAD, w, s);
    ask_lanes(c, w, s);
    ask(c, ALL_MORE, w, s);
}

static void choose_product(Choice *c, Schedule *s)
{
    c->dot = dot_facts(c->f, dot_last(c->f));
    ask(c, ONE_SIDES, (Weight){0}, s);
    if (!s->in_place && !rows_are_dots(c))
        ask(c, ONE_SPLIT, (Weight){0}, s);
    Weight w = facts_weigh(c->f, s, NULL);
    for (Group group = ONE_WAY; group <= ALL_LAST; group++)
        ask(c, group, w, s);
    if (c->dot.has_lanes)
        ask(c, ALL_AHEAD, w, s);
}

Status rules_choose(const KernelFacts *f, Schedule *s)
{
    Choice c = {.f = f};
    *s = (Schedule){.bits = f->bits};
    if (f->k->form == FORM_CONTRACT)
        choose_product(&c, s);
    else
        choose_loops(&c, s);
    return c.broken ? fail(ST_INTERNAL, "rule %s sets a directive that jit/rules.def does not name", c.broken) : ST_OK;
}

ScheduleFacts rules_allow(const KernelFacts *f, const Schedule *own)
{
    ScheduleFacts facts = {.own = own,
                           .n_x = f->n_x,
                           .n_r = f->n_r,
                           .n_stages = f->n_stages,
                           .order_lanes = f->order.lanes,
                           .in_order = f->in_order,
                           .carries = has(f->k, carries),
                           .columns = folds_columns(f),
                           .strips = folds_in_strips(f),
                           .points = constant_r(f),
                           .last_x = last_x(f)};
    if (f->k->form == FORM_CONTRACT) {
        DotFacts dot = dot_facts(f, own->along);
        facts.product = true;
        facts.regular = dot.regular;
        facts.along_k = dot.along[LANE_SIDE];
        facts.vector = dot.lanes;
    }
    for (uint32_t a = 0; a < f->n_x && f->k->form == FORM_LOOPS; a++)
        facts.cut |= pieces_of(f, a) ? 1u << a : 0;
    facts.overlap = f->k->form == FORM_LOOPS && can_overlap(f);
    facts.inside = f->k->form == FORM_LOOPS && f->n_x && inside_of(f, f->n_x - 1);
    return facts;
}

void rules_print(const Schedule *s, Str *out)
{
    const char *before = "// ";
    for (RuleId id = 0; id < RULES; id++)
        if (s->rules >> id & 1) {
            str_printf(out, "%s%s", before, rule_at(id)->name);
            before = ", ";
        }
    if (!s->rules)
        str_printf(out, "// of a file");
}

/* Rules of folds: in strips, in chains, by code of each point; of windows, and of scatters. */
#include "jit/rules_inside.h"

#include "jit/overlap.h"
#include "jit/pieces.h"

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
        int64_t lanes = is_light_fold(f, w) && w.widest == 4 ? 4 * s->lanes : s->lanes;
        while (lanes > s->lanes && lanes / 2 >= extent(f, s))
            lanes /= 2;
        lanes = lanes < MOST_LANES ? lanes : MOST_LANES;
        s->stage_lanes[stage] = (uint8_t)rules_fitting_lanes(f, s, lanes);
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
    const int64_t n = constant_r(f);
    if (!along_x(f, s) || n < 1 || n > f->order.lanes || (n == f->order.lanes && !read_again(f, s)))
        return 0;
    int64_t ops = n * facts_weigh_point(f, s, c->w), folds = 0;
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

/*
 * Of an operand that only the points across do not tell apart, as the second of distances between all pairs of points, a tile reads the same lines
 * for each of them. Row after row they would come from the second cache, which gives about as many as are computed with.
 */
bool give_again(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    bool same = false;
    if (!s->unroll || s->rows || s->inside >= 0 || f->n_x < 2 || f->n_stages != 1 || !read_again(f, s))
        return false;
    s->across = (int64_t)f->n_x - 2;
    s->again = rule_limit(f->bits, LIMIT_again_rows);
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        if (inst(f, i)->kind == KI_LOAD && f->live[i] && f->info[i].r_level &&
            index_walk(f->k, inst(f, i)->idx, (uint32_t)s->along) == INDEX_STEPS)
            same |= index_walk(f->k, inst(f, i)->idx, (uint32_t)s->across) == INDEX_STAYS;
    return same && kernel_extent(f->k, (uint32_t)s->across) >= s->again;
}

/* ---- windows ---- */

/* Of a kernel without folds: does it read more than one element that an edge may keep it from? One is that of a pad, for which pieces do. */
static bool reads_at_edges(const KernelFacts *f, const Inside *in)
{
    int reads = 0;
    for (uint32_t i = 0; i < f->k->inst.n; i++)
        reads += inst(f, i)->kind == KI_LOAD && f->live[i] && inst(f, i)->pred != VREF_NONE && in->asks[inst(f, i)->pred];
    return reads > 1;
}

/*
 * Tiles that no edge cuts, and rows that none cuts, have code of their own, which is long: of rows that fill no two tiles only where the last one may
 * begin earlier. That has no mask, then, and is most often inside. (Cascade Lake, one thread, us, under a mask and earlier: depthwise 3x3 stride 2 of 128
 * channels at 56 318 -> 254 (AVX2), 8 images 1890 -> 1620 (AVX-512), 5x5 stride 2 of 64 324 -> 215.)
 */
bool give_inside(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    const Inside *in = along_x(f, s) ? inside_of(f, (uint32_t)s->along) : NULL;
    if (!in || s->lanes == 1 || s->strip || s->split != SPLIT_NEVER || f->in_order)
        return false;
    if (!f->n_r && (s->rows || s->joined || !reads_at_edges(f, in) || !inside_mostly(f, in)))
        return false;
    const bool twice = facts_twice(f);
    if (extent(f, s) < 2 * s->lanes && !(twice && extent(f, s) > s->lanes))
        return false;
    s->inside = s->along;
    s->body = BODY_TWICE;
    if (twice)
        s->tail = TAIL_EARLIER;
    return true;
}

/* Of windows whose points have code of their own: are several rows of them a tile's? */
bool rules_overlap(const KernelFacts *f) { return f->n_x >= 2 && f->n_stages == 1 && !f->in_order && facts_only_stores(f); }

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

/* What is folded of more points than the order has lanes lies in memory, one sum for each of these, however wide a tile is. */
bool give_sliding(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    const int64_t vectors = folded_bytes(f) > 4 ? 2 : 4;
    s->lanes = vectors * one_vector(f);
    return along_x(f, s) && f->n_r && !f->in_order && inside_of(f, (uint32_t)s->along) && has(f->k, in_lanes) &&
           planned_r(f) > f->order.lanes && c->w.ops * vectors <= rule_limit(f->bits, LIMIT_sliding_code);
}

/*
 * As many rows as make the fewest loads, where those that fill no tile are loaded one by one; of equals the fewest. What rows wait for is in
 * registers: one vector of each. Where edges cut all tiles loads are under masks, which rows have in common as well: fewer of them are enough. (Cascade
 * Lake, one thread, ms, depthwise 3x3 stride 2 of 128 channels at 56, 8 images: 2.47 -> 2.13; but of maxima, most of them inside, 3.56 -> 3.83.)
 */
bool give_overlap(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t most = rule_limit(f->bits, LIMIT_overlap_rows), points, best = 1;
    if (!s->unroll || s->lanes == 1 || !rules_overlap(f))
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
    const bool masks = s->inside < 0 && along_x(f, s) && inside_of(f, (uint32_t)s->along);
    return best > 1 && (masks ? fewest * 6 <= (double)one * 5 : fewest * 3 <= (double)one * 2);
}

/* ---- scatters ---- */

bool give_shares(Choice *c, Schedule *s)
{
    s->shares = rule_limit(c->f->bits, LIMIT_shares);
    return facts_place(c->f) != VREF_NONE;
}

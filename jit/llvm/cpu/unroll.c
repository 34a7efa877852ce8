/*
 * Reductions over few points (the directive `unroll`): lanes along x, and each point of the r axes, whose number the kernel says, has code of its
 * own. What they are reduced to stays in registers, where a loop would have an accumulator in memory for each canonical lane (ir/orders.def).
 *
 * Below the order's lanes each point is a lane by itself. The tree adds lane l + 32 to l, then l + 16, ...: so T(base, step), the sum of the lanes
 * base, base + step, base + 2 step, ..., is T(base, 2 step) + T(base + step, 2 step), or the first alone where there is no second. Points
 * are read in the order in which that meets them: a register for each level is all that waits.
 *
 *     7 points      ((0 + 4) + (2 + 6)) + ((1 + 5) + 3)
 *
 * What has no order is one chain; maxima and minima of floats take two points a step (extreme.c).
 */
#include "jit/llvm/build.h"

/* Point number `at` of the r axes: its saves and stores, and the operands of the stage's reductions. */
static Part *point(Emit *e, uint32_t stage, int64_t at)
{
    Part *part = ARENA_ARRAY(e->arena, Part, e->n_red + 1);
    r_constants(e, at);
    if (e->overlap)
        overlap_point(e, at);
    level_open(e, LV_R);
    e->flat = l_i64(e, at);
    rows_save(e, stage);
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage)
            part[i] = reduce_part(e, &e->red[i]);
    emit_stores(e, true, stage);
    return part;
}

static Part merge(Emit *e, const Reduction *r, Part a, Part b, bool later)
{
    return r->arg && later ? part_later(e, r, a, b) : part_merge(e, r, a, b, true);
}

/* Point a, and b where there is one, behind those of `part`; first: it has none. */
static void chain_step(Emit *e, uint32_t stage, Part *part, const Part *a, const Part *b, bool first)
{
    for (uint32_t i = 0; i < e->n_red; i++) {
        const Reduction *r = &e->red[i];
        if (r->stage != stage)
            continue;
        if (r->extreme) {
            part[i].v = extreme_step(e, r, part[i].v, a[i].v, b ? b[i].v : NULL);
            continue;
        }
        part[i] = first ? a[i] : merge(e, r, part[i], a[i], true);
        if (b)
            part[i] = merge(e, r, part[i], b[i], true);
    }
}

static Part *chain(Emit *e, uint32_t stage, int64_t n)
{
    Part *part = ARENA_ARRAY(e->arena, Part, e->n_red + 1);
    for (uint32_t i = 0; i < e->n_red; i++) {
        Reduction *r = &e->red[i];
        if (r->stage != stage || !r->extreme)
            continue;
        extreme_open(e, r);
        extreme_begin(e, r);
        part[i] = part_start(e, r, NULL, true);
    }
    for (int64_t at = 0; at < n; at += 2) {
        const Part *a = point(e, stage, at), *b = at + 1 < n ? point(e, stage, at + 1) : NULL;
        chain_step(e, stage, part, a, b, at == 0);
    }
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage && e->red[i].extreme)
            part[i].v = extreme_result(e, &e->red[i], part[i].v);
    return part;
}

static Part *tree(Emit *e, uint32_t stage, int64_t base, int64_t step, int64_t n)
{
    if (base + step >= n)
        return point(e, stage, base);
    Part *a = tree(e, stage, base, 2 * step, n);
    const Part *b = tree(e, stage, base + step, 2 * step, n);
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage)
            a[i] = merge(e, &e->red[i], a[i], b[i], false);
    return a;
}

/* All points of a stage of this tile. */
void walk_unroll(Emit *e, const NestNode *node)
{
    enum { LINES_AHEAD = 2 };
    int64_t n = node->points;
    uint32_t stage = node->number;
    int outer = e->cur;
    Part *part;
    e->stage = stage;
    e->rows_ahead = -1;
    e->ahead = e->schedule.prefetch ? LINES_AHEAD * LINE : 0;
    pin(e, outer);
    if (stage_ordered(e, stage)) {
        part = tree(e, stage, 0, 1, n);
    } else {
        part = chain(e, stage, n);
    }
    level_close(e, LV_R, outer);
    e->rows_ahead = 0;
    e->ahead = 0;
    for (uint32_t i = 0; i < e->n_red; i++)
        if (e->red[i].stage == stage)
            reduce_result(e, &e->red[i], (Val){.v = e->red[i].arg ? part[i].at : part[i].v, .vec = true});
}

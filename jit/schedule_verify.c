/* Which schedules a kernel can have: a function for each row of jit/refusals.def, true where it refuses. */
#include "jit/schedule.h"

#include "ir/base/status.h"
#include "jit/dot_facts.h"

static bool power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

static bool good_lanes(int64_t n) { return power_of_two(n) && n <= MOST_LANES; }

static bool lanes_along_r(const Schedule *s, const ScheduleFacts *f) { return s->along >= (int64_t)f->n_x; }

static bool refuses_width(const Schedule *s, const ScheduleFacts *f) { return s->bits != f->own->bits; }

static bool refuses_along(const Schedule *s, const ScheduleFacts *f)
{
    bool x = f->n_x ? s->along == (int64_t)f->n_x - 1 : s->along < 0;
    return !x && !(f->n_r && !f->in_order && s->along == (int64_t)(f->n_x + f->n_r) - 1);
}

static bool refuses_lanes(const Schedule *s, const ScheduleFacts *f)
{
    (void)f;
    bool rows = s->joined > 0 && s->lanes <= MOST_LANES && s->lanes % s->joined == 0 && power_of_two(s->lanes / s->joined) &&
                s->tail == TAIL_SCALAR && s->body == BODY_TWICE;
    return !(good_lanes(s->lanes) || rows) || (s->along < 0 && s->lanes != 1);
}

static bool refuses_stages(const Schedule *s, const ScheduleFacts *f)
{
    if (!s->n_stages)
        return false;
    for (uint32_t i = 0; i < s->n_stages; i++)
        if (!good_lanes(s->stage_lanes[i]))
            return true;
    return !lanes_along_r(s, f) || f->n_stages < 2 || s->n_stages != f->n_stages;
}

static bool refuses_tail(const Schedule *s, const ScheduleFacts *f)
{
    return (s->tail == TAIL_SCALAR && f->n_r) || (s->tail == TAIL_EARLIER && !f->twice);
}

static bool refuses_rows(const Schedule *s, const ScheduleFacts *f)
{
    if (!s->rows)
        return s->across >= 0 && !s->again;
    bool windows = f->overlap && s->unroll && s->across == (int64_t)f->n_x - 2 && s->rows >= 2 && s->rows <= 16;
    return s->rows < 0 || s->rows > 1 << 16 || (f->n_stages && !windows) || s->across < 0 || s->across + 1 >= (int64_t)f->n_x;
}

static bool refuses_again(const Schedule *s, const ScheduleFacts *f)
{
    bool other = s->rows || s->pieces >= 0 || s->inside >= 0 || !s->unroll;
    return s->again && (s->again < 0 || s->again > 1 << 16 || other || s->across < 0 || s->across + 1 >= (int64_t)f->n_x);
}

static bool refuses_square(const Schedule *s, const ScheduleFacts *f)
{
    const Schedule *own = f->own;
    return s->square && (s->square != own->square || s->lanes != s->square || !s->rows || s->rows % s->square || s->across != own->across);
}

static bool refuses_pieces(const Schedule *s, const ScheduleFacts *f) { return s->pieces >= 0 && (s->rows || !(f->cut >> s->pieces & 1)); }

static bool refuses_inside(const Schedule *s, const ScheduleFacts *f)
{
    bool other = s->strip || s->pieces >= 0 || s->joined || s->join_below || (s->rows && f->n_r == 0);
    return s->inside >= 0 && (s->inside != s->along || !f->inside || other || f->in_order || s->split != SPLIT_NEVER);
}

static bool refuses_joined(const Schedule *s, const ScheduleFacts *f)
{
    bool cut = f->n_x > 1 && s->pieces >= (int64_t)f->n_x - 2;
    return s->joined && (s->joined != f->last_x || f->n_x < 2 || f->n_r || f->n_stages || s->rows || cut);
}

static bool refuses_join_below(const Schedule *s, const ScheduleFacts *f)
{
    return s->join_below && (!f->own->join_below || s->join_below < 0 || s->join_below > 128 || s->joined || s->rows || s->pieces >= 0);
}

static bool refuses_columns(const Schedule *s, const ScheduleFacts *f)
{
    return s->columns && (s->columns != f->last_x || s->columns > f->order_lanes || !f->columns || !lanes_along_r(s, f));
}

static bool refuses_strip(const Schedule *s, const ScheduleFacts *f)
{
    bool columns = (f->strips || f->carries) && s->along == (int64_t)f->n_x - 1 && s->along >= 0 && s->split != SPLIT_ALWAYS;
    return s->strip && (s->strip < 0 || s->strip > MOST_STRIP || !columns);
}

static bool refuses_chains(const Schedule *s, const ScheduleFacts *f)
{
    return s->chains && (!power_of_two(s->chains) || s->chains < 2 || s->chains >= f->order_lanes);
}

static bool refuses_steps(const Schedule *s, const ScheduleFacts *f) { return s->steps && (s->steps < 2 || s->steps > 16 || f->in_order); }

static bool refuses_unroll(const Schedule *s, const ScheduleFacts *f)
{
    bool x = s->along == (int64_t)f->n_x - 1 && s->along >= 0;
    return s->unroll && (s->unroll != f->points || s->unroll > f->order_lanes || !x || s->strip || f->in_order || s->split != SPLIT_NEVER);
}

static bool refuses_copy(const Schedule *s, const ScheduleFacts *f)
{
    bool other = s->body != BODY_TWICE || s->rows || s->joined || s->inside >= 0;
    return s->copy && (!f->own->copy || s->copy < 64 || s->lanes < 2 || other);
}

static bool refuses_shares(const Schedule *s, const ScheduleFacts *f)
{
    return s->shares && (!f->own->shares || !power_of_two(s->shares) || s->shares < 2 || s->shares > MOST_SHARES);
}

static bool refuses_split(const Schedule *s, const ScheduleFacts *f)
{
    bool strips = f->product && (s->way == WAY_STRIPS || s->in_place);
    return s->split != SPLIT_NEVER && (s->split != f->own->split || strips);
}

static bool refuses_axes(const Schedule *s, const ScheduleFacts *f) { return s->along != f->own->along || s->across != f->own->across; }

static bool refuses_irregular(const Schedule *s, const ScheduleFacts *f) { return !f->regular && s->way != WAY_DIRECT; }

static bool refuses_squares(const Schedule *s, const ScheduleFacts *f) { return !f->along_k && s->way == WAY_DOTS; }

static bool refuses_tile(const Schedule *s, const ScheduleFacts *f)
{
    int64_t most = s->way == WAY_PACKED ? 28 : 14, width = s->tile_width;
    if (s->tile_rows < 1 || s->tile_rows > most || width < 1 || width > (s->way == WAY_PACKED ? 4 : 2) * f->vector)
        return true;
    const bool half = s->in_place && width == f->own->tile_width && width < f->vector; /* of a vector */
    if (s->way == WAY_PACKED)
        return (!half && width % f->vector) || s->tile_rows * width > most * f->vector;
    return !power_of_two(width) || (s->way == WAY_DOTS && width < f->vector);
}

static bool refuses_scalar(const Schedule *s, const ScheduleFacts *f)
{
    return !f->regular && f->own->tile_width == 1 && s->tile_width != 1;
}

static bool refuses_task(const Schedule *s, const ScheduleFacts *f)
{
    (void)f;
    return s->task_rows < s->tile_rows || s->task_rows > 4096 || s->task_rows % s->tile_rows || s->task_tiles < 1 ||
           s->task_tiles > (1 << 20) / s->tile_width / s->task_rows || (s->way == WAY_STRIPS && s->task_rows > STRIP_GROUPS * s->tile_rows);
}

static bool refuses_panels(const Schedule *s, const ScheduleFacts *f)
{
    (void)f;
    return s->way == WAY_PACKED && (s->panels < 1 || s->panels > s->task_tiles || s->panels > 4096 / s->tile_width);
}

static bool refuses_in_place(const Schedule *s, const ScheduleFacts *f)
{
    bool runs = f->place_rows && s->tile_rows > f->place_rows && s->tile_rows != f->own->tile_rows;
    return s->in_place && (s->in_place != f->own->in_place || s->way != WAY_PACKED || s->tile_rows > f->own->tile_rows || runs);
}

Status schedule_verify(const Schedule *s, const ScheduleFacts *facts)
{
    enum { LOOPS = 1, PRODUCT, BOTH };
    static const struct {
        bool (*refuses)(const Schedule *, const ScheduleFacts *);
        int forms;
        const char *name, *sentence;
    } refusals[] = {
#define REFUSAL(id, forms, sentence) {refuses_##id, forms, #id, sentence},
#include "jit/refusals.def"
#undef REFUSAL
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (refusals[i].forms & (facts->product ? PRODUCT : LOOPS) && refusals[i].refuses(s, facts))
            return fail(ST_INVALID, "%s: %s", refusals[i].name, refusals[i].sentence);
    return ST_OK;
}

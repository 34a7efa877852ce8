/* A long line by several threads: by cuts, where vectors sort its items, or by slices (jit/sort.c). */
#include "jit/sort_line.h"

#include <string.h>

/* --- a line by cuts ---------------------------------------------------------------------------------------------------------- */

/* Parts of a line that is cut, for each of its slices (several, as samples make them uneven); samples for each part. No more slices than
 * have room for all samples. */
enum { PARTS = 4, SAMPLES = 32, MOST_SLICES = SLICE_LEAST / (PARTS * SAMPLES) };

/* Keys, if they are to be squeezed; items, of which each slice's are cut; parts are sorted and written; restore what keys do not know, or settle. */
enum { CUTS_KEYS, CUTS_CUT, CUTS_SORT, CUTS_RESTORE, CUTS_PHASES };

int cuts_phases(void) { return CUTS_PHASES; }

int64_t cuts_most_slices(void) { return MOST_SLICES; }

size_t cuts_head(int64_t slices)
{
    return aligned((size_t)slices) + aligned((size_t)slices * sizeof(Range)) + aligned((size_t)(slices * slices * PARTS) * sizeof(int64_t));
}

typedef struct Cuts {
    int64_t parts;
    bool *odd;      /* by slice: has NaNs or zeros below zero */
    Range *range;   /* by slice: of its keys, if they are squeezed */
    int64_t *count; /* of items, by slice and part */
    char *cut;      /* items as the slices cut them */
    char *sorted;   /* and part by part */
} Cuts;

static Cuts cuts_of(const SortPlan *plan, const Line *line, void *room)
{
    char *at = room;
    Cuts c = {.parts = plan->slices * PARTS, .odd = room};
    c.range = (Range *)(void *)(at + aligned((size_t)plan->slices));
    c.count = (int64_t *)(void *)((char *)c.range + aligned((size_t)plan->slices * sizeof *c.range));
    c.cut = at + cuts_head(plan->slices);
    c.sorted = in_place(plan) ? (char *)line->out : c.cut + order_bytes(line->n, moved_bytes(plan));
    return c;
}

/* The item of one element; q: of squeezed ones. */
static int64_t item_at(const Line *line, const Squeeze *q, int64_t place)
{
    uint64_t room[1];
    if (squeezes(line->plan))
        return squeeze_item(q, sort_key_at(line, place), place);
    const void *x = sort_elements_at(line, place, 1, room);
    int64_t wide = 0;
    int32_t key = 0;
    if (line->plan->job.values && line->plan->item_bytes == 8) {
        sort_keys_of_64(line, x, 1, &wide);
        return wide;
    }
    sort_keys_of_32(line, x, 1, &key);
    return line->plan->job.values ? key : (int64_t)((uint64_t)(uint32_t)key << 32 | (uint32_t)place);
}

/* All slices have the same bounds: quantiles of a sample of the whole line, which lies where the sorted items will. */
#define CUT_SLICE(bits)                                                                                                              \
    static void cut_slice_##bits(const Line *line, const Cuts *c, const Squeeze *q, int64_t slice, int64_t first, int64_t end)       \
    {                                                                                                                                \
        const SortNetwork *network = sort_network_of(line->plan->vectors);                                                           \
        const int64_t samples = c->parts * SAMPLES, step = line->n / samples;                                                        \
        int##bits##_t *bounds = (int##bits##_t *)(void *)c->sorted + first;                                                          \
        for (int64_t i = 0; i < samples; i++)                                                                                        \
            bounds[i] = (int##bits##_t)item_at(line, q, i * step + (i * 7919) % step);                                               \
        network->sort##bits(bounds, samples);                                                                                        \
        for (int64_t i = 1; i < c->parts; i++)                                                                                       \
            bounds[i - 1] = bounds[i * SAMPLES];                                                                                     \
        network->cut##bits((int##bits##_t *)(void *)c->cut + first, end - first, bounds, c->parts - 1, c->count + slice * c->parts); \
    }

CUT_SLICE(32)
CUT_SLICE(64)

/* Part `part` of all slices comes together and is sorted. */
static void sort_part(const Line *line, const Cuts *c, const Squeeze *q, int64_t part)
{
    const SortPlan *plan = line->plan;
    const size_t bytes = (size_t)moved_bytes(plan);
    int64_t first = 0, n = 0;
    for (int64_t i = 0; i < plan->slices * c->parts; i++)
        first += i % c->parts < part ? c->count[i] : 0;
    for (int64_t slice = 0; slice < plan->slices; slice++) {
        const int64_t *count = c->count + slice * c->parts;
        int64_t from = slice_start(plan, slice);
        for (int64_t i = 0; i < part; i++)
            from += count[i];
        memcpy(c->sorted + (size_t)(first + n) * bytes, c->cut + (size_t)from * bytes, (size_t)count[part] * bytes);
        n += count[part];
    }
    sort_items(plan, c->sorted + (size_t)first * bytes, n);
    if (squeezes(plan))
        squeeze_write(line, q, first, first + n, (const int64_t *)(const void *)c->sorted);
    else
        sort_write_line(line, c->sorted, first, first + n);
}

/* What the items do not know. */
static void complete(const Line *line, const Cuts *c, const Squeeze *q)
{
    const SortPlan *plan = line->plan;
    bool odd = false;
    for (int64_t slice = 0; slice < plan->slices; slice++)
        odd |= c->odd[slice];
    if (odd && plan->job.values)
        sort_restore(&line->rule, line->in, line->out, line->n, line->stride);
    if (squeezes(plan) && !squeeze_settle(line, (const int64_t *)(const void *)c->sorted, q))
        sort_whole(line, c->cut);
}

int64_t cuts_tasks(const SortPlan *plan, int phase)
{
    const int64_t tasks[CUTS_PHASES] = {
        [CUTS_KEYS] = squeezes(plan) ? plan->slices : 0, [CUTS_CUT] = plan->slices, [CUTS_SORT] = plan->slices * PARTS, [CUTS_RESTORE] = 1};
    return tasks[phase % CUTS_PHASES];
}

void cuts_run(const SortPlan *plan, int phase, int64_t task, void *room)
{
    Line line = sort_line_of(plan, phase / CUTS_PHASES);
    Cuts c = cuts_of(plan, &line, room);
    int64_t first = slice_start(plan, task), end = slice_start(plan, task + 1), *items = (int64_t *)(void *)c.cut;
    const Squeeze q = squeezes(plan) && phase % CUTS_PHASES != CUTS_KEYS ? squeeze_of(line.n, c.range, plan->slices) : (Squeeze){0};
    switch (phase % CUTS_PHASES) {
    case CUTS_KEYS: c.range[task] = squeeze_keys(&line, first, end, items); break;
    case CUTS_CUT:
        c.odd[task] = squeezes(plan) ? false : sort_kind_of(plan)->make(&line, first, end, c.cut);
        if (squeezes(plan))
            squeeze_items(&q, first, end, items);
        (moved_bytes(plan) == 4 ? cut_slice_32 : cut_slice_64)(&line, &c, &q, task, first, end);
        break;
    case CUTS_SORT: sort_part(&line, &c, &q, task); break;
    case CUTS_RESTORE: complete(&line, &c, &q); break;
    }
}

/* --- a line by slices -------------------------------------------------------------------------------------------------------- */

/* What the slices of a line share; the two orders of items follow, then counts[slices][radix]. */
typedef struct Shared {
    int now;    /* which order holds */
    bool skip;  /* all agree in this digit */
    bool odd[]; /* by slice: has NaNs or zeros below zero */
} Shared;

size_t slices_head(int64_t slices) { return aligned(sizeof(Shared) + (size_t)slices); }

/* Make items; for each digit count, add up, move; write the result; restore what keys do not know. */
enum { STEP_COUNT, STEP_ADD, STEP_MOVE, STEPS };

int slices_phases(const SortJob *job) { return 3 + STEPS * digits_of(job); }

typedef struct Slices {
    Shared *shared;
    char *items;              /* two orders */
    int64_t (*counts)[RADIX]; /* by slice */
} Slices;

static Slices slices_of(const SortPlan *plan, void *room)
{
    char *at = (char *)room + plan->thread_room * (size_t)plan->threads;
    Slices s = {.shared = (Shared *)(void *)at, .items = at + aligned(sizeof(Shared))};
    s.counts = (int64_t(*)[RADIX])(void *)(s.items + two_orders(plan->job.n, plan->item_bytes));
    return s;
}

static char *order_of(const SortPlan *plan, const Slices *s, int which)
{
    return s->items + (which ? order_bytes(plan->job.n, plan->item_bytes) : 0);
}

/* Where each slice puts its next element of each digit: digits in order, within one the slices in order. */
static void add_up(const SortPlan *plan, const Slices *s)
{
    int64_t at = 0;
    s->shared->skip = false;
    for (int k = 0; k < RADIX; k++) {
        int64_t before = at;
        for (int64_t slice = 0; slice < plan->slices; slice++) {
            int64_t *count = &s->counts[slice][k], n = *count;
            *count = at;
            at += n;
        }
        s->shared->skip |= at - before == plan->job.n;
    }
    s->shared->now ^= !s->shared->skip;
}

static void restore(const SortPlan *plan, const Line *line, const Slices *s)
{
    bool odd = false;
    for (int64_t slice = 0; slice < plan->slices; slice++)
        odd |= s->shared->odd[slice];
    if (odd && plan->job.values)
        sort_restore(&line->rule, line->in, line->out, line->n, line->stride);
}

/* Does one task do the whole of this phase? */
static bool alone(const SortPlan *plan, int phase)
{
    int step = phase % slices_phases(&plan->job), last = slices_phases(&plan->job) - 1;
    return step == last || (step > 0 && step < last - 1 && (step - 1) % STEPS == STEP_ADD);
}

int64_t slices_tasks(const SortPlan *plan, int phase) { return alone(plan, phase) ? 1 : plan->slices; }

void slices_run(const SortPlan *plan, int phase, int64_t slice, void *room)
{
    const Kind *kind = sort_kind_of(plan);
    int phases = slices_phases(&plan->job), step = phase % phases, shift = (step - 1) / STEPS * DIGIT;
    Line line = sort_line_of(plan, phase / phases);
    Slices s = slices_of(plan, room);
    int64_t first = slice_start(plan, slice), end = slice_start(plan, slice + 1);
    int which = step == 0 ? 0 : s.shared->now;
    char *now = order_of(plan, &s, which), *other = order_of(plan, &s, !which);
    if (step == 0) {
        if (slice == 0)
            s.shared->now = 0; /* nobody reads it in this phase */
        s.shared->odd[slice] = kind->make(&line, first, end, s.items);
    } else if (step == phases - 2) {
        sort_write_line(&line, now, first, end);
    } else if (step == phases - 1) {
        restore(plan, &line, &s);
    } else if ((step - 1) % STEPS == STEP_COUNT) {
        memset(s.counts[slice], 0, sizeof s.counts[slice]);
        kind->count(now, first, end, shift, 1, s.counts + slice);
    } else if ((step - 1) % STEPS == STEP_ADD) {
        add_up(plan, &s);
    } else if (!s.shared->skip) {
        kind->move(other, first, end, shift, s.counts[slice], now);
    }
}

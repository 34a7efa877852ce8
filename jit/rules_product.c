/*
 * The rules by which a product gets its schedule on a CPU: which way register tiles are made (jit/llvm/cpu/contract.h), how large they
 * are, and what is a task. They see constant sizes and buckets (kernel_extent).
 */
#include "jit/rules_inside.h"

#include <math.h>

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t acc_bytes(const Choice *c) { return (int64_t)dtype_bytes(c->dot.acc); }

static int64_t number(const Choice *c, LimitId id) { return rule_limit(c->f->bits, id); }

/* ---- along which axis lanes run ---- */

/* Until a rule turns it, lanes run along the columns. */
static bool turn(Choice *c, Schedule *s, int along)
{
    if (along != c->dot.axis[LANE_SIDE])
        c->dot = dot_facts(c->f, along);
    s->along = along;
    s->across = c->dot.axis[ROW_SIDE];
    return true;
}

/* Lanes of several products run along the columns of each. */
static bool may_turn(const Choice *c) { return dot_before(c->f) != NO_AXIS && c->f->n_products == 1; }

bool give_turned_thin(Choice *c, Schedule *s)
{
    int64_t rows = dot_about(c->f, dot_before(c->f)), columns = dot_about(c->f, dot_last(c->f));
    return may_turn(c) && !c->dot.band_row && !c->dot.sums_rows && columns < number(c, LIMIT_thin_columns) && rows > columns &&
           turn(c, s, dot_before(c->f));
}

bool give_turned_out(Choice *c, Schedule *s)
{
    const KInst *dot = &c->f->k->inst.at[c->dot.reduce];
    int last = dot_last(c->f), before = dot_before(c->f);
    if (!may_turn(c) || c->dot.band_row || dot_about(c->f, before) < number(c, LIMIT_turned_rows) || dot_varies(c->f, dot->b, before) ||
        dot_varies(c->f, dot->a, last))
        return false;
    return dot_stored_along(c->f, before) && turn(c, s, before);
}

bool give_straight(Choice *c, Schedule *s) { return turn(c, s, dot_last(c->f)); }

/* ---- windows of images ---- */

typedef struct TileShape {
    int bits, bytes, rows, vectors;
} TileShape;

static const TileShape shapes[] = {
#define TILE(bits, bytes, rows, vectors) {bits, bytes, rows, vectors},
#include "jit/tiles.def"
#undef TILE
};

/* Of what a core could multiply, how much such tiles make it: two multiplications and two loads a cycle, 32 bytes of a panel from the second
 * cache, each sum once in four. */
static double speed(int64_t rows, int64_t vectors, int bits)
{
    double multiply = (double)(rows * vectors) / 2, load = (double)(rows + vectors) / 2, panel = (double)vectors * bits / 256;
    return multiply / fmax(fmax(multiply, 4), fmax(load, panel));
}

/* What is left of that where tiles of so many rows go over a row of the image, of a length that may be an argument: some have a row less, or
 * the last one begins earlier, and computes some again. A tile takes about as long as one row more. */
static double used(const DotPlaces *p, int64_t rows)
{
    if (dot_places_runs(p, rows) > 1)
        return (double)rows / (double)(rows + 1);
    int64_t length = p->fixed ? p->length : rows;
    return (double)length / (double)(ceil_div(length, rows) * (rows + 1) - dot_places_lower(p, rows));
}

/* Lanes for so many channels: those of a vector, or of half of a long one, which they fill; 0: too few for that. (Cascade Lake, one thread, ms:
 * 3x3 of 32 groups of 8 channels at 14, 8 images, lanes along places 1.84, in halves 1.54.) */
static int64_t lanes_of(const Choice *c, int64_t channels)
{
    enum { LEAST = 8 };
    const int64_t half = c->dot.lanes / 2;
    return channels >= c->dot.lanes ? c->dot.lanes : channels == half && half >= LEAST ? half : 0;
}

/* May a tile have so many rows: some of a row of the image, or several whole ones, as the axis has? */
static bool fits_places(const Choice *c, const DotPlaces *p, int axis, int64_t rows)
{
    return !p->fixed || rows <= p->length ||
           (rows % p->length == 0 && rows / p->length <= PLACE_RUNS && dot_is_const(c->f, axis) && dot_about(c->f, axis) % rows == 0);
}

/* The fastest tile for rows of v, which is multiplied by `other`, that are read where they lie, with lanes along another axis; false: packing
 * them is as fast. */
static bool placed(const Choice *c, VRef v, VRef other, int rows, int lanes, DotPlaces *p, Schedule *s)
{
    double best = (double)number(c, LIMIT_windows_speed) / 100;
    int64_t channels = dot_about(c->f, lanes), each = lanes_of(c, channels);
    if (rows == NO_AXIS || lanes == NO_AXIS || !each || c->dot.n_k < number(c, LIMIT_windows_steps) ||
        (double)c->dot.n_k * (double)channels * (double)dot_about(c->f, rows) < (double)number(c, LIMIT_windows_work) ||
        !dot_places(c->f, v, rows, p) || (c->dot.in != c->dot.acc && !p->pairs))
        return false;
    const int64_t kept = dot_panel(c->f, other, lanes);
    s->in_place = 0;
    for (const TileShape *t = shapes; t < shapes + sizeof shapes / sizeof *shapes; t++) {
        int64_t width = t->vectors * each, least_rows = p->fixed ? 1 : t->rows;
        if (t->bits != c->f->bits || t->bytes != acc_bytes(c) || (kept && kept != width))
            continue;
        for (int64_t r = t->rows; r >= least_rows; r--) {
            double made = speed(r, t->vectors, t->bits) * used(p, r) * (double)channels / (double)round_up(channels, width);
            if (made <= best || !fits_places(c, p, rows, r))
                continue;
            best = made;
            s->in_place = p->apart;
            s->tile_rows = r;
            s->tile_width = width;
        }
    }
    return s->in_place != 0;
}

bool give_windows(Choice *c, Schedule *s)
{
    const KInst *dot = &c->f->k->inst.at[c->dot.reduce];
    int last = dot_last(c->f), before = dot_before(c->f);
    bool as_read = c->dot.in == c->dot.acc || (c->dot.in == DT_BF16 && c->dot.each == 2); /* to the registers */
    bool free = c->dot.has_lanes && may_turn(c) && !c->dot.band_row && !c->dot.sums_rows && as_read;
    bool columns = free && !dot_varies(c->f, dot->a, last) && !dot_varies(c->f, dot->b, before);
    DotPlaces p;
    bool turned = columns && placed(c, dot->b, dot->a, last, before, &p, s);
    if (!turned && !(columns && placed(c, dot->a, dot->b, before, last, &p, s)))
        return false;
    turn(c, s, turned ? before : last);
    s->across = turned ? last : before;
    dot_join_rows(c->f, &c->dot, (int)s->across);
    if (p.fixed && !dot_places_whole(&p, s->tile_rows)) /* as many as tiles have */
        c->dot.n[ROW_SIDE] = c->dot.n[ROW_SIDE] / p.length * round_up(p.length, s->tile_rows);
    return true;
}

/* ---- which way tiles are made ---- */

static int64_t m(const Choice *c) { return c->dot.n[ROW_SIDE]; }
static int64_t n(const Choice *c) { return c->dot.n[LANE_SIDE]; }
static int64_t widest(const Choice *c)
{
    return dot_widest(c->f, &c->dot);
} /* which way several products are made is as if each were alone */
static bool few_rows(const Choice *c) { return m(c) <= number(c, LIMIT_thin_rows); }

bool rows_are_dots(const Choice *c)
{
    enum { ENOUGH = 16 };
    return c->dot.along[LANE_SIDE] && m(c) == 1 && n(c) >= ENOUGH;
}

bool give_kept(Choice *c, Schedule *s)
{
    s->way = WAY_PACKED;
    return c->dot.kept && c->dot.regular;
}

bool give_irregular(Choice *c, Schedule *s)
{
    s->way = WAY_DIRECT;
    return !c->dot.regular;
}

bool give_in_place(Choice *c, Schedule *s)
{
    (void)c;
    s->way = WAY_PACKED;
    return s->in_place != 0;
}

bool give_band(Choice *c, Schedule *s)
{
    s->way = WAY_PACKED;
    return (!few_rows(c) && c->dot.band_row) || c->dot.band_rows || c->dot.sums_rows;
}

bool give_dots(Choice *c, Schedule *s)
{
    s->way = WAY_DOTS;
    return c->dot.along[LANE_SIDE] && few_rows(c);
}

static int64_t lane_bytes(const Choice *c) { return c->dot.batch * c->dot.n_k * widest(c) * (int64_t)dtype_bytes(c->dot.in); }

/* More rows than a tile has: several groups of them go over each strip. */
static bool some_rows(const Choice *c)
{
    const int64_t row = widest(c) * (int64_t)dtype_bytes(c->dot.in);
    return dtype_is_float(c->dot.acc) && m(c) <= number(c, LIMIT_strips_rows) && lane_bytes(c) >= number(c, LIMIT_strips_bytes) &&
           row >= STRIP_TASKS * number(c, LIMIT_strip);
}

bool give_strips(Choice *c, Schedule *s)
{
    s->way = WAY_STRIPS;
    return !s->split && !c->dot.along[LANE_SIDE] && (few_rows(c) || some_rows(c)) &&
           c->dot.n_k * widest(c) >= number(c, LIMIT_strips_elements) && widest(c) >= number(c, LIMIT_strips_columns);
}

static bool plain_load(const Choice *c, int side)
{
    const KInst *x = &c->f->k->inst.at[c->dot.operand[side]];
    return x->kind == KI_LOAD && x->pred == VREF_NONE && (DType)x->dtype == c->dot.acc;
}

/* Do lanes lie side by side in the lane operand? It is loaded anew for each group of rows. */
static bool steps_along_lanes(const Choice *c)
{
    const KInst *x = &c->f->k->inst.at[c->dot.operand[LANE_SIDE]];
    return c->dot.axis[LANE_SIDE] != NO_AXIS && index_walk(c->f->k, x->idx, (uint32_t)c->dot.axis[LANE_SIDE]) == INDEX_STEPS;
}

bool give_direct(Choice *c, Schedule *s)
{
    int64_t k = c->dot.n_k, elements = k * widest(c);
    if (s->split)
        elements = least(elements, c->dot.block * widest(c));
    bool cached = m(c) <= number(c, LIMIT_cached_rows) && elements * acc_bytes(c) <= number(c, LIMIT_cached_bytes);
    bool plain = plain_load(c, LANE_SIDE) && plain_load(c, ROW_SIDE) && steps_along_lanes(c);
    s->way = WAY_DIRECT;
    return !c->dot.along[LANE_SIDE] &&
           (few_rows(c) || k <= number(c, LIMIT_short_k) || elements <= number(c, LIMIT_few_elements) || (cached && plain));
}

bool give_packed(Choice *c, Schedule *s)
{
    (void)c;
    s->way = WAY_PACKED;
    return true;
}

/* ---- tiles ---- */

enum { MOST_SHARED = 8 }; /* threads that tasks are cut for */

/*
 * What packing an element of an operand takes, in multiplications: one that lies along k is transposed, panels are but read. Narrow panels of rows take
 * as long as transposing (Cascade Lake, AVX-512, one thread: a^T b of 512 and 1024 f32, tasks wider so, 2.55 -> 2.31, 22.0 -> 19.9 ms).
 */
static double pack_cost(const Choice *c, int side)
{
    enum { READ = 1, COPIED = 3, TRANSPOSED = 12 };
    const bool lines = side == LANE_SIDE && !c->dot.along[LANE_SIDE];
    return side == LANE_SIDE && c->dot.kept ? READ : lines ? COPIED : TRANSPOSED;
}

/* How long the last of so many threads works, where each takes the next task when it has done one: groups of rows and tiles, tasks of some of each. */
static int64_t longest(int64_t threads, int64_t batch, int64_t all_groups, int64_t all, int64_t groups, int64_t tiles)
{
    int64_t busy[MOST_SHARED] = {0}, most = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < all_groups; i += groups)
            for (int64_t j = 0; j < all; j += tiles) {
                int64_t *next = busy;
                for (int64_t t = 1; t < threads; t++)
                    next = busy[t] < *next ? busy + t : next;
                *next += least(groups, all_groups - i) * least(tiles, all - j);
                most = *next > most ? *next : most;
            }
    return most;
}

/*
 * Few tasks are cut so that two, four and eight threads end at about the same time, into at most twice as many, none of less than `least_*`.
 * What each packs by itself counts. `width` of a tile; 0: each task has all columns, and whether it transposes them is not asked.
 */
static void share_out(const Choice *c, int64_t rows, int64_t width, int64_t all, int64_t least_groups, int64_t least_tiles, int64_t *groups,
                      int64_t *tiles)
{
    enum { ENOUGH = 64, BAND_COST = 3 };
    const double row_cost = width ? pack_cost(c, ROW_SIDE) / (double)(all * width) : 0,
                 lane_cost = width ? pack_cost(c, LANE_SIDE) : BAND_COST;
    const int64_t all_groups = ceil_div(m(c), rows), across0 = ceil_div(all_groups, *groups), along0 = ceil_div(all, *tiles);
    double best = HUGE_VAL, work = (double)(c->dot.batch * all_groups * all);
    if (c->dot.batch * across0 * along0 >= ENOUGH || all_groups * all < 2)
        return;
    for (int64_t across = across0; across <= 2 * across0; across++)
        for (int64_t along = along0; along <= (width ? 2 * along0 : along0); along++) {
            const int64_t g = ceil_div(all_groups, across), t = ceil_div(all, along);
            if ((across > across0 && g < least_groups) || (along > along0 && t < least_tiles))
                continue;
            double time = 0;
            for (int64_t threads = 2; threads <= MOST_SHARED; threads *= 2)
                time += (double)(threads * longest(threads, c->dot.batch, all_groups, all, g, t)) / work;
            time *= 1 + lane_cost * (double)across / (double)m(c) + row_cost * (double)along;
            if (time >= best - best / 64)
                continue;
            best = time;
            *groups = g;
            *tiles = t;
        }
}

/*
 * Of a product in a band: rows of a task, which are the band's (jit/fuse/bands.c). As many as keep what lies in the band in a core's caches,
 * and so many that packing the other operand for them alone costs little. Any two products of a band come to the same number, as they see
 * the same rows: a multiple of every tile's. 0: one task has all rows.
 */
static int64_t rows_of_band(const Choice *c)
{
    int64_t unit = 0;
    if (c->dot.band_rows)
        return c->dot.band_rows;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        unit = shapes[i].bits == c->f->bits && shapes[i].rows > unit ? shapes[i].rows : unit;
    int64_t groups = least(number(c, LIMIT_band_bytes) / unit / c->dot.band_row, number(c, LIMIT_band_rows) / unit);
    const int64_t all = ceil_div(m(c), unit), most = groups > 1 ? groups : 1;
    int64_t g = ceil_div(all, ceil_div(all, most)), whole = 1;
    share_out(c, unit, 0, 1, ceil_div(number(c, LIMIT_task_rows), unit), 1, &g, &whole); /* as any product of the band does */
    return g >= all && dot_is_const(c->f, dot_before(c->f)) ? 0 : g * unit;
}

bool give_tile_in_place(Choice *c, Schedule *s)
{
    (void)c;
    return s->in_place != 0; /* it came with that */
}

/* The tile that computes the fewest columns for nothing. only: of this width; 0: of any. false: there is none. */
static bool choose_tile(const Choice *c, Schedule *s, int64_t only)
{
    int64_t best = INT64_MAX;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const TileShape *shape = &shapes[i];
        int64_t width = shape->vectors * c->dot.lanes, columns = dot_tiles(c->f, &c->dot, width) * width;
        if (shape->bits != c->f->bits || shape->bytes != acc_bytes(c) || (only && only != width) || columns >= best - best / 8)
            continue;
        best = columns;
        s->tile_width = width;
        s->tile_rows = shape->rows;
    }
    return best != INT64_MAX;
}

/* The number of rows is evened out over the groups. */
bool give_tile_packed(Choice *c, Schedule *s)
{
    if (s->way != WAY_PACKED)
        return false;
    if (!c->dot.kept || !choose_tile(c, s, c->dot.kept))
        (void)choose_tile(c, s, 0);
    if (dot_is_const(c->f, c->dot.axis[ROW_SIDE]) && !(c->dot.band_row && rows_of_band(c)))
        s->tile_rows = ceil_div(m(c), ceil_div(m(c), s->tile_rows));
    return true;
}

bool give_tile_thin(Choice *c, Schedule *s)
{
    bool direct = s->way == WAY_DIRECT;
    int64_t most = number(c, direct ? LIMIT_direct_rows : LIMIT_thin_rows), lanes = c->dot.lanes;
    s->tile_rows = ceil_div(m(c), ceil_div(m(c), most));
    s->tile_width = 2 * lanes;
    if (s->way == WAY_DOTS && (s->tile_rows > number(c, LIMIT_squares_rows) || widest(c) < 2 * lanes || !dot_short(&c->dot)))
        s->tile_width = lanes;
    while (direct && s->tile_width > 1 && s->tile_width / 2 >= widest(c))
        s->tile_width /= 2;
    if (s->way == WAY_STRIPS && s->tile_rows > number(c, LIMIT_narrow_rows))
        s->tile_width = lanes;
    return true;
}

/* Each row of k begins where the machine does not look ahead by itself. What the caches hold is there sooner than it could be asked for. */
bool give_strips_ahead(Choice *c, Schedule *s)
{
    s->prefetch = 1;
    return s->way == WAY_STRIPS && lane_bytes(c) >= number(c, LIMIT_ahead_bytes);
}

bool give_next_product(Choice *c, Schedule *s)
{
    const double each = (double)m(c) * (double)c->dot.n_k + (double)n(c) * (double)c->dot.n_k + (double)m(c) * (double)n(c);
    s->prefetch = PREFETCH_ON;
    return s->way == WAY_DIRECT && c->f->n_products == 1 && c->dot.regular && c->dot.axis[ROW_SIDE] != NO_AXIS && c->dot.batch > 1 &&
           each * (double)c->dot.batch * (double)dtype_bytes(c->dot.in) >= (double)number(c, LIMIT_next_bytes);
}

bool give_no_lanes(Choice *c, Schedule *s)
{
    s->tile_width = 1;
    return !c->dot.has_lanes;
}

/* ---- tasks ---- */

static int64_t all_tiles(const Choice *c, const Schedule *s) { return dot_tiles(c->f, &c->dot, s->tile_width); }

/* Rows and tiles of a task, of so many: so that what is packed is used often and stays in the caches. */
static void room(const Choice *c, const Schedule *s, int64_t all, int64_t *groups, int64_t *tiles)
{
    int64_t bytes = acc_bytes(c), row_bytes = number(c, LIMIT_packed_rows);
    int64_t width_bytes = number(c, c->dot.one_block ? LIMIT_packed_once : LIMIT_packed_columns);
    *groups = least(ceil_div(m(c), s->tile_rows), row_bytes / (c->dot.block / c->dot.each * bytes * s->tile_rows));
    *tiles = least(all, width_bytes / bytes / s->tile_width);
}

static void even_out(const Choice *c, Schedule *s, int64_t groups, int64_t tiles)
{
    int64_t all_groups = ceil_div(m(c), s->tile_rows), all = all_tiles(c, s);
    s->task_rows = s->tile_rows * ceil_div(all_groups, ceil_div(all_groups, groups));
    s->task_tiles = ceil_div(all, ceil_div(all, tiles));
}

/* Panels that are packed at once: a run of a row of the lane operand is read in one go. Along k each point is a row of its own. */
static int64_t panels(const Choice *c, const Schedule *s)
{
    if (c->dot.along[LANE_SIDE])
        return 1;
    return least(s->task_tiles, ceil_div(number(c, LIMIT_run), s->tile_width * acc_bytes(c)));
}

bool give_task_band(Choice *c, Schedule *s)
{
    int64_t groups, tiles, rows;
    if (s->way != WAY_PACKED || !c->dot.band_row)
        return false;
    room(c, s, all_tiles(c, s), &groups, &tiles);
    even_out(c, s, groups, tiles);
    rows = rows_of_band(c);
    s->task_rows = rows ? rows : round_up(m(c), s->tile_rows);
    s->panels = panels(c, s);
    return true;
}

/* How many tasks a product of so many columns is worth: there shall be some for several threads. */
static int64_t tasks_wanted(const Choice *c, int64_t columns)
{
    double work = 2.0 * (double)c->dot.batch * (double)m(c) * (double)columns * (double)c->dot.n_k / (double)c->dot.each;
    return work >= 1 << 28 ? 8 : work >= 1 << 25 ? 4 : work >= 1 << 22 ? 2 : 1;
}

static int64_t tasks(const Choice *c, const Schedule *s, int64_t all, int64_t groups, int64_t tiles)
{
    return c->dot.batch * ceil_div(ceil_div(m(c), s->tile_rows), groups) * ceil_div(all, tiles);
}

/* What is packed are panels alone: a few, for many rows. */
bool give_task_in_place(Choice *c, Schedule *s)
{
    enum { TILES = 2, LEAST_GROUPS = 4, SHARES = 4 };
    int64_t wanted = tasks_wanted(c, n(c)), all = all_tiles(c, s), t = least(all, TILES);
    int64_t g = least(ceil_div(m(c), s->tile_rows), number(c, LIMIT_windows_sums) / (acc_bytes(c) * s->tile_rows * s->tile_width * t));
    while (tasks(c, s, all, g, t) < wanted && (t > 1 || g > LEAST_GROUPS)) {
        g = t > 1 ? g : (g + 1) / 2;
        t = 1;
    }
    /* Of few tasks as many as all threads have a share of. */
    int64_t groups = ceil_div(m(c), s->tile_rows), across = ceil_div(groups, g), of = c->dot.batch * ceil_div(all, t);
    while (across * of % wanted && across * of < SHARES * wanted && groups / across > LEAST_GROUPS)
        across++;
    even_out(c, s, ceil_div(groups, across), t);
    s->panels = panels(c, s);
    return s->in_place != 0;
}

/*
 * Of several products: as many tasks as the widest one alone has, which are `alone`, or a multiple of that, so that with no number of
 * threads some wait longer than they would if one product followed another. Of these, those that pack least: every task packs its rows and
 * its columns. There may be none: then tasks are as large as that product's.
 */
static void share_rows(const Choice *c, const Schedule *s, int64_t alone, int64_t *groups, int64_t *tiles)
{
    int64_t all = all_tiles(c, s), all_groups = ceil_div(m(c), s->tile_rows), most_groups, most_tiles;
    double best = HUGE_VAL;
    room(c, s, all, &most_groups, &most_tiles);
    for (int64_t g = 1; g <= most_groups; g++)
        for (int64_t t = 1; t <= most_tiles; t++) {
            int64_t across = ceil_div(all_groups, g), along = ceil_div(all, t);
            double packed = pack_cost(c, ROW_SIDE) * (double)m(c) * (double)along + pack_cost(c, LANE_SIDE) * (double)n(c) * (double)across;
            if (across * along % alone || packed >= best)
                continue;
            best = packed;
            *groups = g;
            *tiles = t;
        }
}

bool give_task_packed(Choice *c, Schedule *s)
{
    int64_t columns = widest(c), one = ceil_div(columns, s->tile_width), wanted = tasks_wanted(c, columns), rows = s->tile_rows,
            width = s->tile_width, g, t;
    if (s->way != WAY_PACKED)
        return false;
    room(c, s, one, &g, &t);
    wanted = s->split ? 1 : wanted;
    while (tasks(c, s, one, g, t) < wanted && (g * rows > number(c, LIMIT_task_rows) || t * width > number(c, LIMIT_task_columns))) {
        if ((double)(g * rows) * pack_cost(c, ROW_SIDE) > (double)(t * width) * pack_cost(c, LANE_SIDE) && g > 1)
            g = (g + 1) / 2;
        else
            t = (t + 1) / 2;
    }
    if (!s->split)
        share_out(c, rows, width, one, ceil_div(number(c, LIMIT_task_rows), rows), ceil_div(number(c, LIMIT_task_columns), width), &g, &t);
    if (c->f->n_products > 1)
        share_rows(c, s, tasks(c, s, one, g, t) / c->dot.batch, &g, &t);
    even_out(c, s, g, t);
    s->panels = panels(c, s);
    return true;
}

bool give_task_direct(Choice *c, Schedule *s)
{
    enum { TILES = 8 };
    int64_t rows = s->tile_rows;
    s->task_rows = rows * least(ceil_div(m(c), rows), ceil_div(number(c, LIMIT_direct_task), rows));
    s->task_tiles = least(all_tiles(c, s), TILES);
    return s->way == WAY_DIRECT;
}

bool give_task_strips(Choice *c, Schedule *s)
{
    int64_t bytes = (int64_t)dtype_bytes(c->dot.in);
    s->task_rows = round_up(m(c), s->tile_rows);
    s->task_tiles = least(all_tiles(c, s), number(c, LIMIT_strip) / bytes / s->tile_width);
    return s->way == WAY_STRIPS;
}

bool give_task_dots(Choice *c, Schedule *s)
{
    s->task_rows = s->tile_rows;
    s->task_tiles = least(all_tiles(c, s), 2 * c->dot.lanes / s->tile_width);
    return s->way == WAY_DOTS;
}

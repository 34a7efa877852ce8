/*
 * What is decided about a kernel before any IR exists: levels of its instructions, number of
 * stages, and the schedule (jit/schedule.h): which way the lanes run, how many there are. Nothing here changes a
 * result (reductions have one order whatever the lanes), only speed.
 */
#include "jit/llvm/build.h"

#include "ir/base/log.h"

#include <stdlib.h>

enum { HEAVY = 16 }; /* scalar operations of a point: its code is long, and what it reads is asked for ahead */

static bool changes_meanwhile(const Emit *e, const KInst *load)
{
    const KArg *arg = &e->k->args.at[load->arg];
    return arg->written || arg->may_alias;
}

/*
 * The level of an instruction: the innermost of all it depends on. But where a kernel of one point writes to what it
 * reads, the load is in that point's own thread: at the level of the task all threads would load, beside its store. And
 * where a thread cannot hold all scalars, each is read where it is used.
 */
void plan_levels(Emit *e)
{
    const Kernel *k = e->k;
    uint8_t x_level = e->tile_axis != NO_AXIS ? LV_TILE : LV_ROW;
    e->level = ARENA_ARRAY(e->arena, uint8_t, k->inst.n + 1);
    e->ix_level = ARENA_ARRAY(e->arena, uint8_t, k->idx.n + 1);
    memset(e->ix_level, 0xff, k->idx.n + 1);
    for (uint32_t i = 0; i < k->inst.n; i++) {
        const KInst *n = &k->inst.at[i];
        uint8_t level = LV_TASK;
        VRef in[4];
        uint32_t n_in = kernel_operands(n, in);
        for (uint32_t r = 0; r < n_in; r++)
            level = e->level[in[r]] > level ? e->level[in[r]] : level;
        if (n->idx != IREF_NONE && index_level(e, n->idx) > level)
            level = index_level(e, n->idx);
        if (kernel_ends(n))
            level = e->schedule.columns || e->info[i].r_level ? LV_R : x_level;
        if (inst_runs(n) || n->kind == KI_CARRY)
            level = LV_R;
        if (level == LV_TASK && (n->kind == KI_SCALAR ? e->scalars_anew : n->kind == KI_LOAD && e->cuda && changes_meanwhile(e, n)))
            level = LV_ROW;
        e->level[i] = level;
    }
}

/* Backwards, since operands come before their users. */
static void plan_live(Emit *e)
{
    e->live = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1);
    e->checked = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1);
    for (uint32_t i = e->k->inst.n; i-- > 0;) {
        const KInst *n = &e->k->inst.at[i];
        VRef in[4];
        e->checked[i] = n->kind == KI_BOUND && !e->live[i];
        e->live[i] |= n->kind == KI_STORE || n->kind == KI_SCATTER || n->kind == KI_NEXT || e->checked[i];
        if (!e->live[i])
            continue;
        uint32_t n_in = kernel_operands(n, in);
        for (uint32_t o = 0; o < n_in; o++)
            e->live[in[o]] = true;
        if (n->idx != IREF_NONE)
            kidx_mark_values(e->k, n->idx, e->live);
    }
}

/* Scalar operations per point, those that nearly every point computes, and the widest and narrowest element touched: of the body, or of what one
 * stage executes at the r level, or one piece (`part`). Without r axes, what the tiles of a row share is no part of it. */
typedef struct Weight {
    uint32_t ops, usual;
    unsigned widest, narrowest;
} Weight;

static const Tape *tape(Emit *e, Op op, const DType *in, DType out)
{
    const Tape *t = tape_get(op, in, out, e->math);
    if (!t)
        longjmp(*e->arena->oom, 1);
    return t;
}

static Weight weigh(Emit *e, const bool *part)
{
    Weight w = {.widest = 1, .narrowest = 8};
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        uint32_t along = e->tile_axis == NO_AXIS ? 0 : e->schedule.joined ? 3u << (e->n_x - 2) : 1u << e->tile_axis;
        bool shared = !e->cuda && !e->n_r && along && !(e->k->inst_axes.at[i] & along);
        if (n->kind == KI_STORE || n->kind == KI_SCATTER || (part && !part[i]) || shared)
            continue;
        unsigned bytes = (unsigned)dtype_bytes((DType)n->dtype);
        if (n->dtype == DT_F16 || n->dtype == DT_BF16)
            bytes = n->kind == KI_LOAD ? 2 : 4; /* computed in f32 */
        if (n->kind != KI_CONST && n->kind != KI_SCALAR) {
            w.widest = bytes > w.widest ? bytes : w.widest;
            w.narrowest = bytes < w.narrowest ? bytes : w.narrowest;
        }
        if (n->kind != KI_OP)
            continue;
        DType types[3] = {0};
        const VRef refs[3] = {n->a, n->b, n->c};
        for (int a = 0; a < op_info[n->op].arity; a++)
            types[a] = (DType)e->k->inst.at[refs[a]].dtype;
        const Tape *t = tape(e, (Op)n->op, types, (DType)n->dtype);
        w.ops += t->n;
        w.usual += tape_usual_length(t).computing;
    }
    return w;
}

bool plan_heavy(Emit *e) { return weigh(e, NULL).ops >= HEAVY; }

static bool carries(const KInst *x) { return x->kind == KI_CARRY; }
static bool ends(const KInst *x) { return x->kind == KI_NEXT && x->mode == ENDS; }

static bool has(const Kernel *k, bool (*is)(const KInst *))
{
    for (uint32_t i = 0; i < k->inst.n; i++)
        if (is(&k->inst.at[i]))
            return true;
    return false;
}

static int64_t vec_extent(const Emit *e)
{
    if (!e->vec_r)
        return kernel_extent(e->k, (uint32_t)e->tile_axis) * (e->schedule.joined ? kernel_extent(e->k, e->n_x - 2) : 1);
    int64_t n = 1;
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        n *= kernel_extent(e->k, a) > 0 ? kernel_extent(e->k, a) : 1;
    return n;
}

IndexWalk index_walk(const Kernel *k, IRef i, uint32_t axis)
{
    const Idx *x = &k->idx.at[i];
    if (!kidx_uses_axis(k, i, axis))
        return INDEX_STAYS;
    if (x->kind == IX_AXIS)
        return INDEX_STEPS;
    if (x->kind != IX_ADD)
        return x->kind == IX_MOD ? index_walk(k, x->a, axis) : INDEX_JUMPS;
    IndexWalk a = index_walk(k, x->a, axis), b = index_walk(k, x->b, axis);
    return a == INDEX_STAYS ? b : b == INDEX_STAYS ? a : INDEX_JUMPS;
}

/*
 * Elementwise bodies that jump along the lanes but step along another axis (transposes): a task
 * takes one tile through as many points of that axis as a cache line has elements, instead of a row
 * through all its tiles. 4096 x 4096 f32: 141 ms without, 30 with.
 */
static void plan_row_block(Emit *e)
{
    if (e->n_stages || e->n_x < 2 || e->tile_axis == NO_AXIS || e->lanes == 1 || e->schedule.joined)
        return;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        if ((n->kind != KI_LOAD && n->kind != KI_STORE) || index_walk(e->k, n->idx, (uint32_t)e->tile_axis) != INDEX_JUMPS)
            continue;
        for (uint32_t a = 0; a + 1 < e->n_x; a++) {
            int64_t block = 64 / (int64_t)dtype_bytes((DType)n->dtype);
            if (index_walk(e->k, n->idx, a) != INDEX_STEPS || block < e->schedule.rows)
                continue;
            e->schedule.rows = block;
            e->schedule.across = a;
        }
    }
}

/* Light bodies whose transposed inputs are few enough for the registers: each row of a block has code of its own. */
static void plan_squares(Emit *e)
{
    enum { SQUARES_OPS = 512, MOST_SQUARES = 2 };
    Schedule *s = &e->schedule;
    for (uint32_t i = 0; i < e->k->inst.n && s->rows && !s->square; i++) {
        int64_t side = square_side(e, (DType)e->k->inst.at[i].dtype), extent = kernel_extent(e->k, (uint32_t)s->across), squares = 0;
        int64_t rows = (s->rows < extent ? s->rows : extent) / side * side;
        for (uint32_t n = i; n < e->k->inst.n && in_squares(e, i, side, (uint32_t)s->across); n++)
            squares += in_squares(e, n, side, (uint32_t)s->across);
        if (!rows || !squares || squares > MOST_SQUARES || e->lanes < side || weigh(e, NULL).ops * rows > SQUARES_OPS)
            continue;
        s->rows = rows;
        s->square = s->lanes = side;
        e->lanes = (int)side;
    }
}

/* Of several r axes: fewer lanes where that keeps every tile inside one row, so that it
 * is contiguous. */
static int lanes_within_rows(const Emit *e, int lanes)
{
    int64_t row;
    if (!e->vec_r || e->n_r < 2 || !kidx_is_const(e->k, e->k->axes.at[e->k->axes.n - 1].size, &row))
        return lanes;
    for (int n = lanes; n >= 4; n /= 2)
        if (row % n == 0)
            return n;
    return lanes;
}

/*
 * Rows that are scanned one element after the other, each in its own memory: lanes across rows would gather what lies far apart, and a row by itself
 * is read and written as it lies. Where each element takes many operations or a slow one, the lanes are worth it.
 */
static bool scans_rows(const Emit *e, Weight w)
{
    bool steps = false;
    if (e->tile_axis == NO_AXIS || w.ops >= HEAVY || !has(e->k, inst_runs))
        return false;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        if (n->kind == KI_OP && (op_info[n->op].flags & OPF_COSTLY || n->op == OP_DIV))
            return false;
        if (!e->live[i] || !e->info[i].r_level || (n->kind != KI_LOAD && n->kind != KI_STORE))
            continue;
        IndexWalk across = index_walk(e->k, n->idx, (uint32_t)e->tile_axis), along = index_walk(e->k, n->idx, e->k->axes.n - 1);
        if (across == INDEX_STEPS)
            return false;
        steps |= across == INDEX_JUMPS && along == INDEX_STEPS;
    }
    return steps;
}

/* AVX2 has no masked access to smaller elements. */
static bool has_masks(const Emit *e, Weight w) { return e->bits == 512 || w.narrowest >= 4; }

/*
 * A loop in a kernel waits for what one iteration hands to the next: as many vectors side by side as fill that time, even where they are more than
 * there are registers, as long as the code does not become long.
 */
static int carrying_lanes(const Emit *e, Weight w)
{
    enum { VECTORS = 8, CARRYING_OPS = 1024 };
    int one = e->bits / 32, lanes = VECTORS * one < MAX_LANES ? VECTORS * one : MAX_LANES;
    lanes = w.widest > 4 ? lanes / 2 : lanes;
    while (lanes > one && (int64_t)w.ops * (lanes / one) > CARRYING_OPS)
        lanes /= 2;
    return lanes;
}

/*
 * Lanes: one host vector of f32. Light bodies take several vectors at once (LLVM splits them),
 * which unrolls the loop, gives a reduction its independent chains and a column its whole cache
 * lines. Not more than the extent needs.
 */
static void plan_lanes(Emit *e, Weight w)
{
    if ((e->tile_axis == NO_AXIS && !e->vec_r) || scans_rows(e, w))
        return;
    int one = e->bits / 32;
    int lanes = one;
    if (w.widest <= 2)
        lanes = (e->n_r && w.ops <= 24 && e->bits / 8 < LINE ? 2 : 1) * e->bits / 8 / (int)w.widest; /* of a row half a line at least */
    else if (has(e->k, carries))
        lanes = carrying_lanes(e, w);
    else if (e->n_r && w.ops <= 24)
        lanes = w.widest > 4 ? 2 * one : 4 * one;
    else if (!e->n_r && w.usual <= 12 && w.widest <= 4)
        lanes = 2 * one;
    if (lanes > MAX_LANES)
        lanes = MAX_LANES;
    e->schedule.body = w.ops >= HEAVY ? BODY_ONCE : BODY_TWICE;
    e->schedule.tail = !has_masks(e, w) && !e->n_r && w.ops < HEAVY ? TAIL_SCALAR : TAIL_MASK;
    int64_t extent = vec_extent(e);
    while (lanes > 1 && lanes / 2 >= extent)
        lanes /= 2;
    e->lanes = lanes_within_rows(e, lanes);
}

/* Weight of the heaviest piece; ops of all together in *all. */
static Weight weigh_pieces(Emit *e, const Pieces *p, uint32_t *all)
{
    Weight most = {.widest = 1, .narrowest = 8};
    bool *part = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1);
    *all = 0;
    for (uint32_t i = 0; i < pieces_count(p); i++) {
        piece_part(e, p, i, part);
        Weight w = weigh(e, part);
        *all += w.ops;
        most.ops = w.ops > most.ops ? w.ops : most.ops;
        most.widest = w.widest > most.widest ? w.widest : most.widest;
        most.narrowest = w.narrowest < most.narrowest ? w.narrowest : most.narrowest;
    }
    return most;
}

/* Pieces of a row that one tile holds cost more than they save, but where each is some tiles without a mask. */
static bool pieces_pay(const Emit *e, const Pieces *p, int64_t row, int lanes)
{
    int64_t length[MOST_PIECES], size;
    if ((int)pieces_axis(p) != e->tile_axis || !kidx_is_const(e->k, e->k->axes.at[e->tile_axis].size, &size) || size > row)
        return true;
    bool whole = pieces_lengths(e, p, length);
    for (uint32_t i = 0; i < pieces_count(p) && whole; i++)
        whole = length[i] % lanes == 0;
    return whole;
}

/* The innermost axis that comparisons cut, as long as the code does not become long. */
static void plan_pieces(Emit *e)
{
    enum { PIECES_OPS = 640 };
    Pieces *p = NULL;
    uint32_t axis = e->n_x, ops;
    while (axis > 0 && !e->schedule.rows && !p)
        p = pieces_of(e, --axis);
    if (!p)
        return;
    Schedule before = e->schedule;
    Weight w = weigh_pieces(e, p, &ops);
    int64_t length[MOST_PIECES], longest = 0;
    int lanes = e->lanes;
    bool known = (int)axis == e->tile_axis && pieces_lengths(e, p, length);
    plan_lanes(e, w);
    for (uint32_t i = 0; known && i < pieces_count(p); i++)
        longest = length[i] > longest ? length[i] : longest;
    while (known && e->lanes > 1 && e->lanes / 2 >= longest)
        e->lanes /= 2;
    if (ops <= PIECES_OPS && (!has_masks(e, w) || pieces_pay(e, p, lanes, e->lanes))) {
        e->schedule.pieces = axis;
        e->schedule.lanes = e->lanes;
        e->schedule.prefetch = w.ops >= HEAVY && e->tile_axis != NO_AXIS;
    } else {
        e->schedule = before;
        e->lanes = lanes;
    }
}

/* A row that an earlier stage saved is loaded; on CUDA it is kept in registers, or computed again. */
void plan_part(const Emit *e, uint32_t stage, bool *part)
{
    const Kernel *k = e->k;
    memset(part, 0, k->inst.n * sizeof *part);
    for (uint32_t i = k->inst.n; i-- > 0;) {
        const KInst *n = &k->inst.at[i];
        bool here = e->info[i].stage == stage && e->live[i];
        bool effect = kernel_ends(n) || (e->info[i].r_level && (n->kind == KI_STORE || n->save));
        if (!part[i] && !(here && effect))
            continue;
        part[i] = e->info[i].r_level;
        if (n->save && e->info[i].stage < stage && !e->target->scalar_lanes)
            continue;
        VRef in[4];
        uint32_t n_in = kernel_operands(n, in);
        for (uint32_t o = 0; o < n_in; o++)
            part[in[o]] |= e->info[in[o]].r_level;
    }
}

/*
 * A heavy stage keeps its light neighbours (the maximum before softmax's exp, the quotient after it) at one vector a step, where
 * a chain of dependent steps is all they have; so in kernels of several stages each chooses for itself.
 */
static void plan_stage_lanes(Emit *e)
{
    Schedule *p = &e->schedule;
    if (!e->vec_r || p->split == SPLIT_ALWAYS || e->n_stages < 2 || e->n_stages > SCHEDULE_STAGES || e->lanes != e->bits / 32)
        return;
    bool *part = ARENA_ARRAY(e->arena, bool, e->k->inst.n + 1);
    p->n_stages = e->n_stages;
    for (uint32_t s = 0; s < e->n_stages; s++) {
        plan_part(e, s, part);
        Weight w = weigh(e, part);
        int lanes = w.ops <= 24 && w.widest == 4 ? 4 * e->lanes : e->lanes;
        while (lanes > e->lanes && lanes / 2 >= vec_extent(e))
            lanes /= 2;
        p->stage_lanes[s] = (uint8_t)lanes_within_rows(e, lanes < MAX_LANES ? lanes : MAX_LANES);
    }
}

/* Sets what lowering reads from the schedule: which way the lanes run, how many there are, whether there are phases. */
static void schedule_apply(Emit *e)
{
    const Schedule *s = &e->schedule;
    e->vec_r = s->along >= (int64_t)e->n_x;
    e->tile_axis = e->vec_r || s->along < 0 ? NO_AXIS : (int)s->along;
    e->lanes = (int)(e->k->form == FORM_CONTRACT ? s->tile_width : s->lanes);
    e->split = s->split != SPLIT_NEVER;
    e->pieces = e->k->form == FORM_LOOPS && s->pieces >= 0 ? pieces_of(e, (uint32_t)s->pieces) : NULL;
    e->piece = -1;
}

static bool has_columns(const Emit *e)
{
    bool places = false;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        places |= inst_has_place(n);
    }
    return e->n_x && e->n_r && e->n_stages == 1 && !e->in_order && !places;
}

static bool sums_in_order(const Emit *e)
{
    bool any = false;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        any |= n->order.kind == ORD_LANES;
    }
    return any;
}

/*
 * Reductions of columns that are long enough to pay for what is done once a strip: a page of each row. Where there is an order, the sums of
 * 64 lanes lie in memory either way; else a tile alone has its own in registers, and is as fast as long as it reads more than one cache
 * line of a row, or as rows are so few tiles that each step of a strip waits for the one before to be in memory.
 */
static void plan_strip(Emit *e)
{
    enum { STRIP_BYTES = 4096, STRIP_TILES = 8 };
    Schedule *s = &e->schedule;
    int64_t rows = 1, held = 1, read = 8, size;
    bool ordered = sums_in_order(e), any_rows = false;
    if (!has_columns(e) || e->vec_r || e->lanes == 1 || s->split == SPLIT_ALWAYS || s->body == BODY_ONCE)
        return;
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++) {
        rows *= kernel_extent(e->k, a);
        any_rows |= !kidx_is_const(e->k, e->k->axes.at[a].size, &size); /* loops.c asks how many there are */
    }
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        DType acc = dtype_accumulator((DType)n->dtype);
        int64_t bytes = (int64_t)dtype_bytes(inst_reduces(n) ? acc : (DType)n->dtype);
        held = inst_reduces(n) && bytes > held ? bytes : held;
        read = n->kind == KI_LOAD && e->info[i].r_level && bytes < read ? bytes : read;
    }
    bool wide = vec_extent(e) >= 2 * e->lanes || !kidx_is_const(e->k, e->k->axes.at[e->tile_axis].size, &size);
    bool pays = ordered ||
                (e->lanes * read <= LINE && (held == read ? vec_extent(e) >= STRIP_TILES * e->lanes : vec_extent(e) * read >= STRIP_BYTES));
    if (wide && pays && (any_rows || rows >= (ordered ? e->order.lanes : e->order.lanes / 2)))
        s->strip = STRIP_BYTES / (e->lanes * held);
    if (s->strip && ordered) /* what a strip reads in one go shall fit the first cache */
        s->chains = rows <= 128 ? 4 : rows <= 512 ? 2 : 0;
}

/*
 * Loops in kernels: tiles of one vector side by side, where what an iteration does with a carry takes so long that loading and storing it is nothing
 * beside it, and a few vectors in registers do not fill the time.
 */
static void plan_carries(Emit *e)
{
    enum { OPS_A_CARRY = 12, CARRIED_BYTES = 8192, CARRIED_TILES = 8 };
    int64_t carries = 0, bytes = 0;
    Weight w = weigh(e, NULL);
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->k->inst.at[i].kind == KI_CARRY) {
            carries++;
            bytes += (int64_t)dtype_bytes((DType)e->k->inst.at[i].dtype);
        }
    int one = e->bits / 32;
    if (!carries || has(e->k, ends) || e->tile_axis == NO_AXIS || vec_extent(e) < 4 * one || w.ops < HEAVY || w.ops < OPS_A_CARRY * carries)
        return;
    e->lanes = one;
    e->schedule.lanes = e->lanes;
    e->schedule.strip = CARRIED_BYTES / (e->lanes * bytes);
    e->schedule.strip = e->schedule.strip < 1 ? 1 : e->schedule.strip > CARRIED_TILES ? CARRIED_TILES : e->schedule.strip;
}

/* Points of the r axes, where that is constant; else 0. */
static int64_t r_points(const Emit *e)
{
    int64_t n = e->n_r ? 1 : 0, size;
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        n = kidx_is_const(e->k, e->k->axes.at[a].size, &size) && !__builtin_mul_overflow(n, size, &n) ? n : 0;
    return n;
}

/* What one point of the r axes is for a vector: its operations, those of the reductions, and its loads, which may be lane by lane. */
static int64_t weigh_point(Emit *e, Weight w)
{
    enum { PLACE_OPS = 8 }; /* of a reduction that keeps where its extreme is */
    int64_t ops = w.ops;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        DType t = dtype_accumulator((DType)n->dtype);
        if (inst_has_place(n))
            ops += PLACE_OPS;
        else if (inst_reduces(n))
            ops += tape_usual_length(tape(e, (Op)fold_info[n->op].step, (DType[]){t, t}, t)).computing;
        if (n->kind == KI_LOAD && e->live[i] && e->info[i].r_level)
            ops += index_walk(e->k, n->idx, (uint32_t)e->tile_axis) == INDEX_JUMPS ? e->lanes : 1;
    }
    return ops;
}

/*
 * Few points, as long as their code does not become long. No more lanes than leave room for the sums that wait in registers for others, and
 * than keep the code of several vectors short: those that have a cache line of each row are as fast. Rows in pages of their own are more than the
 * hardware follows, which shows where a register is less than a line (maxima of 32 rows of 4 KB, f32: 0.76 of the time at 256 bits).
 */
static void plan_unroll(Emit *e)
{
    enum { UNROLL_OPS = 320, UNROLL_VECTORS = 288, PAGE = 4096, MANY_ROWS = 8 };
    int64_t n = r_points(e), points = 1, waiting = 2, registers = e->bits == 512 ? 32 : 16;
    Weight w = weigh(e, NULL);
    if (e->tile_axis == NO_AXIS || n < 1 || n >= e->order.lanes)
        return;
    int64_t ops = n * weigh_point(e, w), vectors = e->lanes * (int64_t)w.widest * 8 / e->bits;
    if (e->schedule.strip || e->in_order || e->schedule.split != SPLIT_NEVER || ops > UNROLL_OPS)
        return;
    e->schedule.unroll = n;
    while (points < n)
        points *= 2, waiting++;
    while (sums_in_order(e) && vectors > 1 && vectors * waiting > registers)
        vectors /= 2, e->lanes /= 2;
    while (vectors > 1 && vectors * ops > UNROLL_VECTORS && e->lanes * (int64_t)w.narrowest > LINE)
        vectors /= 2, e->lanes /= 2;
    e->schedule.lanes = e->lanes;
    e->schedule.prefetch = e->bits / 8 < LINE && n >= MANY_ROWS && vec_extent(e) * (int64_t)w.narrowest >= PAGE;
}

static int64_t last_x(const Emit *e)
{
    int64_t n = 0;
    return e->n_x && kidx_is_const(e->k, e->k->axes.at[e->n_x - 1].size, &n) ? n : 0;
}

/* Does this access go through memory as its rows and columns lie? Where several r axes are one, the last decides. */
static bool goes_along_columns(const Emit *e, IRef i, int64_t columns)
{
    const Idx *x = &e->k->idx.at[i];
    uint32_t r = e->k->axes.n - 1;
    int64_t factor = 0;
    if (x->kind == IX_ADD)
        return goes_along_columns(e, x->a, columns) && goes_along_columns(e, x->b, columns);
    if (kidx_uses_axis(e->k, i, r))
        return x->kind == IX_MUL && e->k->idx.at[x->a].kind == IX_AXIS && kidx_is_const(e->k, x->b, &factor) && factor == columns;
    return x->kind == IX_AXIS || !kidx_uses_axis(e->k, i, e->n_x - 1);
}

/*
 * Columns too few for strips, of many rows, where all that is read and written for each row goes along them. Without an order a tile of lanes along x
 * has its own sum in a register, too, and is as fast from 16 columns on.
 */
static bool plan_columns(Emit *e)
{
    enum { COLUMNS_BYTES = 256, UNORDERED = 16 };
    int64_t columns = last_x(e), rows = 1;
    if (columns < 2 || !has_columns(e) || (columns > UNORDERED && !sums_in_order(e)))
        return false;
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        rows *= kernel_extent(e->k, a);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        int64_t bytes = (int64_t)dtype_bytes(inst_reduces(n) ? dtype_accumulator((DType)n->dtype) : (DType)n->dtype);
        if (!e->live[i] || (!e->info[i].r_level && !inst_reduces(n)))
            continue;
        if (columns * bytes > COLUMNS_BYTES || n->kind == KI_INDEX || n->kind == KI_BOUND || n->pred != VREF_NONE)
            return false;
        if ((n->kind == KI_LOAD || n->kind == KI_STORE) &&
            (!kidx_uses_axis(e->k, n->idx, e->n_x - 1) || !goes_along_columns(e, n->idx, columns)))
            return false;
    }
    e->schedule.columns = rows >= e->order.lanes ? columns : 0;
    return e->schedule.columns;
}

/* Is this index linear in the last two x axes, with constants? */
static bool index_linear(const Emit *e, IRef i, int64_t *times)
{
    const Idx *x = &e->k->idx.at[i];
    uint32_t first = e->n_x - 2;
    int64_t factor = 1;
    if (!(e->k->idx_axes.at[i] >> first))
        return true;
    if (x->kind == IX_ADD)
        return index_linear(e, x->a, times) && index_linear(e, x->b, times);
    if (x->kind == IX_MUL && kidx_is_const(e->k, x->b, &factor))
        x = &e->k->idx.at[x->a];
    if (x->kind != IX_AXIS)
        return false;
    times[x->a - first] += factor;
    return true;
}

/*
 * Rows too short for the lanes, a constant number of elements, that lie side by side where they are stored: all that is read of a tile of them is a few
 * vectors, or one row again and again. By themselves they would take an access each.
 */
static bool rows_join(Emit *e, int64_t length)
{
    enum { MOST_APART = 3 };
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        int64_t times[2] = {0};
        if (!e->live[i] || n->kind == KI_CONST || n->kind == KI_SCALAR || n->kind == KI_OP)
            continue;
        if ((n->kind != KI_LOAD && n->kind != KI_STORE && n->kind != KI_INDEX) || n->pred != VREF_NONE || !index_linear(e, n->idx, times))
            return false;
        int64_t row = llabs(times[0]), apart = llabs(times[1]);
        if (n->kind == KI_STORE ? times[1] != 1 || times[0] != length
                                : n->kind == KI_LOAD && (row > MOST_APART * length || apart > MOST_APART))
            return false;
    }
    return true;
}

/* Whole rows, as many as four vectors hold, where that is no power of two; points that fill no tile are then computed one by one. */
static int lanes_of_rows(const Emit *e, Weight w, int64_t length)
{
    int64_t most = e->bits / 2 / (int64_t)w.widest, lanes = length;
    most = most < MAX_LANES ? most : MAX_LANES;
    while (2 * lanes <= most)
        lanes *= 2;
    return w.ops < HEAVY && lanes <= most ? (int)lanes : 0;
}

/*
 * Heavy bodies have one vector in flight, and what is left of a row costs them as much as a whole tile and more, so they join also where rows are no
 * whole tiles: up to a length from which a tile in two rows costs more than that.
 */
static void plan_joined(Emit *e)
{
    enum { LONG_ROW = 24, LONG_ROW_AVX2 = 72 };
    int64_t length;
    if (e->n_r || e->n_stages || e->n_x < 2 || e->tile_axis == NO_AXIS || !kidx_is_const(e->k, e->k->axes.at[e->n_x - 1].size, &length) ||
        length < 2 || pieces_of(e, e->n_x - 1) || pieces_of(e, e->n_x - 2) || !rows_join(e, length))
        return;
    int lanes = e->lanes;
    Schedule before = e->schedule;
    e->schedule.joined = length;
    Weight w = weigh(e, NULL);
    plan_lanes(e, w);
    if (e->schedule.body == BODY_ONCE && length % e->lanes && length <= (e->bits < 512 ? LONG_ROW_AVX2 : LONG_ROW))
        return;
    if (length & (length - 1)) {
        e->lanes = lanes_of_rows(e, w, length);
        e->schedule.tail = TAIL_SCALAR;
    }
    if (e->lanes > lanes && e->lanes % length == 0)
        return;
    e->schedule = before;
    e->lanes = lanes;
}

/* Is this index a sum of multiples of coordinates, as far as the last two x axes go? Counts those that are a row of `size` elements, a column, and
 * others. */
static bool counts_rows(const Emit *e, IRef i, uint32_t count[3])
{
    const Idx *x = &e->k->idx.at[i];
    uint32_t first = e->n_x - 2;
    if (!(e->k->idx_axes.at[i] >> first))
        return true;
    if (x->kind == IX_ADD)
        return counts_rows(e, x->a, count) && counts_rows(e, x->b, count);
    bool row = index_is_row(e->k, i, first, e->k->axes.at[first + 1].size), column = x->kind == IX_AXIS && x->a == first + 1;
    count[row ? 0 : column ? 1 : 2]++;
    return x->kind == IX_AXIS || (x->kind == IX_MUL && e->k->idx.at[x->a].kind == IX_AXIS && !e->k->idx_axes.at[x->b]);
}

/*
 * The same where rows have a number of points that is an argument, but planned to be small: each launch asks. Where they are no whole tiles, the rest
 * of a row costs as much as a tile, with AVX2 as much as six.
 */
static void plan_join_below(Emit *e)
{
    enum { PLANNED = 64, LONG_ROW = 10, LONG_ROW_AVX2 = 44 };
    int64_t length;
    if (e->n_r || e->n_stages || e->n_x < 2 || e->tile_axis == NO_AXIS || e->lanes == 1 || e->schedule.body != BODY_ONCE ||
        kidx_is_const(e->k, e->k->axes.at[e->n_x - 1].size, &length) || kernel_extent(e->k, e->n_x - 1) > PLANNED ||
        pieces_of(e, e->n_x - 1) || pieces_of(e, e->n_x - 2))
        return;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        uint32_t count[3] = {0};
        if (!e->live[i] || n->kind == KI_CONST || n->kind == KI_SCALAR || n->kind == KI_OP)
            continue;
        if ((n->kind != KI_LOAD && n->kind != KI_STORE && n->kind != KI_INDEX) || n->pred != VREF_NONE || !counts_rows(e, n->idx, count) ||
            (n->kind == KI_STORE && (count[0] != 1 || count[1] != 1 || count[2])))
            return;
    }
    e->schedule.join_below = e->bits < 512 ? LONG_ROW_AVX2 : LONG_ROW;
}

static void plan_loops(Emit *e)
{
    const Kernel *k = e->k;
    Schedule *s = &e->schedule;
    bool along_r = e->n_r && k->vec_axis == k->axes.n - 1 && !e->in_order, along_x = e->n_x && k->vec_axis == e->n_x - 1;
    if (plan_columns(e))
        along_r = true, along_x = false;
    s->along = s->columns ? (int64_t)k->axes.n - 1 : along_r ? (int64_t)k->vec_axis : (int64_t)e->n_x - 1;
    s->lanes = 1;
    s->across = s->pieces = -1;
    s->split = !k->split || !e->n_stages || e->in_order ? SPLIT_NEVER : k->split_asked ? SPLIT_ASKED : SPLIT_ALWAYS;
    schedule_apply(e);
    if (along_r || along_x) {
        Weight w = weigh(e, NULL);
        s->prefetch = w.ops >= HEAVY && (along_r || e->tile_axis != NO_AXIS);
        plan_lanes(e, w);
        plan_joined(e);
    }
    s->lanes = e->lanes;
    plan_stage_lanes(e);
    plan_strip(e);
    plan_carries(e);
    plan_unroll(e);
    plan_row_block(e);
    plan_squares(e);
    if (along_x && !e->n_r)
        plan_pieces(e);
    if (along_x && !s->rows)
        plan_join_below(e);
}

/* What the user asks for (option `schedule`) instead, where the kernel allows it. */
static void schedule_asked(Emit *e, const Schedule *own)
{
    ScheduleFacts facts = {.own = own,
                           .n_x = e->n_x,
                           .n_r = e->n_r,
                           .n_stages = e->n_stages,
                           .order_lanes = e->order.lanes,
                           .in_order = e->in_order,
                           .carries = has(e->k, carries),
                           .columns = has_columns(e),
                           .points = r_points(e),
                           .last_x = last_x(e)};
    const char *texts = option_contents(e->options->value[OPT_SCHEDULE]);
    Schedule asked = *own;
    if (!texts)
        return;
    for (uint32_t a = 0; a < e->n_x && e->k->form == FORM_LOOPS; a++)
        facts.cut |= pieces_of(e, a) ? 1u << a : 0;
    if (e->k->form == FORM_CONTRACT)
        contract_facts(e, &facts);
    Status status = schedule_find(texts, e->k, e->arena, &asked);
    if (status == ST_OK)
        status = schedule_verify(&asked, &facts);
    if (status == ST_OK)
        e->schedule = asked;
    else if (e->name)
        log_warn("the schedule asked for kernel %s is not taken: %s", e->name, fail_message());
}

void plan_host(Emit *e)
{
    e->schedule.bits = e->bits;
    if (e->k->form == FORM_CONTRACT)
        contract_schedule(e);
    else
        plan_loops(e);
    Schedule own = e->schedule;
    schedule_asked(e, &own);
    schedule_apply(e);
    e->prefetch_rows = e->k->form != FORM_CONTRACT;
    e->stream = true;
}

static void plan_stages(Emit *e)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        bool effect =
            kernel_ends(n) || inst_runs(n) || ((n->kind == KI_STORE || n->kind == KI_SCATTER || e->checked[i]) && e->info[i].r_level);
        if (effect && e->live[i] && e->info[i].stage >= e->n_stages)
            e->n_stages = e->info[i].stage + 1u;
    }
}

/* Which loops there are, from the schedule. */
static void plan_nest(Emit *e)
{
    NestFacts *f = &e->facts;
    int64_t *piece = ARENA_ARRAY(e->arena, int64_t, MOST_PIECES);
    f->order = e->order, f->in_order = e->in_order, f->heavy = e->vec_r && plan_heavy(e);
    f->n_pieces = e->pieces ? pieces_count(e->pieces) : 0;
    f->piece = piece;
    if (e->pieces)
        pieces_lengths(e, e->pieces, piece);
    nest_build(&e->nest, f);
}

void emit_plan(Emit *e)
{
    const Kernel *k = e->k;
    uint32_t analysed;
    e->order = kernel_order(k, e->cuda ? ORDER_CUDA : ORDER_HOST);
    e->info = kernel_analyse(k, e->arena, &analysed);
    plan_live(e);
    while (e->n_x < k->axes.n && k->axes.at[e->n_x].kind == AXIS_X)
        e->n_x++;
    e->n_r = k->axes.n - e->n_x;
    for (uint32_t i = 0; i < k->inst.n; i++)
        e->in_order |= kernel_in_order(&k->inst.at[i]);
    plan_stages(e);
    for (uint32_t a = 0; a < k->args.n; a++)
        if (k->args.at[a].kind == ARG_SCRATCH)
            e->shared_arg = a;
    e->target->plan(e);
    plan_levels(e);
    e->facts = (NestFacts){.k = k, .schedule = &e->schedule, .info = e->info, .live = e->live, .checked = e->checked};
    e->facts.n_x = e->n_x, e->facts.n_r = e->n_r, e->facts.n_stages = e->n_stages;
    nest_statements(&e->nest, &e->facts, e->arena);
    reduce_plan(e);
    if (!e->cuda && k->form == FORM_LOOPS)
        plan_nest(e);
}

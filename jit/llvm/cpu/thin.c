/*
 * Products that packing would only hold up: small ones, and those with few rows.
 *
 * Few rows mean that each element of the lane operand is used a few times only: it is read once, in the order it lies in memory. Where
 * that is along the lanes, `strips` take STRIP_STEPS rows of it at a time over the whole width of some tasks, with a block's sums in L1; where
 * it is along k, `dots` read one vector of each of as many points as there are lanes, and transpose.
 *
 * A machine follows so many rows at once, each to the end of its page, and reads in vain where a strip ends before that. So neighbouring
 * tasks, of half a page each, are walked as one where a thread has several (LaunchPlan.together).
 */
#include "jit/llvm/cpu/contract.h"
#include "jit/kernel_text.h"

/* The walk goes to row r of the group that begins at `first`. */
static void row_at(Emit *e, const Contract *c, LV first, int64_t r)
{
    int64_t n;
    contract_anew(e, LV_ROW);
    Place place = level_enter(e, LV_ROW);
    LV at = l_add(e, first, l_i64(e, r));
    if (r && !c->even && !(l_is_const(c->n[ROW_SIDE], &n) && n % c->rows == 0))
        at = l_min(e, at, l_sub(e, c->n[ROW_SIDE], l_i64(e, 1)));
    level_leave(e, place);
    contract_row(e, c, at);
}

/* The row factor of a step at k, for every lane. */
static LV row_factor(Emit *e, const Contract *c, LV first, int64_t r, LV k, int64_t of)
{
    row_at(e, c, first, r);
    return contract_factor(e, c, ROW_SIDE, k, of);
}

/* ---- flipped bits of the lane operand (factor.c) ---- */

static void more_start(Emit *e, Contract *c)
{
    for (int64_t r = 0; r < c->rows && c->dot.flips; r++) {
        c->more[r] = l_alloca(e, l_type(e, c->dot.acc, true), 0, "more");
        l_store(e, LLVMConstNull(l_type(e, c->dot.acc, true)), c->more[r], 0);
    }
}

static void more_step(Emit *e, const Contract *c, int64_t r, LV a)
{
    LLVMTypeRef type = l_type(e, c->dot.acc, true);
    if (c->dot.flips)
        l_store(e, contract_step(e, c, l_load(e, type, c->more[r], 0), a, contract_flip(e, (unsigned)e->lanes)), c->more[r], 0);
}

static LV without_more(Emit *e, const Contract *c, int64_t r, LV block)
{
    return c->dot.flips ? l_sub(e, block, l_load(e, l_type(e, c->dot.acc, true), c->more[r], 0)) : block;
}

void thin_sums(Emit *e, Contract *c)
{
    for (int64_t r = 0; r < c->rows; r++) {
        c->in_block[r] = l_alloca(e, l_type(e, c->dot.acc, true), 0, "sum");
        c->total[r] = c->dot.one_block ? c->in_block[r] : l_alloca(e, l_type(e, c->dot.acc, true), 0, "total");
    }
}

static void sums_step(Emit *e, const Contract *c, LV at, LV a, LV b)
{
    l_store(e, contract_step(e, c, l_load(e, l_type(e, c->dot.acc, true), at, 0), a, b), at, 0);
}

void thin_start(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    more_start(e, c);
    for (int64_t r = 0; r < c->rows; r++)
        l_store(e, LLVMConstNull(l_type(e, c->dot.acc, true)), c->in_block[r], 0);
}

void thin_merge(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    LLVMTypeRef type = l_type(e, c->dot.acc, true);
    for (int64_t r = 0; r < c->rows; r++)
        l_store(e, without_more(e, c, r, l_load(e, type, c->in_block[r], 0)), c->in_block[r], 0);
    if (c->task_of == TASK_BLOCK) {
        LV sums = contract_sums(e, c);
        for (int64_t r = 0; r < c->rows; r++)
            contract_store(e, c, l_load(e, type, c->in_block[r], 0), l_gep(e, LLVMGetElementType(c->vector), sums, l_i64(e, r * c->width)));
        return;
    }
    if (c->dot.one_block)
        return;
    If more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntNE, c->k0, l_i64(e, 0), ""), "more");
    for (int64_t r = 0; r < c->rows; r++) {
        LV old = l_load(e, type, c->total[r], 0);
        l_store(e, add_block(e, c, old, l_load(e, type, c->in_block[r], 0), LLVMConstNull(e->type[SC_I1])), c->in_block[r], 0);
    }
    if_end(e, &more);
    for (int64_t r = 0; r < c->rows; r++)
        l_store(e, l_load(e, type, c->in_block[r], 0), c->total[r], 0);
}

void thin_sums_end(Emit *e, const Contract *c)
{
    for (int64_t r = 0; r < c->rows; r++)
        contract_store(e, c, l_load(e, l_type(e, c->dot.acc, true), c->total[r], 0), contract_slot(e, c, 0, l_i64(e, r * sums_apart(c))));
}

/* ---- fetching ahead ---- */

enum { LEAST_AHEAD = 8192 };

/* How far, in bytes, is what the lane operand has at least so many points of an axis later? 0: nobody knows. */
static unsigned points_ahead(const Emit *e, const Contract *c, int axis, int64_t points)
{
    enum { MOST = 1 << 20 };
    const KInst *load = &e->k->inst.at[c->dot.operand[LANE_SIDE]];
    if (load->kind == KI_OP && load->op == OP_CAST)
        load = &e->k->inst.at[load->a];
    int64_t times[KERNEL_AXES] = {0};
    if (load->kind != KI_LOAD || axis == NO_AXIS || !index_linear(e->k, load->idx, 1u << axis, times) || times[axis] <= 0 ||
        times[axis] > MOST)
        return 0;
    const int64_t bytes = times[axis] * points * (int64_t)dtype_bytes((DType)load->dtype);
    return bytes > MOST ? 0 : (unsigned)(bytes < LEAST_AHEAD ? LEAST_AHEAD / bytes * bytes : bytes);
}

/* ---- direct ---- */

/* Of products one after another: the innermost of their axes; or NO_AXIS. Products of one operand have columns along axes of their own. */
static int axis_of_products(const Emit *e, const Contract *c)
{
    int axis = e->facts.n_products == 1 && c->dot.outer == NO_AXIS ? (int)e->n_x - 1 : -1;
    while (axis >= 0 && (axis == c->dot.axis[LANE_SIDE] || axis == c->dot.axis[ROW_SIDE]))
        axis--;
    return axis < 0 ? NO_AXIS : axis;
}

typedef struct Memory {
    LV at;
    int64_t bytes;
} Memory;

/* What a load or store touches in the next product, taken to be contiguous; bytes 0: nothing else than in this one. */
static Memory of_next_product(Emit *e, const Contract *c, const KInst *n, int products)
{
    const bool store = n->kind == KI_STORE;
    const DType t = (DType)(store ? e->k->inst.at[n->a].dtype : n->dtype);
    Memory m = {.bytes = (int64_t)dtype_bytes(t)};
    Ix here[MAX_AXES];
    uint32_t scope[LV_COUNT];
    if ((n->kind != KI_LOAD && !store) || index_through_value(e->k, n->idx) || !kidx_uses_axis(e->k, n->idx, (uint32_t)products))
        return (Memory){0};
    memcpy(here, e->axis, sizeof here);
    memcpy(scope, e->scope, sizeof scope);
    for (int level = LV_ROW; level < LV_COUNT; level++)
        e->scope[level] = ++e->scopes;
    for (uint32_t a = 0; a < e->k->axes.n; a++)
        if (a >= e->n_x || (int)a == c->dot.axis[LANE_SIDE] || (int)a == c->dot.axis[ROW_SIDE]) {
            m.bytes *= kidx_uses_axis(e->k, n->idx, a) ? kernel_extent(e->k, a) : 1;
            e->axis[a] = ix_uniform(l_i64(e, 0));
        }
    e->axis[products] = ix_uniform(l_add(e, here[products].base, l_i64(e, 1)));
    m.at = address_of(e, l_memory(e, t), argument(e, n->arg), n->idx).ptr;
    memcpy(e->axis, here, sizeof here);
    memcpy(e->scope, scope, sizeof scope);
    return m;
}

/*
 * The hardware begins anew with each product. So each step of this one asks for a part of a line of the next one: tiles in turns for its operands and for
 * where its results go, one instruction a step.
 */
static void ask_for_next(Emit *e, const Contract *c, LV k)
{
    enum { MOST = 4 };
    const int products = axis_of_products(e, c), row = c->dot.axis[ROW_SIDE];
    if (!e->schedule.prefetch || !c->dot.regular || products == NO_AXIS || row == NO_AXIS || e->tile_axis == NO_AXIS)
        return;
    Memory of[MOST];
    int64_t n = 0, steps = kernel_extent(e->k, e->n_x), groups = kernel_extent(e->k, (uint32_t)row) / c->rows;
    int64_t tiles = kernel_extent(e->k, (uint32_t)e->tile_axis) / c->width * groups;
    Place place = level_enter(e, LV_ROW);
    for (VRef v = 0; v < e->k->inst.n && n < MOST; v++) {
        of[n] = of_next_product(e, c, &e->k->inst.at[v], products);
        n += of[n].bytes > 0;
    }
    LV number = l_add(e, l_mul(e, c->tile, l_i64(e, groups)), l_div(e, c->first, l_i64(e, c->rows))), at = NULL, by = NULL;
    for (int64_t i = 0; i < n && n <= tiles; i++) {
        LV turn = LLVMBuildICmp(e->b, LLVMIntEQ, l_mod(e, number, l_i64(e, n)), l_i64(e, i), "");
        int64_t times = tiles / n * steps;
        LV bytes = l_i64(e, (of[i].bytes + times - 1) / times);
        at = i ? LLVMBuildSelect(e->b, turn, of[i].at, at, "") : of[i].at;
        by = i ? LLVMBuildSelect(e->b, turn, bytes, by, "") : bytes;
    }
    if (at)
        at = l_gep_bytes(e, at, l_mul(e, l_mul(e, l_div(e, number, l_i64(e, n)), l_i64(e, steps)), by));
    level_leave(e, place);
    if (!at)
        return;
    e->ahead_far = true;
    l_prefetch(e, l_gep_bytes(e, at, l_mul(e, k, by)), 0, 1);
    e->ahead_far = false;
}

static void step(Emit *e, const Contract *c, const Loop *loop, int64_t n, void *unused)
{
    (void)unused;
    e->before[LV_ROW] = e->before[LV_TILE] = loop->guard;
    level_open(e, LV_ROW);
    e->cur = LV_R;
    ask_for_next(e, c, loop->iv);
    e->prefetch_rows = true; /* rows far apart: the hardware does not follow */
    LV b = contract_factor(e, c, LANE_SIDE, loop->iv, n);
    e->prefetch_rows = false;
    for (int64_t r = 0; r < c->rows; r++) {
        LV a = row_factor(e, c, c->first, r, loop->iv, n);
        sums_step(e, c, c->in_block[r], a, b);
        more_step(e, c, r, a);
    }
    level_close(e, LV_ROW, LV_ROW);
}

/* Lanes of the narrowest vectors that the last tile of a row is made by: half a register, of two in a tile. */
static int64_t narrowest(const Emit *e, const Contract *c)
{
    int64_t lanes = e->bits > 128 ? c->dot.lanes / 2 : c->dot.lanes;
    return c->width < lanes ? c->width : lanes;
}

/*
 * The mask of `left` lanes, for a loop: LLVM computes a comparison anew at each step, and what it knows nothing of it keeps in registers. There are
 * few. `more`: more than half of the lanes are there; for that half there is nothing to keep.
 */
static LV held_mask(Emit *e, const Contract *c, LV left, bool more)
{
    unsigned bits = (unsigned)dtype_bytes(c->dot.acc) * 8, lanes = (unsigned)e->lanes;
    LLVMTypeRef element = LLVMIntTypeInContext(e->ctx, bits), type = LLVMVectorType(element, lanes);
    LV mask = LLVMBuildSExt(e->b, l_lane_mask(e, left), type, "");
    if (more)
        mask = l_part(e, mask, (int)lanes / 2, (int)lanes / 2);
    LV place = l_alloca(e, LLVMTypeOf(mask), 0, "held");
    l_store(e, mask, place, 0);
    LV held = l_load(e, LLVMTypeOf(mask), place, 0);
    LLVMSetVolatile(held, 1);
    if (more)
        held = l_join(e, (LV[]){LLVMConstAllOnes(LLVMTypeOf(held)), held}, 2);
    return LLVMBuildICmp(e->b, LLVMIntSLT, held, LLVMConstNull(type), "");
}

static void steps_under(Emit *e, const Contract *c, LV k0, LV k1, LV mask)
{
    e->mask = mask;
    contract_steps(e, c, k0, k1, "k", step, NULL);
    mask_end(e);
}

/* Points [k0, k1). No step asks whether its tile is whole. */
static void steps(Emit *e, const Contract *c, LV k0, LV k1)
{
    contract_tile(e, c, c->tile);
    LV left = e->left, whole = e->whole;
    mask_end(e);
    if (!left) {
        steps_under(e, c, k0, k1, NULL);
    } else if (c->settled) {
        steps_under(e, c, k0, k1, held_mask(e, c, left, c->lanes > narrowest(e, c)));
    } else {
        If some = if_begin(e, whole, "whole");
        steps_under(e, c, k0, k1, NULL);
        if_end(e, &some);
        some = if_begin(e, LLVMBuildNot(e->b, whole, ""), "last");
        steps_under(e, c, k0, k1, held_mask(e, c, left, false));
        if_end(e, &some);
    }
}

void direct_steps(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    steps(e, c, c->k0, c->k1);
}

/* What is in a tile, by vectors of so many lanes, of which `left` are there; NULL: all. rows: of each group, which all have as many; 0: as planned. */
static void tile_by(Emit *e, const Contract *c, const NestNode *node, int64_t lanes, LV left, int64_t rows)
{
    Contract part = *c;
    part.settled = true;
    part.lanes = lanes;
    part.left = left;
    if (rows) {
        part.even = true;
        part.rows = rows;
        part.group_rows = l_i64(e, rows);
        part.groups = l_div(e, l_sub(e, c->row1, c->row0), part.group_rows);
    }
    lanes_change(e, (int)lanes);
    contract_anew(e, LV_ROW);
    thin_sums(e, &part);
    product_inside(e, &part, node);
    contract_anew(e, LV_ROW);
    lanes_change(e, (int)c->width);
}

/* Rows of a group of such matrices: as many sums as are on their way at once. */
static int64_t square_rows(int64_t lanes)
{
    enum { ON_THEIR_WAY = 8 };
    return lanes < ON_THEIR_WAY ? lanes : ON_THEIR_WAY;
}

/* i1: has the task whole groups of so many rows? */
static LV whole_groups(Emit *e, const Contract *c, int64_t rows)
{
    LV behind = l_mod(e, l_sub(e, c->row1, c->row0), l_i64(e, rows));
    return LLVMBuildICmp(e->b, LLVMIntEQ, behind, l_i64(e, 0), "");
}

/*
 * A tile. The last one of a row has code of its own, by vectors of as many lanes as a tile has, of half of them and of a quarter: by the narrowest
 * that have what is left. Where sizes are arguments, matrices of just half a tile's columns or a quarter's, and of rows that groups divide, have
 * code without a mask and without rows that may not be there: of 4 x 4, 8 x 8, with AVX-512 16 x 16. (Zen 4, us of 4096 / n products of n cubed in L2 by the
 * program for any size: AVX2, 8 25.8 -> 14.4, 4 26.4 -> 20.6; AVX-512, 8 17.3 -> 13.8, 16 27.6 -> 25.3; a compilation takes 12 ms more.)
 */
void direct_tile(Emit *e, Contract *c, const NestNode *node)
{
    int64_t n, known = l_is_const(c->n[LANE_SIDE], &n) ? n % c->width : -1;
    if (e->tile_axis == NO_AXIS || c->width == 1 || known == 0) {
        tile_by(e, c, node, c->width, NULL, 0);
        return;
    }
    LV left = l_sub(e, c->n[LANE_SIDE], l_mul(e, c->tile, l_i64(e, c->width)));
    LV last = LLVMBuildICmp(e->b, LLVMIntSLT, left, l_i64(e, c->width), "");
    If some = if_begin(e, LLVMBuildNot(e->b, last, ""), "whole");
    tile_by(e, c, node, c->width, NULL, 0);
    if_end(e, &some);
    for (int64_t lanes = narrowest(e, c); lanes <= c->width; lanes *= 2) {
        if (known >= 0 && (known > lanes || (lanes > narrowest(e, c) && known <= lanes / 2)))
            continue;
        const int64_t rows = square_rows(lanes);
        if (known < 0 && rows * lanes <= c->rows * c->width && lanes < c->width) {
            LV full = LLVMBuildICmp(e->b, LLVMIntEQ, left, l_i64(e, lanes), ""),
               square = LLVMBuildAnd(e->b, full, whole_groups(e, c, rows), "");
            some = if_begin(e, square, "square");
            tile_by(e, c, node, lanes, NULL, rows);
            if_end(e, &some);
            last = LLVMBuildAnd(e->b, last, LLVMBuildNot(e->b, square, ""), "");
        }
        LV fits = LLVMBuildICmp(e->b, LLVMIntSLE, left, l_i64(e, lanes), "");
        some = if_begin(e, LLVMBuildAnd(e->b, last, fits, ""), "last");
        tile_by(e, c, node, lanes, known >= 0 ? l_i64(e, known) : left, 0);
        if_end(e, &some);
        last = LLVMBuildAnd(e->b, last, LLVMBuildNot(e->b, fits, ""), "");
    }
}

/* ---- dots ---- */

/* As many streams as lanes are more than the hardware follows. Behind a short row, as a key of attention is, come those of later tiles. */
static unsigned dots_ahead(const Emit *e, const Contract *c)
{
    enum { AHEAD = 512 };
    unsigned later = points_ahead(e, c, c->dot.axis[LANE_SIDE], c->width);
    return later && dot_short(&c->dot) ? later : AHEAD;
}

/*
 * To which cache? Rows that lie a power of two apart share a set of the first one, which has 8 ways where it has fewest: more rows push each other
 * out before they are read, and go to the second one. (Zen 4, one thread, us, the first and the second: matrix-vector 4096 bf16 2309, 1848;
 * 2, 4, 8 rows x 4096^2 ^T 3488, 2877, 3481, 3017, 4858, 3988; 8 of them by AVX2, of 8 lanes, 5609, 6602.)
 */
static bool dots_ahead_far(const Contract *c)
{
    enum { WAYS = 8 };
    return c->width > WAYS;
}

/*
 * Steps of k whose factors are transposed at once: a square's, or, where registers do not hold it with the sums, as many as a word has elements. Words
 * of several points then come from memory as a vector, and change no places. A sum that waits in memory holds all later steps up. (Zen 4, AVX2, one
 * thread, us, squares and words, by 1024^2 f32: 6 rows 224 -> 182, 8 rows 261 -> 233; 4 rows 165, 200.)
 */
static int dots_at_once(const Emit *e, const Contract *c)
{
    const int registers = e->bits == 512 ? 32 : 16, lanes = c->dot.lanes;
    return lanes + (int)c->rows + 2 >= registers ? tile_word(e, LLVMGetElementType(c->vector), lanes) : lanes;
}

/* The walk goes to one of the points of the tile. */
static void dots_point(Emit *e, const Contract *c, int64_t number)
{
    int64_t n;
    const bool whole = l_is_const(c->n[LANE_SIDE], &n) && n % c->width == 0;
    contract_anew(e, LV_ROW);
    Place place = level_enter(e, LV_ROW);
    LV at = l_add(e, l_mul(e, c->tile, l_i64(e, c->width)), l_i64(e, number));
    if (number && !whole)
        at = l_min(e, at, l_sub(e, c->n[LANE_SIDE], l_i64(e, 1)));
    level_leave(e, place);
    e->axis[e->tile_axis] = ix_uniform(at);
}

/* Its factors, `steps` along k. */
static LV dots_factors(Emit *e, const Contract *c, int64_t number, LV k, int steps)
{
    dots_point(e, c, number);
    lanes_change(e, steps);
    LV factors = contract_factors(e, c, LANE_SIDE, k);
    lanes_change(e, c->dot.lanes);
    return factors;
}

/* What is read of it later is asked for. */
static void dots_ask(Emit *e, const Contract *c, int64_t number, LV k)
{
    const KInst *load = &e->k->inst.at[dot_uncast(e->k, c->dot.operand[LANE_SIDE])];
    if (load->kind == KI_OP && load->op == OP_CAST)
        load = &e->k->inst.at[load->a];
    if (load->kind != KI_LOAD || index_through_value(e->k, load->idx))
        return;
    const DType t = (DType)load->dtype;
    dots_point(e, c, number);
    contract_k(e, k, true);
    e->ahead_far = dots_ahead_far(c);
    prefetch_at(e, t, address_of(e, l_memory(e, t), argument(e, load->arg), load->idx), dots_ahead(e, c));
    e->ahead_far = false;
}

/* The lanes' factors of `steps` along k from `k` on, transposed: v[i] are the lanes' of step i. */
static void dots_square(Emit *e, const Contract *c, int64_t first, LV k, int steps, LV *v)
{
    const int lanes = c->dot.lanes;
    for (int i = 0; i < steps; i++) {
        LV words[MAX_LANES];
        for (int w = 0; w < lanes / steps; w++)
            words[w] = dots_factors(e, c, first + w * steps + i, k, steps);
        v[i] = steps < lanes ? l_join(e, words, (unsigned)(lanes / steps)) : words[0];
    }
    if (steps < lanes)
        tile_transpose_words(e, v, lanes, steps);
    else
        tile_transpose(e, v, lanes);
}

static LV sum_of_lanes(Emit *e, const Contract *c, LV place)
{
    LV v = l_load(e, c->vector, place, 0);
    LLVMTypeRef type = LLVMTypeOf(v);
    return l_intrinsic(e, "llvm.vector.reduce.add", &type, 1, &v, 1);
}

void dots_steps(Emit *e, Contract *c, const NestNode *node)
{
    const int lanes = c->dot.lanes, squares = (int)c->width / lanes, at_once = dots_at_once(e, c);
    const int together = lanes == 2 ? 2 : 1; /* steps: two of f64 lie in a word, which a row loads at once */
    LV v[MAX_LANES], sum[MOST_ROWS][MOST_SQUARES], more[MOST_ROWS], by = l_i64(e, node->by);
    LV full = l_add(e, c->k0, l_mul(e, l_div(e, l_sub(e, c->k1, c->k0), by), by));
    for (int64_t r = 0; r < c->rows && c->dot.flips; r++) {
        more[r] = l_alloca(e, c->vector, 0, "more");
        l_store(e, LLVMConstNull(c->vector), more[r], 0);
    }
    for (int64_t r = 0; r < c->rows; r++)
        for (int s = 0; s < squares; s++) {
            sum[r][s] = l_alloca(e, c->vector, 0, "sum");
            l_store(e, l_part(e, l_load(e, l_type(e, c->dot.acc, true), c->in_block[r], 0), s * lanes, lanes), sum[r][s], 0);
        }
    lanes_change(e, lanes);
    Loop l = loop_begin(e, c->k0, full, by, "k");
    e->before[LV_ROW] = e->before[LV_TILE] = l.guard;
    level_open(e, LV_ROW);
    e->cur = LV_R;
    for (int s = 0; s < squares; s++)
        for (int i = 0; i < lanes; i += together) {
            if (i % at_once == 0)
                dots_square(e, c, s * lanes, l_add(e, l.iv, l_i64(e, i * c->dot.each)), at_once, v);
            for (int64_t r = 0; r < c->rows; r++)
                for (int u = i; u < i + together; u++) {
                    LV a = row_factor(e, c, c->first, r, l_add(e, l.iv, l_i64(e, u * c->dot.each)), c->dot.each);
                    sums_step(e, c, sum[r][s], a, v[u % at_once]);
                }
            for (int u = i; u < i + together; u++) /* here: instructions are not moved across it, which takes registers */
                dots_ask(e, c, s * lanes + u, l.iv);
        }
    for (int64_t r = 0; r < c->rows && c->dot.flips; r++) { /* the whole row at once, in each lane another part of it */
        row_at(e, c, c->first, r);
        sums_step(e, c, more[r], contract_factors(e, c, ROW_SIDE, l.iv), contract_flip(e, (unsigned)lanes));
    }
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &l);
    for (int64_t r = 0; r < c->rows; r++) {
        LV part[MOST_SQUARES];
        for (int s = 0; s < squares; s++)
            part[s] = l_load(e, c->vector, sum[r][s], 0);
        l_store(e, squares > 1 ? l_join(e, part, (unsigned)squares) : part[0], c->in_block[r], 0);
    }
    lanes_change(e, (int)c->width);
    for (int64_t r = 0; r < c->rows && c->dot.flips; r++)
        l_store(e, l_splat(e, sum_of_lanes(e, c, more[r])), c->more[r], 0);
    if (node->tail != NEST_TAIL_NONE)
        steps(e, c, full, c->k1); /* less than a vector of steps */
}

/* ---- strips ---- */

static LV strip_sums(Emit *e, const Contract *c, int64_t offset, LV tile, int64_t r)
{
    LV n = l_add(e, l_mul(e, c->group, l_i64(e, c->together * c->block_tiles)), l_sub(e, tile, c->sums_tile));
    n = l_mul(e, n, l_i64(e, c->rows));
    return contract_slot(e, c, offset, l_mul(e, l_add(e, n, l_i64(e, r)), l_i64(e, c->width)));
}

typedef void GroupFn(Emit *e, const Contract *c, void *user);

/* The groups of a task's rows, one after the other: all but the first find the strip in the caches. */
static void each_group(Emit *e, const Contract *c, GroupFn *body, void *user)
{
    Contract of = *c;
    if (c->block_rows == c->rows) {
        of.group = l_i64(e, 0);
        body(e, &of, user);
        return;
    }
    Loop g = loop_begin(e, l_i64(e, 0), c->groups, l_i64(e, 1), "group");
    of.group = g.iv;
    body(e, &of, user);
    loop_end(e, &g);
}

typedef struct Strip {
    int64_t rows, of; /* so many rows of a group; elements of a step */
    LV k;
    int n; /* steps from k on */
} Strip;

/* These steps of all tiles, for a group. The row operand's values are for the whole strip. */
static void strip_of_group(Emit *e, const Contract *c, void *user)
{
    const Strip *of_strip = user;
    const int64_t rows = of_strip->rows, of = of_strip->of;
    const int n = of_strip->n;
    const LV k = of_strip->k, first = contract_first_row(e, c);
    LV a[STRIP_STEPS][MOST_ROWS], sum[MOST_ROWS];
    unsigned ahead = e->schedule.prefetch ? points_ahead(e, c, (int)e->k->axes.n - 1, STRIP_STEPS * c->dot.each) : 0;
    pin(e, LV_ROW);
    level_open(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    e->cur = LV_R;
    for (int u = 0; u < n; u++)
        for (int64_t r = 0; r < rows; r++)
            a[u][r] = row_factor(e, c, first, r, l_add(e, k, l_i64(e, u * of)), of);
    Loop j = loop_begin(e, c->tile0, c->tile1, l_i64(e, 1), "tile");
    contract_tile(e, c, j.iv);
    contract_anew(e, LV_ROW);
    pin(e, LV_ROW);
    e->before[LV_TILE] = e->before[LV_ROW];
    for (int64_t r = 0; r < rows; r++)
        sum[r] = contract_load(e, c, strip_sums(e, c, c->part, j.iv, r));
    for (int u = 0; u < n; u++) {
        contract_anew(e, LV_R);
        e->ahead = ahead;
        e->ahead_far = ahead > LEAST_AHEAD;
        LV b = contract_factor(e, c, LANE_SIDE, l_add(e, k, l_i64(e, u * of)), of);
        e->ahead = 0;
        e->ahead_far = false;
        for (int64_t r = 0; r < rows; r++)
            sum[r] = contract_step(e, c, sum[r], a[u][r], b);
    }
    for (int64_t r = 0; r < rows; r++)
        contract_store(e, c, sum[r], strip_sums(e, c, c->part, j.iv, r));
    mask_end(e);
    loop_end(e, &j);
    level_close(e, LV_ROW, LV_ROW);
}

static void strip(Emit *e, const Contract *c, int64_t rows, LV k, int n, int64_t of)
{
    each_group(e, c, strip_of_group, &(Strip){rows, of, k, n});
}

static void start_group(Emit *e, const Contract *c, void *unused)
{
    (void)unused;
    Loop z = loop_begin(e, c->tile0, c->tile1, l_i64(e, 1), "zero");
    for (int64_t r = 0; r < c->rows; r++)
        contract_store(e, c, LLVMConstNull(l_type(e, c->dot.acc, true)), strip_sums(e, c, c->part, z.iv, r));
    loop_end(e, &z);
}

void strip_start(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    each_group(e, c, start_group, NULL);
}

static void one_step(Emit *e, const Contract *c, const Loop *loop, int64_t n, void *unused)
{
    (void)unused;
    strip(e, c, c->rows, loop->iv, 1, n);
}

static void whole_strips(Emit *e, const Contract *c, int64_t rows, LV full, LV by)
{
    Loop l = loop_begin(e, c->k0, full, by, "strip");
    strip(e, c, rows, l.iv, STRIP_STEPS, c->dot.each);
    loop_end(e, &l);
}

/* Where the number of rows may vary there is code for each, as a row that is not there takes as long as one that is. */
void strip_steps(Emit *e, Contract *c, const NestNode *node)
{
    enum { HEIGHTS = 4 }; /* the highest: as many as there are between two programs of few_or_more_rows (jit/fuse/lower.c) */
    int64_t n, least = c->rows > HEIGHTS ? c->rows - HEIGHTS + 1 : 1;
    LV by = l_i64(e, node->by), full = l_add(e, c->k0, l_mul(e, l_div(e, l_sub(e, c->k1, c->k0), by), by));
    if (l_is_const(c->n[ROW_SIDE], &n) || c->block_rows > c->rows) {
        whole_strips(e, c, c->rows, full, by);
    } else {
        LV left = l_sub(e, c->row1, c->row0);
        for (int64_t rows = least; rows <= c->rows; rows++) {
            LV these = LLVMBuildICmp(e->b, rows == least ? LLVMIntSLE : LLVMIntEQ, left, l_i64(e, rows), "");
            If some = if_begin(e, these, "rows");
            whole_strips(e, c, rows, full, by);
            if_end(e, &some);
        }
    }
    contract_steps(e, c, full, c->k1, "rest", one_step, NULL);
}

static void merge_group(Emit *e, const Contract *c, void *unused)
{
    (void)unused;
    Loop j = loop_begin(e, c->tile0, c->tile1, l_i64(e, 1), "add");
    LV begins = LLVMBuildICmp(e->b, LLVMIntEQ, c->k0, l_i64(e, 0), "");
    for (int64_t r = 0; r < c->rows; r++) {
        LV block = contract_load(e, c, strip_sums(e, c, c->part, j.iv, r)), at = strip_sums(e, c, 0, j.iv, r);
        contract_store(e, c, add_block(e, c, contract_load(e, c, at), block, begins), at);
    }
    loop_end(e, &j);
}

void strip_merge(Emit *e, Contract *c, const NestNode *node)
{
    (void)node;
    each_group(e, c, merge_group, NULL);
}

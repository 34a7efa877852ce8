/*
 * What is decided for CUDA before any IR exists: which way the lanes run, how many, how many threads share an x point,
 * and which accesses can be whole aligned tiles. Nothing here changes a result (reductions have one order whatever the
 * threads), only speed.
 */
#include "jit/llvm/cuda/cuda.h"

/* ---- accesses ---- */

/* One factor-wise view of a term of a sum: coef * args... * something unknown. */
typedef struct TermView {
    int64_t coef;
    uint32_t arg[4], n_args;
    bool unknown; /* other factors: some integer */
    bool lanes;   /* the lane coordinate is among the factors */
    bool jumps;   /* the lanes are in a quotient, a remainder or a loaded value */
} TermView;

static bool uses_lanes(const Emit *e, IRef i, uint32_t axis)
{
    if (axis != UINT32_MAX)
        return kidx_uses_axis(e->k, i, axis);
    return e->k->idx_axes.at[i] >> e->n_x != 0;
}

/* The axis whose coordinate steps with the lanes. */
static uint32_t lane_axis(const Emit *e, uint32_t axis) { return axis != UINT32_MAX ? axis : e->k->axes.n - 1; }

static void view_term(const Emit *e, IRef i, uint32_t axis, TermView *v)
{
    const Idx *x = &e->k->idx.at[i];
    switch ((IdxKind)x->kind) {
    case IX_CONST: v->coef = (int64_t)((uint64_t)v->coef * (uint64_t)x->value); return;
    case IX_ARG:
        if (v->n_args < 4)
            v->arg[v->n_args++] = x->a;
        else
            v->unknown = true;
        return;
    case IX_MUL:
        view_term(e, x->a, axis, v);
        view_term(e, x->b, axis, v);
        return;
    case IX_AXIS:
        if (x->a == lane_axis(e, axis))
            v->lanes = true;
        else
            v->unknown = true;
        return;
    case IX_ADD:
    case IX_DIV:
    case IX_MOD:
    case IX_VALUE:
        v->unknown = true;
        v->jumps |= uses_lanes(e, i, axis);
        return;
    }
}

/* Walks the terms of a sum. Adjacent lanes at adjacent elements? And is the first lane's element a multiple of `unit`:
 * never, always, or if the terms that `guard` (may be NULL) then ANDs up are. */
typedef struct AccessView {
    bool contiguous, aligned;
    uint32_t lane_terms;
} AccessView;

static void view_access(Emit *e, IRef i, uint32_t axis, int64_t unit, AccessView *a, LV *guard)
{
    const Idx *x = &e->k->idx.at[i];
    if (x->kind == IX_ADD) {
        view_access(e, x->a, axis, unit, a, guard);
        view_access(e, x->b, axis, unit, a, guard);
        return;
    }
    TermView v = {.coef = 1};
    view_term(e, i, axis, &v);
    if (v.jumps) {
        a->contiguous = false;
        return;
    }
    if (v.lanes) {
        a->contiguous &= v.coef == 1 && !v.n_args && !v.unknown && !a->lane_terms++;
        return;
    }
    if (v.coef % unit == 0)
        return;
    a->aligned &= v.n_args > 0;
    if (!v.n_args || !guard)
        return;
    LV product = l_i64(e, v.coef);
    for (uint32_t n = 0; n < v.n_args; n++)
        product = l_mul(e, argument(e, v.arg[n]), product);
    LV low = LLVMBuildAnd(e->b, product, l_i64(e, unit - 1), "");
    LV holds = LLVMBuildICmp(e->b, LLVMIntEQ, low, l_i64(e, 0), "");
    *guard = *guard ? LLVMBuildAnd(e->b, *guard, holds, "") : holds;
}

static DType access_type(const Emit *e, uint32_t i)
{
    const KInst *n = &e->k->inst.at[i];
    return (DType)(n->kind == KI_STORE ? e->k->inst.at[n->a].dtype : n->dtype);
}

static bool is_access(const Emit *e, uint32_t i, uint32_t axis)
{
    const KInst *n = &e->k->inst.at[i];
    return e->live[i] && (n->kind == KI_LOAD || n->kind == KI_STORE) && uses_lanes(e, n->idx, axis);
}

static unsigned tile_bytes(const Emit *e, DType t)
{
    unsigned bytes = (unsigned)e->lanes * (unsigned)dtype_bytes(t);
    return bytes < MOST_BYTES ? bytes : MOST_BYTES;
}

static AccessView view_of(Emit *e, uint32_t i, uint32_t axis, LV *guard)
{
    DType t = access_type(e, i);
    AccessView a = {.contiguous = true, .aligned = true};
    view_access(e, e->k->inst.at[i].idx, axis, tile_bytes(e, t) / (int64_t)dtype_bytes(t), &a, guard);
    a.contiguous &= a.lane_terms == 1;
    return a;
}

bool cuda_whole_tile(Emit *e, uint32_t i, uint32_t axis)
{
    if (!is_access(e, i, axis))
        return false;
    AccessView a = view_of(e, i, axis, NULL);
    return a.contiguous && a.aligned;
}

/* Of the accesses that step with the lanes: how many there are, and the narrowest and widest element. */
typedef struct Widths {
    uint32_t steps;
    int64_t narrowest, widest;
} Widths;

static Widths widths_of(Emit *e, uint32_t axis)
{
    Widths w = {.narrowest = 8, .widest = 1};
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!is_access(e, i, axis) || !view_of(e, i, axis, NULL).contiguous)
            continue;
        int64_t bytes = (int64_t)dtype_bytes(access_type(e, i));
        w.narrowest = bytes < w.narrowest ? bytes : w.narrowest;
        w.widest = bytes > w.widest ? bytes : w.widest;
        w.steps++;
    }
    return w;
}

bool plan_align(Emit *e, uint32_t axis)
{
    uint8_t *align = ARENA_ARRAY(e->arena, uint8_t, e->k->inst.n + 1);
    bool some = false;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!is_access(e, i, axis))
            continue;
        if (cuda_whole_tile(e, i, axis)) {
            align[i] = (uint8_t)tile_bytes(e, access_type(e, i));
            some = true;
        }
    }
    e->tile_align = align;
    return some;
}

LV align_guard(Emit *e, uint32_t axis)
{
    LV guard = NULL, *pointers = ARENA_ARRAY(e->arena, LV, MOST_BYTES + 1);
    bool *seen = ARENA_ARRAY(e->arena, bool, e->k->args.n + 1);
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        if (!e->tile_align[i])
            continue;
        view_of(e, i, axis, &guard);
        uint32_t arg = e->k->inst.at[i].arg;
        if (seen[arg])
            continue;
        seen[arg] = true;
        LV address = LLVMBuildPtrToInt(e->b, argument(e, arg), e->type[SC_I64], "");
        LV *all = &pointers[e->tile_align[i]];
        *all = *all ? LLVMBuildOr(e->b, *all, address, "") : address;
    }
    for (int64_t bytes = 2; bytes <= MOST_BYTES; bytes *= 2) {
        if (!pointers[bytes])
            continue;
        LV low = LLVMBuildAnd(e->b, pointers[bytes], l_i64(e, bytes - 1), "");
        LV holds = LLVMBuildICmp(e->b, LLVMIntEQ, low, l_i64(e, 0), "");
        guard = guard ? LLVMBuildAnd(e->b, guard, holds, "") : holds;
    }
    return guard ? guard : LLVMConstInt(e->type[SC_I1], 1, 0);
}

/* ---- lanes ---- */

enum { MOST_CODE = 4736 /* scalar operations in the code of all lanes, or of a row in registers */ };

/* Of all ops, or of those that are done for each element of a row. */
static uint32_t count_ops(Emit *e, bool r_only)
{
    uint32_t ops = 0;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        if (n->kind != KI_OP || !e->live[i] || (r_only && !e->info[i].r_level))
            continue;
        DType types[3] = {0};
        const VRef refs[3] = {n->a, n->b, n->c};
        for (int a = 0; a < op_info[n->op].arity; a++)
            types[a] = (DType)e->k->inst.at[refs[a]].dtype;
        ops += op_length(e, (Op)n->op, types, (DType)n->dtype);
    }
    return ops;
}

uint32_t plan_ops(Emit *e) { return count_ops(e, false); }

uint32_t heavy_tiles(Emit *e, const bool *loads, uint32_t most)
{
    enum { EARLY_BYTES = 64, LONG_OPS = 512 /* take so long that memory is waited for seldom; their code is long */ };
    size_t bytes = 0;
    if (plan_ops(e) > LONG_OPS)
        return 1;
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        bytes += loads[i] ? (size_t)e->lanes * dtype_bytes((DType)e->k->inst.at[i].dtype) : 0;
    while (most > 1 && most * bytes > EARLY_BYTES)
        most /= 2;
    return most;
}

/* Does a heavy body compute f64? */
static bool heavy_of_doubles(Emit *e)
{
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->live[i] && e->k->inst.at[i].kind == KI_OP && e->k->inst.at[i].dtype == DT_F64)
            return plan_ops(e) > CUDA_LIGHT_OPS;
    return false;
}

/* Sixteen bytes of the narrowest element, but no more than two accesses of the widest, or of f64 that a heavy body computes, nor more scalar
 * operations in the code of all lanes than MOST_CODE: with eight lanes a power of f64 that becomes a bool takes 198 registers, and ptxas
 * takes minutes over the longest, of which it puts kilobytes away. */
static int lanes_for(Emit *e, Widths w)
{
    int64_t widest = heavy_of_doubles(e) ? (int64_t)sizeof(double) : w.widest, lanes = MOST_BYTES / w.narrowest,
            most = 2 * MOST_BYTES / widest, ops = plan_ops(e);
    lanes = lanes < most ? lanes : most;
    while (lanes > 1 && lanes * ops > MOST_CODE)
        lanes /= 2;
    return w.steps ? (int)lanes : 1;
}

static void plan_each(Emit *e)
{
    e->vec_r = false;
    e->tile_axis = e->n_x ? (int)e->n_x - 1 : NO_AXIS;
    e->lanes = 1;
    if (!e->n_x)
        return;
    uint32_t axis = e->n_x - 1;
    int64_t size;
    e->lanes = lanes_for(e, widths_of(e, axis));
    bool fixed = kidx_is_const(e->k, e->k->axes.at[axis].size, &size);
    while (e->lanes > 1 && fixed && (e->n_x > 1 ? size % e->lanes != 0 : size < e->lanes))
        e->lanes /= 2;
    if (e->lanes > 1 && !plan_align(e, axis))
        e->lanes = 1;
    plan_transposed(e);
}

/* ---- reductions ---- */

enum { MOST_FOLDED = 128 };

/* Blocks of threads: of one row, of several short ones, of columns (large bodies leave fewer registers each); what a row in registers
 * may take: tiles of a thread, and bytes of them by the widest type they are computed in; elements that rows of any length are planned for. */
enum {
    ROW_THREADS = 256,
    SPLIT_THREADS = 512,
    SMALL_BLOCK = 128,
    COLUMN_THREADS = 512,
    COLUMN_THREADS_LIGHT = 1024,
    ROW_TILES = 16,
    ROW_BYTES = 256,
    LEAST_ROW = 512,
    COLUMN_RUN = 8 /* elements of a scan that a thread takes at once */
};

static int64_t hint_of(const Emit *e, uint32_t first, uint32_t end)
{
    int64_t n = 1;
    for (uint32_t a = first; a < end; a++) {
        int64_t size = kernel_extent(e->k, a) > 0 ? kernel_extent(e->k, a) : 1;
        n = n < INT32_MAX ? n * size : n;
    }
    return n;
}

static int64_t pow2_above(int64_t n)
{
    int64_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }
static int64_t at_least(int64_t n, int64_t least) { return n > least ? n : least; }

static bool fixed_length(const Emit *e)
{
    int64_t size;
    for (uint32_t a = e->n_x; a < e->k->axes.n; a++)
        if (!kidx_is_const(e->k, e->k->axes.at[a].size, &size))
            return false;
    return true;
}

/* Tiles of a thread in one step of a scan: loads in flight, and fewer exchanges. But warps scan all their sums at once, so no more of
 * them than lanes; and elements and sums stay in registers until what stands before the step is known: in split scans, for long. */
static void plan_scan_tiles(Emit *e)
{
    int64_t warps = e->group > WARP ? e->group / WARP : 1, each = 1, room = e->split ? 48 : 60;
    bool light_body = plan_ops(e) <= CUDA_LIGHT_OPS;
    e->scan_tiles = (uint32_t)(light_body ? COLUMN_RUN : COLUMN_RUN / 2);
    if (!e->vec_r)
        return;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        DType acc = dtype_accumulator((DType)n->dtype);
        if (inst_runs(n) && e->live[i])
            each = at_least(each, (e->lanes + (dtype_is_float(acc) ? 5 : 1)) * (dtype_bytes(acc) > 4 ? 2 : 1));
    }
    int64_t most = at_most(light_body ? 4 : 1, WARP / warps);
    while (most > 1 && most * each > room)
        most /= 2;
    e->scan_tiles = (uint32_t)most;
}

/* How a split sum of a heavy body goes to threads: those of a block, of how many lanes (0: as whole accesses have it), tiles on their
 * way, and tasks that a block of the order is. The order does not know of it. */
static const struct SplitWay {
    int threads, lanes, tiles, cut;
} split_ways[] = {{ROW_THREADS, 0, 1, 1},
                  {SPLIT_THREADS, CUDA_SPLIT_LANES, CUDA_SPLIT_TILES, 1},
                  {SPLIT_THREADS, 1, CUDA_CUT_TILES, 2},
                  {SPLIT_THREADS / 2, 1, CUDA_CUT_TILES, 4}};

/*
 * Clocks of a split sum of a heavy body: of the multiprocessor with the most blocks of threads. It holds as many at once as
 * 64 registers a thread leave, turn after turn; what remains for the last turn, be it one block, takes as long as its instructions or as
 * one thread for itself, which waits for memory once a step of some tiles (step_loop in cuda/reduce.c). Looking whether there are so many
 * costs a few instructions, and more where each element is looked for by itself.
 */
static double split_clocks(const Emit *e, double blocks, double ops, const struct SplitWay *w)
{
    enum { ISSUE_A_CLOCK = 128, LATENCY = 700, HELD = 1024 };
    const double dependent = 1.3; /* clocks of an instruction in a warp with little beside it */
    const double more[] = {1, 1.04, 1.13};
    double tasks = blocks * w->cut, elements = e->order.block / (double)w->cut, steps = e->order.block / (double)e->order.lanes;
    double sms = (double)cuda_multiprocessors(e->cuda), at_once = HELD / (double)w->threads;
    double issue = elements * ops * more[w->cut > 1 ? 2 : w->tiles > 1] / ISSUE_A_CLOCK,
           alone = steps / w->tiles * LATENCY + elements / w->threads * ops * dependent;
    double turns = (double)(int64_t)(tasks / (sms * at_once)), rest = (double)(int64_t)((tasks - turns * sms * at_once + sms - 1) / sms);
    double turn = at_once * issue > alone ? at_once * issue : alone, last = rest * issue > alone ? rest * issue : alone;
    return turns * turn + (rest > 0 ? last : 0);
}

/* The way that takes the fewest clocks; NULL: there is no choice. With places beside them fewer threads are held at once than the model has. */
static const struct SplitWay *split_way(Emit *e, int lanes, int64_t x, int64_t r)
{
    enum { MACHINE_OPS = 2 /* fast mode: instructions of a device are about half of what tapes are counted as */ };
    double ops = (double)plan_ops(e) / MACHINE_OPS, blocks = (double)x * (double)((r + e->order.block - 1) / e->order.block);
    if (!e->split || e->scan_group || plan_ops(e) <= CUDA_LIGHT_OPS || lanes <= CUDA_SPLIT_LANES)
        return NULL;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        bool wide = e->info[i].r_level && dtype_bytes((DType)n->dtype) > sizeof(float);
        if (e->live[i] && (wide || inst_has_place(n)))
            return NULL;
    }
    const struct SplitWay *best = split_ways;
    for (size_t i = 1; i < sizeof split_ways / sizeof *split_ways; i++)
        if (split_clocks(e, blocks, ops, &split_ways[i]) < split_clocks(e, blocks, ops, best))
            best = &split_ways[i];
    return best;
}

/* Registers of 32 bits that hold what one lane folds. */
static int64_t folded_registers(const Emit *e)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        n += e->live[i] && inst_reduces(&e->k->inst.at[i]) ? ((int64_t)dtype_bytes((DType)e->k->inst.at[i].dtype) + 3) / 4 : 0;
    return n;
}

/* Lanes along r, as long as what they fold leaves half of the registers to the body, and the threads of a row. */
static void plan_group(Emit *e, int lanes, int64_t r)
{
    int64_t size, x = hint_of(e, 0, e->n_x);
    const struct SplitWay *way = split_way(e, lanes, x, r);
    e->lanes = way && way->lanes ? way->lanes : lanes;
    e->cut = way ? way->cut : 1;
    if (kidx_is_const(e->k, e->k->axes.at[e->k->axes.n - 1].size, &size))
        while (e->lanes > 1 && (size % e->lanes || size < e->lanes))
            e->lanes /= 2;
    while (e->lanes > 1 && e->lanes * folded_registers(e) > MOST_FOLDED)
        e->lanes /= 2;
    if (e->lanes > 1 && !plan_align(e, UINT32_MAX))
        e->lanes = 1;
    /* four tiles a thread keep enough in flight; where that leaves too few threads, more of them instead */
    int64_t tiles = (r + e->lanes - 1) / e->lanes, some = 4;
    while (some > 1 && x * at_most(tiles, INT32_MAX) / some < cuda_busy(e->cuda))
        some /= 2;
    int64_t most = at_most(way ? way->threads : ROW_THREADS, e->order.lanes / e->lanes);
    if (e->split && e->scan_group)
        most = SCAN_SPLIT_THREADS; /* whatever the lanes: its order asks for no certain number of them */
    e->group = (int)(e->split ? most : at_most(pow2_above((tiles + some - 1) / some), most));
    e->groups_per_block = e->group <= WARP ? (int)at_least(at_most(SMALL_BLOCK / e->group, SMALL_BLOCK), 1) : 1;
    if (e->scan_group)
        plan_scan_tiles(e);
}

/* A row of r elements in the registers of its threads, where it fits. */
static bool keep_row(Emit *e, int64_t r)
{
    int64_t widest = 1, unit = (int64_t)e->group * e->lanes, kept = (r + unit - 1) / unit, each = kept * e->lanes;
    for (uint32_t i = 0; i < e->k->inst.n; i++)
        if (e->live[i] && e->info[i].r_level)
            widest = at_least(widest, (int64_t)dtype_bytes((DType)e->k->inst.at[i].dtype));
    if (e->scan_group && (kept * e->group > WARP * WARP || kept > (int64_t)e->scan_tiles))
        return false;
    if (kept > ROW_TILES || each * widest > ROW_BYTES || each * (int64_t)count_ops(e, true) > MOST_CODE)
        return false;
    e->row_tiles = (uint32_t)kept;
    e->row_slots = (uint32_t)at_least(at_most(pow2_above(kept), e->order.lanes / unit), 1);
    return true;
}

static void plan_rows(Emit *e)
{
    int64_t r = hint_of(e, e->n_x, e->k->axes.n), length;
    e->vec_r = true;
    if (!fixed_length(e)) /* the next call may have long rows: one thread each would take for ever */
        r = at_least(r, LEAST_ROW);
    bool empty = e->n_r == 1 && kidx_is_const(e->k, e->k->axes.at[e->n_x].size, &length) && !length;
    int lanes = lanes_for(e, widths_of(e, UINT32_MAX));
    plan_group(e, lanes, r);
    if (e->split || empty || keep_row(e, r))
        return;
    /* narrow elements: with tiles of less than 16 bytes more threads can share a row, whose order has so many lanes */
    for (int fewer = e->lanes / 2; fewer * ROW_THREADS >= e->order.lanes; fewer /= 2) {
        plan_group(e, fewer, r);
        if (keep_row(e, r))
            return;
    }
    plan_group(e, lanes, r);
}

/* Does a thread get by with a 1,024th of the registers? An argmin carries values and places of several elements, and the
 * coordinates of several leaves along several axes take as much room: sm_80 spills. Where there is a barrier before points are stored,
 * what other threads left is loaded before it, and added up only behind. */
static bool light(Emit *e)
{
    if (e->n_r > 1 || overwrites_points(e))
        return false;
    for (uint32_t i = 0; i < e->k->inst.n; i++) {
        const KInst *n = &e->k->inst.at[i];
        if (inst_has_place(n) && e->live[i])
            return false;
    }
    return plan_ops(e) <= CUDA_LIGHT_OPS;
}

/* One x point a thread, threads along r as the device has room for them. */
static void plan_columns(Emit *e)
{
    int64_t x = hint_of(e, 0, e->n_x), r = hint_of(e, e->n_x, e->k->axes.n), columns = at_most(pow2_above(x), WARP);
    e->lanes = 1;
    int64_t room = cuda_room(e->cuda), most = light(e) && !e->scan_group ? COLUMN_THREADS_LIGHT : COLUMN_THREADS;
    int64_t each = e->scan_group ? COLUMN_RUN : 4;
    int64_t wanted = e->in_order ? 1 : pow2_above((room + x - 1) / x);
    wanted = at_most(at_most(wanted, most / columns), at_least(pow2_above((r + each - 1) / each), 1));
    if (e->split)
        wanted = ROW_THREADS / columns;
    e->group = (int)at_most(wanted, WARP);
    e->groups_per_block = (int)at_least(columns, at_most(SMALL_BLOCK / e->group, pow2_above(x)));
    if (e->scan_group)
        plan_scan_tiles(e);
}

void plan_cuda(Emit *e)
{
    const Kernel *k = e->k;
    e->tile_axis = e->transposed_axis = NO_AXIS;
    e->lanes = e->group = e->groups_per_block = e->cut = 1;
    if (k->form != FORM_LOOPS)
        return;
    if (!e->n_stages) {
        e->scalars_anew = e->launch->by_pointer; /* arguments by value are operands, no registers */
        plan_each(e);
        return;
    }
    bool scratch = false;
    for (uint32_t a = 0; a < k->args.n; a++)
        scratch |= k->args.at[a].kind == ARG_SCRATCH;
    bool scans = false, sums = false;
    for (uint32_t i = 0; i < k->inst.n; i++) {
        scans |= inst_runs(&k->inst.at[i]) && e->live[i];
        sums |= inst_reduces(&k->inst.at[i]) && e->live[i];
    }
    const char *serial = scans ? scan_serial(e) : NULL;
    if (scans && !serial) {
        e->scan_group = true;
        e->in_order = false;
    } else if (scans) {
        const char *text = arena_printf(e->arena, "// one thread a line: %s", serial);
        LLVMSetModuleInlineAsm2(e->module, text, strlen(text));
    }
    e->split = k->split && scratch && !e->in_order && !(e->scan_group && (sums || e->n_stages > 1));
    bool along_x = e->n_x && k->vec_axis == e->n_x - 1 && !(e->scan_group && e->split);
    if (e->in_order || along_x)
        plan_columns(e);
    else
        plan_rows(e);
}

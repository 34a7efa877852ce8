/*
 * The tables of folds and orders as data, and fold_run: the reference that executes any fold in any order. Interpreter and tests call it.
 *
 * Folds stand side by side, so a state is `width` values, and with lanes [lane][width]. Elements lie in the same way, so a step of all lanes is one
 * run of a tape over lanes * width values:
 *
 *     lanes     state [lanes][width] += elements [i .. i + lanes)[width]   for each i of a block; then halves of the state are merged
 *     chain     state [width]        += element  [i][width]
 *     pairs     state [width]        += elements [i + 1][width], then [i][width]      of dots of f32 alone, which are what bf16 is exactly
 */
#include "ir/fold.h"
#include "ir/base/os.h"
#include "ir/tape_run.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* ---- tables ---- */

enum { ALL = true, INTEGERS = false };

const FoldInfo fold_info[FOLD_COUNT] = {
#define FOLD(id, text, op, step, exact) {text, OP_##op, OP_##step, 1, 1, exact},
#define FOLD_OWN(id, text, op, operands, parts, exact) {text, OP_##op, OP_COUNT, operands, parts, exact},
#include "ir/folds.def"
#undef FOLD
#undef FOLD_OWN
};

Fold fold_of(Op op)
{
    if (op == OP_CUMSUM)
        return FOLD_SUM;
    int fold = 0;
    while (fold < FOLD_COUNT && fold_info[fold].op != op)
        fold++;
    return (Fold)fold;
}

DType fold_state(Fold fold, DType element) { return fold_has_place(fold) && element == DT_BOOL ? DT_U8 : dtype_accumulator(element); }

uint64_t fold_start(Fold fold, DType t)
{
    bool is_float = dtype_is_float(t);
    switch (fold) {
    case FOLD_SUM: return is_float ? scalar_from_double(t, -0.0) : 0;
    case FOLD_PROD: return scalar_from_int(t, 1);
    case FOLD_MAX:
    case FOLD_ARGMAX: return is_float ? scalar_from_double(t, -(double)INFINITY) : scalar_least_int(t);
    case FOLD_MIN:
    case FOLD_ARGMIN: return is_float ? scalar_from_double(t, (double)INFINITY) : scalar_greatest_int(t);
    case FOLD_ALL: return scalar_greatest_int(t);
    case FOLD_ANY:
    case FOLD_DOT:
    case FOLD_COUNT: return 0;
    }
    return 0;
}

uint64_t fold_empty(Fold fold, DType state) { return fold == FOLD_SUM || fold_has_place(fold) ? 0 : fold_start(fold, state); }

typedef struct OrderRow {
    uint8_t fold, running;
    DType of; /* DT_COUNT: all floats */
    OrderDevice device;
    MathMode math;
    Order order;
} OrderRow;

static const OrderRow rows[] = {
/* clang-format off */
#define ONCE 0
#define RUNNING 1
#define LANES(l, b) {.kind = ORD_LANES, .lanes = l, .block = b}
#define LANES_TREE(l, b) {.kind = ORD_LANES, .lanes = l, .block = b, .tree = true}
#define CHAIN(b) {.kind = ORD_CHAIN, .block = b}
#define PAIRS(b) {.kind = ORD_PAIRS, .block = b}
#define PARTS {.kind = ORD_PARTS}
#define SERIAL {.kind = ORD_SERIAL}
#define HALVES {.kind = ORD_HALVES}
#define FLOATS DT_COUNT
#define BF16 DT_BF16
#define ORDER(fold, running, dtypes, device, mode, ...) {FOLD_##fold, running, dtypes, ORDER_##device, MATH_##mode, __VA_ARGS__},
#include "ir/orders.def"
#undef ORDER
#undef FLOATS
#undef BF16
    /* clang-format on */
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Every row is of floats: integers are exact in any order. */
static bool row_is_for(const OrderRow *row, Fold fold, bool running, DType of)
{
    return row->fold == fold && row->running == running && (row->of == DT_COUNT ? dtype_is_float(of) : row->of == of);
}

/* What a host that multiplies by pairs has no row for it does as any host. */
static bool row_is_at(const OrderRow *row, OrderDevice device)
{
    return row->device == device || (device == ORDER_HOST_PAIRS && row->device == ORDER_HOST);
}

Order order_of(Fold fold, bool running, DType of, OrderDevice device, MathMode math)
{
    for (int i = 0; i < ROWS; i++)
        if (row_is_for(&rows[i], fold, running, of) && row_is_at(&rows[i], device) && rows[i].math == math)
            return rows[i].order;
    return (Order){.kind = ORD_ANY};
}

bool order_known(Fold fold, bool running, DType of, Order order)
{
    bool any = false;
    for (int i = 0; i < ROWS; i++) {
        if (!row_is_for(&rows[i], fold, running, of))
            continue;
        any = true;
        if (order_same(rows[i].order, order))
            return true;
    }
    return !any && order_same(order, (Order){.kind = ORD_ANY});
}

const char *const order_kind_text[ORDER_KINDS] = {
    [ORD_ANY] = "any",     [ORD_LANES] = "lanes",   [ORD_CHAIN] = "chain",  [ORD_PAIRS] = "pairs",
    [ORD_PARTS] = "parts", [ORD_SERIAL] = "serial", [ORD_HALVES] = "halves"};

void order_print(Order order, Str *out)
{
    str_printf(out, "%s", order.kind < ORDER_KINDS ? order_kind_text[order.kind] : "?");
    if (order.kind == ORD_LANES)
        str_printf(out, " %u", order.lanes);
    if (order.block)
        str_printf(out, " block %u", order.block);
    if (order.tree)
        str_printf(out, " tree");
}

/* ---- the reference ---- */

enum { PARTS_MOST = 2, PLACE = 1, SIDE_BY_SIDE = 1024 /* values that a step of any order takes */ };

/* Values of `width` folds for each of some lanes. */
typedef struct State {
    void *part[PARTS_MOST];
} State;

typedef struct Folding {
    Fold fold;
    DType type[PARTS_MOST];
    size_t bytes[PARTS_MOST], width;
    const FoldInput *in;
    const Tape *tape[FOLD_TAPES][PARTS_MOST];
    void *room[PARTS_MOST]; /* of a result before it is the state, of an operand that is the same for all folds, of places */
    size_t room_for;
    int parts;
} Folding;

static void *at_value(const Folding *f, const State *s, int part, size_t i) { return (char *)s->part[part] + i * f->bytes[part]; }

static void state_free(State *s)
{
    for (int p = 0; p < PARTS_MOST; p++)
        os_free(s->part[p]);
}

static bool state_make(const Folding *f, State *s, size_t n)
{
    bool ok = true;
    *s = (State){0};
    for (int p = 0; p < f->parts; p++)
        ok &= (s->part[p] = os_alloc(n * f->bytes[p] + 1)) != NULL;
    if (!ok)
        state_free(s);
    return ok;
}

/* States [0, lanes) of a block whose first element is `from`. */
static void start(const Folding *f, const State *s, size_t lanes, size_t from)
{
    uint64_t bits = fold_start(f->fold, f->type[0]);
    for (size_t i = 0; i < lanes * f->width; i++) {
        scalar_store(f->type[0], bits, at_value(f, s, 0, i));
        if (f->parts == 2)
            ((int64_t *)s->part[PLACE])[i] = (int64_t)(from + i / f->width);
    }
}

/* Values [0, n) of `s` become those of the tapes of s and operands; `s` and what is made do not lie at one place while it is made. */
static bool advance(const Folding *f, FoldTape which, const State *s, size_t n, const void *const *operand, int operands)
{
    const void *in[2 * PARTS_MOST];
    DType types[2 * PARTS_MOST];
    int all = f->parts + operands;
    for (int k = 0; k < all; k++) {
        in[k] = k < f->parts ? s->part[k] : operand[k - f->parts];
        types[k] = f->parts == 2 ? f->type[k % 2] : f->type[0];
    }
    for (int p = 0; p < f->parts; p++)
        if (!tape_run(f->tape[which][p], types, f->type[p], n, in, f->room[p]))
            return false;
    for (int p = 0; p < f->parts; p++)
        memcpy(s->part[p], f->room[p], n * f->bytes[p]);
    return true;
}

/* Elements [i, i + lanes) to as many lanes. */
static bool step(const Folding *f, const State *s, size_t lanes, size_t i)
{
    const void *operand[2];
    size_t n = lanes * f->width;
    const FoldInput *in = f->in;
    int operands = fold_info[f->fold].operands;
    for (int k = 0; k < operands; k++)
        operand[k] = (const char *)in[k].at + i * in[k].step * f->bytes[0];
    if (f->fold == FOLD_DOT && in[0].same && !in[1].same && f->type[0] == DT_F32) {
        tape_axpy_f32(n, s->part[0], *(const float *)operand[0], operand[1]);
        return true;
    }
    if (f->fold == FOLD_DOT && in[0].same && !in[1].same && f->type[0] == DT_F64) {
        tape_axpy_f64(n, s->part[0], *(const double *)operand[0], operand[1]);
        return true;
    }
    for (int k = 0; k < operands; k++) {
        if (!in[k].same)
            continue;
        char *all = (char *)f->room[1] + (size_t)k * f->width * f->bytes[0];
        for (size_t j = 0; j < f->width; j++)
            memcpy(all + j * f->bytes[0], operand[k], f->bytes[0]);
        operand[k] = all;
    }
    if (f->parts == 1)
        return advance(f, FOLD_STEP, s, n, operand, operands);
    int64_t *place = (int64_t *)f->room[1] + f->room_for;
    for (size_t j = 0; j < n; j++)
        place[j] = (int64_t)(i + j / f->width);
    operand[PLACE] = place;
    return advance(f, FOLD_STEP, s, n, operand, 2);
}

/* States [0, lanes) take those from lane `from` on. */
static bool merge(const Folding *f, const State *s, size_t lanes, const State *later, size_t from)
{
    const void *operand[PARTS_MOST] = {NULL};
    for (int p = 0; p < f->parts; p++)
        operand[p] = at_value(f, later, p, from * f->width);
    return advance(f, FOLD_MERGE, s, lanes * f->width, operand, f->parts);
}

/* How many of the lanes n elements need: those without one hold the start value, which changes nothing. */
static size_t lanes_of(size_t lanes, size_t n)
{
    while (lanes / 2 >= n && lanes > 1)
        lanes /= 2;
    return lanes;
}

/* Elements [from, to) by lanes and a tree into lane 0; `s` has room for lanes_of(lanes, to - from). */
static bool by_lanes(const Folding *f, const State *s, size_t lanes, size_t from, size_t to)
{
    lanes = lanes_of(lanes, to - from);
    start(f, s, lanes, from);
    for (size_t i = from; i < to; i += lanes)
        if (!step(f, s, to - i < lanes ? to - i : lanes, i))
            return false;
    for (size_t half = lanes / 2; half; half /= 2)
        if (!merge(f, s, half, s, half))
            return false;
    return true;
}

static bool by_chain(const Folding *f, const State *s, size_t from, size_t to)
{
    start(f, s, 1, from);
    for (size_t i = from; i < to; i++)
        if (!step(f, s, 1, i))
            return false;
    return true;
}

/* What the instruction reads and writes: no number of a smaller exponent than FLT_MIN has. */
static float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }

/* Rounded once. What rounds up to FLT_MIN among smaller numbers, but would not with as many bits as larger ones have, is too small: there
 * the sum is exact in f64. */
static float flushed_fma(float a, float b, float c)
{
    float x = flushed(a), y = flushed(b), z = flushed(c), sum = fmaf(x, y, z);
    bool rounded_up = fabsf(sum) == FLT_MIN && fabs((double)x * y + z) < FLT_MIN * (1 - 0x1p-25);
    return rounded_up ? copysignf(0, sum) : flushed(sum);
}

float fold_pair(float sum, const float a[2], const float b[2]) { return flushed_fma(a[0], b[0], flushed_fma(a[1], b[1], sum)); }

/* Behind the last element of an odd number of them there is a zero in both factors. */
static bool by_pairs(const Folding *f, const State *s, size_t from, size_t to)
{
    start(f, s, 1, from);
    float *sum = s->part[0];
    for (size_t i = from; i < to; i += 2)
        for (size_t j = 0; j < f->width; j++) {
            float x[2][2] = {{0}};
            for (int k = 0; k < 2; k++)
                for (size_t u = 0; u < 2 && i + u < to; u++)
                    x[k][u] = ((const float *)f->in[k].at)[(i + u) * f->in[k].step + (f->in[k].same ? 0 : j)];
            sum[j] = fold_pair(sum[j], x[0], x[1]);
        }
    return true;
}

/* The results of blocks, [blocks][width], as elements. Only sums and products have them, whose states have one part. */
static bool tree_of_blocks(const Folding *f, const State *s, const State *blocks, size_t n, size_t lanes)
{
    FoldInput in = {.at = blocks->part[0], .step = f->width};
    Folding again = *f;
    again.in = &in;
    return by_lanes(&again, s, lanes, 0, n);
}

static bool in_blocks(const Folding *f, Order order, size_t n, const State *s, const State *blocks)
{
    size_t block = order.block && order.block < n ? order.block : n, done = 0;
    for (size_t from = 0; from < n; from += block, done++) {
        size_t to = n - from < block ? n : from + block;
        bool done_well = order.kind == ORD_LANES   ? by_lanes(f, s, order.lanes, from, to)
                         : order.kind == ORD_PAIRS ? by_pairs(f, s, from, to)
                                                   : by_chain(f, s, from, to);
        if (!done_well)
            return false;
        if (!order.tree && done) {
            if (!merge(f, blocks, 1, s, 0))
                return false;
            continue;
        }
        size_t at = order.tree ? done * f->width : 0;
        for (int p = 0; p < f->parts; p++)
            memcpy(at_value(f, blocks, p, at), s->part[p], f->width * f->bytes[p]);
    }
    if (!order.tree)
        return true;
    if (!tree_of_blocks(f, s, blocks, done, order.lanes))
        return false;
    memcpy(blocks->part[0], s->part[0], f->width * f->bytes[0]);
    return true;
}

/* The order to take where any gives the same bits: one that keeps tapes busy, or what a place and a dot need. */
static Order any_order(const Folding *f)
{
    size_t lanes = 1;
    while (lanes < SIDE_BY_SIDE && lanes * f->width < SIDE_BY_SIDE)
        lanes *= 2;
    return f->fold == FOLD_DOT ? (Order){.kind = ORD_CHAIN} : (Order){.kind = ORD_LANES, .lanes = (uint16_t)lanes};
}

static bool once(Folding *f, Order order, size_t n, void *out)
{
    State s, blocks;
    if (order.kind == ORD_ANY)
        order = any_order(f);
    if (order.kind == ORD_LANES && order.block == 0)
        order.lanes = (uint16_t)lanes_of(order.lanes, n);
    size_t block = order.block && order.block < n ? order.block : n, n_blocks = order.tree ? (n + block - 1) / block : 1;
    size_t lanes = order.kind == ORD_LANES ? lanes_of(order.lanes, block > n_blocks ? block : n_blocks) : 1;
    bool ok = true;
    f->room_for = lanes * f->width;
    for (int p = 0; p < PARTS_MOST; p++) /* the second one holds an operand twice, or parts and places */
        ok &= (f->room[p] = os_alloc(2 * f->room_for * (f->parts == 2 ? sizeof(int64_t) : f->bytes[0]) + 1)) != NULL;
    ok = ok && state_make(f, &s, f->room_for);
    if (ok) {
        ok = state_make(f, &blocks, n_blocks * f->width);
        if (ok) {
            ok = in_blocks(f, order, n, &s, &blocks);
            memcpy(out, blocks.part[f->parts - 1], ok ? f->width * f->bytes[f->parts - 1] : 0);
            state_free(&blocks);
        }
        state_free(&s);
    }
    for (int p = 0; p < PARTS_MOST; p++)
        os_free(f->room[p]);
    return ok;
}

/* Rows [from, to) of elements, in place, by halves; `base` is what stands before them, `sum` becomes theirs. Both have room for a row behind them
 * for each level of the tree below. */
static bool halves(const Folding *f, char *x, size_t n, char *base, char *sum)
{
    size_t row = f->width * f->bytes[0], half = 1;
    const DType types[2] = {f->type[0], f->type[0]};
    const Tape *add = f->tape[FOLD_STEP][0];
    if (n == 1) {
        memcpy(sum, x, row);
        return tape_run(add, types, f->type[0], f->width, (const void *const[]){base, sum}, x);
    }
    while (2 * half < n)
        half *= 2;
    char *next = base + row, *rest = sum + row;
    return halves(f, x, half, base, sum) && tape_run(add, types, f->type[0], f->width, (const void *const[]){base, sum}, next) &&
           halves(f, x + half * row, n - half, next, rest) &&
           tape_run(add, types, f->type[0], f->width, (const void *const[]){sum, rest}, f->room[0]) && memcpy(sum, f->room[0], row);
}

static bool running_halves(Folding *f, size_t n, void *out)
{
    enum { LEVELS = 66 };
    size_t row = f->width * f->bytes[0];
    char *base = os_alloc(LEVELS * row + 1), *sum = os_alloc(LEVELS * row + 1);
    State s = {{base, NULL}};
    f->room[0] = os_alloc(row + 1);
    bool ok = base && sum && f->room[0];
    if (ok) {
        start(f, &s, 1, 0);
        ok = halves(f, out, n, base, sum);
    }
    os_free(base);
    os_free(sum);
    os_free(f->room[0]);
    return ok;
}

static bool run_along(Folding *f, Order order, size_t n, void *out)
{
    size_t row = f->width * f->bytes[0];
    for (size_t i = 0; i < n; i++)
        memcpy((char *)out + i * row, (const char *)f->in->at + i * f->in->step * f->bytes[0], row);
    if (order.kind == ORD_HALVES)
        return running_halves(f, n, out);
    char *own = os_alloc(row + 1);
    const DType types[2] = {f->type[0], f->type[0]};
    bool ok = own != NULL;
    for (size_t i = 1; i < n && ok; i++) {
        char *x = (char *)out + i * row;
        memcpy(own, x, row);
        ok = tape_run(f->tape[FOLD_STEP][0], types, f->type[0], f->width, (const void *const[]){x - row, own}, x);
    }
    os_free(own);
    return ok;
}

bool fold_run(Fold fold, Order order, bool running, DType state, size_t n, size_t width, const FoldInput *in, void *out)
{
    Folding f = {.fold = fold, .type = {state, DT_I64}, .width = width, .in = in, .parts = fold_info[fold].parts};
    for (int p = 0; p < f.parts; p++) {
        f.bytes[p] = dtype_bytes(f.type[p]);
        for (int t = 0; t < FOLD_TAPES; t++)
            if (!(f.tape[t][p] = fold_tape(fold, (FoldTape)t, (unsigned)p, state)))
                return false;
    }
    if (width == 0)
        return true;
    if (n == 0) {
        for (size_t j = 0; j < width && !running; j++)
            scalar_store(f.type[f.parts - 1], fold_empty(fold, state), (char *)out + j * f.bytes[f.parts - 1]);
        return true;
    }
    return running ? run_along(&f, order, n, out) : once(&f, order, n, out);
}

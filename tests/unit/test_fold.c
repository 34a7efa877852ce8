/*
 * Folds and their orders: fold_run against the definition written out element by element, for all folds, dtypes and orders, odd lengths, NaN,
 * infinities and zeros of both signs; and the table of orders.
 */
#include "tests/unit/scalars.h"

#include "ir/base/os.h"
#include "ir/fold.h"
#include "tests/support/slice.h"
#include "tests/unit/arena.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <stdio.h>

TestSuite(fold, .init = setup, .fini = teardown);

enum { LONGEST = 40000 };

/* ---- the definition, of one fold ---- */

static uint64_t step(Fold fold, DType t, uint64_t a, uint64_t b) { return run_bits((Op)fold_info[fold].step, t, t, a, b); }

static uint64_t by_lanes(Fold fold, DType t, const uint64_t *x, size_t n, size_t lanes)
{
    uint64_t lane[1024];
    for (size_t j = 0; j < lanes; j++)
        lane[j] = fold_start(fold, t);
    for (size_t i = 0; i < n; i++)
        lane[i % lanes] = step(fold, t, lane[i % lanes], x[i]);
    for (size_t s = lanes / 2; s; s /= 2)
        for (size_t j = 0; j < s; j++)
            lane[j] = step(fold, t, lane[j], lane[j + s]);
    return lane[0];
}

static uint64_t want_once(Fold fold, DType t, Order order, const uint64_t *x, size_t n)
{
    static uint64_t block[LONGEST];
    size_t size = order.block ? order.block : n, blocks = 0;
    if (n == 0)
        return fold == FOLD_SUM ? 0 : fold_start(fold, t);
    for (size_t from = 0; from < n; from += size) {
        size_t length = n - from < size ? n - from : size;
        if (order.kind == ORD_LANES) {
            block[blocks++] = by_lanes(fold, t, x + from, length, order.lanes);
            continue;
        }
        uint64_t chain = fold_start(fold, t);
        for (size_t i = 0; i < length; i++)
            chain = step(fold, t, chain, x[from + i]);
        block[blocks++] = chain;
    }
    if (order.tree)
        return by_lanes(fold, t, block, blocks, order.lanes);
    uint64_t total = block[0];
    for (size_t i = 1; i < blocks; i++)
        total = step(fold, t, total, block[i]);
    return total;
}

static uint64_t multiply_add(DType t, uint64_t a, uint64_t b, uint64_t sum)
{
    if (t == DT_F32)
        return scalar_from_double(
            t, (double)fmaf((float)scalar_to_double(t, a), (float)scalar_to_double(t, b), (float)scalar_to_double(t, sum)));
    if (t == DT_F64)
        return scalar_from_double(t, fma(scalar_to_double(t, a), scalar_to_double(t, b), scalar_to_double(t, sum)));
    return run_bits(OP_ADD, t, t, run_bits(OP_MUL, t, t, a, b), sum);
}

static uint64_t want_dot(DType t, Order order, const uint64_t *a, const uint64_t *b, size_t n)
{
    uint64_t total = 0;
    size_t size = order.block ? order.block : n;
    for (size_t from = 0; from < n; from += size) {
        uint64_t sum = 0;
        for (size_t i = from; i < n && i < from + size; i++)
            sum = multiply_add(t, a[i], b[i], sum);
        total = from ? run_bits(OP_ADD, t, t, total, sum) : sum;
    }
    return total;
}

/* By pairs, as the instruction does it; the last of an odd number with a zero beside it. */
static uint64_t want_pairs(const uint64_t *a, const uint64_t *b, size_t n, size_t size)
{
    float total = 0;
    for (size_t from = 0; from < n; from += size) {
        float sum = 0;
        for (size_t i = from; i < n && i < from + size; i += 2) {
            bool odd = i + 1 == n;
            const float x[2] = {(float)scalar_to_double(DT_F32, a[i]), odd ? 0 : (float)scalar_to_double(DT_F32, a[i + 1])};
            const float y[2] = {(float)scalar_to_double(DT_F32, b[i]), odd ? 0 : (float)scalar_to_double(DT_F32, b[i + 1])};
            sum = fold_pair(sum, x, y);
        }
        total = from ? total + sum : sum;
    }
    return scalar_from_double(DT_F32, (double)total);
}

static bool beats(DType t, bool max, uint64_t a, uint64_t b)
{
    if (dtype_is_float(t) && (isnan(scalar_to_double(t, a)) || isnan(scalar_to_double(t, b))))
        return isnan(scalar_to_double(t, b)) && !isnan(scalar_to_double(t, a));
    return run_bits(max ? OP_GT : OP_LT, t, DT_BOOL, b, a);
}

static uint64_t want_place(DType t, bool max, const uint64_t *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (beats(t, max, x[best], x[i]))
            best = i;
    return best;
}

/* Element i of n, whose sums begin with what stands before them. */
static void want_halves(DType t, uint64_t *x, size_t n, uint64_t base, uint64_t *sum)
{
    uint64_t low, rest;
    size_t half = 1;
    if (n == 1) {
        *sum = x[0];
        x[0] = run_bits(OP_ADD, t, t, base, x[0]);
        return;
    }
    while (2 * half < n)
        half *= 2;
    want_halves(t, x, half, base, &low);
    want_halves(t, x + half, n - half, run_bits(OP_ADD, t, t, base, low), &rest);
    *sum = run_bits(OP_ADD, t, t, low, rest);
}

/* ---- data ---- */

static uint64_t element(DType t, uint64_t *state, bool odd)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e30, -1e-30, 1};
    uint64_t r = random64(state);
    if (!dtype_is_float(t))
        return t == DT_BOOL ? r & 1 : scalar_from_int(t, (int64_t)(odd ? r : r % 7));
    if (odd && r % 5 == 0)
        return scalar_from_double(t, special[r / 5 % 8]);
    return scalar_from_double(t, odd && r % 5 == 1 ? -0.0 : (double)(int64_t)(r >> 1) * 0x1p-61 - 1);
}

static bool same(DType t, uint64_t a, uint64_t b)
{
    return a == b || (dtype_is_float(t) && isnan(scalar_to_double(t, a)) && isnan(scalar_to_double(t, b)));
}

/* Those beyond 10,000 in turns, where runs take slices (under sanitizers). */
static const size_t lengths[] = {0, 1, 2, 3, 5, 7, 31, 33, 63, 64, 65, 127, 255, 256, 257, 513, 999, 1024, 1025, 16385, 37000};
static const size_t widths[] = {1, 3, 17};

static void check(Fold fold, DType t, Order order, bool running, size_t n, size_t width, bool odd)
{
    size_t bytes = dtype_bytes(t), places = fold_has_place(fold) ? 8 : bytes, row = fold == FOLD_DOT ? 1 : width;
    uint64_t state = n * 31 + width, *x[2];
    char *packed[2], *out = calloc((running ? n : 1) * width + 1, 8);
    for (int k = 0; k < 2; k++) {
        size_t each = k ? width : row;
        x[k] = calloc(n * each + 1, sizeof *x[k]);
        packed[k] = calloc(n * each + 1, 8);
        for (size_t i = 0; i < n * each; i++) {
            x[k][i] = element(t, &state, odd);
            scalar_store(t, x[k][i], packed[k] + i * bytes);
        }
    }
    FoldInput in[2] = {{packed[0], row, fold == FOLD_DOT}, {packed[1], width, false}};
    cr_assert(fold_run(fold, order, running, t, n, width, in, out));
    uint64_t *one[2] = {calloc(n + 1, 8), calloc(n + 1, 8)};
    for (size_t j = 0; j < width; j++) {
        for (size_t i = 0; i < n; i++) {
            one[0][i] = x[0][i * row + (fold == FOLD_DOT ? 0 : j)];
            one[1][i] = x[1][i * width + j];
        }
        uint64_t sum;
        if (running && order.kind == ORD_HALVES && n)
            want_halves(t, one[0], n, fold_start(fold, t), &sum);
        else
            for (size_t i = 1; i < n && running; i++)
                one[0][i] = run_bits(OP_ADD, t, t, one[0][i - 1], one[0][i]);
        for (size_t i = 0; i < n && running; i++)
            cr_assert(same(t, scalar_load(t, out + (i * width + j) * bytes), one[0][i]), "%s of %zu, element %zu", dtype_name(t), n, i);
        if (running)
            continue;
        uint64_t got = scalar_load(fold_has_place(fold) ? DT_I64 : t, out + j * places);
        uint64_t want = order.kind == ORD_PAIRS ? want_pairs(one[0], one[1], n, order.block)
                        : fold == FOLD_DOT      ? want_dot(t, order, one[0], one[1], n)
                        : fold_has_place(fold)  ? want_place(t, fold == FOLD_ARGMAX, one[0], n)
                                                : want_once(fold, t, order, one[0], n);
        cr_assert(same(fold_has_place(fold) ? DT_I64 : t, got, want), "%s %s of %zu, fold %zu of %zu: got %llx, want %llx",
                  fold_info[fold].text, dtype_name(t), n, j, width, (unsigned long long)got, (unsigned long long)want);
    }
    for (int k = 0; k < 2; k++) {
        free(x[k]);
        free(packed[k]);
        free(one[k]);
    }
    free(out);
}

static bool takes(Fold fold, DType t)
{
    bool is_bool = t == DT_BOOL;
    return fold == FOLD_ANY || fold == FOLD_ALL ? is_bool : !is_bool && t != DT_F16 && t != DT_BF16; /* states, not elements */
}

Test(fold, each_order_is_what_the_table_says_it_is)
{
    uint64_t number = 0;
    for (int fold = 0; fold < FOLD_COUNT; fold++)
        for (int t = 0; t < DT_COUNT; t++)
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths && takes((Fold)fold, (DType)t); l++)
                for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                    for (int device = 0; device < ORDER_DEVICES && lengths[l] * widths[w] < 60000; device++) {
                        Order order = order_of((Fold)fold, false, (DType)t, (OrderDevice)device, MATH_STRICT);
                        if (device == ORDER_CUDA && order.kind == ORD_ANY)
                            continue;
                        if (lengths[l] > 10000 && !slice_takes_in_turn(number++, 4))
                            continue;
                        check((Fold)fold, (DType)t, order, false, lengths[l], widths[w], l & 1);
                    }
}

/* ---- pairs ---- */

Test(fold, pairs)
{
    Order order = order_of(FOLD_DOT, false, DT_BF16, ORDER_HOST_PAIRS, MATH_FAST);
    cr_assert_eq(order.kind, ORD_PAIRS);
    cr_assert_eq(order_of(FOLD_DOT, false, DT_BF16, ORDER_HOST_PAIRS, MATH_STRICT).kind, ORD_CHAIN);
    cr_assert_eq(order_of(FOLD_DOT, false, DT_F32, ORDER_HOST_PAIRS, MATH_FAST).kind, ORD_CHAIN);
    cr_assert_eq(order_of(FOLD_DOT, false, DT_F16, ORDER_HOST_PAIRS, MATH_FAST).kind, ORD_CHAIN);
    cr_assert_eq(order_of(FOLD_DOT, false, DT_BF16, ORDER_HOST, MATH_FAST).kind, ORD_CHAIN);
    cr_assert_eq(order_of(FOLD_SUM, false, DT_F32, ORDER_HOST_PAIRS, MATH_FAST).kind, ORD_LANES);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            if (lengths[l] * widths[w] < 60000)
                check(FOLD_DOT, DT_F32, order, false, lengths[l], widths[w], l & 1);
}

static float of_bits(uint32_t bits) { return (float)scalar_to_double(DT_F32, bits); }
static uint32_t bits_of(float x) { return isnan(x) ? 0x7fc00000u : (uint32_t)scalar_from_double(DT_F32, (double)x); }

/* The odd one first, each rounded once; numbers below 2^-126 are zeros of their sign, whether read or made, by rounding as with more bits, too. */
Test(fold, a_pair_is_what_the_instruction_makes_of_it)
{
    static const struct {
        float sum, a[2], b[2];
        uint32_t want;
    } cases[] = {{1, {0x1p-24f, 1}, {1, 0x1p-24f}, 0x3f800000},
                 {1, {1, -1}, {0x1p-24f, 1}, 0x33800000},
                 {1, {-1, 1}, {1, 0x1p-24f}, 0},
                 {0x1p-127f, {0, 1}, {0, -0.0f}, 0},
                 {-0x1p-127f, {-0.0f, -0.0f}, {1, 1}, 0x80000000},
                 {0, {0x1p-130f, 0}, {0x1p100f, 0}, 0},
                 {0, {0x1p-126f, 0}, {0.5f, 0}, 0},
                 {0, {-0x1p-126f, 0}, {0.5f, 0}, 0x80000000},
                 {0x1p-126f, {0x1p-75f, 0}, {-0x1p-75f, 0}, 0},
                 {0x1p-126f, {0x1p-75f, 0}, {-0x1p-76f, 0}, 0x00800000},
                 {0, {INFINITY, 0}, {0x1p-130f, 0}, 0x7fc00000},
                 {1, {0, NAN}, {0, 0}, 0x7fc00000},
                 {0, {INFINITY, -INFINITY}, {1, 1}, 0x7fc00000},
                 {0, {INFINITY, 1}, {1, 1}, 0x7f800000},
                 {0, {0x1p127f, 0x1p127f}, {2, -2}, 0xff800000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(bits_of(fold_pair(cases[i].sum, cases[i].a, cases[i].b)), cases[i].want, "case %zu: %08x", i,
                     bits_of(fold_pair(cases[i].sum, cases[i].a, cases[i].b)));
}

#ifdef __x86_64__
__attribute__((target("avx512bf16,avx512vl"))) static float by_instruction(float sum, uint32_t a, uint32_t b)
{
    return _mm_cvtss_f32(_mm_dpbf16_ps(_mm_set1_ps(sum), (__m128bh)_mm_set1_epi32((int)a), (__m128bh)_mm_set1_epi32((int)b)));
}

/* bf16 of any bits; of exponents around one another's; so small that sums are, too; and special ones. */
static uint32_t any_bf16(uint64_t *state, int kind)
{
    static const uint16_t special[] = {0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x3f80, 0xbf80, 1, 0x8001, 0x7f, 0x80, 0x7f7f, 0xff7f};
    uint64_t r = random64(state);
    uint32_t bits = (uint32_t)(r & 0x807f), exponent = (uint32_t)(r >> 20);
    return kind == 0   ? (uint32_t)(r >> 40 & 0xffff)
           : kind == 1 ? bits | (120 + exponent % 16) << 7
           : kind == 2 ? bits | exponent % 140 << 7
                       : special[exponent % (sizeof special / sizeof *special)];
}

Test(fold, pairs_are_those_of_this_cpu)
{
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vl")) {
        fprintf(stderr, "this CPU has no such instruction\n");
        return;
    }
    uint64_t state = 1;
    for (int i = 0; i < 400000; i++) {
        uint32_t x[5];
        for (int j = 0; j < 5; j++)
            x[j] = any_bf16(&state, i % 4);
        uint32_t sum = i % 4 == 2 ? (uint32_t)(random64(&state) & 0x807fffff) | (uint32_t)(i / 4 % 8) << 23 : x[4] << 16;
        const float a[2] = {of_bits(x[0] << 16), of_bits(x[1] << 16)}, b[2] = {of_bits(x[2] << 16), of_bits(x[3] << 16)};
        uint32_t want = bits_of(by_instruction(of_bits(sum), x[0] | x[1] << 16, x[2] | x[3] << 16));
        cr_assert_eq(bits_of(fold_pair(of_bits(sum), a, b)), want, "%08x + %04x * %04x + %04x * %04x", sum, x[0], x[2], x[1], x[3]);
    }
}
#endif

Test(fold, running_sums_are_serial_or_by_halves)
{
    static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_U8, DT_I64};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (int math = 0; math < MATH_MODES; math++)
                check(FOLD_SUM, types[t], order_of(FOLD_SUM, true, types[t], ORDER_CUDA, (MathMode)math), true, lengths[l], l & 1 ? 1 : 3,
                      l & 1);
}

/* Orders that no row has today, of the same kinds: the executor knows no numbers. */
Test(fold, orders_of_other_numbers)
{
    static const Order orders[] = {{.kind = ORD_LANES, .lanes = 4, .block = 12},
                                   {.kind = ORD_LANES, .lanes = 8, .block = 16, .tree = true},
                                   {.kind = ORD_LANES, .lanes = 16},
                                   {.kind = ORD_CHAIN, .block = 3},
                                   {.kind = ORD_CHAIN}};
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++)
        for (size_t n = 0; n < 70; n++) {
            check(FOLD_SUM, DT_F32, orders[o], false, n, 2, n & 1);
            check(FOLD_PROD, DT_F64, orders[o], false, n, 1, n & 1);
            if (orders[o].kind == ORD_CHAIN)
                check(FOLD_DOT, DT_F32, orders[o], false, n, 3, n & 1);
        }
}

/* Floats have an order exactly where the fold is not exact, and so on every device and in each mode; the rest has none. */
Test(fold, an_order_is_there_where_it_shows)
{
    for (int fold = 0; fold < FOLD_COUNT; fold++)
        for (int t = 0; t < DT_COUNT; t++)
            for (int device = 0; device < ORDER_DEVICES; device++)
                for (int math = 0; math < MATH_MODES; math++) {
                    Order order = order_of((Fold)fold, false, (DType)t, (OrderDevice)device, (MathMode)math);
                    bool shows = dtype_is_float((DType)t) && !fold_info[fold].exact;
                    cr_assert_eq(order.kind != ORD_ANY, shows, "%s %s", fold_info[fold].text, dtype_name((DType)t));
                    cr_assert(order_known((Fold)fold, false, (DType)t, order));
                    order.block += 64;
                    cr_assert_not(order_known((Fold)fold, false, (DType)t, order));
                }
    cr_assert_not(order_known(FOLD_SUM, false, DT_F32, (Order){.kind = ORD_ANY}));
    cr_assert_not(order_known(FOLD_SUM, true, DT_F32, order_of(FOLD_SUM, false, DT_F32, ORDER_HOST, MATH_STRICT)));
}

Test(fold, memory_that_runs_out_is_told)
{
    float x[300] = {1, 2, 3}, out[300];
    FoldInput in[2] = {{x, 3, false}, {x, 3, false}};
    static const Order order[] = {{.kind = ORD_ANY}, {.kind = ORD_LANES, .lanes = 8, .block = 16, .tree = true}, {.kind = ORD_HALVES}};
    for (size_t o = 0; o < sizeof order / sizeof *order; o++)
        for (int fold = 0; fold < FOLD_COUNT; fold++) {
            bool running = order[o].kind == ORD_HALVES, done = false;
            if ((o && fold != FOLD_SUM) || fold == FOLD_ANY || fold == FOLD_ALL)
                continue;
            for (int nth = 1; nth < 50 && !done; nth++) {
                os_fail_alloc(nth, true);
                done = fold_run((Fold)fold, order[o], running, DT_F32, 100, 3, in, out);
                os_fail_alloc(0, false);
            }
            cr_assert(done);
        }
}

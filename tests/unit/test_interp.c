/* The reference interpreter, by small graphs in text. */
#include "ir/base/os.h"
#include "ir/interp.h"
#include "tests/unit/graphs.h"

#include <math.h>
#include <stdio.h>

TestSuite(interp, .init = open_arena, .fini = close_arena);

static Status run_mode(const char *text, InterpMode mode, const void *const *in, void *const *out, const Node **bad)
{
    return interp_run(parse(text), mode, MATH_STRICT, ORDER_HOST, in, out, bad);
}

/* One output. */
static void run(const char *text, const void *const *in, void *out)
{
    cr_assert_eq(run_mode(text, INTERP_NATIVE, in, (void *const[]){out}, NULL), ST_OK, "%s: %s", text, fail_message());
}

#define IN(...) ((const void *const[]){__VA_ARGS__})

#define CHECK_ARRAY(got, ...)                                                                                  \
    do {                                                                                                       \
        const __typeof__((got)[0]) want_[] = {__VA_ARGS__};                                                    \
        for (size_t i_ = 0; i_ < sizeof want_ / sizeof *want_; i_++)                                           \
            cr_assert_eq((got)[i_], want_[i_], "[%zu]: %g, not %g", i_, (double)(got)[i_], (double)want_[i_]); \
    } while (0)

/* ---- leaves, elementwise ---- */

Test(interp, chain_of_elementwise_ops_with_a_scalar)
{
    float x[4] = {1, -2, 3, -0.5F}, out[4];
    run("graph g() {\n %0 = scalar f32 2.5\n return %0\n}", IN(NULL), out);
    cr_assert_eq(out[0], 2.5F);
    run("graph g(%0: f32[4]) {\n %1 = square %0\n %2 = neg %1\n %3 = relu %0\n %4 = add %2 %3\n return %4\n}", IN(x), out);
    CHECK_ARRAY(out, 0, -4, -6, -0.25F);
}

Test(interp, outputs_may_be_inputs_and_repeat)
{
    int32_t x[2] = {5, 6}, a[2], b[2], c[2];
    const Node *bad;
    cr_assert_eq(run_mode("graph g(%0: i32[2]) {\n %1 = neg %0\n return %0 %1 %1\n}", INTERP_NATIVE, IN(x), (void *const[]){a, b, c}, &bad),
                 ST_OK);
    CHECK_ARRAY(a, 5, 6);
    CHECK_ARRAY(b, -5, -6);
    CHECK_ARRAY(c, -5, -6);
}

Test(interp, strided_inputs)
{
    int16_t data[12], out[6];
    for (int i = 0; i < 12; i++)
        data[i] = (int16_t)i;
    run("graph g(%0: i16[2,3] strides(1 4)) {\n %1 = neg %0\n %2 = neg %1\n return %2\n}", IN(data), out);
    CHECK_ARRAY(out, 0, 4, 8, 1, 5, 9);
    run("graph g(%0: i16[2,3] strides(-6 0)) {\n return %0\n}", IN(data + 6), out);
    CHECK_ARRAY(out, 6, 6, 6, 0, 0, 0);
}

Test(interp, iota_and_cast)
{
    float out[5];
    run("graph g() {\n %0 = iota size(5)\n %1 = cast f32 %0\n return %1\n}", IN(NULL), out);
    CHECK_ARRAY(out, 0, 1, 2, 3, 4);
}

/* ---- views ---- */

Test(interp, views)
{
    int32_t x[6] = {0, 1, 2, 3, 4, 5}, out[24];
    run("graph g(%0: i32[2,3]) {\n %1 = permute %0 perm(1 0)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 0, 3, 1, 4, 2, 5);
    run("graph g(%0: i32[2,3]) {\n %1 = slice %0 axes(0 1) range(1:-1:2 0:2:2)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 3, 5, 0, 2);
    run("graph g(%0: i32[2,3], %1: i32[]) {\n %2 = pad %0 %1 axes(0 1) by(1:0 0:1)\n return %2\n}", IN(x, x + 5), out);
    CHECK_ARRAY(out, 5, 5, 5, 5, 0, 1, 2, 5, 3, 4, 5, 5);
    run("graph g(%0: i32[2,3], %1: i32[2,1]) {\n %2 = concat %0 %1 %0 axis(1)\n return %2\n}", IN(x, x + 4), out);
    CHECK_ARRAY(out, 0, 1, 2, 4, 0, 1, 2, 3, 4, 5, 5, 3, 4, 5);
    run("graph g(%0: i32[2,1]) {\n %1 = expand %0 axes(1) size(3)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 0, 0, 0, 1, 1, 1);
    run("graph g(%0: i32[2,3]) {\n %1 = reshape %0 groups(2:1)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 0, 1, 2, 3, 4, 5);
}

Test(interp, zero_size_and_rank_0)
{
    float x[1] = {3}, out[4] = {9, 9, 9, 9};
    run("graph g(%0: f32[0,3]) {\n %1 = exp %0\n %2 = permute %1 perm(1 0)\n return %2\n}", IN(x), out);
    cr_assert_eq(out[0], 9);
    run("graph g(%0: f32[0,3]) {\n %1 = reduce_sum %0 axes(0)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 0, 0, 0);
    cr_assert_not(signbit(out[0]), "the sum of nothing is +0");
    run("graph g(%0: f32[0,3]) {\n %1 = reduce_prod %0 axes(0)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 1, 1, 1);
    run("graph g(%0: f32[]) {\n %1 = square %0\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 9);
    run("graph g(%0: f32[2,0], %1: f32[0,2]) {\n %2 = matmul %0 %1\n return %2\n}", IN(x, x), out);
    CHECK_ARRAY(out, 0, 0, 0, 0);
}

/* ---- reductions ---- */

Test(interp, reductions_over_axes)
{
    int32_t x[12] = {3, -1, 4, 1, -5, 9, 2, 6, 5, 3, 5, 8}, out[4];
    int64_t arg[4];
    run("graph g(%0: i32[3,4]) {\n %1 = reduce_sum %0 axes(0)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 3, 11, 11, 15);
    run("graph g(%0: i32[3,4]) {\n %1 = reduce_max %0 axes(1)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 4, 9, 8);
    run("graph g(%0: i32[3,4]) {\n %1 = reduce_min %0 axes(0 1)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, -5);
    run("graph g(%0: i32[3,2,2]) {\n %1 = reduce_prod %0 axes(0 2)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 3 * -1 * -5 * 9 * 5 * 3, 4 * 1 * 2 * 6 * 5 * 8);
    run("graph g(%0: i32[3,4]) {\n %1 = argmax %0 axes(1)\n return %1\n}", IN(x), arg);
    CHECK_ARRAY(arg, 2, 1, 3);
    run("graph g(%0: i32[3,4]) {\n %1 = argmin %0 axes(0 1)\n return %1\n}", IN(x), arg);
    CHECK_ARRAY(arg, 4);
    bool b[4] = {true, false, true, true}, any[2];
    run("graph g(%0: bool[2,2]) {\n %1 = reduce_all %0 axes(1)\n return %1\n}", IN(b), any);
    CHECK_ARRAY(any, false, true);
    run("graph g(%0: bool[2,2]) {\n %1 = reduce_any %0 axes(0)\n return %1\n}", IN(b), any);
    CHECK_ARRAY(any, true, true);
}

Test(interp, nan_and_zeros_in_reductions)
{
    float x[6] = {1, NAN, 3, -0.0F, 0.0F, -0.0F}, out[2];
    int64_t arg[2];
    run("graph g(%0: f32[2,3]) {\n %1 = reduce_max %0 axes(1)\n return %1\n}", IN(x), out);
    cr_assert(isnan(out[0]) && out[1] == 0 && !signbit(out[1]));
    run("graph g(%0: f32[2,3]) {\n %1 = reduce_min %0 axes(1)\n return %1\n}", IN(x), out);
    cr_assert(isnan(out[0]) && out[1] == 0 && signbit(out[1]));
    run("graph g(%0: f32[2,3]) {\n %1 = argmax %0 axes(1)\n return %1\n}", IN(x), arg);
    CHECK_ARRAY(arg, 1, 0);
    run("graph g(%0: f32[2,3]) {\n %1 = argmin %0 axes(1)\n return %1\n}", IN(x), arg);
    CHECK_ARRAY(arg, 1, 0);
    float zeros[3] = {-0.0F, -0.0F, -0.0F};
    run("graph g(%0: f32[3]) {\n %1 = reduce_sum %0 axes(0)\n return %1\n}", IN(zeros), out);
    cr_assert(signbit(out[0]), "the sum of -0 is -0: the start value changes nothing");
}

/* The order that ir/orders.def states, once more. */
static float ordered_sum(const float *x, size_t n)
{
    float total = 0;
    for (size_t start = 0; start < n; start += 16384) {
        size_t end = start + 16384 < n ? start + 16384 : n;
        float lane[64];
        for (size_t j = 0; j < 64; j++) {
            lane[j] = -0.0F;
            for (size_t i = start + j; i < end; i += 64)
                lane[j] += x[i];
        }
        float level[64];
        memcpy(level, lane, sizeof lane);
        for (size_t s = 32; s >= 1; s /= 2) {
            float next[64];
            for (size_t j = 0; j < s; j++)
                next[j] = level[j] + level[j + s];
            memcpy(level, next, s * sizeof *next);
        }
        total = start == 0 ? level[0] : total + level[0];
    }
    return total;
}

Test(interp, sums_follow_the_stated_order)
{
    enum { N = 50000 };
    float *x = malloc(N * sizeof *x), out;
    uint64_t state = 5;
    for (size_t i = 0; i < N; i++)
        x[i] = (float)(int64_t)next_random(&state) * 0x1p-60F;
    static const int lengths[] = {1, 2, 63, 64, 65, 1000, 16383, 16384, 16385, 32768, 32769, N};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        char text[200];
        snprintf(text, sizeof text, "graph g(%%0: f32[%d]) {\n %%1 = reduce_sum %%0 axes(0)\n return %%1\n}", lengths[k]);
        run(text, IN(x), &out);
        cr_assert_eq(out, ordered_sum(x, (size_t)lengths[k]), "%d elements", lengths[k]);
    }
    free(x);
}

static uint16_t to_half(double v) { return (uint16_t)scalar_from_double(DT_F16, v); }
static double from_half(uint16_t h) { return scalar_to_double(DT_F16, h); }

Test(interp, halves_accumulate_in_f32)
{
    uint16_t x[4096], out[4096];
    for (int i = 0; i < 4096; i++)
        x[i] = to_half(1);
    run("graph g(%0: f16[4096]) {\n %1 = reduce_sum %0 axes(0)\n return %1\n}", IN(x), out);
    cr_assert_eq(from_half(out[0]), 4096);
    run("graph g(%0: f16[4096]) {\n %1 = cumsum %0 axis(0)\n return %1\n}", IN(x), out);
    cr_assert_eq(from_half(out[2048]), 2048, "2049 rounds to even");
    cr_assert_eq(from_half(out[2050]), 2052, "2051 too, so the accumulator went on in f32");
    cr_assert_eq(from_half(out[4095]), 4096);
    run("graph g(%0: f16[1,4096], %1: f16[4096,1]) {\n %2 = matmul %0 %1\n return %2\n}", IN(x, x), out);
    cr_assert_eq(from_half(out[0]), 4096);
}

/* ---- scan, gather, scatter, sort, matmul ---- */

Test(interp, cumsum_along_an_axis)
{
    int8_t x[6] = {100, 1, 100, 2, 100, 3}, out[6];
    run("graph g(%0: i8[3,2]) {\n %1 = cumsum %0 axis(0)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 100, 1, -56, 3, 44, 6); /* wraps */
    run("graph g(%0: i8[3,2]) {\n %1 = cumsum %0 axis(1)\n return %1\n}", IN(x), out);
    CHECK_ARRAY(out, 100, 101, 100, 102, 100, 103);
}

Test(interp, gather_and_scatter)
{
    float x[6] = {0, 1, 2, 3, 4, 5}, source[4] = {10, 20, 30, 40}, out[6];
    int64_t index[4] = {2, -1, 0, 0};
    run("graph g(%0: f32[2,3], %1: i64[2,2]) {\n %2 = gather %0 %1 axis(1)\n return %2\n}", IN(x, index), out);
    CHECK_ARRAY(out, 2, 2, 3, 3);
    run("graph g(%0: f32[2,3], %1: i64[2,2], %2: f32[2,2]) {\n %3 = scatter %0 %1 %2 axis(1) mode(set)\n return %3\n}",
        IN(x, index, source), out);
    CHECK_ARRAY(out, 0, 1, 20, 40, 4, 5);
    run("graph g(%0: f32[2,3], %1: i64[2,2], %2: f32[2,2]) {\n %3 = scatter %0 %1 %2 axis(1) mode(add)\n return %3\n}",
        IN(x, index, source), out);
    CHECK_ARRAY(out, 0, 1, 32, 73, 4, 5);
    run("graph g(%0: f32[2,3], %1: i64[2,2], %2: f32[2,2]) {\n %3 = scatter %0 %1 %2 axis(1) mode(max)\n return %3\n}",
        IN(x, index, source), out);
    CHECK_ARRAY(out, 0, 1, 20, 40, 4, 5);
    run("graph g(%0: f32[2,3], %1: i64[2,2], %2: f32[2,2]) {\n %3 = scatter %0 %1 %2 axis(1) mode(min)\n return %3\n}",
        IN(x, index, source), out);
    CHECK_ARRAY(out, 0, 1, 2, 3, 4, 5);
}

Test(interp, an_index_out_of_bounds_is_reported_and_clamped)
{
    float x[3] = {1, 2, 3}, out[4];
    int64_t index[4] = {3, -4, INT64_MAX, INT64_MIN};
    static const char text[] = "graph g(%0: f32[3], %1: i64[4]) {\n %2 = gather %0 %1 axis(0)\n return %2\n}";
    const Node *bad = NULL;
    cr_assert_eq(run_mode(text, INTERP_NATIVE, IN(x, index), (void *const[]){out}, &bad), ST_INDEX);
    cr_assert_eq(bad->op, OP_GATHER);
    CHECK_ARRAY(out, 3, 1, 3, 1);
}

Test(interp, argsort_is_stable_with_nan_last)
{
    float x[7] = {2, NAN, -1, 2, -INFINITY, 0.0F, -0.0F};
    int64_t order[7];
    run("graph g(%0: f32[7]) {\n %1 = argsort %0 axis(0)\n return %1\n}", IN(x), order);
    CHECK_ARRAY(order, 4, 2, 5, 6, 0, 3, 1);
    run("graph g(%0: f32[7]) {\n %1 = argsort %0 axis(0) descending\n return %1\n}", IN(x), order);
    CHECK_ARRAY(order, 0, 3, 5, 6, 2, 4, 1);
    uint8_t u[6] = {200, 3, 3, 0, 255, 200};
    run("graph g(%0: u8[3,2]) {\n %1 = argsort %0 axis(0)\n return %1\n}", IN(u), order);
    CHECK_ARRAY(order, 1, 1, 0, 0, 2, 2);
    int64_t big[3] = {INT64_MAX, INT64_MIN, 0};
    run("graph g(%0: i64[3]) {\n %1 = argsort %0 axis(0) descending\n return %1\n}", IN(big), order);
    CHECK_ARRAY(order, 0, 2, 1);
}

Test(interp, matmul_by_blocks_with_one_rounding_per_step)
{
    enum { M = 5, K = 600, N = 6 };
    float a[2 * M * K], b[2 * K * N], out[2 * M * N];
    uint64_t state = 9;
    for (size_t i = 0; i < sizeof a / sizeof *a; i++)
        a[i] = (float)(int64_t)next_random(&state) * 0x1p-62F;
    for (size_t i = 0; i < sizeof b / sizeof *b; i++)
        b[i] = (float)(int64_t)next_random(&state) * 0x1p-62F;
    run("graph g(%0: f32[2,5,600], %1: f32[2,600,6]) {\n %2 = matmul %0 %1\n return %2\n}", IN(a, b), out);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float acc = 0;
                for (int from = 0; from < K; from += 256) {
                    float block = 0;
                    for (int k = from; k < K && k < from + 256; k++)
                        block = fmaf(a[(t * M + i) * K + k], b[(t * K + k) * N + j], block);
                    acc = from ? acc + block : block;
                }
                cr_assert_eq(out[(t * M + i) * N + j], acc);
            }
    uint8_t x[4] = {200, 3, 100, 7}, product[4];
    run("graph g(%0: u8[2,2], %1: u8[2,2]) {\n %2 = matmul %0 %1\n return %2\n}", IN(x, x), product);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            cr_assert_eq(product[i * 2 + j], (uint8_t)(x[i * 2] * x[j] + x[i * 2 + 1] * x[2 + j]));
}

/* ---- the F64 mode, faults ---- */

Test(interp, f64_mode_rounds_nothing_on_the_way)
{
    uint16_t x[3] = {to_half(0.1), to_half(2049), to_half(1)};
    double out[3];
    const Node *bad;
    static const char text[] = "graph g(%0: f16[3]) {\n %1 = cast f32 %0\n %2 = cast f16 %1\n %3 = exp %2\n %4 = log %3\n"
                               " %5 = sin %4\n return %5\n}";
    cr_assert_eq(run_mode(text, INTERP_F64, IN(x), (void *const[]){out}, &bad), ST_OK);
    cr_assert_eq(out[0], sin(log(exp(from_half(x[0])))));
    cr_assert_eq(out[2], sin(1.0));
    float f[4] = {16777216, 1, 0, 0};
    static const char sum[] = "graph g(%0: f32[4]) {\n %1 = reduce_sum %0 axes(0)\n %2 = isnan %1\n return %1 %2\n}";
    bool nan = true;
    cr_assert_eq(run_mode(sum, INTERP_F64, IN(f), (void *const[]){out, &nan}, &bad), ST_OK);
    cr_assert_eq(out[0], 16777217.0);
    cr_assert_not(nan);
}

Test(interp, memory_that_runs_out_is_a_status)
{
    float a[16] = {0}, out[16];
    int64_t index[4] = {0, 1, 2, 3};
    Graph *g = parse("graph g(%0: f16[4,4], %1: i64[4]) {\n %2 = matmul %0 %0\n %3 = reduce_sum %2 axes(1)\n"
                     " %4 = gather %3 %1 axis(0)\n %5 = argsort %4 axis(0)\n %6 = cumsum %3 axis(0)\n %7 = tan %6\n"
                     " return %5 %7\n}");
    int64_t order[4];
    bool succeeded = false;
    for (int nth = 1; nth < 200 && !succeeded; nth++) {
        os_fail_alloc(nth, true);
        Status status = interp_run(g, INTERP_NATIVE, MATH_STRICT, ORDER_HOST, IN(a, index), (void *const[]){order, out}, NULL);
        os_fail_alloc(0, false);
        cr_assert(status == ST_OUT_OF_MEMORY || status == ST_OK);
        succeeded = status == ST_OK;
    }
    cr_assert(succeeded);
}

/* A chain of a hundred thousand nodes: no recursion, and buffers die after their last use. */
Test(interp, long_chains)
{
    enum { LENGTH = 100000 };
    Graph *g = graph_new(&arena);
    Ref r = graph_add_input(g, DT_I32, 1, (const int64_t[]){4096}, NULL, (Loc){0});
    Ref x = r;
    for (int i = 0; i < LENGTH; i++)
        r = graph_ew(g, OP_ADD, r, x, REF_NONE, (Loc){0});
    graph_output(g, r);
    int32_t *in = calloc(4096, sizeof *in), *out = calloc(4096, sizeof *out);
    in[7] = 1;
    cr_assert_eq(interp_run(g, INTERP_NATIVE, MATH_STRICT, ORDER_HOST, IN(in), (void *const[]){out}, NULL), ST_OK);
    cr_assert_eq(out[7], LENGTH + 1);
    cr_assert_eq(out[8], 0);
    free(in);
    free(out);
}

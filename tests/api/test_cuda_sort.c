/*
 * Sorting on a CUDA device (the software driver): the interpreter's order, element for element,
 * whatever the dtype and the length of the lines; queued like every other kernel.
 */
#include "on_cuda.h"

enum { TILE = 2304, MOST = 40 * TILE }; /* TILE: items of a block (jit/llvm/cuda/sort.c) */

static void use_cuda(void) { CUDA_WITH("test_memory", "exact", "strict", "1"); }

static uint64_t state = 88172645463325252u;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Random bits, or few values that come often: small numbers, zeros, infinities and NaNs of both
 * signs. */
static uint64_t some_bits(kiln_dtype dtype, bool ties)
{
    static const struct {
        uint64_t sign, infinity, one;
    } of[] = {[KILN_F16] = {0x8000, 0x7c00, 0x3c00},
              [KILN_BF16] = {0x8000, 0x7f80, 0x3f80},
              [KILN_F32] = {0x80000000u, 0x7f800000u, 0x3f800000u},
              [KILN_F64] = {UINT64_C(1) << 63, UINT64_C(0x7ff) << 52, UINT64_C(0x3ff) << 52}};
    bool real = dtype == KILN_F16 || dtype == KILN_BF16 || dtype == KILN_F32 || dtype == KILN_F64;
    uint64_t r = next_random(), bits = r >> 8, sign = real && r & 1 ? of[dtype].sign : 0;
    if (dtype == KILN_BOOL)
        return bits & 1;
    if (!ties && r & 2)
        return bits;
    if (!real)
        return bits % 5 - 2;
    const uint64_t values[] = {0, of[dtype].one, of[dtype].infinity, of[dtype].infinity + 1 + (bits >> 20) % 100, 1};
    return values[bits % 5] | sign;
}

static const void *some_data(kiln_dtype dtype, size_t n, bool ties)
{
    static uint64_t room[MOST + 1];
    size_t bytes = kiln_dtype_size(dtype);
    cr_assert(n <= MOST);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = some_bits(dtype, ties);
        memcpy((char *)room + i * bytes, &bits, bytes); /* little endian */
    }
    return room;
}

static bool computed; /* the operand is computed by a kernel, whose program is made for its sizes first */

static void read_order(const void *data, kiln_dtype dtype, kiln_shape shape, bool descending, int64_t *to)
{
    kiln_tensor *x = kiln_from(dtype, shape, data), *order;
    order = kiln_argsort(computed ? kiln_flip(x, KILN_AXES(0)) : x, 1, descending);
    cr_assert(kiln_read(order, KILN_I64, to, sizeof *to * (size_t)kiln_numel(order)) == KILN_OK, "%s", kiln_error_message());
}

/* Along the middle axis. */
static void expect_order(kiln_dtype dtype, int64_t outer, int64_t n, int64_t inner, bool descending, bool ties)
{
    static int64_t got[MOST + 1], want[MOST + 1];
    size_t total = (size_t)(outer * n * inner);
    const void *data = some_data(dtype, total, ties);
    kiln_scope *scope = kiln_scope_begin();
    kiln_shape shape = KILN_SHAPE(outer, n, inner);
    read_order(data, dtype, shape, descending, got);
    set_option("mode", "interp");
    read_order(data, dtype, shape, descending, want);
    set_option("mode", "jit");
    for (size_t i = 0; i < total; i++)
        cr_assert_eq(got[i], want[i], "%s, %d x %d x %d, descending %d: [%zu] is %d, not %d", kiln_dtype_name(dtype), (int)outer, (int)n,
                     (int)inner, descending, i, (int)got[i], (int)want[i]);
    kiln_scope_end(scope);
}

static void expect_clean(void)
{
    kiln_stats stats = stats_now();
    cr_assert_eq(stats.fallbacks, 0);
    cr_assert_eq(counted().violations, 0);
}

/* One tile, the smallest that are more, and an odd number of them: three rounds, where the last
 * tile waits for its turn. */
Test(cuda_sort, every_dtype)
{
    use_cuda();
    static const int64_t lengths[] = {1, 17, 500, TILE + 1, 5 * TILE - 7};
    int number = 0;
    for (int dtype = 0; dtype <= KILN_F64; dtype++)
        for (int i = 0; i < 5; i++, number++)
            expect_order((kiln_dtype)dtype, i < 3 ? 3 : 1, lengths[i], i < 3 ? 5 : 1 + number % 2, number & 1, number % 3 == 0);
    expect_clean();
}

/* Whole lines in a block, as many as fit; lines as long as that, and one element more or less. */
Test(cuda_sort, every_length)
{
    use_cuda();
    static const int64_t lengths[] = {71, 72, 73, 143, 145, 1151, 1152, 1153, TILE - 1, TILE, TILE + 1, 2 * TILE, 2 * TILE + 1};
    for (int64_t n = 0; n < 34; n++)
        expect_order(KILN_F32, 7, n, 1 + n % 3, n & 1, n % 5 == 0);
    expect_order(KILN_F32, 600, 9, 1, false, false);
    expect_order(KILN_I16, 2, 4, 1030, true, true);
    for (int i = 0; i < 13; i++)
        expect_order(i & 1 ? KILN_F32 : KILN_I64, 2, lengths[i], 3, i % 3 == 0, i & 4);
    expect_order(KILN_F32, 0, 5, 3, false, false);
    expect_order(KILN_F32, 3, 5, 0, false, false);
    expect_clean();
}

/* Sizes are arguments: one program for all of them. And the most general one of another graph,
 * where places have 64 bits. */
Test(cuda_sort, one_program_for_all_sizes)
{
    use_cuda();
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F16, KILN_F64};
    static const int64_t lengths[] = {2, 9, 10, 40, TILE, TILE + 1, 3 * TILE, 4 * TILE + 100, 30};
    for (int general = 0; general < 2; general++) {
        computed = general;
        set_option("max_variants", general ? "1" : "8");
        kiln_stats before = stats_now();
        for (int d = 0; d < 3; d++)
            for (int i = 0; i < 9; i++)
                expect_order(dtypes[d], 2 + i % 2, lengths[i], 2 + (i & 1), general, i == 3);
        kiln_stats after = stats_now();
        cr_assert_eq(after.compiles - before.compiles, 3 + 3 * general, "%d programs", (int)(after.compiles - before.compiles));
    }
    expect_clean();
}

Test(cuda_sort, sorted_values_and_the_greatest)
{
    use_cuda();
    enum { N = TILE + 50, K = 5 };
    static float x[N], sorted[2][N], top[2][K];
    for (int i = 0; i < N; i++)
        x[i] = (float)(next_random() >> 54) - 500;
    for (int mode = 0; mode < 2; mode++) {
        set_option("mode", mode ? "interp" : "jit");
        kiln_tensor *values, *where, *in = kiln_neg(kiln_from(KILN_F32, KILN_SHAPE(N), x));
        cr_assert(kiln_read(kiln_sort(in, 0, false), KILN_F32, sorted[mode], sizeof *sorted) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_topk(in, K, 0, true, &values, &where) == KILN_OK, "%s", kiln_error_message());
        kiln_tensor *sum = kiln_add(values, kiln_cast(where, KILN_F32));
        cr_assert(kiln_read(sum, KILN_F32, top[mode], sizeof *top) == KILN_OK, "%s", kiln_error_message());
    }
    cr_assert_arr_eq(sorted[0], sorted[1], sizeof *sorted);
    cr_assert_arr_eq(top[0], top[1], sizeof *top);
    expect_clean();
}

/* Nobody waits for it, whatever the rounds: a launch for the tiles, and one for each round. */
Test(cuda_sort, is_queued)
{
    use_cuda();
    static const struct {
        int64_t n, launches;
    } of[] = {{10, 1}, {TILE + 1, 2}, {5 * TILE, 4}};
    set_option("cuda_graphs", "off");
    for (int i = 0; i < 3; i++) {
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(of[i].n), some_data(KILN_F32, (size_t)of[i].n, false));
        cr_assert(kiln_eval(kiln_argsort(x, 0, false)) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_wait(x) == KILN_OK, "%s", kiln_error_message());
        test_cuda_counters before = counted();
        kiln_tensor *order = kiln_argsort(x, 0, false);
        cr_assert(kiln_eval(order) == KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(counted().synchronizations, before.synchronizations);
        cr_assert(kiln_wait(order) == KILN_OK, "%s", kiln_error_message());
        cr_assert(!software_driver() || counted().launches == before.launches + (uint64_t)of[i].launches, "%d launches",
                  (int)(counted().launches - before.launches));
    }
}

/* Rounds need memory of their own: where there is none, a status says so, and what fits still runs.
 */
Test(cuda_sort, out_of_memory)
{
    use_cuda();
    enum { N = 1 << 16 };
    kiln_tensor *x = kiln_full(KILN_F64, KILN_SHAPE(N), 1.0);
    cr_assert(kiln_wait(x) == KILN_OK, "%s", kiln_error_message());
    DRIVER(test_cuda_limit_memory)
    (N * 8 * 3); /* the input, the order, and half of what the rounds need */
    cr_assert_eq(kiln_wait(kiln_argsort(x, 0, false)), KILN_OUT_OF_MEMORY, "%s", kiln_error_message());
    kiln_clear_error();
    DRIVER(test_cuda_limit_memory)(0);
    expect_order(KILN_F64, 1, 2 * TILE, 1, false, true);
}

/* Whatever call to the driver fails, the order is right or there is a status, and the next one is
 * right. */
Test(cuda_sort, any_call_may_fail)
{
    use_cuda();
    enum { N = 2 * TILE + 5 };
    static int64_t got[N], want[N];
    const void *data = some_data(KILN_F32, N, true);
    set_option("mode", "interp");
    read_order(data, KILN_F32, KILN_SHAPE(1, N, 1), true, want);
    set_option("mode", "jit");
    read_order(data, KILN_F32, KILN_SHAPE(1, N, 1), true, got);
    cr_assert_arr_eq(got, want, sizeof want);
    int failed = 0;
    for (int n = 1; n < 1000; n++) {
        static const int codes[] = {2 /* out of memory */, 400 /* invalid handle */, 999 /* unknown */};
        uint64_t before = counted().calls;
        DRIVER(test_cuda_fail)(n, codes[n % 3], 0);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *order = kiln_argsort(kiln_from(KILN_F32, KILN_SHAPE(1, N, 1), data), 1, true);
        kiln_status status = kiln_read(order, KILN_I64, got, sizeof got);
        DRIVER(test_cuda_fail)(0, 0, 0);
        bool over = counted().calls < before + (uint64_t)n;
        failed += status != KILN_OK;
        cr_assert(status == KILN_OK || !over, "%s", kiln_error_message());
        kiln_scope_end(scope);
        kiln_clear_error();
        if (status == KILN_OK)
            cr_assert_arr_eq(got, want, sizeof want, "call %d", n);
        read_order(data, KILN_F32, KILN_SHAPE(1, N, 1), true, got);
        cr_assert_arr_eq(got, want, sizeof want, "after call %d", n);
        if (over)
            break;
    }
    cr_assert_gt(failed, 5);
}

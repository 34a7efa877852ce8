/* Which kernels for CUDA get 32-bit indices, what that is guarded by, and that the guards end where the indices do. Nothing is
 * allocated, so sizes are as large as they like. */
#include "guards/guards.h"
#include "jit/options.h"
#include "jit/plan.h"
#include "tests/unit/graphs.h"

TestSuite(index_width, .init = open_arena, .fini = close_arena);

/* `vary`: no size may be compiled in. */
static Plan plan_of(const char *text, bool vary, bool general, GuardSet *guards)
{
    Graph *g = parse(text);
    GuardPolicy policy = {.int_varies = ARENA_ARRAY(&arena, bool, g->shared->ints.n + 1),
                          .scalar_varies = ARENA_ARRAY(&arena, bool, g->shared->scalars.n + 1),
                          .general = general};
    guard_policy_close(&policy, g, vary);
    GuardBuilder *b = guard_builder_new(g, &policy);
    JitOptions options;
    options_snapshot(&options);
    options.target = (CudaTarget){.sm = 80, .ptx = 74, .device = 80};
    Plan plan;
    cr_assert_eq(jit_plan(g, &options, &plan), ST_OK, "%s", fail_message());
    if (guards)
        cr_assert_eq(guard_builder_finish(b, guards), ST_OK);
    return plan;
}

/* The index of all kernels, and the guards. */
static int width_of(const char *text, bool vary, bool general, GuardSet *guards)
{
    Plan plan = plan_of(text, vary, general, guards);
    int least = 64, most = 0;
    for (uint32_t s = 0; s < plan.steps.n; s++) {
        int bits = plan.steps.at[s].kernel->index_bits;
        bits = bits ? bits : 64;
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    cr_assert_eq(least, most, "%s", text);
    return least;
}

static const char sum_of_two[] = "graph g(%%0: f32[%lld,%lld], %%1: f32[%lld,%lld]) {\n  %%2 = add %%0 %%1\n  return %%2\n}\n";
static const char turned[] = "graph g(%%0: f32[%lld,%lld]) {\n  %%1 = permute %%0 perm(1 0)\n  %%2 = neg %%1\n  return %%2\n}\n";
static const char row_sums[] = "graph g(%%0: f32[%lld,%lld]) {\n  %%1 = reduce_sum %%0 axes(1)\n  return %%1\n}\n";
static const char products[] = "graph g(%%0: f32[%lld,7], %%1: f32[7,%lld]) {\n  %%2 = matmul %%0 %%1\n  return %%2\n}\n";
static const char outer_sums[] = "graph g(%%0: f32[%lld], %%1: f32[%lld]) {\n"
                                 "  %%2 = reshape %%0 groups(1:1 0:1)\n  %%3 = reshape %%1 groups(0:1 1:1)\n"
                                 "  %%4 = expand %%2 axes(1) size(%lld)\n  %%5 = expand %%3 axes(0) size(%lld)\n"
                                 "  %%6 = mul %%4 %%5\n  %%7 = reduce_sum %%6 axes(1)\n  return %%7\n}\n";

static const char *with(const char *format, int64_t n, int64_t m)
{
    char *text = ARENA_ARRAY(&arena, char, 1024);
    if (format == sum_of_two)
        snprintf(text, 1024, sum_of_two, (long long)n, (long long)m, (long long)n, (long long)m);
    else if (format == outer_sums)
        snprintf(text, 1024, outer_sums, (long long)n, (long long)m, (long long)m, (long long)n);
    else if (format == turned)
        snprintf(text, 1024, turned, (long long)n, (long long)m);
    else if (format == row_sums)
        snprintf(text, 1024, row_sums, (long long)n, (long long)m);
    else
        snprintf(text, 1024, products, (long long)n, (long long)m);
    return text;
}

static const struct {
    const char *graph;
    int64_t n, m;
    int bits;
} rows[] = {
    /* clang-format off */
    {sum_of_two, 4096, 4096, 32},       {sum_of_two, 1, INT32_MAX, 32},    {sum_of_two, 1, INT64_C(1) << 31, 64},
    {sum_of_two, 65536, 65536, 64},     {sum_of_two, 0, 65536, 32},        {turned, 30000, 30000, 32},
    {turned, 50000, 50000, 64},         {row_sums, 40000, 40000, 32},      {row_sums, 4, INT64_C(1) << 30, 64},
    {row_sums, INT64_C(1) << 31, 1, 64}, {products, 40000, 40000, 32},     {products, 60000, 60000, 64},
    {products, INT64_C(1) << 29, 2, 64}, {outer_sums, 60000, 60000, 32}, /* more points than that, but no offset */
    /* clang-format on */
};

Test(index_width, by_constants_without_a_guard)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        GuardSet guards;
        int bits = width_of(with(rows[i].graph, rows[i].n, rows[i].m), false, false, &guards);
        cr_expect_eq(bits, rows[i].bits, "row %zu: %d", i, bits);
        for (uint32_t k = 0; k < guards.n; k++)
            cr_expect_neq(guards.at[k].kind, GUARD_RANGE, "row %zu", i);
        guards_free(&guards);
    }
}

/* Do the guards hold for the facts of this graph? *who: who asked for the first one that does not. */
static bool accept(const GuardSet *guards, const char *text, const char **who)
{
    Graph *g = parse(text);
    int64_t *ints = ARENA_ARRAY(&arena, int64_t, g->shared->ints.n + 1), *values = ARENA_ARRAY(&arena, int64_t, guards->sizes.n + 1);
    for (uint32_t f = 0; f < g->shared->ints.n; f++)
        ints[f] = g->shared->ints.at[f].value;
    sizes_eval(&guards->sizes, ints, values);
    uint32_t failed;
    bool holds = guards_hold(guards, values, &(Facts){ints, NULL, g->shared->ints.n, 0}, &failed);
    *who = holds ? NULL : guards->at[failed].who;
    return holds;
}

/* Sizes that vary: narrow under guards, which hold for another call exactly when that one would get narrow indices itself. */
Test(index_width, by_guards_that_end_where_indices_do)
{
    static const int64_t sizes[][2] = {{1, 1},
                                       {300, 500},
                                       {40000, 40000},
                                       {65536, 65536},
                                       {3, INT64_C(1) << 30},
                                       {INT64_C(1) << 31, 1},
                                       {INT64_C(1) << 40, 2},
                                       {60000, 30000},
                                       {2, INT64_C(3) << 31}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        GuardSet guards;
        cr_assert_eq(width_of(with(rows[i].graph, 100, 90), true, false, &guards), 32);
        int ranges = 0;
        for (uint32_t k = 0; k < guards.n; k++)
            ranges += guards.at[k].kind == GUARD_RANGE && guards.at[k].w == INT32_MAX;
        cr_expect(ranges > 0 && ranges <= 6, "%d guards", ranges);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const char *text = with(rows[i].graph, sizes[s][0], sizes[s][1]), *who = NULL;
            bool holds = accept(&guards, text, &who);
            cr_expect_eq(holds, width_of(text, true, false, NULL) == 32, "row %zu, %lld x %lld", i, (long long)sizes[s][0],
                         (long long)sizes[s][1]);
            cr_expect(holds || strcmp(who, "32-bit indexing") == 0);
        }
        guards_free(&guards);
    }
}

/* The most general program accepts every size. */
Test(index_width, general_programs_have_wide_indices)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        GuardSet guards;
        cr_expect_eq(width_of(with(rows[i].graph, 100, 90), true, true, &guards), 64);
        cr_expect_eq(guards.n, 0);
        guards_free(&guards);
    }
}

/*
 * Indices beyond 32 bits whose bounds are 2^64 or so, which is 0 in 64 bits: for a program of the large sizes, and for one of the small
 * sizes that meets the large ones.
 */
static const struct {
    const char *what, *small, *large;
} wrapping[] = {
    {"two parts of two long rows: (x / 2^29) * 2^34, where x < 2^30",
     "graph g(%0: i8[2,70]) {\n  %1 = slice %0 axes(1) range(0:1:64)\n  %2 = reshape %1 groups(2:1)\n  %3 = neg %2\n  return %3\n}\n",
     "graph g(%0: i8[2,17179869184]) {\n  %1 = slice %0 axes(1) range(0:1:536870912)\n  %2 = reshape %1 groups(2:1)\n"
     "  %3 = neg %2\n  return %3\n}\n"},
    {"eight axes: 2 * 2^61 and six times 1 * 2^61",
     "graph g() {\n  %0 = iota size(2560)\n  %1 = reshape %0 groups(1:8) size(2 2 2 2 2 2 2 20)\n  %2 = slice %1 axes(7) range(0:1:10)\n"
     "  %3 = permute %2 perm(7 6 5 4 3 2 1 0)\n  %4 = neg %3\n  return %4\n}\n",
     "graph g() {\n  %0 = iota size(4611686018427387904)\n  %1 = reshape %0 groups(1:8) size(2 1 1 1 1 1 1 2305843009213693952)\n"
     "  %2 = slice %1 axes(7) range(0:1:10)\n  %3 = permute %2 perm(7 6 5 4 3 2 1 0)\n  %4 = neg %3\n  return %4\n}\n"},
};

Test(index_width, bounds_do_not_wrap)
{
    for (size_t i = 0; i < sizeof wrapping / sizeof *wrapping; i++) {
        GuardSet guards;
        const char *who;
        cr_expect_eq(width_of(wrapping[i].small, true, false, &guards), 32, "%s", wrapping[i].what);
        cr_expect_not(accept(&guards, wrapping[i].large, &who), "%s", wrapping[i].what);
        cr_expect_eq(width_of(wrapping[i].large, true, false, NULL), 64, "%s", wrapping[i].what);
        cr_expect_eq(width_of(wrapping[i].large, false, false, NULL), 64, "%s", wrapping[i].what);
        guards_free(&guards);
    }
}

/*
 * Read backwards from %lld on, by an index and by another slice of the same (whose start is that of the first one less %lld): where that
 * one starts says nothing of the other.
 */
static const char *backwards(int64_t size, int64_t start, int64_t length, int64_t by)
{
    char *text = ARENA_ARRAY(&arena, char, 512);
    snprintf(text, 512,
             "graph g(%%0: i8[%lld], %%1: i64[50]) {\n  %%2 = slice %%0 axes(0) range(%lld:-1:%lld)\n  %%3 = gather %%2 %%1 axis(0)\n"
             "  %%4 = slice %%0 axes(0) range((s2+(s3*s5=%lld)):-1:50)\n  %%5 = add %%3 %%4\n  return %%5\n}\n",
             (long long)size, (long long)start, (long long)length, (long long)by);
    return text;
}

Test(index_width, a_start_is_no_term_of_a_difference)
{
    GuardSet guards;
    const char *who, *large = backwards(2147484649, 2147484648, 2147483638, 2147483548);
    cr_expect_eq(width_of(backwards(1001, 1000, 990, 940), true, false, &guards), 32);
    cr_expect_not(accept(&guards, large, &who));
    cr_expect(accept(&guards, backwards(5001, 5000, 4990, 3000), &who));
    cr_expect_eq(width_of(large, true, false, NULL), 64);
    guards_free(&guards);
}

/* An axis that may have any size counts as 64 at least, and eight of them as one are more than there are numbers. */
Test(index_width, hints_of_joined_axes_have_an_end)
{
    Plan plan = plan_of("graph g(%0: f32[4194304,2,2,2,2,2,2,2]) {\n  %1 = neg %0\n  return %1\n}\n", true, false, NULL);
    const Kernel *k = plan.steps.at[0].kernel;
    cr_assert(plan.steps.n == 1 && k->axes.n == 1);
    cr_expect_gt(kernel_extent(k, 0), INT64_C(4194304) * 128);
}

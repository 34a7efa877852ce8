/* Which kernels for CUDA get 32-bit indices, what that is guarded by, and that the guards end where the indices do. Nothing is
 * allocated, so sizes are as large as they like. */
#include "guards/guards.h"
#include "jit/options.h"
#include "jit/plan.h"
#include "tests/unit/graphs.h"

TestSuite(index_width, .init = open_arena, .fini = close_arena);

/* The narrowest index of all kernels, and the guards; `vary`: no size may be compiled in. */
static int width_of(const char *text, bool vary, bool general, GuardSet *guards)
{
    Graph *g = parse(text);
    GuardPolicy policy = {.int_varies = ARENA_ARRAY(&arena, bool, g->ints.n + 1),
                          .scalar_varies = ARENA_ARRAY(&arena, bool, g->scalars.n + 1), .general = general};
    guard_policy_close(&policy, g, vary);
    GuardBuilder *b = guard_builder_new(g, &policy);
    JitOptions options;
    options_snapshot(&options);
    options.target = (CudaTarget){.sm = 80, .ptx = 74, .device = 80};
    Plan plan;
    cr_assert_eq(jit_plan(g, &options, &plan), ST_OK, "%s", fail_message());
    int least = 64, most = 0;
    for (uint32_t s = 0; s < plan.steps.n; s++) {
        int bits = plan.steps.at[s].kernel->index_bits;
        bits = bits ? bits : 64;
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    cr_assert_eq(least, most, "%s", text);
    if (guards)
        cr_assert_eq(guard_builder_finish(b, guards), ST_OK);
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
    {sum_of_two, 4096, 4096, 32},       {sum_of_two, 1, INT32_MAX, 32},    {sum_of_two, 1, INT64_C(1) << 31, 64},
    {sum_of_two, 65536, 65536, 64},     {sum_of_two, 0, 65536, 32},        {turned, 30000, 30000, 32},
    {turned, 50000, 50000, 64},         {row_sums, 40000, 40000, 32},      {row_sums, 4, INT64_C(1) << 30, 64},
    {row_sums, INT64_C(1) << 31, 1, 64}, {products, 40000, 40000, 32},     {products, 60000, 60000, 64},
    {products, INT64_C(1) << 29, 2, 64}, {outer_sums, 60000, 60000, 32}, /* more points than that, but no offset */
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

/* Sizes that vary: narrow under guards, which hold for another call exactly when that one would get narrow indices itself. */
Test(index_width, by_guards_that_end_where_indices_do)
{
    static const int64_t sizes[][2] = {{1, 1}, {300, 500}, {40000, 40000}, {65536, 65536}, {3, INT64_C(1) << 30}, {INT64_C(1) << 31, 1},
                                       {INT64_C(1) << 40, 2}, {60000, 30000}, {2, INT64_C(3) << 31}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        GuardSet guards;
        cr_assert_eq(width_of(with(rows[i].graph, 100, 90), true, false, &guards), 32);
        int ranges = 0;
        for (uint32_t k = 0; k < guards.n; k++)
            ranges += guards.at[k].kind == GUARD_RANGE && guards.at[k].w == INT32_MAX;
        cr_expect(ranges > 0 && ranges <= 5, "%d guards", ranges);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const char *text = with(rows[i].graph, sizes[s][0], sizes[s][1]);
            Graph *g = parse(text);
            int64_t *ints = ARENA_ARRAY(&arena, int64_t, g->ints.n + 1), *values = ARENA_ARRAY(&arena, int64_t, guards.sizes.n + 1);
            for (uint32_t f = 0; f < g->ints.n; f++)
                ints[f] = g->ints.at[f].value;
            sizes_eval(&guards.sizes, ints, values);
            uint32_t failed;
            bool holds = guards_hold(&guards, values, &(Facts){ints, NULL, g->ints.n, 0}, &failed);
            cr_expect_eq(holds, width_of(text, true, false, NULL) == 32, "row %zu, %lld x %lld", i, (long long)sizes[s][0],
                         (long long)sizes[s][1]);
            if (!holds)
                cr_expect_str_eq(guards.at[failed].who, "32-bit indexing");
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

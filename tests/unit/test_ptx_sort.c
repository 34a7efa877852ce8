/*
 * Sorts for CUDA: the kernel that planning makes of an argsort, how many launches it is, what ptxas
 * makes of it. That the order is right: tests/api/test_cuda_sort.c.
 */
#include "guards/guards.h"
#include "jit/plan.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/ptx_check.h"

static Arena graphs;
static jmp_buf no_memory;

static void open_graphs(void)
{
    arena_init(&graphs, &no_memory);
    if (setjmp(no_memory))
        abort();
}

static void close_graphs(void) { arena_free(&graphs); }

TestSuite(ptx_sort, .init = open_graphs, .fini = close_graphs);

enum { TILE = 2304, OUTER = 2, LINE, INNER, SCRATCH };

/* The one kernel of argsort(f32[4, n, 2]) along its middle axis, say, and its guards; `vary`: n is
 * an argument, `general`: any n. */
static Kernel *sort_kernel(DType dtype, int64_t n, bool descending, bool vary, bool general, GuardSet *guards)
{
    char text[256];
    snprintf(text, sizeof text, "graph g(%%0: %s[4,%lld,2]) {\n  %%1 = argsort %%0 axis(1)%s\n  return %%1\n}\n", dtype_name(dtype),
             (long long)n, descending ? " descending" : "");
    Graph *g = NULL;
    cr_assert_eq(graph_parse(text, &graphs, &g), ST_OK, "%s", fail_message());
    GuardPolicy policy = {.int_varies = ARENA_ARRAY(&graphs, bool, g->shared->ints.n + 1),
                          .scalar_varies = ARENA_ARRAY(&graphs, bool, g->shared->scalars.n + 1),
                          .general = general};
    guard_policy_close(&policy, g, vary);
    GuardBuilder *b = guard_builder_new(g, &policy);
    JitOptions options;
    options_snapshot(&options);
    options.target = (CudaTarget){.sm = 80, .ptx = 74, .device = 80};
    Plan plan;
    cr_assert_eq(jit_plan(g, &options, &plan), ST_OK, "%s", fail_message());
    cr_assert_eq(plan.steps.n, 1);
    cr_assert_eq(plan.steps.at[0].kind, STEP_KERNEL);
    Kernel *k = plan.steps.at[0].kernel;
    cr_assert_eq(k->form, FORM_SORT);
    cr_assert_eq(k->args.at[SCRATCH].kind, ARG_SCRATCH);
    cr_assert_eq(guard_builder_finish(b, guards), ST_OK);
    return k;
}

static uint32_t ranges(const GuardSet *guards)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < guards->n; i++)
        n += guards->at[i].kind == GUARD_RANGE && guards->at[i].w == UINT32_MAX;
    return n;
}

/* Sizes are arguments: one kernel for all of one dtype and direction. */
Test(ptx_sort, one_kernel_whatever_the_size)
{
    Str text[3];
    GuardSet guards;
    for (int i = 0; i < 3; i++) {
        static const int64_t sizes[] = {1, 500, 100000};
        str_init(&text[i], &graphs);
        kernel_print(sort_kernel(DT_F32, sizes[i], false, i == 1, false, &guards), &text[i]);
        guards_free(&guards);
    }
    cr_assert_str_eq(text[0].text, text[1].text);
    cr_assert_str_eq(text[0].text, text[2].text);
    str_init(&text[1], &graphs);
    kernel_print(sort_kernel(DT_F32, 5, true, false, false, &guards), &text[1]);
    cr_assert(strcmp(text[0].text, text[1].text) != 0);
    guards_free(&guards);
}

/* Places of 32 bits beside keys of 32 where a guard says so; 64 for longer lines, and where no
 * guard may be. */
Test(ptx_sort, width_of_a_place)
{
    static const struct {
        DType dtype;
        int64_t n;
        bool vary, general;
        uint64_t bits;
        uint32_t guards;
    } of[] = {
        {DT_F32, 100, false, false, 32, 1},
        {DT_F32, 100, true, false, 32, 1},
        {DT_I32, 100, true, true, 64, 0},
        {DT_U32, INT64_C(1) << 33, false, false, 64, 0},
        {DT_U32, INT64_C(1) << 33, true, false, 64, 0},
        {DT_U8, 100, true, true, 32, 0},
        {DT_BF16, 100, true, false, 32, 0},
        {DT_F64, 100, false, false, 64, 0},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        GuardSet guards;
        Kernel *k = sort_kernel(of[i].dtype, of[i].n, false, of[i].vary, of[i].general, &guards);
        cr_expect_eq(k->inst.at[1].imm, of[i].bits, "row %zu: %d bits", i, (int)k->inst.at[1].imm);
        cr_expect_eq(ranges(&guards), of[i].guards, "row %zu: %u guards", i, ranges(&guards));
        guards_free(&guards);
    }
}

/* A launch for the tiles and one for each round; memory only where there are rounds. */
Test(ptx_sort, launches_follow_the_length)
{
    static const struct {
        int64_t outer, n, inner, blocks, rounds;
    } of[] = {
        /* clang-format off */
        {1, 0, 1, 0, 0},         {0, 7, 1, 0, 0},
        {1, 1, 1, 1, 0},         {1, TILE, 1, 1, 0},
        {300, 9, 1, 2, 0},       {256, 9, 1, 1, 0},
        {1, 10, 129, 2, 0},      {2, 1153, 2, 4, 0},
        {2, 1152, 2, 2, 0},      {1, TILE + 1, 1, 2, 1},
        {2, 2 * TILE, 3, 12, 1}, {1, 5 * TILE, 1, 5, 3},
        {1, 4 * TILE, 1, 4, 2},  {1, (INT64_C(1) << 30) * TILE, 1, INT64_C(1) << 30, 30},
        /* clang-format on */
    };
    GuardSet guards;
    for (int wide = 0; wide < 2; wide++) {
        Kernel *k = sort_kernel(wide ? DT_F64 : DT_F32, 100, false, false, false, &guards);
        EmittedPtx p = emit_ptx(k, &ptx_targets[0], MATH_STRICT, "sort");
        cr_assert(p.launch.numbered && !p.launch.by_pointer);
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            void *args[SCRATCH + 1] = {
                [OUTER] = (void *)(intptr_t)of[i].outer, [LINE] = (void *)(intptr_t)of[i].n, [INNER] = (void *)(intptr_t)of[i].inner};
            for (uint32_t phase = 0; phase < p.launch.n_phases; phase++) {
                int64_t blocks = grid_launch(&p.launch, phase, args, 4).blocks;
                bool runs = phase == 0 || phase <= of[i].rounds;
                cr_expect(runs ? blocks == of[i].blocks : blocks <= 0, "row %zu, launch %u: %lld blocks", i, phase, (long long)blocks);
            }
            int64_t bytes = grid_scratch(&p.launch, args, 4), items = of[i].outer * of[i].n * of[i].inner * (wide ? 32 : 8);
            cr_expect(of[i].rounds ? bytes == items + GRID_COUNTER_BYTES : bytes <= 0, "row %zu: %lld bytes", i, (long long)bytes);
        }
        free_ptx(&p);
        guards_free(&guards);
    }
}

Test(ptx_sort, nothing_spills)
{
    static const DType dtypes[] = {DT_BOOL, DT_I16, DT_BF16, DT_F32, DT_I64, DT_F64};
    GuardSet guards;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        for (size_t t = 0; t < 2; t++)
            for (int general = 0; general < 2; general++) {
                if (general && dtypes[i] != DT_F32)
                    continue;
                Kernel *k = sort_kernel(dtypes[i], 100, i & 1, true, general, &guards);
                EmittedPtx p = emit_ptx(k, &ptx_targets[t], MATH_STRICT, "sort");
                Assembled a = assemble(p.ptx, &ptx_targets[t], "sort");
                cr_expect(a.spills == 0 && a.stack == 0 && a.registers <= 128, "%s, general %d: %d registers, %d bytes spilled, stack %d",
                          dtype_name(dtypes[i]), general, a.registers, a.spills, a.stack);
                free_ptx(&p);
                guards_free(&guards);
            }
}

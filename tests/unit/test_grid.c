/* Launch plans: folding, evaluation, saturation, checks of what comes from a disk; the choice of a target. */
#include "jit/grid.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

static void *const args[] = {(void *)(intptr_t)1000, (void *)(intptr_t)7, (void *)INTPTR_MAX};

Test(grid, the_size_of_a_device)
{
    CudaTarget known = {.sm = 90, .ptx = 80, .multiprocessors = 10, .threads = 100}, usual = {.sm = 75, .ptx = 63};
    cr_expect_eq(cuda_room(&known), 1000);
    cr_expect_eq(cuda_busy(&known), 250);
    cr_expect_eq(cuda_multiprocessors(&usual), 40);
    cr_expect_eq(cuda_room(&usual), 40 * 1024);
}

Test(grid, sizes_follow_the_arguments)
{
    GridPlan p = {0};
    p.scratch = grid_const(&p, 0);
    GridPhase *f = grid_phase(&p, "k", 256);
    uint16_t points = grid_op(&p, GRID_MUL, grid_arg(&p, 0), grid_arg(&p, 1));
    uint16_t most = grid_op(&p, GRID_MUL, grid_sms(&p), grid_const(&p, 8));
    f->points = points;
    f->blocks = grid_op(&p, GRID_MIN, grid_op(&p, GRID_CEIL_DIV, points, grid_const(&p, 256)), most);
    GridLaunch l = grid_launch(&p, 0, args, 2);
    cr_assert_eq(l.points, 7000);
    cr_assert_eq(l.blocks, 16);
    cr_assert_eq(l.threads, 256);
    cr_assert_eq(l.shared, 0);
    cr_assert_eq(grid_launch(&p, 0, args, 132).blocks, 28);
    cr_assert_eq(grid_scratch(&p, args, 1), 0);
    cr_assert(grid_valid(&p, 2));
    cr_assert_not(grid_valid(&p, 1), "an argument that the kernel does not have");
}

Test(grid, constants_fold_and_equal_nodes_are_one)
{
    GridPlan p = {0};
    uint16_t six = grid_op(&p, GRID_MUL, grid_const(&p, 2), grid_const(&p, 3));
    cr_assert_eq(six, grid_const(&p, 6));
    cr_assert_eq(grid_op(&p, GRID_CEIL_DIV, grid_const(&p, 7), grid_const(&p, 2)), grid_const(&p, 4));
    cr_assert_eq(grid_arg(&p, 1), grid_arg(&p, 1));
    cr_assert_eq(grid_op(&p, GRID_MUL, grid_const(&p, 1), grid_arg(&p, 1)), grid_arg(&p, 1));
}

Test(grid, arithmetic_saturates)
{
    GridPlan p = {0};
    p.scratch = grid_op(&p, GRID_MUL, grid_arg(&p, 2), grid_arg(&p, 1));
    cr_assert_eq(grid_scratch(&p, args, 1), INT64_MAX);
    p.scratch = grid_op(&p, GRID_ADD, grid_arg(&p, 2), grid_arg(&p, 2));
    cr_assert_eq(grid_scratch(&p, args, 1), INT64_MAX);
    p.scratch = grid_op(&p, GRID_CEIL_DIV, grid_arg(&p, 2), grid_const(&p, 0));
    cr_assert_eq(grid_scratch(&p, args, 1), INT64_MAX, "a divisor is at least 1");
}

Test(grid, a_full_plan_says_so)
{
    GridPlan p = {0};
    for (int i = 0; i < GRID_NODES + 5; i++)
        grid_const(&p, i);
    cr_assert(p.full);
    cr_assert_not(grid_valid(&p, 8));
}

Test(grid, a_bad_plan_is_refused)
{
    GridPlan good = {0};
    good.scratch = grid_const(&good, 0);
    grid_phase(&good, "k", 32)->blocks = grid_op(&good, GRID_ADD, grid_arg(&good, 0), grid_const(&good, 5));
    cr_assert(grid_valid(&good, 1));
    GridPlan p = good;
    p.node[p.n_nodes - 1].a = (uint16_t)(p.n_nodes - 1);
    cr_assert_not(grid_valid(&p, 1), "a node that names itself");
    p = good;
    p.phase[0].threads = 2000;
    cr_assert_not(grid_valid(&p, 1));
    p = good;
    p.phase[0].blocks = GRID_NODES;
    cr_assert_not(grid_valid(&p, 1));
    p = good;
    memset(p.phase[0].entry, 'x', sizeof p.phase[0].entry);
    cr_assert_not(grid_valid(&p, 1));
    p = good;
    p.node[0].op = 99;
    cr_assert_not(grid_valid(&p, 1));
    p = good;
    p.n_phases = 0;
    cr_assert_not(grid_valid(&p, 1));
}

static const struct {
    int major, minor, driver, sm, ptx;
    bool arch;
} devices[] = {
    {7, 5, 10020, 75, 65, false}, {8, 0, 11040, 80, 74, false}, {8, 6, 11040, 86, 74, false},
    {8, 9, 11040, 87, 74, false}, {8, 9, 12040, 89, 84, false}, {9, 0, 12040, 90, 84, true},
    {9, 0, 11080, 90, 78, false}, {9, 0, 13000, 90, 85, true},  {10, 0, 13000, 90, 85, false},
    {12, 0, 12080, 90, 85, false},
};

Test(grid, target_is_the_newest_that_all_know)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        CudaTarget t;
        cr_assert_eq(cuda_target(devices[i].major, devices[i].minor, devices[i].driver, &t), ST_OK);
        cr_assert(t.sm == devices[i].sm && t.ptx == devices[i].ptx && t.arch == devices[i].arch,
                  "row %zu: sm_%d, PTX %d, arch %d", i, t.sm, t.ptx, t.arch);
        cr_assert(cuda_target_known(&t));
    }
    CudaTarget t;
    cr_assert_eq(cuda_target(7, 0, 12000, &t), ST_UNSUPPORTED);
    cr_assert_eq(cuda_target(8, 0, 9020, &t), ST_UNSUPPORTED);
    cr_assert_not(cuda_target_known(&(CudaTarget){.sm = 70, .ptx = 78}));
    cr_assert_not(cuda_target_known(&(CudaTarget){.sm = 80, .ptx = 78, .arch = true}));
    cr_assert_not(cuda_target_known(&(CudaTarget){.sm = 90, .ptx = 99}));
}

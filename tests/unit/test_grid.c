/* Launch plans: folding, evaluation, saturation, checks of what comes from a disk; the choice of a target. */
#include "ir/base/os.h"
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

/* ---- divisions by sizes of the launch ---- */

static bool divides(uint64_t magic, uint64_t d, uint64_t n) { return n * (uint32_t)magic >> (magic >> 32) == n / d; }

enum { LARGEST = INT32_MAX };
static uint64_t state = 1;

static uint64_t random_below(uint64_t end)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % end;
}

/* At the multiples of d and below them, where a multiplier that is off shows first: the least, the greatest, some. */
static bool divides_all(uint64_t magic, uint64_t d)
{
    uint64_t most = LARGEST / d;
    bool right = divides(magic, d, 0) && divides(magic, d, LARGEST) && divides(magic, d, random_below(LARGEST));
    for (int i = 0; i < 12; i++) {
        uint64_t k = i < 3 ? (uint64_t)i : i < 6 ? most - (uint64_t)(i - 3) : random_below(most) + 1;
        if (k > most)
            continue;
        right &= divides(magic, d, k * d) && (k == 0 || divides(magic, d, k * d - 1)) && (k * d == LARGEST || divides(magic, d, k * d + 1));
    }
    return right;
}

static uint32_t too_large_unseen; /* divisors for which a multiplier that is one too large divides all the same */

static void check_divisor(uint64_t d)
{
    uint64_t magic = grid_magic((int64_t)d);
    cr_assert(magic >> 32 >= 31 && magic >> 32 <= 62);
    cr_assert(divides_all(magic, d), "by %llu: multiplier %u, shift %u", (unsigned long long)d, (uint32_t)magic, (unsigned)(magic >> 32));
    cr_assert_not(divides_all(magic - 1, d), "by %llu: one less shows", (unsigned long long)d);
    too_large_unseen += divides_all(magic + 1, d);
}

Test(grid, magic_numbers_divide)
{
    uint32_t checked = 0;
    for (uint64_t d = 1; d <= 5000; d++, checked++)
        check_divisor(d);
    for (int bit = 2; bit <= 31; bit++)
        for (int64_t off = -3; off <= 3; off++) {
            int64_t d = (INT64_C(1) << bit) + off;
            if (d >= 1 && d <= LARGEST)
                check_divisor((uint64_t)d), checked++;
        }
    for (int i = 0; i < 20000; i++, checked++)
        check_divisor(random_below(UINT64_C(1) << (1 + random_below(30))) + 1);
    cr_assert_lt(too_large_unseen, checked / 2, "one more shows for most: it does not for %u of %u", too_large_unseen, checked);
    for (uint64_t d = 1; d < 40; d++) { /* all of a short range, and of its end */
        uint64_t magic = grid_magic((int64_t)d);
        for (uint64_t n = 0; n < 20000; n++)
            cr_assert(divides(magic, d, n) && divides(magic, d, LARGEST - n), "%d / %d", (int)n, (int)d);
    }
}

Test(grid, magic_numbers_of_what_is_no_divisor)
{
    static const int64_t none[] = {0, -1, -7, INT64_MIN};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_assert_eq(grid_magic(none[i]), grid_magic(1));
    static const int64_t beyond[] = {INT64_C(1) << 31, (INT64_C(1) << 31) + 1, INT64_C(1) << 40, INT64_MAX};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        for (uint64_t n = 0; n < 100; n++)
            cr_assert(divides(grid_magic(beyond[i]), (uint64_t)beyond[i], LARGEST - n * n));
}

/* y and 7 * x, in that order, behind two arguments. */
static GridPlan dividing(bool numbered)
{
    GridPlan p = {.numbered = numbered};
    uint32_t slot[3];
    p.scratch = grid_const(&p, 0);
    grid_phase(&p, "k", 32);
    uint16_t y = grid_arg(&p, 1), product = grid_op(&p, GRID_MUL, grid_arg(&p, 0), grid_const(&p, 7));
    cr_assert(grid_divide_by(&p, y, 2, &slot[0]) && grid_divide_by(&p, product, 2, &slot[1]) && grid_divide_by(&p, y, 2, &slot[2]));
    cr_assert(slot[0] == numbered && slot[1] == slot[0] + 1 && slot[2] == slot[0]);
    return p;
}

Test(grid, the_tail_of_a_block)
{
    uint64_t tail[GRID_TAIL];
    for (int numbered = 0; numbered < 2; numbered++) {
        GridPlan p = dividing(numbered);
        cr_assert(grid_valid(&p, 2));
        cr_assert_eq(grid_tail(&p, 5, args, 1, tail), 2u + (uint32_t)numbered);
        cr_assert(!numbered || tail[0] == 5);
        cr_assert(tail[numbered] == grid_magic(7) && tail[numbered + 1] == grid_magic(7000));
        void *const empty[] = {NULL, NULL}; /* zero-sized */
        grid_tail(&p, 5, empty, 1, tail);
        cr_assert(tail[numbered] == grid_magic(1) && tail[numbered + 1] == grid_magic(1));
    }
    GridPlan none = {0};
    cr_assert_eq(grid_tail(&none, 3, args, 1, tail), 0);
}

Test(grid, a_block_has_room_for_so_many_divisors)
{
    uint32_t slot, most = GRID_BLOCK_BYTES / 8;
    GridPlan p = {0};
    for (uint32_t i = 0; i < GRID_DIVISORS; i++)
        cr_assert(grid_divide_by(&p, grid_arg(&p, i), 100, &slot) && slot == i);
    cr_assert_not(grid_divide_by(&p, grid_arg(&p, 99), 100, &slot));
    cr_assert(grid_divide_by(&p, grid_arg(&p, 3), 100, &slot) && slot == 3, "this one is there");
    p = (GridPlan){0};
    cr_assert(grid_divide_by(&p, grid_arg(&p, 0), most - 1, &slot));
    cr_assert_not(grid_divide_by(&p, grid_arg(&p, 1), most - 1, &slot), "beyond 4 KiB");
    p = (GridPlan){.by_pointer = true};
    cr_assert_not(grid_divide_by(&p, grid_arg(&p, 0), most + 1, &slot), "by pointer");
}

Test(grid, a_bad_tail_is_refused)
{
    const GridPlan good = dividing(false);
    uint32_t most = GRID_BLOCK_BYTES / 8 - good.n_divisors;
    cr_assert(grid_valid(&good, most) && !grid_valid(&good, most + 1) && !grid_valid(&good, UINT32_MAX));
    GridPlan p = good;
    p.divisor[1] = (uint16_t)p.n_nodes;
    cr_assert_not(grid_valid(&p, 2));
    p = good;
    p.n_divisors = GRID_DIVISORS + 1;
    cr_assert_not(grid_valid(&p, 2));
    p = good;
    p.by_pointer = true;
    cr_assert_not(grid_valid(&p, 2));
}

/* Whatever byte of an object's plan is another: it is refused, or all that is asked of it stays in bounds. */
Test(grid, damaged_objects)
{
    GridPlan p = dividing(true);
    void *object, *const all[GRID_BLOCK_BYTES / 8] = {NULL};
    size_t bytes, refused = 0, start = sizeof(char[8]) + 2 * sizeof(uint32_t);
    cr_assert_eq(grid_object_make(&(GridObject){.plan = &p, .ptx = "", .n_args = 2}, &object, &bytes), ST_OK);
    unsigned char *at = object;
    static const unsigned char other[] = {0, 1, 2, 24, 25, 127, 255};
    for (size_t i = start; i < bytes; i++)
        for (size_t o = 0; o < sizeof other; o++) {
            unsigned char before = at[i];
            uint64_t tail[GRID_TAIL];
            GridObject out;
            at[i] = other[o];
            if (grid_object_open(object, bytes, &out) == ST_OK) {
                cr_assert_leq(grid_tail(out.plan, 0, all, 1, tail), (uint32_t)GRID_TAIL);
                grid_launch(out.plan, out.plan->n_phases - 1, all, 1);
            } else {
                refused++;
            }
            at[i] = before;
        }
    cr_assert_gt(refused, 100);
    os_free(object);
}

static const struct {
    int major, minor, driver, sm, ptx;
    bool arch;
} devices[] = {
    {7, 5, 10020, 75, 65, false},  {8, 0, 11040, 80, 74, false},  {8, 6, 11040, 86, 74, false}, {8, 9, 11040, 87, 74, false},
    {8, 9, 12040, 89, 84, false},  {9, 0, 12040, 90, 84, true},   {9, 0, 11080, 90, 78, false}, {9, 0, 13000, 90, 85, true},
    {10, 0, 13000, 90, 85, false}, {12, 0, 12080, 90, 85, false},
};

Test(grid, target_is_the_newest_that_all_know)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        CudaTarget t;
        cr_assert_eq(cuda_target(devices[i].major, devices[i].minor, devices[i].driver, &t), ST_OK);
        cr_assert(t.sm == devices[i].sm && t.ptx == devices[i].ptx && t.arch == devices[i].arch, "row %zu: sm_%d, PTX %d, arch %d", i, t.sm,
                  t.ptx, t.arch);
        cr_assert(cuda_target_known(&t));
    }
    CudaTarget t;
    cr_assert_eq(cuda_target(7, 0, 12000, &t), ST_UNSUPPORTED);
    cr_assert_eq(cuda_target(8, 0, 9020, &t), ST_UNSUPPORTED);
    cr_assert_not(cuda_target_known(&(CudaTarget){.sm = 70, .ptx = 78}));
    cr_assert_not(cuda_target_known(&(CudaTarget){.sm = 80, .ptx = 78, .arch = true}));
    cr_assert_not(cuda_target_known(&(CudaTarget){.sm = 90, .ptx = 99}));
}

/* Launch plans: folding, evaluation, saturation, checks of what comes from a disk; the choice of a target. */
#include "ir/base/os.h"
#include "jit/cuda_target.h"
#include "jit/kernel_object.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

static void *const args[] = {(void *)(intptr_t)1000, (void *)(intptr_t)7, (void *)INTPTR_MAX};

Test(launch_plan, the_size_of_a_device)
{
    CudaTarget known = {.sm = 90, .ptx = 80, .multiprocessors = 10, .threads = 100}, usual = {.sm = 75, .ptx = 63};
    cr_expect_eq(cuda_room(&known), 1000);
    cr_expect_eq(cuda_busy(&known), 250);
    cr_expect_eq(cuda_multiprocessors(&usual), 40);
    cr_expect_eq(cuda_room(&usual), 40 * 1024);
}

static LaunchPlan made(const LaunchBuilder *b, uint32_t n_args)
{
    LaunchPlan p;
    cr_assert_eq(launch_plan_make(b, n_args, &p), ST_OK, "%s", fail_message());
    return p;
}

static Status open_status(const LaunchPlan *p)
{
    LaunchPlan again;
    return launch_plan_open(p->packed, p->bytes, &again);
}

Test(launch_plan, sizes_follow_the_arguments)
{
    LaunchBuilder b = {0};
    b.scratch = launch_const(&b, 0);
    LaunchPhase *f = launch_phase(&b, "k", 256);
    uint16_t points = launch_op(&b, LAUNCH_MUL, launch_arg(&b, 0), launch_arg(&b, 1));
    uint16_t most = launch_op(&b, LAUNCH_MUL, launch_sms(&b), launch_const(&b, 8));
    f->points = points;
    f->tasks = launch_op(&b, LAUNCH_MIN, launch_op(&b, LAUNCH_CEIL_DIV, points, launch_const(&b, 256)), most);
    LaunchPlan p = made(&b, 2);
    GridLaunch l = grid_launch(&p, 0, args, 2);
    cr_assert_eq(l.points, 7000);
    cr_assert_eq(l.blocks, 16);
    cr_assert_eq(l.threads, 256);
    cr_assert_eq(l.shared, 0);
    cr_assert_str_eq(grid_entry(&p, 0), "k");
    cr_assert_eq(grid_launch(&p, 0, args, 132).blocks, 28);
    cr_assert_eq(grid_scratch(&p, args, 1), 0);
    cr_assert(!p.fixed && open_status(&p) == ST_OK);
    launch_plan_free(&p);
    p = made(&b, 1);
    cr_assert_eq(open_status(&p), ST_FORMAT, "an argument that the kernel does not have");
    launch_plan_free(&p);
}

/* x * 100 points, a task for 8 of them and block of 50; split where x is less than 10. */
static LaunchBuilder on_the_host(uint16_t x)
{
    LaunchBuilder b = {0};
    x = x ? launch_const(&b, x) : launch_arg(&b, 1);
    uint16_t split = launch_op(&b, LAUNCH_LESS, x, launch_const(&b, 10)), none = launch_const(&b, 0);
    uint16_t points = launch_op(&b, LAUNCH_MUL, x, launch_const(&b, 100)), tasks = launch_op(&b, LAUNCH_CEIL_DIV, x, launch_const(&b, 8));
    for (int odd = 0; odd < 2; odd++) {
        LaunchPhase *f = launch_phase(&b, "", 0);
        f->points = points;
        f->tasks = odd ? tasks : launch_choose(&b, split, launch_op(&b, LAUNCH_MUL, tasks, launch_const(&b, 2)), tasks);
        f->local = launch_round_up(&b, x, 64);
    }
    b.count = launch_choose(&b, split, launch_const(&b, 4), launch_const(&b, 1));
    b.scratch = launch_choose(&b, split, points, none);
    b.rows = none;
    return b;
}

Test(launch_plan, on_the_host)
{
    for (int fixed = 0; fixed < 2; fixed++)
        for (int many = 0; many < 2; many++) {
            const int64_t x = many ? 129 : 7;
            LaunchBuilder b = on_the_host(fixed ? (uint16_t)x : 0);
            b.together = many ? 4 : 0;
            LaunchPlan p = made(&b, 2);
            void *const sizes[] = {NULL, (void *)(intptr_t)x};
            HostLaunch l;
            cr_assert(p.fixed == fixed && open_status(&p) == ST_OK);
            host_launch(&p, fixed ? NULL : sizes, &l);
            cr_expect_eq(l.phases, many ? 1 : 4);
            cr_expect_eq(l.tasks[0], many ? 17 : 2);
            cr_expect_eq(l.tasks[1], many ? 17 : 1);
            cr_expect_eq(l.points, x * 100);
            cr_expect_eq(l.local, many ? 192 : 64);
            cr_expect_eq(l.scratch, many ? 0 : 700);
            cr_expect_eq(l.rows, 0);
            cr_expect_eq(l.together, many ? 4 : 0);
            cr_expect(!fixed || p.n_nodes <= 6, "what folding left behind is not packed: %u nodes", p.n_nodes);
            launch_plan_free(&p);
        }
}

Test(launch_plan, phases_can_be_counted)
{
    static const int64_t counts[][2] = {{-5, 0}, {0, 0}, {3, 3}, {INT64_MAX, INT32_MAX}, {INT64_MIN, 0}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        LaunchBuilder b = {0};
        HostLaunch l;
        launch_phase(&b, "", 0);
        b.count = launch_const(&b, counts[i][0]);
        LaunchPlan p = made(&b, 0);
        host_launch(&p, NULL, &l);
        cr_expect_eq(l.phases, counts[i][1]);
        launch_plan_free(&p);
    }
}

Test(launch_plan, constants_fold_and_equal_nodes_are_one)
{
    LaunchBuilder b = {0};
    uint16_t six = launch_op(&b, LAUNCH_MUL, launch_const(&b, 2), launch_const(&b, 3)), one = launch_const(&b, 1), x = launch_arg(&b, 1);
    cr_assert_eq(six, launch_const(&b, 6));
    cr_assert_eq(launch_op(&b, LAUNCH_CEIL_DIV, launch_const(&b, 7), launch_const(&b, 2)), launch_const(&b, 4));
    cr_assert_eq(launch_op(&b, LAUNCH_LESS, launch_const(&b, 2), launch_const(&b, 3)), one);
    cr_assert_eq(launch_op(&b, LAUNCH_LESS, launch_const(&b, 3), launch_const(&b, 3)), launch_const(&b, 0));
    cr_assert_eq(launch_arg(&b, 1), x);
    cr_assert_eq(launch_op(&b, LAUNCH_MUL, one, x), x);
    cr_assert_eq(launch_op(&b, LAUNCH_MUL, x, launch_const(&b, 0)), launch_const(&b, 0));
    cr_assert_eq(launch_op(&b, LAUNCH_ADD, launch_const(&b, 0), x), x);
    cr_assert_eq(launch_op(&b, LAUNCH_ADD, x, launch_const(&b, 0)), x);
    cr_assert_eq(launch_op(&b, LAUNCH_CEIL_DIV, x, one), x);
    cr_assert_eq(launch_choose(&b, launch_op(&b, LAUNCH_LESS, x, six), one, one), one);
    cr_assert_eq(launch_choose(&b, one, x, six), x);
    cr_assert_eq(launch_choose(&b, launch_const(&b, 0), x, six), six);
}

Test(launch_plan, divisions_round_up)
{
    static const int64_t by[] = {0, 1, 2, 3, 16, 48, 64, 1 << 20, INT64_C(1) << 62, INT64_MAX};
    static const int64_t of[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 1000003, INT64_MAX - 1, INT64_MAX, -1, -16, -17, INT64_MIN};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++)
        for (size_t j = 0; j < sizeof of / sizeof *of; j++) {
            int64_t d = by[i] < 1 ? 1 : by[i], want = of[j] / d + (of[j] % d > 0);
            void *const sizes[] = {(void *)(intptr_t)of[j], (void *)(intptr_t)by[i]};
            for (int fixed = 0; fixed < 2; fixed++) {
                LaunchBuilder b = {0};
                launch_phase(&b, "k", 32);
                b.scratch = launch_op(&b, LAUNCH_CEIL_DIV, launch_arg(&b, 0), fixed ? launch_const(&b, by[i]) : launch_arg(&b, 1));
                LaunchPlan p = made(&b, 2);
                int64_t got = grid_scratch(&p, sizes, 1);
                cr_expect_eq(got, want, "%lld by %lld: %lld", (long long)of[j], (long long)by[i], (long long)got);
                launch_plan_free(&p);
            }
        }
}

Test(launch_plan, arithmetic_saturates)
{
    static const LaunchOp ops[] = {LAUNCH_MUL, LAUNCH_ADD, LAUNCH_CEIL_DIV};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        LaunchBuilder b = {0};
        launch_phase(&b, "k", 32);
        uint16_t most = launch_arg(&b, 2), other = ops[i] == LAUNCH_CEIL_DIV ? launch_const(&b, 0) : launch_arg(&b, 1);
        b.scratch = launch_op(&b, ops[i], most, other);
        LaunchPlan p = made(&b, 3);
        cr_assert_eq(grid_scratch(&p, args, 1), INT64_MAX, "a divisor is at least 1");
        launch_plan_free(&p);
    }
}

Test(launch_plan, a_full_plan_says_so)
{
    LaunchBuilder b = {0};
    LaunchPlan p;
    launch_phase(&b, "", 0);
    for (int i = 0; i < LAUNCH_NODES + 5; i++)
        launch_const(&b, i);
    cr_assert(b.full);
    cr_assert_eq(launch_plan_make(&b, 8, &p), ST_UNSUPPORTED);
    b = (LaunchBuilder){0};
    for (int i = 0; i < LAUNCH_PHASES + 1; i++)
        launch_phase(&b, "k", 32);
    cr_assert(b.full && b.names_bytes == 2);
}

Test(launch_plan, a_bad_plan_is_refused)
{
    LaunchBuilder good = {0};
    good.scratch = launch_const(&good, 0);
    launch_phase(&good, "k", 32)->tasks = launch_op(&good, LAUNCH_ADD, launch_arg(&good, 0), launch_const(&good, 5));
    launch_phase(&good, "l", 32);
    LaunchPlan p = made(&good, 1);
    const LaunchPhase first = p.phase[0], second = p.phase[1];
    const LaunchNode last = p.node[p.n_nodes - 1];
    LaunchPhase *phase = (LaunchPhase *)(uintptr_t)p.phase;
    LaunchNode *node = (LaunchNode *)(uintptr_t)&p.node[p.n_nodes - 1];
    cr_assert_eq(last.op, LAUNCH_ADD);
    cr_assert_eq(open_status(&p), ST_OK);
    node->a = (uint16_t)(p.n_nodes - 1);
    cr_assert_eq(open_status(&p), ST_FORMAT, "a node that names itself");
    *node = last;
    node->op = LAUNCH_OPS;
    cr_assert_eq(open_status(&p), ST_FORMAT);
    *node = (LaunchNode){.op = LAUNCH_CONST};
    cr_assert_eq(open_status(&p), ST_FORMAT, "constants come first");
    *node = last;
    LaunchNode *arg = node - 1;
    cr_assert_eq(arg->op, LAUNCH_ARG);
    arg->value = 1;
    cr_assert_eq(open_status(&p), ST_FORMAT);
    arg->value = -1;
    cr_assert_eq(open_status(&p), ST_FORMAT);
    *arg = (LaunchNode){.op = LAUNCH_SMS};
    cr_assert_eq(open_status(&p), ST_FORMAT, "then arguments");
    *arg = (LaunchNode){.op = LAUNCH_ARG};
    *node = (LaunchNode){.op = LAUNCH_CHOOSE, .c = (uint16_t)(p.n_nodes - 1)};
    cr_assert_eq(open_status(&p), ST_FORMAT);
    *node = (LaunchNode){.op = LAUNCH_ADD, .b = (uint16_t)(p.n_nodes - 1)};
    cr_assert_eq(open_status(&p), ST_FORMAT);
    *node = (LaunchNode){.op = LAUNCH_CEIL_SHIFT, .a = 1, .b = 0};
    cr_assert_eq(p.node[0].op, LAUNCH_CONST);
    LaunchNode *by = (LaunchNode *)(uintptr_t)&p.node[0];
    static const int64_t shifts[] = {0, 62, 63, -1};
    for (int i = 0; i < 4; i++) {
        const int64_t before = by->value;
        by->value = shifts[i];
        cr_assert_eq(open_status(&p), i < 2 ? ST_OK : ST_FORMAT);
        by->value = before;
    }
    node->b = (uint16_t)(p.n_nodes - 2);
    cr_assert_eq(open_status(&p), ST_FORMAT, "a shift by who knows what");
    *node = last;
    phase->threads = 2000;
    cr_assert_eq(open_status(&p), ST_FORMAT);
    phase->threads = 0;
    cr_assert_eq(open_status(&p), ST_FORMAT, "one phase for the host, one for CUDA");
    phase[1].threads = 0;
    cr_assert_eq(open_status(&p), ST_OK, "for the host");
    phase[0] = first, phase[1] = second;
    phase->tasks = (uint16_t)p.n_nodes;
    cr_assert_eq(open_status(&p), ST_FORMAT);
    *phase = first;
    phase->entry = 4;
    cr_assert_eq(open_status(&p), ST_FORMAT);
    *phase = first;
    ((char *)(uintptr_t)p.names)[3] = 'x';
    cr_assert_eq(open_status(&p), ST_FORMAT, "a name without end");
    ((char *)(uintptr_t)p.names)[3] = 0;
    cr_assert_eq(open_status(&p), ST_OK);
    for (size_t n = 0; n < p.bytes; n++) {
        LaunchPlan cut;
        cr_assert_eq(launch_plan_open(p.packed, n, &cut), ST_FORMAT);
    }
    launch_plan_free(&p);
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

Test(launch_plan, magic_numbers_divide)
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

Test(launch_plan, magic_numbers_of_what_is_no_divisor)
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
static LaunchBuilder dividing(bool numbered)
{
    LaunchBuilder b = {.numbered = numbered};
    uint32_t slot[3];
    b.scratch = launch_const(&b, 0);
    launch_phase(&b, "k", 32);
    uint16_t y = launch_arg(&b, 1), product = launch_op(&b, LAUNCH_MUL, launch_arg(&b, 0), launch_const(&b, 7));
    cr_assert(grid_divide_by(&b, y, 2, &slot[0]) && grid_divide_by(&b, product, 2, &slot[1]) && grid_divide_by(&b, y, 2, &slot[2]));
    cr_assert(slot[0] == numbered && slot[1] == slot[0] + 1 && slot[2] == slot[0]);
    return b;
}

Test(launch_plan, the_tail_of_a_block)
{
    uint64_t tail[GRID_TAIL];
    for (int numbered = 0; numbered < 2; numbered++) {
        LaunchBuilder b = dividing(numbered);
        LaunchPlan p = made(&b, 2);
        cr_assert_eq(open_status(&p), ST_OK);
        cr_assert_eq(grid_tail(&p, 5, args, 1, tail), 2u + (uint32_t)numbered);
        cr_assert(!numbered || tail[0] == 5);
        cr_assert(tail[numbered] == grid_magic(7) && tail[numbered + 1] == grid_magic(7000));
        void *const empty[] = {NULL, NULL}; /* zero-sized */
        grid_tail(&p, 5, empty, 1, tail);
        cr_assert(tail[numbered] == grid_magic(1) && tail[numbered + 1] == grid_magic(1));
        launch_plan_free(&p);
    }
    LaunchBuilder b = {0};
    launch_phase(&b, "k", 32);
    LaunchPlan none = made(&b, 2);
    cr_assert_eq(grid_tail(&none, 3, args, 1, tail), 0);
    launch_plan_free(&none);
}

Test(launch_plan, a_block_has_room_for_so_many_divisors)
{
    uint32_t slot, most = GRID_BLOCK_BYTES / 8;
    LaunchBuilder b = {0};
    for (uint32_t i = 0; i < GRID_DIVISORS; i++)
        cr_assert(grid_divide_by(&b, launch_arg(&b, i), 100, &slot) && slot == i);
    cr_assert_not(grid_divide_by(&b, launch_arg(&b, 99), 100, &slot));
    cr_assert(grid_divide_by(&b, launch_arg(&b, 3), 100, &slot) && slot == 3, "this one is there");
    b = (LaunchBuilder){0};
    cr_assert(grid_divide_by(&b, launch_arg(&b, 0), most - 1, &slot));
    cr_assert_not(grid_divide_by(&b, launch_arg(&b, 1), most - 1, &slot), "beyond 4 KiB");
    b = (LaunchBuilder){.by_pointer = true};
    cr_assert_not(grid_divide_by(&b, launch_arg(&b, 0), most + 1, &slot), "by pointer");
}

Test(launch_plan, a_bad_tail_is_refused)
{
    const LaunchBuilder b = dividing(false);
    uint32_t most = GRID_BLOCK_BYTES / 8 - b.n_divisors;
    const uint32_t n_args[] = {most, most + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof n_args / sizeof *n_args; i++) {
        LaunchPlan p = made(&b, n_args[i]);
        cr_assert_eq(open_status(&p), i ? ST_FORMAT : ST_OK);
        launch_plan_free(&p);
    }
    LaunchPlan p = made(&b, 2);
    *(uint16_t *)(uintptr_t)&p.divisor[1] = (uint16_t)p.n_nodes;
    cr_assert_eq(open_status(&p), ST_FORMAT);
    launch_plan_free(&p);
    LaunchBuilder there = b;
    there.by_pointer = true;
    p = made(&there, 2);
    cr_assert_eq(open_status(&p), ST_FORMAT);
    launch_plan_free(&p);
}

/* Whatever byte of an object's plan is another: it is refused, or all that is asked of it stays in bounds. */
static void damage(const LaunchBuilder *b, const KernelObject *code)
{
    KernelObject from = *code;
    from.plan = made(b, 2);
    void *object, *const all[GRID_BLOCK_BYTES / 8] = {NULL};
    size_t bytes, refused = 0;
    cr_assert_eq(kernel_object_make(&from, &object, &bytes), ST_OK);
    unsigned char *at = object;
    static const unsigned char other[] = {0, 1, 2, 24, 25, 127, 255};
    for (size_t i = 0; i < bytes; i++)
        for (size_t o = 0; o < sizeof other; o++) {
            unsigned char before = at[i];
            uint64_t tail[GRID_TAIL];
            HostLaunch launch;
            KernelObject out;
            at[i] = other[o];
            if (kernel_object_open(object, bytes, &out) != ST_OK) {
                refused++;
            } else if (out.elf) {
                host_launch(&out.plan, all, &launch);
                cr_assert(launch.phases >= 0 && out.elf_bytes <= bytes);
            } else {
                cr_assert_leq(grid_tail(&out.plan, 0, all, 1, tail), (uint32_t)GRID_TAIL);
                grid_launch(&out.plan, out.plan.n_phases - 1, all, 1);
                cr_assert_leq(strlen(grid_entry(&out.plan, out.plan.n_phases - 1)) + strlen(out.ptx), bytes);
            }
            at[i] = before;
        }
    cr_assert_gt(refused, 100);
    for (size_t n = 0; n < bytes; n++) {
        KernelObject out;
        cr_assert_eq(kernel_object_open(object, n, &out), ST_FORMAT, "%zu of %zu bytes", n, bytes);
    }
    os_free(object);
    launch_plan_free(&from.plan);
}

Test(launch_plan, damaged_objects)
{
    LaunchBuilder cuda = dividing(true), host = on_the_host(0);
    damage(&cuda, &(KernelObject){.ptx = "ptx", .cubin = "machine code", .cubin_bytes = 12});
    damage(&host, &(KernelObject){.elf = "an object", .elf_bytes = 9});
}

Test(launch_plan, objects_say_what_they_are_for)
{
    LaunchBuilder cuda = dividing(true), host = on_the_host(3);
    LaunchPlan plans[] = {made(&cuda, 2), made(&host, 2)};
    for (int plan = 0; plan < 2; plan++)
        for (int code = 0; code < 2; code++) {
            KernelObject from = {.plan = plans[plan]}, out;
            void *object;
            size_t bytes;
            if (code)
                from.elf = "an object", from.elf_bytes = 9;
            else
                from.ptx = "ptx";
            cr_assert_eq(kernel_object_make(&from, &object, &bytes), ST_OK);
            cr_assert_eq(kernel_object_open(object, bytes, &out), plan == code ? ST_OK : ST_FORMAT);
            if (plan == code)
                cr_assert(code ? out.elf_bytes == 9 && memcmp(out.elf, "an object", 9) == 0 : strcmp(out.ptx, "ptx") == 0);
            os_free(object);
        }
    launch_plan_free(&plans[0]);
    launch_plan_free(&plans[1]);
}

static const struct {
    int major, minor, driver, sm, ptx;
    bool arch;
} devices[] = {
    {7, 5, 10020, 75, 65, false},  {8, 0, 11040, 80, 74, false},  {8, 6, 11040, 86, 74, false}, {8, 9, 11040, 87, 74, false},
    {8, 9, 12040, 89, 84, false},  {9, 0, 12040, 90, 84, true},   {9, 0, 11080, 90, 78, false}, {9, 0, 13000, 90, 85, true},
    {10, 0, 13000, 90, 85, false}, {12, 0, 12080, 90, 85, false},
};

Test(launch_plan, target_is_the_newest_that_all_know)
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

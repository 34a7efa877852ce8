/* Slices of long tests: seeds in a row take every case once. */
#include "tests/support/slice.h"

#include <criterion/criterion.h>
#include <stdio.h>

static void choose(uint64_t n, uint64_t seed)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    setenv("KILN_TEST_SLICES", text, 1);
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    setenv("KILN_TEST_SEED", text, 1);
}

Test(slice, seeds_in_a_row_take_each_case_once)
{
    enum { CASES = 500 };
    for (uint64_t n = 1; n < 70; n += 3) {
        int taken[CASES] = {0};
        for (uint64_t seed = 1000; seed < 1000 + n; seed++) {
            int count = 0;
            choose(n, seed);
            for (uint64_t i = 0; i < CASES; i++) {
                bool takes = slice_takes(i);
                taken[i] += takes;
                count += takes;
            }
            cr_assert(count >= (int)(CASES / n) && count <= (int)(CASES / n) + 1, "%d of %d cases in one of %d", count, CASES, (int)n);
        }
        for (int i = 0; i < CASES; i++)
            cr_assert_eq(taken[i], 1, "case %d, %d slices", i, (int)n);
    }
}

Test(slice, without_settings_all_of_it)
{
    unsetenv("KILN_TEST_SLICES");
    unsetenv("KILN_TEST_SEED");
    for (uint64_t i = 0; i < 100; i++)
        cr_assert(slice_takes(i));
}

Test(slice, steps_of_an_inner_loop_differ)
{
    bool met[8] = {false};
    choose(8, 3);
    for (uint64_t i = 0; i < 100; i++)
        if (slice_takes(i))
            met[i % 8] = true;
    for (int k = 0; k < 8; k++)
        cr_assert(met[k], "step %d", k);
}

Test(slice, seeds_of_a_fuzzer_never_come_twice)
{
    uint64_t next = 1;
    for (uint64_t seed = 0; seed < 50; seed++) {
        uint64_t first = 1, count = 100;
        choose(7, seed);
        slice_seeds(&first, &count);
        cr_assert_eq(first, next);
        cr_assert(count == 14 || count == 15);
        next = first + count;
    }
}

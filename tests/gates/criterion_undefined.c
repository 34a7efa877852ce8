/* Broken on purpose: a Criterion test with undefined behaviour whose assertions hold. */
#include <criterion/criterion.h>
#include <limits.h>

Test(gate, undefined)
{
    volatile int one = 1, sum = INT_MAX;
    sum = sum + one;
    cr_assert(one == 1);
}

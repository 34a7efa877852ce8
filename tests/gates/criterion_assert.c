/* Broken on purpose: an assertion that does not hold. */
#include <criterion/criterion.h>

Test(gate, gate_assert)
{
    volatile int one = 1;
    cr_assert(one == 2);
}

/* Broken on purpose: overflows a signed integer, which without a gate prints a line and goes on. */
#include <limits.h>

int main(int argc, char **argv)
{
    (void)argv;
    volatile int sum = INT_MAX;
    sum = sum + argc;
    return 0;
}

/* Random numbers of the examples' own, where each step has a stream of its own that does not depend on those before. */
#include <stdint.h>

/* The next number of a stream (splitmix64; Steele et al. 2014). */
static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* hand.inc with vectors of one lane, for any machine; and the choice among the three. */
#include "bench/hand.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 1 };
#define V float
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define STREAM(p, v) (*(p) = (v))
#define SET(c) ((float)(c))
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define FMA(a, b, c) fmaf((a), (b), (c))

static inline uint32_t bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline float from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}
#define EXP2_BITS(t) from_bits((bits(t) << 23) + 0x3f800000u)
#define FLIP(v, t) from_bits(bits(v) ^ (bits(t) << 31))
#define TOTAL(v) ((double)(v))

#include "bench/hand.inc"

const HandLoops hand_plain = {"plain", loop_copy, loop_a, loop_e, loop_b};

const HandLoops *hand_best(void)
{
#if defined(__x86_64__)
    if (hand_avx512.name && __builtin_cpu_supports("avx512f"))
        return &hand_avx512;
    if (hand_avx2.name && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &hand_avx2;
#endif
    return &hand_plain;
}

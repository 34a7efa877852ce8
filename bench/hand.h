/*
 * The yardsticks: workloads (a), (b), (e) and a copy as somebody would write them by hand, with intrinsics. One text
 * (hand.inc) compiled for AVX-512, AVX2 and plain C; hand_best picks what this machine runs.
 *
 * Arguments: n a multiple of 16; all arrays aligned to 64 and n long. `stream`: non-temporal stores, which go past the cache.
 * sin and cos reduce by multiples of pi in three fma steps (good for |x| < 1e5), exp to [-ln2/2, ln2/2]; about 2 ULP.
 */
#ifndef BENCH_HAND_H
#define BENCH_HAND_H

#include <stdbool.h>
#include <stddef.h>

typedef struct HandLoops {
    const char *name; /* "avx512" */
    void (*copy)(float *out, const float *x, size_t n, bool stream);
    void (*a)(float *out, const float *x, const float *y, size_t n, bool stream); /* relu((sin x * cos y + x) * y) */
    void (*e)(float *out, const float *x, size_t n, bool stream);                 /* sigmoid(relu(2x + 1) * 0.5) */
    double (*b)(const float *x, size_t n);                                        /* sum of tanh(0.1x + 1.7) * sigmoid(x) + exp(-x * x) */
} HandLoops;

extern const HandLoops hand_avx512, hand_avx2, hand_plain;

const HandLoops *hand_best(void);

#endif

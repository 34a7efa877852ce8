/* What tests of attention on a CUDA device are given: numbers from `state`, and masks. */
#ifndef TEST_ATTENTION_DATA_H
#define TEST_ATTENTION_DATA_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static uint64_t state;

static inline int pick(int n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

/* Numbers below 2 that f16 has, too. */
static inline void fill_factor(float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        x[j] = (float)(pick(4001) - 2000) / 1024;
}

/* Rows of so many keys; some_unseen: of three queries one sees none. */
static inline void fill_mask(float *mask, int64_t n, int64_t keys, bool some_unseen)
{
    for (int64_t j = 0; j < n; j++)
        mask[j] = some_unseen && keys && j / keys % 3 == 1 ? -INFINITY : (float)(pick(9) - 4) / 4;
}

#endif

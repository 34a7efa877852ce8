/* What tests of attention on a CUDA device are given: numbers from `state`, masks, and what places do to queries, keys and scores. */
#ifndef TEST_ATTENTION_DATA_H
#define TEST_ATTENTION_DATA_H

#include "api.h"

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

/* ---- places ---- */

/* Rotary embedding: of pairs (i, i + d / 2), of neighbours, of which the last half of d is left as it is, or as models spell the first. */
typedef enum Turn { UNTURNED, HALVES, NEIGHBOURS, SPELLED, TURNS } Turn;

/* x [..., places, d]: its pairs are turned by place / 2^(8 pair / d), which the host computes, once. */
static inline kiln_tensor *turned(kiln_tensor *x, Turn how)
{
    static float table[1 << 17];
    const int64_t d = kiln_dim(x, -1), places = kiln_dim(x, -2), half = d / 2, pairs = how == NEIGHBOURS ? d / 4 : half;
    cr_assert(places * pairs <= 1 << 17);
    for (int64_t i = 0; i < places * pairs && how; i++)
        table[i] = (float)((double)(i / pairs) * exp2(-8.0 * (double)(i % pairs) / (double)d));
    kiln_tensor *angles = kiln_from(KILN_F32, KILN_SHAPE(places, pairs), table);
    if (how != SPELLED)
        return how ? kiln_rotary(x, angles, how == NEIGHBOURS) : x;
    kiln_tensor *parts[2] = {kiln_neg(kiln_slice_axis(x, -1, half, d, 1)), kiln_slice_axis(x, -1, 0, half, 1)};
    angles = kiln_concat((kiln_tensor *[]){angles, angles}, 2, -1);
    kiln_tensor *kept = kiln_mul(x, kiln_cos(angles)), *other = kiln_mul(kiln_concat(parts, 2, -1), kiln_sin(angles));
    return kiln_cast(kiln_add(kept, other), kiln_dtype_of(x));
}

/* ALiBi (Press et al. 2022): slope of the head * (place of the key - place of the query) */
static inline kiln_tensor *slopes_of_places(int64_t heads, int64_t queries, int64_t keys)
{
    kiln_tensor *slope = kiln_exp2(kiln_mul(kiln_arange(KILN_F32, 1, (double)heads + 1, 1), -2.0));
    kiln_tensor *query = kiln_arange(KILN_F32, 0, (double)queries, 1), *key = kiln_arange(KILN_F32, 0, (double)keys, 1);
    return kiln_mul(kiln_reshape(slope, KILN_SHAPE(heads, 1, 1)), kiln_sub(key, kiln_unsqueeze(query, 1)));
}

#endif

/* Orders that bring some lanes of a vector to its front, keeping the order of these and of the others: for vectors of 8 and of 4 lanes, by
 * the mask of those lanes, a byte for each lane (of 4: two, as there each is permuted as a pair), and turns of 16 lanes. */
#ifndef JIT_SORT_SPLIT_H
#define JIT_SORT_SPLIT_H

#include <stdint.h>

#define SPLIT_BEFORE(m, i) __builtin_popcount((m) & ((1u << (i)) - 1))
#define SPLIT_PLACE(m, i) ((m) >> (i)&1 ? SPLIT_BEFORE(m, i) : __builtin_popcount(m) + (i)-SPLIT_BEFORE(m, i))
#define SPLIT_8(m, i) ((uint64_t)(i) << 8 * SPLIT_PLACE(m, i))
#define SPLIT_4(m, i) ((uint64_t)(2 * (i) + 1) << 8 | 2 * (i)) << 16 * SPLIT_PLACE(m, i)

#define SPLIT_OF_4(m) (SPLIT_4(m, 0) | SPLIT_4(m, 1) | SPLIT_4(m, 2) | SPLIT_4(m, 3))
#define SPLIT_OF_8(m) \
    (SPLIT_8(m, 0) | SPLIT_8(m, 1) | SPLIT_8(m, 2) | SPLIT_8(m, 3) | SPLIT_8(m, 4) | SPLIT_8(m, 5) | SPLIT_8(m, 6) | SPLIT_8(m, 7))
#define SPLITS_4(F, m) F(m), F((m) + 1), F((m) + 2), F((m) + 3)
#define SPLITS_16(F, m) SPLITS_4(F, m), SPLITS_4(F, (m) + 4), SPLITS_4(F, (m) + 8), SPLITS_4(F, (m) + 12)
#define SPLITS_64(F, m) SPLITS_16(F, m), SPLITS_16(F, (m) + 16), SPLITS_16(F, (m) + 32), SPLITS_16(F, (m) + 48)

static const uint64_t split_of_8[256] = {SPLITS_64(SPLIT_OF_8, 0u), SPLITS_64(SPLIT_OF_8, 64u), SPLITS_64(SPLIT_OF_8, 128u),
                                         SPLITS_64(SPLIT_OF_8, 192u)};
static const uint64_t split_of_4[16] = {SPLITS_16(SPLIT_OF_4, 0u)};
static const int32_t split_turns[32] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

#endif

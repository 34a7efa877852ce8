/*
 * A growing array in an arena: VEC(int) v = {0}; VEC_PUSH(arena, v, 3); v.at[0]; v.n.
 * Old storage stays in the arena until that is freed, so pointers into `at` stay readable but stale.
 */
#ifndef IR_BASE_VEC_H
#define IR_BASE_VEC_H

#include "ir/base/arena.h"
#include <string.h>

#define VEC(T)           \
    struct {             \
        T *at;           \
        uint32_t n, cap; \
    }

#define VEC_RESERVE(arena, v, want)                                     \
    do {                                                                \
        if ((v).cap < (want)) {                                         \
            uint32_t cap_ = (v).cap ? (v).cap : 8;                      \
            while (cap_ < (want))                                       \
                cap_ *= 2;                                              \
            void *grown_ = arena_alloc((arena), sizeof *(v).at * cap_); \
            if ((v).n)                                                  \
                memcpy(grown_, (v).at, sizeof *(v).at *(v).n);          \
            (v).at = grown_;                                            \
            (v).cap = cap_;                                             \
        }                                                               \
    } while (0)

#define VEC_PUSH(arena, v, ...)           \
    do {                                  \
        VEC_RESERVE(arena, v, (v).n + 1); \
        (v).at[(v).n++] = (__VA_ARGS__);  \
    } while (0)

#endif

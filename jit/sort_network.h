/*
 * Many lines sorted at once by a bitonic network (Batcher, "Sorting networks and their applications", 1968): each lane of a vector is a
 * line, and each step compares the same two places of all of them, so that nothing depends on the data. An item is one signed integer
 * whose order is the one asked for; with places wanted, the place stands below the key, which makes the order total and so stable.
 *
 * Beside it is what sorts one line, a quicksort (jit/sort_quick.inc), of the same items.
 *
 * sort_avx2.c and sort_avx512.c compile both (CMakeLists.txt has their flags); sort.c chooses one and knows what each costs.
 */
#ifndef JIT_SORT_NETWORK_H
#define JIT_SORT_NETWORK_H

#include "jit/sort.h"

/* Lines [lo, hi) of the job, which have at most SORT_NETWORK_MOST elements; `room` holds a power of two of vectors,
 * no fewer than the elements, and is aligned to 64. */
typedef void SortNetworkFn(const SortJob *job, int64_t lo, int64_t hi, void *room);

enum { SORT_NETWORK_MOST = 4096 };

typedef struct SortNetwork {
    int lanes32, lanes64; /* lines at a time */
    SortNetworkFn *items32, *items64;
    /* A line of items by quicksort, in place (jit/sort_quick.inc). */
    void (*sort32)(int32_t *items, int64_t n);
    void (*sort64)(int64_t *items, int64_t n);
    /* Cuts items at n_bounds bounds, which are in order: first those below the first, and so on; count[n_bounds + 1] tells how many. */
    void (*cut32)(int32_t *items, int64_t n, const int32_t *bounds, int64_t n_bounds, int64_t *count);
    void (*cut64)(int64_t *items, int64_t n, const int64_t *bounds, int64_t n_bounds, int64_t *count);
    /* Keys of n elements, and back; true: some are odd (jit/sort_keys.inc). */
    bool (*keys32)(const KeyRule *rule, const void *elements, int64_t n, int32_t *keys);
    bool (*keys64)(const KeyRule *rule, const void *elements, int64_t n, int64_t *keys);
    void (*elements32)(const KeyRule *rule, const int32_t *keys, int64_t n, void *elements);
    void (*elements64)(const KeyRule *rule, const int64_t *keys, int64_t n, void *elements);
} SortNetwork;

extern const SortNetwork sort_network_avx512, sort_network_avx2;

#endif

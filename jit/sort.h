/* Sorting along an axis on a CPU: the one op that is not a generated kernel there (jit/llvm/cuda/sort.c has it for CUDA). */
#ifndef JIT_SORT_H
#define JIT_SORT_H

#include "ir/dtype.h"

#include <stddef.h>

/*
 * Lines of in: [outer, n, inner] (contiguous, row-major) along its middle axis; line l is (l / inner, l % inner), so there are
 * outer * inner of them. out has the same shape. values: out has in's dtype and gets the elements in order, bit for bit; else it is
 * i64 and out[o, k, i] is the place along the axis of the k-th element.
 * The order is stable: NaN goes last in both directions, -0 equals +0, and equal elements keep their order (in descending order too).
 */
typedef struct SortJob {
    DType dtype;
    bool descending, values;
    int64_t outer, n, inner;
    const void *in;
    void *out;
} SortJob;

/* Vectors that it may use. */
typedef enum SortVectors { SORT_NONE, SORT_AVX2, SORT_AVX512 } SortVectors;
SortVectors sort_vectors(int64_t most_bits, bool avx512); /* this CPU's widest of those; most_bits 0: any */

/*
 * How a job is done: phases one after the other, each of independent tasks in any order on any threads. What comes out depends on
 * none of it.
 */
typedef struct SortPlan {
    SortJob job;
    int threads; /* at most */
    SortVectors vectors;
    int way; /* of sort.c */
    int item_bytes;
    int phases;
    int64_t slices;             /* of a line that is done by several threads */
    size_t thread_room, shared; /* bytes for each thread; bytes for all */
} SortPlan;

void sort_plan(const SortJob *job, int threads, SortVectors vectors, SortPlan *plan);
/* Bytes of room that sort_run wants, aligned to 64; SIZE_MAX: more than any memory has. */
size_t sort_room(const SortPlan *plan);
/* Tasks of a phase, and how many are worth a trip to another thread. */
int64_t sort_tasks(const SortPlan *plan, int phase, int64_t *grain);
/* Tasks [lo, hi) of a phase by thread `thread` < plan->threads. */
void sort_run(const SortPlan *plan, int phase, int64_t lo, int64_t hi, int thread, void *room);

/* How an element becomes an unsigned key, of as many bytes, whose order is the one asked for. */
typedef struct KeyRule {
    unsigned bytes;
    bool is_float, is_signed, descending;
    uint64_t sign, infinity; /* bits of the dtype's sign and of +inf */
} KeyRule;
KeyRule sort_key_rule(DType dtype, bool descending);

/* Zeros and NaNs of a sorted line of floats become those of the line itself, in their order: a key knows neither the sign of a zero nor
 * the bits of a NaN. Elements lie `stride` elements apart, in both. */
void sort_restore(const KeyRule *rule, const void *line, void *sorted, int64_t n, int64_t stride);

#endif

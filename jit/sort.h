/* Sorting along an axis on a CPU: the one op that is not a generated kernel there (jit/llvm/cuda_sort.c has it for CUDA). */
#ifndef JIT_SORT_H
#define JIT_SORT_H

#include "ir/base/status.h"
#include "ir/dtype.h"

/*
 * Stable argsort of lines [lo, hi) of in: [outer, n, inner] (contiguous, row-major) along its
 * middle axis; line l is (l / inner, l % inner), so there are outer * inner of them. out has the
 * same shape: out[o, k, i] is the position along the axis of the k-th element. NaN goes last in
 * both directions, -0 equals +0, and equal elements keep their order (in descending order too).
 * Lines are independent: ranges may run in parallel. ST_OUT_OF_MEMORY.
 */
Status sort_arg(DType dtype, const void *in, int64_t *out, int64_t outer, int64_t n, int64_t inner, bool descending, int64_t lo,
                int64_t hi);

/* How an element becomes an unsigned key, of as many bytes, whose order is the one asked for: sort_arg by key_of in sort.c. */
typedef struct KeyRule {
    unsigned bytes;
    bool is_float, is_signed, descending;
    uint64_t sign, infinity; /* bits of the dtype's sign and of +inf */
} KeyRule;
KeyRule sort_key_rule(DType dtype, bool descending);

#endif

/* For tests of the scalar machine: ops on single elements and small arrays, by their tapes. */
#ifndef TESTS_UNIT_SCALARS_H
#define TESTS_UNIT_SCALARS_H

#include "ir/scalar.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* op on arrays of `in`, giving `out` (CAST, comparisons: another dtype). */
static inline void run_array(Op op, DType in, DType out, size_t n, const void *a, const void *b, void *result)
{
    DType types[3] = {in, in, in};
    const Tape *tape = tape_get(op, types, out, MATH_STRICT);
    cr_assert_not_null(tape);
    cr_assert(tape_run(tape, types, out, n, (const void *const[]){a, b}, result));
}

/* op on one or two elements given by their bits. */
static inline uint64_t run_bits(Op op, DType in, DType out, uint64_t a, uint64_t b)
{
    uint64_t result = 0;
    run_array(op, in, out, 1, &a, &b, &result);
    return result;
}

/* op on floats of dtype t given and taken as doubles. */
static inline double run_float(Op op, DType t, double a, double b)
{
    uint64_t bits = run_bits(op, t, t, scalar_from_double(t, a), scalar_from_double(t, b));
    return scalar_to_double(t, bits);
}

/* op on ints given and taken as int64 (u64: its bits). */
static inline int64_t run_int(Op op, DType t, int64_t a, int64_t b)
{
    return scalar_to_int(t, run_bits(op, t, t, scalar_from_int(t, a), scalar_from_int(t, b)));
}

/* The same value: any NaN is any other; zeros differ by sign. */
static inline bool same_double(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b)); }

static inline uint64_t random64(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static const DType float_types[4] = {DT_F16, DT_BF16, DT_F32, DT_F64};
static const DType int_types[8] = {DT_I8, DT_I16, DT_I32, DT_I64, DT_U8, DT_U16, DT_U32, DT_U64};

#endif

/*
 * Test data and its comparison: seeded values of every dtype, and element-by-element equality that says where and how two
 * results differ.
 *
 * Bit equality means equal bits, except that any NaN equals any other: which payload and sign an operation gives a NaN that
 * it makes is left open by IEEE 754 and by LLVM.
 */
#ifndef TESTS_SUPPORT_COMPARE_H
#define TESTS_SUPPORT_COMPARE_H

#include "kiln.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A generator of its own, so that a seed means the same values everywhere (splitmix64). */
typedef struct Rng {
    uint64_t state;
} Rng;
uint64_t rng_next(Rng *rng);
int64_t rng_below(Rng *rng, int64_t n);                   /* 0 <= result < n; n >= 1 */
int64_t rng_between(Rng *rng, int64_t low, int64_t high); /* both included */
bool rng_chance(Rng *rng, int percent);

typedef enum Values {
    VALUES_MIX,    /* a quarter each: special values, PLAIN, WIDE, random bits */
    VALUES_PLAIN,  /* small: floats in [-4, 4), ints in [-9, 9] or [0, 9] */
    VALUES_WIDE,   /* finite, of all magnitudes, both signs; ints random */
    VALUES_SPARSE, /* PLAIN with one special value in 97 */
    VALUES_TIES,   /* few different values, so that there are many ties */
    VALUES_INDEX   /* ints from -limit to limit - 1 (unsigned: 0 to limit - 1) */
} Values;

/* n elements of one dtype. limit: for VALUES_INDEX. */
void values_fill(kiln_dtype dtype, Values values, int64_t limit, uint64_t seed, int64_t n, void *data);

/* The values at which functions change their behaviour; returns their number. */
int64_t special_floats(const double **values);

bool dtype_is_float(kiln_dtype dtype);
bool dtype_is_signed(kiln_dtype dtype); /* signed ints */
double value_as_double(kiln_dtype dtype, const void *data, int64_t i);
void value_from_double(kiln_dtype dtype, double value, void *data, int64_t i);        /* floats only; rounds to nearest */
const char *value_text(kiln_dtype dtype, const void *data, int64_t i, char text[64]); /* with its bits; "" when i < 0 */
const char *shape_text(kiln_dtype dtype, kiln_shape shape, char text[96]);            /* "f32[7,13]" */
int64_t shape_elements(kiln_shape shape);
bool shape_equal(kiln_shape a, kiln_shape b);

/* How far apart floats may be: |a - b| <= relative * max(|a|, |b|) + absolute. Both 0: bit for bit. Other dtypes: always equal. */
typedef struct Tolerance {
    double relative, absolute;
} Tolerance;

/* -1 when all n elements agree, else the first that does not. */
int64_t values_differ(kiln_dtype dtype, int64_t n, const void *a, const void *b, Tolerance tolerance);

/* Of n elements that are equal bit for bit it is the same. */
uint64_t values_hash(kiln_dtype dtype, int64_t n, const void *data);

#endif

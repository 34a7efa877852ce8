/*
 * Which part of a long test this run takes.
 *
 *     KILN_TEST_SLICES=N    the test is cut into N slices, of which this run takes one (unset, 1: all of it)
 *     KILN_TEST_SEED=S      which: S modulo N. S / N, the round, turns what a whole pass leaves out: layouts, mutations, seeds of fuzzers
 *
 * support/gated.sh sets both: N from tests/CMakeLists.txt (kiln_slices), S from the commit, whose number grows by one from commit to
 * commit; so N commits in a row take all slices, each once, and nothing needs to be kept between runs.
 *
 * Cases are numbered from 0. Each N in a row give one to each slice, and which of them moves on by one from N to N: a table
 * whose inner loop has N steps does not meet the same step each time.
 */
#ifndef TESTS_SUPPORT_SLICE_H
#define TESTS_SUPPORT_SLICE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline uint64_t slice_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static inline uint64_t slices(void)
{
    uint64_t n = slice_number("KILN_TEST_SLICES", 1);
    return n ? n : 1;
}

static inline uint64_t slice_seed(void) { return slice_number("KILN_TEST_SEED", 0); }
static inline uint64_t slice_round(void) { return slice_seed() / slices(); }

/* Does this run take case `number`? */
static inline bool slice_takes(uint64_t number)
{
    uint64_t n = slices();
    return (number + number / n) % n == slice_seed() % n;
}

/* The same of `count` cases where each run is to have one: with more slices than cases some come more often. */
static inline bool slice_takes_of(uint64_t number, uint64_t count)
{
    return slices() <= count ? slice_takes(number) : number == slice_seed() % count;
}

/* Of the cases of a test that a run has or has not (some_tests.c): one in n, others in each round. */
static inline bool slice_takes_in_turn(uint64_t number, uint64_t n) { return slices() == 1 || number % n == slice_round() % n; }

/* Seeds first, first + 1, ... of a fuzzer, `count` for a pass over all slices: those of this run, never twice the same. */
static inline void slice_seeds(uint64_t *first, uint64_t *count)
{
    uint64_t n = slices(), at = slice_seed() % n, begin = *count * at / n, end = *count * (at + 1) / n;
    *first += slice_round() * *count + begin;
    *count = end > begin ? end - begin : 1;
}

#endif

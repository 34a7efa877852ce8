/*
 * A second evaluator of guards, which knows nothing but their text: recursive descent over what guard_print writes.
 *
 *     guard   k2 == 0.5  |  6 <= s0 <= 9  |  (s0 * s1) == 12  |  s3 == s4
 *
 * Sums and products wrap, as those of the first evaluator.
 */
#ifndef TESTS_SUPPORT_GUARD_TEXT_H
#define TESTS_SUPPORT_GUARD_TEXT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum TextGuard {
    TEXT_BROKEN,
    TEXT_HOLDS,
    TEXT_CUT, /* the text leaves something out ("...") */
    TEXT_BAD  /* not a guard */
} TextGuard;

/* What a scalar is as a number; `single`: of a dtype that f32 holds, so that nine digits name it. */
typedef struct TextScalar {
    double value;
    bool single;
} TextScalar;

TextGuard text_guard(const char *text, const int64_t *ints, const TextScalar *scalars);

#endif

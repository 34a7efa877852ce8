/* Something new to compute: a graph that no cache has. For C and C++. */
#ifndef TESTS_EXIT_WORK_H
#define TESTS_EXIT_WORK_H

#define KILN_NO_LOCATIONS
#include "kiln.h"

/* Two kernels of a structure of its own for each of 4,096 numbers; false: the value is wrong, or there is none. */
static inline bool compute_new(unsigned number)
{
    static const float start[4] = {1, -2, 3, -4};
    double want = 0, got = 0;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(4), start);
    float at[4] = {1, -2, 3, -4};
    for (int step = 0; step < 6; step++, number /= 4) {
        kiln_tensor *next[4];
        next[0] = kiln_add(x, x);
        next[1] = kiln_neg(x);
        next[2] = kiln_abs(x);
        next[3] = kiln_square(x);
        x = next[number % 4];
        for (int i = 0; i < 4; i++) {
            float v = at[i], results[4] = {v + v, -v, v < 0 ? -v : v, v * v};
            at[i] = results[number % 4];
        }
    }
    for (int i = 0; i < 4; i++)
        want += at[i];
    kiln_status status = kiln_item(kiln_sum(x), &got);
    kiln_scope_end(scope);
    return status == KILN_OK && (got == want || got - want < 1e-4 * (want < 0 ? -want : want));
}

#endif

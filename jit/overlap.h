/*
 * Windows that overlap. Row j of a depthwise convolution reads rows j, j + 1 and j + 2 of its image, row j + 1 two of these again:
 *
 *     v0 = load a0[j*56 + k + l*56 + m]          j = 1, l = 0 is what j = 0, l = 1 is
 *
 * So several rows are one tile (the directive `rows` of a kernel with folds whose points have code of their own), and what a point of one
 * has computed another one takes. Which values that is follows from indices alone: each is a sum of multiples of coordinates, and what is
 * computed from none but indices that are equal is equal. A value knows the sums that it depends on (forms); at a row and a point of the
 * r axes, which are constants, each form is a number.
 */
#ifndef JIT_OVERLAP_H
#define JIT_OVERLAP_H

#include "jit/kernel_facts.h"
#include "jit/kernel_text.h"

enum { OVERLAP_FORMS = 32 };

typedef struct Overlap {
    uint32_t across, n;
    int64_t times[OVERLAP_FORMS][KERNEL_AXES]; /* of each form: the multiples of coordinates */
    uint32_t *forms;                           /* of an instruction: those that it depends on, a bit each */
    bool *alone;                               /* it depends on something else, too: what a fold made, or something that has an effect */
} Overlap;

/* Of the rows along axis `across`; their points are r axes of constant size. */
const Overlap *overlap_of(const KernelFacts *f, uint32_t across);
/* The forms at this row of the tile and this point of the r axes, counted row-major. */
void overlap_at(const KernelFacts *f, const Overlap *o, int64_t row, int64_t point, int64_t at[OVERLAP_FORMS]);
/* What so many rows of a tile load, of loads that differ from lane to lane. */
int64_t overlap_loads(const KernelFacts *f, const Overlap *o, int64_t rows);

#endif

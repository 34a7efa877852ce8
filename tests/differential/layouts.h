/*
 * The ways an operand can lie in memory. Each takes the logical elements (row-major) and gives a tensor with them, made of
 * memory that ends or starts at a guard page.
 */
#ifndef TESTS_DIFFERENTIAL_LAYOUTS_H
#define TESTS_DIFFERENTIAL_LAYOUTS_H

#include "tests/support/compare.h"
#include "tests/support/guarded.h"

typedef enum Layout {
    LAYOUT_PLAIN,      /* kiln_wrap, row-major */
    LAYOUT_STRIDED,    /* every second element, with gaps between rows */
    LAYOUT_NEGATIVE,   /* all strides negative */
    LAYOUT_COLUMNS,    /* column-major strides */
    LAYOUT_TRANSPOSED, /* kiln_permute of a row-major wrap */
    LAYOUT_SLICED,     /* kiln_slice with step 2 of a larger wrap */
    LAYOUT_FLIPPED,    /* kiln_flip of all axes */
    LAYOUT_RESHAPED,   /* kiln_reshape of a 1-D wrap */
    LAYOUT_COPIED,     /* kiln_from */
    LAYOUTS,
    /* for data that repeats along every other axis, the last one included (axis_repeats) */
    LAYOUT_EXPANDED = LAYOUTS, /* kiln_expand */
    LAYOUT_STRIDE_0,           /* stride 0 */
    LAYOUTS_ALL
} Layout;

/* Is it another case than LAYOUT_PLAIN? On a device (KILN_DEVICE) operands are dense copies, and only views are. */
bool layout_matters(Layout layout);
bool axis_repeats(int rank, int axis);

extern const char *const layout_names[LAYOUTS_ALL];

/* A placed operand: the tensor (owned by the innermost scope) and the memory behind it. */
typedef struct Placed {
    kiln_tensor *tensor;
    Guarded memory; /* data NULL: none */
    void *before;   /* copy of the memory, to see that nobody wrote to it */
} Placed;

Placed place(kiln_dtype dtype, kiln_shape shape, const void *elements, Layout layout);
/* Row-major, `offset` elements after a 64-byte boundary. */
Placed place_at(kiln_dtype dtype, kiln_shape shape, const void *elements, size_t offset);
/* Makes row-major elements repeat along the axes that axis_repeats names. */
void make_repeat(kiln_dtype dtype, kiln_shape shape, void *elements);
bool placed_intact(const Placed *placed);
void placed_free(Placed *placed); /* after the scope of the tensor ended */

#endif

/*
 * Panels: the form in which register tiles read the lane operand of a product (jit/llvm/cpu/contract.h). A product packs it to them in
 * every call, for each task and each band of rows; one that is made of constants alone is kept in that form (panels_keep), one that many of them
 * multiply by is brought to it before them (panels_before_products), cast to what sums are where it is cast, and it is read where it lies.
 *
 *     [the other axes that it varies along]...[panel][step of k][point of the panel][element of a step]
 *
 * The last panel ends with zeros, as does the last step where it takes several elements.
 */
#ifndef JIT_PANELS_H
#define JIT_PANELS_H

#include "jit/constants.h"
#include "jit/kernel_text.h"
#include "jit/options.h"
#include "jit/plan.h"

typedef struct PanelLayout {
    uint32_t lane;       /* the axis along which panels lie beside each other; k is the last axis */
    uint32_t axes;       /* the others that the operand varies along: a bit set */
    int64_t width, each; /* points of a panel; elements of a step */
    int64_t steps, panels, elements;
    int64_t stride[KERNEL_AXES]; /* of `axes` */
} PanelLayout;

/* Of what varies along `axes`, in panels of `width` along `lane`. false: not all sizes are constants, or there are no panels of them. */
bool panel_layout(const Kernel *k, uint32_t axes, uint32_t lane, int64_t width, int64_t each, PanelLayout *out);
/* The one product that multiplies by what is loaded, which may be cast (dot_uncast); VREF_NONE: something else reads it, too. */
VRef panel_product(const Kernel *k, VRef load);
/* That of what a load reads, whose argument has panels (KArg.panel). A step's elements are as large as a sum. */
bool panel_layout_of(const Kernel *k, VRef load, PanelLayout *out);
/* Where a point lies in it. */
IRef panel_index(Kernel *k, const PanelLayout *layout);

/*
 * After planning: products that pack an operand read panels of it from then on, where it is a marked input, or a value that is kept, which
 * graphs[] makes, and nobody else reads it. What makes the panels stands in graphs[] and plans[]: as one more, or behind what makes the
 * value. n_inputs: of the call. `told`: as LOG_FUSION (NULL: nowhere else).
 */
typedef VEC(Plan) Plans;
void panels_keep(Graph *g, const JitOptions *options, uint32_t n_inputs, Plan *plan, Constants *graphs, Plans *plans, Str *told);

/* Products read panels that a step before them, or before their band, makes, where they have tasks or bands of rows enough. Before buffers are planned. */
void panels_before_products(Graph *g, const JitOptions *options, Plan *plan, Str *told);

#endif

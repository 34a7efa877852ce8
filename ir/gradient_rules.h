/*
 * What the functions of ir/gradients.def are written against. Internal to ir/gradient*.c. Each operand that is built has a statement, or a
 * declarator, of its own: arguments of one call are evaluated in an order that differs between compilers, and with it the numbers of nodes.
 */
#ifndef IR_GRADIENT_RULES_H
#define IR_GRADIENT_RULES_H

#include "ir/gradient.h"
#include "ir/rules.h"

typedef VEC(Ref) Parts;

typedef struct Gradient {
    Graph *g;
    Rewriter w;   /* adds nodes; applies no rules */
    Ref end;      /* nodes before it were there; they alone are differentiated */
    bool *wanted; /* of those: is it, or does it depend on, one of `in`? */
    bool *is_in;
    const GradientCalls *calls;
    uint32_t *call_of; /* of each node: 1 + the number of the call that it is a result of; 0: none; NULL: there are no calls */
    Parts *parts;      /* reverse mode: the cotangents that met so far; of the node's dtype, or of its accumulator's */
    Ref *tangent;      /* forward mode */
} Gradient;

/* Reverse mode: gives the inputs of node r, whose cotangent is g (of its dtype), what flows to them. */
typedef void VjpFn(Gradient *d, Ref r, Ref g);
/* Forward mode: the tangent of node r from those of its inputs, of which at least one is not REF_NONE; of its dtype or its accumulator's. */
typedef Ref JvpFn(Gradient *d, Ref r, const Ref *t);

static inline Node node_of(const Gradient *d, Ref r) { return *graph_node(d->g, r); } /* a copy: nodes move when some are added */
static inline DType dtype_of(const Gradient *d, Ref r) { return (DType)graph_node(d->g, r)->dtype; }
/* Does anything that was asked for depend on the k-th input of r? */
bool grad_wants(const Gradient *d, Ref r, uint32_t k);
/* Adds to the cotangent of node x. */
void grad_give(Gradient *d, Ref x, Ref part);

/* What flows to the operand of a reshape r; axes that r keeps may have other sizes in g. */
Ref grad_regrouped(Gradient *d, Ref r, Ref g);
Ref grad_unwindowed(Gradient *d, Ref r, Ref g);
/* Of a product, or a sum, that is a convolution: gives the images, of a sum the weights, too, what flows to them. false: it is none. */
bool vjp_product_of_windows(Gradient *d, Ref r, Ref g);
bool vjp_sum_of_windows(Gradient *d, Ref r, Ref g);
/* part, but 0 where x is beaten by the extreme of its place, `best`, of reduction r. */
Ref grad_unless_beaten(Gradient *d, Ref r, Ref x, Ref best, Ref part);
/* Of the extreme r of windows: gives the images what flows to them, `part` for each element of a window that is as extreme. */
bool vjp_extreme_of_windows(Gradient *d, Ref r, Ref part);

/* ---- building (ir/gradient_build.c) ---- */

Ref grad_node(Gradient *d, Op op, const Ref *in, uint32_t n_in, const Attr *attr, const Dim *facts,
              uint32_t n_facts); /* of in[0]'s dtype */
Ref grad_ew1(Gradient *d, Op op, Ref a);
Ref grad_ew2(Gradient *d, Op op, Ref a, Ref b);
Ref grad_where(Gradient *d, Ref c, Ref a, Ref b);
Ref grad_cast(Gradient *d, Ref x, DType dtype);
Ref grad_wide(Gradient *d, Ref x);                                 /* f16 and bf16 as f32, others as they are */
Ref grad_number(Gradient *d, DType dtype, double value, Ref like); /* repeated to the shape of `like` */
Ref grad_zero(Gradient *d, DType dtype, int rank, const Dim *dims);
Dim grad_fact(Gradient *d, int64_t value, FactKind kind, uint8_t axis); /* a fact of the next node */
Ref grad_insert(Gradient *d, Ref x, uint8_t mask);                      /* axes of size 1, which become those of mask */
Ref grad_repeat(Gradient *d, Ref x, uint8_t mask, const Dim *dims);     /* axes of mask, of size 1, to those of dims */
Ref grad_reduce(Gradient *d, Op op, Ref x, uint8_t mask);               /* drops the axes */
Ref grad_spread(Gradient *d, Ref x, uint8_t mask, const Dim *dims);     /* what was reduced over mask, repeated to dims */
Ref grad_permute(Gradient *d, Ref x, const uint8_t *perm);
Ref grad_transposed(Gradient *d, Ref x);                                  /* the last two axes exchanged */
Ref grad_product(Gradient *d, Ref a, Ref b);                              /* MATMUL */
Ref grad_positions(Gradient *d, uint8_t axis, int rank, const Dim *dims); /* 0, 1, 2, ... along an axis, repeated to these sizes */
Ref grad_merge(Gradient *d, Ref x, int axis, int n);                      /* n axes from `axis` on become one */
Ref grad_split(Gradient *d, Ref x, int axis, int n, const Dim *dims);     /* the axis becomes n axes of those sizes */
Ref grad_slice(Gradient *d, Ref x, int axis, Dim start, Dim step, Dim length);
Ref grad_pad(Gradient *d, Ref x, int axis, Dim low, Dim high); /* with zeros */
Ref grad_flip(Gradient *d, Ref x, int axis);
Ref grad_along(Gradient *d, Ref x, int axis, int rank, const Dim *dims); /* rank 1 repeated along all axes but one */

/* The functions that the table names. */
#define NONE(op)
#define ZERO(op)
#define REFUSED(op)
#define EW1(op, x)
#define EW2(op, x, y)
#define EW3(op, x, y, z)
#define LINEAR(op, inputs, vjp) VjpFn vjp;
#define OWN(op, inputs, vjp, jvp) \
    VjpFn vjp;                    \
    JvpFn jvp;
#include "ir/gradients.def"
#undef NONE
#undef ZERO
#undef REFUSED
#undef EW1
#undef EW2
#undef EW3
#undef LINEAR
#undef OWN

#endif

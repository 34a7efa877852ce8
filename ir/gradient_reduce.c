/* Derivatives of reductions and of running sums. */
#include "ir/gradient_rules.h"

void vjp_sum(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    if (!vjp_sum_of_windows(d, r, g))
        grad_give(d, n.in[0], grad_spread(d, g, n.attr.mask, x.dim));
}

/* The sum of g over what comes after. */
void vjp_cumsum(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r);
    Ref back = grad_flip(d, g, n.attr.axis);
    back = grad_node(d, OP_CUMSUM, &back, 1, &n.attr, NULL, 0);
    grad_give(d, n.in[0], grad_flip(d, back, n.attr.axis));
}

/* ---- maximum and minimum: shared evenly among all equal elements; a NaN gives NaN ---- */

typedef struct Extreme {
    Ref x, best; /* of the input's shape: it, and the result */
    Ref share;   /* of the result's: 1 / how many are equal to it */
} Extreme;

static Extreme extreme(Gradient *d, Ref r)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    Ref wide = grad_wide(d, n.in[0]), result = grad_wide(d, r);
    DType dtype = dtype_of(d, wide);
    d->g->stop = true; /* who shares is constant wherever it has a derivative */
    Ref best = grad_spread(d, result, n.attr.mask, x.dim), equal = grad_ew2(d, OP_EQ, wide, best);
    Ref one = grad_number(d, dtype, 1, wide);
    equal = grad_where(d, equal, one, grad_number(d, dtype, 0, wide));
    Ref share = grad_ew1(d, OP_RECIPROCAL, grad_reduce(d, OP_REDUCE_SUM, equal, n.attr.mask));
    share = grad_where(d, grad_ew1(d, OP_ISNAN, result), result, share);
    d->g->stop = false;
    return (Extreme){wide, best, share};
}

Ref grad_unless_beaten(Gradient *d, Ref r, Ref x, Ref best, Ref part)
{
    d->g->stop = true;
    Ref loses = grad_ew2(d, graph_node(d->g, r)->op == OP_REDUCE_MAX ? OP_LT : OP_GT, x, best);
    d->g->stop = false;
    return grad_where(d, loses, grad_number(d, dtype_of(d, part), 0, part), part);
}

void vjp_extreme(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    Extreme e = extreme(d, r);
    Ref part = grad_ew2(d, OP_MUL_NO_NAN, grad_wide(d, g), e.share);
    if (!vjp_extreme_of_windows(d, r, part))
        grad_give(d, n.in[0], grad_unless_beaten(d, r, e.x, e.best, grad_spread(d, part, n.attr.mask, x.dim)));
}

Ref jvp_extreme(Gradient *d, Ref r, const Ref *t)
{
    const Node n = node_of(d, r);
    Extreme e = extreme(d, r);
    Ref moved = grad_reduce(d, OP_REDUCE_SUM, grad_unless_beaten(d, r, e.x, e.best, grad_wide(d, t[0])), n.attr.mask);
    return grad_ew2(d, OP_MUL_NO_NAN, moved, e.share);
}

/*
 * The product of the others. Where an element is not 0: r / x, in which r is the product itself, so that its derivatives are right, too. Of
 * an element that is 0: the product of all that are not 0, times the other 0, if there is one, which is the sum of both less the element. Beside
 * two others it is 0, as are its first derivatives and, wrongly, its second one with respect to these two.
 */
static Ref others(Gradient *d, Ref r)
{
    const Node n = node_of(d, r), dims = node_of(d, n.in[0]);
    Ref x = grad_wide(d, n.in[0]);
    DType dtype = dtype_of(d, x);
    Ref zero = grad_number(d, dtype, 0, x), one = grad_number(d, dtype, 1, x), is_zero = grad_ew2(d, OP_EQ, x, zero);
    Ref zeros = grad_reduce(d, OP_REDUCE_SUM, grad_where(d, is_zero, one, zero), n.attr.mask);
    Ref rest = grad_reduce(d, OP_REDUCE_PROD, grad_where(d, is_zero, one, x), n.attr.mask);
    Ref both = grad_reduce(d, OP_REDUCE_SUM, grad_where(d, is_zero, x, zero), n.attr.mask);
    zeros = grad_spread(d, zeros, n.attr.mask, dims.dim);
    Ref other = grad_ew2(d, OP_SUB, grad_spread(d, both, n.attr.mask, dims.dim), x);
    Ref two = grad_ew2(d, OP_EQ, zeros, grad_number(d, dtype, 2, x)), only = grad_ew2(d, OP_EQ, zeros, one);
    other = grad_where(d, only, one, grad_where(d, two, other, zero));
    Ref alone = grad_ew2(d, OP_MUL_NO_NAN, other, grad_spread(d, rest, n.attr.mask, dims.dim));
    Ref quotient = grad_ew2(d, OP_DIV, grad_spread(d, grad_wide(d, r), n.attr.mask, dims.dim), x);
    return grad_where(d, is_zero, alone, quotient);
}

void vjp_prod(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    Ref factor = others(d, r);
    grad_give(d, n.in[0], grad_ew2(d, OP_MUL_NO_NAN, grad_spread(d, grad_wide(d, g), n.attr.mask, x.dim), factor));
}

Ref jvp_prod(Gradient *d, Ref r, const Ref *t)
{
    const Node n = node_of(d, r);
    Ref factor = others(d, r);
    return grad_reduce(d, OP_REDUCE_SUM, grad_ew2(d, OP_MUL_NO_NAN, grad_wide(d, t[0]), factor), n.attr.mask);
}

/*
 * Derivatives of the matrix product: g b^T and a^T g.
 *
 * An operand that is repeated over batch axes (a weight that all of a batch share) gets the sum over these. They are merged into the axis that the
 * product sums over, so that this is one product, [b m, k]^T [b m, n], and no sum of products after it.
 */
#include "ir/gradient_rules.h"

/* The batch axes over which operand k of a product is repeated, and where nobody asks for the repeated value itself. */
static uint8_t repeated_over(const Gradient *d, Ref operand)
{
    const Node *n = graph_node(d->g, operand);
    unsigned batch = (1u << (n->rank - 2)) - 1;
    bool only_batch = n->op == OP_EXPAND && !(n->attr.mask & ~batch);
    return only_batch && !n->stop && !d->is_in[operand] && d->wanted[n->in[0]] ? n->attr.mask : 0;
}

/* x with the axes of mask merged into the one that is `summed`, 2 or 1 axes before the end; order: others, (mask, summed) and the last axis in their
 * order. */
static Ref merged(Gradient *d, Ref x, uint8_t mask, int before_end)
{
    uint8_t perm[MAX_RANK], rank = graph_node(d->g, x)->rank, n = 0, many = (uint8_t)__builtin_popcount(mask);
    for (uint8_t k = 0; k < rank - 2; k++)
        if (!(mask >> k & 1))
            perm[n++] = k;
    uint8_t others = n;
    if (before_end == 1)
        perm[n++] = (uint8_t)(rank - 2);
    for (uint8_t k = 0; k < rank - 2; k++)
        if (mask >> k & 1)
            perm[n++] = k;
    if (before_end == 2)
        perm[n++] = (uint8_t)(rank - 2);
    perm[n] = (uint8_t)(rank - 1);
    return grad_merge(d, grad_permute(d, x, perm), before_end == 1 ? others + 1 : others, many + 1);
}

void vjp_matmul(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r);
    Ref a = n.in[0], b = n.in[1];
    if (grad_wants(d, r, 0)) {
        uint8_t mask = repeated_over(d, a);
        if (mask) {
            Ref left = merged(d, g, mask, 1), sum = grad_product(d, left, grad_transposed(d, merged(d, b, mask, 1)));
            grad_give(d, graph_node(d->g, a)->in[0], grad_insert(d, sum, mask));
        } else
            grad_give(d, a, grad_product(d, g, grad_transposed(d, b)));
    }
    if (grad_wants(d, r, 1) && !vjp_product_of_windows(d, r, g)) {
        uint8_t mask = repeated_over(d, b);
        if (mask) {
            Ref left = grad_transposed(d, merged(d, a, mask, 2)), sum = grad_product(d, left, merged(d, g, mask, 2));
            grad_give(d, graph_node(d->g, b)->in[0], grad_insert(d, sum, mask));
        } else
            grad_give(d, b, grad_product(d, grad_transposed(d, a), g));
    }
}

Ref jvp_matmul(Gradient *d, Ref r, const Ref *t)
{
    const Node n = node_of(d, r);
    Ref left = t[0] == REF_NONE ? REF_NONE : grad_product(d, t[0], n.in[1]);
    Ref right = t[1] == REF_NONE ? REF_NONE : grad_product(d, n.in[0], t[1]);
    if (left == REF_NONE || right == REF_NONE)
        return left == REF_NONE ? right : left;
    left = grad_wide(d, left);
    return grad_ew2(d, OP_ADD, left, grad_wide(d, right));
}

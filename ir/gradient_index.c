/* Derivatives of gathers and scatters. */
#include "ir/gradient_rules.h"

static Ref gathered(Gradient *d, Ref x, Ref index, uint8_t axis)
{
    Attr attr = {.axis = axis};
    return grad_node(d, OP_GATHER, (const Ref[]){x, index}, 2, &attr, NULL, 0);
}

static Ref scattered(Gradient *d, Ref x, Ref index, Ref source, uint8_t axis, ScatterMode mode)
{
    Attr attr = {.axis = axis, .mode = (uint8_t)mode};
    return grad_node(d, OP_SCATTER, (const Ref[]){x, index, source}, 3, &attr, NULL, 0);
}

/* Has the index one place along the axis in every graph of the structure: is it an axis that was inserted? */
static bool one_place(const Gradient *d, Ref index, uint8_t axis)
{
    const Node *n = graph_node(d->g, index);
    if (n->op != OP_RESHAPE)
        return false;
    for (uint32_t k = 0, at = 0; k < n->attr.n; at += n->attr.group.out[k++])
        if (at <= axis && axis < at + n->attr.group.out[k])
            return n->attr.group.in[k] == 0 && n->attr.group.out[k] == 1;
    return false;
}

/* Where an index with one place along the axis points. The position is taken from all positions by the index, so a negative one counts from the
 * end and one that is out of bounds is an error, be the gradient all that is asked for. */
static Ref points_here(Gradient *d, Ref index, uint8_t axis, int rank, const Dim *dims)
{
    Ref here = grad_positions(d, axis, rank, dims), at = gathered(d, here, index, axis);
    return grad_ew2(d, OP_EQ, here, grad_repeat(d, at, (uint8_t)(1u << axis), dims));
}

/* g is added where it was taken from. Of one place that is a choice for each element, which fuses; else a scatter, in f32 for f16 and
 * bf16, as each of its steps rounds. */
void vjp_gather(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    uint8_t axis = n.attr.axis, mask = (uint8_t)(1u << axis);
    Ref index = n.in[1];
    if (one_place(d, index, axis)) {
        Ref here = points_here(d, index, axis, x.rank, x.dim);
        Ref there = grad_repeat(d, g, mask, x.dim);
        grad_give(d, n.in[0], grad_where(d, here, there, grad_zero(d, (DType)n.dtype, x.rank, x.dim)));
        return;
    }
    g = grad_wide(d, g);
    Ref sum = scattered(d, grad_zero(d, dtype_of(d, g), x.rank, x.dim), index, g, axis, SCATTER_ADD);
    grad_give(d, n.in[0], sum);
}

/* Did the source's element stay: is it the last that was written to its place? */
static Ref stayed(Gradient *d, const Node *n, const Node *x, const Node *source)
{
    uint8_t axis = n->attr.axis;
    Ref own = grad_positions(d, axis, source->rank, source->dim);
    Ref last = scattered(d, grad_zero(d, DT_I64, x->rank, x->dim), n->in[1], own, axis, SCATTER_SET);
    return grad_ew2(d, OP_EQ, gathered(d, last, n->in[1], axis), own);
}

/* 1 where c, else 0 */
static Ref ones_where(Gradient *d, Ref c, DType dtype)
{
    Ref one = grad_number(d, dtype, 1, c);
    return grad_where(d, c, one, grad_number(d, dtype, 0, c));
}

typedef struct Shared {
    Ref x_loses, source_loses; /* is it beaten by another? */
    Ref share;                 /* of the result's shape: 1 / how many are equal to it; NaN where it is NaN */
} Shared;

/* SCATTER_MAX and _MIN: x and the sources that are equal to the result share it evenly. */
static Shared shared(Gradient *d, Ref r, const Node *n)
{
    uint8_t axis = n->attr.axis;
    Op beaten = n->attr.mode == SCATTER_MAX ? OP_LT : OP_GT;
    Ref x = grad_wide(d, n->in[0]), source = grad_wide(d, n->in[2]), result = grad_wide(d, r), index = n->in[1];
    DType dtype = dtype_of(d, x);
    d->g->stop = true; /* who shares is constant wherever it has a derivative */
    Ref best = gathered(d, result, index, axis);
    Ref count = ones_where(d, grad_ew2(d, OP_EQ, x, result), dtype), ones = ones_where(d, grad_ew2(d, OP_EQ, source, best), dtype);
    Ref share = grad_ew1(d, OP_RECIPROCAL, scattered(d, count, index, ones, axis, SCATTER_ADD));
    share = grad_where(d, grad_ew1(d, OP_ISNAN, result), result, share);
    Ref x_loses = grad_ew2(d, beaten, x, result), source_loses = grad_ew2(d, beaten, source, best);
    d->g->stop = false;
    return (Shared){x_loses, source_loses, share};
}

void vjp_scatter(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]), source = node_of(d, n.in[2]);
    uint8_t axis = n.attr.axis;
    DType dtype = (DType)n.dtype;
    bool to_x = grad_wants(d, r, 0), to_source = grad_wants(d, r, 2);
    Ref index = n.in[1];
    switch ((ScatterMode)n.attr.mode) {
    case SCATTER_SET:
        if (to_x)
            grad_give(d, n.in[0], scattered(d, g, index, grad_zero(d, dtype, source.rank, source.dim), axis, SCATTER_SET));
        if (to_source) {
            Ref zero = grad_zero(d, dtype, source.rank, source.dim), kept = stayed(d, &n, &x, &source);
            grad_give(d, n.in[2], grad_where(d, kept, gathered(d, g, index, axis), zero));
        }
        break;
    case SCATTER_ADD:
        if (to_x)
            grad_give(d, n.in[0], g);
        if (to_source)
            grad_give(d, n.in[2], gathered(d, g, index, axis));
        break;
    case SCATTER_MAX:
    case SCATTER_MIN: {
        Shared s = shared(d, r, &n);
        Ref part = grad_ew2(d, OP_MUL_NO_NAN, grad_wide(d, g), s.share);
        if (to_x)
            grad_give(d, n.in[0], grad_where(d, s.x_loses, grad_number(d, dtype_of(d, part), 0, part), part));
        if (to_source) {
            Ref taken = gathered(d, part, index, axis);
            grad_give(d, n.in[2], grad_where(d, s.source_loses, grad_number(d, dtype_of(d, part), 0, taken), taken));
        }
        break;
    }
    }
}

static Ref tangent_or_zero(Gradient *d, Ref t, Ref x) { return grad_wide(d, t == REF_NONE ? grad_number(d, dtype_of(d, x), 0, x) : t); }

Ref jvp_scatter(Gradient *d, Ref r, const Ref *t)
{
    const Node n = node_of(d, r);
    Ref x = tangent_or_zero(d, t[0], n.in[0]), source = tangent_or_zero(d, t[2], n.in[2]);
    if (n.attr.mode == SCATTER_SET || n.attr.mode == SCATTER_ADD)
        return scattered(d, x, n.in[1], source, n.attr.axis, (ScatterMode)n.attr.mode);
    Shared s = shared(d, r, &n);
    x = grad_where(d, s.x_loses, grad_number(d, dtype_of(d, x), 0, x), x);
    source = grad_where(d, s.source_loses, grad_number(d, dtype_of(d, source), 0, source), source);
    return grad_ew2(d, OP_MUL_NO_NAN, scattered(d, x, n.in[1], source, n.attr.axis, SCATTER_ADD), s.share);
}

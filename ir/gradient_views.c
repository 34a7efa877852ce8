/* Derivatives of what moves elements, and of casts. */
#include "ir/gradient_rules.h"

void vjp_cast(Gradient *d, Ref r, Ref g)
{
    Ref x = graph_node(d->g, r)->in[0];
    grad_give(d, x, grad_cast(d, g, dtype_of(d, x)));
}

Ref jvp_cast(Gradient *d, Ref r, const Ref *t) { return grad_cast(d, t[0], dtype_of(d, r)); }

/* Groups the other way round. */
Ref grad_regrouped(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    Attr attr = {.n = n.attr.n};
    Dim facts[MAX_RANK];
    uint32_t n_facts = 0;
    for (uint32_t k = 0, axis = 0; k < attr.n; k++) {
        attr.group.in[k] = n.attr.group.out[k];
        attr.group.out[k] = n.attr.group.in[k];
        for (uint32_t i = 0; i < attr.group.out[k] && attr.group.out[k] > 1; i++)
            facts[n_facts++] = x.dim[axis + i];
        axis += attr.group.out[k];
    }
    return grad_node(d, OP_RESHAPE, &g, 1, &attr, facts, n_facts);
}

void vjp_reshape(Gradient *d, Ref r, Ref g) { grad_give(d, graph_node(d->g, r)->in[0], grad_regrouped(d, r, g)); }

void vjp_permute(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r);
    uint8_t inverse[MAX_RANK];
    for (uint8_t k = 0; k < n.rank; k++)
        inverse[n.attr.perm[k]] = k;
    grad_give(d, n.in[0], grad_permute(d, g, inverse));
}

void vjp_expand(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r);
    grad_give(d, n.in[0], grad_insert(d, grad_reduce(d, OP_REDUCE_SUM, g, n.attr.mask), n.attr.mask));
}

void vjp_concat(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r);
    Dim start = dim_const(d->g, 0), one = dim_const(d->g, 1);
    for (uint32_t k = 0; k < n.n_in; k++) {
        Dim length = graph_node(d->g, n.in[k])->dim[n.attr.axis];
        if (grad_wants(d, r, k))
            grad_give(d, n.in[k], grad_slice(d, g, n.attr.axis, start, one, length));
        start = dim_add(d->g, start, length);
    }
}

/* x gets its part; the value the sum of what is outside of x. */
void vjp_pad(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    if (grad_wants(d, r, 0)) {
        Ref part = g;
        for (int axis = 0, f = 0; axis < n.rank; axis++)
            if (n.attr.mask >> axis & 1)
                part = grad_slice(d, part, axis, n.fact[2 * f++], dim_const(d->g, 1), x.dim[axis]);
        grad_give(d, n.in[0], part);
    }
    if (grad_wants(d, r, 1)) {
        Ref in[2] = {grad_zero(d, DT_BOOL, x.rank, x.dim)};
        in[1] = graph_add_const(d->g, DT_BOOL, 1, (Loc){0});
        Ref outside = grad_node(d, OP_PAD, in, 2, &n.attr, n.fact, n.n_facts);
        Ref rest = grad_where(d, outside, g, grad_zero(d, (DType)n.dtype, n.rank, n.dim));
        grad_give(d, n.in[1], grad_reduce(d, OP_REDUCE_SUM, rest, (uint8_t)((1u << n.rank) - 1)));
    }
}

/* ---- slices ---- */

/* g added at the places start, start + step, ... of zeros of size dim: what any step allows. */
static Ref scattered(Gradient *d, Ref g, uint8_t axis, int64_t start, int64_t step, Dim dim)
{
    const Node n = node_of(d, g);
    Ref at = rewrite_add(&d->w, OP_IOTA, DT_I64, NULL, 0, NULL, &n.dim[axis], 1, (Loc){0});
    Ref factor = graph_add_scalar(d->g, DT_I64, (uint64_t)step, (Loc){0}),
        offset = graph_add_scalar(d->g, DT_I64, (uint64_t)start, (Loc){0});
    at = grad_ew2(d, OP_MUL, at, rewrite_broadcast(&d->w, factor, 1, &n.dim[axis], (Loc){0}));
    at = grad_ew2(d, OP_ADD, at, rewrite_broadcast(&d->w, offset, 1, &n.dim[axis], (Loc){0}));
    Dim dims[MAX_RANK];
    for (int k = 0; k < n.rank; k++)
        dims[k] = k == axis ? dim : n.dim[k];
    g = grad_wide(d, g);
    Ref zeros = grad_zero(d, dtype_of(d, g), n.rank, dims), in[3] = {zeros, grad_along(d, at, axis, n.rank, n.dim), g};
    Attr attr = {.axis = axis, .mode = SCATTER_ADD};
    return grad_cast(d, grad_node(d, OP_SCATTER, in, 3, &attr, NULL, 0), (DType)n.dtype);
}

/* step - 1 zeros after each element along an axis, but for the last. The rank is below the greatest. */
static Ref spread_out(Gradient *d, Ref g, uint8_t axis, int64_t step)
{
    int64_t length = dim_hint(d->g, graph_node(d->g, g)->dim[axis]);
    g = grad_insert(d, g, (uint8_t)(1u << (axis + 1)));
    g = grad_pad(d, g, axis + 1, dim_const(d->g, 0), grad_fact(d, step - 1, FACT_HIGH, (uint8_t)(axis + 1)));
    g = grad_merge(d, g, axis, 2);
    return grad_slice(d, g, axis, dim_const(d->g, 0), dim_const(d->g, 1),
                      grad_fact(d, length ? (length - 1) * step + 1 : 0, FACT_LENGTH, axis));
}

/* The cotangent of what a slice along one axis took from an axis of size `dim`. */
static Ref unsliced(Gradient *d, Ref g, uint8_t axis, int64_t start, int64_t step, Dim dim)
{
    const Node n = node_of(d, g);
    int64_t size = dim_hint(d->g, dim), length = dim_hint(d->g, n.dim[axis]), taken = length, low = start;
    if (step == 0 || (step != 1 && step != -1 && n.rank == MAX_RANK))
        return scattered(d, g, axis, start, step, dim);
    if (step < 0) {
        g = grad_flip(d, g, axis);
        low = start + (length - 1) * step;
        step = -step;
    }
    if (step != 1) {
        g = spread_out(d, g, axis, step);
        taken = length ? (length - 1) * step + 1 : 0;
    }
    if (!length)
        low = 0;
    Dim before = grad_fact(d, low, FACT_LOW, axis);
    return grad_pad(d, g, axis, before, grad_fact(d, size - low - taken, FACT_HIGH, axis));
}

void vjp_slice(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    const Dim *fact = n.fact;
    for (uint8_t axis = 0; axis < n.rank; axis++) {
        if (!(n.attr.mask >> axis & 1))
            continue;
        g = unsliced(d, g, axis, dim_hint(d->g, fact[0]), dim_hint(d->g, fact[1]), x.dim[axis]);
        fact += 3;
    }
    grad_give(d, n.in[0], g);
}

/* ---- windows ---- */

enum { MOST_MET = 9 /* windows that an element is in, along an axis, each of which is a term of the sum */ };

/* Of windows that are `stride` apart their taps, rounded up to so many: [met, stride]. */
static Ref taps_by_stride(Gradient *d, Ref g, uint8_t tap, int64_t met, Dim stride)
{
    int64_t beyond = met * dim_hint(d->g, stride) - dim_hint(d->g, graph_node(d->g, g)->dim[tap]);
    if (beyond)
        g = grad_pad(d, g, tap, dim_const(d->g, 0), grad_fact(d, beyond, FACT_HIGH, tap));
    return grad_split(d, g, tap, 2, (const Dim[]){grad_fact(d, met, FACT_SIZE, tap), stride});
}

/*
 * Windows of a few taps, at least as many as they are apart: element q * stride + p meets tap t * stride + p of window q - t. So what flows to
 * [q, p] is the sum over t of g[q - t, t, p], of which each term is g moved along q. Where no windows overlap there is one, and nothing is
 * moved.
 */
static Ref met_one_by_one(Gradient *d, Ref g, uint8_t axis, int64_t met, const Node *window, Dim dim)
{
    const uint8_t tap = axis + 1;
    const Dim one = dim_const(d->g, 1), stride = window->fact[0];
    const int64_t step = dim_hint(d->g, stride), dilation = dim_hint(d->g, window->fact[1]), length = dim_hint(d->g, dim),
                  windows = dim_hint(d->g, window->fact[2]), all = windows + (met - 1) * dilation,
                  places = all * step > length ? all : (length + step - 1) / step;
    Ref sum = REF_NONE;
    if (step != 1)
        g = taps_by_stride(d, g, tap, met, stride);
    for (int64_t t = 0; t < met; t++) {
        Ref part = met == 1 ? g : grad_slice(d, g, tap, grad_fact(d, t, FACT_START, tap), one, one);
        part = grad_merge(d, part, axis, 2);
        if (places != windows) {
            Dim low = grad_fact(d, t * dilation, FACT_LOW, axis);
            part = grad_pad(d, part, axis, low, grad_fact(d, places - windows - t * dilation, FACT_HIGH, axis));
        }
        sum = sum == REF_NONE ? part : grad_ew2(d, OP_ADD, sum, part);
    }
    if (step != 1) {
        sum = grad_merge(d, sum, axis, 2);
        sum = places * step == length ? sum : grad_slice(d, sum, axis, dim_const(d->g, 0), one, dim);
    }
    return sum;
}

/*
 * Of windows of many taps, or without room for another axis: what flows to element i is the sum over t of g[i - t * dilation, t], where
 * there is such a window: rows of g, one for each t, moved by t * dilation and added up. Rows of [size, dim + dilation], padded with zeros and
 * read as rows of `dim`, are moved just so.
 */
static Ref moved_rows(Gradient *d, Ref g, uint8_t axis, int64_t dilation, Dim size, Dim dim)
{
    const Node n = node_of(d, g);
    uint8_t swap[MAX_RANK];
    for (uint8_t k = 0; k < MAX_RANK; k++)
        swap[k] = k;
    swap[axis] = axis + 1;
    swap[axis + 1] = axis;
    int64_t high = dim_hint(d->g, dim) + dilation - dim_hint(d->g, n.dim[axis]);
    g = grad_permute(d, g, swap);
    g = grad_pad(d, g, axis + 1, dim_const(d->g, 0), grad_fact(d, high, FACT_HIGH, (uint8_t)(axis + 1)));
    g = grad_merge(d, g, axis, 2);
    g = grad_slice(d, g, axis, dim_const(d->g, 0), dim_const(d->g, 1), dim_mul(d->g, size, dim));
    Attr split = {.n = n.rank - 1u};
    for (uint32_t k = 0; k < split.n; k++) {
        split.group.in[k] = 1;
        split.group.out[k] = k == axis ? 2 : 1;
    }
    return grad_node(d, OP_RESHAPE, &g, 1, &split, (const Dim[]){size, dim}, 2);
}

/* The cotangent of what windows are taken from, f16 and bf16 as f32: for those taken of windows again, which have one rounding then. */
Ref grad_unwindowed(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    uint8_t axis = n.attr.axis, tap = (uint8_t)(axis + 1);
    int64_t stride = dim_hint(d->g, n.fact[0]), dilation = dim_hint(d->g, n.fact[1]), size = dim_hint(d->g, n.fact[3]);
    int64_t met = stride <= size && dim_hint(d->g, n.fact[2]) ? (size + stride - 1) / stride : 0;
    g = grad_wide(d, g);
    if (met && met <= MOST_MET && (stride == 1 || (dilation == 1 && n.rank < MAX_RANK)))
        return met_one_by_one(d, g, axis, met, &n, x.dim[axis]);
    if (stride == 1 || n.rank < MAX_RANK) {
        if (stride != 1)
            g = spread_out(d, g, axis, stride);
        return grad_reduce(d, OP_REDUCE_SUM, moved_rows(d, g, axis, dilation, n.fact[3], x.dim[axis]), (uint8_t)(1u << axis));
    }
    Ref sum = REF_NONE; /* no room for the axis that spread_out needs: one t after another */
    for (int64_t t = 0; t < size; t++) {
        Ref row = grad_slice(d, g, tap, grad_fact(d, t, FACT_START, tap), dim_const(d->g, 1), dim_const(d->g, 1));
        row = grad_reduce(d, OP_REDUCE_SUM, row, (uint8_t)(1u << tap));
        row = unsliced(d, row, axis, t * dilation, stride, x.dim[axis]);
        sum = sum == REF_NONE ? row : grad_ew2(d, OP_ADD, sum, row);
    }
    return sum;
}

void vjp_window(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r);
    grad_give(d, n.in[0], grad_cast(d, grad_unwindowed(d, r, g), (DType)n.dtype));
}

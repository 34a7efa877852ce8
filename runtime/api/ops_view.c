/*
 * Functions that move elements and compute nothing. All are made of six primitives (reshape,
 * permute, expand, slice, pad, concat), which fusion turns into index arithmetic where their values
 * are read.
 *
 * Which axes an op concerns is structure, numbers are facts: so a range that is written as the
 * whole axis (KILN_ALL) leaves its axis out, while one that covers it by its numbers does not.
 */
#include "ir/base/os.h"
#include "runtime/record/record.h"

#include <inttypes.h>
#include <string.h>

/* An argument of any dtype; weak scalars become arrays. */
static RtNode *array_in(Rec *r, kiln_tensor *x) { return rec_strong(r, rec_in(r, x, "x")); }

/* ---- reshape and its like ---- */

/* Replaces a -1 in a shape wanted for x, and checks it. */
static bool complete_shape(Rec *r, const RtNode *x, kiln_shape *shape)
{
    char text[SHAPE_TEXT];
    int unknown = -1;
    int64_t known;
    for (int d = 0; d < shape->rank && shape->rank <= MAX_RANK; d++) {
        if (shape->dim[d] != -1)
            continue;
        if (unknown >= 0) {
            rec_fail(r, ST_INVALID, "dims %d and %d are both -1", unknown, d);
            return false;
        }
        unknown = d;
        shape->dim[d] = 1;
    }
    if (!rec_shape(r, *shape))
        return false;
    shape_numel(shape->rank, shape->dim, &known);
    int64_t n = node_elements(x);
    if (unknown >= 0 && known > 0 && n % known == 0) {
        shape->dim[unknown] = n / known;
        return true;
    }
    if (unknown >= 0 || known != n) {
        Shape wanted = {.dtype = x->dtype, .rank = (uint8_t)shape->rank};
        char other[SHAPE_TEXT];
        memcpy(wanted.dim, shape->dim, sizeof shape->dim);
        if (unknown >= 0)
            wanted.dim[unknown] = -1;
        rec_fail(r, ST_SHAPE, "%" PRId64 " elements do not make %s: x is %s", n, strchr(shape_text(&wanted, other), '['),
                 node_text(x, text));
        return false;
    }
    return true;
}

API2(kiln_tensor *, kiln_reshape, kiln_tensor *, x, kiln_shape, shape)
{
    Rec r = REC(kiln_reshape);
    RtNode *in = array_in(&r, x);
    return rec_end(&r, in && complete_shape(&r, in, &shape) ? rec_reshape(&r, in, shape.rank, shape.dim) : NULL);
}

API1(kiln_tensor *, kiln_flatten, kiln_tensor *, x)
{
    Rec r = REC(kiln_flatten);
    RtNode *in = array_in(&r, x);
    return rec_end(&r, in ? rec_merge(&r, in, 0, in->rank) : NULL);
}

API2(kiln_tensor *, kiln_squeeze, kiln_tensor *, x, kiln_axes, axes)
{
    Rec r = REC(kiln_squeeze);
    RtNode *in = array_in(&r, x);
    uint8_t mask;
    char text[SHAPE_TEXT];
    if (!rec_axes(&r, in, axes, &mask))
        return rec_end(&r, NULL);
    for (int d = 0; d < in->rank; d++) {
        if (!(mask >> d & 1) || in->dim[d] == 1)
            continue;
        if (axes.n != -1)
            return rec_end(&r, rec_fail(&r, ST_SHAPE, "axis %d is not of size 1: x is %s", d, node_text(in, text)));
        mask &= (uint8_t) ~(1u << d);
    }
    return rec_end(&r, rec_drop(&r, in, mask));
}

API2(kiln_tensor *, kiln_unsqueeze, kiln_tensor *, x, int, axis)
{
    Rec r = REC(kiln_unsqueeze);
    RtNode *in = array_in(&r, x);
    char text[SHAPE_TEXT];
    if (!in)
        return rec_end(&r, NULL);
    int at = axis < 0 ? axis + in->rank + 1 : axis;
    if (at < 0 || at > in->rank)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "axis %d is outside of the result: x is %s", axis, node_text(in, text)));
    if (in->rank == MAX_RANK)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "the result would have %d axes, at most %d are possible: x is %s", MAX_RANK + 1, MAX_RANK,
                                    node_text(in, text)));
    return rec_end(&r, rec_insert(&r, in, at));
}

/* ---- permutations ---- */

API2(kiln_tensor *, kiln_permute, kiln_tensor *, x, kiln_axes, order)
{
    Rec r = REC(kiln_permute);
    RtNode *in = array_in(&r, x);
    uint8_t mask, perm[MAX_RANK];
    char text[SHAPE_TEXT];
    if (!in)
        return rec_end(&r, NULL);
    if (order.n == -1)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "KILN_ALL_AXES is no order; name each axis once: x is %s", node_text(in, text)));
    if (order.n != in->rank)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%d axes are named: x is %s", order.n, node_text(in, text)));
    if (!rec_axes(&r, in, order, &mask))
        return rec_end(&r, NULL);
    for (int d = 0; d < in->rank; d++)
        perm[d] = (uint8_t)(order.axis[d] < 0 ? order.axis[d] + in->rank : order.axis[d]);
    return rec_end(&r, rec_permute(&r, in, perm));
}

static RtNode *swap(Rec *r, RtNode *x, int a, int b)
{
    uint8_t perm[MAX_RANK];
    if (!rec_axis(r, x, a, &a) || !rec_axis(r, x, b, &b))
        return NULL;
    for (int d = 0; d < x->rank; d++)
        perm[d] = (uint8_t)(d == a ? b : d == b ? a : d);
    return rec_permute(r, x, perm);
}

API1(kiln_tensor *, kiln_transpose, kiln_tensor *, x)
{
    Rec r = REC(kiln_transpose);
    RtNode *in = array_in(&r, x);
    char text[SHAPE_TEXT];
    if (in && in->rank < 2)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "two axes are needed: x is %s", node_text(in, text)));
    return rec_end(&r, in ? swap(&r, in, -2, -1) : NULL);
}

API3(kiln_tensor *, kiln_swap_axes, kiln_tensor *, x, int, a, int, b)
{
    Rec r = REC(kiln_swap_axes);
    RtNode *in = array_in(&r, x);
    return rec_end(&r, in ? swap(&r, in, a, b) : NULL);
}

API2(kiln_tensor *, kiln_expand, kiln_tensor *, x, kiln_shape, shape)
{
    Rec r = REC(kiln_expand);
    RtNode *in = array_in(&r, x);
    char text[SHAPE_TEXT];
    bool ranked = shape.rank >= 0 && shape.rank <= MAX_RANK;
    if (!in || (!ranked && !rec_shape(&r, shape))) /* that says what a rank can be */
        return rec_end(&r, NULL);
    int added = shape.rank - in->rank;
    if (added < 0)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "a shape of rank %d has fewer axes: x is %s", shape.rank, node_text(in, text)));
    for (int d = added; d < shape.rank; d++)
        if (shape.dim[d] == -1)
            shape.dim[d] = in->dim[d - added];
    if (!rec_shape(&r, shape))
        return rec_end(&r, NULL);
    for (int d = added; d < shape.rank; d++)
        if (in->dim[d - added] != 1 && in->dim[d - added] != shape.dim[d])
            return rec_end(
                &r, rec_fail(&r, ST_SHAPE, "axis %d cannot become %" PRId64 ": x is %s", d - added, shape.dim[d], node_text(in, text)));
    return rec_end(&r, rec_expand(&r, in, shape.rank, shape.dim));
}

/* ---- slices ---- */

enum { MODEST = 1 << 30 };

/* Python's slice(start, stop, step).indices(dim), and the length. false: step is 0. */
static bool resolve(kiln_range range, int64_t dim, int64_t *start, int64_t *step, int64_t *length)
{
    *step = range.step == KILN_NONE ? 1 : range.step;
    if (*step == 0)
        return false;
    bool back = *step < 0;
    int64_t low = back ? -1 : 0, high = back ? dim - 1 : dim; /* where the ends are clamped to */
    int64_t ends[2] = {range.start, range.stop}, missing[2] = {back ? high : low, back ? low : high};
    for (int k = 0; k < 2; k++) {
        if (ends[k] == KILN_NONE) {
            ends[k] = missing[k];
            continue;
        }
        if (ends[k] < 0)
            ends[k] += dim;
        ends[k] = ends[k] < low ? low : ends[k] > high ? high : ends[k];
    }
    int64_t span = back ? ends[0] - ends[1] : ends[1] - ends[0];
    uint64_t stride = back ? 0 - (uint64_t)*step : (uint64_t)*step;
    *length = span > 0 ? (int64_t)((uint64_t)(span - 1) / stride) + 1 : 0;
    /* Nothing is read with bounds of nothing, or a step from the only element: those stay what the
     * caller said, so that a program for other sizes has them; except huge ones, which may overflow. */
    bool said = range.start >= 0 && range.start < MODEST;
    *start = *length ? ends[0] : said ? range.start : 0;
    if (*length <= 1 && (*step > MODEST || *step < -MODEST))
        *step = back ? -1 : 1;
    return true;
}

/* Slices the first n axes at once. */
static RtNode *slice(Rec *r, RtNode *x, int n, const kiln_range *ranges)
{
    Attr attr = {0};
    int64_t facts[3 * MAX_RANK];
    uint32_t count = 0;
    for (int d = 0; d < n; d++) {
        if (ranges[d].start == KILN_NONE && ranges[d].stop == KILN_NONE && (ranges[d].step == 1 || ranges[d].step == KILN_NONE))
            continue;
        if (!resolve(ranges[d], x->dim[d], &facts[count], &facts[count + 1], &facts[count + 2]))
            return rec_fail(r, ST_INVALID, "the step along axis %d is 0", d);
        attr.mask |= (uint8_t)(1u << d);
        count += 3;
    }
    return attr.mask ? rec_node(r, OP_SLICE, node_dtype(x), &attr, 1, &x, facts, count) : x;
}

API3(kiln_tensor *, kiln_slice, kiln_tensor *, x, int, n, const kiln_range *, ranges)
{
    Rec r = REC(kiln_slice);
    RtNode *in = array_in(&r, x);
    char text[SHAPE_TEXT];
    if (!in)
        return rec_end(&r, NULL);
    if (n < 0 || n > in->rank || (n && !ranges))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%d ranges%s: x is %s", n, ranges ? "" : " at NULL", node_text(in, text)));
    return rec_end(&r, slice(&r, in, n, ranges));
}

/* One axis sliced, the others whole. */
static RtNode *slice_axis(Rec *r, RtNode *x, int axis, kiln_range range)
{
    kiln_range ranges[MAX_RANK];
    for (int d = 0; d < axis; d++)
        ranges[d] = (kiln_range)KILN_ALL;
    ranges[axis] = range;
    return slice(r, x, axis + 1, ranges);
}

API5(kiln_tensor *, kiln_slice_axis, kiln_tensor *, x, int, axis, int64_t, start, int64_t, stop, int64_t, step)
{
    Rec r = REC(kiln_slice_axis);
    RtNode *in = array_in(&r, x);
    if (!rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    return rec_end(&r, slice_axis(&r, in, axis, (kiln_range){start, stop, step}));
}

API3(kiln_tensor *, kiln_select, kiln_tensor *, x, int, axis, int64_t, index)
{
    Rec r = REC(kiln_select);
    RtNode *in = array_in(&r, x);
    char text[SHAPE_TEXT];
    if (!rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    int64_t dim = in->dim[axis];
    if (index >= dim || index < -dim)
        return rec_end(&r, rec_fail(&r, ST_INDEX, "index %" PRId64 " is outside of axis %d: x is %s", index, axis, node_text(in, text)));
    RtNode *one = rec_slice(&r, in, axis, index < 0 ? index + dim : index, 1, 1);
    return rec_end(&r, rec_drop(&r, one, (uint8_t)(1u << axis)));
}

API2(kiln_tensor *, kiln_flip, kiln_tensor *, x, kiln_axes, axes)
{
    Rec r = REC(kiln_flip);
    RtNode *in = array_in(&r, x);
    uint8_t mask;
    kiln_range ranges[MAX_RANK];
    if (!rec_axes(&r, in, axes, &mask))
        return rec_end(&r, NULL);
    for (int d = 0; d < in->rank; d++)
        ranges[d] = (kiln_range){KILN_NONE, KILN_NONE, mask >> d & 1 ? -1 : 1};
    return rec_end(&r, slice(&r, in, in->rank, ranges));
}

API3(kiln_tensor *, kiln_roll, kiln_tensor *, x, int64_t, shift, int, axis)
{
    Rec r = REC(kiln_roll);
    RtNode *in = array_in(&r, x);
    if (!rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    /* Cut out of two copies: one number changes with the shift, and no part is empty for some sizes only. */
    int64_t dim = in->dim[axis], start = dim ? dim - ((shift % dim) + dim) % dim : 0;
    RtNode *copies[2] = {in, in};
    return rec_end(&r, rec_slice(&r, rec_concat(&r, 2, copies, axis), axis, start, 1, dim));
}

/* ---- putting together, taking apart ---- */

API4(kiln_tensor *, kiln_pad, kiln_tensor *, x, int, n, const kiln_padding *, paddings, kiln_tensor *, value)
{
    Rec r = REC(kiln_pad);
    RtNode *in = array_in(&r, x), *fill = rec_in(&r, value, "value");
    char text[SHAPE_TEXT];
    if (!in || !fill)
        return rec_end(&r, NULL);
    if (n < 0 || n > in->rank || (n && !paddings))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%d paddings%s: x is %s", n, paddings ? "" : " at NULL", node_text(in, text)));
    if (fill->rank != 0)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "value has rank 0: it is %s", node_text(fill, text)));
    Attr attr = {.mask = (uint8_t)((1u << n) - 1)};
    int64_t facts[2 * MAX_RANK];
    for (int d = 0; d < n; d++) {
        facts[2 * d] = paddings[d].low;
        facts[2 * d + 1] = paddings[d].high;
        if (paddings[d].low < 0 || paddings[d].high < 0)
            return rec_end(
                &r, rec_fail(&r, ST_INVALID, "the padding of axis %d is %" PRId64 ", %" PRId64, d, paddings[d].low, paddings[d].high));
    }
    bool fraction = fill->weak && fill->op == OP_SCALAR && dtype_is_float(node_dtype(fill)) && dtype_is_int(node_dtype(in));
    fill = fraction ? rec_number(&r, (kiln_dtype)in->dtype, scalar_to_double(node_dtype(fill), fill->scalar))
                    : rec_cast(&r, fill, node_dtype(in)); /* which refuses ints that do not fit */
    if (!fill)
        return rec_end(&r, NULL);
    RtNode *both[2] = {in, fill};
    return rec_end(&r, n ? rec_node(&r, OP_PAD, node_dtype(in), &attr, 2, both, facts, 2 * (uint32_t)n) : in);
}

RtNode **rec_list(Rec *r, kiln_tensor *const *tensors, int n)
{
    if (n < 1 || !tensors) {
        rec_fail(r, ST_INVALID, n < 1 ? "%d tensors: at least one is needed" : "the list of %d tensors is NULL", n);
        return NULL;
    }
    RtNode **list = os_alloc(sizeof *list * (size_t)n);
    if (!list) {
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    bool ok = true, weak;
    for (int k = 0; k < n && ok; k++) {
        char name[32] = "";
        if (!tensors[k])
            rec_fail(r, ST_INVALID, "tensor %d is NULL", k);
        list[k] = tensors[k] ? rec_in(r, tensors[k], name) : NULL;
        ok = list[k] != NULL;
    }
    DType dtype = ok ? rec_common(n, list, &weak) : DT_COUNT;
    if (ok && weak && dtype == DT_F64)
        dtype = DT_F32;
    for (int k = 0; k < n && ok; k++) {
        list[k] = rec_cast(r, list[k], dtype);
        ok = list[k] != NULL;
    }
    if (!ok) {
        os_free(list);
        return NULL;
    }
    return list;
}

/* Do tensors 0 and k have equal shapes, apart from `except` (-1: none)? */
static bool same_shape(Rec *r, RtNode *const *list, int k, int except)
{
    const RtNode *a = list[0], *b = list[k];
    bool same = a->rank == b->rank;
    for (int d = 0; d < a->rank && same; d++)
        same = d == except || a->dim[d] == b->dim[d];
    if (!same) {
        char left[SHAPE_TEXT], right[SHAPE_TEXT];
        rec_fail(r, ST_SHAPE, "shapes differ: tensor 0 is %s, tensor %d is %s", node_text(a, left), k, node_text(b, right));
    }
    return same;
}

API3(kiln_tensor *, kiln_concat, kiln_tensor *const *, tensors, int, n, int, axis)
{
    Rec r = REC(kiln_concat);
    RtNode **list = rec_list(&r, tensors, n), *result = NULL;
    char text[SHAPE_TEXT];
    bool ok = list != NULL;
    if (ok && list[0]->rank == 0) {
        rec_fail(&r, ST_SHAPE, "there is no axis to join along: tensor 0 is %s", node_text(list[0], text));
        ok = false;
    }
    ok = ok && rec_axis(&r, list[0], axis, &axis);
    for (int k = 1; k < n && ok; k++)
        ok = same_shape(&r, list, k, axis);
    if (ok)
        result = n == 1 ? list[0] : rec_concat(&r, (uint32_t)n, list, axis);
    os_free(list);
    return rec_end(&r, result);
}

API3(kiln_tensor *, kiln_stack, kiln_tensor *const *, tensors, int, n, int, axis)
{
    Rec r = REC(kiln_stack);
    RtNode **list = rec_list(&r, tensors, n), *result = NULL;
    char text[SHAPE_TEXT];
    bool ok = list != NULL;
    int at = ok && axis < 0 ? axis + list[0]->rank + 1 : axis;
    if (ok && (at < 0 || at > list[0]->rank || list[0]->rank == MAX_RANK)) {
        rec_fail(&r, ST_INVALID, "axis %d cannot be added: tensor 0 is %s", axis, node_text(list[0], text));
        ok = false;
    }
    for (int k = 1; k < n && ok; k++)
        ok = same_shape(&r, list, k, -1);
    for (int k = 0; k < n && ok; k++) {
        list[k] = rec_insert(&r, list[k], at);
        ok = list[k] != NULL;
    }
    if (ok)
        result = n == 1 ? list[0] : rec_concat(&r, (uint32_t)n, list, at);
    os_free(list);
    return rec_end(&r, result);
}

API5(kiln_status, kiln_split, kiln_tensor *, x, int, axis, int, n, const int64_t *, sizes, kiln_tensor **, parts)
{
    Rec r = REC(kiln_split);
    RtNode *in = array_in(&r, x);
    char text[SHAPE_TEXT];
    bool ok = n >= 1 && parts;
    if (!ok)
        rec_fail(&r, ST_INVALID, "%d parts%s", n, parts ? "" : " to NULL");
    for (int k = 0; k < n && parts; k++)
        parts[k] = NULL;
    ok = ok && rec_axis(&r, in, axis, &axis);
    int64_t left = ok ? in->dim[axis] : 0, at = 0;
    for (int k = 0; k < n && ok && sizes; k++) {
        ok = sizes[k] >= 0 && sizes[k] <= left;
        left -= ok ? sizes[k] : 0;
    }
    if (ok && (sizes ? left != 0 : left % n != 0))
        ok = false;
    if (!ok && in && n >= 1 && parts && axis >= 0 && axis < in->rank)
        rec_fail(&r, ST_SHAPE, sizes ? "the sizes do not add up to axis %d: x is %s" : "axis %d is not cut evenly: x is %s", axis,
                 node_text(in, text));
    int64_t even = ok ? in->dim[axis] / n : 0;
    for (int k = 0; k < n && ok; k++) {
        int64_t size = sizes ? sizes[k] : even;
        parts[k] = rec_out(&r, rec_slice(&r, in, axis, size ? at : 0, 1, size));
        ok = parts[k] != NULL;
        at += size;
    }
    for (int k = 0; k < n && parts && !ok; k++)
        parts[k] = NULL;
    rec_end(&r, NULL);
    return ok ? KILN_OK : (kiln_status)r.status;
}

/* [.., dim, ..] -> [.., 1, dim, ..] -> repeated -> [.., times * dim, ..]. With all ranks in use, two
 * other axes are one meanwhile. */
static RtNode *tile_axis(Rec *r, RtNode *x, int axis, int64_t times)
{
    bool full = x->rank == MAX_RANK;
    int far = axis < MAX_RANK / 2 ? MAX_RANK - 2 : 0, at = full && far < axis ? axis - 1 : axis;
    int64_t sizes[MAX_RANK], far_dims[2] = {0, 0};
    if (full)
        memcpy(far_dims, x->dim + far, sizeof far_dims);
    sizes[at] = times;
    RtNode *y = rec_insert(r, full ? rec_merge(r, x, far, 2) : x, at);
    y = rec_merge(r, rec_repeat(r, y, (uint8_t)(1u << at), sizes), at, 2);
    return full ? rec_split(r, y, far, 2, far_dims) : y;
}

API2(kiln_tensor *, kiln_tile, kiln_tensor *, x, kiln_shape, repeats)
{
    Rec r = REC(kiln_tile);
    RtNode *y = array_in(&r, x);
    if (!y || !rec_shape(&r, repeats))
        return rec_end(&r, NULL);
    int rank = repeats.rank > y->rank ? repeats.rank : y->rank;
    int64_t dims[MAX_RANK], numel;
    char text[SHAPE_TEXT];
    const RtNode *in = y;
    for (int d = 0; d < rank; d++)
        dims[d] = d < rank - y->rank ? 1 : y->dim[d - (rank - y->rank)];
    while (y && y->rank < rank)
        y = rec_insert(&r, y, 0);
    for (int d = 0; d < rank && y; d++) {
        int given = d - (rank - repeats.rank);
        int64_t times = given < 0 ? 1 : repeats.dim[given];
        if (times == 1)
            continue;
        if (__builtin_mul_overflow(dims[d], times, &dims[d]) || !shape_numel(rank, dims, &numel))
            return rec_end(&r, rec_fail(&r, ST_OVERFLOW, "the result has more than 2^62 elements: x is %s", node_text(in, text)));
        y = tile_axis(&r, y, d, times);
    }
    return rec_end(&r, y);
}

/* The part of the last two axes above (or below) the k-th diagonal. */
static kiln_tensor *triangle(Rec r, kiln_tensor *x, int64_t k, bool upper)
{
    RtNode *in = array_in(&r, x);
    char text[SHAPE_TEXT];
    if (in && in->rank < 2)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "two axes are needed: x is %s", node_text(in, text)));
    if (!in)
        return rec_end(&r, NULL);
    int64_t rows = in->dim[in->rank - 2], cols = in->dim[in->rank - 1];
    int64_t diagonal = k > cols ? cols : k < -rows ? -rows : k;
    RtNode *row = rec_insert(&r, rec_iota(&r, rows), 1), *col = rec_insert(&r, rec_iota(&r, cols), 0);
    int64_t dims[2] = {rows, cols};
    RtNode *above = rec_ew2(&r, OP_SUB, rec_repeat(&r, col, 1, dims), rec_repeat(&r, row, 2, dims));
    RtNode *inside = rec_ew2(&r, upper ? OP_GE : OP_LE, above, rec_int(&r, DT_I64, diagonal));
    return rec_end(&r, rec_ew3(&r, OP_WHERE, inside, in, rec_int(&r, node_dtype(in), 0)));
}

API2(kiln_tensor *, kiln_triu, kiln_tensor *, x, int64_t, k) { return triangle(REC(kiln_triu), x, k, true); }

API2(kiln_tensor *, kiln_tril, kiln_tensor *, x, int64_t, k) { return triangle(REC(kiln_tril), x, k, false); }

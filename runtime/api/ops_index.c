/*
 * Indexing and sorting. Everything stands on three primitives: GATHER and SCATTER, whose index has
 * x's rank and differs from x in one axis only, and ARGSORT. An index that is given in one
 * dimension is repeated along the other axes by a view.
 */
#include "runtime/record/record.h"

#include <inttypes.h>
#include <string.h>

/* What only u64 holds is out of bounds, not negative. */
RtNode *rec_index(Rec *r, RtNode *x, const char *what)
{
    char text[SHAPE_TEXT];
    if (x && !dtype_is_int(node_dtype(x)))
        return rec_fail(r, ST_DTYPE, "%s is %s: ints are needed", what, node_text(x, text));
    if (x && node_dtype(x) == DT_U64)
        x = rec_ew2(r, OP_MINIMUM, x, rec_int(r, DT_U64, INT64_MAX));
    return rec_cast(r, x, DT_I64);
}

/* An index argument as i64. */
static RtNode *index_in(Rec *r, kiln_tensor *index) { return rec_index(r, rec_in(r, index, "index"), "index"); }

/* Is there something to index? (Wrong values are found later, when they are computed.) */
static bool something(Rec *r, const RtNode *x, const RtNode *index, int axis)
{
    char text[SHAPE_TEXT];
    if (x->dim[axis] != 0 || node_elements(index) == 0)
        return true;
    rec_fail(r, ST_INDEX, "axis %d has no elements to index: x is %s", axis, node_text(x, text));
    return false;
}

RtNode *rec_spread(Rec *r, RtNode *x, int rank, const int64_t *dims, int axis)
{
    for (int d = 0; d < rank && x; d++)
        if (d != axis)
            x = rec_insert(r, x, d < axis ? 0 : x->rank);
    return rec_repeat(r, x, (uint8_t)(((1u << rank) - 1) & ~(1u << axis)), dims);
}

RtNode *rec_take(Rec *r, RtNode *x, RtNode *index, int axis)
{
    int64_t dims[MAX_RANK];
    if (!x || !index)
        return NULL;
    memcpy(dims, x->dim, sizeof dims);
    dims[axis] = index->dim[0];
    return rec_gather(r, x, rec_spread(r, index, x->rank, dims, axis), axis);
}

API3(kiln_tensor *, kiln_take, kiln_tensor *, x, kiln_tensor *, index, int, axis)
{
    Rec r = REC(kiln_take);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x")), *at = index_in(&r, index);
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!at || !rec_axis(&r, in, axis, &axis) || !something(&r, in, at, axis))
        return rec_end(&r, NULL);
    int rank = in->rank - 1 + at->rank;
    if (rank > MAX_RANK)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "the result would have %d axes, at most %d are possible: x is %s, index is %s", rank,
                                    MAX_RANK, node_text(in, left), node_text(at, right)));
    int64_t out[MAX_RANK];
    memcpy(out, in->dim, sizeof *out * (size_t)axis);
    memcpy(out + axis, at->dim, sizeof *out * at->rank);
    memcpy(out + axis + at->rank, in->dim + axis + 1, sizeof *out * (size_t)(in->rank - 1 - axis));
    int64_t numel;
    if (!shape_numel(rank, out, &numel))
        return rec_end(&r, rec_fail(&r, ST_OVERFLOW, "the result has more than 2^62 elements: x is %s, index is %s", node_text(in, left),
                                    node_text(at, right)));
    RtNode *taken = rec_take(&r, in, rec_merge(&r, at, 0, at->rank), axis);
    return rec_end(&r, rec_split(&r, taken, axis, at->rank, at->dim));
}

/* Rows of an identity matrix, so that a label is checked as any index is; the matrix is computed where it is read. */
API3(kiln_tensor *, kiln_one_hot, kiln_tensor *, labels, int64_t, classes, kiln_dtype, dtype)
{
    Rec r = REC(kiln_one_hot);
    char text[SHAPE_TEXT];
    RtNode *at = rec_index(&r, rec_in(&r, labels, "labels"), "labels");
    if (!at)
        return rec_end(&r, NULL);
    if ((unsigned)dtype >= DT_COUNT)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "dtype %d does not exist", (int)dtype));
    if (classes < 0 || (classes == 0 && node_elements(at) != 0))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "classes is %" PRId64 ": labels is %s", classes, node_text(at, text)));
    int64_t n = node_elements(at), dims[2] = {n, classes}, square[2] = {classes, classes}, numel;
    if (at->rank == MAX_RANK)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "the result would have %d axes, at most %d are possible: labels is %s", MAX_RANK + 1,
                                    MAX_RANK, node_text(at, text)));
    if (!shape_numel(2, dims, &numel) || !shape_numel(2, square, &numel))
        return rec_end(&r, rec_fail(&r, ST_OVERFLOW, "the result has more than 2^62 elements: labels is %s, classes is %" PRId64,
                                    node_text(at, text), classes));
    RtNode *row = rec_repeat(&r, rec_insert(&r, rec_iota(&r, classes), 1), 2, square);
    RtNode *column = rec_repeat(&r, rec_insert(&r, rec_iota(&r, classes), 0), 1, square);
    RtNode *eye = rec_cast(&r, rec_ew2(&r, OP_EQ, row, column), (DType)dtype);
    RtNode *index = rec_spread(&r, rec_merge(&r, at, 0, at->rank), 2, dims, 0);
    return rec_end(&r, rec_split(&r, rec_gather(&r, eye, index, 0), 0, at->rank, at->dim));
}

API3(kiln_tensor *, kiln_take_along_axis, kiln_tensor *, x, kiln_tensor *, index, int, axis)
{
    Rec r = REC(kiln_take_along_axis);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x")), *at = index_in(&r, index);
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!at || !rec_axis(&r, in, axis, &axis) || !something(&r, in, at, axis))
        return rec_end(&r, NULL);
    if (in->rank != at->rank)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "ranks differ: x is %s, index is %s", node_text(in, left), node_text(at, right)));
    int64_t x_dims[MAX_RANK], index_dims[MAX_RANK], numel;
    for (int d = 0; d < in->rank; d++) {
        int64_t a = in->dim[d], b = at->dim[d];
        if (d != axis && a != b && a != 1 && b != 1)
            return rec_end(&r, rec_fail(&r, ST_SHAPE, "shapes do not broadcast outside of axis %d: x is %s, index is %s", axis,
                                        node_text(in, left), node_text(at, right)));
        x_dims[d] = d != axis && a == 1 ? b : a;
        index_dims[d] = d != axis && b == 1 ? a : b;
    }
    if (!shape_numel(in->rank, index_dims, &numel) || !shape_numel(in->rank, x_dims, &numel))
        return rec_end(&r, rec_fail(&r, ST_OVERFLOW, "broadcast they have more than 2^62 elements: x is %s, index is %s",
                                    node_text(in, left), node_text(at, right)));
    RtNode *from = rec_expand(&r, in, in->rank, x_dims);
    return rec_end(&r, rec_gather(&r, from, rec_expand(&r, at, in->rank, index_dims), axis));
}

/* The common end of both scatters: index has its final shape, source is broadcast to it. */
static RtNode *scatter(Rec *r, RtNode *x, RtNode *index, RtNode *source, int axis, kiln_scatter_mode mode)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!index || !source)
        return NULL;
    if ((unsigned)mode > KILN_SCATTER_MIN)
        return rec_fail(r, ST_INVALID, "mode %d does not exist", (int)mode);
    if (mode != KILN_SCATTER_SET && node_dtype(x) == DT_BOOL)
        return rec_fail(r, ST_DTYPE, "x is %s: bools can only be set", node_text(x, left));
    bool fits = source->rank <= index->rank;
    for (int d = 0; d < source->rank && fits; d++) {
        int64_t have = source->dim[source->rank - 1 - d];
        fits = have == 1 || have == index->dim[index->rank - 1 - d];
    }
    if (!fits) {
        Shape wanted = {.dtype = x->dtype, .rank = index->rank};
        memcpy(wanted.dim, index->dim, sizeof *index->dim * index->rank);
        return rec_fail(r, ST_SHAPE, "source does not broadcast to %s: it is %s", strchr(shape_text(&wanted, left), '['),
                        node_text(source, right));
    }
    Attr attr = {.axis = (uint8_t)axis, .mode = (uint8_t)mode};
    source = rec_expand(r, rec_cast(r, source, node_dtype(x)), index->rank, index->dim);
    return rec_node(r, OP_SCATTER, node_dtype(x), &attr, 3, (RtNode *[]){x, index, source}, NULL, 0);
}

API5(kiln_tensor *, kiln_scatter, kiln_tensor *, x, kiln_tensor *, index, kiln_tensor *, source, int, axis, kiln_scatter_mode, mode)
{
    Rec r = REC(kiln_scatter);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x")), *at = index_in(&r, index), *from = rec_in(&r, source, "source");
    char left[SHAPE_TEXT], text[SHAPE_TEXT];
    if (!at || !from || !rec_axis(&r, in, axis, &axis) || !something(&r, in, at, axis))
        return rec_end(&r, NULL);
    if (at->rank != 1)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "index has one axis: it is %s", node_text(at, text)));
    int64_t dims[MAX_RANK], numel;
    memcpy(dims, in->dim, sizeof *dims * in->rank);
    dims[axis] = at->dim[0];
    if (!shape_numel(in->rank, dims, &numel))
        return rec_end(&r, rec_fail(&r, ST_OVERFLOW, "source has more than 2^62 elements: x is %s, index is %s", node_text(in, left),
                                    node_text(at, text)));
    return rec_end(&r, scatter(&r, in, rec_spread(&r, at, in->rank, dims, axis), from, axis, mode));
}

/* The first dims[d] elements of each axis d of mask. */
static RtNode *corner(Rec *r, RtNode *x, uint8_t mask, const int64_t *dims)
{
    for (int d = 0; x && d < x->rank; d++)
        if (mask >> d & 1)
            x = rec_slice(r, x, d, 0, 1, dims[d]);
    return x;
}

/* x with that corner replaced by `part`: along one axis after another the rest of x is put behind it. */
static RtNode *around_corner(Rec *r, RtNode *x, uint8_t mask, const int64_t *dims, RtNode *part)
{
    for (int d = 0; part && d < x->rank; d++) {
        if (!(mask >> d & 1))
            continue;
        mask &= (uint8_t) ~(1u << d);
        RtNode *rest = corner(r, x, mask, dims);
        RtNode *both[2] = {part, rest ? rec_slice(r, rest, d, dims[d], 1, x->dim[d] - dims[d]) : NULL};
        part = both[1] ? rec_concat(r, 2, both, d) : NULL;
    }
    return part;
}

API5(kiln_tensor *, kiln_scatter_along_axis, kiln_tensor *, x, kiln_tensor *, index, kiln_tensor *, source, int, axis, kiln_scatter_mode,
     mode)
{
    Rec r = REC(kiln_scatter_along_axis);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x")), *at = index_in(&r, index), *from = rec_in(&r, source, "source");
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!at || !from || !rec_axis(&r, in, axis, &axis) || !something(&r, in, at, axis))
        return rec_end(&r, NULL);
    if (at->rank != in->rank)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "ranks differ: x is %s, index is %s", node_text(in, left), node_text(at, right)));
    uint8_t smaller = 0;
    for (int d = 0; d < in->rank; d++) {
        if (d != axis && at->dim[d] > in->dim[d])
            return rec_end(&r, rec_fail(&r, ST_SHAPE, "index is larger than x outside of axis %d: x is %s, index is %s", axis,
                                        node_text(in, left), node_text(at, right)));
        smaller |= (uint8_t)((d != axis && at->dim[d] < in->dim[d]) << d);
    }
    RtNode *part = scatter(&r, corner(&r, in, smaller, at->dim), at, from, axis, mode);
    return rec_end(&r, part ? around_corner(&r, in, smaller, at->dim, part) : NULL);
}

/* ---- order ---- */

API3(kiln_tensor *, kiln_argsort, kiln_tensor *, x, int, axis, bool, descending)
{
    Rec r = REC(kiln_argsort);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    return rec_end(&r, rec_axis(&r, in, axis, &axis) ? rec_argsort(&r, in, axis, descending) : NULL);
}

API3(kiln_tensor *, kiln_sort, kiln_tensor *, x, int, axis, bool, descending)
{
    Rec r = REC(kiln_sort);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    if (!rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_gather(&r, in, rec_argsort(&r, in, axis, descending), axis));
}

static RtNode *reversed(Rec *r, RtNode *x, int axis) { return x ? rec_slice(r, x, axis, x->dim[axis] - 1, -1, x->dim[axis]) : NULL; }

/* Indices from the greatest (NaN) or least on, equal ones in their order. A sort puts NaN last in either order, so the greatest of
 * floats are the end of an ascending one, read from behind; x is reversed before, which puts equal ones in order again. */
static RtNode *best_first(Rec *r, RtNode *x, int axis, bool greatest)
{
    if (!greatest || !dtype_is_float(node_dtype(x)))
        return rec_argsort(r, x, axis, greatest);
    RtNode *order = reversed(r, rec_argsort(r, reversed(r, x, axis), axis, false), axis);
    return rec_ew2(r, OP_SUB, rec_int(r, DT_I64, x->dim[axis] - 1), order);
}

API6(kiln_status, kiln_topk, kiln_tensor *, x, int64_t, k, int, axis, bool, greatest, kiln_tensor **, values, kiln_tensor **, indices)
{
    Rec r = REC(kiln_topk);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    char text[SHAPE_TEXT];
    kiln_tensor *value = NULL, *where = NULL;
    if (!values || !indices)
        rec_fail(&r, ST_INVALID, "%s is NULL", values ? "indices" : "values");
    else if (rec_axis(&r, in, axis, &axis)) {
        if (k < 0 || k > in->dim[axis])
            rec_fail(&r, ST_INVALID, "k is %" PRId64 ", axis %d has %" PRId64 " elements: x is %s", k, axis, in->dim[axis],
                     node_text(in, text));
        else {
            RtNode *index = rec_slice(&r, best_first(&r, in, axis, greatest), axis, 0, 1, k);
            where = rec_out(&r, index);
            value = where ? rec_out(&r, rec_gather(&r, in, index, axis)) : NULL;
        }
    }
    if (values)
        *values = value;
    if (indices)
        *indices = value ? where : NULL;
    rec_end(&r, NULL);
    return value ? KILN_OK : (kiln_status)r.status;
}

API2(kiln_tensor *, kiln_cumsum, kiln_tensor *, x, int, axis)
{
    Rec r = REC(kiln_cumsum);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    if (!rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    if (!dtype_is_float(node_dtype(in)))
        in = rec_cast(&r, in, dtype_kind(node_dtype(in)) == DK_UINT ? DT_U64 : DT_I64);
    Attr attr = {.axis = (uint8_t)axis};
    return rec_end(&r, in ? rec_node(&r, OP_CUMSUM, node_dtype(in), &attr, 1, &in, NULL, 0) : NULL);
}

/*
 * Output sizes in a graph, as expressions; the twin of infer_shape in ir/infer.c, which has
 * accepted the arguments.
 *
 * What the op needs equal is unified: valid in every graph of the structure, so no guard.
 *   - A size-1 axis that EXPAND repeats or RESHAPE drops is 1 in every graph of the structure:
 * unified with 1.
 *   - Both sides of a RESHAPE group have one product: a split's product is unified with the merged
 * size, so that merging again gives back that size. Products are only ever built, never divided
 * (sizes may be 0).
 */
#include "ir/body.h"
#include "ir/infer.h"

#include <string.h>

static Dim product(Graph *g, const Dim *dims, int n)
{
    Dim p = dim_const(g, 1);
    for (int d = 0; d < n; d++)
        p = dim_mul(g, p, dims[d]);
    return p;
}

static void dims_reshape(Graph *g, const Attr *attr, const Node *x, const Dim *facts, uint8_t *rank, Dim *dims)
{
    int i = 0, j = 0;
    for (uint32_t k = 0; k < attr->n; k++) {
        int in = attr->group.in[k], out = attr->group.out[k];
        if (out == 1 && in == 1) {
            dims[j] = x->dim[i];
        } else {
            Dim before = product(g, x->dim + i, in);
            if (out == 1)
                dims[j] = before;
            for (int d = 0; out > 1 && d < out; d++)
                dims[j + d] = *facts++;
            if (out != 1)
                dim_unify(g, before, product(g, dims + j, out));
        }
        i += in;
        j += out;
    }
    *rank = (uint8_t)j;
}

static void unify_shapes(Graph *g, const Node *x, const Node *y, int except)
{
    for (int d = 0; d < x->rank; d++)
        if (d != except)
            dim_unify(g, x->dim[d], y->dim[d]);
}

static void dims_window(const Attr *attr, const Node *x, const Dim *facts, uint8_t *rank, Dim *dims)
{
    for (int d = 0; d < x->rank; d++)
        dims[d + (d > attr->axis)] = x->dim[d];
    dims[attr->axis] = facts[2];
    dims[attr->axis + 1] = facts[3];
    *rank = (uint8_t)(x->rank + 1);
}

/* The views that keep their rank: x's dims, changed where the attributes say. */
static void dims_view(Graph *g, Op op, const Attr *attr, uint32_t n_in, const Ref *in, const Dim *facts, Dim *dims)
{
    const Node *x = graph_node(g, in[0]);
    for (int d = 0; d < x->rank; d++) {
        bool masked = attr->mask >> d & 1;
        dims[d] = x->dim[d];
        if (op == OP_PERMUTE) {
            dims[d] = x->dim[attr->perm[d]];
        } else if (op == OP_EXPAND && masked) {
            dim_unify(g, x->dim[d], dim_const(g, 1));
            dims[d] = *facts++;
        } else if (op == OP_SLICE && masked) {
            dims[d] = facts[2];
            facts += 3;
        } else if (op == OP_PAD && masked) {
            dims[d] = dim_add(g, dim_add(g, facts[0], x->dim[d]), facts[1]);
            facts += 2;
        }
    }
    for (uint32_t k = 1; op == OP_CONCAT && k < n_in; k++) {
        const Node *y = graph_node(g, in[k]);
        unify_shapes(g, x, y, attr->axis);
        dims[attr->axis] = dim_add(g, dims[attr->axis], y->dim[attr->axis]);
    }
}

void infer_dims(Graph *g, Op op, const Attr *attr, uint32_t n_in, const Ref *in, const Dim *facts, uint8_t *rank, Dim *dims)
{
    const Node *x = n_in ? graph_node(g, in[0]) : NULL;
    uint8_t r = 0;
    switch (op_class(op)) {
    case CLS_LEAF:
        if (op == OP_IOTA)
            dims[r++] = facts[0];
        break;
    case CLS_EW:
        for (uint32_t k = 1; k < n_in; k++)
            unify_shapes(g, x, graph_node(g, in[k]), -1);
        /* fall through */
    case CLS_SCAN:
    case CLS_SORT:
        r = x->rank;
        memcpy(dims, x->dim, sizeof *dims * r);
        break;
    case CLS_VIEW:
        r = x->rank;
        if (op == OP_RESHAPE)
            dims_reshape(g, attr, x, facts, &r, dims);
        else if (op == OP_WINDOW)
            dims_window(attr, x, facts, &r, dims);
        else
            dims_view(g, op, attr, n_in, in, facts, dims);
        break;
    case CLS_REDUCE:
        for (int d = 0; d < x->rank; d++)
            if (!(attr->mask >> d & 1))
                dims[r++] = x->dim[d];
        break;
    case CLS_GATHER:
    case CLS_SCATTER: {
        const Node *index = graph_node(g, in[1]);
        unify_shapes(g, x, index, attr->axis);
        if (op_class(op) == CLS_SCATTER)
            unify_shapes(g, index, graph_node(g, in[2]), -1);
        r = x->rank;
        memcpy(dims, op_class(op) == CLS_GATHER ? index->dim : x->dim, sizeof *dims * r);
        break;
    }
    case CLS_BODY: break;
    case CLS_RESULT: {
        BodyType type = body_result_type(g, x, attr->n);
        r = type.rank;
        memcpy(dims, type.dim, sizeof *dims * r);
        break;
    }
    case CLS_CONTRACT: {
        const Node *y = graph_node(g, in[1]);
        r = x->rank;
        for (int d = 0; d < r - 2; d++)
            dim_unify(g, x->dim[d], y->dim[d]);
        dim_unify(g, x->dim[r - 1], y->dim[r - 2]);
        memcpy(dims, x->dim, sizeof *dims * r);
        dims[r - 1] = y->dim[r - 1];
        break;
    }
    }
    *rank = r;
}

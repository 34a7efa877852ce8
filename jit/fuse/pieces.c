/*
 * Kernels that store a piece of a buffer, or a copy: what scatters, long concats, loops and outputs that are strided inputs want.
 */
#include "jit/fuse/fuse.h"

/* A kernel that evaluates n and stores it in part of a buffer of the shape of `shape`. */
static void form_piece(Fuser *f, Unit *u, Ref n, uint32_t buffer, Ref shape, uint32_t axis, Dim offset)
{
    Build b;
    Space space = {0};
    const Node *node = graph_node(f->g, n);
    if (node->op != OP_INPUT && !has_buffer(f, n))
        space = *space_of(f, n);
    else
        for (uint32_t i = 0; i < node->rank; i++) {
            bool one = size_is_one(f, node->dim[i]);
            space.axis_of[i] = one ? -1 : (int8_t)space.n_x;
            if (!one)
                space.dim[space.n_x++] = node->dim[i];
        }
    build_init(&b, f, space.dim, space.n_x, space.n_r, n);
    Tuple at = space_tuple(&b, &space, node->rank);
    VRef v = value_at(&b, n, at, VREF_NONE);
    build_store(&b, buffer, shape, at, axis, offset, v);
    unit_take(f, u, &b);
}

/* x copied into the result's buffer, then the updates: parallel over all axes but the indexed one,
 * in order along it. */
void form_scatter(Fuser *f, Unit *u, Ref n)
{
    const Node *node = graph_node(f->g, n), *index = graph_node(f->g, node->in[1]);
    uint32_t buffer = buffer_for(f, n), axis = node->attr.axis, n_x = 0;
    form_piece(f, u, node->in[0], buffer, n, 0, DIM_NONE);
    if (is_empty(f, index)) {
        VEC_PUSH(f->arena, u->outputs, n);
        return;
    }
    Dim dim[MAX_RANK];
    Coords c = {.n = index->rank};
    int32_t place[MAX_RANK];
    for (uint32_t i = 0; i < index->rank; i++) {
        place[i] = i == axis || size_is_one(f, index->dim[i]) ? -1 : (int32_t)n_x;
        if (place[i] >= 0)
            dim[n_x++] = index->dim[i];
    }
    dim[n_x] = index->dim[axis];
    Build b;
    build_init(&b, f, dim, n_x, 1, n);
    b.contraction = n; /* no reductions in here */
    for (uint32_t i = 0; i < index->rank; i++)
        c.at[i] = i == axis ? kidx_axis(b.k, n_x) : place[i] < 0 ? kidx_const(b.k, 0) : kidx_axis(b.k, (uint32_t)place[i]);
    Tuple at = build_tuple(&b, &c);
    VRef where = value_at(&b, node->in[1], at, VREF_NONE);
    VRef source = value_at(&b, node->in[2], at, VREF_NONE);
    VRef live, clamped = build_bound(&b, n, where, node->dim[axis], at, VREF_NONE, &live);
    IRef sum = kidx_const(b.k, 0), stride = kidx_const(b.k, 1);
    for (uint32_t i = node->rank; i-- > 0;) {
        IRef at_axis = i == axis ? kidx_value(b.k, clamped) : c.at[i];
        sum = kidx_add(b.k, sum, kidx_mul(b.k, at_axis, stride));
        if (i)
            stride = kidx_mul(b.k, stride, build_size(&b, node->dim[i]));
    }
    KInst scatter = KINST(.kind = KI_SCATTER, .dtype = node->dtype, .mode = node->attr.mode);
    scatter.arg = build_buffer_arg(&b, buffer, true);
    scatter.a = source;
    scatter.idx = sum;
    kernel_inst(b.k, scatter);
    unit_take(f, u, &b);
    VEC_PUSH(f->arena, u->outputs, n);
}

/* The buffer of n, row-major: its own, or a copy. */
uint32_t dense_buffer(Fuser *f, Unit *u, Ref n)
{
    const Graph *g = f->g;
    Ref source = strip_reshape(g, n);
    bool input = graph_node(g, source)->op == OP_INPUT;
    if (input ? !graph_node(g, source)->attr.flag : has_buffer(f, source)) {
        VEC_PUSH(f->arena, u->loads, source);
        return buffer_for(f, source);
    }
    uint32_t copy = buffer_private(f, n, BUFFER_TEMP);
    form_piece(f, u, n, copy, n, 0, DIM_NONE);
    return copy;
}

void form_concat(Fuser *f, Unit *u, Ref n)
{
    const Node *node = graph_node(f->g, n);
    Dim offset = dim_const(f->g, 0), row = dim_const(f->g, 1);
    for (uint32_t d = 1; d < node->rank; d++) /* of a bucket, whose axis is the first */
        row = dim_mul(f->g, row, node->dim[d]);
    for (uint32_t i = 0; i < node->n_in; i++) {
        node = graph_node(f->g, n);
        form_piece(f, u, node->in[i], buffer_for(f, n), n, node->attr.axis, offset);
        if (f->flags[n] & NODE_BUCKET)
            place_in_bucket(f, u, node->in[i], n, dim_mul(f->g, offset, row));
        node = graph_node(f->g, n);
        offset = dim_add(f->g, offset, graph_node(f->g, node->in[i])->dim[node->attr.axis]);
    }
    VEC_PUSH(f->arena, u->outputs, n);
}

void form_copy(Fuser *f, Unit *u, Ref n)
{
    if (f->copy_of[n] == NO_BUFFER)
        f->copy_of[n] = buffer_private(f, n, BUFFER_OUTPUT);
    form_piece(f, u, n, f->copy_of[n], n, 0, DIM_NONE);
}

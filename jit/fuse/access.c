/*
 * The scaffold of a kernel under construction: its loops, its arguments, sizes as index
 * expressions, interned coordinates, and what views do to coordinates.
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

/*
 * What the schedule plans for along an axis whose size may vary: no less than keeps lanes and rows busy. A program
 * made at sizes 2 and 3 is the one that runs at a million: it may waste a few lanes on short axes, but not be slow on long ones.
 */
enum { OPEN_EXTENT = 64 };

void build_init(Build *b, Fuser *f, const Dim *dims, uint32_t n_x, uint32_t n_r, Ref root)
{
    memset(b, 0, sizeof *b);
    arena_reset(f->scratch);
    b->f = f;
    b->k = kernel_new(f->scratch);
    b->n_x = n_x;
    b->n_r = n_r;
    b->unit = f->units.n;
    b->root = root;
    b->contraction = REF_NONE;
    b->budget = MAX_VISITS;
    b->x_mask = (1u << n_x) - 1;
    b->r_mask = ((1u << n_r) - 1) << n_x;
    b->x_points = b->r_points = 1;
    for (uint32_t a = 0; a < n_x + n_r; a++) {
        int64_t hint = dim_hint(f->g, dims[a]);
        b->dim[a] = dims[a];
        IRef size = build_size(b, dims[a]);
        kernel_add_axis(b->k, a < n_x ? AXIS_X : AXIS_R, size, hint > OPEN_EXTENT ? hint : OPEN_EXTENT);
        *(a < n_x ? &b->x_points : &b->r_points) *= (double)hint;
    }
}

Draft build_draft(const Build *b)
{
    Arena *arena = b->f->drafts;
    PlanArgs args = {.at = arena_copy(arena, b->args.at, sizeof *args.at * b->args.n), .n = b->args.n, .cap = b->args.n};
    return (Draft){.root = b->root, .k = kernel_copy(b->k, arena), .args = args, .n_x = b->n_x, .n_r = b->n_r};
}

/* ---- arguments ---- */

static uint32_t add_arg(Build *b, KArg arg, PlanArg bind)
{
    VEC_PUSH(b->f->scratch, b->k->args, arg);
    VEC_PUSH(b->f->scratch, b->args, bind);
    return b->k->args.n - 1;
}

uint32_t build_buffer_arg(Build *b, uint32_t buffer, bool written)
{
    for (uint32_t i = 0; i < b->args.n; i++) {
        if (b->args.at[i].kind == BIND_BUFFER && b->args.at[i].buffer == buffer) {
            b->k->args.at[i].written |= written;
            return i;
        }
    }
    b->buffers++;
    return add_arg(b, (KArg){.kind = ARG_BUFFER, .dtype = b->f->plan->buffers.at[buffer].dtype, .written = written},
                   (PlanArg){.kind = BIND_BUFFER, .buffer = buffer, .size = DIM_NONE});
}

uint32_t build_fault_arg(Build *b)
{
    for (uint32_t i = 0; i < b->args.n; i++)
        if (b->args.at[i].kind == BIND_FAULT)
            return i;
    return add_arg(b, (KArg){.kind = ARG_FAULT}, (PlanArg){.kind = BIND_FAULT, .size = DIM_NONE});
}

uint32_t build_fault_id(Fuser *f, Ref n)
{
    if (f->fault_of[n] == UINT32_MAX) {
        VEC_PUSH(f->arena, f->plan->faults, (PlanFault){.node = n});
        f->fault_of[n] = f->plan->faults.n - 1;
    }
    return f->fault_of[n] + 1;
}

uint32_t build_number_arg(Build *b, BindKind kind, uint32_t scalar, DType dtype)
{
    for (uint32_t i = 0; i < b->args.n; i++)
        if (b->args.at[i].kind == kind && b->args.at[i].scalar == scalar)
            return i;
    return add_arg(b, (KArg){.kind = ARG_SCALAR, .dtype = (uint8_t)dtype},
                   (PlanArg){.kind = (uint8_t)kind, .scalar = scalar, .size = DIM_NONE});
}

uint32_t build_scalar_arg(Build *b, Ref n)
{
    const Node *node = graph_node(b->f->g, n);
    if (node->op == OP_SCALAR)
        return build_number_arg(b, BIND_SCALAR, node->scalar, (DType)node->dtype);
    return build_number_arg(b, BIND_HOST, n, (DType)node->dtype); /* plan_host_scalars() puts its place there */
}

/* Sizes are DAGs (ir/dim.c): one of more parts than this is an argument as a whole, whose sign is not known. */
enum { SIZE_BUDGET = 64 };

/* Can this size never be negative, by what its facts are about? Spends budget, false when it runs out. */
static bool dim_natural(const Graph *g, Dim d, int *budget)
{
    const DimInfo *info = &g->shared->dims.at[d];
    if (--*budget < 0)
        return false;
    switch ((DimKind)info->kind) {
    case DIM_CONST: return info->hint >= 0;
    case DIM_FACT: return fact_natural((FactKind)g->shared->ints.at[info->fact].kind);
    case DIM_ADD:
    case DIM_MUL: return dim_natural(g, info->a, budget) && dim_natural(g, info->b, budget);
    }
    return false;
}

/* Does the budget suffice for all factors of d? */
static bool few_factors(const Graph *g, Dim dim, int *budget)
{
    const DimInfo *info = &g->shared->dims.at[dim_find(g, dim)];
    return --*budget >= 0 && (info->kind != DIM_MUL || (few_factors(g, info->a, budget) && few_factors(g, info->b, budget)));
}

static IRef product_of_factors(Build *b, Dim dim, bool few)
{
    Graph *g = b->f->g;
    Dim d = dim_find(g, dim);
    int64_t value;
    if (g->shared->dims.at[d].kind == DIM_CONST)
        return kidx_const(b->k, g->shared->dims.at[d].hint);
    if (size_const(b->f, d, &value))
        return kidx_const(b->k, value);
    if (g->shared->dims.at[d].kind != DIM_MUL || !few)
        return build_size_arg(b, d);
    /* one after the other: C leaves the order of arguments open, and factors become arguments of the kernel */
    IRef right = product_of_factors(b, g->shared->dims.at[d].b, few), left = product_of_factors(b, g->shared->dims.at[d].a, few);
    return kidx_mul(b->k, left, right);
}

/* A size as an index expression: a constant where it may be compiled in; a product of its factors;
 * else an argument. */
IRef build_size(Build *b, Dim dim)
{
    int budget = SIZE_BUDGET;
    return product_of_factors(b, dim, few_factors(b->f->g, dim, &budget));
}

IRef build_size_arg(Build *b, Dim dim)
{
    Graph *g = b->f->g;
    Dim d = dim_find(g, dim);
    if (b->attention && (d == b->attention->also[0] || d == b->attention->also[1]))
        d = b->attention->queries;
    for (uint32_t i = 0; i < b->args.n; i++)
        if (b->args.at[i].kind == BIND_SIZE && b->args.at[i].size == d)
            return kidx_arg(b->k, i);
    int budget = SIZE_BUDGET;
    uint32_t arg = add_arg(b, (KArg){.kind = ARG_SIZE, .natural = dim_natural(g, d, &budget)}, (PlanArg){.kind = BIND_SIZE, .size = d});
    return kidx_arg(b->k, arg);
}

/* ---- coordinates ---- */

uint32_t build_hash(const uint32_t *words, uint32_t n)
{
    uint32_t h = n * 0x9e3779b9u;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ words[i]) * 0x85ebca6bu;
        h ^= h >> 15;
    }
    return h;
}

Tuple build_tuple(Build *b, const Coords *c)
{
    uint32_t hash = build_hash(c->at, c->n);
    for (uint32_t probe = 0, i; table_next(&b->tuple_table, hash, &probe, &i);) {
        const Coords *other = &b->tuples.at[i];
        if (other->n == c->n && !memcmp(other->at, c->at, sizeof(IRef) * c->n))
            return i;
    }
    VEC_PUSH(b->f->scratch, b->tuples, *c);
    table_add(b->f->scratch, &b->tuple_table, hash, b->tuples.n - 1);
    return b->tuples.n - 1;
}

uint32_t tuple_axes(const Build *b, Tuple at)
{
    uint32_t axes = 0;
    for (uint32_t i = 0; i < b->tuples.at[at].n; i++)
        axes |= b->k->idx_axes.at[b->tuples.at[at].at[i]];
    return axes;
}

bool coords_long(const Build *b, const Coords *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (b->k->idx_size.at[c->at[i]] > MAX_INDEX)
            return true;
    return false;
}

/* Coordinates of one group of axes from those of another that has the same elements, both
 * row-major. */
static void regroup(Build *b, const IRef *from, const Dim *from_dim, uint32_t n_from, IRef *to, const Dim *to_dim, uint32_t n_to)
{
    Kernel *k = b->k;
    IRef flat = kidx_const(k, 0);
    for (uint32_t i = 0; i < n_from; i++)
        flat = kidx_add(k, kidx_mul(k, flat, build_size(b, from_dim[i])), from[i]);
    for (uint32_t i = n_to; i-- > 0;) {
        IRef size = build_size(b, to_dim[i]);
        to[i] = i ? kidx_mod(k, flat, size) : flat;
        if (i)
            flat = kidx_div(k, flat, size);
    }
}

/* Both directions of a reshape: `down` from its output's coordinates to its input's. */
static Coords reshape_coords(Build *b, const Node *node, const Coords *c, bool down)
{
    const Node *input = graph_node(b->f->g, node->in[0]);
    Coords r = {.n = down ? input->rank : node->rank};
    uint32_t i = 0, o = 0;
    for (uint32_t group = 0; group < node->attr.n; group++) {
        uint32_t n_in = node->attr.group.in[group], n_out = node->attr.group.out[group];
        if (down)
            regroup(b, &c->at[o], &node->dim[o], n_out, &r.at[i], &input->dim[i], n_in);
        else
            regroup(b, &c->at[i], &input->dim[i], n_in, &r.at[o], &node->dim[o], n_out);
        i += n_in;
        o += n_out;
    }
    return r;
}

Coords view_input(Build *b, Ref n, const Coords *out)
{
    const Node *node = graph_node(b->f->g, n);
    Kernel *k = b->k;
    Coords in = *out;
    uint32_t fact = 0;
    switch ((Op)node->op) {
    case OP_RESHAPE: return reshape_coords(b, node, out, true);
    case OP_PERMUTE:
        for (uint32_t i = 0; i < out->n; i++)
            in.at[node->attr.perm[i]] = out->at[i];
        return in;
    case OP_EXPAND:
        for (uint32_t i = 0; i < out->n; i++)
            if (node->attr.mask >> i & 1)
                in.at[i] = kidx_const(k, 0);
        return in;
    case OP_SLICE:
        for (uint32_t i = 0; i < out->n; i++) {
            if (!(node->attr.mask >> i & 1))
                continue;
            IRef start = build_size(b, node->fact[fact]), step = build_size(b, node->fact[fact + 1]);
            in.at[i] = kidx_add(k, start, kidx_mul(k, out->at[i], step));
            fact += 3;
        }
        return in;
    case OP_WINDOW: {
        uint32_t axis = node->attr.axis;
        IRef stride = build_size(b, node->fact[0]), dilation = build_size(b, node->fact[1]);
        in.n = out->n - 1;
        for (uint32_t i = axis + 1; i < in.n; i++)
            in.at[i] = out->at[i + 1];
        in.at[axis] = kidx_add(k, kidx_mul(k, out->at[axis], stride), kidx_mul(k, out->at[axis + 1], dilation));
        return in;
    }
    default: /* no other op is a view of one input's elements */ return in;
    }
}

Coords view_output(Build *b, Ref n, const Coords *in)
{
    const Node *node = graph_node(b->f->g, n);
    Coords out = *in;
    if (node->op == OP_RESHAPE)
        return reshape_coords(b, node, in, false);
    if (node->op == OP_PERMUTE)
        for (uint32_t i = 0; i < in->n; i++)
            out.at[i] = in->at[node->attr.perm[i]];
    return out;
}

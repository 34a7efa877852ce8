/*
 * What a gradient makes of the scores of attention without scores in memory. On CUDA devices in fast mode; on a CPU such steps run in bands
 * (jit/fuse/bands.c).
 *
 * softmax(q k^T) v with its gradient is some products and rows of products, [queries, keys] each, that lead to others and to nothing else:
 *
 *     s  = q k^T     p  = exp(s - max s)     total = sum p          y  = (p v) / total
 *     dp = dy v^T    ds = p * (dp - d)       d = sum dy * y         dq = ds k     dk = ds^T q     dv = p^T dy      (/ total, somewhere)
 *
 * That is a cluster: `dots`, here s and dp; what is made of them element by element; and `ends`, the products and folds of rows that read
 * that: max, sum, p v, dq, dk, dv. Each end is a kernel that makes of blocks of 128 x 64 the dots that it needs, as the backward pass of
 * FlashAttention-2 does (Dao 2023, algorithm 2), but that each result has a kernel of its own: no sum is shared by blocks of threads, so
 * that its order is defined. In memory are the factors, the ends and what is one number for each row.
 *
 *     end[row, column] = sum over keys of w[row, key] * v[key, column]         w: of dots q[row] k[key]; no column without values
 *
 * "Rows" and "keys" are those of the kernel: where a result is for each key of the attention, as dk and dv are, they have changed places,
 * and where a product has w on its right, so have its rows and columns (`turned`). The kernel is a KI_ATTEND of the mode ATTEND_SUM or
 * ATTEND_MOST (jit/kernel.h). Tensor cores multiply factors of f16 and bf16, and f32 that was widened from those: by what its rows have been
 * multiplied since (the scale of queries, 1 / total) their dots or their weights are multiplied instead.
 *
 * A cluster begins at exp(scores - max(scores)), where those are no attention of one kernel (jit/fuse/attention.c). It is one with all of
 * its ends or not at all: if something else reads what is between, the scores are stored anyway. So they are where there is no gradient, with
 * one dot alone: few queries, say, would fill no block.
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"
#include "jit/cuda_tile.h"

enum { MOST_INSIDE = 160, MOST_ENDS = 32, MOST_DOTS = 8, MOST_ABOVE = 96 };

typedef struct Cluster {
    uint32_t n_dots, n_inside, n_ends;
    Ref dot[MOST_DOTS], inside[MOST_INSIDE], end[MOST_ENDS];
} Cluster;

static bool among(const Ref *list, uint32_t n, Ref x)
{
    uint32_t i = 0;
    while (i < n && list[i] != x)
        i++;
    return i < n;
}

static bool is_inside(const Cluster *c, Ref n) { return among(c->inside, c->n_inside, n); }

static bool moves(const Node *node) { return node->op == OP_RESHAPE || node->op == OP_PERMUTE; }

/* A product that has one operand of the cluster, or a fold of rows? */
static bool may_end(const Fuser *f, const Cluster *c, Ref n)
{
    const Node *node = graph_node(f->g, n);
    if (node->op == OP_MATMUL)
        return is_inside(c, node->in[0]) != is_inside(c, node->in[1]);
    bool folds = node->op == OP_REDUCE_SUM || node->op == OP_REDUCE_MAX;
    return folds && node->rank && node->attr.mask == 1u << (graph_node(f->g, node->in[0])->rank - 1);
}

/* All that is made of `from` goes into the cluster. false: it is more than that, or goes elsewhere. */
static bool gather(const Fuser *f, Cluster *c, Ref from)
{
    uint32_t first = c->n_inside;
    if (c->n_dots == MOST_DOTS || c->n_inside == MOST_INSIDE)
        return false;
    c->dot[c->n_dots++] = from;
    c->inside[c->n_inside++] = from;
    for (uint32_t i = first; i < c->n_inside; i++) {
        Ref n = c->inside[i];
        if (f->flags[n] & (NODE_OUTPUT | NODE_WANT | NODE_ATTENDED) || f->user_at[n] == f->user_at[n + 1])
            return false;
        for (uint32_t u = f->user_at[n]; u < f->user_at[n + 1]; u++) {
            Ref user = f->users[u];
            bool passes = moves(graph_node(f->g, user)) || class_of(f, user) == CLS_EW;
            Ref *list = passes ? c->inside : c->end;
            uint32_t *count = passes ? &c->n_inside : &c->n_ends;
            if (among(list, *count, user))
                continue;
            if (*count == (passes ? MOST_INSIDE : MOST_ENDS) || among(c->dot, c->n_dots, user))
                return false;
            list[(*count)++] = user;
        }
    }
    for (uint32_t i = 0; i < c->n_ends; i++)
        if (!may_end(f, c, c->end[i]))
            return false;
    return true;
}

/* Products above n, through what has its shape, the nearest first. */
static uint32_t products_above(const Fuser *f, Ref n, bool expands, Ref out[MOST_DOTS])
{
    Ref todo[MOST_ABOVE] = {n};
    uint32_t found = 0, all = 1;
    for (uint32_t i = 0; i < all; i++) {
        const Node *node = graph_node(f->g, todo[i]);
        if (node->op == OP_MATMUL && found < MOST_DOTS)
            out[found++] = todo[i];
        bool goes_on = moves(node) || class_of(f, todo[i]) == CLS_EW || (expands && node->op == OP_EXPAND);
        for (uint32_t k = 0; goes_on && !node->number && k < node->n_in; k++)
            if (all < MOST_ABOVE && !among(todo, all, node->in[k]))
                todo[all++] = node->in[k];
    }
    return found;
}

/* Other products that meet those of the cluster and have nothing but it behind them. */
static void gather_others(const Fuser *f, Cluster *c)
{
    for (uint32_t i = 0; i < c->n_inside; i++) {
        const Node *node = graph_node(f->g, c->inside[i]);
        for (uint32_t k = 0; class_of(f, c->inside[i]) == CLS_EW && k < node->n_in; k++) {
            Ref above[MOST_DOTS];
            uint32_t n = is_inside(c, node->in[k]) ? 0 : products_above(f, node->in[k], false, above);
            for (uint32_t j = 0; j < n; j++) {
                Cluster more = *c;
                if (!is_inside(c, above[j]) && !among(c->end, c->n_ends, above[j]) && gather(f, &more, above[j]))
                    *c = more;
            }
        }
    }
}

static bool is_short_float(const Fuser *f, Ref n)
{
    DType t = (DType)graph_node(f->g, n)->dtype;
    return t == DT_F32 || dtype_is_half(t);
}

static bool is_turned(const Cluster *c, const Node *end) { return end->op == OP_MATMUL && !is_inside(c, end->in[0]); }

/* Why the cluster has no such kernels, as far as the graph tells. */
static RefusalId misfit(Fuser *f, const Cluster *c)
{
    int64_t first = 0, inner;
    for (uint32_t i = 0; i < c->n_dots; i++) {
        const Node *left = graph_node(f->g, graph_node(f->g, c->dot[i])->in[0]);
        if (!is_short_float(f, c->dot[i]))
            return REFUSAL_chain_dtype;
        if (!attention_side(f, left->dim[left->rank - 1]))
            return REFUSAL_chain_heads;
        (void)size_const(f, left->dim[left->rank - 1], &inner);
        if (i && inner != first)
            return REFUSAL_chain_widths;
        first = inner;
    }
    for (uint32_t i = 0; i < c->n_ends; i++) {
        const Node *end = graph_node(f->g, c->end[i]);
        if (!is_short_float(f, c->end[i]))
            return REFUSAL_chain_dtype;
        if (end->op == OP_MATMUL && !attention_side(f, end->dim[end->rank - 1 - is_turned(c, end)]))
            return REFUSAL_chain_heads;
    }
    return REFUSAL_NONE;
}

/* Which operand of a product in f32 the other one is multiplied to, row by row: its elements have one number in common, or all have. 2: neither. */
static uint32_t scaled_side(const Fuser *f, const Node *node)
{
    uint32_t side = node->dtype == DT_F32 && (node->op == OP_MUL || node->op == OP_MUL_NO_NAN) ? 0 : 2;
    for (; side < 2; side++) {
        const Node *by = graph_node(f->g, node->in[!side]);
        if (by->number || (by->op == OP_EXPAND && by->attr.mask >> (by->rank - 1) & 1))
            return side;
    }
    return 2;
}

/* The f16 or bf16 that a factor was widened from, whatever its rows have been multiplied by since; else REF_NONE. */
static Ref widened_from(const Fuser *f, Ref n)
{
    for (const Node *node = graph_node(f->g, n); !dtype_is_half((DType)node->dtype); node = graph_node(f->g, n)) {
        uint32_t side = scaled_side(f, node);
        if (side == 2 && !moves(node) && (node->op != OP_CAST || node->dtype != DT_F32))
            return REF_NONE;
        n = node->in[side % 2];
    }
    return n;
}

/* The same, if tensor cores multiply it in these kernels: it is not stored in f32 then, and what its rows were multiplied by are their dots or weights. */
static Ref narrow_factor(Fuser *f, Ref n)
{
    Ref from = widened_from(f, n);
    const Node *node = from == REF_NONE ? NULL : graph_node(f->g, from);
    int64_t width;
    bool fits = node && node->rank && size_const(f, node->dim[node->rank - 1], &width) && cuda_chain_fits(&f->options->target, width);
    return fits && cuda_multiplies(&f->options->target, (DType)node->dtype) ? from : REF_NONE;
}

/* Do tensor cores multiply all of them? */
static bool all_narrow(Fuser *f, const Cluster *c)
{
    DType type = DT_COUNT;
    bool all = true;
    for (uint32_t i = 0; i < c->n_dots + c->n_ends; i++) {
        bool dot = i < c->n_dots;
        const Node *node = graph_node(f->g, dot ? c->dot[i] : c->end[i - c->n_dots]);
        for (uint32_t k = 0; k < 2 && node->op == OP_MATMUL; k++) {
            if (!dot && is_inside(c, node->in[k]))
                continue;
            Ref from = narrow_factor(f, node->in[k]);
            DType t = from == REF_NONE ? DT_F32 : (DType)graph_node(f->g, from)->dtype;
            all &= t != DT_F32 && (type == DT_COUNT || type == t);
            type = t;
        }
    }
    return all;
}

/*
 * Where tensor cores multiply the scores in memory, but not these kernels (f32 as tf32; no room for a slice), scores are stored until they are so many
 * that memory is what counts: by a model of an H100 a score takes a factor of 2 (64 elements a head) to 4 (128) longer here, all of them seen.
 */
static bool better_stored(Fuser *f, const Cluster *c)
{
    static const double many = (double)(256 << 20); /* bytes, in f32 */
    const CudaTarget *target = &f->options->target;
    if (f->options->value[OPT_BANDS] == BANDS_ALWAYS || f->options->value[OPT_REMAT] == REMAT_MEMORY || all_narrow(f, c) ||
        (double)node_hint_numel(f->g, c->dot[0]) * (double)sizeof(float) >= many)
        return false;
    DType stored = (DType)graph_node(f->g, c->dot[0])->dtype;
    return stored == DT_F32 ? f->options->value[OPT_TF32] && cuda_copies(target) : cuda_multiplies(target, stored);
}

/* What is one number for each of so many elements is stored. */
static void want_row(Fuser *f, Ref n, Ref elements)
{
    bool spreads = false;
    for (; moves(graph_node(f->g, n)) || graph_node(f->g, n)->op == OP_EXPAND; n = graph_node(f->g, n)->in[0])
        spreads |= graph_node(f->g, n)->op == OP_EXPAND;
    const Node *row = graph_node(f->g, n);
    if (spreads && !row->number && row->dtype != DT_BOOL && class_of(f, n) == CLS_EW &&
        node_hint_numel(f->g, n) < node_hint_numel(f->g, elements) / 8)
        f->flags[n] |= NODE_WANT;
}

/* For each of its keys it would be computed again. */
static void want_rows(Fuser *f, const Cluster *c)
{
    for (uint32_t i = 0; i < c->n_inside; i++) {
        const Node *node = graph_node(f->g, c->inside[i]);
        for (uint32_t k = 0; class_of(f, c->inside[i]) == CLS_EW && k < node->n_in; k++)
            if (!is_inside(c, node->in[k]))
                want_row(f, node->in[k], c->inside[i]);
    }
    for (uint32_t i = 0; i < c->n_dots + c->n_ends; i++) {
        const Node *product = graph_node(f->g, i < c->n_dots ? c->dot[i] : c->end[i - c->n_dots]);
        for (uint32_t k = 0; k < product->n_in; k++)
            for (Ref n = product->in[k], to = narrow_factor(f, n); to != REF_NONE && n != to;) {
                const Node *node = graph_node(f->g, n);
                uint32_t side = scaled_side(f, node);
                if (side < 2)
                    want_row(f, node->in[!side], n);
                n = node->in[side % 2];
            }
    }
}

static void add_cluster(Fuser *f, const Cluster *c)
{
    for (uint32_t i = 0; i < c->n_inside; i++)
        f->flags[c->inside[i]] |= NODE_ATTENDED;
    for (uint32_t i = 0; i < c->n_dots; i++)
        f->flags[c->dot[i]] |= NODE_CHAINED;
    for (uint32_t i = 0; i < c->n_ends; i++) {
        const Node *end = graph_node(f->g, c->end[i]);
        Attention a = {.product = c->end[i], .share = REF_NONE, .query = c->dot[0], .turned = is_turned(c, end)};
        a.chain = end->op == OP_REDUCE_MAX ? ATTEND_MOST : ATTEND_SUM;
        a.weights = a.scores = end->in[a.turned];
        a.queries = a.also[0] = a.also[1] = DIM_NONE;
        VEC_PUSH(f->arena, f->attentions, a);
        for (uint32_t u = 0; u < f->unattended.n; u++) /* it is no attention of one kernel, but this */
            if (f->unattended.at[u].product == c->end[i] && !f->unattended.at[u].late)
                f->unattended.at[u] = f->unattended.at[--f->unattended.n];
    }
    want_rows(f, c);
}

static bool was_refused(const Fuser *f, const Cluster *c)
{
    bool refused = false;
    for (uint32_t i = 0; i < f->unattended.n; i++)
        refused |= f->unattended.at[i].late && among(c->end, c->n_ends, f->unattended.at[i].product);
    return refused;
}

/* Are these exponentials weights in a product of several heads, and no loss of a classifier? */
static bool weighs(const Fuser *f, Ref exp)
{
    Ref todo[MOST_ABOVE] = {exp};
    bool found = false;
    for (uint32_t i = 0, all = 1; i < all && graph_node(f->g, exp)->rank > 2; i++)
        for (uint32_t u = f->user_at[todo[i]]; u < f->user_at[todo[i] + 1]; u++) {
            Ref user = f->users[u];
            found |= graph_node(f->g, user)->op == OP_MATMUL;
            if ((moves(graph_node(f->g, user)) || class_of(f, user) == CLS_EW) && all < MOST_ABOVE && !among(todo, all, user))
                todo[all++] = user;
        }
    return found;
}

void find_chains(Fuser *f)
{
    for (Ref n = 0; n < f->n; n++) {
        Ref scores = f->flags[n] & NODE_LIVE && !(f->flags[n] & NODE_ATTENDED) ? attention_scores(f, n) : REF_NONE, above[MOST_DOTS];
        uint32_t n_above = scores == REF_NONE ? 0 : products_above(f, scores, true, above);
        Cluster c = {0};
        bool found = false;
        for (uint32_t i = 0; i < n_above && !found; i++) {
            c = (Cluster){0};
            found = gather(f, &c, above[i]) && is_inside(&c, n);
        }
        if (found)
            gather_others(f, &c);
        if (!n_above || (found ? c.n_dots < 2 || was_refused(f, &c) : !weighs(f, n)))
            continue;
        uint32_t mark = query_mark(f->g);
        RefusalId why = found ? misfit(f, &c) : REFUSAL_chain_elsewhere;
        why = !why && better_stored(f, &c) ? REFUSAL_chain_units : why;
        if (!why) {
            add_cluster(f, &c);
        } else {
            query_undo(f->g, mark);
            f->sizes.n = 0; /* what they were known by has been taken back */
            unattend(f, n, why, false);
        }
    }
}

Ref factor_of(Fuser *f, Ref product, uint32_t side)
{
    const Attention *a = attention_of(f, product);
    Ref n = graph_node(f->g, product)->in[side], from = REF_NONE;
    if ((a && a->chain) || f->flags[product] & NODE_CHAINED)
        from = narrow_factor(f, n);
    return from == REF_NONE ? n : from;
}

bool read_often(const Fuser *f, Ref product, uint32_t side)
{
    const Attention *a = attention_of(f, product);
    if (a && a->chain)
        return side != a->turned;
    bool once = (a || f->flags[product] & NODE_ATTENDED) && !(f->flags[product] & NODE_CHAINED); /* a block of queries is read once */
    return side == 1 || !once;
}

/* ---- the kernel ---- */

uint32_t attention_loops(const Fuser *f, const Attention *a, Dim *dim)
{
    const Graph *g = f->g;
    const Node *end = graph_node(g, a->product), *left = graph_node(g, end->in[a->turned]),
               *query = graph_node(g, graph_node(g, a->query)->in[0]);
    uint32_t n = end->rank;
    memcpy(dim, end->dim, sizeof *dim * n);
    if (end->op != OP_MATMUL)
        dim[n++] = dim_const(f->g, 1);
    if (a->turned) {
        dim[n - 2] = end->dim[n - 1];
        dim[n - 1] = end->dim[n - 2];
    }
    dim[n] = left->dim[left->rank - 1 - a->turned];
    dim[n + 1] = query->dim[query->rank - 1];
    return n;
}

IRef product_axis(const Build *b, uint32_t i)
{
    bool swapped = b->attention && b->attention->turned && i + 2 >= b->n_x;
    return kidx_axis(b->k, swapped ? 2 * b->n_x - 3 - i : i);
}

/* A weight of 0 times a number that is NaN is NaN, also where the factor's elements of 0 would have stayed 0 (MUL_NO_NAN): none gets lost. */
VRef chain_rows(Build *b, VRef v, Ref n, Coords at, VRef pred)
{
    for (Ref from = narrow_factor(b->f, n); from != REF_NONE && n != from;) {
        const Node *node = graph_node(b->f->g, n);
        uint32_t side = scaled_side(b->f, node);
        if (side < 2) {
            KInst times = KINST(.kind = KI_OP, .op = OP_MUL, .dtype = DT_F32);
            VRef by = value_at(b, node->in[!side], build_tuple(b, &at), pred);
            times.a = side ? by : v, times.b = side ? v : by;
            v = kernel_inst(b->k, times);
        } else if (moves(node)) {
            at = view_input(b, n, &at);
        }
        n = node->in[side % 2];
    }
    return v;
}

VRef chain_factor_at(Build *b, Ref n, Coords at, VRef pred)
{
    const Ref from = narrow_factor(b->f, n);
    const DType dtype = (DType)graph_node(b->f->g, n)->dtype;
    while (from != REF_NONE && n != from) {
        const Node *node = graph_node(b->f->g, n);
        if (moves(node))
            at = view_input(b, n, &at);
        n = node->in[scaled_side(b->f, node) % 2];
    }
    return cast_to(b, value_at(b, n, build_tuple(b, &at), pred), dtype);
}

VRef value_chain(Build *b, Tuple at, VRef pred)
{
    const Attention *a = b->attention;
    const Node *end = graph_node(b->f->g, a->product);
    Kernel *k = b->k;
    uint32_t rank = end->rank;
    IRef keys = kidx_axis(k, b->n_x);
    Coords weights = b->tuples.at[at], values = weights;
    KInst attend = KINST(.kind = KI_ATTEND, .dtype = DT_F32, .mode = a->chain);
    if (end->op == OP_MATMUL) {
        weights.at[rank - 1 - a->turned] = keys;
        values.at[rank - 2 + a->turned] = keys;
        attend.b = chain_factor_at(b, end->in[!a->turned], values, pred);
    } else {
        weights.at[weights.n++] = keys;
        attend.b = kernel_inst(k, KINST(.kind = KI_CONST, .dtype = DT_F32, .imm = scalar_from_double(DT_F32, 1)));
    }
    attend.a = cast_to(b, value_at(b, a->scores, build_tuple(b, &weights), pred), DT_F32);
    if (end->op == OP_MATMUL)
        attend.a = chain_rows(b, attend.a, end->in[!a->turned], values, pred);
    b->contracts = true;
    ask_values(b, GROUP_VALUE, a->product, at, attend.a, attend.b);
    VRef v = b->unattended ? attend.a : kernel_inst(k, attend);
    return cast_to(b, v, (DType)end->dtype);
}

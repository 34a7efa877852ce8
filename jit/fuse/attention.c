/*
 * Attention as one kernel: softmax(q k^T) v by blocks of queries, whose scores are nowhere in memory. On CUDA devices in fast mode; a kernel of
 * its own order (KI_ATTEND in jit/kernel.h). On a CPU such steps run in bands (jit/fuse/bands.c).
 *
 *     scores  = ... matmul(q, k) ...                          elementwise and views: scale, softcap, masks
 *     exp     = exp(scores - max(scores))                     the max maybe 0 where it is -inf
 *     weights = exp                                           share = matmul(weights, v) / sum(exp), the sum maybe 1 where it is 0
 *     weights = exp / sum(exp)                                no share: the product is the result
 *
 * found from the second product upwards. The kernel's value of the product has been divided by the sum; so a share is what it divides.
 *
 * All that depends on the first product has to end in the second (and in the sum): where a gradient wants weights or scores, too, there are
 * several kernels without scores in memory (jit/fuse/chain.c). The kernels are those of other products where the kernel does not have it in
 * it: jit/fuse/refusals.def says when. What only a draft can tell is told by it, and then the graph is planned from the start without
 * that attention (Fuser.anew).
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

#include <math.h>

enum { MOST_INSIDE = 96, LEAST_SIDE = 16, MOST_SIDE = 128, FEW_ROWS = 16 };
static const char who[] = "attention";

const Attention *attention_of(const Fuser *f, Ref n)
{
    for (uint32_t i = 0; i < f->attentions.n; i++)
        if (f->attentions.at[i].product == n)
            return &f->attentions.at[i];
    return NULL;
}

const Attention *attention_share(const Fuser *f, Ref n)
{
    for (uint32_t i = 0; i < f->attentions.n; i++)
        if (f->attentions.at[i].share == n)
            return &f->attentions.at[i];
    return NULL;
}

void unattend(Fuser *f, Ref product, RefusalId why, bool late) { VEC_PUSH(f->arena, f->unattended, ((Unattended){product, why, late})); }

/* ---- the graph ---- */

static bool is_op(const Fuser *f, Ref n, Op op) { return graph_node(f->g, n)->op == op; }

/* n, or what it has given another shape or repeats along the last axis: one number for each row, and never that of another row, as where the rows'
 * numbers are repeated as a row. */
static Ref source(const Fuser *f, Ref n)
{
    for (;; n = graph_node(f->g, n)->in[0]) {
        const Node *node = graph_node(f->g, n);
        bool along_rows = node->op == OP_EXPAND && node->attr.mask == 1u << (node->rank - 1);
        if (node->op != OP_RESHAPE && !along_rows)
            return n;
    }
}

static bool is_number(const Fuser *f, Ref n, double value)
{
    return graph_node(f->g, n)->number && spec_scalar_eq(f->g, number_source(f->g, n), value, who);
}

/* where(x == from, to, x): x; else REF_NONE. */
static Ref replaced(const Fuser *f, Ref n, double from, double to)
{
    const Node *node = graph_node(f->g, n);
    if (node->op != OP_WHERE || !is_number(f, node->in[1], to))
        return REF_NONE;
    const Node *equal = graph_node(f->g, node->in[0]);
    bool found = equal->op == OP_EQ && source(f, equal->in[0]) == source(f, node->in[2]) && is_number(f, equal->in[1], from);
    return found ? source(f, node->in[2]) : REF_NONE;
}

/* A reduction along the last axis of x? */
static bool folds_row(const Fuser *f, Ref n, Op op, Ref x)
{
    const Node *node = graph_node(f->g, n);
    return node->op == op && node->in[0] == x && node->attr.mask == 1u << (graph_node(f->g, x)->rank - 1);
}

/* exp(scores - greatest score). */
static bool find_scores(const Fuser *f, Ref exp, Attention *a, Ref *most)
{
    if (!is_op(f, exp, OP_EXP) || !is_op(f, graph_node(f->g, exp)->in[0], OP_SUB))
        return false;
    const Node *sub = graph_node(f->g, graph_node(f->g, exp)->in[0]);
    Ref down = source(f, sub->in[1]), from = replaced(f, down, -INFINITY, 0);
    a->scores = sub->in[0];
    a->zero = from != REF_NONE;
    *most = a->zero ? from : down;
    return folds_row(f, *most, OP_REDUCE_MAX, a->scores);
}

Ref attention_scores(const Fuser *f, Ref n)
{
    Attention a;
    Ref most;
    return find_scores(f, n, &a, &most) ? a.scores : REF_NONE;
}

/* Is node n / sum(exp), or n * (1 / sum(exp))? That n; else REF_NONE. */
static Ref divided(const Fuser *f, Ref n, Ref exp, bool zero, Ref *total)
{
    const Node *node = graph_node(f->g, n);
    for (int side = 0; (node->op == OP_MUL || node->op == OP_DIV) && side < 2; side++) {
        Ref by = source(f, node->in[!side]);
        bool inverse = is_op(f, by, OP_RECIPROCAL);
        if (node->op == OP_DIV ? side == 1 : !inverse)
            continue;
        by = inverse && node->op == OP_MUL ? source(f, graph_node(f->g, by)->in[0]) : by;
        *total = zero ? replaced(f, by, 0, 1) : by;
        if (*total != REF_NONE && folds_row(f, *total, OP_REDUCE_SUM, exp))
            return node->in[side];
    }
    return REF_NONE;
}

/* The only user of n that is no reshape; REF_NONE: there are several, or it is an output. */
static Ref only_user(const Fuser *f, Ref n)
{
    do {
        if (f->user_at[n + 1] - f->user_at[n] != 1 || f->flags[n] & NODE_OUTPUT)
            return REF_NONE;
        n = f->users[f->user_at[n]];
    } while (is_op(f, n, OP_RESHAPE));
    return n;
}

static bool find_shape(const Fuser *f, Ref product, Attention *a, Ref *most, Ref *total)
{
    *a = (Attention){.product = product, .share = REF_NONE, .weights = graph_node(f->g, product)->in[0]};
    while (is_op(f, a->weights, OP_RESHAPE) || is_op(f, a->weights, OP_CAST))
        a->weights = graph_node(f->g, a->weights)->in[0];
    const Node *weights = graph_node(f->g, a->weights);
    for (int side = 0; (weights->op == OP_MUL || weights->op == OP_DIV) && side < 2; side++)
        if (find_scores(f, weights->in[side], a, most) && !a->zero &&
            divided(f, a->weights, weights->in[side], false, total) == weights->in[side])
            return true;
    if (!find_scores(f, a->weights, a, most))
        return false;
    a->share = only_user(f, product);
    a->mean = a->share == REF_NONE ? REF_NONE : divided(f, a->share, a->weights, a->zero, total);
    return a->mean != REF_NONE && strip_reshape(f->g, a->mean) == product;
}

/* ---- what depends on the first product ---- */

typedef struct Inside {
    uint32_t n;
    Ref at[MOST_INSIDE];
} Inside;

/* All that is made of `from`, but for the product, the share and what they are made into. false: it goes elsewhere. */
static bool ends_inside(const Fuser *f, const Attention *a, Ref from, Ref most, Ref total, Inside *in)
{
    in->n = 1;
    in->at[0] = from;
    for (uint32_t i = 0; i < in->n; i++) {
        Ref n = in->at[i];
        const Node *node = graph_node(f->g, n);
        bool moves = node->op == OP_RESHAPE || node->op == OP_EXPAND || node->op == OP_PERMUTE;
        bool known = n == from || n == most || n == total || moves || class_of(f, n) == CLS_EW;
        if (!known || f->flags[n] & (NODE_OUTPUT | NODE_WANT) || f->user_at[n] == f->user_at[n + 1])
            return false;
        for (uint32_t u = f->user_at[n]; u < f->user_at[n + 1]; u++) {
            Ref user = f->users[u];
            if (user == a->product && graph_node(f->g, user)->in[1] == n)
                return false;
            uint32_t j = 0;
            while (j < in->n && in->at[j] != user)
                j++;
            if (j < in->n || user == a->product || user == a->share)
                continue;
            if (in->n == MOST_INSIDE)
                return false;
            in->at[in->n++] = user;
        }
    }
    return true;
}

/* Products from n upwards, through elementwise ops and views, until one has all that is made of it inside. */
static bool find_query(const Fuser *f, Attention *a, Ref most, Ref total, Inside *in)
{
    Ref todo[MOST_INSIDE] = {a->scores};
    uint32_t n = 1;
    for (uint32_t i = 0; i < n; i++) {
        const Node *node = graph_node(f->g, todo[i]);
        OpClass cls = class_of(f, todo[i]);
        a->query = todo[i];
        if (cls == CLS_CONTRACT && ends_inside(f, a, todo[i], most, total, in))
            return true;
        for (uint32_t k = 0; (cls == CLS_EW || cls == CLS_VIEW) && k < node->n_in; k++) {
            uint32_t j = 0;
            while (j < n && todo[j] != node->in[k])
                j++;
            if (j == n && n < MOST_INSIDE)
                todo[n++] = node->in[k];
        }
    }
    return false;
}

bool attention_side(Fuser *f, Dim d)
{
    int64_t side;
    return size_const(f, d, &side) && side >= LEAST_SIDE && side <= MOST_SIDE && side % LEAST_SIDE == 0;
}

bool refuses_scores(Asked *a)
{
    const Node *scores = graph_node(a->f->g, a->attention->scores);
    return scores->dtype != DT_F32 || scores->rank < 2;
}

bool refuses_heads(Asked *a)
{
    const Graph *g = a->f->g;
    const Node *product = graph_node(g, a->attention->product), *left = graph_node(g, graph_node(g, a->attention->query)->in[0]);
    return !attention_side(a->f, left->dim[left->rank - 1]) || !attention_side(a->f, product->dim[product->rank - 1]);
}

/* What is multiplied by a number, or the size itself. */
static Dim without_factor(const Fuser *f, Dim d)
{
    const DimInfo *info = &f->g->shared->dims.at[dim_find(f->g, d)];
    return info->kind == DIM_MUL ? dim_find(f->g, info->a) : dim_find(f->g, d);
}

/*
 * Queries of a group of heads are rows of products, as many as the group times the queries of a head. As a size of either product and of the scores that
 * number may be several arguments, which are not seen to be the same: guards say so.
 */
static void join_sizes(const Fuser *f, Attention *a)
{
    const Node *product = graph_node(f->g, a->product), *scores = graph_node(f->g, a->scores), *query = graph_node(f->g, a->query);
    Dim others[2] = {scores->dim[scores->rank - 2], query->dim[query->rank - 2]};
    a->queries = without_factor(f, product->dim[product->rank - 2]);
    for (int i = 0; i < 2; i++) {
        Dim other = without_factor(f, others[i]);
        a->also[i] = spec_dim_same(f->g, a->queries, other, who) ? other : a->queries;
    }
}

void find_attentions(Fuser *f)
{
    f->attentions.n = 0;
    if (!f->fuse || !target_kind(&f->options->target)->attends || options_math(f->options) != MATH_FAST ||
        f->options->value[OPT_BANDS] == BANDS_OFF)
        return;
    uint32_t known = 0;
    for (uint32_t i = 0; i < f->unattended.n; i++) /* the others are found again, with what was asked to tell */
        if (f->unattended.at[i].late)
            f->unattended.at[known++] = f->unattended.at[i];
    f->unattended.n = known;
    for (Ref n = 0; n < f->n; n++) {
        Attention a;
        Ref most, total;
        Inside in;
        bool refused = false;
        for (uint32_t i = 0; i < known; i++)
            refused |= f->unattended.at[i].product == n;
        if (refused || !(f->flags[n] & NODE_LIVE) || !is_op(f, n, OP_MATMUL))
            continue;
        uint32_t mark = query_mark(f->g);
        RefusalId why = REFUSAL_NONE;
        bool found = find_shape(f, n, &a, &most, &total);
        if (found)
            why = find_query(f, &a, most, total, &in) ? refuse(GROUP_ATTENTION, &(Asked){.f = f, .n = n, .attention = &a})
                                                      : REFUSAL_needed_elsewhere;
        if (!found || why) {
            query_undo(f->g, mark);
            f->sizes.n = 0; /* what they were known by has been taken back */
            if (why)
                unattend(f, n, why, false);
            continue;
        }
        join_sizes(f, &a);
        const Node *product = graph_node(f->g, n);
        a.parts = size_at_most(f, product->dim[product->rank - 2], FEW_ROWS, who);
        VEC_PUSH(f->arena, f->attentions, a);
        for (uint32_t i = 0; i < in.n; i++)
            f->flags[in.at[i]] |= NODE_ATTENDED;
    }
    find_chains(f);
}

/* ---- the kernel ---- */

VRef cast_to(Build *b, VRef v, DType to)
{
    KInst cast = KINST(.kind = KI_OP, .op = OP_CAST, .dtype = (uint8_t)to);
    cast.a = v;
    return b->k->inst.at[v].dtype == to ? v : kernel_inst(b->k, cast);
}

static bool is_short(const Build *b, VRef v)
{
    DType t = (DType)b->k->inst.at[v].dtype;
    return t == DT_F32 || dtype_is_half(t);
}

/* Do neighbours along this axis lie side by side? */
static bool neighbours(const Build *b, VRef v, uint32_t axis)
{
    Kernel *k = b->k;
    IRef step, rest;
    int64_t one;
    if (k->inst.at[v].kind == KI_OP && k->inst.at[v].op == OP_CAST)
        v = k->inst.at[v].a;
    return k->inst.at[v].kind != KI_LOAD ||
           (kidx_linear(k, k->inst.at[v].idx, axis, &step, &rest) && kidx_is_const(k, step, &one) && one == 1);
}

/* Does the group refuse what was made of the attention at hand? */
void ask_values(Build *b, RefusalId group, Ref n, Tuple at, VRef left, VRef right)
{
    if (!b->unattended)
        b->unattended = refuse(group, &(Asked){.f = b->f, .b = b, .n = n, .at = at, .attention = b->attention, .in = {left, right}});
}

bool refuses_crossed(Asked *a)
{
    Kernel *k = a->b->k;
    uint32_t rows = a->b->n_x - 2, columns = a->b->n_x - 1, keys = a->b->n_x, inner = a->b->n_x + 1;
    const uint32_t *axes = k->inst_axes.at, row = 1u << rows, column = 1u << columns, key = 1u << keys;
    if (a->attention->chain)
        return axes[a->in[0]] & (column | key) || axes[a->in[1]] & (column | row);
    uint32_t rank = graph_node(a->f->g, a->n)->rank;
    Coords left = a->b->tuples.at[a->at], right = left;
    bool fits = left.at[rank - 1] == kidx_axis(k, keys);
    left.at[rank - 1] = right.at[rank - 2] = kidx_axis(k, inner);
    for (uint32_t i = 0; i < rank; i++) {
        fits &= !kidx_uses_axis(k, left.at[i], columns) && !kidx_uses_axis(k, left.at[i], keys);
        fits &= !kidx_uses_axis(k, right.at[i], columns) && !kidx_uses_axis(k, right.at[i], rows);
    }
    return !fits;
}

bool refuses_query_dtype(Asked *a) { return !is_short(a->b, a->in[0]) || !is_short(a->b, a->in[1]); }

bool refuses_query_memory(Asked *a)
{
    uint32_t inner = a->b->n_x + 1;
    return !neighbours(a->b, a->in[0], inner) || !neighbours(a->b, a->in[1], inner);
}

static uint32_t dots_of(const Kernel *k)
{
    uint32_t dots = 0;
    for (VRef v = 0; v < k->inst.n; v++)
        dots += inst_is_dot(&k->inst.at[v]);
    return dots;
}

/* Of a gradient's kernel (chain.c): two dots, and values that may be none. */
static bool chain_misses(const Asked *a)
{
    const uint32_t *axes = a->b->k->inst_axes.at, row = 1u << (a->b->n_x - 2), column = row << 1, inner = row << 3, dots = dots_of(a->b->k);
    return dots < 1 || dots > ATTEND_DOTS || axes[a->in[0]] & (column | inner) || axes[a->in[1]] & (row | inner);
}

bool refuses_stored_scores(Asked *a) { return a->attention->chain ? chain_misses(a) : dots_of(a->b->k) != 1; }

bool refuses_value_dtype(Asked *a) { return !is_short(a->b, a->in[1]); }

bool refuses_value_memory(Asked *a) { return !neighbours(a->b, a->in[1], a->b->n_x - 1); }

/* x, where v is x * a number in f32, which is multiplied to the dot of x instead: x may be what tensor cores take as it is. */
static VRef without_scale(const Build *b, VRef v, VRef *scale)
{
    const KInst *x = &b->k->inst.at[v];
    const VRef in[2] = {x->a, x->b};
    for (int side = 0; x->kind == KI_OP && x->op == OP_MUL && x->dtype == DT_F32 && side < 2; side++) {
        uint8_t kind = b->k->inst.at[in[!side]].kind;
        if (kind == KI_SCALAR || kind == KI_CONST) {
            *scale = in[!side];
            return in[side];
        }
    }
    return v;
}

/* A dot of what varies along rows and of what varies along keys, in this order. */
static void put_in_order(const Build *b, KInst *dot)
{
    uint32_t row = 1u << (b->n_x - 2), key = row << 2;
    const VRef a = dot->a;
    if (b->k->inst_axes.at[dot->a] & key || b->k->inst_axes.at[dot->b] & row) {
        dot->a = dot->b;
        dot->b = a;
    }
}

VRef value_query(Build *b, Ref query, Tuple at, VRef pred)
{
    Kernel *k = b->k;
    const Node *node = graph_node(b->f->g, query);
    uint32_t rank = node->rank;
    Coords left = b->tuples.at[at], right = left;
    left.at[rank - 1] = right.at[rank - 2] = kidx_axis(k, b->n_x + 1);
    KInst dot = KINST(.kind = KI_FOLD, .op = FOLD_DOT, .dtype = node->dtype);
    VRef scale[2] = {VREF_NONE, VREF_NONE};
    const bool chain = b->attention->chain;
    dot.a = chain ? chain_factor_at(b, node->in[0], left, pred) : value_at(b, node->in[0], build_tuple(b, &left), pred);
    dot.b = chain ? chain_factor_at(b, node->in[1], right, pred) : value_at(b, node->in[1], build_tuple(b, &right), pred);
    dot.a = without_scale(b, dot.a, &scale[0]);
    dot.b = without_scale(b, dot.b, &scale[1]);
    if (chain)
        put_in_order(b, &dot);
    ask_values(b, GROUP_QUERY, query, at, dot.a, dot.b);
    VRef v = kernel_inst(k, dot);
    for (int i = 0; i < 2 && !b->unattended; i++)
        if (scale[i] != VREF_NONE) {
            KInst times = KINST(.kind = KI_OP, .op = OP_MUL, .dtype = DT_F32);
            times.a = v, times.b = scale[i];
            v = kernel_inst(k, times);
        }
    for (uint32_t i = 0; i < 2 && chain && !b->unattended; i++)
        v = chain_rows(b, v, node->in[i], i ? right : left, pred);
    return v;
}

VRef value_attention(Build *b, Tuple at, VRef pred)
{
    const Attention *a = b->attention;
    const Graph *g = b->f->g;
    const Node *node = graph_node(g, a->product);
    uint32_t keys = b->n_x, rank = node->rank;
    Coords weights = b->tuples.at[at], values = weights;
    weights.at[rank - 1] = values.at[rank - 2] = kidx_axis(b->k, keys);
    for (Ref n = node->in[0]; n != a->weights; n = graph_node(g, n)->in[0])
        if (is_op(b->f, n, OP_RESHAPE))
            weights = view_input(b, n, &weights);
    KInst attend = KINST(.kind = KI_ATTEND, .dtype = DT_F32, .mode = (a->zero ? ATTEND_ZERO : 0) | (a->parts ? ATTEND_PARTS : 0));
    attend.a = value_at(b, a->scores, build_tuple(b, &weights), pred);
    attend.b = value_at(b, node->in[1], build_tuple(b, &values), pred);
    b->contracts = true;
    ask_values(b, GROUP_VALUE, a->product, at, attend.a, attend.b);
    VRef mean = b->unattended ? attend.b : kernel_inst(b->k, attend);
    return cast_to(b, mean, (DType)node->dtype);
}

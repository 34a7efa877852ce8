/*
 * What is made of constants alone leaves the graph, to be computed once and kept.
 *
 *     %0: w f32[n,k] constant, %1: x         %2 = permute %0   %3 = mul %2 %2   %4 = sum %3 ...     ->     %4 is an input, and a graph of %0
 *
 *   constant    made of marked inputs and numbers, one of the former at least; of operations that cannot fail and mean the same at any time
 *   worth it    reductions, products, scans, sorts, costly elementwise ops, pads and concats; with them what is made of them, unless it
 *               is elementwise and larger than all that it is made of. Of the rest, elementwise ops that have less bytes than what they
 *               read; operands of products that read each element often, unless the target computes them where it packs them; and a
 *               product's right operand whose columns do not lie beside each other, which then do. Other light work takes less time
 *               where it is read than memory does
 *   moved       of these each that is read by what stays. Views move with what reads them, and stay with what stays
 *
 * Nothing inside of loops and branches is looked at: what does not depend on a loop's state has left it before (jit/hoist.c).
 */
#include "jit/constants.h"
#include "ir/base/log.h"
#include "ir/body.h"
#include "ir/query.h"
#include "jit/hoist.h"

#include <string.h>

enum {
    READ_OFTEN = 16, /* so many times a product reads an element: then it packs it, or does not wait for memory */
    LARGER = 4       /* so many times the bytes of what it is made of may such an operand have: i8 that became f32 */
};

typedef struct Cone {
    bool constant;  /* it is made of marked inputs and numbers */
    bool marked;    /* of a marked input at least */
    bool work;      /* with something in it that is worth being computed once */
    double reads;   /* bytes of what it is made of */
    double largest; /* of the largest of these */
    double uses;    /* the most that a product which stays reads each element */
    uint32_t right; /* products whose right operand it is as it is, and one of them */
    Ref product;
    bool read; /* by what stays */
    bool kept;
} Cone;

typedef struct Apart {
    Graph *g;
    bool packs;
    Cone *cone; /* of each node */
} Apart;

static double bytes_of(const Graph *g, Ref r)
{
    return (double)node_hint_numel(g, r) * (double)dtype_bytes((DType)graph_node(g, r)->dtype);
}

static bool is_copy(Op op) { return op == OP_PAD || op == OP_CONCAT; } /* a view that reads in several ways */
static bool is_view(Op op) { return op_class(op) == CLS_VIEW && !is_copy(op); }

static void look(Apart *a, Ref r)
{
    const Node *n = graph_node(a->g, r);
    Cone *c = &a->cone[r];
    if (n->op == OP_INPUT) {
        *c = (Cone){.constant = n->constant, .marked = n->constant, .reads = bytes_of(a->g, r), .largest = bytes_of(a->g, r)};
        return;
    }
    c->constant = hoist_may_move((Op)n->op) && !n->n_bodies;
    c->work = hoist_is_work(n) || is_copy((Op)n->op);
    for (uint32_t k = 0; k < n->n_in; k++) {
        const Cone *in = &a->cone[n->in[k]];
        c->constant &= in->constant;
        c->marked |= in->marked;
        c->work |= in->work;
        c->reads += in->reads;
        c->largest = in->largest > c->largest ? in->largest : c->largest;
    }
}

/*
 * Is it a right operand whose columns were not the last axis of what it is a permutation of? One row takes either as fast, as a sum of
 * products; some are faster by columns side by side where these come out of a cache, and more, which are packed, always. Zen 5, AVX-512,
 * f32, times as fast by 4, 16, 64 rows: 1.57, 1.12, 1.02 of 1024 x 1024; 0.78, 1.19, 1.10 of 4096 x 4096. A guard says that there is more
 * than one row: in fast mode the order in which one is added up follows from how the operand lies (jit/fuse/product.c), and so from a
 * call's sizes.
 */
static bool turns_columns(const Apart *a, Ref r)
{
    enum { PACKED_ROWS = 9, CACHED = 1 << 24 };
    const Node *n = graph_node(a->g, r);
    const Cone *c = &a->cone[r];
    const Node *product = graph_node(a->g, c->product);
    return c->right == 1 && n->op == OP_PERMUTE && n->attr.perm[n->rank - 1] != n->rank - 1 &&
           (c->uses >= PACKED_ROWS || (c->uses >= 2 && bytes_of(a->g, r) <= CACHED)) && bytes_of(a->g, r) <= c->reads &&
           spec_range(a->g, product->dim[product->rank - 2], 2, INT64_MAX, "constants");
}

static bool worth_keeping(const Apart *a, Ref r)
{
    const Cone *c = &a->cone[r];
    const Node *n = graph_node(a->g, r);
    double bytes = bytes_of(a->g, r);
    if (!c->constant || !c->marked || n->op == OP_INPUT || n->number)
        return false;
    if (is_view((Op)n->op))
        return turns_columns(a, r);
    if (op_class((Op)n->op) != CLS_EW)
        return true;
    return (c->work && bytes <= c->largest) || bytes < c->reads || (!a->packs && c->uses >= READ_OFTEN && bytes <= LARGER * c->reads);
}

/* How often a product reads each element of the operand. */
static double uses_of(const Graph *g, const Node *product, Ref operand)
{
    const Node *left = graph_node(g, product->in[0]);
    double steps = (double)node_hint_numel(g, operand), points = 1;
    for (int d = 0; d < product->rank; d++)
        points *= (double)dim_hint(g, product->dim[d]);
    return steps > 0 ? points * (double)dim_hint(g, left->dim[left->rank - 1]) / steps : 0;
}

/* What stays reads its inputs; so does what is constant and not kept. A view hands on how often it is read. */
static void hand_down(Apart *a, Ref r)
{
    const Node *n = graph_node(a->g, r);
    Cone *c = &a->cone[r];
    if (!c->read)
        return;
    c->kept = worth_keeping(a, r);
    for (uint32_t k = 0; k < n->n_in && !c->kept; k++) {
        Cone *in = &a->cone[n->in[k]];
        double uses = n->op == OP_MATMUL ? uses_of(a->g, n, n->in[k]) : is_view((Op)n->op) || n->op == OP_CAST ? c->uses : 0;
        in->read = true;
        if (n->op == OP_MATMUL && k == 1) {
            in->right++;
            in->product = r;
        }
        in->uses = uses > in->uses ? uses : in->uses;
    }
}

static void tell(const Apart *a, Ref r)
{
    Str line;
    str_init(&line, a->g->arena);
    node_print(a->g, r, &line);
    log_line(LOG_FUSION, "%s: made of constants alone, %s", line.text,
             a->cone[r].kept ? "so it is computed once and kept" : "but computed where it is read: that takes less time than reading it");
}

/* A node of g with what it is made of, as a graph of its own. */
static Graph *cut_out(const Apart *a, Ref root)
{
    const Graph *g = a->g;
    Graph *c = ARENA_NEW(g->arena, Graph);
    Ref *map = ARENA_ARRAY(g->arena, Ref, root + 1);
    bool *needed = ARENA_ARRAY(g->arena, bool, root + 1);
    c->arena = g->arena;
    c->shared = g->shared;
    c->around = (Graph *)(uintptr_t)g;
    c->place = root;
    for (uint32_t k = 0; k < g->inputs.n; k++) {
        const Node *input = graph_node(g, g->inputs.at[k]);
        Ref r = graph_push_node(c, input);
        VEC_PUSH(c->arena, c->inputs, r);
        if (g->inputs.at[k] <= root)
            map[g->inputs.at[k]] = r;
    }
    needed[root] = true;
    for (Ref r = root + 1; r-- > 0;)
        for (uint32_t k = 0; needed[r] && k < graph_node(g, r)->n_in; k++)
            needed[graph_node(g, r)->in[k]] = true;
    for (Ref r = 0; r <= root; r++) {
        const Node *n = graph_node(g, r);
        if (needed[r] && n->op != OP_INPUT)
            map[r] = graph_put_again(c, n, graph_operands(g->arena, n, map));
    }
    graph_output(c, map[root]);
    return c;
}

/* Where those that were kept stand, what remains has inputs more. */
static void rebuild(const Apart *a)
{
    Graph *g = a->g;
    uint32_t n_old, origin = g->origin, at = g->inputs.n;
    uint8_t phase = g->phase, checkpoint = g->checkpoint;
    const Node *old = graph_take_nodes(g, &n_old);
    Ref *map = ARENA_ARRAY(g->arena, Ref, n_old + 1);
    for (Ref r = 0; r < n_old; r++)
        map[r] = old[r].op == OP_INPUT ? graph_put_leaf(g, &old[r]) : REF_NONE;
    for (Ref r = 0; r < n_old; r++) {
        if (!a->cone[r].kept)
            continue;
        Node input = {
            .op = OP_INPUT, .dtype = old[r].dtype, .rank = old[r].rank, .n_facts = old[r].rank, .loc = old[r].loc, .constant = true};
        input.origin = old[r].origin;
        input.attr.n = at++;
        input.fact = ARENA_ARRAY(g->arena, Dim, old[r].rank + 1u);
        memcpy(input.fact, old[r].dim, sizeof *old[r].dim * old[r].rank);
        memcpy(input.dim, old[r].dim, sizeof *old[r].dim * old[r].rank);
        map[r] = graph_push_node(g, &input);
        VEC_PUSH(g->arena, g->inputs, map[r]);
    }
    for (Ref r = 0; r < n_old; r++)
        if (map[r] == REF_NONE)
            map[r] = graph_put_again(g, &old[r], graph_operands(g->arena, &old[r], map));
    g->origin = origin;
    g->phase = phase;
    g->checkpoint = checkpoint;
    graph_remap(g, map, n_old);
    graph_compact(g, NULL);
}

void constants_apart(Graph *g, bool packs, Constants *out)
{
    Apart a = {g, packs, ARENA_ARRAY(g->arena, Cone, g->nodes.n + 1)};
    bool any = false;
    for (uint32_t k = 0; k < g->inputs.n; k++)
        any |= graph_node(g, g->inputs.at[k])->constant;
    if (!any)
        return;
    for (Ref r = 0; r < g->nodes.n; r++)
        look(&a, r);
    for (uint32_t k = 0; k < g->outputs.n; k++)
        a.cone[g->outputs.at[k]].read = true;
    for (Ref r = g->nodes.n; r-- > 0;)
        hand_down(&a, r);
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Cone *c = &a.cone[r];
        const Node *n = graph_node(g, r);
        if (c->read && c->constant && c->marked && n->op != OP_INPUT && (c->kept || !is_view((Op)n->op)) && log_on(LOG_FUSION))
            tell(&a, r);
        if (c->kept)
            VEC_PUSH(g->arena, *out, cut_out(&a, r));
    }
    if (out->n)
        rebuild(&a);
}

/*
 * Reshapes: groups of axes as fine as sizes prove or guards allow, and compositions.
 *
 * A reshape that a user asks for by numbers is recorded as one group of all axes (ir/infer_reshape.c), so
 * that its structure does not depend on them. Here it is cut into groups of equal products:
 *
 *     [20, 6, 5] -> [120, 5]     (3:2) becomes (2:1 1:1), relying on s3 == s0*s1 and s4 == s2
 *
 * What structure proves equal costs nothing; the rest is asked, and guarded: equal now and in every graph
 * seen (ir/query.h). Of all ways to cut, the one that keeps the most axes, in the most groups, is taken.
 * Products prove nothing where a size is 0, so each group needs its own equality.
 *
 * A group with one axis on a side is not cut but for axes that are 1 in every graph of the structure.
 */
#include "ir/query.h"
#include "ir/rules.h"

#include <string.h>

typedef struct Groups {
    Graph *g;
    Attr attr;
    Dim facts[MAX_RANK];
    uint32_t n_facts;
    const Dim *in, *out; /* the next axes */
    bool identity;
} Groups;

static void push_group(Groups *to, int in, int out)
{
    to->attr.group.in[to->attr.n] = (uint8_t)in;
    to->attr.group.out[to->attr.n++] = (uint8_t)out;
    to->identity &= in == 1 && out == 1;
    for (int d = 0; out > 1 && d < out; d++)
        to->facts[to->n_facts++] = to->out[d];
    to->in += in;
    to->out += out;
}

/* ---- cutting a group ---- */

/* The cut of the axes from (i, j) on: what it is worth (0: none is known), and its first group. */
typedef struct Cut {
    int worth, in, out;
} Cut;

/* An axis that is kept is worth more than one dropped and one inserted. */
static int worth_of(int in, int out) { return in == 1 && out == 1 ? 3 : in == 0 || out == 0 ? 1 : 2; }

static Dim product(Graph *g, const Dim *dims, int n)
{
    Dim p = dim_const(g, 1);
    for (int d = 0; d < n; d++)
        p = dim_mul(g, p, dims[d]);
    return p;
}

static bool is_one(const Graph *g, Dim d)
{
    const DimInfo *info = &g->shared->dims.at[dim_find(g, d)];
    return info->kind == DIM_CONST && info->hint == 1;
}

/* May `in` axes and `out` axes be a group? Notes a guard where nothing proves it. */
static bool may_group(const Groups *to, int i, int in, int j, int out)
{
    Graph *g = to->g;
    if (in == 0 || out == 0)
        return in + out == 1 && spec_dim_eq(g, in ? to->in[i] : to->out[j], 1, "reshape");
    return spec_dim_same(g, product(g, to->in + i, in), product(g, to->out + j, out), "reshape");
}

/* The best first group from (i, j) on, given the cuts of what follows it. */
static Cut best_cut(const Groups *to, int i, int j, int in, int out, Cut (*cut)[MAX_RANK + 1])
{
    Cut best = {0};
    uint32_t mark = query_mark(to->g);
    for (int b = 0; b <= out - j; b++)
        for (int a = 0; a <= in - i; a++) {
            const Cut *rest = &cut[i + a][j + b];
            bool end = i + a == in && j + b == out, whole = a == in && b == out;
            int worth = rest->worth + worth_of(a, b);
            if (a + b == 0 || (!end && !rest->worth) || worth < best.worth || (worth == best.worth && (a != 1 || b != 1)))
                continue;
            if (whole || may_group(to, i, a, j, b)) /* the whole is equal by structure */
                best = (Cut){worth, a, b};
            query_undo(to->g, mark); /* only the cut that is taken counts */
        }
    return best;
}

static void cut_group(Groups *to, int in, int out)
{
    Cut cut[MAX_RANK + 1][MAX_RANK + 1] = {{{0}}};
    for (int i = in; i >= 0; i--)
        for (int j = out; j >= 0; j--)
            if (i < in || j < out)
                cut[i][j] = best_cut(to, i, j, in, out, cut);
    for (int i = 0, j = 0; i < in || j < out;) {
        Cut first = cut[i][j];
        if (first.in != in || first.out != out)
            (void)may_group(to, 0, first.in, 0, first.out); /* again, for its guard */
        push_group(to, first.in, first.out);
        i += first.in;
        j += first.out;
    }
}

/* Axes that are 1 in every graph of the structure, one after the other. */
static void push_ones(Groups *to, int in, int out)
{
    for (; in > 0 || out > 0; in--, out--)
        push_group(to, in > 0, out > 0);
}

/* A group that the structure has, in its finest spelling. */
static void emit_group(Groups *to, int in, int out)
{
    int first_in = 0, first_out = 0, last_in = 0, last_out = 0;
    while (first_in < in && is_one(to->g, to->in[first_in]))
        first_in++;
    while (first_out < out && is_one(to->g, to->out[first_out]))
        first_out++;
    while (last_in < in - first_in && is_one(to->g, to->in[in - 1 - last_in]))
        last_in++;
    while (last_out < out - first_out && is_one(to->g, to->out[out - 1 - last_out]))
        last_out++;
    push_ones(to, first_in, first_out);
    in -= first_in + last_in;
    out -= first_out + last_out;
    if (in > 1 && out > 1)
        cut_group(to, in, out);
    else if (in && out)
        push_group(to, in, out);
    else
        push_ones(to, in, out); /* their product is 1, so each is */
    push_ones(to, last_in, last_out);
}

/* Groups of `second` after `first`: runs of axes in between that both partitions cut at their ends.
 */
static void compose(Groups *to, const Attr *first, const Attr *second)
{
    uint32_t i = 0, j = 0;
    while (i < first->n || j < second->n) {
        if (i < first->n && first->group.out[i] == 0) {
            emit_group(to, first->group.in[i++], 0);
            continue;
        }
        if (j < second->n && second->group.in[j] == 0) {
            emit_group(to, 0, second->group.out[j++]);
            continue;
        }
        int in = first->group.in[i], middle = first->group.out[i++];
        int out = second->group.out[j], taken = second->group.in[j++];
        while (middle != taken) {
            if (middle < taken) {
                in += first->group.in[i];
                middle += first->group.out[i++];
            } else {
                out += second->group.out[j];
                taken += second->group.in[j++];
            }
        }
        if (in || out) /* an axis inserted and dropped leaves nothing */
            emit_group(to, in, out);
    }
}

Ref rewrite_reshape(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.op != OP_RESHAPE)
        return REF_NONE;
    const Node x = *graph_node(w->g, n.in[0]);
    bool twice = x.op == OP_RESHAPE;
    Ref source = twice ? x.in[0] : n.in[0];
    Dim in[MAX_RANK];
    memcpy(in, graph_node(w->g, source)->dim, sizeof in);
    Groups made = {.g = w->g, .in = in, .out = n.dim, .identity = true};
    if (twice) {
        compose(&made, &x.attr, &n.attr);
    } else {
        for (uint32_t k = 0; k < n.attr.n; k++)
            emit_group(&made, n.attr.group.in[k], n.attr.group.out[k]);
    }
    if (made.identity)
        return source;
    if (!twice && memcmp(&made.attr, &n.attr, sizeof n.attr) == 0)
        return REF_NONE;
    return rewrite_add(w, OP_RESHAPE, (DType)n.dtype, &source, 1, &made.attr, made.facts, made.n_facts, n.loc);
}

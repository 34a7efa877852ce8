/*
 * Convolutions of halves, whose windows a host reads where they lie, in padded images (jit/llvm/cpu/place.c). A convolution is a product of weights
 * with windows, which are as many times as large as images as windows have taps: to pack them takes as long as to multiply them by 64 channels.
 * Images are padded, and so written, anyway; what is not padded stays as it is.
 *
 * widen_windows: a host that multiplies halves in f32 reads in place what is f32, so the image is padded as f32: the same products, the same sums,
 * rounded once. It is written as twice the bytes, and each element, which is in as many windows as there are taps, is cast once.
 *
 * pair_channels: a host that multiplies by pairs of steps (ORDER_HOST_PAIRS). Steps are channels and, of each, taps. Two steps are two taps, which
 * lie apart in an image. With steps that are
 *
 *     channels / 2, taps, 2 channels     instead of     channels, taps
 *
 * and padded images that have the two side by side, [n, channels / 2, places..., 2], a pair is one element of twice the size, whatever the tap,
 * and is read where it lies. Only products become others: in the gradient of weights steps are places, of which pairs lie side by side without this.
 */
#include "ir/query.h"
#include "ir/rules.h"

enum {
    SPATIAL = (MAX_RANK - 3) / 2,
    LEAST_OUTPUTS = 16,
    LEAST_PLACES = 7, /* in a row: fewer make tiles that are no faster than packing */
    MOST_VIEWS = 24
};

/* Windows of padded images, as matrices [batch..., channels and taps, places], and what they are made of, from there on. */
typedef struct Matrices {
    int spatial;
    Ref reshape, permute, window[SPATIAL]; /* the one of axis 2 first */
    Ref slice[2 * SPATIAL];                /* of what is padded; the one that is read first */
    int slices;
    Ref pad;
} Matrices;

/* [n, channels, place, tap, place, tap...] becomes [n, channels, taps..., places...]. */
static bool is_taps_first(const Node *n, int spatial)
{
    bool is = n->op == OP_PERMUTE && n->rank == 2 + 2 * spatial && n->attr.perm[0] == 0 && n->attr.perm[1] == 1;
    for (int k = 0; is && k < spatial; k++)
        is = n->attr.perm[2 + k] == 3 + 2 * k && n->attr.perm[2 + spatial + k] == 2 + 2 * k;
    return is;
}

static bool only_spatial(uint8_t mask) { return !(mask & 3); }

static bool find_matrices(const Graph *g, Ref r, Matrices *m)
{
    const Node *n = graph_node(g, r);
    *m = (Matrices){.reshape = r};
    if (n->op != OP_RESHAPE || n->attr.n != 3 || n->attr.group.in[0] != 1)
        return false;
    const uint8_t *in = n->attr.group.in, *out = n->attr.group.out;
    m->spatial = in[1] - 1;
    if (m->spatial < 1 || m->spatial > SPATIAL || in[2] != m->spatial || out[1] != 1 || out[2] != 1)
        return false;
    m->permute = n->in[0];
    n = graph_node(g, m->permute);
    if (!is_taps_first(n, m->spatial))
        return false;
    Ref at = n->in[0];
    for (int k = 0; k < m->spatial; k++, at = graph_node(g, at)->in[0]) {
        m->window[k] = at;
        if (graph_node(g, at)->op != OP_WINDOW || graph_node(g, at)->attr.axis != 2 + k)
            return false;
    }
    for (; graph_node(g, at)->op == OP_SLICE && m->slices < 2 * SPATIAL; at = graph_node(g, at)->in[0]) {
        m->slice[m->slices++] = at;
        if (!only_spatial(graph_node(g, at)->attr.mask))
            return false;
    }
    m->pad = at;
    n = graph_node(g, at);
    return n->op == OP_PAD && only_spatial(n->attr.mask);
}

/* Do places of a row lie side by side in what x is computed from? Channels that do are no pairs of rows, which are interleaved fast. */
static bool has_rows(const Graph *g, Ref x)
{
    for (;;) {
        const Node *n = graph_node(g, x);
        uint32_t i = 0;
        if (n->op == OP_PERMUTE && n->attr.perm[n->rank - 1] != n->rank - 1)
            return false;
        if (op_class((Op)n->op) != CLS_EW && n->op != OP_PERMUTE)
            return true;
        while (i + 1 < n->n_in && (graph_node(g, n->in[i])->rank != n->rank || graph_node(g, n->in[i])->op == OP_EXPAND))
            i++;
        x = n->in[i];
    }
}

/* The same view of another tensor. */
static Ref again(Rewriter *w, Ref of, const Ref *in, uint32_t n_in)
{
    const Node n = *graph_node(w->g, of);
    return rewrite_add(w, (Op)n.op, (DType)graph_node(w->g, in[0])->dtype, in, n_in, &n.attr, n.fact, n.n_facts, n.loc);
}

/* Axis `axis` of x becomes `n` of these sizes. */
static Ref split_axis(Rewriter *w, Ref x, int axis, int n, const Dim *sizes, Loc loc)
{
    const Node *of = graph_node(w->g, x);
    Attr attr = {.n = of->rank};
    for (int d = 0; d < MAX_RANK; d++) {
        attr.group.in[d] = 1;
        attr.group.out[d] = (uint8_t)(d == axis ? n : 1);
    }
    return rewrite_add(w, OP_RESHAPE, (DType)of->dtype, &x, 1, &attr, sizes, (uint32_t)n, loc);
}

/* Axis `from` of x becomes the last. */
static Ref to_last(Rewriter *w, Ref x, int from, Loc loc)
{
    const Node *of = graph_node(w->g, x);
    Attr attr = {0};
    for (int d = 0; d < of->rank && d < MAX_RANK; d++)
        attr.perm[d] = (uint8_t)(d + 1 == of->rank ? from : d + (d >= from));
    return rewrite_add(w, OP_PERMUTE, (DType)of->dtype, &x, 1, &attr, NULL, 0, loc);
}

/* The same windows, of images whose channels come by pairs: [batch..., channels / 2 and taps and 2, places]. */
static Ref paired_windows(Rewriter *w, const Matrices *m, const Dim *channels, Loc loc)
{
    Graph *g = w->g;
    const int s = m->spatial;
    Ref in[2] = {graph_node(g, m->pad)->in[0], graph_node(g, m->pad)->in[1]};
    in[0] = to_last(w, split_axis(w, in[0], 1, 2, channels, loc), 2, loc);
    Ref x = again(w, m->pad, in, 2);
    for (int k = m->slices; k-- > 0;)
        x = again(w, m->slice[k], &x, 1);
    for (int k = s; k-- > 0;)
        x = again(w, m->window[k], &x, 1);
    Attr attr = {.perm = {0, 1}};
    for (int k = 0; k < s; k++) {
        attr.perm[2 + k] = (uint8_t)(3 + 2 * k);
        attr.perm[3 + s + k] = (uint8_t)(2 + 2 * k);
    }
    attr.perm[2 + s] = (uint8_t)(2 + 2 * s);
    x = rewrite_add(w, OP_PERMUTE, (DType)graph_node(g, x)->dtype, &x, 1, &attr, NULL, 0, loc);
    const Node merged = *graph_node(g, m->reshape);
    attr = merged.attr;
    attr.group.in[1]++;
    return rewrite_add(w, OP_RESHAPE, (DType)merged.dtype, &x, 1, &attr, merged.fact, merged.n_facts, loc);
}

/* Windows of a padded image, however they are turned and cut. */
typedef struct Windows {
    Ref view[MOST_VIEWS]; /* the one that is read last first */
    int n;
    Ref pad;
} Windows;

static bool find_windows(Graph *g, Ref r, Windows *windows, const char *who)
{
    bool overlap = false;
    *windows = (Windows){.pad = r};
    for (const Node *n = graph_node(g, r); op_repeats((Op)n->op) && windows->n < MOST_VIEWS; n = graph_node(g, windows->pad)) {
        overlap |= n->op == OP_WINDOW && spec_range(g, n->fact[3], 2, INT64_MAX, who); /* of elements that others have, too */
        windows->view[windows->n++] = windows->pad;
        windows->pad = n->in[0];
    }
    return overlap && graph_node(g, windows->pad)->op == OP_PAD;
}

/* The same, of an image that is padded as f32. */
static Ref widened(Rewriter *w, const Windows *windows)
{
    const Node pad = *graph_node(w->g, windows->pad);
    const Ref in[2] = {rewrite_cast(w, pad.in[0], DT_F32, pad.loc), rewrite_cast(w, pad.in[1], DT_F32, pad.loc)};
    Ref x = again(w, windows->pad, in, 2);
    for (int i = windows->n; i-- > 0;)
        x = again(w, windows->view[i], &x, 1);
    return x;
}

Ref rewrite_widen_windows(Rewriter *w, Ref r)
{
    static const char who[] = "widen_windows";
    Graph *g = w->g;
    const Node n = *graph_node(g, r);
    const uint32_t mark = query_mark(g);
    Windows windows[2];
    bool found[2];
    if (!dtype_is_half((DType)n.dtype) || (n.dtype == DT_BF16 && w->families & FAMILY_PAIRS && w->math == MATH_FAST))
        return REF_NONE;
    for (int side = 0; side < 2; side++)
        found[side] = find_windows(g, n.in[side], &windows[side], who);
    if (!found[0] && !found[1]) {
        query_undo(g, mark);
        return REF_NONE;
    }
    Ref in[2];
    for (int side = 0; side < 2; side++)
        in[side] = found[side] ? widened(w, &windows[side]) : rewrite_cast(w, n.in[side], DT_F32, n.loc);
    return rewrite_cast(w, rewrite_add(w, OP_MATMUL, DT_F32, in, 2, NULL, NULL, 0, n.loc), (DType)n.dtype, n.loc);
}

Ref rewrite_pair_channels(Rewriter *w, Ref r)
{
    static const char who[] = "pair_channels";
    Graph *g = w->g;
    const Node n = *graph_node(g, r);
    Matrices m;
    if (n.dtype != DT_BF16 || !find_matrices(g, n.in[1], &m) || !has_rows(g, graph_node(g, m.pad)->in[0]))
        return REF_NONE;
    const Node all = *graph_node(g, m.window[0]);
    const uint32_t mark = query_mark(g);
    int64_t channels, taps = 1, size;
    bool fits = spec_dim(g, all.dim[1], who, &channels) && channels >= 2 && channels % 2 == 0;
    fits = fits && spec_range(g, n.dim[n.rank - 2], LEAST_OUTPUTS, INT64_MAX, who) &&
           spec_range(g, all.dim[2 * m.spatial], LEAST_PLACES, INT64_MAX, who);
    for (int k = 0; fits && k < m.spatial; k++) {
        fits = spec_dim(g, all.dim[3 + 2 * k], who, &size);
        taps *= size;
    }
    if (!fits) {
        query_undo(g, mark);
        return REF_NONE;
    }
    Dim pairs[3] = {dim_const(g, channels / 2), dim_const(g, 2), dim_const(g, taps)};
    const int k = n.rank - 1;
    Ref in[2] = {to_last(w, split_axis(w, n.in[0], k, 3, pairs, n.loc), k + 1, n.loc), paired_windows(w, &m, pairs, n.loc)};
    Attr merge = {.n = n.rank};
    for (int d = 0; d <= k; d++) {
        merge.group.in[d] = (uint8_t)(d < k ? 1 : 3);
        merge.group.out[d] = 1;
    }
    in[0] = rewrite_add(w, OP_RESHAPE, (DType)n.dtype, in, 1, &merge, NULL, 0, n.loc);
    return rewrite_add(w, OP_MATMUL, (DType)n.dtype, in, 2, NULL, NULL, 0, n.loc);
}

/*
 * What flows to the images of a convolution: another convolution. To those that a maximum is taken of: a sum over the windows that an
 * element is in.
 *
 * A convolution is a product, or without channels in common a sum of products, with windows of images, which are a view. What flows to
 * such windows is as many times as large as the images as a window has taps, and an element of an image gathers it from as many places
 * (vjp_window). Both at once are a product with windows again, those of the cotangent with zeros around it: tap t of window i met element
 * i + t, so element i meets windows i - t, which are, from the last tap to the first, one window of the cotangent. Nothing larger than the
 * images is stored.
 *
 * That is for windows that are one apart, where the images have at most twice as many elements as there are windows: each of these costs as
 * much as a window did. Others hand on what flows to each tap, rounded once, where it has come to the images. Between windows and product there
 * are views, which are looked through. What pads the images is, too, so that nothing is computed for the padding.
 */
#include "ir/gradient_rules.h"

enum { SPATIAL = (MAX_RANK - 2) / 2, MOST_ELEMENTS = 2 /* for each window */ };

/* Windows of images [n, channels, ...]. */
typedef struct Windows {
    int spatial;
    Ref window[SPATIAL]; /* the nodes, outermost first, which is that of axis 2 */
    bool taps_first;     /* they became [n, channels, taps..., places...] */
    Ref x;               /* what they are taken from */
    Ref pad;             /* the PAD that made it, maybe with reshapes of the other axes behind it; REF_NONE: there is none */
    Dim length[SPATIAL]; /* of the images, without padding */
    bool close;          /* they are one apart, and hardly fewer than there are elements */
} Windows;

/* Is what flows to r of use only for what flows to its operand? */
static bool passes(const Gradient *d, Ref r) { return !graph_node(d->g, r)->stop && !d->is_in[r] && d->wanted[r]; }

/* ---- what is a view of windows ---- */

/* A reshape that leaves the last axes as they are. */
static bool keeps_last(const Node *n, int axes)
{
    if (n->op != OP_RESHAPE)
        return false;
    for (uint32_t k = n->attr.n; axes && k-- > 0; axes--)
        if (n->attr.group.in[k] != 1 || n->attr.group.out[k] != 1)
            return false;
    return axes == 0;
}

static Ref padding_of(const Gradient *d, Ref x, int spatial)
{
    const Node *n = graph_node(d->g, x);
    while (passes(d, x) && keeps_last(n, spatial)) {
        x = n->in[0];
        n = graph_node(d->g, x);
    }
    bool is_pad = n->op == OP_PAD && !(n->attr.mask & ((1u << (n->rank - spatial)) - 1));
    return is_pad && passes(d, x) && grad_wants(d, x, 0) && !grad_wants(d, x, 1) ? x : REF_NONE;
}

/* Of [n, channels, place, tap, place, tap...] those that become [n, channels, taps..., places...]. */
static uint8_t taps_first(int spatial, int axis)
{
    int k = axis - 2;
    return (uint8_t)(axis < 2 ? axis : k < spatial ? 3 + 2 * k : 2 + 2 * (k - spatial));
}

static bool is_taps_first(const Node *n)
{
    bool is = n->op == OP_PERMUTE && n->rank % 2 == 0;
    for (int k = 0; is && k < n->rank; k++)
        is = n->attr.perm[k] == taps_first((n->rank - 2) / 2, k);
    return is;
}

static bool find_windows(const Gradient *d, Ref r, Windows *w)
{
    const Node *n = graph_node(d->g, r);
    *w = (Windows){0};
    for (; passes(d, r) && (n->op == OP_RESHAPE || n->op == OP_CAST || (n->op == OP_PERMUTE && !w->taps_first)); n = graph_node(d->g, r)) {
        r = n->in[0];
        if (n->op == OP_PERMUTE && (!is_taps_first(n) || graph_node(d->g, r)->op != OP_WINDOW))
            return false;
        w->taps_first |= n->op == OP_PERMUTE;
    }
    w->spatial = (n->rank - 2) / 2;
    for (int k = 0; k < w->spatial; k++, n = graph_node(d->g, r)) {
        if (!passes(d, r) || n->op != OP_WINDOW || n->attr.axis != 2 + k)
            return false;
        w->close = (k == 0 || w->close) && dim_hint(d->g, n->fact[0]) == 1;
        w->window[k] = r;
        r = n->in[0];
    }
    if (w->spatial < 1 || n->rank != 2 + w->spatial)
        return false;
    w->x = r;
    w->pad = padding_of(d, r, w->spatial);
    n = graph_node(d->g, w->pad == REF_NONE ? r : graph_node(d->g, w->pad)->in[0]);
    int64_t elements = 1, windows = 1;
    for (int k = 0; k < w->spatial; k++) {
        w->length[k] = n->dim[n->rank - w->spatial + k];
        elements *= dim_hint(d->g, w->length[k]);
        windows *= dim_hint(d->g, graph_node(d->g, w->window[k])->fact[2]);
    }
    w->close &= windows > 0 && elements / MOST_ELEMENTS <= windows;
    return windows > 0;
}

static bool same_size(const Gradient *d, Dim a, Dim b) { return dim_hint(d->g, a) == dim_hint(d->g, b); }

/* ---- the other convolution ---- */

/* How much the padding has before that axis; DIM_NONE: it leaves the axis as it is. */
static Dim padded_before(const Gradient *d, const Windows *w, int k)
{
    if (w->pad == REF_NONE)
        return DIM_NONE;
    const Node *n = graph_node(d->g, w->pad);
    int axis = n->rank - w->spatial + k;
    return n->attr.mask >> axis & 1 ? n->fact[2 * __builtin_popcount(n->attr.mask & ((1u << axis) - 1))] : DIM_NONE;
}

/* g has the places of windows at axes from `axis` on. Each becomes two, the elements of an image and, behind, the windows that have it,
 * from that of its last tap on; zero where there is none. */
static Ref windows_of_elements(Gradient *d, const Windows *w, Ref g, int axis)
{
    Attr pad = {0};
    Dim facts[2 * SPATIAL], one = dim_const(d->g, 1), length[SPATIAL];
    for (int k = 0; k < w->spatial; k++) {
        const Node n = node_of(d, w->window[k]), x = node_of(d, n.in[0]);
        uint8_t at = (uint8_t)(axis + k);
        int64_t before = (dim_hint(d->g, n.fact[3]) - 1) * dim_hint(d->g, n.fact[1]);
        pad.mask |= (uint8_t)(1u << at);
        facts[2 * k] = grad_fact(d, before, FACT_LOW, at);
        facts[2 * k + 1] = grad_fact(d, dim_hint(d->g, x.dim[2 + k]) - dim_hint(d->g, n.fact[2]), FACT_HIGH, at);
        length[k] = dim_add(d->g, w->length[k], facts[2 * k]);
    }
    Ref both[2] = {g, graph_add_const(d->g, dtype_of(d, g), 0, (Loc){0})};
    g = grad_node(d, OP_PAD, both, 2, &pad, facts, 2 * (uint32_t)w->spatial);
    for (int k = 0; k < w->spatial; k++) {
        Dim start = padded_before(d, w, k);
        g = start == DIM_NONE ? g : grad_slice(d, g, axis + k, start, one, length[k]);
    }
    for (int k = w->spatial; k-- > 0;) {
        const Node n = node_of(d, w->window[k]);
        Attr attr = {.axis = (uint8_t)(axis + k)};
        g = grad_node(d, OP_WINDOW, &g, 1, &attr, (const Dim[]){one, n.fact[1], w->length[k], n.fact[3]}, 4);
    }
    return g;
}

/* part: [n, channels, elements...] */
static void give_images(Gradient *d, const Windows *w, Ref part)
{
    if (w->pad == REF_NONE) {
        grad_give(d, w->x, part);
        return;
    }
    for (Ref r = w->x; r != w->pad; r = graph_node(d->g, r)->in[0])
        part = grad_regrouped(d, r, part);
    grad_give(d, graph_node(d->g, w->pad)->in[0], part);
}

/* part: that of windows [n, channels, place, tap, place, tap...], each of which has its own for each tap. */
static void give_taps(Gradient *d, const Windows *w, Ref part)
{
    for (int k = 0; k < w->spatial; k++)
        part = grad_unwindowed(d, w->window[k], part);
    grad_give(d, w->x, part);
}

/* Axis by axis, the last tap first. `step` from one tap's axis to the next. */
static Ref reversed_taps(Gradient *d, Ref x, int axis, int step, int spatial)
{
    for (int k = 0; k < spatial; k++)
        x = grad_flip(d, x, axis + k * step);
    return x;
}

/* weights [batch..., out, channels and taps] times windows [batch..., channels and taps, places] */
bool vjp_product_of_windows(Gradient *d, Ref r, Ref g)
{
    Windows w;
    const Node n = node_of(d, r), b = node_of(d, n.in[1]), a = node_of(d, n.in[0]);
    int batch = n.rank - 2;
    if (batch < 1 || !find_windows(d, n.in[1], &w) || !w.close || !w.taps_first || batch + 2 + w.spatial > MAX_RANK)
        return false;
    const Node all = node_of(d, w.window[0]);
    Dim split[1 + SPATIAL] = {all.dim[1]}, places[SPATIAL], depth = all.dim[1], count = dim_const(d->g, 1);
    for (int k = 0; k < w.spatial; k++) {
        places[k] = all.dim[2 + 2 * k];
        split[1 + k] = all.dim[3 + 2 * k];
        depth = dim_mul(d->g, depth, split[1 + k]);
        count = dim_mul(d->g, count, places[k]);
    }
    if (!same_size(d, b.dim[batch], depth) || !same_size(d, b.dim[batch + 1], count))
        return false;

    bool shared = a.op == OP_EXPAND && !(a.attr.mask >> batch);
    Ref left = grad_split(d, shared ? a.in[0] : n.in[0], batch + 1, 1 + w.spatial, split);
    left = reversed_taps(d, left, batch + 2, 1, w.spatial);
    uint8_t perm[MAX_RANK];
    for (uint8_t k = 0; k < MAX_RANK; k++)
        perm[k] = k;
    perm[batch] = (uint8_t)(batch + 1);
    perm[batch + 1] = (uint8_t)batch;
    left = grad_merge(d, grad_permute(d, left, perm), batch + 1, 1 + w.spatial); /* [batch..., channels, out and taps] */
    left = shared ? grad_repeat(d, left, a.attr.mask, a.dim) : left;

    Ref right = grad_split(d, grad_merge(d, g, 0, batch), 2, w.spatial, places);
    right = windows_of_elements(d, &w, right, 2);
    for (int k = 0; k < MAX_RANK; k++)
        perm[k] = taps_first(w.spatial, k);
    right = grad_merge(d, grad_permute(d, right, perm), 2 + w.spatial, w.spatial);
    right = grad_split(d, grad_merge(d, right, 1, 1 + w.spatial), 0, batch, b.dim); /* [batch..., out and taps, elements] */
    Ref part = grad_merge(d, grad_product(d, left, right), 0, batch);
    give_images(d, &w, grad_split(d, part, 2, w.spatial, w.length));
    return true;
}

/*
 * Weights are repeated over places. The last axis of these goes to the end, behind the taps, and is summed after the others: so lanes of a
 * vector are neighbours, each with a sum of its own.
 */
static void give_weights(Gradient *d, Ref weights, Ref part)
{
    const Node n = node_of(d, weights);
    uint8_t perm[MAX_RANK], last = (uint8_t)(31 - __builtin_clz(n.attr.mask)), first = (uint8_t)(n.attr.mask & ~(1u << last));
    if (!passes(d, weights)) {
        grad_give(d, weights, part);
        return;
    }
    for (uint8_t k = 0; k + 1 < n.rank; k++)
        perm[k] = (uint8_t)(k + (k >= last));
    perm[n.rank - 1] = last;
    part = grad_reduce(d, OP_REDUCE_SUM, grad_permute(d, part, perm), first);
    part = grad_reduce(d, OP_REDUCE_SUM, part, (uint8_t)(1u << (graph_node(d->g, part)->rank - 1)));
    grad_give(d, n.in[0], grad_insert(d, part, n.attr.mask));
}

/*
 * Maxima or minima over the taps of windows [n, channels, place, tap, place, tap...]: an element gets `part` of each window that it is in
 * and whose extreme does not beat it. Where windows lie close, that is asked of each element and the windows that it may be in, where there is none,
 * part is zero; else of each tap.
 */
bool vjp_extreme_of_windows(Gradient *d, Ref r, Ref part)
{
    Windows w;
    const Node n = node_of(d, r), x = node_of(d, n.in[0]);
    if (x.op != OP_WINDOW || !find_windows(d, n.in[0], &w) || x.rank != 2 + 2 * w.spatial || (w.pad != REF_NONE && w.pad != w.x))
        return false;
    Dim dims[MAX_RANK] = {x.dim[0], x.dim[1]};
    uint8_t taps = 0;
    for (int k = 0; k < w.spatial; k++) {
        taps |= (uint8_t)(8u << 2 * k);
        dims[2 + 2 * k] = w.length[k];
        dims[3 + 2 * k] = x.dim[3 + 2 * k];
    }
    if (n.attr.mask != taps)
        return false;
    if (!w.close) {
        Ref best = grad_spread(d, grad_wide(d, r), taps, x.dim);
        give_taps(d, &w, grad_unless_beaten(d, r, grad_wide(d, n.in[0]), best, grad_spread(d, part, taps, x.dim)));
        return true;
    }
    part = windows_of_elements(d, &w, part, 2);
    Ref best = windows_of_elements(d, &w, grad_wide(d, r), 2);
    Ref element = grad_wide(d, w.pad == REF_NONE ? w.x : graph_node(d->g, w.pad)->in[0]);
    part = grad_unless_beaten(d, r, grad_spread(d, element, taps, dims), best, part);
    give_images(d, &w, grad_reduce(d, OP_REDUCE_SUM, part, taps));
    return true;
}

/* Sum over the taps of windows [..., place, tap, place, tap...] times weights that all places share. */
bool vjp_sum_of_windows(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r), mul = node_of(d, n.in[0]);
    if (mul.op != OP_MUL || !passes(d, n.in[0]))
        return false;
    for (int side = 0; side < 2; side++) {
        Windows w;
        Ref x = mul.in[side], weights = mul.in[1 - side];
        const Node e = node_of(d, weights);
        if (!grad_wants(d, n.in[0], (uint32_t)side) || e.op != OP_EXPAND || !find_windows(d, x, &w) || w.taps_first)
            continue;
        int batch = e.rank - 2 * w.spatial;
        if (batch < 1)
            continue;
        const Node all = node_of(d, w.window[0]);
        unsigned taps = 0, places = 0;
        Dim dims[MAX_RANK];
        bool fits = true;
        for (int k = 0; k < batch; k++)
            dims[k] = mul.dim[k];
        for (int k = 0; k < w.spatial; k++) {
            int at = batch + 2 * k;
            places |= 1u << at;
            taps |= 2u << at;
            fits &= same_size(d, mul.dim[at], all.dim[2 + 2 * k]) && same_size(d, mul.dim[at + 1], all.dim[3 + 2 * k]);
            dims[at] = w.length[k];
            dims[at + 1] = mul.dim[at + 1];
        }
        if (!fits || n.attr.mask != taps || (e.attr.mask & (taps | places)) != places)
            continue;

        const Ref spread = grad_spread(d, g, n.attr.mask, mul.dim);
        if (w.close) {
            Ref factor = grad_repeat(d, reversed_taps(d, e.in[0], batch + 1, 2, w.spatial), e.attr.mask, dims);
            Ref part = grad_ew2(d, OP_MUL, windows_of_elements(d, &w, g, batch), factor);
            part = grad_merge(d, grad_reduce(d, OP_REDUCE_SUM, part, n.attr.mask), 0, batch);
            give_images(d, &w, grad_split(d, part, 0, 2, all.dim));
        } else {
            Ref part = grad_merge(d, grad_ew2(d, OP_MUL_NO_NAN, spread, weights), 0, batch);
            give_taps(d, &w, grad_split(d, part, 0, 2, all.dim));
        }
        if (grad_wants(d, n.in[0], (uint32_t)(1 - side)))
            give_weights(d, weights, grad_ew2(d, OP_MUL_NO_NAN, spread, x));
        return true;
    }
    return false;
}

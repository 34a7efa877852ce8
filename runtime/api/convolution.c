/*
 * Windows along axes and what is made of them: unfold, convolution, pooling; padding with elements of x.
 *
 * A convolution is a product: windows of x as a matrix of [channels and taps, places], which is a view, times the weights. Packing
 * for the product follows the view, so that the matrix, as many times as large as x as a window has taps, is never stored.
 */
#include "runtime/api/images.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { SPATIAL = KILN_MAX_SPATIAL };
_Static_assert(2 + 2 * SPATIAL <= MAX_RANK, "a batch of windows along each axis has a rank");

/* ---- windows ---- */

/* Windows along one axis. */
typedef struct Window {
    int64_t size, stride, dilation;
} Window;

/* Elements from a window's first to its last. false: too many. */
static bool span_of(Window w, int64_t *span)
{
    return !__builtin_mul_overflow(w.size - 1, w.dilation, span) && !__builtin_add_overflow(*span, 1, span);
}

/* How many windows there are in n elements. */
static int64_t count_of(Window w, int64_t span, int64_t n) { return n < span ? 0 : (n - span) / w.stride + 1; }

/* An image without elements has no places where each element is one, or where `same` says how many there are. */
static bool is_empty(int64_t span, int64_t n, bool same) { return n == 0 && (same || span == 1); }

static bool window_fits(Rec *r, Window w, int axis)
{
    int64_t span;
    if (w.size < 1 || w.stride < 1 || w.dilation < 1) {
        rec_fail(r, ST_INVALID, "windows of %" PRId64 " with stride %" PRId64 ", dilation %" PRId64 " along axis %d: each is at least 1",
                 w.size, w.stride, w.dilation, axis);
        return false;
    }
    if (!span_of(w, &span)) {
        rec_fail(r, ST_OVERFLOW, "a window of %" PRId64 " with dilation %" PRId64 " along axis %d", w.size, w.dilation, axis);
        return false;
    }
    return true;
}

/* The axis becomes places and, behind, what is in the window at each; window_fits. */
static RtNode *windows(Rec *r, RtNode *x, int axis, Window w)
{
    if (!x)
        return NULL;
    int64_t span;
    span_of(w, &span);
    int64_t count = count_of(w, span, x->dim[axis]);
    if (w.size == 1)
        return rec_insert(r, w.stride == 1 ? x : rec_slice(r, x, axis, 0, w.stride, count), axis + 1);
    Attr attr = {.axis = (uint8_t)axis};
    return rec_node(r, OP_WINDOW, node_dtype(x), &attr, 1, &x, (const int64_t[]){w.stride, w.dilation, count, w.size}, 4);
}

/* x with its axis `from` moved to become axis `to`. */
static RtNode *move_axis(Rec *r, RtNode *x, int from, int to)
{
    uint8_t perm[MAX_RANK];
    for (int d = 0, next = 0; x && d < x->rank; d++) {
        next += next == from;
        perm[d] = (uint8_t)(d == to ? from : next++);
    }
    return rec_permute(r, x, perm);
}

API5(kiln_tensor *, kiln_unfold, kiln_tensor *, x, int, axis, int64_t, size, int64_t, stride, int64_t, dilation)
{
    Rec r = REC(kiln_unfold);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    Window w = {size, stride, dilation};
    int64_t span;
    char text[SHAPE_TEXT];
    if (!in || !rec_axis(&r, in, axis, &axis) || !window_fits(&r, w, axis))
        return rec_end(&r, NULL);
    span_of(w, &span);
    if (in->dim[axis] < span)
        return rec_end(
            &r, rec_fail(&r, ST_SHAPE, "axis %d is shorter than a window, %" PRId64 " elements: x is %s", axis, span, node_text(in, text)));
    RtNode *y = windows(&r, in, axis, w);
    return rec_end(&r, y ? move_axis(&r, y, axis + 1, y->rank - 1) : NULL);
}

/* Each element of a window is added to the place that it would have been taken from, in the dtype that sums have. */
API5(kiln_tensor *, kiln_fold, kiln_tensor *, x, int, axis, int64_t, length, int64_t, stride, int64_t, dilation)
{
    static const char *const name = "x";
    Rec r = REC(kiln_fold);
    RtNode *in = rec_in(&r, x, "x");
    char text[SHAPE_TEXT];
    if (!rec_promote(&r, PREP_NUM, 1, &in, &name) || !rec_axis(&r, in, axis, &axis))
        return rec_end(&r, NULL);
    int last = in->rank - 1;
    if (axis == last)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "axis %d is that of elements in a window: x is %s", axis, node_text(in, text)));
    Window w = {in->dim[last], stride, dilation};
    int64_t span, numel, dims[MAX_RANK], both[2] = {in->dim[axis], w.size};
    if (!window_fits(&r, w, last))
        return rec_end(&r, NULL);
    span_of(w, &span);
    if (length < 0 || count_of(w, span, length) != in->dim[axis])
        return rec_end(&r, rec_fail(&r, ST_SHAPE,
                                    "%" PRId64 " elements have %" PRId64 " windows of %" PRId64 ", not as many as axis %d: x is %s", length,
                                    length < 0 ? 0 : count_of(w, span, length), span, axis, node_text(in, text)));
    memcpy(dims, in->dim, sizeof dims);
    dims[axis] = length;
    if (!shape_numel(last, dims, &numel))
        return rec_end(&r, rec_fail(&r, ST_OVERFLOW, "the result has more than 2^62 elements: x is %s", node_text(in, text)));
    DType out = node_dtype(in), wide = dtype_is_float(out) ? compute_dtype(out) : out;
    RtNode *start = rec_ew2(&r, OP_MUL, rec_iota(&r, both[0]), rec_int(&r, DT_I64, stride));
    RtNode *offset = rec_ew2(&r, OP_MUL, rec_iota(&r, both[1]), rec_int(&r, DT_I64, dilation));
    start = rec_repeat(&r, rec_insert(&r, start, 1), 2, both);
    offset = rec_repeat(&r, rec_insert(&r, offset, 0), 1, both);
    RtNode *index = rec_merge(&r, rec_ew2(&r, OP_ADD, start, offset), 0, 2);
    RtNode *part = rec_cast(&r, rec_merge(&r, move_axis(&r, in, last, axis + 1), axis, 2), wide);
    RtNode *zeros = rec_expand(&r, rec_int(&r, wide, 0), last, dims);
    if (!part || !zeros || !index)
        return rec_end(&r, NULL);
    RtNode *all[3] = {zeros, rec_spread(&r, index, part->rank, part->dim, axis), part};
    Attr attr = {.axis = (uint8_t)axis, .mode = KILN_SCATTER_ADD};
    return rec_end(&r, all[1] ? rec_cast(&r, rec_node(&r, OP_SCATTER, wide, &attr, 3, all, NULL, 0), out) : NULL);
}

/* ---- padding with elements of x ---- */

/* `n` elements before or behind an axis, as the mode says. */
static RtNode *border(Rec *r, RtNode *x, int axis, kiln_pad_mode mode, int64_t n, bool low)
{
    int64_t dim = x->dim[axis], dims[MAX_RANK];
    switch (mode) {
    case KILN_PAD_EDGE:
        memcpy(dims, x->dim, sizeof dims);
        dims[axis] = n;
        return rec_repeat(r, rec_slice(r, x, axis, low ? 0 : dim - 1, 1, 1), (uint8_t)(1u << axis), dims);
    case KILN_PAD_REFLECT: return rec_slice(r, x, axis, low ? n : dim - 2, -1, n);
    case KILN_PAD_SYMMETRIC: return rec_slice(r, x, axis, low ? n - 1 : dim - 1, -1, n);
    case KILN_PAD_WRAP: return rec_slice(r, x, axis, low ? dim - n : 0, 1, n);
    case KILN_PAD_ZERO: break;
    }
    return NULL;
}

/* How many elements of an axis of n a mode can add. */
static int64_t most_added(kiln_pad_mode mode, int64_t n)
{
    return mode == KILN_PAD_ZERO ? INT64_MAX : mode == KILN_PAD_EDGE ? (n ? INT64_MAX : 0) : mode == KILN_PAD_REFLECT ? (n ? n - 1 : 0) : n;
}

static bool pad_mode_ok(Rec *r, kiln_pad_mode mode)
{
    bool ok = (unsigned)mode <= KILN_PAD_WRAP;
    if (!ok)
        rec_fail(r, ST_INVALID, "padding mode %d", (int)mode);
    return ok;
}

/* Can an axis be padded so? */
static bool pad_fits(Rec *r, const RtNode *x, int axis, kiln_padding by, kiln_pad_mode mode)
{
    char text[SHAPE_TEXT];
    int64_t most = most_added(mode, x->dim[axis]), sum;
    if (by.low < 0 || by.high < 0)
        rec_fail(r, ST_INVALID, "padding of axis %d is %" PRId64 ", %" PRId64, axis, by.low, by.high);
    else if (by.low > most || by.high > most)
        rec_fail(r, ST_SHAPE, "axis %d has not enough elements for %" PRId64 ", %" PRId64 " more: x is %s", axis, by.low, by.high,
                 node_text(x, text));
    else if (__builtin_add_overflow(by.low, by.high, &sum) || __builtin_add_overflow(sum, x->dim[axis], &sum))
        rec_fail(r, ST_OVERFLOW, "padding of axis %d overflows", axis);
    else
        return true;
    return false;
}

/* x with an axis padded with elements of its own. */
static RtNode *pad_axis(Rec *r, RtNode *x, int axis, kiln_padding by, kiln_pad_mode mode)
{
    RtNode *parts[3];
    uint32_t n = 0;
    if (by.low)
        parts[n++] = border(r, x, axis, mode, by.low, true);
    parts[n++] = x;
    if (by.high)
        parts[n++] = border(r, x, axis, mode, by.high, false);
    for (uint32_t i = 0; i < n; i++)
        if (!parts[i])
            return NULL;
    return rec_concat(r, n, parts, axis);
}

/* x with its axes from `first` on padded; mode ZERO adds `fill`, along all of them in one node. */
static RtNode *padded(Rec *r, RtNode *x, int first, int n, const kiln_padding *by, kiln_pad_mode mode, RtNode *fill)
{
    int64_t with[2 * MAX_RANK];
    Attr attr = {0};
    uint8_t sizes = 0;
    for (int d = 0; x && d < n; d++) {
        if (!by[d].low && !by[d].high)
            continue;
        if (!pad_fits(r, x, first + d, by[d], mode))
            return NULL;
        if (mode != KILN_PAD_ZERO) {
            x = pad_axis(r, x, first + d, by[d], mode);
            continue;
        }
        attr.mask |= (uint8_t)(1u << (first + d));
        with[sizes++] = by[d].low;
        with[sizes++] = by[d].high;
    }
    RtNode *both[2] = {x, fill};
    return !x || !sizes ? x : fill ? rec_node(r, OP_PAD, node_dtype(x), &attr, 2, both, with, sizes) : NULL;
}

API4(kiln_tensor *, kiln_pad_by, kiln_tensor *, x, int, n, const kiln_padding *, paddings, kiln_pad_mode, mode)
{
    Rec r = REC(kiln_pad_by);
    RtNode *y = rec_strong(&r, rec_in(&r, x, "x"));
    char text[SHAPE_TEXT];
    if (!y || !pad_mode_ok(&r, mode))
        return rec_end(&r, NULL);
    if (n < 0 || n > y->rank || (n && !paddings))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%d paddings%s: x is %s", n, n && !paddings ? " at NULL" : "", node_text(y, text)));
    return rec_end(&r, padded(&r, y, 0, n, paddings, mode, rec_int(&r, node_dtype(y), 0)));
}

/* ---- what convolution and pooling share ---- */

bool images_in(Rec *r, RtNode *x, int spatial, bool channels_last, Images *out)
{
    char text[SHAPE_TEXT];
    *out = (Images){x, spatial, false, channels_last};
    if (!x)
        return false;
    if (x->rank != spatial + 1 && x->rank != spatial + 2) {
        rec_fail(r, ST_SHAPE, "%d spatial axes need [n, channels, ...] of rank %d, or %d without n: x is %s", spatial, spatial + 2,
                 spatial + 1, node_text(x, text));
        return false;
    }
    out->single = x->rank == spatial + 1;
    if (out->single)
        out->x = rec_insert(r, out->x, 0);
    if (channels_last)
        out->x = move_axis(r, out->x, spatial + 1, 1);
    return out->x != NULL;
}

RtNode *images_out(Rec *r, const Images *in, RtNode *y)
{
    if (in->last)
        y = move_axis(r, y, 1, in->spatial + 1);
    return in->single ? rec_drop(r, y, 1) : y;
}

/* Padding so that there are ceil(n / stride) windows, the odd element behind (TensorFlow's, and PyTorch's with stride 1). */
static kiln_padding same_padding(Window w, int64_t span, int64_t n)
{
    int64_t count = n / w.stride + (n % w.stride != 0), total = count ? (count - 1) * w.stride + span - n : 0;
    total = total > 0 ? total : 0;
    return (kiln_padding){total / 2, total - total / 2};
}

/* ---- convolution ---- */

static const kiln_conv_options conv_defaults;

typedef struct Conv {
    Images in;
    RtNode *w; /* [out, in / groups, taps...] */
    Window window[SPATIAL];
    kiln_padding pad[SPATIAL];
    int64_t groups, out;
} Conv;

static int64_t or_one(int64_t n) { return n ? n : 1; }

/* With an axis as it was and `step - 1` zeros between its elements. */
static RtNode *apart(Rec *r, RtNode *x, int axis, int64_t step)
{
    if (!x || step == 1 || !x->dim[axis])
        return x;
    int64_t length;
    if (__builtin_mul_overflow(x->dim[axis] - 1, step, &length))
        return rec_fail(r, ST_OVERFLOW, "stride %" PRId64, step);
    RtNode *zero = rec_int(r, node_dtype(x), 0);
    x = padded(r, rec_insert(r, x, axis + 1), axis + 1, 1, &(kiln_padding){0, step - 1}, KILN_PAD_ZERO, zero);
    return rec_slice(r, rec_merge(r, x, axis, 2), axis, 0, 1, length + 1);
}

/* A transposed convolution is one with stride 1 of x's elements set apart: its weights [in, out / groups, taps...] become
 * [out, in / groups, taps...], with taps in reverse. What padding takes away is taken off the padding that whole windows need. */
static bool transpose(Rec *r, Conv *c, const kiln_conv_options *o)
{
    int64_t in = c->w->dim[0], out = c->w->dim[1];
    if (in % c->groups) {
        rec_fail(r, ST_SHAPE, "%" PRId64 " input channels are not cut evenly by %" PRId64 " groups", in, c->groups);
        return false;
    }
    RtNode *w = rec_split(r, c->w, 0, 2, (const int64_t[]){c->groups, in / c->groups});
    w = rec_merge(r, move_axis(r, w, 1, 2), 0, 2);
    c->out = out * c->groups;
    for (int d = 0; d < c->in.spatial && w; d++) {
        Window *window = &c->window[d];
        int64_t span, size = w->dim[2 + d], extra = o->output_padding[d];
        span_of(*window, &span);
        if (extra < 0 || extra >= (window->stride > window->dilation ? window->stride : window->dilation)) {
            rec_fail(r, ST_INVALID, "output padding %" PRId64 " along axis %d: it is below the stride or the dilation", extra, d);
            return false;
        }
        w = rec_slice(r, w, 2 + d, size - 1, -1, size);
        c->in.x = apart(r, c->in.x, 2 + d, window->stride);
        if (!c->in.x)
            return false;
        int64_t low = span - 1 - c->pad[d].low, high = span - 1 - c->pad[d].high + extra, n = c->in.x->dim[2 + d];
        high -= n ? 0 : window->stride - 1; /* no elements, set apart: one set of zeros fewer than none */
        int64_t cut_low = low < 0 ? -low : 0, cut_high = high < 0 ? -high : 0;
        if (cut_low + cut_high > n || (n + low + high < span && !is_empty(span, n + low + high, false))) {
            rec_fail(r, ST_SHAPE, "padding %" PRId64 ", %" PRId64 " along axis %d leaves nothing", c->pad[d].low, c->pad[d].high, d);
            return false;
        }
        if (cut_low || cut_high)
            c->in.x = rec_slice(r, c->in.x, 2 + d, cut_low, 1, n - cut_low - cut_high);
        c->pad[d] = (kiln_padding){low < 0 ? 0 : low, high < 0 ? 0 : high};
        window->stride = 1;
    }
    c->w = w;
    return w && c->in.x;
}

/* Windows of the padded images: [n * groups, in / groups, place and taps of each axis...]. */
static RtNode *taken(Rec *r, const Conv *c, const kiln_conv_options *o)
{
    RtNode *x = c->in.x, *zero = x ? rec_int(r, node_dtype(x), 0) : NULL;
    char text[SHAPE_TEXT];
    x = padded(r, x, 2, c->in.spatial, c->pad, o->pad_mode, zero);
    if (!x)
        return NULL;
    for (int d = 0; d < c->in.spatial; d++) {
        int64_t span;
        span_of(c->window[d], &span);
        if (x->dim[2 + d] < span && !is_empty(span, x->dim[2 + d], o->same))
            return rec_fail(r, ST_SHAPE,
                            "%" PRId64 " elements with padding are fewer than a window's %" PRId64 " along spatial axis %d: x is %s",
                            x->dim[2 + d], span, d, node_text(c->in.x, text));
    }
    if (c->groups > 1)
        x = rec_merge(r, rec_split(r, x, 1, 2, (const int64_t[]){c->groups, x->dim[1] / c->groups}), 0, 2);
    for (int d = c->in.spatial; d-- > 0;)
        x = windows(r, x, 2 + d, c->window[d]);
    return x;
}

/* One channel in and out for each group: no product of matrices, since no two outputs share what they read. `x` is what was taken. */
static RtNode *depthwise(Rec *r, const Conv *c, RtNode *x)
{
    DType out = node_dtype(x), wide = dtype_accumulator(out);
    uint8_t taps = 0;
    RtNode *w = rec_drop(r, c->w, 2);
    x = rec_split(r, rec_drop(r, x, 2), 0, 2, (const int64_t[]){c->in.x->dim[0], c->groups});
    for (int d = 0; d < c->in.spatial; d++) {
        w = rec_insert(r, w, 1 + 2 * d); /* a place */
        taps |= (uint8_t)(1u << (3 + 2 * d));
    }
    x = rec_cast(r, x, wide);
    w = rec_cast(r, w, wide);
    return x && w ? rec_cast(r, rec_reduce(r, OP_REDUCE_SUM, rec_ew2(r, OP_MUL, x, w), taps, false), out) : NULL;
}

/* [n, out, places...] */
static RtNode *convolve(Rec *r, const Conv *c, const kiln_conv_options *o)
{
    RtNode *x = taken(r, c, o);
    if (!x || !c->w)
        return NULL;
    int spatial = c->in.spatial;
    int64_t n = c->in.x->dim[0], places[SPATIAL], outputs = c->out / c->groups;
    if (c->groups > 1 && outputs == 1 && x->dim[1] == 1)
        return depthwise(r, c, x);
    uint8_t perm[MAX_RANK] = {0, 1};
    for (int d = 0; d < spatial; d++) {
        places[d] = x->dim[2 + 2 * d];
        perm[2 + d] = (uint8_t)(3 + 2 * d);
        perm[2 + spatial + d] = (uint8_t)(2 + 2 * d);
    }
    x = rec_merge(r, rec_merge(r, rec_permute(r, x, perm), 2 + spatial, spatial), 1, 1 + spatial); /* [n * groups, taps, places] */
    RtNode *w = rec_merge(r, c->w, 1, 1 + spatial);                                                /* [out, taps] */
    if (!x || !w)
        return NULL;
    RtNode *in[2];
    int64_t dims[4] = {n, c->groups, outputs, w->dim[1]};
    if (c->groups > 1) {
        in[0] = rec_expand(r, rec_split(r, w, 0, 2, dims + 1), 4, dims);
        in[1] = rec_split(r, x, 0, 2, dims);
    } else {
        in[0] = rec_expand(r, w, 3, (const int64_t[]){n, outputs, dims[3]});
        in[1] = x;
    }
    RtNode *y = in[0] && in[1] ? rec_node(r, OP_MATMUL, DT_COUNT, NULL, 2, in, NULL, 0) : NULL;
    y = c->groups > 1 ? rec_merge(r, y, 1, 2) : y;
    return y ? rec_split(r, y, 2, spatial, places) : NULL;
}

static RtNode *conv(Rec *r, RtNode *x, RtNode *w, RtNode *bias, const kiln_conv_options *o)
{
    char text[SHAPE_TEXT], other[SHAPE_TEXT];
    int spatial = w->rank - 2;
    if (spatial < 1 || spatial > SPATIAL)
        return rec_fail(r, ST_SHAPE, "weights are [out, in / groups, ...] with 1 to %d axes more: w is %s", SPATIAL, node_text(w, text));
    Conv c = {.w = w, .groups = or_one(o->groups), .out = w->dim[0]};
    if (!rec_reserved(r, o->reserved) || !pad_mode_ok(r, o->pad_mode) || !images_in(r, x, spatial, o->channels_last, &c.in))
        return NULL;
    for (int d = 0; d < spatial; d++) {
        int64_t span;
        c.window[d] = (Window){w->dim[2 + d], or_one(o->stride[d]), or_one(o->dilation[d])};
        c.pad[d] = o->padding[d];
        if (!window_fits(r, c.window[d], 2 + d))
            return NULL;
        span_of(c.window[d], &span);
        if (o->same && (o->transposed || c.pad[d].low || c.pad[d].high))
            return rec_fail(r, ST_INVALID, "`same` comes with %s", o->transposed ? "`transposed`" : "paddings of its own");
        if (o->same)
            c.pad[d] = same_padding(c.window[d], span, c.in.x->dim[2 + d]);
        else if (c.pad[d].low < 0 || c.pad[d].high < 0)
            return rec_fail(r, ST_INVALID, "padding of spatial axis %d is %" PRId64 ", %" PRId64, d, c.pad[d].low, c.pad[d].high);
        if (!o->transposed && o->output_padding[d])
            return rec_fail(r, ST_INVALID, "output padding without `transposed`");
    }
    int64_t channels = c.in.x->dim[1], takes;
    if (c.groups < 1)
        return rec_fail(r, ST_INVALID, "%" PRId64 " groups", c.groups);
    if (o->transposed ? o->pad_mode != KILN_PAD_ZERO : w->dim[0] % c.groups != 0)
        return o->transposed
                   ? rec_fail(r, ST_INVALID, "`transposed` pads with zeros only")
                   : rec_fail(r, ST_SHAPE, "%" PRId64 " output channels are not cut evenly by %" PRId64 " groups", w->dim[0], c.groups);
    bool fits = o->transposed ? w->dim[0] == channels : !__builtin_mul_overflow(w->dim[1], c.groups, &takes) && takes == channels;
    if (!fits)
        return rec_fail(r, ST_SHAPE, "channels differ, with %" PRId64 " groups: x is %s, w is %s", c.groups, node_text(x, text),
                        node_text(w, other));
    if (o->transposed && !transpose(r, &c, o))
        return NULL;
    if (bias && (bias->rank != 1 || bias->dim[0] != c.out))
        return rec_fail(r, ST_SHAPE, "the bias is not one number for each of %" PRId64 " channels: bias is %s", c.out,
                        node_text(bias, text));
    RtNode *y = convolve(r, &c, o);
    if (y && bias) {
        for (int d = 0; d < spatial && bias; d++)
            bias = rec_insert(r, bias, 1);
        y = bias ? rec_ew2(r, OP_ADD, y, bias) : NULL;
    }
    return y ? images_out(r, &c.in, y) : NULL;
}

API3(kiln_tensor *, kiln_conv, kiln_tensor *, x, kiln_tensor *, w, const kiln_conv_options *, options)
{
    static const char *const names[] = {"x", "w", "bias"};
    Rec r = REC(kiln_conv);
    const kiln_conv_options *o = options ? options : &conv_defaults;
    RtNode *in[3] = {rec_in(&r, x, "x"), rec_in(&r, w, "w"), NULL};
    bool ok = in[0] && in[1] && rec_optional(&r, o->bias, "bias", &in[2]) && rec_promote(&r, PREP_NUM, in[2] ? 3 : 2, in, names);
    return rec_end(&r, ok ? conv(&r, in[0], in[1], in[2], o) : NULL);
}

/* ---- pooling ---- */

static const kiln_pool_options pool_defaults;

typedef struct Pool {
    Images in;
    Window window[SPATIAL];
    kiln_padding pad[SPATIAL]; /* with what `ceil` adds */
    int64_t over[SPATIAL];     /* that */
} Pool;

static bool pool_in(Rec *r, RtNode *x, kiln_shape window, const kiln_pool_options *o, Pool *p)
{
    char text[SHAPE_TEXT];
    if (!x || !rec_reserved(r, o->reserved) || !rec_shape(r, window))
        return false;
    if (window.rank < 1 || window.rank > SPATIAL) {
        rec_fail(r, ST_SHAPE, "windows along 1 to %d axes, not %d", SPATIAL, window.rank);
        return false;
    }
    if (!images_in(r, x, window.rank, o->channels_last, &p->in))
        return false;
    for (int d = 0; d < window.rank; d++) {
        Window w = {window.dim[d], o->stride[d] ? o->stride[d] : window.dim[d], or_one(o->dilation[d])};
        int64_t span, n = p->in.x->dim[2 + d], padded;
        if (!window_fits(r, w, 2 + d))
            return false;
        span_of(w, &span);
        kiln_padding pad = o->padding[d];
        if (o->same && (o->ceil || pad.low || pad.high)) {
            rec_fail(r, ST_INVALID, "`same` comes with %s", o->ceil ? "`ceil`" : "paddings of its own");
            return false;
        }
        if (o->same)
            pad = same_padding(w, span, n);
        if (pad.low < 0 || pad.high < 0 || pad.low >= span || pad.high >= span) {
            rec_fail(r, ST_INVALID,
                     "padding of spatial axis %d is %" PRId64 ", %" PRId64 ": not in 0 to %" PRId64 ", or windows hold nothing", d, pad.low,
                     pad.high, span - 1);
            return false;
        }
        p->over[d] = 0;
        padded = n + pad.low + pad.high;
        if (o->ceil && padded > span - w.stride) { /* what is left of the last stride is a window, if that begins in x or before it */
            int64_t last = (padded - span + w.stride - 1) / w.stride * w.stride;
            last -= last >= n + pad.low ? w.stride : 0;
            p->over[d] = last + span > padded ? last + span - padded : 0;
        }
        if (padded + p->over[d] < span && !is_empty(span, padded + p->over[d], o->same)) {
            rec_fail(r, ST_SHAPE, "%" PRId64 " elements with padding are fewer than a window's %" PRId64 " along spatial axis %d: x is %s",
                     padded, span, d, node_text(x, text));
            return false;
        }
        pad.high += p->over[d];
        p->window[d] = w;
        p->pad[d] = pad;
    }
    return true;
}

RtNode *reduce_least(Rec *r, DType dtype)
{
    return dtype_is_float(dtype) ? rec_scalar(r, dtype, -INFINITY) : rec_bits(r, dtype, fold_start(FOLD_MAX, dtype));
}

/* op over the windows of x padded with `fill`. */
static RtNode *pooled(Rec *r, const Pool *p, RtNode *x, RtNode *fill, Op op)
{
    uint8_t taps = 0;
    x = padded(r, x, 2, p->in.spatial, p->pad, KILN_PAD_ZERO, fill);
    for (int d = p->in.spatial; d-- > 0;)
        x = windows(r, x, 2 + d, p->window[d]);
    for (int d = 0; d < p->in.spatial; d++)
        taps |= (uint8_t)(1u << (3 + 2 * d));
    return x ? rec_reduce(r, op, x, taps, false) : NULL;
}

API3(kiln_tensor *, kiln_max_pool, kiln_tensor *, x, kiln_shape, window, const kiln_pool_options *, options)
{
    static const char *const name = "x";
    Rec r = REC(kiln_max_pool);
    const kiln_pool_options *o = options ? options : &pool_defaults;
    RtNode *in = rec_in(&r, x, "x");
    Pool p;
    if (!rec_promote(&r, PREP_NUM, 1, &in, &name) || !pool_in(&r, in, window, o, &p))
        return rec_end(&r, NULL);
    RtNode *y = pooled(&r, &p, p.in.x, reduce_least(&r, node_dtype(in)), OP_REDUCE_MAX);
    return rec_end(&r, y ? images_out(&r, &p.in, y) : NULL);
}

/* How many elements along a spatial axis count in each of its windows; [places]. */
static RtNode *counted(Rec *r, const Pool *p, int d, bool padding, DType dtype)
{
    int64_t n = p->in.x->dim[2 + d];
    kiln_padding pad = p->pad[d];
    if (padding) {
        n += pad.low + pad.high - p->over[d];
        pad = (kiln_padding){0, p->over[d]};
    }
    RtNode *ones = rec_expand(r, rec_int(r, dtype, 1), 1, &n);
    ones = windows(r, padded(r, ones, 0, 1, &pad, KILN_PAD_ZERO, rec_int(r, dtype, 0)), 0, p->window[d]);
    return rec_reduce(r, OP_REDUCE_SUM, ones, 2, false);
}

API3(kiln_tensor *, kiln_avg_pool, kiln_tensor *, x, kiln_shape, window, const kiln_pool_options *, options)
{
    static const char *const name = "x";
    Rec r = REC(kiln_avg_pool);
    const kiln_pool_options *o = options ? options : &pool_defaults;
    RtNode *in = rec_in(&r, x, "x");
    Pool p;
    if (!rec_promote(&r, PREP_FLOAT, 1, &in, &name) || !pool_in(&r, in, window, o, &p))
        return rec_end(&r, NULL);
    DType out = node_dtype(in), wide = compute_dtype(out);
    RtNode *y = pooled(&r, &p, rec_cast(&r, p.in.x, wide), rec_int(&r, wide, 0), OP_REDUCE_SUM);
    double whole = 1;
    for (int d = 0; d < p.in.spatial && y; d++) {
        bool padded = p.pad[d].low || p.pad[d].high;
        if (o->exclude_padding ? !padded : !p.over[d]) { /* all windows hold as many */
            whole *= (double)p.window[d].size;
            continue;
        }
        RtNode *count = counted(&r, &p, d, !o->exclude_padding, wide);
        for (int behind = d + 1; behind < p.in.spatial; behind++)
            count = rec_insert(&r, count, 1);
        y = count ? rec_ew2(&r, OP_DIV, y, count) : NULL;
    }
    if (y && whole != 1)
        y = rec_ew2(&r, OP_DIV, y, rec_scalar(&r, wide, whole));
    return rec_end(&r, y ? images_out(&r, &p.in, rec_cast(&r, y, out)) : NULL);
}

/*
 * Nodes of recipes that networks are made of: windows, products, norms, attention, and gradients of a few other nodes. And what
 * compilers look for (softmax, norms, GELU, SiLU, attention), spelled by hand, as it is or with one thing other than it should be
 * (a twist): an axis, a constant, an operand, a sign.
 */
#include "tests/support/random_graph_at.h"

#include <string.h>

/* In smooth recipes nothing overflows. */
static kiln_tensor *bounded(const At *at, kiln_tensor *x) { return at->recipe->smooth ? kiln_mul(kiln_tanh(x), kiln_int(3)) : x; }

/* --- nearly what has a name: p[0] which, p[1] its twist (none, if beyond the last), p[2] axis --- */

/* axis: along which rows lie; other: the one before it. */
typedef struct Rows {
    int axis, other;
} Rows;

typedef kiln_tensor *Nearly(const At *at, Rows r, int twist);

static kiln_tensor *near_softmax(const At *at, Rows r, int twist)
{
    kiln_tensor *x = bounded(at, at->a), *most = kiln_max_axes(x, KILN_AXES(twist == 0 ? r.other : r.axis), true);
    kiln_tensor *shifted = kiln_sub(x, twist == 1 ? kiln_mean_axes(x, KILN_AXES(r.axis), true) : most);
    kiln_tensor *e = twist == 2 ? kiln_exp2(shifted) : kiln_exp(twist == 3 ? kiln_neg(kiln_abs(shifted)) : shifted);
    kiln_tensor *of = twist == 4 ? kiln_square(e) : e;
    kiln_tensor *sum = kiln_sum_axes(of, KILN_AXES(twist == 5 ? r.other : r.axis), twist != 6);
    if (twist == 7)
        sum = kiln_add(sum, kiln_int(1));
    return twist == 8 ? kiln_sub(kiln_div(e, sum), e) : twist == 9 ? kiln_mul(e, kiln_reciprocal(kiln_sqrt(sum))) : kiln_div(e, sum);
}

static kiln_tensor *near_log_softmax(const At *at, Rows r, int twist)
{
    kiln_tensor *x = bounded(at, at->a);
    kiln_tensor *shifted = kiln_sub(x, kiln_max_axes(x, KILN_AXES(twist == 0 ? r.other : r.axis), true));
    kiln_tensor *sum = kiln_sum_axes(kiln_exp(twist == 1 ? x : shifted), KILN_AXES(twist == 2 ? r.other : r.axis), twist != 3);
    kiln_tensor *total = twist == 4 ? kiln_log1p(sum) : kiln_log(sum);
    return twist == 5 ? kiln_add(shifted, total) : twist == 6 ? kiln_sub(x, total) : kiln_sub(shifted, total);
}

static kiln_tensor *near_norm(const At *at, Rows r, int twist)
{
    kiln_tensor *x = bounded(at, at->a), *mean = kiln_mean_axes(x, KILN_AXES(twist == 0 ? r.other : r.axis), true);
    kiln_tensor *centred = kiln_sub(x, mean), *power = twist == 1   ? kiln_mul(centred, x)
                                                       : twist == 2 ? kiln_abs(centred)
                                                                    : kiln_square(twist == 3 ? x : centred);
    kiln_axes axes = KILN_AXES(twist == 4 ? r.other : r.axis);
    kiln_tensor *var = twist == 5 ? kiln_sum_axes(power, axes, true) : kiln_mean_axes(power, axes, true);
    kiln_tensor *root = kiln_sqrt(kiln_add(twist == 1 ? kiln_abs(var) : var, kiln_scalar(twist == 6 ? 1 : 1e-2)));
    kiln_tensor *y = twist == 7 ? kiln_mul(centred, root) : twist == 8 ? kiln_div(x, root) : kiln_div(centred, root);
    return twist == 9 ? kiln_add(y, mean) : y;
}

static kiln_tensor *near_rms_norm(const At *at, Rows r, int twist)
{
    kiln_tensor *x = bounded(at, at->a),
                *power = twist == 0 ? kiln_pow(kiln_abs(x), kiln_int(3)) : kiln_mul(x, twist == 1 ? kiln_neg(x) : x);
    kiln_tensor *mean = kiln_mean_axes(power, KILN_AXES(twist == 2 ? r.other : r.axis), true);
    kiln_tensor *inverse = kiln_rsqrt(kiln_add(twist == 1 ? kiln_neg(mean) : mean, kiln_scalar(1e-2)));
    return kiln_mul(twist == 3 ? kiln_abs(x) : x, twist == 4 ? kiln_square(inverse) : inverse);
}

static kiln_tensor *near_gelu(const At *at, Rows r, int twist)
{
    (void)r;
    kiln_tensor *x = bounded(at, at->a), *scaled = kiln_mul(x, kiln_scalar(twist == 0 ? 0.7 : 0.7071067811865476));
    kiln_tensor *y = twist == 1 ? kiln_tanh(scaled) : twist == 2 ? kiln_erfc(scaled) : kiln_erf(scaled);
    kiln_tensor *half = kiln_mul(kiln_scalar(twist == 3 ? 0.25 : 0.5), twist == 4 ? kiln_relu(x) : x);
    kiln_tensor *one = kiln_scalar(twist == 5 ? 2 : 1);
    return twist == 6 ? kiln_add(half, kiln_add(y, one)) : kiln_mul(half, twist == 7 ? kiln_sub(one, y) : kiln_add(y, one));
}

static kiln_tensor *near_gelu_tanh(const At *at, Rows r, int twist)
{
    (void)r;
    kiln_tensor *x = bounded(at, at->a), *cube = twist == 0 ? kiln_square(x) : kiln_mul(kiln_mul(x, x), x);
    kiln_tensor *inner = kiln_add(x, kiln_mul(kiln_scalar(twist == 1 ? 0.0447 : twist == 2 ? 0.05 : 0.044715), cube));
    kiln_tensor *y = kiln_mul(kiln_scalar(twist == 3 ? 0.8 : 0.7978845608028654), inner);
    y = twist == 4 ? kiln_sigmoid(y) : kiln_tanh(twist == 5 ? kiln_neg(y) : y);
    return kiln_mul(kiln_mul(kiln_scalar(0.5), x), twist == 6 ? y : kiln_add(kiln_int(1), y));
}

static kiln_tensor *near_silu(const At *at, Rows r, int twist)
{
    kiln_tensor *x = bounded(at, at->a), *e = kiln_exp(twist == 0 ? x : kiln_neg(x));
    kiln_tensor *below = kiln_add(e, kiln_scalar(twist == 1 ? 2 : 1));
    kiln_tensor *above = twist == 2 ? kiln_max_axes(x, KILN_AXES(r.axis), true) : twist == 3 ? kiln_int(1) : x;
    return twist == 4 ? kiln_div(kiln_int(1), kiln_sub(below, kiln_scalar(0.5))) : kiln_div(above, below);
}

/* Queries a, keys and values b: rows along the last axis but one. */
static kiln_tensor *near_attention(const At *at, Rows r, int twist)
{
    (void)r;
    if (kiln_rank(at->a) < 2 || kiln_rank(at->b) < 2)
        return NULL;
    kiln_tensor *q = bounded(at, at->a), *k = bounded(at, at->b), *scores = kiln_matmul(q, kiln_transpose(k));
    scores = kiln_mul(scores, kiln_scalar(0.25));
    if (at->node->p[2] & 1) /* causal, or nearly */
        scores = kiln_where(kiln_cast(kiln_tril(kiln_ones_like(scores), twist == 0 ? 1 : 0), KILN_BOOL), scores,
                            kiln_scalar(at->recipe->smooth || twist == 1 ? -30 : -1e30));
    const int axis = twist == 2 ? -2 : -1;
    kiln_tensor *e = kiln_exp(twist == 3 ? scores : kiln_sub(scores, kiln_max_axes(scores, KILN_AXES(axis), true)));
    kiln_tensor *sum = kiln_sum_axes(e, KILN_AXES(twist == 4 ? -2 : axis), true);
    kiln_tensor *weights = twist == 5 || twist == 6 ? e : kiln_div(e, sum);
    kiln_tensor *out = kiln_matmul(weights, twist == 7 ? kiln_sin(k) : k);
    if (twist == 5)
        out = kiln_div(out, sum);
    if (twist == 8)
        out = kiln_add(out, kiln_max_axes(weights, KILN_AXES(-1), true));
    if (twist == 9)
        out = kiln_add(out, kiln_mean_axes(scores, KILN_AXES(-1), true));
    return out;
}

kiln_tensor *build_nearly(At *at)
{
    static const struct {
        const char *name;
        Nearly *build;
    } kinds[] = {{"softmax", near_softmax},    {"log_softmax", near_log_softmax}, {"norm", near_norm}, {"rms_norm", near_rms_norm},
                 {"gelu", near_gelu},          {"gelu_tanh", near_gelu_tanh},     {"silu", near_silu}, {"attention", near_attention},
                 {"attention", near_attention}};
    const int rank = kiln_rank(at->a), which = modulo(at->node->p[0], sizeof kinds / sizeof *kinds), twist = modulo(at->node->p[1], 15);
    if (rank == 0)
        return NULL;
    const Rows r = {modulo(at->node->p[2] & 1 ? rank - 1 : at->node->p[2], rank),
                    modulo(at->node->p[2] & 1 ? rank - 2 : at->node->p[3], rank)};
    say(at, "%s of t%d, t%d by hand, axes %d %d, twist %d", kinds[which].name, at->node->in[0], at->node->in[1], r.axis, r.other, twist);
    return kinds[which].build(at, r, twist);
}

/* --- windows --- */

/* Weights of this shape, gathered from t: computed where a product packs them, or before. */
static kiln_tensor *weights_from(kiln_tensor *t, kiln_shape shape, kiln_dtype dtype)
{
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++)
        n *= shape.dim[i];
    if (kiln_numel(t) == 0)
        return NULL;
    kiln_tensor *index = kiln_sub(kiln_remainder(kiln_arange(KILN_I64, 0, (double)n, 1), kiln_int(kiln_numel(t))), kiln_int(kiln_numel(t)));
    return kiln_reshape(kiln_cast(kiln_take(kiln_flatten(t), index, 0), dtype), shape);
}

/* a [channels, ...] or [n, channels, ...], by so many axes of windows. 0: it has no such rank. */
static int spatial_axes(const At *at)
{
    const int rank = kiln_rank(at->a), spatial = rank < 2 ? 0 : at->node->p[0] & 1 && rank > 2 ? rank - 2 : rank - 1;
    return spatial > KILN_MAX_SPATIAL ? 0 : spatial;
}

kiln_tensor *build_conv(At *at)
{
    const int spatial = spatial_axes(at);
    const int32_t *p = at->node->p;
    if (spatial == 0 || kiln_dtype_of(at->a) == KILN_BOOL || kiln_dtype_of(at->b) == KILN_BOOL)
        return NULL;
    const bool last = p[0] & 2;
    const int64_t channels = kiln_dim(at->a, last ? -1 : -1 - spatial), outs = 1 + modulo(p[0] / 4, 5);
    const bool grouped = p[1] & 1 && channels > 0 && channels <= 8;
    kiln_conv_options o = {.channels_last = last, .groups = grouped ? channels : 1};
    kiln_shape shape = {2 + spatial, {outs * o.groups, channels / o.groups}};
    for (int i = 0; i < spatial; i++) {
        shape.dim[2 + i] = 1 + modulo(p[1] / 2 + i, 3);
        o.stride[i] = 1 + modulo(p[2] + i, 2);
        o.dilation[i] = 1 + (p[2] / 2 % 4 == 3);
        o.padding[i] = (kiln_padding){modulo(p[3] + i, 3), modulo(p[3] / 4, 3)};
    }
    o.transposed = p[0] / 32 % 4 == 0;
    if (o.transposed) { /* [in, out / groups, ...] */
        shape.dim[0] = channels;
        shape.dim[1] = outs;
    } else if (p[0] / 32 % 4 == 1) {
        o.pad_mode = (kiln_pad_mode)modulo(p[3] / 16, 5);
    } else if (p[0] / 32 % 4 == 2) {
        o.same = true;
        memset(o.padding, 0, sizeof o.padding);
    }
    if (channels > 40 || kiln_numel(at->a) > 8000)
        return NULL;
    say(at, "%sconv of t%d by %d x %d of t%d, groups %d, %s, taps %d.., stride %d.., dilation %d, padding %d %d..%s mode %d",
        o.transposed ? "transposed " : "", at->node->in[0], (int)shape.dim[0], (int)shape.dim[1], at->node->in[1], (int)o.groups,
        last ? "channels last" : "channels first", (int)shape.dim[2], (int)o.stride[0], (int)o.dilation[0], (int)o.padding[0].low,
        (int)o.padding[0].high, o.same ? ", same," : ",", (int)o.pad_mode);
    kiln_tensor *w = weights_from(at->b, shape, kiln_dtype_of(at->b));
    return w ? kiln_conv(at->a, w, &o) : NULL;
}

kiln_tensor *build_pool(At *at)
{
    const int spatial = spatial_axes(at);
    const int32_t *p = at->node->p;
    const bool most = p[1] & 1 && !at->recipe->smooth;
    if (spatial == 0 || kiln_dtype_of(at->a) == KILN_BOOL)
        return NULL;
    kiln_pool_options o = {.channels_last = p[0] & 2, .ceil = p[0] & 4, .exclude_padding = p[0] & 8};
    kiln_shape window = {spatial, {0}};
    for (int i = 0; i < spatial; i++) {
        window.dim[i] = 1 + modulo(p[1] / 2 + i, 4);
        o.stride[i] = 1 + modulo(p[2] + i, 3);
        o.padding[i] = (kiln_padding){modulo(p[3] + i, (int)window.dim[i]), modulo(p[3] / 4, (int)window.dim[i])};
    }
    say(at, "%s pool of t%d, %s, window %d.., stride %d.., padding %d %d..%s%s", most ? "max" : "avg", at->node->in[0],
        o.channels_last ? "channels last" : "channels first", (int)window.dim[0], (int)o.stride[0], (int)o.padding[0].low,
        (int)o.padding[0].high, o.ceil ? ", ceil" : "", o.exclude_padding ? ", without padding" : "");
    return most ? kiln_max_pool(at->a, window, &o) : kiln_avg_pool(at->a, window, &o);
}

/* --- attention: queries a, keys and values b --- */

kiln_tensor *build_attention(At *at)
{
    const int32_t *p = at->node->p;
    if (kiln_rank(at->a) < 2 || kiln_rank(at->a) != kiln_rank(at->b) || kiln_numel(at->a) > 20000 || kiln_numel(at->b) > 20000)
        return NULL;
    kiln_attention_options o = {.causal = p[0] & 1, .from_end = p[0] & 2, .scale = p[1] & 1 ? 0.5 : 0, .softcap = p[1] & 2 ? 5 : 0};
    if (p[2] & 1)
        o.before = 1 + modulo(p[2] / 2, 6);
    if (p[2] % 16 == 4)
        o.after = 1 + modulo(p[3], 6);
    say(at, "attention of t%d to t%d, %s%s%sscale %g, softcap %g, before %d, after %d", at->node->in[0], at->node->in[1],
        o.causal ? "causal, " : "", o.from_end ? "from end, " : "", p[3] & 1 ? "values turned, " : "", o.scale, o.softcap, (int)o.before,
        (int)o.after);
    kiln_tensor *q = bounded(at, at->a), *k = bounded(at, at->b);
    return kiln_attention(q, k, p[3] & 1 ? kiln_flip(k, KILN_AXES(-1)) : k, &o);
}

/* --- places between others, and normalisation of channels --- */

kiln_tensor *build_resize(At *at)
{
    const int spatial = spatial_axes(at);
    const int32_t *p = at->node->p;
    const bool last = p[0] & 2, is_float = dtype_is_float(kiln_dtype_of(at->a));
    const int which = modulo(p[1], is_float ? 6 : 2); /* the nearest; of floats others and pools as well */
    if (spatial == 0 || kiln_dtype_of(at->a) == KILN_BOOL)
        return NULL;
    kiln_shape size = {spatial, {0}};
    for (int i = 0; i < spatial; i++)
        size.dim[i] = 1 + modulo(p[2] + i, 7);
    kiln_interpolate_options o = {.mode = (kiln_interpolation)(which & 3), .align_corners = which > 1 && p[3] & 1, .channels_last = last};
    say(at, "%s of t%d to %d.., %s%s", which < 4 ? "interpolation" : "adaptive pool", at->node->in[0], (int)size.dim[0],
        last ? "channels last" : "channels first", o.align_corners ? ", corners" : "");
    say(at, ", %d", which);
    return which < 4                           ? kiln_interpolate(at->a, size, &o)
           : which == 4 && !at->recipe->smooth ? kiln_adaptive_max_pool(at->a, size, last)
                                               : kiln_adaptive_avg_pool(at->a, size, last);
}

/* One or two operands, whose axes are named by their ranks. */
kiln_tensor *build_einsum(At *at)
{
    static const char *const of_one[] = {"ii->i", "ij->ji", "ij->j", "...i->...", "...ij->...ji", "ijk->kj", "i->"};
    static const char *const of_two[] = {"ij,kj->ik",      "ij,ij->i", "ij,ij->ji",    "ij,kj->i", "i,j->ij",
                                         "...i,...i->...", "ij,j->i",  "bij,bkj->bik", "ij,kl->",  "bij,kj->bki"};
    const bool one = at->node->p[0] % 4 == 0;
    const char *equation = one ? of_one[modulo(at->node->p[1], 7)] : of_two[modulo(at->node->p[1], 10)];
    if (kiln_dtype_of(at->a) == KILN_BOOL || kiln_numel(at->a) > 2000 || kiln_numel(at->b) > 2000)
        return NULL;
    say(at, "kiln_einsum(\"%s\", t%d, t%d)", equation, at->node->in[0], at->node->in[1]);
    return kiln_einsum_list(equation, (kiln_tensor *[]){at->a, at->b}, one ? 1 : 2);
}

kiln_tensor *build_group_norm(At *at)
{
    const int spatial = spatial_axes(at);
    const bool last = at->node->p[0] & 2;
    if (spatial == 0 || !dtype_is_float(kiln_dtype_of(at->a)))
        return NULL;
    const int64_t channels = kiln_dim(at->a, last ? -1 : kiln_rank(at->a) - 1 - spatial);
    const int64_t groups = channels % 2 == 0 && at->node->p[1] & 1 ? 2 : at->node->p[1] & 2 ? 1 : channels;
    const kiln_norm_options o = {.channels_last = last, .eps = 1e-2};
    say(at, "group norm of t%d, %d groups, %s", at->node->in[0], (int)groups, last ? "channels last" : "channels first");
    return kiln_group_norm(at->a, groups, &o);
}

/* By angles from b. */
kiln_tensor *build_rotary(At *at)
{
    if (!dtype_is_float(kiln_dtype_of(at->a)) || kiln_rank(at->a) == 0 || !dtype_is_float(kiln_dtype_of(at->b)) || kiln_dim(at->a, -1) < 2)
        return NULL;
    const int64_t pairs = 1 + modulo(at->node->p[1], (int)kiln_dim(at->a, -1) / 2);
    kiln_tensor *angles = weights_from(at->b, KILN_SHAPE(pairs), kiln_dtype_of(at->b));
    say(at, "kiln_rotary(t%d, %d angles of t%d, %d)", at->node->in[0], (int)pairs, at->node->in[1], at->node->p[0] & 1);
    return angles ? kiln_rotary(at->a, angles, at->node->p[0] & 1) : NULL;
}

/* --- products of one left operand: a by several matrices, of b or gathered from it, each with what follows it --- */

static kiln_tensor *right_operand(const At *at, int64_t inner, int64_t columns, int i)
{
    const bool turned = at->node->p[1] >> i & 1;
    const int axis = turned ? -1 : -2;
    if (kiln_rank(at->b) == 2 && kiln_dim(at->b, axis) == inner && at->node->p[1] & 64) { /* columns of b, or all of them */
        kiln_tensor *part = kiln_slice_axis(at->b, turned ? 0 : 1, i, columns + i, 1);
        return turned ? kiln_transpose(part) : part;
    }
    kiln_tensor *w = weights_from(at->b, turned ? KILN_SHAPE(columns, inner) : KILN_SHAPE(inner, columns), kiln_dtype_of(at->b));
    w = at->node->p[1] & 128 ? kiln_neg(w) : w;
    return turned ? kiln_transpose(w) : w;
}

kiln_tensor *build_products(At *at)
{
    static const int64_t widths[] = {1, 3, 8, 16, 17, 33, 48, 64, 65};
    enum { MOST = 4 };
    const int32_t *p = at->node->p;
    const int n = 2 + modulo(p[0], MOST - 1), way = modulo(p[0] / 4, 4);
    const int64_t inner = kiln_dim(at->a, -1), width = widths[modulo(p[2], 9)];
    const double rows = inner ? (double)kiln_numel(at->a) / (double)inner : 0;
    kiln_tensor *part[MOST] = {NULL};
    if (kiln_rank(at->a) < 2 || kiln_dtype_of(at->a) == KILN_BOOL || kiln_dtype_of(at->b) == KILN_BOOL ||
        rows * (double)inner * 65 > RECIPE_MAX_PRODUCTS / 8.0 || inner * 65 > RECIPE_MAX_ELEMENTS || kiln_rank(at->a) > 5)
        return NULL;
    say(at, "%d products of t%d, from %d columns of t%d, steps %d, way %d", n, at->node->in[0], (int)width, at->node->in[1], p[3], way);
    for (int i = 0; i < n; i++) {
        const int64_t columns = way == 3 ? width : widths[modulo(p[2] + i * (p[2] / 16 % 3), 9)];
        kiln_tensor *w = right_operand(at, inner, columns, i), *y = kiln_matmul(at->a, w);
        switch (p[3] >> (3 * i) & 7) {
        case 0: y = kiln_add(y, weights_from(at->b, KILN_SHAPE(kiln_dim(y, -1)), kiln_dtype_of(at->b))); break;
        case 1: y = kiln_relu(y); break;
        case 2: y = kiln_mul(kiln_tanh(y), kiln_int(2)); break;
        case 3: y = kiln_transpose(y); break;
        case 4: y = kiln_add(y, kiln_max_axes(at->a, KILN_AXES(-1), true)); break;
        }
        part[i] = y;
    }
    if (way == 3) { /* attention of the first three */
        kiln_tensor *k = part[1], *v = part[n - 1];
        return kiln_matmul(kiln_softmax(kiln_matmul(bounded(at, part[0]), kiln_transpose(bounded(at, k))), -1), v);
    }
    for (int i = 0; i < n; i++)
        part[i] = way == 0   ? kiln_flatten(part[i])
                  : way == 1 ? kiln_sum_axes(part[i], KILN_AXES(-1), false)
                             : kiln_flatten(kiln_sin(part[i]));
    if (way == 1)
        for (int i = 0; i < n; i++)
            part[i] = kiln_flatten(part[i]);
    return kiln_concat(part, n, 0);
}

/* --- gradients --- */

/* In smooth recipes, what has a derivative that is continuous. */
static void make_smooth(RecipeNode *node)
{
    static const int32_t sums[] = {0, 1, 4}, waves[] = {0, 3, 4, 5, 6, 7, 8, 9};
    if (node->op == R_UNARY)
        node->p[0] = waves[modulo(node->p[0], 8)];
    else if (node->op == R_BINARY)
        node->p[0] = modulo(node->p[0], 3);
    else if (node->op == R_REDUCE)
        node->p[0] = sums[modulo(node->p[0], 3)];
}

/* d sum(y^2) / d a, or of the sum of y by something that differs from element to element, of y that a few nodes make of a and b. */
kiln_tensor *build_gradient(At *at)
{
    static const uint8_t steps[] = {R_UNARY,      R_BINARY,  R_REDUCE,    R_RESHAPE, R_PERMUTE, R_SLICE,  R_UNFOLD,     R_FLIP,
                                    R_PAD,        R_CONCAT,  R_STACK,     R_ROLL,    R_CUMSUM,  R_MATMUL, R_SOFTMAX,    R_NORMALIZE,
                                    R_CONV,       R_POOL,    R_ATTENTION, R_EXPAND,  R_RESIZE,  R_EINSUM, R_GROUP_NORM, R_ROTARY,
                                    R_TILE,       R_SQUEEZE, R_BINARY,    R_VAR,     R_WHERE,   R_TAKE,   R_SORT,       R_NEARLY,
                                    R_TAKE_ALONG, R_SCATTER, R_PRODUCTS,  R_SCAN,    R_COND,    R_MAP};
    enum { SMOOTH = 27, STEPS = 4 };
    if (!dtype_is_float(kiln_dtype_of(at->a)))
        return NULL;
    kiln_tensor *x = kiln_param(kiln_stop_gradient(at->a)), *y = x, *grad = NULL;
    if (!x) /* a parameter is computed: an index out of bounds was met */
        return NULL;
    kiln_tensor *constant = kiln_stop_gradient(at->b); /* it may come of what was a parameter before */
    At inner = *at;
    inner.c = constant;
    say(at, "gradient by t%d of (", at->node->in[0]);
    for (int i = 0; i < 2 + at->node->p[0] % (STEPS - 1); i++) {
        RecipeNode node = *at->node;
        uint32_t mixed = (uint32_t)at->node->p[1 + i % 3] * 2654435761u + (uint32_t)i * 40503u;
        node.op = steps[(mixed >> 8) % (at->recipe->smooth ? SMOOTH : sizeof steps)];
        for (int j = 0; j < 4; j++)
            node.p[j] = (int32_t)((mixed >> (3 * j)) & 0xfffff);
        if (at->recipe->smooth)
            make_smooth(&node);
        inner.node = &node;
        inner.a = y;
        inner.b = node.p[3] & 16 ? y : constant;
        kiln_tensor *next = recipe_build_node(&inner);
        kiln_clear_error();
        say(at, next && recipe_is_small(at, kiln_shape_of(next)) ? "; " : " (refused); ");
        if (next && recipe_is_small(at, kiln_shape_of(next)))
            y = next;
    }
    say(at, ")");
    if (!dtype_is_float(kiln_dtype_of(y)))
        return NULL;
    kiln_tensor *by = at->node->p[2] & 8 ? y : kiln_reshape(kiln_sin(kiln_arange(KILN_F32, 0, (double)kiln_numel(y), 1)), kiln_shape_of(y));
    if (at->node->p[2] / 16 % 4 == 1) { /* forward */
        (void)kiln_jvp(1, &x, (kiln_tensor *[]){kiln_cos(x)}, 1, &y, 0, &grad);
        say(at, ", forward");
        return grad;
    }
    kiln_tensor *loss = kiln_sum(kiln_mul(y, by));
    (void)kiln_grad(loss, &x, 1, &grad);
    if (at->node->p[2] / 16 % 4 == 2 && grad) { /* of a gradient */
        kiln_tensor *again = NULL;
        say(at, ", twice");
        if (kiln_grad(kiln_sum(kiln_mul(grad, kiln_cos(x))), &x, 1, &again) == KILN_OK)
            grad = again;
    }
    return grad;
}

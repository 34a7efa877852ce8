/*
 * See random_graph.h. recipe_random draws the nodes without looking at shapes, but leans towards operands that are likely
 * to fit (of one dtype and few sizes); one builder for each kind of node (the table at the end) fits the numbers and records.
 */
#include "tests/support/random_graph_at.h"

#include <inttypes.h>
#include <string.h>
#include <threads.h>

/* --- building ------------------------------------------------------------------------------------------------------- */

static int most_elements(const At *at) { return at->recipe->large ? RECIPE_LARGE_ELEMENTS : RECIPE_MAX_ELEMENTS; }

/* An axis of size 0 counts as one of 1: what is reduced over it, or padded, has all of the others. */
static double elements_of(kiln_shape shape)
{
    double n = 1;
    for (int i = 0; i < shape.rank; i++)
        n *= shape.dim[i] ? (double)shape.dim[i] : 1;
    return n;
}

bool recipe_is_small(const At *at, kiln_shape shape) { return elements_of(shape) <= most_elements(at) && shape.rank <= KILN_MAX_RANK; }

static void say_shape(const At *at, const char *before, kiln_shape s, const char *after)
{
    say(at, "%sKILN_SHAPE(", before);
    for (int i = 0; i < s.rank; i++)
        say(at, "%s%" PRId64, i ? ", " : "", s.dim[i]);
    say(at, ")%s", after);
}

kiln_shape recipe_input_shape(const RecipeNode *node, const int64_t *sizes)
{
    kiln_shape s = {node->rank, {0}};
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = node->size[i] >= PALETTE ? 1 : sizes[node->size[i]];
    return s;
}

/* Names of dtypes as in kiln.h. */
static const char *const dtype_text[] = {"KILN_BOOL", "KILN_I8",  "KILN_I16", "KILN_I32",  "KILN_I64", "KILN_U8", "KILN_U16",
                                         "KILN_U32",  "KILN_U64", "KILN_F16", "KILN_BF16", "KILN_F32", "KILN_F64"};

/* --- leaves --- */

static kiln_tensor *build_input(At *at)
{
    kiln_shape s = recipe_input_shape(at->node, at->sizes);
    if (!recipe_is_small(at, s))
        return NULL;
    say(at, "input %s values %d", dtype_text[at->node->dtype], at->node->values);
    say_shape(at, " ", s, "");
    return at->input(at->recipe, at->k, s, at->user);
}

static const double weak_floats[] = {0.5, 2.0, 1.0, 0.0, -1.0, -0.0, 3.25, 1e-3, 1e10, -2.5};

static kiln_tensor *build_weak(At *at)
{
    int32_t v = modulo(at->node->p[1], 10);
    switch (modulo(at->node->p[0], 3)) {
    case 0: say(at, "kiln_scalar(%.17g)", weak_floats[v]); return kiln_scalar(weak_floats[v]);
    case 1: say(at, "kiln_int(%d)", v - 3); return kiln_int(v - 3);
    }
    say(at, "kiln_bool(%d)", v & 1);
    return kiln_bool(v & 1);
}

static kiln_tensor *build_full(At *at)
{
    kiln_shape s = recipe_input_shape(at->node, at->sizes);
    int32_t v = modulo(at->node->p[0], 5);
    say(at, "kiln_full(%s, ", dtype_text[at->node->dtype]);
    say_shape(at, "", s, "");
    say(at, ", %d)", v);
    return recipe_is_small(at, s) ? kiln_full((kiln_dtype)at->node->dtype, s, v) : NULL;
}

static kiln_tensor *build_arange(At *at)
{
    int64_t n = at->sizes[at->node->size[0] % PALETTE];
    int32_t step = modulo(at->node->p[0], 3) + 1;
    say(at, "kiln_arange(%s, 0, %" PRId64 ", %d)", dtype_text[at->node->dtype], n * step, step);
    return at->node->dtype == KILN_BOOL ? NULL : kiln_arange((kiln_dtype)at->node->dtype, 0, (double)(n * step), step);
}

static kiln_tensor *build_random(At *at)
{
    kiln_shape s = recipe_input_shape(at->node, at->sizes);
    kiln_dtype d = (kiln_dtype)at->node->dtype;
    if (!recipe_is_small(at, s) || d == KILN_BOOL)
        return NULL;
    const char *name = !dtype_is_float(d) ? "kiln_randint" : at->node->p[0] & 1 ? "kiln_normal" : "kiln_uniform";
    say(at, "%s(%s, ", name, dtype_text[d]);
    say_shape(at, "", s, ", 0, 4)");
    if (!dtype_is_float(d))
        return kiln_randint(d, s, 0, 4);
    return at->node->p[0] & 1 ? kiln_normal(d, s, 0, 4) : kiln_uniform(d, s, 0, 4);
}

/* --- elementwise --- */

typedef struct UnaryFn {
    const char *name;
    kiln_tensor *(*f)(kiln_tensor *);
} UnaryFn;

/* Functions that are continuous and of moderate size come first, for smooth recipes; then all. */
static const UnaryFn unaries[] = {
#define U(name) {"kiln_" #name, kiln_##name},
    U(neg) U(abs) U(relu) U(tanh) U(sigmoid) U(sin) U(cos) U(atan) U(erf) U(erfc) U(silu) U(gelu) U(gelu_tanh) U(asinh) U(softplus)
#define UNARY(f, op, prep) {#f, f},
#define BINARY(f, op, prep, a, b)
#include "tests/support/elementwise.def"
};
enum { UNARIES = sizeof unaries / sizeof *unaries, UNARIES_SMOOTH = 15 };

/* x where it is not NaN, else 1. */
static kiln_tensor *hide_nan(const At *at, kiln_tensor *x)
{
    (void)at;
    return dtype_is_float(kiln_dtype_of(x)) ? kiln_where(kiln_isnan(x), kiln_int(1), x) : x;
}

static kiln_tensor *build_unary(At *at)
{
    const UnaryFn *u = &unaries[modulo(at->node->p[0], at->recipe->smooth ? UNARIES_SMOOTH : UNARIES)];
    bool hides_nan = strcmp(u->name, "kiln_signbit") == 0;
    say(at, hides_nan ? "%s(where_nan_1(t%d))" : "%s(t%d)", u->name, at->node->in[0]);
    return u->f(hides_nan ? hide_nan(at, at->a) : at->a);
}

typedef struct BinaryFn {
    const char *name;
    kiln_tensor *(*f)(kiln_tensor *, kiln_tensor *);
} BinaryFn;

static const BinaryFn binaries[] = {
#define B(name) {"kiln_" #name, kiln_##name},
    B(add) B(sub) B(mul) B(maximum) B(minimum) B(add) B(mul)
#define UNARY(f, op, prep)
#define BINARY(f, op, prep, a, b) {#f, f},
#include "tests/support/elementwise.def"
};
enum { BINARIES = sizeof binaries / sizeof *binaries, BINARIES_SMOOTH = 5 };

static kiln_tensor *build_binary(At *at)
{
    const BinaryFn *f = &binaries[modulo(at->node->p[0], at->recipe->smooth ? BINARIES_SMOOTH : BINARIES)];
    bool hides_nan = strcmp(f->name, "kiln_copysign") == 0;
    say(at, hides_nan ? "%s(t%d, where_nan_1(t%d))" : "%s(t%d, t%d)", f->name, at->node->in[0], at->node->in[1]);
    return f->f(at->a, hides_nan ? hide_nan(at, at->b) : at->b);
}

static kiln_tensor *build_cast(At *at)
{
    say(at, "kiln_cast(t%d, %s)", at->node->in[0], dtype_text[at->node->dtype]);
    return kiln_cast(at->a, (kiln_dtype)at->node->dtype);
}

static kiln_tensor *build_where(At *at)
{
    say(at, "kiln_where(t%d, t%d, t%d)", at->node->in[0], at->node->in[1], at->node->in[2]);
    return kiln_where(at->a, at->b, at->c);
}

static kiln_tensor *build_clamp(At *at)
{
    say(at, "kiln_clamp(t%d, kiln_int(-1), kiln_int(2))", at->node->in[0]);
    return kiln_clamp(at->a, kiln_int(-1), kiln_int(2));
}

/* --- reductions --- */

/* Some of the axes; p[1] are bits, p[2] odd: all. */
static kiln_axes some_axes(const At *at)
{
    kiln_axes axes = KILN_AXES();
    int rank = kiln_rank(at->a);
    for (int i = 0; i < rank; i++)
        if (at->node->p[1] >> i & 1 || at->node->p[2] & 1)
            axes.axis[axes.n++] = i;
    if (axes.n == 0 && rank > 0)
        axes.axis[axes.n++] = rank - 1;
    return axes;
}

static void say_axes(const At *at, kiln_axes axes)
{
    say(at, "KILN_AXES(");
    for (int i = 0; i < axes.n; i++)
        say(at, "%s%d", i ? ", " : "", axes.axis[i]);
    say(at, ")");
}

static const struct {
    const char *name;
    kiln_tensor *(*f)(kiln_tensor *, kiln_axes, bool);
} reductions[] = {{"kiln_sum_axes", kiln_sum_axes},
                  {"kiln_mean_axes", kiln_mean_axes},
                  {"kiln_max_axes", kiln_max_axes},
                  {"kiln_min_axes", kiln_min_axes},
                  {"kiln_logsumexp_axes", kiln_logsumexp_axes},
                  {"kiln_prod_axes", kiln_prod_axes},
                  {"kiln_any_axes", kiln_any_axes},
                  {"kiln_all_axes", kiln_all_axes}};

static kiln_tensor *build_reduce(At *at)
{
    int f = modulo(at->node->p[0], at->recipe->smooth ? 5 : 8);
    bool keep = at->node->p[3] & 1;
    kiln_axes axes = some_axes(at);
    say(at, "%s(t%d, ", reductions[f].name, at->node->in[0]);
    say_axes(at, axes);
    say(at, ", %d)", keep);
    return reductions[f].f(at->a, axes, keep);
}

static kiln_tensor *build_arg(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    bool keep = at->node->p[3] & 1, most = at->node->p[0] & 1;
    if (rank == 0)
        return NULL;
    say(at, "%s(t%d, %d, %d)", most ? "kiln_argmax_axis" : "kiln_argmin_axis", at->node->in[0], axis, keep);
    return most ? kiln_argmax_axis(at->a, axis, keep) : kiln_argmin_axis(at->a, axis, keep);
}

static kiln_tensor *build_var(At *at)
{
    bool keep = at->node->p[3] & 1, root = at->node->p[0] & 1;
    kiln_axes axes = some_axes(at);
    say(at, "%s(t%d, ", root ? "kiln_std_axes" : "kiln_var_axes", at->node->in[0]);
    say_axes(at, axes);
    say(at, ", %d, %d)", at->node->p[2] & 1, keep);
    return root ? kiln_std_axes(at->a, axes, at->node->p[2] & 1, keep) : kiln_var_axes(at->a, axes, at->node->p[2] & 1, keep);
}

/* --- views --- */

static kiln_tensor *build_reshape(At *at)
{
    kiln_shape s = kiln_shape_of(at->a), t = s;
    int axis = modulo(at->node->p[1], s.rank);
    switch (modulo(at->node->p[0], 4)) {
    case 0: t = KILN_SHAPE(kiln_numel(at->a)); break;
    case 1: /* merge two axes */
        if (s.rank < 2)
            return NULL;
        axis = modulo(at->node->p[1], s.rank - 1);
        t.dim[axis] *= t.dim[axis + 1];
        for (int i = axis + 1; i + 1 < s.rank; i++)
            t.dim[i] = s.dim[i + 1];
        t.rank--;
        break;
    case 2: /* split an axis into its least factor and the rest */
        if (s.rank == 0 || s.rank > 4)
            return NULL;
        int64_t factor = 2;
        while (factor < 12 && s.dim[axis] % factor)
            factor++;
        if (s.dim[axis] == 0 || s.dim[axis] % factor)
            return NULL;
        for (int i = s.rank; i > axis + 1; i--)
            t.dim[i] = s.dim[i - 1];
        t.dim[axis] = factor;
        t.dim[axis + 1] = s.dim[axis] / factor;
        t.rank++;
        break;
    case 3: /* the dims in reverse order */
        for (int i = 0; i < s.rank; i++)
            t.dim[i] = s.dim[s.rank - 1 - i];
        break;
    }
    say(at, "kiln_reshape(t%d, ", at->node->in[0]);
    say_shape(at, "", t, ")");
    return kiln_reshape(at->a, t);
}

static kiln_tensor *build_permute(At *at)
{
    int rank = kiln_rank(at->a), turn = modulo(at->node->p[0], rank);
    kiln_axes order = {rank, {0}};
    for (int i = 0; i < rank; i++)
        order.axis[i] = at->node->p[1] & 1 ? rank - 1 - (i + turn) % rank : (i + turn) % rank;
    say(at, "kiln_permute(t%d, ", at->node->in[0]);
    say_axes(at, order);
    say(at, ")");
    return kiln_permute(at->a, order);
}

/* Dims of size 1 grow to a size of the palette; p[1] odd: a new leading axis too. */
static kiln_tensor *build_expand(At *at)
{
    kiln_shape s = kiln_shape_of(at->a);
    int64_t size = at->sizes[modulo(at->node->p[0], PALETTE)];
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = s.dim[i] == 1 ? size : s.dim[i];
    if (at->node->p[1] & 1 && s.rank < 5) {
        for (int i = s.rank; i > 0; i--)
            s.dim[i] = s.dim[i - 1];
        s.dim[0] = size;
        s.rank++;
    }
    say(at, "kiln_expand(t%d, ", at->node->in[0]);
    say_shape(at, "", s, ")");
    return recipe_is_small(at, s) ? kiln_expand(at->a, s) : NULL;
}

static kiln_tensor *build_squeeze(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank + 1);
    if (at->node->p[0] & 1) {
        say(at, "kiln_squeeze(t%d, KILN_ALL_AXES)", at->node->in[0]);
        return kiln_squeeze(at->a, KILN_ALL_AXES);
    }
    say(at, "kiln_unsqueeze(t%d, %d)", at->node->in[0], axis);
    return rank < 5 ? kiln_unsqueeze(at->a, axis) : NULL;
}

static kiln_tensor *build_slice(At *at)
{
    static const int64_t steps[] = {1, 1, 2, -1, 3, -2};
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    if (rank == 0)
        return NULL;
    int64_t n = kiln_dim(at->a, axis), step = steps[modulo(at->node->p[0], 6)];
    int64_t start = modulo(at->node->p[2], (int)n + 2), stop = modulo(at->node->p[3], 2 * (int)n + 3);
    if (step < 0) {
        start = n - 1 - start;
        stop = KILN_NONE;
    }
    if (start > 0 && rank > 2)
        start /= 2;
    say(at, "kiln_slice_axis(t%d, %d, %" PRId64 ", ", at->node->in[0], axis, start);
    say(at, stop == KILN_NONE ? "KILN_NONE, " : "%" PRId64 ", ", stop);
    say(at, "%" PRId64 ")", step);
    return kiln_slice_axis(at->a, axis, start, stop, step);
}

static kiln_tensor *build_unfold(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    int64_t size = 1 + modulo(at->node->p[0], 4), stride = 1 + modulo(at->node->p[2], 3), dilation = 1 + modulo(at->node->p[3], 2);
    if (rank == 0 || rank > 5 || kiln_dim(at->a, axis) < (size - 1) * dilation + 1)
        return NULL;
    say(at, "kiln_unfold(t%d, %d, ", at->node->in[0], axis);
    say(at, "%" PRId64 ", %" PRId64 ", %" PRId64 ")", size, stride, dilation);
    kiln_tensor *y = kiln_unfold(at->a, axis, size, stride, dilation);
    return y && recipe_is_small(at, kiln_shape_of(y)) ? y : NULL;
}

static kiln_tensor *build_flip(At *at)
{
    kiln_axes axes = some_axes(at);
    say(at, "kiln_flip(t%d, ", at->node->in[0]);
    say_axes(at, axes);
    say(at, ")");
    return kiln_flip(at->a, axes);
}

/* With a number, or as the modes of kiln_pad_by have it; the first axes, or all. */
static kiln_tensor *build_pad(At *at)
{
    static const double values[] = {1, 0, 0, -1, -2.5, 100};
    const int32_t *p = at->node->p;
    const int rank = kiln_rank(at->a), n = p[0] / 3 & 1 ? rank : rank < 2 ? rank : 2, mode = modulo(p[1] / 4, 8);
    const bool numbers = mode == 0 || mode > KILN_PAD_WRAP;
    const double value = values[modulo(p[2] / 2, dtype_is_float(kiln_dtype_of(at->a)) ? 6 : 3)];
    kiln_padding pads[KILN_MAX_RANK];
    for (int i = 0; i < n; i++)
        pads[i] = i & 1 ? (kiln_padding){modulo(p[2], 2), modulo(p[3], 3)} : (kiln_padding){modulo(p[0], 3), modulo(p[1], 4)};
    say(at, "kiln_pad%s(t%d, %d, {", numbers ? "" : "_by", at->node->in[0], n);
    for (int i = 0; i < n; i++)
        say(at, "{%" PRId64 ", %" PRId64 "}, ", pads[i].low, pads[i].high);
    say(at, numbers ? "}, kiln_scalar(%g))" : "}, mode %g)", numbers ? value : mode);
    if (!recipe_is_small(at, kiln_shape_of(at->a)))
        return NULL;
    return numbers ? kiln_pad(at->a, n, pads, kiln_scalar(value)) : kiln_pad_by(at->a, n, pads, (kiln_pad_mode)mode);
}

static kiln_tensor *build_concat(At *at)
{
    kiln_tensor *parts[3] = {at->a, at->b, at->a};
    int n = 2 + (at->node->p[0] & 1), rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    if (rank == 0 || 3 * kiln_numel(at->a) > RECIPE_MAX_ELEMENTS)
        return NULL;
    say(at, "kiln_concat((kiln_tensor *[]){t%d, t%d, t%d}, %d, %d)", at->node->in[0], at->node->in[1], at->node->in[0], n, axis);
    return kiln_concat(parts, n, axis);
}

static kiln_tensor *build_stack(At *at)
{
    kiln_tensor *parts[2] = {at->a, at->b};
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank + 1);
    say(at, "kiln_stack((kiln_tensor *[]){t%d, t%d}, 2, %d)", at->node->in[0], at->node->in[1], axis);
    return rank < 5 && 2 * kiln_numel(at->a) <= RECIPE_MAX_ELEMENTS ? kiln_stack(parts, 2, axis) : NULL;
}

static kiln_tensor *build_roll(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank), shift = modulo(at->node->p[0], 11) - 5;
    say(at, "kiln_roll(t%d, %d, %d)", at->node->in[0], shift, axis);
    return rank ? kiln_roll(at->a, shift, axis) : NULL;
}

static kiln_tensor *build_tile(At *at)
{
    int64_t times = 1 + modulo(at->node->p[0], 3);
    say(at, "kiln_tile(t%d, KILN_SHAPE(2, %" PRId64 "))", at->node->in[0], times);
    return kiln_numel(at->a) * 6 <= RECIPE_MAX_ELEMENTS ? kiln_tile(at->a, KILN_SHAPE(2, times)) : NULL;
}

static kiln_tensor *build_triangle(At *at)
{
    int k = modulo(at->node->p[1], 5) - 2;
    if (kiln_rank(at->a) < 2)
        return NULL;
    say(at, "%s(t%d, %d)", at->node->p[0] & 1 ? "kiln_triu" : "kiln_tril", at->node->in[0], k);
    return at->node->p[0] & 1 ? kiln_triu(at->a, k) : kiln_tril(at->a, k);
}

/* --- indexing, sorting, products --- */

/* b as indices into an axis of size n, from its end in every other recipe. */
static kiln_tensor *as_index(const At *at, kiln_tensor *b, int64_t n)
{
    kiln_tensor *index = kiln_remainder(kiln_cast(b, KILN_I64), kiln_int(n));
    return at->recipe->seed & 1 ? kiln_sub(index, kiln_int(n)) : index;
}

static kiln_tensor *build_take(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    if (rank == 0 || kiln_dim(at->a, axis) == 0)
        return NULL;
    int64_t n = kiln_dim(at->a, axis);
    if (rank + kiln_rank(at->b) > 9 || kiln_numel(at->a) / n * kiln_numel(at->b) > RECIPE_MAX_ELEMENTS)
        return NULL;
    say(at, "kiln_take(t%d, kiln_remainder(kiln_cast(t%d, KILN_I64), kiln_int(%" PRId64 ")), %d)", at->node->in[0], at->node->in[1], n,
        axis);
    return kiln_take(at->a, as_index(at, at->b, n), axis);
}

static kiln_tensor *build_take_along(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    if (rank == 0 || kiln_dim(at->a, axis) == 0)
        return NULL;
    say(at, "kiln_take_along_axis(t%d, kiln_remainder(kiln_cast(t%d, KILN_I64), kiln_int(%" PRId64 ")), %d)", at->node->in[0],
        at->node->in[1], kiln_dim(at->a, axis), axis);
    return kiln_take_along_axis(at->a, as_index(at, at->b, kiln_dim(at->a, axis)), axis);
}

static kiln_tensor *build_scatter(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank), mode = modulo(at->node->p[0], 4);
    if (rank == 0 || kiln_dim(at->a, axis) == 0 || kiln_dtype_of(at->a) == KILN_BOOL)
        return NULL;
    bool along = at->node->p[2] & 1;
    if (!along && kiln_numel(at->a) / kiln_dim(at->a, axis) * kiln_numel(at->b) > RECIPE_MAX_ELEMENTS) /* of the source */
        return NULL;
    kiln_tensor *index = as_index(at, along ? at->b : kiln_flatten(at->b), kiln_dim(at->a, axis));
    kiln_tensor *source = kiln_cast(at->node->p[3] & 1 && along ? at->b : kiln_int(2), kiln_dtype_of(at->a));
    say(at, "%s(t%d, kiln_remainder(kiln_cast(%st%d%s, KILN_I64), kiln_int(%" PRId64 ")), kiln_cast(%s, ...), %d, %d)",
        along ? "kiln_scatter_along_axis" : "kiln_scatter", at->node->in[0], along ? "" : "kiln_flatten(", at->node->in[1],
        along ? "" : ")", kiln_dim(at->a, axis), at->node->p[3] & 1 && along ? "the same" : "kiln_int(2)", axis, mode);
    return along ? kiln_scatter_along_axis(at->a, index, source, axis, (kiln_scatter_mode)mode)
                 : kiln_scatter(at->a, index, source, axis, (kiln_scatter_mode)mode);
}

static kiln_tensor *build_sort(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    bool descending = at->node->p[2] & 1;
    if (rank == 0)
        return NULL;
    if (at->node->p[0] & 1) {
        say(at, "kiln_argsort(t%d, %d, %d)", at->node->in[0], axis, descending);
        return kiln_argsort(at->a, axis, descending);
    }
    say(at, "kiln_sort(t%d, %d, %d)", at->node->in[0], axis, descending);
    return kiln_sort(at->a, axis, descending);
}

static kiln_tensor *build_cumsum(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    say(at, "kiln_cumsum(t%d, %d)", at->node->in[0], axis);
    return rank ? kiln_cumsum(at->a, axis) : NULL;
}

/* Either operand may be transposed; the second is where the product needs it. */
static kiln_tensor *build_matmul(At *at)
{
    const int most = most_elements(at) / (at->recipe->large ? 1 : 3);
    bool turned[2] = {at->node->p[0] & 2 && kiln_rank(at->a) > 1, at->node->p[0] & 1 && kiln_rank(at->b) > 1};
    if (kiln_rank(at->a) < 1 || kiln_rank(at->b) < 1 || kiln_numel(at->a) > most || kiln_numel(at->b) > most)
        return NULL;
    const int64_t inner = kiln_dim(at->a, turned[0] ? -2 : -1);
    if (kiln_rank(at->b) > 1 && kiln_dim(at->b, turned[1] ? -1 : -2) != inner)
        turned[1] = !turned[1];
    say(at, turned[0] ? "kiln_matmul(kiln_transpose(t%d), " : "kiln_matmul(t%d, ", at->node->in[0]);
    say(at, turned[1] ? "kiln_transpose(t%d))" : "t%d)", at->node->in[1]);
    kiln_tensor *y = kiln_matmul(turned[0] ? kiln_transpose(at->a) : at->a, turned[1] ? kiln_transpose(at->b) : at->b);
    if (!y || !recipe_is_small(at, kiln_shape_of(y)) || (double)kiln_numel(y) * (double)inner > RECIPE_MAX_PRODUCTS)
        return NULL;
    return y;
}

static kiln_tensor *build_softmax(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[1], rank);
    bool logs = at->node->p[0] & 1;
    say(at, "%s(t%d, %d)", logs ? "kiln_log_softmax" : "kiln_softmax", at->node->in[0], axis);
    return !rank ? NULL : logs ? kiln_log_softmax(at->a, axis) : kiln_softmax(at->a, axis);
}

static kiln_tensor *build_normalize(At *at)
{
    kiln_axes axes = some_axes(at);
    say(at, "kiln_normalize(t%d, ", at->node->in[0]);
    say_axes(at, axes);
    say(at, ", 1e-3)");
    return kiln_normalize(at->a, axes, 1e-3);
}

/* --- ops of the user's --- */

/* A host function that moves whole elements, so that all dtypes and values are welcome: backwards, and turned by so many places. */
static kiln_status turned_like(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)user;
    out[0] = out[1] = in[0];
    return attributes && bytes == sizeof(int32_t) ? KILN_OK : kiln_op_fail("%zu bytes of attributes", bytes);
}

static kiln_status turned(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    const size_t size = kiln_dtype_size(in[0].type.dtype);
    const int64_t n = shape_elements(in[0].type.shape);
    int32_t by = 0;
    (void)bytes, (void)user;
    memcpy(&by, attributes, sizeof by);
    for (int64_t i = 0; i < n; i++) {
        const char *from = (const char *)in[0].data + (size_t)i * size;
        memcpy((char *)out[0].data + (size_t)(n - 1 - i) * size, from, size);
        memcpy((char *)out[1].data + (size_t)((i + by) % n) * size, from, size);
    }
    return KILN_OK;
}

/* The same of rank 1 by kiln's functions. */
static void flipped(kiln_tensor **in, kiln_tensor **out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    kiln_shape s = kiln_shape_of(in[0]);
    out[0] = kiln_reshape(kiln_flip(kiln_flatten(in[0]), KILN_AXES(0)), s);
}

static const kiln_op *host_op, *recorded_op;
static once_flag ops_once = ONCE_FLAG_INIT;

static void register_ops(void)
{
    host_op = kiln_op_register(
        &(kiln_op_info){.name = "recipe.turned", .version = "1", .n_in = 1, .n_out = 2, .infer = turned_like, .host = turned});
    recorded_op = kiln_op_register(&(kiln_op_info){.name = "recipe.flipped", .version = "1", .n_in = 1, .n_out = 1, .decompose = flipped});
}

static kiln_tensor *apply_op(kiln_tensor *x, int32_t which, int32_t by)
{
    kiln_tensor *out[2] = {NULL};
    char device[16];
    by = modulo(by, 5);
    call_once(&ops_once, register_ops);
    const bool cuda = kiln_get_option("device", device, sizeof device) == KILN_OK && strncmp(device, "cuda", 4) == 0;
    if (which % 3 == 2 || cuda) /* api/test_cuda_op has images */
        (void)kiln_op_apply(recorded_op, &x, NULL, 0, out);
    else
        (void)kiln_op_apply(host_op, &x, &by, sizeof by, out);
    return which % 3 == 1 ? out[1] : out[0];
}

static kiln_tensor *build_custom(At *at)
{
    int32_t which = modulo(at->node->p[0], 3), by = modulo(at->node->p[1], 5);
    say(at, "%s of t%d, by %d",
        which == 2 ? "recipe.flipped"
        : which    ? "recipe.turned, result 1,"
                   : "recipe.turned, result 0,",
        at->node->in[0], by);
    return apply_op(at->a, which, by);
}

/* --- loops and branches --- */

/* What their functions record follows from the node: an elementwise function or two, at times a sum, a captured value (b) or the iteration. */
static kiln_tensor *body_value(const At *at, kiln_tensor *x, kiln_tensor *y, kiln_tensor *i)
{
    const UnaryFn *u = &unaries[modulo(at->node->p[0], at->recipe->smooth ? UNARIES_SMOOTH : UNARIES)];
    const BinaryFn *f = &binaries[modulo(at->node->p[1], at->recipe->smooth ? BINARIES_SMOOTH : BINARIES)];
    kiln_tensor *z = f->f(hide_nan(at, u->f(hide_nan(at, x))), hide_nan(at, y));
    if (at->node->p[2] & 1 && kiln_rank(y) > 0)
        z = kiln_add(z, kiln_max_axes(y, KILN_AXES(-1), true));
    if (at->node->p[2] & 2 && at->b)
        z = kiln_add(z, kiln_cast(kiln_any(kiln_cast(at->b, KILN_BOOL)), kiln_dtype_of(x)));
    if (at->node->p[2] & 4 && i)
        z = kiln_add(z, kiln_cast(i, kiln_dtype_of(x)));
    z = kiln_cast(z, kiln_dtype_of(x));
    return at->node->p[2] % 16 == 8 ? apply_op(z, at->node->p[2] / 16, at->node->p[3]) : z;
}

static void scan_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    carry_out[0] = body_value(user, carry[0], x[0], i);
    y[0] = ((const At *)user)->node->p[3] & 4 ? carry_out[0] : carry[0];
}

/* The sums of products so far, or whatever the functions make of them, along the first axis; p[3]: the last, or all of them. */
static kiln_tensor *build_scan(At *at)
{
    int rank = kiln_rank(at->a);
    if (rank <= 0 || kiln_dim(at->a, 0) > 40)
        return NULL;
    kiln_shape s = kiln_shape_of(at->a);
    memmove(s.dim, s.dim + 1, sizeof *s.dim * (size_t)--s.rank);
    kiln_tensor *init = kiln_ones(kiln_dtype_of(at->a), s), *last = NULL, *ys = NULL;
    bool reverse = at->node->p[3] & 1, all = at->node->p[3] & 2;
    say(at, "scan(t%d, captured t%d, step %d %d %d, %s, %s)", at->node->in[0], at->node->in[1], at->node->p[0], at->node->p[1],
        at->node->p[2], reverse ? "reverse" : "forward", all ? "all" : "last");
    (void)kiln_scan(scan_step, -1, reverse ? KILN_SCAN_REVERSE : 0, 1, &init, &last, 1, &at->a, 1, &ys, at);
    return all ? ys : last;
}

static kiln_tensor *while_goes_on(kiln_tensor **state, void *user)
{
    return kiln_lt(state[1], kiln_int(modulo(((const At *)user)->node->p[3], 6)));
}

static void while_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = body_value(user, in[0], in[0], in[1]);
    out[1] = kiln_add(in[1], kiln_int(1));
}

static kiln_tensor *build_while(At *at)
{
    kiln_tensor *state[] = {at->a, kiln_full(KILN_I64, KILN_SHAPE(), 0)};
    say(at, "while(t%d, captured t%d, step %d %d %d, %d times)", at->node->in[0], at->node->in[1], at->node->p[0], at->node->p[1],
        at->node->p[2], modulo(at->node->p[3], 6));
    (void)kiln_while(while_goes_on, while_step, 2, state, 0, state, at);
    return state[0];
}

static void then_branch(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = body_value(user, in[0], in[0], NULL); }

static void else_branch(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_clamp(in[0], kiln_int(0), kiln_int(2));
}

static kiln_tensor *build_cond(At *at)
{
    bool by_value = at->node->p[3] & 1 && !at->recipe->smooth;
    kiln_tensor *out = NULL, *yes = kiln_full(KILN_BOOL, KILN_SHAPE(), at->node->p[3] >> 1 & 1);
    say(at, "cond(%s, t%d, captured t%d, step %d %d %d)",
        by_value             ? "any"
        : at->node->p[3] & 2 ? "1"
                             : "0",
        at->node->in[0], at->node->in[1], at->node->p[0], at->node->p[1], at->node->p[2]);
    (void)kiln_cond(by_value ? kiln_any(kiln_cast(at->b, KILN_BOOL)) : yes, then_branch, else_branch, 1, &at->a, 1, &out, at);
    return out;
}

/* One index of what is mapped: by itself, or in a branch or a loop that depends on it. */
static void map_value(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const At *at = user;
    kiln_tensor *some = kiln_any(kiln_cast(in[0], KILN_BOOL)), *state[] = {in[0], kiln_cast(some, KILN_I64)};
    bool decides = !at->recipe->smooth;
    if (at->node->p[3] & 1 && decides)
        (void)kiln_cond(some, then_branch, else_branch, 1, in, 1, out, user);
    else if (at->node->p[3] & 2 && decides && kiln_while(while_goes_on, while_step, 2, state, 0, state, user) == KILN_OK)
        out[0] = state[0];
    else
        out[0] = body_value(at, in[0], in[0], NULL);
    if (at->node->p[3] & 8 && dtype_is_float(kiln_dtype_of(in[0]))) { /* for each index a gradient of its own */
        kiln_tensor *x = kiln_param(kiln_stop_gradient(in[0])), *loss = kiln_sum(body_value(at, x, x, NULL));
        if (kiln_grad(loss, &x, 1, &x) == KILN_OK)
            out[0] = kiln_add(out[0], x);
    }
}

static kiln_tensor *build_map(At *at)
{
    int rank = kiln_rank(at->a), axis = modulo(at->node->p[2] / 8, rank);
    kiln_tensor *out = NULL;
    int64_t chunk = at->node->p[3] & 4 && rank < KILN_MAX_RANK ? 2 : 0;
    say(at, "map(t%d, axis %d, chunk %d, captured t%d, step %d %d %d %d)", at->node->in[0], axis, (int)chunk, at->node->in[1],
        at->node->p[0], at->node->p[1], at->node->p[2], at->node->p[3]);
    if (rank > 0)
        (void)kiln_map(map_value, 1, &at->a, &axis, chunk, 1, &out, at);
    return out;
}

static kiln_tensor *build_alias(At *at)
{
    say(at, "t%d", at->node->in[0]);
    return at->a;
}

/* Per kind: builder, operands, how often it is drawn in general and in smooth recipes. */
static const struct {
    kiln_tensor *(*build)(At *at);
    int operands, weight, smooth;
} kinds[R_OPS] = {
    /* clang-format off */
    [R_INPUT] = {build_input, 0, 8, 8},           [R_WEAK] = {build_weak, 0, 6, 6},
    [R_FULL] = {build_full, 0, 2, 0},             [R_ARANGE] = {build_arange, 0, 2, 0},
    [R_RANDOM] = {build_random, 0, 3, 3},         [R_UNARY] = {build_unary, 1, 25, 25},
    [R_BINARY] = {build_binary, 2, 45, 45},       [R_CAST] = {build_cast, 1, 8, 0},
    [R_WHERE] = {build_where, 3, 6, 0},           [R_CLAMP] = {build_clamp, 1, 2, 2},
    [R_REDUCE] = {build_reduce, 1, 14, 14},       [R_ARG] = {build_arg, 1, 3, 0},
    [R_VAR] = {build_var, 1, 2, 0},               [R_RESHAPE] = {build_reshape, 1, 7, 7},
    [R_PERMUTE] = {build_permute, 1, 7, 7},       [R_EXPAND] = {build_expand, 1, 6, 6},
    [R_SQUEEZE] = {build_squeeze, 1, 4, 4},       [R_SLICE] = {build_slice, 1, 8, 8},
    [R_UNFOLD] = {build_unfold, 1, 4, 4},
    [R_FLIP] = {build_flip, 1, 4, 4},             [R_PAD] = {build_pad, 1, 4, 4},
    [R_CONCAT] = {build_concat, 2, 5, 5},         [R_STACK] = {build_stack, 2, 3, 3},
    [R_ROLL] = {build_roll, 1, 2, 2},             [R_TILE] = {build_tile, 1, 2, 2},
    [R_TRIANGLE] = {build_triangle, 1, 2, 2},     [R_TAKE] = {build_take, 2, 4, 0},
    [R_TAKE_ALONG] = {build_take_along, 2, 4, 0}, [R_SCATTER] = {build_scatter, 2, 4, 0},
    [R_SORT] = {build_sort, 1, 3, 0},             [R_CUMSUM] = {build_cumsum, 1, 4, 4},
    [R_MATMUL] = {build_matmul, 2, 5, 5},         [R_SOFTMAX] = {build_softmax, 1, 4, 4},
    [R_NORMALIZE] = {build_normalize, 1, 2, 2},   [R_SCAN] = {build_scan, 2, 4, 4},
    [R_WHILE] = {build_while, 2, 3, 3},           [R_COND] = {build_cond, 2, 3, 3},
    [R_MAP] = {build_map, 2, 5, 5},               [R_CUSTOM] = {build_custom, 1, 4, 4},
    [R_NEARLY] = {build_nearly, 2, 6, 8},         [R_CONV] = {build_conv, 2, 4, 4},
    [R_POOL] = {build_pool, 1, 3, 3},             [R_ATTENTION] = {build_attention, 2, 3, 4},
    [R_RESIZE] = {build_resize, 1, 3, 3},        [R_EINSUM] = {build_einsum, 2, 4, 4},
    [R_GROUP_NORM] = {build_group_norm, 1, 2, 2}, [R_ROTARY] = {build_rotary, 2, 2, 2},
    [R_PRODUCTS] = {build_products, 2, 4, 4},     [R_GRADIENT] = {build_gradient, 2, 6, 6},
    [R_ALIAS] = {build_alias, 1, 0, 0},
    /* clang-format on */
};

kiln_tensor *recipe_build_node(At *at) { return kinds[at->node->op].build(at); }

int recipe_build(const Recipe *recipe, const int64_t *sizes, RecipeInput *input, void *user, kiln_tensor **out, RecipeMade *info,
                 FILE *text)
{
    if (info)
        *info = (RecipeMade){0};
    kiln_tensor *made[RECIPE_NODES] = {0};
    kiln_clear_error();
    for (int k = 0; k < recipe->n; k++) {
        const RecipeNode *node = &recipe->node[k];
        At at = {recipe, node, sizes, k, NULL, NULL, NULL, input, user, text};
        kiln_tensor **operands[3] = {&at.a, &at.b, &at.c};
        bool fits = true;
        for (int i = 0; i < kinds[node->op].operands; i++) {
            *operands[i] = made[node->in[i]];
            fits = fits && *operands[i];
        }
        if (!fits)
            continue;
        say(&at, "    t%d = ", k);
        made[k] = recipe_build_node(&at);
        if (made[k] && !recipe_is_small(&at, kiln_shape_of(made[k])))
            made[k] = NULL;
        char shape[96];
        say(&at, ";    /* %s */\n", made[k] ? shape_text(kiln_dtype_of(made[k]), kiln_shape_of(made[k]), shape) : "refused");
        kiln_clear_error();
        if (info && made[k]) {
            info->ok[k] = true;
            info->dtype[k] = kiln_dtype_of(made[k]);
            info->shape[k] = kiln_shape_of(made[k]);
        }
    }
    int n = 0;
    for (int i = 0; i < recipe->n_out; i++) {
        kiln_tensor *t = made[recipe->out[i]];
        if (text)
            fprintf(text, "    output t%d%s\n", recipe->out[i], t ? "" : " (refused)");
        if (t)
            out[n++] = t;
    }
    return n;
}

void recipe_compact(Recipe *r)
{
    bool needed[RECIPE_NODES] = {false};
    int16_t now[RECIPE_NODES] = {0};
    for (int i = 0; i < r->n_out; i++)
        needed[r->out[i]] = true;
    for (int k = r->n - 1; k >= 0; k--)
        for (int i = 0; needed[k] && i < kinds[r->node[k].op].operands; i++)
            needed[r->node[k].in[i]] = true;
    int n = 0;
    for (int k = 0; k < r->n; k++) {
        if (!needed[k])
            continue;
        now[k] = (int16_t)n;
        r->node[n] = r->node[k];
        for (int i = 0; i < 3; i++)
            r->node[n].in[i] = i < kinds[r->node[n].op].operands ? now[r->node[n].in[i]] : 0;
        n++;
    }
    for (int i = 0; i < r->n_out; i++)
        r->out[i] = now[r->out[i]];
    r->n = n;
}

/* --- drawing ---------------------------------------------------------------------------------------------------------- */

static RecipeOp random_op(Rng *rng, bool smooth)
{
    int total = 0;
    for (int op = 0; op < R_OPS; op++)
        total += smooth ? kinds[op].smooth : kinds[op].weight;
    int64_t at = rng_below(rng, total);
    for (int op = 0; op < R_OPS; op++) {
        at -= smooth ? kinds[op].smooth : kinds[op].weight;
        if (at < 0)
            return (RecipeOp)op;
    }
    return R_UNARY;
}

static int64_t random_size(Rng *rng)
{
    static const int64_t large[] = {257, 1000, 4099, 16400, 33000};
    if (rng_chance(rng, 5))
        return large[rng_below(rng, 5)];
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 255, 0, 2, 3};
    return sizes[rng_below(rng, sizeof sizes / sizeof *sizes)];
}

static kiln_dtype random_dtype(Rng *rng, kiln_dtype favourite, bool smooth)
{
    if (smooth)
        return favourite;
    return rng_chance(rng, 70) ? favourite : (kiln_dtype)rng_below(rng, KILN_F64 + 1);
}

static void random_leaf(Rng *rng, const Recipe *r, RecipeNode *node, kiln_dtype favourite)
{
    static const Values kinds_of_values[] = {VALUES_MIX, VALUES_PLAIN, VALUES_PLAIN, VALUES_SPARSE, VALUES_TIES, VALUES_WIDE};
    node->dtype = (uint8_t)random_dtype(rng, favourite, r->smooth);
    node->values = (uint8_t)(r->smooth ? VALUES_PLAIN : kinds_of_values[rng_below(rng, 6)]);
    bool many_axes = rng_chance(rng, 4); /* small ones */
    node->rank = (uint8_t)(many_axes ? rng_between(rng, 5, RECIPE_RANK) : rng_chance(rng, 60) ? 2 : rng_below(rng, 4));
    int first = 2 - node->rank; /* axis i of a leaf tends to have the palette's size i, aligned at the right */
    for (int i = 0; i < node->rank; i++) {
        int usual = first + i < 0 || many_axes ? (i + node->rank) % 3 : first + i;
        node->size[i] = (uint8_t)(rng_chance(rng, 75) ? usual : rng_below(rng, PALETTE + 1));
        if (many_axes && (usual >= PALETTE || r->sizes[node->size[i] % PALETTE] > 3))
            node->size[i] = PALETTE;
    }
    if (node->op == R_WEAK)
        node->rank = 0;
}

/* An earlier node, the later the likelier. */
static int16_t random_operand(Rng *rng, int k)
{
    int64_t a = rng_below(rng, k), b = rng_below(rng, k);
    return (int16_t)(a > b ? a : b);
}

void recipe_random(uint64_t seed, Recipe *r)
{
    static const kiln_dtype favourites[] = {KILN_F32, KILN_F32, KILN_F32, KILN_F64, KILN_F16, KILN_BF16,
                                            KILN_I32, KILN_I64, KILN_U8,  KILN_I16, KILN_U64, KILN_BOOL};
    Rng rng = {seed ^ 0x6b696c6e};
    memset(r, 0, sizeof *r);
    r->seed = seed;
    r->smooth = rng_chance(&rng, 20);
    static const kiln_dtype smooth[] = {KILN_F32, KILN_F32, KILN_F32, KILN_F32, KILN_F32,
                                        KILN_F32, KILN_F64, KILN_F64, KILN_F16, KILN_BF16};
    kiln_dtype favourite = r->smooth ? smooth[rng_below(&rng, 10)] : favourites[rng_below(&rng, 12)];
    static const int64_t large[] = {1, 3, 7, 9, 70, 131, 257, 300, 300, 520};
    r->large = rng_chance(&rng, 4);
    for (int i = 0; i < PALETTE; i++)
        r->sizes[i] = r->large ? large[rng_below(&rng, 10)] : random_size(&rng);
    r->n = (int)rng_between(&rng, 3, r->large ? 9 : rng_chance(&rng, 20) ? RECIPE_NODES : 14);
    /* Half of the recipes have a few kinds of nodes, in many orders, one on top of another: what matters to each other seldom meets else. */
    enum { FEW = 4 };
    const bool few = rng_chance(&rng, 50);
    RecipeOp kind[FEW];
    for (int i = 0; i < FEW; i++)
        do
            kind[i] = (RecipeOp)rng_below(&rng, R_OPS);
        while (!(r->smooth ? kinds[kind[i]].smooth : kinds[kind[i]].weight) || kinds[kind[i]].operands == 0);
    for (int k = 0; k < r->n; k++) {
        RecipeNode *node = &r->node[k];
        node->op = (uint8_t)(k == 0 || (k == 1 && rng_chance(&rng, 50)) ? R_INPUT : random_op(&rng, r->smooth));
        if (r->large && k > 1 && rng_chance(&rng, 25))
            node->op = R_MATMUL;
        else if (few && k > 1 && rng_chance(&rng, 60))
            node->op = (uint8_t)kind[rng_below(&rng, FEW)];
        random_leaf(&rng, r, node, favourite);
        for (int i = 0; i < 3; i++)
            node->in[i] = !k ? 0 : few && i == 0 && rng_chance(&rng, 60) ? (int16_t)(k - 1) : random_operand(&rng, k);
        if (kinds[node->op].operands > 1 && rng_chance(&rng, 15))
            node->in[1] = node->in[0];
        for (int i = 0; i < 4; i++)
            node->p[i] = (int32_t)rng_below(&rng, 1 << 20);
        if (node->op == R_CAST)
            node->dtype = (uint8_t)rng_below(&rng, KILN_F64 + 1);
    }
    r->n_out = 1;
    r->out[0] = (int16_t)(r->n - 1);
    while (r->n_out < RECIPE_OUTPUTS && rng_chance(&rng, 60))
        r->out[r->n_out++] = random_operand(&rng, r->n);
}

/*
 * Every public op through one generalised program per axis.
 *
 * For each row of the table and each of its sizes in turn: the program is met with a base size, then with a second one, which may
 * compile; from then on any size must give what the interpreter gives, without a compile. A row's build function takes sizes a, b, c
 * (not all used); dims that the op links share a size. `least` is the smallest size the op takes. A run takes a slice of the
 * rows (support/slice.h).
 */
#define KILN_NO_LOCATIONS
#include "tests/mutation/harness.h"
#include "tests/support/slice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef kiln_tensor T;
typedef T *Build(const int64_t *s);

typedef struct Row {
    const char *name;
    T *(*one)(T *);      /* of x[s0,s1] */
    T *(*two)(T *, T *); /* of x[s0,s1], y[s0,s1] */
    Build *build;        /* anything else */
    kiln_dtype dtype;    /* of the operands of one and two */
    int n;               /* how many sizes it has */
    int least[3];
    bool close;                          /* composite: compared with a tolerance */
    bool (*apart)(const int64_t *sizes); /* are these recorded as another graph? NULL: none are */
} Row;

/* --- operands --- */

static T *any(kiln_dtype dtype, kiln_shape shape, uint64_t seed)
{
    int64_t n = shape_elements(shape);
    void *data = malloc((size_t)n * kiln_dtype_size(dtype) + 1);
    values_fill(dtype, VALUES_PLAIN, 0, seed, n, data);
    T *x = kiln_from(dtype, shape, data);
    free(data);
    return x;
}
static T *x1(const int64_t *s) { return any(KILN_F32, KILN_SHAPE(s[0]), 1); }
static T *x2(const int64_t *s) { return any(KILN_F32, KILN_SHAPE(s[0], s[1]), 1); }
static T *x3(const int64_t *s) { return any(KILN_F32, KILN_SHAPE(s[0], s[1], s[2]), 1); }
static T *positive2(const int64_t *s) { return kiln_add(kiln_abs(x2(s)), kiln_scalar(0.5)); }
/* n indices that are valid for any size from 1 on */
static T *indices(int64_t n) { return kiln_mul(kiln_cast(kiln_arange(KILN_I64, 0, (double)n, 1), KILN_I64), kiln_int(0)); }

/* --- programs that are not one call of one or two operands --- */

static T *where(const int64_t *s) { return kiln_where(kiln_gt(x2(s), kiln_scalar(0)), x2(s), any(KILN_F32, KILN_SHAPE(s[0], s[1]), 2)); }
static T *clamp(const int64_t *s) { return kiln_clamp(x2(s), kiln_scalar(-1), kiln_scalar(1.5)); }
static T *cast_f16(const int64_t *s) { return kiln_cast(x2(s), KILN_F16); }
static T *cast_i8(const int64_t *s) { return kiln_cast(x2(s), KILN_I8); }
static T *cast_f64(const int64_t *s) { return kiln_cast(x2(s), KILN_F64); }
static T *log_positive(const int64_t *s) { return kiln_log(positive2(s)); }
static T *row_plus(const int64_t *s) { return kiln_add(x2(s), any(KILN_F32, KILN_SHAPE(s[1]), 2)); }
static T *column_plus(const int64_t *s) { return kiln_mul(x2(s), any(KILN_F32, KILN_SHAPE(s[0], 1), 2)); }
static T *outer(const int64_t *s) { return kiln_sub(any(KILN_F32, KILN_SHAPE(s[0], 1), 2), any(KILN_F32, KILN_SHAPE(1, s[1]), 3)); }

static T *any_repeated(const int64_t *s)
{
    return kiln_any_axes(kiln_expand(kiln_gt(any(KILN_F32, KILN_SHAPE(s[0], 1), 1), kiln_scalar(0)), KILN_SHAPE(s[0], s[1])), KILN_AXES(1),
                         false);
}
static T *max_repeated(const int64_t *s)
{
    return kiln_max_axes(kiln_expand(any(KILN_F32, KILN_SHAPE(s[0], 1), 1), KILN_SHAPE(s[0], s[1])), KILN_AXES(1), false);
}
#define REDUCE(op)                                                                                   \
    static T *op##_all(const int64_t *s) { return kiln_##op(x3(s)); }                                \
    static T *op##_last(const int64_t *s) { return kiln_##op##_axes(x3(s), KILN_AXES(-1), false); }  \
    static T *op##_first(const int64_t *s) { return kiln_##op##_axes(x3(s), KILN_AXES(0), true); }   \
    static T *op##_middle(const int64_t *s) { return kiln_##op##_axes(x3(s), KILN_AXES(1), false); } \
    static T *op##_ends(const int64_t *s) { return kiln_##op##_axes(x3(s), KILN_AXES(0, 2), false); }
REDUCE(sum) REDUCE(max) REDUCE(any) REDUCE(mean) REDUCE(logsumexp) static T *prod_last(const int64_t *s)
{
    return kiln_prod_axes(kiln_sign(x2(s)), KILN_AXES(1), false);
}
static T *min_first(const int64_t *s) { return kiln_min_axes(x2(s), KILN_AXES(0), false); }
static T *all_last(const int64_t *s) { return kiln_all_axes(x2(s), KILN_AXES(1), true); }
static T *sum_i32(const int64_t *s) { return kiln_sum_axes(any(KILN_I32, KILN_SHAPE(s[0], s[1]), 1), KILN_AXES(1), false); }
static T *sum_f16(const int64_t *s) { return kiln_sum_axes(any(KILN_F16, KILN_SHAPE(s[0], s[1]), 1), KILN_AXES(0), false); }
static T *var_last(const int64_t *s) { return kiln_var_axes(x2(s), KILN_AXES(1), 0, false); }
static T *std_first(const int64_t *s) { return kiln_std_axes(x2(s), KILN_AXES(0), 0, true); }
static T *argmax_all(const int64_t *s) { return kiln_argmax(x2(s)); }
static T *argmax_last(const int64_t *s) { return kiln_argmax_axis(x2(s), 1, false); }
static T *argmin_first(const int64_t *s) { return kiln_argmin_axis(x2(s), 0, true); }

static T *flatten(const int64_t *s) { return kiln_neg(kiln_flatten(x3(s))); }
static T *merge(const int64_t *s) { return kiln_exp(kiln_reshape(x3(s), KILN_SHAPE(s[0] * s[1], s[2]))); }
static T *cut(const int64_t *s) { return kiln_exp(kiln_reshape(any(KILN_F32, KILN_SHAPE(s[0] * s[1]), 1), KILN_SHAPE(s[0], s[1]))); }
static T *regroup(const int64_t *s) { return kiln_sum_axes(kiln_reshape(x3(s), KILN_SHAPE(s[1], s[2], s[0])), KILN_AXES(1), false); }
static T *take_out(const int64_t *s) { return kiln_exp(kiln_reshape(any(KILN_F32, KILN_SHAPE(s[0], 1, s[1]), 1), KILN_SHAPE(s[0], s[1]))); }
static T *put_in(const int64_t *s)
{
    return kiln_add(kiln_reshape(x2(s), KILN_SHAPE(s[0], 1, s[1])), any(KILN_F32, KILN_SHAPE(s[2], s[1]), 2));
}
static T *heads(const int64_t *s)
{
    T *split =
        kiln_permute(kiln_reshape(any(KILN_F32, KILN_SHAPE(s[0], s[1], 12), 1), KILN_SHAPE(s[0], s[1], 3, 4)), KILN_AXES(0, 2, 1, 3));
    return kiln_reshape(kiln_permute(kiln_softmax(split, -1), KILN_AXES(0, 2, 1, 3)), KILN_SHAPE(s[0], s[1], 12));
}
static T *flat_rows(const int64_t *s)
{
    T *rows = kiln_softmax(kiln_reshape(x3(s), KILN_SHAPE(s[0] * s[1], s[2])), 1);
    return kiln_add(kiln_reshape(rows, KILN_SHAPE(s[0], s[1], s[2])), x3(s));
}
static T *permute(const int64_t *s) { return kiln_neg(kiln_permute(x3(s), KILN_AXES(2, 0, 1))); }
static T *transpose_add(const int64_t *s) { return kiln_add(kiln_transpose(x2(s)), any(KILN_F32, KILN_SHAPE(s[1], s[0]), 2)); }
static T *expand_to(const int64_t *s) { return kiln_expand(any(KILN_F32, KILN_SHAPE(s[0], 1), 1), KILN_SHAPE(s[1], s[0], s[2])); }
static T *squeeze(const int64_t *s) { return kiln_neg(kiln_squeeze(any(KILN_F32, KILN_SHAPE(s[0], 1, s[1]), 1), KILN_AXES(1))); }
static T *slice_from(const int64_t *s) { return kiln_neg(kiln_slice_axis(x2(s), 0, 1, KILN_NONE, 1)); }
static T *slice_to(const int64_t *s) { return kiln_neg(kiln_slice_axis(any(KILN_F32, KILN_SHAPE(1100), 1), 0, 5, 5 + s[0], 1)); }
static T *slice_at(const int64_t *s) { return kiln_neg(kiln_slice_axis(any(KILN_F32, KILN_SHAPE(1100), 1), 0, s[0], s[0] + 10, 1)); }
static T *slice_step(const int64_t *s) { return kiln_neg(kiln_slice_axis(x2(s), 1, 0, KILN_NONE, 2)); }
static T *slice_back(const int64_t *s) { return kiln_neg(kiln_slice_axis(x2(s), 1, KILN_NONE, KILN_NONE, -1)); }
static T *select_last(const int64_t *s) { return kiln_exp(kiln_select(x2(s), 0, -1)); }
static T *select_number(const int64_t *s) { return kiln_exp(kiln_select(any(KILN_F32, KILN_SHAPE(1100, 3), 1), 0, s[0])); }
static T *flip(const int64_t *s) { return kiln_neg(kiln_flip(x2(s), KILN_AXES(0, 1))); }
static T *roll(const int64_t *s) { return kiln_neg(kiln_roll(x2(s), 1, 1)); }
static T *pad_dims(const int64_t *s) { return kiln_pad(x2(s), 2, (kiln_padding[]){{1, 2}, {0, 3}}, kiln_scalar(7)); }
static T *pad_widths(const int64_t *s)
{
    return kiln_pad(any(KILN_F32, KILN_SHAPE(5, 4), 1), 2, (kiln_padding[]){{s[0], 1}, {2, s[1]}}, kiln_scalar(7));
}
static T *concat(const int64_t *s) { return kiln_concat((T *[]){x2(s), any(KILN_F32, KILN_SHAPE(s[2], s[1]), 2), x2(s)}, 3, 0); }
static T *concat_last(const int64_t *s) { return kiln_neg(kiln_concat((T *[]){x2(s), any(KILN_F32, KILN_SHAPE(s[0], s[2]), 2)}, 2, 1)); }
static T *stack(const int64_t *s) { return kiln_stack((T *[]){x2(s), any(KILN_F32, KILN_SHAPE(s[0], s[1]), 2)}, 2, 1); }
static T *split(const int64_t *s)
{
    T *part[2];
    if (kiln_split(any(KILN_F32, KILN_SHAPE(s[0] + s[1], 3), 1), 0, 2, (int64_t[]){s[0], s[1]}, part))
        return NULL;
    return kiln_concat((T *[]){kiln_exp(part[1]), part[0]}, 2, 0);
}
static T *tile(const int64_t *s) { return kiln_tile(x2(s), KILN_SHAPE(2, 3)); }
static T *triu(const int64_t *s) { return kiln_triu(x2(s), 1); }
static T *tril(const int64_t *s) { return kiln_tril(x2(s), -1); }
static T *tril_at(const int64_t *s) { return kiln_tril(any(KILN_F32, KILN_SHAPE(9, 12), 1), s[0] - 5); }

static T *take_rows(const int64_t *s) { return kiln_take(x2(s), indices(s[2]), 0); }
static T *take_sum(const int64_t *s) { return kiln_sum_axes(kiln_take(x2(s), indices(s[2]), 0), KILN_AXES(1), false); }
static T *take_repeated(const int64_t *s)
{
    T *x = kiln_expand(any(KILN_F32, KILN_SHAPE(s[0], 1), 1), KILN_SHAPE(s[0], s[1]));
    return kiln_sum_axes(kiln_take(x, kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){0, -1}), 0), KILN_AXES(1), false);
}
static T *take_columns(const int64_t *s) { return kiln_take(x2(s), indices(s[2]), 1); }
static T *take_along(const int64_t *s) { return kiln_take_along_axis(x2(s), kiln_expand(indices(s[2]), KILN_SHAPE(s[0], s[2])), 1); }
static T *scatter(const int64_t *s)
{
    return kiln_scatter(x2(s), indices(s[2]), any(KILN_F32, KILN_SHAPE(s[2], s[1]), 2), 0, KILN_SCATTER_SET);
}
static T *scatter_add(const int64_t *s)
{
    return kiln_scatter(x2(s), indices(s[2]), any(KILN_F32, KILN_SHAPE(s[0], s[2]), 2), 1, KILN_SCATTER_ADD);
}
static T *scatter_along(const int64_t *s)
{
    T *index = kiln_expand(indices(s[2]), KILN_SHAPE(s[0], s[2]));
    return kiln_scatter_along_axis(x2(s), index, any(KILN_F32, KILN_SHAPE(s[0], s[2]), 2), 1, KILN_SCATTER_MAX);
}
static T *sort(const int64_t *s) { return kiln_sort(x2(s), 1, false); }
static T *argsort(const int64_t *s) { return kiln_argsort(x2(s), 0, true); }
static T *topk(const int64_t *s)
{
    T *values, *index;
    return kiln_topk(x2(s), 1, 1, true, &values, &index) ? NULL : kiln_add(values, index);
}
static T *cumsum(const int64_t *s) { return kiln_cumsum(any(KILN_I32, KILN_SHAPE(s[0], s[1]), 1), 1); }
static T *cumsum_first(const int64_t *s) { return kiln_cumsum(x2(s), 0); }

static T *zeros(const int64_t *s) { return kiln_zeros(KILN_F32, KILN_SHAPE(s[0], s[1])); }
static T *full(const int64_t *s) { return kiln_full_int(KILN_I16, KILN_SHAPE(s[0], s[1]), 7); }
static T *ones_like(const int64_t *s) { return kiln_add(kiln_ones_like(x2(s)), kiln_full_like(x2(s), 2)); }
static T *arange(const int64_t *s) { return kiln_arange(KILN_I32, 3, 3 + 2 * (double)s[0], 2); }
static T *arange_f32(const int64_t *s) { return kiln_mul(kiln_arange(KILN_F32, 0, (double)s[0], 1), x1(s)); }
static T *linspace(const int64_t *s) { return kiln_linspace(KILN_F64, 0, 1, s[0]); }
static T *eye(const int64_t *s) { return kiln_eye(KILN_F32, s[0], s[1], 1); }
static T *uniform(const int64_t *s) { return kiln_seed(3), kiln_uniform(KILN_F32, KILN_SHAPE(s[0], s[1]), -1, 1); }
static T *normal(const int64_t *s) { return kiln_seed(3), kiln_normal(KILN_F32, KILN_SHAPE(s[0], s[1]), 0, 1); }
static T *randint(const int64_t *s) { return kiln_seed(3), kiln_randint(KILN_I32, KILN_SHAPE(s[0]), 0, 100); }

static T *matmul(const int64_t *s) { return kiln_matmul(x2(s), any(KILN_F32, KILN_SHAPE(s[1], s[2]), 2)); }
static T *matmul_bias(const int64_t *s) { return kiln_relu(kiln_add(matmul(s), any(KILN_F32, KILN_SHAPE(s[2]), 3))); }
static T *matmul_batch(const int64_t *s)
{
    return kiln_matmul(any(KILN_F32, KILN_SHAPE(s[0], 4, s[1]), 1), any(KILN_F32, KILN_SHAPE(s[0], s[1], s[2]), 2));
}
static T *matmul_transposed(const int64_t *s) { return kiln_matmul(x2(s), kiln_transpose(any(KILN_F32, KILN_SHAPE(s[2], s[1]), 2))); }
static T *matmul_vector(const int64_t *s) { return kiln_matmul(x2(s), any(KILN_F32, KILN_SHAPE(s[1]), 2)); }
static T *matmul_i32(const int64_t *s)
{
    return kiln_matmul(any(KILN_I32, KILN_SHAPE(s[0], s[1]), 1), any(KILN_I32, KILN_SHAPE(s[1], s[2]), 2));
}
static T *softmax(const int64_t *s) { return kiln_softmax(x2(s), 1); }
static T *softmax_first(const int64_t *s) { return kiln_log_softmax(x2(s), 0); }
static T *normalize(const int64_t *s) { return kiln_normalize(x2(s), KILN_AXES(0), 1e-5); }
static T *layer_norm(const int64_t *s)
{
    return kiln_layer_norm(x2(s), any(KILN_F32, KILN_SHAPE(s[1]), 2), any(KILN_F32, KILN_SHAPE(s[1]), 3), 1e-5);
}
static T *rms_norm(const int64_t *s) { return kiln_rms_norm(x2(s), any(KILN_F32, KILN_SHAPE(s[1]), 2), 1e-5); }
static T *linear(const int64_t *s)
{
    return kiln_linear(x2(s), any(KILN_F32, KILN_SHAPE(s[2], s[1]), 2), any(KILN_F32, KILN_SHAPE(s[2]), 3));
}
static T *mse(const int64_t *s) { return kiln_mse(x2(s), any(KILN_F32, KILN_SHAPE(s[0], s[1]), 2)); }
static T *binary_cross_entropy(const int64_t *s) { return kiln_binary_cross_entropy(x2(s), any(KILN_F32, KILN_SHAPE(s[0], s[1]), 2)); }
static T *norm(const int64_t *s) { return kiln_norm_axes(x2(s), KILN_AXES(0), false); }
static T *one_hot(const int64_t *s) { return kiln_one_hot(indices(s[0]), s[1] + 8, KILN_F32); }
static T *dropout(const int64_t *s) { return kiln_seed(3), kiln_dropout(x2(s), 0.25); }
static T *attend(const int64_t *s, const kiln_attention_options *o)
{
    T *k = any(KILN_F32, KILN_SHAPE(2, s[1], s[2]), 2), *v = any(KILN_F32, KILN_SHAPE(2, s[1], 3), 3);
    return kiln_attention(any(KILN_F32, KILN_SHAPE(4, s[0], s[2]), 1), k, v, o);
}
static T *attention(const int64_t *s) { return attend(s, NULL); }
static T *attention_causal(const int64_t *s) { return attend(s, &(kiln_attention_options){.causal = true, .before = 9}); }
static T *attention_decoding(const int64_t *s) { return attend(s, &(kiln_attention_options){.causal = true, .from_end = true}); }
static T *rotary(const int64_t *s)
{
    return kiln_rotary(any(KILN_F32, KILN_SHAPE(s[0], s[1], 8), 1), any(KILN_F32, KILN_SHAPE(s[1], 3), 2), false);
}
static T *batch_norm(const int64_t *s)
{
    return kiln_batch_norm(any(KILN_F32, KILN_SHAPE(s[0], 3, s[1]), 1), NULL, NULL, &(kiln_norm_options){.training = true});
}
static T *group_norm(const int64_t *s) { return kiln_group_norm(any(KILN_F32, KILN_SHAPE(s[0], 4, s[1]), 1), 2, NULL); }
static T *global_max(const int64_t *s) { return kiln_adaptive_max_pool(any(KILN_F32, KILN_SHAPE(s[0], 3, s[1]), 1), KILN_SHAPE(1), false); }
/* Of s[0] images of s[1] x s[2]: 3 x 3 windows with an edge, of which small images are all. */
static T *images(const int64_t *s) { return any(KILN_F32, KILN_SHAPE(s[0], 2, s[1], s[2]), 1); }
static const kiln_pool_options edge_pool = {.stride = {2, 2}, .padding = {{1, 1}, {1, 1}}};
static T *max_pool(const int64_t *s) { return kiln_max_pool(images(s), KILN_SHAPE(3, 3), &edge_pool); }
static T *avg_pool(const int64_t *s) { return kiln_avg_pool(images(s), KILN_SHAPE(3, 3), &edge_pool); }
static T *conv_of(const int64_t *s, int64_t groups)
{
    const kiln_conv_options o = {.padding = {{1, 1}, {1, 1}}, .groups = groups};
    return kiln_conv(images(s), any(KILN_F32, KILN_SHAPE(4, 2 / groups, 3, 3), 2), &o);
}
static T *conv(const int64_t *s) { return conv_of(s, 1); }
static T *conv_depthwise(const int64_t *s) { return conv_of(s, 2); }
static T *interpolated(const int64_t *s, kiln_interpolation mode)
{
    return kiln_interpolate(any(KILN_F32, KILN_SHAPE(s[0], 3, s[1]), 1), KILN_SHAPE(s[2]), &(kiln_interpolate_options){.mode = mode});
}
/* To an odd number of places, so that the first sizes are in no whole ratio: then each element, or some, are viewed. */
static int64_t odd_places(const int64_t *s) { return 2 * s[2] + 1; }
static T *interpolate_nearest(const int64_t *s) { return interpolated((int64_t[]){s[0], s[1], odd_places(s)}, KILN_NEAREST); }
static bool whole_ratio(const int64_t *s) { return odd_places(s) % s[1] == 0 || s[1] % odd_places(s) == 0; }
static T *interpolate_cubic(const int64_t *s) { return interpolated(s, KILN_CUBIC); }
static T *fold(const int64_t *s) { return kiln_fold(any(KILN_F32, KILN_SHAPE(s[1], s[0], 3), 1), 1, 2 * s[0] + 1, 2, 1); }
static T *cross_entropy(const int64_t *s) { return kiln_mean(kiln_cross_entropy(x2(s), indices(s[0]))); }

/* Operands of the elementwise functions, by PREP (runtime/record/record.h). */
#define NUM_OF KILN_F32
#define SIGNED_OF KILN_F32
#define FLOAT_OF KILN_F32
#define ANY_OF KILN_F32
#define TRUTH_OF KILN_F32
#define BITS_OF KILN_I32
#define INTS_OF KILN_I32
#define INTS(op)                                                        \
    {                                                                   \
        .name = #op " i32", .two = kiln_##op, .dtype = KILN_I32, .n = 2 \
    }
#define ROW(f, sizes, ...)                                           \
    {                                                                \
        .name = #f, .build = f, .n = sizes, .least = { __VA_ARGS__ } \
    }
#define CLOSE(f, sizes, ...)                                                      \
    {                                                                             \
        .name = #f, .build = f, .n = sizes, .least = {__VA_ARGS__}, .close = true \
    }

static const Row rows[] = {
#define UNARY(f, op, prep) {.name = #f, .one = f, .dtype = prep##_OF, .n = 2},
#define BINARY(f, op, prep, a, b) {.name = #f, .two = f, .dtype = prep##_OF, .n = 2},
#include "tests/support/elementwise.def"
    {.name = "bitwise_not u8", .one = kiln_bitwise_not, .dtype = KILN_U8, .n = 2},
    INTS(floor_divide),
    INTS(pow),
    ROW(where, 2),
    ROW(clamp, 2),
    ROW(cast_f16, 2),
    ROW(cast_i8, 2),
    ROW(cast_f64, 2),
    ROW(log_positive, 2),
    ROW(row_plus, 2),
    ROW(column_plus, 2, 0, 2),
    ROW(outer, 2, 2, 2),
#define REDUCED(op, a, b, c)                                                                                         \
    CLOSE(op##_all, 3, a, b, c), CLOSE(op##_last, 3, 0, 0, c), CLOSE(op##_first, 3, a), CLOSE(op##_middle, 3, 0, b), \
        CLOSE(op##_ends, 3, a, 0, c)
    REDUCED(sum, 0, 0, 0),
    REDUCED(max, 1, 1, 1),
    REDUCED(any, 0, 0, 0),
    REDUCED(mean, 0, 0, 0),
    REDUCED(logsumexp, 0, 0, 0),
    ROW(any_repeated, 2, 0, 2),
    ROW(max_repeated, 2, 0, 2),
    ROW(prod_last, 2),
    ROW(min_first, 2, 1),
    ROW(all_last, 2),
    ROW(sum_i32, 2),
    CLOSE(sum_f16, 2),
    CLOSE(var_last, 2),
    CLOSE(std_first, 2),
    ROW(argmax_all, 2, 1, 1),
    ROW(argmax_last, 2, 0, 1),
    ROW(argmin_first, 2, 1),
    ROW(flatten, 3),
    ROW(merge, 3),
    ROW(cut, 2),
    CLOSE(regroup, 3),
    ROW(take_out, 2),
    ROW(put_in, 3, 0, 0, 2),
    CLOSE(heads, 2),
    CLOSE(flat_rows, 3),
    ROW(permute, 3),
    ROW(transpose_add, 2),
    ROW(expand_to, 3, 2, 0, 2),
    ROW(squeeze, 2),
    ROW(slice_from, 2),
    ROW(slice_to, 1),
    ROW(slice_at, 1),
    ROW(slice_step, 2),
    ROW(slice_back, 2),
    ROW(select_last, 2, 1),
    ROW(select_number, 1),
    ROW(flip, 2),
    ROW(roll, 2),
    ROW(pad_dims, 2),
    ROW(pad_widths, 2),
    ROW(concat, 3),
    ROW(concat_last, 3),
    ROW(stack, 2),
    ROW(split, 2),
    ROW(tile, 2),
    ROW(triu, 2),
    ROW(tril, 2),
    ROW(tril_at, 1),
    ROW(take_rows, 3, 1),
    CLOSE(take_sum, 3, 1),
    CLOSE(take_repeated, 2, 1, 2),
    ROW(take_columns, 3, 0, 1),
    ROW(take_along, 3, 0, 1),
    ROW(scatter, 3, 1, 0, 1),
    ROW(scatter_add, 3, 0, 1),
    ROW(scatter_along, 3, 0, 1),
    ROW(sort, 2),
    ROW(argsort, 2),
    ROW(topk, 2, 0, 1),
    ROW(cumsum, 2),
    CLOSE(cumsum_first, 2),
    ROW(zeros, 2),
    ROW(full, 2),
    ROW(ones_like, 2),
    ROW(arange, 1),
    ROW(arange_f32, 1),
    ROW(linspace, 1),
    ROW(eye, 2),
    ROW(uniform, 2),
    CLOSE(normal, 2),
    ROW(randint, 1),
    CLOSE(matmul, 3),
    CLOSE(matmul_bias, 3),
    CLOSE(matmul_batch, 3),
    CLOSE(matmul_transposed, 3),
    CLOSE(matmul_vector, 2),
    ROW(matmul_i32, 3),
    CLOSE(softmax, 2),
    CLOSE(softmax_first, 2),
    CLOSE(normalize, 2),
    CLOSE(layer_norm, 2),
    CLOSE(rms_norm, 2),
    CLOSE(linear, 3),
    CLOSE(mse, 2),
    CLOSE(binary_cross_entropy, 2),
    CLOSE(norm, 2),
    ROW(one_hot, 2),
    ROW(dropout, 2),
    CLOSE(cross_entropy, 2, 0, 1),
    CLOSE(attention, 3),
    CLOSE(attention_causal, 3),
    CLOSE(attention_decoding, 3),
    CLOSE(rotary, 2),
    CLOSE(batch_norm, 2, 2, 1),
    CLOSE(group_norm, 2),
    ROW(global_max, 2, 0, 1),
    {.name = "interpolate_nearest", .build = interpolate_nearest, .n = 3, .least = {0, 1, 1}, .apart = whole_ratio},
    CLOSE(interpolate_cubic, 3, 0, 1, 1),
    CLOSE(fold, 2),
    ROW(max_pool, 3, 0, 1, 1),
    CLOSE(avg_pool, 3, 0, 1, 1),
    CLOSE(conv, 3, 0, 1, 1),
    CLOSE(conv_depthwise, 3, 0, 1, 1),
};

/* --- one call --- */

static T *record(const Row *row, const int64_t *s)
{
    if (row->build)
        return row->build(s);
    T *x = any(row->dtype, KILN_SHAPE(s[0], s[1]), 1);
    return row->one ? row->one(x) : row->two(x, any(row->dtype, KILN_SHAPE(s[0], s[1]), 2));
}

/* Compares jit with interp; the compiles that it took. */
static int64_t call(const Row *row, const int64_t *s)
{
    char a[96], b[96];
    int64_t before = stats_now().compiles;
    kiln_scope *scope = kiln_scope_begin();
    T *x = record(row, s);
    if (!x) {
        CHECK(false, "%s[%d,%d,%d]: %s", row->name, (int)s[0], (int)s[1], (int)s[2], kiln_error_message());
        kiln_clear_error();
        kiln_scope_end(scope);
        return 0;
    }
    kiln_dtype dtype = kiln_dtype_of(x);
    int64_t n = kiln_numel(x);
    size_t bytes = (size_t)n * kiln_dtype_size(dtype);
    char *got = malloc(bytes + 1), *wanted = malloc(bytes + 1);
    OK(kiln_read(x, dtype, got, bytes));
    int64_t compiles = stats_now().compiles - before;
    set_option("mode", "interp");
    OK(kiln_read(record(row, s), dtype, wanted, bytes));
    set_option("mode", "jit");
    Tolerance tolerance = row->close ? (Tolerance){dtype == KILN_F16 ? 2e-3 : 2e-5, 2e-5} : (Tolerance){0, 0};
    int64_t at = values_differ(dtype, n, got, wanted, tolerance);
    CHECK(at < 0, "%s[%d,%d,%d] element %d is %s, interp says %s", row->name, (int)s[0], (int)s[1], (int)s[2], (int)at,
          value_text(dtype, got, at, a), value_text(dtype, wanted, at, b));
    free(got);
    free(wanted);
    kiln_scope_end(scope);
    return compiles;
}

static void run_sizes(const Row *row, int d, int64_t s[3])
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] < row->least[d])
            continue;
        s[d] = sizes[i];
        CHECK(call(row, s) <= (row->apart && row->apart(s)), "%s[%d,%d,%d] compiles", row->name, (int)s[0], (int)s[1], (int)s[2]);
    }
}

static void run_rows(size_t first, size_t step)
{
    set_option("math", "strict");
    for (size_t k = first; k < sizeof rows / sizeof *rows; k += step) {
        if (!slice_takes(k / step))
            continue;
        for (int d = 0; d < rows[k].n; d++) {
            int64_t s[3] = {20, 6, 5};
            call(&rows[k], s);
            s[d] += 4;
            CHECK(call(&rows[k], s) <= 1, "%s: second value of size %d compiles more than once", rows[k].name, d);
            run_sizes(&rows[k], d, s);
        }
    }
    CHECK(stats_now().fallbacks == 0, "%d graphs did not compile: %s", (int)stats_now().fallbacks, last_warning);
}

/* Sizes 0, 1 and 2 in an order: the program made at one of them must be right for the others, whichever came first. */
static void run_order(const int64_t order[3])
{
    set_option("math", "strict");
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        for (int d = 0; d < rows[k].n && slice_takes(k); d++)
            for (int i = 0; i < 6; i++) {
                int64_t s[3] = {3, 2, 4};
                s[d] = order[i % 3];
                if (s[d] >= rows[k].least[d])
                    call(&rows[k], s);
            }
    CHECK(stats_now().fallbacks == 0, "%d graphs did not compile: %s", (int)stats_now().fallbacks, last_warning);
}

static void zero_one(void) { run_order((int64_t[]){0, 1, 2}); }
static void zero_two(void) { run_order((int64_t[]){0, 2, 1}); }
static void one_two(void) { run_order((int64_t[]){1, 2, 0}); }
static void one_zero(void) { run_order((int64_t[]){1, 0, 2}); }
static void two_zero(void) { run_order((int64_t[]){2, 0, 1}); }
static void two_one(void) { run_order((int64_t[]){2, 1, 0}); }

/* Three at once: every size of a program goes through 0, 1 and 2 together with the others. */
static void all_small(void)
{
    set_option("math", "strict");
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        int all = rows[k].n == 3 ? 27 : rows[k].n == 2 ? 9 : 3;
        for (int i = 0; i < all && slice_takes(k); i++) {
            int64_t s[3] = {i % 3, rows[k].n > 1 ? i / 3 % 3 : 6, rows[k].n > 2 ? i / 9 : 5};
            if (s[0] >= rows[k].least[0] && s[1] >= rows[k].least[1] && s[2] >= rows[k].least[2])
                call(&rows[k], s);
        }
    }
}

/* Four children, so that one bad row hides less. */
static void quarter0(void) { run_rows(0, 4); }
static void quarter1(void) { run_rows(1, 4); }
static void quarter2(void) { run_rows(2, 4); }
static void quarter3(void) { run_rows(3, 4); }

int main(int argc, char **argv)
{
    static const Test tests[] = {{"quarter0", quarter0}, {"quarter1", quarter1}, {"quarter2", quarter2},  {"quarter3", quarter3},
                                 {"zero_one", zero_one}, {"zero_two", zero_two}, {"one_two", one_two},    {"one_zero", one_zero},
                                 {"two_zero", two_zero}, {"two_one", two_one},   {"all_small", all_small}};
    return run_tests("every_op", tests, sizeof tests / sizeof *tests, argc, argv);
}

/*
 * The derivative of each function of kiln.h that has one, as users call it: reverse mode against differences in f64, forward mode against reverse
 * mode, and second derivatives of both ways (they are one symmetric matrix) against each other. On arrays that are dense, strided, of one
 * element and of none. What single ops do, in each dtype: unit/test_gradient.c.
 *
 * A function that records is in a row, or in the list of those that have no derivative or a test of their own; a new one has to be put somewhere.
 */
#include "api.h"
#include "tests/support/sanitizer.h"
#include "tests/support/slice.h"

#include <stdio.h>

enum { MOST = 256, INPUTS = 2 };

typedef enum Takes { ANY, SOME, MATRIX } Takes; /* any shape of two axes; not of no elements; [2, 3] alone */

typedef kiln_tensor *Function(kiln_tensor *a, kiln_tensor *b);

/* ---- functions that are no expression ---- */

static const int64_t indices[] = {1, 0, 1, -1}, places[] = {0, 2, 1, 1, -1, 0};

static kiln_tensor *four(void) { return kiln_from(KILN_I64, KILN_SHAPE(4), indices); }
static kiln_tensor *two(void) { return kiln_from(KILN_I64, KILN_SHAPE(2), indices); }
static kiln_tensor *each(void) { return kiln_from(KILN_I64, KILN_SHAPE(2, 3), places); }

static kiln_tensor *topk(kiln_tensor *x)
{
    kiln_tensor *values, *at;
    OK(kiln_topk(x, 2, -1, true, &values, &at));
    return kiln_mul(values, kiln_add(kiln_cast(at, KILN_F64), 1));
}

static kiln_tensor *split(kiln_tensor *x)
{
    kiln_tensor *part[3];
    OK(kiln_split(x, 1, 3, (int64_t[]){1, 0, 2}, part));
    return kiln_add(kiln_sum(kiln_sin(part[0])), kiln_add(kiln_sum(kiln_exp(part[2])), kiln_sum(part[1])));
}

static void waves(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(kiln_sin(in[0]), kiln_exp(in[1]));
}

static void times_3(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 3);
}

static kiln_tensor *checkpoint(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *in[] = {a, b}, *out;
    OK(kiln_checkpoint(waves, 2, in, 1, &out, NULL));
    return out;
}

static kiln_tensor *cond(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *in[] = {a, b}, *out;
    OK(kiln_cond(kiln_gt(kiln_sum(a), 0.1), waves, times_3, 2, in, 1, &out, NULL));
    return out;
}

static void carried(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)user;
    carry_out[0] = kiln_add(kiln_mul(carry[0], 0.5), kiln_sin(x[0]));
    y[0] = kiln_square(carry_out[0]);
}

static kiln_tensor *scan(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *first = kiln_select(b, 0, 0), *last, *ys;
    OK(kiln_scan(carried, -1, 0, 1, &first, &last, 1, &a, 1, &ys, NULL));
    return kiln_add(ys, last);
}

static kiln_tensor *three_times(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], 3);
}

static void sine_and_more(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_sin(in[0]), in[2]);
    out[1] = kiln_add(in[1], 1);
    out[2] = in[2];
}

static kiln_tensor *loop(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *state[] = {a, kiln_int(0), b};
    OK(kiln_while(three_times, sine_and_more, 3, state, 5, state, NULL));
    return state[0];
}

static void row(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(kiln_softmax(in[0], 0), kiln_sum(in[1]));
}

static kiln_tensor *map(kiln_tensor *a, kiln_tensor *b, int64_t chunk)
{
    kiln_tensor *in[] = {a, b}, *out;
    OK(kiln_map(row, 2, in, NULL, chunk, 1, &out, NULL));
    return out;
}

static kiln_tensor *image(kiln_tensor *a) { return kiln_unsqueeze(a, 0); }
static kiln_tensor *padded(kiln_tensor *a, kiln_pad_mode mode) { return kiln_pad_by(a, 2, (kiln_padding[]){{1, 1}, {2, 1}}, mode); }
static kiln_tensor *resized(kiln_tensor *a, kiln_interpolation mode)
{
    return kiln_interpolate(image(a), KILN_SHAPE(5), &(kiln_interpolate_options){.mode = mode});
}

/* ---- the table ---- */

/* clang-format off */
#define ROWS(X) \
    X(ANY, kiln_positive(kiln_sin(a))) X(ANY, kiln_neg(a)) X(ANY, kiln_abs(a)) X(ANY, kiln_square(a)) X(ANY, kiln_relu(a)) \
    X(ANY, kiln_sign(a)) X(ANY, kiln_floor(a)) X(ANY, kiln_ceil(a)) X(ANY, kiln_round(a)) X(ANY, kiln_trunc(a)) \
    X(ANY, kiln_reciprocal(kiln_add(a, 3))) X(ANY, kiln_sqrt(kiln_add(a, 3))) X(ANY, kiln_rsqrt(kiln_add(a, 3))) X(ANY, kiln_exp(a)) \
    X(ANY, kiln_exp2(a)) X(ANY, kiln_expm1(a)) X(ANY, kiln_log(kiln_add(a, 3))) X(ANY, kiln_log2(kiln_add(a, 3))) \
    X(ANY, kiln_log10(kiln_add(a, 3))) X(ANY, kiln_log1p(kiln_mul(a, 0.5))) X(ANY, kiln_sin(a)) X(ANY, kiln_cos(a)) X(ANY, kiln_tan(a)) \
    X(ANY, kiln_asin(kiln_mul(a, 0.5))) X(ANY, kiln_acos(kiln_mul(a, 0.5))) X(ANY, kiln_atan(a)) X(ANY, kiln_sinh(a)) X(ANY, kiln_cosh(a)) \
    X(ANY, kiln_tanh(a)) X(ANY, kiln_asinh(a)) X(ANY, kiln_acosh(kiln_add(a, 3))) X(ANY, kiln_atanh(kiln_mul(a, 0.5))) X(ANY, kiln_erf(a)) \
    X(ANY, kiln_erfc(a)) X(ANY, kiln_sigmoid(a)) X(ANY, kiln_softplus(a)) X(ANY, kiln_silu(a)) X(ANY, kiln_gelu(a)) X(ANY, kiln_gelu_tanh(a)) \
    X(ANY, kiln_cast(kiln_mul(kiln_cast(a, KILN_F64), a), KILN_F64)) X(ANY, kiln_add(a, b)) X(ANY, kiln_sub(a, b)) X(ANY, kiln_mul(a, b)) \
    X(ANY, kiln_div(a, kiln_add(b, 3))) X(ANY, kiln_floor_divide(a, kiln_add(b, 3))) X(ANY, kiln_remainder(a, kiln_add(b, 3))) \
    X(ANY, kiln_fmod(a, kiln_add(b, 3))) X(ANY, kiln_pow(kiln_add(a, 3), b)) X(ANY, kiln_pow(a, 3)) X(ANY, kiln_pow(a, 2.0)) X(ANY, kiln_pow(2.0, a)) \
    X(ANY, kiln_maximum(a, b)) X(ANY, kiln_minimum(a, b)) X(ANY, kiln_atan2(a, b)) X(ANY, kiln_hypot(a, b)) X(ANY, kiln_logaddexp(a, b)) \
    X(ANY, kiln_copysign(a, b)) X(ANY, kiln_where(kiln_gt(a, b), kiln_sin(a), kiln_exp(b))) X(ANY, kiln_clamp(a, -0.5, 0.5)) \
    X(ANY, kiln_clamp(a, kiln_sub(b, 1), kiln_add(b, 0.3))) X(ANY, kiln_mul(a, kiln_stop_gradient(kiln_ones_like(b)))) \
    X(ANY, kiln_sum(kiln_sin(a))) X(ANY, kiln_sum_axes(kiln_sin(a), KILN_AXES(0), false)) X(ANY, kiln_sin(kiln_sum_axes(a, KILN_AXES(-1), true))) \
    X(ANY, kiln_prod(a)) X(ANY, kiln_prod_axes(a, KILN_AXES(1), true)) X(SOME, kiln_max(a)) X(SOME, kiln_max_axes(a, KILN_AXES(0), true)) \
    X(SOME, kiln_min(a)) X(SOME, kiln_min_axes(a, KILN_AXES(-1), false)) X(SOME, kiln_mean(kiln_sin(a))) \
    X(SOME, kiln_mean_axes(kiln_sin(a), KILN_AXES(0), false)) X(MATRIX, kiln_var(a, 1)) X(MATRIX, kiln_var_axes(a, KILN_AXES(1), 0, true)) \
    X(MATRIX, kiln_std(a, 1)) X(MATRIX, kiln_std_axes(a, KILN_AXES(1), 0, false)) X(SOME, kiln_norm(a)) X(SOME, kiln_norm_axes(a, KILN_AXES(0), true)) \
    X(SOME, kiln_logsumexp(a)) X(SOME, kiln_logsumexp_axes(a, KILN_AXES(1), true)) X(ANY, kiln_sin(kiln_flatten(a))) \
    X(SOME, kiln_sin(kiln_reshape(a, KILN_SHAPE(-1)))) X(ANY, kiln_sin(kiln_permute(a, KILN_AXES(1, 0)))) X(ANY, kiln_sin(kiln_transpose(a))) \
    X(ANY, kiln_sin(kiln_swap_axes(a, 0, -1))) X(ANY, kiln_sin(kiln_expand(kiln_unsqueeze(a, 0), KILN_SHAPE(3, -1, -1)))) \
    X(ANY, kiln_sin(kiln_squeeze(kiln_unsqueeze(a, 1), KILN_AXES(1)))) X(ANY, kiln_sin(kiln_slice(a, 2, (kiln_range[]){KILN_ALL, {1, 3, 1}}))) \
    X(ANY, kiln_sin(kiln_slice_axis(a, 1, KILN_NONE, KILN_NONE, -2))) X(SOME, kiln_sin(kiln_select(a, 1, -1))) X(ANY, kiln_sin(kiln_flip(a, KILN_ALL_AXES))) \
    X(SOME, kiln_sin(kiln_roll(a, -5, 1))) X(ANY, kiln_sin(kiln_pad(a, 2, (kiln_padding[]){{1, 0}, {0, 2}}, kiln_sum(b)))) \
    X(ANY, kiln_sin(kiln_concat((kiln_tensor *[]){a, b, a}, 3, 1))) X(ANY, kiln_sin(kiln_stack((kiln_tensor *[]){a, b}, 2, 1))) X(MATRIX, split(a)) \
    X(ANY, kiln_sin(kiln_tile(a, KILN_SHAPE(2, 2, 3)))) X(ANY, kiln_sin(kiln_triu(a, 1))) X(ANY, kiln_sin(kiln_tril(a, -1))) \
    X(MATRIX, kiln_sin(padded(a, KILN_PAD_EDGE))) X(MATRIX, kiln_sin(padded(a, KILN_PAD_REFLECT))) X(MATRIX, kiln_sin(padded(a, KILN_PAD_SYMMETRIC))) \
    X(MATRIX, kiln_sin(padded(a, KILN_PAD_WRAP))) X(MATRIX, kiln_sin(kiln_unfold(a, 1, 2, 1, 1))) \
    X(MATRIX, kiln_sin(kiln_fold(kiln_unfold(kiln_square(a), 1, 2, 1, 1), 1, 3, 1, 1))) X(MATRIX, kiln_sin(kiln_take(a, four(), 0))) \
    X(MATRIX, kiln_sin(kiln_take(a, kiln_reshape(four(), KILN_SHAPE(2, 2)), 1))) X(MATRIX, kiln_sin(kiln_take_along_axis(a, each(), 1))) \
    X(MATRIX, kiln_sin(kiln_scatter(a, two(), kiln_exp(b), 0, KILN_SCATTER_SET))) X(MATRIX, kiln_sin(kiln_scatter(a, two(), kiln_exp(b), 0, KILN_SCATTER_ADD))) \
    X(MATRIX, kiln_sin(kiln_scatter(a, two(), kiln_exp(b), 0, KILN_SCATTER_MAX))) X(MATRIX, kiln_sin(kiln_scatter(a, two(), kiln_exp(b), 0, KILN_SCATTER_MIN))) \
    X(MATRIX, kiln_sin(kiln_scatter_along_axis(a, each(), kiln_exp(b), 1, KILN_SCATTER_ADD))) \
    X(MATRIX, kiln_sin(kiln_scatter_along_axis(a, kiln_slice_axis(each(), 1, 0, 2, 1), kiln_slice_axis(b, 1, 0, 2, 1), 1, KILN_SCATTER_SET))) \
    X(MATRIX, kiln_mul(kiln_sort(a, 1, true), b)) X(MATRIX, kiln_mul(kiln_sort(a, 0, false), b)) X(MATRIX, topk(a)) X(ANY, kiln_sin(kiln_cumsum(a, 1))) \
    X(ANY, kiln_sin(kiln_cumsum(a, 0))) X(ANY, kiln_sin(kiln_matmul(a, kiln_transpose(b)))) X(MATRIX, kiln_sin(kiln_matmul(a, kiln_select(b, 0, 0)))) \
    X(ANY, kiln_sin(kiln_linear(a, b, kiln_sum_axes(b, KILN_AXES(1), false)))) X(ANY, kiln_sin(kiln_einsum("ij,kj->ki", a, b))) \
    X(ANY, kiln_sin(kiln_einsum("ij,ij,kj->k", a, b, a))) X(MATRIX, kiln_sin(kiln_einsum("ii->i", kiln_matmul(a, kiln_transpose(b))))) \
    X(ANY, kiln_sin(kiln_tensordot(a, b, KILN_AXES(1), KILN_AXES(1)))) X(ANY, kiln_sin(kiln_outer(a, b))) X(ANY, kiln_dot(kiln_flatten(a), kiln_flatten(b))) \
    X(MATRIX, kiln_sin(kiln_conv(image(a), image(kiln_slice_axis(b, 1, 0, 2, 1)), NULL))) \
    X(MATRIX, kiln_sin(kiln_conv(image(a), kiln_unsqueeze(b, 1), &(kiln_conv_options){.transposed = true, .stride = {2}}))) \
    X(MATRIX, kiln_max_pool(image(a), KILN_SHAPE(2), NULL)) X(MATRIX, kiln_sin(kiln_avg_pool(image(a), KILN_SHAPE(2), NULL))) \
    X(MATRIX, kiln_adaptive_max_pool(image(a), KILN_SHAPE(2), false)) X(MATRIX, kiln_sin(kiln_adaptive_avg_pool(image(a), KILN_SHAPE(2), false))) \
    X(MATRIX, kiln_sin(resized(a, KILN_NEAREST))) X(MATRIX, kiln_sin(resized(a, KILN_LINEAR))) X(MATRIX, kiln_sin(resized(a, KILN_CUBIC))) \
    X(MATRIX, kiln_attention(a, b, kiln_sin(b), NULL)) X(MATRIX, kiln_attention(a, b, kiln_sin(b), &(kiln_attention_options){.causal = true})) \
    X(MATRIX, kiln_attention(a, b, b, (&(kiln_attention_options){.mask = kiln_matmul(a, kiln_transpose(b)), .softcap = 2}))) \
    X(MATRIX, kiln_sin(kiln_rotary(kiln_concat((kiln_tensor *[]){a, b}, 2, 1), kiln_slice_axis(b, 1, 0, 2, 1), true))) \
    X(SOME, kiln_softmax(a, -1)) X(SOME, kiln_softmax(a, 0)) X(SOME, kiln_log_softmax(a, 1)) X(MATRIX, kiln_normalize(a, KILN_AXES(1), 1e-3)) \
    X(MATRIX, kiln_layer_norm(a, kiln_select(b, 0, 0), kiln_select(b, 0, 1), 1e-3)) X(MATRIX, kiln_rms_norm(a, kiln_select(b, 0, 0), 1e-3)) \
    X(MATRIX, kiln_batch_norm(a, NULL, NULL, (&(kiln_norm_options){.training = true, .weight = kiln_select(b, 0, 0)}))) \
    X(MATRIX, kiln_group_norm(image(a), 2, (&(kiln_norm_options){.bias = kiln_select(b, 1, 1)}))) X(MATRIX, kiln_cross_entropy(a, two())) \
    X(ANY, kiln_binary_cross_entropy(a, kiln_sigmoid(b))) X(SOME, kiln_mse(a, b)) X(ANY, checkpoint(a, b)) X(ANY, cond(a, b)) X(MATRIX, scan(a, b)) \
    X(ANY, loop(a, b)) X(MATRIX, map(a, b, 0)) X(MATRIX, map(a, b, 1))

/* Constants, ints and bools; refused; random; in a function above; and those with tests of their own: test_linalg_gradient.c, ranks/, test_optimizer.c */
static const char others[] =
    "kiln_zeros kiln_ones kiln_full kiln_full_int kiln_zeros_like kiln_full_like kiln_scalar kiln_int kiln_uint kiln_bool kiln_arange kiln_linspace "
    "kiln_eye kiln_from kiln_wrap kiln_wrap_strided kiln_from_dlpack kiln_from_dlpack_unversioned kiln_uniform kiln_normal kiln_rand kiln_randn "
    "kiln_randint kiln_isnan kiln_isinf kiln_isfinite kiln_signbit kiln_logical_not kiln_bitwise_not kiln_eq kiln_ne kiln_lt kiln_le kiln_gt kiln_ge "
    "kiln_logical_and kiln_logical_or kiln_logical_xor kiln_bitwise_and kiln_bitwise_or kiln_bitwise_xor kiln_shift_left kiln_shift_right kiln_any "
    "kiln_any_axes kiln_all kiln_all_axes kiln_argmax kiln_argmax_axis kiln_argmin kiln_argmin_axis kiln_argsort kiln_one_hot kiln_load_npy "
    "kiln_file_tensor kiln_param kiln_nextafter kiln_to kiln_dropout kiln_einsum_list kiln_solve kiln_solve_triangular kiln_inv kiln_det kiln_cholesky "
    "kiln_pad_by kiln_interpolate "
    "kiln_all_reduce kiln_all_gather kiln_reduce_scatter kiln_broadcast kiln_all_to_all kiln_send_recv kiln_send kiln_recv kiln_shard kiln_unshard kiln_scaler_scale kiln_scaler_unscale ";
/* clang-format on */

#define X(takes, ...) {#__VA_ARGS__, takes},
static const struct {
    const char *text;
    Takes takes;
} rows[] = {ROWS(X)};
#undef X
enum { N_ROWS = sizeof rows / sizeof *rows };

/* Row `number` of a and b. */
static kiln_tensor *apply(int number, kiln_tensor *a, kiln_tensor *b)
{
    int at = 0;
#define X(takes, ...)   \
    if (at++ == number) \
        return __VA_ARGS__;
    ROWS(X)
#undef X
    return NULL;
}

/* ---- a case ---- */

typedef struct Case {
    int row;
    kiln_shape shape;
    bool strided;
    size_t n;
    double x[INPUTS][MOST], u[INPUTS][MOST], v[MOST]; /* inputs, directions of them, cotangents of the result */
    double room[INPUTS][MOST];                        /* a strided input */
} Case;

static double draw(uint64_t *state) /* xorshift64 (Marsaglia 2003) */
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) * 0x1p-53 * 2.4 - 1.2;
}

static void fill(Case *c, uint64_t seed)
{
    for (int k = 0; k < INPUTS; k++)
        for (int i = 0; i < MOST; i++) {
            c->x[k][i] = draw(&seed);
            c->u[k][i] = draw(&seed);
            c->v[i] = draw(&seed);
        }
}

static kiln_tensor *dense(const Case *c, const double *data) { return kiln_from(KILN_F64, c->shape, data); }

static kiln_tensor *input(Case *c, int k)
{
    const int64_t rows_of = c->shape.dim[0], columns = c->shape.dim[1];
    if (!c->strided)
        return dense(c, c->x[k]);
    for (int64_t i = 0; i < rows_of; i++)
        for (int64_t j = 0; j < columns; j++)
            c->room[k][j * rows_of + i] = c->x[k][i * columns + j];
    return kiln_wrap_strided(KILN_F64, c->shape, (int64_t[]){1, rows_of}, c->room[k], NULL, NULL);
}

static size_t values_of(kiln_tensor *x, double *values)
{
    size_t n = (size_t)kiln_numel(x);
    cr_assert_leq(n, MOST);
    OK(kiln_read(x, KILN_F64, values, n * sizeof *values));
    return n;
}

static double dot(size_t n, const double *a, const double *b)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* v (f(x + h u) - f(x - h u)) / 2h */
static double difference(const Case *c)
{
    const double h = 6e-6;
    double side[2][MOST], sum = 0;
    size_t n = 0;
    for (int s = 0; s < 2; s++) {
        double moved[INPUTS][MOST];
        for (int k = 0; k < INPUTS; k++)
            for (size_t i = 0; i < c->n; i++)
                moved[k][i] = c->x[k][i] + (s ? -h : h) * c->u[k][i];
        n = values_of(apply(c->row, dense(c, moved[0]), dense(c, moved[1])), side[s]);
    }
    for (size_t i = 0; i < n; i++)
        sum += c->v[i] * (side[0][i] - side[1][i]) / (2 * h);
    return sum;
}

static void near_to(const Case *c, const char *what, double got, double want, double tolerance)
{
    cr_expect(fabs(got - want) <= tolerance * fmax(1, fabs(want)), "%s of [%d,%d]%s: %s %.12g, not %.12g", rows[c->row].text,
              (int)c->shape.dim[0], (int)c->shape.dim[1], c->strided ? ", strided" : "", what, got, want);
}

static void check(Case *c, bool differences)
{
    kiln_scope *scope = kiln_scope_begin();
    double values[MOST], reverse = 0, second[2][MOST];
    kiln_tensor *x[INPUTS] = {kiln_param(input(c, 0)), kiln_param(input(c, 1))}, *u[INPUTS] = {dense(c, c->u[0]), dense(c, c->u[1])};
    kiln_tensor *y = apply(c->row, x[0], x[1]), *g[INPUTS], *t, *hessian[2][INPUTS];
    cr_assert(y, "%s: %s", rows[c->row].text, kiln_error_message());
    kiln_tensor *v = kiln_from(KILN_F64, kiln_shape_of(y), c->v);
    OK(kiln_vjp(1, &y, &v, INPUTS, x, 0, g));
    OK(kiln_jvp(INPUTS, x, u, 1, &y, 0, &t));
    OK(kiln_vjp(INPUTS, g, u, INPUTS, x, 0, hessian[0]));
    OK(kiln_jvp(INPUTS, x, u, INPUTS, g, 0, hessian[1]));
    kiln_tensor *all[] = {t, g[0], g[1], hessian[0][0], hessian[0][1], hessian[1][0], hessian[1][1]};
    OK(kiln_eval_many(all, sizeof all / sizeof *all));
    for (int k = 0; k < INPUTS; k++)
        reverse += dot(values_of(g[k], values), values, c->u[k]);
    near_to(c, "forward mode", dot(values_of(t, values), values, c->v), reverse, 1e-10);
    if (differences)
        near_to(c, "reverse mode", reverse, difference(c), 1e-6);
    for (int k = 0; k < INPUTS; k++) {
        size_t n = values_of(hessian[0][k], second[0]);
        cr_assert_eq(values_of(hessian[1][k], second[1]), n);
        for (size_t i = 0; i < n; i++)
            near_to(c, "a second derivative, reverse mode,", second[0][i], second[1][i], 1e-9);
    }
    kiln_scope_end(scope);
}

/* By the interpreter all of it, compiled another sixth with each seed, and of what is dense another sixth on the software device. */
Test(gradient_functions, each_in_every_shape, .timeout = HANGS_AFTER(60))
{
    static const kiln_shape shapes[] = {{2, {2, 3}}, {2, {1, 1}}, {2, {0, 3}}};
    static Case c;
    if (cuda_driver())
        use_driver();
    for (c.row = 0; c.row < N_ROWS; c.row++)
        for (int s = 0; s < (rows[c.row].takes == ANY ? 3 : rows[c.row].takes == SOME ? 2 : 1); s++) {
            c.shape = shapes[s];
            c.n = (size_t)(c.shape.dim[0] * c.shape.dim[1]);
            fill(&c, (uint64_t)(88172645463325252 + c.row));
            for (int strided = 0; strided < 2; strided++) {
                uint64_t turn = (slice_seed() + (uint64_t)(c.row + s * 2 + strided)) % 6;
                c.strided = strided;
                set_option("mode", "interp");
                check(&c, true);
                set_option("mode", "jit");
                if (turn == 0)
                    check(&c, false);
                if (turn == 3 && !strided && cuda_driver()) {
                    OK(kiln_set_device("cuda"));
                    check(&c, false);
                    OK(kiln_set_device("cpu"));
                }
            }
        }
    end_mode();
}

/* Is the name in the text, as a whole? */
static bool has(const char *text, const char *name, char end)
{
    size_t n = strlen(name);
    for (const char *at = text; (at = strstr(at, name)); at++)
        if (at[n] == end && (at == text || !strchr("abcdefghijklmnopqrstuvwxyz_", at[-1])))
            return true;
    return false;
}

Test(gradient_functions, all_are_here)
{
    FILE *header = fopen(KILN_SOURCE_DIR "/runtime/include/kiln.h", "r");
    char line[512], name[64];
    int found = 0;
    cr_assert_not_null(header);
    while (fgets(line, sizeof line, header)) {
        if (sscanf(line, "KILN_OP(%63[a-z0-9_]", name) != 1)
            continue;
        bool here = has(others, name, ' ');
        for (int r = 0; r < N_ROWS && !here; r++)
            here = has(rows[r].text, name, '(');
        cr_expect(here, "%s: neither a row nor among the others", name);
        found++;
    }
    fclose(header);
    cr_expect_gt(found, 150);
}

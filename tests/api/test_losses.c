/* kiln_linear, losses, kiln_norm, kiln_one_hot, kiln_dropout, kiln_rand, kiln_randn: values in double precision, special values, gradients
 * against differences. */
#include "api.h"

/* --- gradients: central differences in f64 ------------------------------------------------------------------- */

typedef kiln_tensor *Loss(kiln_tensor *const *in);

static double loss_at(Loss *loss, kiln_tensor *const *in)
{
    double value;
    cr_assert(kiln_item(loss(in), &value) == KILN_OK, "%s", kiln_error_message());
    return value;
}

/* The gradient of a loss of n f64 tensors, of at most 16 elements each. */
static void check_gradient(int line, Loss *loss, kiln_tensor *const *x, int n)
{
    kiln_tensor *in[4] = {NULL}, *g[4];
    double data[16], got[16];
    for (int i = 0; i < n; i++)
        in[i] = kiln_param(kiln_positive(x[i]));
    cr_assert(kiln_grad(loss(in), in, n, g) == KILN_OK, "line %d: %s", line, kiln_error_message());
    for (int i = 0; i < n; i++) {
        size_t count = (size_t)kiln_numel(x[i]), bytes = count * sizeof *data;
        cr_assert(kiln_read(x[i], KILN_F64, data, bytes) == KILN_OK && kiln_read(g[i], KILN_F64, got, bytes) == KILN_OK, "line %d: %s",
                  line, kiln_error_message());
        kiln_tensor *moved[4];
        memcpy(moved, x, sizeof *x * (size_t)n);
        for (size_t k = 0; k < count; k++) {
            double at = data[k], h = cbrt(0x1p-52) * fmax(1, fabs(at)), ends[2];
            for (int end = 0; end < 2; end++) {
                data[k] = end ? at + h : at - h;
                moved[i] = kiln_from(KILN_F64, kiln_shape_of(x[i]), data);
                ends[end] = loss_at(loss, moved);
            }
            data[k] = at;
            double want = (ends[1] - ends[0]) / (2 * h);
            cr_assert(fabs(got[k] - want) <= 1e-6 * fmax(1, fabs(want)), "line %d: input %d, element %d: %.12g, not %.12g", line, i, (int)k,
                      got[k], want);
        }
    }
}

#define CHECK_GRADIENT(loss, ...) \
    check_gradient(__LINE__, loss, (kiln_tensor *[]){__VA_ARGS__}, (int)(sizeof((kiln_tensor *[]){__VA_ARGS__}) / sizeof(kiln_tensor *)))

static kiln_tensor *waves(kiln_shape shape, double step) /* f64: sin(step), sin(2 step), ... */
{
    int64_t n = 1;
    for (int d = 0; d < shape.rank; d++)
        n *= shape.dim[d];
    return kiln_reshape(kiln_sin(kiln_mul(kiln_arange(KILN_F64, 1, (double)n + 1, 1), step)), shape);
}

/* --- linear --------------------------------------------------------------------------------------------------- */

static kiln_tensor *linear_loss(kiln_tensor *const *in) { return kiln_sum(kiln_square(kiln_linear(in[0], in[1], in[2]))); }

API_TEST(losses, linear)
{
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *w = F32(KILN_SHAPE(2, 3), 1, 0, -1, 2, 1, 0),
                *b = F32(KILN_SHAPE(2), 10, 20);
    EXPECT(kiln_linear(x, w, b), KILN_F32, KILN_SHAPE(2, 2), 0, 8, 24, 8, 33);
    EXPECT(kiln_linear(kiln_select(x, 0, 1), w, b), KILN_F32, KILN_SHAPE(2), 0, 8, 33);
    EXPECT(kiln_linear(kiln_unsqueeze(x, 0), w, b), KILN_F32, KILN_SHAPE(1, 2, 2), 0, 8, 24, 8, 33);
    EXPECT(kiln_linear(kiln_cast(x, KILN_F16), kiln_cast(w, KILN_F16), kiln_cast(b, KILN_F16)), KILN_F16, KILN_SHAPE(2, 2), 0, 8, 24, 8,
           33);
    EXPECT(kiln_linear(kiln_cast(x, KILN_I32), w, kiln_cast(b, KILN_F64)), KILN_F64, KILN_SHAPE(2, 2), 0, 8, 24, 8, 33);
    EXPECT(kiln_linear(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), b), KILN_F32, KILN_SHAPE(2, 2), 0,
           10, 20, 10, 20);
    EXPECT_EMPTY(kiln_linear(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), w, b), KILN_F32, KILN_SHAPE(0, 2));
    EXPECT_ERROR(kiln_linear(x, kiln_transpose(w), b), KILN_BAD_SHAPE,
                 "kiln_linear: x is [..., in], weight [out, in], bias [out]: x is f32[2,3], ",
                 "weight is f32[3,2], bias is f32[2] (test_losses.c:");
    EXPECT_ERROR(kiln_linear(x, w, F32(KILN_SHAPE(1), 1)), KILN_BAD_SHAPE, "bias is f32[1]");
    EXPECT_ERROR(kiln_linear(kiln_scalar(1), w, b), KILN_BAD_SHAPE, "x is weak float");
    CHECK_GRADIENT(linear_loss, waves(KILN_SHAPE(2, 2, 3), 1), waves(KILN_SHAPE(2, 3), 2), waves(KILN_SHAPE(2), 3));
}

/* --- losses --------------------------------------------------------------------------------------------------- */

static kiln_tensor *mse_loss(kiln_tensor *const *in) { return kiln_mse(in[0], in[1]); }

API_TEST(losses, mse)
{
    kiln_tensor *x = F32(KILN_SHAPE(2, 2), 1, 2, 3, 4), *y = F32(KILN_SHAPE(2, 2), 1, 0, 0, 8);
    EXPECT(kiln_mse(x, y), KILN_F32, KILN_SHAPE(), 1e-7, 29 / 4.0);
    EXPECT(kiln_mse(x, kiln_cast(y, KILN_I32)), KILN_F32, KILN_SHAPE(), 1e-7, 29 / 4.0);
    EXPECT(kiln_mse(kiln_scalar(3), kiln_int(1)), KILN_F32, KILN_SHAPE(), 0, 4);
    EXPECT(kiln_mse(F32(KILN_SHAPE(2), INFINITY, 0), F32(KILN_SHAPE(2), 0, 0)), KILN_F32, KILN_SHAPE(), 0, INFINITY);
    EXPECT(kiln_mse(F32(KILN_SHAPE(2), NAN, 0), F32(KILN_SHAPE(2), 0, 0)), KILN_F32, KILN_SHAPE(), 0, NAN);
    EXPECT(kiln_mse(kiln_zeros(KILN_F64, KILN_SHAPE(0)), kiln_zeros(KILN_F64, KILN_SHAPE(0))), KILN_F64, KILN_SHAPE(), 0, NAN);
    kiln_tensor *far = kiln_cast(F32(KILN_SHAPE(2), 200, 300), KILN_F16); /* its squares are beyond f16 */
    EXPECT(kiln_mse(far, kiln_cast(F32(KILN_SHAPE(2), 0, 300), KILN_F16)), KILN_F16, KILN_SHAPE(), 1e-3, 20000);
    EXPECT_ERROR(kiln_mse(x, F32(KILN_SHAPE(2), 1, 2)), KILN_BAD_SHAPE,
                 "kiln_mse: shapes differ: prediction is f32[2,2], target is f32[2]");
    CHECK_GRADIENT(mse_loss, waves(KILN_SHAPE(3, 4), 1), waves(KILN_SHAPE(3, 4), 2));
}

static kiln_tensor *bce_loss(kiln_tensor *const *in) { return kiln_sum(kiln_binary_cross_entropy(in[0], in[1])); }

/* log(1 + e^x), with no loss */
static double soft(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

API_TEST(losses, binary_cross_entropy)
{
    static const double at[] = {0, 0.5, -3, 20, -20, 90, -90, 1000, -1000}, targets[] = {0, 1, 0.25};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 9; i++) {
            double want = (targets[t] > 0 ? targets[t] * soft(-at[i]) : 0) + (targets[t] < 1 ? (1 - targets[t]) * soft(at[i]) : 0);
            kiln_tensor *loss = kiln_binary_cross_entropy(F64(KILN_SHAPE(1), at[i]), F64(KILN_SHAPE(1), targets[t]));
            if (want > 1e-300) /* its relative error: 1 - p is not lost beside 1 */
                EXPECT(kiln_div(loss, want), KILN_F64, KILN_SHAPE(1), 1e-14, 1);
            loss = kiln_binary_cross_entropy(F32(KILN_SHAPE(1), (float)at[i]), F32(KILN_SHAPE(1), (float)targets[t]));
            if (want > 1e-30)
                EXPECT(kiln_div(loss, want), KILN_F32, KILN_SHAPE(1), 1e-6, 1);
        }
    kiln_tensor *x = F32(KILN_SHAPE(4), INFINITY, -INFINITY, INFINITY, NAN), *t = BOOL(KILN_SHAPE(4), 1, 0, 0, 1);
    EXPECT(kiln_binary_cross_entropy(x, t), KILN_F32, KILN_SHAPE(4), 0, 0, 0, INFINITY, NAN);
    EXPECT(kiln_binary_cross_entropy(kiln_zeros(KILN_BF16, KILN_SHAPE(1)), kiln_ones(KILN_BF16, KILN_SHAPE(1))), KILN_BF16, KILN_SHAPE(1),
           4e-3, log(2));
    EXPECT_ERROR(kiln_binary_cross_entropy(x, kiln_bool(true)), KILN_BAD_SHAPE, "logits is f32[4], targets is bool[]");
    CHECK_GRADIENT(bce_loss, kiln_mul(waves(KILN_SHAPE(2, 5), 1), 4), F64(KILN_SHAPE(2, 5), 0, 1, 0.5, 0, 1, 0.25, 0, 1, 0, 1));
    /* sigmoid(x) - t, at 0 and far out, where differences tell nothing */
    kiln_tensor *w = kiln_param(F64(KILN_SHAPE(6), 0, 0, 800, 800, -800, INFINITY)), *y = F64(KILN_SHAPE(6), 0, 1, 1, 0, 1, 1), *g;
    cr_assert(kiln_grad(kiln_sum(kiln_binary_cross_entropy(w, y)), &w, 1, &g) == KILN_OK, "%s", kiln_error_message());
    EXPECT(g, KILN_F64, KILN_SHAPE(6), 1e-15, 0.5, -0.5, 0, 1, -1, 0);
}

static kiln_tensor *cross_entropy_loss(kiln_tensor *const *in)
{
    return kiln_mean(kiln_cross_entropy(in[0], I32(KILN_SHAPE(3), 2, 0, -1)));
}

API_TEST(losses, gradient_of_cross_entropy) { CHECK_GRADIENT(cross_entropy_loss, waves(KILN_SHAPE(3, 4), 1)); }

/* --- norm ------------------------------------------------------------------------------------------------------ */

static kiln_tensor *norm_loss(kiln_tensor *const *in) { return kiln_sum(kiln_norm_axes(in[0], KILN_AXES(1), false)); }

API_TEST(losses, norm)
{
    kiln_tensor *x = F32(KILN_SHAPE(2, 2), 3, 4, 5, -12), *g;
    EXPECT(kiln_norm_axes(x, KILN_AXES(1), false), KILN_F32, KILN_SHAPE(2), 1e-6, 5, 13);
    EXPECT(kiln_norm_axes(x, KILN_AXES(0), true), KILN_F32, KILN_SHAPE(1, 2), 1e-6, sqrt(34), sqrt(160));
    EXPECT(kiln_norm(x), KILN_F32, KILN_SHAPE(), 1e-6, sqrt(194));
    EXPECT(kiln_norm(kiln_cast(x, KILN_I8)), KILN_F32, KILN_SHAPE(), 1e-6, sqrt(194));
    EXPECT(kiln_norm(kiln_zeros(KILN_F64, KILN_SHAPE(0))), KILN_F64, KILN_SHAPE(), 0, 0);
    EXPECT(kiln_norm(F32(KILN_SHAPE(2), INFINITY, 1)), KILN_F32, KILN_SHAPE(), 0, INFINITY);
    EXPECT(kiln_norm(F32(KILN_SHAPE(2), NAN, 1)), KILN_F32, KILN_SHAPE(), 0, NAN);
    EXPECT(kiln_norm(kiln_full(KILN_F16, KILN_SHAPE(4), 300)), KILN_F16, KILN_SHAPE(), 0, 600); /* its square is beyond f16 */
    CHECK_GRADIENT(norm_loss, waves(KILN_SHAPE(3, 4), 1));
    kiln_tensor *zero = kiln_param(kiln_zeros(KILN_F32, KILN_SHAPE(2)));
    cr_assert(kiln_grad(kiln_norm(zero), &zero, 1, &g) == KILN_OK, "%s", kiln_error_message());
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 0, 0);
}

/* Rows that leave one element beside whole vectors: LLVM makes scalar code of a mask that it knows to be one lane. */
API_TEST(losses, norm_of_columns_of_which_one_is_left)
{
    static const char *const widths[] = {"0", "128", "256", "512"}, *const math[] = {"fast", "strict"};
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(257, 129));
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < 8; i++) {
        double sum = 0;
        set_option("vector_bits", widths[i / 2]);
        set_option("math", math[i % 2]);
        kiln_tensor *norm = kiln_norm_axes(x, KILN_AXES(0), false);
        cr_assert(kiln_eval(norm) == KILN_OK && kiln_item(kiln_sum(norm), &sum) == KILN_OK && fabs(sum - 129 * sqrt(257)) < 1e-3,
                  "%s bits, %s: %g", widths[i / 2], math[i % 2], sum);
    }
    set_option("vector_bits", "0");
    set_option("math", "fast");
}

/* --- one hot ---------------------------------------------------------------------------------------------------- */

API_TEST(losses, one_hot)
{
    kiln_tensor *labels = I32(KILN_SHAPE(3), 2, 0, -1);
    EXPECT(kiln_one_hot(labels, 3, KILN_F32), KILN_F32, KILN_SHAPE(3, 3), 0, 0, 0, 1, 1, 0, 0, 0, 0, 1);
    EXPECT(kiln_one_hot(U8(KILN_SHAPE(1, 2), 1, 0), 2, KILN_BOOL), KILN_BOOL, KILN_SHAPE(1, 2, 2), 0, 0, 1, 1, 0);
    EXPECT(kiln_one_hot(kiln_int(1), 3, KILN_I64), KILN_I64, KILN_SHAPE(3), 0, 0, 1, 0);
    EXPECT_EMPTY(kiln_one_hot(kiln_zeros(KILN_I32, KILN_SHAPE(0)), 0, KILN_F32), KILN_F32, KILN_SHAPE(0, 0));
    EXPECT_ERROR(kiln_one_hot(kiln_zeros(KILN_F32, KILN_SHAPE(2)), 3, KILN_F32), KILN_BAD_DTYPE, "labels is f32[2]");
    EXPECT_ERROR(kiln_one_hot(labels, 0, KILN_F32), KILN_INVALID, "classes is 0: labels is i64[3]");
    EXPECT_ERROR(kiln_one_hot(kiln_zeros(KILN_I64, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)), 2, KILN_F32), KILN_BAD_SHAPE, "9 axes");
    double value;
    kiln_status status = kiln_item(kiln_sum(kiln_one_hot(labels, 2, KILN_F32)), &value);
    cr_assert(status == KILN_BAD_INDEX && strstr(kiln_error_message(), "kiln_one_hot"), "%d: %s", (int)status, kiln_error_message());
    kiln_clear_error();
}

/* --- random ------------------------------------------------------------------------------------------------------ */

static kiln_tensor *dropout_loss(kiln_tensor *const *in)
{
    kiln_seed(5);
    return kiln_sum(kiln_square(kiln_dropout(in[0], 0.5)));
}

API_TEST(losses, dropout)
{
    enum { N = 100000 };
    static const double rates[] = {0, 0.1, 0.5, 0.9};
    kiln_seed(11);
    for (int i = 0; i < 4; i++) {
        kiln_tensor *y = kiln_dropout(kiln_ones(KILN_F32, KILN_SHAPE(N)), rates[i]);
        double kept, total, dropped, p = rates[i];
        cr_assert(kiln_eval(y) == KILN_OK && kiln_item(kiln_sum(kiln_eq(y, (float)(1 / (1 - p)))), &kept) == KILN_OK &&
                      kiln_item(kiln_sum(kiln_eq(y, 0)), &dropped) == KILN_OK && kiln_item(kiln_sum(y), &total) == KILN_OK,
                  "%s", kiln_error_message());
        cr_assert(kept + dropped == N, "%g kept, %g dropped", kept, dropped);
        cr_assert(fabs(dropped - N * p) <= 5 * sqrt(N * p * (1 - p)), "of %d, %g are dropped, not %g", N, dropped, N * p);
    }
    /* its place in the stream alone says what is dropped: elsewhere in it, other elements are */
    kiln_tensor *x = kiln_ones(KILN_F16, KILN_SHAPE(64));
    kiln_seed(3);
    kiln_tensor *a = kiln_dropout(x, 0.5), *b = kiln_dropout(x, 0.5);
    kiln_seed(3);
    kiln_tensor *c = kiln_dropout(kiln_cast(x, KILN_F64), 0.5);
    double same, other;
    cr_assert(kiln_item(kiln_sum(kiln_ne(a, c)), &same) == KILN_OK && same == 0, "%s", kiln_error_message());
    cr_assert(kiln_item(kiln_sum(kiln_ne(a, b)), &other) == KILN_OK && other > 10, "%g differ", other);
    kiln_tensor *lost = kiln_dropout(kiln_full(KILN_F32, KILN_SHAPE(64), NAN), 0.5); /* what is dropped is 0, whatever it was */
    cr_assert(kiln_item(kiln_sum(kiln_eq(lost, 0)), &other) == KILN_OK && other > 10, "%g are 0", other);
    EXPECT_EMPTY(kiln_dropout(kiln_zeros(KILN_F32, KILN_SHAPE(0)), 0.5), KILN_F32, KILN_SHAPE(0));
    cr_assert(kiln_dtype_of(kiln_dropout(I32(KILN_SHAPE(1), 1), 0.5)) == KILN_F32);
    EXPECT_ERROR(kiln_dropout(x, 1), KILN_INVALID, "kiln_dropout: p is 1: a probability, 0 <= p < 1, is needed");
    EXPECT_ERROR(kiln_dropout(x, -0.1), KILN_INVALID, "p is -0.1");
    EXPECT_ERROR(kiln_dropout(x, (double)NAN), KILN_INVALID, "p is nan");
    CHECK_GRADIENT(dropout_loss, waves(KILN_SHAPE(12), 1));
}

API_TEST(losses, rand_and_randn_are_uniform_and_normal)
{
    static const kiln_dtype types[] = {KILN_F32, KILN_F64, KILN_BF16};
    for (int t = 0; t < 3; t++) {
        double difference;
        kiln_seed(9);
        kiln_tensor *a = kiln_rand(types[t], KILN_SHAPE(50)), *b = kiln_randn(types[t], KILN_SHAPE(3, 4));
        kiln_seed(9);
        kiln_tensor *c = kiln_uniform(types[t], KILN_SHAPE(50), 0, 1), *d = kiln_normal(types[t], KILN_SHAPE(3, 4), 0, 1);
        cr_assert(kiln_item(kiln_add(kiln_sum(kiln_ne(a, c)), kiln_sum(kiln_ne(b, d))), &difference) == KILN_OK && difference == 0);
    }
}

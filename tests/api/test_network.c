/* matmul, softmax, normalisation, losses. */
#include "api.h"

API_TEST(network, matmul)
{
    kiln_tensor *a = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *b = F32(KILN_SHAPE(3, 2), 1, 2, 3, 4, 5, 6);
    kiln_tensor *v = F32(KILN_SHAPE(3), 1, 0, -1), *w = F32(KILN_SHAPE(2), 1, 10);
    EXPECT(kiln_matmul(a, b), KILN_F32, KILN_SHAPE(2, 2), 0, 22, 28, 49, 64);
    EXPECT(kiln_matmul(a, v), KILN_F32, KILN_SHAPE(2), 0, -2, -2);
    EXPECT(kiln_matmul(w, a), KILN_F32, KILN_SHAPE(3), 0, 41, 52, 63);
    EXPECT(kiln_matmul(v, v), KILN_F32, KILN_SHAPE(), 0, 2);
    EXPECT(kiln_matmul(kiln_transpose(b), kiln_transpose(a)), KILN_F32, KILN_SHAPE(2, 2), 0, 22, 49, 28, 64);
    kiln_tensor *batch = kiln_stack((kiln_tensor *[]){a, kiln_neg(a)}, 2, 0);
    EXPECT(kiln_matmul(batch, b), KILN_F32, KILN_SHAPE(2, 2, 2), 0, 22, 28, 49, 64, -22, -28, -49, -64);
    EXPECT(kiln_matmul(kiln_unsqueeze(batch, 0), kiln_reshape(b, KILN_SHAPE(1, 1, 3, 2))), KILN_F32, KILN_SHAPE(1, 2, 2, 2), 0, 22, 28, 49,
           64, -22, -28, -49, -64);
    EXPECT(kiln_matmul(batch, v), KILN_F32, KILN_SHAPE(2, 2), 0, -2, -2, 2, 2);
    EXPECT(kiln_matmul(I32(KILN_SHAPE(1, 2), 2, 3), I32(KILN_SHAPE(2, 1), 4, 5)), KILN_I32, KILN_SHAPE(1, 1), 0, 23);
    EXPECT(kiln_matmul(I32(KILN_SHAPE(1, 2), 2, 3), F64(KILN_SHAPE(2, 1), 0.5, 5)), KILN_F64, KILN_SHAPE(1, 1), 0, 16);
    EXPECT(kiln_matmul(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), kiln_zeros(KILN_F32, KILN_SHAPE(0, 2))), KILN_F32, KILN_SHAPE(2, 2), 0, 0, 0,
           0, 0);
    EXPECT_EMPTY(kiln_matmul(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), b), KILN_F32, KILN_SHAPE(0, 2));
    EXPECT(kiln_matmul(kiln_cast(a, KILN_F16), kiln_cast(b, KILN_F16)), KILN_F16, KILN_SHAPE(2, 2), 0, 22, 28, 49, 64);
}

API_TEST(network, matmul_of_a_size_that_is_not_round)
{
    enum { M = 37, K = 53, N = 41 };
    double want[M * N];
    static float a[M * K], b[K * N];
    for (int i = 0; i < M * K; i++)
        a[i] = (float)((i * 7) % 11 - 5);
    for (int i = 0; i < K * N; i++)
        b[i] = (float)((i * 5) % 13 - 6);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            want[i * N + j] = 0;
            for (int k = 0; k < K; k++)
                want[i * N + j] += (double)a[i * K + k] * (double)b[k * N + j];
        }
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(M, K), a), *y = kiln_from(KILN_F32, KILN_SHAPE(K, N), b);
    expect(__LINE__, kiln_matmul(x, y), KILN_F32, KILN_SHAPE(M, N), 1e-9, want, M * N);
    for (int i = 0; i < M * N; i++)
        want[i] = want[i] > 0 ? want[i] + 1 : 1;
    expect(__LINE__, kiln_add(kiln_relu(kiln_matmul(x, y)), kiln_int(1)), KILN_F32, KILN_SHAPE(M, N), 1e-9, want, M * N);
}

/* Both operands' index expressions share the term of the batch. */
API_TEST(network, matmul_of_a_batch_with_itself)
{
    enum { B = 2, N = 33 };
    static float a[B * N * N];
    static double want[B * N * N];
    for (int i = 0; i < B * N * N; i++)
        a[i] = (float)((i * 7) % 11 - 5);
    for (int b = 0; b < B; b++)
        for (int i = 0; i < N * N; i++) {
            want[b * N * N + i] = 0;
            for (int k = 0; k < N; k++)
                want[b * N * N + i] += (double)a[b * N * N + i / N * N + k] * (double)a[b * N * N + k * N + i % N];
        }
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(B, N, N), a), KILN_F16);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    expect(__LINE__, kiln_matmul(x, x), KILN_F16, KILN_SHAPE(B, N, N), 0, want, B * N * N);
}

API_TEST(network, matmul_misfits)
{
    kiln_tensor *a = kiln_zeros(KILN_F32, KILN_SHAPE(256, 1024)), *b = kiln_zeros(KILN_F32, KILN_SHAPE(512, 2048));
    EXPECT_ERROR(kiln_matmul(a, b), KILN_BAD_SHAPE,
                 "kiln_matmul: inner dims differ: a is f32[256,1024], b is f32[512,2048] (test_network.c:");
    EXPECT_ERROR(kiln_matmul(a, kiln_scalar(1)), KILN_BAD_SHAPE, "rank 0", "b is weak float");
    EXPECT_ERROR(kiln_matmul(kiln_zeros(KILN_F32, KILN_SHAPE(3, 2, 2)), kiln_zeros(KILN_F32, KILN_SHAPE(2, 2, 2))), KILN_BAD_SHAPE,
                 "batch dims do not broadcast");
    EXPECT_ERROR(kiln_matmul(kiln_zeros(KILN_F32, KILN_SHAPE(3)), kiln_zeros(KILN_F32, KILN_SHAPE(4))), KILN_BAD_SHAPE, "inner dims",
                 "a is f32[3]", "b is f32[4]");
    EXPECT_ERROR(kiln_matmul(kiln_zeros(KILN_F32, KILN_SHAPE(INT64_C(1) << 40, 1)), kiln_zeros(KILN_F32, KILN_SHAPE(1, INT64_C(1) << 40))),
                 KILN_OVERFLOW, "2^62");
}

API_TEST(network, softmax)
{
    double e = exp(1), s = 1 + e + e * e;
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 0, 1, 2, 1000, 1001, 1002);
    EXPECT(kiln_softmax(x, 1), KILN_F32, KILN_SHAPE(2, 3), 1e-6, 1 / s, e / s, e * e / s, 1 / s, e / s, e * e / s);
    EXPECT(kiln_log_softmax(x, -1), KILN_F32, KILN_SHAPE(2, 3), 1e-6, -log(s), 1 - log(s), 2 - log(s), -log(s), 1 - log(s), 2 - log(s));
    EXPECT(kiln_softmax(F64(KILN_SHAPE(2, 2), 1, 5, 1, 5), 0), KILN_F64, KILN_SHAPE(2, 2), 1e-15, 0.5, 0.5, 0.5, 0.5);
    EXPECT(kiln_softmax(F32(KILN_SHAPE(2), -INFINITY, 3), 0), KILN_F32, KILN_SHAPE(2), 1e-6, 0, 1);
    EXPECT(kiln_softmax(I32(KILN_SHAPE(2), 3, 3), 0), KILN_F32, KILN_SHAPE(2), 1e-6, 0.5, 0.5);
    EXPECT(kiln_softmax(kiln_zeros(KILN_F16, KILN_SHAPE(4)), 0), KILN_F16, KILN_SHAPE(4), 0, 0.25, 0.25, 0.25, 0.25);
    EXPECT_EMPTY(kiln_softmax(kiln_zeros(KILN_F32, KILN_SHAPE(3, 0)), 1), KILN_F32, KILN_SHAPE(3, 0));
    EXPECT_EMPTY(kiln_log_softmax(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), 1), KILN_F32, KILN_SHAPE(0, 3));
    EXPECT_ERROR(kiln_softmax(x, 2), KILN_INVALID, "kiln_softmax: axis 2");
    EXPECT_ERROR(kiln_log_softmax(F32(KILN_SHAPE(), 1), 0), KILN_INVALID, "kiln_log_softmax: axis 0");
}

/* What the largest leaves to the others is not lost beside it. */
API_TEST(network, log_softmax_near_zero)
{
    double little = log1p(exp(-20) + exp(-21)), tiny = log1p(exp(-300));
    kiln_tensor *x = F32(KILN_SHAPE(3), 0, -20, -21), *deep = F64(KILN_SHAPE(2), 300, 0);
    EXPECT(kiln_div(kiln_log_softmax(x, 0), F32(KILN_SHAPE(3), (float)little, 1, 1)), KILN_F32, KILN_SHAPE(3), 1e-6, -1, -20, -21);
    EXPECT(kiln_div(kiln_log_softmax(deep, 0), F64(KILN_SHAPE(2), tiny, 1)), KILN_F64, KILN_SHAPE(2), 1e-14, -1, -300);
    EXPECT(kiln_div(kiln_cross_entropy(x, kiln_int(0)), kiln_scalar(little)), KILN_F32, KILN_SHAPE(), 1e-6, 1);
    EXPECT(kiln_log_softmax(F32(KILN_SHAPE(3), 5, 5, 5), 0), KILN_F32, KILN_SHAPE(3), 1e-6, -log(3), -log(3), -log(3));
    EXPECT(kiln_log_softmax(F32(KILN_SHAPE(2), INFINITY, 0), 0), KILN_F32, KILN_SHAPE(2), 0, NAN, NAN);
    EXPECT(kiln_log_softmax(F32(KILN_SHAPE(2), -INFINITY, 0), 0), KILN_F32, KILN_SHAPE(2), 0, -INFINITY, 0);
}

/* x/2 * erfc(-x / sqrt 2): where 1 + erf would be left with no digit, the result keeps what the rounding of x / sqrt 2 leaves it. */
API_TEST(network, gelu_keeps_its_tail)
{
    static const double at[] = {-5, -8, -12, -0x1p-10, -37};
    for (int i = 0; i < 5; i++) {
        double x = at[i], want = x / 2 * erfc(-x / sqrt(2)), slack = 2 + x * x;
        EXPECT(kiln_div(kiln_gelu(F64(KILN_SHAPE(1), x)), kiln_scalar(want)), KILN_F64, KILN_SHAPE(1), slack * 0x1p-51, 1);
        if (x > -13)
            EXPECT(kiln_div(kiln_gelu(F32(KILN_SHAPE(1), (float)x)), kiln_scalar(want)), KILN_F32, KILN_SHAPE(1), slack * 0x1p-22, 1);
    }
}

API_TEST(network, normalisation)
{
    kiln_tensor *x = F32(KILN_SHAPE(2, 4), 1, 2, 3, 4, -2, 0, 0, 2);
    double a = 1 / sqrt(1.25), b = 1 / sqrt(2);
    EXPECT(kiln_normalize(x, KILN_AXES(1), 0), KILN_F32, KILN_SHAPE(2, 4), 1e-6, -1.5 * a, -0.5 * a, 0.5 * a, 1.5 * a, -2 * b, 0, 0, 2 * b);
    kiln_tensor *weight = F32(KILN_SHAPE(4), 1, 2, 3, 4), *bias = F32(KILN_SHAPE(4), 0, 0, 1, 1);
    EXPECT(kiln_layer_norm(x, weight, bias, 0), KILN_F32, KILN_SHAPE(2, 4), 1e-6, -1.5 * a, -a, 1.5 * a + 1, 6 * a + 1, -2 * b, 0, 1,
           8 * b + 1);
    double c = 1 / sqrt(7.5 + 0.5), d = 1 / sqrt(2 + 0.5);
    EXPECT(kiln_rms_norm(x, weight, 0.5), KILN_F32, KILN_SHAPE(2, 4), 1e-6, c, 4 * c, 9 * c, 16 * c, -2 * d, 0, 0, 8 * d);
    EXPECT(kiln_normalize(kiln_full(KILN_BF16, KILN_SHAPE(4), 3), KILN_ALL_AXES, 1e-5), KILN_BF16, KILN_SHAPE(4), 1e-9, 0, 0, 0, 0);
    EXPECT_ERROR(kiln_layer_norm(x, F32(KILN_SHAPE(3), 1, 2, 3), bias, 0), KILN_BAD_SHAPE,
                 "kiln_layer_norm: weight does not broadcast to x: x is f32[2,4], weight is f32[3]");
    EXPECT_ERROR(kiln_layer_norm(x, weight, kiln_zeros(KILN_F32, KILN_SHAPE(3, 2, 4)), 0), KILN_BAD_SHAPE, "bias does not broadcast");
    EXPECT_ERROR(kiln_layer_norm(x, NULL, bias, 0), KILN_INVALID, "weight is NULL");
    EXPECT_ERROR(kiln_layer_norm(kiln_scalar(1), weight, bias, 0), KILN_BAD_SHAPE, "no last axis");
    static const double no_eps[] = {-1, -1e-300, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof no_eps / sizeof *no_eps; i++) {
        EXPECT_ERROR(kiln_rms_norm(x, weight, no_eps[i]), KILN_INVALID, "kiln_rms_norm: eps is ");
        EXPECT_ERROR(kiln_normalize(x, KILN_AXES(1), no_eps[i]), KILN_INVALID, "kiln_normalize: eps is ");
        EXPECT_ERROR(kiln_layer_norm(x, weight, bias, no_eps[i]), KILN_INVALID, "kiln_layer_norm: eps is ");
    }
    EXPECT_ERROR(kiln_rms_norm(x, weight, -1), KILN_INVALID, "eps is -1");
    EXPECT_ERROR(kiln_normalize(x, KILN_AXES(2), 0), KILN_INVALID, "kiln_normalize: axis 2");
}

API_TEST(network, cross_entropy)
{
    double e = exp(1), s = log(1 + e + e * e);
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 0, 1, 2, 1002, 1001, 1000), *labels = I64(KILN_SHAPE(2), 2, 2);
    EXPECT(kiln_cross_entropy(x, labels), KILN_F32, KILN_SHAPE(2), 1e-6, s - 2, s);
    EXPECT(kiln_cross_entropy(F64(KILN_SHAPE(3), 0, 1, 2), U8(KILN_SHAPE(), 1)), KILN_F64, KILN_SHAPE(), 1e-14, s - 1);
    EXPECT(kiln_mean(kiln_cross_entropy(x, labels)), KILN_F32, KILN_SHAPE(), 1e-6, s - 1);
    EXPECT_EMPTY(kiln_cross_entropy(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), kiln_zeros(KILN_I64, KILN_SHAPE(0))), KILN_F32, KILN_SHAPE(0));
    EXPECT_ERROR(kiln_cross_entropy(x, I64(KILN_SHAPE(3), 0, 1, 2)), KILN_BAD_SHAPE, "kiln_cross_entropy", "logits is f32[2,3]",
                 "labels is i64[3]");
    EXPECT_ERROR(kiln_cross_entropy(x, F32(KILN_SHAPE(2), 0, 1)), KILN_BAD_DTYPE, "labels is f32[2]: ints are needed");
    EXPECT_ERROR(kiln_cross_entropy(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), labels), KILN_BAD_SHAPE, "no classes");
}

Test(network, softmax_and_layer_norm_are_one_kernel)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(64, 256), -1, 1), *w = kiln_uniform(KILN_F32, KILN_SHAPE(256), 0, 1);
    cr_assert(kiln_eval_many((kiln_tensor *[]){x, w}, 2) == KILN_OK, "%s", kiln_error_message());
    kiln_tensor *work[] = {kiln_softmax(x, -1), kiln_layer_norm(x, w, w, 1e-5), kiln_rms_norm(x, w, 1e-5)};
    for (int k = 0; k < 3; k++) {
        kiln_stats before = stats_now();
        cr_assert(kiln_eval(work[k]) == KILN_OK, "%s", kiln_error_message());
        kiln_stats after = stats_now();
        cr_assert(after.kernels - before.kernels == 1, "%d: %d kernels", k, (int)(after.kernels - before.kernels));
    }
    kiln_scope_end(scope);
    end_mode();
}

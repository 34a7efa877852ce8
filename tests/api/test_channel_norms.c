/* Batch and group normalisation against plain loops; running statistics; gradients; sizes that change; errors. */
#include "api.h"

#include "tests/support/slice.h"

enum { VALUES = 1024 };

static uint64_t state;

static int pick(int n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

static double x[VALUES], y[VALUES], weight[16], bias[16];

static void fill(double *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (pick(33) - 16) / 8.0;
}

/* x [n, channels, size]: in each group of `per` channels of one image, or of all (batch), elements are normalised. */
static void loops(int n, int channels, int size, int per, bool batch, bool affine)
{
    for (int b = 0; b < n; b++)
        for (int c = 0; c < channels; c++) {
            double sum = 0, square = 0, count = 0;
            for (int i = batch ? 0 : b; i < (batch ? n : b + 1); i++)
                for (int j = c / per * per; j < c / per * per + per; j++)
                    for (int k = 0; k < size; k++, count++)
                        sum += x[(i * channels + j) * size + k];
            for (int i = batch ? 0 : b; i < (batch ? n : b + 1); i++)
                for (int j = c / per * per; j < c / per * per + per; j++)
                    for (int k = 0; k < size; k++)
                        square += pow(x[(i * channels + j) * size + k] - sum / count, 2);
            for (int k = 0; k < size; k++) {
                int at = (b * channels + c) * size + k;
                y[at] = (x[at] - sum / count) / sqrt(square / count + 1e-5) * (affine ? weight[c] : 1) + (affine ? bias[c] : 0);
            }
        }
}

API_TEST(channel_norms, equal_loops)
{
    static const struct {
        kiln_dtype dtype;
        double tolerance;
    } kinds[] = {{KILN_F64, 1e-12}, {KILN_F32, 2e-5}, {KILN_F16, 2e-3}};
    state = slice_seed() * 29 + 11;
    for (int round = 0; round < 6; round++) {
        int n = 1 + pick(3), groups = 1 + pick(3), per = 1 + pick(3), channels = groups * per, size = 2 + pick(5);
        bool batch = round % 2, last = pick(2), affine = pick(2);
        kiln_dtype dtype = kinds[round / 2].dtype;
        fill(x, n * channels * size);
        fill(weight, channels);
        fill(bias, channels);
        loops(n, channels, size, batch ? 1 : per, batch, affine);
        kiln_norm_options o = {.training = batch, .channels_last = last};
        if (affine) {
            o.weight = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(channels), weight), dtype);
            o.bias = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(channels), bias), dtype);
        }
        kiln_tensor *in = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(n, channels, size), x), dtype);
        if (last)
            in = kiln_swap_axes(in, 1, 2);
        kiln_tensor *got = batch ? kiln_batch_norm(in, NULL, NULL, &o) : kiln_group_norm(in, groups, &o);
        cr_assert(got, "seed %d, round %d: %s", (int)slice_seed(), round, kiln_error_message());
        if (last)
            got = kiln_swap_axes(got, 1, 2);
        expect(__LINE__, got, dtype, KILN_SHAPE(n, channels, size), kinds[round / 2].tolerance, y, (size_t)(n * channels * size));
    }
}

/* PyTorch: running = (1 - momentum) running + momentum new, the variance that of n - 1. */
API_TEST(channel_norms, running_statistics)
{
    kiln_tensor *in = F64(KILN_SHAPE(4, 2), 1, 10, 2, 10, 3, 10, 6, 30);
    kiln_tensor *mean = F32(KILN_SHAPE(2), 1, 0), *var = F64(KILN_SHAPE(2), 1, 2), *kept = kiln_add(mean, 0.0);
    kiln_norm_options o = {.training = true};
    kiln_tensor *made = kiln_batch_norm(in, mean, var, &o);
    double middle = 3, biased = 3.5;
    EXPECT(kiln_select(made, 1, 0), KILN_F64, KILN_SHAPE(4), 1e-12, (1 - middle) / sqrt(biased + 1e-5), (2 - middle) / sqrt(biased + 1e-5),
           0, (6 - middle) / sqrt(biased + 1e-5));
    EXPECT(mean, KILN_F32, KILN_SHAPE(2), 1e-6, 1.2, 1.5);
    EXPECT(var, KILN_F64, KILN_SHAPE(2), 1e-12, 0.9 + 0.1 * 14 / 3, 1.8 + 10);
    EXPECT(kept, KILN_F32, KILN_SHAPE(2), 0, 1, 0);
    o.momentum = 1;
    o.eps = 2;
    (void)kiln_batch_norm(in, mean, var, &o);
    EXPECT(mean, KILN_F32, KILN_SHAPE(2), 1e-6, 3, 15);
    /* used, they stay; weights come along */
    kiln_norm_options use = {.eps = 1.0 / 3, .weight = F64(KILN_SHAPE(2), 2, 0), .bias = F64(KILN_SHAPE(2), 1, 7)};
    EXPECT(kiln_batch_norm(in, mean, var, &use), KILN_F64, KILN_SHAPE(4, 2), 1e-12, 1 - 4 / sqrt(5), 7, 1 - 2 / sqrt(5), 7, 1, 7,
           1 + 6 / sqrt(5), 7);
    EXPECT(mean, KILN_F32, KILN_SHAPE(2), 1e-6, 3, 15);
    EXPECT(kiln_batch_norm(kiln_cast(in, KILN_BF16), mean, var, NULL), KILN_BF16, KILN_SHAPE(4, 2), 1e-2, -2 / sqrt(14.0 / 3), -0.5,
           -1 / sqrt(14.0 / 3), -0.5, 0, -0.5, 3 / sqrt(14.0 / 3), 1.5);
    EXPECT_EMPTY(kiln_batch_norm(kiln_zeros(KILN_F32, KILN_SHAPE(0, 2, 3)), mean, mean, NULL), KILN_F32, KILN_SHAPE(0, 2, 3));
}

/* Instance normalisation: groups of one channel. One group is a layer's. */
API_TEST(channel_norms, groups)
{
    kiln_tensor *in = F64(KILN_SHAPE(1, 2, 2), 1, 3, 10, 30);
    EXPECT(kiln_group_norm(in, 2, &(kiln_norm_options){.eps = 1e-300}), KILN_F64, KILN_SHAPE(1, 2, 2), 1e-12, -1, 1, -1, 1);
    EXPECT(kiln_sub(kiln_group_norm(in, 1, NULL), kiln_normalize(in, KILN_AXES(1, 2), 1e-5)), KILN_F64, KILN_SHAPE(1, 2, 2), 1e-14, 0, 0, 0,
           0);
    EXPECT_EMPTY(kiln_group_norm(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0, 3)), 4, NULL), KILN_F32, KILN_SHAPE(2, 0, 3));
}

API_TEST(channel_norms, gradient)
{
    enum { N = 2, CHANNELS = 4, SIZE = 3, ALL = N * CHANNELS * SIZE };
    for (int batch = 0; batch < 2; batch++) {
        double want[ALL];
        state = 3;
        fill(x, ALL);
        fill(weight, CHANNELS);
        fill(bias, CHANNELS);
        kiln_tensor *in = kiln_param(kiln_from(KILN_F64, KILN_SHAPE(N, CHANNELS, SIZE), x)), *d;
        kiln_norm_options o = {.training = batch};
        o.weight = kiln_from(KILN_F64, KILN_SHAPE(CHANNELS), weight);
        o.bias = kiln_from(KILN_F64, KILN_SHAPE(CHANNELS), bias);
        kiln_tensor *mean = kiln_zeros(KILN_F64, KILN_SHAPE(CHANNELS)), *var = kiln_ones(KILN_F64, KILN_SHAPE(CHANNELS));
        kiln_tensor *out = batch ? kiln_batch_norm(in, mean, var, &o) : kiln_group_norm(in, 2, &o);
        kiln_tensor *factor = kiln_sin(kiln_reshape(kiln_arange(KILN_F64, 0, ALL, 1), KILN_SHAPE(N, CHANNELS, SIZE)));
        kiln_tensor *loss = kiln_sum(kiln_mul(out, factor));
        if (batch) /* no way for a gradient */
            loss = kiln_add(loss, kiln_sum(mean));
        cr_assert_eq(kiln_grad(loss, &in, 1, &d), KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < ALL; i++) {
            double kept = x[i], sum[2] = {0, 0};
            for (int side = 0; side < 2; side++) {
                x[i] = kept + (side ? -1e-5 : 1e-5);
                loops(N, CHANNELS, SIZE, batch ? 1 : 2, batch, true);
                for (int j = 0; j < ALL; j++)
                    sum[side] += sin(j) * y[j];
            }
            x[i] = kept;
            want[i] = (sum[0] - sum[1]) / 2e-5;
        }
        expect(__LINE__, d, KILN_F64, KILN_SHAPE(N, CHANNELS, SIZE), 1e-7, want, ALL);
    }
}

/* A step of training is one program for all batches. */
Test(channel_norms, sizes_change)
{
    begin_mode(0);
    kiln_stats before;
    kiln_tensor *mean = kiln_zeros(KILN_F32, KILN_SHAPE(2)), *var = kiln_zeros(KILN_F32, KILN_SHAPE(2));
    kiln_norm_options o = {.training = true, .momentum = 1};
    float data[80];
    for (int n = 4; n < 36; n++) {
        kiln_scope *scope = kiln_scope_begin();
        for (int i = 0; i < 2 * n; i++)
            data[i] = (float)(i / 2);
        kiln_tensor *in = kiln_from(KILN_F32, KILN_SHAPE(n, 2), data), *got[3];
        got[0] = kiln_sum(kiln_add(kiln_batch_norm(in, mean, var, &o), kiln_reshape(kiln_group_norm(in, 2, NULL), KILN_SHAPE(n, 2))));
        got[1] = mean;
        got[2] = var;
        cr_assert(kiln_eval_many(got, 3) == KILN_OK, "%s", kiln_error_message());
        double total, middle, spread;
        cr_assert(kiln_item(got[0], &total) == KILN_OK && kiln_item(kiln_select(mean, 0, 1), &middle) == KILN_OK);
        cr_assert(kiln_item(kiln_select(var, 0, 1), &spread) == KILN_OK);
        cr_assert(fabs(total) < 1e-4, "%d: %g", n, total);
        cr_assert(fabs(middle - (n - 1) / 2.0) < 1e-4, "%d: %g", n, middle);
        cr_assert(fabs(spread - n * (n + 1) / 12.0) < 1e-3, "%d: %g", n, spread);
        kiln_scope_end(scope);
        if (n == 9)
            kiln_get_stats(&before);
    }
    no_compile_since(&before);
    end_mode();
}

API_TEST(channel_norms, refuse)
{
    kiln_tensor *in = kiln_zeros(KILN_F32, KILN_SHAPE(1, 4)), *four = kiln_ones(KILN_F32, KILN_SHAPE(4)),
                *two = kiln_ones(KILN_F32, KILN_SHAPE(2));
    const kiln_norm_options train = {.training = true};
    EXPECT_ERROR(kiln_batch_norm(in, NULL, NULL, &train), KILN_BAD_SHAPE,
                 "training needs more than one element for each channel: x is f32[1,4]");
    EXPECT_ERROR(kiln_batch_norm(in, NULL, four, NULL), KILN_INVALID, "running_mean is NULL");
    EXPECT_ERROR(kiln_batch_norm(in, four, NULL, &train), KILN_INVALID, "running_var is NULL");
    EXPECT_ERROR(kiln_batch_norm(in, two, four, NULL), KILN_BAD_SHAPE,
                 "running_mean is not one number for each channel, axis 1: x is f32[1,4], running_mean is f32[2] (test_channel_norms.c:");
    EXPECT_ERROR(kiln_batch_norm(in, kiln_ones(KILN_I32, KILN_SHAPE(4)), four, NULL), KILN_BAD_DTYPE, "running_mean is i32[4]");
    EXPECT_ERROR(kiln_batch_norm(kiln_zeros(KILN_F32, KILN_SHAPE(2, 4)), four, four, &train), KILN_INVALID, "are one tensor");
    EXPECT_ERROR(kiln_batch_norm(in, four, four, &(kiln_norm_options){.momentum = 1.5}), KILN_INVALID, "momentum is 1.5");
    EXPECT_ERROR(kiln_batch_norm(in, four, four, &(kiln_norm_options){.eps = -1}), KILN_INVALID, "eps is -1");
    EXPECT_ERROR(kiln_batch_norm(two, two, two, NULL), KILN_BAD_SHAPE, "rank 2 to 7: x is f32[2]");
    EXPECT_ERROR(kiln_group_norm(in, 3, NULL), KILN_BAD_SHAPE, "channels, axis 1, are not cut evenly by 3 groups: x is f32[1,4]");
    EXPECT_ERROR(kiln_group_norm(in, 0, NULL), KILN_INVALID, "0 groups");
    EXPECT_ERROR(kiln_group_norm(in, 2, &train), KILN_INVALID, "for kiln_batch_norm");
    EXPECT_ERROR(kiln_group_norm(in, 2, &(kiln_norm_options){.bias = two}), KILN_BAD_SHAPE, "bias is f32[2]");
    EXPECT_ERROR(kiln_group_norm(in, 2, &(kiln_norm_options){.reserved = {1}}), KILN_INVALID, "reserved[0] of the options is not 0");
}

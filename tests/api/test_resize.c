/* Adaptive pooling, interpolation and fold against plain loops; what the documentation of PyTorch and ONNX describes; gradients; errors. */
#include "api.h"

#include "tests/support/slice.h"

#include <stdio.h>

enum { MOST = 12 };

static uint64_t state;

static int pick(int n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

static double x[MOST * MOST], y[MOST * MOST];

static void fill(double *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (pick(33) - 16) / 8.0;
}

/* ---- adaptive pooling ---- */

API_TEST(resize, adaptive_pools_equal_loops)
{
    state = slice_seed() * 13 + 1;
    for (int round = 0; round < 12; round++) {
        int n[2] = {1 + pick(MOST - 1), 1 + pick(MOST - 1)}, m[2] = {1 + pick(MOST - 1), 1 + pick(MOST - 1)};
        bool mean = round % 2, last = pick(2);
        fill(x, n[0] * n[1]);
        for (int i = 0; i < m[0]; i++)
            for (int j = 0; j < m[1]; j++) {
                double sum = 0, most = -INFINITY;
                int count = 0;
                for (int a = i * n[0] / m[0]; a < ((i + 1) * n[0] + m[0] - 1) / m[0]; a++)
                    for (int b = j * n[1] / m[1]; b < ((j + 1) * n[1] + m[1] - 1) / m[1]; b++, count++) {
                        sum += x[a * n[1] + b];
                        most = fmax(most, x[a * n[1] + b]);
                    }
                y[i * m[1] + j] = mean ? sum / count : most;
            }
        printf("seed %d, round %d: %d x %d to %d x %d\n", (int)slice_seed(), round, n[0], n[1], m[0], m[1]);
        kiln_tensor *in =
            kiln_reshape(kiln_from(KILN_F64, KILN_SHAPE(n[0], n[1]), x), last ? KILN_SHAPE(n[0], n[1], 1) : KILN_SHAPE(1, n[0], n[1]));
        kiln_tensor *got = (mean ? kiln_adaptive_avg_pool : kiln_adaptive_max_pool)(in, KILN_SHAPE(m[0], m[1]), last);
        expect(__LINE__, kiln_reshape(got, KILN_SHAPE(m[0], m[1])), KILN_F64, KILN_SHAPE(m[0], m[1]), 1e-12, y, (size_t)(m[0] * m[1]));
    }
}

API_TEST(resize, adaptive_pools)
{
    kiln_tensor *in = F32(KILN_SHAPE(1, 2, 3), 1, 2, 3, 4, 5, 9);
    EXPECT(kiln_adaptive_avg_pool(in, KILN_SHAPE(1), false), KILN_F32, KILN_SHAPE(1, 2, 1), 1e-7, 2, 6); /* global */
    EXPECT(kiln_adaptive_max_pool(in, KILN_SHAPE(1), false), KILN_F32, KILN_SHAPE(1, 2, 1), 0, 3, 9);
    EXPECT(kiln_adaptive_avg_pool(in, KILN_SHAPE(2), false), KILN_F32, KILN_SHAPE(1, 2, 2), 0, 1.5, 2.5, 4.5, 7);
    EXPECT(kiln_adaptive_max_pool(kiln_cast(kiln_neg(in), KILN_I8), KILN_SHAPE(2), false), KILN_I8, KILN_SHAPE(1, 2, 2), 0, -1, -2, -4, -5);
    EXPECT(kiln_adaptive_avg_pool(kiln_cast(in, KILN_I32), KILN_SHAPE(3), true), KILN_F32, KILN_SHAPE(1, 3, 3), 0, 1, 2, 3, 2.5, 3.5, 6, 4,
           5, 9);
    EXPECT(kiln_adaptive_max_pool(F32(KILN_SHAPE(1, 3), 1, (float)NAN, 0), KILN_SHAPE(2), false), KILN_F32, KILN_SHAPE(1, 2), 0, NAN, NAN);
    EXPECT_EMPTY(kiln_adaptive_avg_pool(in, KILN_SHAPE(0), false), KILN_F32, KILN_SHAPE(1, 2, 0));
    EXPECT_EMPTY(kiln_adaptive_avg_pool(kiln_zeros(KILN_F32, KILN_SHAPE(0, 2, 3)), KILN_SHAPE(2), false), KILN_F32, KILN_SHAPE(0, 2, 2));
    /* the gradient of a mean goes to the elements of its window */
    kiln_tensor *p = kiln_param(in), *g;
    cr_assert_eq(kiln_grad(kiln_sum(kiln_adaptive_avg_pool(p, KILN_SHAPE(2), false)), &p, 1, &g), KILN_OK);
    EXPECT(g, KILN_F32, KILN_SHAPE(1, 2, 3), 1e-6, 0.5, 1, 0.5, 0.5, 1, 0.5);
    cr_assert_eq(kiln_grad(kiln_sum(kiln_adaptive_max_pool(p, KILN_SHAPE(2), false)), &p, 1, &g), KILN_OK);
    EXPECT(g, KILN_F32, KILN_SHAPE(1, 2, 3), 1e-6, 0, 1, 1, 0, 1, 1);
    EXPECT_ERROR(kiln_adaptive_avg_pool(kiln_zeros(KILN_F32, KILN_SHAPE(1, 2, 0)), KILN_SHAPE(1), false), KILN_BAD_SHAPE,
                 "spatial axis 0, from 0 elements to 1: x is f32[1,2,0] (test_resize.c:");
    EXPECT_ERROR(kiln_adaptive_max_pool(in, KILN_SHAPE(1, 1, 1), false), KILN_BAD_SHAPE,
                 "3 spatial axes need [n, channels, ...] of rank 5");
    EXPECT_ERROR(kiln_adaptive_max_pool(in, KILN_SHAPE(), false), KILN_BAD_SHAPE, "sizes of 1 to 3 axes, not 0");
}

/* ---- interpolation ---- */

static double cubic(double t)
{
    const double a = -0.75;
    t = fabs(t);
    return t <= 1 ? (a + 2) * t * t * t - (a + 3) * t * t + 1 : t < 2 ? a * t * t * t - 5 * a * t * t + 8 * a * t - 4 * a : 0;
}

/* How much of element j there is at place i. */
static double share(const kiln_interpolate_options *o, int n, int m, int i, int j)
{
    double at = o->align_corners ? (m > 1 ? (double)i * (n - 1) / (m - 1) : 0) : (i + 0.5) * n / m - 0.5, sum = 0;
    if (o->mode == KILN_NEAREST)
        return j == i * n / m;
    if (o->mode == KILN_NEAREST_CENTER)
        return j == (2 * i + 1) * n / (2 * m);
    for (int k = (int)floor(at) - 1; k <= (int)floor(at) + 2; k++) { /* elements beyond the ends are those at the ends */
        int of = k < 0 ? 0 : k > n - 1 ? n - 1 : k;
        if (of == j)
            sum += o->mode == KILN_CUBIC ? cubic(at - k) : fmax(0, 1 - fabs(at - k));
    }
    return sum;
}

API_TEST(resize, interpolation_equals_loops)
{
    state = slice_seed() * 19 + 2;
    for (int round = 0; round < 12; round++) {
        int n[2] = {1 + pick(MOST - 1), 1 + pick(MOST - 1)}, m[2] = {1 + pick(MOST - 1), 1 + pick(MOST - 1)};
        kiln_interpolate_options o = {.mode = (kiln_interpolation)(round % 4), .channels_last = pick(2)};
        o.align_corners = round % 4 > 1 && pick(2);
        for (int d = 0; d < 2 && round % 8 < 2; d++) { /* one divides the other */
            int part = 1 + pick(4), times = 1 + pick(MOST / part - 1), more = pick(2);
            n[d] = more ? part : part * times;
            m[d] = more ? part * times : part;
        }
        fill(x, n[0] * n[1]);
        for (int i = 0; i < m[0]; i++)
            for (int j = 0; j < m[1]; j++) {
                y[i * m[1] + j] = 0;
                for (int a = 0; a < n[0]; a++)
                    for (int b = 0; b < n[1]; b++)
                        y[i * m[1] + j] += share(&o, n[0], m[0], i, a) * share(&o, n[1], m[1], j, b) * x[a * n[1] + b];
            }
        printf("seed %d, round %d: mode %d, align %d, %d x %d to %d x %d\n", (int)slice_seed(), round, (int)o.mode, o.align_corners, n[0],
               n[1], m[0], m[1]);
        kiln_tensor *in = kiln_reshape(kiln_from(KILN_F64, KILN_SHAPE(n[0], n[1]), x),
                                       o.channels_last ? KILN_SHAPE(n[0], n[1], 1) : KILN_SHAPE(1, n[0], n[1]));
        kiln_tensor *got = kiln_interpolate(in, KILN_SHAPE(m[0], m[1]), &o);
        expect(__LINE__, kiln_reshape(got, KILN_SHAPE(m[0], m[1])), KILN_F64, KILN_SHAPE(m[0], m[1]), 1e-12, y, (size_t)(m[0] * m[1]));
    }
}

/* Where one size divides the other the nearest are a view: nothing is gathered, and what flows back is a sum of what lies side by side. */
Test(resize, nearest_views)
{
    begin_mode(0);
    kiln_tensor *p = kiln_param(kiln_ones(KILN_F32, KILN_SHAPE(2, 3, 8, 6))), *g = kiln_ones(KILN_F32, KILN_SHAPE(2, 3, 16, 3)), *d;
    kiln_tensor *both[2] = {p, g};
    cr_assert_eq(kiln_eval_many(both, 2), KILN_OK);
    kiln_stats before = stats_now();
    kiln_tensor *got = kiln_interpolate(p, KILN_SHAPE(16, 3), &(kiln_interpolate_options){.scale = {2}});
    cr_assert_eq(kiln_vjp(1, &got, &g, 1, &p, 0, &d), KILN_OK);
    both[0] = got;
    both[1] = d;
    cr_assert_eq(kiln_eval_many(both, 2), KILN_OK);
    kiln_stats after = stats_now();
    cr_expect_eq(after.kernels - before.kernels, 2, "%d kernels", (int)(after.kernels - before.kernels));
    cr_expect_eq(after.bytes_moved - before.bytes_moved, 4 * 4 * (2 * 3 * 48), "%d bytes", (int)(after.bytes_moved - before.bytes_moved));
    end_mode();
}

/* Numbers from the documentation of torch.nn.Upsample and of ONNX's Resize. */
API_TEST(resize, interpolation)
{
    kiln_tensor *two = F32(KILN_SHAPE(1, 1, 2, 2), 1, 2, 3, 4);
    kiln_interpolate_options linear = {.mode = KILN_LINEAR}, aligned = {.mode = KILN_LINEAR, .align_corners = true};
    EXPECT(kiln_interpolate(two, KILN_SHAPE(4, 4), NULL), KILN_F32, KILN_SHAPE(1, 1, 4, 4), 0, 1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4,
           4);
    EXPECT(kiln_interpolate(two, KILN_SHAPE(4, 4), &linear), KILN_F32, KILN_SHAPE(1, 1, 4, 4), 0, 1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5,
           2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4);
    EXPECT(kiln_interpolate(two, KILN_SHAPE(4, 4), &aligned), KILN_F32, KILN_SHAPE(1, 1, 4, 4), 1e-6, 1, 4.0 / 3, 5.0 / 3, 2, 5.0 / 3, 2,
           7.0 / 3, 8.0 / 3, 7.0 / 3, 8.0 / 3, 3, 10.0 / 3, 3, 10.0 / 3, 11.0 / 3, 4);
    EXPECT(kiln_interpolate(two, KILN_SHAPE(1, 1), &aligned), KILN_F32, KILN_SHAPE(1, 1, 1, 1), 0, 1);
    kiln_tensor *wide = F32(KILN_SHAPE(1, 1, 2, 4), 1, 2, 3, 4, 5, 6, 7, 8);
    EXPECT(kiln_interpolate(wide, KILN_SHAPE(1, 2), &(kiln_interpolate_options){.mode = KILN_LINEAR, .scale = {0.6, 0.6}}), KILN_F32,
           KILN_SHAPE(1, 1, 1, 2), 1e-6, 2.6666665, 4.3333331);
    EXPECT(kiln_interpolate(wide, KILN_SHAPE(1, 2), &(kiln_interpolate_options){.scale = {0.6, 0.6}}), KILN_F32, KILN_SHAPE(1, 1, 1, 2), 0,
           1, 2);
    kiln_tensor *image = kiln_reshape(kiln_arange(KILN_F32, 1, 17, 1), KILN_SHAPE(1, 1, 4, 4));
    EXPECT(kiln_interpolate(image, KILN_SHAPE(3, 3), &(kiln_interpolate_options){.mode = KILN_CUBIC, .scale = {0.8, 0.8}}), KILN_F32,
           KILN_SHAPE(1, 1, 3, 3), 1e-6, 1.47119141, 2.78125, 4.08251953, 6.71142578, 8.02148438, 9.32275391, 11.91650391, 13.2265625,
           14.52783203);
    kiln_tensor *large = kiln_interpolate(image, KILN_SHAPE(8, 8), &(kiln_interpolate_options){.mode = KILN_CUBIC});
    EXPECT(kiln_select(large, 2, 0), KILN_F32, KILN_SHAPE(1, 1, 8), 1e-6, 0.47265625, 0.76953125, 1.24609375, 1.875, 2.28125, 2.91015625,
           3.38671875, 3.68359375);
    /* a scale counts where a size stays, too, as in ONNX (linear axes PyTorch copies then) */
    kiln_tensor *line = F32(KILN_SHAPE(1, 4), 1, 2, 3, 4);
    EXPECT(kiln_interpolate(line, KILN_SHAPE(4), &(kiln_interpolate_options){.scale = {1.2}}), KILN_F32, KILN_SHAPE(1, 4), 0, 1, 1, 2, 3);
    EXPECT(kiln_interpolate(line, KILN_SHAPE(4), &(kiln_interpolate_options){.mode = KILN_LINEAR, .scale = {1.25}}), KILN_F32,
           KILN_SHAPE(1, 4), 1e-6, 1, 1.7, 2.5, 3.3);
    /* any dtype moves; ints become floats where they are weighted */
    EXPECT(kiln_interpolate(BOOL(KILN_SHAPE(1, 2), 1, 0), KILN_SHAPE(4), &(kiln_interpolate_options){.mode = KILN_NEAREST_CENTER}),
           KILN_BOOL, KILN_SHAPE(1, 4), 0, 1, 1, 0, 0);
    EXPECT(kiln_interpolate(I32(KILN_SHAPE(1, 2), 0, 4), KILN_SHAPE(4), &linear), KILN_F32, KILN_SHAPE(1, 4), 0, 0, 1, 3, 4);
    EXPECT(kiln_interpolate(kiln_cast(two, KILN_F16), KILN_SHAPE(3, 1), &aligned), KILN_F16, KILN_SHAPE(1, 1, 3, 1), 0, 1, 2, 3);
    EXPECT(kiln_interpolate(kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 1, 2, 2)), KILN_SHAPE(1, 2, 3), &linear), KILN_F32,
           KILN_SHAPE(1, 1, 1, 2, 3), 0, 1, 1, 1, 1, 1, 1);
    EXPECT_EMPTY(kiln_interpolate(kiln_ones(KILN_F32, KILN_SHAPE(0, 1, 2)), KILN_SHAPE(3), &linear), KILN_F32, KILN_SHAPE(0, 1, 3));
    kiln_tensor *p = kiln_param(F64(KILN_SHAPE(1, 2), 5, 7)), *g;
    kiln_tensor *loss = kiln_sum(kiln_mul(kiln_interpolate(p, KILN_SHAPE(4), &linear), F64(KILN_SHAPE(4), 1, 2, 4, 8)));
    cr_assert_eq(kiln_grad(loss, &p, 1, &g), KILN_OK, "%s", kiln_error_message());
    EXPECT(g, KILN_F64, KILN_SHAPE(1, 2), 1e-14, 3.5, 11.5);
}

API_TEST(resize, interpolation_refuses)
{
    kiln_tensor *two = F32(KILN_SHAPE(1, 1, 2, 2), 1, 2, 3, 4);
    EXPECT_ERROR(kiln_interpolate(two, KILN_SHAPE(0, 1), NULL), KILN_BAD_SHAPE,
                 "spatial axis 0, from 2 elements to 0: x is f32[1,1,2,2] (test_resize.c:");
    EXPECT_ERROR(kiln_interpolate(two, KILN_SHAPE(1), NULL), KILN_BAD_SHAPE, "1 spatial axes need [n, channels, ...] of rank 3");
    EXPECT_ERROR(kiln_interpolate(two, KILN_SHAPE(4, 4), &(kiln_interpolate_options){.align_corners = true}), KILN_INVALID,
                 "for linear and cubic");
    EXPECT_ERROR(kiln_interpolate(two, KILN_SHAPE(4, 4), &(kiln_interpolate_options){.mode = (kiln_interpolation)7}), KILN_INVALID,
                 "mode 7");
    EXPECT_ERROR(kiln_interpolate(two, KILN_SHAPE(4, 4), &(kiln_interpolate_options){.scale = {0, -2}}), KILN_INVALID,
                 "scale -2 of spatial axis 1");
    EXPECT_ERROR(
        kiln_interpolate(two, KILN_SHAPE(4, 4), &(kiln_interpolate_options){.mode = KILN_CUBIC, .align_corners = true, .scale = {2}}),
        KILN_INVALID, "scale 2 of spatial axis 0 comes with `align_corners`");
    EXPECT_ERROR(kiln_interpolate(two, KILN_SHAPE(4, 4), &(kiln_interpolate_options){.reserved = {1}}), KILN_INVALID, "reserved[0]");
    EXPECT_ERROR(kiln_interpolate(two, KILN_SHAPE(INT64_C(1) << 61, 1), NULL), KILN_OVERFLOW, "spatial axis 0, from 2 elements");
}

/* One program for all sizes, from and to. */
Test(resize, sizes_change)
{
    begin_mode(0);
    kiln_stats before;
    for (int n = 20; n < 50; n++) {
        kiln_scope *scope = kiln_scope_begin();
        float data[50];
        for (int i = 0; i < n; i++)
            data[i] = (float)i;
        kiln_tensor *line = kiln_from(KILN_F32, KILN_SHAPE(1, n), data);
        kiln_tensor *made =
            kiln_interpolate(line, KILN_SHAPE(2 * n + 1), &(kiln_interpolate_options){.mode = KILN_LINEAR, .align_corners = true});
        kiln_tensor *pooled = kiln_adaptive_avg_pool(line, KILN_SHAPE(1), false);
        double got;
        cr_assert(kiln_item(kiln_add(kiln_mean(made), kiln_sum(pooled)), &got) == KILN_OK, "%s", kiln_error_message());
        cr_assert(fabs(got - (n - 1)) < 1e-4, "%d: %g", n, got);
        kiln_scope_end(scope);
        if (n == 25)
            kiln_get_stats(&before);
    }
    no_compile_since(&before);
    end_mode();
}

/* ---- fold ---- */

API_TEST(resize, fold)
{
    kiln_tensor *line = kiln_arange(KILN_F64, 1, 8, 1), *g = kiln_sin(kiln_reshape(kiln_arange(KILN_F64, 0, 9, 1), KILN_SHAPE(3, 3)));
    EXPECT(kiln_fold(kiln_unfold(line, 0, 3, 2, 1), 0, 7, 2, 1), KILN_F64, KILN_SHAPE(7), 0, 1, 2, 6, 4, 10, 6, 7);
    EXPECT(kiln_fold(I32(KILN_SHAPE(2, 2), 1, 2, 3, 4), 0, 6, 2, 2), KILN_I32, KILN_SHAPE(6), 0, 1, 0, 5, 0, 4,
           0); /* the last element is in no window */
    kiln_tensor *p = kiln_param(line), *d;
    kiln_tensor *loss = kiln_sum(kiln_mul(kiln_unfold(p, 0, 3, 2, 1), g));
    cr_assert_eq(kiln_grad(loss, &p, 1, &d), KILN_OK);
    EXPECT(kiln_sub(d, kiln_fold(g, 0, 7, 2, 1)), KILN_F64, KILN_SHAPE(7), 1e-15, 0, 0, 0, 0, 0, 0, 0);
    p = kiln_param(g);
    cr_assert_eq(kiln_grad(kiln_sum(kiln_mul(kiln_fold(p, -2, 7, 2, 1), line)), &p, 1, &d), KILN_OK);
    EXPECT(d, KILN_F64, KILN_SHAPE(3, 3), 0, 1, 2, 3, 3, 4, 5, 5, 6, 7);
    /* an axis in the middle; sums of halves in f32 */
    kiln_tensor *mid = kiln_ones(KILN_F16, KILN_SHAPE(2, 3, 2, 2));
    EXPECT(kiln_fold(mid, 1, 4, 1, 1), KILN_F16, KILN_SHAPE(2, 4, 2), 0, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1);
    EXPECT(kiln_fold(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), 0, 2, 1, 1), KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    EXPECT_ERROR(kiln_fold(g, 0, 8, 3, 1), KILN_BAD_SHAPE,
                 "8 elements have 2 windows of 3, not as many as axis 0: x is f64[3,3] (test_resize.c:");
    EXPECT_ERROR(kiln_fold(g, 1, 7, 2, 1), KILN_BAD_SHAPE, "axis 1 is that of elements in a window");
    EXPECT_ERROR(kiln_fold(g, 0, -1, 2, 1), KILN_BAD_SHAPE, "-1 elements");
    EXPECT_ERROR(kiln_fold(g, 0, 7, 0, 1), KILN_INVALID, "stride 0");
}

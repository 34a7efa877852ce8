/* Gradients of programs whose batch changes: they compile no more than the forward pass alone does, and their numbers are the interpreter's. */
#include "api.h"

#include <stdio.h>

enum { WIDTH = 12, CLASSES = 5, PARAMS = 4, STEPS = 14 };

typedef struct Net {
    kiln_tensor *p[PARAMS];
} Net;

static kiln_tensor *numbers(kiln_shape shape, int seed)
{
    int64_t n = 1;
    float data[40 * WIDTH];
    for (int d = 0; d < shape.rank; d++)
        n *= shape.dim[d];
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)((i * 29 + seed * 17) % 41) / 41 - 0.5f;
    return kiln_from(KILN_F32, shape, data);
}

static kiln_tensor *loss_of(const Net *net, int64_t batch)
{
    int64_t index[40];
    for (int64_t i = 0; i < batch; i++)
        index[i] = (i * 7) % CLASSES;
    kiln_tensor *x = numbers(KILN_SHAPE(batch, WIDTH), (int)batch), *labels = kiln_from(KILN_I64, KILN_SHAPE(batch), index);
    kiln_tensor *h = kiln_layer_norm(kiln_gelu(kiln_matmul(x, net->p[0])), net->p[1], net->p[2], 1e-5);
    h = kiln_add(h, kiln_softmax(kiln_flip(h, KILN_AXES(0)), 0));
    return kiln_mean(kiln_cross_entropy(kiln_matmul(h, net->p[3]), labels));
}

static void step(const Net *net, int64_t batch, bool backward, double *loss, double *norms)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *g[PARAMS], *all[PARAMS + 1];
    all[0] = loss_of(net, batch);
    if (backward) {
        cr_assert_eq(kiln_grad(all[0], net->p, PARAMS, g), KILN_OK, "%s", kiln_error_message());
        for (int k = 0; k < PARAMS; k++)
            all[k + 1] = kiln_sum(kiln_square(g[k]));
    }
    cr_assert_eq(kiln_eval_many(all, backward ? PARAMS + 1 : 1), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_item(all[0], loss), KILN_OK);
    for (int k = 0; k < PARAMS && backward; k++)
        cr_assert_eq(kiln_item(all[k + 1], &norms[k]), KILN_OK);
    kiln_scope_end(scope);
}

static int compiles(const Net *net, bool backward)
{
    static const int64_t batches[STEPS] = {4, 8, 3, 32, 5, 6, 7, 9, 31, 17, 2, 1, 40, 13};
    kiln_stats stats;
    double loss, norms[PARAMS], want, want_norms[PARAMS];
    int n = 0;
    for (int k = 0; k < STEPS; k++) {
        set_option("mode", "jit");
        kiln_reset_stats();
        step(net, batches[k], backward, &loss, norms);
        kiln_get_stats(&stats);
        cr_assert_eq(stats.fallbacks, 0);
        n += (int)stats.compiles;
        set_option("mode", "interp");
        step(net, batches[k], backward, &want, want_norms);
        cr_expect_float_eq(loss, want, 1e-5 * (1 + fabs(want)), "batch %d: %g, not %g", (int)batches[k], loss, want);
        for (int p = 0; p < PARAMS && backward; p++)
            cr_expect_float_eq(norms[p], want_norms[p], 1e-4 * (1e-3 + fabs(want_norms[p])), "batch %d, parameter %d: %g, not %g",
                               (int)batches[k], p, norms[p], want_norms[p]);
    }
    return n;
}

Test(gradient_dynamic, compiles_no_more_than_the_forward_pass)
{
    set_option("cache", "off");
    static const char *const hows[] = {"auto", "memory", "off"};
    Net net = {{kiln_param(numbers(KILN_SHAPE(WIDTH, WIDTH), 1)), kiln_param(numbers(KILN_SHAPE(WIDTH), 2)),
                kiln_param(numbers(KILN_SHAPE(WIDTH), 3)), kiln_param(numbers(KILN_SHAPE(WIDTH, CLASSES), 4))}};
    for (int k = 0; k < 3; k++) {
        set_option("remat", hows[k]);
        int forward = compiles(&net, false), both = compiles(&net, true);
        /* and one for a batch of one, whose product with transposed weights is added up in another order */
        cr_expect_leq(both, forward + 1, "remat=%s: %d compiles with gradients, %d without", hows[k], both, forward);
        cr_expect_leq(forward, 4, "%d compiles", forward);
    }
}

/* What gradients read and write, in bytes that programs say they move (kiln_stats), and the memory that they need. */
#include "api.h"

static kiln_tensor *made(kiln_shape shape)
{
    kiln_tensor *x = kiln_uniform(KILN_F32, shape, -1, 1);
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    return x;
}

static void compute(int n, kiln_tensor *const *what, kiln_stats *stats)
{
    kiln_reset_stats();
    cr_assert_eq(kiln_eval_many(what, n), KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(stats);
    cr_assert_eq(stats->fallbacks, 0);
}

static kiln_tensor *cos_cos(kiln_tensor *x) { return kiln_cos(kiln_cos(x)); }
static kiln_tensor *softmax(kiln_tensor *x) { return kiln_softmax(x, 1); }
static kiln_tensor *dropped(kiln_tensor *x) /* with probability 1/2: the gradient draws the mask anew */
{
    return kiln_where(kiln_lt(kiln_uniform(KILN_F32, kiln_shape_of(x), 0, 1), kiln_scalar(0.5)), kiln_mul(x, kiln_scalar(2)),
                      kiln_scalar(0));
}

enum { ROWS = 128, COLUMNS = 256, BUFFER = ROWS * COLUMNS * 4 };

typedef struct Closed {
    const char *name;
    kiln_tensor *(*f)(kiln_tensor *x);
    int backward; /* buffers that the gradient moves where f(x) was computed before */
    bool apart;   /* no joint case: fusion stores the mask between two kernels, a byte for an element */
} Closed;

/* x and g are read, y and dx are written, by one kernel; and nothing else. */
Test(gradient_traffic, value_and_gradient_together)
{
    static const Closed cases[] = {{"cos(cos(x))", cos_cos, 3, false}, {"softmax", softmax, 3, false}, {"dropout", dropped, 2, true}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int computed = cases[k].apart; computed < 3;
             computed++) { /* never; before the gradient, in a recording; after it was recorded */
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = kiln_param(made(KILN_SHAPE(ROWS, COLUMNS))), *g = made(KILN_SHAPE(ROWS, COLUMNS)), *dx;
            kiln_recording *recording = computed == 1 ? kiln_recording_begin() : NULL;
            kiln_tensor *y = cases[k].f(x);
            kiln_stats stats;
            set_option("joint", "0");
            if (computed == 1)
                compute(1, &y, &stats);
            cr_assert_eq(kiln_vjp(1, &y, &g, 1, &x, 0, &dx), KILN_OK, "%s", kiln_error_message());
            if (computed == 2)
                compute(1, &y, &stats);
            if (computed) {
                cr_expect_eq(stats.kernels, 1);
                cr_expect_eq(stats.bytes_moved, 2 * BUFFER, "%s: y moves %lld", cases[k].name, (long long)stats.bytes_moved / BUFFER);
            }
            kiln_tensor *both[] = {y, dx};
            int buffers = computed ? cases[k].backward : 4;
            compute(2, both, &stats);
            cr_expect_eq(stats.kernels, 1, "%s: %d kernels", cases[k].name, (int)stats.kernels);
            cr_expect_eq(stats.bytes_moved, buffers * BUFFER, "%s: %lld buffers", cases[k].name, (long long)stats.bytes_moved / BUFFER);
            kiln_recording_end(recording);
            kiln_scope_end(scope);
        }
}

/* One product makes the gradient of a weight that a batch shares: x and g are read once, dw is written. */
Test(gradient_traffic, one_product_for_a_shared_weight)
{
    kiln_tensor *x = made(KILN_SHAPE(8, 32, 64)), *w = kiln_param(made(KILN_SHAPE(64, 48))), *g = made(KILN_SHAPE(8, 32, 48)), *dw;
    kiln_tensor *y = kiln_matmul(x, w);
    kiln_stats stats;
    cr_assert_eq(kiln_vjp(1, &y, &g, 1, &w, 0, &dw), KILN_OK);
    compute(1, &dw, &stats);
    cr_expect_eq(stats.kernels, 1);
    cr_expect_eq(stats.bytes_moved, 4 * (8 * 32 * 64 + 8 * 32 * 48 + 64 * 48));
}

/* What flows to the images of a convolution is one, too: g is padded and read by a product. What flows to windows, nine times as much, is
 * not stored. */
Test(gradient_traffic, nothing_larger_than_images)
{
    enum { GROUPS = 16, SIZE = 12, PADDED = SIZE + 4 };
    for (int depthwise = 0; depthwise < 2; depthwise++) {
        kiln_tensor *x = kiln_param(made(KILN_SHAPE(2, GROUPS, SIZE, SIZE))), *dx;
        kiln_tensor *w = made(KILN_SHAPE(GROUPS, depthwise ? 1 : GROUPS, 3, 3)), *g = made(KILN_SHAPE(2, GROUPS, SIZE, SIZE));
        kiln_tensor *y = kiln_conv(x, w, &(kiln_conv_options){.same = true, .groups = depthwise ? GROUPS : 1});
        kiln_stats stats;
        cr_assert_eq(kiln_vjp(1, &y, &g, 1, &x, 0, &dx), KILN_OK, "%s", kiln_error_message());
        compute(1, &dx, &stats);
        int image = 2 * GROUPS * SIZE * SIZE, padded = depthwise ? 0 : 2 * GROUPS * PADDED * PADDED;
        cr_expect_eq(stats.kernels, depthwise ? 1 : 2);
        cr_expect_leq(stats.bytes_moved, 4 * (2 * image + 2 * padded + (int)kiln_numel(w)), "depthwise %d: %lld bytes", depthwise,
                      (long long)stats.bytes_moved);
    }
}

/* The weights of a depthwise convolution get sums of the rows of places first, whatever lies between windows, then those of a row's places. */
Test(gradient_traffic, weights_of_windows_by_rows)
{
    enum { GROUPS = 4, SIZE = 24 };
    for (int stride = 1; stride < 4; stride++) {
        const int places = SIZE / stride, image = 2 * GROUPS * SIZE * SIZE, sums = GROUPS * 9 * places;
        kiln_tensor *x = kiln_param(made(KILN_SHAPE(2, GROUPS, SIZE, SIZE))), *w = kiln_param(made(KILN_SHAPE(GROUPS, 1, 3, 3)));
        kiln_tensor *g = made(KILN_SHAPE(2, GROUPS, places, places)), *both[2] = {x, w}, *d[2];
        kiln_tensor *y = kiln_conv(x, w, &(kiln_conv_options){.stride = {stride, stride}, .padding = {{1, 1}, {1, 1}}, .groups = GROUPS});
        kiln_stats stats;
        cr_assert_eq(kiln_vjp(1, &y, &g, 2, both, 0, d), KILN_OK, "%s", kiln_error_message());
        compute(1, &d[1], &stats);
        cr_expect_eq(stats.kernels, 2, "stride %d: %d kernels", stride, (int)stats.kernels);
        cr_expect_eq(stats.bytes_moved, 4 * (image + 2 * GROUPS * places * places + 2 * sums + GROUPS * 9), "stride %d: %lld bytes", stride,
                     (long long)stats.bytes_moved);
    }
}

/* --- a recording --------------------------------------------------------------------------------------------- */

static int products;

static void count_products(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level;
    products += strcmp(topic, "fusion") == 0 && strncmp(line, "kernel ", 7) == 0 && strstr(line, "matmul") && strstr(line, " makes ");
}

static void two_layers(bool recorded, float grad[64 * 48], int *forward, int *backward)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_seed(3);
    kiln_tensor *x = made(KILN_SHAPE(32, 64)), *w = kiln_param(made(KILN_SHAPE(64, 48))), *b = kiln_param(made(KILN_SHAPE(48)));
    kiln_tensor *v = kiln_param(made(KILN_SHAPE(48, 16))), *p[] = {w, b, v}, *g[3];
    kiln_set_log_sink(count_products, NULL);
    set_option("cache", "off");
    set_option("log", "fusion");
    kiln_recording *recording = recorded ? kiln_recording_begin() : NULL;
    kiln_tensor *h = kiln_add(kiln_matmul(x, w), b);
    kiln_tensor *loss = kiln_sum(kiln_square(kiln_matmul(kiln_mul(kiln_tanh(h), h), v)));
    products = 0;
    if (recorded)
        cr_assert_eq(kiln_eval(loss), KILN_OK);
    *forward = products;
    cr_assert_eq(kiln_grad(loss, p, 3, g), KILN_OK, "%s", kiln_error_message());
    products = 0;
    cr_assert_eq(kiln_eval_many(g, 3), KILN_OK, "%s", kiln_error_message());
    *backward = products;
    cr_assert_eq(kiln_read(g[0], KILN_F32, grad, sizeof(float[64 * 48])), KILN_OK);
    kiln_recording_end(recording);
    set_option("log", "");
    kiln_scope_end(scope);
}

/* The forward pass was computed: its two products are not computed again by the gradient, which has three of its own. */
Test(gradient_traffic, a_recording_computes_each_product_once)
{
    static float together[64 * 48], later[64 * 48];
    int forward, backward;
    set_option("math", "strict");
    two_layers(false, together, &forward, &backward);
    cr_expect_eq(backward, 5, "%d products", backward);
    two_layers(true, later, &forward, &backward);
    cr_expect_eq(forward, 2, "%d products", forward);
    cr_expect_eq(backward, 3, "%d products", backward);
    cr_expect(memcmp(together, later, sizeof together) == 0);
}

/* --- dropout ------------------------------------------------------------------------------------------------- */

static int draws, masks;

static void count_draws(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level;
    bool kernel = strcmp(topic, "fusion") == 0 && strncmp(line, "kernel ", 7) == 0;
    draws += kernel && strstr(line, "threefry");
    masks += kernel && (strstr(line, "threefry makes ") || strstr(line, "ge makes ") || strstr(line, "lt makes ")); /* what it ends with */
}

/* In a step of training the mask is drawn by the kernel that drops and once more by the one that its gradient is in: nothing is stored. */
Test(gradient_traffic, a_dropout_mask_is_not_stored)
{
    kiln_tensor *x = made(KILN_SHAPE(256, 512)), *w = kiln_param(made(KILN_SHAPE(512, 512))), *v = kiln_param(made(KILN_SHAPE(512, 64)));
    kiln_tensor *p[] = {w, v}, *g[2], *h = kiln_dropout(kiln_relu(kiln_matmul(x, w)), 0.5),
                *loss = kiln_mean(kiln_square(kiln_matmul(h, v)));
    cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK, "%s", kiln_error_message());
    kiln_set_log_sink(count_draws, NULL);
    set_option("cache", "off");
    set_option("log", "fusion");
    kiln_tensor *all[] = {loss, g[0], g[1]};
    cr_assert_eq(kiln_eval_many(all, 3), KILN_OK, "%s", kiln_error_message());
    set_option("log", "");
    cr_expect_eq(draws, 2, "%d kernels draw", draws);
    cr_expect_eq(masks, 0, "%d masks are stored", masks);
}

/* --- a graph of more nodes than one program takes ------------------------------------------------------------ */

/* The gradients of two layers between which a matrix is transposed `steps` times, an even number; how many products were computed. */
static int long_way(int steps, float grad[2][64 * 64])
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(64, 64), 0.5), *w = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(64, 64), 0.25));
    kiln_tensor *v = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(64, 64), 0.125)), *p[] = {w, v}, *g[2], *made[] = {x, w, v};
    cr_assert_eq(kiln_eval_many(made, 3), KILN_OK);
    kiln_set_log_sink(count_products, NULL);
    set_option("cache", "off");
    set_option("log", "fusion");
    kiln_tensor *h = kiln_matmul(x, w);
    for (int i = 0; i < steps; i++)
        h = kiln_transpose(h);
    kiln_tensor *loss = kiln_sum(kiln_square(kiln_matmul(h, v)));
    cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK, "%s", kiln_error_message());
    products = 0;
    cr_assert_eq(kiln_eval_many(g, 2), KILN_OK, "%s", kiln_error_message());
    int n = products;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(kiln_read(g[i], KILN_F32, grad[i], sizeof grad[i]), KILN_OK);
    set_option("log", "");
    kiln_scope_end(scope);
    return n;
}

/* What the second program needs of the first one's products it reads. */
Test(gradient_traffic, a_graph_that_is_cut_computes_each_product_once)
{
    static float grad[2][64 * 64];
    for (int steps = 2; steps <= 6002; steps += 6000) {
        int n = long_way(steps, grad);
        cr_expect_eq(n, 5, "%d products with %d steps between", n, steps);
        const double h = 64 * 0.5 * 0.25, r = 2 * 64 * h * 0.125, dw = 64 * 0.5 * 64 * r * 0.125, dv = 64 * h * r;
        cr_expect(fabs(grad[0][5] - dw) < 1e-4 * dw, "%g, not %g", (double)grad[0][5], dw);
        cr_expect(fabs(grad[1][5] - dv) < 1e-4 * dv, "%g, not %g", (double)grad[1][5], dv);
    }
}

/* (p + q) * (relu(p) + p + q), transposed in between; the part before a cut has p for an output that no other one than p + q holds. */
static void sum_of_products(int steps, float out[64])
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *a = kiln_reshape(kiln_arange(KILN_F32, -32, 32, 1), KILN_SHAPE(8, 8)),
                *b = kiln_add(kiln_transpose(a), kiln_full(KILN_F32, KILN_SHAPE(8, 8), 3));
    kiln_tensor *made[] = {a, b};
    cr_assert_eq(kiln_eval_many(made, 2), KILN_OK);
    kiln_tensor *p = kiln_matmul(a, b), *w = kiln_add(p, kiln_matmul(b, a)), *t = kiln_add(kiln_relu(p), w);
    for (int i = 0; i < steps; i++)
        t = kiln_transpose(t);
    cr_assert_eq(kiln_read(kiln_mul(t, w), KILN_F32, out, sizeof(float) * 64), KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
}

Test(gradient_traffic, what_is_computed_before_a_cut_is_right)
{
    float few[64], many[64];
    sum_of_products(2, few);
    sum_of_products(9000, many);
    cr_expect(memcmp(few, many, sizeof few) == 0 && few[1] != 0, "%g, %g", (double)few[1], (double)many[1]);
}

/* Gradients of two products with so many pairs of ops between them: a part of what follows a product is cut off it, more than once. */
static void many_between(const char *mode, float grad[2][64 * 64])
{
    kiln_scope *scope = kiln_scope_begin();
    set_option("mode", mode);
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(64, 64), 0.5), *w = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(64, 64), 0.25));
    kiln_tensor *v = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(64, 64), 0.125)), *p[] = {w, v}, *g[2];
    kiln_tensor *h = kiln_matmul(x, w);
    for (int i = 0; i < 200; i++)
        h = kiln_relu(kiln_add(h, 0.001));
    cr_assert_eq(kiln_grad(kiln_sum(kiln_square(kiln_matmul(h, v))), p, 2, g), KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < 2; i++)
        cr_assert_eq(kiln_read(g[i], KILN_F32, grad[i], sizeof grad[i]), KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
}

Test(gradient_traffic, many_ops_between_two_products)
{
    static float compiled[2][64 * 64], interpreted[2][64 * 64];
    many_between("jit", compiled);
    many_between("interp", interpreted);
    cr_expect(memcmp(compiled, interpreted, sizeof compiled) == 0 && compiled[0][5] > 0, "%g, %g", (double)compiled[0][5],
              (double)interpreted[0][5]);
}

/* --- a deep network under each KILN_REMAT ------------------------------------------------------------------- */

enum { DEPTH = 6, BATCH = 256, WIDTH = 64, BATCHES = BATCH * WIDTH * 4, PARAMS = 3 * DEPTH };

typedef struct Step {
    kiln_stats stats;
    double loss;
    float of[PARAMS][WIDTH * WIDTH];
} Step;

/* One step of descent: layers of a product, GELU and a layer norm. */
static void train(const char *remat, const char *math, Step *out)
{
    set_option("remat", remat);
    set_option("math", math);
    kiln_scope *scope = kiln_scope_begin();
    kiln_seed(7);
    kiln_tensor *x = made(KILN_SHAPE(BATCH, WIDTH)), *p[PARAMS], *g[PARAMS], *all[PARAMS + 1];
    for (int k = 0; k < PARAMS; k++)
        p[k] = kiln_param(made(k % 3 ? KILN_SHAPE(WIDTH) : KILN_SHAPE(WIDTH, WIDTH)));
    kiln_scope *inner = kiln_scope_begin();
    for (int k = 0; k < DEPTH; k++)
        x = kiln_layer_norm(kiln_gelu(kiln_matmul(x, p[3 * k])), p[3 * k + 1], p[3 * k + 2], 1e-5);
    kiln_tensor *loss = kiln_mean(kiln_square(x));
    cr_assert_eq(kiln_grad(loss, p, PARAMS, g), KILN_OK, "%s", kiln_error_message());
    for (int k = 0; k < PARAMS; k++) {
        cr_assert_eq(kiln_assign(p[k], kiln_sub(p[k], kiln_mul(g[k], kiln_scalar(0.125)))), KILN_OK);
        all[k] = p[k];
    }
    all[PARAMS] = loss;
    compute(PARAMS + 1, all, &out->stats);
    cr_assert_eq(kiln_item(loss, &out->loss), KILN_OK);
    kiln_scope_end(inner);
    for (int k = 0; k < PARAMS; k++)
        cr_assert_eq(kiln_read(p[k], KILN_F32, out->of[k], (size_t)(k % 3 ? 1 : WIDTH) * WIDTH * sizeof(float)), KILN_OK, "%s",
                     kiln_error_message());
    kiln_scope_end(scope);
}

Test(gradient_traffic, remat_saves_memory_and_traffic)
{
    static Step off, automatic, memory;
    train("off", "fast", &off);
    train("auto", "fast", &automatic);
    train("memory", "fast", &memory);
    cr_expect_lt(automatic.stats.bytes_moved, off.stats.bytes_moved);
    cr_expect_leq(automatic.stats.kernels, off.stats.kernels + 2);
    cr_expect_lt(automatic.stats.peak_bytes, off.stats.peak_bytes - DEPTH * BATCHES, "peak %lld, %lld",
                 (long long)automatic.stats.peak_bytes, (long long)off.stats.peak_bytes);
    cr_expect_lt(memory.stats.peak_bytes, automatic.stats.peak_bytes - BATCHES, "peak %lld, %lld", (long long)memory.stats.peak_bytes,
                 (long long)automatic.stats.peak_bytes);
}

/* --- the most memory that steps of a classifier and of a transformer block hold ----------------------------------- */

enum { EXAMPLES = 128, IN = 64, HIDDEN = 256, CLASSES = 10, SEQUENCES = 4, TOKENS = 32, MODEL = 64, HEADS = 4 };

static kiln_tensor *classifier(kiln_tensor **p)
{
    kiln_tensor *labels = kiln_remainder(kiln_arange(KILN_I64, 0, EXAMPLES, 1), CLASSES), *x = made(KILN_SHAPE(EXAMPLES, IN));
    x = kiln_relu(kiln_linear(x, p[0], p[1]));
    x = kiln_relu(kiln_linear(x, p[2], p[3]));
    return kiln_mean(kiln_cross_entropy(kiln_linear(x, p[4], p[5]), labels));
}

static kiln_tensor *heads_of(kiln_tensor *x)
{
    return kiln_permute(kiln_reshape(x, KILN_SHAPE(SEQUENCES, TOKENS, HEADS, MODEL / HEADS)), KILN_AXES(0, 2, 1, 3));
}

static kiln_tensor *transformer_block(kiln_tensor **p)
{
    kiln_tensor *x = made(KILN_SHAPE(SEQUENCES, TOKENS, MODEL)), *h = kiln_layer_norm(x, p[0], p[1], 1e-5), *of[3];
    for (int i = 0; i < 3; i++)
        of[i] = heads_of(kiln_matmul(h, p[2 + i]));
    h = kiln_attention(of[0], of[1], of[2], &(kiln_attention_options){.causal = true});
    x = kiln_add(x, kiln_matmul(kiln_reshape(kiln_permute(h, KILN_AXES(0, 2, 1, 3)), KILN_SHAPE(SEQUENCES, TOKENS, MODEL)), p[5]));
    h = kiln_gelu(kiln_linear(kiln_layer_norm(x, p[6], p[7], 1e-5), p[8], p[9]));
    return kiln_mean(kiln_square(kiln_add(x, kiln_linear(h, p[10], p[11]))));
}

static int64_t peak_of(kiln_tensor *loss_of(kiln_tensor **), const kiln_shape *shape, int n, const char *remat)
{
    kiln_stats stats;
    kiln_tensor *p[PARAMS], *all[PARAMS + 1];
    set_option("remat", remat);
    kiln_scope *scope = kiln_scope_begin();
    kiln_seed(7);
    for (int k = 0; k < n; k++)
        p[k] = kiln_param(made(shape[k]));
    all[n] = loss_of(p);
    cr_assert_eq(kiln_grad(all[n], p, n, all), KILN_OK, "%s", kiln_error_message());
    compute(n + 1, all, &stats);
    kiln_scope_end(scope);
    return stats.peak_bytes;
}

Test(gradient_traffic, peaks_of_an_mlp_and_of_a_block)
{
    const kiln_shape norm = KILN_SHAPE(MODEL), square = KILN_SHAPE(MODEL, MODEL);
    const kiln_shape of_mlp[] = {KILN_SHAPE(HIDDEN, IN), KILN_SHAPE(HIDDEN),          KILN_SHAPE(HIDDEN, HIDDEN),
                                 KILN_SHAPE(HIDDEN),     KILN_SHAPE(CLASSES, HIDDEN), KILN_SHAPE(CLASSES)};
    const kiln_shape up = KILN_SHAPE(4 * MODEL, MODEL), wide = KILN_SHAPE(4 * MODEL), down = KILN_SHAPE(MODEL, 4 * MODEL);
    const kiln_shape of_block[] = {norm, norm, square, square, square, square, norm, norm, up, wide, down, norm};
    int64_t mlp[3], block[3];
    static const char *const remat[] = {"off", "auto", "memory"};
    for (int i = 0; i < 3; i++) {
        mlp[i] = peak_of(classifier, of_mlp, 6, remat[i]);
        block[i] = peak_of(transformer_block, of_block, 12, remat[i]);
    }
    cr_expect_leq(mlp[1], mlp[0], "%lld, %lld", (long long)mlp[1], (long long)mlp[0]);
    cr_expect_lt(block[1], block[0], "%lld, %lld", (long long)block[1], (long long)block[0]);
    cr_expect_lt(block[2], block[0], "%lld, %lld", (long long)block[2], (long long)block[0]);
    /* parameters, their gradients and half again: nothing of the size of all activations is held */
    cr_expect_lt(mlp[1], 1200000, "%lld", (long long)mlp[1]);
    cr_expect_lt(block[1], 1150000, "%lld", (long long)block[1]);
}

/* In strict mode what is computed again has the same bits. */
Test(gradient_traffic, remat_changes_no_bit_in_strict_mode)
{
    static Step off, other;
    train("off", "strict", &off);
    static const char *const hows[] = {"auto", "memory"};
    for (int k = 0; k < 2; k++) {
        memset(&other, 0, sizeof other);
        train(hows[k], "strict", &other);
        cr_expect_eq(other.loss, off.loss);
        cr_expect(memcmp(other.of, off.of, sizeof off.of) == 0, "remat=%s", hows[k]);
    }
}

/* The device meta: dtypes, shapes and errors as anywhere else, and no values, no memory, no programs. */
#include "api.h"
#include "tests/support/random_graph.h"

static void on(const char *device) { cr_assert(kiln_set_device(device) == KILN_OK, "%s", kiln_error_message()); }

static kiln_tensor *meta(kiln_dtype dtype, kiln_shape shape)
{
    kiln_tensor *x = kiln_from(dtype, shape, NULL);
    cr_assert(x, "%s", kiln_error_message());
    return x;
}

static void is(kiln_tensor *x, kiln_dtype dtype, kiln_shape shape)
{
    char name[16];
    cr_assert(x, "%s", kiln_error_message());
    cr_assert_eq(kiln_dtype_of(x), dtype);
    cr_assert(shape_equal(kiln_shape_of(x), shape), "%s", shape_text(dtype, kiln_shape_of(x), (char[96]){0}));
    OK(kiln_device_of(x, name, sizeof name));
    cr_assert_str_eq(name, "meta");
}

/* Nothing was computed, compiled or allocated since. */
static void nothing_since(const kiln_stats *before)
{
    kiln_stats after = stats_now();
    cr_assert(after.evals == before->evals && after.compiles == before->compiles);
    cr_assert(after.live_bytes == before->live_bytes, "%lld more bytes", (long long)(after.live_bytes - before->live_bytes));
}

/* Modes say when things are computed; here nothing is. */
#define META_TEST(name)                        \
    static void meta_##name(void);             \
    Test(meta, name)                           \
    {                                          \
        for (int mode = 0; mode < 3; mode++) { \
            kiln_scope *scope;                 \
            begin_mode(mode);                  \
            scope = kiln_scope_begin();        \
            on("meta");                        \
            meta_##name();                     \
            on(NULL);                          \
            kiln_scope_end(scope);             \
        }                                      \
        set_option("mode", "jit");             \
    }                                          \
    static void meta_##name(void)

META_TEST(step_of_training_of_a_large_model)
{
    enum { LAYERS = 48 };
    const int64_t width = 1 << 20, batch = 1 << 12; /* 4 TiB for each of the matrices */
    kiln_stats before;
    kiln_tensor *w[LAYERS], *grad[LAYERS];
    kiln_get_stats(&before);
    for (int k = 0; k < LAYERS; k++)
        w[k] = kiln_param(meta(KILN_F32, KILN_SHAPE(width, width)));
    kiln_tensor *x = meta(KILN_F32, KILN_SHAPE(batch, width)), *h = x;
    for (int k = 0; k < LAYERS; k++)
        h = kiln_dropout(kiln_gelu(kiln_matmul(h, w[k])), 0.1);
    kiln_tensor *loss = kiln_mean(kiln_square(kiln_softmax(h, -1)));
    OK(kiln_grad(loss, w, LAYERS, grad));
    is(h, KILN_F32, KILN_SHAPE(batch, width));
    is(loss, KILN_F32, KILN_SHAPE());
    for (int k = 0; k < LAYERS; k++) {
        is(grad[k], KILN_F32, KILN_SHAPE(width, width));
        OK(kiln_assign(w[k], kiln_sub(w[k], kiln_mul(grad[k], 1e-3))));
        is(w[k], KILN_F32, KILN_SHAPE(width, width));
    }
    nothing_since(&before);
}

/* What it would take. */
META_TEST(explained)
{
    char text[4096];
    kiln_tensor *x = meta(KILN_F32, KILN_SHAPE(1 << 20, 1 << 10));
    OK(kiln_explain(kiln_softmax(kiln_mul(x, 0.5), -1), text, sizeof text, NULL));
    cr_assert(strstr(text, "would compile 1 launch") && strstr(text, "at most 4294967296 bytes besides the inputs"), "%s", text);
}

#define REFUSED(call)                                                                                                               \
    do {                                                                                                                            \
        kiln_status status_ = (call);                                                                                               \
        cr_assert(status_ == KILN_INVALID && strstr(kiln_error_message(), "the device meta"), "line %d: %d, %s", __LINE__, status_, \
                  kiln_error_message());                                                                                            \
        kiln_clear_error();                                                                                                         \
    } while (0)

static void refuse_all(kiln_tensor *x, kiln_tensor *scalar)
{
    float data[6];
    double value;
    const void *elements;
    REFUSED(kiln_eval(x));
    REFUSED(kiln_eval_async(x));
    REFUSED(kiln_eval_many(&x, 1));
    REFUSED(kiln_eval_many_async(&x, 1));
    REFUSED(kiln_wait(x));
    REFUSED(kiln_read(x, KILN_F32, data, sizeof data));
    REFUSED(kiln_item(scalar, &value));
    REFUSED(kiln_data(x, &elements));
    REFUSED(kiln_print(x));
    REFUSED(kiln_to_dlpack(x, 0, &(struct DLManagedTensorVersioned *){NULL}));
    REFUSED(kiln_save_npy(x, "/dev/null"));
    REFUSED(kiln_save_safetensors("/dev/null", 1, &(kiln_named){"x", x}, 0, NULL));
    cr_assert_null(kiln_to(x, "cpu"));
    REFUSED(kiln_error_status());
}

META_TEST(sync_points_are_refused)
{
    kiln_stats before;
    kiln_get_stats(&before);
    kiln_tensor *x = meta(KILN_F32, KILN_SHAPE(2, 3));
    refuse_all(x, meta(KILN_F32, KILN_SHAPE()));
    refuse_all(kiln_exp(x), kiln_sum(x));
    refuse_all(kiln_uniform(KILN_F32, KILN_SHAPE(2, 3), 0, 1), kiln_scalar(1)); /* would be computed here */
    nothing_since(&before);
}

/* What some recording says on a device. */
static void said(const char *device, kiln_tensor *(*record)(kiln_tensor *x), char *text, size_t size)
{
    float data[6] = {1, 2, 3, 4, 5, 6};
    on(device);
    cr_assert_null(record(kiln_from(KILN_F32, KILN_SHAPE(2, 3), data)));
    snprintf(text, size, "%d %s", (int)kiln_error_status(), kiln_error_message());
    kiln_clear_error();
}

static kiln_tensor *bad_product(kiln_tensor *x) { return kiln_matmul(x, x); }
static kiln_tensor *bad_axis(kiln_tensor *x) { return kiln_sum_axes(x, KILN_AXES(2), false); }
static kiln_tensor *bad_dtype(kiln_tensor *x) { return kiln_bitwise_and(x, 1); }
static kiln_tensor *bad_reshape(kiln_tensor *x) { return kiln_reshape(x, KILN_SHAPE(4, 2)); }
static kiln_tensor *bad_broadcast(kiln_tensor *x) { return kiln_add(x, kiln_zeros(KILN_F32, KILN_SHAPE(2))); }

static void wider(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_concat((kiln_tensor *[]){in[0], in[0]}, 2, 0);
}

static kiln_tensor *always(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(kiln_sum(state[0]), 0);
}

static kiln_tensor *bad_loop(kiln_tensor *x) { return kiln_while(always, wider, 1, &x, 0, &x, NULL) == KILN_OK ? x : NULL; }

META_TEST(errors_are_the_same)
{
    kiln_tensor *(*const bad[])(kiln_tensor *) = {bad_product, bad_axis, bad_dtype, bad_reshape, bad_broadcast, bad_loop};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        char there[512], here[512];
        said("cpu", bad[k], there, sizeof there);
        said("meta", bad[k], here, sizeof here);
        cr_assert(strlen(here) > 10);
        cr_assert_str_eq(here, there);
    }
}

META_TEST(beside_others)
{
    char name[16];
    on("cpu");
    float data[3] = {1, 2, 3};
    kiln_stats before;
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), data), *pending = kiln_exp(kiln_uniform(KILN_F32, KILN_SHAPE(5), 0, 1));
    kiln_get_stats(&before);
    kiln_tensor *there = kiln_to(x, "meta"), *shape = kiln_to(pending, "meta"); /* no sync point */
    is(there, KILN_F32, KILN_SHAPE(3));
    is(shape, KILN_F32, KILN_SHAPE(5));
    is(kiln_mul(there, 2), KILN_F32, KILN_SHAPE(3));
    is(kiln_to(there, "meta"), KILN_F32, KILN_SHAPE(3));
    nothing_since(&before);
    cr_assert_null(kiln_add(x, there));
    cr_assert(kiln_error_status() == KILN_DEVICE && strstr(kiln_error_message(), "meta"), "%s", kiln_error_message());
    kiln_clear_error();
    EXPECT(kiln_add(x, 1), KILN_F32, KILN_SHAPE(3), 0, 2, 3, 4);
    OK(kiln_eval(pending));
    OK(kiln_device_of(pending, name, sizeof name));
    cr_assert_str_eq(name, "cpu");
    on("meta"); /* what lies on the CPU stays there */
    EXPECT(kiln_add(x, 1), KILN_F32, KILN_SHAPE(3), 0, 2, 3, 4);
}

static void product(kiln_tensor **in, kiln_tensor **out, void *user)
{
    ++*(int *)user;
    out[0] = kiln_relu(kiln_matmul(in[0], in[1]));
}

META_TEST(functions_are_recorded)
{
    int calls = 0;
    kiln_function *f = kiln_function_new(product, 2, 1, &calls);
    kiln_tensor *in[] = {meta(KILN_F32, KILN_SHAPE(1 << 20, 8)), meta(KILN_F32, KILN_SHAPE(8, 1 << 20))}, *out;
    for (int k = 1; k <= 3; k++) {
        OK(kiln_function_call(f, in, &out));
        is(out, KILN_F32, KILN_SHAPE(1 << 20, 1 << 20));
        cr_assert_eq(calls, k);
    }
    on("cpu");
    kiln_tensor *real[] = {kiln_ones(KILN_F32, KILN_SHAPE(2, 8)), kiln_ones(KILN_F32, KILN_SHAPE(8, 2))};
    OK(kiln_function_call(f, real, &out));
    EXPECT(out, KILN_F32, KILN_SHAPE(2, 2), 0, 8, 8, 8, 8);
    on("meta");
    OK(kiln_function_call(f, in, &out));
    is(out, KILN_F32, KILN_SHAPE(1 << 20, 1 << 20));
    kiln_function_free(f);
}

static void halve(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 0.5);
}

META_TEST(loops_and_modes)
{
    kiln_stats before;
    kiln_get_stats(&before);
    kiln_mode *low = kiln_autocast_push(KILN_BF16);
    kiln_tensor *x = meta(KILN_F32, KILN_SHAPE(1 << 15, 1 << 15)), *y = kiln_matmul(x, x);
    OK(kiln_mode_pop(low));
    OK(kiln_while(always, halve, 1, &y, 100, &y, NULL));
    is(y, KILN_F32, KILN_SHAPE(1 << 15, 1 << 15));
    OK(kiln_cond(kiln_gt(kiln_sum(y), 0), halve, halve, 1, &y, 1, &y, NULL));
    is(y, KILN_F32, KILN_SHAPE(1 << 15, 1 << 15));
    nothing_since(&before);
}

/* --- random graphs: what is recorded is the same -------------------------------------------------------------------------- */

static kiln_tensor *given(const Recipe *recipe, int k, kiln_shape shape, void *user)
{
    int64_t n = shape_elements(shape);
    kiln_dtype dtype = (kiln_dtype)recipe->node[k].dtype;
    void *data = malloc((size_t)n * kiln_dtype_size(dtype) + 1);
    values_fill(dtype, (Values)recipe->node[k].values, 0, recipe->seed + (uint64_t)k, n, data);
    kiln_tensor *x = kiln_from(dtype, shape, *(const bool *)user ? NULL : data);
    free(data);
    return x;
}

Test(meta, random_graphs_have_the_same_shapes)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        Recipe recipe;
        RecipeMade made[2];
        recipe_random(seed, &recipe);
        for (int k = 0; k < 2; k++) {
            bool nowhere = k == 1;
            kiln_tensor *out[RECIPE_OUTPUTS];
            kiln_scope *scope = kiln_scope_begin();
            on(nowhere ? "meta" : "cpu");
            (void)recipe_build(&recipe, recipe.sizes, given, &nowhere, out, &made[k], NULL);
            kiln_scope_end(scope);
        }
        for (int i = 0; i < recipe.n; i++) {
            cr_assert_eq(made[0].ok[i], made[1].ok[i], "seed %d, node %d", (int)seed, i);
            cr_assert(!made[0].ok[i] || (made[0].dtype[i] == made[1].dtype[i] && shape_equal(made[0].shape[i], made[1].shape[i])),
                      "seed %d, node %d", (int)seed, i);
        }
    }
    on(NULL);
}

static void count_warnings(void *user, int level, const char *topic, const char *line)
{
    (void)topic, (void)line;
    *(int *)user += level == 0;
}

/* What was recorded of values that are nowhere holds no memory, so nothing is to be gained by computing it. */
Test(meta, is_left_alone_under_memory_pressure)
{
    set_option("pressure_bytes", "65536");
    int warnings = 0;
    kiln_set_log_sink(count_warnings, &warnings);
    kiln_tensor *real = kiln_full(KILN_F32, KILN_SHAPE(1 << 20), 1);
    OK(kiln_eval(real));
    kiln_stats before = stats_now();
    on("meta");
    kiln_tensor *total = kiln_scalar(0);
    for (int k = 0; k < 20; k++)
        total = kiln_add(total, kiln_sum(meta(KILN_F32, KILN_SHAPE(1 << 20))));
    kiln_stats after = stats_now();
    cr_assert(after.evals == before.evals && kiln_error_status() == KILN_OK && warnings == 0);
    kiln_set_log_sink(NULL, NULL);
    on(NULL);
    set_option("pressure_bytes", "0");
}

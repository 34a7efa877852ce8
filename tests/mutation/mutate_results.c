/*
 * Results do not depend on what they must not depend on: thread count, vector width, optimisation level, fusion, static or
 * generalised sizes, where data lies, whether the memory at an address was something else before. On sizes large enough for several
 * threads and blocks; and on graphs of unusual extent: a thousand inputs or outputs, a chain of 100,000 steps, rank 8.
 *
 * A run takes a slice of the programs (support/slice.h). On a device (KILN_DEVICE), which may be made of software, the same with a tenth of
 * the elements and options that count there.
 */
#include "tests/mutation/harness.h"
#include "tests/support/slice.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- options ---------------------------------------------------------------------------------------------------------- */

/* A number of elements, or what is left of it on a device. */
static int64_t some(int64_t n) { return on_device() ? n / 12 + 1 : n; }

enum { ROWS = 301, COLUMNS = 1003 };

static int64_t rows(void) { return some(ROWS); }
static kiln_tensor *large(uint64_t seed) { return plain_f32(KILN_SHAPE(rows(), COLUMNS), seed); }

static kiln_tensor *whole_sum(void) { return kiln_sum(kiln_exp(large(1))); }
static kiln_tensor *row_sum(void) { return kiln_mean_axes(kiln_mul(large(1), large(2)), KILN_AXES(1), false); }
static kiln_tensor *column_sum(void) { return kiln_sum_axes(large(1), KILN_AXES(0), false); }
static kiln_tensor *softmax(void) { return kiln_softmax(kiln_mul(large(1), kiln_scalar(3)), -1); }
static kiln_tensor *softmax_columns(void) { return kiln_softmax(large(3), 0); }
static kiln_tensor *layer_norm(void)
{
    return kiln_layer_norm(large(1), plain_f32(KILN_SHAPE(COLUMNS), 2), plain_f32(KILN_SHAPE(COLUMNS), 3), 1e-5);
}
static kiln_tensor *long_sum(void) { return kiln_sum_axes(plain_f32(KILN_SHAPE(2, some(500000)), 5), KILN_AXES(1), false); }
static kiln_tensor *variance(void) { return kiln_var(plain_f32(KILN_SHAPE(some(333333)), 5), 1); }
static kiln_tensor *product(void)
{
    return kiln_prod(kiln_add(kiln_mul(plain_f32(KILN_SHAPE(some(50000)), 5), kiln_scalar(1e-6)), kiln_int(1)));
}
static kiln_tensor *half_sum(void) { return kiln_sum_axes(kiln_cast(large(1), KILN_F16), KILN_AXES(1), false); }
static kiln_tensor *matmul(void) { return kiln_matmul(plain_f32(KILN_SHAPE(130, some(200)), 1), plain_f32(KILN_SHAPE(some(200), 70), 2)); }
static kiln_tensor *elementwise(void)
{
    return kiln_gelu(kiln_sub(kiln_mul(large(1), large(2)), kiln_transpose(kiln_reshape(large(3), KILN_SHAPE(COLUMNS, rows())))));
}
static kiln_tensor *running(void) { return kiln_cumsum(large(1), 1); }
static kiln_tensor *running_down(void) { return kiln_cumsum(large(1), 0); }
static kiln_tensor *sorted(void) { return kiln_sort(large(1), 1, false); }
static kiln_tensor *first_of_ties(void) { return kiln_argmax_axis(kiln_floor(large(1)), 1, false); }
static kiln_tensor *added(void)
{
    kiln_tensor *index = kiln_randint(KILN_I64, KILN_SHAPE(some(20000)), 0, 50);
    return kiln_scatter(kiln_zeros(KILN_F32, KILN_SHAPE(50)), index, plain_f32(KILN_SHAPE(some(20000)), 1), 0, KILN_SCATTER_ADD);
}
static kiln_tensor *noise(void) { return kiln_normal(KILN_F32, KILN_SHAPE(some(100001)), 0, 1); }

static const struct {
    const char *name;
    kiln_tensor *(*build)(void);
} programs[] = {
    {"sum", whole_sum},
    {"row sum", row_sum},
    {"column sum", column_sum},
    {"softmax", softmax},
    {"softmax of columns", softmax_columns},
    {"layer norm", layer_norm},
    {"long sum", long_sum},
    {"variance", variance},
    {"product", product},
    {"half sum", half_sum},
    {"matmul", matmul},
    {"elementwise", elementwise},
    {"cumsum", running},
    {"cumsum down", running_down},
    {"sort", sorted},
    {"argmax", first_of_ties},
    {"scatter add", added},
    {"noise", noise},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

typedef struct Bytes {
    kiln_dtype dtype;
    int64_t n;
    void *data;
} Bytes;

static Bytes result_of(kiln_tensor *(*build)(void))
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_seed(4);
    kiln_tensor *x = build();
    Bytes b = {kiln_dtype_of(x), kiln_numel(x), NULL};
    size_t bytes = x ? (size_t)b.n * kiln_dtype_size(b.dtype) : 0;
    b.data = malloc(bytes + 1);
    OK(kiln_read(x, b.dtype, b.data, bytes));
    kiln_scope_end(scope);
    return b;
}

typedef struct Setting {
    const char *name, *value;
    bool host; /* means nothing to a device */
} Setting;

static void compare_settings(const char *math)
{
    static const Setting settings[] = {
        /* clang-format off */
        {"threads", "1", true},       {"threads", "2", true},     {"threads", "3", true},        {"threads", "16", true},
        {"vector_bits", "128", true}, {"vector_bits", "256", true}, {"vector_bits", "0", true},  {"cuda_graphs", "0", false},
        {"cuda_graphs", "1", false},  {"dynamic", "always", false}, {"dynamic", "auto", false},  {"llvm_opt", "0", false},
        {"llvm_opt", "2", false},     {"llvm_opt", "1", false},   {"rewrite", "0", false},       {"rewrite", "1", false},
        {"fuse", "0", false},         {"fuse", "1", false},       {"mode", "eager", false},      {"mode", "interp", false},
        {"mode", "jit", false},       {"bands", "always", true},  {"bands", "off", true},
        /* clang-format on */
    };
    for (int p = 0; p < PROGRAMS; p++) {
        if (!slice_takes((uint64_t)p))
            continue;
        set_option("mode", "jit");
        set_option("math", math);
        set_option("threads", "0");
        Bytes first = result_of(programs[p].build);
        for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
            if (settings[k].host && on_device())
                continue;
            set_option(settings[k].name, settings[k].value);
            bool strict = strcmp(math, "strict") == 0;
            if (strcmp(settings[k].value, "interp") == 0 && !strict)
                continue;
            Bytes now = result_of(programs[p].build);
            int64_t at = values_differ(first.dtype, first.n, first.data, now.data, (Tolerance){0, 0});
            char a[64], b[64];
            CHECK(at < 0, "%s, math=%s, %s=%s: element %d is %s, was %s", programs[p].name, math, settings[k].name, settings[k].value,
                  (int)at, value_text(first.dtype, now.data, at, a), value_text(first.dtype, first.data, at, b));
            free(now.data);
        }
        free(first.data);
    }
    CHECK(stats_now().fallbacks == 0, "fell back: %s", last_warning);
}

static void strict_settings(void) { compare_settings("strict"); }
static void fast_settings(void) { compare_settings("fast"); }

/* --- memory ----------------------------------------------------------------------------------------------------------- */

/* New data at the address of old data is new data. */
static void address_reused(void)
{
    static float memory[256], got[256];
    set_option("test_memory", "pooled"); /* a device's addresses come again, too */
    for (int i = 0; i < 50; i++) {
        kiln_scope *scope = kiln_scope_begin();
        int64_t n = i % 3 ? 256 : 100;
        for (int k = 0; k < 256; k++)
            memory[k] = (float)(i * 1000 + k);
        kiln_tensor *x = there(kiln_wrap(KILN_F32, KILN_SHAPE(n), memory, NULL, NULL));
        read_f32(kiln_add(kiln_mul(x, kiln_int(2)), kiln_int(i)), got, n);
        for (int64_t k = 0; k < n; k++)
            CHECK(got[k] == memory[k] * 2 + (float)i, "round %d element %d: %g", i, (int)k, (double)got[k]);
        kiln_scope_end(scope);
    }
}

/* A wrapped buffer that changes, with kiln_touch; and what was computed from it before. */
static void touched(void)
{
    static float memory[64], before[64], after[64];
    for (int k = 0; k < 64; k++)
        memory[k] = (float)k;
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(64), memory, NULL, NULL), *y = kiln_neg(there(x));
    read_f32(y, before, 64);
    for (int i = 1; i < 5; i++) {
        for (int k = 0; k < 64; k++)
            memory[k] = (float)(k + 100 * i);
        kiln_touch(x);
        read_f32(kiln_neg(there(x)), after, 64);
        for (int k = 0; k < 64; k++)
            CHECK(after[k] == -(float)(k + 100 * i), "round %d element %d: %g", i, k, (double)after[k]);
    }
    read_f32(y, after, 64);
    CHECK(memcmp(before, after, sizeof before) == 0, "%s", "an evaluated result changed with its input");
}

/* Two inputs that overlap, shifted by some elements; both read, neither written. */
static void overlapping(void)
{
    enum { N = 1000 };
    static float memory[N + 40], copy[N + 40], got[N];
    values_fill(KILN_F32, VALUES_PLAIN, 0, 8, N + 40, memory);
    memcpy(copy, memory, sizeof copy);
    for (int shift = 0; shift < 40; shift += 3) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *a, *b, *reversed, *one, *all = there(kiln_wrap(KILN_F32, KILN_SHAPE(N + 40), memory, NULL, NULL));
        if (on_device()) {
            a = kiln_slice_axis(all, 0, 0, N, 1);
            b = kiln_slice_axis(all, 0, shift, shift + N, 1);
            reversed = kiln_flip(b, KILN_AXES(0));
            one = kiln_expand(kiln_slice_axis(all, 0, shift, shift + 1, 1), KILN_SHAPE(N));
        } else {
            a = kiln_wrap(KILN_F32, KILN_SHAPE(N), memory, NULL, NULL);
            b = kiln_wrap(KILN_F32, KILN_SHAPE(N), memory + shift, NULL, NULL);
            reversed = kiln_wrap_strided(KILN_F32, KILN_SHAPE(N), (int64_t[]){-1}, memory + shift + N - 1, NULL, NULL);
            one = kiln_wrap_strided(KILN_F32, KILN_SHAPE(N), (int64_t[]){0}, memory + shift, NULL, NULL);
        }
        OK(kiln_assign(a, kiln_add(kiln_sub(kiln_add(a, b), reversed), one)));
        read_f32(a, got, N);
        for (int i = 0; i < N; i++) {
            float wanted = copy[i] + copy[i + shift] - copy[shift + N - 1 - i] + copy[shift];
            CHECK(fabsf(got[i] - wanted) <= 1e-5f, "shift %d element %d: %g, expected %g", shift, i, (double)got[i], (double)wanted);
        }
        CHECK(memcmp(memory, copy, sizeof copy) == 0, "shift %d: borrowed memory was written to", shift);
        static float now[N + 40];
        read_f32(all, now, N + 40);
        CHECK(memcmp(now, copy, sizeof copy) == 0, "shift %d: what all are views of was written to", shift);
        kiln_scope_end(scope);
    }
}

/* The rounding and flush modes of the thread are the caller's, before and after; results do not depend on them being set by us. */
static void subnormals_survive(void)
{
    static float got[4];
    const float tiny[4] = {1e-40f, -1e-45f, 2e-39f, 0x1p-126f};
    volatile float scale = 0.5f;
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(4), tiny);
    read_f32(kiln_mul(x, kiln_scalar(0.5)), got, 4);
    for (int i = 0; i < 4; i++)
        CHECK(got[i] == tiny[i] * scale, "element %d: %g, expected %g", i, (double)got[i], (double)(tiny[i] * scale));
    volatile float product = tiny[2] * scale;
    CHECK(product > 0, "%s", "subnormals are flushed in the caller after kiln ran");
}

/* --- extent ----------------------------------------------------------------------------------------------------------- */

enum { MANY = 1000 };

static void many_inputs(void)
{
    static kiln_tensor *x[MANY];
    float got[5];
    for (int i = 0; i < MANY; i++)
        x[i] = kiln_full(KILN_F32, KILN_SHAPE(5), i % 7);
    OK(kiln_eval_many(x, MANY));
    for (int round = 0; round < 2; round++) {
        kiln_tensor *sum = x[0];
        float wanted = 0;
        for (int i = 1; i < MANY; i++)
            sum = kiln_add(sum, x[i]);
        for (int i = 0; i < MANY; i++)
            wanted += (float)(i % 7);
        read_f32(sum, got, 5);
        CHECK(got[0] == wanted && got[4] == wanted, "%g, expected %g", (double)got[0], (double)wanted);
        double total = 0;
        OK(kiln_item(kiln_sum(kiln_concat(x, MANY, 0)), &total));
        CHECK(total == 5 * (double)wanted, "sum of %d parts is %g, expected %g", MANY, total, 5 * (double)wanted);
    }
    CHECK(stats_now().fallbacks == 0, "fell back: %s", last_warning);
}

static void many_outputs(void)
{
    static kiln_tensor *y[MANY];
    float got[5];
    kiln_tensor *x = plain_f32(KILN_SHAPE(5), 3);
    float data[5];
    read_f32(x, data, 5);
    for (int i = 0; i < MANY; i++)
        y[i] = kiln_mul(kiln_add(x, kiln_int(i)), kiln_scalar(0.5));
    OK(kiln_eval_many(y, MANY));
    for (int i = 0; i < MANY; i += 37) {
        read_f32(y[i], got, 5);
        CHECK(got[3] == (data[3] + (float)i) * 0.5f, "output %d: %g", i, (double)got[3]);
    }
    CHECK(stats_now().fallbacks == 0, "fell back: %s", last_warning);
}

/* A chain far longer than one kernel, in a thread with little stack. */
static void *chain_in_thread(void *user)
{
    (void)user;
    float got[3];
    int steps = on_device() ? 10000 : 100000;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), (float[]){0, 1, 2});
    for (int i = 0; i < steps; i++)
        x = i % 2 ? kiln_add(x, kiln_int(1)) : kiln_neg(x);
    read_f32(x, got, 3);
    /* two steps take x to 1 - x, four steps back to x */
    CHECK(got[0] == 0 && got[1] == 1 && got[2] == 2, "%g %g %g", (double)got[0], (double)got[1], (double)got[2]);
    kiln_scope_end(scope);
    return NULL;
}

static void long_chain(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    CHECK(pthread_create(&thread, &attributes, chain_in_thread, NULL) == 0, "%s", "no thread");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    CHECK(stats_now().fallbacks == 0, "fell back: %s", last_warning);
}

/* Rank 8, every axis in use. */
static void rank_8(void)
{
    kiln_shape shape = KILN_SHAPE(2, 3, 1, 2, 2, 1, 3, 2);
    float data[144], got[144];
    values_fill(KILN_F32, VALUES_PLAIN, 0, 6, 144, data);
    for (int axis = 0; axis < 8; axis++) {
        kiln_tensor *x = kiln_from(KILN_F32, shape, data);
        kiln_axes order = {8, {0}};
        for (int i = 0; i < 8; i++)
            order.axis[i] = (i + axis) % 8;
        kiln_axes back = {8, {0}};
        for (int i = 0; i < 8; i++)
            back.axis[(i + axis) % 8] = i;
        kiln_tensor *turned = kiln_flip(kiln_neg(kiln_permute(x, order)), KILN_AXES(0, 3, -1));
        read_f32(kiln_permute(kiln_neg(kiln_flip(turned, KILN_AXES(0, 3, -1))), back), got, 144);
        CHECK(memcmp(got, data, sizeof got) == 0, "turned by %d and back", axis);
        double part = 0, whole = 0;
        OK(kiln_item(kiln_sum(kiln_cast(kiln_sum_axes(kiln_cast(x, KILN_F64), KILN_AXES(axis, (axis + 3) % 8), true), KILN_F64)), &part));
        for (int i = 0; i < 144; i++)
            whole += (double)data[i];
        CHECK(fabs(part - whole) < 1e-9, "axes %d and %d: %g, expected %g", axis, (axis + 3) % 8, part, whole);
    }
    CHECK(stats_now().fallbacks == 0, "fell back: %s", last_warning);
}

int main(int argc, char **argv)
{
    static const Test tests[] = {
        {"strict_settings", strict_settings}, {"fast_settings", fast_settings},
        {"address_reused", address_reused},   {"touched", touched},
        {"overlapping", overlapping},         {"subnormals_survive", subnormals_survive},
        {"many_inputs", many_inputs},         {"many_outputs", many_outputs},
        {"long_chain", long_chain},           {"rank_8", rank_8},
    };
    return run_tests("mutate_results", tests, sizeof tests / sizeof *tests, argc, argv);
}

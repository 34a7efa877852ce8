/*
 * What is compiled how often: repeats, generalised variants, scalars, random shapes. And values across calls: random streams,
 * outputs fed back, assignment in place with every kind of other reference alive, old results. And what happens when compiling
 * fails. On a device (KILN_DEVICE) all of it in strict mode.
 */
#include "tests/mutation/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- compiling once --- */

/* Programs that one dim runs through. */
typedef struct Sized {
    const char *name;
    kiln_tensor *(*build)(int64_t n);
    bool not_empty; /* does not take size 0 */
    int own;        /* sizes with a structure (an axis of size 1 that is broadcast or merged) or a guard of their own */
} Sized;
enum { OWN_0 = 1, OWN_1 = 2 };

static bool has_own_program(const Sized *s, int64_t n) { return (n == 0 && s->own & OWN_0) || (n == 1 && s->own & OWN_1); }

static kiln_tensor *sized_chain(int64_t n)
{
    kiln_tensor *x = plain_f32(KILN_SHAPE(n), 1), *y = plain_f32(KILN_SHAPE(n), 2);
    return kiln_tanh(kiln_sub(kiln_mul(x, y), kiln_scalar(0.5)));
}
static kiln_tensor *sized_outer_dim(int64_t n) { return kiln_exp(kiln_neg(plain_f32(KILN_SHAPE(n, 12), 1))); }
static kiln_tensor *sized_inner_dim(int64_t n) { return kiln_sin(plain_f32(KILN_SHAPE(5, n), 1)); }
static kiln_tensor *sized_both(int64_t n) { return kiln_cos(plain_f32(KILN_SHAPE(n, n), 1)); }
static kiln_tensor *sized_sum(int64_t n) { return kiln_sum(kiln_square(plain_f32(KILN_SHAPE(n), 1))); }
static kiln_tensor *sized_row_sum(int64_t n) { return kiln_sum_axes(plain_f32(KILN_SHAPE(6, n), 1), KILN_AXES(1), false); }
static kiln_tensor *sized_rows_sum(int64_t n) { return kiln_sum_axes(plain_f32(KILN_SHAPE(n, 6), 1), KILN_AXES(1), false); }
static kiln_tensor *sized_column_sum(int64_t n) { return kiln_mean_axes(plain_f32(KILN_SHAPE(n, 6), 1), KILN_AXES(0), true); }
static kiln_tensor *sized_max(int64_t n) { return kiln_max_axes(plain_f32(KILN_SHAPE(3, n), 1), KILN_AXES(1), false); }
static kiln_tensor *sized_argmin(int64_t n) { return kiln_argmin_axis(plain_f32(KILN_SHAPE(3, n), 1), 1, false); }
static kiln_tensor *sized_softmax(int64_t n) { return kiln_softmax(plain_f32(KILN_SHAPE(4, n), 1), 1); }
static kiln_tensor *sized_softmax_rows(int64_t n) { return kiln_log_softmax(plain_f32(KILN_SHAPE(n, 9), 1), 1); }
static kiln_tensor *sized_norm(int64_t n)
{
    return kiln_layer_norm(plain_f32(KILN_SHAPE(4, n), 1), plain_f32(KILN_SHAPE(n), 2), plain_f32(KILN_SHAPE(n), 3), 1e-5);
}
static kiln_tensor *sized_flatten(int64_t n) { return kiln_neg(kiln_reshape(plain_f32(KILN_SHAPE(n, 3), 1), KILN_SHAPE(3 * n))); }
static kiln_tensor *sized_transpose(int64_t n) { return kiln_neg(kiln_transpose(plain_f32(KILN_SHAPE(n, 7), 1))); }
static kiln_tensor *sized_flip(int64_t n) { return kiln_exp(kiln_flip(plain_f32(KILN_SHAPE(2, n), 1), KILN_AXES(1))); }
static kiln_tensor *sized_pad(int64_t n) { return kiln_pad(plain_f32(KILN_SHAPE(n, 3), 1), 1, (kiln_padding[]){{2, 1}}, kiln_scalar(1)); }
static kiln_tensor *sized_concat(int64_t n)
{
    return kiln_concat((kiln_tensor *[]){plain_f32(KILN_SHAPE(n, 3), 1), plain_f32(KILN_SHAPE(4, 3), 2)}, 2, 0);
}
static kiln_tensor *sized_expand(int64_t n)
{
    return kiln_mul(kiln_unsqueeze(plain_f32(KILN_SHAPE(n), 1), 1), plain_f32(KILN_SHAPE(6), 2));
}
static kiln_tensor *sized_matmul(int64_t n) { return kiln_matmul(plain_f32(KILN_SHAPE(n, 5), 1), plain_f32(KILN_SHAPE(5, 6), 2)); }
static kiln_tensor *sized_matmul_inner(int64_t n) { return kiln_matmul(plain_f32(KILN_SHAPE(4, n), 1), plain_f32(KILN_SHAPE(n, 6), 2)); }
static kiln_tensor *sized_take(int64_t n)
{
    kiln_tensor *index = kiln_from(KILN_I64, KILN_SHAPE(3), (int64_t[]){0, 2, -1});
    return kiln_take(plain_f32(KILN_SHAPE(5, n), 1), index, 0);
}
static kiln_tensor *sized_sort(int64_t n) { return kiln_sort(plain_f32(KILN_SHAPE(3, n), 1), 1, false); }
static kiln_tensor *sized_cumsum(int64_t n) { return kiln_cumsum(plain_f32(KILN_SHAPE(n, 4), 1), 0); }
static kiln_tensor *sized_cumsum_inner(int64_t n) { return kiln_cumsum(plain_f32(KILN_SHAPE(3, n), 1), 1); }
static kiln_tensor *sized_scatter(int64_t n)
{
    kiln_tensor *index = kiln_from(KILN_I32, KILN_SHAPE(3), (int32_t[]){1, 0, 1});
    return kiln_scatter(plain_f32(KILN_SHAPE(2, n), 1), index, plain_f32(KILN_SHAPE(3, n), 2), 0, KILN_SCATTER_ADD);
}
static kiln_tensor *sized_uniform(int64_t n)
{
    kiln_seed(5);
    return kiln_mul(kiln_uniform(KILN_F32, KILN_SHAPE(n), 0, 1), plain_f32(KILN_SHAPE(n), 1));
}
static kiln_tensor *sized_half(int64_t n) { return kiln_tanh(kiln_cast(plain_f32(KILN_SHAPE(3, n), 1), KILN_F16)); }
/* (x - 1) mod n along the vector axis, of which the first lane is outside */
static kiln_tensor *sized_tile_pad(int64_t n)
{
    kiln_tensor *tiled = kiln_tile(plain_f32(KILN_SHAPE(2, n), 1), KILN_SHAPE(2, 2));
    return kiln_pad(tiled, 2, (kiln_padding[]){{0, 0}, {1, 0}}, kiln_int(1));
}
static kiln_tensor *sized_bytes(int64_t n)
{
    kiln_tensor *x = kiln_cast(plain_f32(KILN_SHAPE(n), 1), KILN_I8);
    return kiln_where(kiln_gt(x, kiln_int(0)), x, kiln_int(7));
}

static const Sized sized[] = {
    /* clang-format off */
    {"chain", sized_chain, false, 0},           {"outer dim", sized_outer_dim, false, 0},   {"inner dim", sized_inner_dim, false, 0},
    {"both dims", sized_both, false, 0},        {"sum", sized_sum, false, 0},               {"row sum", sized_row_sum, false, 0},
    {"sums of rows", sized_rows_sum, false, 0}, {"column mean", sized_column_sum, false, 0}, {"max", sized_max, true, 0},
    {"argmin", sized_argmin, true, 0},          {"softmax", sized_softmax, false, 0},        {"rows of softmax", sized_softmax_rows, false, 0},
    {"layer norm", sized_norm, false, 0},       {"flatten", sized_flatten, false, OWN_1},       {"transpose", sized_transpose, false, 0},
    {"flip", sized_flip, false, 0},             {"pad", sized_pad, false, 0},               {"concat", sized_concat, false, 0},
    {"expand", sized_expand, false, 0},         {"matmul", sized_matmul, false, 0},         {"matmul inner", sized_matmul_inner, false, 0},
    {"take", sized_take, false, OWN_0},             {"sort", sized_sort, false, 0},             {"cumsum", sized_cumsum, false, 0},
    {"cumsum inner", sized_cumsum_inner, false, 0}, {"scatter", sized_scatter, false, OWN_0},   {"uniform", sized_uniform, false, 0},
    {"half", sized_half, false, 0},             {"bytes", sized_bytes, false, 0},
    {"tile and pad", sized_tile_pad, false, 0},
    /* clang-format on */
};

typedef struct SizedCall {
    const Sized *sized;
    int64_t n;
} SizedCall;

static kiln_tensor *build_sized(void *user)
{
    const SizedCall *call = user;
    return call->sized->build(call->n);
}

/* Runs the program at size n; the compiles that it took. */
static int64_t run_sized(const Sized *s, int64_t n)
{
    char what[64];
    SizedCall call = {s, n};
    snprintf(what, sizeof what, "%s at %" PRId64, s->name, n);
    int64_t before = stats_now().compiles;
    same_as_interp(build_sized, &call, what);
    return stats_now().compiles - before;
}

static void second_call(void)
{
    for (size_t k = 0; k < sizeof sized / sizeof *sized; k++) {
        CHECK(run_sized(&sized[k], 20) == 1, "%s: first call", sized[k].name);
        kiln_stats before = stats_now();
        CHECK(run_sized(&sized[k], 20) == 0, "%s: second call compiles", sized[k].name);
        kiln_stats after = stats_now();
        CHECK(after.hits == before.hits + 1 && after.misses == before.misses, "%s: hits %d, misses %d", sized[k].name,
              (int)(after.hits - before.hits), (int)(after.misses - before.misses));
        CHECK(after.fallbacks == 0, "%s: %s", sized[k].name, last_warning);
    }
}

static void generalised(void)
{
    static const int64_t sizes[] = {11, 1, 2, 3, 4, 0, 7, 64, 65, 1000, 20, 31, 16, 128};
    for (size_t k = 0; k < sizeof sized / sizeof *sized; k++) {
        CHECK(run_sized(&sized[k], 20) == 1, "%s: first call", sized[k].name);
        CHECK(run_sized(&sized[k], 33) <= 1, "%s: second size", sized[k].name);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if ((sizes[i] == 0 && sized[k].not_empty) || (sizes[i] == 1000 && sized[k].build == sized_both))
                continue;
            int64_t compiles = run_sized(&sized[k], sizes[i]);
            CHECK(compiles <= has_own_program(&sized[k], sizes[i]), "%s: size %" PRId64 " compiles again (%d)", sized[k].name, sizes[i],
                  (int)compiles);
        }
    }
}

static void always_dynamic(void)
{
    static const int64_t sizes[] = {33, 1, 2, 3, 4, 0, 7, 64, 65, 1000, 20};
    set_option("dynamic", "always");
    for (size_t k = 0; k < sizeof sized / sizeof *sized; k++) {
        CHECK(run_sized(&sized[k], 20) <= 1, "%s: first call", sized[k].name); /* 0: an earlier one has its structure */
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if ((sizes[i] == 0 && sized[k].not_empty) || (sizes[i] == 1000 && sized[k].build == sized_both))
                continue;
            CHECK(run_sized(&sized[k], sizes[i]) <= has_own_program(&sized[k], sizes[i]), "%s: size %" PRId64 " compiles", sized[k].name,
                  sizes[i]);
        }
    }
}

static void never_dynamic(void)
{
    set_option("dynamic", "never");
    for (int64_t n = 1; n <= 6; n++)
        CHECK(run_sized(&sized[0], n) == 1, "size %" PRId64, n);
    for (int64_t n = 1; n <= 6; n++)
        CHECK(run_sized(&sized[0], n) == 0, "size %" PRId64 " again", n);
}

static void random_shapes(void)
{
    Rng rng = {42};
    int64_t before = stats_now().compiles;
    for (int i = 0; i < 200; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_shape s = KILN_SHAPE(rng_between(&rng, 2, 40), rng_between(&rng, 2, 40), rng_between(&rng, 2, 40));
        kiln_tensor *x = plain_f32(s, (uint64_t)i);
        kiln_tensor *y = kiln_sum_axes(kiln_add(kiln_mul(x, x), kiln_scalar(1)), KILN_AXES(-1), false);
        double got, direct = 0;
        if (!OK(kiln_item(kiln_sum(y), &got)))
            break;
        int64_t n = shape_elements(s);
        float *data = malloc((size_t)n * sizeof *data);
        values_fill(KILN_F32, VALUES_PLAIN, 0, (uint64_t)i, n, data);
        for (int64_t k = 0; k < n; k++)
            direct += (double)data[k] * (double)data[k] + 1;
        free(data);
        CHECK(fabs(got - direct) <= 1e-5 * direct, "shape %d: %g, expected %g", i, got, direct);
        kiln_scope_end(scope);
    }
    int64_t compiles = stats_now().compiles - before;
    CHECK(compiles <= 9, "%" PRId64 " compiles for 200 shapes", compiles);
}

static void thousand_scalars(void)
{
    float data[64], got[64];
    values_fill(KILN_F32, VALUES_PLAIN, 0, 3, 64, data);
    int64_t after_first = 0;
    for (int i = 0; i < 1000; i++) {
        float s = 0.001f * (float)i + 3.5f;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(64), data);
        read_f32(kiln_sub(kiln_mul(x, kiln_scalar((double)s)), kiln_scalar((double)i)), got, 64);
        for (int k = 0; k < 64; k++) {
            double wanted = (double)(data[k] * s) - i, slack = 1e-6 * (fabs((double)(data[k] * s)) + i);
            CHECK(fabs((double)got[k] - wanted) <= slack, "scalar %d element %d: %g, expected %g", i, k, (double)got[k], wanted);
        }
        kiln_scope_end(scope);
        if (i == 2)
            after_first = stats_now().compiles;
    }
    CHECK(after_first <= 2, "%d compiles for the first scalars", (int)after_first);
    CHECK(stats_now().compiles == after_first, "%d compiles for 1000 scalars", (int)stats_now().compiles);
    /* values that rules ask for */
    const double special[] = {1, 0, 2, -1, 1, 0, 2, -1, 5, 6, 7, 1, 0};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(64), data);
        read_f32(kiln_sub(kiln_mul(x, kiln_scalar(special[i])), kiln_scalar(special[i])), got, 64);
        for (int k = 0; k < 64; k++)
            CHECK(got[k] == data[k] * (float)special[i] - (float)special[i], "scalar %g element %d", special[i], k);
        kiln_scope_end(scope);
    }
    CHECK(stats_now().compiles <= after_first + 8, "%d compiles with special scalars", (int)stats_now().compiles);
}

/* --- random numbers --- */

enum { DRAW = 1000 };

static void draws(void)
{
    static float a[DRAW], b[DRAW], both[DRAW], again[DRAW], skipped[DRAW];
    kiln_seed(9);
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1), *y = kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1);
    kiln_tensor *sum = kiln_add(x, y);
    OK(kiln_eval_many((kiln_tensor *[]){x, y, sum}, 3));
    read_f32(x, a, DRAW);
    read_f32(y, b, DRAW);
    read_f32(sum, both, DRAW);
    int equal = 0;
    for (int i = 0; i < DRAW; i++) {
        equal += a[i] == b[i];
        CHECK(a[i] >= 0 && a[i] < 1 && both[i] == a[i] + b[i], "element %d: %g + %g = %g", i, (double)a[i], (double)b[i], (double)both[i]);
    }
    CHECK(equal < DRAW / 100, "two draws agree in %d of %d", equal, DRAW);

    /* the same stream when fused away: only the sum is asked for */
    kiln_seed(9);
    kiln_tensor *u = kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1);
    read_f32(kiln_add(u, kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1)), again, DRAW);
    CHECK(memcmp(both, again, sizeof both) == 0, "fused draws differ");

    /* an unused draw still advances the stream */
    kiln_seed(9);
    (void)kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1);
    read_f32(kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1), skipped, DRAW);
    CHECK(memcmp(b, skipped, sizeof b) == 0, "an unused draw does not advance the stream");

    /* modes and options agree */
    static const char *const settings[][2] = {{"mode", "eager"}, {"mode", "interp"}, {"mode", "jit"},      {"fuse", "0"},
                                              {"fuse", "1"},     {"threads", "1"},   {"dynamic", "always"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        set_option(settings[i][0], settings[i][1]);
        kiln_seed(9);
        (void)kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1);
        read_f32(kiln_uniform(KILN_F32, KILN_SHAPE(DRAW), 0, 1), again, DRAW);
        CHECK(memcmp(b, again, sizeof b) == 0, "%s=%s gives another stream", settings[i][0], settings[i][1]);
    }
    /* the same call again is another draw, without a compile */
    kiln_seed(1);
    set_option("dynamic", "auto");
    read_f32(kiln_normal(KILN_F32, KILN_SHAPE(DRAW), 0, 1), a, DRAW);
    int64_t compiles = stats_now().compiles;
    read_f32(kiln_normal(KILN_F32, KILN_SHAPE(DRAW), 0, 1), b, DRAW);
    CHECK(memcmp(a, b, sizeof a) != 0 && stats_now().compiles == compiles, "a replayed draw, or a compile for it");
}

/* --- values across calls --- */

static void feed_back(void)
{
    enum { N = 777 };
    static float data[N], got[N];
    for (int pass = 0; pass < 2; pass++) { /* new handles, then one handle assigned */
        values_fill(KILN_F32, VALUES_PLAIN, 0, 5, N, data);
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(N), data);
        for (int i = 0; i < 10; i++) {
            kiln_tensor *y = kiln_sub(kiln_mul(x, kiln_scalar(0.5)), kiln_flip(x, KILN_AXES(0)));
            if (pass == 0)
                x = y;
            else
                OK(kiln_assign(x, y));
            OK(kiln_eval(x));
        }
        read_f32(x, got, N);
        for (int i = 0; i < 10; i++) {
            static float next[N];
            for (int k = 0; k < N; k++)
                next[k] = data[k] * 0.5f - data[N - 1 - k];
            memcpy(data, next, sizeof data);
        }
        for (int k = 0; k < N; k++)
            CHECK(fabsf(got[k] - data[k]) <= 1e-5f * fabsf(data[k]) + 1e-6f, "pass %d element %d: %g, expected %g", pass, k, (double)got[k],
                  (double)data[k]);
    }
}

static void old_results(void)
{
    enum { KEPT = 20, N = 513 };
    static kiln_tensor *kept[KEPT];
    static float first[KEPT][N], now[N];
    for (int i = 0; i < KEPT; i++) {
        kiln_tensor *x = plain_f32(KILN_SHAPE(N), (uint64_t)i);
        kept[i] = kiln_exp(kiln_mul(x, kiln_scalar(0.25 * i)));
        read_f32(kept[i], first[i], N);
        for (int j = 0; j < 5; j++) { /* traffic of the same size through the pool */
            kiln_scope *scope = kiln_scope_begin();
            OK(kiln_eval(kiln_sum(kiln_sort(kiln_neg(plain_f32(KILN_SHAPE(N), (uint64_t)(100 + j))), 0, false))));
            kiln_scope_end(scope);
        }
    }
    for (int i = 0; i < KEPT; i++) {
        read_f32(kept[i], now, N);
        CHECK(memcmp(now, first[i], sizeof now) == 0, "result %d changed", i);
    }
}

/* --- assignment, with other references to the old contents alive --- */

enum { ROWS = 6, COLUMNS = 50, ALL = ROWS * COLUMNS };

typedef enum Other { NOBODY, HANDLE, PENDING_USE, VIEW, VIEW_EVALUATED, WRAPPED, DATA_POINTER, SELF_TRANSPOSED, OTHERS } Other;
static const char *const other_names[] = {"nobody",         "handle", "pending use",  "view",
                                          "evaluated view", "wrap",   "data pointer", "its own transpose"};

static void check_values(kiln_tensor *x, const float *wanted, int64_t n, const char *what, const char *who)
{
    static float got[ALL];
    if (!read_f32(x, got, n))
        return;
    for (int64_t i = 0; i < n; i++)
        CHECK(got[i] == wanted[i], "%s (%s) element %d is %g, expected %g", what, who, (int)i, (double)got[i], (double)wanted[i]);
}

static void assign_beside(Other other)
{
    static float old[ALL], memory[ALL], doubled[ALL], next[ALL];
    const char *who = other_names[other];
    values_fill(KILN_F32, VALUES_PLAIN, 0, 77, ALL, old);
    memcpy(memory, old, sizeof old);
    kiln_shape shape = KILN_SHAPE(ROWS, COLUMNS);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *p = other == WRAPPED ? kiln_wrap(KILN_F32, shape, memory, NULL, NULL)
                                      : kiln_add(kiln_from(KILN_F32, shape, old), kiln_zeros(KILN_F32, shape));
    OK(kiln_eval(p));
    kiln_tensor *beside = NULL, *value = kiln_mul(p, kiln_scalar(3));
    const void *data = NULL;
    if (other == HANDLE) /* a copy of the handle by a function that changes nothing */
        beside = kiln_positive(p);
    if (other == PENDING_USE)
        beside = kiln_mul(p, kiln_scalar(2));
    if (other == VIEW || other == VIEW_EVALUATED)
        beside = kiln_reshape(p, KILN_SHAPE(ALL));
    if (other == VIEW_EVALUATED)
        OK(kiln_eval(beside));
    if (other == DATA_POINTER && on_device()) {
        CHECK(kiln_data(p, &data) == KILN_DEVICE, "%s", "a host pointer into a device's memory");
        kiln_clear_error();
    } else if (other == DATA_POINTER) {
        OK(kiln_data(p, &data));
    }
    if (other == SELF_TRANSPOSED) {
        kiln_tensor *turned = kiln_reshape(kiln_transpose(p), shape);
        value = kiln_sub(p, turned);
    }
    for (int i = 0; i < ALL; i++) {
        int turned = i % ROWS * COLUMNS + i / ROWS;
        next[i] = other == SELF_TRANSPOSED ? old[i] - old[turned] : old[i] * 3;
        doubled[i] = old[i] * 2;
    }
    OK(kiln_assign(p, value));
    OK(kiln_eval(p));
    check_values(p, next, ALL, "assigned", who);
    if (beside)
        check_values(beside, other == PENDING_USE ? doubled : old, ALL, "beside it", who);
    if (other == WRAPPED)
        CHECK(memcmp(memory, old, sizeof old) == 0, "borrowed memory was overwritten");
    /* again, now that p owns its storage */
    OK(kiln_assign(p, kiln_sub(p, kiln_scalar(1))));
    for (int i = 0; i < ALL; i++)
        next[i] -= 1;
    check_values(p, next, ALL, "assigned twice", who);
    if (beside)
        check_values(beside, other == PENDING_USE ? doubled : old, ALL, "beside the second", who);
    kiln_scope_end(scope);
}

static void assign_all(void)
{
    for (int round = 0; round < 3; round++) /* cold, then warm programs with other buffers alive */
        for (int other = 0; other < OTHERS; other++)
            assign_beside((Other)other);
    set_option("mode", "eager");
    for (int other = 0; other < OTHERS; other++)
        assign_beside((Other)other);
}

/* One program, met with and without another reference: whether storage may be taken over is a fact of the call. */
static void assign_alternating(void)
{
    enum { N = 1000 };
    static float now[N], kept[N];
    kiln_tensor *p = kiln_add(plain_f32(KILN_SHAPE(N), 1), kiln_zeros(KILN_F32, KILN_SHAPE(N)));
    read_f32(p, now, N);
    for (int i = 0; i < 12; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *view = i % 3 == 1 ? kiln_reshape(p, KILN_SHAPE(N)) : NULL;
        kiln_tensor *sum = i % 4 == 2 ? kiln_sum(p) : NULL;
        double total = 0, wanted = 0;
        memcpy(kept, now, sizeof kept);
        OK(kiln_assign(p, kiln_sub(kiln_mul(p, kiln_scalar(0.5)), kiln_scalar(1))));
        OK(kiln_eval(p));
        for (int k = 0; k < N; k++) {
            wanted += (double)kept[k];
            now[k] = now[k] * 0.5f - 1;
        }
        static float got[N], seen[N];
        read_f32(p, got, N);
        for (int k = 0; k < N; k++)
            CHECK(fabsf(got[k] - now[k]) <= 1e-5f, "round %d element %d: %g, expected %g", i, k, (double)got[k], (double)now[k]);
        if (view) {
            read_f32(view, seen, N);
            CHECK(memcmp(seen, kept, sizeof seen) == 0, "round %d: the view changed", i);
        }
        if (sum && OK(kiln_item(sum, &total)))
            CHECK(fabs(total - wanted) <= 1e-2, "round %d: sum of the old values %g, expected %g", i, total, wanted);
        memcpy(now, got, sizeof now); /* carry on from what kiln has */
        kiln_scope_end(scope);
    }
}

/* An optimiser's step: memory in use does not grow, and the parameter stays where it is. */
static void assign_in_place(void)
{
    enum { N = 1 << 16 };
    kiln_tensor *p = kiln_add(plain_f32(KILN_SHAPE(N), 1), kiln_zeros(KILN_F32, KILN_SHAPE(N)));
    kiln_tensor *gradient = plain_f32(KILN_SHAPE(N), 2);
    OK(kiln_eval(p));
    const void *first = NULL, *now = NULL;
    int moved = 0;
    for (int i = 0; i < 10; i++) {
        kiln_scope *scope = kiln_scope_begin();
        OK(kiln_assign(p, kiln_sub(p, kiln_mul(gradient, kiln_scalar(0.01 * i)))));
        OK(kiln_eval(p));
        kiln_scope_end(scope);
    }
    kiln_stats before = stats_now();
    kiln_reset_stats();
    for (int i = 0; i < 10; i++) {
        kiln_scope *scope = kiln_scope_begin();
        OK(kiln_assign(p, kiln_sub(p, kiln_mul(gradient, kiln_scalar(0.5)))));
        OK(kiln_eval(p));
        kiln_scope_end(scope);
    }
    kiln_stats after = stats_now();
    CHECK(after.compiles == 0, "%d compiles in a warm loop", (int)after.compiles);
    CHECK(after.peak_bytes <= before.live_bytes + (int64_t)sizeof(float) * 16, "peak %" PRId64 " bytes, live %" PRId64, after.peak_bytes,
          before.live_bytes);
    if (on_device())
        return;
    OK(kiln_data(p, &first)); /* exported from here on: no longer overwritten */
    static float was[N];
    memcpy(was, first, sizeof was);
    OK(kiln_assign(p, kiln_sub(p, kiln_scalar(1))));
    OK(kiln_data(p, &now));
    moved = now != first;
    CHECK(moved || memcmp(was, first, sizeof was) != 0, "%s", "the assigned tensor did not change");
}

/* --- functions --- */

static void axpy(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **captured = user;
    out[0] = kiln_add(kiln_mul(in[0], in[1]), captured[0]);
    out[1] = kiln_sum(out[0]);
}

static void functions(void)
{
    kiln_tensor *captured[1] = {kiln_full(KILN_F32, KILN_SHAPE(), 1)};
    kiln_function *f = kiln_function_new(axpy, 2, 2, captured);
    for (int i = 0; i < 30; i++) {
        kiln_scope *scope = kiln_scope_begin();
        int64_t n = i < 10 ? 16 : 3 + i % 5 * 9;
        kiln_tensor *in[2] = {plain_f32(KILN_SHAPE(n), (uint64_t)i), kiln_full(KILN_F32, KILN_SHAPE(), i)}, *out[2];
        if (i == 20)
            OK(kiln_assign(captured[0], kiln_full(KILN_F32, KILN_SHAPE(), -2)));
        float data[64], got[64];
        values_fill(KILN_F32, VALUES_PLAIN, 0, (uint64_t)i, n, data);
        if (!OK(kiln_function_call(f, in, out)))
            break;
        read_f32(out[0], got, n);
        double total = 0, sum = 0;
        for (int64_t k = 0; k < n; k++) {
            float wanted = data[k] * (float)i + (i < 20 ? 1 : -2);
            CHECK(fabsf(got[k] - wanted) <= 1e-5f * fabsf(wanted) + 1e-6f, "call %d element %d: %g, expected %g", i, (int)k, (double)got[k],
                  (double)wanted);
            sum += (double)got[k];
        }
        OK(kiln_item(out[1], &total));
        CHECK(fabs(total - sum) <= 1e-4 * (1 + fabs(sum)), "call %d: sum %g, expected %g", i, total, sum);
        kiln_scope_end(scope);
    }
    CHECK(stats_now().compiles <= 12, "%d compiles", (int)stats_now().compiles);
    kiln_function_free(f);
}

/* --- failing to compile --- */

static void compile_fails(void)
{
    float got[3];
    set_option("test_fail", "compile");
    for (int i = 0; i < 4; i++) {
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), (float[]){1, 2, 3});
        OK(kiln_read(kiln_mul(x, kiln_scalar(2)), KILN_F32, got, sizeof got));
        CHECK(got[0] == 2 && got[1] == 4 && got[2] == 6, "the interpreter gives %g %g %g", (double)got[0], (double)got[1], (double)got[2]);
    }
    CHECK(stats_now().fallbacks >= 1 && stats_now().compiles == 0, "fallbacks %d compiles %d", (int)stats_now().fallbacks,
          (int)stats_now().compiles);
    CHECK(n_warnings == 1, "%d warnings, the last: %s", n_warnings, last_warning);
    CHECK(strstr(last_warning, "mutate_reuse.c"), "the warning does not name the place: %s", last_warning);
    set_option("strict", "1");
    kiln_tensor *y = kiln_mul(kiln_from(KILN_F32, KILN_SHAPE(3), (float[]){1, 2, 3}), kiln_scalar(2));
    for (int i = 0; i < 2; i++) {
        CHECK(kiln_read(y, KILN_F32, got, sizeof got) == KILN_COMPILE, "strict: %s", kiln_error_message());
        CHECK(kiln_error_message()[0], "%s", "no message");
        kiln_clear_error();
    }
    set_option("test_fail", "");
    read_f32(y, got, 3);
    CHECK(got[2] == 6 && stats_now().compiles == 1, "after the failure: %g, %d compiles", (double)got[2], (int)stats_now().compiles);
}

/* x added i + 1 times to a half: another structure for each i. */
static kiln_tensor *added_often(size_t i)
{
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){1, 2}), *y = kiln_add(x, kiln_scalar(0.5));
    for (size_t k = 0; k < i; k++)
        y = kiln_add(y, x);
    return y;
}

/* A pass that fails leaves no entry that looks valid. */
static void pass_fails(void)
{
    static const char *const passes[] = {"pass:canonicalise", "pass:fold", "pass:rules", "pass:cse", "pass:dce", "compile"};
    set_option("strict", "1");
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        float got[2];
        kiln_tensor *y = added_often(i);
        set_option("test_fail", passes[i]);
        for (int again = 0; again < 2; again++) { /* the same error, for it and for an equal graph */
            kiln_status status = kiln_read(again ? added_often(i) : y, KILN_F32, got, sizeof got);
            CHECK(status == KILN_COMPILE && strstr(kiln_error_message(), "KILN_TEST_FAIL"), "%s: %s: %s", passes[i],
                  kiln_status_name(status), kiln_error_message());
            kiln_clear_error();
        }
        CHECK(stats_now().compiles == (int64_t)i && !kiln_is_evaluated(y), "%s: %d programs", passes[i], (int)stats_now().compiles);
        set_option("test_fail", "");
        read_f32(y, got, 2);
        CHECK(got[1] == 2.5f + 2 * (float)i, "%s: %g", passes[i], (double)got[1]);
    }
}

static void unknown_options(void)
{
    CHECK(kiln_set_option("mode", "fastest") == KILN_INVALID, "%s", "accepted");
    CHECK(strstr(kiln_error_message(), "eager") && strstr(kiln_error_message(), "interp"), "message: %s", kiln_error_message());
    kiln_clear_error();
    CHECK(kiln_set_option("colour", "red") == KILN_INVALID, "%s", "accepted");
    CHECK(strstr(kiln_error_message(), "math"), "message: %s", kiln_error_message());
    kiln_clear_error();
    char mode[8];
    CHECK(kiln_get_option("mode", mode, sizeof mode) == KILN_OK && strcmp(mode, "jit") == 0, "mode is %s", mode);
}

static void unknown_environment(void)
{
    setenv("KILN_MODE", "fastest", 1);
    setenv("KILN_NO_SUCH_OPTION", "1", 1);
    double value;
    for (int i = 0; i < 3; i++)
        OK(kiln_item(kiln_sum(kiln_ones(KILN_F32, KILN_SHAPE(4))), &value));
    CHECK(n_warnings >= 1 && n_warnings <= 2, "%d warnings, the last: %s", n_warnings, last_warning);
    CHECK(n_warnings == 2 || strstr(last_warning, "eager"), "the valid ones are not named: %s", last_warning);
    unsetenv("KILN_MODE");
    unsetenv("KILN_NO_SUCH_OPTION");
}

int main(int argc, char **argv)
{
    static const Test tests[] = {
        /* clang-format off */
        {"second_call", second_call},       {"generalised", generalised},         {"always_dynamic", always_dynamic},
        {"never_dynamic", never_dynamic},   {"random_shapes", random_shapes},     {"thousand_scalars", thousand_scalars},
        {"draws", draws},                   {"feed_back", feed_back},             {"old_results", old_results},
        {"assign", assign_all},             {"assign_alternating", assign_alternating}, {"assign_in_place", assign_in_place},
        {"functions", functions},           {"compile_fails", compile_fails},     {"pass_fails", pass_fails},
        {"unknown_options", unknown_options}, {"unknown_environment", unknown_environment},
        /* clang-format on */
    };
    if (on_device()) /* only then are its numbers the interpreter's */
        setenv("KILN_MATH", "strict", 1);
    return run_some_tests("mutate_reuse", tests, sizeof tests / sizeof *tests, argc, argv);
}

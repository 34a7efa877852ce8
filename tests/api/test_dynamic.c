/*
 * Which sizes are compiled in and which are arguments: the second value of a size makes one more program and the third hits it; marks;
 * KILN_ON_RECOMPILE; the warning about a place that recompiles. Each test runs in a process of its own: the cache is empty.
 */
#include "tests/api/api.h"

#include <inttypes.h>
#include <stdio.h>

static char warning[2048];
static int warnings;

static void keep_warning(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    if (level)
        return;
    warnings++;
    snprintf(warning, sizeof warning, "%s", line);
}

static int64_t compiles(void)
{
    kiln_stats stats = stats_now();
    cr_assert(stats.fallbacks == 0, "a graph did not compile");
    return stats.compiles;
}

static kiln_tensor *counted(int64_t rows, int64_t columns)
{
    float data[8192];
    cr_assert(rows * columns <= (int64_t)(sizeof data / sizeof *data));
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = (float)i;
    return kiln_from(KILN_F32, KILN_SHAPE(rows, columns), data);
}

/* The compiles that evaluating x takes. */
static int64_t cost(kiln_tensor *x)
{
    int64_t before = compiles();
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return compiles() - before;
}

/* --- the second value --- */

typedef kiln_tensor *Sized(int64_t n);
static kiln_tensor *dim(int64_t n) { return kiln_exp(counted(n, 3)); }
static kiln_tensor *reshape_target(int64_t n)
{
    return kiln_sum_axes(kiln_reshape(counted(5, 2 * n), KILN_SHAPE(5, n, 2)), KILN_AXES(1), false);
}
static kiln_tensor *slice_length(int64_t n) { return kiln_neg(kiln_slice_axis(counted(50, 3), 0, 2, 2 + n, 1)); }
static kiln_tensor *slice_start(int64_t n) { return kiln_neg(kiln_slice_axis(counted(50, 3), 0, n, n + 4, 1)); }
static kiln_tensor *slice_stride(int64_t n) { return kiln_neg(kiln_slice_axis(counted(61, 3), 0, 0, 2 * n, n)); }
static kiln_tensor *pad_width(int64_t n) { return kiln_pad(counted(4, 3), 1, (kiln_padding[]){{n, 1}}, kiln_scalar(2)); }
static kiln_tensor *arange_length(int64_t n) { return kiln_arange(KILN_I64, 0, (double)n, 1); }
static kiln_tensor *expand_size(int64_t n) { return kiln_sum_axes(kiln_expand(counted(1, 7), KILN_SHAPE(n, 7)), KILN_AXES(0), false); }
static kiln_tensor *full_size(int64_t n) { return kiln_full(KILN_F32, KILN_SHAPE(n, 2), 3); }
static kiln_tensor *concat_size(int64_t n) { return kiln_concat((kiln_tensor *[]){counted(n, 3), counted(4, 3)}, 2, 0); }

Test(dynamic, the_third_value_of_a_size_hits)
{
    static const struct {
        const char *name;
        Sized *build;
    } rows[] = {{"dim", dim},
                {"reshape target", reshape_target},
                {"slice length", slice_length},
                {"slice start", slice_start},
                {"slice step", slice_stride},
                {"pad width", pad_width},
                {"arange length", arange_length},
                {"expand size", expand_size},
                {"full size", full_size},
                {"concat size", concat_size}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kiln_scope *scope = kiln_scope_begin();
        cr_assert(cost(rows[i].build(10)) == 1, "%s: the first value", rows[i].name);
        cr_assert(cost(rows[i].build(10)) == 0, "%s: the same value", rows[i].name);
        cr_assert(cost(rows[i].build(13)) <= 1, "%s: the second value", rows[i].name);
        for (int64_t n = 2; n < 25; n++)
            cr_assert(cost(rows[i].build(n)) == 0, "%s: %d", rows[i].name, (int)n);
        kiln_scope_end(scope);
    }
}

static int64_t cost_of_windows(int64_t size, int64_t stride)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_reshape(counted(2 * size, size), KILN_SHAPE(1, 2, size, size)),
                *weight = kiln_ones(KILN_F32, KILN_SHAPE(3, 2, 3, 3));
    cr_assert(kiln_eval(x) == KILN_OK && kiln_eval(weight) == KILN_OK, "%s", kiln_error_message());
    int64_t n = cost(kiln_conv(x, weight, &(kiln_conv_options){.stride = {stride, stride}}));
    kiln_scope_end(scope);
    return n;
}

/* A convolution has programs for all sizes with each of the strides that are usual, and one with all strides. */
Test(dynamic, usual_strides_have_programs_of_their_own)
{
    cr_assert(cost_of_windows(20, 1) == 1 && cost_of_windows(23, 1) == 1, "sizes vary");
    cr_assert(cost_of_windows(25, 2) == 1, "another stride");
    cr_assert(cost_of_windows(31, 3) == 1, "a third one");
    for (int64_t n = 33; n < 40; n++)
        cr_assert(cost_of_windows(n, 1 + n % 3) == 0, "%d", (int)n);
    cr_assert(cost_of_windows(41, 5) == 1, "no usual one");
    for (int64_t n = 42; n < 50; n++)
        cr_assert(cost_of_windows(n, 4 + n % 6) == 0 && cost_of_windows(n, 1 + n % 3) == 0, "%d", (int)n);
}

Test(dynamic, a_warning_names_the_place_that_recompiles)
{
    kiln_set_log_sink(keep_warning, NULL);
    set_option("dynamic", "never");
    int line = 0;
    for (int64_t n = 1; n < 40; n++) {
        kiln_tensor *x = kiln_exp(counted(n, 2));
        line = __LINE__ + 1;
        cr_assert(kiln_eval(x) == KILN_OK);
    }
    cr_assert(warnings == 1, "%d warnings", warnings);
    char place[128];
    snprintf(place, sizeof place, "test_dynamic.c:%d: 8 recompiles of one graph in the last 8 evaluations", line);
    cr_assert(strstr(warning, place) && strstr(warning, "size of axis 0"), "%s", warning);
}

/* What a plugin's file name is worth once the plugin is unloaded: the memory may hold anything. */
static void forget(char *name) { memset(name, '!', strlen(name)); }

Test(dynamic, recompiles_are_counted_though_the_name_of_the_file_is_gone)
{
    static char name[8][16];
    kiln_set_log_sink(keep_warning, NULL);
    set_option("dynamic", "never");
    for (int i = 0; i < 40; i++) {
        strcpy(name[i % 8], "plugin.c");
        cr_assert(kiln_eval_at(kiln_exp(counted(i + 1, 2)), name[i % 8], 5) == KILN_OK);
        forget(name[i % 8]);
    }
    cr_assert(warnings == 1 && strstr(warning, "plugin.c:5: 8 recompiles of one graph"), "%d warnings: %s", warnings, warning);
}

Test(dynamic, scalars_that_change_never_warn)
{
    kiln_set_log_sink(keep_warning, NULL);
    for (int i = 0; i < 100; i++)
        cr_assert(kiln_eval(kiln_mul(counted(4, 4), kiln_scalar(i))) == KILN_OK);
    cr_assert(warnings == 0 && compiles() <= 3, "%d warnings, %d compiles", warnings, (int)compiles());
}

/* --- what a recompile leads to --- */

Test(dynamic, on_recompile_error_refuses_and_changes_nothing)
{
    set_option("on_recompile", "error");
    cr_assert(cost(kiln_exp(counted(3, 4))) == 1); /* the first program of a graph is no recompile */
    kiln_tensor *other = kiln_exp(counted(5, 4));
    int64_t before = compiles();
    kiln_stats then = stats_now();
    cr_assert(kiln_eval(other) == KILN_COMPILE);
    kiln_stats now = stats_now();
    cr_assert(now.live_bytes == then.live_bytes && now.kernels == then.kernels && now.hits == then.hits, "something was run");
    const char *message = kiln_error_message();
    cr_assert(strstr(message, "KILN_ON_RECOMPILE") && strstr(message, "expected 3, found 5") && strstr(message, "test_dynamic.c:"), "%s",
              message);
    cr_assert(!kiln_is_evaluated(other) && compiles() == before);
    cr_assert(cost(kiln_exp(counted(3, 4))) == 0);
    cr_assert(kiln_eval(other) == KILN_COMPILE);
    set_option("on_recompile", "ignore");
    cr_assert(cost(other) == 1);
    set_option("on_recompile", "error");
    cr_assert(cost(kiln_exp(counted(9, 4))) == 0); /* the generalised program fits */
    cr_assert(cost(kiln_exp(kiln_cast(counted(9, 4), KILN_F64))) == 1);
}

Test(dynamic, on_recompile_warn_says_why)
{
    kiln_set_log_sink(keep_warning, NULL);
    set_option("on_recompile", "warn");
    cr_assert(cost(kiln_exp(counted(3, 4))) == 1 && warnings == 0);
    cr_assert(cost(kiln_exp(counted(3, 5))) == 1 && warnings == 1);
    cr_assert(strstr(warning, "size of axis 1") && strstr(warning, "expected 4, found 5"), "%s", warning);
    cr_assert(cost(kiln_exp(counted(3, 6))) == 0 && warnings == 1);
}

/* --- marks --- */

static kiln_tensor *dynamic_rows(int64_t rows, int64_t columns)
{
    kiln_tensor *x = counted(rows, columns);
    cr_assert(kiln_mark_dynamic(x, 0, 1, 100) == KILN_OK, "%s", kiln_error_message());
    return x;
}

Test(dynamic, a_dynamic_axis_is_an_argument_from_the_first_compile)
{
    cr_assert(cost(kiln_exp(dynamic_rows(4, 3))) == 1);
    for (int64_t n = 1; n < 20; n++) {
        kiln_tensor *y = kiln_exp(dynamic_rows(n, 3));
        cr_assert(cost(y) == 0, "%d rows", (int)n);
        float data[64];
        cr_assert(kiln_read(y, KILN_F32, data, sizeof *data * (size_t)(3 * n)) == KILN_OK);
        cr_assert(fabsf(data[2] - expf(2)) < 1e-5f);
    }
    cr_assert(cost(kiln_exp(dynamic_rows(4, 5))) == 1); /* the other axis is not */
    cr_assert(cost(kiln_exp(dynamic_rows(7, 6))) == 0);
}

Test(dynamic, an_axis_that_must_equal_a_dynamic_one_is_dynamic)
{
    cr_assert(cost(kiln_add(dynamic_rows(4, 3), counted(4, 3))) == 1);
    cr_assert(cost(kiln_add(dynamic_rows(9, 3), counted(9, 3))) == 0);
}

Test(dynamic, a_static_axis_is_never_generalised)
{
    for (int round = 0; round < 2; round++)
        for (int64_t n = 2; n < 14; n++) {
            kiln_tensor *x = counted(5, n);
            cr_assert(kiln_mark_static(x, -1) == KILN_OK);
            cr_assert(cost(kiln_softmax(x, 1)) == (round == 0), "%d columns, round %d", (int)n, round);
        }
    kiln_tensor *x = counted(7, 3); /* rows generalise beside it */
    cr_assert(kiln_mark_static(x, 1) == KILN_OK);
    cr_assert(cost(kiln_softmax(x, 1)) == 1);
    x = counted(9, 3);
    cr_assert(kiln_mark_static(x, 1) == KILN_OK);
    cr_assert(cost(kiln_softmax(x, 1)) == 0);
}

static kiln_tensor *marked_static(int64_t rows)
{
    kiln_tensor *x = counted(rows, 3);
    cr_assert(kiln_mark_static(x, 0) == KILN_OK);
    return x;
}

Test(dynamic, static_marks_hold_under_dynamic_always)
{
    set_option("dynamic", "always");
    cr_assert(cost(kiln_exp(marked_static(3))) == 1);
    cr_assert(cost(kiln_exp(marked_static(4))) == 1);
    cr_assert(cost(kiln_exp(counted(5, 3))) == 1);
    cr_assert(cost(kiln_exp(counted(6, 3))) == 0);
}

static void refused(kiln_status status, kiln_status wanted, const char *first, const char *second)
{
    const char *message = kiln_error_message();
    cr_assert(status == wanted, "%s: %s", kiln_status_name(status), message);
    cr_assert(strstr(message, first) && strstr(message, second), "%s", message);
}

Test(dynamic, bad_marks_are_errors_that_name_both_places)
{
    kiln_tensor *x = counted(4, 3);
    const char *made = "recorded at ";
    char marked[64];
    refused(kiln_mark_dynamic(x, 2, 0, 9), KILN_BAD_SHAPE, "axis 2 does not exist: x is f32[4,3]", made);
    refused(kiln_mark_static(x, -3), KILN_BAD_SHAPE, "axis -3", made);
    refused(kiln_mark_dynamic(x, 0, 9, 8), KILN_INVALID, "min 9 and max 8", "test_dynamic.c:");
    refused(kiln_mark_dynamic(x, 0, -1, 8), KILN_INVALID, "min -1", "test_dynamic.c:");
    refused(kiln_mark_dynamic(x, 0, 5, 8), KILN_BAD_SHAPE, "is 4: outside the promised 5 to 8", made);
    refused(kiln_mark_dynamic(NULL, 0, 5, 8), KILN_INVALID, "x is NULL", "test_dynamic.c:");
    cr_assert(kiln_mark_dynamic(x, 0, 4, 4) == KILN_OK);
    snprintf(marked, sizeof marked, "test_dynamic.c:%d", __LINE__ - 1);
    refused(kiln_mark_static(x, 0), KILN_INVALID, "already marked dynamic", marked);
    cr_assert(kiln_mark_dynamic(x, 0, 0, INT64_MAX) == KILN_OK); /* again, otherwise promised */
    cr_assert(kiln_error_status() != KILN_OK);
    kiln_clear_error();
}

Test(dynamic, marks_that_contradict_each_other_in_a_graph_fail_it)
{
    kiln_tensor *x = counted(4, 3), *y = counted(4, 3);
    cr_assert(kiln_mark_dynamic(x, 0, 0, 100) == KILN_OK);
    cr_assert(kiln_mark_static(y, 0) == KILN_OK);
    char first[32], second[32];
    snprintf(first, sizeof first, "test_dynamic.c:%d", __LINE__ - 3);
    snprintf(second, sizeof second, "test_dynamic.c:%d", __LINE__ - 3);
    refused(kiln_eval(kiln_add(x, y)), KILN_INVALID, first, second);
    cr_assert(cost(kiln_add(kiln_exp(x), kiln_exp(counted(4, 3)))) == 1);
    cr_assert(cost(kiln_matmul(x, kiln_transpose(y))) == 1); /* different sizes that happen to be equal */
}

/* The same in each mode: what the interpreter and eager ops compute obeys the marks' word, too. */
Test(dynamic, marks_that_contradict_each_other_fail_in_every_mode)
{
    static const char *const modes[] = {"interp", "eager", "jit"};
    for (int m = 0; m < 3; m++) {
        set_option("mode", modes[m]);
        kiln_tensor *x = counted(4, 3), *y = counted(4, 3);
        cr_assert(kiln_eval(x) == KILN_OK && kiln_eval(y) == KILN_OK);
        cr_assert(kiln_mark_dynamic(x, 0, 0, 100) == KILN_OK);
        cr_assert(kiln_mark_static(y, 0) == KILN_OK);
        char first[32], second[32];
        snprintf(first, sizeof first, "test_dynamic.c:%d", __LINE__ - 3);
        snprintf(second, sizeof second, "test_dynamic.c:%d", __LINE__ - 3);
        refused(kiln_eval(kiln_add(x, y)), KILN_INVALID, first, second);
        refused(kiln_mark_dynamic(x, 1, 5, 9), KILN_BAD_SHAPE, "axis 1 of f32[4,3]", "outside the promised 5 to 9");
    }
}

/* --- the order of a product with a vector --- */

enum { DEEP = 500, WIDE = 60, MOST_ROWS = 8 };

/* The bits of rows of x times the transpose of w; or of a sum of products. */
static void read_rows(kiln_tensor *y, int64_t rows, float *out)
{
    cr_assert(kiln_read(y, KILN_F32, out, (size_t)rows * WIDE * sizeof *out) == KILN_OK, "%s", kiln_error_message());
}

static void rows_times(kiln_tensor *w, const float *x, int64_t rows, bool marked, float *out)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in = kiln_from(KILN_F32, KILN_SHAPE(rows, DEEP), x);
    if (marked)
        cr_assert(kiln_mark_dynamic(in, 0, 1, MOST_ROWS) == KILN_OK, "%s", kiln_error_message());
    read_rows(kiln_matmul(in, kiln_transpose(w)), rows, out);
    kiln_scope_end(scope);
}

/* One row is added up as a sum is, several as products are: it follows from the sizes of the call, not from which programs there are. */
static void one_row(const char *dynamic, bool marked)
{
    static float x[MOST_ROWS * DEEP], data[WIDE * DEEP], sum[WIDE], product[MOST_ROWS * WIDE];
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)((seed = seed * 1664525 + 1013904223) >> 8) / (1 << 23) - 1;
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        data[i] = (float)((seed = seed * 1664525 + 1013904223) >> 8) / (1 << 23) - 1;
    cr_assert(kiln_set_option("math", "fast") == KILN_OK && kiln_set_option("dynamic", dynamic) == KILN_OK);
    kiln_tensor *w = kiln_from(KILN_F32, KILN_SHAPE(WIDE, DEEP), data), *row = kiln_from(KILN_F32, KILN_SHAPE(1, DEEP), x);
    read_rows(kiln_sum_axes(kiln_mul(w, row), KILN_AXES(1), false), 1, sum);
    for (int64_t rows = 5; rows > 0; rows--) {
        rows_times(w, x, rows, marked, product);
        cr_expect_eq(!memcmp(sum, product, sizeof sum), rows == 1, "dynamic=%s, marked %d, rows %d", dynamic, marked, (int)rows);
    }
}

Test(dynamic, one_row_is_a_sum) { one_row("auto", false); }
Test(dynamic, one_row_of_a_dynamic_axis_is_a_sum) { one_row("auto", true); }
Test(dynamic, one_row_is_a_sum_with_programs_for_all_sizes) { one_row("always", false); }

/* --- the general program --- */

static kiln_tensor *cube(int64_t a, int64_t b, int64_t c)
{
    kiln_tensor *x = kiln_reshape(counted(a, b * c), KILN_SHAPE(a, b, c));
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

/* The sums of the rows of x[a,b,c] made [rows,?], checked; the compiles that they take. */
static int64_t row_sums(int64_t a, int64_t b, int64_t c, int64_t rows)
{
    float got[64];
    int64_t length = a * b * c / rows;
    kiln_tensor *sums = kiln_sum_axes(kiln_reshape(cube(a, b, c), KILN_SHAPE(rows, length)), KILN_AXES(1), false);
    int64_t taken = cost(sums);
    cr_assert(kiln_read(sums, KILN_F32, got, sizeof *got * (size_t)rows) == KILN_OK);
    for (int64_t i = 0; i < rows; i++)
        cr_assert_eq(got[i], (float)(length * (2 * i * length + length - 1) / 2), "[%d,%d,%d] row %d", (int)a, (int)b, (int)c, (int)i);
    return taken;
}

/* How the program for x[a,b,c] made [rows,?] would be found. */
static const char *found(int64_t a, int64_t b, int64_t c, int64_t rows)
{
    static char text[2048];
    kiln_tensor *sums = kiln_sum_axes(kiln_reshape(cube(a, b, c), KILN_SHAPE(rows, a * b * c / rows)), KILN_AXES(1), false);
    cr_assert(kiln_eval(cube(a, b, c)) == KILN_OK);
    cr_assert(kiln_explain(sums, text, sizeof text, NULL) == KILN_OK);
    return text;
}

/* It keeps the equalities that tell how a reshape groups its axes: without them each element's place is worked out by divisions. When
 * one fails there is the one program more that has none. */
Test(dynamic, the_general_program_knows_how_reshapes_group_until_one_does_not)
{
    set_option("max_variants", "2");
    cr_assert_eq(row_sums(2, 3, 4, 6), 1);
    cr_assert_eq(row_sums(2, 3, 5, 6), 1);  /* the last size is an argument */
    cr_assert_eq(row_sums(7, 2, 3, 14), 1); /* general */
    cr_assert(strstr(found(4, 4, 4, 16), "fits, with 2 guards"), "%s", found(4, 4, 4, 16));
    cr_assert_eq(row_sums(5, 2, 8, 10), 0);
    cr_assert_eq(row_sums(1, 1, 9, 1), 0);
    cr_assert(strstr(found(4, 3, 2, 4), "expected two equal sizes"), "%s", found(4, 3, 2, 4));
    cr_assert_eq(row_sums(4, 3, 2, 4), 1); /* [4,6]: the first axis stays */
    cr_assert(strstr(found(4, 3, 2, 4), "fits, with 0 guards"), "%s", found(4, 3, 2, 4));
    cr_assert_eq(row_sums(6, 2, 2, 8), 0); /* [8,3] */
    cr_assert_eq(row_sums(5, 2, 8, 10), 0);
    cr_assert_eq(row_sums(2, 3, 4, 6), 0);
}

/* Two lines of scalars with the same function of each: one of m, one of n elements. */
static void two_lines(int64_t m, int64_t n)
{
    kiln_scope *scope = kiln_scope_begin();
    float got[8192];
    int64_t size[2] = {m, n};
    kiln_tensor *both[2];
    for (int i = 0; i < 2; i++)
        both[i] = kiln_exp(kiln_full(KILN_F32, KILN_SHAPE(size[i]), 1));
    cr_assert(kiln_eval_many(both, 2) == KILN_OK, "%d and %d: %s", (int)m, (int)n, kiln_error_message());
    for (int i = 0; i < 2; i++) {
        cr_assert(kiln_numel(both[i]) == size[i]);
        cr_assert(kiln_read(both[i], KILN_F32, got, sizeof *got * (size_t)size[i]) == KILN_OK);
        for (int64_t j = 0; j < size[i]; j++)
            cr_assert(fabsf(got[j] - 2.7182817f) < 1e-5f, "%d and %d, line %d, element %d: %g", (int)m, (int)n, i, (int)j, got[j]);
    }
    kiln_scope_end(scope);
}

/* Without the rewriting of expands nothing else has asked whether the two shapes are one. */
static void lines_have_their_own_length(bool first_varies)
{
    set_option("rewrite", "0");
    for (int64_t n = 4096; n <= 8192; n += 2048)
        two_lines(first_varies ? n : 4096, first_varies ? 4096 : n);
    kiln_tensor *column = kiln_exp(kiln_full(KILN_F32, KILN_SHAPE(4096, 1), 1)),
                *row = kiln_exp(kiln_full(KILN_F32, KILN_SHAPE(1, 4096), 1));
    kiln_tensor *both[2] = {column, row};
    cr_assert(kiln_eval_many(both, 2) == KILN_OK, "%s", kiln_error_message());
    cr_assert(compiles() >= 3);
}

Test(dynamic, broadcast_scalars_are_merged_where_their_shapes_are_one) { lines_have_their_own_length(false); }
Test(dynamic, broadcast_scalars_are_merged_where_their_shapes_are_one_other_way) { lines_have_their_own_length(true); }

/* --- what a promise is good for --- */

static kiln_tensor *promised(kiln_tensor *x, int axis, int64_t min, int64_t max)
{
    if (min <= max)
        cr_assert(kiln_mark_dynamic(x, axis, min, max) == KILN_OK, "%s", kiln_error_message());
    return x;
}

/* The guards of the program that x would run, and x is computed: 0, 1, 0, 1... with x[i] > 0 read as any of n copies. */
static int guards_of_any(int64_t n, int64_t min, int64_t max, int64_t *compiled)
{
    kiln_tensor *odd[2];
    bool got[4];
    int guards = -1;
    for (int i = 0; i < 2; i++) {
        kiln_tensor *flags = kiln_from(KILN_BOOL, KILN_SHAPE(4, 1), (bool[]){false, true, false, true});
        odd[i] = kiln_any_axes(promised(kiln_expand(flags, KILN_SHAPE(4, n)), 1, min, max), KILN_AXES(1), false);
    }
    *compiled = cost(odd[0]);
    char text[2048];
    cr_assert(kiln_explain(odd[1], text, sizeof text, NULL) == KILN_OK);
    cr_assert(strstr(text, "fits, with "), "%s", text);
    sscanf(strstr(text, "fits, with "), "fits, with %d", &guards);
    cr_assert(kiln_read(odd[0], KILN_BOOL, got, sizeof got) == KILN_OK);
    for (int i = 0; i < 4; i++)
        cr_assert(got[i] == (i % 2 && n > 0), "%d copies, element %d", (int)n, i);
    return guards;
}

Test(dynamic, a_promise_needs_no_guard)
{
    int64_t compiled;
    set_option("dynamic", "always");
    cr_assert_eq(guards_of_any(6, 2, 1, &compiled), 1); /* no mark: of no copies there is none that is true */
    cr_assert_eq(compiled, 1);
    cr_assert_eq(guards_of_any(6, 1, 50, &compiled), 0);
    cr_assert_eq(compiled, 1);
    cr_assert_eq(guards_of_any(9, 1, 50, &compiled), 0);
    cr_assert_eq(compiled, 0, "the same promise");
    cr_assert_eq(guards_of_any(0, 0, 50, &compiled), 0);
    cr_assert_eq(compiled, 1, "another promise has programs of its own");
    cr_assert_eq(guards_of_any(7, 7, 7, &compiled), 0);
    cr_assert_eq(guards_of_any(0, 0, 0, &compiled), 0);
}

Test(dynamic, a_promise_holds_for_the_most_general_program)
{
    int64_t compiled;
    set_option("max_variants", "1");
    for (int64_t n = 3; n < 6; n++) {
        cr_assert_eq(guards_of_any(n, 1, 50, &compiled), 0);
        cr_assert_eq(compiled, n == 3);
    }
}

static char kernels[8192];

static void keep_kernels(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level;
    size_t used = strlen(kernels);
    if (strcmp(topic, "kernels") == 0)
        snprintf(kernels + used, sizeof kernels - used, "%s\n", line);
}

/* The kernels of sums of rows that an index picks, with rows of n. */
static const char *sums_of_picked(int64_t n, int64_t min, int64_t max)
{
    kiln_tensor *x = counted(4, 8 * n), *index = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){3, 1});
    kiln_tensor *sums = kiln_sum_axes(kiln_take(promised(x, 1, min, max), index, 0), KILN_AXES(1), false);
    float got[2];
    kernels[0] = 0;
    cr_assert(kiln_read(sums, KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < 2; i++) {
        float first = (float)(i ? 8 * n : 24 * n), last = first + (float)(8 * n) - 1;
        cr_assert_float_eq(got[i], n ? 4 * (float)n * (first + last) : 0, 1e-2f * (1 + got[i] * 1e-4f));
    }
    return kernels;
}

/* An index is checked where rows hold something; where they are promised to, the code need not ask. */
Test(dynamic, a_promise_makes_code_simpler)
{
    kiln_set_log_sink(keep_kernels, NULL);
    set_option("dynamic", "always");
    set_option("log", "kernels");
    cr_assert(strstr(sums_of_picked(4, 2, 1), " gt "), "%s", kernels);
    cr_assert(strstr(sums_of_picked(4, 0, 500), " gt "), "%s", kernels);
    cr_assert_not(strstr(sums_of_picked(4, 1, 500), " gt "), "%s", kernels);
    cr_assert(kernels[0]);
    (void)sums_of_picked(0, 0, 500);
    (void)sums_of_picked(9, 1, 500);
    set_option("log", "");
    kiln_set_log_sink(NULL, NULL);
}

/* x is marked where it is computed: inside this graph, and as an input of the next. */
static kiln_tensor *marked_inside(int64_t n, bool fixed)
{
    kiln_tensor *x = kiln_exp(counted(n, 3));
    cr_assert((fixed ? kiln_mark_static(x, 0) : kiln_mark_dynamic(x, 0, 1, 100)) == KILN_OK, "%s", kiln_error_message());
    return kiln_neg(x);
}

Test(dynamic, marks_of_values_still_to_be_computed_count)
{
    for (int64_t n = 3; n < 9; n++) {
        cr_assert(cost(marked_inside(n, false)) == (n == 3), "dynamic, %d rows", (int)n);
        cr_assert(cost(marked_inside(n, true)) == 1, "static, %d rows", (int)n);
        cr_assert(cost(marked_inside(n, true)) == 0, "static, %d rows again", (int)n);
    }
    cr_assert(cost(kiln_neg(kiln_exp(counted(3, 3)))) == 1, "without a mark");
    for (int64_t n = 3; n < 9; n++) { /* a size made of two */
        kiln_tensor *x = kiln_concat((kiln_tensor *[]){counted(n, 3), counted(20 - 2 * n, 3)}, 2, 0);
        cr_assert(kiln_mark_dynamic(x, 0, 1, 100) == KILN_OK);
        cr_assert(cost(kiln_exp(x)) == (n == 3), "sum, %d rows", (int)n);
    }
    for (int64_t n = 3; n < 9; n++) {
        kiln_tensor *x = kiln_abs(counted(n, 3));
        cr_assert(kiln_mark_dynamic(x, 0, 1, 100) == KILN_OK);
        (void)cost(x);
        cr_assert(cost(kiln_sqrt(x)) == (n == 3), "input, %d rows", (int)n);
    }
}

static kiln_tensor *captured;

static void times_captured(kiln_tensor **in, kiln_tensor **out, void *user)
{
    ++*(int *)user;
    out[0] = kiln_mul(in[0], captured);
}

Test(dynamic, a_mark_on_a_captured_tensor_is_seen_after_the_trace)
{
    int runs = 0;
    kiln_function *f = kiln_function_new(times_captured, 1, 1, &runs);
    kiln_tensor *x = counted(4, 3), *y;
    captured = counted(4, 3);
    for (int k = 0; k < 3; k++)
        cr_assert(kiln_function_call(f, &x, &y) == KILN_OK, "%s", kiln_error_message());
    cr_assert(runs == 1);
    int64_t before = compiles();
    cr_assert(kiln_mark_dynamic(captured, 0, 0, 100) == KILN_OK);
    for (int k = 0; k < 3; k++)
        cr_assert(kiln_function_call(f, &x, &y) == KILN_OK, "%s", kiln_error_message());
    cr_assert(runs == 2 && compiles() == before + 1, "%d runs, %d compiles", runs, (int)(compiles() - before));
    x = counted(9, 3), captured = counted(9, 3);
    cr_assert(kiln_mark_dynamic(captured, 0, 0, 100) == KILN_OK);
    cr_assert(kiln_function_call(f, &x, &y) == KILN_OK);
    cr_assert(compiles() == before + 1, "the size was no argument");
    kiln_function_free(f);
}

static void twice(kiln_tensor **in, kiln_tensor **out, void *user)
{
    ++*(int *)user;
    out[0] = kiln_add(in[0], in[0]);
}

Test(dynamic, marks_of_a_functions_inputs_count)
{
    int runs = 0;
    kiln_function *f = kiln_function_new(twice, 1, 1, &runs);
    int64_t before = compiles();
    for (int64_t n = 3; n < 9; n++) {
        kiln_tensor *x = dynamic_rows(n, 3), *y;
        cr_assert(kiln_function_call(f, &x, &y) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_dim(y, 0) == n);
    }
    cr_assert(compiles() == before + 1, "%d compiles", (int)(compiles() - before));
    kiln_tensor *plain = counted(3, 3), *y;
    int traced = runs;
    cr_assert(kiln_function_call(f, &plain, &y) == KILN_OK);
    cr_assert(runs == traced + 1);
    kiln_function_free(f);
}

/* --- explained before it runs --- */

static const char *explained(kiln_tensor *x)
{
    static char text[2048];
    size_t needed = 0;
    kiln_stats before = stats_now();
    cr_assert(kiln_explain(x, text, sizeof text, &needed) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    cr_assert(needed == strlen(text) && before.compiles == after.compiles && before.evals == after.evals);
    return text;
}

static kiln_tensor *two_kernels(int64_t n) { return kiln_exp(kiln_cumsum(kiln_sin(counted(n, 4)), 0)); }

Test(dynamic, explain_says_what_would_happen)
{
    kiln_tensor *x = two_kernels(3);
    const char *text = explained(x);
    cr_assert(strstr(text, "never_seen") && strstr(text, "would compile"), "%s", text);
    cr_assert(!kiln_is_evaluated(x));
    unsigned planned = 0, launched = 0;
    cr_assert(sscanf(strstr(text, "would compile"), "would compile %u launch", &planned) == 1 && planned > 0, "%s", text);
    kiln_stats before = stats_now();
    cr_assert(cost(x) == 1);
    kiln_stats after = stats_now();
    cr_assert(after.kernels - before.kernels == planned, "%u planned, %d ran", planned, (int)(after.kernels - before.kernels));

    text = explained(two_kernels(3));
    cr_assert(strstr(text, "hit: a compiled program fits") && strstr(text, "s0 == 3"), "%s", text);
    cr_assert(sscanf(strstr(text, "would run"), "would run %u launch", &launched) == 1 && launched == planned, "%s", text);
    x = two_kernels(5);
    text = explained(x);
    cr_assert(strstr(text, "size of axis 0") && strstr(text, "expected 3, found 5") && strstr(text, "test_dynamic.c:"), "%s", text);
    cr_assert(cost(x) == 1);
    text = explained(two_kernels(9));
    cr_assert(strstr(text, "hit: "), "%s", text);
    cr_assert(!strstr(text, "s0 =="), "%s", text);
    cr_assert(explained(x)[0] == '\0');
}

/* A graph that runs in parts is explained in parts, as many as there are; nothing is computed or left behind. */
Test(dynamic, explain_tells_each_part_of_a_large_graph)
{
    enum { OPS = 17000, ROOM = 1 << 20 };
    static char text[ROOM];
    size_t needed = 0;
    kiln_tensor *x = counted(2, 3), *y = x;
    for (int i = 0; i < OPS; i++)
        y = i % 2 ? kiln_abs(y) : kiln_neg(y);
    kiln_stats before = stats_now();
    for (int round = 0; round < 2; round++) {
        cr_assert(kiln_explain(y, text, sizeof text, &needed) == KILN_OK, "%s", kiln_error_message());
        cr_assert(needed == strlen(text));
        const char *last = strstr(text, "part 3, the last: ");
        cr_assert(strstr(text, "part 1: ") == text && strstr(text, "part 2: ") && !strstr(text, "part 4"), "%s", text);
        cr_assert(last && strstr(last, "would compile"), "%s", text);
        cr_assert(!kiln_is_evaluated(y));
    }
    char few[40];
    cr_assert(kiln_explain(y, few, sizeof few, &needed) == KILN_OK);
    cr_assert(needed == strlen(text) && strlen(few) == sizeof few - 1 && strncmp(few, text, sizeof few - 1) == 0);
    kiln_stats after = stats_now();
    cr_assert(after.evals == before.evals && after.compiles == before.compiles);
    cr_assert(cost(y) > 0);
    float data[6];
    cr_assert(kiln_read(y, KILN_F32, data, sizeof data) == KILN_OK);
    for (int i = 0; i < 6; i++)
        cr_assert(data[i] == (float)i);
    cr_assert(kiln_explain(y, text, sizeof text, &needed) == KILN_OK && needed == 0);
}

/* --- breaks --- */

static char line_seen[1024];
static int lines_seen;

static void keep_line(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level;
    if (strcmp(topic, "breaks") != 0)
        return;
    lines_seen++;
    snprintf(line_seen, sizeof line_seen, "%s", line);
}

Test(dynamic, a_sync_point_that_splits_a_graph_is_named)
{
    kiln_set_log_sink(keep_line, NULL);
    set_option("log", "breaks");
    double total = 0;
    char first[512], second[64], shared[64];
    kiln_tensor *x = counted(4, 4);
    kiln_tensor *y = kiln_exp(x), *z = kiln_mul(y, x);
    snprintf(shared, sizeof shared, "test_dynamic.c:%d", __LINE__ - 1);
    cr_assert(kiln_item(kiln_sum(y), &total) == KILN_OK);
    snprintf(first, sizeof first, "kiln_item at %s:%d split a graph", __FILE__, __LINE__ - 1);
    cr_assert(lines_seen == 0);
    cr_assert(kiln_eval(z) == KILN_OK);
    snprintf(second, sizeof second, "test_dynamic.c:%d needs again, such as the exp", __LINE__ - 1);
    cr_assert(lines_seen == 1 && strstr(line_seen, first) && strstr(line_seen, second) && strstr(line_seen, shared), "%s", line_seen);

    /* a loop that only uses results of the step before splits nothing ... */
    for (int i = 0; i < 5; i++) {
        x = kiln_sub(x, kiln_scalar(1));
        cr_assert(kiln_eval(x) == KILN_OK);
    }
    cr_assert(lines_seen == 1, "%s", line_seen);
    /* ... unless the program looks at one: told once */
    for (int i = 0; i < 5; i++) {
        x = kiln_sub(x, kiln_scalar(1));
        cr_assert(kiln_eval(x) == KILN_OK);
        cr_assert(kiln_item(kiln_sum(x), &total) == KILN_OK);
    }
    cr_assert(lines_seen == 2 && strstr(line_seen, "kiln_item at ") && strstr(line_seen, "cut a graph in two"), "%s", line_seen);
    x = counted(4, 4);
    kiln_tensor *both[] = {kiln_sum(kiln_exp(x)), kiln_neg(x)};
    cr_assert(kiln_eval_many(both, 2) == KILN_OK && lines_seen == 2);

    char name[] = "plugin.c";
    y = kiln_exp(x);
    cr_assert(kiln_eval_at(kiln_sum(y), name, 5) == KILN_OK);
    forget(name);
    cr_assert(kiln_eval(kiln_mul(y, x)) == KILN_OK);
    cr_assert(lines_seen == 3 && strstr(line_seen, "kiln_eval at plugin.c:5 split a graph"), "%s", line_seen);
}

/* Few rows read a matrix where it lies, more pack it: programs for up to 4, up to 8 and more, however often the number changes. */
Test(dynamic, products_of_few_and_of_more_rows_have_programs_of_their_own)
{
    enum { K = 200, COLUMNS = 210, MOST = 70 };
    static const int64_t rows[] = {3, 2, 4, 7, 70, 5, 8, 9, 40, 2, 6, 3, 33, 1, 4};
    static float x[MOST * K], w[K * COLUMNS], got[MOST * COLUMNS];
    for (int i = 0; i < MOST * K; i++)
        x[i] = (float)(i * 7 % 23 - 11);
    for (int i = 0; i < K * COLUMNS; i++)
        w[i] = (float)(i * 5 % 19 - 9);
    int64_t before = compiles();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = kiln_matmul(kiln_from(KILN_F32, KILN_SHAPE(rows[i], K), x), kiln_from(KILN_F32, KILN_SHAPE(K, COLUMNS), w));
        cr_assert(kiln_read(y, KILN_F32, got, sizeof(float) * (size_t)(rows[i] * COLUMNS)) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
        for (int64_t r = 0; r < rows[i]; r++)
            for (int c = 0; c < COLUMNS; c++) {
                float want = 0; /* whole numbers: exact in any order */
                for (int k = 0; k < K; k++)
                    want += x[r * K + k] * w[k * COLUMNS + c];
                cr_assert(got[r * COLUMNS + c] == want, "%d rows: %g instead of %g", (int)rows[i], (double)got[r * COLUMNS + c],
                          (double)want);
            }
    }
    cr_assert(compiles() - before <= 5, "%d programs", (int)(compiles() - before)); /* of 3 rows, these three, and of one row */
}

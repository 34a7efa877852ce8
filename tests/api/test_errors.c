/* Errors: first kept, NULL in gives NULL out, sync points, places. */
#include "api.h"
#include "tests/support/sanitizer.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static kiln_tensor *bad(void) { return kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(2)), kiln_zeros(KILN_F32, KILN_SHAPE(3))); }

Test(errors, the_first_is_kept)
{
    kiln_tensor *x = bad();
    cr_assert(x == NULL && kiln_error_status() == KILN_BAD_SHAPE);
    char text[256];
    strncpy(text, kiln_error_message(), sizeof text - 1);
    text[sizeof text - 1] = '\0';
    kiln_tensor *y = kiln_sum(kiln_relu(kiln_mul(x, kiln_sin(x))));
    cr_assert(y == NULL);
    cr_assert(kiln_reshape(kiln_zeros(KILN_F32, KILN_SHAPE(2)), KILN_SHAPE(3)) == NULL);
    cr_assert_str_eq(kiln_error_message(), text);
    double value = 7;
    cr_assert(kiln_item(y, &value) == KILN_BAD_SHAPE, "the sync point fails with the kept error");
    cr_assert(value == 7);
    cr_assert_str_eq(kiln_error_message(), text);
    cr_assert(kiln_item(y, &value) == KILN_INVALID, "which it consumed");
    cr_assert(strstr(kiln_error_message(), "kiln_item: x is NULL (test_errors.c:"), "%s", kiln_error_message());
    cr_assert(kiln_reshape(kiln_zeros(KILN_F32, KILN_SHAPE(2)), KILN_SHAPE(3)) == NULL);
    cr_assert(strstr(kiln_error_message(), "kiln_reshape"), "a new one is kept: %s", kiln_error_message());
    kiln_clear_error();
    cr_assert_str_eq(kiln_error_message(), "");
    cr_assert(kiln_error_status() == KILN_OK);
}

Test(errors, a_sync_point_fails_for_its_own_work_only)
{
    bad();
    kiln_tensor *fine = kiln_ones(KILN_F32, KILN_SHAPE(3));
    double value;
    cr_assert(kiln_item(kiln_sum(fine), &value) == KILN_OK && value == 3);
    float data[3];
    cr_assert(kiln_read(fine, KILN_F32, data, sizeof data) == KILN_OK);
    cr_assert(kiln_error_status() == KILN_BAD_SHAPE, "the kept error is still there");
    cr_assert(kiln_read(fine, KILN_F64, data, sizeof data) == KILN_BAD_DTYPE);
    cr_assert(strstr(kiln_error_message(), "kiln_read: dtype is f64: x is f32[3] (test_errors.c:"), "%s", kiln_error_message());
    cr_assert(kiln_eval(NULL) == KILN_BAD_SHAPE, "and is consumed by who gets NULL");
    cr_assert(strstr(kiln_error_message(), "kiln_add"));
}

Test(errors, sync_points_check_their_arguments)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2, 2));
    double value;
    int64_t whole;
    float data[4];
    char text[8];
    size_t needed;
    cr_assert(kiln_read(x, KILN_F32, data, 12) == KILN_INVALID);
    cr_assert(strstr(kiln_error_message(), "bytes is 12, 4 elements of 4 bytes"), "%s", kiln_error_message());
    cr_assert(kiln_read(x, KILN_F32, NULL, 16) == KILN_INVALID);
    cr_assert(kiln_read(NULL, KILN_F32, data, 16) == KILN_INVALID);
    cr_assert(kiln_item(x, &value) == KILN_BAD_SHAPE);
    cr_assert(strstr(kiln_error_message(), "one element is needed: x is f32[2,2]"), "%s", kiln_error_message());
    cr_assert(kiln_item(kiln_sum(x), NULL) == KILN_INVALID);
    cr_assert(kiln_item_int(kiln_sum(x), NULL) == KILN_INVALID);
    cr_assert(kiln_item_int(kiln_sum(x), &whole) == KILN_OK && whole == 4);
    cr_assert(kiln_item_int(kiln_full(KILN_F32, KILN_SHAPE(1, 1), -2.7), &whole) == KILN_OK && whole == -2);
    cr_assert(kiln_eval_many(NULL, 0) == KILN_OK);
    cr_assert(kiln_eval_many(NULL, 1) == KILN_INVALID);
    cr_assert(kiln_eval_many(&x, -1) == KILN_INVALID);
    cr_assert(kiln_eval_many((kiln_tensor *[]){x, NULL}, 2) == KILN_INVALID);
    cr_assert(strstr(kiln_error_message(), "tensor 1 is NULL"), "%s", kiln_error_message());
    cr_assert(kiln_data(x, NULL) == KILN_INVALID);
    cr_assert(kiln_format(x, NULL, 5, &needed) == KILN_INVALID);
    cr_assert(kiln_format(x, text, sizeof text, &needed) == KILN_OK && needed == 18 && strlen(text) == 7);
    cr_assert(kiln_format(x, NULL, 0, &needed) == KILN_OK && needed == 18);
    cr_assert(kiln_print(NULL) == KILN_INVALID);
    cr_assert(kiln_graph_text(NULL, text, sizeof text, &needed) == KILN_INVALID);
    cr_assert(kiln_error_status() == KILN_INVALID);
}

Test(errors, null_in_null_out)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *i = kiln_zeros(KILN_I64, KILN_SHAPE(1)), *out[2];
    kiln_tensor *const results[] = {kiln_add(NULL, x),
                                    kiln_add(x, NULL),
                                    kiln_neg(NULL),
                                    kiln_positive(NULL),
                                    kiln_cast(NULL, KILN_F32),
                                    kiln_where(NULL, x, x),
                                    kiln_where(x, NULL, x),
                                    kiln_where(x, x, NULL),
                                    kiln_clamp(NULL, x, x),
                                    kiln_clamp(x, NULL, x),
                                    kiln_clamp(x, x, NULL),
                                    kiln_sum(NULL),
                                    kiln_sum_axes(NULL, KILN_AXES(0), true),
                                    kiln_max(NULL),
                                    kiln_mean(NULL),
                                    kiln_var(NULL, 0),
                                    kiln_std(NULL, 0),
                                    kiln_any(NULL),
                                    kiln_logsumexp(NULL),
                                    kiln_argmax(NULL),
                                    kiln_argmin_axis(NULL, 0, true),
                                    kiln_reshape(NULL, KILN_SHAPE(1)),
                                    kiln_flatten(NULL),
                                    kiln_permute(NULL, KILN_AXES(0)),
                                    kiln_transpose(NULL),
                                    kiln_swap_axes(NULL, 0, 0),
                                    kiln_expand(NULL, KILN_SHAPE(2)),
                                    kiln_squeeze(NULL, KILN_ALL_AXES),
                                    kiln_unsqueeze(NULL, 0),
                                    kiln_slice(NULL, 0, NULL),
                                    kiln_slice_axis(NULL, 0, 0, 1, 1),
                                    kiln_select(NULL, 0, 0),
                                    kiln_flip(NULL, KILN_ALL_AXES),
                                    kiln_roll(NULL, 1, 0),
                                    kiln_pad(NULL, 0, NULL, x),
                                    kiln_pad(x, 0, NULL, NULL),
                                    kiln_tile(NULL, KILN_SHAPE(1)),
                                    kiln_triu(NULL, 0),
                                    kiln_tril(NULL, 0),
                                    kiln_take(NULL, i, 0),
                                    kiln_take(x, NULL, 0),
                                    kiln_take_along_axis(NULL, i, 0),
                                    kiln_take_along_axis(x, NULL, 0),
                                    kiln_scatter(NULL, i, x, 0, KILN_SCATTER_SET),
                                    kiln_scatter(x, NULL, x, 0, KILN_SCATTER_SET),
                                    kiln_scatter(x, i, NULL, 0, KILN_SCATTER_SET),
                                    kiln_scatter_along_axis(NULL, i, x, 0, KILN_SCATTER_SET),
                                    kiln_sort(NULL, 0, false),
                                    kiln_argsort(NULL, 0, false),
                                    kiln_cumsum(NULL, 0),
                                    kiln_matmul(NULL, x),
                                    kiln_matmul(x, NULL),
                                    kiln_softmax(NULL, 0),
                                    kiln_log_softmax(NULL, 0),
                                    kiln_normalize(NULL, KILN_ALL_AXES, 0),
                                    kiln_layer_norm(NULL, x, x, 0),
                                    kiln_layer_norm(x, x, NULL, 0),
                                    kiln_rms_norm(NULL, x, 0),
                                    kiln_rms_norm(x, NULL, 0),
                                    kiln_linear(x, NULL, x),
                                    kiln_mse(NULL, x),
                                    kiln_binary_cross_entropy(x, NULL),
                                    kiln_norm(NULL),
                                    kiln_one_hot(NULL, 2, KILN_F32),
                                    kiln_dropout(NULL, 0.5),
                                    kiln_cross_entropy(NULL, i),
                                    kiln_cross_entropy(x, NULL),
                                    kiln_zeros_like(NULL),
                                    kiln_ones_like(NULL),
                                    kiln_full_like(NULL, 1),
                                    kiln_silu(NULL),
                                    kiln_gelu(NULL),
                                    kiln_gelu_tanh(NULL),
                                    kiln_load_npy(NULL)};
    for (size_t k = 0; k < sizeof results / sizeof *results; k++)
        cr_assert(results[k] == NULL, "%d", (int)k);
    cr_assert(strstr(kiln_error_message(), "kiln_add: a is NULL (test_errors.c:"), "%s", kiln_error_message());
    cr_assert(kiln_topk(NULL, 1, 0, true, &out[0], &out[1]) == KILN_INVALID);
    cr_assert(kiln_split(NULL, 0, 2, NULL, out) == KILN_INVALID);
    cr_assert(kiln_dtype_of(NULL) == KILN_BOOL && kiln_rank(NULL) == -1 && kiln_numel(NULL) == -1 && kiln_dim(NULL, 0) == -1);
    cr_assert(kiln_shape_of(NULL).rank == -1 && !kiln_is_evaluated(NULL) && !kiln_is_weak(NULL));
}

/* An input that may be left out, and NULL because it could not be made, are told apart. */
typedef struct Optional {
    const char *name;
    kiln_tensor *(*call)(kiln_tensor *x, kiln_tensor *optional);
} Optional;

static kiln_tensor *with_mask(kiln_tensor *x, kiln_tensor *optional)
{
    return kiln_attention(x, x, x, &(kiln_attention_options){.mask = optional});
}

static kiln_tensor *with_lengths(kiln_tensor *x, kiln_tensor *optional)
{
    return kiln_attention(x, x, x, &(kiln_attention_options){.lengths = optional});
}

static kiln_tensor *with_bias(kiln_tensor *x, kiln_tensor *optional)
{
    return kiln_conv(x, kiln_ones(KILN_F32, KILN_SHAPE(1, 2, 1)), &(kiln_conv_options){.bias = optional});
}

static kiln_tensor *with_weight(kiln_tensor *x, kiln_tensor *optional)
{
    return kiln_group_norm(x, 1, &(kiln_norm_options){.weight = optional});
}

static kiln_tensor *with_shift(kiln_tensor *x, kiln_tensor *optional)
{
    return kiln_group_norm(x, 1, &(kiln_norm_options){.bias = optional});
}

static kiln_tensor *with_statistics(kiln_tensor *x, kiln_tensor *optional)
{
    return kiln_batch_norm(x, optional, optional, &(kiln_norm_options){.training = true});
}

Test(errors, what_may_be_left_out_is_not_left_out_by_an_error)
{
    const Optional optional[] = {{"mask", with_mask},     {"lengths", with_lengths}, {"bias", with_bias},
                                 {"weight", with_weight}, {"shift", with_shift},     {"statistics", with_statistics}};
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2, 2, 3));
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        cr_assert(optional[i].call(x, NULL) != NULL, "%s: %s", optional[i].name, kiln_error_message());
        kiln_tensor *y = optional[i].call(x, bad());
        cr_assert(y == NULL, "%s", optional[i].name);
        cr_assert(kiln_eval(y) == KILN_BAD_SHAPE && strstr(kiln_error_message(), "kiln_add"), "%s: %s", optional[i].name,
                  kiln_error_message()); /* the error is the first one, and this consumes it */
        kiln_clear_error();
        cr_assert(optional[i].call(x, NULL) != NULL, "%s: %s", optional[i].name, kiln_error_message());
    }
}

Test(errors, asking)
{
    kiln_tensor *x = kiln_ones(KILN_BF16, KILN_SHAPE(2, 5));
    cr_assert(kiln_dim(x, 0) == 2 && kiln_dim(x, -1) == 5 && kiln_dim(x, 2) == -1 && kiln_dim(x, -3) == -1);
    cr_assert(kiln_numel(x) == 10 && kiln_shape_of(x).rank == 2 && kiln_shape_of(x).dim[1] == 5);
    cr_assert(!kiln_is_evaluated(x) && kiln_eval(x) == KILN_OK && kiln_is_evaluated(x));
    cr_assert_str_eq(kiln_dtype_name(KILN_BF16), "bf16");
    cr_assert_str_eq(kiln_dtype_name((kiln_dtype)99), "?");
    cr_assert(kiln_dtype_size(KILN_BF16) == 2 && kiln_dtype_size(KILN_BOOL) == 1 && kiln_dtype_size((kiln_dtype)99) == 0);
    cr_assert_str_eq(kiln_status_name(KILN_OK), "ok");
    cr_assert_str_eq(kiln_status_name((kiln_status)99), "unknown status");
    cr_assert_str_eq(kiln_version(), KILN_VERSION);
    char numbers[32];
    snprintf(numbers, sizeof numbers, "%d.%d.%d", KILN_VERSION_MAJOR, KILN_VERSION_MINOR, KILN_VERSION_PATCH);
    cr_assert_str_eq(numbers, KILN_VERSION);
}

Test(errors, plain_functions_and_the_option_give_no_place)
{
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(2));
    cr_assert((kiln_reshape)(x, KILN_SHAPE(3)) == NULL);
    cr_assert(strstr(kiln_error_message(), "test_errors.c") == NULL, "%s", kiln_error_message());
    kiln_clear_error();
    set_option("no_locations", "1");
    cr_assert(kiln_reshape(x, KILN_SHAPE(3)) == NULL);
    cr_assert(strstr(kiln_error_message(), "test_errors.c") == NULL, "%s", kiln_error_message());
}

/* ---- options, statistics, log ---- */

Test(options, set_and_get)
{
    char text[64];
    set_option("threads", "2");
    cr_assert(kiln_get_option("threads", text, sizeof text) == KILN_OK);
    cr_assert_str_eq(text, "2");
    set_option("mode", "interp");
    cr_assert(kiln_get_option("mode", text, sizeof text) == KILN_OK);
    cr_assert_str_eq(text, "interp");
    set_option("dump", "some/folder");
    cr_assert(kiln_get_option("dump", text, 5) == KILN_OK);
    cr_assert_str_eq(text, "some");
    set_option("dump", "");
    set_option("fuse", "off");
    cr_assert(kiln_get_option("fuse", text, sizeof text) == KILN_OK);
    cr_assert_str_eq(text, "0");
    static const struct {
        const char *name, *value, *message;
    } wrong[] = {
        {"mode", "fast", "jit, eager, interp are valid"},
        {"math", "", "fast, strict are valid"},
        {"threads", "-1", "from 0 to"},
        {"threads", "two", "\"two\""},
        {"vector_bits", "64", "512"},
        {"strict", "maybe", "off and on"},
        {"nonsense", "1", "no option \"nonsense\": mode, math"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        cr_assert(kiln_set_option(wrong[k].name, wrong[k].value) == KILN_INVALID, "%d", (int)k);
        cr_assert(strstr(kiln_error_message(), wrong[k].message), "%s", kiln_error_message());
    }
    cr_assert(kiln_get_option("nonsense", text, sizeof text) == KILN_INVALID);
    cr_assert(kiln_set_option(NULL, "1") == KILN_INVALID && kiln_set_option("mode", NULL) == KILN_INVALID);
    cr_assert(kiln_get_option("mode", text, sizeof text) == KILN_OK);
    cr_assert_str_eq(text, "interp");
}

static char lines[4096];

static void sink(void *user, int level, const char *topic, const char *line)
{
    (*(int *)user)++;
    (void)level;
    strncat(lines, topic, sizeof lines - strlen(lines) - 1);
    strncat(lines, ": ", sizeof lines - strlen(lines) - 1);
    strncat(lines, line, sizeof lines - strlen(lines) - 1);
    strncat(lines, "\n", sizeof lines - strlen(lines) - 1);
}

Test(options, the_environment_is_read_with_one_warning_each)
{
    int count = 0;
    setenv("KILN_MODE", "warp", 1);
    setenv("KILN_THREAD", "2", 1);
    setenv("KILN_MATH", "strict", 1);
    kiln_set_log_sink(sink, &count);
    char text[16];
    cr_assert(kiln_get_option("mode", text, sizeof text) == KILN_OK);
    cr_assert_str_eq(text, "jit");
    cr_assert(kiln_get_option("math", text, sizeof text) == KILN_OK);
    cr_assert_str_eq(text, "strict");
    cr_assert(strstr(lines, "mode is \"warp\": jit, eager, interp are valid"), "%s", lines);
    cr_assert(strstr(lines, "KILN_THREAD is no option; the nearest is KILN_THREADS"), "%s", lines);
    kiln_set_log_sink(NULL, NULL);
}

/* What is near no option belongs to somebody else. */
Test(options, other_variables_are_none_of_ours)
{
    int count = 0;
    setenv("KILN_PREFIX", "/opt", 1);
    setenv("KILN_DIR", "/opt", 1);
    setenv("KILN_LOGS", "graph", 1);
    kiln_set_log_sink(sink, &count);
    cr_assert(kiln_eval(kiln_ones(KILN_F32, KILN_SHAPE(2))) == KILN_OK);
    cr_assert(strstr(lines, "KILN_LOGS is no option; the nearest is KILN_LOG"), "%s", lines);
    cr_assert(!strstr(lines, "KILN_PREFIX") && !strstr(lines, "KILN_DIR"), "%s", lines);
    kiln_set_log_sink(NULL, NULL);
}

/* A list with a name that is no topic changes nothing. */
Test(options, unknown_log_topic)
{
    int count = 0;
    char text[32];
    kiln_set_log_sink(sink, &count);
    cr_assert(kiln_set_option("log", "breaks") == KILN_OK);
    cr_assert(kiln_set_option("log", "passes,+grpah") == KILN_INVALID);
    cr_assert(strstr(kiln_error_message(), "no topic 'grpah'; there are ") && strstr(kiln_error_message(), "graph"), "%s",
              kiln_error_message());
    cr_assert(kiln_get_option("log", text, sizeof text) == KILN_OK && strcmp(text, "breaks") == 0, "%s", text);
    cr_assert(kiln_set_option("log", "+graph, passes,,all,+") == KILN_OK, "%s", kiln_error_message());
    cr_assert(kiln_set_option("log", "") == KILN_OK);
    kiln_set_log_sink(NULL, NULL);
}

/* A misspelled test hook is an option that is missed; what belongs to test programs is not ours. */
Test(options, misspelled_test_hook, .timeout = HANGS_AFTER(60))
{
    int count = 0;
    setenv("KILN_TEST_FIAL", "compile", 1);
    setenv("KILN_TEST_SLICES", "0", 1);
    kiln_set_log_sink(sink, &count);
    cr_assert(kiln_eval(kiln_ones(KILN_F32, KILN_SHAPE(2))) == KILN_OK);
    cr_assert(strstr(lines, "KILN_TEST_FIAL is no option; the nearest is KILN_TEST_FAIL"), "%s", lines);
    cr_assert(!strstr(lines, "KILN_TEST_SLICES"), "%s", lines);
    kiln_set_log_sink(NULL, NULL);
}

/* A dump that cannot be written says why, once. */
Test(options, dump_nowhere, .timeout = HANGS_AFTER(60))
{
    int count = 0;
    kiln_set_log_sink(sink, &count);
    cr_assert(kiln_set_option("dump", "/dev/null/dumps") == KILN_OK);
    for (int n = 3; n < 5; n++)
        cr_assert(kiln_eval(kiln_exp(kiln_ones(KILN_F32, KILN_SHAPE(n)))) == KILN_OK);
    char *said = strstr(lines, "KILN_DUMP: cannot write /dev/null/dumps");
    cr_assert(said && strstr(said, strerror(ENOTDIR)) && !strstr(said + 1, "KILN_DUMP"), "%s", lines);
    kiln_set_log_sink(NULL, NULL);
}

/* A folder of dumps that was not there is made, and that is said; one that is there is used in silence. */
Test(options, dump_makes_a_folder, .timeout = HANGS_AFTER(60))
{
    const char *tmp = getenv("TMPDIR");
    char top[512], folder[600], command[700], wanted[700];
    int count = 0;
    snprintf(top, sizeof top, "%s/kiln_dump_XXXXXX", tmp ? tmp : "/tmp");
    cr_assert(mkdtemp(top) != NULL);
    snprintf(folder, sizeof folder, "%s/a/b", top);
    snprintf(wanted, sizeof wanted, "KILN_DUMP: there was no folder %s; it was made", folder);
    kiln_set_log_sink(sink, &count);
    cr_assert(kiln_set_option("dump", folder) == KILN_OK);
    for (int n = 5; n < 7; n++)
        cr_assert(kiln_eval(kiln_exp(kiln_ones(KILN_F32, KILN_SHAPE(n)))) == KILN_OK);
    char *said = strstr(lines, wanted);
    cr_assert(said && !strstr(said + 1, "KILN_DUMP"), "%s", lines);
    cr_assert(access(folder, F_OK) == 0);
    lines[0] = '\0';
    cr_assert(kiln_set_option("dump", top) == KILN_OK);
    cr_assert(kiln_eval(kiln_exp(kiln_ones(KILN_F32, KILN_SHAPE(7)))) == KILN_OK);
    cr_assert(!strstr(lines, "KILN_DUMP"), "%s", lines);
    kiln_set_log_sink(NULL, NULL);
    snprintf(command, sizeof command, "rm -r '%s'", top);
    cr_assert(system(command) == 0);
}

/* The function that looked it up, the index, the axis. */
Test(errors, index_out_of_bounds_names_function_index_and_size)
{
    static const float six[6] = {0};
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(2, 3), six);
    kiln_tensor *i = kiln_from(KILN_I32, KILN_SHAPE(2), (int32_t[]){-3, 3});
    for (int mode = 0; mode < 3; mode++) {
        cr_assert(kiln_set_option("mode", (const char *[]){"jit", "eager", "interp"}[mode]) == KILN_OK);
        cr_assert(kiln_eval(kiln_exp(kiln_take(x, i, 1))) == KILN_BAD_INDEX);
        cr_assert(strstr(kiln_error_message(), "index 3 of the kiln_take at ") && strstr(kiln_error_message(), "test_errors.c:") &&
                      strstr(kiln_error_message(), "is out of bounds: axis 1 has 3 elements"),
                  "%s", kiln_error_message());
        kiln_clear_error();
        cr_assert(kiln_eval(kiln_scatter(x, i, kiln_scalar(1), 0, KILN_SCATTER_ADD)) == KILN_BAD_INDEX);
        cr_assert(strstr(kiln_error_message(), "index -3 of the kiln_scatter at ") && strstr(kiln_error_message(), "axis 0 has 2 elements"),
                  "%s", kiln_error_message());
        kiln_clear_error();
        kiln_tensor *computed = kiln_add(i, kiln_int(1)); /* -2 and 4: the value is not at hand, all else is */
        cr_assert(kiln_eval(kiln_take(x, computed, 1)) == KILN_BAD_INDEX);
        cr_assert(strstr(kiln_error_message(), " of the kiln_take at ") && strstr(kiln_error_message(), "axis 1 has 3 elements"), "%s",
                  kiln_error_message());
        kiln_clear_error();
        kiln_tensor *huge = kiln_from(KILN_U64, KILN_SHAPE(1), (uint64_t[]){UINT64_MAX});
        cr_assert(kiln_eval(kiln_take(x, huge, 1)) == KILN_BAD_INDEX);
        cr_assert(strstr(kiln_error_message(), "kiln_take") && strstr(kiln_error_message(), "out of bounds"), "%s", kiln_error_message());
        kiln_clear_error();
    }
}

Test(options, statistics)
{
    kiln_stats b;
    kiln_stats a = stats_now();
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(100));
    for (int i = 0; i < 3; i++)
        cr_assert(kiln_eval(kiln_sin(kiln_add(x, kiln_scalar(i)))) == KILN_OK);
    kiln_get_stats(&b);
    cr_assert(b.nodes - a.nodes >= 7, "%d", (int)(b.nodes - a.nodes));
    cr_assert(b.evals - a.evals == 3 && b.hits + b.misses == b.evals);
    cr_assert(b.hits - a.hits >= 1 && b.compiles >= 1 && b.compile_seconds > 0 && b.kernels >= 3 && b.fallbacks == 0);
    cr_assert(b.bytes_moved - a.bytes_moved >= 3 * 400);
    cr_assert(b.peak_bytes >= b.live_bytes);
    int64_t by_reason = 0;
    for (int i = 0; i < KILN_MISS_REASONS; i++)
        by_reason += b.miss[i];
    cr_assert(by_reason == b.misses);
    cr_assert_str_eq(kiln_miss_reason(0), "never_seen");
    cr_assert(kiln_miss_reason(-1) == NULL && kiln_miss_reason(1000) == NULL);
    kiln_reset_stats();
    kiln_get_stats(&b);
    cr_assert(b.nodes == 0 && b.kernels == 0 && b.peak_bytes == b.live_bytes);
    kiln_get_stats(NULL);
}

/* ---- what a log sink may do ---- */

static struct {
    kiln_tensor *known, *unknown; /* computed, and to be computed */
    kiln_function *function;
    pthread_t thread;
    atomic_bool computing;
    bool beside; /* the sink calls while the thread computes and waits for the log */
    int calls;
    kiln_status status[6];
    char message[300];
    double value;
} in_sink;

static void hand_on(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

static void warn_and_hand_on(kiln_tensor **in, kiln_tensor **out, void *user)
{
    atomic_store(&in_sink.computing, true);
    cr_expect(kiln_set_option("log", "help") == KILN_OK);
    hand_on(in, out, user);
}

static void *compute(void *unused)
{
    kiln_tensor *out;
    kiln_function *f = kiln_function_new(warn_and_hand_on, 1, 1, NULL);
    cr_expect(kiln_function_call(f, &in_sink.known, &out) == KILN_OK, "%s", kiln_error_message());
    kiln_function_free(f);
    return unused;
}

static void calling_sink(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic, (void)line;
    if (in_sink.calls++)
        return;
    if (in_sink.beside) {
        cr_assert(pthread_create(&in_sink.thread, NULL, compute, NULL) == 0);
        while (!atomic_load(&in_sink.computing)) /* it needs the log before it is done */
            sched_yield();
    }
    char text[100];
    kiln_tensor *out;
    in_sink.status[0] = kiln_item(in_sink.unknown, &in_sink.value);
    snprintf(in_sink.message, sizeof in_sink.message, "%s", kiln_error_message());
    in_sink.status[1] = kiln_explain(in_sink.unknown, text, sizeof text, NULL);
    in_sink.status[2] = kiln_graph_text(in_sink.unknown, text, sizeof text, NULL);
    in_sink.status[3] = kiln_mark_static(in_sink.unknown, 0);
    in_sink.status[4] = kiln_function_call(in_sink.function, &in_sink.known, &out);
    in_sink.status[5] = kiln_item(in_sink.known, &in_sink.value);
}

/* Alone, and while another thread computes something and waits to log a line: that would wait for the sink, and the sink for it. */
Test(errors, a_log_sink_may_not_compute, .timeout = HANGS_AFTER(60))
{
    for (int turn = 0; turn < 2; turn++) {
        in_sink.known = F32(KILN_SHAPE(1), 7);
        in_sink.unknown = kiln_neg(in_sink.known);
        in_sink.function = kiln_function_new(hand_on, 1, 1, NULL);
        in_sink.beside = turn == 1;
        in_sink.calls = 0;
        in_sink.value = 0;
        kiln_set_log_sink(calling_sink, NULL);
        set_option("log", "help"); /* at least a line for each topic */
        if (turn)
            pthread_join(in_sink.thread, NULL);
        kiln_set_log_sink(NULL, NULL);
        cr_assert(in_sink.calls > 1 + turn, "%d lines", in_sink.calls);
        for (int i = 0; i < 5; i++)
            cr_assert(in_sink.status[i] == KILN_INVALID, "turn %d, call %d: %s", turn, i, kiln_status_name(in_sink.status[i]));
        cr_assert(strstr(in_sink.message, "kiln_item: a log sink may only look at"), "%s", in_sink.message);
        cr_assert(in_sink.status[5] == KILN_OK && in_sink.value == 7);
        EXPECT(in_sink.unknown, KILN_F32, KILN_SHAPE(1), 0, -7);
        kiln_function_free(in_sink.function);
    }
}

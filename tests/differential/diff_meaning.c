/*
 * What functions of arrays mean where it is easy to be wrong: reductions of nothing, of NaN, of signed zeros and of overflowing
 * ints; order of ties and NaN in sorting; scatter's last write; promotion of results. Small arrays with the expected numbers written
 * out, in all three modes.
 */
#include "tests/differential/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

typedef struct MeaningRow {
    kiln_tensor *(*build)(void);
    kiln_dtype dtype; /* of the result */
    int n;            /* its elements */
    double value[MOST];
} MeaningRow;

static const double N = NAN, I = INFINITY;

static kiln_tensor *floats(int n, const float *data) { return kiln_from(KILN_F32, KILN_SHAPE(n), data); }
static kiln_tensor *bytes(int n, const uint8_t *data) { return kiln_from(KILN_U8, KILN_SHAPE(n), data); }
static kiln_tensor *ints(int n, const int32_t *data) { return kiln_from(KILN_I32, KILN_SHAPE(n), data); }
static kiln_tensor *longs(int n, const int64_t *data) { return kiln_from(KILN_I64, KILN_SHAPE(n), data); }
#define FLOATS(...) floats(sizeof((float[]){__VA_ARGS__}) / sizeof(float), (float[]){__VA_ARGS__})
#define BYTES(...) bytes(sizeof((uint8_t[]){__VA_ARGS__}), (uint8_t[]){__VA_ARGS__})
#define INTS(...) ints(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]){__VA_ARGS__})
#define LONGS(...) longs(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})
#define NANF ((float)NAN)
#define INFF ((float)INFINITY)

static kiln_tensor *nothing(void) { return kiln_zeros(KILN_F32, KILN_SHAPE(0)); }
static kiln_tensor *stacked(kiln_tensor *a, kiln_tensor *b) { return kiln_stack((kiln_tensor *[]){a, b}, 2, 0); }
static kiln_tensor *zeros_30(void) { return kiln_zeros(KILN_F32, KILN_SHAPE(3, 0)); }

static kiln_tensor *greatest(kiln_tensor *x, int64_t k)
{
    kiln_tensor *values, *where;
    return kiln_topk(x, k, 0, true, &values, &where) == KILN_OK ? values : NULL;
}

/* Each expression is one row: its function is generated. */
#define MEANINGS(M)                                                                                                                        \
    M(sum_of_nothing, KILN_F32, 1, kiln_sum(nothing()), 0)                                                                                 \
    M(prod_of_nothing, KILN_F32, 1, kiln_prod(nothing()), 1)                                                                               \
    M(mean_of_nothing, KILN_F32, 1, kiln_mean(nothing()), N)                                                                               \
    M(any_of_nothing, KILN_BOOL, 1, kiln_any(nothing()), 0)                                                                                \
    M(all_of_nothing, KILN_BOOL, 1, kiln_all(nothing()), 1)                                                                                \
    M(logsumexp_of_nothing, KILN_F32, 1, kiln_logsumexp(nothing()), -I)                                                                    \
    M(sums_of_empty_rows, KILN_F32, 3, kiln_sum_axes(zeros_30(), KILN_AXES(1), false), 0, 0, 0)                                            \
    M(matmul_over_nothing, KILN_F32, 6, kiln_matmul(zeros_30(), kiln_zeros(KILN_F32, KILN_SHAPE(0, 2))), 0, 0, 0, 0, 0, 0)                 \
    M(sum_of_minus_zeros, KILN_F32, 1, kiln_sum(FLOATS(-0.0f, -0.0f)), -0.0)                                                               \
    M(sum_of_both_zeros, KILN_F32, 1, kiln_sum(FLOATS(-0.0f, 0.0f)), 0.0)                                                                  \
    M(sum_of_infinities, KILN_F32, 1, kiln_sum(FLOATS(INFF, 1, -INFF)), N)                                                                 \
    M(max_with_nan, KILN_F32, 1, kiln_max(FLOATS(1, NANF, 3)), N)                                                                          \
    M(min_with_nan, KILN_F32, 1, kiln_min(FLOATS(1, NANF, 3)), N)                                                                          \
    M(max_of_zeros, KILN_F32, 1, kiln_max(FLOATS(-0.0f, 0.0f, -0.0f)), 0.0)                                                                \
    M(min_of_zeros, KILN_F32, 1, kiln_min(FLOATS(0.0f, -0.0f, 0.0f)), -0.0)                                                                \
    M(max_of_minus_infinities, KILN_F32, 1, kiln_max(FLOATS(-INFF, -INFF)), -I)                                                            \
    M(argmax_ties, KILN_I64, 1, kiln_argmax(FLOATS(1, 3, 3, 2)), 1)                                                                        \
    M(argmax_nan, KILN_I64, 1, kiln_argmax(FLOATS(1, INFF, NANF, NANF)), 2)                                                                \
    M(argmin_nan, KILN_I64, 1, kiln_argmin(FLOATS(-INFF, 1, NANF)), 2)                                                                     \
    M(argmin_zeros, KILN_I64, 1, kiln_argmin(FLOATS(0.0f, -0.0f)), 0)                                                                      \
    M(any_nan, KILN_BOOL, 1, kiln_any(FLOATS(0, NANF)), 1)                                                                                 \
    M(all_nan, KILN_BOOL, 1, kiln_all(FLOATS(1, NANF)), 1)                                                                                 \
    M(all_minus_zero, KILN_BOOL, 1, kiln_all(FLOATS(1, -0.0f)), 0)                                                                         \
    M(logsumexp_large, KILN_F32, 1, kiln_logsumexp(FLOATS(1000, 1000)), 1000.69314718056)                                                  \
    M(logsumexp_infinite, KILN_F32, 1, kiln_logsumexp(FLOATS(1, INFF)), I)                                                                 \
    M(logsumexp_minus_infinite, KILN_F32, 1, kiln_logsumexp(FLOATS(-INFF, -INFF)), -I)                                                     \
    M(softmax_large, KILN_F32, 2, kiln_softmax(FLOATS(1e30f, -1e30f), 0), 1, 0)                                                            \
    M(softmax_minus_infinite, KILN_F32, 3, kiln_softmax(FLOATS(0, -INFF, 0), 0), 0.5, 0, 0.5)                                              \
    M(log_softmax_far, KILN_F32, 2, kiln_add(kiln_log_softmax(FLOATS(0, -500), 0), kiln_int(1)), 1, -499)                                  \
    M(variance_of_one, KILN_F32, 1, kiln_var(FLOATS(5), 1), N)                                                                             \
    M(variance_of_equal, KILN_F32, 1, kiln_var(FLOATS(5, 5, 5), 1), 0)                                                                     \
    M(variance_population, KILN_F32, 1, kiln_var(FLOATS(1, 2, 3, 4), 0), 1.25)                                                             \
    M(variance_far_from_zero, KILN_F32, 1, kiln_var(FLOATS(10001, 10002, 10003), 1), 1)                                                    \
    M(mean_of_ints, KILN_F32, 1, kiln_mean(INTS(1, 2, 4, 6)), 3.25)                                                                        \
    M(sum_of_bytes, KILN_U64, 1, kiln_sum(BYTES(255, 255, 255)), 765)                                                                      \
    M(sum_of_bools, KILN_I64, 1, kiln_sum(kiln_cast(BYTES(1, 0, 1), KILN_BOOL)), 2)                                                        \
    M(sum_of_ints_beyond_32_bits, KILN_I64, 1, kiln_sum(INTS(INT32_MAX, INT32_MAX)), 4294967294.0)                                         \
    M(sum_of_longs_wraps, KILN_I64, 1, kiln_add(kiln_sum(LONGS(INT64_MAX, 2)), LONGS(INT64_MAX)), 0)                                       \
    M(prod_of_ints, KILN_I64, 1, kiln_prod(INTS(100000, 100000, -2)), -20000000000.0)                                                      \
    M(sum_of_halves_beyond_f16, KILN_F16, 1, kiln_sum(kiln_cast(FLOATS(60000, 60000, -60000), KILN_F16)), 60000)                           \
    M(sort_nan_last, KILN_F32, 4, kiln_sort(FLOATS(NANF, 2, -INFF, INFF), 0, false), -I, 2, I, N)                                          \
    M(sort_descending_nan_last, KILN_F32, 4, kiln_sort(FLOATS(NANF, 2, -INFF, INFF), 0, true), I, 2, -I, N)                                \
    M(argsort_stable, KILN_I64, 5, kiln_argsort(FLOATS(2, 1, 2, 1, 2), 0, false), 1, 3, 0, 2, 4)                                           \
    M(argsort_descending_stable, KILN_I64, 5, kiln_argsort(FLOATS(2, 1, 2, 1, 2), 0, true), 0, 2, 4, 1, 3)                                 \
    M(argsort_zeros_are_equal, KILN_I64, 3, kiln_argsort(FLOATS(0.0f, -0.0f, 0.0f), 0, false), 0, 1, 2)                                    \
    M(sort_bytes_unsigned, KILN_U8, 3, kiln_sort(BYTES(200, 100, 0), 0, false), 0, 100, 200)                                               \
    M(sort_longs, KILN_I64, 3, kiln_sort(LONGS(1, -5, 0), 0, true), 1, 0, -5)                                                              \
    M(cumsum_bytes, KILN_U64, 3, kiln_cumsum(BYTES(255, 255, 1), 0), 255, 510, 511)                                                        \
    M(cumsum_nan, KILN_F32, 3, kiln_cumsum(FLOATS(1, NANF, 1), 0), 1, N, N)                                                                \
    M(take_negative, KILN_F32, 3, kiln_take(FLOATS(1, 2, 3), LONGS(-1, 0, -3), 0), 3, 1, 1)                                                \
    M(scatter_last_wins, KILN_F32, 3, kiln_scatter(FLOATS(0, 0, 0), LONGS(1, 1, -1), FLOATS(5, 6, 7), 0, KILN_SCATTER_SET), 0, 6, 7)       \
    M(scatter_add, KILN_F32, 3, kiln_scatter(FLOATS(1, 1, 1), LONGS(1, 1, 0), FLOATS(5, 6, 7), 0, KILN_SCATTER_ADD), 8, 12, 1)             \
    M(scatter_max_nan, KILN_F32, 2, kiln_scatter(FLOATS(1, 1), LONGS(0, 1), FLOATS(NANF, 0), 0, KILN_SCATTER_MAX), N, 1)                   \
    M(scatter_min, KILN_I32, 2, kiln_scatter(INTS(4, 4), LONGS(0, 0), INTS(3, 9), 0, KILN_SCATTER_MIN), 3, 4)                              \
    M(where_nan_is_true, KILN_F32, 3, kiln_where(FLOATS(NANF, 0, -0.0f), FLOATS(1, 1, 1), FLOATS(2, 2, 2)), 1, 2, 2)                       \
    M(where_hides_nan, KILN_F32, 2, kiln_where(kiln_isnan(FLOATS(NANF, 2)), kiln_scalar(0), FLOATS(NANF, 2)), 0, 2)                        \
    M(clamp_nan, KILN_F32, 3, kiln_clamp(FLOATS(NANF, 5, -5), kiln_int(-1), kiln_int(1)), N, 1, -1)                                        \
    M(clamp_crossed, KILN_F32, 1, kiln_clamp(FLOATS(0), kiln_int(2), kiln_int(1)), 1)                                                      \
    M(nan_compares, KILN_BOOL, 2, kiln_eq(FLOATS(NANF, 1), FLOATS(NANF, 1)), 0, 1)                                                         \
    M(nan_differs, KILN_BOOL, 2, kiln_ne(FLOATS(NANF, 1), FLOATS(NANF, 1)), 1, 0)                                                          \
    M(zeros_are_equal, KILN_BOOL, 1, kiln_eq(FLOATS(0.0f), FLOATS(-0.0f)), 1)                                                              \
    M(signbit_of_zero, KILN_BOOL, 2, kiln_signbit(FLOATS(-0.0f, 0.0f)), 1, 0)                                                              \
    M(times_zero, KILN_F32, 4, kiln_mul(FLOATS(-1, INFF, NANF, 2), kiln_int(0)), -0.0, N, N, 0)                                            \
    M(minus_itself, KILN_F32, 3, kiln_sub(FLOATS(1, INFF, NANF), FLOATS(1, INFF, NANF)), 0, N, N)                                          \
    M(by_itself, KILN_F32, 3, kiln_div(FLOATS(2, 0, INFF), FLOATS(2, 0, INFF)), 1, N, N)                                                   \
    M(plus_zero, KILN_F32, 2, kiln_add(FLOATS(-0.0f, 1), kiln_scalar(0)), 0.0, 1)                                                          \
    M(minus_zero, KILN_F32, 2, kiln_sub(FLOATS(-0.0f, 1), kiln_scalar(0)), -0.0, 1)                                                        \
    M(power_zero, KILN_F32, 3, kiln_pow(FLOATS(0, NANF, INFF), kiln_int(0)), 1, 1, 1)                                                      \
    M(power_half, KILN_F32, 3, kiln_pow(FLOATS(-0.0f, -INFF, 4), kiln_scalar(0.5)), 0, I, 2)                                               \
    M(exp_log, KILN_F32, 3, kiln_exp(kiln_log(FLOATS(0, -1, INFF))), 0, N, I)                                                              \
    M(not_not, KILN_BOOL, 3, kiln_logical_not(kiln_logical_not(FLOATS(NANF, 0, 3))), 1, 0, 1)                                              \
    M(double_negation, KILN_I32, 2, kiln_neg(kiln_neg(INTS(INT32_MIN, 7))), -2147483648.0, 7)                                              \
    M(abs_of_least, KILN_I32, 1, kiln_abs(INTS(INT32_MIN)), -2147483648.0)                                                                 \
    M(narrow_and_back, KILN_I32, 3, kiln_cast(kiln_cast(INTS(300, -1, 128), KILN_I8), KILN_I32), 44, -1, -128)                             \
    M(through_bytes, KILN_F32, 3, kiln_cast(kiln_cast(FLOATS(300, -1, 1.9f), KILN_U8), KILN_F32), 255, 0, 1)                               \
    M(through_f16, KILN_F32, 2, kiln_cast(kiln_cast(FLOATS(1e6f, 1.0009766f), KILN_F16), KILN_F32), I, 1.0009765625)                       \
    M(int_and_float_scalar, KILN_F32, 2, kiln_mul(INTS(3, 5), kiln_scalar(0.5)), 1.5, 2.5)                                                 \
    M(bool_and_int_scalar, KILN_I64, 2, kiln_add(kiln_cast(BYTES(1, 0), KILN_BOOL), kiln_int(2)), 3, 2)                                    \
    M(signed_and_unsigned, KILN_I16, 2, kiln_sub(BYTES(1, 2), kiln_cast(INTS(5, -5), KILN_I8)), -4, 7)                                     \
    M(i64_and_u64, KILN_F32, 1, kiln_add(LONGS(1), kiln_cast(BYTES(2), KILN_U64)), 3)                                                      \
    M(half_and_bfloat, KILN_F32, 1, kiln_add(kiln_cast(FLOATS(1), KILN_F16), kiln_cast(FLOATS(2), KILN_BF16)), 3)                          \
    M(ints_divided, KILN_F32, 3, kiln_div(INTS(7, 1, 0), INTS(2, 0, 0)), 3.5, I, N)                                                        \
    M(floor_of_negative, KILN_I32, 3, kiln_floor_divide(INTS(-7, 7, 7), INTS(2, -2, 0)), -4, -4, 0)                                        \
    M(floor_of_infinities, KILN_F32, 6, kiln_floor_divide(FLOATS(INFF, -INFF, 5, -5, 5, 0), FLOATS(2, INFF, INFF, INFF, -INFF, INFF)), N,  \
      N, 0, -1, -1, 0)                                                                                                                     \
    M(floor_by_zero, KILN_F32, 3, kiln_floor_divide(FLOATS(5, -5, 0), FLOATS(0, 0, 0)), I, -I, N)                                          \
    M(compared_beyond_its_dtype, KILN_BOOL, 2, kiln_lt(BYTES(0, 255), kiln_int(300)), 1, 1)                                                \
    M(compared_below_its_dtype, KILN_BOOL, 2, kiln_le(BYTES(0, 255), kiln_int(-1)), 0, 0)                                                  \
    M(clamp_beyond_its_dtype, KILN_U8, 2, kiln_clamp(BYTES(0, 255), kiln_int(-300), kiln_int(300)), 0, 255)                                \
    M(clamp_beyond_its_dtype_by_floats, KILN_U8, 2, kiln_clamp(BYTES(0, 255), kiln_scalar(-300), kiln_scalar(300)), 0, 255)                \
    M(bools_added, KILN_BOOL, 4, kiln_add(kiln_cast(BYTES(0, 0, 1, 1), KILN_BOOL), kiln_cast(BYTES(0, 1, 0, 1), KILN_BOOL)), 0, 1, 1, 1)   \
    M(bools_multiplied, KILN_BOOL, 4, kiln_mul(kiln_cast(BYTES(0, 0, 1, 1), KILN_BOOL), kiln_cast(BYTES(0, 1, 0, 1), KILN_BOOL)), 0, 0, 0, \
      1)                                                                                                                                   \
    M(max_of_bools, KILN_BOOL, 1, kiln_max(kiln_cast(BYTES(0, 1), KILN_BOOL)), 1)                                                          \
    M(min_of_bools, KILN_BOOL, 1, kiln_min(kiln_cast(BYTES(0, 1), KILN_BOOL)), 0)                                                          \
    M(topk_nan_is_greatest, KILN_F32, 3, greatest(FLOATS(1, NANF, 7, NANF), 3), N, N, 7)                                                   \
    M(python_remainder, KILN_F32, 4, kiln_remainder(FLOATS(-7, 7, -7, 5), FLOATS(3, -3, -3, INFF)), 2, -2, -1, 5)                          \
    M(round_to_even, KILN_F32, 5, kiln_round(FLOATS(0.5f, 1.5f, 2.5f, -0.5f, -1.5f)), 0, 2, 2, -0.0, -2)                                   \
    M(reversed_slice, KILN_F32, 3, kiln_slice_axis(FLOATS(1, 2, 3, 4, 5), 0, -1, KILN_NONE, -2), 5, 3, 1)                                  \
    M(slice_beyond, KILN_F32, 2, kiln_slice_axis(FLOATS(1, 2, 3), 0, 1, 100, 1), 2, 3)                                                     \
    M(outer_by_broadcast, KILN_I32, 4, kiln_mul(kiln_reshape(INTS(1, 2), KILN_SHAPE(2, 1)), INTS(3, 4)), 3, 4, 6, 8)                       \
    M(stack_promotes, KILN_F32, 2, stacked(kiln_sum(FLOATS(1, 2)), kiln_int(7)), 3, 7)                                                     \
    M(scalars_alone, KILN_F32, 2, kiln_expand(kiln_div(kiln_int(1), kiln_int(4)), KILN_SHAPE(2)), 0.25, 0.25)                              \
    M(triangle, KILN_I32, 4, kiln_triu(kiln_reshape(INTS(1, 2, 3, 4), KILN_SHAPE(2, 2)), 0), 1, 2, 0, 4)                                   \
    M(roll_backwards, KILN_I32, 3, kiln_roll(INTS(1, 2, 3), -1, 0), 2, 3, 1)                                                               \
    M(tile_rows, KILN_I32, 4, kiln_tile(INTS(1, 2), KILN_SHAPE(2)), 1, 2, 1, 2)                                                            \
    M(cross_entropy_uniform, KILN_F32, 1, kiln_cross_entropy(kiln_zeros(KILN_F32, KILN_SHAPE(1, 4)), LONGS(2)), 1.3862943611198906)        \
    M(norm_of_constant, KILN_F32, 3, kiln_normalize(FLOATS(3, 3, 3), KILN_AXES(0), 1e-5), 0, 0, 0)

#define FUNCTION(name, dtype, n, expression, ...) \
    static kiln_tensor *build_##name(void) { return expression; }
MEANINGS(FUNCTION)

static void group(const Group *g)
{
    static const char *const modes[] = {"interp", "jit", "eager"};
    const MeaningRow *row = g->row;
    Case c = {.op = g->name};
    for (int m = 0; m < 3; m++)
        for (int rewrite = 0; rewrite < 2; rewrite++) {
            set_option("mode", modes[m]);
            set_option("math", m == 1 && rewrite ? "fast" : "strict");
            set_option("rewrite", rewrite ? "1" : "0");
            if (!case_due(NULL))
                continue;
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = row->build();
            double got[MOST] = {0};
            if (kiln_dtype_of(x) != row->dtype || kiln_numel(x) != row->n)
                report(&c, modes[m], "%" PRId64 " elements of %s, expected %d of %s; %s", kiln_numel(x), kiln_dtype_name(kiln_dtype_of(x)),
                       row->n, kiln_dtype_name(row->dtype), kiln_error_message());
            else if (kiln_read(x, row->dtype, got, (size_t)row->n * kiln_dtype_size(row->dtype)) != KILN_OK)
                report(&c, modes[m], "%s", kiln_error_message());
            else
                for (int i = 0; i < row->n; i++) {
                    double value = value_as_double(row->dtype, got, i), wanted = row->value[i];
                    bool same = isnan(wanted) ? isnan(value) : value == wanted || fabs(value - wanted) <= 1e-6 * fabs(wanted);
                    if (wanted == 0 && dtype_is_float(row->dtype))
                        same = value == 0 && signbit(value) == signbit(wanted);
                    if (!same)
                        report(&c, modes[m], "element %d is %.9g, expected %.9g (rewrite=%d)", i, value, wanted, rewrite);
                }
            kiln_clear_error();
            kiln_scope_end(scope);
        }
}

int main(int argc, char **argv)
{
#define ROW(name, dtype, n, expression, ...) {build_##name, dtype, n, {__VA_ARGS__}},
    const MeaningRow rows[] = {MEANINGS(ROW)};
#define NAME(name, dtype, n, expression, ...) #name,
    static const char *const names[] = {MEANINGS(NAME)};
    enum { ROWS = sizeof names / sizeof *names };
    Group groups[ROWS];
    for (int i = 0; i < ROWS; i++)
        groups[i] = (Group){names[i], group, &rows[i]};
    return run_groups("diff_meaning", groups, ROWS, argc, argv);
}

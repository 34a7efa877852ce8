/*
 * The table of bad inputs: each public function, each of its parameters, each kind of nonsense that the parameter's type allows.
 *
 * What has to be there is read from kiln.h: a tensor may be NULL, a dtype none, a shape negative, of too many axes or too large,
 * an axis out of range, and so on (kinds_of). A function or parameter that is new in the header fails here until it has its rows.
 * Every row checks the status and the message: the function's name at its start, what is at fault, the file and line.
 */
#include "api.h"
#include "tests/support/sanitizer.h"

#include <ctype.h>
#include <stdio.h>
#include <unistd.h>

/* ---- rows ---- */

enum { MOST = 2000, NAME = 48 };

typedef struct Seen {
    char function[NAME], param[NAME], kind[NAME];
} Seen;

static Seen seen[MOST];
static int n_seen;

static void note(const char *function, const char *param, const char *kind)
{
    cr_assert(n_seen < MOST);
    Seen *s = &seen[n_seen++];
    snprintf(s->function, NAME, "%s", function);
    snprintf(s->param, NAME, "%s", param);
    snprintf(s->kind, NAME, "%s", kind);
}

static kiln_status of_tensor(kiln_tensor *x) { return x ? KILN_OK : kiln_error_status(); }
static kiln_status of_status(kiln_status status) { return status; }
static kiln_status of_file(kiln_file *f) { return f ? KILN_OK : kiln_error_status(); }
static kiln_status of_optimizer(kiln_optimizer *opt) { return opt ? KILN_OK : kiln_error_status(); }
static kiln_status of_mode(const kiln_mode *mode) { return mode ? KILN_OK : kiln_error_status(); }
static kiln_status of_group(kiln_group *group) { return group ? KILN_OK : kiln_error_status(); }
static kiln_status of_op(const kiln_op *op) { return op ? KILN_OK : kiln_error_status(); }
static kiln_status of_scaler(kiln_scaler *s) { return s ? KILN_OK : kiln_error_status(); }
static kiln_status of_function(kiln_function *f) { return f ? KILN_OK : kiln_error_status(); }

static void check(int line, const char *function, const char *param, const char *kind, kiln_status got, kiln_status want, const char *text)
{
    char start[NAME + 4], place[64];
    const char *message = kiln_error_message();
    size_t length = strlen(function) - (strstr(function, "_list") ? strlen("_list") : 0); /* people write kiln_einsum */
    snprintf(start, sizeof start, "%.*s: ", (int)length, function);
    snprintf(place, sizeof place, "(test_bad_input.c:%d)", line);
    note(function, param, kind);
    if (getenv("SHOW_MESSAGES"))
        fprintf(stderr, "%-16s %s\n", kiln_status_name(got), message);
    cr_expect(got == want, "line %d: %s, %s %s: \"%s\", not \"%s\": %s", line, function, param, kind, kiln_status_name(got),
              kiln_status_name(want), message);
    cr_expect(strncmp(message, start, strlen(start)) == 0, "line %d: does not begin with %s: %s", line, function, message);
    cr_expect(strstr(message, text), "line %d: \"%s\" is not in: %s", line, text, message);
    cr_expect(strstr(message, place) || strstr(function, "_option") || strstr(function, "_trace_start") || strstr(function, "_last_call") ||
                  strstr(function, "_perf_scaling") || strstr(function, "_mode_next"),
              "line %d: no place in: %s", line, message);
    kiln_clear_error();
}

/* BAD(function, parameter, kind, status, text of the message, arguments...) */
#define BAD(function, param, kind, status, text, ...) \
    check(__LINE__, #function, #param, #kind,             \
          _Generic((function(__VA_ARGS__)), kiln_tensor * \
                   : of_tensor, kiln_function *           \
                   : of_function, kiln_file *             \
                   : of_file, kiln_optimizer *            \
                   : of_optimizer, kiln_mode *            \
                   : of_mode, kiln_scaler *               \
                   : of_scaler, const kiln_op *           \
                   : of_op, kiln_group *                  \
                   : of_group, kiln_status                \
                   : of_status)(function(__VA_ARGS__)),   \
          status, text)
#define BAD_SHAPES(function, param, status, before, ...)                                        \
    BAD(function, param, negative, KILN_BAD_SHAPE, "-1", before KILN_SHAPE(2, -1) __VA_ARGS__); \
    BAD(function, param, rank, KILN_BAD_SHAPE, "9", before rank9() __VA_ARGS__);                \
    BAD(function, param, rank, KILN_BAD_SHAPE, "-2", before rank_minus2() __VA_ARGS__);         \
    BAD(function, param, huge, status, "4294967296", before KILN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32) __VA_ARGS__)
/* NULL and the like is allowed there; what happens is nothing. */
#define HARMLESS(function, param, kind, ...) (note(#function, #param, #kind), (void)function(__VA_ARGS__))
#define NO_ERROR(function, param, kind, ...)                                                    \
    do {                                                                                        \
        note(#function, #param, #kind);                                                         \
        cr_expect(function(__VA_ARGS__) == KILN_OK, "%s: %s", #function, kiln_error_message()); \
    } while (0)
#define WITH ,

static kiln_tensor *x23, *x4, *i2, *whole, *truth, *batch, *empty, *deep, *tall, *wide, *one;

static kiln_shape rank9(void) { return (kiln_shape){9, {1, 1, 1, 1, 1, 1, 1, 1}}; }
static kiln_shape rank_minus2(void) { return (kiln_shape){-2, {1}}; }
static kiln_axes axes9(void) { return (kiln_axes){9, {0}}; }
static kiln_axes axes_minus2(void) { return (kiln_axes){-2, {0}}; }
static const kiln_dtype NO_DTYPE = (kiln_dtype)99;

static void make_tensors(void)
{
    x23 = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
    x4 = F32(KILN_SHAPE(4), 1, 2, 3, 4);
    i2 = I64(KILN_SHAPE(2), 0, 1);
    whole = I32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
    truth = BOOL(KILN_SHAPE(2, 3), 1, 0, 1, 0, 1, 0);
    batch = kiln_ones(KILN_F32, KILN_SHAPE(5, 3, 7));
    empty = kiln_zeros(KILN_F32, KILN_SHAPE(0, 3));
    deep = kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 2));
    tall = kiln_expand(kiln_scalar(1), KILN_SHAPE(INT64_C(1) << 32, 1)); /* recorded only */
    wide = kiln_expand(kiln_scalar(1), KILN_SHAPE(1, INT64_C(1) << 32));
    one = kiln_ones(KILN_F32, KILN_SHAPE());
}

/* ---- elementwise ---- */

static void elementwise(void)
{
#define UNARY(name) BAD(kiln_##name, x, null, KILN_INVALID, "x is NULL", NULL)
#define NUMBERS(name) \
    UNARY(name);      \
    BAD(kiln_##name, x, dtype, KILN_BAD_DTYPE, "bool", truth)
    NUMBERS(positive);
    NUMBERS(neg);
    NUMBERS(abs);
    NUMBERS(sign);
    NUMBERS(square);
    NUMBERS(floor);
    NUMBERS(ceil);
    NUMBERS(round);
    NUMBERS(trunc);
    NUMBERS(relu);
    UNARY(reciprocal);
    UNARY(sqrt);
    UNARY(rsqrt);
    UNARY(exp);
    UNARY(exp2);
    UNARY(expm1);
    UNARY(log);
    UNARY(log2);
    UNARY(log10);
    UNARY(log1p);
    UNARY(sin);
    UNARY(cos);
    UNARY(tan);
    UNARY(asin);
    UNARY(acos);
    UNARY(atan);
    UNARY(sinh);
    UNARY(cosh);
    UNARY(tanh);
    UNARY(asinh);
    UNARY(acosh);
    UNARY(atanh);
    UNARY(erf);
    UNARY(erfc);
    UNARY(sigmoid);
    UNARY(softplus);
    UNARY(silu);
    UNARY(gelu);
    UNARY(gelu_tanh);
    UNARY(isnan);
    UNARY(isinf);
    UNARY(isfinite);
    UNARY(signbit);
    UNARY(logical_not);
    UNARY(bitwise_not);
    BAD(kiln_bitwise_not, x, dtype, KILN_BAD_DTYPE, "f32", x23);
    BAD(kiln_cast, x, null, KILN_INVALID, "x is NULL", NULL, KILN_F32);
    BAD(kiln_cast, dtype, none, KILN_INVALID, "dtype 99", x23, NO_DTYPE);
}
#undef UNARY

static void binary(void)
{
#define BINARY(name, a, b)                                                                         \
    BAD(kiln_##name, a, null, KILN_INVALID, #a " is NULL", NULL, whole);                           \
    BAD(kiln_##name, b, null, KILN_INVALID, #b " is NULL", whole, NULL);                           \
    BAD(kiln_##name, b, shape, KILN_BAD_SHAPE, "i32[2,3]", whole, I32(KILN_SHAPE(4), 1, 2, 3, 4)); \
    BAD(kiln_##name, b, huge, KILN_OVERFLOW, "4294967296", kiln_cast(tall, KILN_I32), kiln_cast(wide, KILN_I32))
#define BINARY_NUMBERS(name) \
    BINARY(name, a, b);      \
    BAD(kiln_##name, a, dtype, KILN_BAD_DTYPE, "bool", truth, truth)
#define BINARY_INTS(name) \
    BINARY(name, a, b);   \
    BAD(kiln_##name, a, dtype, KILN_BAD_DTYPE, "f32", x23, x23)
    BINARY(add, a, b);
    BINARY_NUMBERS(sub);
    BINARY(mul, a, b);
    BINARY_NUMBERS(floor_divide);
    BINARY_NUMBERS(remainder);
    BINARY_NUMBERS(fmod);
    BINARY_NUMBERS(pow);
    BINARY(maximum, a, b);
    BINARY(minimum, a, b);
    BINARY(div, a, b);
    BINARY(atan2, y, x);
    BINARY(hypot, a, b);
    BINARY(logaddexp, a, b);
    BINARY(copysign, a, b);
    BINARY(nextafter, a, b);
    BINARY(eq, a, b);
    BINARY(ne, a, b);
    BINARY(lt, a, b);
    BINARY(le, a, b);
    BINARY(gt, a, b);
    BINARY(ge, a, b);
    BINARY(logical_and, a, b);
    BINARY(logical_or, a, b);
    BINARY(logical_xor, a, b);
    BINARY_INTS(bitwise_and);
    BINARY_INTS(bitwise_or);
    BINARY_INTS(bitwise_xor);
    BINARY_INTS(shift_left);
    BINARY_INTS(shift_right);

    BAD(kiln_where, condition, null, KILN_INVALID, "condition is NULL", NULL, x23, x23);
    BAD(kiln_where, a, null, KILN_INVALID, "a is NULL", truth, NULL, x23);
    BAD(kiln_where, b, null, KILN_INVALID, "b is NULL", truth, x23, NULL);
    BAD(kiln_where, b, shape, KILN_BAD_SHAPE, "f32[4]", truth, x23, x4);
    BAD(kiln_where, b, huge, KILN_OVERFLOW, "4294967296", one, tall, wide);
    BAD(kiln_clamp, x, null, KILN_INVALID, "x is NULL", NULL, x23, x23);
    BAD(kiln_clamp, low, null, KILN_INVALID, "low is NULL", x23, NULL, x23);
    BAD(kiln_clamp, high, null, KILN_INVALID, "high is NULL", x23, x23, NULL);
    BAD(kiln_clamp, high, shape, KILN_BAD_SHAPE, "f32[4]", x23, x23, x4);
    BAD(kiln_clamp, x, dtype, KILN_BAD_DTYPE, "bool", truth, truth, truth);
}

/* ---- making tensors ---- */

static float some[6] = {1, 2, 3, 4, 5, 6};
static const int64_t steps[9] = {3, 1};

static void creation(void)
{
#define MAKER(name, ...)                                                                          \
    BAD(kiln_##name, dtype, none, KILN_INVALID, "dtype 99", NO_DTYPE, KILN_SHAPE(2) __VA_ARGS__); \
    BAD_SHAPES(kiln_##name, shape, KILN_OVERFLOW, KILN_F32 WITH, __VA_ARGS__)
    MAKER(zeros);
    MAKER(ones);
    MAKER(full, WITH 1.0);
    MAKER(full_int, WITH 1);
    MAKER(from, WITH some);
    MAKER(wrap, WITH some WITH NULL WITH NULL);
    MAKER(rand, );
    MAKER(randn, );
    BAD(kiln_rand, dtype, other, KILN_BAD_DTYPE, "i32", KILN_I32, KILN_SHAPE(2));
    BAD(kiln_randn, dtype, other, KILN_BAD_DTYPE, "bool", KILN_BOOL, KILN_SHAPE(2));
    MAKER(uniform, WITH 0.0 WITH 1.0);
    MAKER(normal, WITH 0.0 WITH 1.0);
    BAD(kiln_randint, dtype, none, KILN_INVALID, "dtype 99", NO_DTYPE, KILN_SHAPE(2), 0, 5);
    BAD_SHAPES(kiln_randint, shape, KILN_OVERFLOW, KILN_I32 WITH, WITH 0 WITH 5);
    BAD(kiln_uniform, dtype, other, KILN_BAD_DTYPE, "i32", KILN_I32, KILN_SHAPE(2), 0, 1);
    BAD(kiln_uniform, low, value, KILN_INVALID, "low 1 and high 0", KILN_F32, KILN_SHAPE(2), 1, 0);
    BAD(kiln_uniform, high, value, KILN_INVALID, "finite", KILN_F32, KILN_SHAPE(2), 0, (double)NAN);
    BAD(kiln_normal, dtype, other, KILN_BAD_DTYPE, "bool", KILN_BOOL, KILN_SHAPE(2), 0, 1);
    BAD(kiln_normal, std, value, KILN_INVALID, "-1", KILN_F32, KILN_SHAPE(2), 0, -1);
    BAD(kiln_randint, dtype, other, KILN_BAD_DTYPE, "f32", KILN_F32, KILN_SHAPE(2), 0, 1);
    BAD(kiln_randint, low, value, KILN_INVALID, "not below", KILN_I32, KILN_SHAPE(2), 3, 3);
    BAD(kiln_randint, high, value, KILN_INVALID, "does not fit u8", KILN_U8, KILN_SHAPE(2), 0, 257);

    BAD(kiln_from, data, null, KILN_INVALID, "data is NULL", KILN_F32, KILN_SHAPE(2), NULL);
    BAD(kiln_wrap, data, null, KILN_INVALID, "data is NULL", KILN_F32, KILN_SHAPE(2), NULL, NULL, NULL);
    BAD(kiln_wrap, data, misaligned, KILN_INVALID, "align", KILN_F32, KILN_SHAPE(1), (char *)some + 1, NULL, NULL);
    HARMLESS(kiln_wrap, deleter, null, KILN_F32, KILN_SHAPE(6), some, NULL, NULL);
    note("kiln_wrap", "user", "null");
    BAD(kiln_wrap_strided, dtype, none, KILN_INVALID, "dtype 99", NO_DTYPE, KILN_SHAPE(2, 3), steps, some, NULL, NULL);
    BAD_SHAPES(kiln_wrap_strided, shape, KILN_OVERFLOW, KILN_F32 WITH, WITH steps WITH some WITH NULL WITH NULL);
    BAD(kiln_wrap_strided, strides, null, KILN_INVALID, "strides", KILN_F32, KILN_SHAPE(2, 3), NULL, some, NULL, NULL);
    BAD(kiln_wrap_strided, strides, huge, KILN_OVERFLOW, "stride", KILN_F32, KILN_SHAPE(3, 3), ((const int64_t[]){INT64_MAX, INT64_MAX}),
        some, NULL, NULL);
    BAD(kiln_wrap_strided, strides, huge, KILN_OVERFLOW, "stride", KILN_F32, KILN_SHAPE(3, 3), ((const int64_t[]){INT64_MIN, 1}), some,
        NULL, NULL);
    BAD(kiln_wrap_strided, data, null, KILN_INVALID, "data is NULL", KILN_F32, KILN_SHAPE(2, 3), steps, NULL, NULL, NULL);
    HARMLESS(kiln_wrap_strided, deleter, null, KILN_F32, KILN_SHAPE(2, 3), steps, some, NULL, NULL);
    note("kiln_wrap_strided", "user", "null");

    BAD(kiln_zeros_like, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_ones_like, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_full_like, x, null, KILN_INVALID, "x is NULL", NULL, 1.0);
    BAD(kiln_arange, dtype, none, KILN_INVALID, "dtype 99", NO_DTYPE, 0, 1, 1);
    BAD(kiln_arange, dtype, other, KILN_BAD_DTYPE, "bool", KILN_BOOL, 0, 1, 1);
    BAD(kiln_arange, step, value, KILN_INVALID, "step", KILN_F32, 0, 1, 0);
    BAD(kiln_arange, step, value, KILN_INVALID, "finite", KILN_F32, 0, 1, (double)NAN);
    BAD(kiln_arange, start, value, KILN_INVALID, "0.5", KILN_I32, 0.5, 2, 1);
    BAD(kiln_arange, stop, huge, KILN_OVERFLOW, "kiln_arange", KILN_F32, 0, 1e30, 1e-3);
    BAD(kiln_linspace, dtype, none, KILN_INVALID, "dtype 99", NO_DTYPE, 0, 1, 3);
    BAD(kiln_linspace, dtype, other, KILN_BAD_DTYPE, "i32", KILN_I32, 0, 1, 3);
    BAD(kiln_linspace, n, negative, KILN_INVALID, "n -1", KILN_F32, 0, 1, -1);
    BAD(kiln_linspace, n, huge, KILN_OVERFLOW, "9223372036854775807", KILN_F32, 0, 1, INT64_MAX);
    BAD(kiln_eye, dtype, none, KILN_INVALID, "dtype 99", NO_DTYPE, 2, 2, 0);
    BAD(kiln_eye, rows, negative, KILN_BAD_SHAPE, "-2", KILN_F32, -2, 2, 0);
    BAD(kiln_eye, cols, negative, KILN_BAD_SHAPE, "-2", KILN_F32, 2, -2, 0);
    BAD(kiln_eye, rows, huge, KILN_OVERFLOW, "4294967296", KILN_F32, INT64_C(1) << 32, INT64_C(1) << 32, 0);
    note("kiln_eye", "cols", "huge");
    note("kiln_eye", "k", "any"); /* every int64 means a diagonal, maybe an empty one */
}

/* ---- reductions ---- */

static void reductions(void)
{
#define AXES(name, param, before, ...)                                                          \
    BAD(kiln_##name, param, out, KILN_INVALID, "2", before KILN_AXES(2) __VA_ARGS__);           \
    BAD(kiln_##name, param, out, KILN_INVALID, "-3", before KILN_AXES(-3) __VA_ARGS__);         \
    BAD(kiln_##name, param, twice, KILN_INVALID, "twice", before KILN_AXES(0, -2) __VA_ARGS__); \
    BAD(kiln_##name, param, count, KILN_INVALID, "9", before axes9() __VA_ARGS__);              \
    BAD(kiln_##name, param, count, KILN_INVALID, "-2", before axes_minus2() __VA_ARGS__)
#define REDUCTION(name)                                                                     \
    BAD(kiln_##name, x, null, KILN_INVALID, "x is NULL", NULL);                             \
    BAD(kiln_##name##_axes, x, null, KILN_INVALID, "x is NULL", NULL, KILN_AXES(0), false); \
    AXES(name##_axes, axes, x23 WITH, WITH false)
#define REDUCTION_BY(name)                                                                     \
    BAD(kiln_##name, x, null, KILN_INVALID, "x is NULL", NULL, 0);                             \
    BAD(kiln_##name##_axes, x, null, KILN_INVALID, "x is NULL", NULL, KILN_AXES(0), 0, false); \
    AXES(name##_axes, axes, x23 WITH, WITH 0.0 WITH false)
    REDUCTION(sum);
    REDUCTION(prod);
    REDUCTION(max);
    REDUCTION(min);
    REDUCTION(any);
    REDUCTION(all);
    REDUCTION(mean);
    REDUCTION(norm);
    REDUCTION(logsumexp);
    REDUCTION_BY(var);
    REDUCTION_BY(std);
    BAD(kiln_max, x, empty, KILN_BAD_SHAPE, "f32[0,3]", empty);
    BAD(kiln_min, x, empty, KILN_BAD_SHAPE, "f32[0,3]", empty);
    BAD(kiln_max_axes, x, empty, KILN_BAD_SHAPE, "f32[0,3]", empty, KILN_AXES(0), false);
    BAD(kiln_min_axes, x, empty, KILN_BAD_SHAPE, "f32[0,3]", empty, KILN_AXES(0), false);
#define ARG(name)                                                                   \
    BAD(kiln_##name, x, null, KILN_INVALID, "x is NULL", NULL);                     \
    BAD(kiln_##name, x, empty, KILN_BAD_SHAPE, "f32[0,3]", empty);                  \
    BAD(kiln_##name##_axis, x, null, KILN_INVALID, "x is NULL", NULL, 0, false);    \
    BAD(kiln_##name##_axis, x, empty, KILN_BAD_SHAPE, "f32[0,3]", empty, 0, false); \
    AXIS(name##_axis, axis, x23 WITH, WITH false)
#define AXIS(name, param, before, ...)                                        \
    BAD(kiln_##name, param, high, KILN_INVALID, "2", before 2 __VA_ARGS__);   \
    BAD(kiln_##name, param, low, KILN_INVALID, "-3", before - 3 __VA_ARGS__); \
    BAD(kiln_##name, param, low, KILN_INVALID, "-2147483648", before INT32_MIN __VA_ARGS__)
    ARG(argmax);
    ARG(argmin);
}

/* ---- moving elements ---- */

static void views(void)
{
    static const kiln_range all2[9] = {KILN_ALL, KILN_ALL, KILN_ALL, KILN_ALL, KILN_ALL, KILN_ALL, KILN_ALL, KILN_ALL, KILN_ALL};
    static const kiln_padding pad2[9] = {{1, 1}};
    static const int64_t halves[2] = {1, 1}, three[2] = {1, 2}, minus[2] = {-1, 3};
    kiln_tensor *parts[3], *pair[2] = {x23, x23}, *uneven[2] = {x23, batch}, *gap[2] = {x23, NULL};
    kiln_tensor *giant[3];

    BAD(kiln_reshape, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(6));
    BAD(kiln_reshape, shape, negative, KILN_BAD_SHAPE, "-2", x23, KILN_SHAPE(2, -2));
    BAD(kiln_reshape, shape, negative, KILN_INVALID, "-1", x23, KILN_SHAPE(-1, -1));
    BAD(kiln_reshape, shape, rank, KILN_BAD_SHAPE, "9", x23, rank9());
    BAD(kiln_reshape, shape, huge, KILN_OVERFLOW, "4294967296", x23, KILN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32));
    BAD(kiln_reshape, shape, other, KILN_BAD_SHAPE, "f32[2,3]", x23, KILN_SHAPE(7));
    BAD(kiln_reshape, shape, other, KILN_BAD_SHAPE, "f32[0,3]", empty, KILN_SHAPE(0, -1));
    BAD(kiln_flatten, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_permute, x, null, KILN_INVALID, "x is NULL", NULL, KILN_AXES(0));
    BAD(kiln_permute, order, out, KILN_INVALID, "2", x23, KILN_AXES(0, 2));
    BAD(kiln_permute, order, twice, KILN_INVALID, "twice", x23, KILN_AXES(1, -1));
    BAD(kiln_permute, order, count, KILN_INVALID, "f32[2,3]", x23, KILN_AXES(0));
    BAD(kiln_permute, order, count, KILN_INVALID, "9", x23, axes9());
    BAD(kiln_permute, order, count, KILN_INVALID, "no order", x23, KILN_ALL_AXES);
    BAD(kiln_transpose, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_transpose, x, rank, KILN_BAD_SHAPE, "f32[4]", x4);
    BAD(kiln_swap_axes, x, null, KILN_INVALID, "x is NULL", NULL, 0, 1);
    AXIS(swap_axes, a, x23 WITH, WITH 0);
    AXIS(swap_axes, b, x23 WITH 0 WITH);
    BAD(kiln_expand, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(2));
    BAD(kiln_expand, shape, negative, KILN_BAD_SHAPE, "-2", x23, KILN_SHAPE(-2, 3));
    BAD(kiln_expand, shape, rank, KILN_BAD_SHAPE, "9", x23, rank9());
    BAD(kiln_expand, shape, huge, KILN_OVERFLOW, "4294967296", one, KILN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32));
    BAD(kiln_expand, shape, other, KILN_BAD_SHAPE, "f32[2,3]", x23, KILN_SHAPE(4, 3));
    BAD(kiln_expand, shape, other, KILN_BAD_SHAPE, "f32[2,3]", x23, KILN_SHAPE(3));
    BAD(kiln_squeeze, x, null, KILN_INVALID, "x is NULL", NULL, KILN_ALL_AXES);
    AXES(squeeze, axes, kiln_ones(KILN_F32, KILN_SHAPE(1, 1)) WITH);
    BAD(kiln_squeeze, axes, other, KILN_BAD_SHAPE, "f32[2,3]", x23, KILN_AXES(1));
    BAD(kiln_unsqueeze, x, null, KILN_INVALID, "x is NULL", NULL, 0);
    BAD(kiln_unsqueeze, x, rank, KILN_BAD_SHAPE, "9 axes", deep, 0);
    BAD(kiln_unsqueeze, axis, high, KILN_INVALID, "3", x23, 3);
    BAD(kiln_unsqueeze, axis, low, KILN_INVALID, "-4", x23, -4);
    BAD(kiln_pad_by, x, null, KILN_INVALID, "x is NULL", NULL, 1, pad2, KILN_PAD_EDGE);
    BAD(kiln_pad_by, n, negative, KILN_INVALID, "-1 paddings", x23, -1, pad2, KILN_PAD_EDGE);
    BAD(kiln_pad_by, paddings, null, KILN_INVALID, "1 paddings at NULL", x23, 1, NULL, KILN_PAD_EDGE);
    BAD(kiln_pad_by, mode, none, KILN_INVALID, "padding mode 9", x23, 1, pad2, (kiln_pad_mode)9);
    BAD(kiln_unfold, x, null, KILN_INVALID, "x is NULL", NULL, 0, 1, 1, 1);
    AXIS(unfold, axis, x23 WITH, WITH 1 WITH 1 WITH 1);
    BAD(kiln_slice, x, null, KILN_INVALID, "x is NULL", NULL, 1, all2);
    BAD(kiln_slice, n, negative, KILN_INVALID, "-1", x23, -1, all2);
    BAD(kiln_slice, n, huge, KILN_INVALID, "3", x23, 3, all2);
    BAD(kiln_slice, ranges, null, KILN_INVALID, "1 ranges at NULL", x23, 1, NULL);
    BAD(kiln_slice, ranges, step, KILN_INVALID, "step", x23, 1, ((const kiln_range[]){{0, 1, 0}}));
    BAD(kiln_slice_axis, x, null, KILN_INVALID, "x is NULL", NULL, 0, 0, 1, 1);
    AXIS(slice_axis, axis, x23 WITH, WITH 0 WITH 1 WITH 1);
    BAD(kiln_slice_axis, step, value, KILN_INVALID, "step", x23, 0, 0, 1, 0);
    BAD(kiln_select, x, null, KILN_INVALID, "x is NULL", NULL, 0, 0);
    AXIS(select, axis, x23 WITH, WITH 0);
    BAD(kiln_select, index, high, KILN_BAD_INDEX, "f32[2,3]", x23, 0, 2);
    BAD(kiln_select, index, low, KILN_BAD_INDEX, "f32[2,3]", x23, 0, -3);
    BAD(kiln_select, index, low, KILN_BAD_INDEX, "f32[2,3]", x23, 0, INT64_MIN);
    BAD(kiln_flip, x, null, KILN_INVALID, "x is NULL", NULL, KILN_ALL_AXES);
    AXES(flip, axes, x23 WITH);
    BAD(kiln_roll, x, null, KILN_INVALID, "x is NULL", NULL, 1, 0);
    AXIS(roll, axis, x23 WITH 1 WITH);
    BAD(kiln_pad, x, null, KILN_INVALID, "x is NULL", NULL, 1, pad2, one);
    BAD(kiln_pad, n, negative, KILN_INVALID, "-1", x23, -1, pad2, one);
    BAD(kiln_pad, n, huge, KILN_INVALID, "3", x23, 3, pad2, one);
    BAD(kiln_pad, paddings, null, KILN_INVALID, "1 paddings at NULL", x23, 1, NULL, one);
    BAD(kiln_pad, paddings, negative, KILN_INVALID, "-1", x23, 1, ((const kiln_padding[]){{-1, 0}}), one);
    BAD(kiln_pad, paddings, huge, KILN_OVERFLOW, "kiln_pad", x23, 1, ((const kiln_padding[]){{INT64_MAX, INT64_MAX}}), one);
    BAD(kiln_pad, value, null, KILN_INVALID, "value is NULL", x23, 1, pad2, NULL);
    BAD(kiln_pad, value, rank, KILN_BAD_SHAPE, "f32[4]", x23, 1, pad2, x4);
#define JOIN(name)                                                                   \
    BAD(kiln_##name, tensors, null, KILN_INVALID, "tensors is NULL", NULL, 2, 0);    \
    BAD(kiln_##name, tensors, element, KILN_INVALID, "tensor 1 is NULL", gap, 2, 0); \
    BAD(kiln_##name, tensors, shape, KILN_BAD_SHAPE, "f32[5,3,7]", uneven, 2, 0);    \
    BAD(kiln_##name, n, negative, KILN_INVALID, "-1 tensors", pair, -1, 0);          \
    BAD(kiln_##name, n, none, KILN_INVALID, "0 tensors", pair, 0, 0)
    JOIN(concat);
    JOIN(stack);
    AXIS(concat, axis, pair WITH 2 WITH);
    BAD(kiln_stack, axis, high, KILN_INVALID, "3", pair, 2, 3);
    BAD(kiln_stack, axis, low, KILN_INVALID, "-4", pair, 2, -4);
    BAD(kiln_stack, tensors, rank, KILN_INVALID, "f32[1,1,1,1,1,1,1,2]", ((kiln_tensor *[]){deep, deep}), 2, 0);
    for (int i = 0; i < 3; i++)
        giant[i] = kiln_expand(kiln_scalar(1), KILN_SHAPE(INT64_C(1) << 61));
    BAD(kiln_concat, tensors, huge, KILN_OVERFLOW, "kiln_concat", giant, 3, 0);
    BAD(kiln_stack, tensors, huge, KILN_OVERFLOW, "kiln_stack", giant, 3, 0);
    BAD(kiln_split, x, null, KILN_INVALID, "x is NULL", NULL, 0, 2, NULL, parts);
    AXIS(split, axis, x23 WITH, WITH 2 WITH NULL WITH parts);
    BAD(kiln_split, n, negative, KILN_INVALID, "-1", x23, 0, -1, NULL, parts);
    BAD(kiln_split, n, none, KILN_INVALID, "0", x23, 0, 0, NULL, parts);
    BAD(kiln_split, n, other, KILN_BAD_SHAPE, "f32[2,3]", x23, 1, 2, NULL, parts);
    BAD(kiln_split, sizes, sum, KILN_BAD_SHAPE, "f32[2,3]", x23, 1, 2, halves, parts);
    BAD(kiln_split, sizes, negative, KILN_BAD_SHAPE, "do not add up", x23, 0, 2, minus, parts);
    BAD(kiln_split, parts, null, KILN_INVALID, "2 parts to NULL", x23, 1, 2, three, NULL);
    NO_ERROR(kiln_split, sizes, null, x23, 0, 2, NULL, parts);
    BAD(kiln_tile, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(2));
    BAD_SHAPES(kiln_tile, repeats, KILN_OVERFLOW, x23 WITH);
    BAD(kiln_tile, repeats, rank, KILN_BAD_SHAPE, "9", deep, rank9());
    BAD(kiln_tile, x, huge, KILN_OVERFLOW, "f32[4]", x4, KILN_SHAPE(INT64_MAX / 2));
    BAD(kiln_tile, x, huge, KILN_OVERFLOW, "f32[4]", x4, KILN_SHAPE(INT64_C(1) << 40, INT64_C(1) << 21));
    BAD(kiln_triu, x, null, KILN_INVALID, "x is NULL", NULL, 0);
    BAD(kiln_tril, x, null, KILN_INVALID, "x is NULL", NULL, 0);
    BAD(kiln_triu, x, rank, KILN_BAD_SHAPE, "f32[4]", x4, 0);
    BAD(kiln_tril, x, rank, KILN_BAD_SHAPE, "f32[4]", x4, 0);
    HARMLESS(kiln_triu, k, any, x23, INT64_MIN);
    HARMLESS(kiln_tril, k, any, x23, INT64_MAX);
}

/* ---- indexing, sorting, networks ---- */

static void indexing(void)
{
    kiln_tensor *values, *indices, *i23 = kiln_cast(whole, KILN_I64), *ones = kiln_ones(KILN_F32, KILN_SHAPE(2, 3));
    const kiln_scatter_mode mode = KILN_SCATTER_SET, no_mode = (kiln_scatter_mode)7;

    BAD(kiln_take, x, null, KILN_INVALID, "x is NULL", NULL, i2, 0);
    BAD(kiln_take, index, null, KILN_INVALID, "index is NULL", x23, NULL, 0);
    BAD(kiln_take, index, dtype, KILN_BAD_DTYPE, "f32", x23, x4, 0);
    BAD(kiln_take, index, rank, KILN_BAD_SHAPE, "at most 8", x23, kiln_zeros(KILN_I64, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)), 0);
    BAD(kiln_take, index, huge, KILN_OVERFLOW, "4294967296", kiln_expand(one, KILN_SHAPE(INT64_C(1) << 32, 2)), kiln_cast(tall, KILN_I64),
        1);
    AXIS(take, axis, x23 WITH i2 WITH);
    BAD(kiln_take_along_axis, x, null, KILN_INVALID, "x is NULL", NULL, i23, 0);
    BAD(kiln_take_along_axis, index, null, KILN_INVALID, "index is NULL", x23, NULL, 0);
    BAD(kiln_take_along_axis, index, dtype, KILN_BAD_DTYPE, "f32", x23, x23, 0);
    BAD(kiln_take_along_axis, index, rank, KILN_BAD_SHAPE, "i64[2]", x23, i2, 0);
    BAD(kiln_take_along_axis, index, shape, KILN_BAD_SHAPE, "f32[5,3,7]", batch, kiln_zeros(KILN_I64, KILN_SHAPE(5, 2, 7)), 0);
    BAD(kiln_take_along_axis, x, huge, KILN_OVERFLOW, "4294967296", wide, kiln_cast(tall, KILN_I64), 1);
    AXIS(take_along_axis, axis, x23 WITH i23 WITH);
    BAD(kiln_scatter, x, null, KILN_INVALID, "x is NULL", NULL, i2, ones, 0, mode);
    BAD(kiln_scatter, index, null, KILN_INVALID, "index is NULL", x23, NULL, ones, 0, mode);
    BAD(kiln_scatter, index, dtype, KILN_BAD_DTYPE, "f32", x23, x4, ones, 0, mode);
    BAD(kiln_scatter, index, rank, KILN_BAD_SHAPE, "i64[2,3]", x23, i23, ones, 0, mode);
    BAD(kiln_scatter, source, null, KILN_INVALID, "source is NULL", x23, i2, NULL, 0, mode);
    BAD(kiln_scatter, source, shape, KILN_BAD_SHAPE, "f32[4]", x23, i2, x4, 0, mode);
    AXIS(scatter, axis, x23 WITH i2 WITH ones WITH, WITH mode);
    BAD(kiln_scatter, mode, none, KILN_INVALID, "mode", x23, i2, ones, 0, no_mode);
    BAD(kiln_scatter, mode, other, KILN_BAD_DTYPE, "bool", truth, i2, truth, 0, KILN_SCATTER_ADD);
    BAD(kiln_scatter_along_axis, x, null, KILN_INVALID, "x is NULL", NULL, i23, ones, 0, mode);
    BAD(kiln_scatter_along_axis, index, null, KILN_INVALID, "index is NULL", x23, NULL, ones, 0, mode);
    BAD(kiln_scatter_along_axis, index, dtype, KILN_BAD_DTYPE, "f32", x23, x23, ones, 0, mode);
    BAD(kiln_scatter_along_axis, index, rank, KILN_BAD_SHAPE, "i64[2]", x23, i2, ones, 0, mode);
    BAD(kiln_scatter_along_axis, source, null, KILN_INVALID, "source is NULL", x23, i23, NULL, 0, mode);
    BAD(kiln_scatter_along_axis, source, shape, KILN_BAD_SHAPE, "f32[4]", x23, i23, x4, 0, mode);
    AXIS(scatter_along_axis, axis, x23 WITH i23 WITH ones WITH, WITH mode);
    BAD(kiln_scatter_along_axis, mode, none, KILN_INVALID, "mode", x23, i23, ones, 0, no_mode);
    BAD(kiln_sort, x, null, KILN_INVALID, "x is NULL", NULL, 0, false);
    AXIS(sort, axis, x23 WITH, WITH false);
    BAD(kiln_argsort, x, null, KILN_INVALID, "x is NULL", NULL, 0, false);
    AXIS(argsort, axis, x23 WITH, WITH false);
    BAD(kiln_topk, x, null, KILN_INVALID, "x is NULL", NULL, 1, 0, true, &values, &indices);
    cr_expect(!values && !indices);
    BAD(kiln_topk, k, negative, KILN_INVALID, "-1", x23, -1, 0, true, &values, &indices);
    BAD(kiln_topk, k, huge, KILN_INVALID, "f32[2,3]", x23, 3, 0, true, &values, &indices);
    AXIS(topk, axis, x23 WITH 1 WITH, WITH true WITH & values WITH & indices);
    BAD(kiln_topk, values, null, KILN_INVALID, "values is NULL", x23, 1, 0, true, NULL, &indices);
    BAD(kiln_topk, indices, null, KILN_INVALID, "indices is NULL", x23, 1, 0, true, &values, NULL);
    BAD(kiln_cumsum, x, null, KILN_INVALID, "x is NULL", NULL, 0);
    AXIS(cumsum, axis, x23 WITH);

    kiln_tensor *image = kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 3, 3)), *pair[2] = {x23, x23}, *gap[2] = {x23, NULL};
    BAD(kiln_einsum_list, equation, null, KILN_INVALID, "equation is NULL", NULL, pair, 2);
    BAD(kiln_einsum_list, equation, other, KILN_INVALID, "character 1", "?", pair, 1);
    BAD(kiln_einsum_list, tensors, null, KILN_INVALID, "list of 2 tensors is NULL", "ij,ij", NULL, 2);
    BAD(kiln_einsum_list, tensors, element, KILN_INVALID, "tensor 1 is NULL", "ij,ij", gap, 2);
    BAD(kiln_einsum_list, n, negative, KILN_INVALID, "-1 tensors", "ij", pair, -1);
    kiln_tensor *x22 = kiln_eye(KILN_F32, 2, 2, 0);
    BAD(kiln_solve, a, null, KILN_INVALID, "a is NULL", NULL, x22);
    BAD(kiln_solve, a, rank, KILN_BAD_SHAPE, "f32[4]", x4, x4);
    BAD(kiln_solve, a, shape, KILN_BAD_SHAPE, "f32[2,3]", x23, x23);
    BAD(kiln_solve, b, null, KILN_INVALID, "b is NULL", x22, NULL);
    BAD(kiln_solve, b, rank, KILN_BAD_SHAPE, "f32[]", x22, kiln_ones(KILN_F32, KILN_SHAPE()));
    BAD(kiln_solve, b, shape, KILN_BAD_SHAPE, "f32[4]", x22, x4);
    BAD(kiln_solve_triangular, a, null, KILN_INVALID, "a is NULL", NULL, x22, 0);
    BAD(kiln_solve_triangular, a, shape, KILN_BAD_SHAPE, "f32[2,3]", x23, x23, 0);
    BAD(kiln_solve_triangular, b, null, KILN_INVALID, "b is NULL", x22, NULL, 0);
    BAD(kiln_solve_triangular, b, shape, KILN_BAD_SHAPE, "f32[4]", x22, x4, 0);
    BAD(kiln_solve_triangular, flags, unknown, KILN_INVALID, "0x10", x22, x22, 16);
    BAD(kiln_inv, a, null, KILN_INVALID, "a is NULL", NULL);
    BAD(kiln_inv, a, shape, KILN_BAD_SHAPE, "f32[2,3]", x23);
    BAD(kiln_det, a, null, KILN_INVALID, "a is NULL", NULL);
    BAD(kiln_det, a, shape, KILN_BAD_SHAPE, "f32[2,3]", x23);
    BAD(kiln_cholesky, a, null, KILN_INVALID, "a is NULL", NULL);
    BAD(kiln_cholesky, a, rank, KILN_BAD_SHAPE, "f32[4]", x4);
    BAD(kiln_slogdet, a, null, KILN_INVALID, "a is NULL", NULL, &values, &indices);
    cr_expect(!values && !indices);
    BAD(kiln_slogdet, sign, null, KILN_INVALID, "sign is NULL", x22, NULL, &indices);
    BAD(kiln_slogdet, log_abs, null, KILN_INVALID, "log_abs is NULL", x22, &values, NULL);
    BAD(kiln_qr, a, null, KILN_INVALID, "a is NULL", NULL, &values, &indices);
    BAD(kiln_qr, a, rank, KILN_BAD_SHAPE, "f32[4]", x4, &values, &indices);
    BAD(kiln_qr, q, null, KILN_INVALID, "q is NULL", x22, NULL, &indices);
    BAD(kiln_qr, r, null, KILN_INVALID, "r is NULL", x22, &values, NULL);
    BAD(kiln_eigh, a, null, KILN_INVALID, "a is NULL", NULL, &values, &indices);
    BAD(kiln_eigh, a, shape, KILN_BAD_SHAPE, "f32[2,3]", x23, &values, &indices);
    BAD(kiln_eigh, values, null, KILN_INVALID, "values is NULL", x22, NULL, &indices);
    NO_ERROR(kiln_eigh, vectors, null, x22, &values, NULL);
    BAD(kiln_svd, a, null, KILN_INVALID, "a is NULL", NULL, &values, &indices, NULL);
    BAD(kiln_svd, a, rank, KILN_BAD_SHAPE, "f32[4]", x4, &values, &indices, NULL);
    BAD(kiln_svd, s, null, KILN_INVALID, "s is NULL", x22, &values, NULL, &indices);
    NO_ERROR(kiln_svd, u, null, x22, NULL, &values, &indices);
    NO_ERROR(kiln_svd, vt, null, x22, &values, &indices, NULL);
    BAD(kiln_tensordot, a, null, KILN_INVALID, "a is NULL", NULL, x23, KILN_AXES(0), KILN_AXES(0));
    BAD(kiln_tensordot, b, null, KILN_INVALID, "b is NULL", x23, NULL, KILN_AXES(0), KILN_AXES(0));
    BAD(kiln_tensordot, axes_a, out, KILN_INVALID, "2", x23, x23, KILN_AXES(2), KILN_AXES(0));
    BAD(kiln_tensordot, axes_a, twice, KILN_INVALID, "twice", x23, x23, KILN_AXES(0, 0), KILN_AXES(0, 1));
    BAD(kiln_tensordot, axes_a, count, KILN_INVALID, "9", x23, x23, axes9(), KILN_AXES(0));
    BAD(kiln_tensordot, axes_b, out, KILN_INVALID, "-3", x23, x23, KILN_AXES(0), KILN_AXES(-3));
    BAD(kiln_tensordot, axes_b, twice, KILN_INVALID, "twice", x23, x23, KILN_AXES(0, 1), KILN_AXES(1, -1));
    BAD(kiln_tensordot, axes_b, count, KILN_INVALID, "9", x23, x23, KILN_AXES(0), axes9());
    BAD(kiln_outer, a, null, KILN_INVALID, "a is NULL", NULL, x4);
    BAD(kiln_outer, b, null, KILN_INVALID, "b is NULL", x4, NULL);
    BAD(kiln_outer, b, rank, KILN_BAD_SHAPE, "10 axes", deep, x23);
    BAD(kiln_dot, a, null, KILN_INVALID, "a is NULL", NULL, x4);
    BAD(kiln_dot, b, null, KILN_INVALID, "b is NULL", x4, NULL);
    BAD(kiln_conv, x, null, KILN_INVALID, "x is NULL", NULL, image, NULL);
    BAD(kiln_conv, w, null, KILN_INVALID, "w is NULL", image, NULL, NULL);
    BAD(kiln_max_pool, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(2, 2), NULL);
    BAD(kiln_max_pool, window, negative, KILN_BAD_SHAPE, "-2", image, KILN_SHAPE(2, -2), NULL);
    BAD(kiln_max_pool, window, rank, KILN_BAD_SHAPE, "9", image, rank9(), NULL);
    BAD(kiln_max_pool, window, huge, KILN_OVERFLOW, "4294967296", image, KILN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32), NULL);
    BAD(kiln_avg_pool, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(2, 2), NULL);
    BAD(kiln_avg_pool, window, negative, KILN_BAD_SHAPE, "-2", image, KILN_SHAPE(2, -2), NULL);
    BAD(kiln_avg_pool, window, rank, KILN_BAD_SHAPE, "9", image, rank9(), NULL);
    BAD(kiln_avg_pool, window, huge, KILN_OVERFLOW, "4294967296", image, KILN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32), NULL);
    BAD(kiln_fold, x, null, KILN_INVALID, "x is NULL", NULL, 0, 1, 1, 1);
    AXIS(fold, axis, x23 WITH, WITH 2 WITH 1 WITH 1);
    BAD(kiln_adaptive_max_pool, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(2, 2), false);
    BAD_SHAPES(kiln_adaptive_max_pool, size, KILN_OVERFLOW, image WITH, WITH false);
    BAD(kiln_adaptive_avg_pool, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(2, 2), false);
    BAD_SHAPES(kiln_adaptive_avg_pool, size, KILN_OVERFLOW, image WITH, WITH false);
    BAD(kiln_interpolate, x, null, KILN_INVALID, "x is NULL", NULL, KILN_SHAPE(2, 2), NULL);
    BAD_SHAPES(kiln_interpolate, size, KILN_OVERFLOW, image WITH, WITH NULL);
    BAD(kiln_batch_norm, x, null, KILN_INVALID, "x is NULL", NULL, x4, x4, NULL);
    BAD(kiln_batch_norm, running_mean, null, KILN_INVALID, "running_mean is NULL", x23, NULL, x4, NULL);
    BAD(kiln_batch_norm, running_var, null, KILN_INVALID, "running_var is NULL", x23, kiln_ones(KILN_F32, KILN_SHAPE(3)), NULL, NULL);
    BAD(kiln_group_norm, x, null, KILN_INVALID, "x is NULL", NULL, 1, NULL);
    BAD(kiln_attention, q, null, KILN_INVALID, "q is NULL", NULL, x23, x23, NULL);
    BAD(kiln_attention, k, null, KILN_INVALID, "k is NULL", x23, NULL, x23, NULL);
    BAD(kiln_attention, v, null, KILN_INVALID, "v is NULL", x23, x23, NULL, NULL);
    BAD(kiln_rotary, x, null, KILN_INVALID, "x is NULL", NULL, x23, false);
    BAD(kiln_rotary, angles, null, KILN_INVALID, "angles is NULL", x23, NULL, false);
    BAD(kiln_matmul, a, null, KILN_INVALID, "a is NULL", NULL, x4);
    BAD(kiln_matmul, b, null, KILN_INVALID, "b is NULL", x4, NULL);
    BAD(kiln_matmul, b, shape, KILN_BAD_SHAPE, "inner dims differ: a is f32[2,3], b is f32[4]", x23, x4);
    BAD(kiln_matmul, b, rank, KILN_BAD_SHAPE, "rank", x23, one);
    BAD(kiln_matmul, b, huge, KILN_OVERFLOW, "4294967296", tall, wide);
    BAD(kiln_matmul, a, dtype, KILN_BAD_DTYPE, "bool", truth, kiln_transpose(truth));
    BAD(kiln_softmax, x, null, KILN_INVALID, "x is NULL", NULL, 0);
    AXIS(softmax, axis, x23 WITH);
    BAD(kiln_log_softmax, x, null, KILN_INVALID, "x is NULL", NULL, 0);
    AXIS(log_softmax, axis, x23 WITH);
    BAD(kiln_normalize, x, null, KILN_INVALID, "x is NULL", NULL, KILN_ALL_AXES, 0);
    AXES(normalize, axes, x23 WITH, WITH 1e-5);
    BAD(kiln_layer_norm, x, null, KILN_INVALID, "x is NULL", NULL, one, one, 0);
    BAD(kiln_layer_norm, weight, null, KILN_INVALID, "weight is NULL", x23, NULL, one, 0);
    BAD(kiln_layer_norm, bias, null, KILN_INVALID, "bias is NULL", x23, one, NULL, 0);
    BAD(kiln_layer_norm, x, rank, KILN_BAD_SHAPE, "there is no last axis", one, one, one, 0);
    BAD(kiln_layer_norm, weight, shape, KILN_BAD_SHAPE, "f32[4]", x23, x4, one, 0);
    BAD(kiln_layer_norm, bias, shape, KILN_BAD_SHAPE, "f32[4]", x23, one, x4, 0);
    BAD(kiln_rms_norm, x, null, KILN_INVALID, "x is NULL", NULL, one, 0);
    BAD(kiln_rms_norm, weight, null, KILN_INVALID, "weight is NULL", x23, NULL, 0);
    BAD(kiln_rms_norm, x, rank, KILN_BAD_SHAPE, "there is no last axis", one, one, 0);
    BAD(kiln_rms_norm, weight, shape, KILN_BAD_SHAPE, "f32[4]", x23, x4, 0);
    BAD(kiln_linear, x, null, KILN_INVALID, "x is NULL", NULL, x23, i2);
    BAD(kiln_linear, weight, null, KILN_INVALID, "weight is NULL", x23, NULL, i2);
    BAD(kiln_linear, bias, null, KILN_INVALID, "bias is NULL", x23, x23, NULL);
    BAD(kiln_linear, bias, shape, KILN_BAD_SHAPE, "bias is f32[4]", x23, x23, x4);
    BAD(kiln_linear, x, dtype, KILN_BAD_DTYPE, "bool", truth, truth, i2);
    BAD(kiln_mse, prediction, null, KILN_INVALID, "prediction is NULL", NULL, x4);
    BAD(kiln_mse, target, null, KILN_INVALID, "target is NULL", x4, NULL);
    BAD(kiln_mse, target, shape, KILN_BAD_SHAPE, "target is f32[4]", x23, x4);
    BAD(kiln_binary_cross_entropy, logits, null, KILN_INVALID, "logits is NULL", NULL, x4);
    BAD(kiln_binary_cross_entropy, targets, null, KILN_INVALID, "targets is NULL", x4, NULL);
    BAD(kiln_binary_cross_entropy, targets, shape, KILN_BAD_SHAPE, "targets is f32[4]", x23, x4);
    BAD(kiln_one_hot, labels, null, KILN_INVALID, "labels is NULL", NULL, 3, KILN_F32);
    BAD(kiln_one_hot, labels, dtype, KILN_BAD_DTYPE, "f32[4]", x4, 3, KILN_F32);
    BAD(kiln_one_hot, dtype, none, KILN_INVALID, "dtype 99", i2, 3, NO_DTYPE);
    BAD(kiln_one_hot, classes, value, KILN_INVALID, "classes is -1", i2, -1, KILN_F32);
    BAD(kiln_one_hot, classes, huge, KILN_OVERFLOW, "4611686018427387904", i2, INT64_C(1) << 62, KILN_F32);
    BAD(kiln_dropout, x, null, KILN_INVALID, "x is NULL", NULL, 0.5);
    BAD(kiln_dropout, p, value, KILN_INVALID, "p is 2", x4, 2);
    BAD(kiln_cross_entropy, logits, null, KILN_INVALID, "logits is NULL", NULL, i2);
    BAD(kiln_cross_entropy, labels, null, KILN_INVALID, "labels is NULL", x23, NULL);
    BAD(kiln_cross_entropy, labels, dtype, KILN_BAD_DTYPE, "f32", x23, kiln_cast(i2, KILN_F32));
    BAD(kiln_cross_entropy, labels, shape, KILN_BAD_SHAPE, "f32[5,3,7]", batch, i2);
    BAD(kiln_cross_entropy, logits, rank, KILN_BAD_SHAPE, "logits is f32[]", one, i2);
}

/* ---- sync points and the rest ---- */

static void passes_on(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    grads[0] = cotangents[0];
}

static void nothing_done(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

static void sync_points(void)
{
    kiln_tensor *gap[2] = {x23, NULL}, *in[1] = {x23}, *out[1];
    float data[6];
    double value;
    int64_t count;
    const void *at;
    char text[8];
    size_t needed;
    kiln_tensor *computed = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
    kiln_tensor *giant = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(INT64_C(1) << 50)), one);

    NO_ERROR(kiln_set_device, name, null, NULL);
    BAD(kiln_set_device, name, other, KILN_INVALID, "\"gpu\"", "gpu");
    BAD(kiln_device_of, x, null, KILN_INVALID, "x is NULL", NULL, text, sizeof text);
    BAD(kiln_device_of, buffer, null, KILN_INVALID, "buffer is NULL", x23, NULL, 5);
    BAD(kiln_device_of, size, small, KILN_INVALID, "size is 3", x23, text, 3);
    BAD(kiln_to, x, null, KILN_INVALID, "x is NULL", NULL, "cpu");
    BAD(kiln_to, device, null, KILN_INVALID, "device is NULL", x23, NULL);
    BAD(kiln_to, device, other, KILN_INVALID, "\"cuda:x\"", x23, "cuda:x");
    BAD(kiln_wait, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_eval, x, null, KILN_INVALID, "x is NULL", NULL);
    if (!getenv("ASAN_OPTIONS")) /* AddressSanitizer reports it */
        BAD(kiln_eval, x, huge, KILN_OUT_OF_MEMORY, "4503599627370496", giant);
    BAD(kiln_eval_many, tensors, null, KILN_INVALID, "tensors is NULL", NULL, 1);
    BAD(kiln_eval_many, tensors, element, KILN_INVALID, "tensor 1 is NULL", gap, 2);
    BAD(kiln_eval_many, n, negative, KILN_INVALID, "-1 tensors", gap, -1);
    NO_ERROR(kiln_eval_many, n, none, gap, 0);
    BAD(kiln_eval_async, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_eval_many_async, tensors, null, KILN_INVALID, "tensors is NULL", NULL, 1);
    BAD(kiln_eval_many_async, tensors, element, KILN_INVALID, "tensor 1 is NULL", gap, 2);
    BAD(kiln_eval_many_async, n, negative, KILN_INVALID, "-1 tensors", gap, -1);
    NO_ERROR(kiln_eval_many_async, n, none, gap, 0);
    BAD(kiln_read, x, null, KILN_INVALID, "x is NULL", NULL, KILN_F32, data, sizeof data);
    BAD(kiln_read, dtype, none, KILN_BAD_DTYPE, "dtype", x23, NO_DTYPE, data, sizeof data);
    BAD(kiln_read, dtype, other, KILN_BAD_DTYPE, "f32[2,3]", x23, KILN_I32, data, sizeof data);
    BAD(kiln_read, data, null, KILN_INVALID, "data is NULL", x23, KILN_F32, NULL, sizeof data);
    BAD(kiln_read, bytes, other, KILN_INVALID, "bytes is 23", x23, KILN_F32, data, 23);
    BAD(kiln_item, x, null, KILN_INVALID, "x is NULL", NULL, &value);
    BAD(kiln_item, x, shape, KILN_BAD_SHAPE, "f32[2,3]", x23, &value);
    BAD(kiln_item, value, null, KILN_INVALID, "value is NULL", one, NULL);
    BAD(kiln_item_int, x, null, KILN_INVALID, "x is NULL", NULL, &count);
    BAD(kiln_item_int, x, shape, KILN_BAD_SHAPE, "f32[2,3]", x23, &count);
    BAD(kiln_item_int, value, null, KILN_INVALID, "value is NULL", one, NULL);
    BAD(kiln_data, x, null, KILN_INVALID, "x is NULL", NULL, &at);
    BAD(kiln_data, data, null, KILN_INVALID, "data is NULL", x23, NULL);
    BAD(kiln_print, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_format, x, null, KILN_INVALID, "x is NULL", NULL, text, sizeof text, &needed);
    BAD(kiln_format, buffer, null, KILN_INVALID, "buffer is NULL", x23, NULL, 5, &needed);
    NO_ERROR(kiln_format, needed, null, x23, text, sizeof text, NULL);
    BAD(kiln_graph_text, x, null, KILN_INVALID, "x is NULL", NULL, text, sizeof text, &needed);
    BAD(kiln_graph_text, buffer, null, KILN_INVALID, "buffer is NULL", x23, NULL, 5, &needed);
    NO_ERROR(kiln_graph_text, needed, null, x23, text, sizeof text, NULL);
    BAD(kiln_explain, x, null, KILN_INVALID, "x is NULL", NULL, text, sizeof text, &needed);
    BAD(kiln_explain, buffer, null, KILN_INVALID, "buffer is NULL", x23, NULL, 5, &needed);
    NO_ERROR(kiln_explain, needed, null, x23, text, sizeof text, NULL);
    BAD(kiln_mark_dynamic, x, null, KILN_INVALID, "x is NULL", NULL, 0, 0, 5);
    BAD(kiln_mark_dynamic, axis, high, KILN_BAD_SHAPE, "axis 2 does not exist: x is f32[2,3]", computed, 2, 0, 5);
    BAD(kiln_mark_dynamic, axis, low, KILN_BAD_SHAPE, "axis -3 does not exist: x is f32[2,3]", computed, -3, 0, 5);
    BAD(kiln_mark_dynamic, min, value, KILN_INVALID, "min", computed, 0, 5, 4);
    BAD(kiln_mark_dynamic, max, value, KILN_BAD_SHAPE, "f32[2,3]", computed, 0, 0, 1);
    BAD(kiln_mark_static, x, null, KILN_INVALID, "x is NULL", NULL, 0);
    BAD(kiln_mark_static, axis, high, KILN_BAD_SHAPE, "axis 2 does not exist: x is f32[2,3]", computed, 2);
    BAD(kiln_mark_static, axis, low, KILN_BAD_SHAPE, "axis -3 does not exist: x is f32[2,3]", computed, -3);
    BAD(kiln_mark_constant, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_assign, p, null, KILN_INVALID, "p is NULL", NULL, x23);
    BAD(kiln_assign, value, null, KILN_INVALID, "value is NULL", x23, NULL);
    BAD(kiln_assign, value, shape, KILN_BAD_SHAPE, "f32[4]", x23, x4);
    BAD(kiln_assign, value, dtype, KILN_BAD_DTYPE, "i32[2,3]", x23, whole);

    kiln_function *f = kiln_function_new(nothing_done, 1, 1, NULL);
    BAD(kiln_function_new, f, null, KILN_INVALID, "needs a function", NULL, 1, 1, NULL);
    BAD(kiln_function_new, n_in, negative, KILN_INVALID, "n_in -1", nothing_done, -1, 1, NULL);
    BAD(kiln_function_new, n_out, negative, KILN_INVALID, "n_out -1", nothing_done, 1, -1, NULL);
    BAD(kiln_function_call, function, null, KILN_INVALID, "needs a function", NULL, in, out);
    BAD(kiln_function_call, in, null, KILN_INVALID, "needs a function, inputs", f, NULL, out);
    BAD(kiln_function_call, in, element, KILN_INVALID, "input 0 is NULL", f, (kiln_tensor *[]){NULL}, out);
    BAD(kiln_function_call, out, null, KILN_INVALID, "room for outputs", f, in, NULL);
    note("kiln_function_new", "user", "null");
    kiln_function_free(f);
    HARMLESS(kiln_function_free, function, null, NULL);
}

static kiln_tensor *never(kiln_tensor **state, void *user)
{
    (void)state, (void)user;
    return NULL;
}

static void no_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)carry, (void)x, (void)carry_out, (void)y, (void)user;
}

static void gradients(void)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *loss = kiln_sum(w), *g, *seed = kiln_scalar(1);
    BAD(kiln_param, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_param, x, dtype, KILN_BAD_DTYPE, "i32[2,3]", whole);
    BAD(kiln_param, x, weak, KILN_INVALID, "weak float", seed);
    HARMLESS(kiln_recording_end, recording, null, NULL);
    BAD(kiln_value_and_grad, f, null, KILN_INVALID, "needs a function", NULL, 1, 1, NULL, 0, NULL);
    BAD(kiln_value_and_grad, n_in, negative, KILN_INVALID, "n_in -1", nothing_done, -1, 1, NULL, 0, NULL);
    BAD(kiln_value_and_grad, n_out, negative, KILN_INVALID, "n_out -1", nothing_done, 1, -1, NULL, 0, NULL);
    BAD(kiln_value_and_grad, n_wrt, negative, KILN_INVALID, "n_wrt -1", nothing_done, 1, 1, NULL, -1, NULL);
    BAD(kiln_value_and_grad, wrt, null, KILN_INVALID, "n_wrt 1", nothing_done, 1, 1, NULL, 1, NULL);
    BAD(kiln_value_and_grad, wrt, high, KILN_INVALID, "wrt[0] is 1, and there are 1 inputs", nothing_done, 1, 1, (int[]){1}, 1, NULL);
    note("kiln_value_and_grad", "user", "null");
    BAD(kiln_checkpoint, f, null, KILN_INVALID, "needs functions", NULL, 1, &w, 1, &g, NULL);
    BAD(kiln_checkpoint, n_in, negative, KILN_INVALID, "n_in >= 0", nothing_done, -1, &w, 1, &g, NULL);
    BAD(kiln_checkpoint, in, null, KILN_INVALID, "needs functions", nothing_done, 1, NULL, 1, &g, NULL);
    BAD(kiln_checkpoint, in, element, KILN_INVALID, "in[0] is NULL", nothing_done, 1, (kiln_tensor *[]){NULL}, 1, &g, NULL);
    BAD(kiln_checkpoint, n_out, negative, KILN_INVALID, "n_out >= 0", nothing_done, 1, &w, -1, &g, NULL);
    BAD(kiln_checkpoint, out, null, KILN_INVALID, "needs functions", nothing_done, 1, &w, 1, NULL, NULL);
    note("kiln_checkpoint", "user", "null");
    BAD(kiln_while, condition, null, KILN_INVALID, "needs functions", NULL, nothing_done, 1, &w, 0, &g, NULL);
    BAD(kiln_while, step, null, KILN_INVALID, "needs functions", never, NULL, 1, &w, 0, &g, NULL);
    BAD(kiln_while, n, negative, KILN_INVALID, "1 <= n", never, nothing_done, -1, &w, 0, &g, NULL);
    BAD(kiln_while, init, null, KILN_INVALID, "needs functions", never, nothing_done, 1, NULL, 0, &g, NULL);
    BAD(kiln_while, init, element, KILN_INVALID, "init[0] is NULL", never, nothing_done, 1, (kiln_tensor *[]){NULL}, 0, &g, NULL);
    BAD(kiln_while, max_steps, value, KILN_INVALID, "max_steps >= 0", never, nothing_done, 1, &w, -1, &g, NULL);
    BAD(kiln_while, out, null, KILN_INVALID, "needs functions", never, nothing_done, 1, &w, 0, NULL, NULL);
    note("kiln_while", "user", "null");
    BAD(kiln_scan, body, null, KILN_INVALID, "needs a function", NULL, 2, 0, 1, &w, &g, 0, NULL, 0, NULL, NULL);
    BAD(kiln_scan, length, value, KILN_INVALID, "length -1", no_step, -1, 0, 1, &w, &g, 0, NULL, 0, NULL, NULL);
    BAD(kiln_scan, length, value, KILN_INVALID, "length -2", no_step, -2, 0, 1, &w, &g, 1, &w, 0, NULL, NULL);
    BAD(kiln_scan, flags, unknown, KILN_INVALID, "flags 2", no_step, 2, 2, 1, &w, &g, 0, NULL, 0, NULL, NULL);
    BAD(kiln_scan, n_carry, negative, KILN_INVALID, "carries", no_step, 2, 0, -1, &w, &g, 0, NULL, 0, NULL, NULL);
    BAD(kiln_scan, init, null, KILN_INVALID, "arrays for them", no_step, 2, 0, 1, NULL, &g, 0, NULL, 0, NULL, NULL);
    BAD(kiln_scan, init, element, KILN_INVALID, "init[0] is NULL", no_step, 2, 0, 1, (kiln_tensor *[]){NULL}, &g, 0, NULL, 0, NULL, NULL);
    BAD(kiln_scan, last, null, KILN_INVALID, "arrays for them", no_step, 2, 0, 1, &w, NULL, 0, NULL, 0, NULL, NULL);
    BAD(kiln_scan, n_xs, negative, KILN_INVALID, "xs", no_step, 2, 0, 1, &w, &g, -1, NULL, 0, NULL, NULL);
    BAD(kiln_scan, xs, null, KILN_INVALID, "arrays for them", no_step, 2, 0, 1, &w, &g, 1, NULL, 0, NULL, NULL);
    BAD(kiln_scan, xs, element, KILN_INVALID, "xs[0] is NULL", no_step, 2, 0, 1, &w, &g, 1, (kiln_tensor *[]){NULL}, 0, NULL, NULL);
    BAD(kiln_scan, xs, rank, KILN_BAD_SHAPE, "needs an axis", no_step, 2, 0, 1, &w, &g, 1, &one, 0, NULL, NULL);
    BAD(kiln_scan, n_ys, negative, KILN_INVALID, "ys", no_step, 2, 0, 1, &w, &g, 0, NULL, -1, NULL, NULL);
    BAD(kiln_scan, ys, null, KILN_INVALID, "arrays for them", no_step, 2, 0, 1, &w, &g, 0, NULL, 1, NULL, NULL);
    note("kiln_scan", "user", "null");
    BAD(kiln_cond, predicate, null, KILN_INVALID, "predicate is NULL", NULL, nothing_done, nothing_done, 1, &w, 1, &g, NULL);
    BAD(kiln_cond, then_f, null, KILN_INVALID, "needs two functions", one, NULL, nothing_done, 1, &w, 1, &g, NULL);
    BAD(kiln_cond, else_f, null, KILN_INVALID, "needs two functions", one, nothing_done, NULL, 1, &w, 1, &g, NULL);
    BAD(kiln_cond, n_in, negative, KILN_INVALID, "inputs", one, nothing_done, nothing_done, -1, &w, 1, &g, NULL);
    BAD(kiln_cond, in, null, KILN_INVALID, "inputs", one, nothing_done, nothing_done, 1, NULL, 1, &g, NULL);
    BAD(kiln_cond, in, element, KILN_INVALID, "in[0] is NULL", one, nothing_done, nothing_done, 1, (kiln_tensor *[]){NULL}, 1, &g, NULL);
    BAD(kiln_cond, n_out, negative, KILN_INVALID, "outputs", one, nothing_done, nothing_done, 1, &w, -1, &g, NULL);
    BAD(kiln_cond, out, null, KILN_INVALID, "outputs", one, nothing_done, nothing_done, 1, &w, 1, NULL, NULL);
    note("kiln_cond", "user", "null");
    BAD(kiln_map, f, null, KILN_INVALID, "needs a function", NULL, 1, &w, NULL, 0, 1, &g, NULL);
    BAD(kiln_map, n_in, negative, KILN_INVALID, "n_in >= 1", nothing_done, -1, &w, NULL, 0, 1, &g, NULL);
    BAD(kiln_map, in, null, KILN_INVALID, "needs a function", nothing_done, 1, NULL, NULL, 0, 1, &g, NULL);
    BAD(kiln_map, in, element, KILN_INVALID, "in[0] is NULL", nothing_done, 1, (kiln_tensor *[]){NULL}, NULL, 0, 1, &g, NULL);
    note("kiln_map", "axes", "null");
    BAD(kiln_map, axes, value, KILN_INVALID, "axes[0] is 9", nothing_done, 1, &w, (int[]){9}, 0, 1, &g, NULL);
    BAD(kiln_map, chunk, value, KILN_INVALID, "chunk >= 0", nothing_done, 1, &w, NULL, -1, 1, &g, NULL);
    BAD(kiln_map, n_out, negative, KILN_INVALID, "n_out >= 1", nothing_done, 1, &w, NULL, 0, -1, &g, NULL);
    BAD(kiln_map, out, null, KILN_INVALID, "needs a function", nothing_done, 1, &w, NULL, 0, 1, NULL, NULL);
    note("kiln_map", "user", "null");
    BAD(kiln_autocast_push, low, none, KILN_BAD_DTYPE, "KILN_BF16", KILN_F64);
    BAD(kiln_mode_push, op, null, KILN_INVALID, "needs a callback", NULL, NULL, NULL);
    note("kiln_mode_push", "end", "null");
    note("kiln_mode_push", "user", "null");
    BAD(kiln_mode_next, call, null, KILN_INVALID, "needs the call", NULL, &w);
    note("kiln_mode_next", "in", "null");
    note("kiln_mode_pop", "mode", "null");
    BAD(kiln_custom_gradient, f, null, KILN_INVALID, "needs functions", NULL, passes_on, NULL, 1, &w, 1, &g, NULL);
    BAD(kiln_custom_gradient, vjp, null, KILN_INVALID, "needs functions", nothing_done, NULL, NULL, 1, &w, 1, &g, NULL);
    note("kiln_custom_gradient", "jvp", "null");
    BAD(kiln_custom_gradient, n_in, negative, KILN_INVALID, "n_in >= 0", nothing_done, passes_on, NULL, -1, &w, 1, &g, NULL);
    BAD(kiln_custom_gradient, in, null, KILN_INVALID, "needs functions", nothing_done, passes_on, NULL, 1, NULL, 1, &g, NULL);
    BAD(kiln_custom_gradient, in, element, KILN_INVALID, "in[0] is NULL", nothing_done, passes_on, NULL, 1, (kiln_tensor *[]){NULL}, 1, &g,
        NULL);
    BAD(kiln_custom_gradient, n_out, negative, KILN_INVALID, "n_out >= 0", nothing_done, passes_on, NULL, 1, &w, -1, &g, NULL);
    BAD(kiln_custom_gradient, out, null, KILN_INVALID, "needs functions", nothing_done, passes_on, NULL, 1, &w, 1, NULL, NULL);
    note("kiln_custom_gradient", "user", "null");
    BAD(kiln_stop_gradient, x, null, KILN_INVALID, "x is NULL", NULL);
    BAD(kiln_grad, loss, null, KILN_INVALID, "loss is NULL", NULL, &w, 1, &g);
    BAD(kiln_grad, loss, dtype, KILN_BAD_DTYPE, "i32[2,3]", whole, &w, 1, &g);
    BAD(kiln_grad, loss, shape, KILN_BAD_SHAPE, "f32[2,3]: one element", x23, &w, 1, &g);
    BAD(kiln_grad, params, null, KILN_INVALID, "n >= 0", loss, NULL, 1, &g);
    BAD(kiln_grad, params, element, KILN_INVALID, "params[0] is NULL", loss, (kiln_tensor *[]){NULL}, 1, &g);
    BAD(kiln_grad, params, other, KILN_INVALID, "params[0] is no parameter", loss, &x23, 1, &g);
    BAD(kiln_grad, n, negative, KILN_INVALID, "n >= 0", loss, &w, -1, &g);
    BAD(kiln_grad, grads, null, KILN_INVALID, "n >= 0", loss, &w, 1, NULL);
    BAD(kiln_vjp, n_out, negative, KILN_INVALID, "needs arrays", -1, &loss, &seed, 1, &w, 0, &g);
    BAD(kiln_vjp, outputs, null, KILN_INVALID, "needs arrays", 1, NULL, &seed, 1, &w, 0, &g);
    BAD(kiln_vjp, cotangents, null, KILN_INVALID, "needs arrays", 1, &loss, NULL, 1, &w, 0, &g);
    BAD(kiln_vjp, cotangents, shape, KILN_BAD_SHAPE, "cotangents[0] is f32[2,3]", 1, &loss, &x23, 1, &w, 0, &g);
    BAD(kiln_vjp, n_in, negative, KILN_INVALID, "needs arrays", 1, &loss, &seed, -1, &w, 0, &g);
    BAD(kiln_vjp, inputs, null, KILN_INVALID, "needs arrays", 1, &loss, &seed, 1, NULL, 0, &g);
    BAD(kiln_vjp, flags, unknown, KILN_INVALID, "0x2", 1, &loss, &seed, 1, &w, 2, &g);
    BAD(kiln_vjp, grads, null, KILN_INVALID, "needs arrays", 1, &loss, &seed, 1, &w, 0, NULL);
    BAD(kiln_jvp, n_in, negative, KILN_INVALID, "needs arrays", -1, &w, &seed, 1, &loss, 0, &g);
    BAD(kiln_jvp, inputs, null, KILN_INVALID, "needs arrays", 1, NULL, &seed, 1, &loss, 0, &g);
    BAD(kiln_jvp, tangents, null, KILN_INVALID, "needs arrays", 1, &w, NULL, 1, &loss, 0, &g);
    BAD(kiln_jvp, tangents, dtype, KILN_BAD_DTYPE, "tangents[0] is i32[2,3]", 1, &w, &whole, 1, &loss, 0, &g);
    BAD(kiln_jvp, n_out, negative, KILN_INVALID, "needs arrays", 1, &w, &seed, -1, &loss, 0, &g);
    BAD(kiln_jvp, outputs, null, KILN_INVALID, "needs arrays", 1, &w, &seed, 1, NULL, 0, &g);
    BAD(kiln_jvp, flags, unknown, KILN_INVALID, "0x2", 1, &w, &seed, 1, &loss, 2, &g);
    BAD(kiln_jvp, out_tangents, null, KILN_INVALID, "needs arrays", 1, &w, &seed, 1, &loss, 0, NULL);
}

static void optimizers(void)
{
    kiln_tensor *w = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *g = F32(KILN_SHAPE(2), 1, 1), *rate = kiln_scalar(1), *c, *nothing = NULL;
    const kiln_optimizer_options sgd = {.kind = KILN_SGD};
    BAD(kiln_optimizer_new, params, null, KILN_INVALID, "params and n (1)", NULL, 1, &sgd);
    BAD(kiln_optimizer_new, params, element, KILN_INVALID, "params[0] is NULL", &nothing, 1, &sgd);
    BAD(kiln_optimizer_new, params, other, KILN_INVALID, "params[0] is no parameter", &g, 1, &sgd);
    BAD(kiln_optimizer_new, n, negative, KILN_INVALID, "params and n (-1)", &w, -1, &sgd);
    BAD(kiln_optimizer_new, options, null, KILN_INVALID, "options is NULL", &w, 1, NULL);
    BAD(kiln_optimizer_new, options, reserved, KILN_INVALID, "reserved[2]", &w, 1,
        &(kiln_optimizer_options){.reserved = {0 WITH 0 WITH 4}});
    BAD(kiln_optimizer_new, options, kind, KILN_INVALID, "kind 99", &w, 1, &(kiln_optimizer_options){.kind = (kiln_optimizer_kind)99});
    BAD(kiln_optimizer_new, options, momentum, KILN_INVALID, "momentum is 1", &w, 1, &(kiln_optimizer_options){.momentum = 1});
    BAD(kiln_optimizer_new, options, nesterov, KILN_INVALID, "needs a momentum", &w, 1, &(kiln_optimizer_options){.nesterov = true});
    BAD(kiln_optimizer_new, options, beta, KILN_INVALID, "beta1 is nan", &w, 1, &(kiln_optimizer_options){.beta1 = (double)NAN});
    BAD(kiln_optimizer_new, options, decay, KILN_INVALID, "weight_decay is -1", &w, 1, &(kiln_optimizer_options){.weight_decay = -1});
    kiln_optimizer *opt = kiln_optimizer_new(&w, 1, &sgd);
    BAD(kiln_optimizer_step, opt, null, KILN_INVALID, "opt is NULL", NULL, &g, rate);
    BAD(kiln_optimizer_step, grads, null, KILN_INVALID, "grads is NULL", opt, NULL, rate);
    BAD(kiln_optimizer_step, grads, element, KILN_INVALID, "grads[0] is NULL", opt, &nothing, rate);
    BAD(kiln_optimizer_step, grads, dtype, KILN_BAD_DTYPE, "grads[0] is i64[2]", opt, &i2, rate);
    BAD(kiln_optimizer_step, learning_rate, null, KILN_INVALID, "learning_rate is NULL", opt, &g, NULL);
    BAD(kiln_optimizer_step, learning_rate, shape, KILN_BAD_SHAPE, "learning_rate is f32[4]", opt, &g, x4);
    BAD(kiln_optimizer_step_where, opt, null, KILN_INVALID, "opt is NULL", NULL, rate, &g, rate);
    BAD(kiln_optimizer_step_where, condition, null, KILN_INVALID, "condition is NULL", opt, NULL, &g, rate);
    BAD(kiln_optimizer_step_where, condition, shape, KILN_BAD_SHAPE, "condition is bool[2,3]", opt, truth, &g, rate);
    BAD(kiln_optimizer_step_where, grads, null, KILN_INVALID, "grads is NULL", opt, rate, NULL, rate);
    BAD(kiln_optimizer_step_where, learning_rate, null, KILN_INVALID, "learning_rate is NULL", opt, rate, &g, NULL);
    HARMLESS(kiln_optimizer_state, opt, null, NULL, 0, NULL);
    HARMLESS(kiln_optimizer_state, i, negative, opt, -1, NULL);
    HARMLESS(kiln_optimizer_state, i, high, opt, 9, NULL);
    HARMLESS(kiln_optimizer_state, name, null, opt, 0, NULL);
    kiln_optimizer_free(opt);
    HARMLESS(kiln_optimizer_free, opt, null, NULL);
    BAD(kiln_clip_by_global_norm, grads, null, KILN_INVALID, "n (1)", NULL, 1, 1, &c, NULL);
    BAD(kiln_clip_by_global_norm, grads, dtype, KILN_BAD_DTYPE, "grads[0] is i64[2]", &i2, 1, 1, &c, NULL);
    BAD(kiln_clip_by_global_norm, n, negative, KILN_INVALID, "n (-1)", &g, -1, 1, &c, NULL);
    BAD(kiln_clip_by_global_norm, max_norm, value, KILN_INVALID, "max_norm is -1", &g, 1, -1, &c, NULL);
    BAD(kiln_clip_by_global_norm, clipped, null, KILN_INVALID, "room", &g, 1, 1, NULL, NULL);
    NO_ERROR(kiln_clip_by_global_norm, norm, null, &g, 1, 1, &c, NULL);
    BAD(kiln_scaler_new, scale, value, KILN_INVALID, "scale is 0", 0, 1);
    BAD(kiln_scaler_new, interval, value, KILN_INVALID, "interval is 0", 1, 0);
    kiln_scaler *scaler = kiln_scaler_new(2, 2);
    BAD(kiln_scaler_scale, scaler, null, KILN_INVALID, "scaler is NULL", NULL, g);
    BAD(kiln_scaler_scale, loss, null, KILN_INVALID, "loss is NULL", scaler, NULL);
    BAD(kiln_scaler_unscale, scaler, null, KILN_INVALID, "scaler is NULL", NULL, &g, 1, &c);
    BAD(kiln_scaler_unscale, grads, null, KILN_INVALID, "n (1)", scaler, NULL, 1, &c);
    BAD(kiln_scaler_unscale, grads, element, KILN_INVALID, "grads[0] is NULL", scaler, &nothing, 1, &c);
    BAD(kiln_scaler_unscale, n, negative, KILN_INVALID, "n (-1)", scaler, &g, -1, &c);
    BAD(kiln_scaler_unscale, unscaled, null, KILN_INVALID, "room", scaler, &g, 1, NULL);
    HARMLESS(kiln_scaler_state, scaler, null, NULL, 0, NULL);
    HARMLESS(kiln_scaler_state, i, negative, scaler, -1, NULL);
    HARMLESS(kiln_scaler_state, i, high, scaler, 2, NULL);
    HARMLESS(kiln_scaler_state, name, null, scaler, 0, NULL);
    kiln_scaler_free(scaler);
    HARMLESS(kiln_scaler_free, scaler, null, NULL);
}

static void files(void)
{
    char path[512];
    const char *tmp = getenv("TMPDIR");
    kiln_named named[1] = {{"x", x23}}, gap[1] = {{"x", NULL}};
    kiln_metadata texts[1] = {{"a", "b"}};
    snprintf(path, sizeof path, "%s/kiln_bad_input_%ld", tmp ? tmp : "/tmp", (long)getpid());
    BAD(kiln_load_npy, path, null, KILN_INVALID, "path is NULL", NULL);
    BAD(kiln_save_npy, x, null, KILN_INVALID, "x is NULL", NULL, "/nonexistent/x");
    BAD(kiln_save_npy, path, null, KILN_INVALID, "path is NULL", x23, NULL);
    BAD(kiln_save_safetensors, path, null, KILN_INVALID, "path is NULL", NULL, 1, named, 0, NULL);
    BAD(kiln_save_safetensors, n, negative, KILN_INVALID, "-1 tensors", path, -1, named, 0, NULL);
    BAD(kiln_save_safetensors, tensors, null, KILN_INVALID, "tensors is NULL", path, 1, NULL, 0, NULL);
    BAD(kiln_save_safetensors, tensors, element, KILN_INVALID, "tensor 0 is NULL", path, 1, gap, 0, NULL);
    BAD(kiln_save_safetensors, n_metadata, negative, KILN_INVALID, "-1 metadata", path, 1, named, -1, texts);
    BAD(kiln_save_safetensors, metadata, null, KILN_INVALID, "metadata is NULL", path, 1, named, 1, NULL);
    NO_ERROR(kiln_save_safetensors, metadata, null, path, 1, named, 0, NULL);
    BAD(kiln_save_npz, path, null, KILN_INVALID, "path is NULL", NULL, 1, named, false);
    BAD(kiln_save_npz, n, negative, KILN_INVALID, "-1 tensors", path, -1, named, false);
    BAD(kiln_save_npz, tensors, null, KILN_INVALID, "tensors is NULL", path, 1, NULL, false);
    BAD(kiln_save_npz, tensors, element, KILN_INVALID, "tensor 0 is NULL", path, 1, gap, false);
    BAD(kiln_load_npz, path, null, KILN_INVALID, "path is NULL", NULL);
    BAD(kiln_load_safetensors, path, null, KILN_INVALID, "path is NULL", NULL);
    kiln_file *file = kiln_load_safetensors(path);
    kiln_tensor *tensor;
    cr_assert(file && remove(path) == 0, "%s", kiln_error_message());
    BAD(kiln_file_tensor, from, null, KILN_INVALID, "from is NULL", NULL, "x");
    BAD(kiln_file_tensor, name, null, KILN_INVALID, "name is NULL", file, NULL);
    BAD(kiln_file_tensor, name, other, KILN_INVALID, "no tensor is called \"y\"", file, "y");
    BAD(kiln_file_tensors, from, null, KILN_INVALID, "from is NULL", NULL, &tensor);
    BAD(kiln_file_tensors, tensors, null, KILN_INVALID, "tensors is NULL", file, NULL);
    HARMLESS(kiln_file_count, file, null, NULL);
    HARMLESS(kiln_file_info, file, null, NULL, 0);
    HARMLESS(kiln_file_info, i, negative, file, -1);
    HARMLESS(kiln_file_info, i, high, file, 1);
    HARMLESS(kiln_file_find, file, null, NULL, "x");
    HARMLESS(kiln_file_find, name, null, file, NULL);
    HARMLESS(kiln_file_metadata, file, null, NULL, 0);
    HARMLESS(kiln_file_metadata, i, negative, file, -1);
    HARMLESS(kiln_file_metadata, i, high, file, 0);
    HARMLESS(kiln_file_metadata_value, file, null, NULL, "a");
    HARMLESS(kiln_file_metadata_value, key, null, file, NULL);
    kiln_file_free(file);
    HARMLESS(kiln_file_free, file, null, NULL);
}

static kiln_status same_type(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
    return KILN_OK;
}

static kiln_status no_values(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    (void)in, (void)out, (void)attributes, (void)bytes, (void)user;
    return KILN_OK;
}

static void own_ops(void)
{
    const kiln_op_info info = {.name = "bad.input", .version = "1", .n_in = 1, .n_out = 1, .infer = same_type, .host = no_values};
    const kiln_op *op = kiln_op_register(&info);
    const char *volatile nothing = NULL;
    kiln_tensor *y;
    BAD(kiln_op_register, info, null, KILN_INVALID, "needs a name", NULL);
    BAD(kiln_op_apply, op, null, KILN_INVALID, "op is NULL", NULL, &x23, NULL, 0, &y);
    BAD(kiln_op_apply, in, null, KILN_INVALID, "needs inputs (1)", op, NULL, NULL, 0, &y);
    BAD(kiln_op_apply, in, element, KILN_INVALID, "in[0] is NULL", op, (kiln_tensor *[]){NULL}, NULL, 0, &y);
    BAD(kiln_op_apply, attributes, null, KILN_INVALID, "attributes of 4 bytes", op, &x23, NULL, 4, &y);
    BAD(kiln_op_apply, out, null, KILN_INVALID, "room for outputs (1)", op, &x23, NULL, 0, NULL);
    HARMLESS(kiln_op_fail, format, null, nothing, 0);
}

/* What a pass asks of a graph or node that is none gives nothing; of an axis or operand that there is not, too, and the pass fails. */
static kiln_status pokes(kiln_graph *graph, void *user)
{
    kiln_graph *volatile none = NULL;
    const char *volatile nothing = NULL;
    kiln_node node = kiln_graph_nodes(graph) - 1, vars[4];
    int64_t size;
    double number;
    int axes[KILN_MAX_RANK];
    *(int *)user += 1;
    HARMLESS(kiln_graph_fail, graph, null, none, "why");
    HARMLESS(kiln_graph_depth, graph, null, none);
    HARMLESS(kiln_graph_nodes, graph, null, none);
#define OF_NODE(function, rest)                       \
    HARMLESS(function, graph, null, none, node rest); \
    HARMLESS(function, node, none, graph, KILN_NO_NODE rest)
    OF_NODE(kiln_node_op, );
    OF_NODE(kiln_node_dtype, );
    OF_NODE(kiln_node_rank, );
    OF_NODE(kiln_node_size, WITH 0 WITH & size);
    OF_NODE(kiln_node_size_now, WITH 0);
    OF_NODE(kiln_node_number, WITH & number);
    OF_NODE(kiln_node_axes, WITH axes);
    OF_NODE(kiln_node_attributes, );
    OF_NODE(kiln_node_text, );
    OF_NODE(kiln_node_n_inputs, );
    OF_NODE(kiln_node_input, WITH 0);
    OF_NODE(kiln_node_n_users, );
    OF_NODE(kiln_node_user, WITH 0);
    OF_NODE(kiln_node_is_output, );
    OF_NODE(kiln_graph_match, WITH "x" WITH vars);
    OF_NODE(kiln_graph_replace, WITH node);
#undef OF_NODE
    HARMLESS(kiln_graph_replace, with, none, graph, node, KILN_NO_NODE);
    HARMLESS(kiln_node_size, size, null, graph, node, 0, NULL);
    HARMLESS(kiln_node_number, number, null, graph, node, NULL);
    HARMLESS(kiln_node_axes, axes, null, graph, node, NULL);
    HARMLESS(kiln_node_input, k, negative, graph, node, -1);
    HARMLESS(kiln_node_input, k, high, graph, node, 1000);
    HARMLESS(kiln_node_user, k, negative, graph, node, -1);
    HARMLESS(kiln_node_user, k, high, graph, node, 1000);
    HARMLESS(kiln_graph_match, pattern, null, graph, node, nothing, vars);
    HARMLESS(kiln_graph_build, graph, null, none, "x", NULL);
    HARMLESS(kiln_graph_build, expression, null, graph, nothing, NULL);
    HARMLESS(kiln_graph_op, graph, null, none, "neg", 1, &node);
    HARMLESS(kiln_graph_op, op, null, graph, nothing, 1, &node);
    HARMLESS(kiln_graph_op, in, null, graph, "neg", 1, NULL);
    HARMLESS(kiln_graph_number, graph, null, none, KILN_F32, 1);
    HARMLESS(kiln_node_size, axis, high, graph, node, 9, &size); /* from here on it fails */
    HARMLESS(kiln_node_size, axis, low, graph, node, -9, &size);
    HARMLESS(kiln_node_size_now, axis, high, graph, node, 9);
    HARMLESS(kiln_node_size_now, axis, low, graph, node, -9);
    HARMLESS(kiln_graph_op, n_in, negative, graph, "neg", -1, &node);
    HARMLESS(kiln_graph_number, dtype, none, graph, NO_DTYPE, 1);
    HARMLESS(kiln_graph_fail, message, null, graph, nothing);
    return KILN_OK;
}

static void own_passes(void)
{
    int calls = 0;
    BAD(kiln_rule_add, name, null, KILN_INVALID, "the name is NULL", NULL, "(mul x 1)", "x", 0);
    BAD(kiln_rule_add, pattern, null, KILN_INVALID, "the pattern is NULL", "bad.rule", NULL, "x", 0);
    BAD(kiln_rule_add, replacement, null, KILN_INVALID, "the replacement is NULL", "bad.rule", "(mul x 1)", NULL, 0);
    BAD(kiln_rule_add, condition, unknown, KILN_INVALID, "condition", "bad.rule", "(mul x 1)", "x", 0x1000u);
    BAD(kiln_rule_remove, name, null, KILN_INVALID, "the name is NULL", NULL);
    BAD(kiln_pass_register, name, null, KILN_INVALID, "the name is NULL", NULL, "1", NULL, pokes, &calls);
    BAD(kiln_pass_register, version, null, KILN_INVALID, "the version is NULL", "bad.pass", NULL, NULL, pokes, &calls);
    BAD(kiln_pass_register, callback, null, KILN_INVALID, "the callback is NULL", "bad.pass", "1", NULL, NULL, &calls);
    BAD(kiln_pass_remove, name, null, KILN_INVALID, "the name is NULL", NULL);
    NO_ERROR(kiln_pass_register, after, null, "bad.pass", "1", NULL, pokes, &calls);
    kiln_scope *scope = kiln_scope_begin();
    cr_expect(kiln_eval(kiln_exp(kiln_sub(x4, kiln_sqrt(x4)))) == KILN_OK, "the interpreter computes it: %s", kiln_error_message());
    kiln_scope_end(scope);
    cr_expect(calls > 0, "the pass was not called");
    cr_expect(kiln_pass_remove("bad.pass") == KILN_OK, "%s", kiln_error_message());
    NO_ERROR(kiln_pass_register, user, null, "bad.pass", "1", NULL, pokes, NULL);
    cr_expect(kiln_pass_remove("bad.pass") == KILN_OK, "%s", kiln_error_message());
}

static void exchange(void)
{
    struct DLManagedTensorVersioned *out;
    struct DLManagedTensor *old;
    BAD(kiln_from_dlpack, tensor, null, KILN_INVALID, "tensor is NULL", NULL, 0);
    BAD(kiln_from_dlpack_unversioned, tensor, null, KILN_INVALID, "tensor is NULL", NULL, 0);
    BAD(kiln_to_dlpack, x, null, KILN_INVALID, "x is NULL", NULL, 0, &out);
    BAD(kiln_to_dlpack, tensor, null, KILN_INVALID, "tensor is NULL", x23, 0, NULL);
    BAD(kiln_to_dlpack_unversioned, x, null, KILN_INVALID, "x is NULL", NULL, 0, &old);
    BAD(kiln_to_dlpack_unversioned, tensor, null, KILN_INVALID, "tensor is NULL", x23, 0, NULL);
}

static kiln_status nothing_to_time(int64_t n, void *user)
{
    (void)n, (void)user;
    return KILN_OK;
}

/* A group of one rank: what is wrong is so before anybody is asked. api/test_ranks has several. */
static void ranks(void)
{
    int to_itself[] = {0}, to_nobody[] = {1};
    kiln_tensor *gap[] = {x23, NULL};
    kiln_group *self = kiln_group_world("self");
    cr_assert(self, "%s", kiln_error_message());
    HARMLESS(kiln_group_world, backend, null, NULL); /* what the option says */
    HARMLESS(kiln_group_rank, group, null, NULL);
    HARMLESS(kiln_group_size, group, null, NULL);
    HARMLESS(kiln_group_backend, group, null, NULL);
    BAD(kiln_group_split, group, null, KILN_INVALID, "group is NULL", NULL, 0, 0);
    BAD(kiln_all_reduce, group, null, KILN_INVALID, "group is NULL", NULL, x23, KILN_REDUCE_SUM);
    BAD(kiln_all_reduce, x, null, KILN_INVALID, "x is NULL", self, NULL, KILN_REDUCE_SUM);
    BAD(kiln_all_reduce, how, none, KILN_INVALID, "99", self, x23, (kiln_reduce)99);
    BAD(kiln_all_gather, group, null, KILN_INVALID, "group is NULL", NULL, x23, 0);
    BAD(kiln_all_gather, x, null, KILN_INVALID, "x is NULL", self, NULL, 0);
    BAD(kiln_all_gather, axis, high, KILN_INVALID, "2", self, x23, 2);
    BAD(kiln_all_gather, axis, low, KILN_INVALID, "-3", self, x23, -3);
    BAD(kiln_reduce_scatter, group, null, KILN_INVALID, "group is NULL", NULL, x23, KILN_REDUCE_SUM, 0);
    BAD(kiln_reduce_scatter, x, null, KILN_INVALID, "x is NULL", self, NULL, KILN_REDUCE_SUM, 0);
    BAD(kiln_reduce_scatter, how, none, KILN_INVALID, "99", self, x23, (kiln_reduce)99, 0);
    BAD(kiln_reduce_scatter, axis, high, KILN_INVALID, "2", self, x23, KILN_REDUCE_SUM, 2);
    BAD(kiln_reduce_scatter, axis, low, KILN_INVALID, "-3", self, x23, KILN_REDUCE_SUM, -3);
    BAD(kiln_broadcast, group, null, KILN_INVALID, "group is NULL", NULL, x23, 0);
    BAD(kiln_broadcast, x, null, KILN_INVALID, "x is NULL", self, NULL, 0);
    BAD(kiln_broadcast, root, high, KILN_INVALID, "1", self, x23, 1);
    BAD(kiln_broadcast, root, negative, KILN_INVALID, "-1", self, x23, -1);
    BAD(kiln_all_to_all, group, null, KILN_INVALID, "group is NULL", NULL, x23, 0, 0);
    BAD(kiln_all_to_all, x, null, KILN_INVALID, "x is NULL", self, NULL, 0, 0);
    BAD(kiln_all_to_all, split_axis, high, KILN_INVALID, "2", self, x23, 2, 0);
    BAD(kiln_all_to_all, split_axis, low, KILN_INVALID, "-3", self, x23, -3, 0);
    BAD(kiln_all_to_all, concat_axis, high, KILN_INVALID, "2", self, x23, 0, 2);
    BAD(kiln_all_to_all, concat_axis, low, KILN_INVALID, "-3", self, x23, 0, -3);
    BAD(kiln_send_recv, group, null, KILN_INVALID, "group is NULL", NULL, x23, to_itself);
    BAD(kiln_send_recv, x, null, KILN_INVALID, "x is NULL", self, NULL, to_itself);
    BAD(kiln_send_recv, from, null, KILN_INVALID, "from is NULL", self, x23, NULL);
    BAD(kiln_send_recv, from, out, KILN_INVALID, "1", self, x23, to_nobody);
    BAD(kiln_send, group, null, KILN_INVALID, "group is NULL", NULL, x23, 0);
    BAD(kiln_send, x, null, KILN_INVALID, "x is NULL", self, NULL, 0);
    BAD(kiln_send, to, high, KILN_INVALID, "1", self, x23, 1);
    BAD(kiln_send, to, negative, KILN_INVALID, "-1", self, x23, -1);
    BAD(kiln_recv, group, null, KILN_INVALID, "group is NULL", NULL, KILN_F32, KILN_SHAPE(2), 0);
    BAD(kiln_recv, dtype, none, KILN_BAD_DTYPE, "99", self, (kiln_dtype)99, KILN_SHAPE(2), 0);
    BAD(kiln_recv, shape, negative, KILN_BAD_SHAPE, "-2", self, KILN_F32, KILN_SHAPE(2, -2), 0);
    BAD(kiln_recv, shape, rank, KILN_BAD_SHAPE, "9", self, KILN_F32, rank9(), 0);
    BAD(kiln_recv, shape, huge, KILN_OVERFLOW, "4294967296", self, KILN_F32, KILN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32), 0);
    BAD(kiln_recv, from, high, KILN_INVALID, "1", self, KILN_F32, KILN_SHAPE(2), 1);
    BAD(kiln_recv, from, negative, KILN_INVALID, "-1", self, KILN_F32, KILN_SHAPE(2), -1);
    BAD(kiln_barrier, group, null, KILN_INVALID, "group is NULL", NULL);
    BAD(kiln_shard, group, null, KILN_INVALID, "group is NULL", NULL, x23);
    BAD(kiln_shard, x, null, KILN_INVALID, "x is NULL", self, NULL);
    BAD(kiln_unshard, group, null, KILN_INVALID, "group is NULL", NULL, x23, KILN_SHAPE(2, 3));
    BAD(kiln_unshard, shard, null, KILN_INVALID, "shard is NULL", self, NULL, KILN_SHAPE(2, 3));
    BAD(kiln_unshard, shape, negative, KILN_BAD_SHAPE, "-2", self, x23, KILN_SHAPE(2, -2));
    BAD(kiln_unshard, shape, rank, KILN_BAD_SHAPE, "9", self, x23, rank9());
    BAD(kiln_unshard, shape, huge, KILN_OVERFLOW, "4294967296", self, x23, KILN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32));
    BAD(kiln_unshard, shape, other, KILN_BAD_SHAPE, "each of 1 ranks has [6] of 6 elements", self, x23, KILN_SHAPE(2, 3));
    BAD(kiln_parallel_gradients, group, null, KILN_INVALID, "group is NULL", NULL, gap, 1);
    BAD(kiln_parallel_gradients, grads, null, KILN_INVALID, "grads is NULL", self, NULL, 1);
    BAD(kiln_parallel_gradients, grads, element, KILN_INVALID, "NULL", self, gap, 2);
    BAD(kiln_parallel_gradients, n, negative, KILN_INVALID, "-1", self, gap, -1);
    BAD(kiln_comm_register, backend, null, KILN_INVALID, "NULL", NULL);
}

static void without_errors(void)
{
    char text[8];
    HARMLESS(kiln_keep, x, null, NULL);
    HARMLESS(kiln_retain, x, null, NULL);
    HARMLESS(kiln_release, x, null, NULL);
    HARMLESS(kiln_touch, x, null, NULL);
    HARMLESS(kiln_scope_end, scope, null, NULL);
    HARMLESS(kiln_get_stats, stats, null, NULL);
    HARMLESS(kiln_set_log_sink, sink, null, NULL, NULL);
    note("kiln_set_log_sink", "user", "null");
    HARMLESS(kiln_set_progress, callback, null, NULL, NULL);
    note("kiln_set_progress", "user", "null");
    kiln_log_buffer lines = {text, sizeof text, 0};
    HARMLESS(kiln_log_into, buffer, null, NULL, 0, "topic", "line");
    HARMLESS(kiln_log_into, topic, null, &lines, 0, NULL, "line");
    HARMLESS(kiln_log_into, line, null, &lines, 0, "topic", NULL);
    note("kiln_check", "status", "none"); /* it ends the process, as it says */
    BAD(kiln_last_call, report, null, KILN_INVALID, "report", NULL);
    kiln_scaling scaling = {.size = sizeof scaling};
    BAD(kiln_perf_scaling, body, null, KILN_INVALID, "body", NULL, 8, NULL, &scaling);
    BAD(kiln_perf_scaling, n, zero, KILN_INVALID, "n is 0", nothing_to_time, 0, NULL, &scaling);
    BAD(kiln_perf_scaling, n, negative, KILN_INVALID, "n is -3", nothing_to_time, -3, NULL, &scaling);
    BAD(kiln_perf_scaling, n, huge, KILN_INVALID, "2^62", nothing_to_time, INT64_MAX, NULL, &scaling);
    BAD(kiln_perf_scaling, result, null, KILN_INVALID, "result", nothing_to_time, 8, NULL, NULL);
    note("kiln_perf_scaling", "user", "null");
    BAD(kiln_trace_start, path, null, KILN_INVALID, "path", NULL);
    HARMLESS(kiln_dtype_of, x, null, NULL);
    HARMLESS(kiln_rank, x, null, NULL);
    HARMLESS(kiln_dim, x, null, NULL, 0);
    HARMLESS(kiln_dim, axis, high, x23, 2);
    HARMLESS(kiln_dim, axis, low, x23, -3);
    HARMLESS(kiln_shape_of, x, null, NULL);
    HARMLESS(kiln_numel, x, null, NULL);
    HARMLESS(kiln_is_evaluated, x, null, NULL);
    HARMLESS(kiln_is_weak, x, null, NULL);
    HARMLESS(kiln_dtype_name, dtype, none, NO_DTYPE);
    HARMLESS(kiln_dtype_size, dtype, none, NO_DTYPE);
    HARMLESS(kiln_status_name, status, none, (kiln_status)99);
    HARMLESS(kiln_miss_reason, reason, none, -1);
    BAD(kiln_set_option, name, null, KILN_INVALID, "name", NULL, "1");
    BAD(kiln_set_option, value, null, KILN_INVALID, "value", "mode", NULL);
    BAD(kiln_get_option, name, null, KILN_INVALID, "name", NULL, text, sizeof text);
    BAD(kiln_get_option, buffer, null, KILN_INVALID, "buffer", "mode", NULL, sizeof text);
    cr_expect(kiln_error_status() == KILN_OK, "%s", kiln_error_message());
}

/* ---- what has to be there ---- */

/* The kinds of nonsense that a parameter of this type and name can be given; "" ends. */
static const char *const *kinds_of(const char *type, const char *name)
{
    static const struct {
        const char *type, *kinds[6];
    } rows[] = {
        {"kiln_tensor *const *", {"null", ""}},
        {"kiln_tensor *", {"null", ""}},
        {"kiln_dtype", {"none", ""}},
        {"kiln_node", {"none", ""}},
        {"kiln_node vars[4]", {""}}, /* may be NULL; api/test_passes */
        {"const kiln_node vars[4]", {""}},
        {"kiln_shape", {"negative", "rank", "huge", ""}},
        {"kiln_axes", {"out", "twice", "count", ""}},
        {"kiln_scatter_mode", {"none", ""}},
        {"kiln_reduce", {"none", ""}},
        {"kiln_pad_mode", {"none", ""}},
        {"const kiln_conv_options *", {""}},        /* may be NULL; api/test_convolution */
        {"const kiln_interpolate_options *", {""}}, /* api/test_resize */
        {"const kiln_norm_options *", {""}},        /* api/test_channel_norms */
        {"const kiln_attention_options *", {""}},   /* the same; api/test_attention */
        {"const kiln_pool_options *", {""}},
        {"kiln_status", {"none", ""}},
        {"unsigned", {"unknown", ""}},
        {"bool", {""}},
        {"double", {""}},
        {"uint64_t", {""}},
        {"size_t", {""}},
    };
    static const char *const pointer[] = {"null", ""}, *const axis[] = {"high", "low", ""}, *const count[] = {"negative", ""},
                             *const value[] = {""}, *const reason[] = {"none", ""}, *const index[] = {"negative", "high", ""};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (strcmp(type, rows[k].type) == 0)
            return rows[k].kinds;
    if (strchr(type, '*'))
        return pointer;
    if (strcmp(type, "int") == 0 && strcmp(name, "reason") == 0)
        return reason;
    if (strcmp(type, "int") == 0 && (strcmp(name, "axis") == 0 || strcmp(name, "split_axis") == 0 || strcmp(name, "concat_axis") == 0 ||
                                     strcmp(name, "a") == 0 || strcmp(name, "b") == 0))
        return axis;
    if (strcmp(type, "int") == 0 && (strcmp(name, "i") == 0 || strcmp(name, "k") == 0 || strcmp(name, "root") == 0 ||
                                     strcmp(name, "to") == 0 || strcmp(name, "from") == 0))
        return index;
    if (strcmp(name, "n") == 0 || strcmp(name, "n_metadata") == 0 || strcmp(name, "n_in") == 0 || strcmp(name, "n_out") == 0 ||
        strcmp(name, "n_wrt") == 0 || strcmp(name, "n_carry") == 0 || strcmp(name, "n_xs") == 0 || strcmp(name, "n_ys") == 0 ||
        strcmp(name, "rows") == 0 || strcmp(name, "cols") == 0)
        return count;
    if (strcmp(type, "int64_t") == 0 || strcmp(name, "level") == 0 || strcmp(name, "color") == 0 || strcmp(name, "key") == 0)
        return value;
    cr_assert_fail("no kinds of bad input are known for a parameter `%s %s`: add them here", type, name);
    return value;
}

static int missing;

static void require(const char *function, const char *param, const char *kind)
{
    for (int i = 0; i < n_seen; i++)
        if (!strcmp(seen[i].function, function) && !strcmp(seen[i].param, param) && !strcmp(seen[i].kind, kind))
            return;
    missing++;
    fprintf(stderr, "no row for %s: %s %s\n", function, param, kind);
}

/* One parameter of a declaration: "const int64_t *sizes", "void (*deleter)(void *data, void *user)". */
static void require_param(const char *function, char *text)
{
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    while (isspace((unsigned char)*text))
        text++;
    if (!*text || !strcmp(text, "void") || !strcmp(text, "...") || strcmp(text, "const char *file") == 0)
        return;
    char *pointed = strstr(text, "(*"), *name;
    if (pointed) { /* to a function */
        name = pointed + 2;
        *strchr(name, ')') = '\0';
        require(function, name, "null");
        return;
    }
    name = text + strlen(text);
    while (name > text && (isalnum((unsigned char)name[-1]) || name[-1] == '_'))
        name--;
    char type[64];
    int n = (int)(name - text);
    while (n > 0 && text[n - 1] == ' ')
        n--;
    snprintf(type, sizeof type, "%.*s", n, text);
    if (strcmp(type, "kiln_log_sink") == 0)
        return;
    for (const char *const *kind = kinds_of(type, name); **kind; kind++)
        require(function, name, *kind);
}

/* The declaration whose parameters stand from `at` to the closing parenthesis. */
static char *require_declaration(const char *function, char *at)
{
    char *from = at;
    int nest = 0;
    for (; nest >= 0; at++) {
        cr_assert(*at, "%s: the declaration does not end", function);
        nest += (*at == '(') - (*at == ')');
        if ((*at == ',' && nest == 0) || nest < 0) {
            *at = '\0';
            require_param(function, from);
            from = at + 1;
        }
    }
    return at;
}

static char *read_header(void)
{
    FILE *f = fopen(KILN_SOURCE_DIR "/runtime/include/kiln.h", "r");
    char *text = calloc(1, 1 << 20);
    cr_assert(f && text && fread(text, 1, (1 << 20) - 1, f) > 10000);
    fclose(f);
    for (char *c = text; (c = strstr(c, "/*"));) { /* comments */
        char *end = strstr(c, "*/") + 2;
        memset(c, ' ', (size_t)(end - c));
    }
    for (char *c = text; c; c = strchr(c, '\n')) { /* directives, whose lines may go on */
        c += *c == '\n';
        if (*c == '#')
            for (; *c && (*c != '\n' || c[-1] == '\\'); c++)
                *c = c[1] == '\n' && *c == '\\' ? '\\' : *c == '\n' ? '\n' : ' ';
    }
    for (char *c = text; *c; c++)
        if (*c == '\\' || *c == '\n')
            *c = ' ';
    return text;
}

static int require_rows(void)
{
    char *text = read_header(), function[NAME];
    int functions = 0;
    for (char *at = text; (at = strstr(at, "KILN_"));) {
        if ((at > text && at[-1] != ' ') ||
            !(strncmp(at, "KILN_OP(", 8) == 0 || strncmp(at, "KILN_SYNC(", 10) == 0 || strncmp(at, "KILN_API ", 9) == 0)) {
            at++;
            continue;
        }
        char *name = strstr(at, "kiln_");
        if (at[5] == 'A') { /* the name is what stands before the parenthesis */
            name = strchr(at, '(');
            while (isalnum((unsigned char)name[-1]) || name[-1] == '_')
                name--;
        }
        int n = 0;
        while (n < NAME - 1 && (isalnum((unsigned char)name[n]) || name[n] == '_')) {
            function[n] = name[n];
            n++;
        }
        function[n] = '\0';
        at = name + n + 1;
        if (n > 3 && strcmp(function + n - 3, "_at") == 0)
            continue;
        functions++;
        at = require_declaration(function, at);
    }
    free(text);
    return functions;
}

Test(bad_input, every_function_refuses_every_kind, .timeout = HANGS_AFTER(120))
{
    make_tensors();
    elementwise();
    binary();
    creation();
    reductions();
    views();
    indexing();
    sync_points();
    gradients();
    optimizers();
    files();
    own_ops();
    own_passes();
    exchange();
    ranks();
    without_errors();
    int functions = require_rows();
    cr_assert(functions > 180, "only %d functions were found in kiln.h", functions);
    cr_assert(missing == 0, "%d rows are missing", missing);
}

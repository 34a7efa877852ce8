/*
 * Helpers of the tests of the public interface.
 *
 * API_TEST(suite, name) { ... } runs its body in each mode: jit (which must really have compiled: a
 * fall-back to the interpreter fails the test), eager, interp, and jit on the software CUDA device. EXPECT(x, dtype, shape,
 * tolerance, values...) compares a tensor with numbers; NaN equals NaN, the sign of 0 counts when
 * the tolerance is 0.
 */
#ifndef TESTS_API_H
#define TESTS_API_H

#include "kiln.h"
#include "tests/support/stats.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static inline void set_option(const char *name, const char *value)
{
    cr_assert(kiln_set_option(name, value) == KILN_OK, "%s", kiln_error_message());
}

/* The software CUDA driver (tests/cuda_driver); NULL: this build has none. */
static inline const char *cuda_driver(void) { return getenv("KILN_TEST_LIBCUDA"); }

static inline bool software_driver(void) { return cuda_driver() && strstr(cuda_driver(), "kiln_test_cuda"); }

static inline void use_driver(void)
{
    cr_assert(cuda_driver(), "no software CUDA driver is named (KILN_TEST_LIBCUDA)");
    set_option("libcuda", cuda_driver());
}

static inline void begin_mode(int mode)
{
    static const char *const modes[] = {"jit", "eager", "interp", "jit"};
    set_option("mode", modes[mode]);
    if (mode == 3) {
        if (software_driver()) /* which sees an access past the end of a buffer then; a device has the pool */
            set_option("test_memory", "exact");
        use_driver();
        set_option("device", "cuda");
    }
    kiln_clear_error();
}

/* Nothing was compiled since. */
static inline void no_compile_since(const kiln_stats *before)
{
    kiln_stats after;
    kiln_get_stats(&after);
    cr_assert(after.compiles == before->compiles, "%d more programs", (int)(after.compiles - before->compiles));
}

static inline void end_mode(void)
{
    kiln_stats stats;
    kiln_get_stats(&stats);
    cr_assert(stats.fallbacks == 0, "the interpreter ran %d graphs that did not compile", (int)stats.fallbacks);
}

#define API_TEST(suite, name)                                          \
    static void suite##_##name(void);                                  \
    ParameterizedTestParameters(suite, name)                           \
    {                                                                  \
        static int modes[] = {0, 1, 2, 3};                             \
        return cr_make_param_array(int, modes, cuda_driver() ? 4 : 3); \
    }                                                                  \
    ParameterizedTest(int *mode, suite, name)                          \
    {                                                                  \
        begin_mode(*mode);                                             \
        kiln_scope *scope = kiln_scope_begin();                        \
        suite##_##name();                                              \
        kiln_scope_end(scope);                                         \
        end_mode();                                                    \
    }                                                                  \
    static void suite##_##name(void)

static inline void same_shape(int line, kiln_tensor *x, kiln_dtype dtype, kiln_shape shape)
{
    cr_assert(x != NULL, "line %d: NULL: %s", line, kiln_error_message());
    cr_assert(kiln_dtype_of(x) == dtype, "line %d: dtype is %s, not %s", line, kiln_dtype_name(kiln_dtype_of(x)), kiln_dtype_name(dtype));
    cr_assert(kiln_rank(x) == shape.rank, "line %d: rank is %d, not %d", line, kiln_rank(x), shape.rank);
    for (int d = 0; d < shape.rank; d++)
        cr_assert(kiln_dim(x, d) == shape.dim[d], "line %d: dim %d is %d, not %d", line, d, (int)kiln_dim(x, d), (int)shape.dim[d]);
}

/* Element i of data as a double. */
static inline double element(kiln_dtype dtype, const void *data, size_t i)
{
    switch (dtype) {
    case KILN_BOOL: return ((const uint8_t *)data)[i];
    case KILN_I8: return ((const int8_t *)data)[i];
    case KILN_I16: return ((const int16_t *)data)[i];
    case KILN_I32: return ((const int32_t *)data)[i];
    case KILN_I64: return (double)((const int64_t *)data)[i];
    case KILN_U8: return ((const uint8_t *)data)[i];
    case KILN_U16: return ((const uint16_t *)data)[i];
    case KILN_U32: return ((const uint32_t *)data)[i];
    case KILN_U64: return (double)((const uint64_t *)data)[i];
    case KILN_F32: return (double)((const float *)data)[i];
    case KILN_F64: return ((const double *)data)[i];
    case KILN_F16:
    case KILN_BF16: break; /* read through f32 */
    }
    return 0;
}

static inline void expect(int line, kiln_tensor *x, kiln_dtype dtype, kiln_shape shape, double tolerance, const double *want, size_t n)
{
    same_shape(line, x, dtype, shape);
    cr_assert(kiln_numel(x) == (int64_t)n, "line %d: %d elements, %d are expected", line, (int)kiln_numel(x), (int)n);
    if (dtype == KILN_F16 || dtype == KILN_BF16) {
        x = kiln_cast(x, KILN_F32);
        dtype = KILN_F32;
    }
    size_t bytes = n * kiln_dtype_size(dtype);
    void *data = malloc(bytes + 1);
    kiln_status status = kiln_read(x, dtype, data, bytes);
    cr_assert(status == KILN_OK, "line %d: %s", line, kiln_error_message());
    for (size_t i = 0; i < n; i++) {
        double got = element(dtype, data, i), error = fabs(got - want[i]), scale = fabs(want[i]) > 1 ? fabs(want[i]) : 1;
        bool fine = isnan(want[i]) ? isnan(got) : got == want[i] || error <= tolerance * scale;
        if (tolerance == 0 && got == 0 && want[i] == 0)
            fine = signbit(got) == signbit(want[i]);
        cr_assert(fine, "line %d: element %d is %.17g, not %.17g", line, (int)i, got, want[i]);
    }
    free(data);
}

#define EXPECT(x, dtype, shape, tolerance, ...)                                         \
    expect(__LINE__, (x), (dtype), (shape), (tolerance), (const double[]){__VA_ARGS__}, \
           sizeof((const double[]){__VA_ARGS__}) / sizeof(double))
/* Of no elements. */
#define EXPECT_EMPTY(x, dtype, shape) expect(__LINE__, (x), (dtype), (shape), 0, (const double[]){0}, 0)

/* A call has failed so; the message contains the text, and is cleared. */
static inline void fails_with(kiln_status status, kiln_status wanted, const char *text)
{
    cr_assert_eq(status, wanted, "%d: %s", (int)status, kiln_error_message());
    cr_assert(strstr(kiln_error_message(), text), "\"%s\", not \"%s\"", kiln_error_message(), text);
    kiln_clear_error();
}

/* A call that must work. */
#define OK(...) cr_assert_eq((__VA_ARGS__), KILN_OK, "line %d: %s", __LINE__, kiln_error_message())

/* x is NULL; the error that is kept has this status and contains each of the texts (NULL ends). */
static inline void expect_error(int line, kiln_tensor *x, kiln_status status, const char *const *texts)
{
    cr_assert(x == NULL, "line %d: no error", line);
    cr_assert(kiln_error_status() == status, "line %d: status is \"%s\": %s", line, kiln_status_name(kiln_error_status()),
              kiln_error_message());
    for (; *texts; texts++)
        cr_assert(strstr(kiln_error_message(), *texts), "line %d: \"%s\" is not in: %s", line, *texts, kiln_error_message());
    kiln_clear_error();
}

#define EXPECT_ERROR(x, status, ...) expect_error(__LINE__, (x), (status), (const char *const[]){__VA_ARGS__, NULL})

/* Small tensors. */
#define F32(shape, ...) kiln_from(KILN_F32, (shape), (const float[]){__VA_ARGS__})
#define F64(shape, ...) kiln_from(KILN_F64, (shape), (const double[]){__VA_ARGS__})
#define I32(shape, ...) kiln_from(KILN_I32, (shape), (const int32_t[]){__VA_ARGS__})
#define I64(shape, ...) kiln_from(KILN_I64, (shape), (const int64_t[]){__VA_ARGS__})
#define U8(shape, ...) kiln_from(KILN_U8, (shape), (const uint8_t[]){__VA_ARGS__})
#define BOOL(shape, ...) kiln_from(KILN_BOOL, (shape), (const uint8_t[]){__VA_ARGS__})

#endif

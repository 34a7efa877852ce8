/*
 * What tests of linear algebra share: random matrices, and their own arithmetic to compare with. LINALG_TEST is an API_TEST that is left
 * out, in words, where there is no LAPACK library.
 */
#ifndef TESTS_API_LINALG_H
#define TESTS_API_LINALG_H

#include "api.h"

#include <dlfcn.h>
#include <stdio.h>

static inline bool have_lapack(void)
{
    bool have = dlopen("liblapack.so.3", RTLD_NOW) || dlopen("libopenblas.so.0", RTLD_NOW);
    if (!have)
        cr_skip("left out: there is no LAPACK library (Debian: liblapack3)");
    return have;
}

#define LINALG_TEST(suite, name)          \
    static void with_lapack_##name(void); \
    API_TEST(suite, name)                 \
    {                                     \
        if (have_lapack())                \
            with_lapack_##name();         \
    }                                     \
    static void with_lapack_##name(void)

static inline uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Between -1 and 1, exact in f32. */
static inline double random_value(uint64_t *state) { return (double)(random_next(state) % 4001) / 2048 - 2000.0 / 2048; }

static inline int64_t count_of(kiln_shape shape)
{
    int64_t n = 1;
    for (int d = 0; d < shape.rank; d++)
        n *= shape.dim[d];
    return n;
}

static inline kiln_tensor *random_tensor(kiln_dtype dtype, kiln_shape shape, uint64_t seed)
{
    int64_t n = count_of(shape);
    double *data = malloc(sizeof *data * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++)
        data[i] = random_value(&seed);
    kiln_tensor *x = kiln_from(KILN_F64, shape, data);
    free(data);
    return kiln_cast(x, dtype);
}

/* The elements as doubles, to be freed. */
static inline double *values_of(int line, kiln_tensor *x)
{
    cr_assert(x != NULL, "line %d: NULL: %s", line, kiln_error_message());
    size_t n = (size_t)kiln_numel(x);
    double *data = malloc(sizeof *data * (n + 1));
    kiln_tensor *wide = kiln_cast(x, KILN_F64);
    cr_assert(kiln_read(wide, KILN_F64, data, sizeof *data * n) == KILN_OK, "line %d: %s", line, kiln_error_message());
    return data;
}
#define VALUES(x) values_of(__LINE__, (x))

/* c [m, n] = a [m, k] b [k, n] */
static inline void plain_product(const double *a, const double *b, double *c, int m, int k, int n)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
}

static inline double norm_of(const double *a, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * a[i];
    return sqrt(sum);
}

static inline double eps_of(kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_F64: return 0x1p-53;
    case KILN_F16: return 0x1p-11;
    case KILN_BF16: return 0x1p-8;
    default: return 0x1p-24;
    }
}

/* The determinant by Gauss's elimination with row pivots. */
static inline double plain_det(const double *a, int n)
{
    double *u = malloc(sizeof *u * (size_t)(n * n + 1)), det = 1;
    memcpy(u, a, sizeof *u * (size_t)(n * n));
    for (int c = 0; c < n; c++) {
        int p = c;
        for (int r = c; r < n; r++)
            p = fabs(u[r * n + c]) > fabs(u[p * n + c]) ? r : p;
        det *= p == c ? u[p * n + c] : -u[p * n + c];
        for (int j = 0; j < n; j++) {
            double kept = u[c * n + j];
            u[c * n + j] = u[p * n + j];
            u[p * n + j] = kept;
        }
        for (int r = c + 1; r < n && u[c * n + c] != 0; r++) {
            double f = u[r * n + c] / u[c * n + c];
            for (int j = c; j < n; j++)
                u[r * n + j] -= f * u[c * n + j];
        }
    }
    free(u);
    return det;
}

/* Symmetric, with eigenvalues of at least n: a a^T + n I. */
static inline kiln_tensor *positive(kiln_tensor *a)
{
    int64_t n = kiln_dim(a, -1);
    kiln_tensor *square = kiln_matmul(a, kiln_swap_axes(a, -1, -2));
    return kiln_add(square, kiln_mul(kiln_eye(kiln_dtype_of(a), n, n, 0), (double)n));
}

/* x, or its values, fail; the message has these words, in one piece. */
static inline void fails(int line, kiln_tensor *x, const char *text)
{
    kiln_status status = x ? kiln_eval(x) : kiln_error_status();
    cr_assert(status == KILN_INVALID && strstr(kiln_error_message(), text), "line %d: %d: \"%s\", not \"%s\"", line, (int)status,
              kiln_error_message(), text);
    kiln_clear_error();
}
#define FAILS(x, text) fails(__LINE__, (x), (text))

#endif

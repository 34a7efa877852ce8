/*
 * Linear algebra: residuals within LAPACK's bounds (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002: theorems 9.4, 10.3, 19.4, and
 * LAPACK Users' Guide, section 4), for all kinds of shapes; what is empty, not contiguous, half or whole; what goes wrong, in which words.
 */
#include "linalg.h"

#include <fenv.h>
#include <pthread.h>

/* A bound is this many n eps. */
enum { FACTOR = 30 };

static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64};
static const int sizes[] = {1, 2, 7, 37};
static const kiln_shape leads[] = {{0, {0}}, {1, {3}}, {2, {2, 2}}};
enum { SIZES = sizeof sizes / sizeof *sizes, LEADS = sizeof leads / sizeof *leads };

static kiln_shape with(kiln_shape lead, int64_t rows, int64_t columns)
{
    kiln_shape shape = lead;
    shape.dim[shape.rank++] = rows;
    if (columns >= 0)
        shape.dim[shape.rank++] = columns;
    return shape;
}

/* |a b - c| <= FACTOR n eps (|a| |b| + |c|), for each of a batch. */
static void near_product(int line, kiln_dtype dtype, const double *a, const double *b, const double *c, int64_t count, int m, int k, int n)
{
    double *product = malloc(sizeof *product * (size_t)(m * n + 1));
    for (int64_t i = 0; i < count; i++, a += m * k, b += k * n, c += m * n) {
        plain_product(a, b, product, m, k, n);
        double scale = norm_of(a, m * k) * norm_of(b, k * n) + norm_of(c, m * n);
        for (int j = 0; j < m * n; j++)
            product[j] -= c[j];
        double error = norm_of(product, m * n), bound = FACTOR * (m + n + k) * eps_of(dtype) * scale;
        cr_assert(error <= bound, "line %d: matrix %d, %d x %d x %d: off by %g, more than %g", line, (int)i, m, k, n, error, bound);
    }
    free(product);
}
#define NEAR_PRODUCT(...) near_product(__LINE__, __VA_ARGS__)

/* x x^T (rows) or x^T x (columns) is 1 */
static void orthonormal(int line, kiln_dtype dtype, const double *x, int64_t count, int m, int n, bool rows)
{
    int k = rows ? m : n;
    for (int64_t c = 0; c < count; c++, x += m * n)
        for (int i = 0; i < k; i++)
            for (int j = 0; j < k; j++) {
                double sum = 0;
                for (int l = 0; l < (rows ? n : m); l++)
                    sum += rows ? x[i * n + l] * x[j * n + l] : x[l * n + i] * x[l * n + j];
                cr_assert(fabs(sum - (i == j)) <= FACTOR * (m + n) * eps_of(dtype), "line %d: matrix %d: %d and %d give %g", line, (int)c,
                          i, j, sum);
            }
}

LINALG_TEST(linalg, solves)
{
    static const int columns[] = {-1, 1, 2, 5}; /* -1: a vector */
    for (int s = 0, t = 0; s < SIZES; s++)
        for (int l = 0; l < LEADS; l++, t = !t)
            for (int c = 0; c < 4; c++) {
                if (columns[c] < 0 && leads[l].rank)
                    continue;
                int n = sizes[s], k = columns[c] < 0 ? 1 : columns[c];
                int64_t count = count_of(leads[l]);
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *a = random_tensor(dtypes[t], with(leads[l], n, n), (uint64_t)(97 * s + l)),
                            *b = random_tensor(dtypes[t], with(leads[l], n, columns[c]), (uint64_t)(31 * s + c)), *x = kiln_solve(a, b);
                same_shape(__LINE__, x, dtypes[t], with(leads[l], n, columns[c]));
                double *va = VALUES(a), *vb = VALUES(b), *vx = VALUES(x);
                NEAR_PRODUCT(dtypes[t], va, vx, vb, count, n, n, k);
                free(va), free(vb), free(vx);
                kiln_scope_end(scope);
            }
}

/* One matrix for many right sides, many for one, and axes that broadcast. */
LINALG_TEST(linalg, solve_broadcasts)
{
    static const struct {
        kiln_shape a, b, x;
    } cases[] = {{{2, {5, 5}}, {3, {4, 5, 2}}, {3, {4, 5, 2}}},
                 {{2, {5, 5}}, {4, {2, 3, 5, 1}}, {4, {2, 3, 5, 1}}},
                 {{3, {4, 5, 5}}, {2, {5, 2}}, {3, {4, 5, 2}}},
                 {{3, {4, 5, 5}}, {1, {5}}, {2, {4, 5}}},
                 {{4, {2, 1, 5, 5}}, {4, {1, 3, 5, 2}}, {4, {2, 3, 5, 2}}}};
    for (int c = 0; c < 5; c++)
        for (int way = 0; way < 2; way++) {
            kiln_tensor *a = random_tensor(KILN_F64, cases[c].a, (uint64_t)c), *b = random_tensor(KILN_F64, cases[c].b, (uint64_t)(c + 50)),
                        *x;
            if (way)
                a = kiln_add(a, kiln_mul(kiln_eye(KILN_F64, 5, 5, 0), 3));
            x = way ? kiln_solve_triangular(a, b, KILN_UPPER) : kiln_solve(a, b);
            same_shape(__LINE__, x, KILN_F64, cases[c].x);
            kiln_tensor *used = way ? kiln_triu(a, 0) : a, *back = kiln_matmul(used, cases[c].b.rank == 1 ? kiln_unsqueeze(x, -1) : x);
            kiln_tensor *off = kiln_max(kiln_abs(kiln_sub(back, cases[c].b.rank == 1 ? kiln_unsqueeze(b, -1) : b)));
            double *error = VALUES(off);
            cr_assert(*error < 1e-12, "case %d: off by %g", c, *error);
            free(error);
        }
}

LINALG_TEST(linalg, solves_triangular)
{
    for (int t = 0; t < 2; t++)
        for (unsigned flags = 0; flags < 8; flags++)
            for (int s = 0; s < 3; s++)
                for (int k = 1; k < 5; k += 3) {
                    int n = sizes[s];
                    kiln_scope *scope = kiln_scope_begin();
                    kiln_tensor *a = random_tensor(dtypes[t], KILN_SHAPE(2, n, n), flags * 8 + (unsigned)s);
                    a = kiln_add(a, kiln_mul(kiln_eye(dtypes[t], n, n, 0), 4));
                    kiln_tensor *b = random_tensor(dtypes[t], KILN_SHAPE(2, n, k), 5), *x = kiln_solve_triangular(a, b, flags);
                    double *va = VALUES(a), *vb = VALUES(b), *vx = VALUES(x), *used = calloc((size_t)(2 * n * n), sizeof *used);
                    for (int c = 0; c < 2; c++)
                        for (int i = 0; i < n; i++)
                            for (int j = 0; j < n; j++)
                                if (flags & KILN_UPPER ? i <= j : i >= j) {
                                    int at = flags & KILN_TRANSPOSED ? j * n + i : i * n + j;
                                    used[c * n * n + at] = i == j && flags & KILN_UNIT_DIAGONAL ? 1 : va[c * n * n + i * n + j];
                                }
                    NEAR_PRODUCT(dtypes[t], used, vx, vb, 2, n, n, k);
                    free(va), free(vb), free(vx), free(used);
                    kiln_scope_end(scope);
                }
}

LINALG_TEST(linalg, inverts)
{
    for (int s = 0, t = 0; s < SIZES; s++)
        for (int l = 0; l < LEADS; l++, t = !t) {
            int n = sizes[s];
            int64_t count = count_of(leads[l]);
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = random_tensor(dtypes[t], with(leads[l], n, n), (uint64_t)(7 * s + l)), *eye = kiln_eye(dtypes[t], n, n, 0);
            a = kiln_add(a, kiln_mul(eye, (double)n)); /* so that it is well conditioned */
            double *va = VALUES(a), *vx = VALUES(kiln_inv(a)), *ve = VALUES(kiln_add(kiln_zeros_like(a), eye));
            NEAR_PRODUCT(dtypes[t], va, vx, ve, count, n, n, n);
            free(va), free(vx), free(ve);
            kiln_scope_end(scope);
        }
}

LINALG_TEST(linalg, determinants)
{
    for (int s = 0, t = 0; s < SIZES; s++)
        for (int l = 0; l < LEADS; l++, t = !t) {
            int n = sizes[s];
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = random_tensor(dtypes[t], with(leads[l], n, n), (uint64_t)(11 * s + l)), *sign, *log_abs, *d = kiln_det(a);
            OK(kiln_slogdet(a, &sign, &log_abs));
            same_shape(__LINE__, d, dtypes[t], leads[l]);
            same_shape(__LINE__, sign, dtypes[t], leads[l]);
            double *va = VALUES(a), *vd = VALUES(d), *vs = VALUES(sign), *vl = VALUES(log_abs);
            for (int64_t c = 0; c < count_of(leads[l]); c++) {
                double want = plain_det(va + c * n * n, n), eps = eps_of(dtypes[t]) * n * n * 2000;
                cr_assert(fabs(vd[c] - want) <= eps * fabs(want), "%d x %d: %.17g, not %.17g", n, n, vd[c], want);
                cr_assert(vs[c] == (want > 0 ? 1 : -1) && fabs(vl[c] - log(fabs(want))) <= eps * 2, "%d x %d: %g, exp %g for %g", n, n,
                          vs[c], vl[c], want);
            }
            free(va), free(vd), free(vs), free(vl);
            kiln_scope_end(scope);
        }
    kiln_tensor *singular = F64(KILN_SHAPE(2, 2), 1, 2, 2, 4), *sign, *log_abs;
    EXPECT(kiln_det(singular), KILN_F64, KILN_SHAPE(), 0, 0);
    OK(kiln_slogdet(singular, &sign, &log_abs));
    EXPECT(sign, KILN_F64, KILN_SHAPE(), 0, 0);
    EXPECT(log_abs, KILN_F64, KILN_SHAPE(), 0, -INFINITY);
    EXPECT(kiln_det(F64(KILN_SHAPE(2, 2), 0, 1, 1, 0)), KILN_F64, KILN_SHAPE(), 0, -1);
}

LINALG_TEST(linalg, cholesky)
{
    for (int s = 0, t = 0; s < SIZES; s++)
        for (int l = 0; l < LEADS; l++, t = !t) {
            int n = sizes[s];
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = positive(random_tensor(dtypes[t], with(leads[l], n, n), (uint64_t)(13 * s + l))), *factor;
            factor = kiln_cholesky(kiln_add(a, kiln_triu(kiln_full_like(a, 9), 1))); /* the upper triangle is not read */
            double *va = VALUES(a), *vl = VALUES(factor), *vt = VALUES(kiln_swap_axes(factor, -1, -2));
            for (int64_t c = 0; c < count_of(leads[l]); c++)
                for (int i = 0; i < n; i++)
                    for (int j = i + 1; j < n; j++)
                        cr_assert(vl[c * n * n + i * n + j] == 0, "above the diagonal");
            NEAR_PRODUCT(dtypes[t], vl, vt, va, count_of(leads[l]), n, n, n);
            free(va), free(vl), free(vt);
            kiln_scope_end(scope);
        }
}

static const int rectangles[][2] = {{1, 1}, {2, 2}, {5, 3}, {1, 4}, {4, 1}, {8, 19}, {33, 33}};
enum { RECTANGLES = sizeof rectangles / sizeof *rectangles };

LINALG_TEST(linalg, qr)
{
    for (int s = 0, t = 0; s < RECTANGLES; s++)
        for (int l = 0; l < LEADS; l++, t = !t) {
            int m = rectangles[s][0], n = rectangles[s][1], k = m < n ? m : n;
            int64_t count = count_of(leads[l]);
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = random_tensor(dtypes[t], with(leads[l], m, n), (uint64_t)(17 * s + l)), *q, *r;
            OK(kiln_qr(a, &q, &r));
            same_shape(__LINE__, q, dtypes[t], with(leads[l], m, k));
            same_shape(__LINE__, r, dtypes[t], with(leads[l], k, n));
            double *va = VALUES(a), *vq = VALUES(q), *vr = VALUES(r);
            NEAR_PRODUCT(dtypes[t], vq, vr, va, count, m, k, n);
            orthonormal(__LINE__, dtypes[t], vq, count, m, k, false);
            for (int64_t c = 0; c < count; c++)
                for (int i = 0; i < k; i++)
                    for (int j = 0; j < i; j++)
                        cr_assert(vr[c * k * n + i * n + j] == 0, "below the diagonal");
            free(va), free(vq), free(vr);
            kiln_scope_end(scope);
        }
}

LINALG_TEST(linalg, svd)
{
    for (int s = 0, t = 0; s < RECTANGLES; s++)
        for (int l = 0; l < LEADS; l++, t = !t) {
            int m = rectangles[s][0], n = rectangles[s][1], k = m < n ? m : n;
            int64_t count = count_of(leads[l]);
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = random_tensor(dtypes[t], with(leads[l], m, n), (uint64_t)(19 * s + l)), *u, *sigma, *vt, *alone;
            OK(kiln_svd(a, &u, &sigma, &vt));
            OK(kiln_svd(a, NULL, &alone, NULL));
            same_shape(__LINE__, u, dtypes[t], with(leads[l], m, k));
            same_shape(__LINE__, vt, dtypes[t], with(leads[l], k, n));
            same_shape(__LINE__, alone, dtypes[t], with(leads[l], k, -1));
            double *va = VALUES(a), *vu = VALUES(u), *vs = VALUES(sigma), *vv = VALUES(vt), *v1 = VALUES(alone);
            orthonormal(__LINE__, dtypes[t], vu, count, m, k, false);
            orthonormal(__LINE__, dtypes[t], vv, count, k, n, true);
            for (int64_t c = 0; c < count; c++)
                for (int i = 0; i < k; i++) {
                    double one = vs[c * k + i], next = i + 1 < k ? vs[c * k + i + 1] : 0;
                    cr_assert(one >= next && next >= 0, "in order");
                    cr_assert(fabs(one - v1[c * k + i]) <= FACTOR * (m + n) * eps_of(dtypes[t]) * vs[c * k], "values alone differ");
                    for (int j = 0; j < m; j++)
                        vu[c * m * k + j * k + i] *= one;
                }
            NEAR_PRODUCT(dtypes[t], vu, vv, va, count, m, k, n);
            free(va), free(vu), free(vs), free(vv), free(v1);
            kiln_scope_end(scope);
        }
}

LINALG_TEST(linalg, eigh)
{
    for (int s = 0, t = 0; s < SIZES; s++)
        for (int l = 0; l < LEADS; l++, t = !t) {
            int n = sizes[s];
            int64_t count = count_of(leads[l]);
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = random_tensor(dtypes[t], with(leads[l], n, n), (uint64_t)(23 * s + l)), *w, *v, *alone, *lower;
            lower = kiln_tril(a, -1);
            OK(kiln_eigh(a, &w, &v)); /* the upper triangle is another: it is not read */
            OK(kiln_eigh(a, &alone, NULL));
            a = kiln_add(kiln_tril(a, 0), kiln_swap_axes(lower, -1, -2));
            double *va = VALUES(a), *vw = VALUES(w), *vv = VALUES(v), *v1 = VALUES(alone), *scaled = VALUES(v);
            orthonormal(__LINE__, dtypes[t], vv, count, n, n, false);
            for (int64_t c = 0; c < count; c++)
                for (int i = 0; i < n; i++) {
                    cr_assert(i == 0 || vw[c * n + i] >= vw[c * n + i - 1], "in order");
                    cr_assert(fabs(vw[c * n + i] - v1[c * n + i]) <= FACTOR * n * n * eps_of(dtypes[t]), "values alone differ");
                    for (int j = 0; j < n; j++)
                        scaled[c * n * n + j * n + i] *= vw[c * n + i];
                }
            NEAR_PRODUCT(dtypes[t], va, vv, scaled, count, n, n, n);
            free(va), free(vw), free(vv), free(v1), free(scaled);
            kiln_scope_end(scope);
        }
}

/* Transposed, reversed and repeated operands, and other dtypes. */
LINALG_TEST(linalg, any_layout_and_dtype)
{
    kiln_tensor *a = random_tensor(KILN_F64, KILN_SHAPE(4, 6, 6), 3), *b = random_tensor(KILN_F64, KILN_SHAPE(4, 2, 6), 4);
    kiln_tensor *turned = kiln_swap_axes(a, -1, -2), *every = kiln_slice_axis(turned, 0, 3, -5, -1), *x;
    x = kiln_solve(every, kiln_swap_axes(b, -1, -2));
    kiln_tensor *off = kiln_max(kiln_abs(kiln_sub(kiln_matmul(every, x), kiln_swap_axes(b, -1, -2))));
    double *error = VALUES(off);
    cr_assert(*error < 1e-12, "off by %g", *error);
    free(error);
    static const kiln_dtype others[] = {KILN_F16, KILN_BF16, KILN_I32, KILN_BOOL};
    static const kiln_dtype give[] = {KILN_F16, KILN_BF16, KILN_F32, KILN_F32};
    for (int k = 0; k < 4; k++) {
        kiln_tensor *eye = kiln_eye(others[k], 3, 3, 0);
        EXPECT(kiln_inv(eye), give[k], KILN_SHAPE(3, 3), 1e-9, 1, 0, 0, 0, 1, 0, 0, 0, 1);
        EXPECT(kiln_solve(eye, eye), give[k], KILN_SHAPE(3, 3), 1e-9, 1, 0, 0, 0, 1, 0, 0, 0, 1);
        EXPECT(kiln_det(eye), give[k], KILN_SHAPE(), 0, 1);
    }
    EXPECT(kiln_solve(F32(KILN_SHAPE(1, 1), 2), F64(KILN_SHAPE(1), 3)), KILN_F64, KILN_SHAPE(1), 0, 1.5);
}

LINALG_TEST(linalg, empty)
{
    kiln_tensor *none = kiln_zeros(KILN_F64, KILN_SHAPE(0, 0)), *batch = kiln_zeros(KILN_F32, KILN_SHAPE(0, 3, 3)), *q, *r, *u, *s, *vt;
    EXPECT_EMPTY(kiln_solve(none, kiln_zeros(KILN_F64, KILN_SHAPE(0))), KILN_F64, KILN_SHAPE(0));
    EXPECT_EMPTY(kiln_solve(none, kiln_zeros(KILN_F64, KILN_SHAPE(0, 4))), KILN_F64, KILN_SHAPE(0, 4));
    EXPECT_EMPTY(kiln_solve(kiln_eye(KILN_F64, 2, 2, 0), kiln_zeros(KILN_F64, KILN_SHAPE(2, 0))), KILN_F64, KILN_SHAPE(2, 0));
    EXPECT_EMPTY(kiln_inv(none), KILN_F64, KILN_SHAPE(0, 0));
    EXPECT_EMPTY(kiln_inv(batch), KILN_F32, KILN_SHAPE(0, 3, 3));
    EXPECT_EMPTY(kiln_cholesky(none), KILN_F64, KILN_SHAPE(0, 0));
    EXPECT_EMPTY(kiln_det(batch), KILN_F32, KILN_SHAPE(0));
    EXPECT(kiln_det(none), KILN_F64, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_det(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0, 0))), KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    OK(kiln_slogdet(none, &q, &r));
    EXPECT(q, KILN_F64, KILN_SHAPE(), 0, 1);
    EXPECT(r, KILN_F64, KILN_SHAPE(), 0, 0);
    OK(kiln_qr(kiln_zeros(KILN_F32, KILN_SHAPE(3, 0)), &q, &r));
    EXPECT_EMPTY(q, KILN_F32, KILN_SHAPE(3, 0));
    EXPECT_EMPTY(r, KILN_F32, KILN_SHAPE(0, 0));
    OK(kiln_qr(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), &q, &r));
    EXPECT_EMPTY(r, KILN_F32, KILN_SHAPE(0, 3));
    OK(kiln_svd(kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), &u, &s, &vt));
    EXPECT_EMPTY(vt, KILN_F32, KILN_SHAPE(0, 3));
    EXPECT_EMPTY(s, KILN_F32, KILN_SHAPE(0));
    OK(kiln_eigh(none, &q, &r));
    EXPECT_EMPTY(q, KILN_F64, KILN_SHAPE(0));
    EXPECT_EMPTY(r, KILN_F64, KILN_SHAPE(0, 0));
    kiln_tensor *p = kiln_param(kiln_zeros(KILN_F64, KILN_SHAPE(0, 0))), *grad, *loss = kiln_sum(kiln_inv(p));
    OK(kiln_grad(kiln_add(loss, kiln_det(p)), &p, 1, &grad));
    EXPECT_EMPTY(grad, KILN_F64, KILN_SHAPE(0, 0));
}

LINALG_TEST(linalg, what_it_must_not_be)
{
    kiln_tensor *singular = F64(KILN_SHAPE(3, 3), 1, 2, 3, 2, 4, 6, 1, 1, 1), *ones = kiln_ones(KILN_F64, KILN_SHAPE(3)), *q, *r;
    kiln_tensor *many = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(3, 4, 2, 2)), kiln_eye(KILN_F32, 2, 2, 0));
    kiln_tensor *at = kiln_eq(kiln_reshape(kiln_arange(KILN_F32, 0, 12, 1), KILN_SHAPE(3, 4, 1, 1)), 6);
    FAILS(kiln_solve(singular, ones), "the matrix is singular: pivot 2 of 3 is 0");
    FAILS(kiln_inv(singular), "kiln.inv (test_linalg.c:");
    FAILS(kiln_inv(kiln_where(at, 0, many)), "matrix [1,2] is singular: pivot 1 of 2 is 0");
    FAILS(kiln_solve(kiln_where(at, 0, many), many), "matrix [1,2] is singular: pivot 1 of 2 is 0");
    FAILS(kiln_solve_triangular(kiln_where(at, 0, many), many, 0), "matrix [1,2] is singular: element 1 of the 2 on its diagonal is 0");
    FAILS(kiln_cholesky(kiln_where(at, F32(KILN_SHAPE(2, 2), 1, 2, 2, 1), many)),
          "matrix [1,2] is not positive definite: its leading 2 x 2 block of 2 x 2 is not");
    FAILS(kiln_cholesky(F32(KILN_SHAPE(2, 2), NAN, 0, 0, 1)), "not positive definite");
    (void)kiln_eigh(F64(KILN_SHAPE(1, 2, 2), 1, 0, NAN, 1), &q, &r);
    FAILS(q, "matrix [0] has elements that are NaN or infinite");
    OK(kiln_eigh(F64(KILN_SHAPE(2, 2), 1, NAN, 0, 2), &q, NULL)); /* the upper triangle */
    EXPECT(q, KILN_F64, KILN_SHAPE(2), 0, 1, 2);
    (void)kiln_svd(F32(KILN_SHAPE(1, 2), 1, INFINITY), NULL, &q, NULL);
    FAILS(q, "the matrix has elements that are NaN or infinite");
    /* the next evaluation begins anew */
    EXPECT(kiln_det(kiln_eye(KILN_F32, 3, 3, 0)), KILN_F32, KILN_SHAPE(), 0, 1);
}

/* What only multiplies and divides gives NaN of NaN, and comes to an end. */
LINALG_TEST(linalg, nan_goes_through)
{
    for (int n = 1; n < 40; n += 13)
        for (int k = 0; k < 3; k++) {
            kiln_tensor *a = kiln_full(KILN_F64, KILN_SHAPE(n, n),
                                       k == 0   ? NAN
                                       : k == 1 ? INFINITY
                                                : 1),
                        *q, *r, *one = kiln_ones(KILN_F64, KILN_SHAPE(n));
            a = k == 2 ? kiln_where(kiln_eye(KILN_BOOL, n, n, 0), NAN, a) : a;
            double *d = VALUES(kiln_det(a)), *x;
            cr_assert(k == 1 ? !isfinite(*d) : isnan(*d), "det is %g", *d);
            free(d);
            OK(kiln_qr(a, &q, &r));
            OK(kiln_eval(r));
            if (k == 1)
                continue;
            x = VALUES(kiln_solve(a, one));
            cr_assert(isnan(x[0]), "%g", x[0]);
            free(x);
        }
}

LINALG_TEST(linalg, refuses_shapes)
{
    kiln_tensor *vector = kiln_ones(KILN_F32, KILN_SHAPE(3)), *wide = kiln_ones(KILN_F32, KILN_SHAPE(2, 3)),
                *eye = kiln_eye(KILN_F32, 3, 3, 0), *q = eye, *r = eye;
    EXPECT_ERROR(kiln_inv(vector), KILN_BAD_SHAPE, "kiln_inv", "test_linalg.c", "a matrix has two axes: a is f32[3]");
    EXPECT_ERROR(kiln_inv(wide), KILN_BAD_SHAPE, "the last two axes differ: a is f32[2,3]");
    EXPECT_ERROR(kiln_solve(eye, wide), KILN_BAD_SHAPE, "a is f32[3,3], b is f32[2,3]");
    EXPECT_ERROR(kiln_solve(kiln_ones(KILN_F32, KILN_SHAPE(2, 3, 3)), kiln_ones(KILN_F32, KILN_SHAPE(4, 3, 1))), KILN_BAD_SHAPE,
                 "leading axes do not broadcast");
    EXPECT_ERROR(kiln_solve_triangular(eye, vector, 8), KILN_INVALID, "flags are 0x8");
    cr_assert(kiln_eigh(wide, &q, &r) == KILN_BAD_SHAPE && !q && !r, "both are NULL");
    kiln_clear_error();
}

/* Several threads at once, of several sizes; each gets what it gets alone. */
static void *in_a_thread(void *with)
{
    const int first = *(const int *)with;
    kiln_scope *scope = kiln_scope_begin();
    for (int call = 0; call < 12; call++) {
        int n = 3 + (first + call) % 4;
        kiln_tensor *a = positive(random_tensor(KILN_F64, KILN_SHAPE(40, n, n), (uint64_t)first)), *w, *v, *back;
        OK(kiln_eigh(a, &w, &v));
        back = kiln_matmul(kiln_mul(v, kiln_unsqueeze(w, -2)), kiln_swap_axes(v, -1, -2));
        kiln_tensor *off = kiln_add(kiln_max(kiln_abs(kiln_sub(back, a))),
                                    kiln_max(kiln_abs(kiln_sub(kiln_matmul(a, kiln_inv(a)), kiln_eye(KILN_F64, n, n, 0)))));
        double *error = VALUES(off);
        cr_assert(*error < 1e-11, "off by %g", *error);
        free(error);
    }
    kiln_scope_end(scope);
    return NULL;
}

Test(linalg_threads, beside_each_other)
{
    if (!have_lapack())
        return;
    pthread_t thread[4];
    int first[4] = {0, 1, 2, 3};
    for (int k = 0; k < 4; k++)
        cr_assert(pthread_create(&thread[k], NULL, in_a_thread, &first[k]) == 0);
    for (int k = 0; k < 4; k++)
        pthread_join(thread[k], NULL);
}

/* The caller's rounding mode and what subnormals count as change no bit, and stay. */
Test(linalg_modes, bits_are_those_of_the_default_mode)
{
    if (!have_lapack())
        return;
    kiln_tensor *a = positive(random_tensor(KILN_F64, KILN_SHAPE(3, 9, 9), 1)), *b = random_tensor(KILN_F64, KILN_SHAPE(3, 9, 4), 2), *w,
                *v;
    double *bits[2];
    for (int mode = 0; mode < 2; mode++) {
        OK(kiln_eigh(a, &w, &v));
        kiln_tensor *x = kiln_concat((kiln_tensor *[]){kiln_solve(a, b), kiln_cholesky(a), kiln_abs(v)}, 3, -1);
        cr_assert(fesetround(mode ? FE_UPWARD : FE_TONEAREST) == 0);
        bits[mode] = VALUES(x);
        cr_assert(fegetround() == (mode ? FE_UPWARD : FE_TONEAREST));
    }
    fesetround(FE_TONEAREST);
    cr_assert(memcmp(bits[0], bits[1], sizeof(double) * 3 * 9 * 22) == 0);
    free(bits[0]), free(bits[1]);
}

/* A library that is not there. */
Test(linalg_missing, says_what_to_install)
{
    set_option("liblapack", "libno_such_lapack.so.3");
    kiln_tensor *x = kiln_inv(kiln_eye(KILN_F32, 2, 2, 0));
    fails_with(kiln_eval(x), KILN_UNSUPPORTED, "needs a LAPACK library: libno_such_lapack.so.3");
    fails_with(kiln_eval(x), KILN_UNSUPPORTED, "install the Debian package liblapack3 or libopenblas0");
    set_option("liblapack", "libm.so.6");
    fails_with(kiln_eval(x), KILN_UNSUPPORTED, "libm.so.6 lacks ");
}

#ifdef KILN_TEST_LAPACK
/* Iterations that do not converge, of the second matrix. */
Test(linalg_missing, no_convergence)
{
    kiln_tensor *w, *v, *at = kiln_reshape(F64(KILN_SHAPE(2), 1, 1000), KILN_SHAPE(2, 1, 1));
    set_option("liblapack", KILN_TEST_LAPACK);
    OK(kiln_eigh(kiln_mul(at, kiln_eye(KILN_F64, 3, 3, 0)), &w, &v));
    FAILS(w, "kiln.eigh (test_linalg.c:");
    FAILS(w, "the iteration for matrix [1] did not converge (LAPACK: 2)");
    OK(kiln_svd(kiln_ones(KILN_F64, KILN_SHAPE(2, 3)), NULL, &w, NULL));
    FAILS(w, "the iteration for the matrix did not converge (LAPACK: 2)");
}
#endif

/*
 * Linear algebra on a CUDA device by cuSOLVER (runtime/cuda/cuda_solver.c): the host's results and errors, from what lies there; the
 * host where the library cannot. On the software device the library is made of software, too (tests/cuda_solver), and is late: what
 * does not wait for it is wrong. test_linalg.c and test_linalg_gradient.c run on it besides.
 */
#include "linalg.h"
#include "on_cuda.h"

#include <pthread.h>

static const char *solver(void) { return getenv("KILN_TEST_LIBCUSOLVER"); }

/* How often the library's function was called; on a device nobody counts. */
static unsigned long solver_calls(const char *name)
{
    unsigned long (*count)(const char *);
    void *library = dlopen(solver(), RTLD_NOW), *symbol = library ? dlsym(library, "test_solver_calls") : NULL;
    cr_assert(symbol, "%s", dlerror());
    memcpy(&count, &symbol, sizeof count);
    return count(name);
}

/* false: there is nothing to test with. */
static bool start(const char *library)
{
    if (!have_lapack())
        return false;
    set_option("libcusolver", library ? library : software_driver() ? solver() : "libcusolver.so.12");
    CUDA_WITH("test_memory", "exact");
    return true;
}

/* ---- the host's results ---- */

typedef kiln_tensor *MakeFn(kiln_tensor *a, kiln_tensor *b, unsigned flags);

static kiln_tensor *solved(kiln_tensor *a, kiln_tensor *b, unsigned flags) { return (void)flags, kiln_solve(a, b); }
static kiln_tensor *inverse(kiln_tensor *a, kiln_tensor *b, unsigned flags) { return (void)b, (void)flags, kiln_inv(a); }
static kiln_tensor *lower(kiln_tensor *a, kiln_tensor *b, unsigned flags) { return (void)b, (void)flags, kiln_cholesky(positive(a)); }

/* Its gradient solves the transposed system. */
static kiln_tensor *gradient(kiln_tensor *a, kiln_tensor *b, unsigned flags)
{
    kiln_tensor *p = kiln_param(b), *grad = NULL;
    (void)flags;
    OK(kiln_grad(kiln_sum(kiln_square(kiln_solve(a, p))), &p, 1, &grad));
    return grad;
}

static kiln_tensor *triangle(kiln_tensor *a, kiln_tensor *b, unsigned flags)
{
    return kiln_solve_triangular(kiln_add(a, kiln_mul(kiln_eye(kiln_dtype_of(a), kiln_dim(a, -1), kiln_dim(a, -1), 0), 4)), b, flags);
}

static kiln_tensor *determinants(kiln_tensor *a, kiln_tensor *b, unsigned flags)
{
    kiln_tensor *sign, *log_abs;
    (void)b, (void)flags;
    OK(kiln_slogdet(a, &sign, &log_abs));
    return kiln_stack((kiln_tensor *[]){kiln_det(a), sign, log_abs}, 3, -1);
}

/* Q and R: signs are LAPACK's. */
static kiln_tensor *orthogonal(kiln_tensor *a, kiln_tensor *b, unsigned flags)
{
    kiln_tensor *q, *r;
    (void)b, (void)flags;
    OK(kiln_qr(a, &q, &r));
    return kiln_concat((kiln_tensor *[]){q, kiln_swap_axes(r, -1, -2)}, 2, -2);
}

/* What does not depend on signs of vectors: V w^3 V^T, U s^3 V^T; and the values alone. */
static kiln_tensor *cube(kiln_tensor *x) { return kiln_mul(x, kiln_square(x)); }

static kiln_tensor *eigen(kiln_tensor *a, kiln_tensor *b, unsigned flags)
{
    kiln_tensor *w, *v, *alone;
    (void)b, (void)flags;
    OK(kiln_eigh(a, &w, &v));
    OK(kiln_eigh(a, &alone, NULL));
    kiln_tensor *back = kiln_matmul(kiln_mul(v, kiln_unsqueeze(cube(w), -2)), kiln_swap_axes(v, -1, -2));
    return kiln_concat((kiln_tensor *[]){back, kiln_unsqueeze(w, -1), kiln_unsqueeze(alone, -1)}, 3, -1);
}

static kiln_tensor *singular(kiln_tensor *a, kiln_tensor *b, unsigned flags)
{
    kiln_tensor *u, *s, *vt, *alone;
    (void)b, (void)flags;
    OK(kiln_svd(a, &u, &s, &vt));
    OK(kiln_svd(a, NULL, &alone, NULL));
    kiln_tensor *back = kiln_matmul(kiln_mul(u, kiln_unsqueeze(cube(s), -2)), vt), *values = kiln_add(s, alone);
    return kiln_add(back, kiln_unsqueeze(kiln_sum_axes(values, KILN_AXES(-1), true), -1));
}

static const struct {
    const char *name, *symbol; /* of the library, called for it */
    MakeFn *make;
    unsigned flags;
} functions[] = {
    {"qr", "orgqr", orthogonal, 0},
    {"svd", "gesvd", singular, 0},
    {"eigh", "syevd", eigen, 0},
    {"solve", "getrs", solved, 0},
    {"gradient of solve", "getrs", gradient, 0},
    {"inv", "getrs", inverse, 0},
    {"det", "getrf", determinants, 0},
    {"cholesky", "potrf", lower, 0},
    {"triangular", "trsm", triangle, 0},
    {"triangular, upper", "trsm", triangle, KILN_UPPER},
    {"triangular, transposed", "trsm", triangle, KILN_TRANSPOSED},
    {"triangular, upper, transposed", "trsm", triangle, KILN_UPPER | KILN_TRANSPOSED},
    {"triangular, ones", "trsm", triangle, KILN_UNIT_DIAGONAL},
    {"triangular, upper, ones, transposed", "trsm", triangle, KILN_UNIT_DIAGONAL | KILN_UPPER | KILN_TRANSPOSED},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions, RECTANGULAR = 2 };

typedef struct Case {
    int function, lead, m, n, k;
    kiln_dtype dtype;
} Case;

static kiln_shape shape_of(int lead, int rows, int columns)
{
    static const kiln_shape leads[] = {{0, {0}}, {1, {3}}, {2, {2, 2}}, {1, {0}}};
    kiln_shape shape = leads[lead];
    shape.dim[shape.rank++] = rows;
    shape.dim[shape.rank++] = columns;
    return shape;
}
enum { LEADS = 4, EMPTY_LEAD = 3 };

/* The values on this device, to be freed. */
static double *on(const char *device, const Case *c, int64_t *n)
{
    set_option("device", device);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *a = random_tensor(c->dtype, shape_of(c->lead, c->m, c->n), (uint64_t)(c->m * 7 + c->n)),
                *b = random_tensor(c->dtype, shape_of(c->lead, c->m, c->k), 5),
                *x = functions[c->function].make(a, b, functions[c->function].flags);
    double *values = VALUES(x);
    *n = kiln_numel(x);
    kiln_scope_end(scope);
    return values;
}

static void as_on_the_host(const Case *c)
{
    int64_t n, host_n;
    bool counted = software_driver() && c->m && c->n && c->lead != EMPTY_LEAD;
    unsigned long before = counted ? solver_calls(functions[c->function].symbol) : 0;
    double *device = on("cuda", c, &n);
    cr_assert(!counted || solver_calls(functions[c->function].symbol) > before, "%s: the library was not called",
              functions[c->function].name);
    double *host = on("cpu", c, &host_n), scale = 1;
    cr_assert(n == host_n);
    for (int64_t i = 0; i < n; i++)
        scale = fabs(host[i]) > scale ? fabs(host[i]) : scale;
    for (int64_t i = 0; i < n; i++)
        cr_assert(fabs(device[i] - host[i]) <= 2e4 * (c->m + c->n) * eps_of(c->dtype) * scale,
                  "%s: %d x %d, %d columns, axes before: %d: element %d is %.17g, on the host %.17g", functions[c->function].name, c->m,
                  c->n, c->k, c->lead, (int)i, device[i], host[i]);
    free(device), free(host);
}

Test(cuda_linalg, results_are_the_hosts)
{
    static const int sizes[] = {1, 2, 5, 19, 0};
    if (!start(NULL))
        return;
    for (int f = 0; f < FUNCTIONS; f++)
        for (int s = 0; s < 5; s++)
            for (int lead = 0; lead < LEADS; lead++)
                as_on_the_host(&(Case){.function = f,
                                       .lead = lead,
                                       .m = sizes[s],
                                       .n = sizes[s],
                                       .k = (f + s + lead / 2) % 2 ? 1 : 4,
                                       .dtype = (s + lead) % 2 ? KILN_F64 : KILN_F32});
}

Test(cuda_linalg, results_of_rectangles_are_the_hosts)
{
    static const int sizes[][2] = {{5, 3}, {3, 5}, {1, 4}, {4, 1}, {33, 7}, {7, 33}, {0, 3}, {3, 0}};
    if (!start(NULL))
        return;
    for (int f = 0; f < RECTANGULAR; f++)
        for (int s = 0; s < 8; s++)
            for (int lead = 0; lead < LEADS; lead++)
                as_on_the_host(&(Case){.function = f,
                                       .lead = lead,
                                       .m = sizes[s][0],
                                       .n = sizes[s][1],
                                       .k = 1,
                                       .dtype = (f + s + lead) % 2 ? KILN_F64 : KILN_F32});
}

/* ---- what goes wrong ---- */

/* The first of a batch that is wrong is named. A library may leave NaN where a matrix is singular: the determinant is 0. */
Test(cuda_linalg, errors_are_the_hosts)
{
    if (!start(NULL))
        return;
    kiln_tensor *eye = kiln_eye(KILN_F64, 2, 2, 0), *many = kiln_add(kiln_zeros(KILN_F64, KILN_SHAPE(3, 2, 2)), eye), *sign, *log_abs;
    kiln_tensor *at = kiln_gt(kiln_reshape(kiln_arange(KILN_F64, 0, 3, 1), KILN_SHAPE(3, 1, 1)), 0);
    kiln_tensor *wrong = kiln_where(at, F64(KILN_SHAPE(2, 2), 1, 2, 2, 4), many);
    FAILS(kiln_solve(wrong, many), "matrix [1] is singular: pivot 2 of 2 is 0");
    FAILS(kiln_inv(wrong), "kiln.inv (test_cuda_linalg.c:");
    FAILS(kiln_solve_triangular(kiln_where(at, 0, many), many, 0), "matrix [1] is singular: element 1 of the 2 on its diagonal is 0");
    FAILS(kiln_cholesky(kiln_where(at, F64(KILN_SHAPE(2, 2), 1, 2, 2, 1), many)),
          "matrix [1] is not positive definite: its leading 2 x 2 block of 2 x 2 is not");
    FAILS(kiln_cholesky(F32(KILN_SHAPE(2, 2), NAN, 0, 0, 1)), "not positive definite");
    EXPECT(kiln_det(wrong), KILN_F64, KILN_SHAPE(3), 0, 1, 0, 0);
    OK(kiln_slogdet(wrong, &sign, &log_abs));
    EXPECT(log_abs, KILN_F64, KILN_SHAPE(3), 0, 0, -INFINITY, -INFINITY);
    EXPECT(kiln_det(F64(KILN_SHAPE(2, 2), 0, 1, 1, 0)), KILN_F64, KILN_SHAPE(), 0, -1);
    (void)kiln_eigh(kiln_where(at, NAN, many), &sign, &log_abs);
    FAILS(sign, "matrix [1] has elements that are NaN or infinite");
    OK(kiln_eigh(F64(KILN_SHAPE(2, 2), 1, NAN, 0, 2), &sign, NULL)); /* the upper triangle */
    EXPECT(sign, KILN_F64, KILN_SHAPE(2), 0, 1, 2);
    (void)kiln_svd(F32(KILN_SHAPE(1, 2), 1, INFINITY), NULL, &sign, NULL);
    FAILS(sign, "the matrix has elements that are NaN or infinite");
    (void)kiln_svd(F32(KILN_SHAPE(2, 1), -INFINITY, 1), &log_abs, &sign, NULL);
    FAILS(sign, "the matrix has elements that are NaN or infinite");
    for (int k = 0; k < 2; k++) { /* NaN goes through, whatever the library takes for a pivot then */
        kiln_tensor *nan = k ? kiln_full(KILN_F64, KILN_SHAPE(2, 2), NAN) : F64(KILN_SHAPE(2, 2), 1, 0, 0, NAN);
        double *x = VALUES(kiln_solve(nan, kiln_ones(KILN_F64, KILN_SHAPE(2))));
        cr_assert(isnan(x[1]), "%g", x[1]);
        free(x);
    }
}

/* ---- threads ---- */

static void *in_a_thread(void *with)
{
    const int first = *(const int *)with;
    kiln_scope *scope = kiln_scope_begin();
    for (int call = 0; call < 4; call++) {
        int n = 3 + (first + call) % 3;
        kiln_tensor *a = positive(random_tensor(KILN_F64, KILN_SHAPE(2, n, n), (uint64_t)first)), *w, *v,
                    *eye = kiln_eye(KILN_F64, n, n, 0);
        OK(kiln_eigh(a, &w, &v));
        kiln_tensor *back = kiln_matmul(kiln_mul(v, kiln_unsqueeze(w, -2)), kiln_swap_axes(v, -1, -2));
        double *error = VALUES(kiln_add(kiln_max(kiln_abs(kiln_sub(back, a))), kiln_max(kiln_abs(kiln_sub(kiln_solve(a, a), eye)))));
        cr_assert(*error < 1e-11, "off by %g", *error);
        free(error);
    }
    kiln_scope_end(scope);
    return NULL;
}

/* Each on its stream, with a handle of its own; a thread that ends leaves both to the next one. */
Test(cuda_linalg, threads_beside_each_other)
{
    if (!start(NULL))
        return;
    for (int round = 0; round < 2; round++) {
        pthread_t thread[3];
        int first[3] = {0, 1, 2};
        for (int k = 0; k < 3; k++)
            cr_assert(pthread_create(&thread[k], NULL, in_a_thread, &first[k]) == 0);
        for (int k = 0; k < 3; k++)
            pthread_join(thread[k], NULL);
    }
}

/* ---- the host, where the library cannot ---- */

typedef struct Lines {
    char text[WARNINGS];
} Lines;

static void keep_kernels(void *user, int level, const char *topic, const char *line)
{
    Lines *lines = user;
    if (level > 0 && strcmp(topic, "kernels") == 0 && strstr(line, "the host computes") &&
        strlen(lines->text) + strlen(line) + 2 < sizeof lines->text)
        strcat(strcat(lines->text, line), "\n");
}

/* X of A X = B is right, and the log has these words; NULL: nothing, as the library did all. */
static void solves(int line, const char *words)
{
    kiln_tensor *w;
    Lines lines = {""};
    kiln_set_log_sink(keep_kernels, &lines);
    set_option("log", "kernels");
    EXPECT(kiln_solve(F32(KILN_SHAPE(2, 2), 4, 1, 1, 3), F32(KILN_SHAPE(2), 1, 2)), KILN_F32, KILN_SHAPE(2), 1e-5, 1.0 / 11, 7.0 / 11);
    EXPECT(kiln_solve_triangular(F64(KILN_SHAPE(1, 1), 4), F64(KILN_SHAPE(1), 1), 0), KILN_F64, KILN_SHAPE(1), 0, 0.25);
    EXPECT(kiln_cholesky(F64(KILN_SHAPE(1, 1), 4)), KILN_F64, KILN_SHAPE(1, 1), 0, 2);
    OK(kiln_eigh(F32(KILN_SHAPE(2, 2), 2, 0, 0, 1), &w, NULL));
    EXPECT(w, KILN_F32, KILN_SHAPE(2), 1e-6, 1, 2);
    kiln_set_log_sink(NULL, NULL);
    cr_assert(words ? strstr(lines.text, words) != NULL : !lines.text[0], "line %d: %s", line, lines.text);
}
#define SOLVES(words) solves(__LINE__, (words))

Test(cuda_linalg, without_the_library)
{
    if (!start("libno_such_solver.so"))
        return;
    SOLVES("cuda:0: the host computes kiln.lu: no cuSOLVER: libno_such_solver.so: cannot open");
    set_option("libcusolver", "");
    SOLVES("KILN_LIBCUDA names a driver, but KILN_LIBCUSOLVER no cuSOLVER for it");
    set_option("libcusolver", "libm.so.6");
    SOLVES("libm.so.6 lacks cusolverDnCreate");
    set_option("libcusolver", solver()); /* it is looked for at each call */
    SOLVES(NULL);
}

/* kiln.lu there, kiln.solve here. */
Test(cuda_linalg, symbols_that_are_missing)
{
    if (!start(getenv("KILN_TEST_LIBCUSOLVER_PARTIAL")))
        return;
    SOLVES("the host computes kiln.solve: kiln.solve (test_cuda_linalg.c:");
    SOLVES("lacks cusolverDnSgetrs\n");
    SOLVES("lacks cublasDtrsm_v2\n");
    SOLVES("lacks cusolverDnSsyevd_bufferSize\n");
}

/* Functions that say that they cannot, and those that go wrong. */
Test(cuda_linalg, calls_that_fail)
{
    if (!start(NULL))
        return;
    setenv("KILN_TEST_CUSOLVER", "fail=create:1,fail=blas_create:2", 1);
    SOLVES("cusolverDnCreate fails in ");
    SOLVES("cublasCreate_v2 fails in ");
    setenv("KILN_TEST_CUSOLVER", "fail=getrf:2,fail=potrf:9", 1);
    SOLVES("cusolverDnSgetrf fails in ");
    SOLVES(": allocation failed (2)");
    SOLVES(": not supported (9)");
    setenv("KILN_TEST_CUSOLVER", "fail=potrf:7", 1);
    kiln_tensor *four = F64(KILN_SHAPE(1, 1), 4);
    expect_status(kiln_eval(kiln_cholesky(four)), KILN_DEVICE, "kiln.cholesky (test_cuda_linalg.c:");
    expect_status(kiln_eval(kiln_cholesky(four)), KILN_DEVICE, "cusolverDnDpotrf fails in ");
    kiln_clear_error();
    setenv("KILN_TEST_CUSOLVER", "info=potrf:-4", 1);
    cr_assert(kiln_eval(kiln_cholesky(four)) != KILN_OK && strstr(kiln_error_message(), "cuSOLVER refuses argument 4"), "%s",
              kiln_error_message());
    kiln_clear_error();
    unsetenv("KILN_TEST_CUSOLVER");
    SOLVES(NULL); /* the next one is as ever */
}

/* Iterations that do not converge. */
Test(cuda_linalg, no_convergence)
{
    if (!start(NULL))
        return;
    kiln_tensor *w, *v, *eye = kiln_add(kiln_zeros(KILN_F64, KILN_SHAPE(2, 3, 3)), kiln_eye(KILN_F64, 3, 3, 0));
    setenv("KILN_TEST_CUSOLVER", "info=syevd:2,info=gesvd:1", 1);
    OK(kiln_eigh(eye, &w, &v));
    FAILS(w, "the iteration for matrix [0] did not converge (cuSOLVER: 2)");
    OK(kiln_svd(eye, NULL, &w, NULL));
    FAILS(w, "the iteration for matrix [0] did not converge (cuSOLVER: 1)");
}

/* More work space than the device has. */
Test(cuda_linalg, work_space_that_is_not_to_be_had)
{
    if (!have_lapack())
        return;
    setenv("KILN_TEST_CUSOLVER", "lwork=getrf:100000000", 1);
    setenv("KILN_TEST_CUDA", "memory=16M", 1);
    if (!start(NULL))
        return;
    SOLVES("the host computes kiln.lu: cuda:0 is out of memory: 400000000 bytes requested");
    unsetenv("KILN_TEST_CUSOLVER");
    SOLVES(NULL);
}

/* Many small matrices: calls of LAPACK are shorter. */
Test(cuda_linalg, many_small_matrices_are_the_hosts)
{
    if (!start(NULL))
        return;
    Lines lines = {""};
    kiln_set_log_sink(keep_kernels, &lines);
    set_option("log", "kernels");
    kiln_tensor *a = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(9, 2, 2)), F32(KILN_SHAPE(2, 2), 2, 0, 0, 4));
    EXPECT(kiln_sum(kiln_inv(a)), KILN_F32, KILN_SHAPE(), 1e-6, 9 * 0.75);
    kiln_set_log_sink(NULL, NULL);
    cr_assert(strstr(lines.text, "9 matrices of 2 x 2 are many and small"), "%s", lines.text);
    cr_assert(solver_calls("getrf") == 0 && solver_calls("getrs") == 0);
}

/* Any call of the driver that fails is an error or no matter, and what follows is right. */
Test(cuda_linalg, any_failing_call)
{
    if (!start(NULL))
        return;
    kiln_tensor *a = F64(KILN_SHAPE(2, 2), 4, 1, 1, 3), *b = F64(KILN_SHAPE(2, 2), 1, 2, 3, 4);
    OK(kiln_eval(kiln_cholesky(kiln_inv(kiln_matmul(a, a))))); /* all is loaded */
    for (long n = 1;; n++) {
        uint64_t before = counted().calls;
        DRIVER(test_cuda_fail)(n, 2 /* CUDA_ERROR_OUT_OF_MEMORY */, 0);
        double value[4];
        kiln_tensor *x = kiln_add(kiln_solve(a, b), kiln_cholesky(kiln_add(a, 0.0)));
        kiln_status status = kiln_read(x, KILN_F64, value, sizeof value);
        bool over = counted().calls < before + (uint64_t)n;
        DRIVER(test_cuda_fail)(0, 0, 0);
        cr_assert(status != KILN_OK || (fabs(value[0] - 2) < 1e-12 && fabs(value[1] - 2.0 / 11) < 1e-12), "call %d: %g %g", (int)n,
                  value[0], value[1]);
        kiln_clear_error();
        if (over)
            break;
    }
    SOLVES(NULL);
}

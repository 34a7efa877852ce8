// A cuSOLVER made of software, with what of cuBLAS kiln calls, for the CUDA driver made of software (tests/cuda_driver). It knows
// nothing of kiln.
//
// Calls check their arguments at once: handles whose stream was set, sizes and leading dimensions, device memory, the size of work
// space as the _bufferSize function gave it. The work is queued on the stream and done by LAPACK as late as the driver does anything.
// So a missing wait gives wrong numbers; memory that is too small or was not written is a violation there. What the real library does
// not promise it does not do: factors of singular matrices are NaN behind the zero pivot, work space is full of rubbish, what is not
// finite is not given to iterations.
//
// KILN_TEST_CUSOLVER: fail=NAME:STATUS (that function returns the status), info=NAME:N (it leaves this info), separated by commas; NAME
// as in "potrf", "create".
#include "tests/cuda_driver/test_cuda.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { OK, NOT_INITIALIZED, ALLOC_FAILED, INVALID_VALUE, EXECUTION_FAILED = 6 };

// ---- LAPACK ----

typedef void Fortran(void);

static Fortran *lapack(bool f64, const char *name)
{
    static void *library;
    char symbol[32];
    Fortran *function;
    if (!library && !(library = dlopen("liblapack.so.3", RTLD_NOW)) && !(library = dlopen("libopenblas.so.0", RTLD_NOW)))
        abort();
    snprintf(symbol, sizeof symbol, "%c%s_", f64 ? 'd' : 's', name);
    void *address = dlsym(library, symbol);
    if (!address)
        abort();
    memcpy(&function, &address, sizeof function);
    return function;
}

// All integers and addresses by address; lengths of texts behind.
#define LAPACK(w, name, types, ...) ((void(*) types)lapack((w)->f64, name))(__VA_ARGS__)

// ---- work ----

typedef enum Kind { GETRF, GETRS, POTRF, GEQRF, ORGQR, SYEVD, GESVD, TRSM, KINDS } Kind;
static const char *const names[KINDS] = {"getrf", "getrs", "potrf", "geqrf", "orgqr", "syevd", "gesvd", "trsm"};
static unsigned long calls[KINDS];

typedef struct Work {
    Kind kind;
    bool f64, failed;
    int m, n, k, lda, ldb, ldc, flag, left, diag, trans, lwork, forced;
    const void *in; // not changed
    void *a, *b, *c, *work;
    int *pivot, *info;
    double alpha;
} Work;

static size_t size_of(const Work *w) { return w->f64 ? 8 : 4; }

// A column-major matrix: the bytes from its first to its last element.
static size_t matrix_bytes(const Work *w, int rows, int columns, int ld)
{
    return rows && columns ? ((size_t)ld * (size_t)(columns - 1) + (size_t)rows) * size_of(w) : 0;
}

static void *bytes(Work *w, const void *p, size_t size, int write)
{
    void *host = p && size ? test_cuda_access((uint64_t)(uintptr_t)p, size, write) : NULL;
    w->failed |= p && size && !host;
    return host;
}

static void *changed(Work *w, const void *p, size_t size)
{
    (void)bytes(w, p, size, 0);
    return bytes(w, p, size, 1);
}

static void rubbish(Work *w)
{
    void *host = bytes(w, w->work, (size_t)w->lwork * size_of(w), 1);
    if (host)
        memset(host, 0x5a, (size_t)w->lwork * size_of(w));
}

static double get(const Work *w, const void *a, size_t i) { return w->f64 ? ((const double *)a)[i] : (double)((const float *)a)[i]; }

static bool all_finite(Work *w, const void *a, bool upper_only)
{
    for (int j = 0; j < w->n; j++)
        for (int i = 0; i < (upper_only ? j + 1 : w->m); i++)
            if (!isfinite(get(w, a, (size_t)j * (size_t)w->lda + (size_t)i))) {
                fprintf(stderr, "test cuda: an iteration of cuSOLVER is given what is not finite\n");
                w->failed = true;
                return false;
            }
    return true;
}

// Space for LAPACK, plenty.
static void *space(const Work *w, int *lwork)
{
    int largest = w->m > w->n ? w->m : w->n;
    *lwork = 1 + 64 * largest + 8 * largest * largest;
    return malloc((size_t)*lwork * size_of(w));
}

static void getrf(Work *w)
{
    int info = 0;
    void *a = changed(w, w->a, matrix_bytes(w, w->m, w->n, w->lda));
    int *pivot = bytes(w, w->pivot, sizeof *pivot * (size_t)w->n, 1), *out = bytes(w, w->info, sizeof *out, 1);
    if (w->failed)
        return;
    LAPACK(w, "getrf", (int *, int *, void *, int *, int *, int *), &w->m, &w->n, a, &w->lda, pivot, &info);
    for (int i = 0; i < w->n && info > 0; i++)
        for (int j = 0; j < w->n; j++)
            if (i >= info || j >= info) {
                if (w->f64)
                    ((double *)a)[j * w->lda + i] = NAN;
                else
                    ((float *)a)[j * w->lda + i] = NAN;
            }
    for (int i = 0; i < w->n * w->n && info == 0; i++)
        if (isnan(get(w, a, (size_t)i)))
            pivot[0] = 0;
    *out = info;
}

static void getrs(Work *w)
{
    int info = 0;
    const void *a = bytes(w, w->in, matrix_bytes(w, w->n, w->n, w->lda), 0);
    void *b = changed(w, w->b, matrix_bytes(w, w->n, w->k, w->ldb));
    const int *pivot = bytes(w, w->pivot, sizeof *pivot * (size_t)w->n, 0);
    int *out = bytes(w, w->info, sizeof *out, 1);
    for (int i = 0; i < w->n && !w->failed; i++)
        if (pivot[i] < 1 || pivot[i] > w->n) {
            fprintf(stderr, "test cuda: cuSOLVER's getrs: a pivot is none\n");
            w->failed = true;
        }
    if (w->failed)
        return;
    LAPACK(w, "getrs", (const char *, int *, int *, const void *, int *, const int *, void *, int *, int *, size_t), w->trans ? "T" : "N",
           &w->n, &w->k, a, &w->lda, pivot, b, &w->ldb, &info, 1);
    *out = info;
}

static void potrf(Work *w)
{
    int info = 0, *out = bytes(w, w->info, sizeof *out, 1);
    void *a = changed(w, w->a, matrix_bytes(w, w->n, w->n, w->lda));
    if (w->failed)
        return;
    LAPACK(w, "potrf", (const char *, int *, void *, int *, int *, size_t), w->flag ? "U" : "L", &w->n, a, &w->lda, &info, 1);
    *out = info;
}

static void geqrf(Work *w)
{
    int info = 0, lwork, *out = bytes(w, w->info, sizeof *out, 1);
    void *a = changed(w, w->a, matrix_bytes(w, w->m, w->n, w->lda)), *own = space(w, &lwork);
    void *tau = bytes(w, w->b, size_of(w) * (size_t)(w->m < w->n ? w->m : w->n), 1);
    if (!w->failed) {
        LAPACK(w, "geqrf", (int *, int *, void *, int *, void *, void *, int *, int *), &w->m, &w->n, a, &w->lda, tau, own, &lwork, &info);
        *out = info;
    }
    free(own);
}

static void orgqr(Work *w)
{
    int info = 0, lwork, *out = bytes(w, w->info, sizeof *out, 1);
    void *a = changed(w, w->a, matrix_bytes(w, w->m, w->n, w->lda)), *own = space(w, &lwork);
    const void *tau = bytes(w, w->in, size_of(w) * (size_t)w->k, 0);
    if (!w->failed) {
        LAPACK(w, "orgqr", (int *, int *, int *, void *, int *, const void *, void *, int *, int *), &w->m, &w->n, &w->k, a, &w->lda, tau,
               own, &lwork, &info);
        *out = info;
    }
    free(own);
}

static void syevd(Work *w)
{
    int info = 0, lwork, liwork = 3 + 5 * w->n, *out = bytes(w, w->info, sizeof *out, 1);
    void *a = changed(w, w->a, matrix_bytes(w, w->n, w->n, w->lda)), *values = bytes(w, w->b, size_of(w) * (size_t)w->n, 1);
    void *own = space(w, &lwork);
    int *integers = malloc(sizeof *integers * (size_t)liwork);
    if (!w->failed && all_finite(w, a, true)) {
        LAPACK(w, "syevd", (const char *, const char *, int *, void *, int *, void *, void *, int *, int *, int *, int *, size_t, size_t),
               w->trans ? "V" : "N", w->flag ? "U" : "L", &w->n, a, &w->lda, values, own, &lwork, integers, &liwork, &info, 1, 1);
        *out = info;
    }
    free(own);
    free(integers);
}

static void gesvd(Work *w)
{
    int info = 0, lwork, *out = bytes(w, w->info, sizeof *out, 1);
    const char *job = w->flag ? "S" : "N";
    void *a = changed(w, w->a, matrix_bytes(w, w->m, w->n, w->lda)), *s = bytes(w, w->pivot, size_of(w) * (size_t)w->n, 1);
    void *u = w->flag ? bytes(w, w->b, matrix_bytes(w, w->m, w->n, w->ldb), 1) : NULL;
    void *vt = w->flag ? bytes(w, w->c, matrix_bytes(w, w->n, w->n, w->ldc), 1) : NULL, *own = space(w, &lwork);
    if (!w->failed && all_finite(w, a, false)) {
        LAPACK(w, "gesvd",
               (const char *, const char *, int *, int *, void *, int *, void *, void *, int *, void *, int *, void *, int *, int *, size_t,
                size_t),
               job, job, &w->m, &w->n, a, &w->lda, s, u, &w->ldb, vt, &w->ldc, own, &lwork, &info, 1, 1);
        memset(a, 0x5a, matrix_bytes(w, w->m, w->n, w->lda)); // it is destroyed
        *out = info;
    }
    free(own);
}

static void trsm(Work *w)
{
    const int order = w->left ? w->m : w->n;
    const float alpha32 = (float)w->alpha;
    const void *a = bytes(w, w->in, matrix_bytes(w, order, order, w->lda), 0);
    void *b = changed(w, w->b, matrix_bytes(w, w->m, w->n, w->ldb));
    if (!w->failed)
        LAPACK(w, "trsm",
               (const char *, const char *, const char *, const char *, int *, int *, const void *, const void *, int *, void *, int *,
                size_t, size_t, size_t, size_t),
               w->left ? "L" : "R", w->flag ? "U" : "L", w->trans ? "T" : "N", w->diag ? "U" : "N", &w->m, &w->n,
               w->f64 ? (const void *)&w->alpha : (const void *)&alpha32, a, &w->lda, b, &w->ldb, 1, 1, 1, 1);
}

static int run(void *with)
{
    static void (*const functions[KINDS])(Work *) = {getrf, getrs, potrf, geqrf, orgqr, syevd, gesvd, trsm};
    Work *w = with;
    if (w->work)
        rubbish(w);
    functions[w->kind](w);
    if (w->forced && !w->failed)
        *(int *)bytes(w, w->info, sizeof(int), 1) = w->forced;
    int state = w->failed ? -1 : 1;
    free(w);
    return state;
}

// ---- calls ----

typedef struct Handle {
    bool blas, has_stream;
    void *stream;
} Handle;

// N of "what=name:N" in the settings; 0: none.
static int setting(const char *what, const char *name)
{
    const char *text = getenv("KILN_TEST_CUSOLVER");
    char key[64];
    snprintf(key, sizeof key, "%s=%s:", what, name);
    const char *at = text ? strstr(text, key) : NULL;
    return at ? atoi(at + strlen(key)) : 0;
}

static int refused(const char *name, const char *why)
{
    fprintf(stderr, "test cuda: cuSOLVER's %s: %s\n", name, why);
    return INVALID_VALUE;
}

static int queue(void *handle, Work work)
{
    const Handle *h = handle;
    const char *name = names[work.kind];
    int status = setting("fail", name);
    __atomic_fetch_add(&calls[work.kind], 1, __ATOMIC_RELAXED);
    if (status)
        return status;
    if (!h || h->blas != (work.kind == TRSM) || !h->has_stream)
        return refused(name, "a handle of the other library, or without a stream");
    if (work.m < 1 || work.n < 1 || work.k < 1)
        return refused(name, "a size");
    if (work.kind != TRSM && !work.info)
        return refused(name, "no info");
    work.forced = setting("info", name);
    Work *own = malloc(sizeof *own);
    *own = work;
    if (test_cuda_enqueue(h->stream, run, own) == 0)
        return OK;
    free(own);
    return EXECUTION_FAILED;
}

static int check(const char *name, bool holds, const char *what) { return holds ? OK : refused(name, what); }

#define CHECK(name, holds, what)                  \
    do {                                          \
        if (check((name), (holds), (what)) != OK) \
            return INVALID_VALUE;                 \
    } while (0)

static int make(void **handle, bool blas)
{
    int status = setting("fail", blas ? "blas_create" : "create");
    if (status)
        return status;
    Handle *h = calloc(1, sizeof *h);
    h->blas = blas;
    *handle = h;
    return OK;
}

static int set_stream(void *handle, void *stream)
{
    Handle *h = handle;
    h->stream = stream;
    h->has_stream = true;
    return OK;
}

// How often a function was called.
API unsigned long test_solver_calls(const char *name);
API unsigned long test_solver_calls(const char *name)
{
    for (int k = 0; k < KINDS; k++)
        if (!strcmp(names[k], name))
            return __atomic_load_n(&calls[k], __ATOMIC_RELAXED);
    abort();
}

#define FUNCTION(name, parameters) \
    API int name parameters;       \
    API int name parameters

FUNCTION(cusolverDnCreate, (void **handle)) { return make(handle, false); }
FUNCTION(cusolverDnSetStream, (void *handle, void *stream)) { return set_stream(handle, stream); }
FUNCTION(cublasCreate_v2, (void **handle)) { return make(handle, true); }
FUNCTION(cublasSetStream_v2, (void *handle, void *stream)) { return set_stream(handle, stream); }

// Elements of work space; 0: not asked for by size.
static int lwork_of(Kind kind, int m, int n)
{
    static const int times[KINDS] = {2, 0, 3, 4, 5, 6, 7, 0};
    int sizes[] = {1, setting("lwork", names[kind])}; // of a library that wants a lot
    return sizes[1] ? sizes[1] : times[kind] * (m + n) + sizes[0];
}

/* Of a function below: what all of them are given, and what this one is. */
#define CALL(what, wide, ...) \
    queue(h, (Work){.kind = what, .f64 = wide, .a = a, .lda = lda, .work = work, .lwork = lwork, .info = info, __VA_ARGS__})

// For one dtype: C is its letter, T the type, D whether it is f64.
#define BOTH(C, T, D)                                                                                                                      \
    FUNCTION(cusolverDn##C##getrf_bufferSize, (void *h, int m, int n, T *a, int lda, int *lwork))                                          \
    {                                                                                                                                      \
        (void)h, (void)a;                                                                                                                  \
        CHECK("getrf", lda >= m, "lda");                                                                                                   \
        *lwork = lwork_of(GETRF, m, n);                                                                                                    \
        return OK;                                                                                                                         \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##getrf, (void *h, int m, int n, T *a, int lda, T *work, int *pivot, int *info))                                 \
    {                                                                                                                                      \
        CHECK("getrf", lda >= m && work, "lda, or no work space");                                                                         \
        return queue(h, (Work){.kind = GETRF,                                                                                              \
                               .f64 = D,                                                                                                   \
                               .m = m,                                                                                                     \
                               .n = n,                                                                                                     \
                               .k = 1,                                                                                                     \
                               .a = a,                                                                                                     \
                               .lda = lda,                                                                                                 \
                               .work = work,                                                                                               \
                               .lwork = lwork_of(GETRF, m, n),                                                                             \
                               .pivot = pivot,                                                                                             \
                               .info = info});                                                                                             \
    }                                                                                                                                      \
    WITHOUT(FUNCTION(cusolverDn##C##getrs,                                                                                                 \
                     (void *h, int trans, int n, int k, const T *a, int lda, const int *pivot, T *b, int ldb, int *info)) {                \
        CHECK("getrs", lda >= n && ldb >= n && (trans == 0 || trans == 1), "lda, ldb or trans");                                           \
        return queue(h, (Work){.kind = GETRS,                                                                                              \
                               .f64 = D,                                                                                                   \
                               .m = n,                                                                                                     \
                               .n = n,                                                                                                     \
                               .k = k,                                                                                                     \
                               .in = a,                                                                                                    \
                               .lda = lda,                                                                                                 \
                               .pivot = (int *)(size_t)pivot,                                                                              \
                               .b = b,                                                                                                     \
                               .ldb = ldb,                                                                                                 \
                               .trans = trans,                                                                                             \
                               .info = info});                                                                                             \
    })                                                                                                                                     \
    FUNCTION(cusolverDn##C##potrf_bufferSize, (void *h, int uplo, int n, T *a, int lda, int *lwork))                                       \
    {                                                                                                                                      \
        (void)h, (void)a, (void)uplo;                                                                                                      \
        CHECK("potrf", lda >= n, "lda");                                                                                                   \
        *lwork = lwork_of(POTRF, n, n);                                                                                                    \
        return OK;                                                                                                                         \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##potrf, (void *h, int uplo, int n, T *a, int lda, T *work, int lwork, int *info))                               \
    {                                                                                                                                      \
        CHECK("potrf", lda >= n && lwork >= lwork_of(POTRF, n, n), "lda or lwork");                                                        \
        return CALL(POTRF, D, .m = n, .n = n, .k = 1, .flag = uplo);                                                                       \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##geqrf_bufferSize, (void *h, int m, int n, T *a, int lda, int *lwork))                                          \
    {                                                                                                                                      \
        (void)h, (void)a;                                                                                                                  \
        CHECK("geqrf", lda >= m, "lda");                                                                                                   \
        *lwork = lwork_of(GEQRF, m, n);                                                                                                    \
        return OK;                                                                                                                         \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##geqrf, (void *h, int m, int n, T *a, int lda, T *tau, T *work, int lwork, int *info))                          \
    {                                                                                                                                      \
        CHECK("geqrf", lda >= m && lwork >= lwork_of(GEQRF, m, n), "lda or lwork");                                                        \
        return CALL(GEQRF, D, .m = m, .n = n, .k = 1, .b = tau);                                                                           \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##orgqr_bufferSize, (void *h, int m, int n, int k, const T *a, int lda, const T *tau, int *lwork))               \
    {                                                                                                                                      \
        (void)h, (void)a, (void)tau;                                                                                                       \
        CHECK("orgqr", lda >= m && m >= n && n >= k, "lda or a size");                                                                     \
        *lwork = lwork_of(ORGQR, m, n);                                                                                                    \
        return OK;                                                                                                                         \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##orgqr, (void *h, int m, int n, int k, T *a, int lda, const T *tau, T *work, int lwork, int *info))             \
    {                                                                                                                                      \
        CHECK("orgqr", lda >= m && m >= n && n >= k && lwork >= lwork_of(ORGQR, m, n), "lda, a size or lwork");                            \
        return CALL(ORGQR, D, .m = m, .n = n, .k = k, .in = tau);                                                                          \
    }                                                                                                                                      \
    WITHOUT(FUNCTION(cusolverDn##C##syevd_bufferSize,                                                                                      \
                     (void *h, int jobz, int uplo, int n, const T *a, int lda, const T *values, int *lwork)) {                             \
        (void)h, (void)a, (void)values, (void)jobz, (void)uplo;                                                                            \
        CHECK("syevd", lda >= n, "lda");                                                                                                   \
        *lwork = lwork_of(SYEVD, n, n);                                                                                                    \
        return OK;                                                                                                                         \
    })                                                                                                                                     \
    FUNCTION(cusolverDn##C##syevd, (void *h, int jobz, int uplo, int n, T *a, int lda, T *values, T *work, int lwork, int *info))          \
    {                                                                                                                                      \
        CHECK("syevd", lda >= n && lwork >= lwork_of(SYEVD, n, n), "lda or lwork");                                                        \
        return CALL(SYEVD, D, .m = n, .n = n, .k = 1, .b = values, .flag = uplo, .trans = jobz);                                           \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##gesvd_bufferSize, (void *h, int m, int n, int *lwork))                                                         \
    {                                                                                                                                      \
        (void)h;                                                                                                                           \
        CHECK("gesvd", m >= n, "more columns than rows");                                                                                  \
        *lwork = lwork_of(GESVD, m, n);                                                                                                    \
        return OK;                                                                                                                         \
    }                                                                                                                                      \
    FUNCTION(cusolverDn##C##gesvd, (void *h, signed char jobu, signed char jobvt, int m, int n, T *a, int lda, T *s, T *u, int ldu, T *vt, \
                                    int ldvt, T *work, int lwork, T *rwork, int *info))                                                    \
    {                                                                                                                                      \
        CHECK("gesvd", m >= n && lda >= m && ldu >= m && ldvt >= n && lwork >= lwork_of(GESVD, m, n), "a size, lda, ldu, ldvt or lwork");  \
        CHECK("gesvd", jobu == jobvt && (jobu == 'S' || jobu == 'N') && !rwork, "jobu, jobvt or rwork");                                   \
        return CALL(GESVD, D, .m = m, .n = n, .k = 1, .pivot = (void *)s, .b = u, .ldb = ldu, .c = vt, .ldc = ldvt, .flag = jobu == 'S');  \
    }                                                                                                                                      \
    WITHOUT(FUNCTION(cublas##C##trsm_v2, (void *h, int side, int uplo, int trans, int diag, int m, int n, const T *alpha, const T *a,      \
                                          int lda, T *b, int ldb)) {                                                                       \
        CHECK("trsm", lda >= (side ? n : m) && ldb >= m, "lda or ldb");                                                                    \
        return queue(h, (Work){.kind = TRSM,                                                                                               \
                               .f64 = D,                                                                                                   \
                               .m = m,                                                                                                     \
                               .n = n,                                                                                                     \
                               .k = 1,                                                                                                     \
                               .in = a,                                                                                                    \
                               .lda = lda,                                                                                                 \
                               .b = b,                                                                                                     \
                               .ldb = ldb,                                                                                                 \
                               .left = !side,                                                                                              \
                               .flag = uplo,                                                                                               \
                               .trans = trans,                                                                                             \
                               .diag = diag,                                                                                               \
                               .alpha = (double)*alpha});                                                                                  \
    })

#ifdef TEST_SOLVER_PARTIAL // a library that lacks some
#define WITHOUT(...)
#else
#define WITHOUT(...) __VA_ARGS__
#endif

BOTH(S, float, false)
BOTH(D, double, true)

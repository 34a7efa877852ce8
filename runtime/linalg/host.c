/*
 * What calls of linear algebra do (linalg.h): one matrix after another by LAPACK, or, where there are many, on the pool's threads.
 *
 * LAPACK's matrices are column-major, kiln's row-major: the same memory is the transpose there. Nothing is transposed for it: what is asked of A is
 * asked of A^T instead.
 *
 *     A^T = P L U                   getrf. A X = B is X^T P L U = B^T from the right: trsm by U and L, and rows of X exchanged. One column is as long a row, and getrs takes it
 *     A lower triangle              is an upper one of A^T
 *     A = Q R                       A^T = R^T Q^T: gelqf, orglq
 *     A = V diag(w) V^T             the columns of V are rows here: V^T is what is given (ir/linalg.def)
 *     A = U diag(s) V^T             A^T = V diag(s) U^T: U and V^T change places
 *
 * LAPACK works in place, so a result's memory is where it works. Its routines check dimensions and stop the process where these are wrong:
 * here they never are. What is not finite goes through those that only multiply and divide; eigenvalues and singular values of it are
 * refused, as iterations need not end.
 */
#include "runtime/linalg/linalg.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "runtime/eval/pool.h"
#include "runtime/linalg/lapack.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { NOT_FINITE = -1000, PARALLEL_WORK = 1 << 16 };

typedef struct Job Job;
/* Computes matrix i of the results with `scratch` of its own. 0, LAPACK's info, or NOT_FINITE. */
typedef int32_t OneFn(const Job *j, int64_t i, char *scratch);

struct Job {
    const Lapack *lapack;
    OneFn *one;
    bool f64;
    uint32_t flags;
    int64_t count;
    int32_t m, n, k; /* ir/linalg.def; k: columns of B, or the lesser of m and n */
    const char *in[3];
    char *out[3];
    size_t in_bytes[3], out_bytes[3]; /* of one matrix */
    int32_t lwork, liwork;
    size_t work_bytes, spare_bytes, scratch_bytes; /* scratch: work, spare, iwork */
    char *scratch;
    _Atomic int64_t failed; /* the first one; count: none */
};

/* Matrix i of an operand or result; without elements it may be NULL. */
static const void *in_of(const Job *j, int k, int64_t i) { return i ? j->in[k] + j->in_bytes[k] * (size_t)i : j->in[k]; }
static void *out_of(const Job *j, int k, int64_t i) { return i ? j->out[k] + j->out_bytes[k] * (size_t)i : j->out[k]; }

/* ---- elements ---- */

static double get(const Job *j, const void *a, int64_t at) { return j->f64 ? ((const double *)a)[at] : (double)((const float *)a)[at]; }

static void set(const Job *j, void *a, int64_t at, double value)
{
    if (j->f64)
        ((double *)a)[at] = value;
    else
        ((float *)a)[at] = (float)value;
}

static size_t element(const Job *j) { return j->f64 ? sizeof(double) : sizeof(float); }

/* The first zero of the diagonal, counted from 1; 0: none. */
static int32_t zero_on_diagonal(const Job *j, const void *a)
{
    for (int32_t d = 0; d < j->n; d++)
        if (get(j, a, (int64_t)d * j->n + d) == 0)
            return d + 1;
    return 0;
}

static bool is_finite(const Job *j, const void *a, int64_t n)
{
    double sum = 0; /* of zeros, or NaN */
    for (int64_t k = 0; k < n; k++)
        sum += 0 * get(j, a, k);
    return sum == 0;
}

/* Rows lo and hi of a matrix with j->k columns change places. */
static void exchange(const Job *j, char *x, int64_t lo, int64_t hi)
{
    char kept[512];
    size_t row = element(j) * (size_t)j->k;
    char *a = x + row * (size_t)lo, *b = x + row * (size_t)hi;
    for (size_t at = 0; at < row && lo != hi; at += sizeof kept) {
        size_t n = row - at < sizeof kept ? row - at : sizeof kept;
        memcpy(kept, a + at, n);
        memcpy(a + at, b + at, n);
        memcpy(b + at, kept, n);
    }
}

/* ---- one matrix ---- */

static const double one_f64 = 1;
static const float one_f32 = 1;
static const void *number_one(const Job *j) { return j->f64 ? (const void *)&one_f64 : &one_f32; }

/* X^T op(A^T) = X^T, in place, A^T being the triangle of memory a. */
static void from_right(const Job *j, const char *uplo, const char *trans, const char *diag, const void *a, void *x)
{
    j->lapack->trsm("R", uplo, trans, diag, &j->k, &j->n, number_one(j), a, &j->n, x, &j->k, 1, 1, 1, 1);
}

static int32_t lu(const Job *j, int64_t i, char *scratch)
{
    int32_t info; /* a zero pivot is no error yet */
    (void)scratch;
    memcpy(out_of(j, 0, i), in_of(j, 0, i), j->out_bytes[0]);
    j->lapack->getrf(&j->n, &j->n, out_of(j, 0, i), &j->n, out_of(j, 1, i), &info);
    return 0;
}

static int32_t solve(const Job *j, int64_t i, char *scratch)
{
    const void *f = in_of(j, 0, i);
    const int32_t *pivot = in_of(j, 1, i);
    char *x = out_of(j, 0, i);
    int32_t info = zero_on_diagonal(j, f);
    bool transposed = j->flags & LINALG_TRANSPOSED;
    (void)scratch;
    if (info)
        return info;
    memcpy(x, in_of(j, 2, i), j->out_bytes[0]);
    if (j->k == 1) {
        j->lapack->getrs(transposed ? "N" : "T", &j->n, &j->k, f, &j->n, pivot, x, &j->n, &info, 1);
        return info;
    }
    for (int32_t d = 0; transposed && d < j->n; d++)
        exchange(j, x, d, pivot[d] - 1);
    from_right(j, transposed ? "L" : "U", transposed ? "T" : "N", transposed ? "U" : "N", f, x);
    from_right(j, transposed ? "U" : "L", transposed ? "T" : "N", transposed ? "N" : "U", f, x);
    for (int32_t d = j->n; !transposed && d-- > 0;)
        exchange(j, x, d, pivot[d] - 1);
    return 0;
}

static int32_t inv(const Job *j, int64_t i, char *scratch)
{
    int32_t info = zero_on_diagonal(j, in_of(j, 0, i));
    if (info)
        return info;
    memcpy(out_of(j, 0, i), in_of(j, 0, i), j->out_bytes[0]);
    j->lapack->getri(&j->n, out_of(j, 0, i), &j->n, in_of(j, 1, i), scratch, &j->lwork, &info);
    return info;
}

/* The product of U's diagonal, with the sign of the exchanges. */
static int32_t det(const Job *j, int64_t i, char *scratch)
{
    const void *f = in_of(j, 0, i);
    const int32_t *pivot = in_of(j, 1, i);
    double product = 1;
    (void)scratch;
    for (int32_t d = 0; d < j->n; d++) {
        double x = get(j, f, (int64_t)d * j->n + d);
        product *= pivot[d] == d + 1 ? x : -x;
    }
    set(j, out_of(j, 0, i), 0, product == 0 ? 0 : product); /* no -0 */
    return 0;
}

static int32_t slogdet(const Job *j, int64_t i, char *scratch)
{
    const void *f = in_of(j, 0, i);
    const int32_t *pivot = in_of(j, 1, i);
    double sign = 1, sum = 0;
    (void)scratch;
    for (int32_t d = 0; d < j->n; d++) {
        double x = get(j, f, (int64_t)d * j->n + d);
        sign *= x > 0 ? 1 : x < 0 ? -1 : x; /* 0, NaN */
        sign = pivot[d] == d + 1 ? sign : -sign;
        sum += log(fabs(x));
    }
    set(j, out_of(j, 0, i), 0, sign == 0 ? 0 : sign);
    set(j, out_of(j, 1, i), 0, sign == 0 ? -INFINITY : sum);
    return 0;
}

static int32_t cholesky(const Job *j, int64_t i, char *scratch)
{
    const char *a = in_of(j, 0, i);
    char *l = out_of(j, 0, i);
    size_t row = element(j) * (size_t)j->n;
    int32_t info;
    (void)scratch;
    for (int32_t d = 0; d < j->n; d++, a += row, l += row) {
        size_t below = element(j) * ((size_t)d + 1);
        memcpy(l, a, below);
        memset(l + below, 0, row - below);
    }
    j->lapack->potrf("U", &j->n, out_of(j, 0, i), &j->n, &info, 1);
    for (int32_t d = 0; info == 0 && d < j->n; d++) /* OpenBLAS takes NaN for positive */
        if (!(get(j, out_of(j, 0, i), (int64_t)d * j->n + d) > 0))
            info = d + 1;
    return info;
}

static int32_t triangular(const Job *j, int64_t i, char *scratch)
{
    const void *a = in_of(j, 0, i);
    const char *uplo = j->flags & LINALG_UPPER ? "L" : "U", *diag = j->flags & LINALG_UNIT ? "U" : "N";
    bool transposed = j->flags & LINALG_TRANSPOSED;
    int32_t info = j->flags & LINALG_UNIT ? 0 : zero_on_diagonal(j, a);
    void *x = out_of(j, 0, i);
    (void)scratch;
    if (info)
        return info;
    memcpy(x, in_of(j, 1, i), j->out_bytes[0]);
    if (j->k == 1)
        j->lapack->trsm("L", uplo, transposed ? "N" : "T", diag, &j->n, &j->k, number_one(j), a, &j->n, x, &j->n, 1, 1, 1, 1);
    else
        from_right(j, uplo, transposed ? "T" : "N", diag, a, x);
    return 0;
}

static int32_t qr(const Job *j, int64_t i, char *scratch)
{
    char *q = out_of(j, 0, i), *r = out_of(j, 1, i), *tau = scratch + j->work_bytes;
    size_t row = element(j) * (size_t)j->n;
    int32_t info;
    memcpy(q, in_of(j, 0, i), j->out_bytes[0]);
    j->lapack->gelqf(&j->n, &j->m, q, &j->n, tau, scratch, &j->lwork, &info);
    for (int32_t d = 0; d < j->n; d++) {
        size_t below = element(j) * (size_t)d;
        memset(r + row * (size_t)d, 0, below);
        memcpy(r + row * (size_t)d + below, q + row * (size_t)d + below, row - below);
    }
    if (info == 0)
        j->lapack->orglq(&j->n, &j->m, &j->n, q, &j->n, tau, scratch, &j->lwork, &info);
    return info;
}

static int32_t *iwork_of(const Job *j, char *scratch) { return (int32_t *)(void *)(scratch + j->work_bytes + j->spare_bytes); }

static int32_t eigh(const Job *j, int64_t i, char *scratch)
{
    const bool vectors = j->out[1] != NULL;
    const char *a = in_of(j, 0, i);
    char *v = vectors ? out_of(j, 1, i) : scratch + j->work_bytes;
    int32_t info;
    for (int32_t d = 0; d < j->n; d++)
        if (!is_finite(j, a + element(j) * (size_t)j->n * (size_t)d, d + 1))
            return NOT_FINITE;
    memcpy(v, a, j->in_bytes[0]);
    j->lapack->syevd(vectors ? "V" : "N", "U", &j->n, v, &j->n, out_of(j, 0, i), scratch, &j->lwork, iwork_of(j, scratch), &j->liwork,
                     &info, 1, 1);
    return info;
}

static int32_t svd(const Job *j, int64_t i, char *scratch)
{
    const bool vectors = j->out[1] != NULL;
    char *a = scratch + j->work_bytes, unused[2 * sizeof(double)] = {0};
    void *u = vectors ? out_of(j, 0, i) : unused, *vt = vectors ? out_of(j, 2, i) : unused, *s = out_of(j, vectors ? 1 : 0, i);
    int32_t info;
    if (!is_finite(j, in_of(j, 0, i), (int64_t)j->m * j->n))
        return NOT_FINITE;
    memcpy(a, in_of(j, 0, i), j->in_bytes[0]);
    j->lapack->gesdd(vectors ? "S" : "N", &j->n, &j->m, a, &j->n, s, vt, &j->n, u, &j->k, scratch, &j->lwork, iwork_of(j, scratch), &info,
                     1);
    return info;
}

/* ---- scratch ---- */

/* Asks LAPACK how much work space one matrix takes: lwork, liwork; spare_bytes: what else. */
static void ask(Job *j, Linalg function)
{
    const int32_t query = -1;
    int32_t info = 0, integers = 0;
    double answer[2] = {0}, other[2] = {0}, unused[2] = {0}; /* of either type */
    bool vectors = j->out[1] != NULL;
    switch (function) {
    case LINALG_INV: j->lapack->getri(&j->n, unused, &j->n, &integers, answer, &query, &info); break;
    case LINALG_QR:
        j->lapack->gelqf(&j->n, &j->m, unused, &j->n, unused, answer, &query, &info);
        j->lapack->orglq(&j->n, &j->m, &j->n, unused, &j->n, unused, other, &query, &info);
        j->spare_bytes = element(j) * (size_t)j->n; /* tau */
        break;
    case LINALG_EIGH:
    case LINALG_EIGVALSH:
        j->lapack->syevd(vectors ? "V" : "N", "U", &j->n, unused, &j->n, unused, answer, &query, &integers, &query, &info, 1, 1);
        j->spare_bytes = vectors ? 0 : j->in_bytes[0];
        j->liwork = integers;
        break;
    case LINALG_SVD:
    case LINALG_SVDVALS:
        j->lapack->gesdd(vectors ? "S" : "N", &j->n, &j->m, unused, &j->n, unused, unused, &j->n, unused, &j->k, answer, &query, &integers,
                         &info, 1);
        j->spare_bytes = j->in_bytes[0];
        j->liwork = 8 * j->k;
        break;
    case LINALG_LU:
    case LINALG_SOLVE:
    case LINALG_DET:
    case LINALG_SLOGDET:
    case LINALG_CHOLESKY:
    case LINALG_TRIANGULAR:
    case LINALG_COUNT: return;
    }
    double words = get(j, answer, 0), more = get(j, other, 0);
    words = (words > more ? words : more) * (1 + 2e-7) + 1; /* an f32 may have rounded it down */
    j->lwork = words < INT32_MAX ? (int32_t)words : INT32_MAX;
}

static size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* ---- all of them ---- */

static void run_some(void *arg, int64_t lo, int64_t hi, int thread)
{
    Job *j = arg;
    char *scratch = j->scratch ? j->scratch + j->scratch_bytes * (size_t)thread : NULL;
    for (int64_t i = lo; i < hi; i++)
        if (j->one(j, i, scratch) != 0) {
            int64_t before = atomic_load(&j->failed);
            while (i < before && !atomic_compare_exchange_weak(&j->failed, &before, i))
                ;
            return;
        }
}

static Status run_all(Job *j, double work)
{
    int threads = j->count > 1 && work >= PARALLEL_WORK ? pool_threads() : 1;
    j->work_bytes = aligned(element(j) * (size_t)j->lwork);
    j->spare_bytes = aligned(j->spare_bytes);
    j->scratch_bytes = j->work_bytes + j->spare_bytes + aligned(sizeof(int32_t) * (size_t)j->liwork);
    if ((int64_t)threads > j->count)
        threads = (int)j->count;
    if (j->scratch_bytes && !(j->scratch = os_alloc_aligned(64, j->scratch_bytes * (size_t)threads)))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    int64_t grain = 1 + j->count / (8 * (int64_t)threads);
    atomic_init(&j->failed, j->count);
    if (threads > 1)
        pool_run(j->count, grain, threads, run_some, j);
    else
        run_some(j, 0, j->count, 0);
    return ST_OK;
}

/* ---- what went wrong ---- */

/* Which of the matrices: "matrix [2,1]"; "the matrix" where there is one. */
static const char *which(const CallBuffer *a, int64_t i, char *text, size_t size)
{
    int64_t index[MAX_RANK];
    int lead = a->rank - 2;
    size_t at = (size_t)snprintf(text, size, lead > 0 ? "matrix [" : "the matrix");
    for (int d = lead; d-- > 0; i /= a->dim[d])
        index[d] = i % a->dim[d];
    for (int d = 0; d < lead && at < size; d++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRId64 "%s", d ? "," : "", index[d], d + 1 == lead ? "]" : "");
    return text;
}

static Status why(const Job *j, Linalg function, const char *who, const CallBuffer *a)
{
    char text[256];
    const char *matrix = which(a, j->failed, text, sizeof text);
    int32_t info = j->one(j, j->failed, j->scratch);
    if (info == NOT_FINITE)
        return fail(ST_INVALID, "%s: %s has elements that are NaN or infinite", who, matrix);
    if (info < 0)
        return fail(ST_INTERNAL, "%s: LAPACK refuses argument %d", who, (int)-info);
    switch (function) {
    case LINALG_CHOLESKY:
        return fail(ST_INVALID, "%s: %s is not positive definite: its leading %d x %d block of %d x %d is not", who, matrix, (int)info,
                    (int)info, (int)j->n, (int)j->n);
    case LINALG_SOLVE:
    case LINALG_INV: return fail(ST_INVALID, "%s: %s is singular: pivot %d of %d is 0", who, matrix, (int)info, (int)j->n);
    case LINALG_TRIANGULAR:
        return fail(ST_INVALID, "%s: %s is singular: element %d of the %d on its diagonal is 0", who, matrix, (int)info, (int)j->n);
    case LINALG_LU:
    case LINALG_DET:
    case LINALG_SLOGDET:
    case LINALG_QR:
    case LINALG_EIGH:
    case LINALG_EIGVALSH:
    case LINALG_SVD:
    case LINALG_SVDVALS:
    case LINALG_COUNT: break;
    }
    return fail(ST_INVALID, "%s: the iteration for %s did not converge (LAPACK: %d)", who, matrix, (int)info);
}

/* ---- a call ---- */

static size_t buffer_bytes(const CallBuffer *b, int64_t count)
{
    size_t bytes = dtype_bytes((DType)b->dtype);
    for (int d = 0; d < b->rank; d++)
        bytes *= (size_t)b->dim[d];
    return count ? bytes / (size_t)count : 0;
}

/* LAPACK counts with 32 bits: the elements of a matrix, and the columns of a right side. */
static Status check_size(const char *who, int64_t rows, int64_t columns)
{
    int64_t product;
    bool fits = !__builtin_mul_overflow(rows, columns, &product) && rows <= INT32_MAX && columns <= INT32_MAX && product <= INT32_MAX;
    return fits
               ? ST_OK
               : fail(ST_UNSUPPORTED, "%s: a matrix of more than 2^31 - 1 elements, or so many columns: LAPACK does not count as far", who);
}

static OneFn *const functions[LINALG_COUNT] = {[LINALG_LU] = lu,
                                               [LINALG_SOLVE] = solve,
                                               [LINALG_INV] = inv,
                                               [LINALG_DET] = det,
                                               [LINALG_SLOGDET] = slogdet,
                                               [LINALG_CHOLESKY] = cholesky,
                                               [LINALG_TRIANGULAR] = triangular,
                                               [LINALG_QR] = qr,
                                               [LINALG_EIGH] = eigh,
                                               [LINALG_EIGVALSH] = eigh,
                                               [LINALG_SVD] = svd,
                                               [LINALG_SVDVALS] = svd};

Status linalg_host(const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out, uint32_t n_out)
{
    LinalgAttr attr;
    char who[320];
    const Lapack *lapack;
    const CallBuffer *a = &in[0], *b = n_in > 1 ? &in[n_in - 1] : NULL;
    memcpy(&attr, callee->attributes, sizeof attr);
    snprintf(who, sizeof who, loc.file ? "%s (%s:%d)" : "%s", callee->name, path_name(loc.file), loc.line);
    if (lapack_open(&lapack) != ST_OK) {
        char text[768];
        snprintf(text, sizeof text, "%s", fail_message());
        return fail(ST_UNSUPPORTED, "%s: %s", who, text);
    }
    Job j = {.f64 = a->dtype == DT_F64, .one = functions[attr.function], .flags = attr.flags, .count = 1};
    j.lapack = &lapack[j.f64];
    TRY(check_size(who, a->dim[a->rank - 2], a->dim[a->rank - 1]));
    for (int d = 0; d < a->rank - 2; d++)
        j.count *= a->dim[d];
    j.m = (int32_t)a->dim[a->rank - 2];
    j.n = (int32_t)a->dim[a->rank - 1];
    j.k = j.m < j.n ? j.m : j.n;
    if (attr.function == LINALG_SOLVE || attr.function == LINALG_TRIANGULAR) {
        TRY(check_size(who, 1, b->dim[b->rank - 1]));
        j.k = (int32_t)b->dim[b->rank - 1];
    }
    for (uint32_t k = 0; k < n_in; k++) {
        j.in[k] = in[k].data;
        j.in_bytes[k] = buffer_bytes(&in[k], j.count);
    }
    for (uint32_t k = 0; k < n_out; k++) {
        j.out[k] = out[k].data;
        j.out_bytes[k] = buffer_bytes(&out[k], j.count);
    }
    bool empty = j.n == 0 || j.m == 0 || j.k == 0, has_none = attr.function != LINALG_DET && attr.function != LINALG_SLOGDET;
    if (j.count == 0 || (empty && has_none))
        return ST_OK;
    ask(&j, (Linalg)attr.function);
    if (j.lwork == INT32_MAX)
        return fail(ST_UNSUPPORTED, "%s: LAPACK needs more work space for such a matrix than it counts", who);
    Status status = run_all(&j, (double)j.count * j.m * j.n * j.k);
    if (status == ST_OK && j.failed < j.count)
        status = why(&j, (Linalg)attr.function, who, a);
    os_free(j.scratch);
    return status;
}

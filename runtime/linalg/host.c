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
#include "runtime/eval/pool.h"
#include "runtime/linalg/lapack.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { PARALLEL_WORK = 1 << 16 };

typedef struct Job Job;
/* Computes matrix i of the results with `scratch` of its own. 0, LAPACK's info, or NOT_FINITE. */
typedef int32_t OneFn(const Job *j, int64_t i, char *scratch);

struct Job {
    LinalgCall c;
    const Lapack *lapack;
    OneFn *one;
    int32_t lwork, liwork;
    size_t work_bytes, spare_bytes, scratch_bytes; /* scratch: work, spare, iwork */
    char *scratch;
    _Atomic int64_t failed; /* the first one; count: none */
};

/* ---- elements ---- */

static const void *in_of(const Job *j, int k, int64_t i) { return linalg_in(&j->c, k, i); }
static void *out_of(const Job *j, int k, int64_t i) { return linalg_out(&j->c, k, i); }
static double get(const Job *j, const void *a, int64_t at) { return linalg_get(j->c.f64, a, at); }
static void set(const Job *j, void *a, int64_t at, double value) { linalg_set(j->c.f64, a, at, value); }
static size_t element(const Job *j) { return linalg_element(&j->c); }

static Diagonal diagonal(const Job *j, const void *a) { return (Diagonal){a, j->c.f64, (int64_t)j->c.n + 1, j->c.n}; }

static int32_t zero_on_diagonal(const Job *j, const void *a)
{
    const Diagonal d = diagonal(j, a);
    return diagonal_zero(&d);
}

static bool is_finite(const Job *j, const void *a, int64_t n)
{
    double sum = 0; /* of zeros, or NaN */
    for (int64_t k = 0; k < n; k++)
        sum += 0 * get(j, a, k);
    return sum == 0;
}

/* Rows lo and hi of a matrix with j->c.k columns change places. */
static void exchange(const Job *j, char *x, int64_t lo, int64_t hi)
{
    char kept[512];
    size_t row = element(j) * (size_t)j->c.k;
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
static const void *number_one(const Job *j) { return j->c.f64 ? (const void *)&one_f64 : &one_f32; }

/* X^T op(A^T) = X^T, in place, A^T being the triangle of memory a. */
static void from_right(const Job *j, const char *uplo, const char *trans, const char *diag, const void *a, void *x)
{
    j->lapack->trsm("R", uplo, trans, diag, &j->c.k, &j->c.n, number_one(j), a, &j->c.n, x, &j->c.k, 1, 1, 1, 1);
}

static int32_t lu(const Job *j, int64_t i, char *scratch)
{
    int32_t info; /* a zero pivot is no error yet */
    (void)scratch;
    memcpy(out_of(j, 0, i), in_of(j, 0, i), j->c.out_bytes[0]);
    j->lapack->getrf(&j->c.n, &j->c.n, out_of(j, 0, i), &j->c.n, out_of(j, 1, i), &info);
    return 0;
}

static int32_t solve(const Job *j, int64_t i, char *scratch)
{
    const void *f = in_of(j, 0, i);
    const int32_t *pivot = in_of(j, 1, i);
    char *x = out_of(j, 0, i);
    int32_t info = zero_on_diagonal(j, f);
    bool transposed = j->c.flags & LINALG_TRANSPOSED;
    (void)scratch;
    if (info)
        return info;
    memcpy(x, in_of(j, 2, i), j->c.out_bytes[0]);
    if (j->c.k == 1) {
        j->lapack->getrs(transposed ? "N" : "T", &j->c.n, &j->c.k, f, &j->c.n, pivot, x, &j->c.n, &info, 1);
        return info;
    }
    for (int32_t d = 0; transposed && d < j->c.n; d++)
        exchange(j, x, d, pivot[d] - 1);
    from_right(j, transposed ? "L" : "U", transposed ? "T" : "N", transposed ? "U" : "N", f, x);
    from_right(j, transposed ? "U" : "L", transposed ? "T" : "N", transposed ? "N" : "U", f, x);
    for (int32_t d = j->c.n; !transposed && d-- > 0;)
        exchange(j, x, d, pivot[d] - 1);
    return 0;
}

static int32_t inv(const Job *j, int64_t i, char *scratch)
{
    int32_t info = zero_on_diagonal(j, in_of(j, 0, i));
    if (info)
        return info;
    memcpy(out_of(j, 0, i), in_of(j, 0, i), j->c.out_bytes[0]);
    j->lapack->getri(&j->c.n, out_of(j, 0, i), &j->c.n, in_of(j, 1, i), scratch, &j->lwork, &info);
    return info;
}

static int32_t det(const Job *j, int64_t i, char *scratch)
{
    const Diagonal d = diagonal(j, in_of(j, 0, i));
    (void)scratch;
    set(j, out_of(j, 0, i), 0, diagonal_det(&d, in_of(j, 1, i)));
    return 0;
}

static int32_t slogdet(const Job *j, int64_t i, char *scratch)
{
    const Diagonal d = diagonal(j, in_of(j, 0, i));
    double log_abs;
    (void)scratch;
    set(j, out_of(j, 0, i), 0, diagonal_slogdet(&d, in_of(j, 1, i), &log_abs));
    set(j, out_of(j, 1, i), 0, log_abs);
    return 0;
}

static int32_t cholesky(const Job *j, int64_t i, char *scratch)
{
    const char *a = in_of(j, 0, i);
    char *l = out_of(j, 0, i);
    size_t row = element(j) * (size_t)j->c.n;
    int32_t info;
    (void)scratch;
    for (int32_t d = 0; d < j->c.n; d++, a += row, l += row) {
        size_t below = element(j) * ((size_t)d + 1);
        memcpy(l, a, below);
        memset(l + below, 0, row - below);
    }
    j->lapack->potrf("U", &j->c.n, out_of(j, 0, i), &j->c.n, &info, 1);
    const Diagonal d = diagonal(j, out_of(j, 0, i));
    if (info == 0)
        info = diagonal_not_positive(&d); /* OpenBLAS takes NaN for positive */
    return info;
}

static int32_t triangular(const Job *j, int64_t i, char *scratch)
{
    const void *a = in_of(j, 0, i);
    const char *uplo = j->c.flags & LINALG_UPPER ? "L" : "U", *diag = j->c.flags & LINALG_UNIT ? "U" : "N";
    bool transposed = j->c.flags & LINALG_TRANSPOSED;
    int32_t info = j->c.flags & LINALG_UNIT ? 0 : zero_on_diagonal(j, a);
    void *x = out_of(j, 0, i);
    (void)scratch;
    if (info)
        return info;
    memcpy(x, in_of(j, 1, i), j->c.out_bytes[0]);
    if (j->c.k == 1)
        j->lapack->trsm("L", uplo, transposed ? "N" : "T", diag, &j->c.n, &j->c.k, number_one(j), a, &j->c.n, x, &j->c.n, 1, 1, 1, 1);
    else
        from_right(j, uplo, transposed ? "T" : "N", diag, a, x);
    return 0;
}

static int32_t qr(const Job *j, int64_t i, char *scratch)
{
    char *q = out_of(j, 0, i), *r = out_of(j, 1, i), *tau = scratch + j->work_bytes;
    size_t row = element(j) * (size_t)j->c.n;
    int32_t info;
    memcpy(q, in_of(j, 0, i), j->c.out_bytes[0]);
    j->lapack->gelqf(&j->c.n, &j->c.m, q, &j->c.n, tau, scratch, &j->lwork, &info);
    for (int32_t d = 0; d < j->c.n; d++) {
        size_t below = element(j) * (size_t)d;
        memset(r + row * (size_t)d, 0, below);
        memcpy(r + row * (size_t)d + below, q + row * (size_t)d + below, row - below);
    }
    if (info == 0)
        j->lapack->orglq(&j->c.n, &j->c.m, &j->c.n, q, &j->c.n, tau, scratch, &j->lwork, &info);
    return info;
}

static int32_t *iwork_of(const Job *j, char *scratch) { return (int32_t *)(void *)(scratch + j->work_bytes + j->spare_bytes); }

static int32_t eigh(const Job *j, int64_t i, char *scratch)
{
    const bool vectors = j->c.out[1] != NULL;
    const char *a = in_of(j, 0, i);
    char *v = vectors ? out_of(j, 1, i) : scratch + j->work_bytes;
    int32_t info;
    for (int32_t d = 0; d < j->c.n; d++)
        if (!is_finite(j, a + element(j) * (size_t)j->c.n * (size_t)d, d + 1))
            return NOT_FINITE;
    memcpy(v, a, j->c.in_bytes[0]);
    j->lapack->syevd(vectors ? "V" : "N", "U", &j->c.n, v, &j->c.n, out_of(j, 0, i), scratch, &j->lwork, iwork_of(j, scratch), &j->liwork,
                     &info, 1, 1);
    return info;
}

static int32_t svd(const Job *j, int64_t i, char *scratch)
{
    const bool vectors = j->c.out[1] != NULL;
    char *a = scratch + j->work_bytes, unused[2 * sizeof(double)] = {0};
    void *u = vectors ? out_of(j, 0, i) : unused, *vt = vectors ? out_of(j, 2, i) : unused, *s = out_of(j, vectors ? 1 : 0, i);
    int32_t info;
    if (!is_finite(j, in_of(j, 0, i), (int64_t)j->c.m * j->c.n))
        return NOT_FINITE;
    memcpy(a, in_of(j, 0, i), j->c.in_bytes[0]);
    j->lapack->gesdd(vectors ? "S" : "N", &j->c.n, &j->c.m, a, &j->c.n, s, vt, &j->c.n, u, &j->c.k, scratch, &j->lwork,
                     iwork_of(j, scratch), &info, 1);
    return info;
}

/* ---- scratch ---- */

/* Asks LAPACK how much work space one matrix takes: lwork, liwork; spare_bytes: what else. */
static void ask(Job *j, Linalg function)
{
    const int32_t query = -1;
    int32_t info = 0, integers = 0;
    double answer[2] = {0}, other[2] = {0}, unused[2] = {0}; /* of either type */
    bool vectors = j->c.out[1] != NULL;
    switch (function) {
    case LINALG_INV: j->lapack->getri(&j->c.n, unused, &j->c.n, &integers, answer, &query, &info); break;
    case LINALG_QR:
        j->lapack->gelqf(&j->c.n, &j->c.m, unused, &j->c.n, unused, answer, &query, &info);
        j->lapack->orglq(&j->c.n, &j->c.m, &j->c.n, unused, &j->c.n, unused, other, &query, &info);
        j->spare_bytes = element(j) * (size_t)j->c.n; /* tau */
        break;
    case LINALG_EIGH:
    case LINALG_EIGVALSH:
        j->lapack->syevd(vectors ? "V" : "N", "U", &j->c.n, unused, &j->c.n, unused, answer, &query, &integers, &query, &info, 1, 1);
        j->spare_bytes = vectors ? 0 : j->c.in_bytes[0];
        j->liwork = integers;
        break;
    case LINALG_SVD:
    case LINALG_SVDVALS:
        j->lapack->gesdd(vectors ? "S" : "N", &j->c.n, &j->c.m, unused, &j->c.n, unused, unused, &j->c.n, unused, &j->c.k, answer, &query,
                         &integers, &info, 1);
        j->spare_bytes = j->c.in_bytes[0];
        j->liwork = 8 * j->c.k;
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
    int threads = j->c.count > 1 && work >= PARALLEL_WORK ? pool_threads() : 1;
    j->work_bytes = aligned(element(j) * (size_t)j->lwork);
    j->spare_bytes = aligned(j->spare_bytes);
    j->scratch_bytes = j->work_bytes + j->spare_bytes + aligned(sizeof(int32_t) * (size_t)j->liwork);
    if ((int64_t)threads > j->c.count)
        threads = (int)j->c.count;
    if (j->scratch_bytes && !(j->scratch = os_alloc_aligned(64, j->scratch_bytes * (size_t)threads)))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    int64_t grain = 1 + j->c.count / (8 * (int64_t)threads);
    atomic_init(&j->failed, j->c.count);
    if (threads > 1)
        pool_run(j->c.count, grain, threads, run_some, j);
    else
        run_some(j, 0, j->c.count, 0);
    return ST_OK;
}

/* ---- a call ---- */

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
    const Lapack *lapack;
    Job j = {0};
    TRY(linalg_read(callee, loc, in, n_in, out, n_out, &j.c));
    if (lapack_open(&lapack) != ST_OK) {
        char text[768];
        snprintf(text, sizeof text, "%s", fail_message());
        return fail(ST_UNSUPPORTED, "%s: %s", j.c.who, text);
    }
    if (j.c.nothing)
        return ST_OK;
    j.lapack = &lapack[j.c.f64];
    j.one = functions[j.c.function];
    ask(&j, j.c.function);
    if (j.lwork == INT32_MAX)
        return fail(ST_UNSUPPORTED, "%s: LAPACK needs more work space for such a matrix than it counts", j.c.who);
    Status status = run_all(&j, (double)j.c.count * j.c.m * j.c.n * j.c.k);
    if (status == ST_OK && j.failed < j.c.count)
        status = linalg_failed(&j.c, j.failed, j.one(&j, j.failed, j.scratch), "LAPACK");
    os_free(j.scratch);
    return status;
}

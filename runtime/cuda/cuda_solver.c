/*
 * Linear algebra on a CUDA device: the calls of runtime/linalg/linalg.h by cuSOLVER, on matrices where they lie.
 *
 * The library is opened by name when the first call comes to a device, so that kiln runs without it. What it cannot do, or is not there
 * for, the host does, as it does without the library (*done = false): the log's topic `kernels` says why. Programs know nothing of it.
 *
 * Its matrices are column-major, kiln's row-major: as on the host (runtime/linalg/host.c) the same memory is the transpose there, and
 * what is asked of A is asked of A^T. Factors and pivots are LAPACK's, so that either place takes what the other one made. It has no
 * system from the right, so that a right side of several columns is transposed, and back.
 *
 *     A^T = P L U                   getrf
 *     A X = B                       getrs on B^T; the inverse: getrs on 1
 *     determinants                  the diagonal and the pivots are brought to the host
 *     A = L L^T                     potrf of the upper triangle of A^T
 *     A X = B, A a triangle         trsm of cuBLAS, which cuSOLVER is linked with
 *     A = Q R                       geqrf, orgqr of A transposed, as there is no gelqf
 *     A = V diag(w) V^T             syevd: the columns of V are rows here: V^T
 *     A = U diag(s) V^T             gesvd, for at least as many rows as columns: of A^T, or, where A is tall, of A transposed
 *
 * Matrices of a batch come one after the other on the stream. The host waits for what says whether they have a result: LAPACK's infos,
 * diagonals. So an error is told by the same call, in the same words, as on the host. Many small matrices are the host's: each call of
 * the library takes longer than one of LAPACK.
 *
 * Elements are moved by kernels of our own, as text for all devices (runtime/cuda/cuda_solver_ptx.c).
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_fd.h"
#include "jit/options.h"
#include "runtime/cuda/cuda.h"
#include "runtime/linalg/linalg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- the library ---------------------------------------------------------------------------------------------------- */

typedef enum SolverSym {
#define SOLVER_SYM(name, head, tail, parameters) SYM_##name,
#include "runtime/cuda/cuda_solver.def"
#undef SOLVER_SYM
    N_SOLVER_SYMS
} SolverSym;

typedef struct SolverFunctions {
#define SOLVER_SYM(name, head, tail, parameters) int(*name) parameters;
#include "runtime/cuda/cuda_solver.def"
#undef SOLVER_SYM
} SolverFunctions;

typedef struct Solver {
#define SOLVER_HANDLE(name, symbol, parameters) int(*name) parameters;
#include "runtime/cuda/cuda_solver.def"
#undef SOLVER_HANDLE
    SolverFunctions of[2]; /* f32, f64 */
    uint32_t has[2];       /* bits of SolverSym */
    char name[256];
} Solver;

static Solver *_Atomic opened; /* for ever */

static const char *const symbols[2][N_SOLVER_SYMS] = {
#define SOLVER_SYM(name, head, tail, parameters) #head "S" #tail,
    {
#include "runtime/cuda/cuda_solver.def"
    },
#undef SOLVER_SYM
#define SOLVER_SYM(name, head, tail, parameters) #head "D" #tail,
    {
#include "runtime/cuda/cuda_solver.def"
    },
#undef SOLVER_SYM
};

#define BIT(name) (1u << SYM_##name)
#define WITH_SIZE(name) (BIT(name##_size) | BIT(name))
/* What each function calls. */
static const uint32_t needs[LINALG_COUNT] = {
    [LINALG_LU] = WITH_SIZE(getrf),       [LINALG_SOLVE] = BIT(getrs),          [LINALG_INV] = BIT(getrs),
    [LINALG_CHOLESKY] = WITH_SIZE(potrf), [LINALG_TRIANGULAR] = BIT(trsm),      [LINALG_QR] = WITH_SIZE(geqrf) | WITH_SIZE(orgqr),
    [LINALG_EIGH] = WITH_SIZE(syevd),     [LINALG_EIGVALSH] = WITH_SIZE(syevd), [LINALG_SVD] = WITH_SIZE(gesvd),
    [LINALG_SVDVALS] = WITH_SIZE(gesvd),
};

static void load_symbols(void *library, Solver *s)
{
    void *address;
#define ONE(place, symbol)                        \
    address = os_library_symbol(library, symbol); \
    memcpy(&(place), &address, sizeof address);
#define SOLVER_HANDLE(name, symbol, parameters) ONE(s->name, #symbol)
#define SOLVER_SYM(name, head, tail, parameters)   \
    for (int t = 0; t < 2; t++) {                  \
        ONE(s->of[t].name, symbols[t][SYM_##name]) \
        s->has[t] |= address ? BIT(name) : 0;      \
    }
#include "runtime/cuda/cuda_solver.def"
#undef SOLVER_SYM
#undef SOLVER_HANDLE
#undef ONE
}

/* ST_UNSUPPORTED: why not. */
static Status open_first(Solver *s)
{
    static const char *const usual[] = {"libcusolver.so.12", "libcusolver.so.11"};
    char name[256], driver[256];
    option_text(OPT_LIBCUSOLVER, name, sizeof name);
    option_text(OPT_LIBCUDA, driver, sizeof driver);
    if (!name[0] && driver[0])
        return fail(ST_UNSUPPORTED, "KILN_LIBCUDA names a driver, but KILN_LIBCUSOLVER no cuSOLVER for it");
    for (int k = 0; k < (name[0] ? 1 : 2); k++) {
        snprintf(s->name, sizeof s->name, "%s", name[0] ? name : usual[k]);
        void *library = os_library_open(s->name);
        if (!library) {
            (void)fail(ST_UNSUPPORTED, "no cuSOLVER: %s", os_library_error());
            continue;
        }
        load_symbols(library, s);
        return s->create && s->set_stream ? ST_OK : fail(ST_UNSUPPORTED, "%s lacks cusolverDnCreate or cusolverDnSetStream", s->name);
    }
    return ST_UNSUPPORTED;
}

static Status open_library(const Solver **out)
{
    Solver *s = atomic_load_explicit(&opened, memory_order_acquire), *fresh;
    if ((*out = s))
        return ST_OK;
    if (!(fresh = os_calloc(1, sizeof *fresh)))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    OsLow low;
    int cancel = os_cancel_off();
    os_low_hold(&low); /* it may keep files open, as the driver does */
    Status status = open_first(fresh);
    os_low_release(&low);
    os_cancel_restore(cancel);
    if (status == ST_OK && atomic_compare_exchange_strong(&opened, &s, fresh)) {
        *out = fresh;
        return ST_OK;
    }
    os_free(fresh); /* or another thread was first, and s is its */
    *out = s;
    return status;
}

/* --- one call --------------------------------------------------------------------------------------------------------- */

enum { HELD = 8, COPIES = 4 }; /* at most, for any function */

typedef struct SolverWork {
    CudaRun *run;
    CudaDevice *device;
    CudaStream *stream;
    const LinalgCall *c;
    const Solver *solver;
    const SolverFunctions *f;
    void *handle;
    bool to_host;        /* the status says why the host has to do it */
    CudaHeld held[HELD]; /* device memory until the call is queued */
    char *copy[COPIES];  /* host memory until it is over */
    int n_held, n_copies;
} SolverWork;

static Status leave_to_host(SolverWork *w, Status why)
{
    w->to_host = true;
    return why;
}

/* What a function of the library returned. */
static Status check(SolverWork *w, int result, const char *what)
{
    const char *name = "unknown";
    bool host = false;
    if (result == 0)
        return ST_OK;
    switch (result) {
#define SOLVER_STATUS(value, text, does) \
    case value:                          \
        name = text;                     \
        host = does;                     \
        break;
#include "runtime/cuda/cuda_solver.def"
#undef SOLVER_STATUS
    default: break;
    }
    TRY(cuda_check(w->device, cuda.stream_synchronize(w->stream->stream), w->c->who)); /* the device may be what is wrong */
    Status why = fail(ST_DEVICE, "%s: %s fails in %s: %s (%d)", w->c->who, what, w->solver->name, name, result);
    return host ? leave_to_host(w, why) : why;
}

/* Its symbol for this call's dtype. */
#define CALL(w, name, ...) check((w), (w)->f->name((w)->handle, __VA_ARGS__), symbols[(w)->c->f64][SYM_##name])

/* Device memory until the end of the call. */
static Status take(SolverWork *w, size_t bytes, void *out)
{
    CuPointer pointer;
    bytes = bytes ? bytes : 1;
    Status status = cuda_alloc(w->device, w->stream, bytes, &pointer);
    if (status != ST_OK)
        return status == ST_OUT_OF_MEMORY && !atomic_load(&w->device->broken) ? leave_to_host(w, status) : status;
    w->held[w->n_held++] = (CudaHeld){pointer, bytes};
    void *address = (void *)(uintptr_t)pointer;
    memcpy(out, &address, sizeof address);
    return ST_OK;
}

static Status take_elements(SolverWork *w, int64_t n, void *out) { return take(w, linalg_element(w->c) * (size_t)n, out); }

/* An int for each matrix, where the library writes infos. */
static Status take_infos(SolverWork *w, int **info) { return take(w, sizeof **info * (size_t)w->c->count, info); }

static Status copy(SolverWork *w, void *to, const void *from, size_t bytes)
{
    CuResult result = cuda.copy_over((CuPointer)(uintptr_t)to, (CuPointer)(uintptr_t)from, bytes, w->stream->stream);
    return cuda_check(w->device, result, "copying on the device");
}

/* Waits for all that is queued, and for a copy in host memory until the end of the call. */
static Status bring(SolverWork *w, const void *from, size_t bytes, void *out)
{
    char *host = os_alloc(bytes + 1);
    if (!host)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    w->copy[w->n_copies++] = host;
    memcpy(out, &host, sizeof host);
    return cuda_copy_out(w->device, w->stream, host, (CuPointer)(uintptr_t)from, bytes);
}

/* Waits. Has one of the matrices no result? */
static Status check_infos(SolverWork *w, const int *info)
{
    const int *host = NULL;
    TRY(bring(w, info, sizeof *info * (size_t)w->c->count, &host));
    for (int64_t i = 0; i < w->c->count; i++)
        if (host[i])
            return linalg_failed(w->c, i, host[i], "cuSOLVER");
    return ST_OK;
}

/* --- kernels of our own ---------------------------------------------------------------------------------------------------- */

enum { MOVE_THREADS = 256, MOVE_BLOCKS = 4096 };

static const char *const kernel_names[] = {
#define SOLVER_KERNEL(name) "kiln_linalg_" #name,
    SOLVER_KERNELS
#undef SOLVER_KERNEL
};

static Status have_kernels(CudaDevice *d)
{
    Status status = ST_OK;
    CuFunction function[N_SOLVER_KERNELS];
    pthread_mutex_lock(&d->loops_lock);
    if (!d->solver_kernel[0]) {
        status = cuda_load_text(d, cuda_solver_ptx, "kiln_linalg", N_SOLVER_KERNELS, kernel_names, function);
        if (status == ST_OK)
            memcpy(d->solver_kernel, function, sizeof function);
    }
    pthread_mutex_unlock(&d->loops_lock);
    return status;
}

static Status launch(SolverWork *w, CudaSolverKernel kernel, int64_t elements, void *block)
{
    void *parameters[] = {block};
    int64_t blocks = (elements + MOVE_THREADS - 1) / MOVE_THREADS;
    CuResult result;
    if (elements == 0)
        return ST_OK;
    CUDA_WITH_ROOM(w->device, result,
                   cuda.launch(w->device->solver_kernel[kernel + (w->c->f64 ? 1 : 0)],
                               (unsigned)(blocks < MOVE_BLOCKS ? blocks : MOVE_BLOCKS), 1, 1, MOVE_THREADS, 1, 1, 0, w->stream->stream,
                               parameters, NULL));
    return cuda_check(w->device, result, kernel_names[kernel]);
}

/* Of `count` matrices: element (i, j) of rows x columns is that of memory at matrix * m + row * i + column * j where lo <= j - i <= hi,
 * else 0. */
typedef struct Move {
    int64_t count, rows, columns, matrix, row, column, lo, hi;
} Move;

#define ALL .lo = -INT64_MAX, .hi = INT64_MAX

static Status move(SolverWork *w, void *to, const void *from, const Move *of)
{
    struct {
        void *to;
        const void *from;
        int64_t total, rows, columns, matrix, row, column, lo, hi;
    } block = {to, from, of->count * of->rows * of->columns, of->rows, of->columns, of->matrix, of->row, of->column, of->lo, of->hi};
    return launch(w, SOLVER_MOVE4, block.total, &block);
}

/* rows x columns, row-major, as columns x rows. */
static Status turn(SolverWork *w, void *to, const void *from, int64_t count, int64_t rows, int64_t columns)
{
    return move(w, to, from, &(Move){count, columns, rows, .matrix = rows * columns, .row = 1, .column = columns, ALL});
}

/* The diagonals of all n x n matrices, in host memory, one after the other. */
static Status bring_diagonals(SolverWork *w, const void *a, const char **out)
{
    const int64_t n = w->c->n;
    void *there;
    TRY(take_elements(w, w->c->count * n, &there));
    TRY(move(w, there, a, &(Move){w->c->count, 1, n, .matrix = n * n, .column = n + 1, ALL}));
    return bring(w, there, linalg_element(w->c) * (size_t)(w->c->count * n), out);
}

static Diagonal diagonal_of(const LinalgCall *c, const char *diagonals, int64_t i)
{
    return (Diagonal){diagonals + linalg_element(c) * (size_t)(i * c->n), c->f64, 1, c->n};
}

/* Waits. Is an element wrong on the diagonal of one of the matrices? */
static Status check_diagonals(SolverWork *w, const void *a, int32_t (*wrong)(const Diagonal *))
{
    const char *diagonals;
    TRY(bring_diagonals(w, a, &diagonals));
    for (int64_t i = 0; i < w->c->count; i++) {
        const Diagonal d = diagonal_of(w->c, diagonals, i);
        int32_t info = wrong(&d);
        if (info)
            return linalg_failed(w->c, i, info, "cuSOLVER");
    }
    return ST_OK;
}

/* --- functions ---------------------------------------------------------------------------------------------------------------- */

/* Their enums. */
enum { OP_N = 0, OP_T = 1, LOWER = 0, UPPER = 1, LEFT = 0, RIGHT = 1, NON_UNIT = 0, UNIT = 1 };

/* Work space of `lwork` elements. */
static Status take_work(SolverWork *w, int lwork, void **work) { return take_elements(w, lwork > 0 ? lwork : 1, work); }

/* Rows that change places lie behind: whoever exchanges them relies on it. */
static bool are_pivots(const int32_t *pivot, int32_t n)
{
    for (int32_t d = 0; d < n; d++)
        if (pivot[d] <= d || pivot[d] > n)
            return false;
    return true;
}

/* What the library makes of a singular matrix, or of NaN, is not said: such factors are LAPACK's. */
static Status lu(SolverWork *w)
{
    const LinalgCall *c = w->c;
    int lwork, *info;
    const int *host = NULL;
    const int32_t *pivot = NULL;
    void *work;
    TRY(CALL(w, getrf_size, c->n, c->n, c->out[0], c->n, &lwork));
    TRY(take_work(w, lwork, &work));
    TRY(take_infos(w, &info));
    TRY(copy(w, c->out[0], c->in[0], c->in_bytes[0] * (size_t)c->count));
    for (int64_t i = 0; i < c->count; i++)
        TRY(CALL(w, getrf, c->n, c->n, linalg_out(c, 0, i), c->n, work, linalg_out(c, 1, i), &info[i]));
    TRY(bring(w, info, sizeof *info * (size_t)c->count, &host));
    TRY(bring(w, c->out[1], c->out_bytes[1] * (size_t)c->count, &pivot));
    for (int64_t i = 0; i < c->count; i++) {
        if (host[i] < 0)
            return linalg_failed(c, i, host[i], "cuSOLVER");
        if (host[i] > 0 || !are_pivots(pivot + i * c->n, c->n))
            return leave_to_host(w, fail(ST_UNSUPPORTED, "%s: matrix %" PRId64 " is singular, or has NaN", c->who, i));
    }
    return ST_OK;
}

static Status solve(SolverWork *w)
{
    const LinalgCall *c = w->c;
    const bool transposed = c->flags & LINALG_TRANSPOSED;
    const size_t bytes = c->in_bytes[2];
    char *x = c->out[0];
    int *info;
    TRY(check_diagonals(w, c->in[0], diagonal_zero));
    TRY(take_infos(w, &info));
    if (c->k > 1)
        TRY(take(w, bytes * (size_t)c->count, &x));
    TRY(c->k > 1 ? turn(w, x, c->in[2], c->count, c->n, c->k) : copy(w, x, c->in[2], bytes * (size_t)c->count));
    for (int64_t i = 0; i < c->count; i++)
        TRY(CALL(w, getrs, transposed ? OP_N : OP_T, c->n, c->k, linalg_in(c, 0, i), c->n, linalg_in(c, 1, i), x + bytes * (size_t)i, c->n,
                 &info[i]));
    return c->k > 1 ? turn(w, c->out[0], x, c->count, c->k, c->n) : ST_OK;
}

static Status inv(SolverWork *w)
{
    static const float one_f32 = 1;
    static const double one_f64 = 1;
    const LinalgCall *c = w->c;
    const char *number_one = c->f64 ? (const char *)&one_f64 : (const char *)&one_f32;
    void *one;
    int *info;
    TRY(check_diagonals(w, c->in[0], diagonal_zero));
    TRY(take_infos(w, &info));
    TRY(take_elements(w, 1, &one));
    TRY(cuda_copy_in(w->device, w->stream, (CuPointer)(uintptr_t)one, number_one, linalg_element(c)));
    TRY(move(w, c->out[0], one, &(Move){.count = c->count, .rows = c->n, .columns = c->n})); /* on the diagonal */
    for (int64_t i = 0; i < c->count; i++)
        TRY(CALL(w, getrs, OP_N, c->n, c->n, linalg_in(c, 0, i), c->n, linalg_in(c, 1, i), linalg_out(c, 0, i), c->n, &info[i]));
    return ST_OK;
}

/* Both determinants. */
static Status determinant(SolverWork *w)
{
    const LinalgCall *c = w->c;
    const bool logarithm = c->function == LINALG_SLOGDET;
    const size_t bytes = linalg_element(c) * (size_t)c->count;
    const char *diagonals;
    const int32_t *pivot = NULL;
    char *value = os_alloc(2 * bytes + 1);
    if (!value)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    w->copy[w->n_copies++] = value;
    TRY(bring_diagonals(w, c->in[0], &diagonals));
    TRY(bring(w, c->in[1], sizeof *pivot * (size_t)(c->count * c->n), &pivot));
    for (int64_t i = 0; i < c->count; i++) {
        const Diagonal d = diagonal_of(c, diagonals, i);
        double log_abs = 0;
        linalg_set(c->f64, value, i, logarithm ? diagonal_slogdet(&d, pivot + i * c->n, &log_abs) : diagonal_det(&d, pivot + i * c->n));
        linalg_set(c->f64, value + bytes, i, log_abs);
    }
    for (int k = 0; k < (logarithm ? 2 : 1); k++)
        TRY(cuda_copy_in(w->device, w->stream, (CuPointer)(uintptr_t)c->out[k], value + bytes * (size_t)k, bytes));
    return ST_OK;
}

static Status cholesky(SolverWork *w)
{
    const LinalgCall *c = w->c;
    const int64_t n = c->n;
    int lwork, *info;
    void *work;
    TRY(CALL(w, potrf_size, UPPER, c->n, c->out[0], c->n, &lwork));
    TRY(take_work(w, lwork, &work));
    TRY(take_infos(w, &info));
    TRY(move(w, c->out[0], c->in[0], &(Move){c->count, n, n, .matrix = n * n, .row = n, .column = 1, .lo = -n, .hi = 0}));
    for (int64_t i = 0; i < c->count; i++)
        TRY(CALL(w, potrf, UPPER, c->n, linalg_out(c, 0, i), c->n, work, lwork, &info[i]));
    TRY(check_infos(w, info));
    return check_diagonals(w, c->out[0], diagonal_not_positive);
}

static Status triangular(SolverWork *w)
{
    static const float one_f32 = 1;
    static const double one_f64 = 1;
    const LinalgCall *c = w->c;
    const void *one = c->f64 ? (const void *)&one_f64 : (const void *)&one_f32;
    const bool transposed = c->flags & LINALG_TRANSPOSED, column = c->k == 1;
    const int uplo = c->flags & LINALG_UPPER ? LOWER : UPPER, diag = c->flags & LINALG_UNIT ? UNIT : NON_UNIT;
    const int trans = transposed == column ? OP_N : OP_T;
    if (diag == NON_UNIT)
        TRY(check_diagonals(w, c->in[0], diagonal_zero));
    TRY(copy(w, c->out[0], c->in[1], c->in_bytes[1] * (size_t)c->count));
    for (int64_t i = 0; i < c->count; i++)
        TRY(CALL(w, trsm, column ? LEFT : RIGHT, uplo, trans, diag, column ? c->n : c->k, column ? 1 : c->n, one, linalg_in(c, 0, i), c->n,
                 linalg_out(c, 0, i), column ? c->n : c->k));
    return ST_OK;
}

/* Waits, before iterations on what is not finite, which need not end. Are all elements finite, or those of the lower triangle? */
static Status check_finite(SolverWork *w, bool lower)
{
    const LinalgCall *c = w->c;
    const int64_t elements = (int64_t)c->m * c->n;
    const int *host = NULL;
    struct {
        int *to;
        const void *from;
        int64_t total, rows, columns, lo, hi;
    } block = {NULL, c->in[0], c->count * elements, c->m, c->n, -INT64_MAX, lower ? 0 : INT64_MAX};
    TRY(take_infos(w, &block.to));
    TRY(cuda_check(w->device, cuda.fill_bytes((CuPointer)(uintptr_t)block.to, 0, sizeof(int) * (size_t)c->count, w->stream->stream),
                   "clearing memory"));
    TRY(launch(w, SOLVER_FINITE4, block.total, &block));
    TRY(bring(w, block.to, sizeof(int) * (size_t)c->count, &host));
    for (int64_t i = 0; i < c->count; i++)
        if (host[i])
            return linalg_failed(c, i, NOT_FINITE, "cuSOLVER");
    return ST_OK;
}

static Status qr(SolverWork *w)
{
    const LinalgCall *c = w->c;
    const int64_t m = c->m, n = c->n;
    int sizes[2], *info;
    void *turned, *tau, *work;
    TRY(take_elements(w, m * n, &turned));
    TRY(take_elements(w, n, &tau));
    TRY(CALL(w, geqrf_size, c->m, c->n, turned, c->m, &sizes[0]));
    TRY(CALL(w, orgqr_size, c->m, c->n, c->n, turned, c->m, tau, &sizes[1]));
    const int lwork = sizes[0] > sizes[1] ? sizes[0] : sizes[1];
    TRY(take_work(w, lwork, &work));
    TRY(take_infos(w, &info));
    for (int64_t i = 0; i < c->count; i++) {
        TRY(turn(w, turned, linalg_in(c, 0, i), 1, m, n));
        TRY(CALL(w, geqrf, c->m, c->n, turned, c->m, tau, work, lwork, &info[i]));
        TRY(move(w, linalg_out(c, 1, i), turned, &(Move){1, n, n, .row = 1, .column = m, .lo = 0, .hi = n}));
        TRY(CALL(w, orgqr, c->m, c->n, c->n, turned, c->m, tau, work, lwork, &info[i]));
        TRY(turn(w, linalg_out(c, 0, i), turned, 1, n, m));
    }
    return check_infos(w, info);
}

static Status eigh(SolverWork *w)
{
    const LinalgCall *c = w->c;
    const int job = c->function == LINALG_EIGH; /* with vectors */
    int lwork, *info;
    void *work, *own = NULL;
    TRY(check_finite(w, true));
    TRY(CALL(w, syevd_size, job, UPPER, c->n, c->in[0], c->n, c->out[0], &lwork));
    TRY(take_work(w, lwork, &work));
    TRY(take_infos(w, &info));
    if (!job)
        TRY(take(w, c->in_bytes[0], &own));
    for (int64_t i = 0; i < c->count; i++) {
        void *v = job ? linalg_out(c, 1, i) : own;
        TRY(copy(w, v, linalg_in(c, 0, i), c->in_bytes[0]));
        TRY(CALL(w, syevd, job, UPPER, c->n, v, c->n, linalg_out(c, 0, i), work, lwork, &info[i]));
    }
    return check_infos(w, info);
}

static Status svd(SolverWork *w)
{
    const LinalgCall *c = w->c;
    const bool vectors = c->function == LINALG_SVD, tall = c->m > c->n;
    const int rows = tall ? c->m : c->n, columns = tall ? c->n : c->m; /* as the library sees it */
    const signed char job = vectors ? 'S' : 'N';
    int lwork, *info;
    void *work, *a, *left = NULL, *right = NULL;
    TRY(check_finite(w, false));
    TRY(CALL(w, gesvd_size, rows, columns, &lwork));
    TRY(take_work(w, lwork, &work));
    TRY(take_infos(w, &info));
    TRY(take(w, c->in_bytes[0], &a));
    if (vectors && tall) {
        TRY(take(w, c->out_bytes[0], &left));
        TRY(take(w, c->out_bytes[2], &right));
    }
    for (int64_t i = 0; i < c->count; i++) {
        TRY(tall ? turn(w, a, linalg_in(c, 0, i), 1, c->m, c->n) : copy(w, a, linalg_in(c, 0, i), c->in_bytes[0]));
        if (vectors && !tall) { /* A^T = V diag(s) U^T */
            left = linalg_out(c, 2, i);
            right = linalg_out(c, 0, i);
        }
        TRY(CALL(w, gesvd, job, job, rows, columns, a, rows, linalg_out(c, vectors ? 1 : 0, i), left, rows, right, columns, work, lwork,
                 NULL, &info[i]));
        if (vectors && tall) {
            TRY(turn(w, linalg_out(c, 0, i), left, 1, c->n, c->m));
            TRY(turn(w, linalg_out(c, 2, i), right, 1, c->n, c->n));
        }
    }
    return check_infos(w, info);
}

typedef Status SolverFn(SolverWork *w);
static SolverFn *const functions[LINALG_COUNT] = {
    [LINALG_LU] = lu,
    [LINALG_SOLVE] = solve,
    [LINALG_INV] = inv,
    [LINALG_DET] = determinant,
    [LINALG_SLOGDET] = determinant,
    [LINALG_CHOLESKY] = cholesky,
    [LINALG_TRIANGULAR] = triangular,
    [LINALG_QR] = qr,
    [LINALG_EIGH] = eigh,
    [LINALG_EIGVALSH] = eigh,
    [LINALG_SVD] = svd,
    [LINALG_SVDVALS] = svd,
};

/* --- all of it -------------------------------------------------------------------------------------------------------------------- */

/* The handle of this thread's stream; of the library itself, or of cuBLAS. */
static Status have_handle(SolverWork *w)
{
    const bool blas = w->c->function == LINALG_TRIANGULAR;
    void **place = blas ? &w->stream->blas : &w->stream->solver, *handle = NULL;
    if (!*place) {
        OsLow low;
        int cancel = os_cancel_off();
        os_low_hold(&low);
        int result = blas ? w->solver->blas_create(&handle) : w->solver->create(&handle);
        os_low_release(&low);
        os_cancel_restore(cancel);
        TRY(check(w, result, blas ? "cublasCreate_v2" : "cusolverDnCreate"));
        TRY(check(w, blas ? w->solver->blas_set_stream(handle, w->stream->stream) : w->solver->set_stream(handle, w->stream->stream),
                  blas ? "cublasSetStream_v2" : "cusolverDnSetStream"));
        *place = handle;
    }
    w->handle = *place;
    return ST_OK;
}

/* The first symbol that the call needs and the library lacks; NULL: none. */
static const char *lacks(const Solver *s, const LinalgCall *c)
{
    if ((needs[c->function] & BIT(trsm)) && !(s->blas_create && s->blas_set_stream))
        return "cublasCreate_v2 or cublasSetStream_v2";
    uint32_t missing = needs[c->function] & ~s->has[c->f64];
    return missing ? symbols[c->f64][__builtin_ctz(missing)] : NULL;
}

enum { FEW = 8, SMALL = 64 };

static Status compute(SolverWork *w)
{
    const LinalgCall *c = w->c;
    const char *missing = lacks(w->solver, c);
    if (missing)
        return leave_to_host(w, fail(ST_UNSUPPORTED, "%s: %s lacks %s", c->who, w->solver->name, missing));
    if (needs[c->function] && c->count > FEW && c->m < SMALL && c->n < SMALL)
        return leave_to_host(
            w, fail(ST_UNSUPPORTED, "%s: %" PRId64 " matrices of %d x %d are many and small", c->who, c->count, (int)c->m, (int)c->n));
    if (c->nothing)
        return ST_OK;
    TRY(cuda_run_flush(w->run));
    Status status = have_kernels(w->device);
    if (status != ST_OK)
        return atomic_load(&w->device->broken) ? status : leave_to_host(w, status);
    if (needs[c->function])
        TRY(have_handle(w));
    bool timed = cuda_perf_begin(w->run);
    status = functions[c->function](w);
    if (timed)
        cuda_perf_end(w->run);
    return status;
}

Status cuda_run_linalg(CudaRun *run, const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out,
                       uint32_t n_out, bool *done)
{
    LinalgCall c;
    SolverWork w = {.run = run, .device = run->device, .stream = run->stream, .c = &c};
    *done = true;
    TRY(linalg_read(callee, loc, in, n_in, out, n_out, &c));
    Status status = open_library(&w.solver);
    if (status != ST_OK)
        w.to_host = status == ST_UNSUPPORTED;
    else {
        w.f = &w.solver->of[c.f64];
        status = compute(&w);
    }
    for (int k = 0; k < w.n_held; k++)
        cuda_free(w.device, cuda_bit(w.stream), w.held[k].pointer, w.held[k].bytes);
    for (int k = 0; k < w.n_copies; k++)
        os_free(w.copy[k]);
    if (!w.to_host)
        return status;
    if (log_on(LOG_KERNELS))
        log_line(LOG_KERNELS, "cuda:%d: the host computes %s: %s", w.device->ordinal, callee->name, fail_message());
    *done = false;
    return ST_OK;
}

/* What calls of linear algebra have in common wherever they run (linalg.h). */
#include "runtime/linalg/linalg.h"
#include "ir/base/path.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- diagonals ---- */

static double on_diagonal(const Diagonal *d, int32_t i) { return linalg_get(d->f64, d->data, i * d->step); }

int32_t diagonal_zero(const Diagonal *d)
{
    for (int32_t i = 0; i < d->n; i++)
        if (on_diagonal(d, i) == 0)
            return i + 1;
    return 0;
}

int32_t diagonal_not_positive(const Diagonal *d)
{
    for (int32_t i = 0; i < d->n; i++)
        if (!(on_diagonal(d, i) > 0))
            return i + 1;
    return 0;
}

double diagonal_det(const Diagonal *d, const int32_t *pivot)
{
    double product = 1;
    for (int32_t i = 0; i < d->n; i++)
        product *= pivot[i] == i + 1 ? on_diagonal(d, i) : -on_diagonal(d, i);
    return product == 0 ? 0 : product; /* no -0 */
}

double diagonal_slogdet(const Diagonal *d, const int32_t *pivot, double *log_abs)
{
    double sign = 1, sum = 0;
    for (int32_t i = 0; i < d->n; i++) {
        double x = on_diagonal(d, i);
        sign *= x > 0 ? 1 : x < 0 ? -1 : x; /* 0, NaN */
        sign = pivot[i] == i + 1 ? sign : -sign;
        sum += log(fabs(x));
    }
    *log_abs = sign == 0 ? -INFINITY : sum;
    return sign == 0 ? 0 : sign;
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

Status linalg_failed(const LinalgCall *c, int64_t i, int32_t info, const char *library)
{
    char text[256];
    const char *matrix = which(c->a, i, text, sizeof text);
    if (info == NOT_FINITE)
        return fail(ST_INVALID, "%s: %s has elements that are NaN or infinite", c->who, matrix);
    if (info < 0)
        return fail(ST_INTERNAL, "%s: %s refuses argument %d", c->who, library, (int)-info);
    switch (c->function) {
    case LINALG_CHOLESKY:
        return fail(ST_INVALID, "%s: %s is not positive definite: its leading %d x %d block of %d x %d is not", c->who, matrix, (int)info,
                    (int)info, (int)c->n, (int)c->n);
    case LINALG_SOLVE:
    case LINALG_INV: return fail(ST_INVALID, "%s: %s is singular: pivot %d of %d is 0", c->who, matrix, (int)info, (int)c->n);
    case LINALG_TRIANGULAR:
        return fail(ST_INVALID, "%s: %s is singular: element %d of the %d on its diagonal is 0", c->who, matrix, (int)info, (int)c->n);
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
    return fail(ST_INVALID, "%s: the iteration for %s did not converge (%s: %d)", c->who, matrix, library, (int)info);
}

/* ---- a call ---- */

static size_t buffer_bytes(const CallBuffer *b, int64_t count)
{
    size_t bytes = dtype_bytes((DType)b->dtype);
    for (int d = 0; d < b->rank; d++)
        bytes *= (size_t)b->dim[d];
    return count ? bytes / (size_t)count : 0;
}

/* The libraries count with 32 bits: the elements of a matrix, and the columns of a right side. */
static Status check_size(const char *who, int64_t rows, int64_t columns)
{
    int64_t product;
    bool fits = !__builtin_mul_overflow(rows, columns, &product) && rows <= INT32_MAX && columns <= INT32_MAX && product <= INT32_MAX;
    return fits
               ? ST_OK
               : fail(ST_UNSUPPORTED, "%s: a matrix of more than 2^31 - 1 elements, or so many columns: LAPACK does not count as far", who);
}

Status linalg_read(const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out, uint32_t n_out, LinalgCall *c)
{
    LinalgAttr attr;
    const CallBuffer *a = &in[0], *b = n_in > 1 ? &in[n_in - 1] : NULL;
    memcpy(&attr, callee->attributes, sizeof attr);
    *c = (LinalgCall){.function = (Linalg)attr.function, .flags = attr.flags, .f64 = a->dtype == DT_F64, .count = 1, .a = a};
    snprintf(c->who, sizeof c->who, loc.file ? "%s (%s:%d)" : "%s", callee->name, path_name(loc.file), loc.line);
    TRY(check_size(c->who, a->dim[a->rank - 2], a->dim[a->rank - 1]));
    for (int d = 0; d < a->rank - 2; d++)
        c->count *= a->dim[d];
    c->m = (int32_t)a->dim[a->rank - 2];
    c->n = (int32_t)a->dim[a->rank - 1];
    c->k = c->m < c->n ? c->m : c->n;
    if (c->function == LINALG_SOLVE || c->function == LINALG_TRIANGULAR) {
        TRY(check_size(c->who, 1, b->dim[b->rank - 1]));
        c->k = (int32_t)b->dim[b->rank - 1];
    }
    for (uint32_t k = 0; k < n_in; k++) {
        c->in[k] = in[k].data;
        c->in_bytes[k] = buffer_bytes(&in[k], c->count);
    }
    for (uint32_t k = 0; k < n_out; k++) {
        c->out[k] = out[k].data;
        c->out_bytes[k] = buffer_bytes(&out[k], c->count);
    }
    bool empty = c->n == 0 || c->m == 0 || c->k == 0, has_none = c->function != LINALG_DET && c->function != LINALG_SLOGDET;
    c->nothing = c->count == 0 || (empty && has_none);
    return ST_OK;
}

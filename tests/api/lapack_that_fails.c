/*
 * A library with the names of runtime/linalg/lapack.def, whose iterations do not converge: a real one's do so rarely that no test can wait
 * for it. Functions that test_linalg.c does not come to are names alone.
 */
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define NAME(name)       \
    API void name(void); \
    void name(void) {}

NAME(sgetrf_)
NAME(sgetrs_)
NAME(sgetri_)
NAME(spotrf_)
NAME(strsm_)
NAME(sgelqf_)
NAME(sorglq_)
NAME(ssyevd_)
NAME(sgesdd_)
NAME(dgetrf_)
NAME(dgetrs_)
NAME(dgetri_)
NAME(dpotrf_)
NAME(dtrsm_)
NAME(dgelqf_)
NAME(dorglq_)

enum { NOT_CONVERGED = 2 };

API void dsyevd_(const char *jobz, const char *uplo, const int32_t *n, double *a, const int32_t *lda, double *w, double *work,
                 const int32_t *lwork, int32_t *iwork, const int32_t *liwork, int32_t *info, size_t jobz_length, size_t uplo_length);
void dsyevd_(const char *jobz, const char *uplo, const int32_t *n, double *a, const int32_t *lda, double *w, double *work,
             const int32_t *lwork, int32_t *iwork, const int32_t *liwork, int32_t *info, size_t jobz_length, size_t uplo_length)
{
    (void)jobz, (void)uplo, (void)n, (void)lda, (void)w, (void)liwork, (void)jobz_length, (void)uplo_length;
    if (*lwork < 0) {
        work[0] = 1;
        iwork[0] = 1;
    }
    *info = *lwork < 0 || a[0] < 100 ? 0 : NOT_CONVERGED; /* of a matrix that begins with a large number */
}

API void dgesdd_(const char *jobz, const int32_t *m, const int32_t *n, double *a, const int32_t *lda, double *s, double *u,
                 const int32_t *ldu, double *vt, const int32_t *ldvt, double *work, const int32_t *lwork, int32_t *iwork, int32_t *info,
                 size_t jobz_length);
void dgesdd_(const char *jobz, const int32_t *m, const int32_t *n, double *a, const int32_t *lda, double *s, double *u, const int32_t *ldu,
             double *vt, const int32_t *ldvt, double *work, const int32_t *lwork, int32_t *iwork, int32_t *info, size_t jobz_length)
{
    (void)jobz, (void)m, (void)n, (void)lda, (void)a, (void)s, (void)u, (void)ldu, (void)vt, (void)ldvt, (void)iwork, (void)jobz_length;
    if (*lwork < 0)
        work[0] = 1;
    *info = *lwork < 0 ? 0 : NOT_CONVERGED;
}

/*
 * Linear algebra: what CUSTOM nodes of ir/linalg.def call.
 *
 *     kiln_solve (runtime/api/linalg.c) --> CUSTOM kiln.lu, CUSTOM kiln.solve --> a step CALL --> linalg_host --> LAPACK (lapack.h)
 *                                     on a CUDA device, where it can --> cuda_run_linalg --> cuSOLVER (runtime/cuda/cuda_solver.c)
 *
 * call.c holds what they have in common: how a call is read, what is wrong with a matrix, and in which words that is told.
 */
#ifndef RUNTIME_LINALG_H
#define RUNTIME_LINALG_H

#include "ir/linalg.h"

#include <stddef.h>

CallHost linalg_host;

/* The same on the run's CUDA device, where operands and results lie; queued after what is queued. *done = false: the host has to do it,
 * and why is logged. */
struct CudaRun;
Status cuda_run_linalg(struct CudaRun *run, const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out,
                       uint32_t n_out, bool *done);

/* A call, read. */
typedef struct LinalgCall {
    Linalg function;
    uint32_t flags;
    bool f64;
    bool nothing; /* there is nothing to compute */
    int64_t count;
    int32_t m, n, k; /* ir/linalg.def; k: columns of B, or the lesser of m and n */
    const char *in[3];
    char *out[3];
    size_t in_bytes[3], out_bytes[3]; /* of one matrix */
    const CallBuffer *a;              /* the first operand, for messages */
    char who[320];                    /* "kiln.solve (fit.c:31)" */
} LinalgCall;

/* ST_UNSUPPORTED: a matrix is larger than the libraries count. */
Status linalg_read(const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out, uint32_t n_out,
                   LinalgCall *call);

static inline size_t linalg_element(const LinalgCall *c) { return c->f64 ? sizeof(double) : sizeof(float); }

/* Matrix i of an operand or result; without elements it may be NULL. */
static inline const void *linalg_in(const LinalgCall *c, int k, int64_t i) { return i ? c->in[k] + c->in_bytes[k] * (size_t)i : c->in[k]; }
static inline void *linalg_out(const LinalgCall *c, int k, int64_t i) { return i ? c->out[k] + c->out_bytes[k] * (size_t)i : c->out[k]; }

static inline double linalg_get(bool f64, const void *a, int64_t at)
{
    return f64 ? ((const double *)a)[at] : (double)((const float *)a)[at];
}

static inline void linalg_set(bool f64, void *a, int64_t at, double value)
{
    if (f64)
        ((double *)a)[at] = value;
    else
        ((float *)a)[at] = (float)value;
}

/* The diagonal of a matrix: n elements in memory of the host, one every `step`. */
typedef struct Diagonal {
    const void *data;
    bool f64;
    int64_t step;
    int32_t n;
} Diagonal;

/* The first one that is zero, or is not positive, counted from 1; 0: none. */
int32_t diagonal_zero(const Diagonal *d);
int32_t diagonal_not_positive(const Diagonal *d);
/* Of factors with these pivots: the determinant; its sign, and the logarithm of its size. */
double diagonal_det(const Diagonal *d, const int32_t *pivot);
double diagonal_slogdet(const Diagonal *d, const int32_t *pivot, double *log_abs);

enum { NOT_FINITE = -1000 };
/* Why matrix i has no result: LAPACK's info, counted as above, or NOT_FINITE. library: whose info it is. */
Status linalg_failed(const LinalgCall *c, int64_t i, int32_t info, const char *library);

#endif

/*
 * The workloads that kiln is measured by, as programs over the public interface. Used by the demo, the bench
 * and bench/gpu.
 *
 * A workload makes its inputs once and then records the same graph again and again; inputs rotate over sets so that the
 * cache does not hold them. `small` divides the sizes, for a quick look and for tests: 0 none, 1 an eighth, 3 tiny.
 */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H

#include <kiln.h>

enum { WORKLOAD_INPUTS = 4 };

/* Evenly distributed values. A dim is divided by 8 for each step of `small` down to 16, unless it is fixed. */
typedef struct WorkloadInput {
    int rank;
    int64_t dim[2];
    bool fixed[2];
    double low, high; /* both 0: a weight, scaled so that the layer keeps the size of its input */
} WorkloadInput;

/* An input on the host, for a reference: rows x columns, columns 1 for rank 1. */
typedef struct HostInput {
    const float *data;
    int64_t rows, columns;
} HostInput;

typedef struct Workload {
    const char *name;     /* short: "a", "softmax" */
    const char *formula;  /* what it computes */
    const char *size;     /* at full size */
    kiln_dtype dtype;     /* of its inputs; the contractions also make sense in others */
    int n_inputs, n_read; /* of the inputs the first n_read matter for the result */
    WorkloadInput input[WORKLOAD_INPUTS];
    kiln_tensor *(*graph)(kiln_tensor **in); /* records; never computes */
    /* Row `row` of the result in f64, from the rows of the first input and the other inputs. */
    void (*reference)(const HostInput *in, int64_t row, double *out);
    bool sums; /* the result is the sum of what `reference` gives for all rows */
} Workload;

extern const Workload workloads[];
extern const int n_workloads;

const Workload *workload_named(const char *name); /* NULL: none */
kiln_shape workload_shape(const Workload *w, int input, int small);
void workload_range(const Workload *w, int input, int small, double *low, double *high);
/* Makes the inputs from kiln's generator and evaluates them. */
kiln_status workload_inputs(const Workload *w, kiln_dtype dtype, int small, kiln_tensor **in);

#endif

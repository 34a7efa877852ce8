/*
 * The workloads that kiln is measured by, as programs over the public interface. Used by the demo and the bench.
 *
 * A workload makes its inputs once and then records the same graph again and again; inputs rotate over `sets` so that the
 * cache does not hold them. `small` divides the sizes, for a quick look and for tests.
 */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H

#include <kiln.h>

enum { WORKLOAD_INPUTS = 4 };

typedef struct Workload {
    const char *name;    /* short: "a", "softmax" */
    const char *formula; /* what it computes */
    const char *size;    /* at full size */
    int n_inputs;        /* of these the first `rotating` are made once per set */
    int rotating;
    kiln_status (*inputs)(kiln_tensor **in, int small); /* makes and evaluates them */
    kiln_tensor *(*graph)(kiln_tensor **in);            /* records; never computes */
} Workload;

extern const Workload workloads[];
extern const int n_workloads;

const Workload *workload_named(const char *name); /* NULL: none */

#endif

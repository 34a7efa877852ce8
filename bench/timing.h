/*
 * Measuring: a clock, medians, and threads that run a loop on all CPUs. Needs nothing from kiln.
 *
 * Memory bandwidth of a machine is not steady, so nothing here is compared across runs: whoever wants a ratio measures both
 * sides in turns, round after round, and takes the median of the ratios.
 */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stddef.h>

enum { MAX_ROUNDS = 201 };

double now_seconds(void);
double median(const double *values, int n); /* values stay as they are */
int cpu_count(void);

/* Runs fn(arg, part, parts) for every part on `parts` threads (the caller is one), kept ready between calls. */
typedef void PartFn(void *arg, int part, int parts);
void run_parts(int parts, PartFn *fn, void *arg);
void stop_parts(void);

/* Memory aligned to 64 (huge pages where large), written once so that it is really there. Ends the program without memory. */
float *new_floats(size_t n, float low, float high);

#endif

/*
 * What a CUDA device does without kiln, through the driver alone: facts about it, the speed of the driver's
 * own copy, the cost of a bare launch. The driver is the one that kiln uses (option `libcuda`), the context
 * the primary one, which kiln uses too.
 */
#ifndef BENCH_CUDA_YARDSTICK_H
#define BENCH_CUDA_YARDSTICK_H

#include <stdbool.h>
#include <stddef.h>

typedef struct CudaFacts {
    char name[128];
    int driver; /* 13000 is 13.0 */
    int major, minor, multiprocessors;
    size_t l2_bytes, memory_bytes, free_bytes;
} CudaFacts;

/* Opens device `ordinal`. false: `why` says why not. */
bool yardstick_open(int ordinal, CudaFacts *facts, char *why, size_t room);
/* Seconds of one copy of `bytes` within the device's memory, of `n` that are waited for together; over two
 * pairs of buffers in turns, made at the first call. Negative: it failed. */
double yardstick_copy(size_t bytes, int n);
/* Seconds that queueing one launch of an empty kernel takes, of `n`; then waits, with the clock stopped.
 * Negative: it failed. */
double yardstick_launch(int n);

#endif

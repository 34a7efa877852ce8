/*
 * Running a program (runtime/eval/launch.c), and what that is made of, for runtime/function/prepared.c, which does once what launch()
 * does at each call. Under the evaluation lock, or concurrently (runtime/eval/lock.c): what it touches is the thread's, the call's, the
 * program's, which does not change, or has a lock of its own.
 */
#ifndef RUNTIME_LAUNCH_H
#define RUNTIME_LAUNCH_H

#include "runtime/evaluation.h"

enum { LAUNCH_ALIGN = 64 };

/* One phase of a kernel and how it is shared out among threads; a function of the size arguments alone. */
typedef struct Phase {
    KernelRun *run;
    void *const *args;
    int64_t number, tasks, grain;
    int threads;    /* 1: on this one */
    size_t scratch; /* bytes for each thread, a multiple of LAUNCH_ALIGN */
} Phase;

Phase phase_of(const ProgKernel *kernel, const HostLaunch *launch, void *const *args, int64_t number, int threads);
void phase_run(const Phase *phase, char *scratch);

size_t launch_aligned(size_t bytes); /* to LAUNCH_ALIGN; SIZE_MAX stays */
size_t buffer_bytes(const ProgBuffer *buffer, const int64_t *sizes);
/* Where each slot lies in the one block for all temporaries: a slot is as large as the largest buffer that uses it. Returns the
 * block's bytes. */
size_t launch_slots(const Program *program, const int64_t *sizes, size_t *offset);
/* Where a temporary lies in that block. */
size_t launch_place(const ProgBuffer *buffer, const int64_t *sizes, const size_t *offset);

/* The scratch of all threads that run the phase. */
size_t phase_scratch(const Phase *phase);
/* Room for `bytes` of scratch, shared by all launches of the thread: until the next call. NULL: out of memory (fail() was called, naming
 * the kernel). */
char *launch_scratch(Evaluation *e, size_t bytes, const char *kernel);

enum { NO_FAULT_NODE = 0xffffffffu };
/* Runs a program for a call: the outputs' values into e->results. ST_INDEX: *fault_node is the node at fault, or NO_FAULT_NODE where fail()
 * was called: an operand was computed wrongly. On a CUDA device whether an index was out of bounds is known later
 * (runtime/cuda/cuda_fault.c). */
Status launch(Evaluation *e, const Program *program, const int64_t *sizes, const Call *call, const bool *donated, uint32_t *fault_node);

/* Puts what was launched since the last time into the statistics. Under the evaluation lock. */
void launch_count(Evaluation *e);

#endif

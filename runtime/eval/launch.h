/*
 * What launching a kernel is made of, for runtime/eval/launch.c and for runtime/function/prepared.c, which does once what launch() does at each
 * call. Under the evaluation lock.
 */
#ifndef RUNTIME_LAUNCH_H
#define RUNTIME_LAUNCH_H

#include "runtime/eval/call.h"

enum { LAUNCH_ALIGN = 64 };

/* One phase of a kernel and how it is shared out among threads; a function of the size arguments alone. */
typedef struct Phase {
    KernelRun *run;
    void *const *args;
    int64_t number, tasks, grain;
    int threads;    /* 1: on this one */
    size_t scratch; /* bytes for each thread, a multiple of LAUNCH_ALIGN */
} Phase;

Phase phase_of(const ProgKernel *kernel, void *const *args, int64_t number, int threads);
void phase_run(const Phase *phase, char *scratch);

size_t buffer_bytes(const ProgBuffer *buffer, const int64_t *sizes);
/* Where each slot lies in the one block for all temporaries: a slot is as large as the largest buffer that uses it. Returns the
 * block's bytes. */
size_t launch_slots(const Program *program, const int64_t *sizes, size_t *offset);

/* The scratch of all threads that run the phase. */
size_t phase_scratch(const Phase *phase);
/* Room for `bytes` of scratch, shared by all launches: until the next call. NULL: out of memory (fail() was called, naming the kernel). */
char *launch_scratch(size_t bytes, const char *kernel);

/* A line of KILN_LOG=perf. */
void log_launch(const char *what, double seconds, int64_t bytes);

#endif

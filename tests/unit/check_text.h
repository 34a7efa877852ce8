/* Kernels as text beside the reference. For programs with tests/unit/kernel_ref.h and arena.h. */
#ifndef TESTS_UNIT_CHECK_TEXT_H
#define TESTS_UNIT_CHECK_TEXT_H

#include "jit/kernel_text.h"
#include "tests/unit/arena.h"
#include "tests/unit/kernel_ref.h"

/* A kernel as text, on buffers of so many elements, and its sizes behind them. */
static inline void check_sizes(const char *text, DType t, const int64_t *elements, int n, const int64_t *sizes, int n_sizes)
{
    CheckArg args[8] = {{0}};
    CudaTarget host = {0};
    Kernel *k;
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text);
    schedule_kernel(k, &host);
    for (int i = 0; i < n; i++)
        if (k->args.at[i].kind == ARG_BUFFER)
            args[i] = (CheckArg){.data = filled(t, (size_t)elements[i], true), .bytes = (size_t)elements[i] * dtype_bytes(t)};
    for (int i = 0; i < n_sizes; i++)
        args[n + i].value = sizes[i];
    check_kernel(k, args, text);
    for (int i = 0; i < n; i++)
        os_free((void *)(uintptr_t)args[i].data);
}

/* One size at most, which is its last argument. */
static inline void check_text(const char *text, DType t, const int64_t *elements, int n, int64_t size)
{
    check_sizes(text, t, elements, n, &size, 1);
}

#endif

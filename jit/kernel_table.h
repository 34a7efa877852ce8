/*
 * Kernels interned by their canonical text (which names the options that change code, too): equal kernels of any two
 * programs are one piece of machine code. A kernel stays while some program uses it. Knows nothing of LLVM.
 */
#ifndef JIT_KERNEL_TABLE_H
#define JIT_KERNEL_TABLE_H

#include "jit/code.h"

typedef struct CompiledKernel {
    KernelRun *run;
    KernelQuery *query;
    Code *code;
    size_t bytes;       /* code and text */
} CompiledKernel;

/* The kernel of this text with one more user, or NULL. */
CompiledKernel *kernel_table_find(const char *text, size_t len);
/* Enters `code` (taken over, on failure too) under `text`; if another thread was first, that one is returned. NULL: out of memory. */
CompiledKernel *kernel_table_add(const char *text, size_t len, Code *code);
void kernel_table_release(CompiledKernel *kernel);

#endif

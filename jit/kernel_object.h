/*
 * A kernel's object: its launch plan and the code that it launches, as bytes for the table of kernels (jit/kernel_table.h) and the cache on disk.
 *
 *     | Head | plan | ELF object |                for the CPU
 *     | Head | plan | PTX | machine code |        for CUDA; machine code where the driver's assembler was at hand
 */
#ifndef JIT_KERNEL_OBJECT_H
#define JIT_KERNEL_OBJECT_H

#include "jit/launch_plan.h"

typedef struct KernelObject {
    LaunchPlan plan;
    const void *elf; /* NULL: for CUDA */
    size_t elf_bytes;
    const char *ptx;
    const void *cubin; /* NULL: none */
    size_t cubin_bytes;
} KernelObject;

Status kernel_object_make(const KernelObject *from, void **object, size_t *bytes); /* os_free */
/* Its parts, in place, checked; what is in the ELF object is for code_load to check. `object` is aligned to 16. ST_FORMAT. */
Status kernel_object_open(const void *object, size_t bytes, KernelObject *out);

#endif

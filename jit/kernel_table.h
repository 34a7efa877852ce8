/*
 * Kernels interned by their canonical text (which names the target and the options that change code, too): equal kernels of any two
 * programs are one piece of machine code. A kernel stays while some program uses it. Knows nothing of LLVM.
 */
#ifndef JIT_KERNEL_TABLE_H
#define JIT_KERNEL_TABLE_H

#include "jit/code.h"
#include "jit/kernel_object.h"

typedef struct KernelWork KernelWork; /* jit/work.c */

typedef struct CompiledKernel {
    KernelRun *run; /* NULL: for CUDA */
    Code *code;
    HostLaunch fixed;   /* how the host runs it, where parts.plan is fixed */
    KernelObject parts; /* of `object` */
    const char *key;    /* the text it is interned by */
    const void *object; /* its launch plan and code: for an entry of the cache on disk */
    const void *texts;  /* IR and assembly, each terminated, packed (ir/base/pack.h); NULL: nobody asked for them */
    size_t key_bytes, object_bytes, texts_bytes;
    size_t bytes;         /* code and all of the above */
    KernelWork *work;     /* heap: what it computes, once somebody asked; under the evaluation lock */
    void *_Atomic loaded; /* what the device's runtime made of it */
    void (*unload)(void *loaded);
} CompiledKernel;

/* How the host runs it with these arguments; in *room where sizes vary. */
static inline const HostLaunch *kernel_launch(const CompiledKernel *kernel, void *const *args, HostLaunch *room)
{
    if (kernel->parts.plan.fixed)
        return &kernel->fixed;
    host_launch(&kernel->parts.plan, args, room);
    return room;
}

/* What a kernel is made of. */
typedef struct KernelParts {
    Code *code;           /* NULL: for CUDA */
    void *object, *texts; /* heap; texts may be NULL */
    size_t object_bytes, texts_bytes;
} KernelParts;

/* Looks through the parts' object, and loads its code where the host runs it: `code`. ST_FORMAT, ST_OUT_OF_MEMORY. */
Status kernel_parts_load(KernelParts *parts);

/* The kernel of this text with one more user, or NULL. */
CompiledKernel *kernel_table_find(const char *text, size_t len);
/* Enters the parts (taken over, on failure too) under `text`; if another thread was first, that one is returned. NULL: out of memory. */
CompiledKernel *kernel_table_add(const char *text, size_t len, const KernelParts *parts);
/* The parts as a kernel of the caller's own that nobody else finds: what others have under this text does not matter. NULL: out of memory. */
CompiledKernel *kernel_table_private(const char *text, size_t len, const KernelParts *parts);
/* Of either kind. */
void kernel_table_release(CompiledKernel *kernel);

#endif

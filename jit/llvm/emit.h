/*
 * From the kernel form to machine code, through the LLVM C API. The only folder that includes <llvm-c/...>.
 */
#ifndef JIT_LLVM_EMIT_H
#define JIT_LLVM_EMIT_H

#include "jit/launch_plan.h"
#include "jit/kernel.h"
#include "jit/options.h"
#include "jit/schedule.h"

typedef struct Emitted {
    LaunchPlan launch; /* launch_plan_free */
    void *object;      /* ELF relocatable; os_free */
    size_t bytes;
    char *ir, *assembly; /* text for people, os_free; NULL unless asked for */
} Emitted;

/* Compiles one kernel for this host, or the CPU that the option asks for. want_text: also IR and assembly. Deterministic: equal kernels
 * give equal bytes. Uses own LLVM context per call; thread-safe. ST_COMPILE, ST_INTERNAL, ST_UNSUPPORTED (no code generator),
 * ST_OUT_OF_MEMORY. */
Status llvm_emit_host(const Kernel *kernel, const char *name, const JitOptions *options, bool want_text, Emitted *out);

/* How llvm_emit_host runs it, without making code; nest: gets the text of its loops (jit/nest.h), or NULL. Memory is taken from `arena`, which jumps
 * where there is none. */
void llvm_host_schedule(const Kernel *kernel, const JitOptions *options, Arena *arena, Schedule *out, Str *nest);

/* The same kernel for an NVIDIA GPU: PTX text and how to launch it. Reductions keep an order of their own
 * (ir/orders.def); elementwise results equal the interpreter's in strict mode. ST_COMPILE,
 * ST_UNSUPPORTED (a target that LLVM does not know), ST_OUT_OF_MEMORY. */
typedef struct EmittedPtx {
    char *ptx; /* ends in a zero byte that `bytes` does not count; os_free */
    size_t bytes;
    char *ir;          /* os_free; NULL unless asked for */
    LaunchPlan launch; /* launch_plan_free */
} EmittedPtx;
Status llvm_emit_ptx(const Kernel *kernel, const char *name, const JitOptions *options, const CudaTarget *target, bool want_text,
                     EmittedPtx *out);

/* "x86_64 sapphirerapids +avx512f,..." : triple, CPU and full feature string, for keys and for people. Static storage. */
const char *llvm_host_target(void);
const char *llvm_version(void);
/* Has the CPU that code is for a fast instruction that copies any number of bytes (ERMS)? */
bool llvm_host_copies(const JitOptions *options);
/* Does it write large outputs faster where it asked for their lines before than past its caches? */
bool llvm_host_asks(const JitOptions *options);
/* Can this CPU execute what llvm_emit_host makes under these options? ST_UNSUPPORTED, with what it lacks. */
Status llvm_host_runs(const JitOptions *options);

#endif

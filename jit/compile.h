/* From a recorded graph to a program: jit/compile.c tells the story. */
#ifndef JIT_COMPILE_H
#define JIT_COMPILE_H

#include "jit/options.h"
#include "jit/program.h"
#include <stdatomic.h>

/* Makes machine code of PTX with the device's own assembler; in any thread. *cubin: os_free. */
typedef Status Assemble(int device, const char *ptx, const char *name, void **cubin, size_t *bytes);

typedef struct CompileRequest {
    Graph *graph; /* as recorded; rewritten in place. In an arena whose oom is set by the caller */
    GuardPolicy *policy;
    const JitOptions *options;
    const char *id;          /* what the log calls the graph; NULL: nothing */
    const char *dump_name;   /* for KILN_DUMP: the name of this program's folder; NULL: no dump */
    const atomic_bool *stop; /* set while compiling: give up soon, with ST_COMPILE; NULL: never */
    bool want_texts;         /* graphs and kernels as text, for the cache on disk */
    bool afresh;             /* its kernels are compiled even where they are known, and are nobody else's: to compare */
    Assemble *assemble;      /* where options->target is CUDA; NULL: PTX is left to whoever loads it */
    int device;              /* for it */
} CompileRequest;

/* In the graph's arena; NULL unless they were asked for. */
typedef struct CompileTexts {
    const char *recorded, *optimised;
} CompileTexts;

/* Compiles; texts may be NULL. On failure *out is NULL and nothing was published. ST_COMPILE, ST_UNSUPPORTED, ST_OUT_OF_MEMORY, ST_INTERNAL.
 * Runs on a stack of its own, so its depth does not depend on the caller's. */
Status jit_compile(const CompileRequest *request, Program **out, CompileTexts *texts);

/* What jit_compile would make, without code: the number of launches, and their names, a line each, to `text`; of a gradient also what it
 * reads and computes again. */
Status jit_preview(const CompileRequest *request, uint32_t *n_steps, Str *text);

#endif

/*
 * Machine code of kernels: host objects as bytes, and the small loader that maps them (fresh from LLVM or from disk, without LLVM).
 */
#ifndef JIT_CODE_H
#define JIT_CODE_H

#include "ir/base/status.h"
#include "jit/kernel.h"

typedef struct Code Code; /* mapped, read-execute; of one owner, who frees it */

/* Maps a relocatable ELF object (x86-64) that defines the symbol "run" and has no undefined symbol. Relocations
 * inside the object only. Every offset and length is checked: ST_FORMAT with what was wrong, ST_OUT_OF_MEMORY. */
Status code_load(const void *object, size_t bytes, Code **out);
void code_free(Code *code); /* NULL: nothing */
KernelRun *code_run(const Code *code);
size_t code_bytes(const Code *code); /* mapped */

#endif

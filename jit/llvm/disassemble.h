/* A host object as assembly for people. Internal to jit/llvm. */
#ifndef JIT_LLVM_DISASSEMBLE_H
#define JIT_LLVM_DISASSEMBLE_H

#include "ir/base/status.h"

#include <stddef.h>

/* Takes apart what LLVM just made (nothing is checked); *text is os_free'd. ST_COMPILE, ST_OUT_OF_MEMORY. */
Status disassemble(const char *triple, const char *cpu, const char *features, const void *object, size_t bytes, char **text);

#endif

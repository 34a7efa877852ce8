/* The maker part of the key text: who can make and run this code (cache/key_text.h). */
#ifndef CACHE_MAKER_H
#define CACHE_MAKER_H

#include "ir/base/str.h"
#include "jit/options.h"

#include <stdbool.h>

/* Appends the lines for these options. Needs no LLVM. false: this library has no build id, so nothing can be kept on disk. */
bool maker_text(const JitOptions *options, Str *out);
/* Appends what such lines say of a CUDA device, as one text: code made for one runs on each of which the same is said. false: the code is for
 * the CPU. */
bool maker_device(const char *maker, size_t bytes, Str *out);
/* Is that line of a maker's text about the machine, CPU or GPU? */
bool maker_of_machine(const char *name);

#endif

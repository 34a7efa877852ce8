/* The maker part of the key text: who can make and run this code (cache/key_text.h). */
#ifndef CACHE_MAKER_H
#define CACHE_MAKER_H

#include "ir/base/str.h"
#include "jit/options.h"

#include <stdbool.h>

/* Appends the lines for these options. Needs no LLVM. false: this library has no build id, so nothing can be kept on disk. */
bool maker_text(const JitOptions *options, Str *out);

#endif

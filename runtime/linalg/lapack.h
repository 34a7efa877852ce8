/*
 * The LAPACK library: opened by name when something needs it, so that kiln runs without one. Whichever the system has chosen is taken: Debian's
 * alternatives let liblapack.so.3 be the reference one (liblapack3), OpenBLAS (libopenblas0) or another; their integers have 32 bits.
 */
#ifndef RUNTIME_LAPACK_H
#define RUNTIME_LAPACK_H

#include "ir/base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct Lapack {
#define LAPACK_SYM(name, parameters) void(*name) parameters;
#include "runtime/linalg/lapack.def"
#undef LAPACK_SYM
} Lapack;

/* Its functions for f32 (of[0]) and f64 (of[1]), for the life of the process. ST_UNSUPPORTED: there is none, and what to install. */
Status lapack_open(const Lapack **of);

#endif

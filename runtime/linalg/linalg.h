/*
 * Linear algebra on the host: what CUSTOM nodes of ir/linalg.def call.
 *
 *     kiln_solve (runtime/api/linalg.c) --> CUSTOM kiln.lu, CUSTOM kiln.solve --> a step CALL --> linalg_host --> LAPACK (lapack.h)
 */
#ifndef RUNTIME_LINALG_H
#define RUNTIME_LINALG_H

#include "ir/linalg.h"

CallHost linalg_host;

#endif

/*
 * Linear algebra: calls of a LAPACK library (ir/linalg.def) as CUSTOM nodes, and their derivatives (ir/gradient_linalg.c). What runs them is the
 * runtime's (runtime/linalg/).
 *
 * The factors F of a matrix A are of A's shape and dtype, are handed to no user, and stand for A: by convention the cotangent and the tangent of F
 * are those of A. So the derivative of a solution or determinant says what flows to A, LU itself passes it on unchanged, and what is linear
 * in between (the EXPAND of a matrix that many systems share) means the same for F as for A.
 */
#ifndef IR_LINALG_H
#define IR_LINALG_H

#include "ir/callee.h"

typedef enum Linalg {
#define LINALG(id, name, n_in, n_out) LINALG_##id,
#include "ir/linalg.def"
#undef LINALG
    LINALG_COUNT
} Linalg;

enum { LINALG_TRANSPOSED = 1, LINALG_UPPER = 2, LINALG_UNIT = 4, LINALG_TALL = 8, LINALG_WIDE = 16 };

/* The attributes of the call. */
typedef struct LinalgAttr {
    uint32_t function, flags;
} LinalgAttr;

/* What is called: `attr` stays the caller's until the node was made. */
Callee linalg_callee(const LinalgAttr *attr, CallHost *host);
CallRule linalg_rule;

#endif

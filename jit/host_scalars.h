/*
 * Scalars that the host computes when arguments are bound: what a graph makes of scalars alone, such as 1 / sqrt(d).
 *
 *     h0: f64 = k0          the call's scalar 0
 *     h1: f64 = sqrt h0     by the op's definition (ir/scalar.h), as the interpreter runs it, rounded to its dtype
 *     h2: f64 = 1           a constant that a rewrite made
 *     h3: f64 = div h2 h1   an argument of a kernel
 *
 * So no task and no thread of a GPU computes them, and they are arguments as the scalars are that they are made of: other values need no
 * other code. Which nodes are such numbers the graph knows (Node.number); fusion makes them arguments (jit/fuse/draft.c). The algebraic
 * rules leave them alone (ir/rules.c): nothing would be won, and a rule that asks for a scalar's value would guard it.
 */
#ifndef JIT_HOST_SCALARS_H
#define JIT_HOST_SCALARS_H

#include "ir/graph.h"
#include "ir/scalar.h"

/* One of a list; plain data, stored with programs. */
typedef struct HostScalar {
    uint8_t op, dtype; /* INPUT: the call's scalar in[0]; SCALAR: a constant; else an elementwise op */
    uint32_t in[3];    /* its operands: earlier ones of the list */
    uint64_t bits;     /* SCALAR */
} HostScalar;

/* The values of a list, bits of each in its dtype, zero-extended: value[i]. false: out of memory. */
bool host_scalars_run(const HostScalar *at, uint32_t n, MathMode math, const uint64_t *scalars, uint64_t *value);

/* Is at[index] sound, those before it being so? For lists that come from a file. */
bool host_scalar_fits(const HostScalar *at, uint32_t index, uint32_t n_scalars);

void host_scalar_print(const HostScalar *at, uint32_t index, Str *out);

#endif

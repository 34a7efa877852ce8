/*
 * The layer of kiln_finite_check_push: which op makes the first NaN or infinity out of finite operands?
 *
 * Beside each float result the place of its first element that is not finite is recorded, and the next sync point computes those places together with
 * what it was asked for: they are further outputs of the kernels that make the values, so what fuses without the layer fuses with it, and
 * no value in between is stored for it. A result that only hands on what was there (views, operands that are not finite themselves: masks of
 * -inf, data with gaps) is none that is told.
 */
#ifndef RUNTIME_FINITE_H
#define RUNTIME_FINITE_H

#include "runtime/mode/mode.h"

typedef struct Finite Finite;

/* A sync point of this thread asks for nodes[0..*n): *all begins with them, and places follow; *n counts both. *all is NULL where there is nothing to
 * check; else to be freed by os_free. ST_OUT_OF_MEMORY. */
Status finite_roots(const RtThread *t, RtNode *const *nodes, uint32_t *n, RtNode ***all);
/* They were computed: ST_INVALID tells the first op that made something that is not finite. Nothing is left to check. */
Status finite_judge(const RtThread *t);
/* They cannot be: something that was recorded fails, which is told to who asks for it. */
void finite_forget(const RtThread *t);

#endif

/* What the printer and the parser of kernels share: names, and which dtype a constant has where none is written. Internal to jit. */
#ifndef JIT_KERNEL_TEXT_H
#define JIT_KERNEL_TEXT_H

#include "jit/kernel.h"

enum { KERNEL_AXES = 16 };
extern const char kernel_axis_letters[KERNEL_AXES + 1]; /* i j k ... without those that mean something else */
extern const char *const kernel_scatter_mode[4];

/* The dtype of an operand that is written as a bare value: what the others (DT_COUNT where unknown: constants too) or the argument ask for;
 * DT_COUNT: it must be written, "f32(1)". */
DType kernel_literal_dtype(const Kernel *k, const KInst *inst, uint32_t operand, const DType types[3]);
/* What a KI_OP, a fold or a running fold gives for operands of these types where no dtype is written; DT_COUNT: it must be, or none fits. */
DType kernel_result_dtype(const KInst *inst, uint32_t n, const DType types[3]);

#endif

/* The engine under tape_run: single instructions. Internal to ir. */
#ifndef IR_TAPE_RUN_H
#define IR_TAPE_RUN_H

#include "ir/scalar.h"

/* One instruction on constants (bits, zero-extended): what the recorder folds. `from` is the first operand's type. */
uint64_t tape_fold(ScalarOp op, SType type, SType from, const uint64_t operand[3]);

/* acc[i] = a * x[i] + acc[i], each with one rounding. */
void tape_axpy_f32(size_t n, float *acc, float a, const float *x);
void tape_axpy_f64(size_t n, double *acc, double a, const double *x);

/* The stored 16-bit formats in portable integer arithmetic: exact widening, narrowing to nearest even; NaN stays NaN. */
float half_to_float(uint16_t bits);
uint16_t half_from_float(float value);
float bhalf_to_float(uint16_t bits);
uint16_t bhalf_from_float(float value);

#endif

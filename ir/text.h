/* What text forms share (of graphs: ir/text.c; of kernels: jit/kernel_text.c): numbers as text, independent of the locale. */
#ifndef IR_TEXT_H
#define IR_TEXT_H

#include "ir/base/scan.h"
#include "ir/base/str.h"
#include "ir/callee.h"
#include "ir/scalar.h"

/* A scalar's value so that it reads back to the same bits: true, -7, 0.1, inf, nan, 0x7fc00001 (other NaNs). */
void text_print_scalar(DType dtype, uint64_t bits, Str *out);

/* The other way; ST_FORMAT where no value of that dtype stands there. */
Status text_parse_scalar(Scan *s, DType dtype, uint64_t *bits);
Status text_parse_dtype(Scan *s, DType *dtype);

/* What callee_print printed, up to ')'. (ir/callee.c) */
Status callee_parse(Scan *s, Arena *arena, Callee **out);

/* strtod with '.' in every locale; the whole text must be a number of less than about 120 characters. */
bool text_double(const char *text, double *value);

#endif

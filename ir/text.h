/* What the two halves of the text form share: numbers as text, independent of the locale. */
#ifndef IR_TEXT_H
#define IR_TEXT_H

#include "ir/base/str.h"
#include "ir/scalar.h"

/* A scalar's value so that it reads back to the same bits: true, -7, 0.1, inf, nan, 0x7fc00001 (other NaNs). */
void text_print_scalar(DType dtype, uint64_t bits, Str *out);

/* strtod with '.' in every locale; the whole text must be a number of less than about 120 characters. */
bool text_double(const char *text, double *value);

#endif

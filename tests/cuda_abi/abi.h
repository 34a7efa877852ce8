/*
 * The binary interface of the CUDA driver: is what kiln and the software driver declare what the toolkit's cuda.h says?
 *
 *   kiln.c       kiln's functions, numbers and structs; while it is compiled
 *   toolkit.c    the software driver's numbers, its entries' names; values as cuda.h has them
 *   software.c   values as the software driver's cuda_api.h has them
 *   CMakeLists.txt compiles cuda_driver/api.c once more, with cuda.h in place of cuda_api.h
 *
 * What can only be known by running it is done by main (kiln.c): each name is exported by the toolkit's stub of libcuda.so, and the
 * structs of software.c are laid out as those of toolkit.c.
 */
#ifndef TEST_CUDA_ABI_H
#define TEST_CUDA_ABI_H

#include <stddef.h>

typedef struct AbiValue {
    const char *what;
    long long value;
} AbiValue;

extern const AbiValue toolkit_values[], software_values[]; /* what == NULL: the end */
extern const char *const software_symbols[];               /* NULL: the end */

#endif

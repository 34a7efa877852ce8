/* Size classes of memory that is kept for reuse: eight for each doubling. Shared by the host's pool and the devices'. */
#ifndef RUNTIME_SIZE_CLASS_H
#define RUNTIME_SIZE_CLASS_H

#include <stddef.h>

enum { SIZE_CLASSES = 64 * 8, SMALLEST_SIZE = 64 };

/* The size a request is rounded up to: a multiple of 64. */
static inline size_t size_class_bytes(size_t bytes)
{
    if (bytes <= SMALLEST_SIZE)
        return SMALLEST_SIZE;
    size_t step = ((size_t)1 << (63 - __builtin_clzll(bytes - 1))) / 8;
    if (step < SMALLEST_SIZE)
        step = SMALLEST_SIZE;
    return (bytes + step - 1) / step * step;
}

/* The class of a rounded size. */
static inline unsigned size_class(size_t rounded)
{
    unsigned power = (unsigned)(63 - __builtin_clzll(rounded - 1));
    return power * 8 + ((unsigned)((rounded - 1) >> (power - 3)) & 7);
}

/* The rounded size of a class. */
static inline size_t size_of_class(unsigned index) { return ((size_t)(index % 8 + 9) << index / 8) / 8; }

#endif

/* For tests whose rows need more than elementwise.def knows (a reference, arguments): says which of its functions have none. */
#ifndef TESTS_SUPPORT_ELEMENTWISE_H
#define TESTS_SUPPORT_ELEMENTWISE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static const char *const elementwise_names[] = {
#define UNARY(name, op, prep) &(#name)[5], /* without kiln_ */
#define BINARY(name, op, prep, a, b) &(#name)[5],
#include "tests/support/elementwise.def"
};

/* The first function that is neither among the rows, for which has(name) is true, nor among `others`, which ends with NULL; NULL: all are.
 * `others` that are none, or have a row, are told, too. */
static inline const char *elementwise_without_row(bool (*has)(const char *name), const char *const *others)
{
    size_t n = sizeof elementwise_names / sizeof *elementwise_names;
    for (size_t i = 0; i < n; i++) {
        bool other = false;
        for (const char *const *o = others; *o; o++)
            other |= strcmp(*o, elementwise_names[i]) == 0;
        if (has(elementwise_names[i]) == other)
            return elementwise_names[i];
    }
    return NULL;
}

#endif

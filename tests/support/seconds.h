/* How long a child that a test forks may run, for alarm(): bench/gpu has less time than CI, and a kernel that hangs must not cost it all. */
#ifndef TESTS_SUPPORT_SECONDS_H
#define TESTS_SUPPORT_SECONDS_H

#include <stdlib.h>

/* KILN_TEST_SECONDS, else `usual`. */
static inline unsigned test_seconds(unsigned usual)
{
    const char *text = getenv("KILN_TEST_SECONDS");
    return text && atoi(text) > 0 ? (unsigned)atoi(text) : usual;
}

#endif

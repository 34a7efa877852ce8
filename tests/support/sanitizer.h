/*
 * What a sanitizer in the build changes for a test.
 *
 * Time: everything is slower. HANGS_AFTER(seconds), for Criterion's .timeout, is when a test that takes a small part of that hangs, and is
 * not just late: Criterion measures by the clock, and a busy machine may leave a test a tenth of a core. Limits of a child are
 * support/seconds.h's.
 *
 * Forks: the allocators of AddressSanitizer (before LLVM 18 and gcc 14) and of ThreadSanitizer (before LLVM 19) do not hold their
 * locks over a fork, as that of the C library does. Where another thread allocates at that moment, the child waits for ever in
 * its first allocation that needs the lock. So where CHILD_MAY_ALLOCATE is 0, the child of a process with busy threads ends at
 * once: the fork itself and the parent are tested, and the normal build tests the child. A thread that starts allocates, too:
 * let_threads_start() gives those that were just created the time to come to rest.
 */
#ifndef TESTS_SUPPORT_SANITIZER_H
#define TESTS_SUPPORT_SANITIZER_H

#include "ir/base/sanitizer.h"

#include <unistd.h>

#define HANGS_AFTER(seconds) (10 * (seconds)*KILN_TEST_SLOWER)

#define CHILD_MAY_ALLOCATE (!WITH_ASAN && !WITH_TSAN)

static inline void let_threads_start(void)
{
    if (!CHILD_MAY_ALLOCATE)
        usleep(200000);
}

#endif

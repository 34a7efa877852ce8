/* kiln_get_stats as a value. */
#ifndef TESTS_SUPPORT_STATS_H
#define TESTS_SUPPORT_STATS_H

#include "kiln.h"

static inline kiln_stats stats_now(void)
{
    kiln_stats now;
    kiln_get_stats(&now);
    return now;
}

#endif

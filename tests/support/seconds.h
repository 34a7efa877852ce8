/*
 * How long something in a test may take: limits that no loaded machine meets.
 *
 * support/gated.sh measures how fast this machine computes (KILN_TEST_SPEED, in per cent of the time that the limits were written for; 100
 * without it) and limits the processor time of each process. What is here is for a child that a test forks, so that its test can say which
 * case it was: processor time, which other programs don't take away. A child that waits for ever takes none, hence an alarm besides, far
 * beyond that.
 *
 * KILN_TEST_SECONDS=N: an alarm after N seconds instead. For bench/gpu, which has less time than CI.
 */
#ifndef TESTS_SUPPORT_SECONDS_H
#define TESTS_SUPPORT_SECONDS_H

#include "tests/support/sanitizer.h"

#include <stdlib.h>
#include <sys/time.h>

enum { TEST_HANGS = 20 }; /* times its processor time: so long none of it was to be had, or it waits for ever */

/* This process ends by a signal (SIGPROF, SIGALRM) when it takes longer; 0: no limit. */
static inline void test_seconds(unsigned seconds)
{
    const char *fixed = getenv("KILN_TEST_SECONDS"), *speed = getenv("KILN_TEST_SPEED");
    if (fixed && atoi(fixed) > 0) {
        alarm((unsigned)atoi(fixed));
        return;
    }
    unsigned per_cent = speed && atoi(speed) > 100 ? (unsigned)atoi(speed) : 100;
    unsigned limit = seconds * KILN_TEST_SLOWER * per_cent / 100;
    struct itimerval timer = {.it_value.tv_sec = (time_t)limit};
    setitimer(ITIMER_PROF, &timer, NULL);
    alarm(limit * TEST_HANGS);
}

#endif

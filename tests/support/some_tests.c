/*
 * Linked into a Criterion program: it runs a slice of its tests (slice.h) and skips the others.
 */
#include "tests/support/slice.h"

#include <criterion/criterion.h>
#include <criterion/hooks.h>

/* clang-format off */
ReportHook(PRE_ALL)(struct criterion_test_set *all)
{
    uint64_t number = 0;
    FOREACH_SET(struct criterion_suite_set *suite, all->suites) {
        FOREACH_SET(struct criterion_test *test, suite->tests) {
            if (!slice_takes_of(number++, all->tests))
                test->data->disabled = true;
        }
    }
}
/* clang-format on */

/*
 * The arena of a test program whose suites have `.init = setup, .fini = teardown`: each test finds it empty. Without memory
 * a test fails.
 */
#ifndef TEST_ARENA_H
#define TEST_ARENA_H

#include "ir/base/arena.h"

#include <criterion/criterion.h>
#include <setjmp.h>

static Arena arena;
static jmp_buf oom;

static void setup(void)
{
    arena_init(&arena, &oom);
    if (setjmp(oom))
        cr_assert(false, "out of memory");
}

static void teardown(void) { arena_free(&arena); }

#endif

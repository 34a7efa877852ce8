/*
 * For tests that choose the software CUDA driver (tests/cuda_driver) themselves: its own functions, what kiln warned of.
 */
#ifndef TEST_ON_CUDA_H
#define TEST_ON_CUDA_H

#include "api.h"
#include "tests/cuda_driver/test_cuda.h"

#include <dlfcn.h>

/* A function of the software driver. */
#define DRIVER(name) ((__typeof__(&name))driver_symbol(#name))

static inline void *driver_symbol(const char *name)
{
    void *library = dlopen(cuda_driver(), RTLD_NOW);
    cr_assert(library != NULL, "%s", dlerror());
    void *symbol = dlsym(library, name);
    cr_assert(symbol != NULL, "%s", name);
    return symbol;
}

/* Is there none in this build? Then the test is skipped, with a word. */
static inline bool no_driver(void)
{
    if (cuda_driver())
        return false;
    cr_log_warn("no software CUDA driver in this build: nothing was tested");
    return true;
}

static inline test_cuda_counters counted(void)
{
    test_cuda_counters n;
    DRIVER(test_cuda_get_counters)(&n);
    return n;
}

/* A log sink. `user`: WARNINGS bytes that collect what was warned of. */
enum { WARNINGS = 4096 };

static inline void keep_warnings(void *user, int level, const char *topic, const char *line)
{
    char *warnings = user;
    (void)topic;
    if (level == 0 && strlen(warnings) + strlen(line) + 2 < WARNINGS)
        strcat(strcat(warnings, line), "\n");
}

/* Computes on that driver from here on, with options by pairs: CUDA_WITH("fuse", "0"). Without one false, and the test is
 * skipped with a word. */
#define CUDA_WITH(...) cuda_with((const char *const[]){__VA_ARGS__, NULL})

static inline bool cuda_with(const char *const *options)
{
    if (no_driver())
        return false;
    set_option("libcuda", cuda_driver());
    for (; *options; options += 2)
        set_option(options[0], options[1]);
    set_option("device", "cuda");
    return true;
}

#endif

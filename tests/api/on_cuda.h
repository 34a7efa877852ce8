/*
 * For tests that choose the CUDA driver themselves: the software one's own functions (tests/cuda_driver), what kiln warned of.
 *
 * Most of these tests also run on a real device (tests/gpu), where nothing is injected and kiln alone counts. A test that cannot
 * do without the software driver is a row of tests/gpu/software_only.def; one that asks for a little more of it looks at
 * software_driver().
 */
#ifndef TEST_ON_CUDA_H
#define TEST_ON_CUDA_H

#include "api.h"
#include "tests/cuda_driver/test_cuda.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

/* A function of the software driver. */
#define DRIVER(name) ((__typeof__(&name))driver_symbol(#name))

static inline void *driver_symbol(const char *name)
{
    cr_assert(software_driver(), "%s: this test needs the software driver (tests/gpu/software_only.def)", name);
    void *library = dlopen(cuda_driver(), RTLD_NOW);
    cr_assert(library != NULL, "%s", dlerror());
    void *symbol = dlsym(library, name);
    cr_assert(symbol != NULL, "%s", name);
    return symbol;
}

/* For test_cuda_before, in two threads: each waits for the other, who never comes if they take turns. *came is 2 in the end, then not. */
static inline void wait_for_another(void *came_)
{
    atomic_int *came = came_;
    atomic_fetch_add(came, 1);
    for (int ms = 0; ms < 200000 && atomic_load(came) < 2; ms++)
        usleep(1000);
    if (atomic_load(came) < 2)
        atomic_store(came, -1); /* the second is too late */
}

/* What the software driver counted. On a real device what kiln counts: launches (a sort is one of them), graphs; the rest is 0. */
static inline test_cuda_counters counted(void)
{
    test_cuda_counters n = {0};
    kiln_stats stats;
    if (software_driver()) {
        DRIVER(test_cuda_get_counters)(&n);
        return n;
    }
    kiln_get_stats(&stats);
    n.launches = (uint64_t)stats.kernels;
    n.graph_launches = (uint64_t)stats.graph_launches;
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

/* Computes on that driver from here on, with options by pairs: CUDA_WITH("fuse", "0"); test_memory is for the software one alone,
 * which checks what it is for. */
#define CUDA_WITH(...) cuda_with((const char *const[]){__VA_ARGS__, NULL})

static inline void cuda_with(const char *const *options)
{
    use_driver();
    for (; *options; options += 2)
        if (software_driver() || strcmp(options[0], "test_memory") != 0)
            set_option(options[0], options[1]);
    set_option("device", "cuda");
}

/* The same with settings of the software driver (NULL: as they are): with memory from kiln's pool. */
static inline void start_pooled(const char *settings)
{
    if (settings)
        setenv("KILN_TEST_CUDA", settings, 1);
    use_driver();
    set_option("device", "cuda");
}

/* With memory whose end the software driver knows. */
static inline void start_exact(const char *settings)
{
    if (software_driver())
        set_option("test_memory", "exact");
    start_pooled(settings);
    set_option("strict", "1"); /* what cannot be compiled is no matter for the interpreter here */
}

static inline void expect_device(kiln_tensor *x, const char *name)
{
    char text[16];
    cr_assert(kiln_device_of(x, text, sizeof text) == KILN_OK, "%s", kiln_error_message());
    cr_assert_str_eq(text, name);
}

static inline void expect_status(kiln_status status, kiln_status want, const char *text)
{
    cr_assert(status == want, "%s: %s", kiln_status_name(status), kiln_error_message());
    cr_assert(strstr(kiln_error_message(), text), "\"%s\" is not in: %s", text, kiln_error_message());
}

#endif

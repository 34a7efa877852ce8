/* The software CUDA driver as the PTX tests use it: memory, modules, launches. Every failure fails the test. */
#ifndef TESTS_UNIT_PTX_DRIVER_H
#define TESTS_UNIT_PTX_DRIVER_H

#include "jit/launch_plan.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVER_SMS = 4 };

typedef void *DriverModule;

static struct {
    void *library;
    int (*init)(unsigned), (*device)(int *, int), (*retain)(void **, int), (*current)(void *), (*wait)(void);
    int (*load)(void **, const void *), (*unload)(void *), (*function)(void **, void *, const char *);
    int (*alloc)(uint64_t *, size_t), (*release)(uint64_t);
    int (*write)(uint64_t, const void *, size_t), (*read)(void *, uint64_t, size_t);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*set)(void *, int, int);
    const char *(*report)(void);
    int (*configure)(const char *);
} driver;

/* false: it was not built, and nothing is run. */
static inline bool driver_there(void)
{
#ifdef KILN_TEST_CUDA_LIBRARY
    static const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"cuInit", &driver.init},
        {"cuDeviceGet", &driver.device},
        {"cuDevicePrimaryCtxRetain", &driver.retain},
        {"cuCtxSetCurrent", &driver.current},
        {"cuCtxSynchronize", &driver.wait},
        {"cuModuleLoadData", &driver.load},
        {"cuModuleUnload", &driver.unload},
        {"cuModuleGetFunction", &driver.function},
        {"cuMemAlloc_v2", &driver.alloc},
        {"cuMemFree_v2", &driver.release},
        {"cuMemcpyHtoD_v2", &driver.write},
        {"cuMemcpyDtoH_v2", &driver.read},
        {"cuLaunchKernel", &driver.launch},
        {"cuFuncSetAttribute", &driver.set},
        {"test_cuda_report", &driver.report},
        {"test_cuda_configure", &driver.configure},
    };
    if (driver.library)
        return true;
    setenv("KILN_TEST_CUDA", "cc=8.0,sms=4,log=none", 0);
    driver.library = dlopen(KILN_TEST_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    cr_assert(driver.library, "%s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *at = dlsym(driver.library, functions[i].name);
        cr_assert(at, "%s", functions[i].name);
        memcpy(functions[i].to, &at, sizeof at);
    }
    int device;
    void *context;
    cr_assert(!driver.init(0) && !driver.device(&device, 0) && !driver.retain(&context, device) && !driver.current(context));
    return true;
#else
    return false;
#endif
}

static inline uint64_t driver_alloc(size_t bytes)
{
    uint64_t at = 0;
    cr_assert_eq(driver.alloc(&at, bytes ? bytes : 1), 0);
    return at;
}

static inline void driver_free(uint64_t at)
{
    if (at)
        cr_assert_eq(driver.release(at), 0);
}

static inline void driver_write(uint64_t to, const void *from, size_t bytes)
{
    if (bytes)
        cr_assert_eq(driver.write(to, from, bytes), 0);
}

static inline void driver_read(void *to, uint64_t from, size_t bytes)
{
    int status = bytes ? driver.read(to, from, bytes) : 0;
    cr_assert_eq(status, 0, "copy back: %d: %s", status, driver.report());
}

static inline DriverModule driver_load(const char *ptx, const char *what)
{
    DriverModule m = NULL;
    int status = driver.load(&m, ptx);
    cr_assert_eq(status, 0, "%s: load: %d: %s\n%s", what, status, driver.report(), ptx);
    return m;
}

static inline void driver_unload(DriverModule m) { cr_assert_eq(driver.unload(m), 0); }

/* One phase of a plan. */
static inline void driver_launch(DriverModule m, const LaunchPlan *plan, uint32_t phase, void *const *args, uint32_t n_args,
                                 const char *what)
{
    GridLaunch l = grid_launch(plan, phase, args, DRIVER_SMS);
    const char *entry = grid_entry(plan, phase);
    void *function = NULL, *params[1];
    uint64_t block[1024] = {0}, copy = 0;
    bool by_pointer = plan->by_pointer;
    if (l.blocks <= 0)
        return;
    cr_assert(n_args + GRID_TAIL <= sizeof block / sizeof *block);
    memcpy(block, args, n_args * sizeof *block);
    grid_tail(plan, phase, args, DRIVER_SMS, block + n_args);
    if (by_pointer) {
        copy = driver_alloc(n_args * sizeof *block);
        driver_write(copy, block, n_args * sizeof *block);
    }
    params[0] = by_pointer ? (void *)&copy : block;
    cr_assert_eq(driver.function(&function, m, entry), 0, "%s: no entry %s", what, entry);
    enum { MAX_DYNAMIC_SHARED = 8 };
    cr_assert_eq(driver.set(function, MAX_DYNAMIC_SHARED, (int)l.shared), 0, "%s: %s", what, driver.report());
    int status = driver.launch(function, (unsigned)l.blocks, 1, 1, l.threads, 1, 1, l.shared, NULL, params, NULL);
    cr_assert_eq(status, 0, "%s: launch of %s: %d: %s", what, entry, status, driver.report());
    status = driver.wait();
    cr_assert_eq(status, 0, "%s: %s: %d: %s", what, entry, status, driver.report());
    driver_free(copy);
}

#endif

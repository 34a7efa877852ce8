/*
 * Bytes as a kernel's object (jit/kernel_object.h): what passes has a launch plan that can be asked anything for as many arguments as it says,
 * and code that lies inside.
 */
#include "target.h"

#include "jit/kernel_object.h"

#include <string.h>

static void ask(const LaunchPlan *p, bool cuda, void *const *args)
{
    uint64_t tail[GRID_TAIL];
    HostLaunch launch;
    if (!cuda) {
        host_launch(p, args, &launch);
        REQUIRE(launch.phases >= 0, "%lld phases", (long long)launch.phases);
        return;
    }
    (void)grid_scratch(p, args, 132);
    for (uint32_t i = 0; i < p->n_phases; i++) {
        (void)grid_launch(p, i, args, 132);
        REQUIRE(grid_tail(p, i, args, 132, tail) <= GRID_TAIL, "a tail");
        REQUIRE(strlen(grid_entry(p, i)) < p->bytes, "a name");
    }
}

static void take(const void *bytes, size_t n)
{
    enum { MOST_ARGS = 1 << 20 };
    KernelObject object;
    if (kernel_object_open(bytes, n, &object) != ST_OK)
        return;
    REQUIRE(object.elf ? object.elf_bytes <= n : strlen(object.ptx) + object.cubin_bytes <= n, "code outside");
    if (object.plan.n_args > MOST_ARGS)
        return;
    size_t n_args = object.plan.n_args ? object.plan.n_args : 1;
    void **args = calloc(n_args, sizeof *args);
    REQUIRE(args, "memory");
    ask(&object.plan, !object.elf, args);
    memset(args, 0x7f, sizeof *args * n_args);
    ask(&object.plan, !object.elf, args);
    free(args);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    void *exact = malloc(n ? n : 1); /* aligned */
    REQUIRE(exact, "memory");
    if (n)
        memcpy(exact, bytes, n);
    take(exact, n);
    free(exact);
    return 0;
}

/* See cuda_yardstick.h. */
#include "bench/cuda_yardstick.h"
#include "bench/timing.h"

#include <dlfcn.h>
#include <kiln.h>
#include <stdio.h>

typedef unsigned long long Pointer;

static struct {
    int (*init)(unsigned);
    int (*version)(int *);
    int (*device)(int *, int);
    int (*name)(char *, int, int);
    int (*attribute)(int *, int, int);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*synchronize)(void);
    int (*memory)(size_t *, size_t *);
    int (*alloc)(Pointer *, size_t);
    int (*fill)(Pointer, unsigned char, size_t);
    int (*copy)(Pointer, Pointer, size_t, void *);
    int (*load)(void **, const void *);
    int (*function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    void *context;
} cu;

static const struct {
    const char *symbol;
    void *slot;
} symbols[] = {
    {"cuInit", &cu.init},
    {"cuDriverGetVersion", &cu.version},
    {"cuDeviceGet", &cu.device},
    {"cuDeviceGetName", &cu.name},
    {"cuDeviceGetAttribute", &cu.attribute},
    {"cuDevicePrimaryCtxRetain", &cu.retain},
    {"cuCtxSetCurrent", &cu.set_current},
    {"cuCtxSynchronize", &cu.synchronize},
    {"cuMemGetInfo_v2", &cu.memory},
    {"cuMemAlloc_v2", &cu.alloc},
    {"cuMemsetD8_v2", &cu.fill},
    {"cuMemcpyDtoDAsync_v2", &cu.copy},
    {"cuModuleLoadData", &cu.load},
    {"cuModuleGetFunction", &cu.function},
    {"cuLaunchKernel", &cu.launch},
};

enum { MULTIPROCESSORS = 16, L2_BYTES = 38, MAJOR = 75, MINOR = 76 }; /* CUdevice_attribute */

static bool load_driver(char *why, size_t room)
{
    char name[512];
    if (kiln_get_option("libcuda", name, sizeof name) != KILN_OK || !*name)
        snprintf(name, sizeof name, "libcuda.so.1");
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, room, "%s", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].symbol);
        if (!found) {
            snprintf(why, room, "%s has no %s", name, symbols[i].symbol);
            return false;
        }
        *(void **)symbols[i].slot = found;
    }
    return true;
}

bool yardstick_open(int ordinal, CudaFacts *facts, char *why, size_t room)
{
    int device, l2 = 0;
    *facts = (CudaFacts){.name = ""};
    if (!load_driver(why, room))
        return false;
    int result = cu.init(0);
    if (result == 0)
        result = cu.device(&device, ordinal);
    if (result == 0)
        result = cu.retain(&cu.context, device);
    if (result == 0)
        result = cu.set_current(cu.context);
    if (result != 0) {
        snprintf(why, room, "the driver says %d", result);
        return false;
    }
    result = cu.version(&facts->driver) | cu.name(facts->name, sizeof facts->name, device) | cu.attribute(&facts->major, MAJOR, device) |
             cu.attribute(&facts->minor, MINOR, device) | cu.attribute(&facts->multiprocessors, MULTIPROCESSORS, device) |
             cu.attribute(&l2, L2_BYTES, device) | cu.memory(&facts->free_bytes, &facts->memory_bytes);
    facts->l2_bytes = l2 > 0 ? (size_t)l2 : 0;
    if (result != 0)
        snprintf(why, room, "the driver does not describe the device");
    return result == 0;
}

double yardstick_copy(size_t bytes, int n)
{
    static Pointer from[2], to[2];
    static size_t room;
    cu.set_current(cu.context);
    if (room == 0) {
        for (int i = 0; i < 2; i++)
            if (cu.alloc(&from[i], bytes) != 0 || cu.alloc(&to[i], bytes) != 0 || cu.fill(from[i], (unsigned char)(1 + i), bytes) != 0)
                return -1;
        room = bytes;
    }
    if (bytes > room || cu.synchronize() != 0)
        return -1;
    double start = now_seconds();
    for (int i = 0; i < n; i++)
        if (cu.copy(to[i % 2], from[i % 2], bytes, NULL) != 0)
            return -1;
    return cu.synchronize() == 0 ? (now_seconds() - start) / n : -1;
}

double yardstick_launch(int n)
{
    static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n";
    static void *module, *function;
    cu.set_current(cu.context);
    if (!function && (cu.load(&module, ptx) != 0 || cu.function(&function, module, "nothing") != 0))
        return -1;
    if (cu.launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0 || cu.synchronize() != 0)
        return -1;
    double start = now_seconds();
    for (int i = 0; i < n; i++)
        if (cu.launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0)
            return -1;
    double time = (now_seconds() - start) / n;
    return cu.synchronize() == 0 ? time : -1;
}

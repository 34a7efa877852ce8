/*
 * Kernels on a CUDA device: PTX becomes a module at its first launch on a device, entry functions are launched as jit/grid.h says.
 *
 * A loaded kernel belongs to the kernel table's entry (jit/kernel_table.h) and goes with it; what still runs on a stream then is waited
 * for by the driver's unload. All under the evaluation lock but the unloading, which may happen in any thread.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/cuda.h"
#include "runtime/device.h"

#include <stdio.h>
#include <string.h>

enum { /* the driver's numbers */
    INPUT_PTX = 1,
    JIT_ERROR_LOG = 5,
    JIT_ERROR_LOG_SIZE = 6,
    FUNCTION_LOCAL_BYTES = 3,
    FUNCTION_REGISTERS = 4,
    FUNCTION_MAX_SHARED = 8,
    DEFAULT_SHARED = 48 << 10
};

/* A kernel on one device. */
typedef struct Loaded {
    struct Loaded *next; /* on another device */
    CudaDevice *device;
    CuModule module;
    CuFunction function[];
} Loaded;

/* --- loading ------------------------------------------------------------------------------------------------------ */

static void unload(void *state)
{
    Loaded *loaded = state;
    while (loaded) {
        Loaded *next = loaded->next;
        CudaDevice *device;
        if (!cuda_forked() && cuda_open(loaded->device->ordinal, &device) == ST_OK)
            cuda.module_unload(loaded->module);
        os_free(loaded);
        loaded = next;
    }
}

static void log_function(const CudaDevice *d, const char *name, CuFunction function)
{
    int registers = 0, local = 0;
    cuda.function_attribute(&registers, FUNCTION_REGISTERS, function);
    cuda.function_attribute(&local, FUNCTION_LOCAL_BYTES, function);
    log_line(LOG_KERNELS, "cuda:%d: %s: %d registers, %d bytes of local memory a thread", d->ordinal, name, registers, local);
}

static Status load_functions(CudaDevice *d, const GridPlan *grid, Loaded *loaded)
{
    for (uint32_t i = 0; i < grid->n_phases; i++) {
        const char *entry = grid->phase[i].entry;
        TRY(cuda_check(d, cuda.module_function(&loaded->function[i], loaded->module, entry), entry));
        if (log_on(LOG_KERNELS))
            log_function(d, entry, loaded->function[i]);
    }
    return ST_OK;
}

/* The driver's assembler: machine code for this very device. */
Status cuda_assemble(int device, const char *ptx, const char *name, void **cubin, size_t *bytes)
{
    CudaDevice *d;
    CuLink link;
    char errors[1024] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE};
    void *values[] = {errors, (void *)(uintptr_t)sizeof errors}, *code;
    TRY(cuda_open(device - DEVICE_CUDA, &d));
    TRY(cuda_check(d, cuda.link_create(2, options, values, &link), name));
    CuResult result = cuda.link_add(link, INPUT_PTX, (void *)(uintptr_t)ptx, strlen(ptx) + 1, name, 0, NULL, NULL);
    if (result == 0)
        result = cuda.link_complete(link, &code, bytes);
    Status status = cuda_check(d, result, name);
    if (status != ST_OK && errors[0])
        status = fail(status, "%s: %s", fail_message(), errors);
    *cubin = status == ST_OK ? os_alloc(*bytes) : NULL; /* it goes with the link */
    if (*cubin)
        memcpy(*cubin, code, *bytes);
    else if (status == ST_OK)
        status = fail(ST_OUT_OF_MEMORY, "no memory for the code of kernel %s", name);
    cuda.link_destroy(link);
    return status;
}

/* From the machine code where there is some; a driver that does not take it (an older one, say) gets the PTX. */
static Status load(CudaDevice *d, const GridObject *object, const char *name, Loaded **out)
{
    const GridPlan *grid = object->plan;
    char errors[1024] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE};
    void *values[] = {errors, (void *)(uintptr_t)sizeof errors};
    Loaded *loaded = os_calloc(1, sizeof *loaded + sizeof *loaded->function * grid->n_phases);
    if (!loaded)
        return fail(ST_OUT_OF_MEMORY, "no memory for loading kernel %s", name);
    loaded->device = d;
    Status status = ST_OK;
    if (!object->cubin || cuda.module_load(&loaded->module, object->cubin, 0, NULL, NULL) != 0)
        status = cuda_check(d, cuda.module_load(&loaded->module, object->ptx, 2, options, values), name);
    if (status != ST_OK && errors[0])
        status = fail(status, "%s: %s", fail_message(), errors);
    if (status == ST_OK) {
        status = load_functions(d, grid, loaded);
        if (status != ST_OK)
            cuda.module_unload(loaded->module);
    }
    if (status != ST_OK) {
        os_free(loaded);
        return status;
    }
    *out = loaded;
    return ST_OK;
}

static Status load_once(CudaDevice *d, CompiledKernel *kernel, const char *name)
{
    for (Loaded *l = kernel->loaded; l; l = l->next)
        if (l->device == d)
            return ST_OK;
    Loaded *fresh;
    TRY(load(d, &kernel->grid, name, &fresh));
    fresh->next = kernel->loaded;
    kernel->loaded = fresh;
    kernel->unload = unload;
    return ST_OK;
}

/* --- launching ------------------------------------------------------------------------------------------------------ */

static Status launch_phase(CudaDevice *d, CudaStream *stream, CuFunction function, const GridLaunch *g, void *block, const char *name)
{
    if (g->blocks > INT32_MAX)
        return fail(ST_UNSUPPORTED, "kernel %s: a grid of %lld blocks is too large", name, (long long)g->blocks);
    if (g->shared > DEFAULT_SHARED)
        TRY(cuda_check(d, cuda.function_set(function, FUNCTION_MAX_SHARED, (int)g->shared), name));
    void *parameters[] = {block};
    TRY(cuda_check(d, cuda.launch(function, (unsigned)g->blocks, 1, 1, g->threads, 1, 1, g->shared, stream->stream, parameters, NULL), name));
    if (option_int(OPT_SYNC))
        TRY(cuda_check(d, cuda.stream_synchronize(stream->stream), name));
    return ST_OK;
}

static Status launch_all(CudaDevice *d, CudaStream *stream, CompiledKernel *kernel, const char *name, void **args, uint32_t n_args)
{
    const GridPlan *grid = kernel->grid.plan;
    TRY(load_once(d, kernel, name));
    Loaded *loaded = kernel->loaded;
    while (loaded->device != d)
        loaded = loaded->next;
    size_t bytes = sizeof *args * n_args;
    CuPointer copy = 0;
    void *block = args;
    Status status = ST_OK;
    if (grid->by_pointer) {
        TRY(cuda_alloc(d, stream, bytes, &copy));
        status = cuda_copy_in(d, stream, copy, (const char *)args, bytes);
        block = &copy;
    }
    for (uint32_t i = 0; i < grid->n_phases && status == ST_OK; i++) {
        GridLaunch g = grid_launch(grid, i, args, d->multiprocessors);
        if (g.blocks > 0)
            status = launch_phase(d, stream, loaded->function[i], &g, block, name);
    }
    if (grid->by_pointer)
        cuda_free(d, stream, copy, bytes);
    return status;
}

/* --- what runtime/launch.c calls ------------------------------------------------------------------------------------ */

Status cuda_run_load(int device, CompiledKernel *kernel, const char *name)
{
    CudaDevice *d;
    TRY(cuda_open(device - DEVICE_CUDA, &d));
    return load_once(d, kernel, name);
}

int64_t cuda_run_scratch(int device, const CompiledKernel *kernel, void *const *args)
{
    CudaDevice *d;
    return cuda_open(device - DEVICE_CUDA, &d) == ST_OK ? grid_scratch(kernel->grid.plan, args, d->multiprocessors) : 0;
}

Status cuda_run_kernel(int device, CompiledKernel *kernel, const char *name, void **args, uint32_t n_args)
{
    CudaDevice *d;
    CudaStream *stream;
    TRY(cuda_open(device - DEVICE_CUDA, &d));
    TRY(cuda_stream(d, &stream));
    return launch_all(d, stream, kernel, name, args, n_args);
}

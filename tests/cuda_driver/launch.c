// A launch: its configuration held against the limits of the device and the kernel, its parameters taken, then run.
#include "tests/cuda_driver/driver.h"
#include "tests/cuda_driver/exec.h"

#include <stdlib.h>
#include <string.h>

static CUresult refuse(const Kernel *k, CUresult code, const char *what, unsigned long long have, unsigned long long limit)
{
    report("launch of %s refused: %s is %llu, the limit is %llu", k->name, what, have, limit);
    return code;
}

static CUresult check_shape(const Function *f, const unsigned grid[3], const unsigned block[3], unsigned shared)
{
    static const unsigned grid_limit[3] = {0x7fffffff, 65535, 65535}, block_limit[3] = {1024, 1024, 64};
    const Kernel *k = f->kernel;
    unsigned long long threads = 1;
    for (int i = 0; i < 3; i++) {
        if (grid[i] == 0 || grid[i] > grid_limit[i])
            return refuse(k, CUDA_ERROR_INVALID_VALUE, "a grid dimension", grid[i], grid_limit[i]);
        if (block[i] == 0 || block[i] > block_limit[i])
            return refuse(k, CUDA_ERROR_INVALID_VALUE, "a block dimension", block[i], block_limit[i]);
        threads *= block[i];
    }
    unsigned long long most = k->maxntid[0] ? (unsigned long long)k->maxntid[0] * k->maxntid[1] * k->maxntid[2] : 1024;
    if (threads > most || threads > 1024)
        return refuse(k, CUDA_ERROR_INVALID_VALUE, "threads per block", threads, most < 1024 ? most : 1024);
    if (k->reqntid[0] && memcmp(block, k->reqntid, sizeof k->reqntid))
        return refuse(k, CUDA_ERROR_INVALID_VALUE, "threads per block (.reqntid wants others)", threads,
                      (unsigned long long)k->reqntid[0] * k->reqntid[1] * k->reqntid[2]);
    unsigned plain = 48u << 10;
    unsigned long long limit = f->dynamic_limit ? f->dynamic_limit : plain > k->shared_bytes ? plain - k->shared_bytes : 0;
    if (shared > limit || shared + k->shared_bytes > device_shared_limit())
        return refuse(k, CUDA_ERROR_INVALID_VALUE, "dynamic shared memory", shared, limit);
    return CUDA_SUCCESS;
}

static CUresult take_params(KernelCommand *out, const Kernel *k, void **params, void **extra)
{
    const uint8_t *buffer = NULL;
    size_t size = 0;
    for (size_t i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(const size_t *)extra[i + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if ((params && extra) || (extra && !buffer))
        return CUDA_ERROR_INVALID_VALUE;
    size_t most = 10 * settings.major + settings.minor >= 70 && settings.driver >= 12010 ? 32764 : 4096;
    if (k->param_bytes > most)
        return refuse(k, CUDA_ERROR_INVALID_VALUE, "bytes of parameters", k->param_bytes, most);
    if (k->param_count && !params && (!buffer || size < k->param_bytes))
        return refuse(k, CUDA_ERROR_INVALID_VALUE, "bytes of parameters missing: what the kernel wants", k->param_bytes, size);
    out->param_bytes = k->param_bytes;
    out->params = calloc(1, k->param_bytes + 1);
    if (!out->params)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (buffer) {
        memcpy(out->params, buffer, k->param_bytes);
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < k->param_count; i++) {
        if (!params[i]) {
            free(out->params);
            out->params = NULL;
            return refuse(k, CUDA_ERROR_INVALID_VALUE, "a null pointer is given for parameter; its index", i, k->param_count);
        }
        memcpy(out->params + k->params[i].offset, params[i], k->params[i].size);
    }
    return CUDA_SUCCESS;
}

CUresult launch_prepare(KernelCommand *out, CUfunction handle, const unsigned grid[3], const unsigned block[3], unsigned shared,
                        void **params, void **extra)
{
    Function *f = object_check(handle, OBJECT_FUNCTION);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = (KernelCommand){.function = f, .shared = shared};
    memcpy(out->grid, grid, sizeof out->grid);
    memcpy(out->block, block, sizeof out->block);
    CUresult result = check_shape(f, grid, block, shared);
    return result ? result : take_params(out, f->kernel, params, extra);
}

CUresult launch_submit(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream stream,
                       void **params, void **extra)
{
    Stream *s;
    CUresult result = stream_get(stream, &s);
    if (result)
        return result;
    Command c = {.kind = COMMAND_KERNEL};
    result = launch_prepare(&c.u.kernel, function, grid, block, shared, params, extra);
    if (result)
        return result;
    if (c.u.kernel.function->module->context != s->context) {
        command_release(&c);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return stream_submit(s, &c);
}

CUresult launch_run(const KernelCommand *kernel, Context *context, uint64_t graph)
{
    Launch launch = {.kernel = kernel->function->kernel,
                     .threads = kernel->block[0] * kernel->block[1] * kernel->block[2],
                     .dynamic_shared = kernel->shared,
                     .params = kernel->params,
                     .context = context,
                     .graph = graph,
                     .device = context->device,
                     .multiprocessors = (uint32_t)settings.sms,
                     .id = counters.launches++};
    memcpy(launch.grid, kernel->grid, sizeof launch.grid);
    memcpy(launch.block, kernel->block, sizeof launch.block);
    return exec_run(&launch);
}

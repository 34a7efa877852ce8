// The entry points. Each is one CALL: lock, count, perhaps fail on request, check that the driver is initialised and a whole
// context current where the call needs it, then the work, which lives in the other files.
#include "tests/cuda_driver/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum Need { NEEDS_NOTHING, NEEDS_INIT, NEEDS_CONTEXT } Need;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pid_t initialized; // the process that called cuInit: a child of it has no driver
static bool over;         // the process ends: what runs at exit after this library's turn finds no driver

void api_lock(void) { pthread_mutex_lock(&lock); }

void api_unlock(void) { pthread_mutex_unlock(&lock); }

static CUresult enter(const char *name, Need need)
{
    before_next(name);
    api_lock();
    bool sticky;
    CUresult injected = fault_next(name, &sticky);
    if (injected) {
        if (sticky)
            context_break(context_current(), injected);
        return injected;
    }
    if (need >= NEEDS_INIT && initialized != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (need >= NEEDS_INIT && over)
        return CUDA_ERROR_DEINITIALIZED;
    if (need < NEEDS_CONTEXT)
        return CUDA_SUCCESS;
    const Context *c = context_current();
    if (!c)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (c->primary && c->retained == 0)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return c->sticky;
}

static CUresult leave(CUresult result)
{
    api_unlock();
    return result;
}

// The name that injection knows is the function's own.
#define CALL(need, work)                          \
    do {                                          \
        CUresult result_ = enter(__func__, need); \
        if (result_ == CUDA_SUCCESS)              \
            result_ = (work);                     \
        return leave(result_);                    \
    } while (0)

#define SIMPLE(name, need, params, work) \
    API CUresult name params;            \
    API CUresult name params { CALL(need, work); }

// ---- driver, devices, contexts ----

static void at_exit(void)
{
    api_lock();
    over = true;
    api_unlock();
}

static CUresult init(unsigned flags)
{
    if (flags || settings.malformed) // a test whose settings are misspelt is no test
        return CUDA_ERROR_INVALID_VALUE;
    if (initialized && initialized != getpid())
        return CUDA_ERROR_NOT_INITIALIZED; // in a child process
    if (settings.devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (!initialized && atexit(at_exit))
        return CUDA_ERROR_OPERATING_SYSTEM;
    initialized = getpid();
    return CUDA_SUCCESS;
}

static CUresult give_int(int *out, int value)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = value;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *out, int ordinal)
{
    return ordinal < 0 || ordinal >= settings.devices ? CUDA_ERROR_INVALID_DEVICE : give_int(out, ordinal);
}

static bool bad_device(CUdevice device) { return device < 0 || device >= settings.devices; }

static CUresult device_name(char *out, int size, CUdevice device)
{
    if (!out || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bad_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(out, (size_t)size, "%s", settings.name);
    return CUDA_SUCCESS;
}

static CUresult device_memory(size_t *out, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (bad_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = memory_total();
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *out, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (bad_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, "kilntest", 8);
    out->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

static CUresult give_error(const char **out, const char *text)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = text;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult give_context(CUcontext *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = context_current();
    return CUDA_SUCCESS;
}

static CUresult current_device(CUdevice *out) { return give_int(out, context_current()->device); }

static CUresult synchronize_context(void)
{
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    counters.synchronizations++;
    return stream_drain_context(context_current());
}

SIMPLE(cuInit, NEEDS_NOTHING, (unsigned flags), init(flags))
SIMPLE(cuDriverGetVersion, NEEDS_NOTHING, (int *out), give_int(out, settings.driver))
SIMPLE(cuDeviceGetCount, NEEDS_INIT, (int *out), give_int(out, settings.devices))
SIMPLE(cuDeviceGet, NEEDS_INIT, (CUdevice * out, int ordinal), device_get(out, ordinal))
SIMPLE(cuDeviceGetName, NEEDS_INIT, (char *out, int size, CUdevice device), device_name(out, size, device))
SIMPLE(cuDeviceTotalMem_v2, NEEDS_INIT, (size_t * out, CUdevice device), device_memory(out, device))
SIMPLE(cuDeviceGetUuid_v2, NEEDS_INIT, (CUuuid * out, CUdevice device), device_uuid(out, device))
SIMPLE(cuDeviceGetAttribute, NEEDS_INIT, (int *out, CUdevice_attribute attribute, CUdevice device),
       device_attribute(out, attribute, device))
SIMPLE(cuDevicePrimaryCtxRetain, NEEDS_INIT, (CUcontext * out, CUdevice device), context_retain(out, device))
SIMPLE(cuDevicePrimaryCtxRelease_v2, NEEDS_INIT, (CUdevice device), context_release(device))
SIMPLE(cuDevicePrimaryCtxReset_v2, NEEDS_INIT, (CUdevice device), context_reset(device))
SIMPLE(cuDevicePrimaryCtxGetState, NEEDS_INIT, (CUdevice device, unsigned *flags, int *active), context_state(device, flags, active))
SIMPLE(cuDevicePrimaryCtxSetFlags_v2, NEEDS_INIT, (CUdevice device, unsigned flags), ((void)flags, context_state(device, NULL, NULL)))
SIMPLE(cuCtxCreate_v2, NEEDS_INIT, (CUcontext * out, unsigned flags, CUdevice device), ((void)flags, context_create(out, device)))
SIMPLE(cuCtxDestroy_v2, NEEDS_INIT, (CUcontext context), context_destroy(context))
SIMPLE(cuCtxSetCurrent, NEEDS_INIT, (CUcontext context), context_set(context))
SIMPLE(cuCtxGetCurrent, NEEDS_INIT, (CUcontext * out), give_context(out))
SIMPLE(cuCtxPushCurrent_v2, NEEDS_INIT, (CUcontext context), context_push(context))
SIMPLE(cuCtxPopCurrent_v2, NEEDS_INIT, (CUcontext * out), context_pop(out))
SIMPLE(cuCtxGetDevice, NEEDS_CONTEXT, (CUdevice * out), current_device(out))
SIMPLE(cuCtxSynchronize, NEEDS_CONTEXT, (void), synchronize_context())

// These two neither count nor fail on request: they are how a failure gets its name.
API CUresult cuGetErrorName(CUresult error, const char **out);
API CUresult cuGetErrorName(CUresult error, const char **out) { return give_error(out, error_name(error)); }

API CUresult cuGetErrorString(CUresult error, const char **out);
API CUresult cuGetErrorString(CUresult error, const char **out) { return give_error(out, error_text(error)); }

// ---- memory ----

static CUresult allocate(CUdeviceptr *out, size_t size, bool async)
{
    if (!out || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (!async && capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Allocation *a;
    CUresult result = memory_new(&a, size, ALLOCATION_DEVICE, context_current()->device);
    if (result == CUDA_SUCCESS)
        *out = a->address;
    return result;
}

static CUresult release(CUdeviceptr address)
{
    if (!address)
        return CUDA_SUCCESS;
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Allocation *a = memory_at(address);
    if (!a || a->kind != ALLOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_drain_context(context_current()); // a device waits for its work, too
    a = memory_at(address);
    if (a)
        memory_free(a);
    return result;
}

static CUresult allocate_async(CUdeviceptr *out, size_t size, CUstream stream)
{
    Stream *s;
    CUresult result = stream_get(stream, &s);
    if (result)
        return result;
    return s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : allocate(out, size, true);
}

static CUresult release_async(CUdeviceptr address, CUstream stream)
{
    Stream *s;
    CUresult result = stream_get(stream, &s);
    Allocation *a = memory_at(address);
    if (result)
        return result;
    if (s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!a || a->kind != ALLOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    Command c = {.kind = COMMAND_FREE, .u.free = address};
    return stream_submit(s, &c);
}

static CUresult allocate_host(void **out, size_t size)
{
    if (!out || !size)
        return CUDA_ERROR_INVALID_VALUE;
    Allocation *a;
    CUresult result = memory_new(&a, size, ALLOCATION_HOST, context_current()->device);
    if (result == CUDA_SUCCESS)
        *out = a->bytes;
    return result;
}

static CUresult release_host(void *p)
{
    Allocation *a = memory_at((uint64_t)(uintptr_t)p);
    if (!a || a->kind != ALLOCATION_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_drain_context(context_current());
    memory_free(a);
    return result;
}

static CUresult host_address(CUdeviceptr *out, void *p)
{
    if (!out || !memory_host(p, 1))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

static CUresult memory_info(size_t *left, size_t *total)
{
    if (!left || !total)
        return CUDA_ERROR_INVALID_VALUE;
    size_t used = memory_in_use(context_current()->device);
    *total = memory_total();
    *left = used > *total ? 0 : *total - used;
    return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    const Allocation *a = memory_find(address);
    if (!a)
        return CUDA_ERROR_INVALID_VALUE;
    if (base)
        *base = a->address;
    if (size)
        *size = a->size;
    return CUDA_SUCCESS;
}

static CUresult check_host(const void *p, size_t size) { return p || !size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

static CUresult copy_in(CUstream stream, bool async, CUdeviceptr to, const void *from, size_t size)
{
    CUresult result = check_host(from, size);
    return result ? result : copy_submit(stream, async, (CopyCommand){.to = to, .from_host = from, .size = size});
}

static CUresult copy_out(CUstream stream, bool async, void *to, CUdeviceptr from, size_t size)
{
    CUresult result = check_host(to, size);
    return result ? result : copy_submit(stream, async, (CopyCommand){.to_host = to, .from = from, .size = size});
}

static CUresult copy_over(CUstream stream, bool async, CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_submit(stream, async, (CopyCommand){.to = to, .from = from, .size = size});
}

SIMPLE(cuMemAlloc_v2, NEEDS_CONTEXT, (CUdeviceptr * out, size_t size), allocate(out, size, false))
SIMPLE(cuMemFree_v2, NEEDS_CONTEXT, (CUdeviceptr address), release(address))
SIMPLE(cuMemAllocAsync, NEEDS_CONTEXT, (CUdeviceptr * out, size_t size, CUstream stream), allocate_async(out, size, stream))
SIMPLE(cuMemFreeAsync, NEEDS_CONTEXT, (CUdeviceptr address, CUstream stream), release_async(address, stream))
SIMPLE(cuMemHostAlloc, NEEDS_CONTEXT, (void **out, size_t size, unsigned flags), ((void)flags, allocate_host(out, size)))
SIMPLE(cuMemAllocHost_v2, NEEDS_CONTEXT, (void **out, size_t size), allocate_host(out, size))
SIMPLE(cuMemFreeHost, NEEDS_CONTEXT, (void *p), release_host(p))
SIMPLE(cuMemHostGetDevicePointer_v2, NEEDS_CONTEXT, (CUdeviceptr * out, void *p, unsigned flags), ((void)flags, host_address(out, p)))
SIMPLE(cuMemGetInfo_v2, NEEDS_CONTEXT, (size_t * left, size_t *total), memory_info(left, total))
SIMPLE(cuMemGetAddressRange_v2, NEEDS_CONTEXT, (CUdeviceptr * base, size_t *size, CUdeviceptr address), address_range(base, size, address))
SIMPLE(cuMemcpyHtoD_v2, NEEDS_CONTEXT, (CUdeviceptr to, const void *from, size_t size), copy_in(NULL, false, to, from, size))
SIMPLE(cuMemcpyDtoH_v2, NEEDS_CONTEXT, (void *to, CUdeviceptr from, size_t size), copy_out(NULL, false, to, from, size))
SIMPLE(cuMemcpyDtoD_v2, NEEDS_CONTEXT, (CUdeviceptr to, CUdeviceptr from, size_t size), copy_over(NULL, true, to, from, size))
SIMPLE(cuMemcpyHtoDAsync_v2, NEEDS_CONTEXT, (CUdeviceptr to, const void *from, size_t size, CUstream stream),
       copy_in(stream, true, to, from, size))
SIMPLE(cuMemcpyDtoHAsync_v2, NEEDS_CONTEXT, (void *to, CUdeviceptr from, size_t size, CUstream stream),
       copy_out(stream, true, to, from, size))
SIMPLE(cuMemcpyDtoDAsync_v2, NEEDS_CONTEXT, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
       copy_over(stream, true, to, from, size))
SIMPLE(cuMemsetD8_v2, NEEDS_CONTEXT, (CUdeviceptr to, unsigned char value, size_t count),
       set_submit(NULL, false, (SetCommand){to, value, 1, count}))
SIMPLE(cuMemsetD16_v2, NEEDS_CONTEXT, (CUdeviceptr to, unsigned short value, size_t count),
       set_submit(NULL, false, (SetCommand){to, value, 2, count}))
SIMPLE(cuMemsetD32_v2, NEEDS_CONTEXT, (CUdeviceptr to, unsigned value, size_t count),
       set_submit(NULL, false, (SetCommand){to, value, 4, count}))
SIMPLE(cuMemsetD8Async, NEEDS_CONTEXT, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
       set_submit(stream, true, (SetCommand){to, value, 1, count}))
SIMPLE(cuMemsetD16Async, NEEDS_CONTEXT, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
       set_submit(stream, true, (SetCommand){to, value, 2, count}))
SIMPLE(cuMemsetD32Async, NEEDS_CONTEXT, (CUdeviceptr to, unsigned value, size_t count, CUstream stream),
       set_submit(stream, true, (SetCommand){to, value, 4, count}))

// ---- streams and events ----

static CUresult priority_range(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

SIMPLE(cuStreamCreate, NEEDS_CONTEXT, (CUstream * out, unsigned flags), stream_create(out, flags))
SIMPLE(cuStreamCreateWithPriority, NEEDS_CONTEXT, (CUstream * out, unsigned flags, int priority),
       ((void)priority, stream_create(out, flags)))
SIMPLE(cuCtxGetStreamPriorityRange, NEEDS_CONTEXT, (int *least, int *greatest), priority_range(least, greatest))
SIMPLE(cuStreamDestroy_v2, NEEDS_CONTEXT, (CUstream stream), stream_destroy(stream))
SIMPLE(cuStreamSynchronize, NEEDS_CONTEXT, (CUstream stream), stream_synchronize(stream))
SIMPLE(cuStreamQuery, NEEDS_CONTEXT, (CUstream stream), stream_query(stream))
SIMPLE(cuStreamWaitEvent, NEEDS_CONTEXT, (CUstream stream, CUevent event, unsigned flags), ((void)flags, stream_wait(stream, event)))
SIMPLE(cuEventCreate, NEEDS_CONTEXT, (CUevent * out, unsigned flags), event_create(out, flags))
SIMPLE(cuEventDestroy_v2, NEEDS_CONTEXT, (CUevent event), event_destroy(event))
SIMPLE(cuEventRecord, NEEDS_CONTEXT, (CUevent event, CUstream stream), event_record(event, stream))
SIMPLE(cuEventQuery, NEEDS_CONTEXT, (CUevent event), event_query(event))
SIMPLE(cuEventSynchronize, NEEDS_CONTEXT, (CUevent event), event_synchronize(event))
SIMPLE(cuEventElapsedTime, NEEDS_CONTEXT, (float *out, CUevent start, CUevent end), event_elapsed(out, start, end))
SIMPLE(cuEventElapsedTime_v2, NEEDS_CONTEXT, (float *out, CUevent start, CUevent end), event_elapsed(out, start, end))

// ---- modules ----

static const JitOptions no_options;

static JitOptions jit_options(unsigned count, const CUjit_option *option, void **value)
{
    return option && value ? (JitOptions){count, option, value} : no_options;
}

static CUresult load_forbidden(CUmodule *out, const void *image, JitOptions options)
{
    return capture_forbids() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : module_load(out, image, options);
}

static CUresult link_add(CUlinkState state, CUjitInputType type, void *data, size_t size, JitOptions options)
{
    return linker_add(state, type, data, size, options);
}

SIMPLE(cuModuleLoadData, NEEDS_CONTEXT, (CUmodule * out, const void *image), load_forbidden(out, image, no_options))
SIMPLE(cuModuleLoadDataEx, NEEDS_CONTEXT, (CUmodule * out, const void *image, unsigned count, CUjit_option *option, void **value),
       load_forbidden(out, image, jit_options(count, option, value)))
SIMPLE(cuModuleUnload, NEEDS_CONTEXT, (CUmodule module), module_unload(module))
SIMPLE(cuModuleGetFunction, NEEDS_CONTEXT, (CUfunction * out, CUmodule module, const char *name), module_function(out, module, name))
SIMPLE(cuModuleGetGlobal_v2, NEEDS_CONTEXT, (CUdeviceptr * out, size_t *size, CUmodule module, const char *name),
       module_global(out, size, module, name))
SIMPLE(cuLinkCreate_v2, NEEDS_CONTEXT, (unsigned count, CUjit_option *option, void **value, CUlinkState *out),
       linker_create(out, jit_options(count, option, value)))
SIMPLE(cuLinkAddData_v2, NEEDS_CONTEXT,
       (CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned count, CUjit_option *option,
        void **value),
       ((void)name, link_add(state, type, data, size, jit_options(count, option, value))))
SIMPLE(cuLinkComplete, NEEDS_CONTEXT, (CUlinkState state, void **cubin, size_t *size), linker_complete(state, cubin, size))
SIMPLE(cuLinkDestroy, NEEDS_CONTEXT, (CUlinkState state), linker_destroy(state))
SIMPLE(cuFuncGetAttribute, NEEDS_CONTEXT, (int *out, CUfunction_attribute attribute, CUfunction function),
       function_attribute(out, attribute, function))
SIMPLE(cuFuncSetAttribute, NEEDS_CONTEXT, (CUfunction function, CUfunction_attribute attribute, int value),
       function_set_attribute(function, attribute, value))

static CUresult set_cache_config(CUfunction function)
{
    return object_check(function, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIMPLE(cuFuncSetCacheConfig, NEEDS_CONTEXT, (CUfunction function, CUfunc_cache config), ((void)config, set_cache_config(function)))

// Blocks that fit by threads and shared memory; registers are not allocated here.
static CUresult occupancy(int *out, CUfunction handle, int threads, size_t dynamic)
{
    const Function *f = object_check(handle, OBJECT_FUNCTION);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || threads <= 0 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    int per_sm, blocks, shared;
    device_attribute(&per_sm, 39, f->module->context->device);
    device_attribute(&blocks, 106, f->module->context->device);
    device_attribute(&shared, 81, f->module->context->device);
    int by_threads = per_sm / ((threads + LANES - 1) / LANES * LANES);
    size_t bytes = f->kernel->shared_bytes + dynamic;
    int by_shared = bytes ? shared / (int)(bytes + 1024) : blocks;
    *out = by_threads < blocks ? by_threads : blocks;
    if (by_shared < *out)
        *out = by_shared;
    return CUDA_SUCCESS;
}

SIMPLE(cuOccupancyMaxActiveBlocksPerMultiprocessor, NEEDS_CONTEXT, (int *out, CUfunction function, int threads, size_t dynamic),
       occupancy(out, function, threads, dynamic))

// ---- launches ----

static CUresult launch_with(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        unsigned cluster[3];
        memcpy(cluster, &a->value, sizeof cluster);
        bool plain = a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && cluster[0] == 1 && cluster[1] == 1 && cluster[2] == 1;
        if (a->id != CU_LAUNCH_ATTRIBUTE_IGNORE && !plain) {
            report("launch attribute %d is not supported", a->id);
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return launch_submit(function, (unsigned[3]){config->gridDimX, config->gridDimY, config->gridDimZ},
                         (unsigned[3]){config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes, config->hStream,
                         params, extra);
}

SIMPLE(cuLaunchKernel, NEEDS_CONTEXT,
       (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
        void **params, void **extra),
       launch_submit(function, (unsigned[3]){gx, gy, gz}, (unsigned[3]){bx, by, bz}, shared, stream, params, extra))
SIMPLE(cuLaunchKernelEx, NEEDS_CONTEXT, (const CUlaunchConfig *config, CUfunction function, void **params, void **extra),
       launch_with(config, function, params, extra))

// ---- graphs ----

SIMPLE(cuStreamBeginCapture_v2, NEEDS_CONTEXT, (CUstream stream, CUstreamCaptureMode mode), capture_begin(stream, mode))
SIMPLE(cuStreamEndCapture, NEEDS_CONTEXT, (CUstream stream, CUgraph *out), capture_end(stream, out))
SIMPLE(cuStreamIsCapturing, NEEDS_CONTEXT, (CUstream stream, CUstreamCaptureStatus *status), capture_status(stream, status))
SIMPLE(cuStreamGetCaptureInfo_v3, NEEDS_CONTEXT,
       (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
        const CUgraphEdgeData **edges, size_t *count),
       capture_info(stream, status, id, graph, after, edges, count))
SIMPLE(cuGraphCreate, NEEDS_CONTEXT, (CUgraph * out, unsigned flags), ((void)flags, graph_create(out)))
SIMPLE(cuGraphDestroy, NEEDS_CONTEXT, (CUgraph graph), graph_destroy(graph))
SIMPLE(cuGraphAddKernelNode_v2, NEEDS_CONTEXT,
       (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *params),
       graph_add_kernel(out, graph, after, count, params))
SIMPLE(cuGraphAddNode_v2, NEEDS_CONTEXT,
       (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params),
       graph_add_conditional(out, graph, after, edges, count, params))
SIMPLE(cuGraphConditionalHandleCreate, NEEDS_CONTEXT,
       (CUgraphConditionalHandle * out, CUgraph graph, CUcontext context, unsigned value, unsigned flags),
       graph_conditional(out, graph, context, value, flags))
SIMPLE(cuGraphGetNodes, NEEDS_CONTEXT, (CUgraph graph, CUgraphNode *nodes, size_t *count), graph_nodes(graph, nodes, count))
SIMPLE(cuGraphNodeGetType, NEEDS_CONTEXT, (CUgraphNode node, CUgraphNodeType *type), graph_node_type(node, type))
SIMPLE(cuGraphKernelNodeGetParams_v2, NEEDS_CONTEXT, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params), graph_kernel_params(node, params))
SIMPLE(cuGraphInstantiateWithFlags, NEEDS_CONTEXT, (CUgraphExec * out, CUgraph graph, unsigned long long flags),
       ((void)flags, graph_instantiate(out, graph)))
SIMPLE(cuGraphExecKernelNodeSetParams_v2, NEEDS_CONTEXT, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params),
       graph_exec_kernel_params(exec, node, params))
SIMPLE(cuGraphExecMemsetNodeSetParams, NEEDS_CONTEXT,
       (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
       ((void)context, graph_exec_memset_params(exec, node, params)))
SIMPLE(cuGraphExecUpdate_v2, NEEDS_CONTEXT, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info),
       graph_exec_update(exec, graph, info))
SIMPLE(cuGraphUpload, NEEDS_CONTEXT, (CUgraphExec exec, CUstream stream),
       ((void)stream, object_check(exec, OBJECT_GRAPH_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE))
SIMPLE(cuGraphLaunch, NEEDS_CONTEXT, (CUgraphExec exec, CUstream stream), graph_launch(exec, stream))
SIMPLE(cuGraphExecDestroy, NEEDS_CONTEXT, (CUgraphExec exec), graph_exec_destroy(exec))

// ---- looking up ----

static CUresult proc_address(const char *name, void **out, CUdriverProcAddressQueryResult *status);

API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status);
API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    (void)version, (void)flags;
    CALL(NEEDS_NOTHING, proc_address(name, out, status));
}

// By the name without a version: the one of CUDA 12 and later.
static const struct Entry {
    const char *name;
    void (*function)(void);
} entries[] = {
#define ENTRY(name, exported) {#name, (void (*)(void))exported},
#include "tests/cuda_driver/cuda_entries.def"
};

static CUresult proc_address(const char *name, void **out, CUdriverProcAddressQueryResult *status)
{
    if (!name || !out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(entries[i].name, name))
            memcpy(out, &entries[i].function, sizeof *out);
    if (status)
        *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// ---- the end of a context ----

void object_release(Object *o, const Context *owner)
{
    switch (o->kind) {
    case OBJECT_STREAM: {
        Stream *s = (Stream *)o;
        if (s->context != owner)
            return;
        stream_discard(s);
        s->capture = NULL;
        if (s != owner->null_stream)
            object_free(s);
        return;
    }
    case OBJECT_EVENT:
        if (((Event *)o)->context == owner)
            object_free(o);
        return;
    case OBJECT_LINKER:
        if (((Linker *)o)->context == owner)
            linker_free((Linker *)o);
        return;
    case OBJECT_MODULE:
        if (((Module *)o)->context == owner)
            module_free((Module *)o);
        return;
    case OBJECT_GRAPH:
        if (graph_context(o) == owner)
            graph_free((CUgraph)o);
        return;
    case OBJECT_GRAPH_EXEC:
        if (graph_context(o) == owner)
            graph_exec_free((CUgraphExec)o);
        return;
    case OBJECT_CONTEXT:
    case OBJECT_FUNCTION:
    case OBJECT_GRAPH_NODE:
    case OBJECT_CONDITIONAL:
    case OBJECT_KINDS: return;
    }
}

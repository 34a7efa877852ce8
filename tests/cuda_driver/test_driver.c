// The driver API around launches: devices, contexts, streams and events, graphs, the linker, injected failures, leaks.
#include "tests/cuda_driver/harness.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 64, BYTES = N * 4 };

static void devices(void)
{
    int n = 0, value = 0;
    CUdevice device;
    char name[64];
    size_t bytes;
    cu.test_cuda_reset();
    cu.test_cuda_configure("log=none,devices=2,cc=9.0,sms=132,driver=12040,name=a test device,memory=3G");
    CHECK_OK(cu.cuInit(0));
    CHECK_OK(cu.cuDeviceGetCount(&n));
    CHECK(n == 2);
    CHECK_OK(cu.cuDeviceGet(&device, 1));
    CHECK_CODE(cu.cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    CHECK_OK(cu.cuDeviceGetName(name, sizeof name, 1));
    CHECK(!strcmp(name, "a test device"));
    CHECK_OK(cu.cuDeviceTotalMem_v2(&bytes, 0));
    CHECK(bytes == (size_t)3 << 30);
    CHECK_OK(cu.cuDriverGetVersion(&value));
    CHECK(value == 12040);
    static const int attributes[][2] = {{16, 132}, {75, 9}, {76, 0}, {10, 32}, {97, 227 << 10}, {1, 1024}, {8, 48 << 10}};
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        CHECK_OK(cu.cuDeviceGetAttribute(&value, attributes[i][0], 0));
        CHECK(value == attributes[i][1]);
    }
    CHECK(cu.test_cuda_configure("nonsense=1") == -1);
    CHECK(cu.test_cuda_configure("cc=x") == -1);
    cu.test_cuda_reset();
    cu.test_cuda_configure("devices=0");
    CHECK_CODE(cu.cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void contexts(void)
{
    CUcontext a, b, got;
    CUdeviceptr p;
    harness_start("devices=2");
    CHECK_OK(cu.cuDevicePrimaryCtxRetain(&a, 0));
    CHECK_OK(cu.cuDevicePrimaryCtxRetain(&b, 1));
    CHECK(a != b);
    CHECK_OK(cu.cuCtxPushCurrent_v2(b));
    CHECK_OK(cu.cuCtxGetCurrent(&got));
    CHECK(got == b);
    CHECK_OK(cu.cuMemAlloc_v2(&p, 4)); // of device 1
    CHECK_OK(cu.cuMemsetD8_v2(p, 0, 4));
    CHECK_OK(cu.cuCtxPopCurrent_v2(&got));
    CHECK_OK(cu.cuCtxGetCurrent(&got));
    CHECK(got == a);
    CUfunction f = harness_function(harness_module("streams.ptx"), "add");
    uint32_t c = 1;
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&p, &p, &c)), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_REPORT("memory of device 1, the kernel runs on device 0");
    CHECK_OK(cu.cuDevicePrimaryCtxRelease_v2(0));
    CHECK_OK(cu.cuDevicePrimaryCtxRelease_v2(0)); // the last: gone, with its error
    CHECK_CODE(cu.cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK_CODE(cu.cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_OK(cu.cuDevicePrimaryCtxRetain(&a, 0));
    CHECK_OK(cu.cuCtxSynchronize());
    CHECK_OK(cu.cuCtxSetCurrent(NULL));
    CHECK_CODE(cu.cuMemAlloc_v2(&p, 4), CUDA_ERROR_INVALID_CONTEXT);
}

typedef struct Setup {
    CUmodule m;
    CUfunction add;
    CUdeviceptr a, b;
    uint32_t host[N];
} Setup;

static Setup set_up(const char *settings)
{
    Setup s = {0};
    harness_start(settings);
    s.m = harness_module("streams.ptx");
    s.add = harness_function(s.m, "add");
    for (uint32_t i = 0; i < N; i++)
        s.host[i] = i;
    s.a = harness_upload(s.host, BYTES);
    s.b = harness_empty(BYTES);
    return s;
}

static CUresult add_on(CUstream stream, Setup *s, CUdeviceptr to, CUdeviceptr from, uint32_t c)
{
    return cu.cuLaunchKernel(s->add, 2, 1, 1, N / 2, 1, 1, 0, stream, PARAMS(&to, &from, &c), NULL);
}

// Work runs as late as it may: without a wait the host sees what was there before.
static void late(void)
{
    Setup s = set_up("");
    CUstream stream;
    uint32_t *pinned;
    CHECK_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuMemHostAlloc((void **)&pinned, BYTES, 0));
    memset(pinned, 0, BYTES);
    CHECK_OK(add_on(stream, &s, s.b, s.a, 10));
    CHECK_OK(cu.cuMemcpyDtoHAsync_v2(pinned, s.b, BYTES, stream));
    CHECK(pinned[5] == 0);
    CHECK_CODE(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_OK(cu.cuStreamSynchronize(stream));
    CHECK_OK(cu.cuStreamQuery(stream));
    CHECK(pinned[5] == 15);
    // A staging buffer is read when the copy runs: used again too early, its old content is lost.
    pinned[0] = 111;
    CHECK_OK(cu.cuMemcpyHtoDAsync_v2(s.a, pinned, 4, stream));
    pinned[0] = 222;
    CHECK_OK(cu.cuStreamSynchronize(stream));
    uint32_t got = 0, pageable = 7;
    harness_download(&got, s.a, 4);
    CHECK(got == 222);
    CHECK_OK(cu.cuMemcpyHtoDAsync_v2(s.a, &pageable, 4, stream)); // of pageable memory a copy is taken at once
    pageable = 8;
    CHECK_OK(cu.cuStreamSynchronize(stream));
    harness_download(&got, s.a, 4);
    CHECK(got == 7);
    CHECK_OK(cu.cuMemFreeHost(pinned));
    CHECK_OK(cu.cuStreamDestroy_v2(stream));
}

static void order(void)
{
    // The second stream needs what the first one writes. With the event it is there; without, nobody has written it yet.
    for (int wait = 0; wait < 2; wait++) {
        Setup s = set_up("");
        CUstream first, second;
        CUevent done;
        CHECK_OK(cu.cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
        CHECK_OK(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
        CHECK_OK(cu.cuEventCreate(&done, 0));
        CUdeviceptr c = harness_empty(BYTES);
        CHECK_OK(add_on(first, &s, s.b, s.a, 1));
        CHECK_OK(cu.cuEventRecord(done, first));
        if (wait)
            CHECK_OK(cu.cuStreamWaitEvent(second, done, 0));
        CHECK_OK(add_on(second, &s, c, s.b, 1));
        CHECK_CODE(cu.cuStreamSynchronize(second), wait ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED);
        if (wait) {
            CHECK_OK(cu.cuEventQuery(done));
            uint32_t out[N];
            harness_download(out, c, BYTES);
            CHECK(out[9] == 11);
        } else {
            CHECK_REPORT("memory that nobody wrote");
        }
    }
}

static void events(void)
{
    Setup s = set_up("");
    CUevent start, end;
    float ms = -1;
    CHECK_OK(cu.cuEventCreate(&start, 0));
    CHECK_OK(cu.cuEventCreate(&end, 0));
    CHECK_OK(cu.cuEventRecord(start, NULL));
    CHECK_OK(add_on(NULL, &s, s.b, s.a, 1));
    CHECK_OK(cu.cuEventRecord(end, NULL));
    CHECK_CODE(cu.cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
    CHECK_OK(cu.cuEventSynchronize(end));
    CHECK_OK(cu.cuEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0);
    CHECK_OK(cu.cuEventDestroy_v2(start));
    CHECK_CODE(cu.cuEventQuery(start), CUDA_ERROR_INVALID_HANDLE); // a stale handle
    CHECK_OK(cu.cuEventDestroy_v2(end));
}

static void graphs(void)
{
    Setup s = set_up("");
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode nodes[8];
    CUdeviceptr p;
    size_t count = 8;
    uint32_t out[N];
    CHECK_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuStreamBeginCapture_v2(stream, 0));
    CHECK_OK(add_on(stream, &s, s.b, s.a, 5));
    CHECK_OK(add_on(stream, &s, s.b, s.b, 6));
    CHECK_OK(cu.cuMemcpyDtoDAsync_v2(s.a, s.b, BYTES, stream));
    CHECK_OK(cu.cuStreamEndCapture(stream, &graph));
    CHECK_OK(cu.cuGraphGetNodes(graph, nodes, &count));
    CHECK(count == 3);
    int type = -1;
    CHECK_OK(cu.cuGraphNodeGetType(nodes[2], &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_MEMCPY);
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    test_cuda_counters n;
    cu.test_cuda_get_counters(&n);
    CHECK(n.launches == 0 && n.captures == 1); // nothing ran while it was captured
    CHECK_OK(cu.cuGraphLaunch(exec, stream));
    CHECK_OK(cu.cuGraphLaunch(exec, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    harness_download(out, s.a, BYTES);
    CHECK(out[3] == 25);
    uint32_t c = 100; // another constant for the first node
    CUDA_KERNEL_NODE_PARAMS params = {.func = s.add,
                                      .gridDimX = 2,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = N / 2,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = PARAMS(&s.b, &s.a, &c)};
    CHECK_OK(cu.cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &params));
    c = 0;
    CHECK_CODE(cu.cuGraphExecKernelNodeSetParams_v2(exec, nodes[2], &params), CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(cu.cuGraphLaunch(exec, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    harness_download(out, s.a, BYTES);
    CHECK(out[3] == 131);
    // Calls that no capture may contain break it.
    CHECK_OK(cu.cuStreamBeginCapture_v2(stream, 0));
    CHECK_CODE(cu.cuMemAlloc_v2(&p, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph broken;
    CHECK_CODE(cu.cuStreamEndCapture(stream, &broken), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_OK(cu.cuStreamBeginCapture_v2(stream, 0));
    CHECK_CODE(cu.cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_CODE(cu.cuStreamEndCapture(stream, &broken), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_OK(cu.cuModuleUnload(s.m)); // the instance outlives its kernels
    CHECK_CODE(cu.cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_REPORT("whose module was unloaded");
    CHECK_OK(cu.cuGraphExecDestroy(exec));
    CHECK_OK(cu.cuGraphDestroy(graph));
}

// b = a + c, as a node of a graph.
static CUDA_KERNEL_NODE_PARAMS add_node(CUfunction add, void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = add,
                                     .gridDimX = 2,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = N / 2,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params};
}

static struct {
    int begun, polled, ended;
} foreign;

static void *foreign_begin(void *user)
{
    foreign.begun++;
    return user;
}

static int foreign_poll(void *user)
{
    (void)user;
    return ++foreign.polled % 2 == 0; // it waits once
}

static void foreign_end(void *user)
{
    (void)user;
    foreign.ended++;
}

// A stream joins a capture by an event, and is waited for by another one: an order between the two streams is that of events alone.
static void captured_streams(void)
{
    Setup s = set_up("");
    CUstream stream, aside;
    CUevent fork, join;
    CUgraph graph;
    CUgraphExec exec;
    const CUgraphNode *after;
    CUgraphNode first;
    CUstreamCaptureStatus status;
    const test_cuda_captured work = {foreign_begin, foreign_poll, foreign_end, &foreign};
    CUdeviceptr other = harness_empty(BYTES);
    size_t n;
    uint32_t out[N];
    memset(&foreign, 0, sizeof foreign);
    CHECK_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuStreamCreate(&aside, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CHECK_OK(cu.cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    CHECK_CODE((CUresult)cu.test_cuda_capture(stream, &work), CUDA_ERROR_ILLEGAL_STATE); // none is captured
    for (int joined = 0; joined < 2; joined++) {
        CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        CHECK_OK(add_on(stream, &s, s.b, s.a, 5));
        CHECK_OK(cu.cuStreamGetCaptureInfo_v3(stream, &status, NULL, NULL, &after, NULL, &n));
        CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && n == 1);
        first = after[0];
        CHECK_OK(cu.cuEventRecord(fork, stream));
        CHECK_OK(cu.cuStreamWaitEvent(aside, fork, 0));
        CHECK_OK(add_on(aside, &s, other, s.b, 6)); // 11 more than a
        CHECK_OK((CUresult)cu.test_cuda_capture(aside, &work));
        CHECK_OK(cu.cuEventRecord(join, aside));
        CHECK_OK(cu.cuStreamGetCaptureInfo_v3(stream, &status, NULL, NULL, &after, NULL, &n));
        CHECK(n == 1 && after[0] == first);
        if (joined) {
            CHECK_OK(cu.cuStreamWaitEvent(stream, join, 0));
            CHECK_OK(cu.cuStreamGetCaptureInfo_v3(stream, &status, NULL, NULL, &after, NULL, &n));
            CHECK(n == 2 && after[0] == first);
            CHECK_OK(add_on(stream, &s, s.a, other, 7));
        }
        CHECK_CODE(cu.cuStreamEndCapture(stream, &graph), joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        CHECK(foreign.ended == 1); // of the one that is gone
    }
    CHECK_OK(cu.cuStreamGetCaptureInfo_v3(aside, &status, NULL, NULL, NULL, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(foreign.begun == 0);
    for (int k = 0; k < 2; k++)
        CHECK_OK(cu.cuGraphLaunch(exec, stream));
    CHECK(foreign.begun == 2 && foreign.polled == 0);
    CHECK_OK(cu.cuGraphExecDestroy(exec)); // what is launched goes on
    CHECK_OK(cu.cuGraphDestroy(graph));
    CHECK(foreign.ended == 2);
    CHECK_OK(cu.cuStreamSynchronize(stream));
    CHECK(foreign.polled == 4);
    harness_download(out, s.a, BYTES);
    CHECK(out[3] == 3 + 2 * 18);
}

static void built_graphs(void)
{
    Setup s = set_up("");
    CUstream stream, other;
    CUgraph graph, second;
    CUgraphExec exec, unordered;
    CUgraphNode first, last, stray;
    uint32_t c = 5, d = 6, out[N], again[N];
    CHECK_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuGraphCreate(&graph, 0));
    CHECK_OK(cu.cuGraphCreate(&second, 0));
    CUDA_KERNEL_NODE_PARAMS make = add_node(s.add, PARAMS(&s.b, &s.a, &c)), use = add_node(s.add, PARAMS(&s.a, &s.b, &d));
    CHECK_OK(cu.cuGraphAddKernelNode_v2(&first, graph, NULL, 0, &make));
    CHECK_CODE(cu.cuGraphAddKernelNode_v2(&last, second, &first, 1, &use), CUDA_ERROR_INVALID_VALUE); // of another graph
    CHECK_OK(cu.cuGraphAddKernelNode_v2(&last, graph, &first, 1, &use));
    make.kernelParams = PARAMS(&s.b, NULL, &c);
    CHECK_CODE(cu.cuGraphAddKernelNode_v2(&stray, graph, NULL, 0, &make), CUDA_ERROR_INVALID_VALUE);
    make.kernelParams = PARAMS(&s.b, &s.a, &c);
    make.blockDimX = 2048;
    CHECK_CODE(cu.cuGraphAddKernelNode_v2(&stray, graph, NULL, 0, &make), CUDA_ERROR_INVALID_VALUE);
    make.blockDimX = N / 2;
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    c = 1000; // parameters were taken
    harness_download(out, s.a, BYTES);
    CHECK_OK(cu.cuGraphLaunch(exec, stream));
    CHECK_OK(cu.cuGraphLaunch(exec, other)); // comes after the first, on a stream that waits for nothing
    CHECK_OK(cu.cuStreamSynchronize(other));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    harness_download(again, s.a, BYTES);
    CHECK(again[7] == out[7] + 22);
    // New parameters are for launches to come, not for those queued.
    CHECK_OK(cu.cuGraphLaunch(exec, stream));
    d = 100;
    CHECK_OK(cu.cuGraphExecKernelNodeSetParams_v2(exec, last, &use));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    harness_download(again, s.a, BYTES);
    CHECK(again[7] == out[7] + 33);
    // Without the dependency the second runs first.
    c = 5;
    CHECK_OK(cu.cuMemsetD8_v2(s.b, 0, BYTES));
    CHECK_OK(cu.cuCtxSynchronize());
    CHECK_OK(cu.cuGraphAddKernelNode_v2(&stray, second, NULL, 0, &make));
    CHECK_OK(cu.cuGraphAddKernelNode_v2(&stray, second, NULL, 0, &use));
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&unordered, second, 0));
    CHECK_OK(cu.cuGraphLaunch(unordered, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    harness_download(again, s.a, BYTES);
    CHECK(again[7] == 100);
    CHECK_CODE(cu.cuGraphExecKernelNodeSetParams_v2(exec, stray, &use), CUDA_ERROR_INVALID_VALUE); // of another graph
    // An instance outlives its graph, whose nodes are gone then.
    CHECK_OK(cu.cuGraphDestroy(graph));
    CHECK_CODE(cu.cuGraphExecKernelNodeSetParams_v2(exec, last, &use), CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(cu.cuGraphLaunch(exec, stream));
    CHECK_OK(cu.cuGraphExecDestroy(exec)); // in flight
    CHECK_OK(cu.cuStreamSynchronize(stream));
    CHECK_OK(cu.cuGraphExecDestroy(unordered));
    CHECK_OK(cu.cuGraphDestroy(second));
}

static char *file_text(const char *name)
{
    char path[512];
    static char text[1 << 16];
    snprintf(path, sizeof path, "%s/tests/cuda_driver/ptx/%s", KILN_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    if (!CHECK(f != NULL))
        exit(1);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

static void linker(void)
{
    harness_start("");
    CUlinkState state;
    CUmodule m;
    void *cubin;
    size_t size;
    char *text = file_text("streams.ptx"), log[200] = "";
    CHECK_OK(cu.cuLinkCreate_v2(0, NULL, NULL, &state));
    CHECK_OK(cu.cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, text, strlen(text) + 1, "x", 0, NULL, NULL));
    CHECK_OK(cu.cuLinkComplete(state, &cubin, &size));
    uint8_t *kept = malloc(size);
    memcpy(kept, cubin, size);
    CHECK_OK(cu.cuLinkDestroy(state));
    CHECK_OK(cu.cuModuleLoadData(&m, kept));
    CUfunction add = harness_function(m, "add"), none;
    CHECK(add != NULL);
    CHECK_CODE(cu.cuModuleGetFunction(&none, m, "sub"), CUDA_ERROR_NOT_FOUND);
    kept[size / 2] ^= 1;
    CHECK_CODE(cu.cuModuleLoadData(&m, kept), CUDA_ERROR_INVALID_IMAGE);
    kept[size / 2] ^= 1;
    cu.test_cuda_configure("cc=9.0");
    CHECK_CODE(cu.cuModuleLoadData(&m, kept), CUDA_ERROR_NO_BINARY_FOR_GPU);
    cu.test_cuda_configure("cc=8.6");
    CHECK_OK(cu.cuModuleLoadData(&m, kept));
    free(kept);
    int options[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[2] = {log, (void *)sizeof log};
    CHECK_OK(cu.cuLinkCreate_v2(2, options, values, &state));
    CHECK_CODE(cu.cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, "oops", 5, "x", 0, NULL, NULL), CUDA_ERROR_INVALID_PTX);
    CHECK(strstr(log, "expected .version") != NULL);
    CHECK_OK(cu.cuLinkDestroy(state));
}

static void injected(void)
{
    Setup s = set_up("");
    CUdeviceptr p;
    cu.test_cuda_fail(2, CUDA_ERROR_UNKNOWN, 0);
    CHECK_OK(cu.cuMemAlloc_v2(&p, 4));
    CHECK_CODE(cu.cuMemAlloc_v2(&p, 4), CUDA_ERROR_UNKNOWN);
    CHECK_OK(cu.cuMemAlloc_v2(&p, 4));
    cu.test_cuda_fail_call("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_FAILED, 1);
    CHECK_OK(cu.cuMemAlloc_v2(&p, 4));
    CHECK_CODE(add_on(NULL, &s, s.b, s.a, 1), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_CODE(cu.cuMemAlloc_v2(&p, 4), CUDA_ERROR_LAUNCH_FAILED); // sticky
    s = set_up("");
    CHECK(cu.test_cuda_configure("fail=cuMemFree_v2:1:201") == 0);
    CHECK_CODE(cu.cuMemFree_v2(s.a), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_OK(cu.cuMemFree_v2(s.a));
    CHECK(cu.test_cuda_configure("fail=1:2:sticky") == 0);
    CHECK_CODE(cu.cuCtxSynchronize(), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cu.test_cuda_configure("fail=soon") == -1);
}

static void memory_limit(void)
{
    harness_start("memory=1M");
    CUdeviceptr p, q;
    size_t left, total;
    CHECK_OK(cu.cuMemAlloc_v2(&p, 600000));
    CHECK_CODE(cu.cuMemAlloc_v2(&q, 600000), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_OK(cu.cuMemFree_v2(p));
    CHECK_OK(cu.cuMemAlloc_v2(&q, 600000));
    CHECK_OK(cu.cuMemGetInfo_v2(&left, &total));
    CHECK(total == 1 << 20 && left == (1 << 20) - 600000);
    cu.test_cuda_limit_memory(600000);
    CHECK_CODE(cu.cuMemAlloc_v2(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
    cu.test_cuda_limit_memory(0);
    CHECK_OK(cu.cuMemAllocAsync(&p, 1, NULL));
    CHECK_OK(cu.cuMemFreeAsync(p, NULL));
    CHECK_CODE(cu.cuMemFree_v2(p + 1), CUDA_ERROR_INVALID_VALUE);
}

static void leaks(void)
{
    char text[1024];
    Setup s = set_up("");
    CUstream stream;
    CHECK_OK(cu.cuStreamCreate(&stream, 0));
    CHECK(cu.test_cuda_leaks(text, sizeof text) == 5); // two allocations, context, module, stream
    CHECK(strstr(text, "256 bytes") && strstr(text, "module #") && strstr(text, "stream #") && strstr(text, "context #"));
    CHECK_OK(add_on(stream, &s, s.b, s.a, 1));
    CHECK_OK(cu.cuModuleUnload(s.m)); // while its launch is queued
    test_cuda_counters n;
    cu.test_cuda_get_counters(&n);
    CHECK(n.violations == 1 && n.launches == 1 && n.allocations == 2 && n.bytes_live == 2 * BYTES && n.bytes_to_device == BYTES);
    CHECK_REPORT("still queued");
    CHECK_OK(cu.cuMemFree_v2(s.a));
    CHECK_OK(cu.cuMemFree_v2(s.b));
    CHECK_OK(cu.cuStreamDestroy_v2(stream));
    CHECK_OK(cu.cuDevicePrimaryCtxRelease_v2(0));
    CHECK(cu.test_cuda_leaks(text, sizeof text) == 0);
}

static void names(void)
{
    const char *text = NULL;
    CHECK_OK(cu.cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    CHECK(!strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    CHECK_OK(cu.cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(!strcmp(text, "out of memory"));
    CHECK_CODE(cu.cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    void *function = NULL, *expected = NULL;
    int status = -1;
    memcpy(&expected, &cu.cuMemAlloc_v2, sizeof expected);
    CHECK_OK(cu.cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
    CHECK(function == expected && status == 0);
    CHECK_CODE(cu.cuGetProcAddress_v2("cuNothing", &function, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
    CHECK(status == 1);
}

// What cuGetProcAddress gives is what the library exports under the versioned name.
static void entries(void)
{
    static const char *const table[][2] = {
#define ENTRY(name, exported) {#name, #exported},
#include "tests/cuda_driver/cuda_entries.def"
    };
    const char *path = getenv("KILN_LIBCUDA");
    void *library = dlopen(path ? path : TEST_CUDA_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        void *function = NULL, *exported = dlsym(library, table[i][1]);
        int status;
        CHECK_OK(cu.cuGetProcAddress_v2(table[i][0], &function, 12000, 0, &status));
        harness_check(exported && function == exported, __FILE__, __LINE__, "%s is not %s", table[i][0], table[i][1]);
    }
    dlclose(library);
}

// A setting that is misspelt must not leave a test with the defaults.
static void misspelt(void)
{
    static const char *const lists[] = {"log=none,rogh=on", "log=none,rough", "log=none,cc=8", "log=none,rough=yes",
                                        "log=none,fail=cuInit"};
    char *before = getenv("KILN_TEST_CUDA");
    before = before ? strdup(before) : NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        setenv("KILN_TEST_CUDA", lists[i], 1);
        cu.test_cuda_reset();
        harness_check(cu.cuInit(0) == CUDA_ERROR_INVALID_VALUE, __FILE__, __LINE__, "%s is taken", lists[i]);
    }
    before ? setenv("KILN_TEST_CUDA", before, 1) : unsetenv("KILN_TEST_CUDA");
    free(before);
    cu.test_cuda_reset();
    CHECK_OK(cu.cuInit(0));
}

// A child process has no driver, as with the real one.
static void child(void)
{
    harness_start("");
    pid_t pid = fork();
    if (pid == 0)
        _exit(cu.cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED && cu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    CHECK_OK(cu.cuCtxSynchronize());
}

static const Case cases[] = {{"devices", devices},
                             {"contexts", contexts},
                             {"late", late},
                             /* clang-format off */
                             {"order", order},     {"events", events},     {"graphs", graphs},
                             {"built_graphs", built_graphs}, {"captured_streams", captured_streams},
                             {"linker", linker},   {"injected", injected}, {"memory_limit", memory_limit},
                             {"leaks", leaks},     {"names", names},       {"entries", entries}, {"misspelt", misspelt},
                             {"child", child}};
/* clang-format on */
MAIN(cases)

// harness.h: what the test programs of this folder share: the driver opened by name, checks that count, modules from files.
#ifndef TEST_CUDA_HARNESS_H
#define TEST_CUDA_HARNESS_H

#include "tests/cuda_driver/cuda_api.h"
#include "tests/cuda_driver/test_cuda.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// The functions used by the tests: X(result, name, parameters).
#define DRIVER_FUNCTIONS(X)                                                                                                             \
    X(CUresult, cuInit, (unsigned))                                                                                                     \
    X(CUresult, cuDriverGetVersion, (int *))                                                                                            \
    X(CUresult, cuDeviceGetCount, (int *))                                                                                              \
    X(CUresult, cuDeviceGet, (CUdevice *, int))                                                                                         \
    X(CUresult, cuDeviceGetName, (char *, int, CUdevice))                                                                               \
    X(CUresult, cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                              \
    X(CUresult, cuDeviceGetAttribute, (int *, int, CUdevice))                                                                           \
    X(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                                      \
    X(CUresult, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                               \
    X(CUresult, cuCtxSetCurrent, (CUcontext))                                                                                           \
    X(CUresult, cuCtxGetCurrent, (CUcontext *))                                                                                         \
    X(CUresult, cuCtxPushCurrent_v2, (CUcontext))                                                                                       \
    X(CUresult, cuCtxPopCurrent_v2, (CUcontext *))                                                                                      \
    X(CUresult, cuCtxSynchronize, (void))                                                                                               \
    X(CUresult, cuGetErrorName, (CUresult, const char **))                                                                              \
    X(CUresult, cuGetErrorString, (CUresult, const char **))                                                                            \
    X(CUresult, cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                                     \
    X(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                                 \
    X(CUresult, cuMemFree_v2, (CUdeviceptr))                                                                                            \
    X(CUresult, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                                     \
    X(CUresult, cuMemFreeAsync, (CUdeviceptr, CUstream))                                                                                \
    X(CUresult, cuMemHostAlloc, (void **, size_t, unsigned))                                                                            \
    X(CUresult, cuMemFreeHost, (void *))                                                                                                \
    X(CUresult, cuMemGetInfo_v2, (size_t *, size_t *))                                                                                  \
    X(CUresult, cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                                                   \
    X(CUresult, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                                         \
    X(CUresult, cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                                                                    \
    X(CUresult, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                                    \
    X(CUresult, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                                          \
    X(CUresult, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                                     \
    X(CUresult, cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                                                    \
    X(CUresult, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))                                                                        \
    X(CUresult, cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))                                                            \
    X(CUresult, cuStreamCreate, (CUstream *, unsigned))                                                                                 \
    X(CUresult, cuStreamDestroy_v2, (CUstream))                                                                                         \
    X(CUresult, cuStreamSynchronize, (CUstream))                                                                                        \
    X(CUresult, cuStreamQuery, (CUstream))                                                                                              \
    X(CUresult, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                                       \
    X(CUresult, cuEventCreate, (CUevent *, unsigned))                                                                                   \
    X(CUresult, cuEventDestroy_v2, (CUevent))                                                                                           \
    X(CUresult, cuEventRecord, (CUevent, CUstream))                                                                                     \
    X(CUresult, cuEventQuery, (CUevent))                                                                                                \
    X(CUresult, cuEventSynchronize, (CUevent))                                                                                          \
    X(CUresult, cuEventElapsedTime, (float *, CUevent, CUevent))                                                                        \
    X(CUresult, cuModuleLoadData, (CUmodule *, const void *))                                                                           \
    X(CUresult, cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, int *, void **))                                               \
    X(CUresult, cuModuleUnload, (CUmodule))                                                                                             \
    X(CUresult, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                            \
    X(CUresult, cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                                \
    X(CUresult, cuLinkCreate_v2, (unsigned, int *, void **, CUlinkState *))                                                             \
    X(CUresult, cuLinkAddData_v2, (CUlinkState, int, void *, size_t, const char *, unsigned, int *, void **))                           \
    X(CUresult, cuLinkComplete, (CUlinkState, void **, size_t *))                                                                       \
    X(CUresult, cuLinkDestroy, (CUlinkState))                                                                                           \
    X(CUresult, cuFuncGetAttribute, (int *, int, CUfunction))                                                                           \
    X(CUresult, cuFuncSetAttribute, (CUfunction, int, int))                                                                             \
    X(CUresult, cuLaunchKernel,                                                                                                         \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))                   \
    X(CUresult, cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                               \
    X(CUresult, cuStreamBeginCapture_v2, (CUstream, int))                                                                               \
    X(CUresult, cuStreamEndCapture, (CUstream, CUgraph *))                                                                              \
    X(CUresult, cuStreamGetCaptureInfo_v3,                                                                                              \
      (CUstream, CUstreamCaptureStatus *, uint64_t *, CUgraph *, const CUgraphNode **, const CUgraphEdgeData **, size_t *))             \
    X(CUresult, cuGraphCreate, (CUgraph *, unsigned))                                                                                   \
    X(CUresult, cuGraphAddKernelNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *))        \
    X(CUresult, cuGraphAddNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUgraphNodeParams *)) \
    X(CUresult, cuGraphConditionalHandleCreate, (CUgraphConditionalHandle *, CUgraph, CUcontext, unsigned, unsigned))                   \
    X(CUresult, cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                                                    \
    X(CUresult, cuGraphNodeGetType, (CUgraphNode, int *))                                                                               \
    X(CUresult, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                              \
    X(CUresult, cuGraphExecKernelNodeSetParams_v2, (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))                         \
    X(CUresult, cuGraphLaunch, (CUgraphExec, CUstream))                                                                                 \
    X(CUresult, cuGraphExecDestroy, (CUgraphExec))                                                                                      \
    X(CUresult, cuGraphDestroy, (CUgraph))                                                                                              \
    X(int, test_cuda_configure, (const char *))                                                                                         \
    X(int, test_cuda_capture, (void *, const test_cuda_captured *))                                                                     \
    X(void, test_cuda_fail, (long, int, int))                                                                                           \
    X(void, test_cuda_fail_call, (const char *, long, int, int))                                                                        \
    X(void, test_cuda_limit_memory, (size_t))                                                                                           \
    X(void, test_cuda_get_counters, (test_cuda_counters *))                                                                             \
    X(void, test_cuda_reset_counters, (void))                                                                                           \
    X(const char *, test_cuda_report, (void))                                                                                           \
    X(void, test_cuda_clear_report, (void))                                                                                             \
    X(size_t, test_cuda_leaks, (char *, size_t))                                                                                        \
    X(void, test_cuda_reset, (void))

typedef struct Driver {
#define X(result, name, params) result(*name) params;
    DRIVER_FUNCTIONS(X)
#undef X
} Driver;

extern Driver cu;    // filled by harness_open
extern int failures; // checks that failed
extern int checks;

// Opens the driver (KILN_LIBCUDA, else the one of this build). Texts of violations go to test_cuda_report only.
bool harness_open(void);
// A driver as new: settings given, initialised, primary context of device 0 current.
void harness_start(const char *settings);
CUmodule harness_module(const char *file); // of ptx/, loaded; ends the program when it cannot be
CUmodule harness_text(const char *text);   // PTX as text; NULL when it is refused
CUfunction harness_function(CUmodule m, const char *name);
CUdeviceptr harness_upload(const void *bytes, size_t size);
CUdeviceptr harness_empty(size_t size);
void harness_download(void *to, CUdeviceptr from, size_t size);
// One dimension of blocks and threads; what the launch or the wait for it gives.
CUresult harness_launch(CUfunction f, unsigned blocks, unsigned threads, unsigned shared, void **params);

typedef struct Case {
    const char *name;
    void (*run)(void);
} Case;
int harness_main(int argc, char **argv, const Case *cases, size_t count); // argv: names of cases, none: all

bool harness_check(bool ok, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

#define CHECK(condition) harness_check(condition, __FILE__, __LINE__, "%s", #condition)
#define CHECK_CODE(expression, code)                                                                                         \
    do {                                                                                                                     \
        CUresult got_ = (expression);                                                                                        \
        harness_check(got_ == (code), __FILE__, __LINE__, "%s gives %d, expected %s (report: %s)", #expression, got_, #code, \
                      cu.test_cuda_report());                                                                                \
    } while (0)
#define CHECK_OK(expression) CHECK_CODE(expression, CUDA_SUCCESS)
#define CHECK_REPORT(text) \
    harness_check(strstr(cu.test_cuda_report(), text) != NULL, __FILE__, __LINE__, "report '%s' lacks '%s'", cu.test_cuda_report(), text)
#define PARAMS(...) ((void *[]){__VA_ARGS__})
#define MAIN(cases) \
    int main(int argc, char **argv) { return harness_main(argc, argv, cases, sizeof cases / sizeof *cases); }

#endif

// cuda_api.h: the part of the CUDA driver API's binary interface that this library offers, declared here so that no toolkit
// is needed to build. Names and numbers are those of the public documentation; tests/cuda_abi compares them with the toolkit's
// cuda.h where there is one, and compiles the entry points once more with it in place of what is declared here
// (TEST_CUDA_TOOLKIT), so that the compiler holds one against the other.
#ifndef TEST_CUDA_API_H
#define TEST_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

#ifdef TEST_CUDA_TOOLKIT
#define CUctx_st Context
#define CUmod_st Module
#define CUfunc_st Function
#define CUstream_st Stream
#define CUevent_st Event
#define CUlinkState_st Linker
#define CUgraph_st Graph
#define CUgraphNode_st GraphNode
#define CUgraphExec_st GraphExec
#define __CUDA_API_VERSION_INTERNAL // every version of a function under the name that is exported
#include <cuda.h>
enum { CU_JIT_OPTIONS_KNOWN = CU_JIT_NUM_OPTIONS };
#else
typedef int CUdevice;
typedef unsigned CUdevice_attribute, CUfunction_attribute, CUjit_option, CUjitInputType, CUfunc_cache, CUgraphNodeType; // enums
typedef unsigned CUstreamCaptureMode, CUstreamCaptureStatus, CUdriverProcAddressQueryResult, CUgraphExecUpdateResult;
typedef unsigned CUgraphConditionalNodeType;
typedef unsigned CUlaunchAttributeID;
typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef cuuint64_t CUgraphConditionalHandle;
typedef struct Context *CUcontext;
typedef struct Module *CUmodule;
typedef struct Function *CUfunction;
typedef struct Stream *CUstream;
typedef struct Event *CUevent;
typedef struct Linker *CUlinkState;
typedef struct Graph *CUgraph;
typedef struct GraphNode *CUgraphNode;
typedef struct GraphExec *CUgraphExec;

typedef enum CUresult {
#define RESULT(name, value, text) name = value,
#include "tests/cuda_driver/cuda_results.def"
} CUresult;

enum {
#define NUMBER(name, value) name = value,
#include "tests/cuda_driver/cuda_numbers.def"
    CU_JIT_OPTIONS_KNOWN = 35
};

// Ends of the `extra` argument of cuLaunchKernel.
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

typedef struct CUDA_KERNEL_NODE_PARAMS { // the version of CUDA 12, "_v2"
    CUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    void **kernelParams;
    void **extra;
    void *kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value;
    unsigned elementSize;
    size_t width;
    size_t height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct CUDA_CONDITIONAL_NODE_PARAMS {
    CUgraphConditionalHandle handle;
    CUgraphConditionalNodeType type;
    unsigned size;
    CUgraph *phGraph_out;
    CUcontext ctx;
} CUDA_CONDITIONAL_NODE_PARAMS;

typedef struct CUgraphNodeParams { // of conditional nodes; there are others, as large
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_CONDITIONAL_NODE_PARAMS conditional;
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct CUgraphEdgeData CUgraphEdgeData;

typedef struct CUlaunchAttribute {
    CUlaunchAttributeID id;
    char pad[8 - sizeof(CUlaunchAttributeID)];
    char value[64];
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct CUgraphExecUpdateResultInfo {
    CUgraphExecUpdateResult result;
    CUgraphNode errorNode;
    CUgraphNode errorFromNode;
} CUgraphExecUpdateResultInfo;

typedef struct CUuuid {
    char bytes[16];
} CUuuid;
#endif

#endif

/* What kiln declares of the driver, against cuda.h. See abi.h. */
#define __CUDA_API_VERSION_INTERNAL /* every version of a function under the name that is exported */
#include <cuda.h>

#include "runtime/cuda/cuda.h"
#include "tests/cuda_abi/abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ---- types ---- */

#define SAME_SIZE(ours, theirs)                            \
    _Static_assert(sizeof(ours) == sizeof(theirs), #ours); \
    _Static_assert(_Alignof(ours) == _Alignof(theirs), #ours)
SAME_SIZE(CuResult, CUresult);
SAME_SIZE(CuDevice, CUdevice);
SAME_SIZE(CuDeviceAttribute, CUdevice_attribute);
SAME_SIZE(CuFunctionAttribute, CUfunction_attribute);
SAME_SIZE(CuJitOption, CUjit_option);
SAME_SIZE(CuInputKind, CUjitInputType);
SAME_SIZE(CuCaptureMode, CUstreamCaptureMode);
SAME_SIZE(CuCaptureStatus, CUstreamCaptureStatus);
SAME_SIZE(CuPointer, CUdeviceptr);
SAME_SIZE(CuContext, CUcontext);
SAME_SIZE(CuStream, CUstream);
SAME_SIZE(CuEvent, CUevent);
SAME_SIZE(CuModule, CUmodule);
SAME_SIZE(CuFunction, CUfunction);
SAME_SIZE(CuLink, CUlinkState);
SAME_SIZE(CuGraph, CUgraph);
SAME_SIZE(CuGraphNode, CUgraphNode);
SAME_SIZE(CuGraphExec, CUgraphExec);
_Static_assert(_Generic((CuPointer)0, CUdeviceptr : 1, default : 0), "an address is an integer of the same type");

#define SAME_FIELD(ours, theirs)                                                                         \
    _Static_assert(offsetof(CuKernelNode, ours) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, theirs), #ours); \
    _Static_assert(sizeof(((CuKernelNode *)0)->ours) == sizeof(((CUDA_KERNEL_NODE_PARAMS_v2 *)0)->theirs), #ours)
SAME_SIZE(CuKernelNode, CUDA_KERNEL_NODE_PARAMS_v2);
SAME_FIELD(function, func);
SAME_FIELD(grid_x, gridDimX);
SAME_FIELD(grid_y, gridDimY);
SAME_FIELD(grid_z, gridDimZ);
SAME_FIELD(block_x, blockDimX);
SAME_FIELD(block_y, blockDimY);
SAME_FIELD(block_z, blockDimZ);
SAME_FIELD(shared_bytes, sharedMemBytes);
SAME_FIELD(parameters, kernelParams);
SAME_FIELD(extra, extra);
SAME_FIELD(kernel, kern);
SAME_FIELD(context, ctx);

SAME_SIZE(CuCondition, CUgraphConditionalHandle);
SAME_SIZE(CuNode, CUgraphNodeParams);
#define SAME_PLACE(ours, theirs)                                                          \
    _Static_assert(offsetof(CuNode, ours) == offsetof(CUgraphNodeParams, theirs), #ours); \
    _Static_assert(sizeof(((CuNode *)0)->ours) == sizeof(((CUgraphNodeParams *)0)->theirs), #ours)
SAME_PLACE(type, type);
SAME_PLACE(reserved0, reserved0);
SAME_PLACE(reserved1, reserved1);
SAME_PLACE(conditional.handle, conditional.handle);
SAME_PLACE(conditional.kind, conditional.type);
SAME_PLACE(conditional.size, conditional.size);
SAME_PLACE(conditional.bodies, conditional.phGraph_out);
SAME_PLACE(conditional.context, conditional.ctx);
SAME_PLACE(reserved2, reserved2);

/* ---- numbers ---- */

#define CUDA_NUMBER(name, theirs, value) _Static_assert((int)theirs == (value) && (int)name == (value), #theirs);
#define CUDA_NO_CODE CUDA_NUMBER
#define CUDA_STICKY CUDA_NUMBER
#include "runtime/cuda/cuda_numbers.def"

/* ---- functions: with their types in place of ours, a function's type is the very same ---- */

#define CuResult CUresult
#define CuDevice CUdevice
#define CuDeviceAttribute CUdevice_attribute
#define CuFunctionAttribute CUfunction_attribute
#define CuJitOption CUjit_option
#define CuInputKind CUjitInputType
#define CuCaptureMode CUstreamCaptureMode
#define CuCaptureStatus CUstreamCaptureStatus
#define CuPointer CUdeviceptr
#define CuContext CUcontext
#define CuStream CUstream
#define CuEvent CUevent
#define CuModule CUmodule
#define CuFunction CUfunction
#define CuLink CUlinkState
#define CuGraph CUgraph
#define CuGraphNode CUgraphNode
#define CuGraphExec CUgraphExec
#define CuKernelNode CUDA_KERNEL_NODE_PARAMS_v2
#define CuNode CUgraphNodeParams
#define CuCondition CUgraphConditionalHandle
#define CuEdgeData CUgraphEdgeData

#define CUDA_SYM(name, symbol, parameters) _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), CUresult parameters), #symbol);
#define CUDA_OPTIONAL CUDA_SYM
#include "runtime/cuda/cuda_syms.def"
#undef CUDA_SYM

static const char *const kiln_symbols[] = {
#define CUDA_SYM(name, symbol, parameters) #symbol,
#include "runtime/cuda/cuda_syms.def"
    NULL};

/* ---- what only running tells ---- */

static int missing(void *library, const char *const *symbol, const char *whose)
{
    int n = 0;
    for (; *symbol; symbol++)
        if (!dlsym(library, *symbol))
            n++, printf("libcuda.so does not export %s, which %s\n", *symbol, whose);
    return n;
}

int main(int argc, char **argv)
{
    int wrong = 0, values = 0;
    for (const AbiValue *a = toolkit_values, *b = software_values; a->what; a++, b++, values++)
        if (!b->what || strcmp(a->what, b->what) != 0 || a->value != b->value)
            wrong++, printf("%s is %lld in cuda.h, %lld in the software driver\n", a->what, a->value, b->value);
    printf("%d values compared, %d differ\n", values, wrong);
    const char *stub = argc > 1 && argv[1][0] ? argv[1] : NULL;
    void *library = stub ? dlopen(stub, RTLD_LAZY) : NULL;
    if (library) {
        wrong += missing(library, kiln_symbols, "kiln calls");
        wrong += missing(library, software_symbols, "the software driver offers");
        printf("names looked up in %s\n", stub);
    } else {
        printf("names not looked up: %s\n", stub ? dlerror() : "no stub of libcuda.so here");
        wrong += stub != NULL;
    }
    return wrong != 0 || values == 0;
}

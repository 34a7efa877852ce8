/*
 * DLPack's structs, by its specification (dmlc.github.io/dlpack, 1.1): their layout is what programs agree on. The names of the structs that
 * are handed around are the specification's, as kiln.h has them; tests/api/test_dlpack.c holds the rest against Debian's header.
 */
#ifndef RUNTIME_DLPACK_H
#define RUNTIME_DLPACK_H

#include <stdint.h>

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 1 };

/* Devices and kinds of numbers by their codes: DLPACK_DEVICE(code, name, text), DLPACK_KIND(code, text). What kiln takes has a name. */
/* clang-format off */
#define DLPACK_DEVICES(X)                                                                                                                  \
    X(1, CPU, "the CPU") X(2, CUDA, "CUDA") X(3, CUDA_HOST, "pinned memory of CUDA") X(4, OPENCL, "OpenCL") X(7, VULKAN, "Vulkan")         \
    X(8, METAL, "Metal") X(9, VPI, "VPI, a simulator") X(10, ROCM, "ROCm") X(11, ROCM_HOST, "pinned memory of ROCm")                       \
    X(12, EXTENSION, "an extension's device") X(13, CUDA_MANAGED, "managed memory of CUDA") X(14, ONE_API, "oneAPI")                       \
    X(15, WEB_GPU, "WebGPU") X(16, HEXAGON, "Hexagon") X(17, MAIA, "MAIA") X(18, TRAINIUM, "Trainium")
#define DLPACK_KINDS(X)                                                                                                                    \
    X(0, INT, "int") X(1, UINT, "uint") X(2, FLOAT, "float") X(3, HANDLE, "opaque handle") X(4, BFLOAT, "bfloat") X(5, COMPLEX, "complex") \
    X(6, BOOL, "bool") X(7, F8_1, "float8_e3m4") X(8, F8_2, "float8_e4m3") X(9, F8_3, "float8_e4m3b11fnuz") X(10, F8_4, "float8_e4m3fn")    \
    X(11, F8_5, "float8_e4m3fnuz") X(12, F8_6, "float8_e5m2") X(13, F8_7, "float8_e5m2fnuz") X(14, F8_8, "float8_e8m0fnu")                 \
    X(15, F6_1, "float6_e2m3fn") X(16, F6_2, "float6_e3m2fn") X(17, F4_1, "float4_e2m1fn")
/* clang-format on */

#define DLPACK_DEVICE(code, name, text) DLPACK_##name = code,
enum { DLPACK_DEVICES(DLPACK_DEVICE) DLPACK_NO_DEVICE };
#undef DLPACK_DEVICE
#define DLPACK_KIND(code, name, text) DLPACK_KIND_##name = code,
enum { DLPACK_KINDS(DLPACK_KIND) DLPACK_NO_KIND };
#undef DLPACK_KIND

enum { DLPACK_READ_ONLY = 1 << 0, DLPACK_COPIED = 1 << 1 }; /* flags */

typedef struct DlDevice {
    int32_t type, id;
} DlDevice;

typedef struct DlType {
    uint8_t kind, bits;
    uint16_t lanes;
} DlType;

typedef struct DlTensor {
    void *data;
    DlDevice device;
    int32_t rank;
    DlType type;
    int64_t *shape, *strides; /* strides: in elements; NULL: row-major */
    uint64_t byte_offset;     /* from data to the first element */
} DlTensor;

struct DLManagedTensor {
    DlTensor tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self); /* NULL: nothing to be done */
};

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DlTensor tensor;
};

#endif

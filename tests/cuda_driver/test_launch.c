// Launches: results, limits, parameters, what a stream does late, the texts of errors.
#include "tests/cuda_driver/harness.h"

#include <math.h>
#include <stdlib.h>

enum { N = 1000 };

static void elementwise(void)
{
    harness_start("");
    CUfunction f = harness_function(harness_module("elementwise.ptx"), "fma_relu");
    float a[N], b[N], out[N], c = -3;
    for (int i = 0; i < N; i++) {
        a[i] = (float)i * 0.37f;
        b[i] = (float)(i % 7) - 3;
    }
    CUdeviceptr da = harness_upload(a, sizeof a), db = harness_upload(b, sizeof b), dout = harness_empty(sizeof out);
    uint64_t n = N;
    CHECK_OK(harness_launch(f, 3, 128, 0, PARAMS(&dout, &da, &db, &c, &n)));
    harness_download(out, dout, sizeof out);
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += out[i] != fmaxf(fmaf(a[i], b[i], c), 0);
    CHECK(wrong == 0);
}

static void limits(void)
{
    harness_start("");
    CUfunction f = harness_function(harness_module("elementwise.ptx"), "fma_relu");
    CUdeviceptr p = harness_empty(4);
    float c = 0;
    uint64_t n = 0;
    void **params = PARAMS(&p, &p, &p, &c, &n);
    CHECK_OK(harness_launch(f, 1, 256, 0, params));
    CHECK_CODE(harness_launch(f, 1, 257, 0, params), CUDA_ERROR_INVALID_VALUE); // .maxntid
    CHECK_REPORT("threads per block is 257, the limit is 256");
    CHECK_CODE(harness_launch(f, 0, 32, 0, params), CUDA_ERROR_INVALID_VALUE);
    CHECK_CODE(harness_launch(f, 1, 32, 49153, params), CUDA_ERROR_INVALID_VALUE);
    CHECK_CODE(cu.cuLaunchKernel(f, 1, 65536, 1, 32, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_CODE(cu.cuLaunchKernel(f, 1, 1, 1, 1, 1, 65, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(cu.cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
    CHECK_OK(harness_launch(f, 1, 32, 100000, params));
    CHECK_CODE(cu.cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 166913), CUDA_ERROR_INVALID_VALUE);
    int threads = 0;
    CHECK_OK(cu.cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
    CHECK(threads == 256);
}

static void parameters(void)
{
    harness_start("");
    CUfunction f = harness_function(harness_module("elementwise.ptx"), "fma_relu");
    CHECK_CODE(harness_launch(f, 1, 32, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_REPORT("parameters missing");
    CHECK_CODE(harness_launch(f, 1, 32, 0, PARAMS(NULL, NULL, NULL, NULL, NULL)), CUDA_ERROR_INVALID_VALUE);
    float one = 1, two = 2, out = 0;
    struct {
        CUdeviceptr out, a, b;
        float c;
        uint64_t n;
    } block = {harness_empty(4), harness_upload(&one, 4), harness_upload(&two, 4), 5, 1};
    size_t size = sizeof block;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CHECK_OK(cu.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    harness_download(&out, block.out, 4);
    CHECK(out == 7);
    size = 30;
    CHECK_CODE(cu.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra), CUDA_ERROR_INVALID_VALUE);
}

static const Case cases[] = {{"elementwise", elementwise}, {"limits", limits}, {"parameters", parameters}};
MAIN(cases)

// What LLVM makes of a few kernels (ptx/llvm.ll), run and compared with the same arithmetic here.
#include "tests/cuda_driver/harness.h"

#include <math.h>

static void mixed(void)
{
    harness_start("");
    CUfunction f = harness_function(harness_module("llvm.ptx"), "mixed");
    enum { N = 50 };
    float in[64][4];
    int64_t out[64];
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 4; j++)
            in[i][j] = (float)(i - 20) * 0.75f + (float)(j * 40);
    for (int i = 0; i < 64; i++)
        out[i] = 12345;
    CUdeviceptr din = harness_upload(in, sizeof in), dout = harness_upload(out, sizeof out);
    uint64_t n = N;
    CHECK_OK(harness_launch(f, 1, 64, 0, PARAMS(&dout, &din, &n)));
    harness_download(out, dout, sizeof out);
    static const int64_t choice[5] = {100, 200, -300, 5000, 7};
    static const float table[4] = {1, 2, 4, 8};
    for (int i = 0; i < 64; i++) {
        float x = fminf(in[i][0] * in[i][0] + in[i][0] * in[i][0], in[i][3]) / table[i & 3];
        // To half precision and back: 11 bits, nearest even; then doubled.
        int exponent;
        frexpf(x, &exponent);
        float half = ldexpf(rintf(ldexpf(x, 11 - exponent)), exponent - 11), doubled = half * 2;
        int64_t clamped = doubled > 127 ? 127 : doubled < -128 ? -128 : (int64_t)doubled;
        harness_check(out[i] == (i < N ? 2 * clamped + choice[i % 5] : 12345), __FILE__, __LINE__, "thread %d: %lld", i, (long long)out[i]);
    }
}

static void total(void)
{
    harness_start("");
    CUfunction f = harness_function(harness_module("llvm.ptx"), "total");
    float in[256], out[2];
    uint32_t sums[8] = {0}, bits = 0, all = 0;
    for (uint32_t i = 0; i < 256; i++) {
        in[i] = (float)(i * 3 % 17);
        sums[i / 32] += i * 3 % 17;
        all += i * 3 % 17;
    }
    for (uint32_t i = 0; i < 8; i++)
        bits ^= i ? sums[i] << i | sums[i] >> (32 - i) : sums[i];
    CUdeviceptr din = harness_upload(in, sizeof in), dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 1, 256, 0, PARAMS(&dout, &din)));
    harness_download(out, dout, sizeof out);
    CHECK(out[0] == (float)all && out[1] == (float)bits);
}

static const Case cases[] = {{"mixed", mixed}, {"total", total}};
MAIN(cases)

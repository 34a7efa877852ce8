// Threads together: shuffles, barriers, shared memory, atomics, calls, the spaces of memory.
#include "tests/cuda_driver/harness.h"

static CUfunction start(const char *settings, const char *kernel)
{
    harness_start(settings);
    return harness_function(harness_module("block.ptx"), kernel);
}

static void block_sum(void)
{
    CUfunction f = start("", "block_sum");
    float in[1024], out[4], want[4] = {0};
    for (int i = 0; i < 1024; i++) {
        in[i] = (float)(i % 37);
        want[i / 256] += in[i];
    }
    CUdeviceptr din = harness_upload(in, sizeof in), dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 4, 256, 0, PARAMS(&dout, &din)));
    harness_download(out, dout, sizeof out);
    CHECK(!memcmp(out, want, sizeof out));
}

static void last_block(void)
{
    static const char *const orders[] = {"order=0", "order=1", "order=77"};
    for (int i = 0; i < 3; i++) {
        CUfunction f = start(orders[i], "last_block");
        uint32_t zero = 0, fence = 1, sum = 0;
        CUdeviceptr out = harness_empty(4), partial = harness_empty(4 * 20), count = harness_upload(&zero, 4);
        for (int again = 0; again < 2; again++) {
            CHECK_OK(harness_launch(f, 20, 64, 0, PARAMS(&out, &partial, &count, &fence)));
            harness_download(&sum, out, 4);
            CHECK(sum == 210);
        }
        fence = 0; // the same without its fences: a race between blocks
        CHECK_CODE(harness_launch(f, 20, 64, 0, PARAMS(&out, &partial, &count, &fence)), CUDA_ERROR_LAUNCH_FAILED);
        CHECK_REPORT("race: read of");
    }
}

// One after another they wait forever; in a device that has room for all of them they don't.
static void blocks_together(void)
{
    enum { BLOCKS = 7 };
    static const struct {
        const char *settings;
        CUresult code;
    } cases[] = {{"steps=100K", CUDA_ERROR_LAUNCH_TIMEOUT},
                 {"steps=100K,together=6", CUDA_ERROR_LAUNCH_TIMEOUT},
                 {"together=7", CUDA_SUCCESS},
                 {"together=100,order=3", CUDA_SUCCESS},
                 {"together=7,order=99", CUDA_SUCCESS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CUfunction f = start(cases[i].settings, "wait_for_next");
        uint32_t words[BLOCKS] = {0};
        CUdeviceptr there = harness_upload(words, sizeof words);
        CHECK_CODE(harness_launch(f, BLOCKS, 64, 0, PARAMS(&there)), cases[i].code);
        if (cases[i].code != CUDA_SUCCESS)
            continue;
        harness_download(words, there, sizeof words);
        for (uint32_t b = 0; b < BLOCKS; b++)
            CHECK(words[b] == BLOCKS - b);
    }
}

static void named_barriers(void)
{
    CUfunction f = start("", "producer");
    uint32_t out[32];
    CUdeviceptr dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 1, 64, 0, PARAMS(&dout)));
    harness_download(out, dout, sizeof out);
    for (uint32_t i = 0; i < 32; i++)
        CHECK(out[i] == 3 * i);
}

static void barrier_red(void)
{
    CUfunction f = start("", "barrier_red");
    uint32_t out[96];
    CUdeviceptr dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 1, 96, 0, PARAMS(&dout)));
    harness_download(out, dout, sizeof out);
    CHECK(out[0] == (48 | 0x20000) && out[95] == (48 | 0x20000));
}

static void warp_ops(void)
{
    CUfunction f = start("", "warp_ops");
    uint32_t out[32][16];
    CUdeviceptr dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&dout)));
    harness_download(out, dout, sizeof out);
    for (uint32_t l = 0; l < 32; l++) {
        const uint32_t want[16] = {l ? 10 * (l - 1) : 0, // up
                                   l > 0,
                                   l + 4 < 32 ? 10 * (l + 4) : 10 * l, // down
                                   10 * ((l & 24) + 3),                // idx in segments of eight
                                   10 * (31 - l),                      // bfly
                                   0x11111111,                         // ballot
                                   1,                                  // any; not all; not uniform
                                   0x11111111u << (l & 3),             // match.any
                                   0xffffffff,                         // match.all
                                   496,
                                   0,
                                   31,
                                   0,
                                   0xffffffff,
                                   (1u << l) - 1,
                                   l};
        CHECK(!memcmp(out[l], want, sizeof want));
    }
}

static void diverge(void)
{
    CUfunction f = start("", "diverge");
    uint32_t out[32][2];
    CUdeviceptr dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&dout)));
    harness_download(out, dout, sizeof out);
    for (uint32_t l = 0; l < 32; l++) {
        uint32_t other = l ^ 1, steps = other ? other : 1;
        CHECK(out[l][0] == (l < 16 ? steps : other + 1000));
        CHECK(out[l][1] == 0xffffffff);
    }
}

static void atomics(void)
{
    CUfunction f = start("", "atomics");
    struct {
        uint32_t add;
        int32_t max;
        uint32_t min, or, and, xor, inc, dec, cas;
        float add_f32;
        double add_f64;
        uint64_t add_u64;
        uint32_t add_f16x2, exch;
    } m = {.add = 1000, .max = -5, .min = 50, .and = 0xff, .cas = 7, .add_f32 = 1, .add_f64 = 1, .add_u64 = 3};
    CUdeviceptr dm = harness_upload(&m, sizeof m);
    CHECK_OK(harness_launch(f, 1, 64, 0, PARAMS(&dm)));
    harness_download(&m, dm, sizeof m);
    CHECK(m.add == 1000 + 64 * 65 / 2 && m.max == 63 && m.min == 1 && m.or == 127 && m.and == 0 && m.xor == 64);
    CHECK(m.inc == 64 % 11 && m.cas == 9 && m.add_f32 == 33 && m.add_f64 == 17 && m.add_u64 == 3 + (UINT64_C(64) << 32));
    uint32_t dec = 0;
    for (int i = 0; i < 64; i++)
        dec = dec == 0 || dec > 10 ? 10 : dec - 1;
    CHECK(m.dec == dec && m.add_f16x2 == 0x54005400 && m.exch == 77);
}

static void spaces(void)
{
    CUfunction f = start("", "spaces");
    uint32_t out[8][8];
    CUdeviceptr dout = harness_empty(sizeof out);
    CHECK_OK(cu.cuMemsetD8_v2(dout, 0, sizeof out));
    CHECK_OK(harness_launch(f, 1, 8, 8 * 4, PARAMS(&dout)));
    harness_download(out, dout, sizeof out);
    static const uint32_t array[4] = {0, 11, 12, 13};
    for (uint32_t t = 0; t < 8; t++) {
        const uint32_t want[8] = {t == 0 ? 0 : t < 4 ? array[t] : 0xffffffff, 12, 1 + (t & 3), 5, t, 32, 0, 0};
        CHECK(!memcmp(out[t], want, sizeof want));
    }
    int local = 0;
    CHECK_OK(cu.cuFuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f));
    CHECK(local == 16);
    CUdeviceptr counter = 0;
    size_t size = 0;
    CUmodule m = harness_module("block.ptx");
    CHECK_OK(cu.cuModuleGetGlobal_v2(&counter, &size, m, "counter"));
    uint32_t value = 0;
    harness_download(&value, counter, 4);
    CHECK(size == 4 && value == 5);
}

static void async_copy(void)
{
    CUfunction f = start("", "async_copy");
    uint32_t in[128], out[128], wait = 1;
    for (uint32_t i = 0; i < 128; i++)
        in[i] = i + 1;
    CUdeviceptr din = harness_upload(in, sizeof in), dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&dout, &din, &wait)));
    harness_download(out, dout, sizeof out);
    for (uint32_t t = 0; t < 32; t++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t from = 31 - t;
            CHECK(out[4 * t + i] == (from >= 28 && i == 3 ? 0 : 4 * from + i + 1));
        }
    wait = 0;
    CHECK_CODE(harness_launch(f, 1, 32, 0, PARAMS(&dout, &din, &wait)), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_REPORT("memory that nobody wrote");
}

// Over memory that is still read: a race where another thread reads it, from the issue on; what the thread itself reads is the
// old or the new.
static void async_over(void)
{
    static const struct {
        const char *settings;
        uint32_t mode, added; // to the thread's number: what it reads
        bool race;
    } cases[] = {{"", 0, 0, false}, {"async=early", 0, 0, false},  {"", 1, 0, true}, {"async=early", 1, 0, true},
                 {"", 2, 0, false}, {"async=early", 2, 100, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CUfunction f = start(cases[i].settings, "async_over");
        uint32_t in[256], out[64], mode = cases[i].mode;
        for (uint32_t w = 0; w < 256; w++)
            in[w] = w / 4 + 100;
        CUdeviceptr din = harness_upload(in, sizeof in), dout = harness_empty(sizeof out);
        CHECK_CODE(harness_launch(f, 1, 64, 0, PARAMS(&dout, &din, &mode)), cases[i].race ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS);
        CHECK_REPORT(cases[i].race ? "race: write of" : "");
        if (cases[i].race)
            continue;
        harness_download(out, dout, sizeof out);
        for (uint32_t t = 0; t < 64; t++)
            CHECK(out[t] == (mode == 2 ? t : t ^ 32) + cases[i].added);
    }
}

static void param_array(void)
{
    CUfunction f = start("", "param_array");
    uint32_t words[8], out[8][2];
    for (uint32_t i = 0; i < 8; i++)
        words[i] = 100 + i * i;
    CUdeviceptr dout = harness_empty(sizeof out);
    CHECK_OK(harness_launch(f, 1, 8, 0, PARAMS(&dout, words)));
    harness_download(out, dout, sizeof out);
    for (uint32_t i = 0; i < 8; i++)
        CHECK(out[i][0] == words[i] && out[i][1] == words[i]);
    dout = harness_empty(72);
    CHECK_CODE(harness_launch(f, 1, 9, 0, PARAMS(&dout, words)), CUDA_ERROR_ILLEGAL_ADDRESS); // past the array
}

static const Case cases[] = {{"block_sum", block_sum},
                             {"last_block", last_block},
                             {"blocks_together", blocks_together},
                             {"named_barriers", named_barriers},
                             {"barrier_red", barrier_red},
                             {"warp_ops", warp_ops},
                             {"diverge", diverge},
                             {"atomics", atomics},
                             {"spaces", spaces},
                             {"async_copy", async_copy},
                             {"async_over", async_over},
                             {"param_array", param_array}};
MAIN(cases)

// Texts that are almost PTX: every test text with a few of its bytes or lines changed, thousands of times with fixed seeds.
// Loading one may succeed or fail with a message; it must not crash, hang or leave something behind. What loads is launched,
// which may fail in every way that a launch can.
#include "tests/cuda_driver/harness.h"

#include <stdlib.h>

static uint64_t state;

static uint32_t random_below(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

static size_t read_text(const char *name, char *text, size_t room)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/cuda_driver/ptx/%s", KILN_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    if (!CHECK(f != NULL))
        exit(1);
    size_t n = fread(text, 1, room - 1, f);
    text[n] = 0;
    fclose(f);
    return n;
}

// One change: a byte, a word of the text somewhere else, a line gone or twice, the end cut.
static size_t mutate(char *text, size_t n, size_t room)
{
    static const char bytes[] = "%$.,;:{}[]()<>@!|+-_=\"/*0123456789rdfpx\n \tu";
    size_t at = random_below((uint32_t)n), from = random_below((uint32_t)n), length = 1 + random_below(12);
    switch (random_below(6)) {
    case 0: text[at] = bytes[random_below(sizeof bytes - 1)]; return n;
    case 1: // one word over another
        if (at + length < n && from + length < n)
            memmove(text + at, text + from, length);
        return n;
    case 2: // gone
        if (at + length >= n)
            return n;
        memmove(text + at, text + at + length, n - at - length + 1);
        return n - length;
    case 3: // twice
        if (at + length >= n || n + length >= room)
            return n;
        memmove(text + at + length, text + at, n - at + 1);
        return n + length;
    case 4: // a number becomes another
        for (; at < n && (text[at] < '0' || text[at] > '9');)
            at++;
        if (at < n)
            text[at] = (char)('0' + random_below(10));
        return n;
    default:
        if (random_below(20))
            return n;
        text[at] = 0;
        return at ? at : 1;
    }
}

static void launch_all(CUmodule m)
{
    static const char *const kernels[] = {"fma_relu", "block_sum", "warp_ops", "atomics", "spaces",    "neighbours",
                                          "mixed",    "total",     "add",      "diverge", "async_copy"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        CUfunction f;
        if (cu.cuModuleGetFunction(&f, m, kernels[i]))
            continue;
        CUdeviceptr p = harness_empty(4096);
        CHECK_OK(cu.cuMemsetD8_v2(p, 0, 4096));
        uint64_t one = 1;
        void *params[16];
        for (int j = 0; j < 16; j++)
            params[j] = j < 2 ? (void *)&p : (void *)&one;
        CUresult result = cu.cuLaunchKernel(f, 2, 1, 1, 64, 1, 1, 256, NULL, params, NULL);
        result = result ? result : cu.cuCtxSynchronize();
        CHECK(result == CUDA_SUCCESS || cu.test_cuda_report()[0] != 0);
        if (result) // a broken context: start afresh
            harness_start("steps=20K");
        else
            CHECK_OK(cu.cuMemFree_v2(p));
        if (result)
            return;
    }
    CHECK_OK(cu.cuModuleUnload(m));
}

static void mutants(void)
{
    static const char *const files[] = {"elementwise.ptx", "block.ptx", "wrong.ptx", "streams.ptx", "llvm.ptx", "mma.ptx"};
    enum { ROOM = 1 << 16, ROUNDS = 400 };
    static char original[ROOM], text[ROOM];
    int loaded = 0, refused = 0;
    harness_start("steps=20K");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n = read_text(files[i], original, ROOM);
        for (uint64_t seed = 0; seed < ROUNDS; seed++) {
            state = seed * 1000 + i;
            memcpy(text, original, n + 1);
            size_t length = n;
            for (uint32_t changes = 1 + random_below(3); changes > 0; changes--)
                length = mutate(text, length, ROOM);
            cu.test_cuda_clear_report();
            CUmodule m = harness_text(text);
            if (m)
                launch_all(m);
            else
                CHECK(cu.test_cuda_report()[0] != 0);
            loaded += m != NULL;
            refused += m == NULL;
        }
    }
    printf("%d loaded, %d refused\n", loaded, refused);
    CHECK(loaded > 100 && refused > 100);
}

static const Case cases[] = {{"mutants", mutants}};
MAIN(cases)

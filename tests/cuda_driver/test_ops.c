// One row per instruction and corner: three inputs, the instruction, what must come out. Each row becomes a kernel of one
// module; expected values come from the documentation, not from this driver.
//
// With an argument the program writes the module's text to that file and ends: the test that calls ptxas reads it.
#include "tests/cuda_driver/harness.h"

#include <stdlib.h>

static uint64_t f(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static uint64_t d(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

#define INF UINT64_C(0x7f800000)
#define NAN32 UINT64_C(0x7fffffff)
#define QNAN UINT64_C(0x7fc00001) // a NaN with a payload
#define DNAN UINT64_C(0x7ff8000000000001)
#define M1_32 UINT64_C(0xffffffff)
#define M1_64 UINT64_C(0xffffffffffffffff)
#define MIN32 UINT64_C(0x80000000)
#define MIN64 UINT64_C(0x8000000000000000)
#define TINY UINT64_C(0x00000001) // the least subnormal f32
#define H(hi, lo) ((uint64_t)(hi) << 16 | (lo))

typedef struct Row {
    char kind; // of the result %<kind>0: r 32 bits, d 64 bits, h 16 bits, f f32, e f64, p predicate
    const char *text;
    uint64_t a, b, c, want;
} Row;

// Inputs a, b, c as %r1..3, %d1..3, %h1..3 (their low bits), %f1..3, %e1..3, %p1..3 (not zero).
static size_t make_rows(const Row **out)
{
    static Row rows[400];
    size_t n = 0;
#define R(...) rows[n++] = (Row){__VA_ARGS__};
#include "tests/cuda_driver/test_ops.def"
#undef R
    *out = rows;
    return n;
}

// With rough=on: what the documentation leaves open.
static const Row rough_rows[] = {
    {'f', "neg.f32 %f0, %f1;", QNAN, 0, 0, NAN32},         {'f', "neg.f32 %f0, %f1;", MIN32 | INF, 0, 0, INF},
    {'f', "abs.f32 %f0, %f1;", MIN32 | QNAN, 0, 0, NAN32}, {'e', "neg.f64 %e0, %e1;", DNAN, 0, 0, 0x7ff8000000000000},
    {'e', "abs.f64 %e0, %e1;", MIN64 | 1, 0, 0, 1},        {'h', "neg.f16 %h0, %h1;", 0x7e01, 0, 0, 0x7fff},
    {'h', "neg.bf16 %h0, %h1;", 0x7f80, 0, 0, 0xff80},     {'h', "abs.bf16 %h0, %h1;", 0xffc1, 0, 0, 0x7fff},
};
enum { ROUGH_ROWS = sizeof rough_rows / sizeof *rough_rows };

static char *module_text(const Row *rows, size_t n)
{
    size_t room = 4096 + n * 2048, used = 0;
    char *text = malloc(room);
    used += (size_t)sprintf(text, ".version 7.8\n.target sm_80\n.address_size 64\n");
    for (size_t i = 0; i < n; i++) {
        static const char *const tails[] = {"d", "",
                                            "r", "cvt.u64.u32 %d0, %r0;",
                                            "h", "cvt.u64.u16 %d0, %h0;",
                                            "f", "mov.b32 %r0, %f0; cvt.u64.u32 %d0, %r0;",
                                            "e", "mov.b64 %d0, %e0;",
                                            "p", "selp.u64 %d0, 1, 0, %p0;"};
        const char *tail = "";
        for (size_t t = 0; t < sizeof tails / sizeof *tails; t += 2)
            if (tails[t][0] == rows[i].kind)
                tail = tails[t + 1];
        used += (size_t)snprintf(text + used, room - used,
                                 ".visible .entry k%zu(.param .u64 k%zu_p) {\n"
                                 " .reg .pred %%p<8>; .reg .b16 %%h<8>; .reg .b32 %%r<8>; .reg .f32 %%f<8>; .reg .b64 %%d<8>; .reg .f64 "
                                 "%%e<8>;\n"
                                 " ld.param.u64 %%d7, [k%zu_p]; ld.global.v2.u64 {%%d1, %%d2}, [%%d7]; ld.global.u64 %%d3, [%%d7+16];\n"
                                 " cvt.u32.u64 %%r1, %%d1; cvt.u32.u64 %%r2, %%d2; cvt.u32.u64 %%r3, %%d3;\n"
                                 " mov.b32 %%f1, %%r1; mov.b32 %%f2, %%r2; mov.b32 %%f3, %%r3;\n"
                                 " mov.b64 %%e1, %%d1; mov.b64 %%e2, %%d2; mov.b64 %%e3, %%d3;\n"
                                 " cvt.u16.u64 %%h1, %%d1; cvt.u16.u64 %%h2, %%d2; cvt.u16.u64 %%h3, %%d3;\n"
                                 " setp.ne.u64 %%p1, %%d1, 0; setp.ne.u64 %%p2, %%d2, 0; setp.ne.u64 %%p3, %%d3, 0;\n"
                                 " %s\n %s\n st.global.u64 [%%d7+24], %%d0;\n ret;\n}\n",
                                 i, i, i, rows[i].text, tail);
    }
    return text;
}

static void run_rows(const char *settings, const Row *rows, size_t n, const char *text)
{
    harness_start(settings);
    CUmodule m = harness_text(text);
    if (!CHECK(m != NULL)) {
        fprintf(stderr, "%s\n", cu.test_cuda_report());
        return;
    }
    CUdeviceptr data = harness_empty(32);
    for (size_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "k%zu", i);
        uint64_t block[4] = {rows[i].a, rows[i].b, rows[i].c, 0};
        CHECK_OK(cu.cuMemcpyHtoD_v2(data, block, sizeof block));
        CHECK_OK(harness_launch(harness_function(m, name), 1, 1, 0, PARAMS(&data)));
        harness_download(block, data, sizeof block);
        harness_check(block[3] == rows[i].want, "test_ops.def", (int)i, "%s with 0x%llx, 0x%llx, 0x%llx gives 0x%llx, not 0x%llx",
                      rows[i].text, (unsigned long long)rows[i].a, (unsigned long long)rows[i].b, (unsigned long long)rows[i].c,
                      (unsigned long long)block[3], (unsigned long long)rows[i].want);
    }
}

int main(int argc, char **argv)
{
    const Row *rows;
    size_t n = make_rows(&rows);
    char *text = module_text(rows, n);
    if (argc > 1) {
        FILE *file = fopen(argv[1], "w");
        bool ok = file && fputs(text, file) >= 0;
        if (file)
            ok &= fclose(file) == 0;
        free(text);
        return !ok;
    }
    if (!harness_open())
        return 1;
    run_rows("races=off", rows, n, text);
    free(text);
    text = module_text(rough_rows, ROUGH_ROWS);
    run_rows("races=off,rough=on", rough_rows, ROUGH_ROWS, text);
    free(text);
    cu.test_cuda_reset();
    printf("%zu rows, %d checks, %d failed\n", n, checks, failures);
    return failures != 0;
}

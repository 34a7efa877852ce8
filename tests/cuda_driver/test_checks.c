// Each check of the executor fires on a kernel that does the forbidden thing, and is silent on the one that does not.
#include "tests/cuda_driver/harness.h"

#include <pthread.h>

#define HEAD ".version 7.0\n.target sm_80\n.address_size 64\n"

static CUfunction start(const char *kernel)
{
    harness_start("");
    return harness_function(harness_module("wrong.ptx"), kernel);
}

// One launch of a fresh driver: since a violation breaks the context.
static void expect_with(const char *set, const char *kernel, unsigned blocks, unsigned threads, uint32_t bad, CUresult code,
                        const char *text)
{
    CUfunction f = start(kernel);
    CHECK(cu.test_cuda_configure(set) == 0);
    cu.test_cuda_clear_report();
    CHECK_CODE(harness_launch(f, blocks, threads, 0, PARAMS(&bad)), code);
    CHECK_REPORT(text);
    if (code)
        CHECK_CODE(cu.cuCtxSynchronize(), code); // sticky
}

static void expect(const char *kernel, unsigned blocks, unsigned threads, uint32_t bad, CUresult code, const char *text)
{
    expect_with("", kernel, blocks, threads, bad, code, text);
}

static void addresses(void)
{
    CUfunction f = start("store");
    uint32_t index = 0, bad = 0;
    CUdeviceptr mem = harness_empty(40), gone = harness_empty(8);
    CHECK_OK(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index, &bad)));
    index = 9;
    CHECK_OK(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index, &bad)));
    index = 10;
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index, &bad)), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_REPORT("kernel store, ptx line 17 (st), block (0,0,0), thread (0,0,0)");
    CHECK_REPORT("0 bytes behind the end of #");
    CHECK_CODE(cu.cuMemFree_v2(mem), CUDA_ERROR_ILLEGAL_ADDRESS); // sticky

    f = start("store");
    mem = harness_empty(40);
    index = (uint32_t)-1;
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index, &bad)), CUDA_ERROR_ILLEGAL_ADDRESS);

    f = start("store");
    mem = harness_empty(40);
    index = 0;
    bad = 2;
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index, &bad)), CUDA_ERROR_MISALIGNED_ADDRESS);
    CHECK_REPORT("is no multiple of 4");

    f = start("store");
    gone = harness_empty(8);
    bad = 0;
    CHECK_OK(cu.cuMemFree_v2(gone));
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&gone, &index, &bad)), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_REPORT("which has been freed");

    f = start("store");
    mem = (CUdeviceptr)(uintptr_t)&index; // a host pointer
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index, &bad)), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void vectors(void)
{
    uint32_t words[4] = {1, 2, 3, 4}, index = 2;
    CUfunction f = start("load_v2");
    CUdeviceptr mem = harness_upload(words, sizeof words);
    CHECK_OK(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index)));
    harness_download(words, mem, sizeof words);
    CHECK(words[0] == 7);
    index = 1;
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index)), CUDA_ERROR_MISALIGNED_ADDRESS);
    CHECK_REPORT("is no multiple of 8");
    f = start("load_v2");
    mem = harness_empty(12);
    index = 2;
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index)), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_REPORT("reaches past its end");
}

static void unwritten(void)
{
    CUfunction f = start("load_v2");
    uint32_t index = 0, word = 5;
    CUdeviceptr mem = harness_empty(8);
    CHECK_OK(cu.cuMemcpyHtoD_v2(mem, &word, 4)); // the first word only
    CHECK_CODE(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index)), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_REPORT("read of memory that nobody wrote: 8 bytes");
    CHECK_REPORT("byte 4");
    start("load_v2");
    mem = harness_empty(8);
    CHECK_CODE(cu.cuMemcpyDtoH_v2(&word, mem, 4), CUDA_ERROR_LAUNCH_FAILED); // the hole shows on the way to the host
    CHECK_REPORT("was never written");
    f = start("load_v2");
    CUdeviceptr a = harness_empty(8), b = harness_upload("12345678", 8);
    CHECK_OK(cu.cuMemcpyDtoD_v2(a, b, 8)); // what is written travels with copies
    CHECK_OK(harness_launch(f, 1, 1, 0, PARAMS(&a, &index)));
    f = start("load_v2");
    CHECK(cu.test_cuda_configure("uninit=off") == 0);
    mem = harness_empty(8);
    CHECK_OK(harness_launch(f, 1, 1, 0, PARAMS(&mem, &index)));
}

static void own_memory(void)
{
    expect("own_memory", 1, 1, 0, CUDA_SUCCESS, "");
    expect("own_memory", 1, 1, 1, CUDA_ERROR_ILLEGAL_ADDRESS, "of the .shared space are in no variable");
    expect("own_memory", 1, 1, 2, CUDA_ERROR_LAUNCH_FAILED, "of the .shared space, byte 0");
    expect("own_memory", 1, 1, 3, CUDA_ERROR_ILLEGAL_ADDRESS, "of the .local space are in no variable");
    expect("own_memory", 1, 1, 4, CUDA_ERROR_LAUNCH_FAILED, "of the .local space, byte 0");
    expect_with("uninit=not_local", "own_memory", 1, 1, 2, CUDA_ERROR_LAUNCH_FAILED, "of the .shared space, byte 0");
    expect_with("uninit=not_local", "own_memory", 1, 1, 4, CUDA_SUCCESS, "");
}

static void barriers(void)
{
    expect("skip_barrier", 1, 64, 0, CUDA_SUCCESS, "");
    expect("skip_barrier", 1, 64, 64, CUDA_SUCCESS, ""); // nobody comes
    expect("skip_barrier", 1, 64, 32, CUDA_ERROR_LAUNCH_FAILED, "divergent barrier");
    expect("skip_barrier", 1, 64, 5, CUDA_ERROR_LAUNCH_FAILED, "divergent barrier: 5 threads of the block have ended");
    expect("two_barriers", 1, 64, 0, CUDA_SUCCESS, "");
    expect("two_barriers", 1, 64, 32, CUDA_SUCCESS, ""); // whole warps may use different instructions
    expect("two_barriers", 1, 64, 7, CUDA_ERROR_LAUNCH_FAILED, "divergent barrier: other threads of the warp wait at line");
    CUfunction f = start("skip_barrier");
    uint32_t bad = 32;
    CHECK(cu.test_cuda_configure("exited=allow") == 0);
    CHECK_OK(harness_launch(f, 1, 64, 0, PARAMS(&bad)));
}

static void warps(void)
{
    expect("lonely_shuffle", 1, 32, 0, CUDA_SUCCESS, "");
    expect("lonely_shuffle", 1, 32, 32, CUDA_SUCCESS, "");
    expect("lonely_shuffle", 1, 32, 16, CUDA_ERROR_LAUNCH_FAILED, "divergent warp instruction");
    expect("shuffle_outside", 1, 32, 3, CUDA_SUCCESS, "");
    expect("shuffle_outside", 1, 32, 20, CUDA_ERROR_LAUNCH_FAILED, "shuffle from lane 20, which does not take part");
}

static void shared_races(void)
{
    expect("neighbours", 1, 64, 0, CUDA_SUCCESS, "");
    expect("neighbours", 1, 64, 1, CUDA_ERROR_LAUNCH_FAILED, "race: read of");
    expect("neighbours", 1, 64, 2, CUDA_ERROR_LAUNCH_FAILED, "nothing orders the two");
    expect("neighbours", 1, 64, 3, CUDA_SUCCESS, "");
}

static void global_races(void)
{
    for (int i = 0; i < 3; i++) {
        CUfunction f = start("blocks_write");
        CUdeviceptr mem = harness_empty(16);
        uint32_t stride = i == 0, differ = i == 2; // own words; one word and one value; one word and two values
        CHECK_CODE(harness_launch(f, 4, 1, 0, PARAMS(&mem, &stride, &differ)), i == 2 ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS);
        if (i == 2)
            CHECK_REPORT("race: write of");
    }
    CUfunction f = start("bytes");
    CUdeviceptr mem = harness_upload("01234567890123456789012345678901", 32);
    char text[33] = "";
    CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&mem)));
    harness_download(text, mem, 32);
    CHECK(!strcmp(text, "123456789:123456789:123456789:12"));
}

static void read_only_cache(void)
{
    uint32_t words[64] = {1, 2, 3};
    for (uint32_t bad = 0; bad < 2; bad++) {
        CUfunction f = start("cached");
        CUdeviceptr mem = harness_upload(words, sizeof words);
        CHECK_CODE(harness_launch(f, 1, 32, 0, PARAMS(&mem, &bad)), bad ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS);
        CHECK_REPORT(bad ? "race: write of" : "");
        CHECK_REPORT(bad ? "read through the read-only cache" : "");
    }
}

typedef struct TextLoad {
    CUcontext context;
    CUresult result;
} TextLoad;

static void *load_text(void *load)
{
    TextLoad *l = load;
    CUmodule m;
    l->result = cu.cuCtxSetCurrent(l->context);
    if (l->result == CUDA_SUCCESS)
        l->result = cu.cuModuleLoadData(&m, HEAD);
    return NULL;
}

// A thread with little stack: a real assembler would run over its end.

static void small_stack(void)
{
    harness_start("");
    for (int small = 0; small < 2; small++) {
        TextLoad load = {NULL, CUDA_ERROR_UNKNOWN};
        pthread_attr_t attr;
        pthread_t thread;
        CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, small ? 256 << 10 : 8 << 20) == 0);
        CHECK_OK(cu.cuCtxGetCurrent(&load.context));
        CHECK(pthread_create(&thread, &attr, load_text, &load) == 0 && pthread_join(thread, NULL) == 0);
        pthread_attr_destroy(&attr);
        CHECK_CODE(load.result, small ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS);
    }
    CHECK_REPORT("on a stack");
}

static void ends(void)
{
    expect("stop", 1, 1, 0, CUDA_SUCCESS, "");
    expect("stop", 1, 1, 1, CUDA_ERROR_LAUNCH_FAILED, "trap");
    CUfunction f = start("forever");
    CHECK(cu.test_cuda_configure("steps=100K") == 0);
    CHECK_CODE(harness_launch(f, 1, 1, 0, NULL), CUDA_ERROR_LAUNCH_TIMEOUT);
}

#define BODY(text) HEAD ".visible .entry k() {\n.reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<4>; .reg .pred %p<4>;\n" text "\nret;\n}\n"

static void refused_text(const char *text, CUresult code, const char *message)
{
    CUmodule m;
    char log[256] = "untouched";
    int options[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[2] = {log, (void *)sizeof log};
    CHECK_CODE(cu.cuModuleLoadDataEx(&m, text, 2, options, values), code);
    CHECK_REPORT(message);
    harness_check(strstr(log, message) != NULL, __FILE__, __LINE__, "log '%s' lacks '%s'", log, message);
    CHECK((size_t)values[1] == strlen(log));
}

static void bad_text(void)
{
    harness_start("cc=8.0,driver=12000");
    CHECK(harness_text(BODY("add.u32 %r1, %r2, %r3;")) != NULL);
    refused_text(BODY("frobnicate.u32 %r1, %r2;"), CUDA_ERROR_INVALID_PTX, "ptx line 6: unknown instruction 'frobnicate.u32'");
    refused_text(BODY("add.u32.wide %r1, %r2, %r3;"), CUDA_ERROR_INVALID_PTX, "'add.u32.wide' does not take '.wide'");
    refused_text(BODY("add.u32 %r1, %r2;"), CUDA_ERROR_INVALID_PTX, "wants more than 2 operands");
    refused_text(BODY("add.u32 %r1, %r2, %r3, %r1;"), CUDA_ERROR_INVALID_PTX, "'add' with 4 operands");
    refused_text(BODY("add.f32 %f1, %r2, %f3;\nadd.s32 %f1, %r1, %r1;"), CUDA_ERROR_INVALID_PTX, "register of type");
    refused_text(BODY("add.u64 %r1, %d2, %d3;"), CUDA_ERROR_INVALID_PTX, "'%r1' is a register of type .b32");
    refused_text(BODY("add.u32 %r1, %r2, %r9;"), CUDA_ERROR_INVALID_PTX, "unknown name '%r9'");
    refused_text(BODY("bra $nowhere;"), CUDA_ERROR_INVALID_PTX, "branch to '$nowhere'");
    refused_text(BODY("@%r1 ret;"), CUDA_ERROR_INVALID_PTX, "is no predicate");
    refused_text(BODY("call nothing;"), CUDA_ERROR_INVALID_PTX, "no function of this module");
    refused_text(HEAD ".func f() { call f; ret; }\n.visible .entry k() { call f; ret; }", CUDA_ERROR_INVALID_PTX, "recursion");
    refused_text(BODY("fma.f32 %f1, %f1, %f1, %f1;"), CUDA_ERROR_INVALID_PTX, "needs a rounding mode");
    refused_text(BODY("add.ftz.u32 %r1, %r1, %r1;"), CUDA_ERROR_INVALID_PTX, "modifiers that do not go together");
    refused_text(BODY("setp.hi.s32 %p1, %r1, %r1;"), CUDA_ERROR_INVALID_PTX, "modifiers that do not go together");
    refused_text(BODY("ld.global.wb.u32 %r1, [%d1];"), CUDA_ERROR_INVALID_PTX, "modifiers that do not go together");
    refused_text(BODY("ld.global.v4.u64 {%d1, %d2, %d3, %d1}, [%d1];"), CUDA_ERROR_INVALID_PTX, "modifiers that do not go together");
    refused_text(BODY("cvt.rn.s32.f32 %r1, %f1;"), CUDA_ERROR_INVALID_PTX, "modifiers that do not go together");
    refused_text(BODY("mul.s32 %r1, %r1, %r1;"), CUDA_ERROR_INVALID_PTX, "needs .lo, .hi or .wide");
    refused_text(BODY("cvt.f32.s32 %f1, %r1;"), CUDA_ERROR_INVALID_PTX, "needs a rounding mode");
    refused_text(BODY("max.xorsign.abs.f32 %f1, %f1, %f1;"), CUDA_ERROR_INVALID_PTX,
                 "this 'max' needs sm_86 and PTX 7.2, the text says sm_80 and PTX 7.0");
    refused_text(BODY("max.s16x2 %r1, %r1, %r1;"), CUDA_ERROR_INVALID_PTX, "this 'max' needs sm_90 and PTX 8.0, the text says");
    refused_text(BODY("sub.s16x2 %r1, %r1, %r1;"), CUDA_ERROR_INVALID_PTX, "'sub.s16x2' does not take '.s16x2'");
    refused_text(BODY("shfl.idx.b32 %r1, %r1, 0, 31, -1;"), CUDA_ERROR_INVALID_PTX, "needs .sync");
    refused_text("hello", CUDA_ERROR_INVALID_PTX, "expected .version");
    refused_text(".version 8.3\n.target sm_80\n", CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX 8.3 is newer than the driver's 8.0");
    refused_text(".version 6.4\n.target sm_80\n", CUDA_ERROR_INVALID_PTX, "PTX 6.4 does not know sm_80");
    refused_text(BODY("add.f32 %f1, %f1, 1;"), CUDA_ERROR_INVALID_PTX, "constant '1' for an operand of type .f32");
    refused_text(BODY("add.u32.u32 %r1, %r1, 1;"), CUDA_ERROR_INVALID_PTX, "too many types");
    refused_text(BODY("ld.global.shared.u32 %r1, [%d1];"), CUDA_ERROR_INVALID_PTX, "two modifiers of one kind");
    refused_text(".version 7.8\n.target sm_90\n", CUDA_ERROR_NO_BINARY_FOR_GPU, "compute capability 8.0");
    CHECK(cu.test_cuda_configure("cc=9.0") == 0);
    CHECK(harness_text(".version 8.0\n.target sm_90a\n") != NULL);
    CHECK(cu.test_cuda_configure("cc=10.0") == 0);
    CHECK(harness_text(".version 8.0\n.target sm_90\n") != NULL);
    refused_text(".version 8.0\n.target sm_90a\n", CUDA_ERROR_NO_BINARY_FOR_GPU, "sm_90a");
    CUmodule m;
    CHECK_CODE(cu.cuModuleLoadData(&m, "\177ELF"), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

static const Case cases[] = {{"addresses", addresses},
                             {"vectors", vectors},
                             {"unwritten", unwritten},
                             {"own_memory", own_memory},
                             {"barriers", barriers},
                             {"warps", warps},
                             {"shared_races", shared_races},
                             {"global_races", global_races},
                             {"read_only_cache", read_only_cache},
                             {"small_stack", small_stack},
                             {"ends", ends},
                             {"bad_text", bad_text}};
MAIN(cases)

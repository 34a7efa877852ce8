#include "tests/cuda_driver/harness.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>

Driver cu;
int failures, checks;

bool harness_check(bool ok, const char *file, int line, const char *format, ...)
{
    checks++;
    if (ok)
        return true;
    failures++;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return false;
}

bool harness_open(void)
{
    const char *path = getenv("KILN_LIBCUDA");
    void *library = dlopen(path ? path : TEST_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
#define X(result, name, params)                               \
    {                                                         \
        void *symbol = dlsym(library, #name);                 \
        memcpy(&cu.name, &symbol, sizeof symbol);             \
        if (!symbol) {                                        \
            fprintf(stderr, "the driver has no %s\n", #name); \
            return false;                                     \
        }                                                     \
    }
    DRIVER_FUNCTIONS(X)
#undef X
    return true;
}

void harness_start(const char *settings)
{
    CUcontext context;
    cu.test_cuda_reset();
    CHECK(cu.test_cuda_configure("log=none") == 0);
    CHECK(cu.test_cuda_configure(settings) == 0);
    CHECK_OK(cu.cuInit(0));
    CHECK_OK(cu.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_OK(cu.cuCtxSetCurrent(context));
}

CUmodule harness_text(const char *text)
{
    CUmodule m = NULL;
    cu.cuModuleLoadData(&m, text);
    return m;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = size >= 0 ? calloc(1, (size_t)size + 1) : NULL;
    if (text && fread(text, 1, (size_t)size, f) != (size_t)size) {
        free(text);
        text = NULL;
    }
    fclose(f);
    return text;
}

CUmodule harness_module(const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/cuda_driver/ptx/%s", KILN_SOURCE_DIR, file);
    char *text = read_file(path);
    CUmodule m = text ? harness_text(text) : NULL;
    free(text);
    if (!m) {
        fprintf(stderr, "%s: %s\n", path, text ? cu.test_cuda_report() : "cannot be read");
        exit(1);
    }
    return m;
}

CUfunction harness_function(CUmodule m, const char *name)
{
    CUfunction f = NULL;
    CUresult result = cu.cuModuleGetFunction(&f, m, name);
    harness_check(result == CUDA_SUCCESS, __FILE__, __LINE__, "no function %s: %d", name, result);
    return f;
}

CUdeviceptr harness_empty(size_t size)
{
    CUdeviceptr p = 0;
    CHECK_OK(cu.cuMemAlloc_v2(&p, size));
    return p;
}

CUdeviceptr harness_upload(const void *bytes, size_t size)
{
    CUdeviceptr p = harness_empty(size);
    CHECK_OK(cu.cuMemcpyHtoD_v2(p, bytes, size));
    return p;
}

void harness_download(void *to, CUdeviceptr from, size_t size) { CHECK_OK(cu.cuMemcpyDtoH_v2(to, from, size)); }

CUresult harness_launch(CUfunction f, unsigned blocks, unsigned threads, unsigned shared, void **params)
{
    CUresult result = cu.cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, shared, NULL, params, NULL);
    return result ? result : cu.cuCtxSynchronize();
}

int harness_main(int argc, char **argv, const Case *cases, size_t count)
{
    if (!harness_open())
        return 1;
    for (size_t i = 0; i < count; i++) {
        bool wanted = argc < 2;
        for (int a = 1; a < argc; a++)
            wanted |= !strcmp(argv[a], cases[i].name);
        if (!wanted)
            continue;
        int before = failures;
        cases[i].run();
        printf("%-32s %s\n", cases[i].name, failures == before ? "ok" : "FAILED");
        fflush(stdout);
    }
    cu.test_cuda_reset();
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0 || checks == 0;
}

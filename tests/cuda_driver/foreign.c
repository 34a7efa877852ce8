// Work that another library queues on a stream, between kernels and copies: tests/ranks/nccl.c.
#include "tests/cuda_driver/driver.h"

#include <string.h>

API int test_cuda_enqueue(void *stream, int (*poll)(void *user), void *user)
{
    Stream *s;
    api_lock();
    CUresult result = context_current() ? stream_get(stream, &s) : CUDA_ERROR_INVALID_CONTEXT;
    Command c = {.kind = COMMAND_FOREIGN, .u.foreign = {poll, user}};
    if (result == CUDA_SUCCESS)
        result = s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : stream_submit(s, &c);
    api_unlock();
    return (int)result;
}

API void *test_cuda_access(uint64_t address, size_t size, int write)
{
    api_lock();
    Allocation *a = memory_find(address);
    const size_t at = a ? address - a->address : 0;
    void *bytes = a && size <= a->size - at ? a->bytes + at : NULL;
    if (!bytes)
        report("%zu bytes at 0x%llx of another library: %s", size, (unsigned long long)address, memory_describe(address, size));
    else if (write && a->written)
        memset(a->written + at, 1, size);
    else if (!write && a->written && settings.uninit && memchr(a->written + at, 0, size)) {
        report("another library reads %zu bytes of which some were never written (%s)", size, memory_describe(address, size));
        bytes = NULL;
    }
    if (!bytes)
        counters.violations++;
    api_unlock();
    return bytes;
}

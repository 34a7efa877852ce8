// Work that another library queues on a stream, between kernels and copies: tests/ranks/nccl.c.
#include "tests/cuda_driver/driver.h"

#include <stdlib.h>
#include <string.h>

typedef struct Captured {
    unsigned refs; // commands of nodes and instances
    test_cuda_captured what;
} Captured;

Captured *captured_retain(Captured *c)
{
    if (c)
        c->refs++;
    return c;
}

void captured_release(Captured *c)
{
    if (c && --c->refs == 0) {
        c->what.end(c->what.user);
        free(c);
    }
}

void *captured_begin(const Captured *c) { return c->what.begin(c->what.user); }

API int test_cuda_capture(void *stream, const test_cuda_captured *what)
{
    Stream *s;
    Captured *captured = calloc(1, sizeof *captured);
    api_lock();
    CUresult result = !captured ? CUDA_ERROR_OUT_OF_MEMORY : context_current() ? stream_get(stream, &s) : CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS && !s->capture)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS) {
        *captured = (Captured){1, *what};
        result = stream_submit(s, &(Command){.kind = COMMAND_FOREIGN, .u.foreign = {.poll = what->poll, .captured = captured}});
    } else {
        free(captured);
    }
    api_unlock();
    return (int)result;
}

API int test_cuda_capturing(void)
{
    int found = 0;
    api_lock();
    for (const Object *o = object_first(OBJECT_STREAM); o; o = object_next(o)) {
        const Stream *s = (const Stream *)o;
        found |= s->capture_origin && pthread_equal(s->capture_thread, pthread_self());
    }
    api_unlock();
    return found;
}

API int test_cuda_enqueue(void *stream, int (*poll)(void *user), void *user)
{
    Stream *s;
    api_lock();
    CUresult result = context_current() ? stream_get(stream, &s) : CUDA_ERROR_INVALID_CONTEXT;
    Command c = {.kind = COMMAND_FOREIGN, .u.foreign = {poll, user, NULL}};
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

// Copies and fills. Which bytes are written travels with device-to-device copies; a copy to the host of bytes that nobody
// wrote is a violation: a kernel left a hole in its result.
#include "tests/cuda_driver/driver.h"

#include <stdlib.h>
#include <string.h>

static bool device_range(CUdeviceptr at, size_t size)
{
    if (size == 0)
        return true;
    const Allocation *a = memory_find(at);
    if (a && at - a->address + size <= a->size)
        return true;
    report("copy or fill of %zu bytes at 0x%llx: %s", size, at, memory_describe(at, size));
    return false;
}

CUresult copy_submit(CUstream stream, bool async, CopyCommand copy)
{
    Stream *s;
    CUresult result = stream_get(stream, &s);
    if (result)
        return result;
    if ((!copy.to_host && !device_range(copy.to, copy.size)) || (!copy.from_host && !device_range(copy.from, copy.size)))
        return CUDA_ERROR_INVALID_VALUE;
    if (copy.size == 0)
        return CUDA_SUCCESS;
    bool pageable_source = copy.from_host && !memory_host(copy.from_host, copy.size);
    bool pageable_target = copy.to_host && !memory_host(copy.to_host, copy.size);
    if (s->capture && !async) {
        s->capture_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (async && pageable_source && !s->capture) { // the driver takes the bytes before it returns
        copy.staged = malloc(copy.size);
        if (!copy.staged)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(copy.staged, copy.from_host, copy.size);
    }
    Command c = {.kind = COMMAND_COPY, .u.copy = copy};
    result = stream_submit(s, &c);
    if (result == CUDA_SUCCESS && !s->capture && (!async || pageable_target))
        result = stream_drain(s);
    return result;
}

CUresult copy_run(const CopyCommand *copy)
{
    counters.copies++;
    Allocation *to = copy->to_host ? NULL : memory_find(copy->to), *from = copy->from_host ? NULL : memory_find(copy->from);
    if ((!copy->to_host && !to) || (!copy->from_host && !from)) {
        report("copy of %zu bytes: its memory was freed before the copy ran", copy->size);
        counters.violations++;
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    size_t to_offset = to ? copy->to - to->address : 0, from_offset = from ? copy->from - from->address : 0;
    const void *source = copy->staged ? copy->staged : from ? from->bytes + from_offset : copy->from_host;
    const uint8_t *written = from && from->written ? from->written + from_offset : NULL;
    if (copy->to_host) {
        const uint8_t *hole = written && settings.uninit ? memchr(written, 0, copy->size) : NULL;
        if (hole) {
            report("copy of %zu bytes to the host: byte %zu was never written (%s)", copy->size, (size_t)(hole - written),
                   memory_describe(copy->from, copy->size));
            counters.violations++;
            return CUDA_ERROR_LAUNCH_FAILED;
        }
        memcpy(copy->to_host, source, copy->size);
        counters.bytes_to_host += copy->size;
        return CUDA_SUCCESS;
    }
    memmove(to->bytes + to_offset, source, copy->size);
    if (to->written && written)
        memmove(to->written + to_offset, written, copy->size);
    else if (to->written)
        memset(to->written + to_offset, 1, copy->size);
    *(from ? &counters.bytes_on_device : &counters.bytes_to_device) += copy->size;
    return CUDA_SUCCESS;
}

CUresult set_submit(CUstream stream, bool async, SetCommand set)
{
    Stream *s;
    CUresult result = stream_get(stream, &s);
    if (result)
        return result;
    if (set.to % set.width || !device_range(set.to, set.count * set.width))
        return CUDA_ERROR_INVALID_VALUE;
    if (set.count == 0)
        return CUDA_SUCCESS;
    Command c = {.kind = COMMAND_SET, .u.set = set};
    (void)async; // the fills of the API are asynchronous to the host either way
    return stream_submit(s, &c);
}

CUresult set_run(const SetCommand *set)
{
    counters.memsets++;
    Allocation *a = memory_find(set->to);
    if (!a) {
        report("fill of %zu elements: its memory was freed before the fill ran", set->count);
        counters.violations++;
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    size_t offset = set->to - a->address;
    for (size_t i = 0; i < set->count; i++)
        memcpy(a->bytes + offset + i * set->width, &set->value, set->width);
    if (a->written)
        memset(a->written + offset, 1, set->count * set->width);
    return CUDA_SUCCESS;
}

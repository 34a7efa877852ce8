/*
 * Memory of a CUDA device: a caching allocator in stream order, and copies through pinned memory.
 *
 * Freed blocks are kept by size class, each with the stream it was last used on. There it can be used again at once, since everything
 * on a stream runs in order; another stream first waits for what that one has queued. Nothing waits on the host. When the driver has
 * no memory left, everything kept is given back and it is asked once more. KILN_TEST_MEMORY=exact leaves it all to the driver, so that
 * a driver that checks accesses (tests/cuda_driver) knows where each buffer ends and when it is freed.
 *
 * A copy passes through two halves of pinned memory: while one is on its way, the host fills or empties the other.
 */
#include "ir/base/os.h"
#include "runtime/cuda.h"
#include "runtime/stats.h"

#include <string.h>

struct CudaBlock {
    CudaBlock *next;
    CudaStream *stream;
    CuPointer pointer;
};

enum { HOST_PORTABLE = 1, HALF = STAGING_BYTES / 2, LOOK_AT = 32 };

/* --- blocks ------------------------------------------------------------------------------------------------------- */

/* A kept block of the class, one of this stream if there is one: of the first few that with the lowest address, so that a program that
 * runs again finds its buffers where they were, in whatever order they were freed (a CUDA graph is spared the update then). */
static CudaBlock *take_block(CudaDevice *d, const CudaStream *stream, size_t rounded)
{
    pthread_mutex_lock(&d->lock);
    CudaBlock **first = &d->pool[size_class(rounded)], **best = NULL;
    int looked = 0;
    for (CudaBlock **link = first; *link && (looked < LOOK_AT || !best); link = &(*link)->next, looked++)
        if ((*link)->stream == stream && (!best || (*link)->pointer < (*best)->pointer))
            best = link;
    CudaBlock **link = best ? best : first, *block = *link;
    if (block) {
        *link = block->next;
        d->pooled -= rounded;
    }
    pthread_mutex_unlock(&d->lock);
    return block;
}

static void keep_block(CudaDevice *d, CudaBlock *block, size_t rounded)
{
    unsigned index = size_class(rounded);
    pthread_mutex_lock(&d->lock);
    block->next = d->pool[index];
    d->pool[index] = block;
    d->pooled += rounded;
    pthread_mutex_unlock(&d->lock);
}

static void count(CudaDevice *d, size_t bytes, bool more)
{
    pthread_mutex_lock(&d->lock);
    d->in_use += more ? bytes : -bytes;
    pthread_mutex_unlock(&d->lock);
}

static Status no_memory(CudaDevice *d, size_t bytes)
{
    size_t free_bytes = 0, total = 0;
    cuda.mem_info(&free_bytes, &total);
    return fail(ST_OUT_OF_MEMORY, "cuda:%d is out of memory: %zu bytes requested, %zu in use, %zu pooled, %zu free of %zu", d->ordinal,
                bytes, d->in_use, d->pooled, free_bytes, total);
}

/* What a buffer takes. */
static size_t rounded_bytes(const CudaDevice *d, size_t bytes)
{
    return d->exact ? bytes + !bytes : size_class_bytes(bytes);
}

static CuResult ask(CudaDevice *d, CudaStream *stream, size_t bytes, CuPointer *out)
{
    CuResult result = d->exact ? cuda.alloc_ordered(out, bytes, stream->stream) : cuda.mem_alloc(out, bytes);
    if (result == 0 || (!d->exact && !d->pooled))
        return result;
    cuda_trim(d);
    return d->exact ? cuda.alloc_ordered(out, bytes, stream->stream) : cuda.mem_alloc(out, bytes);
}

Status cuda_alloc(CudaDevice *d, CudaStream *stream, size_t bytes, CuPointer *out)
{
    if (bytes > (size_t)1 << 62)
        return no_memory(d, bytes);
    size_t rounded = rounded_bytes(d, bytes);
    CudaBlock *block = d->exact ? NULL : take_block(d, stream, rounded);
    if (block) {
        Status status = cuda_stream_after(stream, block->stream);
        if (status != ST_OK) {
            keep_block(d, block, rounded);
            return status;
        }
        *out = block->pointer;
        os_free(block);
    } else {
        Status status = cuda_check(d, ask(d, stream, rounded, out), "allocating memory");
        if (status == ST_OUT_OF_MEMORY)
            return no_memory(d, bytes);
        TRY(status);
    }
    count(d, rounded, true);
    return ST_OK;
}

void cuda_free(CudaDevice *d, CudaStream *stream, CuPointer pointer, size_t bytes)
{
    size_t rounded = rounded_bytes(d, bytes);
    count(d, rounded, false);
    if (d->broken)
        return; /* the memory went with the context */
    if (d->exact) {
        cuda.free_ordered(pointer, stream->stream);
        return;
    }
    CudaBlock *block = os_alloc(sizeof *block);
    if (!block) {
        cuda.mem_free(pointer); /* waits for the device */
        return;
    }
    *block = (CudaBlock){NULL, stream, pointer};
    keep_block(d, block, rounded);
}

void cuda_trim(CudaDevice *d)
{
    if (d->exact)
        cuda.context_synchronize(); /* what is freed in order is free then */
    pthread_mutex_lock(&d->lock);
    for (unsigned index = 0; index < SIZE_CLASSES; index++)
        while (d->pool[index]) {
            CudaBlock *block = d->pool[index];
            d->pool[index] = block->next;
            cuda.mem_free(block->pointer); /* waits for what uses it */
            os_free(block);
        }
    d->pooled = 0;
    pthread_mutex_unlock(&d->lock);
}

/* --- copies --------------------------------------------------------------------------------------------------------- */

/* Under the staging lock. */
static Status staging_ready(CudaDevice *d)
{
    CudaStaging *s = &d->staging;
    for (int i = 0; i < 2; i++) {
        void *half;
        if (s->half[i])
            continue;
        TRY(cuda_check(d, cuda.host_alloc(&half, HALF, HOST_PORTABLE), "allocating pinned memory"));
        CuResult result = cuda.event_create(&s->done[i], 2);
        if (result != 0)
            cuda.host_free(half);
        TRY(cuda_check(d, result, "making an event"));
        s->half[i] = half;
    }
    return ST_OK;
}

/* The half is free once its last copy is done: not before that is known. */
static Status half_free(CudaDevice *d, int i)
{
    CudaStaging *s = &d->staging;
    if (s->used[i])
        TRY(cuda_check(d, cuda.event_synchronize(s->done[i]), "waiting for a copy"));
    s->used[i] = false;
    return ST_OK;
}

static Status half_queued(CudaDevice *d, int i, CudaStream *stream)
{
    CuResult result = cuda.event_record(d->staging.done[i], stream->stream);
    d->staging.used[i] = result == 0;
    if (result != 0)
        cuda.stream_synchronize(stream->stream); /* nothing tells when the copy is done */
    return cuda_check(d, result, "recording an event");
}

/* Under the staging lock. */
static Status copy_in(CudaDevice *d, CudaStream *stream, CuPointer to, const char *from, size_t bytes)
{
    TRY(staging_ready(d));
    for (int i = 0; bytes; i ^= 1) {
        size_t part = bytes < HALF ? bytes : HALF;
        TRY(half_free(d, i));
        memcpy(d->staging.half[i], from, part);
        TRY(cuda_check(d, cuda.copy_in(to, d->staging.half[i], part, stream->stream), "copying to the device"));
        TRY(half_queued(d, i, stream));
        to += part, from += part, bytes -= part;
    }
    return ST_OK;
}

Status cuda_copy_in(CudaDevice *d, CudaStream *stream, CuPointer to, const char *from, size_t bytes)
{
    pthread_mutex_lock(&d->staging_lock);
    Status status = copy_in(d, stream, to, from, bytes);
    pthread_mutex_unlock(&d->staging_lock);
    return status;
}

/* Queues part k of a copy out into its half. */
static Status queue_part(CudaDevice *d, CudaStream *stream, CuPointer from, size_t bytes, size_t k)
{
    size_t at = k * HALF, part = bytes - at < HALF ? bytes - at : HALF;
    TRY(half_free(d, (int)(k & 1)));
    TRY(cuda_check(d, cuda.copy_out(d->staging.half[k & 1], from + at, part, stream->stream), "copying from the device"));
    return half_queued(d, (int)(k & 1), stream);
}

static Status copy_out(CudaDevice *d, CudaStream *stream, char *to, CuPointer from, size_t bytes)
{
    size_t parts = (bytes + HALF - 1) / HALF;
    TRY(staging_ready(d));
    TRY(queue_part(d, stream, from, bytes, 0));
    for (size_t k = 0; k < parts; k++) {
        size_t at = k * HALF;
        if (k + 1 < parts)
            TRY(queue_part(d, stream, from, bytes, k + 1));
        TRY(half_free(d, (int)(k & 1)));
        memcpy(to + at, d->staging.half[k & 1], bytes - at < HALF ? bytes - at : HALF);
    }
    return ST_OK;
}

Status cuda_copy_out(CudaDevice *d, CudaStream *stream, char *to, CuPointer from, size_t bytes)
{
    if (bytes == 0)
        return ST_OK;
    pthread_mutex_lock(&d->staging_lock);
    Status status = copy_out(d, stream, to, from, bytes);
    pthread_mutex_unlock(&d->staging_lock);
    return status;
}

/* --- storages ------------------------------------------------------------------------------------------------------- */

Status cuda_storage(int k, size_t bytes, Storage *storage)
{
    CudaDevice *d;
    CudaStream *stream;
    CuPointer pointer;
    TRY(cuda_open(k, &d));
    TRY(cuda_stream(d, &stream));
    TRY(cuda_alloc(d, stream, bytes, &pointer));
    storage->data = (void *)(uintptr_t)pointer;
    storage->stream = stream;
    return ST_OK;
}

void cuda_storage_free(Storage *storage)
{
    cuda_doubt_release(storage->doubt);
    if (!cuda_forked())
        cuda_free(cuda_device_of(storage), storage->stream, (CuPointer)(uintptr_t)storage->data, storage->bytes);
}

/* The storage's device, its context current here, and this thread's stream after all that is queued for the storage. */
static Status begin_copy(Storage *storage, CudaDevice **d, CudaStream **stream)
{
    TRY(cuda_open(storage->device - DEVICE_CUDA, d));
    TRY(cuda_stream(*d, stream));
    return cuda_use(storage, *stream);
}

Status cuda_storage_read(Storage *storage, const char *from, void *to, size_t bytes)
{
    CudaDevice *d;
    CudaStream *stream;
    TRY(begin_copy(storage, &d, &stream));
    TRY(cuda_doubt_settle(storage));
    return cuda_copy_out(d, stream, to, (CuPointer)(uintptr_t)from, bytes);
}

Status cuda_storage_write(Storage *storage, char *to, const void *from, size_t bytes)
{
    CudaDevice *d;
    CudaStream *stream;
    TRY(begin_copy(storage, &d, &stream));
    return cuda_copy_in(d, stream, (CuPointer)(uintptr_t)to, from, bytes);
}

Status cuda_storage_wait(Storage *storage)
{
    CudaDevice *d;
    TRY(cuda_open(storage->device - DEVICE_CUDA, &d));
    CudaStream *stream = storage->stream;
    TRY(cuda_check(d, cuda.stream_synchronize(stream->stream), "waiting for the device"));
    return cuda_doubt_settle(storage);
}

Status cuda_storage_settle(Storage *storage)
{
    CudaDevice *d;
    if (!storage->doubt)
        return ST_OK;
    TRY(cuda_open(storage->device - DEVICE_CUDA, &d));
    return cuda_doubt_settle(storage);
}

/*
 * Memory of a CUDA device: a caching allocator in stream order, and copies through pinned memory.
 *
 * Freed blocks are kept by size class, each with the streams it was used on. If that is one, it can be used again there at once, since everything
 * on a stream runs in order; another stream first waits for what those had queued when the block was freed (large blocks have an
 * event that tells), or have queued by now; it does so where enough is kept, and asks for more before. Nothing waits on the host. When the driver has no memory left, everything kept is given back
 * and it is asked once more; and then for no more than is needed, not rounded up to a class: such memory is not kept.
 * KILN_TEST_MEMORY=exact leaves it all to the driver, so that a driver that checks accesses (tests/cuda_driver) knows where each buffer
 * ends and when it is freed.
 *
 * A copy passes through two halves of pinned memory of its stream: while one is on its way, the host fills or empties the other. A large one to memory
 * that is fresh has a stream of its own, so it runs while the device computes what was queued before: input for the next
 * step comes over during this one.
 */
#include "ir/base/os.h"
#include "runtime/eval/constants.h"
#include "runtime/api/stats.h"
#include "runtime/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

struct CudaBlock {
    CudaBlock *next;
    uint64_t streams; /* that used it */
    CuPointer pointer;
    CuEvent event; /* NULL: none was needed yet */
    bool marked;   /* the event says when the memory is free, else the streams do */
};

enum {
    SMALL_HALF = 64 << 10, /* of pinned memory, for a stream of which no larger copy was asked, ... */
    HALF = 2 << 20,        /* ... and for others */
    LOOK_AT = 32,
    LARGE = 1 << 20,  /* from here on a copy is worth two more calls of the driver */
    AHEAD = 3,        /* so many buffers of a size let uploads run ahead of what is computed */
    SPARED = 64 << 20 /* bytes that may be kept beyond as many as are in use, before a stream takes what another one used */
};

/* --- blocks ------------------------------------------------------------------------------------------------------- */

/* Was it used on this stream alone? */
static bool own(const CudaStream *stream, const CudaBlock *block)
{
    return block->streams == cuda_bit(stream) && stream->bit != BIT_OF_MANY;
}

/* Under the lock. Is it better to ask for more memory than to wait for the block of another stream? An upload does where it would wait, others
 * do as long as few are kept: threads are to work beside each other, and each soon has blocks of its own. */
static bool rather_more(const CudaDevice *d, const CudaStream *stream, const CudaBlock *block, int kept, size_t rounded)
{
    if (stream->bit == BIT_OF_UPLOADS)
        return kept < AHEAD && block->marked && cuda.event_query(block->event) != 0;
    return kept < LOOK_AT && d->pooled + rounded <= d->in_use + SPARED;
}

/* A kept block of the class, of the first few: one of this stream alone with the lowest address, so that a program that runs again finds its
 * buffers where they were, in whatever order they were freed (a CUDA graph is spared the update then); else the one that was freed first.
 * any: though it may be better to ask for more. */
static CudaBlock *take_block(CudaDevice *d, const CudaStream *stream, size_t rounded, bool any)
{
    pthread_mutex_lock(&d->lock);
    CudaBlock **link = &d->pool[size_class(rounded)], **best = NULL, **last = link;
    int looked = 0;
    for (; *link && (looked < LOOK_AT || !best); link = &(*link)->next, looked++) {
        if (own(stream, *link) && (!best || (*link)->pointer < (*best)->pointer))
            best = link;
        last = link;
    }
    link = best ? best : last;
    CudaBlock *block = *link;
    if (block && !best && !any && rather_more(d, stream, block, looked, rounded))
        block = NULL;
    if (block) {
        *link = block->next;
        d->pooled -= rounded;
    }
    pthread_mutex_unlock(&d->lock);
    return block;
}

/* The record of a block, from those that are of no memory now; NULL: out of memory. */
static CudaBlock *spare_block(CudaDevice *d)
{
    pthread_mutex_lock(&d->lock);
    CudaBlock *block = d->spare;
    if (block)
        d->spare = block->next;
    pthread_mutex_unlock(&d->lock);
    return block ? block : os_calloc(1, sizeof *block);
}

static void spare(CudaDevice *d, CudaBlock *block)
{
    pthread_mutex_lock(&d->lock);
    block->next = d->spare;
    d->spare = block;
    pthread_mutex_unlock(&d->lock);
}

/* A thread may give back memory of a device that it never used: what it makes would belong to another. */
static bool current_here(CudaDevice *d)
{
    CuContext current;
    return cuda.context_get(&current) == 0 && current == atomic_load(&d->context);
}

/* Other streams may want the memory soon: when it is free, as exactly as its size is worth. */
static void mark(CudaDevice *d, CudaBlock *block, size_t rounded)
{
    CudaStream *stream = atomic_load(&d->streams[__builtin_ctzll(block->streams)]);
    bool one = (block->streams & (block->streams - 1)) == 0 && !stream->next_same;
    block->marked = one && rounded >= LARGE && atomic_load(&d->streams[BIT_OF_UPLOADS]) &&
                    (block->event || (current_here(d) && cuda.event_create(&block->event, CU_NO_TIMING) == 0)) &&
                    cuda.event_record(block->event, stream->stream) == 0;
}

static Status wait_for_block(CudaStream *stream, const CudaBlock *block)
{
    if (own(stream, block))
        return ST_OK;
    if (!block->marked)
        return cuda_stream_after(stream, block->streams);
    return cuda_check(stream->device, cuda.stream_wait_event(stream->stream, block->event, 0), "waiting for memory");
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

const char *cuda_memory_text(CudaDevice *d, char *text, size_t size)
{
    static const char advice[] = "release tensors, or use the device \"cpu\"";
    size_t free_bytes, total;
    if (cuda.mem_info(&free_bytes, &total) != 0) { /* no context yet */
        snprintf(text, size, "%s", advice);
        return text;
    }
    pthread_mutex_lock(&d->lock);
    size_t in_use = d->in_use, pooled = d->pooled;
    pthread_mutex_unlock(&d->lock);
    snprintf(text, size, "%zu bytes in use, %zu pooled, %zu free of %zu; %s", in_use, pooled, free_bytes, total, advice);
    return text;
}

static Status no_memory(CudaDevice *d, size_t bytes)
{
    char text[256];
    return fail(ST_OUT_OF_MEMORY, "cuda:%d is out of memory: %zu bytes requested, %s", d->ordinal, bytes,
                cuda_memory_text(d, text, sizeof text));
}

/* What a buffer takes. */
static size_t rounded_bytes(const CudaDevice *d, size_t bytes) { return d->exact ? bytes + !bytes : size_class_bytes(bytes); }

/* Though nothing is kept: another thread may have given it all back meanwhile. */
bool cuda_made_room(CudaDevice *d, CuResult result)
{
    if (result == CU_OUT_OF_MEMORY) {
        (void)constants_drop(DEVICE_CUDA + d->ordinal);
        cuda_trim(d);
    }
    return result == CU_OUT_OF_MEMORY;
}

static CuResult ask(CudaDevice *d, CudaStream *stream, size_t bytes, CuPointer *out)
{
    return d->exact ? cuda.alloc_ordered(out, bytes, stream->stream) : cuda.mem_alloc(out, bytes);
}

/* The device is all but full: memory of just this size, which no class would have room for. */
static CuResult ask_tight(CudaDevice *d, CudaStream *stream, size_t bytes, CuPointer *out)
{
    CudaBlock *block = d->exact ? NULL : spare_block(d);
    CuResult result = block ? ask(d, stream, bytes, out) : CU_OUT_OF_MEMORY;
    if (block && result != 0)
        spare(d, block);
    if (result != 0)
        return result;
    block->pointer = *out;
    pthread_mutex_lock(&d->lock);
    block->next = d->tight;
    d->tight = block;
    pthread_mutex_unlock(&d->lock);
    return result;
}

static bool was_tight(CudaDevice *d, CuPointer pointer)
{
    pthread_mutex_lock(&d->lock);
    CudaBlock **link = &d->tight;
    while (*link && (*link)->pointer != pointer)
        link = &(*link)->next;
    CudaBlock *block = *link;
    if (block) {
        *link = block->next;
        block->next = d->spare;
        d->spare = block;
    }
    pthread_mutex_unlock(&d->lock);
    return block != NULL;
}

Status cuda_alloc(CudaDevice *d, CudaStream *stream, size_t bytes, CuPointer *out)
{
    if (bytes > (size_t)1 << 62)
        return no_memory(d, bytes);
    size_t rounded = rounded_bytes(d, bytes);
    CudaBlock *block = d->exact ? NULL : take_block(d, stream, rounded, false);
    CuResult result = block ? 0 : ask(d, stream, rounded, out);
    if (result == CU_OUT_OF_MEMORY && !d->exact)
        block = take_block(d, stream, rounded, true);
    if (block) {
        Status status = wait_for_block(stream, block);
        if (status != ST_OK) {
            keep_block(d, block, rounded);
            return status;
        }
        *out = block->pointer;
        spare(d, block);
    } else {
        if (cuda_made_room(d, result))
            result = ask(d, stream, rounded, out);
        if (result == CU_OUT_OF_MEMORY && rounded > bytes)
            result = ask_tight(d, stream, bytes + !bytes, out);
        Status status = cuda_check(d, result, "allocating memory");
        if (status == ST_OUT_OF_MEMORY)
            return no_memory(d, bytes);
        TRY(status);
    }
    count(d, rounded, true);
    return ST_OK;
}

/* Waits for all that is queued on these. */
static Status synchronize(CudaDevice *d, uint64_t streams)
{
    for (; streams; streams &= streams - 1)
        for (const CudaStream *s = atomic_load(&d->streams[__builtin_ctzll(streams)]); s; s = s->next_same)
            TRY(cuda_check(d, cuda.stream_synchronize(s->stream), "waiting for the device"));
    return ST_OK;
}

/* Gives memory back to the driver, which is to know that it is in no use. */
static void give_back(CudaDevice *d, uint64_t streams, CuPointer pointer)
{
    CudaStream *one = atomic_load(&d->streams[__builtin_ctzll(streams)]);
    if (cuda_open(d->ordinal, &d) != ST_OK) /* this thread may never have used it */
        return;
    if (d->exact && cuda_stream_after(one, streams) == ST_OK)
        (void)cuda.free_ordered(pointer, one->stream);
    else if (!d->exact && synchronize(d, streams) == ST_OK)
        (void)cuda.mem_free(pointer);
}

void cuda_free(CudaDevice *d, uint64_t streams, CuPointer pointer, size_t bytes)
{
    size_t rounded = rounded_bytes(d, bytes);
    count(d, rounded, false);
    if (atomic_load(&d->broken))
        return; /* the memory went with the context */
    CudaBlock *block = d->exact || was_tight(d, pointer) ? NULL : spare_block(d);
    if (!block) {
        give_back(d, streams, pointer);
        return;
    }
    block->streams = streams;
    block->pointer = pointer;
    mark(d, block, rounded);
    keep_block(d, block, rounded);
}

void cuda_trim(CudaDevice *d)
{
    pthread_mutex_lock(&d->lock);
    if (cuda.context_synchronize() != 0) { /* what is queued may use the memory still */
        pthread_mutex_unlock(&d->lock);
        return;
    }
    for (unsigned index = 0; index < SIZE_CLASSES; index++)
        for (CudaBlock *block = d->pool[index], *next; block; block = next) {
            next = block->next;
            cuda.mem_free(block->pointer);
            block->next = d->spare;
            d->spare = block;
        }
    memset(d->pool, 0, sizeof d->pool);
    d->pooled = 0;
    pthread_mutex_unlock(&d->lock);
}

/* --- copies --------------------------------------------------------------------------------------------------------- */

/* The half is free once its last copy is done: not before that is known. */
static Status half_free(CudaDevice *d, CudaStaging *s, int i)
{
    if (s->used[i])
        TRY(cuda_check(d, cuda.event_synchronize(s->done[i]), "waiting for a copy"));
    s->used[i] = false;
    return ST_OK;
}

static Status half_queued(CudaDevice *d, CudaStaging *s, int i, CudaStream *stream)
{
    CuResult result = cuda.event_record(s->done[i], stream->stream);
    s->used[i] = result == 0;
    if (result != 0)
        cuda.stream_synchronize(stream->stream); /* nothing tells when the copy is done */
    return cuda_check(d, result, "recording an event");
}

/* Halves for a copy of so many bytes. */
static Status staging_ready(CudaDevice *d, CudaStaging *s, size_t bytes)
{
    size_t half_bytes = bytes <= SMALL_HALF ? SMALL_HALF : HALF;
    if (s->bytes >= half_bytes)
        return ST_OK;
    s->bytes = 0;
    for (int i = 0; i < 2; i++) {
        void *half;
        if (s->half[i]) {
            TRY(half_free(d, s, i));
            cuda.host_free(s->half[i]);
            s->half[i] = NULL;
        }
        if (!s->done[i])
            TRY(cuda_check(d, cuda.event_create(&s->done[i], CU_NO_TIMING), "making an event"));
        TRY(cuda_check(d, cuda.host_alloc(&half, half_bytes, CU_PORTABLE), "allocating pinned memory"));
        s->half[i] = half;
    }
    s->bytes = half_bytes;
    return ST_OK;
}

Status cuda_copy_in(CudaDevice *d, CudaStream *stream, CuPointer to, const char *from, size_t bytes)
{
    CudaStaging *s = &stream->staging;
    TRY(staging_ready(d, s, bytes));
    for (int i = 0; bytes; i ^= 1) {
        size_t part = bytes < s->bytes ? bytes : s->bytes;
        TRY(half_free(d, s, i));
        memcpy(s->half[i], from, part);
        TRY(cuda_check(d, cuda.copy_in(to, s->half[i], part, stream->stream), "copying to the device"));
        TRY(half_queued(d, s, i, stream));
        to += part, from += part, bytes -= part;
    }
    return ST_OK;
}

/* Queues part k of a copy out into its half. */
static Status queue_part(CudaDevice *d, CudaStaging *s, CudaStream *stream, CuPointer from, size_t bytes, size_t k)
{
    size_t at = k * s->bytes, part = bytes - at < s->bytes ? bytes - at : s->bytes;
    TRY(half_free(d, s, (int)(k & 1)));
    TRY(cuda_check(d, cuda.copy_out(s->half[k & 1], from + at, part, stream->stream), "copying from the device"));
    return half_queued(d, s, (int)(k & 1), stream);
}

Status cuda_copy_out(CudaDevice *d, CudaStream *stream, char *to, CuPointer from, size_t bytes)
{
    CudaStaging *s = &stream->staging;
    if (bytes == 0)
        return ST_OK;
    TRY(staging_ready(d, s, bytes));
    size_t parts = (bytes + s->bytes - 1) / s->bytes;
    TRY(queue_part(d, s, stream, from, bytes, 0));
    for (size_t k = 0; k < parts; k++) {
        size_t at = k * s->bytes;
        if (k + 1 < parts)
            TRY(queue_part(d, s, stream, from, bytes, k + 1));
        TRY(half_free(d, s, (int)(k & 1)));
        memcpy(to + at, s->half[k & 1], bytes - at < s->bytes ? bytes - at : s->bytes);
    }
    return ST_OK;
}

/* --- storages ------------------------------------------------------------------------------------------------------- */

static Status fresh(CudaDevice *d, CudaStream *stream, const void *from, size_t bytes, Storage *storage)
{
    CuPointer pointer;
    TRY(cuda_alloc(d, stream, bytes, &pointer));
    Status status = from ? cuda_copy_in(d, stream, pointer, from, bytes) : ST_OK;
    if (status != ST_OK) {
        cuda_free(d, cuda_bit(stream), pointer, bytes);
        return status;
    }
    storage->data = (void *)(uintptr_t)pointer;
    storage->stream = stream;
    return ST_OK;
}

static Status uploaded(CudaDevice *d, const void *from, size_t bytes, Storage *storage)
{
    CudaStream *stream;
    pthread_mutex_lock(&d->upload_lock);
    Status status = cuda_upload_stream(d, &stream);
    if (status == ST_OK)
        status = fresh(d, stream, from, bytes, storage);
    pthread_mutex_unlock(&d->upload_lock);
    return status;
}

Status cuda_storage(int k, const void *from, size_t bytes, Storage *storage)
{
    CudaDevice *d;
    CudaStream *stream;
    TRY(cuda_open(k, &d));
    if (from && bytes >= LARGE)
        return uploaded(d, from, bytes, storage);
    TRY(cuda_stream(d, &stream));
    return fresh(d, stream, from, bytes, storage);
}

void cuda_storage_free(Storage *storage)
{
    cuda_fault_release(storage->fault);
    if (!cuda_forked())
        cuda_free(cuda_device_of(storage), cuda_uses(storage), (CuPointer)(uintptr_t)storage->data, storage->bytes);
}

/* The storage's device, its context current here, and this thread's stream. */
static Status begin_copy(const Storage *storage, CudaDevice **d, CudaStream **stream)
{
    TRY(cuda_open(storage->device - DEVICE_CUDA, d));
    return cuda_stream(*d, stream);
}

Status cuda_storage_read(Storage *storage, const char *from, void *to, size_t bytes)
{
    CudaDevice *d;
    CudaStream *stream;
    TRY(begin_copy(storage, &d, &stream));
    TRY(cuda_before_read(storage, stream));
    TRY(cuda_fault_settle(storage));
    return cuda_copy_out(d, stream, to, (CuPointer)(uintptr_t)from, bytes);
}

Status cuda_storage_write(Storage *storage, char *to, const void *from, size_t bytes)
{
    CudaDevice *d;
    CudaStream *stream;
    TRY(begin_copy(storage, &d, &stream));
    TRY(cuda_before_write(storage, stream));
    return cuda_copy_in(d, stream, (CuPointer)(uintptr_t)to, from, bytes);
}

Status cuda_storage_copy(Storage *storage, const char *from, Storage *to, size_t bytes)
{
    CudaDevice *d;
    CudaStream *stream;
    TRY(begin_copy(storage, &d, &stream));
    TRY(cuda_before_read(storage, stream));
    TRY(cuda_before_write(to, stream));
    if (bytes == 0)
        return ST_OK;
    CuResult result = cuda.copy_over((CuPointer)(uintptr_t)to->data, (CuPointer)(uintptr_t)from, bytes, stream->stream);
    return cuda_check(d, result, "copying on the device");
}

Status cuda_storage_wait(Storage *storage)
{
    CudaDevice *d;
    TRY(cuda_open(storage->device - DEVICE_CUDA, &d));
    CudaStream *stream = storage->stream;
    TRY(cuda_check(d, cuda.stream_synchronize(stream->stream), "waiting for the device"));
    return cuda_fault_settle(storage);
}

Status cuda_storage_settle(Storage *storage)
{
    CudaDevice *d;
    if (!storage->fault)
        return ST_OK;
    TRY(cuda_open(storage->device - DEVICE_CUDA, &d));
    return cuda_fault_settle(storage);
}

/* --- memory of others ------------------------------------------------------------------------------------------------ */

/* What is queued on `later` from now on waits for what is queued on `first` now; either may be a stream of somebody else's. */
static Status in_order(CudaDevice *d, CuStream first, CuStream later)
{
    CuEvent event;
    TRY(cuda_check(d, cuda.event_create(&event, CU_NO_TIMING), "making an event"));
    Status status = cuda_check(d, cuda.event_record(event, first), "recording an event on the stream");
    if (status == ST_OK)
        status = cuda_check(d, cuda.stream_wait_event(later, event, 0), "waiting for the stream");
    cuda.event_destroy(event); /* once it was reached */
    return status;
}

static CuStream foreign(int64_t stream) { return (CuStream)(uintptr_t)stream; }

Status cuda_adopt(int device, Storage *storage, int64_t stream)
{
    CudaDevice *d;
    CudaStream *own;
    TRY(cuda_open(device_number(device), &d));
    TRY(cuda_stream(d, &own));
    if (stream >= 0)
        TRY(in_order(d, foreign(stream), own->stream));
    storage->stream = own;
    storage->device = (uint8_t)device;
    return ST_OK;
}

Status cuda_offer(Storage *storage, int64_t stream)
{
    CudaDevice *d;
    TRY(cuda_open(storage->device - DEVICE_CUDA, &d));
    TRY(cuda_fault_settle(storage));
    if (stream < 0)
        return ST_OK;
    CudaStream *own;
    TRY(cuda_stream(d, &own));
    TRY(cuda_stream_after(own, cuda_uses(storage)));
    return in_order(d, own->stream, foreign(stream));
}

bool cuda_settle_foreign(Storage *storage)
{
    if (cuda_forked())
        return false;
    CudaDevice *d;
    if (cuda_open(storage->device - DEVICE_CUDA, &d) == ST_OK) { /* of a broken device nothing runs any more */
        (void)synchronize(d, cuda_uses(storage));
        (void)cuda_fault_settle(storage);
    }
    return true;
}

bool cuda_idle(int device)
{
    CudaDevice *d;
    if (cuda_forked())
        return false;
    if (cuda_open(device_number(device), &d) == ST_OK)
        (void)cuda_check(d, cuda.context_synchronize(), "waiting for the device");
    return true;
}

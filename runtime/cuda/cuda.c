/*
 * The CUDA driver: loading it, devices and their contexts, streams, errors. See cuda.h.
 *
 * Opening happens once, under one lock; what it made is never undone (a process that ends takes it along), so nothing can hang at exit.
 * A forked child must not touch the driver: every entry asks `forked` first.
 *
 * Each thread computes on a stream of its own; large uploads have one beside them (runtime/cuda/cuda_memory.c). Streams wait for each other, the host
 * waits only where a value is needed. A storage remembers the stream that wrote it and those that have read it since:
 *
 *     a read on another stream     waits for the writer, once: that stream is among the readers then
 *     a write, another use of      waits for all readers, who waited for the writer; where there are none, for the writer
 *     the memory once it is free
 *
 * So reads of what threads share, weights say, wait for no other thread. To wait for a stream is to wait for all that is queued on it by then: a reader
 * holds the storage until its launches are queued, so whoever writes or frees it comes later. Waits go to what was queued before them, never round.
 */
#include "runtime/cuda/cuda.h"
#include "cache/maker.h"
#include "ir/base/os.h"
#include "ir/base/os_fd.h"
#include "jit/options.h"

#include <stdio.h>
#include <string.h>

CudaDriver cuda;

enum { OLDEST_DRIVER = 10000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool forked;
static bool tried, loaded;
static int n_devices, driver_version;
static char why_not[512];
static CudaDevice devices[MAX_CUDA_DEVICES];

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Another thread may be opening the driver right now: what it holds is nobody's in the child, and half done. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    atomic_store(&forked, true);
}

bool cuda_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

/* The functions of the driver; false: why_not tells. */
static bool load_symbols(const char *name)
{
    void *library = os_library_open(name);
    if (!library) {
        snprintf(why_not, sizeof why_not, "no CUDA driver: %s; install the NVIDIA driver, or use the device \"cpu\"", os_library_error());
        return false;
    }
    const char *lacks = NULL;
#define CUDA_OPTIONAL(name, symbol, parameters)              \
    {                                                        \
        void *address = os_library_symbol(library, #symbol); \
        memcpy(&cuda.name, &address, sizeof address);        \
    }
#define CUDA_SYM(name, symbol, parameters)  \
    CUDA_OPTIONAL(name, symbol, parameters) \
    if (!cuda.name)                         \
        lacks = #symbol;
#include "runtime/cuda/cuda_syms.def"
#undef CUDA_SYM
#undef CUDA_OPTIONAL
    if (lacks)
        snprintf(why_not, sizeof why_not, "the CUDA driver lacks %s: it is too old, install a newer one, or use the device \"cpu\"", lacks);
    return !lacks;
}

static const char *error_text(CuResult result, char *text, size_t size)
{
    const char *name = NULL, *words = NULL;
    cuda.error_name(result, &name);
    cuda.error_string(result, &words);
    snprintf(text, size, "%s (%d: %s)", name ? name : "unknown error", result, words ? words : "no text");
    return text;
}

static void load(void)
{
    char name[256], text[160];
    option_text(OPT_LIBCUDA, name, sizeof name);
    const char *library = name[0] ? name : "libcuda.so.1";
    if (!load_symbols(library))
        return;
    CuResult result = cuda.driver_version(&driver_version);
    if (result == 0)
        result = cuda.init(0);
    if (result == 0)
        result = cuda.device_count(&n_devices);
    if (result == CU_NO_DEVICE)
        n_devices = 0, result = 0;
    if (result == CU_STUB) {
        snprintf(why_not, sizeof why_not,
                 "%s is the stub of a CUDA toolkit, not a driver: install the NVIDIA driver, or let LD_LIBRARY_PATH "
                 "not name the toolkit's folder of stubs",
                 library);
        return;
    }
    if (result != 0) {
        snprintf(why_not, sizeof why_not, "the CUDA driver does not start: %s; see what nvidia-smi says, or use the device \"cpu\"",
                 error_text(result, text, sizeof text));
        return;
    }
    if (driver_version < OLDEST_DRIVER) {
        snprintf(why_not, sizeof why_not,
                 "the CUDA driver is of version %d.%d, 10.0 or newer is needed: install one, or use the device \"cpu\"",
                 driver_version / 1000, driver_version % 1000 / 10);
        return;
    }
    if (n_devices > MAX_CUDA_DEVICES)
        n_devices = MAX_CUDA_DEVICES;
    for (int k = 0; k < n_devices; k++) {
        CudaDevice *d = &devices[k];
        pthread_mutex_t *const locks[] = {&d->lock, &d->upload_lock, &d->graphs_lock, &d->loops_lock};
        for (size_t i = 0; i < sizeof locks / sizeof *locks; i++)
            pthread_mutex_init(locks[i], NULL);
    }
    loaded = true;
}

/* Under the lock. */
static Status ready(void)
{
    if (atomic_load(&forked))
        return fail(ST_DEVICE, "CUDA cannot be used in a forked child: use the device \"cpu\" there, or start a new program");
    if (!tried) {
        tried = true;
        pthread_atfork(NULL, NULL, in_child); /* before anything that a child must not touch */
        OsLow low;
        int cancel = os_cancel_off();
        os_low_hold(&low); /* the driver keeps files open */
        load();
        os_low_release(&low);
        os_cancel_restore(cancel);
    }
    return loaded ? ST_OK : fail(ST_DEVICE, "%s", why_not);
}

/* --- errors --------------------------------------------------------------------------------------------------------- */

/* Does every later call fail, too? */
static bool is_sticky(CuResult result)
{
    switch (result) {
#define CUDA_STICKY(name, theirs, value) case name:
#include "runtime/cuda/cuda_numbers.def"
        return true;
    default: return false;
    }
}

static Status status_of(CuResult result)
{
    switch (result) {
#define CUDA_NO_CODE(name, theirs, value) case name:
#include "runtime/cuda/cuda_numbers.def"
        return ST_COMPILE;
    default: return result == CU_OUT_OF_MEMORY ? ST_OUT_OF_MEMORY : ST_DEVICE;
    }
}

static void mark_broken(CudaDevice *device, const char *cause)
{
    pthread_mutex_lock(&device->lock);
    if (!atomic_load(&device->broken)) {
        snprintf(device->cause, sizeof device->cause, "%s", cause);
        atomic_store(&device->broken, true);
    }
    pthread_mutex_unlock(&device->lock);
}

/* How to go on is told by what follows. */
#define BROKEN "cuda:%d cannot be used any more since %s; "
#define WITHOUT_IT "start the program again, or use the device \"cpu\""

Status cuda_check(CudaDevice *device, CuResult result, const char *what)
{
    if (result == 0)
        return ST_OK;
    char text[160], memory[256];
    error_text(result, text, sizeof text);
    if (is_sticky(result)) {
        char cause[256];
        snprintf(cause, sizeof cause, "%s: %s", what, text);
        mark_broken(device, cause);
    }
    if (atomic_load(&device->broken))
        return fail(ST_DEVICE, BROKEN "%s", device->ordinal, device->cause,
                    option_int(OPT_SYNC) ? WITHOUT_IT : "set KILN_SYNC=1 to find the launch at fault");
    if (result == CU_OUT_OF_MEMORY)
        return fail(ST_OUT_OF_MEMORY, "cuda:%d: %s: %s: %s", device->ordinal, what, text, cuda_memory_text(device, memory, sizeof memory));
    return fail(status_of(result), "cuda:%d: %s: %s", device->ordinal, what, text);
}

Status cuda_broken(CudaDevice *device)
{
    mark_broken(device, fail_message());
    return fail(ST_DEVICE, BROKEN WITHOUT_IT, device->ordinal, device->cause);
}

/* --- devices ---------------------------------------------------------------------------------------------------------- */

static Status attribute(CudaDevice *d, CuDevice handle, int which, int *value)
{
    return cuda_check(d, cuda.device_attribute(value, which, handle), "asking for an attribute");
}

static Status open_device(int k, CudaDevice *d)
{
    CuDevice handle;
    int major, minor;
    d->ordinal = k;
    TRY(cuda_check(d, cuda.device_get(&handle, k), "opening the device"));
    TRY(cuda_check(d, cuda.device_name(d->name, sizeof d->name, handle), "asking for its name"));
    TRY(attribute(d, handle, CU_MAJOR, &major));
    TRY(attribute(d, handle, CU_MINOR, &minor));
    TRY(attribute(d, handle, CU_MULTIPROCESSORS, &d->multiprocessors));
    cuda.device_attribute(&d->clock_khz, CU_CLOCK, handle);
    cuda.device_attribute(&d->memory_khz, CU_MEMORY_CLOCK, handle);
    cuda.device_attribute(&d->bus_bits, CU_BUS_BITS, handle);
    Status status = cuda_target(major, minor, driver_version, &d->target);
    d->target.multiprocessors = d->multiprocessors;
    TRY(attribute(d, handle, CU_THREADS, &d->target.threads));
    if (status != ST_OK)
        return fail(status, "cuda:%d (%s): %s; use the device \"cpu\"", k, d->name, fail_message());
    int pools = 0; /* asked for by tests alone */
    if (option_int(OPT_TEST_MEMORY) == TEST_MEMORY_EXACT && cuda.alloc_ordered && cuda.free_ordered)
        TRY(attribute(d, handle, CU_MEMORY_POOLS, &pools));
    d->exact = pools != 0;
    CuContext context;
    OsLow low;
    os_low_hold(&low);
    CuResult made = cuda.primary_retain(&context, handle);
    os_low_release(&low);
    TRY(cuda_check(d, made, "making its context"));
    atomic_store(&d->context, context); /* last: it says that the device is open */
    return ST_OK;
}

const CudaDevice *cuda_opened(int k) { return k >= 0 && k < MAX_CUDA_DEVICES && atomic_load(&devices[k].context) ? &devices[k] : NULL; }

Status cuda_open(int k, CudaDevice **out)
{
    *out = NULL;
    if (k >= 0 && k < MAX_CUDA_DEVICES && atomic_load(&devices[k].context) && !cuda_forked()) {
        *out = &devices[k];
    } else {
        int cancel = os_cancel_off();
        pthread_mutex_lock(&lock);
        Status status = ready();
        if (status == ST_OK && n_devices == 0)
            status = fail(ST_DEVICE, "there is no CUDA device (is CUDA_VISIBLE_DEVICES empty?); use the device \"cpu\"");
        else if (status == ST_OK && (k < 0 || k >= n_devices))
            status = fail(ST_INVALID, "cuda:%d does not exist: there %s %d CUDA device%s, numbered from 0; use one of them, or \"cpu\"", k,
                          n_devices == 1 ? "is" : "are", n_devices, n_devices == 1 ? "" : "s");
        else if (status == ST_OK && !atomic_load(&devices[k].context))
            status = open_device(k, &devices[k]);
        pthread_mutex_unlock(&lock);
        os_cancel_restore(cancel);
        TRY(status);
        *out = &devices[k];
    }
    CudaDevice *d = *out;
    if (atomic_load(&d->broken))
        return fail(ST_DEVICE, BROKEN WITHOUT_IT, k, d->cause);
    CuContext current, context = atomic_load(&d->context);
    if (cuda.context_get(&current) == 0 && current == context)
        return ST_OK;
    return cuda_check(d, cuda.context_set(context), "making its context current");
}

/* --- streams ------------------------------------------------------------------------------------------------------------ */

static Status make_stream(CudaDevice *d, uint32_t number, uint32_t bit, CudaStream **out)
{
    CudaStream *s = os_calloc(1, sizeof *s);
    if (!s)
        return fail(ST_OUT_OF_MEMORY, "no memory for a stream");
    s->device = d;
    s->number = number;
    s->bit = bit;
    CuResult result;
    Status status = cuda_check(d, CUDA_WITH_ROOM(d, result, cuda.stream_create(&s->stream, CU_NON_BLOCKING)), "making a stream");
    if (status == ST_OK)
        status = cuda_check(d, CUDA_WITH_ROOM(d, result, cuda.event_create(&s->event, CU_NO_TIMING)), "making an event");
    if (status != ST_OK) {
        os_free(s);
        return status;
    }
    pthread_mutex_lock(&d->lock);
    s->next_same = atomic_load(&d->streams[bit]);
    atomic_store(&d->streams[bit], s);
    pthread_mutex_unlock(&d->lock);
    *out = s;
    return ST_OK;
}

Status cuda_stream(CudaDevice *d, CudaStream **out)
{
    RtThread *thread = rt_thread();
    if (!thread->cuda_stream)
        thread->cuda_stream = os_calloc(MAX_CUDA_DEVICES, sizeof *thread->cuda_stream);
    if (!thread->cuda_stream)
        return fail(ST_OUT_OF_MEMORY, "no memory for a stream");
    CudaStream **mine = &thread->cuda_stream[d->ordinal];
    if (!*mine) {
        pthread_mutex_lock(&d->lock);
        *mine = d->free_streams;
        if (*mine)
            d->free_streams = (*mine)->next_free;
        uint32_t number = *mine ? 0 : d->n_streams++;
        pthread_mutex_unlock(&d->lock);
        if (!*mine)
            TRY(make_stream(d, number, number < BIT_OF_MANY ? number : BIT_OF_MANY, mine));
    }
    *out = *mine;
    return ST_OK;
}

Status cuda_upload_stream(CudaDevice *d, CudaStream **out)
{
    *out = atomic_load(&d->streams[BIT_OF_UPLOADS]);
    return *out ? ST_OK : make_stream(d, 0, BIT_OF_UPLOADS, out);
}

static Status after_one(CudaStream *stream, CudaStream *other)
{
    if (other == stream)
        return ST_OK;
    TRY(cuda_check(other->device, cuda.event_record(other->event, other->stream), "recording an event"));
    return cuda_check(stream->device, cuda.stream_wait_event(stream->stream, other->event, 0), "waiting for another stream");
}

Status cuda_stream_after(CudaStream *stream, uint64_t others)
{
    for (; others; others &= others - 1)
        for (CudaStream *other = atomic_load(&stream->device->streams[__builtin_ctzll(others)]); other; other = other->next_same)
            TRY(after_one(stream, other));
    return ST_OK;
}

void cuda_end_thread(RtThread *thread)
{
    for (int k = 0; k < MAX_CUDA_DEVICES && thread->cuda_stream; k++) {
        CudaStream *s = thread->cuda_stream[k];
        if (!s || cuda_forked())
            continue;
        pthread_mutex_lock(&s->device->lock);
        s->next_free = s->device->free_streams;
        s->device->free_streams = s;
        pthread_mutex_unlock(&s->device->lock);
    }
    os_free(thread->cuda_stream);
    thread->cuda_stream = NULL;
}

/* --- storages -------------------------------------------------------------------------------------------------------------- */

CudaDevice *cuda_device_of(const Storage *storage) { return &devices[storage->device - DEVICE_CUDA]; }

Status cuda_before_read(Storage *storage, CudaStream *stream)
{
    uint64_t bit = cuda_bit(stream);
    if (stream->bit != BIT_OF_MANY && (atomic_load(&storage->readers) & bit))
        return ST_OK;
    TRY(cuda_stream_after(stream, cuda_bit(storage->stream)));
    atomic_fetch_or(&storage->readers, bit);
    return ST_OK;
}

Status cuda_before_write(Storage *storage, CudaStream *stream)
{
    TRY(cuda_stream_after(stream, cuda_uses(storage)));
    storage->stream = stream;
    atomic_store(&storage->readers, 0);
    return ST_OK;
}

uint64_t cuda_uses(const Storage *storage)
{
    uint64_t readers = atomic_load(&((Storage *)(uintptr_t)storage)->readers);
    return readers ? readers : cuda_bit(storage->stream);
}

Status cuda_usable(int k)
{
    CudaDevice *device;
    return cuda_open(k, &device);
}

Status cuda_device_target(int device, CudaTarget *target)
{
    CudaDevice *d;
    TRY(cuda_open(device_number(device), &d));
    *target = d->target;
    return ST_OK;
}

static void describe(const CudaDevice *d, Str *out)
{
    JitOptions options = {.target = d->target};
    Str maker;
    str_init(&maker, out->arena);
    str_printf(out, "cuda:%d=%s, compute capability %d.%d, %d multiprocessors\ncuda:%d.code=", d->ordinal, d->name, d->target.device / 10,
               d->target.device % 10, d->multiprocessors, d->ordinal);
    if (maker_text(&options, &maker))
        (void)maker_device(maker.text, maker.len, out);
    str_printf(out, "\n");
}

uint32_t cuda_describe(Str *out)
{
    uint32_t n = 0;
    for (int k = 0; k < MAX_CUDA_DEVICES; k++) {
        if (!atomic_load(&devices[k].context))
            continue;
        n++;
        if (out)
            describe(&devices[k], out);
    }
    return n;
}

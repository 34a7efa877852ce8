/* Devices by name, the thread's current one, memory and copies by device; and their public face. See device.h. */
#include "runtime/device/device.h"
#include "runtime/api/dlpack.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "jit/options.h"
#include "runtime/api/stats.h"
#include "runtime/eval/sync.h"
#include "runtime/gradient/body.h"
#include "runtime/record/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- names -------------------------------------------------------------------------------------------------------- */

const char *device_name(int device, char *name)
{
    const DeviceKind *kind = device_kind(device);
    if (kind->numbered)
        snprintf(name, DEVICE_NAME, "%s:%d", kind->name, device_number(device));
    else
        snprintf(name, DEVICE_NAME, "%s", kind->name);
    return name;
}

/* The number after "cuda:", 0 for "cuda"; -1: neither. */
static int cuda_number(const char *text)
{
    if (strncmp(text, "cuda", 4) != 0 || (text[4] && text[4] != ':'))
        return -1;
    if (!text[4])
        return 0;
    char *end;
    long k = strtol(text + 5, &end, 10);
    return text[5] < '0' || text[5] > '9' || *end || k > 1 << 20 ? -1 : (int)k;
}

Status device_parse(const char *text, int *device)
{
    *device = DEVICE_CPU;
    if (!text[0] || strcmp(text, "cpu") == 0)
        return ST_OK;
    if (strcmp(text, "meta") == 0) {
        *device = DEVICE_META;
        return ST_OK;
    }
    if (strcmp(text, "auto") == 0) {
        if (cuda_usable(0) == ST_OK)
            *device = DEVICE_CUDA;
        return ST_OK;
    }
    int k = cuda_number(text);
    if (k < 0)
        return fail(ST_INVALID, "device is \"%s\": cpu, cuda, cuda:0 (or another number), meta and auto are valid", text);
    TRY(cuda_usable(k));
    *device = DEVICE_CUDA + k;
    return ST_OK;
}

/* The option's device, found anew only when some option was set. */
static Status option_device(int *device)
{
    static _Thread_local uint64_t generation;
    static _Thread_local int known; /* DEVICE_ANY: not yet */
    if (known == DEVICE_ANY || generation != options_generation()) {
        char text[64];
        known = DEVICE_ANY;
        TRY(device_parse(option_text(OPT_DEVICE, text, sizeof text), &known));
        generation = options_generation();
    }
    *device = known;
    return ST_OK;
}

Status device_current(int *device)
{
    *device = rt_thread()->device;
    return *device == DEVICE_ANY ? option_device(device) : ST_OK;
}

Status device_of(const RtNode *node, int *device)
{
    *device = node_device(node);
    return *device == DEVICE_ANY ? device_current(device) : ST_OK;
}

Status device_has_values(const RtNode *node)
{
    int device;
    char text[SHAPE_TEXT];
    TRY(device_of(node, &device));
    if (device != DEVICE_META)
        return ST_OK;
    return fail(
        ST_INVALID,
        "%s lies on the device meta: its shape is known and its values are not, as nothing is computed there; make it on another device "
        "(kiln_set_device, KILN_DEVICE)",
        node_text(node, text));
}

Status device_target(int device, CudaTarget *target)
{
    *target = (CudaTarget){0};
    return device_kind(device)->target(device, target);
}

/* --- kinds of devices --------------------------------------------------------------------------------------------- */

static Status host_make(int device, const void *from, size_t bytes, Storage **out)
{
    (void)device;
    *out = storage_new(bytes);
    if (!*out)
        return ST_OUT_OF_MEMORY;
    if (from && bytes)
        memcpy((*out)->data, from, bytes);
    return ST_OK;
}

static Status host_read(Storage *storage, const char *from, void *to, size_t bytes)
{
    (void)storage;
    if (bytes)
        memcpy(to, from, bytes);
    return ST_OK;
}

static Status host_write(Storage *storage, char *to, const void *from, size_t bytes) { return host_read(storage, from, to, bytes); }
static Status host_copy(Storage *storage, const char *from, Storage *to, size_t bytes) { return host_read(storage, from, to->data, bytes); }

static Status nothing_queued(Storage *storage)
{
    (void)storage;
    return ST_OK;
}

static Status no_stream(Storage *storage, int64_t stream)
{
    (void)stream;
    return nothing_queued(storage);
}

static Status host_adopt(int device, Storage *storage, int64_t stream)
{
    (void)device;
    return no_stream(storage, stream);
}

static bool nothing_foreign(Storage *storage) { return nothing_queued(storage) == ST_OK; }

static bool always_idle(int device)
{
    (void)device;
    return true;
}

static Status host_target(int device, CudaTarget *target)
{
    (void)device, (void)target;
    return ST_OK;
}

/* `bytes` that are nowhere. */
static Status meta_make(int device, const void *from, size_t bytes, Storage **out)
{
    (void)from;
    *out = storage_borrow(NULL, bytes, NULL, NULL, NULL);
    if (!*out)
        return ST_OUT_OF_MEMORY;
    (*out)->device = (uint8_t)device;
    return ST_OK;
}

static Status cuda_make(int device, const void *from, size_t bytes, Storage **out)
{
    Storage *storage = os_calloc(1, sizeof *storage);
    if (!storage)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    atomic_init(&storage->refs, 1);
    storage->ours = true;
    storage->device = (uint8_t)device;
    storage->bytes = bytes;
    Status status = cuda_storage(device_number(device), from, bytes, storage);
    if (status != ST_OK) {
        os_free(storage);
        return status;
    }
    stat_live((int64_t)bytes);
    *out = storage;
    return ST_OK;
}

/* What lies nowhere is refused before anybody reads it (device_has_values). */
#define HOST_MEMORY                                                                                                            \
    .release = storage_free_data, .read = host_read, .write = host_write, .copy = host_copy, .wait = nothing_queued,           \
    .settle = nothing_queued, .adopt = host_adopt, .offer = no_stream, .settle_foreign = nothing_foreign, .idle = always_idle, \
    .target = host_target, .launcher = &host_launcher, .dlpack = DLPACK_CPU

const DeviceKind device_kinds[DEVICE_CUDA + 1] = {
    [DEVICE_ANY] = {.name = "any device", .make = host_make, HOST_MEMORY},
    [DEVICE_CPU] = {.name = "cpu", .make = host_make, HOST_MEMORY},
    [DEVICE_META] = {.name = "meta", .make = meta_make, HOST_MEMORY},
    [DEVICE_CUDA] = {.name = "cuda",
                     .numbered = true,
                     .apart = true,
                     .queues = true,
                     .dlpack = DLPACK_CUDA,
                     .launcher = &cuda_launcher,
                     .make = cuda_make,
                     .release = cuda_storage_free,
                     .read = cuda_storage_read,
                     .write = cuda_storage_write,
                     .copy = cuda_storage_copy,
                     .wait = cuda_storage_wait,
                     .settle = cuda_storage_settle,
                     .adopt = cuda_adopt,
                     .offer = cuda_offer,
                     .settle_foreign = cuda_settle_foreign,
                     .idle = cuda_idle,
                     .target = cuda_device_target},
};

/* --- memory --------------------------------------------------------------------------------------------------------- */

/* A call of a kind's function. One that queues may wait for the device and hold its locks. */
#define ON_DEVICE(result, kind, call)                      \
    do {                                                   \
        int cancel = (kind)->queues ? os_cancel_off() : 0; \
        (result) = (kind)->call;                           \
        if ((kind)->queues)                                \
            os_cancel_restore(cancel);                     \
    } while (0)

/* In a trace; small ones of the host would fill it. */
static void trace_copy(const char *what, int device, int64_t began, size_t bytes)
{
    enum { LEAST_BYTES = 64 << 10 };
    char name[DEVICE_NAME];
    if (began && bytes >= (device_kind(device)->apart ? 1 : LEAST_BYTES))
        timeline_span(TL_COPY, what, began, TL_TEXT("device", device_name(device, name)), TL_INT("bytes", (int64_t)bytes),
                      TL_REAL("GB/s", (double)bytes / (double)(timeline_now() - began)));
}

Status storage_new_on(int device, size_t bytes, Storage **out) { return storage_copied_to(device, NULL, bytes, out); }

Status storage_copied_to(int device, const void *from, size_t bytes, Storage **out)
{
    const DeviceKind *kind = device_kind(device);
    int64_t began = timeline_begin();
    Status status;
    *out = NULL;
    ON_DEVICE(status, kind, make(device, from, bytes, out));
    if (from && status == ST_OK && (*out)->data)
        trace_copy("copy in", device, began, bytes);
    return status;
}

void device_release(Storage *storage)
{
    const DeviceKind *kind = device_kind(storage->device);
    int cancel = kind->queues ? os_cancel_off() : 0;
    kind->release(storage);
    if (kind->queues)
        os_cancel_restore(cancel);
}

Status device_read(Storage *storage, const char *from, void *to, size_t bytes)
{
    Status status;
    int64_t began = timeline_begin();
    ON_DEVICE(status, device_kind(storage->device), read(storage, from, to, bytes));
    trace_copy("copy out", storage->device, began, bytes);
    return status;
}

Status device_write(Storage *storage, char *to, const void *from, size_t bytes)
{
    Status status;
    int64_t began = timeline_begin();
    ON_DEVICE(status, device_kind(storage->device), write(storage, to, from, bytes));
    trace_copy("copy in", storage->device, began, bytes);
    return status;
}

Status device_copy(Storage *storage, const char *from, Storage *to, size_t bytes)
{
    Status status;
    int64_t began = timeline_begin();
    ON_DEVICE(status, device_kind(storage->device), copy(storage, from, to, bytes));
    trace_copy("copy", storage->device, began, bytes);
    return status;
}

Status storage_to_current(Storage **storage)
{
    int device;
    Status status = device_current(&device);
    if (status == ST_OK && device == DEVICE_CPU)
        return ST_OK;
    Storage *host = *storage;
    *storage = NULL;
    if (status == ST_OK)
        status = storage_copied_to(device, host->data, host->bytes, storage);
    storage_release(host);
    return status;
}

Status device_wait(Storage *storage)
{
    Status status;
    ON_DEVICE(status, device_kind(storage->device), wait(storage));
    return status;
}

Status device_settle(Storage *storage)
{
    Status status;
    ON_DEVICE(status, device_kind(storage->device), settle(storage));
    return status;
}

Status device_adopt(int device, Storage *storage, int64_t stream)
{
    Status status;
    ON_DEVICE(status, device_kind(device), adopt(device, storage, stream));
    return status;
}

bool device_settle_foreign(Storage *storage) { return device_kind(storage->device)->settle_foreign(storage); }

Status device_offer(Storage *storage, int64_t stream)
{
    Status status;
    ON_DEVICE(status, device_kind(storage->device), offer(storage, stream));
    return status;
}

bool device_idle(int device)
{
    bool idle;
    ON_DEVICE(idle, device_kind(device), idle(device));
    return idle;
}

/* --- the public face -------------------------------------------------------------------------------------------------- */

API1(kiln_status, kiln_set_device, const char *, name)
{
    int device;
    if (body_refuses("kiln_set_device", (Loc){file, line}))
        return KILN_INVALID;
    if (!name) {
        rt_thread()->device = DEVICE_ANY;
        return KILN_OK;
    }
    Status status = device_parse(name, &device);
    if (status == ST_OK)
        rt_thread()->device = device;
    return error_sync(status, "kiln_set_device", (Loc){file, line});
}

API3(kiln_status, kiln_device_of, const kiln_tensor *, x, char *, buffer, size_t, size)
{
    static const char api[] = "kiln_device_of";
    Loc loc = {file, line};
    char name[DEVICE_NAME];
    int device;
    if (!x || !buffer)
        return error_sync(fail(ST_INVALID, "%s is NULL", x ? "buffer" : "x"), api, loc);
    Status status = device_of(x->node, &device);
    if (status == ST_OK && (size_t)snprintf(buffer, size, "%s", device_name(device, name)) >= size)
        status = fail(ST_INVALID, "size is %zu: %d bytes are enough", size, DEVICE_NAME);
    return error_sync(status, api, loc);
}

/* The elements of a node on another device, dense: of one that is evaluated, except for DEVICE_META. */
static Status moved(const RtNode *node, int device, Storage **out)
{
    size_t bytes = dtype_bytes(node_dtype(node)) * (size_t)node_elements(node);
    Status status;
    if (device == DEVICE_META)
        return storage_new_on(device, bytes, out);
    if (device_kind(device)->apart) {
        void *copy;
        const void *elements;
        TRY(dense_elements(node, &elements, &copy));
        status = storage_copied_to(device, elements, bytes, out);
        os_free(copy);
        return status;
    }
    TRY(storage_new_on(device, bytes, out));
    status = copy_elements(node, (*out)->data);
    if (status != ST_OK)
        storage_release(*out);
    return status;
}

API2(kiln_tensor *, kiln_to, kiln_tensor *, x, const char *, device)
{
    Rec r = REC(kiln_to);
    RtNode *in = rec_in(&r, x, "x");
    int from, to;
    if (in && !device)
        rec_fail(&r, ST_INVALID, "device is NULL");
    if (!in || !device)
        return rec_end(&r, NULL);
    Status status = device_parse(device, &to);
    if (status == ST_OK)
        status = device_of(in, &from);
    if (status != ST_OK)
        return rec_end(&r, rec_failed(&r, status));
    if (from == to && node_device(in) != DEVICE_ANY)
        return rec_end(&r, in);
    if (body_refuses(r.api, r.loc))
        return rec_end(&r, NULL);
    if (to != DEVICE_META) {
        trace_sync(r.api, r.loc);
        status = eval_nodes(&in, 1, r.api, r.loc); /* what lies nowhere goes to the thread's device, and lies there from now on */
    }
    Storage *storage = NULL;
    if (status == ST_OK && (from != to || to == DEVICE_META))
        status = moved(in, to, &storage);
    if (status != ST_OK)
        return rec_end(&r, rec_failed(&r, status));
    if (from == to && to != DEVICE_META)
        return rec_end(&r, in);
    RtNode *out = rec_data(&r, node_dtype(in), in->rank, in->dim, storage, storage->data, NULL);
    if (out) {
        out->weak = in->weak;
        out->tracked = in->tracked;
        out->api = out->computed.api = r.api;
        out->computed.loc = r.loc;
    }
    return rec_end(&r, out);
}

API1(kiln_status, kiln_wait, kiln_tensor *, x)
{
    kiln_status status;
    RtNode *node = sync_eval(x, "kiln_wait", (Loc){file, line}, &status);
    if (node)
        status = error_sync(device_wait(atomic_load(&node->storage)), "kiln_wait", (Loc){file, line});
    node_release(node);
    return status;
}

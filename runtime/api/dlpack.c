/*
 * Tensors from other libraries and for them, by DLPack: no copy, whoever made the memory frees it.
 *
 * In: the memory is borrowed, as kiln_wrap borrows it; its owner's deleter runs once, in whichever thread lets go of the last value that
 * lies there. On a CUDA device this thread's stream first waits for the producer's, and the deleter for all that kiln queued.
 * Out: a reference to the storage, which is not overwritten while there is one. The consumer's stream waits for what kiln queued; its deleter
 * waits for the device, since nobody says which streams the consumer used.
 *
 * Leaves out: vectors of several lanes, types of less than a byte, 8-bit floats, complex numbers and handles (KILN_UNSUPPORTED, by name), and
 * other devices.
 */
#include "runtime/api/dlpack.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/eval/sync.h"

#include <stdio.h>
#include <string.h>

/* --- types ------------------------------------------------------------------------------------------------------------------ */

static const char *device_text(int type)
{
#define ROW(code, name, text) [code] = text,
    static const char *const texts[] = {DLPACK_DEVICES(ROW)};
#undef ROW
    bool known = type >= 0 && (size_t)type < sizeof texts / sizeof *texts && texts[type];
    return known ? texts[type] : "unknown";
}

static const char *kind_text(int kind)
{
#define ROW(code, name, text) [code] = text,
    static const char *const texts[] = {DLPACK_KINDS(ROW)};
#undef ROW
    return (size_t)kind < sizeof texts / sizeof *texts ? texts[kind] : "unknown";
}

static DlType type_of(DType dtype)
{
    int kind = dtype == DT_BOOL         ? DLPACK_KIND_BOOL
               : dtype == DT_BF16       ? DLPACK_KIND_BFLOAT
               : dtype_is_float(dtype)  ? DLPACK_KIND_FLOAT
               : dtype_is_signed(dtype) ? DLPACK_KIND_INT
                                        : DLPACK_KIND_UINT;
    return (DlType){(uint8_t)kind, (uint8_t)(8 * dtype_bytes(dtype)), 1};
}

static Status dtype_of(DlType type, DType *dtype)
{
    for (*dtype = (DType)0; *dtype < DT_COUNT; *dtype = (DType)(*dtype + 1)) {
        DlType own = type_of(*dtype);
        if (own.kind == type.kind && own.bits == type.bits && type.lanes == 1)
            return ST_OK;
    }
    return fail(ST_UNSUPPORTED,
                "its type is %s (code %d) of %d bits and %d lanes: bools, ints, floats and bfloats of 8 to 64 bits and 1 lane "
                "are taken; cast it first",
                kind_text(type.kind), type.kind, type.bits, type.lanes);
}

/* --- in --------------------------------------------------------------------------------------------------------------------- */

/* What is taken in, whichever struct it came in. */
typedef struct Taken {
    const DlTensor *tensor;
    void *managed;
    void (*drop)(void *managed, void *storage);
    bool read_only;
} Taken;

/* The owner's deleter, once nothing that kiln queued uses the memory. */
static void drop_unversioned(void *managed, void *storage)
{
    struct DLManagedTensor *m = managed;
    if (device_settle_foreign(storage) && m->deleter)
        m->deleter(m);
}

static void drop_versioned(void *managed, void *storage)
{
    struct DLManagedTensorVersioned *m = managed;
    if (device_settle_foreign(storage) && m->deleter)
        m->deleter(m);
}

static Status taken_device(const DlTensor *t, int *device)
{
    *device = DEVICE_CPU;
    if (t->device.type == DLPACK_CPU || t->device.type == DLPACK_CUDA_HOST)
        return ST_OK;
    if (t->device.type != DLPACK_CUDA)
        return fail(ST_DEVICE, "it lies on a device of type %d, %s: memory of the CPU and of CUDA devices is taken; copy it there first",
                    t->device.type, device_text(t->device.type));
    char name[DEVICE_NAME];
    snprintf(name, sizeof name, "cuda:%d", t->device.id);
    if (t->device.id < 0)
        return fail(ST_DEVICE, "it lies on CUDA device %d: there is none of that number", t->device.id);
    return device_parse(name, device);
}

/* Its shape; false: an error is kept. */
static bool taken_shape(Rec *r, const DlTensor *t, kiln_shape *shape)
{
    *shape = (kiln_shape){t->rank, {0}};
    if (t->rank > 0 && !t->shape)
        return rec_fail(r, ST_INVALID, "its shape is NULL, its rank %d", t->rank), false;
    if (t->rank >= 0 && t->rank <= MAX_RANK)
        for (int d = 0; d < t->rank; d++)
            shape->dim[d] = t->shape[d];
    return rec_shape(r, *shape);
}

static kiln_tensor *take(Rec *r, const Taken *taken, int64_t stream)
{
    const DlTensor *t = taken->tensor;
    kiln_shape shape;
    StridedReach reach;
    DType dtype;
    int device;
    if (!taken_shape(r, t, &shape))
        return rec_end(r, NULL);
    Status status = dtype_of(t->type, &dtype);
    if (status == ST_OK)
        status = taken_device(t, &device);
    if (status == ST_OK)
        status = strided_reach(dtype, shape, t->strides, &reach);
    char *data = t->data ? (char *)((uintptr_t)t->data + t->byte_offset) : NULL;
    if (status == ST_OK && reach.bytes && !t->data)
        status = fail(ST_INVALID, "its data is NULL");
    if (status == ST_OK && reach.bytes && (uintptr_t)data % dtype_bytes(dtype) != 0)
        status = fail(ST_INVALID, "its data is not aligned to %zu bytes: copy it first", dtype_bytes(dtype));
    char *lowest = status == ST_OK && reach.bytes ? (char *)((uintptr_t)data + (uintptr_t)reach.low) : data;
    if (status == ST_OK && reach.bytes && (lowest > data || (uintptr_t)lowest > UINTPTR_MAX - reach.bytes))
        status = fail(ST_OVERFLOW, "its strides reach beyond the address space");
    Storage *storage = status == ST_OK ? storage_borrow(lowest, reach.bytes, taken->managed, NULL, NULL) : NULL;
    if (!storage)
        return rec_end(r, rec_failed(r, status == ST_OK ? ST_OUT_OF_MEMORY : status));
    storage->read_only = taken->read_only;
    storage->user = storage;
    if ((status = device_adopt(device, storage, stream)) != ST_OK) {
        storage_release(storage);
        return rec_end(r, rec_failed(r, status));
    }
    storage_retain(storage); /* a bool's cast may be done with it at once (mode=eager) */
    /* any byte but 0 is true to others */
    RtNode *node = rec_data(r, dtype == DT_BOOL ? DT_U8 : dtype, shape.rank, shape.dim, storage, data, reach.packed ? NULL : t->strides);
    kiln_tensor *x = rec_end(r, rec_cast(r, node, dtype));
    if (x)
        storage_lend(storage, taken->drop);
    storage_release(storage);
    return x;
}

API2(kiln_tensor *, kiln_from_dlpack, struct DLManagedTensorVersioned *, tensor, int64_t, stream)
{
    Rec r = REC(kiln_from_dlpack);
    if (!tensor)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "tensor is NULL"));
    if (tensor->version.major != DLPACK_MAJOR)
        return rec_end(&r, rec_fail(&r, ST_UNSUPPORTED, "it is of DLPack %u.%u: %d.x is taken, ask its producer for that",
                                    tensor->version.major, tensor->version.minor, DLPACK_MAJOR));
    return take(&r, &(Taken){&tensor->tensor, tensor, drop_versioned, tensor->flags & DLPACK_READ_ONLY}, stream);
}

API2(kiln_tensor *, kiln_from_dlpack_unversioned, struct DLManagedTensor *, tensor, int64_t, stream)
{
    Rec r = REC(kiln_from_dlpack_unversioned);
    if (!tensor)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "tensor is NULL"));
    return take(&r, &(Taken){&tensor->tensor, tensor, drop_unversioned, false}, stream);
}

/* --- out -------------------------------------------------------------------------------------------------------------------- */

/* What the consumer holds: one of the structs, with all it points to. */
typedef struct Given {
    union {
        struct DLManagedTensor unversioned;
        struct DLManagedTensorVersioned versioned;
    } managed; /* first */
    Storage *storage;
    int64_t shape[MAX_RANK], strides[MAX_RANK];
} Given;

static void give_back(Given *g)
{
    if (!g)
        return;
    if (device_idle(g->storage->device)) /* else a forked child, which has no device */
        storage_release(g->storage);
    os_free(g);
}

static void delete_unversioned(struct DLManagedTensor *self) { give_back((Given *)(void *)self); }
static void delete_versioned(struct DLManagedTensorVersioned *self) { give_back((Given *)(void *)self); }

/* The elements of a node in storage of their own. */
static Status copied(const RtNode *node, Storage **out)
{
    const void *elements;
    void *copy;
    TRY(dense_elements(node, &elements, &copy));
    Status status = storage_copied_to(node_device(node), elements, (size_t)node_elements(node) * dtype_bytes(node_dtype(node)), out);
    os_free(copy);
    return status;
}

/* Fills g, which gets a reference to the storage. */
static Status give(const RtNode *node, bool may_share, int64_t stream, Given *g, DlTensor *t)
{
    Storage *storage = atomic_load(&node->storage);
    bool shared = may_share || !storage->read_only;
    if (shared)
        g->storage = storage_retain(storage);
    else
        TRY(copied(node, &g->storage));
    TRY(device_offer(g->storage, stream));
    int device = g->storage->device;
    int64_t row = 1;
    for (int d = node->rank - 1; d >= 0; d--) {
        g->shape[d] = node->dim[d];
        g->strides[d] = shared && node->strided ? node->stride[d] : row;
        row *= node->dim[d];
    }
    *t = (DlTensor){.data = row == 0 ? NULL
                            : shared ? node->data
                                     : g->storage->data,
                    .device = {device_kind(device)->dlpack, device_number(device)},
                    .rank = node->rank,
                    .type = type_of(node_dtype(node)),
                    .shape = g->shape,
                    .strides = g->strides};
    return ST_OK;
}

/* Evaluates x and gives it; NULL: *status says why not. */
static Given *given(kiln_tensor *x, bool versioned, int64_t stream, const void *out, const char *api, Loc loc, kiln_status *status)
{
    if (x && !out) {
        *status = error_sync(fail(ST_INVALID, "tensor is NULL"), api, loc);
        return NULL;
    }
    RtNode *node = sync_eval(x, api, loc, status);
    if (!node)
        return NULL;
    Given *g = os_calloc(1, sizeof *g);
    Status result = g ? give(node, versioned, stream, g, versioned ? &g->managed.versioned.tensor : &g->managed.unversioned.tensor)
                      : fail(ST_OUT_OF_MEMORY, "out of memory");
    node_release(node);
    if (result != ST_OK && g) {
        storage_release(g->storage);
        os_free(g);
        g = NULL;
    }
    *status = error_sync(result, api, loc);
    return g;
}

API3(kiln_status, kiln_to_dlpack, kiln_tensor *, x, int64_t, stream, struct DLManagedTensorVersioned **, tensor)
{
    kiln_status status;
    if (tensor)
        *tensor = NULL;
    Given *g = given(x, true, stream, tensor, "kiln_to_dlpack", (Loc){file, line}, &status);
    if (g) {
        struct DLManagedTensorVersioned *m = *tensor = &g->managed.versioned;
        m->version.major = DLPACK_MAJOR;
        m->version.minor = DLPACK_MINOR;
        m->context = g;
        m->deleter = delete_versioned;
        m->flags = DLPACK_READ_ONLY;
    }
    return status;
}

API3(kiln_status, kiln_to_dlpack_unversioned, kiln_tensor *, x, int64_t, stream, struct DLManagedTensor **, tensor)
{
    kiln_status status;
    if (tensor)
        *tensor = NULL;
    Given *g = given(x, false, stream, tensor, "kiln_to_dlpack_unversioned", (Loc){file, line}, &status);
    if (g) {
        *tensor = &g->managed.unversioned;
        (*tensor)->context = g;
        (*tensor)->deleter = delete_unversioned;
    }
    return status;
}

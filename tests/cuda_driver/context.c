// Devices and contexts. The primary context of a device is one object for as long as the library lives; when its last
// user releases it, all that belongs to it is freed, as the driver does.
#include "tests/cuda_driver/driver.h"

#include <string.h>

enum { STACK = 32 };

static Context *primary[MAX_DEVICES];
static _Thread_local struct CurrentStack {
    Context *context[STACK];
    int depth; // entries; the last is current
} current;

Context *context_current(void)
{
    Context *c = current.depth ? current.context[current.depth - 1] : NULL;
    return c && object_check(c, OBJECT_CONTEXT) ? c : NULL;
}

void context_break(Context *context, CUresult code)
{
    if (context && !context->sticky)
        context->sticky = code;
}

static Context *new_context(int device, bool is_primary)
{
    Context *c = object_new(OBJECT_CONTEXT, sizeof *c);
    Stream *s = c ? object_new(OBJECT_STREAM, sizeof *s) : NULL;
    if (!s)
        return NULL;
    c->device = device;
    c->primary = is_primary;
    s->context = c;
    s->blocking = true;
    s->last = &s->first;
    c->null_stream = s;
    return c;
}

// Frees what belongs to the context, in an order in which nothing refers to something gone.
static void empty_context(Context *c)
{
    static const ObjectKind kinds[] = {OBJECT_GRAPH_EXEC, OBJECT_GRAPH, OBJECT_STREAM, OBJECT_EVENT, OBJECT_LINKER, OBJECT_MODULE};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (Object *o = object_first(kinds[k]), *next; o; o = next) {
            for (next = object_next(o); next && graph_is_body(next);) // it goes with its node
                next = object_next(next);
            object_release(o, c);
        }
    memory_free_device(c->device);
    c->sticky = CUDA_SUCCESS;
    c->retained = 0;
}

CUresult context_retain(CUcontext *out, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!primary[device])
        primary[device] = new_context(device, true);
    if (!primary[device])
        return CUDA_ERROR_OUT_OF_MEMORY;
    primary[device]->retained++;
    *out = primary[device];
    return CUDA_SUCCESS;
}

CUresult context_release(CUdevice device)
{
    if (device < 0 || device >= settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    Context *c = primary[device];
    if (!c || c->retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (c->retained == 1)
        empty_context(c);
    else
        c->retained--;
    return CUDA_SUCCESS;
}

CUresult context_reset(CUdevice device)
{
    if (device < 0 || device >= settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    Context *c = primary[device];
    if (c) {
        unsigned retained = c->retained;
        empty_context(c);
        c->retained = retained;
    }
    return CUDA_SUCCESS;
}

CUresult context_create(CUcontext *out, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    Context *c = new_context(device, false);
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->retained = 1;
    *out = c;
    return context_push(c);
}

static void delete_context(Context *c)
{
    empty_context(c);
    stream_discard(c->null_stream);
    object_free(c->null_stream);
    object_free(c);
}

CUresult context_destroy(CUcontext handle)
{
    Context *c = object_check(handle, OBJECT_CONTEXT);
    if (!c || c->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context_current() == c)
        current.depth--;
    delete_context(c);
    return CUDA_SUCCESS;
}

CUresult context_set(CUcontext handle)
{
    if (handle && !object_check(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current.depth == 0)
        current.depth = 1;
    current.context[current.depth - 1] = handle;
    return CUDA_SUCCESS;
}

CUresult context_push(CUcontext handle)
{
    if (!object_check(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current.depth == STACK)
        return CUDA_ERROR_INVALID_VALUE;
    current.context[current.depth++] = handle;
    return CUDA_SUCCESS;
}

CUresult context_pop(CUcontext *out)
{
    Context *c = context_current();
    if (!c)
        return CUDA_ERROR_INVALID_CONTEXT;
    current.depth--;
    if (out)
        *out = c;
    return CUDA_SUCCESS;
}

CUresult context_state(CUdevice device, unsigned *flags, int *active)
{
    if (device < 0 || device >= settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags)
        *flags = 0;
    if (active)
        *active = primary[device] && primary[device]->retained;
    return CUDA_SUCCESS;
}

void contexts_reset(void)
{
    for (Object *o = object_first(OBJECT_CONTEXT), *next; o; o = next) {
        next = object_next(o);
        delete_context((Context *)o);
    }
    memset(primary, 0, sizeof primary);
    current.depth = 0;
}

// ---- devices ----

// What differs between the architectures: registers are the same for all of them.
static const struct Architecture {
    int cc, threads_per_sm, blocks_per_sm, shared_per_sm, shared_optin, l2;
} architectures[] = {
    {75, 1024, 16, 64 << 10, 64 << 10, 4 << 20},      {80, 2048, 32, 164 << 10, 163 << 10, 40 << 20},
    {86, 1536, 16, 100 << 10, 99 << 10, 6 << 20},     {87, 1536, 16, 164 << 10, 163 << 10, 4 << 20},
    {89, 1536, 24, 100 << 10, 99 << 10, 64 << 20},    {90, 2048, 32, 228 << 10, 227 << 10, 50 << 20},
    {100, 2048, 32, 228 << 10, 227 << 10, 126 << 20}, {120, 1536, 24, 100 << 10, 99 << 10, 96 << 20},
};

static const struct Architecture *architecture(void)
{
    size_t best = 0;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (architectures[i].cc <= 10 * settings.major + settings.minor)
            best = i;
    return &architectures[best];
}

unsigned device_shared_limit(void) { return (unsigned)architecture()->shared_optin; }

CUresult device_attribute(int *out, CUdevice_attribute attribute, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    const struct Architecture *arch = architecture();
    const struct {
        CUdevice_attribute attribute;
        int value;
    } table[] = {
#define ATTRIBUTE(name, number, value) {number, value},
#include "tests/cuda_driver/cuda_attributes.def"
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].attribute == attribute) {
            *out = table[i].value;
            return CUDA_SUCCESS;
        }
    if (attribute < 1 || attribute > 147)
        return CUDA_ERROR_INVALID_VALUE;
    *out = 0; // limits of textures and features that are not offered
    return CUDA_SUCCESS;
}

// ---- names of errors ----

static const struct ErrorRow {
    CUresult code;
    const char *name, *text;
} error_rows[] = {
#define RESULT(name, value, text) {name, #name, text},
#include "tests/cuda_driver/cuda_results.def"
};

static const struct ErrorRow *error_row(CUresult code)
{
    for (size_t i = 0; i < sizeof error_rows / sizeof *error_rows; i++)
        if (error_rows[i].code == code)
            return &error_rows[i];
    return NULL;
}

const char *error_name(CUresult code) { return error_row(code) ? error_row(code)->name : NULL; }

const char *error_text(CUresult code) { return error_row(code) ? error_row(code)->text : NULL; }

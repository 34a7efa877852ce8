// Modules, the linker, functions.
//
// The linker's "cubin" is a container of our own: a header that names the architecture, and the PTX. It is refused where a
// real cubin would be: on a device of another architecture, or when a byte of it changed.
#include "tests/cuda_driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct CubinHeader {
    char magic[16];
    uint32_t cc;    // 80
    uint32_t exact; // sm_90a: runs on 9.0 only
    uint64_t size;  // of the PTX behind it, with its zero byte
    uint64_t checksum;
} CubinHeader;

enum { ASSEMBLER_STACK = 1 << 20 }; // that must be left: real ones take hundreds of KiB

static const char cubin_magic[16] = "KILN-TEST-CUBIN";

static uint64_t checksum(const char *text, size_t size)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size; i++)
        h = (h ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    return h;
}

// ---- options of the just-in-time compiler ----

static void *jit_value(JitOptions options, CUjit_option option)
{
    for (unsigned i = 0; i < options.count; i++)
        if (options.option[i] == option)
            return options.value[i];
    return NULL;
}

static void jit_set(JitOptions options, CUjit_option option, uint64_t value)
{
    for (unsigned i = 0; i < options.count; i++)
        if (options.option[i] == option)
            options.value[i] = (void *)(uintptr_t)value;
}

static void fill_log(JitOptions options, CUjit_option buffer, CUjit_option size, const char *text)
{
    char *out = jit_value(options, buffer);
    size_t room = (size_t)(uintptr_t)jit_value(options, size);
    if (!out || !room)
        return;
    int n = snprintf(out, room, "%s", text);
    jit_set(options, size, (uint64_t)n < room ? (uint64_t)n : room);
}

static CUresult check_options(JitOptions options)
{
    for (unsigned i = 0; i < options.count; i++)
        if (options.option[i] >= CU_JIT_OPTIONS_KNOWN)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// ---- PTX ----

// The newest PTX that a driver takes: of CUDA 11.0 7.0, and so on.
static int newest_ptx(int driver)
{
    static const struct {
        int driver, ptx;
    } table[] = {{10010, 64}, {10020, 65}, {11000, 70}, {11010, 71}, {11020, 72}, {11030, 73}, {11040, 74},
                 {11050, 75}, {11060, 76}, {11070, 77}, {11080, 78}, {12000, 80}, {12010, 81}, {12020, 82},
                 {12030, 83}, {12040, 84}, {12050, 85}, {12070, 86}, {12080, 87}, {12090, 88}, {13000, 90}};
    int best = 63;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].driver <= driver)
            best = table[i].ptx;
    return best;
}

static CUresult check_target(const PtxModule *m, char *error, size_t room)
{
    int cc = 10 * settings.major + settings.minor;
    if (m->version > newest_ptx(settings.driver)) {
        snprintf(error, room, "PTX %d.%d is newer than the driver's %d.%d", m->version / 10, m->version % 10,
                 newest_ptx(settings.driver) / 10, newest_ptx(settings.driver) % 10);
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (m->sets_conditionals && settings.driver < 12030) {
        snprintf(error, room, "Unresolved extern function 'cudaGraphSetConditional'");
        return CUDA_ERROR_INVALID_PTX;
    }
    if (m->target > cc || (m->target_suffix == 'a' && m->target != cc)) {
        snprintf(error, room, "PTX for sm_%d%.1s on a device of compute capability %d.%d", m->target, &m->target_suffix, settings.major,
                 settings.minor);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return CUDA_SUCCESS;
}

// Keeps the text for ptxas in the folder that KILN_TEST_CUDA_PTX names, each text once: assemble.sh assembles what lies there.
static void collect(const char *text, size_t size)
{
    const char *folder = getenv("KILN_TEST_CUDA_PTX");
    char path[512], unfinished[560];
    if (!folder || !*folder ||
        (size_t)snprintf(path, sizeof path, "%s/%016llx.ptx", folder, (unsigned long long)checksum(text, size)) >= sizeof path)
        return;
    snprintf(unfinished, sizeof unfinished, "%s.%ld", path, (long)getpid());
    FILE *f = access(path, F_OK) ? fopen(unfinished, "w") : NULL;
    if (!f)
        return;
    bool whole = fwrite(text, 1, size, f) == size;
    if (fclose(f) || !whole || rename(unfinished, path))
        remove(unfinished);
}

// The driver's assembler works on the stack of who calls it.
static CUresult check_stack(void)
{
    pthread_attr_t attr;
    void *low;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attr))
        return CUDA_ERROR_OPERATING_SYSTEM;
    bool known = pthread_attr_getstack(&attr, &low, &size) == 0;
    pthread_attr_destroy(&attr);
    if (known && (size_t)((char *)__builtin_frame_address(0) - (char *)low) >= ASSEMBLER_STACK)
        return CUDA_SUCCESS;
    counters.violations++;
    report("PTX is assembled on a stack with less than %d bytes left", ASSEMBLER_STACK);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

// The text parsed and fit for the device, or an error that is in the report, the log and the error buffer.
static CUresult compile(PtxModule **out, const char *text, size_t size, JitOptions options)
{
    char error[2048];
    PtxModule *m = ptx_parse(text, size, error, sizeof error);
    CUresult result = m ? check_target(m, error, sizeof error) : CUDA_ERROR_INVALID_PTX;
    if (result) {
        ptx_free(m);
        report("PTX refused: %s", error);
        fill_log(options, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error);
        *out = NULL;
        return result;
    }
    char info[2048];
    size_t used = 0;
    info[0] = 0;
    for (Kernel *k = m->kernels; k && used < sizeof info; k = k->next)
        used += (size_t)snprintf(info + used, sizeof info - used,
                                 "ptxas info    : Function properties for %s\nptxas info    : Used %zu registers, %zu bytes smem, "
                                 "%zu bytes lmem\n",
                                 k->name, k->registers < 255 ? k->registers : 255, k->shared_bytes, k->local_bytes);
    fill_log(options, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, info);
    fill_log(options, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, "");
    float seconds = 0;
    uint32_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    jit_set(options, CU_JIT_WALL_TIME, bits);
    collect(text, size);
    *out = m;
    return CUDA_SUCCESS;
}

static CUresult open_cubin(const CubinHeader *h, const char **text)
{
    *text = (const char *)(h + 1);
    if (checksum(*text, h->size) != h->checksum)
        return CUDA_ERROR_INVALID_IMAGE;
    uint32_t cc = (uint32_t)(10 * settings.major + settings.minor);
    if (h->cc / 10 != cc / 10 || h->cc > cc || (h->exact && h->cc != cc))
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return CUDA_SUCCESS;
}

// ---- variables ----

static void free_variables(PtxModule *ptx)
{
    for (Variable *v = ptx->variables; v; v = v->next) {
        Allocation *a = v->address ? memory_at(v->address) : NULL;
        if (a)
            memory_free(a);
    }
}

static const Variable *variable_named(const PtxModule *ptx, const char *name)
{
    for (const Variable *v = ptx->variables; v; v = v->next)
        if (!strcmp(v->name, name))
            return v;
    return NULL;
}

static CUresult place_variables(PtxModule *ptx, int device)
{
    for (Variable *v = ptx->variables; v; v = v->next) {
        Allocation *a;
        if (v->external) {
            report("external variable '%s' is defined nowhere", v->name);
            return CUDA_ERROR_NOT_FOUND;
        }
        CUresult result = memory_new(&a, v->size, v->space == SPACE_CONST ? ALLOCATION_CONST : ALLOCATION_GLOBAL, device);
        if (result)
            return result;
        v->address = a->address;
        if (v->initial)
            memcpy(a->bytes, v->initial, v->size);
    }
    for (Variable *v = ptx->variables; v; v = v->next)
        for (const Relocation *r = v->relocations; r; r = r->next) {
            const Variable *to = variable_named(ptx, r->symbol);
            if (!to) {
                report("initial value of '%s' names '%s', which is no variable of the module", v->name, r->symbol);
                return CUDA_ERROR_INVALID_PTX;
            }
            uint64_t address = to->address + (uint64_t)r->addend;
            memcpy(memory_at(v->address)->bytes + r->offset, &address, sizeof address);
        }
    return CUDA_SUCCESS;
}

// ---- modules ----

void module_free(Module *m)
{
    for (size_t i = 0; i < m->function_count; i++)
        object_free(m->functions[i]);
    free(m->functions);
    if (m->ptx)
        free_variables(m->ptx);
    ptx_free(m->ptx);
    object_free(m);
}

CUresult module_load(CUmodule *out, const void *image, JitOptions options)
{
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_options(options);
    const char *text = image;
    if (!result && !memcmp(text, "\177ELF", 4))
        result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!result)
        result = strncmp(text, cubin_magic, sizeof cubin_magic) ? check_stack() : open_cubin(image, &text);
    PtxModule *ptx = NULL;
    if (!result)
        result = compile(&ptx, text, strlen(text), options);
    if (result)
        return result;
    Module *m = object_new(OBJECT_MODULE, sizeof *m);
    if (!m) {
        ptx_free(ptx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->context = context_current();
    m->ptx = ptx;
    m->functions = calloc(ptx->kernel_count + 1, sizeof(Function *));
    result = m->functions ? place_variables(ptx, m->context->device) : CUDA_ERROR_OUT_OF_MEMORY;
    for (Kernel *k = ptx->kernels; !result && k; k = k->next) {
        Function *f = object_new(OBJECT_FUNCTION, sizeof *f);
        if (!f) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        f->module = m;
        f->kernel = k;
        f->carveout = -1;
        m->functions[m->function_count++] = f;
    }
    if (result) {
        module_free(m);
        return result;
    }
    counters.modules_loaded++;
    *out = m;
    return CUDA_SUCCESS;
}

static bool queued(const Module *m)
{
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o))
        for (const Command *c = ((const Stream *)o)->first; c; c = c->next)
            if (command_uses(c, m))
                return true;
    return false;
}

CUresult module_unload(CUmodule handle)
{
    Module *m = object_check(handle, OBJECT_MODULE);
    if (!m)
        return CUDA_ERROR_INVALID_HANDLE;
    if (queued(m)) {
        counters.violations++;
        report("module #%llu is unloaded while launches of its kernels are still queued", (unsigned long long)m->object.number);
        stream_drain_context(m->context);
    }
    module_free(m);
    return CUDA_SUCCESS;
}

CUresult module_function(CUfunction *out, CUmodule handle, const char *name)
{
    Module *m = object_check(handle, OBJECT_MODULE);
    if (!m)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < m->function_count; i++)
        if (!strcmp(m->functions[i]->kernel->name, name)) {
            *out = m->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult module_global(CUdeviceptr *out, size_t *size, CUmodule handle, const char *name)
{
    Module *m = object_check(handle, OBJECT_MODULE);
    if (!m)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    const Variable *v = variable_named(m->ptx, name);
    if (!v)
        return CUDA_ERROR_NOT_FOUND;
    if (out)
        *out = v->address;
    if (size)
        *size = v->size;
    return CUDA_SUCCESS;
}

// ---- functions ----

CUresult function_attribute(int *out, CUfunction_attribute attribute, CUfunction handle)
{
    Function *f = object_check(handle, OBJECT_FUNCTION);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    const Kernel *k = f->kernel;
    uint32_t threads = k->maxntid[0] ? k->maxntid[0] * k->maxntid[1] * k->maxntid[2] : 1024;
    if (k->reqntid[0])
        threads = k->reqntid[0] * k->reqntid[1] * k->reqntid[2];
    size_t constant = 0;
    for (const Variable *v = f->module->ptx->variables; v; v = v->next)
        constant += v->space == SPACE_CONST ? v->size : 0;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = (int)threads; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *out = (int)k->shared_bytes; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *out = (int)constant; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *out = (int)k->local_bytes; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: // virtual ones: no register allocation happens here
        *out = (int)(k->registers < 255 ? k->registers : 255);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *out = k->module->target; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *out = 10 * settings.major + settings.minor; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *out = 0; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *out = (int)(f->dynamic_limit ? f->dynamic_limit : (48u << 10) - (unsigned)k->shared_bytes);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *out = f->carveout; return CUDA_SUCCESS;
    default:
        if (attribute > 15)
            return CUDA_ERROR_INVALID_VALUE;
        *out = 0;
        return CUDA_SUCCESS;
    }
}

CUresult function_set_attribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    Function *f = object_check(handle, OBJECT_FUNCTION);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (unsigned)value + f->kernel->shared_bytes > device_shared_limit())
            return CUDA_ERROR_INVALID_VALUE;
        f->dynamic_limit = (unsigned)value;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        f->carveout = value;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

// ---- linker ----

void linker_free(Linker *l)
{
    free(l->text);
    free(l->cubin);
    object_free(l);
}

CUresult linker_create(CUlinkState *out, JitOptions options)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_options(options);
    if (result)
        return result;
    Linker *l = object_new(OBJECT_LINKER, sizeof *l);
    if (!l)
        return CUDA_ERROR_OUT_OF_MEMORY;
    l->context = context_current();
    l->options = options;
    *out = l;
    return CUDA_SUCCESS;
}

CUresult linker_add(CUlinkState handle, CUjitInputType type, const void *data, size_t size, JitOptions options)
{
    Linker *l = object_check(handle, OBJECT_LINKER);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !size || l->cubin)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX || l->text)
        return CUDA_ERROR_NOT_SUPPORTED; // one PTX text is all that is linked here
    if (!memchr(data, 0, size))
        return CUDA_ERROR_INVALID_IMAGE; // a text ends with a zero byte, which belongs to its size
    PtxModule *m;
    CUresult result = check_stack();
    if (!result)
        result = compile(&m, data, strnlen(data, size), options.count ? options : l->options);
    if (result)
        return result;
    l->exact = m->target_suffix == 'a';
    l->unresolved = m->sets_conditionals; // machine code would need the toolkit's libcudadevrt
    ptx_free(m);
    l->size = strnlen(data, size) + 1;
    l->text = calloc(1, l->size);
    if (!l->text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(l->text, data, l->size - 1);
    return CUDA_SUCCESS;
}

CUresult linker_complete(CUlinkState handle, void **cubin, size_t *size)
{
    Linker *l = object_check(handle, OBJECT_LINKER);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!cubin || !l->text)
        return CUDA_ERROR_INVALID_VALUE;
    if (l->unresolved) {
        report("link: undefined reference to 'cudaGraphSetConditional'");
        return CUDA_ERROR_INVALID_PTX;
    }
    if (!l->cubin) {
        l->cubin = calloc(1, sizeof(CubinHeader) + l->size);
        if (!l->cubin)
            return CUDA_ERROR_OUT_OF_MEMORY;
        CubinHeader *h = l->cubin;
        memcpy(h->magic, cubin_magic, sizeof h->magic);
        h->cc = (uint32_t)(10 * settings.major + settings.minor);
        h->exact = l->exact;
        h->size = l->size;
        h->checksum = checksum(l->text, l->size);
        memcpy(h + 1, l->text, l->size);
    }
    *cubin = l->cubin;
    if (size)
        *size = sizeof(CubinHeader) + l->size;
    return CUDA_SUCCESS;
}

CUresult linker_destroy(CUlinkState handle)
{
    Linker *l = object_check(handle, OBJECT_LINKER);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    linker_free(l);
    return CUDA_SUCCESS;
}

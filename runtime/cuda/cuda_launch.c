/*
 * Kernels on a CUDA device: PTX becomes a module at its first launch on a device, entry functions are launched as jit/launch_plan.h says.
 *
 * A loaded kernel belongs to the kernel table's entry (jit/kernel_table.h) and goes with it, once the device is done. Whichever thread launches it
 * first loads it, and the others that need it wait; unloading may happen in any thread, too.
 *
 * The launches of a run are collected in one batch and queued together, as a graph if they came before (runtime/cuda/cuda_graph.c). With calls
 * of another library among them that is done by who knows these (runtime/comm/on_device.c). What they
 * need besides (argument blocks beyond the limit, cleared counters) is queued at once, so it comes before all of them: therefore memory
 * that one of them uses is given back only once the batch is queued (`held`).
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/cuda/cuda.h"
#include "runtime/device/device.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_SHARED = 48 << 10, ASSEMBLER_STACK = 8 << 20 };
enum { SCRATCH_KEPT = 1 << 20 }; /* so much ARG_SCRATCH a stream keeps */

/* A kernel on one device. */
typedef struct Loaded {
    struct Loaded *next; /* on another device */
    CudaDevice *device;
    CuModule module;
    uint32_t n;
    atomic_bool ran;                   /* all that the driver may do at a function's first launch is done */
    atomic_uint shared[LAUNCH_PHASES]; /* dynamic shared memory that a function may use; 0: the default. Grows under the kernel's lock */
    CuFunction function[];
} Loaded;

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Loading may take long: other kernels are not to wait for it, but for those that happen to have the same lock. */
enum { LOADING_LOCKS = 16 };
static pthread_mutex_t loading[LOADING_LOCKS];
static pthread_once_t loading_once = PTHREAD_ONCE_INIT;

static void make_loading(void)
{
    for (int i = 0; i < LOADING_LOCKS; i++)
        pthread_mutex_init(&loading[i], NULL);
}

static pthread_mutex_t *lock_of(const CompiledKernel *kernel)
{
    pthread_once(&loading_once, make_loading);
    return &loading[(uintptr_t)kernel / sizeof *kernel % LOADING_LOCKS];
}

static Loaded *loaded_on(const CompiledKernel *kernel, const CudaDevice *d)
{
    Loaded *l = atomic_load(&((CompiledKernel *)(uintptr_t)kernel)->loaded);
    while (l && l->device != d)
        l = l->next;
    return l;
}

static void unload(void *state)
{
    Loaded *loaded = state;
    while (loaded) {
        Loaded *next = loaded->next;
        CudaDevice *device;
        if (!cuda_forked() && cuda_open(loaded->device->ordinal, &device) == ST_OK) {
            cuda_graph_forget(device, loaded->function, loaded->n);
            if (cuda.context_synchronize() == 0) /* its launches may still be queued */
                cuda.module_unload(loaded->module);
        }
        os_free(loaded);
        loaded = next;
    }
}

static void log_function(const CudaDevice *d, const char *name, CuFunction function)
{
    int registers = 0, local = 0;
    cuda.function_attribute(&registers, CU_REGISTERS, function);
    cuda.function_attribute(&local, CU_LOCAL_BYTES, function);
    log_line(LOG_KERNELS, "cuda:%d: %s: %d registers, %d bytes of local memory a thread", d->ordinal, name, registers, local);
}

static Status load_functions(CudaDevice *d, const LaunchPlan *grid, Loaded *loaded)
{
    for (uint32_t i = 0; i < grid->n_phases; i++) {
        const char *entry = grid_entry(grid, i);
        if (i && strcmp(entry, grid_entry(grid, i - 1)) == 0) {
            loaded->function[i] = loaded->function[i - 1];
            continue;
        }
        CuResult result; /* the driver may load it only now */
        TRY(cuda_check(d, CUDA_WITH_ROOM(d, result, cuda.module_function(&loaded->function[i], loaded->module, entry)), entry));
        if (log_on(LOG_KERNELS))
            log_function(d, entry, loaded->function[i]);
    }
    return ST_OK;
}

enum { LINK_LOG = 1024 };

/* Machine code, a copy of what goes with the link; no copy: no memory for it. */
static CuResult link_once(const char *ptx, const char *name, char *errors, void **cubin, size_t *bytes)
{
    CuLink link;
    CuJitOption options[] = {CU_ERROR_LOG, CU_ERROR_LOG_SIZE};
    void *values[] = {errors, (void *)(uintptr_t)LINK_LOG}, *code;
    CuResult result = cuda.link_create(2, options, values, &link);
    if (result != 0)
        return result;
    result = cuda.link_add(link, CU_PTX_TEXT, (void *)(uintptr_t)ptx, strlen(ptx) + 1, name, 0, NULL, NULL);
    if (result == 0)
        result = cuda.link_complete(link, &code, bytes);
    if (result == 0)
        *cubin = os_copy(code, *bytes);
    cuda.link_destroy(link);
    return result;
}

/* The linker's error, with what its log says: a warning. It may know less than the loader, which has the last word. */
static Status link_failed(CudaDevice *d, CuResult result, const char *name, const char *errors)
{
    Status status = cuda_check(d, result, name);
    if (errors[0])
        status = fail(status, "%s: %s", fail_message(), errors);
    if (status == ST_OUT_OF_MEMORY || atomic_load(&d->broken))
        return status;
    log_warn_once("cuda linker", "%s; PTX is loaded without it", fail_message());
    return ST_OK;
}

/* The driver's assembler: machine code for this very device. Where its linker fails there is none, and the PTX is loaded as it is. */
Status cuda_assemble(int device, const char *ptx, const char *name, void **cubin, size_t *bytes)
{
    CudaDevice *d;
    CuResult result;
    char errors[LINK_LOG] = "";
    *cubin = NULL;
    *bytes = 0;
    TRY(cuda_open(device - DEVICE_CUDA, &d));
    if (CUDA_WITH_ROOM(d, result, link_once(ptx, name, errors, cubin, bytes)) != 0) {
        *bytes = 0;
        return link_failed(d, result, name, errors);
    }
    return *cubin ? ST_OK : fail(ST_OUT_OF_MEMORY, "no memory for the code of kernel %s", name);
}

typedef struct Load {
    CudaDevice *device;
    const KernelObject *object;
    CuModule module;
    CuResult result;
    char errors[1024];
} Load;

static CuResult load_ptx(Load *l)
{
    CuJitOption options[] = {CU_ERROR_LOG, CU_ERROR_LOG_SIZE};
    void *values[] = {l->errors, (void *)(uintptr_t)sizeof l->errors};
    return cuda.module_load(&l->module, l->object->ptx, 2, options, values);
}

/* In a thread of its own. */
static void load_ptx_there(void *load)
{
    Load *l = load;
    l->result = cuda.context_set(atomic_load(&l->device->context));
    if (l->result == 0)
        CUDA_WITH_ROOM(l->device, l->result, load_ptx(l));
}

static CuResult load_cubin(Load *l) { return cuda.module_load(&l->module, l->object->cubin, 0, NULL, NULL); }

/* From the machine code where there is some; a driver that does not take it (an older one, say) gets the PTX, on a stack that is deep
 * enough for its assembler. */
static Status load_module(Load *l, const char *name)
{
    if (l->object->cubin) {
        CuResult result;
        if (CUDA_WITH_ROOM(l->device, result, load_cubin(l)) == 0)
            return ST_OK;
    }
    os_run_on_stack(ASSEMBLER_STACK, load_ptx_there, l);
    Status status = cuda_check(l->device, l->result, name);
    return status != ST_OK && l->errors[0] ? fail(status, "%s: %s", fail_message(), l->errors) : status;
}

Status cuda_load_text(CudaDevice *d, const char *ptx, const char *name, uint32_t n, const char *const *entry, CuFunction *function)
{
    Load l = {.device = d, .object = &(KernelObject){.ptx = ptx}};
    TRY(load_module(&l, name));
    for (uint32_t k = 0; k < n; k++) {
        Status status = cuda_check(d, cuda.module_function(&function[k], l.module, entry[k]), entry[k]);
        if (status != ST_OK) {
            cuda.module_unload(l.module);
            return status;
        }
    }
    return ST_OK;
}

static Status load(CudaDevice *d, const KernelObject *object, const char *name, Loaded **out)
{
    const LaunchPlan *grid = &object->plan;
    Load l = {.device = d, .object = object};
    Loaded *loaded = os_calloc(1, sizeof *loaded + sizeof *loaded->function * grid->n_phases);
    if (!loaded)
        return fail(ST_OUT_OF_MEMORY, "no memory for loading kernel %s", name);
    loaded->device = d;
    loaded->n = grid->n_phases;
    Status status = load_module(&l, name);
    if (status == ST_OK) {
        loaded->module = l.module;
        status = load_functions(d, grid, loaded);
        if (status != ST_OK)
            cuda.module_unload(loaded->module);
    }
    if (status != ST_OK) {
        os_free(loaded);
        return status;
    }
    *out = loaded;
    return ST_OK;
}

static Status load_once(CudaDevice *d, CompiledKernel *kernel, const char *name, Loaded **out)
{
    Status status = ST_OK;
    *out = loaded_on(kernel, d);
    if (*out)
        return ST_OK;
    pthread_mutex_lock(lock_of(kernel));
    *out = loaded_on(kernel, d); /* by another thread meanwhile? */
    if (!*out && (status = load(d, &kernel->parts, name, out)) == ST_OK) {
        (*out)->next = atomic_load(&kernel->loaded);
        kernel->unload = unload;
        atomic_store(&kernel->loaded, *out);
    }
    pthread_mutex_unlock(lock_of(kernel));
    return status;
}

/* The phase's function may use so much dynamic shared memory from now on. */
static Status allow_shared(CudaDevice *d, CompiledKernel *kernel, Loaded *loaded, uint32_t phase, unsigned bytes, const char *name)
{
    CuResult result = 0;
    if (bytes <= DEFAULT_SHARED || bytes <= atomic_load(&loaded->shared[phase]))
        return ST_OK;
    pthread_mutex_lock(lock_of(kernel));
    if (bytes > atomic_load(&loaded->shared[phase]) &&
        (result = cuda.function_set(loaded->function[phase], CU_MAX_SHARED, (int)bytes)) == 0)
        atomic_store(&loaded->shared[phase], bytes);
    pthread_mutex_unlock(lock_of(kernel));
    return cuda_check(d, result, name);
}

/* --- the batch ------------------------------------------------------------------------------------------------------ */

/* Given back once the batch is queued or dropped. On failure it is given back now. */
static Status hold(CudaRun *run, CuPointer pointer, size_t bytes)
{
    if (BUF_RESERVE(run->held, run->held.n + 1)) {
        run->held.at[run->held.n++] = (CudaHeld){pointer, bytes};
        return ST_OK;
    }
    cuda_free(run->device, cuda_bit(run->stream), pointer, bytes);
    return ST_OUT_OF_MEMORY;
}

void cuda_batch_empty(CudaRun *run)
{
    for (size_t i = 0; i < run->held.n; i++)
        cuda_free(run->device, cuda_bit(run->stream), run->held.at[i].pointer, run->held.at[i].bytes);
    run->held.n = run->batch.launch.n = run->batch.bytes.n = 0;
    run->batch.n_conditions = run->batch.n_calls = 0;
    run->recording = false;
}

/* Copies an argument block to the batch. */
static Status add_block(CudaRun *run, const void *block, size_t bytes, size_t *at)
{
    if (!BUF_RESERVE(run->batch.bytes, run->batch.bytes.n + bytes))
        return ST_OUT_OF_MEMORY;
    *at = run->batch.bytes.n;
    memcpy(run->batch.bytes.at + *at, block, bytes);
    run->batch.bytes.n += bytes;
    return ST_OK;
}

Status cuda_add_launch(CudaRun *run, CudaLaunch launch, const void *block, size_t bytes)
{
    TRY(add_block(run, block, bytes, &launch.block));
    launch.block_bytes = (uint32_t)bytes;
    if (!BUF_RESERVE(run->batch.launch, run->batch.launch.n + 1))
        return ST_OUT_OF_MEMORY;
    run->batch.launch.at[run->batch.launch.n++] = launch;
    return ST_OK;
}

/* The block's address in device memory, where the kernel wants that instead of the block. */
static Status add_block_there(CudaRun *run, const void *block, size_t bytes, size_t *at)
{
    CuPointer copy;
    TRY(cuda_alloc(run->device, run->stream, bytes, &copy));
    TRY(hold(run, copy, bytes));
    TRY(cuda_copy_in(run->device, run->stream, copy, block, bytes));
    return add_block(run, &copy, sizeof copy, at);
}

/* The block of a phase: the arguments, and what follows them. */
static Status add_phase_block(CudaRun *run, const LaunchPlan *grid, uint32_t phase, void *const *args, uint32_t n_args, CudaLaunch *launch)
{
    uint64_t tail[GRID_TAIL];
    uint32_t n = grid_tail(grid, phase, args, run->device->multiprocessors, tail);
    size_t bytes = sizeof *args * n_args, tail_at;
    if (grid->by_pointer) {
        launch->block_bytes = sizeof(CuPointer);
        return add_block_there(run, args, bytes, &launch->block);
    }
    launch->block_bytes = (uint32_t)(bytes + sizeof *tail * n);
    TRY(add_block(run, args, bytes, &launch->block));
    return n ? add_block(run, tail, sizeof *tail * n, &tail_at) : ST_OK;
}

static Status add_launch(CudaRun *run, CompiledKernel *kernel, Loaded *loaded, uint32_t phase, const GridLaunch *g, CudaLaunch launch)
{
    if (g->blocks > INT32_MAX)
        return fail(ST_UNSUPPORTED, "kernel %s: a grid of %lld blocks is too large", launch.name, (long long)g->blocks);
    TRY(allow_shared(run->device, kernel, loaded, phase, g->shared, launch.name));
    if (!BUF_RESERVE(run->batch.launch, run->batch.launch.n + 1))
        return ST_OUT_OF_MEMORY;
    launch.function = loaded->function[phase];
    launch.blocks = (unsigned)g->blocks;
    launch.threads = g->threads;
    launch.shared = g->shared;
    launch.ran = &loaded->ran;
    run->batch.launch.at[run->batch.launch.n++] = launch;
    return ST_OK;
}

static Status add_kernel(CudaRun *run, CompiledKernel *kernel, const char *name, void **args, uint32_t n_args)
{
    const LaunchPlan *grid = &kernel->parts.plan;
    Loaded *loaded;
    TRY(load_once(run->device, kernel, name, &loaded));
    CudaLaunch launch = {.name = name};
    if (!grid->numbered) /* one for all phases */
        TRY(add_phase_block(run, grid, 0, args, n_args, &launch));
    uint32_t idle = 0;
    for (uint32_t i = 0; i < grid->n_phases; i++) {
        GridLaunch g = grid_launch(grid, i, args, run->device->multiprocessors);
        if (g.blocks <= 0) {
            idle++;
            continue;
        }
        if (grid->numbered)
            TRY(add_phase_block(run, grid, i, args, n_args, &launch));
        TRY(add_launch(run, kernel, loaded, i, &g, launch));
    }
    if (idle == grid->n_phases) /* of nothing all is done */
        atomic_store(&loaded->ran, true);
    return ST_OK;
}

static Status launch_one(CudaRun *run, const CudaLaunch *l)
{
    void *parameters[] = {run->batch.bytes.at + l->block};
    if (l->kind == LAUNCH_ZERO) {
        CudaZero zero;
        memcpy(&zero, parameters[0], sizeof zero);
        return cuda_run_zero(run, zero.to, zero.bytes);
    }
    CuResult result; /* a kernel may need memory for its threads */
    CUDA_WITH_ROOM(run->device, result,
                   cuda.launch(l->function, l->blocks, 1, 1, l->threads, 1, 1, l->shared, run->stream->stream, parameters, NULL));
    TRY(cuda_check(run->device, result, l->name));
    run->queued++;
    return option_int(OPT_SYNC) ? cuda_check(run->device, cuda.stream_synchronize(run->stream->stream), l->name) : ST_OK;
}

static Status queue_batch(CudaRun *run, CudaBatch *batch)
{
    bool timed = cuda_perf_begin(run), done = false;
    Status status = timed ? ST_OK : cuda_graph_run(run->device, run->stream, batch, &done);
    for (size_t i = 0; i < batch->launch.n && !done && status == ST_OK; i++)
        status = launch_one(run, &batch->launch.at[i]);
    if (timed)
        cuda_perf_end(run);
    if (status == ST_OK)
        cuda_batch_ran(batch);
    return status;
}

void cuda_batch_ran(const CudaBatch *batch)
{
    for (size_t i = 0; i < batch->launch.n; i++)
        if (batch->launch.at[i].ran)
            atomic_store_explicit(batch->launch.at[i].ran, true, memory_order_relaxed);
}

/* Scratch of the stream, large enough. */
static Status scratch(CudaRun *run, size_t bytes, CuPointer *out)
{
    if (run->stream->scratch_bytes >= bytes && run->stream->scratch && !run->device->exact) {
        *out = run->stream->scratch;
        return ST_OK;
    }
    TRY(cuda_alloc(run->device, run->stream, bytes, out));
    Status status =
        cuda_check(run->device, cuda.fill_bytes(*out, 0, bytes < GRID_COUNTER_BYTES ? bytes : GRID_COUNTER_BYTES, run->stream->stream),
                   "clearing memory");
    if (status != ST_OK) {
        cuda_free(run->device, cuda_bit(run->stream), *out, bytes);
        return status;
    }
    if (bytes > SCRATCH_KEPT || run->device->exact)
        return hold(run, *out, bytes);
    CuPointer before = run->stream->scratch;
    size_t before_bytes = run->stream->scratch_bytes;
    run->stream->scratch = *out;
    run->stream->scratch_bytes = bytes;
    return before ? hold(run, before, before_bytes) : ST_OK;
}

/* --- what runtime/eval/launch.c calls ------------------------------------------------------------------------------------ */

Status cuda_run_begin(CudaRun **made, int device)
{
    if (!*made && !(*made = os_calloc(1, sizeof **made)))
        return fail(ST_OUT_OF_MEMORY, "no memory for running a program");
    CudaRun *run = *made;
    run->queued = 0;
    run->overwriting = run->recording = run->queueing = false;
    TRY(cuda_open(device - DEVICE_CUDA, &run->device));
    return cuda_stream(run->device, &run->stream);
}

void cuda_run_free(CudaRun *run)
{
    if (!run)
        return;
    os_free(run->batch.launch.at);
    os_free(run->batch.bytes.at);
    os_free(run->held.at);
    os_free(run->timed.at);
    os_free(run);
}

Status cuda_run_overwrites(CudaRun *run)
{
    TRY(cuda_run_flush(run));
    run->queued = 0;
    run->overwriting = true;
    return ST_OK;
}

bool cuda_ran(const CompiledKernel *kernel, int device)
{
    if (option_int(OPT_TEST_MEMORY) == TEST_MEMORY_EXACT)
        return true; /* for tests that run a program but once */
    const CudaDevice *d = cuda_opened(device - DEVICE_CUDA);
    Loaded *l = d ? loaded_on(kernel, d) : NULL;
    return l && atomic_load(&l->ran);
}

Status cuda_run_use(CudaRun *run, Storage *storage, bool overwritten)
{
    TRY(cuda_fault_input(run, storage));
    return overwritten ? cuda_before_write(storage, run->stream) : cuda_before_read(storage, run->stream);
}

Status cuda_run_fault_word(CudaRun *run, const IndexPlace *places, uint32_t n, void **word) { return cuda_fault_own(run, places, n, word); }

Status cuda_run_fault(CudaRun *run, CudaFault **fault) { return cuda_fault_results(run, fault); }

Status cuda_run_scratch(CudaRun *run, const CompiledKernel *kernel, void *const *args, void **out)
{
    CuPointer pointer = 0;
    int64_t bytes = grid_scratch(&kernel->parts.plan, args, run->device->multiprocessors);
    if (bytes > 0)
        TRY(scratch(run, (size_t)bytes, &pointer));
    *out = (void *)(uintptr_t)pointer;
    return ST_OK;
}

Status cuda_run_kernel(CudaRun *run, CompiledKernel *kernel, const char *name, void **args, uint32_t n_args)
{
    TRY(add_kernel(run, kernel, name, args, n_args));
    return option_int(OPT_SYNC) || perf_timed() ? cuda_run_flush(run) : ST_OK;
}

Status cuda_run_flush(CudaRun *run)
{
    if (run->queueing)
        return ST_OK;
    run->queueing = true;
    Status status = run->batch.n_calls ? run->calls(run->caller) : run->batch.launch.n ? queue_batch(run, &run->batch) : ST_OK;
    run->queueing = false;
    cuda_batch_empty(run);
    return status;
}

/* --- calls of another library ----------------------------------------------------------------------------------------- */

Status cuda_run_call(CudaRun *run, CudaCallsRun *by, void *user, const void *call, size_t bytes, size_t same, bool aside)
{
    CudaLaunch launch = {.kind = LAUNCH_CALL, .name = "a collective", .aside = aside, .block_bytes = (uint32_t)same};
    run->calls = by;
    run->caller = user;
    TRY(add_block(run, call, bytes, &launch.block));
    if (!BUF_RESERVE(run->batch.launch, run->batch.launch.n + 1))
        return ST_OUT_OF_MEMORY;
    run->batch.launch.at[run->batch.launch.n++] = launch;
    run->batch.n_calls++;
    return ST_OK;
}

Status cuda_run_call_zero(CudaRun *run, void *to, size_t bytes)
{
    return cuda_add_launch(run, (CudaLaunch){.kind = LAUNCH_ZERO, .name = "clearing memory"}, &(CudaZero){to, bytes}, sizeof(CudaZero));
}

Status cuda_run_join(CudaRun *run) { return cuda_add_launch(run, (CudaLaunch){.kind = LAUNCH_JOIN, .name = "a collective"}, "", 0); }

uint32_t cuda_run_calls(const CudaRun *run) { return run ? run->batch.n_calls : 0; }

const void *cuda_run_call_at(const CudaRun *run, size_t at, bool *aside)
{
    const CudaLaunch *l = &run->batch.launch.at[at];
    if (aside)
        *aside = l->aside;
    return l->kind == LAUNCH_CALL ? run->batch.bytes.at + l->block : NULL;
}

size_t cuda_run_collected(const CudaRun *run) { return run->batch.launch.n; }

static bool with_call(const CudaLaunch *l) { return l->kind == LAUNCH_CALL || l->kind == LAUNCH_JOIN; }

Status cuda_run_go(CudaRun *run, size_t *at, bool *more)
{
    CudaBatch part = run->batch;
    size_t first = *at;
    while (*at < run->batch.launch.n && !with_call(&run->batch.launch.at[*at]))
        ++*at;
    part.launch.at += first;
    part.launch.n = *at - first;
    part.n_calls = 0;
    *more = *at < run->batch.launch.n;
    return part.launch.n ? queue_batch(run, &part) : ST_OK;
}

Status cuda_run_copy(CudaRun *run, void *to, const void *from, size_t bytes)
{
    if (run->recording)
        return cuda_record_move(run, to, from, bytes, NULL, 0, 0);
    TRY(cuda_run_flush(run));
    CuResult result = cuda.copy_over((CuPointer)(uintptr_t)to, (CuPointer)(uintptr_t)from, bytes, run->stream->stream);
    return cuda_check(run->device, result, "copying on the device");
}

Status cuda_run_zero(CudaRun *run, void *to, size_t bytes)
{
    if (!run->recording)
        TRY(cuda_run_flush(run));
    return cuda_check(run->device, cuda.fill_bytes((CuPointer)(uintptr_t)to, 0, bytes, run->stream->stream), "clearing memory");
}

Status cuda_run_write(CudaRun *run, void *to, const void *from, size_t bytes)
{
    TRY(cuda_run_flush(run));
    return cuda_copy_in(run->device, run->stream, (CuPointer)(uintptr_t)to, from, bytes);
}

Status cuda_run_read(CudaRun *run, void *to, const void *from, size_t bytes)
{
    TRY(cuda_run_flush(run));
    return cuda_copy_out(run->device, run->stream, to, (CuPointer)(uintptr_t)from, bytes);
}

Status cuda_run_drop(CudaRun *run, Status why)
{
    if (!run)
        return why;
    cuda_batch_empty(run);
    cuda_perf_drop(run);
    cuda_fault_drop(run);
    bool lost = run->overwriting && run->queued; /* nobody may take a half-overwritten input for what it was */
    run->overwriting = false;
    return lost ? cuda_broken(run->device) : why;
}

/*
 * Images of the user's ops (kiln_op_info.image) on a CUDA device: loaded at the first call there, for ever, and launched after what is
 * queued. They are never part of a graph of launches: their parameters are the user's.
 */
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/cuda/cuda.h"
#include "runtime/eval/op.h"

enum { DEFAULT_SHARED = 48 << 10, ASSEMBLER_STACK = 8 << 20, LOAD_LOG = 1024 };

typedef struct CudaOp {
    struct CudaOp *next; /* on another device */
    CudaDevice *device;
    CuModule module;
    CuFunction function;
} CudaOp;

typedef struct Load {
    const kiln_op *op;
    CudaOp *to;
    CuResult result;
    char errors[LOAD_LOG];
} Load;

/* In a thread of its own: PTX needs a stack that is deep enough for the driver's assembler. */
static void load_there(void *with)
{
    Load *l = with;
    CuJitOption options[] = {CU_ERROR_LOG, CU_ERROR_LOG_SIZE};
    void *values[] = {l->errors, (void *)(uintptr_t)sizeof l->errors};
    l->result = cuda.context_set(atomic_load(&l->to->device->context));
    if (l->result == 0)
        CUDA_WITH_ROOM(l->to->device, l->result, cuda.module_load(&l->to->module, l->op->info.image, 2, options, values));
}

/* Code of the user's that the driver does not take is no compile that failed: no other way to compute it is tried. */
static Status told(Status status) { return status == ST_COMPILE ? ST_DEVICE : status; }

static Status load(CudaDevice *d, const kiln_op *op, CudaOp *to)
{
    Load l = {.op = op, .to = to};
    to->device = d;
    os_run_on_stack(ASSEMBLER_STACK, load_there, &l);
    Status status = told(cuda_check(d, l.result, op->info.name));
    if (status != ST_OK)
        return l.errors[0] ? fail(status, "%s: %s", fail_message(), l.errors) : status;
    CuResult result; /* the driver may load it only now */
    CUDA_WITH_ROOM(d, result, cuda.module_function(&to->function, to->module, op->info.function));
    status = told(cuda_check(d, result, op->info.function));
    if (status != ST_OK)
        cuda.module_unload(to->module);
    return status;
}

/* The op on this device. Two threads that load it at once: the second one's goes. */
static Status loaded(CudaDevice *d, kiln_op *op, CudaOp **out)
{
    CudaOp *head = atomic_load(&op->loaded), *fresh = NULL;
    for (;;) {
        for (*out = head; *out && (*out)->device != d;)
            *out = (*out)->next;
        if (*out)
            break;
        if (!fresh) {
            if (!(fresh = os_calloc(1, sizeof *fresh)))
                return fail(ST_OUT_OF_MEMORY, "out of memory");
            Status status = load(d, op, fresh);
            if (status != ST_OK) {
                os_free(fresh);
                return status;
            }
        }
        fresh->next = head;
        if (atomic_compare_exchange_strong(&op->loaded, &head, fresh)) {
            *out = fresh;
            return ST_OK;
        }
    }
    if (fresh) {
        cuda.module_unload(fresh->module);
        os_free(fresh);
    }
    return ST_OK;
}

/* Where each parameter lies: addresses, then dims. */
static void **parameters_of(const kiln_op *op, const kiln_type *type, void *const *args)
{
    size_t n = (size_t)op->info.n_in + (size_t)op->info.n_out;
    void **parameters = os_alloc(sizeof *parameters * n * (1 + MAX_RANK) + sizeof *parameters), **at = parameters;
    for (size_t k = 0; k < n && at; k++)
        *at++ = (void *)(uintptr_t)&args[k];
    for (size_t k = 0; k < n && at; k++)
        for (int d = 0; d < type[k].shape.rank; d++)
            *at++ = (void *)(uintptr_t)&type[k].shape.dim[d];
    return parameters;
}

static Status launch(CudaRun *run, const kiln_op *op, CuFunction function, void **parameters, const kiln_launch *how)
{
    CuResult result;
    if (how->shared_bytes > DEFAULT_SHARED)
        TRY(cuda_check(run->device, cuda.function_set(function, CU_MAX_SHARED, (int)how->shared_bytes), op->info.name));
    bool timed = cuda_perf_begin(run);
    CUDA_WITH_ROOM(run->device, result,
                   cuda.launch(function, how->grid[0], how->grid[1], how->grid[2], how->block[0], how->block[1], how->block[2],
                               how->shared_bytes, run->stream->stream, parameters, NULL));
    if (timed)
        cuda_perf_end(run);
    TRY(told(cuda_check(run->device, result, op->info.name)));
    run->queued++;
    return option_int(OPT_SYNC) ? cuda_check(run->device, cuda.stream_synchronize(run->stream->stream), op->info.name) : ST_OK;
}

Status cuda_run_op(CudaRun *run, const kiln_op *op, const kiln_type *type, void *const *args, const kiln_launch *how)
{
    CudaOp *there;
    if (!how->grid[0] || !how->grid[1] || !how->grid[2])
        return ST_OK;
    TRY(loaded(run->device, (kiln_op *)(uintptr_t)op, &there));
    TRY(cuda_run_flush(run));
    void **parameters = parameters_of(op, type, args);
    if (!parameters)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = launch(run, op, there->function, parameters, how);
    os_free(parameters);
    return status;
}

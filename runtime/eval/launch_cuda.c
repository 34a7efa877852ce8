/*
 * How programs run on a CUDA device: steps are queued (runtime/cuda/cuda_launch.c), and whether an index was out of bounds is looked at later.
 * Loops and branches that the device runs by itself: launch_device.c.
 */
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/eval/frame.h"
#include "runtime/eval/op.h"
#include "runtime/eval/perf.h"
#include "runtime/linalg/linalg.h"
#include "runtime/record/bodies.h"

static struct CudaRun *cuda_of(const Run *run) { return run->e->cuda; }

/* --- begin and end --------------------------------------------------------------------------------------------------- */

/* Steps are collected, unless each is waited for, so that what may fail has failed before anything is overwritten. But the driver may load a
 * function, or want memory for it, at its first launch: nothing is overwritten before all kernels ran. */
static bool cuda_may_overwrite(const Run *run)
{
    bool one_by_one = option_int(OPT_SYNC) || perf_timed();
    for (uint32_t i = 0; i < run->p->n_args && one_by_one; i++)
        if (run->p->args[i].kind == BIND_SHARED)
            return false;
    for (uint32_t i = 0; i < run->p->n_steps; i++)
        if (run->p->steps[i].kind == STEP_KERNEL && !cuda_ran(run->p->kernels[run->p->steps[i].kernel].compiled, run->device))
            return false;
    return true;
}

static Status cuda_begin(Run *run) { return cuda_run_begin(&run->e->cuda, run->device); }

/* From which step on outputs may take over inputs' storages: behind all that is no kernel (jit/assemble.c); UINT32_MAX: none does. */
static uint32_t overwrites_from(const Program *p, const bool *donated)
{
    bool any = false;
    uint32_t from = 0;
    for (uint32_t i = 0; i < p->n_buffers && donated; i++)
        any |= p->buffers[i].kind == BUFFER_OUTPUT && p->buffers[i].alias_input != NO_BUFFER && donated[p->buffers[i].alias_input];
    for (uint32_t i = 0; i < p->n_steps && any; i++)
        from = p->steps[i].kind == STEP_KERNEL ? from : i + 1;
    return any ? from : UINT32_MAX;
}

static bool has_bodies(const Call *call)
{
    bool has = false;
    for (size_t i = 0; i < call->nodes.n && !has; i++)
        has = node_has_bodies(call->nodes.at[i]);
    return has;
}

/* The inputs are there before the first launch, and right where a loop might have no end for what is wrong; indices that may be out of
 * bounds have a place to say so, which is looked at later. */
static Status cuda_prepare(Run *run, const bool *donated)
{
    run->overwrites = overwrites_from(run->p, donated);
    for (size_t i = 0; i < run->call->inputs.n; i++) {
        Storage *storage = atomic_load(&run->call->nodes.at[run->call->inputs.at[i]]->storage);
        if (run->overwrites != UINT32_MAX || (storage->fault && has_bodies(run->call)))
            TRY(device_settle(storage));
        TRY(cuda_run_use(cuda_of(run), storage, donated && donated[i]));
    }
    uint32_t n = device_places(run, run->p, NULL);
    IndexPlace *places = n ? os_calloc(n, sizeof *places) : NULL;
    if (n && !places)
        return ST_OUT_OF_MEMORY;
    device_places(run, run->p, places);
    Status status = n ? cuda_run_fault_word(cuda_of(run), places, n, &run->fault_word) : ST_OK;
    os_free(places);
    return status;
}

static Status cuda_reads(Run *run, Storage *storage) { return cuda_run_use(cuda_of(run), storage, false); }

/* Queues what was collected. Results that are inputs keep the pending faults of those. */
static Status queue(const Run *run, const Result *results)
{
    struct CudaFault *fault;
    TRY(cuda_run_flush(cuda_of(run)));
    cuda_perf_tell(cuda_of(run));
    TRY(cuda_run_fault(cuda_of(run), &fault));
    for (uint32_t k = 0; k < run->p->n_outputs; k++)
        if (run->p->buffers[run->p->outputs[k]].kind != BUFFER_INPUT)
            cuda_fault_set(results[k].storage, fault);
    cuda_fault_release(fault);
    return ST_OK;
}

static Status cuda_end(Run *run, const Result *results, Status status)
{
    if (status == ST_OK)
        status = queue(run, results);
    return status == ST_OK ? ST_OK : cuda_run_drop(cuda_of(run), status);
}

/* --- steps ------------------------------------------------------------------------------------------------------------ */

static void cuda_timed(Run *run) { cuda_perf_step(cuda_of(run), &run->last); }
static Status cuda_overwrites(Run *run) { return cuda_run_overwrites(cuda_of(run)); }

static Status cuda_kernel(Run *run, const ProgStep *step)
{
    const ProgKernel *kernel = &run->p->kernels[step->kernel];
    for (uint32_t i = 0; i < step->n_args; i++) /* room for the partial results of a split kernel */
        if (run->p->args[step->first_arg + i].kind == BIND_SHARED)
            TRY(cuda_run_scratch(cuda_of(run), kernel->compiled, run->args, &run->args[i]));
    return cuda_run_kernel(cuda_of(run), kernel->compiled, kernel->name, run->args, step->n_args);
}

/* By NCCL or cuSOLVER. */
static Status cuda_library(const Run *run, const Callee *callee, Loc loc, CallBuffer *in, uint32_t n_in, CallBuffer *out, uint32_t n_out,
                           bool *done)
{
    bool kept = false;
    *done = false;
    for (uint32_t k = 0; k < run->p->n_outputs && callee->ordered; k++)
        kept |= run->address[run->p->outputs[k]] == out[n_out - 1].data;
    if (callee->ordered)
        return comm_call_on_device(run->e, callee, loc, in, out, kept, done);
    return callee->host == linalg_host ? cuda_run_linalg(cuda_of(run), callee, loc, in, n_in, out, n_out, done) : ST_OK;
}

static Status cuda_copy(const Run *run, void *to, const void *from, size_t bytes)
{
    return bytes ? cuda_run_copy(cuda_of(run), to, from, bytes) : ST_OK;
}

static Status cuda_read(const Run *run, void *to, const void *from, size_t bytes) { return cuda_run_read(cuda_of(run), to, from, bytes); }
static Status cuda_write(const Run *run, void *to, const void *from, size_t bytes) { return cuda_run_write(cuda_of(run), to, from, bytes); }
static Status cuda_zero(const Run *run, void *to, size_t bytes) { return cuda_run_zero(cuda_of(run), to, bytes); }
static Status cuda_flush(const Run *run) { return cuda_run_flush(cuda_of(run)); }

const Launcher cuda_launcher = {.clocked = true,
                                .limits = cuda_limits,
                                .may_overwrite = cuda_may_overwrite,
                                .begin = cuda_begin,
                                .prepare = cuda_prepare,
                                .reads = cuda_reads,
                                .end = cuda_end,
                                .timed = cuda_timed,
                                .overwrites = cuda_overwrites,
                                .kernel = cuda_kernel,
                                .bodies = device_bodies,
                                .library = cuda_library,
                                .call = op_call_cuda,
                                .copy = cuda_copy,
                                .read = cuda_read,
                                .write = cuda_write,
                                .zero = cuda_zero,
                                .flush = cuda_flush};

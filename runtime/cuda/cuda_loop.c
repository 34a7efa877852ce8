/*
 * Loops and branches that the device runs by itself: conditional nodes of CUDA graphs, which drivers have since CUDA 12.4.
 *
 *   a loop     COUNT decides whether there is a first iteration; while that holds { the body; COUNT again, at its end }
 *   a branch   CHOOSE reads the predicate; if it holds { the one body }; if it does not { the other }
 *
 * What decides is a handle of the graph, which a kernel sets by a call of cudaGraphSetConditional. The toolkit has that function in a
 * library (libcudadevrt), but the driver's own assembler knows it as well: PTX that declares it and is loaded as PTX needs no toolkit.
 * Machine code made beforehand would need the library. So its kernels are text (runtime/cuda/cuda_loop_ptx.c), the same for all devices,
 * assembled once a process.
 *
 * Addresses and sizes in a graph are those of its launch. What differs from iteration to iteration lies in memory of fixed place: the
 * number of the iteration, which COUNT writes; rows of xs and ys, which MOVE copies by it.
 *
 * Errors: a body's kernels leave the numbers of what was wrong in a word of device memory, as ever. COUNT ends the loop then, or leaves a
 * number of its own when the condition still holds after all iterations; REPORT hands it on to the word of what is around, in the end to
 * that of the run (runtime/cuda/cuda_fault.c).
 *
 * The host runs the loop (runtime/eval/launch_body.c) where the driver is too old, refuses something, or is not to build graphs.
 */
#include "ir/base/log.h"
#include "jit/options.h"
#include "runtime/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

enum { OLDEST_LOOPS = 12040, MOVE_THREADS = 256, MOVE_BLOCKS = 1024, MOVE_BYTES = 16 };

/* --- the kernels -------------------------------------------------------------------------------------------------- */

static const char *const kernel_names[] = {
#define LOOP_KERNEL(name) "kiln_loop_" #name,
    LOOP_KERNELS
#undef LOOP_KERNEL
};

static Status load_kernels(CudaDevice *d)
{
    CuFunction function[N_LOOP_KERNELS];
    TRY(cuda_load_text(d, cuda_loop_ptx, "kiln_loop", N_LOOP_KERNELS, kernel_names, function));
    memcpy(d->loop_kernel, function, sizeof function);
    return ST_OK;
}

/* Once. What the driver refuses it will refuse again; where memory was short, it is asked anew. */
static Status have_kernels(CudaDevice *d)
{
    Status status = ST_OK;
    pthread_mutex_lock(&d->loops_lock);
    if (!d->loop_kernel[0] && !d->no_loops) {
        status = load_kernels(d);
        d->no_loops = status != ST_OK && status != ST_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&d->loops_lock);
    if (status == ST_OK || atomic_load(&d->broken))
        return status;
    log_warn_once("cuda loops", "%s; the host runs loops and branches", fail_message());
    return ST_OK;
}

static Status add(CudaRun *run, CudaLoopKernel kernel, unsigned blocks, unsigned threads, const uint32_t *condition, const void *block,
                  size_t bytes)
{
    CudaLaunch launch = {.function = run->device->loop_kernel[kernel], .blocks = blocks, .threads = threads, .name = kernel_names[kernel]};
    for (uint32_t k = 0; k < CONDITIONS && condition; k++)
        launch.condition[k] = condition[k];
    return cuda_add_launch(run, launch, block, bytes);
}

/* --- recording ----------------------------------------------------------------------------------------------------- */

Status cuda_record_begin(CudaRun *run, const char **why_not)
{
    CudaDevice *d = run->device;
    *why_not = "the driver refuses the kernels that decide";
    if (!cuda.graph_condition || !cuda.graph_add_node || d->target.driver < OLDEST_LOOPS)
        *why_not = "the driver is older than CUDA 12.4";
    else if (!cuda_graph_wanted())
        *why_not = "there are no CUDA graphs (KILN_CUDA_GRAPHS=off, KILN_SYNC=1, or an old driver)";
    else {
        TRY(have_kernels(d));
        if (d->loop_kernel[0])
            *why_not = NULL;
    }
    if (*why_not)
        return ST_OK;
    TRY(cuda_run_flush(run));
    run->recording = true;
    return ST_OK;
}

Status cuda_record_count(CudaRun *run, CudaCount *count, bool first)
{
    uint32_t condition[CONDITIONS] = {count->condition ? count->condition : ++run->batch.n_conditions};
    struct {
        CuCondition handle;
        void *state;
        const void *going;
        void *fault;
        int64_t count, endless, first, step, start;
        const void *also;
    } block = {0,
               count->state,
               count->going,
               count->fault,
               count->count,
               count->endless,
               first,
               count->reverse ? -1 : 1,
               count->reverse ? count->count - 1 : 0,
               count->also};
    count->condition = condition[0];
    return add(run, LOOP_COUNT, 1, 1, condition, &block, sizeof block);
}

Status cuda_record_choose(CudaRun *run, const void *predicate, uint32_t condition[CONDITIONS])
{
    struct {
        CuCondition handle[CONDITIONS];
        const void *predicate;
    } block = {.predicate = predicate};
    for (uint32_t k = 0; k < CONDITIONS; k++)
        condition[k] = ++run->batch.n_conditions;
    return add(run, LOOP_CHOOSE, 1, 1, condition, &block, sizeof block);
}

static Status mark(CudaRun *run, CudaLaunchKind kind, uint32_t condition)
{
    return cuda_add_launch(run, (CudaLaunch){.kind = kind, .condition = {condition}, .name = "kiln_loop"}, "", 0);
}

Status cuda_record_open(CudaRun *run, bool repeat, uint32_t condition) { return mark(run, repeat ? LAUNCH_WHILE : LAUNCH_IF, condition); }

Status cuda_record_close(CudaRun *run) { return mark(run, LAUNCH_END, 0); }

Status cuda_record_move(CudaRun *run, void *to, const void *from, size_t bytes, const void *index, size_t to_step, size_t from_step)
{
    struct {
        void *to;
        const void *from;
        size_t bytes;
        const void *index;
        size_t to_step, from_step;
    } block = {to, from, bytes, index, to_step, from_step};
    size_t blocks = (bytes / MOVE_BYTES + MOVE_THREADS) / MOVE_THREADS;
    if (bytes == 0)
        return ST_OK;
    return add(run, LOOP_MOVE, (unsigned)(blocks < MOVE_BLOCKS ? blocks : MOVE_BLOCKS), MOVE_THREADS, NULL, &block, sizeof block);
}

Status cuda_record_report(CudaRun *run, const void *word, void *there, int64_t offset)
{
    struct {
        const void *word;
        void *there;
        int64_t offset;
    } block = {word, there, offset};
    return add(run, LOOP_REPORT, 1, 1, NULL, &block, sizeof block);
}

Status cuda_record_launch(CudaRun *run, bool *done)
{
    Status status = cuda_graph_run(run->device, run->stream, &run->batch, done);
    if (status == ST_OK && *done)
        cuda_batch_ran(&run->batch);
    cuda_batch_empty(run);
    return status;
}

void cuda_record_drop(CudaRun *run) { cuda_batch_empty(run); }

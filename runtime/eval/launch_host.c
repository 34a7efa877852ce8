/* How programs run on the host: phases of kernels as tasks of the thread pool, and sorts. */
#include "ir/base/os.h"
#include "jit/options.h"
#include "jit/sort.h"
#include "runtime/device/device.h"
#include "runtime/eval/frame.h"
#include "runtime/eval/op.h"
#include "runtime/eval/perf.h"
#include "runtime/eval/pool.h"

#include <inttypes.h>
#include <string.h>

/* Less work than this runs on the calling thread: waking another costs microseconds. */
static const double INLINE_NS = 20000;
/* The least work worth a trip to the shared counter. */
static const double CHUNK_NS = 10000;

/* --- kernels ------------------------------------------------------------------------------------------------------- */

/* Room for the partial results of a split kernel, whose size its launch plan tells. */
static Status bind_shared(Run *run, const ProgStep *step, const HostLaunch *launch)
{
    for (uint32_t i = 0; i < step->n_args; i++) {
        if (run->p->args[step->first_arg + i].kind != BIND_SHARED)
            continue;
        size_t bytes = (size_t)launch->scratch;
        if (run->shared && run->shared->bytes < bytes) {
            storage_release(run->shared);
            run->shared = NULL;
        }
        if (!run->shared)
            TRY(storage_new_on(run->device, bytes, &run->shared));
        run->args[i] = run->shared->data;
    }
    return ST_OK;
}

Phase phase_of(const ProgKernel *kernel, const HostLaunch *launch, void *const *with, int64_t number, int threads)
{
    Phase phase = {.run = kernel->compiled->run, .args = with, .number = number, .threads = 1};
    phase.scratch = launch_aligned((size_t)launch->local);
    phase.tasks = phase.grain = launch->tasks[number & 1];
    double ns = (double)launch->points * kernel->cost;
    if (threads == 1 || ns < INLINE_NS || phase.tasks <= 1)
        return phase;
    int64_t chunks = threads * 8; /* enough to even out a slow thread */
    if ((double)chunks > ns / CHUNK_NS)
        chunks = (int64_t)(ns / CHUNK_NS) + 1;
    int64_t each = (phase.tasks + threads - 1) / threads, together = each < launch->together ? each : launch->together;
    phase.grain = (phase.tasks + chunks - 1) / chunks;
    phase.grain = phase.grain > together ? phase.grain : together;
    phase.threads = threads;
    return phase;
}

typedef struct PhaseTasks {
    const Phase *phase;
    char *scratch;
} PhaseTasks;

static void run_tasks(void *arg, int64_t lo, int64_t hi, int thread)
{
    const PhaseTasks *t = arg;
    const Phase *phase = t->phase;
    phase->run(phase->args, phase->number, lo, hi, t->scratch + phase->scratch * (size_t)thread);
}

void phase_run(const Phase *phase, char *room)
{
    PhaseTasks tasks = {phase, room};
    if (phase->tasks <= 0)
        return;
    if (phase->threads == 1)
        phase->run(phase->args, phase->number, 0, phase->tasks, room);
    else
        pool_run(phase->tasks, phase->grain, phase->threads, run_tasks, &tasks);
}

size_t phase_scratch(const Phase *phase)
{
    size_t all;
    return __builtin_mul_overflow(phase->scratch, (size_t)phase->threads, &all) ? SIZE_MAX : all;
}

char *launch_scratch(Evaluation *e, size_t bytes, const char *kernel)
{
    if (e->scratch && bytes <= e->scratch_bytes)
        return e->scratch;
    bool possible = bytes < SIZE_MAX / 2;
    size_t want = possible ? launch_aligned(bytes + bytes / 8) : 0; /* rows that grow a little each time do not ask each time */
    os_free(e->scratch);                                            /* nothing in it is needed */
    e->scratch = possible ? os_alloc_aligned(LAUNCH_ALIGN, want + LAUNCH_ALIGN) : NULL;
    e->scratch_bytes = e->scratch ? want : 0;
    if (!e->scratch)
        (void)fail(ST_OUT_OF_MEMORY, "no memory for %zu bytes of scratch of kernel %s", bytes, kernel);
    return e->scratch;
}

/* The room that the kernel's largest phase needs. */
static char *kernel_scratch(Evaluation *e, const ProgKernel *kernel, const HostLaunch *launch, void *const *with, int threads)
{
    size_t most = 0;
    for (int64_t number = 0; number < launch->phases; number++) {
        Phase phase = phase_of(kernel, launch, with, number, threads);
        if (phase_scratch(&phase) > most)
            most = phase_scratch(&phase);
    }
    return launch_scratch(e, most, kernel->name);
}

static Status host_kernel(Run *run, const ProgStep *step)
{
    const ProgKernel *kernel = &run->p->kernels[step->kernel];
    HostLaunch room;
    const HostLaunch *launch = kernel_launch(kernel->compiled, run->args, &room);
    TRY(bind_shared(run, step, launch));
    int threads = pool_threads();
    for (int64_t number = 0; number < launch->phases; number++) {
        Phase phase = phase_of(kernel, launch, run->args, number, threads);
        char *scratch = launch_scratch(run->e, phase_scratch(&phase), kernel->name);
        if (!scratch)
            return ST_OUT_OF_MEMORY;
        phase_run(&phase, scratch);
        run->last.tasks = phase.tasks;
        run->last.threads = phase.threads;
    }
    return ST_OK;
}

/* A program that overwrites an input must not fail half-way: everything it may allocate is allocated before the first step
 * (what else may fail comes before the first that overwrites, says jit/assemble.c). */
static Status host_reserve(Run *run)
{
    const ProgBand *band = run->p->bands, *end = band + run->p->n_bands;
    for (uint32_t i = 0; i < run->p->n_steps; i++) {
        if (run->p->steps[i].kind != STEP_KERNEL)
            continue;
        const ProgKernel *kernel = &run->p->kernels[run->p->steps[i].kernel];
        if (band < end && band->first == i) {
            bool together;
            TRY(band_reserve(run, band++, &together));
            if (together) {
                i += band[-1].n - 1;
                continue;
            }
        }
        bind_args(run, &run->p->steps[i]);
        HostLaunch room;
        const HostLaunch *launch = kernel_launch(kernel->compiled, run->args, &room);
        TRY(bind_shared(run, &run->p->steps[i], launch));
        if (!kernel_scratch(run->e, kernel, launch, run->args, pool_threads()))
            return ST_OUT_OF_MEMORY;
    }
    return ST_OK;
}

/* --- sorts --------------------------------------------------------------------------------------------------------- */

typedef struct SortPhase {
    const SortPlan *plan;
    int number;
    void *room;
} SortPhase;

static void run_sort(void *arg, int64_t lo, int64_t hi, int thread)
{
    const SortPhase *phase = arg;
    sort_run(phase->plan, phase->number, lo, hi, thread, phase->room);
}

Status host_sort(const Run *run, const ProgStep *step)
{
    const int64_t *options = run->e->options.value;
    SortJob job = {
        .dtype = (DType)step->dtype, .descending = step->descending, .values = step->values, .in = run->args[0], .out = run->args[1]};
    memcpy(&job.outer, &run->args[2], sizeof job.outer);
    memcpy(&job.n, &run->args[3], sizeof job.n);
    memcpy(&job.inner, &run->args[4], sizeof job.inner);
    SortPlan plan;
    sort_plan(&job, pool_threads(), sort_vectors(options[OPT_VECTOR_BITS], options[OPT_CPU] != CPU_V3), &plan);
    Storage *room;
    if (storage_new_on(run->device, sort_room(&plan), &room) != ST_OK)
        return fail(ST_OUT_OF_MEMORY, "no memory for sorting lines of %" PRId64 " elements", job.n);
    SortPhase phase = {.plan = &plan, .room = room->data};
    for (; phase.number < plan.phases; phase.number++) {
        int64_t grain, tasks = sort_tasks(&plan, phase.number, &grain);
        if (tasks > 0)
            pool_run(tasks, grain, plan.threads, run_sort, &phase);
    }
    storage_release(room);
    return ST_OK;
}

/* --- the rest of the row --------------------------------------------------------------------------------------------- */

static void host_timed(Run *run)
{
    (void)run;
    perf_look();
}

static Status host_library(const Run *run, const Callee *callee, Loc loc, CallBuffer *in, uint32_t n_in, CallBuffer *out, uint32_t n_out,
                           bool *done)
{
    (void)run;
    *done = true;
    return callee->host(callee, loc, in, n_in, out, n_out);
}

static Status host_call(const Run *run, const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out,
                        uint32_t n_out)
{
    (void)run;
    return op_call_host(callee, loc, in, n_in, out, n_out);
}

static Status host_move(const Run *run, void *to, const void *from, size_t bytes)
{
    (void)run;
    memmove(to, from, bytes);
    return ST_OK;
}

static Status host_zero(const Run *run, void *to, size_t bytes)
{
    (void)run;
    memset(to, 0, bytes);
    return ST_OK;
}

static Status host_flush(const Run *run)
{
    (void)run;
    return ST_OK;
}

const Launcher host_launcher = {.limits = perf_host_limits,
                                .reserve = host_reserve,
                                .timed = host_timed,
                                .kernel = host_kernel,
                                .library = host_library,
                                .call = host_call,
                                .copy = host_move,
                                .read = host_move,
                                .write = host_move,
                                .zero = host_zero,
                                .flush = host_flush};

/*
 * Device times of launches, for KILN_LOG=perf, KILN_PERF and KILN_TRACE: an event before and one after the launches of a step, on their stream.
 *
 *   cuda_perf_step      what comes next
 *   cuda_perf_begin     before launches are queued, cuda_perf_end after
 *   cuda_perf_tell      the end of the evaluation: waits, and tells each in order; in a trace the last one ended when the wait did
 *
 * Only while one of them is on: without it nothing here is called, and an evaluation waits for nothing. Launches are then queued step by
 * step and never as a graph, whose parts have no times of their own. What cannot be timed is not told; why is told by the next call of the
 * driver that matters.
 */
#include "runtime/cuda/cuda.h"

_Static_assert((int)TIMELINE_DEVICES == (int)MAX_CUDA_DEVICES, "a lane for each");

static void destroy(const CudaTimed *t)
{
    if (t->before)
        cuda.event_destroy(t->before);
    if (t->after)
        cuda.event_destroy(t->after);
}

void cuda_perf_step(CudaRun *run, const Launched *step) { run->step = *step; }

bool cuda_perf_begin(CudaRun *run)
{
    CudaTimed t = {.step = run->step};
    if (!run->step.what || !BUF_RESERVE(run->timed, run->timed.n + 1))
        return false;
    if (cuda.event_create(&t.before, 0) == 0 && cuda.event_create(&t.after, 0) == 0 &&
        cuda.event_record(t.before, run->stream->stream) == 0) {
        if (run->batch.launch.n) { /* the last phase's */
            t.step.tasks = run->batch.launch.at[run->batch.launch.n - 1].blocks;
            t.step.threads = run->batch.launch.at[run->batch.launch.n - 1].threads;
        }
        run->timed.at[run->timed.n++] = t;
        return true;
    }
    destroy(&t);
    return false;
}

void cuda_perf_end(CudaRun *run)
{
    CudaTimed *t = &run->timed.at[run->timed.n - 1];
    if (cuda.event_record(t->after, run->stream->stream) == 0)
        return;
    destroy(t);
    run->timed.n--;
}

/* On the device's lane: `ms` long, and it began so long before `end`. */
static void trace_launch(const CudaRun *run, const CudaTimed *t, float ms, float before, int64_t end)
{
    int64_t began = end - (int64_t)(1e6 * (double)before);
    PerfLimit limit = perf_limit(&t->step, 1);
    timeline_device_span(
        (uint32_t)run->stream->device->ordinal, run->stream->number, t->step.what, began, began + (int64_t)(1e6 * (double)ms),
        TL_TEXT("program", program_name(t->step.program)), TL_INT("bytes", t->step.bytes), TL_INT("flops", (int64_t)t->step.work.flops),
        TL_INT("specials", (int64_t)t->step.work.specials), TL_INT("blocks", t->step.tasks), TL_INT("threads", t->step.threads),
        TL_TEXT("regime", limit.regime), TL_REAL("percent_of_limit", perf_percent(&limit, 1e-3 * (double)ms)),
        TL_REAL("GB/s", ms > 0 ? 1e-6 * (double)t->step.bytes / (double)ms : 0));
}

void cuda_perf_tell(CudaRun *run)
{
    const CudaTimed *last = run->timed.n ? &run->timed.at[run->timed.n - 1] : NULL;
    int64_t began = timeline_begin(), end = 0;
    if (last && began && cuda.event_synchronize(last->after) == 0) {
        end = timeline_now();
        timeline_span(TL_WAIT, "wait for the device", began, TL_INT("launches", (int64_t)run->timed.n));
    }
    for (size_t i = 0; i < run->timed.n; i++) {
        const CudaTimed *t = &run->timed.at[i];
        float ms, before;
        if (cuda.event_synchronize(t->after) != 0 || cuda.event_elapsed(&ms, t->before, t->after) != 0)
            continue;
        perf_launched(&t->step, 1e-3 * (double)ms);
        if (end && cuda.event_elapsed(&before, t->before, last->after) == 0)
            trace_launch(run, t, ms, before, end);
    }
    cuda_perf_drop(run);
}

void cuda_perf_drop(CudaRun *run)
{
    for (size_t i = 0; i < run->timed.n; i++)
        destroy(&run->timed.at[i]);
    run->timed.n = 0;
    run->step.what = NULL;
}

/*
 * Device times of launches, for KILN_LOG=perf: an event before and one after the launches of a step, on their stream.
 *
 *   cuda_perf_step      what comes next is called `what` and moves `bytes`
 *   cuda_perf_begin     before launches are queued, cuda_perf_end after
 *   cuda_perf_tell      the end of the evaluation: waits, and logs each in order
 *
 * Only while the topic is on: without it nothing here is called, and an evaluation waits for nothing. Launches are then queued step by
 * step and never as a graph, whose parts have no times of their own. What cannot be timed is not told; why is told by the next call of the
 * driver that matters.
 */
#include "runtime/cuda/cuda.h"
#include "runtime/eval/launch.h"

static void destroy(const CudaTimed *t)
{
    if (t->before)
        cuda.event_destroy(t->before);
    if (t->after)
        cuda.event_destroy(t->after);
}

void cuda_perf_step(CudaRun *run, const char *what, int64_t bytes)
{
    run->step = what;
    run->step_bytes = bytes;
}

bool cuda_perf_begin(CudaRun *run)
{
    CudaTimed t = {.what = run->step, .bytes = run->step_bytes};
    if (!run->step || !BUF_RESERVE(run->timed, run->timed.n + 1))
        return false;
    if (cuda.event_create(&t.before, 0) == 0 && cuda.event_create(&t.after, 0) == 0 &&
        cuda.event_record(t.before, run->stream->stream) == 0) {
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

void cuda_perf_tell(CudaRun *run)
{
    for (size_t i = 0; i < run->timed.n; i++) {
        const CudaTimed *t = &run->timed.at[i];
        float ms;
        if (cuda.event_synchronize(t->after) == 0 && cuda.event_elapsed(&ms, t->before, t->after) == 0)
            log_launch(t->what, 1e-3 * (double)ms, t->bytes);
    }
    cuda_perf_drop(run);
}

void cuda_perf_drop(CudaRun *run)
{
    for (size_t i = 0; i < run->timed.n; i++)
        destroy(&run->timed.at[i]);
    run->timed.n = 0;
    run->step = NULL;
}

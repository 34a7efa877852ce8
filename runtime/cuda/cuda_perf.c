/*
 * Device times of launches, for KILN_LOG=perf: an event before and one after the launches of a step, on their stream.
 *
 *   cuda_perf_step      what comes next is called `what` and moves `bytes`
 *   cuda_perf_begin     before launches are queued, cuda_perf_end after
 *   cuda_perf_tell      the end of the evaluation: waits, and logs each in order
 *
 * Only while the topic is on: without it nothing here is called, and an evaluation waits for nothing. Launches are then queued step by
 * step and never as a graph, whose parts have no times of their own. What cannot be timed is not told; why is told by the next call of the
 * driver that matters. All under the evaluation lock.
 */
#include "runtime/cuda/cuda.h"
#include "runtime/eval/launch.h"

typedef struct Timed {
    const char *what; /* of the program at hand */
    int64_t bytes;
    CuEvent before, after;
} Timed;

static BUF(Timed) timed;
static const char *step;
static int64_t step_bytes;

static void destroy(const Timed *t)
{
    if (t->before)
        cuda.event_destroy(t->before);
    if (t->after)
        cuda.event_destroy(t->after);
}

void cuda_perf_step(const char *what, int64_t bytes)
{
    step = what;
    step_bytes = bytes;
}

bool cuda_perf_begin(CudaStream *stream)
{
    Timed t = {.what = step, .bytes = step_bytes};
    if (!step || !BUF_RESERVE(timed, timed.n + 1))
        return false;
    if (cuda.event_create(&t.before, 0) == 0 && cuda.event_create(&t.after, 0) == 0 && cuda.event_record(t.before, stream->stream) == 0) {
        timed.at[timed.n++] = t;
        return true;
    }
    destroy(&t);
    return false;
}

void cuda_perf_end(CudaStream *stream)
{
    Timed *t = &timed.at[timed.n - 1];
    if (cuda.event_record(t->after, stream->stream) == 0)
        return;
    destroy(t);
    timed.n--;
}

void cuda_perf_tell(void)
{
    for (size_t i = 0; i < timed.n; i++) {
        const Timed *t = &timed.at[i];
        float ms;
        if (cuda.event_synchronize(t->after) == 0 && cuda.event_elapsed(&ms, t->before, t->after) == 0)
            log_launch(t->what, 1e-3 * (double)ms, t->bytes);
    }
    cuda_perf_drop();
}

void cuda_perf_drop(void)
{
    for (size_t i = 0; i < timed.n; i++)
        destroy(&timed.at[i]);
    timed.n = 0;
    step = NULL;
}

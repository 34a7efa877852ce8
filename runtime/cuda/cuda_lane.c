/*
 * Where another library queues work between a program's launches (runtime/comm/nccl.c): on the thread's own stream, or on one that all
 * threads have for it, which waits for what was launched so far. Who asks whether it is over does not wait; so a rank that does not come
 * is none that hangs.
 */
#include "runtime/cuda/cuda.h"

/* Made at the first use. */
static Status stream_of(CudaDevice *d, CuStream *kept, CuStream *out)
{
    CuResult result = 0;
    pthread_mutex_lock(&d->lock);
    if (!*kept)
        CUDA_WITH_ROOM(d, result, cuda.stream_create(kept, CU_NON_BLOCKING));
    *out = *kept;
    pthread_mutex_unlock(&d->lock);
    return cuda_check(d, result, "making a stream");
}

Status cuda_lane_streams(CudaDevice *d, CuStream *captures, CuStream *lane)
{
    TRY(stream_of(d, &d->captures, captures));
    return stream_of(d, &d->lane, lane);
}

static Status lane_of_its_own(CudaRun *run, CudaLane *lane)
{
    CudaDevice *d = run->device;
    TRY(stream_of(d, &d->lane, &lane->stream));
    TRY(cuda_check(d, cuda.event_record(run->stream->event, run->stream->stream), "recording an event"));
    return cuda_check(d, cuda.stream_wait_event(lane->stream, run->stream->event, 0), "waiting for another stream");
}

Status cuda_lane_open(CudaRun *run, bool aside, CudaLane *lane)
{
    CuResult result;
    *lane = (CudaLane){.device = run->device, .stream = run->stream->stream};
    TRY(cuda_run_flush(run));
    TRY(cuda_check(run->device, CUDA_WITH_ROOM(run->device, result, cuda.event_create(&lane->event, CU_NO_TIMING)), "making an event"));
    Status status = aside ? lane_of_its_own(run, lane) : ST_OK;
    if (status != ST_OK)
        cuda_lane_close(lane);
    run->queued++;
    return status;
}

Status cuda_lane_enter(const CudaLane *lane)
{
    CuContext current, context = atomic_load(&lane->device->context);
    if (cuda.context_get(&current) == 0 && current == context)
        return ST_OK;
    return cuda_check(lane->device, cuda.context_set(context), "making its context current");
}

Status cuda_lane_mark(const CudaLane *lane)
{
    return cuda_check(lane->device, cuda.event_record(lane->event, lane->stream), "recording an event");
}

Status cuda_lane_over(const CudaLane *lane, bool *over)
{
    TRY(cuda_lane_enter(lane));
    CuResult result = cuda.event_query(lane->event);
    *over = result != CU_NOT_READY;
    return *over ? cuda_check(lane->device, result, "a collective") : ST_OK;
}

void cuda_lane_close(const CudaLane *lane)
{
    if (cuda_lane_enter(lane) == ST_OK)
        cuda.event_destroy(lane->event);
}

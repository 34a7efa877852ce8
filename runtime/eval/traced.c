/* See traced.h. */
#include "runtime/eval/traced.h"
#include "cache/memory.h"
#include "runtime/api/stats.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/eval/background.h"
#include "runtime/eval/run.h"
#include "runtime/record/thread.h"

void traced_op(void)
{
    RtThread *thread = rt_thread();
    if (thread->n_traced++ == 0)
        thread->recording = timeline_now();
}

void traced_recorded(void)
{
    RtThread *thread = rt_thread();
    if (thread->n_traced)
        timeline_span(TL_RECORD, "record", thread->recording, TL_INT("ops", thread->n_traced));
    thread->n_traced = 0;
}

void traced_sync(const Evaluation *e, Status status)
{
    if (!e->traced)
        return;
    timeline_span(TL_SYNC, e->api, e->traced, TL_TEXT("file", e->loc.file), TL_INT("line", e->loc.line),
                  TL_TEXT("program", record_source_name(e->record.source)), TL_TEXT("failed", status == ST_OK ? NULL : fail_message()));
    timeline_counter("bytes", TL_INT("tensors", stat_get(STAT_LIVE)), TL_INT("most", stat_get(STAT_PEAK)),
                     TL_INT("kept for reuse", stat_get(STAT_POOLED)), TL_INT("programs", (int64_t)cache_use().bytes));
    timeline_counter("graphs in the queue", TL_INT("waiting", background_waiting()));
    timeline_flush();
}

void traced_lookup(const Call *call, int64_t began, const CacheHit *hit)
{
    timeline_span(TL_LOOKUP, "look-up", began, TL_TEXT("program", hit ? program_name(hit->program) : NULL),
                  TL_INT("nodes", (int64_t)call->nodes.n), TL_TEXT("found", hit ? "yes" : "no"),
                  TL_INT("guards", hit ? hit->program->guards.n : 0));
}

void traced_miss(const Evaluation *e, const Graph *g, const Call *call, const CacheMiss *miss)
{
    Str why;
    if (!timeline_on())
        return;
    str_init(&why, g->arena);
    explain_miss(g, call, miss, &why);
    timeline_mark(TL_MISS, kiln_miss_reason((int)miss->reason), TL_TEXT("file", e->loc.file), TL_INT("line", e->loc.line),
                  TL_INT("programs", miss->n_variants), TL_TEXT("why", why.text));
}

/* Small ones would fill the trace and are nothing that anybody looks for. */
void traced_results(Call *call)
{
    enum { MOST = 3, LEAST_BYTES = 64 << 10 };
    struct {
        const RtNode *node;
        int64_t bytes;
    } large[MOST + 1]; /* the largest first; one more for what falls out */
    int n = 0;
    for (size_t k = 0; k < call->outputs.n; k++) {
        const RtNode *node = call_output(call, k);
        int64_t bytes = node_elements(node) * (int64_t)dtype_bytes((DType)node->dtype);
        int at = n;
        if (bytes < LEAST_BYTES)
            continue;
        for (; at > 0 && large[at - 1].bytes < bytes; at--)
            large[at] = large[at - 1];
        large[at].node = node;
        large[at].bytes = bytes;
        n += n < MOST;
    }
    for (int i = 0; i < n; i++)
        timeline_mark(TL_RESULT, large[i].node->api ? large[i].node->api : "result", TL_TEXT("file", large[i].node->loc.file),
                      TL_INT("line", large[i].node->loc.line), TL_INT("bytes", large[i].bytes));
}

void traced_use(Program *program)
{
    if (!program->traced)
        return;
    timeline_arrow("first use", program->traced_lane, program->traced, timeline_now());
    program->traced = 0;
}

void traced_launch(const Evaluation *e, const Launched *l, int64_t began)
{
    const Work *w = &l->work;
    int64_t ns = timeline_now() - began;
    PerfLimit limit = perf_limit(l, 1);
    if (device_kind(l->device)->launcher->clocked) /* queued: the device's lane tells how long it ran */
        timeline_span(TL_LAUNCH, l->what, began, TL_TEXT("program", program_name(l->program)), TL_INT("bytes", l->bytes),
                      TL_INT("flops", (int64_t)w->flops), TL_INT("specials", (int64_t)w->specials), TL_TEXT("regime", limit.regime));
    else
        timeline_span(TL_LAUNCH, l->what, began, TL_TEXT("program", program_name(l->program)), TL_INT("bytes", l->bytes),
                      TL_INT("flops", (int64_t)w->flops), TL_INT("specials", (int64_t)w->specials), TL_INT("tasks", l->tasks),
                      TL_INT("threads", l->threads), TL_TEXT("regime", limit.regime),
                      TL_REAL("percent_of_limit", perf_percent(&limit, 1e-9 * (double)ns)), TL_REAL("GB/s", (double)l->bytes / (double)ns));
    timeline_arrow("launch", timeline_lane(), e->traced, began);
}

/* A call by the reference interpreter: with KILN_MODE=interp, and where compiling failed. */
#include "ir/base/timeline.h"
#include "ir/interp.h"
#include "jit/target.h"
#include "runtime/api/mark.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"

#include <string.h>

typedef struct InterpretJob {
    Evaluation *e;
    const Call *call;
} InterpretJob;

static size_t node_bytes(const RtNode *node) { return (size_t)node_elements(node) * dtype_bytes((DType)node->dtype); }

static Status interpret_in_arena(Arena *arena, void *user)
{
    InterpretJob *job = user;
    const Call *call = job->call;
    Result *results = job->e->results.at;
    Graph *g = call_graph(call, arena);
    log_graph(g, call);
    TRY(marks_apply(call, g, NULL));
    const void **in = ARENA_ARRAY(arena, const void *, call->inputs.n + 1);
    void **out = ARENA_ARRAY(arena, void *, call->outputs.n + 1);
    bool here = !device_kind(call->device)->apart; /* else operands come over and results go back */
    Status status = ST_OK;
    for (size_t k = 0; k < call->inputs.n && status == ST_OK; k++) {
        const RtNode *node = call->nodes.at[call->inputs.at[k]];
        Storage *storage = atomic_load(&node->storage);
        const char *from = node->strided ? storage->data : node->data;
        size_t bytes = node->strided ? storage->bytes : node_bytes(node);
        char *copy = here ? NULL : arena_alloc(arena, bytes + 1);
        in[k] = here ? node->data : copy + (node->data - from);
        if (!here)
            status = device_read(storage, from, copy, bytes);
    }

    for (size_t k = 0; k < call->outputs.n && status == ST_OK; k++) {
        size_t bytes = node_bytes(call_output(call, k));
        status = storage_new_on(call->device, bytes, &results[k].storage);
        if (status == ST_OK)
            results[k].data = results[k].storage->data;
        out[k] = here ? results[k].data : arena_alloc(arena, bytes + 1);
    }
    const Node *bad = NULL;
    if (status == ST_OK)
        status =
            interp_run(g, INTERP_NATIVE, options_math(&job->e->options), here ? target_order(&job->e->options) : ORDER_CUDA, in, out, &bad);
    if (status == ST_INDEX && bad)
        status = call_index_failed(call, bad->origin);
    for (size_t k = 0; k < call->outputs.n && status == ST_OK && !here; k++)
        status = device_write(results[k].storage, results[k].data, out[k], node_bytes(call_output(call, k)));
    return status;
}

Status interpret(Evaluation *e, const Call *call)
{
    InterpretJob job = {e, call};
    if (!BUF_RESERVE(e->results, call->outputs.n))
        return ST_OUT_OF_MEMORY;
    memset(e->results.at, 0, sizeof *e->results.at * call->outputs.n);
    int64_t began = timeline_begin();
    Status status = with_arena(interpret_in_arena, &job);
    if (began)
        timeline_span(TL_INTERP, "interpret", began, TL_INT("nodes", (int64_t)call->nodes.n));
    for (size_t k = 0; k < call->outputs.n && status != ST_OK; k++)
        storage_release(e->results.at[k].storage);
    return status;
}

/*
 * CUDA graphs: launches that came twice in the same way are built into a graph, and from then on
 * the driver launches them as one.
 *
 *   the same way   the same functions in the same order on the same stream. Grids, shared memory
 *                  and argument blocks may differ from run to run: before the graph is launched,
 *                  the nodes whose numbers differ from those set last get the new ones.
 *   what is in it  kernels alone, each after the one before it. Copies and fills that they need
 *                  were queued on the stream before.
 *   bounds         at most SEQUENCES are remembered; at most GRAPHS with at most NODES in all are
 *                  built. What was not used for longest goes, but no graph that is still in use
 *                  makes room for another: with more than fit in use, the others are launched
 *                  plainly, which costs less than building graphs again and again.
 *
 * A graph that the driver refuses, at whatever step, is given up: its launches are queued plainly,
 * and that is told once. A failure of cuGraphLaunch means that nothing of it was queued.
 *
 * An instance never runs beside itself (the driver would make one launch wait for the other), since
 * each belongs to one stream. It goes before the module of any of its functions does: then, in any
 * thread, hence the lock.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/api/stats.h"
#include "runtime/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

enum {
    SEQUENCES = 256,
    GRAPHS = 64,
    NODES = 16384,
    PLAIN_RUNS = 2,
    IDLE = 4 * GRAPHS /* batches */
};

typedef struct CudaGraph {
    CudaStream *stream;
    uint64_t hash, used; /* used: CudaGraphs.clock */
    uint32_t n, runs;
    size_t n_bytes;
    bool refused;
    CuGraph graph;
    CuGraphExec exec;    /* NULL: not built */
    CuGraphNode *node;   /* of each launch */
    char *bytes;         /* argument blocks as they were set last */
    CudaLaunch launch[]; /* launches as they were set last */
} CudaGraph;

struct CudaGraphs {
    CudaGraph *at[SEQUENCES];
    uint32_t n, n_built;
    size_t n_nodes; /* of those built */
    uint64_t clock; /* batches so far */
};

/* --- sequences ----------------------------------------------------------------------------- */

static uint64_t hash_of(const CudaBatch *batch, const CudaStream *stream)
{
    uint64_t hash = (uintptr_t)stream;
    for (size_t i = 0; i < batch->launch.n; i++) {
        hash = (hash ^ (uintptr_t)batch->launch.at[i].function) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

static bool same_way(const CudaGraph *g, const CudaBatch *batch)
{
    if (g->n != batch->launch.n || g->n_bytes != batch->bytes.n)
        return false;
    for (uint32_t i = 0; i < g->n; i++) {
        const CudaLaunch *a = &g->launch[i], *b = &batch->launch.at[i];
        if (a->function != b->function || a->block != b->block || a->block_bytes != b->block_bytes)
            return false;
    }
    return true;
}

/* Gives the instance back. The stream is done with it then. */
static void dismantle(CudaGraphs *all, CudaGraph *g)
{
    if (g->exec) {
        cuda.stream_synchronize(g->stream->stream);
        cuda.graph_exec_destroy(g->exec);
        all->n_built--;
        all->n_nodes -= g->n;
    }
    if (g->graph)
        cuda.graph_destroy(g->graph);
    os_free(g->node);
    g->exec = NULL;
    g->graph = NULL;
    g->node = NULL;
    g->runs = 0;
}

static void forget(CudaGraphs *all, uint32_t i)
{
    CudaGraph *g = all->at[i];
    dismantle(all, g);
    os_free(g->bytes);
    os_free(g);
    all->at[i] = all->at[--all->n];
}

static uint32_t oldest(const CudaGraphs *all, bool built)
{
    uint32_t found = all->n;
    for (uint32_t i = 0; i < all->n; i++)
        if ((!built || all->at[i]->exec) && (found == all->n || all->at[i]->used < all->at[found]->used))
            found = i;
    return found;
}

static CudaGraph *remember(CudaGraphs *all, const CudaBatch *batch, CudaStream *stream, uint64_t hash)
{
    size_t n = batch->launch.n;
    CudaGraph *g = os_calloc(1, sizeof *g + sizeof *g->launch * n);
    char *bytes = os_alloc(batch->bytes.n + 1);
    if (!g || !bytes) {
        os_free(g);
        os_free(bytes);
        return NULL;
    }
    g->stream = stream;
    g->hash = hash;
    g->n = (uint32_t)n;
    g->bytes = bytes;
    g->n_bytes = batch->bytes.n;
    memcpy(g->launch, batch->launch.at, sizeof *g->launch * n);
    if (all->n == SEQUENCES)
        forget(all, oldest(all, false));
    all->at[all->n++] = g;
    return g;
}

/* What is known of these launches; NULL: out of memory. */
static CudaGraph *find(CudaGraphs *all, const CudaBatch *batch, CudaStream *stream)
{
    uint64_t hash = hash_of(batch, stream);
    CudaGraph *g = NULL;
    for (uint32_t i = 0; i < all->n && !g; i++)
        if (all->at[i]->hash == hash && all->at[i]->stream == stream && same_way(all->at[i], batch))
            g = all->at[i];
    if (!g)
        g = remember(all, batch, stream, hash);
    if (g)
        g->used = ++all->clock;
    return g;
}

/* Room for one more instance of n nodes. */
static bool make_room(CudaGraphs *all, size_t n)
{
    while (all->n_built == GRAPHS || all->n_nodes + n > NODES) {
        uint32_t i = oldest(all, true);
        if (i == all->n || all->clock - all->at[i]->used < IDLE)
            return false;
        forget(all, i);
    }
    return true;
}

/* --- instances ----------------------------------------------------------------------------- */

static CuKernelNode node_of(const CudaLaunch *launch, void **parameters)
{
    return (CuKernelNode){.function = launch->function,
                          .grid_x = launch->blocks,
                          .grid_y = 1,
                          .grid_z = 1,
                          .block_x = launch->threads,
                          .block_y = 1,
                          .block_z = 1,
                          .shared_bytes = launch->shared,
                          .parameters = parameters};
}

/* What was set is what the batch says. */
static void note(CudaGraph *g, const CudaBatch *batch)
{
    memcpy(g->launch, batch->launch.at, sizeof *g->launch * g->n);
    memcpy(g->bytes, batch->bytes.at, g->n_bytes);
}

static CuResult build(CudaGraphs *all, CudaGraph *g, const CudaBatch *batch)
{
    g->node = os_calloc(g->n, sizeof *g->node);
    CuResult result = g->node ? cuda.graph_create(&g->graph, 0) : CU_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < g->n && result == 0; i++) {
        void *parameters[] = {batch->bytes.at + batch->launch.at[i].block};
        CuKernelNode node = node_of(&batch->launch.at[i], parameters);
        result = cuda.graph_add_kernel(&g->node[i], g->graph, i ? &g->node[i - 1] : NULL, i ? 1 : 0, &node);
    }
    if (result == 0)
        result = cuda.graph_instantiate(&g->exec, g->graph, 0);
    if (result != 0) {
        g->exec = NULL;
        return result;
    }
    all->n_built++;
    all->n_nodes += g->n;
    note(g, batch);
    if (log_on(LOG_KERNELS))
        log_line(LOG_KERNELS, "cuda:%d: %u launches are a graph from now on, from %s to %s", g->stream->device->ordinal, g->n,
                 batch->launch.at[0].name, batch->launch.at[g->n - 1].name);
    return 0;
}

static bool same_numbers(const CudaGraph *g, const CudaBatch *batch, uint32_t i)
{
    const CudaLaunch *a = &g->launch[i], *b = &batch->launch.at[i];
    return a->blocks == b->blocks && a->threads == b->threads && a->shared == b->shared &&
           memcmp(g->bytes + a->block, batch->bytes.at + b->block, b->block_bytes) == 0;
}

static CuResult update(CudaGraph *g, const CudaBatch *batch)
{
    for (uint32_t i = 0; i < g->n; i++) {
        if (same_numbers(g, batch, i))
            continue;
        void *parameters[] = {batch->bytes.at + batch->launch.at[i].block};
        CuKernelNode node = node_of(&batch->launch.at[i], parameters);
        CuResult result = cuda.graph_exec_kernel(g->exec, g->node[i], &node);
        if (result != 0)
            return result;
    }
    note(g, batch);
    return 0;
}

/* --- entries ------------------------------------------------------------------------------- */

static bool wanted(const CudaBatch *batch)
{
    return batch->launch.n >= 2 && batch->launch.n <= NODES && option_int(OPT_CUDA_GRAPHS) && !option_int(OPT_SYNC) && cuda.graph_create &&
           cuda.graph_destroy && cuda.graph_add_kernel && cuda.graph_instantiate && cuda.graph_exec_kernel && cuda.graph_exec_destroy &&
           cuda.graph_launch;
}

static Status run(CudaDevice *d, CudaGraphs *all, CudaGraph *g, const CudaBatch *batch, bool *done)
{
    CuResult result = g->exec ? update(g, batch) : build(all, g, batch);
    if (result == 0)
        result = cuda.graph_launch(g->exec, g->stream->stream);
    *done = result == 0;
    if (*done) {
        stat_add(STAT_GRAPHS, 1);
        return ST_OK;
    }
    char what[200];
    snprintf(what, sizeof what, "a graph of %u launches, from %s to %s", g->n, batch->launch.at[0].name, batch->launch.at[g->n - 1].name);
    Status status = cuda_check(d, result, what);
    if (atomic_load(&d->broken))
        return status;
    log_warn_once("cuda graph", "%s; its kernels are launched one by one (KILN_CUDA_GRAPHS=off does so always)", fail_message());
    dismantle(all, g);
    g->refused = true;
    return ST_OK;
}

Status cuda_graph_run(CudaDevice *d, CudaStream *stream, const CudaBatch *batch, bool *done)
{
    *done = false;
    if (!wanted(batch))
        return ST_OK;
    Status status = ST_OK;
    pthread_mutex_lock(&d->graphs_lock);
    if (!d->graphs)
        d->graphs = os_calloc(1, sizeof *d->graphs);
    CudaGraph *g = d->graphs ? find(d->graphs, batch, stream) : NULL;
    if (g && !g->refused && g->runs++ >= PLAIN_RUNS && (g->exec || make_room(d->graphs, g->n)))
        status = run(d, d->graphs, g, batch, done);
    pthread_mutex_unlock(&d->graphs_lock);
    return status;
}

void cuda_graph_forget(CudaDevice *d, const CuFunction *functions, uint32_t n)
{
    pthread_mutex_lock(&d->graphs_lock);
    CudaGraphs *all = d->graphs;
    for (uint32_t i = all ? all->n : 0; i-- > 0;) {
        bool uses = false;
        for (uint32_t k = 0; k < all->at[i]->n && !uses; k++)
            for (uint32_t f = 0; f < n; f++)
                uses |= all->at[i]->launch[k].function == functions[f];
        if (uses)
            forget(all, i);
    }
    pthread_mutex_unlock(&d->graphs_lock);
}

/*
 * CUDA graphs: launches that came twice in the same way are built into a graph, and from then on
 * the driver launches them as one.
 *
 *   the same way   the same functions in the same order on the same stream. Grids, shared memory
 *                  and argument blocks may differ from run to run: before the graph is launched,
 *                  the nodes whose numbers differ from those set last get the new ones.
 *   what is in it  kernels, each after the one before it, and loops and branches of kernels, whose
 *                  conditions kernels set (runtime/cuda/cuda_loop.c). Copies and fills that they
 *                  need were queued on the stream before. And calls of another library (NCCL), captured
 *                  with the kernels around them on a stream of nobody else's: those aside fork from it
 *                  and are joined, so kernels between run beside them. What the library captured cannot
 *                  be changed: a call with other buffers or sizes is another way.
 *   bounds         at most SEQUENCES are remembered; at most GRAPHS with at most NODES in all are
 *                  built. What was not used for longest goes, but no graph that is still in use
 *                  makes room for another: with more than fit in use, the others are launched
 *                  plainly, which costs less than building graphs again and again.
 *
 * A graph that the driver refuses, at whatever step, is given up: its launches are queued plainly
 * (the host runs its loops and branches), and that is told once. Launches with conditions are a
 * graph from the first time on. A failure of cuGraphLaunch means that nothing of it was queued.
 *
 * An instance never runs beside itself (the driver would make one launch wait for the other), since
 * each belongs to one stream, and so to one thread. It goes before the module of any of its functions
 * does: then, in any thread, hence the lock of the device. That is held for finding a graph, not while
 * the driver builds, updates or launches it: `busy` says that its thread does, and nobody else touches
 * it meanwhile. Its kernels do not go then: they are held by the program that runs.
 */
#include "ir/base/hash.h"
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
    IDLE = 4 * GRAPHS, /* batches */
    LEVELS = 32        /* of loops and branches inside of others */
};

typedef struct CudaGraph {
    CudaStream *stream;
    uint64_t hash, used; /* used: CudaGraphs.clock */
    uint32_t n, runs, n_conditions, n_calls, disagreed;
    uint64_t number; /* by which other ranks know its calls; 0: they are not captured */
    size_t n_bytes;
    bool refused;
    bool busy;    /* its thread is at work on it, without the lock */
    bool counted; /* among those built */
    CuGraph graph;
    CuGraphExec exec;    /* NULL: not built */
    CuGraphNode *node;   /* of each launch */
    CuCondition *handle; /* of each condition; 0: not made yet */
    char *bytes;         /* argument blocks as they were set last */
    CudaLaunch launch[]; /* launches as they were set last */
} CudaGraph;

struct CudaGraphs {
    CudaGraph *at[SEQUENCES];
    uint32_t n, n_built; /* n_built: with those that are being built */
    size_t n_nodes;      /* of those */
    uint64_t clock;      /* batches so far */
};

/* --- sequences ----------------------------------------------------------------------------- */

/* It cannot be updated. */
static bool is_fixed(const CudaLaunch *launch) { return launch->kind == LAUNCH_CALL || launch->kind == LAUNCH_ZERO; }

static uint64_t hash_of(const CudaBatch *batch, const CudaStream *stream)
{
    uint64_t hash = (uintptr_t)stream;
    for (size_t i = 0; i < batch->launch.n; i++) {
        hash = (hash ^ (uintptr_t)batch->launch.at[i].function ^ (uint64_t)batch->launch.at[i].kind) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
        if (is_fixed(&batch->launch.at[i]))
            hash ^= hash128(batch->bytes.at + batch->launch.at[i].block, batch->launch.at[i].block_bytes).lo;
    }
    return hash;
}

static bool same_way(const CudaGraph *g, const CudaBatch *batch)
{
    if (g->n_calls != batch->n_calls || g->n != batch->launch.n || g->n_bytes != batch->bytes.n || g->n_conditions != batch->n_conditions)
        return false;
    for (uint32_t i = 0; i < g->n; i++) {
        const CudaLaunch *a = &g->launch[i], *b = &batch->launch.at[i];
        if (a->kind != b->kind || a->function != b->function || a->block != b->block || a->block_bytes != b->block_bytes)
            return false;
        if (a->aside != b->aside || memcmp(a->condition, b->condition, sizeof a->condition) != 0)
            return false;
        if (is_fixed(a) && memcmp(g->bytes + a->block, batch->bytes.at + b->block, b->block_bytes) != 0)
            return false;
    }
    return true;
}

/* Under the lock. */
static void count_built(CudaGraphs *all, CudaGraph *g, bool built)
{
    if (g->counted == built)
        return;
    g->counted = built;
    all->n_built += built ? 1 : -1u;
    all->n_nodes += built ? g->n : -(size_t)g->n;
}

/* Gives the instance back; the driver keeps what of it is under way. */
static void abandon(CudaGraph *g)
{
    if (g->exec)
        cuda.graph_exec_destroy(g->exec);
    if (g->graph)
        cuda.graph_destroy(g->graph);
    os_free(g->node);
    os_free(g->handle);
    g->handle = NULL;
    g->exec = NULL;
    g->graph = NULL;
    g->node = NULL;
    g->runs = 0;
    g->number = 0;
}

/* The stream is done with it then. */
static void dismantle(CudaGraph *g)
{
    if (g->exec)
        cuda.stream_synchronize(g->stream->stream);
    abandon(g);
}

static void forget(CudaGraphs *all, uint32_t i)
{
    CudaGraph *g = all->at[i];
    count_built(all, g, false);
    dismantle(g);
    os_free(g->bytes);
    os_free(g);
    all->at[i] = all->at[--all->n];
}

/* Of those that nobody is at work on; all->n: there is none. */
static uint32_t oldest(const CudaGraphs *all, bool built)
{
    uint32_t found = all->n;
    for (uint32_t i = 0; i < all->n; i++)
        if (!all->at[i]->busy && (!built || all->at[i]->counted) && (found == all->n || all->at[i]->used < all->at[found]->used))
            found = i;
    return found;
}

static CudaGraph *remember(CudaGraphs *all, const CudaBatch *batch, CudaStream *stream, uint64_t hash)
{
    size_t n = batch->launch.n;
    uint32_t last = oldest(all, false);
    if (all->n == SEQUENCES && last == all->n)
        return NULL;
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
    g->n_conditions = batch->n_conditions;
    g->n_calls = batch->n_calls;
    memcpy(g->bytes, batch->bytes.at, batch->bytes.n);
    memcpy(g->launch, batch->launch.at, sizeof *g->launch * n);
    if (all->n == SEQUENCES)
        forget(all, last);
    all->at[all->n++] = g;
    return g;
}

/* What is known of these launches; NULL: there is no room. */
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

/* What is being built: the graph itself, and in it the bodies of the loops and branches around the next node. */
typedef struct Level {
    CuGraph graph;
    CuGraphNode last; /* NULL: it is empty */
} Level;

static CuResult add_kernel(CudaGraph *g, CudaBatch *batch, uint32_t i, Level *level)
{
    const CudaLaunch *launch = &batch->launch.at[i];
    char *block = batch->bytes.at + launch->block;
    for (uint32_t k = 0; k < CONDITIONS && launch->condition[k]; k++) { /* its node will be in this graph */
        CuCondition *handle = &g->handle[launch->condition[k] - 1];
        CuContext context = atomic_load(&g->stream->device->context);
        CuResult result = *handle ? 0 : cuda.graph_condition(handle, level->graph, context, 0, CU_INITIAL_AT_LAUNCH);
        if (result != 0)
            return result;
        memcpy(block + k * sizeof *handle, handle, sizeof *handle);
    }
    void *parameters[] = {block};
    CuKernelNode node = node_of(launch, parameters);
    return cuda.graph_add_kernel(&g->node[i], level->graph, level->last ? &level->last : NULL, level->last ? 1 : 0, &node);
}

static CuResult add_conditional(CudaGraph *g, const CudaLaunch *launch, uint32_t i, const Level *level, Level *inside)
{
    CuNode node = {.type = CU_NODE_CONDITIONAL};
    node.conditional.handle = g->handle[launch->condition[0] - 1];
    node.conditional.kind = launch->kind == LAUNCH_WHILE ? CU_NODE_WHILE : CU_NODE_IF;
    node.conditional.size = 1;
    node.conditional.context = atomic_load(&g->stream->device->context);
    CuResult result = cuda.graph_add_node(&g->node[i], level->graph, level->last ? &level->last : NULL, NULL, level->last ? 1 : 0, &node);
    if (result == 0)
        *inside = (Level){node.conditional.bodies[0], NULL};
    return result;
}

static CuResult add_nodes(CudaGraph *g, CudaBatch *batch)
{
    Level level[LEVELS] = {{g->graph, NULL}};
    uint32_t depth = 0;
    CuResult result = 0;
    for (uint32_t i = 0; i < g->n && result == 0; i++) {
        const CudaLaunch *launch = &batch->launch.at[i];
        switch (launch->kind) {
        case LAUNCH_KERNEL:
            result = add_kernel(g, batch, i, &level[depth]);
            level[depth].last = g->node[i];
            break;
        case LAUNCH_WHILE:
        case LAUNCH_IF:
            result = depth + 1 < LEVELS ? add_conditional(g, launch, i, &level[depth], &level[depth + 1]) : CU_OUT_OF_MEMORY;
            level[depth++].last = g->node[i];
            break;
        case LAUNCH_END: depth--; break;
        case LAUNCH_CALL:
        case LAUNCH_ZERO:
        case LAUNCH_JOIN: break; /* captured */
        }
    }
    return result;
}

static CuResult build(CudaGraph *g, CudaBatch *batch)
{
    g->node = os_calloc(g->n, sizeof *g->node);
    g->handle = os_calloc(g->n_conditions + 1, sizeof *g->handle);
    CuResult result = g->node && g->handle ? cuda.graph_create(&g->graph, 0) : CU_OUT_OF_MEMORY;
    if (result == 0)
        result = add_nodes(g, batch);
    if (result == 0)
        result = cuda.graph_instantiate(&g->exec, g->graph, 0);
    if (result != 0) {
        g->exec = NULL;
        return result;
    }
    note(g, batch);
    if (log_on(LOG_KERNELS))
        log_line(LOG_KERNELS, "cuda:%d: %u launches are a graph from now on, from %s to %s%s", g->stream->device->ordinal, g->n,
                 batch->launch.at[0].name, batch->launch.at[g->n - 1].name,
                 g->n_conditions ? ", with the loops and branches between them" : "");
    return 0;
}

/* --- calls of another library ------------------------------------------------------------------ */

typedef struct Capture {
    CudaRun *run;
    CuStream stream, lane;
    CuEvent fork, *over; /* over: of each call aside */
    uint32_t n_aside, n_joined;
    CudaCallsQueue *queue;
    void *user;
} Capture;

/* The number of the node that the kernel became. */
static CuResult capture_kernel(const Capture *c, CudaGraph *g, uint32_t i)
{
    const CudaLaunch *l = &c->run->batch.launch.at[i];
    void *parameters[] = {c->run->batch.bytes.at + l->block};
    const CuGraphNode *after = NULL;
    const CuEdgeData *edges;
    size_t n = 0;
    CuCaptureStatus status;
    CuResult result = cuda.launch(l->function, l->blocks, 1, 1, l->threads, 1, 1, l->shared, c->stream, parameters, NULL);
    if (result == 0)
        result = cuda.capture_info(c->stream, &status, NULL, NULL, &after, &edges, &n);
    if (result == 0 && n == 1)
        g->node[i] = after[0];
    return result ? result : n == 1 ? 0 : CU_NOT_SUPPORTED;
}

static CuResult capture_zero(const Capture *c, uint32_t i)
{
    CudaZero zero;
    memcpy(&zero, c->run->batch.bytes.at + c->run->batch.launch.at[i].block, sizeof zero);
    return cuda.fill_bytes((CuPointer)(uintptr_t)zero.to, 0, zero.bytes, c->stream);
}

static CuResult join(Capture *c) { return cuda.stream_wait_event(c->stream, c->over[c->n_joined++], 0); }

/* *failed: what the library says. */
static CuResult capture_call(Capture *c, uint32_t i, Status *failed)
{
    const bool aside = c->run->batch.launch.at[i].aside;
    const CudaLane lane = {.device = c->run->device, .stream = aside ? c->lane : c->stream};
    CuResult result = aside ? cuda.event_record(c->fork, c->stream) : 0;
    if (result == 0 && aside)
        result = cuda.stream_wait_event(c->lane, c->fork, 0);
    if (result == 0)
        *failed = c->queue(c->user, i, &lane);
    if (result == 0 && *failed == ST_OK && aside)
        result = cuda.event_record(c->over[c->n_aside++], c->lane);
    return result;
}

static CuResult capture_all(Capture *c, CudaGraph *g, Status *failed)
{
    CuResult result = cuda.capture_begin(c->stream, CU_CAPTURE_THREAD), end;
    if (result != 0)
        return result;
    for (uint32_t i = 0; i < g->n && result == 0 && *failed == ST_OK; i++)
        switch (g->launch[i].kind) {
        case LAUNCH_KERNEL: result = capture_kernel(c, g, i); break;
        case LAUNCH_ZERO: result = capture_zero(c, i); break;
        case LAUNCH_CALL: result = capture_call(c, i, failed); break;
        case LAUNCH_JOIN: result = join(c); break;
        case LAUNCH_WHILE:
        case LAUNCH_IF:
        case LAUNCH_END: result = CU_NOT_SUPPORTED; break;
        }
    while (result == 0 && c->n_joined < c->n_aside)
        result = join(c);
    end = cuda.capture_end(c->stream, &g->graph);
    return result ? result : end;
}

static Status events_new(CudaRun *run, const CudaGraph *g, Capture *c)
{
    CuResult result = cuda.event_create(&c->fork, CU_NO_TIMING);
    if (!(c->over = os_calloc(g->n, sizeof *c->over)))
        return fail(ST_OUT_OF_MEMORY, "no memory for a graph");
    for (uint32_t i = 0, n = 0; i < g->n && result == 0; i++)
        if (g->launch[i].aside)
            result = cuda.event_create(&c->over[n++], CU_NO_TIMING);
    return cuda_check(run->device, result, "making an event");
}

static void events_free(Capture *c, uint32_t n)
{
    for (uint32_t k = 0; k < n && c->over; k++)
        if (c->over[k])
            cuda.event_destroy(c->over[k]);
    if (c->fork)
        cuda.event_destroy(c->fork);
    os_free(c->over);
}

static Status capture(CudaRun *run, CudaGraph *g, Capture *c)
{
    Status failed = ST_OK;
    if (!(g->node = os_calloc(g->n, sizeof *g->node)))
        return fail(ST_OUT_OF_MEMORY, "no memory for a graph");
    TRY(events_new(run, g, c));
    TRY(cuda_lane_streams(run->device, &c->stream, &c->lane));
    CuResult result = capture_all(c, g, &failed);
    if (failed != ST_OK)
        return failed;
    if (result == 0)
        result = cuda.graph_instantiate(&g->exec, g->graph, 0);
    if (result != 0)
        g->exec = NULL;
    return cuda_check(run->device, result, "a graph with collectives");
}

static bool same_numbers(const CudaGraph *g, const CudaBatch *batch, uint32_t i)
{
    const CudaLaunch *a = &g->launch[i], *b = &batch->launch.at[i];
    return a->blocks == b->blocks && a->threads == b->threads && a->shared == b->shared &&
           memcmp(g->bytes + a->block, batch->bytes.at + b->block, b->block_bytes) == 0;
}

/* The instance's handles are those of the batch, too. */
static void set_handles(const CudaGraph *g, CudaBatch *batch)
{
    for (uint32_t i = 0; i < g->n && g->n_conditions; i++) {
        const CudaLaunch *launch = &batch->launch.at[i];
        for (uint32_t k = 0; k < CONDITIONS && launch->kind == LAUNCH_KERNEL && launch->condition[k]; k++)
            memcpy(batch->bytes.at + launch->block + k * sizeof *g->handle, &g->handle[launch->condition[k] - 1], sizeof *g->handle);
    }
}

static CuResult update(CudaGraph *g, CudaBatch *batch)
{
    set_handles(g, batch);
    for (uint32_t i = 0; i < g->n; i++) {
        if (batch->launch.at[i].kind != LAUNCH_KERNEL || same_numbers(g, batch, i))
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

bool cuda_graph_wanted(void)
{
    return option_int(OPT_CUDA_GRAPHS) && !option_int(OPT_SYNC) && cuda.graph_create && cuda.graph_destroy && cuda.graph_add_kernel &&
           cuda.graph_instantiate && cuda.graph_exec_kernel && cuda.graph_exec_destroy && cuda.graph_launch;
}

static Status run(CudaDevice *d, CudaGraph *g, CudaBatch *batch, bool *done)
{
    bool updated = g->exec != NULL;
    CuResult result = updated ? update(g, batch) : build(g, batch);
    if (result != 0 && updated && g->n_conditions) { /* of bodies, a driver may not update nodes */
        dismantle(g);
        result = build(g, batch);
    }
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
    log_warn_once("cuda graph", "%s; %s (KILN_CUDA_GRAPHS=off does so always)", fail_message(),
                  g->n_conditions ? "the host runs its loops and branches" : "its kernels are launched one by one");
    dismantle(g);
    g->refused = true;
    return ST_OK;
}

/* The graph that the batch is to be, busy from now on and counted; NULL: it is to be launched plainly. */
static CudaGraph *take(CudaDevice *d, const CudaBatch *batch, CudaStream *stream)
{
    pthread_mutex_lock(&d->graphs_lock);
    if (!d->graphs)
        d->graphs = os_calloc(1, sizeof *d->graphs);
    CudaGraph *g = d->graphs ? find(d->graphs, batch, stream) : NULL;
    if (g && !g->refused && (g->runs++ >= PLAIN_RUNS || g->n_conditions) && (g->counted || make_room(d->graphs, g->n))) {
        g->busy = true;
        count_built(d->graphs, g, true);
    } else {
        g = NULL;
    }
    pthread_mutex_unlock(&d->graphs_lock);
    return g;
}

Status cuda_graph_run(CudaDevice *d, CudaStream *stream, CudaBatch *batch, bool *done)
{
    *done = false;
    if (batch->launch.n < 2 || batch->launch.n > NODES || !cuda_graph_wanted())
        return ST_OK;
    CudaGraph *g = take(d, batch, stream);
    if (!g)
        return ST_OK;
    Status status = run(d, g, batch, done);
    pthread_mutex_lock(&d->graphs_lock);
    count_built(d->graphs, g, g->exec != NULL);
    g->busy = false;
    pthread_mutex_unlock(&d->graphs_lock);
    return status;
}

const char *cuda_calls_objection(void)
{
    if (!cuda_graph_wanted())
        return "there are no CUDA graphs (KILN_CUDA_GRAPHS=off, KILN_SYNC=1, or an old driver)";
    return cuda.capture_begin && cuda.capture_end && cuda.capture_info ? NULL : "the driver is older than CUDA 12.3";
}

/* Up to the last call or join. */
static CudaBatch calls_of(const CudaRun *run)
{
    CudaBatch batch = run->batch;
    while (batch.launch.n && batch.launch.at[batch.launch.n - 1].kind == LAUNCH_KERNEL)
        batch.launch.n--;
    return batch;
}

CudaGraph *cuda_calls_take(CudaRun *run, uint64_t *number, const char **why)
{
    const CudaBatch batch = calls_of(run);
    *number = 0;
    *why = "there are too few or too many launches";
    if (batch.launch.n < 2 || batch.launch.n > NODES)
        return NULL;
    *why = "it did not come often enough with these buffers, the device has no room for one more graph, or refused this one";
    CudaGraph *g = take(run->device, &batch, run->stream);
    if (g)
        *number = g->number;
    return g;
}

void cuda_calls_give(CudaRun *run, CudaGraph *g)
{
    CudaDevice *d = run->device;
    pthread_mutex_lock(&d->graphs_lock);
    count_built(d->graphs, g, g->exec != NULL);
    g->busy = false;
    pthread_mutex_unlock(&d->graphs_lock);
}

Status cuda_calls_capture(CudaRun *run, CudaGraph *g, uint64_t number, CudaCallsQueue *queue, void *user)
{
    Capture c = {.run = run, .queue = queue, .user = user};
    CudaBatch batch = calls_of(run);
    Status status = capture(run, g, &c);
    events_free(&c, g->n);
    if (status != ST_OK) {
        dismantle(g);
        g->refused = true;
        return status;
    }
    note(g, &batch);
    g->number = number;
    return ST_OK;
}

Status cuda_calls_launch(CudaRun *run, CudaGraph *g, size_t *behind)
{
    CudaBatch batch = calls_of(run);
    CuResult result = update(g, &batch);
    if (result == 0)
        result = cuda.graph_launch(g->exec, run->stream->stream);
    TRY(cuda_check(run->device, result, "a graph with collectives"));
    *behind = batch.launch.n;
    run->queued += g->n;
    cuda_batch_ran(&batch);
    g->disagreed = 0;
    stat_add(STAT_GRAPHS, 1);
    return ST_OK;
}

enum { DISAGREEMENTS = 16 };

void cuda_calls_disagree(CudaRun *run, CudaGraph *g)
{
    (void)run;
    dismantle(g);
    g->runs = PLAIN_RUNS;
    g->refused |= ++g->disagreed > DISAGREEMENTS;
}

void cuda_calls_abandon(CudaDevice *d)
{
    pthread_mutex_lock(&d->graphs_lock);
    for (uint32_t i = 0; d->graphs && i < d->graphs->n; i++) {
        CudaGraph *g = d->graphs->at[i];
        if (!g->n_calls)
            continue;
        count_built(d->graphs, g, false);
        abandon(g);
        g->refused = true;
    }
    pthread_mutex_unlock(&d->graphs_lock);
}

void cuda_graph_forget(CudaDevice *d, const CuFunction *functions, uint32_t n)
{
    pthread_mutex_lock(&d->graphs_lock);
    CudaGraphs *all = d->graphs;
    for (uint32_t i = all ? all->n : 0; i-- > 0;) {
        bool uses = false;
        for (uint32_t k = 0; !all->at[i]->busy && k < all->at[i]->n && !uses; k++)
            for (uint32_t f = 0; f < n; f++)
                uses |= all->at[i]->launch[k].function == functions[f];
        if (uses)
            forget(all, i);
    }
    pthread_mutex_unlock(&d->graphs_lock);
}

// Graphs: commands that a stream captured or that were added one by one, and instances of them that run again and again.
//
// A captured node depends on the one captured before it. The nodes of an instance run one after another; of those whose
// dependencies are done the one added last runs first, so a missing dependency shows. Parameters of an instance's nodes may
// change while their graph and they live; their number and kind may not, nor the context of a kernel.
#include "tests/cuda_driver/driver.h"

#include <stdlib.h>
#include <string.h>

typedef struct GraphNode {
    Object object;
    Command command;
    struct Graph *graph;
    size_t index;
    size_t *after; // indices of nodes that come before it
    size_t after_count;
} GraphNode;

typedef struct Graph {
    Object object;
    Context *context;
    GraphNode **nodes;
    size_t count, room;
} Graph;

typedef struct GraphExec {
    Object object;
    Context *context;
    Command *commands;
    uint64_t *node; // serial numbers of the nodes they were made from
    size_t count;
    uint64_t last_stream; // serial number of the stream it was launched in last
} GraphExec;

CUresult graph_create(CUgraph *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    Graph *g = object_new(OBJECT_GRAPH, sizeof *g);
    if (!g)
        return CUDA_ERROR_OUT_OF_MEMORY;
    g->context = context_current();
    *out = g;
    return CUDA_SUCCESS;
}

// Adds a node that comes after those of the given indices; copies the command.
static CUresult add_node(Graph *g, const Command *command, const size_t *after, size_t after_count, GraphNode **out)
{
    if (g->count == g->room) {
        size_t room = g->room ? 2 * g->room : 16;
        GraphNode **grown = realloc(g->nodes, room * sizeof *grown);
        if (!grown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        g->nodes = grown;
        g->room = room;
    }
    GraphNode *n = object_new(OBJECT_GRAPH_NODE, sizeof *n);
    size_t *indices = calloc(after_count + 1, sizeof *indices);
    if (!n || !indices || !command_copy(&n->command, command)) {
        if (n)
            object_free(n);
        free(indices);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < after_count; i++)
        indices[i] = after[i];
    n->after = indices;
    n->after_count = after_count;
    n->graph = g;
    n->index = g->count;
    g->nodes[g->count++] = n;
    if (out)
        *out = n;
    return CUDA_SUCCESS;
}

CUresult graph_add(Graph *g, const Command *command)
{
    size_t last = g->count - 1;
    return add_node(g, command, &last, g->count ? 1 : 0, NULL);
}

// Is the kernel one of the context?
static bool kernel_of(const CUDA_KERNEL_NODE_PARAMS *p, const Context *context)
{
    const Function *f = p ? object_check(p->func, OBJECT_FUNCTION) : NULL;
    return f && f->module->context == context;
}

static CUresult prepare_kernel(KernelCommand *out, const CUDA_KERNEL_NODE_PARAMS *p)
{
    unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ}, block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    return launch_prepare(out, p->func, grid, block, p->sharedMemBytes, p->kernelParams, p->extra);
}

CUresult graph_add_kernel(CUgraphNode *out, CUgraph handle, const CUgraphNode *after, size_t after_count, const CUDA_KERNEL_NODE_PARAMS *p)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !kernel_of(p, g->context) || (after_count && !after) || after_count > g->count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t *indices = calloc(after_count + 1, sizeof *indices);
    if (!indices)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < after_count; i++) {
        const GraphNode *n = object_check(after[i], OBJECT_GRAPH_NODE);
        if (!n || n->graph != g)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            indices[i] = n->index;
    }
    Command c = {.kind = COMMAND_KERNEL};
    if (result == CUDA_SUCCESS)
        result = prepare_kernel(&c.u.kernel, p);
    if (result == CUDA_SUCCESS) {
        result = add_node(g, &c, indices, after_count, out);
        command_release(&c);
    }
    free(indices);
    return result;
}

void graph_free(Graph *g)
{
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o))
        if (((Stream *)o)->capture == g)
            ((Stream *)o)->capture = NULL;
    for (Object *o = object_first(OBJECT_EVENT); o; o = object_next(o))
        if (((Event *)o)->capture == g)
            ((Event *)o)->capture = NULL;
    for (size_t i = 0; i < g->count; i++) {
        command_release(&g->nodes[i]->command);
        free(g->nodes[i]->after);
        object_free(g->nodes[i]);
    }
    free(g->nodes);
    object_free(g);
}

CUresult graph_destroy(CUgraph handle)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    graph_free(g);
    return CUDA_SUCCESS;
}

// ---- capture ----

CUresult capture_begin(CUstream handle, CUstreamCaptureMode mode)
{
    Stream *s;
    CUresult result = stream_get(handle, &s);
    if (result)
        return result;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s == s->context->null_stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    result = graph_create(&s->capture);
    s->capture_mode = mode;
    s->capture_thread = pthread_self();
    s->capture_origin = true;
    s->capture_invalid = false;
    return result;
}

CUresult capture_end(CUstream handle, CUgraph *out)
{
    Stream *s;
    CUresult result = stream_get(handle, &s);
    if (result)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    if (!s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!s->capture_origin)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (s->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(s->capture_thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    Graph *g = s->capture;
    bool invalid = s->capture_invalid;
    s->capture_origin = s->capture_invalid = false;
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o))
        if (((Stream *)o)->capture == g)
            ((Stream *)o)->capture = NULL;
    for (Object *o = object_first(OBJECT_EVENT); o; o = object_next(o))
        if (((Event *)o)->capture == g)
            ((Event *)o)->capture = NULL;
    if (invalid) {
        graph_free(g);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    counters.captures++;
    *out = g;
    return CUDA_SUCCESS;
}

CUresult capture_status(CUstream handle, CUstreamCaptureStatus *status)
{
    Stream *s;
    CUresult result = stream_get(handle, &s);
    if (result)
        return result;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = !s->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
              : s->capture_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

// By mode: global, no thread may; thread-local, that thread may not; relaxed, all may.
bool capture_forbids(void)
{
    bool found = false;
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o)) {
        Stream *s = (Stream *)o;
        bool concerned = s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                         (s->capture_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && pthread_equal(s->capture_thread, pthread_self()));
        if (s->capture_origin && concerned) {
            s->capture_invalid = true;
            found = true;
        }
    }
    return found;
}

// ---- nodes ----

CUresult graph_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes) {
        for (size_t i = 0; i < *count; i++)
            nodes[i] = i < g->count ? g->nodes[i] : NULL;
        if (*count <= g->count)
            return CUDA_SUCCESS;
    }
    *count = g->count;
    return CUDA_SUCCESS;
}

CUresult graph_node_type(CUgraphNode handle, CUgraphNodeType *type)
{
    GraphNode *n = object_check(handle, OBJECT_GRAPH_NODE);
    if (!n)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = n->command.kind == COMMAND_KERNEL ? CU_GRAPH_NODE_TYPE_KERNEL
            : n->command.kind == COMMAND_COPY ? CU_GRAPH_NODE_TYPE_MEMCPY
            : n->command.kind == COMMAND_SET  ? CU_GRAPH_NODE_TYPE_MEMSET
                                              : CU_GRAPH_NODE_TYPE_EMPTY;
    return CUDA_SUCCESS;
}

CUresult graph_kernel_params(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *params)
{
    GraphNode *n = object_check(handle, OBJECT_GRAPH_NODE);
    if (!n)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!params || n->command.kind != COMMAND_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    const KernelCommand *k = &n->command.u.kernel;
    *params = (CUDA_KERNEL_NODE_PARAMS){.func = k->function,
                                        .gridDimX = k->grid[0],
                                        .gridDimY = k->grid[1],
                                        .gridDimZ = k->grid[2],
                                        .blockDimX = k->block[0],
                                        .blockDimY = k->block[1],
                                        .blockDimZ = k->block[2],
                                        .sharedMemBytes = k->shared,
                                        .ctx = n->graph->context};
    return CUDA_SUCCESS;
}

// ---- instances ----

void graph_exec_free(GraphExec *e)
{
    for (size_t i = 0; i < e->count; i++)
        command_release(&e->commands[i]);
    free(e->commands);
    free(e->node);
    object_free(e);
}

// A node that is not in the instance yet and whose dependencies all are: the one added last.
static GraphNode *next_ready(const Graph *g, const bool *in)
{
    for (size_t i = g->count; i-- > 0;) {
        bool ready = !in[i];
        for (size_t k = 0; k < g->nodes[i]->after_count; k++)
            ready &= in[g->nodes[i]->after[k]];
        if (ready)
            return g->nodes[i];
    }
    return NULL;
}

CUresult graph_instantiate(CUgraphExec *out, CUgraph handle)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    GraphExec *e = object_new(OBJECT_GRAPH_EXEC, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->context = g->context;
    e->commands = calloc(g->count + 1, sizeof *e->commands);
    e->node = calloc(g->count + 1, sizeof *e->node);
    bool *in = calloc(g->count + 1, sizeof *in);
    for (size_t i = 0; in && e->commands && e->node && i < g->count; i++) {
        const GraphNode *n = next_ready(g, in);
        if (!n || !command_copy(&e->commands[i], &n->command))
            break;
        in[n->index] = true;
        e->node[i] = n->object.number;
        e->count++;
    }
    free(in);
    if (e->count != g->count) {
        graph_exec_free(e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = e;
    return CUDA_SUCCESS;
}

static Command *command_of(GraphExec *e, CUgraphNode handle, CommandKind kind)
{
    GraphNode *n = object_check(handle, OBJECT_GRAPH_NODE);
    for (size_t i = 0; n && i < e->count; i++)
        if (e->node[i] == n->object.number)
            return e->commands[i].kind == kind ? &e->commands[i] : NULL;
    return NULL;
}

CUresult graph_exec_kernel_params(CUgraphExec handle, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
    GraphExec *e = object_check(handle, OBJECT_GRAPH_EXEC);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    Command *c = command_of(e, node, COMMAND_KERNEL);
    if (!c || !kernel_of(p, e->context))
        return CUDA_ERROR_INVALID_VALUE;
    KernelCommand fresh;
    CUresult result = prepare_kernel(&fresh, p);
    if (result)
        return result;
    command_release(c);
    c->u.kernel = fresh;
    return CUDA_SUCCESS;
}

CUresult graph_exec_memset_params(CUgraphExec handle, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p)
{
    GraphExec *e = object_check(handle, OBJECT_GRAPH_EXEC);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    Command *c = command_of(e, node, COMMAND_SET);
    if (!c || !p || p->height != 1 || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    c->u.set = (SetCommand){p->dst, p->value, p->elementSize, p->width};
    return CUDA_SUCCESS;
}

CUresult graph_exec_update(CUgraphExec handle, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    GraphExec *e = object_check(handle, OBJECT_GRAPH_EXEC), *fresh;
    Graph *g = object_check(graph, OBJECT_GRAPH);
    if (!e || !g)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = graph_instantiate(&fresh, g);
    if (result)
        return result;
    bool same = e->count == fresh->count;
    for (size_t i = 0; same && i < e->count; i++)
        same = e->commands[i].kind == fresh->commands[i].kind;
    if (info)
        *info = (CUgraphExecUpdateResultInfo){.result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR};
    if (same) {
        GraphExec old = *e;
        e->commands = fresh->commands;
        e->node = fresh->node;
        fresh->commands = old.commands;
        fresh->node = old.node;
    }
    graph_exec_free(fresh);
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult graph_launch(CUgraphExec handle, CUstream stream)
{
    GraphExec *e = object_check(handle, OBJECT_GRAPH_EXEC);
    Stream *s;
    CUresult result = stream_get(stream, &s);
    if (!e || result)
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < e->count; i++)
        if (e->commands[i].kind == COMMAND_KERNEL && !object_check(e->commands[i].u.kernel.function, OBJECT_FUNCTION)) {
            counters.violations++;
            report("graph exec #%llu launches a kernel whose module was unloaded", (unsigned long long)e->object.number);
            return CUDA_ERROR_INVALID_HANDLE;
        }
    if (e->context != s->context)
        return CUDA_ERROR_INVALID_HANDLE;
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o)) // it comes after its launch before, wherever that was
        if (o->number == e->last_stream && (Stream *)o != s)
            stream_drain((Stream *)o);
    e->last_stream = s->object.number;
    counters.graph_launches++;
    for (size_t i = 0; !result && i < e->count; i++) {
        Command c;
        result = command_copy(&c, &e->commands[i]) ? stream_submit(s, &c) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult graph_exec_destroy(CUgraphExec handle)
{
    GraphExec *e = object_check(handle, OBJECT_GRAPH_EXEC);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    graph_exec_free(e);
    return CUDA_SUCCESS;
}

Context *graph_context(const Object *o) { return o->kind == OBJECT_GRAPH ? ((const Graph *)o)->context : ((const GraphExec *)o)->context; }

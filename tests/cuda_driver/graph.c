// Graphs: commands that a stream captured or that were added one by one, and instances of them that run again and again.
//
// A captured node depends on the one captured before it in its stream, and on what events say that the stream waited for; a stream that
// joined a capture has to be waited for before its end. The nodes of an instance run one after another; of those whose
// dependencies are done the one added last runs first, so a missing dependency shows. Parameters of an instance's nodes may
// change while their graph and they live; their number and kind may not, nor the context of a kernel.
//
// A conditional node has bodies, graphs of its own; whether and how often one runs is decided when the node's turn comes, by the value of its
// condition: that of the beginning of each launch, or what a kernel of the same launch set last. What the documentation
// of the driver wants of such graphs is checked: each handle has one node, in the graph that it was made for or in one inside of it; one
// instance at a time; bodies hold kernels and conditional nodes of the same context. So is what it calls undefined: a condition
// without a value, two threads that set one.
#include "tests/cuda_driver/driver.h"
#include "tests/cuda_driver/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURN_STEPS = 1000 }; // a turn of a loop counts as so many instructions, whatever it does

typedef struct GraphNode {
    Object object;
    Command command;
    struct Graph *graph;
    size_t index;
    size_t *after; // indices of nodes that come before it
    size_t after_count;
    struct Graph *body[2]; // of a conditional node
} GraphNode;

// A handle: its number is this object's address. It goes with its graph and the last command that refers to it.
typedef struct Conditional {
    Object object;
    Context *context;
    struct Graph *graph;      // that it was made for; NULL: that is gone
    struct Conditional *next; // of that graph
    unsigned refs, initial;
    bool has_initial, used, has_value;
    unsigned value;
    uint64_t instance; // serial number of the instance that it belongs to
    uint64_t set_by;   // launch, counted from 1
} Conditional;

typedef struct Graph {
    Object object;
    Context *context;
    GraphNode **nodes;
    size_t count, room;
    struct Graph *parent; // of a body: the graph with its node
    Conditional *conditions;
    uint64_t instance; // the one that was made last, where it has conditional nodes
} Graph;

// The commands of an instance, or of a body in one, in the order in which they run.
typedef struct Sequence {
    Command *commands;
    uint64_t *node; // serial numbers of the nodes they were made from
    size_t count;
} Sequence;

typedef struct GraphExec {
    Object object;
    Context *context;
    Sequence all;
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

// The indices of the nodes that come before; *out is to be freed.
static CUresult indices_of(const Graph *g, const CUgraphNode *after, size_t count, size_t **out)
{
    *out = NULL;
    if ((count && !after) || count > g->count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t *indices = *out = calloc(count + 1, sizeof *indices);
    if (!indices)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const GraphNode *n = object_check(after[i], OBJECT_GRAPH_NODE);
        if (!n || n->graph != g)
            return CUDA_ERROR_INVALID_VALUE;
        indices[i] = n->index;
    }
    return CUDA_SUCCESS;
}

CUresult graph_add_kernel(CUgraphNode *out, CUgraph handle, const CUgraphNode *after, size_t after_count, const CUDA_KERNEL_NODE_PARAMS *p)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !kernel_of(p, g->context))
        return CUDA_ERROR_INVALID_VALUE;
    size_t *indices;
    CUresult result = indices_of(g, after, after_count, &indices);
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

// ---- conditional nodes ----

CUresult graph_conditional(CUgraphConditionalHandle *out, CUgraph handle, CUcontext context, unsigned value, unsigned flags)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    if (settings.driver < 12030)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || flags > CU_GRAPH_COND_ASSIGN_DEFAULT || context != g->context)
        return CUDA_ERROR_INVALID_VALUE;
    Conditional *c = object_new(OBJECT_CONDITIONAL, sizeof *c);
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->context = context;
    c->graph = g;
    c->initial = value;
    c->has_initial = flags == CU_GRAPH_COND_ASSIGN_DEFAULT;
    c->next = g->conditions;
    g->conditions = c;
    *out = (uintptr_t)c;
    return CUDA_SUCCESS;
}

static void free_unused(Conditional *c)
{
    if (!c->graph && !c->refs)
        object_free(c);
}

static const Graph *outermost(const Graph *g)
{
    while (g->parent)
        g = g->parent;
    return g;
}

static CUresult check_conditional(const Graph *g, const CUgraphEdgeData *edges, const CUgraphNodeParams *p)
{
    static const CUgraphNodeParams zero;
    if (edges || !p || memcmp(p->reserved0, zero.reserved0, sizeof p->reserved0) || p->reserved2)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return CUDA_ERROR_NOT_SUPPORTED; // they have functions of their own here
    const char *rest = (const char *)&p->conditional + sizeof p->conditional, *end = (const char *)&p->reserved2;
    for (; rest < end; rest++)
        if (*rest)
            return CUDA_ERROR_INVALID_VALUE;
    const CUDA_CONDITIONAL_NODE_PARAMS *q = &p->conditional;
    const Conditional *c = object_check((const void *)(uintptr_t)q->handle, OBJECT_CONDITIONAL);
    const Graph *inside = g;
    while (c && inside && inside != c->graph)
        inside = inside->parent;
    unsigned most = q->type == CU_GRAPH_COND_TYPE_IF && settings.driver >= 12080 ? 2 : 1;
    if (!c || !inside || c->used || q->type > CU_GRAPH_COND_TYPE_WHILE || q->size < 1 || q->size > most || q->ctx != c->context)
        return CUDA_ERROR_INVALID_VALUE;
    return outermost(g)->instance ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS; // nodes come before instances
}

CUresult graph_add_conditional(CUgraphNode *out, CUgraph handle, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t after_count,
                               CUgraphNodeParams *p)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    if (settings.driver < 12030)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = out ? check_conditional(g, edges, p) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    size_t *indices;
    GraphNode *n = NULL;
    Conditional *condition = (Conditional *)(uintptr_t)p->conditional.handle;
    Command c = {.kind = COMMAND_CONDITIONAL, .u.conditional = {condition, p->conditional.type == CU_GRAPH_COND_TYPE_WHILE, NULL}};
    result = indices_of(g, after, after_count, &indices);
    if (result == CUDA_SUCCESS)
        result = add_node(g, &c, indices, after_count, &n);
    free(indices);
    if (result)
        return result;
    condition->used = true;
    for (unsigned i = 0; i < p->conditional.size && result == CUDA_SUCCESS; i++) {
        result = graph_create(&n->body[i]);
        if (result == CUDA_SUCCESS) {
            n->body[i]->context = g->context;
            n->body[i]->parent = g;
        }
    }
    p->conditional.phGraph_out = n->body;
    *out = n;
    return result;
}

static bool sequence_copy(Sequence *to, const Sequence *from)
{
    *to = (Sequence){calloc(from->count + 1, sizeof *to->commands), calloc(from->count + 1, sizeof *to->node), 0};
    bool fine = to->commands && to->node;
    for (; fine && to->count < from->count; to->count += fine) {
        fine = command_copy(&to->commands[to->count], &from->commands[to->count]);
        to->node[to->count] = from->node[to->count];
    }
    return fine;
}

static void sequence_free(Sequence *s)
{
    for (size_t i = 0; i < s->count; i++)
        command_release(&s->commands[i]);
    free(s->commands);
    free(s->node);
}

bool conditional_copy(ConditionalCommand *c)
{
    const Sequence *from = c->body;
    c->condition->refs++;
    c->body = NULL;
    if (!from)
        return true;
    c->body = calloc(2, sizeof *c->body);
    return c->body && sequence_copy(&c->body[0], &from[0]) && sequence_copy(&c->body[1], &from[1]);
}

void conditional_release(ConditionalCommand *c)
{
    for (int i = 0; c->body && i < 2; i++)
        sequence_free(&c->body[i]);
    free(c->body);
    c->condition->refs--;
    free_unused(c->condition);
}

bool command_uses(const Command *c, const Module *m)
{
    if (c->kind != COMMAND_CONDITIONAL)
        return c->kind == COMMAND_KERNEL && c->u.kernel.function->module == m;
    bool uses = false;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < c->u.conditional.body[k].count && !uses; i++)
            uses = command_uses(&c->u.conditional.body[k].commands[i], m);
    return uses;
}

void conditional_default(const ConditionalCommand *c)
{
    c->condition->has_value = c->condition->has_initial;
    c->condition->value = c->condition->initial;
    c->condition->set_by = 0;
}

static CUresult run_sequence(const Sequence *s, Context *context, uint64_t graph)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < s->count && !result; i++) {
        s->commands[i].context = context;
        s->commands[i].graph = graph;
        result = command_run(&s->commands[i]);
    }
    return result;
}

CUresult conditional_run(const ConditionalCommand *c, Context *context, uint64_t graph)
{
    const Conditional *condition = c->condition;
    CUresult result = CUDA_SUCCESS;
    uint64_t turns = 0;
    if (!condition->has_value) {
        counters.violations++;
        report("graph exec #%llu comes to a conditional node whose condition has no value", (unsigned long long)graph);
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    if (!c->repeat)
        return run_sequence(&c->body[!condition->value], context, graph);
    while (condition->value && !result) {
        result = run_sequence(&c->body[0], context, graph);
        if (++turns > settings.steps / TURN_STEPS) {
            counters.violations++;
            report("graph exec #%llu: a loop does not end", (unsigned long long)graph);
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        }
    }
    return result;
}

static uint64_t argument(Warp *w, const Inst *in, uint32_t lane, int which, unsigned size)
{
    uint64_t value = 0;
    memcpy(&value, exec_access(w, in, lane, SPACE_LOCAL, (uint64_t)in->arg[which].offset, size, ACCESS_READ, NULL), size);
    return value;
}

void run_set_conditional(Warp *w, const Inst *in)
{
    const Launch *launch = w->block->launch;
    FOR_LANES(w, lane)
    {
        uint64_t handle = argument(w, in, lane, 0, 8);
        Conditional *c = object_check((const void *)(uintptr_t)handle, OBJECT_CONDITIONAL);
        const char *wrong = !c                                               ? "no conditional handle"
                            : c->context != launch->context                  ? "a conditional handle of another context"
                            : !launch->graph || c->instance != launch->graph ? "a conditional handle of another graph than the kernel's"
                            : c->set_by == launch->id + 1                    ? "set by more than one thread"
                                                                             : NULL;
        if (wrong)
            exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED, "cudaGraphSetConditional: 0x%llx is %s", (unsigned long long)handle,
                           wrong);
        c->value = (unsigned)argument(w, in, lane, 1, 4);
        c->has_value = true;
        c->set_by = launch->id + 1;
    }
}

void graph_free(Graph *g)
{
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o))
        if (((Stream *)o)->capture == g)
            ((Stream *)o)->capture = NULL;
    for (Object *o = object_first(OBJECT_EVENT); o; o = object_next(o))
        if (((Event *)o)->capture == g)
            ((Event *)o)->capture = NULL;
    for (Conditional *c = g->conditions, *next; c; c = next) {
        next = c->next;
        c->graph = NULL;
        free_unused(c);
    }
    for (size_t i = 0; i < g->count; i++) {
        for (int k = 0; k < 2; k++)
            if (g->nodes[i]->body[k])
                graph_free(g->nodes[i]->body[k]);
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
    if (g->parent) // its node's
        return CUDA_ERROR_INVALID_VALUE;
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
    s->tips.count = 0;
    s->capture_mode = mode;
    s->capture_thread = pthread_self();
    s->capture_origin = true;
    s->capture_invalid = false;
    return result;
}

CUresult capture_add(Stream *s, const Command *command)
{
    size_t after[CAPTURE_TIPS];
    GraphNode *n;
    for (size_t i = 0; i < s->tips.count; i++)
        after[i] = s->tips.node[i]->index;
    CUresult result = add_node(s->capture, command, after, s->tips.count, &n);
    if (!result)
        s->tips = (Tips){{n}, 1};
    return result;
}

CUresult capture_join(Stream *s, const Event *e)
{
    if (!s->capture)
        s->tips.count = 0;
    s->capture = e->capture;
    for (size_t i = 0; i < e->tips.count && !settings.no_waits; i++) {
        bool known = false;
        for (size_t k = 0; k < s->tips.count; k++)
            known |= s->tips.node[k] == e->tips.node[i];
        if (!known && s->tips.count == CAPTURE_TIPS)
            return CUDA_ERROR_NOT_SUPPORTED; // more than any test has
        if (!known)
            s->tips.node[s->tips.count++] = e->tips.node[i];
    }
    return CUDA_SUCCESS;
}

// Does one of the tips come after the node, or is it the node itself?
static bool reaches(const Graph *g, const Tips *tips, const GraphNode *node)
{
    bool *seen = calloc(g->count + 1, sizeof *seen), found;
    if (!seen)
        return false;
    for (size_t i = 0; i < tips->count; i++)
        seen[tips->node[i]->index] = true;
    for (size_t i = g->count; i-- > 0;) // a node comes after older ones alone
        for (size_t k = 0; seen[i] && k < g->nodes[i]->after_count; k++)
            seen[g->nodes[i]->after[k]] = true;
    found = seen[node->index];
    free(seen);
    return found;
}

static bool all_joined(const Graph *g, const Stream *origin)
{
    bool joined = true;
    for (const Object *o = object_first(OBJECT_STREAM); o && !settings.no_waits; o = object_next(o)) {
        const Stream *s = (const Stream *)o;
        for (size_t i = 0; s->capture == g && s != origin && i < s->tips.count; i++)
            joined &= reaches(g, &origin->tips, s->tips.node[i]);
    }
    return joined;
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
    bool invalid = s->capture_invalid, joined = all_joined(g, s);
    s->capture_origin = s->capture_invalid = false;
    for (Object *o = object_first(OBJECT_STREAM); o; o = object_next(o))
        if (((Stream *)o)->capture == g)
            ((Stream *)o)->capture = NULL;
    for (Object *o = object_first(OBJECT_EVENT); o; o = object_next(o))
        if (((Event *)o)->capture == g)
            ((Event *)o)->capture = NULL;
    if (invalid || !joined) {
        graph_free(g);
        return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
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

CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
                      const CUgraphEdgeData **edges, size_t *count)
{
    Stream *s;
    CUresult result = settings.driver < 12030 ? CUDA_ERROR_NOT_SUPPORTED : capture_status(handle, status);
    if (result || stream_get(handle, &s) || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return result;
    if (id)
        *id = s->capture->object.number;
    if (graph)
        *graph = s->capture;
    if (after)
        *after = s->tips.node;
    if (edges)
        *edges = NULL;
    if (count)
        *count = s->tips.count;
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
    *type = n->command.kind == COMMAND_KERNEL        ? CU_GRAPH_NODE_TYPE_KERNEL
            : n->command.kind == COMMAND_COPY        ? CU_GRAPH_NODE_TYPE_MEMCPY
            : n->command.kind == COMMAND_SET         ? CU_GRAPH_NODE_TYPE_MEMSET
            : n->command.kind == COMMAND_CONDITIONAL ? CU_GRAPH_NODE_TYPE_CONDITIONAL
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
    sequence_free(&e->all);
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

static CUresult sequence_of(const Graph *g, uint64_t instance, Sequence *s)
{
    *s = (Sequence){calloc(g->count + 1, sizeof *s->commands), calloc(g->count + 1, sizeof *s->node), 0};
    bool *in = calloc(g->count + 1, sizeof *in);
    CUresult result = in && s->commands && s->node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; !result && i < g->count; i++) {
        const GraphNode *n = next_ready(g, in);
        Command *c = &s->commands[i];
        if (!n || !command_copy(c, &n->command)) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        in[n->index] = true;
        s->node[i] = n->object.number;
        s->count++;
        if (c->kind != COMMAND_CONDITIONAL)
            continue;
        c->u.conditional.condition->instance = instance;
        c->u.conditional.body = calloc(2, sizeof(Sequence));
        if (!c->u.conditional.body)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        for (int k = 0; k < 2 && !result; k++)
            if (n->body[k])
                result = sequence_of(n->body[k], instance, &c->u.conditional.body[k]);
    }
    free(in);
    return result;
}

// The setting graphs=.
static void log_graph(const Graph *g)
{
    FILE *f = settings.graphs[0] ? fopen(settings.graphs, "a") : NULL;
    for (size_t i = 0; i < g->count && f; i++) {
        const GraphNode *n = g->nodes[i];
        fprintf(f, "process %ld graph %llu node %zu %s after", (long)getpid(), (unsigned long long)g->object.number, i,
                n->command.kind == COMMAND_KERNEL    ? n->command.u.kernel.function->kernel->name
                : n->command.kind == COMMAND_FOREIGN ? "FOREIGN"
                                                     : "OTHER");
        for (size_t k = 0; k < n->after_count; k++)
            fprintf(f, " %zu", n->after[k]);
        fprintf(f, "\n");
    }
    if (f)
        fclose(f);
}

// Is some handle without a node? *any: there are conditional nodes.
static bool handles_unused(const Graph *g, bool *any)
{
    bool unused = false;
    for (const Conditional *c = g->conditions; c; c = c->next)
        unused |= !c->used;
    for (size_t i = 0; i < g->count; i++)
        for (int k = 0; k < 2; k++)
            if (g->nodes[i]->body[k]) {
                *any = true;
                unused |= handles_unused(g->nodes[i]->body[k], any);
            }
    return unused;
}

static bool alive(uint64_t instance)
{
    for (const Object *o = object_first(OBJECT_GRAPH_EXEC); o; o = object_next(o))
        if (o->number == instance)
            return true;
    return false;
}

CUresult graph_instantiate(CUgraphExec *out, CUgraph handle)
{
    Graph *g = object_check(handle, OBJECT_GRAPH);
    bool conditions = false;
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || g->parent || handles_unused(g, &conditions) || (conditions && alive(g->instance)))
        return CUDA_ERROR_INVALID_VALUE;
    GraphExec *e = object_new(OBJECT_GRAPH_EXEC, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->context = g->context;
    CUresult result = sequence_of(g, e->object.number, &e->all);
    if (result) {
        graph_exec_free(e);
        return result;
    }
    if (conditions)
        g->instance = e->object.number;
    log_graph(g);
    *out = e;
    return CUDA_SUCCESS;
}

static Command *find_command(Sequence *s, uint64_t node)
{
    Command *found = NULL;
    for (size_t i = 0; i < s->count && !found; i++) {
        Command *c = &s->commands[i];
        found = s->node[i] == node ? c : NULL;
        for (int k = 0; k < 2 && !found && c->kind == COMMAND_CONDITIONAL; k++)
            found = find_command(&c->u.conditional.body[k], node);
    }
    return found;
}

static Command *command_of(GraphExec *e, CUgraphNode handle, CommandKind kind)
{
    const GraphNode *n = object_check(handle, OBJECT_GRAPH_NODE);
    Command *c = n ? find_command(&e->all, n->object.number) : NULL;
    return c && c->kind == kind ? c : NULL;
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
    bool same = e->all.count == fresh->all.count;
    for (size_t i = 0; same && i < e->all.count; i++)
        same = e->all.commands[i].kind == fresh->all.commands[i].kind;
    if (info)
        *info = (CUgraphExecUpdateResultInfo){.result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR};
    if (same) {
        Sequence old = e->all;
        e->all = fresh->all;
        fresh->all = old;
    }
    graph_exec_free(fresh);
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static bool modules_alive(const Sequence *s)
{
    bool fine = true;
    for (size_t i = 0; i < s->count && fine; i++) {
        const Command *c = &s->commands[i];
        fine = c->kind != COMMAND_KERNEL || object_check(c->u.kernel.function, OBJECT_FUNCTION);
        for (int k = 0; k < 2 && fine && c->kind == COMMAND_CONDITIONAL; k++)
            fine = modules_alive(&c->u.conditional.body[k]);
    }
    return fine;
}

static CUresult submit(Stream *s, const Command *command, uint64_t graph)
{
    Command c;
    if (!command_copy(&c, command))
        return CUDA_ERROR_OUT_OF_MEMORY;
    c.graph = graph;
    if (c.kind == COMMAND_FOREIGN) {
        c.u.foreign.user = captured_begin(c.u.foreign.captured);
        captured_release(c.u.foreign.captured); // it is on its own now
        c.u.foreign.captured = NULL;
        if (!c.u.foreign.user)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return stream_submit(s, &c);
}

static CUresult submit_defaults(Stream *s, const Sequence *all, uint64_t graph)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < all->count && !result; i++) {
        const ConditionalCommand *c = &all->commands[i].u.conditional;
        if (all->commands[i].kind != COMMAND_CONDITIONAL)
            continue;
        result = submit(s, &(Command){.kind = COMMAND_DEFAULT, .u.conditional = {.condition = c->condition}}, graph);
        for (int k = 0; k < 2 && !result; k++)
            result = submit_defaults(s, &c->body[k], graph);
    }
    return result;
}

CUresult graph_launch(CUgraphExec handle, CUstream stream)
{
    GraphExec *e = object_check(handle, OBJECT_GRAPH_EXEC);
    Stream *s;
    CUresult result = stream_get(stream, &s);
    if (!e || result)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!modules_alive(&e->all)) {
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
    result = submit_defaults(s, &e->all, e->object.number);
    for (size_t i = 0; !result && i < e->all.count; i++)
        result = submit(s, &e->all.commands[i], e->object.number);
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

bool graph_is_body(const Object *o) { return o->kind == OBJECT_GRAPH && ((const Graph *)o)->parent; }

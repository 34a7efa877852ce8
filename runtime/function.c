/*
 * kiln_function: a C function of tensors, traced once per kind of input and replayed from then on.
 *
 *   trace     run the C function on stand-ins of its inputs. What it records is kept as a *template*: the pending graph as
 *             a Call (runtime/call.h) whose inputs are placeholders, and where each input's value comes from
 *   replay    put the current values into a copy of the call's node list, fresh nodes for the results, the stream's position
 *             and key into the scalars, and serve it like any other call: guards, cache, launch
 *
 * Besides its inputs the function may use other tensors (held by handle: an assign between two calls is seen), draw random
 * numbers (each replay advances the stream as the trace did), and assign (replayed). A sync point inside makes its outcome depend
 * on values: such a function is run each time, and a warning says so once.
 *
 * The template's nodes are private. Should the user keep one and evaluate it, the template is noticed to be spoilt and traced anew.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/eval.h"
#include "runtime/random.h"
#include "runtime/trace.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TEMPLATES = 64 };

typedef enum SourceKind { FROM_ARG, FROM_HANDLE, FROM_NODE, FROM_RESULT } SourceKind;

/* Where a value comes from: argument k, a handle's current meaning, a fixed node, the call's k-th output. */
typedef struct Source {
    uint8_t kind;
    uint32_t index;
    kiln_tensor *handle;    /* retained */
    RtNode *node;           /* retained */
} Source;

typedef struct Draw {
    RtNode *counter, *key;
    uint64_t start, count;
    uint32_t counter_scalar, key_scalar; /* in the call; UINT32_MAX: the draw is not used */
} Draw;

struct Trace {
    kiln_tensor *const *args;   /* the stand-ins, alive while the trace runs ... */
    RtNode **arg_nodes;         /* ... and their nodes, retained */
    uint32_t n_args;
    BUF(kiln_tensor *) used;    /* handles from outside, retained */
    BUF(kiln_tensor *) assigned; /* handles from outside, retained */
    BUF(RtNode *) old;          /* what they meant before */
    BUF(Draw) draws;
    bool synced, failed;
    Loc sync_loc;
    const char *sync_api;
};

typedef struct Template Template;
struct Template {
    Template *next;
    uint64_t options;           /* options_generation it was traced under */
    uint8_t *signature;
    size_t signature_bytes;
    Call call;                  /* owns its arrays; a reference on each node (placeholders for the inputs) */
    Source *inputs;             /* of the call's inputs */
    Source *results;            /* of the function's outputs, then of the assigned handles */
    kiln_tensor **assigned;
    uint32_t n_results, n_assigned;
    Draw *draws;
    uint32_t n_draws;
    uint64_t drawn;
};

struct kiln_function {
    kiln_function_body *body;
    void *user;
    int n_in, n_out;
    Template *templates;        /* newest use first */
    bool warned;
};

_Thread_local Trace *trace_current;
_Thread_local uint32_t trace_serial;

/* --- hooks of the recording layer ----------------------------------------------------------------------------------- */

#define LIST_ADD(trace, list, value)                                                               \
    do {                                                                                           \
        if (BUF_RESERVE(list, (list).n + 1))                                                       \
            (list).at[(list).n++] = (value);                                                       \
        else                                                                                       \
            (trace)->failed = true;                                                                \
    } while (0)

static bool is_pending(const RtNode *node) { return !atomic_load_explicit(&node->storage, memory_order_acquire); }

static bool is_outside(const Trace *trace, const kiln_tensor *t)
{
    if (t->born == trace_serial)
        return false;
    for (uint32_t i = 0; i < trace->n_args; i++)
        if (trace->args[i] == t)
            return false;
    return true;
}

static bool was_assigned(const Trace *trace, const kiln_tensor *t)
{
    for (size_t i = 0; i < trace->assigned.n; i++)
        if (trace->assigned.at[i] == t)
            return true;
    return false;
}

void trace_note_use(kiln_tensor *t)
{
    Trace *trace = trace_current;
    if (!is_outside(trace, t) || was_assigned(trace, t))
        return;
    for (size_t i = 0; i < trace->used.n; i++)
        if (trace->used.at[i] == t)
            return;
    if (is_pending(t->node)) { /* its value is an input of the trace, not part of it */
        trace_current = NULL;
        trace->failed |= eval_nodes(&t->node, 1, "kiln_function_call", t->node->loc) != ST_OK;
        trace_current = trace;
    }
    LIST_ADD(trace, trace->used, kiln_retain(t));
}

void trace_note_draw(RtNode *counter, RtNode *key, uint64_t start, uint64_t count)
{
    Draw draw = {node_retain(counter), node_retain(key), start, count, UINT32_MAX, UINT32_MAX};
    LIST_ADD(trace_current, trace_current->draws, draw);
}

void trace_note_assign(kiln_tensor *p)
{
    Trace *trace = trace_current;
    if (!is_outside(trace, p) || was_assigned(trace, p))
        return;
    LIST_ADD(trace, trace->assigned, kiln_retain(p));
    LIST_ADD(trace, trace->old, node_retain(p->node));
}

void trace_note_sync(const char *api, Loc loc)
{
    trace_current->synced = true;
    trace_current->sync_api = api;
    trace_current->sync_loc = loc;
}

static void trace_free(Trace *trace)
{
    for (size_t i = 0; i < trace->used.n; i++)
        kiln_release(trace->used.at[i]);
    for (size_t i = 0; i < trace->assigned.n; i++)
        kiln_release(trace->assigned.at[i]);
    for (size_t i = 0; i < trace->old.n; i++)
        node_release(trace->old.at[i]);
    for (size_t i = 0; i < trace->draws.n; i++) {
        node_release(trace->draws.at[i].counter);
        node_release(trace->draws.at[i].key);
    }
    for (uint32_t i = 0; i < trace->n_args; i++)
        node_release(trace->arg_nodes[i]);
    os_free(trace->arg_nodes);
    os_free(trace->used.at);
    os_free(trace->assigned.at);
    os_free(trace->old.at);
    os_free(trace->draws.at);
}

/* --- signatures -------------------------------------------------------------------------------------------------------- */

typedef BUF(uint8_t) Bytes;

static bool bytes_put(Bytes *bytes, const void *data, size_t n)
{
    if (!BUF_RESERVE(*bytes, bytes->n + n))
        return false;
    memcpy(bytes->at + bytes->n, data, n);
    bytes->n += n;
    return true;
}

/* Every fact of the inputs: dtype, rank, dims, strides. */
static bool signature_of(int n, kiln_tensor *const *in, Bytes *out)
{
    out->n = 0;
    for (int i = 0; i < n; i++) {
        const RtNode *node = in[i]->node;
        const uint8_t head[] = {node->dtype, node->rank, node->strided};
        if (!bytes_put(out, head, sizeof head) || !bytes_put(out, node->dim, sizeof *node->dim * node->rank) ||
            (node->strided && !bytes_put(out, node->stride, sizeof *node->stride * node->rank)))
            return false;
    }
    return true;
}

/* --- templates ------------------------------------------------------------------------------------------------------------ */

static void source_free(Source *s)
{
    if (s->handle)
        kiln_release(s->handle);
    if (s->node)
        node_release(s->node);
}

static void template_free(Template *t)
{
    for (size_t i = 0; i < t->call.nodes.n; i++)
        if (t->call.nodes.at[i])
            node_release(t->call.nodes.at[i]);
    for (size_t i = 0; t->inputs && i < t->call.inputs.n; i++)
        source_free(&t->inputs[i]);
    for (uint32_t i = 0; t->results && i < t->n_results; i++)
        source_free(&t->results[i]);
    for (uint32_t i = 0; i < t->n_assigned; i++)
        kiln_release(t->assigned[i]);
    os_free(t->call.nodes.at);
    os_free(t->call.outputs.at);
    os_free(t->call.inputs.at);
    os_free(t->call.structure.at);
    os_free(t->call.signature.at);
    os_free(t->call.ints.at);
    os_free(t->call.scalars.at);
    os_free(t->signature);
    os_free(t->inputs);
    os_free(t->results);
    os_free(t->assigned);
    os_free(t->draws);
    os_free(t);
}

static void *copy_bytes(const void *data, size_t bytes)
{
    void *copy = os_alloc(bytes + 1);
    if (copy && bytes)
        memcpy(copy, data, bytes);
    return copy;
}

#define COPY_BUF(to, from)                                                                         \
    ((to).at = copy_bytes((from).at, sizeof *(from).at * (from).n), (to).n = (to).cap = (from).n, (to).at != NULL)

typedef struct Capture {
    Template *t;
    RtNode *const *roots;
    uint32_t n_roots;
} Capture;

/* Takes a copy of the call instead of serving it. A graph that must be cut into several calls is not captured. */
static Status capture_call(Call *call, void *user)
{
    Capture *capture = user;
    for (size_t k = 0; k < call->outputs.n; k++) {
        bool is_root = false;
        for (uint32_t i = 0; i < capture->n_roots; i++)
            is_root |= capture->roots[i] == call->nodes.at[call->outputs.at[k]];
        if (!is_root)
            return fail(ST_UNSUPPORTED, "the function's graph is too large for one program");
    }
    Call *copy = &capture->t->call;
    bool ok = COPY_BUF(copy->nodes, call->nodes);
    if (ok)
        for (size_t i = 0; i < copy->nodes.n; i++)
            node_retain(copy->nodes.at[i]);
    ok = ok && COPY_BUF(copy->outputs, call->outputs) && COPY_BUF(copy->inputs, call->inputs) &&
         COPY_BUF(copy->structure, call->structure) && COPY_BUF(copy->signature, call->signature) &&
         COPY_BUF(copy->ints, call->ints) && COPY_BUF(copy->scalars, call->scalars);
    if (!ok)
        return fail(ST_OUT_OF_MEMORY, "no memory for a traced function");
    copy->key = (CallKey){call->key.hash, copy->structure.at, copy->signature.at, copy->structure.n, copy->signature.n};
    copy->facts = (Facts){copy->ints.at, copy->scalars.at, (uint32_t)copy->ints.n, (uint32_t)copy->scalars.n};
    return ST_OK;
}

/* Where the value of an evaluated node of the trace comes from at the next call. */
static Source source_of(const Trace *trace, RtNode *node)
{
    for (uint32_t i = 0; i < trace->n_args; i++)
        if (trace->arg_nodes[i] == node)
            return (Source){.kind = FROM_ARG, .index = i};
    for (size_t i = 0; i < trace->used.n; i++) {
        kiln_tensor *handle = trace->used.at[i];
        RtNode *meaning = handle->node;
        for (size_t k = 0; k < trace->assigned.n; k++) /* its meaning when the trace began */
            if (trace->assigned.at[k] == handle)
                meaning = trace->old.at[k];
        if (meaning == node)
            return (Source){.kind = FROM_HANDLE, .handle = kiln_retain(handle)};
    }
    return (Source){.kind = FROM_NODE, .node = node_retain(node)};
}

/* Replaces the call's inputs by placeholders: nodes without data that only carry a number, so that nothing of this call's data
 * is held and no other graph's walk touches the template. */
static bool make_placeholders(Template *t, const Trace *trace)
{
    Call *call = &t->call;
    for (size_t i = 0; i < call->inputs.n; i++) {
        RtNode **slot = &call->nodes.at[call->inputs.at[i]], *node = *slot;
        RtNode *placeholder = node_new(OP_INPUT, (DType)node->dtype, node->rank, node->dim, 0, 0);
        if (!placeholder)
            return false;
        t->inputs[i] = source_of(trace, node);
        for (size_t n = 0; n < call->nodes.n; n++)
            for (uint32_t k = 0; k < call->nodes.at[n]->n_in; k++)
                if (call->nodes.at[n]->in[k] == node) {
                    call->nodes.at[n]->in[k] = node_retain(placeholder);
                    node_release(node);
                }
        *slot = placeholder;
        node_release(node);
    }
    return true;
}

static void number_draws(Template *t)
{
    uint32_t scalar = 0;
    for (size_t i = 0; i < t->call.nodes.n; i++) {
        if (t->call.nodes.at[i]->op != OP_SCALAR)
            continue;
        for (uint32_t d = 0; d < t->n_draws; d++) {
            if (t->draws[d].counter == t->call.nodes.at[i])
                t->draws[d].counter_scalar = scalar;
            if (t->draws[d].key == t->call.nodes.at[i])
                t->draws[d].key_scalar = scalar;
        }
        scalar++;
    }
}

/* The template of a finished trace whose results are roots[0..n). NULL: out of memory or too large (fail() was called). */
static Template *template_new(const Trace *trace, RtNode *const *roots, uint32_t n)
{
    Template *t = os_calloc(1, sizeof *t);
    Capture capture = {t, roots, n};
    if (!t || eval_collect(roots, n, capture_call, &capture) != ST_OK)
        goto failed;
    t->inputs = os_calloc(t->call.inputs.n + 1, sizeof *t->inputs);
    t->results = os_calloc(n + 1, sizeof *t->results);
    t->assigned = os_calloc(trace->assigned.n + 1, sizeof *t->assigned);
    t->draws = copy_bytes(trace->draws.at, sizeof *t->draws * trace->draws.n);
    if (!t->inputs || !t->results || !t->assigned || !t->draws)
        goto failed;
    t->n_results = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_pending(roots[i])) {
            t->results[i] = source_of(trace, roots[i]);
            continue;
        }
        t->results[i].kind = FROM_RESULT;
        while (t->call.nodes.at[t->call.outputs.at[t->results[i].index]] != roots[i])
            t->results[i].index++;
    }
    for (size_t i = 0; i < trace->assigned.n; i++)
        t->assigned[t->n_assigned++] = kiln_retain(trace->assigned.at[i]);
    t->n_draws = (uint32_t)trace->draws.n;
    for (uint32_t d = 0; d < t->n_draws; d++)
        t->drawn += t->draws[d].count;
    number_draws(t);
    if (make_placeholders(t, trace))
        return t;
failed:
    if (t)
        template_free(t);
    return NULL;
}

/* --- replay ------------------------------------------------------------------------------------------------------------------ */

/* The node a source means now, evaluated unless it is a result; with a reference for the caller. */
static Status source_node(const Source *s, kiln_tensor *const *in, RtNode *const *results, RtNode **out)
{
    RtNode *node = NULL;
    switch ((SourceKind)s->kind) {
    case FROM_ARG: node = in[s->index]->node; break;
    case FROM_HANDLE: node = s->handle->node; break;
    case FROM_NODE: node = s->node; break;
    case FROM_RESULT: node = results[s->index]; break;
    }
    if (s->kind == FROM_HANDLE && is_pending(node))
        TRY(eval_nodes(&node, 1, "kiln_function_call", node->loc));
    *out = node_retain(node);
    return ST_OK;
}

/* A fresh pending node with the meaning of a template's node. */
static RtNode *node_like(const RtNode *node)
{
    RtNode *copy = node_new((Op)node->op, (DType)node->dtype, node->rank, node->dim, node->n_in, node->n_facts);
    if (!copy)
        return NULL;
    copy->attr = node->attr;
    copy->scalar = node->scalar;
    copy->loc = node->loc;
    for (uint32_t i = 0; i < node->n_in; i++)
        copy->in[i] = node_retain(node->in[i]);
    if (node->n_facts)
        memcpy(copy->facts, node->facts, sizeof *copy->facts * node->n_facts);
    return copy;
}

/* Numbers the template's nodes as the call has them; false: one of them was evaluated from outside. */
static bool renumber(const Template *t)
{
    for (size_t i = 0; i < t->call.nodes.n; i++) {
        RtNode *node = t->call.nodes.at[i];
        if (node->op != OP_INPUT && !is_pending(node))
            return false;
        node->index = (uint32_t)i;
    }
    return true;
}

typedef struct Replay {
    Call call;              /* borrows all arrays of the template's but nodes and scalars */
    RtNode **nodes;         /* the inputs' current nodes (a reference each) and the fresh results */
    RtNode **results;       /* by the call's outputs; a reference each */
    RtNode **values;        /* by the template's results; a reference each */
    uint64_t *scalars;
    uint32_t *held;
} Replay;

static void replay_free(Replay *r, const Template *t)
{
    for (size_t i = 0; r->nodes && i < t->call.inputs.n; i++) {
        uint32_t number = t->call.inputs.at[i];
        if (r->nodes[number] != t->call.nodes.at[number])
            node_release(r->nodes[number]);
    }
    for (size_t k = 0; r->results && k < t->call.outputs.n; k++)
        if (r->results[k])
            node_release(r->results[k]);
    for (uint32_t i = 0; r->values && i < t->n_results; i++)
        if (r->values[i])
            node_release(r->values[i]);
    os_free(r->nodes);
    os_free(r->results);
    os_free(r->values);
    os_free(r->scalars);
    os_free(r->held);
}

/* Builds the call with the current values; *retrace when the template no longer fits. `base` is the stream's position. */
static Status replay_begin(Replay *r, const Template *t, kiln_tensor *const *in, uint64_t base, bool *retrace)
{
    r->call = t->call;
    r->nodes = copy_bytes(t->call.nodes.at, sizeof *r->nodes * t->call.nodes.n);
    r->results = os_calloc(t->call.outputs.n + 1, sizeof *r->results);
    r->values = os_calloc(t->n_results + 1, sizeof *r->values);
    r->scalars = copy_bytes(t->call.scalars.at, sizeof *r->scalars * t->call.scalars.n);
    r->held = os_calloc(t->call.inputs.n + 1, sizeof *r->held);
    if (!r->nodes || !r->results || !r->values || !r->scalars || !r->held)
        return fail(ST_OUT_OF_MEMORY, "no memory for calling a function");
    for (size_t i = 0; i < t->call.inputs.n; i++) {
        RtNode **slot = &r->nodes[t->call.inputs.at[i]], *node;
        TRY(source_node(&t->inputs[i], in, NULL, &node));
        *retrace |= node->strided != (*slot)->strided;
        *slot = node;
    }
    for (size_t k = 0; k < t->call.outputs.n; k++) {
        r->results[k] = node_like(t->call.nodes.at[t->call.outputs.at[k]]);
        if (!r->results[k])
            return ST_OUT_OF_MEMORY;
        r->nodes[t->call.outputs.at[k]] = r->results[k];
    }
    for (uint32_t i = 0; i < t->n_results; i++)
        TRY(source_node(&t->results[i], in, r->results, &r->values[i]));
    for (uint32_t d = 0; d < t->n_draws; d++) {
        const Draw *draw = &t->draws[d];
        if (draw->counter_scalar != UINT32_MAX)
            r->scalars[draw->counter_scalar] = base + (draw->start - t->draws[0].start);
        if (draw->key_scalar != UINT32_MAX)
            r->scalars[draw->key_scalar] = random_key();
    }
    r->call.nodes.at = r->nodes;
    r->call.scalars.at = r->scalars;
    r->call.facts.scalars = r->scalars;
    r->call.held = r->held;
    return ST_OK;
}

/* Exchanges what the assigned handles mean with `meaning`, references included. */
static void swap_assigned(const Template *t, RtNode **meaning)
{
    for (uint32_t i = 0; i < t->n_assigned; i++) {
        RtNode *before = t->assigned[i]->node;
        t->assigned[i]->node = meaning[i];
        meaning[i] = before;
    }
}

/* Serves the call with the assigned handles already meaning its results, so that nothing but the call holds what they meant
 * before and it may be overwritten in place. A failure gives them their old meaning back. */
static Status replay_serve(Replay *r, const Template *t, uint32_t n_out, Loc loc)
{
    RtNode **meaning = r->values + n_out;
    swap_assigned(t, meaning);
    for (size_t i = 0; i < t->call.inputs.n; i++) {
        r->held[i] = 1;
        for (uint32_t k = 0; k < t->n_assigned; k++)
            r->held[i] += meaning[k] == r->nodes[t->call.inputs.at[i]];
    }
    Status status = t->call.outputs.n ? eval_serve(&r->call, "kiln_function_call", loc) : ST_OK;
    if (status != ST_OK)
        swap_assigned(t, meaning);
    return status;
}

static Status hand_out(RtNode *const *values, kiln_tensor **out, int n_out)
{
    for (int i = 0; i < n_out; i++) {
        out[i] = tensor_new(node_retain(values[i]));
        if (!out[i]) {
            memset(out, 0, sizeof(kiln_tensor *) * (size_t)n_out);
            return ST_OUT_OF_MEMORY;
        }
    }
    return ST_OK;
}

static Status replay(const Template *t, kiln_tensor *const *in, kiln_tensor **out, int n_out, uint64_t base, Loc loc,
                     bool *retrace)
{
    *retrace = !renumber(t);
    if (*retrace)
        return ST_OK;
    Replay r = {0};
    Status status = replay_begin(&r, t, in, base, retrace);
    if (status == ST_OK && !*retrace)
        status = replay_serve(&r, t, (uint32_t)n_out, loc);
    if (status == ST_OK && !*retrace)
        status = hand_out(r.values, out, n_out);
    replay_free(&r, t);
    return status;
}

/* --- tracing --------------------------------------------------------------------------------------------------------------------- */

/* A tensor that stands for an evaluated input: the same data, another node. */
static kiln_tensor *stand_in(const RtNode *node)
{
    RtNode *copy = node_new(OP_INPUT, (DType)node->dtype, node->rank, node->dim, 0, 0);
    if (!copy)
        return NULL;
    copy->loc = node->loc;
    if (node->strided) {
        copy->stride = os_alloc(sizeof *copy->stride * MAX_RANK);
        if (!copy->stride) {
            node_release(copy);
            (void)fail(ST_OUT_OF_MEMORY, "no memory for tracing a function");
            return NULL;
        }
        memcpy(copy->stride, node->stride, sizeof *copy->stride * node->rank);
        copy->strided = true;
    }
    node_set_storage(copy, storage_retain(atomic_load(&node->storage)), node->data);
    return tensor_new(copy);
}

typedef struct Traced {
    Trace trace;
    kiln_tensor **args, **outs;
    RtNode **roots;             /* results: outputs, then what the assigned handles would mean; a reference each */
    uint32_t n_roots;
} Traced;

static void traced_free(Traced *traced)
{
    for (uint32_t i = 0; i < traced->n_roots; i++)
        node_release(traced->roots[i]);
    trace_free(&traced->trace);
    os_free(traced->args);
    os_free(traced->outs);
    os_free(traced->roots);
}

/* An output is NULL: because something inside failed, or because nobody set it. */
static Status fail_unset(int k)
{
    Status status = (Status)kiln_error_status();
    if (status == ST_OK)
        return fail(ST_INVALID, "the function left out[%d] unset", k);
    (void)fail(status, "inside the function: %s", kiln_error_message());
    kiln_clear_error();
    return status;
}

/* Runs the C function on stand-ins. Handles that it assigned get their old meaning back: replay assigns them. */
static Status run_body(kiln_function *f, kiln_tensor *const *in, Traced *traced)
{
    static atomic_uint serial;
    Trace *trace = &traced->trace;
    traced->args = os_calloc((size_t)f->n_in + 1, sizeof *traced->args);
    traced->outs = os_calloc((size_t)f->n_out + 1, sizeof *traced->outs);
    trace->arg_nodes = os_calloc((size_t)f->n_in + 1, sizeof *trace->arg_nodes);
    if (!traced->args || !traced->outs || !trace->arg_nodes)
        return fail(ST_OUT_OF_MEMORY, "no memory for tracing a function");
    for (int i = 0; i < f->n_in; i++) {
        if (!(traced->args[i] = stand_in(in[i]->node)))
            return ST_OUT_OF_MEMORY;
        trace->arg_nodes[trace->n_args++] = node_retain(traced->args[i]->node);
    }
    trace->args = traced->args;
    trace_serial = atomic_fetch_add(&serial, 1) + 1;
    trace_current = trace;
    f->body(traced->args, traced->outs, f->user);
    trace_current = NULL;

    size_t n = (size_t)f->n_out + trace->assigned.n;
    traced->roots = os_calloc(n + 1, sizeof *traced->roots);
    for (int i = 0; traced->roots && i < f->n_out && traced->outs[i]; i++)
        traced->roots[traced->n_roots++] = node_retain(traced->outs[i]->node);
    bool complete = traced->n_roots == (uint32_t)f->n_out;
    for (size_t i = 0; i < trace->assigned.n; i++) {
        kiln_tensor *p = trace->assigned.at[i];
        RtNode *meaning = p->node;
        p->node = node_retain(trace->old.at[i]);
        if (traced->roots && complete)
            traced->roots[traced->n_roots++] = meaning;
        else
            node_release(meaning);
    }
    if (!traced->roots || trace->failed)
        return fail(ST_OUT_OF_MEMORY, "no memory for tracing a function");
    return complete ? ST_OK : fail_unset((int)traced->n_roots);
}

/* For a function that cannot be replayed: its results as they were recorded. */
static Status finish_directly(const Traced *traced, kiln_tensor **out, int n_out, Loc loc)
{
    TRY(eval_nodes(traced->roots, traced->n_roots, "kiln_function_call", loc));
    for (size_t i = 0; i < traced->trace.assigned.n; i++) {
        kiln_tensor *p = traced->trace.assigned.at[i];
        RtNode *before = p->node;
        p->node = node_retain(traced->roots[(size_t)n_out + i]);
        node_release(before);
    }
    return hand_out(traced->roots, out, n_out);
}

static void warn_sync(kiln_function *f, const Trace *trace)
{
    if (f->warned)
        return;
    f->warned = true;
    char key[48];
    snprintf(key, sizeof key, "sync in function %p", (void *)f);
    log_warn_once(key, "%s at %s:%d inside a kiln_function: its outcome may steer the function, so it is run anew at each call",
                  trace->sync_api, trace->sync_loc.file ? trace->sync_loc.file : "?", trace->sync_loc.line);
}

/* Keeps the template in front of the list, dropping the oldest beyond MAX_TEMPLATES. */
static void keep_template(kiln_function *f, Template *t, const Bytes *signature, uint64_t options)
{
    t->signature = copy_bytes(signature->at, signature->n);
    t->signature_bytes = signature->n;
    t->options = options;
    t->next = f->templates;
    f->templates = t;
    Template **link = &f->templates;
    for (int i = 0; i < MAX_TEMPLATES && *link; i++)
        link = &(*link)->next;
    while (*link) {
        Template *old = *link;
        *link = old->next;
        template_free(old);
    }
}

static Status trace_and_call(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, const Bytes *signature, Loc loc)
{
    uint64_t options = options_generation();
    Traced traced = {0};
    kiln_scope *scope = kiln_scope_begin();
    Status status = run_body(f, in, &traced);
    kiln_scope_end(scope);

    Template *t = NULL;
    if (status == ST_OK && traced.trace.synced)
        warn_sync(f, &traced.trace);
    else if (status == ST_OK && option_int(OPT_MODE) != MODE_EAGER)
        t = template_new(&traced.trace, traced.roots, traced.n_roots);
    bool retrace = true;
    if (t) {
        uint64_t base = traced.trace.draws.n ? traced.trace.draws.at[0].start : 0;
        status = replay(t, in, out, f->n_out, base, loc, &retrace);
        keep_template(f, t, signature, options);
    }
    if (status == ST_OK && retrace)
        status = finish_directly(&traced, out, f->n_out, loc);
    traced_free(&traced);
    return status;
}

/* --- the public functions ---------------------------------------------------------------------------------------------------------- */

kiln_function *kiln_function_new(kiln_function_body *body, int n_in, int n_out, void *user)
{
    Loc nowhere = {NULL, 0};
    if (!body || n_in < 0 || n_out < 1) {
        (void)error_keep(fail(ST_INVALID, "needs a function, n_in >= 0 and n_out >= 1 (got n_in %d, n_out %d)", n_in, n_out),
                         "kiln_function_new", nowhere);
        return NULL;
    }
    kiln_function *f = os_calloc(1, sizeof *f);
    if (!f) {
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "no memory"), "kiln_function_new", nowhere);
        return NULL;
    }
    *f = (kiln_function){.body = body, .user = user, .n_in = n_in, .n_out = n_out};
    return f;
}

void kiln_function_free(kiln_function *f)
{
    while (f && f->templates) {
        Template *t = f->templates;
        f->templates = t->next;
        template_free(t);
    }
    os_free(f);
}

static Template *find_template(kiln_function *f, const Bytes *signature)
{
    uint64_t options = options_generation();
    for (Template **link = &f->templates; *link; link = &(*link)->next) {
        Template *t = *link;
        if (t->options != options || t->signature_bytes != signature->n ||
            memcmp(t->signature, signature->at, signature->n) != 0)
            continue;
        *link = t->next;
        t->next = f->templates;
        f->templates = t;
        return t;
    }
    return NULL;
}

static void drop_first_template(kiln_function *f)
{
    Template *t = f->templates;
    f->templates = t->next;
    template_free(t);
}

static Status call_function(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, Loc loc)
{
    Bytes signature = {0};
    RtNode **nodes = os_calloc((size_t)f->n_in + 1, sizeof *nodes);
    if (!nodes)
        return fail(ST_OUT_OF_MEMORY, "no memory for calling a function");
    for (int i = 0; i < f->n_in; i++)
        nodes[i] = in[i]->node;
    Status status = eval_nodes(nodes, (uint32_t)f->n_in, "kiln_function_call", loc); /* pending inputs first */
    os_free(nodes);
    TRY(status);
    if (!signature_of(f->n_in, in, &signature)) {
        os_free(signature.at);
        return ST_OUT_OF_MEMORY;
    }
    bool retrace = true;
    Template *t = find_template(f, &signature);
    if (t) {
        status = replay(t, in, out, f->n_out, random_advance(t->drawn), loc, &retrace);
        if (status == ST_OK && retrace)
            drop_first_template(f);
    }
    if (status == ST_OK && retrace)
        status = trace_and_call(f, in, out, &signature, loc);
    os_free(signature.at);
    return status;
}

/* Inside another function's trace a function is simply part of it. */
static Status call_inline(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_tensor **copy = copy_bytes(in, sizeof *copy * (size_t)f->n_in); /* the body may not change the caller's array */
    if (!copy)
        return fail(ST_OUT_OF_MEMORY, "no memory for calling a function");
    f->body(copy, out, f->user);
    os_free(copy);
    for (int i = 0; i < f->n_out; i++)
        if (!out[i])
            return fail_unset(i);
    return ST_OK;
}

kiln_status kiln_function_call_at(const char *file, int line, kiln_function *f, kiln_tensor *const *in, kiln_tensor **out)
{
    static const char api[] = "kiln_function_call";
    Loc loc = {file, line};
    if (!f || (f->n_in && !in) || !out)
        return error_sync(fail(ST_INVALID, "needs a function, inputs and room for outputs"), api, loc);
    memset(out, 0, sizeof *out * (size_t)f->n_out);
    for (int i = 0; i < f->n_in; i++)
        if (!in[i])
            return error_null("an input", api, loc);
    if (trace_current)
        return error_sync(call_inline(f, in, out), api, loc);
    eval_lock();
    Status status = call_function(f, in, out, loc);
    eval_unlock();
    return error_sync(status, api, loc);
}

kiln_status(kiln_function_call)(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out)
{
    return kiln_function_call_at(NULL, 0, f, in, out);
}

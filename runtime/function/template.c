/* Making templates from traces, and comparing them: see template.h. Replaying them: runtime/function/replay.c. */
#define KILN_NO_LOCATIONS
#include "runtime/function/template.h"
#include "ir/base/bytes.h"
#include "ir/base/os.h"
#include "runtime/api/mark.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/eval/sync.h"
#include "runtime/record/bodies.h"

#include <string.h>

/* --- templates ------------------------------------------------------------------------------------------------------------ */

static void source_free(Source *s)
{
    if (s->handle)
        kiln_release(s->handle);
    if (s->node)
        node_release(s->node);
}

void template_drop(Template *t)
{
    t->dropped = t->users || eval_own_repeats(t);
    if (!t->dropped)
        template_free(t);
}

void template_free(Template *t)
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
    for (uint32_t i = 0; i < 2 * t->n_alike; i++)
        kiln_release(t->alike[i]);
    os_free(t->alike);
    for (uint32_t i = 0; i < t->n_numbers; i++)
        kiln_release(t->numbers[i].handle);
    os_free(t->numbers);
    os_free(t->assigned);
    os_free(t->draws);
    os_free(t->now);
    os_free(t->fresh);
    os_free(t->values);
    os_free(t->scalars);
    os_free(t->held);
    seats_free(t);
    cache_forget(&t->memo);
    os_free(t);
}

#define COPY_BUF(to, from) ((to).at = os_copy((from).at, sizeof *(from).at * (from).n), (to).n = (to).cap = (from).n, (to).at != NULL)

typedef struct Capture {
    Template *t;
    RtNode *const *roots;
    uint32_t n_roots;
} Capture;

/* Takes a copy of the call instead of serving it. A graph that must be cut into several calls is not captured. */
static Status capture_call(Evaluation *e, Call *call, void *user)
{
    (void)e;
    Capture *capture = user;
    if (capture->t->call.nodes.at)
        return fail(ST_UNSUPPORTED, "the function's graph is too large for one program");
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
         COPY_BUF(copy->structure, call->structure) && COPY_BUF(copy->signature, call->signature) && COPY_BUF(copy->ints, call->ints) &&
         COPY_BUF(copy->scalars, call->scalars);
    if (!ok)
        return fail(ST_OUT_OF_MEMORY, "no memory for a traced function");
    copy->key = (CallKey){call->key.hash, copy->structure.at, copy->signature.at, copy->structure.n, copy->signature.n};
    copy->facts = (Facts){copy->ints.at, copy->scalars.at, (uint32_t)copy->ints.n, (uint32_t)copy->scalars.n};
    copy->device = call->device;
    return ST_OK;
}

/* What a captured handle meant when the trace began. */
static RtNode *meaning_of(const Trace *trace, kiln_tensor *handle)
{
    for (size_t k = 0; k < trace->assigned.n; k++)
        if (trace->assigned.at[k] == handle)
            return trace->old.at[k];
    return handle->node;
}

static bool note_alike(Template *t, const Trace *trace)
{
    t->alike = os_calloc(2 * trace->used.n + 1, sizeof *t->alike);
    for (size_t j = 1; j < trace->used.n && t->alike; j++)
        for (size_t i = 0; i < j; i++) {
            if (meaning_of(trace, trace->used.at[i]) != meaning_of(trace, trace->used.at[j]))
                continue;
            t->alike[2 * t->n_alike] = kiln_retain(trace->used.at[i]);
            t->alike[2 * t->n_alike++ + 1] = kiln_retain(trace->used.at[j]);
            break;
        }
    return t->alike != NULL;
}

static bool note_numbers(Template *t, const Trace *trace)
{
    t->numbers = os_calloc(trace->used.n + 1, sizeof *t->numbers);
    for (size_t i = 0; i < trace->used.n && t->numbers; i++) {
        const RtNode *node = meaning_of(trace, trace->used.at[i]);
        if (node_is_number(node))
            t->numbers[t->n_numbers++] = (Number){kiln_retain(trace->used.at[i]), node->scalar, node->dtype, node_pending(node)};
    }
    return t->numbers != NULL;
}

bool template_holds(const Template *t)
{
    bool holds = true;
    for (uint32_t i = 0; i < t->n_alike && holds; i++)
        holds = t->alike[2 * i]->node == t->alike[2 * i + 1]->node;
    for (uint32_t i = 0; i < t->n_numbers && holds; i++) {
        const RtNode *node = t->numbers[i].handle->node;
        holds = node_is_number(node) && node->dtype == t->numbers[i].dtype && node->scalar == t->numbers[i].bits;
    }
    return holds;
}

/* Where the value of an evaluated node of the trace comes from at the next call. */
static Source source_of(const Trace *trace, RtNode *node)
{
    for (uint32_t i = 0; i < trace->n_args; i++)
        if (trace->arg_nodes[i] == node)
            return (Source){.kind = FROM_ARG, .index = i};
    for (size_t i = 0; i < trace->used.n; i++) {
        kiln_tensor *handle = trace->used.at[i];
        if (meaning_of(trace, handle) == node)
            return (Source){.kind = FROM_HANDLE, .handle = kiln_retain(handle)};
    }
    return (Source){.kind = FROM_NODE, .node = node_retain(node)};
}

RtNode *node_shell(const RtNode *node, uint32_t n_in, uint32_t n_facts)
{
    RtNode *copy = node_new((Op)node->op, (DType)node->dtype, node->rank, node->dim, n_in, n_facts);
    if (!copy)
        return NULL;
    copy->device = node->device;
    copy->weak = node->weak;
    copy->attr = node->attr;
    copy->scalar = node->scalar;
    copy->loc = node->loc;
    copy->api = node->api;
    copy->phase = node->phase;
    copy->checkpoint = node->checkpoint;
    if (node_has_bodies(node)) { /* which copies share */
        copy->held = node->held;
        atomic_fetch_add(&copy->held->refs, 1);
    }
    if (marks_copy(copy, node))
        return copy;
    node_release(copy);
    return NULL;
}

RtNode *node_like(const RtNode *node)
{
    RtNode *copy = node_shell(node, node->n_in, node->n_facts);
    if (!copy)
        return NULL;
    for (uint32_t i = 0; i < node->n_in; i++)
        copy->in[i] = node_retain(node->in[i]);
    if (node->n_facts)
        memcpy(copy->facts, node->facts, sizeof *copy->facts * node->n_facts);
    return copy;
}

/* What stands for an input: a node without data. */
static RtNode *placeholder_for(const RtNode *node)
{
    RtNode *placeholder = node_new(OP_INPUT, (DType)node->dtype, node->rank, node->dim, 0, 0);
    if (!placeholder)
        return NULL;
    placeholder->device = (uint8_t)node_device(node);
    placeholder->stride = node->strided ? os_copy(node->stride, sizeof *node->stride * MAX_RANK) : NULL;
    placeholder->strided = placeholder->stride != NULL;
    if (placeholder->strided != node->strided)
        (void)fail(ST_OUT_OF_MEMORY, "no memory for tracing a function");
    else if (marks_copy(placeholder, node))
        return placeholder;
    node_release(placeholder);
    return NULL;
}

RtNode *node_of_data(const RtNode *node)
{
    RtNode *copy = placeholder_for(node);
    if (!copy)
        return NULL;
    copy->loc = node->loc;
    node_set_storage(copy, storage_retain(atomic_load(&node->storage)), node->data);
    return copy;
}

/* Replaces the call's nodes by copies and its inputs by placeholders: nothing of this call's data is held, no other graph's walk touches
 * the template, and what was traced stays what it was, for who has kept some of it. */
static bool make_copies(Template *t, const Trace *trace)
{
    Call *call = &t->call;
    size_t n_inputs = 0;
    for (size_t i = 0; i < call->nodes.n; i++) { /* operands come before those who use them */
        RtNode *node = call->nodes.at[i];
        bool is_input = n_inputs < call->inputs.n && call->inputs.at[n_inputs] == i;
        RtNode *copy = is_input ? placeholder_for(node) : node_like(node);
        if (!copy)
            return false;
        if (is_input)
            t->inputs[n_inputs++] = source_of(trace, node);
        for (uint32_t k = 0; k < copy->n_in; k++) {
            copy->in[k] = node_retain(call->nodes.at[node->in[k]->index]);
            node_release(node->in[k]);
        }
        copy->index = (uint32_t)i;
        call->nodes.at[i] = copy;
        node_release(node);
    }
    return true;
}

static void number_draw(const RtNode *scalar, size_t k, void *user)
{
    Template *t = user;
    for (uint32_t d = 0; d < t->n_draws; d++) {
        if (t->draws[d].counter == scalar)
            t->draws[d].counter_scalar = (uint32_t)k;
        if (t->draws[d].key == scalar)
            t->draws[d].key_scalar = (uint32_t)k;
    }
}

/* All that replaying needs room for. */
static bool make_room(Template *t)
{
    const Call *call = &t->call;
    t->now = os_copy(call->nodes.at, sizeof *t->now * call->nodes.n);
    t->fresh = os_calloc(call->outputs.n + 1, sizeof *t->fresh);
    t->values = os_calloc(t->n_results + 1, sizeof *t->values);
    t->scalars = os_copy(call->scalars.at, sizeof *t->scalars * call->scalars.n);
    t->held = os_calloc(call->inputs.n + 1, sizeof *t->held);
    return t->now && t->fresh && t->values && t->scalars && t->held;
}

/* Of a loop only the results that the function gives: nobody will ask for the others of this trace. */
static Status collect_alone(Evaluation *e, Capture *capture)
{
    e->alone = true;
    Status status = eval_collect(e, capture->roots, capture->n_roots, capture_call, capture);
    e->alone = false;
    return status;
}

Template *template_new(Evaluation *e, const Trace *trace, RtNode *const *roots, uint32_t n)
{
    Template *t = os_calloc(1, sizeof *t);
    Capture capture = {t, roots, n};
    if (!t || collect_alone(e, &capture) != ST_OK)
        goto failed;
    if (!t->call.nodes.n) /* the results are there already */
        t->call.device = node_device(roots[0]);
    if (device_current(&t->home) != ST_OK)
        t->home = DEVICE_ANY;
    t->inputs = os_calloc(t->call.inputs.n + 1, sizeof *t->inputs);
    t->results = os_calloc(n + 1, sizeof *t->results);
    t->assigned = os_calloc(trace->assigned.n + 1, sizeof *t->assigned);
    t->draws = os_copy(trace->draws.at, sizeof *t->draws * trace->draws.n);
    if (!t->inputs || !t->results || !t->assigned || !t->draws || !note_alike(t, trace) || !note_numbers(t, trace))
        goto failed;
    t->n_results = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!node_pending(roots[i])) {
            t->results[i] = source_of(trace, roots[i]);
            continue;
        }
        t->results[i].kind = FROM_RESULT;
        while (t->call.nodes.at[t->call.outputs.at[t->results[i].index]] != roots[i])
            t->results[i].index++;
        t->results[i].first = true;
        for (uint32_t j = 0; j < i; j++)
            t->results[i].first &= t->results[j].kind != FROM_RESULT || t->results[j].index != t->results[i].index;
    }
    for (size_t i = 0; i < trace->assigned.n; i++)
        t->assigned[t->n_assigned++] = kiln_retain(trace->assigned.at[i]);
    t->n_draws = (uint32_t)trace->draws.n;
    if (t->n_draws) { /* with what other threads drew in between */
        const Draw *first = &t->draws[0], *last = &t->draws[t->n_draws - 1];
        t->drawn = last->start - first->start + last->count;
    }
    call_scalars(&t->call, number_draw, t);
    if (make_copies(t, trace) && make_room(t))
        return t;
failed:
    if (t)
        template_free(t);
    return NULL;
}

/* --- comparing --- */

/* Memory that the function brings along (kiln_from) is new each time: its contents count. */
static bool same_data(const RtNode *a, const RtNode *b)
{
    if (a == b)
        return true;
    if (a->dtype != b->dtype || node_elements(a) != node_elements(b) || node_device(a) != node_device(b))
        return false;
    size_t bytes = dtype_bytes((DType)a->dtype) * (size_t)node_elements(a);
    const void *of_a, *of_b;
    void *copy_a = NULL, *copy_b = NULL;
    bool same =
        dense_elements(a, &of_a, &copy_a) == ST_OK && dense_elements(b, &of_b, &copy_b) == ST_OK && bytes_equal(of_a, bytes, of_b, bytes);
    os_free(copy_a);
    os_free(copy_b);
    return same;
}

static bool same_source(const Source *a, const Source *b)
{
    return a->kind == b->kind && a->index == b->index && a->handle == b->handle && (a->kind != FROM_NODE || same_data(a->node, b->node));
}

static bool is_drawn(const Template *t, uint32_t scalar)
{
    for (uint32_t d = 0; d < t->n_draws; d++)
        if (t->draws[d].counter_scalar == scalar || t->draws[d].key_scalar == scalar)
            return true;
    return false;
}

static bool same_draws(const Template *a, const Template *b)
{
    bool same = a->n_draws == b->n_draws;
    for (uint32_t d = 0; d < a->n_draws && same; d++)
        same = a->draws[d].count == b->draws[d].count;
    return same;
}

const char *template_difference(const Template *a, const Template *b)
{
    const Call *x = &a->call, *y = &b->call;
    if (a->n_alike != b->n_alike)
        return NULL; /* captured tensors that were two values are one now: another graph of one function, which nothing tells from others */
    if (!bytes_equal(x->structure.at, x->structure.n, y->structure.at, y->structure.n))
        return "it recorded other functions";
    if (!bytes_equal(x->signature.at, x->signature.n, y->signature.at, y->signature.n))
        return "a dtype differs";
    if (!bytes_equal(x->ints.at, sizeof *x->ints.at * x->ints.n, y->ints.at, sizeof *y->ints.at * y->ints.n))
        return "a size differs";
    for (uint32_t i = 0; i < x->scalars.n; i++)
        if (x->scalars.at[i] != y->scalars.at[i] && !is_drawn(a, i))
            return "a number that it read differs: pass it as a rank-0 tensor";
    if (a->n_results != b->n_results || !same_draws(a, b) || a->n_assigned != b->n_assigned)
        return "it draws or assigns otherwise";
    for (size_t i = 0; i < x->inputs.n; i++)
        if (!same_source(&a->inputs[i], &b->inputs[i]))
            return "it used another tensor: pass it as an input";
    for (uint32_t i = 0; i < a->n_results; i++)
        if (!same_source(&a->results[i], &b->results[i]))
            return "its results come from elsewhere";
    for (uint32_t i = 0; i < a->n_assigned; i++)
        if (a->assigned[i] != b->assigned[i])
            return "it assigned another tensor";
    return NULL;
}

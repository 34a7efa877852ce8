/*
 * kiln_function: a C function of tensors, traced once per kind of input and replayed from then on.
 *
 *   trace     run the C function on stand-ins of its inputs. What it records is kept as a *template*: the pending graph as
 *             a Call (runtime/eval/call.h) whose inputs are placeholders, and where each input's value comes from
 *   replay    put the current values into a copy of the call's node list, fresh nodes for the results, the stream's position
 *             and key into the scalars, and serve it like any other call: guards, cache, launch
 *
 * Besides its inputs the function may use other tensors (held by handle: an assign between two calls is seen), draw random
 * numbers (each replay advances the stream as the trace did), and assign (replayed). A sync point inside makes its outcome depend
 * on values: such a function is run each time, and a warning says so once.
 *
 * The body is the user's code, and runs while locks are held and a trace is half done. It may leave by a C++ exception, or end its thread:
 * this file is compiled with -fexceptions, and what must be undone stands in functions for __attribute__((cleanup)), which cost nothing
 * where a body returns. So whoever catches the exception finds everything as if the call had not been made. longjmp runs no clean-up: the
 * manual forbids it.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/api/mark.h"
#include "runtime/api/random.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/function/template.h"
#include "runtime/function/trace.h"
#include "runtime/gradient/param.h"
#include "runtime/mode/mode.h"
#include "runtime/record/thread.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TEMPLATES = 64 };

struct kiln_function {
    kiln_function_body *body;
    void *user;
    void *owned; /* `user` is the library's own, and goes with the function */
    int n_in, n_out;
    Template *templates; /* newest use first */
    bool warned;
    atomic_int calls; /* under way, under the evaluation lock */
};

_Thread_local Trace *trace_current;
_Thread_local uint32_t trace_serial;

#define CLEANUP(function) __attribute__((cleanup(function)))
/* What stands in a function beside the way of nearly every call costs that one registers: what must be undone has to lie in memory. */
#define COLD __attribute__((noinline, cold))

/* --- hooks of the recording layer ----------------------------------------------------------------------------------- */

#define LIST_ADD(trace, list, value)            \
    do {                                        \
        if (BUF_RESERVE(list, (list).n + 1))    \
            (list).at[(list).n++] = (value);    \
        else                                    \
            (trace)->failed = ST_OUT_OF_MEMORY; \
    } while (0)

/* Evaluates nodes. Those that lie nowhere yet go where the first input lies that lies somewhere, as operands of one function would. */
static Status evaluate(RtNode *const *nodes, uint32_t n, kiln_tensor *const *in, int n_in, Loc loc)
{
    int device = DEVICE_ANY;
    for (int i = 0; i < n_in && device == DEVICE_ANY; i++)
        device = node_device(in[i]->node);
    return eval_nodes_on(device, nodes, n, "kiln_function_call", loc);
}

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
    if (node_pending(t->node) && !node_is_number(t->node)) { /* its value is an input of the trace, not part of it */
        trace_current = NULL;
        Status status = evaluate(&t->node, 1, trace->args, (int)trace->n_args, t->node->loc);
        if (status != ST_OK && !trace->failed) {
            trace->failed = status;
            trace->why = os_copy(fail_message(), strlen(fail_message()) + 1);
        }
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
    os_free(trace->why);
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

/* Every fact of the inputs: dtype, rank, device, dims, strides, marks. */
static bool signature_of(int n, kiln_tensor *const *in, Bytes *out)
{
    out->n = 0;
    for (int i = 0; i < n; i++) {
        const RtNode *node = in[i]->node;
        uint8_t marks[MARKS_BYTES];
        size_t marked = node->marks ? marks_signature(node, marks) : 0;
        const uint8_t head[] = {node->dtype, node->rank, node->strided, (uint8_t)marked, (uint8_t)node_device(node)};
        if (!bytes_put(out, head, sizeof head) || !bytes_put(out, node->dim, sizeof *node->dim * node->rank) ||
            (node->strided && !bytes_put(out, node->stride, sizeof *node->stride * node->rank)) ||
            (marked && !bytes_put(out, marks, marked)))
            return false;
    }
    return true;
}

/* --- tracing --------------------------------------------------------------------------------------------------------------------- */

typedef struct Running {
    Body body; /* first the user's part */
    RtThread *thread;
    Trace *trace; /* that this thread was in before */
    kiln_mode *mode;
    EvalHeld held;
} Running;

/* However the body ends: scopes that it left open are ended. */
static void end_body(Running *running)
{
    scopes_end_within(running->thread, running->body.floor);
    running->thread->body = running->body.outer;
    trace_current = running->trace;
    modes_pop_to(running->thread, running->mode);
    eval_step_in(running->held);
}

/* Runs the C function, as a part of `trace`. Returns whether all that it did worked, or its errors were cleared: an update that failed shows nowhere
 * else. */
static bool call_body(const kiln_function *f, Trace *trace, kiln_tensor **in, kiln_tensor **out)
{
    RtThread *t = rt_thread();
    Running running CLEANUP(end_body) = {{t->body, t->scope, out, f->n_out, NULL}, t, trace_current, t->mode, eval_step_out()};
    uint64_t errors = errors_raised();
    t->body = &running.body;
    trace_current = trace;
    f->body(in, out, f->user);
    return !errors_since(errors);
}

/* A tensor that stands for an evaluated input: the same data, another node, and inside the function a parameter. */
static kiln_tensor *stand_in(const RtNode *node)
{
    RtNode *copy = node_of_data(node);
    if (copy && dtype_is_float((DType)copy->dtype)) {
        copy->tracked = true;
        copy->leaf = param_new_id();
    }
    return copy ? tensor_new(copy) : NULL;
}

typedef struct Traced {
    Trace trace;
    kiln_tensor **args, **outs;
    RtNode **roots; /* results: outputs, then what the assigned handles would mean; a reference each */
    uint32_t n_roots;
    bool complete; /* the body has returned */
} Traced;

/* Gives the k-th handle that the C function assigned its old meaning back; the caller gets the new one. */
static RtNode *unassign(const Trace *trace, size_t k)
{
    RtNode *meaning = trace->assigned.at[k]->node;
    trace->assigned.at[k]->node = node_retain(trace->old.at[k]);
    return meaning;
}

static void traced_free(Traced *traced)
{
    for (size_t i = 0; i < traced->trace.old.n && !traced->complete; i++)
        node_release(unassign(&traced->trace, i));
    for (uint32_t i = 0; i < traced->n_roots; i++)
        node_release(traced->roots[i]);
    trace_free(&traced->trace);
    os_free(traced->args);
    os_free(traced->outs);
    os_free(traced->roots);
}

/* Something inside failed, or an output is NULL because nobody set it. */
static Status fail_inside(int k)
{
    Status status = (Status)kiln_error_status();
    if (status == ST_OK)
        return fail(ST_INVALID, "the function left out[%d] unset", k);
    (void)fail(status, "inside the function: %s", kiln_error_message());
    kiln_clear_error();
    return status;
}

/* Of a number a copy, as any op that uses it gets: whether it was computed before makes no difference. */
static void add_root(Traced *traced, RtNode *node)
{
    RtNode *root = node_is_number(node) ? node_shell(node, 0, 0) : node_retain(node);
    if (root)
        traced->roots[traced->n_roots++] = root;
    else
        traced->trace.failed = ST_OUT_OF_MEMORY;
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
    bool worked = call_body(f, trace, traced->args, traced->outs);
    trace_current = trace;
    for (int i = 0; i < f->n_out && traced->outs[i]; i++)
        trace_use(traced->outs[i]); /* it may come from outside as it is */
    trace_current = NULL;

    size_t n = (size_t)f->n_out + trace->assigned.n;
    traced->roots = os_calloc(n + 1, sizeof *traced->roots);
    for (int i = 0; traced->roots && i < f->n_out && traced->outs[i]; i++)
        add_root(traced, traced->outs[i]->node);
    bool complete = !trace->failed && traced->n_roots == (uint32_t)f->n_out;
    for (size_t i = 0; i < trace->assigned.n; i++) {
        RtNode *meaning = unassign(trace, i);
        if (traced->roots && complete)
            add_root(traced, meaning);
        node_release(meaning);
    }
    traced->complete = true;
    if (trace->why)
        return fail(trace->failed, "%s", trace->why);
    if (!traced->roots || trace->failed)
        return fail(trace->failed ? trace->failed : ST_OUT_OF_MEMORY, "no memory for tracing a function");
    return complete && worked ? ST_OK : fail_inside((int)traced->n_roots);
}

static void end_scope(kiln_scope **scope) { kiln_scope_end(*scope); }
static void restore_cancel(const int *before) { os_cancel_restore(*before); }

/* Traces in a scope of its own, whose tensors are not needed: the trace holds their nodes. */
static Status trace_body(kiln_function *f, kiln_tensor *const *in, Traced *traced)
{
    int cancel CLEANUP(restore_cancel) = os_cancel_off();
    kiln_scope *scope CLEANUP(end_scope) = kiln_scope_begin();
    (void)cancel;
    return scope ? run_body(f, in, traced) : fail(ST_OUT_OF_MEMORY, "no memory for tracing a function");
}

/* Outside of the function an argument is a parameter no more, and a result is tracked where one that it may depend on is. */
static void untrack(const Traced *traced, kiln_tensor *const *in)
{
    const Trace *trace = &traced->trace;
    bool tracked = false;
    for (size_t i = 0; i < trace->used.n; i++)
        tracked |= trace->used.at[i]->node->tracked;
    for (uint32_t i = 0; i < trace->n_args; i++)
        tracked |= in[i]->node->tracked;
    for (uint32_t i = 0; i < traced->n_roots; i++)
        traced->roots[i]->tracked &= tracked;
    for (uint32_t i = 0; i < trace->n_args; i++) {
        RtNode *node = trace->arg_nodes[i];
        node->tracked = in[i]->node->tracked;
        node->leaf = 0;
        node->computed.api = "kiln_function_call";
        node->computed.loc = node->loc;
    }
}

/* For a function that cannot be replayed: its results as they were recorded. */
static Status finish_directly(const Traced *traced, kiln_tensor *const *in, kiln_tensor **out, int n_out, Loc loc)
{
    TRY(eval_nodes(traced->roots, traced->n_roots, "kiln_function_call", loc));
    untrack(traced, in);
    for (uint32_t i = 0; i < traced->n_roots && traced->trace.assigned.n; i++)
        TRY(device_settle(atomic_load(&traced->roots[i]->storage)));
    for (size_t i = 0; i < traced->trace.assigned.n; i++) {
        kiln_tensor *p = traced->trace.assigned.at[i];
        RtNode *before = p->node;
        p->node = node_retain(traced->roots[(size_t)n_out + i]);
        node_release(before);
        TRY(param_assigned(p));
    }
    return template_hand_out(traced->roots, out, n_out);
}

static void warn_sync(kiln_function *f, const Trace *trace)
{
    if (f->warned)
        return;
    f->warned = true;
    log_warn("%s at %s:%d inside a kiln_function: its outcome may steer the function, so it is run anew at each call", trace->sync_api,
             trace->sync_loc.file ? trace->sync_loc.file : "?", trace->sync_loc.line);
}

/* Drops the last one but those that were repeated without being moved to the front, unless all were. */
static void drop_oldest(kiln_function *f)
{
    Template **oldest = &f->templates->next, *old;
    for (Template **link = oldest; *link; link = &(*link)->next)
        if (!atomic_exchange_explicit(&(*link)->repeated, false, memory_order_relaxed))
            oldest = link;
    old = *oldest;
    *oldest = old->next;
    template_drop(old);
}

/* Keeps the template in front of the list, of at most MAX_TEMPLATES. */
static void keep_template(kiln_function *f, Template *t, const Bytes *signature, uint64_t options)
{
    t->signature = os_copy(signature->at, signature->n);
    t->signature_bytes = signature->n;
    t->options = options;
    t->mode = modes_key(rt_thread());
    t->next = f->templates;
    f->templates = t;
    int n = 0;
    for (const Template *each = t; each; each = each->next)
        n++;
    if (n > MAX_TEMPLATES)
        drop_oldest(f);
}

static void free_signature(Bytes *signature) { os_free(signature->at); }

static COLD Status trace_and_call(Evaluation *e, kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, Loc loc)
{
    Bytes signature CLEANUP(free_signature) = {0};
    if (!signature_of(f->n_in, in, &signature))
        return ST_OUT_OF_MEMORY;
    uint64_t options = options_generation();
    Traced traced CLEANUP(traced_free) = {0};
    Status status = trace_body(f, in, &traced);

    Template *t = NULL;
    if (status == ST_OK && traced.trace.synced)
        warn_sync(f, &traced.trace);
    else if (status == ST_OK && option_int(OPT_MODE) != MODE_EAGER)
        t = template_new(e, &traced.trace, traced.roots, traced.n_roots);
    bool retrace = true;
    if (t) {
        uint64_t base = traced.trace.draws.n ? traced.trace.draws.at[0].start : 0;
        status = template_replay(e, t, in, out, f->n_out, base, loc, &retrace);
        keep_template(f, t, &signature, options);
    }
    if (status == ST_OK && retrace)
        status = finish_directly(&traced, in, out, f->n_out, loc);
    return status;
}

/* --- the public functions ---------------------------------------------------------------------------------------------------------- */

API4(kiln_function *, kiln_function_new, kiln_function_body *, body, int, n_in, int, n_out, void *, user)
{
    static const char api[] = "kiln_function_new";
    Loc here = {file, line};
    if (!body || n_in < 0 || n_out < 0) {
        (void)error_keep(fail(ST_INVALID, "needs a function, n_in >= 0 and n_out >= 0 (got n_in %d, n_out %d)", n_in, n_out), api, here);
        return NULL;
    }
    kiln_function *f = os_calloc(1, sizeof *f);
    if (!f) {
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "no memory"), api, here);
        return NULL;
    }
    *f = (kiln_function){.body = body, .user = user, .n_in = n_in, .n_out = n_out};
    return f;
}

void kiln_function_free(kiln_function *f)
{
    bool called = f && atomic_load_explicit(&f->calls, memory_order_relaxed);
    for (const Template *t = f ? f->templates : NULL; t && !called; t = t->next)
        called = eval_own_repeats(t);
    if (called) {
        (void)error_keep(fail(ST_INVALID, "the function is being called: free it after that"), "kiln_function_free", (Loc){NULL, 0});
        return;
    }
    while (f && f->templates) {
        Template *t = f->templates;
        f->templates = t->next;
        template_free(t);
    }
    if (f)
        os_free(f->owned);
    os_free(f);
}

/* --- a function and its gradient ---------------------------------------------------------------------------------- */

typedef struct WithGradient {
    kiln_function_body *f;
    void *user;
    int n_out, n_wrt;
    int wrt[];
} WithGradient;

static void value_and_grad(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const WithGradient *w = user;
    w->f(in, out, w->user);
    kiln_tensor *few[8], **params = w->n_wrt > 8 ? os_calloc((size_t)w->n_wrt, sizeof *params) : few;
    if (!params)
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), "kiln_value_and_grad", (Loc){NULL, 0});
    for (int j = 0; params && j < w->n_wrt; j++)
        params[j] = in[w->wrt[j]];
    if (params && out[0])
        (void)kiln_grad(out[0], params, w->n_wrt, out + w->n_out);
    if (params != few)
        os_free(params);
}

static Status check_value_and_grad(kiln_function_body *f, int n_in, int n_out, const int *wrt, int n_wrt)
{
    if (!f || n_in < 0 || n_out < 1 || n_wrt < 0 || (n_wrt && !wrt))
        return fail(ST_INVALID,
                    "needs a function, n_in >= 0, n_out >= 1 and n_wrt >= 0 numbers of inputs (got n_in %d, n_out %d, n_wrt %d)", n_in,
                    n_out, n_wrt);
    for (int j = 0; j < n_wrt; j++)
        if (wrt[j] < 0 || wrt[j] >= n_in)
            return fail(ST_INVALID, "wrt[%d] is %d, and there are %d inputs, counted from 0", j, wrt[j], n_in);
    return ST_OK;
}

API6(kiln_function *, kiln_value_and_grad, kiln_function_body *, f, int, n_in, int, n_out, const int *, wrt, int, n_wrt, void *, user)
{
    static const char api[] = "kiln_value_and_grad";
    Loc here = {file, line};
    Status status = check_value_and_grad(f, n_in, n_out, wrt, n_wrt);
    if (status != ST_OK) {
        (void)error_keep(status, api, here);
        return NULL;
    }
    WithGradient *w = os_calloc(1, sizeof *w + sizeof *w->wrt * (size_t)n_wrt);
    kiln_function *made = w ? kiln_function_new(value_and_grad, n_in, n_out + n_wrt, w) : NULL;
    if (!made) {
        os_free(w);
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "no memory"), api, here);
        return NULL;
    }
    *w = (WithGradient){.f = f, .user = user, .n_out = n_out, .n_wrt = n_wrt};
    for (int j = 0; j < n_wrt; j++)
        w->wrt[j] = wrt[j];
    made->owned = w;
    return made;
}

static bool same_dims(const uint8_t *at, const RtNode *node)
{
    bool same = true;
    for (int axis = 0; axis < node->rank; axis++, at += sizeof *node->dim) {
        int64_t dim;
        memcpy(&dim, at, sizeof dim);
        same &= dim == node->dim[axis];
    }
    return same;
}

/* Are the inputs what signature_of wrote? Compared where they are: this is the way of every call but the first. */
static bool signature_fits(const Template *t, int n, kiln_tensor *const *in)
{
    const uint8_t *at = t->signature;
    for (int i = 0; i < n; i++) {
        const RtNode *node = in[i]->node;
        uint8_t marks[MARKS_BYTES];
        size_t marked = node->marks ? marks_signature(node, marks) : 0, dims = sizeof *node->dim * node->rank;
        if (at[0] != node->dtype || at[1] != node->rank || at[2] != node->strided || at[3] != marked || at[4] != node_device(node))
            return false;
        at += 5;
        if (!same_dims(at, node))
            return false;
        at += dims;
        if (node->strided && (memcmp(at, node->stride, dims) != 0))
            return false;
        at += node->strided ? dims : 0;
        if (marked && memcmp(at, marks, marked) != 0)
            return false;
        at += marked;
    }
    return true;
}

/* Where the template for these inputs is linked; there is NULL: none. */
static Template **look_for_template(kiln_function *f, kiln_tensor *const *in)
{
    uint64_t options = options_generation();
    Template **link = &f->templates;
    while (*link && ((*link)->options != options || (*link)->mode != modes_key(rt_thread()) || !signature_fits(*link, f->n_in, in)))
        link = &(*link)->next;
    return link;
}

/* That template, moved to the front. */
static Template *find_template(kiln_function *f, kiln_tensor *const *in)
{
    Template **link = look_for_template(f, in), *t = *link;
    if (t) {
        *link = t->next;
        t->next = f->templates;
        f->templates = t;
    }
    return t;
}

static void drop_first_template(kiln_function *f)
{
    Template *t = f->templates;
    f->templates = t->next;
    template_drop(t);
}

/* KILN_CHECK=pure: runs the C function once more and compares what it records with the template. The draws of this trace are those
 * of the call: *base is where they begin. */
static COLD Status check_pure(Evaluation *e, kiln_function *f, kiln_tensor *const *in, const Template *t, uint64_t *base)
{
    Traced traced CLEANUP(traced_free) = {0};
    Status status = trace_body(f, in, &traced);
    if (traced.trace.draws.n)
        *base = traced.trace.draws.at[0].start;
    Template *again = status == ST_OK ? template_new(e, &traced.trace, traced.roots, traced.n_roots) : NULL;
    if (status == ST_OK && traced.trace.synced)
        status = fail(ST_INVALID, "KILN_CHECK=pure: this time the function computes values (%s)", traced.trace.sync_api);
    else if (status == ST_OK && !again)
        status = ST_OUT_OF_MEMORY;
    else if (status == ST_OK && template_difference(t, again))
        status =
            fail(ST_INVALID, "KILN_CHECK=pure: the function does not do what it did when it was traced: %s", template_difference(t, again));
    if (again)
        template_free(again);
    return status;
}

/* Pending inputs are evaluated, together. */
static Status evaluate_inputs(int n, kiln_tensor *const *in, Loc loc)
{
    bool pending = false;
    for (int i = 0; i < n; i++)
        pending |= node_pending(in[i]->node);
    if (!pending)
        return ST_OK;
    RtNode **nodes = os_calloc((size_t)n, sizeof *nodes);
    if (!nodes)
        return fail(ST_OUT_OF_MEMORY, "no memory for calling a function");
    for (int i = 0; i < n; i++)
        nodes[i] = in[i]->node;
    Status status = evaluate(nodes, (uint32_t)n, in, n, loc);
    os_free(nodes);
    return status;
}

static Status call_function(Evaluation *e, kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, Loc loc)
{
    TRY(evaluate_inputs(f->n_in, in, loc));
    Template *t = find_template(f, in);
    const int64_t check = option_int(OPT_CHECK);
    bool pure = check == CHECK_PURE;
    Status repeated;
    if (t && !pure && check != CHECK_REPEAT && template_repeat(e, t, in, out, loc, &repeated))
        return repeated;
    eval_alone(); /* what follows has room for one at a time; it waits for others, who may have changed everything */
    TRY(evaluate_inputs(f->n_in, in, loc));
    t = find_template(f, in);
    if (t && !t->replaying && (!template_holds(t) || (pure && !template_fits(t)))) {
        drop_first_template(f);
        t = NULL;
    }
    if (t) {
        bool retrace;
        uint64_t base = 0;
        if (pure)
            TRY(check_pure(e, f, in, t, &base));
        else if (t->drawn)
            base = random_advance(t->drawn);
        Status status = template_replay(e, t, in, out, f->n_out, base, loc, &retrace);
        if (status != ST_OK || !retrace)
            return status;
        random_rewind(base, t->drawn); /* the trace draws anew */
        drop_first_template(f);
    }
    return trace_and_call(e, f, in, out, loc);
}

static void free_list(kiln_tensor ***list) { os_free(*list); }

/* A function that only assigns has no results, and `out` may be NULL. */
static void clear_results(kiln_tensor **out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = NULL;
}

/* An argument of a function that becomes part of what is recorded: a handle of its own, and, where another argument has the same value,
 * a node of its own, too, as its gradient is not the other's. No argument is weak: the cast is to its own dtype. */
static kiln_tensor *argument_of_inline(kiln_tensor *const *in, int n, int i, Loc loc)
{
    kiln_tensor *own = kiln_cast_at(in[i], (kiln_dtype)in[i]->node->dtype, loc.file, loc.line);
    bool again = false;
    for (int k = 0; k < n; k++)
        again |= k != i && in[k]->node == in[i]->node;
    if (!own || !again)
        return own;
    Rec r = rec_begin("kiln_function_call", loc.file, loc.line);
    return rec_end(&r, rec_same(&r, own->node));
}

/* Inside another function's trace a function is part of it, as it is of one that may only record, and in a recording its results are to be
 * differentiable. Arguments and results are handles of their own here, too. */
static COLD Status call_inline(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, Loc loc)
{
    kiln_tensor **own CLEANUP(free_list) = os_calloc((size_t)f->n_in + 1, sizeof *own);
    Status status = own ? ST_OK : fail(ST_OUT_OF_MEMORY, "no memory for calling a function");
    for (int i = 0; i < f->n_in && status == ST_OK; i++)
        if (!(own[i] = argument_of_inline(in, f->n_in, i, loc)))
            status = fail(ST_OUT_OF_MEMORY, "no memory for calling a function");
    if (status == ST_OK && !call_body(f, trace_current, own, out))
        status = fail_inside(0);
    for (int i = 0; i < f->n_out && status == ST_OK; i++) {
        if (!out[i]) {
            status = fail_inside(i);
            break;
        }
        trace_use(out[i]);
        out[i] = tensor_new(node_retain(out[i]->node));
        status = out[i] ? ST_OK : ST_OUT_OF_MEMORY;
    }
    if (status != ST_OK)
        clear_results(out, f->n_out);
    return status;
}

typedef struct Underway {
    kiln_function *f;
    kiln_tensor **out;
    bool returned; /* the body did, or needed not run */
} Underway;

static void count_call(kiln_function *f, int n)
{
    atomic_store_explicit(&f->calls, atomic_load_explicit(&f->calls, memory_order_relaxed) + n, memory_order_relaxed);
}

static void end_call(Underway *call)
{
    if (!call->returned)
        clear_results(call->out, call->f->n_out);
    count_call(call->f, -1);
    eval_unlock();
}

/* Is what such a call gives only a shape? Then it is recorded, as nothing is computed. */
static bool is_on_meta(kiln_tensor *const *in, int n_in)
{
    int device = DEVICE_ANY;
    for (int i = 0; i < n_in && device == DEVICE_ANY; i++)
        device = node_device(in[i]->node);
    return (device != DEVICE_ANY || device_current(&device) == ST_OK) && device == DEVICE_META;
}

/* Is the call part of something that is recorded? */
static bool is_part_of_more(const RtThread *t, kiln_tensor *const *in, int n_in)
{
    return trace_current || t->keeper || body_that_records(t) || !modes_replayed(t) || is_on_meta(in, n_in);
}

/* Without the lock (runtime/eval/lock.c): repeats what this thread repeated before. false: nothing was done. */
static bool call_own(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, Loc loc, Status *status)
{
    const RtThread *thread = rt_thread();
    Evaluation *e = thread->evaluation;
    bool dropped = false;
    int device;
    if (!e || !eval_own_possible(e->own) || e->busy || is_part_of_more(thread, in, f->n_in) || eval_told() || option_int(OPT_CHECK) ||
        eval_may_enter() != ST_OK || device_current(&device) != ST_OK || !eval_own_begin(e->own))
        return false;
    e->let_go.n = 0;
    Template *t = *look_for_template(f, in);
    bool done = t && template_repeat_own(e, t, in, out, loc, status, &dropped);
    eval_own_end(e->own);
    if (dropped)
        template_release_own(e, t);
    if (done)
        eval_own_let_go(e);
    return done;
}

/* Under the evaluation lock, which it gives back. */
static Status call_locked(Evaluation *e, kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, Loc loc)
{
    Underway call CLEANUP(end_call) = {f, out, false};
    count_call(f, 1);
    const RtThread *t = rt_thread();
    bool is_part = is_part_of_more(t, in, f->n_in);
    if (t->mode && !modes_replayed(t))
        log_warn_once(
            "mode",
            "kiln_function_call%s%s:%d: under a mode that sees each op (kiln_mode_push, kiln_log_ops_push) the function is run anew "
            "at each call",
            loc.file ? " at " : "", loc.file ? loc.file : "", loc.line);
    if (is_part)
        eval_alone();
    Status status = is_part ? call_inline(f, in, out, loc) : call_function(e, f, in, out, loc);
    call.returned = true;
    return status;
}

static kiln_status missing_input(int i, Loc loc)
{
    char which[32];
    snprintf(which, sizeof which, "input %d", i);
    return error_null(which, "kiln_function_call", loc);
}

kiln_status kiln_function_call_at(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out, const char *file, int line)
{
    static const char api[] = "kiln_function_call";
    Loc loc = {file, line};
    if (!f || (f->n_in && !in) || (f->n_out && !out))
        return error_sync(fail(ST_INVALID, "needs a function, inputs and room for outputs"), api, loc);
    clear_results(out, f->n_out);
    for (int i = 0; i < f->n_in; i++)
        if (!in[i])
            return missing_input(i, loc);
    Evaluation *e;
    Status status;
    if (call_own(f, in, out, loc, &status))
        return error_sync(status, api, loc);
    status = eval_enter_among(&e);
    return error_sync(status == ST_OK ? call_locked(e, f, in, out, loc) : status, api, loc);
}

kiln_status(kiln_function_call)(kiln_function *f, kiln_tensor *const *in, kiln_tensor **out)
{
    return kiln_function_call_at(f, in, out, NULL, 0);
}

/*
 * Running functions that may only record (body.h), and kiln_checkpoint.
 *
 * A checkpoint is no node: what its function records is recorded as ever, and each node remembers how many checkpoints it was recorded in
 * (RtNode.checkpoint); the results are those of the function around. All that a checkpoint means is a matter of the compiler, which
 * has forward and backward half in one graph (jit/remat.c). So gradients of any order and mode, captured handles, functions, recordings and
 * what is cut off large graphs need nothing of their own, and programs without gradients lose nothing: the body fuses with what is around.
 *
 * Compiled with -fexceptions, as functions of kiln_function are called (runtime/function/function.c).
 */
#define KILN_NO_LOCATIONS
#include "runtime/gradient/body.h"
#include "ir/base/os.h"
#include "runtime/gradient/custom.h"
#include "runtime/mode/mode.h"

#include <stdio.h>
#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

typedef struct Running {
    Body body; /* its floor: the scope of its own */
    RtThread *thread;
    uint32_t checkpoints; /* before; likewise: */
    uint8_t custom;
    kiln_recording *keeper;
    kiln_mode *mode;
    kiln_tensor **handle;
    int cancel;
} Running;

/* However the function ends. */
static void end_body(Running *running)
{
    RtThread *t = running->thread;
    if (running->body.floor) {
        scopes_end_within(t, running->body.floor);
        t->body = running->body.outer;
        kiln_scope_end(running->body.floor);
    }
    t->checkpoints = running->checkpoints;
    t->custom = running->custom;
    t->keeper = running->keeper;
    modes_pop_to(t, running->mode);
    os_free(running->handle);
    os_cancel_restore(running->cancel);
}

static Status take_results(const BodyRun *run, kiln_tensor **out)
{
    for (uint32_t k = 0; k < run->n_out; k++) {
        if (!out[k] && !run->sparse)
            return fail(ST_INVALID, "the function left out[%u] unset", k - run->hidden);
        if (!out[k])
            continue;
        trace_use(out[k]); /* it may come from outside as it is */
        run->out[k] = node_retain(out[k]->node);
        uint32_t depth = rt_thread()->checkpoints;
        if (run->checkpoint && run->out[k]->checkpoint == depth) /* a result is kept; deeper than MAX_CHECKPOINT all are alike */
            run->out[k]->checkpoint = (uint8_t)(depth - 1);
    }
    return ST_OK;
}

static Status run_body(const BodyRun *run, Running *running)
{
    RtThread *t = running->thread;
    kiln_scope *scope = kiln_scope_begin();
    running->handle = os_calloc((size_t)run->n_in + run->n_out + 1, sizeof(kiln_tensor *));
    if (!scope || !running->handle) {
        kiln_scope_end(scope);
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    }
    kiln_tensor **in = running->handle, **out = in + run->n_in;
    running->body = (Body){t->body, scope, out, (int)run->n_out, run->api};
    for (uint32_t i = 0; i < run->n_in; i++)
        if (run->in[i] && !(in[i] = tensor_new(node_retain(run->in[i]))))
            return fail(ST_OUT_OF_MEMORY, "out of memory");
    uint64_t errors = errors_raised();
    t->body = &running->body;
    t->checkpoints += run->checkpoint;
    if (run->custom && (run->custom != INSIDE_FUNCTION || t->custom != INSIDE_BODY))
        t->custom = run->custom;
    if (run->custom >= INSIDE_RULE) /* what is no value yet is nothing to keep */
        t->keeper = NULL;
    run->call(in, out, run->with);
    scopes_end_within(t, scope);
    if (errors_since(errors))
        return (Status)kiln_error_status();
    return take_results(run, out);
}

Status body_run(const BodyRun *run)
{
    RtThread *t = rt_thread();
    Running running CLEANUP(end_body) = {
        .thread = t, .checkpoints = t->checkpoints, .custom = t->custom, .keeper = t->keeper, .mode = t->mode, .cancel = os_cancel_off()};
    uint64_t errors = errors_raised();
    Status status = run_body(run, &running);
    for (uint32_t k = 0; k < run->n_out && status != ST_OK; k++) {
        node_release(run->out[k]);
        run->out[k] = NULL;
    }
    return errors_since(errors) ? status : error_keep(status, run->api, run->loc);
}

bool body_refuses(const char *api, Loc loc)
{
    const Body *body = body_that_records(rt_thread());
    if (body)
        (void)error_keep(fail(ST_INVALID, "inside the function of %s, which only records", body->api), api, loc);
    return body != NULL;
}

bool body_refuses_assign(const kiln_tensor *p, const char *api, Loc loc)
{
    const RtThread *t = rt_thread();
    const Body *body = body_that_records(t);
    if (!body)
        return false;
    bool inside = false, last = false;
    for (const kiln_scope *scope = t->scope; scope && !last && !inside; scope = scope_around(scope)) {
        inside = p->scope == scope;
        last = scope == body->floor;
    }
    if (!inside)
        (void)error_keep(fail(ST_INVALID, "p comes from outside of the function of %s, which only records", body->api), api, loc);
    return !inside;
}

Status body_hand_out(const char *api, Loc loc, uint32_t n, RtNode **node, kiln_tensor **out)
{
    Status status = ST_OK;
    for (uint32_t k = 0; k < n; k++) {
        if (status != ST_OK)
            node_release(node[k]);
        else if (!(out[k] = tensor_new(node[k])))
            status = ST_OUT_OF_MEMORY;
        node[k] = NULL;
    }
    if (status != ST_OK && n)
        memset(out, 0, sizeof *out * n);
    return error_keep(status, api, loc);
}

RtNode **body_arguments(Rec *r, bool functions, int n_in, kiln_tensor *const *in, int n_out, kiln_tensor **out, size_t more)
{
    char name[32] = "";
    RtNode **node = NULL;
    if (!functions || n_in < 0 || (n_in && !in) || n_out < 0 || (n_out && !out))
        rec_fail(r, ST_INVALID, "needs functions, n_in >= 0 inputs and room for n_out >= 0 outputs");
    else if (!(node = os_calloc((size_t)n_in + (size_t)n_out + more + 1, sizeof *node)))
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    for (int i = 0; i < n_in && r->status == ST_OK; i++) {
        if (!in[i])
            snprintf(name, sizeof name, "in[%d]", i);
        node[i] = rec_in(r, in[i], name);
    }
    if (out && n_out > 0) /* not earlier: it may be `in` */
        memset(out, 0, sizeof *out * (size_t)n_out);
    return node;
}

/* ---- kiln_checkpoint ---- */

typedef struct Plain {
    kiln_function_body *f;
    void *user;
} Plain;

static void call_plain(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Plain *plain = with;
    plain->f(in, out, plain->user);
}

static void free_nodes(RtNode ***nodes) { os_free(*nodes); }

kiln_status kiln_checkpoint(kiln_function_body *f, int n_in, kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user)
{
    return kiln_checkpoint_at(f, n_in, in, n_out, out, user, NULL, 0);
}

kiln_status kiln_checkpoint_at(kiln_function_body *f, int n_in, kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user,
                               const char *file, int line)
{
    Rec r = REC(kiln_checkpoint);
    Plain plain = {f, user};
    RtNode **node CLEANUP(free_nodes) = body_arguments(&r, f, n_in, in, n_out, out, 0);
    rec_end(&r, NULL);
    if (r.status != ST_OK)
        return (kiln_status)r.status;
    BodyRun run = {.api = r.api,
                   .loc = r.loc,
                   .n_in = (uint32_t)n_in,
                   .n_out = (uint32_t)n_out,
                   .in = node,
                   .out = node + n_in,
                   .call = call_plain,
                   .with = &plain,
                   .checkpoint = true};
    Status status = body_run(&run);
    if (status == ST_OK)
        status = body_hand_out(r.api, r.loc, run.n_out, run.out, out);
    return (kiln_status)status;
}

/* Collectives as nodes, their order, and the function that a program calls for one (runtime/comm/comm.h). */
#define KILN_NO_LOCATIONS
#include "ir/base/hash.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/comm/chain.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/gradient/custom.h"
#include "runtime/record/bodies.h"

#include <stddef.h>
#include <string.h>

/* ---- the chain ---- */

static struct {
    kiln_tensor *token;     /* i64: how many collectives were recorded; NULL: no world was opened */
    const RtThread *thread; /* whose they are */
    int64_t ran;
    bool half; /* some of an evaluation ran whose values were not there the last time that somebody looked */
    uint64_t recorded;
    kiln_tensor *elsewhere; /* chain_elsewhere */
} chain;

Status comm_open_chain(void)
{
    const int64_t none = 0;
    if (chain.token)
        return ST_OK;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *token = kiln_from(KILN_I64, KILN_SHAPE(), &none);
    if (token) {
        token->born = 0; /* it is none of a trace's */
        chain.token = kiln_retain(token);
        chain.thread = rt_thread();
    }
    kiln_scope_end(scope);
    return chain.token ? ST_OK : ST_OUT_OF_MEMORY;
}

uint64_t chain_next(void) { return ++chain.recorded; }

bool chain_there(void) { return chain.token != NULL; }

kiln_tensor *chain_elsewhere(void) { return chain.elsewhere; }

kiln_tensor *chain_open_elsewhere(void)
{
    const float zero = 0;
    if (chain.elsewhere)
        return chain.elsewhere;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *made = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(), &zero));
    if (made) {
        made->born = 0;
        chain.elsewhere = kiln_retain(made);
    }
    kiln_scope_end(scope);
    return chain.elsewhere;
}

/* A rule's nodes are a template, copied by who derives: they are in no order yet. */
static bool is_template(const Rec *r) { return r->thread->custom == INSIDE_RULE; }

Status chain_move(const Rec *r)
{
    char name[DEVICE_NAME];
    int to = r->device, from;
    if (to == DEVICE_ANY)
        TRY(device_current(&to));
    TRY(device_of(chain.token->node, &from));
    if (from == to || to == DEVICE_META) /* which has no values: refused */
        return ST_OK;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *moved = kiln_to_at(chain.token, device_name(to, name), r->loc.file, r->loc.line);
    if (moved) {
        trace_assign(chain.token);
        node_release(chain.token->node);
        chain.token->node = node_retain(moved->node);
    }
    kiln_scope_end(scope);
    return moved ? ST_OK : (Status)kiln_error_status();
}

RtNode *chain_operand(Rec *r)
{
    if (is_template(r))
        return rec_int(r, DT_I64, 0);
    Status status = chain_move(r);
    if (status != ST_OK) {
        r->status = status; /* the error is kept */
        return NULL;
    }
    trace_use(chain.token);
    return chain.token->node;
}

bool chain_advance(Rec *r, RtNode *call)
{
    const Shape number = {.dtype = DT_I64};
    if (is_template(r))
        return true;
    RtNode *made = bodies_result_new(r, call, call->attr.n - 1, &number), *old = chain.token->node;
    if (!made)
        return false;
    trace_assign(chain.token);
    chain.token->node = node_retain(made);
    node_release(old);
    return true;
}

/* What was recorded has run: also what nobody needed. */
static Status flush(const char *api, Loc loc) { return chain.token ? eval_nodes(&chain.token->node, 1, api, loc) : ST_OK; }

Status comm_enter(const kiln_group *g, const char *api, Loc loc)
{
    TRY(comm_may_record(rt_thread(), g));
    trace_sync(api, loc);
    TRY(flush(api, loc));
    return eval_enter(NULL);
}

/* ---- running ---- */

/* What a call holds besides its operands. */
typedef struct Attributes {
    uint32_t group;
    uint8_t op, how;
    uint16_t zero;
    int32_t root;
    int32_t from[]; /* SEND_RECV: of each rank */
} Attributes;

static uint64_t elements(const CallBuffer *b)
{
    uint64_t n = 1;
    for (int d = 0; d < b->rank; d++)
        n *= (uint64_t)b->dim[d];
    return n;
}

/* What travels. */
static const CallBuffer *payload(const Attributes *a, const CallBuffer *in, const CallBuffer *out) { return a->op == COMM_RECV ? out : in; }

static kiln_comm_call call_of(const kiln_group *g, const Attributes *a, const CallBuffer *in, const CallBuffer *out)
{
    const bool parts = a->op == KILN_COMM_REDUCE_SCATTER || a->op == KILN_COMM_ALL_TO_ALL, pair = comm_is_pair(a->op);
    const CallBuffer *data = payload(a, in, out);
    kiln_comm_call call = {.op = pair ? KILN_COMM_SEND_RECV : (kiln_comm_op)a->op,
                           .how = (kiln_reduce)a->how,
                           .dtype = (kiln_dtype)data->dtype,
                           .root = pair ? -1 : a->root,
                           .to = a->op == COMM_SEND ? a->root : -1,
                           .from = a->op == COMM_RECV ? a->root : -1,
                           .count = elements(data) / (parts ? (uint64_t)g->size : 1),
                           .in = in->data,
                           .out = out->data};
    for (int k = 0; k < g->size && a->op == KILN_COMM_SEND_RECV; k++) {
        if (k == g->rank)
            call.from = a->from[k];
        if (a->from[k] == g->rank)
            call.to = k;
    }
    return call;
}

/* Through memory that is given up where the backend may still write to it: the interpreter's own goes with it. */
static Status run_aside(kiln_group *g, const CommWhat *what, kiln_comm_call call, size_t in_bytes, size_t out_bytes, Loc loc)
{
    void *in = os_alloc(in_bytes + 1), *out = os_alloc(out_bytes + 1), *result = call.out;
    Status status = in && out ? ST_OK : comm_failed(g, "rank %d is out of memory", g->world->group->rank);
    if (status == ST_OK) {
        memcpy(in, call.in, in_bytes);
        memcpy(out, result, out_bytes);
        call.in = in;
        call.out = out;
        status = comm_run(g, what, &call, NULL, loc);
        if (status != ST_OK)
            return status;
        memcpy(result, out, out_bytes);
    }
    os_free(in);
    os_free(out);
    return status;
}

/* Bytes: what is less is there before anything else would be done. */
enum { IN_THE_AIR = 64 << 10 };

static CommWhat what_of(const Callee *callee, const CallBuffer *in, const CallBuffer *out)
{
    const Attributes *a = callee->attributes;
    in = payload(a, in, out);
    CommWhat what = {.op = a->op, .how = a->how, .dtype = in->dtype, .rank = (uint8_t)in->rank, .root = a->root};
    memcpy(what.dim, in->dim, sizeof *in->dim * (size_t)in->rank);
    if (a->op == KILN_COMM_SEND_RECV)
        what.from = hash128(a->from, callee->bytes - offsetof(Attributes, from)).lo;
    return what;
}

static size_t bytes_of(const CallBuffer *b) { return elements(b) * dtype_bytes((DType)b->dtype); }

/* The backend writes nothing to this rank's result. */
static bool gets_nothing(const kiln_group *g, const kiln_comm_call *call)
{
    return (call->op == KILN_COMM_REDUCE && call->root != g->rank) || (call->op == KILN_COMM_SEND_RECV && call->from < 0);
}

/* One that others need not wait for, in the air: at most so many are. */
static Status take_off(Evaluation *e, kiln_group *g, const CommWhat *what, const kiln_comm_call *call, Loc loc)
{
    e->flight[e->n_flights].in = call->in;
    e->flight[e->n_flights].out = call->out;
    e->flight[e->n_flights].flight = NULL;
    TRY(comm_begin(g, what, call, NULL, loc, &e->flight[e->n_flights].flight));
    e->n_flights++;
    return ST_OK;
}

static Status run(const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out, uint32_t n_out)
{
    const Attributes *a = callee->attributes;
    kiln_group *g = group_of(a->group);
    if (n_in != 2 || n_out != 2 || !g)
        return fail(ST_INTERNAL, "%s of a group that is not there", callee->name);
    int64_t number = *(const int64_t *)in[1].data;
    if (number != chain.ran)
        return comm_failed(
            g, "%s is collective number %lld of the process, and %lld ran: one of them in an evaluation that failed; ranks are out of step",
            callee->name, (long long)number + 1, (long long)chain.ran);
    chain.ran++;
    *(int64_t *)out[1].data = number + 1;
    const CommWhat what = what_of(callee, in, out);
    const kiln_comm_call call = call_of(g, a, in, out);
    const size_t in_bytes = bytes_of(in), out_bytes = bytes_of(out);
    if (gets_nothing(g, &call))
        memset(out->data, 0, out_bytes);
    Evaluation *e = rt_thread()->evaluation;
    if (comm_is_pair(a->op) && a->root == g->rank)
        return comm_own(g, &what, &call, loc);
    if (!e->launching)
        return run_aside(g, &what, call, in_bytes, out_bytes, loc);
    const bool large = bytes_of(payload(a, in, out)) >= IN_THE_AIR && g->size > 1 && !device_kind(e->record.device)->apart;
    TRY(comm_land(e, large ? FLIGHTS - 1 : 0));
    if (!large)
        return comm_run(g, &what, &call, NULL, loc);
    return take_off(e, g, &what, &call, loc);
}

static void tell_way(const kiln_group *g)
{
    World *w = g->world;
    if (w->told_way || !log_on(LOG_COMM))
        return;
    w->told_way = true;
    log_line(LOG_COMM, "world of %s: %s", w->backend->name,
             w->moves    ? "buffers on CUDA devices go as they are; what is combined is copied to memory of the host, and back"
             : w->device ? "buffers on CUDA devices stay there"
                         : "buffers on CUDA devices are copied to memory of the host, and back");
    const char *why_not = w->device && !w->moves ? w->device->no_graphs() : NULL;
    if (why_not)
        log_line(LOG_COMM, "world of %s: no collective is in a CUDA graph: %s", w->backend->name, why_not);
}

/* The number that keeps the order is not looked at on a device: the work on the stream has the order of the steps. That an evaluation failed
 * between two of its collectives is known by comm_whole, which was not called. */
Status comm_count(Evaluation *e, kiln_group *g, const char *name, uint32_t n)
{
    if (chain.half && !e->ordered)
        return comm_failed(g, "%s comes after collectives of an evaluation that failed: ranks are out of step", name);
    e->ordered = chain.half = true;
    chain.ran += n;
    return ST_OK;
}

Status comm_number(Evaluation *e, const Callee *callee, int64_t *number)
{
    const Attributes *a = callee->attributes;
    TRY(comm_flush(e));
    TRY(comm_count(e, group_of(a->group), callee->name, 0));
    *number = chain.ran;
    return ST_OK;
}

Status comm_call_on_device(Evaluation *e, const Callee *callee, Loc loc, const CallBuffer *in, const CallBuffer *out, bool kept, bool *done)
{
    const Attributes *a = callee->attributes;
    kiln_group *g = group_of(a->group);
    *done = g && g->world->device && g->size > 1 && g->world->device->carries(a->op) && !(comm_is_pair(a->op) && a->root == g->rank);
    if (g && g->size > 1)
        tell_way(g);
    if (!*done)
        return ST_OK;
    CommCall c = {.group = g,
                  .what = what_of(callee, in, out),
                  .call = call_of(g, a, in, out),
                  .loc = loc,
                  .name = callee->name,
                  .number = chain.ran + cuda_run_calls(e->cuda) + 1,
                  .kept = kept ? out[1].data : NULL};
    c.what.rank |= COMM_ON_DEVICE;
    const bool large = bytes_of(payload(a, in, out)) >= IN_THE_AIR && c.call.count;
    TRY(comm_land(e, large ? FLIGHTS - 1 : 0));
    return comm_collect(e, &c, gets_nothing(g, &c.call) ? bytes_of(out) : 0, large);
}

void comm_whole(void) { chain.half = false; }

Status comm_land(Evaluation *e, uint32_t left)
{
    Status status = ST_OK;
    while (e->n_flights > left && status == ST_OK) {
        status = e->flight[0].flight ? comm_end(e->flight[0].flight) : cuda_run_join(e->cuda);
        memmove(e->flight, e->flight + 1, sizeof *e->flight * --e->n_flights);
    }
    return status;
}

/* ---- recording ---- */

Status comm_may_record(const RtThread *t, const kiln_group *g)
{
    if (!g)
        return fail(ST_INVALID, "group is NULL");
    if (t->loop || t->custom == INSIDE_BODY)
        return fail(ST_UNSUPPORTED, "in a function of a loop, a branch or kiln_map: collectives stand outside of those");
    if (t->checkpoints)
        return fail(ST_UNSUPPORTED, "in a function of kiln_checkpoint, which may be computed twice: collectives stand outside of those");
    if (t != chain.thread)
        return fail(ST_INVALID, "collectives are recorded by one thread of a process, the one that opened the group");
    return ST_OK;
}

static const char *name_of(int op)
{
    static const char *const name[] = {[KILN_COMM_ALL_REDUCE] = "kiln.all_reduce",
                                       [KILN_COMM_ALL_GATHER] = "kiln.all_gather",
                                       [KILN_COMM_REDUCE_SCATTER] = "kiln.reduce_scatter",
                                       [KILN_COMM_BROADCAST] = "kiln.broadcast",
                                       [KILN_COMM_REDUCE] = "kiln.reduce",
                                       [KILN_COMM_ALL_TO_ALL] = "kiln.all_to_all",
                                       [KILN_COMM_SEND_RECV] = "kiln.send_recv",
                                       [COMM_SEND] = "kiln.send",
                                       [COMM_RECV] = "kiln.recv"};
    return name[op];
}

static Shape result_of(const Collective *c, const RtNode *x)
{
    int more = c->op == KILN_COMM_ALL_GATHER ? 1 : c->op == KILN_COMM_REDUCE_SCATTER ? -1 : 0;
    if (c->op == COMM_RECV)
        return c->type;
    if (c->op == COMM_SEND)
        return (Shape){.dtype = dtype_is_float((DType)x->dtype) ? x->dtype : DT_F32};
    Shape type = {.dtype = x->dtype, .rank = (uint8_t)(x->rank + more)};
    if (more > 0)
        type.dim[0] = c->group->size;
    memcpy(type.dim + (more > 0), x->dim + (more < 0), sizeof *x->dim * (size_t)(type.rank - (more > 0)));
    return type;
}

RtNode *collective_record(Rec *r, const Collective *c, RtNode *x)
{
    const size_t n_from = c->op == KILN_COMM_SEND_RECV ? (size_t)c->group->size : 0, bytes = sizeof(Attributes) + n_from * sizeof(int32_t);
    Attributes *a = x ? os_calloc(1, bytes) : NULL;
    RtNode *in[2] = {x, x ? chain_operand(r) : NULL}, *y = NULL;
    if (!a || !in[1]) {
        os_free(a);
        return !x || r->status != ST_OK ? NULL : rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    }
    a->group = c->group->id;
    a->op = (uint8_t)c->op;
    a->how = (uint8_t)c->how;
    a->root = c->root;
    for (size_t k = 0; k < n_from; k++)
        a->from[k] = c->from[k];
    const Callee callee = {
        .name = name_of(c->op), .version = "1", .attributes = a, .bytes = bytes, .derivative = true, .ordered = true, .host = run};
    const Shape type[2] = {result_of(c, x), {.dtype = DT_I64}};
    RtNode *call = bodies_call_new(r, &callee, 2, in, 2, type);
    os_free(a);
    if (call)
        y = bodies_result_new(r, call, 0, &type[0]);
    if (!y || !chain_advance(r, call))
        return NULL;
    if (rec_is_eager(r)) {
        Status status = eval_nodes_on(r->device, &y, 1, r->api, r->loc);
        if (status != ST_OK)
            return rec_failed(r, status);
    }
    return y;
}

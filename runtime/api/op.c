/*
 * kiln_op_register, kiln_op_apply, kiln_op_fail: ops of the user's.
 *
 *   decompose   is run in place, as kiln_checkpoint's function is, and leaves nothing of its own in the graph
 *   host, image become a CUSTOM node with its results (runtime/record/bodies.h), which runs as a step of the program (runtime/eval/launch_op.c)
 *   effects     KILN_OP_EFFECTS: no node. Inputs are computed and the function is called here and now: so it runs once for each call, in
 *               order, whatever is computed when, and again, by whom. A node would need an order among all nodes of a thread, through programs and cuts
 *   vjp, jvp    any of them but the last, as a function of kiln_custom_gradient (runtime/gradient/custom.h)
 *
 * Ops are registered for ever: recorded nodes refer to them. Compiled with -fexceptions, as functions of kiln_function are called.
 */
#define KILN_NO_LOCATIONS
#include "runtime/eval/op.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/device/device.h"
#include "runtime/eval/sync.h"
#include "runtime/gradient/body.h"
#include "runtime/gradient/custom.h"
#include "runtime/record/bodies.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

/* ---- registering ---- */

static kiln_op *_Atomic first;

static Status check_ways(const kiln_op_info *o)
{
    bool effects = o->flags & KILN_OP_EFFECTS;
    if (!o->decompose && !o->host && !o->image)
        return fail(ST_INVALID, "%s: needs decompose, host or image", o->name);
    if (o->decompose && (o->host || o->image || o->infer))
        return fail(ST_INVALID, "%s: decompose stands alone: what it records tells dtypes and shapes, and runs everywhere", o->name);
    if (!o->decompose && !o->infer)
        return fail(ST_INVALID, "%s: host and image need infer", o->name);
    if (o->image && (!o->image_bytes || !o->function || !o->launch))
        return fail(ST_INVALID, "%s: an image needs image_bytes, function and launch", o->name);
    if (effects && (!o->host || o->image || o->vjp || o->jvp))
        return fail(ST_INVALID, "%s: KILN_OP_EFFECTS is for host alone, without derivatives", o->name);
    if (!effects && !o->n_out)
        return fail(ST_INVALID, "%s: without outputs nothing would need it: say KILN_OP_EFFECTS", o->name);
    return ST_OK;
}

static Status check_info(const kiln_op_info *o)
{
    if (!o || !o->name || !o->version || !callee_word(o->name) || !callee_word(o->version))
        return fail(ST_INVALID, "needs a name and a version of letters, digits, _ . + and -, each of at most %d", CALLEE_NAME - 1);
    if (!strncmp(o->name, "kiln.", 5))
        return fail(ST_INVALID, "%s: names that begin with kiln. are those of kiln's own calls", o->name);
    for (int k = 0; k < (int)(sizeof o->reserved / sizeof *o->reserved); k++)
        if (o->reserved[k])
            return fail(ST_INVALID, "%s: reserved is not 0: it was made for a newer kiln, or begins with no {0}", o->name);
    if (o->n_in < 0 || o->n_in > OP_INPUTS || o->n_out < 0 || o->n_out > MAX_CALL_RESULTS || o->flags & ~(unsigned)KILN_OP_EFFECTS)
        return fail(ST_INVALID, "%s: needs 0 to %d inputs, 0 to %d outputs and known flags", o->name, OP_INPUTS, MAX_CALL_RESULTS);
    return check_ways(o);
}

static const char *keep(char **at, const void *from, size_t bytes)
{
    char *here = from ? memcpy(*at, from, bytes) : NULL;
    *at += from ? bytes + 1 : 0; /* and the 0 that is there */
    return here;
}

/* A copy; NULL: out of memory. */
static kiln_op *op_new(const kiln_op_info *o)
{
    size_t name = strlen(o->name), version = strlen(o->version), function = o->function ? strlen(o->function) : 0;
    size_t image = o->image ? o->image_bytes : 0, head = (sizeof(kiln_op) + 15) & ~(size_t)15;
    kiln_op *op = os_calloc(1, head + image + name + version + function + 4);
    if (!op)
        return NULL;
    char *at = (char *)op + head;
    op->info = *o;
    op->info.image = keep(&at, o->image, image); /* first: it may have to be aligned */
    op->info.name = keep(&at, o->name, name);
    op->info.version = keep(&at, o->version, version);
    op->info.function = keep(&at, o->function, function);
    if (o->image)
        op->image = hash128(o->image, image);
    return op;
}

/* The name belongs to who has it first. */
static Status enter(kiln_op *op)
{
    kiln_op *head = atomic_load(&first);
    do {
        for (const kiln_op *other = head; other; other = other->next)
            if (!strcmp(other->info.name, op->info.name))
                return fail(ST_INVALID, "%s is registered already, as version %s", op->info.name, other->info.version);
        op->next = head;
    } while (!atomic_compare_exchange_weak(&first, &head, op));
    return ST_OK;
}

const kiln_op *kiln_op_register(const kiln_op_info *info) { return kiln_op_register_at(info, NULL, 0); }

const kiln_op *kiln_op_register_at(const kiln_op_info *info, const char *file, int line)
{
    kiln_op *op = NULL;
    Status status = check_info(info);
    if (status == ST_OK && !(op = op_new(info)))
        status = fail(ST_OUT_OF_MEMORY, "out of memory");
    if (status == ST_OK)
        status = enter(op);
    if (status == ST_OK)
        return op;
    os_free(op);
    (void)error_keep(status, "kiln_op_register", (Loc){file, line});
    return NULL;
}

kiln_status kiln_op_fail(const char *format, ...)
{
    OpAtWork *work = rt_thread()->op;
    va_list args;
    va_start(args, format);
    if (work && format)
        work->said = vsnprintf(work->text, sizeof work->text, format, args) >= 0;
    va_end(args);
    return KILN_INVALID;
}

/* ---- a call ---- */

typedef struct Apply {
    const kiln_op *op;
    Callee callee; /* attributes are the caller's */
    Loc loc;
} Apply;

static const char api[] = "kiln_op_apply";

static Rec begin(const Apply *a) { return rec_begin(api, a->loc.file, a->loc.line); }

static kiln_type type_of(const RtNode *node)
{
    kiln_type type = {.dtype = (kiln_dtype)node->dtype, .shape.rank = node->rank};
    memcpy(type.shape.dim, node->dim, sizeof *node->dim * node->rank);
    return type;
}

/* The types of operands, then of results, freed with os_free. NULL: an error is kept. */
static kiln_type *types_of(const Apply *a, Rec *r, RtNode *const *in)
{
    const kiln_op_info *o = &a->op->info;
    kiln_type *types = os_calloc((size_t)o->n_in + (size_t)o->n_out + 1, sizeof *types);
    Status status = types ? ST_OK : fail(ST_OUT_OF_MEMORY, "out of memory");
    for (int k = 0; k < o->n_in && types; k++)
        types[k] = type_of(in[k]);
    if (status == ST_OK)
        status = op_infer(a->op, &a->callee, types, types + o->n_in, (Loc){NULL, 0});
    if (status == ST_OK)
        return types;
    rec_failed(r, status);
    os_free(types);
    return NULL;
}

static Shape shape_of(const kiln_type *type)
{
    Shape shape = {.dtype = (uint8_t)type->dtype, .rank = (uint8_t)type->shape.rank};
    memcpy(shape.dim, type->shape.dim, sizeof *shape.dim * shape.rank);
    return shape;
}

void op_record(Rec *r, const Callee *callee, uint32_t n_in, RtNode *const *in, uint32_t n_out, const Shape *type, RtNode **result)
{
    RtNode *node = bodies_call_new(r, callee, n_in, in, n_out, type);
    for (uint32_t k = 0; k < n_out && r->status == ST_OK; k++) {
        RtNode *made = bodies_result_new(r, node, k, &type[k]);
        result[k] = made ? node_retain(made) : NULL;
    }
    if (r->status == ST_OK && rec_is_eager(r)) {
        Status status = eval_nodes_on(r->device, result, n_out, r->api, r->loc);
        if (status != ST_OK)
            rec_failed(r, status);
    }
}

static void record_call(const Apply *a, Rec *r, RtNode *const *in, const kiln_type *out, RtNode **result)
{
    const kiln_op_info *o = &a->op->info;
    Shape type[MAX_CALL_RESULTS];
    for (int k = 0; k < o->n_out; k++)
        type[k] = shape_of(&out[k]);
    op_record(r, &a->callee, (uint32_t)o->n_in, in, (uint32_t)o->n_out, type, result);
}

/* One result of a call that is made here and now: memory of the host, which is the result's own on the CPU. */
typedef struct Made {
    Storage *storage;
    void *data;
    size_t bytes;
} Made;

static Status make_room(const kiln_type *type, int device, Made *made)
{
    made->bytes = op_bytes((DType)type->dtype, type->shape.rank, type->shape.dim);
    if (device_kind(device)->apart)
        made->data = os_alloc(made->bytes + 1);
    else if ((made->storage = storage_new(made->bytes)))
        made->data = made->storage->data;
    return made->data || made->storage ? ST_OK : fail(ST_OUT_OF_MEMORY, "out of memory");
}

static CallBuffer buffer_of(const kiln_type *type, const void *data)
{
    return (CallBuffer){.dtype = (uint8_t)type->dtype, .rank = type->shape.rank, .dim = type->shape.dim, .data = (void *)(uintptr_t)data};
}

/* Computes the operands and calls the function on them: out[0..n_out) is made. */
static Status call_now(const Apply *a, RtNode *const *in, const kiln_type *type, int device, Made *out)
{
    uint32_t n_in = (uint32_t)a->op->info.n_in, n_out = (uint32_t)a->op->info.n_out;
    CallBuffer *buffer = os_calloc((size_t)n_in + n_out + 1, sizeof *buffer);
    void **copy = os_calloc((size_t)n_in + 1, sizeof *copy);
    Status status = buffer && copy ? eval_nodes_on(device, in, n_in, api, a->loc) : fail(ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < n_in && status == ST_OK; k++) {
        const void *elements = NULL;
        status = dense_elements(in[k], &elements, &copy[k]);
        if (status == ST_OK)
            buffer[k] = buffer_of(&type[k], elements);
    }
    for (uint32_t k = 0; k < n_out && status == ST_OK; k++) {
        status = make_room(&type[n_in + k], device, &out[k]);
        if (status == ST_OK)
            buffer[n_in + k] = buffer_of(&type[n_in + k], out[k].data);
    }
    if (status == ST_OK)
        status = op_call_host(&a->callee, (Loc){NULL, 0}, buffer, n_in, buffer + n_in, n_out);
    for (uint32_t k = 0; k < n_out && status == ST_OK && device_kind(device)->apart; k++)
        status = storage_copied_to(device, out[k].data, out[k].bytes, &out[k].storage);
    for (uint32_t k = 0; k < n_out && device_kind(device)->apart; k++)
        os_free(out[k].data);
    for (uint32_t k = 0; k < n_in && copy; k++)
        os_free(copy[k]);
    os_free(copy);
    os_free(buffer);
    return status;
}

/* KILN_OP_EFFECTS: values, whose way to the operands a gradient does not find. */
static void do_effects(const Apply *a, Rec *r, RtNode *const *in, const kiln_type *type, RtNode **result)
{
    Made made[MAX_CALL_RESULTS] = {{0}};
    int n_in = a->op->info.n_in, n_out = a->op->info.n_out, device = r->device;
    bool tracked = false;
    Status status = device == DEVICE_ANY ? device_current(&device) : ST_OK;
    trace_sync(api, a->loc);
    if (status == ST_OK)
        status = call_now(a, in, type, device, made);
    for (int k = 0; k < n_in; k++)
        tracked |= in[k]->tracked && !in[k]->stop;
    for (int k = 0; k < n_out; k++) {
        const kiln_type *t = &type[n_in + k];
        if (status != ST_OK || r->status != ST_OK) {
            storage_release(made[k].storage);
            continue;
        }
        RtNode *node = rec_data(r, (DType)t->dtype, t->shape.rank, t->shape.dim, made[k].storage, made[k].storage->data, NULL);
        if (!node)
            continue;
        node->tracked = tracked && dtype_is_float((DType)t->dtype);
        node->api = api;
        node->computed.api = api;
        node->computed.loc = a->loc;
        result[k] = node_retain(node);
    }
    if (status != ST_OK)
        rec_failed(r, status);
}

static void free_nodes(RtNode ***nodes) { os_free(*nodes); }

/* host and image: the call as it is, without a derivative. */
static kiln_status apply_plain(const Apply *a, kiln_tensor *const *in, kiln_tensor **out)
{
    const kiln_op_info *o = &a->op->info;
    Rec r = begin(a);
    RtNode **node CLEANUP(free_nodes) = body_arguments(&r, true, o->n_in, in, o->n_out, out, 0);
    for (int k = 0; k < o->n_in && r.status == ST_OK; k++)
        node[k] = rec_strong(&r, node[k]);
    kiln_type *types = r.status == ST_OK ? types_of(a, &r, node) : NULL;
    if (types && o->flags & KILN_OP_EFFECTS)
        do_effects(a, &r, node, types, node + o->n_in);
    else if (types)
        record_call(a, &r, node, types + o->n_in, node + o->n_in);
    os_free(types);
    for (int k = 0; k < o->n_out && r.status != ST_OK && node; k++)
        node_release(node[o->n_in + k]);
    rec_end(&r, NULL);
    return (kiln_status)(r.status == ST_OK ? body_hand_out(api, a->loc, (uint32_t)o->n_out, node + o->n_in, out) : r.status);
}

/* ---- as functions that kiln calls ---- */

static void call_plain(kiln_tensor **in, kiln_tensor **out, void *with) { (void)apply_plain(with, in, out); }

static void call_decompose(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Apply *a = with;
    a->op->info.decompose(in, out, a->callee.attributes, a->callee.bytes, a->op->info.user);
}

static void call_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *with)
{
    const Apply *a = with;
    a->op->info.vjp(in, out, cotangents, grads, a->callee.attributes, a->callee.bytes, a->op->info.user);
}

static void call_jvp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **out_tangents, void *with)
{
    const Apply *a = with;
    a->op->info.jvp(in, out, tangents, out_tangents, a->callee.attributes, a->callee.bytes, a->op->info.user);
}

/* decompose where it has no derivative of its own: in place. */
static kiln_status apply_decompose(Apply *a, kiln_tensor *const *in, kiln_tensor **out)
{
    const kiln_op_info *o = &a->op->info;
    Rec r = begin(a);
    RtNode **node CLEANUP(free_nodes) = body_arguments(&r, true, o->n_in, in, o->n_out, out, 0);
    rec_end(&r, NULL);
    if (r.status != ST_OK)
        return (kiln_status)r.status;
    const BodyRun run = {.api = api,
                         .loc = a->loc,
                         .n_in = (uint32_t)o->n_in,
                         .n_out = (uint32_t)o->n_out,
                         .in = node,
                         .out = node + o->n_in,
                         .call = call_decompose,
                         .with = a};
    Status status = body_run(&run);
    return (kiln_status)(status == ST_OK ? body_hand_out(api, a->loc, run.n_out, run.out, out) : status);
}

kiln_status kiln_op_apply(const kiln_op *op, kiln_tensor *const *in, const void *attributes, size_t bytes, kiln_tensor **out)
{
    return kiln_op_apply_at(op, in, attributes, bytes, out, NULL, 0);
}

kiln_status kiln_op_apply_at(const kiln_op *op, kiln_tensor *const *in, const void *attributes, size_t bytes, kiln_tensor **out,
                             const char *file, int line)
{
    const Loc loc = {file, line};
    if (!op)
        return (kiln_status)error_keep(fail(ST_INVALID, "op is NULL"), api, loc);
    const kiln_op_info *o = &op->info;
    Status status = ST_OK;
    if ((o->n_in && !in) || (o->n_out && !out))
        status = fail(ST_INVALID, "%s needs inputs (%d) and room for outputs (%d)", o->name, o->n_in, o->n_out);
    else if ((bytes && !attributes) || bytes > CALLEE_ATTRIBUTES)
        status = fail(ST_INVALID, "%s: attributes of %zu bytes: they are NULL, or more than %d", o->name, bytes, CALLEE_ATTRIBUTES);
    if (error_keep(status, api, loc) != ST_OK || (o->flags & KILN_OP_EFFECTS && body_refuses(api, loc))) {
        for (int k = 0; out && k < o->n_out; k++)
            out[k] = NULL;
        return KILN_INVALID;
    }
    Apply a = {.op = op,
               .callee = {.name = o->name,
                          .version = o->version,
                          .attributes = attributes,
                          .bytes = bytes,
                          .derivative = o->vjp || o->jvp,
                          .image = op->image,
                          .host = op_call_host,
                          .op = op},
               .loc = loc};
    bool rule = rt_thread()->custom == INSIDE_RULE; /* where a derivative has none itself */
    if ((o->vjp || o->jvp) && !rule)
        return custom_gradient(api, loc, o->decompose ? call_decompose : call_plain, o->vjp ? call_vjp : NULL, o->jvp ? call_jvp : NULL,
                               o->n_in, in, o->n_out, out, &a);
    return o->decompose ? apply_decompose(&a, in, out) : apply_plain(&a, in, out);
}

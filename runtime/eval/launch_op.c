/*
 * Calling functions of the user's ops (runtime/eval/op.h), and of kiln's own (runtime/linalg/): as a step of a program, and for the interpreter.
 *
 * The user's run in the thread that evaluates, concurrently with others, in kiln's floating-point mode, and may compute nothing: the thread knows that an op is
 * at work (RtThread.op).
 */
#include "runtime/comm/comm.h"
#include "runtime/eval/op.h"
#include "ir/base/fp_mode.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "jit/options.h"
#include "runtime/device/device.h"
#include "runtime/eval/run.h"
#include "runtime/linalg/linalg.h"
#include "runtime/record/bodies.h"

#include <stdio.h>
#include <string.h>

/* ---- the user's functions ---- */

static void op_begin(OpAtWork *work, const kiln_op *op)
{
    RtThread *t = rt_thread();
    work->op = op;
    work->outer = t->op;
    work->said = false;
    work->text[0] = 0;
    t->op = work;
}

/* "acme.fft 1.2 (net.c:31)" */
static const char *op_text(const kiln_op *op, Loc loc, char *text, size_t size)
{
    int n = snprintf(text, size, "%s %s", op->info.name, op->info.version);
    if (loc.file)
        snprintf(text + n, size - (size_t)n, " (%s:%d)", path_name(loc.file), loc.line);
    return text;
}

enum { OP_TEXT = 2 * CALLEE_NAME + 256 };

/* What it returned, as a status with a message that names the op, and where it was recorded. */
static Status op_end(const OpAtWork *work, kiln_status status, Loc loc)
{
    char who[OP_TEXT];
    rt_thread()->op = work->outer;
    (void)fp_enter(); /* whatever it set */
    if (status == KILN_OK)
        return ST_OK;
    op_text(work->op, loc, who, sizeof who);
    if ((unsigned)status >= ST_COUNT)
        return fail(ST_INVALID, "%s: its function returned %d, which is no status", who, (int)status);
    bool other = status == KILN_COMPILE; /* of which the interpreter would take care */
    return fail(other ? ST_INVALID : (Status)status, "%s: %s", who, work->said ? work->text : status_name((Status)status));
}

Status op_refuses(void)
{
    const OpAtWork *work = rt_thread()->op;
    if (!work)
        return ST_OK;
    return fail(ST_INVALID, "a function of the op %s may only look at values that are computed already", work->op->info.name);
}

static Shape shape_of(const kiln_type *type)
{
    Shape shape = {.dtype = (uint8_t)type->dtype, .rank = (uint8_t)type->shape.rank};
    memcpy(shape.dim, type->shape.dim, sizeof *shape.dim * shape.rank);
    return shape;
}

static Status check_type(const kiln_op *op, const kiln_type *type, int k, Loc loc)
{
    char who[OP_TEXT];
    int64_t n;
    bool fits = (unsigned)type->dtype < DT_COUNT && type->shape.rank >= 0 && type->shape.rank <= MAX_RANK &&
                shape_numel(type->shape.rank, type->shape.dim, &n);
    return fits ? ST_OK : fail(ST_INVALID, "%s: infer gives no possible dtype and shape of out[%d]", op_text(op, loc, who, sizeof who), k);
}

Status op_infer(const kiln_op *op, const Callee *callee, const kiln_type *in, kiln_type *out, Loc loc)
{
    OpAtWork work;
    for (int k = 0; k < op->info.n_out; k++)
        out[k] = (kiln_type){.shape = {.rank = -1}};
    op_begin(&work, op);
    TRY(op_end(&work, op->info.infer(in, out, callee->attributes, callee->bytes, op->info.user), loc));
    for (int k = 0; k < op->info.n_out; k++)
        TRY(check_type(op, &out[k], k, loc));
    return ST_OK;
}

/* Does it still say so? */
static Status op_infer_again(const kiln_op *op, const Callee *callee, const kiln_type *in, const kiln_type *out, Loc loc)
{
    kiln_type now[MAX_CALL_RESULTS];
    char who[OP_TEXT], one[SHAPE_TEXT], other[SHAPE_TEXT];
    TRY(op_infer(op, callee, in, now, loc));
    for (int k = 0; k < op->info.n_out; k++) {
        Shape is = shape_of(&now[k]), was = shape_of(&out[k]);
        if (is.dtype != was.dtype || is.rank != was.rank || memcmp(is.dim, was.dim, sizeof *is.dim * is.rank) != 0)
            return fail(ST_INVALID, "%s: infer gives %s for out[%d], and gave %s when it was recorded", op_text(op, loc, who, sizeof who),
                        shape_text(&is, one), k, shape_text(&was, other));
    }
    return ST_OK;
}

/* ---- on the host ---- */

static size_t type_bytes(const kiln_type *type) { return op_bytes((DType)type->dtype, type->shape.rank, type->shape.dim); }

/* With KILN_CHECK=pure: copies of the inputs, one after the other; NULL: nobody asked. */
static Status copies(const kiln_buffer *in, int n, char **out)
{
    size_t total = 1, at = 0;
    *out = NULL;
    if (option_int(OPT_CHECK) != CHECK_PURE)
        return ST_OK;
    for (int k = 0; k < n; k++)
        total += type_bytes(&in[k].type);
    if (!(*out = os_alloc(total)))
        return fail(ST_OUT_OF_MEMORY, "no memory for copies of inputs (KILN_CHECK=pure)");
    for (int k = 0; k < n; at += type_bytes(&in[k++].type))
        if (type_bytes(&in[k].type))
            memcpy(*out + at, in[k].data, type_bytes(&in[k].type));
    return ST_OK;
}

static Status compare(const kiln_op *op, const kiln_buffer *in, const char *before, Loc loc)
{
    size_t at = 0;
    char who[OP_TEXT];
    for (int k = 0; before && k < op->info.n_in; at += type_bytes(&in[k++].type))
        if (type_bytes(&in[k].type) && memcmp(before + at, in[k].data, type_bytes(&in[k].type)) != 0)
            return fail(ST_INVALID, "%s: its function changed in[%d]: inputs are to be left as they are", op_text(op, loc, who, sizeof who),
                        k);
    return ST_OK;
}

static Status call_host(const kiln_op *op, const Callee *callee, Loc loc, const kiln_buffer *in, const kiln_buffer *out)
{
    OpAtWork work;
    char *before;
    TRY(copies(in, op->info.n_in, &before));
    op_begin(&work, op);
    Status status = op_end(&work, op->info.host(in, out, callee->attributes, callee->bytes, op->info.user), loc);
    if (status == ST_OK)
        status = compare(op, in, before, loc);
    os_free(before);
    return status;
}

/* The types of inputs, then of outputs, with room for as many buffers: freed with os_free. */
static kiln_type *types_of(const CallBuffer *in, uint32_t n_in, const CallBuffer *out, uint32_t n_out)
{
    kiln_type *types = os_calloc((size_t)n_in + n_out + 1, sizeof *types);
    for (uint32_t k = 0; types && k < n_in + n_out; k++) {
        const CallBuffer *from = k < n_in ? &in[k] : &out[k - n_in];
        types[k].dtype = (kiln_dtype)from->dtype;
        types[k].shape.rank = from->rank;
        memcpy(types[k].shape.dim, from->dim, sizeof *from->dim * (size_t)from->rank);
    }
    return types;
}

Status op_call_host(const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out, uint32_t n_out)
{
    const kiln_op *op = callee->op;
    char who[OP_TEXT];
    if (!op->info.host)
        return fail(ST_UNSUPPORTED, "%s has no function for the host: it runs on CUDA devices alone", op_text(op, loc, who, sizeof who));
    kiln_type *types = types_of(in, n_in, out, n_out);
    kiln_buffer *buffers = os_calloc((size_t)n_in + n_out + 1, sizeof *buffers);
    Status status = types && buffers ? op_infer_again(op, callee, types, types + n_in, loc) : fail(ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < n_in + n_out && status == ST_OK; k++)
        buffers[k] = (kiln_buffer){types[k], k < n_in ? in[k].data : out[k - n_in].data};
    if (status == ST_OK)
        status = call_host(op, callee, loc, buffers, buffers + n_in);
    os_free(types);
    os_free(buffers);
    return status;
}

/* ---- as a step ---- */

Status op_call_cuda(const Run *run, const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out,
                    uint32_t n_out)
{
    const kiln_op *op = callee->op;
    char who[OP_TEXT];
    if (!op->info.image)
        return fail(ST_UNSUPPORTED, "%s has no image: it runs on the CPU alone; move its inputs with kiln_to",
                    op_text(op, loc, who, sizeof who));
    kiln_type *types = types_of(in, n_in, out, n_out);
    kiln_launch how = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    OpAtWork work;
    Status status = types ? op_infer_again(op, callee, types, types + n_in, loc) : fail(ST_OUT_OF_MEMORY, "out of memory");
    if (status == ST_OK) {
        op_begin(&work, op);
        status = op_end(&work, op->info.launch(types, types + n_in, callee->attributes, callee->bytes, &how, op->info.user), loc);
    }
    if (status == ST_OK)
        status = cuda_run_op(run->e->cuda, op, types, run->args, &how);
    os_free(types);
    return status;
}

/* A function of kiln's own, which knows memory of the host alone: on a CUDA device all is brought there and back. */
static Status call_own(const Run *run, const Callee *callee, Loc loc, CallBuffer *in, uint32_t n_in, CallBuffer *out, uint32_t n_out)
{
    const Launcher *on = run->kind->launcher;
    size_t total = 0;
    bool done;
    TRY(on->library(run, callee, loc, in, n_in, out, n_out, &done));
    if (done)
        return ST_OK;
#define BYTES(buffer) launch_aligned(op_bytes((DType)(buffer)->dtype, (buffer)->rank, (buffer)->dim))
    for (uint32_t k = 0; k < n_in + n_out; k++)
        total += BYTES(k < n_in ? &in[k] : &out[k - n_in]);
    char *host = os_alloc_aligned(64, total + 1), *at = host;
    Status status = host ? ST_OK : fail(ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < n_in + n_out && host; k++) {
        CallBuffer *buffer = k < n_in ? &in[k] : &out[k - n_in];
        buffer->data = at;
        at += BYTES(buffer);
    }
    for (uint32_t k = 0; k < n_in && status == ST_OK; k++)
        if (callee->ordered && k + 1 == n_in) /* on the device it is not kept up */
            status = comm_number(run->e, callee, in[k].data);
        else if (BYTES(&in[k]))
            status = on->read(run, in[k].data, run->args[k], op_bytes((DType)in[k].dtype, in[k].rank, in[k].dim));
    if (status == ST_OK)
        status = callee->host(callee, loc, in, n_in, out, n_out);
    for (uint32_t k = 0; k < n_out && status == ST_OK; k++)
        if (BYTES(&out[k]))
            status = on->write(run, run->args[n_in + k], out[k].data, op_bytes((DType)out[k].dtype, out[k].rank, out[k].dim));
#undef BYTES
    if (!run->e->lent) /* else a collective that failed may still write there */
        os_free(host);
    return status;
}

/* Memory for what nobody reads, one after the other, into args. */
static Status place_unread(const Run *run, const CallBuffer *out, uint32_t n_out, void **args, Storage **unread)
{
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (uint32_t k = 0; k < n_out; k++) {
            if (args[k])
                continue;
            if (*unread)
                args[k] = (char *)(*unread)->data + at;
            at += launch_aligned(op_bytes((DType)out[k].dtype, out[k].rank, out[k].dim));
        }
        if (at == 0)
            return ST_OK;
        if (pass == 0)
            TRY(storage_new_on(run->device, at, unread));
    }
    return ST_OK;
}

Status run_call(Run *run, const ProgStep *step)
{
    const RtNode *node = call_node(run->call, step->place);
    if (!node || node->op != OP_CUSTOM || node->n_in != step->n_in || node->attr.n != step->n_results)
        return fail(ST_INTERNAL, "a call without the op that it is of");
    const Callee *callee = bodies_of(node)->callee;
    CallBuffer *in = os_calloc((size_t)step->n_args + 1, sizeof *in), *out = in ? in + step->n_in : NULL;
    Storage *unread = NULL;
    const int64_t *fact = node->facts;
    if (!in)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < step->n_in; k++)
        in[k] = (CallBuffer){node->in[k]->dtype, node->in[k]->rank, node->in[k]->dim, run->args[k]};
    for (uint32_t k = 0; k < step->n_results; fact += out[k++].rank)
        out[k] = (CallBuffer){node->attr.custom.type[k] >> 4, node->attr.custom.type[k] & 15, fact, NULL};
    Status status = callee->ordered ? ST_OK : comm_land(run->e, 0); /* the user's may call what carries collectives, too */
    if (status == ST_OK)
        status = place_unread(run, out, step->n_results, run->args + step->n_in, &unread);
    for (uint32_t k = 0; k < step->n_results; k++)
        out[k].data = run->args[step->n_in + k];
    if (status == ST_OK)
        status = !callee->op ? call_own(run, callee, node->loc, in, step->n_in, out, step->n_results)
                             : run->kind->launcher->call(run, callee, node->loc, in, step->n_in, out, step->n_results);
    if (unread && status == ST_OK)
        status = comm_land(run->e, 0);
    if (unread && status == ST_OK)
        status = comm_flush(run->e);
    if (unread && run->e->lent) /* a collective that failed may still write there */
        storage_retain(unread);
    storage_release(unread);
    os_free(in);
    return status;
}

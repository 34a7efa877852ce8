/*
 * The heart of recording: nodes, promotion, broadcasting, under the rules of runtime/record/record.h.
 *
 * Broadcasting is explicit in the graph: axes of size 1 are inserted by a RESHAPE with (0,1) groups
 * and repeated by an EXPAND whose sizes are facts. Weakly typed scalars are made anew in the dtype
 * of the operands they meet, so a cast of a literal never enters a graph; a weak expression (of
 * weak scalars only) is a graph of rank 0 in f64, i64 or bool and is cast.
 *
 * Eager mode computes each op here, as soon as it is recorded. Views, scalars and the casts that
 * promotion inserts are left to whoever reads them, as an eager library would do inside its
 * kernels.
 */
#include "runtime/record/record.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "jit/options.h"
#include "runtime/device/device.h"
#include "runtime/eval/traced.h"
#include "runtime/gradient/custom.h"
#include "runtime/gradient/recording.h"
#include "runtime/mode/mode.h"
#include "runtime/record/pressure.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one public call ---- */

Rec rec_begin(const char *api, const char *file, int line)
{
    RtThread *t = rt_thread();
    if (file && option_int(OPT_NO_LOCATIONS))
        file = NULL;
    return (Rec){.api = api, .loc = {file, line}, .thread = t, .base = t->n_temp, .caller = fp_enter()};
}

RtNode *rec_failed(Rec *r, Status status)
{
    error_keep(status, r->api, r->loc);
    if (r->status == ST_OK)
        r->status = status;
    return NULL;
}

RtNode *rec_own(Rec *r, RtNode *node)
{
    RtThread *t = r->thread;
    if (!node)
        return rec_failed(r, ST_OUT_OF_MEMORY);
    if (t->n_temp == t->cap_temp) {
        uint32_t cap = t->cap_temp ? 2 * t->cap_temp : 64;
        RtNode **temp = os_realloc(t->temp, sizeof *temp * cap);
        if (!temp) {
            node_release(node);
            return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
        }
        t->temp = temp;
        t->cap_temp = cap;
    }
    t->temp[t->n_temp++] = node;
    return node;
}

kiln_tensor *rec_out(Rec *r, RtNode *result)
{
    if (!result)
        return NULL;
    kiln_tensor *x = tensor_new(node_retain(result));
    if (!x)
        r->status = error_keep(ST_OUT_OF_MEMORY, r->api, r->loc);
    return x;
}

kiln_tensor *rec_end(Rec *r, RtNode *result)
{
    RtThread *t = r->thread;
    bool taken = false; /* the call's own reference passes to the handle */
    while (t->n_temp > r->base) {
        RtNode *node = t->temp[--t->n_temp];
        if (node == result && !taken)
            taken = true;
        else
            node_release(node);
    }
    fp_leave(r->caller);
    if (!result)
        return NULL;
    if (!taken)
        node_retain(result);
    kiln_tensor *x = tensor_new(result);
    if (!x)
        error_keep(ST_OUT_OF_MEMORY, r->api, r->loc);
    if (pressure_high())
        pressure_relieve(r->loc);
    return x;
}

RtNode *rec_in(Rec *r, kiln_tensor *x, const char *what)
{
    if (!x)
        return rec_fail(r, ST_INVALID, "%s is NULL", what);
    trace_use(x);
    if (r->device == DEVICE_ANY)
        r->device = node_device(x->node);
    return x->node;
}

bool rec_optional(Rec *r, kiln_tensor *x, const char *what, RtNode **in)
{
    *in = x || errors_kept() ? rec_in(r, x, what) : NULL;
    return *in || (!x && r->status == ST_OK);
}

RtNode *rec_like(Rec *r, kiln_tensor *x, const RtNode *like, const char *what)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    RtNode *in = rec_in(r, x, what);
    if (in && in->weak && in->rank == 0)
        return rec_expand(r, rec_cast(r, in, node_dtype(like)), like->rank, like->dim);
    if (in && (in->dtype != like->dtype || in->rank != like->rank || memcmp(in->dim, like->dim, sizeof *like->dim * like->rank) != 0))
        return rec_fail(r, in->dtype != like->dtype ? ST_DTYPE : ST_SHAPE, "%s is %s, and what it belongs to is %s", what,
                        node_text(in, left), node_text(like, right));
    return in;
}

const char *node_text(const RtNode *x, char *buf)
{
    if (x->weak) {
        static const char *const kinds[] = {"bool", "int", "int", "float"};
        snprintf(buf, SHAPE_TEXT, "weak %s", kinds[dtype_kind(node_dtype(x))]);
        return buf;
    }
    Shape shape = {.dtype = x->dtype, .rank = x->rank};
    memcpy(shape.dim, x->dim, sizeof *x->dim * x->rank);
    return shape_text(&shape, buf);
}

/* ---- nodes ---- */

enum {
    FEW = 4,       /* operands that need no memory of their own */
    DEEP = 1 << 17 /* pending ops in a row that earn a warning */
};

/* Does eager mode compute this op as soon as it is recorded? */
static bool eager_computes(Op op)
{
    OpClass cls = op_class(op);
    if (cls == CLS_BODY || cls == CLS_RESULT) /* all results at once: bodies_record */
        return false;
    return cls == CLS_VIEW ? op == OP_CONCAT || op == OP_PAD : cls != CLS_LEAF && op != OP_CAST;
}

bool rec_is_eager(const Rec *r)
{
    int device = r->device;
    if (option_int(OPT_MODE) != MODE_EAGER || r->thread->custom >= INSIDE_RULE)
        return false;
    return (device == DEVICE_ANY && device_current(&device) != ST_OK) || device != DEVICE_META;
}

/* Operands on several devices: names the first two. */
static RtNode *rec_fail_apart(Rec *r, const RtNode *node)
{
    uint32_t a = 0, b;
    char one[SHAPE_TEXT], two[SHAPE_TEXT], name[2][DEVICE_NAME];
    while (!node_device(node->in[a]))
        a++;
    for (b = a; !node_device(node->in[b]) || node_device(node->in[b]) == node_device(node->in[a]);)
        b++;
    return rec_fail(r, ST_DEVICE, "operands lie on different devices: %s on %s, %s on %s; move one with kiln_to",
                    node_text(node->in[a], one), device_name(node_device(node->in[a]), name[0]), node_text(node->in[b], two),
                    device_name(node_device(node->in[b]), name[1]));
}

/* The last steps of every node: inputs, place, depth, eager mode. */
RtNode *rec_finish(Rec *r, RtNode *node, RtNode *const *in)
{
    if (!node)
        return rec_failed(r, ST_OUT_OF_MEMORY);
    uint32_t depth = 0;
    uint8_t phase = 0;
    bool apart = false, tracked = false;
    for (uint32_t k = 0; k < node->n_in; k++) {
        node->in[k] = node_retain(in[k]);
        const Storage *storage = atomic_load_explicit(&in[k]->storage, memory_order_acquire);
        uint8_t device = storage ? storage->device : in[k]->device;
        if (!storage && in[k]->depth > depth)
            depth = in[k]->depth;
        tracked |= in[k]->tracked;
        if (!storage && in[k]->phase > phase) /* what has its value is an input like any other, whatever made it */
            phase = in[k]->phase;
        apart |= node->device && device && node->device != device;
        node->device |= device;
    }
    node->tracked = tracked && dtype_is_float(node_dtype(node));
    node->phase = phase;
    node->checkpoint = r->thread->checkpoints < MAX_CHECKPOINT ? (uint8_t)r->thread->checkpoints : MAX_CHECKPOINT;
    node->inside = r->thread->custom;
    node->depth = depth < UINT32_MAX ? depth + 1 : depth;
    if (node->depth == DEEP)
        log_warn_once("deep graph",
                      "%s%s%s:%d: %d ops in a row wait to be computed; "
                      "call kiln_eval now and then, such as in each step of a loop",
                      r->api, r->loc.file ? " at " : "", r->loc.file ? r->loc.file : "", r->loc.line, DEEP);
    node->loc = r->loc;
    node->api = r->api;
    if (timeline_on())
        traced_op();
    if (log_on(LOG_BREAKS))
        node->after = breaks_passed();
    if (!rec_own(r, node))
        return NULL;
    if (node->tracked && r->thread->keeper && !recording_add(r->thread->keeper, node))
        return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    if (apart)
        return rec_fail_apart(r, node);
    bool eager = rec_is_eager(r);
    node->keep |= eager && node->tracked;
    if (eager && eager_computes((Op)node->op) && !node->weak) {
        Status status = eval_nodes_on(r->device, &node, 1, r->api, r->loc); /* beside the operands, be it made of none */
        if (status != ST_OK)
            return rec_failed(r, status);
    }
    return node;
}

static void shape_of(const RtNode *x, Shape *shape)
{
    shape->dtype = x->dtype;
    shape->rank = x->rank;
    memcpy(shape->dim, x->dim, sizeof *x->dim * x->rank);
}

Status rec_infer(Op op, DType own, const Attr *attr, uint32_t n_in, RtNode *const *in, const int64_t *facts, uint32_t n_facts, Shape *out)
{
    static const Attr no_attr;
    Shape few[FEW] = {{0}}, *shapes = few;
    if (n_in > FEW && !(shapes = os_alloc(sizeof *shapes * n_in)))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < n_in; k++)
        shape_of(in[k], &shapes[k]);
    Status status = infer_shape(op, attr ? attr : &no_attr, n_in, shapes, facts, n_facts, own, out);
    if (shapes != few)
        os_free(shapes);
    return status;
}

RtNode *rec_node(Rec *r, Op op, DType own_dtype, const Attr *attr, uint32_t n_in, RtNode *const *in, const int64_t *facts, uint32_t n_facts)
{
    Shape out;
    for (uint32_t k = 0; k < n_in; k++)
        if (!in[k])
            return NULL;
    if (r->thread->mode)
        return mode_dispatch(r, &(OpCall){op, own_dtype, attr, n_in, in, facts, n_facts});
    Status status = rec_infer(op, own_dtype, attr, n_in, in, facts, n_facts, &out);
    if (status != ST_OK)
        return rec_failed(r, status);
    RtNode *node = node_new(op, (DType)out.dtype, out.rank, out.dim, n_in, n_facts);
    if (node && attr)
        node->attr = *attr;
    if (node && n_facts)
        memcpy(node->facts, facts, sizeof *facts * n_facts);
    return rec_finish(r, node, in);
}

/* A view whose shape the caller knows to be right: rec_node without the check. No layer sees it. */
static RtNode *plain_view(Rec *r, Op op, RtNode *x, int rank, const int64_t *dims, const Attr *attr, const int64_t *facts, uint32_t n_facts)
{
    RtNode *node = node_new(op, node_dtype(x), rank, dims, 1, n_facts);
    if (node)
        node->attr = *attr;
    if (node && n_facts)
        memcpy(node->facts, facts, sizeof *facts * n_facts);
    return rec_finish(r, node, &x);
}

static RtNode *view(Rec *r, Op op, RtNode *x, int rank, const int64_t *dims, const Attr *attr, const int64_t *facts, uint32_t n_facts)
{
    if (r->thread->mode)
        return mode_dispatch(r, &(OpCall){op, node_dtype(x), attr, 1, &x, facts, n_facts});
    return plain_view(r, op, x, rank, dims, attr, facts, n_facts);
}

/* An elementwise node on operands of one shape, which is not asked for again. */
static RtNode *elementwise(Rec *r, Op op, DType own_dtype, uint32_t n_in, RtNode *const *in)
{
    DType types[3];
    bool weak = true;
    for (uint32_t k = 0; k < n_in; k++) {
        types[k] = node_dtype(in[k]);
        weak &= in[k]->weak;
    }
    if (r->thread->mode && !weak)
        return mode_dispatch(r, &(OpCall){op, own_dtype, NULL, n_in, in, NULL, 0});
    DType dtype = infer_dtype(op, n_in, types, own_dtype);
    if (dtype == DT_COUNT) {
        char text[SHAPE_TEXT];
        return rec_fail(r, ST_DTYPE, "does not take %s", node_text(in[0], text));
    }
    RtNode *node = node_new(op, dtype, in[0]->rank, in[0]->dim, n_in, 0);
    if (node)
        node->weak = weak;
    return rec_finish(r, node, in);
}

RtNode *rec_bits(Rec *r, DType dtype, uint64_t bits)
{
    RtNode *node = node_new(OP_SCALAR, dtype, 0, (const int64_t[]){0}, 0, 0);
    if (node)
        node->scalar = bits;
    return rec_finish(r, node, NULL);
}

RtNode *rec_scalar(Rec *r, DType dtype, double value) { return rec_bits(r, dtype, scalar_from_double(dtype, value)); }

RtNode *rec_int(Rec *r, DType dtype, int64_t value) { return rec_bits(r, dtype, scalar_from_int(dtype, value)); }

RtNode *rec_data(Rec *r, DType dtype, int rank, const int64_t *dims, Storage *storage, void *data, const int64_t *strides)
{
    RtNode *node = node_new(OP_INPUT, dtype, rank, dims, 0, 0);
    int64_t *stride = node && strides ? os_alloc(sizeof *stride * MAX_RANK) : NULL;
    if (!node || (strides && !stride)) {
        node_release(node);
        storage->deleter = NULL; /* the caller still owns the memory */
        storage_release(storage);
        return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    }
    if (stride) {
        memcpy(stride, strides, sizeof *stride * (size_t)rank);
        node->strided = true;
        node->stride = stride;
    }
    node->loc = r->loc;
    node_set_storage(node, storage, data);
    return rec_own(r, node);
}

RtNode *rec_iota(Rec *r, int64_t n) { return rec_node(r, OP_IOTA, DT_I64, NULL, 0, NULL, &n, 1); }

/* A weak literal in another dtype; a whole number that does not fit is refused, as in NumPy. */
static RtNode *literal(Rec *r, const RtNode *x, DType dtype)
{
    if (dtype_is_float(node_dtype(x)))
        return rec_scalar(r, dtype, scalar_to_double(node_dtype(x), x->scalar));
    int64_t value = scalar_to_int(node_dtype(x), x->scalar);
    uint64_t bits = scalar_from_int(dtype, value);
    if (dtype_is_int(dtype) && (scalar_to_int(dtype, bits) != value || (value < 0 && !dtype_is_signed(dtype))))
        return rec_fail(r, ST_INVALID, "%" PRId64 " does not fit %s", value, dtype_name(dtype));
    return rec_bits(r, dtype, bits);
}

RtNode *rec_cast(Rec *r, RtNode *x, DType dtype)
{
    if (!x || (node_dtype(x) == dtype && !x->weak))
        return x;
    if (x->weak && x->op == OP_SCALAR)
        return literal(r, x, dtype);
    if (r->thread->mode && !x->weak)
        return mode_dispatch(r, &(OpCall){OP_CAST, dtype, NULL, 1, &x, NULL, 0});
    RtNode *node = node_new(OP_CAST, dtype, x->rank, x->dim, 1, 0);
    return rec_finish(r, node, &x);
}

RtNode *rec_strong(Rec *r, RtNode *x)
{
    if (!x || !x->weak)
        return x;
    return rec_cast(r, x, node_dtype(x) == DT_F64 ? DT_F32 : node_dtype(x));
}

RtNode *rec_ew1(Rec *r, Op op, RtNode *a) { return a ? elementwise(r, op, node_dtype(a), 1, &a) : NULL; }

RtNode *rec_ew2(Rec *r, Op op, RtNode *a, RtNode *b)
{
    static const char *const names[] = {"a", "b"};
    RtNode *in[2] = {a, b};
    if (!a || !b || !rec_broadcast(r, 2, in, names))
        return NULL;
    return elementwise(r, op, node_dtype(a), 2, in);
}

RtNode *rec_ew3(Rec *r, Op op, RtNode *a, RtNode *b, RtNode *c)
{
    static const char *const names[] = {"condition", "a", "b"};
    RtNode *in[3] = {a, b, c};
    if (!a || !b || !c || !rec_broadcast(r, 3, in, names))
        return NULL;
    return elementwise(r, op, node_dtype(b), 3, in);
}

/* ---- promotion ---- */

DType rec_common(int n, RtNode *const *x, bool *weak)
{
    static const DType weak_dtype[] = {[DK_BOOL] = DT_BOOL, [DK_INT] = DT_I64, [DK_UINT] = DT_I64, [DK_FLOAT] = DT_F64};
    DType strong = DT_COUNT;
    int kind = -1;
    for (int k = 0; k < n; k++) {
        DType dtype = node_dtype(x[k]);
        if (x[k]->weak)
            kind = kind > (int)dtype_kind(dtype) ? kind : (int)dtype_kind(dtype);
        else
            strong = strong == DT_COUNT || strong == dtype ? dtype : dtype_promote(strong, dtype);
    }
    *weak = strong == DT_COUNT;
    if (*weak)
        return weak_dtype[kind < 0 ? DK_BOOL : kind];
    return kind < 0 ? strong : dtype_promote_weak(strong, (DKind)kind);
}

/* Says that operand k has a dtype that the function does not take. */
static bool refuse(Rec *r, const RtNode *x, const char *name, const char *wanted)
{
    char text[SHAPE_TEXT];
    rec_fail(r, ST_DTYPE, "%s is %s: %s", name, node_text(x, text), wanted);
    return false;
}

bool rec_promote(Rec *r, Prep prep, int n, RtNode **x, const char *const *names)
{
    bool weak;
    for (int k = 0; k < n; k++)
        if (!x[k])
            return false;
    DType dtype = rec_common(n, x, &weak);
    if (prep == PREP_FLOAT && !dtype_is_float(dtype))
        dtype = weak ? DT_F64 : DT_F32;
    if (prep == PREP_TRUTH)
        dtype = DT_BOOL;
    bool bad_float = (prep == PREP_BITS || prep == PREP_INTS) && dtype_is_float(dtype);
    static const char *const no_bool[] = {
        [PREP_NUM] = "numbers are needed; cast it first",
        [PREP_SIGNED] = "bools have no differences and no negatives; use kiln_logical_xor or kiln_logical_not, or cast it first",
        [PREP_INTS] = "ints are needed",
        [PREP_TRUTH] = NULL,
    };
    const char *bad_bool = dtype == DT_BOOL ? no_bool[prep] : NULL;
    for (int k = 0; k < n; k++) {
        bool is_float = dtype_is_float(node_dtype(x[k]));
        if (bad_float && (is_float || k == n - 1))
            return refuse(r, x[k], names[k], prep == PREP_INTS ? "ints are needed" : "ints or bools are needed");
        if (bad_bool)
            return refuse(r, x[k], names[k], bad_bool);
    }
    for (int k = 0; k < n; k++) {
        bool computed_number = x[k]->op == OP_SCALAR && !node_pending(x[k]); /* where it lies is nobody's concern */
        if (weak && x[k]->weak && node_dtype(x[k]) == dtype && !computed_number)
            continue;
        if (weak) { /* among weak scalars: stays weak, as an expression */
            x[k] = x[k]->op == OP_SCALAR ? literal(r, x[k], dtype) : elementwise(r, OP_CAST, dtype, 1, &x[k]);
            if (x[k])
                x[k]->weak = true;
        } else {
            x[k] = rec_cast(r, x[k], dtype);
        }
        if (!x[k])
            return false;
    }
    return true;
}

/* ---- broadcasting ---- */

/* Inserts `n` axes of size 1 before axis `at`. */
static RtNode *insert_axes(Rec *r, RtNode *x, int at, int n)
{
    Attr attr = {.n = (uint8_t)(x->rank + n)};
    int64_t dims[MAX_RANK];
    for (int g = 0, from = 0; g < x->rank + n; g++) {
        bool added = g >= at && g < at + n;
        attr.group.in[g] = added ? 0 : 1;
        attr.group.out[g] = 1;
        dims[g] = added ? 1 : x->dim[from++];
    }
    return view(r, OP_RESHAPE, x, x->rank + n, dims, &attr, NULL, 0);
}

RtNode *rec_same(Rec *r, RtNode *x)
{
    if (!x)
        return NULL;
    Attr attr = {.n = x->rank};
    memset(attr.group.in, 1, x->rank);
    memset(attr.group.out, 1, x->rank);
    return plain_view(r, OP_RESHAPE, x, x->rank, x->dim, &attr, NULL, 0);
}

RtNode *rec_stop(RtNode *x)
{
    if (x) {
        x->stop = true;
        x->tracked = false;
    }
    return x;
}

RtNode *rec_insert(Rec *r, RtNode *x, int axis) { return x ? insert_axes(r, x, axis, 1) : NULL; }

RtNode *rec_expand(Rec *r, RtNode *x, int rank, const int64_t *dims)
{
    if (!x)
        return NULL;
    int added = rank - x->rank;
    Attr attr = {0};
    int64_t facts[MAX_RANK];
    uint32_t n = 0;
    for (int d = 0; d < rank; d++) {
        if (d >= added && x->dim[d - added] == dims[d])
            continue;
        attr.mask |= (uint8_t)(1u << d);
        facts[n++] = dims[d];
    }
    if (added)
        x = insert_axes(r, x, 0, added);
    if (!x || !n)
        return x;
    return view(r, OP_EXPAND, x, rank, dims, &attr, facts, n);
}

/* An operand as the caller gave it: without the casts of this call. */
static const RtNode *given(const Rec *r, const RtNode *x)
{
    for (uint32_t k = r->thread->n_temp; k-- > r->base;)
        if (r->thread->temp[k] == x && x->op == OP_CAST && x->n_in && node_pending(x))
            x = x->in[0];
    return x;
}

RtNode *rec_repeat(Rec *r, RtNode *x, uint8_t mask, const int64_t *dims)
{
    if (!x || !mask)
        return x;
    Attr attr = {.mask = mask};
    int64_t facts[MAX_RANK], out[MAX_RANK];
    uint32_t n = 0;
    for (int d = 0; d < x->rank; d++) {
        out[d] = mask >> d & 1 ? dims[d] : x->dim[d];
        if (mask >> d & 1)
            facts[n++] = dims[d];
    }
    return view(r, OP_EXPAND, x, x->rank, out, &attr, facts, n);
}

/* Says which operands do not fit each other. */
static bool misfit(Rec *r, Status status, const char *why, int n, RtNode *const *x, const char *const *names)
{
    char text[3 * (SHAPE_TEXT + 16)] = "", one[SHAPE_TEXT];
    size_t at = 0;
    for (int k = 0; k < n && k < 3; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s is %s", k ? ", " : "", names[k], node_text(given(r, x[k]), one));
    rec_fail(r, status, "%s: %s", why, text);
    return false;
}

bool rec_broadcast(Rec *r, int n, RtNode **x, const char *const *names)
{
    int rank = 0;
    bool same = true;
    for (int k = 0; k < n; k++) {
        if (!x[k])
            return false;
        rank = x[k]->rank > rank ? x[k]->rank : rank;
        same &= x[k]->rank == x[0]->rank && memcmp(x[k]->dim, x[0]->dim, sizeof *x[0]->dim * x[0]->rank) == 0;
    }
    if (same)
        return true;
    int64_t dims[MAX_RANK], numel;
    for (int d = 0; d < rank; d++) {
        dims[d] = 1;
        for (int k = 0; k < n; k++) {
            int own_axis = d - (rank - x[k]->rank);
            int64_t size = own_axis < 0 ? 1 : x[k]->dim[own_axis];
            if (size == 1 || size == dims[d])
                continue;
            if (dims[d] != 1)
                return misfit(r, ST_SHAPE, "shapes do not broadcast", n, x, names);
            dims[d] = size;
        }
    }
    if (!shape_numel(rank, dims, &numel))
        return misfit(r, ST_OVERFLOW, "the result has more than 2^62 elements", n, x, names);
    for (int k = 0; k < n; k++) {
        x[k] = rec_expand(r, x[k], rank, dims);
        if (!x[k])
            return false;
    }
    return true;
}

/* ---- shapes and views ---- */

bool rec_reserved(Rec *r, const uint64_t reserved[RESERVED])
{
    for (int i = 0; i < RESERVED; i++)
        if (reserved[i]) {
            rec_fail(r, ST_INVALID, "reserved[%d] of the options is not 0: initialise them with zeros, or use a newer kiln", i);
            return false;
        }
    return true;
}

bool rec_shape(Rec *r, kiln_shape shape)
{
    int64_t numel;
    if (shape.rank < 0 || shape.rank > MAX_RANK) {
        rec_fail(r, ST_SHAPE, "rank %d: a shape has 0 to %d dims", shape.rank, MAX_RANK);
        return false;
    }
    for (int d = 0; d < shape.rank; d++)
        if (shape.dim[d] < 0) {
            rec_fail(r, ST_SHAPE, "dim %d of the shape is %" PRId64, d, shape.dim[d]);
            return false;
        }
    if (!shape_numel(shape.rank, shape.dim, &numel)) {
        char text[SHAPE_TEXT];
        Shape said = {.rank = (uint8_t)shape.rank};
        memcpy(said.dim, shape.dim, sizeof said.dim);
        rec_fail(r, ST_OVERFLOW, "the shape %s has more than 2^62 elements", strchr(shape_text(&said, text), '['));
        return false;
    }
    return true;
}

bool rec_axis(Rec *r, const RtNode *x, int axis, int *out)
{
    if (!x)
        return false;
    *out = axis < 0 ? axis + x->rank : axis;
    if (*out >= 0 && *out < x->rank)
        return true;
    char text[SHAPE_TEXT];
    rec_fail(r, ST_INVALID, "axis %d does not exist: x is %s", axis, node_text(x, text));
    return false;
}

bool rec_axes(Rec *r, const RtNode *x, kiln_axes axes, uint8_t *mask)
{
    if (!x)
        return false;
    *mask = (uint8_t)((1u << x->rank) - 1);
    if (axes.n == -1)
        return true;
    *mask = 0;
    if (axes.n < 0 || axes.n > MAX_RANK) {
        rec_fail(r, ST_INVALID, "%d axes: at most %d can be named", axes.n, MAX_RANK);
        return false;
    }
    for (int k = 0; k < axes.n; k++) {
        int axis;
        if (!rec_axis(r, x, axes.axis[k], &axis))
            return false;
        if (*mask >> axis & 1) {
            rec_fail(r, ST_INVALID, "axis %d is named twice", axes.axis[k]);
            return false;
        }
        *mask |= (uint8_t)(1u << axis);
    }
    return true;
}

RtNode *rec_reshape(Rec *r, RtNode *x, int rank, const int64_t *dims)
{
    if (!x || (x->rank == rank && memcmp(x->dim, dims, sizeof *dims * (size_t)rank) == 0))
        return x;
    Attr attr;
    int64_t facts[MAX_RANK];
    uint32_t n;
    reshape_whole(x->rank, rank, dims, &attr, facts, &n);
    return view(r, OP_RESHAPE, x, rank, dims, &attr, facts, n);
}

/* One group of `in` axes that become `out`, from `axis` on; the others stay. */
static RtNode *regroup(Rec *r, RtNode *x, int axis, int in, int out, const int64_t *dims)
{
    if (!x || (in == 1 && out == 1))
        return x;
    int groups = x->rank - in + 1;
    Attr attr = {.n = (uint8_t)groups};
    int64_t all[MAX_RANK];
    int at = 0;
    for (int g = 0, from = 0; g < groups; g++) {
        attr.group.in[g] = g == axis ? (uint8_t)in : 1;
        attr.group.out[g] = g == axis ? (uint8_t)out : 1;
        for (int d = 0; d < attr.group.out[g]; d++)
            all[at++] = g == axis ? dims[d] : x->dim[from];
        from += attr.group.in[g];
    }
    return view(r, OP_RESHAPE, x, at, all, &attr, dims, out > 1 ? (uint32_t)out : 0);
}

RtNode *rec_merge(Rec *r, RtNode *x, int axis, int n)
{
    int64_t dim = 1;
    for (int d = 0; x && d < n; d++)
        dim *= x->dim[axis + d];
    return regroup(r, x, axis, n, 1, &dim);
}

RtNode *rec_split(Rec *r, RtNode *x, int axis, int n, const int64_t *dims) { return regroup(r, x, axis, 1, n, dims); }

RtNode *rec_drop(Rec *r, RtNode *x, uint8_t mask)
{
    if (!x || !mask)
        return x;
    Attr attr = {.n = x->rank};
    int64_t dims[MAX_RANK];
    int rank = 0;
    for (int d = 0; d < x->rank; d++) {
        attr.group.in[d] = 1;
        attr.group.out[d] = mask >> d & 1 ? 0 : 1;
        if (attr.group.out[d])
            dims[rank++] = x->dim[d];
    }
    return view(r, OP_RESHAPE, x, rank, dims, &attr, NULL, 0);
}

RtNode *rec_permute(Rec *r, RtNode *x, const uint8_t *perm)
{
    if (!x)
        return NULL;
    bool identity = true;
    Attr attr = {0};
    for (int d = 0; d < x->rank; d++) {
        attr.perm[d] = perm[d];
        identity &= perm[d] == d;
    }
    return identity ? x : rec_node(r, OP_PERMUTE, node_dtype(x), &attr, 1, &x, NULL, 0);
}

RtNode *rec_slice(Rec *r, RtNode *x, int axis, int64_t start, int64_t step, int64_t length)
{
    Attr attr = {.mask = (uint8_t)(1u << axis)};
    return x ? rec_node(r, OP_SLICE, node_dtype(x), &attr, 1, &x, (const int64_t[]){start, step, length}, 3) : NULL;
}

RtNode *rec_concat(Rec *r, uint32_t n, RtNode *const *x, int axis)
{
    Attr attr = {.axis = (uint8_t)axis};
    return n && x[0] ? rec_node(r, OP_CONCAT, node_dtype(x[0]), &attr, n, x, NULL, 0) : NULL;
}

/* ---- reductions, indexing ---- */

RtNode *rec_reduce(Rec *r, Op op, RtNode *x, uint8_t mask, bool keepdims)
{
    if (!x || !mask)
        return x;
    Attr attr = {.mask = mask};
    RtNode *y = rec_node(r, op, node_dtype(x), &attr, 1, &x, NULL, 0);
    if (!y || !keepdims)
        return y;
    Attr keep = {.n = x->rank};
    int64_t dims[MAX_RANK];
    for (int d = 0; d < x->rank; d++) {
        keep.group.in[d] = mask >> d & 1 ? 0 : 1;
        keep.group.out[d] = 1;
        dims[d] = mask >> d & 1 ? 1 : x->dim[d];
    }
    return view(r, OP_RESHAPE, y, x->rank, dims, &keep, NULL, 0);
}

RtNode *rec_gather(Rec *r, RtNode *x, RtNode *index, int axis)
{
    Attr attr = {.axis = (uint8_t)axis};
    return x && index ? rec_node(r, OP_GATHER, node_dtype(x), &attr, 2, (RtNode *[]){x, index}, NULL, 0) : NULL;
}

RtNode *rec_argsort(Rec *r, RtNode *x, int axis, bool descending)
{
    Attr attr = {.axis = (uint8_t)axis, .flag = descending};
    return x ? rec_node(r, OP_ARGSORT, DT_I64, &attr, 1, &x, NULL, 0) : NULL;
}

int64_t rec_count(const RtNode *x, uint8_t mask)
{
    int64_t n = 1;
    for (int d = 0; d < x->rank; d++)
        if (mask >> d & 1)
            n *= x->dim[d];
    return n;
}

DType compute_dtype(DType dtype) { return dtype_is_float(dtype) ? dtype_accumulator(dtype) : DT_F32; }

/* ---- the contract of runtime/record/tensor.h ---- */

kiln_tensor *record(const char *api, Loc loc, Op op, DType own_dtype, const Attr *attr, uint32_t n_in, kiln_tensor *const *in,
                    const int64_t *facts, uint32_t n_facts)
{
    Rec r = rec_begin(api, loc.file, loc.line);
    RtNode *few[FEW], **nodes = few;
    if (n_in > FEW && !(nodes = os_alloc(sizeof *nodes * n_in)))
        return rec_end(&r, rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory"));
    for (uint32_t k = 0; k < n_in; k++)
        nodes[k] = rec_in(&r, in[k], "an operand");
    RtNode *node = rec_node(&r, op, own_dtype, attr, n_in, nodes, facts, n_facts);
    if (nodes != few)
        os_free(nodes);
    return rec_end(&r, node);
}

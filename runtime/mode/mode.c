/*
 * The stack of layers, and the kinds that kiln brings (mode.h).
 *
 * Compiled with -fexceptions: an exception may pass through a callback of the user's, and leaves the stack as it was.
 */
#define KILN_NO_LOCATIONS
#include "runtime/mode/mode.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

enum {
#define KIND(id, name, op, end, replayed) KIND_##id,
#include "runtime/mode/modes.def"
#undef KIND
};

static const ModeKind kinds[] = {
#define KIND(id, name, op, end, replayed) {name, op, end, replayed},
#include "runtime/mode/modes.def"
#undef KIND
};

/* ---- the stack ---- */

static kiln_mode *push(int kind, const char *api, Loc loc)
{
    RtThread *t = rt_thread();
    kiln_mode *mode = os_calloc(1, sizeof *mode);
    if (!mode) {
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), api, loc);
        return NULL;
    }
    mode->kind = &kinds[kind];
    mode->below = t->mode;
    mode->thread = t;
    t->mode = mode;
    return mode;
}

static void pop(RtThread *t)
{
    kiln_mode *mode = t->mode;
    t->mode = mode->below;
    mode->kind->end(mode);
    os_free(mode);
}

static bool is_on(const RtThread *t, const kiln_mode *mode)
{
    const kiln_mode *at = t->mode;
    while (at && at != mode)
        at = at->below;
    return at != NULL;
}

void modes_pop_to(RtThread *t, const kiln_mode *mode)
{
    while (t->mode != mode && (!mode || is_on(t, mode)))
        pop(t);
}

void modes_end_thread(RtThread *t) { modes_pop_to(t, NULL); }

kiln_status kiln_mode_pop(kiln_mode *mode) { return kiln_mode_pop_at(NULL, 0, mode); }

kiln_status kiln_mode_pop_at(const char *file, int line, kiln_mode *mode)
{
    RtThread *t = rt_thread();
    if (!mode)
        return KILN_OK;
    if (mode == t->mode) {
        pop(t);
        return KILN_OK;
    }
    return (kiln_status)error_keep(fail(ST_INVALID, "the mode is not the innermost one of this thread"), "kiln_mode_pop",
                                   (Loc){file, line});
}

unsigned modes_key(const RtThread *t)
{
    for (const kiln_mode *mode = t->mode; mode; mode = mode->below)
        if (mode->kind == &kinds[KIND_AUTOCAST])
            return mode->dtype + 1u;
    return 0;
}

bool modes_replayed(const RtThread *t)
{
    bool all = true;
    for (const kiln_mode *mode = t->mode; mode && all; mode = mode->below)
        all = mode->kind->replayed;
    return all;
}

typedef struct Masked {
    RtThread *thread;
    kiln_mode *mode;
} Masked;

static void unmask(Masked *masked)
{
    modes_pop_to(masked->thread, masked->mode->below);
    masked->thread->mode = masked->mode;
}

RtNode *mode_dispatch(Rec *r, const OpCall *call)
{
    Masked masked CLEANUP(unmask) = {r->thread, r->thread->mode};
    r->thread->mode = masked.mode->below;
    masked.mode->n_ops++;
    return masked.mode->kind->op(r, masked.mode, call);
}

RtNode *mode_next(Rec *r, const OpCall *call)
{
    return rec_node(r, call->op, call->own, call->attr, call->n_in, call->in, call->facts, call->n_facts);
}

/* ---- autocast ---- */

/* Products, in the lower dtype; the result is f32 again, as what comes next expects, and the cast a part of whatever kernel reads it. All other
 * ops are as accurate as their operands: f16 and bf16 are computed in f32 as ever. Derivatives are of what was recorded. */
RtNode *autocast_op(Rec *r, kiln_mode *mode, const OpCall *call)
{
    RtNode *in[2] = {NULL};
    bool lower = op_class(call->op) == CLS_CONTRACT && call->n_in == 2 && mode->dtype != DT_F32 && !mode->hidden && !r->derived;
    for (uint32_t k = 0; k < call->n_in && lower; k++)
        lower = node_dtype(call->in[k]) == DT_F32;
    if (!lower)
        return mode_next(r, call);
    for (uint32_t k = 0; k < call->n_in; k++)
        in[k] = rec_cast(r, call->in[k], (DType)mode->dtype);
    OpCall low = *call;
    low.in = in;
    return in[0] && in[1] ? rec_cast(r, mode_next(r, &low), DT_F32) : NULL;
}

/* The next autocast below, which a new one hides. */
static kiln_mode *hidden_by(const kiln_mode *mode)
{
    kiln_mode *at = mode->below;
    while (at && at->kind != mode->kind)
        at = at->below;
    return at;
}

void autocast_end(kiln_mode *mode)
{
    for (kiln_mode *at = hidden_by(mode); at; at = hidden_by(at))
        at->hidden--;
}

kiln_mode *kiln_autocast_push(kiln_dtype low) { return kiln_autocast_push_at(NULL, 0, low); }

kiln_mode *kiln_autocast_push_at(const char *file, int line, kiln_dtype low)
{
    static const char api[] = "kiln_autocast_push";
    const Loc loc = {file, line};
    if (low != KILN_BF16 && low != KILN_F16 && low != KILN_F32) {
        (void)error_keep(fail(ST_DTYPE, "low is %s: KILN_BF16, KILN_F16, or KILN_F32 for none", kiln_dtype_name(low)), api, loc);
        return NULL;
    }
    kiln_mode *mode = push(KIND_AUTOCAST, api, loc);
    if (!mode)
        return NULL;
    mode->dtype = (uint8_t)low;
    for (kiln_mode *at = hidden_by(mode); at; at = hidden_by(at))
        at->hidden++;
    return mode;
}

/* ---- a log of ops ---- */

/* "%7 = matmul f32[8,4] f32[4,2] -> f32[8,2] kiln_linear net.c:31" */
RtNode *log_ops_op(Rec *r, kiln_mode *mode, const OpCall *call)
{
    uint64_t number = mode->n_ops - 1;
    RtNode *node = mode_next(r, call);
    char text[SHAPE_TEXT], operands[512] = "";
    size_t used = 0;
    for (uint32_t k = 0; k < call->n_in && used + SHAPE_TEXT + 8 < sizeof operands; k++)
        used += (size_t)snprintf(operands + used, sizeof operands - used, " %s", node_text(call->in[k], text));
    const char *slash = r->loc.file ? strrchr(r->loc.file, '/') : NULL;
    if (node)
        log_always(LOG_OPS, "%%%" PRIu64 " = %s%s -> %s %s%s%s:%d", number, op_name(call->op), operands, node_text(node, text), r->api,
                   r->loc.file ? " " : "",
                   slash         ? slash + 1
                   : r->loc.file ? r->loc.file
                                 : "",
                   r->loc.line);
    return node;
}

void log_ops_end(kiln_mode *mode) { log_always(LOG_OPS, "%" PRIu64 " ops were recorded", mode->n_ops); }

kiln_mode *kiln_log_ops_push(void) { return push(KIND_LOG_OPS, "kiln_log_ops_push", (Loc){NULL, 0}); }

/* ---- the finite check (runtime/mode/finite.c) ---- */

bool mode_is_finite(const kiln_mode *mode) { return mode->kind == &kinds[KIND_FINITE]; }

kiln_mode *kiln_finite_check_push(void)
{
    static const char api[] = "kiln_finite_check_push";
    if (trace_current) {
        (void)error_keep(fail(ST_INVALID, "inside a kiln_function there are no values to look at: push it around the call"), api,
                         (Loc){NULL, 0});
        return NULL;
    }
    kiln_mode *mode = push(KIND_FINITE, api, (Loc){NULL, 0});
    if (!mode || finite_begin(mode))
        return mode;
    mode->thread->mode = mode->below;
    os_free(mode);
    (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), api, (Loc){NULL, 0});
    return NULL;
}

/* ---- the user's ---- */

/* What the callback is called with; `seen` is first, so that kiln_mode_next finds the rest. */
typedef struct Seen {
    kiln_op_call seen;
    const OpCall *call;
    Rec *rec;
    kiln_scope *scope;
    kiln_tensor **handle;
} Seen;

static void end_seen(Seen *s)
{
    if (s->scope) {
        scopes_end_within(s->rec->thread, s->scope);
        kiln_scope_end(s->scope);
    }
    os_free(s->handle);
    s->handle = NULL;
}

typedef struct Wanted {
    const OpCall *call;
    Shape shape;
} Wanted;

static Status find_wanted(Arena *arena, void *with)
{
    static const Attr none;
    Wanted *w = with;
    const OpCall *call = w->call;
    Shape *in = ARENA_ARRAY(arena, Shape, call->n_in);
    for (uint32_t k = 0; k < call->n_in; k++) {
        in[k].dtype = call->in[k]->dtype;
        in[k].rank = call->in[k]->rank;
        memcpy(in[k].dim, call->in[k]->dim, sizeof *call->in[k]->dim * call->in[k]->rank);
    }
    return infer_shape(call->op, call->attr ? call->attr : &none, call->n_in, in, call->facts, call->n_facts, call->own, &w->shape);
}

/* What the callback made, as a node of this call's own. */
static RtNode *taken(Rec *r, const OpCall *call, const kiln_tensor *out)
{
    Wanted want = {.call = call};
    char text[SHAPE_TEXT], other[SHAPE_TEXT];
    Status status = with_arena(find_wanted, &want);
    const RtNode *node = out->node;
    if (status != ST_OK)
        return rec_failed(r, status);
    if (node->weak || node->dtype != want.shape.dtype || node->rank != want.shape.rank ||
        memcmp(node->dim, want.shape.dim, sizeof *node->dim * node->rank) != 0)
        return rec_fail(r, node->dtype != want.shape.dtype ? ST_DTYPE : ST_SHAPE, "the callback of a mode gave %s for %s, which is %s",
                        node_text(node, text), op_name(call->op), shape_text(&want.shape, other));
    return rec_own(r, node_retain((RtNode *)(uintptr_t)node));
}

RtNode *user_op(Rec *r, kiln_mode *mode, const OpCall *call)
{
    Seen s CLEANUP(end_seen) = {.call = call, .rec = r, .scope = kiln_scope_begin()};
    s.handle = s.scope ? os_calloc((size_t)call->n_in + 1, sizeof *s.handle) : NULL;
    if (!s.handle)
        return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < call->n_in; k++)
        if (!(s.handle[k] = tensor_new(node_retain(call->in[k]))))
            return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    s.seen = (kiln_op_call){op_name(call->op), r->api, r->loc.file, r->loc.line, (int)call->n_in, s.handle};
    uint64_t errors = errors_raised();
    fp_leave(r->caller);
    kiln_tensor *out = mode->call(&s.seen, mode->user);
    r->caller = fp_enter();
    if (errors_since(errors)) {
        r->status = (Status)kiln_error_status();
        return NULL;
    }
    RtNode *node = out ? taken(r, call, out) : rec_fail(r, ST_INVALID, "the callback of a mode gave NULL for %s", op_name(call->op));
    end_seen(&s);
    s.scope = NULL;
    bool ours = node && atomic_load_explicit(&node->refs, memory_order_acquire) == 1;
    return ours || !node ? node : rec_same(r, node); /* a value that somebody has goes on being that */
}

void user_end(kiln_mode *mode)
{
    if (mode->end)
        mode->end(mode->user);
}

kiln_mode *kiln_mode_push(kiln_mode_op *op, void (*end)(void *user), void *user) { return kiln_mode_push_at(NULL, 0, op, end, user); }

kiln_mode *kiln_mode_push_at(const char *file, int line, kiln_mode_op *op, void (*end)(void *user), void *user)
{
    static const char api[] = "kiln_mode_push";
    const Loc loc = {file, line};
    if (!op) {
        (void)error_keep(fail(ST_INVALID, "needs a callback"), api, loc);
        return NULL;
    }
    kiln_mode *mode = push(KIND_USER, api, loc);
    if (mode) {
        mode->call = op;
        mode->end = end;
        mode->user = user;
    }
    return mode;
}

kiln_tensor *kiln_mode_next(const kiln_op_call *call, kiln_tensor *const *in)
{
    static const char api[] = "kiln_mode_next";
    if (!call || (call->n_in && !in)) {
        (void)error_keep(fail(ST_INVALID, "needs the call that the callback got, and its operands"), api, (Loc){NULL, 0});
        return NULL;
    }
    const Seen *s = (const Seen *)(const void *)call;
    Rec r = rec_begin(s->rec->api, s->rec->loc.file, s->rec->loc.line);
    RtNode **node = os_alloc(sizeof *node * ((size_t)call->n_in + 1));
    OpCall next = *s->call;
    next.in = node;
    if (!node)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (int k = 0; k < call->n_in && node; k++)
        node[k] = rec_in(&r, in[k], "an operand");
    RtNode *made = node && r.status == ST_OK ? mode_next(&r, &next) : NULL;
    os_free(node);
    return rec_end(&r, made);
}

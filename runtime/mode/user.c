/*
 * Layers of the user's: kiln_mode_push, kiln_mode_next. Compiled with -fexceptions, as mode.c is.
 */
#define KILN_NO_LOCATIONS
#include "runtime/mode/mode.h"
#include "ir/base/os.h"

#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

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

/* What the callback made, as a node of this call's own. */
static RtNode *taken(Rec *r, const OpCall *call, const kiln_tensor *out)
{
    Shape want;
    char text[SHAPE_TEXT], other[SHAPE_TEXT];
    Status status = rec_infer(call->op, call->own, call->attr, call->n_in, call->in, call->facts, call->n_facts, &want);
    const RtNode *node = out->node;
    if (status != ST_OK)
        return rec_failed(r, status);
    if (node->weak || node->dtype != want.dtype || node->rank != want.rank ||
        memcmp(node->dim, want.dim, sizeof *node->dim * node->rank) != 0)
        return rec_fail(r, node->dtype != want.dtype ? ST_DTYPE : ST_SHAPE, "the callback of a mode gave %s for %s, which is %s",
                        node_text(node, text), op_name(call->op), shape_text(&want, other));
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

kiln_mode *kiln_mode_push(kiln_mode_op *op, void (*end)(void *user), void *user) { return kiln_mode_push_at(op, end, user, NULL, 0); }

kiln_mode *kiln_mode_push_at(kiln_mode_op *op, void (*end)(void *user), void *user, const char *file, int line)
{
    static const char api[] = "kiln_mode_push";
    const Loc loc = {file, line};
    if (!op) {
        (void)error_keep(fail(ST_INVALID, "needs a callback"), api, loc);
        return NULL;
    }
    kiln_mode *mode = mode_push(LAYER_USER, loc);
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

/*
 * The stack of layers (mode.h). Compiled with -fexceptions: an exception may pass through a callback of the user's, and leaves the stack as it was.
 */
#define KILN_NO_LOCATIONS
#include "runtime/mode/mode.h"
#include "ir/base/os.h"

#define CLEANUP(function) __attribute__((cleanup(function)))

static const ModeKind kinds[] = {
#define KIND(id, pushed_by, op, end, replayed) {pushed_by, op, end, replayed},
#include "runtime/mode/modes.def"
#undef KIND
};

/* ---- the stack ---- */

kiln_mode *mode_push(ModeId id, Loc loc)
{
    RtThread *t = rt_thread();
    kiln_mode *mode = os_calloc(1, sizeof *mode);
    if (!mode) {
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), kinds[id].pushed_by, loc);
        return NULL;
    }
    mode->kind = &kinds[id];
    mode->below = t->mode;
    t->mode = mode;
    return mode;
}

bool mode_is(const kiln_mode *mode, ModeId id) { return mode->kind == &kinds[id]; }

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

kiln_status kiln_mode_pop(kiln_mode *mode) { return kiln_mode_pop_at(mode, NULL, 0); }

kiln_status kiln_mode_pop_at(kiln_mode *mode, const char *file, int line)
{
    RtThread *t = rt_thread();
    if (!mode)
        return KILN_OK;
    Status status = ST_OK;
    if (mode != t->mode)
        status = fail(ST_INVALID, "the mode is not the innermost one of this thread%s%s: pop that first", t->mode ? ", which is of " : "",
                      t->mode ? t->mode->kind->pushed_by : "");
    else if (mode == t->mode_floor)
        status = fail(ST_INVALID, "a mode above it is at work: its callback may pop what it pushed itself");
    else
        pop(t);
    return (kiln_status)error_keep(status, "kiln_mode_pop", (Loc){file, line});
}

unsigned modes_key(const RtThread *t)
{
    for (const kiln_mode *mode = t->mode; mode; mode = mode->below)
        if (mode_is(mode, LAYER_AUTOCAST))
            return (mode->hidden ? (unsigned)DT_F32 : mode->dtype) + 1; /* one that is masked may hide it */
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
    kiln_mode *mode, *floor;
} Masked;

static void unmask(Masked *masked)
{
    modes_pop_to(masked->thread, masked->mode->below);
    masked->thread->mode = masked->mode;
    masked->thread->mode_floor = masked->floor;
}

RtNode *mode_dispatch(Rec *r, const OpCall *call)
{
    Masked masked CLEANUP(unmask) = {r->thread, r->thread->mode, r->thread->mode_floor};
    r->thread->mode = r->thread->mode_floor = masked.mode->below;
    masked.mode->n_ops++;
    return masked.mode->kind->op(r, masked.mode, call);
}

RtNode *mode_next(Rec *r, const OpCall *call)
{
    return rec_node(r, call->op, call->own, call->attr, call->n_in, call->in, call->facts, call->n_facts);
}

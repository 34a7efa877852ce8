/*
 * Memory pressure (see pressure.h).
 *
 *     for (...) {
 *         scope                                   total --> add --> add --> add       pending: nobody reads it
 *         x = kiln_from(1 GB)                                 |       |       |
 *         kiln_assign(total, kiln_add(total, kiln_sum(x)))   sum     sum     sum
 *     }                                                       |       |       |
 *                                                            1 GB    1 GB    1 GB     evaluated, and held by their sums alone
 *
 * When recording ends with more than `pressure_mark` bytes in use, the pending graphs behind this thread's handles are walked. Those
 * handles that no other pending node uses, and that are small themselves, would be computed (the tops); what goes away with that is
 * counted by references: a node dies when all of its references come from nodes that let it go. If more than twice as much is freed as
 * the results take, the tops are computed. Else the same is asked of all small handles, used or not: a total of values that are kept, too,
 * frees nothing alone, because those values hold what they are made of. Either way the mark rises to an eighth of the limit above what is in
 * use, so memory that is in use for good costs a walk now and then and no more.
 *
 * What must hold: nothing is computed inside a trace, a function of kiln_custom_gradient, a deleter or a log sink; values don't depend on
 * when they are computed. Node marks are evaluation's (runtime/eval/collect.c), so the walk has a table of its own.
 * Leaves out: handles that are in no open scope of this thread, because another thread has them or their scope has ended; the size of
 * the graph itself (recording warns of chains that grow, runtime/record/record.c).
 */
#include "runtime/record/pressure.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/pointer_map.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/record/thread.h"

#include <inttypes.h>
#include <string.h>

_Atomic int64_t pressure_mark;
_Atomic int64_t pressure_lent;

typedef struct Seen {
    RtNode *node;
    uint32_t users; /* pending nodes that use it, once for each use */
    uint32_t gone;  /* of its references */
} Seen;

typedef struct Walk {
    Arena *arena;
    VEC(Seen) seen; /* users before what they use, tops first */
    PointerMap at;  /* in seen */
    VEC(RtNode *) tops, going;
    uint32_t n_candidates;
    int64_t most;           /* bytes of one that is computed */
    int64_t results, freed; /* bytes */
} Walk;

static bool pending(const RtNode *node) { return !atomic_load_explicit(&node->storage, memory_order_acquire); }

static int64_t bytes_of(const RtNode *node) { return node_elements(node) * (int64_t)dtype_bytes((DType)node->dtype); }

/* --- the walk -------------------------------------------------------------------------------------------------------------- */

static Seen *see(Walk *w, RtNode *node)
{
    uint32_t at = pointer_map_get(&w->at, node);
    if (at == NOT_MAPPED) {
        at = w->seen.n;
        pointer_map_put(w->arena, &w->at, node, at);
        VEC_PUSH(w->arena, w->seen, (Seen){.node = node});
    }
    return &w->seen.at[at];
}

/* The pending graphs behind the handles in this thread's scopes. */
static void see_all(Walk *w)
{
    for (const kiln_scope *scope = rt_thread()->scope; scope; scope = scope_around(scope))
        for (uint32_t i = 0; i < scope_size(scope); i++)
            if (pending(scope_handle(scope, i)->node) && device_has_values(scope_handle(scope, i)->node) == ST_OK)
                see(w, scope_handle(scope, i)->node);
    w->n_candidates = w->seen.n;
    for (uint32_t i = 0; i < w->seen.n; i++) {
        RtNode *node = w->seen.at[i].node;
        for (uint32_t k = 0; pending(node) && k < node->n_in; k++)
            see(w, node->in[k])->users++;
    }
}

/* What goes when the inputs of `node` are let go. */
static void let_go(Walk *w, const RtNode *node)
{
    for (uint32_t k = 0; k < node->n_in; k++) {
        Seen *in = see(w, node->in[k]);
        if (++in->gone != atomic_load_explicit(&in->node->refs, memory_order_relaxed))
            continue;
        const Storage *storage = atomic_load_explicit(&in->node->storage, memory_order_acquire);
        if (!storage)
            VEC_PUSH(w->arena, w->going, in->node);
        else if (atomic_load_explicit(&storage->refs, memory_order_relaxed) == 1 && (storage->ours || storage->lent))
            w->freed += (int64_t)storage->bytes;
    }
}

/* Finds the tops (used: and the handles that pending nodes use), their bytes, and what computing them frees: is that enough? */
static bool choose(Walk *w, bool used)
{
    w->tops.n = w->going.n = 0;
    w->results = w->freed = 0;
    for (uint32_t i = 0; i < w->seen.n; i++)
        w->seen.at[i].gone = 0;
    for (uint32_t i = 0; i < w->n_candidates; i++) {
        const Seen *seen = &w->seen.at[i];
        if ((used || seen->users == 0) && bytes_of(seen->node) <= w->most) {
            w->results += bytes_of(seen->node);
            VEC_PUSH(w->arena, w->tops, seen->node);
        }
    }
    for (uint32_t i = 0; i < w->tops.n; i++)
        let_go(w, w->tops.at[i]);
    for (uint32_t i = 0; i < w->going.n; i++)
        let_go(w, w->going.at[i]);
    return w->freed > 2 * w->results;
}

/* --- relief ------------------------------------------------------------------------------------------------------------------ */

static int64_t in_use(void) { return stat_near(STAT_LIVE) + atomic_load_explicit(&pressure_lent, memory_order_relaxed); }

static Status compute(const Walk *w, Loc loc)
{
    int64_t before = in_use();
    log_warn_once("memory pressure",
                  "%s%s%s%d: %" PRId64 " MiB of tensors are in use, most of them for values that were recorded and not computed: those are "
                  "computed now; call kiln_eval now and then, such as in each step of a loop (option pressure_bytes)",
                  loc.file ? "at " : "", loc.file ? loc.file : "", loc.file ? ":" : "", loc.line, before >> 20);
    for (uint32_t i = 0; i < w->tops.n; i++)
        node_retain(w->tops.at[i]);
    RtThread *t = rt_thread();
    kiln_mode *mode = t->mode; /* what it finds wrong is told by a sync point of the user's */
    t->mode = NULL;
    Status status = eval_nodes(w->tops.at, w->tops.n, "memory pressure", loc);
    t->mode = mode;
    for (uint32_t i = 0; i < w->tops.n; i++)
        node_release(w->tops.at[i]);
    log_line(LOG_MEMORY, "memory pressure: %" PRIu32 " recorded values computed, %" PRId64 " MiB in use before and %" PRId64 " MiB after",
             w->tops.n, before >> 20, in_use() >> 20);
    return status;
}

static Status relieve(Arena *arena, void *user)
{
    const Loc *loc = user;
    Walk w = {.arena = arena, .most = in_use() / 16};
    see_all(&w);
    return choose(&w, false) || choose(&w, true) ? compute(&w, *loc) : ST_OK;
}

void pressure_reset(void) { atomic_store(&pressure_mark, 0); }

void pressure_relieve(Loc loc)
{
    int64_t limit = option_int(OPT_PRESSURE_BYTES);
    int cancel = os_cancel_off();
    if (limit <= 0)
        limit = os_memory_bytes() / 2; /* reads files */
    os_cancel_restore(cancel);
    Evaluation *e;
    if (in_use() > limit && !trace_current && !rt_thread()->custom && eval_enter(&e) == ST_OK) {
        if (!e->busy)
            (void)with_arena(relieve, &loc); /* what could not be computed is computed, or told of, when it is asked for */
        eval_unlock();
    }
    int64_t mark = in_use() + limit / 8;
    atomic_store(&pressure_mark, mark > limit ? mark : limit);
}

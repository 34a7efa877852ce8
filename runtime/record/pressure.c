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
    BUF(Seen) seen;   /* users before what they use, tops first */
    BUF(uint32_t) at; /* open addressing: 1 + index in seen, 0: free; a power of two */
    BUF(RtNode *) tops, going;
    size_t n_candidates;
    int64_t results, freed; /* bytes */
} Walk;

static bool pending(const RtNode *node) { return !atomic_load_explicit(&node->storage, memory_order_acquire); }

static int64_t bytes_of(const RtNode *node) { return node_elements(node) * (int64_t)dtype_bytes((DType)node->dtype); }

/* --- the walk -------------------------------------------------------------------------------------------------------------- */

static uint32_t *slot_of(const Walk *w, const RtNode *node)
{
    size_t i = (size_t)(((uint64_t)(uintptr_t)node * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (w->at.n - 1);
    while (w->at.at[i] && w->seen.at[w->at.at[i] - 1].node != node)
        i = (i + 1) & (w->at.n - 1);
    return &w->at.at[i];
}

/* Twice the room, at first some. */
static bool grow_table(Walk *w)
{
    size_t slots = w->at.n ? 2 * w->at.n : 1024;
    if (!BUF_RESERVE(w->at, slots))
        return false;
    w->at.n = slots;
    memset(w->at.at, 0, sizeof *w->at.at * slots);
    for (size_t i = 0; i < w->seen.n; i++)
        *slot_of(w, w->seen.at[i].node) = (uint32_t)i + 1;
    return true;
}

/* NULL: no memory. */
static Seen *see(Walk *w, RtNode *node)
{
    if ((2 * w->seen.n >= w->at.n && !grow_table(w)) || !BUF_RESERVE(w->seen, w->seen.n + 1))
        return NULL;
    uint32_t *slot = slot_of(w, node);
    if (!*slot) {
        w->seen.at[w->seen.n++] = (Seen){.node = node};
        *slot = (uint32_t)w->seen.n;
    }
    return &w->seen.at[*slot - 1];
}

/* The pending graphs behind the handles in this thread's scopes. */
static bool see_all(Walk *w)
{
    for (const kiln_scope *scope = rt_thread()->scope; scope; scope = scope_around(scope))
        for (uint32_t i = 0; i < scope_size(scope); i++)
            if (pending(scope_handle(scope, i)->node) && device_has_values(scope_handle(scope, i)->node) == ST_OK &&
                !see(w, scope_handle(scope, i)->node))
                return false;
    w->n_candidates = w->seen.n;
    for (size_t i = 0; i < w->seen.n; i++) {
        RtNode *node = w->seen.at[i].node;
        for (uint32_t k = 0; pending(node) && k < node->n_in; k++) {
            Seen *in = see(w, node->in[k]);
            if (!in)
                return false;
            in->users++;
        }
    }
    return true;
}

/* What goes when the inputs of `node` are let go. */
static void let_go(Walk *w, const RtNode *node)
{
    for (uint32_t k = 0; k < node->n_in; k++) {
        Seen *in = &w->seen.at[*slot_of(w, node->in[k]) - 1];
        if (++in->gone != atomic_load_explicit(&in->node->refs, memory_order_relaxed))
            continue;
        const Storage *storage = atomic_load_explicit(&in->node->storage, memory_order_acquire);
        if (!storage)
            w->going.at[w->going.n++] = in->node;
        else if (atomic_load_explicit(&storage->refs, memory_order_relaxed) == 1 && (storage->ours || storage->lent))
            w->freed += (int64_t)storage->bytes;
    }
}

/* Finds the tops (used: and the handles that pending nodes use), their bytes, and what computing them frees: is that enough? */
static bool choose(Walk *w, int64_t most, bool used)
{
    w->tops.n = w->going.n = 0;
    w->results = w->freed = 0;
    for (size_t i = 0; i < w->seen.n; i++)
        w->seen.at[i].gone = 0;
    if (!BUF_RESERVE(w->tops, w->n_candidates + 1) || !BUF_RESERVE(w->going, w->seen.n + 1))
        return false;
    for (size_t i = 0; i < w->n_candidates; i++) {
        const Seen *seen = &w->seen.at[i];
        if ((used || seen->users == 0) && bytes_of(seen->node) <= most) {
            w->results += bytes_of(seen->node);
            w->tops.at[w->tops.n++] = seen->node;
        }
    }
    for (size_t i = 0; i < w->tops.n; i++)
        let_go(w, w->tops.at[i]);
    for (size_t i = 0; i < w->going.n; i++)
        let_go(w, w->going.at[i]);
    return w->freed > 2 * w->results;
}

/* --- relief ------------------------------------------------------------------------------------------------------------------ */

static int64_t in_use(void) { return stat_near(STAT_LIVE) + atomic_load_explicit(&pressure_lent, memory_order_relaxed); }

static void compute(const Walk *w, Loc loc)
{
    int64_t before = in_use();
    log_warn_once("memory pressure",
                  "%s%s%s%d: %" PRId64 " MiB of tensors are in use, most of them for values that were recorded and not computed: those are "
                  "computed now; call kiln_eval now and then, such as in each step of a loop (option pressure_bytes)",
                  loc.file ? "at " : "", loc.file ? loc.file : "", loc.file ? ":" : "", loc.line, before >> 20);
    for (size_t i = 0; i < w->tops.n; i++)
        node_retain(w->tops.at[i]);
    RtThread *t = rt_thread();
    kiln_mode *mode = t->mode; /* what it finds wrong is told by a sync point of the user's */
    t->mode = NULL;
    (void)eval_nodes(w->tops.at, (uint32_t)w->tops.n, "memory pressure", loc);
    t->mode = mode;
    for (size_t i = 0; i < w->tops.n; i++)
        node_release(w->tops.at[i]);
    log_line(LOG_MEMORY, "memory pressure: %zu recorded values computed, %" PRId64 " MiB in use before and %" PRId64 " MiB after",
             w->tops.n, before >> 20, in_use() >> 20);
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
        Walk w = {0};
        int64_t most = in_use() / 16;
        if (!e->busy && see_all(&w) && (choose(&w, most, false) || choose(&w, most, true)))
            compute(&w, loc);
        eval_unlock();
        os_free(w.seen.at);
        os_free(w.at.at);
        os_free(w.tops.at);
        os_free(w.going.at);
    }
    int64_t mark = in_use() + limit / 8;
    atomic_store(&pressure_mark, mark > limit ? mark : limit);
}

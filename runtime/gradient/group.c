/* What is computed with a gradient: see group.h. */
#define KILN_NO_LOCATIONS
#include "runtime/gradient/group.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"

#include <string.h>

typedef struct Entry {
    kiln_tensor *handle; /* an owner; NULL: nothing is here any more */
    RtNode *node;        /* what it meant when it was listed, a reference: another thread may assign to the handle */
    uint32_t group;      /* a gradient: of which call; 0: a value that was assigned */
} Entry;

typedef struct Groups {
    BUF(Entry) entry; /* in the order of time; the first is a gradient */
    uint32_t last;    /* group */
    size_t swept;     /* how many there were after the last sweep */
    bool sweeping;
    /* At a sync point. */
    BUF(RtNode *) stack;
    BUF(RtNode *) seen; /* RtNode.seen is not 0 */
    BUF(RtNode *) root;
} Groups;

/* RtNode.seen */
enum {
    ASKED = 1,
    BETWEEN = 2,
    NEEDED = 4,
    USED = 8,
    IS_ROOT = 16,
    CHECKED = 32,
    /* an index that what was asked for checks */ OF_WALKS = 63
};

typedef struct Met {
    bool work;      /* something that is computed in between for what was asked for */
    bool unchecked; /* an index may be out of bounds that what was asked for does not look at */
} Met;

static Status no_memory(void) { return fail(ST_OUT_OF_MEMORY, "out of memory"); }

/* ---- the list ---- */

static void set_slot(Groups *groups, size_t i)
{
    atomic_store_explicit(&groups->entry.at[i].handle->listed, (uint32_t)i + 1, memory_order_relaxed);
}

/* Where the handle is listed; SIZE_MAX: nowhere. (What it says may be of another thread's list.) */
static size_t slot_of(const Groups *groups, kiln_tensor *x)
{
    size_t slot = atomic_load_explicit(&x->listed, memory_order_relaxed);
    return slot && slot <= groups->entry.n && groups->entry.at[slot - 1].handle == x ? slot - 1 : SIZE_MAX;
}

/* Takes an entry out of the list. */
static Entry take(Entry *entry)
{
    Entry taken = *entry;
    atomic_store_explicit(&taken.handle->listed, 0, memory_order_relaxed);
    entry->handle = NULL;
    return taken;
}

/* May call a deleter of the user's, which may change the list. */
static void give_back(Entry taken)
{
    node_release(taken.node);
    kiln_release(taken.handle);
}

static bool is_wanted(const Entry *entry)
{
    return entry->handle && node_pending(entry->node) && atomic_load_explicit(&entry->handle->refs, memory_order_acquire) > 1;
}

void group_sweep(RtThread *t)
{
    Groups *groups = t->group;
    size_t kept = 0;
    if (!groups || groups->sweeping)
        return;
    groups->sweeping = true;
    for (size_t i = 0; i < groups->entry.n; i++) {
        Entry *entry = &groups->entry.at[i];
        if (is_wanted(entry) && (entry->group || kept)) { /* what was assigned before all gradients there are belongs to none */
            groups->entry.at[kept] = *entry;
            if (kept != i)
                entry->handle = NULL;
            set_slot(groups, kept++);
        } else if (entry->handle) {
            give_back(take(entry));
        }
    }
    groups->entry.n = groups->swept = kept;
    groups->sweeping = false;
}

bool group_lists_any(const RtThread *t) { return t->group && t->group->entry.n > 0; }

Status group_reserve(RtThread *t, size_t n)
{
    Groups *groups = t->group;
    if (!groups)
        return ST_OK;
    if (groups->entry.n + n > 2 * groups->swept + 64) /* a loop that never comes to a sync point */
        group_sweep(t);
    return BUF_RESERVE(groups->entry, groups->entry.n + n) ? ST_OK : ST_OUT_OF_MEMORY;
}

/* Lists what x means now; the room was reserved. (A deleter that took it meanwhile costs time, no more.) */
static void list(Groups *groups, kiln_tensor *x, uint32_t group)
{
    if (groups->entry.n == groups->entry.cap)
        return;
    groups->entry.at[groups->entry.n] = (Entry){kiln_retain(x), node_retain(x->node), group};
    set_slot(groups, groups->entry.n++);
}

Status group_new(RtThread *t, int n, kiln_tensor *const *grads)
{
    if (trace_current)
        return ST_OK;
    if (!t->group && !(t->group = os_calloc(1, sizeof *t->group)))
        return no_memory();
    TRY(group_reserve(t, (size_t)n));
    t->group->last += t->group->last < UINT32_MAX;
    for (int i = 0; i < n; i++)
        if (node_pending(grads[i]->node))
            list(t->group, grads[i], t->group->last);
    return ST_OK;
}

void group_assigned(RtThread *t, kiln_tensor *p)
{
    Groups *groups = t->group;
    if (!groups || trace_current)
        return;
    size_t at = slot_of(groups, p);
    if (at != SIZE_MAX)
        give_back(take(&groups->entry.at[at]));
    if (groups->entry.n && node_pending(p->node))
        list(groups, p, 0);
}

void group_end_thread(RtThread *t)
{
    Groups *groups = t->group;
    if (!groups)
        return;
    for (size_t i = 0; i < groups->entry.n; i++)
        if (groups->entry.at[i].handle)
            give_back(take(&groups->entry.at[i]));
    t->group = NULL;
    os_free(groups->entry.at);
    os_free(groups->stack.at);
    os_free(groups->seen.at);
    os_free(groups->root.at);
    os_free(groups);
}

/* ---- sync points ---- */

static Status mark(Groups *groups, RtNode *node, uint8_t bit)
{
    if (!(node->seen & OF_WALKS)) {
        if (!BUF_RESERVE(groups->seen, groups->seen.n + 1))
            return ST_OUT_OF_MEMORY;
        groups->seen.at[groups->seen.n++] = node;
    }
    node->seen |= bit;
    return ST_OK;
}

/* Is computing it a second time worth a thought? */
static bool is_work(const RtNode *node)
{
    OpClass cls = op_class((Op)node->op);
    return cls != CLS_LEAF && cls != CLS_VIEW && (cls != CLS_EW || node_elements(node) > 1);
}

/* Marks with `bit` what computing `root` would compute, itself included; not behind what carries `end`. */
static Status walk(Groups *groups, RtNode *root, uint8_t bit, uint8_t end, Met *met)
{
    if (!node_pending(root) || root->seen & (bit | end))
        return ST_OK;
    groups->stack.n = 0;
    for (RtNode *node = root; node; node = groups->stack.n ? groups->stack.at[--groups->stack.n] : NULL) {
        if (node->seen & bit)
            continue;
        bool between = node->seen & BETWEEN;
        met->work |= between && is_work(node);
        if (node->op == OP_GATHER || node->op == OP_SCATTER) {
            met->unchecked |= !(node->in[1]->seen & CHECKED);
            if (bit == BETWEEN)
                TRY(mark(groups, node->in[1], CHECKED));
        }
        TRY(mark(groups, node, bit));
        if (!BUF_RESERVE(groups->stack, groups->stack.n + node->n_in))
            return no_memory();
        for (uint32_t k = 0; k < node->n_in; k++)
            if (node_pending(node->in[k]) && !(node->in[k]->seen & (bit | end)))
                groups->stack.at[groups->stack.n++] = node->in[k];
    }
    return ST_OK;
}

static Status add_root(Groups *groups, RtNode *node)
{
    if (node->seen & IS_ROOT)
        return ST_OK;
    if (!BUF_RESERVE(groups->root, groups->root.n + 1))
        return no_memory();
    TRY(mark(groups, node, IS_ROOT));
    groups->root.at[groups->root.n++] = node_retain(node);
    return ST_OK;
}

/* Entries [first, end) are the gradients of one call; behind them stands what was assigned since. Takes what belongs to the sync point.
 * late_errors: a bad index is seen when all is published, so none may come along that is not what was asked for's own. */
static Status add_group(Groups *groups, size_t first, size_t end, bool late_errors)
{
    Met met = {false}, of_no_interest = {false};
    bool used = false;
    for (size_t i = first; i < groups->entry.n; i++)
        if (i < end || !groups->entry.at[i].group)
            TRY(walk(groups, groups->entry.at[i].node, NEEDED, ASKED, &met));
    for (size_t i = 0; i < groups->seen.n; i++)
        groups->seen.at[i]->seen &= (uint8_t)~NEEDED;
    if (!met.work || (met.unchecked && late_errors))
        return ST_OK;
    for (size_t i = end; i < groups->entry.n; i++)
        if (!groups->entry.at[i].group) {
            TRY(add_root(groups, groups->entry.at[i].node));
            TRY(walk(groups, groups->entry.at[i].node, USED, 0, &of_no_interest));
        }
    for (size_t i = first; i < end && !used; i++)
        used = groups->entry.at[i].node->seen & USED;
    for (size_t i = first; i < end && !used; i++)
        TRY(add_root(groups, groups->entry.at[i].node));
    return ST_OK;
}

static Status find_roots(Groups *groups, RtNode *const *nodes, uint32_t n, size_t *asked)
{
    Met of_no_interest = {false};
    int device = DEVICE_ANY;
    for (uint32_t i = 0; i < n && !device_kind(device)->queues; i++)
        TRY(device_of(nodes[i], &device));
    for (uint32_t i = 0; i < n; i++)
        TRY(add_root(groups, nodes[i]));
    *asked = groups->root.n;
    for (uint32_t i = 0; i < n; i++)
        TRY(walk(groups, nodes[i], BETWEEN, 0, &of_no_interest));
    for (uint32_t i = 0; i < n; i++)
        nodes[i]->seen = (uint8_t)(ASKED | (nodes[i]->seen & ~(unsigned)BETWEEN));
    for (size_t i = 0, end; i < groups->entry.n; i = end) {
        for (end = i + 1; end < groups->entry.n && groups->entry.at[end].group == groups->entry.at[i].group; end++)
            ;
        if (groups->entry.at[i].group)
            TRY(add_group(groups, i, end, device_kind(device)->queues));
    }
    return ST_OK;
}

Status group_roots(Evaluation *e, RtNode *const *nodes, RtNode ***roots, uint32_t *n)
{
    RtThread *t = rt_thread();
    Groups *groups = t->group;
    *roots = NULL;
    group_sweep(t);
    if (!groups || !groups->entry.n || !e->options.value[OPT_JOINT])
        return ST_OK;
    groups->root.n = 0;
    size_t asked = 0;
    Status status = find_roots(groups, nodes, *n, &asked);
    for (size_t i = 0; i < groups->seen.n; i++)
        groups->seen.at[i]->seen &= (uint8_t)~OF_WALKS;
    groups->seen.n = 0;
    if (status != ST_OK || groups->root.n == asked) {
        while (groups->root.n)
            node_release(groups->root.at[--groups->root.n]);
        return status;
    }
    if (log_on(LOG_GRADIENT))
        log_line(LOG_GRADIENT, "%s%s%s: %zu more values of a gradient or an update are computed with what was asked for (KILN_JOINT)",
                 e->api, e->loc.file ? " at " : "", e->loc.file ? e->loc.file : "", groups->root.n - asked);
    e->asked = (uint32_t)asked;
    *roots = groups->root.at;
    *n = (uint32_t)groups->root.n;
    return ST_OK;
}

void group_done(Evaluation *e, RtNode **roots, uint32_t n, Status why)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i >= e->asked && !node_pending(roots[i]))
            roots[i]->seen |= SEEN_IN_COMPANY;
        node_release(roots[i]);
    }
    if (why != ST_OK && log_on(LOG_GRADIENT))
        log_line(LOG_GRADIENT, "%s: together they fail (%s); what was asked for is computed alone", e->api, fail_message());
}

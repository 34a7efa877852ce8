/*
 * Nodes and storage: how they are made, counted and given back.
 *
 * Nodes come from a free list of the calling thread, so making one takes no lock; a node is given
 * back to the list of the thread that drops its last reference. A list that grows past its limit
 * hands the surplus to the process (one atomic exchange), where a thread with an empty list finds
 * it. Dropping a node that is the last user of its inputs drops those too: dead nodes are chained
 * through themselves, so depth costs no stack.
 *
 * A thread keeps a little of the small storage that it frees, struct and data, for its next results, and where several threads are at work of that of
 * middle size, too: no lock, no shared counter.
 * Other storage is rounded up to size classes (eight for each doubling) and kept, when freed, in one list
 * for each class, up to half of the most that was in use. A list is taken as a whole by an atomic exchange and what
 * is not needed is pushed back: no lock, so a fork at any moment is safe, and nobody can meet the
 * ABA problem.
 *
 * Under AddressSanitizer nothing is pooled, so that it sees every use after free.
 */
#include "runtime/record/tensor.h"
#include "ir/base/os.h"
#include "ir/base/sanitizer.h"
#include "runtime/api/stats.h"
#include "runtime/device/device.h"
#include "runtime/eval/constants.h"
#include "runtime/device/size_class.h"
#include "runtime/record/bodies.h"
#include "runtime/record/pressure.h"
#include "runtime/record/thread.h"

#include <string.h>

enum { POOLING = !WITH_ASAN };

enum { FREE_NODES = 4096, COUNT_EVERY = 256 };

/* ---- nodes ---- */

static RtNode *_Atomic spare_nodes; /* chained through RtNode.data */

/* A node to fill, from this thread's list, the process's, or the heap. */
static RtNode *node_take(RtThread *t)
{
    if (!t->free_nodes && atomic_load_explicit(&spare_nodes, memory_order_relaxed)) {
        t->free_nodes = atomic_exchange(&spare_nodes, NULL);
        for (RtNode *n = t->free_nodes; n; n = (RtNode *)(void *)n->data)
            t->n_free_nodes++;
    }
    RtNode *node = t->free_nodes;
    if (!node)
        return os_alloc(sizeof(RtNode));
    t->free_nodes = (RtNode *)(void *)node->data;
    t->n_free_nodes--;
    return node;
}

/* Pushes a chain of nodes on the process's list. */
static void spare_push(RtNode *first, RtNode *last)
{
    RtNode *head = atomic_load(&spare_nodes);
    do
        last->data = (char *)head;
    while (!atomic_compare_exchange_weak(&spare_nodes, &head, first));
}

static void node_give(RtThread *t, RtNode *node)
{
    if (!POOLING) {
        os_free(node);
        return;
    }
    node->data = (char *)t->free_nodes;
    t->free_nodes = node;
    if (++t->n_free_nodes < FREE_NODES)
        return;
    RtNode *last = node;
    for (int i = 1; i < FREE_NODES / 2; i++)
        last = (RtNode *)(void *)last->data;
    t->free_nodes = (RtNode *)(void *)last->data;
    t->n_free_nodes -= FREE_NODES / 2;
    spare_push(node, last);
}

void nodes_end_thread(RtThread *t)
{
    nodes_count(t);
    RtNode *last = t->free_nodes;
    if (!last)
        return;
    while (last->data)
        last = (RtNode *)(void *)last->data;
    spare_push(t->free_nodes, last);
    t->free_nodes = NULL;
    t->n_free_nodes = 0;
}

RtNode *node_new(Op op, DType dtype, int rank, const int64_t *dims, uint32_t n_in, uint32_t n_facts)
{
    RtThread *t = rt_thread();
    RtNode *node = node_take(t);
    RtNode **in = node ? node->inline_in : NULL;
    int64_t *facts = node ? node->inline_facts : NULL;
    if (node && n_in > NODE_INLINE_IN)
        in = os_alloc(sizeof *in * n_in);
    if (node && n_facts > NODE_INLINE_FACTS)
        facts = os_alloc(sizeof *facts * n_facts);
    if (!node || !in || !facts) {
        if (node && in != node->inline_in)
            os_free(in);
        if (node && facts != node->inline_facts)
            os_free(facts);
        if (node)
            node_give(t, node);
        fail(ST_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    /* Field by field: clearing the whole node costs more than the rest of this function. */
    atomic_init(&node->refs, 1);
    node->op = (uint8_t)op;
    node->dtype = (uint8_t)dtype;
    node->rank = (uint8_t)rank;
    node->device = DEVICE_ANY;
    node->weak = node->strided = node->given = node->tracked = node->stop = node->keep = false;
    node->checkpoint = node->phase = node->seen = node->inside = 0;
    node->n_in = n_in;
    node->n_facts = n_facts;
    node->in = in;
    node->facts = facts;
    node->attr = (Attr){0};
    for (int d = 0; d < rank; d++)
        node->dim[d] = dims[d];
    node->scalar = 0;
    atomic_init(&node->storage, NULL);
    node->data = NULL;
    node->stride = NULL;
    node->held = NULL;
    node->marks = NULL;
    node->loc = (Loc){NULL, 0};
    node->api = NULL;
    node->body = t->loop ? t->loop->id : 0;
    node->depth = node->mark = node->index = node->after = node->leaf = 0;
    node->owner = t->serial;
    if (++t->n_recorded == COUNT_EVERY)
        nodes_count(t);
    return node;
}

void nodes_count(RtThread *t)
{
    stat_add(STAT_NODES, t->n_recorded);
    t->n_recorded = 0;
}

RtNode *node_retain(RtNode *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return node;
}

static int64_t node_bytes(const RtNode *node) { return node_elements(node) * (int64_t)dtype_bytes((DType)node->dtype); }

/* Drops one reference; a node that nobody uses any more goes on the list of the dead. */
static void node_drop(RtNode *node, RtNode **dead)
{
    if (node->op == OP_RESULT && node->results) { /* they know it without a reference */
        if (!bodies_drop_result(node))
            return;
    } else if (atomic_load_explicit(&node->refs, memory_order_acquire) != 1 && /* the only owner need not ask again */
               atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    Storage *storage = atomic_load_explicit(&node->storage, memory_order_relaxed);
    if (storage && node->keep)
        stat_level(STAT_KEPT, -node_bytes(node));
    if (storage)
        storage_release(storage);
    node->data = (char *)*dead;
    *dead = node;
}

static void drop_held(RtNode *node, RtNode **dead)
{
    Held *held = node->held;
    node->held = NULL;
    if (atomic_fetch_sub_explicit(&held->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t k = 0; k < held->n; k++)
        node_drop(held->node[k], dead);
    os_free(held);
}

/* Gives back the dead, and those who die with them. */
static void bury(RtNode *dead)
{
    RtThread *t = rt_thread();
    while (dead) {
        RtNode *node = dead;
        dead = (RtNode *)(void *)node->data;
        for (uint32_t k = 0; k < node->n_in; k++)
            node_drop(node->in[k], &dead);
        if (node->held)
            drop_held(node, &dead);
        if (node->in != node->inline_in)
            os_free(node->in);
        if (node->facts != node->inline_facts)
            os_free(node->facts);
        if (node_has_bodies(node) || node->op == OP_RESULT)
            body_results_release(node->results);
        else if (node->stride)
            os_free(node->stride);
        if (node->marks)
            os_free(node->marks);
        node_give(t, node);
    }
}

void node_release(RtNode *node)
{
    RtNode *dead = NULL;
    if (!node)
        return;
    node_drop(node, &dead);
    if (dead)
        bury(dead);
}

static void drop_inputs(RtNode *node)
{
    RtNode *dead = NULL;
    uint32_t n = node->n_in;
    if (node->op == OP_RESULT && node->results)
        bodies_forget_result(node);
    node->n_in = 0;
    for (uint32_t k = 0; k < n; k++)
        node_drop(node->in[k], &dead);
    if (node->held)
        drop_held(node, &dead);
    if (node->in != node->inline_in) {
        os_free(node->in);
        node->in = node->inline_in;
    }
    if (dead)
        bury(dead);
}

uint32_t node_take_inputs(RtNode *node, RtNode **to)
{
    uint32_t n = node->n_in;
    for (uint32_t k = 0; k < n; k++)
        to[k] = node->in[k];
    node->n_in = 0;
    if (node->in != node->inline_in)
        os_free(node->in);
    node->in = node->inline_in;
    return n;
}

void node_set_value(RtNode *node, Storage *storage, char *data)
{
    node->data = data;
    atomic_store_explicit(&node->storage, storage, memory_order_release);
}

void node_value_set(RtNode *node)
{
    if (node->keep)
        stat_level(STAT_KEPT, node_bytes(node));
    else
        drop_inputs(node);
}

void node_set_storage(RtNode *node, Storage *storage, char *data)
{
    node_set_value(node, storage, data);
    node_value_set(node);
}

void node_let_go(RtNode *node, const char *api)
{
    if (!node->keep)
        return;
    node->keep = false;
    if (node_pending(node))
        return;
    stat_level(STAT_KEPT, -node_bytes(node));
    drop_inputs(node);
    node->computed.api = api;
    node->computed.loc = (Loc){NULL, 0};
}

int64_t node_elements(const RtNode *node)
{
    int64_t n = 1;
    for (int d = 0; d < node->rank; d++)
        n *= node->dim[d];
    return n;
}

/* ---- storage ---- */

/* A freed block of the pool; lies in its own memory. */
typedef struct Block {
    struct Block *next;
} Block;

static Block *_Atomic pool[SIZE_CLASSES];
static _Atomic int64_t in_use, most_in_use; /* bytes of the host's memory, small storage left out */

static void pool_push(unsigned index, Block *first, Block *last)
{
    Block *head = atomic_load(&pool[index]);
    do
        last->next = head;
    while (!atomic_compare_exchange_weak(&pool[index], &head, first));
}

static void *pool_pop(size_t rounded)
{
    unsigned index = size_class(rounded);
    if (!atomic_load_explicit(&pool[index], memory_order_relaxed))
        return NULL;
    Block *block = atomic_exchange(&pool[index], NULL);
    if (!block)
        return NULL;
    Block *rest = block->next, *none = NULL;
    if (rest && !atomic_compare_exchange_strong(&pool[index], &none, rest)) {
        Block *last = rest;
        while (last->next)
            last = last->next;
        pool_push(index, rest, last);
    }
    stat_level(STAT_POOLED, -(int64_t)rounded);
    return block;
}

void storage_trim(void)
{
    storages_end_thread(rt_thread());
    for (unsigned index = 0; index < SIZE_CLASSES; index++) {
        Block *block = atomic_exchange(&pool[index], NULL);
        while (block) {
            Block *next = block->next;
            stat_level(STAT_POOLED, -(int64_t)size_of_class(index));
            os_free(block);
            block = next;
        }
    }
}

static void count_use(size_t bytes, bool more)
{
    if (bytes <= SMALL_BYTES)
        return;
    int64_t n = (int64_t)size_class_bytes(bytes), now = atomic_fetch_add(&in_use, more ? n : -n) + n, most = atomic_load(&most_in_use);
    while (more && now > most && !atomic_compare_exchange_weak(&most_in_use, &most, now))
        ;
}

/* Gives a block back: to the pool while that is small beside the most that was in use, else to the system. */
static void data_free(void *data, size_t bytes)
{
    size_t rounded = size_class_bytes(bytes);
    int64_t room = atomic_load(&most_in_use) / 2 + (64 << 20);
    count_use(bytes, false);
    if (!POOLING || stat_near(STAT_POOLED) + (int64_t)rounded > room) {
        os_free(data);
        return;
    }
    stat_level(STAT_POOLED, (int64_t)rounded);
    pool_push(size_class(rounded), data, data);
}

static void *data_alloc(size_t bytes)
{
    if (bytes > (size_t)1 << 62)
        return NULL;
    size_t rounded = size_class_bytes(bytes);
    void *data = POOLING ? pool_pop(rounded) : NULL;
    if (!data)
        data = os_alloc_aligned(64, rounded);
    if (!data) {
        (void)constants_drop(DEVICE_CPU);
        storage_trim();
        data = os_alloc_aligned(64, rounded);
    }
    if (data)
        count_use(bytes, true);
    return data;
}

enum { SMALL_KEPT = 1 << 16, MIDDLE_KEPT = 1 << 20 }; /* bytes, in a thread; not counted as pooled */

/* The thread's list for so many bytes; NULL: they are too many. */
static Storage **kept_list(RtThread *t, size_t bytes)
{
    enum { FIRST_MIDDLE = 10 * 8 }; /* the class above SMALL_BYTES */
    if (bytes <= SMALL_BYTES)
        return &t->kept[bytes ? (bytes - 1) / SMALL_STEP : 0];
    return bytes <= MIDDLE_BYTES ? &t->kept[SMALL_CLASSES + size_class(size_class_bytes(bytes)) - FIRST_MIDDLE] : NULL;
}

static uint32_t *kept_bytes(RtThread *t, size_t bytes) { return bytes <= SMALL_BYTES ? &t->small_bytes : &t->middle_bytes; }

static Storage *kept_take(size_t bytes)
{
    RtThread *t = rt_thread();
    Storage **list = kept_list(t, bytes), *storage = list ? *list : NULL;
    if (!storage)
        return NULL;
    *list = storage->user;
    *kept_bytes(t, bytes) -= (uint32_t)size_class_bytes(bytes);
    atomic_store_explicit(&storage->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&storage->borrowed, false, memory_order_relaxed);
    storage->user = NULL;
    storage->bytes = bytes;
    stat_live((int64_t)bytes);
    return storage;
}

static bool kept_give(Storage *storage)
{
    RtThread *t = rt_thread();
    size_t bytes = storage->bytes, rounded = size_class_bytes(bytes);
    Storage **list = POOLING ? kept_list(t, bytes) : NULL;
    bool small = bytes <= SMALL_BYTES;
    if (!list || *kept_bytes(t, bytes) + rounded > (small ? SMALL_KEPT : MIDDLE_KEPT) || !(small || stats_shared()))
        return false;
    stat_live(-(int64_t)bytes);
    *kept_bytes(t, bytes) += (uint32_t)rounded;
    storage->user = *list;
    *list = storage;
    return true;
}

void storages_end_thread(RtThread *t)
{
    for (int i = 0; i < SMALL_CLASSES + MIDDLE_CLASSES; i++)
        while (t->kept[i]) {
            Storage *storage = t->kept[i];
            t->kept[i] = storage->user;
            if (i < SMALL_CLASSES)
                os_free(storage->data);
            else
                data_free(storage->data, storage->bytes);
            os_free(storage);
        }
    t->small_bytes = t->middle_bytes = 0;
}

void storage_free_data(Storage *storage) { data_free(storage->data, storage->bytes); }

Storage *storage_new(size_t bytes)
{
    Storage *kept = kept_take(bytes);
    if (kept)
        return kept;
    Storage *storage = os_calloc(1, sizeof *storage);
    void *data = storage ? data_alloc(bytes) : NULL;
    if (!data) {
        os_free(storage);
        fail(ST_OUT_OF_MEMORY, "out of memory: %zu bytes requested, %lld in use, %lld pooled", bytes, (long long)atomic_load(&in_use),
             (long long)stat_near(STAT_POOLED));
        return NULL;
    }
    atomic_init(&storage->refs, 1);
    storage->ours = true;
    storage->device = DEVICE_CPU;
    storage->data = data;
    storage->bytes = bytes;
    stat_live((int64_t)bytes);
    return storage;
}

Storage *storage_borrow(void *data, size_t bytes, void *origin, void (*deleter)(void *, void *), void *user)
{
    Storage *storage = os_calloc(1, sizeof *storage);
    if (!storage) {
        fail(ST_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    atomic_init(&storage->refs, 1);
    atomic_init(&storage->borrowed, true);
    storage->device = DEVICE_CPU;
    storage->data = data;
    storage->bytes = bytes;
    storage->origin = origin;
    storage->deleter = deleter;
    storage->user = user;
    return storage;
}

void storage_lend(Storage *storage, void (*deleter)(void *, void *))
{
    storage->deleter = deleter;
    storage->lent = deleter != NULL;
    if (storage->lent)
        atomic_fetch_add_explicit(&pressure_lent, (int64_t)storage->bytes, memory_order_relaxed);
}

Storage *storage_retain(Storage *storage)
{
    atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
    return storage;
}

void storage_release(Storage *storage)
{
    if (!storage || atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) != 1)
        return;
    constants_forget(storage);
    if (storage->ours && !device_kind(storage->device)->apart && kept_give(storage))
        return;
    if (storage->ours) {
        stat_live(-(int64_t)storage->bytes);
        device_release(storage);
    } else if (storage->deleter) {
        if (storage->lent)
            atomic_fetch_sub_explicit(&pressure_lent, (int64_t)storage->bytes, memory_order_relaxed);
        int cancel = os_cancel_off(); /* it may be called in the middle of an evaluation */
        storage->deleter(storage->origin, storage->user);
        os_cancel_restore(cancel);
    }
    os_free(storage);
}

/*
 * Scopes, handles, threads: who owns a tensor and for how long.
 *
 * A scope is a list of handles; each open scope of a thread points to the one around it, down to
 * the thread's root scope, which ends with the thread. A handle counts its owners: the scope that
 * has it and each kiln_retain. It knows its place in its scope's list, so kiln_keep moves it
 * without a search. Only the thread that opened a scope touches the scope; owners may let go in any
 * thread. Handles and scopes are reused through free lists like those of nodes (runtime/record/tensor.c).
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/sanitizer.h"
#include "jit/options.h"
#include "runtime/api/stats.h"
#include "runtime/gradient/group.h"
#include "runtime/gradient/recording.h"
#include "runtime/mode/mode.h"

#include <string.h>
#include <threads.h>

struct kiln_scope {
    kiln_scope *parent; /* also links the free list */
    kiln_tensor **slot;
    uint32_t n, cap;
};

enum { FREE_HANDLES = 4096, KEEP_SLOTS = 1 << 16, ROOT_WARNING = 1 << 17 };

enum { REUSE = !WITH_ASAN };

/* ---- threads ---- */

_Thread_local RtThread rt_tls __attribute__((tls_model("initial-exec")));

static tss_t thread_key;
static atomic_uint serials;
static bool have_key;

static void thread_end(void *arg)
{
    RtThread *t = arg;
    modes_end_thread(t);
    recordings_end_thread(t);
    group_end_thread(t);
    scopes_end_thread(t);
    nodes_end_thread(t);
    handles_end_thread(t);
    evaluation_end_thread(t);
    cuda_end_thread(t);
    storages_end_thread(t);
    stats_end_thread();
    errors_end_thread(t);
    os_free(t->temp);
    memset(t, 0, sizeof *t);
}

__attribute__((constructor)) static void make_key(void) { have_key = tss_create(&thread_key, thread_end) == thrd_success; }

void rt_thread_start(void)
{
    options_init();
    rt_tls.ready = true;
    do
        rt_tls.serial = atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed) + 1;
    while (!rt_tls.serial);
    stats_start_thread();
    trace_from_environment();
    if (have_key)
        tss_set(thread_key, &rt_tls);
    rt_tls.scope = os_calloc(1, sizeof *rt_tls.scope);
    errors_start_thread(&rt_tls);
    if (log_on(LOG_OPS))
        (void)kiln_log_ops_push();
}

/* ---- handles ---- */

static kiln_tensor *_Atomic spare_handles; /* chained through kiln_tensor.node */

static kiln_tensor *next_handle(const kiln_tensor *x) { return (kiln_tensor *)(void *)x->node; }

static kiln_tensor *handle_take(RtThread *t)
{
    if (!t->free_handles && atomic_load_explicit(&spare_handles, memory_order_relaxed)) {
        t->free_handles = atomic_exchange(&spare_handles, NULL);
        for (kiln_tensor *x = t->free_handles; x; x = next_handle(x))
            t->n_free_handles++;
    }
    kiln_tensor *x = t->free_handles;
    if (!x)
        return os_alloc(sizeof *x);
    t->free_handles = next_handle(x);
    t->n_free_handles--;
    return x;
}

static void handles_share(kiln_tensor *first, kiln_tensor *last)
{
    kiln_tensor *head = atomic_load(&spare_handles);
    do
        last->node = (RtNode *)(void *)head;
    while (!atomic_compare_exchange_weak(&spare_handles, &head, first));
}

static void handle_give(RtThread *t, kiln_tensor *x)
{
    if (!REUSE) {
        os_free(x);
        return;
    }
    x->node = (RtNode *)(void *)t->free_handles;
    t->free_handles = x;
    if (++t->n_free_handles < FREE_HANDLES)
        return;
    kiln_tensor *last = x;
    for (int i = 1; i < FREE_HANDLES / 2; i++)
        last = next_handle(last);
    t->free_handles = next_handle(last);
    t->n_free_handles -= FREE_HANDLES / 2;
    handles_share(x, last);
}

void handles_end_thread(RtThread *t)
{
    kiln_tensor *last = t->free_handles;
    if (!last)
        return;
    while (next_handle(last))
        last = next_handle(last);
    handles_share(t->free_handles, last);
    t->free_handles = NULL;
    t->n_free_handles = 0;
}

/* Drops one owner; without owners the handle goes, and its node with it. */
static void handle_drop(RtThread *t, kiln_tensor *x)
{
    if (atomic_load_explicit(&x->refs, memory_order_acquire) != 1 && /* the only owner need not ask again */
        atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1)
        return;
    node_release(x->node);
    handle_give(t, x);
}

/* ---- scopes ---- */

static bool scope_grow(kiln_scope *scope)
{
    if (scope->n < scope->cap)
        return true;
    uint32_t cap = scope->cap ? scope->cap * 2 : 32;
    kiln_tensor **slot = os_realloc(scope->slot, sizeof *slot * cap);
    if (!slot)
        return false;
    scope->slot = slot;
    scope->cap = cap;
    if (!scope->parent && cap == ROOT_WARNING)
        log_warn_once("root scope",
                      "%u tensors were made outside of any scope and stay alive; open a "
                      "scope in the loop (kiln_scope_begin, kiln_scope_end)",
                      scope->n);
    return true;
}

/* Puts a handle into a scope that has room. */
static void scope_add(kiln_scope *scope, kiln_tensor *x)
{
    x->scope = scope;
    x->scope_slot = scope->n;
    scope->slot[scope->n++] = x;
}

kiln_tensor *tensor_new(RtNode *node)
{
    RtThread *t = rt_thread();
    if (!t->scope)
        t->scope = os_calloc(1, sizeof *t->scope);
    kiln_tensor *x = t->scope && scope_grow(t->scope) ? handle_take(t) : NULL;
    if (!x) {
        fail(ST_OUT_OF_MEMORY, "out of memory");
        node_release(node);
        return NULL;
    }
    x->node = node;
    atomic_init(&x->refs, 1);
    x->param = 0;
    atomic_init(&x->listed, 0);
    x->born = trace_birth();
    scope_add(t->scope, x);
    return x;
}

kiln_scope *kiln_scope_begin(void)
{
    RtThread *t = rt_thread();
    kiln_scope *scope = t->free_scopes;
    if (scope)
        t->free_scopes = scope->parent;
    else
        scope = os_calloc(1, sizeof *scope);
    if (!scope || !t->scope) {
        os_free(scope);
        return NULL;
    }
    scope->parent = t->scope;
    t->scope = scope;
    return scope;
}

/* Releases what the innermost scope owns, last made first. */
static void scope_clear(RtThread *t, kiln_scope *scope)
{
    while (scope->n) {
        kiln_tensor *x = scope->slot[--scope->n];
        x->scope = NULL;
        handle_drop(t, x);
    }
    group_sweep(t);
    if (scope->cap > KEEP_SLOTS) {
        os_free(scope->slot);
        scope->slot = NULL;
        scope->cap = 0;
    }
}

/* What a body has set as a result and made in a scope that ends moves to the scope around the body. */
static void keep_results(const Body *body, kiln_scope *scope)
{
    for (int k = 0; k < body->n_out; k++)
        for (uint32_t i = 0; body->out[k] && i < scope->n; i++) {
            if (scope->slot[i] != body->out[k])
                continue;
            if (!scope_grow(body->floor)) {
                body->out[k] = NULL;
                error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), "kiln_scope_end", (Loc){NULL, 0});
                break;
            }
            kiln_tensor *last = scope->slot[--scope->n];
            scope->slot[i] = last;
            last->scope_slot = i;
            scope_add(body->floor, body->out[k]);
        }
}

static void scope_pop(RtThread *t)
{
    kiln_scope *scope = t->scope;
    t->scope = scope->parent;
    if (t->body)
        keep_results(t->body, scope);
    scope_clear(t, scope);
    if (!REUSE) {
        os_free(scope->slot);
        os_free(scope);
        return;
    }
    scope->parent = t->free_scopes;
    t->free_scopes = scope;
}

void kiln_scope_end(kiln_scope *scope)
{
    if (!scope)
        return;
    RtThread *t = rt_thread();
    const kiln_scope *floor = t->body ? t->body->floor : NULL, *at = t->scope;
    while (at && at != floor && at != scope)
        at = at->parent;
    if (!at || at == floor || !at->parent) {
        Status status = floor ? fail(ST_INVALID, "the body of a %s may end the scopes that it began, no others",
                                     t->body->api ? t->body->api : "kiln_function")
                              : fail(ST_INVALID, "the scope is not an open one of this thread");
        error_keep(status, "kiln_scope_end", (Loc){NULL, 0});
        return;
    }
    scopes_end_within(t, scope);
    scope_pop(t);
}

const kiln_scope *scope_around(const kiln_scope *scope) { return scope->parent; }
uint32_t scope_size(const kiln_scope *scope) { return scope->n; }
kiln_tensor *scope_handle(const kiln_scope *scope, uint32_t i) { return scope->slot[i]; }

void scopes_end_within(RtThread *t, const kiln_scope *scope)
{
    while (t->scope != scope)
        scope_pop(t);
}

void scopes_visit(void (*visit)(const kiln_tensor *x, void *user), void *user)
{
    for (const kiln_scope *scope = rt_thread()->scope; scope; scope = scope->parent)
        for (uint32_t i = 0; i < scope->n; i++)
            visit(scope->slot[i], user);
}

void scopes_end_thread(RtThread *t)
{
    while (t->scope && t->scope->parent)
        scope_pop(t);
    if (t->scope) {
        scope_clear(t, t->scope);
        os_free(t->scope->slot);
        os_free(t->scope);
        t->scope = NULL;
    }
    while (t->free_scopes) {
        kiln_scope *next = t->free_scopes->parent;
        os_free(t->free_scopes->slot);
        os_free(t->free_scopes);
        t->free_scopes = next;
    }
}

kiln_tensor *kiln_keep(kiln_tensor *x)
{
    RtThread *t = rt_thread();
    kiln_scope *at = t->scope;
    while (x && at && at != x->scope)
        at = at->parent;
    if (!x || !at || !at->parent)
        return x;
    if (!scope_grow(at->parent)) {
        error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), "kiln_keep", (Loc){NULL, 0});
        return x;
    }
    kiln_tensor *last = at->slot[--at->n];
    at->slot[x->scope_slot] = last;
    last->scope_slot = x->scope_slot;
    scope_add(at->parent, x);
    return x;
}

kiln_tensor *kiln_retain(kiln_tensor *x)
{
    if (x)
        atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    return x;
}

void kiln_release(kiln_tensor *x)
{
    if (!x)
        return;
    RtThread *t = rt_thread();
    bool listed = group_lists(t, x);
    handle_drop(t, x);
    if (listed)
        group_sweep(t);
}

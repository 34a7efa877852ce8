/*
 * The evaluation lock. What is shared -- nodes, the program cache, histories, logs of compiles -- changes under it; kernels, launches on
 * CUDA devices and compiles are without it, so that evaluations of several threads run concurrently.
 *
 *     thread A   |lock: collect, find ......|  bind, run the steps   |lock: publish|
 *     thread B                  |lock: collect, find |  compile ...                |lock: enter, ...|
 *     thread C                                       |lock: collect ... meets a node of A: waits  |collect again ...|
 *
 * From eval_concurrent_begin to eval_concurrent_end an evaluation is *concurrent* to others, and what its call is made of is claimed. A walk leaves its
 * number on each node of a call (RtNode.mark), so a pending node is claimed while its number is that of a walk that is concurrent: nothing is
 * written for it. Who meets a claimed node waits, and begins its walk anew, since anything may have changed meanwhile. So no thread
 * changes a pending node of a call that runs, and what those hold (the call's inputs) stays where it is. References to an input that is
 * overwritten are all the call's (call_donated); a walk that could make others of them, or let some go, waits at the claim. Of evaluated nodes
 * only mark and index change, which no kernel looks at (call_renumber). A compile says what it compiles: who needs the same program claims its own
 * call, waits, and looks again. A kiln_function that is repeated has no pending node (walk 0), and holds what it reads (runtime/function/replay.c).
 *
 * Most threads evaluate what they recorded, with programs that they ran before, and need not queue for the lock at all: such an evaluation is *inside*,
 * as many threads as there are at once, while nobody has the lock:
 *
 *     thread A   |inside: collect, find |  run the steps   |inside: publish|
 *     thread B        |inside: collect, find | run the steps |inside: publish|
 *     thread C                                                  |lock: waits until nobody is inside ...|
 *
 * Who takes the lock says so (`held`) and waits until nobody is inside; who goes inside says so (EvalOwn.inside) and looks whether somebody has the lock:
 * one of the two sees the other. Inside, a thread changes nothing but pending nodes that it recorded itself and that no other walk met (RtNode.owner, mark)
 * and what no other thread looks at; it reads evaluated nodes of all, and the cache. Whatever else there is -- a pending node of another thread, a loop,
 * a program that it did not run before, a log -- has it begin anew under the lock. While the steps run it is concurrent like any other (EvalOwn.walk).
 * Nobody inside waits, runs code of the user's, or lets go of a value, which might call a deleter: that comes afterwards. A kiln_function is repeated
 * inside in the same way, on a seat of the thread's, on a CUDA device, too; short kernels of a CPU run there and then. What it is repeated by
 * (EvalOwn.repeats) is not freed under it by who has the lock: the last one to hold it does so (template_drop).
 *
 * Who looks at pending graphs in another way than collecting them -- gradients, memory pressure, marks, a kiln_function that is traced -- is
 * *alone*: it waits until nobody is concurrent, and meanwhile nobody newly is. Nor is a call that something around holds the lock for, one that is no
 * whole (may_be_concurrent in runtime/eval.c), or one whose thread has no company. Who is concurrent waits for nothing but this lock, the workers of the
 * pool and compiles, and runs no code of the user's but a log sink, a pass and an op, which may not evaluate: so waiting for those who are concurrent ends.
 *
 * tests/model/locks.pml is a model of this, which spin goes through: keep the two alike.
 *
 * The lock is held once and counted for each thread (a deleter may ask for what is computed already), and given back as a whole by who waits.
 * Safe across fork, which is alone, too. Who holds it or is concurrent computes in the default floating-point mode (ir/base/fp_mode.h) and is not
 * ended by pthread_cancel: nobody would give the lock back.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "jit/extensions.h"
#include "runtime/api/stats.h"
#include "runtime/eval.h"
#include "runtime/eval/constants.h"
#include "runtime/eval/async.h"
#include "runtime/eval/background.h"
#include "runtime/eval/op.h"
#include "runtime/eval/perf.h"
#include "runtime/eval/pool.h"
#include "runtime/eval/store.h"
#include "runtime/record/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;   /* guards what follows, and all that is "under the evaluation lock" */
    pthread_cond_t changed; /* somebody is concurrent no more */
    EvalConcurrent *concurrent;
    EvalOwn *_Atomic own; /* all there ever were */
    atomic_uint waiting;  /* for `changed`; ... */
    atomic_uint alone;    /* ... until nobody is concurrent */
    atomic_bool many;     /* several threads evaluated at once, so some may be inside */
    atomic_bool held;     /* the lock is: nobody goes inside */
} shared;
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;
static atomic_bool lock_made;

static void make_lock(void)
{
    pthread_mutex_init(&shared.lock, NULL);
    pthread_cond_init(&shared.changed, NULL);
}

/* How often this thread took the lock and did not give it back: it holds it, if at all. */
static _Thread_local unsigned taken __attribute__((tls_model("initial-exec")));
/* What it is concurrent with; NULL: nothing. */
static _Thread_local EvalConcurrent *mine __attribute__((tls_model("initial-exec")));
/* `taken` as far as the user's code that runs now is concerned, and how the thread went on before. */
static _Thread_local EvalHeld held __attribute__((tls_model("initial-exec")));

EvalHeld eval_step_out(void)
{
    EvalHeld before = held;
    if (held.depth)
        fp_leave(held.caller);
    held.depth = 0;
    return before;
}

void eval_step_in(EvalHeld before)
{
    held = before;
    if (held.depth)
        (void)fp_enter();
}

static void hold(void)
{
    if (held.depth++ == 0) {
        held.cancel = os_cancel_off();
        held.caller = fp_enter();
    }
}

static void let_go(void)
{
    if (--held.depth == 0) {
        fp_leave(held.caller);
        os_cancel_restore(held.cancel);
    }
}

static EvalOwn *my_own(void)
{
    const Evaluation *e = rt_thread()->evaluation;
    return e ? e->own : NULL;
}

static void unlock_in_child(void)
{
    make_lock(); /* the owner's thread id changed: only a fresh lock is certain */
    shared.waiting = shared.alone = 0;
    for (EvalOwn *own = shared.own; own; own = own->next)
        if (own != my_own()) {
            atomic_store(&own->inside, false); /* it was about to look */
            atomic_store(&own->walk, 0);
            atomic_store(&own->repeats, NULL);
            atomic_store(&own->taken, false);
            own->locked = false;
        }
    shared.concurrent = mine; /* a sink forks */
    if (mine)
        mine->next = NULL;
    let_go();
    if (--taken) /* a fork in code of the user's that runs under it */
        pthread_mutex_lock(&shared.lock);
    else
        atomic_store(&shared.held, false);
    evaluations_forked();
    stats_forked();
    store_log_forked();
    perf_forked();
}

static void init_lock(void)
{
    make_lock();
    timeline_handle_forks();
    log_handle_forks(); /* a fork locks in the reverse of this order: this lock first, the log's last */
    constants_handle_forks();
    pool_handle_forks();
    background_handle_forks();
    async_handle_forks();
    pthread_atfork(eval_lock, eval_unlock, unlock_in_child); /* a fork waits for kernels and compiles in flight */
    atomic_store_explicit(&lock_made, true, memory_order_release);
}

/* With the mutex: until nobody is inside, which takes a microsecond where all have a core. */
static void shut(void)
{
    enum { PAUSES = 1000, YIELDS = 1100 };
    if (!atomic_load_explicit(&shared.many, memory_order_relaxed))
        return;
    atomic_store(&shared.held, true);
    for (const EvalOwn *own = shared.own; own; own = own->next)
        for (int tries = 0; atomic_load(&own->inside); tries++)
            if (tries < PAUSES)
                os_pause();
            else
                os_give_way(tries < YIELDS ? 0 : 20e-6); /* its thread waits for a core, maybe for this one */
}

static void open_again(void)
{
    if (atomic_load_explicit(&shared.held, memory_order_relaxed))
        atomic_store(&shared.held, false);
}

/* Most hold it for less than a microsecond, and sleeping and waking takes several. */
static void acquire(void)
{
    enum { TRIES = 40, PAUSES = 8 };
    bool got = false;
    for (int i = 0; i < TRIES && !(got = pthread_mutex_trylock(&shared.lock) == 0); i++)
        for (int k = 0; k < PAUSES; k++)
            os_pause();
    if (!got)
        pthread_mutex_lock(&shared.lock);
    shut();
}

static void release(void)
{
    open_again();
    pthread_mutex_unlock(&shared.lock);
}

static void take(void)
{
    if (!atomic_load_explicit(&lock_made, memory_order_acquire))
        pthread_once(&lock_once, init_lock);
    hold();
    if (taken++ == 0)
        acquire();
}

/* Gives the lock back as a whole meanwhile. */
static void wait_for_change(void)
{
    shared.waiting++;
    open_again();
    pthread_cond_wait(&shared.changed, &shared.lock);
    shut();
    shared.waiting--;
}

/* Are others concurrent? A log sink of a thread that is may take the lock, to end a recording, say. */
static bool others_concurrent(void)
{
    const EvalConcurrent *at = shared.concurrent;
    while (at && at == mine)
        at = at->next;
    const EvalOwn *own = shared.own, *self = my_own();
    while (own && (own == self || !atomic_load(&own->walk)))
        own = own->next;
    return at || own;
}

/* Who is concurrent may wait for the log, and so for a sink: that does not wait for him. Nor does a user's op or pass at work, in the middle of
 * a call. What they can reach is the end of a recording, which is sound anyway, and a fork, whose child must not ask for what another
 * thread was computing in place then. */
void eval_alone(void)
{
    shared.alone++;
    while (others_concurrent() && !log_in_sink() && !rt_thread()->op && !user_pass_at_work())
        wait_for_change();
    shared.alone--;
}

void eval_lock(void)
{
    take();
    eval_alone();
}

/* Who holds this lock may wait for the log, and a sink holds that; or for a compile in the background, which a pass of the user's is part of. */
static inline Status may_enter(Evaluation **e)
{
    if (user_pass_at_work())
        return fail(ST_INVALID, "a pass may only look at its graph: it runs while a program is compiled");
    if (log_in_sink())
        return fail(ST_INVALID, "a log sink may only look at values that are computed already");
    TRY(op_refuses());
    return e && !(*e = evaluation_of_thread()) ? ST_OUT_OF_MEMORY : ST_OK;
}

Status eval_may_enter(void) { return may_enter(NULL); }

bool eval_holds(void) { return taken > 0; }

Status eval_enter(Evaluation **e)
{
    TRY(may_enter(e));
    eval_lock();
    return ST_OK;
}

Status eval_enter_among(Evaluation **e)
{
    TRY(may_enter(e));
    take();
    return ST_OK;
}

bool eval_trylock(void)
{
    pthread_once(&lock_once, init_lock);
    bool got = taken || pthread_mutex_trylock(&shared.lock) == 0;
    if (got) {
        hold();
        if (!taken)
            shut();
        taken++;
    }
    return got;
}

void eval_unlock(void)
{
    let_go();
    if (--taken == 0)
        release();
}

/* --- concurrent ----------------------------------------------------------------------------------------------------------------- */

bool eval_concurrent_allowed(void) { return taken == 1 && !shared.alone; }

bool eval_concurrent_possible(void) { return evaluations_of_threads() > 1 && eval_concurrent_allowed(); }

static void claim(EvalConcurrent *concurrent, uint32_t walk, const CallKey *compiles)
{
    *concurrent = (EvalConcurrent){shared.concurrent, walk, compiles};
    shared.concurrent = concurrent;
}

static void end_claim(const EvalConcurrent *concurrent)
{
    EvalConcurrent **link = &shared.concurrent;
    while (*link != concurrent)
        link = &(*link)->next;
    *link = concurrent->next;
    if (shared.waiting)
        pthread_cond_broadcast(&shared.changed);
}

void eval_concurrent_begin(EvalConcurrent *concurrent, uint32_t walk, const CallKey *compiles)
{
    claim(concurrent, walk, compiles);
    mine = concurrent;
    taken = 0;
    release();
}

void eval_concurrent_end(const EvalConcurrent *concurrent)
{
    acquire();
    taken = 1;
    mine = NULL;
    end_claim(concurrent);
}

static bool same_key(const CallKey *a, const CallKey *b)
{
    return a->structure_bytes == b->structure_bytes && a->signature_bytes == b->signature_bytes &&
           memcmp(a->structure, b->structure, a->structure_bytes) == 0 && memcmp(a->signature, b->signature, a->signature_bytes) == 0;
}

static bool compiled_elsewhere(const CallKey *key)
{
    const EvalConcurrent *at = shared.concurrent;
    while (at && !(at->compiles && same_key(at->compiles, key)))
        at = at->next;
    return at != NULL;
}

bool eval_await_compile(uint32_t walk, const CallKey *key)
{
    EvalConcurrent own;
    if (taken != 1 || !compiled_elsewhere(key))
        return false;
    claim(&own, walk, NULL);
    while (compiled_elsewhere(key))
        wait_for_change();
    end_claim(&own);
    return true;
}

bool eval_claimed(uint32_t walk)
{
    const EvalConcurrent *at = shared.concurrent;
    while (at && at->walk != walk)
        at = at->next;
    const EvalOwn *own = shared.own;
    while (own && atomic_load(&own->walk) != walk)
        own = own->next;
    return at || own;
}

void eval_await(uint32_t walk)
{
    while (eval_claimed(walk))
        wait_for_change();
}

/* --- inside ----------------------------------------------------------------------------------------------------------------- */

EvalOwn *eval_own_new(void)
{
    take();
    EvalOwn *own = shared.own;
    while (own && atomic_load(&own->taken))
        own = own->next;
    if (!own && (own = os_alloc_aligned(64, (sizeof *own + 63) / 64 * 64))) {
        memset(own, 0, sizeof *own);
        if (shared.own) {
            atomic_store(&shared.held, true); /* before anybody goes inside */
            atomic_store(&shared.many, true);
        }
        cache_user_list(&own->cache);
        own->next = shared.own;
        shared.own = own;
    }
    if (own)
        atomic_store(&own->taken, true);
    eval_unlock();
    return own;
}

/* Without the lock: a thread that has it may wait for the end of this one. */
void eval_own_free(EvalOwn *own)
{
    if (own)
        atomic_store(&own->taken, false);
}

static bool go_inside(EvalOwn *own)
{
    atomic_store(&own->inside, true);
    if (!atomic_load(&shared.held))
        return true;
    atomic_store_explicit(&own->inside, false, memory_order_release);
    return false;
}

bool eval_own_used(void) { return atomic_load_explicit(&shared.many, memory_order_relaxed); }

bool eval_own_possible(const EvalOwn *own)
{
    return own && !taken && !mine && !atomic_load_explicit(&own->walk, memory_order_relaxed) &&
           atomic_load_explicit(&shared.many, memory_order_relaxed) && !atomic_load_explicit(&shared.alone, memory_order_relaxed);
}

bool eval_own_begin(EvalOwn *own)
{
    hold();
    if (go_inside(own))
        return true;
    let_go();
    return false;
}

void eval_own_run(EvalOwn *own, uint32_t walk)
{
    atomic_store_explicit(&own->walk, walk, memory_order_relaxed);
    atomic_store_explicit(&own->inside, false, memory_order_release);
}

void eval_own_ran(EvalOwn *own)
{
    own->locked = !go_inside(own);
    if (own->locked)
        acquire();
    atomic_store_explicit(&own->walk, 0, memory_order_relaxed);
}

void eval_own_end(EvalOwn *own)
{
    bool locked = own->locked;
    own->locked = false;
    if (!locked) {
        atomic_store(&own->inside, false);
        if (atomic_load(&shared.waiting))
            acquire();
        else
            own = NULL;
    }
    if (own) {
        pthread_cond_broadcast(&shared.changed);
        release();
    }
    let_go();
}

void eval_own_let_go(Evaluation *e)
{
    e->busy = true; /* for deleters */
    while (e->let_go.n)
        node_release(e->let_go.at[--e->let_go.n]);
    e->busy = false;
}

bool eval_own_repeats(const void *template_)
{
    const EvalOwn *own = shared.own;
    while (own && atomic_load(&own->repeats) != template_)
        own = own->next;
    return own != NULL;
}

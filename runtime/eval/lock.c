/*
 * The evaluation lock: evaluations take turns (each uses all threads), two threads that need one node compute it once, and two that miss
 * alike compile once. Recursive, since a deleter may ask for what is computed already; safe across fork. Who holds it computes in the
 * default floating-point mode (ir/base/fp_mode.h) and is not ended by pthread_cancel: nobody would give the lock back.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "jit/extensions.h"
#include "runtime/eval.h"
#include "runtime/eval/background.h"
#include "runtime/eval/op.h"
#include "runtime/eval/perf.h"
#include "runtime/eval/pool.h"
#include "runtime/eval/store.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_mutex_t lock;
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;
static atomic_bool lock_made;

static void make_lock(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attr);
    pthread_mutexattr_destroy(&attr);
}

/* How often this thread holds the lock, and how it went on before. */
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

static void unlock_in_child(void)
{
    make_lock(); /* the owner's thread id changed: only a fresh lock is certain */
    let_go();
    store_log_forked();
    perf_forked();
}

static void init_lock(void)
{
    make_lock();
    timeline_handle_forks();
    log_handle_forks(); /* a fork locks in the reverse of this order: this lock first, the log's last */
    pool_handle_forks();
    background_handle_forks();
    pthread_atfork(eval_lock, eval_unlock, unlock_in_child); /* a fork waits for a compile in flight */
    atomic_store_explicit(&lock_made, true, memory_order_release);
}

void eval_lock(void)
{
    if (!atomic_load_explicit(&lock_made, memory_order_acquire))
        pthread_once(&lock_once, init_lock);
    pthread_mutex_lock(&lock);
    hold();
}

/* Who holds this lock may wait for the log, and a sink holds that; or for a compile in the background, which a pass of the user's is part of. */
Status eval_enter(Evaluation **e)
{
    if (log_in_sink())
        return fail(ST_INVALID, "a log sink may only look at values that are computed already");
    TRY(op_refuses());
    if (user_pass_at_work())
        return fail(ST_INVALID, "a pass may only look at its graph: it runs while a program is compiled");
    if (e && !(*e = evaluation_of_thread()))
        return ST_OUT_OF_MEMORY;
    eval_lock();
    return ST_OK;
}

bool eval_trylock(void)
{
    pthread_once(&lock_once, init_lock);
    bool mine = pthread_mutex_trylock(&lock) == 0;
    if (mine)
        hold();
    return mine;
}

void eval_unlock(void)
{
    let_go();
    pthread_mutex_unlock(&lock);
}

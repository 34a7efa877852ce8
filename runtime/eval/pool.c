/*
 * The CPU thread pool: fork-join over a range of tasks (see pool.h).
 *
 * How it works. One run at a time holds `turn` and has the workers. Who finds them at work begins alone, and asks again after each chunk:
 * so no caller waits for another one's job, and the workers go from one to the next. The run that has the turn writes the job and opens
 * `seats` for the workers; all meet in one 64-bit word:
 *
 *     control = | generation : 32 | seats : 16 | active : 16 |
 *
 * A worker that sees a free seat takes it (seats - 1, active + 1) in one compare-and-swap, so it can only ever join the job
 * whose generation it saw. It then claims chunks of `grain` tasks until none is left, and leaves (active - 1). The
 * caller works likewise; when no task is left it closes the seats and waits for active = 0. So a worker that is slow to wake up
 * holds nobody up: the seat is gone when it comes.
 *
 * Idle workers spin for SPIN_SECONDS and then sleep on a condition variable; the caller spins likewise for the last worker.
 * Sleeping uses the usual handshake in sequentially consistent order: the sleeper counts itself and then looks again, the
 * waker publishes and then looks at the count; one of the two sees the other.
 *
 * The tasks are in as many parts as the machine has NUMA nodes (nearly always one), the first ones in the first part, and so on: a thread claims from the
 * part of the node that it is on, and then from the others. So memory that is fresh lies where it is computed, as far as the system puts a page on
 * the node of the thread that touches it first (nobody else does: fresh memory is not cleared), and the next kernel finds its part of it there,
 * in memory that is used again, too.
 *
 * What must hold: tasks are independent, so it doesn't matter who runs which; a task that calls pool_run runs it inline.
 * A worker may use the CPUs that the process's first thread may use when it starts, whatever caller it is started by.
 * After fork the child forgets the pool (its threads don't exist there) and makes a fresh one when it needs one. A fork waits
 * for a run in flight, so that the child never sees half a job.
 * Leaves out: priorities, stealing, pinning.
 */
#include "runtime/eval/pool.h"

#include "ir/base/fp_mode.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "jit/options.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MAX_THREADS = 1024, MAX_NODES = 16, SPIN_CHECK = 64, WORKER_STACK = 2 << 20 };
static const double SPIN_SECONDS = 20e-6;

typedef struct Part {
    _Alignas(64) atomic_int_least64_t next; /* first unclaimed task */
    int64_t end;
} Part;

typedef struct Pool {
    pthread_mutex_t turn; /* held by the run in progress; guards the plain fields */
    _Alignas(64) atomic_uint_least64_t control;
    Part part[MAX_NODES];
    _Alignas(64) PoolFn *fn;
    void *arg;
    int64_t tasks, grain;
    int parts;
    const char *name; /* of the work, for a trace */
    pthread_t worker[MAX_THREADS];
    int workers; /* started */

    pthread_mutex_t sleep; /* guards the two conditions */
    pthread_cond_t work, done;
    atomic_int sleepers;
    atomic_bool caller_sleeps, stop;
} Pool;

static Pool *_Atomic current;     /* NULL: none yet, or forgotten by a fork */
static Pool *forgotten;           /* the parent's, kept in reach in a child */
static atomic_int wanted_threads; /* pool_set_threads; 0: the option, else all CPUs */
static _Thread_local bool in_task;
static _Thread_local const char *work_name;  /* pool_name_work */
static atomic_int wanted_nodes, nodes_there; /* pool_set_nodes, and os_numa_nodes once it was asked; 0: not yet */
static int (*_Atomic wanted_node)(void);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local Pool *forking; /* whose turn this thread holds during a fork */

static uint32_t seats_of(uint64_t control) { return (uint32_t)(control >> 16) & 0xffff; }
static uint32_t active_of(uint64_t control) { return (uint32_t)control & 0xffff; }

/* ---- fork ---- */

static void before_fork(void)
{
    forking = in_task ? NULL : atomic_load(&current);
    if (forking)
        pthread_mutex_lock(&forking->turn);
}

static void after_fork_parent(void)
{
    if (forking)
        pthread_mutex_unlock(&forking->turn);
}

static void after_fork_child(void)
{
    Pool *old = atomic_exchange(&current, NULL);
    if (old)
        forgotten = old;
}

static void install_fork_handlers(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

void pool_handle_forks(void) { pthread_once(&once, install_fork_handlers); }

/* ---- nodes ---- */

static int node_count(void)
{
    int nodes = atomic_load_explicit(&wanted_nodes, memory_order_relaxed);
    if (nodes == 0 && (nodes = atomic_load_explicit(&nodes_there, memory_order_relaxed)) == 0) {
        nodes = os_numa_nodes();
        atomic_store_explicit(&nodes_there, nodes, memory_order_relaxed);
    }
    return nodes < MAX_NODES ? nodes : MAX_NODES;
}

static int this_node(void)
{
    int (*node)(void) = atomic_load(&wanted_node);
    return node ? node() : os_numa_node();
}

void pool_set_nodes(int nodes, int (*node)(void))
{
    atomic_store(&wanted_node, node);
    atomic_store(&wanted_nodes, nodes);
}

/* [lo, tasks) in equal parts, whole grains but for the last. */
static void divide(Pool *pool, int64_t lo, int64_t tasks, int64_t grain)
{
    int64_t chunks = (tasks - lo - 1) / grain + 1, nodes = node_count();
    pool->parts = (int)(chunks < nodes ? chunks : nodes);
    for (int i = 0; i < pool->parts; i++) {
        int64_t first = chunks / pool->parts * i + chunks % pool->parts * i / pool->parts;
        atomic_store_explicit(&pool->part[i].next, lo + first * grain, memory_order_relaxed);
        if (i > 0)
            pool->part[i - 1].end = lo + first * grain;
    }
    pool->part[pool->parts - 1].end = tasks;
}

/* ---- workers ---- */

/* Claims and runs chunks of a part until none is left: how many tasks. */
static int64_t work_on(Pool *pool, Part *part, int thread)
{
    int64_t grain = pool->grain, end = part->end, done = 0;
    for (;;) {
        int64_t lo = atomic_fetch_add_explicit(&part->next, grain, memory_order_relaxed);
        if (lo >= end)
            return done;
        int64_t hi = end - lo < grain ? end : lo + grain;
        done += hi - lo;
        pool->fn(pool->arg, lo, hi, thread);
    }
}

/* Of all parts, that of this thread's node first. */
static void work(Pool *pool, int thread)
{
    FpMode before = fp_enter();
    in_task = true;
    int64_t done = 0, began = timeline_begin();
    int parts = pool->parts, first = parts > 1 ? this_node() : 0;
    for (int i = 0; i < parts; i++)
        done += work_on(pool, &pool->part[(first + i) % parts], thread);
    in_task = false;
    fp_leave(before);
    if (began && done) {
        timeline_name_lane("worker"); /* the caller's has a name */
        timeline_span(TL_PART, pool->name, began, TL_INT("tasks", done), TL_INT("of", pool->tasks));
    }
}

/* Takes a free seat: its number, which is also the thread's number in this run; 0 when there is none. */
static int take_seat(Pool *pool)
{
    uint64_t control = atomic_load(&pool->control);
    while (seats_of(control) > 0) {
        uint64_t joined = control - (1u << 16) + 1;
        if (atomic_compare_exchange_weak(&pool->control, &control, joined))
            return (int)seats_of(control);
    }
    return 0;
}

static void leave(Pool *pool)
{
    uint64_t before = atomic_fetch_sub(&pool->control, 1);
    if (active_of(before) == 1 && seats_of(before) == 0 && atomic_load(&pool->caller_sleeps)) {
        pthread_mutex_lock(&pool->sleep);
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->sleep);
    }
}

/* Spins, then sleeps, until there may be a seat or the pool stops. */
static void wait_for_work(Pool *pool)
{
    double until = os_seconds() + SPIN_SECONDS;
    do {
        for (int i = 0; i < SPIN_CHECK; i++) {
            if (seats_of(atomic_load_explicit(&pool->control, memory_order_relaxed)) > 0)
                return;
            os_pause();
        }
    } while (os_seconds() < until && !atomic_load_explicit(&pool->stop, memory_order_relaxed));

    pthread_mutex_lock(&pool->sleep);
    atomic_fetch_add(&pool->sleepers, 1);
    while (seats_of(atomic_load(&pool->control)) == 0 && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->work, &pool->sleep);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->sleep);
}

static void *worker_main(void *pool_)
{
    Pool *pool = pool_;
    os_use_all_cpus();
    while (!atomic_load(&pool->stop)) {
        int seat = take_seat(pool);
        if (seat > 0) {
            work(pool, seat);
            leave(pool);
        } else {
            wait_for_work(pool);
        }
    }
    return NULL;
}

/* Starts workers up to `count`; fewer where the system gives no more threads. Under `turn`. */
static void start_workers(Pool *pool, int count)
{
    pthread_attr_t attr;
    if (pool->workers >= count || pthread_attr_init(&attr) != 0)
        return;
    pthread_attr_setstacksize(&attr, WORKER_STACK);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (pool->workers < count && pthread_create(&pool->worker[pool->workers], &attr, worker_main, pool) == 0)
        pool->workers++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

/* Ends and joins all workers. Under `turn`. */
static void stop_workers(Pool *pool)
{
    pthread_mutex_lock(&pool->sleep);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->sleep);
    for (int i = 0; i < pool->workers; i++)
        pthread_join(pool->worker[i], NULL);
    pool->workers = 0;
    atomic_store(&pool->stop, false);
}

/* The pool of this process, made at first use; NULL without memory. It is never freed: other threads may wait for it. */
static Pool *get_pool(void)
{
    pool_handle_forks();
    Pool *pool = atomic_load(&current);
    if (pool)
        return pool;
    Pool *fresh = os_alloc_aligned(64, sizeof *fresh);
    if (!fresh)
        return NULL;
    *fresh = (Pool){0};
    pthread_mutex_init(&fresh->turn, NULL);
    pthread_mutex_init(&fresh->sleep, NULL);
    pthread_cond_init(&fresh->work, NULL);
    pthread_cond_init(&fresh->done, NULL);
    if (atomic_compare_exchange_strong(&current, &pool, fresh))
        return fresh;
    os_free(fresh); /* another thread was first */
    return pool;
}

/* ---- runs ---- */

static int cpu_count(void)
{
    static atomic_int cached;
    int count = atomic_load_explicit(&cached, memory_order_relaxed);
    if (count == 0) {
        count = os_cpu_count();
        atomic_store_explicit(&cached, count, memory_order_relaxed);
    }
    return count;
}

int pool_threads(void)
{
    int64_t threads = atomic_load_explicit(&wanted_threads, memory_order_relaxed);
    if (threads <= 0)
        threads = option_int(OPT_THREADS);
    if (threads <= 0)
        threads = cpu_count();
    return threads < MAX_THREADS ? (int)threads : MAX_THREADS;
}

void pool_name_work(const char *name) { work_name = name; }

void pool_set_threads(int threads) { atomic_store(&wanted_threads, threads > 0 ? threads : 0); }

/* Runs [lo, tasks) here, until the workers of `pool` are free: returns where it stopped then, with the turn. NULL: all of it. */
static int64_t run_inline(Pool *pool, int64_t lo, int64_t tasks, int64_t grain, PoolFn *fn, void *arg)
{
    FpMode before = fp_enter();
    while (lo < tasks && !(pool && pthread_mutex_trylock(&pool->turn) == 0)) {
        int64_t hi = tasks - lo < grain ? tasks : lo + grain;
        fn(arg, lo, hi, 0);
        lo = hi;
    }
    fp_leave(before);
    return lo;
}

/* Closes the seats and waits until every worker that took one has left. Under `turn`. */
static void wait_for_workers(Pool *pool)
{
    uint64_t control = atomic_fetch_and(&pool->control, ~(UINT64_C(0xffff) << 16));
    if (active_of(control) == 0)
        return;
    double until = os_seconds() + SPIN_SECONDS;
    do {
        for (int i = 0; i < SPIN_CHECK; i++) {
            if (active_of(atomic_load(&pool->control)) == 0)
                return;
            os_pause();
        }
    } while (os_seconds() < until);
    pthread_mutex_lock(&pool->sleep);
    atomic_store(&pool->caller_sleeps, true);
    while (active_of(atomic_load(&pool->control)) > 0)
        pthread_cond_wait(&pool->done, &pool->sleep);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->sleep);
}

/* Runs [lo, tasks) with `threads` threads, this one included. Under `turn`. */
static void run_shared(Pool *pool, int threads, int64_t lo, int64_t tasks, int64_t grain, PoolFn *fn, void *arg)
{
    pool->fn = fn;
    pool->arg = arg;
    pool->tasks = tasks;
    pool->grain = grain;
    pool->name = work_name;
    divide(pool, lo, tasks, grain);
    uint64_t generation = (atomic_load(&pool->control) >> 32) + 1;
    atomic_store(&pool->control, generation << 32 | (uint64_t)(threads - 1) << 16);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->sleep);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->sleep);
    }
    work(pool, 0);
    int64_t began = timeline_begin();
    wait_for_workers(pool);
    if (began)
        timeline_span(TL_WAIT, "wait for workers", began, TL_INT("threads", threads));
}

void pool_run(int64_t tasks, int64_t grain, int max_threads, PoolFn *fn, void *arg)
{
    if (tasks <= 0)
        return;
    if (grain < 1)
        grain = 1;
    int threads = pool_threads();
    int64_t chunks = (tasks - 1) / grain + 1;
    int useful = max_threads < threads ? max_threads : threads;
    if (chunks < useful)
        useful = (int)chunks;
    Pool *pool = useful > 1 && !in_task ? get_pool() : NULL;
    int cancel = os_cancel_off();
    int64_t lo = run_inline(pool, 0, tasks, grain, fn, arg);
    if (lo < tasks) {
        if (pool->workers > threads - 1)
            stop_workers(pool);
        start_workers(pool, threads - 1);
        if (useful > pool->workers + 1)
            useful = pool->workers + 1;
        if (useful > 1)
            run_shared(pool, useful, lo, tasks, grain, fn, arg);
        else
            (void)run_inline(NULL, lo, tasks, grain, fn, arg);
        pthread_mutex_unlock(&pool->turn);
    }
    os_cancel_restore(cancel);
}

void pool_run_here(bool alone) { in_task = alone; }

void pool_shutdown(void)
{
    Pool *pool = atomic_load(&current);
    if (!pool || in_task)
        return;
    pthread_mutex_lock(&pool->turn);
    stop_workers(pool);
    pthread_mutex_unlock(&pool->turn);
}

/* At exit, or when the library is unloaded, unless another thread is in the middle of a run. */
__attribute__((destructor)) static void shutdown_at_exit(void)
{
    Pool *pool = atomic_load(&current);
    if (!pool || in_task || pthread_mutex_trylock(&pool->turn) != 0)
        return;
    stop_workers(pool);
    pthread_mutex_unlock(&pool->turn);
}

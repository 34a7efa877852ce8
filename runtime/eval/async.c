/*
 * Evaluating beside the caller (kiln_eval_async).
 *
 *     caller    |queue x| goes on: records, computes other things |kiln_read(x): waits, copies|
 *     thread         |eval_nodes(x) .................................|
 *
 * A job is what a sync point would compute: nodes, the caller's device, its place. The thread takes jobs in order and does what the caller
 * would have done, by eval_nodes(): it is one more thread that evaluates, and the claims of runtime/eval/lock.c keep the two apart. So a job is
 * a hint. What is queued may be dropped, or done by whoever needs it first: a value that is asked for is taken out of the queue and computed by
 * the one who asks. Only a failure is more than a hint: it is kept with the job until a sync point asks for one of its values, which fails with
 * it and names the call; then, or when nobody holds the values any more, the job goes. (The nodes are pending still: who asks again
 * computes again.)
 *
 * At once, in the calling thread: on a CUDA device, where kiln_eval only queues anyway; under modes, which belong to their thread; in one of
 * several ranks, whose MPI may allow one thread only; when MAX_QUEUED are waiting; when there is no thread to be had.
 *
 * The list is guarded by a lock of its own, under which nothing else happens. A forked child has the queue and no thread: it starts one when it
 * queues something. At exit nothing new is begun; nobody can see what is under way.
 */
#include "runtime/eval/async.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "ir/base/timeline.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/gradient/group.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MAX_QUEUED = 64, MESSAGE = 1024 };
#define SPIN_SECONDS 50e-6 /* before sleeping: to be woken takes 10 us and more */

typedef enum JobState { JOB_QUEUED, JOB_RUNS, JOB_FAILED } JobState;

typedef struct Job {
    struct Job *next;
    JobState state;
    const char *api;
    Loc loc;
    int device;
    Status status; /* of what failed, with ... */
    char message[MESSAGE];
    uint32_t asked, n; /* the first so many were asked for, the rest are company (runtime/gradient/group.h) */
    RtNode *node[];    /* a reference each */
} Job;

static struct {
    pthread_mutex_t lock;      /* guards what follows, and jobs' states */
    pthread_cond_t work, done; /* something was queued; a job is no more */
    Job *jobs;                 /* oldest first */
    bool started, stopping, asleep;
    pthread_t thread;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static atomic_uint n_jobs;   /* in the list: sync points look no further where it is 0; changed under the lock, likewise: */
static atomic_uint n_queued; /* of these */
static atomic_uint n_ended;  /* that ever ran */

/* ---- jobs ---- */

static Job *job_new(RtNode *const *nodes, uint32_t n, uint32_t asked, const char *api, Loc loc)
{
    Job *job = os_alloc(sizeof *job + sizeof *nodes * n);
    if (!job)
        return NULL;
    *job = (Job){.api = api, .loc = loc, .device = rt_thread()->device, .asked = asked, .n = n};
    for (uint32_t k = 0; k < n; k++)
        job->node[k] = node_retain(nodes[k]);
    return job;
}

/* Outside of the lock: a deleter may be called. */
static void jobs_free(Job *job)
{
    for (Job *next; job; job = next) {
        next = job->next;
        for (uint32_t k = 0; k < job->n; k++)
            node_release(job->node[k]);
        os_free(job);
    }
}

/* Does nobody want it any more? Others let go meanwhile, but nobody takes hold: all have it from somebody who holds it. */
static bool is_unwanted(const Job *job)
{
    bool wanted = false;
    for (uint32_t k = 0; k < job->n && !wanted; k++)
        wanted = node_pending(job->node[k]) && atomic_load_explicit(&job->node[k]->refs, memory_order_acquire) > 1;
    return !wanted;
}

static bool has(const Job *job, const RtNode *node)
{
    uint32_t k = 0;
    while (k < job->asked && job->node[k] != node)
        k++;
    return k < job->asked;
}

/* Under the lock. */
static void unlink_job(Job **link)
{
    Job *job = *link;
    atomic_fetch_sub(&n_queued, job->state == JOB_QUEUED);
    *link = job->next;
    job->next = NULL;
    atomic_fetch_sub(&n_jobs, 1);
}

/* Under the lock: takes those that failed and that nobody will ask for out of the list. */
static Job *unlink_unwanted(void)
{
    Job *gone = NULL;
    for (Job **link = &state.jobs; *link;) {
        Job *job = *link;
        if (job->state != JOB_FAILED || !is_unwanted(job)) {
            link = &job->next;
            continue;
        }
        unlink_job(link);
        job->next = gone;
        gone = job;
    }
    return gone;
}

/* ---- the thread ---- */

/* As the caller would have: where company makes it fail, what was asked for alone. */
static Status compute(const Job *job)
{
    Status status = eval_nodes_on(job->device, job->node, job->n, job->api, job->loc);
    return status != ST_OK && job->asked < job->n ? eval_nodes_on(job->device, job->node, job->asked, job->api, job->loc) : status;
}

static void keep_failure(Job *job, Status status)
{
    job->status = status;
    if (job->loc.file)
        snprintf(job->message, sizeof job->message, "%s (computed by %s at %s:%d)", fail_message(), job->api, path_name(job->loc.file),
                 job->loc.line);
    else
        snprintf(job->message, sizeof job->message, "%s (computed by %s)", fail_message(), job->api);
}

/* Under the lock; where it is in the list may have changed. */
static void take_out(const Job *job)
{
    Job **link = &state.jobs;
    while (*link != job)
        link = &(*link)->next;
    unlink_job(link);
}

/* Outside of the lock: until `count` is another number than `from`, for a short time. */
static void spin(const atomic_uint *count, uint32_t from)
{
    enum { LOOK = 32 };
    const double until = os_seconds() + SPIN_SECONDS;
    do
        for (int i = 0; i < LOOK && atomic_load_explicit(count, memory_order_acquire) == from; i++)
            os_pause();
    while (atomic_load_explicit(count, memory_order_acquire) == from && os_seconds() < until);
}

/* Under the lock, where nothing is queued: until something is, or may be. */
static void wait_for_work(bool *spun)
{
    if (*spun) {
        state.asleep = true;
        pthread_cond_wait(&state.work, &state.lock);
        state.asleep = false;
    } else {
        pthread_mutex_unlock(&state.lock);
        spin(&n_queued, 0);
        pthread_mutex_lock(&state.lock);
    }
    *spun = !*spun;
}

static void *thread_main(void *unused)
{
    bool spun = false;
    (void)unused;
    os_use_all_cpus();
    if (timeline_begin())
        timeline_name_lane("kiln_eval_async");
    pthread_mutex_lock(&state.lock);
    while (!state.stopping) {
        Job *job = state.jobs;
        while (job && job->state != JOB_QUEUED)
            job = job->next;
        if (!job) {
            wait_for_work(&spun);
            continue;
        }
        job->state = JOB_RUNS;
        spun = false;
        atomic_fetch_sub(&n_queued, 1);
        pthread_mutex_unlock(&state.lock);
        Status status = is_unwanted(job) ? ST_OK : compute(job);
        if (status != ST_OK)
            keep_failure(job, status);
        pthread_mutex_lock(&state.lock);
        if (status == ST_OK)
            take_out(job);
        else
            job->state = JOB_FAILED;
        atomic_fetch_add(&n_ended, 1);
        pthread_cond_broadcast(&state.done);
        pthread_mutex_unlock(&state.lock);
        if (status == ST_OK)
            jobs_free(job);
        pthread_mutex_lock(&state.lock);
    }
    pthread_mutex_unlock(&state.lock);
    return NULL;
}

static void stop_at_exit(void)
{
    pthread_mutex_lock(&state.lock);
    state.stopping = true;
    pthread_mutex_unlock(&state.lock);
}

__attribute__((constructor)) static void register_stop(void) { (void)os_before_exit(stop_at_exit); }

/* ---- fork ---- */

static void before_fork(void) { pthread_mutex_lock(&state.lock); }

static void after_fork_parent(void) { pthread_mutex_unlock(&state.lock); }

static void after_fork_child(void)
{
    pthread_mutex_init(&state.lock, NULL);
    pthread_cond_init(&state.work, NULL);
    pthread_cond_init(&state.done, NULL);
    state.started = state.asleep = false;
    for (Job *job = state.jobs; job; job = job->next)
        if (job->state == JOB_RUNS) {
            job->state = JOB_QUEUED;
            atomic_fetch_add(&n_queued, 1);
        }
}

static void install_fork_handlers(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

void async_handle_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
}

/* Under the lock. false: none can be had, or the process ends. */
static bool start_thread(void)
{
    if (state.started || state.stopping)
        return state.started && !state.stopping;
    pthread_attr_t detached;
    sigset_t all, old;
    async_handle_forks();
    if (pthread_attr_init(&detached) != 0)
        return false;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the user's threads' business */
    state.started = pthread_create(&state.thread, &detached, thread_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&detached);
    return state.started;
}

/* ---- callers ---- */

/* Is another thread as good as this one? */
static bool may_be_elsewhere(RtNode *const *nodes, uint32_t n)
{
    const RtThread *t = rt_thread();
    bool queues = false;
    for (uint32_t k = 0; k < n && !queues; k++) {
        int device;
        queues = device_of(nodes[k], &device) != ST_OK || device_kind(device)->queues; /* who evaluates it says what is wrong */
    }
    return !queues && !t->mode && !comm_many();
}

static bool any_pending(RtNode *const *nodes, uint32_t n)
{
    uint32_t k = 0;
    while (k < n && !node_pending(nodes[k]))
        k++;
    return k < n;
}

/* false: computed here it must be. */
static bool queue(Job *job)
{
    pthread_mutex_lock(&state.lock);
    Job *gone = unlink_unwanted();
    bool taken = atomic_load(&n_queued) < MAX_QUEUED && start_thread();
    if (taken) {
        Job **end = &state.jobs;
        while (*end)
            end = &(*end)->next;
        *end = job;
        atomic_fetch_add(&n_queued, 1);
        atomic_fetch_add(&n_jobs, 1);
        if (state.asleep)
            pthread_cond_signal(&state.work);
    }
    pthread_mutex_unlock(&state.lock);
    jobs_free(gone);
    return taken;
}

Status async_eval(RtNode *const *nodes, uint32_t n, const char *api, Loc loc)
{
    RtNode **roots = NULL;
    uint32_t n_roots = n;
    for (uint32_t k = 0; k < n; k++)
        TRY(device_has_values(nodes[k]));
    if (!any_pending(nodes, n))
        return ST_OK;
    TRY(eval_may_enter());
    if (eval_holds() || !may_be_elsewhere(nodes, n))
        return eval_nodes(nodes, n, api, loc);
    if (rt_thread()->group)
        TRY(eval_company(nodes, api, loc, &roots, &n_roots));
    Job *job = job_new(roots ? roots : nodes, n_roots, n, api, loc);
    for (uint32_t k = 0; roots && k < n_roots; k++)
        node_release(roots[k]);
    if (job && queue(job))
        return ST_OK;
    if (job)
        jobs_free(job);
    return eval_nodes(nodes, n, api, loc);
}

/* Under the lock: the first job, from `link` on, whose values these are. */
static Job **job_of(Job **link, RtNode *const *nodes, uint32_t n)
{
    for (; *link; link = &(*link)->next)
        for (uint32_t k = 0; k < n; k++)
            if (has(*link, nodes[k]))
                return link;
    return link;
}

/* Under the lock, where a job runs: until one has ended, or may have. */
static void wait_for_end(bool *spun)
{
    if (*spun) {
        pthread_cond_wait(&state.done, &state.lock);
        return;
    }
    const uint32_t ended = atomic_load(&n_ended);
    pthread_mutex_unlock(&state.lock);
    spin(&n_ended, ended);
    pthread_mutex_lock(&state.lock);
    *spun = true;
}

Status async_settle(RtNode *const *nodes, uint32_t n)
{
    if (!atomic_load_explicit(&n_jobs, memory_order_acquire))
        return ST_OK;
    TRY(eval_may_enter());
    Job *gone = NULL, *failed = NULL;
    int cancel = os_cancel_off(); /* waiting is where a thread is cancelled, and nobody would give the lock back */
    pthread_mutex_lock(&state.lock);
    bool spun = false, may_wait = !eval_holds() && !(state.started && pthread_equal(pthread_self(), state.thread));
    for (Job **link = job_of(&state.jobs, nodes, n); *link && !failed;) {
        Job *job = *link;
        if (job->state == JOB_RUNS && may_wait) {
            wait_for_end(&spun);
            link = job_of(&state.jobs, nodes, n); /* anything may have changed */
        } else if (job->state == JOB_RUNS) {
            link = job_of(&job->next, nodes, n);
        } else {
            unlink_job(link);
            job->next = gone;
            gone = job;
            failed = job->state == JOB_FAILED && any_pending(nodes, n) ? job : NULL;
            link = job_of(link, nodes, n);
        }
    }
    pthread_mutex_unlock(&state.lock);
    os_cancel_restore(cancel);
    Status status = ST_OK;
    char message[MESSAGE];
    if (failed) {
        status = failed->status;
        memcpy(message, failed->message, sizeof message);
    }
    jobs_free(gone); /* which may call a deleter that fails in its turn */
    return status == ST_OK ? ST_OK : fail(status, "%s", message);
}

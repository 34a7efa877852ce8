/*
 * Compiling in the background (KILN_ASYNC_COMPILE): nobody waits for a second compile of one graph.
 *
 *   first miss     the usual program is compiled at once, as without the option: there is nothing else to run. The most general program
 *                  of its signature, which accepts every size, is queued
 *   other sizes    the general program runs; it lies behind the other variants, so it is found only where none of them fits. The program
 *                  that the miss would have led to (what varied is an argument, the rest compiled in) is queued, one at a time for each
 *                  signature, until there are KILN_MAX_VARIANTS
 *   next look-up   enters what is finished (in front); the general program stays for the sizes that fit no other
 *
 * A miss that comes before the general program is ready waits for that compile, or does it itself if nobody has begun: so a graph is
 * never compiled twice over. Results are the same bits whichever program runs: the order of a reduction is a function of its length. In
 * fast mode a rewrite may hold for sizes or numbers that only one of them has compiled in (ir/rules.def): the bounds hold then, not the bits.
 *
 *      evaluation, under its lock                        the thread
 *      background_improve --- queued --- compiling ---> jit_compile, without the evaluation lock
 *      background_enter <---- done   -------------------'
 *
 * A job is a copy of all that the compile needs: key, facts, graph, policy, options; nothing of the user's (source locations are left
 * out, since the module that holds their texts may go). The thread takes no lock but `state.lock` and those of the log and of the table
 * of kernels, so whoever holds the evaluation lock may wait for it.
 *
 * What must hold. A job is in the list from when it is queued until its program is entered; there is at most one for a signature.
 * Entering happens in a thread that holds the evaluation lock. A failed compile leaves a log line and is not tried again. A fork waits for
 * the compile in flight; the child keeps the queue and starts a thread when it queues something. At exit the compile in flight is told to
 * stop and waited for: a line that it logs must not come to a sink whose state is gone, and libLLVM.so, where LLVM is not inside of libkiln.so
 * (jit/llvm/inside/exit.c), destroys its own state next. It makes some of that when it first needs it, and what was made last goes first: so
 * os_before_exit runs earlier where the main thread exits, and for other threads the handler is registered once more when the thread is
 * started, which as a rule is after a compile in the foreground, and when LLVM has first worked on it.
 *
 * Leaves out: programs for one size that is often asked for. What the usual policy makes an argument stays one.
 */
#include "runtime/eval/background.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "jit/compile.h"
#include "runtime/api/stats.h"
#include "runtime/device/device.h"
#include "runtime/eval/store.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JOBS = 32, FAILED_REMEMBERED = 64 };

typedef enum JobState { JOB_QUEUED, JOB_COMPILING, JOB_DONE } JobState;

typedef struct Job {
    struct Job *next;
    JobState state; /* under state.lock */
    bool general;
    Arena arena; /* of everything below */
    CallKey key;
    Facts facts;
    Graph *graph;
    GuardPolicy policy;
    JitOptions options;
    int device;
    CallId id;         /* how it is called in the log */
    char name[64];     /* for KILN_DUMP; "": no dump */
    Str graph_key;     /* for the cache on disk; empty: it is not kept there */
    const char *where; /* function of the API */
    const char *place; /* of its call */
    Recorded recorded;
    Program *program; /* NULL when it is done: failed */
    char message[256];
} Job;

static struct {
    pthread_mutex_t lock;      /* guards what follows, jobs' states included */
    pthread_cond_t work, done; /* something was queued; a compile ended */
    Job *jobs;                 /* oldest first */
    bool started;              /* there is a thread */
    bool registered;           /* stop_at_exit, when the first was started */
    bool held;                 /* for a fork: nothing new is begun */
    pthread_t thread;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static atomic_bool any_done; /* some job is: look */
static atomic_bool stopping; /* the process ends */

/* --- jobs ---------------------------------------------------------------------------------------------------------------- */

static void job_free(Job *job)
{
    program_release(job->program);
    arena_free(&job->arena);
    os_free(job);
}

/* While the graph still knows the user's places. */
static void log_queued(const Job *job, const Evaluation *e, const Call *call)
{
    if (!log_on(LOG_RECOMPILES))
        return;
    CacheMiss miss;
    Str out;
    str_init(&out, job->graph->arena);
    if (!job->general) {
        cache_explain(&call->key, &call->facts, &miss);
        str_printf(&out, ": ");
        explain_miss(job->graph, call, &miss, &out);
    }
    log_line(LOG_RECOMPILES, "%s at %s:%d: queued for the background: the %s program of %zu nodes (%s)%s", e->api,
             e->loc.file ? e->loc.file : "?", e->loc.line, job->general ? "most general" : "better", call->nodes.n, job->id.text, out.text);
}

/* In the job's arena, which may jump to the caller. */
static Status job_fill(Job *job, const Evaluation *e, const Call *call)
{
    Arena *arena = &job->arena;
    const CallKey *key = &call->key;
    job->options = e->options;
    job->device = call->device;
    job->id = call_id(call);
    job->key = (CallKey){key->hash, bytes_copy(arena, key->structure, key->structure_bytes),
                         bytes_copy(arena, key->signature, key->signature_bytes), key->structure_bytes, key->signature_bytes};
    job->facts = facts_copy(arena, &call->facts);
    job->graph = call_graph(call, arena);
    TRY(miss_policy(call, &job->options, job->general ? BREADTH_WIDE : BREADTH_USUAL, job->graph, &job->policy));
    log_queued(job, e, call);
    job->recorded = count_recorded(job->graph, call);
    for (Ref r = 0; r < job->graph->nodes.n; r++)
        job->graph->nodes.at[r].loc = (Loc){NULL, 0};
    if (!dump_name(call, job->name, sizeof job->name))
        job->name[0] = '\0';
    str_init(&job->graph_key, arena);
    if (store_wanted(&job->options))
        call_key_text(call, &job->graph_key);
    job->where = e->api;
    job->place = store_place(e->loc, arena);
    return ST_OK;
}

/* NULL: out of memory, or the call's marks contradict each other. */
static Job *job_new(const Evaluation *e, const Call *call, bool general)
{
    Job *job = os_calloc(1, sizeof *job);
    jmp_buf oom;
    if (!job)
        return NULL;
    job->general = general;
    arena_init(&job->arena, &oom);
    if (setjmp(oom) == 0 && job_fill(job, e, call) == ST_OK)
        return job;
    job_free(job);
    return NULL;
}

/* Compiles; in any thread, without any lock. */
static void job_compile(Job *job, const atomic_bool *stop)
{
    jmp_buf oom;
    char hook[32];
    CompileRequest request = {.graph = job->graph,
                              .policy = &job->policy,
                              .options = &job->options,
                              .id = job->id.text,
                              .dump_name = job->name[0] ? job->name : NULL,
                              .stop = stop,
                              .want_texts = job->graph_key.len > 0,
                              .assemble = cuda_assemble,
                              .device = job->device};
    CompileTexts texts;
    Status status;
    int64_t began = timeline_begin();
    if (began)
        timeline_name_lane("background"); /* if it is a thread of its own */
    job->arena.oom = &oom;
    if (strcmp(option_text(OPT_TEST_FAIL, hook, sizeof hook), "background") == 0)
        status = fail(ST_COMPILE, "KILN_TEST_FAIL asked for this failure");
    else if (log_recorded(job->recorded), setjmp(oom) == 0)
        status = jit_compile(&request, &job->program, &texts);
    else
        status = fail(ST_OUT_OF_MEMORY, "no memory");
    if (status != ST_OK) {
        snprintf(job->message, sizeof job->message, "%s", fail_message());
        return;
    }
    if (began) {
        job->program->traced = began;
        job->program->traced_lane = timeline_lane();
    }
    if (job->graph_key.len)
        store_keep(&(StoreItem){job->graph_key.text, job->graph_key.len, &job->facts, &job->policy, job->program, &texts, &job->options,
                                job->where, job->place});
    stat_add(STAT_COMPILE_NS, (int64_t)(1e9 * job->program->compile_seconds));
    if (began)
        timeline_span(TL_COMPILE, "in the background", began, TL_TEXT("graph", job->id.text), TL_INT("general", job->general));
}

static bool same_call(const Job *job, const CallKey *key)
{
    const CallKey *mine = &job->key;
    return mine->structure_bytes == key->structure_bytes && mine->signature_bytes == key->signature_bytes &&
           memcmp(mine->structure, key->structure, key->structure_bytes) == 0 &&
           memcmp(mine->signature, key->signature, key->signature_bytes) == 0;
}

/* --- failures -------------------------------------------------------------------------------------------------------------- */

/* Hashes of what failed, the newest FAILED_REMEMBERED; a collision costs a program that would only have been better. */
static Hash128 failed[FAILED_REMEMBERED];
static uint32_t n_failed;

static Hash128 failure_of(const CallKey *key, bool general)
{
    Hash128 signature = hash128(key->signature, key->signature_bytes);
    return (Hash128){key->hash.lo ^ signature.lo, key->hash.hi ^ signature.hi ^ general};
}

static bool has_failed(const CallKey *key, bool general)
{
    Hash128 hash = failure_of(key, general);
    for (uint32_t i = 0; i < n_failed && i < FAILED_REMEMBERED; i++)
        if (failed[i].lo == hash.lo && failed[i].hi == hash.hi)
            return true;
    return false;
}

/* --- the thread -------------------------------------------------------------------------------------------------------------- */

/* Under state.lock. */
static Job *next_queued(void)
{
    Job *job = state.held ? NULL : state.jobs;
    while (job && job->state != JOB_QUEUED)
        job = job->next;
    return job;
}

static void stop_at_exit(void);

static void *thread_main(void *unused)
{
    static bool registered;
    (void)unused;
    os_use_all_cpus();
    pthread_mutex_lock(&state.lock);
    while (!atomic_load(&stopping)) {
        Job *job = next_queued();
        if (!job) {
            pthread_cond_wait(&state.work, &state.lock);
            continue;
        }
        job->state = JOB_COMPILING;
        pthread_mutex_unlock(&state.lock);
        job_compile(job, &stopping);
        if (!registered && job->program && job->program->n_kernels)
            registered = os_at_exit(stop_at_exit);
        pthread_mutex_lock(&state.lock);
        job->state = JOB_DONE;
        atomic_store(&any_done, true);
        if (job->program) /* counted only now: who sees the number finds the program at the next look-up */
            stat_add(STAT_BACKGROUND, 1);
        pthread_cond_broadcast(&state.done);
    }
    pthread_mutex_unlock(&state.lock);
    return NULL;
}

static void stop_at_exit(void)
{
    log_end(); /* or the thread may wait for the log for ever, to tell of a pass */
    pthread_mutex_lock(&state.lock);
    bool join = state.started; /* false when this ran before */
    state.started = false;
    atomic_store(&stopping, true);
    pthread_cond_broadcast(&state.work);
    pthread_mutex_unlock(&state.lock);
    if (join)
        pthread_join(state.thread, NULL);
}

__attribute__((constructor)) static void register_stop(void) { (void)os_before_exit(stop_at_exit); }

/* Under state.lock. false: no thread can be had, or the process ends. */
static bool start_thread(void)
{
    if (state.started || atomic_load(&stopping))
        return state.started;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the user's threads' business */
    state.started = pthread_create(&state.thread, NULL, thread_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!state.registered)
        state.registered = os_at_exit(stop_at_exit);
    return state.started;
}

/* --- fork ---------------------------------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
    int cancel = os_cancel_off();
    pthread_mutex_lock(&state.lock);
    state.held = true;
    for (bool busy = true; busy;) {
        busy = false;
        for (const Job *job = state.jobs; job; job = job->next)
            busy |= job->state == JOB_COMPILING;
        if (busy)
            pthread_cond_wait(&state.done, &state.lock);
    }
    os_cancel_restore(cancel);
}

static void after_fork_parent(void)
{
    state.held = false;
    pthread_cond_broadcast(&state.work);
    pthread_mutex_unlock(&state.lock);
}

static void after_fork_child(void)
{
    pthread_mutex_init(&state.lock, NULL);
    pthread_cond_init(&state.work, NULL);
    pthread_cond_init(&state.done, NULL);
    state.held = state.started = false;
}

static void install_fork_handlers(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

void background_handle_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
}

/* --- queueing -------------------------------------------------------------------------------------------------------------------- */

/* The job of the call's signature, NULL: none; *n: how many jobs there are. */
static Job *find_job(const CallKey *key, int *n)
{
    Job *found = NULL;
    pthread_mutex_lock(&state.lock);
    *n = 0;
    for (Job *job = state.jobs; job; job = job->next, ++*n)
        if (same_call(job, key))
            found = job;
    pthread_mutex_unlock(&state.lock);
    return found;
}

static bool may_queue(const Call *call, bool general)
{
    int n_jobs;
    return !find_job(&call->key, &n_jobs) && n_jobs < MAX_JOBS && !has_failed(&call->key, general);
}

static void queue(const Evaluation *e, const Call *call, bool general)
{
    if (e->options.value[OPT_COMPILE] == COMPILE_OFF)
        return;
    pthread_mutex_lock(&state.lock);
    bool runs = start_thread();
    pthread_mutex_unlock(&state.lock);
    Job *job = runs ? job_new(e, call, general) : NULL;
    if (!job)
        return;
    pthread_mutex_lock(&state.lock);
    Job **end = &state.jobs;
    while (*end)
        end = &(*end)->next;
    *end = job;
    pthread_cond_signal(&state.work);
    pthread_mutex_unlock(&state.lock);
}

void background_generalise(const Evaluation *e, const Call *call, const Program *made)
{
    const int64_t *value = e->options.value;
    if (value[OPT_ASYNC_COMPILE] && value[OPT_DYNAMIC] != DYNAMIC_NEVER && !made->general && made->guards.n > 0 && may_queue(call, true))
        queue(e, call, true);
}

void background_improve(Evaluation *e, const Call *call, CacheHit *hit)
{
    const int64_t *value = e->options.value;
    if (!value[OPT_ASYNC_COMPILE] || value[OPT_DYNAMIC] == DYNAMIC_NEVER || !hit->program->general ||
        hit->n_variants >= value[OPT_MAX_VARIANTS] || !may_queue(call, false))
        return;
    int cancel = os_cancel_off();
    if (!store_better(e, call, hit))
        queue(e, call, false);
    os_cancel_restore(cancel);
}

/* --- entering ---------------------------------------------------------------------------------------------------------------------- */

/* Enters a finished job's program, or remembers that it failed. Frees the job, which is in no list any more. */
static bool enter(Job *job, const JitOptions *options, CacheHit *hit)
{
    bool entered = false;
    if (job->program) {
        Program *program = program_retain(job->program);
        entered = cache_add_variant(&job->key, &job->facts, program, (size_t)options->value[OPT_CACHE_BYTES], hit) == ST_OK;
        if (entered)
            log_line(LOG_RECOMPILES, "the %s program for %s is ready and in use", job->general ? "most general" : "better", job->id.text);
    } else if (!atomic_load(&stopping)) {
        failed[n_failed++ % FAILED_REMEMBERED] = failure_of(&job->key, job->general);
        log_line(LOG_RECOMPILES, "compiling the %s program for %s in the background failed, and is not tried again: %s",
                 job->general ? "most general" : "better", job->id.text, job->message);
    }
    job_free(job);
    return entered;
}

/* Takes a job out of the list. Under state.lock. */
static void unlink_job(const Job *job)
{
    Job **link = &state.jobs;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
}

static Job *take_done(void)
{
    pthread_mutex_lock(&state.lock);
    Job *job = state.jobs;
    while (job && job->state != JOB_DONE)
        job = job->next;
    if (job)
        unlink_job(job);
    else
        atomic_store(&any_done, false);
    pthread_mutex_unlock(&state.lock);
    return job;
}

uint32_t background_waiting(void)
{
    uint32_t n = 0;
    pthread_mutex_lock(&state.lock);
    for (const Job *job = state.jobs; job; job = job->next)
        n += job->state != JOB_DONE;
    pthread_mutex_unlock(&state.lock);
    return n;
}

bool background_done(void) { return atomic_load_explicit(&any_done, memory_order_relaxed); }

void background_enter(const JitOptions *options)
{
    if (!background_done())
        return;
    CacheHit hit;
    for (Job *job; (job = take_done());)
        (void)enter(job, options, &hit);
}

bool background_await(const Evaluation *e, const Call *call, CacheHit *hit)
{
    int n_jobs;
    Job *job = find_job(&call->key, &n_jobs);
    if (!job || !job->general)
        return false;
    pthread_mutex_lock(&state.lock);
    bool here = job->state == JOB_QUEUED;
    while (job->state == JOB_COMPILING)
        pthread_cond_wait(&state.done, &state.lock);
    unlink_job(job);
    pthread_mutex_unlock(&state.lock);
    if (here)
        job_compile(job, NULL);

    CacheHit entered;
    CacheMiss miss;
    return enter(job, &e->options, &entered) && cache_find(&call->key, &call->facts, hit, &miss);
}

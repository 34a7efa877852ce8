/*
 * What happens when a value is needed. Read eval_nodes() and compute() first: they are the whole story.
 *
 *   collect    the pending graph: structure -> key, numbers -> facts          (runtime/eval/collect.c)
 *   find       a compiled program under the key whose guards hold             (cache/memory.c)
 *   load       or else one that lies on disk                                  (runtime/eval/store.c)
 *   compile    on a miss: say why, make a program, enter it                   (runtime/eval/miss.c, jit/compile.c);
 *              with KILN_ASYNC_COMPILE some are made in the background        (runtime/eval/background.c)
 *   launch     bind buffers, sizes and scalars; run the steps                 (runtime/eval/launch.c)
 *   publish    the nodes have values now and let their inputs go
 *
 * kiln_eval_async has all of it done by another thread                        (runtime/eval/async.c).
 * When compiling fails the reference interpreter runs the graph, with one warning (runtime/eval/interpret.c). All that is known of the
 * evaluation lies in one object, which is passed along (runtime/evaluation.h). One lock covers all of it but the launch; where a thread evaluates
 * what is its own by a program that it knows, it needs no lock: eval_own(), the same story in short (runtime/eval/lock.c).
 */
#include "runtime/eval.h"
#include "ir/base/os.h"
#include "jit/target.h"
#include "runtime/api/stats.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/eval/async.h"
#include "runtime/eval/background.h"
#include "runtime/eval/launch.h"
#include "runtime/eval/perf.h"
#include "runtime/eval/store.h"
#include "runtime/eval/traced.h"
#include "runtime/eval/twice.h"
#include "runtime/gradient/group.h"
#include "runtime/mode/finite.h"
#include "runtime/record/record.h"
#include "runtime/record/thread.h"

#include <string.h>

static bool eval_own(RtNode *const *nodes, uint32_t n, const char *api, Loc loc, Status *status);
static Status with_checks(Evaluation *e, RtNode *const *nodes, uint32_t n);
static Status together(Evaluation *e, RtNode *const *nodes, uint32_t n);
static Status by_device(Evaluation *e, RtNode *const *nodes, uint32_t n);
static Status collect_keyed(Evaluation *e, RtNode *const *nodes, uint32_t n, int device, ServeCall *take, void *user);
static Status serve(Evaluation *e, Call *call, void *unused);
static Status compute(Evaluation *e, Call *call);
static Status run(Evaluation *e, Program *program, const Call *call);

/* --- the story -------------------------------------------------------------------------------------------------------- */

Status eval_nodes(RtNode *const *nodes, uint32_t n, const char *api, Loc loc)
{
    bool pending = false;
    for (uint32_t i = 0; i < n; i++) {
        TRY(device_has_values(nodes[i]));
        pending |= node_pending(nodes[i]);
    }
    if (!pending)
        return ST_OK;
    Evaluation *e;
    Status status;
    TRY(async_settle(nodes, n));
    if (eval_own(nodes, n, api, loc, &status))
        return status;
    TRY(eval_enter_among(&e));
    status = evaluation_begin(e, api, loc);
    if (status == ST_OK) {
        record_begin(e);
        status = rt_thread()->mode ? with_checks(e, nodes, n) : together(e, nodes, n);
        group_sweep(rt_thread()); /* nothing else is to hold what has its value now */
        traced_sync(e, status);
    }
    eval_unlock();
    return status;
}

Status eval_nodes_on(int device, RtNode *const *nodes, uint32_t n, const char *api, Loc loc)
{
    RtThread *thread = rt_thread();
    int before = thread->device;
    thread->device = device == DEVICE_ANY ? before : device;
    Status status = eval_nodes(nodes, n, api, loc);
    thread->device = before;
    return status;
}

/* Under kiln_finite_check_push with the places to look at. A failure of those is none of theirs, either: a CUDA device tells too late of which
 * value an index is out of bounds, so there the places are computed afterwards. */
static Status with_checks(Evaluation *e, RtNode *const *nodes, uint32_t n)
{
    const RtThread *t = rt_thread();
    RtNode **all;
    uint32_t n_all = n;
    int device;
    TRY(device_of(nodes[0], &device));
    TRY(finite_roots(t, nodes, &n_all, &all));
    if (!all)
        return together(e, nodes, n);
    bool apart = device_kind(device)->queues;
    Status asked = apart ? together(e, nodes, n) : ST_OK, places = asked;
    if (asked == ST_OK)
        places = !apart ? together(e, all, n_all) : n_all > n ? together(e, all + n, n_all - n) : ST_OK;
    os_free(all);
    if (places == ST_OK)
        return finite_judge(t);
    finite_forget(t);
    return apart ? asked : together(e, nodes, n);
}

/* With what shares work with them. A failure of that is none of theirs: they are computed alone then. */
static Status together(Evaluation *e, RtNode *const *nodes, uint32_t n)
{
    RtNode **roots;
    uint32_t n_roots = n;
    TRY(group_roots(e, nodes, &roots, &n_roots));
    if (!roots)
        return by_device(e, nodes, n);
    Status status = by_device(e, roots, n_roots);
    group_done(e, roots, n_roots, status);
    return status == ST_OK ? ST_OK : by_device(e, nodes, n);
}

Status eval_company(RtNode *const *nodes, const char *api, Loc loc, RtNode ***roots, uint32_t *n)
{
    Evaluation *e;
    TRY(eval_enter_among(&e));
    Status status = evaluation_begin(e, api, loc);
    if (status == ST_OK)
        status = group_roots(e, nodes, roots, n);
    eval_unlock();
    return status;
}

/* The nodes of one device at a time: nearly always there is one. */
static Status by_device(Evaluation *e, RtNode *const *nodes, uint32_t n)
{
    bool same = true;
    int device, other;
    TRY(device_of(nodes[0], &device));
    for (uint32_t i = 1; i < n && same; i++) {
        TRY(device_of(nodes[i], &other));
        same = other == device;
    }
    if (same)
        return collect_keyed(e, nodes, n, device, serve, NULL);
    RtNode **group = os_alloc(sizeof *group * n);
    if (!group)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = ST_OK;
    for (uint32_t i = 0; i < n && status == ST_OK; i++) {
        uint32_t count = 0;
        if (atomic_load(&nodes[i]->storage))
            continue;
        status = device_of(nodes[i], &device);
        for (uint32_t j = i; j < n && status == ST_OK; j++)
            if (!atomic_load(&nodes[j]->storage) && (status = device_of(nodes[j], &other)) == ST_OK && other == device)
                group[count++] = nodes[j];
        if (status == ST_OK)
            status = collect_keyed(e, group, count, device, serve, NULL);
    }
    os_free(group);
    return status;
}

/* What is recorded may be larger than any memory: only what is asked for has to lie somewhere. */
static Status sizes_possible(const Call *call)
{
    for (size_t k = 0; k < call->outputs.n; k++) {
        const RtNode *node = call_output(call, k);
        char text[SHAPE_TEXT];
        if ((uint64_t)node_elements(node) > (UINT64_C(1) << 62) / dtype_bytes((DType)node->dtype))
            return fail(ST_OVERFLOW, "a value has more than 2^62 bytes: %s; compute a part of it at a time", node_text(node, text));
    }
    return ST_OK;
}

/* The outputs have their values now. All have, before the first lets its inputs go: that may call a deleter, which may wait for the lock. */
static void publish(Evaluation *e, Call *call)
{
    size_t n = call->outputs.n;
    for (size_t k = 0; k < n; k++) {
        node_set_value(call_output(call, k), e->results.at[k].storage, e->results.at[k].data);
        if (n > 1) /* an output that only another one uses goes with that */
            node_retain(call_output(call, k));
    }
    for (size_t k = 0; k < n; k++) {
        RtNode *node = call_output(call, k);
        node_value_set(node);
        if (node->tracked && !node->keep) {
            node->computed.api = e->api;
            node->computed.loc = e->loc;
        }
    }
    for (size_t k = 0; k < n && n > 1; k++)
        node_release(call_output(call, k));
}

static Status serve(Evaluation *e, Call *call, void *unused)
{
    (void)unused;
    TRY(device_target(call->device, &e->options.target));
    TRY(sizes_possible(call));
    stat_add(STAT_EVALS, 1);
    call->evaluation = e->number;
    breaks_report(e, call);
    Status status = twice_wanted(e, call) ? twice(e, call, compute) : compute(e, call);
    if (status != ST_OK && status != ST_COMM && call->ordered)
        comm_trouble();
    TRY(status);
    publish(e, call);
    if (e->traced)
        traced_results(call);
    breaks_served(e, call);
    return ST_OK;
}

/* There is no program: the interpreter, unless that was forbidden or would not help. */
static Status fall_back(Evaluation *e, const Call *call, Status why)
{
    if (e->refused || why == ST_OUT_OF_MEMORY || e->options.value[OPT_STRICT])
        return why;
    record_source(e, KILN_CALL_INTERPRETED);
    stat_add(STAT_FALLBACKS, 1);
    warn_fallback(call, e->api, e->loc);
    return interpret(e, call);
}

/* Is it a call that may give the lock back? Not where something looks at the rest of its walk afterwards (a graph that is cut); with collectives,
 * whose order is the process's; nor what is computed twice. */
static bool is_whole(const Evaluation *e, const Call *call) { return e->whole && !twice_wanted(e, call) && !call->ordered; }

bool may_be_concurrent(const Evaluation *e, const Call *call) { return eval_concurrent_possible() && is_whole(e, call); }

static Status load_or_compile(Evaluation *e, Call *call, CacheMiss *miss, CacheHit *hit)
{
    double start = os_seconds();
    bool found = store_find(e, call, miss, hit);
    int turn = found ? -1 : store_turn(e);
    if (turn >= 0)
        found = store_find(e, call, miss, hit); /* another rank made it meanwhile */
    double looked = os_seconds();
    e->record.load_seconds += looked - start;
    if (!found) {
        record_source(e, KILN_CALL_COMPILED);
        e->record.reason = (int)miss->reason;
        stat_miss(miss->reason);
        store_miss(e, call, miss);
        Status status = serve_miss(e, call, miss, hit);
        e->record.compile_seconds += os_seconds() - looked;
        store_turn_end(turn);
        return status;
    }
    store_turn_end(turn);
    record_source(e, KILN_CALL_DISK);
    stat_add(STAT_HITS, 1);
    stat_add(STAT_DISK_HITS, 1);
    background_improve(e, call, hit);
    return ST_OK;
}

/* A program in memory; one that another thread makes now is waited for. */
static bool look_up(Evaluation *e, const Call *call, CacheHit *hit, CacheMiss *miss)
{
    for (;;) {
        background_enter(&e->options);
        int64_t began = timeline_begin();
        bool found = (call->memo && cache_recall(call->memo, hit)) || cache_find(&call->key, &call->facts, hit, miss);
        if (began)
            traced_lookup(call, began, found ? hit : NULL);
        if (found || !is_whole(e, call) || !eval_await_compile(call->walk, &call->key))
            return found;
        call_renumber(call);
    }
}

static Status compute(Evaluation *e, Call *call)
{
    if (e->options.value[OPT_MODE] == MODE_INTERP) {
        record_source(e, KILN_CALL_INTERPRETED);
        return interpret(e, call);
    }
    CacheHit hit;
    CacheMiss miss;
    bool found = look_up(e, call, &hit, &miss);
    if (found) {
        record_source(e, KILN_CALL_MEMORY);
        stat_add(STAT_HITS, 1);
        log_hit(call);
        background_improve(e, call, &hit);
    } else {
        Status status = load_or_compile(e, call, &miss, &hit);
        if (status != ST_OK)
            return fall_back(e, call, status);
    }
    if (call->memo && hit.sizes != call->memo->sizes)
        cache_remember(call->memo, &hit);
    if (!call->memo && e->own && evaluations_of_threads() > 1)
        cache_learn(&e->own->cache, &call->key, &call->facts, &hit);
    TRY(record_program(e, hit.program, hit.sizes));
    traced_use(hit.program);
    Status status = run(e, hit.program, call);
    if (e->perf_began > 0)
        perf_call(found && status == ST_OK ? hit.program : NULL, os_seconds() - e->perf_began);
    return status == ST_COMPILE ? fall_back(e, call, status) : status; /* the driver makes no code of it: it loads kernels only now */
}

/* What was recorded of the call holds the program and has a copy of its sizes: neither may go while it runs. */
static Status run(Evaluation *e, Program *program, const Call *call)
{
    const CallRecord *r = &e->record;
    const int64_t *sizes = r->sizes.at + r->parts.at[r->n - 1].sizes;
    const bool *donated = NULL;
    uint32_t fault_node = NO_FAULT_NODE;
    EvalConcurrent place;
    if (program->takes_over && !e->first_of_two && !(donated = call_donated(e, call)))
        return ST_OUT_OF_MEMORY;
    int cancel = device_kind(call->device)->queues ? os_cancel_off() : 0;
    bool calls = program_calls(program); /* of functions that may wait for whoever comes next */
    bool possible = calls ? eval_concurrent_allowed() && is_whole(e, call)
                          : may_be_concurrent(e, call) && !perf_timed(); /* what is measured while others run is of no use */
    double start = possible ? os_seconds() : 0;
    e->concurrent = possible && (calls || program->seconds == 0 || program->seconds >= CONCURRENT_SECONDS);
    if (e->concurrent)
        eval_concurrent_begin(&place, call->walk, NULL);
    Status status = launch(e, program, sizes, call, donated, &fault_node);
    if (status == ST_INDEX && fault_node != NO_FAULT_NODE)
        status = call_index_failed(call, fault_node);
    double took = possible ? os_seconds() - start : 0;
    if (e->concurrent)
        eval_concurrent_end(&place);
    if (possible && (program->seconds == 0 || (took >= CONCURRENT_SECONDS) != e->concurrent)) /* seldom: others read what lies around it */
        program->seconds = took;
    e->concurrent = false;
    launch_count(e);
    if (device_kind(call->device)->queues)
        os_cancel_restore(cancel);
    return status;
}

/* --- without the lock --------------------------------------------------------------------------------------------------------- */

/* Nothing that would have to be told, measured or looked at. */
static bool is_plain(const RtThread *t)
{
    return !eval_told() && !perf_counted() && !(t->mode && finite_pushed(t)) && !group_lists_any(t) && !background_done();
}

/* The values are there: what they were made of is let go of when nobody is kept out any more. */
static void publish_own(Evaluation *e, const Call *call)
{
    for (size_t k = 0; k < call->outputs.n; k++)
        node_set_value(call_output(call, k), e->results.at[k].storage, e->results.at[k].data);
    for (size_t k = 0; k < call->outputs.n; k++) {
        RtNode *node = call_output(call, k);
        e->let_go.n += node_take_inputs(node, e->let_go.at + e->let_go.n);
        if (node->tracked) {
            node->computed.api = e->api;
            node->computed.loc = e->loc;
        }
    }
}

/* Inside. */
static Status serve_own(Evaluation *e, Call *call, void *unused)
{
    (void)unused;
    CacheHit hit;
    const bool *donated = NULL;
    uint32_t fault_node = NO_FAULT_NODE;
    size_t inputs = 0;
    bool known = !call->ordered && !twice_wanted(e, call) && cache_again(&e->own->cache, &call->key, &call->facts, &hit);
    if (!known || (hit.program->general && e->options.value[OPT_ASYNC_COMPILE])) {
        e->given_up = true;
        return ST_INVALID;
    }
    for (size_t k = 0; k < call->outputs.n; k++)
        inputs += call_output(call, k)->n_in;
    e->let_go.n = 0;
    if (!BUF_RESERVE(e->let_go, inputs + 1) || (hit.program->takes_over && !(donated = call_donated(e, call))))
        return ST_OUT_OF_MEMORY;
    call->evaluation = e->number;
    record_source(e, KILN_CALL_MEMORY);
    TRY(record_program(e, hit.program, hit.sizes));
    e->concurrent = true;
    eval_own_run(e->own, call->walk);
    Status status = launch(e, hit.program, e->record.sizes.at, call, donated, &fault_node);
    if (status == ST_INDEX && fault_node != NO_FAULT_NODE)
        status = call_index_failed(call, fault_node);
    eval_own_ran(e->own);
    e->concurrent = false;
    if (status == ST_COMPILE) { /* another device of the same kind loads the kernels only now: see compute() */
        e->given_up = true;
        return status;
    }
    stat_add(STAT_EVALS, 1);
    stat_add(STAT_HITS, 1);
    if (status == ST_OK)
        publish_own(e, call);
    return status;
}

/* false: under the lock it has to be. */
static bool eval_own(RtNode *const *nodes, uint32_t n, const char *api, Loc loc, Status *status)
{
    RtThread *t = rt_thread();
    Evaluation *e = t->evaluation;
    int device, other;
    if (!e || !eval_own_possible(e->own) || e->busy || !is_plain(t) || nodes[0]->owner != t->serial || eval_may_enter() != ST_OK ||
        device_of(nodes[0], &device) != ST_OK)
        return false;
    for (uint32_t i = 1; i < n; i++)
        if (device_of(nodes[i], &other) != ST_OK || other != device)
            return false;
    if (evaluation_begin(e, api, loc) != ST_OK || e->options.value[OPT_MODE] != MODE_JIT)
        return false;
    record_begin(e);
    if (!eval_own_begin(e->own))
        return false;
    e->owns = true;
    e->given_up = false;
    e->let_go.n = 0;
    *status = collect_keyed(e, nodes, n, device, serve_own, NULL);
    e->owns = false;
    eval_own_end(e->own);
    if (e->given_up)
        return false;
    launch_count(e);
    eval_own_let_go(e);
    return true;
}

/* --- collecting and serving apart ------------------------------------------------------------------------------------------ */

/* The target and the options that change code open the structure, so they are part of the key. */
static Status collect_keyed(Evaluation *e, RtNode *const *nodes, uint32_t n, int device, ServeCall *take, void *user)
{
    int64_t keyed[TARGET_WORDS + OPT_COUNT];
    size_t count = TARGET_WORDS;
    CudaTarget target;
    TRY(device_target(device, &target));
    target_words(&target, keyed);
    for (int id = 0; id < OPT_COUNT; id++)
        if (option_keyed((OptionId)id))
            keyed[count++] = e->options.value[id];
    for (;;) {
        e->busy = true;
        e->awaits = 0;
        Status status = collect(e, nodes, n, device, (const uint8_t *)keyed, count * sizeof *keyed, take, user);
        e->busy = false;
        if (!e->awaits)
            return status;
        eval_await(e->awaits);
    }
}

Status eval_collect(Evaluation *e, RtNode *const *roots, uint32_t n, ServeCall *take, void *user)
{
    int device;
    TRY(evaluation_begin(e, "", (Loc){NULL, 0}));
    TRY(device_of(roots[0], &device));
    Status status = collect_keyed(e, roots, n, device, take, user);
    collect_end(e);
    return status;
}

/* The options that change code become those that collect_keyed wrote: a deleter or another thread may have set some since. */
static void keep_keyed_options(Evaluation *e, const Call *call)
{
    const uint8_t *at = call->structure.at + TARGET_WORDS * sizeof(int64_t);
    for (int id = 0; id < OPT_COUNT; id++) {
        int64_t *value = &e->options.value[id];
        if (!option_keyed((OptionId)id))
            continue;
        if (memcmp(value, at, sizeof *value) != 0) {
            memcpy(value, at, sizeof *value);
            e->options_read = false; /* they are this call's alone */
        }
        at += sizeof *value;
    }
}

Status eval_serve(Evaluation *e, Call *call, const char *api, Loc loc)
{
    TRY(evaluation_begin(e, api, loc));
    keep_keyed_options(e, call);
    record_begin(e);
    e->busy = true;
    e->whole = false; /* the call's arrays are the template's */
    Status status = serve(e, call, NULL);
    e->busy = false;
    traced_sync(e, status);
    return status;
}

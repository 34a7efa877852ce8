/*
 * What happens when a value is needed. Read eval_nodes() and compute() first: they are the whole story.
 *
 *   collect    the pending graph: structure -> key, numbers -> facts          (runtime/eval/collect.c)
 *   find       a compiled program under the key whose guards hold             (cache/memory.c)
 *   load       or else one that lies on disk                                  (runtime/eval/store.c)
 *   compile    on a miss: say why, make a program, enter it                   (runtime/eval/miss.c, jit/compile.c);
 *              with KILN_ASYNC_COMPILE some are made beside evaluation        (runtime/eval/background.c)
 *   launch     bind buffers, sizes and scalars; run the steps                 (runtime/eval/launch.c)
 *   publish    the nodes have values now and let their inputs go
 *
 * When compiling fails the reference interpreter runs the graph, with one warning. One lock covers all of it: evaluations
 * take turns (each uses all threads), two threads that need one node compute it once, and two that miss alike compile once.
 */
#include "runtime/eval.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/interp.h"
#include "ir/scalar.h"
#include "runtime/api/mark.h"
#include "runtime/api/stats.h"
#include "runtime/device/device.h"
#include "runtime/eval/background.h"
#include "runtime/eval/pool.h"
#include "runtime/eval/store.h"
#include "runtime/record/record.h"
#include "runtime/record/thread.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static Status by_device(RtNode *const *nodes, uint32_t n, Sync *sync);
static Status collect_keyed(RtNode *const *nodes, uint32_t n, int device, const JitOptions *options, ServeCall *take, void *user);
static Status serve(Call *call, void *user);
static Status compute(Call *call, Sync *sync);
static Status run(const Program *program, const int64_t *sizes, Call *call);
static Status interpret(Call *call, Sync *sync);

/* --- the story -------------------------------------------------------------------------------------------------------- */

Status eval_nodes(RtNode *const *nodes, uint32_t n, const char *api, Loc loc)
{
    bool pending = false;
    for (uint32_t i = 0; i < n; i++)
        pending |= !atomic_load_explicit(&nodes[i]->storage, memory_order_acquire);
    if (!pending)
        return ST_OK;
    TRY(eval_enter());
    Sync sync = sync_at(api, loc);
    Status status = by_device(nodes, n, &sync);
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

/* The nodes of one device at a time: nearly always there is one. */
static Status by_device(RtNode *const *nodes, uint32_t n, Sync *sync)
{
    bool same = true;
    int device, other;
    TRY(device_of(nodes[0], &device));
    for (uint32_t i = 1; i < n && same; i++) {
        TRY(device_of(nodes[i], &other));
        same = other == device;
    }
    if (same)
        return collect_keyed(nodes, n, device, &sync->options, serve, sync);
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
            status = collect_keyed(group, count, device, &sync->options, serve, sync);
    }
    os_free(group);
    return status;
}

static RtNode *output_node(const Call *call, size_t k) { return call->nodes.at[call->outputs.at[k]]; }

/* What is recorded may be larger than any memory: only what is asked for has to lie somewhere. */
static Status sizes_possible(const Call *call)
{
    for (size_t k = 0; k < call->outputs.n; k++) {
        const RtNode *node = output_node(call, k);
        char text[SHAPE_TEXT];
        if ((uint64_t)node_elements(node) > (UINT64_C(1) << 62) / dtype_bytes((DType)node->dtype))
            return fail(ST_OVERFLOW, "a value has more than 2^62 bytes: %s; compute a part of it at a time", node_text(node, text));
    }
    return ST_OK;
}

static Status serve(Call *call, void *user)
{
    Sync *sync = user;
    TRY(device_target(call->device, &sync->options.target));
    TRY(sizes_possible(call));
    stat_count(STAT_EVALS, 1);
    call->evaluation = sync->number;
    breaks_report(call, sync->api, sync->loc);
    Status status = compute(call, sync);
    if (status == ST_OK)
        breaks_served(call, sync->api, sync->loc);
    return status;
}

/* There is no program: the interpreter, unless that was forbidden or would not help. */
static Status fall_back(Call *call, Sync *sync, Status why)
{
    if (sync->refused || why == ST_OUT_OF_MEMORY || sync->options.value[OPT_STRICT])
        return why;
    stat_count(STAT_FALLBACKS, 1);
    warn_fallback(call, sync->api, sync->loc);
    return interpret(call, sync);
}

static Status compute(Call *call, Sync *sync)
{
    if (sync->options.value[OPT_MODE] == MODE_INTERP)
        return interpret(call, sync);

    CacheHit hit;
    CacheMiss miss;
    background_enter(&sync->options);
    if ((call->memo && cache_recall(call->memo, &hit)) || cache_find(&call->key, &call->facts, &hit, &miss)) {
        stat_count(STAT_HITS, 1);
        log_hit(call);
        background_improve(call, sync, &hit);
    } else if (store_find(call, sync, &miss, &hit)) {
        stat_count(STAT_HITS, 1);
        stat_add(STAT_DISK_HITS, 1);
        background_improve(call, sync, &hit);
    } else {
        stat_miss(miss.reason);
        store_miss(call, sync, &miss);
        Status status = serve_miss(call, sync, &miss, &hit);
        if (status != ST_OK)
            return fall_back(call, sync, status);
    }
    if (call->memo && hit.sizes != call->memo->sizes)
        cache_remember(call->memo, &hit);
    program_retain(hit.program);
    Status status = run(hit.program, hit.sizes, call);
    program_release(hit.program);
    return status == ST_COMPILE ? fall_back(call, sync, status) : status; /* the driver makes no code of it: it loads kernels only now */
}

/* --- entries ------------------------------------------------------------------------------------------------------------ */

/* The options are read anew only when one was set. Under the evaluation lock. */
Sync sync_at(const char *api, Loc loc)
{
    static JitOptions now;
    static uint64_t generation;
    static bool read;
    static uint32_t number;
    options_init();
    if (!read || generation != options_generation()) {
        generation = options_generation();
        options_snapshot(&now);
        read = true;
    }
    return (Sync){.number = ++number, .api = api, .loc = loc, .options = now};
}

/* A deleter that runs while an evaluation is under way must not start another: the call's arrays are in use. */
static bool busy;
bool eval_busy(void) { return busy; }

enum { KEYED_TARGET = 2 };

/* The target and the options that change code open the structure, so they are part of the key. */
static Status collect_keyed(RtNode *const *nodes, uint32_t n, int device, const JitOptions *options, ServeCall *take, void *user)
{
    int64_t keyed[OPT_COUNT + KEYED_TARGET];
    size_t count = 0;
    CudaTarget target;
    TRY(device_target(device, &target));
    keyed[count++] = (int64_t)target.sm << 32 | target.device << 16 | target.ptx << 1 | target.arch;
    keyed[count++] = (int64_t)target.multiprocessors << 32 | target.threads;
    for (int id = 0; id < OPT_COUNT; id++)
        if (option_keyed((OptionId)id))
            keyed[count++] = options->value[id];
    if (busy)
        return fail(ST_INVALID, "a deleter may not compute values");
    busy = true;
    Status status = collect(nodes, n, device, (const uint8_t *)keyed, count * sizeof *keyed, take, user);
    busy = false;
    return status;
}

Status eval_collect(RtNode *const *roots, uint32_t n, ServeCall *take, void *user)
{
    Sync sync = sync_at("", (Loc){NULL, 0});
    int device;
    TRY(device_of(roots[0], &device));
    Status status = collect_keyed(roots, n, device, &sync.options, take, user);
    collect_end();
    return status;
}

/* The options that change code as collect_keyed wrote them. */
static void keyed_options(const Call *call, JitOptions *options)
{
    const uint8_t *at = call->structure.at + KEYED_TARGET * sizeof(int64_t);
    for (int id = 0; id < OPT_COUNT; id++)
        if (option_keyed((OptionId)id)) {
            memcpy(&options->value[id], at, sizeof options->value[id]);
            at += sizeof options->value[id];
        }
}

Status eval_serve(Call *call, const char *api, Loc loc)
{
    Sync sync = sync_at(api, loc);
    keyed_options(call, &sync.options); /* a deleter or another thread may have set some */
    if (busy)
        return fail(ST_INVALID, "a deleter may not compute values");
    busy = true;
    Status status = serve(call, &sync);
    busy = false;
    return status;
}

/* --- the lock ------------------------------------------------------------------------------------------------------------- */

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

static void unlock_in_child(void)
{
    make_lock(); /* the owner's thread id changed: only a fresh lock is certain */
    store_log_forked();
}

static void init_lock(void)
{
    make_lock();
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
}

/* Who holds this lock may wait for the log, and a sink holds that. */
Status eval_enter(void)
{
    if (log_in_sink())
        return fail(ST_INVALID, "a log sink may only look at values that are computed already");
    eval_lock();
    return ST_OK;
}

bool eval_trylock(void)
{
    pthread_once(&lock_once, init_lock);
    return pthread_mutex_trylock(&lock) == 0;
}

void eval_unlock(void) { pthread_mutex_unlock(&lock); }

Status with_arena(Status (*fn)(Arena *arena, void *user), void *user)
{
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    Status status = setjmp(oom) == 0 ? fn(&arena, user) : fail(ST_OUT_OF_MEMORY, "no memory for a graph");
    arena_free(&arena);
    return status;
}

/* --- running --------------------------------------------------------------------------------------------------------------- */

/* An index given as an array, before it was cast and repeated: NULL where it is computed, or not in this memory. */
static const RtNode *given_index(const Call *call, const RtNode *index)
{
    while (!atomic_load(&index->storage) && index->n_in == 1)
        index = index->in[0];
    bool here = atomic_load(&index->storage) && !device_is_cuda(call->device);
    return here && dtype_is_int((DType)index->dtype) && !index->strided ? index : NULL;
}

/* Writes the first index that does not fit an axis of `size`; false: there is none. */
static bool wrong_index(const RtNode *index, int64_t size, char *text, size_t room)
{
    DType dtype = (DType)index->dtype;
    int64_t n = node_elements(index);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = scalar_load(dtype, index->data + (size_t)i * dtype_bytes(dtype));
        int64_t value = scalar_to_int(dtype, bits);
        if (dtype == DT_U64 && value < 0)
            snprintf(text, room, "index %" PRIu64, bits);
        else if (value < -size || value >= size)
            snprintf(text, room, "index %" PRId64, value);
        else
            continue;
        return true;
    }
    return false;
}

IndexPlace index_place(const RtNode *node)
{
    return (IndexPlace){node->api ? node->api : op_name((Op)node->op), node->loc, node->attr.axis, node->in[0]->dim[node->attr.axis]};
}

Status index_failed(const IndexPlace *p, const char *which)
{
    char place[320] = "";
    if (p->loc.file)
        snprintf(place, sizeof place, " at %s:%d", p->loc.file, p->loc.line);
    return fail(ST_INDEX, "%s of the %s%s is out of bounds: axis %d has %" PRId64 " elements", which ? which : "an index", p->api, place,
                p->axis, p->size);
}

/* Names the function, the axis, and the index where it is at hand. */
static Status fail_index(const Call *call, uint32_t number)
{
    const RtNode *node = call->nodes.at[number], *index = given_index(call, node->in[1]);
    IndexPlace place = index_place(node);
    char which[40];
    return index_failed(&place, index && wrong_index(index, place.size, which, sizeof which) ? which : NULL);
}

/* The outputs are evaluated: their values lie in `results`. */
static void publish(Call *call, const Result *from)
{
    for (size_t k = 0; k < call->outputs.n; k++)
        node_set_storage(output_node(call, k), from[k].storage, from[k].data);
}

static BUF(Result) results; /* kept between evaluations */

static Status run(const Program *program, const int64_t *sizes, Call *call)
{
    const bool *given_up = NULL;
    uint32_t fault_node = NO_FAULT_NODE;
    if (!BUF_RESERVE(results, call->outputs.n) || (program->takes_over && !(given_up = call_given_up(call))))
        return ST_OUT_OF_MEMORY;
    Status status = launch(program, sizes, call, given_up, results.at, &fault_node);
    if (status == ST_INDEX && fault_node != NO_FAULT_NODE)
        return fail_index(call, fault_node);
    TRY(status);
    publish(call, results.at);
    return ST_OK;
}

/* --- interpreting ----------------------------------------------------------------------------------------------------------------- */

typedef struct InterpretJob {
    Call *call;
    Sync *sync;
} InterpretJob;

static size_t node_bytes(const RtNode *node) { return (size_t)node_elements(node) * dtype_bytes((DType)node->dtype); }

static Status interpret_in_arena(Arena *arena, void *user)
{
    InterpretJob *job = user;
    Call *call = job->call;
    Graph *g = call_graph(call, arena);
    log_graph(g, call);
    TRY(marks_apply(call, g, NULL));
    const void **in = ARENA_ARRAY(arena, const void *, call->inputs.n + 1);
    void **out = ARENA_ARRAY(arena, void *, call->outputs.n + 1);
    bool here = !device_is_cuda(call->device); /* else operands come over and results go back */
    Status status = ST_OK;
    for (size_t k = 0; k < call->inputs.n && status == ST_OK; k++) {
        const RtNode *node = call->nodes.at[call->inputs.at[k]];
        void *copy = here ? NULL : arena_alloc(arena, node_bytes(node) + 1);
        in[k] = here ? node->data : copy;
        if (!here)
            status = device_read(atomic_load(&node->storage), node->data, copy, node_bytes(node));
    }

    for (size_t k = 0; k < call->outputs.n && status == ST_OK; k++) {
        size_t bytes = node_bytes(output_node(call, k));
        status = storage_new_on(call->device, bytes, &results.at[k].storage);
        if (status == ST_OK)
            results.at[k].data = results.at[k].storage->data;
        out[k] = here ? results.at[k].data : arena_alloc(arena, bytes + 1);
    }
    Ref bad = 0;
    if (status == ST_OK)
        status = interp_run(g, INTERP_NATIVE, options_math(&job->sync->options), here ? ORDER_HOST : ORDER_CUDA, in, out, &bad);
    if (status == ST_INDEX && bad)
        status = fail_index(call, graph_node(g, bad)->origin);
    for (size_t k = 0; k < call->outputs.n && status == ST_OK && !here; k++)
        status = device_write(results.at[k].storage, results.at[k].data, out[k], node_bytes(output_node(call, k)));
    TRY(status);
    publish(call, results.at);
    return ST_OK;
}

static Status interpret(Call *call, Sync *sync)
{
    InterpretJob job = {call, sync};
    if (!BUF_RESERVE(results, call->outputs.n))
        return ST_OUT_OF_MEMORY;
    memset(results.at, 0, sizeof *results.at * call->outputs.n);
    Status status = with_arena(interpret_in_arena, &job);
    for (size_t k = 0; k < call->outputs.n && status != ST_OK; k++)
        storage_release(results.at[k].storage);
    return status;
}

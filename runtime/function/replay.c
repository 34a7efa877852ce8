/*
 * Replaying templates of kiln_functions (template.h).
 *
 * The long way puts the current values into a copy of the call's node list, fresh nodes for the results, the stream's position and
 * key into the scalars, and serves it like any other call: guards, cache, launch. What that finds is remembered (CacheMemo), and
 * prepared (runtime/function/prepared.h): the next calls only put in pointers and scalars and run, until something leaves the cache or a
 * better program comes. A program that cannot be prepared, as one for a CUDA device, is launched anew each time; that much is left of the long way.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "runtime/api/mark.h"
#include "runtime/api/random.h"
#include "runtime/api/stats.h"
#include "runtime/eval/constants.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/eval/background.h"
#include "runtime/eval/perf.h"
#include "runtime/function/template.h"
#include "runtime/gradient/param.h"

#include <string.h>

/* The node a source means now. Borrowed: an argument's handle is the caller's, the others' are held. */
static RtNode *now_of(const Source *s, kiln_tensor *const *in, RtNode *const *results)
{
    switch ((SourceKind)s->kind) {
    case FROM_ARG: return in[s->index]->node;
    case FROM_HANDLE: return s->handle->node;
    case FROM_NODE: return s->node;
    case FROM_RESULT: break;
    }
    return results[s->index];
}

/* The same, evaluated unless it is a result. */
static Status source_node(const Template *t, const Source *s, kiln_tensor *const *in, RtNode **out)
{
    RtNode *node = now_of(s, in, t->fresh);
    if (s->kind == FROM_HANDLE && node_pending(node))
        TRY(eval_nodes_on(t->call.device, &node, 1, "kiln_function_call", node->loc));
    *out = node;
    return ST_OK;
}

/* Is it an argument that is weak? What stood for it in the trace was not, and the result is not. */
static bool weak_argument(const Source *s, kiln_tensor *const *in) { return s->kind == FROM_ARG && in[s->index]->node->weak; }

/* What a replay holds: so many fresh results and values, each with a reference. */
typedef struct Replay {
    Template *t;
    Call call; /* borrows all arrays of the template */
    size_t n_fresh, n_values;
} Replay;

static void replay_end(Replay *r)
{
    Template *t = r->t;
    for (size_t k = 0; k < r->n_fresh; k++)
        node_release(t->fresh[k]);
    for (size_t i = 0; i < r->n_values; i++)
        node_release(t->values[i]);
    t->replaying = false;
}

/* Does the node lie in memory as the one that was traced, and has it the same marks? An argument's are part of the template's signature;
 * the function may have marked what stood for it. */
static bool same_kind(const Source *s, const RtNode *node, const RtNode *traced)
{
    bool marked = s->kind != FROM_ARG && (node->marks || traced->marks);
    if (node->strided != traced->strided || node_device(node) != traced->device || (marked && !marks_equal(node, traced)))
        return false;
    return !node->strided || memcmp(node->stride, traced->stride, sizeof *node->stride * node->rank) == 0;
}

static bool was_number(const Template *t, const kiln_tensor *handle)
{
    bool was = false;
    for (uint32_t i = 0; i < t->n_numbers; i++)
        was |= t->numbers[i].handle == handle;
    return was;
}

bool template_fits(const Template *t)
{
    bool fits = true;
    for (size_t i = 0; i < t->call.inputs.n && fits; i++) {
        if (t->inputs[i].kind != FROM_HANDLE)
            continue;
        const RtNode *traced = t->call.nodes.at[t->call.inputs.at[i]], *node = t->inputs[i].handle->node;
        if (node_is_number(node) && !was_number(t, t->inputs[i].handle)) /* recording copies it */
            fits = false;
        else if (node_pending(node)) /* it will be dense */
            fits = !traced->strided && (!node->device || node->device == traced->device) && marks_equal(node, traced);
        else
            fits = same_kind(&t->inputs[i], node, traced);
    }
    for (uint32_t i = 0; i < t->n_numbers; i++) /* a computed one may be an input of the graph */
        fits &= node_pending(t->numbers[i].handle->node) == t->numbers[i].pending;
    return fits;
}

/* The random stream's position and key, into the scalars. */
static void put_draws(const Template *t, uint64_t base, uint64_t *scalars)
{
    for (uint32_t d = 0; d < t->n_draws; d++) {
        const Draw *draw = &t->draws[d];
        if (draw->counter_scalar != UINT32_MAX)
            scalars[draw->counter_scalar] = base + (draw->start - t->draws[0].start);
        if (draw->key_scalar != UINT32_MAX)
            scalars[draw->key_scalar] = random_key();
    }
}

/* What a function makes of nothing but what it brings along, or brings along as a result, lies on the thread's device, which may have
 * changed. */
static bool same_device(const Template *t)
{
    int device;
    for (size_t i = 0; i < t->call.inputs.n; i++)
        if (t->inputs[i].kind != FROM_NODE)
            return true;
    bool brings = t->call.outputs.n > 0;
    for (uint32_t i = 0; i < t->n_results; i++)
        brings |= t->results[i].kind == FROM_NODE;
    return !brings || (device_current(&device) == ST_OK && device == t->home);
}

/* Builds the call with the current values; *retrace when the template no longer fits. `base` is the stream's position. */
static Status replay_begin(Replay *r, kiln_tensor *const *in, uint64_t base, bool *retrace)
{
    Template *t = r->t;
    const Call *call = &t->call;
    *retrace |= !same_device(t);
    for (size_t i = 0; i < call->inputs.n; i++) {
        uint32_t number = call->inputs.at[i];
        TRY(source_node(t, &t->inputs[i], in, &t->now[number]));
        *retrace |= !same_kind(&t->inputs[i], t->now[number], call->nodes.at[number]);
    }
    bool tracked = false;
    for (size_t i = 0; i < call->inputs.n; i++)
        tracked |= t->now[call->inputs.at[i]]->tracked;
    for (size_t k = 0; k < call->outputs.n; k++) {
        uint32_t number = call->outputs.at[k];
        t->fresh[k] = t->now[number] = node_like(call->nodes.at[number]);
        if (!t->fresh[k])
            return ST_OUT_OF_MEMORY;
        t->fresh[k]->tracked = tracked && dtype_is_float((DType)t->fresh[k]->dtype);
        r->n_fresh++;
    }
    for (uint32_t i = 0; i < t->n_results; i++) {
        RtNode *node;
        TRY(source_node(t, &t->results[i], in, &node));
        t->values[i] = weak_argument(&t->results[i], in) ? node_of_data(node) : node_retain(node);
        if (!t->values[i])
            return ST_OUT_OF_MEMORY;
        r->n_values++;
    }
    put_draws(t, base, t->scalars);
    r->call = *call;
    r->call.nodes.at = t->now;
    r->call.scalars.at = t->scalars;
    r->call.facts.scalars = t->scalars;
    r->call.held = t->held;
    r->call.memo = &t->memo;
    return ST_OK;
}

/* Exchanges what the assigned handles mean with `meaning`, references included. */
static void swap_assigned(const Template *t, RtNode **meaning)
{
    for (uint32_t i = 0; i < t->n_assigned; i++) {
        RtNode *before = t->assigned[i]->node;
        t->assigned[i]->node = meaning[i];
        meaning[i] = before;
    }
}

/* What a result would have lain in has its old value still: no step overwrites it once an index was out of bounds (jit/buffers.c). */
static void keep_value(const Replay *r, Storage *storage)
{
    for (size_t k = 0; k < r->n_fresh; k++)
        if (storage && atomic_load(&r->t->fresh[k]->storage) == storage)
            cuda_fault_set(storage, NULL);
}

/* Serves the call with the assigned handles already meaning its results, so that nothing but t->values holds what they meant
 * before and it may be overwritten in place. A failure gives them their old meaning back. */
static Status replay_serve(Evaluation *e, Replay *r, uint32_t n_out, Loc loc)
{
    Template *t = r->t;
    RtNode **meaning = t->values + n_out;
    swap_assigned(t, meaning);
    for (size_t i = 0; i < t->call.inputs.n; i++) {
        t->held[i] = 0;
        for (uint32_t k = 0; k < t->n_assigned; k++)
            t->held[i] += meaning[k] == t->now[t->call.inputs.at[i]];
        for (size_t j = 0; j < t->call.inputs.n && t->held[i]; j++) /* two inputs of the trace may be one value now: it is read as both */
            if (j != i && t->now[t->call.inputs.at[j]] == t->now[t->call.inputs.at[i]])
                t->held[i] = 0;
    }
    Status status = t->call.outputs.n ? eval_serve(e, &r->call, "kiln_function_call", loc) : ST_OK;
    for (size_t k = 0; k < r->n_fresh && status == ST_OK && t->n_assigned; k++)
        status = device_settle(atomic_load(&t->fresh[k]->storage)); /* a failure can be undone only now */
    if (status != ST_OK) {
        swap_assigned(t, meaning);
        for (uint32_t i = 0; i < t->n_assigned; i++)
            keep_value(r, atomic_load(&t->assigned[i]->node->storage));
    }
    return status;
}

Status template_hand_out(RtNode *const *values, kiln_tensor **out, int n_out)
{
    for (int i = 0; i < n_out; i++) {
        out[i] = tensor_new(node_retain(values[i]));
        if (!out[i]) {
            memset(out, 0, sizeof(kiln_tensor *) * (size_t)n_out);
            return ST_OUT_OF_MEMORY;
        }
    }
    return ST_OK;
}

/* --- the fast path ------------------------------------------------------------------------------------------------------- */

/* An evaluated node with the meaning of a template's. */
static RtNode *computed_node(const RtNode *like, Result value, bool tracked, Loc loc)
{
    RtNode *node = node_shell(like, 0, 0);
    if (!node)
        return NULL;
    node_set_storage(node, value.storage, value.data);
    node->tracked = tracked && dtype_is_float((DType)node->dtype);
    node->computed.api = "kiln_function_call";
    node->computed.loc = loc;
    return node;
}

/* A call's room, and the program prepared for it. One block but for that. */
typedef struct Seat {
    struct Seat *next;
    Prepared *prepared; /* NULL: launch() runs it */
    RtNode **nodes;     /* the call's, where launch() may run it, with the inputs at hand; NULL: it does not */
    uint32_t number;    /* Template.prepared_number */
    char **pointers;    /* by the call's inputs, then by the program's constants */
    Storage **storage;  /* where the program has constants: by the call's inputs */
    RtNode **inputs;    /* the same; those are held while the call is concurrent */
    Result *results;    /* by its outputs */
    RtNode **fresh;     /* the same */
    RtNode **values;    /* by the template's results; a reference each */
    uint64_t *scalars;
    Loc loc; /* of this call */
} Seat;

static void seat_free(Seat *seat)
{
    prepared_free(seat->prepared);
    os_free(seat);
}

void seats_free(Template *t)
{
    while (t->idle) {
        Seat *seat = t->idle;
        t->idle = seat->next;
        seat_free(seat);
    }
}

void seats_end_thread(Evaluation *e)
{
    for (int i = 0; i < EVALUATION_SEATS; i++)
        if (e->seats[i])
            seat_free(e->seats[i]);
}

/* NULL: there is no memory. */
static Seat *seat_new(const Template *t, const CacheHit *hit)
{
    Prepared *prepared = device_kind(t->call.device)->queues ? NULL : prepared_new(hit->program, hit->sizes);
    const uint32_t n_constants = hit->program->n_constants; /* launch() makes those that are not there */
    size_t n_in = t->call.inputs.n, n_out = t->call.outputs.n, n_scalars = t->call.scalars.n;
    size_t n_nodes = prepared && !n_constants ? 0 : t->call.nodes.n;
    Seat *seat = os_calloc(1, sizeof *seat + sizeof *seat->results * n_out + sizeof *seat->scalars * n_scalars +
                                  sizeof(void *) * (3 * n_in + n_constants + n_out + t->n_results + n_nodes));
    if (!seat) {
        prepared_free(prepared);
        return NULL;
    }
    seat->results = (Result *)(seat + 1);
    seat->pointers = (char **)(seat->results + n_out);
    seat->storage = (Storage **)(seat->pointers + n_in + n_constants);
    seat->inputs = (RtNode **)(seat->storage + n_in);
    seat->fresh = seat->inputs + n_in;
    seat->values = seat->fresh + n_out;
    seat->nodes = n_nodes ? seat->values + t->n_results : NULL;
    seat->scalars = (uint64_t *)(seat->values + t->n_results + n_nodes);
    if (n_nodes)
        memcpy(seat->nodes, t->call.nodes.at, sizeof *seat->nodes * n_nodes);
    if (n_scalars)
        memcpy(seat->scalars, t->scalars, sizeof *seat->scalars * n_scalars);
    seat->number = t->prepared_number;
    seat->prepared = prepared;
    return seat;
}

/* The thread's for this template; NULL: it has none. */
static Seat *own_seat_take(Evaluation *e, const Template *t)
{
    Seat **place = &e->seats[t->prepared_number % EVALUATION_SEATS], *seat = *place;
    if (!seat || seat->number != t->prepared_number)
        return NULL;
    *place = NULL;
    return seat;
}

static void own_seat_give(Evaluation *e, Seat *seat)
{
    Seat **place = &e->seats[seat->number % EVALUATION_SEATS];
    if (*place)
        seat_free(*place);
    *place = seat;
}

static Seat *seat_take(Evaluation *e, Template *t, const CacheHit *hit)
{
    Seat *seat = own_seat_take(e, t);
    if (!seat && (seat = t->idle))
        t->idle = seat->next;
    return seat ? seat : seat_new(t, hit);
}

/* What it is prepared for may have gone meanwhile. */
static void seat_give(Evaluation *e, Template *t, Seat *seat)
{
    if (seat->number != t->prepared_number || t->dropped) {
        seat_free(seat);
    } else if (eval_own_used()) {
        own_seat_give(e, seat);
    } else {
        seat->next = t->idle;
        t->idle = seat;
    }
}

/* The results as nodes, seat->values[i] with a reference each. On failure there are neither nodes nor results. */
static Status make_values(const Template *t, Seat *seat, kiln_tensor *const *in, bool tracked)
{
    const Call *call = &t->call;
    for (size_t k = 0; k < call->outputs.n; k++) {
        seat->fresh[k] = computed_node(call->nodes.at[call->outputs.at[k]], seat->results[k], tracked, seat->loc);
        if (seat->fresh[k])
            continue;
        for (size_t j = k; j < call->outputs.n; j++)
            storage_release(seat->results[j].storage);
        while (k-- > 0)
            node_release(seat->fresh[k]);
        return ST_OUT_OF_MEMORY;
    }
    for (uint32_t i = 0; i < t->n_results; i++) {
        const Source *s = &t->results[i];
        seat->values[i] = now_of(s, in, seat->fresh);
        if (s->kind != FROM_RESULT || !s->first) /* else the node's first reference */
            node_retain(seat->values[i]);
    }
    return ST_OK;
}

static Status hand_out_values(const Template *t, Seat *seat, kiln_tensor **out)
{
    for (uint32_t i = 0; i < t->n_results; i++) {
        out[i] = tensor_new(seat->values[i]);
        if (out[i])
            continue;
        for (uint32_t j = i + 1; j < t->n_results; j++)
            node_release(seat->values[j]);
        memset(out, 0, sizeof *out * t->n_results);
        return ST_OUT_OF_MEMORY;
    }
    return ST_OK;
}

/* For kiln_last_call: once, where the same function is called again and again. */
static Status record_prepared(Evaluation *e, const Template *t, const CacheHit *hit)
{
    record_begin(e);
    record_source(e, KILN_CALL_MEMORY);
    e->record.why_not = "the arguments of a kiln_function have handles";
    TRY(record_program(e, hit->program, hit->sizes));
    e->record.prepared = t->prepared_number;
    return ST_OK;
}

/* The program that record_prepared recorded, on the template's call with what is at hand. */
static Status launch_seat(Evaluation *e, const Template *t, const Seat *seat)
{
    const CallPart *part = &e->record.parts.at[0];
    uint32_t fault_node = NO_FAULT_NODE;
    Call call = t->call;
    call.nodes.at = seat->nodes;
    call.scalars.at = seat->scalars;
    call.facts.scalars = seat->scalars;
    TRY(evaluation_begin(e, "kiln_function_call", seat->loc));
    Status status = launch(e, part->program, e->record.sizes.at + part->sizes, &call, NULL, &fault_node);
    if (status == ST_INDEX && fault_node != NO_FAULT_NODE)
        status = call_index_failed(&call, fault_node);
    if (status == ST_OK)
        memcpy(seat->results, e->results.at, sizeof *seat->results * call.outputs.n);
    return status;
}

/* Runs on a seat that has its inputs. */
static Status run_seat(Evaluation *e, const Template *t, Seat *seat, kiln_tensor *const *in, kiln_tensor **out, bool tracked)
{
    const CallPart *part = &e->record.parts.at[0];
    const Program *p = part->program;
    const size_t n = t->call.inputs.n;
    const bool prepared = seat->prepared && (!p->n_constants || constants_find(e, p, e->record.sizes.at + part->sizes, seat->storage,
                                                                               seat->pointers, seat->scalars, seat->pointers + n));
    Status status = prepared ? prepared_run(e, seat->prepared, seat->pointers, seat->scalars, seat->results) : launch_seat(e, t, seat);
    if (prepared && p->n_constants)
        constants_let_go(e);
    TRY(status);
    TRY(make_values(t, seat, in, tracked));
    return hand_out_values(t, seat, out);
}

/* Is it of use to let others go on meanwhile? */
static bool takes_long(const Seat *seat) { return !seat->prepared || prepared_seconds(seat->prepared) >= CONCURRENT_SECONDS; }

/* Results that are arguments or captured tensors are those of the moment at which the inputs were read. */
static bool makes_all(const Template *t)
{
    bool made = true;
    for (uint32_t i = 0; i < t->n_results && made; i++)
        made = t->results[i].kind == FROM_RESULT;
    return made;
}

/*
 * Concurrently. The program is held by the evaluation's record, the template by its number of users. The inputs are held, too, not only for the case
 * that nobody else does at the end: an argument or a captured tensor may be assigned to by another thread, and what its value is made into be
 * computed in place.
 */
static Status run_seat_concurrently(Evaluation *e, Template *t, Seat *seat, kiln_tensor *const *in, kiln_tensor **out, bool tracked)
{
    EvalConcurrent place;
    for (size_t i = 0; i < t->call.inputs.n; i++)
        node_retain(seat->inputs[i]);
    t->users++;
    e->concurrent = true;
    eval_concurrent_begin(&place, 0, NULL);
    Status status = run_seat(e, t, seat, in, out, tracked);
    eval_concurrent_end(&place);
    e->concurrent = false;
    t->users--;
    for (size_t i = 0; i < t->call.inputs.n; i++)
        node_release(seat->inputs[i]);
    return status;
}

/* Puts in the inputs. false: some are not as they were. */
static bool fill_seat(const Template *t, Seat *seat, kiln_tensor *const *in, bool *tracked)
{
    const Call *call = &t->call;
    *tracked = false;
    for (size_t i = 0; i < call->inputs.n; i++) {
        RtNode *node = now_of(&t->inputs[i], in, NULL);
        *tracked |= node->tracked;
        if (node_pending(node) || !same_kind(&t->inputs[i], node, call->nodes.at[call->inputs.at[i]]))
            return false;
        if (seat->nodes) {
            seat->nodes[call->inputs.at[i]] = node;
            seat->storage[i] = atomic_load(&node->storage);
        }
        seat->pointers[i] = node->data;
        seat->inputs[i] = node;
    }
    for (uint32_t i = 0; i < t->n_results; i++)
        if (weak_argument(&t->results[i], in))
            return false;
    return true;
}

/* What comes before a run of the seat. */
static Status begin_repeat(Evaluation *e, const Template *t, Seat *seat, const CacheHit *hit, Loc loc)
{
    seat->loc = loc;
    put_draws(t, t->drawn ? random_advance(t->drawn) : 0, seat->scalars);
    stat_add(STAT_EVALS, 1);
    stat_add(STAT_HITS, 1);
    return e->record.prepared == t->prepared_number ? ST_OK : record_prepared(e, t, hit);
}

/*
 * The way of nearly every call: the program is known and prepared, nothing is assigned, nobody looks. Inputs are never overwritten: the
 * arguments and captured tensors have handles.
 */
bool template_repeat(Evaluation *e, Template *t, kiln_tensor *const *in, kiln_tensor **out, Loc loc, Status *status)
{
    CacheHit hit;
    Seat *seat;
    bool tracked;
    if (!t->repeats || t->replaying || !cache_recall(&t->memo, &hit) || hit.variant != t->prepared_variant ||
        t->memo.generation != t->prepared_generation || background_done() || e->busy || eval_told() || !same_device(t) ||
        !template_holds(t) || !(seat = seat_take(e, t, &hit)))
        return false;
    if (!fill_seat(t, seat, in, &tracked)) {
        seat_give(e, t, seat);
        return false;
    }
    *status = begin_repeat(e, t, seat, &hit, loc);
    if (*status == ST_OK)
        *status = takes_long(seat) && eval_concurrent_possible() && makes_all(t) ? run_seat_concurrently(e, t, seat, in, out, tracked)
                                                                                 : run_seat(e, t, seat, in, out, tracked);
    launch_count(e);
    seat_give(e, t, seat);
    if (t->dropped)
        template_drop(t);
    return true;
}

/* As run_seat_concurrently, inside before and after. */
static Status run_seat_own(Evaluation *e, Template *t, Seat *seat, kiln_tensor *const *in, kiln_tensor **out, bool tracked)
{
    if (!BUF_RESERVE(e->let_go, t->call.inputs.n + 1))
        return ST_OUT_OF_MEMORY;
    for (size_t i = 0; i < t->call.inputs.n; i++)
        e->let_go.at[e->let_go.n++] = node_retain(seat->inputs[i]);
    e->concurrent = true;
    eval_own_run(e->own, evaluation_next_number(e));
    Status status = run_seat(e, t, seat, in, out, tracked);
    eval_own_ran(e->own);
    e->concurrent = false;
    return status;
}

bool template_repeat_own(Evaluation *e, Template *t, kiln_tensor *const *in, kiln_tensor **out, Loc loc, Status *status, bool *dropped)
{
    CacheHit hit;
    bool tracked;
    Seat *seat = t->repeats && !t->replaying ? own_seat_take(e, t) : NULL;
    if (!seat)
        return false;
    bool runs = takes_long(seat);
    if (background_done() || !same_device(t) || !template_holds(t) || (runs && !makes_all(t)) || !fill_seat(t, seat, in, &tracked) ||
        !cache_recall_again(&e->own->cache, &t->memo, &hit) || hit.variant != t->prepared_variant ||
        t->memo.generation != t->prepared_generation) {
        own_seat_give(e, seat);
        return false;
    }
    atomic_store_explicit(&e->own->repeats, t, memory_order_release);
    if (!atomic_load_explicit(&t->repeated, memory_order_relaxed)) /* others read what lies around it */
        atomic_store_explicit(&t->repeated, true, memory_order_relaxed);
    *status = begin_repeat(e, t, seat, &hit, loc);
    if (*status == ST_OK)
        *status = runs ? run_seat_own(e, t, seat, in, out, tracked) : run_seat(e, t, seat, in, out, tracked);
    launch_count(e);
    own_seat_give(e, seat);
    *dropped = t->dropped;
    if (!t->dropped)
        atomic_store_explicit(&e->own->repeats, NULL, memory_order_release);
    return true;
}

void template_release_own(Evaluation *e, Template *t)
{
    eval_lock();
    atomic_store(&e->own->repeats, NULL);
    template_drop(t);
    eval_unlock();
}

/* After a call the long way: prepares what it remembered, once for each program. Not while launches are counted; setting that option ends the
 * template. Nor what calls functions of the user's or of other processes: they may wait for whoever comes next. */
static void prepare(Evaluation *e, Template *t)
{
    CacheHit hit;
    if (perf_counted() || t->n_assigned || !t->call.outputs.n || !cache_recall(&t->memo, &hit) || program_calls(hit.program) ||
        (t->prepared_variant == hit.variant && t->prepared_generation == t->memo.generation))
        return;
    seats_free(t);
    t->prepared_number = evaluation_next_number(e);
    t->idle = seat_new(t, &hit);
    t->repeats = t->idle != NULL;
    t->prepared_variant = hit.variant;
    t->prepared_generation = t->memo.generation;
}

Status template_replay(Evaluation *e, Template *t, kiln_tensor *const *in, kiln_tensor **out, int n_out, uint64_t base, Loc loc,
                       bool *retrace)
{
    if (t->replaying) /* a deleter calls the function that lets the memory go */
        return fail(ST_INVALID, "a deleter may not compute values");
    *retrace = !template_holds(t);
    if (*retrace)
        return ST_OK;
    Replay r = {.t = t};
    t->replaying = true;
    Status status = replay_begin(&r, in, base, retrace);
    if (status == ST_OK && !*retrace)
        status = replay_serve(e, &r, (uint32_t)n_out, loc);
    if (status == ST_OK && !*retrace)
        status = template_hand_out(t->values, out, n_out);
    replay_end(&r);
    for (uint32_t i = 0; i < t->n_assigned && status == ST_OK && !*retrace; i++)
        status = param_assigned(t->assigned[i]);
    if (status == ST_OK && !*retrace)
        prepare(e, t);
    return status;
}

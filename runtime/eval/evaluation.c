/* The life of an Evaluation (runtime/evaluation.h): one for each thread, from its first sync point to its end. */
#include "runtime/evaluation.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/eval/perf.h"
#include "runtime/eval/traced.h"
#include "runtime/function/template.h"
#include "runtime/record/thread.h"

static atomic_uint alive;

unsigned evaluations_of_threads(void) { return atomic_load_explicit(&alive, memory_order_relaxed); }

void evaluations_forked(void) { atomic_store(&alive, rt_thread()->evaluation != NULL); }

static Evaluation *evaluation_new(void)
{
    Evaluation *e = os_calloc(1, sizeof *e);
    if (!e) {
        (void)fail(ST_OUT_OF_MEMORY, "no memory for evaluating");
        return NULL;
    }
    atomic_fetch_add(&alive, 1);
    e->own = eval_own_new(); /* NULL: it evaluates under the lock */
    return e;
}

Evaluation *evaluation_of_thread(void)
{
    RtThread *thread = rt_thread();
    if (!thread->evaluation)
        thread->evaluation = evaluation_new();
    return thread->evaluation;
}

void evaluation_end_thread(RtThread *thread)
{
    Evaluation *e = thread->evaluation;
    thread->evaluation = NULL;
    if (!e)
        return;
    void *rooms[] = {e->call.nodes.at,       e->call.outputs.at,  e->call.inputs.at,   e->call.structure.at, e->call.signature.at,
                     e->call.ints.at,        e->call.scalars.at,  e->stack.at,         e->used.at,           e->given.at,
                     e->donated.at,          e->output.at,        e->going.at,         e->user.at,           e->uses.at,
                     e->results.at,          e->address.at,       e->args.at,          e->let_go.at,         e->foreign.at,
                     e->slot_offset.at,      e->host.at,          e->scratch,          e->results_held.at,   e->constants.at,
                     e->constant_storage.at, e->constant_data.at, e->constant_words.at};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        os_free(rooms[i]);
    record_end_thread(e);
    seats_end_thread(e);
    cuda_run_free(e->cuda);
    eval_own_free(e->own);
    os_free(e);
    atomic_fetch_sub(&alive, 1);
}

/* The options are read anew only when one was set. */
Status evaluation_begin(Evaluation *e, const char *api, Loc loc)
{
    if (e->busy)
        return fail(ST_INVALID, "a deleter may not compute values");
    options_init();
    if (!e->options_read || e->generation != options_generation()) {
        e->generation = options_generation();
        options_snapshot(&e->options);
        e->options_read = true;
    }
    e->number = evaluation_next_number(e);
    e->api = api;
    e->loc = loc;
    e->refused = false;
    e->entry[0] = '\0';
    e->perf_began = perf_counted() ? os_seconds() : 0;
    if (timeline_on())
        traced_recorded();
    e->traced = timeline_begin();
    return ST_OK;
}

enum { NUMBERS = 1024 };

/* A thread takes NUMBERS at a time. Their multiples are left out, so that there is no 0 when they begin anew after 2^32. */
uint32_t evaluation_next_number(Evaluation *e)
{
    static atomic_uint taken;
    if (e->taken == 0 || (e->taken + 1) % NUMBERS == 0)
        e->taken = atomic_fetch_add_explicit(&taken, NUMBERS, memory_order_relaxed);
    return ++e->taken;
}

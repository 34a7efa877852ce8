/*
 * Pending faults: indices that are out of bounds on a CUDA device, loops that it ran up to their bound. They are known only when the values are, and reported to whoever
 * wants the values, as device-side assertions are.
 *
 * A kernel clamps such an index, so it stays inside its arrays, and leaves a number in a word of
 * pinned host memory. Nobody waits for that: the storages of the results refer to a CudaFault, and
 * so do those of all that is computed from them. Whoever waits for a value (reading, kiln_wait, a
 * copy to another device) looks at the words behind it then and fails with the function's name and
 * place; nobody else does.
 *
 *   storage --> CudaFault { event, word, what each number means } --> faults of the inputs that are
 *                                                                     pending
 *
 * A CudaFault goes when the last storage does that refers to it. It is used again once its event was
 * reached: no kernel writes its word any more. An error in it that nobody asked about is a warning
 * then, so none is lost.
 *
 * They never change while they are referred to, but for `state`, so they are settled in any
 * thread without a lock. How deep they refer to each other is bounded: the host waits when it is
 * DEPTH programs ahead.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/cuda/cuda.h"

#include <string.h>

enum { DEPTH = 64, WORDS = 512 };
enum { PENDING, CLEAR, REPORTED }; /* not known; there is none; there is one, and somebody was told */

struct CudaFault {
    CudaFault *next; /* retired, a younger one */
    CudaDevice *device;
    atomic_uint refs;
    atomic_int state;
    _Atomic int64_t *word; /* 0, or the number of a place, counted from 1. Under unified addressing
                              the device sees it there, too */
    CuEvent event;         /* the run is done */
    uint32_t n_from, depth;
    CudaFault *from[FAULT_INPUTS];
    BUF(IndexPlace) places;
    BUF(char) files; /* copies of their names: the plugin that one lies in may be unloaded */
};

/* --- settling ------------------------------------------------------------------------------ */

/* Are the values right? *settled = false: not known yet, which happens without `wait` only.
 * ST_INDEX: no. The device's context is current. */
static Status settle(CudaFault *x, bool wait, bool *settled)
{
    *settled = true;
    if (atomic_load(&x->state) == CLEAR)
        return ST_OK;
    bool all = true;
    for (uint32_t i = 0; i < x->n_from; i++) { /* the first cause comes first */
        TRY(settle(x->from[i], wait, settled));
        all &= *settled;
    }
    CuResult result = wait ? cuda.event_synchronize(x->event) : cuda.event_query(x->event);
    *settled = all && result != CU_NOT_READY;
    if (result == CU_NOT_READY)
        return ST_OK;
    TRY(cuda_check(x->device, result, "waiting for the device"));
    int64_t number = atomic_load(x->word);
    if (number > 0 && (size_t)number <= x->places.n) {
        atomic_store(&x->state, REPORTED);
        return index_failed(&x->places.at[number - 1], NULL);
    }
    if (all)
        atomic_store(&x->state, CLEAR);
    return ST_OK;
}

Status cuda_fault_settle(const Storage *storage)
{
    bool settled;
    return storage->fault ? settle(storage->fault, true, &settled) : ST_OK;
}

/* --- making and giving back ----------------------------------------------------------------- */

void cuda_fault_release(CudaFault *x)
{
    if (!x || atomic_fetch_sub(&x->refs, 1) != 1 || cuda_forked())
        return;
    while (x->n_from > 0)
        cuda_fault_release(x->from[--x->n_from]);
    CudaDevice *d = x->device;
    x->next = NULL;
    pthread_mutex_lock(&d->lock);
    *(d->last_fault ? &d->last_fault->next : &d->first_fault) = x;
    d->last_fault = x;
    pthread_mutex_unlock(&d->lock);
}

static CudaFault *retain(CudaFault *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

/* A word of pinned memory, never given back. */
static Status new_word(CudaDevice *d, _Atomic int64_t **word)
{
    void *words;
    CuResult result = 0;
    pthread_mutex_lock(&d->lock);
    if (d->n_words == 0 && (result = cuda.host_alloc(&words, WORDS * sizeof **word, CU_PORTABLE | CU_MAPPED)) == 0) {
        d->words = words;
        d->n_words = WORDS;
    }
    if (d->n_words)
        *word = &d->words[--d->n_words];
    pthread_mutex_unlock(&d->lock);
    return cuda_check(d, result, "allocating pinned memory");
}

static Status make(CudaDevice *d, CudaFault **out)
{
    CudaFault *x = os_calloc(1, sizeof *x);
    if (!x)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    x->device = d;
    Status status = new_word(d, &x->word);
    if (status == ST_OK)
        status = cuda_check(d, cuda.event_create(&x->event, CU_NO_TIMING), "making an event");
    if (status != ST_OK) {
        os_free(x);
        return status;
    }
    *out = x;
    return ST_OK;
}

/* The one that was retired first, if its run is done; else NULL. */
static CudaFault *take_retired(CudaDevice *d)
{
    pthread_mutex_lock(&d->lock);
    CudaFault *x = d->first_fault;
    if (x && cuda.event_query(x->event) == 0) {
        d->first_fault = x->next;
        if (!x->next)
            d->last_fault = NULL;
    } else {
        x = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    return x;
}

/* What was wrong and nobody asked about. */
static void warn_untold(const CudaFault *x)
{
    int64_t number = atomic_load(x->word);
    if (number > 0 && (size_t)number <= x->places.n && atomic_load(&x->state) == PENDING) {
        (void)index_failed(&x->places.at[number - 1], NULL);
        log_warn("%s; nobody read what was computed with it", fail_message());
    }
}

static Status fresh(CudaDevice *d, CudaFault **out)
{
    CudaFault *x = take_retired(d);
    if (x)
        warn_untold(x);
    else
        TRY(make(d, &x));
    atomic_store(x->word, 0);
    atomic_store(&x->state, PENDING);
    atomic_store(&x->refs, 1);
    x->n_from = x->depth = 0;
    x->places.n = 0;
    *out = x;
    return ST_OK;
}

/* --- a run --------------------------------------------------------------------------------- */

Status cuda_fault_input(CudaRun *run, const Storage *storage)
{
    CudaFault *x = storage->fault;
    bool settled;
    for (uint32_t i = 0; i < run->n_inputs && x; i++)
        if (run->inputs[i] == x)
            return ST_OK;
    if (!x)
        return ST_OK;
    TRY(settle(x, run->n_inputs == FAULT_INPUTS || x->depth >= DEPTH, &settled));
    if (!settled)
        run->inputs[run->n_inputs++] = retain(x);
    return ST_OK;
}

/* What each number of a fresh fault means. */
static bool set_places(CudaFault *x, const IndexPlace *places, uint32_t n)
{
    size_t bytes = 0;
    if (!BUF_RESERVE(x->places, n))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        x->places.at[i] = places[i];
        bytes += x->places.at[i].loc.file ? strlen(x->places.at[i].loc.file) + 1 : 0;
    }
    if (!BUF_RESERVE(x->files, bytes))
        return false;
    char *to = x->files.at;
    for (uint32_t i = 0; i < n; i++) {
        const char **file = &x->places.at[i].loc.file;
        size_t length = *file ? strlen(*file) + 1 : 0;
        if (*file) { /* else there may be no room at all */
            *file = memcpy(to, *file, length);
            to += length;
        }
    }
    x->places.n = n;
    return true;
}

Status cuda_fault_own(CudaRun *run, const IndexPlace *places, uint32_t n, void **word)
{
    CudaFault *x;
    TRY(fresh(run->device, &x));
    if (!set_places(x, places, n)) {
        cuda_fault_release(x);
        return ST_OUT_OF_MEMORY;
    }
    run->own = x;
    *word = x->word;
    return ST_OK;
}

Status cuda_run_settle(CudaRun *run)
{
    CudaFault *x = run->own;
    if (!x)
        return ST_OK;
    TRY(cuda_check(run->device, cuda.stream_synchronize(run->stream->stream), "waiting for the device"));
    int64_t number = atomic_load(x->word);
    if (number <= 0 || (size_t)number > x->places.n)
        return ST_OK;
    atomic_store(&x->state, REPORTED);
    return index_failed(&x->places.at[number - 1], NULL);
}

/* From now on the event tells when nothing that is queued can write the word any more; if that fails, nothing can when this returns. */
static CuResult end_writes(const CudaRun *run, const CudaFault *x)
{
    CuResult result = cuda.event_record(x->event, run->stream->stream);
    if (result != 0)
        cuda.stream_synchronize(run->stream->stream);
    return result;
}

/* The run's own, with those of its inputs behind it. */
static Status join(CudaRun *run, CudaFault *x)
{
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        x->from[x->n_from++] = run->inputs[i];
        x->depth = run->inputs[i]->depth >= x->depth ? run->inputs[i]->depth + 1 : x->depth;
    }
    run->n_inputs = 0;
    return cuda_check(run->device, end_writes(run, x), "recording an event");
}

Status cuda_fault_results(CudaRun *run, CudaFault **out)
{
    bool settled;
    *out = NULL;
    if (!run->own && run->n_inputs == 0)
        return ST_OK;
    CudaFault *x = run->own;
    Status status = ST_OK;
    if (!run->own && run->n_inputs == 1) {
        x = run->inputs[0];
        run->n_inputs = 0;
    } else {
        if (!run->own)
            TRY(fresh(run->device, &x));
        run->own = NULL;
        status = join(run, x);
    }
    if (status == ST_OK && option_int(OPT_SYNC))
        status = settle(x, true, &settled);
    if (status == ST_OK)
        *out = x;
    else
        cuda_fault_release(x);
    return status;
}

void cuda_fault_set(Storage *storage, CudaFault *x)
{
    CudaFault *before = storage->fault;
    storage->fault = x ? retain(x) : NULL;
    cuda_fault_release(before);
}

void cuda_fault_drop(CudaRun *run)
{
    if (run->own)
        end_writes(run, run->own);
    cuda_fault_release(run->own);
    run->own = NULL;
    while (run->n_inputs > 0)
        cuda_fault_release(run->inputs[--run->n_inputs]);
}

/*
 * Running a program: bind its arguments to the buffers of a call and launch its steps.
 *
 *   buffers   inputs as they lie; outputs fresh, or an input's storage that nothing else needs; temporaries in one block,
 *             cut into slots (buffers whose lifetimes do not meet share one)
 *   args      one 8-byte slot each: pointers, sizes, scalars; sizes were evaluated by the cache look-up, what is made of scalars
 *             alone is computed here
 *   steps     in order; each one's tasks go to the thread pool when they are worth it
 */
#include "runtime/eval/frame.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/api/stats.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/eval/constants.h"
#include "runtime/eval/perf.h"
#include "runtime/eval/pool.h"
#include "runtime/eval/traced.h"
#include "runtime/record/record.h"

#include <string.h>

enum { SLOT_ALIGN = LAUNCH_ALIGN };

/* SIZE_MAX stays. */
size_t launch_aligned(size_t bytes)
{
    return bytes > SIZE_MAX - SLOT_ALIGN ? SIZE_MAX : (bytes + SLOT_ALIGN - 1) & ~(size_t)(SLOT_ALIGN - 1);
}

/* SIZE_MAX: more than that, which no memory has. */
size_t buffer_bytes(const ProgBuffer *b, const int64_t *sizes)
{
    size_t bytes;
    return __builtin_mul_overflow((size_t)sizes[b->numel], dtype_bytes((DType)b->dtype), &bytes) ? SIZE_MAX : bytes;
}

/* --- buffers ---------------------------------------------------------------------------------------------------- */

size_t launch_slots(const Program *p, const int64_t *sizes, size_t *offset)
{
    size_t total = 0;
    memset(offset, 0, sizeof *offset * p->n_slots);
    for (uint32_t i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].kind == BUFFER_TEMP) {
            size_t bytes = launch_aligned(buffer_bytes(&p->buffers[i], sizes));
            if (bytes > offset[p->buffers[i].slot])
                offset[p->buffers[i].slot] = bytes;
        }
    for (uint32_t s = 0; s < p->n_slots; s++) {
        size_t bytes = offset[s];
        offset[s] = total;
        total = bytes > SIZE_MAX - total ? SIZE_MAX : total + bytes;
    }
    return total;
}

size_t launch_place(const ProgBuffer *b, const int64_t *sizes, const size_t *offset)
{
    const size_t inside = b->offset == NO_OFFSET ? 0 : (size_t)sizes[b->offset] * dtype_bytes((DType)b->dtype);
    return offset[b->slot] + inside;
}

static Status place_temps(Run *run)
{
    const Program *p = run->p;
    if (p->n_slots == 0)
        return ST_OK;
    if (!BUF_RESERVE(run->e->slot_offset, p->n_slots + 1))
        return ST_OUT_OF_MEMORY;
    return storage_new_on(run->device, launch_slots(p, run->sizes, run->e->slot_offset.at), &run->temps);
}

static const RtNode *input_node(const Run *run, uint32_t index) { return run->call->nodes.at[run->call->inputs.at[index]]; }

/* The result is an input as it lies: its storage is shared. Borrowed memory may change later (kiln_touch), so it is copied. */
static Status share_input(const RtNode *input, Result *result)
{
    Storage *storage = atomic_load(&input->storage);
    result->data = input->data;
    if (!storage->borrowed) {
        result->storage = storage_retain(storage);
        return ST_OK;
    }
    size_t bytes = (size_t)node_elements(input) * dtype_bytes((DType)input->dtype);
    TRY(storage_new_on(storage->device, bytes, &result->storage));
    result->data = result->storage->data;
    return device_copy(storage, input->data, result->storage, bytes);
}

static Status reserve(Run *run)
{
    Evaluation *e = run->e;
    if (!BUF_RESERVE(e->args, run->p->max_step_args + 1) || !BUF_RESERVE(e->address, run->p->n_buffers + 1))
        return ST_OUT_OF_MEMORY;
    if (!BUF_RESERVE(e->host, run->p->n_host + 1))
        return ST_OUT_OF_MEMORY;
    run->args = e->args.at;
    run->address = e->address.at;
    run->host = e->host.at;
    return ST_OK;
}

/* Why an input that a program could overwrite stays as it is. */
static const char *kept_because(const RtNode *input, bool ran)
{
    const Storage *storage = atomic_load(&input->storage);
    if (!ran)
        return "its kernels have not run on this device yet, and might fail";
    if (storage->borrowed)
        return "its memory belongs to the program or was handed out (kiln_wrap, kiln_data)";
    if (input->strided)
        return "it is strided";
    if (atomic_load(&storage->refs) != 1)
        return "another value shares its memory";
    return "a handle or a recorded value still means it: kiln_assign lets go of the old value, ending a scope of those that it owns";
}

static const char no_input[] = "no input of its dtype and size is read for the last time where it is written";

static Status bind_buffers(Run *run, const bool *donated, bool ran, Result *results)
{
    const Program *p = run->p;
    TRY(reserve(run));
    TRY(place_temps(run));
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const ProgBuffer *b = &p->buffers[i];
        switch ((BufferKind)b->kind) {
        case BUFFER_INPUT: run->address[i] = b->index < p->n_inputs ? input_node(run, b->index)->data : NULL; break; /* constants_begin */
        case BUFFER_TEMP: run->address[i] = (char *)run->temps->data + launch_place(b, run->sizes, run->e->slot_offset.at); break;
        case BUFFER_OUTPUT:
        case BUFFER_BAND: run->address[i] = NULL; break; /* the latter: launch_band.c */
        }
    }
    for (uint32_t k = 0; k < p->n_outputs; k++) {
        const ProgBuffer *b = &p->buffers[p->outputs[k]];
        Result *result = &results[k];
        if (b->kind == BUFFER_INPUT && b->index >= p->n_inputs) { /* bind_constants */
            continue;
        } else if (b->kind == BUFFER_INPUT) {
            TRY(share_input(input_node(run, b->index), result));
            continue;
        } else if (run->address[p->outputs[k]]) { /* two outputs, one value */
            uint32_t first = 0;
            while (p->outputs[first] != p->outputs[k])
                first++;
            result->storage = storage_retain(results[first].storage);
        } else if (donated && b->alias_input != NO_BUFFER && donated[b->alias_input]) {
            const RtNode *input = input_node(run, b->alias_input);
            result->storage = storage_retain(atomic_load(&input->storage));
            run->address[p->outputs[k]] = input->data;
            run->e->record.in_place++;
        } else {
            if (!run->e->record.why_not)
                run->e->record.why_not = b->alias_input == NO_BUFFER ? no_input : kept_because(input_node(run, b->alias_input), ran);
            TRY(storage_new_on(run->device, buffer_bytes(b, run->sizes), &result->storage));
            run->address[p->outputs[k]] = result->storage->data;
        }
        result->data = run->address[p->outputs[k]];
    }
    return ST_OK;
}

/* What was made once is there, or made now. A result may be such a value: it shares its memory. */
static Status bind_constants(Run *run, Result *results)
{
    const Program *p = run->p;
    TRY(constants_begin(run));
    for (uint32_t k = 0; k < p->n_outputs && p->n_constants; k++) {
        const ProgBuffer *b = &p->buffers[p->outputs[k]];
        if (b->kind != BUFFER_INPUT || b->index < p->n_inputs)
            continue;
        results[k].storage = storage_retain(constants_storage(run, b->index - p->n_inputs));
        results[k].data = results[k].storage->data;
    }
    return ST_OK;
}

/* What was made of the values of inputs that were overwritten. */
static void forget_overwritten(const Run *run, const bool *donated)
{
    for (size_t i = 0; donated && i < run->call->inputs.n; i++)
        if (donated[i])
            constants_forget(atomic_load(&((RtNode *)(uintptr_t)input_node(run, (uint32_t)i))->storage));
}

/* The scalars that are computed here and now (jit/host_scalars.h), before anything has run that could not be taken back. */
Status run_host(const Run *run)
{
    const Program *p = run->p;
    if (!p->n_host)
        return ST_OK;
    bool made = host_scalars_run(p->host, p->n_host, (MathMode)p->math, run->call->facts.scalars, run->host);
    return made ? ST_OK : fail(ST_OUT_OF_MEMORY, "no memory for computing scalars");
}

void bind_args(Run *run, const ProgStep *step)
{
    for (uint32_t i = 0; i < step->n_args; i++) {
        const ProgArg *arg = &run->p->args[step->first_arg + i];
        void **slot = &run->args[i];
        switch ((BindKind)arg->kind) {
        case BIND_BUFFER: *slot = run->address[arg->value]; break;
        case BIND_SIZE: memcpy(slot, &run->sizes[arg->value], sizeof *slot); break;
        case BIND_SCALAR: memcpy(slot, &run->call->facts.scalars[arg->value], sizeof *slot); break;
        case BIND_HOST: memcpy(slot, &run->host[arg->value], sizeof *slot); break;
        case BIND_SHARED:
        case BIND_SPANS:
        case BIND_NONE: *slot = NULL; break; /* the first: bind_shared; spans: run_rows */
        case BIND_FAULT: *slot = run->fault_word; break;
        }
    }
}

/* --- steps --------------------------------------------------------------------------------------------------------- */

/* Waits for those collectives in the air that the step has to wait for, and for those before them. A kernel has, if it touches what they
 * read or write; and since they may fail, nothing is overwritten meanwhile. */
static Status land_for(Run *run, const ProgStep *step)
{
    Evaluation *e = run->e;
    bool all = step->kind != STEP_KERNEL && step->kind != STEP_CALL; /* a call knows by itself, or is a function that is not waited for */
    uint32_t wanted = 0;
    for (uint32_t a = 0; a < step->n_args && e->n_flights; a++) {
        const ProgArg *arg = &run->p->args[step->first_arg + a];
        if (arg->kind != BIND_BUFFER)
            continue;
        const ProgBuffer *b = &run->p->buffers[arg->value];
        const void *at = run->address[arg->value];
        all |= b->kind == BUFFER_OUTPUT && b->alias_input != NO_BUFFER;
        for (uint32_t k = wanted; k < e->n_flights; k++)
            wanted = at == e->flight[k].in || at == e->flight[k].out ? k + 1 : wanted;
    }
    return comm_land(e, all ? 0 : e->n_flights - wanted);
}

Status run_step(Run *run, const ProgStep *step)
{
    if (run->e->n_flights)
        TRY(land_for(run, step));
    if (step->n_bodies) { /* the kernels in it are launched, timed and counted */
        bind_args(run, step);
        return run_bodies(run, step);
    }
    const Launcher *on = run->kind->launcher;
    const bool timed = run_timed(run);
    const int64_t bytes = run->sizes[step->bytes];
    if (timed) {
        run->last = (Launched){.program = run->whole,
                               .what = step->what,
                               .bytes = bytes,
                               .work = step_work(run->p, step, run->sizes),
                               .device = run->device,
                               .known = step->kind == STEP_KERNEL};
        on->timed(run);
    }
    const int64_t began = run_traced(run);
    bind_args(run, step);
    if (began)
        pool_name_work(step->what);
    const bool counted = timed && perf_counted() && !on->clocked;
    if (counted)
        events_begin();
    double start = timed ? os_seconds() : 0;
    switch ((StepKind)step->kind) {
    case STEP_KERNEL: TRY(on->kernel(run, step)); break;
    case STEP_SORT: TRY(host_sort(run, step)); break;
    case STEP_LOOP:
    case STEP_COND: break;
    case STEP_CALL: TRY(run_call(run, step)); break;
    }
    double seconds = timed ? os_seconds() - start : 0;
    if (counted)
        events_end(&run->last.counted);
    run->e->launches++;
    run->e->moved += bytes;
    if (timed && !on->clocked)
        perf_launched(&run->last, seconds);
    if (began)
        traced_launch(run->e, &run->last, began);
    return ST_OK;
}

Status run_steps(Run *run)
{
    const Program *p = run->p;
    const ProgBand *band = p->bands, *end = p->bands + p->n_bands;
    for (uint32_t i = 0; i < p->n_steps && !run->fault; i++) {
        if (i == run->overwrites)
            TRY(run->kind->launcher->overwrites(run)); /* nothing is lost to what turned out to be wrong */
        if (band < end && band->first == i) {
            for (uint32_t k = 0; k < band->n && run->e->n_flights; k++)
                TRY(land_for(run, &p->steps[i + k]));
            TRY(run_band(run, band));
            i += band++->n - 1;
        } else {
            TRY(run_step(run, &p->steps[i]));
        }
    }
    return ST_OK;
}

/* KILN_LOG=memory: which results lie where an input lay, and why the others do not. */
static void tell_overwriting(const Run *run, const bool *donated, bool ran)
{
    for (uint32_t k = 0; k < run->p->n_outputs; k++) {
        const ProgBuffer *b = &run->p->buffers[run->p->outputs[k]];
        if (b->kind != BUFFER_OUTPUT)
            continue;
        if (b->alias_input == NO_BUFFER) {
            log_line(LOG_MEMORY, "output %u has memory of its own: %s", k, no_input);
            continue;
        }
        const RtNode *input = input_node(run, b->alias_input);
        char shape[SHAPE_TEXT];
        bool over = donated && donated[b->alias_input];
        log_line(LOG_MEMORY, "output %u %s input %u, %s recorded at %s:%d%s%s", k, over ? "overwrites" : "does not overwrite",
                 b->alias_input, node_text(input, shape), input->loc.file ? input->loc.file : "?", input->loc.line,
                 over ? ", in place" : ": ", over ? "" : kept_because(input, ran));
    }
}

static Status run_launching(Run *run)
{
    Evaluation *e = run->e;
    e->launching = true;
    e->ordered = false;
    Status status = run_steps(run);
    if (status == ST_OK)
        status = comm_flush(e);
    while (e->n_flights) {
        Status landed = comm_land(e, e->n_flights - 1);
        status = status == ST_OK ? landed : status;
    }
    e->launching = false;
    return status;
}

/* What something outside may write to for ever: under the evaluation lock. */
typedef struct Lent {
    struct Lent *next;
    Storage *storage;
} Lent;
static Lent *lent;

static void lend(Storage *storage)
{
    Lent *first = storage ? os_alloc(sizeof *first) : NULL;
    if (storage)
        storage_retain(storage); /* even where it cannot be listed */
    if (!first)
        return;
    *first = (Lent){lent, storage};
    lent = first;
}

/* Of the call at hand nothing is freed any more. */
static void lend_all(Run *run, const Result *results)
{
    const Call *call = run->call;
    lend(run->temps);
    lend(run->shared);
    lend(run->rows);
    for (uint32_t k = 0; k < run->p->n_outputs; k++)
        lend(results[k].storage);
    for (uint32_t k = 0; k < call->inputs.n; k++)
        lend(atomic_load(&input_node(run, k)->storage));
    run->e->lent = false;
}

Status launch(Evaluation *e, const Program *program, const int64_t *sizes, const Call *call, const bool *donated, uint32_t *fault_node)
{
    Run run = {.e = e, .p = program, .whole = program, .sizes = sizes, .call = call, .device = call->device, .fault_node = fault_node};
    const Launcher *on = (run.kind = device_kind(run.device))->launcher;
    if (!BUF_RESERVE(e->results, program->n_outputs))
        return ST_OUT_OF_MEMORY;
    Result *results = e->results.at;
    run.fault_word = &run.fault;
    run.overwrites = UINT32_MAX;
    bool ran = !donated || !on->may_overwrite || on->may_overwrite(&run);
    if (!ran)
        donated = NULL;
    if (log_on(LOG_MEMORY))
        tell_overwriting(&run, donated, ran);
    memset(results, 0, sizeof *results * program->n_outputs);
    e->record.device = run.device;
    int64_t began = timeline_begin();
    Status status = on->begin ? on->begin(&run) : ST_OK;
    if (status == ST_OK)
        status = bind_buffers(&run, donated, ran, results);
    if (status == ST_OK)
        status = run_host(&run);
    if (status == ST_OK && on->prepare)
        status = on->prepare(&run, donated);
    if (status == ST_OK)
        status = bind_constants(&run, results);
    if (status == ST_OK && on->reserve && donated)
        status = on->reserve(&run);
    if (began)
        timeline_span(TL_BIND, "bind", began, TL_INT("buffers", program->n_buffers), TL_INT("steps", program->n_steps));
    if (status == ST_OK)
        status = run_launching(&run); /* what overwrites comes after what may fail */
    if (e->lent)
        lend_all(&run, results);
    if (on->end)
        status = on->end(&run, results, status);
    constants_end(&run, status);
    forget_overwritten(&run, donated);
    if (status == ST_OK && run.fault) {
        *fault_node = program->faults[run.fault - 1];
        status = ST_INDEX; /* the caller knows the place */
    }
    if (status == ST_OK && e->ordered)
        comm_whole();
    storage_release(run.temps);
    storage_release(run.shared);
    storage_release(run.rows);
    if (status != ST_OK)
        for (uint32_t k = 0; k < program->n_outputs; k++)
            storage_release(results[k].storage);
    return status;
}

void launch_count(Evaluation *e)
{
    stat_add(STAT_KERNELS, e->launches);
    stat_add(STAT_BYTES, e->moved);
    e->launches = e->moved = 0;
}

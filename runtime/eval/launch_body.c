/*
 * Running loops and branches inside a program (jit/plan.h: STEP_LOOP, STEP_COND).
 *
 *   frame     a body's own addresses, arguments, scalars and temporaries: made when its loop begins, used by all iterations
 *   carries   each has two places that change roles: the result's memory and one of the loop's own; or one, where the step overwrites what it
 *             reads (jit/buffers.c); or none, where the step hands it on. The first iteration reads the operand, which is never written
 *   slices    x[i] and y[i] are addresses inside xs and ys: nothing is copied
 *
 * Nothing is allocated between iterations, but for what sorts and split kernels ask for; on the CPU the steps of a body of kernels are
 * worked out once (runtime/eval/launch_repeat.c). On a CUDA device that cannot loop by itself (launch_device.c) the host loops: it queues the
 * launches of each iteration, and waits only where a condition or predicate decides, and at the end of a body in which an index may be out of
 * bounds.
 */
#include "ir/base/os.h"
#include "ir/body.h"
#include "runtime/device/device.h"
#include "runtime/eval/frame.h"

#include <string.h>

enum { AROUND = -1 /* in a frame's word: something was wrong before its body began */ };

static const Launcher *launcher(const Run *run) { return run->kind->launcher; }

static size_t bytes_of(const Run *run, uint32_t buffer) { return buffer_bytes(&run->p->buffers[buffer], run->sizes); }

/* Cuts the next `n` elements from a block whose size is only counted while it is NULL. */
static void *cut(char *block, size_t *at, size_t bytes)
{
    char *here = block ? block + *at : NULL;
    *at += (bytes + 15) & ~(size_t)15;
    return here;
}

/* Do kernels of it write or read a fault's number? */
static bool asks_for_word(const Program *p)
{
    bool asks = false;
    for (uint32_t i = 0; i < p->n_args && !asks; i++)
        asks = p->args[i].kind == BIND_FAULT;
    return asks;
}

Status frame_begin(const Run *outer, const Program *body, uint32_t n_in, Frame *f)
{
    size_t *slots = NULL;
    *f = (Frame){.run = *outer};
    Run *run = &f->run;
    run->p = body;
    run->temps = run->shared = run->rows = NULL;
    run->fault = 0;
    run->fault_word = &run->fault;
    run->overwrites = UINT32_MAX;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        run->address = cut(f->block, &at, sizeof(void *) * (body->n_buffers + 1));
        run->args = cut(f->block, &at, sizeof(void *) * (body->max_step_args + 1));
        run->host = cut(f->block, &at, sizeof *run->host * (body->n_host + 1));
        slots = cut(f->block, &at, sizeof *slots * (body->n_slots + 1));
        f->in = cut(f->block, &at, sizeof(void *) * (n_in + 1));
        f->out = cut(f->block, &at, sizeof(void *) * (body->n_outputs + 1));
        if (pass == 0 && !(f->block = os_calloc(1, at)))
            return fail(ST_OUT_OF_MEMORY, "no memory for a loop");
    }
    if (body->n_slots)
        TRY(storage_new_on(run->device, launch_slots(body, run->sizes, slots), &run->temps));
    for (uint32_t b = 0; b < body->n_buffers; b++)
        if (body->buffers[b].kind == BUFFER_TEMP)
            run->address[b] = (char *)run->temps->data + launch_place(&body->buffers[b], run->sizes, slots);
    if (run->kind->queues && asks_for_word(body))
        TRY(frame_word(f));
    return run_host(run);
}

Status frame_word(Frame *f)
{
    Run *run = &f->run;
    if (f->word)
        return ST_OK;
    TRY(storage_new_on(run->device, sizeof run->fault, &f->word));
    run->fault_word = f->word->data;
    return launcher(run)->zero(run, f->word->data, sizeof run->fault);
}

/* What is wrong around a body is wrong in it. Waits. */
static Status frame_inherit(const Run *outer, Frame *f)
{
    int64_t wrong = 0;
    if (!run_has_word(outer))
        return ST_OK;
    TRY(launcher(outer)->read(outer, &wrong, outer->fault_word, sizeof wrong));
    if (!wrong)
        return ST_OK;
    wrong = AROUND;
    TRY(frame_word(f));
    return launcher(outer)->write(outer, f->word->data, &wrong, sizeof wrong);
}

static Status frame_fault(const Frame *f)
{
    *f->run.fault_node = f->run.p->faults[f->run.fault - 1];
    return fail(ST_INDEX, "an index is out of bounds");
}

/* On a CUDA device: has an index been out of bounds in any run of the body? Waits. */
static Status frame_settle(Frame *f)
{
    if (f->word)
        TRY(launcher(&f->run)->read(&f->run, &f->run.fault, f->word->data, sizeof f->run.fault));
    if (f->run.fault == AROUND) /* told there */
        f->run.fault = 0;
    return f->run.fault ? frame_fault(f) : ST_OK;
}

void frame_end(Frame *f)
{
    storage_release(f->run.temps);
    storage_release(f->run.shared);
    storage_release(f->run.rows);
    storage_release(f->word);
    repeat_free(f->repeat);
    os_free(f->block);
}

Status frame_run(Frame *f)
{
    Run *run = &f->run;
    const Program *p = run->p;
    if (f->repeat) {
        TRY(repeat_run(f->repeat, run));
        return run->fault ? frame_fault(f) : ST_OK;
    }
    for (uint32_t b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].kind == BUFFER_INPUT)
            run->address[b] = f->in[p->buffers[b].index];
    for (uint32_t k = p->n_outputs; k-- > 0;) /* of two outputs that are one value, the first is where it is made */
        if (p->buffers[p->outputs[k]].kind == BUFFER_OUTPUT)
            run->address[p->outputs[k]] = f->out[k];
    TRY(run_steps(run));
    if (run->fault)
        return frame_fault(f);
    for (uint32_t k = 0; k < p->n_outputs; k++)
        if (f->out[k] != run->address[p->outputs[k]])
            TRY(launcher(run)->copy(run, f->out[k], run->address[p->outputs[k]], bytes_of(run, p->outputs[k])));
    return ST_OK;
}

/* ---- loops ---- */

enum { INDICES = 1024 /* numbers of iterations that are brought to a CUDA device at a time */ };

Status loop_memory(Loop *l, size_t bytes, void **data)
{
    TRY(storage_new_on(l->run->device, bytes, &l->own[l->n_own]));
    *data = l->own[l->n_own++]->data;
    return ST_OK;
}

bool loop_keeps(const Program *p, uint32_t k)
{
    const ProgBuffer *b = &p->buffers[p->outputs[k]];
    return b->kind == BUFFER_INPUT && b->index == k + 1; /* its inputs begin with i */
}

/* May the step write carry k where that lies? */
static bool overwrites(const Program *p, uint32_t k)
{
    const ProgBuffer *b = &p->buffers[p->outputs[k]];
    return b->kind == BUFFER_OUTPUT && b->alias_input == k + 1;
}

Status loop_frames_begin(Loop *l)
{
    const ProgStep *s = l->step;
    const Program *body = l->run->p->bodies[s->body];
    void **args = l->run->args, **results = args + s->n_in;
    memcpy(&l->count, &args[s->n_in + s->n_results], sizeof l->count);
    TRY(frame_begin(l->run, body, s->n_in + 1, &l->body));
    if (s->n_bodies == 2)
        TRY(frame_begin(l->run, l->run->p->bodies[s->body + 1], s->n_in, &l->condition));
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (int which = 0; which < 2; which++)
            l->place[which] = cut(l->block, &at, sizeof(void *) * (s->carries + 1u));
        l->own = cut(l->block, &at, sizeof *l->own * (s->carries + s->xs + 2u * s->n_results + 2));
        l->bytes = cut(l->block, &at, sizeof *l->bytes * (s->n_results + 1));
        l->slice = cut(l->block, &at, sizeof *l->slice * (s->n_in + 1));
        l->in_place = cut(l->block, &at, sizeof *l->in_place * (s->carries + 1u));
        if (pass == 0 && !(l->block = os_calloc(1, at)))
            return fail(ST_OUT_OF_MEMORY, "no memory for a loop");
    }
    for (uint32_t b = 0; b < body->n_buffers && l->run->kind->apart && !l->indices; b++)
        if (body->buffers[b].kind == BUFFER_INPUT && body->buffers[b].index == 0)
            TRY(storage_new_on(l->run->device, sizeof l->i * INDICES, &l->indices));
    if (s->n_bodies == 2)
        TRY(storage_new_on(l->run->device, sizeof(bool), &l->going));
    for (uint32_t k = 0; k < s->n_results; k++) {
        l->bytes[k] = bytes_of(&l->body.run, body->outputs[k]);
        if (k >= s->carries) { /* ys that nobody reads: each iteration's in one place */
            if (!results[k])
                TRY(loop_memory(l, l->bytes[k], &l->body.out[k]));
            continue;
        }
        if (loop_keeps(body, k))
            continue;
        l->place[0][k] = results[k];
        l->in_place[k] = overwrites(body, k);
        if (!results[k])
            TRY(loop_memory(l, l->bytes[k], &l->place[0][k]));
        l->place[1][k] = l->place[0][k];
        if (!l->in_place[k])
            TRY(loop_memory(l, l->bytes[k], &l->place[1][k]));
    }
    for (uint32_t k = s->carries; k < s->carries + (uint32_t)s->xs && l->count > 0; k++)
        l->slice[k] = bytes_of(l->run, l->run->p->args[s->first_arg + k].value) / (size_t)l->count;
    TRY(repeat_new(&l->body.run, l->body.in, l->body.out, &l->body.repeat));
    return s->n_bodies == 2 ? repeat_new(&l->condition.run, l->condition.in, l->condition.out, &l->condition.repeat) : ST_OK;
}

void loop_frames_end(Loop *l)
{
    for (uint32_t i = 0; i < l->n_own; i++)
        storage_release(l->own[i]);
    storage_release(l->indices);
    storage_release(l->going);
    os_free(l->block);
    frame_end(&l->body);
    if (l->step->n_bodies == 2)
        frame_end(&l->condition);
}

/* Has something been wrong in a run of this body, or around it, so that its loop ends? */
static Status is_wrong(const Frame *f, bool *wrong)
{
    int64_t number = 0;
    if (f->word)
        TRY(launcher(&f->run)->read(&f->run, &number, f->word->data, sizeof number));
    *wrong |= number != 0;
    return ST_OK;
}

/* Is there another step? The carries are body.in[1..]. */
static Status goes_on(Loop *l, int64_t done, bool *on)
{
    const ProgStep *s = l->step;
    *on = done < l->count;
    if (s->n_bodies == 1)
        return ST_OK;
    bool more = false, wrong = false;
    memcpy(l->condition.in, l->body.in + 1, sizeof(void *) * s->n_in);
    l->condition.out[0] = l->going->data;
    TRY(frame_run(&l->condition));
    TRY(launcher(l->run)->read(l->run, &more, l->going->data, sizeof more));
    TRY(is_wrong(&l->body, &wrong));
    TRY(is_wrong(&l->condition, &wrong));
    if (wrong) {
        *on = false;
        return ST_OK;
    }
    if (more && !*on)
        return body_endless(call_place(l->run->call, s->place), l->count);
    *on = more;
    return ST_OK;
}

static int64_t index_of(const Loop *l, int64_t done) { return l->step->reverse ? l->count - 1 - done : done; }

/* Where the step finds the number of the iteration. */
static Status bind_index(Loop *l, int64_t done)
{
    l->i = index_of(l, done);
    l->body.in[0] = &l->i;
    if (!l->indices)
        return ST_OK;
    int64_t numbers[INDICES];
    for (int64_t k = 0; k < INDICES && done % INDICES == 0; k++)
        numbers[k] = index_of(l, done + k);
    if (done % INDICES == 0)
        TRY(launcher(l->run)->write(l->run, l->indices->data, numbers, sizeof numbers));
    l->body.in[0] = (char *)l->indices->data + sizeof l->i * (size_t)(done % INDICES);
    return ST_OK;
}

/* What iteration number `done` is given, and where it writes. */
static Status bind_iteration(Loop *l, int64_t done)
{
    const ProgStep *s = l->step;
    void **operands = l->run->args, **results = operands + s->n_in;
    /* A loop that counts ends in the results' memory; of another one the end is not known. */
    int to = (int)((s->n_bodies == 1 ? l->count - 1 - done : done) & 1);
    TRY(bind_index(l, done));
    for (uint32_t k = s->carries; k < s->carries + (uint32_t)s->xs; k++)
        l->body.in[k + 1] = (char *)operands[k] + (size_t)l->i * l->slice[k];
    for (uint32_t k = 0; k < s->n_results; k++)
        if (k < s->carries)
            l->body.out[k] = loop_keeps(l->body.run.p, k) ? l->body.in[k + 1] : l->place[to][k];
        else if (results[k])
            l->body.out[k] = (char *)results[k] + (size_t)l->i * l->bytes[k];
    return done % LOOP_BATCH == 0 ? launcher(l->run)->flush(l->run) : ST_OK;
}

/* What a loop that ended has left of its ys nobody looks at; but what moves them whole reads it, and a device's checks object to memory that nobody wrote. */
static Status clear_rest(const Loop *l, int64_t done)
{
    const ProgStep *s = l->step;
    void **results = l->run->args + s->n_in;
    for (uint32_t k = s->carries; k < s->n_results && l->run->kind->apart && done < l->count; k++) {
        size_t bytes = (size_t)(l->count - done) * l->bytes[k];
        if (results[k] && bytes)
            TRY(launcher(l->run)->zero(l->run, (char *)results[k] + (s->reverse ? 0 : (size_t)done * l->bytes[k]), bytes));
    }
    return ST_OK;
}

static Status run_loop(const Run *run, const ProgStep *s)
{
    Loop l = {.run = run, .step = s};
    void **operands = run->args, **results = run->args + s->n_in;
    int64_t done = 0;
    bool on = false;
    Status status = loop_frames_begin(&l);
    if (status == ST_OK)
        status = frame_inherit(run, &l.body);
    if (status == ST_OK) {
        memcpy(l.body.in + 1, operands, sizeof(void *) * s->n_in);
        status = goes_on(&l, done, &on);
    }
    while (status == ST_OK && on) {
        status = bind_iteration(&l, done++);
        if (status == ST_OK)
            status = frame_run(&l.body);
        memcpy(l.body.in + 1, l.body.out, sizeof(void *) * s->carries);
        if (status == ST_OK)
            status = goes_on(&l, done, &on);
    }
    if (status == ST_OK)
        status = clear_rest(&l, done);
    for (uint32_t k = 0; k < s->carries && status == ST_OK; k++)
        if (results[k] && l.body.in[k + 1] != results[k])
            status = launcher(run)->copy(run, results[k], l.body.in[k + 1], l.bytes[k]);
    if (status == ST_OK)
        status = frame_settle(&l.body);
    if (status == ST_OK && s->n_bodies == 2)
        status = frame_settle(&l.condition);
    if (status == ST_OK) /* before its memory goes */
        status = launcher(run)->flush(run);
    loop_frames_end(&l);
    return status;
}

/* ---- branches ---- */

Status branch_results(const Run *run, const ProgStep *s, Frame *f, Storage **unread)
{
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (uint32_t k = 0; k < s->n_results; k++) {
            f->out[k] = run->args[s->n_in + k];
            if (f->out[k])
                continue;
            f->out[k] = *unread ? (char *)(*unread)->data + at : NULL;
            at += launch_aligned(bytes_of(&f->run, f->run.p->outputs[k]));
        }
        if (pass == 0 && at)
            TRY(storage_new_on(run->device, at, unread));
    }
    return ST_OK;
}

static Status run_branch(const Run *run, const ProgStep *s)
{
    bool predicate;
    Frame f;
    Storage *unread = NULL; /* room for what nobody reads, one after the other */
    TRY(launcher(run)->read(run, &predicate, run->args[0], sizeof predicate));
    const Program *body = run->p->bodies[s->body + !predicate];
    Status status = frame_begin(run, body, s->n_in, &f);
    if (status == ST_OK)
        status = frame_inherit(run, &f);
    if (status == ST_OK)
        status = branch_results(run, s, &f, &unread);
    if (status == ST_OK) {
        memcpy(f.in, run->args + 1, sizeof(void *) * (s->n_in - 1));
        status = frame_run(&f);
    }
    if (status == ST_OK)
        status = frame_settle(&f);
    if (status == ST_OK)
        status = launcher(run)->flush(run);
    storage_release(unread);
    frame_end(&f);
    return status;
}

Status run_bodies(Run *run, const ProgStep *step)
{
    bool done = false;
    if (launcher(run)->bodies)
        TRY(launcher(run)->bodies(run, step, &done));
    if (done)
        return ST_OK;
    return step->kind == STEP_LOOP ? run_loop(run, step) : run_branch(run, step);
}

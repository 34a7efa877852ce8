/*
 * Loops and branches that a CUDA device runs by itself, in one launch that nobody waits for: a graph with conditional nodes
 * (runtime/cuda/cuda_loop.c). What is in it is what the host's way (runtime/eval/launch_body.c) would queue, with each body once:
 *
 *   loop      carries to their places; the condition; count; while { rows of xs to a place of their own; the step; rows of ys to where they
 *             belong; carries that the step put elsewhere back to their places; the condition; count }
 *   branch    choose; if { the one body }; if { the other }
 *
 * The addresses in a graph do not change from iteration to iteration, so carries change no roles: that copy, and those of rows, are the
 * price of not waiting. The step of a loop inside is recorded in the same way, once for all iterations of the loop around.
 *
 * Nothing that is recorded may be given back before the graph is queued: all memory of all loops is kept in a list until then. If recording
 * or launching fails, nothing has happened, and the host does it all.
 *
 * What was wrong is known when values are (runtime/cuda/cuda_fault.c): the places in a body stand behind those of what is around it, in the
 * order of bodies (device_places), and a number that a body left becomes one of those around. Only a program that overwrites inputs waits
 * at the end of its loops.
 *
 * Statistics count each kernel of a body once where the number of iterations is known to the device alone.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/eval/frame.h"

#include <string.h>

/* So many bytes are copied in an iteration at most: on a device that takes about as long as the host's way waits (an estimate). */
enum { MOST_COPIED = 8 << 20 };

typedef struct Recorded {
    struct Recorded *next;
    Loop loop;       /* step NULL: a branch */
    Frame branch[2]; /* in use: the first n_branches */
    uint32_t n_branches;
    Storage *unread[2];
} Recorded;

typedef struct Recording {
    Recorded *last;
    const char *why_not; /* it cannot be recorded */
} Recording;

static Status give_up(const Run *run, const char *why)
{
    run->recording->why_not = why;
    return ST_UNSUPPORTED;
}

static Recorded *remember(const Run *run)
{
    Recorded *r = os_calloc(1, sizeof *r);
    if (r) {
        r->next = run->recording->last;
        run->recording->last = r;
    }
    return r;
}

static void forget(Recording *recording)
{
    while (recording->last) {
        Recorded *r = recording->last;
        recording->last = r->next;
        if (r->loop.step)
            loop_frames_end(&r->loop);
        for (uint32_t b = 0; b < r->n_branches; b++)
            frame_end(&r->branch[b]);
        storage_release(r->unread[0]);
        storage_release(r->unread[1]);
        os_free(r);
    }
}

/* --- what may be wrong ------------------------------------------------------------------------------------------- */

static int64_t steps_of(const Run *run, const Program *p, const ProgStep *s)
{
    const ProgArg *count = &p->args[s->first_arg + s->n_in + s->n_results];
    return run->sizes[count->value];
}

static bool may_be_endless(const ProgStep *s, uint32_t which) { return s->kind == STEP_LOOP && s->n_bodies == 2 && which == 0; }

/* Of one body of a step: those of the body, and of a loop that asks whether it goes on that it does not end. */
static uint32_t body_places(const Run *run, const Program *p, const ProgStep *s, uint32_t which, IndexPlace *places)
{
    uint32_t n = device_places(run, p->bodies[s->body + which], places);
    if (may_be_endless(s, which) && places)
        places[n] = (IndexPlace){.loc = call_place(run->call, s->place), .axis = NO_AXIS, .size = steps_of(run, p, s)};
    return n + may_be_endless(s, which);
}

uint32_t device_places(const Run *run, const Program *p, IndexPlace *places)
{
    uint32_t n = p->n_faults;
    for (uint32_t i = 0; i < n && places; i++)
        places[i] = index_place(call_node(run->call, p->faults[i]));
    for (uint32_t i = 0; i < p->n_steps; i++)
        for (uint32_t b = 0; b < p->steps[i].n_bodies; b++)
            n += body_places(run, p, &p->steps[i], b, places ? places + n : NULL);
    return n;
}

/* How many of p's places stand before those of one of its bodies. */
static uint32_t places_before(const Run *run, const Program *p, const Program *body)
{
    uint32_t n = p->n_faults;
    for (uint32_t i = 0; i < p->n_steps; i++)
        for (uint32_t b = 0; b < p->steps[i].n_bodies; b++) {
            if (p->bodies[p->steps[i].body + b] == body)
                return n;
            n += body_places(run, p, &p->steps[i], b, NULL);
        }
    return n;
}

/* --- recording ------------------------------------------------------------------------------------------------------ */

static struct CudaRun *cuda_of(const Run *run) { return run->e->cuda; }

/* Rows of xs and ys have places of their own, which the body knows; with the number of the iteration they are copied. */
static Status move_rows(Loop *l, const CudaCount *count, bool after)
{
    const ProgStep *s = l->step;
    void **operands = l->run->args, **results = operands + s->n_in;
    const void *index = (const int64_t *)count->state + 1;
    for (uint32_t k = s->carries; k < s->carries + (uint32_t)s->xs && !after; k++)
        TRY(cuda_record_move(cuda_of(l->run), l->body.in[k + 1], operands[k], l->slice[k], index, 0, l->slice[k]));
    for (uint32_t k = s->carries; k < s->n_results && after; k++)
        if (results[k])
            TRY(cuda_record_move(cuda_of(l->run), results[k], l->body.out[k], l->bytes[k], index, l->bytes[k], 0));
    return ST_OK;
}

/* Where the body finds and leaves things, in all iterations. */
static Status bind_places(Loop *l, CudaCount *count)
{
    const ProgStep *s = l->step;
    void **operands = l->run->args, **results = operands + s->n_in;
    size_t copied = 0;
    TRY(loop_memory(l, 2 * sizeof(int64_t), &count->state));
    l->body.in[0] = (int64_t *)count->state + 1;
    memcpy(l->body.in + 1, operands, sizeof(void *) * s->n_in);
    for (uint32_t k = 0; k < s->carries; k++) {
        if (!loop_keeps(l->body.run.p, k)) {
            l->body.in[k + 1] = l->place[0][k];
            l->body.out[k] = l->place[1][k];
            copied += l->place[0][k] == l->place[1][k] ? 0 : l->bytes[k];
            continue;
        }
        l->body.out[k] = operands[k];
    }
    for (uint32_t k = s->carries; k < s->carries + (uint32_t)s->xs; k++) {
        TRY(loop_memory(l, l->slice[k] + 1, &l->body.in[k + 1]));
        copied += l->slice[k];
    }
    for (uint32_t k = s->carries; k < s->n_results; k++)
        if (results[k]) {
            TRY(loop_memory(l, l->bytes[k] + 1, &l->body.out[k]));
            copied += l->bytes[k];
        }
    return copied > MOST_COPIED ? give_up(l->run, "more would be copied in each iteration than waiting for it takes") : ST_OK;
}

/* Before the first iteration: the carries in their places; ys that may end early whole. */
static Status record_start(const Loop *l)
{
    const ProgStep *s = l->step;
    void **operands = l->run->args, **results = operands + s->n_in;
    for (uint32_t k = 0; k < s->carries; k++) {
        void *to = loop_keeps(l->body.run.p, k) ? results[k] : l->place[0][k];
        if (to)
            TRY(cuda_record_move(cuda_of(l->run), to, operands[k], l->bytes[k], NULL, 0, 0));
    }
    for (uint32_t k = s->carries; k < s->n_results && s->n_bodies == 2 && l->count > 0; k++)
        if (results[k])
            TRY(cuda_record_move(cuda_of(l->run), results[k], NULL, l->bytes[k] * (size_t)l->count, NULL, 0, 0));
    return ST_OK;
}

static Status record_condition(Loop *l, CudaCount *count, bool first)
{
    if (l->step->n_bodies == 2) {
        memcpy(l->condition.in, l->body.in + 1, sizeof(void *) * l->step->n_in);
        l->condition.out[0] = l->going->data;
        TRY(frame_run(&l->condition));
    }
    return cuda_record_count(cuda_of(l->run), count, first);
}

static Status record_iteration(Loop *l, CudaCount *count)
{
    TRY(move_rows(l, count, false));
    TRY(frame_run(&l->body));
    TRY(move_rows(l, count, true));
    for (uint32_t k = 0; k < l->step->carries; k++)
        if (l->place[0][k] != l->place[1][k])
            TRY(cuda_record_move(cuda_of(l->run), l->place[0][k], l->place[1][k], l->bytes[k], NULL, 0, 0));
    return record_condition(l, count, false);
}

/* A word of its own for a body in which something may be wrong, at whatever depth, or around it. */
static Status need_word(const Run *run, const ProgStep *s, uint32_t which, Frame *f)
{
    return run_has_word(run) || body_places(run, run->p, s, which, NULL) ? frame_word(f) : ST_OK;
}

static void *word_of(const Frame *f) { return f->word ? f->word->data : NULL; }

/* What is wrong around a body is wrong in it: a loop there does not begin, since for what it finds it might have no end. */
static Status inherit(const Run *run, const Frame *f)
{
    return f->word && run_has_word(run) ? cuda_record_report(cuda_of(run), run->fault_word, word_of(f), 0) : ST_OK;
}

/* What is wrong in a body is wrong around it: a loop there ends, too, and in the end the program's word has it. */
static Status report(const Run *run, const Frame *f)
{
    return f->word ? cuda_record_report(cuda_of(run), word_of(f), run->fault_word, places_before(run, run->p, f->run.p)) : ST_OK;
}

static Status record_loop(Run *run, const ProgStep *s)
{
    Recorded *r = remember(run);
    if (!r)
        return ST_OUT_OF_MEMORY;
    Loop *l = &r->loop;
    *l = (Loop){.run = run, .step = s};
    TRY(loop_frames_begin(l));
    bool asks = s->n_bodies == 2;
    TRY(need_word(run, s, 0, &l->body));
    TRY(inherit(run, &l->body));
    if (asks) {
        TRY(need_word(run, s, 1, &l->condition));
        TRY(inherit(run, &l->condition));
    }
    CudaCount count = {.going = asks ? l->going->data : NULL,
                       .fault = word_of(&l->body),
                       .also = word_of(&l->condition),
                       .count = l->count,
                       .endless = body_places(run, run->p, s, 0, NULL),
                       .reverse = s->reverse};
    TRY(bind_places(l, &count));
    TRY(record_start(l));
    if (!asks && l->count <= 0)
        return ST_OK;
    TRY(record_condition(l, &count, true));
    int64_t launches = run->e->launches, moved = run->e->moved;
    TRY(cuda_record_open(cuda_of(run), true, count.condition));
    TRY(record_iteration(l, &count));
    TRY(cuda_record_close(cuda_of(run)));
    if (!asks) {
        run->e->launches = launches + (run->e->launches - launches) * l->count;
        run->e->moved = moved + (run->e->moved - moved) * l->count;
    }
    TRY(report(run, &l->body));
    return report(run, &l->condition);
}

static Status record_branch(Run *run, const ProgStep *s)
{
    Recorded *r = remember(run);
    uint32_t condition[2];
    if (!r)
        return ST_OUT_OF_MEMORY;
    TRY(cuda_record_choose(cuda_of(run), run->args[0], condition));
    for (uint32_t b = 0; b < 2; b++) {
        Frame *f = &r->branch[r->n_branches++];
        TRY(frame_begin(run, run->p->bodies[s->body + b], s->n_in, f));
        TRY(need_word(run, s, b, f));
        TRY(inherit(run, f));
        TRY(branch_results(run, s, f, &r->unread[b]));
        memcpy(f->in, run->args + 1, sizeof(void *) * (s->n_in - 1));
        TRY(cuda_record_open(cuda_of(run), false, condition[b]));
        TRY(frame_run(f));
        TRY(cuda_record_close(cuda_of(run)));
        TRY(report(run, f));
    }
    return ST_OK;
}

static Status record_step(Run *run, const ProgStep *s) { return s->kind == STEP_LOOP ? record_loop(run, s) : record_branch(run, s); }

/* --- entry ------------------------------------------------------------------------------------------------------------ */

static const char *cannot(const Run *run, const Program *p, const ProgStep *s)
{
    for (uint32_t b = 0; b < s->n_bodies; b++) {
        const Program *body = p->bodies[s->body + b];
        for (uint32_t i = 0; i < body->n_steps; i++) {
            const ProgStep *inner = &body->steps[i];
            if (inner->kind == STEP_CALL)
                return "it calls a function of the user's or of a library";
            if (inner->kind == STEP_SORT || body->n_bands)
                return "the host has a part in it";
            const char *why = cannot(run, body, inner);
            if (why)
                return why;
        }
    }
    return NULL;
}

static const char *objection(const Run *run, const ProgStep *s)
{
    if (run_timed(run) || run_traced(run) || perf_timed())
        return "its launches are timed one by one";
    return cannot(run, run->p, s);
}

static Status record_all(Run *run, const ProgStep *s, bool *done)
{
    Status status = record_step(run, s);
    if (status != ST_OK) {
        cuda_record_drop(cuda_of(run));
        if (!run->recording->why_not)
            run->recording->why_not = fail_message();
        return ST_OK;
    }
    TRY(cuda_record_launch(cuda_of(run), done));
    if (!*done)
        run->recording->why_not = "the driver refused its graph";
    return *done && run->overwrites != UINT32_MAX ? cuda_run_settle(cuda_of(run)) : ST_OK;
}

Status device_bodies(Run *run, const ProgStep *s, bool *done)
{
    int64_t launches = run->e->launches, moved = run->e->moved, steps = s->kind == STEP_LOOP ? steps_of(run, run->p, s) : 0;
    Recording recording = {.last = NULL};
    *done = run->recording != NULL;
    if (*done)
        return record_step(run, s);
    if (s->kind == STEP_LOOP && s->n_bodies == 1 && steps <= LOOP_BATCH)
        return ST_OK; /* nothing waits, and few launches are soon queued */
    recording.why_not = objection(run, s);
    if (!recording.why_not)
        TRY(cuda_record_begin(cuda_of(run), &recording.why_not));
    Status status = ST_OK;
    run->recording = &recording;
    if (!recording.why_not)
        status = record_all(run, s, done);
    run->recording = NULL;
    if (!*done) {
        run->e->launches = launches;
        run->e->moved = moved;
        if (status == ST_OK && log_on(LOG_KERNELS))
            log_line(LOG_KERNELS, "%s: the host runs the %s of step %u: %s", program_name(run->whole),
                     s->kind == STEP_LOOP ? "loop" : "branch", (unsigned)(s - run->p->steps), recording.why_not);
    }
    forget(&recording);
    return status;
}

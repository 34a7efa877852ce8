/*
 * kiln_last_call: what the thread's last sync point did. Evaluation notes what is known only then (CallRecord in runtime/evaluation.h): the
 * programs and their sizes; what those compute is counted when somebody asks.
 */
#include "ir/base/os.h"
#include "runtime/api/stats.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/eval/perf.h"
#include "runtime/record/record.h"
#include "runtime/record/thread.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The struct of the first library that had it. */
static const size_t FIRST_SIZE = offsetof(kiln_call_report, program) + sizeof((kiln_call_report *)0)->program;

void record_begin(Evaluation *e)
{
    CallRecord *r = &e->record;
    while (r->parts.n > 1)
        program_release(r->parts.at[--r->parts.n].program);
    r->n = 0; /* parts.at[0] keeps its program: the next one is most often the same */
    r->sizes.n = 0;
    r->prepared = 0;
    r->source = KILN_CALL_NOTHING;
    r->reason = -1;
    r->in_place = 0;
    r->compile_seconds = r->load_seconds = 0;
    r->why_not = NULL;
    r->device = DEVICE_CPU;
}

void record_source(Evaluation *e, int source)
{
    if (source > e->record.source)
        e->record.source = source;
}

Status record_program(Evaluation *e, Program *program, const int64_t *sizes)
{
    CallRecord *r = &e->record;
    uint32_t n = program->guards.sizes.n;
    if (!BUF_RESERVE(r->parts, r->n + 1) || !BUF_RESERVE(r->sizes, r->sizes.n + n))
        return ST_OUT_OF_MEMORY;
    CallPart *part = &r->parts.at[r->n];
    if (r->n == r->parts.n || part->program != program) {
        program_retain(program);
        if (r->n < r->parts.n)
            program_release(part->program);
        part->program = program;
    }
    part->sizes = r->sizes.n;
    r->n++;
    if (r->parts.n < r->n)
        r->parts.n = r->n;
    memcpy(r->sizes.at + r->sizes.n, sizes, sizeof *sizes * n);
    r->sizes.n += n;
    return ST_OK;
}

void record_end_thread(Evaluation *e)
{
    for (size_t i = 0; i < e->record.parts.n; i++)
        program_release(e->record.parts.at[i].program);
    os_free(e->record.parts.at);
    os_free(e->record.sizes.at);
}

const char *record_source_name(int source)
{
    static const char *const names[] = {[KILN_CALL_MEMORY] = "memory",
                                        [KILN_CALL_DISK] = "disk",
                                        [KILN_CALL_COMPILED] = "compiled",
                                        [KILN_CALL_INTERPRETED] = "interpreter"};
    return names[source];
}

/* Adds a program's kernels and launches; those that two of its steps share are one kernel. */
static void add_part(const Program *p, const int64_t *sizes, kiln_call_report *report, Launched *sum)
{
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        uint32_t first = 0;
        while (p->kernels[first].compiled != p->kernels[i].compiled)
            first++;
        report->kernels += first == i;
    }
    for (uint32_t i = 0; i < p->n_steps; i++) {
        Work work = step_work(p, &p->steps[i], sizes);
        sum->bytes += sizes[p->steps[i].bytes];
        work_add(&sum->work, &work, 1);
        sum->known &= p->steps[i].kind == STEP_KERNEL;
    }
    report->launches += p->n_steps;
}

static void fill(const CallRecord *r, kiln_call_report *report)
{
    Launched sum = {.device = r->device, .known = true};
    *report = (kiln_call_report){.source = r->source,
                                 .miss_reason = r->reason,
                                 .in_place = r->in_place,
                                 .compile_seconds = r->compile_seconds,
                                 .load_seconds = r->load_seconds,
                                 .why_not_in_place = r->why_not};
    for (size_t i = 0; i < r->n; i++)
        add_part(r->parts.at[i].program, r->sizes.at + r->parts.at[i].sizes, report, &sum);
    report->bytes = sum.bytes;
    report->flops = (int64_t)sum.work.flops;
    report->specials = (int64_t)sum.work.specials;
    if (report->launches) {
        PerfLimit limit = perf_limit(&sum, report->launches);
        report->regime = limit.regime;
        report->peak_flops = limit.peak;
    }
    if (r->n)
        snprintf(report->program, sizeof report->program, "%s", program_name(r->parts.at[0].program));
}

kiln_status kiln_last_call(kiln_call_report *report)
{
    static const char api[] = "kiln_last_call";
    kiln_call_report own = {.miss_reason = -1};
    Status status = ST_OK;
    Evaluation *e;
    if (!report)
        status = fail(ST_INVALID, "report is NULL");
    else if (report->size < FIRST_SIZE)
        status = fail(ST_INVALID, "report->size is %zu: set it to sizeof(kiln_call_report), which is %zu", report->size, sizeof own);
    if (status == ST_OK)
        status = eval_enter_among(&e);
    if (status != ST_OK)
        return error_sync(status, api, (Loc){0});
    if (e->record.source != KILN_CALL_NOTHING)
        fill(&e->record, &own);
    eval_unlock();
    own.size = report->size < sizeof own ? report->size : sizeof own;
    memcpy(report, &own, own.size);
    return KILN_OK;
}

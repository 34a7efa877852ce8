/*
 * The compiler, from a recorded graph to a program. Read compile() first: it is the whole story.
 *
 *      graph --passes--> graph --plan--> kernels + launch plan --emit--> code          (what is made of constants alone leaves the graph
 *        |                                                                               before it is planned, and has a plan of its own)
 *        \__ every question about a size or a scalar __/
 *                          |
 *                      guards: what the code relies on
 *
 * Nothing here publishes anything: the caller enters the finished program into the cache, so a failed compile leaves no
 * trace. Machine code is interned by the kernel's text (jit/kernel_table.c): only kernels never seen before are emitted.
 */
#include "jit/assemble.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_term.h"
#include "ir/base/progress.h"
#include "ir/base/timeline.h"
#include "ir/joint.h"
#include "jit/codegen.h"
#include "jit/panels.h"
#include "jit/passes.h"
#include "jit/target.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { COMPILE_STACK = 8 << 20 };

typedef struct Job {
    const CompileRequest *request;
    Graph *g;
    GuardBuilder *guards;
    Plan plan;
    Constants constants;  /* what has left the graph, to be computed once, ... */
    Plans constant_plans; /* ... and the plan of each */
    Program *program;
    CompileTexts texts;
    Str inputs; /* "%0 f32, %1 i64": for the log */
    uint32_t dump_stage;
    Status status;
    char message[512];
    double plan_seconds, emit_seconds;
    uint32_t emitted;
    uint32_t lane; /* in a trace: of the thread that waits for this one */
    Progress progress;
    Str *preview; /* jit_preview: the names of the steps, and no code */
} Job;

static Status check_stop(const CompileRequest *request);
static Status plan_constants(Job *job, Str *told);
static Status emit_kernels(Job *job);
static void dump_text(void *user, const char *stage, const char *text);
static void dump_plan(Job *job);
static const char *graph_text(const Job *job);
static void note_inputs(Job *job);
static void log_program(const Job *job);
static void log_gradient(const Job *job);

static Status compile(Job *job)
{
    const CompileRequest *r = job->request;
    double start = os_seconds();

    if (r->want_texts)
        job->texts.recorded = graph_text(job);
    note_inputs(job);
    job->guards = guard_builder_new(job->g, r->policy);
    progress_tell(&job->progress, "optimising", NULL, 0, 0);
    TRY(jit_run_passes(job->g, r->options, r->dump_name ? dump_text : NULL, job));
    if (r->want_texts)
        job->texts.optimised = graph_text(job);

    TRY(check_stop(r));
    constants_apart(job->g, target_kind(&r->options->target)->packs, &job->constants);
    progress_tell(&job->progress, "planning", NULL, 0, 0);
    double planning = os_seconds();
    int64_t began = timeline_begin();
    Str told;
    str_init(&told, job->g->arena);
    TRY(jit_plan_told(job->g, r->options, &job->plan, r->dump_name ? &told : NULL));
    TRY(plan_constants(job, r->dump_name ? &told : NULL));
    if (r->dump_name)
        dump_text(job, "fusion.txt", told.text);
    job->plan_seconds = os_seconds() - planning;
    if (began)
        timeline_span(TL_FUSION, "fusion", began, TL_INT("nodes", job->g->nodes.n), TL_INT("launches", job->plan.steps.n));
    if (job->preview)
        return ST_OK;
    if (log_on(LOG_GRADIENT))
        log_gradient(job);

    job->program = os_calloc(1, sizeof *job->program);
    if (!job->program)
        return fail(ST_OUT_OF_MEMORY, "no memory for a program");
    atomic_init(&job->program->refs, 1);
    snprintf(job->program->id, sizeof job->program->id, "%s", r->id ? r->id : "");
    TRY(emit_kernels(job));
    TRY(jit_assemble(&(Parts){r, job->g, &job->plan, &job->constants, job->constant_plans.at, job->guards}, job->program));

    job->program->compile_seconds = os_seconds() - start;
    log_program(job);
    if (r->dump_name)
        dump_plan(job);
    return ST_OK;
}

static Status check_stop(const CompileRequest *request)
{
    return request->stop && atomic_load(request->stop) ? fail(ST_COMPILE, "stopped") : ST_OK;
}

static Status plan_constants(Job *job, Str *told)
{
    const JitOptions *options = job->request->options;
    const uint32_t n_inputs = job->g->inputs.n - job->constants.n;
    for (uint32_t k = 0; k < job->constants.n; k++) {
        Plan plan = {0};
        TRY(jit_plan_told(job->constants.at[k], options, &plan, told));
        VEC_PUSH(job->g->arena, job->constant_plans, plan);
    }
    panels_keep(job->g, options, n_inputs, &job->plan, &job->constants, &job->constant_plans, told);
    return ST_OK;
}

/* --- kernels ------------------------------------------------------------------------------------------- */

/* The steps that are kernels, those of bodies where these run: the order in which jit/assemble.c numbers them. */
static void list_kernels(const Graph *g, const Plan *plan, Plan *all)
{
    for (uint32_t i = 0; i < plan->steps.n; i++) {
        const PlanStep *step = &plan->steps.at[i];
        if (step->kind == STEP_KERNEL)
            VEC_PUSH(g->arena, all->steps, *step);
        for (uint32_t b = 0; step->bodies && b < graph_node(g, step->node)->n_bodies; b++)
            list_kernels(graph_node(g, step->node)->bodies[b], &step->bodies[b], all);
    }
}

static Status emit_kernels(Job *job)
{
    Program *p = job->program;
    double start = os_seconds();
    Plan all = {0};
    list_kernels(job->g, &job->plan, &all);
    for (uint32_t k = 0; k < job->constants.n; k++)
        list_kernels(job->constants.at[k], &job->constant_plans.at[k], &all);
    p->kernels = os_calloc(all.steps.n + 1, sizeof *p->kernels);
    if (!p->kernels)
        return fail(ST_OUT_OF_MEMORY, "no memory for %u kernels", all.steps.n);
    CodeRequest request = {.compile = job->request,
                           .arena = job->g->arena,
                           .plan = &all,
                           .dump = job->request->dump_name ? dump_text : NULL,
                           .user = job,
                           .progress = &job->progress};
    TRY(jit_code(&request, p->kernels, &p->n_kernels, &job->emitted));
    job->emit_seconds = os_seconds() - start;
    return ST_OK;
}

/* --- seeing ------------------------------------------------------------------------------------------------ */

/* Makes the folder of one program's dumps. A folder of all dumps that was not there may come of a slip of the pen: it is said. */
static bool make_dump_folder(const char *all, const char *own)
{
    bool there = os_is_folder(all);
    if (!os_make_dir(own))
        return false;
    if (!there)
        log_warn("KILN_DUMP: there was no folder %s; it was made", all);
    return true;
}

static void dump_text(void *user, const char *stage, const char *text)
{
    Job *job = user;
    char folder[400];
    option_text(OPT_DUMP, folder, sizeof folder);
    char *dir = arena_printf(job->g->arena, "%s/%s", folder, job->request->dump_name);
    char *path = arena_printf(job->g->arena, "%s/%02u_%s", dir, job->dump_stage++, stage);
    if (!make_dump_folder(folder, dir) || !os_write_file(path, text, strlen(text)))
        log_warn_once("dump", "KILN_DUMP: cannot write %s: %s", path, strerror(errno));
}

static const char *graph_text(const Job *job)
{
    Str out;
    str_init(&out, job->g->arena);
    graph_print(job->g, "graph", &out);
    return out.text;
}

static void dump_plan(Job *job)
{
    Str out;
    str_init(&out, job->g->arena);
    program_print(job->program, &out);
    dump_text(job, "program.txt", out.text);
}

/* Dtypes are compared before any guard is looked at (cache/memory.c): they hold for the program as guards do. */
static void note_inputs(Job *job)
{
    const Graph *g = job->g;
    str_init(&job->inputs, g->arena);
    for (uint32_t i = 0; i < g->inputs.n && log_on(LOG_GUARDS); i++)
        str_printf(&job->inputs, "%s%%%u %s", i ? ", " : "; dtypes of the inputs: ", g->inputs.at[i],
                   dtype_name((DType)graph_node(g, g->inputs.at[i])->dtype));
}

/* "read of the forward pass: ...; computed again: ...; peak 1.2 GB" */
static bool gradient_text(const Job *job, bool each, Str *out)
{
    Str values;
    str_init(&values, job->g->arena);
    if (!joint_print(job->g, each, &values))
        return false;
    int line = (int)strcspn(values.text, "\n");
    str_printf(out, "%.*s; peak ", line, values.text);
    bytes_print((double)job->plan.peak_with_reuse, out);
    str_printf(out, "%s\n", values.text + line);
    return true;
}

static void log_gradient(const Job *job)
{
    Str out;
    str_init(&out, job->g->arena);
    if (gradient_text(job, log_detailed(LOG_GRADIENT), &out))
        log_text(LOG_GRADIENT, out.text);
}

static void log_program(const Job *job)
{
    const Program *p = job->program;
    if (log_on(LOG_GUARDS)) {
        Str out;
        str_init(&out, job->g->arena);
        str_printf(&out, "program %s: %u guard%s%s\n", job->request->id ? job->request->id : "?", p->guards.n, p->guards.n == 1 ? "" : "s",
                   job->inputs.text);
        for (uint32_t i = 0; i < p->guards.n; i++) {
            str_printf(&out, "  ");
            guard_print(&p->guards, &p->guards.at[i], &out);
            str_printf(&out, "   asked by %s\n", p->guards.at[i].who);
        }
        log_text(LOG_GUARDS, out.text);
    }
    if (log_on(LOG_TIMING))
        log_line(LOG_TIMING, "compiled in %.2f ms: fusion %.2f ms, code %.2f ms (%u of %u kernels new)", 1e3 * p->compile_seconds,
                 1e3 * job->plan_seconds, 1e3 * job->emit_seconds, job->emitted, p->n_kernels);
}

/* --- entry --------------------------------------------------------------------------------------------------- */

/* The thread that compiles has its own stack, so memory exhaustion must jump to a place on it. */
static void compile_on_own_stack(void *arg)
{
    Job *job = arg;
    Arena *arena = job->g->arena;
    jmp_buf here, *outer = arena->oom;
    arena->oom = &here;
    if (job->lane)
        timeline_share_lane(job->lane);
    if (setjmp(here) == 0)
        job->status = compile(job);
    else
        job->status = fail(ST_OUT_OF_MEMORY, "no memory for compiling a graph of %u nodes", job->g->nodes.n);
    arena->oom = outer;
    if (job->status != ST_OK) {
        snprintf(job->message, sizeof job->message, "%s", fail_message()); /* messages are per thread */
        program_release(job->program);
        job->program = NULL;
    }
}

Status jit_preview(const CompileRequest *request, uint32_t *n_steps, Str *text)
{
    Job job = {.request = request, .g = request->graph, .preview = text};
    os_run_on_stack(COMPILE_STACK, compile_on_own_stack, &job);
    if (job.status != ST_OK)
        return fail(job.status, "%s", job.message);
    *n_steps = job.plan.steps.n;
    for (uint32_t i = 0; i < job.plan.steps.n; i++)
        str_printf(text, "  %s\n", job.plan.steps.at[i].what);
    str_printf(text, "  at most %" PRId64 " bytes besides the inputs\n", job.plan.peak_with_reuse);
    (void)gradient_text(&job, false, text);
    return ST_OK;
}

Status jit_compile(const CompileRequest *request, Program **out, CompileTexts *texts)
{
    *out = NULL;
    char hook[32];
    if (strcmp(option_text(OPT_TEST_FAIL, hook, sizeof hook), "compile") == 0)
        return fail(ST_COMPILE, "KILN_TEST_FAIL asked for this failure");
    int64_t began = timeline_begin();
    Job job = {.request = request, .g = request->graph, .lane = began ? timeline_lane() : 0, .progress = progress_begin(request->id)};
    uint32_t nodes = job.g->nodes.n;
    os_run_on_stack(COMPILE_STACK, compile_on_own_stack, &job);
    progress_end(&job.progress);
    if (began)
        timeline_span(TL_COMPILE, "compile", began, TL_TEXT("graph", request->id), TL_INT("nodes", nodes),
                      TL_INT("kernels", job.program ? job.program->n_kernels : 0), TL_INT("new_kernels", job.emitted),
                      TL_TEXT("failed", job.status == ST_OK ? NULL : job.message));
    if (job.status != ST_OK)
        return fail(job.status, "%s", job.message);
    *out = job.program;
    if (texts)
        *texts = job.texts;
    return ST_OK;
}

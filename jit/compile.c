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
#include "jit/compile.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_term.h"
#include "ir/base/progress.h"
#include "ir/base/timeline.h"
#include "ir/body.h"
#include "ir/joint.h"
#include "jit/codegen.h"
#include "jit/constants.h"
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
    Plan *constant_plans; /* ... and the plan of each */
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
static Status assemble(Job *job);
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
    TRY(assemble(job));

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
    job->constant_plans = ARENA_ARRAY(job->g->arena, Plan, job->constants.n + 1);
    for (uint32_t k = 0; k < job->constants.n; k++)
        TRY(jit_plan_told(job->constants.at[k], job->request->options, &job->constant_plans[k], told));
    return ST_OK;
}

/* --- kernels ------------------------------------------------------------------------------------------- */

/* The steps that are kernels, those of bodies where these run: the order in which assemble_plan numbers them. */
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
        list_kernels(job->constants.at[k], &job->constant_plans[k], &all);
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

/* --- the program as plain data ---------------------------------------------------------------------------- */

static ProgArg assemble_arg(Job *job, const PlanArg *arg)
{
    switch ((BindKind)arg->kind) {
    case BIND_BUFFER: return (ProgArg){arg->kind, arg->buffer};
    case BIND_SIZE: return (ProgArg){arg->kind, guard_builder_size(job->guards, arg->size)};
    case BIND_SCALAR:
    case BIND_HOST: return (ProgArg){arg->kind, arg->scalar};
    case BIND_SHARED:
    case BIND_FAULT:
    case BIND_NONE: break;
    }
    return (ProgArg){arg->kind, 0};
}

/* Copies an arena text to the end of the program's own texts and returns its place. */
static char *keep_text(Program *p, size_t *used, const char *text)
{
    size_t len = strlen(text) + 1;
    char *at = p->texts + *used;
    memcpy(at, text, len);
    *used += len;
    return at;
}

/* An input may be overwritten only where nothing can fail any more. A CPU stops after the step that found an index out of bounds, on a
 * CUDA device the steps that overwrite do nothing then (jit/buffers.c), and what steps share has room beforehand (runtime/eval/launch.c).
 * A sort, loop or branch asks for room of its own, and a function of the user's may fail: what overwrites comes behind these, too. The first
 * step that may. */
static uint32_t first_certain_step(const Plan *plan)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < plan->steps.n; i++) {
        if (plan->steps.at[i].kind != STEP_KERNEL)
            first = i + 1;
        for (uint32_t a = 0; a < plan->steps.at[i].args.n; a++)
            if (plan->steps.at[i].args.at[a].kind == BIND_FAULT && !plan->steps.at[i].kernel->args.at[a].stops)
                first = i + 1;
    }
    return first;
}

/* KILN_TEST_FAIL=guard:NAME: forgets the guards of that kind, so that tests can show that they would notice. Another hook may
 * follow after a comma. */
static void forget_guards(GuardSet *set)
{
    char hook[32];
    if (strncmp(option_text(OPT_TEST_FAIL, hook, sizeof hook), "guard:", 6) != 0)
        return;
    hook[strcspn(hook, ",")] = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < set->n; i++)
        if (strcmp(guard_kind_name((GuardKind)set->at[i].kind), hook + 6) != 0)
            set->at[kept++] = set->at[i];
    set->n = kept;
    set->on_scalars &= strcmp(hook + 6, "scalar") != 0;
}

/* A plan as plain data. `kernel`: how many of the whole program's kernels stand before its own. */
static Status assemble_plan(Job *job, const Graph *g, const Plan *plan, Program *p, uint32_t *kernel);

/* One more of p's bodies. */
static Status assemble_inner(Job *job, const Graph *g, const Plan *plan, Program *p, uint32_t *kernel)
{
    Program *body = os_calloc(1, sizeof *body);
    if (!body)
        return fail(ST_OUT_OF_MEMORY, "no memory for a program");
    p->bodies[p->n_bodies++] = body;
    atomic_init(&body->refs, 1);
    body->inner = true;
    body->kernels = p->kernels;
    body->n_kernels = p->n_kernels;
    body->math = p->math;
    return assemble_plan(job, g, plan, body, kernel);
}

/* What makes the values that are kept: behind the bodies of steps. */
static Status assemble_constants(Job *job, uint32_t *kernel)
{
    Program *p = job->program;
    p->n_inputs = job->g->inputs.n - job->constants.n;
    for (uint32_t k = 0; k < job->constants.n; k++, p->n_constants++) {
        TRY(assemble_inner(job, job->constants.at[k], &job->constant_plans[k], p, kernel));
        Program *constant = p->bodies[p->n_bodies - 1];
        if (!(constant->recipe = recipe_new(constant)))
            return fail(ST_OUT_OF_MEMORY, "no memory for a program");
        p->bytes += constant->bytes;
    }
    return ST_OK;
}

static Status assemble_bodies(Job *job, const Graph *g, const PlanStep *s, Program *p, ProgStep *out, uint32_t *kernel)
{
    const Node *node = graph_node(g, s->node);
    out->n_in = node->n_in;
    out->n_results = body_n_results(node);
    out->place = node->origin;
    out->body = p->n_bodies;
    if (s->kind == STEP_LOOP) {
        out->carries = node->attr.loop.carries;
        out->xs = node->attr.loop.xs;
        out->reverse = node->attr.loop.reverse;
    }
    for (uint32_t b = 0; b < node->n_bodies; b++, out->n_bodies++)
        TRY(assemble_inner(job, node->bodies[b], &s->bodies[b], p, kernel));
    return ST_OK;
}

static Status assemble_plan(Job *job, const Graph *g, const Plan *plan, Program *p, uint32_t *kernel)
{
    size_t text_bytes = 1;
    uint32_t n_bodies = p->inner ? 0 : job->constants.n;
    for (uint32_t i = 0; i < plan->steps.n; i++) {
        text_bytes += strlen(plan->steps.at[i].what) + 1;
        p->n_args += plan->steps.at[i].args.n;
        n_bodies += plan->steps.at[i].bodies ? graph_node(g, plan->steps.at[i].node)->n_bodies : 0;
    }
    p->buffers = os_calloc(plan->buffers.n + 1, sizeof *p->buffers);
    p->steps = os_calloc(plan->steps.n + 1, sizeof *p->steps);
    p->args = os_calloc(p->n_args + 1, sizeof *p->args);
    p->outputs = os_calloc(plan->outputs.n + 1, sizeof *p->outputs);
    p->faults = os_calloc(plan->faults.n + 1, sizeof *p->faults);
    p->host = os_calloc(plan->host.n + 1, sizeof *p->host);
    p->bands = os_calloc(plan->bands.n + 1, sizeof *p->bands);
    p->bodies = os_calloc(n_bodies + 1, sizeof(Program *));
    p->texts = os_calloc(1, text_bytes);
    if (!p->buffers || !p->steps || !p->args || !p->outputs || !p->faults || !p->host || !p->bands || !p->bodies || !p->texts)
        return fail(ST_OUT_OF_MEMORY, "no memory for a program of %u steps", plan->steps.n);

    /* What a body overwrites are values that the loop made (runtime/eval/launch_body.c). */
    uint32_t certain = p->inner ? 0 : first_certain_step(plan);
    p->n_buffers = plan->buffers.n;
    p->n_slots = plan->n_slots;
    p->n_band_slots = plan->n_band_slots;
    p->n_bands = plan->bands.n;
    for (uint32_t i = 0; i < plan->bands.n; i++) {
        const PlanBand *b = &plan->bands.at[i];
        p->bands[i] = (ProgBand){b->first, b->n, guard_builder_size(job->guards, b->batch), guard_builder_size(job->guards, b->rows)};
    }
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const PlanBuffer *b = &plan->buffers.at[i];
        uint32_t alias = NO_BUFFER;
        if (b->kind == BUFFER_OUTPUT && b->alias_input != NO_BUFFER && b->first_step >= certain) {
            alias = plan->buffers.at[b->alias_input].index; /* of the call: nothing overwrites a constant */
            p->takes_over = true;
        }
        p->buffers[i] = (ProgBuffer){.kind = b->kind,
                                     .dtype = b->dtype,
                                     .index = b->index,
                                     .numel = guard_builder_size(job->guards, b->numel),
                                     .row = b->kind == BUFFER_BAND ? guard_builder_size(job->guards, b->row) : 0,
                                     .slot = b->slot,
                                     .alias_input = alias,
                                     .offset = b->within == NO_BUFFER ? NO_OFFSET : guard_builder_size(job->guards, b->at)};
    }

    size_t used = 0;
    uint32_t n_args = 0;
    for (uint32_t i = 0; i < plan->steps.n; i++) {
        const PlanStep *s = &plan->steps.at[i];
        ProgStep *out = &p->steps[p->n_steps++];
        *out = (ProgStep){.kind = s->kind,
                          .descending = s->descending,
                          .values = s->values,
                          .kernel = *kernel,
                          .first_arg = n_args,
                          .n_args = s->args.n,
                          .bytes = guard_builder_size(job->guards, s->bytes),
                          .what = keep_text(p, &used, s->what)};
        for (uint32_t a = 0; a < s->args.n; a++)
            p->args[n_args++] = assemble_arg(job, &s->args.at[a]);
        if (s->args.n > p->max_step_args)
            p->max_step_args = s->args.n;
        switch ((StepKind)s->kind) {
        case STEP_KERNEL: p->kernels[(*kernel)++].name = out->what; break;
        case STEP_SORT: out->dtype = plan->buffers.at[s->args.at[0].buffer].dtype; break;
        case STEP_LOOP:
        case STEP_COND:
        case STEP_CALL: TRY(assemble_bodies(job, g, s, p, out, kernel)); break;
        }
    }
    p->n_outputs = plan->outputs.n;
    for (uint32_t i = 0; i < plan->outputs.n; i++)
        p->outputs[i] = plan->outputs.at[i];
    p->n_faults = plan->faults.n;
    for (uint32_t i = 0; i < plan->faults.n; i++)
        p->faults[i] = graph_node(g, plan->faults.at[i].node)->origin;

    p->n_host = plan->host.n;
    for (uint32_t i = 0; i < plan->host.n; i++)
        p->host[i] = plan->host.at[i];
    program_weigh(p, text_bytes);
    return ST_OK;
}

static Status assemble(Job *job)
{
    Program *p = job->program;
    uint32_t kernel = 0;
    p->math = (uint8_t)options_math(job->request->options);
    p->general = job->request->policy->general || job->request->policy->wide;
    TRY(assemble_plan(job, job->g, &job->plan, p, &kernel));
    TRY(assemble_constants(job, &kernel));
    size_t bytes = p->bytes;
    TRY(guard_builder_finish(job->guards, &p->guards));
    forget_guards(&p->guards);
    p->bytes = bytes + sizeof(Guard) * p->guards.n + sizeof(SizeExpr) * p->guards.sizes.n;
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

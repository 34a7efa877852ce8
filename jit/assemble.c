/*
 * Plans become a program: plain data that nobody needs a graph, a guard's builder or LLVM to read. Sizes are by then those that the guards
 * know, kernels are numbers, texts are the program's own.
 */
#include "jit/assemble.h"
#include "ir/base/os.h"
#include "ir/body.h"

#include <string.h>

static ProgArg assemble_arg(const Parts *parts, const PlanArg *arg)
{
    switch ((BindKind)arg->kind) {
    case BIND_BUFFER:
    case BIND_SPANS: return (ProgArg){arg->kind, arg->buffer};
    case BIND_SIZE: return (ProgArg){arg->kind, guard_builder_size(parts->guards, arg->size)};
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
static Status assemble_plan(const Parts *parts, const Graph *g, const Plan *plan, Program *p, uint32_t *kernel);

/* One more of p's bodies. */
static Status assemble_inner(const Parts *parts, const Graph *g, const Plan *plan, Program *p, uint32_t *kernel)
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
    return assemble_plan(parts, g, plan, body, kernel);
}

/* What makes the values that are kept: behind the bodies of steps. */
static Status assemble_constants(const Parts *parts, Program *p, uint32_t *kernel)
{
    p->n_inputs = parts->g->inputs.n - parts->constants->n;
    for (uint32_t k = 0; k < parts->constants->n; k++, p->n_constants++) {
        TRY(assemble_inner(parts, parts->constants->at[k], &parts->constant_plans[k], p, kernel));
        Program *constant = p->bodies[p->n_bodies - 1];
        if (!(constant->recipe = recipe_new(constant)))
            return fail(ST_OUT_OF_MEMORY, "no memory for a program");
        p->bytes += constant->bytes;
    }
    return ST_OK;
}

static Status assemble_bodies(const Parts *parts, const Graph *g, const PlanStep *s, Program *p, ProgStep *out, uint32_t *kernel)
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
        TRY(assemble_inner(parts, node->bodies[b], &s->bodies[b], p, kernel));
    return ST_OK;
}

static Status assemble_plan(const Parts *parts, const Graph *g, const Plan *plan, Program *p, uint32_t *kernel)
{
    size_t text_bytes = 1;
    uint32_t n_bodies = p->inner ? 0 : parts->constants->n;
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
        p->bands[i] = (ProgBand){b->first, b->n, guard_builder_size(parts->guards, b->batch), guard_builder_size(parts->guards, b->rows)};
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
                                     .numel = guard_builder_size(parts->guards, b->numel),
                                     .row = b->kind == BUFFER_BAND ? guard_builder_size(parts->guards, b->row) : 0,
                                     .slot = b->slot,
                                     .alias_input = alias,
                                     .offset = b->within == NO_BUFFER ? NO_OFFSET : guard_builder_size(parts->guards, b->at)};
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
                          .bytes = guard_builder_size(parts->guards, s->bytes),
                          .what = keep_text(p, &used, s->what)};
        for (uint32_t a = 0; a < s->args.n; a++)
            p->args[n_args++] = assemble_arg(parts, &s->args.at[a]);
        if (s->args.n > p->max_step_args)
            p->max_step_args = s->args.n;
        switch ((StepKind)s->kind) {
        case STEP_KERNEL: p->kernels[(*kernel)++].name = out->what; break;
        case STEP_SORT: out->dtype = plan->buffers.at[s->args.at[0].buffer].dtype; break;
        case STEP_LOOP:
        case STEP_COND:
        case STEP_CALL: TRY(assemble_bodies(parts, g, s, p, out, kernel)); break;
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

Status jit_assemble(const Parts *parts, Program *p)
{
    uint32_t kernel = 0;
    p->math = (uint8_t)options_math(parts->request->options);
    p->general = parts->request->policy->general || parts->request->policy->wide;
    TRY(assemble_plan(parts, parts->g, parts->plan, p, &kernel));
    TRY(assemble_constants(parts, p, &kernel));
    size_t bytes = p->bytes;
    TRY(guard_builder_finish(parts->guards, &p->guards));
    forget_guards(&p->guards);
    p->bytes = bytes + sizeof(Guard) * p->guards.n + sizeof(SizeExpr) * p->guards.sizes.n;
    return ST_OK;
}

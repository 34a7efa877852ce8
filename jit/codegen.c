/*
 * Machine code for the kernels of a plan.
 *
 *   find       by the kernel's text in the table of compiled kernels; equal kernels of one plan are one job
 *   emit       the others, in parallel, those that take longest first: IR and passes and code through LLVM, for CUDA PTX and the driver's
 *              assembler
 *   enter      in order of the steps, so that nothing depends on which thread was first
 *
 * A kernel's code follows from its key alone (its text, the target, the options that change code): what is emitted is what the text says,
 * parsed, never the kernel that fusion left in memory. So it does not matter which program had a kernel first.
 *
 * Emitting reads the key only; whatever it allocates is its own. A job keeps its own failure: messages belong to threads.
 */
#include "jit/codegen.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/pack.h"
#include "ir/base/timeline.h"
#include "jit/llvm/emit.h"
#include "jit/rules.h"
#include "jit/target.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODE_STACK = 8 << 20 };

typedef struct CodeJob {
    const Kernel *kernel;
    const char *name;
    Str key;                  /* what the kernel is known by */
    size_t text_at;           /* the kernel's own text, its end */
    CompiledKernel *compiled; /* with one user; NULL: not known yet */
    struct CodeJob *first;    /* with this key: itself, or one that does the work for both */
    KernelParts parts;
    char *ir, *assembly; /* where somebody wants to see them */
    Status status;
    char message[512];
} CodeJob;

typedef struct CodeJobs {
    const CodeRequest *request;
    CodeJob *at;
    uint32_t n;
    CodeJob **missing;
    uint32_t n_missing;
    atomic_uint finished;
    bool show;
} CodeJobs;

/* --- emitting one ----------------------------------------------------------------------------------------------- */

/* The target, every option that changes code of a kernel (rules and passes change graphs alone), and the kernel's text: where that
 * begins. */
static size_t kernel_key(const Kernel *kernel, const JitOptions *options, Str *out)
{
    for (TargetFact fact = 0; fact < TARGET_FACTS; fact++)
        if (target_fact_of(fact, target_kind(&options->target)->device) && target_fact_codes(fact)) {
            str_printf(out, "%s ", target_fact_name(fact));
            target_fact_print(fact, &options->target, out);
            str_printf(out, "\n");
        }
    for (int id = 0; id < OPT_COUNT; id++)
        if (option_keyed((OptionId)id) && id != OPT_EXTENSIONS)
            str_printf(out, "%s=%" PRId64 "\n", option_name((OptionId)id), options->value[id]);
    size_t at = out->len;
    kernel_print(kernel, out);
    return at;
}

static Status emit_cuda(const CompileRequest *request, const Kernel *kernel, const char *name, bool want_text, Emitted *out)
{
    EmittedPtx ptx = {0};
    void *cubin = NULL;
    size_t cubin_bytes = 0;
    TRY(llvm_emit_ptx(kernel, name, request->options, &request->options->target, want_text, &ptx));
    Status status = request->assemble ? request->assemble(request->device, ptx.ptx, name, &cubin, &cubin_bytes) : ST_OK;
    KernelObject object = {.plan = ptx.launch, .ptx = ptx.ptx, .cubin = cubin, .cubin_bytes = cubin_bytes};
    if (status == ST_OK)
        status = kernel_object_make(&object, &out->object, &out->bytes);
    os_free(cubin);
    launch_plan_free(&ptx.launch);
    if (status != ST_OK) {
        os_free(ptx.ir);
        os_free(ptx.ptx);
        return status;
    }
    out->ir = ptx.ir;
    out->assembly = ptx.ptx;
    return ST_OK;
}

/* IR and assembly for the cache on disk: what entry_texts in cache/entry.c takes apart. */
static Status pack_texts(const Emitted *emitted, KernelParts *parts)
{
    size_t ir = strlen(emitted->ir) + 1, assembly = strlen(emitted->assembly) + 1;
    char *both = os_alloc(ir + assembly);
    if (!both)
        return fail(ST_OUT_OF_MEMORY, "no memory for the text of a kernel");
    memcpy(both, emitted->ir, ir);
    memcpy(both + ir, emitted->assembly, assembly);
    Status status = pack(both, ir + assembly, &parts->texts, &parts->texts_bytes);
    os_free(both);
    return status;
}

/* What this CPU cannot run is an error; but where another CPU was asked for by name, its code is made and checked first: tests see that
 * it can be. */
static Status emit_host(const CompileRequest *request, const Kernel *kernel, const char *name, bool want_text, Emitted *out)
{
    const JitOptions *options = request->options;
    if (options->value[OPT_CPU] == CPU_HOST)
        TRY(llvm_host_runs(options));
    TRY(llvm_emit_host(kernel, name, options, want_text, out));
    KernelObject object = {.plan = out->launch, .elf = out->object, .elf_bytes = out->bytes};
    Status status = llvm_host_runs(options);
    void *made = NULL;
    if (status == ST_OK)
        status = kernel_object_make(&object, &made, &out->bytes);
    launch_plan_free(&out->launch);
    os_free(out->object);
    out->object = made;
    if (status != ST_OK) {
        os_free(out->ir);
        os_free(out->assembly);
        *out = (Emitted){0};
    }
    return status;
}

/* What the text of a kernel says, and how a target with these options runs it. */
static Status read_kernel(const JitOptions *options, const char *text, Arena *arena, Kernel **out)
{
    TRY(kernel_parse(text, arena, out));
    TRY(kernel_verify_orders(*out, target_order(options), options_math(options)));
    schedule_kernel(*out, &options->target);
    return ST_OK;
}

/* Code of the kernel that `text` says; its arena is gone afterwards. */
static Status emit_text(const CompileRequest *request, const char *text, bool want_text, Emitted *out)
{
    static Status (*const emitters[TARGETS])(const CompileRequest *, const Kernel *, const char *, bool,
                                             Emitted *) = {[TARGET_HOST] = emit_host, [TARGET_CUDA] = emit_cuda};
    const JitOptions *options = request->options;
    Arena arena;
    jmp_buf oom;
    Kernel *kernel;
    arena_init(&arena, &oom);
    if (setjmp(oom)) {
        arena_free(&arena);
        return fail(ST_OUT_OF_MEMORY, "no memory for the text of a kernel");
    }
    Status status = read_kernel(options, text, &arena, &kernel);
    if (status == ST_OK) {
        const char *name = kernel_name(kernel, &arena);
        status = emitters[target_kind(&options->target)->device](request, kernel, name, want_text, out);
    }
    arena_free(&arena);
    return status;
}

static Status emit(const CodeJobs *jobs, CodeJob *job)
{
    const CompileRequest *request = jobs->request->compile;
    Emitted emitted = {0};
    bool want_text = jobs->show || request->want_texts;
    if (request->stop && atomic_load(request->stop))
        return fail(ST_COMPILE, "stopped");
    TRY(emit_text(request, job->key.text + job->text_at, want_text, &emitted));
    job->parts.object = emitted.object;
    job->parts.object_bytes = emitted.bytes;
    job->ir = emitted.ir;
    job->assembly = emitted.assembly;
    if (request->want_texts)
        TRY(pack_texts(&emitted, &job->parts));
    return kernel_parts_load(&job->parts);
}

static void emit_missing(void *jobs_, uint32_t i)
{
    CodeJobs *jobs = jobs_;
    CodeJob *job = jobs->missing[i];
    const Progress *progress = jobs->request->progress;
    int64_t began = timeline_begin();
    uint32_t lane = began ? timeline_borrow_lane("code") : 0;
    progress_tell(progress, "compiling", job->name, atomic_load(&jobs->finished), jobs->n_missing);
    job->status = emit(jobs, job);
    progress_tell(progress, "compiling", job->name, atomic_fetch_add(&jobs->finished, 1) + 1, jobs->n_missing);
    if (began)
        timeline_span(TL_CODE, job->name, began, TL_INT("bytes", (int64_t)job->parts.object_bytes));
    if (job->status != ST_OK)
        snprintf(job->message, sizeof job->message, "%s", fail_message());
    timeline_return_lane(lane);
}

static void free_parts(CodeJob *job)
{
    if (job->parts.code)
        code_free(job->parts.code);
    os_free(job->parts.object);
    os_free(job->parts.texts);
    job->parts = (KernelParts){0};
}

/* --- seeing ---------------------------------------------------------------------------------------------------------- */

/* The kernel with its schedule, as the option `schedule` takes it, the rules that gave it, and its nest; then the same of the one for the sizes
 * that it expects. NULL for targets whose kernels have none. */
static const char *nest_text(const CodeRequest *request, const CodeJob *job)
{
    const JitOptions *options = request->compile->options;
    Arena *arena = request->arena;
    Kernel *kernel;
    Schedule schedule;
    Str out, nest;
    if (!target_kind(&options->target)->nests || read_kernel(options, job->key.text + job->text_at, arena, &kernel) != ST_OK ||
        kernel->form == FORM_SORT)
        return NULL;
    str_init(&out, arena);
    for (; kernel; kernel = kernel_expected(kernel, arena)) {
        str_init(&nest, arena);
        llvm_host_schedule(kernel, options, arena, &schedule, &nest);
        kernel_print(kernel, &out);
        schedule_print(&schedule, kernel, &out);
        str_printf(&out, " ");
        rules_print(&schedule, &out);
        str_printf(&out, "\n%s", nest.len ? nest.text : "");
    }
    return out.text;
}

static void dump_kernel_text(const CodeRequest *request, const char *name, uint32_t index, const char *ending, const char *text)
{
    if (text)
        request->dump(request->user, arena_printf(request->arena, "kernel%u_%s.%s", index, name, ending), text);
}

static void show_kernel(const CodeRequest *request, const CodeJob *job, uint32_t index)
{
    if (log_on(LOG_CODE)) {
        log_line(LOG_CODE, "kernel %s", job->name);
        log_text(LOG_CODE, job->ir);
        if (log_detailed(LOG_CODE)) {
            log_line(LOG_CODE, "assembly of kernel %s", job->name);
            log_text(LOG_CODE, job->assembly);
        }
    }
    if (request->dump) {
        dump_kernel_text(request, job->name, index, "txt", job->key.text);
        dump_kernel_text(request, job->name, index, "ll", job->ir);
        dump_kernel_text(request, job->name, index, target_kind(&request->compile->options->target)->assembly, job->assembly);
    }
}

/* --- all of them ------------------------------------------------------------------------------------------------------- */

/* What is in the table is taken from there, unless somebody wants to see the text: that gets it fresh, each time. Nothing here takes
 * memory of the arena, which could jump away with kernels in hand. */
static void find_known(CodeJobs *jobs)
{
    bool afresh = jobs->request->compile->afresh;
    for (uint32_t i = 0; i < jobs->n; i++) {
        CodeJob *job = &jobs->at[i];
        job->first = job;
        if (!jobs->show && !afresh)
            job->compiled = kernel_table_find(job->key.text, job->key.len);
        for (uint32_t k = 0; k < jobs->n_missing && !afresh && !job->compiled && job->first == job; k++) {
            CodeJob *other = jobs->missing[k];
            if (other->key.len == job->key.len && memcmp(other->key.text, job->key.text, job->key.len) == 0)
                job->first = other;
        }
        if (!job->compiled && job->first == job)
            jobs->missing[jobs->n_missing++] = job;
    }
}

/* Products, and whatever else is no loops, take ten times as long to compile; else it goes by the text. */
static int takes_longer(const void *a_, const void *b_)
{
    const CodeJob *a = *(CodeJob *const *)a_, *b = *(CodeJob *const *)b_;
    bool loops[2] = {a->kernel->form == FORM_LOOPS, b->kernel->form == FORM_LOOPS};
    if (loops[0] != loops[1])
        return loops[0] ? 1 : -1;
    if (a->key.len != b->key.len)
        return a->key.len > b->key.len ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* The finished kernel, with one user. */
static Status enter(const CodeJobs *jobs, CodeJob *job, uint32_t index)
{
    if (job->compiled)
        return ST_OK;
    if (job->first != job) {
        job->compiled = kernel_table_find(job->key.text, job->key.len);
        return job->compiled ? ST_OK : fail(ST_INTERNAL, "kernel %s was lost", job->name);
    }
    if (job->status != ST_OK)
        return fail(job->status, "%s", job->message);
    if (jobs->show)
        show_kernel(jobs->request, job, index);
    job->compiled = jobs->request->compile->afresh ? kernel_table_private(job->key.text, job->key.len, &job->parts)
                                                   : kernel_table_add(job->key.text, job->key.len, &job->parts);
    job->parts = (KernelParts){0}; /* taken over, on failure too */
    return job->compiled ? ST_OK : ST_OUT_OF_MEMORY;
}

Status jit_code(const CodeRequest *request, ProgKernel *kernels, uint32_t *n, uint32_t *fresh)
{
    const Plan *plan = request->plan;
    const CompileRequest *compile = request->compile;
    CodeJobs jobs = {.request = request,
                     .at = ARENA_ARRAY(request->arena, CodeJob, plan->steps.n),
                     .missing = ARENA_ARRAY(request->arena, CodeJob *, plan->steps.n),
                     .show = request->dump || log_on(LOG_CODE)};
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        const PlanStep *step = &plan->steps.at[s];
        if (step->kind != STEP_KERNEL)
            continue;
        CodeJob *job = &jobs.at[jobs.n++];
        *job = (CodeJob){.kernel = step->kernel, .name = step->what};
    }
    for (uint32_t i = 0; i < jobs.n; i++) {
        CodeJob *job = &jobs.at[i];
        str_init(&job->key, request->arena);
        job->text_at = kernel_key(job->kernel, compile->options, &job->key);
    }
    for (uint32_t i = 0; i < jobs.n && log_on(LOG_NEST); i++) {
        const char *text = nest_text(request, &jobs.at[i]);
        if (text)
            log_text(LOG_NEST, text);
    }
    find_known(&jobs);
    *fresh = jobs.n_missing;
    qsort(jobs.missing, jobs.n_missing, sizeof *jobs.missing, takes_longer);
    os_run_parallel(CODE_STACK, emit_missing, &jobs, jobs.n_missing);

    Status status = ST_OK;
    for (uint32_t i = 0; i < jobs.n; i++) {
        CodeJob *job = &jobs.at[i];
        if (status == ST_OK)
            status = enter(&jobs, job, i);
        if (job->compiled) /* the caller's from now on, on failure too */
            kernels[(*n)++] = (ProgKernel){job->compiled, NULL, job->kernel->cost};
        free_parts(job);
        os_free(job->ir);
        os_free(job->assembly);
    }
    return status;
}

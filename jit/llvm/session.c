/*
 * One compilation, whatever the target: context, module and builder; the IR; the pass list; code and texts.
 *
 * LLVM aborts the process on some errors; therefore the module is verified before anything else sees it.
 */
#include "jit/llvm/session.h"
#include "ir/base/log.h"
#include "ir/base/os.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/ErrorHandling.h>
#include <llvm-c/Support.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>

static _Thread_local const char *kernel_at_work = "";

static void fatal(const char *reason) { log_warn("LLVM gave up on kernel %s: %s", kernel_at_work, reason); }

bool session_fails(void)
{
    char hook[32];
    return strcmp(option_text(OPT_TEST_FAIL, hook, sizeof hook), "llvm") == 0;
}

static void init(void)
{
    LLVMInstallFatalErrorHandler(fatal);
    /*
     * No FastISel, which LLVMCodeGenLevelNone brings: it makes the load of one double an operand of vblendvpd, which reads 16 bytes: a fault where
     * the double lies at the end of a page (LLVM 19). Without it a compile at llvm_opt=0 takes a third longer, six tenths of one at 1.
     *
     * No machine combiner, which makes trees of long chains of "and" and "or" and of integers' sums, whatever registers there are: the signs and NaN of
     * a maximum of 32 points in two vectors (jit/llvm/cpu/extreme.c) made all 64 of them wait in memory (AVX2).
     *
     * No loop strength reduction. Addresses are at their levels already (index.c), and what it does beyond that is to weigh all ways to step all
     * addresses through all loops around them against each other: of a product of 256 cubed that took 5 of 10 ms, of an add 0.3 of 1.8, and code
     * is as fast without (geometric mean of 927 ops).
     */
    static const char *const without[] = {"kiln", "-fast-isel=false", "-x86-machine-combiner=false", "-disable-lsr"};
    LLVMParseCommandLineOptions(sizeof without / sizeof *without, without, NULL);
    if (session_fails())
        log_warn("KILN_TEST_FAIL=llvm: LLVM is initialised");
}

void session_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, init);
}

static void on_diagnostic(LLVMDiagnosticInfoRef info, void *user)
{
    Session *s = user;
    char *text = LLVMGetDiagInfoDescription(info);
    if (LLVMGetDiagInfoSeverity(info) == LLVMDSError && !s->error[0])
        snprintf(s->error, sizeof s->error, "%s", text);
    LLVMDisposeMessage(text);
}

LLVMCodeGenOptLevel session_effort(const Session *s)
{
    int64_t effort = s->e.options->value[OPT_LLVM_OPT];
    return effort <= 0 ? LLVMCodeGenLevelNone : effort == 1 ? LLVMCodeGenLevelLess : LLVMCodeGenLevelDefault;
}

void session_attribute(Session *s, LV fn, const char *key, const char *text)
{
    LLVMAttributeRef a = LLVMCreateStringAttribute(s->e.ctx, key, (unsigned)strlen(key), text, (unsigned)strlen(text));
    LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, a);
}

void session_rewrite(Session *s, bool (*wrong)(LV), LV (*mended)(Session *, LV))
{
    for (LV fn = LLVMGetFirstFunction(s->e.module); fn; fn = LLVMGetNextFunction(fn))
        for (LLVMBasicBlockRef block = LLVMGetFirstBasicBlock(fn); block; block = LLVMGetNextBasicBlock(block))
            for (LV v = LLVMGetFirstInstruction(block), next; v; v = next) {
                next = LLVMGetNextInstruction(v);
                if (!wrong(v))
                    continue;
                LLVMPositionBuilderBefore(s->e.b, v);
                LLVMReplaceAllUsesWith(v, mended(s, v));
                LLVMInstructionEraseFromParent(v);
            }
}

static void attributes(Session *s)
{
    unsigned nounwind = LLVMGetEnumAttributeKindForName("nounwind", 8);
    for (LV fn = LLVMGetFirstFunction(s->e.module); fn; fn = LLVMGetNextFunction(fn)) {
        if (LLVMIsDeclaration(fn))
            continue;
        s->how->attributes(s, fn);
        LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(s->e.ctx, nounwind, 0));
    }
}

static void emit_init(Session *s, const Emit *start)
{
    Emit *e = &s->e;
    *e = *start;
    e->arena = &s->arena;
    e->name = s->name;
    e->target = s->how->target;
    e->math = options_math(e->options);
    e->inner = LV_COUNT;
    e->ctx = LLVMContextCreate();
    LLVMContextSetDiagnosticHandler(e->ctx, on_diagnostic, s);
    e->module = LLVMModuleCreateWithNameInContext("kiln", e->ctx);
    e->b = LLVMCreateBuilderInContext(e->ctx);
    static const unsigned widths[] = {1, 8, 16, 32, 64};
    for (int t = SC_I1; t <= SC_I64; t++)
        e->type[t] = LLVMIntTypeInContext(e->ctx, widths[t]);
    e->type[SC_F32] = LLVMFloatTypeInContext(e->ctx);
    e->type[SC_F64] = LLVMDoubleTypeInContext(e->ctx);
    e->index = LLVMIntTypeInContext(e->ctx, e->k->index_bits ? e->k->index_bits : 64);
    e->half = LLVMHalfTypeInContext(e->ctx);
    e->ptr = LLVMPointerTypeInContext(e->ctx, e->target->space);
}

/* Before there is any IR: how far accesses are aligned that don't say it is the layout's business. */
static void set_machine(Session *s)
{
    LLVMModuleRef module = s->e.module;
    char *triple = LLVMGetTargetMachineTriple(s->machine);
    LLVMSetTarget(module, triple);
    LLVMDisposeMessage(triple);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(s->machine);
    LLVMSetModuleDataLayout(module, layout);
    LLVMDisposeTargetData(layout);
}

/* How the kernel of *e is run. */
static Status plan(Emit *e, Str *schedules)
{
    const Kernel *k = e->k;
    e->val = ARENA_ARRAY(e->arena, struct ValMemo, k->inst.n + 1);
    e->ix = ARENA_ARRAY(e->arena, struct IxMemo, k->idx.n + 1);
    e->arg = ARENA_ARRAY(e->arena, struct ArgMemo, k->args.n + 1);
    emit_plan(e);
    if (!e->cuda) {
        str_printf(schedules, "; ");
        schedule_print(&e->schedule, k, schedules);
        str_printf(schedules, "\n");
    }
    return e->planned != ST_OK || e->nest.phase == NEST_NONE ? e->planned : nest_verify(&e->nest, &e->facts);
}

/* Takes the IR from the kernel; the arena may jump past this frame only to session_compile's. */
static void build(Session *s)
{
    Emit *e = &s->e;
    const Kernel *k = e->k, *expected = e->cuda ? NULL : kernel_expected(k, e->arena);
    Emit *own = expected ? ARENA_NEW(e->arena, Emit) : NULL;
    Str schedules;
    str_init(&schedules, e->arena);
    if (expected) {
        *own = *e;
        own->k = expected;
    }
    s->plan = plan(e, &schedules);
    if (s->plan == ST_OK && expected)
        s->plan = plan(own, &schedules);
    if (s->plan != ST_OK)
        return;
    e->expected = own;
    s->schedule = schedules.len ? schedules.text : NULL;
    switch ((KernelForm)k->form) {
    case FORM_LOOPS: e->target->loops(e); break;
    case FORM_CONTRACT: e->target->contract(e); break;
    case FORM_ATTENTION:
        if (e->target->attention)
            e->target->attention(e);
        else
            e->refused = "this target has no attention in one kernel";
        break;
    case FORM_SORT:
        if (e->target->sort)
            e->target->sort(e);
        else
            e->refused = "this target sorts by other means";
    }
    attributes(s);
}

static Status optimise(Session *s)
{
    int64_t effort = s->e.options->value[OPT_LLVM_OPT];
    if (effort <= 0)
        return ST_OK;
    const char *passes = effort == 1 ? "function(sroa,early-cse,simplifycfg)" : "default<O2>";
    LLVMPassBuilderOptionsRef o = LLVMCreatePassBuilderOptions();
    LLVMErrorRef failed = LLVMRunPasses(s->e.module, passes, s->machine, o);
    LLVMDisposePassBuilderOptions(o);
    if (!failed)
        return ST_OK;
    char *text = LLVMGetErrorMessage(failed);
    Status status = fail(ST_COMPILE, "kernel %s: passes: %s", s->name, text);
    LLVMDisposeErrorMessage(text);
    return status;
}

static Status emit_file(Session *s, LLVMModuleRef module, LLVMCodeGenFileType type, void **out, size_t *bytes)
{
    LLVMMemoryBufferRef buffer = NULL;
    char *error = NULL;
    if (LLVMTargetMachineEmitToMemoryBuffer(s->machine, module, type, &error, &buffer)) {
        Status status = fail(ST_COMPILE, "kernel %s: %s", s->name, error ? error : "code generation failed");
        LLVMDisposeMessage(error);
        return status;
    }
    *bytes = LLVMGetBufferSize(buffer);
    char *copy = os_alloc(*bytes + 1);
    if (copy) {
        memcpy(copy, LLVMGetBufferStart(buffer), *bytes);
        copy[*bytes] = 0;
    }
    LLVMDisposeMemoryBuffer(buffer);
    *out = copy;
    return copy ? ST_OK : fail(ST_OUT_OF_MEMORY, "kernel %s: no memory for its code", s->name);
}

static Status print_ir(const Session *s, SessionOut *out)
{
    char *ir = LLVMPrintModuleToString(s->e.module);
    size_t bytes = strlen(ir) + 1, head = s->schedule ? strlen(s->schedule) : 0;
    out->ir = os_alloc(head + bytes);
    if (out->ir) {
        memcpy(out->ir, s->schedule ? s->schedule : "", head);
        memcpy(out->ir + head, ir, bytes);
    }
    LLVMDisposeMessage(ir);
    return out->ir ? ST_OK : fail(ST_OUT_OF_MEMORY, "kernel %s: no memory for its text", s->name);
}

static Status generate(Session *s, bool want_text, SessionOut *out)
{
    Emit *e = &s->e;
    char *error = NULL;
    Status status = launch_plan_make(e->launch, e->k->args.n, &out->launch);
    if (status != ST_OK)
        return fail(status, "kernel %s: %s", s->name, fail_message());
    if (LLVMVerifyModule(e->module, LLVMReturnStatusAction, &error))
        status = fail(ST_INTERNAL, "kernel %s: malformed IR: %s", s->name, error);
    LLVMDisposeMessage(error);
    if (status != ST_OK)
        return status;
    lint_spoil(s);
    TRY(lint_ir(s));
    TRY(optimise(s));
    if (s->how->after_passes)
        s->how->after_passes(s);
    if (want_text)
        TRY(print_ir(s, out)); /* code generation changes the module */
    TRY(emit_file(s, e->module, s->how->file, &out->code, &out->bytes));
    if (s->error[0])
        return fail(ST_COMPILE, "kernel %s: %s", s->name, s->error);
    TRY(s->how->check(s, out->code, out->bytes));
    return want_text && s->how->assembly ? s->how->assembly(out->code, out->bytes, &out->assembly) : ST_OK;
}

Status session_compile(const SessionTarget *how, const Emit *start, const char *name, bool want_text, SessionOut *out)
{
    *out = (SessionOut){0};
    jmp_buf oom;
    Session *volatile session = os_calloc(1, sizeof *session);
    if (!session)
        return fail(ST_OUT_OF_MEMORY, "kernel %s: no memory to compile it", name);
    volatile Status status = ST_OUT_OF_MEMORY;
    session->how = how;
    session->name = kernel_at_work = name;
    arena_init(&session->arena, &oom);
    if (setjmp(oom) == 0) {
        emit_init(session, start);
        session->machine = how->machine(session);
        if (session->machine) {
            set_machine(session);
            build(session);
        }
        status = !session->machine    ? fail(ST_COMPILE, "kernel %s: LLVM has no machine for its target", name)
                 : session->plan      ? session->plan
                 : session->e.refused ? fail(ST_UNSUPPORTED, "kernel %s: %s", name, session->e.refused)
                                      : generate(session, want_text, out);
    } else {
        fail(ST_OUT_OF_MEMORY, "kernel %s: no memory to compile it", name);
    }
    kernel_at_work = "";
    LLVMDisposeBuilder(session->e.b);
    LLVMDisposeModule(session->e.module);
    LLVMContextDispose(session->e.ctx);
    if (session->machine)
        how->release(session);
    arena_free(&session->arena);
    os_free(session);
    if (status != ST_OK) {
        launch_plan_free(&out->launch);
        os_free(out->code);
        os_free(out->ir);
        os_free(out->assembly);
        *out = (SessionOut){0};
    }
    return status;
}

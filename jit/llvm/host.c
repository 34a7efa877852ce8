/*
 * The host target: which vectors this CPU has, the target machine, the pass list, and emission of
 * the object.
 *
 * Vectors of 512 bits need AVX-512 F, BW, DQ, VL and CD; otherwise 256 bits with AVX2, FMA and
 * F16C, which is the least that kiln compiles for. The option `vector_bits` asks for less: 256 and
 * 128 then mean code for a CPU without AVX-512.
 *
 * An object must stand alone: no library is there to link it against. So "no-builtins" keeps LLVM
 * from inventing memset and friends, fma is an instruction, and the symbols of the finished object
 * are checked. LLVM aborts on some errors; therefore the module is verified before anything else
 * sees it.
 */
#include "jit/llvm/build.h"
#include "jit/llvm/emit.h"
#include "ir/base/log.h"
#include "ir/base/os.h"

#include <elf.h>
#include <llvm-c/Analysis.h>
#include <llvm-c/ErrorHandling.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>

/* ---- the host ---- */

static struct Host {
    once_flag once;
    bool usable;          /* AVX2, FMA, F16C */
    int bits;
    char triple[64], cpu[64];
    char features[2048], narrow[2112]; /* narrow: without AVX-512 */
    char target[2300], version[32];
    LLVMTargetRef llvm;
} host = {.once = ONCE_FLAG_INIT};

static _Thread_local const char *kernel_at_work = "";

static void fatal(const char *reason)
{
    log_warn("LLVM gave up on kernel %s: %s", kernel_at_work, reason);
}

/* Is "+name" among the comma-separated features? */
static bool has_feature(const char *features, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = features; (at = strstr(at, name)); at += n)
        if (at > features && at[-1] == '+' && (at[n] == ',' || at[n] == 0))
            return true;
    return false;
}

static bool has_all(const char *features, const char *const *names)
{
    for (; *names; names++)
        if (!has_feature(features, *names))
            return false;
    return true;
}

static void host_init(void)
{
    static const char *const least[] = {"avx2", "fma", "f16c", NULL};
    static const char *const wide[] = {"avx512f",  "avx512bw", "avx512dq",
                                       "avx512vl", "avx512cd", NULL};
    LLVMInstallFatalErrorHandler(fatal);
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    unsigned major, minor, patch;
    LLVMGetVersion(&major, &minor, &patch);
    snprintf(host.version, sizeof host.version, "%u.%u.%u", major, minor, patch);
    char *triple = LLVMGetDefaultTargetTriple(), *cpu = LLVMGetHostCPUName(),
         *features = LLVMGetHostCPUFeatures();
    char *error = NULL;
    if (triple && cpu && features) {
        snprintf(host.triple, sizeof host.triple, "%s", triple);
        snprintf(host.cpu, sizeof host.cpu, "%s", cpu);
        snprintf(host.features, sizeof host.features, "%s", features);
        snprintf(host.narrow, sizeof host.narrow, "%s,-avx512f,-avx10.1-256,-evex512", features);
        host.usable = strlen(features) < sizeof host.features && has_all(features, least) &&
                      LLVMGetTargetFromTriple(host.triple, &host.llvm, &error) == 0;
        host.bits = has_all(features, wide) ? 512 : 256;
    }
    snprintf(host.target, sizeof host.target, "%.63s %.63s %s", host.triple, host.cpu,
             host.features);
    LLVMDisposeMessage(triple);
    LLVMDisposeMessage(cpu);
    LLVMDisposeMessage(features);
    LLVMDisposeMessage(error);
}

static const struct Host *host_get(void)
{
    call_once(&host.once, host_init);
    return &host;
}

static int vector_bits(const JitOptions *options)
{
    int most = host_get()->bits;
    int64_t asked = options->value[OPT_VECTOR_BITS];
    return (asked == 128 || asked == 256 || asked == 512) && asked < most ? (int)asked : most;
}

const char *llvm_host_target(void) { return host_get()->target; }

const char *llvm_version(void) { return host_get()->version; }

int llvm_host_lanes(const JitOptions *options) { return vector_bits(options) / 32; }

/* ---- one compilation ---- */

typedef struct Session {
    Emit e;
    Arena arena;
    LLVMTargetMachineRef machine;
    const char *name;
    char error[512];      /* what a diagnostic said */
    Status status;
} Session;

static void on_diagnostic(LLVMDiagnosticInfoRef info, void *user)
{
    Session *s = user;
    char *text = LLVMGetDiagInfoDescription(info);
    if (LLVMGetDiagInfoSeverity(info) == LLVMDSError && !s->error[0])
        snprintf(s->error, sizeof s->error, "%s", text);
    LLVMDisposeMessage(text);
}

static LLVMTargetMachineRef machine_new(const Session *s)
{
    const struct Host *h = host_get();
    int64_t effort = s->e.options->value[OPT_LLVM_OPT];
    LLVMCodeGenOptLevel level = effort <= 0   ? LLVMCodeGenLevelNone
                                : effort == 1 ? LLVMCodeGenLevelLess
                                              : LLVMCodeGenLevelDefault;
    return LLVMCreateTargetMachine(h->llvm, h->triple, h->cpu,
                                   s->e.bits == 512 ? h->features : h->narrow, level, LLVMRelocPIC,
                                   LLVMCodeModelSmall);
}

static void attribute(Session *s, LV fn, const char *key, const char *text)
{
    LLVMAttributeRef a = LLVMCreateStringAttribute(s->e.ctx, key, (unsigned)strlen(key), text,
                                                   (unsigned)strlen(text));
    LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, a);
}

static void attributes(Session *s)
{
    char bits[8];
    snprintf(bits, sizeof bits, "%d", s->e.bits);
    unsigned nounwind = LLVMGetEnumAttributeKindForName("nounwind", 8);
    for (LV fn = LLVMGetFirstFunction(s->e.module); fn; fn = LLVMGetNextFunction(fn)) {
        if (LLVMIsDeclaration(fn))
            continue;
        attribute(s, fn, "min-legal-vector-width", bits);
        attribute(s, fn, "prefer-vector-width", bits);
        attribute(s, fn, "no-builtins", "");
        LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                                LLVMCreateEnumAttribute(s->e.ctx, nounwind, 0));
    }
}

static void emit_init(Session *s, const Kernel *kernel, const JitOptions *options)
{
    Emit *e = &s->e;
    *e = (Emit){.k = kernel, .arena = &s->arena, .options = options, .math = options_math(options)};
    e->bits = vector_bits(options);
    e->ctx = LLVMContextCreate();
    LLVMContextSetDiagnosticHandler(e->ctx, on_diagnostic, s);
    e->module = LLVMModuleCreateWithNameInContext("kiln", e->ctx);
    e->b = LLVMCreateBuilderInContext(e->ctx);
    static const unsigned widths[] = {1, 8, 16, 32, 64};
    for (int t = SC_I1; t <= SC_I64; t++)
        e->type[t] = LLVMIntTypeInContext(e->ctx, widths[t]);
    e->type[SC_F32] = LLVMFloatTypeInContext(e->ctx);
    e->type[SC_F64] = LLVMDoubleTypeInContext(e->ctx);
    e->half = LLVMHalfTypeInContext(e->ctx);
    e->ptr = LLVMPointerTypeInContext(e->ctx, 0);
}

/* Takes the IR from the kernel; the arena may jump past this frame only to llvm_emit_host's. */
static void build(Session *s)
{
    Emit *e = &s->e;
    const Kernel *k = e->k;
    e->val = ARENA_ARRAY(&s->arena, struct ValMemo, k->inst.n + 1);
    e->ix = ARENA_ARRAY(&s->arena, struct IxMemo, k->idx.n + 1);
    e->arg = ARENA_ARRAY(&s->arena, struct ArgMemo, k->args.n + 1);
    emit_plan(e);
    if (k->form == FORM_CONTRACT)
        emit_contract(e);
    else
        emit_loops(e);
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

/* An object with an undefined symbol cannot be loaded: say which. */
static Status lint(const Session *s, const unsigned char *object, size_t bytes)
{
    Elf64_Ehdr h;
    if (bytes < sizeof h)
        return fail(ST_COMPILE, "kernel %s: no object", s->name);
    memcpy(&h, object, sizeof h);
    for (unsigned i = 0; i < h.e_shnum; i++) {
        Elf64_Shdr section, strings;
        memcpy(&section, object + h.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_SYMTAB)
            continue;
        memcpy(&strings, object + h.e_shoff + section.sh_link * sizeof strings, sizeof strings);
        for (size_t at = sizeof(Elf64_Sym); at + sizeof(Elf64_Sym) <= section.sh_size;
             at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, object + section.sh_offset + at, sizeof symbol);
            if (symbol.st_shndx == SHN_UNDEF)
                return fail(ST_COMPILE, "kernel %s: LLVM called the library function %s", s->name,
                            (const char *)object + strings.sh_offset + symbol.st_name);
        }
    }
    return ST_OK;
}

static Status emit_file(Session *s, LLVMModuleRef module, LLVMCodeGenFileType type, void **out,
                        size_t *bytes)
{
    LLVMMemoryBufferRef buffer = NULL;
    char *error = NULL;
    if (LLVMTargetMachineEmitToMemoryBuffer(s->machine, module, type, &error, &buffer)) {
        Status status =
            fail(ST_COMPILE, "kernel %s: %s", s->name, error ? error : "code generation failed");
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

static Status texts(Session *s, Emitted *out)
{
    char *ir = LLVMPrintModuleToString(s->e.module);
    size_t n = strlen(ir) + 1;
    out->ir = os_alloc(n);
    if (out->ir)
        memcpy(out->ir, ir, n);
    LLVMDisposeMessage(ir);
    if (!out->ir)
        return fail(ST_OUT_OF_MEMORY, "kernel %s: no memory for its text", s->name);
    LLVMModuleRef copy = LLVMCloneModule(s->e.module); /* code generation changes the module */
    Status status = emit_file(s, copy, LLVMAssemblyFile, (void **)&out->assembly, &n);
    LLVMDisposeModule(copy);
    return status;
}

static Status generate(Session *s, bool want_text, Emitted *out)
{
    Emit *e = &s->e;
    LLVMSetTarget(e->module, host_get()->triple);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(s->machine);
    LLVMSetModuleDataLayout(e->module, layout);
    LLVMDisposeTargetData(layout);
    char *error = NULL;
    Status status = ST_OK;
    if (LLVMVerifyModule(e->module, LLVMReturnStatusAction, &error))
        status = fail(ST_INTERNAL, "kernel %s: malformed IR: %s", s->name, error);
    LLVMDisposeMessage(error);
    if (status != ST_OK)
        return status;
    TRY(optimise(s));
    if (want_text)
        TRY(texts(s, out));
    TRY(emit_file(s, e->module, LLVMObjectFile, &out->object, &out->bytes));
    if (s->error[0])
        return fail(ST_COMPILE, "kernel %s: %s", s->name, s->error);
    return lint(s, out->object, out->bytes);
}

Status llvm_emit_host(const Kernel *kernel, const char *name, const JitOptions *options,
                      bool want_text, Emitted *out)
{
    *out = (Emitted){0};
    if (!host_get()->usable)
        return fail(ST_UNSUPPORTED,
                    "this CPU (%s) lacks AVX2, FMA or F16C, which compiled kernels need", host.cpu);
    jmp_buf oom;
    Session *volatile session = os_calloc(1, sizeof *session);
    if (!session)
        return fail(ST_OUT_OF_MEMORY, "kernel %s: no memory to compile it", name);
    volatile Status status = ST_OUT_OF_MEMORY;
    session->name = kernel_at_work = name;
    arena_init(&session->arena, &oom);
    if (setjmp(oom) == 0) {
        emit_init(session, kernel, options);
        build(session);
        session->machine = machine_new(session);
        status = session->machine ? generate(session, want_text, out)
                                  : fail(ST_COMPILE, "LLVM has no target machine for %s", host.cpu);
    } else {
        fail(ST_OUT_OF_MEMORY, "kernel %s: no memory to compile it", name);
    }
    kernel_at_work = "";
    if (session->machine)
        LLVMDisposeTargetMachine(session->machine);
    LLVMDisposeBuilder(session->e.b);
    LLVMDisposeModule(session->e.module);
    LLVMContextDispose(session->e.ctx);
    arena_free(&session->arena);
    os_free(session);
    if (status != ST_OK) {
        os_free(out->object);
        os_free(out->ir);
        os_free(out->assembly);
        *out = (Emitted){0};
    }
    return status;
}

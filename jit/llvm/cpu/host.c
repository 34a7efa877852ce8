/*
 * The host target: which vectors this CPU has, the target machine, and what makes an object stand alone.
 *
 * Vectors of 512 bits need AVX-512 F, BW, DQ, VL and CD; otherwise 256 bits with AVX2, FMA and
 * F16C, which is the least that kiln compiles for. The option `vector_bits` asks for less: 256 and
 * 128 then mean code for a CPU without AVX-512. The option `cpu` asks for the code of another CPU; any can be compiled for (tests look at
 * the objects), but only what llvm_host_runs allows is executed.
 *
 * An object must stand alone: no library is there to link it against. So "no-builtins" keeps LLVM
 * from inventing memset and friends, fma is an instruction, and the symbols of the finished object
 * are checked.
 */
#include "ir/base/os.h"
#include "jit/host_cpu.h"
#include "jit/llvm/cpu/subnormals.h"
#include "jit/llvm/disassemble.h"
#include "jit/llvm/emit.h"
#include "jit/llvm/session.h"
#include "jit/target.h"

#include <elf.h>
#include <llvm-c/Target.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the host ---- */

static struct Host {
    pthread_once_t once;
    bool usable, v3, v4; /* AVX2, FMA, F16C; what those levels have */
    int bits;
    char triple[64], cpu[64];
    char features[2048], narrow[2112]; /* narrow: without AVX-512 */
    char target[2300], version[32];
    LLVMTargetRef llvm;
} host = {.once = PTHREAD_ONCE_INIT};

/*
 * Features of which LLVM 19 says what it happens to find: it asks leaves 0x14, 0x19 and 0x24 of cpuid without setting the subleaf that they
 * look at (sys::getHostCPUFeatures). Equal CPUs must get equal code, so they are never used; no code of ours needs them.
 */
static const char by_chance[] = ",-ptwrite,-widekl,-avx10.1-512,-vzeroupper"; /* the last: see zero_upper */

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
    static const char *const v3[] = {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", NULL};
    static const char *const wide[] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", NULL};
    session_init();
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeX86AsmParser();
    LLVMInitializeX86Disassembler();
    unsigned major, minor, patch;
    LLVMGetVersion(&major, &minor, &patch);
    snprintf(host.version, sizeof host.version, "%u.%u.%u", major, minor, patch);
    char *triple = LLVMGetDefaultTargetTriple(), *cpu = LLVMGetHostCPUName(), *features = LLVMGetHostCPUFeatures();
    char *error = NULL;
    if (triple && cpu && features) {
        snprintf(host.triple, sizeof host.triple, "%s", triple);
        snprintf(host.cpu, sizeof host.cpu, "%s", cpu);
        snprintf(host.features, sizeof host.features, "%s%s", features, by_chance);
        snprintf(host.narrow, sizeof host.narrow, "%s,-avx512f,-avx10.1-256,-evex512", host.features);
        host.usable = strlen(features) + sizeof by_chance <= sizeof host.features && has_all(features, least) &&
                      LLVMGetTargetFromTriple(host.triple, &host.llvm, &error) == 0;
        host.bits = has_all(features, wide) ? 512 : 256;
        host.v3 = host.usable && has_all(features, v3);
        host.v4 = host.v3 && host.bits == 512;
    }
    snprintf(host.target, sizeof host.target, "%.63s %.63s %s", host.triple, host.cpu, host.features);
    LLVMDisposeMessage(triple);
    LLVMDisposeMessage(cpu);
    LLVMDisposeMessage(features);
    LLVMDisposeMessage(error);
}

static const struct Host *host_get(void)
{
    (void)pthread_once(&host.once, host_init);
    return &host;
}

static int vector_bits(const JitOptions *options)
{
    int64_t cpu = options->value[OPT_CPU];
    int most = cpu == CPU_HOST ? host_get()->bits : cpu == CPU_V3 ? 256 : 512;
    int64_t asked = options->value[OPT_VECTOR_BITS];
    return (asked == 128 || asked == 256 || asked == 512) && asked < most ? (int)asked : most;
}

/*
 * Zen 3 and 4 (family 25) say that they have it, but it is no faster there than vectors, and much slower at some addresses: the C library
 * (glibc, bug 30994) does not use it there either.
 */
bool llvm_host_copies(const JitOptions *options)
{
    return options->value[OPT_CPU] == CPU_HOST && strstr(host_cpu_features(), " ermsb ") &&
           strncmp(host_cpu_name(), "AuthenticAMD 25 ", 16) != 0 && !llvm_host_asks(options);
}

/*
 * Servers of Skylake's and Cascade Lake's cores keep a line that leaves past the caches for long: two threads that copy 16 and 64 MB, GB/s in and
 * out: stores 22 and 17, past the caches 21 and 19, one string instruction 22 and 18, asked for 16 lines ahead 35 and 24. Where many more cores share
 * the memory its bandwidth, not its latency, may be the limit: not measured.
 */
bool llvm_host_asks(const JitOptions *options)
{
    return options->value[OPT_CPU] == CPU_HOST && strcmp(host_cpu_name(), "GenuineIntel 6 85") == 0;
}

const char *llvm_host_target(void) { return host_get()->target; }

const char *llvm_version(void) { return host_get()->version; }

Status llvm_host_runs(const JitOptions *options)
{
    const struct Host *h = host_get();
    int64_t cpu = options->value[OPT_CPU];
    char hook[32];
    bool hidden = strcmp(option_text(OPT_TEST_FAIL, hook, sizeof hook), "cpu:-avx512f") == 0;
    if (!h->usable)
        return fail(ST_UNSUPPORTED, "this CPU (%s) lacks AVX2, FMA or F16C, which compiled kernels need", h->cpu);
    if ((cpu == CPU_V3 && !h->v3) || (cpu == CPU_V4 && (!h->v4 || hidden)))
        return fail(ST_UNSUPPORTED, "this CPU (%s) cannot run code for %s, which the option cpu asks for", h->cpu,
                    cpu == CPU_V3 ? "x86-64-v3" : "x86-64-v4");
    return ST_OK;
}

/* ---- one compilation ---- */

/*
 * A target machine reads the features' text when it is made, and again for the first function: a quarter of what a small kernel takes. So
 * those that compilations have used wait here for the next ones. One is used by one compilation at a time.
 */
typedef struct Machine {
    LLVMTargetMachineRef llvm;
    int64_t cpu;
    int bits;
    LLVMCodeGenOptLevel effort;
} Machine;
enum { IDLE_MACHINES = 8 };
static _Atomic(Machine *) idle[IDLE_MACHINES];

static void machine_free(Machine *m)
{
    LLVMDisposeTargetMachine(m->llvm);
    os_free(m);
}

static void make_idle(Machine *m)
{
    Machine *none = NULL;
    for (int i = 0; i < IDLE_MACHINES; i++, none = NULL)
        if (atomic_compare_exchange_strong(&idle[i], &none, m))
            return;
    machine_free(m);
}

static LLVMTargetMachineRef take_idle(const Machine *want)
{
    for (int i = 0; i < IDLE_MACHINES; i++) {
        Machine *m = atomic_exchange(&idle[i], NULL);
        if (!m)
            continue;
        if (m->cpu == want->cpu && m->bits == want->bits && m->effort == want->effort) {
            LLVMTargetMachineRef llvm = m->llvm;
            os_free(m);
            return llvm;
        }
        make_idle(m);
    }
    return NULL;
}

static Machine machine_wanted(const Session *s)
{
    return (Machine){.cpu = s->e.options->value[OPT_CPU], .bits = s->e.bits, .effort = session_effort(s)};
}

static LLVMTargetMachineRef host_machine(const Session *s)
{
    const struct Host *h = host_get();
    Machine want = machine_wanted(s);
    LLVMTargetMachineRef llvm = take_idle(&want);
    if (llvm)
        return llvm;
    const char *name = want.cpu == CPU_HOST ? h->cpu : want.bits == 512 ? "x86-64-v4" : "x86-64-v3";
    const char *features = want.cpu != CPU_HOST ? "-vzeroupper" : want.bits == 512 ? h->features : h->narrow;
    return LLVMCreateTargetMachine(h->llvm, h->triple, name, features, want.effort, LLVMRelocPIC, LLVMCodeModelSmall);
}

static void host_release(const Session *s)
{
    Machine *m = os_alloc(sizeof *m);
    if (!m) {
        LLVMDisposeTargetMachine(s->machine);
        return;
    }
    *m = machine_wanted(s);
    m->llvm = s->machine;
    make_idle(m);
}

/*
 * With 512 bits there are 32 registers, which cold blocks may use, if LLVM knows that they are cold when it moves constants out of loops and chooses
 * what to keep: it asks for a function's entry count. (With 16 it would rather save everything in the cold block.)
 */
static void count_entries(Session *s, LV fn)
{
    LLVMMetadataRef count[] = {LLVMMDStringInContext2(s->e.ctx, "function_entry_count", 20),
                               LLVMValueAsMetadata(LLVMConstInt(s->e.type[SC_I64], 1000, 0))};
    LLVMGlobalSetMetadata(fn, LLVMGetMDKindIDInContext(s->e.ctx, "prof", 4), LLVMMDNodeInContext2(s->e.ctx, count, 2));
}

/*
 * LLVM 19 puts a vzeroupper in front of returns without vectors, also where the convention is that the function keeps all registers, and so loses
 * halves of them. So it is told to put none anywhere, and the functions that others call have one at their ends.
 */
static void zero_upper(Session *s, LV fn)
{
    Emit *e = &s->e;
    if (LLVMGetLinkage(fn) == LLVMInternalLinkage)
        return;
    for (LLVMBasicBlockRef b = LLVMGetFirstBasicBlock(fn); b; b = LLVMGetNextBasicBlock(b)) {
        LV end = LLVMGetBasicBlockTerminator(b);
        if (LLVMGetInstructionOpcode(end) != LLVMRet)
            continue;
        LLVMPositionBuilderBefore(e->b, end);
        l_intrinsic(e, "llvm.x86.avx.vzeroupper", NULL, 0, NULL, 0);
    }
}

static void host_attributes(Session *s, LV fn)
{
    char bits[8];
    snprintf(bits, sizeof bits, "%d", s->e.bits);
    session_attribute(s, fn, "min-legal-vector-width", bits);
    session_attribute(s, fn, "prefer-vector-width", bits);
    session_attribute(s, fn, "no-builtins", "");
    zero_upper(s, fn);
    /* A vector saved at an address that is no multiple of its size may be slow to read back: calls in cold blocks took three times as long. */
    unsigned align = LLVMGetEnumAttributeKindForName("alignstack", 10);
    LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                            LLVMCreateEnumAttribute(s->e.ctx, align, s->e.bits == 512 ? 64 : 32));
    if (s->e.bits == 512)
        count_entries(s, fn);
}

/*
 * LLVM's -O2 (KILN_LLVM_OPT=2) compares halves as such where one is a constant, and takes the smaller: LLVM 19's code generator makes a minimum of
 * that, which for halves is a call of fminf. So what is chosen by comparing halves are their bits.
 */
static LV choose_bits(Session *s, LV select)
{
    Emit *e = &s->e;
    LLVMTypeRef type = LLVMTypeOf(select), bits = e->type[SC_I16];
    if (LLVMGetTypeKind(type) == LLVMVectorTypeKind)
        bits = LLVMVectorType(bits, LLVMGetVectorSize(type));
    LV yes = LLVMBuildBitCast(e->b, LLVMGetOperand(select, 1), bits, ""), no = LLVMBuildBitCast(e->b, LLVMGetOperand(select, 2), bits, "");
    return LLVMBuildBitCast(e->b, LLVMBuildSelect(e->b, LLVMGetOperand(select, 0), yes, no, ""), type, "");
}

static bool is_half(LV v)
{
    LLVMTypeRef type = LLVMTypeOf(v);
    return LLVMGetTypeKind(LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMGetElementType(type) : type) == LLVMHalfTypeKind;
}

static bool chooses_halves(LV v)
{
    return LLVMIsASelectInst(v) && is_half(v) && LLVMIsAFCmpInst(LLVMGetOperand(v, 0)) && is_half(LLVMGetOperand(LLVMGetOperand(v, 0), 0));
}

static void without_minima(Session *s) { session_rewrite(s, chooses_halves, choose_bits); }

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
        for (size_t at = sizeof(Elf64_Sym); at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, object + section.sh_offset + at, sizeof symbol);
            if (symbol.st_shndx == SHN_UNDEF)
                return fail(ST_COMPILE, "kernel %s: LLVM called the library function %s", s->name,
                            (const char *)object + strings.sh_offset + symbol.st_name);
        }
    }
    return ST_OK;
}

static Status host_assembly(const void *code, size_t bytes, char **text)
{
    /* every instruction that any level has */
    return disassemble(host.triple, host.cpu, "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd", code, bytes, text);
}

static const Target host_target = {
    .calls = true,
    .plan = plan_host,
    .load = load_host,
    .store = store_host,
    .fault = fault_host,
    .normal = subnormals_normal,
    .loops = emit_loops,
    .contract = emit_contract,
};

static const SessionTarget host_session = {
    .target = &host_target,
    .machine = host_machine,
    .release = host_release,
    .attributes = host_attributes,
    .file = LLVMObjectFile,
    .after_passes = without_minima,
    .check = lint,
    .assembly = host_assembly,
};

void llvm_host_schedule(const Kernel *kernel, const JitOptions *options, Arena *arena, Schedule *out, Str *nest)
{
    Emit e = {.k = kernel, .target = &host_target, .arena = arena, .options = options, .math = options_math(options)};
    e.bits = vector_bits(options);
    emit_plan(&e);
    *out = e.schedule;
    if (nest && e.nest.phase != NEST_NONE)
        nest_print(&e.nest, &e.facts, nest);
}

Status llvm_emit_host(const Kernel *kernel, const char *name, const JitOptions *options, bool want_text, Emitted *out)
{
    *out = (Emitted){0};
    if (session_fails())
        return fail(ST_COMPILE, "KILN_TEST_FAIL asked for this failure");
    if (!host_get()->llvm)
        return fail(ST_UNSUPPORTED, "LLVM has no code generator for this CPU (%s)", host.cpu);
    for (VRef v = 0; v < kernel->inst.n; v++)
        if (kernel->inst.at[v].order.kind == ORD_PAIRS &&
            !(target_order(options) == ORDER_HOST_PAIRS && has_feature(host.features, "avx512bf16")))
            return fail(ST_UNSUPPORTED,
                        "this CPU (%s), or what the options cpu and vector_bits leave of it, does not multiply pairs of bf16", host.cpu);
    for (uint32_t a = 0; a < kernel->args.n; a++)
        if (kernel->args.at[a].panel && dtype_bytes((DType)kernel->args.at[a].dtype) == 1 &&
            !target_multiplies_fours(options, vector_bits(options)))
            return fail(ST_UNSUPPORTED,
                        "this CPU (%s), or what the options cpu and vector_bits leave of it, does not multiply four bytes at a time",
                        host.cpu);
    LaunchBuilder launch = {0};
    Emit start = {.k = kernel, .options = options, .bits = vector_bits(options), .launch = &launch};
    SessionOut result;
    TRY(session_compile(&host_session, &start, name, want_text, &result));
    *out = (Emitted){result.launch, result.code, result.bytes, result.ir, result.assembly};
    return ST_OK;
}

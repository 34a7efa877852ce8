/*
 * The CUDA target: LLVM's machine for it, entry functions, and PTX.
 *
 * Numbers. Strict mode promises the interpreter's bits, so nothing may be contracted: LLVM's NVPTX back end fuses a
 * multiplication with an addition only when the module or the machine allows it, which nothing here does; then it writes
 * mul.rn and add.rn, which ptxas leaves alone. Subnormals are kept (no .ftz), division and square root are .rn.
 * tests/unit/test_ptx.c looks for all of that in the text.
 */
#include "jit/llvm/cuda/cuda.h"
#include "ir/base/os.h"
#include "jit/llvm/emit.h"
#include "jit/llvm/session.h"
#include "jit/options.h"

#include <ctype.h>
#include <llvm-c/Target.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define TRIPLE "nvptx64-nvidia-cuda"
enum { MOST_STATIC = 48 * 1024 }; /* bytes of shared memory */

static LLVMTargetRef nvptx; /* set once */

static void cuda_init(void)
{
    char *error = NULL;
    session_init();
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
    if (LLVMGetTargetFromTriple(TRIPLE, &nvptx, &error))
        nvptx = NULL;
    LLVMDisposeMessage(error);
}

static LLVMTargetMachineRef cuda_machine(const Session *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, cuda_init);
    if (!nvptx)
        return NULL;
    const CudaTarget *t = s->e.cuda;
    char cpu[16], features[16];
    snprintf(cpu, sizeof cpu, "sm_%d%s", t->sm, t->arch ? "a" : "");
    snprintf(features, sizeof features, "+ptx%d", t->ptx);
    return LLVMCreateTargetMachine(nvptx, TRIPLE, cpu, features, session_effort(s), LLVMRelocDefault, LLVMCodeModelDefault);
}

static void cuda_release(const Session *s) { LLVMDisposeTargetMachine(s->machine); }

/* Entries take the argument block as it has become: with a slot for each divisor that some of them has asked for. */
static void entry_attributes(Session *s, LV fn)
{
    Emit *e = &s->e;
    unsigned byval = LLVMGetEnumAttributeKindForName("byval", 5), align = LLVMGetEnumAttributeKindForName("align", 5);
    unsigned slots = e->k->args.n + e->launch->numbered + e->launch->n_divisors;
    if (e->launch->by_pointer)
        return;
    LLVMTypeRef block = LLVMArrayType2(e->type[SC_I64], slots ? slots : 1);
    LLVMAddAttributeAtIndex(fn, 1, LLVMCreateTypeAttribute(e->ctx, byval, block));
    LLVMAddAttributeAtIndex(fn, 1, LLVMCreateEnumAttribute(e->ctx, align, 8));
}

/*
 * LLVM's -O2 (KILN_LLVM_OPT=2) makes one load of sixteen bytes of sixteen, aligned to one; LLVM 19's back end takes <16 x i8> for aligned to
 * sixteen. So bytes that are aligned to less than they are many are loaded one by one.
 */
static LV split_load(Session *s, LV load)
{
    Emit *e = &s->e;
    LLVMTypeRef type = LLVMTypeOf(load), element = LLVMGetElementType(type);
    unsigned lanes = LLVMGetVectorSize(type);
    LV all = LLVMGetPoison(type), pointer = LLVMGetOperand(load, 0);
    for (unsigned i = 0; i < lanes; i++) {
        LV v = LLVMBuildLoad2(e->b, element, l_gep(e, element, pointer, l_i64(e, i)), "");
        LLVMSetAlignment(v, 1);
        all = LLVMBuildInsertElement(e->b, all, v, LLVMConstInt(e->type[SC_I32], i, 0), "");
    }
    return all;
}

static bool is_underaligned(LV v)
{
    if (!LLVMIsALoadInst(v) || LLVMGetTypeKind(LLVMTypeOf(v)) != LLVMVectorTypeKind)
        return false;
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(v));
    return LLVMGetTypeKind(element) == LLVMIntegerTypeKind && LLVMGetIntTypeWidth(element) == 8 &&
           LLVMGetAlignment(v) < LLVMGetVectorSize(LLVMTypeOf(v));
}

static void split_loads(Session *s) { session_rewrite(s, is_underaligned, split_load); }

static Status check_text(const Session *s, const unsigned char *code, size_t bytes)
{
    if (strstr((const char *)code, ".extern .func") || !bytes)
        return fail(ST_COMPILE, "kernel %s: the PTX calls a function that is not there", s->name);
    return ST_OK;
}

/* ---- entries ---- */

static void annotate(Emit *e, LV fn, const char *what, unsigned value)
{
    LLVMMetadataRef all[3] = {LLVMValueAsMetadata(fn), LLVMMDStringInContext2(e->ctx, what, strlen(what)),
                              LLVMValueAsMetadata(LLVMConstInt(e->type[SC_I32], value, 0))};
    LLVMAddNamedMetadataOperand(e->module, "nvvm.annotations", LLVMMetadataAsValue(e->ctx, LLVMMDNodeInContext2(e->ctx, all, 3)));
}

/* PTX names: letters, digits, '_'. Room for a suffix is kept. */
static void entry_name(const Emit *e, const char *suffix, char out[LAUNCH_NAME])
{
    enum { MOST = LAUNCH_NAME - 24 };
    int n = snprintf(out, MOST, "kiln_%s", e->name);
    n = n >= MOST ? MOST - 1 : n;
    for (int i = 0; i < n; i++)
        if (!isalnum((unsigned char)out[i]))
            out[i] = '_';
    snprintf(out + n, LAUNCH_NAME - (size_t)n, "%.20s", suffix);
}

/* A kernel that overwrites what may be needed as it was returns where an earlier one found an index out of bounds: all of its threads do,
 * since it finds none itself. (A loop that may, up to its bound, does not begin then: cuda/reduce.c.) */
static void stop_where_one_failed(Emit *e)
{
    for (uint32_t a = 0; a < e->k->args.n && kernel_ending(e->k) == VREF_NONE; a++) {
        if (!e->k->args.at[a].stops)
            continue;
        LV word = l_load(e, e->type[SC_I64], argument(e, a), 8), none = LLVMConstNull(e->type[SC_I64]);
        LLVMBasicBlockRef stop = l_block(e, "stop"), go_on = l_block(e, "go_on");
        LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntNE, word, none, ""), stop, go_on);
        l_at(e, stop);
        cuda_return(e);
        l_at(e, go_on);
    }
}

LV cuda_entry(Emit *e, const char *suffix, unsigned threads, unsigned min_blocks, LaunchPhase **phase)
{
    char name[LAUNCH_NAME];
    entry_name(e, suffix, name);
    LLVMTypeRef param = LLVMPointerTypeInContext(e->ctx, e->launch->by_pointer ? CUDA_GLOBAL : 0);
    LV fn = LLVMAddFunction(e->module, name, LLVMFunctionType(LLVMVoidTypeInContext(e->ctx), &param, 1, 0));
    annotate(e, fn, "kernel", 1);
    annotate(e, fn, "maxntidx", threads);
    if (min_blocks > 1)
        annotate(e, fn, "minctasm", min_blocks);
    *phase = launch_phase(e->launch, name, threads);
    function_open(e, fn, NULL);
    stop_where_one_failed(e);
    pin(e, LV_TASK);
    e->cur = LV_ROW;
    return fn;
}

void cuda_return(Emit *e) { LLVMBuildRetVoid(e->b); }

LV cuda_special(Emit *e, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "llvm.nvvm.read.ptx.sreg.%s", name);
    return LLVMBuildZExt(e->b, l_intrinsic(e, full, NULL, 0, NULL, 0), e->type[SC_I64], "");
}

LV cuda_shared(Emit *e, uint64_t bytes, const char *name)
{
    LLVMTypeRef type = LLVMArrayType2(e->type[SC_I8], bytes);
    LV g = LLVMAddGlobalInAddressSpace(e->module, type, name, CUDA_SHARED);
    LLVMSetInitializer(g, LLVMGetUndef(type));
    LLVMSetLinkage(g, LLVMInternalLinkage);
    LLVMSetAlignment(g, MOST_BYTES);
    return g;
}

LV cuda_shared_by(Emit *e, LaunchPhase *phase, uint64_t bytes, const char *name)
{
    if (bytes <= MOST_STATIC)
        return cuda_shared(e, bytes, name);
    phase->local = launch_const(e->launch, (int64_t)bytes);
    LV g = LLVMAddGlobalInAddressSpace(e->module, LLVMArrayType2(e->type[SC_I8], 0), name, CUDA_SHARED);
    LLVMSetAlignment(g, MOST_BYTES);
    return g;
}

/* ---- copies ---- */

Copy *copy_new(Emit *e)
{
    Copy *c = ARENA_NEW(e->arena, Copy);
    c->val = e->inner_val = ARENA_ARRAY(e->arena, struct ValMemo, e->k->inst.n + 1);
    c->ix = e->inner_ix = ARENA_ARRAY(e->arena, struct IxMemo, e->k->idx.n + 1);
    return c;
}

void copy_leave(Emit *e, Copy *c)
{
    memcpy(c->scope, e->scope, sizeof c->scope);
    memcpy(c->before, e->before, sizeof c->before);
    memcpy(c->axis, e->axis, sizeof c->axis);
    c->flat = e->flat, c->mask = e->mask, c->inside = e->inside, c->cur = e->cur;
    c->slot = e->slot, c->partial = e->partial;
}

void copy_enter(Emit *e, const Copy *c)
{
    e->inner_val = c->val, e->inner_ix = c->ix;
    for (int l = e->inner; l < LV_COUNT; l++)
        e->scope[l] = c->scope[l], e->before[l] = c->before[l];
    memcpy(e->axis, c->axis, sizeof e->axis);
    e->flat = c->flat, e->mask = c->mask, e->inside = c->inside, e->cur = c->cur;
    e->slot = c->slot, e->partial = c->partial;
}

/* ---- the target ---- */

static LV asm_call(Emit *e, const char *text, const char *operands, LLVMTypeRef out, LV *in, unsigned n)
{
    LLVMTypeRef f32 = e->type[SC_F32], type = LLVMFunctionType(out, (LLVMTypeRef[]){f32, f32}, n, 0);
    LV call = LLVMGetInlineAsm(type, text, strlen(text), operands, strlen(operands), 0, 0, LLVMInlineAsmDialectATT, 0);
    return LLVMBuildCall2(e->b, type, call, in, n, "");
}

static LV anew_cuda(Emit *e, LV pointer)
{
    static const char text[] = "mov.b64 $0, $1;", operands[] = "=l,l";
    LLVMTypeRef t = e->type[SC_I64], type = LLVMFunctionType(t, &t, 1, 0);
    LV move = LLVMGetInlineAsm(type, text, sizeof text - 1, operands, sizeof operands - 1, 1, 0, LLVMInlineAsmDialectATT, 0);
    LV from = LLVMBuildPtrToInt(e->b, pointer, t, ""), to = LLVMBuildCall2(e->b, type, move, &from, 1, "");
    return LLVMBuildIntToPtr(e->b, to, LLVMTypeOf(pointer), "");
}

/* f32 rounded to bf16, two lanes in one instruction; six for each by its tape. */
static Val to_bf16(Emit *e, Val x)
{
    LLVMTypeRef i16 = e->type[SC_I16], i32t = e->type[SC_I32];
    if (!x.vec || e->lanes == 1)
        return (Val){.v = asm_call(e, "cvt.rn.bf16.f32 $0, $1;", "=h,f", i16, &x.v, 1), .vec = x.vec};
    LV all = LLVMGetPoison(l_vec(e, i16));
    for (unsigned i = 0; i < (unsigned)e->lanes; i += 2) {
        LV at[2] = {LLVMConstInt(i32t, i + 1, 0), LLVMConstInt(i32t, i, 0)}; /* the first operand goes to the upper half */
        LV in[2] = {LLVMBuildExtractElement(e->b, x.v, at[0], ""), LLVMBuildExtractElement(e->b, x.v, at[1], "")};
        LV pair = asm_call(e, "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", i32t, in, 2);
        pair = LLVMBuildBitCast(e->b, pair, LLVMVectorType(i16, 2), "");
        for (unsigned j = 0; j < 2; j++) {
            LV one = LLVMBuildExtractElement(e->b, pair, LLVMConstInt(i32t, j, 0), "");
            all = LLVMBuildInsertElement(e->b, all, one, at[1 - j], "");
        }
    }
    return (Val){.v = all, .vec = true};
}

/* The greater of two f32, a NaN where one is, -0 below +0: six by its tape. */
static Val greater_or_less(Emit *e, const char *intrinsic, const Val *in)
{
    Val r = {.vec = in[0].vec || in[1].vec};
    LLVMTypeRef type = l_type(e, DT_F32, r.vec);
    LV both[2] = {in[0].v, in[1].v};
    for (int i = 0; i < 2 && r.vec; i++)
        both[i] = val_vector(e, in[i]);
    r.v = l_intrinsic(e, intrinsic, &type, 1, both, 2);
    return r;
}

/* Instructions since sm_80. */
static bool exact_cuda(Emit *e, Op op, const DType *in_types, DType to, const Val *in, Val *out)
{
    if (in_types[0] != DT_F32 || e->cuda->sm < 80 || e->cuda->ptx < 70)
        return false;
    bool choice = op == OP_MAXIMUM || op == OP_MINIMUM;
    if (!choice && !(op == OP_CAST && to == DT_BF16))
        return false;
    if (in)
        *out = choice ? greater_or_less(e, op == OP_MAXIMUM ? "llvm.maximum" : "llvm.minimum", in) : to_bf16(e, in[0]);
    return true;
}

static const Target cuda_target_table = {
    .space = CUDA_GLOBAL,
    .shared_reserved = GRID_COUNTER_BYTES,
    .scalar_lanes = true,
    .plan = plan_cuda,
    .load = load_cuda,
    .store = store_cuda,
    .fault = fault_cuda,
    .approximate = approximate_cuda,
    .exact = exact_cuda,
    .scan = scan_cuda,
    .divide = divide_cuda,
    .anew = anew_cuda,
    .loops = emit_threads,
    .contract = emit_contract_cuda,
    .sort = emit_sort_cuda,
    .attention = emit_attention_cuda,
};

static const SessionTarget cuda_session = {
    .target = &cuda_target_table,
    .machine = cuda_machine,
    .release = cuda_release,
    .attributes = entry_attributes,
    .after_passes = split_loads,
    .file = LLVMAssemblyFile,
    .check = check_text,
};

/* Does the argument block go through device memory? KILN_TEST_FAIL=block:N: if larger than N bytes, where no kernel of a test is large enough;
 * the plan says so, so what is compiled is right wherever it runs. The launches of a sort add a number to the block. */
static bool block_by_pointer(const Kernel *kernel)
{
    char hook[32];
    const char *lowered = strstr(option_text(OPT_TEST_FAIL, hook, sizeof hook), "block:");
    size_t most = lowered ? (size_t)strtoul(lowered + 6, NULL, 10) : GRID_BLOCK_BYTES;
    return kernel->form != FORM_SORT && kernel->args.n * sizeof(int64_t) > most;
}

/* Asked for one block of a kernel of two dots and values (jit/llvm/cuda/attention_chain.c), ptxas moves so much up that registers of sm_90 spill;
 * left to itself it needs far fewer than there are. */
static bool asks_for_one(const Kernel *k)
{
    uint32_t dots = 0;
    bool sums = false;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        dots += inst_is_dot(x);
        sums |= inst_is_chain(x) && !kernel_folds_scores(k, x);
    }
    return !sums || dots < 2 || kernel_attend_type(k) == DT_F32;
}

Status llvm_emit_ptx(const Kernel *kernel, const char *name, const JitOptions *options, const CudaTarget *target, bool want_text,
                     EmittedPtx *out)
{
    *out = (EmittedPtx){0};
    if (!cuda_target_known(target))
        return fail(ST_UNSUPPORTED, "no code for sm_%d%s with PTX %d.%d", target->sm, target->arch ? "a" : "", target->ptx / 10,
                    target->ptx % 10);
    LaunchBuilder launch = {.by_pointer = block_by_pointer(kernel)};
    launch.scratch = launch_const(&launch, 0);
    Emit start = {.k = kernel, .options = options, .cuda = target, .launch = &launch};
    SessionOut result;
    TRY(session_compile(&cuda_session, &start, name, want_text, &result));
    char *text = cuda_ask_for_blocks(result.code, &result.bytes, asks_for_one(kernel) ? 1 : 2);
    os_free(result.code);
    if (!text) {
        os_free(result.ir);
        launch_plan_free(&result.launch);
        return fail(ST_OUT_OF_MEMORY, "kernel %s: no memory for its code", name);
    }
    *out = (EmittedPtx){.ptx = text, .bytes = result.bytes, .ir = result.ir, .launch = result.launch};
    return ST_OK;
}

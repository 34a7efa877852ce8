/*
 * For the tests of the emitter: a reference executor of kernels, and a comparison of compiled code
 * with it.
 *
 * The reference takes one x point after another and computes each instruction for all r points at
 * once, in the order of the list, with tape_run and the orders of ir/orders.def written out.
 * Where values are carried from one r point to the next, that is done over and over: each time one more point has what it shall have.
 * It knows nothing of stages, lanes or phases, which is why the comparison is worth something.
 *
 * check_kernel compiles a kernel, runs it on guarded copies of the buffers with the tasks cut in
 * several ways, and compares every written buffer bit for bit (any NaN equals any NaN).
 */
#ifndef TESTS_UNIT_KERNEL_REF_H
#define TESTS_UNIT_KERNEL_REF_H

#include "ir/base/os.h"
#include "jit/kernel_table.h"
#include "jit/llvm/emit.h"
#include "tests/support/guarded.h"
#include "jit/target.h"
#include "tests/support/slice.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REF_ARGS = 16 };

/* A kernel made by hand gets its orders where it is known what for. */
static inline void set_orders(const Kernel *k, OrderDevice device, MathMode math)
{
    kernel_set_orders((Kernel *)(uintptr_t)k, device, math);
}

typedef struct RefRun {
    const Kernel *k;
    void *const *args;
    MathMode math;
    int64_t size[32], coord[32], points;
    int64_t *r_coord; /* [points][axes] */
    void **value;     /* per instruction: `points` elements of its dtype */
} RefRun;

static int64_t ref_index(const RefRun *f, IRef i, int64_t p)
{
    const Idx *x = &f->k->idx.at[i];
    switch ((IdxKind)x->kind) {
    case IX_CONST: return x->value;
    case IX_ARG: return (int64_t)(intptr_t)f->args[x->a];
    case IX_AXIS: return f->r_coord[p * (int64_t)f->k->axes.n + x->a];
    case IX_ADD: return ref_index(f, x->a, p) + ref_index(f, x->b, p);
    case IX_MUL: return ref_index(f, x->a, p) * ref_index(f, x->b, p);
    case IX_DIV: return ref_index(f, x->a, p) / ref_index(f, x->b, p);
    case IX_MOD: return ref_index(f, x->a, p) % ref_index(f, x->b, p);
    case IX_VALUE: return ((const int64_t *)f->value[x->a])[p];
    }
    return 0;
}

/* out = step(a, b) on one element */
static uint64_t ref_op2(Op op, DType t, uint64_t a, uint64_t b, MathMode math)
{
    uint64_t out = 0;
    const void *in[2] = {&a, &b};
    DType types[2] = {t, t};
    const Tape *tape = tape_get(op, types, t, math);
    cr_assert(tape_run(tape, types, t, 1, in, &out));
    return out;
}

static uint64_t ref_cast(DType from, DType to, uint64_t bits, MathMode math)
{
    uint64_t out = 0;
    const void *in[1] = {&bits};
    if (from == to)
        return bits;
    cr_assert(tape_run(tape_get(OP_CAST, &from, to, math), &from, to, 1, in, &out));
    return out;
}

/* Element i to lane i % lanes, then the tree. */
static uint64_t ref_block(Fold fold, DType acc, int lanes, const uint64_t *x, int64_t n, MathMode math)
{
    uint64_t lane[1024];
    Op step = (Op)fold_info[fold].step;
    for (int j = 0; j < lanes; j++)
        lane[j] = fold_start(fold, acc);
    for (int64_t i = 0; i < n; i++)
        lane[i % lanes] = ref_op2(step, acc, lane[i % lanes], x[i], math);
    for (int s = lanes / 2; s; s /= 2)
        for (int j = 0; j < s; j++)
            lane[j] = ref_op2(step, acc, lane[j], lane[j + s], math);
    return lane[0];
}

static uint64_t ref_reduce(const RefRun *f, const KInst *n, DType in, const char *data)
{
    DType acc = dtype_accumulator((DType)n->dtype);
    Fold fold = (Fold)n->op;
    size_t bytes = dtype_bytes(in);
    uint64_t *x = os_alloc((size_t)f->points * 8 + 8), total = 0;
    bool ordered = n->order.kind == ORD_LANES;
    int lanes = ordered ? n->order.lanes : 1;
    int64_t blocks = 0, size = ordered ? n->order.block : f->points;
    for (int64_t i = 0; i < f->points; i++)
        x[i] = ref_cast(in, acc, scalar_load(in, data + (size_t)i * bytes), f->math);
    for (int64_t from = 0; from < f->points; from += size) {
        int64_t length = f->points - from < size ? f->points - from : size;
        x[blocks++] = ref_block(fold, acc, lanes, x + from, length, f->math);
    }
    if (!f->points)
        total = fold == FOLD_PROD ? fold_start(fold, acc) : fold == FOLD_ALL;
    else if (n->order.tree)
        total = ref_block(fold, acc, lanes, x, blocks, f->math);
    else
        for (int64_t b = 0; b < blocks; b++)
            total = b ? ref_op2((Op)fold_info[fold].step, acc, total, x[b], f->math) : x[0];
    os_free(x);
    return ref_cast(acc, (DType)n->dtype, total, f->math);
}

static bool ref_better(DType t, bool max, uint64_t a, uint64_t b) /* is b strictly better? */
{
    if (dtype_is_float(t)) {
        double x = scalar_to_double(t, a), y = scalar_to_double(t, b);
        if (isnan(x) || isnan(y))
            return isnan(y) && !isnan(x);
        return max ? y > x : y < x;
    }
    if (dtype_is_signed(t))
        return max ? scalar_to_int(t, b) > scalar_to_int(t, a) : scalar_to_int(t, b) < scalar_to_int(t, a);
    return max ? b > a : b < a;
}

static int64_t ref_arg(const RefRun *f, bool max, DType in, const char *data)
{
    int64_t best = 0;
    for (int64_t i = 1; i < f->points; i++)
        if (ref_better(in, max, scalar_load(in, data + (size_t)best * dtype_bytes(in)),
                       scalar_load(in, data + (size_t)i * dtype_bytes(in))))
            best = i;
    return best;
}

static uint64_t ref_fma(DType acc, uint64_t x, uint64_t y, uint64_t sum, MathMode math)
{
    if (acc == DT_F32) {
        float xs, ys, s;
        memcpy(&xs, &x, 4), memcpy(&ys, &y, 4), memcpy(&s, &sum, 4);
        s = fmaf(xs, ys, s);
        memcpy(&sum, &s, 4);
        return sum;
    }
    if (acc == DT_F64) {
        double xs, ys, s;
        memcpy(&xs, &x, 8), memcpy(&ys, &y, 8), memcpy(&s, &sum, 8);
        s = fma(xs, ys, s);
        memcpy(&sum, &s, 8);
        return sum;
    }
    return ref_op2(OP_ADD, acc, sum, ref_op2(OP_MUL, acc, x, y, math), math);
}

static void ref_matmul(const RefRun *f, const KInst *n, DType in, const char *a, const char *b, void *out)
{
    DType acc = dtype_accumulator((DType)n->dtype);
    uint64_t sum = 0, total = 0;
    int64_t block = n->order.block ? n->order.block : INT64_MAX;
    for (int64_t i = 0; i < f->points; i++) {
        if (n->order.kind == ORD_PAIRS) {
            float s, pair[2][2] = {{0}};
            for (int64_t u = i; u < i + 2 && u < f->points; u++) {
                pair[0][u - i] = (float)scalar_to_double(in, scalar_load(in, a + (size_t)u * dtype_bytes(in)));
                pair[1][u - i] = (float)scalar_to_double(in, scalar_load(in, b + (size_t)u * dtype_bytes(in)));
            }
            memcpy(&s, &sum, sizeof s);
            s = fold_pair(s, pair[0], pair[1]);
            sum = 0;
            memcpy(&sum, &s, sizeof s);
            i++;
        } else {
            uint64_t x = ref_cast(in, acc, scalar_load(in, a + (size_t)i * dtype_bytes(in)), f->math);
            uint64_t y = ref_cast(in, acc, scalar_load(in, b + (size_t)i * dtype_bytes(in)), f->math);
            sum = ref_fma(acc, x, y, sum, f->math);
        }
        if ((i + 1) % block && i + 1 < f->points)
            continue;
        total = i < block ? sum : ref_op2(OP_ADD, acc, total, sum, f->math);
        sum = 0;
    }
    scalar_store((DType)n->dtype, ref_cast(acc, (DType)n->dtype, total, f->math), out);
}

/* Running sums of n values by halves (ir/orders.def), in place; `base` stands before the first. The sum of all. */
static uint64_t ref_halves(DType acc, uint64_t *x, int64_t n, uint64_t base, MathMode math)
{
    int64_t half = 1;
    if (n == 1) {
        uint64_t own = x[0];
        x[0] = ref_op2(OP_ADD, acc, base, own, math);
        return own;
    }
    while (2 * half < n)
        half *= 2;
    uint64_t low = ref_halves(acc, x, half, base, math);
    return ref_op2(OP_ADD, acc, low, ref_halves(acc, x + half, n - half, ref_op2(OP_ADD, acc, base, low, math), math), math);
}

static void ref_scan(const RefRun *f, const KInst *n, DType in, const char *data, char *out)
{
    DType t = (DType)n->dtype, acc = dtype_accumulator(t);
    uint64_t *x = os_alloc((size_t)f->points * 8 + 8);
    for (int64_t i = 0; i < f->points; i++)
        x[i] = ref_cast(in, acc, scalar_load(in, data + (size_t)i * dtype_bytes(in)), f->math);
    if (f->points && n->order.kind == ORD_HALVES)
        ref_halves(acc, x, f->points, fold_start(FOLD_SUM, acc), f->math);
    else
        for (int64_t i = 1; i < f->points; i++)
            x[i] = ref_op2(OP_ADD, acc, x[i - 1], x[i], f->math);
    for (int64_t i = 0; i < f->points; i++)
        scalar_store(t, ref_cast(acc, t, x[i], f->math), out + (size_t)i * dtype_bytes(t));
    os_free(x);
}

/* A carry at each point: what its next was given at the one before, which was right the last time; or a next: what that is behind the last point. */
static void ref_carried(const RefRun *f, VRef v, char *out)
{
    const KInst *n = &f->k->inst.at[v];
    size_t bytes = dtype_bytes((DType)n->dtype);
    VRef next = v;
    while (n->kind == KI_CARRY && (f->k->inst.at[next].kind != KI_NEXT || f->k->inst.at[next].a != v))
        next++;
    const char *start = f->value[f->k->inst.at[f->k->inst.at[next].a].a], *after = f->value[f->k->inst.at[next].b];
    for (int64_t p = 0; p < (f->points ? f->points : 1); p++) {
        int64_t points = n->kind == KI_CARRY ? p : f->points;
        memcpy(out + (size_t)p * bytes, points ? after + (size_t)(points - 1) * bytes : start, bytes);
    }
}

static bool ref_pred(const RefRun *f, const KInst *n, int64_t p) { return n->pred == VREF_NONE || ((const char *)f->value[n->pred])[p]; }

static void ref_op(const RefRun *f, const KInst *n, void *out)
{
    const VRef refs[3] = {n->a, n->b, n->c};
    const void *in[3] = {0};
    DType types[3] = {0};
    for (int i = 0; i < op_info[n->op].arity; i++) {
        types[i] = (DType)f->k->inst.at[refs[i]].dtype;
        in[i] = f->value[refs[i]];
    }
    const Tape *tape = tape_get((Op)n->op, types, (DType)n->dtype, f->math);
    cr_assert(tape && tape_run(tape, types, (DType)n->dtype, (size_t)f->points, in, out));
}

static void ref_inst(RefRun *f, uint32_t v, const InstInfo *info)
{
    const KInst *n = &f->k->inst.at[v];
    DType t = n->kind == KI_STORE || n->kind == KI_SCATTER ? (DType)f->k->inst.at[n->a].dtype : (DType)n->dtype;
    size_t bytes = dtype_bytes(t);
    char *out = f->value[v];
    DType in = n->a != VREF_NONE ? (DType)f->k->inst.at[n->a].dtype : t;
    /* An x-level value exists where the r axes are empty too: f->points is at least 1 in the
     * arrays. */
    int64_t points = f->points;
    bool once = !info[v].r_level;
    if (once && !inst_reduces(n) && n->kind != KI_OP)
        points = points ? points : 1;
    switch ((InstKind)n->kind) {
    case KI_OP: {
        int64_t keep = f->points;
        if (once && !f->points)
            f->points = 1;
        ref_op(f, n, out);
        f->points = keep;
        return;
    }
    case KI_CARRY:
    case KI_NEXT: ref_carried(f, v, out); return;
    case KI_FOLD: {
        uint64_t bits = 0;
        if (n->mode == RUNNING) {
            ref_scan(f, n, in, f->value[n->a], out);
            return;
        }
        if (inst_is_dot(n))
            ref_matmul(f, n, in, f->value[n->a], f->value[n->b], &bits);
        else if (inst_has_place(n))
            bits = (uint64_t)ref_arg(f, n->op == FOLD_ARGMAX, in, f->value[n->a]);
        else
            bits = ref_reduce(f, n, in, f->value[n->a]);
        for (int64_t p = 0; p < (f->points ? f->points : 1); p++)
            scalar_store(t, bits, out + (size_t)p * bytes);
        return;
    }
    default: break;
    }
    for (int64_t p = 0; p < points; p++) {
        char *to = out + (size_t)p * bytes;
        char *memory = n->arg != UINT32_MAX && n->kind != KI_CONST && n->kind != KI_INDEX ? f->args[n->arg] : NULL;
        switch ((InstKind)n->kind) {
        case KI_SCALAR: {
            uint64_t bits = (uint64_t)(uintptr_t)f->args[n->arg];
            scalar_store(t, bits, to);
            break;
        }
        case KI_CONST: scalar_store(t, n->imm, to); break;
        case KI_INDEX: scalar_store(t, (uint64_t)ref_index(f, n->idx, p), to); break;
        case KI_LOAD:
            if (ref_pred(f, n, p))
                memcpy(to, memory + ref_index(f, n->idx, p) * (int64_t)bytes, bytes);
            else
                memset(to, 0, bytes);
            break;
        case KI_STORE:
            if (once && p)
                break;
            if (ref_pred(f, n, p))
                memcpy(memory + ref_index(f, n->idx, p) * (int64_t)bytes, (char *)f->value[n->a] + (size_t)p * bytes, bytes);
            break;
        case KI_SCATTER: {
            if (!ref_pred(f, n, p))
                break;
            char *at = memory + ref_index(f, n->idx, p) * (int64_t)bytes;
            uint64_t x = scalar_load(t, (char *)f->value[n->a] + (size_t)p * bytes);
            static const Op step[] = {[SCATTER_ADD] = OP_ADD, [SCATTER_MAX] = OP_MAXIMUM, [SCATTER_MIN] = OP_MINIMUM};
            scalar_store(t, n->mode == SCATTER_SET ? x : ref_op2(step[n->mode], t, scalar_load(t, at), x, f->math), at);
            break;
        }
        case KI_BOUND: {
            int64_t i = ((const int64_t *)f->value[n->a])[p], size = ref_index(f, n->idx, p);
            i += i < 0 ? size : 0;
            if ((i < 0 || i >= size) && ref_pred(f, n, p))
                *(int64_t *)(void *)memory = (int64_t)n->imm;
            i = i >= size ? size - 1 : i;
            i = i < 0 ? 0 : i;
            memcpy(to, &i, 8);
            break;
        }
        case KI_OP:
        case KI_FOLD:
        case KI_CARRY:
        case KI_NEXT:
        case KI_SORT:
        case KI_ATTEND: break;
        }
    }
}

static void ref_mark(const Kernel *k, VRef v, bool *live);

static void ref_mark_index(const Kernel *k, IRef i, bool *live)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_VALUE)
        ref_mark(k, x->a, live);
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD) {
        ref_mark_index(k, x->a, live);
        ref_mark_index(k, x->b, live);
    }
}

/* What a store or the check of an index needs. The rest is not executed. */
static void ref_mark(const Kernel *k, VRef v, bool *live)
{
    VRef in[4];
    if (live[v])
        return;
    live[v] = true;
    uint32_t n = kernel_operands(&k->inst.at[v], in);
    for (uint32_t i = 0; i < n; i++)
        ref_mark(k, in[i], live);
    if (k->inst.at[v].idx != IREF_NONE)
        ref_mark_index(k, k->inst.at[v].idx, live);
}

static inline void ref_run(const Kernel *k, void *const *args, MathMode math)
{
    Arena own;
    jmp_buf own_oom;
    arena_init(&own, &own_oom);
    cr_assert(setjmp(own_oom) == 0);
    uint32_t stages;
    InstInfo *info = kernel_analyse(k, &own, &stages);
    RefRun f = {.k = k, .args = args, .math = math};
    int64_t x_points = 1, r_points = 1;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        f.size[a] = ref_index(&f, k->axes.at[a].size, 0);
        *(k->axes.at[a].kind == AXIS_X ? &x_points : &r_points) *= f.size[a];
    }
    int64_t room = r_points ? r_points : 1;
    f.r_coord = ARENA_ARRAY(&own, int64_t, room * (int64_t)(k->axes.n + 1));
    f.value = ARENA_ARRAY(&own, void *, k->inst.n + 1);
    for (uint32_t v = 0; v < k->inst.n; v++)
        f.value[v] = ARENA_ARRAY(&own, uint64_t, room);
    f.points = r_points;
    bool *live = ARENA_ARRAY(&own, bool, k->inst.n + 1);
    int64_t times = 1;
    for (uint32_t v = 0; v < k->inst.n; v++) {
        uint8_t kind = k->inst.at[v].kind;
        if (kind == KI_STORE || kind == KI_SCATTER || kind == KI_BOUND || kind == KI_NEXT)
            ref_mark(k, v, live);
        times = kind == KI_CARRY ? room : times;
    }
    for (int64_t x = 0; x < x_points; x++) {
        for (int64_t p = 0; p < room; p++) {
            int64_t *c = &f.r_coord[p * (int64_t)k->axes.n], xr = x, rr = p;
            for (uint32_t a = k->axes.n; a-- > 0;) {
                int64_t *rest = k->axes.at[a].kind == AXIS_X ? &xr : &rr;
                int64_t size = f.size[a] ? f.size[a] : 1;
                c[a] = *rest % size;
                *rest /= size;
            }
        }
        for (int64_t t = 0; t < times; t++)
            for (uint32_t v = 0; v < k->inst.n; v++)
                if (live[v])
                    ref_inst(&f, v, info);
    }
    arena_free(&own);
}

/* ---- comparison ---- */

typedef struct CheckArg {
    int64_t value;    /* SIZE, SCALAR */
    const void *data; /* BUFFER: initial contents, `bytes` long */
    size_t bytes;
} CheckArg;

static inline bool same_bits(DType t, const char *a, const char *b)
{
    uint64_t x = scalar_load(t, a), y = scalar_load(t, b);
    if (x == y)
        return true;
    return dtype_is_float(t) && isnan(scalar_to_double(t, x)) && isnan(scalar_to_double(t, y));
}

typedef struct Setting {
    int bits, effort;
    MathMode math;
    int cpu;
} Setting;

static inline JitOptions setting_options(Setting s)
{
    JitOptions o = {0};
    o.value[OPT_MATH] = s.math == MATH_STRICT ? OPT_MATH_STRICT : OPT_MATH_FAST;
    o.value[OPT_VECTOR_BITS] = s.bits;
    o.value[OPT_LLVM_OPT] = s.effort;
    o.value[OPT_CPU] = s.cpu;
    return o;
}

static inline void free_emitted(Emitted *emitted)
{
    launch_plan_free(&emitted->launch);
    os_free(emitted->object);
    os_free(emitted->ir);
    os_free(emitted->assembly);
}

/* What was emitted as the library has it: put into an object, and out of it again. */
static inline CompiledKernel *load_kernel(const Emitted *emitted)
{
    KernelObject object = {.plan = emitted->launch, .elf = emitted->object, .elf_bytes = emitted->bytes};
    KernelParts parts = {0};
    cr_assert_eq(kernel_object_make(&object, &parts.object, &parts.object_bytes), ST_OK, "%s", fail_message());
    cr_assert_eq(kernel_parts_load(&parts), ST_OK, "%s", fail_message());
    return kernel_table_private("", 0, &parts);
}

static inline CompiledKernel *compile_kernel(const Kernel *k, Setting s)
{
    JitOptions o = setting_options(s);
    Emitted out;
    bool text = getenv("EMIT_TEXT") != NULL;
    set_orders(k, target_order(&o), s.math);
    Status status = llvm_emit_host(k, "test", &o, text, &out);
    cr_assert_eq(status, ST_OK, "%s", fail_message());
    if (text)
        fprintf(stderr, "%s\n%s\n", out.ir, out.assembly);
    CompiledKernel *code = load_kernel(&out);
    free_emitted(&out);
    return code;
}

static inline HostLaunch launch_of(const CompiledKernel *code, void *const *args)
{
    HostLaunch room;
    return *kernel_launch(code, args, &room);
}

/* Runs all phases, `grain` tasks at a time. */
static inline void run_code(const CompiledKernel *code, void **args, const Kernel *k, int64_t grain)
{
    const HostLaunch launch = launch_of(code, args);
    int64_t scratch_bytes = launch.local, shared = launch.scratch;
    void *scratch = os_alloc_aligned(64, (size_t)scratch_bytes + 64), *room = os_alloc_aligned(64, (size_t)shared + 64);
    memset(scratch, 0x5a, (size_t)scratch_bytes + 64);
    memset(room, 0x5a, (size_t)shared + 64);
    for (uint32_t a = 0; a < k->args.n; a++)
        if (k->args.at[a].kind == ARG_SCRATCH)
            args[a] = room;
    for (int64_t p = 0; p < launch.phases; p++) {
        int64_t tasks = launch.tasks[p & 1];
        for (int64_t lo = 0; lo < tasks; lo += grain)
            code->run(args, p, lo, lo + grain < tasks ? lo + grain : tasks, scratch);
    }
    for (int i = 0; i < 64; i++) {
        cr_assert_eq(((unsigned char *)scratch)[scratch_bytes + i], 0x5a, "scratch overrun");
        cr_assert_eq(((unsigned char *)room)[shared + i], 0x5a, "shared scratch overrun");
    }
    os_free(scratch);
    os_free(room);
}

/* Does a kernel write whatever its points are, and read nothing of what it writes? */
static inline bool only_writes(const Kernel *k)
{
    bool only = true;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        only &=
            n->kind != KI_SCATTER && (n->kind != KI_STORE || n->pred == VREF_NONE) && (n->kind != KI_LOAD || !k->args.at[n->arg].written);
    }
    return only;
}

/* That all tasks are enough shows in the results. None is too many: the last one writes where the others did not. */
static inline void check_last_task(const CompiledKernel *code, const Kernel *k, const CheckArg *in, const char *what)
{
    static const int fills[] = {0xa5, 0x5a};
    void *args[REF_ARGS];
    for (uint32_t a = 0; a < k->args.n; a++) {
        args[a] = (void *)(intptr_t)in[a].value;
        if (!in[a].data)
            continue;
        args[a] = os_alloc(in[a].bytes + 8);
        memcpy(args[a], in[a].data, in[a].bytes);
    }
    const HostLaunch launch = launch_of(code, args);
    bool wrote = launch.phases != 1 || launch.tasks[0] < 1 || launch.points < 1 || !only_writes(k);
    void *scratch = os_alloc_aligned(64, (size_t)launch.local + 64);
    for (int f = 0; f < 2 && !wrote; f++) {
        size_t left[2] = {0, 0}; /* bytes that are as they were, before and behind the last task */
        for (uint32_t a = 0; a < k->args.n; a++)
            if (in[a].data && k->args.at[a].written)
                memset(args[a], fills[f], in[a].bytes);
        for (int last = 0; last < 2; last++) {
            code->run(args, 0, last ? launch.tasks[0] - 1 : 0, launch.tasks[0] - !last, scratch);
            for (uint32_t a = 0; a < k->args.n; a++)
                for (size_t i = 0; in[a].data && k->args.at[a].written && i < in[a].bytes; i++)
                    left[last] += ((unsigned char *)args[a])[i] == fills[f];
        }
        wrote = left[1] < left[0];
    }
    cr_assert(wrote, "%s: of %lld tasks the last one writes nothing", what, (long long)launch.tasks[0]);
    os_free(scratch);
    for (uint32_t a = 0; a < k->args.n; a++)
        if (in[a].data)
            os_free(args[a]);
}

static inline void check_code(const CompiledKernel *code, const Kernel *k, const CheckArg *in, Setting s, const char *what)
{
    static const int64_t grains[] = {INT64_MAX / 2, 1, 3};
    void *want[REF_ARGS], *got[REF_ARGS], *copy[REF_ARGS] = {0};
    for (uint32_t a = 0; a < k->args.n; a++) {
        want[a] = (void *)(intptr_t)in[a].value;
        if (in[a].data) {
            want[a] = copy[a] = os_alloc(in[a].bytes + 8);
            memcpy(want[a], in[a].data, in[a].bytes);
        }
    }
    ref_run(k, want, s.math);
    check_last_task(code, k, in, what);
    for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
        Guarded held[REF_ARGS];
        for (uint32_t a = 0; a < k->args.n; a++) {
            got[a] = (void *)(intptr_t)in[a].value;
            if (!in[a].data)
                continue;
            held[a] = g % 2 ? guarded_at_start(in[a].bytes, 0) : guarded_at_end(in[a].bytes, 0);
            if (in[a].bytes)
                memcpy(held[a].data, in[a].data, in[a].bytes);
            got[a] = held[a].data;
        }
        run_code(code, got, k, grains[g]);
        for (uint32_t a = 0; a < k->args.n; a++) {
            if (!in[a].data)
                continue;
            DType t = k->args.at[a].kind == ARG_FAULT ? DT_I64 : (DType)k->args.at[a].dtype;
            size_t each = dtype_bytes(t);
            for (size_t i = 0; i < in[a].bytes / each; i++) {
                const char *x = (char *)copy[a] + i * each, *y = (char *)held[a].data + i * each;
                cr_assert(same_bits(t, x, y), "%s (%d bits, opt %d, grain %lld): arg %u[%zu]: want %g (%llx), got %g (%llx)", what, s.bits,
                          s.effort, (long long)grains[g], a, i, scalar_to_double(t, scalar_load(t, x)),
                          (unsigned long long)scalar_load(t, x), scalar_to_double(t, scalar_load(t, y)),
                          (unsigned long long)scalar_load(t, y));
            }
            cr_assert(guarded_intact(&held[a]), "%s: wrote outside of argument %u", what, a);
            guarded_free(&held[a]);
        }
    }
    for (uint32_t a = 0; a < k->args.n; a++)
        os_free(copy[a]);
}

/* By pairs: what only fast mode does, and only where this CPU can. */
static const Setting by_pairs = {512, 1, MATH_FAST, CPU_HOST};

static inline bool has_pairs(const Kernel *k)
{
    bool pairs = false;
    for (VRef v = 0; v < k->inst.n; v++)
        pairs |= k->inst.at[v].order.kind == ORD_PAIRS;
    return pairs;
}

static inline void check_by_pairs(const Kernel *k, const CheckArg *in, const char *what)
{
    JitOptions o = setting_options(by_pairs);
    set_orders(k, target_order(&o), MATH_FAST);
    if (!has_pairs(k))
        return;
    CompiledKernel *code = compile_kernel(k, by_pairs);
    check_code(code, k, in, by_pairs, what);
    kernel_table_release(code);
}

#ifdef CHECK_PTX /* the same tests for the CUDA target */
#include "tests/unit/ptx_check.h"

static inline void check_kernel(const Kernel *k, const CheckArg *in, const char *what) { check_kernel_ptx(k, in, what); }
#else
/* Each width, in turns for this CPU and for the levels; what this machine cannot execute is compiled. */
static const Setting settings[] = {
    {512, 1, MATH_STRICT, CPU_HOST}, {256, 1, MATH_STRICT, CPU_V3},   {128, 1, MATH_STRICT, CPU_HOST},
    {512, 1, MATH_STRICT, CPU_V4},   {256, 1, MATH_STRICT, CPU_HOST}, {128, 1, MATH_STRICT, CPU_V3},
};

static inline void check_kernel(const Kernel *k, const CheckArg *in, const char *what)
{
    set_orders(k, ORDER_HOST, MATH_STRICT);
    cr_assert_eq(kernel_verify(k), ST_OK, "%s: %s", what, fail_message());
    static int turn;
#ifndef CHECK_ALL_KERNELS /* a slice of those of each test (support/slice.h) */
    static uint64_t number;
    if (!slice_takes(number++))
        return;
#endif
    const Setting *each = settings + turn++ % 2 * 3;
    for (int i = 0; i < 3; i++) {
        JitOptions o = setting_options(each[i]);
        CompiledKernel *code = compile_kernel(k, each[i]);
        if (llvm_host_runs(&o) == ST_OK)
            check_code(code, k, in, each[i], what);
        kernel_table_release(code);
    }
    check_by_pairs(k, in, what);
}

/* Says which of them were executed here. */
ReportHook(POST_ALL)(struct criterion_global_stats *stats)
{
    static const char *const levels[] = {"this CPU", "x86-64-v3", "x86-64-v4"};
    (void)stats;
    for (int i = 0; i < 6; i++) {
        const Setting *s = &settings[i];
        JitOptions o = setting_options(*s);
        fprintf(stderr, "%s %d bits for %s", i ? "," : "vectors:", s->bits, levels[s->cpu]);
        if (llvm_host_runs(&o) != ST_OK)
            fprintf(stderr, " (compiled, not executed)");
    }
    fprintf(stderr, "\n");
}
#endif

/* ---- building ---- */

static inline KInst inst_new(InstKind kind, DType dtype)
{
    return (KInst){.kind = (uint8_t)kind,
                   .dtype = (uint8_t)dtype,
                   .a = VREF_NONE,
                   .b = VREF_NONE,
                   .c = VREF_NONE,
                   .pred = VREF_NONE,
                   .idx = IREF_NONE};
}

static inline uint32_t k_arg(Kernel *k, ArgKind kind, DType dtype, bool written)
{
    VEC_PUSH(k->arena, k->args, (KArg){.kind = (uint8_t)kind, .dtype = (uint8_t)dtype, .written = written});
    return k->args.n - 1;
}

static inline uint32_t k_axis(Kernel *k, AxisKind kind, IRef size, int64_t hint) { return kernel_add_axis(k, kind, size, hint); }

static inline VRef k_load(Kernel *k, uint32_t arg, IRef idx, VRef pred)
{
    KInst n = inst_new(KI_LOAD, (DType)k->args.at[arg].dtype);
    n.arg = arg, n.idx = idx, n.pred = pred;
    return kernel_inst(k, n);
}

static inline VRef k_op(Kernel *k, Op op, DType dtype, VRef a, VRef b, VRef c)
{
    KInst n = inst_new(KI_OP, dtype);
    n.op = (uint8_t)op, n.a = a, n.b = b, n.c = c;
    return kernel_inst(k, n);
}

static inline VRef k_const(Kernel *k, DType dtype, double value)
{
    KInst n = inst_new(KI_CONST, dtype);
    n.imm = scalar_from_double(dtype, value);
    return kernel_inst(k, n);
}

static inline VRef k_index(Kernel *k, IRef idx)
{
    KInst n = inst_new(KI_INDEX, DT_I64);
    n.idx = idx;
    return kernel_inst(k, n);
}

static inline VRef k_reduce(Kernel *k, Op op, DType dtype, VRef a)
{
    KInst n = inst_new(KI_FOLD, dtype);
    n.op = (uint8_t)fold_of(op), n.a = a;
    return kernel_inst(k, n);
}

static inline void k_store(Kernel *k, uint32_t arg, IRef idx, VRef a, VRef pred)
{
    KInst n = inst_new(KI_STORE, (DType)k->inst.at[a].dtype);
    n.arg = arg, n.idx = idx, n.a = a, n.pred = pred;
    kernel_inst(k, n);
}

/* ---- data ---- */

static uint64_t seed_state = 88172645463325252u;

static inline uint64_t next_random(void)
{
    seed_state ^= seed_state << 13;
    seed_state ^= seed_state >> 7;
    seed_state ^= seed_state << 17;
    return seed_state;
}

/* Ordinary numbers with some special values among them. */
static inline void fill(DType t, void *data, size_t n, bool special)
{
    static const double odd[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 1e-40, -1e-40, 65504, 3.4e38, 1e300, -7.5, 0.5};
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        uint64_t r = next_random();
        if (t == DT_BOOL)
            bits = r >> 20 & 1;
        else if (!dtype_is_float(t))
            bits = special && (r & 7) == 0 ? ((r & 8) ? UINT64_MAX : (uint64_t)1 << (dtype_bytes(t) * 8 - 1)) : (r >> 11) % 200;
        else if (special && (r & 7) == 0)
            bits = scalar_from_double(t, odd[(r >> 8) % (sizeof odd / sizeof *odd)]);
        else
            bits = scalar_from_double(t, (double)(int64_t)(r >> 40) / (1 << 22) - 2.0);
        scalar_store(t, bits, (char *)data + i * dtype_bytes(t));
    }
}

static inline void *filled(DType t, size_t n, bool special)
{
    void *data = os_alloc(n * dtype_bytes(t) + 8);
    fill(t, data, n, special);
    return data;
}

#endif

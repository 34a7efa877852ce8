/*
 * Random kernels against the reference executor: axes, sizes (constant or argument), layouts,
 * dtypes, stages, saved rows, split, lane axis. A failing seed is in the message; run only that one
 * with KILN_TEST_ONLY=n (and EMIT_TEXT=1 for its code).
 */
#include "tests/support/slice.h"
#define CHECK_ALL_KERNELS /* the seeds are the slice */
#include "tests/unit/kernel_ref.h"

static Arena arena;
static jmp_buf oom;

enum { MAX_VALUES = 48, MAX_BUFFERS = 10, MAX_CARRIES = 3 };

typedef struct Fuzz {
    Kernel *k;
    IRef size[8];
    int64_t n[8];
    uint32_t n_x, n_axes;
    VRef value[MAX_VALUES];
    uint32_t n_values, fault;
    CheckArg args[REF_ARGS + 8];
} Fuzz;

static uint64_t pick(uint64_t n) { return (next_random() >> 11) % n; }

static const DType types[] = {DT_F32, DT_F32, DT_F32, DT_I32, DT_F16, DT_F64, DT_U8, DT_BF16, DT_I64, DT_BOOL};
static DType any_type(void) { return types[pick(sizeof types / sizeof *types)]; }

/* A row-major index over some of the axes in some order, perhaps backwards in one; *count: elements
 * it reaches. */
static IRef any_index(Fuzz *f, uint32_t axes, int64_t *count)
{
    uint32_t order[8], n = 0;
    for (uint32_t a = 0; a < f->n_axes; a++)
        if (axes >> a & 1)
            order[n++] = a;
    for (uint32_t i = n; i > 1; i--) {
        if (pick(3))
            continue; /* mostly in order */
        uint32_t j = (uint32_t)pick(i), t = order[j];
        order[j] = order[i - 1];
        order[i - 1] = t;
    }
    Kernel *k = f->k;
    IRef at = kidx_const(k, 0);
    *count = 1;
    for (uint32_t i = 0; i < n; i++) {
        IRef c = kidx_axis(k, order[i]);
        if (pick(8) == 0) /* size - 1 - c */
            c = kidx_add(k, kidx_add(k, f->size[order[i]], kidx_const(k, -1)), kidx_mul(k, c, kidx_const(k, -1)));
        at = kidx_add(k, kidx_mul(k, at, f->size[order[i]]), c);
        *count *= f->n[order[i]];
    }
    return at;
}

static uint32_t buffer(Fuzz *f, DType t, int64_t count, bool written)
{
    uint32_t arg = k_arg(f->k, ARG_BUFFER, t, written);
    size_t bytes = (size_t)count * dtype_bytes(t);
    f->args[arg] = (CheckArg){.data = filled(t, (size_t)count, true), .bytes = bytes};
    return arg;
}

static VRef any_value(Fuzz *f) { return f->value[pick(f->n_values)]; }

static VRef as_type(Fuzz *f, VRef v, DType t)
{
    return (DType)f->k->inst.at[v].dtype == t ? v : k_op(f->k, OP_CAST, t, v, VREF_NONE, VREF_NONE);
}

/* An elementwise op of that many operands of one dtype that gives the same dtype: any of ir/ops.def that takes t, but for the one
 * that shows the sign of a NaN, which is nobody's promise. */
static Op any_elementwise(uint8_t arity, DType t)
{
    for (;;) {
        Op op = (Op)pick(OP_COUNT);
        if (op_class(op) == CLS_EW && op_info[op].arity == arity && op != OP_COPYSIGN &&
            (op_info[op].rule == RULE_NUM || (op_info[op].rule == RULE_FLOAT && dtype_is_float(t))))
            return op;
    }
}

static VRef any_op(Fuzz *f)
{
    Kernel *k = f->k;
    VRef a = any_value(f), b = any_value(f);
    DType t = (DType)k->inst.at[a].dtype;
    b = as_type(f, b, t);
    switch (pick(5)) {
    case 0:
        if (t == DT_BOOL)
            return k_op(k, OP_CAST, any_type(), a, VREF_NONE, VREF_NONE);
        return k_op(k, any_elementwise(1, t), t, a, VREF_NONE, VREF_NONE);
    case 1: return k_op(k, OP_WHERE, t, k_op(k, OP_LE, DT_BOOL, a, b, VREF_NONE), a, b);
    case 2: return as_type(f, a, any_type());
    default:
        if (t == DT_BOOL)
            return k_op(k, OP_XOR, t, a, b, VREF_NONE);
        return k_op(k, any_elementwise(2, t), t, a, b, VREF_NONE);
    }
}

static VRef any_reduction(Fuzz *f)
{
    static const Op ops[] = {OP_REDUCE_SUM, OP_REDUCE_SUM, OP_REDUCE_MAX, OP_REDUCE_MIN, OP_REDUCE_PROD, OP_ARGMAX, OP_ARGMIN};
    VRef a = any_value(f);
    DType t = (DType)f->k->inst.at[a].dtype;
    if (t == DT_BOOL)
        return k_reduce(f->k, pick(2) ? OP_REDUCE_ANY : OP_REDUCE_ALL, t, a);
    Op op = ops[pick(sizeof ops / sizeof *ops)];
    return k_reduce(f->k, op, op == OP_ARGMAX || op == OP_ARGMIN ? DT_I64 : t, a);
}

/* at becomes at / d or at % d, as a reshape between the buffer and the axes would have it. */
static IRef through_reshape(Fuzz *f, IRef at, int64_t *count)
{
    static const int64_t by[] = {2, 3, 5, 16, 24, 64, 100};
    int64_t d = by[pick(sizeof by / sizeof *by)];
    IRef size = kidx_const(f->k, d);
    if (pick(3) == 0 && f->k->args.n < MAX_BUFFERS) {
        uint32_t arg = k_arg(f->k, ARG_SIZE, DT_I64, false);
        f->args[arg].value = d;
        f->k->args.at[arg].natural = true;
        size = kidx_arg(f->k, arg);
    }
    bool rest = pick(2);
    *count = rest ? (*count < d ? *count : d) : *count / d + 1;
    return rest ? kidx_mod(f->k, at, size) : kidx_div(f->k, at, size);
}

/* An index that was loaded: any value, bounded. */
static IRef through_value(Fuzz *f, int64_t *count)
{
    VRef v = as_type(f, any_value(f), DT_I64);
    *count = 1 + (int64_t)pick(40);
    KInst bound = inst_new(KI_BOUND, DT_I64);
    bound.a = v;
    bound.idx = kidx_const(f->k, *count);
    bound.arg = f->fault;
    bound.imm = 9;
    return kidx_value(f->k, kernel_inst(f->k, bound));
}

static VRef any_load(Fuzz *f)
{
    int64_t count;
    uint32_t all = (1u << f->n_axes) - 1, axes = pick(3) ? all : (uint32_t)pick(all + 1);
    IRef at = pick(6) ? any_index(f, axes, &count) : through_value(f, &count);
    if (pick(6) == 0)
        at = through_reshape(f, at, &count);
    DType t = any_type();
    VRef pred = VREF_NONE, p = any_value(f);
    if (pick(5) == 0 && f->k->inst.at[p].dtype == DT_BOOL)
        pred = p;
    return k_load(f->k, buffer(f, t, count, false), at, pred);
}

static void any_axes(Fuzz *f)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 7, 16, 17, 32, 33, 64, 70, 130};
    uint32_t n_r = (uint32_t)pick(3);
    f->n_x = (uint32_t)pick(4);
    int64_t points = 1;
    for (uint32_t i = 0; i < f->n_x + n_r; i++) {
        int64_t n = sizes[pick(sizeof sizes / sizeof *sizes)];
        if (points * n > 6000)
            n = 1 + (int64_t)pick(3);
        points *= n;
        uint32_t arg = k_arg(f->k, ARG_SIZE, DT_I64, false);
        f->args[arg].value = n;
        f->n[i] = n;
        f->size[i] = pick(2) ? kidx_const(f->k, n) : kidx_arg(f->k, arg);
        k_axis(f->k, i < f->n_x ? AXIS_X : AXIS_R, f->size[i], n);
    }
    f->n_axes = f->n_x + n_r;
    f->k->split = n_r && pick(3) == 0;
    f->k->split_asked = f->k->split && pick(2);
    uint64_t lanes = pick(5);
    if (n_r && lanes < 2)
        f->k->vec_axis = f->n_axes - 1;
    else if (f->n_x && lanes < 4)
        f->k->vec_axis = f->n_x - 1;
}

/* Some values that go from point to point, which start as something that is there at all of them. */
static uint32_t any_carries(Fuzz *f, VRef carry[MAX_CARRIES])
{
    uint32_t n = f->n_axes == f->n_x + 1 && pick(3) == 0 ? 1 + (uint32_t)pick(MAX_CARRIES) : 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t count;
        DType t = any_type();
        IRef at = any_index(f, (uint32_t)pick(1u << f->n_x), &count);
        KInst inst = inst_new(KI_CARRY, t);
        inst.a = pick(3) ? k_load(f->k, buffer(f, t, count, false), at, VREF_NONE) : k_const(f->k, t, 1);
        f->value[f->n_values++] = carry[i] = kernel_inst(f->k, inst);
    }
    f->k->split &= !n;
    return n;
}

static void end_carries(Fuzz *f, const VRef *carry, uint32_t n)
{
    VRef end[MAX_CARRIES];
    for (uint32_t i = 0; i < n; i++) {
        DType t = (DType)f->k->inst.at[carry[i]].dtype;
        KInst inst = inst_new(KI_NEXT, t);
        inst.a = carry[i];
        inst.b = as_type(f, any_value(f), t);
        end[i] = kernel_inst(f->k, inst);
    }
    for (uint32_t i = 0; i < n; i++)
        f->value[f->n_values++] = pick(2) ? end[i] : k_op(f->k, OP_CAST, DT_F64, end[i], VREF_NONE, VREF_NONE);
}

static void run_seed(uint64_t seed)
{
    arena_init(&arena, &oom);
    cr_assert(setjmp(oom) == 0);
    seed_state = seed * 0x9e3779b97f4a7c15u + 88172645463325252u;
    for (int i = 0; i < 8; i++)
        next_random();
    Fuzz f = {.k = kernel_new(&arena)};
    Kernel *k = f.k;
    any_axes(&f);
    k_arg(k, ARG_SCRATCH, DT_U8, true);
    int64_t no_fault = 0;
    f.fault = k_arg(k, ARG_FAULT, DT_I64, true);
    f.args[f.fault] = (CheckArg){.data = &no_fault, .bytes = 8};
    f.value[f.n_values++] = k_const(k, DT_F32, 0.75);
    if (f.n_axes) {
        int64_t count;
        f.value[f.n_values++] = k_index(k, any_index(&f, (uint32_t)pick(1u << f.n_axes), &count));
    }
    VRef carry[MAX_CARRIES];
    uint32_t carries = any_carries(&f, carry);
    uint64_t steps = 4 + pick(20);
    for (uint64_t i = 0; i < steps && f.n_values < MAX_VALUES - 1; i++) {
        uint64_t what = pick(10);
        bool reduces = f.n_axes > f.n_x && !carries;
        VRef v;
        if (what < 3 && k->args.n < MAX_BUFFERS)
            v = any_load(&f);
        else if (what < 5 && reduces)
            v = any_reduction(&f);
        else
            v = any_op(&f);
        if (pick(6) == 0 && k->inst.at[v].kind == KI_OP)
            k->inst.at[v].save = k->inst_axes.at[v] >> f.n_x != 0;
        f.value[f.n_values++] = v;
    }
    end_carries(&f, carry, carries);
    uint32_t stored = 0;
    for (uint32_t i = f.n_values; i-- > 0 && stored < 3;) {
        bool r_level = k->inst_axes.at[f.value[i]] >> f.n_x != 0;
        int64_t count;
        uint32_t x_axes = (1u << f.n_x) - 1, all = (1u << f.n_axes) - 1;
        IRef at = any_index(&f, r_level ? all : x_axes, &count);
        k_store(k, buffer(&f, (DType)k->inst.at[f.value[i]].dtype, count, true), at, f.value[i], VREF_NONE);
        stored++;
    }
    for (uint32_t a = 0; a < k->args.n && seed % 3 == 0; a++) { /* some sizes are expected to be what they are, or something else */
        int64_t expected = f.args[a].value - (pick(8) == 0);
        KArg *size = &k->args.at[a];
        size->expects = size->kind == ARG_SIZE && expected >= 0 && expected <= EXPECTED_MOST;
        size->expected = size->expects ? (int16_t)expected : 0;
    }
    char what[32];
    snprintf(what, sizeof what, "seed %llu", (unsigned long long)seed);
    if (getenv("EMIT_PRINT")) {
        Str text;
        str_init(&text, &arena);
        kernel_print(k, &text);
        fprintf(stderr, "%s", text.text);
    }
    check_kernel(k, f.args, what);
#ifndef CHECK_PTX
    if (seed % 8 == 0)
        for (int effort = 0; effort <= 2; effort += 2) {
            Setting s = {seed % 16 ? 256 : 512, effort, MATH_STRICT, CPU_HOST};
            CompiledKernel *code = compile_kernel(k, s);
            check_code(code, k, f.args, s, what);
            kernel_table_release(code);
        }
#endif
    for (uint32_t i = 0; i < k->args.n; i++)
        if (i != f.fault)
            os_free((void *)(uintptr_t)f.args[i].data);
    arena_free(&arena);
}

/* An operand of a contraction: loads over `axes` and some work on them, in dtype t. */
static VRef any_operand(Fuzz *f, uint32_t axes, DType t)
{
    int64_t count;
    DType stored = pick(3) ? t : any_type();
    IRef at = any_index(f, axes, &count);
    VRef v = as_type(f, k_load(f->k, buffer(f, stored, count, false), at, VREF_NONE), t);
    if (pick(3) == 0) {
        at = any_index(f, axes & (uint32_t)pick(1u << f->n_axes), &count);
        VRef w = k_load(f->k, buffer(f, t, count, false), at, VREF_NONE);
        v = k_op(f->k, pick(2) ? OP_ADD : OP_MUL, t, v, w, VREF_NONE);
    }
    return pick(3) ? v : k_op(f->k, OP_ABS, t, v, VREF_NONE, VREF_NONE);
}

static void run_contraction(uint64_t seed)
{
    static const DType dtypes[] = {DT_F32, DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_U8};
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 9, 16, 17, 24, 33, 40};
    arena_init(&arena, &oom);
    cr_assert(setjmp(oom) == 0);
    seed_state = seed * 0x9e3779b97f4a7c15u + 1234567;
    for (int i = 0; i < 8; i++)
        next_random();
    Fuzz f = {.k = kernel_new(&arena)};
    Kernel *k = f.k;
    DType t = dtypes[pick(sizeof dtypes / sizeof *dtypes)];
    f.n_x = 2 + (uint32_t)pick(3);
    f.n_axes = f.n_x + 1;
    for (uint32_t i = 0; i < f.n_axes; i++) {
        int64_t n = i + 2 < f.n_x ? 1 + (int64_t)pick(3) : sizes[pick(sizeof sizes / sizeof *sizes)];
        uint32_t arg = k_arg(k, ARG_SIZE, DT_I64, false);
        f.args[arg].value = f.n[i] = n;
        f.size[i] = pick(2) ? kidx_const(k, n) : kidx_arg(k, arg);
        k_axis(k, i < f.n_x ? AXIS_X : AXIS_R, f.size[i], n);
    }
    k->form = FORM_CONTRACT;
    k->vec_axis = f.n_x - 1;
    uint32_t all = (1u << f.n_x) - 1, kk = 1u << f.n_x, m = 1u << (f.n_x - 2), n = 1u << (f.n_x - 1);
    uint32_t batch = all & ~m & ~n;
    KInst sum = inst_new(KI_FOLD, t);
    sum.op = FOLD_DOT;
    sum.a = any_operand(&f, (pick(4) ? batch : 0) | m | kk, t);
    sum.b = any_operand(&f, (pick(4) ? batch : 0) | n | kk, t);
    f.value[f.n_values++] = kernel_inst(k, sum);
    int64_t count;
    for (uint64_t i = pick(4); i > 0; i--) {
        IRef at = any_index(&f, (uint32_t)pick(all + 1), &count);
        VRef w = k_load(k, buffer(&f, t, count, false), at, VREF_NONE);
        VRef v = f.value[f.n_values - 1];
        f.value[f.n_values++] = k_op(k, pick(2) ? OP_ADD : OP_MAXIMUM, t, v, w, VREF_NONE);
    }
    IRef at = any_index(&f, all, &count);
    k_store(k, buffer(&f, t, count, true), at, f.value[f.n_values - 1], VREF_NONE);
    char what[48];
    snprintf(what, sizeof what, "contraction seed %llu", (unsigned long long)seed);
    check_kernel(k, f.args, what);
    for (uint32_t i = 0; i < k->args.n; i++)
        os_free((void *)(uintptr_t)f.args[i].data);
    arena_free(&arena);
}

/* A slice of the seeds from `first` on (support/slice.h), or KILN_TEST_ONLY. */
static void run_seeds(uint64_t first, void (*run)(uint64_t))
{
#ifdef CHECK_PTX
    uint64_t count = 20;
#else
    uint64_t count = 60;
#endif
    uint64_t only = slice_number("KILN_TEST_ONLY", UINT64_MAX), begin = first;
    slice_seeds(&begin, &count);
    if (only >= first && only < first + 1000000)
        run(only);
    for (uint64_t s = begin; only == UINT64_MAX && s < begin + count; s++)
        run(s);
}

/* LLVM 19.1.7 took x // <2, 1, 0, -1> (guarded per lane) for x: see vector_divide in
 * jit/llvm/tape.c */
Test(emit_fuzz, division_by_constant_lanes) { run_seed(2000340); }

Test(emit_fuzz, first) { run_seeds(0, run_seed); }
Test(emit_fuzz, second) { run_seeds(1000000, run_seed); }
Test(emit_fuzz, third) { run_seeds(2000000, run_seed); }
Test(emit_fuzz, contractions) { run_seeds(3000000, run_contraction); }

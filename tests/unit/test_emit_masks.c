/*
 * Masks: predicates of all lanes and of each, tails, reversed and strided accesses, on buffers that end at a page that may not be touched; for
 * each width and kind of CPU. What this machine cannot execute is compiled, and its object looked at. And the check of the IR: what must not be
 * in it is refused.
 */
#include "tests/support/slice.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/unit/object_check.h"

TestSuite(emit_masks, .init = setup, .fini = teardown);

enum { ROWS = 3, ROWS_READ = 2 };
typedef enum Pred { PRED_NONE, PRED_ROW, PRED_LANE, PRED_BOTH, PREDS } Pred;
typedef enum Walk { WALK_ON, WALK_BACK, WALK_TWO, WALKS } Walk;

typedef struct Mask {
    DType type;
    int64_t n;
    Pred pred;
    Walk walk;
    bool sum, fixed; /* over the rows; the length is a constant */
} Mask;

/* y = x + x where the predicate holds; x[row * width + walk(column)] has no element that is not read. */
static Kernel *mask_kernel(const Mask *m, CheckArg *args)
{
    Kernel *k = kernel_new(&arena);
    DType t = m->type;
    bool row = m->pred == PRED_ROW || m->pred == PRED_BOTH, lane = m->pred == PRED_LANE || m->pred == PRED_BOTH;
    int64_t width = lane ? (m->n * 2 + 2) / 3 : m->n, rows = row ? ROWS_READ : ROWS, by = m->walk == WALK_TWO ? 2 : 1;
    uint32_t x = k_arg(k, ARG_BUFFER, t, false), y = k_arg(k, ARG_BUFFER, t, true);
    IRef n = m->fixed ? kidx_const(k, m->n) : kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
    uint32_t r, c;
    if (m->sum) {
        c = k_axis(k, AXIS_X, n, m->n);
        r = k_axis(k, AXIS_R, kidx_const(k, ROWS), ROWS);
    } else {
        r = k_axis(k, AXIS_X, kidx_const(k, ROWS), ROWS);
        c = k_axis(k, AXIS_X, n, m->n);
    }
    k->vec_axis = c;
    IRef at_r = kidx_axis(k, r), at_c = kidx_axis(k, c), column = at_c;
    if (m->walk == WALK_BACK)
        column = kidx_add(k, kidx_const(k, width - 1), kidx_mul(k, at_c, kidx_const(k, -1)));
    IRef at = kidx_add(k, kidx_mul(k, at_r, kidx_const(k, width * by)), kidx_mul(k, column, kidx_const(k, by)));
    VRef pred = VREF_NONE;
    if (row)
        pred = k_op(k, OP_LT, DT_BOOL, k_index(k, at_r), k_const(k, DT_I64, ROWS_READ), VREF_NONE);
    if (lane) {
        VRef in = k_op(k, OP_LT, DT_BOOL, k_index(k, at_c), k_const(k, DT_I64, (double)width), VREF_NONE);
        pred = row ? k_op(k, OP_AND, DT_BOOL, pred, in, VREF_NONE) : in;
    }
    VRef v = k_load(k, x, at, pred);
    v = t == DT_BOOL ? k_op(k, OP_XOR, t, v, k_const(k, t, 1), VREF_NONE) : k_op(k, OP_ADD, t, v, v, VREF_NONE);
    if (m->sum)
        k_store(k, y, at_c, k_reduce(k, OP_REDUCE_SUM, t, v), VREF_NONE);
    else
        k_store(k, y, kidx_add(k, kidx_mul(k, at_r, kidx_const(k, width)), at_c), v, pred);
    int64_t read = rows * width * by - (by - 1), written = m->sum ? m->n : rows * width;
    args[x] = (CheckArg){.data = filled(t, (size_t)read, true), .bytes = (size_t)read * dtype_bytes(t)};
    args[y] = (CheckArg){.data = filled(t, (size_t)written, true), .bytes = (size_t)written * dtype_bytes(t)};
    args[2].value = m->n;
    return k;
}

static void check_mask(const Mask *m)
{
    char what[128];
    snprintf(what, sizeof what, "%s n %d pred %d walk %d%s%s", dtype_name(m->type), (int)m->n, (int)m->pred, (int)m->walk,
             m->sum ? " sum" : "", m->fixed ? " fixed" : "");
    CheckArg args[REF_ARGS] = {{0}};
    Kernel *k = mask_kernel(m, args);
    check_kernel(k, args, what);
    os_free((void *)(uintptr_t)args[0].data);
    os_free((void *)(uintptr_t)args[1].data);
}

Test(emit_masks, nothing_outside_is_touched)
{
    static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_U8, DT_F16, DT_BOOL};
    static const int64_t sizes[] = {1, 3, 4, 7, 9, 15, 16, 17, 20, 36, 65, 100};
    enum { TYPES = sizeof types / sizeof *types, SIZES = sizeof sizes / sizeof *sizes };
    uint64_t number = 0;
    for (int i = 0; i < TYPES * SIZES * PREDS * WALKS * 4; i++, number++) {
        int rest = i;
        Mask m = {.fixed = rest % 2, .sum = rest / 2 % 2};
        rest /= 4;
        m.pred = (Pred)(rest % PREDS), rest /= PREDS;
        m.walk = (Walk)(rest % WALKS), rest /= WALKS;
        m.n = sizes[rest % SIZES], m.type = types[rest / SIZES];
        if (m.sum && m.type == DT_BOOL)
            continue;
        if (slice_takes(number))
            check_mask(&m);
    }
}

/* The row sums of a concatenation: 100 columns leave a tail of 4, in which no lane of the upper half of a register of 8 is live. */
Test(emit_masks, a_tail_of_half_a_register_under_a_predicate_of_the_row)
{
    static const DType types[] = {DT_F32, DT_F64, DT_I32};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int pred = PRED_ROW; pred < PREDS; pred++)
            for (int walk = 0; walk < WALKS; walk++)
                check_mask(&(Mask){.type = types[t], .n = 100, .pred = (Pred)pred, .walk = (Walk)walk, .sum = true, .fixed = true});
}

/*
 * y[i] = x[i / length * jump + i % length * stride], as rows of a product's windows are read: run by run, every second to fourth element, or by
 * a gather. x has no element more than is read.
 */
typedef struct Broken {
    DType type;
    int64_t n, length, stride, gap; /* elements between the last of a run and the first of the next */
    bool fixed, pred;               /* n and length are constants; only lanes below two thirds of n */
} Broken;

static void check_broken(const Broken *b)
{
    CheckArg args[REF_ARGS] = {{0}};
    char what[128];
    snprintf(what, sizeof what, "%s n %d, runs of %d, stride %d, gap %d%s%s", dtype_name(b->type), (int)b->n, (int)b->length,
             (int)b->stride, (int)b->gap, b->fixed ? " fixed" : "", b->pred ? " pred" : "");
    int64_t jump = b->length * b->stride + b->gap, read = b->pred ? (b->n * 2 + 2) / 3 : b->n;
    int64_t elements = (read - 1) / b->length * jump + (read - 1) % b->length * b->stride + 1;
    if (read > b->length && (b->length - 1) * b->stride > jump) /* a run that is cut short ends before the last of the one before */
        return;
    int64_t before = read > b->length ? ((read - 1) / b->length - 1) * jump + (b->length - 1) * b->stride + 1 : 0;
    elements = elements > before ? elements : before;
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, b->type, false), y = k_arg(k, ARG_BUFFER, b->type, true);
    IRef n = b->fixed ? kidx_const(k, b->n) : kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
    IRef length = b->fixed ? kidx_const(k, b->length) : kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
    uint32_t axis = k_axis(k, AXIS_X, n, b->n);
    k->vec_axis = axis;
    IRef i = kidx_axis(k, axis), from = kidx_mul(k, kidx_div(k, i, length), kidx_const(k, jump));
    VRef pred = b->pred ? k_op(k, OP_LT, DT_BOOL, k_index(k, i), k_const(k, DT_I64, (double)read), VREF_NONE) : VREF_NONE;
    VRef v = k_load(k, x, kidx_add(k, from, kidx_mul(k, kidx_mod(k, i, length), kidx_const(k, b->stride))), pred);
    k_store(k, y, i, v, pred);
    args[x] = (CheckArg){.data = filled(b->type, (size_t)elements, true), .bytes = (size_t)elements * dtype_bytes(b->type)};
    args[y] = (CheckArg){.data = filled(b->type, (size_t)b->n, true), .bytes = (size_t)b->n * dtype_bytes(b->type)};
    args[2].value = b->n;
    args[3].value = b->length;
    check_kernel(k, args, what);
    os_free((void *)(uintptr_t)args[0].data);
    os_free((void *)(uintptr_t)args[1].data);
}

Test(emit_masks, runs_and_strides)
{
    static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_U8, DT_F16, DT_BOOL};
    static const int64_t sizes[] = {1, 7, 16, 33, 70, 200}, lengths[] = {1, 2, 3, 5, 7, 8, 14, 16, 28, 31, 56, 100, 1000},
                         gaps[] = {0, 1, 2, 40};
    enum { TYPES = 6, SIZES = 6, LENGTHS = 13, STRIDES = 5, GAPS = 4, PART = 251 };
    uint64_t number = 0;
    for (int i = 0; i < TYPES * SIZES * LENGTHS * STRIDES * GAPS * 4; i++, number++) {
        int rest = i;
        Broken b = {.fixed = rest % 2, .pred = rest / 2 % 2};
        rest /= 4;
        b.gap = gaps[rest % GAPS], rest /= GAPS;
        b.stride = 1 + rest % STRIDES, rest /= STRIDES;
        b.length = lengths[rest % LENGTHS], rest /= LENGTHS;
        b.n = sizes[rest % SIZES], b.type = types[rest / SIZES];
        if (number % PART == slice_seed() % PART) /* of all slices, too: there are 37,440 */
            check_broken(&b);
    }
}

/* y[i] = x[i] + x[i] for three elements, with as many lanes as for many: whatever reads more than the buffer has, reads outside. */
static void check_object(DType t, Setting s)
{
    enum { N = 3 };
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, t, false), y = k_arg(k, ARG_BUFFER, t, true);
    uint32_t a = k_axis(k, AXIS_X, kidx_const(k, N), 1000);
    k->vec_axis = a;
    VRef v = k_load(k, x, kidx_axis(k, a), VREF_NONE);
    k_store(k, y, kidx_axis(k, a), k_op(k, OP_ADD, t, v, v, VREF_NONE), VREF_NONE);
    JitOptions o = setting_options(s);
    Emitted out;
    cr_assert_eq(llvm_emit_host(k, "three", &o, true, &out), ST_OK, "%s", fail_message());
    object_check_accesses(out.assembly, N * dtype_bytes(t));
    free_emitted(&out);
}

/* Selects and comparisons of one element: an instruction that works on a whole register must not load its operand by itself. */
static void check_one(DType t, Op relation, Setting s)
{
    enum { X, A, B, Y, BUFFERS };
    CheckArg args[REF_ARGS] = {{0}};
    Kernel *k = kernel_new(&arena);
    VRef v[Y];
    for (int i = 0; i < BUFFERS; i++) {
        k_arg(k, ARG_BUFFER, t, i == Y);
        args[i] = (CheckArg){.data = filled(t, 1, true), .bytes = dtype_bytes(t)};
    }
    uint32_t axis = k_axis(k, AXIS_X, kidx_const(k, 1), 1);
    k->vec_axis = axis;
    for (int i = 0; i < B; i++)
        v[i] = k_load(k, (uint32_t)i, kidx_axis(k, axis), VREF_NONE);
    VRef holds = k_op(k, relation, DT_BOOL, v[X], v[A], VREF_NONE);
    v[B] = k_load(k, B, kidx_axis(k, axis), VREF_NONE); /* right before its only use */
    k_store(k, Y, kidx_axis(k, axis), k_op(k, OP_WHERE, t, holds, v[B], v[A]), VREF_NONE);
    JitOptions o = setting_options(s);
    CompiledKernel *code = compile_kernel(k, s);
    if (llvm_host_runs(&o) == ST_OK)
        check_code(code, k, args, s, dtype_name(t));
    kernel_table_release(code);
    for (int i = 0; i < BUFFERS; i++)
        os_free((void *)(uintptr_t)args[i].data);
}

Test(emit_masks, selects_of_one_element)
{
    static const DType types[] = {DT_F32, DT_F64, DT_F16, DT_BF16, DT_I32, DT_U8};
    static const Op relations[] = {OP_LT, OP_EQ, OP_NE};
    uint64_t number = 0;
    for (int cpu = CPU_HOST; cpu <= CPU_V4; cpu++)
        for (int bits = 128; bits <= 512; bits *= 2)
            for (int effort = 0; effort <= 2; effort++)
                for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                    for (size_t r = 0; r < sizeof relations / sizeof *relations; r++)
                        if ((effort == 0 && t < 2) || slice_takes(number++))
                            check_one(types[t], relations[r], (Setting){bits, effort, MATH_STRICT, cpu});
}

/* Heavy code in several vectors: what is on the stack stays small. */
static void check_stack(Setting s, bool fixed)
{
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, DT_F32, false), y = k_arg(k, ARG_BUFFER, DT_F32, true);
    IRef n = fixed ? kidx_const(k, 1003) : kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
    uint32_t a = k_axis(k, AXIS_X, n, 1003);
    k->vec_axis = a;
    VRef v = k_load(k, x, kidx_axis(k, a), VREF_NONE);
    VRef s1 = k_op(k, OP_SIN, DT_F32, v, VREF_NONE, VREF_NONE), c1 = k_op(k, OP_COS, DT_F32, v, VREF_NONE, VREF_NONE);
    k_store(k, y, kidx_axis(k, a), k_op(k, OP_MUL, DT_F32, s1, c1, VREF_NONE), VREF_NONE);
    JitOptions o = setting_options(s);
    Emitted out;
    cr_assert_eq(llvm_emit_host(k, "stack", &o, true, &out), ST_OK, "%s", fail_message());
    object_check_stack(out.assembly, 2048);
    free_emitted(&out);
}

/* A coordinate column * by + plus against numbers before, in and behind what it is, constants or arguments: a bit for each comparison. */
static void check_compared(int64_t n, int64_t by, int64_t plus, DType t, bool fixed)
{
    static const Op ops[] = {OP_LT, OP_LE, OP_GT, OP_GE};
    const double bounds[] = {(double)plus, (double)(plus + by * 5), (double)(plus + by * 20 + 1), (double)(plus + by * n), -0x1p63, 0x1p62};
    Kernel *k = kernel_new(&arena);
    uint32_t y = k_arg(k, ARG_BUFFER, t, true), size = k_arg(k, ARG_SIZE, DT_I64, false), bound = k_arg(k, ARG_SIZE, DT_I64, false);
    IRef length = fixed ? kidx_const(k, n) : kidx_arg(k, size);
    k->vec_axis = k_axis(k, AXIS_X, length, n);
    IRef column = kidx_axis(k, k->vec_axis), at = kidx_add(k, kidx_mul(k, column, kidx_const(k, by)), kidx_const(k, plus));
    VRef left = k_index(k, at), all = k_const(k, t, 0);
    for (size_t b = 0; b <= sizeof bounds / sizeof *bounds; b++) {
        VRef right = b ? k_const(k, DT_I64, bounds[b - 1]) : k_index(k, kidx_add(k, kidx_arg(k, bound), kidx_const(k, plus)));
        for (int o = 0; o < 4; o++) {
            VRef is = k_op(k, ops[o], DT_BOOL, left, right, VREF_NONE), one = k_const(k, t, 1);
            VRef twice = k_op(k, OP_ADD, t, all, all, VREF_NONE), more = k_op(k, OP_ADD, t, twice, one, VREF_NONE);
            all = k_op(k, OP_WHERE, t, is, more, twice);
        }
    }
    k_store(k, y, column, all, VREF_NONE);
    CheckArg args[3] = {{.data = filled(t, (size_t)n, false), .bytes = (size_t)n * dtype_bytes(t)}, {.value = n}, {.value = by * 9 + 1}};
    char what[96];
    snprintf(what, sizeof what, "%d columns by %d and %d more, %s, fixed %d", (int)n, (int)by, (int)plus, dtype_name(t), fixed);
    check_kernel(k, args, what);
    os_free((void *)(uintptr_t)args[0].data);
}

Test(emit_masks, coordinates_compared)
{
    static const int64_t by[] = {1, 2, 5, -1};
    static const DType types[] = {DT_I32, DT_I64, DT_U8};
    for (int i = 0; i < 24; i++)
        check_compared(i % 3 ? 37 : 100, by[i % 4], i % 5 ? 3 : -7, types[i % 3], i / 4 % 2);
}

Test(emit_masks, objects_for_every_cpu)
{
    static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_U8, DT_F16, DT_I64};
    for (int cpu = CPU_HOST; cpu <= CPU_V4; cpu++)
        for (int bits = 128; bits <= 512; bits *= 2)
            for (int effort = 0; effort <= 2; effort++) {
                Setting s = {bits, effort, MATH_STRICT, cpu};
                for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                    check_object(types[t], s);
                if (effort) {
                    check_stack(s, true);
                    check_stack(s, false);
                }
            }
}

/* The check of the object sees a load that is too wide. */
Test(emit_masks, a_wide_load_is_seen)
{
    cr_expect_eq(object_access_bytes("\tvmovups\t32(%rdi), %ymm1"), 32);
    cr_expect_eq(object_access_bytes("\tvaddps\t(%rdi), %zmm0, %zmm0 {%k1} {z}"), 0);
    cr_expect_eq(object_access_bytes("\tvmaskmovps\t(%rdi), %ymm0, %ymm0"), 0);
    cr_expect_eq(object_access_bytes("\tvmovss\t(%rdi,%rax,4), %xmm0"), 4);
    cr_expect_eq(object_access_bytes("\tvpmovzxbd\t(%rdi), %ymm0"), 8);
    cr_expect_eq(object_access_bytes("\tvbroadcastss\t(%rip), %ymm0   # .rodata.cst4+0x0"), 0);
    cr_expect_eq(object_access_bytes("\tvmovaps\t32(%rsp), %ymm0"), 0);
    cr_expect_eq(object_access_bytes("\tvaddps\t%ymm1, %ymm0, %ymm0"), 0);
    cr_expect_eq(object_stack_bytes("run:\n\tpushq\t%rbp\n\tsubq\t$4160, %rsp\n\tretq\n"), 4160);
}

static const char *const never[] = {"nsw", "nuw", "exact", "inbounds", "fast", "fptosi", "fptoui", "mask"};

/* Of both targets: KILN_TEST_FAIL=lint:NAME puts it in. */
Test(emit_masks, what_must_not_be_in_the_ir_is_refused)
{
    static const CudaTarget gpu = {.sm = 80, .ptx = 70, .multiprocessors = 108, .threads = 2048};
    CheckArg args[REF_ARGS] = {{0}};
    Kernel *k = mask_kernel(&(Mask){.type = DT_F32, .n = 100, .fixed = true}, args);
    JitOptions o = setting_options((Setting){0, 1, MATH_STRICT, CPU_HOST});
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        char hook[32];
        Emitted host;
        EmittedPtx ptx;
        snprintf(hook, sizeof hook, "lint:%s", never[i]);
        cr_assert_eq(option_set("test_fail", hook), ST_OK);
        cr_expect_eq(llvm_emit_host(k, "spoilt", &o, false, &host), ST_INTERNAL, "%s was not seen", never[i]);
        cr_expect(strstr(fail_message(), "kernel spoilt: "), "%s", fail_message());
        cr_expect_eq(llvm_emit_ptx(k, "spoilt", &o, &gpu, false, &ptx), ST_INTERNAL, "%s was not seen in PTX", never[i]);
    }
    for (int i = 0; i < 2; i++)
        os_free((void *)(uintptr_t)args[i].data);
    cr_assert_eq(option_set("test_fail", ""), ST_OK);
}

Test(emit_masks, a_cpu_that_is_not_here_is_refused_with_its_name)
{
    JitOptions o = setting_options((Setting){512, 1, MATH_STRICT, CPU_V4});
    cr_assert_eq(option_set("test_fail", "cpu:-avx512f"), ST_OK);
    cr_expect_eq(llvm_host_runs(&o), ST_UNSUPPORTED);
    cr_expect(strstr(fail_message(), "x86-64-v4"), "%s", fail_message());
    cr_assert_eq(option_set("test_fail", ""), ST_OK);
}

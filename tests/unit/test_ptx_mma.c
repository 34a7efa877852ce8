/*
 * Contractions by tensor cores (jit/llvm/cuda/mma.c): dtypes, sizes around the tiles, layouts,
 * batches, epilogues and prologues, within the bounds of ir/accuracy_cuda.def of a sum in f64; and
 * which kernels use them at all. And what the others look like (jit/llvm/cuda/fma.c), whose results test_ptx_contract.c compares.
 */
#define CHECK_PTX
#include "jit/cuda_tile.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"

#include <math.h>

TestSuite(ptx_mma, .init = setup, .fini = teardown);

static const CudaTarget turing = {.sm = 75, .ptx = 65}, ampere = {.sm = 80, .ptx = 74}, hopper = {.sm = 90, .ptx = 80, .arch = true};

typedef enum Prologue { PLAIN, NEGATED, WIDENED } Prologue; /* WIDENED: stored in t, cast to f32, multiplied as f32 */

typedef struct Case {
    DType t, out;
    int64_t batch, m, n, k, gap; /* gap: elements before each buffer, so that it is not aligned */
    const int64_t *hint;         /* NULL: the sizes; else what is planned for instead */
    bool a_transposed, b_transposed, b_shared, fixed, epilogue;
    Prologue prologue;
    const CudaTarget *target; /* NULL: ampere */
} Case;

/* Batch, rows, columns and k for which, on an A100, each of the tiles (jit/cuda_tile.h) is the best one. */
static const int64_t of_tile[CUDA_MMA_TILES][4] = {
    {1, 4096, 4096, 4096}, {1, 1024, 1152, 1024}, {1, 512, 512, 1024}, {4096, 32, 32, 32}, {8, 16, 8192, 1024}, {8, 8192, 16, 1024},
};

enum { A, B, OUT, SIZES, BIAS = SIZES + 4, REST, ARGS };

/* out[batch, m, n] = relu(a @ b + bias[n]) + rest[batch, m, n] */
static Kernel *product(const Case *c)
{
    Kernel *k = kernel_new(&arena);
    const int64_t n[4] = {c->batch, c->m, c->n, c->k};
    IRef size[4], at[4];
    k_arg(k, ARG_BUFFER, c->t, false);
    k_arg(k, ARG_BUFFER, c->t, false);
    k_arg(k, ARG_BUFFER, c->out, true);
    for (int i = 0; i < 4; i++) {
        uint32_t arg = k_arg(k, ARG_SIZE, DT_I64, false);
        size[i] = c->fixed ? kidx_const(k, n[i]) : kidx_arg(k, arg);
    }
    k_arg(k, ARG_BUFFER, DT_F32, false);
    k_arg(k, ARG_BUFFER, c->out, false);
    for (int i = 0; i < 4; i++)
        at[i] = kidx_axis(k, k_axis(k, i < 3 ? AXIS_X : AXIS_R, size[i], c->hint ? c->hint[i] : n[i]));
    k->form = FORM_CONTRACT;
    memcpy(k->product, size, sizeof k->product);
    k->vec_axis = 2;
#define AT(b, x, nx, y, ny) kidx_add(k, kidx_mul(k, kidx_add(k, kidx_mul(k, b, nx), x), ny), y)
    IRef shared = c->b_shared ? kidx_const(k, 0) : at[0];
    IRef ia = c->a_transposed ? AT(at[0], at[3], size[3], at[1], size[1]) : AT(at[0], at[1], size[1], at[3], size[3]);
    IRef ib = c->b_transposed ? AT(shared, at[2], size[2], at[3], size[3]) : AT(shared, at[3], size[3], at[2], size[2]);
    VRef a = k_load(k, A, ia, VREF_NONE), b = k_load(k, B, ib, VREF_NONE);
    DType t = c->t;
    if (c->prologue == NEGATED)
        a = k_op(k, OP_NEG, t, a, VREF_NONE, VREF_NONE);
    if (c->prologue == WIDENED) {
        t = DT_F32;
        a = k_op(k, OP_CAST, t, a, VREF_NONE, VREF_NONE);
        b = k_op(k, OP_CAST, t, b, VREF_NONE, VREF_NONE);
    }
    KInst sum = inst_new(KI_FOLD, t);
    sum.op = FOLD_DOT, sum.a = a, sum.b = b;
    VRef v = kernel_inst(k, sum);
    IRef io = AT(at[0], at[1], size[1], at[2], size[2]);
    if (c->epilogue) {
        if (t != DT_F32)
            v = k_op(k, OP_CAST, DT_F32, v, VREF_NONE, VREF_NONE);
        v = k_op(k, OP_ADD, DT_F32, v, k_load(k, BIAS, at[2], VREF_NONE), VREF_NONE);
        v = k_op(k, OP_RELU, DT_F32, v, VREF_NONE, VREF_NONE);
        if (c->out != DT_F32)
            v = k_op(k, OP_CAST, c->out, v, VREF_NONE, VREF_NONE);
        v = k_op(k, OP_ADD, c->out, v, k_load(k, REST, io, VREF_NONE), VREF_NONE);
    } else if (c->out != t) {
        v = k_op(k, OP_CAST, c->out, v, VREF_NONE, VREF_NONE);
    }
    k_store(k, OUT, io, v, VREF_NONE);
    return k;
}

static double read_at(DType t, const void *data, int64_t i)
{
    return scalar_to_double(t, scalar_load(t, (const char *)data + (size_t)i * dtype_bytes(t)));
}

/* Half a unit in the last place at the size of x. */
static double half_unit(DType t, double x)
{
    return fabs(x) * (t == DT_F16 ? 0x1p-11 : t == DT_BF16 ? 0x1p-8 : 0x1p-24) + (t == DT_F16 ? 0x1p-25 : 0x1p-149);
}

static void bound_of(DType t, double *factor, double *sum)
{
    switch (t) {
#define PRODUCT(type, f, s)    \
    case DT_##type:            \
        *factor = f, *sum = s; \
        return;
#include "ir/accuracy_cuda.def"
    default: cr_assert_fail("no bound for %s", dtype_name(t));
    }
}

static void compare(const Case *c, const CheckArg *in, const void *got, const char *what)
{
    double factor, each;
    bound_of(c->t, &factor, &each);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < c->m; i++)
            for (int64_t j = 0; j < c->n; j++) {
                double sum = 0, size = 0;
                int64_t b2 = c->b_shared ? 0 : b, o = (b * c->m + i) * c->n + j;
                for (int64_t k = 0; k < c->k; k++) {
                    double x = read_at(c->t, in[A].data, b * c->m * c->k + (c->a_transposed ? k * c->m + i : i * c->k + k));
                    double y = read_at(c->t, in[B].data, b2 * c->n * c->k + (c->b_transposed ? j * c->k + k : k * c->n + j));
                    sum += c->prologue == NEGATED ? -x * y : x * y;
                    size += fabs(x * y);
                }
                double allowed = (factor + (double)c->k * each) * size, want = sum;
                if (c->epilogue) {
                    want = fmax(sum + read_at(DT_F32, in[BIAS].data, j), 0) + read_at(c->out, in[REST].data, o);
                    double most = size + fabs(read_at(DT_F32, in[BIAS].data, j)) + fabs(read_at(c->out, in[REST].data, o));
                    allowed +=
                        half_unit(c->prologue == WIDENED ? DT_F32 : c->t, size) + 3 * half_unit(DT_F32, most) + 2 * half_unit(c->out, most);
                }
                allowed += half_unit(c->out, fabs(want) + allowed) + half_unit(c->prologue == WIDENED ? DT_F32 : c->t, want);
                double is = read_at(c->out, got, o);
                cr_assert(fabs(is - want) <= allowed, "%s: [%d,%d,%d]: want %.9g +- %.3g, got %.9g", what, (int)b, (int)i, (int)j, want,
                          allowed, is);
            }
}

static void run(const Case *c, const Kernel *k, const EmittedPtx *p, const CheckArg *in, const char *what)
{
    uint64_t memory[ARGS] = {0};
    void *args[ARGS];
    for (uint32_t a = 0; a < ARGS; a++) {
        args[a] = (void *)(intptr_t)in[a].value;
        if (!in[a].data)
            continue;
        size_t before = (size_t)c->gap * dtype_bytes((DType)k->args.at[a].dtype);
        memory[a] = driver_alloc(in[a].bytes + before);
        args[a] = (void *)(uintptr_t)(memory[a] + before);
        if (a != OUT)
            driver_write((uint64_t)(uintptr_t)args[a], in[a].data, in[a].bytes);
    }
    DriverModule module = driver_load(p->ptx, what);
    cr_assert_eq(p->launch.n_phases, 1);
    driver_launch(module, &p->launch, 0, args, ARGS, what);
    void *got = os_alloc(in[OUT].bytes + 8);
    if (in[OUT].bytes) {
        driver_read(got, (uint64_t)(uintptr_t)args[OUT], in[OUT].bytes);
        compare(c, in, got, what);
    }
    os_free(got);
    driver_unload(module);
    for (uint32_t a = 0; a < ARGS; a++)
        driver_free(memory[a]);
}

static const char *name_of(const Case *c, char *to, size_t size)
{
    snprintf(to, size, "%s to %s, %d x [%d,%d,%d] at %d bt %d shared %d fixed %d pro %d epi %d gap %d hints %d x %d", dtype_name(c->t),
             dtype_name(c->out), (int)c->batch, (int)c->m, (int)c->n, (int)c->k, c->a_transposed, c->b_transposed, c->b_shared, c->fixed,
             c->prologue, c->epilogue, (int)c->gap, c->hint ? (int)c->hint[1] : 0, c->hint ? (int)c->hint[2] : 0);
    return to;
}

/* Indices of 64 bits and of 32, results exact and rough, copies late and early, in turn. A slice of the cases of each test (support/slice.h). */
static void check(Case c)
{
    static int checked, number;
    if (!slice_takes((uint64_t)number++))
        return;
    char what[200];
    name_of(&c, what, sizeof what);
    Kernel *k = product(&c);
    k->index_bits = ++checked % 3 ? 0 : 32;
    set_orders(k, ORDER_CUDA, MATH_FAST);
    cr_assert_eq(kernel_verify(k), ST_OK, "%s: %s", what, fail_message());
    size_t n[ARGS] = {(size_t)(c.batch * c.m * c.k), (size_t)((c.b_shared ? 1 : c.batch) * c.k * c.n), (size_t)(c.batch * c.m * c.n)};
    n[BIAS] = (size_t)c.n, n[REST] = n[OUT];
    CheckArg in[ARGS] = {[SIZES] = {.value = c.batch}, {.value = c.m}, {.value = c.n}, {.value = c.k}};
    for (int a = 0; a < ARGS; a++)
        if (a < SIZES || a >= BIAS) {
            DType t = (DType)k->args.at[a].dtype;
            in[a] = (CheckArg){.data = filled(t, n[a], false), .bytes = n[a] * dtype_bytes(t)};
        }
    EmittedPtx p = emit_ptx_with(k, c.target ? c.target : &ampere, MATH_FAST, true, what);
    bool empty = c.fixed && (!n[OUT] || !c.k); /* LLVM knows, and leaves nothing to do */
    cr_assert(empty || strstr(p.ptx, "mma.sync"), "%s: no tensor cores\n%s", what, p.ptx);
    if (driver_there()) {
        static const char *const ways[] = {"rough=off,async=late", "rough=on,async=early", "rough=off,async=early", "rough=on,async=late"};
        cr_assert_eq(driver.configure(ways[checked % 4]), 0);
        run(&c, k, &p, in, what);
    }
    free_ptx(&p);
    for (int a = 0; a < ARGS; a++)
        os_free((void *)(uintptr_t)in[a].data);
}

static const DType factors[] = {DT_F16, DT_BF16, DT_F32};

/* Every size with every dtype, in every place. */
static const int64_t lengths[] = {1, 16, 17, 63, 64, 65, 130};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void check_sizes(DType t)
{
    for (int i = 0; i < LENGTHS * LENGTHS; i++) {
        int a = i % LENGTHS, b = i / LENGTHS;
        check((Case){.t = t,
                     .out = i % 3 ? t : DT_F32,
                     .batch = 1 + i % 5 % 2,
                     .m = lengths[a],
                     .n = lengths[b],
                     .k = lengths[(2 * a + b + 3) % LENGTHS],
                     .a_transposed = i & 1,
                     .b_transposed = i >> 1 & 1,
                     .fixed = i % 7 < 3,
                     .epilogue = i % 5 < 3,
                     .prologue = i % 11 == 0 ? NEGATED : PLAIN});
    }
}

Test(ptx_mma, sizes_f16) { check_sizes(DT_F16); }
Test(ptx_mma, sizes_bf16) { check_sizes(DT_BF16); }
Test(ptx_mma, sizes_tf32) { check_sizes(DT_F32); }

Test(ptx_mma, each_tile_has_a_size)
{
    for (int i = 0; i < CUDA_MMA_TILES; i++) {
        const int64_t *n = of_tile[i];
        CudaProduct p = {.batch = (double)n[0], .n = {n[1], n[2]}, .k = n[3], .parts = 1, .bytes = 2, .tensor = true, .copies = true};
        cr_expect_eq(cuda_tile(&ampere, &p) - cuda_mma_tiles, i, "%d: %d", i, (int)(cuda_tile(&ampere, &p) - cuda_mma_tiles));
    }
}

/* Layouts, aligned and not, whole tiles and parts, in each shape of a block (which hints choose).
 */
Test(ptx_mma, layouts)
{
    for (int i = 0; i < 96; i++)
        check((Case){.t = factors[i % 3],
                     .out = i & 32 ? factors[i % 3] : DT_F32,
                     .batch = 2,
                     .m = i & 8 ? 48 : 40,
                     .n = i & 8 ? 32 : 72,
                     .k = i & 16 ? 136 : 40,
                     .gap = i % 5 == 4,
                     .hint = of_tile[i / 3 % CUDA_MMA_TILES],
                     .a_transposed = i & 1,
                     .b_transposed = i >> 1 & 1,
                     .b_shared = i >> 2 & 1,
                     .epilogue = i % 7 < 4});
}

Test(ptx_mma, few_rows_or_columns)
{
    for (int i = 0; i < 12; i++)
        check((Case){.t = factors[i % 3],
                     .out = factors[i % 3],
                     .batch = 1,
                     .m = i & 1 ? 3 : 136,
                     .n = i & 1 ? 136 : 5,
                     .k = 72,
                     .a_transposed = i >> 1 & 1,
                     .b_transposed = i >> 2 & 1,
                     .epilogue = true});
}

Test(ptx_mma, widened_factors)
{
    for (int i = 0; i < 8; i++)
        check((Case){.t = i & 1 ? DT_BF16 : DT_F16,
                     .out = i & 2 ? DT_F32 : DT_BF16,
                     .batch = 1,
                     .m = 33,
                     .n = 40,
                     .k = 48,
                     .prologue = WIDENED,
                     .b_transposed = i >> 2 & 1});
}

/* sm_75 has instructions over 8 k only, and no cp.async. */
Test(ptx_mma, older_devices)
{
    for (int i = 0; i < 16; i++)
        check((Case){.t = DT_F16,
                     .out = i & 1 ? DT_F16 : DT_F32,
                     .batch = 1 + (i & 1),
                     .m = i & 2 ? 64 : 33,
                     .n = i & 2 ? 72 : 17,
                     .k = i & 2 ? 80 : 21,
                     .a_transposed = i >> 2 & 1,
                     .b_transposed = i >> 3 & 1,
                     .hint = i & 4 ? of_tile[0] : NULL,
                     .epilogue = i & 1,
                     .target = &turing});
}

Test(ptx_mma, empty)
{
    for (int i = 0; i < 8; i++) {
        int64_t n[4] = {2, 20, 9, 5};
        n[i % 4] = 0;
        check((Case){.t = DT_BF16, .out = DT_BF16, .batch = n[0], .m = n[1], .n = n[2], .k = n[3], .fixed = i / 4, .epilogue = true});
    }
}

/* A factor past the end, next to an infinity: 0 times infinity must not get in. */
Test(ptx_mma, nothing_past_the_end)
{
    for (int i = 0; i < 6 && driver_there(); i++) {
        Case c = {.t = factors[i % 3], .out = DT_F32, .batch = 1, .m = 5, .n = 6, .k = 3, .fixed = i / 3};
        Kernel *k = product(&c);
        CheckArg in[ARGS] = {[SIZES] = {.value = 1}, {.value = c.m}, {.value = c.n}, {.value = c.k}};
        static const size_t n[] = {15, 18, 30};
        for (int a = A; a <= OUT; a++) {
            DType t = (DType)k->args.at[a].dtype;
            char *data = filled(t, n[a], false);
            in[a] = (CheckArg){.data = data, .bytes = n[a] * dtype_bytes(t)};
            for (size_t x = 0; x < n[a] && a == A; x++) /* the last k of each row is infinite, and zero in the other factor */
                if (x % 3 == 2)
                    scalar_store(t, scalar_from_double(t, x == 2 ? INFINITY : 1), data + x * dtype_bytes(t));
        }
        for (int a = BIAS; a < ARGS; a++)
            in[a] = (CheckArg){.data = filled(DT_F32, 30, false), .bytes = 120};
        EmittedPtx p = emit_ptx_with(k, &ampere, MATH_FAST, true, "infinity");
        uint64_t memory[ARGS] = {0};
        void *args[ARGS];
        for (int a = 0; a < ARGS; a++) {
            args[a] = (void *)(intptr_t)in[a].value;
            if (in[a].data) {
                memory[a] = driver_alloc(in[a].bytes);
                driver_write(memory[a], in[a].data, in[a].bytes);
                args[a] = (void *)(uintptr_t)memory[a];
            }
        }
        DriverModule module = driver_load(p.ptx, "infinity");
        driver_launch(module, &p.launch, 0, args, ARGS, "infinity");
        float got[30];
        driver_read(got, memory[OUT], sizeof got);
        for (int x = 0; x < 30; x++)
            cr_assert(x < 6 ? isinf(got[x]) : isfinite(got[x]), "%s: element %d is %g", dtype_name(c.t), x, (double)got[x]);
        driver_unload(module);
        free_ptx(&p);
        for (int a = 0; a < ARGS; a++) {
            driver_free(memory[a]);
            os_free((void *)(uintptr_t)in[a].data);
        }
    }
}

/* ---- which kernels use them, and what ptxas says ---- */

typedef struct Use {
    DType t;
    const CudaTarget *target;
    MathMode math;
    bool tf32;
    const char *instruction; /* NULL: none */
} Use;

Test(ptx_mma, only_where_promised)
{
    static const Use uses[] = {
        {DT_F16, &turing, MATH_FAST, false, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"},
        {DT_F16, &ampere, MATH_FAST, false, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"},
        {DT_F16, &hopper, MATH_FAST, false, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"},
        {DT_BF16, &ampere, MATH_FAST, false, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"},
        {DT_BF16, &hopper, MATH_FAST, false, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"},
        {DT_BF16, &turing, MATH_FAST, false, NULL},
        {DT_F32, &ampere, MATH_FAST, true, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"},
        {DT_F32, &hopper, MATH_FAST, true, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"},
        {DT_F32, &turing, MATH_FAST, true, NULL},
        {DT_F32, &ampere, MATH_FAST, false, NULL},
        {DT_F64, &ampere, MATH_FAST, true, NULL},
        {DT_F16, &ampere, MATH_STRICT, true, NULL},
        {DT_BF16, &ampere, MATH_STRICT, true, NULL},
        {DT_F32, &ampere, MATH_STRICT, true, NULL},
    };
    uint64_t assembled = 0;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        for (int size = 8; size <= 4096; size *= 8) {
            const Use *u = &uses[i];
            Case c = {.t = u->t, .out = u->t, .batch = 1, .m = size, .n = size, .k = size, .epilogue = true, .fixed = size == 64};
            char what[200];
            snprintf(what, sizeof what, "%s, sm_%d, math %d, tf32 %d, %d", dtype_name(u->t), u->target->sm, u->math, u->tf32, size);
            EmittedPtx p = emit_ptx_with(product(&c), u->target, u->math, u->tf32, what);
            cr_assert(u->instruction ? strstr(p.ptx, u->instruction) != NULL : !strstr(p.ptx, "mma."), "%s\n%s", what, p.ptx);
            if (u->instruction)
                cr_assert(!strstr(p.ptx, "fma.rn"), "%s: a product by fma\n%s", what, p.ptx);
            if (u->instruction && slice_takes(assembled++)) {
                Assembled as = assemble(p.ptx, u->target, what);
                cr_assert_eq(as.spills, 0, "%s: %d bytes spilled", what, as.spills);
                cr_assert_eq(as.stack, 0, "%s: %d bytes of stack", what, as.stack);
            }
            free_ptx(&p);
        }
}

/* Those by fused multiply-adds: slices 16 bytes at a time, copied by the device where it can, two blocks a multiprocessor. */
Test(ptx_mma, others)
{
    static const CudaTarget *const targets[] = {&turing, &ampere, &hopper};
    static const int64_t sizes[][2] = {{4096, 4096}, {256, 2048}, {32, 32}};
    for (int i = 0; i < 18; i++) {
        const CudaTarget *t = targets[i % 3];
        Case c = {.t = DT_F32,
                  .out = DT_F32,
                  .batch = 1,
                  .m = sizes[i / 6][0],
                  .n = sizes[i / 6][1],
                  .k = 1024,
                  .b_transposed = i / 3 % 2,
                  .fixed = true,
                  .epilogue = true};
        char what[200];
        name_of(&c, what, sizeof what);
        Kernel *k = product(&c);
        k->index_bits = 32;
        EmittedPtx p = emit_ptx_with(k, t, MATH_STRICT, false, what);
        bool copies = t->sm >= 80 && !c.b_transposed; /* b_transposed: elements change places on their way */
        cr_assert(strstr(p.ptx, "ld.shared.v4"), "%s: shared memory is not read 16 bytes at a time\n%s", what, p.ptx);
        cr_assert(strstr(p.ptx, "ld.global.nc.v4"), "%s: slices are not read 16 bytes at a time\n%s", what, p.ptx);
        cr_assert(!copies || strstr(p.ptx, "cp.async.cg.shared.global"), "%s: nothing is copied\n%s", what, p.ptx);
        if (slice_takes((uint64_t)i)) {
            Assembled as = assemble(p.ptx, t, what);
            cr_assert_eq(as.spills, 0, "%s, sm_%d: %d bytes spilled", what, t->sm, as.spills);
            cr_assert_leq(as.registers, 128, "%s: %d registers", what, as.registers);
        }
        free_ptx(&p);
    }
}

/* ---- sums over k in parts ---- */

static float *run_parts(const EmittedPtx *p, const CheckArg *in, const char *what)
{
    uint64_t memory[ARGS + 1] = {0};
    void *args[ARGS + 1];
    for (uint32_t a = 0; a < ARGS; a++) {
        args[a] = (void *)(intptr_t)in[a].value;
        if (in[a].data) {
            memory[a] = driver_alloc(in[a].bytes);
            args[a] = (void *)(uintptr_t)memory[a];
            driver_write(memory[a], in[a].data, in[a].bytes);
        }
    }
    static char counters[GRID_COUNTER_BYTES];
    memset(counters, 0, sizeof counters);
    size_t room = (size_t)grid_scratch(&p->launch, args, DRIVER_SMS);
    cr_assert_geq(room, sizeof counters, "%s: %zu bytes of scratch", what, room);
    memory[ARGS] = driver_alloc(room);
    args[ARGS] = (void *)(uintptr_t)memory[ARGS];
    driver_write(memory[ARGS], counters, sizeof counters);
    DriverModule module = driver_load(p->ptx, what);
    for (int turn = 0; turn < 2; turn++) { /* the second finds the counters as the first left them */
        cr_assert_eq(driver.configure(turn ? "async=early" : "async=late"), 0);
        driver_write(memory[OUT], in[OUT].data, in[OUT].bytes);
        driver_launch(module, &p->launch, 0, args, ARGS + 1, what);
        driver_read(counters, memory[ARGS], sizeof counters);
        for (size_t i = 0; i < sizeof counters; i++)
            cr_assert_eq(counters[i], 0, "%s: a counter was not left zero", what);
    }
    float *got = os_alloc(in[OUT].bytes);
    driver_read(got, memory[OUT], in[OUT].bytes);
    driver_unload(module);
    for (uint32_t a = 0; a <= ARGS; a++)
        driver_free(memory[a]);
    return got;
}

/* Chains of multiply-adds over the parts of k, added up in order; then the epilogue. Element `at` of the result. */
static float in_parts(const Case *c, const CheckArg *in, int64_t part, int64_t at)
{
    int64_t batch = at / (c->m * c->n), row = at / c->n % c->m, column = at % c->n;
    const float *a = (const float *)in[A].data + batch * c->m * c->k,
                *b = (const float *)in[B].data + (c->b_shared ? 0 : batch * c->n * c->k);
    float sum = 0;
    for (int64_t from = 0; from < c->k; from += part) {
        float chain = 0;
        for (int64_t k = from; k < c->k && k < from + part; k++)
            chain = fmaf(a[c->a_transposed ? k * c->m + row : row * c->k + k], b[c->b_transposed ? column * c->k + k : k * c->n + column],
                         chain);
        sum = from ? sum + chain : chain;
    }
    if (!c->epilogue)
        return sum;
    float biased = sum + ((const float *)in[BIAS].data)[column];
    return (biased > 0 ? biased : 0) + ((const float *)in[REST].data)[at];
}

static Kernel *split_product(const Case *c)
{
    Kernel *k = product(c);
    k_arg(k, ARG_SCRATCH, DT_I64, false);
    k->split = true;
    return k;
}

/* Fixed and general sizes and every tile give the same bits; by fused multiply-adds these are known. */
Test(ptx_mma, parts)
{
    static const struct {
        int64_t batch, m, n, k, part;
        bool shared, epilogue;
    } sizes[] = {{1, 70, 40, 600, 256, false, false}, {1, 5, 130, 1100, 256, false, true}, {1, 33, 9, 255, 256, false, false},
                 {1, 2, 3, 4200, 320, false, false},  {2, 5, 9, 520, 192, false, true},    {3, 1, 6, 520, 192, true, true}};
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes && driver_there(); i++) {
        int64_t part = sizes[i / 2].part;
        Case c = {.t = i & 1 ? DT_BF16 : DT_F32,
                  .out = DT_F32,
                  .batch = sizes[i / 2].batch,
                  .m = sizes[i / 2].m,
                  .n = sizes[i / 2].n,
                  .k = sizes[i / 2].k,
                  .a_transposed = i & 2,
                  .b_transposed = i & 4,
                  .b_shared = sizes[i / 2].shared,
                  .epilogue = sizes[i / 2].epilogue};
        cr_assert_eq(cuda_part(c.batch, c.m, c.n, c.k), part, "%d: %d", (int)i, (int)cuda_part(c.batch, c.m, c.n, c.k));
        if (!slice_takes(i))
            continue;
        size_t n[ARGS] = {(size_t)(c.batch * c.m * c.k), (size_t)((c.b_shared ? 1 : c.batch) * c.k * c.n), (size_t)(c.batch * c.m * c.n)};
        n[BIAS] = (size_t)c.n, n[REST] = n[OUT];
        CheckArg in[ARGS] = {[SIZES] = {.value = c.batch}, {.value = c.m}, {.value = c.n}, {.value = c.k}};
        float *first = NULL;
        for (int v = 0; v < 2 + CUDA_MMA_TILES; v++) {
            c.fixed = v == 1, c.hint = v < 2 ? NULL : of_tile[v - 2];
            Kernel *k = split_product(&c);
            k->index_bits = v & 1 ? 32 : 0;
            set_orders(k, ORDER_CUDA, MATH_FAST);
            cr_assert_eq(kernel_verify(k), ST_OK, "%s", fail_message());
            for (int a = 0; a < ARGS && !v; a++)
                if (a < SIZES || a >= BIAS) {
                    DType t = (DType)k->args.at[a].dtype;
                    in[a] = (CheckArg){.data = filled(t, n[a], false), .bytes = n[a] * dtype_bytes(t)};
                }
            char what[200];
            name_of(&c, what, sizeof what);
            EmittedPtx p = emit_ptx_with(k, &ampere, MATH_FAST, false, what);
            float *got = run_parts(&p, in, what);
            for (size_t x = 0; x < n[OUT]; x++) {
                float want = first ? first[x] : c.t == DT_F32 ? in_parts(&c, in, part, (int64_t)x) : got[x];
                cr_assert(memcmp(&want, &got[x], sizeof want) == 0, "%s: [%zu]: want %.9g, got %.9g", what, x, (double)want,
                          (double)got[x]);
            }
            compare(&c, in, got, what);
            if (first)
                os_free(got);
            else
                first = got;
            free_ptx(&p);
        }
        os_free(first);
        for (int a = 0; a < ARGS; a++)
            os_free((void *)(uintptr_t)in[a].data);
    }
}

/* Each task leaves a whole tile, however small the product: what has many of them is not cut, by the kernel, its launch plan and cuda_part. */
Test(ptx_mma, parts_need_little_memory)
{
    static const struct {
        int64_t batch, m, n, k;
        bool cut;
    } sizes[] = {{100000, 1, 1, 1024, false}, {384, 1, 1, 8192, false},  {383, 1, 1, 8192, true},      {300, 1, 7, 8192, true},
                 {1, 1, 40000, 4096, true},   {3, 3, 10000, 4096, true}, {1, 40000, 2, 4096, true},    {1, 1, 100000, 4096, false},
                 {7, 65, 33, 16384, true},    {1, 600, 600, 4096, true}, {1, 4096, 4096, 4096, false}, {16, 129, 130, 4096, true},
                 {1, 1, 1, 100000, true},     {0, 5, 5, 4096, true},     {5, 0, 5, 4096, true}};
    static const DType types[] = {DT_F32, DT_BF16, DT_F64};
    for (size_t i = 0; i < 3 * sizeof sizes / sizeof *sizes; i++) {
        Case c = {.t = types[i % 3],
                  .out = types[i % 3],
                  .batch = sizes[i / 3].batch,
                  .m = sizes[i / 3].m,
                  .n = sizes[i / 3].n,
                  .k = sizes[i / 3].k};
        int64_t part = cuda_part(c.batch, c.m, c.n, c.k);
        char what[200];
        name_of(&c, what, sizeof what);
        cr_assert_eq(part < c.k, sizes[i / 3].cut, "%s: parts of %d", what, (int)part);
        if (!slice_takes(i))
            continue;
        EmittedPtx p = emit_ptx_with(split_product(&c), &ampere, MATH_FAST, false, what);
        void *args[ARGS + 1] = {0};
        args[SIZES] = (void *)(intptr_t)c.batch, args[SIZES + 1] = (void *)(intptr_t)c.m;
        args[SIZES + 2] = (void *)(intptr_t)c.n, args[SIZES + 3] = (void *)(intptr_t)c.k;
        int64_t bytes = grid_scratch(&p.launch, args, DRIVER_SMS) - GRID_COUNTER_BYTES;
        cr_assert(sizes[i / 3].cut || bytes == 0, "%s: %lld bytes of scratch", what, (long long)bytes);
        cr_assert_leq(bytes, 16 << 20, "%s: %lld bytes of scratch", what, (long long)bytes);
        free_ptx(&p);
    }
}

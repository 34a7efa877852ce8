/*
 * Fast mode's approximate instructions (jit/llvm/cuda/approx.c): which ops have them, that strict
 * mode has none, and that results stay within ir/accuracy_cuda.def, with instructions rounded well
 * and with instructions as wrong as documented.
 */
#define CHECK_PTX
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/support/count.h"

#include <float.h>
#include <math.h>

TestSuite(ptx_fast, .init = setup, .fini = teardown);

static double exact_exp(double x, double y) { return (void)y, exp(x); }
static double exact_exp2(double x, double y) { return (void)y, exp2(x); }
static double exact_sigmoid(double x, double y) { return (void)y, x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double exact_silu(double x, double y) { return x * exact_sigmoid(x, y); }
static double exact_tanh(double x, double y) { return (void)y, tanh(x); }
static double exact_rsqrt(double x, double y) { return (void)y, 1 / sqrt(x); }
static double exact_reciprocal(double x, double y) { return (void)y, 1 / x; }
static const struct {
    Op op;
    double (*exact)(double, double);
    const char *instruction, *rounded; /* of f32; where the result is f16 or bf16 */
} ops[] = {{OP_EXP, exact_exp, "ex2.approx.ftz.f32", "ex2.approx.ftz.f32"},
           {OP_EXP2, exact_exp2, "ex2.approx.f32", "ex2.approx.f32"},
           {OP_SIGMOID, exact_sigmoid, "rcp.approx.ftz.f32", "rcp.approx.ftz.f32"},
           {OP_SILU, exact_silu, "rcp.approx.ftz.f32", "rcp.approx.ftz.f32"},
           {OP_TANH, exact_tanh, "rcp.approx.ftz.f32", "tanh.approx.f32"},
           {OP_RSQRT, exact_rsqrt, "rsqrt.approx.f32", "rsqrt.approx.f32"},
           {OP_RECIPROCAL, exact_reciprocal, "rcp.approx.f32", "rcp.approx.f32"}};
enum { OPS = sizeof ops / sizeof *ops };

static const struct Row {
    Op op;
    DType dtype;
    double units;
} rows[] = {
#define APPROXIMATE(op, dtype, units) {OP_##op, DT_##dtype, units},
#include "ir/accuracy_cuda.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

/* out[i] = op(x[i], y[i]) */
static Kernel *elementwise(Op op, DType t)
{
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, t, false), y = k_arg(k, ARG_BUFFER, t, false), out = k_arg(k, ARG_BUFFER, t, true);
    uint32_t size = k_arg(k, ARG_SIZE, DT_I64, false), axis = k_axis(k, AXIS_X, kidx_arg(k, size), 1000);
    k->vec_axis = axis;
    IRef i = kidx_axis(k, axis);
    VRef b = op_info[op].arity > 1 ? k_load(k, y, i, VREF_NONE) : VREF_NONE;
    k_store(k, out, i, k_op(k, op, t, k_load(k, x, i, VREF_NONE), b, VREF_NONE), VREF_NONE);
    return k;
}

/* Numbers of every size and sign, those around which the functions turn, and the special ones. */
static void *arguments(DType t, size_t n, Op op, bool second)
{
    static const double odd[] = {0.0,      -0.0,    INFINITY, -INFINITY, NAN,   1,    -1,     0x1p-149, -0x1p-149,
                                 0x1p-126, FLT_MAX, -FLT_MAX, 88.7228,   88.73, 89,   -87.33, -103.9,   -104,
                                 -105,     0x1p126, 0x1p127,  127.999,   128,   -149, -150,   0.55,     1e-20};
    enum { ODD = sizeof odd / sizeof *odd };
    char *data = os_alloc(n * dtype_bytes(t) + 8);
    double widest = op == OP_EXP2 ? 150 : 104;
    for (size_t i = 0; i < n; i++) {
        uint64_t r = next_random();
        double v = ((double)(int64_t)(r >> 12) / 0x1p51 - 1) * widest;
        if (i < ODD * ODD)
            v = odd[second ? i / ODD : i % ODD];
        else if (i % 4 == 1)
            v = ldexp(v / widest, (int)(r % 24) - 20);
        else if (i % 4 == 2)
            v = ldexp(v / widest, (int)(r % 270) - 142);
        scalar_store(t, scalar_from_double(t, v), data + i * dtype_bytes(t));
    }
    return data;
}

static void *run(const EmittedPtx *p, DType t, size_t n, const void *x, const void *y, const char *what)
{
    size_t bytes = n * dtype_bytes(t);
    uint64_t memory[3] = {driver_alloc(bytes), driver_alloc(bytes), driver_alloc(bytes)};
    void *args[4] = {(void *)(uintptr_t)memory[0], (void *)(uintptr_t)memory[1], (void *)(uintptr_t)memory[2], (void *)(intptr_t)n};
    driver_write(memory[0], x, bytes);
    driver_write(memory[1], y, bytes);
    DriverModule module = driver_load(p->ptx, what);
    driver_launch(module, &p->launch, 0, args, 4, what);
    char *got = os_alloc(bytes + 8);
    driver_read(got, memory[2], bytes);
    driver_unload(module);
    for (int i = 0; i < 3; i++)
        driver_free(memory[i]);
    return got;
}

/* The distance in units in the last place of `want`; NaN, infinities and zeros must be what they
 * should. */
static double units_off(DType t, double got, double want, const char *what, double x, double y)
{
    int digits = t == DT_F16 ? 11 : t == DT_BF16 ? 8 : 24, least = t == DT_F16 ? -24 : t == DT_BF16 ? -133 : -149;
    double most = t == DT_F16 ? 65520 : t == DT_BF16 ? 0x1.ffp127 : 0x1.ffffffp127; /* rounds to infinity from here on */
    bool same = isnan(want) ? isnan(got) != 0 : !isnan(got);
    if (same && fabs(want) >= most * 1.0001)
        same = isinf(got) && (got > 0) == (want > 0);
    if (same && isinf(got))
        same = fabs(want) >= most * 0.999 && (got > 0) == (want > 0);
    if (same && want == 0)
        same = got == 0 && (signbit(got) != 0) == (signbit(want) != 0);
    cr_assert(same, "%s: %g, %g: want %g, got %g", what, x, y, want, got);
    if (isnan(want) || isinf(got) || want == 0)
        return 0;
    int exponent = ilogb(want) - digits + 1;
    return fabs(ldexp(got - want, -(exponent < least ? least : exponent)));
}

static void check(size_t which, DType t, double bound)
{
    enum { N = 6000 };
    Op op = ops[which].op;
    char what[64];
    void *x = arguments(t, N, op, false), *y = arguments(t, N, op, true);
    EmittedPtx p = emit_ptx(elementwise(op, t), &ptx_targets[0], MATH_FAST, op_info[op].name);
    for (int rough = 0; rough < 2; rough++) {
        snprintf(what, sizeof what, "%s of %s, %s", op_info[op].name, dtype_name(t), rough ? "rough" : "rounded");
        cr_assert_eq(driver.configure(rough ? "rough=on" : "rough=off"), 0);
        char *got = run(&p, t, N, x, y, what);
        double worst = 0, at = 0;
        for (size_t i = 0; i < N; i++) {
            double a = scalar_to_double(t, scalar_load(t, (char *)x + i * dtype_bytes(t)));
            double b = scalar_to_double(t, scalar_load(t, (char *)y + i * dtype_bytes(t)));
            double r = scalar_to_double(t, scalar_load(t, got + i * dtype_bytes(t)));
            double off = units_off(t, r, ops[which].exact(a, b), what, a, b);
            cr_assert(!(op == OP_SIGMOID || op == OP_TANH) || !(fabs(r) > 1), "%s: %g gives %.9g", what, a, r);
            if (off > worst)
                worst = off, at = a;
        }
        if (getenv("EMIT_PRINT"))
            fprintf(stderr, "%s: %.2f units at %a\n", what, worst, at);
        cr_assert(worst <= bound, "%s: %g units at %a, %g are promised", what, worst, at, bound);
        os_free(got);
    }
    free_ptx(&p);
    os_free(x);
    os_free(y);
}

Test(ptx_fast, errors_stay_below_the_bounds)
{
    bool seen[OPS] = {false};
    for (int r = 0; r < ROWS; r++)
        for (size_t i = 0; i < OPS; i++)
            if (ops[i].op == rows[r].op) {
                seen[i] = true;
                if (driver_there())
                    check(i, rows[r].dtype, rows[r].units);
            }
    for (size_t i = 0; i < OPS; i++)
        cr_assert(seen[i], "no bound for %s", op_info[ops[i].op].name);
}

/* f16 and bf16 of the other ops: what f32 is off by is far below a unit of theirs. */
Test(ptx_fast, halves)
{
    for (size_t i = 0; i < OPS && driver_there(); i++)
        if (ops[i].op != OP_TANH) {
            check(i, DT_F16, 0.51);
            check(i, DT_BF16, 0.51);
        }
}

/* A division that the program asks for is rounded in either mode. */
Test(ptx_fast, divisions_stay_exact)
{
    EmittedPtx p = emit_ptx(elementwise(OP_DIV, DT_F32), &ptx_targets[0], MATH_FAST, "div");
    check_strict_text(p.ptx, false, "div");
    cr_assert(strstr(p.ptx, "div.rn.f32"));
    free_ptx(&p);
}

Test(ptx_fast, only_in_fast_mode)
{
    static const DType types[] = {DT_F32, DT_F16, DT_BF16, DT_F64};
    static const CudaTarget targets[] = {{.sm = 75, .ptx = 65}, {.sm = 80, .ptx = 74}, {.sm = 90, .ptx = 80, .arch = true}};
    for (size_t i = 0; i < OPS; i++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t g = 0; g < sizeof targets / sizeof *targets; g++) {
                const char *what = op_info[ops[i].op].name;
                Kernel *k = elementwise(ops[i].op, types[t]);
                EmittedPtx strict = emit_ptx(k, &targets[g], MATH_STRICT, what), fast = emit_ptx(k, &targets[g], MATH_FAST, what);
                check_strict_text(strict.ptx, true, what);
                bool half = types[t] == DT_F16 || types[t] == DT_BF16, has_tanh = targets[g].ptx >= 70;
                const char *instruction = half && has_tanh ? ops[i].rounded : ops[i].instruction;
                if (types[t] == DT_F64)
                    check_strict_text(fast.ptx, true, what);
                else
                    cr_assert(strstr(fast.ptx, instruction), "%s of %s: no %s\n%s", what, dtype_name(types[t]), instruction, fast.ptx);
                cr_assert(occurrences(".ftz", fast.ptx) ==
                              occurrences("ex2.approx.ftz", fast.ptx) + occurrences("rcp.approx.ftz", fast.ptx),
                          "%s: arithmetic flushes subnormals\n%s", what, fast.ptx);
                if (types[t] == DT_F32 || g == 1) {
                    Assembled as = assemble(fast.ptx, &targets[g], what);
                    cr_assert(as.spills == 0 && as.stack == 0, "%s", what);
                }
                free_ptx(&strict);
                free_ptx(&fast);
            }
}

/*
 * Running sums on CUDA devices (jit/llvm/cuda/scan.c): by threads of a group and by several blocks, in fast mode by halving,
 * bit for bit, whatever the shape, the layout, the alignment and what else the kernel does; strict floats in order.
 */
#define CHECK_PTX
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/support/count.h"

TestSuite(ptx_scan, .init = setup, .fini = teardown);

typedef struct Lines {
    Kernel *k;
    uint32_t x, y, ax, ar; /* arguments, axes */
    IRef i, j, at, size;
    int64_t lines, length;
} Lines;

typedef struct Layout {
    bool columns; /* [length, lines] instead of [lines, length] */
    bool fixed;   /* sizes compiled in */
    bool split;
    int64_t hint; /* planned for lines so long; 0: for those at hand */
} Layout;

static Lines lines_of(DType in, DType out, int64_t lines, int64_t length, Layout l)
{
    Lines s = {.k = kernel_new(&arena), .lines = lines, .length = length};
    Kernel *k = s.k;
    s.x = k_arg(k, ARG_BUFFER, in, false);
    s.y = k_arg(k, ARG_BUFFER, out, true);
    IRef sizes[2] = {kidx_const(k, lines), kidx_const(k, length)};
    for (int i = 0; i < 2; i++) {
        uint32_t arg = k_arg(k, ARG_SIZE, DT_I64, false);
        if (!l.fixed)
            sizes[i] = kidx_arg(k, arg);
    }
    k_arg(k, ARG_SCRATCH, DT_U8, true);
    s.ax = k_axis(k, AXIS_X, sizes[0], lines);
    s.ar = k_axis(k, AXIS_R, sizes[1], l.hint ? l.hint : length);
    k->vec_axis = l.columns ? s.ax : s.ar;
    k->split = l.split;
    s.i = kidx_axis(k, s.ax), s.j = kidx_axis(k, s.ar), s.size = sizes[1];
    s.at = l.columns ? kidx_add(k, kidx_mul(k, s.j, sizes[0]), s.i) : kidx_add(k, kidx_mul(k, s.i, sizes[1]), s.j);
    return s;
}

static VRef k_scan(Kernel *k, DType t, VRef a)
{
    KInst scan = inst_new(KI_FOLD, t);
    scan.op = FOLD_SUM, scan.mode = RUNNING;
    scan.a = a;
    return kernel_inst(k, scan);
}

static void check_lines(Lines *s, MathMode math, size_t out, const char *what)
{
    DType in_type = (DType)s->k->args.at[s->x].dtype, out_type = (DType)s->k->args.at[s->y].dtype;
    size_t n = (size_t)(s->lines * s->length);
    CheckArg args[REF_ARGS] = {{.data = filled(in_type, n, false), .bytes = n * dtype_bytes(in_type)},
                               {.data = filled(out_type, out, false), .bytes = out * dtype_bytes(out_type)},
                               {.value = s->lines},
                               {.value = s->length},
                               {.value = 0}};
    check_kernel_math(s->k, args, math, what);
    os_free((void *)(uintptr_t)args[0].data);
    os_free((void *)(uintptr_t)args[1].data);
}

static void check_scan(DType in, DType out, int64_t lines, int64_t length, Layout l, MathMode math)
{
    Lines s = lines_of(in, out, lines, length, l);
    VRef x = k_load(s.k, s.x, s.at, VREF_NONE);
    if (in != out)
        x = k_op(s.k, OP_CAST, out, x, VREF_NONE, VREF_NONE);
    k_store(s.k, s.y, s.at, k_scan(s.k, out, x), VREF_NONE);
    char what[160];
    snprintf(what, sizeof what, "%s to %s, %d lines of %d%s%s%s, planned for %d, math %d", dtype_name(in), dtype_name(out), (int)lines,
             (int)length, l.columns ? ", columns" : "", l.fixed ? ", fixed" : "", l.split ? ", split" : "", (int)(l.hint ? l.hint : length),
             (int)math);
    check_lines(&s, math, (size_t)(lines * length), what);
}

static const DType types[][2] = {{DT_F32, DT_F32}, {DT_F64, DT_F64},  {DT_F16, DT_F16}, {DT_BF16, DT_BF16}, {DT_I8, DT_I8},
                                 {DT_U64, DT_U64}, {DT_BOOL, DT_I64}, {DT_I32, DT_I64}, {DT_I16, DT_I16}};
enum { TYPES = sizeof types / sizeof *types };

/* Lines within a thread, a warp, a block, a step, several steps. */
Test(ptx_scan, rows_of_every_length)
{
    static const int64_t n[] = {0, 1, 2, 3, 5, 8, 16, 31, 33, 64, 100, 128, 255, 512, 1000, 1024, 1025, 2048, 4096, 4100, 9001};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int fixed = 0; fixed < 2; fixed++)
            check_scan(DT_F32, DT_F32, n[i] < 200 ? 37 : 3, n[i], (Layout){.fixed = fixed}, MATH_FAST);
    check_scan(DT_F32, DT_F32, 0, 7, (Layout){0}, MATH_FAST);
}

Test(ptx_scan, columns_of_every_length)
{
    static const int64_t n[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 129, 1000, 2050};
    static const int64_t lines[] = {1, 3, 32, 45};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int fixed = 0; fixed < 2; fixed++)
            check_scan(DT_F32, DT_F32, lines[(i + (size_t)fixed) % 4], n[i], (Layout){.columns = true, .fixed = fixed}, MATH_FAST);
}

Test(ptx_scan, every_dtype)
{
    static const int64_t n[] = {6, 96, 3000};
    for (size_t t = 0; t < TYPES; t++)
        for (size_t i = 0; i < 3; i++)
            for (int columns = 0; columns < 2; columns++)
                for (int strict = 0; strict < 2; strict++)
                    check_scan(types[t][0], types[t][1], 5, n[i], (Layout){.columns = columns, .fixed = (t + i) % 2},
                               strict ? MATH_STRICT : MATH_FAST);
}

/* One program for lines of any length, planned for one of them. */
Test(ptx_scan, lines_of_other_lengths_than_planned)
{
    static const int64_t n[] = {0, 1, 17, 1024, 5000};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int columns = 0; columns < 2; columns++) {
            check_scan(DT_F32, DT_F32, 3, n[i], (Layout){.columns = columns, .hint = 4}, MATH_FAST);
            check_scan(DT_F32, DT_F32, 3, n[i], (Layout){.columns = columns, .hint = 20000}, MATH_FAST);
        }
}

/* Steps of 1024 elements where they come one by one, of 4096 f32 in whole tiles; a sum of its own for every 256 steps. */
Test(ptx_scan, several_blocks_a_line)
{
    static const int64_t n[] = {0, 1, 1023, 4096, 4097, 20000, 20001};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int fixed = 0; fixed < 2; fixed++)
            check_scan(DT_F32, DT_F32, i % 2 ? 1 : 3, n[i], (Layout){.split = true, .fixed = fixed}, MATH_FAST);
    for (size_t t = 0; t < TYPES; t++)
        check_scan(types[t][0], types[t][1], 2, 9000, (Layout){.split = true, .columns = t % 2}, t % 2 ? MATH_FAST : MATH_STRICT);
}

Test(ptx_scan, more_steps_than_one_block_sums)
{
    check_scan(DT_F32, DT_F32, 1, 256 * 1024 * 2 + 5000, (Layout){.split = true}, MATH_FAST); /* one by one */
    check_scan(DT_F32, DT_F32, 2, 256 * 1024 + 1, (Layout){.split = true}, MATH_FAST);
    /* steps of two tiles: fewer sums of warps than a warp has lanes */
    check_scan(DT_F64, DT_F64, 1, 256 * 512 + 5001, (Layout){.split = true}, MATH_FAST);
    check_scan(DT_F64, DT_F64, 1, 256 * 1024 + 5000, (Layout){.split = true}, MATH_STRICT);
}

/* ---- what else a kernel does ---- */

static VRef k_add(Kernel *k, DType t, VRef a, VRef b) { return k_op(k, OP_ADD, t, a, b, VREF_NONE); }

static const Layout layouts[] = {{0}, {.fixed = true}, {.columns = true}, {.split = true}, {.split = true, .hint = 50}, {.hint = 5}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* Two running sums, one of them of the other; a prologue, an epilogue that reads a line's own number, the input once more. */
Test(ptx_scan, sums_of_sums)
{
    static const int64_t n[] = {9, 260, 6000};
    for (size_t l = 0; l < LAYOUTS; l++)
        for (size_t i = 0; i < 3; i++) {
            Lines s = lines_of(DT_F32, DT_F32, 3, n[i], layouts[l]);
            Kernel *k = s.k;
            VRef x = k_load(k, s.x, s.at, VREF_NONE), scaled = k_op(k, OP_MUL, DT_F32, x, k_const(k, DT_F32, 0.375), VREF_NONE);
            VRef one = k_scan(k, DT_F32, scaled), two = k_scan(k, DT_F32, k_add(k, DT_F32, one, x));
            VRef row = k_op(k, OP_CAST, DT_F32, k_index(k, s.i), VREF_NONE, VREF_NONE);
            k_store(k, s.y, s.at, k_add(k, DT_F32, k_op(k, OP_SUB, DT_F32, two, one, VREF_NONE), k_add(k, DT_F32, row, x)), VREF_NONE);
            check_lines(&s, MATH_FAST, (size_t)(3 * n[i]), "sums of sums");
        }
}

/* From the end; and of a value that is the same for the whole line. */
Test(ptx_scan, backwards)
{
    static const int64_t n[] = {9, 260, 6000};
    for (size_t l = 0; l < LAYOUTS; l++)
        for (size_t i = 0; i < 3; i++) {
            Lines s = lines_of(DT_F32, DT_F32, 2, n[i], layouts[l]);
            Kernel *k = s.k;
            IRef last = kidx_add(k, s.size, kidx_const(k, -1)), back = kidx_add(k, last, kidx_mul(k, s.j, kidx_const(k, -1)));
            IRef at =
                layouts[l].columns ? kidx_add(k, kidx_mul(k, back, kidx_const(k, 2)), s.i) : kidx_add(k, kidx_mul(k, s.i, s.size), back);
            VRef ones = k_scan(k, DT_F32, k_const(k, DT_F32, 0.1));
            k_store(k, s.y, at, k_add(k, DT_F32, k_scan(k, DT_F32, k_load(k, s.x, at, VREF_NONE)), ones), VREF_NONE);
            check_lines(&s, MATH_FAST, (size_t)(2 * n[i]), "backwards");
        }
}

/* In place. */
Test(ptx_scan, over_its_input)
{
    static const int64_t n[] = {9, 260, 6001};
    for (size_t l = 0; l < LAYOUTS; l++)
        for (size_t i = 0; i < 3; i++) {
            Lines s = lines_of(DT_F32, DT_F32, 3, n[i], layouts[l]);
            Kernel *k = s.k;
            k->args.at[s.y].may_alias = true;
            k_store(k, s.y, s.at, k_scan(k, DT_F32, k_load(k, s.y, s.at, VREF_NONE)), VREF_NONE);
            check_lines(&s, MATH_FAST, (size_t)(3 * n[i]), "over its input");
        }
}

/* Beside reductions: before a running sum, of it, and of floats in its own loop, where one thread walks the line. */
Test(ptx_scan, beside_reductions)
{
    static const int64_t n[] = {9, 260, 20000};
    for (size_t l = 0; l < LAYOUTS; l++)
        for (size_t i = 0; i < 3; i++)
            for (int what = 0; what < 3; what++) {
                Lines s = lines_of(DT_F32, DT_F32, 3, n[i], layouts[l]);
                Kernel *k = s.k;
                VRef x = k_load(k, s.x, s.at, VREF_NONE), y = VREF_NONE;
                if (what == 0) /* cumsum(x + sum(x)) - max(x) */
                    y = k_op(k, OP_SUB, DT_F32, k_scan(k, DT_F32, k_add(k, DT_F32, x, k_reduce(k, OP_REDUCE_SUM, DT_F32, x))),
                             k_reduce(k, OP_REDUCE_MAX, DT_F32, x), VREF_NONE);
                if (what == 1) /* max(cumsum(x)) + cumsum(x) */
                    y = k_add(k, DT_F32, k_reduce(k, OP_REDUCE_MAX, DT_F32, k_scan(k, DT_F32, x)), k_scan(k, DT_F32, x));
                if (what == 2) /* sum(cumsum(x)) + x */
                    y = k_add(k, DT_F32, k_reduce(k, OP_REDUCE_SUM, DT_F32, k_scan(k, DT_F32, x)), x);
                k_store(k, s.y, s.at, y, VREF_NONE);
                char text[64];
                snprintf(text, sizeof text, "beside reductions %d, layout %zu, %d", what, l, (int)n[i]);
                check_lines(&s, MATH_FAST, (size_t)(3 * n[i]), text);
            }
}

/* One value a line, stored beside its running sum: once, also where the line is empty. */
Test(ptx_scan, a_value_of_the_line_beside_it)
{
    static const int64_t n[] = {0, 9, 6000};
    for (size_t l = 0; l < LAYOUTS; l++)
        for (size_t i = 0; i < 3; i++) {
            Lines s = lines_of(DT_F32, DT_I64, 3, n[i], layouts[l]);
            Kernel *k = s.k;
            uint32_t rows = k_arg(k, ARG_BUFFER, DT_I64, true);
            VRef sum =
                k_scan(k, DT_I64,
                       k_op(k, OP_CAST, DT_I64, k_op(k, OP_GT, DT_BOOL, k_load(k, s.x, s.at, VREF_NONE), k_const(k, DT_F32, 0), VREF_NONE),
                            VREF_NONE, VREF_NONE));
            k_store(k, s.y, s.at, sum, VREF_NONE);
            k_store(k, rows, s.i, k_index(k, s.i), VREF_NONE);
            size_t m = (size_t)(3 * n[i]);
            int64_t before[3] = {-1, -1, -1};
            CheckArg args[REF_ARGS] = {{.data = filled(DT_F32, m, false), .bytes = 4 * m},
                                       {.data = filled(DT_I64, m, false), .bytes = 8 * m},
                                       {.value = 3},
                                       {.value = n[i]},
                                       {0},
                                       {.data = before, .bytes = sizeof before}};
            check_kernel_math(k, args, l % 2 ? MATH_STRICT : MATH_FAST, "a value of the line");
            os_free((void *)(uintptr_t)args[0].data);
            os_free((void *)(uintptr_t)args[1].data);
        }
}

/* ---- what the code is ---- */

static Lines plain(DType t, int64_t lines, int64_t length, Layout l)
{
    Lines s = lines_of(t, t, lines, length, l);
    k_store(s.k, s.y, s.at, k_scan(s.k, t, k_load(s.k, s.x, s.at, VREF_NONE)), VREF_NONE);
    return s;
}

/* Each element is read once and written once, 16 bytes at a time where the shape allows it; nothing is spilled. */
Test(ptx_scan, read_once_written_once)
{
    static const struct {
        DType t;
        int64_t lines, length;
        Layout layout;
        int reads, most_registers; /* of 16 bytes */
    } cases[] = {
        {DT_F32, 4096, 4096, {.fixed = true}, 4, 85},
        {DT_F32, 4096, 65536, {.fixed = true}, 4, 85},
        {DT_F64, 4096, 65536, {.fixed = true}, 4, 128},
        {DT_I64, 4096, 65536, {.fixed = true}, 4, 128},
        {DT_BF16, 4096, 65536, {.fixed = true}, 4, 128},
        {DT_I8, 4096, 65536, {.fixed = true}, 2, 128},
        {DT_F32, 1, 1 << 24, {.fixed = true, .split = true}, 4, 128},
        {DT_F64, 1, 1 << 24, {.fixed = true, .split = true}, 2, 128},
        {DT_BF16, 1, 1 << 24, {.fixed = true, .split = true}, 2, 128},
        {DT_I64, 1, 1 << 24, {.fixed = true, .split = true}, 4, 128},
        {DT_I8, 1, 1 << 24, {.fixed = true, .split = true}, 2, 128},
        {DT_F32, 4096, 4096, {.fixed = true, .columns = true}, 0, 85},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < 2; t++) {
            Lines s = plain(cases[i].t, cases[i].lines, cases[i].length, cases[i].layout);
            EmittedPtx p = emit_ptx(s.k, &ptx_targets[t], MATH_FAST, "scan");
            int reads = occurrences("ld.global.nc.v4.f32", p.ptx) + occurrences("ld.global.nc.v4.u32", p.ptx) +
                        occurrences("ld.global.nc.v2.f64", p.ptx) + occurrences("ld.global.nc.v2.u64", p.ptx),
                writes = occurrences("st.global.v4.f32", p.ptx) + occurrences("st.global.v4.u32", p.ptx) +
                         occurrences("st.global.v2.f64", p.ptx) + occurrences("st.global.v2.u64", p.ptx) +
                         occurrences("st.global.v4.b32", p.ptx) + occurrences("st.global.v2.b64", p.ptx);
            cr_expect(reads == cases[i].reads && writes == cases[i].reads, "case %zu: %d reads and %d writes of 16 bytes", i, reads,
                      writes);
            Assembled a = assemble(p.ptx, &ptx_targets[t], "scan");
            cr_expect(a.spills == 0 && a.registers <= cases[i].most_registers, "case %zu: %d registers, %d bytes spilled, stack %d", i,
                      a.registers, a.spills, a.stack);
            cr_expect_eq(p.launch.n_phases, 1);
            free_ptx(&p);
        }
}

/* One launch; 8 bytes for each step (of 1024: those where elements come one by one) and for 256 of them. */
Test(ptx_scan, a_long_line_is_one_launch)
{
    Lines s = plain(DT_F32, 1, 1 << 24, (Layout){.split = true});
    EmittedPtx p = emit_ptx(s.k, &ptx_targets[1], MATH_FAST, "scan");
    void *args[REF_ARGS] = {NULL, NULL, (void *)1, (void *)(1 << 24)};
    GridLaunch l = grid_launch(&p.launch, 0, args, 132);
    cr_expect(p.launch.n_phases == 1 && l.blocks == 132 * 8 && l.threads == 256, "%d blocks of %d threads", (int)l.blocks, (int)l.threads);
    cr_expect_eq(grid_scratch(&p.launch, args, 132), GRID_COUNTER_BYTES + (16384 + 64) * 8);
    args[3] = (void *)5000;
    cr_expect_eq(grid_launch(&p.launch, 0, args, 132).blocks, 5);
    free_ptx(&p);
}

/* What blocks tell each other is written and read by one access of 8 bytes; only "ready" is one of 4, in both versions. */
Test(ptx_scan, a_sum_and_its_flag_are_one_word)
{
    static const DType t[] = {DT_F32, DT_F64, DT_I8, DT_BF16, DT_I64};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        Lines s = plain(t[i], 1, 1 << 24, (Layout){.split = true});
        EmittedPtx p = emit_ptx(s.k, &ptx_targets[i % 2], MATH_FAST, "scan");
        int words = 2 * (dtype_bytes(t[i]) > 4 ? 2 : 1) * 2; /* of a step, of 256 of them; in each version */
        cr_expect_eq(occurrences("ld.volatile.global.u64", p.ptx), words, "%s: %d", dtype_name(t[i]),
                     occurrences("ld.volatile.global.u64", p.ptx));
        cr_expect_eq(occurrences("st.volatile.global.u64", p.ptx), words);
        cr_expect_eq(occurrences("ld.volatile.", p.ptx), words + 2);
        cr_expect_eq(occurrences("st.volatile.", p.ptx), words + 2);
        free_ptx(&p);
    }
}

/* Who walks a line alone says why. */
Test(ptx_scan, one_thread_a_line_has_a_reason)
{
    static const struct {
        DType t;
        MathMode math;
        bool sum, alone;
    } cases[] = {{DT_F32, MATH_STRICT, false, true},
                 {DT_F32, MATH_FAST, false, false},
                 {DT_I32, MATH_STRICT, false, false},
                 {DT_F32, MATH_FAST, true, true},
                 {DT_I32, MATH_FAST, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Lines s = lines_of(cases[i].t, cases[i].t, 100, 1000, (Layout){0});
        VRef sum = k_scan(s.k, cases[i].t, k_load(s.k, s.x, s.at, VREF_NONE));
        k_store(s.k, s.y, s.at, sum, VREF_NONE);
        if (cases[i].sum)
            k_store(s.k, s.y, s.i, k_reduce(s.k, OP_REDUCE_SUM, cases[i].t, sum), VREF_NONE);
        EmittedPtx p = emit_ptx(s.k, &ptx_targets[0], cases[i].math, "scan");
        cr_expect_eq(strstr(p.ptx, "// one thread a line: ") != NULL, cases[i].alone, "case %zu", i);
        cr_expect_eq(strstr(p.ptx, "shfl.sync.bfly") != NULL, !cases[i].alone, "case %zu", i);
        free_ptx(&p);
    }
}

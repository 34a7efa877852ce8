/* What PTX looks like: accesses, arithmetic as written, arguments, launch plans, targets. Results: test_ptx_*.c. */
#define CHECK_PTX
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/support/count.h"

TestSuite(ptx, .init = setup, .fini = teardown);

/* y = (x + z) * z + s0 + s1 + ... over one axis of `n` points (0: an argument) */
static Kernel *chain(DType t, int64_t n, uint32_t scalars)
{
    Kernel *k = kernel_new(&arena);
    for (uint32_t i = 0; i < scalars; i++)
        k_arg(k, ARG_SCALAR, DT_F32, false);
    uint32_t x = k_arg(k, ARG_BUFFER, t, false), z = k_arg(k, ARG_BUFFER, t, false), y = k_arg(k, ARG_BUFFER, t, true);
    uint32_t size = k_arg(k, ARG_SIZE, DT_I64, false);
    uint32_t axis = k_axis(k, AXIS_X, n ? kidx_const(k, n) : kidx_arg(k, size), n ? n : 1 << 24);
    k->vec_axis = axis;
    IRef i = kidx_axis(k, axis);
    VRef vx = k_load(k, x, i, VREF_NONE), vz = k_load(k, z, i, VREF_NONE);
    VRef v = k_op(k, OP_MUL, t, k_op(k, OP_ADD, t, vx, vz, VREF_NONE), vz, VREF_NONE);
    for (uint32_t s = 0; s < scalars; s++) {
        KInst scalar = inst_new(KI_SCALAR, DT_F32);
        scalar.arg = s;
        v = k_op(k, OP_ADD, t, v, kernel_inst(k, scalar), VREF_NONE);
    }
    k_store(k, y, i, v, VREF_NONE);
    return k;
}

static const struct {
    DType t;
    const char *load, *store;
} accesses[] = {
    {DT_F32, "ld.global.nc.v4.f32", "st.global.v4.f32"},  {DT_F64, "ld.global.nc.v2.f64", "st.global.v2.f64"},
    {DT_I64, "ld.global.nc.v2.u64", "st.global.v2.u64"},  {DT_F16, "ld.global.nc.v4.u32", "st.global.v4.b32"},
    {DT_BF16, "ld.global.nc.v4.u32", "st.global.v4.b32"}, {DT_I8, "ld.global.nc.v4.u32", "st.global.v4.u32"},
    {DT_U8, "ld.global.nc.v4.u32", "st.global.v4.u32"},   {DT_I16, "ld.global.nc.v4.u32", "st.global.v4.b32"},
};

Test(ptx, sixteen_bytes_at_a_time)
{
    for (size_t i = 0; i < sizeof accesses / sizeof *accesses; i++) {
        EmittedPtx p = emit_ptx(chain(accesses[i].t, 0, 0), &ptx_targets[0], MATH_STRICT, "chain");
        cr_expect(strstr(p.ptx, accesses[i].load), "%s\n%s", accesses[i].load, p.ptx);
        cr_expect(strstr(p.ptx, accesses[i].store), "%s\n%s", accesses[i].store, p.ptx);
        Assembled a = assemble(p.ptx, &ptx_targets[0], "chain");
        cr_expect(a.spills == 0 && a.stack == 0);
        free_ptx(&p);
    }
}

Test(ptx, nothing_is_contracted)
{
    for (int math = MATH_STRICT; math <= MATH_FAST; math++)
        for (size_t t = 0; t < 2; t++) {
            EmittedPtx p = emit_ptx(chain(t ? DT_F64 : DT_F32, 4096, 0), &ptx_targets[t], (MathMode)math, "chain");
            check_strict_text(p.ptx, false, "chain");
            cr_expect(strstr(p.ptx, t ? "mul.rn.f64" : "mul.rn.f32"));
            free_ptx(&p);
        }
}

/* The store after an input that may be the same storage: its loads may not be of the read-only kind. */
Test(ptx, what_may_be_written_is_not_constant)
{
    Kernel *k = chain(DT_F32, 0, 0);
    k->args.at[0].may_alias = k->args.at[2].may_alias = true;
    EmittedPtx p = emit_ptx(k, &ptx_targets[0], MATH_STRICT, "chain");
    cr_expect(strstr(p.ptx, "ld.global.v4.f32") && strstr(p.ptx, "ld.global.nc.v4.f32"));
    free_ptx(&p);
}

/* What the software driver makes of chain(DT_F32, POINTS, n_args - 4); nothing where there is none. */
static void run_chain(const EmittedPtx *p, uint32_t n_args)
{
    enum { POINTS = 64 };
    float in[2][POINTS], got[POINTS];
    if (!driver_there())
        return;
    uint64_t memory[3];
    void *args[700] = {0};
    float sum = 0; /* exact, as all of this */
    for (uint32_t i = 0; i + 4 < n_args; i++) {
        float scalar = (float)(i % 5);
        memcpy(&args[i], &scalar, sizeof scalar);
        sum += scalar;
    }
    for (int i = 0; i < POINTS; i++)
        in[0][i] = (float)i * 0.25f, in[1][i] = 3 - (float)i;
    for (uint32_t i = 0; i < 3; i++) {
        memory[i] = driver_alloc(sizeof got);
        args[n_args - 4 + i] = (void *)(uintptr_t)memory[i];
        if (i < 2)
            driver_write(memory[i], in[i], sizeof in[i]);
    }
    args[n_args - 1] = (void *)(intptr_t)POINTS;
    DriverModule module = driver_load(p->ptx, "chain");
    driver_launch(module, &p->launch, 0, args, n_args, "chain");
    driver_read(got, memory[2], sizeof got);
    driver_unload(module);
    for (int i = 0; i < POINTS; i++)
        cr_assert_eq(got[i], (in[0][i] + in[1][i]) * in[1][i] + sum, "%u arguments, point %d: %g", n_args, i, (double)got[i]);
    for (int i = 0; i < 3; i++)
        driver_free(memory[i]);
}

Test(ptx, arguments_by_value_up_to_four_kilobytes)
{
    static const struct {
        uint32_t args;
        bool by_pointer;
    } rows[] = {{4, false}, {512, false}, {513, true}, {700, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int t = 0; t < 2; t++) { /* the software driver's device is of 8.0 */
            EmittedPtx p = emit_ptx(chain(DT_F32, 64, rows[i].args - 4), &ptx_targets[t], MATH_STRICT, "chain");
            cr_expect_eq(p.launch.by_pointer, rows[i].by_pointer);
            if (t == 0)
                run_chain(&p, rows[i].args);
            Assembled a = assemble(p.ptx, &ptx_targets[t], "chain");
            cr_expect(a.spills == 0, "%u arguments: %d bytes spilled", rows[i].args, a.spills);
            free_ptx(&p);
        }
}

Test(ptx, launch_follows_the_size)
{
    EmittedPtx p = emit_ptx(chain(DT_F32, 0, 0), &ptx_targets[0], MATH_STRICT, "chain");
    static const struct {
        int64_t n, sms, blocks;
    } rows[] = {{0, 4, 0}, {1, 4, 1}, {2048, 4, 1}, {2049, 4, 2}, {1 << 24, 132, 132 * 32}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *args[4] = {NULL, NULL, NULL, (void *)(intptr_t)rows[i].n};
        GridLaunch l = grid_launch(&p.launch, 0, args, rows[i].sms);
        cr_expect_eq(l.blocks, rows[i].blocks, "%lld points: %lld blocks", (long long)rows[i].n, (long long)l.blocks);
        cr_expect_eq(l.points, rows[i].n);
    }
    cr_expect_eq(p.launch.n_phases, 1);
    cr_expect_str_eq(grid_entry(&p.launch, 0), "kiln_test");
    free_ptx(&p);
}

Test(ptx, same_kernel_same_text)
{
    EmittedPtx a = emit_ptx(chain(DT_F32, 0, 0), &ptx_targets[0], MATH_STRICT, "chain"),
               b = emit_ptx(chain(DT_F32, 0, 0), &ptx_targets[0], MATH_STRICT, "chain");
    cr_expect_str_eq(a.ptx, b.ptx);
    free_ptx(&a);
    free_ptx(&b);
}

Test(ptx, every_target_assembles)
{
    static const CudaTarget all[] = {{.sm = 75, .ptx = 63},
                                     {.sm = 80, .ptx = 70},
                                     {.sm = 86, .ptx = 71},
                                     {.sm = 87, .ptx = 74},
                                     {.sm = 89, .ptx = 78},
                                     {.sm = 90, .ptx = 78},
                                     {.sm = 90, .ptx = 85, .arch = true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        EmittedPtx p = emit_ptx(chain(DT_BF16, 0, 0), &all[i], MATH_STRICT, "chain");
        assemble(p.ptx, &all[i], "chain");
        free_ptx(&p);
    }
    EmittedPtx p;
    JitOptions o = setting_options((Setting){0, 1, MATH_STRICT, CPU_HOST});
    cr_expect_eq(llvm_emit_ptx(chain(DT_F32, 0, 0), "x", &o, &(CudaTarget){.sm = 70, .ptx = 78}, false, &p), ST_UNSUPPORTED);
    cr_expect(strstr(fail_message(), "sm_70"), "%s", fail_message());
}

Test(ptx, names_become_ptx_names)
{
    EmittedPtx p;
    JitOptions o = setting_options((Setting){0, 1, MATH_STRICT, CPU_HOST});
    cr_assert_eq(llvm_emit_ptx(chain(DT_F32, 8, 0), "a b-c.d", &o, &ptx_targets[0], false, &p), ST_OK);
    cr_expect_str_eq(grid_entry(&p.launch, 0), "kiln_a_b_c_d");
    cr_expect(strstr(p.ptx, ".visible .entry kiln_a_b_c_d("));
    free_ptx(&p);
}

/* ---- loops ---- */

/* z = z * z + c while that is less than 4: each thread until its own point is done. */
static const char loop[] =
    "kernel (a0 f32, a1 f32, a2 f32 out, s3, s4) for i < s3 ~20, row j < s4 ~6\n"
    "  v0 = load a0[i]; v1 = carry v0; v2 = carry bool(true); v3 = load a1[i]; v4 = mul v1 v1; v5 = add v4 v3\n"
    "  v6 = lt v5 f32(4); v7 = and v2 v6; v8 = where v7 v5 v1; v9 = next v1 v8; v10 = next v2 v7 ends; store a2[i] = v9\n";

Test(ptx, what_a_loop_carries_stays_in_registers)
{
    static const CudaTarget all[] = {
        {.sm = 75, .ptx = 63}, {.sm = 80, .ptx = 74}, {.sm = 89, .ptx = 78}, {.sm = 90, .ptx = 78}, {.sm = 90, .ptx = 85, .arch = true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Kernel *k;
        cr_assert_eq(kernel_parse(loop, &arena, &k), ST_OK, "%s", fail_message());
        EmittedPtx p = emit_ptx(k, &all[i], MATH_STRICT, "loop");
        cr_expect(occurrences("ld.global", p.ptx) == 2 && occurrences("st.global", p.ptx) == 1 && !strstr(p.ptx, ".local"), "%s", p.ptx);
        Assembled a = assemble(p.ptx, &all[i], "loop");
        cr_expect(a.spills == 0 && a.stack == 0 && a.registers <= 32, "%d registers, %d bytes spilled", a.registers, a.spills);
        if (!all[i].arch) /* on a device that is newer than its PTX, too */
            assemble(p.ptx, &(CudaTarget){.sm = 100}, "loop");
        free_ptx(&p);
    }
}

/* ---- reductions ---- */

/* Of elements of one dtype, computed in another. */
static Kernel *softmax_in(DType stored, DType t, int64_t rows, int64_t n)
{
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, stored, false), y = k_arg(k, ARG_BUFFER, stored, true);
    uint32_t i = k_axis(k, AXIS_X, kidx_const(k, rows), rows), j = k_axis(k, AXIS_R, kidx_const(k, n), n);
    IRef at = kidx_add(k, kidx_mul(k, kidx_axis(k, i), kidx_const(k, n)), kidx_axis(k, j));
    k->vec_axis = j;
    VRef v = k_load(k, x, at, VREF_NONE);
    if (stored != t)
        v = k_op(k, OP_CAST, t, v, VREF_NONE, VREF_NONE);
    VRef e = k_op(k, OP_SUB, t, v, k_reduce(k, OP_REDUCE_MAX, t, v), VREF_NONE);
    e = k_op(k, OP_EXP, t, e, VREF_NONE, VREF_NONE);
    v = k_op(k, OP_DIV, t, e, k_reduce(k, OP_REDUCE_SUM, t, e), VREF_NONE);
    if (stored != t)
        v = k_op(k, OP_CAST, stored, v, VREF_NONE, VREF_NONE);
    k_store(k, y, at, v, VREF_NONE);
    return k;
}

static Kernel *softmax(DType t, int64_t rows, int64_t n) { return softmax_in(t, t, rows, n); }

static const struct {
    DType stored, computed;
    int64_t n;
    const char *load;
    int reads, most_registers; /* of a thread: reads of its part of the row, of 16 bytes if they can be */
} rows[] = {
    /* clang-format off */
    {DT_F32, DT_F32, 64, "ld.global.nc.v4.f32", 1, 64},      {DT_F32, DT_F32, 512, "ld.global.nc.v4.f32", 4, 64},
    {DT_F32, DT_F32, 4096, "ld.global.nc.v4.f32", 4, 64},    {DT_F32, DT_F32, 1000, "ld.global.nc.v4.f32", 4, 64},
    {DT_F32, DT_F32, 16384, "ld.global.nc.v4.f32", 16, 168}, {DT_BF16, DT_BF16, 4096, "ld.global.nc.v4.u32", 4, 128},
    {DT_F64, DT_F64, 2048, "ld.global.nc.v2.f64", 4, 128},   {DT_BF16, DT_F32, 8192, "ld.global.nc.v4.u32", 8, 168},
    {DT_F16, DT_F32, 12288, "ld.global.nc.v4.u16", 12, 128}, {DT_BF16, DT_F32, 16384, "ld.global.nc.v4.u16", 16, 168},
    /* clang-format on */
};

Test(ptx, rows_are_read_once_and_stay_in_registers)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t t = 0; t < (rows[i].stored == rows[i].computed ? 2 : 4); t++) {
            Kernel *k = softmax_in(rows[i].stored, rows[i].computed, 4096, rows[i].n);
            k->index_bits = t % 2 ? 32 : 0;
            EmittedPtx p = emit_ptx(k, &ptx_targets[t % 2], t < 2 ? MATH_STRICT : MATH_FAST, "softmax");
            int reads = occurrences(rows[i].load, p.ptx);
            cr_expect_eq(reads, rows[i].reads, "%s rows of %d: %d reads\n", dtype_name(rows[i].stored), (int)rows[i].n, reads);
            Assembled a = assemble(p.ptx, &ptx_targets[t % 2], "softmax");
            cr_expect(a.spills == 0 && a.registers <= rows[i].most_registers, "%s rows of %d: %d registers, %d bytes spilled, stack %d",
                      dtype_name(rows[i].stored), (int)rows[i].n, a.registers, a.spills, a.stack);
            cr_expect_eq(p.launch.n_phases, 1);
            free_ptx(&p);
        }
}

/* Rows on devices of different size: as many blocks and threads as fill them. */
Test(ptx, blocks_follow_the_device)
{
    static const struct {
        int64_t x, r;
        int multiprocessors, blocks, threads;
    } cases[] = {
        {4096, 4096, 132, 4096, 256},            /* long rows: a block each */
        {4096, 64, 132, 512, 128},               /* short ones: several in a block, a thread for 16 bytes as long as there are threads */
        {1 << 20, 64, 132, (1 << 20) / 32, 128}, /* and then for four times that */
        {4096, 64, 2, 128, 128},                 /* which is earlier on a small device */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CudaTarget t = {.sm = 90, .ptx = 80, .multiprocessors = cases[i].multiprocessors, .threads = 2048};
        EmittedPtx p = emit_ptx(softmax(DT_F32, cases[i].x, cases[i].r), &t, MATH_STRICT, "softmax");
        GridLaunch l = grid_launch(&p.launch, 0, (void *[2]){NULL, NULL}, 1 << 20); /* no limit by the launch */
        cr_expect(l.blocks == cases[i].blocks && l.threads == (uint32_t)cases[i].threads, "case %zu: %d blocks of %d threads", i,
                  (int)l.blocks, (int)l.threads);
        free_ptx(&p);
    }
}

/* sum(exp(x) * x) of one long vector: one launch, no spills, whatever else. */
Test(ptx, a_long_sum_is_one_launch)
{
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, DT_F32, false), y = k_arg(k, ARG_BUFFER, DT_F32, true);
    k_arg(k, ARG_SCRATCH, DT_U8, true);
    uint32_t size = k_arg(k, ARG_SIZE, DT_I64, false), j = k_axis(k, AXIS_R, kidx_arg(k, size), 10000000);
    k->split = true;
    k->vec_axis = j;
    VRef v = k_load(k, x, kidx_axis(k, j), VREF_NONE);
    VRef e = k_op(k, OP_MUL, DT_F32, k_op(k, OP_EXP, DT_F32, v, VREF_NONE, VREF_NONE), v, VREF_NONE);
    k_store(k, y, kidx_const(k, 0), k_reduce(k, OP_REDUCE_SUM, DT_F32, e), VREF_NONE);
    for (size_t t = 0; t < 2; t++) {
        EmittedPtx p = emit_ptx(k, &ptx_targets[t], MATH_STRICT, "sum");
        Assembled a = assemble(p.ptx, &ptx_targets[t], "sum");
        cr_expect(a.spills == 0 && a.registers <= 96, "%d registers, %d bytes spilled", a.registers, a.spills);
        cr_assert_eq(p.launch.n_phases, 1);
        void *args[4] = {NULL, NULL, NULL, (void *)10000000};
        cr_expect_eq(grid_launch(&p.launch, 0, args, 132).blocks, 611);
        cr_expect_eq(grid_scratch(&p.launch, args, 132), GRID_COUNTER_BYTES + 2496);
        free_ptx(&p);
    }
}

/* ---- widths of indices ---- */

/* y = x read through strides, at coordinates of another shape: y[i] = x[(i / n) * s + i % n * t]; all sizes are arguments. */
static Kernel *strided(int bits)
{
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, DT_F32, false), y = k_arg(k, ARG_BUFFER, DT_F32, true);
    IRef n = kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false)), s = kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false)),
         t = kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false)), size = kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
    uint32_t axis = k_axis(k, AXIS_X, size, 1000);
    IRef i = kidx_axis(k, axis);
    IRef from = kidx_add(k, kidx_mul(k, kidx_div(k, i, n), s), kidx_mul(k, kidx_mod(k, i, n), t));
    k_store(k, y, i, k_op(k, OP_NEG, DT_F32, k_load(k, x, from, VREF_NONE), VREF_NONE, VREF_NONE), VREF_NONE);
    k->vec_axis = axis;
    k->index_bits = (uint8_t)bits;
    return k;
}

/* Under its guard index arithmetic is 32 bits wide: no product or quotient of 64 bits is left but in addresses. */
Test(ptx, narrow_indices)
{
    static const char *const wide_only[] = {"div.u64", "mul.lo.s64", "rem.u64", "mad.lo.s64"};
    int wide = 0, narrow = 0;
    for (int bits = 0; bits <= 32; bits += 32) {
        EmittedPtx p = emit_ptx(strided(bits), &ptx_targets[0], MATH_STRICT, "strided");
        for (size_t i = 0; i < sizeof wide_only / sizeof *wide_only; i++)
            *(bits ? &narrow : &wide) += occurrences(wide_only[i], p.ptx);
        if (getenv("EMIT_PRINT"))
            fprintf(stderr, "%s", p.ptx);
        free_ptx(&p);
    }
    cr_expect(wide > 4 && narrow == 0, "%d operations of 64 bits with wide indices, %d with narrow ones", wide, narrow);
}

static int divisions(const char *ptx)
{
    return occurrences("div.u32", ptx) + occurrences("rem.u32", ptx) + occurrences("div.u64", ptx) + occurrences("rem.u64", ptx) +
           occurrences("div.s", ptx) + occurrences("rem.s", ptx);
}

/* With narrow indices no size is divided by: quotient and remainder of one number are one multiplication, an element. */
Test(ptx, sizes_are_divided_by_multiplication)
{
    for (size_t t = 0; t < 2; t++) {
        EmittedPtx p = emit_ptx(strided(32), &ptx_targets[t], MATH_STRICT, "strided");
        cr_expect_eq(divisions(p.ptx), 0, "%s", p.ptx);
        cr_expect_eq(occurrences("begin inline asm", p.ptx), 4 + 1, "a tile, and a single point:\n%s", p.ptx);
        cr_expect_eq(p.launch.n_divisors, 1);
        Assembled a = assemble(p.ptx, &ptx_targets[t], "strided");
        cr_expect(a.spills == 0 && a.stack == 0);
        free_ptx(&p);
        p = emit_ptx(strided(0), &ptx_targets[t], MATH_STRICT, "wide");
        cr_expect(divisions(p.ptx) > 0 && p.launch.n_divisors == 0, "%s", p.ptx);
        free_ptx(&p);
    }
}

static void check_strided(int64_t n, int64_t size)
{
    int64_t stride = n + 3; /* with n itself, a quotient that is off would be made up for by its remainder */
    size_t places = (size_t)((n ? size / n : 0) * stride + n + 1);
    CheckArg args[] = {{.data = filled(DT_F32, places, false), .bytes = places * 4},
                       {.data = filled(DT_F32, (size_t)size, false), .bytes = (size_t)size * 4},
                       {.value = n},
                       {.value = stride},
                       {.value = 1},
                       {.value = size}};
    char what[64];
    snprintf(what, sizeof what, "%d points by %d", (int)size, (int)n);
    check_kernel(strided(32), args, what);
    os_free((void *)(uintptr_t)args[0].data);
    os_free((void *)(uintptr_t)args[1].data);
}

Test(ptx, points_by_every_size)
{
    static const int64_t by[] = {1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 999, 1000, 1001, 1 << 15, 100003};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++)
        check_strided(by[i], i % 2 ? 1000 : 1037);
    check_strided(0, 0);
    check_strided(7, 0);
}

enum { MANY_SIZES = GRID_DIVISORS + 6 };

/* y[i] = sum over j of i % n[j], where n[j] is of `sizes` pairs n[a] * n[b]: more divisors than a block has room for. */
static Kernel *many_sizes(uint32_t padding)
{
    enum { ARGS = 9 };
    Kernel *k = kernel_new(&arena);
    uint32_t y = k_arg(k, ARG_BUFFER, DT_I64, true);
    IRef n[ARGS], size = kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
    for (int i = 0; i < ARGS; i++)
        n[i] = kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
    for (uint32_t i = 0; i < padding; i++)
        k_arg(k, ARG_SCALAR, DT_F32, false);
    uint32_t axis = k_axis(k, AXIS_X, size, 1000);
    k->vec_axis = axis;
    k->index_bits = 32;
    IRef sum = kidx_const(k, 0);
    for (int j = 0, a = 0, b = 0; j < MANY_SIZES; j++, b = b + 1 < ARGS ? b + 1 : ++a)
        sum = kidx_add(k, sum, kidx_mod(k, kidx_axis(k, axis), kidx_mul(k, n[a], n[b])));
    KInst index = inst_new(KI_INDEX, DT_I64);
    index.idx = sum;
    k_store(k, y, kidx_axis(k, axis), kernel_inst(k, index), VREF_NONE);
    return k;
}

/* Divisors beyond those that the block has room for are divided by as others are. */
Test(ptx, more_sizes_than_a_block_has_room_for)
{
    EmittedPtx p = emit_ptx(many_sizes(0), &ptx_targets[0], MATH_STRICT, "sizes");
    cr_expect_eq(p.launch.n_divisors, GRID_DIVISORS);
    cr_expect_gt(divisions(p.ptx), 0);
    free_ptx(&p);
    p = emit_ptx(many_sizes(GRID_BLOCK_BYTES / 8 - 11 - 3), &ptx_targets[0], MATH_STRICT, "sizes");
    cr_expect(p.launch.n_divisors == 3 && !p.launch.by_pointer);
    assemble(p.ptx, &ptx_targets[0], "sizes");
    free_ptx(&p);
    p = emit_ptx(many_sizes(GRID_BLOCK_BYTES / 8 - 11 + 1), &ptx_targets[0], MATH_STRICT, "sizes");
    cr_expect(p.launch.n_divisors == 0 && p.launch.by_pointer);
    assemble(p.ptx, &ptx_targets[0], "sizes");
    free_ptx(&p);
    CheckArg args[11] = {{.data = filled(DT_I64, 1500, false), .bytes = 1500 * 8}, {.value = 1500}};
    for (int i = 0; i < 9; i++)
        args[2 + i] = (CheckArg){.value = (const int64_t[]){1, 2, 3, 5, 8, 13, 21, 64, 100}[i]};
    check_kernel(many_sizes(0), args, "sizes");
    os_free((void *)(uintptr_t)args[0].data);
}

/* ---- contractions ---- */

/* y[m, n] = relu(sum over k of a[m, k] b[k, n] + c[n]); sizes are arguments, chosen for `hint` */
static Kernel *product(DType t, int64_t hint)
{
    Kernel *k = kernel_new(&arena);
    uint32_t a = k_arg(k, ARG_BUFFER, t, false), b = k_arg(k, ARG_BUFFER, t, false), c = k_arg(k, ARG_BUFFER, t, false),
             y = k_arg(k, ARG_BUFFER, t, true);
    IRef size[3], at[3];
    for (uint32_t i = 0; i < 3; i++) {
        size[i] = kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
        at[i] = kidx_axis(k, k_axis(k, i < 2 ? AXIS_X : AXIS_R, size[i], hint));
    }
    k->form = FORM_CONTRACT;
    k->vec_axis = 1;
    KInst sum = inst_new(KI_FOLD, t);
    sum.op = FOLD_DOT;
    sum.a = k_load(k, a, kidx_add(k, kidx_mul(k, at[0], size[2]), at[2]), VREF_NONE);
    sum.b = k_load(k, b, kidx_add(k, kidx_mul(k, at[2], size[1]), at[1]), VREF_NONE);
    VRef v = k_op(k, OP_ADD, t, kernel_inst(k, sum), k_load(k, c, at[1], VREF_NONE), VREF_NONE);
    k_store(k, y, kidx_add(k, kidx_mul(k, at[0], size[1]), at[1]), k_op(k, OP_RELU, t, v, VREF_NONE, VREF_NONE), VREF_NONE);
    return k;
}

/* The threads of a block as launched, and how many blocks a multiprocessor holds: as many as leave the registers that a thread has a use
 * for (64 at least), and two of a large contraction. */
Test(ptx, launch_bounds_are_declared)
{
    Kernel *kernels[] = {chain(DT_F32, 0, 0), softmax(DT_F32, 4096, 64), softmax(DT_F32, 4096, 4096), softmax(DT_F32, 4096, 16384),
                         product(DT_F32, 1024)};
    static const int blocks[] = {4, 8, 4, 2, 2};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        for (size_t t = 0; t < 2; t++) {
            EmittedPtx p = emit_ptx(kernels[i], &ptx_targets[t], MATH_STRICT, "bounds");
            char bound[64];
            snprintf(bound, sizeof bound, ".maxntid %d, 1, 1\n.minnctapersm %d\n", p.launch.phase[0].threads, blocks[i]);
            cr_expect(strstr(p.ptx, bound), "case %zu: %s\n%s", i, bound, p.ptx);
            free_ptx(&p);
        }
}

/* A launch has a block for each of up to 32 rows, whatever the device; then nothing asks how many blocks there are. */
Test(ptx, few_rows_are_no_loop)
{
    static const int64_t counts[] = {1, 3, 32, 33};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t t = 0; t < 2; t++) {
            EmittedPtx p = emit_ptx(softmax(DT_F32, counts[i], 3300), &ptx_targets[t], MATH_STRICT, "rows");
            GridLaunch one = grid_launch(&p.launch, 0, NULL, 1);
            cr_expect_eq(one.blocks, counts[i] < 32 ? counts[i] : (int64_t)32, "%d rows: %d blocks", (int)counts[i], (int)one.blocks);
            cr_expect_eq(!strstr(p.ptx, "%nctaid"), counts[i] <= 32, "%d rows:\n%s", (int)counts[i], p.ptx);
            free_ptx(&p);
        }
}

Test(ptx, tiles_of_every_size)
{
    static const struct {
        DType t;
        int64_t hint, m, n, k;
    } cases[] = {{DT_F32, 1024, 130, 140, 37}, {DT_F32, 1024, 128, 64, 32},  {DT_F32, 100, 70, 65, 18},
                 {DT_F32, 8, 20, 33, 50},      {DT_BF16, 1024, 20, 130, 16}, {DT_F64, 1024, 65, 70, 17}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t m = cases[i].m, n = cases[i].n, kk = cases[i].k;
        size_t bytes = dtype_bytes(cases[i].t);
        CheckArg args[] = {{.data = filled(cases[i].t, (size_t)(m * kk), false), .bytes = (size_t)(m * kk) * bytes},
                           {.data = filled(cases[i].t, (size_t)(kk * n), false), .bytes = (size_t)(kk * n) * bytes},
                           {.data = filled(cases[i].t, (size_t)n, false), .bytes = (size_t)n * bytes},
                           {.data = filled(cases[i].t, (size_t)(m * n), false), .bytes = (size_t)(m * n) * bytes},
                           {.value = m},
                           {.value = n},
                           {.value = kk}};
        char what[64];
        snprintf(what, sizeof what, "%s %d x %d x %d", dtype_name(cases[i].t), (int)m, (int)n, (int)kk);
        check_kernel(product(cases[i].t, cases[i].hint), args, what);
        for (int a = 0; a < 4; a++)
            os_free((void *)(uintptr_t)args[a].data);
    }
}

Test(ptx, tiles_leave_room_for_two_blocks)
{
    static const struct {
        DType t;
        int64_t hint;
        int most_registers;
    } cases[] = {{DT_F32, 4096, 128}, {DT_BF16, 4096, 128}, {DT_F32, 100, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < 2; t++) {
            EmittedPtx p = emit_ptx(product(cases[i].t, cases[i].hint), &ptx_targets[t], MATH_STRICT, "product");
            Assembled a = assemble(p.ptx, &ptx_targets[t], "product");
            /* two blocks a multiprocessor: ptxas may put away a few addresses that the inner loop has no use for */
            cr_expect(a.spills <= 64 && a.registers <= cases[i].most_registers, "case %zu: %d registers, %d bytes spilled, stack %d", i,
                      a.registers, a.spills, a.stack);
            cr_expect(strstr(p.ptx, "ld.shared.v4.f32") != NULL);
            free_ptx(&p);
        }
}

/* ---- the workloads of the README's numbers: no spills, cold paths stay branches ---- */

/* relu((sin x * cos y + x) * y) */
static Kernel *chain_of_sines(void)
{
    Kernel *k = kernel_new(&arena);
    uint32_t a = k_arg(k, ARG_BUFFER, DT_F32, false), b = k_arg(k, ARG_BUFFER, DT_F32, false), c = k_arg(k, ARG_BUFFER, DT_F32, true),
             size = k_arg(k, ARG_SIZE, DT_I64, false);
    uint32_t axis = k_axis(k, AXIS_X, kidx_arg(k, size), 1 << 24);
    k->vec_axis = axis;
    IRef i = kidx_axis(k, axis);
    VRef x = k_load(k, a, i, VREF_NONE), y = k_load(k, b, i, VREF_NONE);
    VRef s = k_op(k, OP_SIN, DT_F32, x, VREF_NONE, VREF_NONE), t = k_op(k, OP_COS, DT_F32, y, VREF_NONE, VREF_NONE);
    VRef v = k_op(k, OP_ADD, DT_F32, k_op(k, OP_MUL, DT_F32, s, t, VREF_NONE), x, VREF_NONE);
    v = k_op(k, OP_RELU, DT_F32, k_op(k, OP_MUL, DT_F32, v, y, VREF_NONE), VREF_NONE, VREF_NONE);
    k_store(k, c, i, v, VREF_NONE);
    return k;
}

/* sum(tanh(x) * sigmoid(x) + exp(-x*x)) */
static Kernel *sum_of_curves(void)
{
    Kernel *k = kernel_new(&arena);
    uint32_t a = k_arg(k, ARG_BUFFER, DT_F32, false), b = k_arg(k, ARG_BUFFER, DT_F32, true), size = k_arg(k, ARG_SIZE, DT_I64, false);
    k_arg(k, ARG_SCRATCH, DT_U8, true);
    uint32_t axis = k_axis(k, AXIS_R, kidx_arg(k, size), 10000000);
    k->vec_axis = axis;
    k->split = true;
    VRef x = k_load(k, a, kidx_axis(k, axis), VREF_NONE);
    VRef t = k_op(k, OP_TANH, DT_F32, x, VREF_NONE, VREF_NONE), s = k_op(k, OP_SIGMOID, DT_F32, x, VREF_NONE, VREF_NONE);
    VRef q = k_op(k, OP_NEG, DT_F32, k_op(k, OP_MUL, DT_F32, x, x, VREF_NONE), VREF_NONE, VREF_NONE);
    VRef v = k_op(k, OP_ADD, DT_F32, k_op(k, OP_MUL, DT_F32, t, s, VREF_NONE), k_op(k, OP_EXP, DT_F32, q, VREF_NONE, VREF_NONE), VREF_NONE);
    k_store(k, b, kidx_const(k, 0), k_reduce(k, OP_REDUCE_SUM, DT_F32, v), VREF_NONE);
    return k;
}

Test(ptx, workloads_do_not_spill)
{
    for (size_t t = 0; t < 2; t++)
        for (int which = 0; which < 2; which++) {
            Kernel *k = which ? sum_of_curves() : chain_of_sines();
            EmittedPtx p = emit_ptx(k, &ptx_targets[t], MATH_STRICT, "workload");
            Assembled a = assemble(p.ptx, &ptx_targets[t], "workload");
            cr_expect(a.spills == 0 && a.stack <= 96 && a.registers <= 80, "%d: %d registers, %d bytes spilled, stack %d", which,
                      a.registers, a.spills, a.stack);
            check_strict_text(p.ptx, true, "workload");
            free_ptx(&p);
        }
}

/* Every allocation fails once. */
Test(ptx, without_memory)
{
    Kernel *kernels[] = {chain(DT_F32, 0, 0), softmax(DT_F32, 100, 4096), product(DT_F32, 100), sum_of_curves()};
    JitOptions o = setting_options((Setting){0, 1, MATH_STRICT, CPU_HOST});
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        Status status = ST_OUT_OF_MEMORY;
        for (int64_t n = 1; status != ST_OK; n++) {
            EmittedPtx p;
            os_fail_alloc(n, false);
            status = llvm_emit_ptx(kernels[i], "starved", &o, &ptx_targets[0], true, &p);
            os_fail_alloc(0, false);
            cr_assert(status == ST_OK || status == ST_OUT_OF_MEMORY, "allocation %lld: %s", (long long)n, fail_message());
            cr_assert_eq(status == ST_OK, p.ptx != NULL);
            free_ptx(&p);
        }
    }
}

/* ---- in place ---- */

/* The output takes over the first input's storage; the software driver finds reads that race with the writes. */
static void check_in_place(Kernel *k, uint32_t out, int64_t n, const char *what)
{
    if (!driver_there())
        return;
    k->args.at[0].may_alias = k->args.at[out].may_alias = true;
    size_t bytes = (size_t)n * 4;
    char *data = filled(DT_F32, (size_t)n, false), *got = os_alloc(bytes);
    uint64_t device = driver_alloc(bytes), other = driver_alloc(bytes);
    driver_write(device, data, bytes);
    driver_write(other, data, bytes);
    EmittedPtx p = emit_ptx(k, &ptx_targets[0], MATH_STRICT, what);
    char *copy = os_alloc(bytes);
    memcpy(copy, data, bytes);
    void *args[4] = {(void *)(uintptr_t)device, (void *)(uintptr_t)other, (void *)(uintptr_t)other, (void *)(intptr_t)n};
    void *want[4] = {data, copy, copy, (void *)(intptr_t)n};
    args[out] = args[0], want[out] = want[0];
    ref_run(k, want, MATH_STRICT);
    DriverModule m = driver_load(p.ptx, what);
    driver_launch(m, &p.launch, 0, args, k->args.n, what);
    driver_read(got, device, bytes);
    cr_assert_arr_eq(got, data, bytes, "%s in place", what);
    driver_unload(m);
    driver_free(device);
    driver_free(other);
    free_ptx(&p);
    os_free(data);
    os_free(copy);
    os_free(got);
}

Test(ptx, in_place)
{
    check_in_place(chain(DT_F32, 0, 0), 2, 5000, "chain");
    check_in_place(chain(DT_F32, 0, 0), 2, 4099, "chain with a tail");
    static const int64_t lengths[] = {5, 64, 100, 1000, 1001, 5000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        check_in_place(softmax(DT_F32, 7, lengths[i]), 1, 7 * lengths[i], "softmax");
}

/* What PTX looks like: accesses, arithmetic as written, arguments, launch plans, targets. Results: test_ptx_*.c. */
#define CHECK_PTX
#include "tests/unit/kernel_ref.h"

static Arena arena;
static jmp_buf oom;

static void setup(void)
{
    arena_init(&arena, &oom);
    cr_assert(setjmp(oom) == 0);
}
static void teardown(void) { arena_free(&arena); }
TestSuite(ptx, .init = setup, .fini = teardown);

/* y = (x + z) * z over one axis of `n` points (0: an argument) */
static Kernel *chain(DType t, int64_t n, uint32_t padding)
{
    Kernel *k = kernel_new(&arena);
    for (uint32_t i = 0; i < padding; i++)
        k_arg(k, ARG_SCALAR, DT_F32, false);
    uint32_t x = k_arg(k, ARG_BUFFER, t, false), z = k_arg(k, ARG_BUFFER, t, false), y = k_arg(k, ARG_BUFFER, t, true);
    uint32_t size = k_arg(k, ARG_SIZE, DT_I64, false);
    uint32_t axis = k_axis(k, AXIS_X, n ? kidx_const(k, n) : kidx_arg(k, size), n ? n : 1000);
    k->vec_axis = axis;
    IRef i = kidx_axis(k, axis);
    VRef vx = k_load(k, x, i, VREF_NONE), vz = k_load(k, z, i, VREF_NONE);
    k_store(k, y, i, k_op(k, OP_MUL, t, k_op(k, OP_ADD, t, vx, vz, VREF_NONE), vz, VREF_NONE), VREF_NONE);
    return k;
}

static const struct {
    DType t;
    const char *load, *store;
} accesses[] = {
    {DT_F32, "ld.global.nc.v4.f32", "st.global.v4.f32"},
    {DT_F64, "ld.global.nc.v2.f64", "st.global.v2.f64"},
    {DT_I64, "ld.global.nc.v2.u64", "st.global.v2.u64"},
    {DT_F16, "ld.global.nc.v4.u32", "st.global.v4.b32"},
    {DT_BF16, "ld.global.nc.v4.u32", "st.global.v4.b32"},
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

Test(ptx, arguments_by_value_up_to_four_kilobytes)
{
    static const struct {
        uint32_t args;
        bool by_pointer;
    } rows[] = {{4, false}, {512, false}, {513, true}, {700, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EmittedPtx p = emit_ptx(chain(DT_F32, 64, rows[i].args - 4), &ptx_targets[1], MATH_STRICT, "chain");
        cr_expect_eq(p.grid.by_pointer, rows[i].by_pointer);
        assemble(p.ptx, &ptx_targets[1], "chain");
        free_ptx(&p);
    }
}

Test(ptx, launch_follows_the_size)
{
    EmittedPtx p = emit_ptx(chain(DT_F32, 0, 0), &ptx_targets[0], MATH_STRICT, "chain");
    static const struct {
        int64_t n, sms, blocks;
    } rows[] = {{0, 4, 0}, {1, 4, 1}, {2048, 4, 1}, {2049, 4, 2}, {1 << 24, 132, 132 * 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *args[4] = {NULL, NULL, NULL, (void *)(intptr_t)rows[i].n};
        GridLaunch l = grid_launch(&p.grid, 0, args, rows[i].sms);
        cr_expect_eq(l.blocks, rows[i].blocks, "%lld points: %lld blocks", (long long)rows[i].n, (long long)l.blocks);
        cr_expect_eq(l.points, rows[i].n);
    }
    cr_expect_eq(p.grid.n_phases, 1);
    cr_expect_str_eq(p.grid.phase[0].entry, "kiln_test");
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
    static const CudaTarget all[] = {{75, 63, false}, {80, 70, false}, {86, 71, false}, {87, 74, false},
                                     {89, 78, false}, {90, 78, false}, {90, 85, true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        EmittedPtx p = emit_ptx(chain(DT_BF16, 0, 0), &all[i], MATH_STRICT, "chain");
        assemble(p.ptx, &all[i], "chain");
        free_ptx(&p);
    }
    EmittedPtx p;
    JitOptions o = setting_options((Setting){0, 1, MATH_STRICT});
    cr_expect_eq(llvm_emit_ptx(chain(DT_F32, 0, 0), "x", &o, &(CudaTarget){.sm = 70, .ptx = 78}, false, &p), ST_UNSUPPORTED);
    cr_expect(strstr(fail_message(), "sm_70"), "%s", fail_message());
}

Test(ptx, names_become_ptx_names)
{
    EmittedPtx p;
    JitOptions o = setting_options((Setting){0, 1, MATH_STRICT});
    cr_assert_eq(llvm_emit_ptx(chain(DT_F32, 8, 0), "a b-c.d", &o, &ptx_targets[0], false, &p), ST_OK);
    cr_expect_str_eq(p.grid.phase[0].entry, "kiln_a_b_c_d");
    cr_expect(strstr(p.ptx, ".visible .entry kiln_a_b_c_d("));
    free_ptx(&p);
}

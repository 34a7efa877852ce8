/* Transposed inputs (jit/llvm/cuda/transpose.c): right for every dtype and size, and by accesses of whole tiles both ways. */
#define CHECK_PTX
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"

TestSuite(ptx_transpose, .init = setup, .fini = teardown);

typedef struct Sizes {
    int64_t batch, rows, columns;
} Sizes;

/* y[b, i, j] = z[b, j, i] or, with `more`, x[b, i, j] - z[b, j, i] + w[i]; sizes fixed, or arguments hinted to be large. */
static Kernel *transposed(DType t, Sizes n, bool fixed, bool more)
{
    const int64_t sizes[3] = {n.batch, n.rows, n.columns};
    Kernel *k = kernel_new(&arena);
    uint32_t buffer[4];
    for (int i = 0; i < 4; i++)
        buffer[i] = k_arg(k, ARG_BUFFER, t, i == 3);
    IRef size[3], at[3];
    for (int a = 0; a < 3; a++) {
        size[a] = fixed ? kidx_const(k, sizes[a]) : kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false));
        at[a] = kidx_axis(k, k_axis(k, AXIS_X, size[a], fixed ? sizes[a] : 64));
    }
    k->vec_axis = 2;
    IRef batch = kidx_mul(k, at[0], kidx_mul(k, size[1], size[2]));
    IRef along = kidx_add(k, kidx_add(k, batch, kidx_mul(k, at[1], size[2])), at[2]);
    IRef other = kidx_add(k, kidx_add(k, batch, kidx_mul(k, at[2], size[1])), at[1]);
    VRef v = k_load(k, buffer[1], other, VREF_NONE);
    if (more) {
        v = k_op(k, OP_SUB, t, k_load(k, buffer[0], along, VREF_NONE), v, VREF_NONE);
        v = k_op(k, OP_ADD, t, v, k_load(k, buffer[2], at[1], VREF_NONE), VREF_NONE);
    }
    k_store(k, buffer[3], along, v, VREF_NONE);
    return k;
}

static void check(DType t, Sizes n, bool fixed, bool more)
{
    size_t points = (size_t)(n.batch * n.rows * n.columns), bytes = points * dtype_bytes(t);
    CheckArg args[7];
    for (int i = 0; i < 4; i++)
        args[i] = (CheckArg){.data = filled(t, points, false), .bytes = bytes};
    args[4] = (CheckArg){.value = n.batch}, args[5] = (CheckArg){.value = n.rows}, args[6] = (CheckArg){.value = n.columns};
    char what[96];
    snprintf(what, sizeof what, "%s %d x %d x %d%s%s", dtype_name(t), (int)n.batch, (int)n.rows, (int)n.columns, fixed ? " fixed" : "",
             more ? " and more" : "");
    check_kernel(transposed(t, n, fixed, more), args, what);
    for (int i = 0; i < 4; i++)
        os_free((void *)(uintptr_t)args[i].data);
}

Test(ptx_transpose, every_size)
{
    static const Sizes sizes[] = {{1, 64, 64}, {1, 32, 36}, {2, 68, 40}, {1, 4, 4},   {3, 8, 100}, {1, 132, 68},
                                  {1, 64, 1},  {2, 33, 64}, {1, 64, 66}, {2, 37, 35}, {0, 32, 32}, {1, 0, 32}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int fixed = 0; fixed < 2; fixed++)
            check(DT_F32, sizes[i], fixed, i % 2);
}

Test(ptx_transpose, every_dtype)
{
    for (DType t = 0; t < DT_COUNT; t++) {
        check(t, (Sizes){1, 36, 32}, t % 2, false);
        check(t, (Sizes){2, 34, 34}, t % 2 == 0, false);
    }
}

/* A square of four by four: four loads of whole rows from below, four stores. */
Test(ptx_transpose, whole_tiles_both_ways)
{
    static const struct {
        DType t;
        const char *load, *store;
        int64_t blocks; /* of 256 squares; at most 32 a multiprocessor */
    } rows[] = {{DT_F32, ".v4.f32", "st.global.v4.f32", 4096},
                {DT_BF16, ".v4.u16", "st.global.v4.u16", 4096},
                {DT_F16, ".v4.u16", "st.global.v4.u16", 4096},
                {DT_U8, ".b32", "st.global.u32", 4096},
                {DT_F64, ".v2.f64", "st.global.v2.f64", 132 * 32}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EmittedPtx p = emit_ptx(transposed(rows[i].t, (Sizes){1, 4096, 4096}, true, false), &ptx_targets[1], MATH_FAST, "transposed");
        cr_expect(strstr(p.ptx, rows[i].load) && strstr(p.ptx, rows[i].store), "%s: no %s or %s\n%s", dtype_name(rows[i].t), rows[i].load,
                  rows[i].store, p.ptx);
        Assembled a = assemble(p.ptx, &ptx_targets[1], "transposed");
        cr_expect(a.spills == 0 && a.registers <= 48, "%s: %d registers, %d spilled", dtype_name(rows[i].t), a.registers, a.spills);
        void *args[4] = {NULL};
        cr_expect_eq(grid_launch(&p.launch, 0, args, 132).blocks, rows[i].blocks);
        free_ptx(&p);
    }
}

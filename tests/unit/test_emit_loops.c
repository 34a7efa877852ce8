/* FORM_LOOPS without reductions: tails, strides, gathers, predicates, dtypes; against the reference executor. */
#include "tests/unit/kernel_ref.h"

static Arena arena;
static jmp_buf oom;

static void setup(void)
{
    arena_init(&arena, &oom);
    if (setjmp(oom))
        cr_assert(false, "out of memory");
}

static void teardown(void) { arena_free(&arena); }

TestSuite(emit_loops, .init = setup, .fini = teardown);

/* y[i] = (x[i] + z[i]) * z[i], the length an argument or a constant */
static void check_chain(DType t, int64_t n, bool fixed)
{
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, t, false), z = k_arg(k, ARG_BUFFER, t, false), y = k_arg(k, ARG_BUFFER, t, true);
    uint32_t size = fixed ? 0 : k_arg(k, ARG_SIZE, DT_I64, false);
    uint32_t a = k_axis(k, AXIS_X, fixed ? kidx_const(k, n) : kidx_arg(k, size), n);
    k->vec_axis = a;
    IRef i = kidx_axis(k, a);
    VRef vx = k_load(k, x, i, VREF_NONE), vz = k_load(k, z, i, VREF_NONE);
    k_store(k, y, i, k_op(k, OP_MUL, t, k_op(k, OP_ADD, t, vx, vz, VREF_NONE), vz, VREF_NONE), VREF_NONE);
    size_t bytes = (size_t)n * dtype_bytes(t);
    CheckArg args[] = {{.data = filled(t, (size_t)n, true), .bytes = bytes},
                       {.data = filled(t, (size_t)n, true), .bytes = bytes},
                       {.data = filled(t, (size_t)n, true), .bytes = bytes},
                       {.value = n}};
    check_kernel(k, args, dtype_name(t));
    for (int j = 0; j < 3; j++)
        os_free((void *)(uintptr_t)args[j].data);
}

Test(emit_loops, chain_fixed_lengths)
{
    for (int64_t n = 0; n < 70; n += n < 20 ? 1 : 7)
        check_chain(DT_F32, n, true);
    check_chain(DT_F32, 128, true);
    check_chain(DT_F32, 200, true);
}

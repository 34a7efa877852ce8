/* FORM_LOOPS without reductions: tails, strides, gathers, predicates, dtypes; against the reference
 * executor. */
#include "jit/kernel_text.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/unit/check_text.h"

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

Test(emit_loops, chain_argument_lengths)
{
    static const int64_t lengths[] = {0, 1, 3, 15, 16, 17, 31, 32, 33, 64, 100, 200};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        check_chain(DT_F32, lengths[i], false);
}

Test(emit_loops, chain_every_dtype)
{
    static const int64_t lengths[] = {1, 37, 64, 131};
    for (DType t = 0; t < DT_COUNT; t++)
        for (size_t i = 0; t != DT_BOOL && i < sizeof lengths / sizeof *lengths; i++)
            check_chain(t, lengths[i], i == 2);
}

/* One elementwise op over special values of every dtype its rule takes. */
static void check_op(Op op, const DType *in, DType out)
{
    enum { N = 150 };
    Kernel *k = kernel_new(&arena);
    VRef v[3] = {VREF_NONE, VREF_NONE, VREF_NONE};
    CheckArg args[4] = {{0}};
    int arity = op_info[op].arity;
    uint32_t y = 0;
    for (int i = 0; i < arity; i++) {
        k_arg(k, ARG_BUFFER, in[i], false);
        args[i] = (CheckArg){.data = filled(in[i], N, true), .bytes = N * dtype_bytes(in[i])};
    }
    y = k_arg(k, ARG_BUFFER, out, true);
    args[arity] = (CheckArg){.data = filled(out, N, false), .bytes = N * dtype_bytes(out)};
    uint32_t axis = k_axis(k, AXIS_X, kidx_const(k, N), N);
    k->vec_axis = axis;
    IRef at = kidx_axis(k, axis);
    for (int i = 0; i < arity; i++)
        v[i] = k_load(k, (uint32_t)i, at, VREF_NONE);
    k_store(k, y, at, k_op(k, op, out, v[0], v[1], v[2]), VREF_NONE);
    char what[64];
    snprintf(what, sizeof what, "%s %s -> %s", op_name(op), dtype_name(in[0]), dtype_name(out));
    check_kernel(k, args, what);
    for (int i = 0; i <= arity; i++)
        os_free((void *)(uintptr_t)args[i].data);
}

static bool takes(DRule rule, DType t)
{
    switch (rule) {
    case RULE_NUM: return t != DT_BOOL;
    case RULE_FLOAT:
    case RULE_FCMP: return dtype_is_float(t);
    case RULE_INTS: return dtype_is_int(t);
    case RULE_BITS: return dtype_is_int(t) || t == DT_BOOL;
    case RULE_BOOL: return t == DT_BOOL;
    case RULE_RANDOM: return t == DT_U64;
    case RULE_SAME:
    case RULE_CMP:
    case RULE_CAST:
    case RULE_WHERE:
    case RULE_INDEX:
    case RULE_OWN: break;
    }
    return true;
}

/* Every elementwise op x dtype; index: a dtype, so that the cases run in parallel. */
static void check_ops_of(DType t)
{
    for (Op op = 0; op < OP_COUNT; op++) {
        DRule rule = (DRule)op_info[op].rule;
        if (op_class(op) != CLS_EW || !takes(rule, t))
            continue;
        DType in[3] = {t, t, t}, out = t;
        if (rule == RULE_WHERE)
            in[0] = DT_BOOL;
        if (rule == RULE_CMP || rule == RULE_FCMP || rule == RULE_BOOL)
            out = DT_BOOL;
        if (rule != RULE_CAST) {
            check_op(op, in, out);
            continue;
        }
        for (out = 0; out < DT_COUNT; out++)
            if (out != t)
                check_op(op, in, out);
    }
}

#define OPS_OF(id) \
    Test(emit_loops, ops_##id) { check_ops_of(DT_##id); }
#define DTYPE(id, name, bytes, kind, scalar, numpy) OPS_OF(id)
#include "ir/dtypes.def"
#undef DTYPE

typedef struct Fixture {
    Kernel *k;
    uint32_t x, y, rows, cols;
    IRef r, c;
    int64_t n_rows, n_cols;
} Fixture;

/* y[rows, cols] from x, lanes along the columns; sizes constants or arguments */
static Fixture plane(DType t, int64_t rows, int64_t cols, bool fixed)
{
    Fixture f = {.k = kernel_new(&arena), .n_rows = rows, .n_cols = cols};
    f.x = k_arg(f.k, ARG_BUFFER, t, false);
    f.y = k_arg(f.k, ARG_BUFFER, t, true);
    IRef sizes[2] = {kidx_const(f.k, rows), kidx_const(f.k, cols)};
    for (int i = 0; i < 2; i++) {
        uint32_t arg = k_arg(f.k, ARG_SIZE, DT_I64, false);
        if (!fixed)
            sizes[i] = kidx_arg(f.k, arg);
    }
    f.rows = k_axis(f.k, AXIS_X, sizes[0], rows);
    f.cols = k_axis(f.k, AXIS_X, sizes[1], cols);
    f.k->vec_axis = f.cols;
    f.r = kidx_axis(f.k, f.rows);
    f.c = kidx_axis(f.k, f.cols);
    return f;
}

static IRef plane_at(Fixture *f) { return kidx_add(f->k, kidx_mul(f->k, f->r, f->k->axes.at[f->cols].size), f->c); }

static void check_plane(Fixture *f, size_t x_elements, const char *what)
{
    DType t = (DType)f->k->args.at[f->x].dtype, u = (DType)f->k->args.at[f->y].dtype;
    size_t n = (size_t)(f->n_rows * f->n_cols);
    CheckArg args[REF_ARGS] = {{.data = filled(t, x_elements, true), .bytes = x_elements * dtype_bytes(t)},
                               {.data = filled(u, n, true), .bytes = n * dtype_bytes(u)},
                               {.value = f->n_rows},
                               {.value = f->n_cols}};
    check_kernel(f->k, args, what);
    os_free((void *)(uintptr_t)args[0].data);
    os_free((void *)(uintptr_t)args[1].data);
}

static const int64_t planes[][2] = {{1, 1}, {3, 5}, {5, 16}, {2, 33}, {7, 48}, {0, 9}, {9, 0}, {40, 3}};
#define EACH_PLANE(p, fixed)                                    \
    for (size_t p = 0; p < sizeof planes / sizeof *planes; p++) \
        for (int fixed = 0; fixed < 2; fixed++)

Test(emit_loops, transposed)
{
    EACH_PLANE(p, fixed)
    {
        Fixture f = plane(p % 2 ? DT_F32 : DT_I16, planes[p][0], planes[p][1], fixed);
        IRef at = kidx_add(f.k, kidx_mul(f.k, f.c, f.k->axes.at[f.rows].size), f.r);
        k_store(f.k, f.y, plane_at(&f), k_load(f.k, f.x, at, VREF_NONE), VREF_NONE);
        check_plane(&f, (size_t)(planes[p][0] * planes[p][1]), "transposed");
    }
}

Test(emit_loops, stored_transposed)
{
    EACH_PLANE(p, fixed)
    {
        Fixture f = plane(p % 2 ? DT_F64 : DT_I8, planes[p][0], planes[p][1], fixed);
        IRef at = kidx_add(f.k, kidx_mul(f.k, f.c, f.k->axes.at[f.rows].size), f.r);
        k_store(f.k, f.y, at, k_load(f.k, f.x, plane_at(&f), VREF_NONE), VREF_NONE);
        check_plane(&f, (size_t)(planes[p][0] * planes[p][1]), "stored transposed");
    }
}

Test(emit_loops, broadcast)
{
    EACH_PLANE(p, fixed)
    {
        Fixture f = plane(DT_F32, planes[p][0], planes[p][1], fixed);
        int64_t n = planes[p][0] + planes[p][1];
        VRef row = k_load(f.k, f.x, f.r, VREF_NONE);
        VRef col = k_load(f.k, f.x, kidx_add(f.k, f.c, f.k->axes.at[f.rows].size), VREF_NONE);
        VRef one = k_load(f.k, f.x, kidx_const(f.k, 0), VREF_NONE);
        VRef sum = k_op(f.k, OP_SUB, DT_F32, k_op(f.k, OP_ADD, DT_F32, row, col, VREF_NONE), one, VREF_NONE);
        k_store(f.k, f.y, plane_at(&f), sum, VREF_NONE);
        check_plane(&f, (size_t)n, "broadcast");
    }
}

Test(emit_loops, reversed_and_strided)
{
    EACH_PLANE(p, fixed)
    {
        Fixture f = plane(p % 3 ? DT_F32 : DT_U8, planes[p][0], planes[p][1], fixed);
        DType t = (DType)f.k->args.at[f.x].dtype;
        IRef cols = f.k->axes.at[f.cols].size, minus = kidx_const(f.k, -1);
        IRef back = kidx_add(f.k, kidx_add(f.k, kidx_mul(f.k, f.r, cols), cols), kidx_add(f.k, kidx_mul(f.k, f.c, minus), minus));
        VRef a = k_load(f.k, f.x, back, VREF_NONE);
        VRef b = k_load(f.k, f.x, kidx_mul(f.k, plane_at(&f), kidx_const(f.k, 2)), VREF_NONE);
        k_store(f.k, f.y, plane_at(&f), k_op(f.k, OP_SUB, t, a, b, VREF_NONE), VREF_NONE);
        check_plane(&f, (size_t)(2 * planes[p][0] * planes[p][1]), "reversed and strided");
    }
}

Test(emit_loops, stored_reversed)
{
    EACH_PLANE(p, fixed)
    {
        Fixture f = plane(DT_F32, planes[p][0], planes[p][1], fixed);
        IRef cols = f.k->axes.at[f.cols].size, minus = kidx_const(f.k, -1);
        IRef back = kidx_add(f.k, kidx_add(f.k, kidx_mul(f.k, f.r, cols), cols), kidx_add(f.k, kidx_mul(f.k, f.c, minus), minus));
        k_store(f.k, f.y, back, k_load(f.k, f.x, plane_at(&f), VREF_NONE), VREF_NONE);
        check_plane(&f, (size_t)(planes[p][0] * planes[p][1]), "stored reversed");
    }
}

Test(emit_loops, quotients_and_remainders)
{
    static const int64_t by[] = {1, 2, 3, 7, 16, 40, 64, 1000};
    for (size_t d = 0; d < sizeof by / sizeof *by; d++)
        for (int fixed = 0; fixed < 2; fixed++)
            for (int offset = 0; offset < 2; offset++) {
                Kernel *k = kernel_new(&arena);
                int64_t n = 333;
                k_arg(k, ARG_BUFFER, DT_I64, true);
                uint32_t arg = k_arg(k, ARG_SIZE, DT_I64, false);
                uint32_t a = k_axis(k, AXIS_X, kidx_const(k, n), n);
                k->vec_axis = a;
                IRef i = kidx_axis(k, a), div = fixed ? kidx_const(k, by[d]) : kidx_arg(k, arg);
                IRef from = offset ? kidx_add(k, kidx_mul(k, i, kidx_const(k, offset)), kidx_const(k, 5)) : i;
                VRef q = k_index(k, kidx_div(k, from, div)), m = k_index(k, kidx_mod(k, from, div));
                VRef q2 = k_index(k, kidx_mod(k, kidx_div(k, from, div), kidx_const(k, 5)));
                VRef r = k_op(k, OP_ADD, DT_I64, k_op(k, OP_MUL, DT_I64, q, k_const(k, DT_I64, 10000), VREF_NONE), m, VREF_NONE);
                r = k_op(k, OP_ADD, DT_I64, r, k_op(k, OP_MUL, DT_I64, q2, k_const(k, DT_I64, 1e9), VREF_NONE), VREF_NONE);
                k_store(k, 0, i, r, VREF_NONE);
                CheckArg args[] = {{.data = filled(DT_I64, (size_t)n, false), .bytes = (size_t)n * 8}, {.value = by[d]}};
                check_kernel(k, args, "quotients");
                os_free((void *)(uintptr_t)args[0].data);
            }
}

/* y = where(mask, x[c], 0) with a predicated load whose address is wild elsewhere, and a predicated
 * store */
Test(emit_loops, predicates)
{
    static const DType types[] = {DT_F32, DT_U8, DT_F64, DT_BF16, DT_BOOL};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int kind = 0; kind < 3; kind++) {
            int64_t rows = 6, cols = 37;
            Fixture f = plane(types[t], rows, cols, kind != 1);
            Kernel *k = f.k;
            VRef c = k_index(k, kind == 2 ? f.r : f.c), low = k_const(k, DT_I64, kind == 2 ? 2 : 9);
            VRef pred = k_op(k, OP_GE, DT_BOOL, c, low, VREF_NONE);
            /* x[row * cols + col - 9] or x[row - 2], before the start where the predicate is false
             * */
            IRef at = kind == 2 ? kidx_add(k, f.r, kidx_const(k, -2)) : kidx_add(k, f.c, kidx_const(k, -9));
            if (kind == 1)
                at = kidx_mul(k, kidx_add(k, f.c, kidx_const(k, -9)), kidx_const(k, 3));
            k_store(k, f.y, plane_at(&f), k_load(k, f.x, at, pred), VREF_NONE);
            check_plane(&f, kind == 2 ? (size_t)rows - 2 : kind == 1 ? 82 : 28, "predicated load");
            f = plane(types[t], rows, cols, true);
            c = k_index(f.k, kind == 2 ? f.r : f.c);
            pred = k_op(f.k, OP_GE, DT_BOOL, c, k_const(f.k, DT_I64, 3), VREF_NONE);
            k_store(f.k, f.y, plane_at(&f), k_load(f.k, f.x, plane_at(&f), VREF_NONE), pred);
            check_plane(&f, (size_t)(rows * cols), "predicated store");
        }
}

/* y[i] = x[bound(index[i])] with faults */
Test(emit_loops, gather_with_bounds)
{
    for (int faulty = 0; faulty < 2; faulty++)
        for (int64_t n = 1; n < 90; n += 29) {
            Kernel *k = kernel_new(&arena);
            enum { SIZE = 20 };
            uint32_t x = k_arg(k, ARG_BUFFER, DT_F32, false), index = k_arg(k, ARG_BUFFER, DT_I64, false);
            uint32_t y = k_arg(k, ARG_BUFFER, DT_F32, true), fault = k_arg(k, ARG_FAULT, DT_I64, true);
            uint32_t a = k_axis(k, AXIS_X, kidx_const(k, n), n);
            k->vec_axis = a;
            IRef i = kidx_axis(k, a);
            KInst bound = inst_new(KI_BOUND, DT_I64);
            bound.a = k_load(k, index, i, VREF_NONE);
            bound.idx = kidx_const(k, SIZE);
            bound.arg = fault;
            bound.imm = 77;
            VRef at = kernel_inst(k, bound);
            k_store(k, y, i, k_load(k, x, kidx_value(k, at), VREF_NONE), VREF_NONE);
            int64_t *where = os_alloc((size_t)n * 8), no_fault = 0;
            for (int64_t j = 0; j < n; j++)
                where[j] = (int64_t)(next_random() % (2 * SIZE)) - SIZE;
            if (faulty)
                where[n - 1] = n % 2 ? SIZE : -SIZE - 1;
            CheckArg args[] = {{.data = filled(DT_F32, SIZE, true), .bytes = SIZE * 4},
                               {.data = where, .bytes = (size_t)n * 8},
                               {.data = filled(DT_F32, (size_t)n, false), .bytes = (size_t)n * 4},
                               {.data = &no_fault, .bytes = 8}};
            check_kernel(k, args, "gather");
            for (int j = 0; j < 3; j++)
                os_free((void *)(uintptr_t)args[j].data);
        }
}

static VRef k_bound(Kernel *k, VRef v, int64_t size, uint32_t fault)
{
    KInst bound = inst_new(KI_BOUND, DT_I64);
    bound.a = v;
    bound.idx = kidx_const(k, size);
    bound.arg = fault;
    bound.imm = 7;
    return kernel_inst(k, bound);
}

/* y[i, j] = x[i, index[j]], x[rows[i], index[j]], or x[i, index[j] + j]: what is asked for ahead is no load, nor what an index is made of */
Test(emit_loops, gather_in_rows)
{
    enum { ROWS = 6, SIZE = 70 };
    for (int kind = 0; kind < 3; kind++)
        for (int64_t n = 1; n < 100; n += 33) {
            Kernel *k = kernel_new(&arena);
            uint32_t x = k_arg(k, ARG_BUFFER, DT_F32, false), index = k_arg(k, ARG_BUFFER, DT_I64, false);
            uint32_t rows = k_arg(k, ARG_BUFFER, DT_I64, false);
            uint32_t y = k_arg(k, ARG_BUFFER, DT_F32, true), fault = k_arg(k, ARG_FAULT, DT_I64, true);
            uint32_t a = k_axis(k, AXIS_X, kidx_const(k, ROWS), ROWS), b = k_axis(k, AXIS_X, kidx_const(k, n), n);
            k->vec_axis = b;
            IRef i = kidx_axis(k, a), j = kidx_axis(k, b), row = i;
            VRef at = k_bound(k, k_load(k, index, j, VREF_NONE), SIZE, fault);
            if (kind == 1)
                row = kidx_value(k, k_bound(k, k_load(k, rows, i, VREF_NONE), ROWS, fault));
            IRef from = kidx_add(k, kidx_mul(k, row, kidx_const(k, SIZE)), kidx_value(k, at));
            from = kind == 2 ? kidx_add(k, from, j) : from;
            k_store(k, y, kidx_add(k, kidx_mul(k, i, kidx_const(k, n)), j), k_load(k, x, from, VREF_NONE), VREF_NONE);
            size_t points = ROWS * SIZE + (kind == 2 ? (size_t)n - 1 : 0), out = (size_t)(ROWS * n);
            int64_t *where = os_alloc((size_t)n * 8), which[ROWS], no_fault = 0;
            for (int64_t p = 0; p < n; p++)
                where[p] = (int64_t)(next_random() % (2 * SIZE)) - SIZE;
            for (int64_t p = 0; p < ROWS; p++)
                which[p] = (int64_t)(next_random() % (2 * ROWS)) - ROWS;
            CheckArg args[] = {{.data = filled(DT_F32, points, true), .bytes = points * 4},
                               {.data = where, .bytes = (size_t)n * 8},
                               {.data = which, .bytes = sizeof which},
                               {.data = filled(DT_F32, out, false), .bytes = out * 4},
                               {.data = &no_fault, .bytes = 8}};
            check_kernel(k, args, "gather in rows");
            os_free((void *)(uintptr_t)args[0].data);
            os_free(where);
            os_free((void *)(uintptr_t)args[3].data);
        }
}

/* scalars, constants, several outputs, no axes at all, scalar code (no vec axis) */
Test(emit_loops, scalars_and_shapes)
{
    for (int rank = 0; rank < 4; rank++)
        for (int vec = 0; vec < 2; vec++) {
            Kernel *k = kernel_new(&arena);
            static const int64_t dims[] = {3, 4, 19};
            uint32_t y = k_arg(k, ARG_BUFFER, DT_F32, true), s = k_arg(k, ARG_SCALAR, DT_F32, false);
            uint32_t z = k_arg(k, ARG_BUFFER, DT_BOOL, true), b = k_arg(k, ARG_SCALAR, DT_BOOL, false);
            IRef at = kidx_const(k, 0);
            int64_t n = 1;
            for (int i = 0; i < rank; i++) {
                uint32_t a = k_axis(k, AXIS_X, kidx_const(k, dims[i]), dims[i]);
                at = kidx_add(k, kidx_mul(k, at, kidx_const(k, dims[i])), kidx_axis(k, a));
                n *= dims[i];
                k->vec_axis = vec ? a : UINT32_MAX;
            }
            KInst scalar = inst_new(KI_SCALAR, DT_F32), flag = inst_new(KI_SCALAR, DT_BOOL);
            scalar.arg = s;
            flag.arg = b;
            VRef i = k_op(k, OP_CAST, DT_F32, k_index(k, at), VREF_NONE, VREF_NONE);
            VRef sum = k_op(k, OP_ADD, DT_F32, i, kernel_inst(k, scalar), VREF_NONE);
            k_store(k, y, at, k_op(k, OP_MUL, DT_F32, sum, k_const(k, DT_F32, 0.25), VREF_NONE), VREF_NONE);
            VRef less = k_op(k, OP_LT, DT_BOOL, sum, k_const(k, DT_F32, 20), VREF_NONE);
            k_store(k, z, at, k_op(k, OP_XOR, DT_BOOL, less, kernel_inst(k, flag), VREF_NONE), VREF_NONE);
            CheckArg args[] = {{.data = filled(DT_F32, (size_t)n, false), .bytes = (size_t)n * 4},
                               {.value = (int64_t)scalar_from_double(DT_F32, 1.5)},
                               {.data = filled(DT_BOOL, (size_t)n, false), .bytes = (size_t)n},
                               {.value = 1}};
            check_kernel(k, args, "scalars");
            os_free((void *)(uintptr_t)args[0].data);
            os_free((void *)(uintptr_t)args[2].data);
        }
}

#ifndef CHECK_PTX /* host only */
/*
 * Fast mode computes a chain of f16 or bf16 ops in f32 and rounds once, where the kernel says that nobody else reads what is in
 * between: not further from the exact result than the rounding of one op. Without that word, and in strict mode, each op rounds.
 * 0.5 + 2048 + 0.5 - 2048 shows which of the two ran.
 */
Test(emit_loops, fast_mode_keeps_f32_between_half_ops)
{
    static const DType types[] = {DT_F16, DT_BF16};
    for (int i = 0; i < 2; i++) {
        DType t = types[i];
        for (int how = 0; how < 4; how++) {
            bool strict = how & 1, alone = how & 2;
            Kernel *k = kernel_new(&arena);
            k_arg(k, ARG_BUFFER, t, false);
            k_arg(k, ARG_BUFFER, t, true);
            uint32_t a = k_axis(k, AXIS_X, kidx_const(k, 20), 20);
            k->vec_axis = a;
            IRef at = kidx_axis(k, a);
            VRef x = k_load(k, 0, at, VREF_NONE), big = k_const(k, t, 2048), v;
            v = k_op(k, OP_ADD, t, x, big, VREF_NONE);
            k->inst.at[v].unrounded = alone;
            v = k_op(k, OP_ADD, t, v, x, VREF_NONE);
            k->inst.at[v].unrounded = alone;
            k_store(k, 1, at, k_op(k, OP_SUB, t, v, big, VREF_NONE), VREF_NONE);
            uint16_t in[20], out[20];
            for (int j = 0; j < 20; j++)
                in[j] = (uint16_t)scalar_from_double(t, 0.5);
            CompiledKernel *code = compile_kernel(k, (Setting){512, 1, strict ? MATH_STRICT : MATH_FAST, CPU_HOST});
            void *args[] = {in, out};
            run_code(code, args, k, 1);
            for (int j = 0; j < 20; j++)
                cr_assert_eq(scalar_to_double(t, out[j]), alone && !strict ? 1.0 : 0.0);
            kernel_table_release(code);
        }
    }
}

/* No tasks, or sizes of zero: nothing is touched, nothing divides by them. */
Test(emit_loops, nothing_to_do)
{
    for (int vec = 0; vec < 2; vec++) {
        Kernel *k = kernel_new(&arena);
        uint32_t y = k_arg(k, ARG_BUFFER, DT_F32, true), n[3];
        IRef at = kidx_const(k, 0);
        for (int i = 0; i < 3; i++) {
            n[i] = k_arg(k, ARG_SIZE, DT_I64, false);
            uint32_t a = k_axis(k, AXIS_X, kidx_arg(k, n[i]), 5);
            at = kidx_add(k, kidx_mul(k, at, kidx_arg(k, n[i])), kidx_axis(k, a));
            k->vec_axis = vec ? a : UINT32_MAX;
        }
        k_store(k, y, at, k_const(k, DT_F32, 1), VREF_NONE);
        CompiledKernel *code = compile_kernel(k, settings[0]);
        for (int zero = 0; zero < 4; zero++) {
            void *args[4] = {NULL, (void *)5, (void *)5, (void *)5};
            if (zero)
                args[zero] = NULL;
            cr_assert_eq(launch_of(code, args).tasks[0] == 0, zero != 0);
            code->run(args, 0, 0, 0, NULL);
        }
        kernel_table_release(code);
    }
}

/* LLVM's own optimiser, and none at all, give the same results and stand-alone objects. */
Test(emit_loops, every_effort)
{
    static const Op ops[] = {OP_SIN, OP_EXP, OP_ERF, OP_FLOORDIV, OP_FMOD, OP_POW, OP_NEXTAFTER};
    static const DType types[] = {DT_F32, DT_F64, DT_BF16, DT_I8};
    for (int effort = 0; effort <= 2; effort += 2)
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            for (size_t j = 0; j < sizeof types / sizeof *types; j++) {
                enum { N = 77 };
                DType t = types[j];
                if (!takes((DRule)op_info[ops[i]].rule, t))
                    continue;
                Kernel *k = kernel_new(&arena);
                VRef v[2] = {VREF_NONE, VREF_NONE};
                CheckArg args[3] = {{0}};
                int arity = op_info[ops[i]].arity;
                for (int a = 0; a <= arity; a++) {
                    k_arg(k, ARG_BUFFER, t, a == arity);
                    args[a] = (CheckArg){.data = filled(t, N, true), .bytes = N * dtype_bytes(t)};
                }
                uint32_t axis = k_axis(k, AXIS_X, kidx_const(k, N), N);
                k->vec_axis = axis;
                for (int a = 0; a < arity; a++)
                    v[a] = k_load(k, (uint32_t)a, kidx_axis(k, axis), VREF_NONE);
                k_store(k, (uint32_t)arity, kidx_axis(k, axis), k_op(k, ops[i], t, v[0], v[1], VREF_NONE), VREF_NONE);
                Setting s = {j % 2 ? 256 : 512, effort, MATH_STRICT, CPU_HOST};
                CompiledKernel *code = compile_kernel(k, s);
                check_code(code, k, args, s, op_name(ops[i]));
                kernel_table_release(code);
                for (int a = 0; a <= arity; a++)
                    os_free((void *)(uintptr_t)args[a].data);
            }
}

/* The sum of `times` values op(c x), c different in each: of so many the tape is a function that is called. */
static Kernel *often(Op op, DType t, int times, int n)
{
    Kernel *k = kernel_new(&arena);
    k_arg(k, ARG_BUFFER, t, false);
    k_arg(k, ARG_BUFFER, t, true);
    uint32_t axis = k_axis(k, AXIS_X, kidx_const(k, n), n);
    k->vec_axis = axis;
    VRef x = k_load(k, 0, kidx_axis(k, axis), VREF_NONE), sum = x;
    for (int i = 0; i < times; i++) {
        VRef c = k_const(k, t, i % 2 ? 1 + i : 1.0 / (1 + i));
        VRef scaled = k_op(k, OP_MUL, t, x, c, VREF_NONE);
        sum = k_op(k, OP_ADD, t, sum, k_op(k, op, t, scaled, op_info[op].arity > 1 ? c : VREF_NONE, VREF_NONE), VREF_NONE);
    }
    k_store(k, 1, kidx_axis(k, axis), sum, VREF_NONE);
    return k;
}

static size_t count_text(const char *text, const char *what)
{
    size_t n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

/* Vectors whose lanes go every combination of ways: the main one, the cold region, the one inside it, what has no number. */
Test(emit_loops, cold_regions)
{
    static const Op ops[] = {OP_SIN, OP_COS, OP_TAN, OP_EXP, OP_SIGMOID, OP_EXP2};
    enum { WAYS = 6, RUN = 24, N = RUN << WAYS };
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
        for (int wide = 0; wide < 2; wide++) {
            DType t = wide ? DT_F64 : DT_F32;
            Kernel *k = kernel_new(&arena);
            k_arg(k, ARG_BUFFER, t, false);
            k_arg(k, ARG_BUFFER, t, true);
            IRef at = kidx_axis(k, k->vec_axis = k_axis(k, AXIS_X, kidx_const(k, N), N));
            k_store(k, 1, at, k_op(k, ops[o], t, k_load(k, 0, at, VREF_NONE), VREF_NONE, VREF_NONE), VREF_NONE);
            CheckArg args[2] = {{.data = filled(t, N, true), .bytes = N * dtype_bytes(t)},
                                {.data = filled(t, N, false), .bytes = N * dtype_bytes(t)}};
            uint32_t state = 1;
            for (int i = 0; i < N; i++) {
                const double ways[WAYS] = {1.5, -60, 95, 3e5, -1e30, i % 2 ? NAN : INFINITY};
                int among = i / RUN ? i / RUN : 1, way;
                do
                    way = (int)((state = state * 1664525 + 1013904223) >> 24) % WAYS;
                while (!(among >> way & 1));
                scalar_store(t, scalar_from_double(t, ways[way] * (1 + (i % 97) / 97.0)),
                             (unsigned char *)(uintptr_t)args[0].data + (size_t)i * dtype_bytes(t));
            }
            check_kernel(k, args, op_name(ops[o]));
            os_free((void *)(uintptr_t)args[0].data);
            os_free((void *)(uintptr_t)args[1].data);
        }
}

/* exp(x) w, or exp(x) alone for y. */
static Kernel *weighted(DType t, int64_t n, bool product)
{
    Kernel *k = kernel_new(&arena);
    for (int i = 0; i < 3; i++)
        k_arg(k, ARG_BUFFER, t, i == 2);
    IRef at = kidx_axis(k, k->vec_axis = k_axis(k, AXIS_X, kidx_const(k, n), n));
    VRef v = k_op(k, OP_EXP, t, k_load(k, 0, at, VREF_NONE), VREF_NONE, VREF_NONE), w = k_load(k, 1, at, VREF_NONE);
    k_store(k, 2, at, product ? k_op(k, OP_MUL, t, w, v, VREF_NONE) : v, VREF_NONE);
    return k;
}

/* Products with an exponential, which may be subnormal, are those of fused multiply-adds, and the same bits: of zeros and subnormals too. */
Test(emit_loops, products_with_exponentials)
{
    enum { N = 500 };
    for (int wide = 0; wide < 2; wide++) {
        DType t = wide ? DT_F64 : DT_F32;
        Kernel *k = weighted(t, N, true), *alone = weighted(t, N, false);
        CheckArg args[3];
        for (int a = 0; a < 3; a++)
            args[a] = (CheckArg){.data = filled(t, N, false), .bytes = N * dtype_bytes(t)};
        const double weights[] = {1, -1, 0.0, -0.0, 0.3, -1e-3, 1e30, INFINITY, NAN};
        for (int i = 0; i < N; i++) {
            double x = i % 3 ? (wide ? -745 : -103) + i * 0.05 : -(double)i, w = weights[i % (int)(sizeof weights / sizeof *weights)];
            size_t at = (size_t)i * dtype_bytes(t);
            scalar_store(t, scalar_from_double(t, x), (unsigned char *)(uintptr_t)args[0].data + at);
            scalar_store(t, scalar_from_double(t, w), (unsigned char *)(uintptr_t)args[1].data + at);
        }
        check_kernel(k, args, "exp(x) w");
        JitOptions o = setting_options((Setting){256, 1, MATH_STRICT, CPU_HOST});
        Emitted product, exp;
        cr_assert_eq(llvm_emit_host(k, "test", &o, true, &product), ST_OK, "%s", fail_message());
        cr_assert_eq(llvm_emit_host(alone, "test", &o, true, &exp), ST_OK, "%s", fail_message());
        cr_expect_eq(count_text(product.ir, " fmul "), count_text(exp.ir, " fmul "), "%s", dtype_name(t));
        free_emitted(&product);
        free_emitted(&exp);
        for (int a = 0; a < 3; a++)
            os_free((void *)(uintptr_t)args[a].data);
    }
}

/* A tape is called where an op comes often, a long cold region wherever it is; results are the interpreter's, bytes always the same. */
Test(emit_loops, functions_of_their_own)
{
    static const struct {
        Op op;
        DType type;
        int times;
        size_t functions[2]; /* at least; with 512 bits */
    } rows[] = {
        {OP_SIN, DT_F32, 1, {1, 0}},   {OP_SIN, DT_F32, 4, {1, 1}},  {OP_SIN, DT_F32, 40, {2, 1}},  {OP_TAN, DT_F64, 1, {1, 0}},
        {OP_TAN, DT_F64, 30, {2, 1}},  {OP_COS, DT_BF16, 1, {1, 0}}, {OP_COS, DT_BF16, 30, {2, 1}}, {OP_POW, DT_F32, 20, {1, 1}},
        {OP_ERFC, DT_F32, 30, {1, 1}}, {OP_EXP, DT_F32, 1, {1, 0}},  {OP_FMOD, DT_F64, 30, {1, 1}}, {OP_TANH, DT_F32, 1, {0, 0}},
    };
    static const Setting each[] = {{128, 1, MATH_STRICT, CPU_HOST},
                                   {256, 1, MATH_STRICT, CPU_HOST},
                                   {512, 1, MATH_STRICT, CPU_HOST},
                                   {512, 0, MATH_STRICT, CPU_HOST},
                                   {256, 2, MATH_STRICT, CPU_HOST}};
    enum { N = 77 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!slice_takes_of(i, sizeof rows / sizeof *rows))
            continue;
        DType t = rows[i].type;
        Kernel *k = often(rows[i].op, t, rows[i].times, N);
        CheckArg args[2] = {{.data = filled(t, N, true), .bytes = N * dtype_bytes(t)},
                            {.data = filled(t, N, true), .bytes = N * dtype_bytes(t)}};
        for (size_t j = 0; j < sizeof each / sizeof *each; j++) {
            JitOptions o = setting_options(each[j]);
            Emitted out[2];
            for (int twice = 0; twice < 2; twice++)
                cr_assert_eq(llvm_emit_host(k, "test", &o, true, &out[twice]), ST_OK, "%s", fail_message());
            size_t functions = rows[i].functions[each[j].bits == 512];
            cr_expect_geq(count_text(out[0].ir, "define internal"), functions, "%s", op_name(rows[i].op));
            cr_expect(functions || !count_text(out[0].ir, "define internal"), "%s", op_name(rows[i].op));
            cr_expect(out[0].bytes == out[1].bytes && !memcmp(out[0].object, out[1].object, out[0].bytes));
            CompiledKernel *code = load_kernel(&out[0]);
            check_code(code, k, args, each[j], op_name(rows[i].op));
            kernel_table_release(code);
            for (int twice = 0; twice < 2; twice++)
                free_emitted(&out[twice]);
        }
        os_free((void *)(uintptr_t)args[0].data);
        os_free((void *)(uintptr_t)args[1].data);
    }
}
#endif

/* y[i, j, k] = x[any order of them], and stored in any order */
Test(emit_loops, permuted)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const int64_t dims[3][3] = {{3, 20, 37}, {17, 2, 16}, {33, 19, 5}};
    for (int d = 0; d < 3; d++)
        for (int o = 0; o < 36; o++) {
            Kernel *k = kernel_new(&arena);
            DType t = o % 2 ? DT_F32 : DT_U8;
            const int64_t *n = dims[d];
            int64_t total = n[0] * n[1] * n[2];
            k_arg(k, ARG_BUFFER, t, false);
            k_arg(k, ARG_BUFFER, t, true);
            IRef at[3], size[3], index[2];
            for (int i = 0; i < 3; i++) {
                uint32_t arg = k_arg(k, ARG_SIZE, DT_I64, false);
                size[i] = o % 3 ? kidx_const(k, n[i]) : kidx_arg(k, arg);
                at[i] = kidx_axis(k, k_axis(k, AXIS_X, size[i], n[i]));
            }
            k->vec_axis = 2;
            for (int w = 0; w < 2; w++) {
                const int *order = orders[w ? o / 6 : o % 6];
                index[w] = kidx_const(k, 0);
                for (int i = 0; i < 3; i++)
                    index[w] = kidx_add(k, kidx_mul(k, index[w], size[order[i]]), at[order[i]]);
            }
            k_store(k, 1, index[1], k_load(k, 0, index[0], VREF_NONE), VREF_NONE);
            size_t bytes = (size_t)total * dtype_bytes(t);
            CheckArg args[] = {{.data = filled(t, (size_t)total, true), .bytes = bytes},
                               {.data = filled(t, (size_t)total, false), .bytes = bytes},
                               {.value = n[0]},
                               {.value = n[1]},
                               {.value = n[2]}};
            check_kernel(k, args, "permuted");
            os_free((void *)(uintptr_t)args[0].data);
            os_free((void *)(uintptr_t)args[1].data);
        }
}

/* Integer division where every pair of small operands meets, and the extremes; divisors also known
 * to the compiler. */
Test(emit_loops, integer_division)
{
    static const DType ints[] = {DT_I8, DT_U8, DT_I16, DT_U16, DT_I32, DT_U32, DT_I64, DT_U64};
    static const Op ops[] = {OP_FLOORDIV, OP_REM, OP_FMOD};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        for (size_t o = 0; o < 3; o++) {
            enum { SIDE = 40 };
            DType t = ints[i];
            Fixture f = plane(t, SIDE, SIDE, true);
            uint64_t *values = os_calloc(SIDE, 8);
            unsigned char *x = os_calloc(2 * SIDE, dtype_bytes(t));
            for (int v = 0; v < SIDE; v++) {
                int edge = v / 4, bit = (int)dtype_bytes(t) * 8 - 1;
                values[v] = v < 16 ? (uint64_t)(v - 8) : (uint64_t)(v % 4 - 2) + ((uint64_t)1 << (edge % 2 ? bit : bit - edge % 5));
                scalar_store(t, values[v], x + (size_t)v * dtype_bytes(t));
            }
            VRef a = k_load(f.k, f.x, f.r, VREF_NONE), b = k_load(f.k, f.x, f.c, VREF_NONE);
            VRef known = k_op(f.k, OP_CAST, t, k_index(f.k, kidx_add(f.k, f.c, kidx_const(f.k, -3))), VREF_NONE, VREF_NONE);
            VRef r = k_op(f.k, ops[o], t, a, b, VREF_NONE);
            r = k_op(f.k, OP_ADD, t, r, k_op(f.k, ops[o], t, a, known, VREF_NONE), VREF_NONE);
            k_store(f.k, f.y, plane_at(&f), r, VREF_NONE);
            CheckArg args[] = {{.data = x, .bytes = SIDE * dtype_bytes(t)},
                               {.data = filled(t, SIDE * SIDE, false), .bytes = SIDE * SIDE * dtype_bytes(t)},
                               {.value = SIDE},
                               {.value = SIDE}};
            check_kernel(f.k, args, op_name(ops[o]));
            os_free(values);
            os_free(x);
            os_free((void *)(uintptr_t)args[1].data);
        }
}

#ifndef CHECK_PTX /* host only */
/* Outputs beyond the caches are streamed, where vectors lie on whole lines; else, and in the tail,
 * stored as usual. */
Test(emit_loops, big_outputs)
{
    enum { N = (1 << 22) + 13 };
    Guarded x = guarded_at_end(N * 4, 0);
    for (int i = 0; i < N; i++)
        ((float *)x.data)[i] = (float)(i % 1000) - 500;
    for (int heavy = 0; heavy < 2; heavy++)
        for (int fixed = 0; fixed < 2; fixed++) {
            Kernel *k = kernel_new(&arena);
            k_arg(k, ARG_BUFFER, DT_F32, false);
            k_arg(k, ARG_BUFFER, DT_F32, true);
            k_arg(k, ARG_SIZE, DT_I64, false);
            k->args.at[0].may_alias = k->args.at[1].may_alias = fixed;
            uint32_t a = k_axis(k, AXIS_X, fixed ? kidx_const(k, N) : kidx_arg(k, 2), N);
            k->vec_axis = a;
            IRef at = kidx_axis(k, a);
            VRef v = k_load(k, 0, at, VREF_NONE);
            v = heavy ? k_op(k, OP_SIN, DT_F32, v, VREF_NONE, VREF_NONE) : k_op(k, OP_ADD, DT_F32, v, v, VREF_NONE);
            k_store(k, 1, at, v, VREF_NONE);
            for (int bits = 256; bits <= 512; bits += 256) {
                if (!slice_takes_of((uint64_t)(4 * heavy + 2 * fixed + (bits == 512)), 8))
                    continue;
                CompiledKernel *code = compile_kernel(k, (Setting){bits, 1, MATH_STRICT, CPU_HOST});
                for (int shift = 0; shift < 3; shift++) {
                    Guarded y = shift == 2 ? guarded_at_start(N * 4, 0) : guarded_at_end(N * 4, shift ? 4 : 0);
                    void *args[] = {x.data, y.data, (void *)(intptr_t)N};
                    int64_t tasks = launch_of(code, args).tasks[0], cut = tasks / 3;
                    code->run(args, 0, 0, cut, NULL);
                    code->run(args, 0, cut, tasks, NULL);
                    for (int i = 0; i < N; i++) {
                        float in = ((float *)x.data)[i], out = ((float *)y.data)[i];
                        if (heavy ? fabsf(out - sinf(in)) > 1e-6f : out != in + in)
                            cr_assert(false, "[%d]: %g -> %g", i, (double)in, (double)out);
                    }
                    if (fixed && !heavy) { /* in place */
                        memcpy(y.data, x.data, N * 4);
                        args[0] = y.data;
                        code->run(args, 0, 0, tasks, NULL);
                        for (int i = 0; i < N; i++)
                            if (((float *)y.data)[i] != 2 * ((float *)x.data)[i])
                                cr_assert(false, "in place: [%d]", i);
                    }
                    cr_assert(guarded_intact(&y));
                    guarded_free(&y);
                }
                kernel_table_release(code);
            }
        }
    guarded_free(&x);
}

/* How often this is in the IR for a kernel at 256 bits. */
static size_t count_in_ir(const char *text, const char *what)
{
    CudaTarget host = {0};
    Kernel *k;
    Emitted out;
    JitOptions o = setting_options((Setting){256, 1, MATH_STRICT, CPU_HOST});
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s", fail_message());
    schedule_kernel(k, &host);
    cr_assert_eq(llvm_emit_host(k, "counted", &o, true, &out), ST_OK, "%s", fail_message());
    size_t n = count_text(out.ir, what);
    free_emitted(&out);
    return n;
}

/* Outputs of 2 MB are asked for before they are stored, on the CPUs that write them faster so; others write those of 16 MB past the caches. Rows that
 * each step adds to, and products, ask for nothing. */
Test(emit_loops, ask_to_store)
{
    static const char wanted[] = "call void @llvm.prefetch.p0(ptr %", past[] = "!nontemporal";
    static const struct {
        const char *text;
        int64_t bytes;
        bool asks;
    } cases[] = {
        {"kernel (a0 f32, a1 f32 out) for i < 524288; v0 = load a0[i]; v1 = neg v0; store a1[i] = v1", 1 << 21, true},
        {"kernel (a0 f32, a1 f32 out) for i < 524287; v0 = load a0[i]; v1 = neg v0; store a1[i] = v1", (1 << 21) - 4, true},
        {"kernel (a0 f32, a1 f32 out) for i < 4194304; v0 = load a0[i]; v1 = neg v0; store a1[i] = v1", 1 << 24, true},
        {"kernel (a0 f32, a1 f32 out) for i < 4096, j < 1024; v0 = load a0[i + j*4096]; v1 = fold sum j (v0) running order serial; "
         "store a1[i + j*4096] = v1",
         1 << 24, false},
        {"kernel (a0 f32, a1 f32, a2 f32 out) for i < 4096, j < 1040, k < 64; v0 = load a0[i*64 + k]; v1 = load a1[j + k*1040]; "
         "v2 = fold dot k (v0, v1) order chain block 256; store a2[i*1040 + j] = v2",
         4096 * 1040 * 4, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int cpu = 0; cpu < 2; cpu++) {
            CudaTarget host = {0};
            Kernel *k;
            Emitted out;
            JitOptions o = setting_options((Setting){256, 1, MATH_STRICT, cpu ? CPU_V3 : CPU_HOST});
            cr_assert_eq(kernel_parse(cases[i].text, &arena, &k), ST_OK, "%s", fail_message());
            schedule_kernel(k, &host);
            cr_assert_eq(llvm_emit_host(k, "stores", &o, true, &out), ST_OK, "%s", fail_message());
            bool asks = llvm_host_asks(&o) && cases[i].asks, to_write = false;
            for (const char *at = out.ir; (at = strstr(at, wanted)); at++)
                to_write |= strncmp(strchr(at, ','), ", i32 1,", 8) == 0;
            cr_expect_eq(to_write, asks && cases[i].bytes >= 1 << 21, "%s", cases[i].text);
            cr_expect_eq(strstr(out.ir, past) != NULL, !asks && cases[i].bytes >= 1 << 24, "%s", cases[i].text);
            free_emitted(&out);
        }
}

/* The beginnings of pages of a matrix are asked for, not those of the row that all points read. */
Test(emit_loops, pages)
{
    static const char text[] =
        "kernel (a0 f32, a1 f32, a2 f32 out) for i < 4096, j < 4096; v0 = load a0[i*4096 + j]; v1 = load a1[j]; v2 = mul v0 v1; "
        "v3 = fold sum j (v2) order lanes 64 block 16384; store a2[i] = v3";
    enum { STEPS = 2, LINES = 2 }; /* half of the order's lanes each */
    size_t n = count_in_ir(text, "call void @llvm.prefetch.p0(ptr %");
    cr_expect_eq(n, STEPS * LINES, "%zu", n);
}

/* Every second bf16, without a mask: whole vectors. Of x[j / 2] where each second lane wants none: what lies between, without one. */
Test(emit_loops, elements_without_masks)
{
    static const char *const texts[] = {
        "kernel (a0 bf16, a1 bf16 out) for i < 1000, j < 64; v0 = load a0[i*128 + j*2]; v1 = neg v0; store a1[i*64 + j] = v1",
        "kernel (a0 f32, a1 f32 out) for i < 1000, j < 64; v0 = index (j + 1)%2 + 2; v1 = lt v0 3; v2 = load a0[i*33 + (j + 1)/2] where "
        "v1; "
        "v3 = where v1 v2 1; store a1[i*64 + j] = v3"};
    for (int i = 0; i < 2; i++) {
        cr_expect(i || count_in_ir(texts[i], " = insertelement <") == 0, "%s", texts[i]);
        cr_expect_eq(count_in_ir(texts[i], "@llvm.masked.load"), 0, "%s", texts[i]);
    }
}

/* Whether the element is in one row of windows or in two is asked of its row: inside, either has code without that. */
Test(emit_loops, a_choice_of_a_row)
{
    static const char text[] =
        "kernel (a0 f32, a1 f32, a2 f32 out) for i < 512, j < 112, k < 112; v0 = index j + 1; v1 = lt v0 112; v2 = index (j + 1)%2 + 2; "
        "v3 = lt v2 3; v4 = index k + 1; v5 = lt v4 112; v6 = and v1 v5; v7 = load a0[i*3136 + ((j + 1)/2)*56 + (k + 1)/2] where v6; "
        "v8 = load a1[i*12544 + j*112 + k]; v9 = div v8 v7; v10 = where v6 v9 0; v11 = ge v0 2; v12 = and v11 v3; v13 = and v5 v12; "
        "v14 = load a0[i*3136 + ((j + 1)/2)*56 + (k + 1)/2 + -56] where v13; v15 = div v8 v14; v16 = where v13 v15 0; v17 = add v10 v16; "
        "store a2[i*12544 + j*112 + k] = v17";
    enum { INSIDE = 2 + 1, BESIDE = 2 + 1, CORNER = 2 };
    cr_expect_eq(count_in_ir(text, " = fdiv <8 x float> "), INSIDE + BESIDE + CORNER);
}

/* A fold over two axes has a loop along the last one, which counts up by itself: only where it ends the other coordinate may begin anew. */
Test(emit_loops, runs_of_a_fold)
{
    static const char text[] = "kernel (a0 f32, a1 f32 out) for i < 8, j < 64, k < 40, l < 40; v0 = load a0[i*102400 + j + k*2560 + l*64]; "
                               "v1 = fold sum k l (v0) order lanes 64 block 16384; store a1[i*64 + j] = v1";
    cr_expect_eq(count_in_ir(text, " = select "), 1);
}

/* Two squares of a band are a loop, whose code is there once. */
Test(emit_loops, squares_share_code)
{
    static const char text[] =
        "kernel (a0 bf16, a1 f32 out) for i < 32, j < 64, k < 16; v0 = load a0[i*1024 + j + k*64]; v1 = cast v0 : f32; "
        "store a1[i*1024 + j*16 + k] = v1";
    enum { SHUFFLES = 64 }; /* of a square of 16 x 16 */
    cr_expect_eq(count_in_ir(text, " = shufflevector "), SHUFFLES);
}

/* A row that is one vector, and few steps of a scan, are no loops: the one over rows is all that there is. */
Test(emit_loops, short_rows_have_no_loop)
{
    static const char *const texts[] = {
        "kernel (a0 i64, a1 f32, a2 f32 out) for i < 1000, j < 4; v0 = load a0[i]; v1 = load a1[j + v0*4]; store a2[i*4 + j] = v1",
        "kernel (a0 f32, a1 f32 out) for i < 1000, j < 4; v0 = load a0[i*5 + j]; v1 = fold sum j (v0) running order serial; store a1[i*4 + "
        "j] = v1"};
    for (int i = 0; i < 2; i++)
        cr_expect_eq(count_in_ir(texts[i], " = phi i64 "), 1, "%s", texts[i]);
}

/* The row of a tile, where that is a shift, needs no case for the numbers below 0. */
Test(emit_loops, rows_by_shifts)
{
    static const char text[] = "kernel (a0 u8, a1 u8 out) for i < 1000, j < 4; v0 = load a0[i*-4 + j + 3996]; store a1[i*4 + j] = v0";
    cr_expect_eq(count_in_ir(text, " = select "), 0);
}

/* Whether some of 16 numbers have any of some bits, and so are not rounded as the others are, is asked of one register. */
Test(emit_loops, bits_in_one_register)
{
    static const char text[] = "kernel (a0 i32, a1 bf16 out) for i < 1024; v0 = load a0[i]; v1 = cast v0 : bf16; store a1[i] = v1";
    cr_expect_eq(count_in_ir(text, " = icmp ne <8 x i32> "), 1);
}

/* Does this kernel's code for this CPU have the instruction that copies? */
static void check_copies(const char *text, int bits)
{
    CudaTarget host = {0};
    Kernel *k;
    Emitted out;
    JitOptions o = setting_options((Setting){bits, 1, MATH_STRICT, CPU_HOST});
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text);
    schedule_kernel(k, &host);
    cr_assert_eq(llvm_emit_host(k, "copies", &o, true, &out), ST_OK, "%s", fail_message());
    bool copies = strstr(out.assembly, "movsb");
    cr_expect_eq(copies, llvm_host_copies(&o), "%s\n%s", text, out.assembly);
    free_emitted(&out);
}

/* Long rows that are only copied (the directive `copy`), from n elements on: whole ones and not, on whole lines and not, in pieces, gathered. */
static void check_long_rows(DType t, int64_t n, int64_t by, bool fixed)
{
    enum { ROWS = 3 };
    const char *name = dtype_name(t), *arg = fixed ? "" : ", s2", *size = fixed ? arena_printf(&arena, "%ld", (long)n) : "s2 ~14";
    const char *row = fixed ? arena_printf(&arena, "%ld", (long)n) : "s2";
    const char *rows =
        arena_printf(&arena, "kernel (a0 %s, a1 %s out%s) for i < 3, j < %s; v0 = load a0[i*%ld + j + %ld]; store a1[i*%s + j] = v0", name,
                     name, arg, size, (long)by, (long)(n % 7 * by / 8), row);
    check_text(rows, t, (int64_t[]){ROWS * by + n + n % 7 * by / 8, ROWS * n}, 2, n);
    if (!fixed)
        return;
    const char *flip =
        arena_printf(&arena, "kernel (a0 %s, a1 %s out) for i < 3, j < %ld; v0 = load a0[i*-%ld + j + %ld]; store a1[i*%ld + j] = v0", name,
                     name, (long)n, (long)n, (long)(2 * n), (long)n);
    const char *roll =
        arena_printf(&arena,
                     "kernel (a0 %s, a1 %s out) for i < 3, j < %ld; v0 = index j; v1 = lt v0 %ld; v2 = load a0[i*%ld + j + %ld] "
                     "where v1; v3 = ge v0 %ld; v4 = load a0[i*%ld + j + -%ld] where v3; v5 = where v1 v2 v4; store a1[i*%ld + j] = v5",
                     name, name, (long)(n + by), (long)by, (long)(n + by), (long)n, (long)by, (long)(n + by), (long)by, (long)(n + by));
    check_text(flip, t, (int64_t[]){ROWS * n, ROWS * n}, 2, 0);
    check_text(roll, t, (int64_t[]){ROWS * (n + by), ROWS * (n + by)}, 2, 0);
    for (int bits = 256; bits <= 512; bits += 256) {
        check_copies(flip, bits);
        check_copies(roll, bits);
    }
}

Test(emit_loops, long_rows)
{
    static const DType types[] = {DT_U8, DT_BF16, DT_F32, DT_F64};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        int64_t bytes = (int64_t)dtype_bytes(types[t]), n = 16384 / bytes, line = 64 / bytes;
        const int64_t sizes[] = {n, n + 1, n + line, n + 3 * line - 1, 2 * n + 5};
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int fixed = 0; fixed < 2; fixed++) {
                check_long_rows(types[t], sizes[s], line, fixed);
                check_long_rows(types[t], sizes[s], 3, fixed);
            }
    }
}

/* Big outputs of rows: each starts elsewhere in a line, or all where lines do. */
Test(emit_loops, big_outputs_in_rows)
{
    static const int64_t columns[] = {1003, 1024};
    for (int c = 0; c < 2; c++)
        for (int fixed = 0; fixed < 2; fixed++) {
            int64_t wide = columns[c], rows = (1 << 22) / wide + 2, n = rows * wide;
            Kernel *k = kernel_new(&arena);
            k_arg(k, ARG_BUFFER, DT_F32, false);
            k_arg(k, ARG_BUFFER, DT_F32, false);
            k_arg(k, ARG_BUFFER, DT_F32, true);
            k_arg(k, ARG_SIZE, DT_I64, false);
            k_arg(k, ARG_SIZE, DT_I64, false);
            IRef m = fixed ? kidx_const(k, rows) : kidx_arg(k, 3), w = fixed ? kidx_const(k, wide) : kidx_arg(k, 4);
            uint32_t i = k_axis(k, AXIS_X, m, rows), j = k_axis(k, AXIS_X, w, wide);
            k->vec_axis = j;
            IRef at = kidx_add(k, kidx_mul(k, kidx_axis(k, i), w), kidx_axis(k, j));
            VRef of_row = k_load(k, 1, kidx_axis(k, i), VREF_NONE);
            k_store(k, 2, at, k_op(k, OP_ADD, DT_F32, k_load(k, 0, at, VREF_NONE), of_row, VREF_NONE), VREF_NONE);
            Guarded x = guarded_at_end((size_t)n * 4, 0), r = guarded_at_end((size_t)rows * 4, 0);
            for (int64_t p = 0; p < n; p++)
                ((float *)x.data)[p] = (float)(p % 1000);
            for (int64_t p = 0; p < rows; p++)
                ((float *)r.data)[p] = (float)p;
            for (int bits = 256; bits <= 512; bits += 256) {
                if (!slice_takes_of((uint64_t)(4 * c + 2 * fixed + (bits == 512)), 8))
                    continue;
                CompiledKernel *code = compile_kernel(k, (Setting){bits, 1, MATH_STRICT, CPU_HOST});
                for (int shift = 0; shift < 3; shift++) {
                    Guarded y = shift == 2 ? guarded_at_start((size_t)n * 4, 0) : guarded_at_end((size_t)n * 4, shift ? 4 : 0);
                    void *args[] = {x.data, r.data, y.data, (void *)(intptr_t)rows, (void *)(intptr_t)wide};
                    int64_t tasks = launch_of(code, args).tasks[0], cut = tasks / 3;
                    code->run(args, 0, 0, cut, NULL);
                    code->run(args, 0, cut, tasks, NULL);
                    for (int64_t p = 0; p < n; p++)
                        if (((float *)y.data)[p] != (float)(p % 1000) + (float)(p / wide))
                            cr_assert(false, "%d bits, shift %d: [%lld]", bits, shift, (long long)p);
                    cr_assert(guarded_intact(&y));
                    guarded_free(&y);
                }
                kernel_table_release(code);
            }
            guarded_free(&x);
            guarded_free(&r);
        }
}

/* A big output in pieces, whose first tiles begin anywhere in a line. */
Test(emit_loops, big_output_in_pieces)
{
    check_text("kernel (a0 f64, a1 f64 out, s2) for i < s2; v0 = index i; v1 = lt v0 5; v2 = load a0[i + 2097187] where v1; v3 = ge v0 5; "
               "v4 = load a0[i + -5] where v3; v5 = where v1 v2 v4; v6 = add v5 v5; store a1[i] = v6",
               DT_F64, (int64_t[]){2 * 2097192, 2097192}, 2, 2097192);
}

/* Fills and copies: LLVM must not make them calls of memset and memcpy, which a kernel cannot reach. */
Test(emit_loops, fills_and_copies_call_nothing)
{
    for (int effort = 0; effort <= 2; effort++)
        for (int copy = 0; copy < 2; copy++)
            for (int vec = 0; vec < 2; vec++) {
                enum { N = 1000 };
                Kernel *k = kernel_new(&arena);
                k_arg(k, ARG_BUFFER, DT_U8, false);
                k_arg(k, ARG_BUFFER, DT_U8, true);
                k_arg(k, ARG_SIZE, DT_I64, false);
                uint32_t a = k_axis(k, AXIS_X, kidx_arg(k, 2), N);
                k->vec_axis = vec ? a : UINT32_MAX;
                IRef at = kidx_axis(k, a);
                k_store(k, 1, at, copy ? k_load(k, 0, at, VREF_NONE) : k_const(k, DT_U8, 0), VREF_NONE);
                Setting s = {512, effort, MATH_STRICT, CPU_HOST};
                CompiledKernel *code = compile_kernel(k, s);
                CheckArg args[] = {
                    {.data = filled(DT_U8, N, false), .bytes = N}, {.data = filled(DT_U8, N, false), .bytes = N}, {.value = N}};
                check_code(code, k, args, s, "fill or copy");
                kernel_table_release(code);
                os_free((void *)(uintptr_t)args[0].data);
                os_free((void *)(uintptr_t)args[1].data);
            }
}

/* The smaller of two halves, one of them a constant: LLVM's -O2 must not make it a call of fminf. */
Test(emit_loops, smaller_halves_call_nothing)
{
    static const DType types[] = {DT_F16, DT_BF16};
    static const Op ops[] = {OP_ATAN2, OP_LOGADDEXP, OP_MINIMUM, OP_MAXIMUM};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t op = 0; op < sizeof ops / sizeof *ops; op++)
            for (int swapped = 0; swapped < 2; swapped++)
                for (int vec = 0; vec < 2; vec++)
                    for (int effort = 0; effort <= 2; effort++) {
                        enum { N = 37 };
                        Kernel *k = kernel_new(&arena);
                        k_arg(k, ARG_BUFFER, types[t], false);
                        k_arg(k, ARG_BUFFER, types[t], true);
                        uint32_t a = k_axis(k, AXIS_X, kidx_const(k, N), N);
                        k->vec_axis = vec ? a : UINT32_MAX;
                        VRef x = k_load(k, 0, kidx_axis(k, a), VREF_NONE);
                        VRef c = k_const(k, types[t], 0.75);
                        k_store(k, 1, kidx_axis(k, a), k_op(k, ops[op], types[t], swapped ? c : x, swapped ? x : c, VREF_NONE), VREF_NONE);
                        Setting s = {256, effort, MATH_STRICT, CPU_HOST};
                        CompiledKernel *code = compile_kernel(k, s);
                        CheckArg args[] = {{.data = filled(types[t], N, false), .bytes = N * 2},
                                           {.data = filled(types[t], N, false), .bytes = N * 2}};
                        check_code(code, k, args, s, op_info[ops[op]].name);
                        kernel_table_release(code);
                        os_free((void *)(uintptr_t)args[0].data);
                        os_free((void *)(uintptr_t)args[1].data);
                    }
}
#endif

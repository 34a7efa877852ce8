/* FORM_LOOPS with r axes: reductions in every layout, stages, saved rows, scans, scatters, split
 * kernels. */
#include "jit/kernel_text.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/unit/object_check.h"

TestSuite(emit_reduce, .init = setup, .fini = teardown);

enum { VEC_R, VEC_X, SCALAR, LAYOUTS };
typedef enum Split { UNSPLIT, SPLIT, ASKED } Split;

static void set_split(Kernel *k, Split split) { k->split = split, k->split_asked = split == ASKED; }

typedef struct Shape2 {
    Kernel *k;
    uint32_t x, y, ax, ar; /* args, axes */
    IRef i, j, at;         /* coordinates; index into x */
    int64_t rows, length;
    int layout;
} Shape2;

/* y[rows] from x: [rows, length] where lanes run along r, [length, rows] otherwise. */
static Shape2 shape(DType in, DType out, int64_t rows, int64_t length, int layout, bool fixed)
{
    Shape2 s = {.k = kernel_new(&arena), .rows = rows, .length = length, .layout = layout};
    Kernel *k = s.k;
    s.x = k_arg(k, ARG_BUFFER, in, false);
    s.y = k_arg(k, ARG_BUFFER, out, true);
    IRef sizes[2] = {kidx_const(k, rows), kidx_const(k, length)};
    for (int i = 0; i < 2; i++) {
        uint32_t arg = k_arg(k, ARG_SIZE, DT_I64, false);
        if (!fixed)
            sizes[i] = kidx_arg(k, arg);
    }
    k_arg(k, ARG_SCRATCH, DT_U8, true);
    s.ax = k_axis(k, AXIS_X, sizes[0], rows);
    s.ar = k_axis(k, AXIS_R, sizes[1], length);
    k->vec_axis = layout == VEC_R ? s.ar : layout == VEC_X ? s.ax : UINT32_MAX;
    s.i = kidx_axis(k, s.ax);
    s.j = kidx_axis(k, s.ar);
    s.at = layout == VEC_R ? kidx_add(k, kidx_mul(k, s.i, sizes[1]), s.j) : kidx_add(k, kidx_mul(k, s.j, sizes[0]), s.i);
    return s;
}

static void check_shape(Shape2 *s, size_t out_elements, bool special, const char *what)
{
    DType in = (DType)s->k->args.at[s->x].dtype, out = (DType)s->k->args.at[s->y].dtype;
    size_t n = (size_t)(s->rows * s->length);
    CheckArg args[REF_ARGS] = {{.data = filled(in, n, special), .bytes = n * dtype_bytes(in)},
                               {.data = filled(out, out_elements, false), .bytes = out_elements * dtype_bytes(out)},
                               {.value = s->rows},
                               {.value = s->length},
                               {.value = 0}};
    check_kernel(s->k, args, what);
    os_free((void *)(uintptr_t)args[0].data);
    os_free((void *)(uintptr_t)args[1].data);
}

static void check_reduce(Op op, DType in, int64_t rows, int64_t length, int layout, bool fixed, Split split, bool special)
{
    DType out = op == OP_ARGMAX || op == OP_ARGMIN ? DT_I64 : in;
    Shape2 s = shape(in, out, rows, length, layout, fixed);
    set_split(s.k, split);
    k_store(s.k, s.y, s.i, k_reduce(s.k, op, out, k_load(s.k, s.x, s.at, VREF_NONE)), VREF_NONE);
    char what[128];
    snprintf(what, sizeof what, "%s %s rows %d length %d layout %d fixed %d split %d", op_name(op), dtype_name(in), (int)rows, (int)length,
             layout, fixed, split);
    check_shape(&s, (size_t)rows, special, what);
}

static const int64_t lengths[] = {1, 2, 3, 7, 16, 31, 48, 63, 64, 65, 100, 127, 128, 130, 200};

/* Rows whose best is a zero, of which some have one of the other sign, some a NaN somewhere, of either sign. */
static void check_zeros(Op op, DType in, int64_t length, int layout, bool fixed, Split split)
{
    enum { ROWS = 48 };
    Shape2 s = shape(in, in, ROWS, length, layout, fixed);
    set_split(s.k, split);
    k_store(s.k, s.y, s.i, k_reduce(s.k, op, in, k_load(s.k, s.x, s.at, VREF_NONE)), VREF_NONE);
    size_t n = (size_t)(ROWS * length), bytes = dtype_bytes(in), point = layout == VEC_R ? 1 : ROWS,
           next = layout == VEC_R ? (size_t)length : 1;
    char *data = os_alloc(n * bytes + 8), what[128];
    double less = op == OP_REDUCE_MAX ? -1.0 : 1.0;
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t i = 0; i < (size_t)length; i++) {
            uint64_t r = next_random();
            double x = r & 3 ? copysign(0.0, less) : less * (double)(r >> 20 & 7);
            scalar_store(in, scalar_from_double(in, x), data + (row * next + i * point) * bytes);
        }
        size_t at = next_random() % (size_t)length;
        double odd = row % 4 == 1   ? copysign(0.0, -less)
                     : row % 8 == 2 ? NAN
                     : row % 8 == 3 ? copysign(NAN, -1.0)
                     : row % 8 == 4 ? less * INFINITY
                                    : 0.0;
        if (row % 4)
            scalar_store(in, scalar_from_double(in, odd), data + (row * next + at * point) * bytes);
    }
    CheckArg args[REF_ARGS] = {{.data = data, .bytes = n * bytes},
                               {.data = filled(in, ROWS, false), .bytes = ROWS * bytes},
                               {.value = ROWS},
                               {.value = length},
                               {.value = 0}};
    snprintf(what, sizeof what, "%s %s of zeros, length %d layout %d fixed %d split %d", op_name(op), dtype_name(in), (int)length, layout,
             fixed, split);
    check_kernel(s.k, args, what);
    os_free(data);
    os_free((void *)(uintptr_t)args[1].data);
}

Test(emit_reduce, extremes_of_zeros_and_nan)
{
    static const DType types[] = {DT_F32, DT_F64, DT_BF16, DT_F16};
    static const int64_t n[] = {1, 4, 16, 33, 64, 100, 131, 256};
    for (size_t t = 0; t < 4; t++)
        for (size_t i = 0; i < sizeof n / sizeof *n; i++)
            for (int c = 0; c < 4; c++) {
                Op op = c % 2 ? OP_REDUCE_MIN : OP_REDUCE_MAX;
                check_zeros(op, types[t], n[i], c < 2 ? VEC_R : VEC_X, (i + t) % 2, i % 3 == 2 ? SPLIT : UNSPLIT);
            }
    for (size_t t = 0; t < 4; t++)
        for (int64_t points = 7; points < 18; points += 5) /* that have code of their own (unroll.c) */
            for (int c = 0; c < 2; c++)
                check_zeros(c ? OP_REDUCE_MIN : OP_REDUCE_MAX, types[t], points, VEC_X, true, UNSPLIT);
}

Test(emit_reduce, sums_of_every_length)
{
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            check_reduce(OP_REDUCE_SUM, DT_F32, 3, lengths[i], layout, i % 2, false, false);
}

/* Known to be so many times all lanes: each round goes over the accumulators once. */
Test(emit_reduce, whole_rounds)
{
    static const int64_t n[] = {8, 32, 64, 96, 128, 192, 512, 16384, 16448, 32768 + 64};
    static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_BF16};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (size_t t = 0; t < 4; t++) {
            check_reduce(OP_REDUCE_SUM, types[t], 3, n[i], VEC_R, true, i > 6 && t % 2 ? SPLIT : UNSPLIT, false);
            check_reduce(t % 2 ? OP_REDUCE_MIN : OP_ARGMAX, types[t], 3, n[i], VEC_R, true, UNSPLIT, true);
        }
}

/* Whole rounds, then whole vectors, then a tail: each may be none, and the length is known or not. */
Test(emit_reduce, rests_of_rounds)
{
    static const int64_t n[] = {0, 1, 15, 16, 17, 33, 47, 48, 50, 63, 64, 79, 80, 96, 97, 112, 113, 127, 16384 + 81};
    static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_BF16};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (size_t t = i % 2; t < 4; t += 2)
            check_reduce(OP_REDUCE_SUM, types[t], 3, n[i], VEC_R, i % 4 > 1, i % 3 ? ASKED : UNSPLIT, false);
}

/* A sum whose order shows beside a maximum and a minimum, which have fewer accumulators where those of all lanes would not be in registers. */
Test(emit_reduce, sums_beside_folds_of_fewer_accumulators)
{
    static const int64_t n[] = {15, 32, 33, 48, 64, 65, 100, 128, 130, 320, 1000};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int fixed = 0; fixed < 2; fixed++) {
            Shape2 s = shape(DT_I64, DT_F64, 5, n[i], VEC_R, fixed);
            VRef x = k_load(s.k, s.x, s.at, VREF_NONE), folds[] = {k_reduce(s.k, OP_REDUCE_MAX, DT_I64, x), VREF_NONE, VREF_NONE};
            folds[1] = k_reduce(s.k, OP_REDUCE_SUM, DT_F64, k_op(s.k, OP_CAST, DT_F64, x, VREF_NONE, VREF_NONE));
            folds[2] = k_reduce(s.k, OP_REDUCE_MIN, DT_I64, x);
            VRef range = k_op(s.k, OP_CAST, DT_F64, k_op(s.k, OP_SUB, DT_I64, folds[0], folds[2], VREF_NONE), VREF_NONE, VREF_NONE);
            k_store(s.k, s.y, s.i, k_op(s.k, OP_DIV, DT_F64, folds[1], range, VREF_NONE), VREF_NONE);
            char what[64];
            snprintf(what, sizeof what, "sum and range of %d, fixed %d", (int)n[i], fixed);
            check_shape(&s, 5, false, what);
        }
}

#ifndef CHECK_PTX
Test(emit_reduce, accumulators_of_rounds_are_in_registers)
{
    for (int bits = 128; bits <= 512; bits *= 2)
        for (int known = 0; known < 2; known++) {
            Shape2 s = shape(DT_F32, DT_F32, 100, 1003, VEC_R, known);
            k_store(s.k, s.y, s.i, k_reduce(s.k, OP_REDUCE_SUM, DT_F32, k_load(s.k, s.x, s.at, VREF_NONE)), VREF_NONE);
            set_orders(s.k, ORDER_HOST, MATH_STRICT);
            JitOptions o = setting_options((Setting){bits, 1, MATH_STRICT, CPU_V4});
            Emitted out;
            cr_assert_eq(llvm_emit_host(s.k, "sums", &o, true, &out), ST_OK, "%s", fail_message());
            cr_expect_null(strstr(out.ir, "alloca"), "%d bits, length known %d", bits, known);
            free_emitted(&out);
        }
}

/* Is there a loop over single vectors of r, over its rounds, or over rows one by one? */
static bool has_r_loop(const char *ir)
{
    for (const char *at = ir; (at = strstr(at, "\nr")); at++)
        if (at[2 + strspn(at + 2, "0123456789")] == ':')
            return true;
    return false;
}

/* Rows of one vector or one round. */
Test(emit_reduce, rows_of_one_step_have_no_loop)
{
    static const struct {
        DType t;
        Op op;
    } folds[] = {{DT_F32, OP_REDUCE_SUM}, {DT_F64, OP_REDUCE_SUM}, {DT_I64, OP_REDUCE_MAX}, {DT_I32, OP_REDUCE_MIN}};
    static const int64_t n[] = {32, 64, 1024};
    for (int bits = 256; bits <= 512; bits *= 2)
        for (size_t f = 0; f < sizeof folds / sizeof *folds; f++)
            for (int i = 0; i < 3; i++) {
                Shape2 s = shape(folds[f].t, folds[f].t, 100, n[i], VEC_R, true);
                k_store(s.k, s.y, s.i, k_reduce(s.k, folds[f].op, folds[f].t, k_load(s.k, s.x, s.at, VREF_NONE)), VREF_NONE);
                set_orders(s.k, ORDER_HOST, MATH_STRICT);
                JitOptions o = setting_options((Setting){bits, 1, MATH_STRICT, CPU_V4});
                Emitted out;
                cr_assert_eq(llvm_emit_host(s.k, "folds", &o, true, &out), ST_OK, "%s", fail_message());
                cr_expect_eq(has_r_loop(out.ir), n[i] > 64, "%d bits, fold %zu, %d points", bits, f, (int)n[i]);
                free_emitted(&out);
            }
}

/* Eight rows of a strip at once, and code for the last ones only where the number of rows is not known to be whole eights of each lane. */
Test(emit_reduce, rows_left_of_steps_have_code_if_there_are_any)
{
    static const int64_t n[] = {1000, 1024, 16384 + 512, 16384 + 576};
    for (int bits = 128; bits <= 512; bits *= 2)
        for (int i = 0; i < 4; i++) {
            Shape2 s = shape(DT_F32, DT_F32, 4096, n[i], VEC_X, true);
            k_store(s.k, s.y, s.i, k_reduce(s.k, OP_REDUCE_SUM, DT_F32, k_load(s.k, s.x, s.at, VREF_NONE)), VREF_NONE);
            set_orders(s.k, ORDER_HOST, MATH_STRICT);
            JitOptions o = setting_options((Setting){bits, 1, MATH_STRICT, CPU_V4});
            Emitted out;
            cr_assert_eq(llvm_emit_host(s.k, "sums", &o, true, &out), ST_OK, "%s", fail_message());
            cr_expect_eq(has_r_loop(out.ir), n[i] % 512 != 0, "%d bits, %d rows", bits, (int)n[i]);
            free_emitted(&out);
        }
}
#endif

Test(emit_reduce, long_sums)
{
    static const int64_t n[] = {16383, 16384, 16385, 40000};
    for (size_t i = 0; i < 4; i++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            check_reduce(OP_REDUCE_SUM, layout ? DT_F64 : DT_F32, 2, n[i], layout, i % 2 == 0, false, false);
}

Test(emit_reduce, split_sums)
{
    static const int64_t n[] = {1, 100, 16384, 16385, 50000};
    for (size_t i = 0; i < 5; i++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            check_reduce(OP_REDUCE_SUM, DT_F32, i == 1 ? 19 : 3, n[i], layout, i % 2 == 0, true, false);
            check_reduce(OP_ARGMAX, DT_F32, 3, n[i], layout, i % 2, true, true);
        }
    for (int layout = 0; layout < LAYOUTS; layout++)
        check_reduce(OP_REDUCE_SUM, DT_F32, 3, 0, layout, false, true, false);
}

/* Strips of any number of rows take few of them in chains and many at once, block by block: a stage, or one and what differs from its mean. */
Test(emit_reduce, columns_of_few_rows_and_many)
{
    static const int64_t n[] = {1, 64, 129, 447, 448, 1000, 16384 + 447, 16384 + 448}, hint[] = {3, 200, 5000};
    static const DType types[] = {DT_F32, DT_F64, DT_BF16};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (size_t h = 0; h < 6; h++) {
            DType t = types[(i + h) % 3];
            int64_t columns = h == 0 && (n[i] == 447 || n[i] == 448) ? 1100 : 70; /* two strips, one */
            if (n[i] > 16384 && h != 3 * (i % 2))
                continue;
            Shape2 s = shape(t, t, columns, n[i], VEC_X, false);
            s.k->axes.at[s.ar].bucket = 0;
            while (INT64_C(1) << s.k->axes.at[s.ar].bucket < hint[h % 3])
                s.k->axes.at[s.ar].bucket++;
            VRef x = k_load(s.k, s.x, s.at, VREF_NONE), sum = k_reduce(s.k, OP_REDUCE_SUM, t, x);
            VRef best = k_reduce(s.k, OP_REDUCE_MAX, t, x);
            if (h >= 3) {
                VRef left = k_op(s.k, OP_SUB, t, x, k_op(s.k, OP_MUL, t, sum, best, VREF_NONE), VREF_NONE);
                sum = k_reduce(s.k, OP_REDUCE_SUM, t, k_op(s.k, OP_MUL, t, left, left, VREF_NONE));
            }
            k_store(s.k, s.y, s.i, k_op(s.k, OP_ADD, t, sum, best, VREF_NONE), VREF_NONE);
            char what[96];
            snprintf(what, sizeof what, "%s, %d rows, planned for %d, %d columns", dtype_name(t), (int)n[i], (int)hint[h % 3],
                     (int)columns);
            check_shape(&s, (size_t)columns, false, what);
        }
}

/* Sums of heavy bodies that CUDA plans for as many blocks of the order as `hint` has: a block is one task, two, or four. A second fold, the greatest, has no
 * order; a third knows the place, whose block is one task. Or the second is of what is left of each element, and so a launch of its own. */
Test(emit_reduce, split_sums_in_parts_of_blocks)
{
    static const int64_t n[] = {1, 7, 8, 15, 17, 1000, 1024, 16384, 16399, 33000}, hint[] = {1 << 15, 1 << 19, 1 << 20, 1 << 24};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (size_t h = 0; h < sizeof hint / sizeof *hint; h++)
            for (int folds = 1; folds <= 4; folds++) {
                int64_t rows = 1 + (int64_t)(i % 2);
                Shape2 s = shape(DT_F32, DT_F32, rows, n[i], VEC_R, false);
                uint8_t bucket = 0;
                while (INT64_C(1) << bucket < hint[h])
                    bucket++;
                s.k->axes.at[s.ar].bucket = bucket;
                set_split(s.k, SPLIT);
                VRef x = k_load(s.k, s.x, s.at, VREF_NONE), all = VREF_NONE;
                x = k_op(s.k, OP_TANH, DT_F32, k_op(s.k, OP_SIGMOID, DT_F32, x, VREF_NONE, VREF_NONE), VREF_NONE, VREF_NONE);
                for (int f = 0; f < folds && folds < 4; f++) {
                    VRef one = f == 2 ? k_op(s.k, OP_CAST, DT_F32, k_reduce(s.k, OP_ARGMAX, DT_I64, x), VREF_NONE, VREF_NONE)
                                      : k_reduce(s.k, f ? OP_REDUCE_MAX : OP_REDUCE_SUM, DT_F32, x);
                    all = f ? k_op(s.k, OP_ADD, DT_F32, all, one, VREF_NONE) : one;
                }
                if (folds == 4) {
                    VRef left = k_op(s.k, OP_SUB, DT_F32, x, k_reduce(s.k, OP_REDUCE_SUM, DT_F32, x), VREF_NONE);
                    all = k_reduce(s.k, OP_REDUCE_SUM, DT_F32, k_op(s.k, OP_MUL, DT_F32, left, left, VREF_NONE));
                }
                k_store(s.k, s.y, s.i, all, VREF_NONE);
                char what[96];
                snprintf(what, sizeof what, "sum of %d, planned for %d, %d folds", (int)n[i], (int)hint[h], folds);
                check_shape(&s, (size_t)rows, (i + h) % 4 == 0, what);
            }
}

/* Bodies of which a thread has few lanes: one load, one of 16 bits, and so many that few tiles of them fit beside one another. */
Test(emit_reduce, split_sums_of_heavy_bodies)
{
    static const int64_t n[] = {4, 1000, 16384, 16388, 40000, 50001};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int loads = 1; loads <= 5; loads += 2)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                DType t = loads == 3 ? DT_BF16 : DT_F32;
                Shape2 s = shape(t, DT_F32, 3, n[i], layout, i % 2 == 0);
                set_split(s.k, SPLIT);
                VRef all = VREF_NONE;
                for (int l = 0; l < loads; l++) {
                    VRef x = k_load(s.k, s.x, s.at, VREF_NONE);
                    x = t == DT_F32 ? x : k_op(s.k, OP_CAST, DT_F32, x, VREF_NONE, VREF_NONE);
                    x = k_op(s.k, OP_TANH, DT_F32, k_op(s.k, OP_SIGMOID, DT_F32, x, VREF_NONE, VREF_NONE), VREF_NONE, VREF_NONE);
                    all = l ? k_op(s.k, OP_ADD, DT_F32, all, x, VREF_NONE) : x;
                }
                k_store(s.k, s.y, s.i, k_reduce(s.k, OP_REDUCE_SUM, DT_F32, all), VREF_NONE);
                char what[96];
                snprintf(what, sizeof what, "sum of %d loads, length %d layout %d", loads, (int)n[i], layout);
                check_shape(&s, 3, false, what);
            }
}

Test(emit_reduce, of_nothing)
{
    static const Op ops[] = {OP_REDUCE_SUM, OP_REDUCE_PROD, OP_REDUCE_ANY, OP_REDUCE_ALL};
    for (int i = 0; i < 4; i++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int fixed = 0; fixed < 2; fixed++) {
                check_reduce(ops[i], i < 2 ? DT_F32 : DT_BOOL, 5, 0, layout, fixed, false, false);
                check_reduce(ops[i], i < 2 ? DT_I32 : DT_BOOL, 0, 5, layout, fixed, false, false);
            }
}

static void check_reductions_of(DType t)
{
    static const Op ops[] = {OP_REDUCE_SUM, OP_REDUCE_PROD, OP_REDUCE_MAX, OP_REDUCE_MIN, OP_ARGMAX, OP_ARGMIN};
    static const int64_t n[] = {1, 45, 129, 300};
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (size_t j = 0; j < 4; j++) {
            for (size_t i = 0; i < 6; i++) {
                if (t == DT_BOOL && i < 4)
                    continue;
                check_reduce(ops[i], t, 5, n[j], layout, j % 2, false, true);
            }
            if (t == DT_BOOL) {
                check_reduce(OP_REDUCE_ANY, t, 5, n[j], layout, j % 2, false, false);
                check_reduce(OP_REDUCE_ALL, t, 5, n[j], layout, j % 2, false, false);
            }
        }
}

#define REDUCTIONS_OF(id) \
    Test(emit_reduce, of_##id) { check_reductions_of(DT_##id); }
#define DTYPE(id, name, bytes, kind, scalar, numpy) REDUCTIONS_OF(id)
#include "ir/dtypes.def"
#include "tests/support/count.h"
#undef DTYPE

/* argmax where all are equal, all NaN, or the least value: the first wins */
Test(emit_reduce, arg_of_equals)
{
    static const float values[] = {0, -INFINITY, NAN, INFINITY};
    for (int v = 0; v < 4; v++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            int64_t rows = 3, n = 77;
            Shape2 s = shape(DT_F32, DT_I64, rows, n, layout, false);
            VRef x = k_load(s.k, s.x, s.at, VREF_NONE);
            VRef max = k_reduce(s.k, OP_ARGMAX, DT_I64, x), min = k_reduce(s.k, OP_ARGMIN, DT_I64, x);
            k_store(s.k, s.y, s.i, k_op(s.k, OP_ADD, DT_I64, max, min, VREF_NONE), VREF_NONE);
            float *data = os_alloc((size_t)(rows * n) * 4);
            for (int64_t i = 0; i < rows * n; i++)
                data[i] = values[v];
            int64_t zero[3] = {9, 9, 9};
            CheckArg args[] = {
                {.data = data, .bytes = (size_t)(rows * n) * 4}, {.data = zero, .bytes = 24}, {.value = rows}, {.value = n}, {0}};
            check_kernel(s.k, args, "arg of equals");
            os_free(data);
        }
}

/* r0, r1 with x in between or outside: x[r0, x, r1] and x[x, r0, r1] */
Test(emit_reduce, several_axes)
{
    static const int64_t dims[][3] = {{3, 4, 5},     {2, 3, 64}, {5, 2, 33}, {7, 1, 100}, {1, 3, 17},
                                      {130, 2, 130}, {3, 2, 0},  {9, 2, 48}, {70, 3, 784}};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int middle = 0; middle < 2; middle++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (int split = 0; split < 2; split++) {
                    Kernel *k = kernel_new(&arena);
                    const int64_t *n = dims[d];
                    bool fixed = d % 2;
                    k_arg(k, ARG_BUFFER, DT_F32, false);
                    k_arg(k, ARG_BUFFER, DT_F32, true);
                    IRef size[3];
                    for (int i = 0; i < 3; i++) {
                        uint32_t a = k_arg(k, ARG_SIZE, DT_I64, false);
                        size[i] = fixed ? kidx_const(k, n[i]) : kidx_arg(k, a);
                    }
                    k_arg(k, ARG_SCRATCH, DT_U8, true);
                    uint32_t x = k_axis(k, AXIS_X, size[1], n[1]);
                    uint32_t r0 = k_axis(k, AXIS_R, size[0], n[0]), r1 = k_axis(k, AXIS_R, size[2], n[2]);
                    k->vec_axis = layout == VEC_R ? r1 : layout == VEC_X ? x : UINT32_MAX;
                    k->split = split;
                    IRef ix = kidx_axis(k, x), i0 = kidx_axis(k, r0), i1 = kidx_axis(k, r1);
                    IRef at = middle ? kidx_add(k, kidx_mul(k, i0, size[1]), ix) : kidx_add(k, kidx_mul(k, ix, size[0]), i0);
                    at = kidx_add(k, kidx_mul(k, at, size[2]), i1);
                    VRef v = k_load(k, 0, at, VREF_NONE);
                    VRef sum = k_reduce(k, OP_REDUCE_SUM, DT_F32, v), arg = k_reduce(k, OP_ARGMIN, DT_I64, v);
                    VRef f = k_op(k, OP_CAST, DT_F32, arg, VREF_NONE, VREF_NONE);
                    if (n[2] == 0)
                        f = sum;
                    k_store(k, 1, ix, k_op(k, OP_ADD, DT_F32, sum, f, VREF_NONE), VREF_NONE);
                    size_t in = (size_t)(n[0] * n[1] * n[2]), out = (size_t)n[1];
                    CheckArg args[] = {{.data = filled(DT_F32, in, false), .bytes = in * 4},
                                       {.data = filled(DT_F32, out, false), .bytes = out * 4},
                                       {.value = n[0]},
                                       {.value = n[1]},
                                       {.value = n[2]},
                                       {0}};
                    char what[96];
                    snprintf(what, sizeof what, "axes case %d middle %d layout %d split %d", (int)d, middle, layout, split);
                    check_kernel(k, args, what);
                    os_free((void *)(uintptr_t)args[0].data);
                    os_free((void *)(uintptr_t)args[1].data);
                }
}

/* y = exp(x - max) / sum(exp(x - max)), three stages, of elements of one dtype, computed in another; `save` keeps exp's row */
static Shape2 softmax(DType stored, DType t, int64_t rows, int64_t n, int layout, bool fixed, bool save, Split split)
{
    Shape2 s = shape(stored, stored, rows, n, layout, fixed);
    Kernel *k = s.k;
    set_split(k, split);
    VRef x = k_load(k, s.x, s.at, VREF_NONE);
    if (stored != t)
        x = k_op(k, OP_CAST, t, x, VREF_NONE, VREF_NONE);
    VRef max = k_reduce(k, OP_REDUCE_MAX, t, x);
    VRef e = k_op(k, OP_EXP, t, k_op(k, OP_SUB, t, x, max, VREF_NONE), VREF_NONE, VREF_NONE);
    k->inst.at[e].save = save;
    VRef sum = k_reduce(k, OP_REDUCE_SUM, t, e);
    VRef y = k_op(k, OP_DIV, t, e, sum, VREF_NONE);
    if (stored != t)
        y = k_op(k, OP_CAST, stored, y, VREF_NONE, VREF_NONE);
    k_store(k, s.y, s.at, y, VREF_NONE);
    return s;
}

static void check_softmax_in(DType stored, DType t, int64_t rows, int64_t n, int layout, bool fixed, bool save, Split split)
{
    Shape2 s = softmax(stored, t, rows, n, layout, fixed, save, split);
    char what[96];
    snprintf(what, sizeof what, "softmax %s in %s %d x %d layout %d fixed %d save %d split %d", dtype_name(stored), dtype_name(t),
             (int)rows, (int)n, layout, fixed, save, split);
    check_shape(&s, (size_t)(rows * n), false, what);
}

static void check_softmax(DType t, int64_t rows, int64_t n, int layout, bool fixed, bool save, Split split)
{
    check_softmax_in(t, t, rows, n, layout, fixed, save, split);
}

Test(emit_reduce, softmax)
{
    static const int64_t n[] = {1, 10, 63, 64, 100, 257};
    for (size_t i = 0; i < 6; i++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int save = 0; save < 2; save++)
                check_softmax(i == 4 ? DT_BF16 : i == 3 ? DT_F16 : DT_F32, 5, n[i], layout, i % 2, save, false);
    /* the light stages take several vectors a step, the heavy one takes one */
    static const int64_t wide[] = {33, 65, 127, 128, 129, 200, 1000};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        for (int variant = 0; variant < 4; variant++)
            check_softmax(DT_F32, 3, wide[i], VEC_R, variant & 1, variant & 2, false);
    static const int64_t cut[] = {100, 16384 + 1, 16384 + 33, 2 * 16384 - 65}; /* and in blocks that are tasks, whose last is short */
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        for (int variant = 0; variant < 4; variant++)
            check_softmax(i % 2 ? DT_F32 : DT_BF16, 2, cut[i], VEC_R, variant & 1, variant & 2, SPLIT);
    for (int layout = 0; layout < LAYOUTS; layout++) {
        check_softmax(DT_F32, 2, 17000, layout, true, true, false);
        check_softmax(DT_F32, 2, 17000, layout, true, true, true);
    }
    /* narrow elements: rows that a thread can keep with tiles of 16 bytes, and only with smaller ones */
    check_softmax_in(DT_BF16, DT_F32, 2, 8192, VEC_R, true, false, false);
    check_softmax_in(DT_BF16, DT_F32, 3, 9000, VEC_R, true, false, false);
    check_softmax_in(DT_F16, DT_F32, 2, 16384, VEC_R, false, true, false);
}

#ifndef CHECK_PTX /* host only */
/* Sizes that vary: each launch is split or not, as its sizes ask for. */
Test(emit_reduce, split_where_rows_are_few_and_long)
{
    static const struct {
        int64_t rows, n;
        int phases;
    } cases[] = {{1, HOST_FAR, 6}, {HOST_FEW - 1, HOST_FAR, 6}, {HOST_FEW, HOST_FAR, 1}, {1, HOST_FAR - 1, 1}, {1, 0, 1}, {0, HOST_FAR, 6}};
    for (int layout = 0; layout < LAYOUTS; layout++) {
        check_softmax(DT_F32, 1, HOST_FAR + 5, layout, false, layout, ASKED);
        check_softmax(DT_F32, 5, 1003, layout, false, layout, ASKED);
        check_reduce(OP_REDUCE_SUM, DT_F32, 2, HOST_FAR, layout, false, ASKED, false);
        check_reduce(OP_ARGMAX, DT_F32, 70, 100, layout, false, ASKED, true);
    }
    check_softmax(DT_F32, 3, HOST_FAR + 5, VEC_R, false, true, ASKED);
    CompiledKernel *code = compile_kernel(softmax(DT_F32, DT_F32, 1, 1, VEC_R, false, true, ASKED).k, settings[0]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *args[] = {NULL, NULL, (void *)(intptr_t)cases[i].rows, (void *)(intptr_t)cases[i].n, NULL};
        HostLaunch launch = launch_of(code, args);
        cr_expect_eq(launch.phases, cases[i].phases, "%d x %d: %d phases", (int)cases[i].rows, (int)cases[i].n, (int)launch.phases);
        cr_expect_eq(launch.scratch > 0, launch.phases > 1 && cases[i].rows > 0);
    }
    kernel_table_release(code);
}

/* What a stage saves of rows whose blocks are tasks lies in the shared scratch, as long as it is not much: then a later stage computes it again. */
Test(emit_reduce, rows_are_kept_where_they_are_few_bytes)
{
    enum { MANY = HOST_KEEP / 4 };
    check_softmax(DT_F32, 1, MANY, VEC_R, false, true, ASKED);
    for (Split split = SPLIT; split <= ASKED; split++)
        for (int save = 0; save < 2; save++) {
            CompiledKernel *code = compile_kernel(softmax(DT_F32, DT_F32, 1, 1, VEC_R, false, save, split).k, settings[0]);
            for (int many = 0; many < 2; many++) {
                int64_t n = many ? MANY : HOST_FAR;
                void *args[] = {NULL, NULL, (void *)(intptr_t)1, (void *)(intptr_t)n, NULL};
                cr_expect_eq(launch_of(code, args).scratch > 4 * n, save && !many, "split %d save %d: %d", (int)split, save, (int)n);
            }
            kernel_table_release(code);
        }
}
#endif

/* running sums along r, lanes along x or none (asked to run along r it falls back to scalar code)
 * */
Test(emit_reduce, scan)
{
    static const DType types[] = {DT_F32, DT_F16, DT_BF16, DT_I8, DT_F64, DT_U64};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int64_t n = 0; n < 40; n += 13) {
                Shape2 s = shape(types[t], types[t], 21, n, layout, n % 2);
                KInst scan = inst_new(KI_FOLD, types[t]);
                scan.op = FOLD_SUM, scan.mode = RUNNING;
                scan.a = k_load(s.k, s.x, s.at, VREF_NONE);
                k_store(s.k, s.y, s.at, kernel_inst(s.k, scan), VREF_NONE);
                check_shape(&s, (size_t)(21 * n), false, "scan");
            }
}

/* y[r] = b, a; c = c + x[r], a, b = b, c; the ends of all three: of no points their starts. */
Test(emit_reduce, carries)
{
    static const DType types[] = {DT_F32, DT_F16, DT_BF16, DT_I8, DT_F64, DT_U64, DT_BOOL};
    static const int64_t steps[] = {0, 1, 2, 13, 39}, rows[] = {1, 21, 70, 300};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t i = 0; i < 4 * sizeof steps / sizeof *steps; i++) {
            int64_t n = steps[i / 4], m = rows[i % 4];
            DType type = types[t];
            Shape2 s = shape(type, type, m, n, i % 3 ? VEC_X : SCALAR, i % 2);
            Kernel *k = s.k;
            uint32_t start = k_arg(k, ARG_BUFFER, type, false), last = k_arg(k, ARG_BUFFER, type, true);
            VRef carry[3], next[3], end[3];
            for (int c = 0; c < 3; c++) {
                KInst inst = inst_new(KI_CARRY, type);
                inst.a = k_load(k, start, kidx_add(k, s.i, kidx_const(k, c)), VREF_NONE);
                carry[c] = kernel_inst(k, inst);
            }
            next[0] = carry[1];
            next[1] = carry[2];
            next[2] = k_op(k, type == DT_BOOL ? OP_XOR : OP_ADD, type, carry[0], k_load(k, s.x, s.at, VREF_NONE), VREF_NONE);
            for (int c = 0; c < 3 && dtype_is_float(type) && n % 2; c++) /* long enough for strips */
                next[2] = k_op(k, OP_SIN, type, next[2], VREF_NONE, VREF_NONE);
            for (int c = 0; c < 3; c++) {
                KInst inst = inst_new(KI_NEXT, type);
                inst.a = carry[c];
                inst.b = next[c];
                end[c] = kernel_inst(k, inst);
            }
            k_store(k, s.y, s.at, carry[1], VREF_NONE);
            for (int c = 0; c < 3; c++)
                k_store(k, last, kidx_add(k, kidx_mul(k, s.i, kidx_const(k, 3)), kidx_const(k, c)), end[c], VREF_NONE);
            size_t bytes = dtype_bytes(type), all = (size_t)(m * n);
            CheckArg args[] = {{.data = filled(type, all + 1, true), .bytes = all * bytes},
                               {.data = filled(type, all + 1, true), .bytes = all * bytes},
                               {.value = m},
                               {.value = n},
                               {0},
                               {.data = filled(type, (size_t)m + 2, true), .bytes = (size_t)(m + 2) * bytes},
                               {.data = filled(type, (size_t)m * 3, true), .bytes = (size_t)m * 3 * bytes}};
            check_kernel(k, args, "carries");
            for (size_t a = 0; a < sizeof args / sizeof *args; a++)
                os_free((void *)(uintptr_t)args[a].data);
        }
}

Test(emit_reduce, scatter)
{
    static const DType types[] = {DT_F32, DT_F16, DT_I8, DT_I64, DT_BOOL};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int mode = SCATTER_SET; mode <= SCATTER_MIN; mode++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                if (types[t] == DT_BOOL && mode != SCATTER_SET)
                    continue;
                enum { ROWS = 19, N = 23, OUT = 7 };
                Shape2 s = shape(types[t], types[t], ROWS, N, layout, layout == 0);
                Kernel *k = s.k;
                uint32_t where = k_arg(k, ARG_BUFFER, DT_I64, false), fault = k_arg(k, ARG_FAULT, DT_I64, true);
                KInst bound = inst_new(KI_BOUND, DT_I64), scatter = inst_new(KI_SCATTER, types[t]);
                bound.a = k_load(k, where, s.at, VREF_NONE);
                bound.idx = kidx_const(k, OUT);
                bound.arg = fault;
                bound.imm = 5;
                VRef in = kernel_inst(k, bound);
                scatter.a = k_load(k, s.x, s.at, VREF_NONE);
                scatter.arg = s.y;
                scatter.mode = (uint8_t)mode;
                scatter.idx = kidx_add(k, kidx_mul(k, kidx_value(k, in), kidx_const(k, ROWS)), s.i);
                kernel_inst(k, scatter);
                int64_t *index = os_alloc(ROWS * N * 8), no_fault = 0;
                for (int i = 0; i < ROWS * N; i++)
                    index[i] = (int64_t)(next_random() % (2 * OUT)) - OUT;
                size_t bytes = dtype_bytes(types[t]);
                CheckArg args[] = {{.data = filled(types[t], ROWS * N, true), .bytes = ROWS * N * bytes},
                                   {.data = filled(types[t], ROWS * OUT, true), .bytes = ROWS * OUT * bytes},
                                   {.value = ROWS},
                                   {.value = N},
                                   {0},
                                   {.data = index, .bytes = ROWS * N * 8},
                                   {.data = &no_fault, .bytes = 8}};
                check_kernel(k, args, "scatter");
                os_free((void *)(uintptr_t)args[0].data);
                os_free((void *)(uintptr_t)args[1].data);
                os_free(index);
            }
}

/* Of `columns` points of x (0: no axis) to the same place each, so that tasks share out the places: all shares, one, three at a time. */
static void check_shares(DType t, ScatterMode mode, int64_t columns, int64_t n, int64_t out, bool fixed)
{
    Kernel *k = kernel_new(&arena);
    uint32_t x = k_arg(k, ARG_BUFFER, t, false), y = k_arg(k, ARG_BUFFER, t, true), where = k_arg(k, ARG_BUFFER, DT_I32, false);
    uint32_t fault = k_arg(k, ARG_FAULT, DT_I64, true), sizes[3];
    const int64_t size[3] = {columns, n, out};
    IRef of[3];
    for (int i = 0; i < 3; i++) {
        sizes[i] = k_arg(k, ARG_SIZE, DT_I64, false);
        of[i] = fixed ? kidx_const(k, size[i]) : kidx_arg(k, sizes[i]);
    }
    k_arg(k, ARG_SCRATCH, DT_U8, true);
    IRef i = columns ? kidx_axis(k, k_axis(k, AXIS_X, of[0], columns)) : kidx_const(k, 0), row = columns ? of[0] : kidx_const(k, 1);
    k->vec_axis = columns ? 0 : UINT32_MAX;
    IRef j = kidx_axis(k, k_axis(k, AXIS_R, of[1], n));
    KInst bound = inst_new(KI_BOUND, DT_I64), scatter = inst_new(KI_SCATTER, t), wide = inst_new(KI_OP, DT_I64);
    wide.op = OP_CAST;
    wide.a = k_load(k, where, j, VREF_NONE);
    bound.a = kernel_inst(k, wide);
    bound.idx = of[2];
    bound.arg = fault;
    bound.imm = 5;
    VRef in = kernel_inst(k, bound);
    scatter.a = k_load(k, x, kidx_add(k, kidx_mul(k, j, row), i), VREF_NONE);
    scatter.arg = y;
    scatter.mode = (uint8_t)mode;
    scatter.idx = kidx_add(k, kidx_mul(k, kidx_value(k, in), row), i);
    kernel_inst(k, scatter);
    size_t bytes = dtype_bytes(t) * (size_t)(columns ? columns : 1);
    int32_t *index = os_alloc((size_t)n * 4 + 8);
    for (int64_t p = 0; p < n; p++)
        index[p] = (int32_t)((int64_t)(next_random() % (uint64_t)(2 * out + 2 * !fixed)) - out - !fixed); /* some are out of range */
    int64_t no_fault = 0;
    char what[96];
    snprintf(what, sizeof what, "scatter of %s mode %d, %d to %d places of %d, fixed %d", dtype_name(t), mode, (int)n, (int)out,
             (int)columns, fixed);
    CheckArg args[REF_ARGS] = {{.data = filled(t, (size_t)n * bytes / dtype_bytes(t), true), .bytes = (size_t)n * bytes},
                               {.data = filled(t, (size_t)out * bytes / dtype_bytes(t), true), .bytes = (size_t)out * bytes},
                               {.data = index, .bytes = (size_t)n * 4},
                               {.data = &no_fault, .bytes = 8},
                               {.value = columns},
                               {.value = n},
                               {.value = out}};
    check_kernel(k, args, what);
    os_free((void *)(uintptr_t)args[0].data);
    os_free((void *)(uintptr_t)args[1].data);
    os_free(index);
}

Test(emit_reduce, scatter_shares)
{
    static const struct {
        int64_t n, out;
    } sizes[] = {{1, 1}, {63, 2}, {64, 7}, {65, 300}, {200, 70}, {1000, 5000}};
    static const DType types[] = {DT_F32, DT_F16, DT_I8, DT_F64, DT_BOOL, DT_I64};
    static const int64_t columns[] = {0, 1, 3, 19, 70};
    for (size_t at = 0; at < 4 * sizeof sizes / sizeof *sizes; at++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
            DType t = types[(at + c) % (sizeof types / sizeof *types)];
            check_shares(t, t == DT_BOOL ? SCATTER_SET : (ScatterMode)(at % 4), columns[c], sizes[at / 4].n, sizes[at / 4].out,
                         (at + c) & 1);
        }
}

/* values of every level in one body: rank-0 loads, row loads, hoisted expressions, an index loaded
 * through r */
Test(emit_reduce, levels)
{
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (int split = 0; split < 2; split++) {
            Shape2 s = shape(DT_F32, DT_F32, 18, 75, layout, false);
            Kernel *k = s.k;
            k->split = split;
            uint32_t w = k_arg(k, ARG_BUFFER, DT_F32, false), b = k_arg(k, ARG_BUFFER, DT_I64, false);
            VRef one = k_op(k, OP_EXP, DT_F32, k_load(k, w, kidx_const(k, 3), VREF_NONE), VREF_NONE, VREF_NONE);
            VRef per_x = k_op(k, OP_MUL, DT_F32, k_load(k, w, s.i, VREF_NONE), one, VREF_NONE);
            VRef per_r = k_load(k, w, kidx_value(k, k_load(k, b, s.j, VREF_NONE)), VREF_NONE);
            VRef x = k_load(k, s.x, s.at, VREF_NONE);
            VRef v = k_op(k, OP_ADD, DT_F32, k_op(k, OP_MUL, DT_F32, x, per_r, VREF_NONE), per_x, VREF_NONE);
            VRef sum = k_reduce(k, OP_REDUCE_SUM, DT_F32, v);
            VRef centred = k_op(k, OP_SUB, DT_F32, v, sum, VREF_NONE);
            VRef most = k_reduce(k, OP_REDUCE_MAX, DT_F32, centred);
            VRef invariant = k_reduce(k, OP_REDUCE_SUM, DT_F32, one);
            VRef end = k_op(k, OP_ADD, DT_F32, k_op(k, OP_ADD, DT_F32, sum, most, VREF_NONE), invariant, VREF_NONE);
            k_store(k, s.y, s.i, end, VREF_NONE);
            int64_t index[75];
            for (int i = 0; i < 75; i++)
                index[i] = i % 18;
            CheckArg args[] = {{.data = filled(DT_F32, 18 * 75, false), .bytes = 18 * 75 * 4},
                               {.data = filled(DT_F32, 18, false), .bytes = 18 * 4},
                               {.value = 18},
                               {.value = 75},
                               {0},
                               {.data = filled(DT_F32, 18, false), .bytes = 18 * 4},
                               {.data = index, .bytes = sizeof index}};
            check_kernel(k, args, layout == VEC_R ? "levels, lanes along r" : "levels");
            os_free((void *)(uintptr_t)args[0].data);
            os_free((void *)(uintptr_t)args[1].data);
            os_free((void *)(uintptr_t)args[5].data);
        }
}

/* ---- few rows below a page, tile by tile ---- */

static Emitted rows_folded(DType t, int cpu, int bits)
{
    char text[256];
    const char *name = dtype_name(t);
    snprintf(text, sizeof text,
             "kernel (a0 %s, a1 %s out) for i < 64, j < 32, k < 32; v0 = load a0[i*1024 + j + k*32]; v1 = fold max k (v0); store a1[i*32 + "
             "j] = v1",
             name, name);
    Kernel *k;
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text);
    JitOptions o = setting_options((Setting){bits, 1, MATH_FAST, cpu});
    Emitted out;
    schedule_kernel(k, &(CudaTarget){0});
    cr_assert_eq(llvm_emit_host(k, "rows", &o, true, &out), ST_OK, "%s", fail_message());
    return out;
}

/* Signs and NaN of 32 points are a register each, as the maximum is: LLVM makes no trees of them, whose leaves wait on the stack. */
Test(emit_reduce, maxima_of_many_points_stay_in_registers)
{
    for (int bits = 256; bits <= 512; bits *= 2)
        for (int t = 0; t < 2; t++) {
            Emitted out = rows_folded(t ? DT_F64 : DT_F32, bits == 512 ? CPU_V4 : CPU_V3, bits);
            object_check_stack(out.assembly, 128);
            free_emitted(&out);
        }
}

/* Rows of four lines are asked for, those of the next i; two lines are a pair, which comes together. */
Test(emit_reduce, tiles_of_few_rows_ask_for_the_next_ones)
{
    static const DType types[] = {DT_F64, DT_I64, DT_F32, DT_I32};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        Emitted out = rows_folded(types[t], CPU_V3, 256);
        int asked = occurrences("prefetch", out.assembly);
        cr_expect(dtype_bytes(types[t]) == 8 ? asked >= 32 : !asked, "%s: %d lines\n%s", dtype_name(types[t]), asked, out.assembly);
        free_emitted(&out);
    }
}

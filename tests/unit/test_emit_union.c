/*
 * Kernels of several products that have their left operand in common (jit/fuse/union.c), in each of the ways in which products are made:
 * rows and columns around tiles, tasks with tiles of several products, sizes as constants and as arguments, sums of one block and of
 * several, an operand that is computed where it is packed, and what follows each sum.
 */
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"

TestSuite(emit_union, .init = setup, .fini = teardown);

typedef struct Case {
    DType t;
    int64_t m, n[3], k;
    bool turned, prologue, fixed;
} Case;

/* x [m, k], then the matrices, as they lie or turned; results: sums, relu(sum + bias), the greater of twice the sum and its negation. */
static void check(Case c)
{
    Str text;
    const char *t = dtype_name(c.t), *size[5];
    static const char letter[] = "ijklm";
    str_init(&text, &arena);
    const int64_t sizes[5] = {c.m, c.n[0], c.n[1], c.n[2], c.k};
    for (int i = 0; i < 5; i++)
        size[i] = c.fixed ? arena_printf(&arena, "%lld", (long long)sizes[i]) : arena_printf(&arena, "s%d", 8 + i);
    str_printf(&text, "kernel (a0 %s, a1 %s, a2 %s, a3 %s, a4 %s, a5 %s out, a6 %s out, a7 %s out", t, t, t, t, t, t, t, t);
    for (int i = 0; i < 5; i++)
        str_printf(&text, ", s%d", 8 + i);
    str_printf(&text, ") for");
    for (int i = 0; i < 5; i++) {
        str_printf(&text, "%s %c < %s", i == 0 ? "" : i == 2 || i == 3 ? " or" : ",", letter[i], size[i]);
        if (!c.fixed)
            str_printf(&text, " ~%d", 64 - __builtin_clzll((uint64_t)sizes[i]));
    }
    int v = 0, x, sum[3];
    str_printf(&text, "\n  v%d = load a0[i*%s + m]\n", v++, size[4]);
    if (c.prologue) {
        str_printf(&text, "  v%d = neg v%d\n", v, v - 1);
        v++;
    }
    x = v - 1;
    for (int p = 0; p < 3; p++) {
        if (c.turned)
            str_printf(&text, "  v%d = load a%d[%c*%s + m]\n", v++, 1 + p, letter[1 + p], size[4]);
        else
            str_printf(&text, "  v%d = load a%d[m*%s + %c]\n", v++, 1 + p, size[1 + p], letter[1 + p]);
        str_printf(&text, "  v%d = fold dot m (v%d, v%d)", v, x, v - 1);
        if (dtype_is_float(c.t))
            str_printf(&text, " order chain block 256");
        sum[p] = v++;
        str_printf(&text, "\n");
    }
    str_printf(&text, "  v%d = load a4[k]\n  v%d = add v%d v%d\n  v%d = relu v%d\n", v, v + 1, sum[1], v, v + 2, v + 1);
    str_printf(&text, "  v%d = add v%d v%d\n  v%d = neg v%d\n  v%d = maximum v%d v%d\n", v + 3, sum[2], sum[2], v + 4, sum[2], v + 5, v + 3,
               v + 4);
    str_printf(&text, "  store a5[i*%s + j] = v%d\n  store a6[i*%s + k] = v%d\n  store a7[i*%s + l] = v%d\n", size[1], sum[0], size[2],
               v + 2, size[3], v + 5);
    Kernel *k;
    Str again;
    CudaTarget host = {0};
    cr_assert_eq(kernel_parse(text.text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text.text);
    str_init(&again, &arena);
    kernel_print(k, &again);
    cr_assert_str_eq(text.text, again.text);
    schedule_kernel(k, &host);
    size_t bytes = dtype_bytes(c.t),
           count[8] = {(size_t)(c.m * c.k), (size_t)(c.k * c.n[0]), (size_t)(c.k * c.n[1]), (size_t)(c.k * c.n[2]),
                       (size_t)c.n[1],      (size_t)(c.m * c.n[0]), (size_t)(c.m * c.n[1]), (size_t)(c.m * c.n[2])};
    CheckArg args[13] = {{0}};
    for (int a = 0; a < 8; a++)
        args[a] = (CheckArg){.data = filled(c.t, count[a], false), .bytes = count[a] * bytes};
    for (int i = 0; i < 5; i++)
        args[8 + i].value = sizes[i];
    check_kernel(k, args, text.text);
    for (int a = 0; a < 8; a++)
        os_free((void *)(uintptr_t)args[a].data);
}

/* Rows, columns and steps for each way: direct; strips; dots; packed, of one block and of two. */
static const Case shapes[] = {
    {.m = 5, .n = {7, 3, 17}, .k = 9},
    {.m = 17, .n = {33, 2, 1}, .k = 12},
    {.m = 2, .n = {131, 3, 2}, .k = 260},
    {.m = 3, .n = {17, 2, 9}, .k = 70, .turned = true},
    {.m = 9, .n = {35, 1, 3}, .k = 65, .prologue = true},
    {.m = 15, .n = {3, 33, 1}, .k = 270, .prologue = true},
    {.m = 10, .n = {2, 2, 34}, .k = 300, .turned = true, .prologue = true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* `number`: every other shape has its sizes as arguments, another one for the next dtype. */
static void each_shape(DType t, size_t number)
{
    for (size_t i = 0; i < SHAPES; i++) {
        Case c = shapes[i];
        c.t = t;
        c.fixed = (i + number) & 1;
        check(c);
    }
}

Test(emit_union, of_f32)
{
    each_shape(DT_F32, 0);
    each_shape(DT_F32, 1);
}

Test(emit_union, of_f64) { each_shape(DT_F64, 0); }
Test(emit_union, of_bf16) { each_shape(DT_BF16, 1); }
Test(emit_union, of_i8) { each_shape(DT_I8, 0); }
Test(emit_union, of_i64) { each_shape(DT_I64, 1); }

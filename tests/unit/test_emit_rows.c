/* FORM_LOOPS whose rows are put together, cut or turned: short ones side by side, windows with edges, elements that are read again, planes that
 * become a last axis, rows of expected lengths, squares; against the reference executor. */
#include "jit/kernel_text.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/unit/check_text.h"

TestSuite(emit_rows, .init = setup, .fini = teardown);

/* Rows of a few elements, whose lanes run along two axes (the directive `joined`). */
static void check_short_rows(DType t, int64_t rows, int64_t c, bool fixed)
{
    static const char *const reads[] = {"i*%ld + j", "i*-%ld + j + %ld", "i*-%ld + j*-1 + %ld", "i*%ld + j*2", "i*%ld + j"};
    const int64_t step[] = {c, c, c, 2 * c, c + 3}, last[] = {0, (rows - 1) * c, rows * c - 1, 0, 0}, all = rows * c;
    const char *name = dtype_name(t), *size = fixed ? arena_printf(&arena, "%ld", (long)rows) : "s4", *arg = fixed ? "" : ", s4";
    for (int r = 0; r < 5; r++) {
        if (!fixed && last[r])
            continue;
        const char *at = arena_printf(&arena, reads[r], (long)step[r], (long)last[r]);
        const char *op = t == DT_F32 || t == DT_F64 ? "v5 = exp v4" : "v5 = relu v4";
        check_text(arena_printf(&arena,
                                "kernel (a0 %s, a1 %s, a2 %s, a3 %s out%s) for i < %s, j < %ld; v0 = load a0[%s]; v1 = load a1[j]; "
                                "v2 = sub v0 v1; v3 = load a2[i]; v4 = mul v2 v3; %s; store a3[i*%ld + j] = v5",
                                name, name, name, name, arg, size, (long)c, at, r % 2 ? op : "v5 = relu v4", (long)c),
                   t, (int64_t[]){step[r] * rows + 1, c, rows, all}, 4, rows);
        check_text(arena_printf(&arena, "kernel (a0 %s, a1 %s out) for i < %ld, j < %ld; v0 = load a0[%s]; store a1[i*%ld + j] = v0", name,
                                name, (long)rows, (long)c, at, (long)c),
                   t, (int64_t[]){step[r] * rows + 1, all}, 2, rows);
    }
    check_text(
        arena_printf(&arena,
                     "kernel (a0 %s, a1 %s, a2 %s out) for i < 3, j < %ld, k < %ld; v0 = load a0[i*%ld + j*%ld + k]; v1 = load a1[i*%ld "
                     "+ k]; v2 = add v0 v1; store a2[i*%ld + j*%ld + k] = v2",
                     name, name, name, (long)rows, (long)c, (long)all, (long)c, (long)c, (long)all, (long)c),
        t, (int64_t[]){3 * all, 3 * c, 3 * all}, 3, rows);
}

Test(emit_rows, short_rows)
{
    static const int64_t lengths[] = {2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 31, 70};
    static const int64_t rows[] = {0, 1, 5, 37, 128};
    static const DType dtypes[] = {DT_F32, DT_U8, DT_BF16, DT_F64, DT_I64};
    for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++)
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
            for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
                if (t == 0 || (c + n + t) % 4 == 0)
                    check_short_rows(dtypes[t], rows[n], lengths[c], (c + n) % 3 != 0);
    check_text("kernel (a0 i64 out) for i < 37, j < 4; v0 = index i; v1 = index j; v2 = mul v0 v1; store a0[i*4 + j] = v2", DT_I64,
               (int64_t[]){148}, 1, 0);
}

/* Heavy bodies on rows of any length, planned to be short: one kernel, whose launches join rows or do not (the directive `join_below`). */
static void check_rows_by_size(DType t, int64_t rows, int64_t c)
{
    const char *name = dtype_name(t);
    const int64_t sizes[] = {rows, c, c + 2}, all = rows * c, wide = rows * (c + 2), twice = wide + c;
    check_sizes(
        arena_printf(&arena,
                     "kernel (a0 %s, a1 %s, a2 %s, a3 %s, a4 %s out, s5, s6, s7) for i < s5 ~10, j < s6 ~6; v0 = load a0[i*s6 + j]; "
                     "v1 = load a1[j]; v2 = mul v0 v1; v3 = load a2[i]; v4 = sub v2 v3; v5 = exp v4; v6 = load a3[i*s7 + j]; "
                     "v7 = mul v5 v6; store a4[i*s6 + j] = v7",
                     name, name, name, name, name),
        t, (int64_t[]){all, c, rows, wide, all}, 5, sizes, 3);
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s out, s2, s3, s4) for i < s2 ~10, j < s3 ~6; v0 = load a0[i*s4 + j*2]; v1 = exp v0; "
                             "v2 = index i; v3 = index j; v4 = mul v2 v3; v5 = cast v4 : %s; v6 = add v1 v5; store a1[i*s3 + j] = v6",
                             name, name, name),
                t, (int64_t[]){twice, all}, 2, sizes, 3);
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s, a2 %s out, s3, s4) for i < 3, j < s3 ~10, k < s4 ~6; v0 = load a0[i*s3*s4 + j*s4 + k]; "
                             "v1 = load a1[i*s4 + k]; v2 = add v0 v1; v3 = exp v2; store a2[i*s3*s4 + j*s4 + k] = v3",
                             name, name, name),
                t, (int64_t[]){3 * all, 3 * c, 3 * all}, 3, sizes, 2);
}

Test(emit_rows, short_rows_by_size)
{
    static const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 31, 43, 44, 45, 70};
    static const int64_t rows[] = {0, 1, 5, 37, 128};
    static const DType dtypes[] = {DT_F32, DT_F64, DT_BF16, DT_F16};
    for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++)
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
            check_rows_by_size(dtypes[(c + n) % 3 ? (c + n) % 4 : 0], rows[n], lengths[c]);
}

/* Windows of 3 x 3 of images of h x w with an edge of one, `stride` apart: their maxima and sums, of sizes that are arguments or constants. */
static void check_windows(DType t, int64_t h, int64_t w, int stride, bool fixed)
{
    const char *name = dtype_name(t), *sum = dtype_is_float(t) ? " order lanes 64 block 16384" : "";
    const int64_t oh = h ? (h - 1) / stride + 1 : 0, ow = w ? (w - 1) / stride + 1 : 0, sizes[] = {oh, ow, h, w};
    char size[4][24];
    for (int i = 0; i < 4; i++)
        snprintf(size[i], sizeof size[i], fixed ? "%ld" : "s%ld", fixed ? (long)sizes[i] : 2L + i);
    const char *rows = size[0], *columns = size[1], *high = size[2], *wide = size[3];
    for (int max = 0; max < 2; max++)
        check_sizes(
            arena_printf(&arena,
                         "kernel (a0 %s, a1 %s out, s2, s3, s4, s5) for i < 2, j < %s%s, k < %s%s, l < 3, m < 3; v0 = index k*%d + m; "
                         "v1 = ge v0 1; v2 = index %s + 1; v3 = lt v0 v2; v4 = and v1 v3; v5 = index j*%d + l; v6 = gt v5 0; "
                         "v7 = index %s; v8 = le v5 v7; v9 = and v6 v8; v10 = and v4 v9; "
                         "v11 = load a0[i*%s*%s + j*%s*%d + l*%s + k*%d + m + %s*-1 + -1] where v10; v12 = where v10 v11 1; "
                         "v13 = fold %s l m (v12)%s; store a1[i*%s*%s + j*%s + k] = v13",
                         name, name, rows, fixed ? "" : " ~4", columns, fixed ? "" : " ~7", stride, wide, stride, high, high, wide, wide,
                         stride, wide, stride, wide, max ? "max" : "sum", max ? "" : sum, rows, columns, columns),
            t, (int64_t[]){2 * h * w, 2 * oh * ow}, 2, sizes, 4);
}

Test(emit_rows, windows)
{
    static const int64_t widths[] = {0, 1, 2, 15, 16, 17, 33, 66, 112, 131};
    static const DType dtypes[] = {DT_F32, DT_U8, DT_F64, DT_BF16, DT_I32};
    for (int c = 0; c < (int)(sizeof widths / sizeof *widths); c++)
        for (int stride = 1; stride <= 3; stride++)
            check_windows((c + stride) % 2 ? DT_F32 : dtypes[(c + stride) / 2 % 5], (c + stride) % 7, widths[c], stride, (c + stride) % 3);
}

/* Rows of n elements (j + past) / d of rows of m: all of them; where others allow it; those that lie inside, of rows from the second on. */
static void check_repeated(DType t, int64_t n, int64_t d, int64_t past)
{
    const char *name = dtype_name(t);
    const long m = (n - 1 + past) / d + 1, few = m > 3 ? m - 2 : 1;
    check_text(arena_printf(&arena,
                            "kernel (a0 %s, a1 %s out) for i < 3, j < %ld; v0 = load a0[i*%ld + (j + %ld)/%ld]; store a1[i*%ld + j] = v0",
                            name, name, (long)n, m, (long)past, (long)d, (long)n),
               t, (int64_t[]){3 * m, 3 * n}, 2, 0);
    check_text(arena_printf(&arena,
                            "kernel (a0 %s, a1 %s, a2 %s out) for i < 3, j < %ld; v0 = load a1[i*%ld + j]; v1 = gt v0 0; "
                            "v2 = load a0[i*%ld + (j + %ld)/%ld] where v1; v3 = where v1 v2 v0; store a2[i*%ld + j] = v3",
                            name, name, name, (long)n, (long)n, m, (long)past, (long)d, (long)n),
               t, (int64_t[]){3 * m, 3 * n, 3 * n}, 3, 0);
    for (int some = 0; some < 2; some++)
        check_text(arena_printf(
                       &arena,
                       "kernel (a0 %s, a1 %s out) for i < 3, j < %ld; v0 = index j + %ld; v1 = ge v0 %ld; v2 = lt v0 %ld; v3 = and v1 v2; "
                       "v4 = index (j + %ld)%%%ld; v5 = lt v4 %d; v6 = and v3 v5; v7 = index i; v8 = ge v7 1; v9 = and v6 v8; "
                       "v10 = load a0[i*%ld + (j + %ld)/%ld + %ld] where v9; v11 = where v9 v10 1; store a1[i*%ld + j] = v11",
                       name, name, (long)n, (long)past, (long)d, (few + 1) * (long)d, (long)past, (long)d, some ? 1 : (int)d, few,
                       (long)past, (long)d, -1 - few, (long)n),
                   t, (int64_t[]){2 * few, 3 * n}, 2, 0);
}

Test(emit_rows, repeated)
{
    static const int64_t lengths[] = {1, 7, 16, 31, 64, 112, 131};
    static const int64_t divisors[] = {2, 3, 4, 8, 16};
    static const DType dtypes[] = {DT_F32, DT_U8, DT_F64, DT_BF16, DT_I32};
    for (int n = 0; n < (int)(sizeof lengths / sizeof *lengths); n++)
        for (int d = 0; d < (int)(sizeof divisors / sizeof *divisors); d++)
            for (int64_t past = 0; past < 4; past++)
                check_repeated((n + d + past) % 2 ? DT_F32 : dtypes[(n + d + past) / 2 % 5], lengths[n], divisors[d], past);
}

/*
 * Images of h x w: to each element comes what flows to the windows of 3 x 3, two apart and with an edge of one, that it is in and whose maximum it
 * is, of which each axis has one or two: tiles that no edge cuts have code for either number of rows of windows.
 */
static void check_elements(DType t, int64_t h, int64_t w)
{
    const char *name = dtype_name(t);
    const int64_t rows = h / 2, columns = w / 2, windows = rows * columns;
    const long last[] = {(long)(2 * rows), (long)(2 * columns)};
    Str text;
    str_init(&text, &arena);
    str_printf(&text,
               "kernel (a0 %s, a1 %s, a2 %s, a3 %s out) for i < 3, j < %ld, k < %ld; v0 = index j + 1; v1 = lt v0 %ld; v2 = ge v0 2; "
               "v3 = lt v0 %ld; v4 = and v2 v3; v5 = index (j + 1)%%2 + 2; v6 = lt v5 3; v7 = and v4 v6; v8 = index k + 1; v9 = lt v8 %ld; "
               "v10 = ge v8 2; v11 = lt v8 %ld; v12 = and v10 v11; v13 = index (k + 1)%%2 + 2; v14 = lt v13 3; v15 = and v12 v14; "
               "v16 = load a0[i*%ld + j*%ld + k]",
               name, name, name, name, (long)h, (long)w, last[0], last[0] + 2, last[1], last[1] + 2, (long)(h * w), (long)w);
    VRef v = 17, sum = VREF_NONE;
    for (int of = 0; of < 4; of++) {
        const int row = of / 2 ? 7 : 1, column = of % 2 ? 15 : 9;
        const long at = -(of / 2 ? (long)columns : 0) - of % 2;
        str_printf(&text,
                   "; v%u = and v%d v%d; v%u = load a1[i*%ld + ((j + 1)/2)*%ld + (k + 1)/2 + %ld] where v%u; v%u = lt v16 v%u; "
                   "v%u = load a2[i*%ld + ((j + 1)/2)*%ld + (k + 1)/2 + %ld] where v%u; v%u = where v%u 0 v%u; v%u = where v%u v%u 0",
                   v, row, column, v + 1, (long)windows, (long)columns, at, v, v + 2, v + 1, v + 3, (long)windows, (long)columns, at, v,
                   v + 4, v + 2, v + 3, v + 5, v, v + 4);
        v += 6;
        if (sum != VREF_NONE)
            str_printf(&text, "; v%u = add v%u v%u", v, sum, v - 1), v++;
        sum = v - 1;
    }
    str_printf(&text, "; store a3[i*%ld + j*%ld + k] = v%u", (long)(h * w), (long)w, sum);
    check_text(text.text, t, (int64_t[]){3 * h * w, 3 * windows, 3 * windows, 3 * h * w}, 4, 0);
}

Test(emit_rows, elements_of_windows)
{
    static const int64_t widths[] = {6, 15, 16, 33, 48, 66, 112, 131};
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F64, DT_F16, DT_I32};
    for (int c = 0; c < (int)(sizeof widths / sizeof *widths); c++)
        for (int t = 0; t < (int)(sizeof dtypes / sizeof *dtypes); t++)
            check_elements(dtypes[t], 2 + (c + t) % 7, widths[c]);
}

/* Planes become the last axis, of so many points, beside a number of each plane; and of those inside an edge alone. */
static void check_planes(DType t, int64_t of, int64_t rows, int64_t n, int64_t apart)
{
    const char *name = dtype_name(t);
    const long all = (long)(of * apart);
    check_text(
        arena_printf(&arena,
                     "kernel (a0 %s, a1 %s, a2 %s out) for i < %ld, j < %ld, k < %ld; v0 = load a0[k*%ld + i*%ld + j]; v1 = load a1[k]; "
                     "v2 = add v0 v1; store a2[i*%ld + j*%ld + k] = v2",
                     name, name, name, (long)rows, (long)n, (long)of, (long)apart, (long)n, (long)(n * of), (long)of),
        t, (int64_t[]){all, of, of * rows * n}, 3, 0);
    check_text(arena_printf(&arena,
                            "kernel (a0 %s, a1 %s out) for i < %ld, j < %ld, k < %ld; v0 = index j; v1 = ge v0 1; v2 = load a0[k*%ld + "
                            "i*%ld + j] where v1; "
                            "v3 = where v1 v2 1; store a1[i*%ld + j*%ld + k] = v3",
                            name, name, (long)rows, (long)n, (long)of, (long)apart, (long)n, (long)(n * of), (long)of),
               t, (int64_t[]){all, of * rows * n}, 2, 0);
}

Test(emit_rows, planes_become_the_last_axis)
{
    static const int64_t lengths[] = {1, 5, 16, 67};
    static const DType dtypes[] = {DT_F32, DT_U8, DT_F64, DT_BF16, DT_I64};
    for (int64_t of = 2; of <= MOST_LISTS + 1; of++)
        for (int n = 0; n < (int)(sizeof lengths / sizeof *lengths); n++)
            check_planes(dtypes[((int)of + n) % 5], of, 3, lengths[n], 3 * lengths[n] + n % 2 * 5);
}

/* The rows of a kernel's elements: of a mod pattern, under a mask that may leave none of an element's lanes. */
static void check_in_turns(DType t, int64_t n, int64_t length)
{
    const char *name = dtype_name(t);
    check_text(
        arena_printf(
            &arena,
            "kernel (a0 %s, a1 %s, a2 %s out) for i < 5, j < %ld; v0 = load a1[i*%ld + j]; v1 = gt v0 0; v2 = index j + 1; "
            "v3 = ge v2 3; v4 = and v1 v3; v5 = load a0[i*%ld + (j + 1)%%%ld] where v4; v6 = where v4 v5 1; store a2[i*%ld + j] = v6",
            name, name, name, (long)n, (long)n, (long)length, (long)length, (long)n),
        t, (int64_t[]){5 * length, 5 * n, 5 * n}, 3, 0);
}

Test(emit_rows, elements_in_turns)
{
    static const int64_t lengths[] = {7, 16, 31, 64, 112};
    static const DType dtypes[] = {DT_F32, DT_U8, DT_F64, DT_BF16, DT_I32};
    for (int n = 0; n < (int)(sizeof lengths / sizeof *lengths); n++)
        for (int64_t of = 2; of < 5; of++)
            check_in_turns(dtypes[(n + of) % 5], lengths[n], of);
}

/* Rows of c points where `expected` are expected: concatenated, rolled, backwards, looked up, and folded either way. */
static void check_expected(DType t, int64_t rows, int64_t c, int64_t expected)
{
    const char *name = dtype_name(t), *order = t == DT_F32 || t == DT_F64 ? " order lanes 64 block 16384" : "";
    const int e = (int)expected, d = 3;
    const int64_t all = rows * c, both = rows * (c + d), sizes[] = {rows, c, d, c + d};
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s, a2 %s out, s3, s4 expects %d, s5 expects %d, s6 expects %d) for i < s3 ~18, j < s6 ~6; "
                             "v0 = index j; v1 = index s4; v2 = ge v0 v1; v3 = load a1[i*s5 + j + s4*-1] where v2; v4 = lt v0 v1; "
                             "v5 = load a0[i*s4 + j] where v4; v6 = where v4 v5 v3; store a2[i*s6 + j] = v6",
                             name, name, name, e, d, e + d),
                t, (int64_t[]){all, rows * d, both}, 3, sizes, 4);
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s out, s2, s3 expects %d, s4 int expects -1) for i < s2 ~18, j < s3 ~6; v0 = index s3; "
                             "v1 = index j + s4; v2 = ge v1 0; v3 = load a0[i*s3 + j + s4] where v2; v4 = lt v1 0; "
                             "v5 = load a0[i*s3 + j + s3 + s4] where v4; v6 = where v4 v5 v3; store a1[i*s3 + j] = v6",
                             name, name, e),
                t, (int64_t[]){all, all}, 2, (int64_t[]){rows, c, -1}, 3);
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s out, s2, s3 expects %d, s4 int) for i < s2 ~18, j < s3 ~6; "
                             "v0 = load a0[i*s3*-1 + j + s3*s4]; store a1[i*s3 + j] = v0",
                             name, name, e),
                t, (int64_t[]){all, all}, 2, (int64_t[]){rows, c, rows - 1}, 3);
    if (c == 0) /* there is no maximum */
        return;
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s out, s2, s3 expects %d) for i < s2 ~18, j < s3 ~6; v0 = load a0[i*s3 + j]; "
                             "v1 = fold sum j (v0)%s; v2 = fold max j (v0); v3 = add v1 v2; store a1[i] = v3",
                             name, name, e, order),
                t, (int64_t[]){all, rows}, 2, sizes, 2);
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s out, a2 shared, s3, s4 expects %d) for i < s4 ~6, j < s3 ~18; v0 = load a0[i + j*s4]; "
                             "v1 = fold sum j (v0)%s; store a1[i] = v1",
                             name, name, e, order),
                t, (int64_t[]){all, c, 0}, 3, sizes, 2);
    check_sizes(arena_printf(&arena,
                             "kernel (a0 %s, a1 %s out, s2, s3 expects %d) for i < s2 ~18, j < s3 ~6; v0 = load a0[i*s3 + j]; "
                             "v1 = fold argmax j (v0); v2 = cast v1 : %s; store a1[i] = v2",
                             name, name, e, name),
                t, (int64_t[]){all, rows}, 2, sizes, 2);
}

Test(emit_rows, expected_sizes)
{
    static const int64_t lengths[] = {0, 1, 3, 4, 29, 100}, rows[] = {0, 1, 200};
    static const DType dtypes[] = {DT_F32, DT_U8, DT_F64, DT_I64, DT_I32};
    for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++)
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
            check_expected(dtypes[(c + n) % 5], rows[n], lengths[c], lengths[c]);
            if (n == 2)
                check_expected(dtypes[(c + 2 * n) % 5], rows[n], lengths[c], (lengths[c] + 1) % 29);
        }
}

#ifndef CHECK_PTX
/* A launch of the sizes that are expected has the tasks of the kernel that has them as constants; one of others those of a kernel that expects none. */
Test(emit_rows, expected_sizes_choose)
{
    static const struct {
        const char *sizes, *row;
    } kinds[] = {{"s2, s3 expects 4", "s3"}, {"s2, s3", "4"}, {"s2, s3", "s3"}};
    const Setting s = {256, 1, MATH_STRICT, CPU_V3};
    int64_t tasks[3][2];
    CudaTarget host = {0};
    for (int kind = 0; kind < 3; kind++) {
        const char *row = kinds[kind].row;
        Kernel *k;
        const char *text = arena_printf(&arena,
                                        "kernel (a0 f32, a1 f32 out, %s) for i < s2 ~18, j < %s; v0 = load a0[i*%s + j]; "
                                        "store a1[i*%s + j] = v0",
                                        kinds[kind].sizes, row, row, row);
        cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s", fail_message());
        schedule_kernel(k, &host);
        CompiledKernel *code = compile_kernel(k, s);
        for (int other = 0; other < 2; other++) {
            void *args[] = {NULL, NULL, (void *)1001, (void *)(intptr_t)(4 + other)};
            tasks[kind][other] = launch_of(code, args).tasks[0];
        }
        kernel_table_release(code);
    }
    cr_expect_neq(tasks[1][0], tasks[2][0]);
    cr_expect_eq(tasks[0][0], tasks[1][0]);
    cr_expect_eq(tasks[0][1], tasks[2][1]);
}
#endif

/* Transposed inputs, which come in squares of registers where a block is whole, and the edges, which do not. */
Test(emit_rows, squares)
{
    static const int64_t sizes[][2] = {{64, 64}, {70, 70}, {16, 100}, {129, 33}, {40, 0}, {8, 16}};
    static const DType dtypes[] = {DT_F32, DT_F64, DT_BF16, DT_U8, DT_I32, DT_F16, DT_I64, DT_BOOL};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            int64_t n = sizes[s][0], m = sizes[s][1], of[] = {n * m, n * m, n * m, n * m};
            const char *name = dtype_name(dtypes[t]), *op = dtypes[t] == DT_BOOL ? "or" : "maximum";
            check_text(arena_printf(&arena,
                                    "kernel (a0 %s, a1 %s, a2 %s, a3 %s out) for i < %ld, j < %ld; v0 = load a0[j*%ld + i]; v1 = load "
                                    "a1[i*%ld + j]; v2 = %s v0 v1; v3 = load a2[j*%ld + i]; v4 = %s v2 v3; store a3[i*%ld + j] = v4",
                                    name, name, name, name, (long)n, (long)m, (long)n, (long)m, op, (long)n, op, (long)m),
                       dtypes[t], of, 4, 0);
            check_text(arena_printf(&arena,
                                    "kernel (a0 %s, a1 %s out, s2) for i < s2, j < 3, k < %ld; v0 = load a0[(j*%ld + k)*s2 + i]; store "
                                    "a1[(i*3 + j)*%ld + k] = v0",
                                    name, name, (long)m, (long)m, (long)m),
                       dtypes[t], (int64_t[]){3 * n * m, 3 * n * m}, 2, n);
        }
}

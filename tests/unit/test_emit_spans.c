/*
 * Spans of rows of a band (jit/llvm/cpu/spans.c): what makes such rows tells which columns are not zeros and leaves the others alone; what reads
 * them gets the same bits as if all were there; without a place to tell it all are.
 */
#include "jit/kernel_text.h"
#include "tests/support/slice.h"
#include "tests/unit/arena.h"
#include "tests/unit/kernel_ref.h"

TestSuite(emit_spans, .init = setup, .fini = teardown);

enum { BATCH = 2, ROWS = 600, COLUMNS = 1100, D = 20, BLOCK = 256, BLOCKS = 3, FAR = 64 };
enum { P_BYTES = BATCH * ROWS * COLUMNS * 4, POISON = 0x7f };

/* %s: which columns count */
static const char makes[] =
    "kernel (a0 f32, a1 f32, a2 f32, a3 f32 out band blocks 256, a4 spans of a3) for i < 2, j < 600, k < 1100, l < 20\n"
    "  v0 = index j\n  v1 = index k\n  v2 = sub v0 v1\n  v3 = %s\n"
    "  v4 = load a0[i*12000 + j*20 + l]\n  v5 = load a1[i*22000 + k*20 + l]\n"
    "  v6 = fold dot l (v4, v5) order chain block 256\n  v7 = where v3 v6 -inf\n  v8 = load a2[i*600 + j]\n"
    "  v9 = sub v7 v8\n  v10 = exp v9\n  store a3[i*660000 + j*1100 + k] = v10\n";
/* beside a product, its rows, summed up */
static const char *const reads[] = {
    "kernel (a0 f32, a1 f32, a2 f32 band blocks 256, a3 f32 out, a4 spans of a2) for i < 2, j < 600, k < 1100, l < 20\n"
    "  v0 = index j\n  v1 = index k\n  v2 = sub v0 v1\n  v3 = ge v2 -400\n"
    "  v4 = load a0[i*12000 + j*20 + l]\n  v5 = load a1[i*22000 + k*20 + l]\n"
    "  v6 = fold dot l (v4, v5) order chain block 256\n  v7 = load a2[i*660000 + j*1100 + k]\n  v8 = add v6 v7\n"
    "  v9 = where v3 v8 2\n  store a3[i*660000 + j*1100 + k] = v9\n",
    "kernel (a0 f32, a1 f32, a2 f32 band blocks 256, a3 f32 out, a4 spans of a2) for i < 2, j < 600, k < 20, l < 1100\n"
    "  v0 = load a2[i*660000 + j*1100 + l]\n  v1 = load a1[i*22000 + l*20 + k]\n  v2 = fold dot l (v0, v1) order chain block 256\n"
    "  store a3[i*12000 + j*20 + k] = v2\n",
    "kernel (a0 f32, a1 f32, a2 f32 band, a3 f32 out, a4 spans of a2, a5 shared) for i < 2, j < 1100, k < 20, l < 600\n"
    "  v0 = load a2[i*660000 + l*1100 + j]\n  v1 = load a0[i*12000 + l*20 + k]\n  v2 = fold dot l (v0, v1) order chain block 256\n"
    "  store a3[i*22000 + j*20 + k] = v2\n"};
static const char *const masks[] = {"ge v2 0", "ge v2 -300", "lt v2 -400", "ge v2 5000"};

static CompiledKernel *compiled(const char *text, const Kernel **k, Setting s)
{
    Kernel *parsed;
    cr_assert_eq(kernel_parse(text, &arena, &parsed), ST_OK, "%s in\n%s", fail_message(), text);
    parsed->vec_axis = 2;
    *k = parsed;
    return compile_kernel(parsed, s);
}

/* What lies outside of the spans is as it was, but near them; what is in them is as it is where all is there. */
static void check_made(const float *whole, const float *part, int64_t (*span)[2], const char *what)
{
    static const float zero;
    for (int64_t row = 0; row < BATCH * ROWS; row++) {
        const int64_t *s = span[row / ROWS * BLOCKS + row % ROWS / BLOCK];
        for (int64_t c = 0; c < COLUMNS; c++) {
            const float *want = &whole[row * COLUMNS + c], *got = &part[row * COLUMNS + c];
            const bool inside = c >= s[0] && c < s[1], far = c < s[0] - FAR || c >= s[1] + FAR;
            unsigned char as_it_was[sizeof *got];
            memset(as_it_was, POISON, sizeof as_it_was);
            cr_assert(!inside || same_bits(DT_F32, (const char *)want, (const char *)got), "%s: row %d, %d", what, (int)row, (int)c);
            cr_assert(inside || memcmp(want, &zero, sizeof zero) == 0, "%s: row %d: %d is none of the span", what, (int)row, (int)c);
            cr_assert(!far || memcmp(got, as_it_was, sizeof *got) == 0, "%s: row %d: %d is written", what, (int)row, (int)c);
        }
    }
}

static void check_spans(const char *mask, double bad, Setting s)
{
    const Kernel *k;
    char what[100];
    char *text = arena_printf(&arena, makes, mask);
    snprintf(what, sizeof what, "%s, %g, %d bits", mask, bad, s.bits);
    float *q = filled(DT_F32, BATCH * ROWS * D, false), *keys = filled(DT_F32, BATCH * COLUMNS * D, false);
    float *less = filled(DT_F32, BATCH * ROWS, false), *whole = os_alloc(P_BYTES), *part = os_alloc(P_BYTES);
    float *want = os_alloc(P_BYTES), *got = os_alloc(P_BYTES);
    int64_t span[BATCH * BLOCKS][2];
    less[ROWS + 300] = bad != 0 ? (float)bad : less[ROWS + 300]; /* in the second block of the second batch */
    keys[700 * D] = bad != 0 ? (float)bad : keys[700 * D];
    memset(part, POISON, P_BYTES);
    CompiledKernel *code = compiled(text, &k, s);
    cr_assert(launch_of(code, (void *[]){q, keys, less, part, NULL}).spans, "%s: rows are made without spans", what);
    run_code(code, (void *[]){q, keys, less, whole, NULL}, k, INT64_MAX / 2);
    run_code(code, (void *[]){q, keys, less, part, span}, k, 1);
    kernel_table_release(code);
    check_made(whole, part, span, what);
    cr_expect_eq(span[4][0] == 0 && span[4][1] == COLUMNS, bad != 0 && !(bad > 0), "%s: a row that is NaN is all there", what);
    cr_expect(span[0][1] - span[0][0] < COLUMNS, "%s: some columns are zeros", what);
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        const size_t bytes = i == 0 ? P_BYTES : (size_t)(BATCH * D * 4) * (i == 1 ? ROWS : COLUMNS);
        code = compiled(reads[i], &k, s);
        cr_assert(launch_of(code, (void *[]){q, keys, part, got, span, NULL}).spans, "%s: reader %zu does not heed spans", what, i);
        run_code(code, (void *[]){q, keys, whole, want, NULL, NULL}, k, INT64_MAX / 2);
        run_code(code, (void *[]){q, keys, part, got, span, NULL}, k, INT64_MAX / 2);
        for (size_t e = 0; e < bytes / sizeof *got; e++)
            cr_assert(same_bits(DT_F32, (char *)&want[e], (char *)&got[e]), "%s: reader %zu: %g at %zu, not %g", what, i, (double)got[e], e,
                      (double)want[e]);
        kernel_table_release(code);
    }
    float *all[] = {q, keys, less, whole, part, want, got};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        os_free(all[i]);
}

Test(emit_spans, columns_that_are_zeros_are_not_there)
{
    static const double bad[] = {0, INFINITY, NAN, -INFINITY};
    static const Setting each[] = {
        {512, 2, MATH_STRICT, CPU_HOST}, {256, 2, MATH_FAST, CPU_V3}, {128, 1, MATH_STRICT, CPU_HOST}, {128, 1, MATH_FAST, CPU_HOST}};
    uint64_t number = 0;
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
        for (size_t b = 0; b < sizeof bad / sizeof *bad; b++)
            for (size_t s = 0; s < sizeof each / sizeof *each; s++)
                if (slice_takes(number++))
                    check_spans(masks[m], bad[b], each[s]);
}

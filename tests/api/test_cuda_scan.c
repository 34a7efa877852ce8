/*
 * Running sums on a CUDA device (the software driver): in fast mode the interpreter's bits, which sums in the device's order then,
 * whatever is fused with them, for any length through one program, and from launch to launch, CUDA graphs included.
 */
#include "on_cuda.h"

static char warnings[WARNINGS];

static void use_cuda(void)
{
    kiln_set_log_sink(keep_warnings, warnings);
    CUDA_WITH("math", "fast", "test_memory", "exact", "strict", "1");
}

enum { MOST = 100000 };

static kiln_tensor *data(kiln_shape shape, int seed)
{
    static float x[MOST];
    int64_t n = 1;
    for (int a = 0; a < shape.rank; a++)
        n *= shape.dim[a];
    cr_assert(n <= MOST);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((i * 7919 + seed * 101) % 10007) * 0.001f - 5;
    return kiln_from(KILN_F32, shape, x);
}

typedef kiln_tensor *Program(kiln_tensor *x, int axis);

static kiln_tensor *alone(kiln_tensor *x, int axis) { return kiln_cumsum(x, axis); }
static kiln_tensor *fused(kiln_tensor *x, int axis) { return kiln_sub(kiln_cumsum(kiln_mul(x, kiln_scalar(0.5)), axis), kiln_neg(x)); }
static kiln_tensor *backwards(kiln_tensor *x, int axis)
{
    return kiln_flip(kiln_cumsum(kiln_flip(x, KILN_AXES(axis)), axis), KILN_AXES(axis));
}
static kiln_tensor *twice(kiln_tensor *x, int axis) { return kiln_cumsum(kiln_add(kiln_cumsum(x, axis), x), axis); }
static kiln_tensor *of_shares(kiln_tensor *x, int axis) { return kiln_cumsum(kiln_softmax(x, axis), axis); }
static kiln_tensor *beside_a_sum(kiln_tensor *x, int axis) { return kiln_add(kiln_cumsum(x, axis), kiln_sum(kiln_cumsum(x, axis))); }
static kiln_tensor *above_its_sum(kiln_tensor *x, int axis) /* the sum's loop reads the same and needs no running sum */
{
    return kiln_add(kiln_cumsum(x, axis), kiln_sum_axes(x, KILN_AXES(axis), true));
}
static kiln_tensor *above_its_sum_of_ints(kiln_tensor *x, int axis) { return above_its_sum(kiln_cast(x, KILN_I32), axis); }
static kiln_tensor *in_dtype(kiln_tensor *x, int axis, kiln_dtype dtype) { return kiln_cumsum(kiln_cast(x, dtype), axis); }
static kiln_tensor *in_f64(kiln_tensor *x, int axis) { return in_dtype(x, axis, KILN_F64); }
static kiln_tensor *in_f16(kiln_tensor *x, int axis) { return in_dtype(x, axis, KILN_F16); }
static kiln_tensor *in_bf16(kiln_tensor *x, int axis) { return in_dtype(x, axis, KILN_BF16); }
static kiln_tensor *in_bool(kiln_tensor *x, int axis) { return in_dtype(x, axis, KILN_BOOL); }
static Program *const programs[] = {alone,  fused,  backwards, twice,  of_shares, beside_a_sum, above_its_sum, above_its_sum_of_ints,
                                    in_f64, in_f16, in_bf16,   in_bool};
enum { PROGRAMS = sizeof programs / sizeof *programs };

static size_t read_bytes(kiln_tensor *x, void *to)
{
    size_t bytes = kiln_dtype_size(kiln_dtype_of(x)) * (size_t)kiln_numel(x);
    cr_assert(kiln_read(x, kiln_dtype_of(x), to, bytes) == KILN_OK, "%s", kiln_error_message());
    return bytes;
}

/* softmax takes approximate instructions: sums of its results are near those of the interpreter. */
static void expect_interp(int program, kiln_shape shape, int axis, int seed)
{
    static double want[MOST], got[MOST];
    kiln_scope *scope = kiln_scope_begin();
    set_option("mode", "interp");
    size_t bytes = read_bytes(programs[program](data(shape, seed), axis), want);
    set_option("mode", "jit");
    cr_assert_eq(read_bytes(programs[program](data(shape, seed), axis), got), bytes);
    if (programs[program] != of_shares)
        cr_assert(memcmp(got, want, bytes) == 0, "program %d, %d bytes", program, (int)bytes);
    else
        for (size_t i = 0; i < bytes / sizeof(float); i++)
            cr_assert_float_eq(((float *)got)[i], ((float *)want)[i], 1e-5, "element %zu", i);
    kiln_scope_end(scope);
}

static void expect_nothing_else(void)
{
    kiln_stats stats = stats_now();
    cr_assert_eq(stats.fallbacks, 0);
    cr_assert_str_eq(warnings, "");
}

Test(cuda_scan, equals_the_interpreter_in_every_program)
{
    static const struct {
        kiln_shape shape;
        int axis;
    } cases[] = {{{1, {1}}, 0},       {{1, {777}}, 0},      {{1, {40001}}, 0},   {{2, {3, 33000}}, 1}, {{2, {33, 130}}, 1},
                 {{2, {130, 33}}, 0}, {{3, {3, 70, 5}}, 1}, {{2, {1, 5000}}, 0}, {{2, {4, 6000}}, 1},  {{3, {3, 5, 8}}, 2}};
    use_cuda();
    for (int p = 0; p < PROGRAMS; p++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            expect_interp(p, cases[i].shape, cases[i].axis, p);
    expect_nothing_else();
}

/* Blocks that run at once wait for each other, as on a device. (One after another, the first does all.) */
Test(cuda_scan, blocks_that_run_at_once)
{
    static const char *const settings[] = {"together=3", "together=8,order=1", "together=8,order=2", "together=64,order=3,sms=16"};
    use_cuda();
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        cr_assert_eq(DRIVER(test_cuda_configure)(settings[s]), 0);
        for (int p = 0; p < PROGRAMS; p++) {
            expect_interp(p, (kiln_shape){1, {40001}}, 0, p);
            expect_interp(p, (kiln_shape){2, {3, 33000}}, 1, p);
            expect_interp(p, (kiln_shape){2, {4, 6000}}, 1, p);
        }
    }
    expect_nothing_else();
}

/* The general program takes any length: the first was long and the next are short, and the other way round. */
Test(cuda_scan, one_program_for_lines_of_any_length)
{
    static const int64_t n[2][5] = {{40000, 50001, 7, 1, 3000}, {9, 12, 36000, 4096, 0}};
    use_cuda();
    set_option("dynamic", "always");
    for (int order = 0; order < 2; order++) {
        kiln_stats before;
        for (int i = 0; i < 5; i++) {
            if (i == 1)
                kiln_get_stats(&before);
            expect_interp(order, (kiln_shape){1, {n[order][i]}}, 0, i);
        }
        kiln_stats after = stats_now();
        cr_expect_eq(after.compiles, before.compiles, "%d compiles", (int)(after.compiles - before.compiles));
    }
    expect_nothing_else();
}

/* Several blocks a line: what they told each other does not outlive the launch, in a CUDA graph either. */
Test(cuda_scan, again_and_again_in_a_graph)
{
    use_cuda();
    set_option("fuse", "0");
    test_cuda_counters before = counted();
    for (int run = 0; run < 6; run++)
        expect_interp(3, (kiln_shape){1, {40000}}, 0, run);
    cr_assert_geq(counted().graph_launches - before.graph_launches, 3);
    expect_nothing_else();
}

/* Graphs too large for one kernel: cut into several, with the interpreter's results. */
#include "api.h"

enum { ROWS = 8, COLUMNS = 16, N = ROWS * COLUMNS };

static kiln_tensor *start_values(void)
{
    float data[N];
    for (int i = 0; i < N; i++)
        data[i] = (float)((i * 37) % 101) * 0.03f - 1.5f;
    return kiln_from(KILN_F32, KILN_SHAPE(ROWS, COLUMNS), data);
}

/* `build` in strict mode, compiled and interpreted: the same bits. Kernels that ran. */
static int same_bits(kiln_tensor *(*build)(kiln_tensor *x))
{
    float got[N], want[N];
    kiln_stats stats;
    kiln_scope *scope = kiln_scope_begin();
    set_option("math", "strict");
    set_option("mode", "interp");
    cr_assert(kiln_read(build(start_values()), KILN_F32, want, sizeof want) == KILN_OK, "%s", kiln_error_message());
    set_option("mode", "jit");
    kiln_reset_stats();
    cr_assert(kiln_read(build(start_values()), KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(&stats);
    cr_assert(stats.fallbacks == 0);
    for (int i = 0; i < N; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof got[i]) == 0, "element %d: %.9g, not %.9g", i, (double)got[i],
                  (double)want[i]);
    kiln_scope_end(scope);
    return (int)stats.kernels;
}

static kiln_tensor *softmaxes(kiln_tensor *x)
{
    for (int i = 0; i < 120; i++)
        x = kiln_softmax(kiln_mul(x, kiln_scalar(9)), 1);
    return x;
}

static kiln_tensor *rows_and_columns(kiln_tensor *x)
{
    kiln_tensor *y = x;
    for (int i = 0; i < 40; i++)
        y = kiln_add(kiln_softmax(y, i % 2), x);
    return y;
}

/* Each value is used again 50 steps later: a cut stores many. */
static kiln_tensor *long_memory(kiln_tensor *x)
{
    enum { STEPS = 900, BACK = 50 };
    kiln_tensor *at[STEPS];
    for (int i = 0; i < STEPS; i++)
        at[i] = i == 0 ? x : kiln_sub(kiln_mul(at[i - 1], kiln_scalar(0.5)), at[i < BACK ? 0 : i - BACK]);
    return at[STEPS - 1];
}

/* Pieces of three lengths, some of them computed: a few kernels, however many pieces. */
Test(large, concat_of_5000)
{
    enum { PIECES = 5000 };
    static kiln_tensor *piece[PIECES];
    static float got[PIECES * 3 * 4];
    kiln_stats stats;
    kiln_scope *scope = kiln_scope_begin();
    int64_t rows = 0;
    for (int i = 0; i < PIECES; i++) {
        float data[12];
        for (int j = 0; j < 12; j++)
            data[j] = (float)(i * 12 + j);
        piece[i] = kiln_from(KILN_F32, KILN_SHAPE(1 + i % 3, 4), data);
        if (i % 5 == 0)
            piece[i] = kiln_neg(piece[i]);
        rows += 1 + i % 3;
    }
    kiln_tensor *all = kiln_concat(piece, PIECES, 0);
    kiln_reset_stats();
    cr_assert(kiln_read(all, KILN_F32, got, (size_t)rows * 4 * sizeof *got) == KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(&stats);
    cr_assert(stats.fallbacks == 0);
    const float *at = got;
    for (int i = 0; i < PIECES; i++)
        for (int j = 0; j < (1 + i % 3) * 4; j++, at++)
            cr_assert(*at == (float)(i * 12 + j) * (i % 5 == 0 ? -1 : 1), "piece %d, element %d: %g", i, j, (double)*at);
    kiln_scope_end(scope);
}

Test(large, softmaxes_one_after_another)
{
    int kernels = same_bits(softmaxes);
    cr_assert(kernels <= 6, "%d kernels", kernels);
}

Test(large, softmaxes_along_rows_and_columns)
{
    int kernels = same_bits(rows_and_columns);
    cr_assert(kernels <= 45, "%d kernels", kernels);
}

Test(large, values_that_are_used_much_later)
{
    same_bits(long_memory);
}

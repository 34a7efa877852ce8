/*
 * Short rows of any length (jit/expected.c): a program made at rows of four, which has code of its own for them, at those, at rows of other
 * lengths and at few of them, with the interpreter's bits. Programs made at long rows are others; nothing else is compiled again.
 */
#include "tests/mutation/harness.h"

typedef struct Rows {
    int64_t n, length;
    int op;
} Rows;

/* Rows of which some end with NaN, and have no other. */
static kiln_tensor *ends_in_nan(kiln_tensor *x, int64_t length)
{
    kiln_tensor *last = kiln_ge(kiln_arange(KILN_I64, 0, (double)length, 1), kiln_scalar((double)length - 1));
    return kiln_where(last, kiln_sqrt(x), x);
}

static kiln_tensor *make(void *rows_)
{
    const Rows *r = rows_;
    kiln_tensor *x = plain_f32(KILN_SHAPE(r->n, r->length), 7), *both[] = {x, plain_f32(KILN_SHAPE(r->n, 3), 8)},
                *row = plain_f32(KILN_SHAPE(r->length), 9);
    switch (r->op) {
    case 0: return kiln_concat(both, 2, 1);
    case 1: return kiln_roll(x, 1, 1);
    case 2: return kiln_flip(x, KILN_AXES(0));
    case 3: return kiln_sum_axes(x, KILN_AXES(0), false);
    case 4: return kiln_sum_axes(x, KILN_AXES(1), false);
    case 5: return kiln_argmax_axis(x, 1, false);
    case 6: return kiln_softmax(x, 1);
    case 7: return kiln_cumsum(x, 1);
    case 8: return kiln_max_axes(ends_in_nan(x, r->length), KILN_AXES(1), false);
    case 9: return kiln_add(kiln_mul(x, row), plain_f32(KILN_SHAPE(r->length), 10));
    case 10: return kiln_exp(kiln_sub(x, row));
    case 11: return kiln_normalize(x, KILN_AXES(1), 1e-5);
    case 12: return kiln_stack((kiln_tensor *[]){x, kiln_neg(x)}, 2, 2);
    default: return NULL;
    }
}

static void lengths(void)
{
    enum { OPS = 13, TIMES = 2, CLASSES = 4 /* long and short rows, many and few of them */ };
    static const int64_t sizes[][2] = {{600, 700}, {5000, 4},  {4097, 5}, {4096, 4}, {5, 1},
                                       {999, 32},  {1200, 33}, {8000, 3}, {7, 4},    {300, 170}};
    set_option("cache", "off");
    set_option("dynamic", "always");
    set_option("math", "strict");
    for (int op = 0; op < OPS; op++) {
        int64_t before = stats_now().compiles, compiles = 0;
        for (size_t i = 0; i < TIMES * (sizeof sizes / sizeof *sizes); i++) {
            const int64_t *size = sizes[i % (sizeof sizes / sizeof *sizes)];
            Rows r = {size[0], size[1], op};
            CHECK(same_as_interp(make, &r, "short rows"), "op %d on %d rows of %d", op, (int)r.n, (int)r.length);
            if (i == 1 && op < 11) /* those of normalize are no others, a stack has rows of two */
                CHECK(stats_now().compiles == before + 2, "op %d: short rows had the program of long ones", op);
            if (i < sizeof sizes / sizeof *sizes)
                compiles = stats_now().compiles;
        }
        CHECK(compiles - before <= CLASSES, "op %d was compiled %d times", op, (int)(compiles - before));
        CHECK(stats_now().compiles == compiles, "op %d was compiled again", op);
    }
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"lengths", lengths}};
    return run_tests("short_rows", tests, 1, argc, argv);
}

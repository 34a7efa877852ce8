/*
 * Products of bf16 with math=fast: the order of their sums (ir/orders.def) follows from the length alone on one machine, whichever instruction it is
 * that of. So each element is the same bits in a large product and in a thin one, behind what computes a factor, with what follows and from the
 * interpreter.
 */
#include "api.h"

enum { MOST = 1 << 19 };

static uint64_t state = 5;

/* Numbers around 1, a few that are smaller than any normal one and zeros of both signs. */
static kiln_tensor *input(int64_t rows, int64_t columns)
{
    static float data[MOST];
    static const float odd[] = {0.0f, -0.0f, 1e-39f, -1e-39f, 3e-20f};
    cr_assert_leq(rows * columns, MOST);
    for (int64_t i = 0; i < rows * columns; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(state >> 33);
        data[i] = r % 64 < 5 ? odd[r % 64] : (float)(r >> 8 & 0xffff) / 32768 - 1;
    }
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(rows, columns), data), KILN_BF16);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

static const uint16_t *bits_of(kiln_tensor *x, size_t *n)
{
    static uint16_t data[2][MOST];
    static int turn;
    turn = !turn;
    *n = (size_t)kiln_numel(x);
    cr_assert_leq(*n, (size_t)MOST);
    cr_assert(kiln_read(x, KILN_BF16, data[turn], *n * 2) == KILN_OK, "%s", kiln_error_message());
    return data[turn];
}

static void same(kiln_tensor *a, kiln_tensor *b, const char *what, const int64_t *size)
{
    size_t n, m;
    const uint16_t *x = bits_of(a, &n), *y = bits_of(b, &m);
    cr_assert_eq(n, m);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(x[i], y[i], "%s of %d x %d x %d: element %zu is %04x and %04x", what, (int)size[0], (int)size[1], (int)size[2], i,
                     x[i], y[i]);
}

static kiln_tensor *rows(kiln_tensor *x, int64_t from, int64_t to)
{
    return kiln_slice(x, 2, (const kiln_range[]){{from, to, 1}, {0, kiln_dim(x, 1), 1}});
}

/* a as it is, or transposed in memory. */
static kiln_tensor *laid(kiln_tensor *a, bool turned)
{
    if (!turned)
        return a;
    kiln_tensor *t = kiln_transpose(a);
    cr_assert(kiln_eval(t) == KILN_OK, "%s", kiln_error_message());
    return kiln_transpose(t);
}

static const int64_t sizes[][3] = {{1, 1, 1},   {3, 5, 2},    {40, 64, 3},  {33, 37, 31},    {20, 130, 257}, {64, 96, 256},
                                   {40, 1, 65}, {1, 200, 33}, {8, 300, 70}, {130, 100, 515}, {150, 7, 511},  {50, 50, 0}};

/* Results are kept in one tensor, whatever option is set next. */
static kiln_tensor *now(kiln_tensor *x)
{
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

Test(pairs, an_element_has_one_order)
{
    set_option("math", "fast");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int turned = 0; turned < 4; turned++) {
            const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *a = input(m, k), *b = input(k, n), *bias = input(1, n);
            kiln_tensor *x = laid(a, turned & 1), *y = laid(b, turned & 2), *whole = now(kiln_matmul(x, y));
            for (int64_t from = 0; from < m; from += m / 3 + 1)
                same(rows(whole, from, from + 1), kiln_matmul(rows(x, from, from + 1), y), "a row", sizes[s]);
            same(kiln_transpose(kiln_matmul(kiln_transpose(y), kiln_transpose(x))), whole, "turned", sizes[s]);
            same(kiln_matmul(kiln_neg(kiln_neg(x)), y), whole, "a factor that is computed", sizes[s]);
            same(kiln_matmul(kiln_relu(x), y), kiln_matmul(now(kiln_relu(x)), y), "relu", sizes[s]);
            same(kiln_matmul(kiln_cast(kiln_sin(kiln_cast(x, KILN_F32)), KILN_BF16), y),
                 kiln_matmul(now(kiln_cast(kiln_sin(kiln_cast(x, KILN_F32)), KILN_BF16)), y), "a factor that is rounded", sizes[s]);
            same(kiln_maximum(kiln_matmul(x, y), bias), kiln_maximum(whole, bias), "with a maximum", sizes[s]);
            set_option("mode", "interp");
            kiln_tensor *by_hand = now(kiln_matmul(x, y));
            set_option("mode", "eager");
            kiln_tensor *eager = now(kiln_matmul(x, y));
            set_option("mode", "jit");
            same(by_hand, whole, "the interpreter's", sizes[s]);
            same(eager, whole, "the eager one", sizes[s]);
            kiln_scope_end(scope);
        }
}

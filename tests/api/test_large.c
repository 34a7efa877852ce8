/* Graphs too large for one kernel: cut into several, with the interpreter's results; indices and sizes that
 * are small as they are stored and 2^40 long when written out. */
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
    kiln_scope *scope = kiln_scope_begin();
    set_option("math", "strict");
    set_option("mode", "interp");
    cr_assert(kiln_read(build(start_values()), KILN_F32, want, sizeof want) == KILN_OK, "%s", kiln_error_message());
    set_option("mode", "jit");
    kiln_reset_stats();
    cr_assert(kiln_read(build(start_values()), KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
    kiln_stats stats = stats_now();
    cr_assert(stats.fallbacks == 0);
    for (int i = 0; i < N; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof got[i]) == 0, "element %d: %.9g, not %.9g", i, (double)got[i], (double)want[i]);
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
    kiln_stats stats = stats_now();
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

Test(large, values_that_are_used_much_later) { same_bits(long_memory); }

/* Elements move to other places with each round, and its indices use those of the round after it twice. */
static kiln_tensor *moved(kiln_tensor *x, int rounds)
{
    for (int i = 0; i < rounds; i++)
        x = kiln_relu(kiln_sub(kiln_reshape(kiln_transpose(x), KILN_SHAPE(6, 10)), kiln_scalar(0.125)));
    return x;
}

static void expect_moved(const char *dynamic)
{
    enum { ROUNDS = 40 };
    float data[60];
    double want[60], turned[60];
    for (int i = 0; i < 60; i++) {
        data[i] = (float)((i * 37) % 61) * 0.25f;
        want[i] = (double)data[i];
    }
    set_option("dynamic", dynamic);
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(6, 10), data), *y = moved(x, ROUNDS);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 60; i++)
            turned[i] = want[i % 6 * 10 + i / 6];
        for (int i = 0; i < 60; i++)
            want[i] = turned[i] > 0.125 ? turned[i] - 0.125 : 0;
    }
    expect(__LINE__, y, KILN_F32, KILN_SHAPE(6, 10), 0, want, 60);
}

API_TEST(large, reshapes_of_transposes) { expect_moved("auto"); }

API_TEST(large, reshapes_of_transposes_of_any_size) { expect_moved("always"); }

/* The same behind a matrix product, up whose epilogue the indices follow from its own axes. */
API_TEST(large, reshapes_of_transposes_of_a_product)
{
    enum { ROUNDS = 14 };
    float a[36], b[60];
    double want[60] = {0}, turned[60];
    for (int i = 0; i < 36; i++)
        a[i] = (float)(i % 7 - 2);
    for (int i = 0; i < 60; i++)
        b[i] = (float)(i % 11 - 4);
    for (int i = 0; i < 60; i++)
        for (int k = 0; k < 6; k++)
            want[i] += (double)a[i / 10 * 6 + k] * (double)b[k * 10 + i % 10];
    kiln_tensor *y = kiln_matmul(kiln_from(KILN_F32, KILN_SHAPE(6, 6), a), kiln_from(KILN_F32, KILN_SHAPE(6, 10), b));
    for (int round = 0; round < ROUNDS; round++) {
        y = kiln_reshape(kiln_transpose(y), KILN_SHAPE(6, 10));
        for (int i = 0; i < 60; i++)
            turned[i] = want[i % 6 * 10 + i / 6];
        memcpy(want, turned, sizeof want);
    }
    for (int i = 0; i < 60; i++)
        want[i] = -want[i];
    expect(__LINE__, kiln_neg(y), KILN_F32, KILN_SHAPE(6, 10), 0.0, want, 60);
}

/* Sizes n, n*n, (n*n)*(n*n), ... */
API_TEST(large, sizes_that_are_long_products)
{
    set_option("dynamic", "always");
    for (int n = 0; n <= 1; n++) {
        kiln_tensor *y = kiln_from(KILN_F32, KILN_SHAPE(n), (float[]){1});
        for (int i = 0; i < 40; i++)
            y = kiln_flatten(kiln_matmul(kiln_unsqueeze(y, 1), kiln_unsqueeze(y, 0)));
        cr_assert(kiln_dim(y, 0) == n);
        float got = 0;
        cr_assert(kiln_read(y, KILN_F32, &got, (size_t)n * sizeof got) == KILN_OK, "%s", kiln_error_message());
        cr_assert(got == (float)n);
    }
}

enum { PART = 8192 }; /* pending nodes that are computed as one */

static kiln_tensor *negated(kiln_tensor *x, int times)
{
    for (int i = 0; i < times; i++)
        x = kiln_neg(x);
    return x;
}

/* The first part ends before, in or after a constant and what makes it, which no node uses yet: it is left to the next part. */
Test(large, what_needs_no_data_where_a_part_ends)
{
    static char text[1 << 16];
    for (int n = PART - 10; n <= PART + 1; n++)
        for (int data = 0; data < 2; data++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = data ? F32(KILN_SHAPE(2), 0, 1) : kiln_arange(KILN_F32, 0, 2, 1);
            kiln_tensor *c = kiln_full(KILN_F32, KILN_SHAPE(2), 3), *six = kiln_mul(kiln_scalar(2), kiln_scalar(3));
            kiln_tensor *y = negated(kiln_add(kiln_add(negated(x, n), c), six), 10);
            int sign = n % 2 ? -1 : 1;
            cr_assert(kiln_explain(y, text, sizeof text, NULL) == KILN_OK, "%d: %s", n, kiln_error_message());
            cr_assert(kiln_eval_many((kiln_tensor *[]){six, y}, 2) == KILN_OK, "%d: %s", n, kiln_error_message());
            EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 9, 9 + sign);
            cr_assert(!data || !kiln_is_evaluated(c), "%d", n);
            EXPECT(c, KILN_F32, KILN_SHAPE(2), 0, 3, 3);
            kiln_scope_end(scope);
        }
}

/* More constants than a part has nodes, alone and beside data. */
Test(large, thousands_of_constants)
{
    enum { PIECES = 9000 };
    static kiln_tensor *piece[PIECES];
    static float got[PIECES];
    for (int every = 1; every < PIECES; every *= 16) {
        kiln_scope *scope = kiln_scope_begin();
        for (int i = 0; i < PIECES; i++) {
            kiln_tensor *x = F32(KILN_SHAPE(1), (float)i);
            piece[i] = every > 1 && i % every == 0 ? kiln_add(x, kiln_scalar(1)) : kiln_full(KILN_F32, KILN_SHAPE(1), i + 1);
        }
        cr_assert(kiln_read(kiln_concat(piece, PIECES, 0), KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < PIECES; i++)
            cr_assert(got[i] == (float)(i + 1), "piece %d: %g", i, (double)got[i]);
        kiln_scope_end(scope);
    }
}

/* Results above the caches are written past them, by tiles that begin at no whole line where pieces do; y[i] = x[i - by]^2. */
static void moved_and_squared(int64_t n, int64_t by, bool rolled)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_arange(KILN_F32, 0, (double)n, 1);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    kiln_tensor *part[] = {kiln_slice_axis(x, 0, 0, by, 1), x}, *y = rolled ? kiln_roll(x, by, 0) : kiln_concat(part, 2, 0);
    const void *data;
    cr_assert(kiln_data(kiln_square(y), &data) == KILN_OK, "%s", kiln_error_message());
    const float *got = data;
    for (int64_t i = 0; i < (rolled ? n : n + by); i++) {
        float want = (float)(i >= by ? i - by : rolled ? n - by + i : i);
        cr_assert(got[i] == want * want, "%d elements by %d: element %d: %g", (int)n, (int)by, (int)i, (double)got[i]);
    }
    kiln_scope_end(scope);
}

Test(large, pieces_beyond_the_caches)
{
    static const char *const dynamic[] = {"never", "always"};
    for (int k = 0; k < 4; k++) {
        set_option("dynamic", dynamic[k / 2]);
        for (int64_t by = 1; by < 16; by += 5)
            moved_and_squared((1 << 22) + 40 + by, by, k % 2);
    }
}

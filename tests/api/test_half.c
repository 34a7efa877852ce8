/*
 * f16 and bf16 with math=fast: an intermediate may stay unrounded while nobody can tell. Each of these looks at one value in
 * several ways; all of them must see what is stored.
 */
#include "api.h"
#include "tests/support/slice.h"

static const kiln_dtype halves[] = {KILN_F16, KILN_BF16};

enum { ROWS = 5, COLUMNS = 21, NUMEL = ROWS * COLUMNS };

static uint64_t state;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static kiln_tensor *input(kiln_dtype dtype)
{
    float data[NUMEL];
    for (int i = 0; i < NUMEL; i++)
        data[i] = (float)below(4001) / 1000 - 2;
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(ROWS, COLUMNS), data), dtype);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

/* x through views that end where they began; fused code chooses between their parts. */
static kiln_tensor *around(kiln_tensor *x)
{
    kiln_tensor *padded = kiln_pad(kiln_roll(x, 2, 1), 2, (const kiln_padding[]){{1, 2}, {0, 3}}, kiln_int(0));
    return kiln_roll(kiln_slice(padded, 2, (const kiln_range[]){{1, 1 + ROWS, 1}, {0, COLUMNS, 1}}), -2, 1);
}

/* All elements of x are 0; of what is not finite, NaN. */
static void expect_zeros(kiln_tensor *x, const char *what, int seed)
{
    float got[NUMEL];
    kiln_tensor *y = kiln_cast(x, KILN_F32);
    cr_assert(kiln_read(y, KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < NUMEL; i++)
        cr_assert(got[i] == 0 || isnan(got[i]), "%s is off by %g at %d (seed %d)", what, (double)got[i], i, seed);
}

API_TEST(half, a_cast_sees_what_is_stored)
{
    for (int d = 0; d < 2; d++) {
        state = 1;
        kiln_tensor *y = kiln_erf(input(halves[d])), *c = kiln_cast(y, KILN_F32);
        kiln_tensor *at_once = kiln_sub(c, y);
        cr_assert(kiln_eval_many((kiln_tensor *[]){y, c, at_once}, 3) == KILN_OK, "%s", kiln_error_message());
        expect_zeros(at_once, "cast(y) - y", 1);
        expect_zeros(kiln_sub(c, y), "cast(y) - y, of what is stored", 1);
    }
}

API_TEST(half, a_view_sees_what_everybody_sees)
{
    for (int d = 0; d < 2; d++) {
        state = 2;
        kiln_tensor *y = kiln_erf(input(halves[d]));
        expect_zeros(kiln_sub(y, around(y)), "y - pad(y, 0)", 2);
        kiln_tensor *z = kiln_exp(input(halves[d]));
        expect_zeros(kiln_sub(kiln_flip(z, KILN_AXES(1)), kiln_flip(z, KILN_AXES(1))), "flip(z) - flip(z)", 2);
        kiln_tensor *row = kiln_sum_axes(z, KILN_AXES(1), true), *wide = kiln_cast(row, KILN_F32);
        expect_zeros(kiln_sub(kiln_expand(row, KILN_SHAPE(ROWS, COLUMNS)), kiln_expand(wide, KILN_SHAPE(ROWS, COLUMNS))), "a sum", 2);
    }
}

/* 2048 + 0.5 is 2048 in f16: nobody reads what is in between but the next op, which takes the f32, unless it is asked for too. */
Test(half, a_chain_rounds_once)
{
    kiln_tensor *x = kiln_cast(F32(KILN_SHAPE(1), 0.5f), KILN_F16), *big = kiln_cast(F32(KILN_SHAPE(1), 2048), KILN_F16);
    cr_assert(kiln_eval_many((kiln_tensor *[]){x, big}, 2) == KILN_OK, "%s", kiln_error_message());
    EXPECT(kiln_sub(kiln_add(kiln_add(x, big), x), big), KILN_F16, KILN_SHAPE(1), 0, 1);
    kiln_tensor *sum = kiln_add(x, big), *rest = kiln_sub(kiln_add(sum, x), big);
    cr_assert(kiln_eval_many((kiln_tensor *[]){sum, rest}, 2) == KILN_OK, "%s", kiln_error_message());
    EXPECT(rest, KILN_F16, KILN_SHAPE(1), 0, 0.5);
}

/* ---- a random search ---- */

enum { MOST = 14 };

static kiln_tensor *unary(kiln_tensor *x)
{
    switch (below(10)) {
    case 0: return kiln_erf(x);
    case 1: return kiln_exp(kiln_sin(x));
    case 2: return kiln_tanh(x);
    case 3: return kiln_sin(x);
    case 4: return kiln_silu(x);
    case 5: return kiln_sqrt(kiln_abs(x));
    case 6: return kiln_softplus(x);
    case 7: return kiln_square(x);
    case 8: return kiln_floor(kiln_mul(x, kiln_int(3)));
    default: return kiln_mul(x, kiln_scalar(0.3));
    }
}

static kiln_tensor *binary(kiln_tensor *x, kiln_tensor *y)
{
    switch (below(7)) {
    case 0: return kiln_add(x, y);
    case 1: return kiln_sub(x, y);
    case 2: return kiln_mul(x, y);
    case 3: return kiln_maximum(x, y);
    case 4: return kiln_atan2(x, y);
    case 5: return kiln_where(kiln_lt(x, y), x, kiln_neg(y));
    default: return kiln_hypot(x, y);
    }
}

static kiln_tensor *moved(kiln_tensor *x)
{
    kiln_shape shape = KILN_SHAPE(ROWS, COLUMNS);
    switch (below(8)) {
    case 0: return kiln_flip(x, KILN_AXES(1));
    case 1: return kiln_roll(x, 3, 1);
    case 2: return around(x);
    case 3: return kiln_reshape(kiln_transpose(x), shape);
    case 4: return kiln_expand(kiln_sum_axes(x, KILN_AXES(1), true), shape);
    case 5: return kiln_expand(kiln_max_axes(x, KILN_AXES(0), true), shape);
    case 6: return kiln_cumsum(x, 1);
    default: return kiln_softmax(x, 1);
    }
}

static void grow(kiln_tensor **node, int n)
{
    for (int i = 2; i < n; i++) {
        kiln_tensor *x = node[below((uint32_t)i)], *y = node[below((uint32_t)i)];
        uint32_t kind = below(10);
        node[i] = kind < 4 ? unary(x) : kind < 7 ? binary(x, y) : moved(x);
    }
}

/* Some nodes of a random graph are looked at in some ways, all in one evaluation. */
static void look(int seed)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_dtype dtype = halves[seed & 1];
    state = (uint64_t)seed;
    kiln_tensor *node[MOST] = {input(dtype), input(dtype)}, *out[3 * MOST];
    int n = 4 + (int)below(MOST - 4), n_out = 0, n_zero = 0;
    grow(node, n);
    for (int i = 2; i < n; i++) {
        uint32_t ways = below(8);
        if (ways & 1) {
            out[n_out++] = kiln_sub(kiln_cast(node[i], KILN_F32), node[i]);
            out[n_out++] = kiln_sub(node[i], around(node[i]));
        }
        if (ways & 2)
            out[n_out++] = kiln_sub(kiln_cast(around(node[i]), KILN_F32), kiln_cast(kiln_neg(kiln_neg(node[i])), KILN_F32));
    }
    n_zero = n_out;
    for (int i = 2; i < n; i++) /* what is stored decides what fusion does */
        if (below(3) == 0 && n_out < 3 * MOST)
            out[n_out++] = node[i];
    cr_assert(!n_out || kiln_eval_many(out, n_out) == KILN_OK, "%s (seed %d)", kiln_error_message(), seed);
    for (int i = 0; i < n_zero; i++)
        expect_zeros(out[i], "one value seen twice", seed);
    kiln_tensor *last = node[n - 1], *wide = kiln_cast(last, KILN_F32);
    cr_assert(kiln_eval_many((kiln_tensor *[]){last, wide}, 2) == KILN_OK, "%s (seed %d)", kiln_error_message(), seed);
    expect_zeros(kiln_sub(wide, last), "cast(y) beside y", seed);
    kiln_scope_end(scope);
}

API_TEST(half, random_graphs_have_one_value_each)
{
    const char *more = getenv("KILN_TEST_SEEDS");
    int seeds = more ? atoi(more) : 40;
    for (int seed = 0; seed < seeds; seed++)
        if (more || slice_takes((uint64_t)seed))
            look(seed);
}

/* Where each value is stored nothing may stay unrounded: fused code gives what the interpreter gives, bit for bit. */
Test(half, stored_everywhere_is_what_eager_computes)
{
    set_option("rewrite", "0");
    for (int seed = 1000; seed < 1150; seed++) {
        if (!slice_takes((uint64_t)seed))
            continue;
        uint16_t got[2][MOST][NUMEL];
        int n = 0;
        for (int fused = 0; fused < 2; fused++) {
            kiln_scope *scope = kiln_scope_begin();
            set_option("mode", fused ? "jit" : seed % 3 ? "interp" : "eager");
            kiln_dtype dtype = halves[seed & 1];
            state = (uint64_t)seed;
            kiln_tensor *node[MOST] = {input(dtype), input(dtype)};
            n = 4 + (int)below(MOST - 4);
            for (int i = 2; i < n; i++) { /* one op a node: what it makes on the way would be no output */
                kiln_tensor *x = node[below((uint32_t)i)], *y = node[below((uint32_t)i)];
                uint32_t op = below(9);
                node[i] = op == 0   ? kiln_erf(x)
                          : op == 1 ? kiln_tanh(x)
                          : op == 2 ? kiln_add(x, y)
                          : op == 3 ? kiln_mul(x, y)
                          : op == 4 ? kiln_atan2(x, y)
                          : op == 5 ? kiln_cumsum(x, 1)
                          : op == 6 ? kiln_sin(x)
                          : op == 7 ? kiln_flip(x, KILN_AXES(0))
                                    : kiln_sub(x, y);
            }
            cr_assert(kiln_eval_many(node, n) == KILN_OK, "%s", kiln_error_message());
            for (int i = 0; i < n; i++)
                cr_assert(kiln_read(node[i], dtype, got[fused][i], sizeof got[0][0]) == KILN_OK, "%s", kiln_error_message());
            kiln_scope_end(scope);
        }
        for (int i = 0; i < n; i++)
            for (int j = 0; j < NUMEL; j++)
                cr_assert(got[0][i][j] == got[1][i][j], "seed %d, node %d, element %d: %04x and %04x", seed, i, j, (unsigned)got[0][i][j],
                          (unsigned)got[1][i][j]);
    }
}

/* Scans whose step is elementwise: one kernel each on a CPU, with the bits of their steps taken one by one, in every mode. */
#include "each_mode.h"

#include <stdio.h>

enum { MOST = 5, LONGEST = 9 }; /* values of each kind, steps */

typedef struct Recipe {
    uint32_t seed;
    int n_carry, n_xs, n_ys;
    int64_t n; /* values are [2, n], or [] where it is 0 */
    kiln_dtype dtype[MOST], xs_dtype[MOST];
    kiln_tensor *captured, *column; /* [n], [2, 1] */
} Recipe;

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static kiln_shape shape_of(const Recipe *r) { return r->n ? KILN_SHAPE(2, r->n) : KILN_SHAPE(); }

static kiln_tensor *given(kiln_dtype dtype, kiln_shape shape)
{
    kiln_tensor *x = kiln_uniform(KILN_F32, shape, -9, 9);
    x = dtype == KILN_BOOL ? kiln_gt(x, 0) : kiln_cast(x, dtype);
    kiln_check(kiln_eval(x));
    return x;
}

static kiln_tensor *some_op(const Recipe *r, uint32_t *state, kiln_tensor *a, kiln_tensor *b, kiln_tensor *i)
{
    switch (next(state) % 14) {
    case 0: return kiln_add(a, b);
    case 1: return kiln_sub(kiln_cast(a, KILN_F32), kiln_cast(b, KILN_F32));
    case 2: return kiln_mul(kiln_cast(a, KILN_I32), kiln_cast(b, KILN_I32));
    case 3: return kiln_where(kiln_gt(a, b), a, b);
    case 4: return kiln_sin(kiln_cast(a, KILN_F32));
    case 5: return kiln_add(a, r->captured);
    case 6: return kiln_mul(kiln_cast(a, KILN_F32), r->column);
    case 7: return kiln_add(a, kiln_cast(kiln_remainder(i, 3), KILN_F32));
    case 8: return kiln_le(a, b);
    case 9: return kiln_sqrt(kiln_abs(kiln_cast(a, KILN_F64)));
    case 10: return kiln_maximum(a, b);
    case 11: return kiln_div(kiln_cast(a, KILN_BF16), kiln_add(kiln_cast(kiln_square(kiln_cast(b, KILN_F32)), KILN_BF16), 1));
    case 12: return kiln_sub(kiln_cast(a, KILN_F32), kiln_uniform(KILN_F32, shape_of(r), 0, 1));
    default: return kiln_neg(kiln_cast(b, KILN_F32));
    }
}

/* Where a draw is one of a loop, each step has its own: what is done step by step has others. */
static bool draws(const Recipe *r)
{
    uint32_t state = r->seed;
    bool any = false;
    for (int made = 1 + (int)(next(&state) % 8); made > 0; made--) {
        (void)next(&state);
        (void)next(&state);
        any |= next(&state) % 14 == 12;
    }
    return any;
}

static void step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Recipe *r = user;
    uint32_t state = r->seed;
    kiln_tensor *value[40];
    int n = 0, made = 1 + (int)(next(&state) % 8);
    for (int k = 0; k < r->n_carry; k++)
        value[n++] = carry[k];
    for (int k = 0; k < r->n_xs; k++)
        value[n++] = x[k];
    for (; made > 0; made--) {
        kiln_tensor *a = value[next(&state) % (uint32_t)n], *b = value[next(&state) % (uint32_t)n];
        value[n++] = some_op(r, &state, a, b, i);
    }
    for (int k = 0; k < r->n_carry; k++) { /* some as they are, some another's */
        kiln_tensor *v = next(&state) % 4 ? value[n - 1 - (int)(next(&state) % 2)] : value[next(&state) % (uint32_t)n];
        carry_out[k] = r->dtype[k] == KILN_BOOL && kiln_dtype_of(v) != KILN_BOOL ? kiln_gt(v, 0) : kiln_cast(v, r->dtype[k]);
    }
    for (int k = 0; k < r->n_ys; k++)
        y[k] = next(&state) % 3 ? value[next(&state) % (uint32_t)n] : carry_out[0];
}

static kiln_tensor *row(const Recipe *r, kiln_tensor *x, int64_t i)
{
    return kiln_reshape(kiln_slice(x, 1, (kiln_range[]){{i, i + 1, 1}}), shape_of(r));
}

static void steps_taken(Recipe *r, int64_t length, bool reverse, kiln_tensor **init, kiln_tensor **xs, kiln_tensor **carry,
                        kiln_tensor *y[MOST][LONGEST])
{
    memcpy(carry, init, sizeof *carry * (size_t)r->n_carry);
    for (int64_t s = 0; s < length; s++) {
        int64_t i = reverse ? length - 1 - s : s;
        kiln_tensor *x[MOST], *next_carry[MOST], *made[MOST] = {NULL};
        for (int k = 0; k < r->n_xs; k++)
            x[k] = row(r, xs[k], i);
        step(kiln_full(KILN_I64, KILN_SHAPE(), (double)i), carry, x, next_carry, made, r);
        memcpy(carry, next_carry, sizeof *carry * (size_t)r->n_carry);
        for (int k = 0; k < r->n_ys; k++)
            y[k][i] = made[k];
    }
}

static void against_steps(uint32_t seed, int64_t n, int64_t length, bool reverse)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F32, KILN_I32, KILN_BOOL, KILN_BF16, KILN_F64, KILN_U8, KILN_F16};
    uint32_t state = seed * 31 + 5;
    Recipe r = {
        .seed = seed, .n = n, .n_carry = 1 + (int)(next(&state) % 4), .n_xs = (int)(next(&state) % 3), .n_ys = (int)(next(&state) % 3)};
    kiln_tensor *init[MOST], *xs[MOST], *last[MOST], *ys[MOST], *carry[MOST], *y[MOST][LONGEST];
    r.captured = given(KILN_F32, n ? KILN_SHAPE(n) : KILN_SHAPE());
    r.column = given(KILN_F32, n ? KILN_SHAPE(2, 1) : KILN_SHAPE());
    for (int k = 0; k < r.n_carry; k++) {
        r.dtype[k] = dtypes[next(&state) % 8];
        init[k] = k && r.dtype[k] == r.dtype[0] ? init[0] : given(r.dtype[k], shape_of(&r));
    }
    for (int k = 0; k < r.n_xs; k++)
        xs[k] = given(dtypes[next(&state) % 8], n ? KILN_SHAPE(length, 2, n) : KILN_SHAPE(length));
    int read = seed % 2 ? (int)(next(&state) % 16) : 15; /* which results anybody has: one at least */
    kiln_scope *inner = kiln_scope_begin();
    cr_assert_eq(kiln_scan(step, length, reverse ? KILN_SCAN_REVERSE : 0, r.n_carry, init, last, r.n_xs, xs, r.n_ys, ys, &r), KILN_OK,
                 "seed %u: %s", seed, kiln_error_message());
    for (int k = 0; k < r.n_carry; k++)
        if (!k || read >> k & 1)
            kiln_keep(last[k]);
    for (int k = 0; k < r.n_ys; k++)
        if (read >> k & 1)
            kiln_keep(ys[k]);
    kiln_scope_end(inner);
    if (draws(&r)) {
        cr_assert_eq(kiln_eval(last[0]), KILN_OK);
        return;
    }
    steps_taken(&r, length, reverse, init, xs, carry, y);
    for (int k = 0; k < r.n_carry; k++)
        if (!k || read >> k & 1)
            SAME(carry[k], last[k]);
    for (int k = 0; k < r.n_ys; k++)
        for (int64_t i = 0; i < length && read >> k & 1; i++)
            SAME(y[k][i], row(&r, ys[k], i));
}

STRICT_TEST(loop_kernel, is_its_steps)
{
    static const int64_t sizes[] = {0, 1, 3, 17, 70}, lengths[] = {0, 1, 2, 5, 8};
    for (uint32_t seed = 0; seed < 50; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_seed(seed);
        against_steps(seed, sizes[seed % 5], lengths[seed / 5 % 5], seed & 1);
        kiln_scope_end(scope);
    }
}

/* All vector widths, in jit alone. */
Test(loop_kernel, vectors)
{
    static const char *const bits[] = {"128", "256", "512"};
    for (uint32_t seed = 100; seed < 145; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        set_option("math", "strict");
        set_option("vector_bits", bits[seed % 3]);
        kiln_seed(seed);
        against_steps(seed, 1 + seed % 40, 1 + seed % 6, seed & 1);
        kiln_scope_end(scope);
    }
    end_mode();
}

/* ---- what is one kernel ---- */

static uint64_t kernels_of(kiln_tensor *x)
{
    kiln_stats before, after;
    kiln_get_stats(&before);
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(&after);
    return (uint64_t)(after.kernels - before.kernels);
}

static kiln_tensor *there(kiln_tensor *x)
{
    kiln_check(kiln_eval(x));
    return x;
}

static void mandelbrot(kiln_tensor *i, kiln_tensor **z, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    kiln_tensor **c = user, *re2 = kiln_square(z[0]), *im2 = kiln_square(z[1]), *inside = kiln_le(kiln_add(re2, im2), 4);
    (void)i;
    (void)x;
    (void)y;
    out[0] = kiln_where(inside, kiln_add(kiln_sub(re2, im2), c[0]), z[0]);
    out[1] = kiln_where(inside, kiln_add(kiln_mul(kiln_mul(z[0], z[1]), 2), c[1]), z[1]);
    out[2] = kiln_add(z[2], kiln_cast(inside, KILN_I32));
}

/* One launch, however long it runs, and nothing is compiled for another length or size. */
Test(loop_kernel, any_length)
{
    int64_t compiles = 0;
    for (int64_t k = 0; k < 8; k++) {
        static const int64_t lengths[] = {50, 7, 0, 1, 20, 3, 200, 2}, sizes[] = {30, 41, 17, 64, 5, 3, 100, 2};
        kiln_stats stats;
        kiln_tensor *re = there(kiln_linspace(KILN_F32, -2, 0.5, sizes[k])), *im = there(kiln_full(KILN_F32, KILN_SHAPE(sizes[k]), 0.25));
        kiln_tensor *zero = there(kiln_zeros(KILN_F32, KILN_SHAPE(sizes[k]))), *none = there(kiln_zeros(KILN_I32, KILN_SHAPE(sizes[k])));
        kiln_tensor *z[] = {zero, zero, none}, *end[3];
        kiln_check(kiln_scan(mandelbrot, lengths[k], 0, 3, z, end, 0, NULL, 0, NULL, (kiln_tensor *[]){re, im}));
        cr_assert_eq(kernels_of(end[2]), 1);
        kiln_get_stats(&stats);
        if (k == 3) /* an empty loop may be another graph */
            compiles = (int64_t)stats.compiles;
        int32_t got[100];
        float c[100];
        kiln_check(kiln_read(end[2], KILN_I32, got, 4 * (size_t)sizes[k]));
        kiln_check(kiln_read(re, KILN_F32, c, 4 * (size_t)sizes[k]));
        for (int64_t e = 0; e < sizes[k]; e++) {
            float a = 0, b = 0;
            int32_t n = 0;
            for (; n < lengths[k] && a * a + b * b <= 4; n++) {
                float t = a * a - b * b + c[e];
                b = a * b * 2 + 0.25f;
                a = t;
            }
            cr_assert_eq(got[e], n, "%d: %d of %d", (int)k, (int)got[e], (int)n);
        }
    }
    kiln_stats stats;
    kiln_get_stats(&stats);
    cr_assert_leq((int64_t)stats.compiles - compiles, 12, "%d more",
                  (int)((int64_t)stats.compiles - compiles)); /* and what makes its operands */
    end_mode();
}

static void shifted(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    (void)i;
    (void)x;
    (void)y;
    (void)user;
    out[0] = kiln_add(kiln_roll(c[0], 1, 0), c[0]);
}

static void transposed(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    (void)i;
    (void)x;
    (void)y;
    (void)user;
    out[0] = kiln_add(kiln_transpose(c[0]), c[0]);
}

static void looked_up(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    kiln_tensor **table = user;
    (void)x;
    (void)y;
    out[0] = kiln_add(c[0], kiln_take(table[0], i, 0));
}

/* What looks beyond its own element stays a loop of launches. */
Test(loop_kernel, not_these)
{
    kiln_tensor *x = there(kiln_arange(KILN_F32, 0, 16, 1)), *square = there(kiln_reshape(x, KILN_SHAPE(4, 4))), *out;
    kiln_check(kiln_scan(shifted, 3, 0, 1, &x, &out, 0, NULL, 0, NULL, NULL));
    cr_assert_eq(kernels_of(out), 3);
    kiln_check(kiln_scan(transposed, 3, 0, 1, &square, &out, 0, NULL, 0, NULL, NULL));
    cr_assert_eq(kernels_of(out), 3);
    kiln_check(kiln_scan(looked_up, 16, 0, 1, &x, &out, 0, NULL, 0, NULL, &x));
    cr_assert_eq(kernels_of(out), 16);
    float got[16];
    kiln_check(kiln_read(out, KILN_F32, got, sizeof got));
    cr_assert_eq(got[3], 123);
    kiln_check(kiln_scan(looked_up, 17, 0, 1, &x, &out, 0, NULL, 0, NULL, &x));
    cr_assert_eq(kiln_eval(out), KILN_BAD_INDEX);
    kiln_clear_error();
    end_mode();
}

/* Each of three is the one before, and the last a sum: they change places in registers. */
static void fibonacci(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    (void)i;
    (void)x;
    (void)user;
    out[0] = c[1];
    out[1] = c[2];
    out[2] = kiln_add(c[0], c[1]);
    y[0] = c[0];
    y[1] = out[2];
    y[2] = out[2];
}

STRICT_TEST(loop_kernel, change_places)
{
    kiln_tensor *init[] = {there(kiln_full(KILN_I64, KILN_SHAPE(), 1)), there(kiln_full(KILN_I64, KILN_SHAPE(), 1)),
                           there(kiln_full(KILN_I64, KILN_SHAPE(), 2))};
    kiln_tensor *last[3], *ys[3];
    kiln_check(kiln_scan(fibonacci, 7, KILN_SCAN_REVERSE, 3, init, last, 0, NULL, 3, ys, NULL));
    EXPECT(ys[0], KILN_I64, KILN_SHAPE(7), 0, 5, 4, 3, 2, 2, 1, 1);
    EXPECT(ys[1], KILN_I64, KILN_SHAPE(7), 0, 12, 9, 7, 5, 4, 3, 2);
    EXPECT(last[2], KILN_I64, KILN_SHAPE(), 0, 12);
    SAME(ys[1], ys[2]);
}

/* An operand that nobody else holds becomes a result. */
static void halved(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    (void)i;
    (void)x;
    (void)y;
    (void)user;
    out[0] = kiln_mul(c[0], 0.5);
}

Test(loop_kernel, in_place)
{
    enum { N = 1 << 20 };
    kiln_tensor *p = kiln_full(KILN_F32, KILN_SHAPE(N), 1024);
    kiln_check(kiln_eval(p));
    for (int round = 0; round < 2; round++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *last;
        kiln_check(kiln_scan(halved, 5, 0, 1, &p, &last, 0, NULL, 0, NULL, NULL));
        kiln_check(kiln_assign(p, last));
        kiln_scope_end(scope);
        kiln_stats before, after;
        kiln_get_stats(&before);
        kiln_check(kiln_eval(p));
        kiln_get_stats(&after);
        cr_assert_lt(after.peak_bytes - before.live_bytes, 4 * N, "%d bytes more", (int)(after.peak_bytes - before.live_bytes));
    }
    float *got = malloc(4 * N);
    kiln_check(kiln_read(p, KILN_F32, got, 4 * N));
    for (int i = 0; i < N; i++)
        cr_assert_eq(got[i], 1);
    free(got);
    end_mode();
}

/* What is read in the end needs another carry, which needs another one. */
static void chain(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    (void)i;
    (void)x;
    (void)y;
    (void)user;
    out[0] = kiln_add(c[0], 1);
    for (int k = 1; k < 5; k++)
        out[k] = kiln_add(c[k], c[k - 1]);
}

STRICT_TEST(loop_kernel, one_is_read)
{
    for (int k = 0; k < 5; k++) {
        kiln_tensor *zero = there(kiln_zeros(KILN_F32, KILN_SHAPE(3))), *init[] = {zero, zero, zero, zero, zero}, *last[5];
        kiln_scope *scope = kiln_scope_begin();
        kiln_check(kiln_scan(chain, 6, 0, 5, init, last, 0, NULL, 0, NULL, NULL));
        kiln_keep(last[k]);
        kiln_scope_end(scope);
        static const double choose[] = {6, 15, 20, 15, 6}; /* k + 1 of 6 */
        EXPECT(last[k], KILN_F32, KILN_SHAPE(3), 0, choose[k], choose[k], choose[k]);
    }
}

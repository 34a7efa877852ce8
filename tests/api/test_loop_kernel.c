/* Scans whose step is elementwise: one kernel each, with the bits of their steps taken one by one, in every mode. */
#include "each_mode.h"

#include <stdio.h>

enum { MOST = 5, LONGEST = 9 }; /* values of each kind, steps */

typedef struct Recipe {
    uint32_t seed;
    int n_carry, n_xs, n_ys;
    int64_t n; /* values are [2, n], or [] where it is 0 */
    kiln_dtype dtype[MOST];
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
    kiln_stats before = stats_now();
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
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
    (void)i, (void)x, (void)y;
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
    (void)i, (void)x, (void)y, (void)user;
    out[0] = kiln_add(kiln_roll(c[0], 1, 0), c[0]);
}

static void transposed(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    out[0] = kiln_add(kiln_transpose(c[0]), c[0]);
}

static void looked_up(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **out, kiln_tensor **y, void *user)
{
    kiln_tensor **table = user;
    (void)x, (void)y;
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
    (void)i, (void)x, (void)user;
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
    (void)i, (void)x, (void)y, (void)user;
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
        kiln_stats before = stats_now();
        kiln_check(kiln_eval(p));
        kiln_stats after = stats_now();
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
    (void)i, (void)x, (void)y, (void)user;
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

/* ---- loops that end for each index by itself ------------------------------------------------------------------------------ */

typedef struct Ending {
    uint32_t seed;
    int64_t most;     /* max_steps */
    bool inside_cond; /* some indices have no loop */
    kiln_dtype dtype;
} Ending;

static kiln_tensor *not_yet(kiln_tensor **s, void *user)
{
    (void)user;
    return kiln_logical_and(kiln_lt(s[2], s[3]), kiln_lt(kiln_abs(s[0]), 1e4));
}

/* x, y, how many steps, how many at most. */
static void towards(kiln_tensor **s, kiln_tensor **out, void *user)
{
    const Ending *e = user;
    kiln_tensor *x = kiln_cast(s[0], KILN_F32), *y = s[1];
    uint32_t state = e->seed;
    for (int k = 0; k < 3; k++)
        switch (next(&state) % 6) {
        case 0: x = kiln_add(x, kiln_mul(y, 0.25)); break;
        case 1: x = kiln_mul(x, 1.75); break;
        case 2: y = kiln_sin(kiln_add(x, y)); break;
        case 3: x = kiln_where(kiln_gt(x, y), x, kiln_sub(y, 1)); break;
        case 4: y = kiln_maximum(kiln_neg(y), kiln_cast(s[2], KILN_F32)); break;
        default: x = kiln_add(x, kiln_cast(kiln_remainder(s[2], 3), KILN_F32));
        }
    out[0] = kiln_cast(x, e->dtype);
    out[1] = y;
    out[2] = kiln_add(s[2], 1);
    out[3] = s[3];
}

static void run_ending(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Ending *e = user;
    kiln_tensor *state[] = {in[0], in[1], kiln_full(KILN_I32, KILN_SHAPE(), 0), in[2]};
    if (kiln_while(not_yet, towards, 4, state, e->most, state, user) == KILN_OK)
        memcpy(out, state, 3 * sizeof *out);
}

static void no_loop(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
    out[1] = kiln_neg(in[1]);
    out[2] = kiln_full(KILN_I32, KILN_SHAPE(), -1);
}

static void one_ending(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Ending *e = user;
    if (e->inside_cond)
        (void)kiln_cond(kiln_lt(in[2], 6), run_ending, no_loop, 3, in, 3, out, user);
    else
        run_ending(in, out, user);
}

static void row_of_endings(kiln_tensor **in, kiln_tensor **out, void *user) { (void)kiln_map(one_ending, 3, in, NULL, 0, 3, out, user); }

static kiln_tensor *one_of(kiln_tensor *x, int64_t i, int64_t j)
{
    return kiln_reshape(kiln_slice(x, 2, (kiln_range[]){{i, i + 1, 1}, {j, j + 1, 1}}), KILN_SHAPE());
}

static void endings(Ending *e, int64_t rows, int64_t n)
{
    enum { MOST_ENDINGS = 80 };
    kiln_tensor *limit = there(kiln_randint(KILN_I32, KILN_SHAPE(rows, n), 0, 11));
    kiln_tensor *in[] = {given(e->dtype, KILN_SHAPE(rows, n)), given(KILN_F32, KILN_SHAPE(rows, n)), limit};
    kiln_tensor *all[3], *each[3][MOST_ENDINGS];
    cr_assert_eq(kiln_map(row_of_endings, 3, in, NULL, 0, 3, all, e), KILN_OK, "%s", kiln_error_message());
    for (int64_t k = 0; k < rows * n; k++) {
        kiln_tensor *one[] = {one_of(in[0], k / n, k % n), one_of(in[1], k / n, k % n), one_of(in[2], k / n, k % n)}, *out[3];
        one_ending(one, out, e);
        for (int r = 0; r < 3; r++)
            each[r][k] = out[r];
    }
    for (int r = 0; r < 3; r++)
        SAME(kiln_reshape(all[r], KILN_SHAPE(rows * n)), kiln_stack(each[r], (int)(rows * n), 0));
}

STRICT_TEST(loop_kernel, each_index_ends_by_itself)
{
    static const int64_t sizes[] = {1, 3, 17, 40};
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_BF16};
    for (uint32_t seed = 0; seed < 12; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        Ending e = {seed * 77 + 1, seed % 3 ? 0 : 20, seed % 4 == 3, dtypes[seed % 3]};
        kiln_seed(seed);
        endings(&e, 1 + seed % 2, sizes[seed / 2 % 4]);
        kiln_scope_end(scope);
    }
}

Test(loop_kernel, each_index_ends_in_vectors_of_any_width)
{
    static const char *const bits[] = {"128", "256", "512"};
    set_option("math", "strict");
    for (uint32_t seed = 20; seed < 32; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        Ending e = {seed * 77 + 1, seed % 2 ? 0 : 20, false, KILN_F32};
        set_option("vector_bits", bits[seed % 3]);
        kiln_seed(seed);
        endings(&e, 2, 1 + seed % 40);
        kiln_scope_end(scope);
    }
    end_mode();
}

/* One kernel, whatever the number of steps; one whose step looks at others is a loop of launches. */
Test(loop_kernel, loops_of_each_index_are_one_kernel)
{
    for (int64_t n = 5; n < 80; n += 30) {
        Ending e = {1, 0, false, KILN_F32};
        kiln_tensor *in[] = {there(kiln_ones(KILN_F32, KILN_SHAPE(n))), there(kiln_ones(KILN_F32, KILN_SHAPE(n))),
                             there(kiln_full(KILN_I32, KILN_SHAPE(n), 1 << n / 5))},
                    *out[3];
        kiln_check(kiln_map(one_ending, 3, in, NULL, 0, 3, out, &e));
        uint64_t kernels = kernels_of(kiln_mul(out[0], 1));
        cr_assert(kernels <= 5, "%d kernels", (int)kernels); /* it, what it starts with, what comes behind */
    }
    end_mode();
}

/* Where an index is not done within the bound: the error of any loop, with its line. */
STRICT_TEST(loop_kernel, bound_of_each_index)
{
    for (int k = 0; k < 2; k++) {
        Ending e = {5, 7, k == 1, KILN_F32}; /* with the cond those of 6 and more have no loop */
        int32_t limits[] = {3, 0, 9, 7, 1};
        kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(5)), *out[3];
        kiln_tensor *in[] = {x, x, kiln_from(KILN_I32, KILN_SHAPE(5), limits)};
        kiln_status status = kiln_map(one_ending, 3, in, NULL, 0, 3, out, &e);
        status = status == KILN_OK ? kiln_wait(out[2]) : status; /* eager mode is there already; a CUDA device tells who waits */
        cr_assert_eq(status, k ? KILN_OK : KILN_INVALID, "%s", kiln_error_message());
        cr_assert(k || (strstr(kiln_error_message(), "7 steps") && strstr(kiln_error_message(), "test_loop_kernel.c")), "%s",
                  kiln_error_message());
        kiln_clear_error();
    }
}

/* ---- a counter beside an array -------------------------------------------------------------------------------------------- */

typedef struct Beside {
    uint32_t seed;
    bool by_time;
} Beside;

/* x [n], a time and a counter, and how often. */
static void step_beside(kiln_tensor **s, kiln_tensor **out, void *user)
{
    const Beside *b = user;
    uint32_t state = b->seed;
    kiln_tensor *x = s[0], *t = s[1], *i = s[2];
    for (int k = 0; k < 4; k++)
        switch (next(&state) % 7) {
        case 0: x = kiln_add(x, t); break;
        case 1: x = kiln_mul(x, kiln_cast(i, KILN_F32)); break;
        case 2: x = kiln_sin(kiln_sub(x, s[0])); break;
        case 3: t = kiln_add(kiln_mul(t, 0.75), kiln_cast(i, KILN_F32)); break;
        case 4: t = kiln_sub(s[1], kiln_sqrt(kiln_abs(t))); break;
        case 5: x = kiln_where(kiln_gt(t, 1), x, kiln_neg(s[0])); break;
        default: x = kiln_maximum(x, kiln_mul(t, 0.5));
        }
    out[0] = x;
    out[1] = t;
    out[2] = kiln_add(i, 1);
    out[3] = s[3];
}

static kiln_tensor *goes_on(kiln_tensor **s, void *user)
{
    const Beside *b = user;
    kiln_tensor *below = kiln_lt(s[2], s[3]);
    return b->by_time ? kiln_logical_and(below, kiln_lt(s[1], 4)) : below;
}

static void scan_beside(kiln_tensor *i, kiln_tensor **c, kiln_tensor **x, kiln_tensor **next_c, kiln_tensor **y, void *user)
{
    kiln_tensor *s[] = {kiln_add(c[0], x[0]), c[1], i, i}, *out[4];
    (void)x;
    step_beside(s, out, user);
    next_c[0] = out[0];
    next_c[1] = out[1];
    y[0] = kiln_mul(out[1], 2);
    y[1] = out[0];
}

/* `wanted`: which of the ends somebody reads. */
static void beside(uint32_t seed, int64_t n, int64_t steps, unsigned wanted)
{
    Beside b = {seed, seed % 3 == 1};
    kiln_tensor *x = given(KILN_F32, KILN_SHAPE(n)), *t = given(KILN_F32, KILN_SHAPE());
    kiln_tensor *zero = there(kiln_full_int(KILN_I64, KILN_SHAPE(), 0)), *most = there(kiln_full_int(KILN_I64, KILN_SHAPE(), steps));
    kiln_tensor *state[] = {x, t, zero, most}, *want[] = {x, t, zero, most};
    cr_assert_eq(kiln_while(goes_on, step_beside, 4, state, seed % 2 ? 0 : 12, state, &b), KILN_OK, "%s", kiln_error_message());
    for (double on = 1; kiln_item(goes_on(want, &b), &on) == KILN_OK && on != 0;)
        step_beside(want, want, &b);
    for (unsigned k = 0; k < 4; k++)
        if (wanted >> k & 1)
            SAME(state[k], want[k]);

    kiln_tensor *carry[] = {x, t}, *last[2], *ys[2], *xs = given(KILN_F32, KILN_SHAPE(steps, n)), *y[2][LONGEST];
    cr_assert_eq(kiln_scan(scan_beside, -1, 0, 2, carry, last, 1, &xs, 2, ys, &b), KILN_OK, "%s", kiln_error_message());
    for (int64_t k = 0; k < steps; k++) {
        kiln_tensor *out[2], *made[2], *row_of_xs = kiln_reshape(kiln_slice_axis(xs, 0, k, k + 1, 1), KILN_SHAPE(n));
        scan_beside(there(kiln_full_int(KILN_I64, KILN_SHAPE(), k)), carry, &row_of_xs, out, made, &b);
        memcpy(carry, out, sizeof out);
        y[0][k] = made[0];
        y[1][k] = made[1];
    }
    for (unsigned k = 0; k < 2; k++) {
        if (wanted >> k & 1)
            SAME(last[k], carry[k]);
        if (wanted >> (2 + k) & 1 && steps)
            SAME(ys[k], kiln_stack(y[k], (int)steps, 0));
    }
}

STRICT_TEST(loop_kernel, counters_beside_arrays)
{
    static const int64_t sizes[] = {5, 0, 1, 33, 70}, lengths[] = {4, 0, 1, 8};
    for (uint32_t seed = 0; seed < 40; seed++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_seed(seed);
        beside(seed, sizes[seed % 5], lengths[seed / 5 % 4], seed < 15 ? 15 : 1 + seed % 15);
        kiln_scope_end(scope);
    }
}

/* However often: one kernel for the array, one for the counter where somebody reads that. */
Test(loop_kernel, counted_loops_are_one_kernel)
{
    Beside b = {3, false};
    for (int64_t steps = 100; steps <= 300; steps += 100)
        for (int k = 0; k < 3; k++) {
            kiln_tensor *zero = there(kiln_full_int(KILN_I64, KILN_SHAPE(), 0)),
                        *most = there(kiln_full_int(KILN_I64, KILN_SHAPE(), steps));
            kiln_tensor *state[] = {there(kiln_ones(KILN_F32, KILN_SHAPE(64))), there(kiln_ones(KILN_F32, KILN_SHAPE())), zero, most};
            cr_assert_eq(kiln_while(goes_on, step_beside, 4, state, 0, state, &b), KILN_OK);
            cr_assert_leq(kernels_of(state[k]), 2);
        }
    end_mode();
}

/* A loop that does not come to its end is an error for no elements, too. */
STRICT_TEST(loop_kernel, bound_of_no_elements)
{
    Beside b = {3, false};
    kiln_tensor *state[] = {kiln_ones(KILN_F32, KILN_SHAPE(0)), kiln_ones(KILN_F32, KILN_SHAPE()), kiln_full_int(KILN_I64, KILN_SHAPE(), 0),
                            kiln_full_int(KILN_I64, KILN_SHAPE(), 9)};
    kiln_status status = kiln_while(goes_on, step_beside, 4, state, 8, state, &b);
    cr_assert_eq(status == KILN_OK ? kiln_wait(state[0]) : status, KILN_INVALID); /* a CUDA device tells who waits */
    kiln_clear_error();
}
